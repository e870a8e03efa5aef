"""A write whose answer is lost, or that conflicts with another, and a workload that is recreated."""

from __future__ import annotations

import re
import threading
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from clusters.embedded.manifests import container, pod_spec, replicated, workload
from support import (
    APP,
    CONFIRM,
    EVICT,
    a_restart,
    a_rollout,
    a_workload,
    api_error,
    messages,
    patched,
    raises_ended,
)
from texts import NO_RESULT, RECREATED

PATCH = {"method": "PATCH", "path": "deployments/web"}


@pytest.fixture
def web(cluster):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    return cluster


@pytest.mark.parametrize("status", [0, 502, 503, 504])
def test_a_patch_without_an_answer_may_have_restarted_it(
    tool, a_report, capsys, monkeypatch, status
):
    """Nobody can look whether it was stored: nothing else starts, and its Pods are not verified."""

    class Lost:
        connection = SimpleNamespace(user="admin")
        is_ready = staticmethod(lambda: False)

        def now(self):
            return datetime.now(timezone.utc)

        def workload(self, ref):
            if self.patched:
                raise api_error(tool, status, "away")
            return {"metadata": {"generation": 1}}

        def patch_template(self, *parts):
            self.patched = True
            raise api_error(tool, status, "away", "WRITE")

        patched = False

    found = a_workload(tool)
    rollout = a_rollout(tool, Lost())
    monkeypatch.setattr(tool.Restart, "decide_now", lambda work, obj, *_: obj)
    result = rollout.result_of(found, str)
    assert (result.outcome.name, result.message, result.cause.reason) == (
        "FAILED",
        "it may have been restarted: away",
        "away",
    )
    report = a_report(CONFIRM)
    report.finish(result)
    report.print_counts(1.0)
    shown = capsys.readouterr().out
    assert "1 workload in 1s: 1 failed.\n" in shown
    assert "Pods: " not in shown  # nobody can say how many


def test_a_stored_patch_is_recognized_by_the_conflict_of_its_repetition(web, run):
    lost = web.fault(**PATCH, drop="after")
    ended = run(web, CONFIRM)
    assert (ended.code, ended.outcomes, lost.times) == (0, {"shop/web": "succeeded"}, 0)
    assert web.get("Deployment", "shop", "web")["metadata"]["generation"] == 2


def test_a_stored_patch_that_is_answered_with_500_is_recognized(web, run):
    web.fault(**PATCH, acts=True, status=500, body={"message": "oops"})
    ended = run(web, CONFIRM)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert web.get("Deployment", "shop", "web")["metadata"]["generation"] == 2


def test_an_evicted_pod_is_named_if_the_api_server_goes_away(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT)
    cluster.wait_for(cluster.kubelet.starting)
    cluster.fault(user_agent="sidecar-rollout", times=9999, status=401, body={"message": "no"})
    ended = running.finish()
    text = r"Pod x-\S+ was evicted; 401 Unauthorized: .* \(0 of 2 Pods replaced\)"
    assert re.match(text, messages(ended)["x"])


@pytest.mark.parametrize("times", [3, 20])
def test_update_conflicts_pause_and_fail_in_the_end(web, run, times):
    conflict = {"kind": "Status", "message": "the object has been modified", "reason": "Conflict"}
    web.fault(**PATCH, times=times, status=409, body=conflict)
    ended = run(web, CONFIRM)
    if times == 3:
        assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    else:
        text = "not patched: gave up after 20 update conflicts"
        assert (ended.code, messages(ended)) == (1, {"web": text})
        assert ended.of("result")[0]["seconds"] > 5
    dry_runs = [r for r in web.server.requests if "dryRun" in r.path or r.query.get("dryRun")]
    assert len(dry_runs) == min(times + 1, 20)  # right before each try
    reads = [r for r in web.server.requests if r.method == "GET" and "deployments/web" in r.path]
    assert len(reads) >= times


def test_after_a_conflict_a_changed_spec_is_checked_anew(web, start):
    held = web.fault(**PATCH, release=threading.Event())
    running = start(web, CONFIRM)
    assert held.reached.wait(20)
    web.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    held.release.set()
    ended = running.finish()
    assert messages(ended)["web"].startswith("paused; run `kubectl rollout resume` first")
    assert patched(web) == ["web"]


def test_after_a_conflict_an_opt_out_is_seen(web, start):
    """An annotation of the workload itself: its spec is the same."""
    held = web.fault(**PATCH, status=409, body={"message": "x"}, release=threading.Event())
    running = start(web, CONFIRM, "--exclude-annotation=team/no")
    assert held.reached.wait(20)
    web.change("Deployment", "shop", "web", {"metadata": {"annotations": {"team/no": "yes"}}})
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    assert patched(web) == ["web"]


def test_a_signal_ends_the_pause_after_a_conflict(tool, monkeypatch):
    rollout = a_rollout(tool, None)
    rollout.signals.received.append(2)

    class Cluster:
        connection = SimpleNamespace(user="")

        def now(self):
            return datetime.now(timezone.utc)

        def workload(self, ref):
            return {"metadata": {"generation": 1}}

        def patch_template(self, *parts):
            raise AssertionError("a write after a signal")

    object.__setattr__(rollout, "cluster", Cluster())
    monkeypatch.setattr(tool.Restart, "decide_now", lambda work, obj, *_: obj)
    with raises_ended(tool) as caught:
        a_restart(tool, rollout).patch()
    error = caught.value
    assert (error.outcome.name, str(error)) == ("NOT_STARTED", "interrupted")


def test_a_workload_that_was_recreated_during_its_rollout_is_skipped(web, start):
    """It keeps its Pods, as with `kubectl delete --cascade=orphan` and a new manifest."""
    web.kubelet.ready_after = 60
    running = start(web, CONFIRM, "--timeout=20s", "--log-level=debug")
    running.wait_for_log("running kubectl")
    held = web.fault(
        path="deployments/web$", user_agent="sidecar-rollout", release=threading.Event()
    )
    web.delete("Deployment", "shop", "web", orphan=True)
    running.wait_for_log(NO_RESULT)
    changed = pod_spec(container("app", "app:2"))  # else it would adopt its ReplicaSet, too
    web.create("shop", workload("Deployment", "web", changed, replicas=2))
    held.release.set()
    ended = running.finish()
    assert messages(ended) == {"web": RECREATED}
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "skipped"})
    assert ended.of("result")[0]["code"] == "another_object"


def test_the_pods_of_a_workload_that_was_deleted_during_its_rollout_are_not_verified(web, start):
    web.kubelet.ready_after = 60
    running = start(web, CONFIRM, "--timeout=30s", "--log-level=debug", "--log-format=text")
    running.wait_for_log("running kubectl")
    web.delete("Deployment", "shop", "web")
    ended = running.finish()
    assert ended.code == 0
    assert "\n  no longer exists" in ended.stdout
    assert "updated and ready" not in ended.stdout
