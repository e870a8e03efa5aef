"""A Pod that was taken stays unavailable until a new one is seen available; how many are wanted, the owner says at each look."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import pod, replicated, workload
from support import (
    CONFIRM,
    DRIFTED,
    EVICT,
    NEW,
    counts,
    evictions,
    make_old,
    messages,
    upgrade,
)

QUOTA = {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
ON_DELETE = {"updateStrategy": {"type": "OnDelete"}}
TAINTED = {"node-2", "node-3"}


@pytest.fixture
def tainted(cluster):
    """A DaemonSet on three nodes, two of which do not want its Pods anymore: they go on.

    None that goes comes back.
    """
    cluster.create("shop", workload("DaemonSet", "x", **ON_DELETE))
    make_old(cluster)
    upgrade(cluster)
    cluster.controllers.tainted |= TAINTED
    cluster.controllers._create_daemon_pod = lambda *args: None
    cluster.change("DaemonSet", "shop", "x", {"metadata": {"labels": {"a": "b"}}})
    cluster.wait_for(
        lambda: cluster.get("DaemonSet", "shop", "x")["status"].get("numberMisscheduled") == 2
    )
    return cluster


def test_pods_on_nodes_that_do_not_want_them_hide_no_missing_one(tainted, run):
    """One that is wanted, is evicted, and does not come back: no other one goes."""
    nodes = {p["metadata"]["name"]: p["spec"]["nodeName"] for p in tainted.pods("shop")}
    ended = run(tainted, CONFIRM, DRIFTED, *EVICT, "--timeout=3s")
    assert ended.outcomes == {"shop/x": "timed_out"}
    *before, last = (nodes[name] for name in evictions(tainted))
    assert last not in TAINTED
    assert set(before) <= TAINTED
    assert "still waiting for 1 Pod to be created" in messages(ended)["x"]


def test_one_that_is_missing_from_the_start_is_not_hidden_either(tainted, run):
    (wanted,) = [p for p in tainted.pods("shop") if p["spec"]["nodeName"] not in TAINTED]
    tainted.delete("Pod", "shop", wanted["metadata"]["name"])
    tainted.wait_for(lambda: len(tainted.pods("shop")) == 2)
    ended = run(tainted, CONFIRM, DRIFTED, *EVICT, "--timeout=2s")
    assert (ended.outcomes, evictions(tainted)) == ({"shop/x": "timed_out"}, [])
    assert "waiting for 1 Pod to be created" in messages(ended)["x"]


def test_a_success_says_how_many_pods_nothing_came_for(tainted, run):
    """The one that is wanted is up to date."""
    (wanted,) = [p for p in tainted.pods("shop") if p["spec"]["nodeName"] not in TAINTED]
    image = {"spec": {"containers": [{"name": "istio-proxy", "image": NEW}]}}
    tainted.change("Pod", "shop", wanted["metadata"]["name"], image)
    ended = run(tainted, CONFIRM, DRIFTED, *EVICT, "--timeout=5s")
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert len(evictions(tainted)) == 2
    assert messages(ended)["x"] == "no longer desired: 2 of 2 Pods"


def test_more_pods_than_are_wanted_hide_none_that_is_missing_later(cluster, run):
    """A Node goes, and its Pod is ready until it is collected: then fewer are wanted than run."""
    cluster.create("shop", workload("DaemonSet", "x", **ON_DELETE))
    make_old(cluster)
    upgrade(cluster)
    status = cluster.controllers._set_status

    def one_less(plural: str, obj: dict, found: dict) -> None:
        if plural == "daemonsets" and not evictions(cluster):
            found = {**found, "desiredNumberScheduled": 2}
        status(plural, obj, found)

    cluster.controllers._set_status = one_less
    cluster.change("DaemonSet", "shop", "x", {"metadata": {"labels": {"a": "b"}}})
    cluster.wait_for(
        lambda: cluster.get("DaemonSet", "shop", "x")["status"]["desiredNumberScheduled"] == 2
    )
    ended = run(cluster, CONFIRM, DRIFTED, *EVICT, "--timeout=5s")
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_what_came_back_since_the_start_excuses_no_other_one(cluster, start):
    """At first, a Pod terminates. It comes back; then one is evicted that does not: nothing is proven."""
    cluster.create("shop", workload("DaemonSet", "x", **ON_DELETE))
    cluster.create("shop", workload("DaemonSet", "y", **ON_DELETE))
    make_old(cluster)
    upgrade(cluster)
    cluster.kubelet.gone_after = 3600
    name = min(p["metadata"]["name"] for p in cluster.pods("shop"))
    cluster.delete("Pod", "shop", name)
    terminating = cluster.get("Pod", "shop", name)
    options = ("--parallel-rollouts=2", "--max-failures=1", "--timeout=8s", "--log-level=debug")
    running = start(cluster, CONFIRM, DRIFTED, *EVICT, *options)
    running.wait_for_log(f"waiting for Pod {name}")
    assert evictions(cluster) == []

    def after(request, code, content) -> None:
        if evictions(cluster) and not cluster.store.list("resourcequotas", "shop"):
            cluster.create("shop", QUOTA)

    cluster.server.after = after
    cluster.kubelet.gone_after = 0.1
    with cluster.store.lock:
        cluster.kubelet._remove(terminating)
    ended = running.finish()
    assert ended.outcomes == {"shop/x": "timed_out", "shop/y": "not_started"}
    assert len(evictions(cluster)) == 1


def test_a_rollout_that_is_scaled_down_meanwhile_lacks_nothing(cluster, run):
    """Its ReplicaSet states how many it wants."""
    rollout = {
        "kind": "Rollout",
        "apiVersion": "argoproj.io/v1alpha1",
        "metadata": {"name": "pay"},
        "spec": {"replicas": 4},
    }
    cluster.create("shop", rollout)
    uid = cluster.get("Rollout", "shop", "pay")["metadata"]["uid"]
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "pay", "uid": uid}
    manifest = replicated("ReplicaSet", "pay-abc", replicas=4)
    manifest["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    cluster.create("shop", manifest)
    make_old(cluster)

    def after(request, code, content) -> None:
        if len(evictions(cluster)) == 3:
            cluster.change("ReplicaSet", "shop", "pay-abc", {"spec": {"replicas": 3}})

    cluster.server.after = after
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/pay": "succeeded"})
    assert ended.summary["pods"] == counts(3, 3, 3)


def test_a_changed_pod_that_somebody_deletes_proves_nothing(cluster, run):
    """Nobody has seen the new image run: no other workload begins."""
    for name in "abcd":
        cluster.create("shop", workload("Deployment", name, replicas=2))
    make_old(cluster)
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:broken-1.27.0"
    changed: list[str] = []

    def after(request, code, content) -> None:
        if request.method == "PATCH" and "/pods/" in request.path and b"broken" in request.body:
            changed.append(request.path.rpartition("/")[2])
            if len(changed) == 1:
                cluster.delete("Pod", "shop", changed[0])

    cluster.server.after = after
    options = ("--in-place", "--parallel-rollouts=4", "--max-failures=1", "--timeout=3s")
    ended = run(cluster, CONFIRM, DRIFTED, *options)
    assert {name[0] for name in changed} == {"a"}
    others = dict.fromkeys(("shop/b", "shop/c", "shop/d"), "not_started")
    assert (ended.code, ended.outcomes) == (1, {"shop/a": "timed_out", **others})


@pytest.mark.embedded("a custom resource that creates Pods")
def test_a_pod_of_a_custom_resource_that_has_failed_is_none_of_its_pods(cluster, run):
    """Its controller keeps it, as evidence: nothing replaces it."""
    found = {**replicated("CloneSet", "cs", replicas=2), "apiVersion": "apps.kruise.io/v1alpha1"}
    cluster.create("shop", found)
    cluster.settle()
    (example, _) = cluster.pods("shop")
    failed = pod("cs-failed", example["spec"])
    failed["metadata"] |= {
        "labels": example["metadata"]["labels"],
        "ownerReferences": example["metadata"]["ownerReferences"],
    }
    cluster.create("shop", failed)
    with cluster.store.lock:
        made = cluster.get("Pod", "shop", "cs-failed")
        ended = {"phase": "Failed", "reason": "Evicted", "conditions": []}
        cluster.store.change("pods", made, status={**made["status"], **ended})
    ended = run(cluster, CONFIRM, "--evict", "--timeout=10s")
    assert ended.outcomes == {"shop/cs": "succeeded"}
