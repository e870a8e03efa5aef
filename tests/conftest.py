"""Fixtures: the script as a module, an embedded cluster, the tool as a process."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from clusters import control_plane
from clusters.control_plane import image
from clusters.control_plane.api import Api
from clusters.control_plane.node import Node, NodeCluster, the_node
from clusters.control_plane.remote import RemoteCluster, Shared, create_nodes
from clusters.embedded import Cluster, EmbeddedCluster, server
from clusters.embedded.manifests import container, pod_spec, workload
from clusters.injectors import INJECTORS
from hypothesis import HealthCheck, settings
from support import (
    AT_ONCE,
    NEW,
    PROXY,
    SCRIPT,
    VOLUME,
    Anywhere,
    Finished,
    Running,
    a_workload,
    command,
    config,
    no_signals,
    options_of,
    run_here,
)

FOLDER = pytest.StashKey[Path]()  # of the control plane

settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


settings.load_profile("any-machine")  # speed is never a test's pass or fail


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kubeconfig",
        help="run only the tests that any cluster can serve, on this one, in namespaces of their own",
    )
    # As in `--control-plane tests`, a path may follow: each version is an option without a value
    for option, version in {
        "--control-plane": control_plane.NEWEST,
        **{f"--control-plane={version}": version for version in control_plane.MODULES},
    }.items():
        parser.addoption(
            option,
            action="store_const",
            const=version,
            dest="control_plane",
            help=f"run the tests that a real control plane can serve on one of Kubernetes {version}, which is built from Go modules",
        )
    parser.addoption(
        "--node",
        action="store_true",
        help="run the tests that a real node can serve on one, with a kubelet and containerd; needs root",
    )
    parser.addoption(
        "--containerd",
        choices=["2"],
        help="with --node: containerd 2, which is built from Go modules; otherwise the one that is installed",
    )
    parser.addoption(
        "--injectors",
        action="store_true",
        help="run the tests of real sidecar injectors, which are built from Go modules, on a real control plane",
    )
    parser.addoption(
        "--seeds", type=int, default=1, help="how many random fault plans to try (default: 1)"
    )
    parser.addoption(
        "--histories",
        type=int,
        help="how many random histories (default: 20; with --control-plane: 0)",
    )
    parser.addoption("--workloads", type=int, default=50, help="of the long run (default: 50)")
    parser.addoption(
        "--kills", type=int, default=2, help="how many runs to interrupt at random (default: 2)"
    )
    parser.addoption(
        "--late",
        type=float,
        default=0,
        help="see each event that a test awaits this many seconds late: tests that depend on being quick fail",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both: also runs with --control-plane")
    config.addinivalue_line("markers", "node: runs with --node; alone, if it is not marked `both`")
    config.addinivalue_line("markers", "alone: has the node for itself")
    config.addinivalue_line("markers", "injectors: runs with --injectors alone")
    config.addinivalue_line("markers", "real: runs with --control-plane alone")
    config.addinivalue_line("markers", "embedded(reason): not with --control-plane")
    config.addinivalue_line(
        "markers", "since(version, feature): not with a --control-plane that is older"
    )
    if seconds := config.getoption("--late"):
        Cluster.wait_for = late(Cluster.wait_for, seconds)
        Running.wait_for_log = late(Running.wait_for_log, seconds)
        Running.wait_for_kubectls = late(Running.wait_for_kubectls, seconds)
        server.Reached.wait = late(server.Reached.wait, seconds)


def late(wait: Callable, seconds: float) -> Callable:
    """A function that waits, and returns so many seconds late."""

    @functools.wraps(wait)
    def wrapped(*parts, **named):
        found = wait(*parts, **named)
        time.sleep(seconds)
        return found

    return wrapped


@pytest.hookimpl(tryfirst=True)  # before the processes of pytest-xdist are started
def pytest_sessionstart(session: pytest.Session) -> None:
    """Build what --control-plane, --node and --injectors need, and start the control plane, once."""
    config = session.config
    if config.getoption("--containerd") and not config.getoption("--node"):
        raise pytest.UsageError("--containerd needs --node")
    injectors, node = config.getoption("--injectors"), config.getoption("--node")
    is_wanted = injectors or node or config.getoption("--control-plane")
    if hasattr(config, "workerinput") or not is_wanted:
        return
    show = config.get_terminal_writer().line
    version = config.getoption("control_plane") or control_plane.NEWEST
    if version != control_plane.NEWEST and (injectors or node):
        raise pytest.UsageError(f"--node and --injectors need Kubernetes {control_plane.NEWEST}")
    try:
        program = control_plane.build_control_plane(version, show)
        for injector in INJECTORS if injectors else ():
            control_plane.build(injector.folder, injector.program, show)
        if node:
            containerd = None
            if config.getoption("--containerd"):
                containerd = control_plane.build_containerd(show)
            started = Node(program, image.packages(show), containerd)
        else:
            started = control_plane.ControlPlane(program)
    except control_plane.Unavailable as missing:
        what = "node" if node else "control plane"
        raise pytest.UsageError(f"no {what}: {missing}") from None
    config.add_cleanup(started.stop)
    config.stash[FOLDER] = started.folder
    if not node:
        create_nodes(Api(started.folder))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """Tell each process of pytest-xdist where the control plane is."""
    if FOLDER in node.config.stash:
        node.workerinput["control_plane"] = str(node.config.stash[FOLDER])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    version = config.getoption("--control-plane") or control_plane.NEWEST
    for item in items:
        marker = item.get_closest_marker("since")
        if marker and control_plane.is_older(version, marker.args[0]):
            reason = "needs Kubernetes {}: {}".format(*marker.args)
            item.add_marker(pytest.mark.skip(reason=reason))
    if config.getoption("--kubeconfig"):
        here = pytest.mark.skip(reason="needs the embedded cluster; --kubeconfig names another")
        for item in items:
            if "anywhere" not in item.fixturenames:
                item.add_marker(here)
    modes = {
        "both": "--control-plane",
        "real": "--control-plane",
        "node": "--node",
        "injectors": "--injectors",
    }
    chosen = {mark for mark, option in modes.items() if config.getoption(option)}

    def is_wanted(item: pytest.Item) -> bool:
        marks = {mark.name for mark in item.iter_markers()}
        if "both" in marks and not {"cluster", "shared"} & set(item.fixturenames):
            return not chosen  # it needs no cluster at all
        if chosen:
            return bool(marks & chosen)
        return "both" in marks or not marks & {"injectors", "node", "real"}

    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = filter(is_wanted, items)


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Iterator[Shared | None]:
    """The control plane of --control-plane, or None."""
    config = request.config
    worker = getattr(config, "workerinput", {})
    folder = worker.get("control_plane") or config.stash.get(FOLDER, None)
    if folder is None:
        yield None
        return
    number, processes = int(worker.get("workerid", "gw0")[2:]), worker.get("workercount", 1)
    found = Shared(Path(folder), itertools.count(number, processes))
    yield found
    found.stop()


@pytest.fixture(scope="session")
def tool(request: pytest.FixtureRequest) -> ModuleType:
    """The script as a module, for its pure functions; for the embedded cluster, it waits less."""
    spec = importlib.util.spec_from_file_location("sidecar_rollout", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["sidecar_rollout"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    assert module.READY_FOR == 10
    assert module.ANSWERS_APART == 1.1
    module.ANSWERS_APART = 0.0  # the tests' injectors write nothing that changes each second
    module.gc = SimpleNamespace(freeze=bool, set_threshold=bool)  # this process goes on
    is_real = map(request.config.getoption, ("--control-plane", "--injectors", "--node"))
    if not any(is_real):
        assert module.SETTLE == 10
        module.SETTLE = 3.0
    if not request.config.getoption("--node"):
        module.READY_FOR = 0.2
    return module


@pytest.fixture(scope="session")
def version() -> str:
    """The version that --version shows."""
    words = [sys.executable, str(SCRIPT), "--version"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1]


@pytest.fixture(scope="session", autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nobody's own kubeconfig, kuberc or kubectl cache has a say here, nor a shell or nohup that ignores signals."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "KUBECONFIG",
            "KUBERNETES_SERVICE_HOST",
            "KUBERNETES_SERVICE_PORT",
            "NO_COLOR",
            "UV_RUN_RECURSION_DEPTH",
        ):
            patch.delenv(name, raising=False)
        for name, value in (("HOME", home), ("KUBECACHEDIR", home / "cache"), ("KUBERC", "off")):
            patch.setenv(name, str(value))
        yield


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    """The injectors that --injectors has built, by name."""
    return {i.program: control_plane.built(i.folder, i.program) for i in INJECTORS}


@pytest.fixture
def cluster(request: pytest.FixtureRequest, shared: Shared | None) -> Iterator[Cluster]:
    """A cluster with a namespace `shop`, whose Pods get the sidecar istio-proxy.

    Embedded or, with --control-plane and --node, real.
    """
    if shared and (marker := request.node.get_closest_marker("embedded")):
        pytest.skip(f"needs the embedded cluster: {marker.args[0]}")
    with contextlib.ExitStack() as stack:
        if request.config.getoption("--node"):
            is_alone = request.node.get_closest_marker("alone") is not None
            stack.enter_context(the_node(shared.folder, is_alone))
            found = stack.enter_context(NodeCluster(shared))
        else:
            found = stack.enter_context(RemoteCluster(shared) if shared else EmbeddedCluster())
        found.namespace("shop", inject=True)
        yield found
        assert found.server.unexpected == []


@pytest.fixture
def run(tool):
    """run(cluster or kubeconfig, *options, **environment): the tool to its end, in this process."""

    def run_tool(where: Cluster | str | None, *options: str, **environment: str) -> Finished:
        kubeconfig = where.kubeconfig if isinstance(where, Cluster) else where
        words, base = command(kubeconfig, *options)
        ended = run_here(tool, words, {**base, **environment})
        assert "Traceback" not in ended.stderr or "--log-level=debug" in options, ended.stderr
        return ended

    return run_tool


@pytest.fixture
def start():
    """start(cluster, *options): the tool as a process that goes on while the test does; see at_once.py for RETRIES and SETTLE."""
    with contextlib.ExitStack() as stack:

        def start_tool(cluster: Cluster, *options: str, **environment: str) -> Running:
            words, base = command(cluster.kubeconfig, *options)
            if environment.keys() & {"RETRIES", "SETTLE"}:
                words[1] = AT_ONCE
            running = Running(words, {**base, **environment})
            stack.callback(running.process.wait)
            stack.callback(running.process.kill)
            return running

        yield start_tool


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


@pytest.fixture
def deployments_a_to_f(cluster):
    """Deployments a to f, one Pod each."""
    for name in "abcdef":
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    return cluster


@pytest.fixture
def planned(tool):
    def make(state: str, pods: int, namespace: str, name: str, **fields):
        ref = tool.ObjectRef("Deployment", namespace, name, "apps")
        return a_workload(tool, ref=ref, total_pods=pods, state=tool.State(state), **fields)

    return make


@pytest.fixture
def drifted_fleet(cluster):
    """Deployments a to g, two Pods each, an hour old; the injector has a newer sidecar."""
    for name in "abcdefg":
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    cluster.injector.container["image"] = NEW
    return cluster


@pytest.fixture
def every_kind(cluster):
    """Four workloads of all kinds, one with a native sidecar, one with claims, and defaults from a LimitRange."""
    cluster.injector.container = dict(PROXY)
    cluster.injector.also = {"volumes": [VOLUME]}
    cluster.create("shop", config())
    limits = {
        "limits": [
            {"type": "Container", "defaultRequest": {"memory": "64Mi"}, "default": {"cpu": "2"}}
        ]
    }
    cluster.create("shop", {"kind": "LimitRange", "metadata": {"name": "defaults"}, "spec": limits})
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    natively = {"sidecar.istio.io/nativeSidecar": "true"}
    cluster.create("shop", workload("Deployment", "native", annotations=natively, replicas=2))
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    claims = [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]
    database = pod_spec(container("app", **mount))
    cluster.create(
        "shop", workload("StatefulSet", "db", database, replicas=2, volumeClaimTemplates=claims)
    )
    cluster.create("shop", workload("DaemonSet", "agent"))
    cluster.settle()
    return cluster


@pytest.fixture
def web_and_api(cluster):
    cluster.create("shop", workload("Deployment", "api"))
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.kubelet.ready_after = 0.3
    return cluster


@pytest.fixture
def a_report(tool):
    """a_report(*options): a Report of an imagined cluster, whose progress line remembers its text."""

    class Line:
        on_terminal = False

        def show(self, text: str) -> None:
            self.text = text

        def erase(self) -> None:
            pass

        draw = erase

    def make(*options: str):
        connection = tool.Connection(SimpleNamespace(host="https://x"), context="prod")
        gate = tool.Gate([], no_signals(tool))
        report = tool.Report(connection, options_of(tool, *options), Line(), gate)
        report.plan = tool.Plan([a_workload(tool)] * 10, selected_count=10)
        return report

    return make
