"""Workloads behind the same Service: only one of them is rolled out at a time."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import service, workload
from rolling_out.test_scheduler import FakeCluster, FakeKubectl, run_all
from support import (
    CONFIRM,
    DRIFTED,
    EVICT,
    NEW,
    ON_DELETE,
    TEXT,
    Watch,
    a_ref,
    a_result,
    a_rollout,
    a_task,
    a_workload,
    make_old,
    uids,
)


def behind(cluster, name: str, *services: str, kind: str = "Deployment", **fields) -> None:
    """Create a workload that Services of these names select."""
    obj = workload(kind, name, **fields)
    obj["spec"]["template"]["metadata"]["labels"] |= dict.fromkeys(services, "true")
    cluster.create("shop", obj)


def shared(cluster, *names: str) -> None:
    """Create these Services, headless ones, and wait until each Pod is an endpoint of its own."""
    for name in names:
        found = service(name, **{name: "true"})
        found["spec"]["clusterIP"] = "None"
        cluster.create("shop", found)
    cluster.settle()

    def expected() -> int:
        return sum(key in p["metadata"]["labels"] for p in cluster.pods("shop") for key in names)

    def listed() -> int:
        slices = cluster.store.list("endpointslices", "shop")
        return sum(len(found.get("endpoints") or ()) for found in slices)

    cluster.wait_for(lambda: listed() == expected())


@pytest.mark.both
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("options", [[], EVICT])
def test_no_more_pods_of_a_service_are_away_than_one_at_a_time(cluster, run, replicas, options):
    strategy = ON_DELETE if options else {}
    for name in ("a", "b", "c"):
        behind(cluster, name, "chi", kind="StatefulSet", replicas=replicas, **strategy)
    shared(cluster, "chi")
    make_old(cluster)
    cluster.injector.container["image"] = NEW
    before, watch = uids(cluster), Watch(cluster)
    more = ("--include-statefulset", "--parallel-rollouts=5", *options)
    ended = run(cluster, CONFIRM, DRIFTED, *more)
    assert set(ended.outcomes.values()) == {"succeeded"}
    assert set(before).isdisjoint(uids(cluster))
    assert watch.most == 1
    assert [record["services"] for record in ended.of("plan")] == [["chi"]] * 3


@pytest.mark.embedded("says when a Pod is ready")
def test_one_that_waits_does_not_hold_up_the_others(cluster, start):
    behind(cluster, "a")
    behind(cluster, "b", "x")
    behind(cluster, "c", "x")
    behind(cluster, "d", "y")
    shared(cluster, "x", "y")
    running = start(cluster, CONFIRM, "--parallel-rollouts=5", "--log-level=debug")
    running.wait_for_log("rollout succeeded")  # it has proven the sidecar
    cluster.kubelet.ready_after = 60
    for name in ("b", "d"):
        text = f'running kubectl rollout status", "workload": "Deployment shop/{name}"'
        running.wait_for_log(text)
    patched = [r.path.rpartition("/")[2] for r in cluster.server.requests if r.method == "PATCH"]
    assert (patched[0], set(patched)) == ("a", {"a", "b", "d"})
    cluster.kubelet.ready_after = 0.05
    for found in cluster.kubelet.starting():
        cluster.kubelet.start("shop", found["metadata"]["name"])
    ended = running.finish()
    assert (ended.code, set(ended.outcomes.values())) == (0, {"succeeded"})
    patched = [r.path.rpartition("/")[2] for r in cluster.server.requests if r.method == "PATCH"]
    assert sorted(patched) == ["a", "b", "c", "d"]


def test_a_long_row_behind_one_service_does_not_wait_for_others(tool):
    row = [a_workload(tool, f"row-{number}", services=["x"]) for number in range(100)]
    others = [a_workload(tool, f"other-{number}", services=[]) for number in range(10)]
    plan = [*row, *others]
    outcomes = {workload.ref.name: "succeeded" for workload in plan}
    kubectl = FakeKubectl(outcomes, 20)
    results = run_all(tool, FakeCluster(), kubectl, plan, 20, proven=True)
    names = [result.planned.ref.name for result in results]
    assert sorted(names) == sorted(outcomes)
    assert [name for name in names if "row" in name] == [workload.ref.name for workload in row]
    # The ten go beside the first ones of the row.
    assert max(map(names.index, (workload.ref.name for workload in others))) < 30


def test_services_of_another_namespace_may_have_the_same_name(tool):
    scheduler = tool.Scheduler(a_rollout(tool, FakeCluster()), None, 0)
    refs = [a_ref(tool, "Deployment", name, "web", "apps") for name in ("shop", "shop", "pay")]
    first, same, other = (a_task(tool, a_workload(tool, ref=ref, services=["x"])) for ref in refs)
    scheduler.in_progress[first.planned.ref] = first

    def next_of(*waiting):
        scheduler.waiting = waiting
        return scheduler.next_task()

    assert next_of(same, other) is other
    assert next_of(same) is None
    same.result = a_result(tool, same.planned, "TIMED_OUT")  # it is only looked at again
    assert next_of(same, other) is same


@pytest.mark.parametrize("is_stuck", [True, False])
def test_one_that_is_late_is_rechecked_before_another_of_its_service_starts(tool, is_stuck):
    """Its Pods may not be ready. If it is late for good, the others go on, as without a Service."""
    services = {"a": ["x"], "b": ["x"], "c": []}
    plan = [a_workload(tool, name, services=found) for name, found in services.items()]
    kubectl = FakeKubectl({"a": "timed_out", "b": "succeeded", "c": "succeeded"}, 3)
    cluster = FakeCluster(["a"] if is_stuck else [])
    results = run_all(tool, cluster, kubectl, plan, 3, proven=True)
    ended = [(result.planned.ref.name, result.outcome.code) for result in results]
    assert list(cluster.patched) in (["a", "c", "b"], ["c", "a", "b"])
    if is_stuck:
        assert ended == [("c", "succeeded"), ("b", "succeeded"), ("a", "timed_out")]
    else:
        assert ended == [("c", "succeeded"), ("a", "completed_late"), ("b", "succeeded")]


@pytest.mark.parametrize("signals", [1, 2])
def test_after_a_signal_none_is_left_waiting(tool, signals):
    plan = [a_workload(tool, f"w{number}", services=["x"]) for number in range(3)]
    rollout = a_rollout(tool, FakeCluster(), "--timeout=1s")
    rollout.signals.received += [2] * signals
    ended = []

    class Report:
        finish = staticmethod(ended.append)

        @staticmethod
        def show_progress(*parts) -> None:
            pass

    tool.Scheduler(rollout, Report, 2).run(plan)
    assert [result.outcome for result in ended] == [tool.Outcome.NOT_STARTED] * 3


def test_the_estimate_is_by_the_number_of_workers(cluster, run):
    for name in ("a", "b", "c"):
        behind(cluster, name, "x")
    for name in ("d", "e"):
        behind(cluster, name)
    shared(cluster, "x")
    dry_run = run(cluster, TEXT, "--parallel-rollouts=5").stdout
    assert "\nThis takes about 1m if each takes 1 minute.\n" in dry_run
    assert "\nThis takes about 5m if each takes 1 minute.\n" in run(cluster, TEXT).stdout


def test_the_plan_has_all_services_of_a_workload(cluster, run):
    behind(cluster, "web", "one", "two")
    behind(cluster, "api", "two")
    shared(cluster, "one", "two")
    found = {record["name"]: record["services"] for record in run(cluster).of("plan")}
    assert found == {"api": ["two"], "web": ["one", "two"]}
