"""--evict: changes that others make to the Pods or their owner during the run."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded import is_ready
from clusters.embedded.manifests import budget, container, pod, pod_spec, replicated, workload
from support import (
    APP,
    CONFIRM,
    DRIFTED,
    EVICT,
    ON_DELETE,
    OWNERS,
    Watch,
    argo,
    counts,
    evictions,
    let_ready,
    of_nobody,
    paused,
    set_ready,
    uids,
    upgrade,
    within,
)
from texts import WAITS_FOR_POD, WAITS_FOR_READY, WITHOUT_SIDECAR

pytestmark = pytest.mark.both


def test_without_a_replacement_no_other_pod_is_evicted(cluster, run):
    of_nobody(cluster, 3)
    ended = run(cluster, CONFIRM, *EVICT, "--timeout=1s")
    assert (ended.outcomes, len(evictions(cluster))) == ({"shop/x": "timed_out"}, 1)
    (result,) = ended.of("result")
    assert result["message"] == (
        f"Pod x-0 was evicted; still {WAITS_FOR_POD} (0 of 3 Pods replaced)"
    )


def test_an_owner_is_left_alone_if_one_of_its_pods_runs_to_completion(cluster, run):
    proxy = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2")
    for name, policy in (("a", "Always"), ("b", "Never")):
        spec = pod_spec(container("app"), proxy, restartPolicy=policy)
        cluster.create("shop", pod(name, spec, ("kubeflow.org/v1", "TFJob", "train")))
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT)
    assert set(ended.skipped.values()) == {"restart_policy"}
    assert evictions(cluster) == []


def test_a_deployment_that_is_resumed_is_no_longer_evicted(cluster, start):
    paused(cluster, replicas=3)
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT)
    cluster.wait_for(cluster.kubelet.starting)
    cluster.change("Deployment", "shop", "x", {"spec": {"paused": False}})
    let_ready(cluster)
    ended = running.finish()
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"]) == (
        "incomplete",
        "no longer paused; rerun this command to restart it (1 of 3 Pods replaced)",
    )
    assert len(evictions(cluster)) == 1


def test_a_daemon_sets_pod_is_replaced_on_its_node(cluster, start):
    OWNERS["DaemonSet shop/x"](cluster)
    cluster.settle()
    slow = {"metadata": {"name": "node-9"}, "spec": {}, "status": {}}
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT, within(cluster, 3))
    cluster.wait_for(cluster.kubelet.starting)
    cluster.kubelet.ready_after = 0.05
    cluster.store.create("nodes", slow)  # its Pod is ready at once
    cluster.wait_for(lambda: len([p for p in cluster.pods("shop") if is_ready(p)]) == 3)
    ended = running.finish()
    assert (ended.outcomes, len(evictions(cluster))) == ({"shop/x": "timed_out"}, 1)


def test_a_stateful_sets_pod_is_replaced_under_its_name(cluster, start):
    fields = {"podManagementPolicy": "Parallel", **ON_DELETE}
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **fields))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT, within(cluster, 3))
    cluster.wait_for(cluster.kubelet.starting)
    cluster.kubelet.ready_after = 0.05
    cluster.change("StatefulSet", "shop", "x", {"spec": {"replicas": 4}})
    cluster.wait_for(lambda: len([p for p in cluster.pods("shop") if is_ready(p)]) == 3)
    ended = running.finish()
    assert (ended.outcomes, evictions(cluster)) == ({"shop/x": "timed_out"}, ["x-2"])


def held_by_a_budget(cluster, start, replicas: int):
    """A run that waits for a PodDisruptionBudget of a CloneSet that is scaled from three Pods."""
    cluster.create("shop", replicated("CloneSet", "x", APP, replicas=3))
    cluster.create("shop", budget("x", minAvailable=100))
    cluster.settle()
    running = start(cluster, CONFIRM, *EVICT, "--timeout=6s", "--log-level=debug")
    running.wait_for_log("The disruption budget x needs")
    cluster.change("CloneSet", "shop", "x", {"spec": {"replicas": replicas}})
    cluster.wait_for(lambda: len(cluster.store.list("pods", "shop")) == replicas)
    cluster.wait_for(lambda: all(map(is_ready, cluster.pods("shop"))))
    return running


def test_a_custom_resource_that_was_scaled_up_is_replaced(cluster, start):
    running = held_by_a_budget(cluster, start, 6)
    cluster.delete("PodDisruptionBudget", "shop", "x")
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert len(evictions(cluster)) >= 3


def test_a_custom_resource_that_was_scaled_down_is_replaced(cluster, start):
    """It states no number: the Pods that live are those that it wants."""
    running = held_by_a_budget(cluster, start, 2)
    before = uids(cluster)
    cluster.delete("PodDisruptionBudget", "shop", "x")
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert set(before).isdisjoint(uids(cluster))
    assert ended.summary["pods"] == counts(2, 2, 2)


def test_a_pod_of_a_custom_resource_that_is_not_created_again_is_missed(cluster, start):
    """Only a new Pod that is available ends the wait for one that was evicted."""
    running = held_by_a_budget(cluster, start, 3)
    cluster.controllers._steps["clonesets"] = lambda obj: None
    cluster.delete("Pod", "shop", cluster.pods("shop")[0]["metadata"]["name"])
    cluster.wait_for(lambda: len(cluster.store.list("pods", "shop")) == 2)
    cluster.delete("PodDisruptionBudget", "shop", "x")
    (result,) = running.finish().of("result")
    assert (result["outcome"], len(cluster.pods("shop"))) == ("timed_out", 1)
    assert f"still {WAITS_FOR_POD}" in result["message"]


@pytest.mark.embedded("stops a controller")
def test_a_pod_that_came_before_an_eviction_replaces_none(cluster, start):
    """Somebody deletes a Pod, and it is replaced; the one that is evicted next is not."""
    running = held_by_a_budget(cluster, start, 3)
    name = cluster.pods("shop")[0]["metadata"]["name"]
    cluster.delete("Pod", "shop", name)
    cluster.wait_for(lambda: not cluster.get("Pod", "shop", name))
    cluster.wait_for(lambda: list(map(is_ready, cluster.pods("shop"))) == [True] * 3)
    cluster.controllers._steps["clonesets"] = lambda obj: None
    cluster.delete("PodDisruptionBudget", "shop", "x")
    (result,) = running.finish().of("result")
    assert (result["outcome"], len(cluster.pods("shop"))) == ("timed_out", 2)


def while_the_last_is_replaced(cluster, start):
    """A run in which the replacement of the last Pod of ReplicaSet x is there, but not ready."""
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    upgrade(cluster)
    last, other = (pod["metadata"]["name"] for pod in cluster.pods("shop"))
    cluster.delete("Pod", "shop", other)
    cluster.wait_for(lambda: not cluster.get("Pod", "shop", other))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, DRIFTED, *EVICT, within(cluster, 8), "--log-level=debug")
    running.wait_for_log(f"{WAITS_FOR_READY}x-")
    assert evictions(cluster) == [last]
    (new,) = cluster.kubelet.starting()
    return running, new["metadata"]["name"]


def test_after_the_last_eviction_a_pod_that_terminates_is_not_waited_for(cluster, start):
    running, new = while_the_last_is_replaced(cluster, start)
    cluster.kubelet.gone_after, cluster.kubelet.ready_after = 3600, 0.05
    other = next(filter(is_ready, cluster.pods("shop")))["metadata"]["name"]
    cluster.delete("Pod", "shop", other)
    cluster.kubelet.start("shop", new)
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


@pytest.mark.embedded("says when a Pod is ready")
def test_the_new_pod_of_an_autoscaler_replaces_no_unready_one(cluster, start):
    """One was unready before; as many as then may stay so, but not the replacement."""
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    sick = cluster.pods("shop")[-1]["metadata"]["name"]
    set_ready(cluster, sick, False)
    cluster.kubelet.ready_after = 3600
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log(f"{WAITS_FOR_READY}x-")
    (replacement,) = cluster.kubelet.starting()
    cluster.change("ReplicaSet", "shop", "x", {"spec": {"replicas": 4}})
    cluster.wait_for(lambda: len(cluster.kubelet.starting()) == 2)
    names = {pod["metadata"]["name"] for pod in cluster.kubelet.starting()}
    (added,) = names - {replacement["metadata"]["name"]}
    cluster.kubelet.start("shop", added)
    waited = sum("; waiting for" in line for line in running.lines)
    running.wait_for_log("; waiting for", waited + 3)
    assert not [line for line in running.lines if "1 of 3 Pods replaced" in line]
    assert evictions(cluster) == [sick]
    cluster.kubelet.start("shop", replacement["metadata"]["name"])
    let_ready(cluster)
    assert running.finish().outcomes == {"shop/x": "succeeded"}


def test_a_pod_of_an_autoscaler_that_is_never_ready_is_named(cluster, start):
    running, new = while_the_last_is_replaced(cluster, start)
    cluster.change("ReplicaSet", "shop", "x", {"spec": {"replicas": 3}})
    cluster.wait_for(lambda: len(cluster.kubelet.starting()) == 2)
    names = {pod["metadata"]["name"] for pod in cluster.kubelet.starting()}
    cluster.kubelet.start("shop", new)
    (added,) = names - {new}
    (result,) = running.finish().of("result")
    assert result["outcome"] == "timed_out"
    assert f"was evicted; still {WAITS_FOR_READY}{added}" in result["message"]


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet"])
def test_two_runs_do_not_evict_two_pods_of_one_owner(cluster, start, kind):
    OWNERS[f"{kind} shop/x"](cluster)
    cluster.settle()
    upgrade(cluster)
    cluster.kubelet.ready_after = 60
    watch = Watch(cluster)
    first = start(cluster, CONFIRM, "--only-drifted", *EVICT)
    cluster.wait_for(lambda: any(not is_ready(p) for p in cluster.pods("shop")))
    second = start(cluster, CONFIRM, "--only-drifted", *EVICT, within(cluster, 3)).finish()
    assert second.outcomes == {"shop/x": "timed_out"}
    assert "waiting for " in second.of("result")[0]["message"]
    let_ready(cluster)
    assert (first.finish().code, watch.most) == (0, 1)


def test_one_that_others_delete_is_no_success(cluster, start):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT)
    cluster.wait_for(cluster.kubelet.starting)
    cluster.delete("ReplicaSet", "shop", "x")
    ended = running.finish()
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"]) == ("skipped", "no longer exists")


def test_a_change_that_is_not_observed_yet_is_waited_for(cluster, start):
    """After the first eviction, any change of the template ends it; here, another field changes."""
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    cluster.wait_for(cluster.kubelet.starting)
    with cluster.store.lock:
        cluster.controllers._steps["statefulsets"] = lambda obj: None  # its controller is behind
        cluster.change("StatefulSet", "shop", "x", {"spec": {"revisionHistoryLimit": 5}})
    let_ready(cluster)
    running.wait_for_log("waiting for its spec update to be observed")
    cluster.controllers._steps["statefulsets"] = cluster.controllers._step_stateful_set
    cluster.change("StatefulSet", "shop", "x", {"spec": {"revisionHistoryLimit": 6}})
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def let_go(cluster, pod) -> None:
    """Remove a Pod that terminates, and from now on others soon after they are deleted."""
    cluster.kubelet.gone_after = 0.1
    with cluster.store.lock:
        cluster.kubelet._remove(pod)


def test_a_pod_that_is_terminating_is_no_pending_change(cluster, start):
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    cluster.kubelet.gone_after = 3600
    cluster.delete("Pod", "shop", "x-1")
    terminating = cluster.get("Pod", "shop", "x-1")
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("waiting for Pod x-1 on node")
    let_go(cluster, terminating)
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert evictions(cluster) == ["x-2", "x-0"]


@pytest.mark.parametrize("kind", ["DaemonSet", "StatefulSet", "CloneSet"])
def test_no_pod_is_evicted_while_another_one_terminates(cluster, start, kind):
    OWNERS[f"{kind} shop/x"](cluster)
    cluster.settle()
    cluster.kubelet.gone_after = 3600
    watch = Watch(cluster)
    terminating = cluster.pods("shop")[-1]
    name = terminating["metadata"]["name"]
    cluster.delete("Pod", "shop", name)
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log(f"waiting for Pod {name} on node")
    assert evictions(cluster) == []
    let_go(cluster, terminating)
    assert (running.finish().outcomes, watch.most) == ({"shop/x": "succeeded"}, 1)


def test_an_ordered_stateful_set_with_a_pod_that_cannot_be_created_is_left(cluster, run):
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    step = cluster.controllers._steps["statefulsets"]
    cluster.controllers._steps["statefulsets"] = lambda obj: None
    cluster.delete("Pod", "shop", "x-1")
    cluster.wait_for(lambda: len(cluster.store.list("pods", "shop")) == 2)
    ended = run(cluster, CONFIRM, *EVICT, "--timeout=2s")
    assert (ended.outcomes, evictions(cluster)) == ({"shop/x": "timed_out"}, [])
    (result,) = ended.of("result")
    assert f"{WAITS_FOR_POD} (0" in result["message"]
    cluster.controllers._steps["statefulsets"] = step
    cluster.change("StatefulSet", "shop", "x", {"metadata": {"labels": {"a": "b"}}})
    cluster.settle()
    assert run(cluster, CONFIRM, *EVICT).outcomes == {"shop/x": "succeeded"}


def test_annotations_of_a_paused_deployment_count(cluster, run):
    paused(cluster)
    change = {"metadata": {"annotations": {"team/evict": "yes"}}}
    cluster.change("Deployment", "shop", "x", change)
    ended = run(cluster, CONFIRM, *EVICT, "--include-annotation=team/evict")
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_skip_unhealthy_is_looked_at_again(cluster, start):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    fault = cluster.fault(path="endpointslices", release=threading.Event())
    running = start(cluster, CONFIRM, *EVICT, "--skip-unhealthy")
    assert fault.reached.wait(20)
    set_ready(cluster, cluster.pods("shop")[0]["metadata"]["name"], False)
    cluster.wait_for(
        lambda: cluster.get("ReplicaSet", "shop", "x")["status"].get("readyReplicas") == 1
    )
    fault.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/x": "skipped"}
    assert evictions(cluster) == []


def test_a_server_error_is_no_answer_for_good(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    body = {"kind": "Status", "message": "etcdserver: request timed out", "code": 500}
    cluster.fault(method="POST", path="/eviction", status=500, body=body)
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_an_eviction_without_an_answer_may_have_taken_place(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.fault(method="POST", path="/eviction", status=502, body=b"bad gateway")
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert len(evictions(cluster)) == 3  # it had not: the Pod was still there


def test_nothing_outdated_is_no_success(cluster, start):
    """All Pods of a Rollout with two ReplicaSets were replaced after the plan."""
    cluster.create("shop", argo("x", replicas=1))
    second = argo("x", replicas=1)
    second["metadata"]["name"] = "x-77cb8cb798"
    second["spec"]["selector"]["matchLabels"] = {"app": "x2"}
    second["spec"]["template"] = {
        **second["spec"]["template"],
        "metadata": {"labels": {"app": "x2"}},
    }
    cluster.create("shop", second)
    cluster.settle()
    fault = cluster.fault(path="endpointslices", release=threading.Event())
    running = start(cluster, CONFIRM, *EVICT, "--only-started-before=2030-01-01T00:00:00Z")
    assert fault.reached.wait(20)
    cluster.injector.state = "ignored"
    for found in cluster.pods("shop"):
        cluster.delete("Pod", "shop", found["metadata"]["name"])
    cluster.settle()
    fault.release.set()
    ended = running.finish()
    (result,) = ended.of("result")
    assert (result["outcome"], result["code"]) == ("skipped", "lost_sidecar")
    assert (ended.code, ended.summary["failed"]) == (1, {"lost_sidecar": 1})


def test_the_eviction_of_a_paused_deployment_is_no_downtime(cluster, run):
    """It has the strategy Recreate, but its Pods go one at a time."""
    paused(cluster, replicas=2, strategy={"type": "Recreate"})
    (plan,) = run(cluster, *EVICT).of("plan")
    assert (plan["method"], plan["downtime"]) == ("evict", False)


@pytest.mark.parametrize("which", [0, 1])
def test_a_dry_run_is_asked_for_each_owner_before_the_first_eviction(cluster, run, which):
    """Pods of a paused Deployment belong to two ReplicaSets; one would lose its sidecar."""
    cluster.create("shop", workload("Deployment", "x", APP, replicas=4))
    cluster.settle()
    cluster.kubelet.ready_after = 3600
    labels = {"metadata": {"labels": {"release": "2"}}}
    cluster.change("Deployment", "shop", "x", {"spec": {"template": labels}})
    cluster.wait_for(cluster.kubelet.starting)
    cluster.change("Deployment", "shop", "x", {"spec": {"paused": True}})
    let_ready(cluster)
    cluster.settle()
    owners = sorted({p["metadata"]["ownerReferences"][0]["name"] for p in cluster.pods("shop")})
    assert len(owners) == 2
    no_sidecar = {"metadata": {"labels": {"sidecar.istio.io/inject": "false"}}}
    cluster.change("ReplicaSet", "shop", owners[which], {"spec": {"template": no_sidecar}})
    (result,) = run(cluster, CONFIRM, *EVICT).of("result")
    assert (result["outcome"], evictions(cluster)) == ("failed", [])
    assert result["message"].startswith(WITHOUT_SIDECAR)


def test_a_pod_that_a_partition_keeps_since_is_not_evicted(cluster, start):
    """It would come back as it was, and is no success."""
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3))
    cluster.settle()
    set_ready(cluster, "x-2", False)
    held = cluster.fault(method="POST", path=r"/x-2/eviction", release=threading.Event())
    running = start(cluster, CONFIRM, *EVICT)
    assert held.reached.wait(20)
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 3}}
    cluster.change("StatefulSet", "shop", "x", {"spec": {"updateStrategy": rolling}})
    held.release.set()
    (result,) = running.finish().of("result")
    assert (result["outcome"], evictions(cluster)) == ("incomplete", ["x-2"])
    assert "is not to be replaced anymore; rerun this command (1 of 3" in result["message"]


def test_what_is_scaled_down_to_nothing_meanwhile_is_no_success(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=1))
    cluster.settle()
    held = cluster.fault(method="POST", path="/pods", release=threading.Event())
    running = start(cluster, CONFIRM, *EVICT)
    assert held.reached.wait(20)
    cluster.change("ReplicaSet", "shop", "x", {"spec": {"replicas": 0}})
    cluster.wait_for(lambda: not cluster.pods("shop"))
    held.release.set()
    (result,) = running.finish().of("result")
    assert evictions(cluster) == []
    assert (result["outcome"], result["code"]) == ("skipped", "nothing_to_replace"), result


def test_a_workload_that_is_deleted_after_its_first_pod_is_no_failure(cluster, start):
    on_delete = {"updateStrategy": {"type": "OnDelete"}}
    cluster.create("shop", workload("StatefulSet", "db", replicas=3, **on_delete))
    cluster.settle()
    upgrade(cluster)
    held = cluster.fault(method="POST", path="db-1/eviction", release=threading.Event())
    running = start(cluster, CONFIRM, DRIFTED, "--evict", "--include-statefulset")
    assert held.reached.wait(30)
    cluster.delete("StatefulSet", "shop", "db")
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/db": "skipped"})
