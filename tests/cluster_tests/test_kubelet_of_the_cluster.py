"""The stand-in for the kubelet goes through the same states as a real one, which are recorded in tests/clusters/recorded/node."""

from __future__ import annotations

import json

import pytest
from clusters.embedded.manifests import container, native, pod, pod_spec
from support import RECORDED

STATES = json.loads((RECORDED / "node" / "states.json").read_text())
READINESS = {"readinessProbe": {"httpGet": {"path": "/ready", "port": 15021}}}
STARTUP = {"startupProbe": {"httpGet": {"path": "/ready", "port": 15021}}}
BOTH = {**READINESS, **STARTUP}
RUNNING = "Running Ready: running, ready, started, restarts 0, container 1"
# Until a container is created, and while its probe of readiness says what that of startup has not
LEFT_OUT = ("ContainerCreating", "waiting PodInitializing", "ready, restarts")

# What is done: a new image for a running Pod (a second one puts the old image back), or a new Pod
CHANGES = {
    "a readiness probe": (container, READINESS, "1.27.0"),
    "a startup probe": (container, STARTUP, "1.27.0"),
    "probes of both kinds, native": (native, BOTH, "1.27.0"),
    "a slow pull": (container, READINESS, "1.27.0-pull1"),
    "no such image": (container, READINESS, "9.9.9-broken"),
    "no such image, native": (native, BOTH, "9.9.9-broken"),
    "never ready, native": (native, BOTH, "1.27.0-neverready"),
    "ends after some seconds": (container, READINESS, "1.27.0-neverready-exits1"),
    "ends after some seconds without probes, native": (native, {}, "1.27.0-exits1"),
}
RESTORED = ("no such image", "no such image, native")
NEW = {
    "a new Pod that crashes": (container, READINESS, "1.27.0-crashing"),
    "a new Pod without its image": (container, READINESS, "9.9.9-broken"),
    "a new Pod without the image of its native sidecar": (native, BOTH, "9.9.9-broken"),
    "a new Pod without its program, native": (native, BOTH, "1.27.0-noprogram"),
}


def state_of(pod: dict, ids: list[str], name: str) -> str:
    """A status as the recordings have it."""
    status, conditions = pod["status"], pod["status"]["conditions"]
    both = status.get("initContainerStatuses", []) + status["containerStatuses"]
    found = next(each for each in both if each["name"] == name)
    ((kind, inner),) = found["state"].items()
    text = " ".join(filter(None, (kind, inner.get("reason"), str(inner.get("exitCode", "")))))
    if last := found["lastState"].get("terminated"):
        text += f", last {last['reason']} {last['exitCode']}"
    number = "none"
    if identity := found.get("containerID"):
        if identity not in ids:
            ids.append(identity)
        number = str(ids.index(identity) + 1)
    text += ", ready" * found["ready"] + ", started" * found["started"]
    is_ready = any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)
    is_deleted = "deletionTimestamp" in pod["metadata"]
    words = [status["phase"], "Ready" * is_ready, "deleted" * is_deleted]
    number = f"restarts {found['restartCount']}, container {number}"
    return f"{' '.join(filter(None, words))}: {text}, {number}"


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
    sidecar = make("istio-proxy", f"docker.io/istio/proxyv2:{tag}", **probes)
    own = container("app", "docker.io/example/app:1")
    spec = pod_spec(own, init=(sidecar,)) if make is native else pod_spec(own, sidecar)
    cluster.namespace("plain")
    cluster.create("plain", pod("web", {**spec, "nodeName": "node-1"}))


def set_image(cluster, make, tag: str) -> None:
    key = "initContainers" if make is native else "containers"
    change = {"name": "istio-proxy", "image": f"docker.io/istio/proxyv2:{tag}"}
    cluster.change("Pod", "plain", "web", {"spec": {key: [change]}})


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


@pytest.mark.parametrize(
    ("situation", "image"),
    [("deleted", "app:1"), ("deleted, ignores SIGTERM", "ignoresterm:1")],
)
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
