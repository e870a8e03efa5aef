"""--label-columns: labels of workloads as columns of the plan and in records, for tickets by team."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import pod, workload
from support import CONFIRM, DRIFTED, TEXT, upgrade

COLUMNS = ("-L", "example.com/team", "--label-columns=tier")


@pytest.fixture
def fleet(cluster):
    web = workload("Deployment", "web")
    web["metadata"]["labels"] = {"example.com/team": "payments", "tier": "1"}
    cluster.create("shop", web)
    cluster.create("shop", workload("Deployment", "api"))
    cluster.create("shop", pod("shell"))
    cluster.settle()
    upgrade(cluster)
    return cluster


def test_they_are_columns_named_as_by_kubectl(fleet, run):
    lines = run(fleet, DRIFTED, TEXT, *COLUMNS).stdout.splitlines()
    (header,) = [line for line in lines if line.startswith("#")]
    assert header.split()[-3:] == ["TEAM", "TIER", "NOTES"]
    rows = {line.split()[2]: line.split()[7:9] for line in lines if " deployment/" in line}
    assert rows == {"deployment/web": ["payments", "1"], "deployment/api": ["<none>", "<none>"]}


def test_each_record_of_a_workload_has_them(fleet, run):
    records = run(fleet, DRIFTED, CONFIRM, *COLUMNS).records
    for record in records:
        if record["record"] == "summary":
            assert "labels" not in record
        elif record["name"] == "web":
            assert record["labels"] == {"example.com/team": "payments", "tier": "1"}
        else:
            assert record["labels"] == {}
    kinds = {record["record"] for record in records if record.get("name") == "web"}
    assert kinds == {"drift", "plan", "result"}


def test_what_is_left_has_them_and_a_label_of_the_namespace_will_do(fleet, run):
    """Tickets by team: most teams label their namespace alone."""
    fleet.change("Namespace", "", "shop", {"metadata": {"labels": {"tier": "2"}}})
    for name in ("web", "api"):
        fleet.change("Deployment", "shop", name, {"spec": {"paused": True}})
    ended = run(fleet, DRIFTED, *COLUMNS)
    teams = {pod["workload"]["name"]: pod["labels"] for pod in ended.summary["leftovers"]}
    assert teams["web"] == {"example.com/team": "payments", "tier": "1"}
    assert teams["api"] == {"tier": "2"}
    without = run(fleet, DRIFTED).summary["leftovers"]
    assert not any("labels" in pod for pod in without)


@pytest.mark.parametrize("key", ["", "Team Name", "a/b/c", "team=x"])
def test_a_key_must_be_one(run, key):
    ended = run(None, TEXT, f"--label-columns={key}")
    text = "must be the key of a label, such as team or example.com/team"
    assert (ended.code, text in ended.stderr) == (2, True)
