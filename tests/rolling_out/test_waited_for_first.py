"""What is in progress since an earlier run is waited for first: nothing is written, so no gate, question or limit is about it."""

from __future__ import annotations

import signal
import threading

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, TEXT, cutoff, let_ready, make_old, messages, patched, upgrade

SLOW = 600


@pytest.fixture
def begun(cluster, run):
    """Deployments a to c with old Pods; a run has begun b, and not seen its end. Its cutoff."""
    for name in "abc":
        cluster.create("shop", workload("Deployment", name, replicas=3))
    make_old(cluster)
    upgrade(cluster)
    cluster.kubelet.ready_after = SLOW
    option = cutoff()
    first = run(cluster, CONFIRM, DRIFTED, option, "deployment/b", "--timeout=2s")
    assert (first.code, first.outcomes) == (1, {"shop/b": "timed_out"})
    cluster.server.requests.clear()
    return cluster, option


def test_its_failure_is_one_whatever_max_rollouts_and_the_gate_leave(begun, run):
    cluster, option = begun
    options = (CONFIRM, DRIFTED, option, "--timeout=2s")
    gated = run(cluster, *options, "--gate=false", "--max-duration=4s")
    assert (gated.code, gated.outcomes["shop/b"]) == (1, "timed_out")
    assert patched(cluster) == []
    cluster.kubelet.ready_after = 0.05
    limited = run(cluster, *options, "--max-rollouts=1")
    assert limited.outcomes == {
        "shop/a": "succeeded",
        "shop/b": "timed_out",
        "shop/c": "not_started",
    }
    assert (limited.code, patched(cluster)) == (1, ["a"])


def test_it_is_not_asked_about_and_not_the_first_one_that_runs_alone(begun, start):
    cluster, option = begun
    running = start(cluster, CONFIRM, DRIFTED, option, "--parallel-rollouts=2", "--log-level=debug")
    running.wait_for_log("running kubectl rollout status")
    assert patched(cluster) == []
    held = cluster.fault(method="PATCH", path="deployments/a", release=threading.Event())
    other = cluster.fault(method="PATCH", path="deployments/c")
    let_ready(cluster)
    assert held.reached.wait(20)
    assert not other.reached.wait(1)  # a second worker would be there within milliseconds
    held.release.set()
    ended = running.finish()
    assert set(ended.outcomes.values()) == {"succeeded"}


def test_after_a_signal_what_was_not_yet_waited_for_is_interrupted(begun, run, start):
    cluster, option = begun
    second = run(cluster, CONFIRM, DRIFTED, option, "deployment/c", "--timeout=2s")
    assert second.outcomes == {"shop/c": "timed_out"}
    running = start(cluster, CONFIRM, DRIFTED, option, "--timeout=20s", "--log-level=debug")
    running.wait_for_log("running kubectl rollout status")
    running.signal(signal.SIGINT)
    let_ready(cluster)
    ended = running.finish()
    assert ended.code == 130
    assert ended.outcomes == {
        "shop/a": "not_started",
        "shop/b": "succeeded",
        "shop/c": "interrupted",
    }


def test_a_complete_rollout_is_not_waited_for_again(cluster, run):
    """Applications that become unready long afterwards hold up nothing."""
    for number in range(5):
        cluster.create("shop", workload("Deployment", f"web-{number}", replicas=2))
    make_old(cluster)
    upgrade(cluster)
    first = run(cluster, CONFIRM, DRIFTED, "--parallel-rollouts=5")
    assert set(first.outcomes.values()) == {"succeeded"}
    for number in range(5):
        found = cluster.pods("shop", f"web-{number}")[0]
        cluster.backdate(found, 5)
        cluster.kubelet.set_ready("shop", found["metadata"]["name"], False)
    ended = run(cluster, CONFIRM, DRIFTED, "--timeout=3s")
    assert (ended.planned, ended.code) == ([], 0)


def test_a_row_without_old_pods_says_since_when_it_is_in_progress(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    make_old(cluster)
    upgrade(cluster)
    cluster.kubelet.ready_after = SLOW
    option = cutoff()
    assert run(cluster, CONFIRM, DRIFTED, option, "--timeout=2s").outcomes == {
        "shop/web": "timed_out"
    }
    notes = cluster.get("Deployment", "shop", "web")["spec"]["template"]["metadata"]["annotations"]
    since = notes["sidecarRollout.rollout.timestamp"][11:16]
    shown = run(cluster, DRIFTED, option, TEXT).stdout
    assert f"in progress since {since}Z; not restarted again\n" in shown


def test_the_timestamp_of_a_person_ends_no_run(cluster, run):
    """Only the whole form counts: anybody may write the annotation."""
    cluster.create("shop", workload("Deployment", "bait"))
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    stamp = {"sidecarRollout.rollout.timestamp": "x+00:00"}
    template = {"spec": {"template": {"metadata": {"annotations": stamp}}}}
    cluster.change("Deployment", "shop", "bait", template)
    cluster.settle()
    upgrade(cluster)
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, messages(ended)) == (0, {"bait": "", "web": ""})
