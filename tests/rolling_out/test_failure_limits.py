"""--max-failures: what counts as a failure, and when no new rollouts start."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, DRIFTED, let_ready, messages, patched, refuse, unchecked, within
from texts import NO_NEW_ROLLOUTS

pytestmark = pytest.mark.both


def test_after_n_failures_nothing_new_starts(deployments_a_to_f, run):
    refuse(deployments_a_to_f, "b", "c")
    ended = run(deployments_a_to_f, CONFIRM, "--max-failures=2")
    assert ended.code == 1
    assert [r["outcome"] for r in sorted(ended.of("result"), key=lambda r: r["name"])] == [
        "succeeded",
        "failed",
        "failed",
        *["not_started"] * 3,
    ]
    assert {r["message"] for r in ended.of("result") if r["outcome"] == "not_started"} == {
        "--max-failures=2 reached"
    }
    assert f"--max-failures=2 reached: {NO_NEW_ROLLOUTS}" in ended.stderr


def test_a_percentage_of_failures_is_rounded_down(deployments_a_to_f, run):
    """25% of 6 are one and a half."""
    refuse(deployments_a_to_f, "b", "c")
    ended = run(deployments_a_to_f, CONFIRM, "--max-failures=25%")
    assert [ended.outcomes[f"shop/{name}"] for name in "abc"] == [
        "succeeded",
        "failed",
        "not_started",
    ]


def test_what_is_in_progress_is_waited_for_after_the_last_failure(deployments_a_to_f, start):
    denied = {"message": "admission webhook denied the request: no"}
    forbidden = {"status": 403, "body": denied, "release": threading.Event()}
    deployments_a_to_f.fault(method="PATCH", path="deployments/c", **forbidden)
    held = deployments_a_to_f.fault(method="PATCH", path="deployments/b", release=threading.Event())
    running = start(deployments_a_to_f, CONFIRM, "--max-failures=1", "--parallel-rollouts=2")
    assert held.reached.wait(20)
    forbidden["release"].set()  # only now: no patch is sent after the failure
    running.wait_for_log(f"--max-failures=1 reached: {NO_NEW_ROLLOUTS}; waiting for 1 in progress")
    held.release.set()
    ended = running.finish()
    assert ended.code == 1
    assert ended.outcomes == {
        "shop/a": "succeeded",
        "shop/b": "succeeded",
        "shop/c": "failed",
    } | {f"shop/{name}": "not_started" for name in "def"}


def test_workloads_that_were_failing_before_count_and_come_last(cluster, run):
    for name in ("x", "y"):
        cluster.create("shop", workload("Deployment", name, pod_spec(container("app", "broken:1"))))
    cluster.create("shop", workload("Deployment", "well"))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--max-failures=1", within(cluster, 1))
    assert ended.outcomes == {
        "shop/x": "timed_out",
        "shop/y": "not_started",
        "shop/well": "succeeded",
    }
    assert (ended.code, ended.summary["failed"]) == (1, {"timed_out": 1})


def test_the_first_cause_is_the_one_that_is_named(drifted_fleet, run):
    """The others fail, too, but they are not the reason."""
    drifted_fleet.injector.state = "ignored"
    ended = run(unchecked(drifted_fleet), CONFIRM, "--parallel-rollouts=5")
    assert "new Pods of Deployment shop/" in messages(ended)["g"]


def test_what_is_still_drifted_counts_for_the_failure_limit(drifted_fleet, run):
    real = drifted_fleet.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        if pod["metadata"].get("annotations"):  # for real, not in the dry run of the plan
            pod["spec"]["containers"][-1]["image"] = "docker.io/istio/proxyv2:1.26.9"

    drifted_fleet.injector.inject = inject
    ended = run(drifted_fleet, CONFIRM, DRIFTED, "--max-failures=1")
    assert ended.outcomes["shop/a"] == "still_drifted"
    assert patched(drifted_fleet) == ["a"]


@pytest.mark.parametrize("limit", [["--max-failures=1"], []], ids=["number", "in a row"])
def test_what_is_late_holds_a_limit_also_if_it_is_complete_in_the_end(
    deployments_a_to_f, run, tool, monkeypatch, limit
):
    """None of its Pods was ready. It is no failure of the run."""
    cluster = deployments_a_to_f
    cluster.kubelet.ready_after = 600
    recheck = tool.Restart.recheck
    begun: list[int] = []

    def once_they_are_ready(work, earlier):
        begun.append(len(patched(cluster)))
        let_ready(cluster)
        cluster.settle()
        return recheck(work, earlier)

    monkeypatch.setattr(tool.Restart, "recheck", once_they_are_ready)
    ended = run(cluster, CONFIRM, *limit, within(cluster, 1))
    number = 1 if limit else 5
    assert begun == [number] * number
    outcomes = list(ended.outcomes.values())
    assert outcomes.count("completed_late") == number
    assert outcomes.count("not_started") == 6 - number
    assert ended.code == 0


@pytest.mark.parametrize("seconds", [0.6, 600])
def test_what_is_slow_does_not_hold_a_limit(cluster, run, seconds):
    """Its Pods are replaced one by one, and some are ready when it times out; or none is."""
    cluster.create("shop", workload("StatefulSet", "db", replicas=5))
    cluster.create("shop", workload("Deployment", "web", replicas=6))
    cluster.settle()
    cluster.kubelet.ready_after = seconds * cluster.patience
    options = ("--include-statefulset", "--max-failures=1", within(cluster, 2))
    ended = run(cluster, CONFIRM, *options)
    assert ended.outcomes["shop/db"] in ("timed_out", "completed_late")
    assert ended.outcomes["shop/web"] == ("succeeded" if seconds < 1 else "not_started")


def test_what_is_late_and_not_complete_when_a_limit_holds_is_a_failure(deployments_a_to_f, run):
    deployments_a_to_f.kubelet.ready_after = 600
    ended = run(deployments_a_to_f, CONFIRM, "--max-failures=1", within(deployments_a_to_f, 1))
    assert ended.code == 1
    assert sorted(set(ended.outcomes.values())) == ["not_started", "timed_out"]
    assert list(ended.outcomes.values()).count("timed_out") == 1
    assert patched(deployments_a_to_f) == ["a"]
