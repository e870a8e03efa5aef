"""The controllers of the embedded cluster: Deployment, ReplicaSet, StatefulSet, DaemonSet, and a scheduler.

One thread takes what has changed and brings it one step nearer to what is wanted, as the real controllers do; a
change that it makes comes back to it as the next step. Waiting is a timer, never a sleep.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import heapq
import itertools
import json
import math
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from . import admission, eviction, kubelet
from .eviction import is_terminating
from .store import PLURALS, RESOURCES, Store, controller_of, now

NO_DEADLINE = 2147483647  # of a Deployment: it has no condition Progressing
REVISION_HASH = "controller-revision-hash"
DAEMON_TOLERATIONS = [
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
    *(
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoSchedule"}
        for key in ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
    ),
]


def template_hash(template: dict) -> str:
    return hashlib.sha1(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def is_ready(pod: dict) -> bool:
    conditions = pod["status"].get("conditions", ())
    return not is_terminating(pod) and any(
        c["type"] == "Ready" and c["status"] == "True" for c in conditions
    )


def is_available(seconds: int, pod: dict) -> bool:
    """Whether a Pod that is ready has been for so many seconds, as its condition says."""
    (since,) = (
        c["lastTransitionTime"] for c in pod["status"]["conditions"] if c["type"] == "Ready"
    )
    passed = datetime.now(timezone.utc) - datetime.fromisoformat(since.replace("Z", "+00:00"))
    return not seconds or passed >= timedelta(seconds=seconds)


def has_ended(pod: dict) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def is_counted(pod: dict) -> bool:
    """Controllers replace Pods that are terminating or ended."""
    return not is_terminating(pod) and not has_ended(pod)


def amount(value: int | str, total: int, up: bool) -> int:
    """An absolute number or a percentage, as maxSurge and maxUnavailable have them."""
    if isinstance(value, int):
        return value
    return (math.ceil if up else math.floor)(int(value.rstrip("%")) * total / 100)


def condition(kind: str, status: bool | str, reason: str, message: str) -> dict:
    stamp = now()
    text = status if isinstance(status, str) else str(status)
    return {
        "type": kind,
        "status": text,
        "lastUpdateTime": stamp,
        "lastTransitionTime": stamp,
        "reason": reason,
        "message": message,
    }


def put_condition(conditions: list[dict], new: dict) -> list[dict]:
    """The list with one condition replaced, its times kept where it says the same as before."""
    old = next((c for c in conditions if c["type"] == new["type"]), None)
    if old and all(old[field] == new[field] for field in ("status", "reason", "message")):
        return conditions
    if old and old["status"] == new["status"]:
        new["lastTransitionTime"] = old["lastTransitionTime"]
    return [c for c in conditions if c["type"] != new["type"]] + [new]


class Controllers:
    def __init__(self, store: Store, injector: admission.Injector) -> None:
        self.store, self.injector = store, injector
        self._dirty: dict[tuple[str, str, str], None] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wake = threading.Condition(store.lock)
        self.kubelet = kubelet.Kubelet(store, self._later, self._set_status)
        self._stopped = False
        # Nodes with a taint that Pods of DaemonSets do not tolerate: those that run there go on.
        self.tainted: set[str] = set()
        # By workload: the field manager of its operator, and which annotations it keeps.
        self.operators: dict[tuple[str, str, str], tuple[str, Callable[[str], bool]]] = {}
        self._progress: dict[
            str, tuple[tuple, float]
        ] = {}  # uid of a Deployment: how far it was, and since when
        self._templates: dict[
            tuple[str, str], dict
        ] = {}  # uid of a StatefulSet and revision: its template
        self._steps = {
            "pods": self._step_pod,
            "replicasets": functools.partial(self._step_replicated, "replicasets"),
            "replicationcontrollers": functools.partial(
                self._step_replicated, "replicationcontrollers"
            ),
            "clonesets": functools.partial(self._step_replicated, "clonesets"),
            "poddisruptionbudgets": self._step_budget,
            "deployments": self._step_deployment,
            "statefulsets": self._step_stateful_set,
            "daemonsets": self._step_daemon_set,
            "services": self._step_service,
        }
        store.on_change = self._changed
        self._thread = threading.Thread(target=self._run, name="controllers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join()

    def _changed(self, resource: str, obj: dict) -> None:
        metadata = obj["metadata"]
        if resource in self._steps:
            self._dirty[resource, metadata["namespace"], metadata["name"]] = None
        owner = controller_of(obj)
        if owner and PLURALS.get(owner["kind"]) in self._steps:
            self._dirty[PLURALS[owner["kind"]], metadata["namespace"], owner["name"]] = None
        if resource == "pods":
            for plural in ("services", "poddisruptionbudgets"):
                for found in self.store.list(plural, metadata["namespace"]):
                    self._dirty[plural, metadata["namespace"], found["metadata"]["name"]] = None
        if resource == "nodes":
            for daemon_set in self.store.list("daemonsets"):
                self._changed("daemonsets", daemon_set)
        self._wake.notify()

    def _step_service(self, service: dict) -> None:
        """Keeps one EndpointSlice a Service: which Pods its selector selects, and which of them serve."""
        metadata, selector = service["metadata"], service["spec"].get("selector") or {}
        endpoints = [
            {
                "addresses": [pod["status"]["podIP"]],
                "conditions": {
                    "ready": is_ready(pod) or bool(service["spec"].get("publishNotReadyAddresses")),
                    "serving": is_ready({**pod, "metadata": {}}),
                    "terminating": is_terminating(pod),
                },
                "targetRef": {
                    "kind": "Pod",
                    "namespace": metadata["namespace"],
                    "name": pod["metadata"]["name"],
                },
            }
            for pod in self.store.list("pods", metadata["namespace"])
            if selector.items() <= pod["metadata"].get("labels", {}).items()
            and "podIP" in pod["status"]
        ]
        name = f"{metadata['name']}-slice"
        found = self.store.get("endpointslices", metadata["namespace"], name)
        if found:
            self.store.change("endpointslices", found, endpoints=endpoints)
        else:
            labels = {"kubernetes.io/service-name": metadata["name"]}
            inner = {"name": name, "namespace": metadata["namespace"], "labels": labels}
            slice_ = {"metadata": inner, "addressType": "IPv4", "endpoints": endpoints}
            self.store.create("endpointslices", slice_)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), act))

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._stopped:
                    return
                wait = self._timers[0][0] - time.monotonic() if self._timers else None
                if self._timers and wait <= 0:
                    heapq.heappop(self._timers)[2]()
                elif self._dirty:
                    key = next(iter(self._dirty))
                    del self._dirty[key]
                    obj = self.store.get(*key)
                    if obj:
                        self._steps[key[0]](obj)
                else:
                    self._wake.wait(wait)

    # Pods: what the scheduler does

    def _step_pod(self, pod: dict) -> None:
        if is_terminating(pod) or pod["spec"].get("nodeName"):
            self.kubelet.sync(pod)
        else:
            self._schedule(pod)

    def _schedule(self, pod: dict) -> None:
        spec = pod["spec"]
        if spec.get("nodeSelector"):
            message = (
                "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
            )
            unschedulable = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message,
            }
            self._set_status("pods", pod, {**pod["status"], "conditions": [unschedulable]})
            return
        nodes = self.store.list("nodes")
        node = (
            nodes[hash(pod["metadata"]["uid"]) % len(nodes)]["metadata"]["name"]
            if nodes
            else "node-1"
        )
        self.store.change("pods", pod, spec={**spec, "nodeName": node})

    def _set_status(self, plural: str, obj: dict, status: dict) -> None:
        current = self.store.get(plural, obj["metadata"]["namespace"], obj["metadata"]["name"])
        if current is None or current.get("status") == status:
            return
        metadata = dict(current["metadata"])
        managed = metadata.get("managedFields", [])
        if not any("subresource" in entry for entry in managed):
            manager = "kubelet" if plural == "pods" else "kube-controller-manager"
            entry = {
                "manager": manager,
                "operation": "Update",
                "apiVersion": RESOURCES[plural].api_version,
            }
            entry |= {
                "time": now(),
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:status": {}},
                "subresource": "status",
            }
            metadata["managedFields"] = [*managed, entry]
        self.store.update(plural, {**current, "metadata": metadata, "status": status})

    def _create_pod(
        self, owner: dict, kind: str, template: dict, metadata: dict, spec: dict
    ) -> str | None:
        """Creates a Pod of an owner; the message where it is refused."""
        template = copy.deepcopy(template)
        reference = {
            "apiVersion": RESOURCES[PLURALS[kind]].api_version,
            "kind": kind,
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        labels = {**template["metadata"].get("labels", {}), **metadata.pop("labels")}
        pod = {
            "metadata": {
                "generateName": f"{owner['metadata']['name']}-",
                "namespace": owner["metadata"]["namespace"],
                "labels": labels,
                **({"annotations": a} if (a := template["metadata"].get("annotations")) else {}),
                **metadata,
                "ownerReferences": [reference],
            },
            "spec": {**template["spec"], **spec},
        }
        try:
            pod = admission.admit_pod(self.store, self.injector, pod, dry_run=False)
        except admission.Refused as refused:
            self._note_failed_create(owner, kind, pod["metadata"].get("name"), refused.message)
            return refused.message
        stamp_manager(pod, "kube-controller-manager", "v1")
        self.store.create("pods", pod)
        return None

    def _note_failed_create(self, owner: dict, kind: str, pod: str | None, error: str) -> None:
        """Writes the event that says why; for StatefulSets and DaemonSets, nothing else does."""
        metadata = owner["metadata"]
        message = f"Error creating: {error}"
        if kind == "StatefulSet":
            message = f"Create Pod {pod} in StatefulSet {metadata['name']} failed error: {error}"
        name = f"{metadata['name']}.{hashlib.sha1(message.encode()).hexdigest()[:16]}"
        known = self.store.get("events", metadata["namespace"], name)
        event = known or {
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "kind": kind,
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "apiVersion": RESOURCES[PLURALS[kind]].api_version,
            },
            "reason": "FailedCreate",
            "message": message,
            "source": {"component": f"{kind.lower()}-controller"},
            "firstTimestamp": now(),
            "count": 0,
            "type": "Warning",
        }
        event = {**event, "count": event["count"] + 1, "lastTimestamp": now()}
        if known:
            self.store.update("events", event)
        else:
            self.store.create("events", event)

    def terminate(self, pod: dict) -> None:
        if is_terminating(pod):
            return
        grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
        gone = datetime.now(timezone.utc) + timedelta(seconds=grace)
        stamps = {
            "deletionTimestamp": gone.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "deletionGracePeriodSeconds": grace,
        }
        self.store.change("pods", pod, metadata={**pod["metadata"], **stamps})

    # ReplicaSets, ReplicationControllers, and a custom resource that owns Pods itself

    def _step_replicated(self, plural: str, owner: dict) -> None:
        kind = RESOURCES[plural].kind
        metadata = owner["metadata"]
        pods = self.store.children(metadata["uid"], "pods")
        counted = [pod for pod in pods if is_counted(pod)]
        wanted = owner["spec"]["replicas"]
        failure = None
        for _ in range(wanted - len(counted)):
            failure = self._create_pod(owner, kind, owner["spec"]["template"], {"labels": {}}, {})
            if failure:
                break
        if failure:
            self._later(1.0, lambda: self._touch(plural, metadata["namespace"], metadata["name"]))
        for pod in sorted(counted, key=is_ready)[: max(len(counted) - wanted, 0)]:
            self.terminate(pod)
        pods = self.store.children(metadata["uid"], "pods")
        counted = [pod for pod in pods if is_counted(pod)]
        ready = list(filter(is_ready, counted))
        long_enough = functools.partial(is_available, owner["spec"].get("minReadySeconds", 0))
        available = sum(map(long_enough, ready))
        if available < len(ready):
            self._later(1.0, lambda: self._touch(plural, metadata["namespace"], metadata["name"]))
        status = {
            "replicas": len(counted),
            **positive(
                fullyLabeledReplicas=len(counted),
                readyReplicas=len(ready),
                availableReplicas=available,
            ),
            "observedGeneration": metadata.get("generation", 1),
        }
        if plural == "replicasets":
            status["terminatingReplicas"] = sum(map(is_terminating, pods))
        if failure:
            status["conditions"] = [condition("ReplicaFailure", True, "FailedCreate", failure)]
        self._set_status(plural, owner, status)

    # PodDisruptionBudgets

    def _step_budget(self, budget: dict) -> None:
        self._set_status("poddisruptionbudgets", budget, eviction.budget_status(self.store, budget))

    # Operators: controllers of custom resources that keep the workloads they own as they want them

    def _is_reverted(self, plural: str, obj: dict) -> bool:
        """Whether an operator has just removed annotations from a Pod template."""
        key = (plural, obj["metadata"]["namespace"], obj["metadata"]["name"])
        manager, kept = self.operators.get(key, ("", None))
        annotations = obj["spec"]["template"]["metadata"].get("annotations", {})
        wanted = {k: v for k, v in annotations.items() if kept and kept(k)}
        if kept is None or wanted == annotations:
            return False
        changed = copy.deepcopy(obj)
        changed["spec"]["template"]["metadata"].pop("annotations")
        if wanted:  # the API server stores no empty ones, and so it is the template of before
            changed["spec"]["template"]["metadata"]["annotations"] = wanted
        changed["metadata"]["generation"] += 1
        admission.set_template_generation(plural, changed, obj)
        entry = {"manager": manager, "operation": "Update", "time": now()}
        entry |= {"apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}
        changed["metadata"]["managedFields"] = [*obj["metadata"]["managedFields"], entry]
        self.store.update(plural, changed)
        return True

    def _keep_revision(self, owner: dict, kind: str, hash_now: str) -> None:
        """Keeps a ControllerRevision per template; the current one has the highest revision."""
        metadata = owner["metadata"]
        name = f"{metadata['name']}-{hash_now}"
        known = self.store.children(metadata["uid"], "controllerrevisions")
        newest = max((found["revision"] for found in known), default=0)
        found = next((found for found in known if found["metadata"]["name"] == name), None)
        if found and found["revision"] == newest:
            return
        if found:
            self.store.change("controllerrevisions", found, revision=newest + 1)
            return
        label = "controller.kubernetes.io/hash" if kind == "StatefulSet" else REVISION_HASH
        reference = {
            "apiVersion": "apps/v1",
            "kind": kind,
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        labels = owner["spec"]["template"]["metadata"].get("labels", {})
        self.store.create(
            "controllerrevisions",
            {
                "metadata": {
                    "name": name,
                    "namespace": metadata["namespace"],
                    "labels": {**labels, label: hash_now},
                    "ownerReferences": [reference],
                },
                "data": {"spec": {"template": owner["spec"]["template"]}},
                "revision": newest + 1,
            },
        )

    def _touch(self, *key: str) -> None:
        self._dirty[key] = None

    # Deployments

    def _step_deployment(self, deployment: dict) -> None:
        if is_terminating(deployment) or self._is_reverted("deployments", deployment):
            return
        spec, uid = deployment["spec"], deployment["metadata"]["uid"]
        owned = self.store.children(uid, "replicasets")
        hash_now = template_hash(spec["template"])
        new = next(
            (r for r in owned if r["metadata"]["labels"]["pod-template-hash"] == hash_now), None
        )
        created = new is None and not spec.get("paused")
        if created:
            new = self._create_replica_set(deployment, hash_now, len(owned) + 1)
        old = [r for r in owned if new is None or r["metadata"]["uid"] != new["metadata"]["uid"]]
        if not spec.get("paused"):
            self._scale_step(spec, new, old)
        elif new or old:
            self._scale_paused(spec, [*old, *([new] if new else [])])
        self._set_deployment_status(deployment, new, created)

    def _scale_paused(self, spec: dict, owned: list[dict]) -> None:
        """A paused Deployment follows spec.replicas; of several ReplicaSets with Pods, the largest gets what the surge
        leaves (deployment/sync.go, scale: by proportion, which is the same for small numbers)."""
        active = [r for r in owned if r["spec"]["replicas"]]
        if len(active) < 2:
            self._scale((active or [max(owned, key=revision_of)])[0], spec["replicas"])
        elif spec["strategy"]["type"] == "RollingUpdate":
            surge = amount(spec["strategy"]["rollingUpdate"]["maxSurge"], spec["replicas"], up=True)
            allowed = spec["replicas"] + surge if spec["replicas"] else 0
            largest = max(active, key=lambda r: r["spec"]["replicas"])
            others = sum(r["spec"]["replicas"] for r in active if r is not largest)
            self._scale(largest, max(allowed - others, 0))

    def _create_replica_set(self, deployment: dict, hash_now: str, revision: int) -> dict:
        metadata, template = deployment["metadata"], copy.deepcopy(deployment["spec"]["template"])
        labels = template["metadata"]["labels"] = {
            **template["metadata"].get("labels", {}),
            "pod-template-hash": hash_now,
        }
        selector = copy.deepcopy(deployment["spec"]["selector"])
        selector["matchLabels"] = {**selector.get("matchLabels", {}), "pod-template-hash": hash_now}
        replica_set = {
            "metadata": {
                "name": f"{metadata['name']}-{hash_now}",
                "namespace": metadata["namespace"],
                "generation": 1,
                "labels": labels,
                "annotations": {
                    "deployment.kubernetes.io/desired-replicas": str(
                        deployment["spec"]["replicas"]
                    ),
                    "deployment.kubernetes.io/max-replicas": str(
                        deployment["spec"]["replicas"] + 1
                    ),
                    "deployment.kubernetes.io/revision": str(revision),
                },
                "ownerReferences": [
                    {
                        "apiVersion": "apps/v1",
                        "kind": "Deployment",
                        "name": metadata["name"],
                        "uid": metadata["uid"],
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
            "spec": {
                "replicas": 0,
                **positive(minReadySeconds=deployment["spec"].get("minReadySeconds", 0)),
                "selector": selector,
                "template": template,
            },
            "status": {"replicas": 0},
        }
        stamp_manager(replica_set, "kube-controller-manager", "apps/v1")
        annotations = {
            **metadata.get("annotations", {}),
            "deployment.kubernetes.io/revision": str(revision),
        }
        self.store.change(
            "deployments", deployment, metadata={**metadata, "annotations": annotations}
        )
        return self.store.create("replicasets", replica_set)

    def _scale_step(self, spec: dict, new: dict, old: list[dict]) -> None:
        """One step of a rollout: up within maxSurge, else down within maxUnavailable."""
        wanted = spec["replicas"]
        total = sum(r["spec"]["replicas"] for r in [new, *old])
        if spec["strategy"]["type"] == "Recreate":
            if any(r["spec"]["replicas"] for r in old):
                for replica_set in old:
                    self._scale(replica_set, 0)
            elif not any(self.store.children(r["metadata"]["uid"], "pods") for r in old):
                self._scale(new, wanted)
            return
        rolling = spec["strategy"]["rollingUpdate"]
        surge = amount(rolling["maxSurge"], wanted, up=True)
        unavailable = amount(rolling["maxUnavailable"], wanted, up=False) or (0 if surge else 1)
        missing = wanted - new["spec"]["replicas"]
        step = min(missing, wanted + surge - total) if missing > 0 else missing
        if step:
            self._scale(new, new["spec"]["replicas"] + step)
            return
        available = sum(r["status"].get("availableReplicas", 0) for r in [new, *old])
        not_yet = new["spec"]["replicas"] - new["status"].get("availableReplicas", 0)
        spare = total - (wanted - unavailable) - not_yet
        for replica_set in old:  # the unhealthy old ones first: they serve nobody
            dead = replica_set["spec"]["replicas"] - replica_set["status"].get(
                "availableReplicas", 0
            )
            step = min(dead, spare)
            if step > 0:
                self._scale(replica_set, replica_set["spec"]["replicas"] - step)
                return
        spare = min(spare, available - (wanted - unavailable))
        for replica_set in old:
            step = min(replica_set["spec"]["replicas"], spare)
            if step > 0:
                self._scale(replica_set, replica_set["spec"]["replicas"] - step)
                return

    def _scale(self, replica_set: dict, replicas: int) -> None:
        replicas = max(replicas, 0)
        if replica_set["spec"]["replicas"] != replicas:
            generation = replica_set["metadata"]["generation"] + 1
            metadata = {**replica_set["metadata"], "generation": generation}
            self.store.change(
                "replicasets",
                replica_set,
                metadata=metadata,
                spec={**replica_set["spec"], "replicas": replicas},
            )

    def _set_deployment_status(self, deployment: dict, new: dict | None, created: bool) -> None:
        uid, spec = deployment["metadata"]["uid"], deployment["spec"]
        owned = self.store.children(uid, "replicasets")
        new = next(
            (r for r in owned if new and r["metadata"]["uid"] == new["metadata"]["uid"]), None
        )
        available = sum(r["status"].get("availableReplicas", 0) for r in owned)
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            **positive(
                replicas=sum(r["status"]["replicas"] for r in owned),
                updatedReplicas=new["status"]["replicas"] if new else 0,
                readyReplicas=sum(r["status"].get("readyReplicas", 0) for r in owned),
                availableReplicas=available,
                unavailableReplicas=max(sum(r["spec"]["replicas"] for r in owned) - available, 0),
            ),
            "terminatingReplicas": sum(r["status"].get("terminatingReplicas", 0) for r in owned),
        }
        conditions = deployment.get("status", {}).get("conditions", [])
        rolling = spec["strategy"].get("rollingUpdate", {})
        fewest = spec["replicas"] - amount(
            rolling.get("maxUnavailable", 0), spec["replicas"], up=False
        )
        has, word = (True, "has") if available >= fewest else (False, "does not have")
        reason = f"MinimumReplicas{'Available' if has else 'Unavailable'}"
        availability = condition(
            "Available", has, reason, f"Deployment {word} minimum availability."
        )
        conditions = put_condition(conditions, availability)
        if spec["progressDeadlineSeconds"] != NO_DEADLINE:
            progressing = self._progressing(deployment, new, status, created)
            conditions = put_condition(conditions, progressing)
        failures = [
            c
            for r in owned
            for c in r["status"].get("conditions", ())
            if c["type"] == "ReplicaFailure"
        ]
        conditions = [c for c in conditions if c["type"] != "ReplicaFailure"] + failures[:1]
        self._set_status("deployments", deployment, {**status, "conditions": conditions})

    def _progressing(self, deployment: dict, new: dict | None, status: dict, created: bool) -> dict:
        spec, uid = deployment["spec"], deployment["metadata"]["uid"]
        if spec.get("paused"):
            return condition("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")
        name = new["metadata"]["name"]
        # A rollout that was complete stays so, whatever becomes of its Pods (progress.go, syncRolloutStatus)
        conditions = deployment.get("status", {}).get("conditions", ())
        current = next((c for c in conditions if c["type"] == "Progressing"), {})
        is_same = status.get("replicas", 0) == status.get("updatedReplicas", 0) and not created
        if is_same and current.get("reason") == "NewReplicaSetAvailable":
            return current
        wanted = spec["replicas"]
        done = all(
            status.get(f, 0) == wanted for f in ("replicas", "updatedReplicas", "availableReplicas")
        )
        if done:
            self._progress.pop(uid, None)
            what = f'ReplicaSet "{name}" has successfully progressed.'
            return condition("Progressing", True, "NewReplicaSetAvailable", what)
        state = (
            name,
            *(status.get(f, 0) for f in ("replicas", "updatedReplicas", "availableReplicas")),
        )
        known, since = self._progress.get(uid, (None, 0.0))
        if known != state:
            since = time.monotonic()
            self._progress[uid] = (state, since)
            key = (
                "deployments",
                deployment["metadata"]["namespace"],
                deployment["metadata"]["name"],
            )
            self._later(spec["progressDeadlineSeconds"] + 0.01, lambda: self._touch(*key))
        if time.monotonic() - since >= spec["progressDeadlineSeconds"]:
            what = f'ReplicaSet "{name}" has timed out progressing.'
            return condition("Progressing", False, "ProgressDeadlineExceeded", what)
        if created:
            return condition(
                "Progressing", True, "NewReplicaSetCreated", f'Created new replica set "{name}"'
            )
        return condition(
            "Progressing", True, "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.'
        )

    # StatefulSets

    def _step_stateful_set(self, stateful_set: dict) -> None:
        if is_terminating(stateful_set) or self._is_reverted("statefulsets", stateful_set):
            return
        metadata, spec = stateful_set["metadata"], stateful_set["spec"]
        update = f"{metadata['name']}-{template_hash(spec['template'])}"
        self._templates[metadata["uid"], update] = spec["template"]
        self._keep_revision(stateful_set, "StatefulSet", template_hash(spec["template"]))
        current = stateful_set.get("status", {}).get("currentRevision") or update
        rolling = spec["updateStrategy"].get("rollingUpdate", {})
        partition = (
            rolling.get("partition", 0) if spec["updateStrategy"]["type"] == "RollingUpdate" else 0
        )
        self._stateful_set_pods(stateful_set, update, current, partition)
        # Terminating Pods count, as long as they are ready.
        pods = [p for p in self.store.children(metadata["uid"], "pods") if not has_ended(p)]
        updated = [
            p
            for p in pods
            if p["metadata"]["labels"]["controller-revision-hash"] == update
            and not is_terminating(p)
        ]
        ready = sum(map(eviction.is_ready, pods))
        seconds = spec.get("minReadySeconds", 0)
        available = sum(is_available(seconds, p) for p in pods if eviction.is_ready(p))
        if available < ready:
            key = ("statefulsets", metadata["namespace"], metadata["name"])
            self._later(1.0, lambda: self._touch(*key))
        # With OnDelete as well since 1.37
        if len(updated) == ready == spec["replicas"] == sum(map(is_ready, pods)):
            current = update
        at_current = [
            p for p in pods if p["metadata"]["labels"]["controller-revision-hash"] == current
        ]
        status = {
            "observedGeneration": metadata["generation"],
            "replicas": len(pods),
            **positive(
                readyReplicas=ready, currentReplicas=len(at_current), updatedReplicas=len(updated)
            ),
            "currentRevision": current,
            "updateRevision": update,
            "collisionCount": 0,
            "availableReplicas": available,
        }
        self._set_status("statefulsets", stateful_set, status)

    def _stateful_set_pods(
        self, stateful_set: dict, update: str, current: str, partition: int
    ) -> None:
        """One step: in order, one Pod at a time, each waiting until the one before is available."""
        metadata, spec = stateful_set["metadata"], stateful_set["spec"]
        seconds = spec.get("minReadySeconds", 0)
        in_order = spec["podManagementPolicy"] == "OrderedReady"
        pods = {p["metadata"]["name"]: p for p in self.store.children(metadata["uid"], "pods")}
        start = spec.get("ordinals", {}).get("start", 0)  # the partition counts from it, too
        names = [f"{metadata['name']}-{start + number}" for number in range(spec["replicas"])]
        for number, name in enumerate(names):
            pod = pods.get(name)
            if pod is None:
                revision = current if number < partition else update
                self._create_stateful_pod(stateful_set, start + number, revision)
            if in_order and not (pod and is_ready(pod) and is_available(seconds, pod)):
                return
        for name in sorted(set(pods) - set(names), reverse=True):
            self.terminate(pods[name])
            return
        if spec["updateStrategy"]["type"] == "OnDelete":
            return
        for name in reversed(names[partition:]):
            pod = pods.get(name)
            if pod and pod["metadata"]["labels"]["controller-revision-hash"] != update:
                self.terminate(pod)
                return
            if not (pod and is_ready(pod) and is_available(seconds, pod)):
                return

    def _create_stateful_pod(self, stateful_set: dict, ordinal: int, revision: str) -> None:
        metadata, spec = stateful_set["metadata"], stateful_set["spec"]
        name = f"{metadata['name']}-{ordinal}"
        labels = {
            "apps.kubernetes.io/pod-index": str(ordinal),
            "controller-revision-hash": revision,
            "statefulset.kubernetes.io/pod-name": name,
        }
        template = self._templates.get((metadata["uid"], revision), spec["template"])
        claims = [
            {
                "name": c["metadata"]["name"],
                "persistentVolumeClaim": {"claimName": f"{c['metadata']['name']}-{name}"},
            }
            for c in spec.get("volumeClaimTemplates", ())
        ]
        more: dict = {"hostname": name, "subdomain": spec["serviceName"]}
        if claims:
            more["volumes"] = [*template["spec"].get("volumes", ()), *claims]
        failure = self._create_pod(
            stateful_set, "StatefulSet", template, {"name": name, "labels": labels}, more
        )
        if failure:
            self._later(
                1.0, lambda: self._touch("statefulsets", metadata["namespace"], metadata["name"])
            )

    # DaemonSets

    def _step_daemon_set(self, daemon_set: dict) -> None:
        if is_terminating(daemon_set) or self._is_reverted("daemonsets", daemon_set):
            return
        metadata, spec = daemon_set["metadata"], daemon_set["spec"]
        # Other than a StatefulSet's of the same name and template, whose revisions have the same names
        update = template_hash({**spec["template"], "kind": "DaemonSet"})
        self._keep_revision(daemon_set, "DaemonSet", update)
        nodes = [node["metadata"]["name"] for node in self.store.list("nodes")]
        nodes = [name for name in nodes if name not in self.tainted]
        pods = self.store.children(metadata["uid"], "pods")
        taken = {node_of(pod) for pod in pods}
        for node in nodes:
            if node not in taken and self._create_daemon_pod(daemon_set, node, update):
                self._later(
                    1.0, lambda: self._touch("daemonsets", metadata["namespace"], metadata["name"])
                )
                break
        pods = self.store.children(metadata["uid"], "pods")
        if spec["updateStrategy"]["type"] == "RollingUpdate":
            spare = amount(
                spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"], len(nodes), up=True
            )
            spare -= sum(not is_ready(pod) for pod in pods) + len(nodes) - len(pods)
            for pod in sorted(pods, key=is_ready):
                if pod["metadata"]["labels"][
                    "controller-revision-hash"
                ] == update or is_terminating(pod):
                    continue
                if not is_ready(pod):  # an old Pod that serves nobody costs nothing
                    self.terminate(pod)
                elif spare > 0:
                    self.terminate(pod)
                    spare -= 1
        pods = self.store.children(metadata["uid"], "pods")
        everywhere = [pod for pod in pods if not has_ended(pod)]  # terminating ones, too
        counted = [pod for pod in everywhere if node_of(pod) not in self.tainted]
        ready = sum(map(eviction.is_ready, counted))
        updated = [
            p
            for p in counted
            if p["metadata"]["labels"]["controller-revision-hash"] == update
            and not is_terminating(p)
        ]
        status = {
            "currentNumberScheduled": len(counted),
            "numberMisscheduled": len(everywhere) - len(counted),
            "desiredNumberScheduled": len(nodes),
            "numberReady": ready,
            "observedGeneration": metadata["generation"],
            **positive(
                updatedNumberScheduled=len(updated),
                numberAvailable=ready,
                numberUnavailable=len(nodes) - ready,
            ),
        }
        self._set_status("daemonsets", daemon_set, status)

    def _create_daemon_pod(self, daemon_set: dict, node: str, revision: str) -> str | None:
        generation = daemon_set["metadata"]["annotations"][admission.TEMPLATE_GENERATION]
        labels = {"controller-revision-hash": revision, "pod-template-generation": generation}
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        own = daemon_set["spec"]["template"]["spec"].get("tolerations", ())
        spec = {
            "affinity": {"nodeAffinity": required},
            "nodeName": node,
            "tolerations": copy.deepcopy([*own, *DAEMON_TOLERATIONS]),
        }
        return self._create_pod(
            daemon_set, "DaemonSet", daemon_set["spec"]["template"], {"labels": labels}, spec
        )


def revision_of(replica_set: dict) -> int:
    return int(replica_set["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


def node_of(pod: dict) -> str | None:
    return pod["spec"].get("nodeName")


def positive(**counts: int) -> dict:
    """Kubernetes leaves out counts that are 0."""
    return {field: count for field, count in counts.items() if count}


def stamp_manager(obj: dict, manager: str, api_version: str) -> None:
    fields = {f"f:{field}": {} for field in obj if field != "metadata"}
    stamp = {"manager": manager, "operation": "Update", "apiVersion": api_version, "time": now()}
    obj["metadata"]["managedFields"] = [{**stamp, "fieldsType": "FieldsV1", "fieldsV1": fields}]
