"""Workloads that others pause, delete or change during the run are skipped."""

from __future__ import annotations

import itertools
import threading

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, NEW, messages, patched, unchecked
from texts import RECHECK

pytestmark = pytest.mark.both

POD_NAME = "statefulset.kubernetes.io/pod-name"


@pytest.mark.embedded("sets what only a controller sets")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"spec": {"paused": True}},
            (1, "incomplete", "paused during its rollout; run `kubectl rollout resume`"),
        ),
        (
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]}},
            (0, "skipped", "being deleted"),
        ),
    ],
)
def test_what_is_paused_or_deleted_during_its_rollout_is_recognized_when_kubectl_ends(
    cluster, start, change, expected
):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, "--timeout=3s", "--log-level=debug")
    running.wait_for_log("running kubectl")
    cluster.change("Deployment", "shop", "web", change)
    ended = running.finish(timeout=20)
    assert (ended.code, ended.outcomes["shop/web"], messages(ended)["web"]) == expected


def test_what_was_deleted_before_it_is_rechecked_is_skipped(cluster, start):
    cluster.create("shop", workload("Deployment", "a"))
    cluster.create("shop", workload("Deployment", "b"))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    held = cluster.fault(path="deployments/b$", release=threading.Event())
    running = start(cluster, CONFIRM, "--timeout=1s")
    running.wait_for_log(RECHECK)
    assert held.reached.wait(20)
    cluster.delete("Deployment", "shop", "a")
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "skipped", "shop/b": "timed_out"}
    assert messages(ended)["a"].startswith("no longer exists")


@pytest.mark.embedded("it changes a workload within each dry run")
@pytest.mark.parametrize("options", [(), ("--max-duration=3s",)])
def test_a_spec_that_changes_without_end_holds_no_worker(cluster, run, options):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.takes = 0.3
    seconds = itertools.count(700)
    inject = cluster.injector.inject

    def inject_and_change(found: dict) -> None:
        inject(found)
        spec = {"progressDeadlineSeconds": next(seconds)}
        cluster.change("Deployment", "shop", "web", {"spec": spec})

    cluster.injector.inject = inject_and_change
    ended = run(cluster, CONFIRM, *options)
    expected = ("failed", "not patched: its spec changed 20 times while it was checked")
    if options:
        expected = ("not_started", "--max-duration reached")
    assert (ended.outcomes["shop/web"], messages(ended)["web"]) == expected


@pytest.mark.embedded("it changes a status within each dry run")
def test_a_status_that_changes_all_the_time_is_no_failure(cluster, run):
    """As that of a large Deployment whose Pods come and go."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    inject = cluster.injector.inject

    def inject_and_change(found: dict) -> None:
        inject(found)
        with cluster.store.lock:
            obj = cluster.get("Deployment", "shop", "web")
            cluster.store.change("deployments", obj, status={**obj["status"], "x": str(found)})

    cluster.injector.inject = inject_and_change
    ended = run(cluster, CONFIRM)
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert 2 <= len(patched(cluster)) < 8  # its controller writes, too


def test_pods_are_left_for_the_reason_for_which_their_workload_was_skipped(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.container["image"] = NEW
    held = cluster.fault(path="deployments/web$", release=threading.Event())
    running = start(cluster, CONFIRM, DRIFTED)
    assert held.reached.wait(20)
    cluster.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    held.release.set()
    ended = running.finish()
    (result,), (left,) = ended.of("result"), ended.summary["leftovers"]
    assert (result["outcome"], result["code"], left["code"]) == ("skipped", *["wrong_method"] * 2)
    assert ended.summary["sidecars"][0]["left"] == {"wrong_method": 1}


def test_what_a_selector_no_longer_matches_is_not_restarted(cluster, start):
    """The selected Pod is gone; the plan has not seen the other one."""
    cluster.create("shop", workload("StatefulSet", "db", replicas=2))
    cluster.settle()
    selector = f"--selector={POD_NAME}=db-1"
    held = cluster.fault(path="statefulsets/db$", release=threading.Event())
    running = start(cluster, CONFIRM, "--include-statefulset", selector)
    assert held.reached.wait(20)
    cluster.change("StatefulSet", "shop", "db", {"spec": {"replicas": 1}})
    cluster.wait_for(lambda: len(cluster.store.list("pods", "shop")) == 1)
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/db": "skipped"})
    assert messages(ended)["db"] == "its Pods do not match now"


def test_a_rollout_of_a_selected_pod_is_rechecked_with_all_the_others(cluster, start):
    """They are old as well, and no new ones."""
    cluster.create("shop", workload("StatefulSet", "db", replicas=3))
    cluster.settle()
    cluster.kubelet.ready_after = 3.5
    selector = f"--selector={POD_NAME}=db-1"
    options = "--include-statefulset", "--timeout=1s", "--log-level=debug"
    running = start(cluster, CONFIRM, selector, *options)
    running.wait_for_log("will recheck")
    (result,) = running.finish().of("result")
    # The recheck waits for ten seconds, as a verification does
    assert (result["outcome"], result["pods"]["wanted"]) == ("completed_late", 3)


@pytest.mark.embedded("sets what only a controller sets")
def test_a_workload_in_a_terminating_namespace_is_skipped(drifted_fleet, run):
    namespace = drifted_fleet.store.get("namespaces", "", "shop")
    metadata = {**namespace["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    drifted_fleet.store.change("namespaces", namespace, metadata=metadata)
    ended = run(unchecked(drifted_fleet), CONFIRM)
    assert (ended.code, ended.outcomes, len(ended.skipped)) == (0, {}, 7)
    assert set(ended.skipped.values()) == {"being_deleted"}


def test_a_namespace_that_is_terminating_since_the_plan_is_noticed(drifted_fleet, start):
    held = drifted_fleet.fault(path="deployments/a$", release=threading.Event())
    running = start(drifted_fleet, CONFIRM)
    assert held.reached.wait(20)
    namespace = drifted_fleet.store.get("namespaces", "", "shop")
    metadata = {**namespace["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    drifted_fleet.store.change("namespaces", namespace, metadata=metadata)
    held.release.set()
    ended = running.finish()
    assert (ended.code, set(ended.outcomes.values())) == (0, {"skipped"})
    assert set(messages(ended).values()) == {"its namespace is terminating"}
