"""What a person and a program see: tables, JSON lines, the progress line, colours, streams."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from datetime import datetime
from datetime import timezone

import pytest
from cluster.manifests import container
from cluster.manifests import pod
from cluster.manifests import pod_spec
from cluster.manifests import workload
from conftest import command
from hypothesis import given
from hypothesis import strategies as st

CONFIRM = "--confirm=true"
TEXT = "--log-format=text"


def test_the_plan_is_a_table_with_the_skipped_and_the_totals_below(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    cluster.create("shop", workload("Deployment", "paused"))
    cluster.create("shop", workload("StatefulSet", "db"))
    cluster.create("shop", pod("shell"))
    cluster.create("shop", pod("shell-2"))
    cluster.settle()
    cluster.change("Deployment", "shop", "paused", {"spec": {"paused": True}})
    for found in cluster.pods("shop", "web"):
        cluster.backdate(found, 3 * 86400 + 60)
    ended = run(cluster, TEXT)
    assert ended.stdout.splitlines() == [
        "KIND        NAMESPACE  NAME  PODS  SIDECAR             OLDEST  STATE",
        "Deployment  shop       web   3/3   istio-proxy 1.26.2  3d      idle",
        "",
        "Skipped:",
        "  1 Deployment: is paused; resume it first (kubectl rollout resume): shop/paused",
        "  2 Pods: bare Pod without a controller; restart it by hand: shop/shell, shop/shell-2",
        "  1 StatefulSet: not asked for; add --include-statefulset: shop/db",
        "",
        "1 workload with 3 Pods to roll out; 7 Pods read.",
        f"Dry run: nothing was changed. To do it: --confirm=true --only-started-before={started_before(ended)}",
    ]


def started_before(ended) -> str:
    moment = re.search(r"started_before=(\S+)\+00:00", ended.stderr)[1]
    return moment + "Z"


def test_the_summary_has_a_line_for_each_that_did_not_succeed_then_counts(cluster, run):
    for name in ("a", "b", "c"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    cluster.fault(method="PATCH", path="deployments/b", status=403, body={"message": "no"})
    ended = run(cluster, TEXT, CONFIRM)
    *_, failure, counts, pods = ended.stdout.splitlines()
    assert pods == "Pods: 3 matched, 2 updated, 3 ready, 2 updated and ready."
    assert failure == "failed: Deployment shop/b: 403 no"
    assert re.fullmatch(r"3 workloads in \d+s: 2 succeeded, 1 failed\.", counts)


def test_json_is_one_object_a_line_on_both_streams(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.create("shop", pod("shell"))
    cluster.settle()
    ended = run(cluster, CONFIRM)
    assert [r["record"] for r in ended.records] == ["plan", "skip", "result", "summary"]
    plan, skip, result, summary = ended.records
    assert {"kind", "namespace", "name", "pods_concerned", "pods", "sidecars", "oldest_pod"} <= plan.keys()
    assert skip == {
        "record": "skip",
        "kind": "Pod",
        "namespace": "shop",
        "name": "shell",
        "reason": "bare Pod without a controller; restart it by hand",
    }
    assert result == {
        "record": "result",
        "kind": "Deployment",
        "namespace": "shop",
        "name": "web",
        "outcome": "succeeded",
        "seconds": result["seconds"],
        "message": "",
    }
    assert summary == {
        "record": "summary",
        "outcomes": {"succeeded": 1},
        "pods": {"matched": 1, "updated": 1, "ready": 1, "updated_and_ready": 1},
        "started_before": summary["started_before"],
        "planned": 1,
        "skipped": 1,
        "seconds": summary["seconds"],
        "exit_code": 0,
    }
    for line in map(json.loads, ended.stderr.splitlines()):
        assert {"time", "level", "message"} <= line.keys()
        age = datetime.now(timezone.utc) - datetime.strptime(line["time"], "%Y-%m-%dT%H:%M:%S%z")
        assert line["time"].endswith("Z") and abs(age.total_seconds()) < 60


class Terminal:
    """The tool with its standard error, or all its streams, on a pseudo-terminal."""

    def __init__(self, cluster, *options: str, columns: int = 200, **environment: str) -> None:
        words, base = command(cluster.kubeconfig, TEXT, *options)
        own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        process = subprocess.Popen(
            words,
            env={**base, "TERM": "xterm", **environment},
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        )
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(own, 65536)
            except OSError:  # Linux' way to say that the other end is closed
                break
        os.close(own)
        with process.stdout as stream:
            self.stdout = stream.read()
        self.code = process.wait(60)
        self.text = seen.decode()

    @property
    def progress(self) -> list[str]:
        """What the progress line showed, one after the other."""
        return [part for part in re.split(r"\r\x1b\[K", self.text) if " done" in part and "\n" not in part]


@pytest.fixture
def two(cluster):
    cluster.create("shop", workload("Deployment", "api"))
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.controllers.ready_after = 0.3
    return cluster


def test_the_progress_line(two):
    two.fault(method="PATCH", path="deployments/api", status=403, body={"message": "no"})
    seen = Terminal(two, CONFIRM)
    assert seen.code == 1
    assert re.fullmatch(r"0/2 done, \d+s; 1 running: shop/api", seen.progress[0])
    assert any(re.fullmatch(r"1/2 done, 1 failed, \d+s; 1 running: shop/web", line) for line in seen.progress)
    assert re.match(r"2/2 done, 1 failed", seen.progress[-1])


def test_the_progress_line_never_stands_in_a_log_line(two):
    seen = Terminal(two, CONFIRM)
    log = [re.sub(r".*\r\x1b\[K", "", line.rstrip("\r")) for line in seen.text.split("\n")]
    assert all(re.match(r"\d\d:\d\d:\d\d INFO ", line) for line in log if line)
    assert len([line for line in log if "rollout succeeded" in line]) == 2
    assert seen.text.endswith("\r\x1b[K")  # the line is gone at the end


@pytest.mark.parametrize("columns", [20, 80])
def test_the_progress_line_fits_the_terminal(two, columns):
    seen = Terminal(two, CONFIRM, columns=columns)
    assert seen.progress and max(map(len, seen.progress)) < columns


def test_the_summary_is_not_on_standard_error(two):
    seen = Terminal(two, CONFIRM)
    assert "2 succeeded" in seen.stdout and "2 succeeded" not in seen.text


def test_colours_on_a_terminal_unless_no_color_is_set(two):
    two.fault(method="PATCH", times=9, path="deployments/", status=403, body={"message": "no"})
    assert "\x1b[31mERROR  \x1b[0m" in Terminal(two, CONFIRM).text
    assert "\x1b[3" not in Terminal(two, CONFIRM, NO_COLOR="1").text


def test_elsewhere_there_is_a_log_line_for_each_finished_rollout_and_no_progress_line(two, run):
    ended = run(two, TEXT, CONFIRM)
    assert ended.stderr.count("rollout succeeded, seconds=") == 2
    assert "\r" not in ended.stderr and "\x1b" not in ended.stderr


def test_a_reader_that_goes_away_does_not_stop_the_rollouts(two, tmp_path):
    words, environment = command(two.kubeconfig, TEXT, CONFIRM)
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(words, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr and "Exception" not in ended.stderr
    assert ended.stderr.count("rollout succeeded") == 2


def test_what_the_cluster_says_cannot_steer_the_terminal(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    evil = "no\x1b[2J\nrollout succeeded\x07"
    cluster.fault(method="PATCH", times=2, status=403, body={"message": evil})
    for ended in (run(cluster, TEXT, CONFIRM), run(cluster, TEXT, CONFIRM)):
        assert "\x1b" not in ended.stdout + ended.stderr and "\x07" not in ended.stdout + ended.stderr
        assert r"no\x1b[2J\nrollout succeeded\x07" in ended.stdout


@given(st.text())
def test_printable_is_one_line_that_shows_all(tool, text):
    shown = tool.printable(text)
    assert shown.isprintable() or shown == ""
    assert len(shown) >= len(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (200, "3m20s"),
        (3600, "1h"),
        (18600, "5h10m"),
        (90000, "1d1h"),
        (864000, "10d"),
    ],
)
def test_durations_are_short(tool, seconds, shown):
    assert tool.human_duration(seconds) == shown


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("docker.io/istio/proxyv2:1.26.2", "1.26.2"),
        ("localhost:5000/proxy", "latest"),
        ("localhost:5000/proxy:2", "2"),
        ("proxy@sha256:0123456789abcdef0123", "sha256:0123456789ab"),
        ("proxy:1@sha256:0123456789abcdef", "1"),
        ("", "latest"),
    ],
)
def test_image_tags(tool, image, tag):
    assert tool.image_tag(image) == tag


def test_a_sidecar_in_two_versions_is_shown_once(tool):
    found = [tool.Sidecar("p", "x:1", False), tool.Sidecar("p", "x:2", True), tool.Sidecar("q", "y:1", False)]
    assert tool.sidecar_text(found) == "p 1, 2 (native); q 1"


NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=63)


@given(st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=1, max_size=5))
def test_tables_keep_every_cell_whole(tool, rows):
    lines = tool.table(rows)
    assert [tuple(line.split()) for line in lines] == [tuple(row) for row in rows]
    starts = [[found.start() for found in re.finditer(r"(?<!\S)\S", line)] for line in lines]
    assert all(start == starts[0] for start in starts)


def test_a_wide_table_at_two_widths(cluster, run):
    """Names are never cut: they are there to be copied."""
    cluster.create("shop", workload("Deployment", "a" * 60, pod_spec(container("app"))))
    cluster.settle()
    for columns in ("80", "200"):
        assert "a" * 60 in run(cluster, TEXT, COLUMNS=columns).stdout


def test_ages_count_from_the_oldest_pod(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    cluster.backdate(cluster.pods("shop", "web")[1], 7200)
    oldest = datetime.fromisoformat(run(cluster).of("plan")[0]["oldest_pod"])
    assert 7190 < (datetime.now(timezone.utc) - oldest).total_seconds() < 7300


def test_the_terminal_knows_its_columns_better(tool, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    own, theirs = pty.openpty()
    with open(theirs, "w") as stream:
        for columns, width in ((42, 42), (0, 200)):
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            assert tool.columns(stream, 77) == width
    os.close(own)


@pytest.mark.parametrize(("said", "width"), [("100", 100), ("0", 77), ("-5", 77), ("wide", 77), ("", 77)])
def test_columns_that_say_nothing_are_not_believed(tool, monkeypatch, tmp_path, said, width):
    monkeypatch.setenv("COLUMNS", said)
    with open(tmp_path / "file", "w") as stream:  # no terminal
        assert tool.columns(stream, 77) == width
