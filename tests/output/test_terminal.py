"""What a long plan looks like, and one on a narrow terminal."""

from __future__ import annotations

import re

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, TEXT, a_ref, a_workload, upgrade


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
    assert ("VERSION" in header, "1.26.2" in text) == (has_sidecar, has_sidecar)
    assert all(row.ref.name in text for row in rows)
    assert not width or max(map(len, [header, *lines])) <= width


def test_a_run_with_nothing_to_do_says_so_once(web_and_api, run):
    """Without empty lines at its end."""
    assert run(web_and_api, DRIFTED, CONFIRM).planned == []
    text = run(web_and_api, DRIFTED, CONFIRM, TEXT, "--exclude-annotation=a=b").stdout
    assert text.count("SIDECAR") == 1
    assert text.endswith("\n\nNothing to roll out; scanned 2 Pods.\n")
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


# Columns


TEAMS = ("payments", "checkout", "search", "identity", "data-platform", "logistics", "ml", "kafka")
WORDS = ("api", "worker", "gateway", "consumer", "scheduler", "cache", "db", "frontend", "sync")
PROBLEMS = ("",) * 9 + ("CrashLoopBackOff",)
LONGEST = ("checkout-payments-eu", "notifications-cron-scheduler-consumer-106")


@pytest.fixture
def a_company(tool, a_report, monkeypatch):
    """a_company(width): the table of a plan of 329 workloads, with names as companies have them; one is very long."""

    def make(width: int) -> tuple[list[str], list[tuple[str, str]]]:
        report = a_report(DRIFTED, TEXT)
        monkeypatch.setattr(type(report), "width", width)
        names, rows = [], []
        for n in range(1, 330):
            parts = [WORDS[n % 9], WORDS[n // 9 % 9], str(n)][: 2 + n % 2]
            names.append((TEAMS[n % 8], "-".join(parts)) if n != 100 else LONGEST)
            kind = ("Deployment", "Deployment", "StatefulSet")[n % 3]
            ref = a_ref(tool, kind, *names[-1], "apps")
            rows.append(a_workload(tool, ref=ref, problem=PROBLEMS[n % 10], downtime=n % 7 == 0))
        report.letters = {row.ref: "a" for row in rows}
        return report.table(rows), names

    return make


@pytest.mark.parametrize(("width", "most"), [(80, 1.15), (120, 1.0), (200, 1.0)])
def test_a_row_of_a_large_plan_takes_a_line(a_company, width, most):
    lines, names = a_company(width)
    assert len(lines) <= most * 330
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(f"{namespace} " in text and f"/{name} " in text for namespace, name in names)
    column = lines[0].index("WORKLOAD")
    straight = [line for line in lines[1:] if line[column - 2 : column] == "  "]
    assert len(straight) > 0.75 * 329


@pytest.fixture
def table(tool, a_report, monkeypatch):
    """table(width, *names): the lines of a plan of Deployments, of which the last one has a note more."""

    def make(width: int, *names: tuple[str, str]) -> list[str]:
        report = a_report(TEXT)
        monkeypatch.setattr(type(report), "width", width)
        rows = []
        for pair in names:
            ref = a_ref(tool, "Deployment", *pair, "apps")
            rows.append(a_workload(tool, ref=ref, downtime=pair == names[-1]))
        return report.table(rows)

    return make


def test_only_the_row_that_does_not_fit_breaks(table):
    names = [("shop", f"web-{n}") for n in range(9)]
    lines = table(80, *names, ("checkout-payments-eu", "x" * 35))
    assert lines[1:10] == [
        f"{n + 1}  shop       deploy/web-{n}  0     <none>   no Service" for n in range(9)
    ]
    assert lines[10:] == [
        f"10  checkout-payments-eu  deploy/{'x' * 35}  0  <none>",
        "      no Service; downtime",
    ]


def test_what_has_no_room_beside_a_name_has_a_line_of_its_own(table):
    names = [("shop", f"web-{n}") for n in range(8)]
    lines = table(80, ("shop", "x" * 58), *names)
    assert lines[:4] == [
        "#  NAMESPACE  WORKLOAD      PODS  VERSION  NOTES",
        f"1  shop       deploy/{'x' * 58}",
        "                            0     <none>   no Service",
        "2  shop       deploy/web-0  0     <none>   no Service",
    ]


def test_headings_and_reasons_are_bold_and_share_a_line_with_few_objects(
    web_and_api, run, a_report, monkeypatch
):
    monkeypatch.setattr(type(a_report()), "width", 80)
    monkeypatch.delenv("NO_COLOR", raising=False)
    web_and_api.create("shop", workload("StatefulSet", "db"))
    web_and_api.create("shop", workload("Deployment", "paused"))
    web_and_api.settle()
    web_and_api.change("Deployment", "shop", "paused", {"spec": {"paused": True}})
    text = run(web_and_api, TEXT).stdout
    assert "\n\033[1mNot rolled out:\033[0m\n" in text
    reason = "  not selected; add --include-statefulset:"
    assert f"\n\033[1m{reason}\033[0m StatefulSet shop/db\n" in text
    reason = "  paused; run `kubectl rollout resume` first, or use --evict:"
    assert f"\n\033[1m{reason}\033[0m\n    Deployment shop/paused\n" in text
    upgrade(web_and_api)
    text = run(web_and_api, TEXT, DRIFTED).stdout
    heading = "\n\033[1mDifferences between running Pods and new ones:\033[0m\n"
    assert f"{heading}  a  4 workloads:\n     istio-proxy" in text
    assert "\033" not in run(web_and_api, TEXT, NO_COLOR="1").stdout


def test_old_stands_only_where_something_was_compared(web_and_api, run):
    text = run(web_and_api, TEXT).stdout
    assert (" OLD " in text, "of them old" in text) == (False, False)
    upgrade(web_and_api)
    text = run(web_and_api, TEXT, DRIFTED).stdout
    assert "#  NAMESPACE  WORKLOAD        PODS  OLD  VERSION  DIFF  NOTES\n" in text
    assert "To roll out: 2 workloads with 2 Pods, 2 of them old.\n" in text


@pytest.mark.parametrize("names", [["-n=shop"], ["-n=shop", "-n=sh*"]])
def test_no_namespaces_are_left_is_bad_usage(run, names):
    ended = run(None, TEXT, *names, "--exclude-namespace=sh*", "--exclude-namespace=x")
    said = "error: no namespaces selected: all are excluded by --exclude-namespace\n"
    assert (ended.code, ended.stderr.partition("See")[0]) == (2, said)
