"""A rollout that an earlier run began is waited for, and not begun again."""

from __future__ import annotations

import signal
import threading
from datetime import datetime, timezone

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, NEW, TEXT, cutoff, let_ready, make_old, upgrade

SLOW = 600  # seconds until a Pod is ready: never, for a test


def generation(cluster, name: str, kind: str = "Deployment") -> int:
    return cluster.get(kind, "shop", name)["metadata"]["generation"]


@pytest.fixture
def begun(cluster, run):
    """A Deployment with three old Pods, whose rollout a run has begun and not seen the end of."""
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    make_old(cluster)
    upgrade(cluster)
    cluster.kubelet.ready_after = SLOW
    ended = run(cluster, CONFIRM, DRIFTED, "--timeout=2s")
    assert (ended.code, ended.outcomes) == (1, {"shop/web": "timed_out"})
    return cluster


@pytest.mark.both
@pytest.mark.parametrize("options", [[], [DRIFTED]], ids=["all", "drifted"])
def test_a_run_that_was_killed_is_resumed_by_the_same_command(cluster, start, run, options):
    names = [f"web-{number}" for number in range(10)]
    for name in names:
        cluster.create("shop", workload("Deployment", name, replicas=2))
    make_old(cluster)
    upgrade(cluster)
    cluster.kubelet.ready_after = 0.05
    words = (CONFIRM, *options, cutoff(), "--parallel-rollouts=10")
    running = start(cluster, *words)
    cluster.wait_for(lambda: generation(cluster, "web-0") > 1)
    cluster.wait_for(lambda: sum(generation(cluster, name) > 1 for name in names) >= 4, 60)
    cluster.kubelet.ready_after = SLOW
    running.signal(signal.SIGKILL)
    running.finish()
    let_ready(cluster)
    cluster.settle()  # a patch may have been on its way
    first = [name for name in names if generation(cluster, name) > 1]
    ended = run(cluster, *words)
    assert ended.code == 0, ended.stderr
    assert {generation(cluster, name) for name in names} == {2}
    assert set(ended.outcomes.values()) <= {"succeeded"}
    assert {f"shop/{name}" for name in names if name not in first} <= ended.outcomes.keys()
    images = {c["image"] for p in cluster.pods("shop") for c in p["spec"]["containers"]}
    assert NEW in images
    assert run(cluster, *words).planned == []


def test_it_is_in_the_plan_and_counts_like_any_other(begun, run, start):
    cluster = begun
    shown = run(cluster, DRIFTED, TEXT)
    stamp = cluster.get("Deployment", "shop", "web")["spec"]["template"]["metadata"]["annotations"]
    since = stamp["sidecarRollout.rollout.timestamp"][:19]
    assert f"in progress since {since[11:16]}Z; not restarted again\n" in shown.stdout
    assert "\nTo roll out: 1 workload with 3 Pods, 3 of them old.\n" in shown.stdout
    (row,) = run(cluster, DRIFTED).of("plan")
    assert (row["name"], row["method"], row["pods"]["old"]) == ("web", "attach", 3)
    assert row["unhealthy_reason"] == ""
    failed = run(cluster, CONFIRM, DRIFTED, "--timeout=2s")
    assert (failed.code, failed.outcomes) == (1, {"shop/web": "timed_out"})
    assert failed.summary["failed"] == {"timed_out": 1}
    release = threading.Event()
    held = cluster.fault(method="GET", path=r"/deployments/web$", release=release)
    running = start(cluster, CONFIRM, DRIFTED)
    assert held.reached.wait(20)
    let_ready(cluster)
    release.set()
    done = running.finish()
    assert (done.code, done.outcomes) == (0, {"shop/web": "succeeded"})
    assert done.summary["pods"]["ready"] == 3
    assert generation(cluster, "web") == 2
    assert run(cluster, DRIFTED).planned == []


def test_without_a_comparison_old_pods_are_those_of_before_the_rollout(begun, run):
    (row,) = run(begun).of("plan")
    assert (row["method"], row["pods"]["old"], row["pods"]["total"]) == ("attach", 3, 4)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_one_whose_pods_are_all_new_is_waited_for_by_the_same_command(cluster, run, kind):
    """Its last Pod was not ready yet."""
    cluster.create("shop", workload(kind, "web", replicas=1))
    make_old(cluster)
    upgrade(cluster)
    cluster.kubelet.ready_after = SLOW
    selected = ["--include-statefulset", "--include-daemonset", cutoff(), DRIFTED]
    options = [*selected, CONFIRM]
    assert run(cluster, *options, "--timeout=2s").outcomes == {"shop/web": "timed_out"}
    (row,) = run(cluster, *selected, "--timeout=1h").of("plan")  # while its Pod is young
    assert (row["method"], row["unhealthy_reason"]) == ("attach", "")
    again = run(cluster, *options, "--timeout=2s")
    assert again.code == 1
    # One whose Pods are all updated is not waited for once its Pod is older than --timeout.
    assert again.summary["failed"] in ({"timed_out": 1}, {"of_an_earlier_run": 1})
    let_ready(cluster)
    assert run(cluster, *options).outcomes in ({}, {"shop/web": "succeeded"})
    assert generation(cluster, "web", kind) == 2


@pytest.mark.both
def test_a_template_that_somebody_changed_since_is_left_alone(begun, run):
    cluster = begun
    container = {"name": "app", "env": [{"name": "A", "value": "1"}]}
    template = {"spec": {"template": {"spec": {"containers": [container]}}}}
    cluster.wait_for(lambda: later(cluster))  # managedFields have whole seconds
    cluster.change("Deployment", "shop", "web", template)
    cluster.wait_for(
        lambda: cluster.get("Deployment", "shop", "web")["status"]["observedGeneration"] == 3
    )
    ended = run(cluster, CONFIRM, DRIFTED)
    assert ended.skipped == {"Deployment shop/web": "incomplete_rollout"}
    assert generation(cluster, "web") == 3


def later(cluster) -> bool:
    notes = cluster.get("Deployment", "shop", "web")["spec"]["template"]["metadata"]["annotations"]
    stamp = datetime.fromisoformat(notes["sidecarRollout.rollout.timestamp"])
    return (datetime.now(timezone.utc) - stamp).total_seconds() > 1.5


def test_one_whose_template_is_changed_after_the_plan_is_skipped(begun, start):
    cluster = begun
    release = threading.Event()
    held = cluster.fault(method="GET", path=r"/deployments/web$", release=release)
    running = start(cluster, CONFIRM, DRIFTED)
    assert held.reached.wait(20)
    stamp = {"sidecarRollout.rollout.timestamp": "2099-01-01T00:00:00.000000+00:00"}
    cluster.change(
        "Deployment",
        "shop",
        "web",
        {"spec": {"template": {"metadata": {"annotations": stamp}}}},
    )
    release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    (result,) = ended.of("result")
    assert result["message"] == "its Pod template was changed; rerun this command"


def test_one_whose_new_pods_are_outdated_by_now_is_not_begun_again(begun, run):
    cluster = begun
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"
    ended = run(cluster, CONFIRM, DRIFTED, "--timeout=2s")
    assert [row["method"] for row in ended.of("plan")] == ["attach"]
    assert ended.outcomes == {"shop/web": "still_drifted"}
    assert generation(cluster, "web") == 2


@pytest.mark.parametrize("options", [[], [DRIFTED]], ids=["all", "drifted"])
def test_one_that_is_stuck_because_of_its_sidecar_is_begun_again(cluster, run, options):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    make_old(cluster)
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:broken"
    ended = run(cluster, CONFIRM, *options, "--timeout=2s")
    assert ended.code == 1
    upgrade(cluster)
    (row,) = run(cluster, *options).of("plan")
    assert row["method"] == "restart"
    assert run(cluster, CONFIRM, *options).outcomes == {"shop/web": "succeeded"}
    assert generation(cluster, "web") == 3


def test_another_prefix_is_of_another_command(begun, run):
    ended = run(begun, CONFIRM, DRIFTED, "--annotation-prefix=other")
    assert ended.planned == []
    assert ended.skipped["Deployment shop/web"] in ("unfinished", "incomplete_rollout")
