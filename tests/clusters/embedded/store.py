"""What the embedded cluster remembers: objects, their serialized form, and the events that watches read.

An object is serialized once a write, so that lists and watches cost nothing but joining bytes. Whoever holds an
object holds a snapshot: objects are replaced, never changed in place.
"""

from __future__ import annotations

import base64
import collections
import copy
import json
import queue
import threading
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from typing import NamedTuple


class Resource(NamedTuple):
    group: str  # "" is the core group
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ("status",)
    version: str = "v1"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The resource as error messages name it: pods, deployments.apps."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


RESOURCES = {
    resource.plural: resource
    for resource in (
        Resource("", "configmaps", "ConfigMap", short=("cm",), subresources=()),
        Resource("", "events", "Event", short=("ev",), subresources=()),
        Resource("", "limitranges", "LimitRange", short=("limits",), subresources=()),
        Resource(
            "",
            "namespaces",
            "Namespace",
            namespaced=False,
            short=("ns",),
            subresources=("finalize", "status"),
        ),
        Resource(
            "", "nodes", "Node", namespaced=False, short=("no",), subresources=("proxy", "status")
        ),
        Resource("", "pods", "Pod", short=("po",), subresources=("eviction", "status")),
        Resource(
            "",
            "replicationcontrollers",
            "ReplicationController",
            short=("rc",),
            subresources=("scale", "status"),
        ),
        Resource("", "resourcequotas", "ResourceQuota", short=("quota",)),
        Resource("", "secrets", "Secret", subresources=()),
        Resource("", "serviceaccounts", "ServiceAccount", short=("sa",), subresources=()),
        Resource("", "services", "Service", short=("svc",)),
        Resource("apps", "controllerrevisions", "ControllerRevision", subresources=()),
        Resource("apps", "daemonsets", "DaemonSet", short=("ds",)),
        Resource(
            "apps", "deployments", "Deployment", short=("deploy",), subresources=("scale", "status")
        ),
        Resource(
            "apps", "replicasets", "ReplicaSet", short=("rs",), subresources=("scale", "status")
        ),
        Resource(
            "apps", "statefulsets", "StatefulSet", short=("sts",), subresources=("scale", "status")
        ),
        Resource("batch", "cronjobs", "CronJob", short=("cj",)),
        Resource("batch", "jobs", "Job"),
        Resource("discovery.k8s.io", "endpointslices", "EndpointSlice", subresources=()),
        *(
            Resource(
                "rbac.authorization.k8s.io",
                f"{kind.lower()}s",
                kind,
                namespaced=not kind.startswith("Cluster"),
                subresources=(),
            )
            for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        ),
        Resource("policy", "poddisruptionbudgets", "PodDisruptionBudget", short=("pdb",)),
        # Custom resources: one that owns a ReplicaSet, one that owns Pods, one that owns a workload
        Resource("argoproj.io", "rollouts", "Rollout", version="v1alpha1"),
        Resource("apps.kruise.io", "clonesets", "CloneSet", version="v1alpha1"),
        Resource("monitoring.coreos.com", "prometheuses", "Prometheus"),
    )
}
PLURALS = {resource.kind: resource.plural for resource in RESOURCES.values()}

Key = tuple[str, str]  # namespace ("" where there is none), name


class Entry(NamedTuple):
    object: dict
    version: int
    json: bytes  # as in a list: without kind and apiVersion


class Event(NamedTuple):
    version: int
    type: str
    object: dict
    json: bytes


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def controller_of(obj: dict) -> dict | None:
    return next(
        (o for o in obj["metadata"].get("ownerReferences") or () if o.get("controller")), None
    )


def whole(resource: Resource, item: bytes) -> bytes:
    """An object as a GET answers it: with its kind and apiVersion, which list items lack."""
    return (
        b'{"kind":"%s","apiVersion":"%s",' % (resource.kind.encode(), resource.api_version.encode())
        + item[1:]
    )


class Store:
    """Every method is one transaction; hold `lock` to make several into one."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 1
        self.on_change: Callable[[str, dict], None] = lambda resource, obj: None
        self._tables: dict[str, dict[Key, Entry]] = {plural: {} for plural in RESOURCES}
        self._children: dict[str, dict[tuple[str, Key], None]] = collections.defaultdict(dict)
        self._events: dict[str, collections.deque[Event]] = {
            plural: collections.deque(maxlen=5000) for plural in RESOURCES
        }
        self._watches: dict[str, list[tuple[str | None, queue.SimpleQueue]]] = {
            plural: [] for plural in RESOURCES
        }
        self._pages: collections.OrderedDict[str, list[tuple[Key, Entry]]] = (
            collections.OrderedDict()
        )

    # Reading

    def get(self, resource: str, namespace: str, name: str) -> dict | None:
        entry = self.entry(resource, namespace, name)
        return entry and entry.object

    def entry(self, resource: str, namespace: str, name: str) -> Entry | None:
        return self._tables[resource].get((namespace, name))

    def list(self, resource: str, namespace: str | None = None) -> list[dict]:
        return [entry.object for _, entry in self.entries(resource, namespace)]

    def entries(self, resource: str, namespace: str | None = None) -> list[tuple[Key, Entry]]:
        with self.lock:
            table = self._tables[resource]
            return sorted(
                pair for pair in table.items() if namespace is None or pair[0][0] == namespace
            )

    def children(self, uid: str, resource: str) -> list[dict]:
        """The objects whose controller has this uid, by name."""
        with self.lock:
            keys = sorted(key for plural, key in self._children.get(uid, ()) if plural == resource)
            return [self._tables[resource][key].object for key in keys]

    # Lists in pages: the pages after the first show the state of the first.

    def keep_page(self, version: int, rest: list[tuple[Key, Entry]], namespaced: bool) -> str:
        """A continue token for the rest of a list."""
        (namespace, name), _ = rest[0]
        start = name if namespaced else f"{namespace}/{name}"
        text = continue_token(version, start)
        with self.lock:
            self._pages[text] = rest
            while len(self._pages) > 200:
                self._pages.popitem(last=False)
        return text

    def next_page(self, token: str) -> list[tuple[Key, Entry]] | None:
        """The rest of a list, or None where the token has expired. ValueError: never was a token."""
        if "rv" not in decoded_token(token):
            raise ValueError("no resource version in it")
        with self.lock:
            return self._pages.get(token)

    def expire_pages(self) -> None:
        with self.lock:
            self._pages.clear()

    # Writing

    def create(self, resource: str, obj: dict) -> dict:
        """KeyError where the name is taken."""
        with self.lock:
            obj = copy.deepcopy(obj)
            metadata = obj["metadata"]
            key = (metadata.get("namespace", ""), metadata["name"])
            if key in self._tables[resource]:
                raise KeyError(key)
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", now())
            return self._write(resource, key, obj, "ADDED")

    def update(self, resource: str, obj: dict) -> dict:
        with self.lock:
            key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
            old = self._tables[resource][key].object
            if obj == old:
                return old
            return self._write(resource, key, copy.deepcopy(obj), "MODIFIED")

    def change(self, resource: str, obj: dict, **fields: dict) -> dict:
        """Replaces top-level fields (status=..., spec=..., metadata=...) of an object as it is now."""
        with self.lock:
            current = self.get(
                resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
            )
            return self.update(resource, {**current, **fields}) if current else obj

    def delete(self, resource: str, namespace: str, name: str, uid: str | None = None) -> None:
        """Removes an object, if it is there and has that uid."""
        with self.lock:
            entry = self.entry(resource, namespace, name)
            if entry is None or uid not in (None, entry.object["metadata"]["uid"]):
                return
            del self._tables[resource][namespace, name]
            owner = controller_of(entry.object)
            if owner:
                self._children[owner["uid"]].pop((resource, (namespace, name)), None)
            self._tell(resource, copy.deepcopy(entry.object), "DELETED")

    def _write(self, resource: str, key: Key, obj: dict, change: str) -> dict:
        before = self._tables[resource].get(key)
        old_owner = before and controller_of(before.object)
        if old_owner:
            self._children[old_owner["uid"]].pop((resource, key), None)
        owner = controller_of(obj)
        if owner:
            self._children[owner["uid"]][(resource, key)] = None
        return self._tell(resource, obj, change, key)

    def _tell(self, resource: str, obj: dict, change: str, key: Key | None = None) -> dict:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        item = json.dumps(obj, separators=(",", ":")).encode()
        if key is not None:
            self._tables[resource][key] = Entry(obj, self.version, item)
        event = Event(self.version, change, obj, item)
        self._events[resource].append(event)
        for name, news in self._watches[resource]:
            if name in (None, obj["metadata"]["name"]):
                news.put(event)
        self.on_change(resource, obj)
        return obj

    # Watching

    def watch(
        self, resource: str, since: int | None, name: str | None
    ) -> tuple[list[Event], queue.SimpleQueue] | None:
        """What happened since a version and a queue of what happens from now on; None where that is too long ago.

        Without `since`: the state as it is, as ADDED events. With a name, only objects of that name.
        """
        with self.lock:
            log = self._events[resource]
            if since is None:
                missed = [
                    Event(e.version, "ADDED", e.object, e.json) for _, e in self.entries(resource)
                ]
            elif log.maxlen == len(log) and log[0].version > since + 1:
                return None
            else:
                missed = [event for event in log if event.version > since]
            news: queue.SimpleQueue = queue.SimpleQueue()
            self._watches[resource].append((name, news))
            return [
                event for event in missed if name in (None, event.object["metadata"]["name"])
            ], news

    def unwatch(self, resource: str, news: queue.SimpleQueue) -> None:
        with self.lock:
            self._watches[resource] = [
                pair for pair in self._watches[resource] if pair[1] is not news
            ]


def continue_token(version: int, start: str) -> str:
    """A continue token; the version -1 means the objects from `start` on as they are by then."""
    token = {"v": "meta.k8s.io/v1", "rv": version, "start": start, "id": uuid.uuid4().hex}
    return base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")


def decoded_token(token: str) -> dict:
    """What is in a continue token. ValueError if it is none."""
    padded = token + "=" * (-len(token) % 4)
    return json.loads(base64.urlsafe_b64decode(padded))
