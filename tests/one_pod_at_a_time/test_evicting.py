"""--evict: each owner that has no rollout, and what the plan says."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, replicated, workload
from support import (
    APP,
    CONFIRM,
    EVICT,
    NEW,
    OWNERS,
    Watch,
    argo,
    evictions,
    images,
    partition,
    ref_of,
    uids,
    upgrade,
)

pytestmark = pytest.mark.both


@pytest.mark.parametrize(
    ("owner", "options"),
    [
        *((owner, ()) for owner in OWNERS),
        # Those that differ in how they are compared
        *(
            (f"{kind} shop/x", ("--only-drifted",))
            for kind in ("Deployment", "Rollout", "CloneSet")
        ),
    ],
)
def test_each_owner(cluster, run, owner, options):
    OWNERS[owner](cluster)
    cluster.settle()
    upgrade(cluster)
    cluster.kubelet.ready_after = 0.3  # longer than the old Pods take to end
    before, watch = uids(cluster), Watch(cluster)
    without = run(cluster, CONFIRM, *options, *EVICT[1:])
    assert without.planned == []
    if owner.startswith("CloneSet") and options:
        assert without.summary["verdicts"] == {"unknown": 1}
    else:
        assert all("--evict" in reason for reason in without.reasons.values())
        assert len(without.skipped) in (1, len(before))
    ended = run(cluster, CONFIRM, *options, *EVICT)
    if owner.startswith("CloneSet") and options:
        (drift,) = ended.of("drift")
        message = "the Pod template of CloneSet (apps.kruise.io) cannot be read"
        assert (drift["verdict"], drift["message"]) == ("unknown", message)
        assert (ended.code, evictions(cluster)) == (0, [])
        return
    assert ended.code == 0, ended.stderr
    (plan,) = ended.of("plan")
    assert (ref_of(plan), plan["method"]) == (owner, "evict")
    assert plan["pods"]["old"] == plan["pods"]["total"] == len(before)
    assert ended.outcomes == {"shop/x": "succeeded"}
    assert ended.summary["pods"]["ready"] == len(before)
    assert set(uids(cluster)).isdisjoint(before)
    assert images(cluster, "istio-proxy") == [NEW] * len(before)
    assert watch.most == 1
    assert len(evictions(cluster)) == len(before)
    again = run(cluster, CONFIRM, *options, *EVICT, *cutoff_of(ended))
    assert (again.code, again.planned) == (0, [])


def cutoff_of(ended) -> list[str]:
    """The cutoff of a run; with --only-drifted it has none."""
    moment = ended.summary["started_before"]
    return [f"--only-started-before={moment}"] if moment else []


def test_pods_below_a_partition_are_never_evicted(cluster, run):
    """They would come back from another revision."""
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **partition(2)))
    cluster.settle()
    upgrade(cluster)
    first = run(cluster, CONFIRM, *EVICT)
    assert (first.code, first.outcomes) == (0, {"shop/x": "succeeded"})
    assert [(r["method"], r["pods"]["old"]) for r in first.of("plan")] == [("restart", 1)]
    kept = "partition 2 keeps 2 old Pods"
    assert first.of("result")[0]["message"] == kept
    second = run(cluster, CONFIRM, *EVICT, "--only-drifted")
    assert second.skipped == {"StatefulSet shop/x": "below_partition"}
    assert evictions(cluster) == []


def test_workloads_with_a_rollout_are_restarted_all_the_same(cluster, run):
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        cluster.create("shop", workload(kind, kind.lower(), APP))
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT)
    assert {r["method"] for r in ended.of("plan")} == {"restart"}
    assert (ended.code, evictions(cluster)) == (0, [])


@pytest.mark.embedded(
    "the garbage collector of a real one removes Pods of a Job that does not exist"
)
def test_pods_that_nobody_would_replace_are_never_evicted(cluster, run):
    proxy = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2")
    once = pod_spec(container("app"), proxy, restartPolicy="Never")
    cluster.create("shop", pod("bare", pod_spec(container("app"), proxy)))
    cluster.create("shop", pod("static", once, ("v1", "Node", "node-1")))
    cluster.create("shop", pod("job", once, ("batch/v1", "Job", "job")))
    cluster.create("shop", pod("step", once, ("argoproj.io/v1alpha1", "Workflow", "w")))
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT)
    assert ended.skipped == {
        "Pod shop/bare": "without_controller",
        "Pod shop/static": "static_pod",
        "Pod shop/job": "running_to_completion",
        "Pod shop/step": "restart_policy",
    }
    assert (ended.planned, evictions(cluster)) == ([], [])


def test_the_text_shows_what_is_evicted(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "orphan", APP))
    cluster.settle()
    text = run(cluster, *EVICT, "--log-format=text").stdout
    assert "To roll out: 1 workload with 1 Pod.\n" in text
    cluster.create("shop", workload("Deployment", "web", APP))
    cluster.settle()
    lines = run(cluster, *EVICT, "--log-format=text").stdout.splitlines()
    rows = {line.split()[2]: line for line in lines if "  shop  " in line}
    assert rows["replicaset/orphan"].endswith("no Service; evict; downtime")
    assert sum("; evict;" in line for line in lines) == 1
    assert "To roll out: 2 workloads with 2 Pods." in lines


def test_a_rollout_with_two_replica_sets_is_not_compared_but_evicted(cluster, run):
    cluster.create("shop", argo("x", replicas=2))
    second = argo("x", pod_spec(container("app", "app:2")), replicas=1)
    second["metadata"]["name"] = "x-77cb8cb798"
    second["spec"]["selector"]["matchLabels"] = {"app": "x2"}
    second["spec"]["template"]["metadata"]["labels"] = {"app": "x2"}
    cluster.create("shop", second)
    cluster.settle()
    upgrade(cluster)
    ended = run(cluster, CONFIRM, "--only-drifted", *EVICT)
    (drift,) = ended.of("drift")
    assert drift["verdict"] == "unknown"
    assert drift["message"].startswith("its Pods belong to 2 ReplicaSets")
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert sorted(images(cluster)) == ["app:1", "app:1", "app:2"]
    assert images(cluster, "istio-proxy") == [NEW] * 3


def test_an_opt_out_holds_for_every_owner(cluster, run):
    spec = {**APP}
    for kind in ("ReplicaSet", "ReplicationController", "CloneSet"):
        manifest = replicated(kind, kind.lower(), spec)
        manifest["spec"]["template"]["metadata"]["annotations"] = {"team/restart": "never"}
        cluster.create("shop", manifest)
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT, "--exclude-annotation=team/restart=never")
    assert set(ended.skipped.values()) == {"excluded"}
    assert len(ended.skipped) == 3
    assert evictions(cluster) == []


@pytest.mark.embedded("the garbage collector of a real one removes Pods without their owner")
def test_a_replica_set_that_is_gone_is_skipped(cluster, run):
    proxy = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2")
    cluster.create(
        "shop", pod("left", pod_spec(container("app"), proxy), ("apps/v1", "ReplicaSet", "gone"))
    )
    cluster.settle()
    assert run(cluster, *EVICT).skipped == {"Pod shop/left": "gone"}


def test_deployments_that_are_not_selected_are_not_evicted_either(cluster, run):
    cluster.create("shop", workload("Deployment", "web", APP))
    cluster.create("shop", argo("x"))
    cluster.settle()
    ended = run(cluster, *EVICT, "--exclude-deployment")
    assert ended.skipped == {"Deployment shop/web": "kind_not_selected"}
    assert ended.planned == ["shop/x"]


@pytest.mark.parametrize("options", [(), ("--only-drifted",)], ids=["all", "drifted"])
def test_only_selected_pods_are_evicted(cluster, run, options):
    """A label can select a single Pod; a rollout would replace the others as well."""
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    upgrade(cluster)
    selector = "--selector=statefulset.kubernetes.io/pod-name=x-1"
    ended = run(cluster, CONFIRM, *options, *EVICT, selector)
    (plan,) = ended.of("plan")
    assert (plan["pods"]["old"], ended.code) == (1, 0)
    assert evictions(cluster) == ["x-1"]


def test_only_custom_resources_can_be_selected(cluster, run):
    cluster.create("shop", workload("Deployment", "web", APP))
    cluster.create("shop", argo("x"))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--evict", "--exclude-deployment")
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_the_question_and_the_log_speak_of_evictions(tool, cluster, run):
    cluster.create("shop", argo("x"))
    cluster.settle()
    assert (
        "Rollout shop/x: eviction succeeded"
        in run(cluster, CONFIRM, "--evict", "--log-format=text").stderr
    )


def test_an_orphan_is_skipped_as_its_spec_was_changed(cluster, run):
    """The Deployment controller adds what it knows to its ReplicaSets: nobody knows what changed."""
    cluster.create("shop", workload("Deployment", "x", APP))
    cluster.settle()
    cluster.change("Deployment", "shop", "x", {"spec": {"replicas": 2}})
    cluster.settle()
    cluster.delete("Deployment", "shop", "x", orphan=True)
    ended = run(cluster, CONFIRM, "--evict", "--exclude-deployment")
    assert [(r["kind"], r["code"]) for r in ended.of("skip")] == [
        ("ReplicaSet", "pending_template")
    ]
    assert (ended.code, evictions(cluster)) == (0, [])
