"""--evict: responses of the eviction API, above all about PodDisruptionBudgets."""

from __future__ import annotations

import threading
import time

import pytest
from clusters.embedded import server
from clusters.embedded.manifests import budget, replicated, workload
from support import (
    APP,
    CONFIRM,
    DRIFTED,
    EVICT,
    ON_DELETE,
    OWNERS,
    cutoff,
    evictions,
    make_old,
)


def test_a_budget_that_allows_nothing_times_out(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.create("shop", budget("x", minAvailable=2))
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT, "--timeout=2s")
    (result,) = ended.of("result")
    assert (result["outcome"], ended.code) == ("timed_out", 1)
    assert result["message"] == (
        "The disruption budget x needs 2 healthy pods and has 2 currently (0 of 2 Pods replaced)"
    )
    assert 2 <= len(evictions(cluster)) <= 4  # with growing pauses


def test_a_budget_that_opens_is_waited_for(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.create("shop", budget("x", minAvailable=2))
    cluster.settle()
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("The disruption budget x needs 2 healthy pods")
    cluster.change("PodDisruptionBudget", "shop", "x", {"spec": {"minAvailable": 1}})
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert len(set(evictions(cluster))) == 2


def too_many(cause: str | None, **headers: str) -> dict:
    """A 429, as a PodDisruptionBudget or as API priority and fairness gives it."""
    details = {"causes": [{"reason": "DisruptionBudget", "message": cause}]} if cause else {}
    body = {"kind": "Status", "message": "Too many requests", "details": details, "code": 429}
    return {"method": "POST", "path": "/eviction", "status": 429, "headers": headers, "body": body}


@pytest.mark.parametrize(
    "cause", ["The disruption budget x is still being processed by the server.", None]
)
def test_retry_after_is_honored(cluster, run, cause):
    """Of a budget whose controller is behind, and of an overloaded API server."""
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    times: list[float] = []

    def chaos(method: str, target: str, agent: str):
        if method == "POST" and "/eviction" in target:
            times.append(time.monotonic())
            return answer if len(times) == 1 else None
        return None

    answer = server.Fault(**too_many(cause, **{"Retry-After": "3"}))
    cluster.server.chaos = chaos
    ended = run(cluster, CONFIRM, *EVICT, "--log-level=debug")
    assert (cause or "429 Too many requests") in ended.stderr
    assert times[1] - times[0] >= 3
    assert ended.outcomes == {"shop/x": "succeeded"}


def test_two_budgets_are_final(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    for name in ("one", "other"):
        cluster.create("shop", budget(name, "x", minAvailable=0))
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT)
    (result,) = ended.of("result")
    assert result["outcome"] == "failed"
    assert "This pod has more than one PodDisruptionBudget" in result["message"]
    assert len(evictions(cluster)) == 1


@pytest.mark.parametrize("status", [404, 409])
def test_a_pod_that_is_gone_or_another_one_was_replaced_by_others(cluster, run, status):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    first = min(cluster.pods("shop"), key=lambda p: p["metadata"]["name"])["metadata"]["name"]
    inner, done = cluster.server.chaos, threading.Event()

    def chaos(method: str, target: str, agent: str):
        if method == "POST" and "/eviction" in target and not done.is_set():
            done.set()
            cluster.delete("Pod", "shop", first)
            from clusters.embedded.server import Fault

            return Fault(status=status, body={"kind": "Status", "message": "gone", "code": status})
        return inner(method, target, agent)

    cluster.server.chaos = chaos
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert evictions(cluster)[0] == first
    assert len(evictions(cluster)) == 2


def test_a_lost_answer_is_asked_for_again(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.fault(method="POST", path="/eviction", drop="after")
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_an_api_server_that_has_just_started_may_forbid_for_a_moment(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    message = 'pods "x" is forbidden: User "admin" cannot create resource "pods/eviction"'
    body = {"kind": "Status", "message": message, "code": 403}
    cluster.fault(method="POST", path="/eviction", status=403, body=body)
    assert run(cluster, CONFIRM, *EVICT).outcomes == {"shop/x": "succeeded"}


def test_an_error_is_final(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    body = {
        "kind": "Status",
        "message": 'pods "x" is forbidden: no permission',
        "code": 422,
    }
    cluster.fault(method="POST", path="/eviction", status=422, body=body)
    ended = run(cluster, CONFIRM, *EVICT)
    (result,) = ended.of("result")
    assert result["outcome"] == "failed"
    assert 'pods "x" is forbidden: no permission' in result["message"]


def test_the_wait_for_a_budget_leaves_time_for_the_replacement(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.create("shop", budget("x", minAvailable=2))
    cluster.settle()
    cluster.kubelet.ready_after = 4.5
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug", "--timeout=6s")
    running.wait_for_log("The disruption budget x needs", times=2)
    cluster.change("PodDisruptionBudget", "shop", "x", {"spec": {"minAvailable": 1}})
    assert running.finish().outcomes == {"shop/x": "succeeded"}


@pytest.mark.embedded("it puts an answer into the API server's mouth")
def test_an_eviction_that_took_place_despite_its_answer_is_waited_for(
    cluster, run, tool, monkeypatch
):
    """Else only the verification would wait for the replacement, for some seconds."""
    monkeypatch.setattr(tool, "SETTLE", 0.5)
    cluster.create("shop", replicated("ReplicaSet", "x", APP))
    cluster.settle()
    cluster.kubelet.ready_after = 3.0
    seen = []

    def chaos(method: str, target: str, agent: str):
        if method == "POST" and target.endswith("/eviction") and not seen:
            seen.append(target.split("/")[-2])
            cluster.delete("Pod", "shop", seen[0])
            body = {"kind": "Status", "message": "etcdserver: request timed out"}
            return server.Fault(status=500, body=body)
        return None

    cluster.server.chaos = chaos
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert ended.summary["pods"]["ready"] == 1
    (found,) = cluster.pods("shop")
    assert found["metadata"]["name"] != seen[0]


@pytest.mark.embedded("the injector changes at a request of the tool")
def test_by_another_answer_what_was_right_is_not_anymore(cluster, run):
    """The injector is upgraded again between two evictions."""
    strategy = {"type": "OnDelete"}
    cluster.create("shop", workload("StatefulSet", "db", replicas=3, updateStrategy=strategy))
    make_old(cluster)
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    evicted = []

    def after(request, code, content) -> None:
        if request.path.endswith("/eviction") and code < 300:
            evicted.append(request.path)
            if len(evicted) == 2:
                cluster.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"

    cluster.server.after = after
    ended = run(cluster, CONFIRM, *EVICT, "--only-drifted", "--include-statefulset")
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "still_drifted")
    assert "istio-proxy  image  docker.io/istio/proxyv2:1.28.0 -> 1.27.0" in result["message"]
    assert len(evicted) == 2


@pytest.mark.embedded("the injector changes at a moment of the run")
def test_another_answer_in_the_soak_is_not_what_was_planned(cluster, start):
    """A new Pod dies in the soak, and gets what is new by then."""
    cluster.create("shop", workload("StatefulSet", "db", replicas=2, **ON_DELETE))
    make_old(cluster)
    cluster.delete("Pod", "shop", "db-0")
    cluster.settle()
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    options = CONFIRM, *EVICT, DRIFTED, cutoff(hours=0.5), "--soak=8s", "--log-level=debug"
    running = start(cluster, *options)
    running.wait_for_log("soaking")
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"
    cluster.delete("Pod", "shop", "db-1")
    ended = running.finish()
    assert (ended.code, ended.outcomes, evictions(cluster)) == (
        1,
        {"shop/db": "still_drifted"},
        ["db-1"],
    )
