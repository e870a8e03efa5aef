"""What makes the exit code 1, and that the last line says it."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import container, pod_spec, replicated, workload
from support import CONFIRM, DRIFTED, TEXT, restarted_by_us, upgrade

pytestmark = pytest.mark.both
AUDIT = (DRIFTED, "--fail-on-drift")


def last_line(ended) -> str:
    return ended.stdout.splitlines()[-1]


@pytest.fixture
def fleet(cluster):
    """Workloads of which some are always rejected, broken before, paused or not known."""
    cluster.create("shop", {"kind": "ServiceAccount", "metadata": {"name": "gone"}})
    cluster.create("shop", workload("Deployment", "well"))
    cluster.create("shop", workload("Deployment", "broken", pod_spec(container("app", "broken:1"))))
    cluster.create("shop", workload("Deployment", "paused"))
    rejected = pod_spec(container("app"), serviceAccountName="gone")
    cluster.create("shop", workload("Deployment", "rejected", rejected))
    cluster.create("shop", replicated("CloneSet", "unknown"))
    cluster.settle()
    cluster.delete("ServiceAccount", "shop", "gone")
    cluster.change("Deployment", "shop", "paused", {"spec": {"paused": True}})
    upgrade(cluster)
    return cluster


@pytest.mark.embedded("it has a CloneSet")
def test_what_cannot_be_rolled_out_is_listed_and_no_failure(fleet, run):
    ended = run(fleet, DRIFTED, CONFIRM, "--timeout=1s")
    assert ended.outcomes == {"shop/well": "succeeded", "shop/broken": "timed_out"}
    assert ended.summary["verdicts"] == {"drifted": 3, "rejected": 1, "unknown": 1}
    assert "Deployment shop/paused" in ended.skipped
    assert (ended.code, ended.summary["exit_code"]) == (1, 1)
    assert ended.summary["failed"] == {"timed_out": 1}  # although it was broken before
    left = {r["code"] for r in ended.summary["leftovers"]}
    assert left == {"timed_out", "wrong_method", "rejected", "unknown"}


@pytest.mark.embedded("it has a CloneSet")
def test_an_audit_after_a_run_fails_for_whatever_is_left(fleet, run):
    assert run(fleet, DRIFTED, CONFIRM, "--timeout=1s").outcomes["shop/well"] == "succeeded"
    ended = run(fleet, *AUDIT, TEXT)
    counts = "1 incomplete rollout, 1 paused or OnDelete, 1 rejected, 1 unknown"
    assert (ended.code, last_line(ended)) == (1, f"Failed: 4 not up to date ({counts}).")
    for name in ("broken", "paused", "rejected"):
        fleet.delete("Deployment", "shop", name)
    fleet.delete("CloneSet", "shop", "unknown")
    fleet.wait_for(lambda: len(fleet.store.list("pods", "shop")) == 1)
    assert run(fleet, *AUDIT).code == 0


def test_an_audit_is_a_command_of_its_own(run):
    """What a run counts at its end is compared with answers from before it."""
    ended = run(None, *AUDIT, CONFIRM, TEXT)
    hint = "run the audit afterwards, as a command of its own"
    text = f"error: --fail-on-drift cannot be used with --confirm; {hint}\n"
    assert (ended.code, ended.stderr.partition("See")[0]) == (2, text)


def test_what_max_rollouts_leaves_out_counts_and_what_is_excluded_does_not(cluster, run):
    for name in "ab":
        cluster.create("shop", workload("Deployment", name))
    cluster.create("shop", workload("Deployment", "c", annotations={"team/no": "1"}))
    cluster.settle()
    upgrade(cluster)
    options = ("--exclude-annotation=team/no", "--max-rollouts=1")
    for name, count in (("a", 2), ("b", 1)):
        audit = run(cluster, *AUDIT, *options)
        assert (audit.code, audit.summary["failed"]) == (1, {"not_up_to_date": count})
        audited = run(cluster, *AUDIT, *options, TEXT)
        assert count == 1 or "1 left by --max-rollouts" in last_line(audited)
        ended = run(cluster, DRIFTED, CONFIRM, *options)
        assert (ended.code, ended.outcomes[f"shop/{name}"]) == (0, "succeeded")
    assert run(cluster, *AUDIT, *options).code == 0


@pytest.mark.parametrize("option", ["--gate=false", "--max-duration=1ms"])
def test_what_was_not_started_is_no_failure(cluster, run, option):
    cluster.create("shop", workload("Deployment", "a"))
    cluster.settle()
    upgrade(cluster)
    duration = () if "duration" in option else ("--max-duration=1s",)
    ended = run(cluster, DRIFTED, CONFIRM, option, *duration)
    assert (ended.code, ended.outcomes) == (0, {"shop/a": "not_started"})
    assert run(cluster, *AUDIT).code == 1


def test_the_last_line_says_what_failed(cluster, run):
    for name in "ab":
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    ended = run(cluster, CONFIRM, "--timeout=1s", TEXT, "deploy/*", "-n=shop")
    assert (ended.code, last_line(ended)) == (1, "Failed: 2 timed out (shop/a, shop/b).")


def test_a_custom_resource_that_cannot_be_compared_fails_an_audit(cluster, run):
    cluster.create("shop", replicated("CloneSet", "x", replicas=2))
    cluster.settle()
    upgrade(cluster)
    for more in ((), ("--in-place",)):
        ended = run(cluster, *AUDIT, *more, TEXT)
        assert (ended.code, last_line(ended)) == (1, "Failed: 2 not up to date (2 unknown).")


def revision(cluster, name: str) -> str:
    return (cluster.get("StatefulSet", "shop", name).get("status") or {}).get("updateRevision")


def test_a_stateful_set_without_pods_fails_an_audit_of_its_sidecar(tool, cluster, run):
    """Whatever kinds are selected, and whatever sidecar they were restarted for."""
    spec = pod_spec(container("app"), serviceAccountName="gone")
    for name, reason in (
        ("a", "Update sidecars istio-proxy and x"),
        ("b", "Update sidecars to 1.27"),
    ):
        cluster.create("shop", workload("StatefulSet", name, spec))
        cluster.wait_for(lambda name=name: revision(cluster, name))
        restarted_by_us(tool, cluster, "StatefulSet", name, reason=reason)
    cluster.wait_for(
        lambda: all(
            (cluster.get("StatefulSet", "shop", name).get("status") or {}).get("observedGeneration")
            == 2
            for name in "ab"
        )
    )
    ended = run(cluster, *AUDIT, TEXT)
    assert (ended.code, last_line(ended)) == (1, "Failed: 2 not up to date (2 without Pods).")
    for name in ("istio-*", "*"):
        audit = run(cluster, *AUDIT, f"--sidecar-container-name={name}")
        counts = audit.summary["not_up_to_date"]
        assert {word: n for word, n in counts.items() if n} == {"without_pods": 2}
