"""Options: what is taken, what is refused with which words, and what it costs to say so."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SCRIPT, TEXT
from texts import TYPE_AND_NAME

NAME = "--sidecar-container-name=istio-proxy"


@pytest.fixture(scope="session")
def parse(tool):
    """parse(*options): the options of a command line, as the tool has them."""
    return lambda *options: tool.parse_args([NAME, *options])


@pytest.fixture
def refused(tool, capsys):
    """refused(*options): the error that a wrong command line prints, in kubectl's form."""

    def refuse(*options: str) -> str:
        with pytest.raises(SystemExit) as ended:
            tool.main(options)
        assert ended.value.code == 2
        out, err = capsys.readouterr()
        error, hint = err.splitlines()
        assert (out, hint) == ("", "See 'sidecar-rollout.py --help' for usage.")
        assert error.startswith("error: ")
        return error.removeprefix("error: ")

    return refuse


A_NAME = "one name with at most 63 lowercase letters, digits and '-'; wildcards *, ? and [...] are allowed"
AN_AMOUNT = "a positive integer, or a percentage such as 25%"
A_KEY = "KEY or KEY=VALUE, such as example.com/restart=never"
A_TIME = "a date and time such as 2026-05-01T13:00:00Z"
A_DURATION = "a duration such as 90s, 10m or 1h30m"
A_RANGE = "a duration from 1ms to 8760h"
A_PREFIX = (
    "a prefix such as myCompany or example.com/team, with at most 45 characters after the '/'"
)


@pytest.mark.parametrize(
    ("option", "value", "requirement"),
    [
        ("--sidecar-container-name", "", A_NAME),
        ("--sidecar-container-name", "Istio", A_NAME),
        ("--sidecar-container-name", "a" * 64, A_NAME),
        ("--sidecar-container-name", "a,b", "one name; repeat the option for each name"),
        ("--include-namespace", "", A_NAME),
        ("-n", "a b", A_NAME),
        ("--confirm", "maybe", "true or false"),
        ("--parallel-rollouts", "0", AN_AMOUNT),
        ("--parallel-rollouts", "-1", AN_AMOUNT),
        ("--parallel-rollouts", "1.5", AN_AMOUNT),
        ("--max-rollouts", "101%", AN_AMOUNT),
        ("--max-rollouts", "0%", AN_AMOUNT),
        ("--max-failures", "0", AN_AMOUNT),
        ("--exclude-annotation", "=x", A_KEY),
        ("--include-annotation", "a b", A_KEY),
        ("--timeout", "5 apples", A_DURATION),
        ("--timeout", "", A_DURATION),
        ("--timeout", "-5s", A_DURATION),
        ("--timeout", "0", A_RANGE),
        ("--timeout", "0s", A_RANGE),
        ("--timeout", "8761h", A_RANGE),
        ("--only-started-before", "soon", A_TIME),
        ("--only-started-before", "13:00", A_TIME),
        ("--only-started-before", "Monday May 2022", A_TIME),
        ("--only-started-before", "Monday", A_TIME),
        ("--only-started-before", "2026-05-01 13:00 XYZT", A_TIME),
        ("--only-started-before", "1 May 2022 1pm", A_TIME),
        ("--only-started-before", "05/01/2026", A_TIME),
        ("--annotation-prefix", "", A_PREFIX),
        ("--annotation-prefix", "my company", A_PREFIX),
        ("--annotation-prefix", "a/b/c", A_PREFIX),
        ("--annotation-prefix", "Upper.com/a", A_PREFIX),
        ("--annotation-prefix", "a" * 46, A_PREFIX),
        ("--log-level", "loud", "debug, info, warning or error"),
        ("--log-format", "xml", "text or json"),
    ],
)
def test_an_invalid_value_is_reported_with_what_it_must_be(refused, option, value, requirement):
    words = ["-n", value] if option == "-n" else [f"{option}={value}"]
    shown = {"-n": "--include-namespace/-n"}.get(option, option)
    said = refused(NAME, *words)
    assert said.startswith(f"argument {shown.partition('/')[0]}")
    assert said.endswith(f': invalid value "{value}": must be {requirement}')


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the following arguments are required: --sidecar-container-name"),
        ([NAME, "--context"], "argument --context: expected one argument"),
        (
            [NAME, "--selector="],
            'argument --selector/-l: invalid value "": must be non-empty',
        ),
        ([NAME, "--unknown"], "unknown option --unknown"),
        ([NAME, "--dry-run"], "unknown option --dry-run; a dry run is the default"),
        ([NAME, "--only-drift=true"], "unknown option --only-drift; did you mean --only-drifted?"),
        ([NAME, "--yes"], "unknown option --yes; use --confirm=true"),
        ([NAME, "-o", "json"], "unknown option -o; use --log-format=json"),
        ([NAME, "--parallel", "3"], "unknown option --parallel; did you mean --parallel-rollouts?"),
        (
            [NAME, "2026-05-01", "13:00"],
            f'invalid value "2026-05-01": {TYPE_AND_NAME}',
        ),
        (
            [NAME, "--only-drifted", "deployment", "web"],
            'invalid value "deployment": must be TYPE/NAME; did you mean deployment/web?',
        ),
        (
            [NAME, "Sts", "db-*", "-n=deploy"],
            'invalid value "Sts": must be TYPE/NAME; did you mean Sts/db-*?',
        ),
        ([NAME, "--allow-removal"], "--allow-removal requires --only-drifted"),
        ([NAME, "--include-config"], "--include-config requires --only-drifted"),
        (
            [NAME, "--only-drifted", "--ignore-config=x"],
            "--ignore-config requires --include-config",
        ),
        (
            [NAME, "--fail-on-drift"],
            "--fail-on-drift requires --only-drifted",
        ),
        (
            [NAME, "--exclude-deployment"],
            "no workloads selected: --exclude-deployment requires --include-statefulset, --include-daemonset or --evict",
        ),
        (
            [NAME, "--confirm", "true"],
            "--confirm takes a value only after '=': use --confirm=true",
        ),
        (
            [NAME, "-A", "false", "--only-drifted"],
            "-A takes a value only after '=': use -A=false",
        ),
    ],
)
def test_a_wrong_command_line_is_reported_with_what_is_wrong(refused, options, message):
    assert refused(*options) == message


@pytest.mark.parametrize("after", [[], ["deployment/web"], ["--only-drifted"]])
def test_a_namespace_may_have_the_name_of_a_type(parse, after):
    assert parse("-n", "deployment", *after).include_namespace == ["deployment"]


def test_a_configs_name_may_have_dots_and_no_capitals(refused, parse):
    given = ["--only-drifted", "--include-config"]
    assert parse(*given, "--ignore-config=a.b-*").ignore_config == ["a.b-*"]
    told = refused(NAME, *given, "--ignore-config=A_b")
    assert told.startswith(
        'argument --ignore-config: invalid value "A_b": must be one name with lowercase letters, '
    )


@pytest.mark.parametrize("option", ["--confirm=maybe", "--help"])
def test_what_needs_no_cluster_loads_no_client(option):
    words = [sys.executable, "-I", "-X", "importtime", str(SCRIPT), NAME, option]
    ended = subprocess.run(words, capture_output=True, text=True)
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert ended.returncode == (0 if option == "--help" else 2)
    assert "argparse" in imported
    assert not imported & {"kubernetes", "dateutil", "pythonjsonlogger", "urllib3"}


@pytest.mark.parametrize(
    "words", [["--confirm", "deployment/web"], ["deployment/web", "--confirm"]]
)
def test_a_switch_does_not_take_the_word_after_it(parse, words):
    options = parse(*words)
    assert (options.confirm, options.workloads) == (True, ["deployment/web"])


@pytest.mark.parametrize("text", ["true", "TRUE", "yes", "1", None])
def test_a_boolean_that_is_true(parse, text):
    assert parse("--confirm" if text is None else f"--confirm={text}").confirm is True


@pytest.mark.parametrize("text", ["false", "No", "0"])
def test_a_boolean_that_is_false(parse, text):
    assert parse(f"--confirm={text}").confirm is False


def test_defaults(parse):
    options = parse()
    assert options.confirm is False
    assert options.kinds == {"Deployment"}
    assert (options.parallel_rollouts, options.timeout) == ((1, False), 300.0)
    assert options.max_rollouts == (100, True)
    assert options.max_failures is None
    assert (options.annotation_prefix, options.rollout_reason) == (
        "sidecarRollout",
        "Update sidecars",  # and their names, and what changes
    )


@pytest.mark.parametrize(
    ("text", "amount"),
    [("3", (3, False)), ("25%", (25, True)), ("100%", (100, True)), ("1", (1, False))],
)
def test_amounts(parse, text, amount):
    assert parse(f"--max-failures={text}").max_failures == amount


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("team", ("team", "*")),
        ("example.com/restart=never", ("example.com/restart", "never")),
        ("a=b=c*", ("a", "b=c*")),
        ("a=", ("a", "")),
    ],
)
def test_annotations(parse, text, found):
    assert parse(f"--include-annotation={text}").include_annotation == [found]


def test_plural_spellings_work_too(parse):
    options = parse("--exclude-deployments", "--include-statefulsets=yes", "--include-daemonsets")
    assert options.kinds == {"StatefulSet", "DaemonSet"}


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2022-05-01 13:00", datetime(2022, 5, 1, 13, tzinfo=timezone.utc)),
        ("2022-05-01", datetime(2022, 5, 1, tzinfo=timezone.utc)),
        ("20220501T130000Z", datetime(2022, 5, 1, 13, tzinfo=timezone.utc)),
        ("2022-05-01T13:00+02:00", datetime(2022, 5, 1, 11, tzinfo=timezone.utc)),
        ("2022-02-03", datetime(2022, 2, 3, tzinfo=timezone.utc)),
    ],
)
def test_times(parse, text, moment):
    assert parse(f"--only-started-before={text}").cutoff == moment


@pytest.mark.parametrize(
    "text",
    [
        "05/01/2026",  # in May or in January
        "5.1.2026 12:00",
        "01-05-26",
        "9999-12-31",
        "9999-12-31T23:59:59.5Z",
    ],
)
def test_times_that_read_differently_elsewhere_are_refused(run, text):
    ended = run(None, TEXT, f"--only-started-before={text}")
    message = "must be a date and time such as 2026-05-01T13:00:00Z"
    assert (ended.code, ended.stdout) == (2, "")
    assert f'invalid value "{text}": {message}' in ended.stderr


OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(
    st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2100, 1, 1), timezones=OFFSETS)
)
def test_any_iso_time_is_read_as_it_is(parse, moment):
    assert parse(f"--only-started-before={moment.isoformat()}").cutoff == moment


PARSED = (
    "--only-started-before",
    "--timeout",
    "--annotation-prefix",
    "--confirm",
    "--max-failures",
    "--exclude-namespace",
)


@settings(max_examples=50)
@given(st.sampled_from(PARSED), st.text(max_size=40))
def test_no_text_makes_the_parsers_crash(parse, option, text):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parse(f"{option}={text}")
    except SystemExit:
        assert re.match(f"error: argument {option}.*: invalid value .*: must be ", said.getvalue())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300s", 300),
        ("10m", 600),
        ("1h30m", 5400),
        ("7h5m3s", 25503),
        ("45", 45),
        ("1.5", 1.5),
        ("1.5h", 5400),
        ("500ms", 0.5),
        (".5s", 0.5),
    ],
)
def test_durations(parse, text, seconds):
    assert parse(f"--timeout={text}").timeout == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["myCompany", "example.com/team", "a", "x_1.y", "a.b-c.example.com/Team_1", "a" * 45]
)
def test_annotation_prefixes_that_kubernetes_takes(parse, text):
    assert parse(f"--annotation-prefix={text}").annotation_prefix == text


def test_help_and_version():
    shown = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True)
    assert shown.returncode == 0
    assert "--sidecar-container-name" in shown.stdout
    assert "Exit codes:" in shown.stdout
    version = subprocess.run(
        [sys.executable, str(SCRIPT), "--version"], capture_output=True, text=True
    )
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert re.fullmatch(r"sidecar-rollout\.py \d+\.\d+\.\d+\n", version.stdout)


DEMO = {"--keep", "--break-injector-after", "--repair-injector"}  # options of tests/demo.py


def test_the_readmes_options_exist(parse, capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    top = SCRIPT.parent
    pages = [page for page in top.glob("docs/*.md") if page.name != "CHANGELOG.md"]
    for page in (top / "README.md", top / "deploy" / "README.md", *pages):
        text = page.read_text()
        named = set(re.findall(r"`(--[a-z-]+)|^--([a-z-]+)=", text, re.M))
        found = {one or f"--{other}" for one, other in named}
        assert found - {"--dry-run"} - DEMO <= options


def test_the_help_breaks_no_flag_and_has_no_trailing_blanks():
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), "--help"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = ended.stdout.splitlines()
    assert [line for line in lines if line != line.rstrip() or len(line) > 80] == []
    assert [line for line in lines if re.search(r"--?[a-z-]+-$", line)] == []
    for option in ("--evict", "--gate", "--plan"):
        examples = ended.stdout.partition("Examples:")[2].partition("Options marked")[0]
        assert option in examples


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--container=x", "--container; use --sidecar-container-name"),
        ("-c", "-c; use --sidecar-container-name"),
        ("-ojson", "-o; use --log-format=json"),
        ("-o", "-o; use --log-format=json"),
        ("--all", "--all; use --all-namespaces, which is the default"),
        ("--wait", "--wait"),
    ],
)
def test_an_option_of_kubectl_leads_to_the_one_that_is_meant(refused, option, hint):
    assert refused(NAME, option) == f"unknown option {hint}"
