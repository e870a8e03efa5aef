"""What a long plan looks like, and one on a narrow terminal."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, TEXT, a_workload, upgrade


def in_namespace(tool, namespace: str, pods: int = 1, **fields):
    ref = tool.ObjectRef("Deployment", namespace, "web", "apps")
    names = tuple(f"web-{number}" for number in range(pods))
    return a_workload(tool, ref=ref, old_pods=names, pods_replaced=pods, **fields)


def rows_of(text: str) -> list[list[str]]:
    return [re.split(" {2,}", line) for line in text.splitlines() if line]


def test_a_long_plan_is_shown_by_namespace_the_most_pods_first(a_report, tool, capsys):
    """Ten namespaces, and the sum of the others: nothing is missing from the numbers."""
    report = a_report(TEXT)
    rows = [in_namespace(tool, f"team-{number:02}", number) for number in range(1, 13)]
    rows += [in_namespace(tool, "team-12", 8, downtime=True, problem="CrashLoopBackOff")]
    report.print_namespaces(rows)
    header, *shown = rows_of(capsys.readouterr().out)
    assert header == ["NAMESPACE", "WORKLOADS", "PODS", "DOWNTIME", "UNHEALTHY"]
    assert shown[0] == ["team-12", "2", "20", "1", "1"]
    assert shown[1] == ["team-11", "1", "11", "0", "0"]
    assert shown[9:] == [
        ["team-03", "1", "3", "0", "0"],
        ["and 2 more namespaces", "2", "3", "0", "0"],
    ]
    report.print_namespaces(rows[:10])
    assert "more" not in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("text", "red"),
    [
        ("1  shop  deploy/web  unhealthy: CrashLoopBackOff; downtime", ["unhealthy", "downtime"]),
        ("3 workloads in 2s: 1 succeeded, 2 lost sidecar.", ["lost sidecar"]),
        ("  new Pods cannot be created: denied:", ["cannot be created"]),
        ("  1 of 2 Pods lost istio-proxy, and", ["Pods lost"]),
        ("1 rejected", ["rejected"]),
        ("1  downtime-monitor  deploy/rejected-orders  un.unhealthy", []),
        ("see --skip-unhealthy", []),
    ],
)
def test_what_needs_attention_is_red_and_no_name_is(tool, text, red):
    assert [found[0] for found in tool.COLORED.finditer(text)] == red


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


@pytest.mark.parametrize("columns", [1, 8, 39])
def test_a_terminal_that_is_hardly_one_shows_everything(tool, monkeypatch, columns):
    """Texts wrap at 40 columns then, and are not cut."""
    monkeypatch.setattr(tool.sys, "stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("COLUMNS", str(columns))
    width = tool.Report.width.fget(None)
    assert width == 40
    note = "unhealthy: CrashLoopBackOff; downtime; 1 Pod below the partition"
    lines = tool.format_table([["1", "shop", "deploy/web", note]], width)
    assert " ".join(" ".join(lines).split()) == f"1 shop deploy/web {note}"
    assert max(map(len, lines)) <= 40


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


def test_lines_of_the_log_and_differences_break_at_spaces(tool, monkeypatch):
    words = "1 of 2 Pods not ready: web-7d4b9c-x2x4z: container istio-proxy: ImagePullBackOff"
    record = logging.makeLogRecord({"msg": f"rollout timed out: {words}", "levelname": "WARNING"})
    monkeypatch.setattr(tool, "error_columns", lambda: 60)
    monkeypatch.setenv("NO_COLOR", "1")
    lines = tool.TextFormatter(on_terminal=True).format(record).split("\n")
    assert len(lines) == 2 and max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines).split()).endswith(f"WARNING rollout timed out: {words}")
    assert tool.TextFormatter(on_terminal=False).format(record).endswith(words)
    difference = "  a  1 workload  istio-proxy  image  registry.example.com/proxyv2:1 -> 2"
    first, second = tool.wrapped(difference, 60)
    assert second == "    registry.example.com/proxyv2:1 -> 2"
    assert difference == f"{first}  {second.strip()}"
