"""What a run refuses to do, when it stops by itself, and what it finds broken."""

from __future__ import annotations

import dataclasses
import threading
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from cluster.manifests import container, pod_spec, workload
from conftest import a_planned, counts, options_of, unchecked

CONFIRM = "--confirm=true"
TEXT = "--log-format=text"
DRIFTED = "--only-drifted"
NEW = "docker.io/istio/proxyv2:1.27.0"
MISSING = (
    "new Pods would not have the sidecar istio-proxy; check that the injector is healthy, or use "
)
MISSING += "--only-drifted --allow-removal"


def patched(cluster) -> list[str]:
    return [r.path.rpartition("/")[2] for r in cluster.server.requests if r.method == "PATCH"]


def messages(ended) -> dict[str, str]:
    return {r["name"]: r["message"] for r in ended.of("result")}


@pytest.fixture
def letters(cluster):
    """Deployments a to g, two Pods each, an hour old; the injector has a newer sidecar."""
    for name in "abcdefg":
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    cluster.injector.container["image"] = NEW
    return cluster


# An injector that dies during the run


@pytest.mark.parametrize("options", [[], [DRIFTED], ["--max-failures=7"]])
def test_a_new_pod_without_the_sidecar_stops_the_run(letters, run, options):
    letters.injector.breaks_after = 3
    ended = run(letters, CONFIRM, *options)
    outcome = "still_drifted" if options == [DRIFTED] else "incomplete"
    later = dict.fromkeys([f"shop/{name}" for name in "cdefg"], "not_started")
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": outcome} | later
    assert patched(letters) == ["a", "b"]
    assert ended.code == 1
    healthy = "check that the injector is healthy"
    assert messages(ended)["b"] == f"1 of 2 new Pods has no sidecar; {healthy}"
    reason = f"new Pods of Deployment shop/b have no sidecar; {healthy}"
    assert {messages(ended)[name] for name in "cdefg"} == {reason}
    assert f"{reason}: stopping" in ended.stderr
    assert ended.summary["pods"] == counts(13, 3, 13, 3, lost=1)


def test_the_summary_names_the_cause_and_how_to_resume(letters, run):
    letters.injector.breaks_after = 3
    shown = run(letters, TEXT, CONFIRM).stdout
    reason = "new Pods of Deployment shop/b have no sidecar; check that the injector is healthy"
    assert f"\nnot started:\n  {reason}:\n    Deployment shop/c, " in shown
    assert "\n  kubectl rollout restart deployment/b --namespace shop --context embedded\n" in shown
    assert "\nPods: 3 of 14 updated and ready (10 not updated, 1 lost).\nTo resume, run:\n" in shown


def test_a_failed_rollout_whose_pods_have_no_sidecar_stops_the_run(letters, run):
    letters.injector.breaks_after = 0
    letters.controllers.ready_after = 60
    ended = run(letters, CONFIRM, "--timeout=1s", "--max-failures=7")
    assert ended.outcomes["shop/a"] == "timed_out"
    assert patched(letters) == ["a"]
    assert "new Pods of Deployment shop/a have no sidecar" in messages(ended)["b"]


def test_with_allow_removal_it_goes_on(letters, run):
    letters.injector.state = "ignored"
    ended = run(letters, CONFIRM, DRIFTED, "--allow-removal")
    assert (ended.code, set(ended.outcomes.values())) == (0, {"succeeded"})
    assert ended.summary["pods"]["lost"] == 0


@pytest.mark.parametrize("options", [[], [DRIFTED]])
def test_right_before_each_patch_the_injector_is_asked_again(letters, start, options):
    held = letters.fault(path="deployments/a$", release=threading.Event())
    running = start(letters, CONFIRM, *options)
    assert held.reached.wait(20)
    letters.injector.state = "ignored"
    held.release.set()
    ended = running.finish()
    assert patched(letters) == []
    assert ended.code == 1
    assert [ended.outcomes[f"shop/{name}"] for name in "abcdefg"] == [
        *["failed"] * 5,
        *["not_started"] * 2,
    ]
    assert messages(ended)["a"] == f"not patched: {MISSING}"
    assert messages(ended)["g"] == "5 rollouts failed in a row"
    assert "5 rollouts failed in a row: stopping" in ended.stderr


@pytest.mark.parametrize("state", ["fails", "denies"])
def test_what_the_api_server_would_reject_is_not_patched(letters, run, state):
    letters.injector.state = state
    ended = run(letters, CONFIRM, "--max-failures=1")
    assert patched(letters) == []
    assert ended.outcomes["shop/a"] == "failed"
    assert messages(ended)["a"].startswith("not patched: cannot create its Pods: ")
    assert messages(ended)["b"] == "--max-failures=1 reached"


def test_a_webhook_that_knows_no_dry_run_keeps_nothing_from_being_patched(letters, run):
    letters.injector.state = "no-dry-run"
    assert set(run(letters, CONFIRM).outcomes.values()) == {"succeeded"}


def test_a_deployment_that_would_lose_all_its_pods_keeps_them(cluster, run):
    cluster.create("shop", {"kind": "ServiceAccount", "metadata": {"name": "web"}})
    spec = pod_spec(container("app"), serviceAccountName="web")
    cluster.create("shop", workload("Deployment", "web", spec, strategy={"type": "Recreate"}))
    cluster.settle()
    cluster.delete("ServiceAccount", "shop", "web")
    ended = run(cluster, CONFIRM)
    assert (ended.code, ended.outcomes) == (1, {"shop/web": "failed"})
    assert 'serviceaccount "web" not found' in messages(ended)["web"]
    assert patched(cluster) == []
    assert len(cluster.pods("shop")) == 1


def test_without_the_permission_to_create_pods_one_line_says_so(letters, run):
    line = "no permission to create Pods: rollouts are not checked beforehand"
    ended = run(unchecked(letters), CONFIRM)
    assert set(ended.outcomes.values()) == {"succeeded"}
    assert ended.stderr.count(line) == 1
    assert line not in run(letters, CONFIRM).stderr
    assert line not in run(unchecked(letters)).stderr  # a dry run


def test_an_injector_that_changes_during_the_run_is_taken_as_it_is(letters, start):
    """The rollouts are verified against what was asked right before, not against the plan."""
    held = letters.fault(path="deployments/a$", release=threading.Event())
    running = start(letters, CONFIRM, DRIFTED)
    assert held.reached.wait(20)
    letters.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"
    held.release.set()
    ended = running.finish()
    assert (ended.code, set(ended.outcomes.values())) == (0, {"succeeded"})


# Several sidecars, by name or pattern


def sidecars_of(tool, *names: str) -> tuple:
    return tuple(tool.Sidecar(name, "x:1", False) for name in names)


@pytest.mark.parametrize(
    ("given", "before", "after", "missing"),
    [
        (["x"], ["x"], ["x", "app"], []),
        (["x"], ["x"], ["app"], ["x"]),
        (["x", "y"], ["x", "y"], ["x"], ["y"]),
        (["x", "y"], ["x"], ["x"], []),  # it never had the other one
        (["x*"], ["x-old"], ["x-new"], []),  # renamed
    ],
)
def test_which_sidecars_a_new_pod_lacks(tool, given, before, after, missing):
    planned = a_planned(tool, sidecars=sidecars_of(tool, *before))
    pod = {"spec": pod_spec(*map(container, after))}
    options = options_of(tool, sidecars=given)
    assert tool.missing_sidecars(planned, pod, options) == missing
    assert tool.missing_sidecars(planned, pod, options_of(tool, allow_removal=True)) == []


# What counts as a failure


def test_a_success_after_the_stop_does_not_start_anything_again(tool):
    scheduler = SimpleNamespace(
        failures=0,
        failures_in_a_row=0,
        stop_reason="",
        TOO_MANY_IN_A_ROW=tool.Scheduler.TOO_MANY_IN_A_ROW,
        rollout=SimpleNamespace(options=options_of(tool)),
    )

    def count(outcome, **fields) -> str:
        result = tool.Result(a_planned(tool, **fields), outcome)
        tool.Scheduler.count(scheduler, result)
        return scheduler.stop_reason

    for _ in range(4):
        assert count(tool.Outcome.FAILED) == ""
    assert count(tool.Outcome.SUCCEEDED) == ""  # the row begins anew
    for outcome in (tool.Outcome.TIMED_OUT, tool.Outcome.INCOMPLETE, tool.Outcome.STILL_DRIFTED):
        assert count(outcome) == ""
    assert count(tool.Outcome.FAILED, unhealthy_reason="CrashLoopBackOff") == ""
    assert count(tool.Outcome.SKIPPED) == ""
    assert count(tool.Outcome.FAILED) == ""
    assert count(tool.Outcome.FAILED) == "5 rollouts failed in a row"
    assert count(tool.Outcome.SUCCEEDED) == "5 rollouts failed in a row"


def test_the_first_cause_is_the_one_that_is_named(letters, run):
    """The others fail, too, but they are not the reason."""
    letters.injector.state = "ignored"
    ended = run(unchecked(letters), CONFIRM, "--parallel-rollouts=5")
    assert "new Pods of Deployment shop/" in messages(ended)["g"]


def test_what_is_still_drifted_counts_for_the_failure_limit(letters, run):
    real = letters.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        if pod["metadata"].get("annotations"):  # for real, not in the dry run of the plan
            pod["spec"]["containers"][-1]["image"] = "docker.io/istio/proxyv2:1.26.9"

    letters.injector.inject = inject
    ended = run(letters, CONFIRM, DRIFTED, "--max-failures=1")
    assert ended.outcomes["shop/a"] == "still_drifted"
    assert patched(letters) == ["a"]


def test_pods_that_were_scaled_down_are_not_lost(cluster, start):
    cluster.create("shop", workload("Deployment", "web", replicas=4))
    cluster.settle()
    held = cluster.fault(path=r"pods\?.*labelSelector=app%3Dweb", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    cluster.change("Deployment", "shop", "web", {"spec": {"replicas": 1}})
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 1)
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert ended.summary["pods"]["lost"] == 0


# Partitions


@pytest.fixture
def partitioned(cluster):
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    cluster.create("shop", workload("StatefulSet", "db", replicas=3, updateStrategy=strategy))
    cluster.create("shop", workload("StatefulSet", "mq", replicas=1))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    cluster.injector.container["image"] = NEW
    return cluster


KEPT = (
    "1 of 3 Pods is below partition 1 and keeps the old sidecar; lower the partition or use --evict"
)


def test_a_partition_does_not_hide_that_the_new_pods_differ(partitioned, run):
    real = partitioned.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        if pod["metadata"].get("annotations"):
            pod["spec"]["containers"][-1]["image"] = "docker.io/istio/proxyv2:1.26.9"

    partitioned.injector.inject = inject
    ended = run(partitioned, CONFIRM, "--include-statefulset", DRIFTED)
    assert ended.outcomes["shop/db"] == "still_drifted"


def test_a_partition_does_not_hide_lost_sidecars(partitioned, run):
    partitioned.injector.breaks_after = 1
    shown = run(partitioned, TEXT, CONFIRM, "--include-statefulset").stdout
    assert "2 of 2 new Pods have no sidecar" in shown
    assert "\nPods: 1 of 3 updated and ready (2 lost).\n" in shown


@pytest.mark.parametrize("options", [[], [DRIFTED]])
def test_a_partition_is_respected_and_not_restarted_for_nothing(partitioned, run, options):
    now = datetime.now(timezone.utc)
    given = [
        CONFIRM,
        "--include-statefulset",
        "--max-failures=1",
        f"--only-started-before={now:%Y-%m-%dT%H:%M:%SZ}",
        *options,
    ]
    first = run(partitioned, *given)
    assert {r["name"]: r["pods_to_replace"] for r in first.of("plan")} == {"db": 2, "mq": 1}
    # The known limit of a partition does not count for --max-failures.
    assert first.outcomes == {"shop/db": "incomplete", "shop/mq": "succeeded"}
    assert messages(first)["db"] == "1 of 3 Pods not updated: StatefulSet partition is 1"
    uids = {found["metadata"]["uid"] for found in partitioned.pods("shop")}
    second = run(partitioned, *given)
    assert second.code == 0
    assert second.planned == []
    assert second.skipped == {"StatefulSet shop/db": KEPT}
    assert {found["metadata"]["uid"] for found in partitioned.pods("shop")} == uids


def test_a_pod_below_the_partition_that_is_up_to_date_is_no_failure(partitioned, run):
    partitioned.delete("Pod", "shop", "db-0")  # comes back with the new sidecar
    partitioned.settle()
    ended = run(partitioned, CONFIRM, "--include-statefulset", DRIFTED)
    assert (ended.code, ended.outcomes["shop/db"]) == (0, "succeeded")


def test_the_pods_of_a_partitioned_rollout_add_up(partitioned, run):
    shown = run(partitioned, TEXT, CONFIRM, "--include-statefulset").stdout
    assert "\nTo roll out: 2 workloads (3 Pods).\n" in shown
    assert "\nPods: 3 of 3 updated and ready.\n" in shown


@pytest.mark.parametrize(
    ("spec", "below"),
    [
        ({}, []),
        ({"partition": 0}, []),
        ({"partition": 1}, ["db-0"]),
        ({"partition": 2, "start": 5}, ["db-0", "db-5", "db-6"]),
        ({"partition": 99}, ["db-0", "db-5", "db-6", "db-7", "db-10"]),
    ],
)
def test_which_pods_are_below_a_partition(tool, spec, below):
    obj = {
        "spec": {
            "ordinals": {"start": spec.get("start", 0)},
            "updateStrategy": {"rollingUpdate": {"partition": spec.get("partition")}},
        }
    }
    names = ["db-0", "db-5", "db-6", "db-7", "db-10", "db-debug"]
    assert [name for name in names if tool.is_below_partition(obj, name)] == below


# Workloads that a rollout left without Pods


def break_by_rollout(cluster, run) -> None:
    """Restarts Deployment, StatefulSet and DaemonSet `web`, whose Pods do not come back."""
    cluster.create("shop", {"kind": "ServiceAccount", "metadata": {"name": "web"}})
    spec = pod_spec(container("app"), serviceAccountName="web")
    recreate = {"strategy": {"type": "Recreate"}, "progressDeadlineSeconds": 1}
    cluster.create("shop", workload("Deployment", "web", spec, **recreate))
    cluster.create("shop", workload("StatefulSet", "db", spec))
    cluster.settle()
    cluster.delete("ServiceAccount", "shop", "web")
    given = [CONFIRM, "--include-statefulset", "--timeout=2s", "--parallel-rollouts=2"]
    ended = run(unchecked(cluster), *given)
    assert ended.outcomes == {"shop/web": "failed", "shop/db": "timed_out"}
    assert cluster.pods("shop") == []


CAUSE = 'error looking up service account shop/web: serviceaccount "web" not found'


def test_a_workload_that_a_rollout_broke_is_reported_by_the_next_runs(cluster, run):
    break_by_rollout(cluster, run)
    given = ["--include-statefulset", "--timeout=1s"]
    for options, code in (([CONFIRM], 1), ([], 0)):
        ended = run(cluster, *given, *options)
        assert (ended.code, ended.planned, ended.outcomes) == (code, [], {})
        reasons = ended.skipped
        assert reasons.keys() == {"Deployment shop/web", "StatefulSet shop/db"}
        for reason in reasons.values():
            assert reason.startswith("no Pods since its last rollout: ")
            assert reason.endswith(CAUSE)
    shown = run(cluster, TEXT, *given).stdout
    assert "\nWithout Pods:\n  no Pods since its last rollout: " in shown


def test_a_broken_workload_is_compared_like_the_others(cluster, run):
    break_by_rollout(cluster, run)
    given = ["--include-statefulset", "--timeout=1s", DRIFTED]
    for options, code in (([CONFIRM], 1), (["--fail-on-drift"], 1), ([], 0)):
        ended = run(cluster, *given, *options)
        assert ended.code == code
        assert {r["name"]: r["verdict"] for r in ended.of("drift")} == {
            "web": "rejected",
            "db": "rejected",
        }
        assert all(CAUSE in r["message"] for r in ended.of("drift"))
    # The cause is mended, but the Pods have not come yet.
    cluster.controllers.injector = dataclasses.replace(cluster.injector, state="denies")
    cluster.create("shop", {"kind": "ServiceAccount", "metadata": {"name": "web"}})
    again = run(cluster, *given, "--fail-on-drift")
    assert again.code == 1
    assert again.of("drift") == []
    assert again.skipped.keys() == {"Deployment shop/web", "StatefulSet shop/db"}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], {"Deployment shop/web"}),
        (["--include-namespace=shop"], {"Deployment shop/web"}),
        (["--include-namespace=s*"], {"Deployment shop/web"}),
        (["--exclude-namespace=shop", "--include-namespace=*"], set()),
        (["--selector=app=web"], set()),  # for Pods: not known whether it would match
        (["--annotation-prefix=other"], set()),
        (["--exclude-deployment", "--include-daemonset"], set()),
    ],
)
def test_which_broken_workloads_are_reported(cluster, run, options, found):
    stamp = {"sidecarRollout.rollout.timestamp": "2026-01-01T00:00:00Z"}
    spec = pod_spec(container("app"), serviceAccountName="gone")
    cluster.create("shop", workload("Deployment", "web", spec, annotations=stamp))
    cluster.create("shop", workload("Deployment", "never-restarted", spec))
    cluster.create("shop", workload("Deployment", "wants-none", annotations=stamp, replicas=0))
    cluster.settle()
    assert run(cluster, *options).skipped.keys() == found


def test_without_the_permission_to_list_events_it_is_reported_all_the_same(cluster, run):
    stamp = {"sidecarRollout.rollout.timestamp": "2026-01-01T00:00:00Z"}
    spec = pod_spec(container("app"), serviceAccountName="gone")
    cluster.create("shop", workload("StatefulSet", "db", spec, annotations=stamp))
    cluster.wait_for(lambda: cluster.store.list("events", "shop"))
    resources = ["pods", "replicasets", "deployments", "statefulsets", "endpointslices"]
    rules = [{"verbs": ["get", "list"], "apiGroups": ["*"], "resources": resources}]
    ended = run(cluster.kubeconfig_of("viewer", rules), "--include-statefulset")
    assert ended.code == 0
    assert ended.skipped["StatefulSet shop/db"].startswith(
        "no Pods since its last rollout: cannot read its events: 403 events is forbidden"
    )


def test_events_that_cannot_be_read_do_not_end_the_run(cluster, run):
    stamp = {"sidecarRollout.rollout.timestamp": "2026-01-01T00:00:00Z"}
    spec = pod_spec(container("app"), serviceAccountName="gone")
    cluster.create("shop", workload("StatefulSet", "db", spec, annotations=stamp))
    cluster.create("shop", workload("Deployment", "web"))
    cluster.wait_for(lambda: cluster.store.list("events", "shop"))
    cluster.wait_for(lambda: cluster.pods("shop", "web"))
    cluster.fault(path="/events", status=500, times=99, body={"message": "etcd leader changed"})
    ended = run(cluster, CONFIRM, "--include-statefulset")
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert "etcd leader changed" in ended.skipped["StatefulSet shop/db"]


def test_a_workload_that_is_just_being_scaled_up_is_not_broken(cluster, run):
    stamp = {"sidecarRollout.rollout.timestamp": "2026-01-01T00:00:00Z"}
    cluster.controllers.stop()
    cluster.create("shop", workload("Deployment", "web", annotations=stamp))
    ended = run(cluster, CONFIRM)
    assert (ended.code, ended.skipped, ended.summary["without_pods"]) == (0, {}, 0)


def test_a_broken_workload_with_another_reason_to_skip_is_no_failure(cluster, run):
    stamp = {"sidecarRollout.rollout.timestamp": "2026-01-01T00:00:00Z", "team/no": "x"}
    spec = pod_spec(container("app"), serviceAccountName="gone")
    cluster.create("shop", workload("Deployment", "web", spec, annotations=stamp))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--exclude-annotation=team/no")
    assert ended.code == 0
    assert ended.skipped == {"Deployment shop/web": "matches --exclude-annotation"}


# Two runs at once


def in_progress(cluster, age: float) -> None:
    """Deployment web, in a rollout that another run began so many seconds ago."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    cluster.controllers.ready_after = 60
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
    cluster.controllers.ready_after = 60
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


# Paused or deleted during its rollout


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"spec": {"paused": True}}, "paused; run `kubectl rollout resume` first, or use --evict"),
        (
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]}},
            "being deleted",
        ),
    ],
)
def test_what_is_paused_or_deleted_during_its_rollout_is_skipped_at_once(
    cluster, start, change, reason
):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.controllers.ready_after = 60
    running = start(cluster, CONFIRM, "--timeout=60s", "--log-level=debug")
    running.wait_for_log("Waiting for deployment")
    cluster.change("Deployment", "shop", "web", change)
    ended = running.finish(timeout=20)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "skipped"})
    assert messages(ended)["web"] == reason


def test_annotations_of_its_own_do_not_end_a_rollout(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.controllers.ready_after = 4  # longer than until the next look at the workload
    ended = run(cluster, CONFIRM, "--exclude-annotation=sidecarRollout.rollout.reason")
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})


def test_what_was_deleted_before_it_is_rechecked_is_skipped(cluster, start):
    cluster.create("shop", workload("Deployment", "a"))
    cluster.create("shop", workload("Deployment", "b"))
    cluster.settle()
    cluster.controllers.ready_after = 60
    held = cluster.fault(path="deployments/b$", release=threading.Event())
    running = start(cluster, CONFIRM, "--timeout=1s")
    running.wait_for_log("will recheck at the end")
    assert held.reached.wait(20)
    cluster.delete("Deployment", "shop", "a")
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "skipped", "shop/b": "timed_out"}
    assert messages(ended)["a"] == "no longer exists"


@pytest.mark.parametrize("status", [0, 401, 429, 502, 503])
def test_what_was_never_patched_for_want_of_an_api_server_is_not_started(tool, status):
    result = tool.failure_of(a_planned(tool), tool.ApiError(status, "503 no healthy upstream"))
    assert result.outcome is tool.Outcome.NOT_STARTED
    assert result.stop_reason == "503 no healthy upstream"
    other = tool.failure_of(a_planned(tool), tool.ApiError(422, "422 no"))
    assert (other.outcome, other.stop_reason) == (tool.Outcome.FAILED, "")


def test_a_workload_in_a_terminating_namespace_is_skipped(letters, run):
    namespace = letters.store.get("namespaces", "", "shop")
    metadata = {**namespace["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    letters.store.change("namespaces", namespace, metadata=metadata)
    ended = run(unchecked(letters), CONFIRM)
    assert (ended.code, ended.outcomes, len(ended.skipped)) == (0, {}, 7)
    assert set(ended.skipped.values()) == {"its namespace is terminating"}


def test_a_namespace_that_is_terminating_since_the_plan_is_noticed(letters, start):
    held = letters.fault(path="deployments/a$", release=threading.Event())
    running = start(letters, CONFIRM)
    assert held.reached.wait(20)
    namespace = letters.store.get("namespaces", "", "shop")
    metadata = {**namespace["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    letters.store.change("namespaces", namespace, metadata=metadata)
    held.release.set()
    ended = running.finish()
    assert (ended.code, set(ended.outcomes.values())) == (0, {"skipped"})
    assert set(messages(ended).values()) == {"its namespace is terminating"}


# Unhealthy workloads


def test_unhealthy_workloads_are_left_alone_on_request(cluster, run):
    cluster.create("shop", workload("Deployment", "sick", pod_spec(container("app", "broken:1"))))
    cluster.create("shop", workload("Deployment", "well"))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--skip-unhealthy")
    assert (ended.code, ended.outcomes) == (0, {"shop/well": "succeeded"})
    assert ended.skipped == {"Deployment shop/sick": "unhealthy: ImagePullBackOff"}
    assert run(cluster, "--timeout=1s").planned[0] == "shop/sick"


def test_what_is_unhealthy_by_then_is_left_alone_on_request(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(path="deployments/web$", release=threading.Event())
    running = start(cluster, CONFIRM, "--skip-unhealthy")
    assert held.reached.wait(20)
    cluster.controllers.ready_after = 60
    (found,) = cluster.pods("shop")
    cluster.delete("Pod", "shop", found["metadata"]["name"])
    cluster.wait_for(
        lambda: not cluster.get("Deployment", "shop", "web")["status"].get("availableReplicas")
    )
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    assert messages(ended)["web"] == "unhealthy: 0 of 1 available"
