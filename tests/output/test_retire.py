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
        "  legacy: Deployment legacy/fax\n  shop: Deployment shop/web, Job shop/backup\n\n"
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
    assert ended.summary["retire"]["by_code"] == {"after_cutoff": 2}
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
    reason = "only the namespaces of --include-namespace were counted"
    assert answer(ended) == (1, f"Not known whether *:1.25.* may be retired: {reason}.")
    assert "\nFailed: 1 not answered.\n" in ended.stdout
    summary = run(fleet, "--retire=*:1.25.*", "-n=shop").summary
    assert (summary["retire"]["complete"], summary["failed"]) == (False, {"not_answered": 1})
    assert summary["namespaces"] == ["shop"]


@pytest.mark.embedded(ALL_OF_IT)
def test_without_any_such_container_it_is_not_known(fleet, run):
    """A pattern with a typo must not say that all is gone."""
    name = "--sidecar-container-name=linkerd-*"
    text = "Not known whether {} may be retired: no Pod has a container named linkerd-*."
    ended = run(fleet, RETIRE, name, TEXT)
    assert answer(ended) == (1, text.format("*:1.26.*"))
    both = (name, "--sidecar-container-name=istio-*")
    assert run(fleet, RETIRE, *both).summary["retire"]["pods"] == 2
    ended = run(fleet, "--retire=*:1.25.*", *both, TEXT)
    assert answer(ended) == (1, text.format("*:1.25.*"))


@pytest.mark.embedded(ALL_OF_IT)
def test_the_version_of_an_image_without_a_tag_is_not_known(fleet, run):
    digest = f"docker.io/istio/proxyv2@sha256:{64 * '0'}"
    fleet.create(
        "shop", pod("pinned", pod_spec(container("app"), container("istio-proxy", digest)))
    )
    fleet.settle()
    ended = run(fleet, "--retire=*:1.25.*", TEXT)
    text = f"Not known whether *:1.25.* may be retired: {digest} has no tag."
    assert answer(ended) == (1, text)
    assert run(fleet, f"--retire={digest}").summary["retire"]["pods"] == 1
    assert run(fleet, "--retire=*@sha256:1*").code == 0


@pytest.mark.embedded(ALL_OF_IT)
def test_if_the_last_list_fails_it_is_not_known(fleet, run, start):
    held = fleet.fault(method="PATCH", path="/deployments/", release=threading.Event())
    running = start(fleet, RETIRE, DRIFTED, CONFIRM, TEXT)
    assert held.reached.wait(30)
    fleet.fault(method="GET", path=r"/api/v1/pods\?", status=403, body={"message": "no"}, times=99)
    held.release.set()
    ended = running.finish()
    text = "Not known whether *:1.26.* may be retired: Pods were not read again."
    assert answer(ended) == (1, text)
    assert "\n1 workload in " in ended.stdout
    assert "\nFailed: 1 not answered.\n" in ended.stdout


def test_patterns_are_those_of_images(fleet, run):
    forms = (
        "1.26.2",
        "1.26.*",
        "1.26",
        "*:1.26",
        "*1.26",
        "proxyv2:1.26.2",
        "istio/proxyv2:*",
        OLD,
    )
    assert [run(fleet, f"--retire={form}").code for form in forms] == [1] * len(forms)
    for form in (NEW, "1.2", "1.26.20", "proxyv2", "26.2", "io/proxyv2:1.26.2"):
        assert run(fleet, f"--retire={form}").summary["retire"]["pods"] == 0, form
    both = run(fleet, "--retire=1.25.*", RETIRE)
    assert (both.code, both.summary["retire"]["patterns"]) == (1, ["1.25.*", "*:1.26.*"])


@pytest.mark.parametrize("more", ["@sha256:" + 64 * "0", "-distroless", ""])
def test_a_digest_or_variant_beside_the_tag_does_not_matter(tool, more):
    for pattern in ("1.26.2", "*:1.26.*", "istio/proxyv2:1.26.2"):
        assert tool.is_image(f"{OLD}{more}", [pattern])


@pytest.mark.embedded(ALL_OF_IT)
def test_what_a_restart_would_bring_back_may_not_go(fleet, run):
    assert run(fleet, DRIFTED, CONFIRM).code == 0
    assert run(fleet, DRIFTED, RETIRE).code == 0
    fleet.injector.container["image"] = OLD
    ended = run(fleet, DRIFTED, RETIRE, TEXT)
    text = "Not known whether *:1.26.* may be retired: new Pods would get it."
    assert answer(ended) == (1, text)


def test_a_container_that_was_not_restarted_yet_runs_the_old_image(tool):
    """Between a change in place and the restart, the spec has the new one."""
    status = {
        "containerStatuses": [{"name": "istio-proxy", "image": OLD, "state": {"running": {}}}]
    }
    found = {"spec": pod_spec(container("istio-proxy", NEW)), "status": status}
    assert tool.uses_image(found, ["istio-proxy"], ["*:1.26.*"]) is True


@pytest.mark.embedded(ALL_OF_IT)
def test_a_pod_that_appears_during_the_dry_runs_is_seen(fleet, run, start):
    assert run(fleet, DRIFTED, CONFIRM).code == 0
    for more in ((), (CONFIRM,)):
        held = fleet.fault(method="POST", path="dryRun", release=threading.Event())
        running = start(fleet, DRIFTED, RETIRE, *more)
        assert held.reached.wait(30)
        fleet.create("shop", pod("late", SPEC))
        held.release.set()
        assert running.finish().summary["retire"]["pods"] == 1
        fleet.delete("Pod", "shop", "late")
        fleet.wait_for(lambda: not fleet.get("Pod", "shop", "late"))
