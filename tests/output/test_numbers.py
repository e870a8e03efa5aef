"""Each number is counted from Pods that were read; the plan, the results and the last count agree."""

from __future__ import annotations

import json
import signal
import threading

import pytest
from clusters.embedded.manifests import replicated, workload
from support import (
    APP,
    CONFIRM,
    DRIFTED,
    ON_DELETE,
    TEXT,
    counts,
    evictions,
    partition,
    sidecar_table,
    upgrade,
)
from texts import NO_NEW_ROLLOUTS, UPDATED_AND_READY


def pods_line(ended) -> str:
    return next(line for line in ended.stdout.splitlines() if line.startswith("Pods: "))


def test_a_rollout_that_was_interrupted_twice_is_not_verified(cluster, start):
    cluster.create("shop", workload("Deployment", "web", replicas=4))
    cluster.create("shop", workload("Deployment", "zoo", replicas=5))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, TEXT, "--log-level=debug")
    running.wait_for_log("running kubectl")
    running.signal(signal.SIGINT)
    running.wait_for_log(f"interrupted: {NO_NEW_ROLLOUTS}")
    running.signal(signal.SIGINT)
    ended = running.finish()
    assert "\nPods: " not in ended.stdout
    assert "2 workloads in " in ended.stdout


def test_the_surge_of_a_stuck_deployment_is_not_counted_twice(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=4))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    ended = run(cluster, CONFIRM, "--timeout=1s")
    assert len(cluster.store.list("pods", "shop")) == 5
    pods = ended.summary["pods"]
    assert (pods["wanted"], pods["ready"]) == (4, 0)


def test_what_others_have_updated_counts_as_updated(cluster, start, run):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    upgrade(cluster)
    held = cluster.fault(
        method="GET",
        path="shop/deployments/web",
        user_agent="sidecar-rollout",
        release=threading.Event(),
    )
    running = start(cluster, DRIFTED, CONFIRM)
    assert held.reached.wait(20)
    other = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}
    cluster.change("Deployment", "shop", "web", {"spec": {"template": other}})
    cluster.wait_for(
        lambda: all(
            p["metadata"].get("annotations", {}).get("kubectl.kubernetes.io/restartedAt")
            for p in cluster.store.list("pods", "shop")
        )
    )
    cluster.settle()
    held.release.set()
    ended = running.finish()
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"]) == ("skipped", "already up to date")
    levels = [json.loads(line)["level"] for line in ended.stderr.splitlines() if "already" in line]
    assert levels == ["INFO"]  # nothing is to be done
    assert ended.summary["pods"] == counts(0, 0, 0)  # it was not begun


@pytest.mark.both
def test_in_the_plan_are_the_pods_that_the_plan_replaces(cluster, run):
    """Not those that a partition keeps."""
    cluster.create("shop", workload("StatefulSet", "db", replicas=3, **partition(2)))
    cluster.settle()
    upgrade(cluster)
    ended = run(cluster, DRIFTED, "--include-statefulset", TEXT)
    assert sidecar_table(ended)[0].endswith(" 3 0 1 2 (2 below partition)")
    after = run(cluster, DRIFTED, "--include-statefulset", CONFIRM)
    assert after.summary["sidecars"][0]["left"] == {"below_partition": 2}


def test_nor_those_after_the_cutoff(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    old, _ = cluster.pods("shop")
    cluster.backdate(old, 3600)
    upgrade(cluster)
    cutoff = "--only-started-before=" + cluster.get("Pod", "shop", old["metadata"]["name"])[
        "metadata"
    ]["creationTimestamp"].replace("Z", ".5Z")
    ended = run(cluster, DRIFTED, TEXT, cutoff)
    assert sidecar_table(ended)[0].endswith(" 2 0 1 1 (1 drifted)")


def test_a_run_for_one_workload_lists_no_pods_of_others(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "lone", replicas=2))
    for name in ("web", "api"):
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.settle()
    upgrade(cluster)
    ended = run(cluster, DRIFTED, CONFIRM, "deployment/web")
    assert ended.summary["leftovers"] == []
    (old,) = [r for r in ended.summary["sidecars"] if "1.26" in r["image"]]
    assert old["left"] == {"not_named": 4}


def test_workloads_that_are_created_during_the_run_are_unknown(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.create("shop", workload("Deployment", "zero", replicas=0))
    cluster.settle()
    upgrade(cluster)
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, DRIFTED, CONFIRM)
    assert held.reached.wait(20)
    cluster.create("shop", workload("Deployment", "late", replicas=2))
    cluster.create("shop", replicated("CloneSet", "clones"))
    cluster.change("Deployment", "shop", "zero", {"spec": {"replicas": 2}})
    cluster.settle()
    held.release.set()
    ended = running.finish()
    assert ended.code == 0
    (sidecar,) = ended.summary["sidecars"]
    assert (sidecar["pods"], sidecar["left"]) == (6, {"unknown": 5})


def test_pods_that_lost_their_owner_have_no_controller(cluster, start):
    """Its owner was deleted with --cascade=orphan after the first eviction."""
    cluster.create("shop", workload("StatefulSet", "db", APP, replicas=2, **ON_DELETE))
    cluster.settle()
    for pod in cluster.pods("shop"):
        cluster.backdate(pod, 3600)
    upgrade(cluster)
    cluster.kubelet.ready_after = 60
    options = ("--evict", "--include-statefulset")
    running = start(cluster, DRIFTED, CONFIRM, *options)
    cluster.wait_for(lambda: evictions(cluster) and cluster.kubelet.starting())
    cluster.delete("StatefulSet", "shop", "db", orphan=True)
    ended = running.finish()
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"], result["message"]) == (0, "skipped", "no longer exists")
    codes = {left["code"] for left in ended.summary["leftovers"]}
    assert codes == {"without_controller"}


def test_pods_that_drift_after_the_plan_are_in_the_last_count(cluster, start):
    """A Pod of a workload that was up to date comes back without what is injected now."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    upgrade(cluster)
    cluster.create("shop", workload("Deployment", "well"))
    cluster.settle()
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, DRIFTED, CONFIRM)
    assert held.reached.wait(20)
    (pod,) = cluster.pods("shop", "well")
    newest, cluster.injector.container["image"] = cluster.injector.container["image"], "old:1"
    cluster.delete("Pod", "shop", pod["metadata"]["name"])
    uid = pod["metadata"]["uid"]
    cluster.wait_for(
        lambda: (
            cluster.pods("shop", "well")[:1]
            and cluster.pods("shop", "well")[0]["metadata"]["uid"] != uid
        )
    )
    cluster.injector.container["image"] = newest
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "succeeded"}
    (left,) = ended.summary["leftovers"]
    assert (left["name"][:5], left["message"], ended.code) == ("well-", "drifted", 0)


def test_the_total_is_of_what_is_selected(cluster, run):
    cluster.create("shop", workload("Deployment", "a"))
    cluster.create("shop", workload("StatefulSet", "b", APP, replicas=2, **ON_DELETE))
    cluster.settle()
    options = ("--evict", "--include-statefulset", TEXT)
    total = "To roll out: 2 workloads with 3 Pods.\n"
    assert total in run(cluster, *options).stdout
    shown = run(cluster, *options, "--max-rollouts=1").stdout
    total = "To roll out: 1 of 2 workloads (--max-rollouts) with 1 Pod.\n"
    assert total in shown


def test_pods_without_a_sidecar_are_none_of_its_business(cluster, run):
    """Also old ones, beside others that drifted."""
    cluster.namespace("legacy")
    cluster.create("legacy", workload("Deployment", "intranet", replicas=2))
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    for pod in cluster.pods("legacy"):
        cluster.backdate(pod, 3600)
    upgrade(cluster)
    ended = run(cluster, DRIFTED, CONFIRM)
    assert (ended.code, ended.summary["leftovers"]) == (0, [])


def test_pods_of_a_custom_resource_count_with_and_without_the_sidecar(cluster, run):
    cluster.create("shop", replicated("CloneSet", "clones", replicas=3))
    cluster.settle()
    cluster.injector.state = "ignored"
    cluster.create("shop", replicated("CloneSet", "plain", replicas=2))  # none of them has it
    cluster.delete("Pod", "shop", cluster.pods("shop", "clones")[0]["metadata"]["name"])
    cluster.wait_for(lambda: len(cluster.pods("shop", "clones")) == 3)
    cluster.settle()
    (planned,) = run(cluster, "--evict").of("plan")
    assert (planned["name"], planned["pods"]["old"], planned["pods"]["total"]) == ("clones", 2, 3)


def test_a_rollout_that_timed_out_is_counted_as_it_is_at_the_end(cluster, start):
    """Found by a random history: it had gone on meanwhile."""
    for name in ("db", "zoo"):
        cluster.create("shop", workload("StatefulSet", name, replicas=2))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    held = cluster.fault(path="statefulsets/zoo", release=threading.Event())
    running = start(cluster, CONFIRM, TEXT, "--include-statefulset", "--timeout=2s")
    running.wait_for_log("StatefulSet shop/db: rollout not complete: ")
    cluster.kubelet.start("shop", "db-1")
    held.release.set()
    ended = running.finish()
    message = "timed out: StatefulSet shop/db:\n"
    assert message in ended.stdout
    assert pods_line(ended) == f"Pods: 1 of 4{UPDATED_AND_READY} (1 not updated, 2 not ready)."
