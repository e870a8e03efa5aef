"""A stand-in for the kubelets of all nodes, and which updates of a Pod are allowed."""

from __future__ import annotations

import copy
import hashlib
import itertools
import re
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
    """Starts and removes Pods and acts on new images, as the recordings of a real one do (tests/clusters/recorded/node).

    Words in an image's name say how its container fares: `crashing`, `exitsN` (after N seconds), `noprogram`,
    `neverready`, `broken` (it cannot be pulled), `pullN` (for N seconds), `leaking`, `needs-proxy`, `ignoresterm`,
    `once`. A native sidecar has passed its startup probe once it runs, unless its image is `neverready`.

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
        self.gone_after = 0.1  # seconds a terminating Pod lingers, ready
        self.crashes_every = 2.0  # seconds; containers whose image is "leaking"
        self.step = 0.02  # seconds from one state of a container to the next
        self.back_off = (
            2.0  # seconds until what crashed twice, or could not be pulled, is tried again
        )
        self.exit_code = 0  # of a container that is killed
        self.down: set[str] = set()  # nodes whose kubelet is not there
        self._under_way: set[tuple[str, str]] = set()  # (UID, step) of Pods with a timer
        self._acted: dict[tuple[str, str], str] = {}  # by UID and container: its image
        self._numbers = itertools.count(1)

    def sync(self, pod: dict) -> None:
        """Bring a Pod that has a node one step nearer to what is wanted."""
        uid = pod["metadata"]["uid"]
        if pod["spec"].get("nodeName") in self.down:
            return
        if is_terminating(pod):
            if (uid, "end") not in self._under_way:
                self._under_way.add((uid, "end"))
                self.later(self.gone_after, lambda: self._end_pod(pod))
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

    def _found(self, pod: dict) -> dict | None:
        """The Pod as it is now, if it is the same one."""
        found = self.store.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        return found if found and found["metadata"]["uid"] == pod["metadata"]["uid"] else None

    def _end_pod(self, pod: dict) -> None:
        """Its containers have ended: for a moment, the Pod has succeeded or failed."""
        found = self._found(pod)
        if found and found["spec"].get("nodeName") in self.down:
            self.later(self.step, lambda: self._end_pod(pod))
            return
        if found and "startTime" in found["status"]:
            self.set_status("pods", found, ended_status(found))
        self.later(self.step, lambda: self._remove(pod))

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
            if pod["spec"].get("nodeName") in self.down or self._waits_for_volume(pod):
                self.later(0.2, lambda: self.start(namespace, name))
                return
            self._under_way.discard((pod["metadata"]["uid"], "start"))
            self.set_status("pods", pod, started_status(pod))
            for container in pod["spec"]["containers"]:
                if "leaking" in container["image"]:
                    self._leak(pod, container["name"])
            for container in each_container(pod):
                act = self._first_act(pod, container)
                if act:
                    seconds = lifetime(container["image"]) or self.step
                    self._next(pod, container["name"], container["image"], act, seconds)

    def _waits_for_volume(self, pod: dict) -> bool:
        """Whether the Secret of a mounted volume is missing: no container is created, and an event says why."""
        used = {m["name"] for c in each_container(pod) for m in c.get("volumeMounts", ())}
        for volume in pod["spec"].get("volumes", ()):
            if volume["name"] not in used:
                continue
            secret = volume.get("secret", {}).get("secretName")
            namespace = pod["metadata"]["namespace"]
            if secret and not self.store.get("secrets", namespace, secret):
                if "startTime" not in pod["status"]:
                    self.set_status("pods", pod, creating_status(pod))
                    missing = f'secret "{secret}" not found'
                    text = f'MountVolume.SetUp failed for volume "{volume["name"]}" : {missing}'
                    self._tell(pod, "FailedMount", text)
                return True
        return False

    def _tell(self, pod: dict, reason: str, message: str, container: str = "") -> None:
        """Write an event about a Pod or one of its containers, of type Warning."""
        metadata = pod["metadata"]
        number = next(self._numbers)
        about = {
            "kind": "Pod",
            "apiVersion": "v1",
            **{k: metadata[k] for k in ("name", "namespace", "uid")},
        }
        if container:
            key = "initContainers" if is_init(pod, container) else "containers"
            about["fieldPath"] = f"spec.{key}{{{container}}}"
        self.store.create(
            "events",
            {
                "metadata": {
                    "name": f"{metadata['name']}.{number:016x}",
                    "namespace": metadata["namespace"],
                },
                "involvedObject": about,
                "type": "Warning",
                "reason": reason,
                "message": message,
                "source": {"component": "kubelet"},
                "firstTimestamp": now(),
                "lastTimestamp": now(),
                "count": 1,
            },
        )

    def stop_on(self, node: str) -> None:
        """The kubelet of a node is gone, and its Pods are known not to be ready: their status tells nothing more."""
        with self.store.lock:
            self.down.add(node)
            for pod in self.store.list("pods"):
                if pod["spec"].get("nodeName") == node and "startTime" in pod["status"]:
                    self._set_pod_ready(pod, False)

    def start_on(self, node: str) -> None:
        """The kubelet of a node is back."""
        with self.store.lock:
            self.down.discard(node)
            for pod in self.store.list("pods"):
                if pod["spec"].get("nodeName") == node:
                    if "startTime" in pod["status"]:
                        self._set_pod_ready(pod, True)
                    self.sync(self._found(pod))

    def _set_pod_ready(self, pod: dict, ready: bool) -> None:
        status = copy.deepcopy(pod["status"])
        if ready:
            set_conditions(status)
        for condition in status["conditions"]:
            if condition["type"] == "Ready" and not ready:
                condition |= {"status": "False", "lastTransitionTime": now()}
                condition.pop("reason", None), condition.pop("message", None)
        self.set_status("pods", pod, status)

    def _leak(self, pod: dict, container: str) -> None:
        """A container runs out of memory again and again."""
        metadata = pod["metadata"]

        def crash() -> None:
            if self._found(pod):
                self.crash(metadata["namespace"], metadata["name"], container)
                self._leak(pod, container)

        self.later(self.crashes_every, crash)

    def crash(
        self,
        namespace: str,
        name: str,
        container: str,
        reason: str = "OOMKilled",
        code: int = 137,
        message: str = "",
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
                    ended |= {
                        "reason": reason,
                        "exitCode": code,
                        **({"message": message} if message else {}),
                    }
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
            set_conditions(status)
            self.set_status("pods", pod, status)

    # A new image

    def _change_images(self, pod: dict) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        statuses = _statuses(pod["status"])
        for container in each_container(pod):
            name, image = container["name"], container["image"]
            if name not in statuses:
                continue
            acted = self._acted.setdefault((metadata["uid"], name), statuses[name]["image"])
            if acted == image:
                continue
            self._observe(pod)
            if is_native(pod, name) and not self._acts_on(spec, statuses[name]):
                continue  # once it has ended, it is started with this image, too
            self._acted[metadata["uid"], name] = image
            if is_init(pod, name) and not is_native(pod, name):
                continue
            self._next(pod, name, image, self._kill)

    def _acts_on(self, spec: dict, status: dict) -> bool:
        """Whether the image of a native sidecar counts: it is too old, or its startup probe has not passed."""
        node = self.store.get("nodes", "", spec["nodeName"])
        is_starting = "running" in status["state"] and not status["started"]
        return (
            node["status"]["nodeInfo"]["kubeletVersion"] != NO_NATIVE_SIDECARS and not is_starting
        )

    def _observe(self, pod: dict) -> None:
        """It writes the generation that it has seen before it acts."""
        current = self.store.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        status = copy.deepcopy(current["status"])
        generation = current["metadata"]["generation"]
        status["observedGeneration"] = generation
        for condition in status["conditions"]:
            condition["observedGeneration"] = generation
        self.set_status("pods", current, status)

    def _next(
        self, pod: dict, container: str, image: str, act: Callable, seconds: float | None = None
    ) -> None:
        """Take the next step with a container, unless the Pod is gone or the image is another one by then."""

        def step() -> None:
            with self.store.lock:
                found = self._found(pod)
                if not found or found["metadata"].get("deletionTimestamp"):
                    return
                if self._acted.get((pod["metadata"]["uid"], container), image) != image:
                    return
                if found["spec"]["nodeName"] in self.down:
                    self._next(pod, container, image, act, 0.2)
                    return
                status = copy.deepcopy(found["status"])
                following = act(found, status, _statuses(status)[container])
                set_conditions(status)
                self.set_status("pods", found, status)
                if following:
                    act_then, seconds_then = following
                    self._next(pod, container, image, act_then, seconds_then)

        self.later(self.step if seconds is None else seconds, step)

    # What happens to a container, one step after the other: each returns the next one, and in how many seconds

    def _first_act(self, pod: dict, container: dict) -> Callable | None:
        """What happens next to a container of a new Pod, whose first state is that of `container_status`."""
        image = container["image"]
        if "broken" in image:
            name = container["name"]
            self._tell(pod, "Failed", f'Failed to pull image "{image}": {not_found(image)}', name)
            return self._back_off_pull
        if "noprogram" in image:
            return self._start
        seconds = lifetime(image)
        return None if seconds is None else self._live

    def _kill(self, pod: dict, status: dict, found: dict) -> tuple | None:
        """The container was killed. While the new image is pulled, its status says nothing of that."""
        seconds = re.search(r"pull([0-9]+)", image_of(pod, found["name"]))
        if not seconds:
            return self._pull(pod, status, found)
        found["ready"] &= "readinessProbe" not in container_of(pod, found["name"])
        return self._pull, float(seconds[1])

    def _pull(self, pod: dict, status: dict, found: dict) -> tuple | None:
        """The new image is there, or is known not to be."""
        image = image_of(pod, found["name"])
        if "broken" not in image:
            return self._start(pod, status, found)
        text = f'Failed to pull image "{image}": {not_found(image)}'
        self._tell(pod, "Failed", text, found["name"])
        ended = (
            self._killed(found) if "running" in found["state"] else found["state"].get("terminated")
        )
        found |= {"ready": False, "started": False}
        if is_native(pod, found["name"]) and ended and not ended["exitCode"]:
            found["state"] = {"terminated": ended}  # it is passed over, and shows nothing
            return None
        found["lastState"] = {"terminated": ended} if ended else found["lastState"]
        found["state"] = {"waiting": {"reason": "ErrImagePull", "message": not_found(image)}}
        return self._back_off_pull, self.step

    def _back_off_pull(self, pod: dict, status: dict, found: dict) -> tuple:
        image = image_of(pod, found["name"])
        message = f'Back-off pulling image "{image}": ErrImagePull: {not_found(image)}'
        found["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
        return self._pull_again, self.back_off

    def _pull_again(self, pod: dict, status: dict, found: dict) -> tuple:
        message = not_found(image_of(pod, found["name"]))
        found["state"] = {"waiting": {"reason": "ErrImagePull", "message": message}}
        return self._back_off_pull, self.back_off

    def _killed(self, found: dict) -> dict:
        return {
            "exitCode": self.exit_code,
            "reason": "Error" if self.exit_code else "Completed",
            "startedAt": found["state"]["running"]["startedAt"],
            "finishedAt": now(),
            "containerID": found["containerID"],
        }

    def _start(self, pod: dict, status: dict, found: dict) -> tuple | None:
        """A container is started. At first, its status repeats what the probes of the last one said."""
        image = image_of(pod, found["name"])
        if "running" in found["state"]:
            found["lastState"] = {"terminated": self._killed(found)}
        elif "terminated" in found["state"]:
            found["lastState"] = {"terminated": found["state"]["terminated"]}
        has_run = bool(found.get("containerID"))
        found |= {
            "state": {"running": {"startedAt": now()}},
            "restartCount": found["restartCount"] + has_run,
            "image": image,
            "imageID": f"fake://{image}",
            "containerID": f"fake://{hashlib.sha1(str(next(self._numbers)).encode()).hexdigest()}",
        }
        if "noprogram" in image:
            return self._fail_to_start(found)
        if not has_run or not found["ready"]:
            return self._probe(pod, status, found)
        found["ready"] = "readinessProbe" not in container_of(pod, found["name"])
        return self._probe, self.step

    def _fail_to_start(self, found: dict) -> tuple:
        is_second = dig_reason(found["lastState"]) == "StartError"
        found |= not_started(found["containerID"])
        return self._wait_to_restart if is_second else self._start, self.step

    def _probe(self, pod: dict, status: dict, found: dict) -> tuple | None:
        """A container's own probes have not passed, if it has any; nor that of an image that says so."""
        image = image_of(pod, found["name"])
        probes = container_of(pod, found["name"]).keys() & {"startupProbe", "readinessProbe"}
        never, seconds = "neverready" in image, lifetime(image)
        is_starting = "startupProbe" in probes or (seconds == 0 and is_native(pod, found["name"]))
        is_ready = not (probes or never or seconds == 0)
        found |= {"ready": is_ready, "started": not is_starting}
        if is_ready:
            start_application(pod, status)
        if seconds is not None:
            return self._live, seconds or self.step
        if is_ready or never:
            return None
        return self._pass_startup if len(probes) == 2 else self._pass, self.step

    def _pass_startup(self, pod: dict, status: dict, found: dict) -> tuple:
        found["started"] = True
        return self._pass, self.step

    def _pass(self, pod: dict, status: dict, found: dict) -> None:
        found |= {"ready": True, "started": True}
        start_application(pod, status)

    # What ends

    def _live(self, pod: dict, status: dict, found: dict) -> tuple:
        """A container ends: for the first time it is restarted at once, then it backs off."""
        ended = completed(now(), found["containerID"]) | {"reason": "Error", "exitCode": 1}
        ended["message"] = "out of luck"  # as the images of the registry write
        is_second = dig_reason(found["lastState"]) == "Error"
        found |= {"state": {"terminated": ended}, "ready": False, "started": False}
        if not is_second:
            return self._start, self.step
        container, name = found["name"], pod["metadata"]["name"]
        text = f"Back-off restarting failed container {container} in pod {name}"
        self._tell(pod, "BackOff", text, container)
        return self._wait_to_restart, self.back_off

    def _wait_to_restart(self, pod: dict, status: dict, found: dict) -> tuple:
        """For most of the back-off the container is `terminated`, and waits at its end."""
        ended = found["state"].get("terminated")
        message = f"back-off 10s restarting failed container={found['name']}"
        found["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
        if ended:
            found["lastState"] = {"terminated": ended}
        return self._start, self.step if ended else self.back_off


def _statuses(status: dict) -> dict[str, dict]:
    return {found["name"]: found for _, key in LISTS for found in status.get(key, ())}


def each_container(pod: dict) -> list[dict]:
    return [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]


def container_of(pod: dict, name: str) -> dict:
    return next(c for c in each_container(pod) if c["name"] == name)


def image_of(pod: dict, name: str) -> str:
    return container_of(pod, name)["image"]


def is_init(pod: dict, name: str) -> bool:
    return any(c["name"] == name for c in pod["spec"].get("initContainers", ()))


def is_native(pod: dict, name: str) -> bool:
    return is_init(pod, name) and container_of(pod, name).get("restartPolicy") == "Always"


def lifetime(image: str) -> float | None:
    """How many seconds a container lives; None: it goes on."""
    seconds = re.search(r"exits([0-9]+)", image)
    return float(seconds[1]) if seconds else 0.0 if "crashing" in image else None


def dig_reason(state: dict) -> str:
    return state.get("terminated", {}).get("reason", "")


def not_started(container_id: str) -> dict:
    """The status of a container whose program does not exist."""
    message = 'exec: "/no/such/program": stat /no/such/program: no such file or directory'
    ended = completed(now(), container_id)
    ended |= {"reason": "StartError", "exitCode": 128, "message": message}
    return {
        "state": {"waiting": {"reason": "RunContainerError", "message": message}},
        "lastState": {"terminated": ended},
        "ready": False,
        "started": False,
    }


def not_found(image: str) -> str:
    return f'failed to pull and unpack image "{image}": not found'


def set_conditions(status: dict) -> None:
    """Make the Pod as ready as its containers are; it runs once all of them have been started."""
    statuses = _statuses(status).values()
    unready = [found["name"] for found in statuses if not found["ready"]]
    if status["phase"] == "Pending" and all(found.get("containerID") for found in statuses):
        status["phase"] = "Running"
    message = f"containers with unready status: [{' '.join(unready)}]"
    for condition in status["conditions"]:
        if condition["type"] in ("Ready", "ContainersReady"):
            value = str(not unready)
            if condition["status"] != value:
                condition |= {"status": value, "lastTransitionTime": now()}
            condition.pop("reason", None), condition.pop("message", None)
            if unready:
                condition |= {"reason": "ContainersNotReady", "message": message}


def blocks(container: dict) -> bool:
    """Whether a native sidecar has not started: the application waits for it."""
    image = container["image"]
    does_not_start = any(word in image for word in ("broken", "crashing", "noprogram"))
    return does_not_start or ("startupProbe" in container and "neverready" in image)


def start_application(pod: dict, status: dict) -> None:
    """Start the containers that have waited for a native sidecar, once all of them have started."""
    native = [
        c for c in pod["spec"].get("initContainers", ()) if c.get("restartPolicy") == "Always"
    ]
    if any(map(blocks, native)):
        return
    containers = pod["spec"]["containers"]
    for number, found in enumerate(status["containerStatuses"]):
        if found["state"].get("waiting", {}).get("reason") == "PodInitializing":
            status["containerStatuses"][number] = container_status(containers[number], now())


def started_status(pod: dict) -> dict:
    """The status that the kubelet writes; the image's name says how the container fares."""
    spec, stamp = pod["spec"], now()
    inits = spec.get("initContainers", ())
    native = [container_status(c, stamp) for c in inits]
    is_blocked = any(c.get("restartPolicy") == "Always" and blocks(c) for c in inits)
    make = waiting_status if is_blocked else container_status
    statuses = [make(c, stamp) for c in spec["containers"]]
    names = {c["name"] for c in each_container(pod)}
    for found in statuses:
        found["ready"] &= not ("needs-proxy" in found["image"] and "istio-proxy" not in names)
    for found, status in zip(inits, native, strict=True):
        if "running" in status["state"] and found.get("restartPolicy") != "Always":
            status["state"] = {"terminated": completed(stamp, status["containerID"])}
            status["started"] = False
    well = all(status["ready"] for status in native + statuses)
    ended = (
        well
        and spec["restartPolicy"] != "Always"
        and any("once" in c["image"] for c in spec["containers"])
    )
    status = pod_status(pod, stamp, native, statuses)
    set_conditions(status)
    if ended:
        status["phase"] = "Succeeded"
        for condition in status["conditions"]:
            if condition["type"] in ("Ready", "ContainersReady"):
                condition["status"] = "False"
    return status


def creating_status(pod: dict) -> dict:
    """The status of a Pod whose containers cannot be created yet."""
    stamp = now()
    inits = pod["spec"].get("initContainers", ())
    reason = "PodInitializing" if inits else "ContainerCreating"
    each = [
        [waiting_status(c, stamp, reason) for c in found]
        for found in (inits, pod["spec"]["containers"])
    ]
    status = pod_status(pod, stamp, *each)
    set_conditions(status)
    return status


def ended_status(pod: dict) -> dict:
    """The status of a Pod whose containers have ended; one that ignores SIGTERM was killed."""
    status = copy.deepcopy(pod["status"])
    for found in _statuses(status).values():
        if "running" in found["state"]:
            ended = completed(now(), found["containerID"])
            if "ignoresterm" in found["image"]:
                ended |= {"exitCode": 137, "reason": "Error"}
            found |= {"state": {"terminated": ended}, "ready": False, "started": False}
    ends = [found["state"].get("terminated", {}) for found in _statuses(status).values()]
    set_conditions(status)
    status["phase"] = "Failed" if any(end.get("exitCode") for end in ends) else "Succeeded"
    return status


def pod_status(pod: dict, stamp: str, native: list[dict], statuses: list[dict]) -> dict:
    address = f"10.244.0.{int(pod['metadata']['uid'][:2], 16)}"
    true = ("PodReadyToStartContainers", "Initialized", "PodScheduled")
    conditions = [
        {
            "type": kind,
            "observedGeneration": 1,
            "status": str(kind in true),
            "lastProbeTime": None,
            "lastTransitionTime": stamp,
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
        "phase": "Pending",
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


def waiting_status(container: dict, stamp: str, reason: str = "PodInitializing") -> dict:
    """The status of a container that has not been created."""
    return {
        "name": container["name"],
        "state": {"waiting": {"reason": reason}},
        "lastState": {},
        "ready": False,
        "restartCount": 0,
        "image": container["image"],
        "imageID": "",
        "started": False,
    }


def container_status(container: dict, stamp: str) -> dict:
    """The first status of a container: it runs, unless its image cannot be pulled."""
    image = container["image"]
    if "broken" in image:
        state = {"waiting": {"reason": "ErrImagePull", "message": not_found(image)}}
        return {**waiting_status(container, stamp), "state": state}
    container_id = f"fake://{hashlib.sha1(image.encode()).hexdigest()}"
    is_ready = lifetime(image) != 0 and "neverready" not in image
    is_native = container.get("restartPolicy") == "Always"
    status = {
        "name": container["name"],
        "state": {"running": {"startedAt": stamp}},
        "lastState": {},
        "ready": is_ready,
        "restartCount": 0,
        "image": image,
        "imageID": f"fake://{image}",
        "containerID": container_id,
        "started": is_ready or not (is_native and blocks(container)),
    }
    return {**status, **not_started(container_id)} if "noprogram" in image else status
