"""Workloads that a custom resource owns: their operator keeps only some annotations."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM
from texts import ANNOTATION_REMOVED

pytestmark = pytest.mark.both

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
PROMETHEUS = ("Prometheus", "main")
ALL = ("--include-statefulset", "--include-daemonset")


@pytest.fixture
def operated(cluster):
    """operated(kind, keeps=...): a workload `main` whose operator keeps some annotations."""
    cluster.create("shop", {"kind": "Prometheus", "metadata": {"name": "main"}, "spec": {}})

    def create(kind: str = "StatefulSet", *, keeps: str = "kubectl.kubernetes.io/", **fields):
        cluster.create("shop", workload(kind, "main", **fields))
        cluster.settle()
        cluster.operate(kind, "shop", "main", PROMETHEUS, keeps=keeps)

    return create


def template_annotations(cluster, kind: str, name: str = "main") -> dict:
    found = cluster.get(kind, "shop", name)
    return found["spec"]["template"]["metadata"].get("annotations", {})


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_only_the_annotation_of_kubectl_is_written(cluster, operated, run, kind):
    operated(kind)
    before = datetime.now(timezone.utc)
    ended = run(cluster, CONFIRM, "--only-drifted=false", *ALL)
    assert (ended.code, ended.outcomes) == (0, {"shop/main": "succeeded"})
    ((key, value),) = template_annotations(cluster, kind).items()
    assert key == RESTARTED_AT
    assert before <= datetime.fromisoformat(value)
    assert cluster.get(kind, "shop", "main")["metadata"]["generation"] == 2  # nothing reverted


def test_the_plan_names_the_owner(cluster, operated, run):
    operated()
    cluster.create("shop", workload("StatefulSet", "db"))
    cluster.settle()
    owners = {r["name"]: r["controlled_by"] for r in run(cluster, *ALL).of("plan")}
    assert owners == {"main": "Prometheus shop/main", "db": ""}


def test_with_only_drifted_no_revision_is_written_either(cluster, operated, run):
    operated()
    cluster.injector.container |= {"image": "docker.io/istio/proxyv2:1.27.0"}
    ended = run(cluster, CONFIRM, "--only-drifted", *ALL)
    assert ended.outcomes == {"shop/main": "succeeded"}
    assert template_annotations(cluster, "StatefulSet").keys() == {RESTARTED_AT}
    assert run(cluster, "--only-drifted", *ALL).of("drift")[0]["verdict"] == "up_to_date"


def test_an_operator_that_removes_it_all_the_same_is_named(cluster, operated, run):
    operated("Deployment", keeps="")
    cluster.kubelet.ready_after = 60  # the old Pod stays until a new one is ready
    ended = run(cluster, CONFIRM)
    assert ended.code == 1
    assert ended.outcomes == {"shop/main": "incomplete"}
    (message,) = [r["message"] for r in ended.of("result")]
    assert message.startswith(f"1 of 1 Pod not updated: {ANNOTATION_REMOVED} ")


def test_one_that_was_left_without_pods_is_found(cluster, operated, run):
    operated("Deployment")
    stamp = {RESTARTED_AT: "2026-01-01T00:00:00Z"}
    spec = {"metadata": {"annotations": stamp}, "spec": {"serviceAccountName": "gone"}}
    strategy = {"strategy": {"type": "Recreate", "rollingUpdate": None}}
    template = {"spec": {"template": spec, **strategy}}
    cluster.change("Deployment", "shop", "main", template, "sidecar-rollout")
    cluster.wait_for(lambda: not cluster.store.list("pods", "shop"))
    cluster.wait_for(lambda: cluster.store.list("events", "shop"))
    assert run(cluster).skipped["Deployment shop/main"] == "without_pods"
