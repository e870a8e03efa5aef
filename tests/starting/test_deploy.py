"""deploy/: the manifests and the CronJobs."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import demo
import pytest
from support import CONFIRM, DEPLOY, KUBECTL, TOP, arguments, documents


@pytest.fixture
def kubectl(cluster):
    """kubectl(*arguments): how the real kubectl ends."""

    def run(*arguments: str) -> subprocess.CompletedProcess:
        words = [KUBECTL, "--kubeconfig", cluster.kubeconfig, *arguments]
        return subprocess.run(words, cwd=TOP, capture_output=True, text=True, timeout=60)

    return run


def test_the_manifests_can_be_applied_in_the_readmes_order(kubectl):
    commands = re.findall(r"(?m)^kubectl apply (-f .*)$", (DEPLOY / "README.md").read_text())
    files = re.findall(r"deploy/(\S+)", " ".join(commands))
    names = {path.name for path in DEPLOY.glob("*.yaml")}
    assert sorted(files) == sorted(names - {"team.yaml"})  # which a team applies to its namespace
    for command in commands:
        names = re.findall(r"deploy/(\S+)", command)
        count = sum(len(documents(name)) for name in names)
        tried = kubectl("apply", "--dry-run=server", *command.split())
        assert (tried.returncode, tried.stdout.count(" created (server dry run)\n")) == (0, count)
        applied = kubectl("apply", *command.split())
        assert (applied.returncode, applied.stdout.count(" created\n")) == (0, count)
        assert kubectl("apply", *command.split()).stdout.count(" unchanged\n") == count


def test_a_misspelled_field_would_be_found(kubectl, tmp_path):
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
    assert audit - rollout == {"--fail-on-drift"}
    assert CONFIRM not in audit


@pytest.mark.parametrize(("name", "code"), [("cronjob.yaml", 0), ("audit.yaml", 1)])
def test_the_demo_runs_the_cron_jobs_command_line(name, code):
    words = [sys.executable, demo.__file__, *arguments(name)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=100)
    records = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == code == records[-1]["exit_code"]
    assert {"drifted", "rejected"} <= records[-1]["verdicts"].keys()
    assert ("result" in {r["record"] for r in records}) == (name == "cronjob.yaml")
