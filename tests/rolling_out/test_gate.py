"""--gate: a command that decides whether rollouts may start."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import select
import shlex
import shutil
import signal
import stat
import threading
import time
import urllib.parse
from pathlib import Path

import pytest
from clusters.embedded.manifests import replicated, workload
from support import (
    CONFIRM,
    SCRIPT,
    TEXT,
    TOP,
    Finished,
    Running,
    Terminal,
    a_gate,
    a_restart,
    a_rollout,
    evictions,
    let_ready,
    make_old,
    options_of,
    raises_ended,
)

pytestmark = pytest.mark.both


@pytest.fixture
def deployments_a_to_c(cluster):
    for name in ("a", "b", "c"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    return cluster


@pytest.fixture
def script(tmp_path):
    """script(text): the path of a shell script; each of its runs adds a line to the file `runs`."""

    def write(text: str) -> str:
        path = tmp_path / "gate.sh"
        path.write_text(f"#!/bin/sh\necho >> {tmp_path}/runs\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write


def runs(tmp_path: Path) -> int:
    path = tmp_path / "runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def patches(cluster) -> int:
    return sum(r.method == "PATCH" for r in cluster.server.requests)


def test_an_open_gate_is_asked_once_for_all_starts_within_10_seconds(
    deployments_a_to_c, run, script, tmp_path
):
    ended = run(deployments_a_to_c, CONFIRM, f"--gate={script('echo fine')}")
    assert set(ended.outcomes.values()) == {"succeeded"}
    assert (ended.code, runs(tmp_path)) == (0, 1)
    assert "gate" not in ended.stderr.replace("--gate", "")


def interrupt_when_closed(running: Running, reason: str) -> Finished:
    running.wait_for_log(f"gate closed: {reason}")
    running.signal(signal.SIGINT)
    return running.finish()


def test_a_dry_run_runs_it_once_and_shows_its_answer(deployments_a_to_c, run, script, tmp_path):
    gate = f"--gate={script('echo it is late; exit 1')}"
    ended = run(deployments_a_to_c, gate)
    assert (ended.code, len(ended.planned), runs(tmp_path)) == (0, 3, 1)
    assert ended.summary["gate"] == "closed: it is late"
    assert "\nGate closed: it is late.\n" in run(deployments_a_to_c, gate, TEXT).stdout
    assert run(deployments_a_to_c, f"--gate={script('exit 0')}").summary["gate"] == "open"


def test_it_is_not_called_open_before_it_was_asked(deployments_a_to_c, run, start, script):
    gate = f"--gate={script('echo busy; exit 1')}"
    running = start(deployments_a_to_c, CONFIRM, gate, TEXT)
    assert "Gate" not in interrupt_when_closed(running, "busy").stdout
    ended = run(deployments_a_to_c, CONFIRM, gate, "--only-started-before=2020-01-01")
    assert (ended.planned, ended.summary["gate"]) == ([], None)


def test_nothing_starts_while_it_is_closed_and_it_is_asked_again(
    deployments_a_to_c, start, script, tmp_path
):
    flag = tmp_path / "hold"
    flag.touch()
    text = f"echo checking\ntest -e {flag} || exit 0\necho HighErrorRate is firing\necho\nexit 7"
    running = start(deployments_a_to_c, CONFIRM, TEXT, f"--gate={script(text)}")
    running.wait_for_log("WARNING gate closed: HighErrorRate is firing")
    assert patches(deployments_a_to_c) == 0
    flag.unlink()
    running.wait_for_log("gate open")
    ended = running.finish()
    assert ended.code == 0
    assert runs(tmp_path) >= 2
    assert ended.stderr.count("gate closed") == 1
    assert patches(deployments_a_to_c) == 3


def test_rollouts_in_progress_continue(deployments_a_to_c, start, script, tmp_path):
    """The gate closes after the first rollout started: it is completed, the others never start."""
    deployments_a_to_c.kubelet.ready_after = 60
    gate = f"test ! -e {tmp_path}/hold || exit 1"
    running = start(deployments_a_to_c, CONFIRM, f"--gate={script(gate)}")
    deployments_a_to_c.wait_for(lambda: patches(deployments_a_to_c) == 1)
    (tmp_path / "hold").touch()
    let_ready(deployments_a_to_c)
    ended = interrupt_when_closed(running, "exit code 1")
    assert ended.outcomes == {
        "shop/a": "succeeded",
        "shop/b": "not_started",
        "shop/c": "not_started",
    }


def test_an_interruption_ends_the_wait(deployments_a_to_c, start, script):
    running = start(deployments_a_to_c, CONFIRM, f"--gate={script('exit 3')}")
    ended = interrupt_when_closed(running, "exit code 3")
    assert ended.code == 130
    assert set(ended.outcomes.values()) == {"not_started"}
    assert patches(deployments_a_to_c) == 0


def test_the_end_of_the_window_ends_the_wait(deployments_a_to_c, run, script):
    ended = run(deployments_a_to_c, CONFIRM, f"--gate={script('exit 3')}", "--max-duration=3s")
    assert ended.code == 0
    text = "--max-duration reached; gate closed: exit code 3"
    assert {r["message"] for r in ended.of("result")} == {text}


def test_the_command_is_ended_with_the_run(deployments_a_to_c, start, script, tmp_path):
    running = start(
        deployments_a_to_c, CONFIRM, f"--gate={script(f'echo $$ > {tmp_path}/pid; sleep 1000')}"
    )
    pid = tmp_path / "pid"
    deployments_a_to_c.wait_for(lambda: pid.exists() and pid.read_text().strip())
    running.signal(signal.SIGTERM)
    assert running.finish().code == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_the_progress_line_has_the_reason(deployments_a_to_c, script):
    gate = f"--gate={script('echo HighErrorRate is firing; exit 1')}"
    seen = Terminal(deployments_a_to_c, CONFIRM, gate, "--max-duration=3s")
    assert any("0 in progress; gate closed: HighErrorRate is firing" in s for s in seen.progress)


def test_it_has_no_standard_input_and_no_shell(deployments_a_to_c, run, start, tmp_path):
    gate = '--gate=sh -c \'if read line; then exit 1; fi; test "$0" = "*"\' *'
    ended = run(deployments_a_to_c, CONFIRM, gate, "--max-duration=20s")
    assert set(ended.outcomes.values()) == {"succeeded"}
    running = start(deployments_a_to_c, CONFIRM, f"--gate=false $(touch {tmp_path}/made)")
    interrupt_when_closed(running, "exit code 1")
    assert not (tmp_path / "made").exists()


def test_a_write_waits_for_a_gate_that_closed_meanwhile(tool, monkeypatch):
    """It opens again: nothing is lost, however long that takes. If the run is stopped, nothing is written."""
    rollout = a_rollout(tool, None)
    rollout.gate.why_closed = "gate closed: no"
    work = a_restart(tool, rollout)
    sent: list[str] = []

    def wait(seconds: float, *parts) -> None:
        assert sent == []
        rollout.gate.why_closed = ""

    monkeypatch.setattr(rollout.signals, "wait", wait)
    work.wait_for_gate()
    work.write(sent.append, "x")
    assert sent == ["x"]
    rollout.gate.why_closed = "gate closed: no"
    waits = []

    def stop(seconds: float, *parts) -> None:
        waits.append(seconds)
        if len(waits) > 5:
            rollout.signals.stop(tool.Stop("enough", "stopped"))

    monkeypatch.setattr(rollout.signals, "wait", stop)
    monkeypatch.setattr(time, "monotonic", itertools.count(0, 3600.0).__next__)
    with raises_ended(tool) as caught:
        work.wait_for_gate()
    assert (caught.value.outcome.name, str(caught.value)) == ("NOT_STARTED", "enough")
    assert len(waits) == 6
    with raises_ended(tool, match="enough"):
        work.write(sent.append, "y")
    assert sent == ["x"]


def test_one_that_stays_closed_is_never_open_meanwhile(tool, monkeypatch):
    """Workers read why it is closed at any time, without asking."""
    monkeypatch.setattr(tool.Gate, "VALID_FOR", 0.0)
    gate = a_gate(tool, ["false"])
    assert not gate.is_open()
    seen = []
    shorten = tool.shorten
    monkeypatch.setattr(
        tool, "shorten", lambda *parts: (seen.append(gate.why_closed), shorten(*parts))[1]
    )
    assert not gate.is_open()
    assert seen == ["gate closed: exit code 1"]


@pytest.mark.embedded("the gate closes at a request of the tool")
def test_a_patch_waits_for_a_gate_that_closes_during_its_dry_run(
    cluster, run, tool, monkeypatch, tmp_path
):
    monkeypatch.setattr(tool.Gate, "VALID_FOR", 0.0)
    cluster.create("shop", workload("Deployment", "a"))
    make_old(cluster)
    hold, held = tmp_path / "hold", tmp_path / "held"
    patched = []

    def after(request, code, content) -> None:
        if request.query.get("dryRun") and not held.exists():
            hold.touch()
        if request.method == "PATCH":
            patched.append(held.exists())

    cluster.server.after = after
    gate = f"--gate=sh -c 'if test -e {hold}; then mv {hold} {held}; exit 1; fi'"
    ended = run(cluster, CONFIRM, gate)
    assert (ended.outcomes, patched) == ({"shop/a": "succeeded"}, [True])


@pytest.mark.embedded("the gate closes at a request of the tool")
def test_an_eviction_waits_for_a_gate_that_closes_while_pods_are_read(
    cluster, run, tool, monkeypatch, script, tmp_path
):
    """It is asked again, as its last answer counts no longer."""
    monkeypatch.setattr(tool.Gate, "VALID_FOR", 0.0)
    cluster.create("shop", replicated("ReplicaSet", "x", replicas=1))
    make_old(cluster)
    runs, hold, held = (tmp_path / name for name in ("runs", "hold", "held"))
    evicted = []

    def after(request, code, content) -> None:
        # The scheduler has asked, and so has the worker: from now on it reads
        if runs.exists() and len(runs.read_text()) == 2 and not held.exists():
            hold.touch()
        if request.path.endswith("/eviction"):
            evicted.append(held.exists())

    cluster.server.after = after
    gate = script(f"if test -e {hold}; then mv {hold} {held}; exit 1; fi")
    ended = run(cluster, CONFIRM, "--evict", f"--gate={gate}")
    assert (ended.outcomes, evicted) == ({"shop/x": "succeeded"}, [True])


@pytest.mark.embedded("the gate closes at a request of the tool")
def test_the_last_workload_alone_asks_before_each_pod_and_no_clock_runs(
    cluster, run, tool, monkeypatch, tmp_path
):
    """It is closed for longer than --timeout, and opens again."""
    monkeypatch.setattr(tool.Gate, "VALID_FOR", 0.1)
    cluster.create("shop", replicated("ReplicaSet", "x", replicas=3))
    make_old(cluster)
    flag, count = tmp_path / "hold", []

    def after(request, code, content) -> None:
        if evictions(cluster) and not count:
            flag.touch()
            count.append(time.monotonic())
        if count and time.monotonic() > count[0] + 4:
            flag.unlink(missing_ok=True)
        if flag.exists() and time.monotonic() > count[0] + 1:
            count.append(len(evictions(cluster)))

    cluster.server.after = after
    ended = run(cluster, CONFIRM, "--evict", f"--gate=test ! -e {flag}", "--timeout=1s")
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert (set(count[1:]), len(evictions(cluster))) == ({1}, 3)


@pytest.mark.embedded("the gate closes at a request of the tool")
def test_an_eviction_waits_while_the_gate_is_closed(cluster, run, tool, monkeypatch):
    cluster.create("shop", replicated("ReplicaSet", "x", replicas=3))
    make_old(cluster)
    gates: list = []
    init = tool.Gate.__init__
    monkeypatch.setattr(
        tool.Gate, "__init__", lambda gate, *parts: (init(gate, *parts), gates.append(gate))[0]
    )
    closed: list[int] = []  # how many Pods were evicted, at each request meanwhile

    def after(request, code, content) -> None:
        if evictions(cluster) and not closed:
            gates[0].why_closed = "gate closed: no"
        if gates and gates[0].why_closed:
            closed.append(len(evictions(cluster)))
        if len(closed) > 4:
            gates[0].why_closed = ""

    cluster.server.after = after
    ended = run(cluster, CONFIRM, "--evict")
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert (set(closed), len(evictions(cluster))) == ({1}, 3)


class Silent:
    began = 0.0

    def finish(self, result) -> None:
        assert result.outcome.name == "SKIPPED"

    def show_progress(self, in_progress, status) -> None:
        pass


@pytest.fixture
def clock(tool, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_how_often_it_is_asked(tool, clock, tmp_path):
    """Whether it is open or closed, a result counts for 10 s."""
    flag = tmp_path / "open"
    command = ["sh", "-c", f"echo >> {tmp_path}/runs; test -e {flag}"]
    gate = a_gate(tool, command)

    def is_open(after: float) -> tuple[bool, int]:
        clock[0] += after
        return gate.is_open(), runs(tmp_path)

    flag.touch()
    assert [is_open(0), is_open(9.9), is_open(0.2)] == [(True, 1), (True, 1), (True, 2)]
    flag.unlink()
    assert [is_open(10.1), is_open(9.9), is_open(0.2)] == [(False, 3), (False, 3), (False, 4)]
    flag.touch()
    assert [is_open(9.9), is_open(0.2)] == [(False, 4), (True, 5)]
    assert gate.why_closed == ""


def test_one_that_takes_too_long_is_ended_and_closes_it(tool, monkeypatch, tmp_path):
    monkeypatch.setattr(tool.Gate, "TIMEOUT", 0.5)
    text = f"echo $$ > {tmp_path}/pid; echo soon; sleep 1000"
    gate = a_gate(tool, ["sh", "-c", text])
    assert not gate.is_open()
    assert gate.why_closed == "gate closed: timed out after 0.5s"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_it_has_started_ends_with_it(tool, monkeypatch, tmp_path):
    monkeypatch.setattr(tool.Gate, "TIMEOUT", 0.5)
    text = f"sleep 1000 & echo $! > {tmp_path}/pid; wait"
    gate = a_gate(tool, ["sh", "-c", text])
    assert not gate.is_open()
    try:
        started = os.pidfd_open(int((tmp_path / "pid").read_text()))
    except ProcessLookupError:  # it has ended, and somebody knows
        return
    ended, _, _ = select.select([started], [], [], 20)
    assert ended == [started]


def test_one_that_cannot_run_closes_it(tool, tmp_path):
    gate = a_gate(tool, [str(tmp_path)])
    assert not gate.is_open()
    assert gate.why_closed == f"gate closed: cannot run {tmp_path}: Permission denied"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (b"a\nb\n", "b"),
        (b"a\n\n  b  \n\n", "b"),
        (b"", "exit code 1"),
        (b"x" * 9000, "x" * 197 + "..."),
        (b"\xff", "\ufffd"),
        (b"401 for Authorization: Bearer abcdefghijk", "401 for Authorization: Bearer <redacted>"),
    ],
)
def test_its_last_line_is_the_reason(tool, tmp_path, output, reason):
    (tmp_path / "output").write_bytes(output)
    gate = a_gate(tool, ["sh", "-c", f"cat {tmp_path}/output; exit 1"])
    assert not gate.is_open()
    assert gate.why_closed == f"gate closed: {reason}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere/gate --x", "must be a command that exists and is executable"),
        ("", "must be non-empty"),
        ("   ", "must be non-empty"),
        ("sh -c 'x", "must be a command, with matching quotes"),
        ("/", "must be a command that exists and is executable"),
        *(
            (f"true {word} false", "must be a command without shell operators; use sh -c '...'")
            for word in ("&&", "||", "|", ";", "&", "<", ">", ">>", "|&", "x; test")
        ),
    ],
)
def test_a_command_that_does_not_exist_is_a_usage_error(run, text, message):
    ended = run(None, TEXT, f"--gate={text}")
    assert ended.code == 2
    shown = text.split()[0] if "exists" in message else text  # its arguments may be secret
    assert (
        ended.stderr.splitlines()[0]
        == f'error: argument --gate: invalid value "{shown}": {message}'
    )


def test_a_home_directory_is_expanded(tool, tmp_path, monkeypatch, script):
    path = script("exit 0")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert options_of(tool, "--gate=~/gate.sh x").gate == [path, "x"]
    assert options_of(tool).gate == []


def test_a_shell_may_have_operators(tool):
    assert options_of(tool, "--gate=sh -c 'true && a|b'").gate == ["sh", "-c", "true && a|b"]
    assert options_of(tool, "--gate=true http://x/?a=1&b=2").gate[1] == "http://x/?a=1&b=2"


# The README's examples


def readme_gates() -> list[str]:
    """The values of --gate in the help and the README, as a shell hands them over."""
    text = (
        SCRIPT.read_text().partition('"""\n\nfrom ')[0]
        + (TOP / "docs" / "how-it-works.md").read_text()
    )
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("--gate=")]
    return [shlex.split(line)[0].removeprefix("--gate=") for line in lines]


def verdict(tool, command: str, **environment: str) -> tuple[bool, str]:
    """Whether a gate opens, and its reason."""
    gate = a_gate(tool, options_of(tool, f"--gate={command}").gate)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        is_open = gate.is_open()
    return is_open, gate.why_closed.removeprefix("gate closed: ")


@pytest.mark.parametrize(
    ("now", "is_open"),
    [
        ("1 08", False),
        ("1 09", True),
        ("5 16", True),
        ("5 17", False),
        ("6 12", False),
        ("7 09", False),
    ],
)
def test_the_readmes_business_hours(tool, tmp_path, now, is_open):
    (gate,) = [gate for gate in readme_gates() if "date" in gate]
    day, hour = now.split()
    (tmp_path / "date").write_text(
        f"#!/bin/sh\necho \"$1\" | sed -e 's/+//' -e 's/%u/{day}/' -e 's/%H/{hour}/'\n"
    )
    (tmp_path / "date").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert verdict(tool, gate, PATH=path) == (is_open, "" if is_open else "outside business hours")


def test_the_readmes_flag_file(tool):
    (gate,) = [gate for gate in readme_gates() if gate.startswith("test ")]
    flag = Path(shlex.split(gate)[-1])
    assert not flag.exists()
    assert verdict(tool, gate) == (True, "")
    try:
        flag.touch()
        assert verdict(tool, gate) == (False, "exit code 1")
    finally:
        flag.unlink()


class Prometheus(http.server.BaseHTTPRequestHandler):
    answer: tuple[int, dict] = (200, {})
    queries: list[str] = []

    def do_GET(self) -> None:
        self.queries.append(self.path)
        status, body = self.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_) -> None:
        pass


def alerts(*names: str) -> tuple[int, dict]:
    """What Prometheus answers to a query for ALERTS (https://prometheus.io/docs/prometheus/latest/querying/api/)."""
    result = [
        {
            "metric": {"__name__": "ALERTS", "alertname": name, "alertstate": "firing"},
            "value": [1, "1"],
        }
        for name in names
    ]
    return 200, {"status": "success", "data": {"resultType": "vector", "result": result}}


@pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("jq")), reason="this example needs curl and jq"
)
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (alerts(), (True, "")),
        (alerts("HighErrorRate"), (False, "firing: HighErrorRate")),
        (alerts("B", "A", "B"), (False, "firing: A, B")),
        ((503, {"status": "error"}), (False, None)),
        ((200, {"status": "error", "error": "bad"}), (False, None)),
        (None, (False, None)),
    ],
)
def test_the_readmes_prometheus_query(tool, monkeypatch, answer, expected):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Prometheus)
    Prometheus.queries.clear()
    if answer:
        Prometheus.answer = answer
        threading.Thread(target=server.serve_forever, daemon=True).start()
    else:
        server.server_close()
    (example,) = [gate for gate in readme_gates() if "prometheus" in gate]
    url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.chdir(TOP)
    is_open, reason = verdict(tool, example.replace("http://prometheus.example:9090", url))
    assert is_open == expected[0]
    if expected[1] is None:  # curl's or jq's own words
        assert reason != ""
    else:
        assert reason == expected[1]
    if answer:
        (query,) = Prometheus.queries
        parts = urllib.parse.parse_qs(urllib.parse.urlsplit(query).query)
        assert parts["query"] == ['ALERTS{alertstate="firing",severity="critical"}']
        server.shutdown()
        server.server_close()
