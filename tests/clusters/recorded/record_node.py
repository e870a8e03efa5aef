"""Record the states of Pods on a real node again, as node/states.json has them.

    PYTHONPATH=tests .venv/bin/python -m clusters.recorded.record_node [--containerd=2] FILE

It starts a node and needs what --node does. A situation ends with as many states as node/states.json has, or after
90 seconds. What differs from there is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..control_plane import NEWEST, Unavailable, build_containerd, build_control_plane
from ..control_plane.api import path_of
from ..control_plane.node import NAME, Node, NodeCluster
from ..control_plane.remote import Shared
from ..embedded.manifests import container, pod, pod_spec
from .states import CHANGES, DELETED, NEW, RESTORED, RUNNING, new_image, pod_with, state_of

STATES = Path(__file__).parent / "node" / "states.json"
SECONDS = 90
AT_ONCE = 5  # more would make the kubelet write several changes at a time
NAMESPACE = "plain"


class Pods:
    """The states of all Pods of the namespace, by name, from a watch."""

    def __init__(self, cluster: NodeCluster) -> None:
        self.cluster, self.states, self._ids = cluster, {}, {}
        self._changed = threading.Condition()
        path = path_of("pods", cluster.names.real(NAMESPACE))
        version = cluster.api.ask("GET", path)["metadata"]["resourceVersion"]
        threading.Thread(target=self._follow, args=(path, version), daemon=True).start()

    def _follow(self, path: str, version: str) -> None:
        for event in self.cluster.api.watch(path, version):
            found = event["object"]
            if event["type"] == "DELETED":
                self._add(found["metadata"]["name"], "gone")
            elif "containerStatuses" in found.get("status", {}):
                name = found["metadata"]["name"]
                spec = found["spec"]
                both = [*spec.get("initContainers", []), *spec["containers"]]
                has_sidecar = any(each["name"] == "istio-proxy" for each in both)
                which = "istio-proxy" if has_sidecar else "app"
                self._add(name, state_of(found, self._ids.setdefault(name, []), which))

    def _add(self, name: str, state: str) -> None:
        with self._changed:
            states = self.states.setdefault(name, [])
            if not states or states[-1] != state:
                states.append(state)
            self._changed.notify_all()

    def wait(self, name: str, is_reached: Callable[[list[str]], bool]) -> None:
        """Wait until the states of a Pod are what is asked for, or for SECONDS."""
        with self._changed:
            self._changed.wait_for(lambda: is_reached(self.states.get(name, [""])), SECONDS)


def record(pods: Pods, number: int, situation: str, count: int) -> list[str]:
    """Return the states of a Pod in a situation."""
    cluster, name = pods.cluster, f"web-{number}"
    if situation in NEW:
        cluster.create(NAMESPACE, pod_with(name, *NEW[situation]))
    elif situation in CHANGES:
        make, probes, tag = CHANGES[situation]
        tag = tag.replace("pull1", "pull15")  # the stand-in does not need as long
        cluster.create(NAMESPACE, pod_with(name, make, probes, "1.26.2"))
        pods.wait(name, lambda states: RUNNING in states)
        cluster.change("Pod", NAMESPACE, name, new_image(make, tag))
        if situation in RESTORED:
            pods.wait(name, lambda states: has_no_image(states[-1]))
            time.sleep(15)  # until the back-off of a container that ended is over
            cluster.change("Pod", NAMESPACE, name, new_image(make, "1.26.2"))
    else:
        image = f"docker.io/example/{DELETED[situation]}"
        spec = pod_spec(container("app", image), nodeName=NAME)
        cluster.create(NAMESPACE, pod(name, {**spec, "terminationGracePeriodSeconds": 8}))
        pods.wait(name, lambda states: RUNNING in states)
        cluster.delete("Pod", NAMESPACE, name)
    pods.wait(name, lambda states: len(states) >= count)
    states = pods.states.get(name, [])[:count]
    cluster.delete("Pod", NAMESPACE, name)
    return states


def has_no_image(state: str) -> bool:
    return "ImagePullBackOff" in state or "terminated Completed" in state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--containerd", choices=["2"])
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    try:
        program = build_control_plane(NEWEST, print)
        containerd = build_containerd(print) if options.containerd else None
    except Unavailable as missing:
        sys.exit(f"error: {missing}")
    recorded = json.loads(STATES.read_text())
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(Node(program, containerd=containerd))
        shared = Shared(node.folder, numbers=None)
        stack.callback(shared.stop)
        cluster = stack.enter_context(NodeCluster(shared))
        cluster.namespace(NAMESPACE)
        pods = Pods(cluster)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(
                lambda each: record(pods, each[0], each[1], len(recorded[each[1]]["states"])),
                enumerate(recorded),
            )
            states = dict(zip(recorded, found, strict=True))
        info = cluster.api.ask("GET", path_of("nodes", None, NAME))["status"]["nodeInfo"]
    print("kubelet", info["kubeletVersion"], info["containerRuntimeVersion"])
    for situation, before in recorded.items():
        now = states[situation]
        count = len(now)
        if now == before["states"][:count]:
            print(f"{situation}: as before, {count} of {len(before['states'])} states")
        else:
            print(f"{situation}:", *difflib.ndiff(before["states"], now), sep="\n  ")
    text = {name: {**recorded[name], "states": states[name]} for name in recorded}
    options.file.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
