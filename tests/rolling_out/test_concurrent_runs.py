"""Two runs at the same time: no workload is restarted twice."""

from __future__ import annotations

import re
import threading
from datetime import datetime, timedelta, timezone

import pytest
from cluster.manifests import container, pod_spec, workload
from support import CONFIRM, DRIFTED, messages, patched


def in_progress(cluster, age: float) -> None:
    """Deployment web, in a rollout that another run began so many seconds ago."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    cluster.kubelet.ready_after = 60
    began = datetime.now(timezone.utc) - timedelta(seconds=age)
    stamp = {"other.rollout.timestamp": began.isoformat()}
    template = {"template": {"metadata": {"annotations": stamp}}}
    cluster.change("Deployment", "shop", "web", {"spec": template})
    cluster.wait_for(
        lambda: cluster.get("Deployment", "shop", "web")["status"].get("updatedReplicas")
    )


@pytest.mark.parametrize("options", [[], [DRIFTED], [CONFIRM]])
def test_another_runs_rollout_in_progress_is_left_alone(cluster, run, options):
    in_progress(cluster, age=100)
    ended = run(cluster, "--timeout=120s", *options)
    assert ended.code == 0
    assert ended.planned == []
    reason = ended.skipped["Deployment shop/web"]
    assert reason.startswith("being rolled out by another run since 20")
    assert patched(cluster) == []


def test_an_old_rollout_that_is_stuck_is_no_reason_to_skip(cluster, run):
    in_progress(cluster, age=100)
    assert run(cluster, "--timeout=90s").planned == ["shop/web"]


def test_a_rollout_in_progress_that_begins_after_the_plan_is_left_alone(cluster, start):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    held = cluster.fault(path="deployments/web$", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    cluster.kubelet.ready_after = 60
    stamp = {"other.rollout.timestamp": datetime.now(timezone.utc).isoformat()}
    cluster.change(
        "Deployment", "shop", "web", {"spec": {"template": {"metadata": {"annotations": stamp}}}}
    )
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    assert messages(ended)["web"].startswith("being rolled out by another run since 20")


def test_a_rollout_that_waits_for_a_node_is_in_progress(cluster, run):
    real = cluster.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        if "other.rollout.timestamp" in pod["metadata"].get("annotations", {}):
            pod["spec"]["nodeSelector"] = {"disk": "ssd"}

    cluster.injector.inject = inject
    in_progress(cluster, age=5)
    cluster.wait_for(lambda: "Unschedulable" in str(cluster.pods("shop")))
    assert run(cluster).skipped.keys() == {"Deployment shop/web"}


def test_two_runs_restart_a_workload_that_crashes_once(cluster, start):
    """Both begin with it, as it is unhealthy; the second finds the rollout of the first."""
    cluster.create("shop", workload("Deployment", "sick", pod_spec(container("app", "broken:1"))))
    cluster.settle()
    first = start(cluster, CONFIRM, "--timeout=6s", "--log-level=debug")
    first.wait_for_log("Waiting for deployment")
    second = start(cluster, CONFIRM, "--timeout=6s").finish()
    assert second.skipped.keys() == {"Deployment shop/sick"}
    assert first.finish().outcomes == {"shop/sick": "timed_out"}
    assert patched(cluster) == ["sick"]


DONE = {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3}


FAILED = {"type": "Progressing", "status": "False", "message": "timed out"}


COMPLETE = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ({}, False),
        ({"observedGeneration": 1}, True),
        ({"replicas": 4}, True),
        ({"updatedReplicas": 2}, True),
        ({"availableReplicas": 2}, True),
        ({"availableReplicas": 2, "conditions": [FAILED]}, False),
        ({"availableReplicas": 2, "conditions": [COMPLETE]}, False),  # a Pod restarts since then
        ({"updatedReplicas": 2, "conditions": [COMPLETE]}, True),
    ],
)
def test_what_is_in_progress(tool, status, found):
    ref = tool.ObjectRef("Deployment", "shop", "web", "apps")
    obj = {"metadata": {"generation": 2}, "spec": {"replicas": 3}, "status": {**DONE, **status}}
    assert tool.is_rolling_out(ref, obj) is found


def test_two_runs_at_once_restart_each_workload_once(cluster, start):
    names = [f"web-{number}" for number in range(8)]
    for name in names:
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    gate = threading.Event()
    held = [cluster.fault(method="GET", path=r"/deployments\?", release=gate) for _ in range(2)]
    runs = [start(cluster, CONFIRM, "--parallel-rollouts=3") for _ in range(2)]
    assert all(
        fault.reached.wait(20) for fault in held[:2]
    )  # both are reading: both will have it in their plan
    gate.set()
    ended = [running.finish() for running in runs]
    assert [one.code for one in ended] == [0, 0]
    for name in names:
        assert sorted(one.outcomes.get(f"shop/{name}", "skipped") for one in ended) == [
            "skipped",
            "succeeded",
        ]
        assert cluster.get("Deployment", "shop", name)["metadata"]["generation"] == 2
    reasons = {r["message"] for one in ended for r in one.of("result") if r["outcome"] == "skipped"}
    assert all(
        re.match(
            "already restarted by another run at 20|being rolled out by another run since 20"
            "|all its Pods were created after",
            text,
        )
        for text in reasons
    )


def test_what_another_run_has_restarted_in_vain_is_not_restarted_again(cluster, start):
    """Its old Pods are still there, and its rollout is no longer in progress."""
    for name in "ab":
        cluster.create("shop", workload("Deployment", name, progressDeadlineSeconds=1))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    held = cluster.fault(method="PATCH", path="deployments/a", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    cluster.kubelet.ready_after = 60
    stamp = {"sidecarRollout.rollout.timestamp": datetime.now(timezone.utc).isoformat()}
    template = {"template": {"metadata": {"annotations": stamp}}}
    cluster.change("Deployment", "shop", "b", {"spec": template})

    def has_failed() -> bool:
        conditions = cluster.get("Deployment", "shop", "b")["status"]["conditions"]
        return any((c["type"], c["status"]) == ("Progressing", "False") for c in conditions)

    cluster.wait_for(has_failed)
    cluster.kubelet.ready_after = 0.05
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "skipped"}
    assert messages(ended)["b"].startswith("already restarted by another run at 20")
    assert patched(cluster) == ["a"]


def test_a_workload_whose_pods_are_all_newer_by_then_is_skipped(cluster, start):
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    held = cluster.fault(method="PATCH", path="deployments/a", release=threading.Event())
    half_an_hour_ago = datetime.now(timezone.utc) - timedelta(minutes=30)
    running = start(
        cluster, CONFIRM, f"--only-started-before={half_an_hour_ago:%Y-%m-%dT%H:%M:%SZ}"
    )
    assert held.reached.wait(20)
    (old,) = cluster.pods("shop", "b")
    cluster.delete("Pod", "shop", old["metadata"]["name"])
    cluster.settle()
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "skipped"}
    assert [r["message"] for r in ended.of("result")][
        1
    ] == "all its Pods were created after the cutoff"
    assert patched(cluster) == ["a"]


def test_a_conflict_with_somebody_elses_change_is_checked_again(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    cluster.change("Deployment", "shop", "web", {"metadata": {"labels": {"changed": "meanwhile"}}})
    held.release.set()
    assert running.finish().outcomes == {"shop/web": "succeeded"}
    assert patched(cluster) == ["web", "web"]
    assert cluster.get("Deployment", "shop", "web")["metadata"]["generation"] == 2
