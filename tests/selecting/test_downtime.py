"""Which rollouts may have all Pods of a workload away at once."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded import is_ready
from clusters.embedded.manifests import container, pod_spec, replicated, service, workload
from support import BOTH, CONFIRM, Watch


def rolling(unavailable, surge) -> dict:
    update = {"maxUnavailable": unavailable, "maxSurge": surge}
    return {"strategy": {"type": "RollingUpdate", "rollingUpdate": update}}


def parallel(unavailable) -> dict:
    update = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable}}
    return {"updateStrategy": update, "podManagementPolicy": "Parallel"}


PARTITION = {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}}


@pytest.mark.both
@pytest.mark.parametrize(
    ("kind", "replicas", "fields", "downtime"),
    [
        ("Deployment", 1, {}, False),  # 25% are 0, and one is started before
        ("Deployment", 3, {}, False),
        ("Deployment", 2, {"strategy": {"type": "Recreate"}}, True),
        ("Deployment", 1, rolling(1, 0), True),
        ("Deployment", 1, rolling("0%", 1), False),
        ("Deployment", 2, rolling(1, 0), False),
        ("Deployment", 2, rolling(2, 0), True),
        ("Deployment", 2, rolling("100%", 0), True),
        ("Deployment", 3, rolling("99%", 0), False),
        ("Deployment", 1, rolling("50%", 0), True),  # both are 0: maxUnavailable is 1
        ("Deployment", 1, rolling(1, 1), True),  # the old one need not wait
        ("StatefulSet", 1, {}, True),
        ("StatefulSet", 2, {}, False),
        ("StatefulSet", 2, PARTITION, False),
        ("DaemonSet", 3, {}, False),
    ],
)
def test_all_pods_may_be_away(cluster, run, kind, replicas, fields, downtime):
    if kind != "DaemonSet":
        fields = {"replicas": replicas, **fields}
    cluster.create("shop", workload(kind, "web", **fields))
    cluster.settle()
    (plan,) = run(cluster, *BOTH).of("plan")
    assert plan["downtime"] == downtime


@pytest.mark.parametrize(
    ("unavailable", "downtime"),
    [(1, False), (2, False), (3, True), ("67%", True), ("66%", False), ("100%", True)],
)
def test_a_daemon_set_rounds_max_unavailable_up(cluster, run, unavailable, downtime):
    """On three nodes: 67 % are 2.01 Pods. See daemon/util/daemonset_util.go."""
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable}}
    cluster.create("shop", workload("DaemonSet", "web", updateStrategy=rolling))
    cluster.settle()
    (plan,) = run(cluster, *BOTH).of("plan")
    assert plan["downtime"] == downtime


@pytest.mark.embedded("taints nodes of other tests, too")
def test_a_daemon_set_has_a_pod_for_each_node_also_on_one(cluster, run):
    cluster.controllers.tainted |= {"node-2", "node-3"}
    cluster.create("shop", workload("DaemonSet", "web"))
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 1)
    cluster.wait_for(lambda: is_ready(*cluster.pods("shop")))
    (plan,) = run(cluster, *BOTH).of("plan")
    assert (plan["pods"]["total"], plan["downtime"]) == (1, False)


def test_a_daemon_set_that_is_evicted_is_downtime_with_that_many_at_once(cluster, run):
    cluster.create("shop", workload("DaemonSet", "web", updateStrategy={"type": "OnDelete"}))
    cluster.settle()
    for option, downtime in (("2", False), ("3", True), ("100%", True)):
        (plan,) = run(cluster, *BOTH, "--evict", f"--max-unavailable={option}").of("plan")
        assert (plan["method"], plan["downtime"]) == ("evict", downtime)


@pytest.mark.parametrize(("unavailable", "downtime"), [(1, False), (2, True), ("50%", False)])
def test_a_stateful_set_with_max_unavailable(cluster, run, unavailable, downtime):
    cluster.create("shop", workload("StatefulSet", "web", replicas=2, **parallel(unavailable)))
    cluster.settle()
    (plan,) = run(cluster, *BOTH).of("plan")
    assert plan["downtime"] == downtime


@pytest.mark.both
def test_surge_does_not_keep_the_only_pod(cluster, run):
    """Seen: its old Pod is stopped while the new one starts."""
    cluster.create("shop", workload("Deployment", "web", replicas=1, **rolling(1, 1)))
    cluster.settle()
    cluster.kubelet.ready_after = 0.5
    watch = Watch(cluster)
    run(cluster, CONFIRM)
    assert watch.most == 1


@pytest.mark.parametrize(("replicas", "downtime"), [(1, True), (2, False)])
def test_the_eviction_of_the_only_pod_is_downtime(cluster, run, replicas, downtime):
    cluster.create("shop", replicated("ReplicaSet", "web", replicas=replicas))
    cluster.settle()
    (plan,) = run(cluster, "--evict").of("plan")
    assert (plan["method"], plan["downtime"]) == ("evict", downtime)


def test_of_serving_workloads_those_with_downtime_go_last(cluster, run):
    recreate = {"strategy": {"type": "Recreate"}}
    cluster.create("shop", workload("Deployment", "a", replicas=1, **recreate))
    cluster.create("shop", workload("Deployment", "b", replicas=3))
    cluster.create("shop", workload("Deployment", "c", replicas=1, **recreate))
    for name in "ab":
        cluster.create("shop", service(name))
    broken = pod_spec(container("app", "broken:1"))
    cluster.create("shop", workload("Deployment", "d", broken))
    cluster.settle()
    cluster.wait_for(
        lambda: sum(len(s["endpoints"]) for s in cluster.store.list("endpointslices", "shop")) == 4
    )
    ended = run(cluster)
    assert [(r["name"], r["state"], r["downtime"]) for r in ended.of("plan")] == [
        ("c", "no_service", True),
        ("b", "serving", False),
        ("a", "serving", True),
        ("d", "unhealthy", False),
    ]


def test_they_are_skipped_with_skip_downtime(cluster, run):
    for name, fields in (("one", rolling(1, 0)), ("two", {"replicas": 2})):
        cluster.create("shop", workload("Deployment", name, **fields))
    cluster.create("shop", replicated("ReplicaSet", "lone", replicas=1))
    cluster.settle()
    dry = run(cluster, "--evict")
    assert {r["name"]: r["downtime"] for r in dry.of("plan")} == {
        "lone": True,
        "one": True,
        "two": False,
    }
    ended = run(cluster, "--evict", "--skip-downtime", CONFIRM)
    assert ended.outcomes == {"shop/two": "succeeded"}
    reason = "its rollout is downtime: all its Pods may be unavailable at once"
    assert {(r["name"], r["code"], r["message"]) for r in ended.of("skip")} == {
        ("lone", "has_downtime", reason),
        ("one", "has_downtime", reason),
    }


def test_one_that_is_scaled_down_since_the_plan_is_skipped(cluster, start):
    """Of two Pods, one keeps serving; of one, none does."""
    cluster.create("shop", workload("Deployment", "web", replicas=2, **rolling(1, 0)))
    cluster.settle()
    held = cluster.fault(method="GET", path="deployments/web$", release=threading.Event())
    running = start(cluster, CONFIRM, "--skip-downtime")
    assert held.reached.wait(30)
    cluster.change("Deployment", "shop", "web", {"spec": {"replicas": 1}})
    cluster.settle()
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    assert ended.of("result")[0]["message"].startswith("its rollout is downtime")
