"""--retire: whether a version of the sidecar may go, by every Pod that has it, whatever the options leave out."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded.manifests import container, native, pod, pod_spec, workload
from support import CONFIRM, DRIFTED, NEW, TEXT, cutoff, upgrade

OLD = "docker.io/istio/proxyv2:1.26.2"
RETIRE = "--retire=*:1.26.*"
PROXY = container("istio-proxy", OLD)
SPEC = pod_spec(container("app"), PROXY)
ALL_OF_IT = "there, each run is limited to the namespaces of its test"


def answer(ended) -> tuple[int, str]:
    return ended.code, ended.stdout.splitlines()[-1]


@pytest.fixture
def fleet(cluster):
    """One workload whose Pods have the old version; new Pods would get the new one."""
    cluster.namespace("legacy", inject=True)
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    upgrade(cluster)
    return cluster


def in_legacy(cluster):
    """A Deployment with the old version in another namespace."""
    spec = pod_spec(container("app"), PROXY)
    cluster.create("legacy", workload("Deployment", "fax", spec, replicas=2))


def of_a_job(cluster):
    cluster.create("shop", pod("backup", SPEC, ("batch/v1", "Job", "backup")))


def static(cluster):
    cluster.create("shop", pod("static", SPEC, ("v1", "Node", "node-1")))


def debug(cluster):
    cluster.create("shop", pod("debug", SPEC))


def machine(cluster):
    owner = ("kubevirt.io/v1", "VirtualMachineInstance", "vm")
    cluster.create("shop", pod("vm", {**SPEC, "restartPolicy": "Never"}, owner))


def gateway(cluster):
    """Its template states the sidecar, which no restart changes."""
    cluster.create("shop", workload("Deployment", "gateway", SPEC, replicas=2))


def labeled(cluster):
    gateway(cluster)


WAYS = {
    "annotation": (in_legacy, ["--exclude-annotation=team/skip"], {"excluded": 2}),
    "namespace": (in_legacy, ["--exclude-namespace=leg*"], {"excluded_namespace": 2}),
    "selector": (gateway, ["--selector=app=web"], {"not_selected": 2}),
    "name": (gateway, ["deployment/web"], {"not_named": 2}),
    "kind": (gateway, ["--exclude-deployment", "--include-daemonset"], {"kind_not_selected": 2}),
    "gateway": (gateway, [DRIFTED], {"up_to_date": 2}),
    "Job": (of_a_job, [], {"running_to_completion": 1}),
    "static Pod": (static, [], {"static_pod": 1}),
    "debug Pod": (debug, [], {"without_controller": 1}),
    "virtual machine": (machine, [], {"restart_policy": 1}),
}


@pytest.mark.embedded(ALL_OF_IT)
@pytest.mark.parametrize("way", WAYS)
def test_each_pod_keeps_it_whatever_options_say(fleet, run, way):
    create, options, codes = WAYS[way]
    assert run(fleet, DRIFTED, CONFIRM).code == 0
    assert run(fleet, RETIRE).code == 0
    create(fleet)
    fleet.settle()
    if way == "annotation":
        path = {"metadata": {"annotations": {"team/skip": "true"}}}
        fleet.change("Namespace", "", "legacy", path)
    ended = run(fleet, RETIRE, *options)
    pods = sum(codes.values())
    assert (ended.code, ended.summary["failed"]) == (1, {"still_in_use": pods})
    assert ended.summary["retire"] == {
        "patterns": ["*:1.26.*"],
        "pods": pods,
        "by_code": codes,
        "namespaces": 1,
        "complete": True,
    }
    assert [left["code"] for left in ended.summary["leftovers"]] == [*codes] * pods
    (row,) = [row for row in ended.summary["sidecars"] if row["image"] == OLD]
    assert row["pods"] == pods


def test_it_is_the_last_line_with_the_workloads_above(fleet, run):
    in_legacy(fleet)
    of_a_job(fleet)
    fleet.settle()
    ended = run(fleet, RETIRE, TEXT)
    counts = "4 in the plan, 1 of Jobs"
    assert answer(ended) == (1, f"Still in use: 5 Pods in 2 namespaces ({counts})")
    _, _, block = ended.stdout.partition("\nWorkloads with an image to retire:\n")
    assert block.startswith(
        "  legacy:\n    Deployment legacy/fax\n  shop:\n    Deployment shop/web, Job shop/backup\n\n"
    )
    assert "\nFailed: 5 still in use.\nStill in use: " in ended.stdout


@pytest.mark.embedded(ALL_OF_IT)
def test_after_a_run_it_may_go(fleet, run):
    ended = run(fleet, RETIRE, DRIFTED, CONFIRM, TEXT, "--timeout=10s")
    assert answer(ended) == (0, "May be retired: no Pod has an image that matches *:1.26.*.")
    assert run(fleet, RETIRE, "--retire=*:1.27.*").summary["retire"]["pods"] == 2


@pytest.mark.embedded(ALL_OF_IT)
def test_it_counts_by_age_without_a_comparison(fleet, run):
    """Pods that --only-started-before leaves, and those of a workload that failed."""
    ended = run(fleet, RETIRE, cutoff(hours=1))
    assert ended.summary["retire"]["by_code"] == {"up_to_date": 2}
    fleet.fault(method="PATCH", path="deployments/web", status=422, body={"message": "no"})
    ended = run(fleet, RETIRE, CONFIRM)
    assert ended.summary["retire"]["by_code"] == {"failed": 2}
    assert ended.summary["failed"] == {"failed": 1, "still_in_use": 2}


@pytest.mark.embedded(ALL_OF_IT)
def test_a_pod_that_terminates_does_not_count(fleet, run):
    """Else it would never be the answer right after a run."""
    assert run(fleet, DRIFTED, CONFIRM).code == 0
    last = pod("last", SPEC)
    last["metadata"]["finalizers"] = ["example.com/wait"]
    fleet.create("shop", last)
    fleet.settle()
    assert run(fleet, RETIRE).code == 1
    fleet.delete("Pod", "shop", "last")
    assert run(fleet, RETIRE).code == 0


@pytest.mark.embedded(ALL_OF_IT)
@pytest.mark.parametrize(
    ("state", "in_use"),
    [
        ({"terminated": {"exitCode": 0, "reason": "Completed"}}, False),
        ({"terminated": {"exitCode": 1, "reason": "Error"}}, True),
        ({"running": {}}, True),
        ({}, True),
    ],
)
def test_an_init_container_that_has_completed_does_not_use_it(tool, state, in_use):
    init = {"name": "istio-init", "image": OLD}
    status = {"initContainerStatuses": [{"name": "istio-init", "state": state}]}
    spec = {"containers": [container("app")], "initContainers": [init]}
    found = {"spec": spec, "status": status}
    assert tool.uses_image(found, ["istio-*"], ["*:1.26.*"]) is in_use
    spec["initContainers"] = [native("istio-init", OLD)]
    assert tool.uses_image(found, ["istio-*"], ["*:1.26.*"]) is True
    assert tool.uses_image(found, ["istio-*"], ["*:1.27.*"]) is False
    assert tool.uses_image(found, ["other"], ["*:1.26.*"]) is False


def test_of_some_namespaces_it_is_not_known(fleet, run):
    ended = run(fleet, RETIRE, "-n=shop", TEXT)
    assert answer(ended) == (1, "Still in use: 2 Pods in 1 namespace (2 in the plan)")
    ended = run(fleet, "--retire=*:1.25.*", "-n=shop", TEXT)
    reason = "not all namespaces were read (--include-namespace)"
    assert answer(ended) == (1, f"Not known whether *:1.25.* may be retired: {reason}.")
    assert "\nFailed: 1 not answered.\n" in ended.stdout
    summary = run(fleet, "--retire=*:1.25.*", "-n=shop").summary
    assert (summary["retire"]["complete"], summary["failed"]) == (False, {"not_answered": 1})
    assert summary["namespaces"] == ["shop"]


@pytest.mark.embedded(ALL_OF_IT)
def test_without_any_such_container_it_is_not_known(fleet, run):
    """A pattern with a typo must not say that all is gone."""
    ended = run(fleet, RETIRE, "--sidecar-container-name=linkerd-*", TEXT)
    text = "no Pod has a container named linkerd-*"
    assert answer(ended) == (1, f"Not known whether *:1.26.* may be retired: {text}.")


@pytest.mark.embedded(ALL_OF_IT)
def test_if_the_last_list_fails_it_is_not_known(fleet, run, start):
    held = fleet.fault(method="PATCH", path="/deployments/", release=threading.Event())
    running = start(fleet, RETIRE, DRIFTED, CONFIRM)
    assert held.reached.wait(30)
    fleet.fault(method="GET", path=r"/api/v1/pods\?", status=403, body={"message": "no"}, times=99)
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert ended.summary["retire"]["complete"] is False
    assert (ended.code, ended.summary["failed"]) == (1, {"not_answered": 1})


def test_patterns_are_those_of_images(fleet, run):
    for pattern, code in ((NEW, 0), (OLD, 1), ("*proxyv2*", 1), ("1.26.2", 0)):
        ended = run(fleet, f"--retire={pattern}")
        assert bool(ended.summary["retire"]["pods"]) == bool(code), pattern
