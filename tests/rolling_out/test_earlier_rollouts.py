"""A rollout that an earlier run began, and that has a problem, is not forgotten."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, TEXT, let_ready, patched, upgrade


@pytest.fixture
def rolled_out(cluster, run):
    """Deployments a and b, which a run has restarted, and the cutoff of that run.

    Somebody has released a since, so that no run waits for it again.
    """
    for name in "ab":
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    upgrade(cluster)
    ended = run(cluster, DRIFTED, CONFIRM)
    assert ended.code == 0
    later = datetime.now(timezone.utc) + timedelta(seconds=1)  # managedFields have whole seconds
    cluster.wait_for(lambda: datetime.now(timezone.utc) > later)
    container = {"name": "app", "env": [{"name": "RELEASE", "value": "2"}]}
    template = {"spec": {"template": {"spec": {"containers": [container]}}}}
    cluster.change("Deployment", "shop", "a", template)
    cluster.settle()
    return cluster, f"--only-started-before={ended.summary['started_before']}"


def crash(cluster, app: str) -> str:
    (pod,) = cluster.pods("shop", app)
    name = pod["metadata"]["name"]
    cluster.kubelet.crash("shop", name, "istio-proxy")
    cluster.kubelet.set_ready("shop", name, False)
    return name


@pytest.mark.both
@pytest.mark.parametrize("options", [(DRIFTED,), ()], ids=["drifted", "all"])
def test_a_new_pod_that_does_not_run_fails_the_same_command(rolled_out, run, options):
    cluster, cutoff = rolled_out
    name = crash(cluster, "a")
    ended = run(cluster, *options, CONFIRM, cutoff, TEXT)
    problem = f"not healthy since its rollout: {name}: not ready"
    assert ended.code == 1
    assert f"\nNot rolled out:\n  {problem}:\n    Deployment shop/a\n" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "Failed: 1 of an earlier run."
    shown = run(cluster, *options, cutoff)
    assert (shown.code, shown.skipped) == (0, {"Deployment shop/a": "unfinished"})


def test_one_of_before_the_cutoff_is_not_its_business(rolled_out, run):
    cluster, _ = rolled_out
    crash(cluster, "a")
    ended = run(cluster, DRIFTED, CONFIRM)
    assert (ended.code, ended.skipped) == (0, {})


def test_one_that_recovers_during_the_run_is_listed_as_it_was(rolled_out, start):
    cluster, cutoff = rolled_out
    name = crash(cluster, "a")
    cluster.create("shop", workload("Deployment", "c"))
    cluster.settle()
    (pod,) = cluster.pods("shop", "c")
    cluster.backdate(pod, 3600)
    held = cluster.fault(method="PATCH", path="deployments/c", release=threading.Event())
    running = start(cluster, CONFIRM, cutoff)
    assert held.reached.wait(20)
    cluster.kubelet.set_ready("shop", name, True)
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (1, {"shop/c": "succeeded"})
    assert ended.summary["failed"] == {"of_an_earlier_run": 1}


def test_a_rollout_that_completes_meanwhile_is_no_failure(cluster, start, run):
    cluster.create("shop", workload("Deployment", "a", replicas=4))
    cluster.create("shop", workload("Deployment", "b"))
    cluster.settle()
    for pod in cluster.pods("shop"):
        cluster.backdate(pod, 3600)
    cluster.kubelet.ready_after = 60
    first = run(cluster, CONFIRM, "deployment/a", "--timeout=1s", TEXT)
    assert first.code == 1
    running = start(cluster, CONFIRM, "--timeout=20s", "--log-level=debug")
    running.wait_for_log("running kubectl rollout status")
    assert patched(cluster) == ["a"]  # b has its turn afterwards
    let_ready(cluster)
    ended = running.finish()
    assert ended.code == 0
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "succeeded"}


def test_the_prefix_must_be_ours(tool):
    """An annotation of a prefix that ends in ours is of somebody else."""
    notes = {"xteam.rollout.timestamp": "a", "team.rollout.timestamp": "b"}
    obj = {"metadata": {}, "spec": {"template": {"metadata": {"annotations": notes}}}}
    assert tool.timestamps_of(obj, "team") == ["b"]
    assert tool.timestamps_of(obj) == ["a", "b"]
