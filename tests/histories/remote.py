"""Histories on a real control plane: what it, too, can let happen, and what was asked of it."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import replace

import urllib3
from clusters.control_plane.api import path_of
from clusters.embedded import PLURALS_OF_WORKLOADS
from clusters.embedded.server import Request

from .cases import API_EVENTS, RULE_EVENTS, History
from .play import Scene, World

SLOWER = 3  # times as long as the embedded cluster takes


def served(history: History) -> History:
    """The history without what only the embedded cluster has, such as an API server that goes away."""
    kinds = {"CloneSet": "ReplicaSet"}
    apps = tuple(replace(app, kind=kinds.get(app.kind, app.kind)) for app in history.apps)
    events = tuple(
        replace(e, request="", seconds=1.0) if e.request == "kubectl reads" else e
        for e in history.events
        if e.what not in (*API_EVENTS, *RULE_EVENTS)
    )
    options = [
        word.replace("--include-namespace=s*", "--include-namespace=shop")
        for word in history.options
        if not word.startswith(("--all-namespaces", "--timeout"))
    ]
    timeout = SLOWER * int(history.value("--timeout", "4s")[:-1])
    return replace(history, apps=apps, events=events, options=(*options, f"--timeout={timeout}s"))


class RemoteWorld(World):
    """A history on a real control plane. The tool's requests are seen where it sends them."""

    def words(self, options: list[str]) -> list[str]:
        return self.cluster.options(tuple(super().words(options)))

    def restore(self, text: str) -> str:
        return self.cluster.restore(text)

    def renew_nodes(self) -> None:
        """Its nodes are those of all tests."""

    def rest(self, seconds: float) -> None:
        time.sleep(SLOWER * seconds)  # nobody can say when its controllers have acted

    def end_faults(self) -> None:
        """It has none."""

    def evict(self, pod_: dict) -> None:
        metadata = {key: pod_["metadata"][key] for key in ("namespace", "name")}
        path = path_of("pods", metadata["namespace"], metadata["name"], "eviction")
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        self.cluster.api.ask("POST", path, body)

    def scene(self) -> Scene:
        objects = {
            plural: self.cluster.store.list(plural) for plural in ("pods", *PLURALS_OF_WORKLOADS)
        }
        return {
            (plural, obj["metadata"]["namespace"], obj["metadata"]["name"]): obj
            for plural, found in json.loads(self.restore(json.dumps(objects))).items()
            for obj in found
        }

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        ask = urllib3.PoolManager.request_encode_url

        def asked(pool, method, url, fields=None, headers=None, **more):
            agent = next((v for k, v in (headers or {}).items() if k.lower() == "user-agent"), "")
            if not agent.startswith("sidecar-rollout/"):
                return ask(pool, method, url, fields, headers, **more)
            path = self.restore(urllib.parse.unquote(urllib.parse.urlsplit(url).path))
            query = {key: self.restore(str(value)) for key, value in (fields or {}).items()}
            body = self.restore(more.get("body") or "").encode()
            self.begin(method, f"{path}?{urllib.parse.urlencode(query)}", agent)
            answer = ask(pool, method, url, fields, headers, **more)
            request = Request(method, path, query, {"user-agent": agent}, body)
            self.after(request, answer.status, self.restore(answer.data.decode()).encode())
            return answer

        urllib3.PoolManager.request_encode_url = asked
        try:
            yield
        finally:
            urllib3.PoolManager.request_encode_url = ask
