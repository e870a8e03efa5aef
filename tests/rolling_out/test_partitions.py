"""StatefulSets with a partition: it is respected, and the Pods below it are reported."""

from __future__ import annotations

import re

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, NEW, TEXT, counts, cutoff, messages, partition
from texts import UPDATED_AND_READY

pytestmark = pytest.mark.both


def test_a_partition_leaves_old_pods_and_the_result_says_how_many(cluster, run):
    partition = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    cluster.create("shop", workload("StatefulSet", "db", replicas=3, updateStrategy=partition))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--include-statefulset")
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (0, "succeeded")
    kept = "partition 2 keeps 2 old Pods"
    assert result["message"] == kept
    assert ended.summary["pods"] == counts(1, 1, 1)


@pytest.mark.parametrize(("number", "old"), [(0, 3), (1, 2), (2, 1), (99, 0)])
def test_a_partition_counts_from_the_first_ordinal(cluster, run, number, old):
    fields = {"ordinals": {"start": 5}, **partition(number)}
    cluster.create("shop", workload("StatefulSet", "db", replicas=3, **fields))
    cluster.settle()
    ended = run(cluster, "--include-statefulset")
    assert sum(row["pods"]["old"] for row in ended.of("plan")) == old
    assert set(ended.skipped.values()) == (set() if old else {"below_partition"})


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


KEPT = "partition 1 keeps 1 old Pod"


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
    partitioned.injector.breaks_after = 0
    shown = run(partitioned, TEXT, CONFIRM, "--include-statefulset", "sts/db").stdout
    assert "2 of 2 new Pods without sidecar" in shown
    assert f"\nPods: 0 of 2{UPDATED_AND_READY} (2 lost).\n" in shown


@pytest.mark.parametrize("options", [[], [DRIFTED]])
def test_a_partition_is_respected_and_not_restarted_for_nothing(partitioned, run, options):
    given = [
        CONFIRM,
        "--include-statefulset",
        "--max-failures=1",
        cutoff(),
        *options,
    ]
    first = run(partitioned, *given)
    assert {r["name"]: r["pods"]["old"] for r in first.of("plan")} == {"db": 2, "mq": 1}
    assert first.outcomes == {"shop/db": "succeeded", "shop/mq": "succeeded"}
    assert messages(first)["db"] == KEPT
    uids = {found["metadata"]["uid"] for found in partitioned.pods("shop")}
    second = run(partitioned, *given)
    assert second.code == 0
    assert second.planned == []
    assert second.skipped == {"StatefulSet shop/db": "below_partition"}
    assert KEPT in second.reasons["StatefulSet shop/db"]
    assert {found["metadata"]["uid"] for found in partitioned.pods("shop")} == uids


def test_pods_below_the_partition_have_a_code_of_their_own(partitioned, run):
    """So that an audit tells them from those that the next run replaces."""
    ended = run(partitioned, "--include-statefulset", DRIFTED)
    codes = {p["name"]: p["code"] for p in ended.summary["leftovers"]}
    assert codes == {"db-0": "below_partition"}
    shown = run(partitioned, TEXT, "--include-statefulset", DRIFTED).stdout
    assert re.search(r"statefulset/db .* 1 Pod below the partition\n", shown)


@pytest.mark.embedded("a plan has other names of namespaces there")
def test_a_row_of_which_a_partition_keeps_all_old_pods_is_not_applied(partitioned, run, tmp_path):
    """Whether the partition was raised since the plan, its row does not tell."""
    planned = run(partitioned, "--include-statefulset", DRIFTED)
    file = tmp_path / "plan.jsonl"
    file.write_text(planned.stdout)
    given = [CONFIRM, "--include-statefulset", DRIFTED]
    assert run(partitioned, *given).code == 0
    again = run(partitioned, *given, f"--plan={file}")
    assert again.skipped == {
        "StatefulSet shop/db": "below_partition",
        "StatefulSet shop/mq": "up_to_date",
    }
    assert (again.code, again.outcomes) == (1, {})
    assert again.summary["failed"] == {"not_applied": 1}


def test_a_pod_below_the_partition_that_is_up_to_date_is_no_failure(partitioned, run):
    before = partitioned.get("Pod", "shop", "db-0")["metadata"]["uid"]
    partitioned.delete("Pod", "shop", "db-0")  # comes back with the new sidecar

    def is_back() -> bool:
        pod = partitioned.get("Pod", "shop", "db-0")
        status = partitioned.get("StatefulSet", "shop", "db")["status"]
        return bool(pod) and pod["metadata"]["uid"] != before and status["availableReplicas"] == 3

    partitioned.wait_for(is_back)
    partitioned.settle()
    ended = run(partitioned, CONFIRM, "--include-statefulset", DRIFTED)
    assert (ended.code, ended.outcomes["shop/db"]) == (0, "succeeded")


def test_the_pods_of_a_partitioned_rollout_add_up(partitioned, run):
    shown = run(partitioned, TEXT, CONFIRM, "--include-statefulset").stdout
    assert "\nTo roll out: 2 workloads with 3 Pods.\n" in shown
    assert f"\nPods: 3 of 3{UPDATED_AND_READY}.\n" in shown


def test_a_pod_below_the_partition_without_the_sidecar_is_told(partitioned, run):
    before = partitioned.get("Pod", "shop", "db-0")["metadata"]["uid"]
    partitioned.injector.state = "ignored"
    partitioned.delete("Pod", "shop", "db-0")

    def is_back() -> bool:
        pod = partitioned.get("Pod", "shop", "db-0")
        status = partitioned.get("StatefulSet", "shop", "db")["status"]
        return bool(pod) and pod["metadata"]["uid"] != before and status["availableReplicas"] == 3

    partitioned.wait_for(is_back)
    partitioned.injector.state = "works"
    ended = run(partitioned, CONFIRM, DRIFTED, "--include-statefulset", "statefulset/db")
    assert ended.outcomes == {"shop/db": "succeeded"}
    assert messages(ended)["db"] == KEPT


def test_pods_below_a_partition_that_a_selector_leaves_out_are_not_replaced(cluster, run):
    """A rollout replaces all Pods above the partition, whatever the selector matches."""
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    cluster.create("shop", workload("StatefulSet", "db", replicas=4, updateStrategy=strategy))
    cluster.settle()
    before = {p["metadata"]["uid"] for p in cluster.pods("shop")}
    selector = "--selector=statefulset.kubernetes.io/pod-name=db-3"
    ended = run(cluster, CONFIRM, "--include-statefulset", selector)
    (plan,) = ended.of("plan")
    left = before & {p["metadata"]["uid"] for p in cluster.pods("shop")}
    assert plan["pods"]["replaced"] == len(before) - len(left) == 2
