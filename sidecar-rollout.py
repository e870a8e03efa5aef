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

  # Apply a plan that was reviewed, the output with --log-format=json
  sidecar-rollout.py --sidecar-container-name=istio-proxy --only-drifted \\
      --plan=plan.jsonl --confirm=true

  # Also evict Pods that a restart does not replace
  sidecar-rollout.py --sidecar-container-name=istio-proxy --confirm=true \\
      --include-daemonset --evict

  # Start no rollouts while a file exists
  sidecar-rollout.py --sidecar-container-name=istio-proxy --confirm=true \\
      --gate='test ! -e /tmp/hold-rollouts'

  # Restart only workloads with Pods from before a time; rerun this to resume
  sidecar-rollout.py --sidecar-container-name=istio-proxy --confirm=true \\
      --only-started-before='2026-05-01 13:00'

Options marked * can be repeated and accept shell wildcards. A switch without a
value means true; =false is the opposite.

Exit codes:
  0         nothing failed; what is left (rejected, unknown, skipped, unhealthy
            before, not started) is listed
  1         something failed: a rollout of a workload that was healthy before,
            also one of an earlier run since --only-started-before; new Pods
            have no sidecar; a name does not exist; the API server became
            unavailable; with --fail-on-drift, selected Pods are not up to date
  2         bad usage
  3         cannot start: no cluster, no permission, no kubectl; nothing was
            changed
  130, 143  interrupted by SIGINT, SIGTERM (129: SIGHUP); what was in progress
            is listed

Contents, in the order in which the data flows:
   1. Types               Workload, its parts and what becomes of it
   2. Words               text for people, redaction, values inside objects
   3. Command line        OPTIONS and their validators; parse_args -> Options
   4. Logging             set_up_logging -> ProgressLine
   5. Cluster             every request to the API server: Connection, Cluster
   6. Starting            kubectl, the kubeconfig, permissions: connect -> Connection
   7. Selecting           read_pods -> Workloads by the owner of their Pods
   8. Rules               reasons to skip a workload: reason_to_skip
   9. The plan            find_workloads, make_plan -> Plan
  10. Comparing           for the plan, what Pods would be like today: compare_all, compare
  11. Rolling out         one workload, in a worker: Signals, Gate, Rollout -> Result
  12. A few Pods at once  PodByPod: Eviction, ImageChange
  13. Scheduler           the whole plan, by the main thread: Scheduler
  14. Report              plan, progress, results, summary
  15. Main                the stages in their order: main -> exit code
"""

from __future__ import annotations

import argparse
import difflib
import email.utils
import enum
import fnmatch
import functools
import hashlib
import itertools
import json
import logging
import math
import os
import queue
import random
import re
import select
import shlex
import shutil
import signal
import string
import subprocess
import sys
import textwrap
import threading
import time
import urllib.parse
import urllib.request
import warnings
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from multiprocessing import TimeoutError
from multiprocessing.pool import ThreadPool
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

VERSION = "0.4.0"
SCRIPT = "sidecar-rollout.py"
IS_PLUGIN = os.path.basename(sys.argv[0]) == "kubectl-sidecar_rollout"  # of kubectl
PROGRAM = "kubectl sidecar-rollout" if IS_PLUGIN else SCRIPT
FIELD_MANAGER = "sidecar-rollout"

Json = dict[str, Any]  # an object of the API, as it came
Labels = Mapping[str, str]  # labels or annotations
Names = Sequence[str]  # names, or patterns of names
AnnotationFilter = tuple[str, str]  # key, and the value's pattern with shell wildcards
Tell = Callable[[str], object]  # takes a line of progress: by kubectl, or Pod by Pod
Item = TypeVar("Item")
Answer = TypeVar("Answer")

log = logging.getLogger(FIELD_MANAGER)

# 1. Types ----------------------------------------------------------------------------------------


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


CORE, DISCOVERY = "/api/v1", "/apis/discovery.k8s.io/v1"
REPLICAS = (
    "spec.replicas",
    "status.availableReplicas",
    "status.replicas",
    "status.updatedReplicas",
)
SCHEDULED = (
    "status.desiredNumberScheduled",
    "status.numberAvailable",
    "status.currentNumberScheduled",
    "status.updatedNumberScheduled",
)


class Kind(NamedTuple):
    """A kind of workload, or an owner of Pods whose template can be read."""

    group: str
    plural: str
    how_to_select: str = ""  # empty: it has no rollouts
    counts: Names = REPLICAS  # where Pods are counted: desired, available, current, updated

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/v1" if self.group else CORE

    @property
    def resource(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


KINDS = {
    "Deployment": Kind("apps", "deployments", "remove --exclude-deployment"),
    "StatefulSet": Kind("apps", "statefulsets", "add --include-statefulset"),
    "DaemonSet": Kind("apps", "daemonsets", "add --include-daemonset", SCHEDULED),
    "ReplicaSet": Kind("apps", "replicasets"),
    "ReplicationController": Kind("", "replicationcontrollers"),
}
WORKLOADS = tuple(name for name, kind in KINDS.items() if kind.how_to_select)
OWNED = tuple(name for name in KINDS if name not in WORKLOADS)  # Pods can only be evicted


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


class Planned(NamedTuple):
    """What a plan file says of a workload."""

    uid: str
    cutoff: datetime
    revision: str  # see revision_of


@dataclass(frozen=True)
class Options:
    """The command line, ready to use."""

    workloads: list[str]  # such as deployment/web*; none: all
    sidecars: list[str]  # container names, with shell wildcards, as are the other lists of names
    cutoff: datetime  # only Pods created before it; of --only-started-before
    plan: Mapping[ObjectRef, Planned] | None  # what was approved, in its order; None: everything
    include_namespace: list[str]
    exclude_namespace: list[str]
    selector: str | None
    include_annotation: list[AnnotationFilter]
    exclude_annotation: list[AnnotationFilter]
    kinds: frozenset[str]
    skip_unhealthy: bool
    skip_downtime: bool
    only_drifted: bool
    include_missing: bool
    include_config: bool
    ignore_config: list[str]
    allow_removal: bool
    fail_on_drift: bool
    confirm: bool
    confirm_each: bool
    evict: bool
    in_place: bool
    max_unavailable: Amount | None
    parallel_rollouts: Amount
    max_rollouts: Amount
    max_failures: Amount | None
    max_duration: float | None  # seconds
    gate: list[str]  # a command; empty: none
    timeout: float  # seconds
    soak: float | None  # seconds
    annotation_prefix: str
    rollout_reason: str  # see reason_for
    record_events: bool
    kubeconfig: str | None
    context: str | None
    kubectl: str
    log_level: str
    log_format: str

    def cutoff_of(self, ref: ObjectRef) -> datetime:
        """Return the time before which Pods of a workload count."""
        return self.plan[ref].cutoff if self.plan and ref in self.plan else self.cutoff


def snake_case(text: str) -> str:
    """Return words for people as JSON records have them: `static_pod`."""
    return text.lower().replace(" ", "_")


class Word(enum.Enum):
    """An enum whose values are for people."""

    @property
    def snake_case(self) -> str:
        return snake_case(str(self.value))


class State(Word):
    """How risky a rollout is: to wait for unhealthy workloads may take long.

    The values sort in rollout order.
    """

    NOT_SERVING = "not serving"  # none of its Pods is a ready endpoint of a Service
    SERVING = "serving"
    UNHEALTHY = "unhealthy"


class Method(Word):
    """How the Pods of a workload are replaced."""

    RESTART = "restart"  # by a rollout
    ATTACH = "attach"  # not begun again: the rollout of an earlier run is waited for
    EVICT = "evict"
    IN_PLACE = "in place"  # not replaced: images of running containers are changed

    @property
    def is_rollout(self) -> bool:
        return self in (Method.RESTART, Method.ATTACH)


class Verdict(Word):
    """How the Pods of a workload compare with what would be created today."""

    NOT_COMPARED = "not compared"
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


class LivePod(NamedTuple):
    """A Pod, reduced to what the plan, the comparison and the census need."""

    name: str
    created: datetime
    is_ready: bool
    sidecars: frozenset[Sidecar]
    problem: str = ""  # for example CrashLoopBackOff
    stuck: bool = False  # whether one of its sidecars does not start
    view: bytes = b""  # its sidecars, see view_of; only with --only-drifted
    resized: tuple[str, ...] = ()  # containers whose resources were changed in place
    ends: bool = False  # whether it runs to completion


NOTHING: Any = {}  # shared by all, not to be changed: there may be 30,000 workloads


@dataclass(slots=True, eq=False)
class Workload:
    """A workload, or whatever owns Pods. Each stage sets the fields of its own part."""

    # Its Pods, from when the first is read
    ref: ObjectRef  # at first the controller of the Pods; then, of a ReplicaSet, its Deployment
    template_hash: str = "\0"  # pod-template-hash, the Pods' label
    sample: bytes = b""  # one of the Pods, with a sidecar if any has it; see packed_alike
    owners: tuple[ObjectRef, ...] = ()  # the controllers of the Pods
    pods: list[LivePod] = field(default_factory=list)
    sidecars: frozenset[Sidecar] = frozenset()  # empty with --include-missing: none has one

    # The object; a worker reads it again
    stored: bytes = b""  # see obj
    namespace: Json = field(default_factory=lambda: NOTHING)  # its metadata, if it is needed
    in_template: frozenset[Sidecar] = frozenset()  # what its Pod template has by itself
    stamps: Names = ()  # see timestamps_of
    unhealthy_reason: str = ""  # for example CrashLoopBackOff
    state: State = State.SERVING

    # The comparison
    verdict: Verdict = Verdict.NOT_COMPARED
    message: str = ""  # why it is rejected or unknown
    causes: Collection[str] = ()  # of the error of its latest dry run
    view: bytes = b""  # the sidecars that would be injected today
    configs: Mapping[ObjectRef, bool] = field(default_factory=lambda: NOTHING)  # is it required?
    config_changes: Mapping[ObjectRef, datetime] = field(default_factory=lambda: NOTHING)
    ignored: frozenset[tuple[str, ...]] = frozenset()  # paths that differ in each new Pod
    differences: Sequence[Difference] = ()
    other_changes: Names = ()
    drifted_pods: Names = ()

    # The plan
    lacking: Names = ()  # Pods without a sidecar that others have, and new ones would get
    reason: str = ""  # why it is not in the plan
    code: str = ""  # of that reason: the name of the rule
    left: str = ""  # why Pods are not up to date, see LEFT; only with --only-drifted
    method: Method = Method.RESTART
    old_pods: Names = ()  # also of Pods that a partition keeps; a worker looks again
    pods_to_replace: int = 0  # without those that a partition keeps
    total_pods: int = 0
    pods_replaced: int = 0  # with those that a restart replaces although they are up to date
    ready: int = 0  # Pods, at most those to replace
    downtime: bool = False  # whether all its Pods may be away at once
    place: str = ""  # in the rollout order; `-` is not selected, empty not in the plan

    # The rollout
    is_begun: bool = False  # whether something may have been written

    @property
    def obj(self) -> Json:
        """Return the object in the cluster, not to be changed; empty if it does not exist."""
        return stored_object(self.stored)

    @obj.setter
    def obj(self, obj: Json) -> None:
        self.stored = packed(obj) if obj else b""

    def merge(self, other: Workload) -> None:
        """Take the Pods of another owner of the same workload."""
        self.owners += other.owners
        self.pods += other.pods
        self.sample = self.sample if self.sidecars else other.sample
        self.sidecars |= other.sidecars

    @property
    def subjects(self) -> list[ObjectRef]:
        """Return what is named if it is skipped: it, or the Pods of an owner that was not read."""
        if is_workload(self.ref) or self.stored:
            return [self.ref]
        return [ObjectRef("Pod", self.ref.namespace, pod.name) for pod in self.pods]

    @property
    def shown_as_lacking(self) -> str:
        """Return `1 of 2 Pods has no sidecar`, also which one of several, or an empty text."""
        if not self.lacking:
            return ""
        verb = "has" if len(self.lacking) == 1 else "have"
        names = {sidecar.name for sidecar in self.sidecars}
        found = [{s.name for s in pod.sidecars} for pod in self.pods if pod.name in self.lacking]
        missing = join_words(sorted(set().union(*(names - have for have in found))), "or")
        which = f" {missing}" if len(names) > 1 else ""
        return f"{len(self.lacking)} of {count_of(len(self.pods), 'Pod')} {verb} no sidecar{which}"

    @property
    def deployment(self) -> ObjectRef:
        """Return what a ReplicaSet's name implies: it is <deployment>-<pod-template-hash>."""
        name = self.ref.name.removesuffix(f"-{self.template_hash}")
        return ObjectRef("Deployment", self.ref.namespace, name, "apps")

    @property
    def oldest_pod(self) -> datetime:
        return min(pod.created for pod in self.pods)

    @property
    def removed(self) -> list[Difference]:
        """Return the containers that new Pods would not have."""
        return [d for d in self.differences if len(d.path) == 1 and d.expected is None]

    @property
    def added(self) -> list[str]:
        """Return the names of the sidecars that new Pods would get in addition."""
        return [
            difference.path[0]
            for difference in self.differences
            if len(difference.path) == 1 and isinstance(difference.expected, dict)
        ]

    @property
    def controller(self) -> ObjectRef | None:
        """Return the owner of a workload, such as a Prometheus, which may revert changes."""
        return controller_of(self.obj) if is_workload(self.ref) else None


@dataclass
class Scan:
    """What was seen while reading Pods, for hints and totals."""

    pods: int = 0
    after_cutoff: int = 0
    namespaces: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)  # workloads that exist, of TYPE/NAME


class Skip(NamedTuple):
    subject: ObjectRef
    reason: str
    code: str = ""  # the name of the rule
    detail: str = ""


class LeftPod(NamedTuple):
    """A Pod that is not up to date."""

    subject: ObjectRef
    reason: str
    sidecars: frozenset[Sidecar]


@dataclass(frozen=True)
class Plan:
    """What is rolled out, and what is not."""

    workloads: Sequence[Workload] = ()  # in rollout order
    selected: int = 0  # how many of them --max-rollouts leaves
    skips: Sequence[Skip] = ()
    without_pods: Sequence[Skip] = ()  # since their last rollout
    unfinished: Mapping[Workload, str] = field(default_factory=dict)  # rollouts of earlier runs
    compared: Sequence[Workload] = ()  # with --only-drifted
    found: Sequence[Workload] = ()  # all owners of Pods, also those that are skipped
    scan: Scan = field(default_factory=Scan)


class Outcome(Word):
    SUCCEEDED = "succeeded"
    COMPLETED_LATE = "completed late"
    LOST_SIDECAR = "lost sidecar"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INCOMPLETE = "incomplete"
    STILL_DRIFTED = "still drifted"
    SKIPPED = "skipped"
    DECLINED = "declined"
    INTERRUPTED = "interrupted"  # no longer waited for
    NOT_STARTED = "not started"


SUCCESSES = (Outcome.SUCCEEDED, Outcome.COMPLETED_LATE)
FAILURES = (
    Outcome.LOST_SIDECAR,
    Outcome.FAILED,
    Outcome.TIMED_OUT,
    Outcome.INCOMPLETE,
    Outcome.STILL_DRIFTED,
)


class PodCounts(NamedTuple):
    """Counts of a workload's Pods, by the named sidecars."""

    matched: int
    updated: int = 0
    ready: int = 0
    updated_and_ready: int = 0
    lost: int = 0  # Pods that have no sidecar anymore, or no longer exist


class Attempt(NamedTuple):
    """What was begun for a workload, to verify it later."""

    is_old: Callable[[Json], bool]  # whether a Pod is still to be replaced or changed
    is_new: Callable[[Json], bool]  # whether it came, or was changed, since
    stamp: str = ""  # the value of the timestamp annotation, if it was restarted


@dataclass(frozen=True)
class Result:
    workload: Workload
    outcome: Outcome
    message: str = ""
    stop_reason: str = ""  # why no other rollout may start, for example a broken injector
    attempt: Attempt | None = None  # of a restart that is to be rechecked
    counts: PodCounts | None = None  # None: its Pods were not read again
    seconds: float = 0.0

    @property
    def is_failure(self) -> bool:
        """Return whether it counts as a failure of the run: it was healthy before."""
        return self.outcome in FAILURES and not self.workload.unhealthy_reason


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
    """Why a rollout ends early: outcome, message and perhaps why no other rollout may start."""


class StoppedWaiting(BaseException):
    """Raised in a worker after the second signal: it must not write anything else."""


# 2. Words, and values inside objects -------------------------------------------------------------


def printable(text: str) -> str:
    """Return the text as one line in which no control character can steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


REDACTED = "<redacted>"
# Some words count anywhere in a name, others only as a whole word: PASSTHROUGH is no secret.
SECRET_WORD = (
    "passw(or)?d|passphrase|pwd|secret|token|credential|api[_-]?key|private"
    "|(access|account|encryption|license|master|shared|signing|ssl|tls)key"
    "|(?<!by)(?<!com)pass(?![a-z])|(?<![a-z])((auth|key)s?|pw)(?![a-z])"
)
# Closing quotes are of what is around it.
BARE_OR_QUOTED = r"(?:\"[^\"]*\"|'[^']*'|[^\s;&]+?(?=[\"']{0,3}(?:[\s;&]|$)))"
SECRET_TEXTS = (  # what looks like a secret, and what is shown
    (r"(://[^\s/:@]*:)\S{1,500}@(?!sha256:)", rf"\1{REDACTED}@"),  # the password of a URL
    (r"(https?://)[^\s/:@]+@", rf"\1{REDACTED}@"),
    (r"((?<![\w.-])[\w.-]{1,99}:)\S{1,500}@(?=(tcp|unix)\()", rf"\1{REDACTED}@"),  # Go's MySQL
    (r"(?i)\b(bearer|basic)\s+[^\s\"']{8,}", rf"\1 {REDACTED}"),
    (r"(?<![\w-])ey[\w-]{8,}\.[\w-]+\.[\w-]*", REDACTED),  # a JSON Web Token
    (r"(?i)(authorization[\"'\\]*\s*[:=]\s*[\"']?(?:\w+ +)?)[^\s\"']+", rf"\1{REDACTED}"),
    (r"(?s)-----BEGIN .*?(-----END [^-]*-----|\Z)", REDACTED),  # PEM
    (rf"(?i)(({SECRET_WORD})[\w.-]{{0,50}}=){BARE_OR_QUOTED}", rf"\1{REDACTED}"),
)
# In settings, not in messages: `password: x`, `--password x` and any Bearer
SECRET_SETTING = (
    rf"(?i)(({SECRET_WORD})[\w.-]{{0,50}}[\\\"']*\s*:\s*"
    rf"|-[\w-]{{0,50}}({SECRET_WORD})[\w-]{{0,50}}\s+"
    rf"|\b(bearer|basic)\s+){BARE_OR_QUOTED}"
)


def is_secret(name: str) -> bool:
    """Return whether a setting, header or flag has a secret, by its name."""
    words = re.sub("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    is_meta = name.startswith("ISTIO_META_")
    return bool(re.search(SECRET_WORD, words, re.IGNORECASE)) and not is_meta


def redact_setting(text: str) -> str:
    """Return a setting or a command without what looks like a secret."""
    return re.sub(SECRET_SETTING, rf"\1{REDACTED}", redact_text(text))


def redact_text(text: str) -> str:
    """Return a text, such as a message of the API server, without what looks like a secret."""
    for pattern, shown in SECRET_TEXTS:
        text = re.sub(pattern, shown, text)
    return text


def message_text(text: str) -> str:
    """Return a message of the cluster without secrets, and without the HTML of a webhook."""
    return redact_text(re.split("(?i)<!doctype|<html", text)[0].strip())


def short_reason(message: str) -> str:
    """Return what a person reads of a rejection: without the Pod's name."""
    return shorten(re.sub(r'^(\d+ )?pods "[^"]*" is forbidden: ', "", message), 300)


def image_version(image: str) -> str:
    """Return the part of an image that tells its version."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag or digest[:19] or "latest"


def join_words(words: Sequence[str], conjunction: str = "and") -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 3, 1)] + "..."


def shorten_around(text: str, position: int) -> str:
    """Return at most 60 characters of a text, with a position in it."""
    start = position - 20 if position > 40 and len(text) > 60 else 0
    return shorten(f"...{text[start:]}" if start else text, 60)


def count_of(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def count_words(counts: Mapping[str, int]) -> str:
    """Return `2 succeeded, 1 failed`, without those that are 0."""
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def left_words(counts: Mapping[str, int]) -> str:
    """Return `17 drifted, 1 of a Job, 1 static` of reasons why Pods are not up to date."""
    words = ((re.sub("^Pod | Pod$", "", left), count) for left, count in counts.items())
    return count_words(dict(sorted(words, key=lambda row: (-row[1], row[0]))))


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
    found = re.search("([1-9][0-9]*[dhms]){1,2}", f"{days}d{hour}h{minute}m{second}s")
    return found[0] if found else "0s"


def dig(obj: Json, path: str) -> Any:
    """Return what stands at a path such as `spec.template` of an object of the API.

    Empty, {}, if it is absent, empty, false or 0.
    """
    for key in path.split("."):
        obj = obj.get(key) or {}
    return obj


def format_time(moment: datetime) -> str:
    """Return a time in UTC, in whole seconds, as Kubernetes writes it."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def only(mapping: Json, keys: Iterable[str]) -> Json:
    return {key: mapping[key] for key in keys if key in mapping}


def without(mapping: Json, *keys: str) -> Json:
    return {key: value for key, value in mapping.items() if key not in keys}


def packed(value: Any) -> bytes:
    """Return a value as compressed JSON: a quarter of the memory, in 0.1 ms per Pod.

    Equal values are equally packed, whatever the order of their keys.
    """
    return zlib.compress(json.dumps(value, sort_keys=True).encode(), 1)


ALIKE: list[bytes] = []  # the first Pod


def packed_alike(obj: Json) -> bytes:
    """Return a Pod or workload as compressed JSON, by what differs from the first one.

    A Pod with a sidecar takes 0.2 KB, and not 1.3 KB: 22 MB less for 21,000 owners of Pods.
    """
    text = json.dumps(obj, sort_keys=True).encode()
    if not ALIKE:
        ALIKE.append(text)
    compressor = zlib.compressobj(1, zdict=ALIKE[0])
    return compressor.compress(text) + compressor.flush()


def unpacked(data: bytes) -> Any:
    return json.loads(zlib.decompressobj(zdict=b"".join(ALIKE)).decompress(data))


@functools.lru_cache(maxsize=64)  # the rules ask for the same one over and over
def stored_object(data: bytes) -> Json:
    return unpacked(data) if data else {}


def is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def matches(name: str, patterns: Sequence[str]) -> bool:
    return name in patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


# 3. Command line ---------------------------------------------------------------------------------


class ArgumentParser(argparse.ArgumentParser):
    HINTS = {  # short options by their first letter: -ojson
        "--dry-run": "a dry run is the default",
        "-o": "use --log-format=json",
        "--output": "use --log-format=json",
        "--yes": "use --confirm=true",
        "-y": "use --confirm=true",
        "--container": "use --sidecar-container-name",
        "-c": "use --sidecar-container-name",
        "--all": "use --all-namespaces, which is the default",
    }

    def error(self, message: str) -> NoReturn:
        """Exit with 2. Of an unknown option, say which one may be meant."""
        found = re.match(r"unrecognized arguments: (-[^\s=]*)", message)
        if found:
            name = found[1] if found[1].startswith("--") else found[1][:2]
            close = difflib.get_close_matches(name, self._option_string_actions, 1, 0.68)
            guess = f"did you mean {close[0]}?" if close else ""
            hint = self.HINTS.get(name, guess)
            message = f"unknown option {name}{f'; {hint}' if hint else ''}"
        self.exit(2, f"error: {printable(message)}\nSee '{PROGRAM} --help' for usage.\n")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows no value at switches, and breaks no line inside a flag."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return "" if action.const is True else super()._format_args(action, default_metavar)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def format_help(self) -> str:
        return re.sub(" +$", "", super().format_help(), flags=re.MULTILINE)


def invalid(text: str, requirement: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f'invalid value "{text}": must be {requirement}')


def matching(pattern: str, requirement: str) -> Callable[[str], str]:
    """Return a validator of texts that match a pattern."""

    def validate(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise invalid(text, requirement)
        return text

    return validate


BOOLEAN = "(?ai)true|yes|1|false|no|0"


def boolean(text: str) -> bool:
    return matching(BOOLEAN, "true or false")(text).lower() in ("true", "yes", "1")


WILDCARDS = "wildcards *, ? and [...] are allowed"
NUMBER = "[1-9][0-9]{0,8}"
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
# An unset shell variable must not select more than was meant.
non_empty = matching(r"(?s).*\S.*", "non-empty")
# An RFC 1123 label, and an RFC 1123 subdomain
one_name = matching(
    r"(?=.*[*?\[]|.{1,63}$)[a-z0-9*?\[\]!-]+",
    f"one name with at most 63 lowercase letters, digits and '-'; {WILDCARDS}",
)
config_pattern = matching(
    r"[a-z0-9.*?\[\]!-]{1,253}",
    f"one name with lowercase letters, digits, '-' and '.'; {WILDCARDS}",
)
# The part before `.rollout.timestamp`; with it, it must be a valid key.
annotation_prefix = matching(
    rf"((?=[^/]{{1,253}}/){LABEL}(\.{LABEL})*/)?[A-Za-z0-9][-A-Za-z0-9_.]{{0,44}}",
    "a prefix such as myCompany or example.com/team, with at most 45 characters after the '/'",
)


def name_pattern(text: str) -> str:
    if "," in text:
        raise invalid(text, "one name; repeat the option for each name")
    return one_name(text)


def amount(text: str) -> Amount:
    form = f"({NUMBER}|(100|[1-9][0-9]?)%)"
    matching(form, "a positive integer, or a percentage such as 25%")(text)
    return Amount(int(text.rstrip("%")), text.endswith("%"))


def annotation_filter(text: str) -> AnnotationFilter:
    """Return the key and the value's pattern of KEY=VALUE; KEY alone matches any value."""
    form = r"(?s)([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?(=.*)?"
    matching(form, "KEY or KEY=VALUE, such as example.com/restart=never")(text)
    key, equals, value = text.partition("=")
    return key, value if equals else "*"


def file_path(text: str) -> str:
    return os.path.expanduser(non_empty(text))


def command(text: str) -> list[str]:
    """Return the words of a command, split as a shell does, but none of its other features."""
    try:
        program, *words = shlex.split(non_empty(text))
    except ValueError:
        raise invalid(text, "a command, with matching quotes") from None
    if any(re.fullmatch("[&|;<>]+|.*;", word) for word in words):
        raise invalid(text, "a command without shell operators; use sh -c '...'")
    program = os.path.expanduser(program)
    if not shutil.which(program):
        raise invalid(program, "a command that exists and is executable")
    return [program, *words]


def plan_file(text: str) -> dict[ObjectRef, Planned]:
    """Return the workloads of the `plan` records of a file, or of standard input, `-`."""
    found = {}
    number = 0
    try:
        is_stdin = text == "-"
        path = 0 if is_stdin else file_path(text)
        with open(path, encoding="utf-8", errors="replace", closefd=not is_stdin) as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007
                record = json.loads(line)
                if record["record"] == "plan" and record["selected"]:
                    names = (*ObjectRef._fields, "uid", "revision", "started_before")
                    values = [record[name] for name in names]
                    if not all(isinstance(value, str) for value in values):
                        raise TypeError
                    *ref, uid, revision, cutoff = values
                    utc = parse_time(cutoff).astimezone(timezone.utc)
                    found[ObjectRef(*ref)] = Planned(uid, utc, revision)
    except OSError as error:
        raise invalid(text, f"a file that can be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        cause = f"has no field {error}" if isinstance(error, KeyError) else "is no such record"
        wanted = f"the output of {VERSION} or later with --log-format=json, a record per line"
        raise invalid(text, f"{wanted}; line {number} {cause}") from None
    return found


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
        hint = namespace_hint(text) if re.fullmatch("[a-z0-9-]+/[a-z0-9.-]+", text) else ""
        raise invalid(text, f"TYPE/NAME, such as deployment/web or sts/*{hint}")
    kind = found[1].lower()
    return type_and_name(SHORT_NAMES.get(kind, kind), found[2] or "", found[3])


def namespace_hint(text: str) -> str:
    """Return what is meant by `shop/web`, as the log prints workloads."""
    namespace, _, name = text.partition("/")
    command = f"deployment/{name} --include-namespace={namespace}"
    return f"; if {namespace} is a namespace, use {command}"


def type_and_name(kind: str, group: str, name: str) -> str:
    """Return `deployment/web` or `rollout.argoproj.io/web`, for a kind also in the plural."""
    kind = re.sub("(?<!s)s$", "", kind.lower())
    return f"{kind}/{name}" if group in ("", "apps") else f"{kind}.{group}/{name}"


def point_in_time(text: str) -> datetime:
    """Return a time in UTC. dateutil takes what is missing from a default: so try two."""
    from dateutil import parser

    utc = timezone.utc
    defaults = (datetime(2001, 2, 3, tzinfo=utc), datetime(2002, 3, 14, tzinfo=utc))
    with suppress(ValueError, OverflowError, TypeError, Warning), warnings.catch_warnings():
        warnings.simplefilter("error")  # it would ignore an unknown zone such as CEST
        first, second = (parser.parse(text, default=default) for default in defaults)
        # 05/01/2026 is in May or in January
        is_clear = re.search(r"(^|\D)\d{4}[-/]?\d\d", text) or first == parser.parse(
            text, dayfirst=True, default=defaults[0]
        )
        if first.date() == second.date() and is_clear and first.year < 9999:
            return first.astimezone(utc)
    raise invalid(text, "a date and time such as 2026-05-01T13:00:00Z")


SECONDS = {"ms": 1e-3, "s": 1, "m": 60, "h": 3600}


def duration(text: str) -> float:
    """Return the seconds of a duration in kubectl's (Go's) syntax; a bare number is seconds."""
    number = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
    part = rf"({number})({'|'.join(SECONDS)})"
    matching(rf"{number}|(?:{part})+", "a duration such as 90s, 10m or 1h30m")(text)
    parts = re.findall(part, text) or [(text, "s")]
    seconds = sum(float(count) * SECONDS[unit] for count, unit in parts)
    if not 0.001 <= seconds <= 8760 * 3600:  # kubectl takes 0 for "wait forever"
        raise invalid(text, "a duration from 1ms to 8760h")
    return seconds


class Option(NamedTuple):
    """A row of --help."""

    usage: str  # `--flag -f --alias VALUE`; aliases are hidden, except for -f
    help: str  # argparse joins its lines
    type: Callable[[str], Any] = boolean  # of a switch, which has no VALUE
    default: Any = None  # a text is parsed like one that is given; of a switch, it is false
    repeatable: bool = False
    required: bool = False
    requires: str = ""  # an option without which it has no meaning; then, the default is false


DEFAULT_REASON = "Update sidecars"
NOW = datetime.max.replace(tzinfo=timezone.utc)  # the cutoff until the API server tells the time
OPTIONS = {
    "Common options": (
        Option(
            "workloads TYPE/NAME",
            """Only these workloads, such as deployment/web or sts/*, in all selected namespaces;
            their kinds need no --include-... option""",
            str,
            repeatable=True,
        ),
        Option(
            "--sidecar-container-name NAME",
            "Name of the sidecar container: regular, native or init (required)",
            name_pattern,
            repeatable=True,
            required=True,
        ),
        Option(
            "--only-drifted",
            "Only workloads whose Pods would get a different sidecar if they were created now",
        ),
        Option("--confirm", "Apply the changes (default: false, a dry run)"),
        Option(
            "--include-namespace -n --namespace NAME",
            "Only these namespaces",
            name_pattern,
            repeatable=True,
        ),
        Option("--include-statefulset --include-statefulsets", "Include StatefulSets"),
        Option("--include-daemonset --include-daemonsets", "Include DaemonSets"),
        Option(
            "--parallel-rollouts N|N%",
            "Workloads to roll out at the same time (default: 1)",
            amount,
            "1",
        ),
        Option(
            "--max-rollouts N|N%",
            """Roll out only the first N or N%% of the workloads in the plan, for example for a
            canary""",
            amount,
            "100%",
        ),
        Option(
            "--max-failures N|N%",
            """Start no new rollouts after N failures, or N%% of the plan (default: after 5 in a
            row), of workloads that were healthy before""",
            amount,
        ),
        Option(
            "--timeout DURATION",
            "Time to wait for each rollout or evicted Pod, such as 90s or 1h30m (default: 300s)",
            duration,
            "300s",
        ),
    ),
    "Selection": (
        Option(
            "--all-namespaces -A", "All namespaces (the default); overrides --include-namespace"
        ),
        Option(
            "--exclude-namespace NAME",
            "Skip these namespaces (takes precedence over --include-namespace)",
            name_pattern,
            repeatable=True,
        ),
        Option(
            "--selector -l SELECTOR",
            "Only Pods that match this label selector (supports =, ==, !=, in, notin)",
            non_empty,
        ),
        Option(
            "--include-annotation KEY[=VALUE]",
            "Only workloads with this annotation, on the workload or its Pod template",
            annotation_filter,
            repeatable=True,
        ),
        Option(
            "--exclude-annotation KEY[=VALUE]",
            "Skip workloads and namespaces with this annotation (takes precedence)",
            annotation_filter,
            repeatable=True,
        ),
        Option(
            "--only-started-before TIME",
            """Only Pods created before this time, for example 2026-05-01T13:00:00Z; UTC unless it
            has a time zone (default: now)""",
            point_in_time,
            NOW,
        ),
        Option(
            "--plan FILE",
            """Only the workloads of a plan, in its order: the output of a dry run with
            --log-format=json, from which lines may have been deleted""",
            plan_file,
        ),
        Option("--exclude-deployment --exclude-deployments", "Skip Deployments"),
        Option("--skip-unhealthy", "Skip workloads that are unhealthy before the rollout"),
        Option("--skip-downtime", "Skip workloads whose rollout is downtime, as the plan says"),
    ),
    "Drift detection": (
        Option(
            "--include-config",
            "Include changes to the sidecar's ConfigMaps and Secrets since Pods were created",
            requires="--only-drifted",
        ),
        Option(
            "--ignore-config NAME",
            "Ignore changes to this ConfigMap or Secret, for example if the sidecar reloads it",
            config_pattern,
            repeatable=True,
            requires="--include-config",
        ),
        Option(
            "--include-missing",
            "Include workloads whose Pods lack the sidecar, but would get it if created now",
            requires="--only-drifted",
        ),
        Option(
            "--allow-removal",
            "Also restart workloads whose sidecar would be removed",
            requires="--only-drifted",
        ),
        Option(
            "--fail-on-drift",
            "Exit with 1 if selected Pods are not up to date; with --confirm, after the run",
            requires="--only-drifted",
        ),
    ),
    "Rollout": (
        Option("--confirm-each", "Apply the changes, but ask before each workload"),
        Option(
            "--evict", "Also evict Pods that a restart does not replace, one at a time per workload"
        ),
        Option(
            "--max-unavailable N|N%",
            """Evict a ready Pod only while fewer than N, or N%% of the desired Pods of its owner,
            are unavailable (default: 1)""",
            amount,
            requires="--evict",
        ),
        Option(
            "--in-place",
            "If only images differ, change them in running Pods, one at a time per workload",
            requires="--only-drifted",
        ),
        Option(
            "--max-duration DURATION",
            "Start no new rollouts after this time, such as 2h (default: no limit)",
            duration,
        ),
        Option(
            "--gate COMMAND",
            """Start no new rollouts while this command fails (run without a shell; a result is
            valid for 10 seconds)""",
            command,
            [],
        ),
        Option(
            "--soak DURATION",
            """Time to watch new Pods after each rollout, such as 2m; the rollout fails if a
            container restarts or a Pod does not stay ready""",
            duration,
        ),
    ),
    "Other options": (
        Option(
            "--kubeconfig PATH",
            """Path to the kubeconfig file (default: $KUBECONFIG or ~/.kube/config, or the Pod's
            service account in a cluster)""",
            file_path,
        ),
        Option(
            "--context NAME", "Context of the kubeconfig (default: the current context)", non_empty
        ),
        Option(
            "--log-level LEVEL",
            "debug, info, warning or error (default: info)",
            matching("debug|info|warning|error", "debug, info, warning or error"),
            "info",
        ),
        Option(
            "--log-format FORMAT",
            "Format of the log and the results: text or json (default: text)",
            matching("text|json", "text or json"),
            "text",
        ),
        Option(
            "--annotation-prefix PREFIX",
            """Prefix of the annotations to set on Pod templates, such as PREFIX.rollout.timestamp
            (default: sidecarRollout)""",
            annotation_prefix,
            "sidecarRollout",
        ),
        Option(
            "--rollout-reason TEXT",
            "Value of PREFIX.rollout.reason (default: Update sidecars NAMES, and what changes)",
            non_empty,
            DEFAULT_REASON,
        ),
        Option(
            "--record-events",
            "Record an Event on each workload that was restarted, evicted or changed",
        ),
        Option(
            "--kubectl PATH", "Path to kubectl (default: the one on the PATH)", file_path, "kubectl"
        ),
    ),
}
ALL_OPTIONS = tuple(itertools.chain(*OPTIONS.values()))


def build_parser() -> ArgumentParser:
    text = (__doc__ or "").replace(SCRIPT, PROGRAM).partition("Contents")[0]
    description, _, epilog = text.partition("Exit codes:")
    parser = ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s [TYPE/NAME...]\n       --sidecar-container-name NAME [options]",
        description=description,
        epilog="Exit codes:" + epilog,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for option in options:
            add_option(group, option)
    parser.set_defaults(confirm=None)  # --confirm=false contradicts --confirm-each
    version = f"{PROGRAM} {VERSION}"  # in the last group
    group.add_argument("--version", action="version", version=version, help="Show the version")
    group.add_argument("--help", "-h", action="help", help="Show this help")
    return parser


def add_option(group: argparse._ArgumentGroup, option: Option) -> None:
    names = option.usage.split()
    help = f"* {option.help}" if option.repeatable else option.help
    help += f" (requires {option.requires})" if option.requires else ""
    settings: Json = {"type": option.type, "default": option.default}
    if option.type is boolean:  # alone it is true
        settings |= {"nargs": "?", "const": True, "default": False}
    else:
        settings["metavar"] = names.pop()
    if option.repeatable:
        is_flag = names[0].startswith("-")
        settings |= {"action": "append", "default": []} if is_flag else {"nargs": "*"}
    action = group.add_argument(*names, help=help, **settings)
    # Of the others, --help and errors say nothing.
    action.option_strings = action.option_strings[: 1 if option.type is boolean else 2]


def parse_args(argv: Sequence[str]) -> Options:
    """Return the options. Exit with 2 if one is wrong."""
    parser = build_parser()
    switches = " ".join(o.usage for o in ALL_OPTIONS if o.type is boolean).split()
    words = [  # a switch does not take the workload after it as its value
        f"{word}=true" if word in switches and "/" in following else word
        for word, following in itertools.pairwise([*argv, ""])
    ]
    given = parser.parse_intermixed_args(words)
    if given.all_namespaces:
        given.include_namespace = []
    try:
        given.workloads = list(map(workload_pattern, given.workloads))
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    given.kinds = selected_kinds(given)
    contradiction = find_contradiction(given)
    if contradiction:
        parser.error(contradiction)
    given.sidecars = given.sidecar_container_name
    given.cutoff = given.only_started_before
    if given.plan and given.cutoff is not NOW:
        given.plan = {ref: p._replace(cutoff=given.cutoff) for ref, p in given.plan.items()}
    given.confirm = bool(given.confirm or given.confirm_each)
    return Options(**only(vars(given), Options.__dataclass_fields__))


def selected_kinds(given: argparse.Namespace) -> frozenset[str]:
    types = types_of(given.workloads)
    if types:
        return frozenset(kind for kind in WORKLOADS if kind.lower() in types)
    selected = (not given.exclude_deployment, given.include_statefulset, given.include_daemonset)
    return frozenset(itertools.compress(WORKLOADS, selected))


def types_of(workloads: Names) -> set[str]:
    return {pattern.partition("/")[0] for pattern in workloads}


def invalid_type(types: set[str], given: argparse.Namespace) -> str:
    """Return what is wrong with the types of the workloads, or an empty text."""
    known = [kind.lower() for kind in WORKLOADS]
    evicted = sorted(types.difference(known))
    kinds = join_words(known, "or")
    of_jobs = types & {"pod", "po", "job", "cronjob", "cj"}
    if of_jobs:
        hint = "Pods of Jobs run to completion and are not supported"
        return f'invalid type "{min(of_jobs)}": must be {kinds}; {hint}'
    if evicted and not given.evict:
        text = f'invalid type "{evicted[0]}": must be {kinds}; other owners of Pods require --evict'
        if evicted[0] in map(str.lower, KINDS) or "." in evicted[0]:
            return text
        given_text = next(text for text in given.workloads if text.startswith(f"{evicted[0]}/"))
        return text + namespace_hint(given_text)
    return ""


def find_contradiction(given: argparse.Namespace) -> str:
    """Return what is wrong with the options together, or an empty text."""
    types = types_of(given.workloads)
    wrong = invalid_type(types, given)
    if wrong:
        return wrong
    if given.exclude_deployment and "deployment" in types:
        return "--exclude-deployment cannot be used with deployment/NAME"
    if not given.kinds and not given.evict:
        needed = "--include-statefulset, --include-daemonset or --evict"
        return f"no workloads selected: --exclude-deployment requires {needed}"
    excluded = given.exclude_namespace
    if given.include_namespace and all(
        name in excluded or (matches(name, excluded) and not is_pattern(name))
        for name in given.include_namespace
    ):
        return "no namespaces selected: all are excluded by --exclude-namespace"
    if given.confirm_each and given.confirm is False:
        return "--confirm-each cannot be used with --confirm=false"
    if given.confirm_each and not sys.stdin.isatty():
        return "--confirm-each requires a terminal on standard input"
    if given.plan and any(p.revision for p in given.plan.values()) and not given.only_drifted:
        return "--plan requires --only-drifted: its plan was made with it"
    values = {f"--{name.replace('_', '-')}": value for name, value in vars(given).items()}
    for option in ALL_OPTIONS:
        flag, needed = option.usage.split()[0], option.requires
        if option.required and not values[flag]:  # argparse tells it before unknown options
            return f"the following arguments are required: {flag}"
        if needed and values[flag] and not values[needed]:
            return f"{flag} requires {needed}"
    return ""


def program_words() -> list[str]:
    """Return the program, and what runs it, as a person would type them again."""
    if IS_PLUGIN:
        return ["kubectl", "sidecar-rollout"]
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]
    if "UV_RUN_RECURSION_DEPTH" in os.environ:  # set by uv run; its Python is in its cache
        return ["uv", "run", *words[1:]]
    return words


def given_options(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each option after its flag in --help, which of a TYPE/NAME is empty."""
    by_flag = {flag: option for option in ALL_OPTIONS for flag in option.usage.split()}
    words = deque(argv)
    while words:
        found = [words.popleft()]
        flag = found[0].partition("=")[0] if found[0].startswith("--") else found[0][:2]
        option = by_flag.get(flag, ALL_OPTIONS[0])
        has_value = words and (option.type is not boolean or re.fullmatch(BOOLEAN, words[0]))
        if flag in by_flag and found == [flag] and has_value:
            found.append(words.popleft())
        yield option.usage.split()[0] if flag in by_flag else "", found


def printed_command(
    argv: Sequence[str], options: Options, context: str, lost: Sequence[ObjectRef] = ()
) -> str:
    """Return the whole command that applies what this one has shown, or resumes it.

    With `lost`, workloads of one namespace that have lost their sidecar, it replaces their Pods.
    """
    dropped = ["--confirm", "--confirm-each"]
    added = ["--confirm-each" if options.confirm_each else "--confirm=true"]
    settings = {"--only-started-before": format_time(options.cutoff), "--context": context}
    if options.plan is not None:  # whose cutoff counts
        settings.pop("--only-started-before")
    if lost:
        dropped += ["", "--include-namespace", "--all-namespaces", "--max-rollouts", "--in-place"]
        dropped += ["--only-started-before", "--skip-unhealthy", "--only-drifted"]
        dropped += ["--include-missing", "--plan"]  # its revision is that of a broken injector
        added += ["--only-drifted", "--include-missing", *dict.fromkeys(r.argument for r in lost)]
        if any(ref.kind == "StatefulSet" for ref in lost):  # a restart waits for its broken Pod
            dropped.append("--evict")
            added.append("--evict")
        settings = {"--include-namespace": lost[0].namespace, "--context": context}
    kept: list[str] = []
    for flag, words in given_options(argv):
        if flag not in dropped and words != ["--"]:  # options are appended, which are none after it
            words = ["--plan=FILE"] if flag == "--plan" and words[-1][-1:] == "-" else words
            kept += map(redact_setting, words) if flag == "--gate" else words
            settings.pop(flag, None)
    added += [f"{flag}={value}" for flag, value in settings.items() if value]
    return shlex.join([*program_words(), *kept, *added])


# 4. Logging --------------------------------------------------------------------------------------


class TextFormatter(logging.Formatter):
    """`12:30:01Z WARNING Deployment shop/web: rollout timed out in 300.1s`."""

    COLORS = {
        "WARNING": "\033[33m",
        "ERROR": "\033[31m",
        "CRITICAL": "\033[31m",
    }

    def __init__(self, colored: bool) -> None:
        super().__init__()
        self.colored = colored

    def format(self, record: logging.LogRecord) -> str:
        workload = vars(record).get("workload")
        text = f"{workload}: {record.getMessage()}" if workload else record.getMessage()
        level = f"{record.levelname:<7}"
        if self.colored and record.levelname in self.COLORS:
            level = f"{self.COLORS[record.levelname]}{level}\033[0m"
        clock = time.strftime("%H:%M:%SZ", time.gmtime(record.created))
        traceback = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{clock} {level} {printable(text)}{traceback}"


class ProgressLine(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 has none
    """Standard error: log lines and, on a terminal, one line below them that is redrawn."""

    def __init__(self) -> None:
        super().__init__()
        self.on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.erase()
        super().emit(record)
        self.draw()

    def show(self, text: str) -> None:
        """Redraw the line with a text; an empty one removes it."""
        if self.on_terminal and printable(text) != self.text:
            self.erase()
            self.text = printable(text)
            self.draw()

    def erase(self) -> None:
        if self.text:
            self.write("\r\033[K")

    def draw(self) -> None:
        if self.on_terminal and self.text:
            with suppress(OSError):  # the terminal was closed
                width = os.get_terminal_size(2).columns or 80
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
            "%(asctime)s %(levelname)s %(message)s",
            "%Y-%m-%dT%H:%M:%SZ",
            rename_fields={"asctime": "time", "levelname": "level"},
        )
        formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.raiseExceptions = False  # a closed standard error is no reason to stop
    logging.captureWarnings(True)  # discard warnings of the libraries
    logging.basicConfig(level=logging.ERROR, handlers=[handler], force=True)
    # The client logs a credential plugin's output to the root logger; it may contain a token.
    logging.root.addFilter(lambda record: False)
    logging.getLogger("urllib3").setLevel("ERROR")
    log.setLevel(level.upper())
    return handler


# 5. Cluster: every request to the API server -----------------------------------------------------

JSON_TYPE = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
CACHED = {"resourceVersion": "0"}  # of a read that may be old
PAGE = 500
RETRY_ON = (0, 429, 500, 502, 503, 504)
RETRY_WRITE_ON = (0, 429, 503)  # a webhook that failed may take its whole timeout each time
PATIENCE = 60.0  # seconds for a request, over all tries: a webhook may take 30
UNAVAILABLE = (0, 401, 429, 502, 503)  # after all retries, and whatever was requested
RETRIES = 4  # 7 seconds in all
RETRIES_DURING_ROLLOUTS = 7  # 31 seconds: a restart of the API server takes 10 to 20
REQUESTS_AT_A_TIME = 16  # dry runs: 0.84 of the wall time that 8 take; more do not help


def in_parallel(
    items: Iterable[Item], ask: Callable[[Item], Answer]
) -> Iterator[tuple[Item, Answer]]:
    """Yield each item with its answer as the answers arrive. Exceptions from `ask` are raised."""
    with ThreadPool(REQUESTS_AT_A_TIME) as pool:
        yield from pool.imap_unordered(lambda item: (item, ask(item)), items)


@dataclass(repr=False)
class Connection:
    """How to reach a cluster, for the client's connections and for kubectl."""

    configuration: Any  # the client's
    context: str = ""  # empty: the service account of the Pod
    kubectl_flags: tuple[str, ...] = ()
    environment: str = ""  # what a shell needs before a command: the window may be another one
    impersonation: Sequence[tuple[str, str]] = ()  # headers; a name may be repeated
    user: str = ""  # as the API server knows it; empty if it does not tell
    reload: Callable[[], object] = bool  # reads the credentials again; by default nothing
    # The Authorization header, kept for half a minute
    token: str = ""
    valid_until: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __str__(self) -> str:
        name = f"Context {self.context}" if self.context else "In-cluster service account"
        return f"{name} ({self.server}){f' as {self.user}' if self.user else ''}"

    @property
    def server(self) -> str:
        """Return the URL of the API server, without a password."""
        return redact_text(self.configuration.host)

    @property
    def via(self) -> str:
        """Return the server, and the proxy if there is one."""
        proxy = self.configuration.proxy
        return f"{self.server} through the proxy {redact_text(proxy)}" if proxy else self.server

    def kubectl_command(self, ref: ObjectRef, *words: str) -> str:
        """Return a command about an object for a person to copy."""
        target = [ref.argument, "--namespace", ref.namespace]
        return self.environment + shlex.join(["kubectl", *words, *target, *self.kubectl_flags])

    def authorization(self, deadline: float, rejected: str | None = None) -> str:
        """Return the header; read again if it was rejected, unless another thread has done so.

        ApiError at the deadline: a credential plugin may hang. The client's own hook has no lock,
        runs a credential plugin on every request if its tokens live for less than 5 minutes, and
        never renews a token without an expiration time.
        """
        with self.lock:
            is_rejected = rejected == self.token
            if is_rejected or time.monotonic() >= self.valid_until:
                with ThreadPool(1) as pool:
                    reading = pool.apply_async(self.read_token, [is_rejected])
                    try:
                        self.token = reading.get(max(deadline - time.monotonic(), 0.1))
                    except TimeoutError:
                        text = "cannot renew the credentials: the credential plugin does not answer"
                        raise ApiError(0, text) from None
                self.valid_until = time.monotonic() + 30
            return self.token

    def read_token(self, renew: bool) -> str:
        read = self.configuration.get_api_key_with_prefix
        try:
            if renew:
                self.reload()
            token = read("BearerToken", alias="authorization")
        except Exception as error:  # of a plugin or file; its text may contain the token
            message = f"cannot renew the credentials: {type(error).__name__}"
            raise ApiError(0, message) from None
        token = (token or "").strip()  # a token file ends with a line break
        if not re.fullmatch("[ -~]*", token):
            raise ApiError(401, "the token must be printable ASCII; check the credentials")
        return token


class Cluster:
    """The API server: raw JSON over the client's own connections."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.retries = 0
        self.patience = 10.0  # seconds; more once it has responded
        # How far the API server's clock is at least ahead of time.monotonic; 0: not known
        self.clock = 0.0
        self.cached_controller_of = functools.cache(self.controller_of)  # of ReplicaSets
        self.open_connections(REQUESTS_AT_A_TIME)

    def open_connections(self, count: int) -> None:
        """Keep up to so many connections; urllib3 warns and reconnects if there are more."""
        from kubernetes.client import ApiClient

        configuration = self.connection.configuration
        configuration.connection_pool_maxsize = count
        # The client's typed API classes take 945 ms to load, and 15 times as long to read.
        self.pool = ApiClient(configuration).rest_client.pool_manager

    def now(self) -> datetime:
        """Return the time of the API server, which dates Pods; at most a second too early.

        By the Date of its responses, which has whole seconds, or else by the local clock.
        """
        seconds = time.monotonic() + self.clock if self.clock else time.time()
        return datetime.fromtimestamp(seconds, timezone.utc)

    def wait_until(self, moment: datetime) -> None:
        """Wait until that is certainly the time at the API server; at most two seconds."""
        deadline = time.monotonic() + 2
        while self.now() < moment and time.monotonic() < deadline:
            time.sleep(0.05)
            self.request("GET", "/version")

    def check_connection(self) -> None:
        """Check that the API server responds within 10 s, else ApiError."""
        self.find("/version", range(402, 600))  # to be refused is a response, too
        self.retries = RETRIES
        self.patience = PATIENCE

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        query: Json | None = None,
        accept: str = JSON_TYPE,
        retries: int | None = None,
        retry_on: Collection[int] = RETRY_WRITE_ON,
    ) -> bytes:
        """Return the body of a successful response. ApiError for any other, after retries.

        Everything sent is safe to repeat. The client's own retries have no deadline.
        """
        import urllib3

        if not path:  # see path_of
            raise ApiError(404, "no object can have this name")
        deadline = time.monotonic() + self.patience
        retry_on = RETRY_ON if method == "GET" else retry_on
        rejected = None
        for attempt in itertools.count():
            token = self.connection.authorization(deadline, rejected)
            try:
                response = self.pool.request_encode_url(
                    method,
                    self.connection.configuration.host + urllib.parse.quote(path),
                    query,
                    self.headers(method, token, accept),
                    body=json.dumps(body) if body else None,
                    timeout=urllib3.Timeout(max(deadline - time.monotonic(), 0.1), connect=10),
                    retries=False,
                )
                self.set_clock(response)
                if 200 <= response.status < 300:
                    return response.data
                error = api_error(response)
            except urllib3.exceptions.HTTPError as cause:
                text = f"cannot connect to the API server at {self.connection.via}: "
                error = ApiError(0, text + innermost_cause(cause))
            if error.status == 401 and rejected is None:
                rejected = token
                continue
            pause = max(min(0.5 * 2**attempt, 8) * random.uniform(1, 1.5), error.retry_after)
            is_last = attempt >= (self.retries if retries is None else retries)
            if is_last or error.status not in retry_on or time.monotonic() + pause >= deadline:
                break
            log.debug("%s %s: retrying: %s", method, path, error)
            time.sleep(pause)
        raise error

    def headers(self, method: str, token: str, accept: str) -> Any:
        """Return the headers of a request; one of impersonation may be repeated."""
        from urllib3 import HTTPHeaderDict

        headers = {
            "Accept": accept,
            "Accept-Encoding": "gzip",  # from 128 KB; lists shrink to a tenth
            "User-Agent": f"{FIELD_MANAGER}/{VERSION}",
            "Content-Type": STRATEGIC_MERGE if method == "PATCH" else JSON_TYPE,
        }
        if token:
            headers["Authorization"] = token
        return HTTPHeaderDict(self.connection.impersonation, **headers)

    def set_clock(self, response: Any) -> None:
        """Set the API server's clock by the Date of a response, if that says more."""
        with suppress(TypeError, ValueError):  # absent, or not a date
            date = email.utils.parsedate_to_datetime(response.headers.get("Date"))
            if response.status < 500:  # else it may be a proxy's
                self.clock = max(self.clock, date.timestamp() - time.monotonic())

    def find(self, path: str, absent: Collection[int] = (404,), **parts: Any) -> Json:
        """Return the object; empty if the response has one of the statuses in `absent`."""
        try:
            return decode_object(self.request("GET", path, **parts))
        except ApiError as error:
            if error.status not in absent:
                raise
            return {}

    def items(
        self,
        group: str,
        resource: str,
        namespaces: Names,
        selector: str | None = None,
        cached: Json | None = None,
    ) -> Iterator[Json]:
        """Yield the items of a list, read in pages; no namespaces means all.

        `cached` is CACHED for what the API server has in its cache, which may be old.
        """
        paths = [f"{group}/namespaces/{name}/{resource}" for name in namespaces]
        for path in paths or [f"{group}/{resource}"]:
            query: Json = {"limit": PAGE} | (cached or {})
            if selector:
                query["labelSelector"] = selector
            while True:
                body = self.request("GET", path, query=query).decode("utf-8", "replace")
                metadata = yield from items_of(body)
                del body  # a page of Pods takes 4 MB
                if not metadata.get("continue"):
                    break
                query["continue"] = metadata["continue"]

    def pods_of(self, owner: ObjectRef, obj: Json, cached: Json | None = None) -> list[Json]:
        """Return the Pods of an owner, also terminating ones, but not those that have ended.

        Its labels may select Pods of others, too.
        """
        found = []
        for pod in self.items(CORE, "pods", [owner.namespace], selector_of(owner, obj), cached):
            controller = controller_of(pod)
            if controller and controller.kind == "ReplicaSet" and owner.kind == "Deployment":
                controller = self.cached_controller_of(controller)
            if controller == owner and not has_ended(pod):
                found.append(pod)
        return found

    def serving_pods(self, namespaces: Names) -> set[tuple[str, str]] | None:
        """Return namespace and name of the Pods that are ready or serving endpoints.

        None if that is forbidden.
        """
        pods = set()
        try:
            for endpoint_slice in self.items(DISCOVERY, "endpointslices", namespaces):
                for endpoint in dig(endpoint_slice, "endpoints"):
                    conditions = dig(endpoint, "conditions")  # absent means ready
                    if conditions.get("ready") is not False or conditions.get("serving"):
                        name = dig(endpoint, "targetRef").get("name")  # none: not a Pod
                        pods.add((endpoint_slice["metadata"]["namespace"], name))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            log.warning("cannot list EndpointSlices: every healthy workload counts as serving")
            return None
        return pods

    def controller_of(self, ref: ObjectRef) -> ObjectRef | None:
        """Return the controller of an object, from its metadata alone; None if it has none."""
        return controller_of(self.find(path_of(ref), (403, 404), accept=METADATA_ONLY))

    def workload(self, ref: ObjectRef, **parts: Any) -> Json:
        """Return the workload as it is now; empty if it does not exist.

        Permission to read other owners of Pods than the selected kinds is not required.
        """
        absent = (404,) if is_workload(ref) else (403, 404)
        return self.find(path_of(ref), absent, **parts)

    def owner(self, owner: ObjectRef, pod: Json) -> Json:
        """Return the controller of a Pod as it is now; empty if it does not exist.

        Of a custom resource, return what the Pod tells: the annotations of its template.
        """
        if has_template(owner):
            return self.workload(owner)
        references = dig(pod, "metadata.ownerReferences")
        uid = next(reference["uid"] for reference in references if reference.get("controller"))
        metadata = {"uid": uid, "namespace": owner.namespace}
        return {"metadata": metadata, "spec": {"template": {"metadata": pod["metadata"]}}}

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
        path = path_of(ObjectRef("Pod", metadata["namespace"], metadata["name"]))
        self.request("POST", f"{path}/eviction", body=body, retry_on=(0, 503))

    def change_images(self, pod: Json, images: Mapping[str, str]) -> None:
        """Change images of a Pod's containers, by their names, if it still has its UID.

        The containers are in the Pod's own order; another one is a 422. ApiError 422 or 403 if a
        policy refuses the change; see first_line.
        """
        metadata = pod["metadata"]
        spec = {
            key: [
                {"name": container["name"], "image": images[container["name"]]}
                for container in dig(pod["spec"], key)
                if container["name"] in images
            ]
            for key in ("containers", "initContainers")
        }
        body = {
            "metadata": {"uid": metadata["uid"]},
            "spec": {key: containers for key, containers in spec.items() if containers},
        }
        ref = ObjectRef("Pod", metadata["namespace"], metadata["name"])
        self.request("PATCH", path_of(ref), query={"fieldManager": FIELD_MANAGER}, body=body)

    def pod_named(self, namespace: str, name: str) -> Json:
        """Return a Pod; empty if there is none.

        A list of one: so the permission to get Pods is not needed.
        """
        query = {"fieldSelector": f"metadata.name={name}"}
        found = self.find(f"{CORE}/namespaces/{namespace}/pods", query=query)
        return next(iter(dig(found, "items")), {})

    def pod(self, pod: Json) -> Json:
        """Return a Pod as it is now; empty if it is gone, terminating, or another one by now."""
        found = self.pod_named(pod["metadata"]["namespace"], name_of(pod))
        is_same = found and uid_of(found) == uid_of(pod) and not is_terminating(found)
        return found if is_same else {}

    def latest_event(self, obj: Json, reason: str = "") -> str:
        """Return the message of the latest event of an object; empty if it has none.

        No status says why a StatefulSet or DaemonSet cannot create Pods (reason FailedCreate), or
        what the kubelet did last to a Pod.
        """
        metadata = dig(obj, "metadata")
        if not metadata:  # it is gone
            return ""
        selector = f"involvedObject.uid={metadata['uid']}"
        query = {"fieldSelector": f"{selector},reason={reason}" if reason else selector}
        path = f"{CORE}/namespaces/{metadata.get('namespace')}/events"
        try:
            events = dig(self.find(path, query=query, retries=0), "items")
        except ApiError as error:
            return f"cannot read its events: {error}"
        latest: Json = max(events, key=time_of_event, default={})
        return message_text(latest.get("message", ""))

    def pod_today(self, workload: Workload, obj: Json, sample: Json) -> Json:
        """Return the Pod that would be created for a workload today. ApiError if it is rejected.

        In this dry run, admission runs and nothing is stored. `sample` is a Pod of the workload.
        """
        path = f"{CORE}/namespaces/{workload.ref.namespace}/pods"
        query = {"fieldManager": FIELD_MANAGER, "dryRun": "All"}
        body = pod_to_create(workload.ref, obj, sample)
        return decode_object(self.request("POST", path, query=query, body=body))

    def last_change(self, config: ObjectRef) -> datetime | ApiError:
        """Return when a ConfigMap or Secret last changed, from its metadata alone."""
        try:
            body = self.request("GET", path_of(config), accept=METADATA_ONLY)
            return changed_at(decode_object(body))
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

    def record_event(self, workload: Workload, message: str, is_failure: bool) -> None:
        """Record an Event on a workload, for `kubectl describe`; without permission, nothing."""
        ref = workload.ref
        subject = {"kind": ref.kind, "namespace": ref.namespace, "name": ref.name}
        now = format_time(self.now())
        body = {
            "metadata": {"generateName": f"{ref.name}.", "namespace": ref.namespace},
            "involvedObject": subject | {"uid": dig(workload.obj, "metadata.uid") or ""},
            "type": "Warning" if is_failure else "Normal",
            "reason": "SidecarRolloutFailed" if is_failure else "SidecarRollout",
            "message": shorten(message, 1000),
            "source": {"component": FIELD_MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            path = f"{CORE}/namespaces/{ref.namespace}/events"
            self.request("POST", path, body=body, retries=0)
        except ApiError as error:
            log.debug("cannot record an Event: %s", error, extra={"workload": str(ref)})

    def user(self) -> str:
        """Return this user's name; empty if the API server does not tell (before 1.28)."""
        version = "authentication.k8s.io/v1"
        review = {"apiVersion": version, "kind": "SelfSubjectReview"}
        try:
            data = self.request("POST", f"/apis/{version}/selfsubjectreviews", body=review)
            return str(dig(decode_object(data), "status.userInfo.username") or "")
        except ApiError:
            return ""

    def is_allowed(self, question: tuple[str, str]) -> bool:
        """Return whether this user has a permission, such as `get replicasets.apps`.

        With it comes the namespace; an empty one means all.
        """
        permission, namespace = question
        verb, _, resource = permission.partition(" ")
        resource, _, subresource = resource.partition("/")
        resource, _, group = resource.partition(".")
        attributes = {"verb": verb, "group": group, "resource": resource}
        attributes |= {"subresource": subresource, "namespace": namespace}
        version = "authorization.k8s.io/v1"
        review = {
            "apiVersion": version,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        data = self.request("POST", f"/apis/{version}/selfsubjectaccessreviews", body=review)
        return dig(decode_object(data), "status").get("allowed") is not False


def time_of_event(event: Json) -> str:
    """Return when an event came last; the newer API sets eventTime alone."""
    series = dig(event, "series").get("lastObservedTime")
    return event.get("lastTimestamp") or series or event.get("eventTime") or ""


def api_error(response: Any) -> ApiError:
    """Return the error that a response means, in the API server's own words if it has any."""
    status = {}
    causes = {}
    with suppress(ApiError, AttributeError):  # for example a proxy's HTML page
        status = decode_object(response.data)
        found = dig(status, "details.causes")
        causes = {cause.get("reason"): str(cause.get("message")) for cause in found}
    message = printable(message_text(str(status.get("message") or response.reason or "")))
    if response.status == 401:
        message = "Unauthorized: credentials were rejected or have expired; log in again"
    if 'User "system:anonymous"' in message:
        message = "not logged in: the context has no credentials"
    if response.status == 410:
        message = "the list expired while it was being read; rerun this command"
    text = f"{response.status} {message}".strip()
    return ApiError(response.status, text, causes, retry_after(response))


def retry_after(response: Any) -> float:
    """Return the seconds of a response's Retry-After; 0 if it is a date, or absent."""
    pause = str(response.headers.get("Retry-After"))
    return float(pause) if pause.isdecimal() else 0


def innermost_cause(error: BaseException) -> str:
    """Return the text of the innermost cause, which says the most."""
    cause = error.__cause__ or error.__context__
    if cause:
        return innermost_cause(cause)
    return printable(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def selector_of(workload: ObjectRef, obj: Json) -> str:
    """Return the label selector of a workload's Pods."""
    selector = dig(obj, "spec.selector")
    if workload.kind == "ReplicationController":
        selector = {"matchLabels": selector}
    terms = [f"{key}={value}" for key, value in dig(selector, "matchLabels").items()]
    for expression in dig(selector, "matchExpressions"):
        key, values = expression["key"], ",".join(dig(expression, "values"))
        forms = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        terms.append(forms.get(expression["operator"], f"!{key}"))
    return ",".join(terms)


def path_of(ref: ObjectRef) -> str:
    """Return the path of an object; empty if its name cannot be a segment of a path.

    No object has such a name, but a Pod's owner reference may: the API server checks only that it
    is not empty. The rule is its own, k8s.io/apimachinery/pkg/api/validation/path.
    """
    if ref.name in (".", "..") or re.search("[/%]", ref.name):
        return ""
    path, plural = CORE, f"{ref.kind.lower()}s"
    if ref.kind in KINDS:
        path, plural = KINDS[ref.kind].path, KINDS[ref.kind].plural
    return f"{path}/namespaces/{ref.namespace}/{plural}/{ref.name}"


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
    begin = '"items":['  # API servers write it without spaces
    is_found = begin in text
    start = position = text.index(begin) + len(begin) if is_found else len(text)
    try:
        while is_found and text[position] != "]":
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


# 6. Starting: kubectl, the kubeconfig, the permissions -------------------------------------------


DEFAULT_KUBECONFIG = "~/.kube/config"
NO_CONTEXT = "current-context must exist"  # kubectl config view --minify, without a context


OLDEST_KUBECTL = "1.28"  # that was tested


def find_kubectl(path: str) -> str:
    """Return the path of kubectl. StartError if there is none."""
    found = shutil.which(path)
    if not found:
        hint = "install it (https://kubernetes.io/docs/tasks/tools/) or specify its path"
        raise StartError(f"kubectl not found or not executable: {path}; {hint} with --kubectl")
    return found


def run_command(command: Sequence[str]) -> tuple[str, list[str]]:
    """Return a command's standard output, and the lines that say why it failed; none: it did not.

    They are without secrets.
    """
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env={**os.environ, "KUBERC": "off"},
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", [innermost_cause(error)]
    lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
    shown = [printable(redact_text(line)).strip() for line in lines if line.strip()]
    return ended.stdout, shown if ended.returncode else []


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
    # The client shows a credential plugin's prompt only if standard output is a terminal.
    with redirect_stdout(sys.stderr):
        user = load_user(config, connection, kubeconfig)
    check_proxy(config, connection.configuration)
    connection.context = config["current-context"]
    # By name, because the current context may change during the run.
    connection.kubectl_flags = (*flags, "--context", connection.context)
    if "KUBECONFIG" in os.environ and not kubeconfig:
        connection.environment = f"KUBECONFIG={shlex.quote(os.environ['KUBECONFIG'])} "
    connection.impersonation = impersonation_headers(user)
    connection.reload = lambda: load_user(read_kubeconfig(view), connection, kubeconfig)
    configuration = connection.configuration
    if "exec" in user and not (configuration.api_key or configuration.cert_file):
        plugin = f"credential plugin {user['exec']['command']} (context {connection.context})"
        raise StartError(f"{plugin} failed: {plugin_error(kubectl, connection, user)}")
    return connection


EXEC_FAILED = "getting credentials: exec: "  # of kubectl
# A word that is neither a URL nor a path, with digits and with letters of both cases; or long
OPAQUE_TOKEN = r"(?<!\S)(?!https?:|/)((?=\S*\d)(?=\S*[a-z])(?=\S*[A-Z])\S{16,}|[a-z0-9]{20,})"


def plugin_error(kubectl: str, connection: Connection, user: Json) -> str:
    """Return why a credential plugin fails: kubectl's words, and the plugin's last line or a hint.

    kubectl prints what the plugin has written to standard error before its own line.
    """
    _, lines = run_command([kubectl, *connection.kubectl_flags, "version"])
    texts = [line.partition(EXEC_FAILED)[2] for line in lines]
    text = next(filter(None, texts), "")
    if "not found" in text:
        hint = printable(user["exec"].get("installHint") or "")
    else:
        said = lines[: texts.index(text)] if text else []
        hint = next((line for line in reversed(said) if re.search("[A-Za-z]", line)), "")
        hint = re.sub(OPAQUE_TOKEN, REDACTED, hint)
    return "; ".join(filter(None, (text, hint))) or "run it manually to see the error"


def check_proxy(config: Json, configuration: Any) -> None:
    """Use the proxy that kubectl uses. StartError if its URL is malformed.

    Go's net/http uses no proxy of the environment for localhost and loopback addresses.
    """
    cluster = dig((config.get("clusters") or [{}])[0], "cluster")
    host = urllib.parse.urlsplit(configuration.host).hostname or ""
    is_loopback = host == "localhost" or re.fullmatch(r"127(\.\d+){3}|::1", host)
    proxy = configuration.proxy or ""
    if "proxy-url" not in cluster:  # it is of the environment
        is_bypassed = is_loopback or urllib.request.proxy_bypass(host)
        proxy = "" if is_bypassed else re.sub(r"^(?=[^:]+(:\d+)?$)(?=.)", "http://", proxy)
    try:
        has_port = urllib.parse.urlsplit(proxy).port != 0
    except ValueError:
        has_port = False
    if proxy and not (has_port and re.fullmatch(r"https?://[^/\s:]\S*", proxy)):
        text = f"invalid proxy URL {redact_text(proxy)}: must be http://HOST or https://HOST:PORT"
        raise StartError(f"{text}; check proxy-url and HTTPS_PROXY")
    configuration.proxy = proxy or None


def read_kubeconfig(view: Sequence[str]) -> Json:
    """Return the kubeconfig as kubectl merges it, for one context, certificates included.

    Empty if there is no kubeconfig but a service account. StartError if neither can be used.
    """
    path = view[view.index("--kubeconfig") + 1] if "--kubeconfig" in view else ""
    if path and not os.path.exists(path):
        raise StartError(f"kubeconfig {path} does not exist")
    output, lines = run_command([*view, "--flatten", "--raw", "--output=json"])
    if output.startswith("{"):
        return decode_object(output)
    error = (lines or ["unexpected output"])[-1]  # which is not shown: it may have a token
    is_default = "--kubeconfig" not in view and "--context" not in view
    if NO_CONTEXT not in error:
        version, _ = run_command([view[0], "version", "--client", "--output=json"])
        if "clientVersion" not in version:
            text = f"{view[0]} is not kubectl, or does not run: {error}"
            raise StartError(f"{text}; specify the path of kubectl with --kubectl")
        raise StartError(f"{error.removeprefix('error: ')}; to reproduce: {shlex.join(view)}")
    if is_default and "KUBERNETES_SERVICE_HOST" in os.environ:
        return {}
    paths = path or os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    files = list(filter(None, paths.split(os.pathsep)))
    problem = "the kubeconfig has no current context"
    if not any(os.path.exists(os.path.expanduser(file)) for file in files):
        problem = f"no kubeconfig found: {join_words(files, 'or')} does not exist"
    hint = "specify a file with --kubeconfig or a context with --context"
    raise StartError(f"no cluster configured: {problem}; {hint}")


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
    files = kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser(DEFAULT_KUBECONFIG)
    folders = map(os.path.dirname, files.split(os.pathsep))
    paths = [os.path.abspath(os.path.join(folder, path)) for folder in folders]
    return next(filter(os.path.exists, paths), path)


def impersonation_headers(user: Json) -> list[tuple[str, str]]:
    """Return the headers that impersonate the user specified by `as`."""
    for key in ("as-uid", "as-user-extra"):
        if user.get(key):
            raise StartError(f"the kubeconfig impersonates with {key}, which is not supported")
    found = [("Impersonate-User", user["as"])] if user.get("as") else []
    found += [("Impersonate-Group", group) for group in dig(user, "as-groups")]
    # The client encodes headers as latin-1; kubectl sends UTF-8.
    return [(header, name.encode().decode("latin-1")) for header, name in found]


def check_kubectl(path: str, connection: Connection) -> None:
    """Check that kubectl can wait for rollouts on the cluster, before anything is patched.

    StartError if it cannot reach the cluster, for example because of a proxy, or is too old.
    """
    help, lines = run_command([path, "rollout", "status", "--help"])
    if "--timeout" not in help:
        text = "".join(lines[-1:]) or "too old: `rollout status` has no --timeout"
        hint = f"install kubectl {OLDEST_KUBECTL} or later"
        raise StartError(f"{path} cannot wait for rollouts: {text}; {hint}")
    command = [path, *connection.kubectl_flags, "version", "--output=json"]
    for pause in (1, 1, 0):
        output, lines = run_command(command)
        if not lines or "Forbidden" in lines[-1]:  # which is a response
            break
        time.sleep(pause)
    else:
        hint = f"to reproduce: {shlex.join(command)}"
        raise StartError(f"kubectl cannot connect to the cluster: {lines[-1]}; {hint}")
    versions = re.findall(r'"gitVersion": "(v1\.(\d+)[^"]*)"', output)
    if len(versions) == 2 and abs(int(versions[0][1]) - int(versions[1][1])) > 1:
        text = "kubectl %s and API server %s are more than one minor version apart: not supported"
        log.warning(text, *(version for version, _ in versions))


def needed_permissions(options: Options) -> dict[str, str]:
    """Return the permissions that a run uses, with what is different without each.

    Empty: it is required. For kinds that are not selected, none is.
    """
    needed = {"list pods": ""}
    verbs = ("get", "list", "patch", "watch") if options.confirm else ("get", "list")
    for kind in options.kinds:
        needed |= {f"{verb} {KINDS[kind].resource}": "" for verb in verbs}
    if options.exclude_annotation:
        needed["get namespaces"] = ""
    if options.confirm:
        needed["create pods"] = "rollouts are not checked beforehand"
    if options.only_drifted:
        needed["create pods"] = ""
    if options.confirm and options.in_place:
        needed["patch pods"] = ""
    if options.confirm and options.evict:
        needed["create pods/eviction"] = ""
    if options.confirm and options.record_events:
        needed["create events"] = "no Events are recorded"
    for kind in OWNED if options.evict else ():
        needed[f"get {KINDS[kind].resource}"] = f"Pods of {kind}s are skipped"
    if "Deployment" in options.kinds:
        needed["get replicasets.apps"] = ""
    return needed


def check_permissions(cluster: Cluster, options: Options) -> None:
    """Check the permissions of this run. StartError lists the required ones that are missing."""
    needed = needed_permissions(options)
    namespaces = namespaces_to_list(options)
    questions = itertools.product(needed, namespaces or [""])
    roles = {}  # that grant what is missing
    notes = []
    for (permission, namespace), is_allowed in sorted(in_parallel(questions, cluster.is_allowed)):
        where = f"namespace {namespace}" if namespace else "all namespaces"
        if not is_allowed and needed[permission]:
            notes.append(f"no permission to {permission} in {where}: {needed[permission]}")
        elif not is_allowed:
            roles[f"{permission} in {where}"] = role_for(permission)
    if roles:
        hint = "" if namespaces else ", or select your namespaces with --include-namespace"
        where = f"granted by {join_words(sorted(set(roles.values())))} in deploy/rbac.yaml"
        found = {"user": cluster.connection.user, "context": cluster.connection.context}
        who = ", ".join(f"{name} {value}" for name, value in found.items() if value)
        raise StartError(f"missing permissions: {', '.join(roles)}; {where}{hint} ({who})")
    for note in notes:
        log.warning("%s", note)


def role_for(permission: str) -> str:
    """Return the ClusterRole of deploy/rbac.yaml that grants a permission."""
    roles = {
        "create pods": "-drift",
        "get replicationcontrollers": "-drift",
        "create pods/eviction": "-evict",
        "patch pods": "-in-place",
    }
    is_write = permission.startswith(("patch", "watch"))
    return f"ClusterRole sidecar-rollout{roles.get(permission, '' if is_write else '-plan')}"


# 7. Selecting: Pods to the owners of Pods --------------------------------------------------------


def namespaces_to_list(options: Options) -> list[str]:
    """Return the namespaces to read one by one; none means all, which needs more permissions."""
    names = dict.fromkeys(options.include_namespace)
    if any(map(is_pattern, names)):
        return []
    return [name for name in names if is_included(name, options)]


def is_included(namespace: str, options: Options) -> bool:
    included = options.include_namespace
    excluded = options.exclude_namespace
    return matches(namespace, included or ["*"]) and not matches(namespace, excluded)


def typed_names(ref: ObjectRef) -> list[str]:
    """Return the TYPE/NAME forms of an object; only Kubernetes' own kinds need no group."""
    groups = [ref.group] if ref.kind in WORKLOADS else [ref.group, ""]
    return [type_and_name(ref.kind, group, ref.name) for group in groups]


def is_named(ref: ObjectRef, options: Options) -> bool:
    if options.plan is not None and ref not in options.plan:
        return False
    return any(matches(name, options.workloads or ["*"]) for name in typed_names(ref))


def read_pods(pods: Iterable[Json], options: Options) -> tuple[dict[ObjectRef, Workload], Scan]:
    """Return the Pods of the selected namespaces by their owner, and what else was seen.

    Pods without a sidecar count if others of their owner have it, or if they are replaceable.
    ApiError for an odd Pod.
    """
    owners: dict[ObjectRef, Workload] = {}
    scan = Scan()
    for pod in pods:
        scan.pods += 1
        try:
            namespace = pod["metadata"]["namespace"]
            scan.namespaces.add(namespace)
            scan.containers |= {container["name"] for _, container in containers_of(pod)}
            if is_terminating(pod) or not is_included(namespace, options):
                continue
            live = live_pod(pod, options)
            owner = controller_of(pod) or ObjectRef("", namespace, live.name)
            if live.sidecars or has_template(owner) or "." in owner.group:
                scan.after_cutoff += bool(live.sidecars) and live.created >= options.cutoff
                template_hash = dig(pod, "metadata.labels").get("pod-template-hash", "\0")
                workload = owners.get(owner) or Workload(owner, template_hash, owners=(owner,))
                owners[owner] = workload
                if not workload.sample or (live.sidecars and not workload.sidecars):
                    metadata = without(pod["metadata"], "managedFields")
                    workload.sample = packed_alike({"metadata": metadata, "spec": pod["spec"]})
                workload.pods.append(live)
                workload.sidecars = share(workload.sidecars | live.sidecars)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            text = json.dumps(pod)[:80]
            raise ApiError(200, f"unexpected response: not a Pod: {text}: {error!r}") from None
    found = {ref: w for ref, w in owners.items() if w.sidecars or has_template(ref)}
    return found, scan


def live_pod(pod: Json, options: Options) -> LivePod:
    """Return what is kept of a Pod."""
    names = options.sidecars
    sidecars = share(frozenset(map(as_sidecar, named_containers(pod, names))))
    ready = is_ready(pod)
    problem = "" if ready else waiting_reason(pod)
    stuck = bool(problem) and bool(stuck_sidecars(pod, options))
    ends = dig(pod, "spec.restartPolicy") in ("Never", "OnFailure")
    parts = name_of(pod), created_at(pod), ready, sidecars, problem, stuck
    if not options.only_drifted:
        return LivePod(*parts, ends=ends)
    return LivePod(*parts, share(view_of(pod, names)), resized_containers(pod), ends)


@functools.cache
def share(value: Any) -> Any:
    """Return an equal value that is kept only once; 150,000 Pods have 16,000 views."""
    return value


def has_template(owner: ObjectRef) -> bool:
    """Return whether its Pod template can be read; custom resources have it in other fields."""
    return owner.kind in KINDS and owner.group == KINDS[owner.kind].group


def is_workload(ref: ObjectRef) -> bool:
    """Return whether it is one of Kubernetes' own workloads; OpenKruise has the same kinds."""
    return ref.kind in WORKLOADS and has_template(ref)


def is_terminating(pod: Json) -> bool:
    """Return whether a Pod has ended, or is being deleted (it may still be ready)."""
    return has_ended(pod) or bool(dig(pod, "metadata.deletionTimestamp"))


def has_ended(pod: Json) -> bool:
    return dig(pod, "status.phase") in ("Succeeded", "Failed")


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
    return dig(obj, "metadata.annotations")


def template_annotations(workload: Json) -> dict[str, str]:
    return annotations_of(dig(workload, "spec.template"))


REGULAR, NATIVE, INIT = "containers", "initContainers", "init"  # kinds of containers


def containers_of(pod: Json) -> Iterator[tuple[str, Json]]:
    """Yield the containers, each with its kind: regular, native sidecar or init container."""
    for container in pod["spec"]["containers"]:
        yield REGULAR, container
    for container in dig(pod, "spec.initContainers"):
        yield NATIVE if container.get("restartPolicy") == "Always" else INIT, container


def named_containers(pod: Json, names: Names) -> Iterator[tuple[str, Json]]:
    """Yield the named containers of a Pod, each with its kind."""
    for kind, container in containers_of(pod):
        if matches(container["name"], names):
            yield kind, container


def as_sidecar(found: tuple[str, Json]) -> Sidecar:
    """Return a container with its kind as a sidecar."""
    kind, container = found
    return Sidecar(container["name"], container.get("image", ""), kind == NATIVE, kind == INIT)


def controller_of(obj: Json) -> ObjectRef | None:
    """Return the owner that is marked as the controller; it need not be the first."""
    for reference in dig(obj, "metadata.ownerReferences"):
        if reference.get("controller"):
            group = reference["apiVersion"].rpartition("/")[0]
            namespace = obj["metadata"].get("namespace", "")  # a template has none
            shared = map(sys.intern, (reference["kind"], namespace, reference["name"], group))
            return ObjectRef(*shared)
    return None


def conditions_of(obj: Json) -> dict[tuple[str, str], Json]:
    """Return the conditions of an object by type and status, such as ("Ready", "True")."""
    return {(c["type"], c["status"]): c for c in dig(obj, "status.conditions")}


def is_ready(pod: Json) -> bool:
    return ("Ready", "True") in conditions_of(pod)


NOT_PULLED = ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName")
STUCK = (
    "CrashLoopBackOff",
    "RunContainerError",
    "CreateContainerError",
    "CreateContainerConfigError",
    *NOT_PULLED,
)


def stuck_containers(pod: Json) -> Iterator[tuple[str, Json]]:
    """Yield the name of each container that does not start, and its waiting state."""
    for status in container_statuses(pod):
        waiting = dig(status, "state.waiting")
        if waiting.get("reason") in STUCK:
            yield status["name"], waiting


def stuck_sidecars(pod: Json, options: Options) -> dict[str, str]:
    """Return the named sidecars that do not start, and why, in Kubernetes' word."""
    return {
        name: waiting["reason"]
        for name, waiting in stuck_containers(pod)
        if matches(name, options.sidecars)
    }


def container_statuses(pod: Json) -> list[Json]:
    return [*dig(pod, "status.initContainerStatuses"), *dig(pod, "status.containerStatuses")]


def waiting_reason(pod: Json) -> str:
    """Return why a Pod does not run, in Kubernetes' word; empty if nothing is wrong."""
    for _, waiting in stuck_containers(pod):
        return waiting["reason"]
    reasons = [condition.get("reason") for condition in dig(pod, "status.conditions")]
    return "Unschedulable" if "Unschedulable" in reasons else ""


# 8. Rules: reasons to skip a workload, in the plan and again before each write -------------------
#
# A rule returns why to skip a workload and what to do, or an empty text. It stands in the list of
# the stage in which it knows enough; the first rule that applies counts.

Rule = Callable[[Workload, Options], str]


def rule_to_skip(workload: Workload, options: Options, rules: Iterable[Rule]) -> tuple[str, str]:
    """Return what the first rule that applies says, and its name; empty: take it."""
    answers = ((rule(workload, options), rule.__name__) for rule in rules)
    return next((answer for answer in answers if answer[0]), ("", ""))


def reason_to_skip(workload: Workload, options: Options, rules: Iterable[Rule]) -> str:
    """Return what the first rule that applies says; empty: take it."""
    return rule_to_skip(workload, options, rules)[0]


def not_named(workload: Workload, options: Options) -> str:
    return "" if is_named(workload.ref, options) else "not selected by TYPE/NAME or --plan"


def without_controller(workload: Workload, options: Options) -> str:
    hint = "not managed by a controller; delete and recreate it manually"
    return "" if workload.ref.kind else hint


def static_pod(workload: Workload, options: Options) -> str:
    is_static = workload.ref.kind == "Node"
    return "static Pod, managed by the kubelet of its node" if is_static else ""


def running_to_completion(workload: Workload, options: Options) -> str:
    ends = any(pod.ends for pod in workload.pods)
    return f"managed by a {workload.ref.kind}; runs to completion" if ends else ""


def kind_not_selected(workload: Workload, options: Options) -> str:
    # The Pods of an owner that has no rollouts can only be evicted.
    ref = workload.ref
    if is_workload(ref):
        hint = KINDS[ref.kind].how_to_select
        return "" if ref.kind in options.kinds else f"not selected; {hint}"
    if options.evict:
        return ""
    if ref.kind == "ReplicationController":
        return "managed by a ReplicationController, which does not support rollouts; use --evict"
    if has_template(ref):
        return "its ReplicaSet has no Deployment or no longer exists; use --evict"
    tools = "use --evict, or restart it with that controller's tools"
    return f"managed by {ref.kind} ({ref.group}); {tools}"


def gone(workload: Workload, options: Options) -> str:
    if workload.obj:
        return ""
    is_required = workload.ref.kind in options.kinds  # the permission to read it
    hint = "its controller no longer exists, or there is no permission to read it"
    return "no longer exists" if is_required else hint


def being_deleted(workload: Workload, options: Options) -> str:
    if dig(workload.obj, "metadata.deletionTimestamp"):
        return "being deleted"
    deleted = dig(workload.namespace, "metadata.deletionTimestamp")
    is_terminating = deleted or "NamespaceTerminating" in workload.causes
    return "its namespace is terminating" if is_terminating else ""


def excluded(workload: Workload, options: Options) -> str:
    unwanted = options.exclude_annotation
    if has_any(unwanted, *annotations_to_match(workload)):
        return "matches --exclude-annotation"
    is_excluded = has_any(unwanted, annotations_of(workload.namespace))
    return "its namespace matches --exclude-annotation" if is_excluded else ""


def another_object(workload: Workload, options: Options) -> str:
    planned = (options.plan or {}).get(workload.ref)
    is_same = not planned or planned.uid == dig(workload.obj, "metadata.uid")
    return "" if is_same else "is another object than in the plan"


def another_sidecar(workload: Workload, options: Options) -> str:
    planned = (options.plan or {}).get(workload.ref)
    is_same = not planned or planned.revision in ("", revision_of(workload))
    return "" if is_same else "new Pods would get another sidecar than in the plan"


def not_included(workload: Workload, options: Options) -> str:
    wanted = options.include_annotation
    is_included = not wanted or has_any(wanted, *annotations_to_match(workload))
    return "" if is_included else "does not match --include-annotation"


def wrong_method(workload: Workload, options: Options) -> str:
    is_stopped = is_paused(workload.obj)
    if workload.method is Method.RESTART:
        if is_stopped:
            return "paused; run `kubectl rollout resume` first, or use --evict"
        hint = "use --evict, or delete its Pods manually, one at a time"
        if is_on_delete(workload.obj):
            return f"updateStrategy is OnDelete; {hint}"
        strategy = dig(workload.obj, "spec.updateStrategy.type") or "RollingUpdate"
        hint = "which `kubectl rollout status` does not support; restart it manually"
        return "" if strategy == "RollingUpdate" else f"updateStrategy is {strategy}, {hint}"
    is_deployment = workload.ref.kind == "Deployment" and workload.method is Method.EVICT
    is_resumed = is_deployment and not is_stopped
    return "no longer paused; rerun this command to restart it" if is_resumed else ""


def incomplete_rollout(workload: Workload, options: Options) -> str:
    # In the middle of a bad release, a restart would bury the Pods that still serve. Only what is
    # stuck because of a named sidecar, or not ready without it, is to be repaired.
    lacking = {pod.name for pod in workload.pods if not pod.sidecars}.union(workload.lacking)
    lost = lacking.intersection(workload.old_pods)
    is_repair = any(pod.stuck or (pod.name in lost and not pod.is_ready) for pod in workload.pods)
    reason = "" if is_repair else why_incomplete(workload)
    return f"{reason}; wait, or run `kubectl rollout status`" if reason else ""


def why_incomplete(workload: Workload) -> str:
    obj = workload.obj
    if is_on_delete(obj) or is_paused(obj):
        return ""
    *_, current, updated = counts_of(workload.ref, obj)
    if not is_observed(obj):
        return "its rollout is not complete: its latest spec has not been observed"
    revision = dig(obj, "status.currentRevision")  # of a StatefulSet
    is_done = revision and revision == dig(obj, "status.updateRevision")
    if not is_workload(workload.ref) or is_done or current - updated <= partition_of(obj):
        return ""
    cause = failure_condition(obj) or next(filter(None, (pod.problem for pod in workload.pods)), "")
    text = f"its rollout is not complete: {updated} of {count_of(current, 'Pod')} updated"
    return f"{text}: {short_reason(cause)}" if cause else text


def unhealthy(workload: Workload, options: Options) -> str:
    shortage = shortage_of(workload)
    if is_degraded(workload) and workload.method is Method.RESTART:
        hint = "Use --evict, which replaces unready Pods first, or repair the unready Pod"
        return f"{shortage}; a restart would stop another Pod. {hint}"
    reason = workload.unhealthy_reason or shortage  # since the plan
    return f"unhealthy: {reason}" if options.skip_unhealthy and reason else ""


def has_downtime(workload: Workload, options: Options) -> str:
    is_skipped = options.skip_downtime and may_all_be_away(workload, options)
    return "its rollout is downtime: all its Pods may be away at once" if is_skipped else ""


def nothing_to_replace(workload: Workload, options: Options) -> str:
    if workload.old_pods:
        return ""
    if not options.include_missing and not any(pod.sidecars for pod in workload.pods):
        return "its Pods no longer have the sidecar"
    if workload.message:  # why Pods lack a sidecar, and would not get it
        return workload.message
    is_all = not options.only_drifted
    pods = [pod for pod in workload.pods if is_all or pod.name in workload.drifted_pods]
    if pods and all(pod.created >= options.cutoff_of(workload.ref) for pod in pods):
        kind = "Pods" if is_all else "drifted Pods"
        return f"all its {kind} were created after the cutoff"
    if workload.drifted_pods:
        hint = "name the container without wildcards, or use --include-missing"
        return f"some Pods have no sidecar; {hint}"
    return "already up to date"


def below_partition(workload: Workload, options: Options) -> str:
    kept = len(pods_below_partition(workload))
    if workload.method is Method.IN_PLACE:
        # Such a Pod may have another template than the one that is asked about.
        status = dig(workload.obj, "status")
        is_split = kept and status.get("currentRevision") != status.get("updateRevision")
        text = "has Pods below its partition with another template"
        hint = f"{text}; lower the partition, or omit --in-place"
        return hint if is_split else ""
    # A rollout leaves these Pods alone, and an evicted one would come back as it was.
    is_kept = kept == len(workload.old_pods)
    return f"{kept_pods(workload)}; lower the partition" if is_kept else ""


def changed_in_place(workload: Workload, options: Options) -> str:
    if workload.method is not Method.IN_PLACE:
        return ""
    names = [difference.path[0] for difference in workload.differences]
    return why_not_in_place(stored_object(workload.sample), names)


def pending_template(workload: Workload, options: Options) -> str:
    # A Pod comes back as the template of its owner is now. Of an owner whose status counts no
    # updated Pods, only a spec that nobody has changed is known to be that of its Pods. The
    # ReplicaSet of a paused Deployment, or of another controller, keeps its template.
    obj = workload.obj
    is_pending = False
    if is_on_delete(obj):
        *_, updated = counts_of(workload.ref, obj)
        live = len(workload.pods) - (dig(obj, "status.numberMisscheduled") or 0)
        is_pending = updated < live or not is_observed(obj)
    elif workload.ref.kind in OWNED and has_template(workload.ref):
        is_pending = dig(obj, "metadata.generation") != 1
    text = "replacing its Pods may also roll out a change of its Pod template"
    hint = "replace them manually, one at a time"
    return f"{text}; {hint}" if is_pending and workload.method is Method.EVICT else ""


# When the owner of its Pods is known: in the plan
OWNER_RULES: tuple[Rule, ...] = (
    not_named,
    without_controller,
    static_pod,
    running_to_completion,
)
# When the object was read: in the plan, and each time a worker reads it
OBJECT_RULES: tuple[Rule, ...] = (
    excluded,
    gone,
    being_deleted,
    another_object,
    not_included,
)
# When it is known how its Pods would be replaced, and which: in the plan, and before the first
# write
ROLLOUT_RULES: tuple[Rule, ...] = (
    wrong_method,
    incomplete_rollout,
    unhealthy,
    nothing_to_replace,
    below_partition,
    changed_in_place,
    pending_template,
    another_sidecar,
    has_downtime,
)
LEFT = {  # why Pods are not up to date, by the rule that leaves their workload out
    not_named: "not selected",
    excluded: "excluded",
    not_included: "excluded",
    being_deleted: "being deleted",
    static_pod: "static Pod",
    without_controller: "not checked",
}
# Of these, it is not known whether they are up to date, or they do not matter to an audit.
NOT_AUDITED = ("not selected", "excluded", "being deleted", "Pod of a Job", "runs to completion")


def require_not_skipped(workload: Workload, options: Options, rules: Iterable[Rule]) -> None:
    """Raise SkipError if a workload is to be skipped."""
    reason = reason_to_skip(workload, options, rules)
    if reason:
        raise SkipError(reason)


def why_unfinished(workload: Workload, options: Options) -> str:
    """Return what is wrong with the last rollout that this command began; empty: nothing.

    It left older Pods, or, since the cutoff, new ones that do not run.
    """
    if reason_to_skip(workload, options, (*OBJECT_RULES, kind_not_selected)) or not workload.pods:
        return ""
    last = last_restart(workload.obj, options)[:19]  # in whole seconds
    reason = why_incomplete(workload) if workload.oldest_pod.isoformat()[:19] < last else ""
    new = [pod for pod in workload.pods if pod.created.isoformat()[:19] >= last]
    unready = [pod for pod in new if not pod.is_ready]
    if reason or not unready or last < options.cutoff_of(workload.ref).isoformat()[:19]:
        return reason
    problem = f"{unready[0].name}: {unready[0].problem or 'not ready'}"
    return f"not healthy since its rollout: {problem}"


def to_attach(workload: Workload, options: Options) -> str:
    """Return the timestamp of this command's rollout that is to be waited for; empty: none.

    Nobody has changed the template since, the new Pods have what is injected now, and none is stuck
    because of a named sidecar.
    """
    stamp = last_restart(workload.obj, options)
    wrong = {*workload.lacking, *workload.drifted_pods}
    is_wrong = any(
        pod.stuck or not pod.sidecars or pod.name in wrong
        for pod in workload.pods
        if pod.created.isoformat()[:19] >= stamp[:19]
    )
    is_wrong |= is_degraded(workload) and any(pod.stuck for pod in workload.pods)  # it would wait
    is_possible = workload.verdict not in (Verdict.REJECTED, Verdict.UNKNOWN)
    is_possible &= not (is_wrong or is_paused(workload.obj) or is_on_delete(workload.obj))
    is_ours = is_possible and is_unchanged(workload.obj)
    return stamp if is_ours and why_unfinished(workload, options) else ""


def is_unchanged(workload: Json) -> bool:
    """Return whether this command was the last to change a Pod template, by managedFields."""
    changes = [
        (entry.get("time", ""), entry.get("manager") == FIELD_MANAGER)
        for entry in dig(workload, "metadata.managedFields")
        if "f:template" in dig(entry, "fieldsV1.f:spec")
    ]
    return max(changes, default=("", False))[1]


RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"  # of kubectl rollout restart


def last_restart(workload: Json, options: Options) -> str:
    """Return when this command restarted a workload last; those of a person have another form."""
    stamps = timestamps_of(workload, options.annotation_prefix)
    return max((stamp for stamp in stamps if stamp.endswith("+00:00")), default="")


def timestamps_of(workload: Json, prefix: str = "") -> list[str]:
    """Return the times at which this command restarted a workload; no prefix means any.

    If the workload has a controller of its own, that is restartedAt, which operators keep.
    """
    is_controlled = controller_of(workload) is not None
    return [
        value
        for key, value in template_annotations(workload).items()
        if key == f"{prefix}.rollout.timestamp"
        or (key.endswith(".rollout.timestamp") and not prefix)
        or (key == RESTARTED_AT and is_controlled)
    ]


def annotations_to_match(workload: Workload) -> list[Labels]:
    """Return the annotations that options are about; without a readable owner, those of a Pod."""
    obj = workload.obj or stored_object(workload.sample)
    return [annotations_of(obj), template_annotations(obj)]


def is_paused(workload: Json) -> bool:
    return bool(dig(workload, "spec.paused"))


def is_on_delete(workload: Json) -> bool:
    return dig(workload, "spec.updateStrategy.type") == "OnDelete"


def partition_of(workload: Json) -> int:
    """Return the partition of a StatefulSet: a rollout leaves the Pods below it alone."""
    return dig(workload, "spec.updateStrategy.rollingUpdate.partition") or 0


def is_below_partition(workload: Json, pod: str) -> bool:
    """Return whether a rollout leaves a Pod alone. The partition counts from spec.ordinals.start.

    Kubernetes' pkg/controller/statefulset/stateful_set_utils.go, newVersionedStatefulSetPod.
    """
    start = dig(workload, "spec.ordinals.start") or 0
    partition = partition_of(workload)
    ordinal = pod.rpartition("-")[2]
    return bool(partition) and ordinal.isdigit() and int(ordinal) < start + partition


def pods_below_partition(workload: Workload) -> list[str]:
    """Return the names of the old Pods that a rollout does not replace."""
    return [name for name in workload.old_pods if is_below_partition(workload.obj, name)]


def kept_pods(workload: Workload) -> str:
    """Return `1 of 3 Pods is below partition 1 and keeps the old sidecar`, or has no sidecar."""
    kept = pods_below_partition(workload)
    lacking = {pod.name for pod in workload.pods if not pod.sidecars}.union(workload.lacking)
    lacking.intersection_update(kept)
    count = len(lacking or kept)
    total = count_of(dig(workload.obj, "spec.replicas") or 0, "Pod")
    be, keep, have = ("is", "keeps", "has") if count == 1 else ("are", "keep", "have")
    what = f"{have} no sidecar" if lacking else f"{keep} the old sidecar"
    return f"{count} of {total} {be} below partition {partition_of(workload.obj)} and {what}"


def why_not_in_place(pod: Json, names: Names) -> str:
    """Return why the images of named containers are not to be changed in a Pod; empty: they may.

    OpenKruise, which updates its containers in place itself, lists them in an annotation (tested
    with 1.8.3).
    """
    managers = parsed_json(annotations_of(pod).get("kruise.io/sidecarset-hash", ""))
    for manager, entry in managers.items() if isinstance(managers, dict) else ():
        listed = dig(entry, "sidecarList") if isinstance(entry, dict) else ()
        if isinstance(listed, list) and any(name in listed for name in names):
            return f"managed by SidecarSet {manager}; change its images there"
    for _, container in named_containers(pod, names):
        actions = [rule.get("action") for rule in dig(container, "restartPolicyRules")]
        if "RestartAllContainers" in actions:
            return f"container {container['name']} restarts the whole Pod (RestartAllContainers)"
    return ""


def counts_of(workload: ObjectRef, obj: Json) -> list[int]:
    """Return how many Pods are desired, available, current and updated; 0 is absent in status."""
    paths = KINDS[workload.kind].counts if has_template(workload) else REPLICAS
    return [dig(obj, path) or 0 for path in paths]


def shortage_of(workload: Workload) -> str:
    desired, available, *_ = counts_of(workload.ref, workload.obj)
    return f"{available} of {desired} available" if available < desired else ""


def is_observed(workload: Json) -> bool:
    generation = dig(workload, "metadata.generation") or 0
    return (dig(workload, "status.observedGeneration") or 0) >= generation


def is_degraded(workload: Workload) -> bool:
    """Return whether a StatefulSet has Pods that are available, and some that are not.

    With podManagementPolicy Parallel, a restart takes a second Pod, whatever its
    PodDisruptionBudget says.
    """
    desired, available, *_ = counts_of(workload.ref, workload.obj)
    return workload.ref.kind == "StatefulSet" and 0 < available < desired


def failure_condition(workload: Json) -> str:
    """Return what a workload's conditions say about a failure, or an empty text."""
    conditions = conditions_of(workload)
    failed = conditions.get(("ReplicaFailure", "True")) or conditions.get(("Progressing", "False"))
    return message_text(failed.get("message", "")) if failed else ""


def may_all_be_away(workload: Workload, options: Options) -> bool:
    """Return whether all Pods of a workload may be away at once while they are replaced.

    A Deployment stops as many old Pods as maxUnavailable allows before new ones are ready, whatever
    its maxSurge. Percentages are rounded down, of maxSurge up; if both are 0, maxUnavailable is 1.
    Kubernetes' pkg/controller/deployment/rolling.go and util/deployment_util.go.
    """
    obj = workload.obj
    wanted = counts_of(workload.ref, obj)[0] or len(workload.pods)
    if workload.ref.kind == "DaemonSet" or partition_of(obj):
        return False  # away on one node at a time; Pods below the partition stay
    if not workload.method.is_rollout:
        return evicted_at_once(workload.method, wanted, options) >= wanted
    if dig(obj, "spec.strategy.type") == "Recreate":
        return True
    field = "strategy" if workload.ref.kind == "Deployment" else "updateStrategy"
    rolling = dig(obj, f"spec.{field}.rollingUpdate")
    has_surge = rolling.get("maxSurge", 0) not in (0, "0%")
    away = rolling.get("maxUnavailable", 1)
    if isinstance(away, str):
        away = int(away.rstrip("%")) * wanted // 100
    return max(away, int(not has_surge)) >= wanted


def evicted_at_once(method: Method, wanted: int, options: Options) -> int:
    """Return how many Pods of an owner that wants so many may be unavailable."""
    limit = options.max_unavailable
    return max(int(limit.of(wanted)), 1) if limit and method is Method.EVICT else 1


def has_any(wanted: Iterable[AnnotationFilter], *annotations: Labels) -> bool:
    return any(
        key in found and fnmatch.fnmatchcase(found[key], pattern)
        for key, pattern in wanted
        for found in annotations
    )


# 9. The plan -------------------------------------------------------------------------------------

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # holds a copy of the workload


def find_workloads(
    cluster: Cluster, owners: Mapping[ObjectRef, Workload], scan: Scan, options: Options
) -> list[Workload]:
    """Return the workloads of the owners of Pods, some with a reason, and those without Pods."""
    having = {  # the sidecar; an owner without it belongs to one of them, or does not count
        workload.deployment
        for workload in owners.values()
        if workload.sidecars or options.include_missing
    }
    owners = {ref: workload for ref, workload in owners.items() if workload.deployment in having}
    objects, without_pods = read_lists(cluster, {*owners, *having}, scan, options)
    controllers = find_controllers(cluster, owners, objects, options)
    found: dict[ObjectRef, Workload] = {}
    for owner, workload in owners.items():
        ref = workload.ref = controllers.get(owner) or owner
        if ref in found:
            found[ref].merge(workload)
        else:
            found[ref] = workload
    workloads = [w for w in found.values() if w.sidecars or options.include_missing]
    # With --only-drifted, Pods are compared all the same if their kind is not selected.
    rules = OWNER_RULES if options.only_drifted else (*OWNER_RULES, kind_not_selected)
    for workload in workloads:
        workload.reason, workload.code = rule_to_skip(workload, options, rules)
    selected = [w for w in workloads if not w.reason]
    for workload, stored in in_parallel(selected, partial(read_object, cluster, objects)):
        workload.stored = stored
    return workloads + without_pods


def read_lists(
    cluster: Cluster, wanted: Collection[ObjectRef], scan: Scan, options: Options
) -> tuple[dict[ObjectRef, bytes], list[Workload]]:
    """Return the wanted workloads, packed, and those of the selected kinds without Pods.

    With --only-drifted, also those of other kinds, as far as that is permitted.
    """
    objects = {}
    without_pods = []
    kinds = WORKLOADS if options.only_drifted and not options.workloads else options.kinds
    for kind in sorted(kinds):
        try:
            row = KINDS[kind]
            for obj in cluster.items(row.path, row.plural, namespaces_to_list(options)):
                ref = ObjectRef(kind, obj["metadata"]["namespace"], name_of(obj), row.group)
                if is_included(ref.namespace, options):
                    scan.named.update(set(typed_names(ref)).intersection(options.workloads))
                if ref in wanted:
                    objects[ref] = reduced(obj)
                elif is_without_pods(ref, obj, options):
                    without_pods.append(Workload(ref, stored=reduced(obj)))
        except ApiError as error:
            if error.status != 403 or kind in options.kinds:
                raise
    return objects, without_pods


def reduced(obj: Json) -> bytes:
    """Remove what the plan does not need from a workload, and return it, packed."""
    if not timestamps_of(obj):  # see is_unchanged
        obj["metadata"].pop("managedFields", None)
    annotations_of(obj).pop(LAST_APPLIED, None)
    return packed_alike(obj)


def is_without_pods(ref: ObjectRef, obj: Json, options: Options) -> bool:
    """Return whether a workload that this command has restarted wants Pods and has none.

    No Pod leads to it. With a selector for Pods it is not known whether it is selected, and nor is
    it if the reason of its restart names other sidecars.
    """
    desired, _, current, _ = counts_of(ref, obj)
    is_ours = is_included(ref.namespace, options) and is_named(ref, options)
    is_ours = is_ours and bool(timestamps_of(obj, options.annotation_prefix))
    reason = template_annotations(obj).get(f"{options.annotation_prefix}.rollout.reason", "")
    if reason.startswith(DEFAULT_REASON):
        listed = reason.removeprefix(DEFAULT_REASON).partition(":")[0]
        names = re.split(", | and ", listed.strip())
        found = itertools.product(names, options.sidecars)
        is_ours &= any(
            " " in name or matches(name, [other]) or matches(other, [name]) for name, other in found
        )
    return is_ours and not options.selector and is_observed(obj) and desired > current == 0


def find_controllers(
    cluster: Cluster,
    owners: Mapping[ObjectRef, Workload],
    objects: Mapping[ObjectRef, bytes],
    options: Options,
) -> dict[ObjectRef, ObjectRef | None]:
    """Return the controller, or None, of each owner that may have one.

    A ReplicaSet is called <deployment>-<hash>. If that Deployment exists and selects its Pods, the
    ReplicaSet itself is not read.
    """
    types = types_of(options.workloads)
    if types and types <= {"statefulset", "daemonset"}:  # which own their Pods
        return {}
    found: dict[ObjectRef, ObjectRef | None] = {}
    unknown = []
    needs_owners = options.evict or options.only_drifted or "Deployment" in options.kinds
    for ref, workload in owners.items():
        guess = workload.deployment
        if guess in objects and is_selected_by(unpacked(objects[guess]), workload.sample):
            found[ref] = guess
        elif needs_owners and ref.kind in OWNED and has_template(ref):
            unknown.append(ref)
        elif guess.name != ref.name:  # only shown as skipped; needs no permission
            found[ref] = guess

    return found | dict(in_parallel(unknown, cluster.controller_of))


def is_selected_by(deployment: Json, sample: bytes) -> bool:
    selected = dig(deployment, "spec.selector.matchLabels")
    labels = dig(unpacked(sample), "metadata.labels")
    return bool(selected) and selected.items() <= labels.items()


def read_object(cluster: Cluster, objects: Mapping[ObjectRef, bytes], workload: Workload) -> bytes:
    """Return a workload, packed; for a custom resource, the owner of its Pods; or nothing."""
    if workload.ref in objects:
        return objects[workload.ref]
    if is_workload(workload.ref):  # of another kind than the selected ones, perhaps forbidden
        obj = cluster.find(path_of(workload.ref), (403, 404))
    else:
        obj = cluster.owner(workload.owners[0], unpacked(workload.sample))
    return packed(obj) if obj else b""


def set_plan(workload: Workload, options: Options) -> None:
    """Set how the Pods of a workload are replaced, and how many."""
    stamp = to_attach(workload, options)
    if stamp:
        workload.method = Method.ATTACH
        workload.unhealthy_reason = ""  # what is not ready is so because of this rollout
    elif options.in_place and only_images(workload.differences, workload.view):
        workload.method = Method.IN_PLACE
    elif options.evict and is_evicted(workload):
        workload.method = Method.EVICT
    set_old_pods(workload, options)
    if stamp:
        old = {pod.name for pod in workload.pods if pod.created.isoformat()[:19] < stamp[:19]}
        workload.old_pods = tuple(name for name in workload.old_pods if name in old)
    kept = 0 if workload.method is Method.IN_PLACE else len(pods_below_partition(workload))
    workload.pods_to_replace = len(workload.old_pods) - kept
    workload.total_pods = max(counts_of(workload.ref, workload.obj)[2], len(workload.pods))
    workload.pods_replaced = workload.pods_to_replace
    if workload.method is Method.RESTART:
        kept = sum(is_below_partition(workload.obj, pod.name) for pod in workload.pods)
        workload.pods_replaced = workload.total_pods - kept
    workload.ready = min(sum(pod.is_ready for pod in workload.pods), workload.pods_to_replace)
    workload.downtime = may_all_be_away(workload, options)


def is_evicted(workload: Workload) -> bool:
    """Return whether --evict is for a workload: a restart does not replace its Pods, or harms."""
    obj = workload.obj
    is_manual = is_paused(obj) or is_on_delete(obj) or not is_workload(workload.ref)
    return is_manual or is_degraded(workload)


def set_old_pods(workload: Workload, options: Options) -> None:
    """Set which Pods are to be replaced: old ones, and whatever their age those that lack one."""
    drifted = set(workload.drifted_pods)
    cutoff = options.cutoff_of(workload.ref)
    workload.old_pods = tuple(
        pod.name
        for pod in workload.pods
        if (pod.name in drifted or not options.only_drifted)
        and (
            pod.name in workload.lacking
            or (pod.created < cutoff and (pod.sidecars or options.include_missing))
        )
    )


def pods_lacking(workload: Workload, options: Options) -> tuple[str, ...]:
    """Return the Pods without a sidecar that others have, of those whose whole name is given.

    One of several init containers, which `istio-*` names, may take the place of another.
    """
    names = {sidecar.name for pod in workload.pods for sidecar in pod.sidecars}
    names &= set(options.sidecars)
    return tuple(
        pod.name
        for pod in workload.pods
        if names - {sidecar.name for sidecar in pod.sidecars}
        and all(map(has_template, workload.owners))
    )


def ask_about_lacking(cluster: Cluster, workloads: Sequence[Workload], options: Options) -> None:
    """Set the Pods that lack a sidecar, if a new Pod would get it."""
    for workload in workloads:
        workload.lacking = pods_lacking(workload, options)
    mixed = [workload for workload in workloads if workload.lacking]
    for workload, error in in_parallel(mixed, partial(ask_today, cluster, options)):
        names = {sidecar.name for sidecar in workload.sidecars} & set(options.sidecars)
        if error or names - unpacked(workload.view).keys():
            answer = short_reason(str(error)) if error else "a dry run does not return it"
            workload.message = f"{workload.shown_as_lacking}: {answer}"
            workload.lacking = ()
        workload.view = b""  # the plan was not compared with it


def in_rollout_order(workloads: Collection[Workload]) -> list[Workload]:
    """Return the workloads in rollout order: by state, serving ones with downtime later.

    Namespaces take turns to spread parallel rollouts across teams, each with its smallest first.
    """
    turns: Counter[tuple[str, bool, str]] = Counter()
    order = {}
    for workload in sorted(workloads, key=lambda workload: (workload.total_pods, workload.ref)):
        is_late = workload.downtime and workload.state is State.SERVING
        rank = (workload.state.value, is_late, workload.ref.namespace)
        turns[rank] += 1
        order[workload.ref] = (*rank[:2], turns[rank], workload.ref.namespace)
    return sorted(workloads, key=lambda workload: order[workload.ref])


def read_cluster(cluster: Cluster, options: Options) -> tuple[list[Workload], Scan]:
    """Return the workloads, some with a reason, also those without Pods, and what was seen."""
    log.info("scanning for Pods created before %s", format_time(options.cutoff))
    namespaces = namespaces_to_list(options)
    pods = cluster.items(CORE, "pods", namespaces, options.selector)
    owners, scan = read_pods(pods, options)
    found = find_workloads(cluster, owners, scan, options)
    needs_namespaces = options.exclude_annotation or options.confirm
    names = {workload.ref.namespace for workload in found if needs_namespaces}
    read = dict(in_parallel(names, cluster.namespace))
    serving = cluster.serving_pods(namespaces) if found else None
    for workload in found:
        namespace = workload.ref.namespace
        workload.namespace = read.get(namespace, {})
        workload.stamps = timestamps_of(workload.obj)
        template = dig(workload.obj, "spec.template")
        if "spec" in template:
            found_there = named_containers(template, options.sidecars)
            workload.in_template = share(frozenset(map(as_sidecar, found_there)))
        problems = [pod.problem for pod in workload.pods if pod.problem]
        workload.unhealthy_reason = problems[0] if problems else shortage_of(workload)
        names_of_pods = ((namespace, pod.name) for pod in workload.pods)
        if workload.unhealthy_reason:
            workload.state = State.UNHEALTHY
        elif serving is not None and serving.isdisjoint(names_of_pods):
            workload.state = State.NOT_SERVING
        if not workload.reason:
            workload.reason, workload.code = rule_to_skip(workload, options, OBJECT_RULES)
    return found, scan


def make_plan(cluster: Cluster, options: Options, progress: ProgressLine) -> Plan:
    """Read the cluster and return the plan."""
    found, scan = read_cluster(cluster, options)
    taken = [workload for workload in found if workload.pods and not workload.reason]
    if options.only_drifted:
        compare_all(cluster, taken, options, progress)
    else:
        ask_about_lacking(cluster, taken, options)
    planned = in_rollout_order([w for w in taken if is_planned(w, options)])
    places = {ref: place for place, ref in enumerate(options.plan or ())}
    planned.sort(key=lambda workload: places.get(workload.ref, 0))
    for workload in found:
        workload.left = why_left(workload, options)
    for workload in planned:
        workload.left = "in the plan"
    left_out = [w for w in found if w.reason and not not_named(w, options)]
    skips = [Skip(subject, w.reason, w.code) for w in left_out for subject in w.subjects]
    reasons = {w: why_unfinished(w, options) for w in found if w.left != "in the plan"}
    unfinished = {workload: reason for workload, reason in reasons.items() if reason}
    skips += [Skip(w.ref, reason, "unfinished") for w, reason in unfinished.items() if not w.reason]
    skips += not_needed(found, planned, skips, options)
    return Plan(
        workloads=planned,
        selected=min(math.ceil(options.max_rollouts.of(len(planned))), len(planned)),
        skips=sorted(skips),
        unfinished=unfinished,
        without_pods=sorted(
            Skip(w.ref, why_no_pods(w), "without_pods") for w in found if not (w.pods or w.reason)
        ),
        compared=in_rollout_order([w for w in taken if w.verdict is not Verdict.NOT_COMPARED]),
        found=[workload for workload in found if workload.pods],
        scan=scan,
    )


NEED_NO_ROLLOUT = (Verdict.NOT_COMPARED, Verdict.UP_TO_DATE, Verdict.NOT_INJECTED)


def not_needed(
    found: Iterable[Workload],
    planned: Iterable[Workload],
    skips: Iterable[Skip],
    options: Options,
) -> Iterator[Skip]:
    """Yield the workloads of a plan file that need no rollout anymore, or are not found."""
    known = {workload.ref for workload in planned} | {skip.subject for skip in skips}
    having = {workload.ref: workload.verdict for workload in found if workload.pods}
    for ref in options.plan or ():
        if ref not in having and ref not in known:
            reason = (
                "does not exist, has no Pods with the sidecar, or your options do not select it"
            )
            yield Skip(ref, reason, "not_found")
        elif ref not in known and having[ref] in NEED_NO_ROLLOUT:  # others are listed by verdict
            yield Skip(ref, "needs no rollout anymore", "up_to_date")


def is_planned(workload: Workload, options: Options) -> bool:
    """Return whether a workload is rolled out. If not, set the reason, if a person wants it."""
    set_plan(workload, options)
    if workload.method is Method.ATTACH:
        return True
    is_drifted = workload.verdict in (Verdict.DRIFTED, Verdict.MISSING)
    is_candidate = is_drifted or not options.only_drifted
    if not (options.only_drifted or workload.old_pods or workload.message):
        return False  # all its Pods were created after the cutoff
    rules = OBJECT_RULES  # a dry run may tell more
    if is_candidate:
        rules = (*OBJECT_RULES, kind_not_selected, *ROLLOUT_RULES)
    reason, workload.code = rule_to_skip(workload, options, rules)
    workload.reason = f"{workload.verdict.value}, but {reason}" if is_drifted and reason else reason
    if reason or not is_candidate:
        return False
    has_view = bool(workload.view)
    return not (has_view and missing_sidecars(workload, unpacked(workload.view), options))


def why_left(workload: Workload, options: Options) -> str:
    """Return why Pods of a workload are not up to date; empty: they are."""
    words = {
        Verdict.UP_TO_DATE: "",
        Verdict.NOT_INJECTED: "",
        Verdict.DRIFTED: "drifted",
        Verdict.MISSING: "drifted",
        Verdict.REJECTED: "rejected",
    }
    if workload.verdict in words:
        return words[workload.verdict]
    return next((word for rule, word in LEFT.items() if rule(workload, options)), "not checked")


def lefts_of(
    pods: Sequence[LivePod], workload: Workload
) -> Mapping[str, tuple[str, Collection[str]]]:
    """Return why Pods of a workload are not up to date, by name, and which of their containers."""
    if workload.verdict in (Verdict.UP_TO_DATE, Verdict.DRIFTED, Verdict.MISSING):
        drifted = compare_pods(pods, workload)[0]
        replaced: set[str] = set(workload.old_pods)
        if workload.method is not Method.IN_PLACE:
            replaced -= set(pods_below_partition(workload))
        left = workload.left or "drifted"
        return {
            name: ("drifted" if left == "in the plan" and name not in replaced else left, names)
            for name, names in drifted.items()
        }
    found = {}
    for pod in pods if workload.left else ():
        left = workload.left
        if pod.ends and left not in NOT_AUDITED:
            left = "Pod of a Job" if workload.ref.group == "batch" else "runs to completion"
        found[pod.name] = left, {sidecar.name for sidecar in pod.sidecars}
    return found


def why_no_pods(workload: Workload) -> str:
    reason = failure_condition(workload.obj)
    return "no Pods since its last rollout" + (f": {short_reason(reason)}" if reason else "")


# 10. Comparing: what a workload's Pods would be like if they were created now --------------------


CONTROLLER_LABELS = (
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "apps.kubernetes.io/pod-index",
    "statefulset.kubernetes.io/pod-name",
)


TOKEN_VOLUME = "kube-api-access-[a-z0-9]{5}"  # each Pod has its own name for it
# Annotations of this command, of kubectl rollout restart, and of admission about itself
BOOKKEEPING = re.compile(
    r".*\.rollout\.(timestamp|reason|revision|by)|kubectl\.kubernetes\.io/restartedAt"
    r"|kubernetes\.io/limit-ranger"
)
REFERENCES = re.compile(  # paths below which there are only names, such as that of a Secret
    r"volume(s|Mounts)\b(?!.*volumeAttributes)"
    r"|(.*\.)?(field|resourceField|fileKey|(configMap|secret)(Key)?)Ref(\.|$)"
)


def pod_to_create(workload: ObjectRef, obj: Json, sample: Json) -> Json:
    """Return the Pod that the workload's controller would create from its template now.

    Injectors read more than the template: Istio takes the workload's name from generateName,
    the controller reference and the label pod-template-hash. These come from a live Pod; nothing
    else does, because an injector skips a Pod that has its sidecar.
    """
    template = obj["spec"]["template"]
    live = sample["metadata"]
    spec = without(template["spec"], "nodeName")
    if workload.kind == "StatefulSet":  # its controller adds claims, hostname and subdomain
        volumes = {volume["name"]: volume for volume in dig(spec, "volumes")}
        for name in map(name_of, dig(obj, "spec.volumeClaimTemplates")):
            claim = {"claimName": f"{name}-{live['name']}"}
            volumes[name] = {"name": name, "persistentVolumeClaim": claim}
        spec |= {
            "volumes": [*volumes.values()],
            "hostname": live["name"],
            "subdomain": obj["spec"].get("serviceName", ""),
        }
    metadata = {
        **only(dig(template, "metadata"), ("annotations", "finalizers")),
        "labels": dig(template, "metadata.labels") | only(dig(live, "labels"), CONTROLLER_LABELS),
        "generateName": live.get("generateName") or f"{workload.name}-",
        "ownerReferences": [
            without(reference, "blockOwnerDeletion")
            for reference in dig(live, "ownerReferences")
            if reference.get("controller")
        ],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


USES = ("volumeMounts", "volumeDevices")  # of volumes


def sidecar_parts(pod: Json, names: Names) -> Json:
    """Return the named sidecars of a Pod by name: kind, container, and the volumes it uses."""
    parts = {}
    for kind, container in named_containers(pod, names):
        used = {use["name"] for key in USES for use in dig(container, key)}
        found = [
            volume
            for volume in dig(pod, "spec.volumes")
            if volume["name"] in used and not re.fullmatch(TOKEN_VOLUME, volume["name"])
        ]
        parts[container["name"]] = [kind, container, found]
    return parts


def plain_json(value: Any) -> str:
    """Return the JSON of a value, with the same name for the volume of a token in all Pods."""
    return re.sub(f'"name": "{TOKEN_VOLUME}"', '"name": "kube-api-access"', json.dumps(value))


def view_of(pod: Json, names: Names) -> bytes:
    """Return the named sidecars of a Pod and the volumes they mount, in normal form, packed.

    The views of two Pods are equal if and only if nothing differs. The name and UID of a
    Deployment's ReplicaSet are no difference: each rollout creates another one, and the
    OpenTelemetry operator writes both into an environment variable.
    """
    text = plain_json(sidecar_parts(pod, names))
    template_hash = dig(pod, "metadata.labels").get("pod-template-hash", "\0")
    for reference in dig(pod, "metadata.ownerReferences"):
        if reference["name"].endswith(f"-{template_hash}"):
            text = text.replace(reference["name"], "REPLICASET").replace(reference["uid"], "UID")
    return normal_view(text)


def revision_of(workload: Workload) -> str:
    """Return 12 hex digits that identify what is injected today; empty if that is not known.

    Without the values that differ in each new Pod.
    """
    if not workload.view:
        return ""
    view = unpacked(workload.view)
    for *parents, last in workload.ignored:
        found = view
        for key in parents:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, dict):
            found.pop(last, None)
    return hashlib.sha256(json.dumps(view, sort_keys=True).encode()).hexdigest()[:12]


@functools.lru_cache(maxsize=4096)
def normal_view(text: str) -> bytes:
    """Return the JSON of view_of in normal form. Cached: most Pods of a workload are equal."""
    sidecars = json.loads(text, object_hook=without_empty).items()
    return packed({name: normal_container(*parts) for name, parts in sidecars})


def without_empty(fields: Json) -> Json:
    """Return an object without empty fields, which the API server does not always leave out."""
    return {key: value for key, value in fields.items() if value not in (None, {}, [], "")}


def normal_container(kind: str, container: Json, volumes: Sequence[Json]) -> Json:
    """Return a container in which lists with keys are dicts, and equal values are equal."""
    form = without(container, "name")
    if kind == NATIVE:  # by its restartPolicy
        del form["restartPolicy"]
    return form | {
        "position": kind,
        "resources": {"limits": {}, "requests": {}} | dig(form, "resources"),
        "env": normal_variables(dig(form, "env")),
        "ports": {
            f"{port['containerPort']}/{port.get('protocol', 'TCP')}": without(port, "protocol")
            for port in dig(form, "ports")
        },
        "volumeMounts": {mount["mountPath"]: mount for mount in dig(form, "volumeMounts")},
        "volumes": {volume["name"]: normal_volume(volume) for volume in volumes},
    }


def normal_variables(variables: Iterable[Json]) -> Json:
    """Return environment variables by name: text, its JSON, or where it comes from.

    Their order counts only where a value has $(VAR), which expands to an earlier variable.
    """
    found: Json = {}
    for variable in variables:
        source = dig(variable, "valueFrom")
        value = variable.get("value", "")
        used = re.findall(r"\$\(([^)]+)\)", value)
        form = {"from": source} if source else parsed_json(value)
        earlier = [name for name in used if name in found]
        found[variable["name"]] = {"value": form, "expands": earlier} if earlier else form
    return found


def parsed_json(text: str) -> Any:
    """Return the value of a text that is a JSON object or list; any other text as it is.

    What is very deep stays a text: nobody reads it, and it may exhaust the stack.
    """
    depths = itertools.accumulate((c in "{[") - (c in "}]") for c in text)
    if text.strip()[:1] in ("{", "[") and max(depths) <= 32:
        with suppress(ValueError):
            return json.loads(text)
    return text


def normal_volume(volume: Json) -> Json:
    """Return a volume's definition; the claim of a StatefulSet's Pod has the Pod's name in it."""
    form = without(volume, "name")
    claim = dig(form, "persistentVolumeClaim")
    if claim and claim["claimName"].startswith(f"{volume['name']}-"):
        claim["claimName"] = f"{volume['name']}-(Pod)"
    return form


def resized_containers(pod: Json) -> tuple[str, ...]:
    """Return the containers whose resources were changed in place, by a person or autoscaler.

    managedFields tell: an entry of the subresource `resize` with keys like k:{"name":"app"}.
    """
    entries = dig(pod, "metadata.managedFields")
    resizes = [entry for entry in entries if entry.get("subresource") == "resize"]
    return tuple(sorted(set(re.findall(r'k:\{"name":"([^"]+)"\}', str(resizes)))))


def find_differences(
    current: Any, expected: Any, path: tuple[str, ...] = ()
) -> Iterator[Difference]:
    """Yield where two normal forms differ, as deep inside as possible; with secrets, see shown."""
    if json.dumps(current) == json.dumps(expected):
        return
    if isinstance(current, dict) and isinstance(expected, dict):
        for key in sorted(current.keys() | expected.keys()):
            yield from find_differences(current.get(key), expected.get(key), (*path, key))
    elif isinstance(current, list) and isinstance(expected, list):
        before, after = (
            {json.dumps(word): word for word in hide_flags(words)} for words in (current, expected)
        )
        found = [Difference(path, before[key], None) for key in before if key not in after]
        found += [Difference(path, None, after[key]) for key in after if key not in before]
        yield from found or [Difference(path, current, expected)]  # in another order
    else:
        if len(path) == 1:  # a whole container
            current, expected = (
                form and only(form, ("image", "position")) for form in (current, expected)
            )
        yield Difference(path, current, expected)


def shown(difference: Difference) -> Difference:
    """Return a difference as it may be shown: without secrets."""
    path, current, expected = difference
    return Difference(path, redacted(current, path), redacted(expected, path))


def hide_flags(words: list[Any]) -> list[Any]:
    """Return a command line in which `--password x` is `--password=x`, so that x is redacted."""
    joined: list[Any] = []
    for word in words:
        flag = str(joined[-1]) if joined else ""
        if re.fullmatch(r"-[\w.-]+", flag) and is_secret(flag) and not str(word).startswith("--"):
            joined[-1] = f"{flag}={word}"
        else:
            joined.append(word)
    return joined


def redacted(value: Any, path: Names) -> Any:
    """Return a value without secrets, by the names of settings and by what they look like."""
    if isinstance(value, dict):
        header = str(value.get("name"))  # or another setting with a name and a value
        return {
            key: redacted(inner, (*path, header if key == "value" else key))
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [redacted(item, path) for item in hide_flags(value)]
    place = ".".join(path[1:])
    if value and not REFERENCES.match(place) and any(map(is_secret, path[2:])):
        return REDACTED
    if not isinstance(value, str) or place == "image":  # secret-agent:1.2 is none
        return value
    flag = "".join(re.findall(r"^-+[\w.-]+=", value))
    if is_secret(flag):
        return f"{flag}{REDACTED}"
    form = parsed_json(value[len(flag) :])
    if not isinstance(form, str):
        return f"{flag}{json.dumps(redacted(form, path))}"
    return redact_setting(value)


def other_parts(pod: Json, names: Names) -> Json:
    """Return what is outside a Pod's view, as `container x` and `volume x`, in normal form.

    A volume counts unless only named containers mount it.
    """
    pod = json.loads(plain_json(pod), object_hook=without_empty)
    viewed = [volume for *_, found in sidecar_parts(pod, names).values() for volume in found]
    parts: Json = {}
    used = set()
    for kind, container in containers_of(pod):
        if not matches(container["name"], names):
            word = "container" if kind == REGULAR else "init container"
            parts[f"{word} {container['name']}"] = normal_container(kind, container, [])
            used |= {use["name"] for key in USES for use in dig(container, key)}
    for volume in dig(pod, "spec.volumes"):
        is_other = volume not in viewed or volume["name"] in used
        if is_other and volume["name"] != "kube-api-access":
            parts[f"volume {volume['name']}"] = normal_volume(volume)
    return parts


def other_changes(live: Json, expected: Json, names: Names) -> Names:
    """Return what else would differ in the Pod.

    Annotations that only the live Pod has were added later, and do not count.
    """
    before, after = other_parts(live, names), other_parts(expected, names)
    changed = [part for part in {**before, **after} if before.get(part) != after.get(part)]
    today, now = (  # Istio copies the containers of a gateway into one, with such a name
        {key: re.sub(TOKEN_VOLUME, "", value) for key, value in annotations_of(pod).items()}
        for pod in (expected, live)
    )
    added = today.items() - now.items()
    notes = [f"annotation {name}" for name, _ in added if not BOOKKEEPING.fullmatch(name)]
    return sorted(changed + notes)


CONSTANT = {"image", "command", "args"}  # of containers: an injector gives each Pod the same


def changed_at(config: Json) -> datetime:
    """Return when a ConfigMap or Secret last changed, by the managedFields that own its data.

    An entry without a time says nothing.
    """
    created = config["metadata"]["creationTimestamp"]
    times = [
        entry.get("time", created)
        for entry in dig(config, "metadata.managedFields")
        if dig(entry, "fieldsV1").keys() & {"f:data", "f:binaryData", "f:stringData"}
    ]
    return parse_time(max([created, *times]))


def configs_of(pod: Json, namespace: str, options: Options) -> dict[ObjectRef, bool]:
    """Return the ConfigMaps and Secrets of the named sidecars, and whether each is required."""
    found: dict[ObjectRef, bool] = defaultdict(bool)
    ignored = ("kube-root-ca.crt", *options.ignore_config)
    for kind, reference in config_references(list(sidecar_parts(pod, options.sidecars).values())):
        name = reference.get("name") or reference.get("secretName", "")
        if not matches(name, ignored):
            found[ObjectRef(kind, namespace, name)] |= not reference.get("optional")
    return found


def config_references(value: Any) -> Iterator[tuple[str, Json]]:
    """Yield the references to ConfigMaps and Secrets inside containers and volumes."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        found = re.fullmatch("(configMap|secret)((Key)?Ref)?", str(key))
        if found and isinstance(inner, dict):
            yield "Secret" if found[1] == "secret" else "ConfigMap", inner
        if isinstance(inner, (dict, list)):
            yield from config_references(inner)


GENERATED = "<different in each Pod>"


@functools.lru_cache(maxsize=4096)
def sidecar_differences(
    live: bytes, expected: bytes, resized: Names, ignored: Collection[Names]
) -> dict[str, Difference]:
    """Return what differs between two views by its JSON, except values at ignored paths, and
    resources that were changed in place.

    Cached: many workloads have the same views.
    """
    if live == expected:
        return {}
    found = {}
    for path, *values in find_differences(unpacked(live), unpacked(expected)):
        if path in ignored:  # if it is in both, only its value differs
            values = [None if value is None else GENERATED for value in values]
        is_resized = path[0] in resized and path[1:2] == ("resources",)
        if not is_resized and values[0] != values[1]:
            difference = Difference(path, *values)
            found[json.dumps(difference)] = difference
    return found


def compare_pods(
    pods: Sequence[LivePod], workload: Workload
) -> tuple[dict[str, Collection[str]], Sequence[Difference]]:
    """Return the Pods that differ from what would be created today, or are older than its
    configuration, by name with the names of their drifted containers, and all differences."""
    drifted: dict[str, Collection[str]] = {}
    distinct: dict[str, Difference] = {}
    for pod in sorted(pods, key=lambda pod: pod.view):
        found = sidecar_differences(pod.view, workload.view, pod.resized, workload.ignored)
        distinct |= found
        if found:
            drifted[pod.name] = {difference.path[0] for difference in found.values()}
    for config, changed in workload.config_changes.items():
        older = [pod for pod in pods if pod.created < changed and pod.sidecars]
        if older:
            age = (changed - min(pod.created for pod in older)).total_seconds()
            text = f"changed {human_duration(age)} after the oldest Pod was created"
            distinct[str(config)] = Difference((str(config),), None, text)
            drifted |= {pod.name: {found.name for found in pod.sidecars} for pod in older}
    return dict(sorted(drifted.items())), list(distinct.values())


def differences_of(
    workload: Workload, pods: Iterable[Json], options: Options
) -> Sequence[Difference]:
    """Return how Pods differ from what would be injected today; nothing without --only-drifted."""
    if not options.only_drifted:
        return ()
    return compare_pods([live_pod(pod, options) for pod in pods], workload)[1]


def only_images(differences: Sequence[Difference], view: bytes) -> bool:
    """Return whether only images differ, of containers that run as long as their Pod.

    `view` has the sidecars that would be injected today.
    """
    today = stored_object(view)
    return bool(differences) and all(
        difference.path[1:] == ("image",) and today[difference.path[0]]["position"] != INIT
        for difference in differences
    )


def compare(
    workload: Workload,
    error: ApiError | None,
    last_changes: Mapping[ObjectRef, datetime | ApiError],
    options: Options,
) -> None:
    """Set the verdict: do the Pods agree with what would be created today?"""
    for config, is_required in sorted(workload.configs.items()):
        changed = last_changes[config]
        if isinstance(changed, datetime):
            workload.config_changes = {**workload.config_changes, config: changed}
        elif changed.status != 404:
            error = error or ApiError(0, f"cannot read {config}: {changed}")
        elif is_required:
            error = error or ApiError(400, f"would not start: {config} does not exist")
    if error:
        workload.verdict = verdict_on(error)
        workload.message, workload.causes = str(error), error.causes
        workload.differences = workload.drifted_pods = ()
        return
    drifted, workload.differences = compare_pods(workload.pods, workload)
    workload.drifted_pods = tuple(drifted)
    lacking = pods_lacking(workload, options)
    workload.lacking = [name for name in lacking if name in workload.drifted_pods]
    if workload.differences:
        workload.verdict = Verdict.DRIFTED if workload.sidecars else Verdict.MISSING
    else:
        workload.verdict = Verdict.UP_TO_DATE if workload.sidecars else Verdict.NOT_INJECTED


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
    inconclusive = 'exceeded quota|does not support dry run|cannot create resource "pods"'
    return bool(re.search(inconclusive, str(error)))


def compare_all(
    cluster: Cluster, workloads: Sequence[Workload], options: Options, progress: ProgressLine
) -> None:
    """Set the verdicts: one dry run per workload, one read per ConfigMap or Secret.

    If the first dry runs all time out, the others are not tried.
    """
    errors: dict[Workload, ApiError | None] = {}
    timeouts = 0
    for workload, error in in_parallel(workloads, partial(ask_today, cluster, options)):
        errors[workload] = error
        timeouts += error is not None and error.is_timeout
        progress.show(f"Comparing: {len(errors)} of {len(workloads)} workloads")
        if len(errors) == timeouts == REQUESTS_AT_A_TIME:
            text = "the first %d dry runs timed out; the remaining workloads are not compared"
            log.warning(text, timeouts)
            break
    progress.show("")
    configs = {config for workload in workloads for config in workload.configs}
    last_changes = dict(in_parallel(configs, cluster.last_change))
    for workload in workloads:  # those that were not asked have the last error
        compare_or_not(workload, errors.get(workload, error), last_changes, options)
    drifted = [workload for workload in workloads if workload.differences]
    by_paths = group_by(drifted, lambda workload: frozenset(d.path for d in workload.differences))
    # One is asked about again for all that differ in the same paths, unless its answers differ.
    groups = [sorted(group, key=lambda w: -len(w.pods)) for group in by_paths.values()]
    again = partial(ask_twice, cluster, options)
    asked = dict(in_parallel((group[0] for group in groups), again))
    others = [workload for group in groups if group[0].ignored for workload in group[1:]]
    asked |= dict(in_parallel(others, again))
    for group in groups:
        for workload in group:
            compare_or_not(workload, asked.get(workload, asked[group[0]]), last_changes, options)


def compare_or_not(workload: Workload, *parts: Any) -> None:
    """Set the verdict, whatever goes wrong: the others can be compared all the same."""
    try:
        compare(workload, *parts)
    except Exception as error:
        log.debug("cannot compare", exc_info=True, extra={"workload": str(workload.ref)})
        workload.verdict, workload.message = Verdict.UNKNOWN, f"unexpected error: {error!r}"


def ask_twice(cluster: Cluster, options: Options, workload: Workload) -> ApiError | None:
    """Ask again what would be created for a workload, for another one of its Pods if it has any.

    Set the paths that have another value in each new Pod, or return why that is not known.
    """
    again = replace(workload)
    sample = name_of(unpacked(workload.sample))
    other = next((pod.name for pod in workload.pods if pod.name != sample), "")
    error = ask_today(cluster, options, again, other)
    if error:
        return error
    found = find_differences(unpacked(workload.view), unpacked(again.view))
    workload.ignored = frozenset(difference.path for difference in found)
    always = {difference.path for difference in compare_pods(workload.pods, again)[1]}
    always &= {difference.path for difference in workload.differences}
    odd = [
        f"{section_text(path[1:]) or 'container'} of {path[0]}"
        for path in sorted(workload.ignored)
        if not {path, path[:1]} & always or not CONSTANT.isdisjoint(path[1:2])
    ]
    if odd:
        text = f"the injector gave two different answers ({join_words(odd)})"
        return ApiError(200, f"{text}: a random value, or it is being upgraded")
    return None


def ask_today(
    cluster: Cluster, options: Options, workload: Workload, other: str = ""
) -> ApiError | None:
    """Set what would be created for a workload today, or return why that is not known.

    `other` is the name of a Pod to take as an example, in place of the first.
    """
    names = options.sidecars
    try:
        live = cluster.pod_named(workload.ref.namespace, other) if other else {}
        sample = live or unpacked(workload.sample)
        obj = with_template(cluster, workload)
        pod = cluster.pod_today(workload, obj, sample)
        workload.view = view_of(pod, names)
        workload.other_changes = other_changes(sample, pod, names)
        if options.include_config:
            workload.configs = configs_of(pod, workload.ref.namespace, options)
    except ApiError as error:
        return error
    except Exception as error:
        return ApiError(200, f"unexpected response to the dry run: {error!r}")
    return None


def with_template(cluster: Cluster, workload: Workload) -> Json:
    """Return the object whose template a workload's Pods come back from. ApiError if unknown."""
    obj = workload.obj
    owner, *others = workload.owners
    if is_workload(workload.ref) and not is_paused(obj):
        return obj
    if others:
        raise ApiError(200, f"its Pods belong to {len(others) + 1} {owner.kind}s")
    if workload.ref.kind == "Deployment":  # paused
        obj = cluster.workload(owner)
    if "spec" not in dig(obj, "spec.template"):
        raise ApiError(200, f"the Pod template of {owner.kind} ({owner.group}) cannot be read")
    return obj


# 11. Rolling out: one workload, in a worker ------------------------------------------------------

KUBECTL_GRACE = 60.0  # seconds beyond its timeout: it may be held up by a lost connection
POLL = 0.2  # seconds until a signal is noticed
SETTLE = 10.0  # seconds until what kubectl calls a success must be seen in the Pods
SOAK_EVERY = 5.0  # seconds between looks at new Pods
CONFLICTS = 20  # its status changes a workload's resource version, too

RECREATED = "was deleted and recreated during its rollout"
CHECK_INJECTOR = "check what injects it"
TIME_IS_UP = "--max-duration reached"
TIMEOUT_TEXT = "timed out waiting for the condition"  # of kubectl rollout status
DEADLINE_TEXT = "exceeded its progress deadline"
DID_NOT_START = "a sidecar did not start"
PAUSED = "paused during its rollout; run `kubectl rollout resume`"
STUCK_FOR = {  # seconds that a new Pod is not ready because of a named sidecar
    "InvalidImageName": 0.0,
    "ErrImageNeverPull": 0.0,
    "CreateContainerConfigError": 10.0,  # a controller may be about to create what is missing
    "ErrImagePull": 60.0,
    "ImagePullBackOff": 60.0,
    "CrashLoopBackOff": 60.0,
}


def follow(
    command: Sequence[str], seconds: float, stop: Callable[[], Any], tell: Tell, env: Any = None
) -> tuple[int | None, str]:
    """Run a command; return its exit code (None: it took too long) and its last line of output.

    If it cannot run, that is 1, and why. Pass each line to `tell` as it arrives. The command runs
    in a session of its own: Ctrl-C is for this program. StoppedWaiting if `stop` returns true.
    """
    deadline = time.monotonic() + seconds
    last = ""
    unfinished = b""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
    except OSError as error:  # for example too many processes; the workload was patched
        return 1, f"cannot run {command[0]}: {innermost_cause(error)}"
    with child.stdout as output:  # type: ignore[union-attr]
        os.set_blocking(output.fileno(), False)
        try:
            while True:
                code = child.poll()  # first: what it has written by now is read below
                data = output.read(65536) or b""
                *lines, unfinished = (unfinished + data).split(b"\n")
                for line in lines if code is None or data else [*lines, unfinished]:
                    text = redact_text(line.decode("utf-8", "replace").strip())
                    if text not in ("", last):  # kubectl repeats itself
                        last = text
                        tell(text)
                if code is not None and not data:
                    return code, last
                if stop():
                    raise StoppedWaiting
                if time.monotonic() > deadline:
                    return None, last
                with suppress(subprocess.TimeoutExpired):
                    child.wait(0 if data else POLL)
        finally:
            if child.poll() is None:
                # It may have just ended, or belong to somebody else.
                with suppress(OSError, subprocess.TimeoutExpired):
                    os.killpg(child.pid, signal.SIGKILL)  # and what it started
                    child.wait(1)


class Signals:
    """SIGINT, SIGTERM and SIGHUP: the first starts no new rollouts, the second stops waiting.

    Before the rollouts, a signal ends the program. From then on, the handler only takes a note: one
    that does more could come in the middle of what it interrupts, such as a lock.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        show = sys.unraisablehook  # where nothing can be raised, as in the end of an object
        sys.unraisablehook = lambda error: error.exc_type is Interrupted or show(error)
        self.stop_reason = ""  # why nothing else may start; set by the main thread
        self.ends_at = math.inf  # monotonic; of --max-duration
        self.may_interrupt = True
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A shell's & and nohup let programs ignore some of them.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.note)

    def note(self, number: int, frame: object) -> None:
        self.received.append(number)
        if self.may_interrupt and len(self.received) == 1:  # another one would hit its handling
            raise Interrupted

    @property
    def exit_code(self) -> int:
        return 128 + self.received[0] if self.received else 0

    def reason_to_stop(self) -> str:
        """Return why no rollout may start anymore; empty: it may."""
        if self.received:
            return "interrupted"
        is_over = time.monotonic() >= self.ends_at
        return self.stop_reason or (TIME_IS_UP if is_over else "")

    def require_running(self, more: str = "") -> None:
        """Raise UnsuccessfulError if no rollout may start anymore."""
        reason = self.reason_to_stop()
        if reason:
            message = f"{reason}; {more}" if more else reason
            raise UnsuccessfulError(Outcome.NOT_STARTED, message)

    def is_second(self) -> bool:
        """Return whether nothing may be waited for anymore."""
        return len(self.received) > 1

    def wait(self, seconds: float, until: Callable[[], object] = bool) -> None:
        """Wait, at most until a condition is true. StoppedWaiting at the second signal."""
        end = time.monotonic() + seconds
        while not until():
            if self.is_second():
                raise StoppedWaiting
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, POLL))


CLOSED = "gate closed"


class Gate:
    """A command that decides whether rollouts may start. Workers run it, one at a time."""

    VALID_FOR = 10.0  # seconds: a result counts for all rollouts that may start within them
    TIMEOUT = 60.0

    def __init__(self, command: Sequence[str], signals: Signals) -> None:
        self.command = command
        self.signals = signals
        self.lock = threading.Lock()
        self.reason = ""  # why it is closed: the last line of output
        self.valid_until = -math.inf  # monotonic

    @property
    def status(self) -> str:
        return f"{CLOSED}: {self.reason}" if self.reason else ""

    def wait(self, tell: Tell) -> None:
        """Wait until a rollout may start. UnsuccessfulError if none may anymore."""
        told = ""
        while self.command:
            with self.lock:  # at a signal, the command in progress is ended
                self.signals.require_running(self.status)
                if self.is_open():
                    return
            if self.status != told:
                told = self.status
                tell(told)
            time.sleep(POLL)

    def is_open(self) -> bool:
        """Return whether a rollout may start now. If that is not known, find out."""
        if time.monotonic() >= self.valid_until:
            with suppress(StoppedWaiting):
                self.run()
        return time.monotonic() < self.valid_until and not self.reason

    def run(self) -> None:
        """Run the command, and open or close the gate."""
        code, last = follow(self.command, self.TIMEOUT, self.signals.reason_to_stop, str)
        reason = ""
        if code is None:
            reason = f"timed out after {self.TIMEOUT:g}s"
        elif code:
            reason = shorten(last, 200) or f"exit code {code}"
        self.valid_until = time.monotonic() + self.VALID_FOR
        if reason != self.reason:
            self.reason = reason
            log.warning("%s", self.status or "gate open")


class Looks:
    """Looks at a workload and its Pods while kubectl waits, in a thread: a request may hang.

    A look may end the waiting, and never calls a rollout a success.
    """

    AFTER = 3.0  # seconds
    EVERY = 5.0

    def __init__(self, rollout: Rollout, workload: Workload, attempt: Attempt, tell: Tell) -> None:
        self.rollout = rollout
        self.workload = workload
        self.attempt = attempt
        self.tell = tell
        self.reason = ""  # why to wait no longer
        self.stuck: dict[str, float] = {}  # UIDs of new Pods, and since when (monotonic)
        self.ended = threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def stop(self) -> bool:
        return bool(self.reason) or self.rollout.signals.is_second()

    def run(self) -> None:
        pause = self.AFTER
        while not self.reason and not self.ended.wait(pause):
            pause = self.EVERY
            try:
                self.reason = self.look(CACHED) and self.look({})
            except Exception as error:  # the next look may succeed
                log.debug("cannot look: %r", error, extra={"workload": str(self.workload.ref)})

    def look(self, cached: Json) -> str:
        """Return why to wait no longer, and tell how far the rollout is."""
        rollout, ref = self.rollout, self.workload.ref
        obj = rollout.cluster.workload(ref, query=cached)
        if dig(obj, "metadata.uid") != dig(self.workload.obj, "metadata.uid"):
            return RECREATED
        if is_paused(obj):
            return PAUSED
        pods = not_terminating(rollout.cluster.pods_of(ref, obj, cached))
        new = list(filter(self.attempt.is_new, pods))
        ready = list(filter(is_ready, new))
        if len(rollout.lacking(self.workload, ready)[0]) < len(ready):
            rollout.proven.set()
        problem = next(filter(None, map(pod_problem, new)), "")
        total = count_of(counts_of(ref, obj)[0], "Pod")
        text = f"{len(new)} of {total} updated, {len(ready)} ready"
        if not self.ended.is_set():
            self.tell(f"{text}; {problem}" if problem else text)
        return DID_NOT_START if any(map(self.is_stuck, new)) else ""

    def is_stuck(self, pod: Json) -> bool:
        """Return whether a Pod is not ready because of a named sidecar, for long enough."""
        now, uid = time.monotonic(), uid_of(pod)
        if is_ready(pod):
            self.stuck.pop(uid, None)
            return False
        reasons = stuck_sidecars(pod, self.rollout.options)
        return any(
            now - self.stuck.setdefault(uid, now) >= STUCK_FOR.get(reason, math.inf)
            for reason in reasons.values()
        )


class Snapshot(NamedTuple):
    """A workload's Pods after a rollout."""

    pods: list[Json]  # all, also those that a partition keeps
    old: list[Json]  # still to be replaced
    new: list[Json]
    lacking: Sequence[Json] = ()  # of the new ones, those without a sidecar
    missed: str = ""  # `sidecar`, or also which one
    missing: int = 0  # how many it wants, but has not
    counts: PodCounts = PodCounts(0)


@dataclass(frozen=True)
class Rollout:
    """Rolls out workloads, one for each call of carry_out. All workers share it."""

    cluster: Cluster
    kubectl: Sequence[str]  # the command, with how to reach the cluster
    signals: Signals
    gate: Gate
    options: Options
    not_pulled: set[tuple[str, str]] = field(default_factory=set)  # namespaces and images
    # Whether a new Pod was seen ready with the sidecar; until then, one workload is in progress
    proven: threading.Event = field(default_factory=threading.Event)

    def carry_out(self, workload: Workload, tell: Tell, earlier: Result | None = None) -> Result:
        """Return the result, whatever happens. `earlier` is one that timed out, to check again."""
        started = time.monotonic() - (earlier.seconds if earlier else 0)
        try:
            if earlier:
                result = self.recheck(earlier, tell)
            else:
                self.gate.wait(tell)
                started = time.monotonic()
                result = METHODS[workload.method](self, workload, tell)
        except StoppedWaiting:
            result = earlier or self.interrupted(workload)
        except SkipError as reason:
            result = Result(workload, Outcome.SKIPPED, str(reason))
        except UnsuccessfulError as error:
            result = Result(workload, *error.args)
        except Exception as error:
            log.debug("rollout failed", exc_info=True, extra={"workload": str(workload.ref)})
            result = earlier or failure_of(workload, error)
        if result.outcome in FAILURES and result is not earlier and workload.unhealthy_reason:
            before = f"(unhealthy before the rollout: {workload.unhealthy_reason})"
            result = replace(result, message=f"{result.message} {before}")
        result = replace(result, seconds=seconds_since(started))
        if self.options.record_events and workload.is_begun and (earlier or not result.attempt):
            self.record_event(result)
        return result

    def record_event(self, result: Result) -> None:
        """Record what became of a workload, unless nothing may be written anymore."""
        if not self.signals.is_second():
            workload = result.workload
            parts = [described(result), result.message, reason_for(workload, self.options)]
            message = "; ".join(filter(None, parts))
            self.cluster.record_event(workload, message, result.outcome in FAILURES)

    def interrupted(self, workload: Workload) -> Result:
        """Return the result of a rollout that is no longer waited for."""
        words = ("rollout", "status") if workload.method.is_rollout else ("describe",)
        check = self.cluster.connection.kubectl_command(workload.ref, *words)
        return Result(workload, Outcome.INTERRUPTED, f"stopped waiting; check with: {check}")

    def restart(self, workload: Workload, tell: Tell) -> Result:
        """Check and patch a workload, wait for its rollout, and verify its Pods."""
        return self.wait_and_verify(workload, self.patch(workload), tell)

    def attach(self, workload: Workload, tell: Tell) -> Result:
        """Wait for a rollout that an earlier run began, and verify its Pods.

        SkipError if the template was changed since the plan.
        """
        self.read_ended(workload)
        obj = workload.obj
        if set(timestamps_of(obj)) != set(workload.stamps) or not is_unchanged(obj):
            raise SkipError("its Pod template was changed; rerun this command")
        attempt = patched_at(obj, last_restart(obj, self.options))
        return self.wait_and_verify(workload, attempt, tell)

    def wait_and_verify(self, workload: Workload, attempt: Attempt, tell: Tell) -> Result:
        """Wait for kubectl's verdict on a rollout, and verify its Pods."""
        workload.is_begun = True
        code, error = self.wait(workload, attempt, tell)
        if code == 0:
            return self.verify(workload, attempt, tell)
        return self.explain(workload, attempt, error or f"kubectl exited with {code}")

    def check(self, workload: Workload, obj: Json, is_same: bool) -> None:
        """Compare a workload with the plan again, by what is in the cluster now.

        `is_same`: its spec was checked already, and has not changed since. SkipError if it is no
        longer to be restarted, UnsuccessfulError if its Pods would not come back or would lose the
        sidecar.
        """
        options = self.options
        workload.obj = obj
        self.read_namespace(workload)
        require_not_skipped(workload, options, OBJECT_RULES)
        if set(timestamps_of(obj)) - set(workload.stamps):
            raise SkipError("already restarted by another run")
        if is_same:
            require_not_skipped(workload, options, ROLLOUT_RULES)
            return
        expected = self.ask_again(workload, obj, unpacked(workload.sample))
        self.set_pods(workload, self.pods_of(workload), isinstance(expected, dict))
        require_not_skipped(workload, options, ROLLOUT_RULES)
        self.require_possible(workload, expected, "patched")

    def read_namespace(self, workload: Workload) -> None:
        """Read the annotations of a workload's namespace again, if an option is about them."""
        if self.options.exclude_annotation:
            workload.namespace = self.cluster.namespace(workload.ref.namespace)

    def ask_again(self, workload: Workload, obj: Json, sample: Json) -> Json | ApiError:
        """Return the Pod that would be created now, or why it would be rejected."""
        try:
            expected = self.cluster.pod_today(workload, obj, sample)
        except ApiError as error:
            if error.status in UNAVAILABLE:  # which says nothing about the Pod
                raise
            workload.causes = error.causes
            require_not_skipped(workload, self.options, [being_deleted])
            return error
        if not missing_sidecars(workload, container_names(expected), self.options):
            workload.view = view_of(expected, self.options.sidecars)
        return expected

    def require_possible(self, workload: Workload, expected: Json | ApiError, verb: str) -> None:
        """Raise UnsuccessfulError if no Pods should be replaced now, by a dry run."""
        stop_reason = ""
        if isinstance(expected, ApiError):
            if is_inconclusive(expected):
                return
            problem = f"cannot create its Pods: {short_reason(str(expected))}"
        else:
            missing = missing_sidecars(workload, container_names(expected), self.options)
            if not missing:
                return
            hint = f"{CHECK_INJECTOR}, or use --only-drifted --allow-removal"
            problem = f"new Pods would not have the sidecar {join_words(missing)}; {hint}"
            if self.options.only_drifted:  # since the plan
                stop_reason = f"new Pods of {workload.ref} would not have the sidecar"
        raise UnsuccessfulError(Outcome.FAILED, f"not {verb}: {problem}", stop_reason)

    def set_pods(self, workload: Workload, pods: Iterable[Json], is_known: bool = True) -> None:
        """Set the Pods of a workload, and which of them are to be replaced now.

        `is_known`: whether a dry run has told what new Pods would get.
        """
        options = self.options
        workload.pods = [live_pod(pod, options) for pod in pods]
        workload.lacking = pods_lacking(workload, options) if is_known else ()
        if options.only_drifted:
            workload.drifted_pods = tuple(compare_pods(workload.pods, workload)[0])
        set_old_pods(workload, options)

    def patch(self, workload: Workload) -> Attempt:
        """Check the workload again and patch it, as it is now. SkipError if that is not needed.

        The patch includes the resourceVersion that was checked, so concurrent runs do not restart
        a workload twice, and a patch whose response was lost is recognized by its timestamp.
        """
        ref = workload.ref
        stamp = self.cluster.now().isoformat(timespec="microseconds")  # unique among runs
        checked: Json = {"": "none"}  # identifies its spec: the status changes, too
        for pause in itertools.islice(growing(0.05), CONFLICTS):
            obj = self.cluster.workload(ref)
            if stamp in template_annotations(obj).values():
                return patched_at(obj, stamp)
            spec = only(dig(obj, "metadata"), ("uid", "generation"))
            self.check(workload, obj, spec == checked)
            checked = spec
            self.signals.require_running()
            version = obj["metadata"].get("resourceVersion", "")
            annotations = self.annotations(workload, stamp)
            workload.is_begun = True
            try:
                return patched_at(self.cluster.patch_template(ref, annotations, version), stamp)
            except ApiError as error:
                workload.is_begun = error.status in (0, 502, 503, 504)
                if error.status == 409:
                    self.signals.wait(min(pause, 1.0), self.signals.reason_to_stop)
                    continue
                if error.status in (0, 404) or error.status >= 500:
                    with suppress(ApiError):  # then it is not known
                        obj = self.cluster.workload(ref)
                        if stamp in template_annotations(obj).values():
                            return patched_at(obj, stamp)
                if error.status in (0, 502, 503, 504):
                    text = f"it may have been restarted: {error}"
                    raise UnsuccessfulError(Outcome.FAILED, text, str(error)) from error
                if obj:  # else it is gone
                    raise
        text = f"not patched: gave up after {CONFLICTS} update conflicts"
        raise UnsuccessfulError(Outcome.FAILED, text)

    def annotations(self, workload: Workload, stamp: str) -> Labels:
        """Return the annotations that restart a workload.

        Operators remove annotations that they do not know, and prometheus-operator all but those
        of kubectl.kubernetes.io: that reverts the restart, or causes a second one.
        """
        if workload.controller:
            return {RESTARTED_AT: stamp}
        found = {
            "timestamp": stamp,
            "reason": reason_for(workload, self.options),
            "revision": revision_of(workload) if self.options.only_drifted else "",
            "by": self.cluster.connection.user,
        }
        prefix = f"{self.options.annotation_prefix}.rollout"
        return {f"{prefix}.{name}": value for name, value in found.items() if value}

    def wait(self, workload: Workload, attempt: Attempt, tell: Tell) -> tuple[int | None, str]:
        """Return kubectl's result, or 1 and why a look ended the waiting."""
        looks = Looks(self, workload, attempt, tell)
        try:
            return self.wait_for_kubectl(workload, looks.stop)
        except StoppedWaiting:
            if self.signals.is_second():
                raise
            return 1, looks.reason
        finally:
            looks.ended.set()

    def wait_for_kubectl(
        self, workload: Workload, stop: Callable[[], bool]
    ) -> tuple[int | None, str]:
        """Return kubectl's result. If it ends without one, run it again.

        While the API server is unavailable, that is until the rollout's timeout; else, for example
        if kubectl was killed, a few times. SkipError if the workload was deleted.
        """
        ref = workload.ref
        deadline = time.monotonic() + self.options.timeout
        attempts = 0
        for pause in growing(0.5):
            left = max(deadline - time.monotonic(), 1.0)
            code, text = self.rollout_status(ref, left, stop)
            if code is None:
                text = "kubectl did not exit within its timeout"
            elif code < 0:
                text = f"kubectl was terminated by signal {-code}"
            if code in (0, None) or is_unfinished(text) or left <= 1:
                break
            log.debug("kubectl ended without a result: %s", text, extra={"workload": str(ref)})
            with suppress(ApiError):  # unavailable: the result is unknown
                self.read_ended(workload)
                attempts += 1
            if attempts > RETRIES or is_paused(workload.obj):
                break
            self.signals.wait(random.uniform(0.5, 1.0) * pause)
        return code, text

    def read_ended(self, workload: Workload, retries: int | None = 0) -> None:
        """Read a workload after its rollout has begun. SkipError if it was deleted.

        UnsuccessfulError if it was created again, for example by `kubectl replace --force`: it may
        have adopted old Pods. That takes a moment.
        """
        uid = dig(workload.obj, "metadata.uid")
        # Not the others: the annotations of its template are our own by now.
        rules: list[Rule] = [gone, being_deleted]
        for _ in range(25):  # 5 seconds
            workload.obj = self.cluster.workload(workload.ref, retries=retries)
            if uid and dig(workload.obj, "metadata.uid") not in (uid, {}):
                raise UnsuccessfulError(Outcome.INCOMPLETE, RECREATED)
            if not reason_to_skip(workload, self.options, rules):
                return
            self.signals.wait(POLL)
        require_not_skipped(workload, self.options, rules)

    def rollout_status(
        self, ref: ObjectRef, seconds: float, stop: Callable[[], bool]
    ) -> tuple[int | None, str]:
        """Run `kubectl rollout status`, and log what it says; see follow."""
        words = ["rollout", "status", ref.argument, "--namespace", ref.namespace]
        command = [*self.kubectl, *words, "--timeout", f"{seconds:.3f}s"]
        env = {**os.environ, "KUBERC": "off"}  # which may change the defaults of options
        tell = partial(log.debug, "%s", extra={"workload": str(ref)})
        return follow(command, seconds + KUBECTL_GRACE, stop, tell, env)

    def explain(self, workload: Workload, attempt: Attempt, error: str) -> Result:
        """Return the result of a rollout that failed or timed out, with the reason in the cluster.

        SkipError if the workload was deleted.
        """
        outcome, message, stop_reason = Outcome.TIMED_OUT, error, ""
        counts = None
        with suppress(ApiError):  # if it is unavailable at first, the result is unknown
            self.read_ended(workload)
            if TIMEOUT_TEXT not in error:
                outcome = Outcome.FAILED
            snapshot = self.snapshot(workload, attempt)
            counts = snapshot.counts
            if snapshot.lacking:
                outcome, lost, stop_reason = outcome_of(workload, snapshot, ())
                message = f"{lost}; {error}"
            elif is_paused(workload.obj):
                return Result(workload, Outcome.INCOMPLETE, PAUSED, counts=counts)
            else:
                stop_reason = self.why_not_proven(workload, snapshot.new)
            message = "; ".join([message, *self.reasons(workload, snapshot)])
        is_final = outcome is not Outcome.TIMED_OUT and not is_unfinished(error)
        is_final |= outcome is Outcome.LOST_SIDECAR
        to_recheck = None if is_final else attempt
        return Result(workload, outcome, message, stop_reason, to_recheck, counts)

    def why_not_proven(self, workload: Workload, pods: Iterable[Json]) -> str:
        """Return why nothing else may start: sidecars do not start, and none has so far."""
        stuck = any(stuck_sidecars(pod, self.options) for pod in pods)
        is_first = stuck and not self.proven.is_set() and not workload.unhealthy_reason
        return f"new Pods of {workload.ref} do not start with their sidecar" if is_first else ""

    def reasons(self, workload: Workload, snapshot: Snapshot) -> list[str]:
        """Return why a rollout does not complete: by Pods, a condition, or an event."""
        obj = workload.obj
        pods = [*snapshot.new, *snapshot.old]
        pods.sort(key=lambda pod: not waiting_reason(pod))  # those that say most
        problems = list(filter(None, map(pod_problem, pods)))[:1]
        is_stuck = bool(pods) and any(stuck_containers(pods[0]))
        if is_stuck and dig(obj, "spec.podManagementPolicy") == "OrderedReady":
            # The controller waits for it, even if the template is fixed.
            name = name_of(pods[0])
            problems.append(f"delete Pod {name} once the cause is fixed")
        condition = failure_condition(obj)
        if not condition and snapshot.missing > 0:
            pods = list(filter(is_terminating, self.cluster.pods_of(workload.ref, obj)))
            waiting = ""
            if pods:
                waiting = f"Pod {name_of(pods[0])}{on_node(pods[0])} is still terminating"
            condition = self.cluster.latest_event(obj, "FailedCreate") or waiting
        return [*problems, *filter(None, [condition])]

    # Verification, whatever the method

    def pods_of(self, workload: Workload) -> list[Json]:
        """Return a workload's own Pods that are not terminating."""
        if is_workload(workload.ref):
            return not_terminating(self.cluster.pods_of(workload.ref, workload.obj))
        sample = unpacked(workload.sample)
        return [
            pod
            for owner in workload.owners
            for pod in not_terminating(
                self.cluster.pods_of(owner, self.cluster.owner(owner, sample))
            )
        ]

    def lacking(self, workload: Workload, pods: Sequence[Json]) -> tuple[list[Json], str]:
        """Return the Pods without a sidecar that they should have, and what that is."""
        missing = [missing_sidecars(workload, container_names(pod), self.options) for pod in pods]
        names = sorted(set(itertools.chain(*missing)))
        is_one = self.options.sidecars == names
        lacking = list(itertools.compress(pods, missing))
        return lacking, "sidecar" if is_one else f"sidecar {join_words(names, 'or')}"

    def snapshot(self, workload: Workload, attempt: Attempt) -> Snapshot:
        """Return the workload's Pods now. SkipError if it no longer exists."""
        pods = self.pods_of(workload)
        wanted = workload.total_pods  # of an owner that states no number, as before
        if has_template(workload.ref):
            self.read_ended(workload, retries=None)
            wanted = counts_of(workload.ref, workload.obj)[0]
        new = list(filter(attempt.is_new, pods))
        lacking, missed = self.lacking(workload, new)
        updated = [pod for pod in new if pod not in lacking]
        old = list(filter(attempt.is_old, pods))
        missing = max(wanted - len(pods), 0)
        # During a rollout there may be more Pods than are wanted: old ones that are replaced.
        kept = len(pods) - len(new) - len(old)
        counted = old[: max(wanted - kept - len(new), 0)]
        counts = PodCounts(
            matched=len(updated) + len(counted),
            updated=len(updated),
            ready=sum(map(is_ready, [*updated, *counted])),
            updated_and_ready=sum(map(is_ready, updated)),
            lost=len(lacking) + missing,
        )
        if counts.updated_and_ready:
            self.proven.set()
        return Snapshot(pods, old, new, lacking, missed, missing, counts)

    def verify(self, workload: Workload, attempt: Attempt, tell: Tell, cause: str = "") -> Result:
        """Return what the Pods say, and after --soak once more.

        `cause` is why some may not be updated.
        """
        since = self.cluster.now() + timedelta(seconds=1)  # the clock may be that late
        result, new = self.judge(workload, attempt, tell, cause, since)
        if result.outcome is not Outcome.SUCCEEDED or not self.options.soak:
            return result
        began = time.monotonic()
        outcome = Outcome.FAILED
        problem = self.soak(workload, attempt, new, tell)
        problem = problem and f"failed during the soak: {problem}"
        if self.signals.received and not problem:
            outcome = Outcome.INCOMPLETE
            duration = human_duration(self.options.soak)
            problem = f"soaked {seconds_since(began)}s of {duration}; not repeated on resume"
        result, _ = self.judge(workload, attempt, tell, cause, since)
        if not problem:
            return result
        message = "; ".join(filter(None, (result.message, problem)))
        if result.outcome not in (Outcome.SUCCEEDED, Outcome.INCOMPLETE):
            outcome = result.outcome
        return replace(result, outcome=outcome, message=message)

    def judge(
        self, workload: Workload, attempt: Attempt, tell: Tell, cause: str, since: datetime
    ) -> tuple[Result, list[Json]]:
        """Return what the Pods say, and the new ones; those created before `since` must be ready.

        Controllers and the kubelet may be a moment behind: it looks again for ten seconds.
        """
        deadline = time.monotonic() + SETTLE
        while True:
            try:
                snapshot = self.snapshot(workload, attempt)
                if snapshot.old and attempt.stamp:
                    stamps = template_annotations(workload.obj).values()
                    cause = "" if attempt.stamp in stamps else REVERTED
                judged = [pod for pod in snapshot.pods if created_at(pod) <= since]
                new = filter(attempt.is_new, judged)
                differences = differences_of(workload, new, self.options)
                found = outcome_of(workload, snapshot, differences, judged, cause)
            except ApiError as error:
                message = f"could not verify its Pods: {error}"
                return Result(workload, Outcome.INCOMPLETE, message), []
            is_final = found[0] is not Outcome.INCOMPLETE or cause == REVERTED
            if is_final or time.monotonic() > deadline:
                return Result(workload, *found, counts=snapshot.counts), snapshot.new
            tell(f"verifying: {found[1]}")
            self.signals.wait(0.5)

    def recheck(self, earlier: Result, tell: Tell) -> Result:
        """Return what became of a rollout that was not complete: it may have succeeded by now."""
        workload = earlier.workload
        code, error = self.rollout_status(workload.ref, 1.0, self.signals.is_second)
        self.read_ended(workload, retries=None)
        has_stuck = DID_NOT_START in earlier.message
        if earlier.attempt and is_unfinished(error):  # explain it as it is now
            return self.explain(workload, earlier.attempt, DID_NOT_START if has_stuck else error)
        if code != 0 or not earlier.attempt:
            return earlier
        late = self.verify(workload, earlier.attempt, tell)
        if late.outcome is not Outcome.SUCCEEDED:
            return late
        message = f"completed after the {self.options.timeout:g}s timeout"
        if earlier.outcome is Outcome.FAILED:
            cause = f"{DID_NOT_START} in time" if has_stuck else "its progress deadline"
            message = f"completed after {cause}"
        return replace(late, outcome=Outcome.COMPLETED_LATE, message=message)

    def soak(
        self, workload: Workload, attempt: Attempt, verified: Iterable[Json], tell: Tell
    ) -> str:
        """Watch the new Pods for --soak; return which one fails, or an empty text.

        That is one of which a container restarts, or that at two looks in a row is stuck or not
        ready any more. Pods that are replaced or deleted do not fail. After the time, it looks once
        more at one that was unready. A signal ends it.
        """
        deadline = time.monotonic() + (self.options.soak or 0)
        before = {uid_of(pod): pod for pod in verified}
        were_ready = {uid for uid, pod in before.items() if is_ready(pod)}
        unready: set[str] = set()
        left = math.inf
        while left > 0:
            left = deadline - time.monotonic()
            if left <= 0 and not unready:
                break
            next_look = time.monotonic() + (min(SOAK_EVERY, left) if left > 0 else SOAK_EVERY)
            while time.monotonic() < next_look and not self.signals.received:
                tell(f"soaking, {human_duration(max(deadline - time.monotonic(), 0))} left")
                pause = min(next_look - time.monotonic(), 1.0)
                self.signals.wait(pause, until=lambda: self.signals.received)
            if self.signals.received:
                break
            were_unready, unready = unready, set()
            with suppress(ApiError):  # the next look may succeed, if there is one
                for pod in filter(attempt.is_new, self.pods_of(workload)):
                    uid = uid_of(pod)
                    restart = restart_of(before.get(uid, {}), pod)
                    if restart:
                        return restart
                    if is_ready(pod):
                        were_ready.add(uid)
                    elif uid in were_unready:
                        return f"{pod_problem(pod) or name_of(pod)} (not ready)"
                    elif uid in were_ready or any(stuck_containers(pod)):
                        unready.add(uid)
        return ""


def reason_for(workload: Workload, options: Options) -> str:
    """Return the reason of a rollout for people: of a person, or what changes, without values."""
    if options.rollout_reason != DEFAULT_REASON:
        return options.rollout_reason
    images = [
        f"image {image_version(found.current)} -> {image_version(found.expected)}"
        for found in workload.differences
        if found.path[1:] == ("image",) and found.current and found.expected
    ]
    others = len(workload.differences) - len(images)
    more = f"{len(images) and 'other ' or ''}difference"
    parts = [*dict.fromkeys(images), *[count_of(others, more)] * bool(others)]
    text = f"{DEFAULT_REASON} {join_words(options.sidecars)}"
    return f"{text}: {', '.join(parts)}" if parts else text


def is_unfinished(text: str) -> bool:
    """Return whether a rollout that did not complete in time may still complete."""
    return any(words in text for words in (TIMEOUT_TEXT, DEADLINE_TEXT, DID_NOT_START))


NOUNS = {  # of each method, for the log
    Method.RESTART: "rollout",
    Method.ATTACH: "rollout",
    Method.EVICT: "eviction",
    Method.IN_PLACE: "image change",
}
LISTED_BY_REASON = (Outcome.NOT_STARTED, Outcome.SKIPPED, Outcome.DECLINED)


def described(result: Result) -> str:
    """Return `rollout succeeded in 3.2s`."""
    text = f"{NOUNS[result.workload.method]} {result.outcome.value}"
    return text if result.outcome in LISTED_BY_REASON else f"{text} in {result.seconds}s"


def growing(seconds: float) -> Iterator[float]:
    """Yield pauses that get longer, up to 5 seconds."""
    while True:
        yield min(seconds, 5.0)
        seconds *= 1.5


def seconds_since(started: float) -> float:
    """Return the seconds since a monotonic time, to a tenth."""
    return round(time.monotonic() - started, 1)


def restart_of(before: Json, pod: Json) -> str:
    """Return which container of a Pod has restarted since, and why; empty if none has."""
    counts = {status["name"]: status["restartCount"] for status in container_statuses(before)}
    for status in container_statuses(pod):
        name = status["name"]
        if status["restartCount"] > counts.get(name, 0):
            ended = dig(status, "lastState.terminated")
            reason = ended.get("reason", "unknown")
            code = f" (exit code {ended.get('exitCode')})" if reason == "Error" else ""
            return f"{name_of(pod)}: container {name} restarted: {reason}{code}"
    return ""


def patched_at(obj: Json, stamp: str) -> Attempt:
    """Return the attempt of a patch: new Pods have its stamp, or were created later.

    Others are old, except those that a partition keeps. managedFields have the time of the patch,
    by the API server's clock.
    """
    times = [
        entry["time"]
        for entry in dig(obj, "metadata.managedFields")
        if entry.get("manager") == FIELD_MANAGER and entry.get("time")
    ]
    patched = parse_time(max(times, default=stamp))

    def is_new(pod: Json) -> bool:
        return stamp in annotations_of(pod).values() or created_at(pod) > patched

    def is_old(pod: Json) -> bool:
        return not is_new(pod) and not is_below_partition(obj, name_of(pod))

    return Attempt(is_old, is_new, stamp)


def failure_of(workload: Workload, error: Exception) -> Result:
    """Return a failed result, or one not started if the API server is unavailable."""
    message = str(error) or repr(error)
    if isinstance(error, ApiError) and error.status in UNAVAILABLE:
        return Result(workload, Outcome.NOT_STARTED, message, stop_reason=message)
    return Result(workload, Outcome.FAILED, message)


def container_names(pod: Json) -> list[str]:
    return [container["name"] for _, container in containers_of(pod)]


def missing_sidecars(workload: Workload, names: Collection[str], options: Options) -> list[str]:
    """Return the sidecars that a Pod with these containers should have and has not.

    An init container may be replaced by another one that its pattern names: with Istio CNI,
    istio-validation takes the place of istio-init. With --allow-removal, those that the plan said
    would be removed may be missing.
    """
    removed = [difference.path[0] for difference in workload.removed]
    wanted = {
        found.name
        for found in workload.sidecars
        for pattern in options.sidecars
        if fnmatch.fnmatchcase(found.name, pattern)
        and not (found.init and fnmatch.filter(names, pattern))
    }.union(workload.added)
    return sorted(wanted.difference(names, removed if options.allow_removal else ()))


REVERTED = (
    "the rollout annotation was removed, for example by `kubectl rollout undo` or a GitOps tool; "
    "configure such a tool to ignore annotations of the Pod template"
)


def outcome_of(
    workload: Workload,
    snapshot: Snapshot,
    differences: Sequence[Difference],
    judged: Sequence[Json] = (),
    cause: str = "",
) -> tuple[Outcome, str, str]:
    """Return the outcome of what seems to be a success, by the Pods, with a message.

    `judged` are the Pods that must be ready; those of an autoscaler may have come later. The last
    text is why no other rollout may start: this one has lost its sidecar.
    """
    lost = len(snapshot.lacking)
    if lost:
        verb = "has" if lost == 1 else "have"
        message = f"{lost} of {count_of(len(snapshot.new), 'new Pod')} {verb} no {snapshot.missed}"
        stop_reason = f"new Pods of {workload.ref} have no {snapshot.missed}"
        return Outcome.LOST_SIDECAR, f"{message}; {CHECK_INJECTOR}", stop_reason
    if differences:
        texts = "; ".join(map(difference_text, differences))
        return Outcome.STILL_DRIFTED, f"the new Pods still differ: {texts}", ""
    unready = [pod for pod in judged if not is_ready(pod)]
    problems = {
        "not updated": (len(snapshot.old), cause),
        "missing": (snapshot.missing, ""),
        "not ready": (len(unready), pod_problem(unready[0]) if unready else ""),
    }
    total = count_of(len(snapshot.pods) + snapshot.missing, "Pod")
    for problem, (count, reason) in problems.items():
        if count:
            message = f"{count} of {total} {problem}"
            return Outcome.INCOMPLETE, f"{message}: {reason}" if reason else message, ""
    is_split = workload.method.is_rollout and pods_below_partition(workload)
    return Outcome.SUCCEEDED, kept_pods(workload) if is_split else "", ""


def on_node(pod: Json) -> str:
    """Return ` on node x`: the node may be down. Empty if a Pod has none."""
    node = pod["spec"].get("nodeName")
    return f" on node {node}" if node else ""


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
    return f"{name_of(pod)}: {message_text(reason)}" if reason else ""


# 12. A few Pods at a time ------------------------------------------------------------------------


@dataclass
class PodByPod:
    """Replaces or changes the Pods of one workload, a few at a time.

    Prepare; take the next Pods (read everything again, see what is in the way, act); wait for them.
    A Pod that is ready is taken only while fewer than `limit` Pods of its owner are unavailable.
    Eviction and ImageChange have the differences.
    """

    rollout: Rollout
    workload: Workload
    tell: Tell
    todo: set[str] = field(default_factory=set)  # UIDs of the Pods to replace or change
    known: set[str] = field(default_factory=set)  # UIDs at the start, without those that are done
    before: set[str] = field(default_factory=set)  # what was unavailable then; see unavailable
    taken: set[str] = field(default_factory=set)  # UIDs of the Pods that were acted upon
    batch: list[Json] = field(default_factory=list)  # those that are waited for
    is_fresh: bool = False  # whether the owner and its Pods have just been read
    uids: dict[ObjectRef, str] = field(default_factory=dict)  # of the owners
    done: int = 0
    state: str = ""  # of the Pods in progress, for a person
    why_left: str = ""  # why Pods that were to be taken are left; empty if it is not known
    retry_after: float = 0.0  # seconds that the API server asked to wait at least
    # The owner of the next Pod, and all its Pods, as they were read last
    owner: ObjectRef = ObjectRef("", "", "")
    obj: Json = field(default_factory=dict)
    pods: Sequence[Json] = ()
    verb = "replaced"
    form = "{progress}; {message}"

    # What differs
    check_today: ClassVar[Callable[..., None]]  # asks what new Pods would be like, before all else
    act: ClassVar[Callable[..., str]]  # replaces or changes a Pod; returns what is in the way
    look: ClassVar[Callable[..., str]]  # returns what the batch still waits for; empty: nothing
    give_up: ClassVar[Callable[..., NoReturn]]  # raises UnsuccessfulError: it took too long

    @property
    def cluster(self) -> Cluster:
        return self.rollout.cluster

    @property
    def options(self) -> Options:
        return self.rollout.options

    @property
    def signals(self) -> Signals:
        return self.rollout.signals

    @property
    def owners(self) -> Sequence[ObjectRef]:
        """Return the owners whose Pods are taken, one after the other."""
        return self.workload.owners

    def carry_out(self) -> Result:
        """Return the result. SkipError if there is nothing to do."""
        workload = self.workload
        self.prepare()
        try:
            for owner in self.owners:
                self.owner = owner
                while self.take_next():
                    self.done += len(self.batch)
                    self.batch = []
                    self.tell(self.progress)
            return self.rollout.verify(workload, self.attempt, self.tell, self.why_left)
        except SkipError as reason:
            if not self.done:
                raise
            return self.unsuccessful(Outcome.INCOMPLETE, str(reason))
        except UnsuccessfulError as error:
            return self.unsuccessful(*error.args)
        except StoppedWaiting:
            message = self.rollout.interrupted(workload).message
            return self.unsuccessful(Outcome.INTERRUPTED, f"{self.state}{message}")
        except ApiError as error:
            if not self.taken:
                raise
            is_away = error.status in UNAVAILABLE
            message = f"{self.state}{error}"
            return self.unsuccessful(Outcome.FAILED, message, str(error) * is_away, is_away)

    @property
    def attempt(self) -> Attempt:
        return Attempt(
            is_old=lambda pod: uid_of(pod) in self.todo,
            is_new=lambda pod: uid_of(pod) not in self.known,
        )

    @property
    def progress(self) -> str:
        return f"{self.done} of {count_of(len(self.workload.old_pods), 'Pod')} {self.verb}"

    def unsuccessful(
        self, outcome: Outcome, message: str, stop_reason: str = "", is_away: bool = False
    ) -> Result:
        counts = None
        message = self.form.format(progress=self.progress, message=message)
        if self.taken and not is_away:
            with suppress(ApiError, SkipError, UnsuccessfulError):
                counts = self.rollout.snapshot(self.workload, self.attempt).counts
        return Result(self.workload, outcome, message, counts=counts, stop_reason=stop_reason)

    def take(self, pod: Json, state: str) -> None:
        """Note that a Pod may have been evicted or changed; `state` follows its name."""
        self.workload.is_begun = True
        self.taken.add(uid_of(pod))
        self.before.discard(uid_of(pod))
        self.batch.append(pod)
        names = join_words(list(map(name_of, self.batch)))
        self.state = f"Pod {names} {state}"
        if len(self.batch) > 1:
            self.state = f"Pods {names} {state.replace('was', 'were')}"

    def is_wanted(self, pod: Json) -> bool:
        """Return whether a Pod is still to be taken, as it is now."""
        return uid_of(pod) in self.todo

    def prepare(self) -> None:
        """Find the Pods to take. SkipError if there are none."""
        workload = self.workload
        pods: list[Json] = []
        for owner in self.owners:
            self.owner = owner
            self.read()
            found = not_terminating(self.pods)
            outdated = self.outdated(found)
            if outdated:
                self.check_today(outdated)  # from here on, others may differ
            self.todo |= set(map(uid_of, self.outdated(found)))
            self.before |= self.unavailable().keys()
            pods += found
        self.known = set(map(uid_of, pods))
        workload.total_pods = len(pods)
        self.rollout.set_pods(workload, pods)
        workload.old_pods = tuple(name_of(pod) for pod in pods if uid_of(pod) in self.todo)
        require_not_skipped(workload, self.options, ROLLOUT_RULES)

    def outdated(self, pods: Sequence[Json]) -> list[Json]:
        """Return the Pods to replace or change: of an owner, those that match --selector.

        A rollout replaces all of them.
        """
        self.rollout.set_pods(self.workload, pods)
        names = set(self.workload.old_pods)
        if self.workload.method is Method.EVICT:
            names -= set(pods_below_partition(self.workload))
        if self.options.selector:
            found = self.cluster.items(CORE, "pods", [self.owner.namespace], self.options.selector)
            names &= set(map(name_of, found))
        return [pod for pod in pods if name_of(pod) in names]

    def read(self) -> None:
        """Read the owner and its Pods. SkipError if they are no longer to be taken."""
        workload = self.workload
        if not self.is_fresh:
            self.obj = self.cluster.owner(self.owner, unpacked(workload.sample))
        uid = dig(self.obj, "metadata.uid")
        if self.obj and self.uids.setdefault(self.owner, uid) != uid:
            if self.taken:
                raise UnsuccessfulError(Outcome.INCOMPLETE, RECREATED)
            raise SkipError(RECREATED)
        workload.obj = self.obj
        if is_workload(workload.ref) and workload.ref != self.owner:  # a paused Deployment
            workload.obj = self.cluster.workload(workload.ref)
        self.rollout.read_namespace(workload)
        require_not_skipped(workload, self.options, (*OBJECT_RULES, wrong_method))
        if not self.is_fresh:
            self.pods = self.cluster.pods_of(self.owner, self.obj)
        self.is_fresh = False

    def take_next(self) -> bool:
        """Take the next Pods and wait for them; return False if none is left.

        Everything is read again right before: an eviction with a wrong UID would count against the
        PodDisruptionBudget for two minutes. UnsuccessfulError at the timeout.
        """
        deadline = time.monotonic() + self.options.timeout
        for pause in growing(1.0):
            self.read()
            todo = sorted(filter(self.is_wanted, not_terminating(self.pods)), key=self.order)
            if not todo:
                return False
            self.require_running()
            self.retry_after = 0.0
            for pod in todo[: self.limit]:
                obstacle = self.obstacle(pod) or self.act(pod)
                if obstacle:
                    break
            if self.batch:
                break
            self.tell(f"{self.progress}; {obstacle}")
            left = deadline - time.monotonic()
            if left <= 0:
                raise UnsuccessfulError(Outcome.TIMED_OUT, obstacle)
            pause = min(max(pause, self.retry_after), left)
            self.signals.wait(pause, self.signals.reason_to_stop)
            self.require_running()
        self.wait_for_batch()
        return True

    def require_running(self) -> None:
        """Raise UnsuccessfulError if no other Pod may be taken."""
        if self.signals.reason_to_stop():
            raise UnsuccessfulError(Outcome.INTERRUPTED, f"the others were not {self.verb}")

    def order(self, pod: Json) -> tuple[bool, int, str]:
        """Return a key to sort Pods: unready ones first, then by ordinal, the highest first.

        Of unready ones of an OrderedReady StatefulSet, the lowest.
        """
        number = ordinal_of(pod)
        is_upwards = self.is_ordered and not is_ready(pod)
        return is_ready(pod), number if is_upwards else -number, name_of(pod)

    def obstacle(self, pod: Json) -> str:
        """Return what a Pod waits for; nothing if it may be taken now.

        UnsuccessfulError if that was unavailable from the start: it may stay so.
        """
        if not is_observed(self.obj):
            return "waiting for its spec update to be observed"
        unavailable = self.unavailable()
        if not is_ready(pod):
            if not self.is_ordered:
                return ""
            later = [uid_of(p) for p in self.pods if ordinal_of(p) >= ordinal_of(pod)]
            unavailable = without(unavailable, *later)
        if len(unavailable) < self.limit:
            return ""
        ending = set(map(uid_of, filter(is_terminating, self.pods)))
        stays = self.before & (unavailable.keys() - ending)
        if len(stays) < self.limit:
            return f"waiting for {without(unavailable, *stays).popitem()[1]}"
        reasons = [
            f"{name_of(p)}: {waiting_reason(p) or 'not ready'}"
            for p in self.pods
            if uid_of(p) in stays
        ]
        be = "is" if len(stays) == 1 else "are"
        text = f"{len(stays)} of {count_of(self.wanted, 'Pod')} {be} unavailable"
        can_more = self.workload.method is Method.EVICT and not self.is_ordered
        hint = f", or use --max-unavailable={len(stays) + 1}" if can_more else ""
        reason = (reasons or ["not created"])[0]
        raise UnsuccessfulError(Outcome.INCOMPLETE, f"{text} ({reason}); repair it{hint}")

    def unavailable(self) -> dict[str, str]:
        """Return what is unavailable, and what to wait for: Pods by UID, and missing ones."""
        found = {}
        for pod in self.pods:
            where = f"{name_of(pod)}{on_node(pod)}"
            if is_terminating(pod) or uid_of(pod) in map(uid_of, self.batch):
                found[uid_of(pod)] = f"Pod {where} to terminate"
            elif not is_ready(pod):
                found[uid_of(pod)] = f"a Pod to be ready: {pod_problem(pod) or where}"
        missing = self.wanted - len(self.pods)
        for number in range(missing):
            found[f"{self.owner.name} {number}"] = f"{count_of(missing, 'Pod')} to be created"
        return found

    @property
    def wanted(self) -> int:
        """Return how many Pods the owner wants; if it states no number, as many as before."""
        is_stated = has_template(self.owner)
        return counts_of(self.owner, self.obj)[0] if is_stated else self.workload.total_pods

    @property
    def limit(self) -> int:
        """Return how many Pods of the owner may be unavailable."""
        method = self.workload.method
        return 1 if self.is_ordered else evicted_at_once(method, self.wanted, self.options)

    @property
    def is_ordered(self) -> bool:
        """Return whether no Pod is created while one with a lower ordinal is not ready."""
        return dig(self.obj, "spec.podManagementPolicy") == "OrderedReady"

    def wait_for_batch(self) -> None:
        """Wait until the Pods that were taken are replaced, or run with their new images."""
        deadline = time.monotonic() + self.options.timeout
        is_evicting = self.workload.method is Method.EVICT
        for pause in itertools.repeat(1.0) if is_evicting else growing(0.2):
            self.signals.wait(pause)
            problem = self.look()
            if not problem:
                break
            self.tell(f"{self.progress}; {problem}")
            if time.monotonic() > deadline:
                self.give_up(problem)
        self.rollout.proven.set()
        self.todo -= set(map(uid_of, self.batch))
        self.known -= set(map(uid_of, self.batch))
        self.state = ""


@dataclass
class Eviction(PodByPod):
    """Replaces Pods by eviction."""

    templates: dict[ObjectRef, Json] = field(default_factory=dict)  # as they were at the start

    def check_today(self, pods: Sequence[Json]) -> None:
        """Check a replacement by a dry run.

        A replacement that is rejected leaves no trace in the status of StatefulSets, DaemonSets.
        The template of a custom resource that owns its Pods is not known.
        """
        template = dig(self.obj, "spec.template")
        if "spec" not in template:
            return
        self.templates[self.owner] = template
        expected = self.rollout.ask_again(self.workload, self.obj, pods[0])
        self.rollout.require_possible(self.workload, expected, "evicted")

    def act(self, pod: Json) -> str:
        """Evict a Pod; return why it may not be evicted now (empty: it may).

        A Pod that is gone (404), or another one by now (409), was replaced by somebody else. A 429
        without the cause DisruptionBudget comes from an overloaded API server.
        """
        template = dig(self.obj, "spec.template")
        if template != self.templates.get(self.owner, template):
            raise SkipError("its Pod template was changed; rerun this command")
        name = name_of(pod)
        try:
            self.cluster.evict(pod)
        except ApiError as error:
            if error.status == 429:
                cause = error.causes.get("DisruptionBudget", "")
                budget = rf"PodDisruptionBudget {self.workload.ref.namespace}/\1"
                text = f"{budget} allows no disruption: it"
                cause = re.sub(r"^The disruption budget (\S+)", text, cause).rstrip(".")
                self.retry_after = error.retry_after
                return cause or str(error)
            if error.status in UNAVAILABLE:
                self.take(pod, "may have been evicted; ")
                raise
            if error.status >= 500 and "more than one PodDisruptionBudget" not in str(error):
                if self.cluster.pod(pod):  # else it was evicted all the same
                    return str(error)
            elif error.status not in (404, 409):
                raise UnsuccessfulError(
                    Outcome.FAILED, f"cannot evict Pod {name}: {error}"
                ) from None
        self.take(pod, "was evicted; ")
        return ""

    def look(self) -> str:
        """Return what the batch waits for; nothing if its Pods are gone and new ones are ready.

        SkipError if the owner no longer exists, UnsuccessfulError if new Pods lack the sidecar, or
        still differ.
        """
        workload = self.workload
        self.obj = self.cluster.owner(self.owner, self.batch[0])
        if not self.obj:
            raise SkipError("no longer exists")
        pods = self.cluster.pods_of(self.owner, self.obj)
        self.is_fresh = True
        # New ones first: they say most
        self.pods = sorted(pods, key=self.attempt.is_new, reverse=True)
        new = list(filter(self.attempt.is_new, not_terminating(pods)))
        snapshot = Snapshot(new, [], new, *self.rollout.lacking(workload, new))
        found = outcome_of(workload, snapshot, differences_of(workload, new, self.options))
        if found[0] is not Outcome.SUCCEEDED:
            raise UnsuccessfulError(*found)
        ending = set(map(uid_of, filter(is_terminating, pods))) - set(map(uid_of, self.batch))
        ignored = self.before | ending  # of others
        waiting = [text for uid, text in self.unavailable().items() if uid not in ignored]
        return f"waiting for {waiting[0]}" if waiting else ""

    def give_up(self, problem: str) -> NoReturn:
        reason = failure_condition(self.obj)
        if not reason and len(self.pods) < self.wanted:
            reason = self.cluster.latest_event(self.obj, "FailedCreate")
        text = f"{self.state}still {problem}"
        stop_reason = self.rollout.why_not_proven(self.workload, self.pods)
        raise UnsuccessfulError(
            Outcome.TIMED_OUT, f"{text}: {reason}" if reason else text, stop_reason
        )


@dataclass
class ImageChange(PodByPod):
    """Changes images in running Pods: the kubelet restarts only these containers.

    It kills a container before it pulls the new image, and nothing else reacts: neither the owner
    of the Pod nor a PodDisruptionBudget.
    """

    verb = "changed"
    form = "{message} ({progress})"
    problem: str = ""  # why the Pod in progress is not ready, or its name

    @property
    def owners(self) -> Sequence[ObjectRef]:
        workload = self.workload
        return [workload.ref] if is_workload(workload.ref) else workload.owners

    def is_wanted(self, pod: Json) -> bool:
        """Return whether its images differ, and a change would have an effect."""
        if not super().is_wanted(pod):
            return False
        if not self.images_to_change(pod):  # others have done it
            self.todo.discard(uid_of(pod))
            return False
        if dig(pod, "status.phase") != "Running":
            self.why_left = f"Pod {name_of(pod)} is not running"
            return False
        return True

    def images_to_change(self, pod: Json) -> dict[str, str]:
        """Return the images that a Pod would get today, by container; empty if none differs.

        SkipError if something else differs by now.
        """
        found = differences_of(self.workload, [pod], self.options)
        if found and not only_images(found, self.workload.view):
            raise SkipError("not only images differ now; rerun this command")
        images = {difference.path[0]: difference.expected for difference in found}
        reason = why_not_in_place(pod, [*images])
        if reason:
            raise SkipError(reason)
        return images

    def check_today(self, pods: Sequence[Json]) -> None:
        obj = with_template(self.cluster, self.workload)
        expected = self.rollout.ask_again(self.workload, obj, pods[0])
        self.rollout.require_possible(self.workload, expected, "changed")
        for pod in pods:
            self.images_to_change(pod)

    def obstacle(self, pod: Json) -> str:
        """Return what must come first. UnsuccessfulError if a changed Pod does not run."""
        for other in self.pods:
            if uid_of(other) in self.taken and any(stuck_containers(other)):
                text = f"Pod {pod_problem(other)}, after its images were changed"
                raise UnsuccessfulError(Outcome.FAILED, text)
        return super().obstacle(pod)

    def act(self, pod: Json) -> str:
        """Change the images of a Pod. UnsuccessfulError if that is refused."""
        images = self.images_to_change(pod)
        for image in () if self.done else images.values():
            if (self.workload.ref.namespace, image) in self.rollout.not_pulled:
                raise SkipError(f"{image} could not be pulled in this namespace before")
        try:
            self.take(pod, "may have the new image; ")
            self.tell(f"{self.progress}; {self.state}not restarted yet")
            self.cluster.change_images(pod, images)
        except ApiError as error:
            if error.status in UNAVAILABLE:
                raise
            now = self.cluster.pod(pod)
            if now and self.images_to_change(now):  # else it was stored all the same
                text = f"cannot change Pod {name_of(pod)}: {first_line(error)}"
                raise UnsuccessfulError(Outcome.FAILED, text) from None
        return ""

    def look(self) -> str:
        """Return what the Pod still waits for; nothing if its containers run with the new images.

        Nothing either if somebody replaced it. UnsuccessfulError if one does not start.
        """
        (pod,) = self.batch
        images = self.images_to_change(pod)
        now = self.cluster.pod(pod)
        if not now or is_restarted(pod, now, images):
            return ""
        problem = pod_problem(now) or name_of(now)
        self.problem = problem.removeprefix(f"{name_of(now)}: ")
        self.state = f"Pod {problem}: has the new image, but is not restarted and ready yet; "
        reason = why_not_started(pod, now, images)
        if reason:
            for name, image in images.items():
                if any(reason.startswith(f"container {name}: {word}") for word in NOT_PULLED):
                    self.rollout.not_pulled.add((self.workload.ref.namespace, image))
            self.restore(pod, reason)
        return f"waiting for Pod {problem}"

    def give_up(self, problem: str) -> NoReturn:
        late = f"not restarted and ready after {self.options.timeout:g}s"
        self.restore(self.batch[0], f"{late}: {self.problem}", is_late=True)

    def restore(self, pod: Json, problem: str, is_late: bool = False) -> NoReturn:
        """Put the old images back, and raise UnsuccessfulError."""
        name = name_of(pod)
        names = self.images_to_change(pod)
        old = {c["name"]: c["image"] for _, c in containers_of(pod) if c["name"] in names}
        self.state = f"Pod {name}: {problem}; restoring the old image; "
        self.tell(f"{self.progress}; {self.state}")
        text = f"Pod {name}: {problem}; old image restored"
        try:
            self.cluster.change_images(pod, old)
        except ApiError as error:
            if error.status in UNAVAILABLE:
                raise
            text = f"old image of Pod {name} not restored: {first_line(error)}; {problem}"
            if error.status == 404 or "metadata.uid" in str(error):
                text = f"Pod {name}: {problem}; it was replaced"
        event = self.cluster.latest_event(pod) if is_late else ""
        text += f"; latest event: {event}" if event else ""
        was_healthy = not self.workload.unhealthy_reason
        is_first = was_healthy and not (is_late or self.rollout.proven.is_set())
        stop_reason = f"the new image does not start in {self.workload.ref}" if is_first else ""
        raise UnsuccessfulError(Outcome.FAILED, text, stop_reason)


METHODS: Mapping[Method, Callable[[Rollout, Workload, Tell], Result]] = {
    Method.RESTART: Rollout.restart,
    Method.ATTACH: Rollout.attach,
    Method.EVICT: lambda *parts: Eviction(*parts).carry_out(),
    Method.IN_PLACE: lambda *parts: ImageChange(*parts).carry_out(),
}


def first_line(error: ApiError) -> str:
    """Return what a policy says of a change; further lines are a diff with secrets in it.

    In an ApiError, line breaks are escaped.
    """
    return str(error).partition(r"\n")[0]


def container_ids(pod: Json) -> dict[str, str]:
    return {status["name"]: status.get("containerID", "") for status in container_statuses(pod)}


def is_restarted(before: Json, pod: Json, names: Collection[str]) -> bool:
    """Return whether containers of a Pod were restarted, and are ready, and so is the Pod.

    Only another containerID tells: two tags may share an imageID, observedGeneration rises before
    the restart, and the Pod is ready before it, too. A Pod that was not ready before may stay so.
    """
    old = container_ids(before)
    restarted = {
        status["name"]
        for status in container_statuses(pod)
        if status.get("ready")
        and "running" in dig(status, "state")
        and status.get("containerID") != old.get(status["name"])
    }
    return (is_ready(pod) or not is_ready(before)) and restarted.issuperset(names)


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
        is_old = old.get(name) == now[name] and (is_crash or name in stuck_before)
        if name in names and not is_old:
            words = (name, waiting["reason"], redact_text(waiting.get("message") or ""))
            return f"container {': '.join(filter(None, words))}"
    return ""


def ordinal_of(pod: Json) -> int:
    """Return the ordinal of a StatefulSet's Pod; 0 of others."""
    ordinal = name_of(pod).rpartition("-")[2]
    is_numbered = "statefulset.kubernetes.io/pod-name" in dig(pod, "metadata.labels")
    return int(ordinal) if is_numbered and ordinal.isdecimal() else 0


# 13. Scheduler: the whole plan, by the main thread -----------------------------------------------


@dataclass(eq=False)
class Task:
    """What a worker carries out: a rollout, or a last check of one that was not complete."""

    workload: Workload
    earlier: Result | None = None  # timed out, or beyond its progress deadline
    started: float = 0.0  # monotonic
    line: str = ""  # the latest that its worker told


class Scheduler:
    """Starts rollouts and handles what workers report. The main thread owns all state."""

    GRACE = 2.0  # seconds after the second signal in which workers may still report
    TOO_MANY_IN_A_ROW = 5  # failures that stop a run without --max-failures
    ASKED_FOR = ("interrupted", "quit", TIME_IS_UP)  # reasons that are no failure

    def __init__(
        self, rollout: Rollout, report: Report, workers: int, max_failures: int = 0
    ) -> None:
        self.rollout = rollout
        self.max_failures = max_failures  # 0: a few in a row
        self.signals = rollout.signals
        self.report = report
        self.workers = workers
        self.ask = rollout.options.confirm_each  # until the answer is "all"
        self.in_progress: dict[ObjectRef, Task] = {}
        self.rechecks: deque[Task] = deque()
        self.failures = self.failures_in_a_row = 0
        self.announced = ""  # why nothing else starts
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        # No SimpleQueue: its get() may wait forever if a signal comes just before the timeout.
        # What a worker reports about its task: a line of progress, or the result.
        self.events: queue.Queue[tuple[Task, str | Result]] = queue.Queue()
        for _ in range(workers):
            threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        """Carry out tasks, one after the other. Runs in a worker, which shares only the queues."""
        for task in iter(self.tasks.get, None):
            tell = partial(self.tell, task)
            tell(self.rollout.carry_out(task.workload, tell, task.earlier))

    def tell(self, task: Task, news: str | Result) -> None:
        self.events.put((task, news))

    def run(self, plan: Iterable[Workload]) -> None:
        """Roll out the plan, then recheck what timed out; report a result for each workload."""
        waiting = deque(map(Task, plan))
        self.drain(waiting)
        reason = self.signals.reason_to_stop()
        stop_reason = "" if reason in self.ASKED_FOR else reason
        message = "; ".join(filter(None, (reason, self.rollout.gate.status)))
        for task in waiting:
            result = Result(task.workload, Outcome.NOT_STARTED, message, stop_reason=stop_reason)
            self.report.finish(result)
        self.drain(self.rechecks)
        for task in self.rechecks:
            self.report.finish(self.abandoned(task))
        for _ in range(self.workers):
            self.tasks.put(None)

    def drain(self, waiting: deque[Task]) -> None:
        """Carry out tasks until none is left, or none may start and none is in progress."""
        while not self.signals.is_second():
            self.fill_slots(waiting)
            if not self.in_progress and (not waiting or self.signals.reason_to_stop()):
                return
            self.handle_event(POLL)
            self.announce_stop()
            self.report.show_progress(self.in_progress.values())
        deadline = time.monotonic() + self.GRACE
        while self.in_progress and time.monotonic() < deadline:
            self.handle_event(0.1)
        for task in self.in_progress.values():
            self.report.finish(self.abandoned(task))
        self.in_progress.clear()

    def abandoned(self, task: Task) -> Result:
        """Return the result of a task that is no longer waited for."""
        if task.earlier:
            return task.earlier
        result = self.rollout.interrupted(task.workload)
        message = result.message
        if task.line and not task.workload.method.is_rollout:
            message = f"{task.line}; {message}"
        return replace(result, message=message, seconds=seconds_since(task.started))

    @property
    def slots(self) -> int:
        """Return how many may be in progress: what fails everywhere is to be found on one."""
        return self.workers if self.rollout.proven.is_set() else 1

    def fill_slots(self, waiting: deque[Task]) -> None:
        while waiting and len(self.in_progress) < self.slots:
            task = waiting[0]
            answer = "yes"
            if not task.earlier:  # a recheck changes nothing
                if self.signals.reason_to_stop():
                    return
                answer = self.ask_about(task.workload) if self.ask else "yes"
                while not self.events.empty():  # what ended meanwhile
                    self.handle_event(POLL)
                if answer == "quit":
                    self.signals.stop_reason = "quit"
                if self.signals.reason_to_stop():  # it was answered late
                    return
            waiting.popleft()
            if answer == "no":
                self.report.finish(Result(task.workload, Outcome.DECLINED))
                continue
            self.ask = self.ask and answer != "all"
            task.started = time.monotonic()
            self.in_progress[task.workload.ref] = task
            self.tasks.put(task)

    def announce_stop(self) -> None:
        """Log why no other rollout will start, once for each reason."""
        reason = self.signals.reason_to_stop()
        if reason == self.announced:
            return
        self.announced = reason
        more = f"; waiting for {len(self.in_progress)} in progress" if self.in_progress else ""
        if self.in_progress and self.signals.received:
            more += " (interrupt again to stop waiting)"
        log.warning("%s: no new rollouts will start%s", reason, more)

    def ask_about(self, workload: Workload) -> str:
        """Return yes, no, all or quit; the end of input and a signal are quit."""
        self.report.show_question(workload)
        question = f"{VERBS[workload.method]} {workload.ref}? [y]es/[n]o/[a]ll/[q]uit: "
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
            while not self.signals.received:
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
        ref = task.workload.ref
        extra = {"workload": str(ref)}
        if isinstance(news, str):
            task.line = news
            log.debug("%s", news, extra=extra)
            return
        del self.in_progress[ref]
        if not task.earlier:
            self.count(news)
        if news.attempt and not task.earlier:
            text = "rollout not complete: %s; will recheck at the end"
            log.info(text, shorten(news.message, 80), extra=extra)
            self.rechecks.append(Task(task.workload, news))
        else:
            self.report.finish(news)
            task.workload.pods, task.workload.stored = [], b""  # there may be thousands

    def count(self, result: Result) -> None:
        """Count failures. A result may stop the run, and so does a limit, or a few in a row."""
        if result.is_failure:
            self.failures += 1
            self.failures_in_a_row += 1
        elif result.outcome in SUCCESSES:
            self.failures_in_a_row = 0
        limit = self.max_failures
        reason = ""
        if limit and self.failures >= limit:
            reason = f"--max-failures={limit} reached"
        elif not limit and self.failures_in_a_row == self.TOO_MANY_IN_A_ROW:
            reason = f"{self.TOO_MANY_IN_A_ROW} rollouts failed in a row"
        self.signals.stop_reason = self.signals.stop_reason or result.stop_reason or reason


# 14. Report: it displays and counts, and decides nothing -----------------------------------------

VERBS = {  # for questions
    Method.RESTART: "Roll out",
    Method.ATTACH: "Wait for",
    Method.EVICT: "Evict Pods of",
    Method.IN_PLACE: "Change images of",
}
NOTES = {  # of a row of the plan
    Method.RESTART: "",
    Method.EVICT: "its Pods will be evicted",
    Method.IN_PLACE: "images will be changed in place",
}
VERDICT_MEANINGS = {
    Verdict.REJECTED: "rejected: new Pods cannot be created; running Pods stay until they are "
    "replaced",
    Verdict.UNKNOWN: "unknown: not compared",
}
POSITIONS = {
    REGULAR: "a regular container",
    NATIVE: "a native sidecar",
    INIT: "an init container",
}


def sidecar_text(sidecars: Iterable[Sidecar], with_names: bool) -> str:
    """Return `1.26.2, 1.27.0`, with names `istio-proxy 1.26.2, istio-init 1.26.2 (init)`."""
    texts = [
        f"{found.name if with_names else ''} {image_version(found.image)}"
        f"{' (init)' if found.init else ''}"
        for found in sidecars
    ]
    return ", ".join(dict.fromkeys(text.strip() for text in texts))


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as they need; the last is whole."""
    whole = [list(map(printable, row)) for row in rows]
    cells = [[*(shorten(cell, 80) for cell in row[:-1]), row[-1]] for row in whole]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def difference_text(difference: Difference) -> str:
    """Return a line like `istio-proxy  env X  <none> -> istiod`."""
    (name, *section), current, expected = shown(difference)
    if not section:
        if isinstance(expected, str):  # a ConfigMap or Secret
            return f"{name} {expected}"
        container = {"name": name} | (expected or current)
        sidecar = as_sidecar((container["position"], container))
        return f"would be {'added' if expected else 'removed'}: {sidecar_text([sidecar], True)}"
    if section == ["position"]:
        return f"{name}  changes from {POSITIONS[current]} to {POSITIONS[expected]}"
    old, new = value_text(current), value_text(expected)
    if section == ["image"]:
        repository, _, tag = new.rpartition(":")
        new = tag if old.startswith(f"{repository}:") else new
    else:
        start = len(os.path.commonprefix([old, new]))
        old, new = shorten_around(old, start), shorten_around(new, start)
    return f"{name}  {section_text(section)}  {old} -> {new}"


def section_text(section: Names) -> str:
    """Return `env X` for the path of a variable."""
    text = re.sub("^volumeMounts", "mounts", ".".join(section))
    return re.sub(r"^(env|port|mount|volume)s?\.", r"\1 ", text)


def value_text(value: Any) -> str:
    if isinstance(value, str):
        return value or '""'
    return "<none>" if value is None else json.dumps(value)


def difference_lines(workload: Workload) -> list[str]:
    """Return what differs, images first."""
    found = sorted(workload.differences, key=lambda found: found.path[1:] != ("image",))
    lines = list(map(difference_text, found))
    if workload.other_changes:
        lines.append(f"Other changes to the Pod: {', '.join(workload.other_changes)}")
    return lines


def letters() -> Iterator[str]:
    """Yield a, b, ..., z, aa, ab, ..."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=length))


def planned_counts(workload: Workload) -> PodCounts:
    """Return the Pods of a workload that was not begun: those of the plan, as they were read last.

    Others may have replaced some of them.
    """
    total = workload.pods_to_replace
    kept = {*workload.old_pods, *workload.drifted_pods}
    updated = [pod for pod in workload.pods if pod.sidecars and pod.name not in kept]
    count = min(len(updated), max(total - len(workload.old_pods), 0))
    ready = min(sum(pod.is_ready for pod in updated), count)
    return PodCounts(total, count, max(workload.ready, ready), ready)


class Report:
    """Writes text or JSON records to standard output, and counts for the summary."""

    MAX_NAMES = 5  # of a group; with --log-level=debug all
    MAX_LEFTOVERS = 10

    def __init__(self, connection: Connection, options: Options, progress: ProgressLine) -> None:
        self.connection = connection
        self.options = options
        self.progress = progress
        self.as_json = options.log_format == "json"
        names = options.sidecars
        self.with_names = len(names) > 1 or is_pattern(names[0])
        self.began = self.last_progress = time.monotonic()
        self.plan = Plan()
        self.outcomes: Counter[Outcome] = Counter()
        self.unsuccessful: defaultdict[Outcome, list[Result]] = defaultdict(list)
        self.pod_counts: Counter[str] = Counter()  # fields of PodCounts, and "not verified"
        # Why Pods are not up to date (empty: they are), by name and image of their sidecars (empty:
        # they lack it), and whether it stands in the Pod template itself
        self.census: defaultdict[tuple[str, str, bool], Counter[str]] = defaultdict(Counter)
        self.leftovers: list[LeftPod] = []  # Pods that are not up to date
        self.letters: dict[ObjectRef, str] = {}  # of what differs, see print_differences
        self.is_done = False
        self.failed: Counter[str] = Counter()  # what makes the exit code 1
        self.unfinished: Sequence[Skip] = ()  # rollouts of earlier runs that have a problem
        self.without_pods: Sequence[Skip] = ()  # as in the plan, then as they were read last

    def command(self, lost: Sequence[ObjectRef] = ()) -> str:
        """Return what a person runs next; see printed_command."""
        connection = self.connection
        text = printed_command(sys.argv[1:], self.options, connection.context, lost)
        return connection.environment + text

    def record(self, record: str, ref: ObjectRef | None = None, **fields: Any) -> None:
        if self.as_json:
            subject = ref._asdict() if ref else {}
            self.write(json.dumps({"record": record, **subject, **fields}))

    def print(self, *lines: str) -> None:
        if not self.as_json:
            self.write("\n".join(map(printable, lines)))

    def write(self, text: str) -> None:
        self.progress.erase()
        try:
            print(text, flush=True)
        except OSError as error:  # the rollouts matter more than the text
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):  # that is `| head`, which has read enough
                self.failed["output not written"] = 1
                log.error("cannot write to standard output: %s", error.strerror)
        self.progress.draw()

    def print_groups(self, title: str, skips: Iterable[Skip]) -> None:
        """Print, if there are any, the objects that have a reason, by reason and detail."""
        lines = [f"{title}:"]
        drifted_first = sorted(skips, key=lambda skip: (skip.subject not in self.letters, skip))
        by_reason = group_by(drifted_first, lambda skip: skip.reason)
        for reason, found in by_reason.items():
            lines += [f"  {reason}:"] * bool(reason)
            for detail, alike in group_by(found, lambda skip: skip.detail).items():
                names = self.names_of([skip.subject for skip in alike])
                indent = "    " if reason else "  "
                lines.append(f"{indent}{names}: {detail}" if detail else f"{indent}{names}")
        if by_reason:
            self.print(*lines, "")

    def names_of(self, refs: Sequence[ObjectRef]) -> str:
        """Return `Deployment data/etcd (a), shop/web (b) and 2 more`: a kind stands once."""
        limit = len(refs) if self.options.log_level == "debug" else self.MAX_NAMES
        texts = []
        kind = ""
        for ref in refs[:limit]:
            name = f"{ref.namespace}/{ref.name}" if ref.kind == kind else str(ref)
            kind = ref.kind
            letter = self.letters.get(ref)
            texts.append(f"{name} ({letter})" if letter else name)
        more = f" and {len(refs) - limit} more (use --log-level=debug to list all)"
        return ", ".join(texts) + more * (len(refs) > limit)

    # The plan

    def show_plan(self, plan: Plan) -> None:
        """Show the drift, the plan, what is skipped, and the totals."""
        self.print("")
        self.plan = plan
        self.without_pods = plan.without_pods
        for workload in plan.compared:
            self.record(
                "drift",
                workload.ref,
                verdict=workload.verdict.snake_case,
                differences=[shown(found)._asdict() for found in workload.differences],
                ignored=sorted(workload.ignored),
                other_changes=workload.other_changes,
                message=workload.message,
            )
        for position, workload in enumerate(plan.workloads, 1):
            is_selected = position <= plan.selected
            workload.place = str(position) if is_selected else "-"
            workload.left = workload.left if is_selected else Outcome.NOT_STARTED.value
            self.record(
                "plan",
                workload.ref,
                position=position,
                selected=is_selected,
                uid=dig(workload.obj, "metadata.uid") or "",
                started_before=format_time(self.options.cutoff_of(workload.ref)),
                revision=revision_of(workload),
                pods_to_replace=workload.pods_to_replace,
                pods_replaced=workload.pods_replaced,
                pods=workload.total_pods,
                sidecars=[sidecar._asdict() for sidecar in sorted(workload.sidecars)],
                oldest_pod=format_time(workload.oldest_pod),
                method=workload.method.snake_case,
                state=workload.state.snake_case,
                unhealthy_reason=workload.unhealthy_reason,
                downtime=workload.downtime,
                controlled_by=str(workload.controller or ""),
                differences=[shown(found)._asdict() for found in workload.differences],
            )
        for subject, reason, code, _ in [*plan.without_pods, *plan.skips]:
            self.record("skip", subject, code=code, reason=reason)
        self.print_differences()
        self.take_census(plan.found)
        if plan.workloads:
            self.print(*self.table(plan.workloads), "")
        self.print_groups("Without Pods", plan.without_pods)
        self.print_groups("Not rolled out", [*plan.skips, *self.verdict_skips()])
        self.print_census()
        self.print_totals()

    def print_differences(self) -> None:
        """Print once what differs in the same way, with the letter that stands for it."""
        everyone = dict.fromkeys([*self.plan.workloads, *self.plan.compared])
        groups = group_by(  # by what they have in common, however old their Pods are
            [workload for workload in everyone if workload.differences],
            lambda workload: re.sub(r"changed \w+ after", "", str(difference_lines(workload))),
        )
        texts = []
        for letter, group in zip(letters(), groups.values(), strict=False):
            lines = difference_lines(group[0])
            limit = len(lines) if self.options.log_level == "debug" else self.MAX_NAMES
            more = [f"and {len(lines) - limit} more"] * (len(lines) > limit)
            first, *rest = [*lines[:limit], *more]
            texts += [f"  {letter:<2} {first}", *(f"     {line}" for line in rest)]
            for workload in group:
                self.letters |= dict.fromkeys([workload.ref, *workload.subjects], letter)
        ignored = {path for workload in self.plan.compared for path in workload.ignored}
        names = [f"{name} {section_text(section)}" for name, *section in sorted(ignored)]
        if texts:
            self.print("Differences between running Pods and new ones:", *texts, "")
        if names:
            self.print(f"Ignored, because it is different in each new Pod: {join_words(names)}", "")

    def table(self, workloads: Sequence[Workload]) -> list[str]:
        """Return the plan in the order given, a line for each workload."""
        rows = [["#", "NAMESPACE", "WORKLOAD", "PODS", "OLD", "SIDECAR", "AGE", "DIFF", "NOTES"]]
        rows += [
            [
                workload.place,
                workload.ref.namespace,
                f"{workload.ref.kind.lower()}/{workload.ref.name}",
                str(workload.pods_replaced),
                str(workload.pods_to_replace),
                sidecar_text(sorted(workload.sidecars), self.with_names) or "<none>",
                human_duration(time.time() - workload.oldest_pod.timestamp()),
                self.letters.get(workload.ref, ""),
                self.notes(workload),
            ]
            for workload in workloads
        ]
        if not self.letters:
            rows = [[*row[:7], row[8]] for row in rows]
        return format_table(rows)

    def notes(self, workload: Workload) -> str:
        """Return what is special about a workload of the plan."""
        action = NOTES.get(workload.method)
        if workload.method is Method.IN_PLACE and workload.other_changes:
            action = "images will be changed in place; other changes wait for the next restart"
        if workload.method is Method.ATTACH:
            since = parse_time(last_restart(workload.obj, self.options))
            action = f"its rollout of {format_time(since)} is not complete; not restarted again"
        problem = workload.unhealthy_reason
        texts = (
            "not selected by --max-rollouts" * (workload.place == "-"),
            State.NOT_SERVING.value * (workload.state is State.NOT_SERVING),
            f"unhealthy: {problem}" if problem else "",
            workload.shown_as_lacking,
            action,
            "downtime" * workload.downtime,
        )
        return "; ".join(filter(None, texts))

    def verdict_skips(self) -> Iterator[Skip]:
        """Yield the workloads that were compared and are not in the plan for what that told."""
        removal = f"would lose the sidecar; not restarted without --allow-removal; {CHECK_INJECTOR}"
        for workload in self.plan.compared:
            if workload.place or workload.reason:
                continue
            if workload.verdict in VERDICT_MEANINGS:
                meaning, detail = VERDICT_MEANINGS[workload.verdict], short_reason(workload.message)
                yield Skip(workload.ref, meaning, detail=detail)
            elif workload.differences:
                yield Skip(workload.ref, removal)

    def print_totals(self) -> None:
        plan = self.plan
        selected = plan.workloads[: plan.selected]
        count = count_of(len(plan.workloads), "workload")
        if plan.selected < len(plan.workloads):
            count = f"{plan.selected} of {count} (--max-rollouts)"
        pods = count_of(sum(workload.pods_replaced for workload in selected), "Pod")
        old = sum(workload.pods_to_replace for workload in selected)
        sentences = [f"To roll out: {count} with {pods}, {old} of them old"]
        if not plan.workloads:
            scanned = count_of(plan.scan.pods, "Pod")
            sentences = [f"Nothing to roll out; scanned {scanned}"]
        elif not self.options.only_drifted:
            sentences.append(
                "Every workload with the sidecar is in the plan, even if it is up to date; use "
                "--only-drifted to compare first"
            )
        left_out = count_words(self.left_out())
        up_to_date = sum(w.verdict is Verdict.UP_TO_DATE for w in plan.compared if not w.place)
        after = plan.scan.after_cutoff
        sentences += [
            f"Not rolled out: {left_out}" * bool(left_out),
            f"Up to date: {count_of(up_to_date, 'workload')}" * bool(up_to_date),
            f"Without Pods: {count_of(len(plan.without_pods), 'workload')}"
            * bool(plan.without_pods),
            f"Created after the cutoff: {count_of(after, 'Pod')}" * bool(after),
        ]
        self.print(*(f"{sentence}." for sentence in sentences if sentence))

    def left_out(self) -> dict[str, int]:
        """Return how many workloads, and Pods without one, are not rolled out, by why."""
        plan = self.plan
        verdicts = Counter(w.verdict for w in plan.compared if not w.place)
        drifted = verdicts[Verdict.DRIFTED] + verdicts[Verdict.MISSING]
        known = {subject for workload in plan.compared for subject in workload.subjects}
        others = {skip.subject for skip in plan.skips} - known
        pods = sum(ref.kind == "Pod" for ref in others)
        skipped = len(others) - pods
        return {
            f"drifted workload{'s' * (drifted != 1)}": drifted,
            "rejected": verdicts[Verdict.REJECTED],
            "unknown": verdicts[Verdict.UNKNOWN],
            f"skipped workload{'s' * (skipped != 1)}": skipped,
            f"skipped Pod{'s' * (pods != 1)}": pods,
        }

    # The rollouts

    def show_question(self, workload: Workload) -> None:
        """Show a workload's line of the plan, and its differences, above the question."""
        lines = [*self.table([workload]), *difference_lines(workload)]
        self.progress.show("")
        self.progress.write("\n" + "\n".join(map(printable, lines)) + "\n")

    def show_progress(self, in_progress: Collection[Task]) -> None:
        """Update the progress line; elsewhere than on a terminal log it once a minute."""
        failed = sum(self.outcomes[outcome] for outcome in FAILURES)
        failures = f", {failed} failed" if failed else ""
        held = next((task.line for task in in_progress if task.line.startswith(CLOSED)), "")
        begun = [task for task in in_progress if not task.line.startswith(CLOSED)]
        text = (
            f"{self.outcomes.total()}/{self.plan.selected} finished{failures}, "
            f"{human_duration(seconds_since(self.began))}, {len(begun)} in progress"
        )
        if begun:
            longest = min(begun, key=lambda task: task.started)
            ref = longest.workload.ref
            text += f": {ref.namespace}/{ref.name} {longest.line}"
        text += f"; {held}" if held else ""
        self.progress.show(text)
        if not self.progress.on_terminal and seconds_since(self.last_progress) >= 60:
            self.last_progress = time.monotonic()
            log.info("%s", text)

    def finish(self, result: Result) -> None:
        """Count, record and log a workload's result."""
        workload = result.workload
        outcome = result.outcome
        self.outcomes[outcome] += 1
        workload.left = "drifted" if outcome in SUCCESSES else outcome.value
        counts = result.counts or planned_counts(workload)
        if result.counts or not workload.is_begun:
            self.pod_counts.update(counts._asdict())
        else:
            self.pod_counts["not verified"] += workload.pods_to_replace
        if result.is_failure or result.stop_reason:
            self.failed[outcome.value] += 1
        level = logging.INFO
        if outcome not in SUCCESSES:
            self.unsuccessful[outcome].append(result)
            is_surprising = outcome is Outcome.FAILED and not workload.unhealthy_reason
            is_surprising |= outcome is Outcome.LOST_SIDECAR
            level = logging.ERROR if is_surprising else logging.WARNING
            level = logging.INFO if outcome is Outcome.DECLINED else level
        if outcome is Outcome.NOT_STARTED:
            level = logging.DEBUG  # there may be thousands
        self.record(
            "result",
            workload.ref,
            outcome=outcome.snake_case,
            method=workload.method.snake_case,
            time=format_time(datetime.now(timezone.utc)),
            seconds=result.seconds,
            message=result.message,
            counts=counts._asdict() if result.counts or not workload.is_begun else None,
            revision=revision_of(workload),
        )
        text = described(result)
        message = result.message
        if outcome in FAILURES:  # the whole message stands in the summary
            message = shorten(message, 80)
        text += f": {message}" if message else ""
        log.log(level, "%s", text, extra={"workload": str(workload.ref)})

    # The census

    def take_census(self, workloads: Iterable[Workload]) -> None:
        """Count the Pods by sidecar, image, and why they are not up to date."""
        planned = {
            ref: workload
            for workload in self.plan.found
            for ref in (workload.ref, *workload.owners)
        }
        self.census.clear()
        self.leftovers = []
        for workload in workloads:
            known = planned.get(workload.ref) or planned.get(workload.deployment)
            found = lefts_of(workload.pods, known) if known and self.options.only_drifted else {}
            for pod in workload.pods:
                # What is not known was created, or scaled up from 0, since; or it lost its owner.
                is_old = self.options.only_drifted and pod.created < self.options.cutoff
                is_lost = is_old and pod.sidecars and not known
                unknown = "not checked", {sidecar.name for sidecar in pod.sidecars}
                left, names = found.get(pod.name, unknown if is_lost else ("", set()))
                having = {sidecar.name for sidecar in pod.sidecars}
                sidecars = {
                    *pod.sidecars,
                    *(Sidecar(name, "", native=False) for name in {*names} - having),
                }
                for sidecar in sidecars:
                    is_fixed = known is not None and sidecar in known.in_template
                    reason = left if sidecar.name in names and not is_fixed else ""
                    self.census[sidecar.name, sidecar.image, is_fixed][reason] += 1
                if left and left not in NOT_AUDITED:
                    ref = ObjectRef("Pod", workload.ref.namespace, pod.name)
                    self.leftovers.append(LeftPod(ref, left, pod.sidecars))

    def print_census(self) -> None:
        """Print how many sidecars are up to date, to be replaced, and left, and why."""
        rows = [["SIDECAR", "VERSION", "PODS", "UP TO DATE", "OLD", "LEFT"]]
        by_name = sorted(self.census.items(), key=lambda row: (row[0][0], not row[0][1], row[0]))
        for (name, image, is_fixed), reasons in by_name:
            lefts = Counter({reason: n for reason, n in reasons.items() if reason})
            old = lefts.pop("in the plan", 0)
            left = str(lefts.total()) + f" ({left_words(lefts)})" * bool(lefts)
            version = image_version(image) if image else "<none>"
            version += " (in template)" * is_fixed
            counts = [str(reasons.total()), str(reasons[""]), str(old), left]
            rows.append([name, version, *counts])
        if not self.options.only_drifted:  # nothing is known but how many there are
            rows = [row[:3] for row in rows]
        lines = format_table(rows) if self.census else []
        if self.is_done:
            leftovers = sorted(self.leftovers)
            lines += ["", "Pods that are not up to date:"] * bool(leftovers)
            lines += [f"  {pod.subject}: {pod.reason}" for pod in leftovers[: self.MAX_LEFTOVERS]]
            more = len(leftovers) - self.MAX_LEFTOVERS
            lines += [f"  and {more} more"] * (more > 0)
        if lines:
            self.print(*lines, "")

    def sidecar_records(self) -> list[Json]:
        """Return the census for the summary's JSON record: one item per container and image."""
        return [
            {
                "name": name,
                "image": image,
                "in_template": in_template,
                "pods": lefts.total(),
                "not_up_to_date": {
                    snake_case(left): count for left, count in sorted(lefts.items()) if left
                },
            }
            for (name, image, in_template), lefts in sorted(self.census.items())
        ]

    def leftover_records(self) -> list[Json]:
        """Return the Pods that are not up to date, without those that the plan replaces."""
        return [
            {
                "namespace": pod.subject.namespace,
                "name": pod.subject.name,
                "reason": snake_case(pod.reason),
                "sidecars": [only(s._asdict(), ("name", "image")) for s in sorted(pod.sidecars)],
            }
            for pod in sorted(self.leftovers)
            if pod.reason != "in the plan"
        ]

    def not_up_to_date(self) -> str:
        """Return what --fail-on-drift fails for; empty: nothing."""
        words = {"in the plan": "drifted"}
        counts = Counter(words.get(skip.reason, skip.reason) for skip in self.leftovers)
        texts = [f"{count_of(counts.total(), 'Pod')} ({left_words(counts)})"] * bool(counts)
        missing = len(self.without_pods)
        texts += [f"{count_of(missing, 'workload')} without Pods"] * bool(missing)
        return join_words(texts)

    # The summary

    def show_summary(self, exit_code: int) -> None:
        self.progress.show("")
        options, plan = self.options, self.plan
        seconds = seconds_since(self.began)
        has_more = self.outcomes.keys() & {Outcome.NOT_STARTED, Outcome.INTERRUPTED}
        verb = "resume" if has_more else ""
        lost = [result.workload.ref for result in self.unsuccessful[Outcome.LOST_SIDECAR]]
        if options.confirm:
            self.print_unsuccessful()
            self.print_groups("Rollouts of earlier runs", self.unfinished)
            self.print_counts(seconds)
            self.print("")
            self.is_done = True
            self.print_census()
        else:
            self.print("", "This was a dry run; nothing was changed.")
            verb = "apply" if plan.workloads else ""
        if lost:
            resume = ["  3. Resume:", f"     {self.command()}"] * bool(verb)
            self.print(*self.steps_to_replace(lost), *resume)
        elif verb:
            self.print(f"To {verb}, run:", f"  {self.command()}")
        if exit_code == 1:
            self.print(*self.reasons_for_failure())
        self.record(
            "summary",
            version=VERSION,
            context=self.connection.context,
            user=self.connection.user,
            server=self.connection.server,
            dry_run=not options.confirm,
            started_before=format_time(options.cutoff),
            outcomes={outcome.snake_case: count for outcome, count in self.outcomes.items()},
            verdicts=Counter(workload.verdict.snake_case for workload in plan.compared),
            pods={n: self.pod_counts[n] for n in PodCounts._fields if options.confirm},
            sidecars=self.sidecar_records(),
            leftovers=self.leftover_records(),
            planned=len(plan.workloads),
            without_pods=len(plan.without_pods),
            skipped=len(plan.skips),
            seconds=seconds,
            exit_code=exit_code,
            failed={snake_case(reason): count for reason, count in self.failures.items()},
        )

    def steps_to_replace(self, lost: Sequence[ObjectRef]) -> list[str]:
        """Return what to do about new Pods without the sidecar."""
        # Of others, no dry run tells what is lost.
        known, others = (
            [ref for ref in sorted(lost) if has_template(ref) == wanted] for wanted in (True, False)
        )
        by_namespace = group_by(known, lambda ref: ref.namespace).values()
        return [
            f"New Pods of {join_words(list(map(str, lost)))} have no sidecar.",
            "  1. Repair the injector.",
            "  2. Replace these Pods:",
            *(f"     {self.command(refs)}" for refs in by_namespace),
            *(f"     delete new Pods of {ref} manually, one at a time" for ref in others),
        ]

    def print_unsuccessful(self) -> None:
        """Print what did not succeed, by outcome; failures with the commands to run next."""
        self.print("")
        command = self.connection.kubectl_command
        for outcome in Outcome:
            results = self.unsuccessful[outcome]
            if outcome in LISTED_BY_REASON:
                skips = [Skip(result.workload.ref, result.message) for result in results]
                self.print_groups(outcome.value, skips)
                continue
            for result in results:
                ref = result.workload.ref
                lines = result.message.split("; ")
                self.print(f"{outcome.value}: {ref}:", *(f"  {line}" for line in lines if line))
                if outcome in FAILURES:
                    self.print(f"  {command(ref, 'describe')}")

    def print_counts(self, seconds: float) -> None:
        counts = {outcome.value: self.outcomes[outcome] for outcome in Outcome}
        total = count_of(self.outcomes.total(), "workload")
        left_out = count_words(self.left_out())
        sentences = [
            f"{total} in {human_duration(seconds)}: {count_words(counts)}" * any(counts.values()),
            f"Not rolled out: {left_out}" * bool(left_out),
        ]
        self.print(*(f"{sentence}." for sentence in sentences if sentence))
        pods = self.pod_counts
        ready = pods["updated_and_ready"]
        missing = {
            "not updated": pods["matched"] - pods["updated"],
            "lost": pods["lost"],
            "not ready": pods["updated"] - ready,
            "not verified": pods["not verified"],
        }
        matched = ready + sum(missing.values())
        if matched:
            note = f" ({count_words(missing)})" if matched > ready else ""
            self.print(f"Pods: {ready} of {matched} updated and ready{note}.")

    @property
    def failures(self) -> Counter[str]:
        """Return what makes the exit code 1, and how often; empty: it is 0."""
        left = len(self.leftovers) + len(self.without_pods)
        more = {
            "of an earlier run": len(self.unfinished),
            "not up to date": left * self.options.fail_on_drift,
        }
        return self.failed + Counter(more)

    @property
    def exit_code(self) -> int:
        return int(bool(self.failures))

    def reasons_for_failure(self) -> list[str]:
        failed = self.failures
        left = self.not_up_to_date() * bool(failed.pop("not up to date", 0))
        texts = {"Failed": count_words(failed), "Not up to date": left}
        return [f"{title}: {text}." for title, text in texts.items() if text]


def check_names(cluster: Cluster, options: Options, plan: Plan) -> int:
    """Report names of options that match nothing; return how many of them make the run fail.

    One does that does not exist, which is most often a typo. Other names that match nothing are
    only warned about: a namespace may be scaled to zero, and a sidecar may be gone everywhere.
    """
    scan = plan.scan
    found = unmatched_workloads(options, plan)  # what is wrong, and whether it does not exist
    if options.plan is not None and not options.plan:
        found["--plan has no records of workloads to roll out: nothing is selected"] = False
    if options.selector and not scan.pods:
        found[f"no Pods match the selector {options.selector}; check it"] = False
    containers = scan.containers.union(*(workload.added for workload in plan.compared))
    for pattern in options.sidecars if scan.pods else ():
        if not fnmatch.filter(containers, pattern):
            close = difflib.get_close_matches(pattern, containers)
            hint = f"; did you mean {join_words(close, 'or')}?" if close else ""
            text = f"no Pods have a container named {pattern} ({scan.pods} checked){hint}"
            found[text] = bool(close)
    # Excluded namespaces are seen only if all are read.
    excluded = () if namespaces_to_list(options) else options.exclude_namespace
    for pattern in (*options.include_namespace, *excluded):
        if not fnmatch.filter(scan.namespaces, pattern):
            selected = "that match the selector " if options.selector else ""
            text = f"no Pods {selected}in namespace {pattern}; check the name"
            is_exact = pattern in options.include_namespace and not is_pattern(pattern)
            is_typo = is_exact and is_absent(cluster, pattern)
            found[f'namespaces "{pattern}" not found' if is_typo else text] = is_typo
            others = scan.namespaces.difference(excluded, options.include_namespace)
            meant = [name for name in sorted(others) if is_typo_of(pattern, name)]
            is_exact = pattern in excluded and not is_pattern(pattern)
            if options.confirm and is_exact and meant and is_absent(cluster, pattern):
                text = f"namespace {pattern} of --exclude-namespace does not exist"
                raise StartError(f"{text}; did you mean {join_words(meant, 'or')}?")
    for wanted in options.exclude_annotation:
        notes = [
            n for w in plan.found for n in (*annotations_to_match(w), annotations_of(w.namespace))
        ]
        if not has_any([wanted], *notes):
            name = wanted[0] if wanted[1] == "*" else "=".join(wanted)
            text = "no workload with the sidecar, and none of their namespaces, matches"
            found[f"{text} --exclude-annotation={name}; check it"] = False
    for text, is_typo in found.items():
        (print_error if is_typo else log.warning)("%s", text)
    return sum(found.values())


def unmatched_workloads(options: Options, plan: Plan) -> dict[str, bool]:
    """Return what is wrong with each TYPE/NAME without Pods, and whether it does not exist."""
    found = {}
    refs = [workload.ref for workload in plan.found] + [skip.subject for skip in plan.without_pods]
    names = [name for ref in refs for name in typed_names(ref)]
    namespace = join_words(namespaces_to_list(options), "or")
    where = f"namespace {namespace}" if namespace else "the selected namespaces"
    sidecars = join_words(options.sidecars, "or")
    resources = {kind.lower(): KINDS[kind].resource for kind in WORKLOADS}  # that were listed
    for pattern in options.workloads:
        kind, _, name = pattern.partition("/")
        is_listed = kind in resources and not is_pattern(name)
        if is_listed and pattern not in plan.scan.named:
            found[f'{resources[kind]} "{name}" not found in {where}'] = True
        elif is_listed and pattern not in names:
            which = " that match the selector" * bool(options.selector)
            found[f"{pattern} exists, but none of its Pods{which} has {sidecars}"] = False
        elif not fnmatch.filter(names, pattern):
            hint = "check the name and the namespace"
            found[f"no Pods of {pattern} have {sidecars}; {hint}"] = False
    return found


def is_absent(cluster: Cluster, namespace: str) -> bool:
    """Return whether the API server says that a namespace does not exist."""
    try:
        return not cluster.find(f"{CORE}/namespaces/{namespace}", accept=METADATA_ONLY)
    except ApiError:  # for example no permission
        return False


def is_typo_of(name: str, meant: str) -> bool:
    """Return whether a letter is missing, added or wrong, or two neighbors are swapped."""
    start = len(os.path.commonprefix([name, meant]))
    typed, right = name[start:], meant[start:]
    forms = (
        right[1:],
        typed[:1] + right,
        typed[:1] + right[1:],
        right[1:2] + right[:1] + right[2:],
    )
    return name != meant and typed in forms


# 15. Main: the stages in their order -------------------------------------------------------------


def find_cutoff(option: datetime, now: datetime) -> datetime:
    """Return the time before which Pods count: as an option, or now.

    It is rounded up to a whole second, like the creation time of Pods, so that the command that is
    printed selects the same Pods.
    """
    if option is NOW:
        option = now + timedelta(microseconds=1)
    elif option > now:
        log.warning("--only-started-before is in the future: each run restarts everything again")
    return option + timedelta(microseconds=-option.microsecond % 10**6)


def roll_out(plan: Plan, rollout: Rollout, report: Report) -> None:
    """Roll out what is selected of the plan; report a result for each workload in it."""
    options = report.options
    rollout.signals.may_interrupt = False
    rollout.signals.ends_at = report.began + (options.max_duration or math.inf)
    total = len(plan.workloads)
    workers = max(min(int(options.parallel_rollouts.of(total)), plan.selected), 1)
    limit = options.max_failures
    # The cutoff was rounded up: no Pod that this run creates may be older.
    rollout.cluster.wait_until(options.cutoff)
    rollout.cluster.retries = RETRIES_DURING_ROLLOUTS
    rollout.cluster.open_connections(2 * workers)  # with looks
    max_failures = max(int(limit.of(total)), 1) if limit else 0
    Scheduler(rollout, report, workers, max_failures).run(plan.workloads[: plan.selected])
    for workload in plan.workloads[plan.selected :]:
        report.finish(Result(workload, Outcome.NOT_STARTED, "not selected by --max-rollouts"))


def look_again(
    cluster: Cluster, plan: Plan, options: Options
) -> tuple[list[Workload], list[Skip], list[Skip]]:
    """Return the owners of Pods as they are now, which rollouts of earlier runs have a problem, and
    which workloads still have no Pods. ApiError if they cannot be read.
    """
    pods = cluster.items(CORE, "pods", namespaces_to_list(options), options.selector)
    owners, _ = read_pods(pods, options)
    unfinished = []
    for workload in plan.unfinished:
        workload.obj = cluster.workload(workload.ref)
        if workload.obj:
            found = not_terminating(cluster.pods_of(workload.ref, workload.obj))
            workload.pods = [live_pod(pod, options) for pod in found]
        unfinished.append(Skip(workload.ref, why_unfinished(workload, options)))
    without_pods = [
        skip
        for skip in plan.without_pods
        if is_without_pods(skip.subject, cluster.workload(skip.subject), options)
    ]
    return [*owners.values()], [skip for skip in unfinished if skip.reason], without_pods


def count_again(cluster: Cluster, report: Report, signals: Signals) -> None:
    """Take the census again, until a second signal comes: the API server may be away."""
    cluster.retries = RETRIES
    report.take_census(())  # what it says of the time before is not true any more
    report.unfinished = [Skip(w.ref, reason) for w, reason in report.plan.unfinished.items()]
    with ThreadPool(1) as pool:
        reading = pool.apply_async(look_again, [cluster, report.plan, report.options])
        while not (reading.ready() or signals.is_second()):
            reading.wait(POLL)
        try:
            owners, report.unfinished, report.without_pods = reading.get(0)
            report.take_census(owners)
        except ApiError as error:
            log.warning("cannot list Pods again, to count their sidecars: %s", error)
            if report.options.fail_on_drift or error.status in UNAVAILABLE:
                report.failed["list of Pods"] = 1
        except TimeoutError:  # the second signal
            pass


def print_error(form: str, *values: object) -> None:
    """Print an error as kubectl does; once the plan is shown, errors are in the log."""
    for handler in logging.root.handlers:
        if isinstance(handler, ProgressLine):
            handler.show("")
    with suppress(OSError):  # standard error was closed
        print(f"error: {printable(form % values)}", file=sys.stderr, flush=True)


def exit_code_for(error: BaseException, signals: Signals, has_begun: bool) -> int:
    """Say in one line what ended the program; return the exit code."""
    log.debug("traceback", exc_info=error)
    if isinstance(error, Interrupted):
        print_error("interrupted (nothing was changed)")
        return signals.exit_code
    if isinstance(error, ModuleNotFoundError):
        hint = f"pip install -r requirements.txt (or use: uv run {SCRIPT})"
        print_error("Python package %s is not installed; run: %s", error.name, hint)
        return 3
    if isinstance(error, ApiError) and re.match("400 (unable to parse|found ')", str(error)):
        print_error("invalid value for --selector: %s", str(error).removeprefix("400 "))
        return 2
    if isinstance(error, (StartError, ApiError)):
        print_error("%s (nothing was changed)", error)
        return 3
    tell = log.critical if has_begun else print_error
    tell("unexpected error: %r; rerun with --log-level=debug and report the log", error)
    return 1 if has_begun else 3


# Objects to keep until Python exits. If a daemon thread were the last to use the connections, it
# would free them while Python runs its exit functions, which may end in a traceback (RuntimeError:
# dictionary changed size during iteration).
KEPT: list[object] = []


def main(argv: Sequence[str]) -> int:
    """Run the stages in their order; return the exit code."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: read nothing, and write to nowhere
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115
    if not hasattr(signal, "SIGHUP"):
        sys.stderr.write("error: this platform is not supported; on Windows, use WSL\n")
        return 3
    signals = Signals()
    has_begun = as_json = False
    try:
        options = parse_args(argv)
        as_json = options.log_format == "json"
        progress = set_up_logging(options.log_level, options.log_format)
        kubectl = find_kubectl(options.kubectl)
        connection = connect(kubectl, options.kubeconfig, options.context)
        cluster = Cluster(connection)
        KEPT.append(cluster)
        cluster.check_connection()
        options = replace(options, cutoff=find_cutoff(options.cutoff, cluster.now()))
        connection.user = cluster.user()
        check_permissions(cluster, options)
        if options.confirm:
            check_kubectl(kubectl, connection)

        report = Report(connection, options, progress)
        report.print(str(connection))
        plan = make_plan(cluster, options, progress)
        report.failed["not found"] = check_names(cluster, options, plan)
        report.show_plan(plan)
        if options.confirm:
            command = [kubectl, *connection.kubectl_flags]
            rollout = Rollout(cluster, command, signals, Gate(options.gate, signals), options)
            has_begun = True
            roll_out(plan, rollout, report)
            count_again(cluster, report, signals)
        exit_code = signals.exit_code or report.exit_code
        report.show_summary(exit_code)
        return exit_code or report.exit_code  # the summary may not have been written
    except (Exception, Interrupted) as error:
        exit_code = exit_code_for(error, signals, has_begun)
        if as_json and not has_begun:
            fields = {"version": VERSION, "exit_code": exit_code, "error": str(error)}
            with suppress(OSError):
                print(json.dumps({"record": "summary", **fields}), flush=True)
        return exit_code
    finally:
        signals.may_interrupt = False  # a late signal must not change the exit code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
