"""An incomplete rollout is begun again only if a restart alone heals it: its sidecar is stuck, and would be another one today."""

from __future__ import annotations

import copy

import pytest
from clusters.embedded import is_ready
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, make_old, patched, upgrade

pytestmark = pytest.mark.both

SLOW = 600  # seconds until a Pod is ready: never, for a test


def release(cluster) -> None:
    """A team releases a version that does not start, in the middle of which web stays."""
    cluster.kubelet.ready_after = SLOW
    app = {"name": "app", "env": [{"name": "RELEASE", "value": "bad"}]}
    template = {"spec": {"template": {"spec": {"containers": [app]}}}}
    cluster.change("Deployment", "shop", "web", template)
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 4)
    cluster.wait_for(cluster.kubelet.starting)  # what a test writes into its status stays


@pytest.fixture
def released(cluster):
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    make_old(cluster)
    release(cluster)
    return cluster


def let_crash(cluster, name: str) -> None:
    """Let the sidecar of a Pod be in a CrashLoopBackOff at this moment."""
    with cluster.store.lock:
        found = cluster.get("Pod", "shop", name)
        status = copy.deepcopy(found["status"])
        states = {
            "app": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            "istio-proxy": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        }
        status["containerStatuses"] = [
            {"name": one["name"], "image": one["image"], "imageID": "", "started": False}
            | {"ready": False, "restartCount": 1, "state": states[one["name"]]}
            for one in found["spec"]["containers"]
        ]
        cluster.store.change("pods", found, status=status)


def unready(cluster) -> str:
    (found,) = [p for p in cluster.pods("shop") if not is_ready(p)]
    return found["metadata"]["name"]


@pytest.mark.parametrize("options", [[], [DRIFTED]], ids=["all", "drifted"])
def test_a_crash_at_a_bad_moment_restarts_nothing(released, run, options):
    """The sidecar of the new Pod is what would be injected today: a restart would not heal it."""
    let_crash(released, unready(released))
    ended = run(released, CONFIRM, *options, "--timeout=2s")
    assert patched(released) == []
    assert ended.outcomes in ({}, {"shop/web": "skipped"})


def test_a_sidecar_that_would_be_another_one_today_is_repaired(released, run):
    let_crash(released, unready(released))
    upgrade(released)
    released.kubelet.ready_after = 0.05
    ended = run(released, CONFIRM, DRIFTED)
    assert (patched(released), ended.outcomes) == (["web"], {"shop/web": "succeeded"}), (
        ended.reasons
    )


def test_an_old_pod_that_is_stuck_is_no_reason(released, run):
    """The rollout of the team replaces it."""
    upgrade(released)
    old = next(p for p in released.pods("shop") if is_ready(p))["metadata"]["name"]
    released.kubelet.set_ready("shop", old, False)
    let_crash(released, old)
    ended = run(released, CONFIRM, DRIFTED)
    assert (ended.planned, patched(released)) == ([], [])


def test_a_second_run_two_seconds_later_restarts_nothing(cluster, run, start):
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    make_old(cluster)
    upgrade(cluster)
    cluster.kubelet.ready_after = SLOW
    first = start(cluster, CONFIRM, DRIFTED, "--timeout=30s")
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 4)
    cluster.wait_for(lambda: cluster.kubelet.starting())
    let_crash(cluster, unready(cluster))
    dry = run(cluster, DRIFTED)
    assert (dry.planned, dry.skipped) == ([], {"Deployment shop/web": "incomplete_rollout"})
    run(cluster, CONFIRM, DRIFTED, "--timeout=2s")
    assert patched(cluster) == ["web"]
    first.process.kill()
    first.finish()


def test_while_a_team_releases_nothing_is_missing(cluster, run):
    """Without any sidecar so far, all Pods lack it; that is no reason to restart a bad release."""
    cluster.namespace("plain")
    cluster.create("plain", workload("Deployment", "web", replicas=3))
    cluster.settle()
    cluster.kubelet.ready_after = SLOW
    app = {"name": "app", "env": [{"name": "RELEASE", "value": "bad"}]}
    cluster.change(
        "Deployment", "plain", "web", {"spec": {"template": {"spec": {"containers": [app]}}}}
    )
    cluster.wait_for(lambda: len(cluster.pods("plain")) == 4)
    cluster.turn_on_injection("plain")
    ended = run(cluster, CONFIRM, DRIFTED, "--include-missing", "--timeout=2s")
    assert (ended.planned, patched(cluster)) == ([], [])
    assert ended.skipped["Deployment plain/web"] == "incomplete_rollout"
