#!/usr/bin/env python3
"""Restart the workloads whose Pods carry a named sidecar, so that they get the
sidecar that is injected today.

A sidecar injector adds a container to a Pod when it is created and never looks
again. This command shows the Deployments, StatefulSets and DaemonSets whose
Pods have that container (with --only-drifted: whose Pods would get another one
today) and, with --confirm, patches an annotation of each Pod template and
waits for `kubectl rollout status`.

    arguments -> Pods -> candidates -> plan -> queue -> results -> report

Examples:
  sidecar-rollout.py --sidecar-container-name=istio-proxy
      show what would be rolled out; nothing is changed
  sidecar-rollout.py --sidecar-container-name=istio-proxy --only-drifted \\
          --confirm=true --parallel-rollouts=10 --max-failures=3
      roll out what would be different, ten workloads at a time
  sidecar-rollout.py --sidecar-container-name='linkerd-*' \\
          --include-statefulset --include-namespace='team-*'
      wildcards, and StatefulSets too
  sidecar-rollout.py --sidecar-container-name=istio-proxy --confirm=true \\
          --only-started-before='2026-05-01 13:00'
      only Pods from before that moment; run it again to go on

Exit codes:
  0         done, or nothing to do
  1         at least one workload failed, timed out, was refused or is still
            not up to date
  2         bad usage
  3         could not start: no cluster, no permission, no kubectl; nothing was
            changed
  130, 143  interrupted by SIGINT, SIGTERM (129: SIGHUP); what was in flight is
            listed
"""

import sys

if __name__ == "__main__":  # Ctrl-C while it starts ends it without a word
    sys.excepthook = lambda kind, *rest: kind is KeyboardInterrupt or sys.__excepthook__(kind, *rest)

import argparse
import fnmatch
import os
import re
from collections import namedtuple
from collections.abc import Sequence

VERSION = "0.1.0"
PROGRAM = "sidecar-rollout"

# Words for people


def printable(text: str) -> str:
    """One line without control characters: what a cluster says must not steer the terminal that shows it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def listed(names: Sequence[str], word: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 3, 1)] + "..."


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def last_line(text: str) -> str:
    return printable((text.strip().splitlines() or [""])[-1])


def columns(stream: "Any", otherwise: int) -> int:
    """How wide a stream's terminal is; where there is none, or one that says 0, COLUMNS tells."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        width = 0
    told = os.environ.get("COLUMNS", "")
    return width or (int(told) if told.isdecimal() else 0) or otherwise


# Command line


class ArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        """One line and exit code 2; the usage is for --help."""
        self.exit(2, f"{PROGRAM}: {printable(message)}; see --help\n")


class Amount(namedtuple("Amount", ("number", "is_percent"), defaults=(False,))):
    """A number of workloads, or a percentage of the plan."""

    def of(self, total: int) -> float:
        return self.number * total / 100 if self.is_percent else self.number


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """The options, converted to what the rest of the program works with. Exits with 2 where one is wrong."""
    summary, _, epilog = __doc__.partition("Examples:")
    width = columns(sys.stdout, 80) - 2
    parser = ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s --sidecar-container-name NAME [OPTIONS]",
        description=summary,
        epilog="Examples:" + epilog,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=width),
        allow_abbrev=False,
    )
    switch = {"type": boolean, "nargs": "?", "const": True, "default": False, "metavar": "true|false"}
    names = {"type": name_pattern, "action": "append", "default": [], "metavar": "NAME"}

    add = parser.add_argument_group("which workloads (those marked * may be repeated and take wildcards)").add_argument
    add("--sidecar-container-name", required=True, help="* a container or native sidecar of this name", **names)
    add("--include-namespace", help="* only in these namespaces", **names)
    add("--exclude-namespace", help="* not in these, which wins", **names)
    add("--selector", "-l", type=filled, help="label selector on Pods, as kubectl takes it")
    keyed = {"type": annotation, "action": "append", "default": [], "metavar": "KEY[=VALUE]"}
    add("--include-annotation", help="* only workloads with this annotation, theirs or their template's", **keyed)
    add("--exclude-annotation", help="* not those with this one, nor where their namespace has it; wins", **keyed)
    before = "only Pods created before this; without a zone it is UTC (default: now)"
    add("--only-started-before", type=moment, metavar="TIME", help=before)
    add("--only-drifted", help="only workloads whose Pods would be created differently today", **switch)
    reloads = "* with --only-drifted: a ConfigMap or Secret that the sidecar reloads by itself"
    add("--ignore-config", help=reloads, **{**names, "type": config_pattern})
    add("--allow-removal", help="with --only-drifted: also where the sidecar would go away", **switch)
    add("--exclude-deployment", "--exclude-deployments", help="no Deployments", **switch)
    add("--include-statefulset", "--include-statefulsets", help="StatefulSets too", **switch)
    add("--include-daemonset", "--include-daemonsets", help="DaemonSets too", **switch)

    add = parser.add_argument_group("how").add_argument
    add("--confirm", help="do it; without it nothing is changed", **{**switch, "default": None})
    add("--confirm-each", help="do it, but ask before each workload", **switch)
    workers = "workloads at a time (default: 1)"
    add("--parallel-rollouts", type=amount, default=Amount(1), metavar="N|N%", help=workers)
    add("--max-rollouts", type=amount, metavar="N|N%", help="only the first of the plan: a canary")
    add("--fail-on-drift", help="a dry run with --only-drifted exits with 1 if anything is not up to date", **switch)
    add("--max-failures", type=positive, metavar="N", help="start no more after so many failures")
    limit = "a rollout's time, like 90s or 1h30m (default: 300s)"
    add("--timeout", type=duration, default=300.0, metavar="DURATION", help=limit)
    prefix = "of the annotations that are written (default: sidecarRollout)"
    add("--annotation-prefix", type=annotation_prefix, default="sidecarRollout", metavar="PREFIX", help=prefix)
    reason = "written beside the time (default: Update sidecars a and b)"
    add("--rollout-reason", type=filled, metavar="TEXT", help=reason)

    add = parser.add_argument_group("connection").add_argument
    add("--kubeconfig", type=filled, metavar="PATH", help="default: where kubectl finds it")
    add("--context", type=filled, metavar="NAME", help="default: the current one")
    add("--kubectl", type=filled, metavar="PATH", default="kubectl", help="default: the one on the PATH")

    add = parser.add_argument_group("output").add_argument
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default: info")
    add("--log-format", choices=("text", "json"), default="text", help="default: text")
    add("--version", action="version", version=f"{PROGRAM} {VERSION}")

    options = parser.parse_args(argv)
    options.kinds = chosen_kinds(options)
    refuse_contradictions(options, parser)
    options.confirm = bool(options.confirm or options.confirm_each)
    options.rollout_reason = options.rollout_reason or f"Update sidecars {listed(options.sidecar_container_name)}"
    return options


def refuse_contradictions(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    if not options.kinds:
        parser.error("--exclude-deployment leaves nothing: add --include-statefulset or --include-daemonset")
    included, excluded = options.include_namespace, tuple(options.exclude_namespace)
    if included and all(name in excluded or (not is_pattern(name) and matches(name, excluded)) for name in included):
        parser.error("each --include-namespace is excluded by an --exclude-namespace, which wins: nothing is left")
    if options.confirm_each and options.confirm is False:
        parser.error("--confirm-each does it, --confirm=false does not")
    if options.confirm_each and not (sys.stdin and sys.stdin.isatty()):
        parser.error("--confirm-each asks: expected a terminal on standard input")
    if options.fail_on_drift and (options.confirm or options.confirm_each or not options.only_drifted):
        parser.error("--fail-on-drift goes with --only-drifted, and without --confirm")
    if not options.only_drifted and (options.ignore_config or options.allow_removal):
        parser.error(f"--{'ignore-config' if options.ignore_config else 'allow-removal'} goes with --only-drifted")


def prepare_streams() -> None:
    """Standard streams that can always be written: Python has none for one that was closed (>&-)."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    sys.stdout.reconfigure(errors="backslashreplace")  # a message may have what the locale has not
    if sys.stdin:
        sys.stdin.reconfigure(errors="replace")  # what is no text is no answer


def leave_at_once(code: int) -> None:
    """Ends the process without taking it apart, which is 0.004 s of those."""
    try:
        sys.stdout.flush()
    except OSError:
        pass  # nobody reads it, or the disk is full: there is no more to say
    os._exit(code)


def without_package(error: ModuleNotFoundError) -> int:
    """Says what to install; the exit code."""
    missing = f"the Python package {error.name} is missing; pip install -r requirements.txt"
    sys.stderr.write(f"{PROGRAM}: could not start, nothing was changed: {missing}\n")
    return 3


def chosen_kinds(options: argparse.Namespace) -> frozenset[str]:
    chosen = {
        "Deployment": not options.exclude_deployment,
        "StatefulSet": options.include_statefulset,
        "DaemonSet": options.include_daemonset,
    }
    return frozenset(kind for kind, wanted in chosen.items() if wanted)


def wrong(wanted: str, text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")


def boolean(text: str) -> bool:
    value = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower())
    if value is None:
        raise wrong("true or false", text)
    return value


def positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) == 0:
        raise wrong("a whole number above 0", text)
    return int(text)


def amount(text: str) -> Amount:
    number, percent, rest = text.partition("%")
    if rest or not re.fullmatch(r"[0-9]{1,9}", number) or int(number) == 0 or (percent and int(number) > 100):
        raise wrong("a whole number above 0, or a percentage like 25%", text)
    return Amount(int(number), bool(percent))


def annotation(text: str) -> tuple[str, str]:
    """An annotation's key, and a pattern of its value: KEY alone takes any."""
    key, equals, value = text.partition("=")
    if not re.fullmatch(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", key):
        raise wrong("KEY or KEY=VALUE, like example.com/restart=never", text)
    return key, value if equals else "*"


def filled(text: str) -> str:
    """Any text but an empty one: an unset shell variable must not widen what is restarted."""
    if not text.strip():
        raise wrong("a value", text)
    return text


def name_pattern(text: str) -> str:
    """A container's or namespace's name (RFC 1123 label), with shell wildcards."""
    if not re.fullmatch(r"[a-z0-9*?\[\]!-]+", text) or (len(text) > 63 and not is_pattern(text)):
        raise wrong("a name of at most 63 of a-z, 0-9 and -, or one with the wildcards * ? [...]", text)
    return text


def config_pattern(text: str) -> str:
    """A ConfigMap's or Secret's name (RFC 1123 subdomain), with shell wildcards."""
    if not re.fullmatch(r"[a-z0-9.*?\[\]!-]{1,253}", text):
        raise wrong("a name of a-z, 0-9, - and ., or one with the wildcards * ? [...]", text)
    return text


def is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def moment(text: str) -> "datetime":
    """A point in time with a zone. dateutil fills in what is missing, from today: so ask it twice, from two days."""
    import warnings
    from datetime import datetime, timezone

    from dateutil import parser

    wanted = "a time with year, month and day like '2026-05-01 13:00', in UTC or with a zone like +02:00"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an unknown zone such as 'CEST' would silently be read as none
            one, other = (parser.parse(text, default=datetime(*day)) for day in ((2001, 2, 3), (2002, 3, 14)))
            if one.date() != other.date():
                raise wrong(wanted, text)
            return one.replace(tzinfo=one.tzinfo or timezone.utc).astimezone(timezone.utc)
    except (ValueError, OverflowError, TypeError, Warning):
        raise wrong(wanted, text) from None


SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}


def duration(text: str) -> float:
    """Seconds, from kubectl's syntax (Go's: 300s, 10m, 1h30m); a bare number is seconds, too."""
    number, units = r"(?:\d+\.?\d*|\.\d+)", "|".join(SECONDS)
    parts = re.findall(rf"({number})({units})", text)
    seconds = sum(float(amount) * SECONDS[unit] for amount, unit in parts)
    if re.fullmatch(number, text, re.ASCII):
        seconds = float(text)
    elif not re.fullmatch(rf"(?:{number}(?:{units}))+", text, re.ASCII):
        raise wrong("a time like 90s, 10m or 1h30m", text)
    if not 0.001 <= seconds <= 8760 * 3600:  # kubectl takes 0 for "wait forever"
        raise wrong("a time from 1ms to 8760h", text)
    return seconds


def annotation_prefix(text: str) -> str:
    """The part before `.rollout.timestamp`; the whole key must be one that Kubernetes takes."""
    domain, slash, name = text.rpartition("/")
    name += ".rollout.timestamp"
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    domain_is_good = not slash or (re.fullmatch(rf"{label}(\.{label})*", domain) and len(domain) <= 253)
    if not domain_is_good or len(name) > 63 or not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_.]*", name):
        raise wrong("a prefix like myCompany or example.com/team, with at most 45 characters after the /", text)
    return text


if __name__ == "__main__":
    # Here and not in main(), before the rest is imported: --help and a wrong option take 0.054 s instead of 0.09.
    prepare_streams()
    try:
        OPTIONS = parse_args(sys.argv[1:])
    except ModuleNotFoundError as error:
        sys.exit(without_package(error))
    except SystemExit as ended:
        leave_at_once(ended.code)

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until Interrupts takes over: the imports take a while

import enum
import functools
import itertools
import json
import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple

log = logging.getLogger(PROGRAM)

# Types


class Identity(NamedTuple):
    """What tells objects of a cluster apart."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Workload(Identity):
    """What a rollout restarts; in a Skip it may be a Pod."""


class Config(Identity):
    """A ConfigMap or Secret that a sidecar uses."""


class Kind(NamedTuple):
    """Where a kind of workload is found in the API, and which fields count its Pods."""

    plural: str
    wanted: str
    available: str
    existing: str


KINDS = {
    "Deployment": Kind("deployments", "spec.replicas", "status.availableReplicas", "status.replicas"),
    "StatefulSet": Kind("statefulsets", "spec.replicas", "status.availableReplicas", "status.replicas"),
    "DaemonSet": Kind(
        "daemonsets", "status.desiredNumberScheduled", "status.numberAvailable", "status.currentNumberScheduled"
    ),
}


class Owner(NamedTuple):
    """A Pod's controller reference; an empty kind is no controller at all."""

    group: str
    kind: str
    namespace: str
    name: str


class Sidecar(NamedTuple):
    name: str
    image: str
    native: bool


@dataclass(frozen=True)
class Filters:
    """Which Pods are meant."""

    sidecars: tuple[str, ...]  # container names, with shell wildcards
    started_before: datetime
    include_namespaces: tuple[str, ...] = ()
    exclude_namespaces: tuple[str, ...] = ()
    selector: str | None = None
    include_annotations: tuple[tuple[str, str], ...] = ()  # (key, pattern of the value)
    exclude_annotations: tuple[tuple[str, str], ...] = ()
    kinds: frozenset[str] = frozenset({"Deployment"})
    only_drifted: bool = False  # then what is needed to compare the Pods is kept


class LivePod(NamedTuple):
    """A concerned Pod, reduced to what is asked of it later: its name; with --only-drifted all of this."""

    name: str
    created: datetime
    view: str  # its sidecars in their normal form, see view_of
    resized: tuple[str, ...]  # the containers whose resources somebody has changed in place


@dataclass(slots=True)
class Candidate:
    """The concerned Pods of one owner."""

    oldest: datetime
    labels: dict[str, str]  # of one of them; what a selector matches is the same in all
    names: list[str]  # of the Pods
    pods: list[LivePod] = field(default_factory=list)  # with --only-drifted, the Pods
    ready: int = 0  # how many of the Pods are
    sidecars: frozenset[Sidecar] = frozenset()
    trouble: str = ""  # why one of the Pods does not run, e.g. CrashLoopBackOff
    sample: str = ""  # with --only-drifted: one of the Pods, as JSON

    def add(self, other: "Candidate") -> None:
        self.oldest = min(self.oldest, other.oldest)
        self.names += other.names
        self.pods += other.pods
        self.ready += other.ready
        self.sidecars = self.sidecars | other.sidecars
        self.trouble = self.trouble or other.trouble


@dataclass
class Census:
    """What was seen while reading Pods, for hints and totals."""

    pods: int = 0
    newer: int = 0
    namespaces: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Skip:
    subject: Workload
    reason: str


class Fresh(NamedTuple):
    """What the API server would create today, reduced to what is compared."""

    view: str  # the sidecars in their normal form
    configs: dict[Config, bool]  # what they use, and whether they cannot start without it
    also: tuple[str, ...]  # what else would be different in the Pod


class Verdict(enum.Enum):
    DRIFTED = "drifted"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UP_TO_DATE = "up_to_date"


class Difference(NamedTuple):
    path: tuple[str, ...]  # from the container's name down; for a changed ConfigMap or Secret, that alone
    live: Any  # None: absent
    fresh: Any


@dataclass(frozen=True)
class Drift:
    """How a workload's Pods compare with what would be created today."""

    verdict: Verdict
    message: str = ""
    pods: int = 0  # how many differ
    differences: tuple[Difference, ...] = ()
    also: tuple[str, ...] = ()
    view: str = ""  # the sidecars of today in their normal form
    changed: dict[Config, datetime] = field(default_factory=dict)  # when what they use was changed

    @property
    def removed(self) -> tuple[str, ...]:
        """The sidecars that would be gone."""
        return tuple(d.path[0] for d in self.differences if len(d.path) == 1 and d.fresh is None)

    @property
    def revision(self) -> str:
        import hashlib

        return hashlib.sha256(self.view.encode()).hexdigest()[:12]


class State(enum.Enum):
    """How much there is to lose; the least comes first."""

    UNHEALTHY = "unhealthy"
    IDLE = "idle"  # none of its Pods serves behind a Service
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Planned:
    workload: Workload
    pods_concerned: int
    pods: int
    ready: int  # of those concerned
    sidecars: tuple[Sidecar, ...]
    oldest_pod: datetime
    state: State
    trouble: str  # why it is unhealthy already; empty: it is not
    version: str = ""  # the workload's resource version; any change of its status makes a new one
    drift: Drift | None = None


class Tally(NamedTuple):
    """A workload's Pods with a named sidecar, counted as SidecarSet does."""

    matched: int
    updated: int = 0
    ready: int = 0
    updated_and_ready: int = 0


class Seen(NamedTuple):
    """A workload's Pods after a rollout."""

    old: list[dict]  # from before the patch, with a named sidecar
    new: list[dict]  # with one or without
    tally: Tally


class Patched(NamedTuple):
    """What is to be known of a patch when it is asked later what became of it."""

    stamp: str  # the value of the timestamp annotation
    moment: datetime  # by the API server's clock
    edits: frozenset[tuple[str, str]]  # who had changed the Pod template until then, and when
    obj: dict  # the workload as it was then


class Outcome(enum.Enum):
    SUCCEEDED = "succeeded"
    COMPLETED_LATE = "completed late"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INCOMPLETE = "incomplete"
    STILL_DRIFTED = "still drifted"
    SKIPPED = "skipped"
    DECLINED = "declined"
    INTERRUPTED = "interrupted"  # it was patched, or was about to be, and nobody waited for the end
    NOT_STARTED = "not started"

    @property
    def snake_case(self) -> str:
        return self.value.replace(" ", "_")


GOOD = (Outcome.SUCCEEDED, Outcome.COMPLETED_LATE)
BAD = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.INCOMPLETE, Outcome.STILL_DRIFTED)


@dataclass(frozen=True)
class Result:
    planned: Planned
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""
    patched: Patched | None = None
    tally: Tally | None = None  # None: its Pods were not looked at again


class Event(NamedTuple):
    """What a worker tells the main thread about a workload; the first one only says that it has begun."""

    planned: Planned
    line: str = ""  # printed by kubectl
    child: Any = None  # kubectl's Popen, as soon as it runs
    question: queue.SimpleQueue | None = None  # "roll out?"; takes the answer
    result: Result | None = None


class CannotStart(Exception):
    """Why nothing was done; a line for a person."""


class ApiError(Exception):
    """An answer of the API server other than success, or none; status 0 is none."""

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


# Logging


class TextFormatter(logging.Formatter):
    """`12:30:01 WARNING Deployment shop/web: rollout timed out, seconds=300`: a fixed message, facts in fields."""

    COLORS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m"}
    PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "workload", "line", "taskName"}

    def __init__(self, colored: bool) -> None:
        super().__init__()
        self.colored = colored

    def format(self, record: logging.LogRecord) -> str:
        facts = vars(record)
        subject = f"{facts['workload']}: " if "workload" in facts else ""
        message = facts.get("line") or record.getMessage()
        fields = "".join(f", {name}={value}" for name, value in facts.items() if name not in self.PLAIN)
        level = f"{record.levelname:<7}"
        if self.colored and record.levelname in self.COLORS:
            level = f"{self.COLORS[record.levelname]}{level}\033[0m"
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{stamp} {level} {printable(subject + message + fields)}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class ProgressLine(logging.StreamHandler):
    """Standard error: log lines, and below them, on a terminal, one line that is written anew."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.clear()
        super().emit(record)
        self.draw()

    def clear(self) -> None:
        if self.on_terminal and self.text:
            self.write("\r\033[K")

    def draw(self) -> None:
        if self.on_terminal and self.text:
            self.write("\r\033[K" + shortened(self.text, columns(self.stream, 80) - 1))

    def show(self, text: str) -> None:
        """Puts a text in the line; an empty one takes the line away."""
        with self.lock:
            self.clear()
            self.text = printable(text)
            self.draw()

    def write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            pass  # the terminal is gone; the rollouts go on


def set_up_logging(level: str, as_json: bool) -> ProgressLine:
    """Log to standard error; libraries only with their warnings."""
    handler = ProgressLine()
    if as_json:
        from pythonjsonlogger.json import JsonFormatter

        names = {"asctime": "time", "levelname": "level"}
        layout = {"fmt": "%(asctime)s %(levelname)s %(message)s", "datefmt": "%Y-%m-%dT%H:%M:%SZ"}
        formatter = JsonFormatter(**layout, rename_fields=names, json_default=str, json_ensure_ascii=True)
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    else:
        handler.setFormatter(TextFormatter(colored=handler.on_terminal and not os.environ.get("NO_COLOR")))
    logging.raiseExceptions = False  # a closed standard error is no reason to stop
    logging.captureWarnings(True)
    sys.unraisablehook = lambda ignored: log.debug("ignored", extra={"error": repr(ignored.exc_value)})
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.root.addFilter(lambda record: False)  # where the client logs a plugin's output, which may be a token
    log.setLevel(level.upper())
    return handler


# Threads


class Abandoned(BaseException):
    """Raised in a worker when nobody waits for it any more: whatever it is about to do, it must not."""


def drain(
    items: Iterable,
    work: Callable[[Any, Callable], None],
    threads: int,
    may_start: Callable[[], bool] = lambda: True,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator:
    """Works on items in daemon threads, in their order, and yields what `work(item, tell)` tells, as it comes.

    Yields None about twice a second when nothing was told. A thread asks `may_start` before it takes an item, which may
    make it wait, and ends when told no. What `work` raises is raised here. Once `stop` says so, what was told until
    then is still yielded, nothing more is waited for, and `tell` raises Abandoned in the threads.
    """
    items = list(items)
    todo: queue.SimpleQueue = queue.SimpleQueue()
    told: queue.SimpleQueue = queue.SimpleQueue()
    closed: list[bool] = []
    for item in items:
        todo.put(item)

    def tell(news: Any) -> None:
        told.put(news)
        if closed:
            raise Abandoned

    def worker() -> None:
        try:
            while may_start() and not closed:
                work(todo.get_nowait(), tell)
        except (queue.Empty, Abandoned):
            pass
        except BaseException as error:
            told.put(error)
        told.put(worker)  # this one is done

    running = 0
    try:
        for _ in range(min(threads, len(items))):
            try:
                threading.Thread(target=worker, daemon=True).start()
            except RuntimeError:  # a limit of processes, which count threads: those that run do the work
                if not running:
                    raise
                break
            running += 1
        while running:
            if stop():
                closed.append(True)
            try:
                news = told.get(timeout=0 if closed else 0.5)
            except queue.Empty:
                if closed:
                    return
                news = None
            if news is worker:
                running -= 1
            elif isinstance(news, BaseException):
                raise news
            else:
                yield news
    finally:
        closed.append(True)


def each(items: Iterable, ask: Callable[[Any], Any], threads: int = 8) -> dict:
    """Asks about each item, some at a time: {item: answer}."""
    answers = drain(items, lambda item, tell: tell((item, ask(item))), threads)
    return dict(answer for answer in answers if answer is not None)


# Cluster: the only code that talks to the API server

JSON = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
PAGE = 500
LARGEST = 256_000_000  # bytes of an answer; a page of 500 Pods takes 4 MB
ATTEMPTS = 5
PATIENCE = 30  # seconds for which more are made between rollouts: a restarted API server is away for 10 to 20
RETRIED = (0, 429, 500, 502, 503, 504)  # 0: no answer at all


class Right(NamedTuple):
    verb: str
    group: str
    resource: str
    namespace: str  # empty: in all of them

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group} {where}"


class Cluster:
    """An API server: raw JSON over the client's own connections, with retries."""

    def __init__(
        self, configuration: Any, kubectl_flags: Sequence[str] = (), load_again: Callable[[Any], None] | None = None
    ) -> None:
        from kubernetes.client import ApiClient

        self.configuration = configuration
        self.kubectl_flags = kubectl_flags  # what makes kubectl talk to this one
        self.load_again = load_again  # the credentials, into the configuration
        self.pool = ApiClient(configuration).rest_client.pool_manager
        self.patience = 0  # seconds; until something is changed nobody is to be kept waiting
        self.clock_ahead = timedelta(0)  # by how much this machine's clock is ahead of the API server's
        self.answered = False  # a server that has not answered yet is not there, rather than in trouble
        self.lock = threading.Lock()
        self.token, self.token_is_good_until, self.was_refused = None, 0.0, False

    def get(self, path: str, query: dict | None = None, accept: str = JSON) -> dict:
        return decoded(self.request("GET", path, query=query, accept=accept))

    def find(self, path: str, accept: str = JSON) -> dict | None:
        """The object there; None where there is none."""
        try:
            return self.get(path, accept=accept)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def request(self, method: str, path: str, retried: Sequence[int] = RETRIED, **parts: Any) -> bytes:
        """The body of a successful answer. ApiError for any other, after retries: all that is sent may be repeated."""
        passing = {*retried, 401}
        began, attempt = time.monotonic(), 0
        while True:
            attempt += 1
            try:
                return self.send(method, path, **parts)
            except ApiError as error:
                patience = 0 if error.status == 500 else self.patience  # that is about one object: a webhook's trouble
                enough = attempt >= ATTEMPTS and time.monotonic() - began >= patience
                if enough or error.status not in passing or not self.answered:
                    raise
                if error.status == 401:
                    passing.remove(401)  # a token that has just ended is renewed, once
                seconds = error.retry_after or pause(attempt)
                log.debug("trying again", extra={"request": f"{method} {path}", "reason": str(error), "in": seconds})
                time.sleep(min(seconds, 30))

    def send(
        self, method: str, path: str, query: dict | None = None, body: dict | None = None, accept: str = JSON
    ) -> bytes:
        """One request. ApiError says in one line what went wrong."""
        from urllib.parse import urlencode

        import urllib3

        url = self.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        # Compressed, a list is a tenth: what counts over a slow link. API servers do so above 128 KB.
        headers = {"Accept": accept, "Accept-Encoding": "gzip", "User-Agent": f"{PROGRAM}/{VERSION}"}
        if body is not None:
            headers["Content-Type"] = STRATEGIC_MERGE if method == "PATCH" else JSON
        token = self.authorization()
        if token:
            headers["Authorization"] = token
        asked = datetime.now(timezone.utc)
        try:
            response = self.pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=urllib3.Timeout(connect=10, read=60 if self.answered else 10),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            data = response.read(LARGEST + 1)
            if len(data) > LARGEST:
                response.close()
                raise ApiError(200, f"expected an answer of at most {LARGEST // 10**6} MB, got more")
            response.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"no answer from {self.configuration.host}: {cause_of(error)}") from error
        if not self.answered:
            self.clock_ahead = clock_ahead(asked, response.headers.get("Date"))
        self.answered = True
        if 200 <= response.status < 300:
            return data
        if response.status == 401:
            self.forget(token)
        retry_after = response.headers.get("Retry-After", "")
        raise ApiError(
            response.status, status_message(response, data), float(retry_after) if retry_after.isdecimal() else 0.0
        )

    def authorization(self) -> str | None:
        """The header's value, kept for half a minute. ApiError where a token cannot be renewed, without a word of it.

        The client's hook that renews a token has no lock, once a token ends within five minutes it runs the credential
        plugin each time it is asked, and one whose end it does not know it never renews.
        """
        with self.lock:
            if time.monotonic() < self.token_is_good_until:
                return self.token
            try:
                if self.was_refused and self.load_again:
                    self.load_again(self.configuration)
                found = self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
            except Exception as error:  # of a plugin, an identity provider, a file; its text may have the token
                raise ApiError(0, f"the credentials could not be renewed: {type(error).__name__}") from None
            token = found and found.strip()  # a token file's line end, as kubectl does
            if token and not (token.isascii() and token.isprintable()):
                raise ApiError(
                    401, "expected a token of printable ASCII characters, got others; look at the credentials"
                )
            self.token, self.token_is_good_until, self.was_refused = token, time.monotonic() + 30, False
            return token

    def forget(self, token: str | None) -> None:
        """Has a token that was refused renewed, unless another thread has done so."""
        with self.lock:
            if token == self.token:
                self.token_is_good_until, self.was_refused = 0.0, True

    def read_list(self, read: Callable[[], Any]) -> Any:
        """What `read` makes of a list, from its start again where the pages of the list expire before its end."""
        for _ in range(ATTEMPTS - 1):
            try:
                return read()
            except ApiError as error:
                if error.status != 410:
                    raise
                log.debug("the list expired, reading it again")
        return read()

    def pods(self, namespaces: Sequence[str], selector: str | None) -> Iterator[dict]:
        """Every Pod of the namespaces, of all where none is named."""
        return self.items("/api/v1", "pods", namespaces, {"labelSelector": selector} if selector else {})

    def serving_pods(self, namespaces: Sequence[str]) -> set[tuple[str, str]] | None:
        """(namespace, name) of each Pod that serves behind a Service; None where that may not be read."""
        try:
            slices = partial(self.items, "/apis/discovery.k8s.io/v1", "endpointslices", namespaces, {})
            return self.read_list(lambda: {pod for piece in slices() for pod in serving_endpoints(piece)})
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return None

    def items(self, group: str, plural: str, namespaces: Sequence[str], query: dict) -> Iterator[dict]:
        """A list, read in pages; each item is dropped once it is yielded."""
        for path in [f"{group}/namespaces/{name}/{plural}" for name in namespaces] or [f"{group}/{plural}"]:
            query = {**query, "limit": PAGE}
            while True:
                page = yield from items_of(self.request("GET", path, query=query).decode("utf-8", "replace"))
                token = page.get("continue")
                if not token:
                    query.pop("continue", None)
                    break
                query["continue"] = token

    def controller_of_replica_set(self, owner: Owner) -> Owner | None:
        """A ReplicaSet's controller; None where it has none or is gone. Metadata only: the rest may be large."""
        path = f"/apis/apps/v1/namespaces/{owner.namespace}/replicasets/{owner.name}"
        found = self.find(path, METADATA_ONLY)
        return found and controller_of(found["metadata"])

    def workloads(self, kind: str, namespaces: Sequence[str]) -> Iterator[tuple[Workload, dict]]:
        """All workloads of a kind, whole as the API server has them."""
        for obj in self.items("/apis/apps/v1", KINDS[kind].plural, namespaces, {}):
            yield Workload(kind, sys.intern(obj["metadata"]["namespace"]), obj["metadata"]["name"]), obj

    def workload(self, workload: Workload) -> dict | None:
        """The workload as it is now; None where there is none."""
        return self.find(path_of(workload))

    def pods_of(self, workload: Workload, obj: dict) -> list[dict]:
        """The Pods that a workload's selector selects."""
        selector = selector_text(obj["spec"]["selector"])
        return self.read_list(lambda: list(self.pods([workload.namespace], selector)))

    def would_create(self, namespace: str, pod: dict) -> dict:
        """The Pod that the API server would store: admission and webhooks run for real, nothing is kept.

        A webhook that fails is not asked again: that would cost its timeout each time.
        """
        query = {"dryRun": "All", "fieldManager": PROGRAM}
        path = f"/api/v1/namespaces/{namespace}/pods"
        return decoded(self.request("POST", path, retried=(0, 429, 503), query=query, body=pod))

    def changed_at(self, config: Config) -> datetime | ApiError:
        """When a ConfigMap or Secret was last changed, from its metadata alone: the content is never asked for."""
        try:
            path = f"/api/v1/namespaces/{config.namespace}/{config.kind}s/{config.name}"
            metadata = self.get(path, accept=METADATA_ONLY)["metadata"]
        except ApiError as error:
            return error
        times = [entry["time"] for entry in metadata.get("managedFields") or () if entry.get("time")]
        return max(map(parse_time, times or [metadata["creationTimestamp"]]))

    def annotations_of_namespace(self, namespace: str) -> dict[str, str]:
        """Those of a namespace; none where it is gone by now."""
        found = self.find(f"/api/v1/namespaces/{namespace}", METADATA_ONLY)
        return (found or {}).get("metadata", {}).get("annotations") or {}

    def patch_template(self, workload: Workload, annotations: dict[str, str], version: str | None) -> dict:
        """Changes the Pod template's annotations, which makes the controller replace the Pods; the new workload.

        ApiError 409 where the workload is no longer of that resource version.
        """
        body: dict = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
        if version:
            body["metadata"] = {"resourceVersion": version}
        return decoded(self.request("PATCH", path_of(workload), query={"fieldManager": PROGRAM}, body=body))

    def may(self, right: Right) -> bool:
        """Whether the user has a right; True where the API server does not tell."""
        attributes = {"verb": right.verb, "group": right.group, "resource": right.resource}
        if right.namespace:
            attributes["namespace"] = right.namespace
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        try:
            answer = self.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
        except ApiError as error:
            if error.status in (403, 404):
                return True
            raise
        return decoded(answer).get("status", {}).get("allowed") is not False


def clock_ahead(asked: datetime, date: str | None) -> timedelta:
    """By how much this machine's clock is ahead of the one that dated an answer; 0 where both may be right."""
    from email.utils import parsedate_to_datetime

    try:
        told, now = parsedate_to_datetime(date or ""), datetime.now(timezone.utc)
        doubt = timedelta(seconds=2)  # a date has whole seconds
        return timedelta(0) if asked - doubt <= told <= now + doubt else now - told
    except (TypeError, ValueError):
        return timedelta(0)


def pause(attempt: int) -> float:
    """Seconds before the next attempt: longer each time, up to 8, and never the same for all workers."""
    import random

    return random.uniform(0.5, 1.0) * min(2 ** (attempt - 2), 8)


def selector_text(selector: dict) -> str:
    """A workload's label selector, as a query has it."""
    words = {"In": "{key} in ({values})", "NotIn": "{key} notin ({values})", "DoesNotExist": "!{key}"}
    terms = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        values = ",".join(expression.get("values") or ())
        terms.append(words.get(expression["operator"], "{key}").format(key=expression["key"], values=values))
    return ",".join(terms)


def path_of(workload: Workload) -> str:
    return f"/apis/apps/v1/namespaces/{workload.namespace}/{KINDS[workload.kind].plural}/{workload.name}"


def decoded(body: bytes | str) -> dict:
    """A JSON object. ApiError for anything else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        text = body if isinstance(body, str) else body[:80].decode("utf-8", "replace")
        raise ApiError(200, f"expected a Kubernetes object in JSON, got {text[:80]!r}")
    return value


def items_of(text: str) -> Iterator[dict]:
    """Yields a list's items one by one, and returns its metadata.

    Item by item costs half of json.loads on a page of 500 Pods: hardly anything is alive at a time, so the garbage
    collector has nothing to walk through.
    """
    decoder = json.JSONDecoder()
    start = text.find('"items":[') + len('"items":[')
    position = start
    try:
        while start >= len('"items":[') and text[position] != "]":
            item, position = decoder.raw_decode(text, position + (text[position] == ","))
            yield item
    except (ValueError, IndexError, RecursionError):
        raise ApiError(200, f"expected a list in JSON, got one that breaks off after {position} characters") from None
    envelope = decoded(text[:start] + text[position:] if start >= len('"items":[') else text)
    if not isinstance(envelope.get("items"), list) or not isinstance(envelope.get("metadata"), dict):
        raise ApiError(200, f"expected a list of Pods, got {text[:80]!r}")
    yield from envelope["items"]  # empty, unless the list was written in another way than API servers do
    return envelope["metadata"]


def status_message(response: Any, data: bytes) -> str:
    """What an answer other than success says: the API server's own words where it has some."""
    try:
        message = decoded(data).get("message")
    except ApiError:
        message = None
    if response.status == 401:
        return "401 Unauthorized: the credentials were not accepted, or have expired; log in again"
    return f"{response.status} {printable(str(message or response.reason or ''))}".strip()


def cause_of(error: BaseException) -> str:
    """The innermost cause, which is the one that tells something."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return printable(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def connect(kubeconfig: str | None, context: str | None, connections: int) -> Cluster:
    """The cluster that kubectl would talk to. CannotStart where there is none."""
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException
    from kubernetes.config import load_incluster_config

    configuration = Configuration()
    configuration.connection_pool_maxsize = connections
    # As kubectl reads them: --kubeconfig is one file, KUBECONFIG a list, and in neither is a ~ expanded but by us.
    path = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    flags = []
    if kubeconfig or not files:
        files = [os.path.expanduser(path)]
        flags = ["--kubeconfig", *files]  # the default, too: k3s' kubectl has another one
    if kubeconfig or context or any(map(os.path.exists, files)):
        name, load_again = load_kubeconfig(configuration, files, context)
        # The context by its name, as the current one may change while this runs.
        return Cluster(configuration, [*flags, "--context", name], load_again)
    try:
        load_incluster_config(configuration)
    except ConfigException:
        raise CannotStart(f"no cluster: {path} does not exist; name a kubeconfig with --kubeconfig") from None
    return Cluster(configuration)


def load_kubeconfig(configuration: Any, files: list[str], context: str | None) -> tuple[str, Callable[[Any], None]]:
    """Fills in the configuration; the context's name, and what fills it in again. CannotStart where it cannot."""
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import KubeConfigLoader
    from kubernetes.config.kube_config import KubeConfigMerger

    named = os.pathsep.join(files)
    try:
        for path in filter(os.path.exists, files) if len(files) > 1 else files:
            with open(path) as stream:
                size = os.fstat(stream.fileno()).st_size
            if size > 5_000_000:  # to read it would take a minute
                raise CannotStart(f"kubeconfig {path} cannot be used: expected at most 5 MB, got {size // 10**6}")
        merger = KubeConfigMerger(named)
        if merger.config is None:
            raise CannotStart(f"no cluster: {named} does not exist; name a kubeconfig with --kubeconfig")
        known = [entry["name"] for entry in merger.config.value.get("contexts") or ()]
        # Of several files kubectl takes the first that names one; the client takes the last.
        name = context or next(filter(None, (part.get("current-context") for part in merger.config_files.values())), "")
        if name not in known:
            which = f"context {name!r} is not in {named}" if name else f"{named} has no current context"
            others = f"--context may be {listed(known, 'or')}" if known else "it has no contexts; name another file"
            raise CannotStart(f"{which}; {others}")
        loader = KubeConfigLoader(merger.config, name, config_base_path=None, config_persister=merger.save_changes)
        user = user_of(merger.config.value, name)
        impersonated = sorted(key for key in user if key == "as" or key.startswith("as-"))
        if impersonated:
            what = f"context {name} impersonates ({', '.join(impersonated)}), which only kubectl would do"
            raise CannotStart(f"{what}; name one that does not, with --context")
        loader.load_and_set(configuration)
        has_credentials = configuration.api_key or configuration.cert_file
        if "exec" in user and not has_credentials:
            command = user["exec"].get("command")
            raise CannotStart(f"the credential plugin {command} of context {name} failed; run it by hand to see why")
    except CannotStart:
        raise
    except OSError as error:
        raise CannotStart(f"cannot read kubeconfig {error.filename or named}: {error.strerror}") from None
    except ConfigException as error:
        told = re.sub(r"\{.*\}", "{...}", str(error), flags=re.DOTALL)  # it quotes whole entries, tokens included
        raise CannotStart(f"kubeconfig {named} cannot be used: {printable(told)}") from None
    except Exception as error:  # yaml's, and whatever a file of another shape leads to; no text of it, no traceback
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" (line {line + 1})"
        raise CannotStart(f"{named} is not a kubeconfig: {type(error).__name__}{where}") from None
    return name, loader.load_and_set


def user_of(config: dict, context: str) -> dict:
    """The user entry of a context of a kubeconfig, as the client has merged it; empty where there is none."""

    def plain(entries: Any) -> list[dict]:
        return [getattr(entry, "value", entry) for entry in entries or ()]

    (chosen,) = [entry for entry in plain(config.get("contexts")) if entry["name"] == context][:1]
    name = (chosen.get("context") or {}).get("user")
    users = [entry for entry in plain(config.get("users")) if entry["name"] == name]
    return (users[0].get("user") or {}) if users else {}


# Before anything is changed


def check_rights(cluster: Cluster, filters: Filters, confirm: bool) -> None:
    """CannotStart, naming what is missing, where the user may not do what is about to be done.

    kubectl rollout status watches; an older one lists first.
    """
    rights = []
    namespaces = namespaces_to_list(filters)
    for namespace in namespaces or [""]:
        rights.append(Right("list", "", "pods", namespace))
        if filters.exclude_annotations:
            rights.append(Right("get", "", "namespaces", namespace))
        if "Deployment" in filters.kinds:
            rights.append(Right("get", "apps", "replicasets", namespace))
        for kind in sorted(filters.kinds):
            verbs = ("get", "list", "patch", "watch") if confirm else ("get",)
            rights += [Right(verb, "apps", KINDS[kind].plural, namespace) for verb in verbs]
    missing = [str(right) for right, allowed in each(rights, cluster.may).items() if not allowed]
    if missing:
        hint = "" if namespaces else "; or name your namespaces with --include-namespace"
        raise CannotStart(f"missing rights: {', '.join(sorted(missing))}; ask for them (the README lists them){hint}")


def find_kubectl(path: str) -> str:
    """The path of a kubectl that runs. CannotStart where there is none."""
    import shutil

    found = shutil.which(path)
    hint = "install it (https://kubernetes.io/docs/tasks/tools/) or name it with --kubectl"
    if not found:
        raise CannotStart(f"no kubectl: {path!r} is not found or cannot be executed; {hint}")
    trouble = trouble_with([found, "version", "--client"])
    if trouble:
        raise CannotStart(f"{found} does not run: {trouble}; {hint}")
    return found


def check_kubectl(path: str, cluster: Cluster) -> None:
    """CannotStart where kubectl does not reach the cluster: proxies, plugins and certificates are its own to deal with.

    Without this each workload would be patched, and none of them waited for.
    """
    import shlex

    command = [path, *cluster.kubectl_flags, "version"]
    for _ in range(3):
        trouble = trouble_with(command)
        if not trouble or "Forbidden" in trouble:  # that is an answer, too
            return
        time.sleep(1)
    raise CannotStart(f"kubectl does not reach the cluster: {trouble}; see: {shlex.join(command)}")


def trouble_with(command: Sequence[str]) -> str:
    """Why a command does not succeed, in a line; empty: it does."""
    import subprocess

    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return cause_of(error)
    return "" if ended.returncode == 0 else last_line(ended.stderr) or f"exit code {ended.returncode}"


# Selecting: pure functions; a "no" is a Skip, which the report prints


def is_chosen(namespace: str, filters: Filters) -> bool:
    included = not filters.include_namespaces or matches(namespace, filters.include_namespaces)
    return included and not matches(namespace, filters.exclude_namespaces)


def namespaces_to_list(filters: Filters) -> list[str]:
    """The namespaces to read one by one; none means all at once, which takes more rights."""
    if any(map(is_pattern, filters.include_namespaces)):
        return []
    return [name for name in dict.fromkeys(filters.include_namespaces) if is_chosen(name, filters)]


def read_candidates(pods: Iterable[dict], filters: Filters) -> tuple[dict[Owner, Candidate], Census]:
    """The concerned Pods by their owner, and what was seen on the way."""
    candidates: dict[Owner, Candidate] = {}
    shared: dict[frozenset, frozenset] = {}
    census = Census()
    for pod in pods:
        census.pods += 1
        try:
            owner, candidate = concerned(pod, filters, census)
            if candidate is None:
                continue
            candidate.sidecars = shared.setdefault(candidate.sidecars, candidate.sidecars)
            if owner in candidates:
                candidates[owner].add(candidate)
            else:
                candidates[owner] = candidate
                candidate.sample = sample_of(pod) if filters.only_drifted else ""
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ApiError(200, f"expected a Pod, got {json.dumps(pod)[:80]}: {error!r}") from None
    return candidates, census


def concerned(pod: dict, filters: Filters, census: Census) -> tuple[Owner, Candidate] | tuple[None, None]:
    """A Pod with its owner if it is one to restart, else twice None."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    census.namespaces.add(metadata["namespace"])
    containers = sidecars_of(spec)
    census.containers.update(container.name for container in containers)
    sidecars = frozenset(container for container in containers if matches(container.name, filters.sidecars))
    if not sidecars or not is_chosen(metadata["namespace"], filters):
        return None, None
    if is_ending(pod):
        return None, None
    started = started_at(pod)
    if started >= filters.started_before:
        census.newer += 1
        return None, None
    owner = controller_of(metadata) or Owner("", "", metadata["namespace"], metadata["name"])
    pods = [live_pod(pod, filters.sidecars)] if filters.only_drifted else []
    labels = {sys.intern(key): value for key, value in (metadata.get("labels") or {}).items()}
    ready = int(is_ready(status))
    candidate = Candidate(started, labels, [metadata["name"]], pods, ready, sidecars, trouble_of(status))
    return owner, candidate


def sample_of(pod: dict) -> str:
    """A Pod as JSON, without what is not compared and half of it."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    return json.dumps({"metadata": metadata, "spec": pod["spec"]})


def is_ending(pod: dict) -> bool:
    """Whether a Pod is terminating, which is listed as running and ready for a while, or has ended."""
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return ended or bool(pod["metadata"].get("deletionTimestamp"))


def started_at(pod: dict) -> datetime:
    """When a Pod was created, or started, whichever is earlier."""
    times = (pod["metadata"]["creationTimestamp"], (pod.get("status") or {}).get("startTime"))
    return min(map(parse_time, filter(None, times)))


def template_annotations(obj: dict) -> dict[str, str]:
    return ((obj["spec"].get("template") or {}).get("metadata") or {}).get("annotations") or {}


def running_along(spec: dict) -> Iterator[tuple[str, dict]]:
    """The containers that run beside each other, each with where it stands: ordinary ones and native sidecars."""
    yield from (("containers", container) for container in spec["containers"])
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            yield "initContainers", container


def sidecars_of(spec: dict) -> list[Sidecar]:
    return [Sidecar(c["name"], c.get("image", ""), position != "containers") for position, c in running_along(spec)]


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def controller_of(metadata: dict) -> Owner | None:
    """The owner that is marked as controller, which need not be the first."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            group = reference["apiVersion"].rpartition("/")[0]
            words = map(sys.intern, (group, reference["kind"], metadata["namespace"]))  # the same in many Pods
            return Owner(*words, reference["name"])
    return None


def is_ready(status: dict) -> bool:
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())


STUCK = (
    "CrashLoopBackOff",
    "RunContainerError",
    "CreateContainerError",
    "CreateContainerConfigError",
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
)


def trouble_of(status: dict) -> str:
    """Why a Pod does not run, in Kubernetes' word for it; empty where nothing is wrong."""
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        reason = ((container.get("state") or {}).get("waiting") or {}).get("reason")
        if reason in STUCK:
            return reason
    unschedulable = any(c.get("reason") == "Unschedulable" for c in status.get("conditions") or ())
    return "Unschedulable" if unschedulable else ""


APPS = ("apps", "extensions")  # other API groups have kinds of the same names, such as OpenKruise's


BARE = "bare Pod without a controller; restart it by hand"


def serving_endpoints(piece: dict) -> Iterator[tuple[str, str]]:
    """The Pods of an EndpointSlice that are ready or serving; saying nothing about being ready means that it is."""
    for endpoint in piece.get("endpoints") or ():
        target, conditions = endpoint.get("targetRef") or {}, endpoint.get("conditions") or {}
        serves = conditions.get("ready") is not False or conditions.get("serving")
        if serves and target.get("kind") == "Pod":
            yield target.get("namespace") or piece["metadata"]["namespace"], target["name"]


def reason_to_skip_owner(owner: Owner, kinds: Iterable[str]) -> str | None:
    """Why Pods of this owner cannot be rolled out; None: they can."""
    in_apps = owner.group in APPS
    if owner.kind in KINDS and in_apps:
        flag = f"add --include-{owner.kind.lower()}" if owner.kind != "Deployment" else "drop --exclude-deployment"
        return None if owner.kind in kinds else f"not asked for; {flag}"
    if owner.kind == "ReplicaSet" and in_apps:
        return "its ReplicaSet has no owner, or is gone; restart it by hand"
    return {
        "": BARE,
        "Node": "static Pod; its node's kubelet restarts it when its manifest changes",
        "Job": "Pod of a Job; it ends by itself",
        "ReplicationController": "ReplicationControllers have no rollouts; delete the Pod by hand",
    }.get(owner.kind, f"owned by a {owner.kind} ({owner.group or 'v1'}), which its own controller rolls out")


def reason_to_skip(obj: dict | None, filters: Filters) -> str | None:
    """Why this workload is not restarted, or a patch would not restart it, with the next step; None: it would."""
    if obj is None:
        return "is gone"
    if obj["metadata"].get("deletionTimestamp"):
        return "is being deleted"
    own, templates = obj["metadata"].get("annotations") or {}, template_annotations(obj)
    if has_any(filters.exclude_annotations, own, templates):
        return "has an annotation of --exclude-annotation"
    if filters.include_annotations and not has_any(filters.include_annotations, own, templates):
        return "has no annotation of --include-annotation"
    if obj["spec"].get("paused"):
        return "is paused; resume it first (kubectl rollout resume)"
    if (obj["spec"].get("updateStrategy") or {}).get("type") == "OnDelete":
        return "its updateStrategy is OnDelete; delete its Pods by hand, one after the other"
    return None


def has_any(wanted: Iterable[tuple[str, str]], *annotations: dict[str, str]) -> bool:
    return any(
        key in found and fnmatch.fnmatchcase(found[key], pattern) for key, pattern in wanted for found in annotations
    )


def selects(selector: dict, labels: dict[str, str]) -> bool:
    """Whether a workload's label selector matches a Pod's labels."""
    operators = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, values: key in labels,
        "DoesNotExist": lambda key, values: key not in labels,
    }
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        operators[expression["operator"]](expression["key"], expression.get("values") or ())
        for expression in selector.get("matchExpressions") or ()
    )


def find_workloads(
    candidates: dict[Owner, Candidate], kinds: Iterable[str], owners: dict[Owner, Owner | None]
) -> tuple[dict[Workload, Candidate], list[Skip]]:
    """The candidates by the workload that is to be restarted for them, and those that none is.

    `owners` has the controllers of the ReplicaSets.
    """
    found: dict[Workload, Candidate] = {}
    skips: list[Skip] = []
    for owner, candidate in candidates.items():
        owner = owners.get(owner) or owner
        workload = Workload(owner.kind, owner.namespace, owner.name)
        reason = reason_to_skip_owner(owner, kinds)
        if reason is None and workload in found:
            found[workload].add(candidate)
        elif reason is None:
            found[workload] = candidate
        elif owner.kind in KINDS and owner.group in APPS:
            skips.append(Skip(workload, reason))
        else:
            skips += [Skip(Workload("Pod", owner.namespace, name), reason) for name in candidate.names]
    return found, list(dict.fromkeys(skips))


def make_plan(
    found: dict[Workload, Candidate],
    objects: dict[Workload, str],
    serving: set[tuple[str, str]] | None,
    filters: Filters,
) -> tuple[list[Planned], list[Skip]]:
    """What is to be rolled out, and the workloads that a patch would not restart or that opted out."""
    plan, skips = [], []
    for workload, candidate in found.items():
        obj = json.loads(objects[workload])
        reason = reason_to_skip(obj, filters)
        if reason is None and not selects(obj["spec"]["selector"], candidate.labels):
            reason = "its selector does not match its Pods; look at both"
        if reason:
            skips.append(Skip(workload, reason))
        else:
            live = serving is None or any((workload.namespace, name) in serving for name in candidate.names)
            plan.append(planned(workload, candidate, obj, live))
    return in_order(plan), skips


def planned(workload: Workload, candidate: Candidate, obj: dict, live: bool) -> Planned:
    kind, concerned_pods = KINDS[workload.kind], len(candidate.names)
    count = partial(counted, obj)
    wanted, available = count(kind.wanted), count(kind.available)
    trouble = candidate.trouble or (f"{available} of {wanted} available" if available < wanted else "")
    return Planned(
        workload,
        concerned_pods,
        max(count(kind.existing), concerned_pods),
        candidate.ready,
        tuple(sorted(candidate.sidecars)),
        candidate.oldest,
        State.UNHEALTHY if trouble else State.LIVE if live else State.IDLE,
        trouble,
        obj["metadata"].get("resourceVersion") or "",
    )


def in_order(plan: Iterable[Planned]) -> list[Planned]:
    """Least to lose first: by state, fewer Pods first, then namespaces in turns, so that no team is hit all at once."""
    states = list(State)
    ordered = []
    turns: Counter[tuple] = Counter()
    for one in sorted(plan, key=lambda one: (one.workload.namespace, one.workload.kind, one.workload.name)):
        rank = (states.index(one.state), one.pods)
        turn = turns[rank, one.workload.namespace]
        turns[rank, one.workload.namespace] += 1
        ordered.append(((*rank, turn, one.workload.namespace, one.workload.kind, one.workload.name), one))
    return [one for _, one in sorted(ordered, key=lambda pair: pair[0])]


def counted(obj: dict, path: str) -> int:
    """A count in an object; the API server leaves out those that are 0."""
    part, name = path.split(".")
    return (obj.get(part) or {}).get(name) or 0


MANY = 50  # workloads: from then on lists cost less than one request each


class Reading:
    """The workloads of the candidates: in lists where there are many, one by one where there are few.

    They are kept as JSON text, which takes a tenth of the memory: 3 MB for 10,000 Deployments.
    """

    def __init__(self, cluster: Cluster, namespaces: Sequence[str], with_templates: bool) -> None:
        self.cluster, self.namespaces, self.with_templates = cluster, namespaces, with_templates
        self.objects: dict[Workload, str] = {}
        self.listed: set[str] = set()
        # (name, selector) by namespace and one of the selector's labels; tuples, as 10,000 dicts take 1 MB more
        self.deployments: dict[tuple, tuple[tuple[str, str], ...]] = {}

    def owners_of_replica_sets(
        self, candidates: dict[Owner, Candidate], kinds: Iterable[str]
    ) -> dict[Owner, Owner | None]:
        """The ReplicaSets among the owners, each with its controller; None where it has none."""
        replica_sets = [owner for owner in candidates if owner.kind == "ReplicaSet" and owner.group in APPS]
        if "Deployment" not in kinds:  # they are left out: their names are enough, and no right is needed
            named = {owner: name_by_hash(owner, candidates[owner].labels) for owner in replica_sets}
            return {
                rs: Owner("apps", "Deployment", rs.namespace, name) for rs, name in named.items() if name != rs.name
            }
        if len(replica_sets) > MANY:
            names = {(owner, name_by_hash(owner, candidates[owner].labels)) for owner in replica_sets}
            self.read("Deployment", {Workload("Deployment", owner.namespace, name) for owner, name in names})
        found = {owner: self.owner_by_hash(owner, candidates[owner].labels) for owner in replica_sets}
        rest = [owner for owner in replica_sets if found[owner] is None]
        return found | each(rest, self.cluster.controller_of_replica_set)

    def owner_by_hash(self, owner: Owner, labels: dict[str, str]) -> Owner | None:
        """The Deployment of a ReplicaSet, from the lists; None where that is not certain.

        A ReplicaSet is called <deployment>-<hash>. An adopted or copied one may be called anything, so this is believed
        only if that Deployment selects the Pods, and no other does.
        """
        name = name_by_hash(owner, labels)
        near = [self.deployments.get((owner.namespace, *pair), ()) for pair in [*labels.items(), (None, None)]]
        selecting = [other for some in near for other, selector in some if selects(json.loads(selector), labels)]
        return Owner("apps", "Deployment", owner.namespace, name) if selecting == [name] != [owner.name] else None

    def workloads(self, found: Iterable[Workload]) -> dict[Workload, str]:
        """Each workload as it is, as JSON; null where there is none."""
        wanted = list(found)
        for kind, count in Counter(workload.kind for workload in wanted).items():
            if count > MANY and kind not in self.listed:
                self.read(kind, set(wanted))
        rest = [workload for workload in wanted if workload not in self.objects]
        self.objects |= each(rest, lambda workload: json.dumps(self.cluster.workload(workload)))
        return {workload: self.objects[workload] for workload in wanted}

    def read(self, kind: str, wanted: set[Workload]) -> None:
        try:
            self.cluster.read_list(lambda: self.take(kind, wanted))
            self.listed.add(kind)
        except ApiError as error:
            if error.status != 403:  # without the right to list they are read one by one
                raise
            self.deployments.clear()

    def take(self, kind: str, wanted: set[Workload]) -> None:
        self.deployments = {} if kind == "Deployment" else self.deployments  # the list may have expired half-way
        for workload, obj in self.cluster.workloads(kind, self.namespaces):
            if workload in wanted:
                self.objects[workload] = json.dumps(lean(obj, self.with_templates))
            if kind == "Deployment":
                selector = obj["spec"]["selector"]
                label, value = next(iter((selector.get("matchLabels") or {}).items()), (None, None))
                key = (workload.namespace, label and sys.intern(label), value)
                self.deployments[key] = (*self.deployments.get(key, ()), (workload.name, json.dumps(selector)))


def name_by_hash(owner: Owner, labels: dict[str, str]) -> str:
    """What the Deployment of a ReplicaSet is called if it was that which created it."""
    return owner.name.removesuffix("-" + labels.get("pod-template-hash", "\0"))


METADATA = ("deletionTimestamp", "resourceVersion")
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # the workload once more


def lean(obj: dict, with_template: bool) -> dict:
    """A workload without what the plan does not need."""
    metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    template = spec["template"]
    if not with_template:
        template = {"metadata": {"annotations": (template.get("metadata") or {}).get("annotations")}}
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != LAST_APPLIED}
    counts = {path.split(".")[1] for kind in KINDS.values() for path in kind[1:]}
    fields = ("selector", "replicas", "paused", "updateStrategy", "serviceName", "volumeClaimTemplates")
    return {
        "metadata": {**{key: metadata[key] for key in METADATA if key in metadata}, "annotations": annotations},
        "spec": {**{key: spec[key] for key in fields if key in spec}, "template": template},
        "status": {key: status[key] for key in counts & status.keys()},
    }


def leave_out_namespaces(
    found: dict[Workload, Candidate], filters: Filters, cluster: Cluster
) -> tuple[dict[Workload, Candidate], list[Skip]]:
    """Leaves out the workloads of namespaces that have opted out; namespaces are read only where that is asked for."""
    if not filters.exclude_annotations:
        return found, []
    namespaces = each({workload.namespace for workload in found}, cluster.annotations_of_namespace)
    out = {name for name, own in namespaces.items() if has_any(filters.exclude_annotations, own)}
    reason = "its namespace has an annotation of --exclude-annotation"
    skips = [Skip(workload, reason) for workload in sorted(found) if workload.namespace in out]
    return {workload: one for workload, one in found.items() if workload.namespace not in out}, skips


def first_of(plan: list[Planned], limit: Amount | None) -> list[Planned]:
    """The first of the plan: a percentage is rounded up."""
    return plan if limit is None else plan[: math.ceil(limit.of(len(plan)))]


# Comparing: what a workload's Pods would be like if they were created now

CONTROLLER_LABELS = (
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "apps.kubernetes.io/pod-index",
    "statefulset.kubernetes.io/pod-name",
)
TOKEN_VOLUME = re.compile(r"(kube-api-access)-[a-z0-9]{5}")  # a name of its own in each Pod
SECRET_NAMES = re.compile(r"pass(word|wd|phrase)?|secret|token|credential|api_?key|private", re.IGNORECASE)
HIDDEN = "(hidden)"
REFERENCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")


def live_pod(pod: dict, names: Sequence[str]) -> LivePod:
    created = parse_time(pod["metadata"]["creationTimestamp"])
    return LivePod(pod["metadata"]["name"], created, view_of(pod, names), resized_in_place(pod))


def resized_in_place(pod: dict) -> tuple[str, ...]:
    """The containers whose resources somebody, or an autoscaler, has changed: `k:{"name":"app"}` in managedFields."""
    found = set()
    for entry in pod["metadata"].get("managedFields") or ():
        if entry.get("subresource") == "resize":
            fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
            keys = {**(fields.get("f:containers") or {}), **(fields.get("f:initContainers") or {})}
            found |= {json.loads(key[2:])["name"] for key in keys if key.startswith("k:")}
    return tuple(sorted(found))


def pod_to_create(workload: Workload, obj: dict, sample: dict) -> dict:
    """The Pod that the workload's controller would create from its template now.

    Injectors read more than the template: Istio takes the workload's name from generateName, the controller reference
    and pod-template-hash. These come from a live Pod; all else of that is left alone, as an injector skips a Pod that
    has its sidecar already. A StatefulSet's controller adds the volumes of its claims.
    """
    template, live = obj["spec"]["template"], sample["metadata"]
    own = template.get("metadata") or {}
    metadata = {key: own[key] for key in ("labels", "annotations", "finalizers") if key in own}  # no name, no namespace
    labels = {key: value for key, value in (live.get("labels") or {}).items() if key in CONTROLLER_LABELS}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["generateName"] = live.get("generateName") or f"{workload.name}-"
    references = [dict(reference) for reference in live.get("ownerReferences") or () if reference.get("controller")]
    for reference in references:
        reference.pop("blockOwnerDeletion", None)
    metadata["ownerReferences"] = references
    spec = {key: value for key, value in template["spec"].items() if key != "nodeName"}
    if workload.kind == "StatefulSet":
        claims = [claim["metadata"]["name"] for claim in obj["spec"].get("volumeClaimTemplates") or ()]
        volumes = [v for v in spec.get("volumes") or () if v["name"] not in claims]
        spec["volumes"] = volumes + [
            {"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{live['name']}"}} for name in claims
        ]
        spec |= {"hostname": live["name"], "subdomain": obj["spec"].get("serviceName") or ""}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def named_containers(pod: dict, names: Sequence[str]) -> Iterator[tuple[str, dict]]:
    """The named sidecars of a Pod, each with where it stands."""
    return ((position, c) for position, c in running_along(pod["spec"]) if matches(c["name"], names))


def view_of(pod: dict, names: Sequence[str]) -> str:
    """The named sidecars of a Pod, with the volumes they mount, in their normal form: equal if nothing differs."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    found = {}
    for position, container in named_containers(pod, names):
        mounted = {mount["name"] for mount in container.get("volumeMounts") or ()}
        used = [volumes[name] for name in sorted(mounted & volumes.keys()) if not TOKEN_VOLUME.fullmatch(name)]
        found[container["name"]] = [position, container, used]
    return normal_form(TOKEN_VOLUME.sub(r"\1", json.dumps(found)))


@functools.lru_cache(maxsize=4096)
def normal_form(text: str) -> str:
    """view_of's JSON, normalised. Cached, as the Pods of a workload differ in little but their name."""
    found = {name: normal_container(*parts) for name, parts in json.loads(text).items()}
    return json.dumps(found, sort_keys=True)


def normal_container(position: str, container: dict, volumes: list[dict]) -> dict:
    """A container in which lists that Kubernetes reads by key are dicts, and what means the same is the same."""
    known = ("name", "restartPolicy", "env", "ports", "volumeMounts", "resources")
    form = pruned({key: value for key, value in container.items() if key not in known})
    form |= {key: with_secrets_behind(form[key]) for key in ("command", "args") if key in form}
    form["position"] = position
    form["resources"] = normal_resources(container.get("resources") or {})
    form["env"] = {variable["name"]: normal_variable(variable) for variable in container.get("env") or ()}
    form["ports"] = {
        f"{port['containerPort']}/{port.get('protocol') or 'TCP'}": pruned({**port, "protocol": None})
        for port in container.get("ports") or ()
    }
    form["volumeMounts"] = {mount["mountPath"]: pruned(mount) for mount in container.get("volumeMounts") or ()}
    form["volumes"] = {volume["name"]: normal_volume(volume) for volume in volumes}
    return form


def with_secrets_behind(words: list[str]) -> list[str]:
    """A command line on which `--password x` is one word, `--password=x`, as its value is to be masked."""
    found: list[str] = []
    for word in words:
        flag = found[-1] if found else ""
        if flag.startswith("-") and "=" not in flag and SECRET_NAMES.search(flag) and not word.startswith("-"):
            found[-1] = f"{flag}={word}"
        else:
            found.append(word)
    return found


def pruned(value: Any) -> Any:
    """Without what says nothing: the API server leaves out empty fields in one place and not in another."""
    if isinstance(value, list):
        return [pruned(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {key: pruned(item) for key, item in value.items()}
    return {key: item for key, item in inner.items() if item not in (None, {}, [], "")}


def normal_resources(resources: dict) -> dict:
    form = pruned({key: value for key, value in resources.items() if key not in ("limits", "requests")})
    for kind in ("limits", "requests"):
        form[kind] = {name: quantity(amount) for name, amount in (resources.get(kind) or {}).items()}
    return form


@functools.lru_cache(maxsize=1024)  # the same few in each container, 20 microseconds each
def quantity(amount: Any) -> str:
    """A Kubernetes quantity, spelled the one way that kubectl would choose: 1000m is 1, 1024Mi is 1Gi."""
    from decimal import Decimal

    found = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(|[numkMGTPE]|[KMGTPE]i)", str(amount))
    try:
        number, unit = Decimal(found[1]), found[2]
    except (TypeError, ArithmeticError):
        return str(amount)
    decimal = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
    value = number * (Decimal(10) ** decimal[unit] if unit in decimal else Decimal(1024) ** " KMGTPE".index(unit[0]))
    if value != value.to_integral_value():
        return f"{(value * 1000).normalize():f}m"
    whole = int(value)
    for power, suffix in ((6, "Ei"), (5, "Pi"), (4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if whole and whole % 1024**power == 0:
            return f"{whole // 1024**power}{suffix}"
    return str(whole)


def normal_variable(variable: dict) -> Any:
    """An environment variable's value: text, JSON where the text is some, or where it comes from."""
    if variable.get("valueFrom"):
        source = json.loads(json.dumps(variable["valueFrom"]))
        for reference in source.values():
            if reference.get("apiVersion") == "v1":
                del reference["apiVersion"]
            if "divisor" in reference:
                reference["divisor"] = quantity(reference["divisor"])
                if reference["divisor"] in ("0", "1"):  # 0 is the default, and means 1
                    del reference["divisor"]
        return {"from": pruned(source)}
    text = variable.get("value") or ""
    if text.strip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


def normal_volume(volume: dict) -> dict:
    """A volume's definition. The claim of a StatefulSet's Pod has the Pod's name in its own."""
    form = pruned({key: value for key, value in volume.items() if key != "name"})
    claim = (volume.get("persistentVolumeClaim") or {}).get("claimName") or ""
    if claim.startswith(f"{volume['name']}-"):
        form["persistentVolumeClaim"]["claimName"] = f"{volume['name']}-(Pod)"
    return form


def differences(live: Any, fresh: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Where two normal forms differ, as deep down as it can be said."""
    if live == fresh and type(live) is type(fresh):
        return
    if isinstance(live, dict) and isinstance(fresh, dict):
        for key in sorted({**live, **fresh}):
            yield from differences(live.get(key), fresh.get(key), (*path, key))
    elif isinstance(live, list) and isinstance(fresh, list):
        for one, other in list_differences(live, fresh):
            yield Difference(path, hidden(one, path), hidden(other, path))
    else:
        yield Difference(path, hidden(live, path), hidden(fresh, path))


def list_differences(live: list, fresh: list) -> Iterator[tuple[Any, Any]]:
    """What is only on one side, items of one flag (--level=info) in pairs; the lists if only their order differs."""

    def flag(item: Any) -> str:
        return item.partition("=")[0] if isinstance(item, str) and item.startswith("-") else json.dumps(item)

    gone = [item for item in live if item not in fresh]
    come = [item for item in fresh if item not in live]
    if not gone and not come:
        yield live, fresh
    for item in gone:
        other = next((other for other in come if flag(other) == flag(item)), None)
        if other is not None:
            come.remove(other)
        yield item, other
    for item in come:
        yield None, item


def hidden(value: Any, path: Sequence[str]) -> Any:
    """The value, with what looks like a secret masked. References to Secrets are no secrets."""
    if isinstance(value, dict):
        return {key: hidden(inner, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [hidden(item, path) for item in value]
    name, equals, _ = value.partition("=") if isinstance(value, str) else ("", "", "")
    if equals and path[1:2] in (("args",), ("command",)) and SECRET_NAMES.search(name):
        return f"{name}={HIDDEN}"
    is_reference = len(path) > 4 and path[3] == "from" and path[4] in REFERENCES
    is_secret = path[1:2] == ("env",) and not is_reference and any(map(SECRET_NAMES.search, path[2:]))
    return HIDDEN if is_secret and value not in (None, "") else value


def also_changes(live: dict, fresh: dict, names: Sequence[str]) -> tuple[str, ...]:
    """What else would be different in the Pod, by name; what is only in the live Pod's annotations came later."""

    def parts(pod: dict) -> dict[str, str]:
        spec, mounted = pod["spec"], set()
        for _, container in named_containers(pod, names):
            mounted |= {mount["name"] for mount in container.get("volumeMounts") or ()}
        found = {}
        for word, key in (("init container", "initContainers"), ("container", "containers")):
            others = [container for container in spec.get(key) or () if not matches(container["name"], names)]
            found |= {f"{word} {c['name']}": normal_container(key, c, []) for c in others}
        volumes = [v for v in spec.get("volumes") or () if v["name"] not in mounted]
        found |= {f"volume {v['name']}": normal_volume(v) for v in volumes if not TOKEN_VOLUME.fullmatch(v["name"])}
        return {name: TOKEN_VOLUME.sub(r"\1", json.dumps(part, sort_keys=True)) for name, part in found.items()}

    before, after = parts(live), parts(fresh)
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    old, new = ((pod["metadata"].get("annotations") or {}) for pod in (live, fresh))
    changed += [f"annotation {name}" for name, value in new.items() if old.get(name) != value]
    return tuple(sorted(changed))


CONFIG_SOURCES = {
    **dict.fromkeys(("configMapKeyRef", "configMapRef", "configMap"), "configmap"),
    **dict.fromkeys(("secretKeyRef", "secretRef", "secret"), "secret"),
}


def configs_of(pod: dict, namespace: str, names: Sequence[str]) -> dict[Config, bool]:
    """The ConfigMaps and Secrets that the named sidecars use, and whether they cannot start without."""
    found: dict[Config, bool] = {}
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    for _, container in named_containers(pod, names):
        sources = [variable.get("valueFrom") or {} for variable in container.get("env") or ()]
        sources += container.get("envFrom") or []
        for mount in container.get("volumeMounts") or ():
            volume = volumes.get(mount["name"], {})
            sources += [volume, *((volume.get("projected") or {}).get("sources") or ())]
        for source in sources:
            for key in CONFIG_SOURCES.keys() & source.keys():
                reference = source[key] or {}
                name = reference.get("name") or reference.get("secretName")
                if name:
                    config = Config(CONFIG_SOURCES[key], namespace, name)
                    found[config] = found.get(config, False) or not reference.get("optional")
    return found


AT_A_TIME = 16  # dry-run creations: 0.84 of the wall time that 8 take, and more do not help


@dataclass(frozen=True)
class Injection:
    """Asks the API server what it would create today."""

    cluster: Cluster
    names: tuple[str, ...]
    ignored_configs: tuple[str, ...]

    def judge_all(
        self, plan: list[Planned], found: dict[Workload, Candidate], objects: dict[Workload, str]
    ) -> list[Planned]:
        """The plan with a Drift for each: one dry-run creation a workload, and one look at each ConfigMap or Secret.

        CannotStart where the right to create Pods is missing altogether.
        """

        def ask(one: Planned) -> Fresh | ApiError:
            sample = json.loads(found[one.workload].sample)
            return self.ask(one.workload, json.loads(objects[one.workload]), sample)

        by_workload = {one.workload: one for one in plan}
        answers = each(by_workload, lambda workload: ask(by_workload[workload]), AT_A_TIME)
        lacking = [error for error in answers.values() if isinstance(error, ApiError) and lacks_right(error)]
        if lacking and len(lacking) == len(answers):
            raise CannotStart(f"missing right: create pods, for dry runs of what would be injected: {lacking[0]}")
        configs = {config for fresh in answers.values() if isinstance(fresh, Fresh) for config in fresh.configs}
        changed = each(sorted(configs), self.cluster.changed_at, AT_A_TIME)
        return [
            replace(one, drift=drift, pods_concerned=drift.pods or one.pods_concerned)
            for one in plan
            for drift in [judge(found[one.workload].pods, answers[one.workload], changed)]
        ]

    def ask(self, workload: Workload, obj: dict, sample: dict) -> Fresh | ApiError:
        try:
            pod = self.cluster.would_create(workload.namespace, pod_to_create(workload, obj, sample))
            configs = configs_of(pod, workload.namespace, self.names)
            return Fresh(
                view_of(pod, self.names),
                {config: required for config, required in configs.items() if not self.is_ignored(config)},
                also_changes(sample, pod, self.names),
            )
        except ApiError as error:
            return error
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            return ApiError(200, f"expected a Pod from the dry run, got something else: {error!r}")

    def is_ignored(self, config: Config) -> bool:
        return config.name == "kube-root-ca.crt" or matches(config.name, self.ignored_configs)

    def remaining(self, planned: Planned, pods: Iterable[dict]) -> list[Difference]:
        """How some of a workload's Pods differ from what was found to be injected today."""
        lives = [live_pod(pod, self.names) for pod in pods]
        return compare(lives, planned.drift.view, planned.drift.changed)[1]


ENDING = "because it is being terminated"  # of a namespace, in a dry run's refusal


def lacks_right(error: ApiError) -> bool:
    return error.status == 403 and 'cannot create resource "pods"' in str(error)


def sidecar_differences(live: str, fresh: str, resized: Sequence[str]) -> Iterator[Difference]:
    """What differs between two views. Resources that were changed in place are meant to differ."""
    if live == fresh:
        return
    for difference in differences(json.loads(live), json.loads(fresh)):
        if not (difference.path[0] in resized and difference.path[1:2] == ("resources",)):
            yield difference


def compare(pods: Iterable[LivePod], view: str, changed: dict[Config, datetime]) -> tuple[set[str], list[Difference]]:
    """The names of the Pods that differ from today's sidecars or are older than their configuration, and in what."""
    drifted: set[str] = set()
    found: dict[str, Difference] = {}
    by_view: dict[tuple[str, tuple[str, ...]], list[LivePod]] = {}
    for pod in pods:
        by_view.setdefault((pod.view, pod.resized), []).append(pod)
    for (live, resized), same in sorted(by_view.items()):
        for difference in sidecar_differences(live, view, resized):
            found[json.dumps(difference)] = difference
            drifted |= {pod.name for pod in same}
    for config, moment in sorted(changed.items()):
        older = [pod for same in by_view.values() for pod in same if pod.created < moment]
        if older:
            age = human_duration((moment - min(pod.created for pod in older)).total_seconds())
            found[str(config)] = Difference((str(config),), None, f"changed {age} after the Pod was created")
            drifted |= {pod.name for pod in older}
    return drifted, list(found.values())


def judge(pods: Sequence[LivePod], answer: Fresh | ApiError, changed: dict[Config, datetime | ApiError]) -> Drift:
    """The verdict on a workload from its Pods, what would be created today, and when its configuration changed."""
    if isinstance(answer, ApiError):
        return Drift(verdict_on(answer), str(answer))
    moments: dict[Config, datetime] = {}
    for config, required in sorted(answer.configs.items()):
        moment = changed[config]
        if isinstance(moment, datetime):
            moments[config] = moment
        elif moment.status != 404:
            return Drift(Verdict.UNKNOWN, f"{config} could not be looked at: {moment}")
        elif required:
            return Drift(Verdict.REFUSED, f"{config} does not exist, and the sidecar does not start without it")
    drifted, found = compare(pods, answer.view, moments)
    verdict = Verdict.DRIFTED if found else Verdict.UP_TO_DATE
    return Drift(verdict, "", len(drifted), tuple(found), answer.also, answer.view, moments)


def verdict_on(error: ApiError) -> Verdict:
    """What it means that a dry-run creation did not succeed.

    Refused is a Pod that the cluster would not take today. A right that is missing, a webhook that fails, hangs or
    does not support dry runs, and a quota that is used up (a rolling update may free room first) say nothing of it.
    """
    message = str(error)
    if re.search(r"denied (the )?request", message):  # a webhook's own status may be any
        return Verdict.REFUSED
    if "exceeded quota" in message or "does not support dry run" in message or lacks_right(error):
        return Verdict.UNKNOWN
    return Verdict.REFUSED if error.status in (400, 403, 422) else Verdict.UNKNOWN


# Rolling out


KUBECTL_GRACE = 60.0  # seconds beyond its timeout: a network that swallows packets can hold it up


class Kubectl:
    """kubectl, for its judgement whether a rollout succeeded."""

    def __init__(self, path: str, flags: Sequence[str] = ()) -> None:
        self.command = [path, *flags]

    def by_hand(self, workload: Workload) -> str:
        """What to type to see how a rollout ends."""
        import shlex

        what = ["rollout", "status", f"{workload.kind.lower()}/{workload.name}", "--namespace", workload.namespace]
        return shlex.join(["kubectl", *self.command[1:], *what])

    def rollout_status(self, planned: Planned, seconds: float, tell: Callable[[Event], None]) -> tuple[int, str]:
        """Waits for a rollout; kubectl's exit code and its last line, which says why where that is not 0.

        Its lines are told as they come. One that outlives its own timeout is killed.
        """
        import subprocess

        workload, last = planned.workload, ""
        child = subprocess.Popen(
            [*self.command, "rollout", "status", f"{KINDS[workload.kind].plural}/{workload.name}"]
            + ["--namespace", workload.namespace, "--timeout", f"{seconds:.3f}s"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"GOMAXPROCS": "1", **os.environ},  # 0.88 of the wall time with 10 at a time
            start_new_session=True,  # Ctrl-C is for this program, which decides what becomes of its children
        )
        deadline = time.monotonic() + seconds + KUBECTL_GRACE
        try:
            tell(Event(planned, child=child))
            for line in lines_of(child, deadline):
                if line and line != last:  # it says the same again with each change of the object
                    tell(Event(planned, line=line))
                    last = line
            code = child.wait(max(deadline - time.monotonic(), 0.1))
        except Abandoned:
            end(child)
            raise
        except subprocess.TimeoutExpired:
            end(child)
            child.wait()
            return 1, "kubectl did not come back after its timeout"
        finally:
            child.stdout.close()
        return code, last if code > 0 else f"kubectl was ended by signal {-code}" if code else ""


def lines_of(child: Any, deadline: float) -> Iterator[str]:
    """What a process prints, line by line, until it has ended, or until a moment of the monotonic clock."""
    import select

    poll = select.poll()
    poll.register(child.stdout, select.POLLIN)
    rest = b""
    while time.monotonic() < deadline:
        has_ended = child.poll() is not None
        if poll.poll(0 if has_ended else 1000):
            data = os.read(child.stdout.fileno(), 65536)
            *lines, rest = (rest + data).split(b"\n")
            yield from (line.decode("utf-8", "replace").strip() for line in lines)
            if not data:
                break
        elif has_ended:  # what holds the pipe open is something that it has left behind
            break
    yield rest.decode("utf-8", "replace").strip()


JUDGEMENTS = re.compile(
    "timed out waiting|exceeded its progress deadline|has been deleted|NotFound|Forbidden|only available for"
    "|did not come back|is different from the running revision"
)  # of kubectl rollout status about a rollout; what else it says is about its own trouble
OUTAGE = re.compile(
    "refused|connection reset|connection lost|closed network connection|EOF|dial tcp|no such host|timeout|timed out"
    "|deadline exceeded|unreachable|ServiceUnavailable|TooManyRequests|unable to handle the request|etcdserver"
)


def is_outage(error: str) -> bool:
    """Whether kubectl failed as the API server is away, or so busy that it might as well be: that passes."""
    return bool(OUTAGE.search(error)) and not JUDGEMENTS.search(error)


class Brake:
    """What keeps workers from starting something new: a signal, failures, a lost API server, `quit`, or a pause."""

    def __init__(self, interrupts: "Interrupts", max_failures: int | None) -> None:
        self.began = interrupts.began
        self.interrupts, self.max_failures = interrupts, max_failures
        self.failures: list[Workload] = []  # appended by the worker that saw it, before it asks for more
        self.has_quit = False
        self.lost = ""  # why the API server is of no use any more; nothing else could be rolled out either
        self.ask = False  # with --confirm-each, until somebody answers "all"
        self.logged = False, ""  # whether it was paused, and the reason to stop

    @property
    def is_paused(self) -> bool:
        return not self.interrupts.goes_on.is_set()

    def log(self, in_flight: int) -> None:
        """Logs, once each, what keeps new rollouts from starting."""
        paused, reason = self.is_paused, self.reason_to_stop()
        if paused != self.logged[0]:
            how = {"go_on": f"kill -USR2 {os.getpid()}"} if paused else {}
            log.warning("paused: nothing new starts" if paused else "going on", extra=how)
        if reason and not self.logged[1]:
            again = "; again to stop waiting" if reason == "interrupted" else ""
            log.warning(f"{reason}: nothing new starts{again}", extra={"in_flight": in_flight})
        self.logged = paused, reason or self.logged[1]

    def may_start(self) -> bool:
        """Waits while paused; False once nothing new may start."""
        while not self.interrupts.goes_on.wait(0.5) and not self.reason_to_stop():
            pass
        return not self.reason_to_stop()

    def reason_to_stop(self) -> str:
        if self.interrupts.received:
            return "interrupted"
        if self.lost:
            return self.lost
        if self.has_quit:
            return "quit"
        spent = self.max_failures is not None and len(self.failures) >= self.max_failures
        return plural(len(self.failures), "failure") if spent else ""


@dataclass(frozen=True)
class Rollout:
    """How each workload is rolled out; called by a worker with one of the plan."""

    cluster: Cluster
    kubectl: Kubectl
    filters: Filters
    timeout: float
    annotation_prefix: str
    reason: str
    brake: Brake
    injection: Injection | None = None  # with --only-drifted

    def __call__(self, planned: Planned, tell: Callable[[Event], None]) -> None:
        if self.brake.ask and not self.is_wanted(planned, tell):
            return
        tell(Event(planned))
        began = time.monotonic()
        try:
            result = self.roll_out(planned, tell)
        except Exception as error:
            log.debug("rollout broke off", exc_info=True, extra={"workload": str(planned.workload)})
            result = Result(planned, Outcome.FAILED, message=str(error) or repr(error))
            if isinstance(error, ApiError) and error.status in (0, 401):
                self.brake.lost = str(error)
        result = replace(result, seconds=round(time.monotonic() - began, 1))
        if result.outcome in BAD and planned.trouble:
            result = replace(result, message=f"{result.message} (was failing before: {planned.trouble})")
        elif result.outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
            self.brake.failures.append(planned.workload)
        tell(Event(planned, result=result))

    def is_wanted(self, planned: Planned, tell: Callable[[Event], None]) -> bool:
        """Asks, by way of the main thread; a no is told as the result."""
        answer: queue.SimpleQueue = queue.SimpleQueue()
        tell(Event(planned, question=answer))
        outcome = answer.get()
        if outcome:
            tell(Event(planned, result=Result(planned, outcome, message=self.brake.reason_to_stop())))
        return outcome is None

    def roll_out(self, planned: Planned, tell: Callable[[Event], None]) -> Result:
        patched = self.patch(planned, tell)
        if isinstance(patched, str):
            return Result(planned, Outcome.SKIPPED, message=patched)
        code, error = self.wait(planned, tell)
        if code == 0:
            return self.prove(planned, patched)
        if is_outage(error):  # there is nobody to ask
            return Result(planned, Outcome.TIMED_OUT, message=error, patched=patched)
        try:
            tally, told = self.look_at_pods(planned, patched).tally, self.told_by_kubernetes(planned)
        except ApiError:
            tally, told = None, ""  # what kubectl said is told anyway
        message = "; ".join(filter(None, (error or f"kubectl exited with {code}", told)))
        outcome = Outcome.TIMED_OUT if "timed out waiting for the condition" in error else Outcome.FAILED
        return Result(planned, outcome, message=message, patched=patched, tally=tally)

    def patch(self, planned: Planned, tell: Callable[[Event], None]) -> Patched | str:
        """Patches the workload as it is now, or says why not.

        The patch is for the very version that was judged: where somebody was quicker, the new one is judged. So two
        runs at once do not restart a workload twice, and a patch whose answer was lost is recognised.
        """
        stamp = datetime.now(timezone.utc).isoformat(timespec="microseconds")  # two runs never have the same
        annotations = {"timestamp": stamp, "reason": self.reason}
        if self.injection:
            annotations["revision"] = planned.drift.revision
        keys = {f"{self.annotation_prefix}.rollout.{name}": value for name, value in annotations.items()}
        for _ in range(CONFLICTS):
            obj = self.cluster.workload(planned.workload)
            if obj and stamp in template_annotations(obj).values():
                return patched_as(obj, stamp)
            reason = self.reason_to_leave(planned, obj)
            if reason:
                return reason
            tell(Event(planned))  # raises where nobody waits any more
            try:
                version = obj["metadata"].get("resourceVersion")
                return patched_as(self.cluster.patch_template(planned.workload, keys, version), stamp)
            except ApiError as error:
                if error.status == 404 and not self.cluster.workload(planned.workload):
                    return "is gone"
                if error.status != 409:
                    raise
        return "others keep changing it; it was not patched"

    def reason_to_leave(self, planned: Planned, obj: dict | None) -> str | None:
        """Why the workload is not, or no longer, to be restarted."""
        reason = reason_to_skip(obj, self.filters)
        if reason:
            return reason
        # Nothing has changed since the plan? A Pod that is replaced changes its workload's status.
        unchanged = bool(planned.version) and obj["metadata"].get("resourceVersion") == planned.version
        if unchanged and not self.injection:
            return None
        stamps = [value for key, value in template_annotations(obj).items() if key.endswith(".rollout.timestamp")]
        younger = [stamp for stamp in stamps if is_younger(stamp, self.brake.began)]
        if younger and not unchanged:
            return f"another run has restarted it meanwhile, at {max(younger)}"
        pods = self.with_sidecar(self.pods_of(planned, obj))
        if not pods:
            return "none of its Pods has the sidecar any more"
        pods = [pod for pod in pods if started_at(pod) < self.filters.started_before]
        if not pods:
            return "its Pods are all newer than the cut-off"
        return "is up to date meanwhile" if self.injection and not self.injection.remaining(planned, pods) else None

    def wait(self, planned: Planned, tell: Callable[[Event], None]) -> tuple[int, str]:
        """kubectl's judgement. Where it ends without one (killed, a connection that breaks), it is run again.

        An API server that is away is waited for as long as the rollout itself.
        """
        deadline = time.monotonic() + self.timeout
        for attempt in itertools.count(1):
            left = deadline - time.monotonic()
            code, error = self.kubectl.rollout_status(planned, max(left, 1.0), tell)
            if code == 0 or JUDGEMENTS.search(error) or left <= 1 or (attempt >= ATTEMPTS and not is_outage(error)):
                break
            log.debug("kubectl ended without a judgement", extra={"workload": str(planned.workload), "code": code})
            time.sleep(pause(attempt))
            tell(Event(planned))  # raises where nobody waits any more
        return code, error

    def pods_of(self, planned: Planned, obj: dict) -> list[dict]:
        """The workload's own Pods as they are now, less those that are ending or have ended."""
        pods = self.cluster.pods_of(planned.workload, obj)
        return [pod for pod in pods if not is_ending(pod) and self.owns(planned.workload, pod)]

    def with_sidecar(self, pods: Iterable[dict]) -> list[dict]:
        return [pod for pod in pods if any(named_containers(pod, self.filters.sidecars))]

    def owns(self, workload: Workload, pod: dict) -> bool:
        """Whether a Pod that the selector selects is the workload's: a Job's or a canary's may have the same labels."""
        owner = controller_of(pod["metadata"])
        if owner and owner.kind == "ReplicaSet" and workload.kind == "Deployment" and owner.group in APPS:
            hash_label = (pod["metadata"].get("labels") or {}).get("pod-template-hash", "\0")
            if owner.name == f"{workload.name}-{hash_label}":
                return True
            owner = self.cluster.controller_of_replica_set(owner)
        return bool(owner) and owner.group in APPS and (owner.kind, owner.name) == (workload.kind, workload.name)

    def look_at_pods(self, planned: Planned, patched: Patched) -> Seen:
        pods = self.pods_of(planned, patched.obj)
        old = self.with_sidecar(pod for pod in pods if is_old(pod, patched))
        new = [pod for pod in pods if not is_old(pod, patched)]
        updated = self.with_sidecar(new)
        ready, ready_before = (sum(is_ready(pod.get("status") or {}) for pod in some) for some in (updated, old))
        return Seen(old, new, Tally(len(old) + len(updated), len(updated), ready + ready_before, ready))

    def prove(self, planned: Planned, patched: Patched) -> Result:
        """What kubectl calls a success, believed only if the Pods do not contradict."""
        try:
            old, new, tally = self.look_at_pods(planned, patched)
            doubts = old or not all(is_of_template(pod, patched.obj) for pod in new)
            told = told_by_managers(self.cluster.workload(planned.workload) or {}, patched) if doubts else ""
        except ApiError as error:
            told = f"its Pods could not be looked at: {error}"
            return Result(planned, Outcome.SUCCEEDED, message=told, patched=patched)
        left = self.injection.remaining(planned, new) if self.injection else []
        bare = len(new) - tally.updated
        without = f"{bare} of {plural(len(new), 'new Pod')} came without the sidecar; is the injector well?"
        outcome = Outcome.SUCCEEDED
        if old:
            outcome, told = Outcome.INCOMPLETE, reason_for_old_pods(patched.obj, len(old), tally.matched, told)
        elif left:
            what = "; ".join(difference_text(difference) for difference in left)
            outcome, told = Outcome.STILL_DRIFTED, without if bare else f"the new Pods differ, too: {what}"
        elif bare and not self.injection:
            outcome, told = Outcome.INCOMPLETE, "; ".join(filter(None, (without, told)))
        return Result(planned, outcome, message=told, patched=patched, tally=tally)

    def told_by_kubernetes(self, planned: Planned) -> str:
        """Why a rollout does not get on, as the workload's own conditions have it; empty where they say nothing."""
        obj = self.cluster.workload(planned.workload)
        conditions = {c["type"]: c for c in (obj or {}).get("status", {}).get("conditions") or ()}
        for kind, status in (("ReplicaFailure", "True"), ("Progressing", "False")):
            condition = conditions.get(kind, {})
            if condition.get("status") == status:
                return condition.get("message", "")
        return ""

    def look_again(self, result: Result, tell: Callable[[Event], None]) -> None:
        """One more look at a rollout that timed out: has it succeeded meanwhile?"""
        try:
            code, _ = self.kubectl.rollout_status(result.planned, 1.0, tell)
            late = self.prove(result.planned, result.patched) if code == 0 else result
        except Exception:
            log.debug("could not look again", exc_info=True, extra={"workload": str(result.planned.workload)})
            late = result  # nothing new is known
        if late.outcome is Outcome.SUCCEEDED:
            late = replace(late, outcome=Outcome.COMPLETED_LATE, message=f"took longer than {self.timeout:g}s")
        tell(Event(result.planned, result=replace(late, seconds=result.seconds)))


CONFLICTS = 20  # a workload's status changes its version as well, several times a rollout


def patched_as(obj: dict, stamp: str) -> Patched:
    edits = edits_of(obj, of_template=True)
    moments = [parse_time(moment) for manager, moment in edits if manager == PROGRAM]
    return Patched(stamp, max(moments, default=parse_time(stamp)), edits, obj)


def is_younger(stamp: str, moment: datetime) -> bool:
    """Whether an annotation's time is after a moment; one that is no time is not."""
    try:
        return parse_time(stamp) >= moment
    except (ValueError, TypeError):
        return False


def is_old(pod: dict, patched: Patched) -> bool:
    """Whether a Pod is from before the patch: it lacks its annotation and was not created later."""
    metadata = pod["metadata"]
    if patched.stamp in (metadata.get("annotations") or {}).values():
        return False
    return parse_time(metadata["creationTimestamp"]) <= patched.moment


RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"


def is_of_template(pod: dict, obj: dict) -> bool:
    """Whether a Pod looks as if it were of a workload's template; if not, somebody may have changed that since."""
    wanted = template_annotations(obj)
    found = pod["metadata"].get("annotations") or {}
    same = all(found.get(key) == wanted.get(key) for key in (*wanted, RESTARTED_AT))
    containers = {container["name"]: container for container in pod["spec"]["containers"]}
    return same and all(
        containers.get(container["name"], {}).get(key) == container.get(key)
        for container in obj["spec"]["template"]["spec"]["containers"]
        for key in ("image", "command", "args", "env")
    )


def edits_of(obj: dict, of_template: bool) -> frozenset[tuple[str, str]]:
    """Who changed a workload or its Pod template last, but not its status or scale: (field manager, time)."""
    return frozenset(
        (entry.get("manager", ""), entry["time"])
        for entry in (obj.get("metadata") or {}).get("managedFields") or ()
        if entry.get("time") and "subresource" not in entry
        if not of_template or "f:template" in (entry.get("fieldsV1") or {}).get("f:spec", {})
    )


def told_by_managers(obj: dict, patched: Patched) -> str:
    """What somebody else did to the Pod template since the patch; empty: nothing."""
    kept = bool(obj) and patched.stamp in template_annotations(obj).values()
    # Who takes a field away owns nothing of the template afterwards: then any edit counts.
    edits = edits_of(obj, of_template=kept) - patched.edits
    since = sorted((moment, manager) for manager, moment in edits if parse_time(moment) >= patched.moment)
    others = [manager for _, manager in since if manager != PROGRAM] or [manager for _, manager in since]
    who = others[-1] if others else "somebody"
    if obj and not kept and not any(manager == PROGRAM for _, manager in since):
        return f"the annotation was taken away by {who}"
    return f"restarted again by {who} meanwhile" if since else ""


def reason_for_old_pods(obj: dict, old: int, total: int, told: str) -> str:
    count = f"{old} of {plural(total, 'Pod')} {'is' if old == 1 else 'are'} still the old one{'' if old == 1 else 's'}"
    rolling = (obj["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    partition = f"partition is {rolling['partition']}" if rolling.get("partition") else ""
    return ": ".join(filter(None, (count, told or partition)))


class Interrupted(BaseException):
    """A signal came before anything was changed. No Exception: the client's own `except Exception` must not eat it."""


class Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP: the first stops new rollouts, the second stops waiting.

    SIGUSR1 pauses, SIGUSR2 goes on.
    """

    def __init__(self) -> None:
        self.began = datetime.now(timezone.utc)
        self.received: list[int] = []
        self.rolling_out = False
        self.asking = False
        self.is_over = False
        self.raised_at = -math.inf
        self.goes_on = threading.Event()
        self.goes_on.set()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup, or a shell's background job, wants it
                signal.signal(number, self.receive)
        signal.signal(signal.SIGUSR1, lambda number, frame: self.goes_on.clear())
        signal.signal(signal.SIGUSR2, lambda number, frame: self.goes_on.set())

    def receive(self, number: int, frame: object) -> None:
        """Counts, and where nothing is in flight raises; a second one at once would hit what ends the program."""
        self.received.append(number)
        interrupts = self.asking or not (self.rolling_out or self.is_over)
        if interrupts and time.monotonic() - self.raised_at > 1:
            self.raised_at = time.monotonic()
            raise Interrupted

    @property
    def exit_code(self) -> int:
        return 128 + self.received[0] if self.received else 0

    def ends_waiting(self) -> bool:
        return len(self.received) > 1


class InFlight:
    """A rollout under way, as the main thread knows it."""

    def __init__(self, planned: Planned) -> None:
        self.planned, self.began = planned, time.monotonic()
        self.child: Any = None  # kubectl's Popen, once it runs


def roll_out_all(plan: list[Planned], rollout: Rollout, threads: int, report: "Report") -> None:
    """Rolls out the plan, some workloads at a time, and reports each result; every one of the plan gets one.

    After the last one those that timed out are looked at once more: they may have succeeded meanwhile.
    """
    brake, interrupts = rollout.brake, rollout.brake.interrupts
    interrupts.rolling_out = True
    not_started = {planned.workload: planned for planned in plan}
    timed_out: dict[Workload, Result] = {}
    for result in results_of(drain(plan, rollout, threads, brake.may_start, interrupts.ends_waiting), rollout, report):
        not_started.pop(result.planned.workload, None)
        if result.outcome is Outcome.TIMED_OUT:
            log.warning("rollout timed out, it may still succeed", extra=facts(result))
            timed_out[result.planned.workload] = result
        else:
            report.finish(result)
    looks = drain(timed_out.values(), rollout.look_again, threads, stop=interrupts.ends_waiting)
    for result in results_of(looks, rollout, report):
        if result.outcome is not Outcome.INTERRUPTED:
            del timed_out[result.planned.workload]
            report.finish(result)
    for result in timed_out.values():
        report.finish(result)
    for planned in not_started.values():
        report.finish(Result(planned, Outcome.NOT_STARTED, message=brake.reason_to_stop()))


def results_of(events: Iterable[Event | None], rollout: Rollout, report: "Report") -> Iterator[Result]:
    """The results among what workers tell, and in the end those of the workloads that are no longer waited for."""
    in_flight: dict[Workload, InFlight] = {}
    for event in events:
        if event is not None and event.question:
            event.question.put(ask(event.planned, rollout.brake, report))
        elif event is not None and event.result:
            in_flight.pop(event.planned.workload, None)
            yield event.result
        elif event is not None:
            one = in_flight.setdefault(event.planned.workload, InFlight(event.planned))
            one.child = event.child or one.child
            if event.line:
                log.info("kubectl", extra={"workload": str(event.planned.workload), "line": event.line})
        rollout.brake.log(len(in_flight))
        report.show_progress(list(in_flight), paused=rollout.brake.is_paused)
    for one in in_flight.values():
        if one.child:
            end(one.child)
        told = f"not waited for; look with: {rollout.kubectl.by_hand(one.planned.workload)}"
        yield Result(one.planned, Outcome.INTERRUPTED, round(time.monotonic() - one.began, 1), told)


def ask(planned: Planned, brake: Brake, report: "Report") -> Outcome | None:
    """Shows a workload and asks whether to roll it out: None is yes, else the outcome that the answer makes."""
    if brake.reason_to_stop():
        return Outcome.NOT_STARTED
    if not brake.ask:
        return None
    report.show_question(planned)
    while True:
        try:
            brake.interrupts.asking = True
            answer = report.answer("roll out? [y]es [n]o [a]ll [q]uit ")
        except Interrupted:
            report.progress.write("\n")
            answer = "quit"
        finally:
            brake.interrupts.asking = False
        if answer in ("y", "yes"):
            return None
        if answer in ("n", "no"):
            return Outcome.DECLINED
        if answer in ("a", "all"):
            brake.ask = False
            return None
        if answer in ("q", "quit", None):
            brake.has_quit = True
            return Outcome.NOT_STARTED


def end(child: Any) -> None:
    """Ends kubectl and whatever it has started: it leads a session of its own."""
    try:
        if child.poll() is None:  # else its number may be another's by now
            os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass  # it has ended already


# Reporting


def facts(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = {"workload": str(result.planned.workload), "seconds": result.seconds}
    return {**found, **({"reason": result.message} if result.message else {})}


def human_duration(seconds: float) -> str:
    """Two units at most, the way kubectl shows ages: 45s, 3m20s, 5h10m, 4d."""
    seconds = max(int(seconds), 0)
    for unit, size, next_unit, next_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // next_size
            return f"{seconds // size}{unit}" + (f"{rest}{next_unit}" if rest and seconds < 10 * size else "")
    return f"{seconds}s"


def image_tag(image: str) -> str:
    """The part of an image that tells its version."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag or digest[:19] or "latest"


def sidecar_text(sidecars: Iterable[Sidecar]) -> str:
    """`istio-proxy 1.26.2, 1.27.0 (native)`: each name once, with its image tags."""
    versions: dict[str, dict[str, None]] = {}
    for sidecar in sidecars:
        version = image_tag(sidecar.image) + (" (native)" if sidecar.native else "")
        versions.setdefault(sidecar.name, {})[version] = None
    return "; ".join(f"{name} {', '.join(found)}" for name, found in versions.items())


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of columns as wide as they need, two spaces apart."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


class Report:
    """Counts, prints to standard output as text or JSON lines, and computes the exit code."""

    def __init__(self, options: argparse.Namespace, progress: ProgressLine, started_before: datetime) -> None:
        self.as_json, self.progress = options.log_format == "json", progress
        self.dry_run, self.fail_on_drift = not options.confirm, options.fail_on_drift
        self.started_before = started_before.strftime("%Y-%m-%dT%H:%M:%SZ")  # whole seconds, as creation times are
        self.began = time.monotonic()
        self.planned: list[Planned] = []
        self.first = 0  # how many of these --max-rollouts leaves
        self.lost_output = False
        self.skips: list[Skip] = []
        self.outcomes: Counter[Outcome] = Counter()
        self.judged: list[Planned] = []  # with --only-drifted: all that were asked about
        self.withheld: list[Planned] = []  # of these, what --confirm leaves alone though it is not up to date
        self.unsuccessful: list[Result] = []
        self.tally: Counter[str] = Counter()
        self.not_seen = 0  # how many were rolled out without their Pods being looked at afterwards

    def record(self, record: str, **fields: Any) -> None:
        if self.as_json:
            self.progress.clear()
            self.write(json.dumps({"record": record, **fields}))
            self.progress.draw()

    def print(self, *lines: str) -> None:
        """Lines of the text; whatever is in one of them, it stays one."""
        if lines and not self.as_json:
            self.write("\n".join(map(printable, lines)))

    def write(self, text: str) -> None:
        try:
            print(text, flush=True)
        except OSError as error:  # the rollouts matter more than the text
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):  # that is | head, which has read enough
                self.lost_output = True
                log.error(f"cannot write to standard output: {error.strerror}")

    def show_drift(self, judged: list[Planned], allow_removal: bool) -> list[Planned]:
        """Each verdict, the drifted grouped by what differs; returns the plan: those that are to be rolled out."""
        self.judged = judged
        for one in judged:
            self.record_drift(one)
        drifted = [one for one in judged if one.drift.verdict is Verdict.DRIFTED]
        self.withheld = [] if allow_removal else [one for one in drifted if one.drift.removed]
        groups: dict[tuple, list[Planned]] = {}
        for one in drifted:
            groups.setdefault(group_of(one.drift), []).append(one)
        for group in sorted(groups.values(), key=len, reverse=True):
            self.show_group(group, withheld=not allow_removal and bool(group[0].drift.removed))
        self.show_verdicts(Verdict.REFUSED, "would not be admitted today, and not come back if a node failed")
        self.show_verdicts(Verdict.UNKNOWN, "could not be asked about")
        return [one for one in drifted if allow_removal or not one.drift.removed]

    def record_drift(self, one: Planned) -> None:
        drift = one.drift
        self.record(
            "drift",
            **one.workload._asdict(),
            verdict=drift.verdict.value,
            differences=[{"path": ".".join(d.path), "live": d.live, "fresh": d.fresh} for d in drift.differences],
            also_changes=list(drift.also),
            message=drift.message,
        )
        facts = {"workload": str(one.workload), **({"reason": drift.message} if drift.message else {})}
        if drift.verdict is Verdict.REFUSED:
            log.error("its Pods would not be admitted today", extra=facts)
        elif "exceeded quota" in drift.message:
            log.warning("the quota leaves no room to ask; a rolling update may free some first", extra=facts)
        for name in drift.removed:
            log.warning("its sidecar would be removed; is the injector well?", extra={**facts, "sidecar": name})

    def show_group(self, group: list[Planned], withheld: bool) -> None:
        drift = group[0].drift
        note = "; left alone without --allow-removal" if withheld else ""
        self.print(f"{plural(len(group), 'workload')} drifted{note}:")
        width = columns(sys.stdout, 120) - 2
        for difference in drift.differences:
            self.print("  " + difference_text(difference, width))
        if drift.also:
            self.print("  " + shortened("also changes: " + ", ".join(drift.also), width))
        self.print(*("    " + line for line in plan_table(group)), "")

    def show_verdicts(self, verdict: Verdict, told: str) -> None:
        found = [one for one in self.judged if one.drift.verdict is verdict]
        if found:
            self.print(f"{plural(len(found), 'workload')} {verdict.value}: {told}:")
            self.print(*(f"  {one.workload}: {one.drift.message}" for one in found), "")

    def show_plan(self, plan: list[Planned], first: int, skips: list[Skip], census: Census) -> None:
        """The plan as a table, or as JSON; below it the skipped by reason and the totals."""
        self.planned, self.first, self.skips = plan, first, sorted(skips, key=lambda skip: skip.subject[1:])
        for skip in self.skips:
            level = logging.INFO if skip.reason == BARE else logging.DEBUG
            log.log(level, "left out", extra={"workload": str(skip.subject), "reason": skip.reason})
        for one in plan:
            self.record(
                "plan",
                **one.workload._asdict(),
                pods_concerned=one.pods_concerned,
                pods=one.pods,
                sidecars=[sidecar._asdict() for sidecar in one.sidecars],
                oldest_pod=one.oldest_pod.isoformat(),
                state=one.state.value,
                unhealthy=one.trouble,
            )
        if plan and not self.judged:
            self.print(*plan_table(plan), "")
        self.show_skips()
        current = "".join(f"; {count} {word}" for word, count in self.left_alone(Verdict.UP_TO_DATE).items())
        newer = f", {census.newer} newer than the cut-off" if census.newer else ""
        pods = sum(one.pods_concerned for one in plan)
        what = f"{plural(len(plan), 'workload')} with {plural(pods, 'Pod')}" if plan else "Nothing"
        canary = f", the first {first} with --max-rollouts" if first < len(plan) else ""
        self.print(f"{what} to roll out{canary}{current}; {plural(census.pods, 'Pod')} read{newer}.")

    def show_skips(self) -> None:
        for skip in self.skips:
            self.record("skip", **skip.subject._asdict(), reason=skip.reason)
        by_reason: dict[tuple[str, str], list[str]] = {}
        for skip in self.skips:
            name = f"{skip.subject.namespace}/{skip.subject.name}"
            by_reason.setdefault((skip.subject.kind, skip.reason), []).append(name)
        if by_reason:
            self.print("Skipped:")
            for (kind, reason), names in sorted(by_reason.items()):
                more = [f"{len(names) - 3} more (--log-level=debug names all)"] if len(names) > 3 else []
                self.print(f"  {plural(len(names), kind)}: {reason}: {', '.join(names[:3] + more)}")
            self.print("")

    def finish(self, result: Result) -> None:
        """Takes a workload's result."""
        self.outcomes[result.outcome] += 1
        tally = result.tally or Tally(result.planned.pods_concerned, ready=result.planned.ready)
        self.tally.update(tally._asdict())
        was_patched = result.patched is not None or result.outcome is Outcome.INTERRUPTED
        self.not_seen += was_patched and result.tally is None
        if result.outcome not in GOOD:
            self.unsuccessful.append(replace(result, patched=None))  # less the whole workload
        self.record(
            "result",
            **result.planned.workload._asdict(),
            outcome=result.outcome.snake_case,
            seconds=result.seconds,
            message=result.message,
        )
        surprising = result.outcome is Outcome.FAILED and not result.planned.trouble
        level = logging.INFO if result.outcome in GOOD else logging.ERROR if surprising else logging.WARNING
        level = logging.DEBUG if result.outcome is Outcome.NOT_STARTED else level  # there may be thousands
        log.log(level, f"rollout {result.outcome.value}", extra=facts(result))

    def show_question(self, planned: Planned) -> None:
        """A workload's line of the plan, and its differences, where the question about it is asked."""
        self.progress.show("")
        self.progress.write("\n" + "\n".join(plan_table([planned])) + "\n")
        for difference in planned.drift.differences if planned.drift else ():
            self.progress.write("  " + printable(difference_text(difference, 120)) + "\n")

    def answer(self, question: str) -> str | None:
        """What is typed, in lower case; None at the end of input, or where the terminal is gone."""
        self.progress.write(question)
        try:
            line = sys.stdin.readline()
        except OSError:
            return None
        return line.strip().lower() if line else None

    def show_progress(self, running: Sequence[Workload], paused: bool = False) -> None:
        failed = sum(self.outcomes[outcome] for outcome in BAD)
        names = ", ".join(f"{workload.namespace}/{workload.name}" for workload in running)
        elapsed = human_duration(time.monotonic() - self.began)
        failures = f"{failed} failed, " if failed else ""
        state = f"{self.outcomes.total()}/{self.first} done, {failures}{elapsed}{', paused' if paused else ''}"
        self.progress.show(f"{state}; {len(running)} running: {names}")

    def left_alone(self, *verdicts: Verdict) -> dict[str, int]:
        """How many of those that were judged are not in the plan, and why; those of some verdicts, and the rest."""
        found = Counter(one.drift.verdict for one in self.judged)
        words = {v.value.replace("_", " "): found[v] for v in (*verdicts, Verdict.REFUSED, Verdict.UNKNOWN)}
        return {word: count for word, count in {**words, "left alone": len(self.withheld)}.items() if count}

    def show_summary(self, exit_code: int) -> None:
        """A line for each workload that did not succeed, then counts and time, and how to go on."""
        self.progress.show("")
        seconds = round(time.monotonic() - self.began, 1)
        self.print(*self.lines_of_unsuccessful())
        outcomes = {outcome: self.outcomes[outcome] for outcome in Outcome if self.outcomes[outcome]}
        verdicts = Counter(one.drift.verdict.value for one in self.judged)
        cut_off = f"--only-started-before={self.started_before}"
        if self.dry_run:
            how = "To do it, in place of --fail-on-drift:" if self.fail_on_drift else "To do it:"
            to_do_it = f" {how} --confirm=true {cut_off}" if self.planned else ""
            self.print(f"Dry run: nothing was changed.{to_do_it}")
        else:
            ended = {outcome.value: count for outcome, count in outcomes.items()} | self.left_alone()
            if ended:
                counts = ", ".join(f"{count} {word}" for word, count in ended.items())
                self.print(f"{plural(sum(ended.values()), 'workload')} in {human_duration(seconds)}: {counts}.")
            if self.tally:
                counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.tally.items())
                before = f"; those of {plural(self.not_seen, 'workload')} as before" if self.not_seen else ""
                self.print(f"Pods: {counts}{before}.")
            if not self.judged and outcomes.keys() & {Outcome.NOT_STARTED, Outcome.INTERRUPTED}:
                self.print(f"To go on: the same with {cut_off}")
        self.record(
            "summary",
            outcomes={outcome.snake_case: count for outcome, count in outcomes.items()},
            **({"verdicts": dict(verdicts)} if self.judged else {}),
            **({} if self.dry_run else {"pods": {name: self.tally[name] for name in Tally._fields}}),
            started_before=self.started_before,
            planned=len(self.planned),
            skipped=len(self.skips),
            seconds=seconds,
            exit_code=exit_code,
        )

    def lines_of_unsuccessful(self) -> Iterator[str]:
        """A line each, in the order of the outcomes; many that were not started for the same reason share one."""

        def line(result: Result) -> str:
            told = f": {result.message}" if result.message else ""
            return f"{result.outcome.value}: {result.planned.workload}{told}"

        order = list(Outcome)
        not_started: dict[str, list[Result]] = {}
        for result in sorted(self.unsuccessful, key=lambda result: order.index(result.outcome)):
            if result.outcome is Outcome.NOT_STARTED:
                not_started.setdefault(result.message, []).append(result)
            else:
                yield line(result)
        for message, results in not_started.items():
            if len(results) <= 10:
                yield from map(line, results)
            else:
                names = ["/".join(result.planned.workload[1:]) for result in results[:3]]
                names.append(f"{len(results) - 3} more (--log-level=debug names all)")
                yield f"not started: {plural(len(results), 'workload')}: {message}: {', '.join(names)}"

    def exit_code(self) -> int:
        verdicts = {one.drift.verdict for one in self.judged}
        not_done = not self.dry_run and (bool(self.withheld) or Verdict.UNKNOWN in verdicts)
        drifted = self.fail_on_drift and bool(verdicts - {Verdict.UP_TO_DATE})
        bad = any(self.outcomes[outcome] for outcome in BAD) or Verdict.REFUSED in verdicts
        return 1 if bad or not_done or drifted or self.lost_output else 0


def plan_table(plan: Sequence[Planned]) -> list[str]:
    """A table, line by line: kind, namespace, name, Pods concerned of all, sidecars, the oldest Pod's age, state."""
    now = datetime.now(timezone.utc)
    rows = [["KIND", "NAMESPACE", "NAME", "PODS", "SIDECAR", "OLDEST", "STATE"]]
    for one in plan:
        state = one.state.value + (f": {one.trouble}" if one.trouble else "")
        age = human_duration((now - one.oldest_pod).total_seconds())
        counts = f"{one.pods_concerned}/{one.pods}"
        rows.append([*one.workload, counts, sidecar_text(one.sidecars), age, state])
    return table(rows)


def group_of(drift: Drift) -> tuple:
    """What drifted workloads have in common: the same differences, however old the Pods are."""
    return tuple(json.dumps([d.path, d.live is None] if len(d.path) == 1 else d) for d in drift.differences), drift.also


def is_config(difference: Difference) -> bool:
    return len(difference.path) == 1 and isinstance(difference.fresh, str)


WORDS = {"env": "env", "ports": "port", "volumeMounts": "mount", "volumes": "volume"}


def difference_text(difference: Difference, width: int = 1000) -> str:
    """A line like `istio-proxy  env X  (absent) -> istiod`, its values shortened to the width."""
    path, live, fresh = difference
    if is_config(difference):
        return f"{path[0]} {fresh}"
    if len(path) == 1:
        return f"{path[0]}  would be {'removed' if fresh is None else 'added'}"
    if path[1:] == ("position",):
        return f"{path[0]}  moves from {live} to {fresh}{' (native sidecar)' if fresh != 'containers' else ''}"
    what = f"{WORDS[path[1]]} {'.'.join(path[2:])}" if path[1] in WORDS else ".".join(path[1:])
    one, other = value_text(live), value_text(fresh)
    repository, colon, tag = other.rpartition(":")
    if path[1] == "image" and colon and one.startswith(f"{repository}:"):
        other = tag
    room = max(width - len(f"{path[0]}  {what}   -> "), 20)
    if len(one) + len(other) > room:
        one = shortened(one, max(room // 2, room - len(other)))
        other = shortened(other, max(room - len(one), 10))
    return f"{path[0]}  {what}  {one} -> {other}"


def value_text(value: Any) -> str:
    if value is None:
        return "(absent)"
    return value or '""' if isinstance(value, str) else json.dumps(value)


def warn_about_names(filters: Filters, census: Census) -> None:
    """Warns about names given by option that nothing in the cluster has: most often a typo."""
    import difflib

    for pattern in filters.sidecars if census.pods else ():
        if not any(fnmatch.fnmatchcase(name, pattern) for name in census.containers):
            close = difflib.get_close_matches(pattern, sorted(census.containers), cutoff=0.3)
            hint = f"did you mean {listed(close, 'or')}?" if close else f"none of the {census.pods} that were read"
            log.warning(f"no Pod has a container named {pattern}; {hint}")
    if filters.selector and not census.pods:
        log.warning(f"the selector {filters.selector} matches no Pod; is it right?")
    literal = namespaces_to_list(filters)
    seen = [name for name in census.namespaces if not literal or name in literal]
    for pattern in filters.include_namespaces + (() if literal else filters.exclude_namespaces):
        if not any(fnmatch.fnmatchcase(name, pattern) for name in seen):
            what = "no Pod that the selector matches" if filters.selector else "no Pod"
            log.warning(f"namespace {pattern} holds {what}; is the name right?")


# The table of contents


def main(options: argparse.Namespace) -> int:
    interrupts = Interrupts()
    try:
        progress = set_up_logging(options.log_level, options.log_format == "json")
        return run(options, progress, interrupts)
    except (CannotStart, ApiError) as error:
        log.debug("could not start", exc_info=True)
        log.error(f"could not start, nothing was changed: {error}")
        return 3
    except ModuleNotFoundError as error:
        return without_package(error)
    except Interrupted:
        log.warning("interrupted; nothing was changed")
        return interrupts.exit_code
    except Exception as error:
        log.debug("unexpected error", exc_info=True)
        log.critical(f"unexpected error, please report it with the log of --log-level=debug: {error!r}")
        return 1 if interrupts.rolling_out else 3
    finally:
        interrupts.is_over = True


def find_plan(
    cluster: Cluster, filters: Filters, injection: Injection | None
) -> tuple[list[Planned], list[Skip], Census]:
    """What is to be rolled out, or with an injection what is to be judged; what is left out, and what was seen."""
    namespaces = namespaces_to_list(filters)
    candidates, census = cluster.read_list(lambda: read_candidates(cluster.pods(namespaces, filters.selector), filters))
    reading = Reading(cluster, namespaces, with_templates=filters.only_drifted)
    owners = reading.owners_of_replica_sets(candidates, filters.kinds)
    found, skips = find_workloads(candidates, filters.kinds, owners)
    found, opted_out = leave_out_namespaces(found, filters, cluster)
    objects = reading.workloads(found)
    serving = cluster.serving_pods(namespaces) if found else set()
    if serving is None:
        log.warning("EndpointSlices may not be listed: every healthy workload counts as live")
    plan, left_out = make_plan(found, objects, serving, filters)
    if injection:
        plan = injection.judge_all(plan, found, objects)
        ending = [one for one in plan if ENDING in one.drift.message]
        left_out += [Skip(one.workload, "its namespace is being deleted") for one in ending]
        plan = [one for one in plan if one not in ending]
    return plan, skips + opted_out + left_out, census


def cut_off(options: argparse.Namespace, began: datetime, cluster: Cluster) -> datetime:
    """--only-started-before; without it when this began, by the API server's clock, as the creation of Pods is."""
    now = datetime.now(timezone.utc) - cluster.clock_ahead
    moment = options.only_started_before or began - cluster.clock_ahead
    if cluster.clock_ahead:
        told = "ahead of" if cluster.clock_ahead > timedelta(0) else "behind"
        off = human_duration(abs(cluster.clock_ahead.total_seconds()))
        log.warning(f"this machine's clock is {off} {told} the API server's, which is the one that counts")
    log.info("looking for Pods", extra={"started_before": moment.isoformat(timespec="seconds")})
    if moment > now:
        log.warning("--only-started-before is in the future: each run restarts what the one before has restarted")
    return moment


def run(options: argparse.Namespace, progress: ProgressLine, interrupts: Interrupts) -> int:
    filters = Filters(
        sidecars=tuple(options.sidecar_container_name),
        started_before=interrupts.began,
        include_namespaces=tuple(options.include_namespace),
        exclude_namespaces=tuple(options.exclude_namespace),
        selector=options.selector,
        include_annotations=tuple(options.include_annotation),
        exclude_annotations=tuple(options.exclude_annotation),
        kinds=options.kinds,
        only_drifted=options.only_drifted,
    )
    kubectl_path = find_kubectl(options.kubectl)
    workers = options.parallel_rollouts
    cluster = connect(options.kubeconfig, options.context, connections=max(workers.number, 100))
    check_rights(cluster, filters, options.confirm)
    if options.confirm:
        check_kubectl(kubectl_path, cluster)
    filters = replace(filters, started_before=cut_off(options, interrupts.began, cluster))

    injection = None
    if options.only_drifted:
        injection = Injection(cluster, filters.sidecars, tuple(options.ignore_config))
    plan, skips, census = find_plan(cluster, filters, injection)
    warn_about_names(filters, census)
    report = Report(options, progress, filters.started_before)
    if injection:
        plan = report.show_drift(plan, options.allow_removal)
    canary = first_of(plan, options.max_rollouts)
    report.show_plan(plan, len(canary), skips, census)

    if options.confirm:
        brake = Brake(interrupts, options.max_failures)
        brake.ask = options.confirm_each
        cluster.patience = PATIENCE
        kubectl = Kubectl(kubectl_path, cluster.kubectl_flags)
        words = options.annotation_prefix, options.rollout_reason
        rollout = Rollout(cluster, kubectl, filters, options.timeout, *words, brake, injection)
        roll_out_all(canary, rollout, max(int(options.parallel_rollouts.of(len(plan))), 1), report)
        for planned in plan[len(canary) :]:
            report.finish(Result(planned, Outcome.NOT_STARTED, message="beyond --max-rollouts"))
    exit_code = interrupts.exit_code or report.exit_code()
    report.show_summary(exit_code)
    return exit_code or report.exit_code()


if __name__ == "__main__":
    sys.exit(main(OPTIONS))
