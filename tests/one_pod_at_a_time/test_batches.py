"""--evict --max-unavailable: what happens between two Pods of a batch is seen, and what was evicted is waited for and named."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from clusters.embedded import is_ready
from clusters.embedded.manifests import replicated
from support import APP, CONFIRM, EVICT, evictions, messages, set_ready, within

pytestmark = pytest.mark.both

BUSY = {"kind": "Status", "message": "forbidden: RBAC: clusterrole not found", "code": 403}


def shop_of(cluster, replicas: int) -> None:
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=replicas))
    cluster.settle()


@pytest.fixture
def between(cluster):
    """between(then): call it right after the first eviction, and note how many are ready at each."""
    seen: list[tuple[bool, int]] = []

    def watch(then=lambda: None):
        def begin(method: str, target: str, agent: str) -> None:
            path = target.partition("?")[0]
            if method != "POST" or not path.endswith("/eviction"):
                return
            name = path.split("/")[-2]
            pods = cluster.pods("shop")
            ready = [p["metadata"]["name"] for p in pods if is_ready(p)]
            seen.append((name in ready, len(ready)))
            if len(seen) == 1:
                then()

        cluster.server.begin = begin
        return seen

    return watch


def test_after_both_signals_nothing_is_evicted(cluster, start):
    shop_of(cluster, 12)
    cluster.kubelet.ready_after = 60
    held = cluster.fault(method="POST", path="/eviction", release=threading.Event())
    running = start(cluster, CONFIRM, *EVICT, "--max-unavailable=100%")
    assert held.reached.wait(20)
    running.signal(signal.SIGINT)
    running.wait_for_log("interrupted: ")
    held.release.set()
    cluster.wait_for(cluster.kubelet.starting)
    running.signal(signal.SIGINT)
    ended = running.finish()
    assert (ended.code, len(evictions(cluster))) == (130, 1)
    assert ended.outcomes == {"shop/x": "interrupted"}


@pytest.mark.embedded("counts between two writes of its store")
def test_pods_that_fail_meanwhile_count(cluster, run, between):
    shop_of(cluster, 8)
    names = sorted(p["metadata"]["name"] for p in cluster.pods("shop"))

    def two_fail() -> None:
        for name in names[-2:]:
            set_ready(cluster, name, False)

    seen = between(two_fail)
    cluster.kubelet.ready_after = 0.5
    ended = run(cluster, CONFIRM, *EVICT, "--max-unavailable=3")
    assert ended.outcomes == {"shop/x": "succeeded"}
    assert len(seen) == 8
    assert min(count for was_ready, count in seen if was_ready) >= 6  # before it goes


def test_an_error_ends_the_taking_and_what_was_evicted_is_waited_for(cluster, start):
    """A rule refuses the second eviction; the first Pod's replacement is awaited, and counted."""
    shop_of(cluster, 4)
    cluster.kubelet.ready_after = 1.5
    denied = {"kind": "Status", "message": "pods is forbidden: no permission", "code": 422}
    (first, *_) = sorted(p["metadata"]["name"] for p in cluster.pods("shop"))
    cluster.fault(method="POST", path=rf"pods/(?!{first})[^/]*/eviction", status=422, body=denied)
    began = time.monotonic()
    ended = start(cluster, CONFIRM, *EVICT, "--max-unavailable=3").finish()
    assert time.monotonic() - began > 1.5
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "failed")
    assert "no permission (1 of 4 Pods replaced)" in result["message"]
    assert all(map(is_ready, cluster.pods("shop")))


def test_a_pod_of_which_nobody_knows_whether_it_was_evicted_is_not_waited_for(cluster, start):
    """It is still there when the others of its batch are replaced: its eviction has not arrived."""
    shop_of(cluster, 4)
    (first, *_) = sorted(p["metadata"]["name"] for p in cluster.pods("shop"))
    cluster.fault(method="POST", path=rf"pods/(?!{first})[^/]*/eviction", status=503)
    unknown = {"kind": "Status", "message": "no such answer", "code": 400}
    cluster.fault(method="GET", path="/pods.*metadata.name", status=400, body=unknown)
    ended = start(cluster, CONFIRM, *EVICT, "--max-unavailable=2", within(cluster, 8)).finish()
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "failed")
    assert "no such answer (1 of 4 Pods replaced)" in result["message"]
    assert evictions(cluster)[0] == first


def test_a_replacement_without_the_sidecar_is_found_although_the_taking_has_ended(cluster, start):
    shop_of(cluster, 4)
    cluster.injector.breaks_after = 0
    (first, *_) = sorted(p["metadata"]["name"] for p in cluster.pods("shop"))
    denied = {"kind": "Status", "message": "no", "code": 403}
    cluster.fault(
        method="POST", path=rf"pods/(?!{first})[^/]*/eviction", status=403, body=denied, times=9
    )
    ended = start(cluster, CONFIRM, *EVICT, "--max-unavailable=3").finish()
    assert ended.outcomes == {"shop/x": "lost_sidecar"}
    assert first in messages(ended)["x"]


def test_a_403_after_the_plan_is_asked_again(cluster, start):
    """An API server that has just started answers so until its RBAC is loaded."""
    shop_of(cluster, 2)
    cluster.kubelet.ready_after = 1.0
    running = start(cluster, CONFIRM, *EVICT)
    cluster.wait_for(lambda: evictions(cluster))
    cluster.fault(method="GET", path="replicasets/x", status=403, body=BUSY)
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_a_403_that_stays_is_told(cluster, start):
    shop_of(cluster, 2)
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT, RETRIES="2")
    cluster.wait_for(lambda: evictions(cluster))
    cluster.fault(method="GET", path="replicasets/x", status=403, body=BUSY, times=99)
    ended = running.finish(timeout=110)
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "failed")
    assert "was evicted; 403 forbidden" in result["message"]
