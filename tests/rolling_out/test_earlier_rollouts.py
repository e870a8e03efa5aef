"""Nothing is waited for, or begun again, because an earlier run began it: what is not complete is listed and left."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time

import pytest
from clusters.embedded import is_ready
from clusters.embedded.manifests import container, pod_spec, workload
from support import (
    BOTH,
    CONFIRM,
    DRIFTED,
    KUBECTL,
    NEW,
    TEXT,
    cutoff,
    let_ready,
    make_old,
    messages,
    patched,
    restarted_by_us,
    upgrade,
)
from texts import NEVER_COMPLETE

SLOW = 600  # seconds until a Pod is ready: never, for a test
LEFT = {"Deployment shop/web": "incomplete_rollout"}
NEXT = "docker.io/istio/proxyv2:1.28.0"


def generation(cluster, name: str = "web", kind: str = "Deployment") -> int:
    return cluster.get(kind, "shop", name)["metadata"]["generation"]


def begin(cluster, run, kind: str, name: str = "web", **spec) -> None:
    """A workload whose rollout a run has begun, and not seen the end of."""
    cluster.create("shop", workload(kind, name, **spec))
    make_old(cluster)
    upgrade(cluster)
    cluster.kubelet.ready_after = SLOW
    ended = run(cluster, CONFIRM, DRIFTED, *BOTH, f"{kind.lower()}/{name}", "--timeout=2s")
    assert (ended.code, ended.outcomes) == (1, {f"shop/{name}": "timed_out"})


def observed(cluster, number: int) -> None:
    """Wait until the controller of Deployment web has seen a generation."""
    cluster.wait_for(
        lambda: cluster.get("Deployment", "shop", "web")["status"]["observedGeneration"] == number
    )


def release(cluster, name: str = "web") -> None:
    """Somebody's own change of the Pod template; managedFields have whole seconds."""
    time.sleep(1.1 - time.time() % 1)
    env = [{"name": "RELEASE", "value": "2"}]
    template = {"spec": {"containers": [{"name": "app", "env": env}]}}
    cluster.change("Deployment", "shop", name, {"spec": {"template": template}})


@pytest.mark.both
@pytest.mark.parametrize("options", [[], [DRIFTED]], ids=["all", "drifted"])
def test_a_run_that_was_killed_is_resumed_by_the_same_command(cluster, start, run, options):
    names = [f"web-{number}" for number in range(10)]
    for name in names:
        cluster.create("shop", workload("Deployment", name, replicas=2))
    make_old(cluster)
    upgrade(cluster)
    cluster.kubelet.ready_after = 0.05
    words = (CONFIRM, *options, cutoff(), "--parallel-rollouts=10")
    running = start(cluster, *words)
    cluster.wait_for(lambda: generation(cluster, "web-0") > 1)
    cluster.wait_for(lambda: sum(generation(cluster, name) > 1 for name in names) >= 4, 60)
    cluster.kubelet.ready_after = SLOW
    running.signal(signal.SIGKILL)
    running.finish()
    let_ready(cluster)
    cluster.settle()  # a patch may have been on its way
    first = [name for name in names if generation(cluster, name) > 1]
    ended = run(cluster, *words)
    assert ended.code == 0, ended.stderr
    assert {generation(cluster, name) for name in names} == {2}
    assert ended.outcomes == {f"shop/{n}": "succeeded" for n in names if n not in first}
    images = {c["image"] for p in cluster.pods("shop") for c in p["spec"]["containers"]}
    assert NEW in images
    assert run(cluster, *words).planned == []


@pytest.mark.both
def test_one_in_progress_is_left_alone_and_the_others_go_on(cluster, run):
    begin(cluster, run, "Deployment", replicas=3)
    cluster.kubelet.ready_after = 0.05
    cluster.create("shop", workload("Deployment", "other"))
    cluster.wait_for(
        lambda: cluster.get("Deployment", "shop", "other").get("status", {}).get("readyReplicas")
    )
    cluster.injector.container["image"] = NEXT  # also for what the first run began
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, ended.skipped, ended.outcomes) == (1, LEFT, {"shop/other": "succeeded"})
    assert ended.summary["failed"] == {"of_an_earlier_run": 1}
    assert (generation(cluster), patched(cluster)) == (2, ["web", "other"])
    dry = run(cluster, DRIFTED)
    assert (dry.code, dry.skipped, dry.planned) == (0, LEFT, [])
    let_ready(cluster)
    cluster.settle()
    done = run(cluster, CONFIRM, DRIFTED)
    assert (done.code, done.outcomes) == (0, {"shop/web": "succeeded"})


@pytest.mark.both
@pytest.mark.parametrize(
    ("kind", "skipped"),
    [
        ("Deployment", {"Deployment shop/web": "incomplete_rollout"}),
        ("StatefulSet", {"StatefulSet shop/web": "incomplete_rollout"}),
        ("DaemonSet", {}),  # its controller keeps no record: all Pods are updated
    ],
)
@pytest.mark.parametrize("options", [[DRIFTED], []], ids=["drifted", "all"])
def test_one_whose_new_pod_was_never_ready_is_named_until_it_is(
    cluster, run, kind, skipped, options
):
    strategy = {
        "Deployment": {"strategy": {"type": "Recreate"}},
        "DaemonSet": {
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 9}}
        },
    }
    begin(cluster, run, kind, **strategy.get(kind, {}))
    ended = run(cluster, CONFIRM, *options, *BOTH, "--timeout=2s")
    if skipped:
        assert (ended.code, ended.skipped, ended.outcomes) == (1, skipped, {})
        (row,) = ended.of("skip")
        assert re.match(NEVER_COMPLETE, row["message"])
        assert ended.summary["failed"] == {"of_an_earlier_run": 1}
    elif options:
        assert (ended.code, ended.skipped, ended.outcomes) == (0, {}, {})
    let_ready(cluster)
    cluster.settle()
    done = run(cluster, CONFIRM, DRIFTED, *BOTH)
    assert (done.code, done.skipped, done.outcomes) == (0, {}, {})


def test_one_of_a_kind_that_is_not_selected_is_not_named(cluster, run):
    """Whoever restarts Deployments need not know what became of StatefulSets."""
    begin(cluster, run, "StatefulSet")
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, ended.skipped, ended.summary["failed"]) == (0, {}, {})


@pytest.mark.both
def test_the_same_reason_is_one_group_and_names_no_pod(cluster, run):
    cluster.kubelet.back_off = 60  # else it is pulled again meanwhile: ErrImagePull
    for name in ("web-1", "web-2", "web-3"):
        spec = pod_spec(container("app", "broken:1"))
        cluster.create(
            "shop", workload("Deployment", name, spec, strategy={"type": "Recreate"}, replicas=2)
        )
    make_old(cluster)
    upgrade(cluster)
    first = run(cluster, CONFIRM, DRIFTED, "--timeout=1s", "--max-failures=9")
    assert set(first.outcomes.values()) == {"timed_out"}
    shown = run(cluster, CONFIRM, DRIFTED, TEXT)
    text = shown.stdout.partition("\nNot rolled out:\n")[2].partition("\n\n")[0]
    assert len(re.findall(NEVER_COMPLETE, text)) == 1
    assert text.endswith("PullBackOff:\n    Deployment shop/web-1, shop/web-2, shop/web-3") or (
        text.endswith("ErrImagePull:\n    Deployment shop/web-1, shop/web-2, shop/web-3")
    )
    assert shown.stdout.splitlines()[-1] == (
        "Failed: 3 of an earlier run (shop/web-1, shop/web-2, shop/web-3)."
    )


@pytest.mark.both
def test_new_pods_that_would_get_another_sidecar_today_are_repaired_first(cluster, run):
    """This command left them so. They are unhealthy, and subject to --skip-unhealthy."""
    begin(cluster, run, "Deployment", strategy={"type": "Recreate"})
    cluster.kubelet.ready_after = 0.05
    cluster.create("shop", workload("Deployment", "z-well", replicas=5))
    cluster.wait_for(lambda: len(cluster.pods("shop", "z-well")) == 5)
    cluster.injector.container["image"] = NEXT
    skipped = run(cluster, CONFIRM, DRIFTED, "--skip-unhealthy", "deployment/web")
    assert (skipped.code, skipped.skipped) == (0, {"Deployment shop/web": "unhealthy"})
    ended = run(cluster, CONFIRM, DRIFTED)
    assert ended.planned == ["shop/web", "shop/z-well"]
    assert ended.outcomes == {"shop/z-well": "succeeded", "shop/web": "succeeded"}


@pytest.mark.both
def test_a_cluster_that_is_full_keeps_no_old_pods(cluster, run):
    """One new Pod finds no room: all that there are have been updated."""
    begin(cluster, run, "Deployment", replicas=4, strategy={"type": "Recreate"})
    pods = cluster.pods("shop")
    for found in pods[1:]:
        cluster.kubelet.start("shop", found["metadata"]["name"])
    cluster.wait_for(
        lambda: cluster.get("Deployment", "shop", "web")["status"].get("availableReplicas") == 3
    )
    cluster.kubelet.ready_after = 0.05
    cluster.injector.container["image"] = NEXT
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})


@pytest.mark.parametrize("options", [[], [DRIFTED]], ids=["all", "drifted"])
def test_one_that_is_stuck_because_of_its_sidecar_is_begun_again(cluster, run, options):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    make_old(cluster)
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:broken"
    ended = run(cluster, CONFIRM, *options, "--timeout=2s")
    assert ended.code == 1
    upgrade(cluster)
    assert run(cluster, *options).planned == ["shop/web"]
    assert run(cluster, CONFIRM, *options).outcomes == {"shop/web": "succeeded"}
    assert generation(cluster) == 3


@pytest.mark.both
def test_broken_workloads_of_one_upgrade_do_not_keep_the_next_from_starting(cluster, run):
    for number in range(5):
        cluster.create("shop", workload("Deployment", f"good-{number}"))
        spec = pod_spec(container("app", "broken:1"))
        bad = workload("Deployment", f"bad-{number}", spec, replicas=2, progressDeadlineSeconds=1)
        cluster.create("shop", bad)
    make_old(cluster)
    upgrade(cluster)
    first = run(cluster, CONFIRM, DRIFTED, "--timeout=3s")
    good = dict.fromkeys([f"shop/good-{number}" for number in range(5)], "succeeded")
    assert first.outcomes.items() >= good.items()
    assert first.code == 1
    cluster.injector.container["image"] = NEXT
    second = run(cluster, CONFIRM, DRIFTED, "--timeout=3s")
    assert second.outcomes.items() >= good.items()
    assert second.code == 1


# Whose rollout it is, by the record of its controller


@pytest.fixture
def rolled_out(cluster, run):
    """Deployments a and b, which a run has restarted, and the command's cutoff."""
    for name in "ab":
        cluster.create("shop", workload("Deployment", name))
    make_old(cluster)
    upgrade(cluster)
    ended = run(cluster, DRIFTED, CONFIRM)
    assert ended.code == 0
    return cluster


def becomes_unready(cluster) -> None:
    (pod,) = cluster.pods("shop", "a")
    cluster.kubelet.crash("shop", pod["metadata"]["name"], "istio-proxy")
    cluster.kubelet.set_ready("shop", pod["metadata"]["name"], False)


def is_scaled_up(cluster) -> None:
    cluster.kubelet.ready_after = SLOW
    cluster.change("Deployment", "shop", "a", {"spec": {"replicas": 2}})
    cluster.wait_for(lambda: len(cluster.pods("shop", "a")) == 2)


def is_moved(cluster) -> None:
    cluster.kubelet.ready_after = SLOW
    (pod,) = cluster.pods("shop", "a")
    cluster.delete("Pod", "shop", pod["metadata"]["name"])
    cluster.wait_for(
        lambda: (
            pod["metadata"]["uid"] not in (p["metadata"]["uid"] for p in cluster.pods("shop", "a"))
        )
    )


def is_released(cluster) -> None:
    release(cluster, "a")
    cluster.settle()
    becomes_unready(cluster)


@pytest.mark.both
@pytest.mark.parametrize("event", [becomes_unready, is_scaled_up, is_moved, is_released])
@pytest.mark.parametrize("options", [(DRIFTED,), (DRIFTED, "--timeout=1h")], ids=["", "timeout"])
def test_what_becomes_unready_after_a_complete_rollout_is_not_our_rollout(
    rolled_out, run, event, options
):
    event(rolled_out)
    ended = run(rolled_out, *options, CONFIRM)
    assert (ended.code, ended.skipped, ended.planned) == (0, {}, [])


@pytest.mark.both
def test_it_is_ours_until_somebody_changes_its_template(cluster, run):
    """Not the workload, or how many Pods it has."""
    begin(cluster, run, "Deployment", replicas=3)
    cluster.change("Deployment", "shop", "web", {"metadata": {"labels": {"team": "a"}}})
    cluster.change("Deployment", "shop", "web", {"spec": {"replicas": 4}})
    observed(cluster, 3)
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, ended.skipped) == (1, LEFT)
    assert ended.of("skip")[0]["of_an_earlier_run"] is True
    assert run(cluster, CONFIRM, DRIFTED).summary["failed"] == {"of_an_earlier_run": 1}
    skipping = run(cluster, CONFIRM, DRIFTED, "--skip-unhealthy")
    assert (skipping.code, skipping.skipped) == (0, LEFT)  # who says that it is not theirs
    release(cluster)
    observed(cluster, 4)
    theirs = run(cluster, CONFIRM, DRIFTED)
    assert (theirs.code, theirs.skipped) == (0, LEFT)
    assert theirs.of("skip")[0]["of_an_earlier_run"] is False
    assert generation(cluster) == 4
    let_ready(cluster)
    cluster.settle()
    assert run(cluster, CONFIRM, DRIFTED).code == 0


RED = {"of_an_earlier_run": 1}


def kubectl_rollout(cluster, verb: str) -> None:
    words = [KUBECTL, "rollout", verb, "deployment/web", "--namespace=shop"]
    kubeconfig = f"--kubeconfig={cluster.kubeconfig}"
    subprocess.run([*words, kubeconfig], check=True, capture_output=True, timeout=60)


@pytest.mark.both
def test_until_its_run_waits_no_longer_it_is_in_progress(tool, cluster, run):
    """Unless a new Pod is stuck: that is no matter of time."""
    begin(cluster, run, "Deployment", replicas=3)
    restarted_by_us(tool, cluster, "Deployment", "web", until="2036-01-01T00:01:00Z")
    observed(cluster, 3)
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, ended.skipped) == (0, LEFT)
    assert "in progress until 00:01 UTC: " in ended.reasons["Deployment shop/web"]
    cluster.kubelet.ready_after = 0.05
    cluster.create("shop", workload("Deployment", "bad", pod_spec(container("app", "broken:1"))))
    cluster.wait_for(lambda: "PullBackOff" in str(cluster.pods("shop", "bad")))
    restarted_by_us(tool, cluster, "Deployment", "bad", until="2036-01-01T00:01:00Z")
    cluster.wait_for(lambda: len(cluster.pods("shop", "bad")) == 2)
    cluster.wait_for(lambda: str(cluster.pods("shop", "bad")).count("PullBackOff") >= 2)
    stuck = run(cluster, CONFIRM, DRIFTED)
    assert (stuck.code, stuck.summary["failed"]) == (1, RED)


def test_a_node_that_is_to_come_is_a_matter_of_time(tool, cluster, run):
    begin(cluster, run, "Deployment", replicas=3)
    restarted_by_us(tool, cluster, "Deployment", "web", until="2036-01-01T00:01:00Z")
    observed(cluster, 3)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    with cluster.store.lock:
        for found in cluster.pods("shop"):
            if not is_ready(found):
                status = {"phase": "Pending", "conditions": [condition]}
                cluster.store.change("pods", found, status=status)
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, ended.skipped) == (0, LEFT)
    said = ended.reasons["Deployment shop/web"]
    assert "in progress until 00:01 UTC: Unschedulable" in said


@pytest.mark.both
def test_one_that_is_paused_is_ours_all_the_same(cluster, run):
    begin(cluster, run, "Deployment", replicas=3)
    cluster.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    observed(cluster, 3)
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, ended.summary["failed"]) == (1, RED)
    assert ended.skipped == {"Deployment shop/web": "unknown"}  # its Pods have two templates
    assert re.match(NEVER_COMPLETE, ended.reasons["Deployment shop/web"])


@pytest.mark.both
def test_one_that_a_selector_does_not_find_is_ours(cluster, run):
    begin(cluster, run, "Deployment", replicas=3)
    ended = run(cluster, CONFIRM, DRIFTED, "--selector=app=other")
    assert (ended.code, ended.summary["failed"]) == (1, RED)
    assert ended.skipped == {"Deployment shop/web": "of_an_earlier_run"}
    assert run(cluster, CONFIRM, DRIFTED, "--selector=app=other", "--skip-unhealthy").code == 0
    assert run(cluster, CONFIRM, DRIFTED, "--selector=app=other", "deployment/x*").code == 0


@pytest.mark.both
def test_a_removal_that_was_never_complete_is_ours(cluster, run):
    """No Pod that has the sidecar leads to it."""
    cluster.create("shop", workload("Deployment", "web", strategy={"type": "Recreate"}))
    cluster.create("shop", workload("Deployment", "other"))
    cluster.settle()
    cluster.injector.state, cluster.kubelet.ready_after = "ignored", SLOW
    removal = [CONFIRM, DRIFTED, "--allow-removal", "deployment/web", "--timeout=2s"]
    assert run(cluster, *removal).code == 1
    cluster.injector.state = "works"
    pattern = "--sidecar-container-name=istio-*"
    ended = run(cluster, CONFIRM, DRIFTED, pattern)
    assert (ended.code, ended.summary["failed"]) == (1, RED)
    assert ended.skipped == {"Deployment shop/web": "of_an_earlier_run"}


@pytest.mark.both
def test_one_that_is_to_be_begun_again_counts_until_it_is(cluster, run):
    begin(cluster, run, "Deployment", "web-1", strategy={"type": "Recreate"})
    cluster.injector.container["image"] = NEXT
    ended = run(cluster, CONFIRM, DRIFTED, "--gate=false", "--max-duration=1s")
    assert (ended.outcomes, ended.code) == ({"shop/web-1": "not_started"}, 1)
    assert ended.summary["failed"] == RED
    let_ready(cluster)
    done = run(cluster, CONFIRM, DRIFTED)
    assert (done.code, done.summary["failed"]) == (0, {})


def test_a_roll_back_to_what_we_restarted_is_a_rollout_of_its_own(cluster, run):
    """It has the same Pod template, and new Pods that are younger than our run."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    make_old(cluster)
    upgrade(cluster)
    assert run(cluster, CONFIRM, DRIFTED, "--timeout=3s").code == 0
    release(cluster)
    cluster.settle()
    time.sleep(6)  # until the run waits no longer
    cluster.kubelet.ready_after = SLOW
    kubectl_rollout(cluster, "undo")
    observed(cluster, 4)
    cluster.wait_for(lambda: len(cluster.pods("shop")) > 2)
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, ended.summary["failed"]) == (0, {})


def test_a_restart_by_its_team_makes_it_theirs(tool, cluster, run):
    begin(cluster, run, "Deployment", replicas=3)
    restarted_by_us(tool, cluster, "Deployment", "web", until="2036-01-01T00:01:00Z")
    observed(cluster, 3)
    kubectl_rollout(cluster, "restart")
    observed(cluster, 4)
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, ended.skipped) == (0, LEFT)
    assert "its rollout is not complete: " in ended.reasons["Deployment shop/web"]


def test_a_roll_back_between_plan_and_turn_is_not_of_another_run(cluster, run, start):
    """It brings back an earlier time of this command."""
    cluster.create("shop", workload("Deployment", "web"))
    make_old(cluster)
    assert run(cluster, CONFIRM).code == 0
    release(cluster)
    cluster.settle()
    upgrade(cluster)
    assert run(cluster, CONFIRM, DRIFTED).code == 0
    cluster.injector.container["image"] = NEXT
    held = cluster.fault(method="GET", path="deployments/web$", release=threading.Event())
    running = start(cluster, CONFIRM, DRIFTED)
    assert held.reached.wait(20)
    kubectl_rollout(cluster, "undo")
    cluster.settle()
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "skipped"})
    assert messages(ended)["web"] == "already up to date"


def test_a_row_of_a_plan_that_was_never_complete_counts_once(cluster, run, tmp_path):
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    make_old(cluster)
    upgrade(cluster)
    (tmp_path / "plan").write_text(run(cluster, DRIFTED).stdout)
    plan = f"--plan={tmp_path}/plan"
    cluster.kubelet.ready_after = SLOW
    assert run(cluster, CONFIRM, DRIFTED, plan, "--timeout=1s").code == 1
    ended = run(cluster, CONFIRM, DRIFTED, plan)
    assert ended.summary["failed"] == {"of_an_earlier_run": 1}
    last = run(cluster, CONFIRM, DRIFTED, plan, TEXT).stdout.splitlines()[-1]
    assert last == "Failed: 1 of an earlier run (shop/web)."


def test_another_prefix_is_of_another_command(cluster, run):
    begin(cluster, run, "Deployment", replicas=3)
    ended = run(cluster, CONFIRM, DRIFTED, "--annotation-prefix=other")
    assert (ended.code, ended.planned, ended.skipped) == (0, [], LEFT)


def test_one_that_recovers_during_the_run_is_listed_as_it_was(cluster, run, start):
    begin(cluster, run, "Deployment", strategy={"type": "Recreate"})
    cluster.kubelet.ready_after = 0.05
    cluster.create("shop", workload("Deployment", "c"))
    cluster.wait_for(lambda: cluster.pods("shop", "c"))
    held = cluster.fault(method="PATCH", path="deployments/c", release=threading.Event())
    running = start(cluster, CONFIRM, "deployment/c", "deployment/web")
    assert held.reached.wait(20)
    let_ready(cluster)
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (1, {"shop/c": "succeeded"})
    assert ended.summary["failed"] == {"of_an_earlier_run": 1}


def test_the_timestamp_of_a_person_ends_no_run(cluster, run):
    """Anybody may write the annotation."""
    cluster.create("shop", workload("Deployment", "bait"))
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    stamp = {"sidecarRollout.rollout.timestamp": "x+00:00"}
    template = {"spec": {"template": {"metadata": {"annotations": stamp}}}}
    cluster.change("Deployment", "shop", "bait", template)
    cluster.settle()
    upgrade(cluster)
    ended = run(cluster, CONFIRM, DRIFTED)
    assert (ended.code, messages(ended)) == (0, {"bait": "", "web": ""})


RECORDS = [  # conditions of a Deployment, or the status of a StatefulSet; and whether it is a record
    ({"conditions": [("Progressing", "True", "NewReplicaSetAvailable")]}, False),
    ({"conditions": [("Progressing", "True", "ReplicaSetUpdated")]}, True),
    ({"conditions": [("Progressing", "False", "ProgressDeadlineExceeded")]}, True),
    ({"conditions": [("Progressing", "Unknown", "DeploymentPaused")]}, False),
    ({"conditions": [("Available", "False", "MinimumReplicasUnavailable")]}, False),
    ({"currentRevision": "a", "updateRevision": "a"}, False),
    ({"currentRevision": "a", "updateRevision": "b"}, True),
    ({}, False),
]


@pytest.mark.parametrize(("status", "is_never"), RECORDS)
def test_whether_a_rollout_was_ever_complete_is_the_controllers_to_say(tool, status, is_never):
    names = ("type", "status", "reason")
    conditions = [dict(zip(names, c, strict=True)) for c in status.get("conditions", [])]
    obj = {"spec": {}, "status": {**status, "conditions": conditions}}
    assert tool.is_never_complete(obj) is is_never
    if "currentRevision" in status:
        obj["spec"] = {"updateStrategy": {"rollingUpdate": {"partition": 1}}}
        assert not tool.is_never_complete(obj)
