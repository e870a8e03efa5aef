"""--evict: one Pod of each owner at a time, in which order, and what comes first."""

from __future__ import annotations

import itertools
import json
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from clusters.embedded import is_ready
from clusters.embedded.manifests import pod, replicated, workload
from support import (
    APP,
    CONFIRM,
    EVICT,
    ON_DELETE,
    OWNERS,
    a_ref,
    a_rollout,
    a_workload,
    cutoff,
    evictions,
    let_ready,
    set_ready,
    uids,
    upgrade,
    within,
)
from texts import WAITS_FOR_POD, WAITS_FOR_READY

pytestmark = pytest.mark.both


def test_stateful_sets_go_from_the_highest_ordinal(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=11, **ON_DELETE))
    cluster.settle()
    run(cluster, CONFIRM, *EVICT)
    assert evictions(cluster) == [f"x-{number}" for number in reversed(range(11))]


def test_unready_pods_go_first(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    sick = cluster.pods("shop")[-1]["metadata"]["name"]
    set_ready(cluster, sick, False)
    run(cluster, CONFIRM, *EVICT)
    assert evictions(cluster)[0] == sick
    assert len(evictions(cluster)) == 3


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_replacement_of_an_unready_pod_is_waited_for(cluster, run, replicas):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=replicas))
    cluster.settle()
    set_ready(cluster, cluster.pods("shop")[-1]["metadata"]["name"], False)
    cluster.kubelet.ready_after = 60
    ended = run(cluster, CONFIRM, *EVICT, within(cluster, 1))
    assert (ended.outcomes, len(evictions(cluster))) == ({"shop/x": "timed_out"}, 1)


def test_as_many_pods_must_be_ready_as_before(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT, within(cluster, 5), "--log-level=debug")
    running.wait_for_log(f"{WAITS_FOR_READY}x-")
    (first,) = evictions(cluster)
    other = next(p["metadata"]["name"] for p in cluster.pods("shop") if is_ready(p))
    set_ready(cluster, other, False)
    for found in cluster.pods("shop"):
        if "startTime" not in found["status"]:
            cluster.kubelet.start("shop", found["metadata"]["name"])
    ended = running.finish()
    assert (ended.outcomes, evictions(cluster)) == ({"shop/x": "timed_out"}, [first])
    (result,) = ended.of("result")
    assert f'still {WAITS_FOR_READY}{other}: "probe failed" (0 of 3' in result["message"]


def test_the_last_pod_is_gone_at_the_end(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.kubelet.gone_after = 1.0  # its replacement is ready long before
    before = uids(cluster)
    ended = run(cluster, CONFIRM, *EVICT)
    assert ended.outcomes == {"shop/x": "succeeded"}
    left = [p for p in cluster.store.list("pods") if p["status"]["phase"] == "Running"]
    assert {p["metadata"]["uid"] for p in left}.isdisjoint(before)


def test_an_ordered_stateful_set_begins_with_its_lowest_unready_pod(cluster, run):
    """Else its controller would not create the evicted Pod."""
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **ON_DELETE))
    cluster.settle()
    for name in ("x-0", "x-1"):
        set_ready(cluster, name, False)
    ended = run(cluster, CONFIRM, *EVICT)
    assert ended.outcomes == {"shop/x": "succeeded"}
    assert evictions(cluster) == ["x-0", "x-1", "x-2"]  # of unready ones, the lowest first


@pytest.mark.parametrize("unready", ["x-2", ""])
def test_an_ordered_stateful_set_whose_lower_pod_stays_unready_is_left(cluster, run, unready):
    """x-0 is not to be replaced; without it, the controller would not create another Pod."""
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **ON_DELETE))
    cluster.settle()
    for found in cluster.pods("shop")[1:]:
        cluster.backdate(found, 7200)
    set_ready(cluster, "x-0", False)
    if unready:
        set_ready(cluster, unready, False)
    ended = run(cluster, CONFIRM, *EVICT, cutoff(hours=1), "--max-unavailable=3", "--timeout=2s")
    (result,) = ended.of("result")
    assert (result["outcome"], evictions(cluster)) == ("timed_out", [])
    assert result["message"].startswith(f'{WAITS_FOR_READY}x-0: "probe failed" (0')


def test_an_ordered_stateful_set_that_is_scaled_to_0_has_enough_pods(tool):
    ref = a_ref(tool, "StatefulSet", "shop", "x", "apps")
    cluster = SimpleNamespace(now=lambda: datetime.now(timezone.utc))
    eviction = tool.Eviction(a_rollout(tool, cluster), a_workload(tool, ref=ref), print)
    spec = {"replicas": 0, "podManagementPolicy": "OrderedReady"}
    eviction.owner, eviction.owner_obj = ref, {"metadata": {}, "spec": spec}
    one = pod("x-0", APP)
    one["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert eviction.obstacle(one) == ""
    eviction.owner_obj["spec"]["replicas"] = 1
    assert eviction.obstacle(one) == WAITS_FOR_POD


def test_a_parallel_stateful_set_does_not_wait(cluster, run):
    fields = {"podManagementPolicy": "Parallel", **ON_DELETE}
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **fields))
    cluster.settle()
    for name in ("x-0", "x-1"):
        set_ready(cluster, name, False)
    ended = run(cluster, CONFIRM, *EVICT)
    assert ended.outcomes == {"shop/x": "succeeded"}


@pytest.mark.embedded("the audit log has no bodies of requests")
def test_each_pod_is_read_right_before_and_evicted_by_its_uid(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    before = uids(cluster)
    run(cluster, CONFIRM, *EVICT)
    own = [r for r in cluster.server.requests if "sidecar-rollout" in r.headers["user-agent"]]
    sent = []
    for previous, request in itertools.pairwise(own):
        if request.path.endswith("/eviction"):
            sent.append(json.loads(request.body)["deleteOptions"]["preconditions"]["uid"])
            assert (previous.method, previous.path) == ("GET", "/api/v1/namespaces/shop/pods")
    assert sorted(sent) == before


def test_a_pod_that_others_replace_is_not_evicted(cluster, start):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT)
    (first,) = cluster.wait_for(lambda: evictions(cluster))
    (other,) = [p for p in cluster.pods("shop") if p["metadata"]["name"] != first and is_ready(p)]
    cluster.delete("Pod", "shop", other["metadata"]["name"])
    cluster.wait_for(lambda: len(cluster.kubelet.starting()) == 2)
    let_ready(cluster)
    ended = running.finish()
    assert ended.outcomes == {"shop/x": "succeeded"}
    assert evictions(cluster) == [first]


def test_one_that_is_scaled_down_meanwhile_is_done_with_fewer(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT, "--timeout=20s")
    cluster.wait_for(lambda: any(not is_ready(p) for p in cluster.pods("shop")))
    cluster.kubelet.ready_after = 0.05
    cluster.change("ReplicaSet", "shop", "x", {"spec": {"replicas": 2}})
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert len(cluster.pods("shop")) == 2


def test_only_outdated_pods_are_evicted(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    upgrade(cluster)
    first, *kept = (p["metadata"]["name"] for p in cluster.pods("shop"))
    for name in kept:
        cluster.delete("Pod", "shop", name)
    cluster.settle()
    ended = run(cluster, CONFIRM, "--only-drifted", *EVICT)
    (plan,) = ended.of("plan")
    assert (plan["pods"]["old"], plan["pods"]["total"], evictions(cluster)) == (1, 3, [first])
