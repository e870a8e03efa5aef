"""The API server's objects as the embedded cluster's store has them, and its audit log as its list of requests."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import string
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import urllib3
import yaml

from clusters.embedded.server import MERGE
from clusters.embedded.store import RESOURCES, Resource, controller_of

AGENT = "sidecar-rollout-tests"


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Api:
    """Requests to a real API server, with an administrator's kubeconfig."""

    def __init__(self, folder: Path) -> None:
        config = yaml.safe_load((folder / "kubeconfig").read_text())
        (cluster,), (user,) = config["clusters"], config["users"]
        self.url = cluster["cluster"]["server"]
        self.authority = (folder / "apiserver.crt").read_text()
        self.token = user["user"]["token"]
        headers = {"Authorization": f"Bearer {self.token}", "User-Agent": AGENT}
        self._pool = urllib3.PoolManager(
            ca_cert_data=self.authority, headers=headers, maxsize=8, retries=False
        )
        self._etcd = (folder / "etcd").read_text()

    def ask(
        self, method: str, path: str, body: object = None, kind: str = "application/json", **query
    ) -> dict:
        """The answer of the API server. ApiError where it is not a success."""
        answer = self._pool.request(
            method,
            f"{self.url}{path}?{urllib.parse.urlencode(query)}",
            body=None if body is None else json.dumps(body),
            headers={**self._pool.headers, "Content-Type": kind},
        )
        found = json.loads(answer.data)
        if answer.status >= 300:
            raise ApiError(answer.status, found.get("message", ""))
        return found

    def watch(self, path: str, version: str) -> Iterator[dict]:
        """The events of a resource, until the API server ends the watch."""
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        answer = self._pool.request(
            "GET", f"{self.url}{path}?{urllib.parse.urlencode(query)}", preload_content=False
        )
        rest = b""
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            for piece in answer.stream(65536, decode_content=True):
                *lines, rest = (rest + piece).split(b"\n")
                yield from map(json.loads, filter(None, lines))

    def change_in_etcd(self, key: str, change: Callable[[dict], None]) -> None:
        """Change what no client of the API server can, such as when an object was created."""
        encoded = base64.b64encode(key.encode()).decode()
        (found,) = self._ask_etcd("range", {"key": encoded})["kvs"]
        obj = json.loads(base64.b64decode(found["value"]))
        change(obj)
        value = base64.b64encode(json.dumps(obj).encode()).decode()
        self._ask_etcd("put", {"key": encoded, "value": value})

    def _ask_etcd(self, what: str, body: dict) -> dict:
        return self._pool.request("POST", f"{self._etcd}/v3/kv/{what}", json=body).json()


def is_custom(resource: Resource) -> bool:
    return "." in resource.group and not resource.group.endswith(".k8s.io")


def define(api: Api, plural: str) -> None:
    """Define a custom resource, which has any fields."""
    resource = RESOURCES[plural]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"plural": plural, "singular": resource.kind.lower(), "kind": resource.kind}
    schema = {"schema": {"openAPIV3Schema": anything}}
    version = {"name": resource.version, "served": True, "storage": True, **schema}
    spec = {"scope": "Namespaced", "names": names, "versions": [version]}
    body = {
        "metadata": {"name": f"{plural}.{resource.group}"},
        "spec": {"group": resource.group, **spec},
    }
    api.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)


def path_of(
    plural: str, namespace: str | None = None, name: str = "", subresource: str = ""
) -> str:
    resource = RESOURCES[plural]
    parts = ["api" if not resource.group else "apis", resource.api_version]
    if namespace and resource.namespaced:
        parts += ["namespaces", namespace]
    return "/" + "/".join([*parts, plural, *filter(None, (name, subresource))])


class Names:
    """The namespaces of a test: the names that it uses, and those on a cluster that tests share.

    Both are equally long, so that tables look the same, and start with the same letter, so that they sort alike.
    """

    FIRST = "013"  # in no word, and Kubernetes never uses them in random names
    DIGITS = string.digits + string.ascii_lowercase

    def __init__(self, numbers: Iterator[int] | None) -> None:
        self._numbers = numbers  # not used before; None: the names are the real ones
        self._real: dict[str, str] = {}

    @property
    def all(self) -> list[str]:
        return list(self._real.values())

    def add(self, name: str) -> None:
        if self._numbers is None:
            self._real[name] = name
            return
        number, digits = next(self._numbers), ""
        while number >= len(self.FIRST) or len(name) > len(digits) + 2:
            number, digit = divmod(number, len(self.DIGITS))
            digits = self.DIGITS[digit] + digits
        self._real[name] = name[0] + self.FIRST[number] + digits

    def real(self, name: str | None) -> str | None:
        return self._real.get(name, name)

    def translate(self, text: str) -> str:
        """A text with the real names."""
        return self._replaced(text, self._real)

    def restore(self, text: str) -> str:
        """A text with the names that the test uses."""
        return self._replaced(text, {real: name for name, real in self._real.items()})

    @staticmethod
    def _replaced(text: str, names: dict[str, str]) -> str:
        if not names:
            return text
        either = "|".join(map(re.escape, names))
        return re.sub(rf"(?<![\w-])({either})(?![\w-])", lambda found: names[found[0]], text)


def only_embedded(what: str) -> NoReturn:
    pytest.skip(f"needs the embedded cluster: only that has {what}")


class RemoteStore:
    """What the embedded cluster's Store is to tests and to the kubelet, for some namespaces of a real API server."""

    def __init__(self, api: Api, namespaces: Names) -> None:
        self.api, self.namespaces = api, namespaces
        self.lock = threading.RLock()
        self.served = {
            resource.plural for resource in RESOURCES.values() if not is_custom(resource)
        }
        self.on_change: Callable[[str, dict], None] = lambda plural, obj: None  # of Pods

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        only_embedded(f"`cluster.store.{name}`")

    def get(self, plural: str, namespace: str, name: str) -> dict | None:
        real = self.namespaces.real
        name = real(name) if plural == "namespaces" else name
        try:
            return self.api.ask("GET", path_of(plural, real(namespace), name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, plural: str, namespace: str | None = None) -> list[dict]:
        if plural == "clonesets":  # which only the embedded cluster has
            return []
        if not RESOURCES[plural].namespaced:
            return self.api.ask("GET", path_of(plural))["items"]
        real = self.namespaces.real
        wanted = sorted(self.namespaces.all) if namespace is None else [real(namespace)]
        return [
            item for name in wanted for item in self.api.ask("GET", path_of(plural, name))["items"]
        ]

    def children(self, uid: str, plural: str) -> list[dict]:
        found = self.list(plural)
        return [o for o in found if (owner := controller_of(o)) and owner["uid"] == uid]

    def create(self, plural: str, obj: dict) -> dict:
        resource = RESOURCES[plural]
        if not resource.namespaced:
            only_embedded(f"{plural} of its own")
        if plural not in self.served:
            only_embedded(plural)
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        namespace = self.namespaces.real(obj["metadata"].get("namespace", ""))
        if namespace:
            body["metadata"] = {**obj["metadata"], "namespace": namespace}
        return self.api.ask("POST", path_of(plural, namespace), body)

    def change(self, plural: str, obj: dict, **fields: dict) -> dict:
        """Replace an object's status; or its annotations and labels, where `metadata` is given."""
        metadata = obj["metadata"]
        at = plural, metadata.get("namespace"), metadata["name"]
        if "status" in fields:
            patch = [{"op": "add", "path": "/status", "value": fields.pop("status")}]
            kind = "application/json-patch+json"
            obj = self.api.ask("PATCH", path_of(*at, "status"), patch, kind)
        for field, value in fields.items():
            if field == "metadata":
                value = {
                    key: {**dict.fromkeys(metadata.get(key, {})), **value.get(key, {})}
                    for key in ("annotations", "labels")
                }
            obj = self.api.ask("PATCH", path_of(*at), {field: value}, MERGE)
        return obj

    def delete(
        self, plural: str, namespace: str, name: str, uid: str | None = None, **options
    ) -> None:
        """Delete an object, if it is there and has that uid; a Pod without options at once."""
        if uid:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        try:
            path = path_of(plural, self.namespaces.real(namespace), name)
            self.api.ask("DELETE", path, options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
