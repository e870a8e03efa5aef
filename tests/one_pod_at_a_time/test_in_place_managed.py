"""--in-place: some containers are not to be changed by anybody else."""

from __future__ import annotations

import json

import pytest
from clusters.embedded.manifests import container, workload
from support import CONFIRM, DRIFTED, messages

pytestmark = pytest.mark.both
IN_PLACE = (DRIFTED, "--in-place", CONFIRM, "--sidecar-container-name=agent")


def managed(*names: str) -> dict[str, str]:
    """What OpenKruise 1.8.3 writes into a Pod."""
    entry = {"hash": "b", "sidecarSetName": "logs", "sidecarList": names, "updateTimestamp": "x"}
    return {"kruise.io/sidecarset-hash": json.dumps({"logs": entry})}


@pytest.fixture
def agents(cluster):
    """agents(annotations, **fields): a Deployment with an agent for which there is a newer image."""

    def create(annotations: dict, **fields):
        cluster.injector.container = container("agent", "agent:1", **fields)
        cluster.create("shop", workload("Deployment", "web", annotations=annotations, replicas=2))
        cluster.settle()
        cluster.injector.container |= {"image": "agent:2"}
        return cluster

    return create


def changes(cluster) -> int:
    return sum(r.method == "PATCH" and "/pods/" in r.path for r in cluster.server.requests)


def test_the_pods_of_a_sidecar_set_are_left_to_it(agents, run):
    cluster = agents(managed("other", "agent"))
    ended = run(cluster, *IN_PLACE)
    assert (ended.code, ended.skipped) == (0, {"Deployment shop/web": "changed_in_place"})
    assert changes(cluster) == 0


def test_each_pod_is_looked_at_before_it_is_changed(agents, run):
    cluster = agents({})
    first, second = (found["metadata"]["name"] for found in cluster.pods("shop"))
    for name in (first, second):
        note = {"metadata": {"annotations": managed("agent") if name == second else {"a": "b"}}}
        cluster.change("Pod", "shop", name, note)
    ended = run(cluster, *IN_PLACE)
    told = {**messages(ended), **{r["name"]: r["message"] for r in ended.of("skip")}}
    assert "managed by an OpenKruise SidecarSet" in told["web"]
    assert changes(cluster) == 0
