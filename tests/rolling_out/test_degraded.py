"""StatefulSets of which some Pods are not available: a restart would take another one."""

from __future__ import annotations

import pytest
from clusters.embedded import is_ready
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, NEW, patched

pytestmark = pytest.mark.both

STS = "--include-statefulset"
REASON = (
    "2 of 3 available; a restart would stop another Pod; use --evict, which replaces unready Pods "
    "first, or repair the unready Pod"
)


@pytest.fixture
def quorum(cluster):
    """StatefulSet db with three Pods, of which db-1 is not ready; all have an old sidecar."""
    given = workload("StatefulSet", "db", replicas=3, podManagementPolicy="Parallel")
    cluster.create("shop", given)
    cluster.settle()
    cluster.injector.container["image"] = NEW
    cluster.kubelet.set_ready("shop", "db-1", False)
    cluster.wait_for(
        lambda: cluster.get("StatefulSet", "shop", "db")["status"]["availableReplicas"] == 2
    )
    return cluster


@pytest.mark.parametrize("options", [[], [DRIFTED]])
def test_it_is_not_restarted(quorum, run, options):
    ended = run(quorum, CONFIRM, STS, *options)
    assert (ended.code, patched(quorum)) == (0, [])
    assert ended.skipped == {"StatefulSet shop/db": "degraded"}
    (reason,) = ended.reasons.values()
    assert ("2 of 3 available" in reason, "drifted, but " in reason) == (True, bool(options))


def test_its_pods_are_evicted_the_unready_one_first(quorum, run):
    ended = run(quorum, CONFIRM, STS, "--evict")
    assert [r["method"] for r in ended.of("plan")] == ["evict"]
    assert ended.outcomes == {"shop/db": "succeeded"}
    posted = [r.path.split("/") for r in quorum.server.requests if r.path.endswith("/eviction")]
    assert [parts[-2] for parts in posted] == ["db-1", "db-2", "db-0"]
    assert all(map(is_ready, quorum.pods("shop")))
    assert patched(quorum) == []


def test_one_that_is_away_altogether_is_restarted(quorum, run):
    for name in ("db-0", "db-2"):
        quorum.kubelet.set_ready("shop", name, False)
    quorum.wait_for(
        lambda: not quorum.get("StatefulSet", "shop", "db")["status"].get("availableReplicas")
    )
    assert run(quorum, CONFIRM, STS).outcomes == {"shop/db": "succeeded"}


def test_its_pods_below_a_partition_are_not_evicted(quorum, run):
    rolling = {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}}
    quorum.change("StatefulSet", "shop", "db", {"spec": rolling})
    ended = run(quorum, CONFIRM, STS, "--evict")
    assert ended.outcomes == {"shop/db": "succeeded"}
    posted = [r.path.split("/") for r in quorum.server.requests if r.path.endswith("/eviction")]
    assert [parts[-2] for parts in posted] == ["db-1", "db-2"]
