"""Workloads that a rollout of this command left without Pods are reported by later runs."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, DRIFTED, TEXT, restarted_by_us, unchecked

pytestmark = pytest.mark.both


def break_by_rollout(cluster, run) -> None:
    """Restarts a Deployment and a StatefulSet, whose Pods do not come back."""
    cluster.create("shop", {"kind": "ServiceAccount", "metadata": {"name": "web"}})
    spec = pod_spec(container("app"), serviceAccountName="web")
    recreate = {"strategy": {"type": "Recreate"}, "progressDeadlineSeconds": 1}
    cluster.create("shop", workload("Deployment", "web", spec, **recreate))
    cluster.create("shop", workload("StatefulSet", "db", spec))
    cluster.settle()
    cluster.delete("ServiceAccount", "shop", "web")
    for name, timeout, outcome in (
        ("deployment/web", "60s", "failed"),  # by its progress deadline
        ("statefulset/db", "2s", "timed_out"),
    ):
        ended = run(unchecked(cluster), CONFIRM, name, f"--timeout={timeout}")
        assert ended.outcomes == {f"shop/{name.partition('/')[2]}": outcome}
    assert cluster.pods("shop") == []


CAUSE = "error looking up service account shop/web: serviceaccount 'web' not found\""


def test_a_workload_that_a_rollout_broke_is_reported_by_the_next_runs(cluster, run):
    break_by_rollout(cluster, run)
    given = ["--include-statefulset", "--timeout=1s"]
    for options, code in (([CONFIRM], 1), ([], 0)):
        ended = run(cluster, *given, *options)
        assert (ended.code, ended.planned, ended.outcomes) == (code, [], {})
        both = ("Deployment shop/web", "StatefulSet shop/db")
        assert ended.skipped == dict.fromkeys(both, "without_pods")
        assert ended.reasons["Deployment shop/web"].endswith(CAUSE)  # by a condition
    shown = run(cluster, TEXT, *given).stdout
    assert "\nNot rolled out:\n  begun by this command on " in shown
    assert ": no Pods: " in shown


def test_a_broken_workload_fails_an_audit_and_is_not_compared(cluster, run):
    break_by_rollout(cluster, run)
    given = ["--include-statefulset", "--timeout=1s", DRIFTED]
    audit = ["--fail-on-drift"]
    for options, code in (([CONFIRM], 1), (audit, 1), ([], 0)):
        ended = run(cluster, *given, *options)
        assert (ended.code, ended.of("drift")) == (code, [])
        assert ended.skipped.keys() == {"Deployment shop/web", "StatefulSet shop/db"}
        assert ended.summary["not_up_to_date"]["without_pods"] == 2


def restarted(tool, cluster, name: str, replicas: int = 1) -> None:
    """A Deployment whose Pods cannot be created since this command restarted it."""
    spec = pod_spec(container("app"), serviceAccountName="gone")
    cluster.create("shop", workload("Deployment", name, spec, replicas=replicas))
    restarted_by_us(tool, cluster, "Deployment", name)


@pytest.mark.embedded("other namespaces have workloads of other tests")
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], {"Deployment shop/web"}),
        (["--include-namespace=shop"], {"Deployment shop/web"}),
        (["--include-namespace=s*"], {"Deployment shop/web"}),
        (["--exclude-namespace=shop", "--include-namespace=*"], set()),
        (["--selector=app=other"], {"Deployment shop/web"}),  # whatever its Pods are like
        (["--annotation-prefix=other"], set()),
        (["--exclude-deployment", "--include-daemonset"], set()),
    ],
)
def test_which_broken_workloads_are_reported(tool, cluster, run, options, found):
    restarted(tool, cluster, "web")
    restarted(tool, cluster, "wants-none", replicas=0)
    stamp = {
        "sidecarRollout.rollout.timestamp": "2026-01-01T00:00:00Z",
        "sidecarRollout.rollout.template": "0123456789ab until 2026-01-01T00:01:00Z",
    }
    spec = pod_spec(container("app"), serviceAccountName="gone")
    cluster.create("shop", workload("Deployment", "never-restarted", spec))
    cluster.create("shop", workload("Deployment", "changed-since", spec, annotations=stamp))
    cluster.settle()
    ended = run(cluster, *options)
    assert {r["code"] for r in ended.of("skip")} == ({"without_pods"} if found else set())
    assert ended.skipped.keys() == found


@pytest.mark.embedded("1.37 does not show it")
def test_what_was_scaled_to_zero_is_not_broken(tool, cluster, run):
    """With OnDelete, the revisions differ for good until Kubernetes 1.37."""
    on_delete = {"updateStrategy": {"type": "OnDelete"}}
    cluster.create("shop", workload("StatefulSet", "db", replicas=0, **on_delete))
    restarted_by_us(tool, cluster, "StatefulSet", "db")
    cluster.settle()
    cluster.controllers.stop()
    with cluster.store.lock:
        found = cluster.get("StatefulSet", "shop", "db")
        status = found["status"] | {"currentRevision": "db-before"}
        cluster.store.change("statefulsets", found, status=status)
    ended = run(cluster, CONFIRM, "--include-statefulset")
    assert (ended.code, ended.skipped) == (0, {})


def test_a_workload_that_is_just_being_scaled_up_is_not_broken(tool, cluster, run):
    cluster.controllers.stop()
    cluster.create("shop", workload("Deployment", "web"))
    restarted_by_us(tool, cluster, "Deployment", "web")
    ended = run(cluster, CONFIRM)
    assert (ended.code, ended.skipped) == (0, {})


def test_a_broken_workload_with_another_reason_to_skip_is_no_failure(tool, cluster, run):
    restarted(tool, cluster, "web")
    annotations = {"metadata": {"annotations": {"team/no": "x"}}}
    cluster.change("Deployment", "shop", "web", annotations)
    cluster.settle()
    ended = run(cluster, CONFIRM, "--exclude-annotation=team/no")
    assert ended.code == 0
    assert ended.skipped == {"Deployment shop/web": "excluded"}
