"""Options: what is taken, what is refused with which words, and what it costs to say so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime
from datetime import timedelta
from datetime import timezone

import pytest
from cluster.manifests import workload
from conftest import command
from conftest import SCRIPT
from hypothesis import given
from hypothesis import strategies as st

NAME = "--sidecar-container-name=istio-proxy"
CONFIRM = "--confirm=true"


@pytest.fixture
def refused(tool, capsys):
    """refused(*options): the text of the one line that a bad command line prints."""

    def refuse(*options: str) -> str:
        with pytest.raises(SystemExit) as ended:
            tool.parse_args(options)
        assert ended.value.code == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        assert err.startswith("sidecar-rollout: ") and err.endswith("; see --help\n")
        return err.removeprefix("sidecar-rollout: ").removesuffix("; see --help\n")

    return refuse


A_NAME = "a name of at most 63 of a-z, 0-9 and -, or one with the wildcards * ? [...]"
AN_AMOUNT = "a whole number above 0, or a percentage like 25%"
A_KEY = "KEY or KEY=VALUE, like example.com/restart=never"
A_TIME = "a time with year, month and day like '2026-05-01 13:00', in UTC or with a zone like +02:00"
A_PREFIX = "a prefix like myCompany or example.com/team, with at most 45 characters after the /"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the following arguments are required: --sidecar-container-name"),
        (["--sidecar-container-name="], f"argument --sidecar-container-name: expected {A_NAME}, got ''"),
        (["--sidecar-container-name=Istio"], f"argument --sidecar-container-name: expected {A_NAME}, got 'Istio'"),
        ([NAME, "--unknown"], "unrecognized arguments: --unknown"),
        ([NAME, "--parallel", "3"], "unrecognized arguments: --parallel 3"),
        ([NAME, "2026-05-01", "13:00"], "unrecognized arguments: 2026-05-01 13:00"),
        ([NAME, "--allow-removal"], "--allow-removal goes with --only-drifted"),
        ([NAME, "--ignore-config=x"], "--ignore-config goes with --only-drifted"),
        (
            [NAME, "--only-drifted", "--ignore-config=A_b"],
            "argument --ignore-config: expected a name of a-z, 0-9, - and ., or one with the wildcards * ? [...], "
            "got 'A_b'",
        ),
        ([NAME, "--confirm=maybe"], "argument --confirm: expected true or false, got 'maybe'"),
        (
            [NAME, "--parallel-rollouts", "0"],
            "argument --parallel-rollouts: expected a whole number above 0, or a percentage like 25%, got '0'",
        ),
        (
            [NAME, "--parallel-rollouts=-1"],
            "argument --parallel-rollouts: expected a whole number above 0, or a percentage like 25%, got '-1'",
        ),
        (
            [NAME, "--parallel-rollouts=1.5"],
            "argument --parallel-rollouts: expected a whole number above 0, or a percentage like 25%, got '1.5'",
        ),
        ([NAME, "--max-rollouts=101%"], f"argument --max-rollouts: expected {AN_AMOUNT}, got '101%'"),
        ([NAME, "--max-rollouts=0%"], f"argument --max-rollouts: expected {AN_AMOUNT}, got '0%'"),
        ([NAME, "--max-failures=5%"], "argument --max-failures: expected a whole number above 0, got '5%'"),
        ([NAME, "--exclude-annotation==x"], f"argument --exclude-annotation: expected {A_KEY}, got '=x'"),
        ([NAME, "--include-annotation=a b"], f"argument --include-annotation: expected {A_KEY}, got 'a b'"),
        ([NAME, "--confirm-each", "--confirm=false"], "--confirm-each does it, --confirm=false does not"),
        ([NAME, "--timeout=5 apples"], "argument --timeout: expected a time like 90s, 10m or 1h30m, got '5 apples'"),
        ([NAME, "--timeout="], "argument --timeout: expected a time like 90s, 10m or 1h30m, got ''"),
        ([NAME, "--timeout=0"], "argument --timeout: expected a time from 1ms to 8760h, got '0'"),
        ([NAME, "--timeout=0s"], "argument --timeout: expected a time from 1ms to 8760h, got '0s'"),
        ([NAME, "--timeout=-5s"], "argument --timeout: expected a time like 90s, 10m or 1h30m, got '-5s'"),
        ([NAME, "--only-started-before=soon"], f"argument --only-started-before: expected {A_TIME}, got 'soon'"),
        ([NAME, "--only-started-before=13:00"], f"argument --only-started-before: expected {A_TIME}, got '13:00'"),
        ([NAME, "--only-started-before=2026-05"], f"argument --only-started-before: expected {A_TIME}, got '2026-05'"),
        (
            [NAME, "--only-started-before=Monday May 2022"],
            f"argument --only-started-before: expected {A_TIME}, got 'Monday May 2022'",
        ),
        ([NAME, "--only-started-before=Monday"], f"argument --only-started-before: expected {A_TIME}, got 'Monday'"),
        (
            [NAME, "--only-started-before=2026-05-01 13:00 XYZT"],
            f"argument --only-started-before: expected {A_TIME}, got '2026-05-01 13:00 XYZT'",
        ),
        ([NAME, "--annotation-prefix="], f"argument --annotation-prefix: expected {A_PREFIX}, got ''"),
        (
            [NAME, "--annotation-prefix=my company"],
            f"argument --annotation-prefix: expected {A_PREFIX}, got 'my company'",
        ),
        ([NAME, "--annotation-prefix=a/b/c"], f"argument --annotation-prefix: expected {A_PREFIX}, got 'a/b/c'"),
        (
            [NAME, "--annotation-prefix=Upper.com/a"],
            f"argument --annotation-prefix: expected {A_PREFIX}, got 'Upper.com/a'",
        ),
        (
            [NAME, f"--annotation-prefix={'a' * 46}"],
            f"argument --annotation-prefix: expected {A_PREFIX}, got '{'a' * 46}'",
        ),
        ([NAME, "--selector="], "argument --selector/-l: expected a value, got ''"),
        ([NAME, "--include-namespace="], f"argument --include-namespace: expected {A_NAME}, got ''"),
        (
            [NAME, "--exclude-deployment"],
            "--exclude-deployment leaves nothing: add --include-statefulset or --include-daemonset",
        ),
        (
            [NAME, "--include-namespace=a", "--exclude-namespace=a"],
            "each --include-namespace is excluded by an --exclude-namespace, which wins: nothing is left",
        ),
        (
            [
                NAME,
                "--include-namespace=prod",
                "--include-namespace=x-*",
                "--exclude-namespace=p*d",
                "--exclude-namespace=x-*",
            ],
            "each --include-namespace is excluded by an --exclude-namespace, which wins: nothing is left",
        ),
        ([NAME, "--log-level=loud"], None),
        ([NAME, "--log-format=xml"], None),
    ],
)
def test_bad_input_is_told_in_one_line(refused, options, message):
    said = refused(*options)
    if message is None:  # argparse words this one, differently from version to version
        assert "invalid choice" in said
    else:
        assert said == message


@pytest.mark.parametrize("option", ["--confirm=maybe", "--help"])
def test_what_needs_no_cluster_waits_for_no_import(option):
    """Most of the script's own modules cost as much as Python itself (tests/benchmark.py --only starting)."""
    words = [sys.executable, "-I", "-X", "importtime", str(SCRIPT), NAME, option]
    ended = subprocess.run(words, capture_output=True, text=True)
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert ended.returncode == (0 if option == "--help" else 2) and "argparse" in imported
    assert not imported & {"kubernetes", "dateutil", "logging", "dataclasses", "typing", "json", "shutil", "inspect"}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_that_nobody_reads_is_no_traceback(option):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, str(SCRIPT), option]
    ended = subprocess.run(words, env=environment, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["stdin", "stdout", "stderr"])
def test_a_stream_that_is_closed_is_one_that_nobody_reads(cluster, closed):
    """As with >&- in a shell: Python has no object for such a stream."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    words, environment = command(cluster.kubeconfig, CONFIRM)
    number = ("stdin", "stdout", "stderr").index(closed)
    streams = {name: subprocess.PIPE for name in ("stdout", "stderr") if name != closed}
    ended = subprocess.run(words, env=environment, text=True, **streams, preexec_fn=lambda: os.close(number))
    assert ended.returncode == 0
    assert closed == "stdout" or json.loads(ended.stdout.splitlines()[-1])["outcomes"] == {"succeeded": 1}
    assert closed == "stderr" or "rollout succeeded" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize("text", ["true", "TRUE", "yes", "1", None])
def test_a_boolean_that_is_true(tool, text):
    assert tool.parse_args([NAME, "--confirm" if text is None else f"--confirm={text}"]).confirm is True


@pytest.mark.parametrize("text", ["false", "No", "0"])
def test_a_boolean_that_is_false(tool, text):
    assert tool.parse_args([NAME, f"--confirm={text}"]).confirm is False


def test_defaults(tool):
    options = tool.parse_args([NAME])
    assert options.confirm is False
    assert options.kinds == {"Deployment"}
    assert (options.parallel_rollouts, options.timeout) == ((1, False), 300.0)
    assert (options.max_rollouts, options.max_failures, options.confirm_each) == (None, None, False)
    assert (options.annotation_prefix, options.rollout_reason) == ("sidecarRollout", "Update sidecars istio-proxy")


def test_the_reason_names_all_sidecars(tool):
    names = ["--sidecar-container-name=a", "--sidecar-container-name=b", "--sidecar-container-name=c"]
    assert tool.parse_args(names).rollout_reason == "Update sidecars a, b and c"
    assert tool.parse_args(names[:2]).rollout_reason == "Update sidecars a and b"


@pytest.mark.parametrize(
    ("text", "amount"), [("3", (3, False)), ("25%", (25, True)), ("100%", (100, True)), ("1", (1, False))]
)
def test_amounts(tool, text, amount):
    assert tool.amount(text) == amount


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("team", ("team", "*")),
        ("example.com/restart=never", ("example.com/restart", "never")),
        ("a=b=c*", ("a", "b=c*")),
        ("a=", ("a", "")),
    ],
)
def test_annotations(tool, text, found):
    assert tool.annotation(text) == found


def test_confirm_each_needs_a_terminal(refused):
    assert refused(NAME, "--confirm-each") == "--confirm-each asks: expected a terminal on standard input"


def test_plural_spellings_work_too(tool):
    options = tool.parse_args([NAME, "--exclude-deployments", "--include-statefulsets=yes", "--include-daemonsets"])
    assert options.kinds == {"StatefulSet", "DaemonSet"}


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2022-05-01 13:00", datetime(2022, 5, 1, 13, tzinfo=timezone.utc)),
        ("2022-05-01", datetime(2022, 5, 1, tzinfo=timezone.utc)),
        ("20220501T130000Z", datetime(2022, 5, 1, 13, tzinfo=timezone.utc)),
        ("2022-05-01 13:00 +02:00", datetime(2022, 5, 1, 11, tzinfo=timezone.utc)),
        ("1 May 2022 1pm", datetime(2022, 5, 1, 13, tzinfo=timezone.utc)),
    ],
)
def test_times(tool, text, moment):
    assert tool.moment(text) == moment


OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2100, 1, 1), timezones=OFFSETS))
def test_any_iso_time_is_read_as_it_is(tool, moment):
    assert tool.moment(moment.isoformat()) == moment


@given(st.text(max_size=40))
def test_no_text_makes_the_parsers_crash(tool, text):
    for parse in (tool.moment, tool.duration, tool.annotation_prefix, tool.boolean, tool.positive, tool.name_pattern):
        try:
            parse(text)
        except tool.argparse.ArgumentTypeError as error:
            assert re.match(r"expected .*, got ", str(error))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300s", 300),
        ("10m", 600),
        ("1h30m", 5400),
        ("45", 45),
        ("1.5", 1.5),
        ("1.5h", 5400),
        ("500ms", 0.5),
        (".5s", 0.5),
    ],
)
def test_durations(tool, text, seconds):
    assert tool.duration(text) == pytest.approx(seconds)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_durations_add_up(tool, hours, minutes, seconds):
    assert tool.duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@pytest.mark.parametrize("text", ["myCompany", "example.com/team", "a", "x_1.y", "a.b-c.example.com/Team_1", "a" * 45])
def test_annotation_prefixes_that_kubernetes_takes(tool, text):
    assert tool.annotation_prefix(text) == text


def test_help_and_version():
    shown = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True)
    assert shown.returncode == 0 and "--sidecar-container-name" in shown.stdout and "Exit codes:" in shown.stdout
    version = subprocess.run([sys.executable, str(SCRIPT), "--version"], capture_output=True, text=True)
    assert max(map(len, shown.stdout.splitlines())) < 80
    assert re.fullmatch(r"sidecar-rollout \d+\.\d+\.\d+\n", version.stdout)


def test_the_readme_names_every_option(tool, capsys):
    with pytest.raises(SystemExit):
        tool.parse_args(["--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--exclude-deployments"}
    options -= {"--include-statefulsets", "--include-daemonsets"}
    readme = (SCRIPT.parent / "README.md").read_text()
    assert [option for option in sorted(options) if f"`{option}" not in readme] == []
