"""After kubectl reports success: the Pods and the annotation are verified, and the numbers add up."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from datetime import datetime, timezone

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, workload
from support import CONFIRM, DEBUG, KUBECTL, NEW, TEXT, counts, let_ready, refuse, unchecked
from texts import ANNOTATION_REMOVED, RECHECK, UPDATED_AND_READY

pytestmark = pytest.mark.both


def take_away(cluster, name: str, manager: str, kind: str = "Deployment") -> None:
    """Somebody who owns the template writes it back as it was."""
    found = cluster.get(kind, "shop", name)
    template = {**found["spec"]["template"], "metadata": {"labels": {"app": name}}}
    metadata = dict(found["metadata"], generation=found["metadata"]["generation"] + 1)
    stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry = {
        "manager": manager,
        "operation": "Apply",
        "time": stamp,
        "fieldsV1": {"f:spec": {"f:template": {}}},
    }
    metadata["managedFields"] = [*found["metadata"]["managedFields"], entry]
    cluster.store.change(
        f"{kind.lower()}s", found, metadata=metadata, spec={**found["spec"], "template": template}
    )


@pytest.mark.embedded("managedFields cannot be written by hand")
def test_an_annotation_that_is_taken_away_is_told(cluster, start):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, DEBUG, SETTLE="3")
    running.wait_for_log("running kubectl")
    take_away(cluster, "web", "argocd-controller")
    ended = running.finish()
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "incomplete")
    assert (
        result["message"] == f"2 of 2 Pods not updated: {ANNOTATION_REMOVED} "
        "`kubectl rollout undo` or a GitOps tool; configure such a tool to ignore annotations of the Pod "
        "template"
    )


@pytest.mark.embedded("managedFields cannot be written by hand")
def test_of_a_reverted_rollout_what_was_up_to_date_is_not_missing(cluster, start):
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    cluster.settle()
    cluster.injector.container["image"] = NEW
    name = cluster.pods("shop")[0]["metadata"]["name"]
    image = {"spec": {"containers": [{"name": "istio-proxy", "image": NEW}]}}
    cluster.change("Pod", "shop", name, image)
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, DEBUG, "--only-drifted", SETTLE="3")
    running.wait_for_log("running kubectl")
    take_away(cluster, "web", "argocd-controller")
    ended = running.finish()
    (result,) = ended.of("result")
    assert result["outcome"] == "incomplete"
    assert result["message"].startswith("2 of 3 Pods not updated: ")


@pytest.mark.embedded("managedFields cannot be written by hand")
def test_of_a_rollout_that_is_reverted_half_way_the_pods_are_counted(cluster, start):
    """A Pod that came back in the same second has neither the annotation nor a later time, but the new sidecar."""
    cluster.create("shop", workload("DaemonSet", "log"))
    cluster.settle()
    total = len(cluster.pods("shop"))
    cluster.kubelet.ready_after = 60
    cluster.injector.container["image"] = NEW
    running = start(cluster, CONFIRM, DEBUG, "--only-drifted", "--include-daemonset", SETTLE="3")

    def new_pods(*besides: dict) -> list[dict]:
        known = [pod["metadata"]["uid"] for pod in besides]
        new = [p for p in cluster.pods("shop") if p["spec"]["containers"][-1]["image"] == NEW]
        return [pod for pod in new if pod["metadata"]["uid"] not in known]

    cluster.wait_for(new_pods)
    before = new_pods()
    take_away(cluster, "log", "an-operator", "DaemonSet")
    cluster.wait_for(lambda: new_pods(*before))
    cluster.backdate(new_pods(*before)[0], 60)
    let_ready(cluster)
    ended = running.finish()
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "incomplete")
    assert result["message"].startswith(
        f"{total - 1} of {total} Pods not updated: the rollout annotation"
    )
    assert result["pods"]["updated"] == 1


@pytest.mark.embedded("a kubectl of the test names the namespace")
def test_a_restart_by_somebody_else_in_between_is_no_failure(cluster, start):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    cluster.kubelet.ready_after = 0.7
    running = start(cluster, CONFIRM, DEBUG)
    running.wait_for_log("running kubectl")
    environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig}
    words = [KUBECTL, "rollout", "restart", "deployment/web", "-n", "shop"]
    subprocess.run(words, env=environment, check=True, capture_output=True)
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})


def test_success_of_a_kubectl_that_the_pods_contradict_is_not_believed(
    deployments_a_to_f, run, tmp_path
):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\n[ "$3 $4" != "rollout status" ] && exec {KUBECTL} "$@"\nexit 0\n'
    )
    kubectl.chmod(0o755)
    deployments_a_to_f.kubelet.ready_after = 30
    ended = run(deployments_a_to_f, CONFIRM, f"--kubectl={kubectl}", "--max-rollouts=1")
    (result,) = [r for r in ended.of("result") if r["name"] == "a"]
    assert (ended.code, result["outcome"]) == (1, "incomplete")
    # This kubectl answers at once, so the new Pod may not exist yet.
    assert re.fullmatch("1 of (1 Pod|2 Pods) not updated", result["message"])


@pytest.mark.parametrize("owner", [("batch/v1", "Job", "nightly"), None])
def test_pods_of_others_with_the_same_labels_are_no_contradiction(cluster, run, owner):
    cluster.create("shop", workload("Deployment", "web"))
    foreign = pod("nightly-x", pod_spec(container("app"), container("istio-proxy")), owner)
    foreign["metadata"]["labels"] = {"app": "web"}
    cluster.create("shop", foreign)
    cluster.settle()
    ended = run(cluster, CONFIRM)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert ended.summary["pods"]["wanted"] == 1


@pytest.mark.embedded("managedFields cannot be written by hand")
def test_a_rollout_that_is_reverted_after_its_timeout_is_not_completed_late(cluster, start):
    """To kubectl, it is complete again."""
    for name in ("web", "zoo"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    cluster.kubelet.ready_after = 30
    held = cluster.fault(path="deployments/zoo", release=threading.Event())
    running = start(cluster, CONFIRM, "--timeout=1s", SETTLE="3")
    running.wait_for_log(RECHECK)
    take_away(cluster, "web", "flux")
    cluster.settle()
    held.release.set()
    ended = running.finish()
    assert ended.outcomes["shop/web"] == "timed_out"


def test_the_numbers_count_what_was_begun(deployments_a_to_f, run):
    refuse(deployments_a_to_f, "b")
    ended = run(deployments_a_to_f, CONFIRM, "--max-rollouts=3")
    assert ended.summary["pods"] == counts(2, 2, 2)
    text = run(deployments_a_to_f, CONFIRM, TEXT).stdout
    assert f"\nPods: 6 of 6{UPDATED_AND_READY}.\n" in text


def test_the_numbers_are_those_after_a_failure(cluster, run):
    """With the strategy Recreate, what fails to come up leaves nothing behind.

    A real Deployment controller rarely starts no progress deadline: its condition stays
    NewReplicaSetAvailable if the update that says NewReplicaSetCreated has a conflict (sync.go).
    """
    cluster.create(
        "shop", {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "web"}}
    )
    spec = pod_spec(container("app"), serviceAccountName="web")
    recreate = {"strategy": {"type": "Recreate"}, "progressDeadlineSeconds": 1}
    cluster.create("shop", workload("Deployment", "web", spec, replicas=2, **recreate))
    cluster.settle()
    cluster.delete("ServiceAccount", "shop", "web")
    ended = run(unchecked(cluster), CONFIRM, "--timeout=20s")
    assert (ended.code, ended.outcomes["shop/web"] in ("failed", "timed_out")) == (1, True)
    assert ended.summary["pods"] == counts(0, 0, 0, not_created=2)


def test_the_requests_of_a_rollout_besides_kubectls(deployments_a_to_f, run):
    """Each ReplicaSet among the owners of its Pods is asked for its Deployment, once."""
    run(deployments_a_to_f, CONFIRM, "--max-rollouts=1")
    ours = [
        r
        for r in deployments_a_to_f.server.requests
        if r.headers["user-agent"].startswith("sidecar-rollout/")
    ]
    first = next(index for index, request in enumerate(ours) if request.method == "PATCH")
    assert (
        [(r.method, *r.path.split("/")[-2:]) for r in ours[first - 4 :]]
        == [
            ("GET", "deployments", "a"),
            ("POST", "shop", "pods"),
            ("GET", "shop", "pods"),
            ("GET", "replicasets", ours[first - 1].path.split("/")[-1]),
            ("PATCH", "deployments", "a"),
            ("GET", "deployments", "a"),  # how many Pods it wants
            ("GET", "shop", "pods"),
            ("GET", "replicasets", ours[first + 3].path.split("/")[-1]),
            ("GET", *ours[-1].path.split("/")[-2:]),  # the census
        ]
    )
    assert ours[-1].path.endswith("/pods")
    assert ours[first - 1].path != ours[first + 3].path
