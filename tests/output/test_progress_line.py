"""The progress line on a terminal, and what is logged elsewhere."""

from __future__ import annotations

import re
import time

import pytest
from support import (
    CONFIRM,
    TEXT,
    Terminal,
    a_task,
    a_workload,
    have_ended,
    refuse,
)


def test_the_progress_line(web_and_api):
    refuse(web_and_api, "api")
    web_and_api.kubelet.ready_after = 5  # the first look is after 3 seconds
    seen = Terminal(web_and_api, CONFIRM)
    assert seen.code == 1
    first = r"1/2 finished, 1 failed, \d+s, 1 in progress: shop/web 1 of \d Pods not ready.*"
    assert any(re.fullmatch(first, line) for line in seen.progress), seen.progress
    assert re.fullmatch(r"2/2 finished, 1 failed, \d+s, 0 in progress", seen.progress[-1])


def test_the_progress_line_shows_what_takes_longest(a_report, tool, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    report = a_report(CONFIRM)

    def shown(*in_progress) -> str:
        report.show_progress(in_progress, "")
        return report.progress.text

    younger = a_task(tool, a_workload(tool, "b"), started=1002.0, line="B")
    older = a_task(tool, a_workload(tool, "a"), started=1001.0, line="Waiting")
    clock[0] += 12
    assert shown(younger, older) == "0/10 finished, 12s, 2 in progress: shop/a Waiting"
    have_ended(tool, report, "SUCCEEDED", 2)
    assert shown() == "2/10 finished, 12s, 0 in progress"
    have_ended(tool, report, "TIMED_OUT", 1)
    text = "3/10 finished, 1 failed, 12s, about 3m30s left, 0 in progress"
    assert shown() == text


def test_what_is_left_is_estimated_from_the_median_of_what_has_finished(a_report, tool):
    report = a_report(CONFIRM)
    tasks = [a_task(tool, a_workload(tool, name), line="Waiting") for name in "abc"]

    def estimate(finished: int, in_progress: int, held: str = "") -> str:
        have_ended(tool, report, "SUCCEEDED", finished)
        report.show_progress(tasks[:in_progress], held)
        return "".join(re.findall("about (.*) left", report.progress.text))

    assert estimate(2, 3) == ""  # two tell little
    assert estimate(4, 3) == "2m"  # six more, three at a time
    assert estimate(5, 1) == "1m40s"  # one has just ended: three at a time nonetheless
    assert estimate(5, 2, held="gate closed: busy") == ""  # nobody knows
    assert estimate(8, 2) == ""  # nothing is left to begin


def test_elsewhere_than_on_a_terminal_progress_is_logged_once_a_minute(
    a_report, tool, monkeypatch, caplog
):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    report = a_report(CONFIRM)
    with caplog.at_level("INFO", "sidecar-rollout"):
        for seconds in (59, 2, 58, 2):
            clock[0] += seconds
            report.show_progress([], "")
    assert [r.getMessage() for r in caplog.records] == [
        "0/10 finished, 1m1s, 0 in progress",
        "0/10 finished, 2m1s, 0 in progress",
    ]


def test_the_progress_line_never_stands_in_a_log_line(web_and_api):
    seen = Terminal(web_and_api, CONFIRM)
    log = [re.sub(r".*\r\x1b\[K", "", line.rstrip("\r")) for line in seen.text.split("\n")]
    assert all(re.match(r"\d\d:\d\d:\d\dZ INFO ", line) for line in log if line)
    assert len([line for line in log if "rollout succeeded" in line]) == 2
    assert seen.text.endswith("\r\x1b[K")  # the line is gone at the end


@pytest.mark.parametrize("columns", [20, 80])
def test_the_progress_line_fits_the_terminal(web_and_api, columns):
    seen = Terminal(web_and_api, CONFIRM, columns=columns)
    assert seen.progress
    assert max(map(len, seen.progress)) < columns


def test_elsewhere_there_is_a_log_line_for_each_finished_rollout_and_no_progress_line(
    web_and_api, run
):
    ended = run(web_and_api, TEXT, CONFIRM)
    assert ended.stderr.count("rollout succeeded in ") == 2
    assert "\r" not in ended.stderr
    assert "\x1b" not in ended.stderr
