"""deploy/: the manifests and the CronJobs."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys

import demo
import pytest
import yaml
from clusters.embedded.manifests import workload
from support import (
    CONFIRM,
    DEPLOY,
    KUBECTL,
    TOP,
    arguments,
    documents,
    kubectl_minor,
    let_ready,
    upgrade,
)
from texts import NO_NEW_ROLLOUTS


@pytest.fixture
def kubectl(cluster):
    """kubectl(*arguments): how the real kubectl ends."""

    def run(*arguments: str) -> subprocess.CompletedProcess:
        words = [KUBECTL, "--kubeconfig", cluster.kubeconfig, *arguments]
        return subprocess.run(words, cwd=TOP, capture_output=True, text=True, timeout=60)

    return run


def test_the_readmes_commands_are_about_all_manifests(kubectl):
    text = (DEPLOY / "README.md").read_text()
    assert re.findall(r"(?m)^kubectl apply (.*)$", text) == ["-k deploy"]
    built = kubectl("kustomize", "deploy")
    assert (built.returncode, built.stderr) == (0, "")
    found = list(yaml.safe_load_all(built.stdout))
    names = {path.name for path in DEPLOY.glob("*.yaml")} - {"team.yaml", "kustomization.yaml"}
    wanted = [document for name in names for document in documents(name)]
    assert sorted(map(key, found)) == sorted(map(key, wanted))


def key(document: dict) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def test_image_registry_and_arguments_are_set_in_one_place(kubectl, tmp_path):
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    path = tmp_path / "deploy" / "kustomization.yaml"
    text = path.read_text().replace("newName: registry.example/", "newName: registry.test/")
    text = text.replace("sha256:000", "sha256:999").replace("=istio-proxy", "=linkerd-proxy")
    added = re.sub("(?m)^      # (- op|  path|  value)", r"      \1", text)
    path.write_text(added)
    built = kubectl("kustomize", str(path.parent))
    assert (built.returncode, built.stderr) == (0, "")
    jobs = [d for d in yaml.safe_load_all(built.stdout) if d["kind"] == "CronJob"]
    assert len(jobs) == 2
    for job in jobs:
        (found,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        assert found["image"].startswith("registry.test/sidecar-rollout@sha256:999")
        assert found["args"][0] == "--sidecar-container-name=linkerd-proxy"
        assert found["args"][-1] == "--exclude-namespace=vault"


def test_the_rollouts_end_before_the_jobs_deadline():
    (job,) = documents("cronjob.yaml")
    spec, words = job["spec"], arguments("cronjob.yaml")
    assert (spec["suspend"], spec["timeZone"]) == (True, "Etc/UTC")
    assert {"--skip-downtime", "--skip-unhealthy", "--soak=1m"} <= set(words)
    wanted = {"kube-system", "istio-system*", "istio-ingress*"}
    assert {w.partition("=")[2] for w in words if w.startswith("--exclude-namespace")} == wanted
    value = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    assert value["--max-duration"] == "3h"
    needed = 3 * 3600 + int(value["--timeout"].rstrip("s")) + 60
    assert spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] > needed
    for found in (job, job["spec"]["jobTemplate"]["spec"]["template"]):
        assert found["metadata"]["labels"]["app.kubernetes.io/name"] == "sidecar-rollout"


def test_the_policy_has_the_namespaces_that_the_cron_job_leaves_out():
    (policy,) = [
        d for d in documents("policy.yaml") if d["metadata"]["name"] == "sidecar-rollout-namespaces"
    ][:1]
    (validation,) = policy["spec"]["validations"]
    (found,) = re.findall(r"\^\((.*)\)\$", validation["expression"])
    words = [w for w in arguments("cronjob.yaml") if w.startswith("--exclude-namespace=")]
    assert found.split("|") == [w.partition("=")[2].replace("*", ".*") for w in words]


def test_a_pod_may_connect_to_an_api_server_and_to_dns_alone():
    (policy,) = documents("networkpolicy.yaml")
    spec = policy["spec"]
    assert (spec["podSelector"], spec["policyTypes"]) == ({}, ["Ingress", "Egress"])
    assert "ingress" not in spec  # nothing
    ports = {(p["protocol"], p["port"]) for rule in spec["egress"] for p in rule["ports"]}
    assert ports == {("TCP", 443), ("TCP", 6443), ("UDP", 53), ("TCP", 53)}


def test_a_pod_that_is_deleted_ends_its_log_with_the_summary(cluster, start):
    """The kubelet sends SIGTERM, and waits for terminationGracePeriodSeconds."""
    for name in "abc":
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.settle()
    upgrade(cluster)
    cluster.kubelet.ready_after = 60
    words = [word for word in arguments("cronjob.yaml") if not word.startswith("--timeout")]
    running = start(cluster, *words, "--timeout=30s")
    cluster.wait_for(cluster.kubelet.starting)
    running.signal(signal.SIGTERM)
    running.wait_for_log(f"interrupted: {NO_NEW_ROLLOUTS}; waiting for 1 in progress")
    let_ready(cluster)
    ended = running.finish()
    assert ended.code == 143
    last = json.loads(ended.stdout.splitlines()[-1])
    assert (last["record"], last["exit_code"]) == ("summary", 143)
    assert last["outcomes"] == {"incomplete": 1, "not_started": 2}  # a soak that was interrupted


def test_a_misspelled_field_would_be_found(kubectl, tmp_path):
    if kubectl_minor() < 34:
        pytest.skip("the embedded cluster has no OpenAPI v2, by which kubectl 1.28 validates")
    assert kubectl("apply", "-f", "deploy/namespace.yaml").returncode == 0
    (document,) = documents("cronjob.yaml")
    document["spec"]["concurencyPolicy"] = document["spec"].pop("concurrencyPolicy")
    path = tmp_path / "cronjob.json"
    path.write_text(json.dumps(document))
    tried = kubectl("apply", "--dry-run=server", "-f", str(path))
    assert tried.returncode == 1
    assert 'strict decoding error: unknown field "spec.concurencyPolicy"' in tried.stderr


@pytest.mark.parametrize("name", ["cronjob.yaml", "audit.yaml"])
def test_the_cron_jobs_pods_pass_pod_security_restricted(name):
    (job,) = documents(name)
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert set().union(*(volume.keys() for volume in pod["volumes"])) == {"name", "emptyDir"}
    assert all(volume["emptyDir"].keys() == {"sizeLimit"} for volume in pod["volumes"])
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert job["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
    timeout = next((a for a in container["args"] if a.startswith("--timeout=")), "--timeout=300s")
    if name == "audit.yaml":  # it has nothing to finish
        assert "terminationGracePeriodSeconds" not in pod
    else:
        grace = int(timeout.removeprefix("--timeout=").rstrip("s")) + 60
        assert pod["terminationGracePeriodSeconds"] > grace
    accounts = [d["metadata"] for d in documents("rbac.yaml") if d["kind"] == "ServiceAccount"]
    assert {
        "name": pod["serviceAccountName"],
        "namespace": job["metadata"]["namespace"],
    } in accounts


def test_the_audit_is_the_same_without_confirm():
    rollout, audit = set(arguments("cronjob.yaml")), set(arguments("audit.yaml"))
    assert {"--only-drifted", CONFIRM, "--max-failures=3", "--log-format=json"} <= rollout
    assert audit - rollout == {"--fail-on-drift", "--include-missing"}
    assert CONFIRM not in audit


def test_the_audit_has_the_options_of_the_readmes():
    """Besides what it checks, and how it prints: it leaves out nothing."""
    (words,) = re.findall(r"`(--[^`]* --fail-on-drift)`", (TOP / "README.md").read_text())
    names = {word.partition("=")[0] for word in set(arguments("audit.yaml")) - set(words.split())}
    assert set(words.split()) <= set(arguments("audit.yaml"))
    checked = {"--sidecar-container-name", "--include-statefulset", "--include-daemonset"}
    assert names == checked | {"--log-format"}


@pytest.mark.parametrize(("name", "code"), [("cronjob.yaml", 0), ("audit.yaml", 1)])
def test_the_demo_runs_the_cron_jobs_command_line(name, code):
    given = ["--soak=1s" if word == "--soak=1m" else word for word in arguments(name)]
    words = [sys.executable, demo.__file__, *given]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=100)
    records = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == code == records[-1]["exit_code"]
    assert {"drifted", "rejected"} <= records[-1]["verdicts"].keys()
    assert ("result" in {r["record"] for r in records}) == (name == "cronjob.yaml")
