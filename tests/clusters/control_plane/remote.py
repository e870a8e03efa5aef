"""A real control plane, with the interface of the embedded cluster, for one test in namespaces of its own."""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from clusters.embedded import INJECTED, Cluster
from clusters.embedded.admission import Injector
from clusters.embedded.kubelet import NO_NATIVE_SIDECARS, Kubelet
from clusters.embedded.server import STRATEGIC, Request
from clusters.embedded.store import PLURALS, RESOURCES

from .api import AGENT, Api, ApiError, Names, RemoteStore, only_embedded, path_of
from .webhook import Webhook

RBAC = "/apis/rbac.authorization.k8s.io/v1"
OWNERS = (
    "deployments",
    "statefulsets",
    "daemonsets",
    "replicasets",
    "replicationcontrollers",
    "jobs",
)
METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}


def create_nodes(api: Api, count: int = 3) -> None:
    """Create the nodes of the embedded cluster, with room for any number of Pods.

    The last one, whose kubelet ignores images of native sidecars, is cordoned: only Pods that name it run there.
    """
    newest = api.ask("GET", "/version")["gitVersion"]
    for number in range(1, count + 1):
        is_old = number == count
        version = NO_NATIVE_SIDECARS if is_old else newest
        room = {"cpu": "1000", "memory": "10Ti", "pods": "10000"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        name = f"node-{number}"
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        api.ask("POST", path_of("nodes"), {"metadata": {"name": name}})
        # Instead of the node lifecycle controller
        untainted = {"spec": {"taints": None, "unschedulable": is_old}}
        api.ask("PATCH", path_of("nodes", None, name), untainted, "application/merge-patch+json")
        patch = {"status": {**status, "nodeInfo": {"kubeletVersion": version}}}
        path = path_of("nodes", None, name, "status")
        api.ask("PATCH", path, patch, "application/merge-patch+json")


class Shared:
    """What the tests of one process share: the control plane and the webhook."""

    def __init__(self, folder: Path, numbers: Iterator[int] | None) -> None:
        self.folder, self.api, self.numbers = folder, Api(folder), numbers
        self.webhook = Webhook(self.api)

    def stop(self) -> None:
        self.webhook.stop()


class Requests:
    """What the embedded API server remembers of its requests, read from the audit log."""

    unexpected: list[str] = []

    def __init__(self, folder: Path, names: Names) -> None:
        self._log, self._names = folder / "audit.log", names
        self._from = self._log.stat().st_size

    def _lines(self) -> list[bytes]:
        """Return the lines since the start; the file's size can be seen in the middle of one."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._from - 1))
            log.readline()  # the end of what was written before
            lines = log.readlines()
        return lines if not lines or lines[-1].endswith(b"\n") else self._lines()

    @property
    def requests(self) -> list[Request]:
        events = map(json.loads, self._lines())
        return [
            self._request(event)
            for event in events
            if AGENT not in event.get("userAgent", "")
            and event.get("objectRef", {}).get("namespace") in self._names.all
            and event["stage"] == "ResponseComplete"
        ]

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        only_embedded(f"`cluster.server.{name}`")

    def _request(self, event: dict) -> Request:
        path, _, query = self._names.restore(event["requestURI"]).partition("?")
        found = dict(part.partition("=")[::2] for part in query.split("&"))
        headers = {"user-agent": event["userAgent"]}
        return Request(METHODS.get(event["verb"], "GET"), path, found, headers, b"")


class RemoteCluster(Cluster):
    interval = 0.1
    serves_apply = True
    patience = 3  # it is slow beside injectors that start
    of: dict[str, RemoteCluster] = {}  # by the path of a kubeconfig

    def __init__(self, shared: Shared, name: str = "embedded") -> None:
        self.name, self.shared, self.api = name, shared, shared.api
        self.url, self.authority, self.admin_token = (
            self.api.url,
            self.api.authority,
            self.api.token,
        )
        self.names = Names(shared.numbers)
        self.store = RemoteStore(self.api, self.names)
        self.injector = Injector()
        self.server = Requests(shared.folder, self.names)
        self.kubelet = self.make_kubelet()
        self._folder = tempfile.TemporaryDirectory(prefix="control-plane-test-")
        self._stopped = False
        self._roles: list[str] = []
        self.errors: list[str] = []

    def __enter__(self) -> RemoteCluster:
        return self

    def __exit__(self, *_) -> None:
        self._stopped = True
        self._delete_roles()
        for name in self.names.all:
            self._empty(name)
            self.shared.webhook.injectors.pop(name, None)
        self._folder.cleanup()

    def _empty(self, namespace: str) -> None:
        """Delete the Pods of a namespace and what creates them.

        Nothing else: when a namespace is deleted, the controller manager lists all resources that there are.
        """
        for plural in OWNERS:
            path = path_of(plural, namespace)
            self.api.ask("DELETE", path, {"propagationPolicy": "Background"})
        path = path_of("pods", namespace)
        while self.api.ask("GET", path)["items"]:
            self.api.ask("DELETE", path, {"gracePeriodSeconds": 0})

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        only_embedded(f"`cluster.{name}`")

    # The kubelet

    def make_kubelet(self) -> Kubelet:
        return Kubelet(self.store, self._later, self._set_status)

    def _later(self, seconds: float, act) -> None:
        def run() -> None:
            with self.store.lock:
                if not self._stopped:
                    self._try(act)

        timer = threading.Timer(seconds, run)
        timer.daemon = True
        timer.start()

    def _try(self, act, *arguments) -> None:
        try:
            act(*arguments)
        except ApiError as error:
            if error.status != 404:  # its Pod is gone
                self.errors.append(str(error))

    def _set_status(self, plural: str, obj: dict, status: dict) -> None:
        metadata = obj["metadata"]
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {"op": "add", "path": "/status", "value": status},
        ]
        path = path_of(plural, metadata["namespace"], metadata["name"], "status")
        with contextlib.suppress(ApiError):  # gone, or another one
            self.api.ask(
                "PATCH", path, patch, "application/json-patch+json", fieldManager="kubelet"
            )

    def follow(self, namespace: str) -> None:
        """Let the kubelet act on the Pods of a namespace, from now on."""
        path = path_of("pods", namespace)
        version = self.api.ask("GET", path)["metadata"]["resourceVersion"]

        def follow() -> None:
            for event in self.api.watch(path, version):  # which ends when the API server does
                if self._stopped:
                    return
                if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
                    continue
                pod = event["object"]
                self.store.on_change("pods", pod)
                if event["type"] != "DELETED" and pod["spec"].get("nodeName"):
                    with self.store.lock:
                        self._try(self.kubelet.sync, pod)

        threading.Thread(target=follow, daemon=True).start()

    # What is in it

    def namespace(self, name: str, *, inject: bool = False, labels: dict | None = None) -> None:
        self.names.add(name)
        real = self.names.real(name)
        self.shared.webhook.injectors[real] = self.injector
        labels = {**(labels or {}), **self.shared.webhook.label, **(INJECTED if inject else {})}
        self.api.ask("POST", path_of("namespaces"), {"metadata": {"name": real, "labels": labels}})
        self.wait_for(lambda: self.store.get("serviceaccounts", real, "default"))
        self.follow(real)
        if inject:
            self._wait_for_injection(real)

    def turn_on_injection(self, namespace: str) -> None:
        super().turn_on_injection(namespace)
        self._wait_for_injection(self.names.real(namespace))

    def _wait_for_injection(self, namespace: str) -> None:
        """Wait until the API server calls the webhook for a namespace: it reads of both in the background."""
        pod = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
        seen = self.injector.seen

        def is_called() -> bool:
            with contextlib.suppress(ApiError):
                self.api.ask("POST", path_of("pods", namespace), pod, dryRun="All")
            return bool(seen)

        self.injector.seen = seen = []
        self.wait_for(is_called)
        self.injector.seen = []

    def create(self, namespace: str, obj: dict) -> dict:
        obj = copy.deepcopy(obj)
        plural = PLURALS[obj["kind"]]
        obj["metadata"]["namespace"] = namespace
        for owner in obj["metadata"].get("ownerReferences", ()):
            if owner["kind"] == "Node":
                owner["uid"] = self.store.get("nodes", "", owner["name"])["metadata"]["uid"]
        if plural == "statefulsets":
            self._provide_volumes(namespace, obj)
        return self.store.create(plural, obj)

    def _provide_volumes(self, namespace: str, stateful_set: dict) -> None:
        """Create volumes for the claims of a StatefulSet, as nobody provisions them."""
        for claim in stateful_set["spec"].get("volumeClaimTemplates", ()):
            claim["spec"].setdefault("resources", {"requests": {"storage": "1Gi"}})
            for ordinal in range(stateful_set["spec"].get("replicas", 1)):
                name = f"{claim['metadata']['name']}-{stateful_set['metadata']['name']}-{ordinal}"
                real = self.names.real(namespace)
                spec = {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": claim["spec"]["accessModes"],
                    "claimRef": {"namespace": real, "name": name},
                    "hostPath": {"path": "/tmp"},
                }
                body = {"metadata": {"name": f"{real}-{name}"}, "spec": spec}
                self.api.ask("POST", "/api/v1/persistentvolumes", body)

    def create_job(self, namespace: str, name: str, spec: dict) -> None:
        template = {"spec": {"restartPolicy": "Never", **spec}}
        self.store.create(
            "jobs",
            {"metadata": {"name": name, "namespace": namespace}, "spec": {"template": template}},
        )

    def operate(
        self, kind: str, namespace: str, name: str, by: tuple[str, str], *, keeps: str = ""
    ) -> None:
        """As the embedded cluster's: an operator that removes annotations of a workload's template."""
        owner = self.get(by[0], namespace, by[1])
        reference = {"apiVersion": owner["apiVersion"], "kind": by[0], "name": by[1]}
        reference |= {"uid": owner["metadata"]["uid"], "controller": True}
        self.change(kind, namespace, name, {"metadata": {"ownerReferences": [reference]}})
        path = path_of(PLURALS[kind], self.names.real(namespace))
        version = self.api.ask("GET", path)["metadata"]["resourceVersion"]

        def follow() -> None:
            for event in self.api.watch(path, version):
                if self._stopped:
                    return
                found = event["object"]
                has = found.get("spec", {}).get("template", {}).get("metadata", {})
                wrong = [key for key in has.get("annotations", {}) if not key.startswith(keeps)]
                if wrong and found["metadata"]["name"] == name:
                    template = {"metadata": {"annotations": dict.fromkeys(wrong)}}
                    self.change(kind, namespace, name, {"spec": {"template": template}})

        threading.Thread(target=follow, daemon=True).start()

    def change(
        self, kind: str, namespace: str, name: str, patch: dict, manager: str = "kubectl-edit"
    ) -> dict:
        if kind == "Namespace":
            name = self.names.real(name)
        path = path_of(PLURALS[kind], self.names.real(namespace), name)
        if patch.get("metadata", {}).get(
            "deletionTimestamp"
        ):  # which a finalizer keeps from ending
            finalizers = {"finalizers": patch["metadata"]["finalizers"]}
            self.api.ask("PATCH", path, {"metadata": finalizers}, STRATEGIC)
            return self.api.ask("DELETE", path)
        return self.api.ask("PATCH", path, patch, STRATEGIC, fieldManager=manager)

    def delete(self, kind: str, namespace: str, name: str, *, orphan: bool = False) -> None:
        policy = "Orphan" if orphan else "Background"
        self.store.delete(PLURALS[kind], namespace, name, propagationPolicy=policy)

    def backdate(self, obj: dict, seconds: float, plural: str = "pods") -> None:
        stamp = (datetime.now(timezone.utc) - timedelta(seconds=seconds)).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )

        def change(found: dict) -> None:
            found["metadata"]["creationTimestamp"] = stamp
            for entry in found["metadata"].get("managedFields", ()):
                entry["time"] = stamp
            if "startTime" in found.get("status", {}):
                found["status"]["startTime"] = stamp

        metadata = obj["metadata"]
        namespace = self.names.real(metadata["namespace"])
        self.api.change_in_etcd(f"/registry/{plural}/{namespace}/{metadata['name']}", change)

    # Who may what

    def write_kubeconfig(self, name: str, user: dict | None = None) -> str:
        path = super().write_kubeconfig(name, user)
        self.of[path] = self
        return path

    def kubeconfig_of(self, user: str, rules: list[dict]) -> str:
        """A kubeconfig of a service account that may do what its rules say and nothing else."""
        namespace = self.names.all[0]
        accounts = path_of("serviceaccounts", namespace)
        if self.store.get("serviceaccounts", namespace, user):
            self._delete_roles()
        else:
            self.api.ask("POST", accounts, {"metadata": {"name": user}})
        token = self.api.ask("POST", f"{accounts}/{user}/token", {"spec": {}})["status"]["token"]
        for number, rule in enumerate(rules):
            self._grant(namespace, user, f"{namespace}-{user}-{number}", dict(rule))
        self._wait_for_rules(f"system:serviceaccount:{namespace}:{user}", rules)
        return self.write_kubeconfig(f"config-of-{user}", {"token": token})

    def _grant(self, namespace: str, user: str, name: str, rule: dict) -> None:
        inside = self.names.real(rule.pop("namespace", None))
        scope = f"{RBAC}/namespaces/{inside}/" if inside else f"{RBAC}/cluster"
        kind = "Role" if inside else "ClusterRole"
        roles, bindings = (f"{scope}{plural}" for plural in ("roles", "rolebindings"))
        subject = {"kind": "ServiceAccount", "namespace": namespace, "name": user}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        metadata = {"metadata": {"name": name}}
        self.api.ask("POST", roles, {**metadata, "rules": [rule]})
        self.api.ask("POST", bindings, {**metadata, "roleRef": reference, "subjects": [subject]})
        self._roles += [f"{roles}/{name}", f"{bindings}/{name}"]

    def _delete_roles(self) -> None:
        while self._roles:
            self.api.ask("DELETE", self._roles.pop())

    def _wait_for_rules(self, user: str, rules: list[dict]) -> None:
        """Wait until the API server knows the rules: it reads of them in the background."""

        def is_allowed(rule: dict) -> bool:
            resource, _, subresource = rule["resources"][-1].partition("/")
            group = rule["apiGroups"][-1]
            asked = {
                "verb": rule["verbs"][-1],
                "group": RESOURCES[resource].group if group == "*" and resource != "*" else group,
                "resource": resource,
                "subresource": subresource,
                "namespace": self.names.real(rule.get("namespace", "")),
            }
            path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
            answer = self.api.ask(
                "POST", path, {"spec": {"user": user, "resourceAttributes": asked}}
            )
            return answer["status"]["allowed"]

        self.wait_for(lambda: all(map(is_allowed, rules)))

    # What the tool is told, and what it says

    def options(self, options: tuple[str, ...]) -> list[str]:
        """The options of a run with the real names, in the namespaces of this test."""
        found = list(map(self.translate, options))
        chosen = ("-n", "--include-namespace", "-A", "--all-namespaces")
        if any(option.split("=")[0] in chosen for option in options):
            return found
        return [*found, *(f"--include-namespace={name}" for name in self.names.all)]

    def translate(self, text: str) -> str:
        return self.names.translate(text)

    def restore(self, text: str) -> str:
        for name in self.names.all:
            text = text.replace(f"system:serviceaccount:{name}:", "")
        return self.names.restore(text)
