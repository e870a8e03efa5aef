"""--evict: signals, pauses and failures elsewhere stop between two Pods."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from cluster import is_ready
from cluster.manifests import budget, replicated, workload
from support import APP, CONFIRM, EVICT, evictions, let_ready


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
    running.wait_for_log("interrupted: no new rollouts will start; waiting for 1 in progress")
    let_ready(slow)
    ended = running.finish()
    first, second = ended.of("result")
    assert ended.code == 130
    assert (first["outcome"], first["message"]) == (
        "interrupted",
        "1 of 3 Pods replaced; the others were not replaced",
    )
    assert second["outcome"] == "not_started"
    assert len(evictions(slow)) == 1


def test_the_second_signal_stops_waiting(slow, start):
    running = start(slow, CONFIRM, *EVICT, "--log-format=text")
    slow.wait_for(slow.kubelet.starting)
    running.signal(signal.SIGINT)
    running.wait_for_log("interrupted: no new rollouts will start")
    running.signal(signal.SIGINT)
    ended = running.finish()
    assert ended.code == 130
    assert (
        "interrupted: ReplicaSet shop/a: 0 of 3 Pods replaced; stopped waiting; check with: kubectl "
        "describe replicaset/a --namespace shop"
    ) in ended.stdout
    assert "To resume, run:" in ended.stdout


def test_a_signal_ends_the_wait_for_a_budget_at_once(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.create("shop", budget("x", minAvailable=2))
    cluster.settle()
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("allows no disruption")
    running.signal(signal.SIGTERM)
    ended = running.finish(timeout=5)
    assert (ended.code, ended.outcomes) == (143, {"shop/x": "interrupted"})


def test_a_failure_elsewhere_stops_between_two_pods(slow, start):
    let_ready(slow)
    slow.create("shop", workload("Deployment", "sick", APP))
    slow.settle()
    slow.kubelet.ready_after = 60
    body = {"kind": "Status", "message": "no", "code": 422}
    patch = slow.fault(
        method="PATCH", path="deployments/sick", status=422, body=body, release=threading.Event()
    )
    running = start(slow, CONFIRM, *EVICT, "--parallel-rollouts=2", "--max-failures=1")
    slow.wait_for(slow.kubelet.starting)
    patch.release.set()
    running.wait_for_log("--max-failures=1 reached")
    let_ready(slow)
    ended = running.finish()
    assert ended.code == 1
    outcomes = sorted(ended.outcomes.values())
    assert outcomes == ["failed", "interrupted", "not_started"]
    assert len(evictions(slow)) == 1


def test_a_pause_holds_between_two_pods(slow, start):
    running = start(slow, CONFIRM, *EVICT)
    slow.wait_for(slow.kubelet.starting)
    running.signal(signal.SIGUSR1)
    running.wait_for_log("paused: no new rollouts will start")
    let_ready(slow)
    listed = len(slow.server.requests)
    slow.wait_for(lambda: all(map(is_ready, slow.pods("shop"))))
    slow.wait_for(lambda: len(slow.server.requests) > listed)
    assert len(evictions(slow)) == 1
    running.signal(signal.SIGUSR2)
    ended = running.finish()
    assert (ended.code, len(evictions(slow))) == (0, 6)


def test_a_pause_holds_while_a_budget_is_waited_for(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.create("shop", budget("x", minAvailable=2))
    cluster.settle()
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("allows no disruption")
    running.signal(signal.SIGUSR1)
    running.wait_for_log("paused: no new rollouts will start")
    asked = len(evictions(cluster))
    cluster.change("PodDisruptionBudget", "shop", "x", {"spec": {"minAvailable": 1}})
    began = time.monotonic()
    cluster.wait_for(lambda: time.monotonic() - began > 3)  # longer than the next pause
    assert len(evictions(cluster)) <= asked + 1  # one may have been on its way
    running.signal(signal.SIGUSR2)
    assert running.finish().outcomes == {"shop/x": "succeeded"}


def test_a_signal_takes_no_lock_that_the_main_thread_may_hold(tool, monkeypatch):
    """A handler that runs while the main thread sets the same event would wait for itself."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    interrupts = tool.Interrupts()
    interrupts.raises = False
    with interrupts.stop_starting._cond:
        interrupts.receive(signal.SIGINT, None)
    assert (interrupts.received, interrupts.stop_starting.is_set()) == ([signal.SIGINT], False)
