"""--evict: signals, pauses and failures elsewhere stop between two Pods."""

from __future__ import annotations

import re
import signal
import threading

import pytest
from clusters.embedded.kubelet import READY_AFTER
from clusters.embedded.manifests import budget, replicated, workload
from support import APP, CONFIRM, EVICT, ON_DELETE, cutoff, evictions, let_ready, set_ready
from texts import NO_NEW_ROLLOUTS, WAITS_FOR_READY

pytestmark = pytest.mark.both


@pytest.fixture
def slow(cluster):
    """Two ReplicaSets whose replacements wait for the test."""
    for name in ("a", "b"):
        cluster.create("shop", replicated("ReplicaSet", name, APP, replicas=3))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    return cluster


def test_the_first_signal_stops_between_two_pods(slow, start):
    running = start(slow, CONFIRM, *EVICT)
    slow.wait_for(slow.kubelet.starting)
    running.signal(signal.SIGINT)
    running.wait_for_log(f"interrupted: {NO_NEW_ROLLOUTS}; waiting for 1 in progress")
    let_ready(slow)
    ended = running.finish()
    first, second = ended.of("result")
    assert ended.code == 130
    assert (first["outcome"], first["message"]) == (
        "interrupted",
        "the others were not replaced (1 of 3 Pods replaced)",
    )
    assert second["outcome"] == "not_started"
    assert len(evictions(slow)) == 1


def test_the_second_signal_stops_waiting(slow, start):
    running = start(slow, CONFIRM, *EVICT, "--log-format=text")
    slow.wait_for(slow.kubelet.starting)
    running.signal(signal.SIGINT)
    running.wait_for_log(f"interrupted: {NO_NEW_ROLLOUTS}")
    running.signal(signal.SIGINT)
    ended = running.finish()
    assert ended.code == 130
    assert re.search(
        r"interrupted: ReplicaSet shop/a:\n  Pod a-\S+ was evicted; stopped waiting; it may go on "
        r"\(0 of 3 Pods replaced\)\n  \S*kubectl .*describe replicaset/a --namespace shop",
        ended.stdout,
    )
    assert "To resume, run:" in ended.stdout


def test_a_signal_ends_the_wait_for_a_budget_at_once(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.create("shop", budget("x", minAvailable=2))
    cluster.settle()
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("The disruption budget x needs")
    running.signal(signal.SIGTERM)
    ended = running.finish(timeout=5)
    assert (ended.code, ended.outcomes) == (143, {"shop/x": "not_started"})
    (result,) = ended.of("result")
    assert (result["code"], result["pods"]) == ("interrupted", None)


def test_a_signal_ends_the_wait_for_another_pod_at_once(cluster, start):
    """x-0 is not to be replaced: nothing is sent that the signal could keep back."""
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=2, **ON_DELETE))
    cluster.settle()
    cluster.backdate(cluster.pods("shop")[1], 7200)
    set_ready(cluster, "x-0", False)
    running = start(cluster, CONFIRM, *EVICT, cutoff(hours=1), "--log-level=debug")
    running.wait_for_log(f"{WAITS_FOR_READY}x-0")
    running.signal(signal.SIGTERM)
    ended = running.finish(timeout=5)
    assert (ended.code, ended.outcomes) == (143, {"shop/x": "not_started"})


def test_an_eviction_without_an_answer_may_have_begun(cluster, start):
    """The Pod is still there when it is looked at, and the run ends before it is tried again."""
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.settle()
    cluster.fault(method="POST", path="/eviction", status=504, times=99)
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("0 of 2 Pods replaced; 504")
    running.signal(signal.SIGTERM)
    ended = running.finish(timeout=10)
    assert (ended.code, ended.outcomes) == (143, {"shop/x": "interrupted"})


def test_a_failure_elsewhere_stops_between_two_pods(slow, start):
    let_ready(slow)
    slow.create("shop", workload("Deployment", "sick", APP))
    first = workload("Deployment", "0-first", APP, annotations={READY_AFTER: "0.02"})
    slow.create("shop", first)
    slow.settle()
    slow.kubelet.ready_after = 60
    body = {"kind": "Status", "message": "no", "code": 422}
    patch = slow.fault(
        method="PATCH", path="deployments/sick", status=422, body=body, release=threading.Event()
    )
    running = start(slow, CONFIRM, *EVICT, "--parallel-rollouts=2", "--max-failures=1")
    slow.wait_for(lambda: evictions(slow))
    patch.release.set()
    running.wait_for_log("--max-failures=1 reached")
    let_ready(slow)
    ended = running.finish()
    assert ended.code == 1
    outcomes = sorted(ended.outcomes.values())
    assert outcomes == ["failed", "interrupted", "not_started", "succeeded"]
    assert len(evictions(slow)) == 1


def test_a_handler_only_takes_a_note(tool, monkeypatch):
    """It may come in the middle of what it interrupts, such as a lock that it would wait for."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    signals = tool.Signals()
    signals.may_interrupt = False
    before = {**vars(signals), "received": [signal.SIGINT]}
    signals.note(signal.SIGINT, None)
    assert vars(signals) == before
