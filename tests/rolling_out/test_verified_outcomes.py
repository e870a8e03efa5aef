"""Success is what was seen: the same verification after every method."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded import server
from clusters.embedded.manifests import replicated, workload
from support import CONFIRM, DRIFTED, NEW, TEXT, counts, messages
from texts import NOT_VERIFIED, UPDATED_AND_READY, WITHOUT_SIDECAR

pytestmark = pytest.mark.both

EVICT = (CONFIRM, "--evict")


@pytest.fixture(autouse=True)
def settles_in_a_second(tool, monkeypatch):
    """What is not as it should be is looked at for a second only."""
    monkeypatch.setattr(tool, "SETTLE", 1.0)


def budget(cluster) -> None:
    """A PodDisruptionBudget that allows nothing."""
    cluster.create(
        "shop",
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "lone"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "lone"}}},
        },
    )


@pytest.mark.parametrize("state", ["ignored", "denies"])
def test_the_last_pod_disappears_while_its_budget_is_waited_for(cluster, start, state):
    """By a drain, or by kubectl delete."""
    cluster.create("shop", replicated("ReplicaSet", "lone"))
    budget(cluster)
    cluster.settle()
    running = start(cluster, *EVICT, "--log-level=debug", SETTLE="3")
    running.wait_for_log("The disruption budget lone needs")
    cluster.injector.state = state
    (pod,) = cluster.pods("shop")
    cluster.delete("Pod", "shop", pod["metadata"]["name"])
    ended = running.finish()
    outcome = "lost_sidecar" if state == "ignored" else "incomplete"
    assert (ended.code, ended.outcomes) == (1, {"shop/lone": outcome})
    assert ended.summary["pods"] == counts(
        0, 0, 0, **{("lost" if state == "ignored" else "not_created"): 1}
    )
    if state == "denies":
        assert messages(ended)["lone"] == "1 of 1 Pod not created"


@pytest.mark.embedded("whose answers can be replaced")
def test_an_accepted_eviction_is_answered_with_500(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "lone"))
    cluster.settle()

    def chaos(method: str, target: str, agent: str):
        if target.partition("?")[0].endswith("/eviction"):
            cluster.injector.state = "ignored"
            (pod,) = cluster.pods("shop")
            cluster.delete("Pod", "shop", pod["metadata"]["name"])
            cluster.wait_for(lambda: pod not in cluster.pods("shop") and cluster.pods("shop"))
            return server.Fault(status=500, body={"message": "etcd"})
        return None

    cluster.server.chaos = chaos
    ended = run(cluster, *EVICT)
    assert (ended.code, ended.outcomes) == (1, {"shop/lone": "lost_sidecar"})


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_pod_that_was_replaced_while_its_turn_came_is_not_counted_as_changed(
    cluster, start, is_gone
):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.container["image"] = NEW
    held = cluster.fault(method="PATCH", path="/pods/", release=threading.Event())
    running = start(cluster, CONFIRM, DRIFTED, "--in-place")
    assert held.reached.wait(20)
    cluster.injector.state = "ignored"
    if not is_gone:  # yet, and can still be changed
        cluster.kubelet.gone_after = 60
    (pod,) = cluster.pods("shop")
    cluster.delete("Pod", "shop", pod["metadata"]["name"])
    cluster.wait_for(lambda: pod not in cluster.pods("shop") and cluster.pods("shop"))
    name = pod["metadata"]["name"]
    cluster.wait_for(lambda: not is_gone or not cluster.get("Pod", "shop", name))
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (1, {"shop/web": "lost_sidecar"})
    assert ended.summary["pods"] == counts(0, 0, 0, lost=1)


@pytest.mark.parametrize("status", [401, 403])
def test_pods_that_may_not_be_listed_afterwards_are_not_verified(cluster, start, status):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, CONFIRM, TEXT, RETRIES="2", SETTLE="3")
    assert held.reached.wait(20)
    cluster.fault(path=r"pods\?.*labelSelector", status=status, body={"message": "no"}, times=999)
    held.release.set()
    ended = running.finish()
    assert ended.code == 1
    failure = f"\nincomplete: Deployment shop/web:\n  {NOT_VERIFIED}: {status}"
    assert failure in ended.stdout
    assert "updated and ready" not in ended.stdout


def test_beside_others_pods_that_were_not_verified_are_missing_in_the_sum(cluster, start):
    """Else the sum would be that of a success."""
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.settle()
    held = cluster.fault(method="PATCH", path="deployments/b", release=threading.Event())
    running = start(cluster, CONFIRM, RETRIES="2", SETTLE="3")
    assert held.reached.wait(20)
    of_b = "labelSelector=app%3Db"
    cluster.fault(path=of_b, status=403, body={"message": "no"}, times=999)
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "incomplete"}
    assert [r["pods"] for r in ended.of("result")] == [counts(2, 2, 2), None]
    assert ended.summary["pods"] == counts(4, 2, 2)


def test_a_removal_that_the_plan_announced_is_a_success(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=5))
    cluster.settle()
    cluster.injector.state = "ignored"
    ended = run(cluster, CONFIRM, DRIFTED, "--allow-removal", TEXT)
    assert ended.code == 0
    assert f"\nPods: 5 of 5{UPDATED_AND_READY}.\n" in ended.stdout


def test_a_removal_that_the_plan_did_not_announce_stops_the_run(cluster, start):
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    cluster.injector.container["image"] = NEW
    held = cluster.fault(path="deployments/a$", release=threading.Event())
    running = start(cluster, CONFIRM, DRIFTED, "--allow-removal")
    assert held.reached.wait(20)
    cluster.injector.state = "ignored"
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "failed", "shop/b": "not_started"}
    assert [r for r in cluster.server.requests if r.method == "PATCH"] == []
    assert messages(ended)["a"].startswith(WITHOUT_SIDECAR)


def held_verification(cluster, start, *options: str, **environment: str):
    """A run that is about to list the Pods after its only rollout, and the fault that holds it."""
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, CONFIRM, *options, **environment)
    assert held.reached.wait(20)
    late = cluster.fault(path=r"pods\?.*labelSelector", release=threading.Event())
    held.release.set()
    assert late.reached.wait(20)
    return running, late


def test_pods_of_an_autoscaler_need_not_be_ready_yet(cluster, start):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    running, late = held_verification(cluster, start)
    before = cluster.pods("shop")
    cluster.kubelet.ready_after = 60
    cluster.change("Deployment", "shop", "web", {"spec": {"replicas": 3}})
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 3)
    (scaled,) = [p for p in cluster.pods("shop") if p not in before]
    cluster.backdate(scaled, -30)
    late.release.set()
    assert running.finish().outcomes == {"shop/web": "succeeded"}


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_pod_that_is_not_ready_any_more_is_looked_at_again(cluster, start, comes_back):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    running, late = held_verification(cluster, start, "--log-level=debug", SETTLE="3")
    name = cluster.pods("shop")[0]["metadata"]["name"]
    cluster.kubelet.set_ready("shop", name, False)
    late.release.set()
    running.wait_for_log("verifying: 1 of 2 Pods not ready")
    if comes_back:
        cluster.kubelet.set_ready("shop", name, True)
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "succeeded" if comes_back else "incomplete"}
    if not comes_back:
        text = f'1 of 2 Pods not ready: {name}: "containers with unready status: [app]"'
        assert messages(ended)["web"] == text
        assert ended.summary["pods"] == counts(2, 2, 1)
