"""--max-unavailable: a ready Pod is evicted only while fewer Pods than that are unavailable."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import budget, replicated, workload
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import (
    APP,
    CONFIRM,
    EVICT,
    ON_DELETE,
    TEXT,
    Watch,
    a_ref,
    a_rollout,
    a_workload,
    cutoff,
    ended_error,
    evictions,
    let_ready,
    set_ready,
    uids,
)
from texts import WAITS_FOR_READY

pytestmark = pytest.mark.both


def four(cluster, kind: str = "ReplicaSet", **fields) -> None:
    make = workload if kind == "StatefulSet" else replicated
    cluster.create("shop", make(kind, "x", APP, replicas=4, **fields))
    cluster.settle()


def looks(requests) -> int:
    """How often Pods were listed."""
    return sum(r.method == "GET" and r.path.endswith("/pods") for r in requests)


@pytest.mark.parametrize(
    ("option", "most"),
    [("2", 2), ("50%", 2), ("74%", 2), ("75%", 3), ("10%", 1), ("9", 4), ("100%", 4)],
)
def test_so_many_are_evicted_at_once_and_never_more(cluster, start, option, most):
    four(cluster)
    before, watch = uids(cluster), Watch(cluster)
    cluster.kubelet.ready_after = 3600
    running = start(cluster, CONFIRM, *EVICT, f"--max-unavailable={option}")
    cluster.wait_for(lambda: watch.most >= most)
    full = len(cluster.server.requests)  # no Pod is taken from now on: the Pods are looked at twice
    cluster.wait_for(lambda: looks(cluster.server.requests[full:]) >= 2)
    let_ready(cluster)
    ended = running.finish()
    assert (ended.outcomes, watch.most) == ({"shop/x": "succeeded"}, most)
    assert len(evictions(cluster)) == 4
    assert set(uids(cluster)).isdisjoint(before)
    assert ended.of("plan")[0]["downtime"] == (most == 4)


def test_a_budget_that_allows_less_is_respected(cluster, run):
    four(cluster)
    cluster.create("shop", budget("x", maxUnavailable=1))
    watch = Watch(cluster)
    ended = run(cluster, CONFIRM, *EVICT, "--max-unavailable=3")
    assert (ended.outcomes, watch.most) == ({"shop/x": "succeeded"}, 1)


def test_an_ordered_stateful_set_goes_one_by_one(cluster, run):
    four(cluster, "StatefulSet", **ON_DELETE)
    watch = Watch(cluster)
    ended = run(cluster, CONFIRM, *EVICT, "--max-unavailable=4")
    assert (ended.outcomes, watch.most) == ({"shop/x": "succeeded"}, 1)
    assert evictions(cluster) == ["x-3", "x-2", "x-1", "x-0"]


def test_a_parallel_stateful_set_does_not(cluster, run):
    four(cluster, "StatefulSet", podManagementPolicy="Parallel", **ON_DELETE)
    watch = Watch(cluster)
    ended = run(cluster, CONFIRM, *EVICT, "--max-unavailable=2")
    assert (ended.outcomes, watch.most) == ({"shop/x": "succeeded"}, 2)


def broken(cluster, count: int) -> list[str]:
    """Let Pods of ReplicaSet x be unready, and too new to be replaced; return the names of all."""
    four(cluster)
    names = sorted(p["metadata"]["name"] for p in cluster.pods("shop"))
    for found in cluster.pods("shop"):
        name = found["metadata"]["name"]
        if name in names[:count]:
            set_ready(cluster, name, False)
        else:
            cluster.backdate(found, 7200)
    return names


@pytest.fixture
def hour() -> str:
    return cutoff(hours=1)


def test_what_was_unavailable_from_the_start_is_waited_for_until_the_timeout(cluster, run, hour):
    names = broken(cluster, 1)
    ended = run(cluster, CONFIRM, *EVICT, hour, "--timeout=2s")
    (result,) = ended.of("result")
    assert (result["outcome"], evictions(cluster)) == ("timed_out", [])
    assert f'{WAITS_FOR_READY}{names[0]}: "probe failed" (0' in result["message"]


def test_with_more_it_goes_on(cluster, run, hour):
    names = broken(cluster, 2)
    watch = Watch(cluster)
    few = run(cluster, CONFIRM, *EVICT, hour, "--max-unavailable=2", "--timeout=2s")
    assert (few.outcomes, evictions(cluster)) == ({"shop/x": "timed_out"}, [])
    run(cluster, CONFIRM, *EVICT, hour, "--max-unavailable=3")
    assert sorted(evictions(cluster)) == names[2:]
    assert watch.most == 3


def test_it_requires_evict(cluster, run):
    ended = run(cluster, "--max-unavailable=2")
    assert ended.code == 2
    assert "--max-unavailable requires --evict" in ended.stderr


def test_unready_pods_come_first_and_with_the_batch(cluster, run):
    four(cluster)
    names = sorted(p["metadata"]["name"] for p in cluster.pods("shop"))
    for name in names[2:]:
        set_ready(cluster, name, False)
    watch = Watch(cluster)
    ended = run(cluster, CONFIRM, *EVICT, TEXT, "--max-unavailable=2")
    assert "1 succeeded" in ended.stdout
    assert sorted(evictions(cluster)[:2]) == names[2:]
    assert watch.most == 2


# Without a cluster: which Pods a batch has, for any state of its owner


class Owner:
    """As much of the tool's Cluster as is asked for in one turn, and which Pods are evicted."""

    def __init__(self, tool, wanted: int, states: list[str], ordered: bool) -> None:
        policy = "OrderedReady" if ordered else "Parallel"
        self.obj = {
            "metadata": {"uid": "1"},
            "spec": {"replicas": wanted, "podManagementPolicy": policy, **ON_DELETE},
        }
        self.evicted: list[str] = []
        self.pods = [self.pod(tool, n, state) for n, state in enumerate(states) if state != "gone"]

    @staticmethod
    def pod(tool, number: int, state: str) -> dict:
        metadata = {
            "name": f"x-{number}",
            "namespace": "shop",
            "uid": str(number),
            "labels": {"statefulset.kubernetes.io/pod-name": f"x-{number}"},
        }
        if state == "terminating":
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        conditions = [{"type": "Ready", "status": str(state != "unready")}]
        return {"metadata": metadata, "spec": {}, "status": {"conditions": conditions}}

    def evict(self, pod: dict) -> None:
        self.evicted.append(pod["metadata"]["name"])


STATES = st.lists(
    st.sampled_from(["ready", "ready", "unready", "terminating", "gone"]), min_size=1, max_size=6
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(STATES, st.sets(st.integers(0, 5)), st.integers(1, 6), st.booleans())
@example(["ready", "ready", "unready"], {0, 1}, 2, False)  # a list that is read too early
def test_for_any_owner_the_rule_holds(tool, states, todo, most, ordered):
    cluster = Owner(tool, len(states), states, ordered)
    ref = a_ref(tool, "StatefulSet", "shop", "x", "apps")
    rollout = a_rollout(tool, cluster, "--evict", f"--max-unavailable={most}")
    eviction = tool.Eviction(rollout, a_workload(tool, ref=ref, method=tool.Method.EVICT), str)
    eviction.owner, eviction.owner_obj, eviction.pods = ref, cluster.obj, cluster.pods
    eviction.todo = set(map(str, todo))
    eviction.read = lambda: None
    eviction.old_among = lambda pods: pods

    def wait(seconds, until=bool):
        raise ended_error(tool, "INTERRUPTED", "")  # it would wait

    rollout.signals.wait = wait
    try:
        eviction.take_all()
        ended = "nothing left"
    except tool.EndedError:
        ended = "taken" if eviction.batch else "waits"

    limit = 1 if ordered else most
    by_name = {f"x-{n}": state for n, state in enumerate(states)}
    away = sum(state != "ready" for state in states)
    wanted = [n for n, s in by_name.items() if n[2:] in eviction.todo and s in ("ready", "unready")]
    taken = cluster.evicted
    assert set(taken) <= set(wanted)
    assert len(set(taken)) == len(taken)
    ready = [name for name in taken if by_name[name] == "ready"]
    assert len(ready if not ordered else taken) <= limit  # an unready one may always be taken
    assert not ready or away + len(ready) <= limit  # never more unavailable by its doing
    unready = [name for name in wanted if by_name[name] == "unready"]
    if ordered:
        lowest = next((n for n, s in enumerate(states) if s != "ready"), None)
        assert all(name == f"x-{lowest}" for name in taken if by_name[name] == "unready")
    elif unready:
        assert set(taken) >= set(unready)
    if not wanted:
        assert ended == "nothing left"
    elif taken:
        assert ended == "taken"
    else:
        assert ended == "waits" and away >= limit
