"""--in-place: some containers are not to be changed by anybody else."""

from __future__ import annotations

import json

import pytest
from cluster.manifests import container, workload
from support import CONFIRM, DRIFTED, messages

pytestmark = pytest.mark.both
IN_PLACE = (DRIFTED, "--in-place", CONFIRM, "--sidecar-container-name=agent")
RESTART_ALL = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]


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


def test_a_container_of_a_sidecar_set_is_left_to_it(agents, run):
    cluster = agents(managed("other", "agent"))
    ended = run(cluster, *IN_PLACE)
    reason = "drifted, but managed by SidecarSet logs; change its images there"
    assert (ended.code, ended.skipped) == (0, {"Deployment shop/web": reason})
    assert changes(cluster) == 0


@pytest.mark.parametrize(
    "value",
    [
        *("", "{", "[]", '{"a": 1}', '{"a": {"sidecarList": null}}', '{"a": {"sidecarList": 5}}'),
        *('{"a": {"sidecarList": [{"b": 1}]}}', '{"a": {"sidecarList": "agent"}}'),
    ],
)
def test_another_annotation_does_not_matter(agents, run, value):
    cluster = agents({"kruise.io/sidecarset-hash": value})
    assert run(cluster, *IN_PLACE).outcomes == {"shop/web": "succeeded"}


def test_a_container_that_no_sidecar_set_lists_is_changed(agents, run):
    cluster = agents(managed("other"))
    assert run(cluster, *IN_PLACE).outcomes == {"shop/web": "succeeded"}


def test_each_pod_is_looked_at_before_it_is_changed(agents, run):
    cluster = agents({})
    first, second = (found["metadata"]["name"] for found in cluster.pods("shop"))
    for name in (first, second):
        note = {"metadata": {"annotations": managed("agent") if name == second else {"a": "b"}}}
        cluster.change("Pod", "shop", name, note)
    ended = run(cluster, *IN_PLACE)
    told = {**messages(ended), **{r["name"]: r["reason"] for r in ended.of("skip")}}
    assert "managed by SidecarSet logs" in told["web"]
    assert changes(cluster) == 0


@pytest.mark.embedded("this field needs a feature gate")
def test_a_container_that_restarts_the_whole_pod_is_not_changed(agents, run):
    cluster = agents({}, restartPolicyRules=RESTART_ALL)
    reason = "drifted, but container agent restarts the whole Pod (RestartAllContainers)"
    assert run(cluster, *IN_PLACE).skipped == {"Deployment shop/web": reason}
