"""The stand-in for the kubelet goes through the same states as a real one, which are recorded in tests/clusters/recorded/node."""

from __future__ import annotations

import json

import pytest
from clusters.embedded.manifests import container, pod, pod_spec
from clusters.recorded.states import (
    CHANGES,
    DELETED,
    NEW,
    RESTORED,
    RUNNING,
    new_image,
    pod_with,
    state_of,
)
from support import RECORDED

STATES = json.loads((RECORDED / "node" / "states.json").read_text())
# Until a container is created, and while its probe of readiness says what that of startup has not
LEFT_OUT = ("ContainerCreating", "waiting PodInitializing", "ready, restarts")


@pytest.fixture
def web(cluster):
    cluster.kubelet.step, cluster.kubelet.back_off = 0.01, 0.02
    return cluster


class Watched:
    """The states that a Pod `web` goes through, without those that are left out."""

    def __init__(self, cluster, name: str = "istio-proxy") -> None:
        self.cluster, self.name, self.ids = cluster, name, []
        self.states: list[str] = []
        self.inner = cluster.store.on_change
        cluster.store.on_change = self.on_change

    def on_change(self, plural: str, obj: dict) -> None:
        self.inner(plural, obj)
        if plural == "pods" and "containerStatuses" in obj["status"]:
            state = state_of(obj, self.ids, self.name)
            if not self.states or self.states[-1] != state:
                self.states.append(state)

    def known(self) -> list[str]:
        return left(self.states)


def left(states: list[str]) -> list[str]:
    return [state for state in states if not any(words in state for words in LEFT_OUT)]


def create(cluster, make, probes: dict, tag: str) -> None:
    cluster.namespace("plain")
    cluster.create("plain", pod_with("web", make, probes, tag))


def set_image(cluster, make, tag: str) -> None:
    cluster.change("Pod", "plain", "web", new_image(make, tag))


@pytest.mark.parametrize("situation", CHANGES)
def test_a_new_image(web, situation):
    make, probes, tag = CHANGES[situation]
    watched = Watched(web)
    create(web, make, probes, "1.26.2")
    web.wait_for(lambda: RUNNING in watched.states)
    recorded = left(STATES[situation]["states"])
    expected = recorded[recorded.index(RUNNING) :]
    set_image(web, make, tag)
    if situation in RESTORED:
        web.kubelet.back_off = 60  # the image is back before the next attempt
        dead = next(n for n, state in enumerate(expected) if "container 2" in state)
        web.wait_for(lambda: len(after(watched)) == dead)
        set_image(web, make, "1.26.2")
    web.wait_for(lambda: len(after(watched)) >= len(expected))
    assert after(watched)[: len(expected)] == expected
    if situation == "never ready, native":
        set_image(web, make, "1.26.2")
        web.wait_for(lambda: web.get("Pod", "plain", "web")["status"]["observedGeneration"] == 3)
        assert after(watched) == expected


def after(watched: Watched) -> list[str]:
    """The states since the Pod was ready for the first time."""
    states = watched.known()
    return states[states.index(RUNNING) :]


@pytest.mark.parametrize("situation", NEW)
def test_a_new_pod(web, situation):
    watched = Watched(web)
    create(web, *NEW[situation])
    expected = left(STATES[situation]["states"])
    web.wait_for(lambda: len(watched.known()) >= len(expected))
    assert watched.known()[: len(expected)] == expected


@pytest.mark.parametrize(("situation", "image"), DELETED.items())
def test_a_pod_that_is_deleted(web, situation, image):
    """It stays as ready as it was, for its grace period."""
    watched = Watched(web, "app")
    web.namespace("plain")
    web.create("plain", pod("web", pod_spec(container("app", f"docker.io/example/{image}"))))
    web.wait_for(lambda: RUNNING in watched.states)
    web.delete("Pod", "plain", "web")
    web.wait_for(lambda: not web.get("Pod", "plain", "web"))
    recorded = [
        s for s in STATES[situation]["states"] if s.startswith(("Running Ready", "Succ", "Fail"))
    ]
    assert watched.states[watched.states.index(RUNNING) :] == recorded
