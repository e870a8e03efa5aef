"""Workloads that a rollout left without Pods are reported by later runs."""

from __future__ import annotations

import dataclasses

import pytest
from cluster.manifests import container, pod_spec, workload
from support import CONFIRM, DRIFTED, TEXT, unchecked


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
