"""A stand-in for the kubelets of all nodes, and which updates of a Pod are allowed.

When the image of a running container changes, it kills the container, pulls the image, and starts it again, as
recorded in tests/recorded/in-place.json.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable

from .admission import Refused
from .eviction import is_terminating
from .store import Store, now

MUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
LISTS = (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses"))
READY_AFTER = "cluster.test/ready-after"  # a Pod's annotation: its seconds until it is ready
NO_NATIVE_SIDECARS = "v1.31.4"  # the version of a kubelet that ignores their images


def refuse_update(name: str, current: dict, changed: dict) -> None:
    """Raises what the API server answers to an update of a Pod that is not allowed."""

    def invalid(field: str, message: str, reason: str = "FieldValueForbidden") -> Refused:
        cause = {"reason": reason, "message": message, "field": field}
        details = {"name": name, "kind": "Pod", "causes": [cause]}
        return Refused(422, "Invalid", f'Pod "{name}" is invalid: {field}: {message}', details)

    before, after = copy.deepcopy(current["spec"]), copy.deepcopy(changed["spec"])
    for key, _ in LISTS:
        old, new = before.get(key, []), after.get(key, [])
        if len(old) != len(new):
            raise invalid(f"spec.{key}", "Forbidden: pod updates may not add or remove containers")
        for number, container in enumerate(new):
            image = container.pop("image", None)
            if not image:
                field = f"spec.{key}[{number}].image"
                raise invalid(field, "Required value", "FieldValueRequired")
            if image != image.strip():
                field = f"spec.{key}[{number}].image"
                message = f'Invalid value: "{image}": must not have leading or trailing whitespace'
                raise invalid(field, message, "FieldValueInvalid")
        for container in old:
            container.pop("image", None)
    if before != after:
        diff = f"@@ -148,7 +148,7 @@\n-{before['containers']}\n+{after['containers']}\n"
        raise invalid("spec", f"Forbidden: {MUTABLE}\n{diff}")


class Kubelet:
    """Starts and removes Pods and acts on new images; an image's name says how its container fares.

    `store` is read and written as the embedded cluster's Store, `later` calls a function with `store.lock` held.
    """

    def __init__(
        self,
        store: Store,
        later: Callable[[float, Callable[[], None]], None],
        set_status: Callable[[str, dict, dict], None],
    ) -> None:
        self.store, self.later, self.set_status = store, later, set_status
        self.ready_after = 0.05  # seconds from when a Pod has a node until it is ready
        self.gone_after = 0.1  # seconds a terminating Pod lingers
        self.crashes_every = 2.0  # seconds; containers whose image is "leaking"
        self.step = 0.02  # seconds from one state of a container to the next
        self.exit_code = 0  # of a container that is killed
        self._under_way: set[tuple[str, str]] = set()  # (UID, step) of Pods with a timer
        self._acted: dict[tuple[str, str], str] = {}  # by UID and container: its image
        self._numbers = itertools.count(1)

    def sync(self, pod: dict) -> None:
        """Bring a Pod that has a node one step nearer to what is wanted."""
        uid = pod["metadata"]["uid"]
        if is_terminating(pod):
            if (uid, "end") not in self._under_way:
                self._under_way.add((uid, "end"))
                self.later(self.gone_after, lambda: self._remove(pod))
        elif "startTime" in pod["status"]:
            self._change_images(pod)
        elif (uid, "start") not in self._under_way:
            self._under_way.add((uid, "start"))
            metadata = pod["metadata"]
            seconds = float(metadata.get("annotations", {}).get(READY_AFTER, self.ready_after))
            self.later(seconds, lambda: self.start(metadata["namespace"], metadata["name"]))

    def starting(self) -> list[dict]:
        """The Pods that become ready later, after the `ready_after` of when they were created."""
        with self.store.lock:
            pods = self.store.list("pods")
            return [pod for pod in pods if (pod["metadata"]["uid"], "start") in self._under_way]

    def _remove(self, pod: dict) -> None:
        metadata = pod["metadata"]
        self._under_way.discard((metadata["uid"], "start"))
        self.store.delete("pods", metadata["namespace"], metadata["name"], metadata["uid"])

    def start(self, namespace: str, name: str) -> None:
        """Start a Pod's containers, at once."""
        with self.store.lock:
            pod = self.store.get("pods", namespace, name)
            if not pod or is_terminating(pod):
                return
            self._under_way.discard((pod["metadata"]["uid"], "start"))
            self.set_status("pods", pod, started_status(pod))
            for container in pod["spec"]["containers"]:
                if "leaking" in container["image"]:
                    self._leak(pod, container["name"])

    def _leak(self, pod: dict, container: str) -> None:
        """A container runs out of memory again and again."""
        metadata = pod["metadata"]

        def crash() -> None:
            found = self.store.get("pods", metadata["namespace"], metadata["name"])
            if found and found["metadata"]["uid"] == metadata["uid"]:
                self.crash(metadata["namespace"], metadata["name"], container)
                self._leak(pod, container)

        self.later(self.crashes_every, crash)

    def crash(
        self, namespace: str, name: str, container: str, reason: str = "OOMKilled", code: int = 137
    ) -> None:
        """A container ends and the kubelet starts it again at once."""
        with self.store.lock:
            pod = self.store.get("pods", namespace, name)
            if not pod or is_terminating(pod):
                return
            status = copy.deepcopy(pod["status"])
            for found in status["containerStatuses"] + status.get("initContainerStatuses", []):
                if found["name"] == container:
                    ended = completed(now(), found["containerID"])
                    ended |= {"reason": reason, "exitCode": code}
                    found |= {"lastState": {"terminated": ended}}
                    found["restartCount"] += 1
                    found["containerID"] += f"-{found['restartCount']}"
            self.set_status("pods", pod, status)

    def set_ready(self, namespace: str, name: str, ready: bool) -> None:
        """The readiness probe of a Pod's first container has another result."""
        with self.store.lock:
            pod = self.store.get("pods", namespace, name)
            status = copy.deepcopy(pod["status"])
            status["containerStatuses"][0]["ready"] = ready
            message = f"containers with unready status: [{status['containerStatuses'][0]['name']}]"
            for found in status["conditions"]:
                if found["type"] in ("Ready", "ContainersReady"):
                    found |= {"status": str(ready), "lastTransitionTime": now()}
                    found.pop("reason", None), found.pop("message", None)
                    if not ready:
                        found |= {"reason": "ContainersNotReady", "message": message}
            self.set_status("pods", pod, status)

    def _change_images(self, pod: dict) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        statuses = _statuses(pod["status"])
        for key, _ in LISTS:
            for container in spec.get(key, ()):
                name = container["name"]
                is_init = key == "initContainers"
                is_native = is_init and container.get("restartPolicy") == "Always"
                acted = self._acted.setdefault(
                    (metadata["uid"], name), statuses.get(name, container)["image"]
                )
                if acted == container["image"]:
                    continue
                self._acted[metadata["uid"], name] = container["image"]
                self._observe(pod)
                if (is_native and not self._knows_native(spec)) or (is_init and not is_native):
                    continue
                self._next(pod, name, container["image"], self._kill)

    def _knows_native(self, spec: dict) -> bool:
        node = self.store.get("nodes", "", spec["nodeName"])
        return node["status"]["nodeInfo"]["kubeletVersion"] != NO_NATIVE_SIDECARS

    def _observe(self, pod: dict) -> None:
        """It writes the generation that it has seen before it acts."""
        current = self.store.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        status = copy.deepcopy(current["status"])
        generation = current["metadata"]["generation"]
        status["observedGeneration"] = generation
        for condition in status["conditions"]:
            condition["observedGeneration"] = generation
        self.set_status("pods", current, status)

    def _next(self, pod: dict, container: str, image: str, act: Callable) -> None:
        """Take the next step with a container, unless the Pod is gone or the image is another one by then."""
        metadata = pod["metadata"]

        def step() -> None:
            with self.store.lock:
                found = self.store.get("pods", metadata["namespace"], metadata["name"])
                if not found or found["metadata"]["uid"] != metadata["uid"]:
                    return
                if found["metadata"].get("deletionTimestamp"):
                    return
                if self._acted[metadata["uid"], container] != image:
                    return
                status = copy.deepcopy(found["status"])
                following = act(found, _statuses(status)[container], container, image)
                _set_ready(status)
                self.set_status("pods", found, status)
                if following:
                    self._next(pod, container, image, following)

        self.later(self.step, step)

    def _kill(self, pod: dict, status: dict, name: str, image: str) -> Callable:
        if "running" in status["state"]:
            ended = {
                "exitCode": self.exit_code,
                "reason": "Error" if self.exit_code else "Completed",
                "startedAt": status["state"]["running"]["startedAt"],
                "finishedAt": now(),
                "containerID": status["containerID"],
            }
            status |= {"state": {"terminated": ended}, "ready": False, "started": False}
        return self._pull

    def _pull(self, pod: dict, status: dict, name: str, image: str) -> Callable | None:
        ended = status["state"].get("terminated")
        is_native = any(c["name"] == name for c in pod["spec"].get("initContainers", ()))
        if "broken" in image:
            if is_native and ended and not ended["exitCode"]:
                return None  # it is passed over, and shows nothing
            message = f'failed to pull and unpack image "{image}": not found'
            status["state"] = {"waiting": {"reason": "ErrImagePull", "message": message}}
            status["lastState"] = {"terminated": ended} if ended else status["lastState"]
            return self._back_off
        if ended:
            status["lastState"] = {"terminated": ended}
        status |= {
            "state": {"running": {"startedAt": now()}},
            "restartCount": status["restartCount"] + bool(status["lastState"]),
            "image": image,
            "imageID": f"fake://{image}",
            "containerID": f"fake://{hashlib.sha1(str(next(self._numbers)).encode()).hexdigest()}",
            "ready": False,
            "started": True,
        }
        return self._settle

    def _back_off(self, pod: dict, status: dict, name: str, image: str) -> None:
        message = f'Back-off pulling image "{image}": ErrImagePull: not found'
        status["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": message}}

    def _settle(self, pod: dict, status: dict, name: str, image: str) -> None:
        if "crashing" in image:
            ended = {"exitCode": 1, "reason": "Error", "containerID": status["containerID"]}
            message = f"back-off 10s restarting failed container={name}"
            status["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
            status |= {"lastState": {"terminated": ended}, "started": False}
        elif "neverready" not in image:
            status["ready"] = True


def _statuses(status: dict) -> dict[str, dict]:
    return {found["name"]: found for _, key in LISTS for found in status.get(key, ())}


def _set_ready(status: dict) -> None:
    """Make the Pod as ready as its containers are."""
    unready = [found["name"] for found in _statuses(status).values() if not found["ready"]]
    message = f"containers with unready status: [{' '.join(unready)}]"
    for condition in status["conditions"]:
        if condition["type"] in ("Ready", "ContainersReady"):
            value = str(not unready)
            if condition["status"] != value:
                condition |= {"status": value, "lastTransitionTime": now()}
            condition.pop("reason", None), condition.pop("message", None)
            if unready:
                condition |= {"reason": "ContainersNotReady", "message": message}


def started_status(pod: dict) -> dict:
    """The status that the kubelet writes; the image's name says how the container fares."""
    spec, stamp = pod["spec"], now()
    statuses = [container_status(c, stamp) for c in spec["containers"]]
    names = {c["name"] for c in [*spec["containers"], *spec.get("initContainers", ())]}
    for found in statuses:
        found["ready"] &= not ("needs-proxy" in found["image"] and "istio-proxy" not in names)
    native = [container_status(c, stamp) for c in spec.get("initContainers", ())]
    for found, status in zip(spec.get("initContainers", ()), native, strict=True):
        if "running" in status["state"] and found.get("restartPolicy") != "Always":
            status["state"] = {"terminated": completed(stamp, status["containerID"])}
            status["started"] = False
    unready = [status["name"] for status in native + statuses if not status["ready"]]
    well = not unready
    ended = (
        well
        and spec["restartPolicy"] != "Always"
        and any("once" in c["image"] for c in spec["containers"])
    )
    ready = str(well and not ended)
    pulled = not any(
        "Pull" in status["state"].get("waiting", {}).get("reason", "")
        for status in native + statuses
    )
    message = f"containers with unready status: [{' '.join(unready)}]"
    why = {"reason": "ContainersNotReady", "message": message} if unready else {}
    address = f"10.244.0.{int(pod['metadata']['uid'][:2], 16)}"
    conditions = [
        {
            "type": kind,
            "observedGeneration": 1,
            "status": "True"
            if kind in ("PodReadyToStartContainers", "Initialized", "PodScheduled")
            else ready,
            "lastProbeTime": None,
            "lastTransitionTime": stamp,
            **(why if kind in ("Ready", "ContainersReady") else {}),
        }
        for kind in (
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled",
        )
    ]
    return {
        "observedGeneration": 1,
        "phase": "Succeeded" if ended else "Running" if pulled else "Pending",
        "conditions": conditions,
        "hostIP": "10.0.0.11",
        "hostIPs": [{"ip": "10.0.0.11"}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": stamp,
        **({"initContainerStatuses": native} if native else {}),
        "containerStatuses": statuses,
        "qosClass": pod["status"]["qosClass"],
    }


def completed(stamp: str, container_id: str) -> dict:
    return {
        "exitCode": 0,
        "reason": "Completed",
        "startedAt": stamp,
        "finishedAt": stamp,
        "containerID": container_id,
    }


def container_status(container: dict, stamp: str) -> dict:
    waiting = next((w for part, w in WAITING.items() if part in container["image"]), None)
    if waiting:
        message = waiting["message"].format(**container)
        waiting = {"reason": waiting["reason"], "message": message}
    return {
        "name": container["name"],
        "state": {"waiting": waiting} if waiting else {"running": {"startedAt": stamp}},
        "lastState": {},
        "ready": waiting is None,
        "restartCount": 0,
        "image": container["image"],
        "imageID": f"fake://{container['image']}",
        "containerID": f"fake://{hashlib.sha1(container['image'].encode()).hexdigest()}",
        "started": waiting is None,
    }


WAITING = {
    "broken": {
        "reason": "ImagePullBackOff",
        "message": 'Back-off pulling image "{image}": ErrImagePull: not found',
    },
    "crashing": {
        "reason": "CrashLoopBackOff",
        "message": "back-off 5m0s restarting failed container={name}",
    },
}
