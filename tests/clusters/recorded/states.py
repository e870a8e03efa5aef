"""The situations of node/states.json, and the states that a Pod goes through, in its words."""

from __future__ import annotations

from ..embedded.manifests import container, native, pod, pod_spec

READINESS = {"readinessProbe": {"httpGet": {"path": "/ready", "port": 15021}, "periodSeconds": 1}}
STARTUP = {"startupProbe": {**READINESS["readinessProbe"], "failureThreshold": 600}}
BOTH = {**READINESS, **STARTUP}
RUNNING = "Running Ready: running, ready, started, restarts 0, container 1"

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
DELETED = {"deleted": "app:1", "deleted, ignores SIGTERM": "app:1-ignoresterm"}


def pod_with(name: str, make, probes: dict, tag: str) -> dict:
    """A Pod with the sidecar istio-proxy, which `make` makes: `container` or `native`."""
    sidecar = make("istio-proxy", image_of(tag), **probes)
    own = container("app", "docker.io/example/app:1")
    spec = pod_spec(own, init=(sidecar,)) if make is native else pod_spec(own, sidecar)
    return pod(name, {**spec, "nodeName": "node-1"})


def new_image(make, tag: str) -> dict:
    """The patch of a Pod that changes the image of its sidecar."""
    key = "initContainers" if make is native else "containers"
    return {"spec": {key: [{"name": "istio-proxy", "image": image_of(tag)}]}}


def image_of(tag: str) -> str:
    return f"docker.io/istio/proxyv2:{tag}"


def state_of(pod: dict, ids: list[str], name: str) -> str:
    """A status as the recordings have it. `ids`: of the containers of that name, so far."""
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
