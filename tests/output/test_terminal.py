"""What a long plan looks like, and one on a narrow terminal."""

from __future__ import annotations

import re

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, TEXT, a_workload, upgrade


@pytest.mark.parametrize(
    ("width", "has_sidecar"), [(70, False), (80, False), (100, True), (0, True)]
)
def test_names_are_whole_where_the_list_of_differences_has_the_sidecar(
    a_report, tool, monkeypatch, width, has_sidecar
):
    monkeypatch.setattr(tool.Report, "width", width)
    report = a_report(DRIFTED, TEXT)
    sidecars = frozenset({tool.Sidecar("istio-proxy", "istio/proxyv2:1.26.2", False)})
    rows = [a_workload(tool, f"billing-reconciler-{n}", sidecars=sidecars) for n in range(2)]
    report.letters = {row.ref: "a" for row in rows}
    header, *lines = report.table(rows)
    text = "\n".join(lines)
    assert ("SIDECAR" in header, "1.26.2" in text) == (has_sidecar, has_sidecar)
    assert all(row.ref.name in text for row in rows)
    assert not width or max(map(len, [header, *lines])) <= width


def test_a_run_with_nothing_to_do_says_so_once(web_and_api, run):
    """Without empty lines at its end."""
    assert run(web_and_api, DRIFTED, CONFIRM).planned == []
    text = run(web_and_api, DRIFTED, CONFIRM, TEXT, "--exclude-annotation=a=b").stdout
    assert text.count("SIDECAR") == 1
    assert re.search(
        r"\nNothing to roll out; scanned 2 Pods.\n\n0 workloads in \ds: 0 succeeded.\n$", text
    )
    web_and_api.change("Deployment", "shop", "api", {"spec": {"paused": True}})
    upgrade(web_and_api)
    assert run(web_and_api, DRIFTED, CONFIRM).code == 0
    text = run(web_and_api, DRIFTED, CONFIRM, TEXT).stdout
    assert text.count("\nNot rolled out: ") == 1


def test_the_plan_says_where_new_pods_wait_for_min_ready_seconds(cluster, run):
    cluster.create("shop", workload("Deployment", "web", minReadySeconds=7))
    cluster.create("shop", workload("Deployment", "api"))
    cluster.settle()
    shown = run(cluster, TEXT, "--timeout=20s").stdout
    assert [line.endswith(" minReadySeconds 7") for line in shown.splitlines()].count(True) == 1
    assert re.search(r"deployment/web .* minReadySeconds 7\n", shown)


def test_the_longest_names_are_whole_on_a_narrow_terminal(a_report, tool, monkeypatch):
    """Nobody can choose a canary among names that end in dots."""
    monkeypatch.setattr(tool.Report, "width", 80)
    report = a_report(TEXT)
    names = [f"mobile-cron-scheduler-of-the-west-coast-{number}" for number in range(3)]
    rows = [a_workload(tool, name, problem="CrashLoopBackOff") for name in names]
    report.plan = tool.Plan(workloads=rows)
    lines = report.table(rows)
    assert [name for name in names if any(f"/{name} " in line for line in lines)] == names
    notes = [line for line in lines if "CrashLoopBackOff" in line]
    assert all(line.startswith("      ") for line in notes) and len(notes) == 3
