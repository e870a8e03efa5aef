"""--evict: a change of a template that is not rolled out yet is a reason to skip, in the dry run and in the run."""

from __future__ import annotations

import pytest
from clusters.embedded import is_ready
from clusters.embedded.manifests import workload
from support import (
    APP,
    CONFIRM,
    DRIFTED,
    EVICT,
    ON_DELETE,
    OWNERS,
    edit,
    evictions,
    images,
    let_ready,
    partition,
    paused,
    uids,
    upgrade,
)

pytestmark = pytest.mark.both

ALL_OR_DRIFTED = pytest.mark.parametrize("options", [(), (DRIFTED,)], ids=["all", "drifted"])


def codes(ended) -> dict[str, str]:
    return {f"{r['kind']} {r['namespace']}/{r['name']}": r["code"] for r in ended.of("skip")}


def replace_pod(cluster, name: str) -> None:
    """Delete a Pod and wait for its replacement, as a person would."""
    old = cluster.get("Pod", "shop", name)["metadata"]["uid"]
    cluster.delete("Pod", "shop", name)

    def is_back() -> bool:
        found = cluster.get("Pod", "shop", name)
        return bool(found) and found["metadata"]["uid"] != old and is_ready(found)

    cluster.wait_for(is_back)
    cluster.settle()


def all_are_evicted(cluster, run, image: str) -> None:
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert images(cluster) == [image] * 3


@ALL_OR_DRIFTED
@pytest.mark.parametrize(
    "kind", ["StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController"]
)
def test_a_pending_template_is_skipped_in_the_dry_run_and_in_the_run(cluster, run, kind, options):
    OWNERS[f"{kind} shop/x"](cluster)
    cluster.settle()
    edit(cluster, kind)
    upgrade(cluster)
    before = uids(cluster)
    expected = {f"{kind} shop/x": "pending_template"}
    assert codes(run(cluster, *options, *EVICT)) == expected
    ended = run(cluster, CONFIRM, *options, *EVICT)
    assert (ended.code, codes(ended)) == (0, expected)
    assert (uids(cluster), evictions(cluster)) == (before, [])


@ALL_OR_DRIFTED
@pytest.mark.parametrize(
    "owner", ["StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController"]
)
def test_an_unchanged_template_is_not_pending(cluster, run, owner, options):
    OWNERS[f"{owner} shop/x"](cluster)
    cluster.settle()
    upgrade(cluster)
    ended = run(cluster, CONFIRM, *options, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_what_another_controller_owns_keeps_its_template(cluster, run):
    """Nobody edits the ReplicaSet of a paused Deployment, and a scaled one has another generation."""
    paused(cluster, replicas=2)
    cluster.change("Deployment", "shop", "x", {"spec": {"replicas": 3}})
    cluster.settle()
    edit(cluster, "Deployment")
    upgrade(cluster)
    ended = run(cluster, CONFIRM, *EVICT, DRIFTED)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert images(cluster) == ["app:1", "app:1", "app:1"]


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_a_template_that_was_rolled_out_manually_is_not_pending(cluster, run, kind):
    OWNERS[f"{kind} shop/x"](cluster)
    cluster.settle()
    edit(cluster, kind)
    for found in cluster.pods("shop"):
        if kind == "StatefulSet":
            replace_pod(cluster, found["metadata"]["name"])
        else:
            cluster.delete("Pod", "shop", found["metadata"]["name"])
    cluster.wait_for(lambda: images(cluster) == ["app:2"] * 3)
    cluster.settle()
    all_are_evicted(cluster, run, "app:2")


def test_a_change_that_was_rolled_out_in_part_and_taken_back_is_pending(cluster, run):
    """The two revisions in the status are equal then, but x-2 has neither. Never compare them."""
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    edit(cluster, "StatefulSet")
    replace_pod(cluster, "x-2")
    edit(cluster, "StatefulSet", image="app:1")
    status = cluster.get("StatefulSet", "shop", "x")["status"]
    assert status["currentRevision"] == status["updateRevision"]
    ended = run(cluster, CONFIRM, *EVICT)
    assert (codes(ended), evictions(cluster)) == ({"StatefulSet shop/x": "pending_template"}, [])


def test_a_change_that_was_taken_back_before_any_pod_had_it_is_not_pending(cluster, run):
    OWNERS["DaemonSet shop/x"](cluster)
    cluster.settle()
    edit(cluster, "DaemonSet", image="app:2")
    edit(cluster, "DaemonSet", image="app:1")
    cluster.wait_for(
        lambda: cluster.get("DaemonSet", "shop", "x")["status"].get("updatedNumberScheduled") == 3
    )
    all_are_evicted(cluster, run, "app:1")


def test_no_pod_is_evicted_if_only_some_would_come_back_the_same(cluster, run):
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    edit(cluster, "StatefulSet")
    replace_pod(cluster, "x-2")
    ended = run(cluster, CONFIRM, *EVICT)
    assert (codes(ended), evictions(cluster)) == ({"StatefulSet shop/x": "pending_template"}, [])


def test_a_pod_above_its_current_revision_is_not_rolled_back(cluster, run):
    """It is below a partition that was raised after it was updated."""
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **partition(2)))
    cluster.settle()
    edit(cluster, "StatefulSet")
    cluster.wait_for(lambda: images(cluster) == ["app:1", "app:1", "app:2"])
    cluster.settle()
    raised = {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 5}}}}
    cluster.change("StatefulSet", "shop", "x", raised)
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT)
    assert (codes(ended), evictions(cluster)) == ({"StatefulSet shop/x": "below_partition"}, [])


def test_with_a_selector_the_worker_counts_all_pods(cluster, run):
    """The plan sees one of three Pods, and the status counts one updated Pod."""
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    edit(cluster, "StatefulSet")
    replace_pod(cluster, "x-2")
    ended = run(cluster, CONFIRM, *EVICT, "--selector=statefulset.kubernetes.io/pod-name in (x-0)")
    (result,) = ended.of("result")
    assert (result["outcome"], evictions(cluster)) == ("skipped", [])
    assert "change of its Pod template" in result["message"]


@pytest.mark.parametrize(
    "kind", ["StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController"]
)
@pytest.mark.embedded("slows the kubelet down")
def test_a_template_that_changes_between_two_pods_ends_it(cluster, start, kind):
    """Right before each eviction it is found out again."""
    OWNERS[f"{kind} shop/x"](cluster)
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT)
    cluster.wait_for(cluster.kubelet.starting)
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "app", "image": "app:2"}]}}}}
    cluster.change(kind, "shop", "x", patch)
    let_ready(cluster)
    ended = running.finish()
    total = {"StatefulSet": 3, "DaemonSet": 3}.get(kind, 2)
    (message,) = [r["message"] for r in ended.of("result")]
    text = "its Pod template was changed; rerun this command"
    assert message == f"{text} (1 of {total} Pods replaced)"
    assert ended.outcomes == {"shop/x": "incomplete"}
    assert ended.summary["pods"]["updated"] == 1
    assert len(evictions(cluster)) == 1
    assert images(cluster) == ["app:1"] * total


@pytest.mark.embedded("sets the status of a StatefulSet")
def test_a_spec_that_was_not_observed_yet_is_pending(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **ON_DELETE))
    cluster.settle()
    with cluster.store.lock:
        found = cluster.get("StatefulSet", "shop", "x")
        status = {**found["status"], "observedGeneration": 0}
        cluster.controllers._steps["statefulsets"] = lambda obj: None  # its controller is behind
        cluster.store.change("statefulsets", found, status=status)
    assert codes(run(cluster, *EVICT)) == {"StatefulSet shop/x": "pending_template"}
