"""Plays a history on the embedded cluster, and notes what was asked, what happened, and what the tool said."""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import hashlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType, SimpleNamespace

from clusters.embedded import PLURALS_OF_WORKLOADS, Cluster, is_ready, is_terminating
from clusters.embedded.admission import Refused
from clusters.embedded.eviction import evict
from clusters.embedded.manifests import (
    budget,
    container,
    pod,
    pod_spec,
    replicated,
    service,
    workload,
)
from clusters.embedded.server import Request
from clusters.embedded.store import PLURALS, controller_of
from support import KUBECTL, SCRIPT, Finished, run_here

from .cases import (
    API_EVENTS,
    GATE_EVENTS,
    INJECTOR_EVENTS,
    KUBELET_EVENTS,
    NAMESPACES,
    POD_EVENTS,
    RULE_EVENTS,
    SECRETS,
    SETUPS,
    SIGNALS,
    STRATEGIES,
    App,
    Event,
    History,
)

NEVER = {"example.com/rollout": "never"}
VARIES = ("START_TIME", "INSTANCE", "TICK")  # variables whose values are different in each Pod
TICK = 0.05  # seconds in which an injector writes the same time
CONSTANTS = {  # of the tool: waits for a cluster that is slower than this one
    "SETTLE": 2.0,
    "SOAK_EVERY": 0.2,
    "READY_FOR": 0.2,
    "ANSWERS_APART": 1.1 * TICK,
    "gc": SimpleNamespace(freeze=bool, set_threshold=bool),  # this process goes on
}
GATE_VALID_FOR = 0.3  # seconds
HOLDS_PENDING = ("paused", "OnDelete", "partition")  # strategies that do not roll out a template
NO_ROLLOUT = ("ReplicaSet", "ReplicationController", "CloneSet")

Version = tuple[tuple[str, str, str], ...]  # of each sidecar: name, position, container as JSON
Scene = dict[tuple[str, str, str], dict]  # (plural, namespace, name) -> object


def first_version(setup: str) -> Version:
    env = {
        "LEVEL": "info",
        "DB_PASSWORD": SECRETS[0],
        "TARGET": f"https://user:{SECRETS[1]}@example.com/",
    }
    found = []
    for name, position in SETUPS[setup]:
        variables = [{"name": key, "value": value} for key, value in env.items()]
        args = ["proxy", "--token", SECRETS[2]]
        one = container(name, f"example.com/{name}:1.26.2", env=variables, args=args)
        found.append((name, position, json.dumps(one)))
    return tuple(found)


def next_version(version: Version, change: str) -> Version:
    """What is injected after a change."""
    if change == "removal":
        return ()
    if change == "another container":
        return (
            *version,
            ("istio-extra", "regular", json.dumps(container("istio-extra", "extra:1"))),
        )
    if change == "position":
        (name, position, text), *others = version
        return ((name, "native" if position == "regular" else "regular", text), *others)
    found = []
    for name, position, text in version:
        one = json.loads(text)
        variables = {v["name"]: v["value"] for v in one.get("env", ())}
        if change == "image":
            one["image"] = one["image"].replace("1.26.2", "1.27.0")
        elif change == "image again":
            image, _, tag = one["image"].rpartition(":")
            minor = max(int(tag.partition(".")[2][:2] or 0) + 1, 28)
            one["image"] = f"{image}:1.{minor}.0"
        elif change == "environment":
            target = f"https://user:{SECRETS[1]}@example.org/"
            variables |= {"LEVEL": "debug", "DB_PASSWORD": SECRETS[3], "TARGET": target}
        elif change == "random value":
            variables["START_TIME"] = ""
        elif change == "value per Pod":
            variables["INSTANCE"] = ""
        elif change == "name of the Pod":
            variables["ID"] = ""
            # Where names vary, a variable that is added is not noticed: only common ones are compared
            one["image"] = one["image"].replace("1.26.2", "1.27.0")
        elif change == "time":
            variables["TICK"] = ""
        elif change == "random order":
            one["args"] += [f"--attribute={number}" for number in range(4)]
        one["env"] = [{"name": key, "value": value} for key, value in variables.items()]
        found.append((name, position, json.dumps(one)))
    return tuple(found)


@dataclass
class Entry:
    """What was asked, said or happened, in its order."""

    at: float  # monotonic
    what: str  # request, event, signal, result, record, injector
    data: dict
    scene: Scene = field(default_factory=dict)
    before: Scene = field(default_factory=dict)  # of a write: right before it was acted on


@dataclass
class Run:
    """One run of the tool."""

    options: list[str]
    confirm: bool
    began: int  # index of its first entry in the log
    ended: int = 0
    finished: Finished | None = None
    records: list[dict] = field(default_factory=list)  # as JSON, whatever it printed
    text: str = ""  # as text, whatever it printed
    seconds: float = 0.0
    left_behind: str = ""
    killed: bool = False
    by_process: bool = False  # not in this process: only what it printed is known

    def of(self, record: str) -> list[dict]:
        return [found for found in self.records if found["record"] == record]

    @property
    def summary(self) -> dict | None:
        return next(iter(self.of("summary")), None)


def classify(request: Request, listed: set[str]) -> str:
    """Which of REQUESTS this is; empty: none. `listed` are the paths at which the tool lists all Pods."""
    agent, path = request.headers.get("user-agent", ""), request.path
    if "kubectl" in agent:
        return "kubectl reads" if request.method == "GET" and "/namespaces/" in path else ""
    if request.method == "POST" and path.endswith("/eviction"):
        return "eviction"
    if request.method == "POST" and path.endswith("/pods"):
        return "dry run"
    if request.method == "POST" and path.endswith("/events"):
        return "Event"
    if request.method == "PATCH":
        return "image change" if "/pods/" in path else "patch"
    if request.method == "GET" and path.endswith("/pods"):
        is_all = path in listed and not {"fieldSelector", "labelSelector"} & request.query.keys()
        return "lists Pods" if is_all else "reads Pods of a workload"
    if request.method == "GET" and re.search("/(deployments|statefulsets|daemonsets)$", path):
        return "lists workloads"
    if request.method == "GET" and re.search("/(deployments|statefulsets|daemonsets)/", path):
        return "reads a workload"
    return ""


def is_write(request: Request) -> bool:
    is_question = request.path.endswith("reviews")
    return request.method != "GET" and "dryRun" not in request.query and not is_question


class World:
    """The cluster of a history, and what happens in it."""

    def __init__(self, history: History, cluster: Cluster) -> None:
        self.history, self.cluster = history, cluster
        self.log: list[Entry] = []
        self.version = first_version(history.setup)
        self.half: list[Version] = []  # two versions that answer in turns
        self.apps = {app.key: app for app in history.apps}
        self.waiting: list[Event] = []  # of the run
        self.counts: dict[str, int] = {}  # of requests of the run, by class
        self.running = threading.Event()
        self.process: subprocess.Popen | None = None
        self.lock = threading.Lock()
        self.chance = random.Random(history.seed)
        self.fired: list[Event] = []
        self.tokens = 0
        self.is_catching = False  # signals, which would end this process
        self.thread = threading.local()
        self.listed: set[str] = set()  # the paths at which the tool lists all Pods
        self.away = threading.Lock()
        self.absences: list[threading.Thread] = []  # of the API server
        self.folder = tempfile.mkdtemp(prefix="history-")
        self.is_drained_by_operator = False  # it denies evictions, and replaces the Pods itself
        self.tainted: set[str] = set()  # nodes
        self.has_other_scc = any(event.what == "another SCC" for event in history.events)
        cluster.injector.inject = self.inject
        if self.has_other_scc:
            cluster.injector.__class__ = constrained(type(cluster.injector))
        cluster.injector.hangs_for = 0.4
        cluster.kubelet.ready_after = cluster.kubelet.gone_after = 0.02

    # What is injected

    def inject(self, pod: dict) -> None:
        version = self.version
        if self.half:
            version = self.half[0]
            self.half = self.half[::-1]
        spec = pod["spec"]
        names = {c["name"] for c in [*spec["containers"], *spec.get("initContainers", [])]}
        for name, position, text in version:
            if name in names:
                continue
            one = json.loads(text)
            for variable in one.get("env", ()):
                if variable["name"] == "START_TIME":
                    variable["value"] = str(time.time_ns())
                if variable["name"] == "INSTANCE":
                    variable["value"] = seen_name(pod)
                if variable["name"] == "TICK":
                    variable["value"] = str(int(time.monotonic() / TICK))
                if variable["name"] == "ID":
                    variable["name"] = f"ID_{hashlib.sha256(seen_name(pod).encode()).hexdigest()}"
            if "--attribute=0" in one.get("args", ()):
                random.shuffle(one["args"])
            asked = pod["metadata"].get("annotations", {}).get("sidecar.istio.io/nativeSidecar")
            if position == "regular" and asked != "true":
                spec["containers"] = [*spec["containers"], one]
                continue
            if position != "init":
                one["restartPolicy"] = "Always"
            spec["initContainers"] = [*spec.get("initContainers", []), one]

    def gives(self, template: dict, version: Version | None = None) -> dict:
        """The sidecars that a Pod of a template gets now, in the form of `forms`; nothing if none."""
        labels = template["metadata"].get("labels", {})
        if labels.get("sidecar.istio.io/inject") == "false":
            return {}
        asked = template["metadata"].get("annotations", {}).get("sidecar.istio.io/nativeSidecar")
        found = {}
        for name, position, text in self.version if version is None else version:
            is_native = position == "native" or (position == "regular" and asked == "true")
            found[name] = form(json.loads(text), "native" if is_native else position)
        return found

    # How it begins

    def prepare(self) -> None:
        cluster, new = self.cluster, next_version(self.version, self.history.change)
        old = self.version
        self.renew_nodes()
        for namespace in NAMESPACES:
            cluster.namespace(namespace, inject=True)
        for app in self.history.apps:
            self.create(app)
        cluster.settle(30)
        for state, version, injected in (("new", new, True), ("lacking", old, False)):
            self.version = version
            cluster.injector.state = "works" if injected else "ignored"
            for pod_ in list(self.pods_in(state)):
                self.replace(pod_)
        cluster.injector.state, self.version = "works", old
        for app in self.history.apps:
            if app.pending and self.holds_pending(app):
                self.change_template(app, "pending")
        cluster.settle(30)
        for plural in ("pods", "deployments", "statefulsets", "daemonsets", "replicasets"):
            for obj in cluster.store.list(plural):
                cluster.backdate(obj, 3600 + self.chance.randrange(90000), plural)
        for pod_ in self.pods_in("unready"):
            if "containerStatuses" not in pod_["status"]:
                continue
            cluster.kubelet.set_ready(
                pod_["metadata"]["namespace"], pod_["metadata"]["name"], False
            )
        cluster.kubelet.gone_after = 1.5
        for pod_ in self.pods_in("terminating"):
            cluster.delete("Pod", pod_["metadata"]["namespace"], pod_["metadata"]["name"])
        self.rest(0.05)
        cluster.kubelet.gone_after = 0.02
        self.version = new

    def renew_nodes(self) -> None:
        """Let all nodes know native sidecars."""
        for node in self.cluster.store.list("nodes"):
            status = {"nodeInfo": {"kubeletVersion": "v1.34.1"}}
            self.cluster.store.change("nodes", node, status=status)

    def replace(self, pod_: dict) -> None:
        """Delete a Pod, and wait until there is another one."""
        cluster, metadata = self.cluster, pod_["metadata"]
        app = metadata["namespace"], metadata["labels"]["app"]
        count = len(cluster.pods(*app))
        cluster.delete("Pod", metadata["namespace"], metadata["name"])

        def is_replaced() -> bool:
            found = cluster.pods(*app)
            uids = {p["metadata"]["uid"] for p in found}
            is_there = len(found) >= count and metadata["uid"] not in uids
            return is_there and all("startTime" in p["status"] for p in found)

        cluster.wait_for(is_replaced)

    def rest(self, seconds: float) -> None:
        """Let the controllers act on what has just changed."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(AssertionError):
            self.cluster.wait_for(
                lambda: time.monotonic() > deadline and not self.cluster.controllers._dirty, 5
            )

    def create(self, app: App, again: bool = False) -> None:
        cluster = self.cluster
        image = "example.com/app:broken" if app.broken else "example.com/app:1"
        spec = pod_spec(container("app", image, env=[{"name": "MODE", "value": "first"}]))
        if app.kind in ("Job", "static", "bare"):
            if app.kind == "Job":
                cluster.create_job(app.namespace, app.name, spec)
            else:
                owner = ("v1", "Node", "node-1") if app.kind == "static" else None
                cluster.create(app.namespace, pod(app.name, spec, owner))
            return
        annotations = dict(NEVER) if app.annotation == "template" else {}
        if app.native:
            annotations["sidecar.istio.io/nativeSidecar"] = "true"
        fields = copy.deepcopy(STRATEGIES.get(app.kind, {}).get(app.strategy, {}))
        if app.kind != "DaemonSet":
            fields["replicas"] = app.replicas
        make = replicated if app.kind in NO_ROLLOUT else workload
        obj = make(app.kind, app.name, spec, annotations=annotations, **fields)
        if not app.injected:
            obj["spec"]["template"]["metadata"]["labels"] = {
                **obj["spec"]["template"]["metadata"]["labels"],
                "sidecar.istio.io/inject": "false",
            }
        if app.annotation == "workload":
            obj["metadata"]["annotations"] = dict(NEVER)
        if app.shared:
            labels = obj["spec"]["template"]["metadata"]["labels"]
            obj["spec"]["template"]["metadata"]["labels"] = {**labels, "tier": "shared"}
            if not cluster.get("Service", app.namespace, "shared"):
                cluster.create(app.namespace, service("shared", tier="shared"))
        paused = obj["spec"].pop("paused", False)
        cluster.create(app.namespace, obj)
        if app.service and not cluster.get("Service", app.namespace, app.name):
            cluster.create(app.namespace, service(app.name))
        if app.budget and not cluster.get("PodDisruptionBudget", app.namespace, app.name):
            least = {"maxUnavailable": 1} if app.budget == "allows" else {"minAvailable": 99}
            if app.kind in ("CloneSet", "DaemonSet"):  # which have no scale
                least = {"minAvailable": 99 if app.budget == "blocks" else 1}
            cluster.create(app.namespace, budget(app.name, **least))
        if paused and not again:
            cluster.settle(30)
            cluster.change(app.kind, app.namespace, app.name, {"spec": {"paused": True}})

    def holds_pending(self, app: App) -> bool:
        return app.kind in NO_ROLLOUT or app.strategy.startswith(HOLDS_PENDING)

    def change_template(self, app: App, value: str) -> None:
        patch = {"containers": [{"name": "app", "env": [{"name": "MODE", "value": value}]}]}
        self.cluster.change(
            app.kind, app.namespace, app.name, {"spec": {"template": {"spec": patch}}}
        )

    def pods_in(self, state: str) -> Iterator[dict]:
        for app in self.history.apps:
            found = self.cluster.pods(app.namespace, app.name)
            for number, wanted in enumerate(app.pods):
                if wanted == state and number < len(found):
                    yield found[number]

    # What is seen

    def watch(self) -> contextlib.AbstractContextManager:
        """Note each request of the tool, from now on."""
        self.cluster.server.after, self.cluster.server.begin = self.after, self.begin
        return contextlib.nullcontext()

    def restore(self, text: str) -> str:
        """What the tool said, with the names of the history."""
        return text

    def scene(self) -> Scene:
        store = self.cluster.store
        with store.lock:
            return {
                (plural, *key): entry.object
                for plural in ("pods", *PLURALS_OF_WORKLOADS)
                for key, entry in store._tables[plural].items()
            }

    def note(self, what: str, scene: bool = False, **data) -> None:
        entry = Entry(time.monotonic(), what, data, self.scene() if scene else {})
        entry.before, self.thread.before = getattr(self.thread, "before", {}), {}
        self.log.append(entry)

    def replace_denied(self, request: Request, code: int) -> None:
        """What an operator does with a Pod whose eviction it has denied."""
        if code == 403 and self.is_drained_by_operator and request.path.endswith("/eviction"):
            _, _, _, _, namespace, _, name, _ = request.path.split("/")
            with contextlib.suppress(KeyError, TypeError):  # it is gone by now
                self.cluster.delete("Pod", namespace, name)

    def begin(self, method: str, target: str, agent: str) -> None:
        """Called by the API server, before it acts on a request."""
        is_asked = "dryRun=All" in target or target.endswith("reviews")
        if method != "GET" and not is_asked:
            self.thread.before = self.scene()

    def after(self, request: Request, code: int, content: bytes) -> None:
        """Called by the API server, before it answers."""
        kind = classify(request, self.listed)
        self.replace_denied(request, code)
        self.note(
            "request",
            is_write(request) or kind in ("lists Pods", "reads Pods of a workload", "dry run"),
            kind=kind,
            request=request,
            code=code,
            content=content,
            state=self.cluster.injector.state,
            version=self.half or self.version,
        )
        if not kind or not self.running.is_set():
            return
        with self.lock:
            number = self.counts.get(kind, 0)
            self.counts[kind] = number + 1
            due = [e for e in self.waiting if e.request == kind and e.number == number]
            self.waiting = [e for e in self.waiting if e not in due]
        for event in due:
            self.happen(event)

    # What happens

    def happen(self, event: Event) -> None:
        if not self.running.is_set():
            return
        with contextlib.suppress(Refused, KeyError, AttributeError):
            touched = self.act(event)
            if touched is not None:
                self.fired.append(event)
                self.note("event", event=event, touched=touched)

    def act(self, event: Event) -> str | None:
        """Let it happen; return which workload is concerned (`*`: all), or None if nothing happened."""
        what = event.what
        if what in POD_EVENTS:
            return self.act_on_pod(what, event.target)
        if what in INJECTOR_EVENTS:
            return self.act_on_injector(what)
        if what in API_EVENTS:
            return self.act_on_api(what)
        if what in RULE_EVENTS:
            return self.act_on_rule(what, event.target)
        if what in SIGNALS or what == "kill -9":
            return self.send(what)
        if what in GATE_EVENTS:
            return self.close_gate()
        if what in KUBELET_EVENTS:
            self.cluster.kubelet.ready_after = (
                float(self.history.value("--timeout", "4s")[:-1]) + 0.3
            )
            return "*"
        return self.act_on_workload(what, event.target)

    def act_on_pod(self, what: str, target: int) -> str | None:
        cluster = self.cluster
        with cluster.store.lock:
            found = [p for name in NAMESPACES for p in cluster.pods(name)]
            found = [p for p in found if "containerStatuses" in p["status"]]
            if not found:
                return None
            chosen = found[target % len(found)]
            metadata = chosen["metadata"]
            place = metadata["namespace"], metadata["name"]
            if what == "Pod dies":
                cluster.delete("Pod", *place)
            elif what == "Pod is evicted":
                self.evict(chosen)
            elif what == "Pod crashes":
                cluster.kubelet.crash(*place, "app")
            elif what == "Pod becomes unready":
                cluster.kubelet.set_ready(*place, False)
            else:
                cluster.kubelet.set_ready(*place, True)
        return self.restore(f"{metadata['namespace']}/{metadata.get('labels', {}).get('app')}")

    def evict(self, pod_: dict) -> None:
        evict(self.cluster.store, self.cluster.controllers.terminate, pod_, {}, False)

    def act_on_workload(self, what: str, target: int) -> str | None:
        cluster = self.cluster
        with cluster.store.lock:
            found = [a for a in self.history.apps if a.kind in PLURALS and a.kind != "Job"]
            found = [a for a in found if cluster.get(a.kind, a.namespace, a.name)]
            if what == "undone":
                found = [a for a in found if self.stamps(a)]
            if what in ("paused", "resumed"):
                wanted = what == "resumed"
                found = [a for a in found if a.kind == "Deployment" and self.is_paused(a) == wanted]
            if not found:
                return None
            app = found[target % len(found)]
            obj = cluster.get(app.kind, app.namespace, app.name)
            replicas = obj["spec"].get("replicas", 0)
            spec: dict = {}
            if what in ("scaled up", "scaled down", "owner applies"):
                if app.kind == "DaemonSet" or (what == "scaled down" and not replicas):
                    return None
                spec = {"replicas": replicas + (-1 if what == "scaled down" else 1)}
            elif what == "undone":
                ours = dict.fromkeys(self.stamps(app))
                spec = {"template": {"metadata": {"annotations": ours}}}
            elif what in ("paused", "resumed"):
                spec = {"paused": what == "paused"}
            elif what == "restarted":
                stamp = {"kubectl.kubernetes.io/restartedAt": datetime.now().isoformat()}
                spec = {"template": {"metadata": {"annotations": stamp}}}
            elif what == "template changed":
                self.change_template(app, f"changed {target}")
                return app.key
            else:
                cluster.delete(app.kind, app.namespace, app.name)
                if what == "recreated":
                    self.create(app, again=True)
                return app.key
            patch = {"spec": spec}
            if what == "owner applies":  # labels of its own, and not those of its template
                patch["metadata"] = {"labels": {"applied": str(target)}}
            cluster.change(app.kind, app.namespace, app.name, patch)
            return app.key

    def stamps(self, app: App) -> list[str]:
        """The annotations that the tool has set on a template."""
        obj = self.cluster.get(app.kind, app.namespace, app.name)
        annotations = obj["spec"]["template"]["metadata"].get("annotations", {})
        return [key for key in annotations if ".rollout." in key]

    def is_paused(self, app: App) -> bool:
        return bool(self.cluster.get(app.kind, app.namespace, app.name)["spec"].get("paused"))

    def act_on_injector(self, what: str) -> str:
        injector = self.cluster.injector
        state = what.removeprefix("injector ")
        if state == "half upgraded":
            self.half = [self.version, next_version(self.version, "image again")]
        elif state == "upgraded again":
            self.version, self.half = next_version(self.version, "image again"), []
        else:
            injector.state = {"well": "works"}.get(state, state)
            self.half = []
        return "*"

    def act_on_api(self, what: str) -> str:
        cluster = self.cluster
        many = self.chance.choice((1, 1, 2, 4))
        statuses = {
            "answers 403": 403,
            "answers 409": 409,
            "answers 429": 429,
            "answers 500": 500,
            "answers 503": 503,
        }
        if what == "API server away":
            self.leave(self.chance.choice((0.2, 0.6, 1.5)))
        elif what == "API server slow":
            cluster.fault(delay=0.3, times=2 * many)
        elif what in statuses:
            status = statuses[what]
            only = "PATCH" if status == 409 else ""
            reason = {403: "Forbidden", 409: "Conflict", 429: "TooManyRequests"}.get(
                status, "InternalError"
            )
            body = {"kind": "Status", "status": "Failure", "reason": reason, "code": status}
            body |= {"message": "a test lets this fail"}
            path = self.chance.choice(("", "/pods", "/apis/apps/"))
            cluster.fault(method=only, path=path, status=status, body=body, times=many)
        elif what == "token expires":
            self.tokens += 1
            self.cluster.server.tokens.pop(cluster.admin_token, None)
            cluster.admin_token = f"admin-token-{self.tokens}"
            cluster.server.tokens[cluster.admin_token] = "admin"
            assert cluster.kubeconfig  # writes it
        else:
            path = self.chance.choice(("", "/pods", "/apis/apps/"))
            cluster.fault(
                drop="after" if what == "answer lost" else "before", path=path, times=many
            )
        return ""

    def act_on_rule(self, what: str, target: int) -> str | None:
        cluster = self.cluster
        if what == "another SCC":
            return ""
        if what == "node is tainted":
            names = sorted(node["metadata"]["name"] for node in cluster.store.list("nodes"))
            self.tainted.add(names[target % len(names)])
            cluster.controllers.tainted |= self.tainted
            for name in (app.key for app in self.history.apps if app.kind == "DaemonSet"):
                cluster.change("DaemonSet", *name.split("/"), {"metadata": {"labels": {"a": "b"}}})
            return "DaemonSet"
        refused = {"kind": "Status", "status": "Failure"}
        if what == "operator replaces Pods":
            self.is_drained_by_operator = True
            message = 'admission webhook "drain-cleaner" denied the request: it is replaced'
            body = {**refused, "code": 403, "reason": "Forbidden", "message": message}
            cluster.fault(path="/eviction$", status=403, body=body, times=999)
            return "*"
        status, reason = ((409, "Conflict"), (429, "TooManyRequests"), (503, "Unavailable"))[
            target % 3
        ]
        body = {**refused, "code": status, "reason": reason, "message": "a test refuses this"}
        for method, path in (("PATCH", ""), ("POST", "/eviction$")):
            cluster.fault(method=method, path=path, status=status, body=body, times=1 + target % 2)
        return ""

    def leave(self, seconds: float) -> None:
        """The API server goes away for a while."""

        def go() -> None:
            with self.away:
                self.cluster.vanish()
                time.sleep(seconds)  # as long as it is away
                self.cluster.reappear()

        self.absences.append(threading.Thread(target=go, name="API server away"))
        self.absences[-1].start()

    def close_gate(self) -> str | None:
        """The gate closes for longer than --timeout, and opens again."""
        if not self.history.value("--gate").startswith("{"):
            return None
        hold = Path(self.folder, "hold")
        if hold.exists():
            return None

        def go() -> None:
            time.sleep(float(self.history.value("--timeout")[:-1]) + 1.0)  # as long as it is closed
            self.note("gate opens")
            hold.unlink()

        hold.touch()
        self.absences.append(threading.Thread(target=go, name="gate closed"))
        self.absences[-1].start()
        return ""

    def send(self, what: str) -> str | None:
        if self.process:
            number = signal.SIGKILL if what == "kill -9" else signal.Signals[what]
            self.process.send_signal(number)
            return ""
        if what == "kill -9":
            return None
        with self.lock:
            if not self.is_catching:
                return None
            os.kill(os.getpid(), signal.Signals[what])
        return ""

    # Runs

    def words(self, options: list[str]) -> list[str]:
        stamp = datetime.now(timezone.utc) - timedelta(seconds=600)
        past = stamp.strftime("%Y-%m-%dT%H:%M:%SZ")
        places = {"{past}": past, "{gate}": f"test ! -e {self.folder}/hold"}
        for place, value in places.items():
            options = [word.replace(place, value) for word in options]
        return [sys.executable, str(SCRIPT), "--kubectl", KUBECTL, *options]

    def run(self, tool: ModuleType, options: list[str], events: tuple[Event, ...] = ()) -> Run:
        """One run of the tool to its end; the events happen in it."""
        is_confirmed = "--confirm=true" in options
        if is_confirmed:  # an audit is a command of its own
            options = [word for word in options if word != "--fail-on-drift"]
        real = self.words(options)
        words = [self.restore(word) for word in real]
        run = Run(words[2:], is_confirmed, len(self.log))
        environment = {**os.environ, "KUBECONFIG": self.cluster.kubeconfig, "GOGC": "off"}
        chosen = [w.partition("=")[2] for w in words if w.startswith("--include-namespace=")]
        is_exact = chosen and not any("*" in name for name in chosen)
        names = chosen if is_exact and "--all-namespaces" not in words else []
        self.listed = {f"/api/v1/namespaces/{name}/pods" for name in names} or {"/api/v1/pods"}
        self.waiting, self.counts = [e for e in events if e.request], {}
        timers = [threading.Timer(e.seconds, self.happen, [e]) for e in events if not e.request]
        self.running.set()
        began = time.monotonic()
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            if any(event.what == "kill -9" for event in events):
                run.finished = self.run_process(run, real, environment)
            else:
                with self.watch():
                    run.finished = self.run_here(tool, run, real, environment)
        finally:
            self.running.clear()
            for timer in timers:
                timer.cancel()
            for thread in self.absences:
                thread.join()
        run.seconds = time.monotonic() - began
        run.ended = len(self.log)
        self.end_faults()
        return run

    def end_faults(self) -> None:
        self.cluster.server.faults.clear()
        self.is_drained_by_operator = False

    def run_process(self, run: Run, words: list[str], environment: dict[str, str]) -> Finished:
        self.process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        output, errors = self.process.communicate(timeout=90)
        output, errors = self.restore(output), self.restore(errors)
        code, self.process = self.process.returncode, None
        run.killed, run.by_process = code == -signal.SIGKILL, True
        for line in output.splitlines():
            with contextlib.suppress(ValueError):
                run.records.append(json.loads(line))
        return Finished(code, output, errors)

    def run_here(
        self, tool: ModuleType, run: Run, words: list[str], environment: dict[str, str]
    ) -> Finished:
        world = self

        class Both(tool.Report):
            """A report that keeps the records and the text of the same run, whatever it prints."""

            def record(self, record, ref=None, **fields):
                subject = ref._asdict() if ref else {}
                found = {"record": record, **subject, **fields}
                found = json.loads(world.restore(json.dumps(found)))
                run.records.append(found)
                world.note("record", record in ("summary",), **found)
                super().record(record, ref, **fields)

            def print(self, *lines):
                run.text += world.restore("\n".join(map("".join, lines)) + "\n")
                super().print(*lines)

            def finish(self, result):
                counts = result.counts._asdict() if result.counts else None
                world.note(
                    "result",
                    True,
                    key=world.restore(f"{result.planned.ref.namespace}/{result.planned.ref.name}"),
                    kind=result.planned.ref.kind,
                    outcome=result.outcome.value,
                    message=result.message,
                    counts=counts,
                    method=result.planned.method.value,
                    state=world.cluster.injector.state,
                    version=world.half or world.version,
                )
                super().finish(result)

        class Seen(tool.Signals):
            def note(self, number, frame):
                world.note("signal", number=number)
                super().note(number, frame)

        class Asked(tool.Gate):
            VALID_FOR = GATE_VALID_FOR

        numbers = [signal.Signals[name] for name in SIGNALS]
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        self.is_catching = True
        saved = {name: getattr(tool, name) for name in ("Report", "Signals", "Gate", *CONSTANTS)}
        threads, processes = {thread.ident for thread in threading.enumerate()}, children()
        try:
            ours = {"Report": Both, "Signals": Seen, "Gate": Asked}
            for name, value in {**ours, **CONSTANTS}.items():
                setattr(tool, name, value)
            return run_here(tool, words, environment)
        finally:
            self.running.clear()
            for name, value in saved.items():
                setattr(tool, name, value)
            run.left_behind = left_behind(threads, processes)
            with self.lock:
                self.is_catching = False
            for number, handler in before.items():
                signal.signal(number, handler)

    def break_one(self) -> None:
        """The application of a workload becomes unready, long after any rollout."""
        apps = [app for app in self.history.apps if app.kind in STRATEGIES]
        app = self.chance.choice(apps) if apps else None
        for found in self.cluster.pods(app.namespace, app.name) if app else ():
            if "containerStatuses" in found["status"]:
                name = found["metadata"]["name"]
                self.cluster.kubelet.set_ready(app.namespace, name, False)

    def make_peace(self) -> None:
        """The injector is well, no Pod is unready for a reason of the moment, and all has settled."""
        cluster = self.cluster
        self.half, cluster.injector.state = [], "works"
        cluster.kubelet.ready_after = 0.02
        for name in NAMESPACES:
            for found in cluster.pods(name):
                has_begun = "containerStatuses" in found["status"]
                if has_begun and not is_ready(found) and not is_stuck(found):
                    cluster.kubelet.set_ready(name, found["metadata"]["name"], True)
        with contextlib.suppress(AssertionError):
            cluster.wait_for(lambda: not self.is_refused(), 5)  # controllers try again
        with contextlib.suppress(AssertionError):
            cluster.wait_for(lambda: not any(map(is_terminating, cluster.store.list("pods"))), 5)
        with contextlib.suppress(AssertionError):
            cluster.settle(10)

    def is_refused(self) -> bool:
        """Whether a controller could not create a Pod when it tried last."""
        return any(
            condition["type"] == "ReplicaFailure"
            for plural in ("deployments", "replicasets", *map(PLURALS.get, NO_ROLLOUT))
            for obj in self.cluster.store.list(plural)
            for condition in obj.get("status", {}).get("conditions", ())
        )


def constrained(injector: type) -> type:
    """An injector beside OpenShift's admission: an administrator gets another constraint than controllers."""

    class Constrained(injector):
        def __call__(self, pod, namespace, dry_run) -> None:
            super().__call__(pod, namespace, dry_run)
            notes = pod["metadata"].setdefault("annotations", {})
            notes["openshift.io/scc"] = "anyuid" if dry_run else "restricted-v2"

    return Constrained


def is_stuck(found: dict) -> bool:
    statuses = found["status"].get("containerStatuses", ())
    return any("waiting" in status["state"] for status in statuses)


def form(one: dict, position: str) -> tuple:
    """What counts of a sidecar."""
    variables = {v["name"]: v.get("value", "") for v in one.get("env", ())}
    variables = {name: variables[name] for name in variables if not name.startswith("ID")}
    variables |= {name: "*" for name in VARIES if name in variables}
    return position, one["image"], frozenset(variables.items()), tuple(sorted(one.get("args", ())))


def seen_name(pod: dict) -> str:
    """What an injector knows of the name: none of a Deployment's Pod."""
    return pod["metadata"].get("name") or pod["metadata"]["generateName"]


def forms(pod: dict, names: list[str]) -> dict[str, tuple]:
    """The named sidecars of a Pod, by name."""
    found = {}
    for field_, containers in (("regular", "containers"), ("init", "initContainers")):
        for one in pod["spec"].get(containers, ()):
            is_native = one.get("restartPolicy") == "Always"
            if any(fnmatch.fnmatchcase(one["name"], name) for name in names):
                found[one["name"]] = form(one, "native" if is_native else field_)
    return found


def children() -> set[str]:
    """The processes that this one has started, and that have not ended."""
    found: set[str] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as listed:
            found |= set(listed.read().split())
    return found


def left_behind(before: set[int | None], processes: set[str]) -> str:
    """New threads of the tool and processes that are still there; waits a little for them to end."""
    deadline = time.monotonic() + 20  # a worker may pause between two tries of a request
    while True:
        threads = [
            t.name
            for t in threading.enumerate()
            if t.ident not in before and re.search(r"\((work|worker|_handle)", t.name)
        ]
        more = sorted(children() - processes)
        if not threads and not more or time.monotonic() > deadline:
            return "; ".join([*threads, *more])
        time.sleep(0.02)


COMMAND = re.compile(r"^ +(?:\w+=\S+ )*(\S*python\S* .*)$", re.MULTILINE)


def printed_commands(text: str) -> list[list[str]]:
    """The commands that a run printed for a person to run next."""
    found = []
    for match in COMMAND.finditer(text):
        words = shlex.split(match[1])
        if str(SCRIPT) in words:
            found.append(list(words[words.index(str(SCRIPT)) + 1 :]))
    return found


def owner_app(scene: Scene, pod_: dict) -> tuple[str, str, str] | None:
    """The workload of a Pod, by controller references: kind, namespace, name."""
    owner = controller_of(pod_)
    namespace = pod_["metadata"]["namespace"]
    if owner and owner["kind"] == "ReplicaSet":
        above = scene.get(("replicasets", namespace, owner["name"]))
        over = above and controller_of(above)
        if over:
            return over["kind"], namespace, over["name"]
    return (owner["kind"], namespace, owner["name"]) if owner else None
