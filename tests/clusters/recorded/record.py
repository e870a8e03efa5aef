"""Record the exchanges of a real API server again, from the control plane that tests build.

    PYTHONPATH=tests .venv/bin/python -m clusters.recorded.record [NAME ...]

It fills a new control plane, makes the requests that each file has in its order, and writes what is answered. The default
is all files that the README of this folder lists.
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import urllib3
from clusters import control_plane
from clusters.control_plane.api import Api
from clusters.control_plane.remote import RBAC, RemoteCluster, Shared, create_nodes
from clusters.embedded import Cluster
from clusters.embedded.manifests import container, pod, pod_spec, workload

HERE = Path(__file__).parent
PROXY = container(
    "mesh-proxy",
    "registry.example/mesh-proxy:1.0.0",
    env=[{"name": "PROXY_LOG_LEVEL", "value": "warn"}],
)
NEWER = container(
    "mesh-proxy",
    "registry.example/mesh-proxy:2.0.0",
    env=[{"name": "PROXY_LOG_LEVEL", "value": "info"}, {"name": "NEW", "value": "1"}],
    resources={"requests": {"cpu": "200m"}},
)
RESTARTED = {"kubectl.kubernetes.io/restartedAt": "2026-11-21T04:19:37Z"}
READS_APPS = {"verbs": ["get", "list", "watch"], "apiGroups": ["apps"], "resources": ["*"]}


def app(name: str) -> dict:
    return {"containers": [container(name, f"registry.example/{name}:1")]}


def fill(cluster: Cluster) -> None:
    """Create what the exchanges are about."""
    cluster.injector.container = PROXY
    cluster.namespace("shop", inject=True)
    for kind, name, fields in (
        ("Deployment", "web", {"replicas": 3}),
        ("StatefulSet", "db", {"replicas": 2, "annotations": RESTARTED}),
        ("DaemonSet", "agent", {"annotations": RESTARTED}),
    ):
        applied = workload(kind, name, app(name), **fields)
        applied["metadata"]["annotations"] = {
            "kubectl.kubernetes.io/last-applied-configuration": "..."
        }
        cluster.create("shop", applied)
    cluster.create("shop", pod("loner", app("loner")))
    cluster.create_job("shop", "once", pod_spec(container("once", "registry.example/once:1")))
    cluster.settle()
    patch = {"spec": {"template": {"metadata": {"annotations": RESTARTED}}}}
    cluster.change("Deployment", "shop", "web", patch)
    cluster.settle()


class Client:
    """Sends the requests of recordings."""

    def __init__(self, cluster: Cluster) -> None:
        self.url = cluster.url
        self.pool = urllib3.PoolManager(ca_cert_data=cluster.authority)

    def __call__(
        self,
        request: dict,
        token: str | None = "admin-token",
        path: str | None = None,
        **headers: str,
    ) -> tuple[int, dict, dict]:
        headers["Accept"] = request["accept"]
        if "contentType" in request:
            headers["Content-Type"] = request["contentType"]
        if token:
            headers["Authorization"] = f"Bearer {token}"
        body = json.dumps(request["body"]) if "body" in request else None
        answer = self.pool.request(
            request["method"], self.url + (path or request["path"]), headers=headers, body=body
        )
        return answer.status, dict(answer.headers), answer.json()

    def events_of_a_rollout(self, cluster: Cluster, token: str) -> list[dict]:
        """What a watch sees of the Deployment `web` whose Pod template changes."""
        query = "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
        path = f"/apis/apps/v1/namespaces/shop/deployments?{query}&fieldSelector=metadata.name%3Dweb&timeoutSeconds=2"
        headers = {"Accept": "application/json", "Authorization": f"Bearer {token}"}
        answer = self.pool.request("GET", self.url + path, headers=headers, preload_content=False)
        events: list[dict] = []
        for line in answer:
            began = any(event["type"] == "BOOKMARK" for event in events)
            events.append(json.loads(line))
            if events[-1]["type"] == "BOOKMARK" and not began:
                patch = {"spec": {"template": {"metadata": {"annotations": {"x": "y"}}}}}
                cluster.change("Deployment", "shop", "web", patch)
        return events


# What each recording needs


class Recorder:
    def __init__(self, cluster: RemoteCluster) -> None:
        self.cluster, self.client = cluster, Client(cluster)

    def answer(
        self, request: dict, token: str | None = "", path: str | None = None
    ) -> dict[str, dict]:
        """One exchange. `token` is an administrator's if it is empty."""
        user = {"Impersonate-User": "viewer"} if request.get("as") else {}
        token = self.cluster.admin_token if token == "" else token
        status, headers, body = self.client(request, token, path, **user)
        kept = {"Content-Type": headers["Content-Type"]}
        sent = {**request, **({"path": path} if path else {})}
        return {
            "request": sent,
            "response": {"status": status, "headers": kept, "body": body},
        }

    def plain(self, requests: list[dict]) -> list[dict]:
        return [self.answer(request) for request in requests]

    def auth(self, requests: list[dict]) -> list[dict]:
        tokens = [None, "nobody's", "", "", ""]
        return [self.answer(*both) for both in zip(requests, tokens, strict=True)]

    def pages(self, requests: list[dict]) -> list[dict]:
        found = [self.answer(requests[0])]
        for request in requests[1:]:
            token = found[-1]["response"]["body"]["metadata"]["continue"]
            path = f"/api/v1/pods?limit=4&continue={urllib.parse.quote(token)}"
            found.append(self.answer(request, path=path))
        return found

    def drifted(self, requests: list[dict]) -> list[dict]:
        injector, found = self.cluster.injector, []
        for request, changes in zip(
            requests, ({"native": True}, {"container": NEWER}), strict=True
        ):
            with changed(injector, **changes):
                found.append(self.answer(request))
        return found

    def refused(self, requests: list[dict]) -> list[dict]:
        injector, found = self.cluster.injector, []
        conditions: list[contextlib.AbstractContextManager] = [
            *[contextlib.nullcontext()]
            * 4,  # a name, a service account, a priority class, no permission
            changed(injector, state="fails"),
            changed(injector, state="denies"),
            changed(injector, state="hangs", hangs_for=6.0),  # its timeout is 5 s
            self.quota(),
            self.restricted(),
        ]
        for request, condition in zip(requests, conditions, strict=True):
            with condition:
                found.append(self.answer(request))
        return found

    @contextlib.contextmanager
    def quota(self) -> Iterator[None]:
        api, path = self.cluster.api, "/api/v1/namespaces/shop/resourcequotas"
        quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
        api.ask("POST", path, quota)
        self.cluster.wait_for(lambda: "used" in api.ask("GET", f"{path}/q").get("status", {}))
        yield
        api.ask("DELETE", f"{path}/q")

    @contextlib.contextmanager
    def restricted(self) -> Iterator[None]:
        """In the namespace as the Pod Security Standard `restricted` has it."""
        label = "pod-security.kubernetes.io/enforce"
        self.cluster.change(
            "Namespace", "", "shop", {"metadata": {"labels": {label: "restricted"}}}
        )
        yield
        self.cluster.change("Namespace", "", "shop", {"metadata": {"labels": {label: None}}})

    def watch(self, _: list[dict]) -> list[dict]:
        return self.client.events_of_a_rollout(self.cluster, self.cluster.admin_token)


@contextlib.contextmanager
def changed(obj: object, **fields: object) -> Iterator[None]:
    before = {name: getattr(obj, name) for name in fields}
    for name, value in fields.items():
        setattr(obj, name, value)
    yield
    for name, value in before.items():
        setattr(obj, name, value)


RECORDED: dict[str, Callable[[Recorder, list[dict]], list[dict]]] = {
    "discovery": Recorder.plain,
    "discovery-older": Recorder.plain,
    "auth": Recorder.auth,
    "get-workloads": Recorder.plain,
    "list-replicasets": Recorder.plain,
    "list-pods-paged": Recorder.pages,
    "list-pods-selectors": Recorder.plain,
    "dry-run-pod-web": Recorder.plain,
    "dry-run-pod-db": Recorder.plain,
    "dry-run-pod-agent": Recorder.plain,
    "dry-run-pod-drifted": Recorder.drifted,
    "dry-run-pod-refused": Recorder.refused,
    "patch": Recorder.plain,
    "watch-one-rollout": Recorder.watch,
}


def let_viewer_read(api: Api) -> None:
    metadata = {"metadata": {"name": "viewer"}}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "viewer"}
    subject = {"apiGroup": role["apiGroup"], "kind": "User", "name": "viewer"}
    api.ask("POST", f"{RBAC}/clusterroles", {**metadata, "rules": [READS_APPS]})
    binding = {**metadata, "roleRef": role, "subjects": [subject]}
    api.ask("POST", f"{RBAC}/clusterrolebindings", binding)


def main(names: list[str]) -> None:
    program = control_plane.build_control_plane(control_plane.NEWEST, print)
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(control_plane.ControlPlane(program))
        api = Api(started.folder)
        create_nodes(api)
        let_viewer_read(api)
        shared = Shared(started.folder, numbers=None)
        stack.callback(shared.stop)
        cluster = stack.enter_context(RemoteCluster(shared))
        fill(cluster)
        recorder = Recorder(cluster)
        for name in names or RECORDED:
            path = HERE / f"{name}.json"
            old = json.loads(path.read_text())
            found = RECORDED[name](recorder, [copy.deepcopy(e.get("request")) for e in old])
            if name == "watch-one-rollout":  # an event in each line
                text = "[\n" + ",\n".join(map(json.dumps, found)) + "\n]"
            else:
                text = json.dumps(found, indent=1)
            path.write_text(text + "\n")
            print(f"{name}: {len(found)}, before {len(old)}")


if __name__ == "__main__":
    main(sys.argv[1:])
