"""--expect-image and --expect-annotation: a yes only if every Pod with the sidecar, and every new one, is as expected."""

from __future__ import annotations

import copy
import re
import threading

import pytest
from clusters.embedded.manifests import container, native, pod, pod_spec, replicated, workload
from support import CONFIRM, DRIFTED, NEW, TEXT, patched, upgrade

OLD = "docker.io/istio/proxyv2:1.26.2"
EXPECT = "--expect-image=*:1.27.*"
PROXY, NEW_PROXY = container("istio-proxy", OLD), container("istio-proxy", NEW)
SPEC = pod_spec(container("app"), PROXY)
NEW_SPEC = pod_spec(container("app"), NEW_PROXY)
JOB, NODE = ("batch/v1", "Job", "backup"), ("v1", "Node", "node-1")
MACHINE = ("kubevirt.io/v1", "VirtualMachineInstance", "vm")
ALL_OF_IT = "there, each run is limited to the namespaces of its test"

pytestmark = pytest.mark.embedded(ALL_OF_IT)


def answer(ended) -> tuple[int, str]:
    return ended.code, ended.stdout.splitlines()[-1]


@pytest.fixture
def fleet(cluster):
    """One workload that is up to date."""
    cluster.namespace("legacy", inject=True)
    upgrade(cluster)
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    return cluster


def outdated(cluster, namespace: str, manifest: dict) -> None:
    cluster.injector.container["image"], image = OLD, cluster.injector.container["image"]
    cluster.create(namespace, manifest)
    cluster.settle()
    cluster.injector.container["image"] = image


def in_legacy(cluster) -> None:
    outdated(cluster, "legacy", workload("Deployment", "fax", replicas=2))


def of_a_kind(kind: str):
    return lambda cluster: outdated(cluster, "shop", workload(kind, "x"))


def paused(cluster) -> None:
    in_legacy(cluster)
    cluster.change("Deployment", "legacy", "fax", {"spec": {"paused": True}})


def of_a_job(cluster) -> None:
    cluster.create("shop", pod("backup", SPEC, JOB))


def static(cluster) -> None:
    cluster.create("shop", pod("static", SPEC, NODE))


def debug(cluster) -> None:
    cluster.create("shop", pod("debug", SPEC))


def machine(cluster) -> None:
    cluster.create("shop", pod("vm", {**SPEC, "restartPolicy": "Never"}, MACHINE))


def gateway(cluster) -> None:
    """Its template states the sidecar, which no restart changes."""
    cluster.create("shop", workload("Deployment", "gateway", SPEC, replicas=2))


def labeled(cluster) -> None:
    """New Pods of this one, too, would get the old version."""
    gateway(cluster)


def terminating(cluster, spec: dict = SPEC) -> None:
    """A proxy that drains its connections for hours."""
    cluster.create("shop", pod("last", spec))
    cluster.settle()
    cluster.kubelet.gone_after = 3600
    cluster.delete("Pod", "shop", "last")


WAYS = {
    "namespace": (in_legacy, {"unexpected": 2}, "2 Pods have another image (2 proxyv2:1.26.2)"),
    "StatefulSet": (
        of_a_kind("StatefulSet"),
        {"unexpected": 1},
        "1 Pod has another image (1 proxyv2:1.26.2)",
    ),
    "DaemonSet": (
        of_a_kind("DaemonSet"),
        {"unexpected": 3},
        "3 Pods have another image (3 proxyv2:1.26.2)",
    ),
    "paused": (paused, {"unexpected": 2}, "2 Pods have another image (2 proxyv2:1.26.2)"),
    "gateway": (
        gateway,
        {"unexpected": 2},
        "2 Pods have another image (2 proxyv2:1.26.2); new Pods of 1 workload would get another one",
    ),
    "Job": (
        of_a_job,
        {"running_to_completion": 1},
        "1 Pod has another image (1 proxyv2:1.26.2), including 1 running to completion",
    ),
    "static Pod": (static, {"unexpected": 1}, "1 Pod has another image (1 proxyv2:1.26.2)"),
    "debug Pod": (debug, {"unexpected": 1}, "1 Pod has another image (1 proxyv2:1.26.2)"),
    "virtual machine": (machine, {"unexpected": 1}, "1 Pod has another image (1 proxyv2:1.26.2)"),
    "terminating": (
        terminating,
        {"terminating": 1},
        "1 Pod has another image (1 proxyv2:1.26.2), including 1 terminating",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_pod_counts_whatever_owns_it(fleet, run, way):
    create, codes, text = WAYS[way]
    assert run(fleet, EXPECT).code == 0
    create(fleet)
    fleet.settle()
    ended = run(fleet, EXPECT)
    said = ended.summary["expected"]
    assert (ended.code, said["yes"], said["reasons"]) == (1, False, text.split("; "))
    assert ended.summary["failed"] == {"not_as_expected": len(said["reasons"])}
    assert said["others"] == {OLD: sum(codes.values())}
    assert said["terminating"] == codes.get("terminating", 0)
    assert said["pods"] == 2 + sum(codes.values())
    assert [left["code"] for left in ended.summary["leftovers"]] == [*codes] * sum(codes.values())
    assert {left["found"] for left in ended.summary["leftovers"]} == {OLD}
    assert answer(run(fleet, EXPECT, TEXT)) == (1, f"No: {text}.")
    assert patched(fleet) == []


def test_the_answer_is_the_last_line_with_the_reasons_above(fleet, run):
    in_legacy(fleet)
    gateway(fleet)
    of_a_job(fleet)
    fleet.settle()
    ended = run(fleet, EXPECT, TEXT)
    text = (
        "No: 5 Pods have another image (5 proxyv2:1.26.2), including 1 running to completion; "
        "new Pods of 1 workload would get another one."
    )
    assert ended.stdout.partition("\n\n")[2].splitlines() == [
        "SIDECAR      VERSION  PODS",
        "istio-proxy  1.26.2   5",
        "istio-proxy  1.27.0   2",
        "",
        "legacy:",
        f"  Pods with {OLD}:",
        "    Deployment legacy/fax",
        "",
        "shop:",
        f"  Pods with {OLD}:",
        "    Deployment shop/gateway",
        f"  new Pods would have {OLD}:",
        "    Deployment shop/gateway",
        f"  running to completion: {OLD}:",
        "    Job shop/backup",
        "",
        text,
    ]


def test_a_yes_says_what_was_asked_and_what_was_not(fleet, run):
    fleet.create("shop", workload("Deployment", "zero", replicas=0))
    fleet.create("shop", workload("DaemonSet", "agent"))
    fleet.create("shop", replicated("ReplicaSet", "lone"))
    fleet.create("shop", pod("backup", NEW_SPEC, JOB))
    for name in ("static-1", "static-2"):
        fleet.create("shop", pod(name, NEW_SPEC, NODE))
    fleet.create("shop", pod("debug", NEW_SPEC))
    fleet.create("shop", pod("vm", {**NEW_SPEC, "restartPolicy": "Never"}, MACHINE))
    fleet.settle()
    ended = run(fleet, EXPECT, TEXT)
    code, text = answer(ended)
    assert code == 0
    said, _, rest = text.partition("; not checked: ")
    new = "new ones would, too (3 workloads checked"
    assert said == f"Yes: all 11 Pods with istio-proxy have *:1.27.*; {new}"
    assert sorted(rest.removesuffix(").").split(", ")) == [
        "1 Job",
        "1 bare Pod",
        "1 custom resource",
        "1 without Pods",
        "2 static Pods",
    ]
    said = run(fleet, EXPECT).summary["expected"]
    assert said == {
        "patterns": ["*:1.27.*"],
        "yes": True,
        "pods": 11,
        "others": {},
        "terminating": 0,
        "asked": 3,
        "would_differ": 0,
        "no_answer": 0,
        "not_asked": {
            "without_pods": 1,
            "job": 1,
            "bare_pod": 1,
            "static_pod": 2,
            "custom_resource": 1,
        },
        "reasons": [],
    }


def test_of_one_pod_and_no_workload(cluster, run):
    cluster.create("shop", pod("debug", NEW_SPEC))
    cluster.settle()
    text = "Yes: the only Pod with istio-proxy has *:1.27.* (0 workloads checked; not checked: 1 bare Pod)."
    assert answer(run(cluster, EXPECT, TEXT)) == (0, text)


@pytest.mark.parametrize(
    "pattern",
    [
        "*:1.62.*",
        "*:1.27.0,*:1.27.1",
        "1.27.0",
        "*:1.27",
        "proxyv2:1.27.0",
        "*@sha256:0a1b*",
        "quay.io/istio/proxyv2:1.27.0",
        "docker.io/istio/proxyv2",
    ],
)
def test_a_mistake_in_the_pattern_is_a_no(fleet, run, pattern):
    ended = run(fleet, f"--expect-image={pattern}", TEXT)
    assert answer(ended)[1].startswith("No: 2 Pods have another image (2 ")
    assert ended.code == 1


def test_a_pattern_is_of_the_whole_image(fleet, run):
    digest = f"docker.io/istio/proxyv2@sha256:{64 * '0'}"
    for pattern in (NEW, "*:1.27.*", "*/proxyv2:1.27.[0-9]", "docker.io/istio/proxyv2:*"):
        assert run(fleet, f"--expect-image={pattern}").code == 0
    pinned = pod_spec(container("app"), container("istio-proxy", digest))
    fleet.create("shop", pod("pinned", pinned))
    fleet.settle()
    assert run(fleet, EXPECT).summary["expected"]["others"] == {digest: 1}
    assert run(fleet, EXPECT, "--expect-image=*@sha256:0000*").code == 0


def test_what_terminates_and_is_as_expected_is_no_reason_for_a_no(fleet, run):
    terminating(fleet, NEW_SPEC)
    ended = run(fleet, EXPECT)
    assert (ended.code, ended.summary["expected"]["pods"]) == (0, 3)


def test_a_workload_whose_pods_all_terminate_is_asked(fleet, run):
    """New Pods would get the old version."""
    fleet.create("shop", workload("Deployment", "api", NEW_SPEC, replicas=2))
    fleet.settle()
    fleet.kubelet.gone_after = 3600
    fleet.change("Deployment", "shop", "api", {"spec": {"replicas": 0}})
    fleet.wait_for(
        lambda: all(p["metadata"].get("deletionTimestamp") for p in fleet.pods("shop", "api"))
    )
    template = {"spec": {"containers": [container("app"), container("istio-proxy", OLD)]}}
    fleet.change("Deployment", "shop", "api", {"spec": {"template": template}})
    ended = run(fleet, EXPECT)
    assert ended.summary["expected"]["reasons"] == [
        "new Pods of 1 workload would get another image"
    ]
    assert ended.skipped == {"Deployment shop/api": "would_differ"}


def test_what_new_pods_would_get_counts(fleet, run):
    fleet.injector.container["image"] = OLD
    ended = run(fleet, EXPECT, TEXT)
    assert answer(ended) == (1, "No: new Pods of 1 workload would get another image.")
    assert f"shop:\n  new Pods would have {OLD}:\n    Deployment shop/web\n" in ended.stdout
    ended = run(fleet, EXPECT)
    assert ended.skipped == {"Deployment shop/web": "would_differ"}
    assert ended.summary["expected"]["would_differ"] == 1


def test_to_lose_the_sidecar_is_a_no(fleet, run):
    fleet.injector.state = "ignored"
    ended = run(fleet, EXPECT)
    assert ended.reasons == {"Deployment shop/web": "new Pods would not have istio-proxy"}
    assert ended.code == 1


WHY_NOT = {
    "denies": 'new Pods cannot be created: 403 admission webhook "inject.sidecar.example" denied',
    "fails": "500 Internal error occurred: failed calling webhook",
    "no-dry-run": '400 admission webhook "inject.sidecar.example" does not support dry run',
}


@pytest.mark.parametrize(
    ("state", "code"), [("denies", "rejected"), ("fails", "unknown"), ("no-dry-run", "unknown")]
)
def test_no_answer_is_a_no(fleet, run, state, code):
    fleet.injector.state = state
    ended = run(fleet, EXPECT, TEXT)
    (said, text) = answer(ended)
    assert (said, text.startswith(f"No: 1 workload gave no answer: {WHY_NOT[state]}")) == (1, True)
    assert run(fleet, EXPECT).skipped == {"Deployment shop/web": code}


def test_the_answer_fits_a_terminal(fleet, run, tool, monkeypatch):
    monkeypatch.setattr(tool.Report, "width", 80)
    in_legacy(fleet)
    gateway(fleet)
    fleet.settle()
    lines = re.sub(r"\033\[\d+m", "", run(fleet, EXPECT, TEXT).stdout).splitlines()
    assert lines[-2:] == [
        "No: 4 Pods have another image (4 proxyv2:1.26.2); new Pods of 1 workload would",
        "get another one.",
    ]
    assert max(map(len, lines)) <= 80


def test_a_name_that_no_pod_has_is_a_no(fleet, run):
    name = "--sidecar-container-name={}"
    for typed in ("isto-proxy", "linkerd-*"):
        ended = run(fleet, EXPECT, name.format(typed), TEXT)
        assert answer(ended) == (1, f"No: no Pod has a container named {typed}.")
        both = run(fleet, EXPECT, name.format(typed), name.format("istio-proxy"), TEXT)
        assert answer(both) == (1, f"No: no Pod has a container named {typed}.")
    fleet.delete("Deployment", "shop", "web")
    fleet.create("shop", workload("Deployment", "zero", NEW_SPEC, replicas=0))
    fleet.wait_for(lambda: not fleet.store.list("pods", "shop"))
    ended = run(fleet, EXPECT, TEXT)
    assert answer(ended) == (1, "No: no Pod has a container named istio-proxy.")


def test_the_namespaces_that_were_read_stand_in_the_answer(fleet, run):
    in_legacy(fleet)
    ended = run(fleet, EXPECT, "-n=shop", TEXT)
    text = "Yes: all 2 Pods with istio-proxy in namespace shop have *:1.27.*; new ones would, too"
    assert answer(ended) == (0, f"{text} (1 workload checked).")
    ended = run(fleet, EXPECT, "-n=shop", "-n=pay*", TEXT)
    assert answer(ended) == (1, "No: no Pods in namespaces that match pay*.")


def test_each_named_container_must_match(fleet, run):
    spec = {"containers": [container("app"), NEW_PROXY], "initContainers": [native("istio-a", OLD)]}
    fleet.create("shop", pod("two", spec))
    fleet.settle()
    ended = run(fleet, EXPECT, "--sidecar-container-name=istio-*")
    assert ended.summary["expected"]["others"] == {OLD: 1}
    assert run(fleet, EXPECT).code == 0


@pytest.mark.parametrize("manager", ["sidecar-rollout", "kubectl-patch"])
def test_an_image_that_was_changed_in_place_counts_once_it_runs(cluster, run, manager):
    """Until the restart, the spec has the new image, and the old one runs, whoever changed it."""
    spec = pod_spec(container("app"), NEW_PROXY)
    cluster.create("shop", workload("Deployment", "web", spec))
    cluster.settle()
    (found,) = cluster.pods("shop", "web")
    entry = {
        "manager": manager,
        "operation": "Update",
        "time": "2100-01-01T00:00:00Z",
        "fieldsV1": {"f:spec": {"f:containers": {'k:{"name":"istio-proxy"}': {"f:image": {}}}}},
    }
    metadata = {**found["metadata"], "managedFields": [entry]}
    cluster.store.change("pods", found, metadata=metadata)
    ended = run(cluster, EXPECT, TEXT)
    assert answer(ended) == (1, "No: 1 Pod has another image (1 not restarted).")
    conditions = [{**c, "status": "False"} for c in found["status"]["conditions"]]
    cluster.store.change("pods", found, status={**found["status"], "conditions": conditions})
    assert answer(run(cluster, EXPECT, TEXT)) == answer(ended)  # nor is one that is not ready
    entry["time"] = "2000-01-01T00:00:00Z"
    cluster.store.change("pods", found, metadata=metadata)
    assert run(cluster, EXPECT).code == 0


REVISION = "--expect-annotation=istio.io/rev=1-27-*"


def test_an_annotation_of_pods_and_of_answers(cluster, run):
    """Two revisions of Istio may have the same image."""
    inject = cluster.injector.inject

    def with_revision(found: dict) -> None:
        inject(found)
        found["metadata"].setdefault("annotations", {})["istio.io/rev"] = cluster.revision

    cluster.injector.inject = with_revision
    upgrade(cluster)
    cluster.revision = "1-27-0"
    cluster.namespace("plain")
    cluster.create("plain", workload("Deployment", "plain"))  # without the sidecar
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    text = "Yes: all 2 Pods with istio-proxy have istio.io/rev=1-27-*; new ones would, too"
    counts = "1 workload checked; 1 workload without the sidecar would not get it"
    assert answer(run(cluster, REVISION, TEXT)) == (0, f"{text} ({counts}).")
    both = run(cluster, EXPECT, REVISION)
    assert (both.code, both.summary["expected"]["patterns"]) == (
        0,
        ["*:1.27.*", "istio.io/rev=1-27-*"],
    )
    cluster.revision = "1-28-0"
    said = run(cluster, REVISION).summary["expected"]
    assert said["reasons"] == ["new Pods of 1 workload would get another annotation"]
    cluster.create("shop", workload("Deployment", "api"))
    cluster.settle()
    text = "No: 1 Pod has another annotation (1 istio.io/rev=1-28-0); new Pods of 2 workloads would get another one."
    assert answer(run(cluster, REVISION, TEXT)) == (1, text)
    assert run(cluster, REVISION, "--expect-annotation=istio.io/rev=1-28-0").code == 0
    assert run(cluster, "--expect-annotation=istio.io/rew=*").summary["expected"]["others"] == {
        "istio.io/rew=<none>": 3
    }


@pytest.mark.parametrize(
    "option",
    [
        "deployment/web",
        CONFIRM,
        "--exclude-namespace=x",
        "--selector=a=b",
        "-lapp=web",
        "--include-annotation=x",
        "--exclude-annotation=x",
        "--only-started-before=2026-05-01",
        "--plan=/dev/null",
        "--exclude-deployment",
        "--max-rollouts=1",
        "--skip-unhealthy",
        "--skip-downtime",
        "--allow-removal",
        "--fail-on-drift",
        "--evict",
        "--in-place",
    ],
)
def test_with_an_option_that_leaves_something_out_it_is_bad_usage(run, option):
    for question in (EXPECT, REVISION):
        ended = run(None, question, DRIFTED, option, TEXT)
        name = question.partition("=")[0]
        flag = {"deployment/web": "TYPE/NAME", "-lapp=web": "--selector"}.get(option)
        flag = flag or option.partition("=")[0]
        text = f"{flag} cannot be used with {name}, which asks about all Pods\n"
        assert (ended.code, ended.stderr.partition("See")[0]) == (2, f"error: {text}")


def test_what_leaves_nothing_out_may_stand_beside_it(fleet, run):
    options = (DRIFTED, "--include-missing", "--confirm=false", "--max-rollouts=100%", "-A")
    ended = run(fleet, EXPECT, *options, "--include-statefulset", "--parallel-rollouts=5")
    assert ended.code == 0


def test_an_annotation_needs_a_value(run):
    ended = run(None, "--expect-annotation=istio.io/rev", TEXT)
    text = 'invalid value "istio.io/rev": must be KEY=VALUE, such as istio.io/rev=1-27-0'
    assert f"argument --expect-annotation: {text}\n" in ended.stderr


@pytest.mark.parametrize("spec", [SPEC, NEW_SPEC], ids=["old", "new"])
@pytest.mark.parametrize("is_owned", [False, True])
def test_a_pod_that_appears_during_the_dry_runs_is_seen(fleet, start, spec, is_owned):
    """New Pods of a workload that was created meanwhile were not asked about."""
    held = fleet.fault(method="POST", path="dryRun", release=threading.Event())
    running = start(fleet, EXPECT)
    assert held.reached.wait(30)
    if is_owned:
        fleet.create("shop", replicated("ReplicaSet", "late", spec))
        fleet.settle()
    else:
        fleet.create("shop", pod("late", spec))
    held.release.set()
    ended = running.finish()
    reasons = [] if spec is NEW_SPEC else ["1 Pod has another image (1 proxyv2:1.26.2)"]
    if is_owned and spec is NEW_SPEC:
        reasons.append("1 workload gave no answer")
    assert (ended.code, ended.summary["expected"]["reasons"]) == (int(bool(reasons)), reasons)


# What looks like a yes


def old_for(cluster, name: str) -> None:
    """New Pods whose name begins like this get the old image."""
    inject = cluster.injector.inject

    def by_name(found: dict) -> None:
        of = found["metadata"].get("generateName") or found["metadata"]["name"]
        cluster.injector.container["image"] = OLD if of.startswith(name) else NEW
        inject(found)

    cluster.injector.inject = by_name


@pytest.mark.parametrize("kind", ["ReplicaSet", "ReplicationController"])
def test_new_pods_of_an_owner_without_rollouts_count(fleet, run, kind):
    fleet.create("shop", replicated(kind, "lone"))
    fleet.settle()
    old_for(fleet, "lone")
    ended = run(fleet, EXPECT)
    assert (ended.code, ended.skipped) == (1, {f"{kind} shop/lone": "would_differ"})


def test_a_second_name_must_be_in_a_pod_that_counts(fleet, run):
    names = [f"--sidecar-container-name={name}" for name in ("istio-proxy", "linkerd-proxy")]
    ended = {**pod_spec(container("app", "once"), container("linkerd-proxy", "l:1"))}
    fleet.create("shop", pod("done", {**ended, "restartPolicy": "Never"}, JOB))
    fleet.create("shop", workload("Deployment", "zero", ended, replicas=0))
    fleet.create("legacy", pod("elsewhere", ended))
    fleet.settle()
    said = "no Pod has a container named linkerd-proxy"
    found = run(fleet, EXPECT, *names, "-n=sho*", TEXT)
    assert answer(found) == (1, f"No: {said}.")
    audit = (DRIFTED, "--fail-on-drift", *names, "-n=sho*", TEXT)
    assert answer(run(fleet, *audit)) == (1, f"Failed: no Pod was checked ({said}).")


def test_a_pattern_that_is_excluded_elsewhere_is_a_pattern(fleet, run):
    names = ("--sidecar-container-name=istio-proxy", "--sidecar-container-name=linkerd-*")
    audit = (DRIFTED, "--fail-on-drift", *names, "--exclude-namespace=linkerd-*")
    assert run(fleet, *audit).code == 1


@pytest.mark.parametrize("status", [403, 404])
@pytest.mark.parametrize("name", ["web", "lone"])
def test_a_template_that_cannot_be_read_is_no_answer(fleet, run, name, status):
    """Its Pods are there: either it may not be read, or is there again."""
    fleet.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    fleet.create("shop", replicated("ReplicaSet", "lone"))
    fleet.settle()
    body = {"kind": "Status", "message": "no", "code": status}
    fleet.fault(method="GET", path=f"replicasets/{name}", status=status, times=9, body=body)
    why = {
        "web": ": the Pod template of ReplicaSet (apps) cannot be read",
        "lone": ": its controller no longer exists, or there is no permission to read it",
    }[name]
    assert answer(run(fleet, EXPECT, TEXT)) == (1, f"No: 1 workload gave no answer{why}.")


def test_pods_that_are_gone_in_the_end_are_no_yes(fleet, start):
    held = fleet.fault(method="POST", path="dryRun", release=threading.Event())
    running = start(fleet, EXPECT)
    assert held.reached.wait(30)
    fleet.delete("Deployment", "shop", "web")
    fleet.wait_for(lambda: not fleet.store.list("pods", "shop"))
    held.release.set()
    said = running.finish().summary["expected"]
    assert (said["yes"], said["pods"]) == (False, 0)
    assert said["reasons"] == ["no Pod has a container named istio-proxy"]


def test_both_answers_count(cluster, run):
    inject, calls = cluster.injector.inject, []

    def changing(found: dict) -> None:
        inject(found)
        calls.append("1-26-2" if len(calls) == 2 else "1-27-0")
        found["metadata"].setdefault("annotations", {})["istio.io/rev"] = calls[-1]

    cluster.injector.inject = changing
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.container["env"] = [{"name": "X", "value": "1"}]  # it is asked twice
    assert run(cluster, REVISION).code == 1
    assert calls == ["1-27-0", "1-27-0", "1-26-2"]


@pytest.mark.parametrize("both", [False, True])
def test_each_container_that_was_changed_must_have_been_restarted(cluster, run, both):
    spec = pod_spec(NEW_PROXY, container("vault-agent", NEW))
    cluster.create("shop", workload("Deployment", "web", spec))
    cluster.settle()
    (found,) = cluster.pods("shop", "web")
    status, names = copy.deepcopy(found["status"]), ("istio-proxy", "vault-agent")
    for row in status["containerStatuses"]:
        is_restarted = both or row["name"] == "vault-agent"
        row["state"]["running"]["startedAt"] = f"2026-01-01T12:00:0{9 * is_restarted}Z"
        row["image"] = NEW if is_restarted else OLD
    containers = {f'k:{{"name":"{name}"}}': {"f:image": {}} for name in names}
    entry = {
        "manager": "sidecar-rollout",
        "operation": "Update",
        "time": "2026-01-01T12:00:05Z",
        "fieldsV1": {"f:spec": {"f:containers": containers}},
    }
    metadata = {**found["metadata"], "managedFields": [entry]}
    cluster.store.change("pods", found, status=status, metadata=metadata)
    options = [f"--sidecar-container-name={name}" for name in names]
    assert run(cluster, EXPECT, *options).code == (not both)
    audit = run(cluster, DRIFTED, "--fail-on-drift", *options)
    assert audit.summary["not_up_to_date"] == ({} if both else {"not_restarted": 1})
    assert audit.code == (not both)


CREATED = {"f:containers": {'k:{"name":"istio-proxy"}': {"f:image": {}}}, "f:restartPolicy": {}}
RESIZED = {"f:containers": {'k:{"name":"istio-proxy"}': {"f:resources": {"f:limits": {}}}}}


@pytest.mark.parametrize("spec", [CREATED, RESIZED], ids=["created", "resized"])
def test_what_changed_no_image_needs_no_restart(fleet, run, spec):
    """A client that created a Pod and labels it later has a later time, as one that resizes it."""
    for found in fleet.pods("shop"):
        entry = {"manager": "an-operator", "operation": "Update", "time": "2100-01-01T00:00:00Z"}
        entry["fieldsV1"] = {"f:spec": spec}
        metadata = {**found["metadata"], "managedFields": [entry]}
        fleet.store.change("pods", found, metadata=metadata)
    assert run(fleet, EXPECT).code == 0


def test_an_init_container_that_has_ended_runs_no_old_image(fleet, run):
    """The runtime has another name for its image, and it does not run anymore."""
    setup = container("setup", "busybox")
    fleet.create("shop", pod("debug", {**NEW_SPEC, "initContainers": [setup]}))
    fleet.settle()
    found = fleet.get("Pod", "shop", "debug")
    owned = {'k:{"name":"setup"}': {"f:image": {}}}
    spec = {"f:containers": {}, "f:initContainers": owned, "f:restartPolicy": {}}
    entry = {"manager": "kubectl-create", "operation": "Update", "time": "2026-01-01T00:00:00Z"}
    metadata = {**found["metadata"], "managedFields": [{**entry, "fieldsV1": {"f:spec": spec}}]}
    ended = {"name": "setup", "image": "docker.io/library/busybox:latest", "restartCount": 0}
    ended |= {"ready": True, "imageID": "", "state": {"terminated": {"exitCode": 0}}}
    status = {**found["status"], "initContainerStatuses": [ended]}
    fleet.store.change("pods", found, status=status, metadata=metadata)
    assert run(fleet, EXPECT).code == 0


def test_who_created_a_pod_may_change_its_image_too(fleet, run):
    """As OpenKruise does: then the status has another image."""
    found = fleet.pods("shop")[0]
    entry = {"manager": "kruise-manager", "operation": "Update", "time": "2100-01-01T00:00:00Z"}
    entry["fieldsV1"] = {"f:spec": CREATED}
    status = copy.deepcopy(found["status"])
    (proxy,) = [row for row in status["containerStatuses"] if row["name"] == "istio-proxy"]
    proxy["image"] = OLD
    metadata = {**found["metadata"], "managedFields": [entry]}
    fleet.store.change("pods", found, status=status, metadata=metadata)
    assert answer(run(fleet, EXPECT, TEXT)) == (1, "No: 1 Pod has another image (1 not restarted).")


def test_cron_jobs_are_counted_in_the_namespaces_of_the_question(fleet, run):
    for namespace in ("shop", "legacy"):
        spec = {"schedule": "@daily", "jobTemplate": {"spec": {"template": {"spec": SPEC}}}}
        cron_job = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}}
        fleet.create(namespace, {**cron_job, "spec": spec})
    text = answer(run(fleet, EXPECT, TEXT))[1]
    assert text.endswith("(1 workload checked; not checked: 2 CronJobs).")
    text = answer(run(fleet, EXPECT, "--include-namespace=sho*", TEXT))[1]
    assert text.endswith("(1 workload checked; not checked: 1 CronJob).")


def test_without_permission_to_list_cron_jobs_there_is_no_answer(fleet, run):
    body = {"kind": "Status", "message": "cronjobs.batch is forbidden", "code": 403}
    fleet.fault(method="GET", path="/cronjobs", status=403, times=9, body=body)
    ended = run(fleet, EXPECT, TEXT)
    assert (ended.code, "Yes" in ended.stdout) == (3, False)
    assert "cronjobs.batch is forbidden" in ended.stderr


def test_a_deployment_without_the_sidecar_that_is_created_meanwhile_is_no_matter(fleet, start):
    fleet.namespace("plain")
    held = fleet.fault(method="POST", path="dryRun", release=threading.Event())
    running = start(fleet, EXPECT)
    assert held.reached.wait(30)
    fleet.create("plain", workload("Deployment", "late"))
    fleet.settle()
    held.release.set()
    assert running.finish().code == 0


def test_each_of_several_annotations_is_expected(fleet, run):
    found = pod("a", NEW_SPEC)
    found["metadata"]["annotations"] = {"team": "a", "rev": "1"}
    fleet.create("legacy", found)
    fleet.settle()
    keys = ("--expect-annotation=team=a", "--expect-annotation=rev=2", "--expect-annotation=rev=3")
    ended = run(fleet, *keys, "-n=legacy", TEXT)
    assert answer(ended) == (1, "No: 1 Pod has another annotation (1 rev=1).")


def test_an_image_and_an_annotation_are_both_expected(fleet, run):
    for name in "ab":
        found = pod(name, NEW_SPEC)
        found["metadata"]["annotations"] = {"team": "a", "rev": "2"}
        fleet.create("legacy", found)
    fleet.settle()
    more = ("--expect-image=x", "--expect-annotation=team=*", "--expect-annotation=rev=2")
    ended = run(fleet, EXPECT, *more, "-n=legacy", TEXT)
    assert answer(ended) == (
        0,
        "Yes: all 2 Pods with istio-proxy in namespace legacy have *:1.27.* or x, team=* and "
        "rev=2 (0 workloads checked; not checked: 2 bare Pods).",
    )
