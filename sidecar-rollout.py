#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "kubernetes>=37,<38",
#     "python-json-logger>=3.1",
#     "python-dateutil>=2.8",
# ]
# ///
"""Restart workloads so that their Pods get the current version of a sidecar.

A sidecar injector adds a container to a Pod only when the Pod is created. This
command finds the workloads whose Pods have that container (with
--only-drifted, only those whose Pods would get a different one today). With
--confirm it restarts them and waits for `kubectl rollout status`. With --evict,
it also evicts Pods that a restart does not replace, and with --in-place it
changes images in running Pods. By default, this command is a dry run, and it
selects only Deployments.

Examples:
  # Show the workloads whose sidecar is outdated
  sidecar-rollout.py --sidecar-container-name=istio-proxy --only-drifted

  # Restart them, ten at a time, and stop after three failures
  sidecar-rollout.py --sidecar-container-name=istio-proxy --only-drifted \\
      --confirm=true --parallel-rollouts=10 --max-failures=3

  # Try it on one workload first
  sidecar-rollout.py --sidecar-container-name=istio-proxy --confirm=true \\
      --include-namespace=shop deployment/web

  # Include StatefulSets, but only in the namespaces of some teams
  sidecar-rollout.py --sidecar-container-name='linkerd-*' \\
      --include-statefulset --include-namespace='team-*'

  # Restart only workloads with Pods from before a time; rerun this to resume
  sidecar-rollout.py --sidecar-container-name=istio-proxy --confirm=true \\
      --only-started-before='2026-05-01 13:00'

Exit codes:
  0         done, or nothing to do
  1         at least one workload failed, timed out, was incomplete, rejected,
            unknown or not up to date, or has had no Pods since a rollout (in a
            dry run only with --fail-on-drift), or the API server was
            unavailable
  2         bad usage
  3         cannot start: no cluster, no permission, no kubectl; nothing was
            changed
  130, 143  interrupted by SIGINT, SIGTERM (129: SIGHUP); what was in progress
            is listed

Data flow, in the order of this file:
  arguments -> Pods -> candidates -> plan -> queue -> results -> report
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import fnmatch
import functools
import itertools
import json
import logging
import math
import os
import queue
import re
import select
import shlex
import shutil
import signal
import sys
import threading
import time
import warnings
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

if TYPE_CHECKING:
    import subprocess

    import urllib3

VERSION = "0.2.0"
SCRIPT = "sidecar-rollout.py"
IS_PLUGIN = os.path.basename(sys.argv[0]) == "kubectl-sidecar_rollout"  # of kubectl
PROGRAM = "kubectl sidecar-rollout" if IS_PLUGIN else SCRIPT
FIELD_MANAGER = "sidecar-rollout"

Json = dict[str, Any]  # an object of the API, as it came
Labels = Mapping[str, str]  # labels or annotations
Names = Sequence[str]  # names, or patterns of names
PodName = tuple[str, str]  # namespace, name
AnnotationFilter = tuple[str, str]  # key, and the value's pattern with shell wildcards
Item = TypeVar("Item")
Answer = TypeVar("Answer")

log = logging.getLogger(FIELD_MANAGER)

# Types


class ObjectRef(NamedTuple):
    """The identity of an object in the cluster."""

    kind: str  # empty: there is no such object, for example no controller
    namespace: str
    name: str
    group: str = ""  # of the API; empty is the core group

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def argument(self) -> str:
        """Return the object as an argument of kubectl: `deployment/web`."""
        group = f".{self.group}" if "." in self.group else ""  # not Kubernetes' own
        return f"{self.kind.lower()}{group}/{self.name}"


KINDS = {  # of workloads, and how they are selected
    "Deployment": "remove --exclude-deployment",
    "StatefulSet": "add --include-statefulset",
    "DaemonSet": "add --include-daemonset",
}
# Where their Pods are counted: desired, available, current, updated
REPLICAS = (  # also of ReplicaSets and ReplicationControllers
    "spec.replicas",
    "status.availableReplicas",
    "status.replicas",
    "status.updatedReplicas",
)
SCHEDULED = (  # of DaemonSets
    "status.desiredNumberScheduled",
    "status.numberAvailable",
    "status.currentNumberScheduled",
    "status.updatedNumberScheduled",
)


REPLICATED = (  # owners of Pods without a rollout; a custom resource may own them
    ("ReplicaSet", "apps"),
    ("ReplicationController", ""),
)
# Owners whose Pod template is read; custom resources keep theirs in fields of their own.
HAVE_TEMPLATE = (*((kind, "apps") for kind in KINDS), *REPLICATED)


class Sidecar(NamedTuple):
    """A container that the options name."""

    name: str
    image: str
    native: bool
    init: bool = False  # an ordinary init container


class Amount(NamedTuple):
    """A number of workloads, or a percentage of the plan."""

    number: int
    is_percentage: bool = False

    def of(self, total: int) -> float:
        return self.number * total / 100 if self.is_percentage else self.number


@dataclass(frozen=True)
class Options:
    """The command line, ready to use."""

    workloads: list[str]  # such as deployment/web*; none: all
    sidecars: list[str]  # container names, with shell wildcards, as are the other lists of names
    cutoff: datetime  # only Pods created before it; of --only-started-before
    include_namespace: list[str]
    exclude_namespace: list[str]
    selector: str | None
    include_annotation: list[AnnotationFilter]
    exclude_annotation: list[AnnotationFilter]
    kinds: frozenset[str]
    skip_unhealthy: bool
    only_drifted: bool  # then Candidates keep what the comparison needs
    include_missing: bool
    ignore_config: list[str]
    allow_removal: bool
    fail_on_drift: bool
    confirm: bool
    confirm_each: bool
    evict: bool
    in_place: bool
    parallel_rollouts: Amount
    max_rollouts: Amount
    max_failures: int | None
    max_duration: float | None  # seconds
    gate: list[str]  # a command; empty: none
    timeout: float  # seconds
    soak: float | None  # seconds
    annotation_prefix: str
    rollout_reason: str
    kubeconfig: str | None
    context: str | None
    kubectl: str
    log_level: str
    log_format: str


class LivePod(NamedTuple):
    """A matching Pod, reduced to what the comparison needs."""

    name: str
    created: datetime
    view: bytes  # its sidecars, see view_of
    resized: tuple[str, ...]  # containers whose resources were changed in place


@dataclass(slots=True)
class Candidate:
    """The matching Pods of one owner."""

    oldest: datetime
    labels: dict[str, str]  # of one of the Pods
    names: list[str]  # of the Pods
    live_pods: list[LivePod] = field(default_factory=list)  # only with --only-drifted
    ready: int = 0
    sidecars: frozenset[Sidecar] = frozenset()  # empty with --include-missing: none has one
    unhealthy_reason: str = ""  # of one of the Pods, for example CrashLoopBackOff
    runs_to_completion: bool = False  # one of the Pods is not restarted when it ends
    sample: bytes = b""  # one of the Pods, see packed
    owners: list[ObjectRef] = field(default_factory=list)  # their controllers: ReplicaSets, ...

    def merge(self, other: Candidate) -> None:
        self.oldest = min(self.oldest, other.oldest)
        self.names += other.names
        self.live_pods += other.live_pods
        self.ready += other.ready
        self.sidecars |= other.sidecars
        self.unhealthy_reason = self.unhealthy_reason or other.unhealthy_reason
        self.runs_to_completion |= other.runs_to_completion
        self.owners += other.owners


Candidates = dict[ObjectRef, Candidate]  # by owner, then by workload


@dataclass
class Scan:
    """What was seen while reading Pods, for hints and totals."""

    pods: int = 0
    after_cutoff: int = 0
    namespaces: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)


class Skip(NamedTuple):
    subject: ObjectRef
    reason: str


class Word(enum.Enum):
    """An enum whose values are for people; JSON records have them in snake case."""

    @property
    def snake_case(self) -> str:
        return str(self.value).replace(" ", "_")


class State(Word):
    """How risky a rollout is, least risky first."""

    UNHEALTHY = "unhealthy"
    NOT_SERVING = "not serving"  # none of its Pods is a ready endpoint of a Service
    SERVING = "serving"


class Method(Word):
    """How the Pods of a workload are replaced."""

    RESTART = "restart"  # by a rollout
    EVICT = "evict"
    IN_PLACE = "in place"  # not replaced: images of running containers are changed


NOUNS = {  # of each method, for the log
    Method.RESTART: "rollout",
    Method.EVICT: "eviction",
    Method.IN_PLACE: "image change",
}
VERBS = {  # for questions
    Method.RESTART: "Roll out",
    Method.EVICT: "Evict Pods of",
    Method.IN_PLACE: "Change images of",
}


@dataclass(frozen=True, slots=True)
class PlannedWorkload:
    ref: ObjectRef
    pods_to_replace: int
    pods: int
    ready: int  # of the Pods to replace
    sidecars: tuple[Sidecar, ...]
    oldest_pod: datetime
    state: State
    unhealthy_reason: str  # empty: it is healthy
    recreate: bool = False  # strategy Recreate: all its Pods stop before new ones start
    resource_version: str = ""  # changes with each change of its status, too
    sample: bytes = b""  # one of the Pods, see packed
    added: tuple[str, ...] = ()  # sidecars that Pods lack, and would get
    method: Method = Method.RESTART
    evicted_pods: int = 0  # with method restart, those below a partition
    owners: tuple[ObjectRef, ...] = ()  # of the Pods to evict
    controlled_by: ObjectRef | None = None  # for example a Prometheus, which reverts changes


class ExpectedPod(NamedTuple):
    """What the API server would create today, reduced to what is compared."""

    view: bytes
    configs: dict[ObjectRef, bool]  # what the sidecars use, and whether it is required
    other_changes: tuple[str, ...]
    injected_changes: tuple[str, ...] = ()  # those that are not of the workload's template


class ConfigChange(NamedTuple):
    """When a ConfigMap or Secret last changed, as far as its metadata tells."""

    certain: datetime
    possible: datetime  # the same, or later: then perhaps only its labels changed
    is_tracked: bool  # else changes are not recorded


class Verdict(Word):
    UP_TO_DATE = "up to date"
    DRIFTED = "drifted"
    MISSING = "missing"  # no Pod has the sidecar, but new ones would
    NOT_INJECTED = "not injected"  # nor would new ones
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class Difference(NamedTuple):
    path: tuple[str, ...]  # from the container's name down; of a ConfigMap, that alone
    current: Any  # None: absent
    expected: Any


@dataclass(frozen=True)
class JudgedWorkload:
    """A workload and how its Pods compare with what would be created today."""

    planned: PlannedWorkload
    verdict: Verdict
    message: str = ""
    causes: Collection[str] = ()  # of the error of its dry run
    differences: tuple[Difference, ...] = ()
    drifted_pods: tuple[str, ...] = ()
    other_changes: tuple[str, ...] = ()
    injected_changes: tuple[str, ...] = ()  # those that are not of the workload's template
    view: bytes = b""  # the sidecars that would be injected today
    config_changes: dict[ObjectRef, ConfigChange] = field(default_factory=dict)

    def removes_sidecar(self, patterns: Names) -> bool:
        """Return whether Pods would lose a sidecar, or the last init container of a pattern.

        With Istio CNI, istio-validation takes the place of istio-init: `istio-*` still has a match.
        """
        removed = [d for d in self.differences if len(d.path) == 1 and d.expected is None]
        today = unpacked(self.view) if removed else ()
        return any(
            difference.current["position"] != INIT or not fnmatch.filter(today, pattern)
            for difference in removed
            for pattern in patterns
            if fnmatch.fnmatchcase(difference.path[0], pattern)
        )

    @property
    def only_images(self) -> bool:
        """Return whether only images differ, of containers that run as long as their Pod."""
        today = unpacked(self.view) if self.differences else {}
        return bool(self.differences) and all(
            difference.path[1:] == ("image",) and today[difference.path[0]]["position"] != INIT
            for difference in self.differences
        )

    @property
    def added(self) -> tuple[str, ...]:
        """Return the names of the sidecars that new Pods would get in addition."""
        added = [d for d in self.differences if len(d.path) == 1 and isinstance(d.expected, dict)]
        return tuple(difference.path[0] for difference in added)

    @property
    def revision(self) -> str:
        """Return an identifier of the sidecars that would be injected today: 12 hex digits."""
        import hashlib  # would cost each start 3 ms, of 115

        return hashlib.sha256(zlib.decompress(self.view)).hexdigest()[:12]


@dataclass(frozen=True)
class Plan:
    """What is rolled out, and what is not."""

    workloads: Sequence[PlannedWorkload] = ()  # in rollout order
    selected: int = 0  # how many of them --max-rollouts leaves
    skips: Sequence[Skip] = ()
    broken: Sequence[Skip] = ()  # without Pods since their last rollout
    scan: Scan = field(default_factory=Scan)
    judged: Sequence[JudgedWorkload] = ()  # with --only-drifted: all


class PodCounts(NamedTuple):
    """A workload's Pods that have a named sidecar."""

    matched: int
    updated: int = 0
    ready: int = 0
    updated_and_ready: int = 0
    lost: int = 0  # Pods that have no sidecar anymore, or no longer exist


class PodSnapshot(NamedTuple):
    """A workload's Pods after a rollout."""

    old: list[Json]  # created before the patch, with a named sidecar
    new: list[Json]  # with one or without
    without_sidecar: list[Json]  # of the new ones
    counts: PodCounts


class Patched(NamedTuple):
    """What is needed later to verify a patch."""

    stamp: str  # the value of the timestamp annotation
    time: datetime  # by the API server's clock
    obj: Json  # the workload as it was then
    judged: JudgedWorkload | None = None  # with --only-drifted: what was expected then


class Outcome(Word):
    SUCCEEDED = "succeeded"
    COMPLETED_LATE = "completed late"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INCOMPLETE = "incomplete"
    STILL_DRIFTED = "still drifted"
    SKIPPED = "skipped"
    DECLINED = "declined"
    INTERRUPTED = "interrupted"  # no longer waited for
    NOT_STARTED = "not started"


SUCCESSES = (Outcome.SUCCEEDED, Outcome.COMPLETED_LATE)
FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.INCOMPLETE, Outcome.STILL_DRIFTED)


@dataclass(frozen=True)
class Result:
    planned: PlannedWorkload
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0
    patched: Patched | None = None
    counts: PodCounts | None = None  # None: its Pods were not read again
    is_partitioned: bool = False  # incomplete, because a StatefulSet's partition says so
    stop_reason: str = ""  # why no other rollout may start, for example a broken injector

    @property
    def is_failure(self) -> bool:
        """Return whether it counts as a failure of the run: nothing known before explains it."""
        is_known = self.is_partitioned or self.planned.unhealthy_reason
        return self.outcome in FAILURES and not is_known


class Task(NamedTuple):
    """What a worker carries out: a rollout, or a last check of one that timed out."""

    planned: PlannedWorkload
    timed_out: Result | None = None


class StartError(Exception):
    """Why nothing was done; one line for a person."""


class ApiError(Exception):
    """A response of the API server other than success; status 0 is no response."""

    def __init__(
        self,
        status: int,
        message: str,
        causes: Mapping[str, str] | None = None,
        retry_after: float = 0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.causes = causes or {}  # messages of details.causes[], by their reasons
        self.retry_after = retry_after  # seconds
        self.is_timeout = status in (0, 504) or "deadline exceeded" in message


class Interrupted(BaseException):
    """Raised by a signal before anything is changed. The client would catch an Exception."""


class SkipError(Exception):
    """Why a rollout is not started or no longer waited for, for example because it was paused."""


class UnsuccessfulError(Exception):
    """Why not all Pods of a workload were replaced: the arguments of OneByOne.unsuccessful."""


class StoppedWaiting(BaseException):
    """Raised in a worker after the second signal: it must not write anything else."""


# Words for people, and values in objects


def printable(text: str) -> str:
    """Return the text as one line in which no control character can steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


REDACTED = "<redacted>"
SECRET_NAMES = re.compile(
    r"pass(word|wd|phrase)?|secret|token|credential|api[_-]?key|private", re.IGNORECASE
)
BARE_OR_QUOTED = r"(?:\"[^\"]*\"|'[^']*'|[^\s;&]+)"
SECRET_TEXTS = (  # what looks like a secret, and what is shown
    (r"(://[^\s/:@]*:)\S{1,500}@(?!sha256:)", rf"\1{REDACTED}@"),  # the password of a URL
    (r"(https?://)[^\s/:@]+@", rf"\1{REDACTED}@"),
    (r"(?i)\b(bearer|basic)\s+\S{8,}", rf"\1 {REDACTED}"),
    (r"\bey[\w-]{8,}\.[\w-]+\.[\w-]*", REDACTED),  # a JSON Web Token
    (r"(?s)-----BEGIN .*?(-----END [^-]*-----|\Z)", REDACTED),  # PEM
    (rf"(?i)(({SECRET_NAMES.pattern})[\w.-]{{0,50}}=){BARE_OR_QUOTED}", rf"\1{REDACTED}"),
)
# In settings, not in messages: `password: x`, `--password x` and any Bearer
SECRET_SETTING = (
    rf"(?i)(({SECRET_NAMES.pattern})[\w.-]{{0,50}}[\\\"']*\s*:\s*"
    rf"|-[\w-]{{0,50}}({SECRET_NAMES.pattern})[\w-]{{0,50}}\s+"
    rf"|\b(bearer|basic)\s+){BARE_OR_QUOTED}"
)


def redact_text(text: str) -> str:
    """Return a text, such as a message of the API server, without what looks like a secret."""
    for pattern, shown in SECRET_TEXTS:
        text = re.sub(pattern, shown, text)
    return text


def short_reason(message: str) -> str:
    """Return what a person reads of a rejection: without the Pod's name, or a page of HTML."""
    text = re.sub(r'^(\d+ )?pods "[^"]*" is forbidden: ', "", message)
    return shorten(re.split("(?i)<!doctype|<html", text)[0].strip(), 300)


def join_words(words: Sequence[str], conjunction: str = "and") -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 3, 1)] + "..."


def count_of(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def count_words(counts: Mapping[str, int]) -> str:
    """Return `2 succeeded, 1 failed`, without those that are 0."""
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def group_by(items: Iterable[Item], key: Callable[[Item], Any]) -> defaultdict[Any, list[Item]]:
    groups = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def human_duration(seconds: float) -> str:
    """Return a duration as kubectl shows ages, in at most two units: 45s, 3m20s, 5h10m, 4d."""
    minutes, second = divmod(max(int(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = re.sub("^(0[dhm] )*", "", f"{days}d {hour}h {minute}m {second}s").split()
    shown = [part for part in parts[:2] if not part.startswith("0")]
    return "".join(shown) or "0s"


def dig(obj: Json, *keys: str) -> Any:
    """Return a value inside an object of the API; {} if it is absent, empty, false or 0."""
    for key in keys:
        obj = obj.get(key) or {}
    return obj


def format_time(moment: datetime) -> str:
    """Return a time in UTC, in whole seconds, as Kubernetes writes it."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


# Command line


ARGPARSE_ERRORS = (  # argparse's words, and what kubectl would say
    (r"the following arguments are required: (.*)", r"required option not set: \1"),
    (r"argument ([^:/]+)[^:]*: expected one argument", r"option \1 requires a value"),
    (r"argument ([^:/]+)[^:]*: (invalid value \".*\"): (must .*)", r"\2 for \1: \3"),
    (r"unrecognized arguments: (--dry-run)\b.*", r"unknown option \1; a dry run is the default"),
    (r"unrecognized arguments: (-\S*).*", r"unknown option \1"),
    (r"invalid value (\".*\"): (must .*)", r"unexpected argument \1: \2"),
)


class ArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = printable(message)
        for pattern, replacement in ARGPARSE_ERRORS:
            message = re.sub(f"^{pattern}$", replacement, message)
        self.exit(2, f"error: {message}\nSee '{PROGRAM} --help' for usage.\n")


def invalid(text: str, requirement: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f'invalid value "{text}": must be {requirement}')


BOOLEANS = {
    "true": True,
    "yes": True,
    "1": True,
    "false": False,
    "no": False,
    "0": False,
}


def boolean(text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise invalid(text, "true or false")
    return BOOLEANS[text.lower()]


def one_of(*choices: str) -> Callable[[str], str]:
    def choice(text: str) -> str:
        if text not in choices:
            raise invalid(text, join_words(choices, "or"))
        return text

    return choice


def positive_number(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise invalid(text, "a whole number above 0")
    return int(text)


def amount(text: str) -> Amount:
    found = re.fullmatch("([1-9][0-9]{0,8})(%?)", text)
    if not found or (found[2] and int(found[1]) > 100):
        raise invalid(text, "a whole number above 0, or a percentage such as 25%")
    return Amount(int(found[1]), bool(found[2]))


def annotation_filter(text: str) -> AnnotationFilter:
    """Return the key and the value's pattern of KEY=VALUE; KEY alone matches any value."""
    key, equals, value = text.partition("=")
    prefix = r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?"
    if not re.fullmatch(prefix + r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", key):
        raise invalid(text, "KEY or KEY=VALUE, such as example.com/restart=never")
    return key, value if equals else "*"


def non_empty(text: str) -> str:
    """Return the text; an unset shell variable must not select more than was meant."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f'invalid value "{text}": must not be empty')
    return text


def file_path(text: str) -> str:
    return os.path.expanduser(non_empty(text))


def command(text: str) -> list[str]:
    """Return the words of a command, split as a shell does, but none of its other features."""
    try:
        program, *words = shlex.split(non_empty(text))
    except ValueError:
        raise invalid(text, "a command, with matching quotes") from None
    program = os.path.expanduser(program)
    if not shutil.which(program):
        raise invalid(program, "a command that exists and is executable")
    return [program, *words]


def name_pattern(text: str) -> str:
    """Return a container's or namespace's name (an RFC 1123 label) with shell wildcards."""
    if "," in text:
        raise invalid(text, "one name; repeat the option for each name")
    is_too_long = len(text) > 63 and not is_pattern(text)
    if is_too_long or not re.fullmatch(r"[a-z0-9*?\[\]!-]+", text):
        allowed = "at most 63 lowercase letters, digits and '-'"
        raise invalid(text, f"{allowed}; wildcards *, ? and [...] are allowed")
    return text


def config_pattern(text: str) -> str:
    """Return a ConfigMap's or Secret's name (an RFC 1123 subdomain) with shell wildcards."""
    if not re.fullmatch(r"[a-z0-9.*?\[\]!-]{1,253}", text):
        allowed = "lowercase letters, digits, '-' and '.'"
        raise invalid(text, f"{allowed}; wildcards *, ? and [...] are allowed")
    return text


SHORT_NAMES = {
    "deploy": "deployment",
    "sts": "statefulset",
    "ds": "daemonset",
    "rs": "replicaset",
    "rc": "replicationcontroller",
}


def workload_pattern(text: str) -> str:
    """Return TYPE/NAME, with TYPE in any of the forms that kubectl accepts, as type_and_name."""
    kind = r"([A-Za-z]+)(?:\.v[0-9][a-z0-9]*)?(?:\.([a-z0-9.-]+))?"
    found = re.fullmatch(rf"{kind}/([a-z0-9.*?\[\]!-]{{1,253}})", text)
    if not found:
        raise invalid(text, "TYPE/NAME, such as deployment/web or sts/*")
    kind = found[1].lower()
    return type_and_name(SHORT_NAMES.get(kind, kind), found[2] or "", found[3])


def type_and_name(kind: str, group: str, name: str) -> str:
    """Return `deployment/web` or `rollout.argoproj.io/web`, for a kind also in the plural."""
    kind = re.sub("(?<!s)s$", "", kind.lower())
    return f"{kind}/{name}" if group in ("", "apps") else f"{kind}.{group}/{name}"


def point_in_time(text: str) -> datetime:
    """Return a time in UTC. dateutil takes what is missing from a default: so try two."""
    from dateutil import parser

    defaults = (datetime(2001, 2, 3), datetime(2002, 3, 14))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it would ignore an unknown zone such as CEST
            first, second = (parser.parse(text, default=default) for default in defaults)
        if first.date() == second.date():
            return first.replace(tzinfo=first.tzinfo or timezone.utc).astimezone(timezone.utc)
    except (ValueError, OverflowError, TypeError, Warning):
        pass
    raise invalid(text, "a date and time such as 2026-05-01T13:00:00Z")


SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "m": 60,
    "h": 3600,
}


def duration(text: str) -> float:
    """Return the seconds of a duration in kubectl's (Go's) syntax; a bare number is seconds."""
    number = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
    part = rf"({number})({'|'.join(SECONDS)})"
    if re.fullmatch(number, text):
        seconds = float(text)
    elif re.fullmatch(rf"(?:{part})+", text):
        seconds = sum(float(count) * SECONDS[unit] for count, unit in re.findall(part, text))
    else:
        raise invalid(text, "a duration such as 90s, 10m or 1h30m")
    if not 0.001 <= seconds <= 8760 * 3600:  # kubectl takes 0 for "wait forever"
        raise invalid(text, "a duration from 1ms to 8760h")
    return seconds


def annotation_prefix(text: str) -> str:
    """Return the part before `.rollout.timestamp`; with it, it must be a valid key."""
    domain, slash, name = text.rpartition("/")
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    is_domain = re.fullmatch(rf"{label}(\.{label})*", domain) and len(domain) <= 253
    is_name = re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,44}", name)
    if (slash and not is_domain) or not is_name:
        example = "such as myCompany or example.com/team"
        raise invalid(text, f"a prefix {example}, with at most 45 characters after the '/'")
    return text


def is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def matches(name: str, patterns: Sequence[str]) -> bool:
    return name in patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


class Option(NamedTuple):
    """A row of --help. A text with a * means that the option can be repeated."""

    flags: str  # further ones are hidden aliases, except for single letters; or an argument's name
    type: Callable[[str], Any]
    metavar: str
    help: str
    default: Any = None


def switch(flags: str, help: str, default: bool | None = False) -> Option:
    return Option(flags, boolean, "true|false", help, default)


NOW = datetime.max.replace(tzinfo=timezone.utc)  # the cutoff until the API server tells the time
OPTIONS = {
    "Selection": (
        Option(
            "workloads",
            str,
            "TYPE/NAME",
            "* Only these workloads, such as deployment/web or sts/*, in all selected namespaces; "
            "their kinds need no --include-... option",
        ),
        Option(
            "--sidecar-container-name",
            name_pattern,
            "NAME",
            "* Name of the sidecar container: regular, native or init (required)",
        ),
        Option(
            "--include-namespace -n --namespace",
            name_pattern,
            "NAME",
            "* Only these namespaces",
        ),
        switch(
            "--all-namespaces -A",
            "All namespaces (the default); overrides --include-namespace",
        ),
        Option(
            "--exclude-namespace",
            name_pattern,
            "NAME",
            "* Skip these namespaces (takes precedence over --include-namespace)",
        ),
        Option(
            "--selector -l",
            non_empty,
            "SELECTOR",
            "Only Pods that match this label selector (supports =, ==, !=, in, notin)",
        ),
        Option(
            "--include-annotation",
            annotation_filter,
            "KEY[=VALUE]",
            "* Only workloads with this annotation, on the workload or its Pod template",
        ),
        Option(
            "--exclude-annotation",
            annotation_filter,
            "KEY[=VALUE]",
            "* Skip workloads with this annotation, also on their namespace (takes precedence)",
        ),
        Option(
            "--only-started-before",
            point_in_time,
            "TIME",
            "Only Pods created before this time, for example 2026-05-01T13:00:00Z; UTC unless it "
            "has a time zone (default: now)",
            NOW,
        ),
        switch("--exclude-deployment --exclude-deployments", "Skip Deployments"),
        switch("--include-statefulset --include-statefulsets", "Include StatefulSets"),
        switch("--include-daemonset --include-daemonsets", "Include DaemonSets"),
        switch("--skip-unhealthy", "Skip workloads that are unhealthy before the rollout"),
    ),
    "Drift detection": (
        switch(
            "--only-drifted",
            "Only workloads whose Pods would get a different sidecar if they were created now",
        ),
        Option(
            "--ignore-config",
            config_pattern,
            "NAME",
            "* Ignore changes to this ConfigMap or Secret, for example if the sidecar reloads it",
        ),
        switch(
            "--include-missing",
            "Also workloads whose Pods lack the sidecar but would get it if they were created now "
            "(requires --only-drifted)",
        ),
        switch("--allow-removal", "Also restart workloads whose sidecar would be removed"),
        switch(
            "--fail-on-drift",
            "Exit with 1 if a dry run with --only-drifted finds a workload that is not up to date",
        ),
    ),
    "Rollout": (
        switch("--confirm", "Apply the changes (default: false, a dry run)", None),
        switch("--confirm-each", "Apply the changes, but ask before each workload"),
        switch(
            "--evict",
            "Also evict Pods that a restart does not replace, one at a time per workload",
        ),
        switch(
            "--in-place",
            "If only images differ, change them in running Pods, one at a time per workload",
        ),
        Option(
            "--parallel-rollouts",
            amount,
            "N|N%",
            "Workloads to roll out at the same time (default: 1)",
            Amount(1),
        ),
        Option(
            "--max-rollouts",
            amount,
            "N|N%",
            "Roll out only the first N or N%% of the workloads in the plan, for example for a "
            "canary",
            Amount(100, is_percentage=True),
        ),
        Option(
            "--max-failures",
            positive_number,
            "N",
            "Start no new rollouts after N failures (default: after 5 in a row)",
        ),
        Option(
            "--max-duration",
            duration,
            "DURATION",
            "Start no new rollouts after this time, such as 2h (default: no limit)",
        ),
        Option(
            "--gate",
            command,
            "COMMAND",
            "Start no new rollouts while this command fails; it runs without a shell, and a "
            "success counts for 10 seconds",
            [],
        ),
        Option(
            "--timeout",
            duration,
            "DURATION",
            "Time to wait for each rollout or evicted Pod, such as 90s or 1h30m (default: 300s)",
            300.0,
        ),
        Option(
            "--soak",
            duration,
            "DURATION",
            "Time to watch new Pods after each rollout, such as 2m; the rollout fails if a "
            "container restarts or a Pod is replaced or stays unready",
        ),
        Option(
            "--annotation-prefix",
            annotation_prefix,
            "PREFIX",
            "Prefix of the annotations to set on Pod templates, such as PREFIX.rollout.timestamp "
            "(default: sidecarRollout)",
            "sidecarRollout",
        ),
        Option(
            "--rollout-reason",
            non_empty,
            "TEXT",
            "Value of PREFIX.rollout.reason (default: Update sidecars NAMES)",
        ),
    ),
    "Connection": (
        Option(
            "--kubeconfig",
            file_path,
            "PATH",
            "Path to the kubeconfig file (default: $KUBECONFIG or ~/.kube/config, or the Pod's "
            "service account in a cluster)",
        ),
        Option(
            "--context",
            non_empty,
            "NAME",
            "Context of the kubeconfig (default: the current context)",
        ),
        Option(
            "--kubectl",
            file_path,
            "PATH",
            "Path to kubectl (default: the one on the PATH)",
            "kubectl",
        ),
    ),
    "Output": (
        Option(
            "--log-level",
            one_of("debug", "info", "warning", "error"),
            "LEVEL",
            "debug, info, warning or error (default: info)",
            "info",
        ),
        Option(
            "--log-format",
            one_of("text", "json"),
            "FORMAT",
            "text or json, for the log and for the result (default: text)",
            "text",
        ),
    ),
}


def build_parser() -> ArgumentParser:
    text, _, _ = (__doc__ or "").partition("Data flow")
    summary, _, epilog = text.replace(SCRIPT, PROGRAM).partition("Examples:")
    parser = ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s [TYPE/NAME...]\n       --sidecar-container-name NAME [options]",
        description=summary + "Options marked * can be repeated and accept shell wildcards.",
        epilog="Examples:" + epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for option in options:
            add_option(group, option)
    version = f"{PROGRAM} {VERSION}"  # in the last group
    group.add_argument("--version", action="version", version=version, help="Show the version")
    group.add_argument("--help", "-h", action="help", help="Show this help")
    return parser


def add_option(group: argparse._ArgumentGroup, option: Option) -> None:
    settings: Json = {
        "type": option.type,
        "metavar": option.metavar,
        "default": option.default,
    }
    if not option.flags.startswith("-"):
        group.add_argument(option.flags, nargs="*", help=option.help, **settings)
        return
    if option.type is boolean:  # alone it is true
        settings |= {
            "nargs": "?",
            "const": True,
        }
    if option.help.startswith("*"):
        settings |= {
            "action": "append",
            "default": [],
            "required": "(required)" in option.help,
        }
    name, *others = option.flags.split()
    letters = [flag for flag in others if len(flag) == 2]
    action = group.add_argument(name, *letters, help=option.help, **settings)
    settings |= {
        "dest": action.dest,
        "default": argparse.SUPPRESS,
        "help": argparse.SUPPRESS,
    }
    for alias in others:
        if alias not in letters:
            group.add_argument(alias, **settings)


def parse_args(argv: Sequence[str]) -> Options:
    """Return the options. Exit with 2 if one is wrong."""
    parser = build_parser()
    given = parser.parse_intermixed_args(with_values(argv))
    if given.all_namespaces:
        given.include_namespace = []
    try:
        given.workloads = list(map(workload_pattern, given.workloads))
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    contradiction = find_contradiction(given)
    if contradiction:
        parser.error(contradiction)
    given.kinds = selected_kinds(given)
    given.sidecars = given.sidecar_container_name
    given.cutoff = given.only_started_before
    given.confirm = bool(given.confirm or given.confirm_each)
    given.rollout_reason = given.rollout_reason or f"Update sidecars {join_words(given.sidecars)}"
    return Options(**{name: getattr(given, name) for name in Options.__dataclass_fields__})


def with_values(argv: Sequence[str]) -> list[str]:
    """Return the arguments, with =true after a switch if the next one is a workload."""
    flags = [o.flags for o in itertools.chain(*OPTIONS.values()) if o.type is boolean]
    switches = " ".join(flags).split()
    return [
        f"{word}=true" if word in switches and "/" in following else word
        for word, following in itertools.pairwise([*argv, ""])
    ]


def selected_kinds(given: argparse.Namespace) -> frozenset[str]:
    types = types_of(given.workloads)
    selected = {
        "Deployment": not given.exclude_deployment,
        "StatefulSet": given.include_statefulset,
        "DaemonSet": given.include_daemonset,
    }
    if types:
        selected = {kind: kind.lower() in types for kind in KINDS}
    return frozenset(filter(selected.get, selected))


def types_of(workloads: Names) -> set[str]:
    return {pattern.partition("/")[0] for pattern in workloads}


def find_contradiction(given: argparse.Namespace) -> str:
    """Return what is wrong with the options together, or an empty text."""
    types = types_of(given.workloads)
    evicted = sorted(types - set(map(str.lower, KINDS)))
    if evicted and not given.evict:
        kinds = join_words([kind.lower() for kind in KINDS], "or")
        return f'invalid type "{evicted[0]}": must be {kinds}; other owners of Pods require --evict'
    if given.exclude_deployment and "deployment" in types:
        return "--exclude-deployment cannot be used with deployment/NAME"
    others = given.include_statefulset or given.include_daemonset or given.evict or types
    if given.exclude_deployment and not others:
        needed = "--include-statefulset, --include-daemonset or --evict"
        return f"no workloads selected: --exclude-deployment requires {needed}"
    excluded = given.exclude_namespace
    left = [
        name
        for name in given.include_namespace
        if name not in excluded and (is_pattern(name) or not matches(name, excluded))
    ]
    if given.include_namespace and not left:
        return "no namespaces selected: all are excluded by --exclude-namespace"
    if given.confirm_each and given.confirm is False:
        return "--confirm-each cannot be used with --confirm=false"
    if given.confirm_each and not sys.stdin.isatty():
        return "--confirm-each requires a terminal on standard input"
    is_confirmed = given.confirm or given.confirm_each
    if given.fail_on_drift and (is_confirmed or not given.only_drifted):
        return "--fail-on-drift requires --only-drifted and cannot be used with --confirm"
    for name in ("ignore_config", "include_missing", "in_place", "allow_removal"):
        if getattr(given, name) and not given.only_drifted:
            return f"--{name.replace('_', '-')} requires --only-drifted"
    return ""


def command_line() -> list[str]:
    """Return the command that started this program, as a person would type it again."""
    if IS_PLUGIN:
        return ["kubectl", "sidecar-rollout", *sys.argv[1:]]
    if "UV_RUN_RECURSION_DEPTH" in os.environ:  # set by uv run; its Python is in its cache
        return ["uv", "run", *sys.orig_argv[1:]]
    return sys.orig_argv


NOT_REPEATED = ("--confirm", "--fail-on-drift")  # in the command that applies a dry run


def command_to_apply(command: Sequence[str], cutoff: datetime) -> str:
    """Return the whole command that applies what this one has shown, or resumes it.

    `command` is the program with its options as they were given.
    """
    words = [word for word in command if word != "--"]  # options are appended
    kept = []
    for before, word in itertools.pairwise(["", *words]):
        is_value = before in NOT_REPEATED and word.lower() in BOOLEANS
        if word.partition("=")[0] not in NOT_REPEATED and not is_value:
            kept.append(word)
    if "--confirm-each" not in kept:
        kept.append("--confirm=true")
    if not any(word.startswith("--only-started-before") for word in kept):
        kept.append(f"--only-started-before={format_time(cutoff)}")
    return shlex.join(kept)


# Logging


class TextFormatter(logging.Formatter):
    """`12:30:01Z WARNING Deployment shop/web: rollout timed out, seconds=300`."""

    COLORS = {
        "WARNING": "\033[33m",
        "ERROR": "\033[31m",
        "CRITICAL": "\033[31m",
    }
    STANDARD = {*vars(logging.makeLogRecord({})), "message", "workload", "taskName"}

    def __init__(self, colored: bool) -> None:
        super().__init__()
        self.colored = colored

    def format(self, record: logging.LogRecord) -> str:
        attributes = vars(record)
        text = f"{attributes['workload']}: " if "workload" in attributes else ""
        text += record.getMessage()
        for name in [name for name in attributes if name not in self.STANDARD]:
            value = str(attributes[name])
            text += f', {name}="{value}"' if re.search("[ ,]", value) else f", {name}={value}"
        level = f"{record.levelname:<7}"
        if self.colored and record.levelname in self.COLORS:
            level = f"{self.COLORS[record.levelname]}{level}\033[0m"
        clock = time.strftime("%H:%M:%SZ", time.gmtime(record.created))
        traceback = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{clock} {level} {printable(text)}{traceback}"


class ProgressLine(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 has none
    """Standard error: log lines and, on a terminal, one line below them that is redrawn."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.erase()
        super().emit(record)
        self.draw()

    def show(self, text: str) -> None:
        """Redraw the line with a text; an empty one removes it."""
        if printable(text) != self.text:
            self.erase()
            self.text = printable(text)
            self.draw()

    def erase(self) -> None:
        if self.on_terminal and self.text:
            self.write("\r\033[K")

    def draw(self) -> None:
        if self.on_terminal and self.text:
            with contextlib.suppress(OSError):  # the terminal was closed
                width = os.get_terminal_size(self.stream.fileno()).columns or 80
                self.write(shorten(self.text, width - 1))

    def write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:
            self.on_terminal = False  # it was closed; the rollouts go on


def set_up_logging(level: str, log_format: str) -> ProgressLine:
    """Log to standard error and return the handler. Libraries log only errors."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    handler = ProgressLine()
    colored = handler.on_terminal and not os.environ.get("NO_COLOR")
    formatter: logging.Formatter = TextFormatter(colored)
    if log_format == "json":
        from pythonjsonlogger.json import JsonFormatter

        formatter = JsonFormatter(
            fmt="%(asctime)s %(levelname)s %(message)s",
            datefmt="%Y-%m-%dT%H:%M:%SZ",
            rename_fields={
                "asctime": "time",
                "levelname": "level",
            },
            json_default=str,
        )
        formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.raiseExceptions = False  # a closed standard error is no reason to stop
    logging.captureWarnings(True)  # discard warnings of the libraries
    logging.basicConfig(level=logging.ERROR, handlers=[handler], force=True)
    # The client logs a credential plugin's output to the root logger; it may contain a token.
    logging.root.addFilter(lambda record: False)
    logging.getLogger("urllib3").setLevel("DEBUG" if level == "debug" else "ERROR")
    log.setLevel(level.upper())
    return handler


# Cluster: every request to the API server

JSON_TYPE = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
PAGE = 500
CORE, APPS, DISCOVERY = "/api/v1", "/apis/apps/v1", "/apis/discovery.k8s.io/v1"
RETRY_ON = (429, 500, 502, 503, 504)
RETRY_POST_ON = (429, 503)  # a webhook that failed may take its whole timeout each time
UNAVAILABLE = (0, 401, 429, 502, 503)  # after all retries, and whatever was requested
RETRIES = 4  # 7 seconds in all
RETRIES_DURING_ROLLOUTS = 7  # 31 seconds: a restart of the API server takes 10 to 20
REQUESTS_AT_A_TIME = 16  # dry runs: 0.84 of the wall time that 8 take; more do not help


def in_parallel(
    items: Iterable[Item], ask: Callable[[Item], Answer]
) -> Iterator[tuple[Item, Answer]]:
    """Yield each item with its answer as the answers arrive, from daemon threads.

    Exceptions from `ask` are raised here. If the caller stops reading, the remaining items are
    not processed.
    """
    # A ThreadPool would do, but importing it costs each start 6 ms, of 95.
    todo = list(items)
    count = len(todo)
    shared = iter(todo)
    answers: queue.SimpleQueue[tuple[Item, Any, Exception | None]] = queue.SimpleQueue()

    def work() -> None:
        for item in shared:  # each thread takes the next item
            try:
                answers.put((item, ask(item), None))
            except Exception as error:
                answers.put((item, None, error))

    for _ in range(min(REQUESTS_AT_A_TIME, count)):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in range(count):
            item, answer, error = answers.get()
            if error:
                raise error
            yield item, answer
    finally:
        todo.clear()


class Permission(NamedTuple):
    verb: str
    resource: str
    namespace: str  # empty: all namespaces
    group: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        where = f"namespace {self.namespace}" if self.namespace else "all namespaces"
        resource = "/".join(filter(None, (self.resource, self.subresource)))
        return f"{self.verb} {'.'.join(filter(None, (resource, self.group)))} in {where}"


@dataclass
class Connection:
    """How to reach a cluster, for the client's connections and for kubectl."""

    configuration: Any  # the client's
    context: str = ""  # empty: the service account of the Pod
    kubectl_flags: tuple[str, ...] = ()
    impersonation: Sequence[tuple[str, str]] = ()  # headers; a name may be repeated
    reload: Callable[[], object] = bool  # reads the credentials again; by default nothing

    def __str__(self) -> str:
        name = f"Context {self.context}" if self.context else "In-cluster service account"
        return f"{name} ({self.configuration.host})"

    def kubectl_command(self, ref: ObjectRef, *words: str) -> str:
        """Return a command about an object for a person to copy."""
        target = [ref.argument, "--namespace", ref.namespace]
        return shlex.join(["kubectl", *words, *target, *self.kubectl_flags])


class Cluster:
    """The API server: raw JSON over the client's own connections."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.retries = 0
        self.timeout = 10  # seconds; more once it has responded
        self.clock_skew = timedelta(0)  # of the API server's clock against the local one
        self.credentials = Credentials(connection)
        self.open_connections(REQUESTS_AT_A_TIME)

    def open_connections(self, count: int) -> None:
        """Keep up to so many connections; urllib3 warns and reconnects if there are more."""
        from kubernetes.client import ApiClient

        configuration = self.connection.configuration
        configuration.connection_pool_maxsize = count
        # The client's typed API classes take 945 ms to load, and 15 times as long to read.
        self.pool: urllib3.PoolManager = ApiClient(configuration).rest_client.pool_manager

    def now(self) -> datetime:
        """Return the time of the API server, which dates Pods."""
        return datetime.now(timezone.utc) + self.clock_skew

    def check_connection(self) -> None:
        """Check that the API server responds within 10 s, else ApiError. Set the clock by it."""
        import email.utils  # would cost each start 5 ms, of 115

        response = self.send("GET", "/version", self.credentials.get())
        if response.status == 401:
            raise api_error(response)
        date = response.headers.get("Date")
        if date:
            skew = email.utils.parsedate_to_datetime(date) - datetime.now(timezone.utc)
            # A Date has whole seconds.
            self.clock_skew = skew if abs(skew) > timedelta(seconds=2) else timedelta(0)
        self.retries = RETRIES
        self.timeout = 60

    def request(self, method: str, path: str, **parts: Any) -> bytes:
        """Return the body of a successful response. ApiError for any other, after retries.

        Everything sent is safe to repeat. Expired credentials are renewed, once.
        """
        token = self.credentials.get()
        response = self.send(method, path, token, **parts)
        if response.status == 401:
            response = self.send(method, path, self.credentials.get(rejected=token), **parts)
        if not 200 <= response.status < 300:
            raise api_error(response)
        return response.data

    def send(
        self,
        method: str,
        path: str,
        token: str,
        query: Json | None = None,
        body: Json | None = None,
        accept: str = JSON_TYPE,
        quick: bool = False,
        retry_429: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        """Return the response, whatever its status. ApiError with status 0 if there is none.

        A quick request takes at most a second and is not repeated.
        """
        import urllib.parse  # would cost each start 2 ms, of 112

        import urllib3

        host = self.connection.configuration.host
        headers = urllib3.HTTPHeaderDict(self.connection.impersonation)
        headers["Accept"] = accept
        # API servers compress above 128 KB; lists shrink to a tenth.
        headers["Accept-Encoding"] = "gzip"
        headers["User-Agent"] = f"{FIELD_MANAGER}/{VERSION}"
        headers["Content-Type"] = STRATEGIC_MERGE if method == "PATCH" else JSON_TYPE
        if token:
            headers["Authorization"] = token
        retry_on = RETRY_POST_ON if method == "POST" else RETRY_ON
        retry = urllib3.Retry(
            total=0 if quick else self.retries,
            status_forcelist=[status for status in retry_on if retry_429 or status != 429],
            respect_retry_after_header=retry_429,
            allowed_methods=None,  # all
            backoff_factor=0.5,
            backoff_max=8,
            backoff_jitter=0.5,
            raise_on_status=False,
        )
        try:
            return self.pool.request(
                method,
                host + path + (f"?{urllib.parse.urlencode(query)}" if query else ""),
                body=json.dumps(body) if body else None,
                headers=headers,
                timeout=urllib3.Timeout(total=1 if quick else None, connect=10, read=self.timeout),
                retries=retry,
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            message = f"cannot connect to the API server at {host}: {innermost_cause(error)}"
            raise ApiError(0, message) from error

    def find(self, path: str, absent: Collection[int] = (404,), **parts: Any) -> Json:
        """Return the object; empty if the response has one of the statuses in `absent`."""
        try:
            return decode_object(self.request("GET", path, **parts))
        except ApiError as error:
            if error.status not in absent:
                raise
            return {}

    def retry_expired(self, read: Callable[[], Answer]) -> Answer:
        """Return what `read` makes of a list, from its start again if its pages expire (410)."""
        for _ in range(RETRIES):
            try:
                return read()
            except ApiError as error:
                if error.status != 410:
                    raise
                log.debug("the list expired; reading it again")
        return read()

    def items(
        self, group: str, resource: str, namespaces: Names, selector: str | None = None
    ) -> Iterator[Json]:
        """Yield the items of a list, read in pages; no namespaces means all."""
        paths = [f"{group}/namespaces/{name}/{resource}" for name in namespaces]
        for path in paths or [f"{group}/{resource}"]:
            query: Json = {"limit": PAGE}
            if selector:
                query["labelSelector"] = selector
            while True:
                body = self.request("GET", path, query=query)
                metadata = yield from items_of(body.decode("utf-8", "replace"))
                if not metadata.get("continue"):
                    break
                query["continue"] = metadata["continue"]

    def pods_of(self, workload: ObjectRef, obj: Json) -> list[Json]:
        """Return the Pods that a workload's labels select; some may be of other workloads."""
        namespaces = [workload.namespace]
        selector = selector_of(workload, obj)
        return self.retry_expired(lambda: list(self.items(CORE, "pods", namespaces, selector)))

    def serving_pods(self, namespaces: Names) -> set[PodName] | None:
        """Return the Pods that are ready or serving endpoints; None if that is forbidden."""

        def read() -> set[PodName]:
            pods = set()
            for endpoint_slice in self.items(DISCOVERY, "endpointslices", namespaces):
                for endpoint in dig(endpoint_slice, "endpoints"):
                    conditions = dig(endpoint, "conditions")  # absent means ready
                    if conditions.get("ready") is not False or conditions.get("serving"):
                        name = dig(endpoint, "targetRef").get("name")  # none: not a Pod
                        pods.add((endpoint_slice["metadata"]["namespace"], name))
            return pods

        try:
            return self.retry_expired(read)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            log.warning("cannot list EndpointSlices: every healthy workload counts as serving")
            return None

    def controller_of(self, ref: ObjectRef) -> ObjectRef | None:
        """Return the controller of an object, from its metadata alone; None if it has none."""
        return controller_of(self.find(path_of(ref), accept=METADATA_ONLY))

    def workloads(self, kind: str, namespaces: Names) -> Iterator[tuple[ObjectRef, Json]]:
        """Yield all workloads of a kind, as the API server has them."""
        for obj in self.items(APPS, f"{kind.lower()}s", namespaces):
            namespace = sys.intern(obj["metadata"]["namespace"])
            yield ObjectRef(kind, namespace, name_of(obj), "apps"), obj

    def workload(self, ref: ObjectRef, quick: bool = False) -> Json:
        """Return the workload as it is now; empty if it does not exist."""
        return self.find(path_of(ref), quick=quick)

    def owner(self, owner: ObjectRef, pod: Json) -> Json:
        """Return the controller of a Pod as it is now; empty if it does not exist.

        Of a custom resource, return what the Pod tells: the annotations of its template.
        """
        if (owner.kind, owner.group) in HAVE_TEMPLATE:
            return self.workload(owner)
        references = dig(pod, "metadata", "ownerReferences")
        uid = next(reference["uid"] for reference in references if reference.get("controller"))
        return {
            "metadata": {"uid": uid},
            "spec": {"template": {"metadata": pod["metadata"]}},
        }

    def newest_revision(self, owner: ObjectRef, obj: Json) -> str:
        """Return the name of a workload's current ControllerRevision.

        Only the revision number orders them: a template that comes back takes an old name.
        """
        selector = selector_of(owner, obj)
        found = self.items(APPS, "controllerrevisions", [owner.namespace], selector)
        own = {item["revision"]: name_of(item) for item in found if controller_of(item) == owner}
        return own[max(own)] if own else ""

    def evict(self, pod: Json) -> None:
        """Evict a Pod if it still has its UID; the response says only that this was accepted.

        ApiError 429 if a PodDisruptionBudget allows no disruption now.
        """
        metadata = only(pod["metadata"], ("name", "namespace"))
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": metadata,
            "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}},
        }
        path = f"{CORE}/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
        self.request("POST", path, body=body, retry_429=False)

    def change_images(
        self,
        pod: Json,
        images: Mapping[str, str],
        dry_run: bool,
    ) -> None:
        """Change images of a Pod's containers, by their names, if it still has its UID.

        The containers are in the Pod's own order; another one is a 422. ApiError 422 or 403 if a
        policy refuses the change; see first_line.
        """
        metadata = pod["metadata"]
        spec = {
            key: [
                {"name": container["name"], "image": images[container["name"]]}
                for container in dig(pod, "spec", key)
                if container["name"] in images
            ]
            for key in ("containers", "initContainers")
        }
        body = {
            "metadata": {"uid": metadata["uid"]},
            "spec": {key: containers for key, containers in spec.items() if containers},
        }
        query = {"fieldManager": FIELD_MANAGER}
        if dry_run:
            query["dryRun"] = "All"
        ref = ObjectRef("Pod", metadata["namespace"], metadata["name"])
        self.request("PATCH", path_of(ref), query=query, body=body)

    def pod(self, pod: Json) -> Json:
        """Return a Pod as it is now; empty if it is gone, terminating, or another one by now.

        A list of one: so the permission to get Pods is not needed.
        """
        metadata = pod["metadata"]
        query = {"fieldSelector": f"metadata.name={metadata['name']}"}
        found = self.find(f"{CORE}/namespaces/{metadata['namespace']}/pods", query=query)
        same = [p for p in dig(found, "items") if uid_of(p) == metadata["uid"]]
        return next((p for p in same if not is_terminating(p)), {})

    def why_no_pods(self, ref: ObjectRef, obj: Json) -> str:
        """Return why a workload has no Pods, by a condition or event; empty if none is known."""
        reason = short_reason(failure_condition(obj) or self.failed_create(ref, obj))
        return f"no Pods since its last rollout: {reason}" if reason else ""

    def failed_create(self, ref: ObjectRef, obj: Json) -> str:
        """Return why a controller cannot create Pods, by its latest event; empty if it can.

        For StatefulSets and DaemonSets, nothing in their status says so.
        """
        uid = dig(obj, "metadata").get("uid")
        query = {"fieldSelector": f"involvedObject.uid={uid},reason=FailedCreate"}
        path = f"{CORE}/namespaces/{ref.namespace}/events"
        try:
            events = dig(self.find(path, query=query), "items")
        except ApiError as error:
            return f"cannot read its events: {error}"
        latest: Json = max(events, key=lambda event: event.get("lastTimestamp") or "", default={})
        return redact_text(latest.get("message", ""))

    def pod_today(self, planned: PlannedWorkload, obj: Json) -> Json:
        """Return the Pod that would be created for a workload today. ApiError if it is rejected.

        In this dry run, admission runs and nothing is stored.
        """
        pod = pod_to_create(planned.ref, obj, unpacked(planned.sample))
        path = f"{CORE}/namespaces/{planned.ref.namespace}/pods"
        query = {
            "fieldManager": FIELD_MANAGER,
            "dryRun": "All",
        }
        return decode_object(self.request("POST", path, query=query, body=pod))

    def last_change(self, config: ObjectRef) -> ConfigChange | ApiError:
        """Return when a ConfigMap or Secret last changed, from its metadata alone."""
        try:
            body = self.request("GET", path_of(config), accept=METADATA_ONLY)
            return change_of(decode_object(body))
        except ApiError as error:
            return error

    def namespace(self, name: str) -> Json:
        """Return a namespace's metadata; empty if it no longer exists or cannot be read."""
        return self.find(f"{CORE}/namespaces/{name}", absent=(403, 404), accept=METADATA_ONLY)

    def patch_template(self, ref: ObjectRef, annotations: Labels, version: str) -> Json:
        """Set annotations of a workload's Pod template, and return the workload.

        ApiError 409 if its resource version is another one by now.
        """
        body = {
            "metadata": {"resourceVersion": version},
            "spec": {"template": {"metadata": {"annotations": annotations}}},
        }
        query = {"fieldManager": FIELD_MANAGER}
        return decode_object(self.request("PATCH", path_of(ref), query=query, body=body))

    def is_allowed(self, permission: Permission) -> bool:
        group = "authorization.k8s.io/v1"
        review = {
            "apiVersion": group,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": permission._asdict()},
        }
        data = self.request("POST", f"/apis/{group}/selfsubjectaccessreviews", body=review)
        return dig(decode_object(data), "status").get("allowed") is not False


class Credentials:
    """The Authorization header, kept for half a minute.

    The client's own hook has no lock, runs a credential plugin on every request if its tokens
    live for less than 5 minutes, and never renews a token without an expiration time.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.lock = threading.Lock()
        self.token = ""
        self.valid_until = -math.inf

    def get(self, rejected: str | None = None) -> str:
        """Return the header; read again if it was rejected, unless another thread has done so."""
        with self.lock:
            is_rejected = rejected == self.token
            if is_rejected or time.monotonic() >= self.valid_until:
                self.token = self.read(renew=is_rejected)
                self.valid_until = time.monotonic() + 30
            return self.token

    def read(self, renew: bool) -> str:
        configuration = self.connection.configuration
        try:
            if renew:
                self.connection.reload()
            token = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except Exception as error:  # of a plugin or file; its text may contain the token
            message = f"cannot renew the credentials: {type(error).__name__}"
            raise ApiError(0, message) from None
        token = (token or "").strip()  # a token file ends with a line break
        if not re.fullmatch("[ -~]*", token):
            raise ApiError(401, "the token must be printable ASCII; check the credentials")
        return token


def api_error(response: urllib3.BaseHTTPResponse) -> ApiError:
    """Return the error that a response means, in the API server's own words if it has any."""
    status = {}
    causes = {}
    with contextlib.suppress(ApiError, AttributeError):  # for example a proxy's HTML page
        status = decode_object(response.data)
        found = dig(status, "details", "causes")
        causes = {cause.get("reason"): str(cause.get("message")) for cause in found}
    message = printable(redact_text(str(status.get("message") or response.reason or "")))
    if response.status == 401:
        message = "Unauthorized: credentials were rejected or have expired; log in again"
    pause = str(response.headers.get("Retry-After"))
    retry_after = float(pause) if pause.isdecimal() else 0  # it may be a date
    return ApiError(response.status, f"{response.status} {message}".strip(), causes, retry_after)


def innermost_cause(error: BaseException) -> str:
    """Return the text of the innermost cause, which says the most."""
    cause = error.__cause__ or error.__context__
    if cause:
        return innermost_cause(cause)
    return printable(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def selector_of(workload: ObjectRef, obj: Json) -> str:
    """Return the label selector of a workload's Pods, without its matchExpressions."""
    selector = dig(obj, "spec", "selector")
    if workload.kind != "ReplicationController":
        selector = dig(selector, "matchLabels")
    return ",".join(f"{key}={value}" for key, value in selector.items())


def path_of(ref: ObjectRef) -> str:
    group = APPS if ref.group else CORE
    return f"{group}/namespaces/{ref.namespace}/{ref.kind.lower()}s/{ref.name}"


def decode_object(body: bytes | str) -> Json:
    """Return a JSON object. ApiError for anything else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ApiError(200, f"unexpected response: not a JSON object: {body[:80]!r}")
    return value


def items_of(text: str) -> Generator[Json, None, Json]:
    """Yield a list's items one by one and return its metadata. ApiError if it is not a list.

    Decoding item by item takes half the time of json.loads on 500 Pods: with few objects
    alive, the garbage collector has little to walk through.
    """
    decoder = json.JSONDecoder()
    head, found, _ = text.partition('"items":[')  # API servers write it without spaces
    start = position = len(head + found)
    try:
        while found and text[position] != "]":
            item, position = decoder.raw_decode(text, position + (text[position] == ","))
            yield item
    except (ValueError, IndexError, RecursionError):
        message = f"truncated response: list ends after {position} characters"
        raise ApiError(200, message) from None
    envelope = decode_object(text[:start] + text[position:])
    items = envelope.get("items")
    metadata = envelope.get("metadata")
    if not isinstance(items, list) or not isinstance(metadata, dict):
        raise ApiError(200, f"unexpected response: not a list: {text[:80]!r}")
    yield from items  # empty, unless it was written with spaces
    return metadata


# Starting: kubectl, the kubeconfig, the permissions

NO_CONTEXT = "current-context must exist"  # kubectl config view --minify, without a context


def find_kubectl(path: str) -> str:
    """Return the path of kubectl. StartError if there is none."""
    found = shutil.which(path)
    if not found:
        hint = "install it (https://kubernetes.io/docs/tasks/tools/) or specify its path"
        raise StartError(f"kubectl not found or not executable: {path}; {hint} with --kubectl")
    return found


def run_command(command: Sequence[str]) -> tuple[str, str]:
    """Return a command's standard output, and why it failed in one line (empty: it did not)."""
    import subprocess  # would cost each start 3 ms, of 110

    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", innermost_cause(error)
    lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
    return ended.stdout, printable(lines[-1]) if ended.returncode else ""


def connect(kubectl: str, kubeconfig: str | None, context: str | None) -> Connection:
    """Return how to reach the cluster that kubectl means. StartError if there is none."""
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_incluster_config

    flags = ["--kubeconfig", kubeconfig] if kubeconfig else []
    view = [kubectl, "config", "view", "--minify", *flags]
    view += ["--context", context] if context else []
    connection = Connection(Configuration())
    config = read_kubeconfig(view)
    if not config:
        try:
            load_incluster_config(connection.configuration)
        except ConfigException as error:
            raise StartError(f"cannot use the Pod's service account: {error}") from None
        return connection
    user = load_user(config, connection, kubeconfig)
    connection.context = config["current-context"]
    # By name, because the current context may change during the run.
    connection.kubectl_flags = (*flags, "--context", connection.context)
    connection.impersonation = impersonation_headers(user)
    connection.reload = lambda: load_user(read_kubeconfig(view), connection, kubeconfig)
    configuration = connection.configuration
    if "exec" in user and not (configuration.api_key or configuration.cert_file):
        plugin = f"credential plugin {user['exec']['command']} (context {connection.context})"
        raise StartError(f"{plugin} failed; run it manually to see the error")
    return connection


def read_kubeconfig(view: Sequence[str]) -> Json:
    """Return the kubeconfig as kubectl merges it, for one context, certificates included.

    Empty if there is no kubeconfig but a service account. StartError if neither can be used.
    """
    output, error = run_command([*view, "--flatten", "--raw", "--output=json"])
    if output.startswith("{"):
        return decode_object(output)
    error = error or "unexpected output"  # which is not shown: it may have a token
    is_default = "--kubeconfig" not in view and "--context" not in view
    if NO_CONTEXT not in error:
        raise StartError(f"{error.removeprefix('error: ')}; to reproduce: {shlex.join(view)}")
    if is_default and "KUBERNETES_SERVICE_HOST" in os.environ:
        return {}
    hint = "specify a file with --kubeconfig or a context with --context"
    raise StartError(f"no cluster configured: the kubeconfig has no current context; {hint}")


def load_user(config: Json, connection: Connection, kubeconfig: str | None) -> Json:
    """Load server and credentials for the client, and return the user of the kubeconfig.

    The client writes certificates to files with mode 0600, and removes them when it ends.
    """
    from kubernetes.config import ConfigException, load_kube_config_from_dict

    user = dig((config.get("users") or [{}])[0], "user")
    if "tokenFile" in user:
        user["tokenFile"] = absolute_path(user["tokenFile"], kubeconfig)
    plugin = dig(user, "exec")
    if os.sep in plugin.get("command", ""):  # else it is looked up on the PATH
        plugin["command"] = absolute_path(plugin["command"], kubeconfig)
    try:
        load_kube_config_from_dict(config, client_configuration=connection.configuration)
    except (ConfigException, OSError, ValueError) as error:
        # The client quotes whole entries, tokens included.
        text = re.sub(r"\{.*\}", "{...}", str(error), flags=re.DOTALL)
        raise StartError(f"cannot use the kubeconfig: {printable(text)}") from None
    return user


def absolute_path(path: str, kubeconfig: str | None) -> str:
    """Return a path of a kubeconfig; a relative one starts in the folder of that file."""
    files = kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    folders = map(os.path.dirname, files.split(os.pathsep))
    paths = [os.path.abspath(os.path.join(folder, path)) for folder in folders]
    return next(filter(os.path.exists, paths), path)


def impersonation_headers(user: Json) -> list[tuple[str, str]]:
    """Return the headers that impersonate the user specified by `as`."""
    import urllib.parse

    values = {
        f"Extra-{urllib.parse.quote(k, '')}": v for k, v in dig(user, "as-user-extra").items()
    }
    values["Group"] = dig(user, "as-groups")
    for name, key in (("User", "as"), ("Uid", "as-uid")):
        values[name] = [user[key]] if user.get(key) else []
    return [(f"Impersonate-{name}", text) for name, texts in values.items() for text in texts]


def check_kubectl(path: str, connection: Connection) -> None:
    """Check that kubectl can reach the cluster. StartError if not, for example because of a proxy.

    Without this check, workloads would be patched although kubectl cannot wait for their rollouts.
    """
    command = [path, *connection.kubectl_flags, "version"]
    for pause in (1, 1, 0):
        _, error = run_command(command)
        if not error or "Forbidden" in error:  # which is a response
            return
        time.sleep(pause)
    hint = f"to reproduce: {shlex.join(command)}"
    raise StartError(f"kubectl cannot connect to the cluster: {error}; {hint}")


def check_permissions(cluster: Cluster, options: Options) -> None:
    """Check the permissions that this run needs. StartError lists the missing ones."""
    namespaces = namespaces_to_list(options)
    needed = []
    for namespace in namespaces or [""]:
        needed.append(Permission("list", "pods", namespace))
        if options.exclude_annotation:
            needed.append(Permission("get", "namespaces", namespace))
        if "Deployment" in options.kinds:
            needed.append(Permission("get", "replicasets", namespace, group="apps"))
        for kind in options.kinds:
            verbs = ("get", "list", "patch", "watch") if options.confirm else ("get",)
            resource = f"{kind.lower()}s"
            needed += [Permission(verb, resource, namespace, group="apps") for verb in verbs]
    hint = "" if namespaces else ", or select your namespaces with --include-namespace"
    require_permissions(cluster, needed, hint)
    if options.confirm and not options.only_drifted:
        optional = [Permission("create", "pods", namespace) for namespace in namespaces or [""]]
        if not all(allowed for _, allowed in in_parallel(optional, cluster.is_allowed)):
            log.warning("no permission to create Pods: rollouts are not checked beforehand")


def check_permissions_for_pods(cluster: Cluster, plan: Plan) -> None:
    """Check the permissions to evict or change Pods. StartError lists the missing ones."""
    needed = set()
    for planned in plan.workloads[: plan.selected]:
        namespace = planned.ref.namespace
        if planned.method is Method.IN_PLACE:
            needed.add(Permission("patch", "pods", namespace))
        if planned.evicted_pods:
            needed.add(Permission("create", "pods", namespace, subresource="eviction"))
            if planned.ref.kind == "DaemonSet" and is_workload(planned.ref):
                needed.add(Permission("list", "controllerrevisions", namespace, group="apps"))
    require_permissions(cluster, needed)


def require_permissions(cluster: Cluster, needed: Iterable[Permission], hint: str = "") -> None:
    answers = dict(in_parallel(needed, cluster.is_allowed))
    missing = sorted(str(permission) for permission in answers if not answers[permission])
    if missing:
        text = f"missing permissions: {', '.join(missing)}"
        raise StartError(f'{text}; see "Permissions" in the README{hint}')


# Selecting Pods


def namespaces_to_list(options: Options) -> list[str]:
    """Return the namespaces to read one by one; none means all, which needs more permissions."""
    if any(map(is_pattern, options.include_namespace)):
        return []
    names = dict.fromkeys(options.include_namespace)
    return [name for name in names if not matches(name, options.exclude_namespace)]


def is_included(namespace: str, options: Options) -> bool:
    included = options.include_namespace
    excluded = options.exclude_namespace
    return matches(namespace, included or ["*"]) and not matches(namespace, excluded)


def typed_names(ref: ObjectRef) -> list[str]:
    """Return the TYPE/NAME forms of an object; only Kubernetes' own kinds need no group."""
    groups = [ref.group] if ref.kind in KINDS else [ref.group, ""]
    return [type_and_name(ref.kind, group, ref.name) for group in groups]


def is_named(ref: ObjectRef, options: Options) -> bool:
    return any(matches(name, options.workloads or ["*"]) for name in typed_names(ref))


def read_candidates(pods: Iterable[Json], options: Options) -> tuple[Candidates, Scan]:
    """Return the matching Pods by owner, and what else was seen. ApiError for an odd Pod."""
    candidates: Candidates = {}
    scan = Scan()
    for pod in pods:
        scan.pods += 1
        try:
            candidate = candidate_of(pod, options, scan)
            if candidate is None:
                continue
            metadata = pod["metadata"]
            no_controller = ObjectRef("", metadata["namespace"], metadata["name"])
            owner = controller_of(pod) or no_controller
            if owner in candidates:
                candidates[owner].merge(candidate)
                continue
            candidates[owner] = candidate
            candidate.owners.append(owner)
            if options.only_drifted or options.confirm or options.evict:
                sample = {"metadata": without(metadata, "managedFields"), "spec": pod["spec"]}
                candidate.sample = packed(sample)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            text = json.dumps(pod)[:80]
            raise ApiError(200, f"unexpected response: not a Pod: {text}: {error!r}") from None
    return candidates, scan


def candidate_of(pod: Json, options: Options, scan: Scan) -> Candidate | None:
    """Return a Pod as a candidate of its own, or None if it does not match."""
    metadata = pod["metadata"]
    namespace = metadata["namespace"]
    scan.namespaces.add(namespace)
    scan.containers |= {container["name"] for _, container in containers_of(pod)}
    sidecars = set(map(as_sidecar, named_containers(pod, options.sidecars)))
    is_candidate = sidecars or (options.include_missing and is_replaceable(pod))
    if not is_candidate or is_terminating(pod) or not is_included(namespace, options):
        return None
    created = created_at(pod)
    if created >= options.cutoff:
        scan.after_cutoff += 1
        return None
    labels = {sys.intern(key): value for key, value in dig(metadata, "labels").items()}
    return Candidate(
        oldest=created,
        labels=labels,
        names=[metadata["name"]],
        live_pods=[live_pod(pod, options.sidecars)] if options.only_drifted else [],
        ready=int(is_ready(pod)),
        sidecars=share(frozenset(sidecars)),
        unhealthy_reason=waiting_reason(pod),
        runs_to_completion=runs_to_completion(pod),
    )


@functools.cache
def share(value: Any) -> Any:
    """Return an equal value that is kept only once; 150,000 Pods have 16,000 views."""
    return value


def packed(value: Any, sort_keys: bool = False) -> bytes:
    """Return a value as compressed JSON: a quarter of the memory, in 0.1 ms per Pod."""
    return zlib.compress(json.dumps(value, sort_keys=sort_keys).encode(), 1)


def unpacked(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))


def runs_to_completion(pod: Json) -> bool:
    return pod["spec"].get("restartPolicy", "Always") != "Always"


def is_replaceable(pod: Json) -> bool:
    """Return whether a controller would replace a Pod, from a template that can be read."""
    owner = controller_of(pod)
    is_known = owner is not None and (owner.kind, owner.group) in HAVE_TEMPLATE
    return is_known and not runs_to_completion(pod)


def is_terminating(pod: Json) -> bool:
    """Return whether a Pod is being deleted (and may still be ready) or has ended."""
    return has_ended(pod) or bool(dig(pod, "metadata", "deletionTimestamp"))


def has_ended(pod: Json) -> bool:
    return dig(pod, "status", "phase") in ("Succeeded", "Failed")


def not_terminating(pods: Iterable[Json]) -> list[Json]:
    return [pod for pod in pods if not is_terminating(pod)]


def created_at(pod: Json) -> datetime:
    """Return when a Pod was created, by the API server's clock; startTime is by the node's."""
    return parse_time(pod["metadata"]["creationTimestamp"])


def name_of(obj: Json) -> str:
    return obj["metadata"]["name"]


def uid_of(pod: Json) -> str:
    return pod["metadata"]["uid"]


def annotations_of(obj: Json) -> dict[str, str]:
    return dig(obj, "metadata", "annotations")


def template_annotations(workload: Json) -> dict[str, str]:
    return annotations_of(dig(workload, "spec", "template"))


REGULAR, NATIVE, INIT = "containers", "initContainers", "init"  # kinds of containers


def containers_of(pod: Json) -> Iterator[tuple[str, Json]]:
    """Yield the containers, each with its kind: regular, native sidecar or init container."""
    for container in pod["spec"]["containers"]:
        yield REGULAR, container
    for container in dig(pod, "spec", "initContainers"):
        yield NATIVE if container.get("restartPolicy") == "Always" else INIT, container


def as_sidecar(found: tuple[str, Json]) -> Sidecar:
    """Return a container with its kind as a sidecar."""
    kind, container = found
    return Sidecar(container["name"], container.get("image", ""), kind == NATIVE, kind == INIT)


def controller_of(obj: Json) -> ObjectRef | None:
    """Return the owner that is marked as the controller; it need not be the first."""
    for reference in dig(obj, "metadata", "ownerReferences"):
        if reference.get("controller"):
            group = reference["apiVersion"].rpartition("/")[0]
            return ObjectRef(
                sys.intern(reference["kind"]),  # equal in many Pods, so kept once
                sys.intern(obj["metadata"]["namespace"]),
                reference["name"],
                sys.intern(group),
            )
    return None


def conditions_of(obj: Json) -> dict[tuple[str, str], Json]:
    """Return the conditions of an object by type and status, such as ("Ready", "True")."""
    return {(c["type"], c["status"]): c for c in dig(obj, "status", "conditions")}


def is_ready(pod: Json) -> bool:
    return ("Ready", "True") in conditions_of(pod)


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


def stuck_containers(pod: Json) -> Iterator[tuple[str, Json]]:
    """Yield the name of each container that does not start, and its waiting state."""
    for status in container_statuses(pod):
        waiting = dig(status, "state", "waiting")
        if waiting.get("reason") in STUCK:
            yield status["name"], waiting


def container_statuses(pod: Json) -> list[Json]:
    status = dig(pod, "status")
    return [*dig(status, "initContainerStatuses"), *dig(status, "containerStatuses")]


def waiting_reason(pod: Json) -> str:
    """Return why a Pod does not run, in Kubernetes' word; empty if nothing is wrong."""
    for _, waiting in stuck_containers(pod):
        return waiting["reason"]
    reasons = [condition.get("reason") for condition in dig(pod, "status", "conditions")]
    return "Unschedulable" if "Unschedulable" in reasons else ""


# Reasons to skip: one list of rules, for the plan and again right before each write

NOT_READ: Json = {"metadata": {}}
PENDING = "has a pending template change, which replacing its Pods would roll out"


@dataclass(frozen=True)
class Situation:
    """What is known of a workload when the rules are applied; None: not known yet."""

    ref: ObjectRef  # of a workload, or of whatever owns the Pods
    options: Options
    obj: Json  # the workload as it is now, or NOT_READ; empty: it does not exist
    namespace: Json = field(default_factory=dict)  # its metadata; empty: not read
    now: datetime | None = None  # None: a rollout in progress is no reason to skip
    unhealthy_reason: str = ""
    causes: Collection[str] = ()  # of the error of its dry run
    runs_to_completion: bool = False  # its Pods are not restarted when they end
    restarts_by_others: Sequence[str] = ()  # timestamps of other runs, since this one began
    pods: Sequence[Json] | None = None  # its Pods with the sidecar, as they are now
    old_pods: Sequence[str] | None = None  # names of those to replace
    in_place: bool = False  # it is not restarted: its images may be changed in place

    @property
    def annotations(self) -> tuple[Labels, Labels]:
        return annotations_of(self.obj), template_annotations(self.obj)

    @property
    def needs_rollout(self) -> bool:
        """Return whether only a rollout may replace its Pods."""
        return not (self.options.evict or self.in_place)

    @property
    def how_to_select(self) -> str:
        return KINDS[self.ref.kind]

    @property
    def in_progress_since(self) -> str:
        """Return when another run restarted the workload; empty if that is over or too old."""
        if not (self.now and is_rolling_out(self.ref, self.obj)):
            return ""
        start = self.now - timedelta(seconds=self.options.timeout)
        stamps = timestamps_of(self.obj)
        return next((stamp for stamp in stamps if is_since(start, stamp)), "")

    @property
    def kept_pods(self) -> str:
        """Return `1 of 3 Pods is below partition 1 and keeps`."""
        count = len(self.old_pods or ())
        total = count_of(dig(self.obj, "spec", "replicas") or 0, "Pod")
        verbs = ("is", "keeps") if count == 1 else ("are", "keep")
        below = f"below partition {partition_of(self.obj)}"
        return f"{count} of {total} {verbs[0]} {below} and {verbs[1]}"


# The first rule that applies says why a workload is not restarted, and what to do.
SKIP_RULES: tuple[tuple[Callable[[Situation], Any], str], ...] = (
    (
        lambda it: it.ref.kind == "",
        "not managed by a controller; delete and recreate it manually",
    ),
    (
        lambda it: it.ref.kind == "Node",
        "static Pod, managed by the kubelet of its node",
    ),
    (
        lambda it: it.ref.kind == "Job" or it.runs_to_completion,
        "managed by a {it.ref.kind}; runs to completion",
    ),
    (
        lambda it: it.ref.kind == "ReplicationController" and not it.options.evict,
        "managed by a ReplicationController, which does not support rollouts; use --evict",
    ),
    (
        lambda it: (it.ref.kind, it.ref.group) == ("ReplicaSet", "apps") and not it.options.evict,
        "its ReplicaSet has no Deployment or no longer exists; use --evict",
    ),
    (
        lambda it: not is_workload(it.ref) and not it.options.evict,
        "managed by a {it.ref.kind} ({it.ref.group}); use --evict, or restart it with that "
        "controller's tools",
    ),
    (
        lambda it: is_workload(it.ref) and it.ref.kind not in it.options.kinds,
        "not selected; {it.how_to_select}",
    ),
    (
        lambda it: it.obj == {},
        "no longer exists",
    ),
    (
        lambda it: dig(it.obj, "metadata", "deletionTimestamp"),
        "being deleted",
    ),
    (
        lambda it: (
            "NamespaceTerminating" in it.causes
            or dig(it.namespace, "metadata", "deletionTimestamp")
        ),
        "its namespace is terminating",
    ),
    (
        lambda it: has_any(it.options.exclude_annotation, annotations_of(it.namespace)),
        "its namespace matches --exclude-annotation",
    ),
    (
        lambda it: has_any(it.options.exclude_annotation, *it.annotations),
        "matches --exclude-annotation",
    ),
    (
        lambda it: (
            it.obj is not NOT_READ
            and it.options.include_annotation
            and not has_any(it.options.include_annotation, *it.annotations)
        ),
        "does not match --include-annotation",
    ),
    (
        lambda it: is_paused(it.obj) and it.needs_rollout,
        "paused; run `kubectl rollout resume` first, or use --evict",
    ),
    (
        lambda it: is_on_delete(it.obj) and it.needs_rollout,
        "updateStrategy is OnDelete; use --evict, or delete its Pods manually, one at a time",
    ),
    (
        lambda it: (
            it.now and is_on_delete(it.obj) and is_all_outdated(it.ref, it.obj) and not it.in_place
        ),
        PENDING,
    ),
    (
        lambda it: it.in_progress_since,
        "being rolled out by another run since {it.in_progress_since}",
    ),
    (
        lambda it: it.options.skip_unhealthy and it.unhealthy_reason,
        "unhealthy: {it.unhealthy_reason}",
    ),
    (
        lambda it: it.restarts_by_others,
        "already restarted by another run at {it.restarts_by_others[0]}",
    ),
    (
        lambda it: it.pods is not None and not it.pods,
        "its Pods no longer have the sidecar",
    ),
    (
        lambda it: it.pods and all(created_at(pod) >= it.options.cutoff for pod in it.pods),
        "all its Pods were created after the cutoff",
    ),
    (
        lambda it: it.old_pods is not None and not it.old_pods,
        "already up to date",
    ),
    (
        lambda it: it.old_pods and all_below_partition(it.obj, it.old_pods) and it.needs_rollout,
        "{it.kept_pods} the old sidecar; lower the partition or use --evict",
    ),
)


def reason_to_skip(it: Situation) -> str | None:
    """Return why to skip the workload, and what to do; None means take it."""
    return next((reason.format(it=it) for applies, reason in SKIP_RULES if applies(it)), None)


def require_not_skipped(situation: Situation) -> None:
    """Raise SkipError if the workload is not restarted."""
    reason = reason_to_skip(situation)
    if reason:
        raise SkipError(reason)


RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"  # of kubectl rollout restart


def timestamps_of(workload: Json, prefix: str = "") -> list[str]:
    """Return the times at which this command restarted a workload; no prefix means any.

    If the workload has a controller of its own, that is restartedAt, which operators keep.
    """
    is_controlled = controller_of(workload) is not None
    return [
        value
        for key, value in template_annotations(workload).items()
        if key.endswith(f"{prefix}.rollout.timestamp") or (key == RESTARTED_AT and is_controlled)
    ]


def is_since(moment: datetime, stamp: str) -> bool:
    try:
        return parse_time(stamp) >= moment
    except (ValueError, TypeError):  # somebody else's annotation
        return False


def is_workload(ref: ObjectRef) -> bool:
    """Return whether it is one of Kubernetes' own workloads; OpenKruise has the same kinds."""
    return ref.kind in KINDS and ref.group == "apps"


def is_paused(workload: Json) -> bool:
    return bool(dig(workload, "spec", "paused"))


def is_on_delete(workload: Json) -> bool:
    return dig(workload, "spec", "updateStrategy", "type") == "OnDelete"


def is_all_outdated(ref: ObjectRef, obj: Json) -> bool:
    """Return whether no Pod has the revision of the template, by the status."""
    _, _, current, updated = counts_of(ref, obj)
    return bool(current and not updated)


def partition_of(workload: Json) -> int:
    """Return the partition of a StatefulSet: a rollout leaves the Pods below it alone."""
    return dig(workload, "spec", "updateStrategy", "rollingUpdate", "partition") or 0


def is_below_partition(workload: Json, pod: str) -> bool:
    """Return whether a rollout leaves a Pod alone. The partition counts from spec.ordinals.start.

    Kubernetes' pkg/controller/statefulset/stateful_set_utils.go, newVersionedStatefulSetPod.
    """
    start = dig(workload, "spec", "ordinals", "start") or 0
    partition = partition_of(workload)
    ordinal = pod.rpartition("-")[2]
    return bool(partition) and ordinal.isdigit() and int(ordinal) < start + partition


def all_below_partition(workload: Json, pods: Iterable[str]) -> bool:
    return all(is_below_partition(workload, pod) for pod in pods)


def counts_of(workload: ObjectRef, obj: Json) -> list[int]:
    """Return how many Pods are desired, available, current and updated; 0 is absent in status."""
    is_scheduled = is_workload(workload) and workload.kind == "DaemonSet"
    paths = SCHEDULED if is_scheduled else REPLICAS
    return [dig(obj, *path.split(".")) or 0 for path in paths]


def shortage_of(workload: ObjectRef, obj: Json) -> str:
    desired, available, *_ = counts_of(workload, obj)
    return f"{available} of {desired} available" if available < desired else ""


def is_observed(workload: Json) -> bool:
    generation = dig(workload, "metadata", "generation") or 0
    return (dig(workload, "status", "observedGeneration") or 0) >= generation


def is_rolling_out(workload: ObjectRef, obj: Json) -> bool:
    """Return whether a rollout is in progress, as kubectl sees it, and has not failed."""
    if failure_condition(obj):
        return False
    conditions = dig(obj, "status", "conditions")
    is_complete = any(c.get("reason") == "NewReplicaSetAvailable" for c in conditions)
    desired, available, current, updated = counts_of(workload, obj)
    is_updated = updated >= desired - partition_of(obj) and current <= desired
    return not (is_observed(obj) and is_updated and (is_complete or available >= desired))


def failure_condition(workload: Json) -> str:
    """Return what a workload's conditions say about a failure, or an empty text."""
    conditions = conditions_of(workload)
    failed = conditions.get(("ReplicaFailure", "True")) or conditions.get(("Progressing", "False"))
    return redact_text(failed.get("message", "")) if failed else ""


def has_any(wanted: Iterable[AnnotationFilter], *annotations: Labels) -> bool:
    return any(
        key in found and fnmatch.fnmatchcase(found[key], pattern)
        for key, pattern in wanted
        for found in annotations
    )


# The plan


def group_by_workload(
    candidates: Candidates, owners: Mapping[ObjectRef, ObjectRef | None], options: Options
) -> tuple[Candidates, list[Skip]]:
    """Return the candidates by workload, and the Pods and workloads that are skipped.

    `owners` has the controllers of the ReplicaSets and ReplicationControllers.
    """
    found: Candidates = {}
    skips: set[Skip] = set()
    for owner, candidate in candidates.items():
        ref = owners.get(owner) or owner
        if not is_named(ref, options):
            continue
        situation = Situation(
            ref,
            options,
            NOT_READ,
            runs_to_completion=candidate.runs_to_completion,
        )
        reason = reason_to_skip(situation)
        if reason:
            pods = [ObjectRef("Pod", ref.namespace, name) for name in candidate.names]
            subjects = [ref] if is_workload(ref) else pods
            if candidate.sidecars:  # else they may not be meant to have it
                skips |= {Skip(subject, reason) for subject in subjects}
        elif ref in found:
            found[ref].merge(candidate)
        else:
            found[ref] = candidate
    return found, list(skips)


def plan_workload(
    ref: ObjectRef,
    candidate: Candidate,
    obj: Json,
    serving: set[PodName] | None,
    options: Options,
) -> PlannedWorkload:
    """Return a workload of the plan; `serving` is None if that is not known."""
    unhealthy_reason = candidate.unhealthy_reason or shortage_of(ref, obj)
    pods = [(ref.namespace, name) for name in candidate.names]
    state = State.SERVING
    if unhealthy_reason:
        state = State.UNHEALTHY
    elif serving is not None and serving.isdisjoint(pods):
        state = State.NOT_SERVING
    planned = PlannedWorkload(
        ref=ref,
        pods_to_replace=0,
        pods=max(counts_of(ref, obj)[2], len(pods)),
        ready=candidate.ready,
        sidecars=tuple(sorted(candidate.sidecars)),
        oldest_pod=candidate.oldest,
        state=state,
        unhealthy_reason=unhealthy_reason,
        recreate=dig(obj, "spec", "strategy", "type") == "Recreate",
        resource_version=dig(obj, "metadata").get("resourceVersion", ""),
        sample=candidate.sample,
        owners=tuple(candidate.owners) if options.evict or options.in_place else (),
        controlled_by=controller_of(obj) if is_workload(ref) else None,
    )
    return with_pods(planned, obj, candidate.names, options)


def with_pods(
    planned: PlannedWorkload,
    obj: Json,
    names: Sequence[str],
    options: Options,
) -> PlannedWorkload:
    """Return a planned workload with its Pods to replace, by a rollout, evictions or both.

    A rollout leaves some of them alone, or all.
    """
    method = Method.RESTART
    count = len(names)
    below = sum(is_below_partition(obj, name) for name in names)
    is_below = bool(names) and all_below_partition(obj, names)
    is_left_alone = is_paused(obj) or is_on_delete(obj) or is_below
    evicted = below
    if not options.evict:
        count, evicted = count - below, 0
    elif is_left_alone or not is_workload(planned.ref):
        method, evicted = Method.EVICT, count
    return replace(
        planned,
        method=method,
        pods_to_replace=count,
        evicted_pods=evicted,
        ready=min(planned.ready, count),
        recreate=planned.recreate and method is Method.RESTART,
    )


def changed_in_place(planned: PlannedWorkload, count: int) -> PlannedWorkload:
    """Return a planned workload whose Pods are changed, not replaced."""
    return replace(
        planned,
        method=Method.IN_PLACE,
        pods_to_replace=count,
        evicted_pods=0,
        ready=min(planned.ready, count),
        recreate=False,
    )


def candidate_without_pods(workload: ObjectRef, cutoff: datetime) -> Candidate:
    """Return a workload that has no Pods as a candidate, to compare it like the others."""
    pod = {
        "metadata": {"name": f"{workload.name}-0"},
        "spec": {"containers": []},
    }
    return Candidate(cutoff, labels={}, names=[], sample=packed(pod), owners=[workload])


def in_rollout_order(workloads: Iterable[PlannedWorkload]) -> list[PlannedWorkload]:
    """Return the workloads in rollout order: by state, then by number of Pods, fewest first.

    Among equals, the order alternates between namespaces to spread parallel rollouts across teams.
    """
    states = list(State)
    turns: Counter[tuple[int, int, str]] = Counter()
    order = {}
    for planned in sorted(workloads, key=lambda planned: planned.ref):
        rank = (states.index(planned.state), planned.pods, planned.ref.namespace)
        turns[rank] += 1
        order[planned.ref] = (*rank[:2], turns[rank], planned.ref)
    return sorted(workloads, key=lambda planned: order[planned.ref])


LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # holds a copy of the workload


class WorkloadReader:
    """Reads the selected kinds of workloads: in lists or, without that permission, one by one.

    Those of candidates are kept as JSON, a tenth of the memory, without what the plan does not
    need, and those that a rollout left without Pods.
    """

    def __init__(self, cluster: Cluster, options: Options) -> None:
        self.cluster = cluster
        self.options = options
        self.objects: dict[ObjectRef, str] = {}
        self.without_pods: set[ObjectRef] = set()
        # The names and labels that Deployments select, by namespace and their first label.
        self.deployments: dict[tuple[str, ...], list[tuple[str, frozenset[Any]]]] = {}

    def owners(self, candidates: Candidates) -> dict[ObjectRef, ObjectRef | None]:
        """Return the controller, or None, of each owner that may have one."""
        types = types_of(self.options.workloads)
        if types and types <= {"statefulset", "daemonset"}:  # which own their Pods
            return {}
        guesses = {
            ref: deployment_by_name(ref, candidate.labels)
            for ref, candidate in candidates.items()
            if (ref.kind, ref.group) == ("ReplicaSet", "apps")
        }
        found: dict[ObjectRef, ObjectRef | None] = {}
        if "Deployment" in self.options.kinds:
            self.read_list("Deployment", set(guesses.values()))
            found |= {
                ref: guess
                for ref, guess in guesses.items()
                if self.is_only_selector(guess, candidates[ref].labels)
            }
        elif not self.options.evict:  # only shown as skipped; needs no permission
            return {ref: guess for ref, guess in guesses.items() if guess.name != ref.name}
        kinds = REPLICATED if self.options.evict else [("ReplicaSet", "apps")]
        unknown = {ref for ref in candidates if (ref.kind, ref.group) in kinds} - found.keys()
        return found | dict(in_parallel(unknown, self.cluster.controller_of))

    def is_only_selector(self, deployment: ObjectRef, labels: Labels) -> bool:
        """Return whether this Deployment, and no other, can select Pods with these labels.

        A ReplicaSet is called <deployment>-<hash>, but one that was adopted may have any name.
        """
        namespace = deployment.namespace
        items = labels.items()
        keys = [(namespace, *item) for item in items]
        nearby = [found for key in [*keys, (namespace,)] for found in self.deployments.get(key, ())]
        return [name for name, selected in nearby if selected <= items] == [deployment.name]

    def read(self, candidates: Candidates) -> dict[ObjectRef, str]:
        """Return each workload as it is now, as JSON; empty if it does not exist."""
        wanted = candidates.keys()
        for kind in sorted(self.options.kinds - {"Deployment"}):  # they have been read
            self.read_list(kind, wanted)
        missing = wanted - self.objects.keys()
        for ref, obj in in_parallel(missing, lambda ref: self.read_one(ref, candidates[ref])):
            self.objects[ref] = json.dumps(obj)
        return self.objects

    def read_one(self, ref: ObjectRef, candidate: Candidate) -> Json:
        """Return a workload; for a custom resource, the owner of its Pods (see Cluster.owner)."""
        if is_workload(ref):
            return self.cluster.workload(ref)
        return self.cluster.owner(candidate.owners[0], unpacked(candidate.sample))

    def read_list(self, kind: str, wanted: Collection[ObjectRef]) -> None:
        """Read a list; without the permission, they are read one by one."""
        try:
            self.cluster.retry_expired(lambda: self.take_list(kind, wanted))
        except ApiError as error:
            if error.status != 403:
                raise

    def take_list(self, kind: str, wanted: Collection[ObjectRef]) -> None:
        self.deployments.clear()  # the list may have expired halfway
        for ref, obj in self.cluster.workloads(kind, namespaces_to_list(self.options)):
            if kind == "Deployment":
                labels = dig(obj, "spec", "selector", "matchLabels").items()
                known = self.deployments.setdefault((ref.namespace, *next(iter(labels), ())), [])
                known.append((ref.name, frozenset(labels)))
            if self.is_without_pods(ref, obj):
                self.without_pods.add(ref)
            if ref in wanted or ref in self.without_pods:
                obj["metadata"].pop("managedFields", None)
                annotations_of(obj).pop(LAST_APPLIED, None)
                conditions = dig(obj, "status", "conditions")
                conditions = [c for c in conditions if c["type"] != "Available"]
                obj["status"] = {**dig(obj, "status"), "conditions": conditions}
                if not self.options.only_drifted:
                    dig(obj, "spec", "template").pop("spec", None)
                self.objects[ref] = json.dumps(obj)

    def is_without_pods(self, ref: ObjectRef, obj: Json) -> bool:
        """Return whether a workload that this command has restarted wants Pods and has none.

        No Pod leads to it. With a selector for Pods it is not known whether it is selected.
        """
        desired, _, current, _ = counts_of(ref, obj)
        is_selected = is_included(ref.namespace, self.options) and is_named(ref, self.options)
        is_selected = is_selected and not self.options.selector
        stamps = timestamps_of(obj, self.options.annotation_prefix)
        return bool(is_selected and stamps and desired and not current)


def deployment_by_name(replica_set: ObjectRef, labels: Labels) -> ObjectRef:
    """Return the Deployment that a ReplicaSet's name implies: <deployment>-<pod-template-hash>."""
    suffix = "-" + labels.get("pod-template-hash", "\0")
    name = replica_set.name.removesuffix(suffix)
    return ObjectRef("Deployment", replica_set.namespace, name, "apps")


# Comparing: what a workload's Pods would be like if they were created now

CONTROLLER_LABELS = (
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "apps.kubernetes.io/pod-index",
    "statefulset.kubernetes.io/pod-name",
)
TOKEN_VOLUME = re.compile(r"(kube-api-access)-[a-z0-9]{5}")  # each Pod has its own name for it
# Annotations of this command, of kubectl rollout restart, and of admission about itself
BOOKKEEPING = re.compile(
    r".*\.rollout\.(timestamp|reason|revision)|kubectl\.kubernetes\.io/restartedAt"
    r"|kubernetes\.io/limit-ranger"
)
REFERENCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")


def live_pod(pod: Json, sidecars: Names) -> LivePod:
    view = share(view_of(pod, sidecars))
    return LivePod(name_of(pod), created_at(pod), view, resized_containers(pod))


def resized_containers(pod: Json) -> tuple[str, ...]:
    """Return the containers whose resources were changed in place, by a person or autoscaler.

    managedFields tell: an entry of the subresource `resize` with keys like k:{"name":"app"}.
    """
    found = set()
    for entry in dig(pod, "metadata", "managedFields"):
        if entry.get("subresource") == "resize":
            found |= edited_containers(entry)
    return tuple(sorted(found))


def edited_containers(entry: Json) -> set[str]:
    """Return the containers of which an entry of a Pod's managedFields owns fields."""
    fields = dig(entry, "fieldsV1", "f:spec")
    keys = [*dig(fields, "f:containers"), *dig(fields, "f:initContainers")]
    return {json.loads(key[2:])["name"] for key in keys if key.startswith("k:")}


def pod_to_create(workload: ObjectRef, obj: Json, sample: Json) -> Json:
    """Return the Pod that the workload's controller would create from its template now.

    Injectors read more than the template: Istio takes the workload's name from generateName,
    the controller reference and the label pod-template-hash. These come from a live Pod; nothing
    else does, because an injector skips a Pod that has its sidecar.
    """
    template = obj["spec"]["template"]
    live = sample["metadata"]
    metadata = only(dig(template, "metadata"), ("labels", "annotations", "finalizers"))
    controller_labels = only(dig(live, "labels"), CONTROLLER_LABELS)
    metadata["labels"] = dig(metadata, "labels") | controller_labels
    metadata["generateName"] = live.get("generateName") or f"{workload.name}-"
    metadata["ownerReferences"] = [
        without(reference, "blockOwnerDeletion")
        for reference in dig(live, "ownerReferences")
        if reference.get("controller")
    ]
    spec = without(template["spec"], "nodeName")
    if workload.kind == "StatefulSet":  # its controller adds claims, hostname and subdomain
        pod = live["name"]
        claims = [name_of(claim) for claim in dig(obj, "spec", "volumeClaimTemplates")]
        volumes = [volume for volume in dig(spec, "volumes") if volume["name"] not in claims]
        volumes += [
            {
                "name": name,
                "persistentVolumeClaim": {"claimName": f"{name}-{pod}"},
            }
            for name in claims
        ]
        spec |= {
            "volumes": volumes,
            "hostname": pod,
            "subdomain": obj["spec"].get("serviceName", ""),
        }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
    }


def only(mapping: Json, keys: Iterable[str]) -> Json:
    return {key: mapping[key] for key in keys if key in mapping}


def without(mapping: Json, *keys: str) -> Json:
    return {key: value for key, value in mapping.items() if key not in keys}


def named_containers(pod: Json, names: Names) -> Iterator[tuple[str, Json]]:
    """Yield the named containers of a Pod, each with its kind."""
    for kind, container in containers_of(pod):
        if matches(container["name"], names):
            yield kind, container


def sidecar_parts(pod: Json, names: Names) -> Json:
    """Return the named sidecars of a Pod by name: kind, container, and the volumes it mounts."""
    volumes = {volume["name"]: volume for volume in dig(pod, "spec", "volumes")}
    parts = {}
    for kind, container in named_containers(pod, names):
        mounted = {mount["name"] for mount in dig(container, "volumeMounts")} & volumes.keys()
        used = [volumes[name] for name in sorted(mounted) if not TOKEN_VOLUME.fullmatch(name)]
        parts[container["name"]] = [kind, container, used]
    return parts


NO_SIDECARS = packed({}, sort_keys=True)  # the view of a Pod that has none of them


def view_of(pod: Json, names: Names) -> bytes:
    """Return the named sidecars of a Pod and the volumes they mount, in normal form, packed.

    The views of two Pods are equal if and only if nothing differs. The name and UID of a
    Deployment's ReplicaSet are no difference: each rollout creates another one, and the
    OpenTelemetry operator writes both into an environment variable.
    """
    text = TOKEN_VOLUME.sub(r"\1", json.dumps(sidecar_parts(pod, names)))
    template_hash = dig(pod, "metadata", "labels").get("pod-template-hash", "\0")
    for reference in dig(pod, "metadata", "ownerReferences"):
        if reference["name"].endswith(f"-{template_hash}"):
            text = text.replace(reference["name"], "REPLICASET").replace(reference["uid"], "UID")
    return normal_view(text)


@functools.lru_cache(maxsize=4096)
def normal_view(text: str) -> bytes:
    """Return the JSON of view_of in normal form. Cached: most Pods of a workload are equal."""
    sidecars = json.loads(text).items()
    forms = {name: normal_container(*parts) for name, parts in sidecars}
    return packed(forms, sort_keys=True)


def normal_container(kind: str, container: Json, volumes: Sequence[Json]) -> Json:
    """Return a container in which lists with keys are dicts, and equal values are equal."""
    form = without_empty(without(container, "name", "restartPolicy"))
    form["position"] = kind
    form["resources"] = resources = form.get("resources", {})
    for key in ("limits", "requests"):
        quantities = dig(resources, key).items()
        resources[key] = {name: normal_quantity(str(text)) for name, text in quantities}
    form["env"] = {entry["name"]: normal_variable(entry) for entry in form.get("env", ())}
    form["ports"] = {
        f"{port['containerPort']}/{port.get('protocol', 'TCP')}": without(port, "protocol")
        for port in form.get("ports", ())
    }
    form["volumeMounts"] = {mount["mountPath"]: mount for mount in form.get("volumeMounts", ())}
    for mount in form["volumeMounts"].values():
        mount["name"] = TOKEN_VOLUME.sub(r"\1", mount["name"])
    form["volumes"] = {volume["name"]: normal_volume(volume) for volume in volumes}
    return form


def join_secret_flags(words: Sequence[str]) -> list[str]:
    """Return a command line with `--password x` as `--password=x`, so that x is redacted."""
    joined = [""]
    for word in words:
        flag = joined[-1]
        takes_secret = re.fullmatch(r"-[\w.-]+", flag) and SECRET_NAMES.search(flag)
        if takes_secret and not word.startswith("--"):
            joined[-1] = f"{flag}={word}"
        else:
            joined.append(word)
    return joined[1:]


def without_empty(value: Any) -> Any:
    """Return a value without empty fields, which the API server does not always leave out.

    In command lines, secrets are joined with their flags; see join_secret_flags.
    """
    if isinstance(value, list):
        return [without_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {key: without_empty(item) for key, item in value.items()}
    for key in inner.keys() & {"command", "args"}:  # also those of probes and hooks
        inner[key] = join_secret_flags(inner[key] or [])
    return {key: item for key, item in inner.items() if item not in (None, {}, [], "")}


@functools.lru_cache(maxsize=1024)  # the same few in all containers
def normal_quantity(text: str) -> str:
    """Return a quantity in its shortest form: 1000m is 1, 1024Mi is 1Gi, 0.5G is 500M."""
    from kubernetes.utils.quantity import parse_quantity

    try:
        value = parse_quantity(text)
        if value % 1:
            return f"{(value * 1000).normalize():f}m"
    except (ValueError, ArithmeticError):
        return text
    units = {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTPE", 1)}
    units |= {prefix: 1000**power for power, prefix in enumerate("MGTPE", 2)}
    forms = [f"{int(value) // size}{unit}" for unit, size in units.items() if value % size == 0]
    return min([str(int(value)), *forms], key=len)


def normal_variable(variable: Json) -> Any:
    """Return an environment variable's value: text, its JSON, or where it comes from."""
    source = dig(variable, "valueFrom")
    if not source:
        return parsed_json(variable.get("value", ""))
    (reference,) = source.values()
    if reference.get("apiVersion") == "v1":  # the default
        del reference["apiVersion"]
    divisor = normal_quantity(str(reference.pop("divisor", "1")))
    if divisor not in ("0", "1"):  # 0 is the default, and means 1
        reference["divisor"] = divisor
    return {"from": source}


def parsed_json(text: str) -> Any:
    """Return the value of a text that is a JSON object or list; any other text as it is."""
    if text.strip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def normal_volume(volume: Json) -> Json:
    """Return a volume's definition; the claim of a StatefulSet's Pod has the Pod's name in it."""
    form = without_empty(without(volume, "name"))
    claim = dig(form, "persistentVolumeClaim")
    if claim and claim["claimName"].startswith(f"{volume['name']}-"):
        claim["claimName"] = f"{volume['name']}-(Pod)"
    return form


def find_differences(
    current: Any, expected: Any, path: tuple[str, ...] = ()
) -> Iterator[Difference]:
    """Yield where two normal forms differ, as deep inside as possible."""
    if current == expected and type(current) is type(expected):
        return
    if isinstance(current, dict) and isinstance(expected, dict):
        for key in sorted(current.keys() | expected.keys()):
            yield from find_differences(current.get(key), expected.get(key), (*path, key))
        return
    pairs = [(current, expected)]
    if isinstance(current, list) and isinstance(expected, list):
        pairs = list_differences(current, expected) or pairs  # else only the order differs
    for old, new in pairs:
        yield Difference(path, redacted(old, path), redacted(new, path))


def list_differences(current: list[Any], expected: list[Any]) -> list[tuple[Any, Any]]:
    """Return the items that differ as (current, expected); those of one flag are a pair."""

    def flag(item: Any) -> str:
        text = str(item)
        return text.partition("=")[0] if text.startswith("-") else text

    added = [item for item in expected if item not in current]
    pairs = []
    for item in current:
        if item not in expected:
            pair = next((other for other in added if flag(other) == flag(item)), None)
            pairs.append((item, pair))
            added = [other for other in added if other is not pair]
    return [*pairs, *((None, item) for item in added)]


def redacted(value: Any, path: Names) -> Any:
    """Return a value with secrets redacted, by their names and by what they look like."""
    if isinstance(value, dict):
        if SECRET_NAMES.search(str(value.get("name"))) and "value" in value:  # a header, a setting
            value = {**value, "value": REDACTED}
        return {key: redacted(inner, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [redacted(item, path) for item in value]
    if value in (None, "") or len(path) < 2:
        return value
    is_setting = path[1] in ("env", "args", "command")
    if is_setting and any(map(SECRET_NAMES.search, path[2:])):
        is_reference = len(path) > 4 and path[4] in REFERENCES  # such as the name of a Secret
        return value if is_reference else REDACTED
    if not isinstance(value, str) or path[1] == "image":  # the tag of secret-agent:1.2 is none
        return value
    flag = "".join(re.findall(r"^-*[\w.-]+=", value)) if path[1] != "env" else ""
    if SECRET_NAMES.search(flag):
        return f"{flag}{REDACTED}"
    form = parsed_json(value[len(flag) :])
    if not isinstance(form, str):
        return f"{flag}{json.dumps(redacted(form, path))}"
    return re.sub(SECRET_SETTING, rf"\1{REDACTED}", redact_text(value))


def other_parts(pod: Json, names: Names) -> Json:
    """Return the containers, volumes and annotations outside a Pod's view, as `volume x`."""
    mounts = [dig(container, "volumeMounts") for _, container in named_containers(pod, names)]
    mounted = {mount["name"] for found in mounts for mount in found}
    parts: Json = {}
    for kind, container in containers_of(pod):
        if not matches(container["name"], names):
            word = "container" if kind == REGULAR else "init container"
            parts[f"{word} {container['name']}"] = normal_container(kind, container, [])
    for volume in dig(pod, "spec", "volumes"):
        if volume["name"] not in mounted and not TOKEN_VOLUME.fullmatch(volume["name"]):
            parts[f"volume {volume['name']}"] = normal_volume(volume)
    for name, value in annotations_of(pod).items():
        if not BOOKKEEPING.fullmatch(name):
            parts[f"annotation {name}"] = value
    return parts


def other_changes(live: Json, expected: Json, names: Names) -> tuple[str, ...]:
    """Return what else would differ in the Pod.

    Annotations that only the live Pod has were added later, and do not count.
    """
    before, after = other_parts(live, names), other_parts(expected, names)
    changed = {name for name in {**before, **after} if before.get(name) != after.get(name)}
    added_later = {name for name in changed - after.keys() if name.startswith("annotation ")}
    return tuple(sorted(changed - added_later))


def change_of(config: Json) -> ConfigChange:
    """Return when a ConfigMap or Secret last changed, by the managedFields that own its data.

    An entry of managedFields has one time: if it owns labels, too, those may have changed. kubectl
    apply always owns its own annotation. An entry without a time says nothing.
    """
    created = parse_time(config["metadata"]["creationTimestamp"])
    certain = [created]
    possible = [created]
    entries = dig(config, "metadata", "managedFields")
    for entry in entries:
        fields = dig(entry, "fieldsV1")
        metadata = dig(fields, "f:metadata")
        if entry.get("time") and fields.keys() & {"f:data", "f:binaryData", "f:stringData"}:
            others = metadata.keys() - {"f:annotations"}
            others |= dig(metadata, "f:annotations").keys() - {".", f"f:{LAST_APPLIED}"}
            (possible if others else certain).append(parse_time(entry["time"]))
    return ConfigChange(max(certain), max(certain + possible), bool(entries))


CONFIG_KINDS = {
    "configMapKeyRef": "ConfigMap",
    "configMapRef": "ConfigMap",
    "configMap": "ConfigMap",
    "secretKeyRef": "Secret",
    "secretRef": "Secret",
    "secret": "Secret",
}


def configs_of(pod: Json, namespace: str, names: Names) -> dict[ObjectRef, bool]:
    """Return the ConfigMaps and Secrets of the named sidecars, and whether each is required."""
    found: dict[ObjectRef, bool] = {}
    for kind, reference in config_references(list(sidecar_parts(pod, names).values())):
        name = reference.get("name") or reference.get("secretName", "")
        config = ObjectRef(kind, namespace, name)
        found[config] = found.get(config, False) or not reference.get("optional")
    return found


def config_references(value: Any) -> Iterator[tuple[str, Json]]:
    """Yield the references to ConfigMaps and Secrets inside containers and volumes."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if key in CONFIG_KINDS and isinstance(inner, dict):
            yield CONFIG_KINDS[key], inner
        if isinstance(inner, (dict, list)):
            yield from config_references(inner)


@functools.lru_cache(maxsize=4096)
def sidecar_differences(
    live: bytes, expected: bytes, resized: tuple[str, ...]
) -> tuple[Difference, ...]:
    """Return what differs between two views, except resources that were changed in place.

    Cached: many workloads have the same views.
    """
    if live == expected:
        return ()
    return tuple(
        difference
        for difference in find_differences(unpacked(live), unpacked(expected))
        if difference.path[0] not in resized or difference.path[1:2] != ("resources",)
    )


def compare_pods(
    pods: Sequence[LivePod], view: bytes, config_changes: Mapping[ObjectRef, ConfigChange]
) -> tuple[set[str], list[Difference]]:
    """Return the names of the Pods that differ from a view, or are older than their
    configuration, and all differences."""
    drifted: set[str] = set()
    distinct: dict[str, Difference] = {}
    groups = group_by(pods, lambda pod: (pod.view, pod.resized))
    for (live, resized), group in sorted(groups.items()):
        found = sidecar_differences(live, view, resized)
        distinct |= {json.dumps(difference): difference for difference in found}
        drifted |= {pod.name for pod in group if found}
    for config, changed in sorted(config_changes.items()):
        older = [p for p in pods if p.created < changed.possible and p.view != NO_SIDECARS]
        if older:
            oldest = min(pod.created for pod in older)
            is_certain = oldest < changed.certain
            age = (changed.certain if is_certain else changed.possible) - oldest
            verb = "changed" if is_certain else "may have changed"
            text = f"{verb} {human_duration(age.total_seconds())} after the oldest Pod was created"
            distinct[str(config)] = Difference((str(config),), None, text)
            drifted |= {pod.name for pod in older}
    return drifted, list(distinct.values())


def judge(
    planned: PlannedWorkload,
    pods: Sequence[LivePod],
    answer: ExpectedPod | ApiError,
    last_changes: Mapping[ObjectRef, ConfigChange | ApiError],
) -> JudgedWorkload:
    """Return the verdict: do the Pods agree with what would be created today?"""
    if isinstance(answer, ApiError):
        return JudgedWorkload(planned, verdict_on(answer), str(answer), answer.causes)
    changes: dict[ObjectRef, ConfigChange] = {}
    for config, is_required in sorted(answer.configs.items()):
        changed = last_changes[config]
        if isinstance(changed, ConfigChange):
            changes[config] = changed
        elif changed.status != 404:
            return JudgedWorkload(planned, Verdict.UNKNOWN, f"cannot read {config}: {changed}")
        elif is_required:
            message = f"would not start: {config} does not exist"
            return JudgedWorkload(planned, Verdict.REJECTED, message)
    drifted, differences = compare_pods(pods, answer.view, changes)
    verdict = Verdict.DRIFTED if differences else Verdict.UP_TO_DATE
    if pods and all(pod.view == NO_SIDECARS for pod in pods):
        verdict = Verdict.MISSING if differences else Verdict.NOT_INJECTED
    return JudgedWorkload(
        planned,
        verdict=verdict,
        differences=tuple(differences),
        drifted_pods=tuple(sorted(drifted)),
        other_changes=answer.other_changes,
        injected_changes=answer.injected_changes,
        view=answer.view,
        config_changes=changes,
    )


NO_PERMISSION = 'cannot create resource "pods"'


def verdict_on(error: ApiError) -> Verdict:
    """Return what a dry run that failed means.

    Rejected means that the cluster would not accept the Pod today. A missing permission, a webhook
    that fails, times out or does not support dry run, and an exceeded quota (a rolling update may
    free room first) say nothing about that.
    """
    is_denied = re.search("denied (the )?request", str(error))  # a webhook: with any status
    is_invalid = error.status in (400, 403, 422) and not is_inconclusive(error)
    return Verdict.REJECTED if is_denied or is_invalid else Verdict.UNKNOWN


def is_inconclusive(error: ApiError) -> bool:
    """Return whether a dry run failed for a reason that does not concern a rollout."""
    inconclusive = f"exceeded quota|does not support dry run|{NO_PERMISSION}"
    return bool(re.search(inconclusive, str(error)))


@dataclass(frozen=True)
class Comparison:
    """Asks the API server what it would create today."""

    cluster: Cluster
    options: Options
    progress: ProgressLine

    def judge_all(
        self,
        workloads: Sequence[PlannedWorkload],
        candidates: Candidates,
        objects: Mapping[ObjectRef, str],
    ) -> list[JudgedWorkload]:
        """Return the verdicts, in the order of the workloads.

        One dry run per workload, one read per ConfigMap or Secret. If the first dry runs all time
        out, the others are not tried. StartError if no Pods may be created anywhere.
        """

        def ask(planned: PlannedWorkload) -> ExpectedPod | ApiError:
            return self.expected_pod(planned, json.loads(objects[planned.ref]))

        answers: dict[ObjectRef, ExpectedPod | ApiError] = {}
        errors: list[ApiError] = []
        for planned, answer in in_parallel(workloads, ask):
            answers[planned.ref] = answer
            errors += [answer] if isinstance(answer, ApiError) else []
            asked = len(answers)
            self.progress.show(f"Comparing: {asked} of {len(workloads)} workloads")
            timeouts = sum(error.is_timeout for error in errors)
            if asked == REQUESTS_AT_A_TIME and timeouts == asked:
                log.warning(
                    "the first %d dry runs timed out; the remaining workloads are not compared",
                    asked,
                )
                answers = {planned.ref: answer for planned in workloads} | answers
                break
        self.progress.show("")
        forbidden = [str(error) for error in errors if NO_PERMISSION in str(error)]
        if forbidden and len(forbidden) == len(workloads):
            raise StartError(f"missing permission: create pods, for dry runs: {forbidden[0]}")
        expected = [answer for answer in answers.values() if isinstance(answer, ExpectedPod)]
        configs = sorted({config for answer in expected for config in answer.configs})
        last_changes = dict(in_parallel(configs, self.cluster.last_change))
        untracked = [
            str(config)
            for config, change in last_changes.items()
            if isinstance(change, ConfigChange) and not change.is_tracked
        ]
        if untracked:
            names = join_words(untracked)
            log.warning("changes to %s cannot be detected: no managedFields", names)
        return [
            judge(planned, candidates[planned.ref].live_pods, answers[planned.ref], last_changes)
            for planned in workloads
        ]

    def expected_pod(self, planned: PlannedWorkload, obj: Json) -> ExpectedPod | ApiError:
        """Return what would be created for a workload today, or why that is not known."""
        ignored = ("kube-root-ca.crt", *self.options.ignore_config)
        names = self.options.sidecars
        try:
            sample = unpacked(planned.sample)
            obj = with_template(self.cluster, planned, obj)
            pod = self.cluster.pod_today(planned, obj)
            changes = other_changes(sample, pod, names)
            of_template = other_parts(obj["spec"]["template"], names)
            configs = configs_of(pod, planned.ref.namespace, names).items()
            return ExpectedPod(
                view=view_of(pod, names),
                configs={c: required for c, required in configs if not matches(c.name, ignored)},
                other_changes=changes,
                injected_changes=tuple(name for name in changes if name not in of_template),
            )
        except ApiError as error:
            return error
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            return ApiError(200, f"unexpected response to the dry run: {error!r}")


def with_template(cluster: Cluster, planned: PlannedWorkload, obj: Json) -> Json:
    """Return the object whose template a workload's Pods come back from. ApiError if unknown."""
    if not planned.owners or (is_workload(planned.ref) and not is_paused(obj)):
        return obj
    owner, *others = planned.owners
    if others:
        raise ApiError(200, f"its Pods belong to {len(others) + 1} {owner.kind}s")
    if owner.kind == "ReplicaSet" and planned.ref.kind == "Deployment":  # paused
        obj = cluster.workload(owner)
    if "spec" not in dig(obj, "spec", "template"):
        text = f"the Pod template of a {owner.kind} ({owner.group}) cannot be read"
        raise ApiError(200, text)
    return obj


def differences_of(
    judged: JudgedWorkload, pods: Iterable[Json], sidecars: Names
) -> list[Difference]:
    """Return how Pods of a workload differ from what would be injected today."""
    live_pods = [live_pod(pod, sidecars) for pod in pods]
    return compare_pods(live_pods, judged.view, judged.config_changes)[1]


# Rolling out: signals


class Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP: the first starts no new rollouts, the second stops
    waiting. SIGUSR1 pauses, SIGUSR2 resumes."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.stop_starting = threading.Event()  # set by the main thread, for any reason
        self.stop_waiting = threading.Event()
        self.is_paused = False
        self.raises = True  # whether the next signal raises Interrupted
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup or a shell's & sets it
                signal.signal(number, self.receive)
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "is_paused", True))
        signal.signal(signal.SIGUSR2, lambda *_: setattr(self, "is_paused", False))

    def receive(self, number: int, frame: object) -> None:
        self.received.append(number)
        if len(self.received) > 1:
            self.stop_waiting.set()
        if self.raises:
            self.raises = False  # a second one at once would hit the code that handles this one
            raise Interrupted

    @property
    def exit_code(self) -> int:
        return 128 + self.received[0] if self.received else 0


# Rolling out: one workload, in a worker

Tell = Callable[[str], None]  # takes what the progress line says: by kubectl, or Pod by Pod

KUBECTL_GRACE = 60.0  # seconds beyond its timeout: it may be held up by a lost connection
POLL = 0.5  # seconds until a signal is noticed
CLOCKS_DIFFER = timedelta(seconds=5)  # of a node and the API server, at most
LOOK_EVERY = 3.0  # seconds between checks for a paused workload, which kubectl does not notice
SOAK_EVERY = 5.0, 30.0  # seconds between looks at new Pods: at least, at most
UNREADY = 10.0  # seconds that a Pod may be unready during the soak: both ends are checked
CONFLICTS = 20  # its status changes a workload's resource version, too

TIMEOUT_TEXT = "timed out waiting for the condition"
DEADLINE_TEXT = "exceeded its progress deadline"
# What kubectl rollout status says about a rollout; anything else is its own trouble.
JUDGMENTS = re.compile(
    f"{TIMEOUT_TEXT}|{DEADLINE_TEXT}|has been deleted|NotFound|Forbidden"
    "|only available for|did not exit within|is different from the running revision"
)
# What it says if the API server is unavailable, or overloaded.
OUTAGE = re.compile(
    "refused|connection reset|connection lost|closed network connection|EOF|dial tcp"
    "|no such host|timeout|timed out|deadline exceeded|unreachable|ServiceUnavailable"
    "|TooManyRequests|unable to handle the request|etcdserver"
)


def is_outage(error: str) -> bool:
    """Return whether kubectl failed because the API server is unavailable, which passes."""
    return bool(OUTAGE.search(error)) and not JUDGMENTS.search(error)


def start_process(command: Sequence[str], output: IO[bytes], **env: str) -> subprocess.Popen[bytes]:
    """Start a command that writes to a file: a process that it leaves behind may keep a pipe open.

    OSError if it cannot run.
    """
    import subprocess

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**env, **os.environ},
        start_new_session=True,  # Ctrl-C is for this program, not for its children
    )


def end_process(child: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    import subprocess

    if child.poll() is None:
        with contextlib.suppress(OSError):  # it has just ended, or belongs to somebody else
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1)


@dataclass(frozen=True)
class Kubectl:
    """kubectl, which decides whether a rollout succeeded."""

    path: str
    flags: Sequence[str]
    stop: threading.Event  # set: stop waiting

    def rollout_status(
        self,
        workload: ObjectRef,
        seconds: float,
        tell: Tell,
        look: Callable[[ObjectRef], object] = bool,
    ) -> tuple[int, str]:
        """Wait for a rollout; return kubectl's exit code and, unless that is 0, why.

        Pass each line of its output to `tell` as it arrives, and call `look` every few seconds: it
        may raise SkipError. StoppedWaiting after a second signal.
        """
        import subprocess
        import tempfile  # with random, it would cost each start 3 ms, of 112

        words = ["rollout", "status", workload.argument, "--namespace", workload.namespace]
        words += ["--timeout", f"{seconds:.3f}s"]
        deadline = time.monotonic() + seconds + KUBECTL_GRACE
        next_look = time.monotonic() + LOOK_EVERY
        last = ""
        rest = b""
        offset = 0
        code = None
        with tempfile.TemporaryFile() as output:
            # With one thread, kubectl takes 0.88 of the wall time with 10 rollouts at a time.
            child = start_process([self.path, *self.flags, *words], output, GOMAXPROCS="1")
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        code = child.wait(POLL)
                    data = os.pread(output.fileno(), 10**6, offset)
                    offset += len(data)
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines if code is None else [*lines, rest]:
                        text = redact_text(line.decode("utf-8", "replace").strip())
                        if text not in ("", last):  # it repeats itself
                            last = text
                            tell(text)
                    if code is not None:
                        break
                    if self.stop.is_set():
                        raise StoppedWaiting
                    if time.monotonic() > deadline:
                        return 1, "kubectl did not exit within its timeout"
                    if time.monotonic() > next_look:
                        look(workload)
                        next_look = time.monotonic() + LOOK_EVERY
            finally:
                end_process(child)
        if code < 0:
            return code, f"kubectl was terminated by signal {-code}"
        return code, last if code else ""


@dataclass(frozen=True)
class Rollout:
    """How a worker replaces the Pods of one workload."""

    cluster: Cluster
    kubectl: Kubectl
    interrupts: Interrupts
    options: Options
    began: datetime  # by the API server's clock
    judged: Mapping[ObjectRef, JudgedWorkload] = field(default_factory=dict)

    def carry_out(self, task: Task, tell: Tell) -> Result:
        """Return the result of a task, whatever happens."""
        planned, timed_out = task
        started = time.monotonic()
        try:
            if timed_out:
                result = self.recheck(timed_out, tell)
            elif planned.method is not Method.RESTART:
                one_by_one = Eviction if planned.method is Method.EVICT else ImageChange
                result = one_by_one(self, planned, tell).carry_out()
            else:
                result = self.restart(planned, tell)
        except StoppedWaiting:
            result = self.interrupted(task)
        except SkipError as reason:
            result = Result(planned, Outcome.SKIPPED, str(reason))
        except Exception as error:
            log.debug("rollout failed", exc_info=True, extra={"workload": str(planned.ref)})
            result = timed_out or failure_of(planned, error)
        if result.outcome in FAILURES and result is not timed_out and planned.unhealthy_reason:
            before = f"(unhealthy before the rollout: {planned.unhealthy_reason})"
            result = replace(result, message=f"{result.message} {before}")
        seconds = round(time.monotonic() - started + (timed_out.seconds if timed_out else 0), 1)
        return replace(result, seconds=seconds)

    def interrupted(self, task: Task) -> Result:
        """Return the result of a task that is no longer waited for."""
        ref = task.planned.ref
        is_restarted = task.planned.method is Method.RESTART
        words = ("rollout", "status") if is_restarted else ("describe",)
        check = self.cluster.connection.kubectl_command(ref, *words)
        message = f"stopped waiting; check with: {check}"
        return task.timed_out or Result(task.planned, Outcome.INTERRUPTED, message)

    def restart(self, planned: PlannedWorkload, tell: Tell) -> Result:
        patched = self.patch(planned)
        if isinstance(patched, Result):
            return patched
        code, error = self.wait(planned.ref, tell)
        if code == 0 and planned.evicted_pods:  # they are below the partition
            patched = patched._replace(time=self.began)  # by their age: they get no stamp
            try:
                result = Eviction(self, planned, tell).carry_out()
            except SkipError as reason:
                result = Result(planned, Outcome.INCOMPLETE, str(reason), is_partitioned=True)
            if result.outcome is not Outcome.SUCCEEDED:
                counts = self.snapshot(planned, patched).counts
                return replace(result, patched=patched, counts=counts)
        if code == 0:
            return self.soak(self.verify(planned, patched), patched, tell)
        if is_outage(error):  # the result is unknown
            return Result(planned, Outcome.TIMED_OUT, error, patched=patched)
        return self.explain(planned, patched, error or f"kubectl exited with {code}")

    def patch(self, planned: PlannedWorkload) -> Patched | Result:
        """Patch the workload as it is now, or return why that failed. SkipError if not needed.

        The patch includes the resourceVersion that was checked, so concurrent runs do not restart
        a workload twice, and a patch whose response was lost is recognized by its timestamp.
        """
        ref = planned.ref
        stamp = self.cluster.now().isoformat(timespec="microseconds")  # unique among runs
        judged = self.judged.get(ref)
        for _ in range(CONFLICTS):
            obj = self.cluster.workload(ref)
            if stamp in template_annotations(obj).values():
                return patched_at(obj, stamp, judged)
            situation = Situation(
                ref,
                self.restart_options,
                obj,
                unhealthy_reason=shortage_of(ref, obj),
            )
            require_not_skipped(situation)
            expected = self.ask_again(planned, obj)
            problem = problem_with(expected, planned, self.options)
            if judged and isinstance(expected, dict) and not problem:
                judged = replace(judged, view=view_of(expected, self.options.sidecars))
            # A reason to skip comes before the problem, such as a terminating namespace.
            require_not_skipped(self.update_situation(situation, planned, judged, expected))
            if problem:
                return Result(planned, Outcome.FAILED, f"not patched: {problem}")
            if self.interrupts.stop_waiting.is_set():
                raise StoppedWaiting
            version = obj["metadata"].get("resourceVersion", "")
            annotations = self.annotations(obj, stamp, judged)
            try:
                patched = self.cluster.patch_template(ref, annotations, version)
                return patched_at(patched, stamp, judged)
            except ApiError as error:
                if error.status == 0:  # it may have been patched
                    return replace(failure_of(planned, error), outcome=Outcome.FAILED)
                is_gone = error.status == 404 and not self.cluster.workload(ref)
                if error.status != 409 and not is_gone:
                    raise
        raise SkipError(f"not patched: gave up after {CONFLICTS} update conflicts")

    @property
    def restart_options(self) -> Options:
        """Return the options without --evict: a workload that was paused is not restarted."""
        return replace(self.options, evict=False)

    def annotations(self, obj: Json, stamp: str, judged: JudgedWorkload | None) -> Labels:
        """Return the annotations that restart a workload.

        Operators remove annotations that they do not know, and prometheus-operator all but those
        of kubectl.kubernetes.io: that reverts the restart, or causes a second one.
        """
        if controller_of(obj):
            return {RESTARTED_AT: stamp}
        prefix = f"{self.options.annotation_prefix}.rollout"
        return {
            f"{prefix}.timestamp": stamp,
            f"{prefix}.reason": self.options.rollout_reason,
            **({f"{prefix}.revision": judged.revision} if judged else {}),
        }

    def ask_again(self, planned: PlannedWorkload, obj: Json) -> Json | ApiError:
        """Return the Pod that would be created now, or why it would be rejected."""
        try:
            return self.cluster.pod_today(planned, obj)
        except ApiError as error:
            if error.status in UNAVAILABLE:  # which says nothing about the Pod
                raise
            return error

    def update_situation(
        self,
        situation: Situation,
        planned: PlannedWorkload,
        judged: JudgedWorkload | None,
        expected: Json | ApiError,
    ) -> Situation:
        """Return the situation with the dry run's error and the workload's Pods as they are now.

        Without --only-drifted, an unchanged resourceVersion means that no Pod was replaced: each
        replacement changes its workload's status.
        """
        if isinstance(expected, ApiError):
            situation = replace(situation, causes=expected.causes)
        obj = situation.obj
        is_unchanged = dig(obj, "metadata", "resourceVersion") == planned.resource_version
        if is_unchanged and not judged:
            return situation
        pods = self.with_sidecar(self.pods_of(planned.ref, obj))
        old = [pod for pod in pods if self.is_outdated(pod, judged)]
        stamps = [stamp for stamp in timestamps_of(obj) if is_since(self.began, stamp)]
        return replace(
            situation,
            now=self.cluster.now(),
            restarts_by_others=() if is_unchanged else stamps,
            pods=pods,
            old_pods=[name_of(pod) for pod in old],
        )

    def is_outdated(self, pod: Json, judged: JudgedWorkload | None) -> bool:
        """Return whether a Pod is to be replaced."""
        is_different = not judged or bool(differences_of(judged, [pod], self.options.sidecars))
        return created_at(pod) < self.options.cutoff and is_different

    def wait(self, ref: ObjectRef, tell: Tell) -> tuple[int, str]:
        """Return kubectl's result. If it ends without one, for example killed, run it again.

        If the API server is unavailable, retry until the rollout's timeout.
        """
        import random

        deadline = time.monotonic() + self.options.timeout
        for attempt, pause in enumerate(growing(0.5), 1):
            seconds = max(deadline - time.monotonic(), 1.0)
            code, error = self.kubectl.rollout_status(ref, seconds, tell, self.check_wanted)
            is_last = seconds <= 1 or (attempt > RETRIES and not is_outage(error))
            if code == 0 or JUDGMENTS.search(error) or is_last:
                break
            extra = {
                "workload": str(ref),
                "error": error,
            }
            log.debug("kubectl ended without a result; running it again", extra=extra)
            if self.interrupts.stop_waiting.wait(random.uniform(0.5, 1.0) * pause):
                raise StoppedWaiting
        return code, error

    def check_wanted(self, ref: ObjectRef) -> None:
        """Raise SkipError if the workload was paused or deleted during its rollout."""
        # The annotations of its template are our own by now.
        options = replace(self.restart_options, include_annotation=[], exclude_annotation=[])
        with contextlib.suppress(ApiError):
            require_not_skipped(Situation(ref, options, self.cluster.workload(ref, quick=True)))

    def explain(self, planned: PlannedWorkload, patched: Patched, error: str) -> Result:
        """Return the result of a rollout that failed or timed out, with the reason in the cluster.

        SkipError if the workload was paused or deleted.
        """
        ref = planned.ref
        messages = [error]
        snapshot = None
        self.check_wanted(ref)
        try:
            snapshot = self.snapshot(planned, patched)
            messages += self.reasons(ref, snapshot)
        except ApiError:  # what kubectl says is enough
            log.debug("cannot read its Pods", exc_info=True, extra={"workload": str(ref)})
        return Result(
            planned,
            outcome=Outcome.TIMED_OUT if TIMEOUT_TEXT in error else Outcome.FAILED,
            message="; ".join(messages),
            patched=patched,
            counts=snapshot and snapshot.counts,
            stop_reason=lost_sidecar(ref, snapshot),
        )

    def reasons(self, ref: ObjectRef, snapshot: PodSnapshot) -> list[str]:
        """Return why a rollout does not complete: by a Pod, a condition, or an event."""
        workload = self.cluster.workload(ref)
        pods = [*snapshot.new, *snapshot.old]
        pods.sort(key=lambda pod: not waiting_reason(pod))  # those that say most
        problems = list(filter(None, map(pod_problem, pods)))[:1]
        is_stuck = bool(pods) and any(stuck_containers(pods[0]))
        if is_stuck and dig(workload, "spec", "podManagementPolicy") == "OrderedReady":
            # The controller waits for it, even if the template is fixed.
            name = name_of(pods[0])
            problems.append(f"delete Pod {name} once the cause is fixed")
        condition = failure_condition(workload)
        if not condition and snapshot.counts.lost > len(snapshot.without_sidecar):
            condition = self.cluster.failed_create(ref, workload)
        return [*problems, *filter(None, [condition])]

    def pods_of(self, workload: ObjectRef, obj: Json) -> list[Json]:
        """Return the workload's own Pods that are not terminating."""
        pods = not_terminating(self.cluster.pods_of(workload, obj))
        return [pod for pod in pods if self.owns(workload, pod)]

    def with_sidecar(self, pods: Iterable[Json]) -> list[Json]:
        """Return the Pods that have the sidecar, or with --include-missing may get it."""
        options = self.options
        is_any = options.include_missing
        return [pod for pod in pods if is_any or any(named_containers(pod, options.sidecars))]

    def owns(self, workload: ObjectRef, pod: Json) -> bool:
        """Return whether a selected Pod is the workload's; others may have the same labels."""
        owner = controller_of(pod)
        if owner and owner.kind == "ReplicaSet" and workload.kind == "Deployment":
            if deployment_by_name(owner, dig(pod, "metadata", "labels")) == workload:
                return True
            owner = self.cluster.controller_of(owner)
        return owner == workload

    def snapshot(self, planned: PlannedWorkload, patched: Patched) -> PodSnapshot:
        """Return the workload's Pods now. Below a partition, only those to replace are old."""
        pods = self.pods_of(planned.ref, patched.obj)
        new = [pod for pod in pods if not is_old(pod, patched)]
        lacking = [pod for pod in new if missing_sidecars(planned, pod, self.options)]
        updated = [pod for pod in self.with_sidecar(new) if pod not in lacking]
        old = []
        planned_pods = [*updated]
        for pod in self.with_sidecar(pod for pod in pods if is_old(pod, patched)):
            is_kept = is_below_partition(patched.obj, name_of(pod))
            if not is_kept or self.is_outdated(pod, patched.judged):
                old.append(pod)
                planned_pods += [pod] if planned.evicted_pods or not is_kept else []
        missing = planned.pods - len(pods)
        if missing > 0:  # unless it was scaled down
            desired, *_ = counts_of(planned.ref, self.cluster.workload(planned.ref))
            missing = min(planned.pods, desired) - len(pods)
        counts = PodCounts(
            matched=len(planned_pods),
            updated=len(updated),
            ready=sum(map(is_ready, planned_pods)),
            updated_and_ready=sum(map(is_ready, updated)),
            lost=len(lacking) + max(missing, 0),
        )
        return PodSnapshot(old, new, lacking, counts)

    def verify(self, planned: PlannedWorkload, patched: Patched) -> Result:
        """Return a success only if the Pods agree with kubectl."""
        ref = planned.ref
        try:
            snapshot = self.snapshot(planned, patched)
            current = self.cluster.workload(ref) if snapshot.old else {}
        except ApiError as error:
            message = f"could not verify its Pods: {error}"
            return Result(planned, Outcome.SUCCEEDED, message, patched=patched)
        judged = patched.judged
        differences = (
            differences_of(judged, snapshot.new, self.options.sidecars) if judged else None
        )
        names = [name_of(pod) for pod in snapshot.old]
        has_only_kept = bool(names) and all_below_partition(patched.obj, names)
        is_partitioned = has_only_kept and not snapshot.without_sidecar
        cause = f"StatefulSet partition is {partition_of(patched.obj)}" if is_partitioned else ""
        removed = removed_by(current, patched)
        outcome, message = outcome_of(snapshot, differences, removed or cause)
        return Result(
            planned,
            outcome,
            message,
            patched=patched,
            counts=snapshot.counts,
            is_partitioned=is_partitioned and not removed and outcome is Outcome.INCOMPLETE,
            stop_reason=lost_sidecar(ref, snapshot),
        )

    def recheck(self, result: Result, tell: Tell) -> Result:
        """Return what became of a rollout that was not complete: it may have succeeded by now."""
        ref = result.planned.ref
        code, _ = self.kubectl.rollout_status(ref, 1.0, tell)
        if not self.cluster.workload(ref):
            raise SkipError("no longer exists")
        if code or not result.patched:
            return result
        late = self.verify(result.planned, result.patched)
        if late.is_partitioned and result.planned.evicted_pods:
            return result
        if late.outcome is not Outcome.SUCCEEDED:
            return late
        message = f"completed after the {self.options.timeout:g}s timeout"
        if result.outcome is Outcome.FAILED:
            message = "completed after its progress deadline"
        late = replace(late, outcome=Outcome.COMPLETED_LATE, message=message)
        return self.soak(late, result.patched, tell)

    def soak(self, result: Result, patched: Patched, tell: Tell) -> Result:
        """Return the result of a restart after --soak."""
        ref = result.planned.ref
        soak = Soak(self, result.planned, [ref], lambda pod: not is_old(pod, patched))
        return soak.watch(result, tell)


# Rolling out: Pods one at a time


class Source(NamedTuple):
    """What the Pods of an owner come back from, as it was before the first eviction."""

    template: Json  # empty: it cannot be read
    expected: Json | None  # a new Pod, by a dry run; None: not known
    judged: JudgedWorkload | None
    matched: list[Json]  # the owner's Pods that have the sidecar
    outdated: dict[str, Json]  # those to replace, by UID


@dataclass
class OneByOne:
    """Replaces or changes Pods of one workload, one at a time."""

    rollout: Rollout
    planned: PlannedWorkload
    tell: Tell
    replaced: int = 0
    total: int = 0
    is_waiting: bool = False  # for a Pod
    state: str = ""  # of that Pod, for a person
    verb = "replaced"

    def carry_out(self) -> Result:
        """Return the result. SkipError if there is nothing to do."""
        try:
            return self.replace_all()
        except SkipError as reason:
            if not self.replaced:
                raise
            return self.unsuccessful(Outcome.INCOMPLETE, str(reason))
        except UnsuccessfulError as error:
            return self.unsuccessful(*error.args)
        except StoppedWaiting:
            message = self.rollout.interrupted(Task(self.planned)).message
            return self.unsuccessful(Outcome.INTERRUPTED, f"{self.state}{message}")
        except ApiError as error:
            if not self.replaced and not self.is_waiting:
                raise
            stop_reason = str(error) if error.status in UNAVAILABLE else ""
            return self.unsuccessful(Outcome.FAILED, f"{self.state}{error}", stop_reason)

    def replace_all(self) -> Result:
        raise NotImplementedError

    @property
    def progress(self) -> str:
        return f"{self.replaced} of {count_of(self.total, 'Pod')} {self.verb}"

    def with_progress(self, message: str) -> str:
        return f"{self.progress}; {message}"

    def unsuccessful(
        self,
        outcome: Outcome,
        message: str,
        stop_reason: str = "",
    ) -> Result:
        planned = self.planned
        lost = int(stop_reason != "" and outcome is not Outcome.FAILED)
        counts = PodCounts(
            matched=planned.pods_to_replace - lost,
            updated=self.replaced,
            ready=max(planned.ready - self.is_waiting, self.replaced),
            updated_and_ready=self.replaced,
            lost=lost,
        )
        return Result(
            planned,
            outcome,
            self.with_progress(message) if self.total else message,
            counts=counts,
            stop_reason=stop_reason,
        )

    def wait(self, seconds: float, event: threading.Event) -> None:
        """Wait. The first signal sets stop_starting; a Pod in progress waits for stop_waiting."""
        if event.wait(seconds):
            self.require_not_stopped()

    def require_not_stopped(self) -> None:
        interrupts = self.rollout.interrupts
        if interrupts.stop_waiting.is_set():
            raise StoppedWaiting
        if interrupts.received or interrupts.stop_starting.is_set():
            raise UnsuccessfulError(Outcome.INTERRUPTED, f"the others were not {self.verb}")

    def wait_out(self, obstacle: str, pause: float, deadline: float) -> None:
        """Wait before another look at an obstacle. UnsuccessfulError after the deadline."""
        self.tell(f"{self.progress}; {obstacle}")
        left = deadline - time.monotonic()
        if left <= 0:
            raise UnsuccessfulError(Outcome.TIMED_OUT, obstacle)
        self.wait(min(pause, left), self.rollout.interrupts.stop_starting)

    def hold(self) -> float:
        """Wait while the run is paused, and return for how long."""
        seconds = 0.0
        while self.rollout.interrupts.is_paused:
            self.wait(POLL, self.rollout.interrupts.stop_starting)
            seconds += POLL
        return seconds

    def all_pods_of(self, owner: ObjectRef, obj: Json) -> list[Json]:
        """Return the Pods of an owner, also those that are terminating, but not those that ended.

        Counts in a status say less: a StatefulSet's have a terminating Pod as ready.
        """
        return [
            pod
            for pod in self.rollout.cluster.pods_of(owner, obj)
            if self.rollout.owns(owner, pod) and not has_ended(pod)
        ]

    def selected(self, pods: Sequence[Json]) -> Sequence[Json]:
        """Return the Pods that match --selector: unlike a rollout, evictions leave the others."""
        cluster = self.rollout.cluster
        selector = self.rollout.options.selector
        if not selector:
            return pods
        namespaces = [self.planned.ref.namespace]
        read = functools.partial(cluster.items, CORE, "pods", namespaces, selector)
        found = cluster.retry_expired(lambda: set(map(uid_of, read())))
        return [pod for pod in pods if uid_of(pod) in found]


class Eviction(OneByOne):
    """Replaces Pods by eviction."""

    def replace_all(self) -> Result:
        planned = self.planned
        began = self.rollout.cluster.now().replace(microsecond=0)
        sources = {owner: self.source(owner) for owner in planned.owners}
        self.require_outdated(sources.values())
        for owner, source in sources.items():
            for _ in source.outdated:  # each time, the one that is next by then
                self.replace_one(owner, source)
        result = Result(planned, Outcome.SUCCEEDED)
        if planned.method is Method.RESTART or not self.replaced:
            return result
        soak = Soak(self.rollout, planned, planned.owners, lambda p: created_at(p) >= began)
        return soak.watch(result, self.tell)

    # Before the first eviction

    def source(self, owner: ObjectRef) -> Source:
        """Check an owner, its Pods, and a dry run of a replacement.

        A replacement that is rejected leaves no trace in the status of StatefulSets, DaemonSets.
        """
        rollout = self.rollout
        judged = rollout.judged.get(self.planned.ref)
        obj = self.read(owner)
        pods = not_terminating(self.all_pods_of(owner, obj))
        matched = rollout.with_sidecar(pods)
        outdated = [pod for pod in self.selected(matched) if rollout.is_outdated(pod, judged)]
        template = dig(obj, "spec", "template")
        template = template if "spec" in template else {}
        expected = self.try_replacement(obj, outdated[0]) if outdated and template else None
        if judged and expected:
            judged = replace(judged, view=view_of(expected, rollout.options.sidecars))
        by_uid = {uid_of(pod): pod for pod in outdated}
        source = Source(template, expected, judged, matched, by_uid)
        self.require_same_application(owner, obj, outdated, source)
        return source

    def read(self, owner: ObjectRef) -> Json:
        """Return an owner as it is now. SkipError if its Pods are no longer to be replaced."""
        ref = self.planned.ref
        obj = self.rollout.cluster.owner(owner, unpacked(self.planned.sample))
        is_deployment = ref.kind == "Deployment"  # whose Pods come back from their ReplicaSets
        workload = self.rollout.cluster.workload(ref) if is_deployment else obj
        options = self.rollout.options
        if self.planned.method is Method.RESTART:  # the annotations are our own by now
            options = replace(options, include_annotation=[], exclude_annotation=[])
        situation = Situation(
            ref,
            options,
            workload,
            # Later, its own evictions make it unhealthy.
            unhealthy_reason="" if self.total else shortage_of(ref, workload),
        )
        require_not_skipped(situation)
        if is_deployment and not is_paused(workload):
            raise SkipError("no longer paused; rerun this command to restart it")
        return obj

    def try_replacement(self, obj: Json, pod: Json) -> Json | None:
        """Return a new Pod by a dry run, or None. UnsuccessfulError if it would be rejected."""
        planned = replace(self.planned, sample=packed(pod))
        expected = self.rollout.ask_again(planned, obj)
        problem = problem_with(expected, planned, self.rollout.options)
        if problem:
            raise UnsuccessfulError(Outcome.FAILED, f"not evicted: {problem}")
        return None if isinstance(expected, ApiError) else expected

    def require_outdated(self, sources: Collection[Source]) -> None:
        """Raise SkipError if there is nothing to evict, unless this follows a rollout."""
        outdated = [name_of(pod) for source in sources for pod in source.outdated.values()]
        self.total = len(outdated)
        if self.planned.method is Method.EVICT:
            situation = Situation(
                self.planned.ref,
                self.rollout.options,
                NOT_READ,
                pods=[pod for source in sources for pod in source.matched],
                old_pods=outdated,
            )
            require_not_skipped(situation)

    def require_same_application(
        self,
        owner: ObjectRef,
        obj: Json,
        pods: Iterable[Json],
        source: Source,
    ) -> None:
        """Raise SkipError if a Pod would come back with another version of the application.

        Of a custom resource that owns Pods, that is not known.
        """
        if not source.template or not is_observed(obj):  # the caller reads it again
            return
        if owner.kind == "StatefulSet":
            reasons = [stateful_set_change(obj, pod) for pod in pods]
        elif owner.kind == "DaemonSet":
            newest = self.rollout.cluster.newest_revision(owner, obj)
            reasons = [PENDING for pod in pods if newest != f"{owner.name}-{revision_of(pod)}"]
        else:
            is_edited = obj["spec"]["template"] != source.template
            names = self.rollout.options.sidecars
            reasons = [PENDING for pod in pods if is_edited or template_changes(pod, source, names)]
        reason = next(filter(None, reasons), "")
        if reason:
            raise SkipError(reason)

    # One Pod

    def replace_one(self, owner: ObjectRef, source: Source) -> None:
        """Replace one of the outdated Pods, if one is left. UnsuccessfulError at the timeout.

        Everything is read again right before the eviction: an eviction with a wrong UID would count
        against the PodDisruptionBudget for two minutes.
        """
        deadline = time.monotonic() + self.rollout.options.timeout
        for pause in growing(1.0):
            deadline += self.hold()
            obj = self.read(owner)
            pods = self.all_pods_of(owner, obj)
            alive = not_terminating(pods)
            todo = [pod for pod in alive if uid_of(pod) in source.outdated]
            if not todo:  # somebody else has replaced it
                return
            self.require_not_stopped()
            pod = min(todo, key=eviction_order)
            obstacle = self.obstacle(obj, pod, pods, source)
            if not obstacle:
                self.require_same_application(owner, obj, [pod], source)
                obstacle, retry_after = self.evict(pod)
                pause = max(pause, retry_after)
            if not obstacle:
                break
            self.wait_out(obstacle, pause, deadline)
        self.is_waiting = True
        self.wait_for_replacement(owner, obj, pod, pods, source.judged)
        self.is_waiting = False
        self.replaced += 1
        self.tell(self.progress)

    def obstacle(
        self,
        obj: Json,
        pod: Json,
        pods: Sequence[Json],
        source: Source,
    ) -> str:
        """Return what must come first: another Pod of the owner is gone, or ready; or nothing.

        Another run may have evicted it. And an OrderedReady StatefulSet creates no Pod while one
        with a lower ordinal is not ready.
        """
        if not is_observed(obj):
            return "waiting for its spec update to be observed"
        is_ordered = dig(obj, "spec", "podManagementPolicy") == "OrderedReady"
        start = self.rollout.cluster.now() - timedelta(seconds=self.rollout.options.timeout)
        for other in pods:
            is_recent = uid_of(other) not in source.outdated and created_at(other) >= start
            if is_terminating(other):
                return f"waiting for Pod {name_of(other)} to terminate"
            if other is not pod and not is_ready(other) and (is_ordered or is_recent):
                return f"waiting for a Pod to be ready: {pod_problem(other) or name_of(other)}"
        missing = dig(obj, "spec").get("replicas", 0) - len(pods) if is_ordered else 0
        return f"waiting for {count_of(missing, 'Pod')} to be created" if missing > 0 else ""

    def evict(self, pod: Json) -> tuple[str, float]:
        """Evict a Pod; return why it may not be evicted now (empty: it may), and a pause.

        A Pod that is gone (404), or another one by now (409), was replaced by somebody else. A 429
        without the cause DisruptionBudget comes from an overloaded API server.
        """
        try:
            self.rollout.cluster.evict(pod)
        except ApiError as error:
            cause = error.causes.get("DisruptionBudget", "")
            if error.status == 429:
                budget = rf"PodDisruptionBudget {self.planned.ref.namespace}/\1"
                text = f"{budget} allows no disruption: it"
                cause = re.sub(r"^The disruption budget (\S+)", text, cause).rstrip(".")
                return cause or str(error), error.retry_after
            if error.status in UNAVAILABLE:
                self.is_waiting = True  # it may have been evicted
                raise
            if error.status >= 500 and "more than one PodDisruptionBudget" not in str(error):
                return str(error), 0.0
            if error.status not in (404, 409):
                message = f"cannot evict Pod {name_of(pod)}: {error}"
                raise UnsuccessfulError(Outcome.FAILED, message) from None
        self.tell(f"{self.progress}; waiting for the replacement of Pod {name_of(pod)}")
        return "", 0.0

    def wait_for_replacement(
        self,
        owner: ObjectRef,
        obj: Json,
        pod: Json,
        before: Sequence[Json],
        judged: JudgedWorkload | None,
    ) -> None:
        """Wait until a Pod is gone, its replacement is ready, and as many are ready as before.

        If the owner was scaled down, as many as it asks for. SkipError if it is gone;
        UnsuccessfulError if that takes too long, or if a new Pod is not as it should be.
        """
        deadline = time.monotonic() + self.rollout.options.timeout
        known = set(map(uid_of, before))
        wanted = sum(map(is_ready, before))
        for pause in growing(0.2):
            self.wait(pause, self.rollout.interrupts.stop_waiting)
            pods = self.all_pods_of(owner, obj)
            alive = not_terminating(pods)
            new = [found for found in alive if uid_of(found) not in known]
            self.verify(new, judged)
            ready = sum(map(is_ready, alive))
            is_gone = uid_of(pod) not in map(uid_of, pods)
            is_back = any(is_ready(found) and replaces(owner, found, pod) for found in new)
            if is_gone and is_back and ready >= wanted:
                return
            if is_gone:
                current = self.rollout.cluster.owner(owner, pod)
                if not current:
                    raise SkipError("no longer exists")
                desired = counts_of(owner, current)[0]
                is_scaled_down = desired < counts_of(owner, obj)[0]
                if is_scaled_down and len(alive) >= desired and ready >= min(wanted, desired):
                    return
            if time.monotonic() > deadline:
                reason = self.why_not_replaced(owner, pod, is_gone, alive if is_back else new)
                raise UnsuccessfulError(Outcome.TIMED_OUT, reason)

    def verify(self, new: list[Json], judged: JudgedWorkload | None) -> None:
        """Raise UnsuccessfulError if new Pods lack the sidecar, or still differ."""
        options = self.rollout.options
        without = [pod for pod in new if missing_sidecars(self.planned, pod, options)]
        differences = differences_of(judged, new, options.sidecars) if judged else None
        snapshot = PodSnapshot([], new, without, PodCounts(len(new)))
        outcome, message = outcome_of(snapshot, differences, "")
        if without:  # a rerun does not find it
            message += f"; delete Pod {name_of(without[0])} once the cause is fixed"
        if outcome is not Outcome.SUCCEEDED:
            stop_reason = lost_sidecar(self.planned.ref, snapshot)
            raise UnsuccessfulError(outcome, message, stop_reason)

    def why_not_replaced(
        self,
        owner: ObjectRef,
        pod: Json,
        is_gone: bool,
        pods: Sequence[Json],
    ) -> str:
        if not is_gone:
            return f"Pod {name_of(pod)} is still terminating"
        cluster = self.rollout.cluster
        obj = cluster.owner(owner, pod)
        problem = next(filter(None, map(pod_problem, pods)), "") or failure_condition(obj)
        problem = problem or cluster.failed_create(owner, obj)
        text = f"not as many Pods are ready as before Pod {name_of(pod)} was evicted"
        return f"{text}: {problem}" if problem else text


class ImageChange(OneByOne):
    """Changes images in running Pods: the kubelet restarts only these containers.

    It kills a container before it pulls the new image, and nothing else reacts: neither the owner
    of the Pod nor a PodDisruptionBudget.
    """

    verb = "changed"
    judged: JudgedWorkload
    owner: ObjectRef  # of the Pods
    min_ready: int  # seconds, of the owner
    todo: set[str]  # UIDs of the Pods to change
    changed: set[str]  # UIDs of those that were changed
    seen: Json  # the Pod in progress, at the last look

    def replace_all(self) -> Result:
        planned = self.planned
        self.judged = self.rollout.judged[planned.ref]
        self.owner = planned.ref if is_workload(planned.ref) else planned.owners[0]
        cutoff = self.rollout.options.cutoff
        obj = self.read()
        self.min_ready = dig(obj, "spec").get("minReadySeconds") or 0
        alive = not_terminating(self.all_pods_of(self.owner, obj))
        pods = self.selected(self.rollout.with_sidecar(alive))
        outdated = [p for p in pods if created_at(p) < cutoff and self.images_to_change(p)]
        self.total = len(outdated)
        self.require_images_today(obj, outdated)
        self.todo = set(map(uid_of, outdated))
        self.changed = set()
        while pod := self.next_pod():
            self.changed.add(uid_of(pod))
            self.change(pod)
            self.replaced += 1
            self.tell(self.progress)
        self.verify(set(map(uid_of, outdated)))
        soak = Soak(
            self.rollout,
            planned,
            [self.owner],
            lambda pod: uid_of(pod) in self.changed,
        )
        return soak.watch(Result(planned, Outcome.SUCCEEDED), self.tell)

    def with_progress(self, message: str) -> str:
        return f"{message} ({self.progress})"

    def read(self) -> Json:
        """Return the owner as it is now. SkipError if its Pods are no longer to be changed."""
        obj = self.rollout.cluster.workload(self.owner)
        situation = Situation(
            self.planned.ref,
            self.rollout.options,
            obj,
            # Later, its own changes make it unhealthy.
            unhealthy_reason="" if self.replaced else shortage_of(self.owner, obj),
            in_place=True,
        )
        require_not_skipped(situation)
        return obj

    def images_to_change(self, pod: Json) -> dict[str, str]:
        """Return the images that a Pod would get today, by container; empty if none differs.

        SkipError if something else differs by now.
        """
        differences = differences_of(self.judged, [pod], self.rollout.options.sidecars)
        judged = replace(self.judged, differences=tuple(differences))
        if differences and not judged.only_images:
            raise SkipError("more than images differ by now; rerun this command")
        return {difference.path[0]: difference.expected for difference in differences}

    def require_images_today(self, obj: Json, pods: Sequence[Json]) -> None:
        """Ask again what would be injected. SkipError if nothing, or more than images, differs.

        Below a partition, a Pod comes back from another template than the one that is asked about.
        """
        cluster, options = self.rollout.cluster, self.rollout.options
        names = [name_of(pod) for pod in pods]
        require_not_skipped(Situation(self.planned.ref, options, NOT_READ, old_pods=names))
        status = dig(obj, "status")
        is_split = status.get("currentRevision") != status.get("updateRevision")
        if is_split and any(is_below_partition(obj, name) for name in names):
            raise SkipError(
                "has Pods below its partition with another template; lower the partition"
            )
        planned = replace(self.planned, sample=packed(pods[0]))
        expected = self.rollout.ask_again(planned, with_template(cluster, planned, obj))
        problem = problem_with(expected, planned, options)
        if problem:
            raise UnsuccessfulError(Outcome.FAILED, f"not changed: {problem}")
        if isinstance(expected, dict):
            self.judged = replace(self.judged, view=view_of(expected, options.sidecars))
        images = [self.images_to_change(pod) for pod in pods]
        if not any(images):
            raise SkipError("already up to date")

    def next_pod(self) -> Json:
        """Return the Pod that is next, as it is now, and take it from those to do; or nothing.

        Unready Pods come first. A ready one must wait until all others are ready.
        """
        deadline = time.monotonic() + self.rollout.options.timeout
        for pause in growing(1.0):
            deadline += self.hold()
            obj = self.read()
            pods = self.all_pods_of(self.owner, obj)
            left = [pod for pod in pods if uid_of(pod) in self.todo and is_running(pod)]
            left = [pod for pod in left if self.images_to_change(pod)]  # else others have done it
            if not left:
                break
            self.require_not_stopped()
            pod = min(left, key=eviction_order)
            obstacle = self.obstacle(obj, pods)
            if not obstacle or not is_ready(pod):
                self.todo.discard(uid_of(pod))
                return pod
            self.wait_out(obstacle, pause, deadline)
        return {}

    def obstacle(self, obj: Json, pods: Sequence[Json]) -> str:
        """Return which Pod must be there, or ready, before a ready one is changed; or nothing."""
        for pod in pods:
            if uid_of(pod) in self.changed and any(stuck_containers(pod)):
                text = f"Pod {pod_problem(pod)}, after its images were changed"
                raise UnsuccessfulError(Outcome.FAILED, text)
            if is_terminating(pod) or not is_ready(pod) or self.is_changing(pod):
                return f"waiting for a Pod to be ready: {pod_problem(pod) or name_of(pod)}"
        missing = counts_of(self.owner, obj)[0] - len(pods)
        return f"waiting for {count_of(missing, 'Pod')} to be created" if missing > 0 else ""

    def is_changing(self, pod: Json) -> bool:
        """Return whether another run has changed an image that the kubelet has not acted upon.

        It may say that the Pod is ready until the new image is pulled.
        """
        rollout = self.rollout
        oldest = rollout.cluster.now() - timedelta(seconds=rollout.options.timeout)
        for entry in dig(pod, "metadata", "managedFields"):
            is_ours = entry.get("manager") == FIELD_MANAGER and entry.get("time")
            if uid_of(pod) in self.changed or not is_ours or not is_since(oldest, entry["time"]):
                continue
            before = parse_time(entry["time"]) - CLOCKS_DIFFER
            names = edited_containers(entry)
            for status in container_statuses(pod):
                started = dig(status, "state", "running").get("startedAt", "")
                if status["name"] in names and not is_since(before, started):
                    return True
        return False

    def change(self, pod: Json) -> None:
        """Change the images of a Pod, and wait, unless somebody else replaces it.

        UnsuccessfulError if that is refused, or fails: then the old images are restored.
        """
        cluster = self.rollout.cluster
        images = self.images_to_change(pod)
        try:
            cluster.change_images(pod, images, dry_run=True)
            if self.rollout.interrupts.stop_waiting.is_set():
                raise StoppedWaiting
            self.is_waiting = True
            self.state = f"Pod {name_of(pod)}: may have the new image; "
            self.tell(f"{self.progress}; {self.state}not restarted yet")
            cluster.change_images(pod, images, dry_run=False)
        except ApiError as error:
            if error.status in UNAVAILABLE:
                raise
            now = cluster.pod(pod)
            if now and self.images_to_change(now):  # else it was stored all the same
                self.is_waiting = False
                text = f"cannot change Pod {name_of(pod)}: {first_line(error)}"
                raise UnsuccessfulError(Outcome.FAILED, text) from None
        self.seen = pod
        problem = self.wait_for_containers(pod, images)
        if problem:
            self.restore(pod, images, problem)
        self.is_waiting = False
        self.state = ""

    def wait_for_containers(self, before: Json, images: Mapping[str, str]) -> str:
        """Wait until the containers were restarted and are ready; return why they are not."""
        timeout = self.rollout.options.timeout
        deadline = time.monotonic() + timeout + self.min_ready
        ready_at = math.inf
        for pause in growing(0.2):
            self.wait(pause, self.rollout.interrupts.stop_waiting)
            pod = self.rollout.cluster.pod(before)
            is_done = not pod or is_restarted(before, pod, images)
            ready_at = min(ready_at, time.monotonic()) if is_done else math.inf
            if not pod or time.monotonic() - ready_at >= self.min_ready:
                break
            self.seen = pod
            problem = pod_problem(pod) or name_of(pod)
            self.state = f"Pod {problem}: has the new image, but is not restarted and ready yet; "
            self.tell(f"{self.progress}; waiting for Pod {problem}")
            reason = why_not_started(before, pod, images)
            if reason:
                return reason
            if time.monotonic() > deadline:
                return f"not restarted and ready after {timeout:g}s: {problem}"
        return ""

    def restore(
        self,
        pod: Json,
        images: Collection[str],
        problem: str,
    ) -> NoReturn:
        """Put the old images back, wait, and raise UnsuccessfulError."""
        name = name_of(pod)
        cluster = self.rollout.cluster
        old = {c["name"]: c["image"] for _, c in containers_of(pod) if c["name"] in images}
        self.state = f"Pod {name}: {problem}; restoring the old image; "
        self.tell(f"{self.progress}; {self.state}")
        deadline = time.monotonic() + self.rollout.options.timeout
        reason = stop_reason = ""
        now = pod
        try:
            cluster.change_images(pod, old, dry_run=False)
            for pause in growing(0.2):
                now = cluster.pod(pod)
                was_unready = not is_ready(pod)  # before the change: not waited for
                if not now or was_unready or is_restored(pod, self.seen, now, images):
                    break
                if time.monotonic() > deadline:
                    reason = pod_problem(now) or "it is not restarted and ready"
                    break
                self.wait(pause, self.rollout.interrupts.stop_waiting)
        except ApiError as error:
            is_gone = error.status == 404 or "metadata.uid" in str(error)
            now = {} if is_gone else pod
            reason = "" if is_gone else first_line(error)
            stop_reason = reason if error.status in UNAVAILABLE else ""
        text = f"Pod {name}: {problem}; {'old image restored' if now else 'it was replaced'}"
        if reason:
            text = f"old image of Pod {name} not restored: {reason}; {problem}"
        self.is_waiting = bool(reason)
        raise UnsuccessfulError(Outcome.FAILED, text, stop_reason)

    def verify(self, outdated: set[str]) -> None:
        """Raise UnsuccessfulError if Pods do not have the images that would be injected today."""
        pods = not_terminating(self.all_pods_of(self.owner, self.read()))
        found = [pod for pod in pods if uid_of(pod) in self.changed]
        differences = differences_of(self.judged, found, self.rollout.options.sidecars)
        if differences:
            texts = "; ".join(difference_text(difference) for difference in differences)
            raise UnsuccessfulError(Outcome.STILL_DRIFTED, f"the Pods still differ: {texts}")
        for pod in found:
            if not is_ready(pod):  # without a readiness probe, it was ready before it crashed
                text = f"Pod {pod_problem(pod) or name_of(pod)}, after its images were changed"
                raise UnsuccessfulError(Outcome.FAILED, text)
        for pod in pods:
            if uid_of(pod) in outdated - self.changed and self.images_to_change(pod):
                text = f"Pod {name_of(pod)} is not running"
                raise UnsuccessfulError(Outcome.INCOMPLETE, text)


def first_line(error: ApiError) -> str:
    """Return what a policy says of a change; further lines are a diff with secrets in it.

    In an ApiError, line breaks are escaped.
    """
    return str(error).partition(r"\n")[0]


def is_running(pod: Json) -> bool:
    return dig(pod, "status", "phase") == "Running" and not is_terminating(pod)


def container_ids(pod: Json) -> dict[str, str]:
    return {status["name"]: status.get("containerID", "") for status in container_statuses(pod)}


def is_restarted(
    before: Json,
    pod: Json,
    names: Collection[str],
) -> bool:
    """Return whether containers of a Pod were restarted, and all is ready.

    Only another containerID tells: two tags may share an imageID, observedGeneration rises before
    the restart, and the Pod is ready before it, too.
    """
    old = container_ids(before)
    return is_ready(pod) and all(
        status.get("ready")
        and "running" in status["state"]
        and status.get("containerID") != old.get(status["name"])
        for status in container_statuses(pod)
        if status["name"] in names
    )


def is_restored(
    before: Json,
    failed: Json,
    pod: Json,
    names: Collection[str],
) -> bool:
    """Return whether containers run again as before, and not as they did when that failed.

    One that was never restarted may still be: while its kubelet pulls an image, it writes nothing.
    """
    old, then, now = container_ids(before), container_ids(failed), container_ids(pod)
    generation = dig(pod, "metadata").get("generation", 0)
    is_seen = dig(pod, "status").get("observedGeneration", generation) >= generation
    return is_ready(pod) and all(
        (now[name] == old[name] and is_seen) or now[name] not in (old[name], then[name])
        for name in names
    )


def why_not_started(
    before: Json,
    pod: Json,
    names: Collection[str],
) -> str:
    """Return why a container does not start with its new image; empty if it may still start.

    One that was stuck before shows the old reason until it is restarted. A crash of the new image
    has another containerID.
    """
    old, now = container_ids(before), container_ids(pod)
    stuck_before = {name for name, _ in stuck_containers(before)}
    for name, waiting in stuck_containers(pod):
        is_crash = waiting["reason"] == "CrashLoopBackOff"
        is_old = old[name] == now[name] and (is_crash or name in stuck_before)
        if name in names and not is_old:
            words = (name, waiting["reason"], redact_text(waiting.get("message") or ""))
            return f"container {': '.join(filter(None, words))}"
    return ""


# Rolling out: the soak


@dataclass
class Soak:
    """Watches the new Pods of a workload for some time after its rollout."""

    rollout: Rollout
    planned: PlannedWorkload
    owners: Sequence[ObjectRef]  # of the Pods
    is_new: Callable[[Json], bool]
    objects: dict[ObjectRef, Json] = field(default_factory=dict)  # the owners, at the last look
    scaled_down: int = 0  # Pods that may be gone
    watched: dict[str, Json] = field(default_factory=dict)  # by UID, as they were at first
    seen_ready: set[str] = field(default_factory=set)
    unready: dict[tuple[str, str], float] = field(default_factory=dict)  # since when, monotonic

    def watch(self, result: Result, tell: Tell) -> Result:
        """Return the result: failed if a Pod restarts, is replaced or stays unready."""
        duration = self.rollout.options.soak
        if not duration or not (result.outcome in SUCCESSES or result.is_partitioned):
            return result
        least, most = SOAK_EVERY
        deadline = time.monotonic() + duration
        messages = [result.message] if result.message else []
        is_over = False
        try:
            self.find_crash()
            while not is_over:
                left = deadline - time.monotonic()
                tell(f"soaking, {human_duration(left)} left")
                pause = min(max(least, duration / 100), most, max(left, 0))
                self.wait(UNREADY if self.unready else pause)
                is_over = time.monotonic() >= deadline
                crash = self.find_crash()
                if is_over and self.unready and not crash:  # it is not known for how long
                    self.wait(UNREADY)
                    crash = self.find_crash()
                if crash:
                    message = "; ".join([*messages, f"crashed during the soak: {crash}"])
                    return replace(
                        result,
                        outcome=Outcome.FAILED,
                        message=message,
                        is_partitioned=False,
                    )
        except (ApiError, SkipError) as reason:
            messages.append(f"the soak was cut short: {reason}")
        return replace(result, message="; ".join(messages))

    def wait(self, seconds: float) -> None:
        """Wait. SkipError on the first signal already: the rollout itself is complete."""
        interrupts = self.rollout.interrupts
        end = time.monotonic() + seconds
        while not interrupts.received and (left := end - time.monotonic()) > 0:
            interrupts.stop_waiting.wait(min(left, POLL))
        if interrupts.received:
            raise SkipError("interrupted")

    def read(self) -> dict[str, Json]:
        """Return the new Pods by UID, also those that are terminating."""
        rollout = self.rollout
        if not self.objects:
            self.read_owners()
        return {
            uid_of(pod): pod
            for owner, obj in self.objects.items()
            for pod in rollout.cluster.pods_of(owner, obj)
            if rollout.owns(owner, pod) and self.is_new(pod)
        }

    def read_owners(self) -> None:
        """Note how many Pods may be gone. SkipError if the owners were changed otherwise."""
        sample = unpacked(self.planned.sample)
        for owner in self.owners:
            now = self.rollout.cluster.owner(owner, sample)
            before = self.objects.get(owner, now)
            if not now:
                raise SkipError("the workload no longer exists")
            if now["spec"]["template"] != before["spec"]["template"]:
                raise SkipError("its Pod template was changed")
            self.scaled_down += max(counts_of(owner, before)[0] - counts_of(owner, now)[0], 0)
            self.objects[owner] = now

    def find_crash(self) -> str:
        """Return which Pod restarted, was replaced or stays unready, and why; empty if none."""
        pods = self.read()
        self.read_owners()  # afterwards: they say that they want fewer Pods before these are gone
        alive = {uid: pod for uid, pod in pods.items() if not is_terminating(pod)}
        for uid in self.watched.keys() - alive.keys():
            name = name_of(self.watched.pop(uid))
            self.scaled_down -= 1
            if self.scaled_down < 0:
                reason = dig(pods.get(uid, {}), "status").get("reason")  # for example Evicted
                return f"{name}: replaced{f': {reason}' if reason else ''}"
        self.watched = alive | self.watched
        self.unready = {
            key: self.unready.get(key, time.monotonic())
            for key in map(unready_since, alive.values())
            if key[1] and key[0] in self.seen_ready
        }
        self.seen_ready |= {uid for uid, pod in alive.items() if is_ready(pod)}
        for uid, pod in alive.items():
            crash = restart_of(self.watched[uid], pod)
            since = self.unready.get(unready_since(pod), math.inf)
            if not crash and time.monotonic() - since >= UNREADY:
                problem = pod_problem(pod) or name_of(pod)
                crash = f"{problem} (not ready for more than {UNREADY:g}s)"
            if crash:
                return crash
        return ""


def unready_since(pod: Json) -> tuple[str, str]:
    """Return the UID of a Pod and since when it is not ready; the latter is empty if it is."""
    condition = conditions_of(pod).get(("Ready", "False"), {})
    return uid_of(pod), condition.get("lastTransitionTime", "")


def restart_of(before: Json, pod: Json) -> str:
    """Return which container of a Pod has restarted since, and why; empty if none has."""
    counts = {status["name"]: status["restartCount"] for status in container_statuses(before)}
    for status in container_statuses(pod):
        name = status["name"]
        if status["restartCount"] > counts.get(name, 0):
            ended = dig(status, "lastState", "terminated")
            reason = ended.get("reason", "unknown")
            code = f" (exit code {ended.get('exitCode')})" if reason == "Error" else ""
            return f"{name_of(pod)}: container {name} restarted: {reason}{code}"
    return ""


# Rolling out: what Pods and workloads say


def growing(seconds: float) -> Iterator[float]:
    """Yield pauses that get longer, up to 5 seconds."""
    while True:
        yield min(seconds, 5.0)
        seconds *= 1.5


def eviction_order(pod: Json) -> tuple[bool, int, str]:
    """Return a key to sort Pods: unready ones first, then by ordinal, the highest first."""
    ordinal = name_of(pod).rpartition("-")[2]
    is_numbered = "statefulset.kubernetes.io/pod-name" in dig(pod, "metadata", "labels")
    number = int(ordinal) if is_numbered and ordinal.isdecimal() else 0
    return is_ready(pod), -number, name_of(pod)


def replaces(owner: ObjectRef, new: Json, old: Json) -> bool:
    """Return whether a Pod is the replacement of another one; of most owners, any new one is."""
    if owner.kind == "StatefulSet" and owner.group == "apps":
        return name_of(new) == name_of(old)
    if owner.kind == "DaemonSet" and owner.group == "apps":
        return dig(new, "spec").get("nodeName") == dig(old, "spec").get("nodeName")
    return True


def revision_of(pod: Json) -> str:
    return dig(pod, "metadata", "labels").get("controller-revision-hash", "")


def stateful_set_change(obj: Json, pod: Json) -> str:
    """Return how a StatefulSet's Pod would come back changed; empty if it would not.

    Below a partition it comes back in the current revision, even if it has a newer one. Equal
    revisions in the status say nothing: with OnDelete, the current one stays behind.
    """
    is_below = is_below_partition(obj, name_of(pod))
    target = dig(obj, "status", "currentRevision" if is_below else "updateRevision")
    if revision_of(pod) == target:
        return ""
    text = f"Pod {name_of(pod)} is below the partition; evicting it would roll it back to {target}"
    return text if is_below else PENDING


STATED = ("image", "command", "args", "env")  # of containers; others change more than these


def template_changes(pod: Json, source: Source, names: Names) -> bool:
    """Return whether a Pod would come back changed because its template was edited.

    Of ReplicaSets and ReplicationControllers, no status, label or hash tells. What template and dry
    run agree on comes from the template; whatever else changes comes from webhooks, which rewrite
    images as well. A container that only the Pod has may have been in the template, too.
    """
    template = template_leaves(source.template, names)
    live = template_leaves(pod, names)
    if not source.expected:
        return any(
            live.get(path) != template[path]
            for path in template
            if path[0] == "label" or (len(path) > 1 and path[1] in STATED)
        )
    expected = template_leaves(source.expected, names)
    gone = {path[0] for path in live} - {path[0] for path in expected}
    if any(part.startswith("container ") for part in gone):
        return True
    parts = {path[0] for path in template} - {"label"}
    paths = [path for path in live | expected if path[0] in parts or path in template]
    return any(
        live.get(path) != expected.get(path)
        and (path[-1] == "image" or expected.get(path) == template.get(path))
        for path in paths
    )


def template_leaves(pod: Json, names: Names) -> dict[Names, Any]:
    """Return what a Pod, or a template, has besides the named sidecars, by paths."""
    parts = other_parts(pod, names)
    parts["label"] = without(dig(pod, "metadata", "labels"), *CONTROLLER_LABELS)
    spec = without(pod["spec"], "containers", "initContainers", "volumes", "nodeName")
    return leaves(parts | {f"spec {key}": value for key, value in spec.items()})


def leaves(value: Any, path: Names = ()) -> dict[Names, Any]:
    """Return the values inside nested dicts by their paths; of lists, the items, in any order."""
    if isinstance(value, list) and path[-1] not in ("command", "args"):
        value = {json.dumps(item, sort_keys=True): True for item in value}
    if not isinstance(value, dict):
        return {path: value}
    found = [leaves(inner, (*path, key)).items() for key, inner in value.items()]
    return dict(itertools.chain.from_iterable(found))


def failure_of(planned: PlannedWorkload, error: Exception) -> Result:
    """Return a failed result, or one not started if the API server is unavailable."""
    message = str(error) or repr(error)
    if isinstance(error, ApiError) and error.status in UNAVAILABLE:
        return Result(planned, Outcome.NOT_STARTED, message, stop_reason=message)
    return Result(planned, Outcome.FAILED, message)


def missing_sidecars(planned: PlannedWorkload, pod: Json, options: Options) -> list[str]:
    """Return the sidecars, as the options name them, that a Pod should have and has not."""
    if options.allow_removal:
        return []
    names = [container["name"] for _, container in containers_of(pod)]
    before = [*planned.added, *(sidecar.name for sidecar in planned.sidecars)]
    return [
        pattern
        for pattern in options.sidecars
        if fnmatch.filter(before, pattern) and not fnmatch.filter(names, pattern)
    ]


def problem_with(expected: Json | ApiError, planned: PlannedWorkload, options: Options) -> str:
    """Return why no Pods should be replaced now, by a dry run; empty if nothing is wrong."""
    if isinstance(expected, ApiError):
        reason = short_reason(str(expected))
        return "" if is_inconclusive(expected) else f"cannot create its Pods: {reason}"
    missing = join_words(missing_sidecars(planned, expected, options))
    hint = "check that the injector is healthy, or use --only-drifted --allow-removal"
    return f"new Pods would not have the sidecar {missing}; {hint}" if missing else ""


def lost_sidecar(ref: ObjectRef, snapshot: PodSnapshot | None) -> str:
    """Return why no other rollout may start: this one has lost its sidecar."""
    if not snapshot or not snapshot.without_sidecar:
        return ""
    return f"new Pods of {ref} have no sidecar; check that the injector is healthy"


def outcome_of(
    snapshot: PodSnapshot, differences: Sequence[Difference] | None, cause: str
) -> tuple[Outcome, str]:
    """Return the outcome of what kubectl calls a success, by the Pods, with a message.

    `differences` is None without --only-drifted; `cause` is why Pods may not be updated.
    """
    old = len(snapshot.old)
    new = len(snapshot.new)
    lost = len(snapshot.without_sidecar)
    if lost:
        verb = "has" if lost == 1 else "have"
        message = f"{lost} of {count_of(new, 'new Pod')} {verb} no sidecar"
        outcome = Outcome.STILL_DRIFTED if differences else Outcome.INCOMPLETE
        return outcome, f"{message}; check that the injector is healthy"
    if differences:
        texts = "; ".join(difference_text(difference) for difference in differences)
        return Outcome.STILL_DRIFTED, f"the new Pods still differ: {texts}"
    if old:
        message = f"{old} of {count_of(old + snapshot.counts.updated, 'Pod')} not updated"
        return Outcome.INCOMPLETE, f"{message}: {cause}" if cause else message
    return Outcome.SUCCEEDED, ""


def pod_problem(pod: Json) -> str:
    """Return why a Pod is not ready, after its name; empty if it is."""
    if is_ready(pod):
        return ""
    texts = []
    for name, waiting in stuck_containers(pod):
        words = (name, waiting["reason"], waiting.get("message"))
        texts.append(f"container {': '.join(filter(None, words))}")
    conditions = conditions_of(pod)
    for kind in ("PodScheduled", "Ready"):  # with the scheduler's message, the kubelet's
        texts.append(conditions.get((kind, "False"), {}).get("message", ""))
    reason = next(filter(None, texts), "")
    return f"{name_of(pod)}: {redact_text(reason)}" if reason else ""


def edits_of(obj: Json) -> set[tuple[str, str]]:
    """Return who changed a workload, but not its status or scale: (time, field manager)."""
    return {
        (entry["time"], entry.get("manager", ""))
        for entry in dig(obj, "metadata", "managedFields")
        if entry.get("time") and "subresource" not in entry
    }


def patched_at(obj: Json, stamp: str, judged: JudgedWorkload | None = None) -> Patched:
    own = [parse_time(moment) for moment, manager in edits_of(obj) if manager == FIELD_MANAGER]
    return Patched(stamp, max(own, default=parse_time(stamp)), obj, judged)


def removed_by(current: Json, patched: Patched) -> str:
    """Return who removed the annotation of a rollout; empty if it is there."""
    if not current or patched.stamp in template_annotations(current).values():
        return ""
    since = sorted(edits_of(current) - edits_of(patched.obj))
    others = [f" by field manager {manager}" for _, manager in since if manager != FIELD_MANAGER]
    return f"the rollout annotation was removed{''.join(others[-1:])}"


def is_old(pod: Json, patched: Patched) -> bool:
    """Return whether a Pod is from before the patch: without its stamp, and not created later."""
    return patched.stamp not in annotations_of(pod).values() and created_at(pod) <= patched.time


# Rolling out: the whole plan, by the main thread


class Gate:
    """A command that decides whether rollouts may start. It runs while the main thread goes on."""

    OPEN_FOR = 10.0  # seconds: all rollouts that start within them are covered
    TIMEOUT = 60.0
    PAUSES = (5.0, 30.0)  # seconds until it runs again: after the first failure, after others

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command
        self.reason = ""  # why it is closed: the last line of output
        self.running: tuple[subprocess.Popen[bytes], IO[bytes]] | None = None  # with its output
        self.started = self.run_at = self.open_until = -math.inf  # monotonic

    def is_open(self) -> bool:
        """Return whether a rollout may start now. If that is not known, find out."""
        now = time.monotonic()
        if self.command and now >= self.open_until:
            if self.running:
                self.poll(*self.running, now)
            elif now >= self.run_at:
                self.start(now)
        return not self.command or now < self.open_until

    @property
    def status(self) -> str:
        """Return why nothing starts, for the progress line."""
        is_slow = self.running and time.monotonic() - self.started > 2
        waiting = "waiting for the gate" if is_slow else ""
        return f"gate closed: {self.reason}" if self.reason else waiting

    def start(self, now: float) -> None:
        import tempfile

        output = tempfile.TemporaryFile()  # noqa: SIM115  stop() closes it
        self.started = now
        try:
            self.running = start_process(self.command, output), output
        except OSError as error:
            output.close()
            self.close(f"cannot run {self.command[0]}: {error.strerror}", now)

    def poll(self, child: subprocess.Popen[bytes], output: IO[bytes], now: float) -> None:
        """Open or close the gate if the command has ended, or takes too long."""
        code = child.poll()
        is_late = code is None and now - self.started > self.TIMEOUT
        if code == 0:
            self.reason = ""
            self.open_until = now + self.OPEN_FOR
        elif is_late:
            self.close(f"timed out after {self.TIMEOUT:g}s", now)
        elif code is not None:
            output.seek(max(output.seek(0, os.SEEK_END) - 4096, 0))
            text = output.read().decode("utf-8", "replace").strip()
            last = text.split("\n")[-1].strip() or f"exit code {code}"
            self.close(shorten(redact_text(last), 200), now)
        if is_late or code is not None:
            self.stop()

    def close(self, reason: str, now: float) -> None:
        self.run_at = now + self.PAUSES[bool(self.reason)]
        self.reason = reason

    def stop(self) -> None:
        """End the command if it is running."""
        if self.running:
            child, output = self.running
            with contextlib.suppress(OSError):  # also what it left in the background
                os.killpg(child.pid, signal.SIGKILL)
            end_process(child)
            output.close()
            self.running = None


@dataclass
class InProgress:
    task: Task
    started: float  # monotonic
    line: str = ""  # the latest that its worker told


class Scheduler:
    """Starts rollouts and handles what workers report. The main thread owns all state."""

    GRACE = 2.0  # seconds after the second signal in which workers may still report
    TOO_MANY_IN_A_ROW = 5  # failures that stop a run without --max-failures
    TIME_IS_UP = "--max-duration is over"
    ASKED_FOR = ("interrupted", "quit", TIME_IS_UP)  # reasons that are no failure

    def __init__(
        self,
        rollout: Rollout,
        report: Report,
        workers: int,
    ) -> None:
        self.rollout = rollout
        self.interrupts = rollout.interrupts
        self.report = report
        self.workers = workers
        self.gate = Gate(rollout.options.gate)
        self.ask = rollout.options.confirm_each  # until the answer is "all"
        self.answered: Task | None = None  # with yes
        self.in_progress: dict[ObjectRef, InProgress] = {}
        self.timed_out: list[Result] = []
        self.failures = self.failures_in_a_row = 0
        self.stop_reason = ""  # of a result, or quit: why nothing else may start
        self.logged = False, "", ""  # whether it is paused, why the gate is closed, why it stops
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        # No SimpleQueue: its get() may wait forever if a signal comes just before the timeout.
        # What a worker reports about its task: a line of progress, or the result.
        self.events: queue.Queue[tuple[Task, str | Result]] = queue.Queue()
        for _ in range(workers):
            threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        """Carry out tasks, one after the other. Runs in a worker, which shares only the queues."""
        for task in iter(self.tasks.get, None):
            result = self.rollout.carry_out(task, functools.partial(self.tell, task))
            self.tell(task, result)

    def tell(self, task: Task, news: str | Result) -> None:
        self.events.put((task, news))

    def run(self, plan: Iterable[PlannedWorkload]) -> None:
        """Roll out the plan, then recheck what timed out; report a result for each workload."""
        waiting = deque(Task(planned) for planned in plan)
        self.drain(waiting)
        self.gate.stop()
        reason = self.reason_to_stop()
        stop_reason = "" if reason in self.ASKED_FOR else reason
        message = "; ".join(filter(None, (reason, self.gate.status)))
        for task in waiting:
            result = Result(task.planned, Outcome.NOT_STARTED, message, stop_reason=stop_reason)
            self.report.finish(result)
        rechecks = deque(Task(result.planned, result) for result in self.timed_out)
        self.drain(rechecks)
        for task in rechecks:
            self.report.finish(self.rollout.interrupted(task))
        for _ in range(self.workers):
            self.tasks.put(None)

    def drain(self, waiting: deque[Task]) -> None:
        """Carry out tasks until none is left, or none may start and none is in progress."""
        while not self.interrupts.stop_waiting.is_set():
            self.fill_slots(waiting)
            if not self.in_progress and (not waiting or self.reason_to_stop()):
                return
            self.handle_event(0.1 if self.gate.running else POLL)
            self.log_decisions()
            hold = "paused" if self.interrupts.is_paused else self.gate.status
            self.report.show_progress(self.in_progress.values(), hold)
        deadline = time.monotonic() + self.GRACE
        while self.in_progress and time.monotonic() < deadline:
            self.handle_event(0.1)
        for running in self.in_progress.values():
            result = self.rollout.interrupted(running.task)
            if running.line and running.task.planned.method is not Method.RESTART:
                result = replace(result, message=f"{running.line}; {result.message}")
            seconds = result.seconds or round(time.monotonic() - running.started, 1)
            self.report.finish(replace(result, seconds=seconds))
        self.in_progress.clear()

    def fill_slots(self, waiting: deque[Task]) -> None:
        while waiting and len(self.in_progress) < self.workers:
            task = waiting[0]
            is_recheck = task.timed_out is not None  # which changes nothing
            if not is_recheck and (self.interrupts.is_paused or self.reason_to_stop()):
                self.gate.stop()  # what it says now may be wrong later
                return
            if not is_recheck and not self.gate.is_open():
                return
            is_asked = self.ask and not is_recheck and task is not self.answered
            answer = self.ask_about(task.planned) if is_asked else "yes"
            if answer == "quit":
                self.stop_reason = "quit"
                return
            if answer == "no":
                waiting.popleft()
                self.report.finish(Result(task.planned, Outcome.DECLINED))
                continue
            self.ask = self.ask and answer != "all"
            self.answered = task
            if is_asked and not self.gate.is_open():  # the answer may have taken long
                return
            waiting.popleft()
            self.in_progress[task.planned.ref] = InProgress(task, time.monotonic())
            self.tasks.put(task)

    def reason_to_stop(self) -> str:
        """Return why no new rollouts start; empty: they do."""
        if self.interrupts.received:
            return "interrupted"
        if self.stop_reason:
            return self.stop_reason
        options = self.rollout.options
        if options.max_failures and self.failures >= options.max_failures:
            return f"--max-failures={options.max_failures} reached"
        elapsed = self.rollout.cluster.now() - self.rollout.began
        is_late = options.max_duration and elapsed.total_seconds() >= options.max_duration
        return self.TIME_IS_UP if is_late else ""

    def ask_about(self, planned: PlannedWorkload) -> str:
        """Return yes, no, all or quit; the end of input and a signal are quit."""
        self.report.show_question(planned, self.rollout.judged.get(planned.ref))
        question = f"{VERBS[planned.method]} {planned.ref}? [y]es/[n]o/[a]ll/[q]uit: "
        while True:
            self.report.progress.write(question)
            line = self.read_line() or "quit"
            answer = line.strip().lower()
            for word in ("yes", "no", "all", "quit"):
                if answer in (word, word[0]):
                    return word
            question = "Answer y, n, a or q: "

    def read_line(self) -> str:
        """Return what is typed; nothing at the end of input, on a signal, or without a terminal.

        It polls: a read that a signal just missed would wait for the next key.
        """
        try:
            while not self.interrupts.received:
                if select.select([sys.stdin], [], [], POLL)[0]:
                    return os.read(sys.stdin.fileno(), 1024).decode(errors="replace")
        except OSError:  # the terminal was closed
            pass
        return ""

    def handle_event(self, seconds: float) -> None:
        """Wait for an event and record it."""
        try:
            task, news = self.events.get(timeout=seconds)
        except queue.Empty:
            return
        ref = task.planned.ref
        extra = {"workload": str(ref)}
        if isinstance(news, str):
            self.in_progress[ref].line = news
            log.debug("progress", extra={**extra, "line": news})
            return
        result = news
        del self.in_progress[ref]
        self.stop_reason = self.stop_reason or result.stop_reason
        if not task.timed_out:
            self.count(result)
        reason = DEADLINE_TEXT if DEADLINE_TEXT in result.message else ""
        is_rechecked = task.planned.method is Method.RESTART and not task.timed_out
        if result.outcome is Outcome.TIMED_OUT:
            reason = f"not complete after {human_duration(self.rollout.options.timeout)}"
        if reason and is_rechecked:
            log.info("rollout %s; will recheck at the end", reason, extra=extra)
            self.timed_out.append(result)
        else:
            self.report.finish(result)

    def count(self, result: Result) -> None:
        """Count failures; without --max-failures, a few in a row stop the run."""
        if result.is_failure:
            self.failures += 1
            self.failures_in_a_row += 1
        elif result.outcome in SUCCESSES:
            self.failures_in_a_row = 0
        is_unlimited = self.rollout.options.max_failures is None
        if is_unlimited and self.failures_in_a_row == self.TOO_MANY_IN_A_ROW:
            reason = f"{self.TOO_MANY_IN_A_ROW} rollouts failed in a row"
            self.stop_reason = self.stop_reason or reason

    def log_decisions(self) -> None:
        """Log once, each, that the run was paused, resumed, held or stopped."""
        was_paused, was_closed, was_stopped = self.logged
        is_paused, closed = self.interrupts.is_paused, self.gate.reason
        reason = self.reason_to_stop()
        if reason:
            self.interrupts.stop_starting.set()
        self.logged = is_paused, closed, reason
        if closed and closed != was_closed:
            log.warning("gate closed: %s", closed)
        if was_closed and not closed:
            log.warning("gate open")
        if is_paused and not was_paused:
            extra = {"resume_with": f"kill -USR2 {os.getpid()}"}
            log.warning("paused: no new rollouts will start", extra=extra)
        if was_paused and not is_paused:
            log.warning("resumed")
        if reason and not was_stopped:
            more = f"; waiting for {len(self.in_progress)} in progress" if self.in_progress else ""
            if self.in_progress and self.interrupts.received:
                more += " (interrupt again to stop waiting)"
            action = "stopping" if reason == self.stop_reason else "no new rollouts will start"
            log.warning("%s: %s%s", reason, action, more)


# Reporting: it displays and counts, and decides nothing


def image_version(image: str) -> str:
    """Return the part of an image that tells its version."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag or digest[:19] or "latest"


def sidecar_text(sidecars: Iterable[Sidecar], with_names: bool) -> str:
    """Return `1.26.2, 1.27.0`, with names `istio-proxy 1.26.2, istio-init 1.26.2 (init)`."""
    texts = [
        f"{found.name if with_names else ''} {image_version(found.image)}"
        f"{' (init)' if found.init else ''}"
        for found in sidecars
    ]
    return ", ".join(dict.fromkeys(text.strip() for text in texts))


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as they need."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


SECTION_NOUNS = {
    "env": "env",
    "ports": "port",
    "volumeMounts": "mount",
    "volumes": "volume",
}


def difference_text(difference: Difference, width: int = 1000) -> str:
    """Return a line like `istio-proxy  env X  <none> -> istiod`, shortened to the width."""
    (name, *section), current, expected = difference
    if not section and isinstance(expected, str):  # a ConfigMap or Secret
        return f"{name} {expected}"
    if not section:
        container = expected or current
        sidecar = Sidecar(name, container.get("image", ""), False, container["position"] == INIT)
        verb = "added" if expected else "removed"
        return f"would be {verb}: {sidecar_text([sidecar], with_names=True)}"
    what = ".".join(section)
    old = value_text(current)
    new = value_text(expected)
    if what == "position":
        kinds = {
            REGULAR: "a regular container",
            NATIVE: "a native sidecar",
            INIT: "an init container",
        }
        return f"{name}  changes from {kinds[current]} to {kinds[expected]}"
    for plural, word in SECTION_NOUNS.items():
        what = re.sub(rf"^{plural}\.", f"{word} ", what)
    repository, colon, tag = new.rpartition(":")
    if what == "image" and colon and old.startswith(f"{repository}:"):
        new = tag
    room = max(width - len(f"{name}  {what}   -> "), 20)
    old_width = max(room // 2, room - len(new))
    if what == "image" and len(old) > old_width:  # its end tells the version
        old = f"...{old[3 - old_width :]}"
    old = shorten(old, old_width)
    return f"{name}  {what}  {old} -> {shorten(new, max(room - len(old), 10))}"


def value_text(value: Any) -> str:
    if isinstance(value, str):
        return value or '""'
    return "<none>" if value is None else json.dumps(value)


def group_key(judged: JudgedWorkload) -> str:
    """Return what drifted workloads have in common, however old their Pods are."""
    found = []
    for difference in judged.differences:
        is_config = isinstance(difference.expected, str) and not difference.path[1:]
        found.append(difference.path if is_config else difference_text(difference))
    return json.dumps([found, judged.other_changes])


VERDICT_MEANINGS = {
    Verdict.REJECTED: "cannot be recreated (running Pods are not affected until they are replaced)",
    Verdict.UNKNOWN: "cannot be compared",
}


class Report:
    """Writes text or JSON records to standard output, and counts for the summary."""

    MAX_NAMES = 5  # of a group; with --log-level=debug all
    AS_EXPECTED = {"up to date": 0, "not injected": 0}  # verdicts that need no attention

    def __init__(self, connection: Connection, options: Options, progress: ProgressLine) -> None:
        self.connection = connection
        self.options = options
        self.progress = progress
        self.command = command_to_apply(command_line(), options.cutoff)
        self.as_json = options.log_format == "json"
        names = options.sidecars
        self.with_names = len(names) > 1 or is_pattern(names[0])
        self.began = self.last_progress = time.monotonic()
        self.plan = Plan()
        self.with_other_changes: set[ObjectRef] = set()
        self.places: dict[ObjectRef, str] = {}  # in the rollout order
        self.outcomes: Counter[Outcome] = Counter()
        self.unsuccessful: list[Result] = []
        self.pod_counts: Counter[str] = Counter()  # fields of PodCounts
        self.pods: Counter[str] = Counter()  # of the plan: they add up to its number
        self.has_lost_output = False

    def record(self, record: str, ref: ObjectRef | None = None, **fields: Any) -> None:
        if self.as_json:
            subject = only(ref._asdict(), ("kind", "namespace", "name")) if ref else {}
            self.write(json.dumps({"record": record, **subject, **fields}))

    def print(self, *lines: str) -> None:
        if lines and not self.as_json:
            self.write("\n".join(map(printable, lines)))

    def write(self, text: str) -> None:
        self.progress.erase()
        try:
            print(text, flush=True)
        except OSError as error:  # the rollouts matter more than the text
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):  # that is `| head`, which has read enough
                self.has_lost_output = True
                log.error("cannot write to standard output: %s", error.strerror)
        self.progress.draw()

    def print_groups(self, title: str, skips: Sequence[Skip]) -> None:
        """Print, if there are any, the objects that have a reason, by reason."""
        lines = [f"{title}:"]
        for reason, found in sorted(group_by(skips, lambda skip: skip.reason).items()):
            limit = len(found) if self.options.log_level == "debug" else self.MAX_NAMES
            names = ", ".join(str(skip.subject) for skip in found[:limit])
            if len(found) > limit:
                names += f" and {len(found) - limit} more (use --log-level=debug to list all)"
            lines += [f"  {reason}:", f"    {names}"]
        if skips:
            self.print(*lines, "")

    # The plan

    def show_plan(self, plan: Plan) -> None:
        """Show the drift, the plan, what is skipped, and the totals."""
        self.plan = plan
        self.with_other_changes = {j.planned.ref for j in plan.judged if j.other_changes}
        for judged in plan.judged:
            if judged.verdict is Verdict.NOT_INJECTED:
                log.debug("not injected", extra={"workload": str(judged.planned.ref)})
                continue
            self.record(
                "drift",
                judged.planned.ref,
                verdict=judged.verdict.snake_case,
                differences=[difference._asdict() for difference in judged.differences],
                other_changes=judged.other_changes,
                message=judged.message,
            )
        for position, planned in enumerate(plan.workloads, 1):
            self.places[planned.ref] = str(position)
            self.record(
                "plan",
                planned.ref,
                position=position,
                selected=position <= plan.selected,
                pods_to_replace=planned.pods_to_replace,
                pods=planned.pods,
                sidecars=[sidecar._asdict() for sidecar in planned.sidecars],
                oldest_pod=format_time(planned.oldest_pod),
                method=planned.method.snake_case,
                state=planned.state.snake_case,
                unhealthy_reason=planned.unhealthy_reason,
                downtime=planned.recreate,
                controlled_by=str(planned.controlled_by or ""),
            )
        for subject, reason in [*plan.broken, *plan.skips]:
            log.debug("skipped", extra={"workload": str(subject), "reason": reason})
            self.record("skip", subject, reason=reason)
        if plan.judged:
            self.print_drift()
        elif plan.workloads:
            self.print(*self.plan_lines(plan.workloads), "")
        self.print_groups("Without Pods", plan.broken)
        self.print_groups("Skipped", plan.skips)
        self.print_totals()

    def plan_lines(self, workloads: Sequence[PlannedWorkload]) -> list[str]:
        """Return a table in the order given, with the notes on a workload below its row.

        Drifted workloads are grouped, so their rows have the place in the rollout order.
        """
        rows = [["#", "NAMESPACE", "WORKLOAD", "REPLACE", "SIDECAR", "OLDEST POD", "STATE"]]
        for planned in workloads:
            ref = planned.ref
            age = datetime.now(timezone.utc) - planned.oldest_pod
            name = f"{ref.kind.lower()}/{ref.name}"
            row = [self.places.get(ref, "-"), ref.namespace, name]
            row.append(f"{planned.pods_to_replace} of {planned.pods}")
            row.append(sidecar_text(planned.sidecars, self.with_names) or "<none>")
            rows.append([*row, human_duration(age.total_seconds()), planned.state.value])
        is_grouped = bool(self.plan.judged)
        header, *table = format_table(rows if is_grouped else [row[1:] for row in rows])
        lines = [header]
        for place, (planned, line) in enumerate(zip(workloads, table, strict=True)):
            if place == self.plan.selected and not is_grouped:
                lines.append("--- not selected by --max-rollouts: ---")
            downtime = "downtime (strategy: Recreate)" if planned.recreate else ""
            action = ""
            if planned.method is Method.EVICT:
                action = "will be evicted, one Pod at a time"
            elif planned.method is Method.IN_PLACE:
                action = "images will be changed in place, one Pod at a time"
                if planned.ref in self.with_other_changes:
                    action = (
                        "images will be changed in place; other changes wait for the next restart"
                    )
            elif planned.evicted_pods:
                count = count_of(planned.evicted_pods, "Pod")
                action = f"{count} below the partition will be evicted"
            notes = "; ".join(filter(None, (planned.unhealthy_reason, downtime, action)))
            lines += [line, f"    {notes}"] if notes else [line]
        return lines

    def print_drift(self) -> None:
        """Print the drifted workloads by what differs, the largest group first."""
        by_verdict = group_by(self.plan.judged, lambda judged: judged.verdict)
        different = [*by_verdict[Verdict.DRIFTED], *by_verdict[Verdict.MISSING]]
        groups = group_by(different, group_key)
        for group in sorted(groups.values(), key=len, reverse=True):
            meaning = (
                "would lose the sidecar (not restarted without --allow-removal; check that the "
                "injector is healthy)"
            )
            if group[0].planned.ref in self.places:
                meaning = "with these differences"
            table = self.plan_lines([judged.planned for judged in group])
            self.print(f"{count_of(len(group), 'workload')} {meaning}:")
            self.print(*self.difference_lines(group[0]), "")
            self.print(*(f"  {line}" for line in table), "")
        others = [judged for judged in by_verdict[Verdict.UP_TO_DATE] if judged.injected_changes]
        names = sorted({name for judged in others for name in judged.injected_changes})
        if others:
            count = count_of(len(others), "workload")
            text = f"{count} with an up-to-date sidecar: new Pods would differ in"
            self.print(f"{text} {join_words(names)}.", "")
        for verdict, meaning in VERDICT_MEANINGS.items():
            found = by_verdict[verdict]
            skips = [Skip(judged.planned.ref, short_reason(judged.message)) for judged in found]
            self.print_groups(f"{count_of(len(found), 'workload')} {meaning}", skips)

    def difference_lines(self, judged: JudgedWorkload) -> list[str]:
        width = shutil.get_terminal_size((120, 24)).columns - 2
        lines = [difference_text(difference, width) for difference in judged.differences]
        if judged.other_changes:
            changes = ", ".join(judged.other_changes)
            lines.append(shorten(f"Other changes to the Pod: {changes}", width))
        return [f"  {line}" for line in lines]

    def print_totals(self) -> None:
        plan = self.plan
        pods = count_of(sum(planned.pods_to_replace for planned in plan.workloads), "Pod")
        methods = Counter(planned.method for planned in plan.workloads)
        words = {Method.IN_PLACE: "change in place"}
        counts = [
            f"{methods[method]} to {words.get(method, method.value)}"
            for method in Method
            if methods[method]
        ]
        how = f", {join_words(counts)}" if len(counts) > 1 else ""
        sentences = [f"To roll out: {count_of(len(plan.workloads), 'workload')} ({pods}){how}"]
        if not plan.workloads:
            sentences = ["Nothing to roll out"]
        if plan.selected < len(plan.workloads):
            sentences.append(f"--max-rollouts selects the first {plan.selected}")
        sentences.append(count_words(self.verdict_counts()))
        scanned = f"Scanned {count_of(plan.scan.pods, 'Pod')}"
        nouns = Counter("Pod" if skip.subject.kind == "Pod" else "workload" for skip in plan.skips)
        skipped = [count_of(nouns[noun], noun) for noun in ("workload", "Pod") if nouns[noun]]
        if skipped:
            scanned += f"; skipped {join_words(skipped)}"
        if plan.scan.after_cutoff:
            scanned += f"; {plan.scan.after_cutoff} created after the cutoff"
        self.print(*(f"{sentence}." for sentence in (*sentences, scanned) if sentence))

    def verdict_counts(self) -> dict[str, int]:
        """Return how many compared workloads are not in the plan, by why."""
        verdicts = Counter(judged.verdict for judged in self.plan.judged)
        counts = {verdict.value: verdicts[verdict] for verdict in Verdict}
        drifted = counts.pop("drifted") + counts.pop("missing")
        counts["would lose the sidecar"] = drifted and drifted - len(self.plan.workloads)
        return counts

    # The rollouts

    def show_question(self, planned: PlannedWorkload, judged: JudgedWorkload | None) -> None:
        """Show a workload's line of the plan, and its differences, above the question."""
        lines = self.plan_lines([planned])
        lines += self.difference_lines(judged) if judged else []
        self.progress.show("")
        self.progress.write("\n" + "\n".join(map(printable, lines)) + "\n")

    def show_progress(self, in_progress: Collection[InProgress], hold: str) -> None:
        """Update the progress line; elsewhere than on a terminal log it once a minute.

        `hold` is why nothing starts now, for example because the run is paused.
        """
        elapsed = time.monotonic() - self.began
        finished = self.outcomes.total()
        total = self.plan.selected
        failed = sum(self.outcomes[outcome] for outcome in FAILURES)
        text = f"{finished}/{total} finished"
        text += f", {failed} failed" if failed else ""
        text += f", {human_duration(elapsed)}"
        if 3 <= finished < total:
            text += f", about {human_duration(elapsed / finished * (total - finished))} left"
        text += f", {hold}" if hold else ""
        text += f", {len(in_progress)} in progress"
        if in_progress:
            longest = min(in_progress, key=lambda running: running.started)
            ref = longest.task.planned.ref
            text += f": {ref.namespace}/{ref.name} {longest.line}"
        self.progress.show(text)
        if not self.progress.on_terminal and time.monotonic() - self.last_progress >= 60:
            self.last_progress = time.monotonic()
            log.info("%s", text)

    def finish(self, result: Result) -> None:
        """Count, record and log a workload's result."""
        planned = result.planned
        outcome = result.outcome
        self.outcomes[outcome] += 1
        self.count_pods(result)
        level = logging.INFO
        if outcome not in SUCCESSES:
            patched = result.patched and result.patched._replace(obj={})  # which may be large
            self.unsuccessful.append(replace(result, patched=patched))
            is_surprising = outcome is Outcome.FAILED and not planned.unhealthy_reason
            level = logging.ERROR if is_surprising else logging.WARNING
        if outcome is Outcome.NOT_STARTED:
            level = logging.DEBUG  # there may be thousands
        self.record(
            "result",
            planned.ref,
            outcome=outcome.snake_case,
            seconds=result.seconds,
            message=result.message,
        )
        extra = {"workload": str(planned.ref), "seconds": result.seconds}
        extra |= {"reason": result.message} if result.message else {}
        log.log(level, "%s %s", NOUNS[planned.method], outcome.value, extra=extra)

    def count_pods(self, result: Result) -> None:
        """Count a workload's Pods: those it has, and those of the plan, which add up."""
        total = result.planned.pods_to_replace
        counts = result.counts or PodCounts(total, ready=result.planned.ready)
        if result.outcome in SUCCESSES and not result.counts:  # they could not be verified
            counts = PodCounts(total, total, total, total)
        self.pod_counts.update(counts._asdict())
        limits = {
            "not updated": counts.matched - counts.updated,
            "good": counts.updated_and_ready,
            "lost": counts.lost,
            "not ready": total,
        }
        for word, limit in limits.items():
            count = min(limit, total)
            self.pods[word] += count
            total -= count

    # The summary

    def show_summary(self, exit_code: int) -> None:
        self.progress.show("")
        seconds = round(time.monotonic() - self.began, 1)
        has_more = self.outcomes.keys() & {Outcome.NOT_STARTED, Outcome.INTERRUPTED}
        verb = "resume" if has_more else ""
        if self.options.confirm:
            self.print_unsuccessful()
            self.print_counts(seconds)
        else:
            self.print("", "This was a dry run; nothing was changed.")
            verb = "apply" if self.plan.workloads else ""
        if verb:
            self.print(f"To {verb}, run:", f"  {self.command}")
        self.record(
            "summary",
            context=self.connection.context,
            server=self.connection.configuration.host,
            dry_run=not self.options.confirm,
            started_before=format_time(self.options.cutoff),
            outcomes={o.snake_case: self.outcomes[o] for o in Outcome if self.outcomes[o]},
            verdicts=Counter(judged.verdict.snake_case for judged in self.plan.judged),
            pods={name: self.pod_counts[name] for name in PodCounts._fields},
            planned=len(self.plan.workloads),
            without_pods=len(self.plan.broken),
            skipped=len(self.plan.skips),
            seconds=seconds,
            exit_code=exit_code,
        )

    def print_unsuccessful(self) -> None:
        """Print what did not succeed, by outcome; failures with the commands to run next."""
        self.print("")
        groups = group_by(self.unsuccessful, lambda result: result.outcome)
        for outcome in filter(groups.get, Outcome):
            if outcome in (Outcome.NOT_STARTED, Outcome.DECLINED, Outcome.SKIPPED):
                skips = [Skip(result.planned.ref, result.message) for result in groups[outcome]]
                self.print_groups(outcome.value, skips)
                continue
            for result in groups[outcome]:
                ref = result.planned.ref
                command = self.connection.kubectl_command
                self.print(f"{outcome.value}: {ref}: {result.message}")
                if outcome in FAILURES:
                    self.print(f"  {command(ref, 'describe')}")
                if result.patched and outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
                    self.print(f"  {command(ref, 'rollout', 'undo')}")
                elif result.patched and result.stop_reason:  # a rerun does not find it
                    self.print(f"  {command(ref, 'rollout', 'restart')}")

    def print_counts(self, seconds: float) -> None:
        counts = {outcome.value: self.outcomes[outcome] for outcome in Outcome}
        counts |= self.verdict_counts() | self.AS_EXPECTED
        if any(counts.values()):
            total = count_of(sum(counts.values()), "workload")
            self.print(f"{total} in {human_duration(seconds)}: {count_words(counts)}.")
        total_pods = self.pods.total()
        good = self.pods.pop("good", 0)
        if total_pods:
            missing = count_words(self.pods)
            note = f" ({missing})" if missing else ""
            self.print(f"Pods: {good} of {total_pods} updated and ready{note}.")

    def exit_code(self) -> int:
        plan = self.plan
        options = self.options
        has_failed = any(self.outcomes[outcome] for outcome in FAILURES)
        is_left = any((self.verdict_counts() | self.AS_EXPECTED).values()) or plan.broken
        reasons = [
            has_failed,
            any(result.stop_reason for result in self.unsuccessful),
            self.has_lost_output,
            options.confirm and is_left,
            options.fail_on_drift and (is_left or plan.workloads),
        ]
        return int(any(reasons))


def warn_about_names(options: Options, plan: Plan) -> None:
    """Warn about names given by options that match nothing: most often a typo."""
    import difflib  # would cost each start 1 ms, of 112

    scan = plan.scan
    containers = scan.containers.union(*(judged.added for judged in plan.judged))
    for pattern in options.sidecars if scan.pods else ():
        if not fnmatch.filter(containers, pattern):
            close = difflib.get_close_matches(pattern, sorted(containers), cutoff=0.3)
            hint = f"; did you mean {join_words(close, 'or')}?" if close else ""
            message = "no Pods have a container named %s (%d checked)%s"
            log.warning(message, pattern, scan.pods, hint)
    # Excluded namespaces are seen only if all are read.
    excluded = () if namespaces_to_list(options) else options.exclude_namespace
    for pattern in (*options.include_namespace, *excluded):
        if not fnmatch.filter(scan.namespaces, pattern):
            selected = "that match the selector " if options.selector else ""
            log.warning("no Pods %sin namespace %s; check the name", selected, pattern)
    refs = [planned.ref for planned in (*plan.workloads, *(j.planned for j in plan.judged))]
    refs += [skip.subject for skip in (*plan.skips, *plan.broken)]
    names = [name for ref in refs for name in typed_names(ref)]
    for pattern in options.workloads:
        if not fnmatch.filter(names, pattern):
            hint = "check the name, the namespace and the cutoff"
            log.warning("no Pods of %s have the sidecar; %s", pattern, hint)


# The stages


def find_cutoff(option: datetime, now: datetime) -> datetime:
    """Return the time before which Pods count: as an option, or now.

    It is rounded up to a whole second, like the creation time of Pods, so that the command that is
    printed selects the same Pods.
    """
    if option is NOW:
        return now.replace(microsecond=0) + timedelta(seconds=1)
    if option > now:
        log.warning("--only-started-before is in the future: each run restarts everything again")
    return option + timedelta(microseconds=-option.microsecond % 10**6)


@dataclass
class Survey:
    """What was read of the cluster, for the plan."""

    cluster: Cluster
    options: Options
    scan: Scan
    candidates: Candidates
    skips: list[Skip]
    objects: Mapping[ObjectRef, str]
    broken: dict[ObjectRef, str]  # without Pods since a rollout, and why
    namespaces: Mapping[str, Json]  # their metadata, if it is needed
    serving: set[PodName] | None

    def reason_to_skip(self, planned: PlannedWorkload, obj: Json, **known: Any) -> str | None:
        """Return why to skip a workload, by what is known of it; None means take it."""
        ref = planned.ref
        situation = Situation(
            ref,
            self.options,
            obj,
            namespace=self.namespaces.get(ref.namespace, {}),
            now=None if ref in self.broken else self.cluster.now(),
            unhealthy_reason=planned.unhealthy_reason if self.candidates[ref].names else "",
            **known,
        )
        return reason_to_skip(situation)

    def workloads(self) -> list[PlannedWorkload]:
        """Return what is not skipped, in rollout order.

        Those that lack the sidecar are skipped only after it is known that they should have it.
        """
        options = self.options
        found = []
        for ref, candidate in self.candidates.items():
            obj = json.loads(self.objects[ref])
            planned = plan_workload(ref, candidate, obj, self.serving, options)
            is_known = candidate.names and not options.only_drifted
            old_pods = candidate.names if is_known else None
            reason = self.reason_to_skip(planned, obj, old_pods=old_pods, in_place=options.in_place)
            if reason and (candidate.sidecars or not candidate.names):
                self.skips.append(Skip(ref, reason))
            else:
                found.append(planned)
        return in_rollout_order(found)

    def not_skipped(self, verdicts: Iterable[JudgedWorkload]) -> list[JudgedWorkload]:
        """Return the verdicts on workloads that are not skipped, with the Pods to replace."""
        found = []
        for judged in verdicts:
            planned = judged.planned
            pods = judged.drifted_pods
            obj = json.loads(self.objects[planned.ref])
            in_place = self.options.in_place and judged.only_images
            reason = self.reason_to_skip(
                planned, obj, causes=judged.causes, old_pods=pods or None, in_place=in_place
            )
            if reason and judged.verdict is not Verdict.NOT_INJECTED:
                self.skips.append(Skip(planned.ref, reason))
                continue
            if in_place:
                planned = changed_in_place(planned, len(pods))
            elif pods:
                planned = replace(with_pods(planned, obj, pods, self.options), added=judged.added)
            found.append(replace(judged, planned=planned))
        return found


def survey(cluster: Cluster, options: Options) -> Survey:
    """Read the cluster."""
    log.info("scanning Pods", extra={"created_before": format_time(options.cutoff)})
    namespaces = namespaces_to_list(options)
    candidates, scan = cluster.retry_expired(
        lambda: read_candidates(cluster.items(CORE, "pods", namespaces, options.selector), options)
    )
    reader = WorkloadReader(cluster, options)
    owners = reader.owners(candidates)
    candidates, skips = group_by_workload(candidates, owners, options)
    objects = reader.read(candidates)
    unseen = sorted(reader.without_pods - candidates.keys())
    reasons = in_parallel(unseen, lambda ref: cluster.why_no_pods(ref, json.loads(objects[ref])))
    broken = {ref: reason for ref, reason in reasons if reason}
    candidates |= {ref: candidate_without_pods(ref, options.cutoff) for ref in broken}
    needs_namespaces = options.exclude_annotation or options.confirm
    names = {ref.namespace for ref in candidates} if needs_namespaces else ()
    return Survey(
        cluster,
        options,
        scan,
        candidates,
        skips,
        objects,
        broken,
        namespaces=dict(in_parallel(names, cluster.namespace)),
        serving=cluster.serving_pods(namespaces) if candidates else set(),
    )


def make_plan(cluster: Cluster, options: Options, comparison: Comparison) -> Plan:
    """Read the cluster and return the plan."""
    state = survey(cluster, options)
    workloads = state.workloads()
    judged: list[JudgedWorkload] = []
    broken = state.broken.keys() & {planned.ref for planned in workloads}
    if options.only_drifted:
        verdicts = comparison.judge_all(workloads, state.candidates, state.objects)
        judged = state.not_skipped(verdicts)
        broken &= {found.planned.ref for found in judged if found.verdict is not Verdict.REJECTED}
        judged = [found for found in judged if found.planned.ref not in broken]
        workloads = [
            found.planned
            for found in judged
            if found.verdict in (Verdict.DRIFTED, Verdict.MISSING)
            and (options.allow_removal or not found.removes_sidecar(options.sidecars))
        ]
    workloads = [planned for planned in workloads if planned.ref not in broken]
    return Plan(
        workloads=workloads,
        selected=min(math.ceil(options.max_rollouts.of(len(workloads))), len(workloads)),
        skips=sorted(state.skips),
        broken=sorted(Skip(ref, state.broken[ref]) for ref in broken),
        scan=state.scan,
        judged=judged,
    )


def roll_out(plan: Plan, rollout: Rollout, report: Report) -> None:
    """Roll out what is selected of the plan; report a result for each workload in it."""
    options = report.options
    rollout.interrupts.raises = False
    workers = int(options.parallel_rollouts.of(len(plan.workloads)))
    workers = max(min(workers, plan.selected), 1)
    # The cutoff was rounded up: no Pod that this run creates may be older.
    ahead = (rollout.options.cutoff - rollout.cluster.now()).total_seconds()
    time.sleep(min(max(ahead, 0), 1))
    rollout.cluster.retries = RETRIES_DURING_ROLLOUTS
    rollout.cluster.open_connections(workers)
    scheduler = Scheduler(rollout, report, workers)
    scheduler.run(plan.workloads[: plan.selected])
    for planned in plan.workloads[plan.selected :]:
        report.finish(Result(planned, Outcome.NOT_STARTED, "not selected by --max-rollouts"))


def exit_code_for(error: BaseException, interrupts: Interrupts) -> int:
    """Log in one line what ended the program; return the exit code."""
    log.debug("traceback", exc_info=error)
    if isinstance(error, Interrupted):
        log.warning("interrupted; nothing was changed")
        return interrupts.exit_code
    if isinstance(error, ModuleNotFoundError):
        hint = f"pip install -r requirements.txt, or start it with: uv run {SCRIPT}"
        log.error("error: Python package %s is not installed; run: %s", error.name, hint)
        return 3
    if isinstance(error, (StartError, ApiError)):
        log.error("error: %s (nothing was changed)", error)
        return 3
    log.critical(
        "error: unexpected error: %r; run again with --log-level=debug and report the log", error
    )
    return 3 if interrupts.raises else 1  # 1: rollouts may have begun


# Objects to keep until Python exits. If a daemon thread were the last to use the connections, it
# would free them while Python runs its exit functions, which may end in a traceback (RuntimeError:
# dictionary changed size during iteration).
KEPT: list[object] = []


def main() -> int:
    """Run the stages in their order; return the exit code."""
    if not hasattr(signal, "SIGUSR1"):
        sys.stderr.write("error: this platform is not supported; on Windows, use WSL\n")
        return 3
    interrupts = Interrupts()
    try:
        options = parse_args(sys.argv[1:])
        progress = set_up_logging(options.log_level, options.log_format)
        kubectl = find_kubectl(options.kubectl)
        connection = connect(kubectl, options.kubeconfig, options.context)
        cluster = Cluster(connection)
        KEPT.append(cluster)
        cluster.check_connection()
        began = cluster.now()
        options = replace(options, cutoff=find_cutoff(options.cutoff, began))
        check_permissions(cluster, options)
        if options.confirm:
            check_kubectl(kubectl, connection)

        report = Report(connection, options, progress)
        report.print(str(connection))
        comparison = Comparison(cluster, options, progress)
        plan = make_plan(cluster, options, comparison)
        warn_about_names(options, plan)
        if options.confirm:
            check_permissions_for_pods(cluster, plan)
        report.show_plan(plan)
        if options.confirm:
            rollout = Rollout(
                cluster=cluster,
                kubectl=Kubectl(kubectl, connection.kubectl_flags, interrupts.stop_waiting),
                interrupts=interrupts,
                options=options,
                began=began,
                judged={judged.planned.ref: judged for judged in plan.judged},
            )
            roll_out(plan, rollout, report)
        exit_code = interrupts.exit_code or report.exit_code()
        report.show_summary(exit_code)
        return exit_code or report.exit_code()  # the summary may not have been written
    except (Exception, Interrupted) as error:
        return exit_code_for(error, interrupts)
    finally:
        interrupts.raises = False  # a late signal must not change the exit code


if __name__ == "__main__":
    raise SystemExit(main())
