"""The embedded cluster: a small Kubernetes for tests and for trying the tool, in this process, in under a second.

with EmbeddedCluster() as cluster:
    cluster.namespace("shop", inject=True)
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    cluster.settle()
    ...  # KUBECONFIG=cluster.kubeconfig kubectl get pods -A
"""

from __future__ import annotations

import copy
import functools
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from . import admission, kubelet, server
from .admission import Injector
from .controllers import Controllers, is_counted, is_ready, is_terminating
from .manifests import pod
from .store import PLURALS, RESOURCES, Store

__all__ = [
    "PLURALS_OF_WORKLOADS",
    "Cluster",
    "EmbeddedCluster",
    "is_counted",
    "is_ready",
    "is_terminating",
]

ADMIN = "admin-token"
INJECTED = {"sidecar-injection": "enabled"}  # labels of a namespace


@functools.cache
def certificates() -> tuple[ssl.SSLContext, str]:
    """A server's TLS context and the certificate of its authority, in PEM.

    TLS, as kubectl sends no credentials over plain HTTP.
    """
    import trustme

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context, authority.cert_pem.bytes().decode()


def is_known(pod: dict) -> bool:
    """Whether the kubelet has started a Pod, or the scheduler has found no node for it."""
    return "startTime" in pod["status"] or any(
        c["type"] == "PodScheduled" and c["status"] == "False"
        for c in pod["status"].get("conditions", ())
    )


class Cluster:
    """What tests use of a cluster, be it embedded or real: `store`, `kubelet`, `injector` and the methods below."""

    name = "embedded"
    url: str
    authority: str
    admin_token = ADMIN
    interval = 0.01  # seconds from one look to the next
    serves_apply = False  # server-side apply
    patience = 1  # how many times as long a test waits for a state
    _folder: tempfile.TemporaryDirectory

    # How clients reach it

    def kubeconfig_for(self, user: dict | None = None) -> dict:
        import base64

        authority = base64.b64encode(self.authority.encode()).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.name,
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": "user"}}],
            "clusters": [
                {
                    "name": self.name,
                    "cluster": {"server": self.url, "certificate-authority-data": authority},
                }
            ],
            "users": [
                {"name": "user", "user": {"token": self.admin_token} if user is None else user}
            ],
        }

    def write_kubeconfig(self, name: str, user: dict | None = None) -> str:
        """The path of a kubeconfig with a user's credentials, the administrator's where none is given."""
        path = Path(self._folder.name, name)
        path.write_text(json.dumps(self.kubeconfig_for(user)))
        return str(path)

    @property
    def kubeconfig(self) -> str:
        return self.write_kubeconfig("config")

    def translate(self, text: str) -> str:
        """A text with the real names of namespaces."""
        return text

    def restore(self, text: str) -> str:
        """A text with the names of namespaces and users that the test uses."""
        return text

    # What is in it

    def turn_on_injection(self, namespace: str) -> None:
        """Label a namespace that may have workloads already."""
        self.change("Namespace", "", namespace, {"metadata": {"labels": INJECTED}})

    def get(self, kind: str, namespace: str, name: str) -> dict | None:
        return self.store.get(PLURALS[kind], namespace, name)

    def pods(self, namespace: str, app: str | None = None) -> list[dict]:
        """The Pods that are not terminating, of one app or all."""
        found = self.store.list("pods", namespace)
        return [
            p
            for p in found
            if not is_terminating(p) and app in (None, p["metadata"].get("labels", {}).get("app"))
        ]

    def wait_for(self, what, timeout: float = 30.0):
        """What `what()` returns once that is true. AssertionError when it takes too long."""
        deadline = time.monotonic() + timeout * self.patience
        while not (found := what()):
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(self.interval)
        return found

    def settle(self, timeout: float = 20.0) -> None:
        """Waits until every workload has the Pods that it wants, ready or known to be stuck."""
        try:
            self.wait_for(lambda: not any(self._unsettled()), timeout)
        except AssertionError:
            left = "\n".join(json.dumps(obj) for obj in self._unsettled())
            raise AssertionError(f"not settled in time:\n{left}") from None

    def _unsettled(self) -> Iterator[dict]:
        for plural in PLURALS_OF_WORKLOADS:
            for workload in self.store.list(plural):
                if not self._has_its_pods(plural, workload):
                    yield workload
        yield from (p for p in self.store.list("pods") if not (is_terminating(p) or is_known(p)))

    def _has_its_pods(self, plural: str, workload: dict) -> bool:
        metadata, spec, status = workload["metadata"], workload["spec"], workload.get("status", {})
        if is_terminating(workload):
            return True
        if status.get("observedGeneration") != metadata["generation"]:
            return False
        if spec.get("paused") or any(
            c["type"] == "ReplicaFailure" for c in status.get("conditions", ())
        ):
            return True
        owners = (
            [workload]
            if plural != "deployments"
            else self.store.children(metadata["uid"], "replicasets")
        )
        pods = [
            pod for owner in owners for pod in self.store.children(owner["metadata"]["uid"], "pods")
        ]
        wanted = len(self.store.list("nodes")) if plural == "daemonsets" else spec["replicas"]
        stuck = [p for p in pods if not is_ready(p) and is_counted(p) and is_known(p)]
        if plural == "statefulsets":
            strategy = spec.get("updateStrategy", {})
            kept = strategy.get("rollingUpdate", {}).get("partition", 0)
            is_new = status.get("updateRevision") != status.get("currentRevision")
            is_behind = is_new and status.get("updatedReplicas", 0) < wanted - kept
            if stuck or (is_behind and strategy.get("type") != "OnDelete"):
                return bool(stuck)
        ready = status.get("numberReady" if plural == "daemonsets" else "readyReplicas", 0)
        return len(pods) == wanted and ready + len(stuck) == wanted


class EmbeddedCluster(Cluster):
    def __init__(self, name: str = "embedded", nodes: int = 3) -> None:
        self.name = name
        self.store = Store()
        self.injector = Injector()
        self.controllers = Controllers(self.store, self.injector)
        self.kubelet = self.controllers.kubelet
        context, self.authority = certificates()
        self.server = server.ApiServer(self.store, self.controllers, self.injector, context)
        self.server.tokens[ADMIN] = "admin"
        self._thread: threading.Thread | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="embedded-cluster-")
        for number in range(1, nodes + 1):
            version = kubelet.NO_NATIVE_SIDECARS if number == nodes > 1 else "v1.34.1"
            status = {"nodeInfo": {"kubeletVersion": version}}
            self.store.create(
                "nodes", {"metadata": {"name": f"node-{number}"}, "spec": {}, "status": status}
            )
        self.namespace("default")
        self.namespace("kube-system")
        # The API server's own, which has no Pods
        endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": True}}
        metadata = {"name": "kubernetes", "namespace": "default"}
        found = {"metadata": metadata, "addressType": "IPv4", "endpoints": [endpoint]}
        self.store.create("endpointslices", found)

    def __enter__(self) -> EmbeddedCluster:
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self) -> None:
        self.controllers.start()
        self._listen()

    def _listen(self) -> None:
        self._thread = threading.Thread(
            target=self.server.serve_forever, args=(0.05,), name="api-server", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self.server.stopping.set()
        self._close()
        self.controllers.stop()
        self._folder.cleanup()

    def _close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.server.cut_connections()
        self._thread.join()

    def vanish(self) -> None:
        """The API server goes away; the controllers go on."""
        self._close()

    def reappear(self) -> None:
        """The API server is back, on the same port, with the same state."""
        old = self.server
        context, _ = certificates()
        new = server.ApiServer(self.store, self.controllers, self.injector, context, self.port)
        for field in (
            "tokens",
            "rules",
            "faults",
            "chaos",
            "requests",
            "compressed",
            "unexpected",
            "image_policy",
            "after",
            "begin",
        ):
            setattr(new, field, getattr(old, field))
        self.server = new
        self._listen()

    # How clients reach it

    @property
    def port(self) -> int:
        return self.server.server_address[1]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def kubeconfig_of(self, user: str, rules: list[dict]) -> str:
        """A kubeconfig of a user that may do what its rules say and nothing else."""
        self.server.tokens[f"token-of-{user}"] = user
        self.server.rules[user] = rules
        return self.write_kubeconfig(f"config-of-{user}", {"token": f"token-of-{user}"})

    # What is in it

    def namespace(self, name: str, *, inject: bool = False, labels: dict | None = None) -> None:
        labels = {**(labels or {}), **(INJECTED if inject else {})}
        namespace = {"metadata": {"name": name, "labels": labels}}
        server.create_object(self.server, RESOURCES["namespaces"], namespace, None, "kubectl")

    def create(self, namespace: str, obj: dict) -> dict:
        obj = copy.deepcopy(obj)
        resource = RESOURCES[PLURALS[obj.pop("kind")]]
        obj.pop("apiVersion", None)
        return server.create_object(self.server, resource, obj, namespace, "kubectl-create")

    def change(
        self, kind: str, namespace: str, name: str, patch: dict, manager: str = "kubectl-edit"
    ) -> dict:
        """A merge patch by a client of the API."""
        target = server.Target(RESOURCES[PLURALS[kind]], namespace, name, None)
        with self.store.lock:
            current = self.get(kind, namespace, name)
            changed = server.merged(current, patch, strategic=True)
            server.refuse_strategy(target, changed)
            admission.set_template_generation(target.resource.plural, changed, current)
            if changed.get("spec") != current.get("spec") and "generation" in current["metadata"]:
                changed["metadata"]["generation"] = current["metadata"]["generation"] + 1
            server.note_manager(current, changed, manager, target.resource.api_version)
            return self.store.update(target.resource.plural, changed)

    def create_job(self, namespace: str, name: str, spec: dict) -> None:
        """A Job, by its Pod: nobody creates that here."""
        owner = ("batch/v1", "Job", name)
        self.create(namespace, pod(f"{name}-x7k2p", {**spec, "restartPolicy": "Never"}, owner))

    def operate(
        self, kind: str, namespace: str, name: str, by: tuple[str, str], *, keeps: str = ""
    ) -> None:
        """Lets a custom resource (kind, name) own a workload; its operator removes annotations.

        It keeps those that the template has now and, if that is given, those that start with `keeps`.
        """
        plural, resource = PLURALS[kind], RESOURCES[PLURALS[by[0]]]
        with self.store.lock:
            owner = self.store.get(resource.plural, namespace, by[1])
            found = self.store.get(plural, namespace, name)
            own = found["spec"]["template"]["metadata"].get("annotations", {})
            self.controllers.operators[plural, namespace, name] = (
                f"{by[0]}Operator",
                lambda key: key in own or bool(keeps and key.startswith(keeps)),
            )
            reference = {
                "apiVersion": resource.api_version,
                "kind": by[0],
                "name": by[1],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
            metadata = {**found["metadata"], "ownerReferences": [reference]}
            self.store.change(plural, found, metadata=metadata)

    def backdate(self, obj: dict, seconds: float, plural: str = "pods") -> None:
        """Makes an object as old as that: created, last changed and, if it is a Pod, started, with its containers."""
        born = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        stamp = born.strftime("%Y-%m-%dT%H:%M:%SZ")
        with self.store.lock:
            obj = (
                self.store.get(plural, obj["metadata"]["namespace"], obj["metadata"]["name"]) or obj
            )
            managed = [
                {**entry, "time": stamp} for entry in obj["metadata"].get("managedFields", ())
            ]
            metadata = {**obj["metadata"], "creationTimestamp": stamp, "managedFields": managed}
            fields = {}
            if "startTime" in obj.get("status", {}):
                status = copy.deepcopy(obj["status"]) | {"startTime": stamp}
                for key in ("containerStatuses", "initContainerStatuses"):
                    for container in status.get(key, ()):
                        if "running" in container["state"]:
                            container["state"]["running"]["startedAt"] = stamp
                fields = {"status": status}
            self.store.change(plural, obj, metadata=metadata, **fields)

    def delete(self, kind: str, namespace: str, name: str, *, orphan: bool = False) -> None:
        found = self.get(kind, namespace, name)
        server.delete_object(self.server, RESOURCES[PLURALS[kind]], found, orphan)

    def fault(self, **fields) -> server.Fault:
        fault = server.Fault(**fields)
        self.server.faults.append(fault)
        return fault


PLURALS_OF_WORKLOADS = (
    "deployments",
    "statefulsets",
    "daemonsets",
    "replicasets",
    "replicationcontrollers",
    "clonesets",
)
