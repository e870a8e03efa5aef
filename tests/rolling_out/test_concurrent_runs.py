"""Two runs at the same time: no workload is restarted twice."""

from __future__ import annotations

import re
import threading
from datetime import datetime, timedelta, timezone

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from support import (
    CONFIRM,
    DRIFTED,
    NEW,
    a_ref,
    a_workload,
    cutoff,
    make_old,
    messages,
    options_of,
    patched,
)

WAIT = "; wait, or run `kubectl rollout status`"


def in_progress(cluster, age: float) -> None:
    """Deployment web, in a rollout that another run began so many seconds ago."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    make_old(cluster)
    cluster.kubelet.ready_after = 60
    began = datetime.now(timezone.utc) - timedelta(seconds=age)
    stamp = {"other.rollout.timestamp": began.isoformat()}
    template = {"template": {"metadata": {"annotations": stamp}}}
    cluster.change("Deployment", "shop", "web", {"spec": template})
    cluster.wait_for(
        lambda: cluster.get("Deployment", "shop", "web")["status"].get("updatedReplicas")
    )


@pytest.mark.parametrize("options", [[], [DRIFTED], [CONFIRM]])
def test_a_rollout_in_progress_is_left_alone_whoever_began_it(cluster, run, options):
    in_progress(cluster, age=100)
    cluster.injector.container["image"] = NEW
    ended = run(cluster, *options)
    assert ended.code == 0
    assert ended.planned == []
    assert ended.skipped == {"Deployment shop/web": "incomplete_rollout"}
    assert "1 of 3 Pods updated" in ended.reasons["Deployment shop/web"]
    assert patched(cluster) == []


def test_a_rollout_that_is_stuck_halfway_is_left_alone(cluster, run):
    """A restart would bury the ReplicaSet that still serves, and rollout undo lead to the bad one."""
    cluster.create("shop", workload("Deployment", "web", progressDeadlineSeconds=1))
    make_old(cluster)
    bad = {"spec": {"containers": [{"name": "app", "image": "broken:1"}]}}
    cluster.change("Deployment", "shop", "web", {"spec": {"template": bad}})
    cluster.wait_for(lambda: "ImagePullBackOff" in str(cluster.pods("shop")))
    cluster.wait_for(
        lambda: cluster.get("Deployment", "shop", "web")["status"].get("updatedReplicas")
    )
    ended = run(cluster, CONFIRM)
    assert ended.skipped == {"Deployment shop/web": "incomplete_rollout"}
    reason = ended.reasons["Deployment shop/web"]
    assert "1 of 2 Pods updated: " in reason
    cluster.wait_for(
        lambda: "ProgressDeadlineExceeded" in str(cluster.get("Deployment", "shop", "web"))
    )
    reason = run(cluster, CONFIRM).reasons["Deployment shop/web"]
    assert reason.endswith("; repair the application")
    assert (ended.code, patched(cluster)) == (0, [])


@pytest.mark.embedded("whose kubelet decides which image cannot be pulled")
def test_a_rollout_that_is_stuck_because_of_the_sidecar_is_repaired(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    make_old(cluster)
    cluster.injector.container["image"] = "broken:1"
    cluster.change(
        "Deployment",
        "shop",
        "web",
        {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}},
    )
    cluster.wait_for(lambda: "ImagePullBackOff" in str(cluster.pods("shop")))
    ended = run(cluster, CONFIRM)  # today's sidecar would not start, either: the plan says so
    assert (ended.skipped, ended.outcomes) == ({"Deployment shop/web": "incomplete_rollout"}, {})
    cluster.injector.container["image"] = NEW
    assert run(cluster, CONFIRM).outcomes == {"shop/web": "succeeded"}


def test_pods_that_are_missing_or_unavailable_are_no_incomplete_rollout(cluster, run):
    cluster.create("shop", workload("Deployment", "web", pod_spec(container("app", "broken:1"))))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--timeout=1s")
    assert ended.outcomes == {"shop/web": "timed_out"}


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
    assert messages(ended)["web"].startswith("already restarted by another run")


def test_a_rollout_that_waits_for_a_node_is_in_progress(cluster, run):
    real = cluster.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        if "other.rollout.timestamp" in pod["metadata"].get("annotations", {}):
            pod["spec"]["nodeSelector"] = {"disk": "ssd"}

    cluster.injector.inject = inject
    in_progress(cluster, age=5)
    cluster.wait_for(lambda: "Unschedulable" in str(cluster.pods("shop")))
    ended = run(cluster)
    assert ended.skipped == {"Deployment shop/web": "incomplete_rollout"}
    assert "1 of 3 Pods updated: Unschedulable" in ended.reasons["Deployment shop/web"]


def test_two_runs_restart_a_workload_that_crashes_once(cluster, start):
    """The second leaves the rollout of the first alone."""
    cluster.create("shop", workload("Deployment", "sick", pod_spec(container("app", "broken:1"))))
    cluster.settle()
    first = start(cluster, CONFIRM, "--timeout=6s")
    cluster.wait_for(lambda: patched(cluster))
    second = start(cluster, CONFIRM, "--timeout=3s").finish()
    assert (second.planned, second.skipped) == ([], {"Deployment shop/sick": "incomplete_rollout"})
    assert first.finish().outcomes == {"shop/sick": "timed_out"}
    assert patched(cluster) == ["sick"]


def test_a_rollout_of_its_own_that_is_not_complete_fails_the_rerun(cluster, run):
    """Nobody else has begun it, so somebody must look at it."""
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    make_old(cluster)
    cluster.kubelet.ready_after = 600
    first = run(cluster, CONFIRM, "--timeout=2s")
    assert (first.code, first.outcomes) == (1, {"shop/web": "timed_out"})
    again = run(cluster, CONFIRM, "--timeout=2s")
    left = {"Deployment shop/web": "incomplete_rollout"}
    assert (again.code, again.outcomes, again.skipped) == (1, {}, left)
    assert again.summary["failed"] == {"of_an_earlier_run": 1}
    assert patched(cluster) == ["web"]
    assert run(cluster).code == 0  # a dry run
    cluster.change("Deployment", "shop", "web", {"metadata": {"annotations": {"team": "own"}}})
    excluded = run(cluster, CONFIRM, "--exclude-annotation=team")
    assert (excluded.code, excluded.skipped) == (0, {"Deployment shop/web": "excluded"})


def stuck_by_its_sidecar(cluster, run, kind: str, *options: str) -> None:
    """A workload whose rollout by the tool got stuck, as the injector gave an image that cannot be pulled."""
    cluster.create("shop", workload(kind, "web", replicas=3))
    make_old(cluster)
    cluster.injector.container["image"] = "broken:1"
    first = run(cluster, CONFIRM, *options, "--timeout=2s")
    assert (first.code, first.outcomes) == (1, {"shop/web": "timed_out"})
    cluster.injector.container["image"] = NEW


def test_a_rerun_with_a_cutoff_repairs_what_its_sidecar_blocks(cluster, run):
    half_an_hour_ago = cutoff(hours=0.5)
    stuck_by_its_sidecar(cluster, run, "Deployment", half_an_hour_ago)
    again = run(cluster, CONFIRM, half_an_hour_ago)
    assert (again.code, again.outcomes) == (0, {"shop/web": "succeeded"})


def test_a_stateful_set_that_its_own_rollout_degraded_fails_the_rerun(cluster, run):
    stuck_by_its_sidecar(cluster, run, "StatefulSet", "--include-statefulset")
    again = run(cluster, CONFIRM, "--include-statefulset")
    assert again.skipped == {"StatefulSet shop/web": "degraded"}
    assert (again.code, again.outcomes) == (1, {})


def test_a_rollout_of_others_that_is_not_complete_is_no_failure(cluster, run):
    in_progress(cluster, age=5)
    assert run(cluster, CONFIRM).code == 0


@pytest.mark.parametrize(
    ("kind", "status", "spec", "said"),
    [
        ("Deployment", {"replicas": 3, "updatedReplicas": 3}, {}, ""),
        ("Deployment", {"observedGeneration": 1}, {}, "its latest spec has not been observed"),
        ("Deployment", {"replicas": 4, "updatedReplicas": 3}, {}, "3 of 4 Pods updated"),
        ("Deployment", {"replicas": 3}, {}, "0 of 3 Pods updated"),
        ("Deployment", {"replicas": 3}, {"paused": True}, ""),
        ("Deployment", {"replicas": 2, "updatedReplicas": 2}, {}, ""),  # the others are missing
        ("StatefulSet", {"replicas": 3, "updatedReplicas": 1}, {}, "1 of 3 Pods updated"),
        (  # one of its Pods terminates
            "StatefulSet",
            {"replicas": 3, "updatedReplicas": 2, "currentRevision": "x", "updateRevision": "x"},
            {},
            "",
        ),
        (
            "StatefulSet",
            {"replicas": 3, "updatedReplicas": 1, "currentRevision": "x", "updateRevision": "y"},
            {"updateStrategy": {"rollingUpdate": {"partition": 2}}},
            "",
        ),
        (
            "StatefulSet",
            {"replicas": 3, "updatedReplicas": 1},
            {"updateStrategy": {"rollingUpdate": {"partition": 1}}},
            "1 of 3 Pods updated",
        ),
        ("StatefulSet", {"replicas": 3}, {"updateStrategy": {"type": "OnDelete"}}, ""),
        (
            "DaemonSet",
            {"currentNumberScheduled": 3, "updatedNumberScheduled": 1},
            {},
            "1 of 3 Pods updated",
        ),
        ("DaemonSet", {"currentNumberScheduled": 3, "updatedNumberScheduled": 3}, {}, ""),
    ],
)
def test_what_is_an_incomplete_rollout(tool, kind, status, spec, said):
    status = {"observedGeneration": 2, **status}
    obj = {"metadata": {"generation": 2}, "spec": {"replicas": 3, **spec}, "status": status}
    draft = a_workload(tool, ref=a_ref(tool, kind, "shop", "web", "apps"), obj=obj)
    text = tool.incomplete_rollout(draft, None, options_of(tool))
    assert text == (f"its rollout is not complete: {said}{WAIT}" if said else "")


def test_two_runs_at_once_restart_each_workload_once(cluster, start):
    names = [f"web-{number}" for number in range(8)]
    for name in names:
        cluster.create("shop", workload("Deployment", name))
    make_old(cluster)
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
            "already restarted by another run|its rollout is not complete: |all its Pods were created after",
            text,
        )
        for text in reasons
    )


def test_what_another_run_has_restarted_in_vain_is_not_restarted_again(cluster, start):
    """Its old Pods are still there, and its rollout is no longer in progress."""
    for name in "ab":
        cluster.create("shop", workload("Deployment", name, progressDeadlineSeconds=1))
    make_old(cluster)
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
    assert messages(ended)["b"].startswith("already restarted by another run")
    assert patched(cluster) == ["a"]


def test_a_workload_whose_pods_are_all_newer_by_then_is_skipped(cluster, start):
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name))
    make_old(cluster)
    held = cluster.fault(method="PATCH", path="deployments/a", release=threading.Event())
    running = start(cluster, CONFIRM, cutoff(hours=0.5))
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


@pytest.mark.parametrize(
    ("pods", "status", "new"),
    [
        ([("a", 1, "1"), ("b", 2, "2")], {}, "b"),
        ([("a", 1, "1"), ("b", 1, "2")], {}, ""),  # in the same second: it is not known
        ([("a", 1, "1"), ("b", 1, "2")], {"updateRevision": "1"}, "a"),
        ([("a", 1, ""), ("b", 2, "")], {}, ""),
        ([("a", 3, "1", "T"), ("b", 2, "2", "T"), ("c", 4, "0")], {}, "a"),  # c replaces an old one
        ([], {}, ""),
    ],
)
def test_which_pods_are_new_is_told_by_themselves(tool, pods, status, new):
    found, stamps = [], set()
    for name, second, revision, *stamp in pods:
        created = datetime(2026, 1, 1, 0, 0, second, tzinfo=timezone.utc)
        stamps |= set(stamp)
        live = tool.LivePod(name, created, True, frozenset())
        found.append(live._replace(revision=revision, restart_times=frozenset(stamp)))
    annotations = {}
    for stamp in stamps:
        annotations["sidecarRollout.rollout.timestamp"] = stamp
    obj = {"metadata": {}, "status": status}
    obj["spec"] = {"template": {"metadata": {"annotations": annotations}}}
    workload = a_workload(tool, obj=obj, pods=found).found
    assert "".join(pod.name for pod in tool.new_pods(workload)) == new


# Two people who apply the same plan


@pytest.fixture
def plan(cluster, run, tmp_path):
    """--plan with the dry run of three drifted Deployments."""
    for name in "abc":
        cluster.create("shop", workload("Deployment", name, replicas=2))
    make_old(cluster)
    cluster.injector.container["image"] = NEW
    path = tmp_path / "plan.jsonl"
    path.write_text(cluster.translate(run(cluster, DRIFTED).stdout))
    return f"--plan={path}"


@pytest.mark.both
def test_both_end_well(cluster, start, plan):
    """What the other one has restarted is waited for, and its Pods are looked at."""
    held = cluster.fault(method="PATCH", path="deployments/a", release=threading.Event())
    one = start(cluster, DRIFTED, CONFIRM, plan)
    assert held.reached.wait(20)
    other = start(cluster, DRIFTED, CONFIRM, plan)
    cluster.wait_for(lambda: cluster.get("Deployment", "shop", "a")["metadata"]["generation"] == 2)
    held.release.set()
    ended = [one.finish(), other.finish()]
    told = [
        (r["name"], r["outcome"], r["code"], r["message"]) for e in ended for r in e.of("result")
    ]
    assert [run.code for run in ended] == [0, 0], str(told) + str(
        [e.summary["failed"] for e in ended]
    )
    generations = [
        cluster.get("Deployment", "shop", name)["metadata"]["generation"] for name in "abc"
    ]
    assert generations == [2, 2, 2]
    for run in ended:
        assert set(run.outcomes.values()) <= {"succeeded", "skipped"}
        for result in run.of("result"):
            is_skipped = result["outcome"] == "skipped"
            assert result["code"] in (("up_to_date", "nothing_to_replace") if is_skipped else ("",))


@pytest.mark.embedded("whose kubelet decides when a Pod is ready")
def test_a_row_whose_other_rollout_does_not_complete_is_not_applied(cluster, start, plan):
    held = cluster.fault(
        method="GET", path="deployments/a$", user_agent="sidecar", release=threading.Event()
    )
    running = start(cluster, DRIFTED, CONFIRM, plan, "deployment/a", "--timeout=1s")
    assert held.reached.wait(20)
    cluster.kubelet.ready_after = 60
    stamp = {"other.rollout.timestamp": datetime.now(timezone.utc).isoformat()}
    cluster.change(
        "Deployment", "shop", "a", {"spec": {"template": {"metadata": {"annotations": stamp}}}}
    )
    held.release.set()
    ended = running.finish()
    assert (ended.outcomes, ended.summary["failed"]) == ({"shop/a": "skipped"}, {"not_applied": 1})
    assert ended.of("result")[0]["code"] == "restarted_meanwhile"


@pytest.mark.embedded("whose injector changes during the test")
@pytest.mark.parametrize("state", ["rolled back", "down"])
def test_a_plan_for_another_sidecar_than_today_is_not_applied(cluster, run, plan, state):
    """Before it is asked whether the Pods are up to date: they are, with the old sidecar."""
    more = ["deployment/[ab]"]  # of more, an injector that is down is said once
    if state == "down":
        cluster.injector.state = "ignored"
        for found in cluster.pods("shop"):
            cluster.delete("Pod", "shop", found["metadata"]["name"])
        cluster.settle()
        more += ["--include-missing", "--sidecar-container-name=istio-*"]  # no Pod has it
    else:
        cluster.injector.container["image"] = "docker.io/istio/proxyv2:1.26.2"
    for confirm in ((), (CONFIRM,)):
        ended = run(cluster, DRIFTED, plan, *more, *confirm)
        names = [f"Deployment shop/{name}" for name in "abc"]
        assert ended.skipped == {
            **dict.fromkeys(names[:2], "another_sidecar"),
            names[2]: "not_selected",
        }
    assert (ended.code, ended.summary["failed"]) == (1, {"not_applied": 2})
    assert patched(cluster) == []
