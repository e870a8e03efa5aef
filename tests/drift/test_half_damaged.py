"""Pods that lack the sidecar beside Pods that have it."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import workload
from support import (
    BOTH,
    CONFIRM,
    DRIFTED,
    cutoff,
    lines,
    verdicts,
)

pytestmark = pytest.mark.both

IMAGE = "docker.io/istio/proxyv2:1.26.2"


def sidecars(cluster, name: str) -> list[int]:
    """How many containers each Pod has."""
    return sorted(len(p["spec"]["containers"]) for p in cluster.pods("shop", name))


def damage(cluster, name: str) -> None:
    """Replace a Pod of a workload while the injector is away."""
    cluster.injector.state = "ignored"
    cluster.delete("Pod", "shop", cluster.pods("shop", name)[0]["metadata"]["name"])
    cluster.wait_for(lambda: sidecars(cluster, name) == [1, 2])
    cluster.settle()
    cluster.injector.state = "works"


@pytest.fixture
def damaged(cluster):
    """Deployment web and StatefulSet db; one Pod of two of each has no sidecar."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.create("shop", workload("Deployment", "well", replicas=2))
    cluster.create("shop", workload("StatefulSet", "db", replicas=2))
    cluster.settle()
    for name in ("web", "db"):
        damage(cluster, name)
    return cluster


def test_they_are_drifted_without_any_option(damaged, run):
    ended = run(damaged, DRIFTED, *BOTH)
    assert verdicts(ended) == {
        "shop/db": "drifted",
        "shop/web": "drifted",
        "shop/well": "up_to_date",
    }
    assert lines(ended, "web")[0].startswith("istio-proxy: None -> {")
    assert {r["name"]: r["pods"]["old"] for r in ended.of("plan")} == {"db": 1, "web": 1}
    done = run(damaged, DRIFTED, *BOTH, CONFIRM)
    assert done.outcomes == {"shop/db": "succeeded", "shop/web": "succeeded"}
    assert sidecars(damaged, "web") == sidecars(damaged, "db") == [2, 2]


def test_their_age_counts_only_if_a_cutoff_is_given(damaged, run):
    """The printed command has none, and so does not exclude them."""
    assert run(damaged, cutoff(hours=1), DRIFTED).planned == []
    dry = run(damaged, DRIFTED)
    (plan,) = dry.of("plan")
    assert (plan["name"], plan["pods"]["old"], plan["pods"]["total"]) == ("web", 1, 2)
    assert plan["started_before"] is None
    assert "--only-started-before" not in " ".join(dry.summary["command"])
    assert run(damaged, DRIFTED, CONFIRM).outcomes == {"shop/web": "succeeded"}
    assert sidecars(damaged, "web") == [2, 2]


def test_a_workload_of_which_no_pod_has_it_is_left_alone(cluster, run):
    cluster.injector.state = "ignored"
    cluster.create("shop", workload("Deployment", "plain", replicas=2))
    cluster.settle()
    cluster.injector.state = "works"
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    assert run(cluster).planned == ["shop/web"]
    assert verdicts(run(cluster, DRIFTED)) == {"shop/web": "up_to_date"}
