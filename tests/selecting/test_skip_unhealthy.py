"""--skip-unhealthy: before the plan, and right before each rollout."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, messages

pytestmark = pytest.mark.both


def test_unhealthy_workloads_are_left_alone_on_request(cluster, run):
    cluster.create("shop", workload("Deployment", "sick", pod_spec(container("app", "broken:1"))))
    cluster.create("shop", workload("Deployment", "well"))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--skip-unhealthy")
    assert (ended.code, ended.outcomes) == (0, {"shop/well": "succeeded"})
    assert ended.skipped == {"Deployment shop/sick": "unhealthy"}
    assert ended.reasons["Deployment shop/sick"].endswith("ImagePullBackOff")
    assert run(cluster, "--timeout=1s").planned == ["shop/well", "shop/sick"]


def test_what_is_unhealthy_by_then_is_left_alone_on_request(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(path="deployments/web$", release=threading.Event())
    running = start(cluster, CONFIRM, "--skip-unhealthy")
    assert held.reached.wait(20)
    cluster.kubelet.ready_after = 60
    (found,) = cluster.pods("shop")
    cluster.delete("Pod", "shop", found["metadata"]["name"])
    cluster.wait_for(
        lambda: not cluster.get("Deployment", "shop", "web")["status"].get("availableReplicas")
    )
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    assert messages(ended)["web"] == "unhealthy: 0 of 1 available"
