"""A pattern that names the containers of two injectors: each of them is missed."""

from __future__ import annotations

import copy

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, DRIFTED, TEXT, messages, patched, sidecar_table, verdicts
from texts import WITHOUT_SIDECAR

pytestmark = pytest.mark.both

AGENTS = "--sidecar-container-name=*-agent"


@pytest.fixture
def agents(cluster):
    """Deployments a, b and c with a vault-agent and an otel-agent, of which there is a newer one."""

    def inject(pod: dict) -> None:
        for name in cluster.agents:
            if name not in [found["name"] for found in pod["spec"]["containers"]]:
                pod["spec"]["containers"].append(container(name, f"{name}:{cluster.version}"))

    cluster.agents, cluster.version = ["vault-agent", "otel-agent"], 1
    cluster.injector.inject = inject
    for name in "abc":
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.settle()
    cluster.version = 2
    return cluster


def test_a_drifted_pod_stands_in_the_row_of_what_differs(agents, run):
    def inject(pod: dict) -> None:
        for name, version in (("vault-agent", 1), ("otel-agent", 2)):
            if name not in [found["name"] for found in pod["spec"]["containers"]]:
                pod["spec"]["containers"].append(container(name, f"{name}:{version}"))

    agents.injector.inject = inject
    ended = run(agents, DRIFTED, AGENTS, TEXT)
    assert sidecar_table(ended) == ["otel-agent 1 6 0 6 0"]


def test_one_that_goes_away_is_lost(agents, run, monkeypatch):
    call = type(agents.injector).__call__

    def goes_away(injector, pod, namespace, dry_run) -> None:
        if not dry_run:
            agents.agents = ["vault-agent"]
        call(injector, pod, namespace, dry_run)

    monkeypatch.setattr(type(agents.injector), "__call__", goes_away)
    ended = run(agents, DRIFTED, CONFIRM, AGENTS)
    assert ended.outcomes == {
        "shop/a": "lost_sidecar",
        "shop/b": "not_started",
        "shop/c": "not_started",
    }
    text = "2 of 2 new Pods without sidecar otel-agent; check the injector"
    assert messages(ended)["a"] == text
    assert (ended.code, patched(agents), ended.summary["pods"]["lost"]) == (1, ["a"], 2)
    again = run(agents, DRIFTED, "--fail-on-drift", AGENTS, TEXT)
    assert again.code == 1


def test_one_that_is_away_by_the_second_look_is_not_lost_by_a_patch(agents, run):
    """The plan and the worker have one rule."""
    agents.agents = ["vault-agent"]
    ended = run(agents, DRIFTED, CONFIRM, AGENTS)
    assert (ended.planned, patched(agents)) == ([], [])
    assert set(verdicts(ended).values()) == {"drifted"}
    without = run(agents, CONFIRM, AGENTS)
    text = f"{WITHOUT_SIDECAR} otel-agent; check the injector"
    assert messages(without)["a"].startswith(text)
    allowed = run(agents, DRIFTED, CONFIRM, AGENTS, "--allow-removal")
    assert set(allowed.outcomes.values()) == {"succeeded"}


def test_pods_that_lack_one_say_which(agents, run):
    agents.agents = ["vault-agent"]
    (first, _) = agents.pods("shop", "a")
    agents.delete("Pod", "shop", first["metadata"]["name"])
    uid = first["metadata"]["uid"]
    agents.wait_for(
        lambda: len([p for p in agents.pods("shop", "a") if p["metadata"]["uid"] != uid]) == 2
    )
    agents.settle()
    agents.agents = ["vault-agent", "otel-agent"]
    names = ("--sidecar-container-name=vault-agent", "--sidecar-container-name=otel-agent")
    assert sidecar_table(run(agents, DRIFTED, TEXT, *names)) == [
        "otel-agent 1 5 0 5 0",
        "otel-agent <none> 1 0 1 0",
    ]


def test_each_pod_is_counted_once(agents, run):
    """Also if only one of its sidecars drifted."""
    real = agents.injector.inject

    def inject(pod: dict) -> None:
        before = copy.deepcopy(pod["spec"]["containers"])
        real(pod)
        for found in pod["spec"]["containers"]:
            if found["name"] == "vault-agent" and found not in before:
                found["image"] = "vault-agent:1"

    agents.injector.inject = inject
    sidecars = {r["name"]: r for r in run(agents, DRIFTED, AGENTS).summary["sidecars"]}
    assert (sidecars["otel-agent"]["old"], sidecars["otel-agent"]["left"]) == (6, {})
    assert sidecars.keys() == {"otel-agent"}


def test_a_container_of_the_application_is_none(agents, run):
    agents.create("shop", workload("Deployment", "d", pod_spec(container("log-agent"))))
    agents.settle()
    ended = run(agents, DRIFTED, AGENTS, "deployment/d")
    assert verdicts(ended)["shop/d"] == "up_to_date"
