"""What the kubelet does when the image of a running container changes, and which updates of a Pod are allowed.

As recorded in tests/recorded/in-place.json: it kills the container, pulls the image, and starts it again.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable

from .admission import Refused
from .store import Store, now

MUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
LISTS = (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses"))
STEP = 0.02  # seconds
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
    """Acts on the images of Pods that have started; the image's name says how the container fares."""

    def __init__(
        self,
        store: Store,
        later: Callable[[float, Callable[[], None]], None],
        set_status: Callable[[str, dict, dict], None],
    ) -> None:
        self.store, self.later, self.set_status = store, later, set_status
        self.exit_code = 0  # of a container that is killed
        self.step = STEP
        self._acted: dict[tuple[str, str], str] = {}  # by UID and container: its image
        self._numbers = itertools.count(1)

    def sync(self, pod: dict) -> None:
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
