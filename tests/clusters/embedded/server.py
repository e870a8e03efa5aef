"""The API server of the embedded cluster: HTTP on one side, the store on the other.

Held to the exchanges in tests/clusters/recorded/ by tests/test_cluster.py. A request that nobody foresaw is answered 404 and
remembered in `unexpected`, which fails the test.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gzip
import json
import queue
import re
import socket
import socketserver
import ssl
import sys
import threading
import time
import traceback
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

import jsonpatch

from . import admission, discovery, eviction, kubelet, openapi, selectors
from .admission import Refused
from .controllers import Controllers
from .store import RESOURCES, Entry, Key, Resource, Store, continue_token, decoded_token, now, whole

VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2",
    "gitCommit": "embedded",
    "gitTreeState": "clean",
    "buildDate": "2026-08-21T00:00:00Z",
    "goVersion": "go1.26.6",
    "compiler": "gc",
    "platform": "linux/amd64",
}
GZIP_FROM = 128 * 1024  # bytes of an answer; smaller ones are not worth it
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"  # of kubectl rollout undo
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "conditions": "type",
}
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
OWN_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


class Request(NamedTuple):
    method: str
    path: str  # without the query
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    user: str = ""

    @property
    def verb(self) -> str:
        """How Kubernetes calls it: get, list, watch, create, patch ... ("" outside of resources)."""
        target = Target.of(self.path)
        if target is None:
            return ""
        if self.method == "GET":
            watching = self.query.get("watch") in ("true", "1")
            return "get" if target.name else "watch" if watching else "list"
        return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(
            self.method, ""
        )


class Target(NamedTuple):
    """What a path names."""

    resource: Resource
    namespace: str | None  # None: all of them, or the resource has none
    name: str | None
    subresource: str | None

    @classmethod
    def of(cls, path: str) -> Target | None:
        found = re.fullmatch(
            r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v1\w*)(?:/namespaces/(?P<ns>[^/]+)(?=/[a-z]))?/(?P<rest>[a-z].*)",
            path,
        )
        if not found:
            return None
        plural, name, subresource, *_ = *found["rest"].split("/"), None, None
        resource = RESOURCES.get(plural)
        if (
            resource is None
            or (resource.group, resource.version) != (found["group"] or "", found["version"])
            or (found["ns"] and not resource.namespaced)
        ):
            return None
        return cls(resource, found["ns"], name and urllib.parse.unquote(name), subresource)


class Reached(threading.Event):
    """Whether a request has met its fault; a class of its own for --late, see conftest.py."""


@dataclasses.dataclass
class Fault:
    """What happens to a request instead of, or before, its answer."""

    method: str = ""  # any
    path: str = ""  # a regular expression searched in path and query; any
    user_agent: str = ""  # a part of it; any
    times: int = 1
    status: int = 0  # answered in place of the right answer, with `headers` and `body`
    acts: bool = False  # the server acts all the same before it answers with the status
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    body: bytes | dict = b""
    repeat: int = 1  # how many times the body is sent
    delay: float = 0.0  # seconds before anything else
    drop: str = ""  # "before" or "after" the server acted: the connection is cut without an answer
    truncate: bool = False  # half of the right answer, then the connection is cut
    release: threading.Event | None = None  # the request waits for it
    reached: Reached = dataclasses.field(default_factory=Reached)

    def applies(self, method: str, target: str, agent: str) -> bool:
        return (
            self.times > 0
            and self.method in ("", method)
            and self.user_agent in agent
            and bool(re.search(self.path, target))
        )


Rule = dict  # {"verbs": [...], "apiGroups": [...], "resources": [...], "namespace": "shop" (absent: all)}


class ApiServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(
        self,
        store: Store,
        controllers: Controllers,
        injector: admission.Injector,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.store, self.controllers, self.injector, self.tls = store, controllers, injector, tls
        self.tokens: dict[
            str, str | Callable[[], str | None]
        ] = {}  # token -> user, or what tells its user now
        self.rules: dict[
            str, list[Rule]
        ] = {}  # user -> what it may do; a user without an entry may do anything
        self.faults: list[Fault] = []
        self.chaos: Callable[[str, str, str], Fault | None] = lambda method, target, agent: None
        self.requests: list[Request] = []
        self.compressed: list[str] = []  # the paths of answers that were
        self.unexpected: list[str] = []
        self.image_policy: Callable[[dict], None] = lambda pod: None  # may raise Refused
        # Called when a request has been acted on, before its answer is sent
        self.after: Callable[[Request, int, bytes], None] = lambda request, code, content: None
        # Called before a request is acted on; with its method, target and user agent
        self.begin: Callable[[str, str, str], None] = lambda method, target, agent: None
        self.connections: set[socket.socket] = set()
        self.stopping = threading.Event()
        self.is_cut = False

    def get_request(self):
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls:  # the handshake is the handler thread's, not the accepting one's
            connection = self.tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        self.connections.add(connection)
        return connection, address

    def shutdown_request(self, request) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request, client_address) -> None:
        """A client that hangs up, or a fault that cut the connection, is nothing to report; a bug is."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError) and not self.is_cut:
            self.unexpected.append(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")

    def cut_connections(self) -> None:
        self.is_cut = True  # a connection that is being read goes on without TLS
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def user_of(self, headers: dict[str, str]) -> str:
        authorization = headers.get("authorization", "")
        if not authorization.lower().startswith("bearer "):
            return "system:anonymous"
        user = self.tokens.get(authorization[7:])
        user = user() if callable(user) else user
        if user is None:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return user

    def may(self, user: str, verb: str, group: str, resource: str, namespace: str | None) -> bool:
        def has(rule: Rule, field: str, value: str) -> bool:
            return value in rule[field] or "*" in rule[field]

        if user == "system:anonymous":
            return False
        return user not in self.rules or any(
            has(rule, "verbs", verb)
            and has(rule, "apiGroups", group)
            and has(rule, "resources", resource)
            and rule.get("namespace") in (None, namespace)
            for rule in self.rules[user]
        )

    def take_fault(self, method: str, target: str, agent: str) -> Fault | None:
        with self.store.lock:
            for fault in self.faults:
                if fault.applies(method, target, agent):
                    fault.times -= 1
                    return fault
        return self.chaos(method, target, agent)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: ApiServer

    def log_message(self, format: str, *args) -> None:
        pass

    def setup(self) -> None:
        if self.server.tls:
            self.request.settimeout(10)
            try:
                self.request.do_handshake()
            except (
                AttributeError
            ):  # cut_connections was quicker: shutdown() takes a socket's TLS object away
                raise ConnectionAbortedError from None
            self.request.settimeout(None)
        super().setup()

    def handle_one_request(self) -> None:
        super().handle_one_request()
        if self.server.stopping.is_set():
            self.close_connection = True

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        if len(body) < length or self.server.is_cut:  # the client has ended, or TLS has
            self.close_connection = True
        else:
            self._serve_request(body)

    def _serve_request(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        # A line for each value: that of a header that is repeated must be told from one with commas.
        values = {name.lower(): self.headers.get_all(name) for name in self.headers}
        headers = {name: "\n".join(found) for name, found in values.items()}
        request = Request(self.command, path, dict(urllib.parse.parse_qsl(query)), headers, body)
        fault = self.server.take_fault(self.command, self.path, headers.get("user-agent", ""))
        if fault:
            fault.reached.set()
            if fault.release:
                fault.release.wait(60)
            if fault.delay:
                self.server.stopping.wait(fault.delay)
            if fault.drop == "before":
                self._cut()
                return
            if fault.status and not fault.acts:
                self.server.requests.append(request)
                self._send_fault(fault)
                return
        retry_after = None
        self.server.begin(self.command, self.path, headers.get("user-agent", ""))
        try:
            request = request._replace(user=self.server.user_of(headers))
            self.server.requests.append(request)
            answer = self._answer(request)
        except Refused as refused:
            answer = (refused.code, status_body(refused))
            retry_after = getattr(refused, "retry_after", None)
        if answer is None:
            return  # a watch, which has sent its answer
        code, content = answer
        self.server.after(request, code, content)
        if retry_after:
            self._send(code, content, **{"Retry-After": str(retry_after)})
        elif fault and fault.status:
            self._send_fault(fault)
        elif fault and fault.drop == "after":
            self._cut()
        elif fault and fault.truncate:
            self._send(code, content, cut_at=len(content) // 2)
        elif (
            len(content) > GZIP_FROM
            and "gzip" in request.headers.get("accept-encoding", "")
            and code == 200
        ):
            self._send_compressed(content)
        else:
            self._send(code, content, **self._type_of(request))

    def _send_fault(self, fault: Fault) -> None:
        body = fault.body if isinstance(fault.body, bytes) else json.dumps(fault.body).encode()
        self._send(fault.status, body, repeat=fault.repeat, **fault.headers)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    def _type_of(self, request: Request) -> dict[str, str]:
        if discovery.is_aggregated(request.path, request.headers.get("accept", "")):
            return {"Content-Type": discovery.AGGREGATED}
        return {}

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(
        self, code: int, content: bytes, cut_at: int | None = None, repeat: int = 1, **headers: str
    ) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) * repeat))
        self.end_headers()
        for _ in range(repeat):
            self.wfile.write(content[:cut_at])
        self.wfile.flush()
        if cut_at is not None:
            self._cut()

    def _send_compressed(self, content: bytes) -> None:
        """As an API server's deferredResponseWriter does (k8s.io/apiserver, responsewriters/writers.go)."""
        self.server.compressed.append(self.path.partition("?")[0])
        self._stream_head(**{"Content-Encoding": "gzip", "Vary": "Accept-Encoding"})
        compressed = gzip.compress(content, compresslevel=1)
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(compressed), compressed))
        self.wfile.flush()

    # Answers

    def _answer(self, request: Request) -> tuple[int, bytes] | None:
        if request.path == "/readyz":
            return 200, b"ok"
        if request.path == "/version":
            return 200, json.dumps(VERSION).encode()
        if request.path in discovery.PATHS and request.method == "GET":
            found = discovery.answer(request.path, request.headers.get("accept", ""))
            return 200, json.dumps(found).encode()
        is_anonymous = request.user == "system:anonymous"  # who has no role system:basic-user
        if request.path in (REVIEWS, OWN_REVIEWS) and is_anonymous:
            _, _, group, _, resource = request.path.split("/")
            message = f'{resource}.{group} is forbidden: User "system:anonymous" cannot create'
            message += f' resource "{resource}" in API group "{group}" at the cluster scope'
            raise Refused(403, "Forbidden", message)
        if request.path == REVIEWS and request.method == "POST":
            return self._review(request)
        if request.path == OWN_REVIEWS and request.method == "POST":
            review = {**json.loads(request.body), "metadata": {"creationTimestamp": now()}}
            groups = ["system:authenticated"]
            review["status"] = {"userInfo": {"username": request.user, "groups": groups}}
            return 201, json.dumps(review).encode()
        if request.path.startswith(openapi.PREFIX) and request.method == "GET":
            with contextlib.suppress(KeyError):
                return 200, json.dumps(openapi.document(request.path)).encode()
        if request.path == "/openapi/v2":  # kubectl goes on without it
            raise Refused(404, "NotFound", "the server could not find the requested resource", {})
        target = Target.of(request.path)
        if target is None or (
            target.subresource and target.subresource not in target.resource.subresources
        ):
            self.server.unexpected.append(f"{request.method} {self.path}")
            raise Refused(404, "NotFound", "the server could not find the requested resource", {})
        self._authorize(request, target)
        answers = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "patch": self._patch,
            "update": self._update,
            "delete": self._delete,
        }
        return answers[request.verb](request, target)

    def _authorize(self, request: Request, target: Target) -> None:
        resource = target.resource
        what = resource.plural + (f"/{target.subresource}" if target.subresource else "")
        # A namespace counts as being in itself: a Role in it may allow to read it.
        namespace = target.name if resource.plural == "namespaces" else target.namespace
        if self.server.may(request.user, request.verb, resource.group, what, namespace):
            return
        named = f' "{target.name}"' if target.name else ""
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        message = (
            f'{resource.qualified}{named} is forbidden: User "{request.user}" cannot {request.verb} resource '
            f'"{what}" in API group "{resource.group}" {where}'
        )
        raise Refused(403, "Forbidden", message, details_of(target))

    def _review(self, request: Request) -> tuple[int, bytes]:
        review = json.loads(request.body)
        asked = review["spec"]["resourceAttributes"]
        namespace, group = asked.get("namespace") or None, asked.get("group", "")
        what = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        review["status"] = {
            "allowed": self.server.may(request.user, asked["verb"], group, what, namespace)
        }
        review["metadata"] = {
            "managedFields": [stamp("python", "authorization.k8s.io/v1", {"f:spec": {}})]
        }
        keys = ("kind", "apiVersion", "metadata", "spec", "status")
        return 201, json.dumps({key: review[key] for key in keys}).encode()

    def _get(self, request: Request, target: Target) -> tuple[int, bytes]:
        entry = self._find(target)
        if "as=PartialObjectMetadata;" in request.headers.get("accept", ""):
            return 200, metadata_only(entry.object)
        return 200, whole(target.resource, entry.json)

    def _find(self, target: Target) -> Entry:
        entry = self.server.store.entry(target.resource.plural, target.namespace or "", target.name)
        if entry is None:
            raise Refused(
                404,
                "NotFound",
                f'{target.resource.qualified} "{target.name}" not found',
                details_of(target),
            )
        return entry

    def _list(self, request: Request, target: Target) -> tuple[int, bytes]:
        store, query = self.server.store, request.query
        try:
            chosen = selectors.parse(
                target.resource.plural, query.get("labelSelector"), query.get("fieldSelector")
            )
        except ValueError as error:
            raise Refused(400, "BadRequest", str(error)) from None
        token = query.get("continue")
        if token:
            version, rest = self._continued(token, target)
            rest = [pair for pair in rest if chosen(pair[1])]
        else:
            with store.lock:
                version = store.version
                rest = [
                    pair
                    for pair in store.entries(target.resource.plural, target.namespace)
                    if chosen(pair[1])
                ]
        limit = int(query.get("limit") or 0)
        page = rest[:limit] if limit and query.get("resourceVersion") != "0" else rest
        metadata: dict = {"resourceVersion": str(version)}
        if len(page) < len(rest):
            left = rest[len(page) :]
            metadata["continue"] = store.keep_page(version, left, target.namespace is not None)
            if not (query.get("labelSelector") or query.get("fieldSelector")):
                metadata["remainingItemCount"] = len(left)
        if "as=PartialObjectMetadataList;" in request.headers.get("accept", ""):
            kind, group_version = "PartialObjectMetadataList", "meta.k8s.io/v1"
            items = [metadata_only(entry.object) for _, entry in page]
        else:
            kind, group_version = f"{target.resource.kind}List", target.resource.api_version
            items = [entry.json for _, entry in page]
        head = json.dumps(
            {"kind": kind, "apiVersion": group_version, "metadata": metadata}, separators=(",", ":")
        )
        whole = b"[" + b",".join(items) + b"]"
        if (
            kind == "PartialObjectMetadataList" and not items
        ):  # as Go writes a list that was never made
            whole = b"null"
        return 200, head[:-1].encode() + b',"items":' + whole + b"}\n"

    def _continued(self, token: str, target: Target) -> tuple[int, list[tuple[Key, Entry]]]:
        store = self.server.store
        try:
            found = decoded_token(token)
            rest = store.next_page(token)
        except ValueError:
            message = "invalid continue token: continue key is not valid: invalid character '\\u0081' looking for "
            raise Refused(400, "BadRequest", message + "beginning of value") from None
        if rest is None and found["rv"] == -1:
            entries = store.entries(target.resource.plural, target.namespace)
            is_whole = target.namespace is None
            rest = [
                row
                for row in entries
                if ("/".join(row[0]) if is_whole else row[0][1]) >= found["start"]
            ]
        if rest is None:
            message = (
                "The provided continue parameter is too old to display a consistent list result."
            )
            fresh = {"continue": continue_token(-1, found["start"])}
            raise Refused(410, "Expired", message, metadata=fresh)
        return store.version, rest

    def _watch(self, request: Request, target: Target) -> None:
        store, query, plural = self.server.store, request.query, target.resource.plural
        chosen = selectors.parse(plural, query.get("labelSelector"), query.get("fieldSelector"))
        initial = query.get("sendInitialEvents") == "true"
        since = query.get("resourceVersion")
        anew = initial or since in (None, "", "0")
        watch = store.watch(plural, None if anew else int(since), chosen.name)
        if watch is None:
            message = f"too old resource version: {since} ({store.version})"
            raise Refused(410, "Expired", message)
        missed, news = watch
        deadline = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
        try:
            self._stream_head()
            for event in missed:
                if self._wanted(event, target, chosen):
                    self._stream(event.type.encode(), whole(target.resource, event.json))
            if initial and query.get("allowWatchBookmarks") == "true":
                done = {
                    "resourceVersion": str(store.version),
                    "annotations": {"k8s.io/initial-events-end": "true"},
                }
                self._bookmark(target.resource, done)
            self.wfile.flush()
            while not self.server.stopping.is_set():
                try:
                    event = news.get(timeout=min(max(deadline - time.monotonic(), 0), 0.5))
                except queue.Empty:
                    if time.monotonic() >= deadline:
                        break
                    continue
                if self._wanted(event, target, chosen):
                    self._stream(event.type.encode(), whole(target.resource, event.json))
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            store.unwatch(plural, news)

    def _wanted(self, event, target: Target, chosen: Callable) -> bool:
        return target.namespace in (None, event.object["metadata"].get("namespace", "")) and chosen(
            event
        )

    def _stream_head(self, **headers: str) -> None:
        self.send_response(200)
        for name, value in {
            "Content-Type": "application/json",
            "Transfer-Encoding": "chunked",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()

    def _stream(self, kind: bytes, obj: bytes) -> None:
        line = b'{"type":"%s","object":%s}\n' % (kind, obj)
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _bookmark(self, resource: Resource, metadata: dict) -> None:
        empty = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        if resource.plural == "deployments":
            template = {"metadata": {}, "spec": {"containers": None}}
            empty |= {
                "spec": {"selector": None, "template": template, "strategy": {}},
                "status": {},
            }
        self._stream(b"BOOKMARK", json.dumps(empty).encode())

    # Writing

    def _create(self, request: Request, target: Target) -> tuple[int, bytes]:
        obj = body_of(request)
        if target.subresource == "eviction":
            store, terminate = self.server.store, self.server.controllers.terminate
            with store.lock:
                pod = self._find(target).object
                eviction.evict(store, terminate, pod, obj, is_dry_run(request))
            done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
            return 201, json.dumps({**done, "code": 201}).encode()
        if request.query.get("fieldValidation") == "Strict":
            openapi.refuse_unknown_fields(target.resource, obj)
        obj.pop("kind", None), obj.pop("apiVersion", None)
        created = create_object(
            self.server,
            target.resource,
            obj,
            target.namespace,
            manager_of(request),
            is_dry_run(request),
        )
        return 201, whole(target.resource, json.dumps(created).encode())

    def _patch(self, request: Request, target: Target) -> tuple[int, bytes]:
        kind = request.headers.get("content-type")
        if kind not in (STRATEGIC, MERGE, JSON_PATCH):
            raise Refused(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        patch = body_of(request)
        with self.server.store.lock:
            current = self._find(target).object
            if kind == JSON_PATCH:
                changed = jsonpatch.apply_patch(current, patch)
            else:
                patch.pop("kind", None), patch.pop("apiVersion", None)
                refuse_patch(patch, current, target)
                changed = merged(current, patch, kind == STRATEGIC)
            if target.resource.plural == "pods" and not target.subresource:
                self._refuse_pod_update(target, current, changed)
            return 200, self._store_change(request, target, current, changed)

    def _refuse_pod_update(self, target: Target, current: dict, changed: dict) -> None:
        store, namespace = self.server.store, target.namespace
        kubelet.refuse_update(target.name, current, changed)
        if changed["spec"] != current["spec"]:
            labels = store.get("namespaces", "", namespace)
            admission.refuse_by_pod_security(changed, labels, target.name)
            self.server.image_policy(changed)

    def _update(self, request: Request, target: Target) -> tuple[int, bytes]:
        with self.server.store.lock:
            current = self._find(target).object
            changed = body_of(request)
            changed.pop("kind", None), changed.pop("apiVersion", None)
            kept = {key: value for key, value in current["metadata"].items() if key in UNMANAGED}
            changed["metadata"] = {**kept, **changed["metadata"]}
            refuse_patch(
                {"metadata": {"resourceVersion": changed["metadata"].get("resourceVersion")}},
                current,
                target,
            )
            return 200, self._store_change(request, target, current, changed)

    def _store_change(
        self, request: Request, target: Target, current: dict, changed: dict
    ) -> bytes:
        plural = target.resource.plural
        if target.subresource != "status" and "status" in current:
            changed["status"] = current["status"]
        if plural in WORKLOADS:
            refuse_strategy(target, changed)
            admission.set_workload_defaults(plural, changed)
            admission.set_template_generation(plural, changed, current)
        spec_changed = changed.get("spec") != current.get("spec")
        if "generation" in current["metadata"] and spec_changed:
            changed["metadata"]["generation"] = current["metadata"]["generation"] + 1
        if changed != current:
            note_manager(current, changed, manager_of(request), target.resource.api_version)
        if not is_dry_run(request):
            changed = self.server.store.update(plural, changed)
        return whole(target.resource, json.dumps(changed).encode())

    def _delete(self, request: Request, target: Target) -> tuple[int, bytes]:
        options = json.loads(request.body) if request.body else {}
        policy = (
            options.get("propagationPolicy")
            or request.query.get("propagationPolicy")
            or "Background"
        )
        found = self._find(target)
        if not is_dry_run(request):
            delete_object(self.server, target.resource, found.object, orphan=policy == "Orphan")
        details = {**details_of(target), "uid": found.object["metadata"]["uid"]}
        answer = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }
        return 200, json.dumps(answer).encode()


WORKLOADS = ("deployments", "statefulsets", "daemonsets")
REPLICATED = ("replicasets", "replicationcontrollers", "clonesets")  # no rollouts, only replicas


def body_of(request: Request) -> dict:
    """The object that a request carries; what is not JSON (kubectl's typed commands send protobuf) is refused."""
    try:
        return json.loads(request.body)
    except ValueError:
        raise Refused(415, "UnsupportedMediaType", "415: Unsupported Media Type", {}) from None


def is_dry_run(request: Request) -> bool:
    return request.query.get("dryRun") == "All"


def manager_of(request: Request) -> str:
    return (
        request.query.get("fieldManager")
        or request.headers.get("user-agent", "unknown").partition("/")[0]
    )


def details_of(target: Target) -> dict:
    found = {"name": target.name, "group": target.resource.group, "kind": target.resource.plural}
    return {field: value for field, value in found.items() if value}


def status_body(refused: Refused) -> bytes:
    body: dict = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": refused.metadata,
        "status": "Failure",
        "message": refused.message,
    }
    if refused.reason:
        body["reason"] = refused.reason
    if refused.details is not None:
        body["details"] = refused.details
    return json.dumps({**body, "code": refused.code}).encode()


def metadata_only(obj: dict) -> bytes:
    partial = {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj["metadata"],
    }
    return json.dumps(partial, separators=(",", ":")).encode()


# Objects on their way in and out


def stamp(manager: str, api_version: str, fields: dict) -> dict:
    stamped = {"manager": manager, "operation": "Update", "apiVersion": api_version, "time": now()}
    return {**stamped, "fieldsType": "FieldsV1", "fieldsV1": fields}


def field_set(value: object) -> dict:
    """The fields of a value as managedFields names them; most lists count as a whole."""
    if not isinstance(value, dict):
        return {}
    return {
        key if key.startswith("k:") else f"f:{key}": field_set(inner)
        for key, inner in value.items()
    }


UNMANAGED = {
    "managedFields",
    "resourceVersion",
    "generation",
    "uid",
    "creationTimestamp",
    "name",
    "namespace",
}


def managed(obj: dict) -> dict:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in UNMANAGED}
    fields = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    if "containers" in fields.get("spec", {}):  # of a Pod, by name
        keyed = {
            key: {f'k:{{"name":"{item["name"]}"}}': item for item in fields["spec"][key]}
            for key in ("containers", "initContainers")
            if key in fields["spec"]
        }
        fields["spec"] = {**fields["spec"], **keyed}
    return {"metadata": metadata, **fields}


def changed_fields(old: object, new: object) -> dict:
    """The fields of `new` that differ from `old`, as a nested dict of them."""
    if not isinstance(new, dict):
        return {}
    old = old if isinstance(old, dict) else {}
    changed = {}
    for key, value in new.items():
        if old.get(key) != value:
            inner = changed_fields(old.get(key), value) if isinstance(value, dict) else value
            if inner or not value:  # else a key was only removed
                changed[key] = inner
    return changed


def without(fields: dict, taken: dict) -> dict:
    """A managedFields tree less another's leaves."""
    left = {}
    for key, inner in fields.items():
        if key not in taken:
            left[key] = inner
        elif taken[key] and inner:
            rest = without(inner, taken[key])
            if rest:
                left[key] = rest
    return left


def only_present(fields: dict, present: dict) -> dict:
    return {
        key: only_present(inner, present[key]) for key, inner in fields.items() if key in present
    }


def joined(one: dict, other: dict) -> dict:
    return {key: joined(one.get(key, {}), other.get(key, {})) for key in {**one, **other}}


def note_manager(old: dict, new: dict, manager: str, api_version: str) -> None:
    """Writes into managedFields who changed what: the changed fields are now this manager's and nobody else's."""
    taken = field_set(changed_fields(managed(old), managed(new)))
    present = field_set(managed(new))
    entries = []
    if not taken:  # keys were removed, which moves no time
        for entry in old["metadata"].get("managedFields", []):
            fields = entry["fieldsV1"]
            left = fields if "subresource" in entry else only_present(fields, present)
            entries.append({**entry, "fieldsV1": left})
        new["metadata"]["managedFields"] = entries
        return
    for entry in copy.deepcopy(old["metadata"].get("managedFields", [])):
        if "subresource" in entry:
            entries.append(entry)
            continue
        fields = only_present(without(entry["fieldsV1"], taken), present)
        if entry["manager"] == manager:
            taken = joined(fields, taken)
        elif fields:
            entries.append({**entry, "fieldsV1": fields})
    new["metadata"]["managedFields"] = [*entries, stamp(manager, api_version, taken)]


def create_object(
    server: ApiServer,
    resource: Resource,
    obj: dict,
    namespace: str | None,
    manager: str,
    dry_run: bool = False,
) -> dict:
    """Creates an object as a client would, with defaults and admission."""
    store = server.store
    obj = copy.deepcopy(obj)
    metadata = obj.setdefault("metadata", {})
    if resource.namespaced and namespace not in (None, metadata.get("namespace", namespace)):
        message = (
            "the namespace of the provided object does not match the namespace sent on the request"
        )
        raise Refused(400, "BadRequest", message)
    if resource.namespaced:
        metadata["namespace"] = namespace or metadata.get("namespace", "default")
    fields = field_set(managed(obj))
    if resource.plural == "pods":
        obj = admission.admit_pod(store, server.injector, obj, dry_run)
        metadata = obj["metadata"]
    admission.set_name(store, resource.plural, metadata)
    if resource.namespaced and not store.get("namespaces", "", metadata["namespace"]):
        details = {"name": metadata["namespace"], "kind": "namespaces"}
        raise Refused(404, "NotFound", f'namespaces "{metadata["namespace"]}" not found', details)
    if store.get(resource.plural, metadata.get("namespace", ""), metadata["name"]):
        details = details_of(Target(resource, namespace, metadata["name"], None))
        raise Refused(
            409,
            "AlreadyExists",
            f'{resource.qualified} "{metadata["name"]}" already exists',
            details,
        )
    if resource.plural in WORKLOADS:
        admission.set_workload_defaults(resource.plural, obj)
        admission.set_template_generation(resource.plural, obj)
        obj.setdefault("status", {})
    if resource.plural in (*WORKLOADS, *REPLICATED, "poddisruptionbudgets"):
        metadata["generation"] = 1
    if resource.plural in REPLICATED:
        obj["spec"].setdefault("replicas", 1)
        obj.setdefault("status", {"replicas": 0})
    if resource.plural in ("replicasets", "replicationcontrollers"):
        obj["spec"]["template"].setdefault("metadata", {})
        admission.set_template_defaults(obj["spec"]["template"]["spec"])
    if resource.plural == "namespaces":
        metadata["labels"] = {
            "kubernetes.io/metadata.name": metadata["name"],
            **metadata.get("labels", {}),
        }
        obj.setdefault("spec", {"finalizers": ["kubernetes"]})
        obj.setdefault("status", {"phase": "Active"})
    metadata.setdefault("managedFields", [stamp(manager, resource.api_version, fields)])
    if not dry_run:
        return store.create(resource.plural, obj)
    metadata |= {"uid": "00000000-0000-4000-8000-000000000000", "creationTimestamp": now()}
    return obj


def delete_object(server: ApiServer, resource: Resource, obj: dict, orphan: bool = False) -> None:
    """Deletes an object and, unless its children are to be orphans, what it controls."""
    store, metadata = server.store, obj["metadata"]
    with store.lock:
        if resource.plural == "pods":
            server.controllers.terminate(obj)
            return
        if resource.plural == "namespaces":
            for plural in RESOURCES:
                for inner in store.list(plural, metadata["name"]):
                    store.delete(plural, metadata["name"], inner["metadata"]["name"])
        store.delete(resource.plural, metadata.get("namespace", ""), metadata["name"])
        for plural in ("replicasets", "controllerrevisions", "pods"):
            for child in store.children(metadata["uid"], plural):
                if orphan:
                    others = [
                        o
                        for o in child["metadata"]["ownerReferences"]
                        if o["uid"] != metadata["uid"]
                    ]
                    orphaned = {**child["metadata"], "ownerReferences": others}
                    store.change(plural, child, metadata=orphaned)
                else:
                    delete_object(server, RESOURCES[plural], child)


def merged(old: object, patch: object, strategic: bool, field: str = "") -> object:
    """A JSON merge patch, or the part of a strategic one that this emulator knows: lists merged by name or type."""
    if isinstance(patch, dict):
        result = dict(old) if isinstance(old, dict) else {}
        for key, value in patch.items():
            if strategic and key.startswith("$setElementOrder/"):
                continue  # kubectl sends the order that the list has anyway
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merged(result.get(key), value, strategic, key)
        return result
    if strategic and isinstance(patch, list) and isinstance(old, list) and field in MERGE_KEYS:
        by = MERGE_KEYS[field]
        known = {item[by]: item for item in old}
        in_order = iter([item for item in patch if item[by] in known])  # it reorders the list
        named = {item[by] for item in patch}
        kept = [
            merged(known[new[by]], new, strategic)
            for item in old
            for new in [next(in_order) if item[by] in named else item]
        ]
        return kept + [item for item in patch if item[by] not in known]
    return copy.deepcopy(patch)


LABEL_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"


def refuse_strategy(target: Target, changed: dict) -> None:
    """Who turns a StatefulSet into OnDelete has to remove the parameters of its rolling updates."""
    strategy = (
        changed["spec"].get("updateStrategy", {}) if target.resource.kind == "StatefulSet" else {}
    )
    if strategy.get("type") == "OnDelete" and "rollingUpdate" in strategy:
        only = "only allowed for updateStrategy 'RollingUpdate'"
        field = "spec.updateStrategy.rollingUpdate"
        message = f'StatefulSet.apps "{target.name}" is invalid: {field}: Invalid value: {only}'
        raise Refused(422, "Invalid", message, details_of(target))


def refuse_patch(patch: dict, current: dict, target: Target) -> None:
    metadata, kind = patch.get("metadata", {}), target.resource.kind
    named = (
        f'{kind}.{target.resource.group} "{target.name}"'
        if target.resource.group
        else f'{kind} "{target.name}"'
    )

    def invalid(subject: str, field: str, message: str, details: dict) -> Refused:
        cause = {"reason": "FieldValueInvalid", "message": message, "field": field}
        return Refused(
            422,
            "Invalid",
            f"{subject} is invalid: {field}: {message}",
            {**details, "causes": [cause]},
        )

    version = metadata.get("resourceVersion")
    if version and version != current["metadata"]["resourceVersion"]:
        message = (
            f'Operation cannot be fulfilled on {target.resource.qualified} "{target.name}": the object has been '
            "modified; please apply your changes to the latest version and try again"
        )
        raise Refused(409, "Conflict", message, details_of(target))
    whole_details = {"name": target.name, "group": target.resource.group, "kind": kind}
    if metadata.get("uid", current["metadata"]["uid"]) != current["metadata"]["uid"]:
        what = f'Invalid value: "{metadata["uid"]}": field is immutable'
        raise invalid(named, "metadata.uid", what, whole_details)
    annotations = (
        patch.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {})
    )
    for key, value in annotations.items():
        if value is not None and not isinstance(value, str):
            shown = f"map[spec:map[template:map[metadata:map[annotations:map[{key}:{value}]]]]]"
            raise invalid(
                ' ""', "patch", f'Invalid value: "{shown}": cannot convert int64 to string', {}
            )
        if (
            not re.fullmatch(r"([a-z0-9.-]+/)?" + LABEL_NAME, key)
            or len(key.rpartition("/")[2]) > 63
        ):
            rule = (
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                f"'{LABEL_NAME}')"
            )
            raise invalid(
                named, "spec.template.annotations", f'Invalid value: "{key}": {rule}', whole_details
            )
