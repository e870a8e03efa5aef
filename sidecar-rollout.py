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
      --only-started-before=2026-05-01T13:00:00Z

Options marked * can be repeated; names and values may have shell wildcards. A
switch without a value means true; =false is the opposite.

Exit codes:
  0         nothing failed; what is left (rejected, unknown, skipped, not
            started) is listed
  1         something failed: a rollout; one of an earlier run was never
            complete; new Pods have no sidecar; a row of --plan was not applied;
            the API server became unavailable; with --fail-on-drift, selected
            Pods are not up to date, or none was checked; with --expect-image or
            --expect-annotation, the answer is no
  2         bad usage
  3         cannot start: no cluster, no permission, no kubectl, a name does not
            exist, or, with --confirm, the injector is down; nothing was changed
  130, 143  interrupted by SIGINT, SIGTERM (129: SIGHUP); what was in progress
            is listed

Contents, in the order in which the data flows; nothing uses what stands below its section:
   1. Types               options, words, and the parts of what steps return
   2. Words               text for people, values inside objects
   3. Reading objects     what a Pod or workload of the API says
   4. Steps               Found -> Today -> Comparison -> Decision -> Result
   5. Command line        OPTIONS and their validators; parse_args -> Options
   6. Logging             set_up_logging -> ProgressLine
   7. Cluster             every request to the API server: Connection, Cluster
   8. Starting            kubectl, the kubeconfig, permissions: connect -> Connection
   9. Selecting           read_pods -> Found, by the owner of their Pods
  10. Comparing           what Pods would be like today: ask_today -> Today, compare -> Comparison
  11. Deciding            rules to skip a workload: decide -> Decision
  12. The plan            find_workloads, make_plan -> Plan
  13. Rolling out         one workload, in a worker: Signals, Gate, Work: Restart -> Result
  14. A few Pods at once  PodByPod: Eviction, ImageChange
  15. Scheduler           Rollouts in workers; the whole plan, by the main thread: Scheduler
  16. Report              plan, progress, results, summary
  17. Main                the steps in their order: main -> exit code
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # a module in the folder of a download is not imported from here on
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.realpath(__file__))]

import argparse
import base64
import copy
import difflib
import email.utils
import enum
import fnmatch
import functools
import gc
import hashlib
import itertools
import json
import logging
import math
import queue
import random
import re
import select
import shlex
import shutil
import signal
import ssl
import stat
import statistics
import string
import subprocess
import tempfile
import textwrap
import threading
import time
import urllib.parse
import urllib.request
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from multiprocessing import TimeoutError
from multiprocessing.pool import ThreadPool
from typing import IO, Any, ClassVar, NamedTuple, NoReturn, TypeVar

VERSION = "1.0.0"
SCRIPT = "sidecar-rollout.py"
IS_PLUGIN = os.path.basename(sys.argv[0]) == "kubectl-sidecar_rollout"  # of kubectl
PROGRAM = "kubectl sidecar-rollout" if IS_PLUGIN else SCRIPT
FIELD_MANAGER = "sidecar-rollout"

Json = dict[str, Any]  # an object of the API, as it came
Labels = Mapping[str, str]  # labels or annotations
Names = Sequence[str]  # names, or patterns of names
ServicesOfPods = Mapping[str, Collection[str]]  # their names, by the name of a Pod
AnnotationFilter = tuple[str, str]  # key, and the value's pattern with shell wildcards
Tell = Callable[[str], object]  # takes a line of progress
Item = TypeVar("Item")
Answer = TypeVar("Answer")

log = logging.getLogger(FIELD_MANAGER)

# 1. Types -----------------------------------------------------------------------------------------


class ObjectRef(NamedTuple):
    """The identity of an object in the cluster."""

    kind: str  # empty: there is no such object, for example no controller
    namespace: str
    name: str
    group: str = ""  # of the API; empty is the core group

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def kind_and_group(self) -> str:
        """Return `Rollout (argoproj.io)`; of the core group, `Service (v1)`."""
        return f"{self.kind} ({self.group or 'v1'})"

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


STRATEGIC_MERGE = "application/strategic-merge-patch+json"
ROLLOUT_STATUS = ("rollout", "status")  # of kubectl


class Kind(NamedTuple):
    """An owner of Pods whose Pod template can be read, and how it is restarted, if it can be."""

    api: str  # path and version
    plural: str
    how_to_select: str = ""  # a hint; empty: it is not listed, as only Pods lead to it
    wait: Names = ()  # the words of kubectl that wait for its rollout; empty: it has none
    patch_type: str = STRATEGIC_MERGE
    has_replica_sets: bool = False  # which own its Pods
    counts: Names = REPLICAS  # where Pods are counted: desired, available, current, updated

    @property
    def group(self) -> str:
        return "" if self.api == CORE else self.api.split("/")[2]

    @property
    def resource(self) -> str:
        """Return `deployments.apps`, as permissions name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


APPS = "/apis/apps/v1"
KINDS = {
    "Deployment": Kind(
        APPS,
        "deployments",
        "remove --exclude-deployment",
        ROLLOUT_STATUS,
        has_replica_sets=True,
    ),
    "StatefulSet": Kind(APPS, "statefulsets", "add --include-statefulset", ROLLOUT_STATUS),
    "DaemonSet": Kind(
        APPS, "daemonsets", "add --include-daemonset", ROLLOUT_STATUS, counts=SCHEDULED
    ),
    "ReplicaSet": Kind(APPS, "replicasets"),
    "ReplicationController": Kind(CORE, "replicationcontrollers"),
}
WORKLOADS = tuple(name for name, kind in KINDS.items() if kind.how_to_select)  # that are listed
WITHOUT_PODS, CUSTOM, BELOW = "without Pods", "custom resource", "below a partition"
CREATES_LATER = {  # what a question counts besides workloads, as no Pod may lead to it
    "CronJob": Kind("/apis/batch/v1", "cronjobs"),
    "Job": Kind("/apis/batch/v1", "jobs"),
    "ReplicaSet": KINDS["ReplicaSet"],  # of a Rollout of Argo, for example
    "ReplicationController": KINDS["ReplicationController"],
    "ControllerRevision": Kind(APPS, "controllerrevisions"),  # of a CloneSet, for example
}


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


class PlanRow(NamedTuple):
    """What a plan file says of a workload."""

    uid: str
    cutoff: datetime
    sidecar_hash: str  # see hash_of
    template_hash: str  # of its Pod template; empty: not known
    method: Method


@dataclass(frozen=True)
class Options:
    """The command line, ready to use."""

    workloads: list[str]  # such as deployment/web*; none: all
    sidecars: list[str]  # container names, with shell wildcards, as are the other lists of names
    cutoff: datetime  # only Pods created before it; of --only-started-before
    plan: Mapping[ObjectRef, PlanRow] | None  # what was approved, in its order; None: everything
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
    show_values: bool
    fail_on_drift: bool
    expect_image: list[str]  # with shell wildcards
    expect_annotation: list[AnnotationFilter]
    confirm: bool
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
    kubeconfig: str | None
    context: str | None
    kubectl: str
    label_columns: list[str]
    log_level: str
    log_format: str

    @property
    def is_question(self) -> bool:
        """Return whether the run only answers a question about all Pods."""
        return bool(self.expect_image or self.expect_annotation)

    def row_of(self, ref: ObjectRef) -> PlanRow | None:
        """Return what was approved of a workload; None if it does not stand in --plan."""
        return self.plan.get(ref) if self.plan else None

    def cutoff_of(self, ref: ObjectRef) -> datetime:
        """Return the time before which Pods of a workload count."""
        row = self.row_of(ref)
        return row.cutoff if row else self.cutoff


NO_CUTOFF = datetime.max.replace(tzinfo=timezone.utc)


def snake_case(text: str) -> str:
    """Return words for people as JSON records have them: `static_pod`."""
    return text.lower().replace(" ", "_")


class Word(enum.Enum):
    """An enum whose values are for people."""

    @property
    def code(self) -> str:
        """Return the value as JSON records have it."""
        return snake_case(self.value)


class State(Word):
    """What a workload is before its rollout, in rollout order: unhealthy ones may take long."""

    NO_SERVICE = "no Service"  # none of its Pods is a ready endpoint of one
    SERVING = "serving"
    UNHEALTHY = "unhealthy"


class Method(Word):
    """How the Pods of a workload are replaced."""

    RESTART = "restart"  # by a rollout
    EVICT = "evict"
    IN_PLACE = "in place"  # not replaced: images of running containers are changed


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

    @property
    def is_container(self) -> bool:
        """Return whether a whole container is added or removed; of a ConfigMap, it is a text."""
        return len(self.path) == 1 and not isinstance(self.expected, str)


Path = tuple[str, ...]
Ignored = frozenset[Path]  # of values that differ between any two new Pods
SHARED_NAMES = "*"  # in such a path: only names that both sides have are compared there


class LivePod(NamedTuple):
    """A Pod, reduced to what the plan, the comparison and the census need."""

    name: str
    created: datetime
    is_ready: bool
    sidecars: frozenset[Sidecar]
    problem: str = ""  # for example CrashLoopBackOff
    stuck: frozenset[str] = frozenset()  # its named sidecars that do not start
    view: bytes = b""  # its sidecars, see view_of; with --only-drifted, or if it is stuck
    resized: tuple[Path, ...] = ()  # see resized_fields
    may_end: bool = False  # whether its restartPolicy is not Always
    containers: frozenset[str] = frozenset()  # see container_texts
    noted: frozenset[str] = frozenset()  # see noted_texts
    why_managed: str = ""  # why its images are not to be changed in place; see why_images_managed
    uid: str = ""
    unexpected: tuple[str, str] = ("", "")  # a code, and what is not as expected
    revision: str = ""  # of its Pod template, by a label; see new_pods
    restart_times: frozenset[str] = frozenset()  # see timestamps_in


NOTHING: Any = {}  # shared by all, not to be changed: there may be 30,000 workloads


class StartError(Exception):
    """Why nothing was done: one line for a person, and perhaps the output of who knows more."""

    def __str__(self) -> str:
        return ": ".join(filter(None, self.args))


class Asked(enum.IntEnum):
    """What was asked of the API server."""

    READ = 0  # or a review, which stores nothing either
    DRY_RUN = 1
    WRITE = 2  # sent once: a worker decides again before it repeats one; see Work.write


class Meaning(enum.Enum):
    """What a reply means for what was asked."""

    TRY_AGAIN = 1  # nothing was done; it may work in a moment
    MAY_HAVE_ARRIVED = 2  # a write: look whether it has, and try again
    ABSENT = 3
    REFUSED = 4  # it would be refused again
    NOTHING_KNOWN = 5  # about what was asked
    UNAVAILABLE = 6  # the API server, if it stays so: it is tried again first


TRY_AGAIN, MAY_HAVE_ARRIVED, ABSENT, REFUSED, NOTHING_KNOWN, UNAVAILABLE = Meaning
TRIED_AGAIN = (TRY_AGAIN, MAY_HAVE_ARRIVED, UNAVAILABLE)


class Reply(enum.Enum):
    """What came back other than success, and what it means: for a read, a dry run, and a write.

    A dry run that a webhook lets wait is not repeated: it may take 30 s each time; see ask_today.
    An API server that has just started forbids for a moment what is allowed.
    """

    NO_RESPONSE = "no response", UNAVAILABLE, UNAVAILABLE, MAY_HAVE_ARRIVED
    GATEWAY = "502 or 503", UNAVAILABLE, UNAVAILABLE, MAY_HAVE_ARRIVED
    TIMEOUT = "504", UNAVAILABLE, NOTHING_KNOWN, MAY_HAVE_ARRIVED
    ERROR = "other 5xx", TRY_AGAIN, NOTHING_KNOWN, MAY_HAVE_ARRIVED
    WEBHOOK_TIMEOUT = "a webhook timed out", TRY_AGAIN, NOTHING_KNOWN, TRY_AGAIN
    WEBHOOK_FAILED = "a webhook was not reached", TRY_AGAIN, NOTHING_KNOWN, TRY_AGAIN
    OVERLOADED = "429", UNAVAILABLE, UNAVAILABLE, UNAVAILABLE
    BUDGET = "429 of a PodDisruptionBudget", TRY_AGAIN, TRY_AGAIN, TRY_AGAIN
    UNAUTHORIZED = "401", UNAVAILABLE, UNAVAILABLE, UNAVAILABLE
    FORBIDDEN = "403 of RBAC", TRY_AGAIN, NOTHING_KNOWN, TRY_AGAIN
    POLICY = "another 403", TRY_AGAIN, REFUSED, REFUSED
    QUOTA = "a quota is exceeded", NOTHING_KNOWN, NOTHING_KNOWN, REFUSED
    DENIED = "denied by a webhook or policy", REFUSED, REFUSED, REFUSED
    INVALID = "another 4xx, or two budgets", REFUSED, REFUSED, REFUSED
    NOT_FOUND = "404", ABSENT, NOTHING_KNOWN, ABSENT
    CONFLICT = "409", NOTHING_KNOWN, NOTHING_KNOWN, TRY_AGAIN
    EXPIRED = "410, of a page", NOTHING_KNOWN, NOTHING_KNOWN, REFUSED
    NO_DRY_RUN = "not about Pods of controllers", NOTHING_KNOWN, NOTHING_KNOWN, REFUSED
    TOO_LARGE = "a page of a list", NOTHING_KNOWN, NOTHING_KNOWN, REFUSED
    ANOTHER_CLUSTER = "not asked", UNAVAILABLE, UNAVAILABLE, UNAVAILABLE
    UNUSABLE = "not what was asked for", NOTHING_KNOWN, NOTHING_KNOWN, MAY_HAVE_ARRIVED

    def meaning(self, asked: Asked) -> Meaning:
        """Return the cell of the table."""
        return self.value[1:][asked]


BY_STATUS = {
    0: Reply.NO_RESPONSE,
    401: Reply.UNAUTHORIZED,
    403: Reply.POLICY,
    404: Reply.NOT_FOUND,
    409: Reply.CONFLICT,
    410: Reply.EXPIRED,
    429: Reply.OVERLOADED,
    502: Reply.GATEWAY,
    503: Reply.GATEWAY,
    504: Reply.TIMEOUT,
}
# How the API server's own sentences begin. What follows may be anybody's words: a webhook's, or
# values of a Pod that PodSecurity quotes.
SENTENCES = (
    (Reply.DENIED, r'admission webhook "[^"]*" denied the request'),
    (Reply.DENIED, r"[^ ]+ \"[^\"]*\" is forbidden: ValidatingAdmissionPolicy '"),
    (Reply.NO_DRY_RUN, r'admission webhook "[^"]*" does not support dry run'),
    (Reply.WEBHOOK_TIMEOUT, r"Internal error occurred: failed calling .*deadline exceeded"),
    (Reply.WEBHOOK_FAILED, "Internal error occurred: failed calling webhook"),
    (Reply.QUOTA, '[^ ]+ "[^"]*" is forbidden: exceeded quota: '),
    (Reply.FORBIDDEN, '[^ ]+( "[^"]*")? is forbidden: User "'),
    (Reply.INVALID, "This pod has more than one PodDisruptionBudget"),
)


def reply_of(status: int, message: str, causes: Collection[str] = ()) -> Reply:
    """Return what a response is, by its status, the reasons of its causes, and its first words.

    A denial has any status that the webhook likes, 401 and 503 included. What has no row of its own
    is an error of the server from 500 on, and else one of this program.
    """
    for reply, beginning in SENTENCES:
        if re.match(beginning, message):
            return reply
    if status == 429 and "DisruptionBudget" in causes:
        return Reply.BUDGET
    return BY_STATUS.get(status, Reply.ERROR if status >= 500 else Reply.INVALID)


class ApiError(Exception):
    """A response of the API server other than success."""

    def __init__(
        self,
        reply: Reply,
        message: str,
        asked: Asked = Asked.READ,
        causes: Mapping[str, str] | None = None,
        retry_after: float = 0,
        continue_token: str = "",
    ) -> None:
        super().__init__(message)
        self.reply = reply
        self.meaning = reply.meaning(asked)
        self.causes = causes or {}  # messages of details.causes[], by their reasons
        self.retry_after = retry_after  # seconds
        self.continue_token = continue_token  # of a list that expired: for the rest as it is now

    @property
    def is_timeout(self) -> bool:
        return self.reply in (Reply.NO_RESPONSE, Reply.TIMEOUT, Reply.WEBHOOK_TIMEOUT)

    @property
    def is_unavailable(self) -> bool:
        """Return whether the API server is unavailable, whatever was asked."""
        return self.reply.meaning(Asked.READ) is UNAVAILABLE


class AnotherClusterError(StartError):
    """The context means another cluster by now."""


class Interrupted(BaseException):
    """Raised by a signal before anything is changed. The client would catch an Exception."""


# 2. Words, and values inside objects --------------------------------------------------------------


def printable(text: str) -> str:
    """Return the text as one line in which no control character can steer a terminal."""
    if text.isprintable():  # as nearly always
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


REDACTED = "<redacted>"
SECRET_TEXTS = (  # of messages: what looks like a secret, and what is shown
    (r"(://[^\s/:@]*:)\S{1,500}@(?!sha256:)", rf"\1{REDACTED}@"),  # the password of a URL
    (r"(https?://)[^\s/:@]+@", rf"\1{REDACTED}@"),
    (r"(?i)\b(bearer|basic)\s+[^\s\"']{8,}", rf"\1 {REDACTED}"),
    (r"(?<![\w-])ey[\w-]{8,}\.[\w-]+\.[\w-]*", REDACTED),  # a JSON Web Token
    (r"(?s)-----BEGIN .*?(-----END [^-]*-----|\Z)", REDACTED),  # PEM
    (  # password=..., AWS_SECRET_ACCESS_KEY=...
        r"(?i)((?:password|passwd|secret_access_key|api_key)[\"']?\s{0,4}[=:]\s{0,4}[\"']?)"
        r"[^\s\"',;&]{1,4096}",
        rf"\1{REDACTED}",
    ),
    (  # access_token: ..., but not "token: denied"
        r"(?i)(token[\"']?\s{0,4}[=:]\s{0,4}[\"']?)(?=[^\s\"',;&]{8}|\D{0,7}\d)[^\s\"',;&]{1,4096}",
        rf"\1{REDACTED}",
    ),
)


def redact_text(text: str) -> str:
    """Return a text, such as a message of the API server, without what looks like a secret."""
    for pattern, shown in SECRET_TEXTS:
        text = re.sub(pattern, shown, text)
    return text


def message_text(text: str) -> str:
    """Return a message of the cluster without secrets, and without the HTML of a webhook."""
    return redact_text(re.split("(?i)<!doctype|<html", text)[0].strip())


def said(message: str, width: int = 1000) -> str:
    """Return a message of the cluster as one quoted text: anybody may have written it."""
    text = shorten(message_text(" ".join(message.split())), width).replace('"', "'")
    return f'"{text}"' if text else ""


def short_reason(message: str) -> str:
    """Return what a person reads of a rejection: without the Pod's name."""
    return shorten(re.sub(r'^(\d+ )?pods "[^"]*" is forbidden: ', "", message), 300)


def image_version(image: str) -> str:
    """Return the part of an image that tells its version.

    >>> image_version("docker.io/istio/proxyv2:1.27.0")
    '1.27.0'
    >>> image_version("localhost:5000/proxyv2")  # the port is no tag
    'latest'
    >>> image_version("proxyv2@sha256:0123456789abcdef")
    'sha256:0123456789ab'
    """
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if tag:
        return tag
    return digest[:19] or "latest"


def join_words(words: Sequence[str], conjunction: str = "and") -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def join_texts(separator: str, *texts: str) -> str:
    """Return the texts that are not empty, with a separator between them."""
    return separator.join(filter(None, texts))


def shorten(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return text[: max(width - 3, 1)] + "..."


def count_of(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"


def has_or_have(count: int) -> str:
    """Return the verb for so many Pods."""
    return "has" if count == 1 else "have"


def count_words(counts: Mapping[str, int]) -> str:
    """Return `2 succeeded, 1 failed`, without those that are 0."""
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def reason_counts(counts: Mapping[str, int]) -> str:
    """Return `17 drifted, 1 rejected, 1 static Pod` of reasons why Pods are not up to date."""
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    return count_words(dict(rows))


def group_by(items: Iterable[Item], key: Callable[[Item], Any]) -> defaultdict[Any, list[Item]]:
    groups = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def human_duration(seconds: float) -> str:
    """Return a duration as kubectl shows ages, in at most two units.

    >>> human_duration(45.9), human_duration(200), human_duration(18600)
    ('45s', '3m20s', '5h10m')
    >>> human_duration(4 * 86400 + 59)  # the two largest units, one of which is 0 here
    '4d'
    >>> human_duration(-1)
    '0s'
    """
    minutes, second = divmod(max(int(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    while parts and not parts[0][0]:
        parts.pop(0)
    texts = [f"{number}{unit}" for number, unit in parts[:2] if number]
    return "".join(texts) or "0s"


def nested(obj: Json, path: str) -> Any:
    """Return what stands at a path such as `spec.template` of an object of the API.

    {} if it is absent, empty, false or 0, also for a number or a text: see `or 0`.
    """
    for key in path.split("."):
        obj = obj.get(key) or {}
    return obj


def format_time(moment: datetime) -> str:
    """Return a time in UTC, in whole seconds, as Kubernetes writes it."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_cutoff(cutoff: datetime) -> str | None:
    """Return a cutoff as JSON records have it; None: there is none."""
    if cutoff == NO_CUTOFF:
        return None
    return format_time(cutoff)


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def with_keys(mapping: Json, keys: Iterable[str]) -> Json:
    return {key: mapping[key] for key in keys if key in mapping}


def without_keys(mapping: Json, *keys: str) -> Json:
    return {key: value for key, value in mapping.items() if key not in keys}


def packed(value: Any) -> bytes:
    """Return a value as compressed JSON: a quarter of the memory, in 0.1 ms per Pod.

    Equal values are equally packed, whatever the order of their keys.
    """
    return zlib.compress(json.dumps(value, sort_keys=True).encode(), 1)


def unpacked(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))


def packed_object(obj: Json) -> bytes:
    """Return an object of the API as Found keeps it; empty if it does not exist."""
    if not obj:
        return b""
    return packed(obj)


@functools.lru_cache(maxsize=64)  # the rules ask for the same one over and over
def unpacked_object(data: bytes) -> Json:
    """Return a packed object, shared by all who ask: it is not to be changed."""
    if not data:
        return {}
    return unpacked(data)


@functools.cache
def interned(value: Any) -> Any:
    """Return an equal value that is kept only once; 150,000 Pods have 16,000 views."""
    return value


def did_you_mean(name: str, existing: Collection[str]) -> str:
    """Return a question about names that are like one that does not exist; empty if none is."""
    close = difflib.get_close_matches(name, existing)
    if not close:
        return ""
    return f"did you mean {join_words(close, 'or')}?"


def is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def matches(name: str, patterns: Sequence[str]) -> bool:
    return name in patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def has_any(wanted: Iterable[AnnotationFilter], *annotations: Labels) -> bool:
    for key, pattern in wanted:
        for labels in annotations:
            if key in labels and fnmatch.fnmatchcase(labels[key], pattern):
                return True
    return False


# 3. Reading objects of the API --------------------------------------------------------------------


def name_of(obj: Json) -> str:
    return obj["metadata"]["name"]


def uid_of(pod: Json) -> str:
    return pod["metadata"]["uid"]


def annotations_of(obj: Json) -> dict[str, str]:
    return nested(obj, "metadata.annotations")


def template_annotations(workload: Json) -> dict[str, str]:
    return annotations_of(nested(workload, "spec.template"))


def row_of(ref: ObjectRef) -> Kind | None:
    """Return the row of KINDS; None for custom resources, also of a kind with the same name."""
    row = KINDS.get(ref.kind)
    return row if row and row.group == ref.group else None


def has_template(ref: ObjectRef) -> bool:
    """Return whether its Pod template can be read; custom resources have it in other fields."""
    return row_of(ref) is not None


def has_rollout(ref: ObjectRef) -> bool:
    """Return whether it can be restarted, and waited for."""
    row = row_of(ref)
    return bool(row and row.wait)


def is_job(ref: ObjectRef) -> bool:
    return ref.kind == "Job" and ref.group == "batch"


def is_listed(ref: ObjectRef) -> bool:
    """Return whether objects of its kind are listed, and so known also without Pods."""
    row = row_of(ref)
    return bool(row and row.how_to_select)


def have_replica_sets(kinds: Iterable[str]) -> bool:
    """Return whether Pods of one of the kinds belong to ReplicaSets."""
    return any(KINDS[kind].has_replica_sets for kind in kinds)


def controller_reference(obj: Json) -> Json:
    """Return the owner reference that is marked as the controller; empty if there is none.

    It need not be the first.
    """
    for reference in nested(obj, "metadata.ownerReferences"):
        if reference.get("controller"):
            return dict(reference)
    return {}


API_NAME = re.compile("[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # RFC 1123
API_KIND = re.compile("[A-Za-z][A-Za-z0-9]{0,62}")


def controller_uid(obj: Json) -> str:
    """Return the UID of the controller, whatever API version the reference was written with."""
    return str(controller_reference(obj).get("uid", ""))


def controller_of(obj: Json) -> ObjectRef | None:
    """Return the controller of an object; None if it has none.

    ValueError if the API can have no such object: of what an owner reference says, the API server
    checks only that it is not empty, and its words would stand in requests and printed commands.
    """
    controller = possible_controller_of(obj)
    if controller is None and controller_reference(obj):
        raise ValueError("its controller reference has a kind or name that no object can have")
    return controller


def possible_controller_of(obj: Json) -> ObjectRef | None:
    """Return the controller of an object; None if it has none that the API can have."""
    reference = controller_reference(obj)
    if not reference:
        return None
    group = reference["apiVersion"].rpartition("/")[0]
    is_possible = API_KIND.fullmatch(reference["kind"]) and API_NAME.fullmatch(reference["name"])
    if not is_possible or (group and not API_NAME.fullmatch(group)):
        return None
    if group == "extensions":  # of references that were written before Kubernetes 1.16
        group = "apps"
    namespace = obj["metadata"].get("namespace", "")  # a template has none
    return ObjectRef(*map(sys.intern, (reference["kind"], namespace, reference["name"], group)))


def conditions_of(obj: Json) -> dict[tuple[str, str], Json]:
    """Return the conditions of an object by type and status, such as ("Ready", "True")."""
    return {(c["type"], c["status"]): c for c in nested(obj, "status.conditions")}


def has_ended(pod: Json) -> bool:
    return nested(pod, "status.phase") in ("Succeeded", "Failed")


def is_ending(pod: Json) -> bool:
    """Return whether a Pod has ended, or is being deleted (it may still be ready)."""
    return has_ended(pod) or bool(nested(pod, "metadata.deletionTimestamp"))


HELD_AFTER = timedelta(minutes=10)  # beyond the grace period of nearly all Pods


def is_held(pod: Json, now: datetime) -> bool:
    """Return whether a Pod was deleted more than ten minutes ago: something holds it.

    Its deletionTimestamp is when the grace period ends, which anybody may ask for.

    >>> now = parse_time("2026-11-29T12:00:00Z")
    >>> is_held({"metadata": {}}, now)
    False
    >>> metadata = {"deletionTimestamp": "2026-11-29T11:50:20Z", "deletionGracePeriodSeconds": 30}
    >>> is_held({"metadata": metadata}, now)
    True
    >>> is_held({"metadata": metadata | {"deletionGracePeriodSeconds": 10}}, now)
    False
    """
    end = nested(pod, "metadata.deletionTimestamp")
    seconds = nested(pod, "metadata.deletionGracePeriodSeconds") or 0
    grace = timedelta(seconds=min(seconds, 10**10))  # anybody may ask for more than a date can have
    return bool(end) and parse_time(end) - grace < now - HELD_AFTER


def not_ending(pods: Iterable[Json]) -> list[Json]:
    return [pod for pod in pods if not is_ending(pod)]


def created_at(pod: Json) -> datetime:
    """Return when a Pod was created, by the API server's clock; startTime is by the node's."""
    return parse_time(pod["metadata"]["creationTimestamp"])


def is_ready(pod: Json) -> bool:
    conditions = nested(pod, "status.conditions")
    return any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)


def ordinal_of(pod: Json) -> int:
    """Return the ordinal of a StatefulSet's Pod; 0 of others."""
    ordinal = name_of(pod).rpartition("-")[2]
    is_numbered = "statefulset.kubernetes.io/pod-name" in nested(pod, "metadata.labels")
    if is_numbered and ordinal.isdecimal():
        return int(ordinal)
    return 0


def node_suffix(pod: Json) -> str:
    """Return ` on node x`: the node may be down. Empty if a Pod has none."""
    node = pod["spec"].get("nodeName")
    if not node:
        return ""
    return f" on node {node}"


def pod_and_node(pod: Json) -> str:
    """Return `web-0 on node x`."""
    return f"{name_of(pod)}{node_suffix(pod)}"


REGULAR, NATIVE, INIT = "regular", "native", "init"  # as plans and hashes have them


def containers_of(pod: Json) -> Iterator[tuple[str, Json]]:
    """Yield the containers, each with its kind: regular, native sidecar or init container."""
    for container in pod["spec"]["containers"]:
        yield REGULAR, container
    for container in nested(pod, "spec.initContainers"):
        yield NATIVE if container.get("restartPolicy") == "Always" else INIT, container


def named_containers(pod: Json, names: Names) -> Iterator[tuple[str, Json]]:
    """Yield the named containers of a Pod, each with its kind."""
    for kind, container in containers_of(pod):
        if matches(container["name"], names):
            yield kind, container


def container_names(pod: Json) -> list[str]:
    return [container["name"] for _, container in containers_of(pod)]


def images_of(pod: Json) -> dict[str, str]:
    """Return the image of each container, by name."""
    return {container["name"]: container.get("image", "") for _, container in containers_of(pod)}


def as_sidecar(kind: str, container: Json) -> Sidecar:
    """Return a container with its kind as a sidecar."""
    image = shorten(printable(container.get("image", "")), 300)
    return Sidecar(container["name"], image, kind == NATIVE, kind == INIT)


# The image of a container that an injector is to fill in: Istio's word for gateways and customized
# sidecars. No registry has a public image of that name.
STUB = re.compile(r"auto(-\w+)?")


def injected_names(pod: Json) -> list[str]:
    """Return the names of a Pod's containers, without those whose image is still a stub."""
    return [name for name, image in images_of(pod).items() if not STUB.fullmatch(image)]


INIT_MARK = " (init)"  # after the name of an ordinary init container, in texts of containers


def container_texts(pod: Json) -> frozenset[str]:
    """Return the containers of a Pod or Pod template, without stubs, as the annotation of a restart
    has them: `istio-init (init)`, `istio-proxy`."""
    filled = injected_names(pod)
    texts = set()
    for kind, container in containers_of(pod):
        if container["name"] in filled:
            texts.add(container["name"] + (INIT_MARK if kind == INIT else ""))
    return frozenset(texts)


def stated_texts(workload: Json) -> frozenset[str]:
    """Return the containers that the Pod template of a workload states itself."""
    template = nested(workload, "spec.template")
    return container_texts(template) if "spec" in template else frozenset()


def plain_names(texts: Iterable[str]) -> set[str]:
    """Return the names in texts of containers."""
    return {text.removesuffix(INIT_MARK) for text in texts}


def named_texts(texts: Iterable[str], names: Names) -> set[str]:
    """Return the texts of those containers that the command line names."""
    return {text for text in texts if matches(text.removesuffix(INIT_MARK), names)}


def noted_texts(annotations: Labels) -> frozenset[str]:
    """Return the containers that Pods were to have by annotations of this command, whatever their
    prefix. Of those that anybody may have written, the first hundred."""
    texts = []
    for key, value in annotations.items():
        if key.endswith(".rollout.sidecars"):
            texts += re.findall(r"\b[a-z0-9-]{1,63}\b(?: \(init\))?", value)
    return frozenset(texts[:100])


@functools.lru_cache(maxsize=4096)  # most Pods have the same containers
def lost_of(
    must: frozenset[str], has: frozenset[str], known: frozenset[str], names: tuple[str, ...]
) -> frozenset[str]:
    """Return the names of the containers that a Pod must have and lacks; all are texts.

    An init container may be replaced by another one: with Istio CNI, istio-validation takes the
    place of istio-init. That is an init container that is not `known` from before, and that the
    name or pattern of the command line which is about the lost one is about, too.

    >>> both = frozenset(["istio-init (init)", "istio-proxy"])
    >>> proxy = frozenset(["app", "istio-proxy"])
    >>> lost_of(both, proxy, both, ("istio-*",))  # the proxy is no init container
    frozenset({'istio-init'})
    >>> cni = proxy | {"istio-validation (init)"}
    >>> lost_of(both, cni, both, ("istio-*",)), lost_of(both, cni, cni, ("istio-*",))
    (frozenset(), frozenset({'istio-init'}))
    >>> lost_of(both, cni, both, ("istio-proxy", "istio-init"))
    frozenset({'istio-init'})
    """
    present = plain_names(has)
    new = plain_names(text for text in has - known if text.endswith(INIT_MARK))
    lost = set()
    for text in must:
        name = text.removesuffix(INIT_MARK)
        patterns = [pattern for pattern in names if fnmatch.fnmatchcase(name, pattern)]
        is_replaced = text != name and any(matches(other, patterns) for other in new)
        if name not in present and not is_replaced:
            lost.add(name)
    return frozenset(lost)


def container_statuses(pod: Json) -> list[Json]:
    return [*nested(pod, "status.initContainerStatuses"), *nested(pod, "status.containerStatuses")]


def container_ids(pod: Json) -> dict[str, str]:
    return {status["name"]: status.get("containerID", "") for status in container_statuses(pod)}


CRASH_LOOP, UNSCHEDULABLE = "CrashLoopBackOff", "Unschedulable"
STUCK = (
    CRASH_LOOP,
    "RunContainerError",
    "CreateContainerError",
    "CreateContainerConfigError",
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
)


class Stuck(NamedTuple):
    """A container that does not start, and why: Kubernetes' word, and a message."""

    name: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"container {join_texts(': ', *self)}"


def restart_counts(pod: Json) -> dict[str, int]:
    return {s["name"]: s.get("restartCount", 0) for s in container_statuses(pod)}


def exit_text(ended: Json) -> str:
    """Return how a container ended: `OOMKilled`, or `Error (exit code 1)`; and its message."""
    reason = ended.get("reason", "unknown")
    code = f" (exit code {ended.get('exitCode')})" if reason in ("Error", "Completed") else ""
    return join_texts(": ", f"{reason}{code}", said(ended.get("message", ""), 200))


def is_in_crash_loop(pod: Json, status: Json) -> bool:
    """Return whether a container ended again, and the kubelet is to start it once more.

    For almost all of the back-off, its state is `terminated`; `waiting` comes at its end.
    """
    ended = nested(status, "state.terminated")
    if not ended or not status.get("restartCount"):
        return False
    for kind, container in named_containers(pod, [status["name"]]):
        policy = container.get("restartPolicy") or nested(pod, "spec.restartPolicy") or "Always"
        return policy == "Always" and (kind != INIT or ended.get("exitCode") != 0)
    return False


def stuck_containers(pod: Json) -> Iterator[Stuck]:
    """Yield the containers that do not start."""
    for status in container_statuses(pod):
        waiting = nested(status, "state.waiting")
        reason, message = waiting.get("reason"), said(waiting.get("message") or "")
        if reason == CRASH_LOOP or is_in_crash_loop(pod, status):
            ended = nested(status, "state.terminated") or nested(status, "lastState.terminated")
            reason = CRASH_LOOP
            if ended:
                message = exit_text(ended)
        if reason in STUCK:
            yield Stuck(status["name"], reason, message)


def stuck_sidecars(pod: Json, names: Names) -> set[str]:
    """Return the named sidecars that do not start."""
    return {stuck.name for stuck in stuck_containers(pod) if matches(stuck.name, names)}


def has_unready_sidecar(pod: Json, names: Names) -> bool:
    """Return whether a named sidecar does not start, or was started and is not ready."""
    for status in container_statuses(pod):
        if status.get("ready") or not matches(status["name"], names):
            continue
        if "waiting" not in nested(status, "state"):
            return True
    return bool(stuck_sidecars(pod, names))


def waiting_reason(pod: Json) -> str:
    """Return why a Pod does not run, in Kubernetes' word; empty if nothing is wrong."""
    for stuck in stuck_containers(pod):
        return stuck.reason
    for condition in nested(pod, "status.conditions"):
        if condition.get("reason") == UNSCHEDULABLE:
            return UNSCHEDULABLE
    return ""


def has_no_containers(pod: Json) -> bool:
    """Return whether a Pod has a node, but none of its containers: an event tells why."""
    statuses = container_statuses(pod)
    return bool(statuses) and not any(container_ids(pod).values()) and not waiting_reason(pod)


def pod_problem(pod: Json) -> str:
    """Return `name: why it is not ready` of a Pod; empty if it is.

    If its node is down, the node lifecycle controller makes it unready, without a message.
    """
    if is_ready(pod):
        return ""
    for stuck in stuck_containers(pod):
        return f"{name_of(pod)}: {stuck}"
    conditions = conditions_of(pod)
    for kind in ("PodScheduled", "Ready"):  # with the scheduler's message, the kubelet's
        message = conditions.get((kind, "False"), {}).get("message")
        if message:
            return f"{name_of(pod)}: {said(message)}"
    statuses = container_statuses(pod)
    if statuses and all(status.get("ready") for status in statuses):
        return f"{name_of(pod)}: its node {pod['spec'].get('nodeName')} may be down"
    return ""


class Counts(NamedTuple):
    """How many Pods an owner of Pods states in its spec and status."""

    desired: int
    available: int
    current: int
    updated: int


def counts_of(ref: ObjectRef, obj: Json) -> Counts:
    """Return how many Pods a workload states; 0 is absent in its status."""
    row = row_of(ref)
    paths = row.counts if row else REPLICAS
    return Counts(*(nested(obj, path) or 0 for path in paths))


def ready_seconds(workload: Json) -> int:
    """Return for how many seconds a Pod must be ready to be available."""
    return nested(workload, "spec.minReadySeconds") or 0


def shortage_of(ref: ObjectRef, obj: Json) -> str:
    """Return `1 of 3 available`; empty if a workload has all Pods that it wants."""
    counts = counts_of(ref, obj)
    if counts.available < counts.desired:
        return f"{counts.available} of {counts.desired} available"
    return ""


def misscheduled(workload: Json) -> int:
    """Return how many Pods a DaemonSet has where it wants none: on nodes that do not want them."""
    return nested(workload, "status.numberMisscheduled") or 0


def is_observed(workload: Json) -> bool:
    generation = nested(workload, "metadata.generation") or 0
    return (nested(workload, "status.observedGeneration") or 0) >= generation


def is_paused(workload: Json) -> bool:
    return bool(nested(workload, "spec.paused"))


def is_on_delete(workload: Json) -> bool:
    return nested(workload, "spec.updateStrategy.type") == "OnDelete"


def is_ordered_ready(workload: Json) -> bool:
    """Return whether no Pod is created while one with a lower ordinal is not ready."""
    return nested(workload, "spec.podManagementPolicy") == "OrderedReady"


def partition_of(workload: Json) -> int:
    """Return the partition of a StatefulSet: a rollout leaves the Pods below it alone."""
    return nested(workload, "spec.updateStrategy.rollingUpdate.partition") or 0


def is_below_partition(workload: Json, pod_name: str) -> bool:
    """Return whether a rollout leaves a Pod alone. The partition counts from spec.ordinals.start.

    Kubernetes' pkg/controller/statefulset/stateful_set_utils.go, newVersionedStatefulSetPod.
    """
    start = nested(workload, "spec.ordinals.start") or 0
    partition = partition_of(workload)
    ordinal = pod_name.rpartition("-")[2]
    return bool(partition) and ordinal.isdigit() and int(ordinal) < start + partition


def failure_condition(workload: Json) -> str:
    """Return what a workload's conditions say about a failure, or an empty text."""
    conditions = conditions_of(workload)
    failed = conditions.get(("ReplicaFailure", "True")) or conditions.get(("Progressing", "False"))
    if not failed:
        return ""
    return said(failed.get("message", ""))


RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"  # of kubectl rollout restart


OURS = re.compile(r".*\.rollout\.(timestamp|reason|revision|sidecars|by|template)")


def template_hash(workload: Json) -> str:
    """Return 12 hex digits of a Pod template as its team wrote it: without what restarts set.

    Its labels, annotations and spec: other metadata depends on the version of the API server.
    """
    template = nested(workload, "spec.template")
    annotations = {}
    for key, value in annotations_of(template).items():
        if key != RESTARTED_AT and not OURS.fullmatch(key):
            annotations[key] = value
    parts = [annotations, nested(template, "metadata.labels"), nested(template, "spec")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


RESTARTED = re.compile(r"([0-9a-f]{12}) until (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")


def restarted_template(workload: Json, prefix: str) -> tuple[str, str]:
    """Return the hash of the Pod template that this command restarted, and until when that run
    waited for its rollout; empty texts: it never did. See Restart.annotations."""
    noted = template_annotations(workload).get(f"{prefix}.rollout.template", "")
    found = RESTARTED.fullmatch(noted)
    return (found[1], found[2]) if found else ("", "")


def timestamps_of(workload: Json) -> list[str]:
    """Return the times at which this command restarted a workload.

    Also those in restartedAt if it has a controller: operators keep no other annotation.
    """
    return timestamps_in(template_annotations(workload), bool(controller_reference(workload)))


def timestamps_in(annotations: Labels, is_controlled: bool) -> list[str]:
    """Return the times in annotations of a Pod template, or of a Pod; see timestamps_of."""
    times = []
    for key, value in annotations.items():
        if key.endswith(".rollout.timestamp") or (is_controlled and key == RESTARTED_AT):
            times.append(value)
    return times


def restarted_since(workload: Json, since: str) -> bool:
    """Return whether `kubectl rollout restart`, or a tool like it, restarted a workload since a
    time; also if that cannot be read."""
    restarted = template_annotations(workload).get(RESTARTED_AT, "")
    if not restarted:
        return False
    try:
        return parse_time(restarted) > parse_time(since)
    except (ValueError, TypeError):  # anybody may have written it
        return True


def is_never_complete(workload: Json) -> bool:
    """Return whether its controller has a record of the last rollout, and never called it complete.

    A Pod that becomes unready later does not change that. A DaemonSet has no record, nor has a
    StatefulSet with a partition, or a Deployment without a progress deadline. Kubernetes'
    pkg/controller/deployment/progress.go and statefulset/stateful_set_control.go.
    """
    conditions = conditions_of(workload)
    if ("Progressing", "False") in conditions:
        return True
    progress = conditions.get(("Progressing", "True"))  # Unknown: it was paused since
    if progress:
        return progress.get("reason") != "NewReplicaSetAvailable"
    current = nested(workload, "status.currentRevision")  # of a StatefulSet; of others, both absent
    updated = nested(workload, "status.updateRevision")
    return updated != current and not partition_of(workload)


def why_images_managed(pod: Json) -> str:
    if "kruise.io/sidecarset-hash" in annotations_of(pod):
        return "managed by an OpenKruise SidecarSet; change its images there"
    return ""


POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
HASH_LABEL = "pod-template-hash"
CONTROLLER_LABELS = (
    HASH_LABEL,
    "controller-revision-hash",
    "pod-template-generation",
    POD_INDEX_LABEL,
    POD_NAME_LABEL,
)
# Between the ordinals of a StatefulSet and those of dry runs: Pods of a scale-down still terminate
UNUSED_ORDINALS = 100
TOKEN_VOLUME = "kube-api-access-[a-z0-9]{5}"  # each Pod has its own name for it
USES = {"volumeMounts": "mountPath", "volumeDevices": "devicePath"}  # of volumes, and where


def pod_to_create(workload: ObjectRef, obj: Json, sample: Json, number: int = 0) -> Json:
    """Return the Pod that the workload's controller would create from its template now.

    Injectors read more than the template: Istio takes the workload's name from generateName,
    the controller reference and the label pod-template-hash. These come from a live Pod; nothing
    else does, because an injector skips a Pod that has its sidecar. The Pod of a StatefulSet has a
    name, by its ordinal; `number` makes another one.
    """
    template = obj["spec"]["template"]
    live = sample["metadata"]
    spec = without_keys(template["spec"], "nodeName")
    labels = nested(template, "metadata.labels") | with_keys(
        nested(live, "labels"), CONTROLLER_LABELS
    )
    metadata = {
        **with_keys(nested(template, "metadata"), ("annotations", "finalizers")),
        "generateName": live.get("generateName") or f"{workload.name}-",
        "ownerReferences": [
            without_keys(reference, "blockOwnerDeletion")
            for reference in nested(live, "ownerReferences")
            if reference.get("controller")
        ],
    }
    if workload.kind == "StatefulSet":  # its controller adds claims, hostname and subdomain
        start = nested(obj, "spec.ordinals").get("start", 0)
        counts = counts_of(workload, obj)
        ordinal = str(start + max(counts.desired, counts.current) + UNUSED_ORDINALS + number)
        pod_name = f"{workload.name}-{ordinal}"
        metadata["name"] = pod_name
        own_labels = {POD_NAME_LABEL: pod_name, POD_INDEX_LABEL: ordinal}
        labels |= with_keys(own_labels, labels)  # only those that live Pods have
        volumes = {volume["name"]: volume for volume in nested(spec, "volumes")}
        for name in map(name_of, nested(obj, "spec.volumeClaimTemplates")):
            claim = {"claimName": f"{name}-{pod_name}"}
            volumes[name] = {"name": name, "persistentVolumeClaim": claim}
        spec |= {
            "volumes": [*volumes.values()],
            "hostname": pod_name,
            "subdomain": obj["spec"].get("serviceName", ""),
        }
    metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def sidecar_parts(pod: Json, names: Names) -> Json:
    """Return the named sidecars of a Pod by name: kind, container, and the volumes it uses."""
    parts = {}
    for kind, container in named_containers(pod, names):
        used = {use["name"] for key in USES for use in nested(container, key)}
        volumes = [
            volume
            for volume in nested(pod, "spec.volumes")
            if volume["name"] in used and not re.fullmatch(TOKEN_VOLUME, volume["name"])
        ]
        parts[container["name"]] = [kind, container, volumes]
    return parts


def plain_json(value: Any) -> str:
    """Return the JSON of a value, with the same name for the volume of a token in all Pods."""
    return re.sub(f'"name": "{TOKEN_VOLUME}"', '"name": "kube-api-access"', json.dumps(value))


METADATA_FIELD = re.compile(r'"fieldPath": "metadata\.(annotations|labels)\[\'([^\']+)\'\]"')
LARGE_VALUE = 16_000  # characters: what is longer is compared by its hash
LARGEST_VIEW = 1_000_000  # characters of the sidecars of a Pod, with what they refer to


def with_metadata(text: str, pod: Json) -> str:
    """Return the JSON of containers and volumes with the values of annotations and labels that they
    refer to. ValueError if it is too large to compare.

    Kuma and Istio configure a sidecar like that. What a new Pod does not have, and what controllers
    set in each Pod, stays a reference. Many may refer to one large value: that is counted first.
    """

    def value_of(match: re.Match[str]) -> str | None:
        section, key = match.groups()
        if key in CONTROLLER_LABELS:
            return None
        value: str | None = nested(pod, f"metadata.{section}").get(key)
        return value

    def with_value(match: re.Match[str]) -> str:
        value = value_of(match)
        return match[0] if value is None else f'{match[0]}, "value": {json.dumps(value)}'

    size = len(text) + sum(len(value_of(match) or "") for match in METADATA_FIELD.finditer(text))
    if size > LARGEST_VIEW:
        raise ValueError(f"its sidecars are too large to compare ({size} characters)")
    return METADATA_FIELD.sub(with_value, text)


def view_of(pod: Json, names: Names) -> bytes:
    """Return the named sidecars of a Pod and the volumes they mount, in normal form, packed.

    If the views of two Pods are equal, nothing differs. The name and UID of a Deployment's
    ReplicaSet are no difference in a variable: each rollout creates another one, and the
    OpenTelemetry operator writes both into one. Anywhere else, such as in an image, they are: a
    ReplicaSet may be named 1.27.0-abc. ValueError if it is too large to compare.
    """
    parts = sidecar_parts(pod, names)
    text = plain_json(parts)
    reference = controller_reference(pod)
    name, uid = reference.get("name", ""), reference.get("uid", "")
    template_hash = nested(pod, "metadata.labels").get(HASH_LABEL)
    is_replica_set = template_hash and name.endswith(f"-{template_hash}")
    if is_replica_set and re.fullmatch("[0-9a-f-]{36}", uid) and (name in text or uid in text):
        for part in parts.values():
            part[1] = without_owner(part[1], name, uid)
        text = plain_json(parts)
    text = with_metadata(text, pod)
    return normal_view(text) if len(text) < 4 * LARGE_VALUE else normal_view.__wrapped__(text)


def without_owner(container: Json, name: str, uid: str) -> Json:
    """Return a container without the name and UID of its ReplicaSet in the values of variables."""
    variables = []
    for variable in nested(container, "env"):
        if "value" in variable:
            value = variable["value"].replace(name, "REPLICASET").replace(uid, "UID")
            variable = variable | {"value": value}
        variables.append(variable)
    return container | {"env": variables}


@functools.lru_cache(maxsize=4096)
def normal_view(text: str) -> bytes:
    """Return the JSON of view_of in normal form. Cached: most Pods of a workload are equal."""
    sidecars = json.loads(text, object_hook=without_empty).items()
    return packed({name: normal_container(*parts) for name, parts in sidecars})


def without_empty(fields: Json) -> Json:
    """Return an object without empty fields, which the API server does not always leave out, and
    without large values."""
    form = {}
    for key, value in fields.items():
        if isinstance(value, list):
            value = list(map(bounded, value))
            if len(value) > 1000 and isinstance(value[0], str):  # arguments, by their hash
                value = bounded(json.dumps(value))
        if value not in (None, {}, [], ""):
            form[key] = bounded(value)
    return form


HASHED = "sha256 "  # and the digest, in place of a large value


def bounded(value: Any) -> Any:
    """Return a value, or the hash of a large text."""
    if not isinstance(value, str) or len(value) <= LARGE_VALUE:
        return value
    return f"{HASHED}{hashlib.sha256(value.encode('utf-8', 'replace')).hexdigest()}"


def normal_container(kind: str, container: Json, volumes: Sequence[Json]) -> Json:
    """Return a container in which lists with keys are dicts, and equal values are equal.

    Volumes have no names: an injector may make another one for each Pod. What the API server adds
    to each container, such as the protocol of a port, is the same as nothing.

    >>> ports = [{"containerPort": 80}], [{"containerPort": 80, "protocol": "TCP"}]
    >>> one, other = (normal_container(REGULAR, {"name": "a", "ports": p}, []) for p in ports)
    >>> one == other, one["ports"]
    (True, {'80/TCP': {'containerPort': 80}})
    >>> native = {"name": "a", "restartPolicy": "Always"}
    >>> normal_container(NATIVE, native, [])["position"]  # which says the same
    'native'
    >>> mounts = [{"name": "certs-x7k2p", "mountPath": "/certs"}]
    >>> volumes = [{"name": "certs-x7k2p", "configMap": {"name": "ca"}}]
    >>> form = normal_container(REGULAR, {"name": "a", "volumeMounts": mounts}, volumes)
    >>> form["volumeMounts"], form["volumes"]
    ({'/certs': {}}, {'/certs': {'configMap': {'name': 'ca'}}})
    """
    form = without_keys(container, "name")
    if kind == NATIVE:  # by its restartPolicy
        del form["restartPolicy"]
    form["position"] = kind
    form["resources"] = {"limits": {}, "requests": {}} | nested(form, "resources")
    form["env"] = normal_variables(nested(form, "env"))
    ports = {}
    for port in nested(form, "ports"):
        name = f"{port['containerPort']}/{port.get('protocol', 'TCP')}"
        ports[name] = without_keys(port, "protocol")
    form["ports"] = ports
    by_name = {volume["name"]: normal_volume(volume) for volume in volumes}
    form["volumes"] = {}
    for kind_of_use, path in USES.items():
        uses = {}
        for use in nested(form, kind_of_use):
            uses[use[path]] = without_keys(use, "name", path)
            if use["name"] in by_name:
                form["volumes"][use[path]] = by_name[use["name"]]
        form[kind_of_use] = uses
    return form


def normal_variables(variables: Iterable[Json]) -> Json:
    """Return environment variables by name: text, its JSON, or where it comes from.

    Their order counts only where a value has $(VAR), which expands to an earlier variable: if VAR
    stands below it, the text stays as it is.

    >>> normal_variables([{"name": "A", "value": "1"}, {"name": "B"}])
    {'A': '1', 'B': ''}
    >>> normal_variables([{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)"}])["B"]
    {'value': '$(A)$(C)', 'expands': ['A']}
    >>> normal_variables([{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}])
    {'IP': {'from': {'fieldRef': {'fieldPath': 'status.podIP'}}}}
    """
    by_name: Json = {}
    for variable in variables:
        source = nested(variable, "valueFrom")
        value = variable.get("value", "")
        used = re.findall(r"\$\(([^()$]+)\)", value)
        form = {"from": source} if source else parsed_json(value)
        earlier = [name for name in used if name in by_name]
        by_name[variable["name"]] = {"value": form, "expands": earlier} if earlier else form
    return by_name


def parsed_json(text: str) -> Any:
    """Return the value of a text that is a JSON object or list; any other text as it is.

    So two injectors that write the same configuration in another order or with other spaces do not
    differ (PROXY_CONFIG). What is very deep stays a text: nobody reads it, and it may exhaust the
    stack. So does what has a null: nothing stands for both in a normal form.

    >>> parsed_json('{"b": 1, "a": [true]}') == parsed_json('{"a":[true],"b":1}')
    True
    >>> parsed_json("1.27"), parsed_json("{not json")
    ('1.27', '{not json')
    >>> parsed_json('{"a": null}')
    '{"a": null}'
    """
    has_null = re.search(r"\bnull\b", text)  # which is not the same as nothing
    if text.strip()[:1] not in ("{", "[") or has_null:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if is_deeper(value, 10) else value


def is_deeper(value: Any, levels: int) -> bool:
    """Return whether a value has more levels of objects and lists.

    >>> is_deeper({"a": ["b"]}, 2)
    False
    >>> is_deeper({"a": ["b"]}, 1)
    True
    >>> is_deeper("[[[", 1)
    False
    """
    if isinstance(value, dict):
        value = [*value.values()]
    if not isinstance(value, list):
        return False
    return levels == 0 or any(is_deeper(part, levels - 1) for part in value)


def normal_volume(volume: Json) -> Json:
    """Return a volume's definition; the claim of a StatefulSet's Pod has the Pod's name in it."""
    form = without_keys(volume, "name")
    claim = nested(form, "persistentVolumeClaim")
    if claim and claim["claimName"].startswith(f"{volume['name']}-"):
        form["persistentVolumeClaim"] = claim | {"claimName": f"{volume['name']}-(Pod)"}
    return form


def containers_in(managed: Json) -> Iterator[tuple[str, Json]]:
    """Yield the containers that an entry of managedFields owns fields of, and these fields."""
    for containers in nested(managed, "fieldsV1.f:spec").values():
        for key, owned in containers.items():  # k:{"name":"app"}
            for name in re.findall(r'^k:\{"name":"([^"]+)"\}', key):
                yield name, owned


def resized_fields(pod: Json) -> tuple[Path, ...]:
    """Return the resources that were changed in place, by a person or autoscaler: paths such as
    `("istio-proxy", "resources", "requests", "cpu")`.

    managedFields tell: an entry of the subresource `resize` owns just these.
    """
    paths = set()
    for entry in nested(pod, "metadata.managedFields"):
        if entry.get("subresource") != "resize":
            continue
        for container, owned in containers_in(entry):
            for section, names in nested(owned, "f:resources").items():
                for name in names:
                    paths.add((container, "resources", section[2:], name[2:]))  # without f:
    return tuple(sorted(paths))


def is_of_creation(entry: Json) -> bool:
    """Return whether an entry of managedFields is of who created a Pod; this field is immutable."""
    return "f:restartPolicy" in nested(entry, "fieldsV1.f:spec")


def image_changed_at(pod: Json) -> str:
    """Return when somebody changed an image of a Pod that was not restarted since.

    Empty if it was. Such a Pod may look ready, with the new image in its spec, while the old one
    still runs: managedFields tell when it was changed, and the status since when a container runs.
    Of a client that owns several images, or created the Pod, the time may be that of another write:
    a container that runs with the image of the spec was restarted.
    """
    has_creator = False
    for entry in nested(pod, "metadata.managedFields"):
        written = entry.get("time") or ""
        is_creator = is_of_creation(entry)
        has_creator |= is_creator
        older = {}  # the images of containers that run since before, as the runtime names them
        for status in container_statuses(pod):
            started = nested(status, "state.running").get("startedAt", "")
            if started < written and (started or not is_creator):
                older[status["name"]] = status.get("image")
        if not older:
            continue
        changed = {name for name, owned in containers_in(entry) if "f:image" in owned}
        is_certain = len(changed) == 1 and not is_creator
        for name in changed & older.keys():
            if is_certain or older[name] != images_of(pod)[name]:
                return str(written)
    if not has_creator:  # somebody has removed what tells
        for status in container_statuses(pod):
            image = images_of(pod).get(status["name"], "")
            is_running = nested(status, "state.running")
            if is_running and is_another_tag(status.get("image", ""), image):
                return str(pod["metadata"]["creationTimestamp"])
    return ""


def annotated_later(pod: Json) -> Iterator[str]:
    """Yield the annotations that were written after a Pod was created, by its managedFields."""
    owner = controller_of(pod)
    is_built_in = bool(owner and has_template(owner))
    for entry in nested(pod, "metadata.managedFields"):
        # A controller that adopts a Pod renews the time of its entry; an operator may have written
        is_creator = is_built_in and entry.get("operation") == "Update" and is_of_creation(entry)
        is_later = (entry.get("time") or "") > pod["metadata"].get("creationTimestamp", "")
        if is_later and not is_creator:
            for key in nested(entry, "fieldsV1.f:metadata.f:annotations"):
                yield key.removeprefix("f:")


def is_another_tag(one: str, other: str) -> bool:
    """Return whether two images are of the same name, and have other tags.

    >>> is_another_tag("docker.io/istio/proxyv2:1.26.2", "istio/proxyv2:1.27.0")
    True
    >>> is_another_tag("docker.io/istio/proxyv2:1.27.0", "istio/proxyv2:1.27.0")
    False
    >>> is_another_tag("sha256:0123", "istio/proxyv2:1.27.0")  # as some runtimes name it
    False
    """
    if "@" in one + other:  # a digest, which says more than the tag
        return False
    name, _, tag = one.rpartition("/")[2].partition(":")
    theirs, _, wanted = other.rpartition("/")[2].partition(":")
    return name == theirs and (tag or "latest") != (wanted or "latest")


def changed_at(config: Json) -> datetime:
    """Return when a ConfigMap or Secret last changed, by the managedFields that own its data.

    An entry without a time says nothing.
    """
    created = config["metadata"]["creationTimestamp"]
    last = created
    for entry in nested(config, "metadata.managedFields"):
        if nested(entry, "fieldsV1").keys() & {"f:data", "f:binaryData", "f:stringData"}:
            last = max(last, entry.get("time") or created)
    return parse_time(last)


def termination_text(pod: Json) -> str:
    """Return what a new Pod may wait for: the node of an old one may be down."""
    return f"Pod {pod_and_node(pod)} to terminate"


# 4. What each step returns of a workload: nothing is set afterwards -------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A workload, or whatever owns Pods, as it was read: by the plan, or again by a worker."""

    ref: ObjectRef  # of the Pods of a ReplicaSet, what its name implies until `merge`
    owners: tuple[ObjectRef, ...] = ()  # the controllers of the Pods
    pods: Sequence[LivePod] = ()
    sample: bytes = b""  # the metadata of a Pod, with a sidecar if any has it; see packed
    sidecars: frozenset[Sidecar] = frozenset()  # of the plan's Pods; empty: none had one
    stored: bytes | None = None  # the object; None: not read, empty: it does not exist
    namespace: Json = field(default_factory=lambda: NOTHING)  # with its metadata, if it is needed
    services: Names | None = None  # of which a Pod is an endpoint, ready or not; None: not known
    replicas: Sequence[frozenset[ObjectRef]] = ()  # of the same thing, by Service; see Replica
    short_replica: str = ""  # one that lacks Pods, by what was read last
    read_at: datetime = NO_CUTOFF  # by the API server's clock

    @property
    def obj(self) -> Json:
        """Return the object in the cluster, not to be changed; empty if it does not exist."""
        return unpacked_object(self.stored or b"")

    @property
    def counts(self) -> Counts:
        return counts_of(self.ref, self.obj)

    @property
    def subjects(self) -> list[ObjectRef]:
        """Return what is named if it is skipped: it, or the Pods of an owner that was not read."""
        if is_listed(self.ref) or self.stored:
            return [self.ref]
        return [ObjectRef("Pod", self.ref.namespace, pod.name) for pod in self.pods]

    @property
    def problem(self) -> str:
        """Return why it is unhealthy, for example CrashLoopBackOff; empty: it is not."""
        for pod in self.pods:
            if pod.problem:
                return pod.problem
        return shortage_of(self.ref, self.obj)

    @property
    def controller(self) -> ObjectRef | None:
        """Return the owner of a workload, such as a Prometheus, which may revert changes."""
        if not has_rollout(self.ref):
            return None
        return possible_controller_of(self.obj)


@dataclass(frozen=True, slots=True, eq=False)
class Today:
    """What Pods of a workload would be like if they were created now, or why it is not known."""

    view: bytes = b""  # the sidecars that would be injected
    containers: frozenset[str] = frozenset()  # of the whole Pod; see container_texts
    configs: Mapping[ObjectRef, bool] = field(default_factory=lambda: NOTHING)  # is it required?
    config_changes: Mapping[ObjectRef, datetime] = field(default_factory=lambda: NOTHING)
    unexpected: str = ""  # see unexpected_part
    ignored: Ignored = frozenset()
    error: ApiError | None = None
    was_asked: bool = True  # false: there was no Pod template to ask about


NOT_ASKED = Today()


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """How the Pods of a workload compare with those of today."""

    verdict: Verdict = Verdict.NOT_COMPARED
    today: Today = NOT_ASKED
    differences: Sequence[Difference] = ()
    # Which Pods differ, and in which of their containers
    drifted_pods: Mapping[str, Collection[str]] = field(default_factory=lambda: NOTHING)

    @property
    def message(self) -> str:
        """Return why it is rejected or unknown."""
        return str(self.today.error or "")

    @property
    def is_drifted(self) -> bool:
        return self.verdict in (Verdict.DRIFTED, Verdict.MISSING)

    @property
    def added(self) -> list[str]:
        """Return the names of the sidecars that new Pods would get in addition."""
        whole = [difference for difference in self.differences if difference.is_container]
        return [difference.path[0] for difference in whole if difference.expected]


NOT_COMPARED = Comparison()


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """Why nothing is done about a workload, or that something may be; see decide_early."""

    found: Found
    comparison: Comparison = NOT_COMPARED
    reason: str = ""  # why it is not rolled out; empty: it is
    code: str = ""  # of that reason: the name of the rule
    must: frozenset[str] = frozenset()  # what a new Pod must have; see must_of
    lost: Mapping[str, Collection[str]] = field(default_factory=lambda: NOTHING)  # see lost_pods

    @property
    def ref(self) -> ObjectRef:
        return self.found.ref

    @property
    def differences(self) -> Sequence[Difference]:
        return self.comparison.differences


@dataclass(frozen=True, slots=True, eq=False)
class Replacement(Decision):
    """How the Pods of a workload are replaced, or would be; see decide."""

    method: Method = Method.RESTART
    old_pods: Names = ()  # to be replaced or changed
    kept_pods: Names = ()  # old ones below the partition, which are left alone
    total_pods: int = 0
    pods_replaced: int = 0  # with those that a restart replaces although they are up to date
    state: State = State.SERVING
    problem: str = ""  # why it is unhealthy
    downtime: bool = False  # whether all its Pods may be unavailable at once
    min_ready: int = 0  # see ready_seconds


class PodState(NamedTuple):
    """A Pod, and what is known of it by its workload; see states_of and why_left."""

    pod: LivePod
    owner: ObjectRef  # its workload, or what is known of its controller
    containers: Collection[str] = ()  # that differ from today's
    lost: Collection[str] = ()  # see lost_pods
    is_old: bool = False  # differs, or was created before the cutoff, or lost a sidecar
    is_kept: bool = False  # by a partition
    is_given_up: bool = False  # what it lost, by its team; see is_turned_off
    code: str = ""  # why it is not up to date; empty: it is. See words_of

    @property
    def subject(self) -> ObjectRef:
        return ObjectRef("Pod", self.owner.namespace, self.pod.name)

    @property
    def workload(self) -> ObjectRef:
        """Return its workload, or the Pod itself if it has none."""
        return self.subject if self.owner.kind in ("", "Node") else self.owner

    @property
    def is_counted(self) -> bool:
        """Return whether it has a sidecar, or is to have one."""
        return bool(self.pod.sidecars or self.containers or self.lost)

    @property
    def found(self) -> str:
        """Return what is not as expected."""
        return self.pod.unexpected[1]

    @property
    def shown(self) -> tuple[str, str]:
        """Return the name and image by which it is counted: of a sidecar that differs, or its first
        one; without an image if it has lost it."""
        if self.lost:
            return min(self.lost), ""
        sidecars = sorted(self.pod.sidecars, key=lambda sidecar: (sidecar.init, sidecar))
        for sidecar in sidecars:
            if sidecar.name in self.containers:
                return sidecar.name, sidecar.image
        if self.containers:
            return min(self.containers), ""
        return sidecars[0].name, sidecars[0].image


@dataclass
class Scan:
    """What was seen while reading Pods, for hints and totals."""

    pods: int = 0
    namespaces: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    began: datetime = NO_CUTOFF  # by the API server's clock
    listed: set[str] = field(default_factory=set)  # with TYPE/NAME: those of all workloads
    in_plan: dict[ObjectRef, int] = field(default_factory=dict)  # of --plan, with desired Pods
    # What owns Pods, or may: what it is if nobody asked about its new Pods, see Totals.not_asked
    nouns: dict[ObjectRef, str] = field(default_factory=dict)
    odd_pods: list[PodState] = field(default_factory=list)  # that cannot be read, or are held
    replicas: list[Replica] = field(default_factory=list)  # of the listed workloads


class Replica(NamedTuple):
    """What tells whether two workloads are replicas of one thing, such as a database of which each
    member is a StatefulSet: their kind, their containers, and a Service that selects both."""

    ref: ObjectRef
    containers: frozenset[str]  # see container_texts
    labels: Labels  # of its Pods
    shortage: str  # see shortage_of; empty: it has all its Pods


class Skip(NamedTuple):
    subject: ObjectRef
    reason: str
    code: str  # the name of the rule


@dataclass(frozen=True)
class Plan:
    """What is rolled out, and what is not."""

    workloads: Sequence[Replacement] = ()  # in rollout order
    selected_count: int = 0  # how many of them --max-rollouts selects
    needs_evict: bool = False  # whether --evict repairs what has lost its sidecar
    never_completed: Collection[ObjectRef] = ()  # whose rollouts of earlier runs never were
    injector: str = ""  # what is wrong with it; empty: nothing
    is_injector_down: bool = False  # then nothing may start
    skips: Sequence[Skip] = ()
    compared: Sequence[Replacement] = ()  # with --only-drifted
    decisions: Sequence[Decision] = ()  # all owners of Pods, also those that are skipped
    scan: Scan = field(default_factory=Scan)

    @property
    def selected(self) -> Sequence[Replacement]:
        return self.workloads[: self.selected_count]

    @property
    def left_count(self) -> int:
        """Return how many workloads --max-rollouts leaves."""
        return len(self.workloads) - self.selected_count


class Outcome(Word):
    SUCCEEDED = "succeeded"
    COMPLETED_LATE = "completed late"
    LOST_SIDECAR = "lost sidecar"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INCOMPLETE = "incomplete"
    STILL_DRIFTED = "still drifted"
    SKIPPED = "skipped"
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
    """Counts of a workload's Pods, by the named sidecars. It has succeeded if all are ready."""

    wanted: int  # to be replaced or changed, without those that are kept
    updated: int = 0
    ready: int = 0  # of the updated ones
    lost: int = 0  # new ones without a sidecar that they should have
    not_created: int = 0  # that its owner wants


class Stop(NamedTuple):
    """Why nothing else may be begun, and its code. False: it may."""

    reason: str = ""
    code: str = ""

    def __bool__(self) -> bool:
        return bool(self.reason)


NO_STOP = Stop()


@dataclass(frozen=True)
class Result:
    planned: Replacement
    outcome: Outcome
    message: str = ""
    cause: Stop = NO_STOP  # why others may fail, too, for example a broken injector
    code: str = ""  # of the rule for which it was skipped, or why it was not started
    stamp: str = ""  # of a restart that is to be rechecked, see may_complete and Restart.patch
    counts: PodCounts | None = None  # None: its Pods were not read again
    seconds: float = 0.0
    latest: Replacement | None = None  # as a worker decided again
    is_begun: bool = False  # whether something may have been written
    is_slow: bool = False  # timed out, but a new Pod is ready and none is stuck

    @property
    def may_complete(self) -> bool:
        """Return whether the rollout may still complete, and is to be rechecked."""
        return bool(self.stamp)


class EndedError(Exception):
    """Why a rollout is not begun, or ends early, in the fields of its Result."""

    def __init__(
        self, outcome: Outcome, message: str, cause: Stop = NO_STOP, code: str = ""
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.cause = cause
        self.code = code

    def result(self, planned: Replacement) -> Result:
        return Result(planned, self.outcome, str(self), self.cause, self.code)


# 5. Command line ----------------------------------------------------------------------------------


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
        unknown = re.match(r"unrecognized arguments: (--[^\s=]*|-.)", message)
        if unknown:
            name = unknown[1]
            hint = self.HINTS.get(name, "")
            for close in difflib.get_close_matches(name, self._option_string_actions, 1, 0.68):
                hint = hint or f"did you mean {close}?"
            message = join_texts("; ", f"unknown option {name}", hint)
        text = f"error: {printable(message)}\nSee '{PROGRAM} --help' for usage.\n"
        if re.search("--log-format[= ]json", " ".join(sys.argv)):  # it is not parsed yet
            text = json.dumps({"level": "ERROR", "message": message}) + "\n"
        self.exit(2, text)


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
# An RFC 1123 label
one_name = matching(
    r"(?=.*[*?\[]|.{1,63}$)[a-z0-9*?\[\]!-]+",
    f"one name with at most 63 lowercase letters, digits and '-'; {WILDCARDS}",
)
# An RFC 1123 subdomain
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


KEY = r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
label_key = matching(KEY, "the key of a label, such as team or example.com/team")


def annotation_filter(text: str) -> AnnotationFilter:
    """Return the key and the value's pattern of KEY=VALUE; KEY alone matches any value."""
    matching(f"(?s){KEY}(=.*)?", "KEY or KEY=VALUE, such as example.com/restart=never")(text)
    key, equals, value = text.partition("=")
    return key, value if equals else "*"


def expected_annotation(text: str) -> AnnotationFilter:
    """Return the key and the value's pattern of KEY=VALUE."""
    matching(f"(?s){KEY}=.*", "KEY=VALUE, such as istio.io/rev=1-27-0")(text)
    return annotation_filter(text)


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


def plan_file(text: str) -> dict[ObjectRef, PlanRow]:
    """Return the workloads of the `plan` records of a file, or of standard input, `-`."""
    rows = {}
    number = 0
    try:
        path = 0 if text == "-" else file_path(text)
        with open(path, encoding="utf-8-sig", closefd=text != "-") as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007
                if not line.strip():
                    continue
                record = json.loads(line)
                if record["record"] == "plan" and record["selected"]:
                    ref, row = plan_row(record)
                    rows[ref] = row
    except OSError as error:
        raise invalid(text, f"a file that can be read: {error.strerror}") from None
    except Exception:  # whatever else may be wrong with a line
        wanted = f"the output of {VERSION} or later with --log-format=json, a record per line"
        problem = "is no such record, or made by an older version; repeat the dry run"
        raise invalid(text, f"{wanted}; line {number} {problem}") from None
    return rows


def plan_row(record: Json) -> tuple[ObjectRef, PlanRow]:
    """Return what a `plan` record says. An exception if a field is absent, or of another type."""
    ref = ObjectRef(*(record[name] for name in ObjectRef._fields))
    uid, digest, template = record["uid"], record["sidecar_hash"], record["template_hash"]
    if not all(isinstance(text, str) for text in (*ref, uid, digest, template)):
        raise TypeError
    cutoff = NO_CUTOFF
    if record["started_before"] is not None:
        cutoff = parse_time(record["started_before"]).astimezone(timezone.utc)
    method = Method(record["method"].replace("_", " "))
    return ref, PlanRow(uid, cutoff, digest, template, method)


SHORT_NAMES = {
    "deploy": "deployment",
    "sts": "statefulset",
    "ds": "daemonset",
    "rs": "replicaset",
    "rc": "replicationcontroller",
}


def workload_pattern(text: str) -> str:
    """Return TYPE/NAME, with TYPE in any of the forms that kubectl accepts, as type_and_name."""
    match = re.fullmatch(r"([A-Za-z]+)(?:\.([a-z0-9.-]+))?/([a-z0-9.*?\[\]!-]{1,253})", text)
    if not match:
        raise invalid(text, "TYPE/NAME, such as deployment/web or sts/*")
    kind = match[1].lower()
    return type_and_name(SHORT_NAMES.get(kind, kind), match[2] or "", match[3])


def type_and_name(kind: str, group: str, name: str) -> str:
    """Return `deployment/web` or `rollout.argoproj.io/web`, for a kind also in the plural."""
    kind = re.sub("(?<!s)s$", "", kind.lower())
    return f"{kind}/{name}" if group in ("", "apps") else f"{kind}.{group}/{name}"


def point_in_time(text: str) -> datetime:
    """Return a time of ISO 8601 in UTC, which it is in unless it says otherwise."""
    from dateutil.parser import isoparse

    try:
        moment = isoparse(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        moment = moment.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        moment = NO_CUTOFF
    if moment.year == NO_CUTOFF.year:
        raise invalid(text, "a date and time such as 2026-05-01T13:00:00Z")
    return moment


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
    narrows: bool = False  # leaves something out, or changes it: not for a question about all Pods


SELECTING = (  # of a command that repairs what it names, whatever else was selected or left out
    "--include-namespace",
    "--all-namespaces",
    "--selector",
    "--plan",
    "--only-started-before",
    "--max-rollouts",
    "--skip-downtime",
    "--skip-unhealthy",
)
DEFAULT_REASON = "Update sidecars"
OPTIONS = {
    "Common options": (
        Option(
            "workloads TYPE/NAME",
            """Only these workloads, such as deployment/web or sts/*, in all selected namespaces;
            their kinds need no --include-... option""",
            str,
            repeatable=True,
            narrows=True,
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
        Option(
            "--confirm",
            "Apply the changes (default: false, a dry run)",
            narrows=True,
        ),
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
            narrows=True,
        ),
        Option(
            "--max-failures N|N%",
            """Start no new rollouts after N failures, or N%% of the plan (default: after 5 in a
            row)""",
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
            narrows=True,
        ),
        Option(
            "--selector -l SELECTOR",
            "Only Pods that match this label selector (supports =, ==, !=, in, notin)",
            non_empty,
            narrows=True,
        ),
        Option(
            "--include-annotation KEY[=VALUE]",
            "Only workloads with this annotation, on the workload or its Pod template",
            annotation_filter,
            repeatable=True,
            narrows=True,
        ),
        Option(
            "--exclude-annotation KEY[=VALUE]",
            "Skip workloads and namespaces with this annotation (takes precedence)",
            annotation_filter,
            repeatable=True,
            narrows=True,
        ),
        Option(
            "--only-started-before TIME",
            """Only Pods created before this time, for example 2026-05-01T13:00:00Z; UTC unless it
            has a time zone (default without --only-drifted: now)""",
            point_in_time,
            NO_CUTOFF,
            narrows=True,
        ),
        Option(
            "--plan FILE",
            """Only the workloads of a plan, in its order: the output of a dry run with
            --log-format=json, from which lines may have been deleted""",
            plan_file,
            narrows=True,
        ),
        Option(
            "--exclude-deployment --exclude-deployments",
            "Skip Deployments",
            narrows=True,
        ),
        Option(
            "--skip-unhealthy",
            "Skip workloads that are unhealthy before the rollout",
            narrows=True,
        ),
        Option(
            "--skip-downtime",
            "Skip workloads that the plan marks `downtime`",
            narrows=True,
        ),
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
            narrows=True,
        ),
        Option(
            "--show-values",
            "Show all values that differ, as `kubectl get pod -o yaml` does; some may be secret",
            requires="--only-drifted",
        ),
        Option(
            "--fail-on-drift",
            "Exit with 1 unless Pods were checked and all are up to date; not with --confirm",
            requires="--only-drifted",
            narrows=True,
        ),
        Option(
            "--expect-image IMAGE",
            """Exit with 0 only if all Pods with the sidecar, and new ones, have this image, such as
            '*:1.27.*'""",
            non_empty,
            repeatable=True,
        ),
        Option(
            "--expect-annotation KEY=VALUE",
            "Exit with 0 only if they have this annotation, such as istio.io/rev=1-27-0",
            expected_annotation,
            repeatable=True,
        ),
    ),
    "Rollout": (
        Option(
            "--evict",
            "Also evict Pods that a restart does not replace, one at a time per workload",
            narrows=True,
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
            narrows=True,
        ),
        Option(
            "--max-duration DURATION",
            "Start no new rollouts after this time, such as 2h (default: no limit)",
            duration,
        ),
        Option(
            "--gate COMMAND",
            """Start no new rollouts, and evict or change no other Pods, while this command fails
            (run without a shell; a result is valid for 10 seconds)""",
            command,
            [],
        ),
        Option(
            "--soak DURATION",
            """Time to watch new Pods after each rollout, such as 2m; a container that restarts or a
            Pod that does not stay ready is a failure""",
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
            "--label-columns -L KEY",
            "Show this label of each workload as a column of the plan (can be repeated)",
            label_key,
            repeatable=True,
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
    version = f"{PROGRAM} {VERSION}"  # in the last group
    group.add_argument("--version", action="version", version=version, help="Show the version")
    group.add_argument("--help", "-h", action="help", help="Show this help")
    return parser


def add_option(group: argparse._ArgumentGroup, option: Option) -> None:
    names = option.usage.split()
    help = f"* {option.help}" if option.repeatable and option.type is not label_key else option.help
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
    # --help and errors name only the first, and -f.
    action.option_strings = action.option_strings[: 1 if option.type is boolean else 2]


def parse_args(argv: Sequence[str]) -> Options:
    """Return the options. Exit with 2 if one is wrong."""
    parser = build_parser()
    types = {*SHORT_NAMES, *SHORT_NAMES.values()}
    switches = " ".join(option.usage for option in ALL_OPTIONS if option.type is boolean).split()
    for word, following in itertools.pairwise(argv):  # no option takes two values
        if word.lower() in types and re.fullmatch("[^-/][^/]*", following):
            parser.error(str(invalid(word, f"TYPE/NAME; did you mean {word}/{following}?")))
        if word in switches and re.fullmatch(BOOLEAN, following):
            parser.error(f"{word} takes a value only after '=': use {word}={following}")
    words = [f"{word}=true" if word in switches else word for word in argv]
    given = parser.parse_intermixed_args(words)
    if given.all_namespaces:
        given.include_namespace = []
    try:
        given.workloads = list(map(workload_pattern, given.workloads))
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    given.kinds = selected_kinds(given)
    if given.expect_image or given.expect_annotation:
        given.only_drifted = given.include_missing = True
        given.kinds = frozenset(WORKLOADS)
    contradiction = find_contradiction(given)  # reads the kinds
    if contradiction:
        parser.error(contradiction)
    given.sidecars = given.sidecar_container_name
    given.cutoff = given.only_started_before
    if given.plan and given.cutoff is not NO_CUTOFF:
        for ref, row in given.plan.items():
            given.plan[ref] = row._replace(cutoff=given.cutoff)
    return Options(**with_keys(vars(given), Options.__dataclass_fields__))


def selected_kinds(given: argparse.Namespace) -> frozenset[str]:
    types = types_of(given.workloads)
    if types:
        return frozenset(kind for kind in WORKLOADS if kind.lower() in types)
    is_selected = {
        "Deployment": not given.exclude_deployment,
        "StatefulSet": given.include_statefulset,
        "DaemonSet": given.include_daemonset,
    }
    return frozenset(kind for kind in WORKLOADS if is_selected[kind])


def types_of(workloads: Names) -> set[str]:
    return {pattern.partition("/")[0] for pattern in workloads}


UNSET: tuple[Any, ...] = (None, False, [], NO_CUTOFF, Amount(100, is_percentage=True))


def find_contradiction(given: argparse.Namespace) -> str:
    """Return what is wrong with the options together, or an empty text."""
    types = types_of(given.workloads)
    valid = [kind.lower() for kind in WORKLOADS]
    others = types.difference(valid)
    if others and not given.evict:
        return f'invalid type "{min(others)}": must be {join_words(valid, "or")}, or use --evict'
    if not given.kinds and not given.evict:
        needed = "--include-statefulset, --include-daemonset or --evict"
        return f"no workloads selected: --exclude-deployment requires {needed}"
    if given.fail_on_drift and given.confirm:
        hint = "run the audit afterwards, as a command of its own"
        return f"--fail-on-drift cannot be used with --confirm; {hint}"
    included = given.include_namespace
    if included and all(matches(name, given.exclude_namespace) for name in included):
        return "no namespaces selected: all are excluded by --exclude-namespace"
    for row in (given.plan or {}).values():
        if bool(row.sidecar_hash) != given.only_drifted:
            return "--plan was made with other options: give --only-drifted to both, or to neither"
    values = {f"--{name.replace('_', '-')}": value for name, value in vars(given).items()}
    values["workloads"] = given.workloads
    question = [flag for flag in ("--expect-image", "--expect-annotation") if values[flag]]
    for option in ALL_OPTIONS:
        flag, needed = option.usage.split()[0], option.requires
        if question and option.narrows and values[flag] not in UNSET:
            typed = "TYPE/NAME" if flag == "workloads" else flag
            return f"{typed} cannot be used with {question[0]}, which asks about all Pods"
        if option.required and not values[flag]:  # argparse tells it before unknown options
            return f"the following arguments are required: {flag}"
        if needed and values[flag] and not values[needed]:
            return f"{flag} requires {needed}"
    return ""


def program_words(argv: Sequence[str]) -> list[str]:
    """Return the program, and what runs it, as a person would type them again before `argv`."""
    if IS_PLUGIN:
        return ["kubectl", "sidecar-rollout"]
    words = sys.orig_argv[: len(sys.orig_argv) - len(argv)]
    if "UV_RUN_RECURSION_DEPTH" in os.environ:  # set by uv run; its Python is in its cache
        return ["uv", "run", *words[1:]]
    return words


def next_command(
    argv: Sequence[str], options: Options, context: str, *more: str, names: Names = ()
) -> list[str]:
    """Return the words of the command that applies what this one has shown, or resumes it.

    It is what was typed, and more: of an option that is given twice, the last one counts. `names`
    take the place of what selects workloads.
    """
    words = program_words(argv)
    for word in without_selection(argv) if names else argv:
        if word != "--":
            words.append(redact_text(word))
    if not options.confirm:
        words.append("--confirm=true")
    words += [*names, *more]
    typed = {word.partition("=")[0] for word in argv}
    # A plan has cutoffs of its own.
    is_given = "--only-started-before" in typed or options.plan is not None
    if options.cutoff < NO_CUTOFF and not is_given and not names:
        words.append(f"--only-started-before={format_time(options.cutoff)}")
    if context and "--context" not in typed:
        words.append(f"--context={context}")
    return words


def without_selection(argv: Sequence[str]) -> list[str]:
    """Return the words of a command line without the options that select workloads."""
    options = {flag: option for option in ALL_OPTIONS for flag in option.usage.split()}
    kept = []
    words = iter(argv)
    for word in words:
        flag = word.partition("=")[0] if word.startswith("--") else word[:2]
        option = options.get(flag)
        if not option:  # TYPE/NAME
            continue
        whole = [word]
        if word == flag and option.type is not boolean:
            whole.append(next(words))
        if option.usage.split()[0] not in SELECTING:
            kept += whole
    return kept


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


# 6. Logging ---------------------------------------------------------------------------------------


def wrapped(line: str, width: int, indent: str = "") -> list[str]:
    """Return a line for a terminal, broken at spaces; one of a list or table goes on indented."""
    if not indent and "  " in line:
        indent = " " * (len(line) - len(line.lstrip())) + "  "
    # A command in a sentence stays whole, to be copied.
    whole = re.sub("`[^`]*`", lambda match: match[0].replace(" ", "\0"), line)
    parts = textwrap.wrap(
        whole,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace("\0", " ") for part in parts] or [line]


class TextFormatter(logging.Formatter):
    """`12:30:01Z WARNING Deployment shop/web: rollout timed out in 300.1s`."""

    COLORS = {
        "WARNING": "\033[33m",
        "ERROR": "\033[31m",
        "CRITICAL": "\033[31m",
    }

    def __init__(self, on_terminal: bool) -> None:
        super().__init__()
        self.on_terminal = on_terminal
        self.colored = on_terminal and not os.environ.get("NO_COLOR")

    def format(self, record: logging.LogRecord) -> str:
        workload = vars(record).get("workload")
        text = f"{workload}: {record.getMessage()}" if workload else record.getMessage()
        clock = time.strftime("%H:%M:%SZ", time.gmtime(record.created))
        lines = [f"{clock} {record.levelname:<7} {printable(text)}"]
        if self.on_terminal:
            lines = wrapped(lines[0], error_columns(), "  ")
        if self.colored and record.levelname in self.COLORS:
            color = f"{self.COLORS[record.levelname]}{record.levelname}\033[0m"
            lines[0] = lines[0].replace(record.levelname, color, 1)
        if record.exc_info:
            lines += map(printable, self.formatException(record.exc_info).split("\n"))
        return "\n".join(lines)


def about(workload: ObjectRef) -> Json:
    """Return what a line of the log begins with; see TextFormatter."""
    return {"workload": str(workload)}


def error_columns() -> int:
    """Return how many columns the terminal of standard error has."""
    with suppress(OSError):  # it was closed
        return os.get_terminal_size(2).columns or 80
    return 80


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
            self.write(shorten(self.text, error_columns() - 1))

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
    formatter: logging.Formatter = TextFormatter(handler.on_terminal)
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


# 7. Cluster: every request to the API server ------------------------------------------------------

JSON_TYPE = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
LIST_OF_METADATA = METADATA_ONLY.replace("Metadata;", "MetadataList;")
PAGE = 500  # items; fewer, if they are large
PAGE_SIZE = 16_000_000  # bytes
# Kept to the end: a daemon thread that frees connections while Python exits ends in a traceback
POOLS: list[Any] = []
PATIENCE = 60.0  # seconds for a request, over all tries: a webhook may take 30
RETRIES = 7  # 31 seconds: a restart of the API server takes 10 to 20
FORBIDDEN = (Reply.FORBIDDEN, Reply.POLICY)  # replies to somebody who may not read something
LISTS_AT_A_TIME = 4  # of namespaces; see read_ahead
REQUESTS_AT_A_TIME = 16  # dry runs: 0.84 of the wall time that 8 take; more do not help


def in_parallel(
    items: Iterable[Item], ask: Callable[[Item], Answer]
) -> Iterator[tuple[Item, Answer]]:
    """Yield each item with its answer as the answers arrive. Exceptions from `ask` are raised."""
    waiting = [*items]
    if len(waiting) < 2:  # 6 ms for a pool of 16, several times in a run
        yield from ((item, ask(item)) for item in waiting)
        return
    with ThreadPool(min(len(waiting), REQUESTS_AT_A_TIME)) as pool:
        yield from pool.imap_unordered(lambda item: (item, ask(item)), waiting)


def server_flags(server: str, tls_server_name: str | None) -> list[str]:
    """Return the flags of kubectl for a server.

    With --server, kubectl forgets the tls-server-name of the context (k8s.io/client-go,
    tools/clientcmd/client_config.go).
    """
    name = ["--tls-server-name", tls_server_name] if tls_server_name else []
    return ["--server", server, *name]


@dataclass(repr=False)
class Connection:
    """How to reach a cluster, for the client's connections and for kubectl."""

    configuration: Any  # the client's
    context: str = ""  # empty: the service account of the Pod
    kubectl_flags: tuple[str, ...] = ()
    user: str = ""  # as the API server knows it; empty if it does not tell
    reload: Callable[[], object] = lambda: None  # reads the credentials again
    # The Authorization header, kept for half a minute
    token: str = ""
    valid_until: float = 0.0
    patience: float = PATIENCE
    plugin: subprocess.Popen[str] | None = None  # the latest one of its user
    moved: str = ""  # why nothing else is asked or written: the context means another cluster
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __str__(self) -> str:
        text = f"Context {self.context}" if self.context else "In-cluster service account"
        text += f" ({self.server})"
        if self.user:
            text += f" as {self.user}"
        return text

    @property
    def server(self) -> str:
        """Return the URL of the API server, without a password."""
        return redact_text(self.configuration.host)

    @property
    def via(self) -> str:
        """Return the server, and the proxy if there is one."""
        proxy = self.configuration.proxy
        if not proxy:
            return self.server
        return f"{self.server} through the proxy {redact_text(proxy)}"

    @property
    def server_flags(self) -> list[str]:
        """Return the flags of kubectl for the server of the first line, whatever its context means
        by now."""
        if not self.context:
            return []
        return server_flags(self.configuration.host, self.configuration.tls_server_name)

    def kubectl_command(self, ref: ObjectRef, *words: str) -> list[str]:
        """Return the words of a command about an object, for a person."""
        target = [ref.argument, "--namespace", ref.namespace]
        return ["kubectl", *words, *target, *self.kubectl_flags]

    def authorization(self, rejected: str | None = None) -> str:
        """Return the header; read again if it was rejected, unless another thread has done so.

        ApiError if that takes longer than `patience`, whatever the request has: a credential plugin
        may hang, or wait for somebody who logs in. What has expired is rejected first: not every
        token says when it does.
        """
        deadline = time.monotonic() + self.patience
        text = "cannot renew the credentials: the credential plugin does not answer"
        with self.lock:
            if self.moved:
                raise ApiError(Reply.ANOTHER_CLUSTER, self.moved)
            is_rejected = rejected == self.token
            if is_rejected or time.monotonic() >= self.valid_until:
                remaining = deadline - time.monotonic()
                if remaining <= 0:  # another thread has waited for it all the time
                    raise ApiError(Reply.NO_RESPONSE, text)
                with ThreadPool(1) as pool:
                    reading = pool.apply_async(self.read_token, [is_rejected])
                    try:
                        self.token = reading.get(remaining)
                    except TimeoutError:
                        if self.plugin:
                            self.plugin.kill()
                        raise ApiError(Reply.NO_RESPONSE, text) from None
                self.valid_until = time.monotonic() + 30
            return self.token

    def read_token(self, renew: bool) -> str:
        read = self.configuration.get_api_key_with_prefix
        try:
            if renew:
                self.reload()
            token = read("BearerToken", alias="authorization")
        except AnotherClusterError as error:
            self.moved = str(error)
            raise ApiError(Reply.ANOTHER_CLUSTER, self.moved) from None
        except StartError as error:
            text = f"cannot renew the credentials: {error.args[0]}"
            raise ApiError(Reply.NO_RESPONSE, text) from None
        except Exception as error:  # of a file; its text may contain the token
            message = f"cannot renew the credentials: {type(error).__name__}"
            raise ApiError(Reply.NO_RESPONSE, message) from None
        token = (token or "").strip()  # a token file ends with a line break
        if not re.fullmatch("[ -~]*", token):
            text = "the token must be printable ASCII; check the credentials"
            raise ApiError(Reply.UNAUTHORIZED, text)
        return token


def tls_context(configuration: Any) -> ssl.SSLContext:
    """Return the context that all connections share; certificates are loaded once. OSError.

    As Go, and so kubectl, it trusts an authority that is an intermediate one (Python does from 3.13
    on), and one without key identifiers (Python does not from 3.13 on). The argument `ssl_context`
    is that of urllib3 1.26 and 2 (util/ssl_.py, ssl_wrap_socket).
    """
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context()
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    authority, own = configuration.ssl_ca_cert, configuration.cert_file
    if authority:
        context.load_verify_locations(authority)
    else:
        context.load_default_certs()
    if own:
        context.load_cert_chain(own, configuration.key_file, "")  # else OpenSSL asks for a password
    return context


class Cluster:
    """The API server: raw JSON over the client's own connections."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.retries = RETRIES
        self.patience = PATIENCE
        # How far the API server's clock is ahead of time.monotonic, by the latest responses
        self.clocks: deque[float] = deque(maxlen=9)
        self.controller_uids: dict[ObjectRef, str] = {}  # of ReplicaSets, by whoever read them
        self.open_connections(REQUESTS_AT_A_TIME)

    def open_connections(self, count: int) -> None:
        """Keep up to so many connections; urllib3 warns and reconnects if there are more."""
        from kubernetes.client import ApiClient

        configuration = self.connection.configuration
        configuration.connection_pool_maxsize = count
        # The client's typed API classes take 945 ms to load, and 15 times as long to read.
        try:
            context = configuration.proxy_ssl_context = tls_context(configuration)
        except OSError as error:
            raise StartError(f"cannot use the certificates of the cluster: {error}") from None
        try:
            self.pool = ApiClient(configuration).rest_client.pool_manager
            keywords = self.pool.connection_pool_kw
            for name in ("ca_certs", "cert_file", "key_file", "ca_cert_data"):
                keywords.pop(name, None)  # else each connection loads them into the context again
            keywords["ssl_context"] = context
            POOLS.append(self.pool)
        except Exception as error:  # of the proxy's URL; there is no class of its own for it
            proxy = str(configuration.proxy)
            hint = "; run: pip install PySocks" if proxy.startswith("socks") else ""
            raise StartError(redact_text(f"cannot use the proxy {proxy}: {error}{hint}")) from None

    def at_a_glance(self, patience: float = 5.0) -> Cluster:
        """Return it for a look: a request has one try, of a few seconds."""
        glance = copy.copy(self)
        glance.retries, glance.patience = 0, patience
        return glance

    def now(self) -> datetime:
        """Return the time of the API server, which dates Pods; at most a second too early.

        By the Date of its responses, which has whole seconds, or else by the local clock. The clock
        of one of several API servers may be wrong: the median counts.
        """
        seconds = time.time()
        if self.clocks:
            seconds = time.monotonic() + statistics.median(self.clocks)
        return datetime.fromtimestamp(seconds, timezone.utc)

    def wait_until(self, moment: datetime) -> None:
        """Wait until that is certainly the time at the API server; at most two seconds."""
        deadline = time.monotonic() + 2
        while self.now() < moment and time.monotonic() < deadline:
            time.sleep(0.05)
            self.request("GET", "/version")  # its Date sets the clock

    def check_connection(self) -> None:
        """Check that the API server responds within 10 s, a login aside, else ApiError."""
        glance = self.at_a_glance(10.0)
        glance.retries = 1  # a load balancer may cut a connection
        try:
            glance.find("/version")
        except ApiError as error:
            if error.reply in (Reply.NO_RESPONSE, Reply.UNUSABLE, Reply.UNAUTHORIZED):
                raise  # anything else is a response, too

    def is_ready(self) -> bool:
        """Return whether the API server says that it is ready; it knows of etcd.

        Everybody may ask (system:public-info-viewer), and flow control does not apply. To be
        forbidden, or that there is no such path, is an answer, too.
        """
        try:
            self.at_a_glance().request("GET", "/readyz")
        except ApiError as error:
            return not error.is_unavailable and error.reply is not Reply.ERROR
        return True

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        query: Json | None = None,
        accept: str = JSON_TYPE,
        content_type: str = JSON_TYPE,
        asked: Asked = Asked.READ,
        or_forbidden: bool = False,
        largest: int | None = None,
    ) -> bytes:
        """Return the body of a successful response. ApiError for any other, after retries.

        `or_forbidden`: to be forbidden is an answer, and not what a server says that has just
        started. A response of more than `largest` bytes is not read to its end. The client's own
        retries have no deadline.
        """
        if not path:  # see path_of
            raise ApiError(Reply.NOT_FOUND, "no object can have this name")
        deadline = time.monotonic() + self.patience
        retries = 0 if asked is Asked.WRITE else self.retries
        rejected = None
        for attempt in itertools.count():
            began = time.monotonic()
            token = self.connection.authorization(rejected)
            deadline += time.monotonic() - began
            headers = self.headers(token, accept, content_type)
            answer = self.send(method, path, body, query, headers, deadline, asked, largest)
            if isinstance(answer, bytes):
                return answer
            error = answer
            if error.reply is Reply.UNAUTHORIZED:
                if rejected is not None:
                    break
                rejected = token
                continue
            if or_forbidden and error.reply in FORBIDDEN:
                break
            if attempt >= retries or error.meaning not in TRIED_AGAIN:
                break
            pause = max(min(0.5 * 2**attempt, 8) * random.uniform(1, 1.5), error.retry_after)
            pause = min(pause, 30.0)  # who wants more is asked once more all the same
            if time.monotonic() + pause >= deadline:
                break
            log.debug("%s %s: retrying: %s", method, path, error)
            time.sleep(pause)
        raise error

    def send(
        self,
        method: str,
        path: str,
        body: Any,
        query: Any,
        headers: Any,
        deadline: float,
        asked: Asked,
        largest: int | None,
    ) -> bytes | ApiError:
        """Send a request once; return the body of a successful response, or the error."""
        import urllib3

        left = max(deadline - time.monotonic(), 0.1)
        try:
            response = self.pool.request_encode_url(
                method,
                self.connection.configuration.host + urllib.parse.quote(path),
                query,
                headers,
                body=json.dumps(body) if body else None,
                timeout=urllib3.Timeout(left, connect=min(left / 2, 10)),  # for each address
                retries=False,
                preload_content=False,
            )
            data = response.read(largest and largest + 1, decode_content=True)
            if largest and len(data) > largest:
                response.close()
                return ApiError(Reply.TOO_LARGE, f"{path}: more than {largest} bytes", asked)
            response.release_conn()
        except urllib3.exceptions.HTTPError as cause:
            text = f"cannot connect to the API server at {self.connection.via}: "
            return ApiError(Reply.NO_RESPONSE, text + innermost_cause(cause), asked)
        self.set_clock(response)
        if 200 <= response.status < 300 and "html" in str(response.headers.get("Content-Type")):
            text = f"{self.connection.server} answered with an HTML page"
            return ApiError(Reply.UNUSABLE, f"{text}: is it a proxy or a login page?", asked)
        if 200 <= response.status < 300:
            return bytes(data)
        return api_error(response, data, asked)

    def headers(self, token: str, accept: str, content_type: str) -> dict[str, str]:
        """Return the headers of a request."""
        headers = {
            "Accept": accept,
            "Accept-Encoding": "gzip",  # from 128 KB; lists shrink to a tenth
            "User-Agent": f"{FIELD_MANAGER}/{VERSION}",
            "Content-Type": content_type,
        }
        if token:
            headers["Authorization"] = token
        return headers

    def set_clock(self, response: Any) -> None:
        """Set the API server's clock by the Date of a response, if it has one."""
        with suppress(TypeError, ValueError):  # absent, or not a date
            date = email.utils.parsedate_to_datetime(response.headers.get("Date"))
            if response.status < 500:  # else it may be a proxy's
                self.clocks.append(date.timestamp() - time.monotonic())

    def find(self, path: str, or_forbidden: bool = False, **parts: Any) -> Json:
        """Return the object; empty if it does not exist, or perhaps may not be read."""
        try:
            return decode_object(self.request("GET", path, or_forbidden=or_forbidden, **parts))
        except ApiError as error:
            is_forbidden = or_forbidden and error.reply in FORBIDDEN
            if error.meaning is not ABSENT and not is_forbidden:
                raise
            return {}

    def items(
        self,
        api_path: str,
        resource: str,
        namespaces: Names,
        selector: str | None = None,
        or_forbidden: bool = False,
        accept: str = JSON_TYPE,
    ) -> Iterator[Json]:
        """Yield the items of a list, read in pages; no namespaces means all.

        If the list expires meanwhile, the rest is read as it is by then or, if that is not
        possible, all of it once more: an item may come twice.
        """
        paths = [f"{api_path}/namespaces/{name}/{resource}" for name in namespaces]
        query: Json = {"limit": PAGE}
        if selector:
            query["labelSelector"] = selector
        pages = partial(
            self.request, "GET", accept=accept, largest=2 * PAGE_SIZE, or_forbidden=or_forbidden
        )

        def read(path: str, token: str) -> str:
            page = query | {"continue": token} if token else query
            try:
                data = pages(path, query=page)
            except ApiError as error:
                if error.reply is Reply.TOO_LARGE and query["limit"] > 1:
                    query["limit"] = max(query["limit"] // 8, 1)
                    return read(path, token)
                if error.reply is not Reply.EXPIRED or not token:
                    raise
                page = query
                if error.continue_token:
                    page = query | {"continue": error.continue_token}
                data = pages(path, query=page)
            if len(data) * 8 < PAGE_SIZE:  # smaller ones follow
                query["limit"] = min(query["limit"] * 4, PAGE)
            return data.decode("utf-8", "replace")

        for page in read_ahead(paths or [f"{api_path}/{resource}"], read):
            yield from items_of(page)

    def pods_of(self, owner: ObjectRef, obj: Json) -> list[Json]:
        """Return the Pods of an owner, also terminating ones, but not those that have ended.

        Its labels may select Pods of others, too.
        """
        pods = []
        for pod in self.items(CORE, "pods", [owner.namespace], selector_of(owner, obj)):
            if has_ended(pod):
                continue
            controller, uid = possible_controller_of(pod), controller_uid(pod)
            if controller and controller.kind == "ReplicaSet" and controller != owner:
                if controller not in self.controller_uids:
                    self.controller_uids[controller] = controller_uid(self.metadata_of(controller))
                uid = self.controller_uids[controller]
            if uid == nested(obj, "metadata.uid"):
                pods.append(pod)
        return pods

    def services_of_pods(self, namespaces: Names) -> Mapping[str, ServicesOfPods] | None:
        """Return, by namespace, the names of the Services of each Pod, ready or not.

        None if that is forbidden.
        """
        services: dict[str, dict[str, set[str] | frozenset[str]]] = defaultdict(dict)
        try:
            slices = self.items(DISCOVERY, "endpointslices", namespaces, or_forbidden=True)
            for endpoint_slice in slices:
                metadata = endpoint_slice["metadata"]
                service = nested(metadata, "labels").get("kubernetes.io/service-name")
                if not service:
                    continue
                for endpoint in nested(endpoint_slice, "endpoints"):
                    name = nested(endpoint, "targetRef").get("name")  # none: not a Pod
                    if not name:
                        continue
                    of_pods = services[metadata["namespace"]]
                    own = of_pods.get(name, frozenset())
                    if isinstance(own, set):  # of many Services: a copy for each takes long
                        own.add(service)
                        continue
                    own = own | {service}
                    of_pods[sys.intern(name)] = interned(own) if len(own) < 20 else set(own)
        except ApiError as error:
            if error.reply not in FORBIDDEN and error.meaning is not ABSENT:
                raise
            log.warning(
                "cannot list EndpointSlices: every healthy workload counts as serving, and "
                "workloads behind the same Service may roll out together"
            )
            return None
        return services

    def selectors(self, namespaces: Names) -> dict[str, list[Labels]] | None:
        """Return the different selectors of Services by namespace, of each the first thousand;
        None if that is forbidden."""
        found: dict[str, list[Labels]] = defaultdict(list)
        try:
            for service in self.items(CORE, "services", namespaces, or_forbidden=True):
                own = found[service["metadata"]["namespace"]]
                selector = nested(service, "spec.selector")
                if selector and len(own) < 1000 and selector not in own:
                    own.append(selector)
        except ApiError as error:
            if error.reply not in FORBIDDEN:
                raise
            return None
        return found

    def metadata_of(self, ref: ObjectRef, or_forbidden: bool = False) -> Json:
        """Return an object with its metadata alone; empty if it does not exist."""
        return self.find(path_of(ref), or_forbidden, accept=METADATA_ONLY)

    def workload(self, ref: ObjectRef, or_forbidden: bool = False) -> Json:
        """Return an owner of Pods as it is now; empty if it does not exist."""
        return self.find(path_of(ref), or_forbidden)

    def owner_object(self, owner: ObjectRef, pod: Json, or_forbidden: bool = False) -> Json:
        """Return the controller of a Pod as it is now; empty if it does not exist.

        Of a custom resource, return what the Pod tells: the annotations of its template.
        """
        if has_template(owner):
            return self.workload(owner, or_forbidden)
        metadata = {"uid": controller_uid(pod), "namespace": owner.namespace}
        return {"metadata": metadata, "spec": {"template": {"metadata": pod["metadata"]}}}

    def evict(self, pod: Json) -> None:
        """Evict a Pod if it still has its UID; the response says only that this was accepted.

        ApiError 429 if a PodDisruptionBudget allows no disruption now.
        """
        metadata = with_keys(pod["metadata"], ("name", "namespace"))
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": metadata,
            "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}},
        }
        path = path_of(ObjectRef("Pod", metadata["namespace"], metadata["name"]))
        self.request("POST", f"{path}/eviction", body=body, asked=Asked.WRITE)

    def change_images(self, pod: Json, images: Mapping[str, str]) -> Json:
        """Change images of a Pod's containers, by their names, and return the Pod.

        Only if it still has its UID. The containers are in the Pod's own order; another one is a
        422. ApiError 422 or 403 if a policy refuses the change; see first_line.
        """
        metadata = pod["metadata"]
        spec: dict[str, list[Json]] = defaultdict(list)
        for key in ("containers", "initContainers"):
            for container in nested(pod["spec"], key):
                name = container["name"]
                if name in images:
                    spec[key].append({"name": name, "image": images[name]})
        body = {"metadata": {"uid": metadata["uid"]}, "spec": spec}
        ref = ObjectRef("Pod", metadata["namespace"], metadata["name"])
        return self.patch(ref, body, STRATEGIC_MERGE)

    def patch(self, ref: ObjectRef, body: Json, content_type: str) -> Json:
        """Patch an object once, and return it. ApiError."""
        query = {"fieldManager": FIELD_MANAGER}
        data = self.request(
            "PATCH", path_of(ref), body, query, JSON_TYPE, content_type, Asked.WRITE
        )
        return decode_object(data)

    def pod_named(self, namespace: str, name: str) -> Json:
        """Return a Pod; empty if there is none.

        A list of one: so the permission to get Pods is not needed.
        """
        query = {"fieldSelector": f"metadata.name={name}"}
        listed = self.find(f"{CORE}/namespaces/{namespace}/pods", query=query)
        for pod in nested(listed, "items"):
            return dict(pod)
        return {}

    def pod_again(self, pod: Json) -> Json:
        """Return a Pod as it is now; empty if it is gone, terminating, or another one by now."""
        now = self.pod_named(pod["metadata"]["namespace"], name_of(pod))
        if not now or uid_of(now) != uid_of(pod) or is_ending(now):
            return {}
        return now

    def latest_event(self, obj: Json, selector: str) -> str:
        """Return the message of the latest event of an object; empty if it has none.

        `selector` is a field selector. ApiError. No status says why a StatefulSet or DaemonSet
        cannot create Pods (reason FailedCreate), or why the kubelet cannot create the containers of
        a Pod.
        """
        metadata = nested(obj, "metadata")
        if not metadata:  # it is gone
            return ""
        query = {"fieldSelector": f"involvedObject.uid={metadata['uid']},{selector}"}
        path = f"{CORE}/namespaces/{metadata.get('namespace')}/events"
        events = nested(self.at_a_glance().find(path, query=query, largest=PAGE_SIZE), "items")
        latest: Json = max(events, key=time_of_event, default={})
        return said(latest.get("message", ""))

    def pod_today(self, ref: ObjectRef, obj: Json, sample: Json, number: int = 0) -> Json:
        """Return the Pod that would be created for a workload today. ApiError if it is rejected.

        In this dry run, admission runs and nothing is stored; see pod_to_create. OpenShift admits a
        Pod by the constraints that its creator may use, or its service account: those of a person
        say nothing about the Pods of a controller.
        """
        path = f"{CORE}/namespaces/{ref.namespace}/pods"
        query = {"fieldManager": FIELD_MANAGER, "dryRun": "All"}
        body = pod_to_create(ref, obj, sample, number)
        pod = decode_object(self.request("POST", path, query=query, body=body, asked=Asked.DRY_RUN))
        own = annotations_of(pod).get("openshift.io/scc")
        theirs = annotations_of(sample).get("openshift.io/scc")
        if own and theirs and own != theirs:
            text = f"admitted by SCC {own} for you, and {theirs} for its controller"
            text += ": run as a service account that may use no other"
            raise ApiError(Reply.NO_DRY_RUN, text, Asked.DRY_RUN)
        return pod

    def config_change(self, config: ObjectRef) -> datetime | ApiError:
        """Return when a ConfigMap or Secret last changed, from its metadata alone."""
        try:
            path = path_of(config)
            body = self.request("GET", path, accept=METADATA_ONLY, or_forbidden=True)
            return changed_at(decode_object(body))
        except ApiError as error:
            return error
        except Exception as error:  # whatever a tenant wrote
            return ApiError(Reply.UNUSABLE, f"unexpected metadata: {error!r}")

    def namespace(self, name: str, or_forbidden: bool = False) -> Json:
        """Return a namespace with its metadata; empty if it is gone."""
        return self.find(f"{CORE}/namespaces/{name}", or_forbidden, accept=METADATA_ONLY)

    def patch_template(self, ref: ObjectRef, annotations: Labels, version: str) -> None:
        """Set annotations of a workload's Pod template.

        ApiError 409 if its resource version is another one by now.
        """
        body = {
            "metadata": {"resourceVersion": version},
            "spec": {"template": {"metadata": {"annotations": annotations}}},
        }
        self.patch(ref, body, KINDS[ref.kind].patch_type)

    def user(self) -> str:
        """Return this user's name; empty if the API server does not tell (before 1.28)."""
        version = "authentication.k8s.io/v1"
        review = {"apiVersion": version, "kind": "SelfSubjectReview"}
        try:
            path = f"/apis/{version}/selfsubjectreviews"
            data = self.request("POST", path, body=review, or_forbidden=True)
            return str(nested(decode_object(data), "status.userInfo.username") or "")
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
        path = f"/apis/{version}/selfsubjectaccessreviews"
        data = self.request("POST", path, body=review, or_forbidden=True)
        return nested(decode_object(data), "status").get("allowed") is not False


def time_of_event(event: Json) -> str:
    """Return when an event came last; the newer API sets eventTime alone."""
    series = nested(event, "series").get("lastObservedTime")
    return event.get("lastTimestamp") or series or event.get("eventTime") or ""


def api_error(response: Any, data: bytes, asked: Asked) -> ApiError:
    """Return the error that a response means, in the API server's own words if it has any."""
    status = {}
    causes = {}
    token = ""
    with suppress(ApiError, AttributeError):  # for example a proxy's HTML page
        status = decode_object(data)
        token = str(nested(status, "metadata").get("continue") or "")
        for cause in nested(status, "details.causes"):
            causes[cause.get("reason")] = str(cause.get("message"))
    words = str(status.get("message") or response.reason or "")
    message = shorten(printable(message_text(words)), 1000)
    reply = reply_of(response.status, words, causes)
    if reply is Reply.UNAUTHORIZED:
        message = "Unauthorized: credentials were rejected or have expired; log in again"
    if reply is Reply.FORBIDDEN and ' is forbidden: User "system:anonymous"' in message:
        message = "not logged in: the context has no credentials"
    if reply is Reply.EXPIRED:
        message = "the list expired while it was being read; rerun this command"
    text = f"{response.status} {message}".strip()
    return ApiError(reply, text, asked, causes, retry_after(response), token)


def retry_after(response: Any) -> float:
    """Return the seconds of a response's Retry-After; 0 if it is a date, or absent."""
    pause = str(response.headers.get("Retry-After"))
    return float(pause) if pause.isdecimal() else 0


def innermost_cause(error: BaseException) -> str:
    """Return the text of the innermost cause, which says the most."""
    cause = error.__cause__ or error.__context__
    if cause:
        return innermost_cause(cause)
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return redact_text(printable(text))


def selector_of(workload: ObjectRef, obj: Json) -> str:
    """Return the label selector of a workload's Pods."""
    selector = nested(obj, "spec.selector")
    if workload.kind == "ReplicationController":
        selector = {"matchLabels": selector}
    terms = [f"{key}={value}" for key, value in nested(selector, "matchLabels").items()]
    for expression in nested(selector, "matchExpressions"):
        key, values = expression["key"], ",".join(nested(expression, "values"))
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
        path, plural = KINDS[ref.kind].api, KINDS[ref.kind].plural
    return f"{path}/namespaces/{ref.namespace}/{plural}/{ref.name}"


def decode_object(body: bytes | str) -> Json:
    """Return a JSON object. ApiError for anything else."""
    text = body if isinstance(body, str) else body.decode("utf-8", "replace")
    value = None
    with suppress(ValueError):
        try:
            value = json.loads(text)
        except RecursionError:
            value, _ = shallow_item(text, 0)
    if not isinstance(value, dict):
        text = f"unexpected response: not a JSON object: {body[:80]!r}"
        raise ApiError(Reply.UNUSABLE, text)
    return value


def read_ahead(paths: Sequence[str], read: Callable[[str, str], str]) -> Iterator[str]:
    """Yield the pages of lists in their order; the next ones are read while one is decoded.

    They are the next of the same list, and the first of up to four others: namespaces.
    """
    path, page, unread_paths = paths[0], read(paths[0], ""), deque(paths[1:])
    token = next_token(page)
    yield page
    if not (token or unread_paths):  # as nearly always for one workload, which needs no threads
        return
    with ThreadPool(min(len(paths), LISTS_AT_A_TIME)) as pool:

        def begin(path: str, token: str = "") -> tuple[str, Any]:
            return path, pool.apply_async(read, (path, token))

        requests = deque([begin(path, token)] if token else ())
        while requests or unread_paths:
            while unread_paths and len(requests) < LISTS_AT_A_TIME:
                requests.append(begin(unread_paths.popleft()))
            path, answer = requests.popleft()
            page = answer.get()
            if token := next_token(page):
                requests.appendleft(begin(path, token))  # before those of other lists
            yield page


ITEMS = '"items":['  # API servers write it without spaces


def next_token(text: str) -> str:
    """Return the token of a list's next page; empty if there is none, or if it is not a list."""
    start, end = text.find(ITEMS) + len(ITEMS), text.rfind("]")
    envelope = text[:start] + text[end:] if ITEMS in text else text
    with suppress(ApiError, AttributeError):  # items_of says what is wrong
        return str(nested(decode_object(envelope), "metadata").get("continue") or "")
    return ""


DEEPEST = 50  # levels of an object that are read; only managedFields may have more
JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]')


def shallow_item(text: str, start: int) -> tuple[Json, int]:
    """Return the object that begins there, with nothing in place of what is too deep, and its end.

    Python's decoder gives up at 1,000 levels. The API server takes 10,000
    (sigs.k8s.io/json), and whoever creates an object may write its managedFields.
    ValueError if the text ends before.
    """
    parts = []
    depth, begin = 0, start
    for token in JSON_TOKEN.finditer(text, start):
        if token[0] in ("[", "{"):
            depth += 1
            if depth == DEEPEST + 1:
                parts.append(text[begin : token.start()] + "null")
        elif token[0] in ("]", "}"):
            depth -= 1
            if depth == DEEPEST:
                begin = token.end()
            if depth == 0:
                return json.loads("".join([*parts, text[begin : token.end()]])), token.end()
    raise ValueError("truncated")


def items_of(text: str) -> Iterator[Json]:
    """Yield a list's items one by one. ApiError if it is not a list.

    Decoding item by item takes half the time of json.loads on 500 Pods: with few objects
    alive, the garbage collector has little to walk through.
    """
    decoder = json.JSONDecoder()
    is_found = ITEMS in text
    start = position = len(text)
    if is_found:
        start = position = text.index(ITEMS) + len(ITEMS)
    try:
        while is_found and text[position] != "]":
            begin = position + (text[position] == ",")
            try:
                item, position = decoder.raw_decode(text, begin)
            except RecursionError:
                item, position = shallow_item(text, begin)
            yield item
    except (ValueError, IndexError):
        message = f"truncated response: list ends after {position} characters"
        raise ApiError(Reply.UNUSABLE, message) from None
    envelope = decode_object(text[:start] + text[position:])  # without ITEMS, the whole text
    items = envelope.get("items", {})
    if items is None:  # an empty list of metadata alone
        items = []
    if not isinstance(items, list) or not isinstance(envelope.get("metadata"), dict):
        raise ApiError(Reply.UNUSABLE, f"unexpected response: not a list: {text[:80]!r}")
    yield from items  # empty, unless it was written with spaces


# 8. Starting: kubectl, the kubeconfig, the permissions --------------------------------------------


NO_CONTEXT = "current-context must exist"  # kubectl config view --minify, without a context


OLDEST_KUBECTL = (1, 28)  # that was tested


def find_kubectl(path: str) -> str:
    """Return the path of kubectl. StartError if there is none."""
    program = shutil.which(path)
    if not program:
        hint = "install it (https://kubernetes.io/docs/tasks/tools/) or specify its path"
        raise StartError(f"kubectl not found or not executable: {path}; {hint} with --kubectl")
    return program


def run_command(command: Sequence[str]) -> tuple[str, str]:
    """Return a command's standard output, and why it failed: what it says; empty: it did not."""
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
        return "", innermost_cause(error)
    problem = redact_text(ended.stderr).strip() or f"exit code {ended.returncode}"
    return ended.stdout, problem if ended.returncode else ""


def connect(kubectl: str, kubeconfig: str | None, context: str | None) -> Connection:
    """Return how to reach the cluster that kubectl means. StartError if there is none."""
    read = partial(read_with_token, kubectl, kubeconfig, context)
    with ThreadPool(1) as pool:
        importing = pool.apply_async(__import__, ["kubernetes.config"])  # beside it: 40 of 1,600 ms
        try:
            config = read()
        finally:
            importing.get()  # that it is not installed is said first
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_incluster_config

    connection = Connection(Configuration())
    if not config:
        try:
            load_incluster_config(connection.configuration)
        except ConfigException as error:
            raise StartError(f"cannot use the Pod's service account: {error}") from None
        load_proxy(connection.configuration, "")
        connection.reload = partial(load_incluster_config, connection.configuration)
        return connection
    cluster = cluster_of(config)
    user = user_of(config)
    load_cluster_and_user(config, connection)
    connection.context = config["current-context"]
    # By name, because the current context may change during the run.
    connection.kubectl_flags = context_flags(kubeconfig, config)
    if user.get("as"):
        who = f"context {connection.context} impersonates {user['as']}"
        raise StartError(f"{who}, which is not supported; use a context without `as`")

    def reload() -> None:
        again = read_with_token(kubectl, kubeconfig, connection.context)
        if cluster_of(again) != cluster:
            server = cluster_of(again).get("server")
            text = f"context {connection.context} now means {redact_text(str(server))}"
            raise AnotherClusterError(f"{text}; nothing else is written")
        load_cluster_and_user(again, connection)

    connection.reload = reload
    return connection


def cluster_of(config: Json) -> Json:
    """Return the cluster of a kubeconfig with one context: server, proxy, authority."""
    return nested((config.get("clusters") or [{}])[0], "cluster")


def user_of(config: Json) -> Json:
    """Return the user of a kubeconfig with one context."""
    return nested((config.get("users") or [{}])[0], "user")


def context_flags(kubeconfig: str | None, config: Json) -> tuple[str, ...]:
    """Return the flags of kubectl for the context of a kubeconfig, by its name."""
    flags = ("--kubeconfig", kubeconfig) if kubeconfig else ()
    return (*flags, "--context", config["current-context"])


def read_with_token(kubectl: str, kubeconfig: str | None, context: str | None) -> Json:
    """Return read_kubeconfig, where the user of an auth-provider has a token.

    kubectl renews it, and keeps the new refresh token, as each can be used only once. The client
    would use it, and lose the new one.
    """
    config = read_kubeconfig(kubectl, kubeconfig, context)
    if "auth-provider" in user_of(config):
        server = nested(cluster_of(config), "server"), cluster_of(config).get("tls-server-name")
        check_kubectl(kubectl, [*context_flags(kubeconfig, config), *server_flags(*server)])
        config = read_kubeconfig(kubectl, kubeconfig, config["current-context"])
        user = user_of(config)
        token = nested(user, "auth-provider.config").get("id-token", "")
        config["users"][0]["user"] = {**without_keys(user, "auth-provider"), "token": token}
    return config


def read_kubeconfig(kubectl: str, kubeconfig: str | None, context: str | None) -> Json:
    """Return the kubeconfig as kubectl merges it, for one context, certificates included.

    Empty if there is no kubeconfig but a service account. StartError if neither can be used.
    """
    if kubeconfig and not os.path.exists(kubeconfig):
        raise StartError(f"kubeconfig {kubeconfig} does not exist")
    for path in (kubeconfig or os.environ.get("KUBECONFIG", "")).split(os.pathsep):
        if os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode):
            hint = "kubectl reads it several times; save it to a file"
            raise StartError(f"kubeconfig {path} is a pipe, and {hint}")
    flags = ["--kubeconfig", kubeconfig] if kubeconfig else []
    view = [kubectl, "config", "view", "--minify", *flags]
    view += ["--context", context] if context else []
    output, error = run_command([*view, "--flatten", "--raw", "--output=json"])
    if output.startswith("{"):
        config = decode_object(output)
        default = os.path.expanduser("~/.kube/config")
        find_files(kubectl, config, kubeconfig or os.environ.get("KUBECONFIG") or default)
        return config
    is_default = not kubeconfig and not context
    if is_default and NO_CONTEXT in error and "KUBERNETES_SERVICE_HOST" in os.environ:
        return {}
    hint = "specify a file with --kubeconfig or a context with --context"
    if context:
        command = [kubectl, "config", "get-contexts", "--output=name", *flags]
        contexts = run_command(command)[0].splitlines()
        if contexts and context not in contexts:
            hint = f"--context must be one of {join_words(contexts[:5], 'or')}"
            hint += ", ..." if len(contexts) > 5 else ""
    error = re.sub(r"(?s)\[\{.*\}", "...", error)  # kubectl quotes entries, tokens included
    if not error:  # it is no kubectl
        hint += ", or kubectl with --kubectl"
    text = f"kubectl cannot find a cluster in the kubeconfig; {hint}"
    raise StartError(f"{text}; to reproduce: {shlex.join(view)}", error)


def find_files(kubectl: str, config: Json, paths: str) -> None:
    """Make relative paths of a credential plugin and a token file absolute.

    They start at the kubeconfig file that is the first to have this user.
    """
    user = user_of(config)
    for owner, key in ((user, "tokenFile"), (nested(user, "exec"), "command")):
        path = owner.get(key) or ""
        is_on_path = key == "command" and not os.path.dirname(path)
        if not path or is_on_path or os.path.isabs(path):
            continue
        for file in filter(os.path.exists, paths.split(os.pathsep)):
            view = [kubectl, "config", "view", "--kubeconfig", file, "--output=json"]
            users = nested(decode_object(run_command(view)[0]), "users")
            if any(row["name"] == config["users"][0]["name"] for row in users):
                owner[key] = os.path.join(os.path.dirname(os.path.abspath(file)), path)
                break


def as_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def parts_of(pipe: IO[str] | None, child: subprocess.Popen[str]) -> Iterator[str]:
    """Yield what comes out of a pipe, as soon as it does: a question need not end its line.

    What a child leaves behind may keep the pipe open: an `ssh` that others share.
    """
    if not pipe:  # it has the terminal
        return
    ready = select.poll()
    ready.register(pipe)
    is_over = False
    while not is_over:
        is_over = child.poll() is not None
        while ready.poll(0 if is_over else 100):  # milliseconds
            data = os.read(pipe.fileno(), 65536)
            if not data:
                return
            yield from filter(str.strip, data.decode("utf-8", "replace").splitlines())


def run_plugin(config: Json, connection: Connection) -> Json:
    """Return the user of a kubeconfig with what its credential plugin returns.

    StartError if that is nothing. What it says on standard error is shown at once: where to log in,
    perhaps. The client shows it only on a terminal. As for kubectl, only a terminal is interactive
    (k8s.io/client-go, plugin/pkg/client/auth/exec).
    """
    plugin, cluster = nested(user_of(config), "exec"), cluster_of(config)
    name = f"credential plugin {plugin.get('command')} (context {config['current-context']})"
    is_interactive = sys.stdin.isatty() and plugin.get("interactiveMode") != "Never"
    spec: Json = {"interactive": is_interactive}
    try:
        if plugin.get("provideClusterInfo"):
            spec["cluster"] = without_keys(cluster, "extensions")
            for extension in cluster.get("extensions") or ():
                if extension["name"] == "client.authentication.k8s.io/exec":
                    spec["cluster"]["config"] = extension["extension"]
        info = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": spec}
        variables = {row["name"]: row["value"] for row in plugin.get("env") or ()}
        with (
            tempfile.TemporaryFile("w+", errors="replace") as output,
            subprocess.Popen(
                [plugin["command"], *(plugin.get("args") or ())],
                executable=shutil.which(plugin["command"]),  # by this PATH, not by one of `env`
                stdin=None if is_interactive else subprocess.DEVNULL,
                stdout=output,
                stderr=None if is_interactive else subprocess.PIPE,
                env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(info)},
                text=True,
                errors="replace",
            ) as child,
        ):
            connection.plugin = child
            try:
                for text in parts_of(child.stderr, child):
                    log.warning("%s: %s", name, message_text(text))
                child.wait()
            finally:
                child.kill()  # if a signal came: it may wait for somebody who logs in
            if child.returncode:
                raise StartError(f"{name} failed with exit code {child.returncode}")
            output.seek(0)
            status = nested(json.load(output), "status")
        user = {"token": status["token"]} if status.get("token") else {}
        if status.get("clientCertificateData"):
            user["client-certificate-data"] = as_base64(status["clientCertificateData"])
            user["client-key-data"] = as_base64(status["clientKeyData"])
    except OSError as error:
        text = f"{name} cannot run: {error.strerror}"
        raise StartError(text, plugin.get("installHint", "")) from None
    except (ValueError, LookupError, AttributeError, TypeError):
        user = {}  # its output may have the token, and is not shown
    if not user:
        raise StartError(f"{name} returned no credentials")
    return user


def load_cluster_and_user(config: Json, connection: Connection) -> None:
    """Load server and credentials for the client.

    The client writes certificates to files with mode 0600, and removes them when it ends.
    """
    from kubernetes.config import ConfigException, load_kube_config_from_dict

    configuration = connection.configuration
    if not re.match("(?i)https:", cluster_of(config).get("server", "")):
        config["users"] = []  # as kubectl, which sends credentials over TLS alone
    user = user_of(config)
    if "exec" in user:
        user = run_plugin(config, connection) | without_keys(user, "exec")
        config["users"][0]["user"] = user
    if os.path.exists(user.get("tokenFile", "")):
        user.pop("token", None)
    try:
        load_kube_config_from_dict(config, client_configuration=configuration)
    except (ConfigException, OSError, ValueError) as error:
        # The client quotes whole entries, tokens included.
        text = re.sub(r"\{.*\}", "{...}", str(error), flags=re.DOTALL)
        raise StartError(f"cannot use the kubeconfig: {printable(text)}") from None
    load_proxy(configuration, cluster_of(config).get("proxy-url", ""))


def load_proxy(configuration: Any, proxy: str) -> None:
    """Load the proxy of the kubeconfig, or else of the environment, as Go's net/http does.

    NO_PROXY does not apply to the former. Of the latter, names in capitals come first, ALL_PROXY is
    ignored, and so is any proxy for loopback addresses. A SOCKS proxy resolves names itself.
    """
    server = urllib.parse.urlsplit(configuration.host)
    host = server.hostname or ""
    no_proxy = ""
    if not (proxy or host == "localhost" or re.fullmatch(r"127(\.\d+){3}|::1", host)):
        names = f"{server.scheme}_proxy", "no_proxy"
        proxy, no_proxy = (os.environ.get(n.upper()) or os.environ.get(n, "") for n in names)
        if proxy and "://" not in proxy:
            proxy = f"http://{proxy}"
    configuration.no_proxy = re.sub(r"(^|,)\s*\*(?=\.)", r"\1", no_proxy)
    configuration.proxy = re.sub("^socks5:", "socks5h:", proxy)
    credentials = re.match("(?i)https?://([^/]+)@", proxy)
    if credentials:  # of a SOCKS proxy, the client takes them from the URL
        user, _, password = credentials[1].partition(":")
        words = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password)}"
        configuration.proxy_headers = {"Proxy-Authorization": f"Basic {as_base64(words)}"}


def check_kubectl(path: str, flags: Iterable[str]) -> None:
    """Check that kubectl can wait for rollouts on the cluster, before anything is patched.

    StartError if it is none, is too old, or cannot reach the cluster, for example because of a
    proxy.
    """
    command = [path, *flags, "version", "--output=json"]
    output, error = run_command(command)
    try:
        version = json.loads(output)["clientVersion"]
        release = int(version["major"]), int(version["minor"].rstrip("+"))
    except (ValueError, LookupError, TypeError, AttributeError):
        hint = "specify the path of kubectl with --kubectl"
        raise StartError(f"{path} is not kubectl, or does not run; {hint}", error) from None
    if release < OLDEST_KUBECTL:
        oldest = ".".join(map(str, OLDEST_KUBECTL))
        raise StartError(f"{path} is {version['gitVersion']}; install kubectl {oldest} or later")
    if error and "Forbidden" not in error:  # which is a response
        hint = f"to reproduce: {shlex.join(command)}"
        raise StartError(f"kubectl cannot connect to the cluster; {hint}", error)


def asks_namespaces(options: Options) -> bool:
    """Return whether a rule asks for a namespace's annotations or labels: then it is read again."""
    return bool(options.exclude_annotation)


def needed_permissions(options: Options) -> list[str]:
    """Return the permissions that a run requires; for kinds that are not selected, none."""
    needed = ["list pods"]
    verbs = ("get", "list", "patch", "watch") if options.confirm else ("get", "list")
    needed += [f"{verb} {KINDS[kind].resource}" for kind in options.kinds for verb in verbs]
    if have_replica_sets(options.kinds):
        needed.append("get replicasets.apps")
    if asks_namespaces(options):
        needed.append("get namespaces")
    if options.only_drifted:
        needed.append("create pods")
    if options.is_question:
        needed += [f"list {row.resource}" for row in CREATES_LATER.values()]
    if options.confirm and options.in_place:
        needed.append("patch pods")
    if options.confirm and options.evict:
        needed.append("create pods/eviction")
    return needed


def check_permissions(cluster: Cluster, options: Options) -> None:
    """Check the permissions of this run. StartError lists those that are missing."""
    namespaces = namespaces_to_list(options)
    questions = itertools.product(needed_permissions(options), namespaces or [""])
    missing = []
    for (permission, namespace), is_allowed in in_parallel(questions, cluster.is_allowed):
        if is_allowed:
            continue
        where = f"namespace {namespace}" if namespace else "all namespaces"
        missing.append(f"{permission} in {where}")
    if missing:
        hint = "" if namespaces else ", or select your namespaces with --include-namespace"
        account = {"user": cluster.connection.user, "context": cluster.connection.context}
        who = ", ".join(f"{name} {value}" for name, value in account.items() if value)
        text = f"missing permissions: {', '.join(sorted(missing))}"
        raise StartError(f"{text}; see deploy/rbac.yaml{hint} ({who})")


def check_namespaces(cluster: Cluster, options: Options) -> None:
    """Check that the namespaces exist that options name exactly. StartError if one does not."""
    names = [*options.include_namespace, *options.exclude_namespace]

    def error_of(name: str) -> ApiError | None:
        try:
            path = f"{CORE}/namespaces/{name}"
            cluster.request("GET", path, accept=METADATA_ONLY, or_forbidden=True)
        except ApiError as error:
            return error
        return None

    errors = dict(in_parallel(itertools.filterfalse(is_pattern, names), error_of))
    for name, error in sorted(errors.items()):
        if error is None:
            continue
        if error.meaning is ABSENT:
            existing: list[str] = []
            with suppress(ApiError):  # without permission
                listed = cluster.items(CORE, "namespaces", (), or_forbidden=True)
                existing = list(map(name_of, listed))
            hint = "check the name, or use a wildcard, which may match nothing"
            hint = did_you_mean(name, existing) or hint
            raise StartError(f'namespaces "{name}" not found; {hint}')
        if error.reply not in FORBIDDEN:
            raise error
        log.warning("no permission to check whether namespace %s exists", name)


# 9. Selecting: Pods to the owners of Pods ---------------------------------------------------------


def typed_names(ref: ObjectRef) -> list[str]:
    """Return the TYPE/NAME forms of an object; only Kubernetes' own kinds need no group."""
    names = [type_and_name(ref.kind, ref.group, ref.name)]
    if ref.kind not in WORKLOADS:
        names.append(type_and_name(ref.kind, "", ref.name))
    return names


def is_named(ref: ObjectRef, options: Options) -> bool:
    if options.plan is not None and ref not in options.plan:
        return False
    if not options.workloads:
        return True
    return any(matches(name, options.workloads) for name in typed_names(ref))


def read_all_pods(
    cluster: Cluster, options: Options, or_forbidden: bool = False
) -> tuple[list[Found], Scan]:
    """Read all Pods; see read_pods."""
    began = cluster.now()
    namespaces = namespaces_to_list(options)
    pods = cluster.items(CORE, "pods", namespaces, options.selector, or_forbidden)
    return read_pods(pods, options, began)


def read_pods(
    pods: Iterable[Json], options: Options, began: datetime = NO_CUTOFF
) -> tuple[list[Found], Scan]:
    """Return the Pods of the selected namespaces by their owner, and what else was seen.

    Pods without a sidecar count if others of their workload have it, or if they are replaceable.
    ApiError for what is no Pod; one that cannot be read is noted, and one that is held.
    """
    by_owner: dict[ObjectRef, list[LivePod]] = defaultdict(list)
    samples: dict[ObjectRef, Found] = {}  # of one of the Pods, if possible with a sidecar
    scan = Scan(began=began)
    seen: set[int] = set()  # hashes of UIDs, which take a quarter of their memory
    for pod in pods:
        try:
            namespace = pod["metadata"]["namespace"]
            digest = hash(namespace + name_of(pod) + uid_of(pod))
        except (KeyError, TypeError, AttributeError) as error:
            text = f"unexpected response: not a Pod: {json.dumps(pod)[:80]}: {error!r}"
            raise ApiError(Reply.UNUSABLE, text) from None
        if digest in seen:  # its list had expired, see Cluster.items
            continue
        seen.add(digest)
        scan.pods += 1
        scan.namespaces.add(namespace)
        try:
            scan.containers.update(container_names(pod))
            if has_ended(pod) or not is_included(namespace, options):
                continue
            is_ignored = is_ending(pod) and not options.is_question
            if is_ignored and not (options.fail_on_drift and is_held(pod, began)):
                continue
            live = live_pod(pod, options)
            owner = controller_of(pod) or ObjectRef("", namespace, live.name)
            if is_ignored:
                note_held_pod(scan, live, implied_workload(owner, pod), options)
                continue
            scan.containers |= plain_names(live.noted)
            is_custom = "." in owner.group
            if live.sidecars or live.noted or has_template(owner) or is_custom:
                by_owner[owner].append(live)
                if owner not in samples or (live.sidecars and not samples[owner].sidecars):
                    sample = packed({"metadata": without_keys(pod["metadata"], "managedFields")})
                    ref = implied_workload(owner, pod)
                    samples[owner] = Found(ref, (owner,), (), sample, live.sidecars)
        except Exception as error:  # whatever a tenant wrote: the others can be read all the same
            log.debug("cannot read a Pod", exc_info=True)
            note_odd_pod(scan, pod, options, error)
    owners = []
    for owner, own in by_owner.items():
        owners.append(replace(samples[owner], pods=own, sidecars=sidecars_of(own)))
    return owners, scan


def note_odd_pod(scan: Scan, pod: Json, options: Options, error: Exception) -> None:
    """Note a Pod that cannot be read, if it has, should have or may have a named container."""
    noted: frozenset[str] = frozenset()
    try:
        sidecars = sidecars_in(pod, options.sidecars)
        noted = noted_texts(annotations_of(pod))
    except Exception:
        sidecars = frozenset({Sidecar(options.sidecars[0], "", native=False)})
    if sidecars or named_texts(noted, options.sidecars):
        reason = f"cannot be read: {shorten(printable(str(error) or repr(error)), 200)}"
        unexpected = ("unknown", reason)
        live = LivePod(name_of(pod), NO_CUTOFF, False, sidecars, unexpected=unexpected)
        owner = ObjectRef("", pod["metadata"]["namespace"], live.name)
        scan.odd_pods.append(PodState(live, owner, code="unknown"))


def note_held_pod(scan: Scan, pod: LivePod, workload: ObjectRef, options: Options) -> None:
    """Note a Pod that terminates, but may run for long, if an audit counts it."""
    has_one = pod.sidecars or named_texts(pod.noted, options.sidecars)
    if has_one and is_named(workload, options) and not is_job(workload):
        text = "was deleted more than 10 minutes ago, and still exists; see its finalizers and node"
        code = "not_restarted" if pod.unexpected[1] else "terminating"
        held = pod._replace(unexpected=(code, text))
        scan.odd_pods.append(PodState(held, workload, code="terminating"))


def sidecars_of(pods: Iterable[LivePod]) -> frozenset[Sidecar]:
    """Return the named sidecars of all Pods."""
    sidecars: set[Sidecar] = set()
    for pod in pods:
        sidecars |= pod.sidecars
    shared: frozenset[Sidecar] = interned(frozenset(sidecars))
    return shared


def implied_workload(owner: ObjectRef, pod: Json) -> ObjectRef:
    """Return what a ReplicaSet's name implies: it is <deployment>-<pod-template-hash>."""
    template_hash = nested(pod, "metadata.labels").get(HASH_LABEL, "\0")
    name = owner.name.removesuffix(f"-{template_hash}")
    if owner.kind == "ReplicaSet" and name != owner.name:
        return ObjectRef("Deployment", owner.namespace, name, "apps")
    return owner


def sidecars_in(pod: Json, names: Names) -> frozenset[Sidecar]:
    """Return the named sidecars of a Pod."""
    sidecars = itertools.starmap(as_sidecar, named_containers(pod, names))
    shared: frozenset[Sidecar] = interned(frozenset(sidecars))
    return shared


def live_pod(pod: Json, options: Options) -> LivePod:
    """Return what is kept of a Pod."""
    names, labels = options.sidecars, nested(pod, "metadata.labels")
    ready = is_ready(pod)
    problem = "" if ready else waiting_reason(pod)
    stuck = interned(frozenset(stuck_sidecars(pod, names))) if problem else frozenset()
    is_compared = options.only_drifted or bool(stuck)
    return LivePod(
        sys.intern(name_of(pod)),
        created_at(pod),
        ready,
        sidecars_in(pod, names),
        problem,
        stuck,
        view=interned(view_of(pod, names)) if is_compared else b"",
        resized=resized_fields(pod) if is_compared else (),
        may_end=nested(pod, "spec.restartPolicy") in ("Never", "OnFailure"),
        containers=interned(container_texts(pod)),
        noted=interned(noted_texts(annotations_of(pod))),
        why_managed=why_images_managed(pod),
        uid=uid_of(pod) if options.confirm else "",  # in a dry run, nobody reads it
        unexpected=unexpected_in(pod, options) if options.only_drifted else ("", ""),
        revision=interned(labels.get("controller-revision-hash") or labels.get(HASH_LABEL, "")),
        restart_times=interned(frozenset(timestamps_in(annotations_of(pod), is_controlled=True))),
    )


def unexpected_in(pod: Json, options: Options) -> tuple[str, str]:
    """Return a code, and what a Pod has that is not as expected; an empty text: nothing."""
    found, code = unexpected_part(pod, options), "unexpected"
    if not found and image_changed_at(pod) and any(named_containers(pod, options.sidecars)):
        found, code = "the old image", "not_restarted"
    owner = controller_of(pod)
    if is_ending(pod):
        code = "terminating"
    elif owner and is_job(owner):
        code = "running_to_completion"
    return code, found


def is_expected(image: str, patterns: Names) -> bool:
    """Return whether an image matches a pattern; one with a digest, if the pattern has an @.

    A runtime runs what the digest says, whatever the tag.

    >>> pinned = "registry.example/proxyv2:1.27.0@sha256:0123"
    >>> is_expected(pinned, ["*:1.27.*"])
    False
    >>> is_expected(pinned, ["*:1.27.*@sha256:*"])
    True
    >>> is_expected("registry.example/proxyv2:1.27.0", ["*:1.27.*"])
    True
    """
    return matches(image, [pattern for pattern in patterns if "@" in pattern or "@" not in image])


def unexpected_part(pod: Json, options: Options) -> str:
    """Return an image or annotation of a Pod with a sidecar that is not as expected.

    Only its spec counts: a runtime may have another name for the same image. An annotation that was
    written after it was created says nothing about its sidecar.
    """
    later = {}
    if options.expect_annotation:
        later = dict.fromkeys(annotated_later(pod), "<written later>")
    annotations = without_keys(annotations_of(pod), *later)
    for _, container in named_containers(pod, options.sidecars):
        image = container.get("image") or "<none>"
        if options.expect_image and not is_expected(image, options.expect_image):
            return shorten(printable(image), 300)
        for key, _ in options.expect_annotation:
            wanted = [pair for pair in options.expect_annotation if pair[0] == key]
            if not has_any(wanted, annotations):
                return shorten(printable(f"{key}={(annotations | later).get(key, '<none>')}"), 300)
    return ""


# 10. Comparing: what a workload's Pods would be like if they were created now ---------------------
# Fields of a container whose values cannot be secret; of volumes, see without_values
PUBLIC = ("image", "imagePullPolicy", "ports", "position", "resources", "securityContext", *USES)


def hash_of(today: Today) -> str:
    """Return 12 hex digits that identify what is injected today; empty if that is not known.

    Without what is different in each new Pod.
    """
    if not today.view:
        return ""
    return hash_of_view(today.view, today.ignored)


@functools.lru_cache(maxsize=4096)  # 0.94 of the time of --only-drifted: many have the same view
def hash_of_view(view: bytes, ignored: Ignored) -> str:
    text = json.dumps(comparable(unpacked(view), ignored))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def comparable(value: Any, ignored: Ignored = frozenset(), path: Path = ()) -> Any:
    """Return a value without what is different in each new Pod, its lists in one order."""
    if path in ignored or (*path, SHARED_NAMES) in ignored:
        return None
    if isinstance(value, dict):
        return {key: comparable(value[key], ignored, (*path, key)) for key in sorted(value)}
    if isinstance(value, list):
        parts = [comparable(part, ignored, (*path, str(n))) for n, part in enumerate(value)]
        return sorted(parts, key=json.dumps)
    return value


def find_differences(
    current: Any, expected: Any, ignored: Ignored = frozenset(), path: Path = ()
) -> Iterator[Difference]:
    """Yield where two normal forms differ, as deep inside as possible, except at ignored paths.

    The order of a list is no difference: some injectors write it from a map of Go. An annotation
    that new Pods do not have was written later, as network plugins do.
    """
    if path[-2:] == ("fieldRef", "value") and expected is None:  # see with_metadata
        return
    if is_same(comparable(current), comparable(expected)):
        return
    current, expected = as_objects(current, expected)
    if isinstance(current, dict) and isinstance(expected, dict):
        names = current.keys() | expected.keys()
        if (*path, SHARED_NAMES) in ignored:
            names = current.keys() & expected.keys()
        for name in sorted(names):
            place = (*path, name)
            yield from find_differences(current.get(name), expected.get(name), ignored, place)
        return
    if current is not None and expected is not None:
        constant = comparable(current, ignored, path)
        if is_same(constant, comparable(expected, ignored, path)):
            return
    if len(path) == 1:  # a whole container
        current, expected = in_short(current), in_short(expected)
    yield Difference(path, current, expected)


def in_short(container: Json | None) -> Json | None:
    """Return what people read of a container that is added or removed."""
    if container is None:
        return None
    return with_keys(container, ("image", "position"))


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values have the same JSON: for Python, 1 is True."""
    return json.dumps(one) == json.dumps(other)


def as_objects(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two lists of objects, if they are equally long, as objects by index; others as is."""
    if not (isinstance(one, list) and isinstance(other, list) and len(one) == len(other)):
        return one, other
    if not all(isinstance(element, dict) for element in (*one, *other)):
        return one, other
    return by_index(one), by_index(other)


def by_index(elements: Sequence[Any]) -> Json:
    return {str(number): element for number, element in enumerate(elements)}


def elements_beyond(elements: Sequence[Any], others: Sequence[Any]) -> Json:
    """Return the elements of a list that another list does not have, by their index."""
    counts = Counter(map(json.dumps, others))
    beyond = {}
    for index, element in by_index(elements).items():
        text = json.dumps(element)
        if not counts[text]:
            beyond[index] = element
        counts[text] = max(counts[text] - 1, 0)
    return beyond


def ignored_paths(
    first: Any, second: Any, running: Sequence[Any] = ()
) -> tuple[Ignored, list[Path]]:
    """Return the paths of what is different in each new Pod, by two answers, and those of what
    differs although it should be the same in all Pods: then neither answer can be trusted.

    An injector may write the time, a random value or a name into each Pod: two answers differ
    there, and no restart would change that. But if it is being upgraded, its old and its new
    replicas take turns, and two answers differ just as well. So in doubt nothing is known:
    1. A whole container, or a field of one such as the image (a path of one or two names), is the
       same in all Pods of one version.
    2. A value that a running Pod has, too, is one of a few, and not made anew each time.
    3. A list whose elements differ, and not as many at the same places, has lost or got some.
    4. A name (of a variable, a mount) on one side needs another one in its place on the other:
       names made anew are equally many. Where they are, only names that both sides have count.
    What is left differs in its value alone, at one path: it is ignored there.

    >>> one, other = ({"proxy": {"image": "i", "env": {"ID": value}}} for value in "ab")
    >>> ignored_paths(one, other)
    (frozenset({('proxy', 'env', 'ID')}), [])
    >>> ignored_paths(one, other, [one])  # a running Pod has it
    (frozenset(), [('proxy', 'env', 'ID')])
    >>> ignored_paths({"proxy": {"image": "1"}}, {"proxy": {"image": "2"}})
    (frozenset(), [('proxy', 'image')])
    >>> names = ({"proxy": {"env": {f"TOKEN_{n}": "x"}}} for n in "12")
    >>> ignored_paths(*names)
    (frozenset({('proxy', 'env', '*')}), [])
    """
    ignored = set()
    doubtful = []
    surplus: Counter[Path] = Counter()  # names of the first answer minus those of the second
    changes: list[Difference] = []
    for difference in find_differences(first, second):
        path, one, other = difference
        if not (isinstance(one, list) and isinstance(other, list)):
            changes.append(difference)
            continue
        gone, new = elements_beyond(one, other), elements_beyond(other, one)
        if gone.keys() == new.keys():
            changes += [Difference((*path, index), gone[index], new[index]) for index in gone]
        else:
            doubtful.append(path)
    for path, one, other in changes:
        values = [value for value in (one, other) if value is not None]
        # Nobody sees what differs
        is_large = any(str(value).startswith(HASHED) for value in values)
        is_few = any(value_at(pod, path) in values for pod in running)
        if len(path) <= 2 or is_large or is_few:
            doubtful.append(path)
        elif len(values) == 2:
            ignored.add(path)
        else:  # the answers may have other names there, but equally many
            names = (*path[:-1], SHARED_NAMES)
            ignored.add(names)
            surplus[names] += 1 if other is None else -1
    doubtful += [names for names, more in surplus.items() if more]
    return frozenset(ignored), doubtful


def value_at(value: Any, path: Path) -> Any:
    """Return what a normal form has at a path; None if it is absent."""
    for name in path:
        if isinstance(value, list):
            value = value[int(name)] if name.isdecimal() and int(name) < len(value) else None
        elif isinstance(value, dict):
            value = value.get(name)
        else:
            return None
    return value


def shown_path(path: Path) -> Path:
    """Return a path without keys that may be secret: of a variable with JSON, to its name."""
    return path[:3] if path[1:2] == ("env",) else path


def without_values(difference: Difference) -> Difference:
    """Return a difference without values that may be secret; of a new volume, with its kind."""
    path, *values = difference
    is_image = path[1:2] == ("volumes",) and path[-2:] == ("image", "reference")
    if not path[1:] or path[1] in PUBLIC or is_image:
        return difference
    if path != shown_path(path):
        return Difference(shown_path(path), REDACTED, REDACTED)
    shown: list[str | None] = []
    for value in values:
        text = REDACTED
        if path[1] == "volumes" and len(path) == 3:  # its kind; fields of an emptyDir are absent
            text = ", ".join(value or ()) or "emptyDir"
        shown.append(None if value is None else text)
    return Difference(path, *shown)


def stated_containers(obj: Json) -> set[str]:
    """Return the names of the containers that the Pod template of a workload states itself."""
    return plain_names(stated_texts(obj))


def injected_view(pod: Json, names: Names) -> bytes:
    """Return the named sidecars of the answer to a dry run; see view_of."""
    return view_of(pod, [name for name in injected_names(pod) if matches(name, names)])


def configs_of(pod: Json, namespace: str, options: Options) -> dict[ObjectRef, bool]:
    """Return the ConfigMaps and Secrets of the named sidecars, and whether each is required."""
    configs: dict[ObjectRef, bool] = defaultdict(bool)
    ignored = ("kube-root-ca.crt", *options.ignore_config)
    for kind, reference in config_references(list(sidecar_parts(pod, options.sidecars).values())):
        name = reference.get("name") or reference.get("secretName", "")
        if name and not matches(name, ignored):
            configs[ObjectRef(kind, namespace, name)] |= not reference.get("optional")
    return configs


def config_references(value: Any) -> Iterator[tuple[str, Json]]:
    """Yield the references to ConfigMaps and Secrets inside containers and volumes."""
    if isinstance(value, list):
        value = by_index(value)
    for key, inner in value.items():
        match = re.fullmatch("(configMap|secret)((Key)?Ref)?", key)
        if match and isinstance(inner, dict):
            yield "Secret" if match[1] == "secret" else "ConfigMap", inner
        if isinstance(inner, (dict, list)):
            yield from config_references(inner)


CONFIG_CHANGED = "changed after Pods were created"


@functools.lru_cache(maxsize=4096)
def sidecar_differences(
    live: bytes, expected: bytes, resized: Collection[Path], ignored: Ignored, with_values: bool
) -> dict[str, Difference]:
    """Return what differs between two views by its JSON, except what is different in each new Pod,
    and resources that were changed in place.

    Cached: many workloads have the same views.
    """
    if live == expected:
        return {}
    differences = {}
    for difference in find_differences(unpacked(live), unpacked(expected), ignored):
        if not any(difference.path[: len(path)] == path for path in resized):
            shown = difference if with_values else without_values(difference)
            differences[json.dumps(shown)] = shown
    return differences


def compare_pods(
    pods: Sequence[LivePod], today: Today, options: Options
) -> tuple[dict[str, Collection[str]], Sequence[Difference]]:
    """Return the Pods that differ from what would be created today, or are older than its
    configuration, by name with the names of their drifted containers, and all differences."""
    drifted: dict[str, Collection[str]] = {}
    distinct: dict[str, Difference] = {}
    for pod in sorted(pods, key=lambda pod: pod.view):
        differences = sidecar_differences(
            pod.view, today.view, pod.resized, today.ignored, options.show_values
        )
        distinct |= differences
        if differences:
            containers = frozenset(difference.path[0] for difference in differences.values())
            drifted[pod.name] = interned(containers)
    for config, changed in today.config_changes.items():
        for pod in pods:
            if pod.sidecars and pod.created < changed:
                distinct[str(config)] = Difference((str(config),), None, CONFIG_CHANGED)
                drifted[pod.name] = {sidecar.name for sidecar in pod.sidecars}
    return dict(sorted(drifted.items())), list(distinct.values())


def only_images(comparison: Comparison) -> bool:
    """Return whether only images differ, of containers that run as long as their Pod."""
    today = unpacked_object(comparison.today.view)
    for difference in comparison.differences:
        container, *section = difference.path
        if section != ["image"] or today[container]["position"] == INIT:
            return False
    return bool(comparison.differences)


def compare(
    found: Found,
    today: Today,
    options: Options,
    second: Today | None = None,
    made_anew: Callable[[], Ignored] = frozenset,
) -> Comparison:
    """Return whether the Pods agree with what would be created today, whatever goes wrong.

    If a second answer is given, see known_today.
    """
    try:
        if second:
            today = known_today(found, today, second, made_anew)
        if today.error:
            return Comparison(verdict_on(today.error), today)
        if not options.only_drifted:
            return Comparison(today=today)
        drifted, differences = compare_pods(found.pods, today, options)
    except Exception as error:  # the others can be compared all the same
        log.debug("cannot compare", exc_info=True, extra=about(found.ref))
        unexpected = ApiError(Reply.UNUSABLE, f"unexpected error: {error!r}", Asked.DRY_RUN)
        return Comparison(Verdict.UNKNOWN, replace(today, error=unexpected))
    if differences:
        verdict = Verdict.DRIFTED if found.sidecars else Verdict.MISSING
    else:
        verdict = Verdict.UP_TO_DATE if found.sidecars else Verdict.NOT_INJECTED
    return Comparison(verdict, today, differences, drifted)


def with_changes(today: Today, last_changes: Mapping[ObjectRef, datetime | ApiError]) -> Today:
    """Return when the configuration of the sidecars changed, too, or why that is not known."""
    if not today.configs:
        return today
    error = today.error
    changes = {}
    for config, is_required in sorted(today.configs.items()):
        changed = last_changes[config]
        if isinstance(changed, datetime):
            changes[config] = changed
        elif changed.meaning is not ABSENT:
            text = f"cannot read {config}: {changed}"
            error = error or ApiError(Reply.UNUSABLE, text, Asked.DRY_RUN)
        elif is_required:
            text = f"would not start: {config} does not exist"
            error = error or ApiError(Reply.INVALID, text, Asked.DRY_RUN)
    return replace(today, config_changes=changes, error=error)


def verdict_on(error: ApiError) -> Verdict:
    """Return what a dry run that failed means.

    Rejected means that the cluster would not accept the Pod today. A missing permission, a webhook
    that fails, times out or does not support dry run, and an exceeded quota (a rolling update may
    free room first) say nothing about that.
    """
    if error.meaning is REFUSED:
        return Verdict.REJECTED
    return Verdict.UNKNOWN


# Replies to a dry run after which a restart is unchecked, if the plan did not compare either
UNCHECKED = (Reply.FORBIDDEN, Reply.NO_DRY_RUN)
MOMENTARY = (Reply.ERROR, Reply.WEBHOOK_FAILED)  # replies after which it is sent once more
ANSWERS_APART = 1.1  # seconds: an injector may write the time
TOO_SLOW = 10.0  # seconds for an answer
PATIENT_FOR = 15.0  # seconds in which what fails for a moment is sent once more, by namespace
FEW = 3  # dry runs of a namespace that may time out, or be too slow


class DryRuns:
    """Asks what would be created, by turns of namespaces: one whose webhooks let requests hang is
    not asked on, so that only its own workloads are unknown.

    If that is so in two namespaces, and no dry run at all had an answer, the injector hangs for
    all: nobody else is asked, or a run over 300 namespaces would take half an hour to say so.
    """

    def __init__(self, cluster: Cluster, options: Options, everything: Sequence[Found]) -> None:
        self.cluster = cluster
        self.options = options
        self.sizes = Counter(found.ref.namespace for found in everything)
        self.hung: Counter[str] = Counter()  # dry runs that were too slow, by namespace
        self.failing: dict[str, float] = {}  # since when some fail twice, by namespace
        self.has_answer = False
        self.closed: dict[str, Today] = {}  # what those that are not asked get, by namespace

    def in_turns(self, everything: Iterable[Found]) -> list[Found]:
        """Return the workloads in their order, a few of each namespace at a time."""
        turns: Counter[str] = Counter()
        places = []
        for found in everything:
            namespace = found.ref.namespace
            places.append((turns[namespace] // FEW, found))
            turns[namespace] += 1
        return [found for _, found in sorted(places, key=lambda place: place[0])]

    def ask(self, found: Found, number: int = 0) -> Today:
        """Return what would be created for a workload, unless that is not asked anymore."""
        namespace = found.ref.namespace
        is_over = len(self.closed) >= min(2, len(self.sizes)) and not self.has_answer
        if is_over and (self.hung.total() >= 2 * FEW or len(self.closed) == len(self.sizes)):
            namespace = next(iter(self.closed))
        if namespace in self.closed:
            return self.closed[namespace]
        began = time.monotonic()
        is_patient = began <= self.failing.get(namespace, began) + PATIENT_FOR
        today = ask_today(self.cluster, self.options, found, number, is_patient=is_patient)
        if today.error and today.error.reply in MOMENTARY:
            self.failing.setdefault(namespace, began)
        self.note(namespace, today, time.monotonic() - began)
        return today

    def note(self, namespace: str, today: Today, seconds: float) -> None:
        """Note how a dry run ended. Several threads call it: a lost count is one more question."""
        error = today.error
        self.has_answer |= error is None or not error.is_timeout
        if seconds <= TOO_SLOW and not (error and error.is_timeout):
            return
        self.hung[namespace] += 1
        if self.hung[namespace] < min(FEW, self.sizes[namespace]) or namespace in self.closed:
            return
        if not error:
            text = f"dry runs in namespace {namespace} take longer than {TOO_SLOW:g}s"
            today = Today(error=ApiError(Reply.WEBHOOK_TIMEOUT, text, Asked.DRY_RUN))
        self.closed[namespace] = today
        if self.sizes[namespace] > FEW:
            log.warning(
                "dry runs in namespace %s hang; its other workloads are not compared", namespace
            )


def compare_all(
    cluster: Cluster, everything: Sequence[Found], options: Options, progress: ProgressLine
) -> dict[ObjectRef, Comparison]:
    """Return the comparisons: one dry run per workload, one read per ConfigMap or Secret.

    What differs is asked again. For an audit or a question all are, in another order: replicas of
    an injector that is being upgraded take turns, and an API server keeps its connection to one.
    """
    verb = "Asking" if options.is_question else "Comparing"
    dry_runs = DryRuns(cluster, options, everything)
    answers: dict[Found, Today] = {}
    answered_at: dict[Found, float] = {}
    for found, today in in_parallel(dry_runs.in_turns(everything), dry_runs.ask):
        answers[found], answered_at[found] = today, time.monotonic()
        progress.show(f"{verb}: {len(answers)} of {len(everything)} workloads")
    progress.show("")
    configs = {config for answer in answers.values() for config in answer.configs}
    last_changes = dict(in_parallel(configs, cluster.config_change))
    compared = {}
    for found in everything:
        today = with_changes(answers[found], last_changes)
        compared[found.ref] = compare(found, today, options)
    twice = options.fail_on_drift or options.is_question
    differing = [
        found
        for found in reversed(answers)
        if compared[found.ref].differences or (twice and answers[found].view)
    ]
    made_anew = values_in(everything)

    def compare_again(found: Found, second: Today) -> None:
        anew = partial(made_anew, found.ref.namespace)
        today = compared[found.ref].today
        compared[found.ref] = compare(found, today, options, second, anew)

    def ask_once_more(found: Found) -> Today:
        time.sleep(max(answered_at[found] + ANSWERS_APART - time.monotonic(), 0))
        return dry_runs.ask(found, number=1)

    losing = [found for found in answers if lacks_sidecar(found, answers[found])]
    seconds: dict[Found, Today] = {}
    for number, (found, second) in enumerate(in_parallel(differing, ask_once_more), 1):
        compare_again(found, second)
        seconds[found] = second
        if found not in losing and lacks_sidecar(found, second):
            losing.append(found)
        progress.show(f"{verb} again: {number} of {len(differing)} workloads")
    progress.show("")
    if not options.allow_removal:
        later = ask_one_by_one(dry_runs, losing)
        configs = {config for third, _ in later.values() for config in third.configs}
        last_changes |= dict(in_parallel(configs - last_changes.keys(), cluster.config_change))
        for found, (third, fourth) in later.items():
            today = with_changes(third, last_changes)
            compared[found.ref] = compare(found, today, options)
            for other in (fourth, answers[found], seconds.get(found, fourth)):
                if other is fourth or not lacks_sidecar(found, other):  # what it had, it still has
                    compare_again(found, other)
        if later:
            text = "the injector did not answer %d of %d dry runs at once"
            log.warning(text, len(later), len(everything))
    return compared


def lacks_sidecar(found: Found, today: Today) -> bool:
    """Return whether an answer lacks a sidecar that running Pods have."""
    names = {sidecar.name for sidecar in found.sidecars}
    return bool(today.view) and not names <= plain_names(today.containers)


LOST_IN_A_ROW = 16  # answers, after which an injector is taken to be down
ONE_BY_ONE_FOR = 60.0  # seconds: it may be slow


def ask_one_by_one(dry_runs: DryRuns, losing: Iterable[Found]) -> dict[Found, tuple[Today, Today]]:
    """Ask about workloads whose answer lacked a sidecar once more, one at a time, and return two
    answers of those that have it by now.

    A slow injector with failurePolicy Ignore lets some Pods through if many come at once.
    """
    thirds = {}
    in_a_row = 0
    deadline = time.monotonic() + ONE_BY_ONE_FOR
    for found in dry_runs.in_turns(losing):
        third = dry_runs.ask(found, number=2)
        in_a_row += 1
        if third.view and not lacks_sidecar(found, third):
            thirds[found] = third
            in_a_row = 0
        if in_a_row >= LOST_IN_A_ROW or time.monotonic() > deadline:
            break
    if thirds:
        time.sleep(ANSWERS_APART)
    return {found: (third, dry_runs.ask(found, number=3)) for found, third in thirds.items()}


def values_made_anew(found: Found) -> Ignored:
    """Return the paths at which two Pods of a workload have different values, or other names."""
    views = [unpacked(view) for view in sorted({pod.view for pod in found.pods if pod.sidecars})]
    pairs = itertools.combinations(views[:4], 2)  # one may be from before the value
    return frozenset().union(*(ignored_paths(*pair)[0] for pair in pairs))


def values_in(everything: Sequence[Found]) -> Callable[[str], Ignored]:
    """Return a function of a namespace, which returns the paths of what is made anew for each Pod
    by its own Pods, or by those of two others: one tenant may have written its own."""

    @functools.cache
    def namespaces_of() -> dict[Path, set[str]]:
        namespaces = defaultdict(set)
        for found in everything:
            with suppress(Exception):  # whatever a tenant wrote
                for path in values_made_anew(found):
                    namespaces[path].add(found.ref.namespace)
        return namespaces

    def of(namespace: str) -> Ignored:
        seen = namespaces_of().items()
        return frozenset(path for path, names in seen if len(names) > 1 or namespace in names)

    return of


def known_today(
    found: Found, first: Today, second: Today, made_anew: Callable[[], Ignored]
) -> Today:
    """Return what would be created, by two answers, or why that is not known.

    What differs between them is ignored where two Pods of the workload differ, too, or have
    nothing. If only one has something there, those of other workloads tell: see `made_anew`.
    """
    if second.error:
        return replace(first, error=second.error)
    unexpected = first.unexpected or second.unexpected
    if first.view == second.view:
        return replace(first, unexpected=unexpected)
    running = [unpacked(view) for view in {pod.view for pod in found.pods}]
    ignored, doubtful = ignored_paths(unpacked(first.view), unpacked(second.view), running)
    for path in sorted(ignored - values_made_anew(found)):
        where = path[:-1] if path[-1] == SHARED_NAMES else path
        values = [value_at(unpacked_object(pod.view), where) for pod in found.pods]
        having = len(values) - values.count(None)
        if having > 1 or (having and path not in made_anew()):
            doubtful.append(path)
    if doubtful:
        places = []
        for container, *section in dict.fromkeys(map(shown_path, doubtful)):
            place = f"container {container}"
            if section:
                place = f"{section_text(section)} of {container}"
            places.append(place)
        text = f"the injector gave two different answers ({join_words(places)})"
        why = "it has a few possible values, or the injector is being upgraded"
        error = ApiError(Reply.UNUSABLE, f"{text}: {why}", Asked.DRY_RUN)
        return replace(first, error=error)
    return replace(first, ignored=first.ignored | ignored, unexpected=unexpected)


def changes_since(planned: Replacement, today: Today) -> Sequence[Difference]:
    """Return what differs between an answer and that of the plan, if the plan compared.

    An autoscaler sets resources for each new Pod: they make no other sidecar.
    """
    shown = planned.comparison.today
    if planned.comparison.verdict is Verdict.NOT_COMPARED or not today.view:
        return ()
    resources = tuple((name, "resources") for name in sorted(unpacked_object(today.view)))
    ignored = shown.ignored | today.ignored
    differences = sidecar_differences(shown.view, today.view, resources, ignored, False)
    return list(differences.values())


def ask_as_planned(cluster: Cluster, options: Options, planned: Replacement, found: Found) -> Today:
    """Return what would be created now; by two answers, if it is not what the plan showed."""
    shown = planned.comparison.today
    today = ask_today(cluster, options, found, or_forbidden=False)
    if changes_since(planned, today):
        time.sleep(ANSWERS_APART)
        second = ask_today(cluster, options, found, number=1, or_forbidden=False)
        today = known_today(found, today, second, lambda: shown.ignored)
    return replace(
        today, ignored=shown.ignored | today.ignored, config_changes=shown.config_changes
    )


def ask_today(
    cluster: Cluster,
    options: Options,
    found: Found,
    number: int = 0,
    or_forbidden: bool = True,
    is_patient: bool = True,
) -> Today:
    """Return what would be created for a workload today, or why that is not known.

    Of a StatefulSet, each number is about another Pod. `is_patient`: a dry run that failed for a
    moment, perhaps, is sent once more.
    """
    was_asked = False
    try:
        sample = unpacked(found.sample)
        obj = template_source(cluster, found, or_forbidden)
        was_asked = True
        try:
            pod = cluster.pod_today(found.ref, obj, sample, number)
        except ApiError as error:
            was_allowed = error.reply is Reply.FORBIDDEN and options.only_drifted  # it was checked
            if not is_patient or (error.reply not in MOMENTARY and not was_allowed):
                raise
            time.sleep(ANSWERS_APART)
            pod = cluster.pod_today(found.ref, obj, sample, number)
        configs = NOTHING
        if options.include_config:
            configs = configs_of(pod, found.ref.namespace, options)
        view = injected_view(pod, options.sidecars)
        unexpected = unexpected_part(pod, options)
        return Today(view, container_texts(pod), configs, unexpected=unexpected)
    except ApiError as error:
        return Today(error=error.with_traceback(None), was_asked=was_asked)  # it keeps objects
    except Exception as error:
        text = f"unexpected response to the dry run: {error!r}"
        return Today(error=ApiError(Reply.UNUSABLE, text, Asked.DRY_RUN))


def template_source(cluster: Cluster, found: Found, or_forbidden: bool = False) -> Json:
    """Return the object whose template a workload's Pods come back from. ApiError if unknown.

    It is the workload, or of a paused Deployment and of Pods without a workload the owner of the
    Pods, such as a ReplicaSet.
    """
    obj = found.obj
    owner, *others = found.owners
    if has_rollout(found.ref) and not is_paused(obj):
        return obj
    if others:
        raise ApiError(Reply.UNUSABLE, f"its Pods belong to {len(others) + 1} {owner.kind}s")
    if has_rollout(found.ref):  # a paused Deployment
        obj = cluster.workload(owner, or_forbidden)
    if "spec" not in nested(obj, "spec.template"):
        text = f"the Pod template of {owner.kind_and_group} cannot be read"
        raise ApiError(Reply.UNUSABLE, text)
    return obj


POSITIONS = {
    REGULAR: "a regular container",
    NATIVE: "a native sidecar",
    INIT: "an init container",
}


def sidecar_text(sidecars: Iterable[Sidecar], with_names: bool) -> str:
    """Return `1.26.2, 1.27.0`, with names `istio-proxy 1.26.2, istio-init 1.26.2 (init)`."""
    texts = []
    for sidecar in sidecars:
        text = image_version(sidecar.image)
        if with_names:
            text = f"{sidecar.name} {text}"
        if sidecar.init:
            text += " (init)"
        texts.append(text)
    return ", ".join(dict.fromkeys(texts))


def difference_text(difference: Difference) -> str:
    """Return a line like `istio-proxy  image  1.26.2 -> 1.27.0` or `istio-proxy  env X added`."""
    (name, *section), current, expected = difference
    if not section:
        if isinstance(expected, str):  # a ConfigMap or Secret
            return f"{name} {expected}"
        container = {"name": name} | (expected or current)
        sidecar = as_sidecar(container["position"], container)
        return f"would be {'added' if expected else 'removed'}: {sidecar_text([sidecar], True)}"
    if section == ["position"]:
        return f"{name}  changes from {POSITIONS[current]} to {POSITIONS[expected]}"
    if REDACTED in (current, expected) or {} in (current, expected):  # a mount has only its path
        verb = "changed"
        if current is None:
            verb = "added"
        elif expected is None:
            verb = "removed"
        return f"{name}  {section_text(section)} {verb}"
    old, new = value_text(current), value_text(expected)
    if section == ["image"]:
        repository, _, tag = new.rpartition(":")
        new = tag if old.startswith(f"{repository}:") else new
        old, new = shorten(old, 300), shorten(new, 300)
    return f"{name}  {section_text(section)}  {old} -> {new}"


def section_text(section: Names) -> str:
    """Return `env X` for the path of a variable."""
    path = ".".join(section).removesuffix(".from.fieldRef.value")  # see with_metadata
    text = re.sub("^volumeMounts", "mounts", path)
    return re.sub(r"^(env|port|mount|volume)s?\.", r"\1 ", text)


def value_text(value: Any) -> str:
    if value is None:
        return "<none>"
    if isinstance(value, str) and value:
        return value
    return json.dumps(value)


# 11. Deciding: whether and how a workload is rolled out, in the plan and again before each write --
#
# A rule returns why a workload is not rolled out and what to do, or an empty text. The first that
# applies counts, in the order in which they stand here. The name of its function is the `code`, and
# its docstring is what the README says of it.


class Known(enum.IntEnum):
    """What is known of a workload when a rule is asked."""

    EXISTS = 0  # whether it is still there
    OWNER = 1  # the owner of its Pods; of others, the object is not read
    OBJECT = 2  # the object, too
    ALL = 3  # how its Pods compare with new ones, if these are asked about, and what follows


@dataclass(frozen=True)
class Facts:
    """What a rule may take, by the names of its parameters."""

    ref: ObjectRef
    found: Found
    obj: Json
    comparison: Comparison
    planned: Replacement | None  # of a worker: what the plan had decided
    options: Options


@dataclass(frozen=True)
class AllFacts(Facts):
    draft: Replacement


# What must be known for a parameter; for others, the owner
NEEDED = {"obj": Known.OBJECT, "planned": Known.OBJECT, "comparison": Known.ALL, "draft": Known.ALL}

RuleFunction = Callable[..., str]


class Rule(NamedTuple):
    """A rule, and what is said of a workload to which it applies."""

    applies: RuleFunction
    needs: Names  # its parameters, which are fields of AllFacts
    known: Known
    before_each_pod: bool  # else our own writes change the answer
    counts_in_audit: bool  # whether --fail-on-drift counts such Pods
    answer: str  # what a question knows of new ones; see answer_of
    counts_as_applied: bool  # whether a row of --plan is not to be applied then
    place: int  # in lists: what somebody must do comes first, then what an option includes


RULES: dict[str, Rule] = {}  # by code, in the order in which they are asked
LAST_PLACE = 99


def rule(
    known: Known | None = None,
    before_each_pod: bool = True,
    counts_in_audit: bool = True,
    answer: str = "",
    counts_as_applied: bool = False,
    place: int = LAST_PLACE,
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as the next rule.

    It is asked as soon as its parameters are known; `known` is for those that are asked with less.
    TypeError if a parameter is no field of AllFacts, or has another type: mypy does not see it.
    """

    def register(function: RuleFunction) -> RuleFunction:
        types = without_keys(function.__annotations__, "return")
        if not types.items() <= (Facts.__annotations__ | AllFacts.__annotations__).items():
            raise TypeError(function.__name__)
        level = known
        if level is None:
            level = max(NEEDED.get(name, Known.OWNER) for name in types)
        row = Rule(
            function,
            tuple(types),
            level,
            before_each_pod,
            counts_in_audit,
            answer,
            counts_as_applied,
            place,
        )
        RULES[function.__name__] = row
        return function

    return register


WORDS = {  # of codes that are not clear by themselves
    "pods_not_listed": "Pods not listed",
    "max_rollouts": "left by --max-rollouts",
    "restart_policy": "restartPolicy not Always",
    "static_pod": "static Pod",
    "without_pods": "without Pods",
    "wrong_method": "paused or OnDelete",
}


def words_of(code: str) -> str:
    """Return what people read of a code: of a rule, an outcome, or what else is true of a Pod."""
    return WORDS.get(code) or code.replace("_", " ")


def counts_in_audit(code: str) -> bool:
    """Return whether --fail-on-drift counts Pods that are left for a reason."""
    return code not in RULES or RULES[code].counts_in_audit


def place_of(code: str) -> int:
    """Return where a reason stands in a list of skipped workloads."""
    return RULES[code].place if code in RULES else LAST_PLACE


def code_counts_as_applied(code: str) -> bool:
    """Return whether a row of --plan with a code counts as applied."""
    return code in RULES and RULES[code].counts_as_applied


CHECK_INJECTOR = "check the injector"
# Codes with which a plan skips a workload, and a worker fails: it was possible by the plan.
IMPOSSIBLE = ("rejected", "losing_sidecar")
# Codes of Pods besides those of rules and outcomes; the last two are rules', too
IN_THE_PLAN, DRIFTED, UP_TO_DATE, LOST = "in_the_plan", "drifted", "up_to_date", "lost_sidecar"


def decide(
    found: Found,
    comparison: Comparison,
    options: Options,
    planned: Replacement | None = None,
    before_each_pod: bool = False,
) -> Replacement:
    """Return what is done about a workload, or the reason of the first rule that applies.

    It depends on nothing else: the plan decides, and a worker again, by what it has read since.
    `planned` is what the plan had decided, for the worker.
    """
    draft = draft_of(found, comparison, options, planned)
    facts = AllFacts(found.ref, found, found.obj, comparison, planned, options, draft)
    reason, code = first_reason(facts, Known.ALL, before_each_pod)
    return replace(draft, reason=reason, code=code)


def decide_early(
    found: Found, options: Options, known: Known, planned: Replacement | None = None
) -> Decision:
    """Return why nothing is done about a workload, as far as that is known without its Pods of
    today; see decide."""
    facts = Facts(found.ref, found, found.obj, NOT_COMPARED, planned, options)
    reason, code = first_reason(facts, known)
    return Decision(found, NOT_COMPARED, reason, code)


def first_reason(facts: Facts, known: Known, before_each_pod: bool = False) -> tuple[str, str]:
    """Return the reason and the code of the first rule that applies; empty if none does."""
    for code, row in RULES.items():
        if row.known > known or (before_each_pod and not row.before_each_pod):
            continue
        reason = row.applies(*(getattr(facts, name) for name in row.needs))
        if reason:
            return reason, code
    return "", ""


def draft_of(
    found: Found, comparison: Comparison, options: Options, planned: Replacement | None
) -> Replacement:
    """Return how the Pods of a workload would be replaced, and which.

    The method stays that of the plan: evictions make a workload healthy on their way.
    """
    obj, problem = found.obj, found.problem
    lost = lost_pods(found, comparison.today, options, planned)
    method = method_for(found, comparison, lost, options)
    if planned:
        method = planned.method
    old = [state for state in states_of(found, comparison, lost, options) if state.is_old]
    replaced_pods = tuple(state.pod.name for state in old if not state.is_kept)
    total = max(found.counts.current, len(found.pods))
    replaced = len(replaced_pods)
    if method is Method.RESTART:  # also of Pods that --selector does not match
        replaced = max(total - partition_of(obj), 0)
    is_serving = found.services is None or bool(found.services)
    if planned and planned.comparison.today.view:
        must = planned.must
    else:  # only this answer tells
        must = must_of(planned.found if planned else found, comparison.today, options)
    state = State.SERVING if is_serving else State.NO_SERVICE
    return Replacement(
        found,
        comparison,
        must=must,
        lost=lost,
        method=method,
        old_pods=replaced_pods,
        kept_pods=tuple(state.pod.name for state in old if state.is_kept),
        total_pods=total,
        pods_replaced=replaced,
        state=State.UNHEALTHY if problem else state,
        problem=problem,
        downtime=may_all_be_away(found, method, options),
        min_ready=ready_seconds(obj),
    )


def method_for(
    found: Found, comparison: Comparison, lost: Collection[str], options: Options
) -> Method:
    """Return how Pods are replaced. --evict is for those that a restart leaves, or harms."""
    if options.in_place and only_images(comparison):
        return Method.IN_PLACE
    if not options.evict:
        return Method.RESTART
    obj = found.obj
    if is_paused(obj) or is_on_delete(obj) or not has_rollout(found.ref):
        return Method.EVICT
    if is_degraded(found) or waits_for_lost_pod(found, lost):
        return Method.EVICT
    return Method.RESTART


def states_of(
    found: Found,
    comparison: Comparison,
    lost: Mapping[str, Collection[str]],
    options: Options,
) -> list[PodState]:
    """Return the state of each Pod of a workload; of what they lost, see lost_pods.

    Old are those that differ, or without --only-drifted all with a sidecar, if they were created
    before the cutoff; and whatever their age those that lost a sidecar.
    """
    cutoff, obj = options.cutoff_of(found.ref), found.obj
    states = []
    for pod in found.pods:
        containers = comparison.drifted_pods.get(pod.name, ())
        is_outdated = bool(containers if options.only_drifted else pod.sidecars)
        states.append(
            PodState(
                pod,
                found.ref,
                containers,
                lost.get(pod.name, ()),
                is_old=pod.name in lost or (is_outdated and pod.created < cutoff),
                is_kept=is_below_partition(obj, pod.name),
            )
        )
    return states


def is_selected_kind(ref: ObjectRef, options: Options) -> bool:
    """Return whether a kind is selected. The Pods of others can only be evicted."""
    if is_listed(ref):
        return ref.kind in options.kinds
    return options.evict


@rule(counts_in_audit=False)
def not_named(ref: ObjectRef, options: Options) -> str:
    """Not selected by `TYPE/NAME` or `--plan`. Not listed."""
    if not is_named(ref, options):
        return "not selected by TYPE/NAME or --plan"
    return ""


@rule(Known.OBJECT, counts_in_audit=False, counts_as_applied=True)
def excluded(found: Found, options: Options) -> str:
    """Matches `--exclude-annotation`, or its namespace does."""
    unwanted = options.exclude_annotation
    if has_any(unwanted, *annotations_to_match(found)):
        return "matches --exclude-annotation"
    if has_any(unwanted, annotations_of(found.namespace)):
        return "its namespace matches --exclude-annotation"
    return ""


@rule(Known.OBJECT, counts_in_audit=False, counts_as_applied=True)
def not_included(found: Found, options: Options) -> str:
    """Does not match `--include-annotation`."""
    wanted = options.include_annotation
    if wanted and not has_any(wanted, *annotations_to_match(found)):
        return "does not match --include-annotation"
    return ""


@rule(answer="not_asked")
def static_pod(ref: ObjectRef) -> str:
    """A static Pod, which the kubelet of its node manages."""
    if ref.kind == "Node":
        return "static Pod, managed by the kubelet of its node"
    return ""


@rule(counts_in_audit=False, answer="not_asked")
def running_to_completion(ref: ObjectRef) -> str:
    """A Pod of a Job, which runs to completion."""
    if is_job(ref):
        return "runs to completion"
    return ""


@rule(answer="not_asked")
def restart_policy(found: Found) -> str:
    """Its restartPolicy is not Always, as that of virtual machines and notebooks."""
    if not has_rollout(found.ref) and any(pod.may_end for pod in found.pods):
        return "restartPolicy is not Always; replace it with the tools of its controller"
    return ""


@rule(answer="not_asked")
def without_controller(ref: ObjectRef) -> str:
    """A Pod without a controller: nothing would recreate it."""
    if not ref.kind:
        return "not managed by a controller; delete and recreate it manually"
    return ""


@rule(Known.OWNER, place=6)
def kind_not_selected(ref: ObjectRef, comparison: Comparison, options: Options) -> str:
    """Its kind is not selected, or has no rollouts and needs `--evict`."""
    if is_selected_kind(ref, options) or options.is_question:
        return ""
    if options.only_drifted and not comparison.is_drifted:
        return ""  # not compared yet, or up to date
    if is_listed(ref):
        return f"not selected; {KINDS[ref.kind].how_to_select}"
    hint = "use --evict, or restart it with that controller's tools"
    return f"managed by {ref.kind_and_group}, which `kubectl rollout` does not support; {hint}"


@rule(Known.EXISTS, answer="no_answer")
def gone(ref: ObjectRef, found: Found) -> str:
    """It or the controller of its Pods no longer exists, or may not be read."""
    if found.stored != b"":  # not read, or it exists
        return ""
    text = "no longer exists, or there is no permission to read it"
    return text if is_listed(ref) else f"its controller {text}"


@rule(Known.EXISTS, answer="not_asked")
def being_deleted(found: Found, obj: Json, comparison: Comparison) -> str:
    """It or its namespace is being deleted."""
    if nested(obj, "metadata.deletionTimestamp"):
        return "being deleted"
    error = comparison.today.error
    if nested(found.namespace, "metadata.deletionTimestamp"):
        return "its namespace is terminating"
    if error and error.reply is not Reply.DENIED and "NamespaceTerminating" in error.causes:
        return "its namespace is terminating"
    return ""


@rule()
def another_object(ref: ObjectRef, obj: Json, options: Options) -> str:
    """Has another UID than in `--plan`: it was created again."""
    row = options.row_of(ref)
    if row and row.uid != nested(obj, "metadata.uid"):
        return "is another object than in the plan"
    return ""


@rule()
def restarted_meanwhile(obj: Json, planned: Replacement | None) -> str:
    """Restarted by another run since the plan."""
    if not planned or planned.method is not Method.RESTART:
        return ""
    before = timestamps_of(planned.found.obj)  # `kubectl rollout undo` brings back an earlier one
    if max(timestamps_of(obj), default="") <= max(before, default=""):
        return ""
    if controller_reference(obj):
        return "restarted by somebody else since the plan"
    return "already restarted by another run"


@rule(Known.OBJECT, place=2)
def without_pods(found: Found, options: Options) -> str:
    """Has no Pods since its last rollout, which this command began."""
    if found.sample or found.counts.current:
        return ""
    return why_never_completed(found, options) or why_left_without_pods(found)


@rule(Known.OBJECT, place=2)
def of_an_earlier_run(found: Found, options: Options) -> str:
    """Its rollout, which this command began, was never complete; its Pods were not selected."""
    if found.sample:
        return ""
    return why_never_completed(found, options)


@rule(answer="no_answer", place=4)
def rejected(comparison: Comparison) -> str:
    """The API server, a policy or a webhook rejects new Pods."""
    if comparison.verdict is not Verdict.REJECTED:
        return ""
    return f"new Pods cannot be created: {short_reason(comparison.message)}"


@rule(place=5)
def not_injected(ref: ObjectRef, found: Found, comparison: Comparison, options: Options) -> str:
    """Named with `--include-missing`: its Pods have no sidecar, and new ones would not get it."""
    is_exact = not set(typed_names(ref)).isdisjoint(options.workloads)
    if not (is_exact and options.include_missing) or all(pod.sidecars for pod in found.pods):
        return ""
    text = "its Pods have no sidecar, and new ones would not get it"
    if comparison.verdict is Verdict.NOT_INJECTED:
        return f"{text}; {CHECK_INJECTOR}"
    if comparison.verdict is Verdict.UNKNOWN:
        return f"{text}, as far as is known: {short_reason(comparison.message)}"
    return ""


@rule(answer="no_answer")
def unknown(comparison: Comparison) -> str:
    """Not compared: the dry run had no answer, or two different ones."""
    if comparison.verdict is not Verdict.UNKNOWN:
        return ""
    error = comparison.today.error
    quota = re.search("exceeded quota: ([a-z0-9.-]+)", comparison.message)
    if error and error.reply is Reply.QUOTA and quota:
        text = f"not compared: the quota {quota[1]} of the namespace is exhausted; raise it"
        return f"{text}, or run `kubectl rollout restart` where a rollout frees room first"
    return f"not compared: {short_reason(comparison.message)}"


@rule(answer="would_differ")
def would_differ(draft: Replacement, options: Options) -> str:
    """New Pods would not be as `--expect-image` and `--expect-annotation` say."""
    today = draft.comparison.today
    if not (options.is_question and today.view):
        return ""
    having = {sidecar.name for sidecar in draft.found.sidecars if not sidecar.init}
    lost = named_texts(lost_by(draft, today.containers, options), options.sidecars)
    lost |= having - plain_names(today.containers)
    if lost:
        return f"new Pods would not have {join_words(sorted(lost))}"
    return today.unexpected and f"new Pods would have {today.unexpected}"


@rule(before_each_pod=False, place=1)
def lost_sidecar(draft: Replacement, options: Options) -> str:
    """Pods lost the sidecar, and new ones would not get it: repair the injector."""
    today = draft.comparison.today
    if not (today.view and draft.lost and is_selected_kind(draft.ref, options)):
        return ""
    names = set().union(*draft.lost.values()) - plain_names(today.containers)
    if not names:
        return ""
    pods = f"{len(draft.lost)} of {count_of(len(draft.found.pods), 'Pod')}"
    text = f"{pods} lost {join_words(sorted(names))}"
    hint = "repair the injector; if the Pods are to have none, exclude the workload, or remove the"
    key = f"{options.annotation_prefix}.rollout.sidecars"
    return f"{text}, and new ones would not get it; {hint} annotation {key} with its next release"


def is_needed(draft: Replacement, planned: Replacement | None, options: Options) -> bool:
    """Return whether a workload needs a rollout; of one that was planned, that is known."""
    if planned:
        return True
    if options.only_drifted:
        return draft.comparison.is_drifted
    return bool(draft.old_pods or draft.kept_pods)


@rule(before_each_pod=False, place=3)
def incomplete_rollout(draft: Replacement, planned: Replacement | None, options: Options) -> str:
    """Its rollout is not complete, or never was since this command began it."""
    # 1. This command began its rollout, which was never complete: it is listed until it is. A new
    #    rollout, which would complete it, goes on.
    # 2. It would be rolled out, and its rollout, whoever began it, is not complete. A restart would
    #    make a third revision in the middle of a release, and replace first the old Pods, which are
    #    those that still serve. So it is left alone, with what to do; unless only a restart heals
    #    it, see is_repair.
    # Where all Pods are new ones, and differ, it is unhealthy like any other.
    obj, is_restart = draft.found.obj, draft.method is Method.RESTART
    reason = ""
    if is_needed(draft, planned, options):
        if is_repair(draft, planned):
            return ""
        reason = why_incomplete(draft.found)
        is_left = is_restart and (is_paused(obj) or not draft.comparison.is_drifted)
        if not (reason or is_left):
            return ""
    own = ""
    if is_selected_kind(draft.ref, options):
        own = why_never_completed(draft.found, options)
    if own or not reason:
        return own
    if ("Progressing", "False") in conditions_of(obj):
        return f"{reason}; repair the application"
    return f"{reason}; wait, or run `kubectl rollout status`"


@rule(place=5)
def losing_sidecar(draft: Replacement, planned: Replacement | None, options: Options) -> str:
    """New Pods would not have the sidecar."""
    comparison = draft.comparison
    view = comparison.today.view
    if not view or not is_needed(draft, planned, options):
        return ""  # the view of a Pod without sidecars is not empty
    if not draft.found.pods:
        return ""
    # A dry run alone does not decide about what others inject: policies leave out dry runs
    missing = lost_by(draft, comparison.today.containers, options)
    lost = sorted(named_texts(missing, options.sidecars))
    if not lost:
        return ""
    if planned:
        return f"new Pods would not have the sidecar {join_words(lost)}; {CHECK_INJECTOR}"
    text = f"would lose the sidecar {join_words(lost)}"
    if comparison.added:
        text += f" and get {join_words(comparison.added)}"
    return f"{text}; {CHECK_INJECTOR}"


@rule()
def another_sidecar(draft: Replacement, planned: Replacement | None, options: Options) -> str:
    """New Pods would get another sidecar than in the plan."""
    # Whose change it is, the Pod template tells: an injector writes ports and probes of the
    # application into its sidecar. After a release, Pods that are right by its own answer need
    # nothing: see nothing_to_replace, and up_to_date; unless these have another image than in the
    # plan, as from an injector that was rolled back meanwhile.
    today, row = draft.comparison.today, options.row_of(draft.ref)
    text, is_released, has_other_image = "", False, False
    if planned:
        is_released = template_hash(planned.found.obj) != template_hash(draft.found.obj)
        changes = changes_since(planned, today)
        has_other_image = any(change.path[1:] == ("image",) for change in changes)
        text = "; ".join(map(difference_text, changes))
    elif row and row.sidecar_hash not in ("", hash_of(today)):
        is_released = row.template_hash not in ("", template_hash(draft.found.obj))
        text = f"hash {row.sidecar_hash} -> {hash_of(today)}"
    if not text or (is_released and not has_other_image and not draft.comparison.drifted_pods):
        return ""
    if is_released:
        return "its Pod template was changed by its team since the plan; run this command again"
    return f"the injector changed since the plan: {text}; run this command again"


@rule(before_each_pod=False, counts_in_audit=False, counts_as_applied=True)
def up_to_date(draft: Replacement, planned: Replacement | None, options: Options) -> str:
    """Needs no rollout. Listed only if it is a row of `--plan`."""
    if not is_needed(draft, planned, options):
        return "needs no rollout"
    return ""


@rule(place=7)
def min_ready_seconds(draft: Replacement, options: Options) -> str:
    """Its `minReadySeconds` is longer than `--timeout`."""
    if draft.min_ready <= options.timeout:
        return ""
    text = f"its Pods count as available after {draft.min_ready}s (minReadySeconds)"
    return f"{text}, which is longer than --timeout; raise it"


@rule(place=7)
def wrong_method(draft: Replacement) -> str:
    """Paused, or its update strategy needs `--evict` or a manual restart."""
    obj = draft.found.obj
    if draft.method is Method.EVICT and draft.ref.kind == "Deployment" and not is_paused(obj):
        return "no longer paused; rerun this command to restart it"
    if draft.method is not Method.RESTART:
        return ""
    if is_paused(obj):
        return "paused; run `kubectl rollout resume` first, or use --evict"
    if is_on_delete(obj):
        return "updateStrategy is OnDelete; use --evict, or delete its Pods manually, one at a time"
    strategy = nested(obj, "spec.updateStrategy.type") or "RollingUpdate"
    if strategy != "RollingUpdate":
        hint = "which `kubectl rollout status` does not support; restart it manually"
        return f"updateStrategy is {strategy}, {hint}"
    return ""


@rule(before_each_pod=False, place=8)
def degraded(draft: Replacement) -> str:
    """A restart would stop another Pod, or wait for an unready one; use `--evict`."""
    if draft.method is not Method.RESTART:
        return ""
    hint = "use --evict, which replaces unready Pods first, or repair the unready Pod"
    if waits_for_lost_pod(draft.found, draft.lost):
        return f"a restart waits for its unready Pod, which has lost its sidecar; {hint}"
    if is_degraded(draft.found):
        shortage = shortage_of(draft.ref, draft.found.obj)
        return f"{shortage}; a restart would stop another Pod; {hint}"
    return ""


@rule(before_each_pod=False, place=9)
def replica_not_ready(draft: Replacement, planned: Replacement | None) -> str:
    """Another workload behind the same Service, with the same containers, lacks Pods."""
    # Of a database whose members are StatefulSets, a second one would be away. One that keeps Pods
    # while it is replaced may go, and so may one that has none that is ready: nothing is taken.
    found = draft.found
    ready = {pod.name for pod in found.pods if pod.is_ready}
    if not (found.short_replica and is_careful(draft) and ready) or is_repair(draft, planned):
        return ""
    if draft.method is not Method.RESTART and not ready.issuperset(draft.old_pods):
        return ""  # unready Pods come first; see PodByPod.obstacle
    hint = "repair it first, or run `kubectl rollout restart`"
    return f"its replica {found.short_replica}; {hint}"


@rule(before_each_pod=False, place=9)
def unhealthy(draft: Replacement, options: Options) -> str:
    """Unhealthy, with `--skip-unhealthy`."""
    if options.skip_unhealthy and draft.problem and not draft.lost:
        return f"unhealthy: {draft.problem}"
    return ""


@rule(before_each_pod=False)
def below_partition(draft: Replacement) -> str:
    """All its old Pods are below the partition of its StatefulSet."""
    # A rollout leaves these Pods alone, and an evicted one would come back as it was.
    if draft.kept_pods and not draft.old_pods:
        return f"{kept_by_partition(draft)}; lower the partition"
    return ""


@rule(before_each_pod=False)
def no_sidecar(draft: Replacement, options: Options) -> str:
    """Its Pods no longer have the sidecar, or it has no Pods although it wants some."""
    found = draft.found
    if draft.old_pods or options.selector:
        return ""
    if not found.pods and found.counts.desired:
        return "it has no Pods now"
    if found.pods and not options.include_missing and not any(pod.sidecars for pod in found.pods):
        return "its Pods no longer have the sidecar"
    return ""


@rule(before_each_pod=False, counts_as_applied=True)
def nothing_to_replace(draft: Replacement, options: Options) -> str:
    """No Pod needs to be replaced anymore, or all were created after the cutoff."""
    found = draft.found
    if draft.old_pods:
        return ""
    if not found.pods:
        return "its Pods do not match now" if options.selector else "it has no Pods now"
    pods, kind = found.pods, "Pods"
    if options.only_drifted:
        kind = "drifted Pods"
        pods = [pod for pod in pods if pod.name in draft.comparison.drifted_pods]
    if pods and all(pod.created >= options.cutoff_of(found.ref) for pod in pods):
        return f"all its {kind} were created after the cutoff"
    return "already up to date"


@rule()
def changed_in_place(draft: Replacement) -> str:
    """A SidecarSet manages its images."""
    # OpenKruise would change an image back, in place (tested with 1.8.3).
    if draft.method is not Method.IN_PLACE:
        return ""
    for pod in draft.found.pods:
        if pod.why_managed:
            return pod.why_managed
    return ""


@rule(before_each_pod=False)
def pending_template(draft: Replacement) -> str:
    """Replacing its Pods may also roll out a change of its Pod template."""
    # A Pod comes back as the template of its owner is now.
    ref, obj = draft.ref, draft.found.obj
    is_pending = False
    if is_on_delete(obj):
        on_wanted_nodes = len(draft.found.pods) - misscheduled(obj)
        is_pending = draft.found.counts.updated < on_wanted_nodes or not is_observed(obj)
    elif has_template(ref) and not has_rollout(ref):
        # Its status counts no updated Pods: only a spec that was never changed is that of its Pods.
        is_pending = nested(obj, "metadata.generation") != 1
    if is_pending and draft.method is Method.EVICT:
        hint = "replace them manually, one at a time"
        return f"replacing its Pods may also roll out a change of its Pod template; {hint}"
    return ""  # the ReplicaSet of a paused Deployment, or of another controller, keeps its template


@rule()
def another_method(draft: Replacement, options: Options) -> str:
    """Its Pods would be replaced in another way than in `--plan`."""
    row = options.row_of(draft.ref)
    if row and row.method is not draft.method:
        return f"would be {draft.method.value}, and not {row.method.value} as in the plan"
    return ""


@rule(before_each_pod=False, place=10)
def has_downtime(draft: Replacement, options: Options) -> str:
    """All its Pods may be unavailable at once, with `--skip-downtime`."""
    if options.skip_downtime and draft.downtime:
        return "its rollout is downtime: all its Pods may be unavailable at once"
    return ""


# What rules ask


def new_pods(found: Found) -> list[LivePod]:
    """Return the Pods of the latest Pod template, by what they say; none if that is not known.

    They have the time of this command, if the template has it, and the label of its revision. A
    StatefulSet has that in its status; of others, the latest Pod tells, which may have replaced an
    old one.
    """
    times = set(timestamps_of(found.obj))
    pods = [pod for pod in found.pods if pod.restart_times >= times]
    latest = max((pod.created for pod in pods), default=None)
    revisions = {pod.revision for pod in pods if pod.created == latest}
    revision = nested(found.obj, "status.updateRevision")
    if revision:
        revisions = {revision}
    return [pod for pod in pods if pod.revision and revisions == {pod.revision}]


def is_repair(draft: Replacement, planned: Replacement | None) -> bool:
    """Return whether only a restart heals an incomplete rollout, whoever began it.

    A new Pod is stuck because of a sidecar that differs from what would be injected today (a bad
    image that was put right since), or it lost a sidecar when this command restarted it. Its
    controller waits for that Pod, and would wait forever. If the application is stuck, a restart
    changes nothing; if the sidecar is what would be injected today, neither.

    The plan asks twice. Before a dry run, any stuck sidecar may differ: the answer is yes, so that
    the workload is asked about. With the answer, only a difference counts. A worker that has no
    answer does nothing.
    """
    today, lost = draft.comparison.today, draft.lost
    new = new_pods(draft.found)
    if not today.view:
        return not planned and any(pod.stuck or pod.name in lost for pod in new)
    for pod in new:
        if pod.name in lost:
            return True
        if pod.stuck:
            parts = (pod.view, today.view, pod.resized, today.ignored, False)
            differences = sidecar_differences(*parts).values()
            if pod.stuck & {difference.path[0] for difference in differences}:
                return True
    return False


def why_incomplete(found: Found) -> str:
    """Return why a rollout is not complete; empty if it is, or if the workload has none."""
    obj = found.obj
    if is_on_delete(obj) or is_paused(obj):
        return ""
    counts = found.counts
    if not is_observed(obj):
        return "its rollout is not complete: its latest spec has not been observed"
    revision = nested(obj, "status.currentRevision")  # of a StatefulSet
    is_done = revision and revision == nested(obj, "status.updateRevision")
    if not has_rollout(found.ref) or is_done:
        return ""
    if counts.current - counts.updated <= partition_of(obj):
        return ""
    updated = f"{counts.updated} of {count_of(counts.current, 'Pod')} updated"
    return join_texts(": ", f"its rollout is not complete: {updated}", why_not_healthy(found))


CLOCKS_DIFFER = timedelta(seconds=2)


def why_never_completed(found: Found, options: Options) -> str:
    """Return why a rollout that this command began was never complete; empty: it was, or it is
    somebody else's.

    It is ours if today's Pod template is the one that was restarted, by its hash, nobody restarted
    it since, and a new Pod is as old as that run: else somebody has rolled back to it. Whether it
    was complete, its controller's record tells, or if it is paused, which replaces that record, the
    counts of its Pods.
    """
    obj, counts = found.obj, found.counts
    restarted, until = restarted_template(obj, options.annotation_prefix)
    if not restarted or restarted != template_hash(obj):
        return ""
    began = template_annotations(obj).get(f"{options.annotation_prefix}.rollout.timestamp", "")
    if not (counts.desired and is_observed(obj)) or restarted_since(obj, began):
        return ""
    new = new_pods(found)
    if new and format_time(min(pod.created for pod in new) - CLOCKS_DIFFER) > until:
        return ""
    updated = ""
    if why_incomplete(found) or (is_paused(obj) and counts.updated < counts.current):
        updated = f"{counts.updated} of {count_of(counts.current, 'Pod')} updated"
    cause = why_not_healthy(found) or shortage_of(found.ref, obj) or updated
    if not counts.current:
        cause = f"no Pods: {cause}"
    if not cause or not (updated or is_never_complete(obj)):
        return ""
    state = "never complete"
    if is_in_progress(found, options):
        state = f"in progress until {until[11:16]} UTC"
    return f"begun by this command on {began[:10]}, {state}: {cause}"


def is_in_progress(found: Found, options: Options) -> bool:
    """Return whether the run that began a rollout may still wait for it: no new Pod is stuck
    (one that waits for a node is not), and its controller has not given up."""
    until = restarted_template(found.obj, options.annotation_prefix)[1]
    pods = []
    for pod in found.pods:
        pods.append(pod._replace(problem="") if pod.problem == UNSCHEDULABLE else pod)
    if found.read_at == NO_CUTOFF or why_not_healthy(replace(found, pods=pods)):
        return False
    return format_time(found.read_at + CLOCKS_DIFFER) < until


def is_red(decision: Decision, options: Options) -> bool:
    """Return whether a rollout that this command began was never complete, and nobody has left its
    workload out. One that lost its sidecar is counted as that."""
    code = decision.code
    if code == LOST or options.skip_unhealthy or not is_selected_kind(decision.ref, options):
        return False
    is_early = code in RULES and RULES[code].known <= Known.OBJECT
    if is_early and code not in ("without_pods", "of_an_earlier_run"):
        return False
    found = decision.found
    return bool(why_never_completed(found, options)) and not is_in_progress(found, options)


def why_left_without_pods(found: Found) -> str:
    """Return why a workload of an operator has no Pods since a restart: what it keeps of that, it
    may have written itself."""
    obj, counts = found.obj, found.counts
    restarted = template_annotations(obj).get(RESTARTED_AT, "")
    is_short = counts.desired and not counts.current and is_observed(obj)
    if not (restarted and is_short and controller_reference(obj)):
        return ""
    cause = why_not_healthy(found) or shortage_of(found.ref, obj)
    return f"no Pods since its restart on {restarted[:10]}: {cause}"


def why_not_healthy(found: Found) -> str:
    """Return why new Pods are not ready, without their names: so that many are one group."""
    for pod in new_pods(found):
        if pod.problem:
            return pod.problem
    conditions = conditions_of(found.obj)
    failure = conditions.get(("ReplicaFailure", "True"))
    if failure:
        return said(short_reason(failure.get("message", "")))
    return str(conditions.get(("Progressing", "False"), {}).get("reason", ""))


def must_of(found: Found, today: Today, options: Options) -> frozenset[str]:
    """Return the containers that a new Pod of a workload must have: texts; see container_texts.

    They are those that today's answer, Pods of today's Pod template, and an annotation of this
    command have. Of the containers that no name is about, only those of these Pods, without init
    containers: another injector has put them in. Without what the Pod template states; what another
    init container replaces by the answer; and what the answer lacks, with --allow-removal.

    A restart notes them in the Pod template, so that no later run forgets one.
    """
    stated, own = stated_texts(found.obj), new_pods(found)
    noted = noted_texts(template_annotations(found.obj))
    seen = set().union(*(pod.containers for pod in own or found.pods))
    if found.pods and not has_template(found.owners[0]):
        # It may have several templates; what a plain run evicts had the sidecar
        evicts = options.evict and not options.only_drifted
        every = [p.containers for p in found.pods if not p.may_end and (p.sidecars or not evicts)]
        seen = seen.intersection(*every) if every else set()
    must = named_texts(seen | noted, options.sidecars)
    must |= injected_by_others(found, options)
    if today.view:
        known = known_before(found, today.containers)
        names = tuple(options.sidecars)
        present = plain_names(today.containers)
        lost = lost_of(frozenset(must), today.containers, known, names)
        if options.allow_removal:
            lost = frozenset()
        must = {text for text in must if plain_names([text]) <= present | lost}
        must |= named_texts(today.containers, options.sidecars)
    stated_names = plain_names(stated)
    return frozenset(text for text in must if text.removesuffix(INIT_MARK) not in stated_names)


def injected_by_others(found: Found, options: Options) -> set[str]:
    """Return the containers, without init containers, that no name is about, and that Pods of
    today's Pod template have although it does not state them."""
    stated, own = stated_texts(found.obj), new_pods(found)
    if not (stated and own):
        return set()
    seen = set().union(*(pod.containers for pod in own)) - stated
    seen -= named_texts(seen, options.sidecars)
    return {text for text in seen if not text.endswith(INIT_MARK)}


def lost_by(decision: Decision, containers: frozenset[str], options: Options) -> frozenset[str]:
    """Return the names of what a new Pod with these containers must have and lacks."""
    known = known_before(decision.found, containers)
    return lost_of(decision.must, containers, known, tuple(options.sidecars))


def known_before(found: Found, containers: frozenset[str]) -> frozenset[str]:
    """Return the containers that no new one has replaced yet: what the Pod template states, and
    those of Pods that have an init container which a new Pod lacks."""
    known = set(stated_texts(found.obj))
    for own in {pod.containers for pod in found.pods}:
        if any(text.endswith(INIT_MARK) for text in own - containers):
            known |= own
    return frozenset(known)


def lost_pods(
    found: Found, today: Today, options: Options, planned: Decision | None = None
) -> dict[str, frozenset[str]]:
    """Return the Pods that lost sidecars, by name, with the names of these. Nothing else says so.

    Of each Pod, what an annotation of this command names, whoever restarted it since: that came
    with its template. Of one that came since the plan, also what a new Pod must have, unless
    somebody has changed the Pod template since. With --allow-removal, not what new Pods would lack.
    """
    known = stated_texts(found.obj)
    names = tuple(options.sidecars)
    before, revisions, is_pending = None, set(), False
    if planned and is_same_template(planned.found, found):
        before = {pod.uid for pod in planned.found.pods}
        revisions = {pod.revision for pod in planned.found.pods}
        is_pending = has_pending_template(planned.found)
    lost = {}
    lacking: dict[frozenset[str], frozenset[str]] = {}  # by containers, which most Pods share
    for pod in found.pods:
        gone: frozenset[str] = frozenset()
        if pod.noted and not pod.noted <= pod.containers:
            must = frozenset(named_texts(pod.noted, names))
            gone = lost_of(must, pod.containers, pod.noted | known, names)
        is_new = before is not None and pod.uid not in before
        if planned and is_new and not (is_pending and pod.revision not in revisions):
            if pod.containers not in lacking:
                lacking[pod.containers] = lost_by(planned, pod.containers, options)
            gone |= lacking[pod.containers]
        if options.allow_removal and today.view:
            gone &= plain_names(today.containers)
        if gone:
            lost[pod.name] = gone
    return lost


def is_same_template(planned: Found, found: Found) -> bool:
    """Return whether nobody has changed a Pod template but by a restart; of an object that was not
    read, and of a custom resource, by the revisions of its Pods, if they have any."""
    if has_template(found.ref) and planned.obj:
        return template_hash(planned.obj) == template_hash(found.obj)
    return {pod.revision for pod in found.pods} <= {pod.revision for pod in planned.pods}


def is_careful(draft: Replacement) -> bool:
    """Return whether a workload waits for its replicas: it may have no Pods for a while."""
    return draft.ref.kind == "StatefulSet" or draft.downtime


def as_replica(ref: ObjectRef, obj: Json) -> Replica:
    """Return what tells of which workloads one is a replica."""
    template = nested(obj, "spec.template")
    containers = interned(container_texts(template))
    labels = nested(template, "metadata.labels")
    return Replica(ref, containers, labels, shortage_of(ref, obj))


def replicas_of(
    rows: Iterable[Replica], selectors: Mapping[str, Sequence[Labels]]
) -> dict[ObjectRef, list[frozenset[ObjectRef]]]:
    """Return the replicas of each workload, itself included, by Service.

    By selectors: a Pod that is Pending, or was never created, is in no EndpointSlice.
    """
    found: dict[ObjectRef, list[frozenset[ObjectRef]]] = defaultdict(list)
    groups = group_by(rows, lambda row: (row.ref.kind, row.ref.namespace, row.containers))
    for (_, namespace, _), group in groups.items():
        shared_by = set()  # once, whatever the number of Services
        for selector in selectors.get(namespace, ()) if len(group) > 1 else ():
            of_service = [row.ref for row in group if selector.items() <= row.labels.items()]
            shared_by.add(frozenset(of_service))
        for shared in shared_by:
            for ref in shared if len(shared) > 1 else ():
                found[ref].append(shared)
    return found


MOST_REPLICAS = 20  # whose Pods are looked at; of others, the status tells


def short_replica(cluster: Cluster, found: Found) -> str:
    """Return which replica of a workload lacks Pods now, with a Pod that is not ready; empty: none.

    One whose latest spec its controller has not seen may have been restarted a moment ago.
    """
    kind = KINDS[found.ref.kind]
    asked = 0
    for obj in cluster.items(kind.api, kind.plural, [found.ref.namespace]):
        ref = found.ref._replace(name=name_of(obj))
        if ref == found.ref or not any(ref in shared for shared in found.replicas):
            continue
        text, unready = shortage_of(ref, obj), []
        if text or asked < MOST_REPLICAS:
            asked += 1
            pods = cluster.pods_of(ref, obj)
            unready = [pod for pod in pods if is_ending(pod) or not is_ready(pod)]
            if not text and len(pods) - len(unready) < counts_of(ref, obj).desired:
                text = "Pods that are not ready"  # one that terminates may count as available
        if not (text or is_observed(obj)):
            text = "a rollout that has just begun"
        if text:
            problem = pod_problem(unready[0]) or pod_and_node(unready[0]) if unready else ""
            return f"{ref} has {join_texts(': ', text, problem)}"
    return ""


def has_pending_template(found: Found) -> bool:
    """Return whether its Pods may be of an older Pod template than today's."""
    obj = found.obj
    return is_paused(obj) or is_on_delete(obj) or bool(why_incomplete(found))


def waits_for_lost_pod(found: Found, lost: Collection[str]) -> bool:
    """Return whether a restart would never replace a Pod that lost a sidecar.

    The controller of an OrderedReady StatefulSet waits for its unready Pod first.
    """
    if all(pod.is_ready for pod in found.pods):
        return False
    return is_ordered_ready(found.obj) and bool(lost)


def annotations_to_match(found: Found) -> list[Labels]:
    """Return the annotations that options are about; without a readable owner, those of a Pod."""
    obj = found.obj or unpacked_object(found.sample)
    return [annotations_of(obj), template_annotations(obj)]


def kept_by_partition(decision: Replacement) -> str:
    kept = count_of(len(decision.kept_pods), "old Pod")
    return f"partition {partition_of(decision.found.obj)} keeps {kept}"


def is_degraded(found: Found) -> bool:
    """Return whether a StatefulSet has Pods that are available, and some that are not.

    With podManagementPolicy Parallel, a restart takes a second Pod, whatever its
    PodDisruptionBudget says.
    """
    counts = found.counts
    return found.ref.kind == "StatefulSet" and 0 < counts.available < counts.desired


def may_all_be_away(found: Found, method: Method, options: Options) -> bool:
    """Return whether all Pods of a workload may be unavailable at once while they are replaced.

    A Deployment stops as many old Pods as maxUnavailable allows before new ones are ready, whatever
    its maxSurge. Percentages are rounded down, of maxSurge and of a DaemonSet up; if both are 0,
    maxUnavailable is 1. Kubernetes' pkg/controller/deployment/rolling.go, util/deployment_util.go
    and daemon/util/daemonset_util.go.
    """
    obj = found.obj
    desired = found.counts.desired or len(found.pods)
    if partition_of(obj) or (found.ref.kind == "DaemonSet" and desired == 1):
        return False  # Pods below the partition stay; a DaemonSet has a Pod for each node
    if method is not Method.RESTART:
        if is_ordered_ready(obj) and desired > 1:  # one by one
            return False
        return evicted_at_once(method, desired, options) >= desired
    if nested(obj, "spec.strategy.type") == "Recreate":
        return True
    field = "strategy" if found.ref.kind == "Deployment" else "updateStrategy"
    rolling = nested(obj, f"spec.{field}.rollingUpdate")
    has_surge = rolling.get("maxSurge", 0) not in (0, "0%")
    away = rolling.get("maxUnavailable", 1)
    if isinstance(away, str):
        part = int(away.rstrip("%")) * desired / 100
        away = math.ceil(part) if found.ref.kind == "DaemonSet" else int(part)
    if not has_surge:
        away = max(away, 1)
    return bool(away >= desired)


def evicted_at_once(method: Method, wanted: int, options: Options) -> int:
    """Return how many Pods of an owner that wants so many may be unavailable."""
    limit = options.max_unavailable
    if not limit or method is not Method.EVICT:
        return 1
    return max(int(limit.of(wanted)), 1)


# 12. The plan -------------------------------------------------------------------------------------

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # holds a copy of the workload


def find_workloads(
    cluster: Cluster, owners: Sequence[Found], scan: Scan, options: Options
) -> list[Found]:
    """Return the workloads of the owners of Pods, and those without Pods.

    Four times less is known than is needed, so this goes in steps:
    1. Pods name their controllers. A ReplicaSet's name implies its Deployment, which need not be
       true: an orphan keeps its name, and Argo's ReplicaSets look alike.
    2. Lists of the selected kinds bring their objects in pages, and tell which have no Pods.
    3. A ReplicaSet whose implied Deployment was not listed, or does not select its Pods, is asked
       for its controller. Then several owners may be one workload: they are merged.
    4. What a rule leaves alone by its owner already is not read: reading may be forbidden.
    Old ReplicaSets of a workload have Pods without the sidecar while new ones have it: an owner
    without it is dropped only if no other owner of its workload has it, before 2 and after 3.
    """
    wanted = {found.ref for found in owners if is_concerned(found, options)}
    for found in owners:
        if options.include_missing and found.ref not in wanted:
            scan.nouns[found.ref] = CUSTOM
    owners = [found for found in owners if found.ref in wanted]
    objects, without_pods = read_lists(cluster, wanted, scan, options)
    controllers = controllers_of(cluster, owners, objects, options)
    groups = group_by(owners, lambda found: controllers.get(found.owners[0], found.ref))
    merged = {ref: merge(ref, group) for ref, group in groups.items()}
    selected = []
    for found in merged.values():
        if not decide_early(found, options, Known.OWNER).reason:
            selected.append(found)
    for found, stored in in_parallel(selected, partial(read_object, cluster, objects)):
        merged[found.ref] = replace(found, stored=stored)
    return [found for found in merged.values() if is_concerned(found, options)] + without_pods


def is_concerned(found: Found, options: Options) -> bool:
    """Return whether Pods have or lost the sidecar, or are to get it.

    Of custom resources without it, there may be thousands: one is to get it if it is named.
    """
    if found.sidecars or lost_pods(found, NOT_ASKED, options):
        return True
    is_meant = has_template(found.owners[0]) or (options.workloads and is_named(found.ref, options))
    return options.include_missing and bool(is_meant)


def merge(ref: ObjectRef, group: Sequence[Found]) -> Found:
    """Return the Pods of all owners of the same workload."""
    example = group[0]
    owners: list[ObjectRef] = []
    pods: list[LivePod] = []
    for found in group:
        owners += found.owners
        pods += found.pods
        if found.sidecars and not example.sidecars:
            example = found
    return Found(ref, tuple(owners), pods, example.sample, sidecars_of(pods))


def read_lists(
    cluster: Cluster, wanted: Collection[ObjectRef], scan: Scan, options: Options
) -> tuple[dict[ObjectRef, bytes], list[Found]]:
    """Return the wanted workloads, packed, and others whose rollout by this command was never
    complete: no Pod with the sidecar leads to them.

    With --only-drifted, also those of other kinds, as far as that is permitted. For a question,
    what may have no Pods now is counted: ReplicaSets, ControllerRevisions or what controls them,
    CronJobs, Jobs.
    """
    objects = {}
    without_any = {}
    restarted = {f"{options.annotation_prefix}.rollout.template", RESTARTED_AT}
    kinds = WORKLOADS if options.only_drifted and not options.workloads else options.kinds
    namespaces = namespaces_to_list(options)
    for kind in sorted(kinds):
        try:
            row = KINDS[kind]
            for obj in cluster.items(row.api, row.plural, namespaces, or_forbidden=True):
                ref = ObjectRef(kind, obj["metadata"]["namespace"], name_of(obj), row.group)
                if not is_included(ref.namespace, options):
                    continue
                scan.nouns[ref] = WITHOUT_PODS
                scan.replicas.append(as_replica(ref, obj))
                if options.workloads:
                    scan.listed.update(typed_names(ref))
                scan.containers.update(container_names(obj["spec"]["template"]))
                if options.plan and ref in options.plan:
                    scan.in_plan[ref] = counts_of(ref, obj).desired
                if ref in wanted:
                    objects[ref] = reduce_and_pack(obj)
                elif is_named(ref, options) and template_annotations(obj).keys() & restarted:
                    found = Found(ref, stored=reduce_and_pack(obj), read_at=scan.began)
                    if why_never_completed(found, options) or why_left_without_pods(found):
                        without_any[ref] = found
        except ApiError as error:
            if error.reply not in FORBIDDEN or kind in options.kinds:
                raise
    if options.is_question:
        note_without_pods(cluster, scan, options)
    return objects, list(without_any.values())


def note_without_pods(cluster: Cluster, scan: Scan, options: Options) -> None:
    """Note what creates Pods later, besides workloads: no Pod leads to it."""
    namespaces = namespaces_to_list(options)
    for kind, row in CREATES_LATER.items():
        accept = JSON_TYPE if kind == "Job" else LIST_OF_METADATA
        lists = cluster.items(row.api, row.plural, namespaces, or_forbidden=True, accept=accept)
        for obj in lists:
            ref = ObjectRef(kind, obj["metadata"]["namespace"], name_of(obj), row.group)
            if not is_included(ref.namespace, options):
                continue
            controller = possible_controller_of(obj)
            if kind == "CronJob":
                scan.nouns[ref] = kind
            elif kind == "Job":
                if not {("Complete", "True"), ("Failed", "True")} & conditions_of(obj).keys():
                    scan.nouns[ref] = f"suspended {kind}" if nested(obj, "spec.suspend") else kind
            elif controller or kind in KINDS:
                scan.nouns.setdefault(controller or ref, WITHOUT_PODS)


def reduce_and_pack(obj: Json) -> bytes:
    """Remove what nobody reads from a workload, and return it, packed."""
    obj["metadata"].pop("managedFields", None)
    annotations_of(obj).pop(LAST_APPLIED, None)
    return packed(obj)


def controllers_of(
    cluster: Cluster,
    owners: Iterable[Found],
    objects: Mapping[ObjectRef, bytes],
    options: Options,
) -> dict[ObjectRef, ObjectRef]:
    """Return the controllers of ReplicaSets and the like, unless a Deployment has the implied name
    and selects their Pods."""
    types = types_of(options.workloads)
    are_selected = options.evict or options.only_drifted or have_replica_sets(options.kinds)
    if not are_selected or (types and types <= {"statefulset", "daemonset"}):
        return {}  # they are only shown as skipped, if at all; that needs no permission
    unknown = []
    for found in owners:
        owner = found.owners[0]
        if has_rollout(owner) or not has_template(owner):
            continue
        if not is_selected_by(unpacked_object(objects.get(found.ref, b"")), found.sample):
            unknown.append(owner)
    controllers = {}
    for owner, obj in in_parallel(unknown, partial(cluster.metadata_of, or_forbidden=True)):
        controller = possible_controller_of(obj)
        # A Job owns Pods alone. Whoever writes that it owns a ReplicaSet hides its Pods from audits
        controllers[owner] = controller if controller and not is_job(controller) else owner
    return controllers


def is_selected_by(deployment: Json, sample: bytes) -> bool:
    selected = nested(deployment, "spec.selector.matchLabels")
    if not selected:
        return False
    labels = nested(unpacked(sample), "metadata.labels")
    return bool(selected.items() <= labels.items())


def read_object(cluster: Cluster, objects: Mapping[ObjectRef, bytes], found: Found) -> bytes:
    """Return a workload, packed; for a custom resource, the owner of its Pods; or nothing."""
    if found.ref in objects:
        return objects[found.ref]
    if has_rollout(found.ref):  # of another kind than the selected ones, perhaps forbidden
        obj = cluster.workload(found.ref, or_forbidden=True)
    else:
        sample = unpacked(found.sample)
        obj = cluster.owner_object(found.owners[0], sample, or_forbidden=True)
    return packed_object(obj)


def in_rollout_order(
    decisions: Collection[Replacement], broken: Collection[ObjectRef] = ()
) -> list[Replacement]:
    """Return the workloads in rollout order: what lost a sidecar, and then what a restart of this
    command left, come first; the others by risk, those with downtime last.

    Namespaces take turns to spread parallel rollouts across teams, each with its smallest first.
    """
    turns: Counter[tuple[str, bool, str]] = Counter()  # of a namespace, by rank
    place = {}
    for decision in sorted(decisions, key=lambda decision: (decision.total_pods, decision.ref)):
        rank = (decision.state.value, decision.downtime, decision.ref.namespace)
        turns[rank] += 1
        place[decision.ref] = (*rank[:2], turns[rank], decision.ref.namespace)
    return sorted(
        decisions,
        key=lambda row: (not row.lost, row.ref not in broken, *place[row.ref]),
    )


def read_cluster(cluster: Cluster, options: Options) -> tuple[list[Found], Scan]:
    """Return the workloads, also those without Pods, and what else was seen."""
    log.info("scanning for Pods")
    gc.freeze()
    gc.set_threshold(50_000)  # with fewer collections, 7 % less CPU time for 50,000 Pods
    namespaces = namespaces_to_list(options)
    owners, scan = read_all_pods(cluster, options, or_forbidden=True)
    everything = find_workloads(cluster, owners, scan, options)
    needs_them = asks_namespaces(options) or options.confirm or options.label_columns
    names = {found.ref.namespace for found in everything if needs_them}
    read = dict(in_parallel(names, partial(cluster.namespace, or_forbidden=True)))
    services = cluster.services_of_pods(namespaces) if everything else None
    workloads = []
    for found in everything:
        namespace = found.ref.namespace
        found = replace(found, namespace=read.get(namespace, NOTHING), read_at=scan.began)
        if services is not None:
            of_pods = services.get(namespace, {})
            own = set().union(*(of_pods.get(pod.name, ()) for pod in found.pods))
            found = replace(found, services=sorted(own))
        workloads.append(found)
    return with_replicas(cluster, workloads, scan, options), scan


def with_replicas(
    cluster: Cluster, workloads: Sequence[Found], scan: Scan, options: Options
) -> list[Found]:
    """Return the workloads with their replicas, and which of these lacks Pods."""
    rows = scan.replicas
    alike = Counter((row.ref.kind, row.ref.namespace, row.containers) for row in rows)
    selectors: dict[str, list[Labels]] | None = {}
    if any(count > 1 for count in alike.values()):
        selectors = cluster.selectors(namespaces_to_list(options))
    if selectors is None:  # forbidden: EndpointSlices tell, where there are any
        services = {found.ref: found.services or () for found in workloads}
        rows = [row._replace(labels=dict.fromkeys(services.get(row.ref, ()), "")) for row in rows]
        selectors = defaultdict(list)
        for namespace, name in {
            (ref.namespace, name) for ref in services for name in services[ref]
        }:
            selectors[namespace].append({name: ""})
    replicas = replicas_of(rows, selectors)
    short = {row.ref: row.shortage for row in rows if row.shortage}
    unready = {found.ref: pod for found in workloads for pod in found.pods if not pod.is_ready}
    lacking: dict[frozenset[ObjectRef], list[ObjectRef]] = {}  # two of each: one may be itself
    found_again = []
    for found in workloads:
        text = ""
        shared_by = replicas.get(found.ref, ())
        for shared in shared_by:
            if shared not in lacking:
                lacking[shared] = [*itertools.islice(filter(short.get, sorted(shared)), 2)]
            for ref in lacking[shared]:
                if ref != found.ref and not text:
                    pod = unready.get(ref)
                    problem = join_texts(": ", pod.name, pod.problem) if pod else ""
                    text = f"{ref} has {join_texts(': ', short[ref], problem)}"
        found_again.append(replace(found, replicas=shared_by, short_replica=text))
    return found_again


def decide_all(
    cluster: Cluster, everything: Iterable[Found], options: Options, progress: ProgressLine
) -> dict[ObjectRef, Decision]:
    """Return the decisions, with --only-drifted on what was compared.

    Without it, only an answer tells which incomplete rollout a restart would repair.
    """
    decided: dict[ObjectRef, Decision] = {}
    asked = []
    for found in everything:
        decision = decided_in_plan(found, NOT_COMPARED, options, options.only_drifted)
        decided[found.ref] = decision
        if decision.reason:
            continue
        has_stuck = any(pod.stuck for pod in found.pods)
        if options.only_drifted or (has_stuck and why_incomplete(found)):
            asked.append(found)
    compared = compare_all(cluster, asked, options, progress) if asked else {}
    for found in asked:
        comparison = compared[found.ref]
        if options.only_drifted or not comparison.today.error:
            decided[found.ref] = decided_in_plan(found, comparison, options)
    return decided


def decided_in_plan(
    found: Found, comparison: Comparison, options: Options, is_early: bool = False
) -> Decision:
    """Return the decision on a workload; if something odd is in the way, that it is unknown."""
    try:
        if is_early:
            return decide_early(found, options, Known.OBJECT)
        return decide(found, comparison, options)
    except Exception as error:  # whatever a tenant wrote
        log.debug("cannot decide", exc_info=True, extra=about(found.ref))
        reason = f"cannot be read: {shorten(printable(repr(error)), 200)}"
        return Decision(found, comparison, reason, "unknown")


def make_plan(cluster: Cluster, options: Options, progress: ProgressLine) -> Plan:
    """Read the cluster, compare, decide, and return the plan."""
    everything, scan = read_cluster(cluster, options)
    decided = decide_all(cluster, everything, options, progress)
    to_roll_out = []
    skips: list[Skip] = []
    never_completed = []
    needs_evict = False
    for decision in decided.values():
        own = ""
        if is_red(decision, options):
            never_completed.append(decision.ref)
            own = why_never_completed(decision.found, options)
        skips += skips_of(decision, own)
        if isinstance(decision, Replacement) and not (decision.code or options.is_question):
            to_roll_out.append(decision)
        if decision.code == "degraded" and waits_for_lost_pod(decision.found, decision.lost):
            needs_evict = True
    for pod in scan.odd_pods:
        skips.append(Skip(pod.subject, pod.found, pod.code))
    compared = []
    for row in decided.values():
        if isinstance(row, Replacement) and row.comparison.verdict is not Verdict.NOT_COMPARED:
            compared.append(row)
    # Where nothing was asked, the injector was not silent either
    asked = [row for row in compared if row.comparison.today.was_asked]
    asked = [row for row in asked if answer_of(row) != "not_asked"]
    injector, is_injector_down = injector_problem(asked, options)
    to_roll_out = in_rollout_order(to_roll_out, never_completed)
    # In the order of --plan; without it, all places are equal.
    places = {ref: place for place, ref in enumerate(options.plan or ())}
    to_roll_out.sort(key=lambda decision: places.get(decision.ref, 0))
    return Plan(
        workloads=to_roll_out,
        selected_count=min(math.ceil(options.max_rollouts.of(len(to_roll_out))), len(to_roll_out)),
        needs_evict=needs_evict,
        never_completed=never_completed,
        injector=injector,
        is_injector_down=is_injector_down,
        skips=sorted([*skips, *skipped_rows(decided, skips, scan, options)]),
        compared=in_rollout_order(compared),
        decisions=[decision for decision in decided.values() if decision.found.pods],
        scan=scan,
    )


def states_sidecar(workload: Replacement, options: Options) -> bool:
    """Return whether a Pod template states a named container, with its image."""
    return any(matches(name, options.sidecars) for name in stated_containers(workload.found.obj))


def services_of(workload: Replacement) -> list[tuple[str, str]]:
    """Return namespace and name of the Services of a workload; empty if they are not known."""
    found = workload.found
    return [(found.ref.namespace, name) for name in found.services or ()]


def workers_for(plan: Plan, options: Options) -> int:
    """Return how many rollouts of a plan are in progress at the same time."""
    wanted = int(options.parallel_rollouts.of(len(plan.workloads)))
    return max(min(wanted, plan.selected_count), 1)


SILENT = "the injector is down or not selected"


def answer_of(decision: Decision) -> str:
    """Return what is known of new Pods of an owner.

    `not_asked`: it has no Pod template that can be read, or is deleted. `would_differ`: they would
    not be as expected. `no_answer`. `not_injected`: they would not have the sidecar, as those that
    run. Empty: they would be as expected.
    """
    ref, owners, verdict = decision.ref, decision.found.owners, decision.comparison.verdict
    has_one = has_template(ref) or (len(owners) == 1 and has_template(owners[0]))
    if not has_one:
        return "not_asked"
    if decision.code in RULES and RULES[decision.code].answer:
        return RULES[decision.code].answer
    if verdict in (Verdict.NOT_COMPARED, Verdict.REJECTED, Verdict.UNKNOWN):
        return "no_answer"
    return "not_injected" if verdict is Verdict.NOT_INJECTED else ""


def injector_problem(asked: Sequence[Decision], options: Options) -> tuple[str, bool]:
    """Return what is wrong with the injector, and whether nothing may start; empty: nothing is.

    If only one of several names is not returned, the workloads that have it are left alone.
    """
    text = why_silent(asked, options.sidecars, options)
    if text:
        return text, True
    texts = []
    for name in options.sidecars:
        having = [
            decision
            for decision in asked
            if any(matches(s.name, [name]) for s in decision.found.sidecars)
        ]
        texts.append(why_silent(having, [name], options))
    return join_texts("; ", *texts, *silent_others(asked, options)), False


def silent_others(asked: Sequence[Decision], options: Options) -> Iterator[str]:
    """Yield what no dry run returned of what other injectors have put into Pods.

    It may be that a policy leaves out dry runs, so that nothing is to be done.
    """
    having: Counter[str] = Counter()
    returned: set[str] = set()
    for decision in asked:
        returned |= decision.comparison.today.containers
        others = set()
        if decision.comparison.today.view:
            others = injected_by_others(decision.found, options)
        for pod in decision.found.pods if others else ():
            having.update(pod.containers & others)
    for name in sorted(having.keys() - returned):
        pods = count_of(having[name], "Pod")
        text = f"no dry run returned {name}, which {pods} {has_or_have(having[name])}"
        yield f"{text}; {CHECK_INJECTOR}"


def why_silent(asked: Iterable[Decision], names: Names, options: Options) -> str:
    """Return that no dry run returned a sidecar, and what most returned; empty: one did.

    An injector with failurePolicy Ignore that is down answers nothing: each dry run succeeds, and
    has no sidecar. Each workload alone looks as if its sidecar were to be removed; only all of them
    together tell. Four situations are to be told apart from that:
    1. One or two teams may have turned injection off by themselves: it takes three silent
       workloads, unless none had any answer.
    2. A container that the Pod template states, with its image, was injected by nobody: it proves
       nothing, and its workload is silent only if it has other named sidecars.
    3. With --allow-removal, silence is what was asked for.
    4. What rejects a Pod, or a quota, is not the injector.
    """
    silent = []
    for decision in asked:
        today, stated = decision.comparison.today, stated_containers(decision.found.obj)
        if any(matches(name, names) for name in unpacked_object(today.view).keys() - stated):
            return ""
        if today.view and options.allow_removal:
            return ""
        if today.error and today.error.reply in (Reply.QUOTA, Reply.POLICY):
            continue
        running = {sidecar.name for sidecar in decision.found.sidecars} - stated
        might_get_it = today.view and not any(matches(name, names) for name in stated)
        if any(matches(name, names) for name in running) or might_get_it:
            silent.append(decision)
    verdicts = {decision.comparison.verdict for decision in silent} - {Verdict.NOT_INJECTED}
    if not silent or (len(silent) < 3 and verdicts != {Verdict.UNKNOWN}):
        return ""
    texts = Counter(short_reason(decision.comparison.message) or SILENT for decision in silent)
    most = max(texts, key=lambda text: texts[text])
    return f"no dry run returned {join_words(names, 'or')} (0 of {len(silent)}): {most}"


def skips_of(decision: Decision, own: str = "") -> Iterator[Skip]:
    """Yield why a workload is not rolled out, if a person wants to know.

    `own`: what is said first, that this command left it so; see why_never_completed.
    """
    code, reason, comparison = decision.code, decision.reason, decision.comparison
    if code in ("", "not_named", "up_to_date"):
        return
    if comparison.is_drifted:
        reason = f"{comparison.verdict.value}, but {reason}"
    elif code == "nothing_to_replace":
        return
    if own not in reason:
        reason = f"{own}; {reason}"
    for subject in decision.found.subjects:
        yield Skip(subject, reason, code)


def skipped_rows(
    decided: Mapping[ObjectRef, Decision], skips: Iterable[Skip], scan: Scan, options: Options
) -> Iterator[Skip]:
    """Yield the workloads of a plan file that need no rollout anymore, or are not found."""
    skipped = {skip.subject for skip in skips}
    codes = {ref: decision.code for ref, decision in decided.items()}
    for ref in options.plan or ():
        code = codes.get(ref, "not_named")
        if ref in skipped or not code:
            continue
        is_selected = is_included(ref.namespace, options) and is_named(ref, options)
        if is_listed(ref) and ref.kind not in options.kinds:
            is_selected = False
        is_scaled_down = scan.in_plan.get(ref) == 0
        if code != "not_named" or is_scaled_down:
            yield Skip(ref, "no longer needs a rollout", "up_to_date")
        elif not is_selected or (options.selector and ref in scan.in_plan):
            yield Skip(ref, "your options do not select it", "not_selected")
        elif ref in scan.in_plan or not is_listed(ref):
            yield Skip(ref, "has no Pods with the sidecar", "no_sidecar")
        else:
            yield Skip(ref, "does not exist", "not_found")


def why_left(state: PodState, decision: Decision, code: str, options: Options) -> str:
    """Return why a Pod is not up to date, a code; empty: it is.

    `code` says why those are left that are to be replaced: in the plan, an outcome or a rule.
    1. What lost a sidecar is left for that, unless the plan replaces it, or a person left it out.
    2. Else, without --only-drifted, age alone counts.
    3. If Pods lost a sidecar that new ones would not get, those that have it are about to lose it.
    4. Without a comparison, all are left for the same reason: nothing else is known of them.
    5. What differs is left for that reason, unless a partition keeps it, or the plan does not
       replace it. What does not differ may not have been restarted since its image was changed.
    """
    pod = state.pod
    is_left_out = code != UP_TO_DATE and not counts_in_audit(code)  # by a person
    if state.lost and code != IN_THE_PLAN and not is_left_out:
        return LOST
    if not options.only_drifted:
        is_old = state.is_old and pod.sidecars
        return ("below_partition" if state.is_kept else code) if is_old else ""
    if decision.code == LOST:
        return "losing_sidecar" if pod.sidecars else ""
    if decision.comparison.verdict in (Verdict.NOT_COMPARED, Verdict.REJECTED, Verdict.UNKNOWN):
        return "" if code == UP_TO_DATE else code
    if not state.containers:
        return "not_restarted" if pod.unexpected[0] == "not_restarted" else ""
    if state.is_kept:
        return "below_partition"
    if code == UP_TO_DATE or (code == IN_THE_PLAN and not state.is_old):
        return DRIFTED
    return code


class StatedName(NamedTuple):
    """A name or pattern of the command line, and what there is."""

    pattern: str
    existing: Collection[str]
    text: str  # what is wrong if nothing matches
    must_exist: bool = False
    meant: Collection[str] = ()  # among what there may be a similar name
    is_selected: bool = True  # else it is excluded


def stated_names(options: Options, plan: Plan) -> Iterator[StatedName]:
    """Yield the names and patterns that options state, those first that say most."""
    scan = plan.scan
    namespace = join_words(namespaces_to_list(options), "or")
    where = f"namespace {namespace}" if namespace else "the selected namespaces"
    subjects = [workload.ref for workload in plan.decisions] + [skip.subject for skip in plan.skips]
    having: set[str] = set()
    for ref in subjects:
        having.update(typed_names(ref))
    resources = {kind.lower(): KINDS[kind].resource for kind in WORKLOADS}  # that were listed
    for pattern in options.workloads:
        kind, _, name = pattern.partition("/")
        if kind in resources and not is_pattern(name):
            text = f'{resources[kind]} "{name}" not found in {where}'
            yield StatedName(pattern, scan.listed, text, True, scan.listed)
        text = f"no Pods of {pattern} have {join_words(options.sidecars, 'or')}"
        yield StatedName(pattern, having, text)
    containers = scan.containers.union(*(row.comparison.added for row in plan.compared))
    checked = {sidecar.name for row in plan.decisions for sidecar in row.found.sidecars}
    if options.fail_on_drift:
        checked |= containers - scan.containers
    must_be_checked = options.is_question or options.fail_on_drift
    is_known = bool(scan.pods) and not options.allow_removal
    for row in plan.compared:
        if row.comparison.verdict is Verdict.UNKNOWN:
            is_known = False
    for name in options.sidecars:
        text = f"no Pod has a container named {name}"
        if not must_be_checked:
            text += f" ({scan.pods} checked)"
        must_exist = is_known and not is_pattern(name) and name not in containers
        existing = checked if must_be_checked else containers
        yield StatedName(name, existing, text, must_exist, containers)
    # Excluded namespaces are seen only if all are read.
    excluded = () if namespaces_to_list(options) else options.exclude_namespace
    matching = " that match the selector" if options.selector else ""
    for pattern in (*options.include_namespace, *filter(is_pattern, excluded)):
        where = "namespaces that match" if is_pattern(pattern) else "namespace"
        text = f"no Pods{matching} in {where} {pattern}"
        is_selected = pattern in options.include_namespace
        yield StatedName(pattern, scan.namespaces, text, False, scan.namespaces, is_selected)


def check_names(options: Options, plan: Plan) -> Names:
    """Check that the names exist that options state exactly. StartError if one does not.

    Warn about patterns that match nothing, and about names of which that is not known. Return the
    texts about those that were to be selected.
    """
    unmatched = []
    if options.plan is not None and not options.plan:
        log.warning("--plan has no records of workloads to roll out: nothing is selected")
    if options.selector and not plan.scan.pods:
        log.warning("no Pods match the selector %s; check it", options.selector)
    for stated in stated_names(options, plan):
        if fnmatch.filter(stated.existing, stated.pattern):
            continue
        text = join_texts("; ", stated.text, did_you_mean(stated.pattern, stated.meant))
        if stated.must_exist and not options.is_question:
            raise StartError(text)
        log.warning("%s", text)
        if stated.is_selected:
            unmatched.append(stated.text)
    for wanted in options.exclude_annotation:
        annotations: list[Labels] = []
        for row in plan.decisions:
            annotations += annotations_to_match(row.found)
            annotations.append(annotations_of(row.found.namespace))
        if not has_any([wanted], *annotations):
            name = wanted[0] if wanted[1] == "*" else "=".join(wanted)
            text = "no workload with the sidecar, and none of their namespaces, matches"
            log.warning("%s --exclude-annotation=%s; check it", text, name)
    return unmatched


# 13. Rolling out: one workload, in a worker -------------------------------------------------------

KUBECTL_GRACE = 60.0  # seconds beyond its timeout: it may be held up by a lost connection
POLL = 0.2  # seconds until a signal is noticed
SETTLE = 10.0  # seconds until what kubectl calls a success must be seen in the Pods
SOAK_EVERY = 5.0  # seconds between looks at new Pods
LOOK_AFTER, LOOK_EVERY = 3.0, 5.0  # seconds until, and between looks while kubectl waits
# Seconds of a dry run: a GET for each restart would be 9.1 requests instead of 8.1
READ_AGAIN_AFTER = 0.25
CONFLICTS = 20  # its status changes a workload's resource version, too

INJECTOR_CHANGED = "the injector changed since the plan"
RECREATED = "was deleted and recreated during its rollout; run this command again"
COMPLETE = re.compile("successfully rolled out|roll(ing update| out) complete")  # of kubectl
STOPPED = "stopped waiting; it may go on"
STUCK_FOR = 60.0  # seconds that a new Pod is not ready because of a named sidecar
READY_FOR = 10.0  # seconds that new containers must stay ready: at first, old probes count


class Waited(Word):
    """How the waiting for a rollout ended: by kubectl, in its words, or by a look at its Pods."""

    COMPLETE = "complete"
    TIMED_OUT = "timed out waiting for the condition"
    DEADLINE = "exceeded its progress deadline"
    NO_RESULT = "kubectl ended without a result"  # it counts as timed out
    DID_NOT_START = "a sidecar did not start"
    PAUSED = "paused during its rollout; run `kubectl rollout resume`"


def kubectl_result(code: int | None, last_line: str) -> Waited:
    """Return what `kubectl rollout status` says, by its exit code and last line."""
    if code == 0:
        return Waited.COMPLETE
    for waited in (Waited.TIMED_OUT, Waited.DEADLINE):
        if waited.value in last_line:
            return waited
    return Waited.NO_RESULT


def run_until(
    command: Sequence[str], seconds: float, stop: Callable[[str], object], children: set[int]
) -> tuple[int | None, str]:
    """Run a command; return its exit code and its last line of output.

    The code is None if it took too long, or if `stop`, which gets the last line so far, is true;
    and 1 if the command cannot run. It runs in a session of its own: Ctrl-C is for this program.
    Until it has ended, `children` has its process ID.
    """
    deadline = time.monotonic() + seconds
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "KUBERC": "off"},  # which may change the defaults of options
            start_new_session=True,
        )
    except OSError as error:  # for example too many processes; the workload was patched
        return 1, f"cannot run {command[0]}: {innermost_cause(error)}"
    children.add(child.pid)
    with child:
        try:
            while True:
                code = child.poll()
                try:
                    output, _ = child.communicate(timeout=POLL)
                    code = child.returncode
                except subprocess.TimeoutExpired as late:
                    output = late.output or b""
                if code is not None:  # what it has left behind may keep its output open
                    return code, last_line(output)
                if stop(last_line(output)):
                    return None, last_line(output)
                if time.monotonic() > deadline:
                    return None, f"timed out after {seconds:g}s"
        finally:
            if child.poll() is None:
                end_group(child.pid)
            children.discard(child.pid)


def end_group(pid: int) -> None:
    """End a command and what it started."""
    with suppress(OSError):  # it may have just ended, or belong to somebody else
        os.killpg(pid, signal.SIGKILL)


def last_line(output: bytes) -> str:
    text = redact_text(output.decode("utf-8", "replace"))
    for line in reversed(text.split("\n")):
        if line.strip():
            return line.strip()
    return ""


class Signals:
    """SIGINT, SIGTERM and SIGHUP: the first starts no new rollouts, the second stops waiting.

    Before the rollouts, a signal ends the program. From then on, the handler only takes a note: one
    that does more could come in the middle of what it interrupts, such as a lock.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.children: set[int] = set()  # process IDs of commands that run, see run_until
        show = sys.unraisablehook  # where nothing can be raised, as in the end of an object

        def show_before_signals(error: Any) -> None:
            if not self.received:  # else it is the signal, or what that has left half done
                show(error)

        sys.unraisablehook = show_before_signals
        self.stops: dict[str, Stop] = {}  # what else the main thread knows, see stop
        self.ends_at = math.inf  # monotonic; of --max-duration
        self.may_interrupt = True
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A shell's & and nohup let programs ignore some of them.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.note)

    def note(self, number: int, frame: object) -> None:
        # A terminal that is closed sends SIGHUP twice, by the shell and by the kernel.
        if number == signal.SIGHUP and self.received:
            return
        self.received.append(number)
        if self.may_interrupt and len(self.received) == 1:  # another one would hit its handling
            raise Interrupted

    @property
    def exit_code(self) -> int:
        return 128 + self.received[0] if self.received else 0

    def stop(self, stop: Stop, namespace: str = "") -> None:
        """Begin nothing else, or nothing else in a namespace. The first reason counts."""
        if not stop or namespace in self.stops:
            return
        self.stops[namespace] = stop
        if namespace:
            log.warning("%s: no new rollouts will start in namespace %s", stop.reason, namespace)

    def why_stopped(self, namespace: str = "") -> Stop:
        """Return why nothing else may be begun in this run, or in a namespace."""
        if self.received:
            return Stop("interrupted", "interrupted")
        if "" not in self.stops and time.monotonic() >= self.ends_at:
            return Stop("--max-duration reached", "max_duration")
        return self.stops.get("") or self.stops.get(namespace, NO_STOP)

    def is_second(self) -> bool:
        """Return whether nothing may be waited for anymore."""
        return len(self.received) > 1

    def wait(self, seconds: float, until: Callable[[], object] = lambda: False) -> None:
        """Wait, at most until a condition is true. EndedError at the second signal."""
        end = time.monotonic() + seconds
        while not until():
            if self.is_second():
                raise EndedError(Outcome.INTERRUPTED, STOPPED)
            remaining = end - time.monotonic()
            if remaining <= 0:
                return
            time.sleep(min(remaining, POLL))


class Gate:
    """A command that decides whether rollouts may start, and other Pods may be taken."""

    VALID_FOR = 10.0  # seconds: a result counts for all that may be begun within them
    TIMEOUT = 60.0

    def __init__(self, command: Sequence[str], signals: Signals) -> None:
        self.command = command
        self.signals = signals
        self.text: str | None = None  # `open`, or `closed: ` and why; None: not asked
        self.why_closed = ""  # `gate closed: ` and why; empty: it is open
        self.valid_until = -math.inf  # monotonic
        self.lock = threading.Lock()  # the scheduler asks, and so do workers

    def is_open(self) -> bool:
        """Return whether something may be begun now. If that is not known, find out."""
        signals = self.signals
        with self.lock:
            if not self.command or time.monotonic() < self.valid_until:
                return not self.why_closed
            code, last = run_until(
                self.command, self.TIMEOUT, lambda _: signals.why_stopped(), signals.children
            )
            if signals.why_stopped():
                return False
            self.text = "open"
            why_closed = ""
            if code != 0:
                self.text = f"closed: {shorten(last, 200) or f'exit code {code}'}"
                why_closed = f"gate {self.text}"
            if why_closed != self.why_closed:
                self.why_closed = why_closed  # once: others read it at any time
                log.warning("gate %s", self.text)
            self.valid_until = time.monotonic() + self.VALID_FOR
            return not self.why_closed


class Progress(NamedTuple):
    """What has become of a workload's Pods since the decision right before a write."""

    pods: list[Json]  # all, also those that a partition keeps
    old: list[Json]  # still to be replaced or changed
    new: list[Json]  # that came, or were changed, since
    uncreated: int = 0  # how many it wants, but has not
    ending: str = ""  # a Pod that they may wait for
    counts: PodCounts = PodCounts(0)


class Work:
    """What one worker does for one workload of the plan. Nobody else sees what it sets.

    It reads again, asks again, and decides again, right before each write.
    """

    carry_out: ClassVar[Callable[..., Result]]  # EndedError if there is nothing to do

    def __init__(
        self, rollouts: Rollouts, planned: Replacement, tell: Tell, earlier: Result | None = None
    ) -> None:
        self.rollouts = rollouts
        self.cluster = rollouts.cluster
        self.options = rollouts.options
        self.signals = rollouts.signals
        self.planned = planned
        self.tell = tell
        self.decision = planned  # the last one on all its Pods: before a write, why it is written
        self.stamp = ""  # of its restart, in an annotation
        self.is_begun = False  # whether something may have been written
        if earlier:
            self.decision = earlier.latest or planned
            self.stamp = earlier.stamp
            self.is_begun = earlier.is_begun
        self.found = self.decision.found  # as it was read last
        self.today = self.decision.comparison.today  # what was answered last
        self.expected = self.today  # the answer of the plan, see note_names
        # UIDs of its Pods before the first write, without those that were changed since
        self.known_uids: set[str] = set()
        self.todo: set[str] = set()  # of those of them that are to be replaced or changed
        self.lost: dict[frozenset[str], frozenset[str]] = {}  # see lost_in
        # Since when a sidecar of a new Pod is stuck, and when it was last seen so (monotonic)
        self.stuck_since: dict[tuple[str, str], tuple[float, float]] = {}

    @property
    def ref(self) -> ObjectRef:
        return self.planned.ref

    @property
    def obj(self) -> Json:
        return self.found.obj

    def recheck(self, earlier: Result) -> Result:
        """Return what became of a rollout that was not complete: it may have succeeded by now."""
        self.note_pods(self.decision.found)
        result = self.verify()
        if result.outcome is Outcome.INCOMPLETE:
            return replace(earlier, counts=result.counts)
        if result.outcome is not Outcome.SUCCEEDED:
            return result
        message = f"complete when rechecked; before: {earlier.message}"
        return replace(result, outcome=Outcome.COMPLETED_LATE, message=message)

    def glance(self) -> tuple[Result, Progress]:
        """Judge by few and short requests."""
        patient = self.cluster
        self.cluster = patient.at_a_glance()
        try:
            return self.judge()
        finally:
            self.cluster = patient

    def note_pods(self, found: Found) -> None:
        """Note the Pods before a rollout, which replaces all that no partition keeps."""
        self.known_uids = {pod.uid for pod in found.pods}
        kept = {pod.uid for pod in found.pods if is_below_partition(found.obj, pod.name)}
        self.todo = self.known_uids - kept

    # Deciding again, by what is in the cluster now

    def note_object(self, obj: Json) -> None:
        """Note the workload as it was read again, and its namespace if a rule asks for it."""
        self.found = replace(self.found, stored=packed_object(obj))
        if asks_namespaces(self.options):
            namespace = self.cluster.namespace(self.ref.namespace)
            self.found = replace(self.found, namespace=namespace)

    def note_replicas(self) -> None:
        """Note whether a replica of the workload lacks Pods now."""
        is_held = bool(self.found.short_replica)  # by the plan
        if is_held or (self.found.replicas and is_careful(self.planned)):
            text = short_replica(self.cluster, self.found)
            self.found = replace(self.found, short_replica=text)

    def decide_again(self, pods: Iterable[Json] | None = None) -> Replacement:
        """Return the decision on what was read, with the Pods that were read again.

        EndedError if it is no longer to be rolled out, or if its Pods would not come back or would
        lose the sidecar.
        """
        if pods is not None:
            self.found = replace(self.found, pods=self.live_pods(pods))
        self.note_replicas()
        comparison = compare(self.found, self.today, self.options)
        self.decision = decide(self.found, comparison, self.options, self.planned)
        self.require_possible(self.decision)
        return self.decision

    def require_possible(self, decision: Decision) -> None:
        """Raise EndedError if a workload is no longer to be rolled out."""
        cause = NO_STOP
        is_lost = decision.code in ("losing_sidecar", LOST)
        if is_lost and self.options.only_drifted:  # since the plan
            text = f"new Pods of {self.ref} would not have the sidecar"
            cause = self.cause_of(text, "no_sidecar")
        if decision.code in IMPOSSIBLE:
            raise EndedError(Outcome.FAILED, decision.reason, cause)
        if decision.code == "another_sidecar":
            cause = self.cause_of_change(changes_since(self.planned, self.today))
        if decision.reason:
            raise EndedError(Outcome.SKIPPED, decision.reason, cause, decision.code)

    def ask(self, found: Found) -> None:
        """Ask what would be created now. ApiError if the API server is unavailable.

        If the plan did not compare, who may not create Pods, or has a webhook without dry run,
        restarts unchecked.
        """
        today = ask_as_planned(self.cluster, self.options, self.planned, found)
        error = today.error
        if error and error.meaning is UNAVAILABLE:
            raise error
        if error and error.is_timeout:
            self.rollouts.note_hanging(self.ref.namespace)
        if not (error and error.reply in UNCHECKED) or self.options.only_drifted:
            self.today = today

    def require_exists(self, uid: str) -> None:
        """Raise EndedError if a workload was deleted after its rollout has begun.

        Or if it was created again, for example by `kubectl replace --force`: its Pods may be
        old ones that it adopted, or new. Not by the other rules: the annotations of its template
        are our own by now.
        """
        decision = decide_early(self.found, self.options, Known.EXISTS)
        if decision.reason:
            raise EndedError(Outcome.SKIPPED, decision.reason, code=decision.code)
        if nested(self.obj, "metadata.uid") != uid:
            raise EndedError(Outcome.SKIPPED, RECREATED, code="another_object")

    def write(self, send: Callable[..., Answer], *parts: Any) -> Answer:
        """Send a write once, unless something speaks against it by now.

        The only way to write. EndedError if nothing else may be begun.
        """
        self.require_running()
        return send(*parts)

    def require_running(self) -> None:
        """Raise EndedError if nothing else may be begun."""
        stop = self.why_stopped()
        if stop:
            raise EndedError(Outcome.NOT_STARTED, stop.reason, code=stop.code)

    def why_stopped(self) -> Stop:
        """Return why nothing else may be begun in its namespace."""
        return self.signals.why_stopped(self.ref.namespace)

    def cause_of(self, reason: str, code: str) -> Stop:
        """Return why others may fail, too: not if its team has changed the Pod template."""
        if not reason or template_hash(self.obj) != template_hash(self.planned.found.obj):
            return NO_STOP
        return Stop(reason, code)

    def cause_of_change(self, differences: Iterable[Difference]) -> Stop:
        """Return that the injector changed; a variable alone, which may change each hour, stops
        nothing."""
        if all(difference.path[1:2] == ("env",) for difference in differences):
            return NO_STOP
        return self.cause_of(INJECTOR_CHANGED, "injector_changed")

    def why_not_proven(self, pods: Collection[Json], why_missing: str = "") -> Stop:
        """Return why others may fail, too: no sidecar was ready so far, and there is a reason.

        Its sidecar is not ready, new Pods fit on no node, or they are not created, with a condition
        or an event. What is only slow may be ready later, an old Pod that terminates says nothing
        about new ones, and neither do Pods that could not be read.
        """
        if self.rollouts.proven.is_set():
            return NO_STOP
        reason = ""
        if why_missing and not pods:
            reason = f"new Pods of {self.ref} are not created"
        for pod in pods:
            if waiting_reason(pod) == UNSCHEDULABLE:
                reason = f"new Pods of {self.ref} fit on no node"
            if has_unready_sidecar(pod, self.options.sidecars):
                reason = f"the sidecar is not ready in new Pods of {self.ref}"
        return self.cause_of(reason, "not_ready")

    def prove(self, pods: Iterable[Json]) -> None:
        """Note whether a new Pod is ready with a sidecar that was injected.

        What the Pod template states, with an image, proves nothing; unless all of the plan do so.
        """
        stated = set() if self.rollouts.is_stated else stated_containers(self.obj)
        for pod in pods:
            names = set(injected_names(pod)) - stated
            if is_ready(pod) and any(matches(name, self.options.sidecars) for name in names):
                self.rollouts.proven.set()

    def note_stuck(self, pod: Json) -> bool:
        """Note which sidecars of a Pod are stuck, and return whether one was for long enough.

        A sidecar that two looks in a row saw running has started.
        """
        now = time.monotonic()
        for name in stuck_sidecars(pod, self.options.sidecars):
            since, last = self.stuck_since.get((uid_of(pod), name), (now, now))
            if now - last > 2.5 * LOOK_EVERY:
                since = now
            self.stuck_since[uid_of(pod), name] = since, now
            if not is_ready(pod) and now - since >= STUCK_FOR:
                return True
        return False

    def problem_of(self, pod: Json) -> str:
        """Return `name: why it is not ready` of a Pod; empty if it is."""
        event = ""
        if has_no_containers(pod):
            with suppress(ApiError):  # FailedScheduling: it has a node by now
                event = self.cluster.latest_event(pod, "type=Warning,reason!=FailedScheduling")
        if event:
            return f"{name_of(pod)}: {event}"
        return pod_problem(pod)

    def why_missing(self, obj: Json, count: int) -> str:
        """Return why Pods are not created, by a condition or an event."""
        condition = failure_condition(obj)
        if condition or count <= 0:
            return condition
        try:
            return self.cluster.latest_event(obj, "reason=FailedCreate")
        except ApiError as error:
            return f"cannot read its events: {error}"

    # Verification, whatever the method

    def read_owner(self, owner: ObjectRef) -> tuple[Json, list[Json]]:
        """Return an owner and its Pods, also those that are terminating; nothing if it is gone."""
        obj = self.cluster.owner_object(owner, unpacked(self.found.sample))
        return obj, self.cluster.pods_of(owner, obj) if obj else []

    def selected(self, pods: list[Json]) -> list[Json]:
        """Return the Pods that match --selector; the plan has seen no others."""
        if not self.options.selector:
            return pods
        matching = self.cluster.items(CORE, "pods", [self.ref.namespace], self.options.selector)
        names = set(map(name_of, matching))
        return [pod for pod in pods if name_of(pod) in names]

    def live_pods(self, pods: Iterable[Json]) -> list[LivePod]:
        """Return what is kept of Pods."""
        return [live_pod(pod, self.options) for pod in pods]

    def lost_in(self, pod: Json) -> frozenset[str]:
        """Return the names of the containers that a new Pod has lost."""
        containers = container_texts(pod)  # which most Pods share
        if containers not in self.lost:
            self.lost[containers] = lost_by(self.decision, containers, self.options)
        return self.lost[containers]

    def is_reverted(self) -> bool:
        """Return whether somebody has removed the annotation of a restart."""
        return bool(self.stamp) and self.stamp not in template_annotations(self.obj).values()

    def differences_of(self, pods: Iterable[Json]) -> Sequence[Difference]:
        """Return how Pods differ from what the plan showed; nothing without --only-drifted."""
        if not self.options.only_drifted:
            return ()
        return compare_pods(self.live_pods(pods), self.expected, self.options)[1]

    def fault_of(self, new: Sequence[Json]) -> Result | None:
        """Return what is wrong with new Pods: they lost a sidecar, or have not what was planned."""
        lost = [self.lost_in(pod) for pod in new if self.lost_in(pod)]
        if lost:
            count = f"{len(lost)} of {count_of(len(new), 'new Pod')}"
            names = join_words(sorted(set().union(*lost)), "or")
            cause = self.cause_of(f"new Pods of {self.ref} have no sidecar {names}", "no_sidecar")
            text = f"{count} without sidecar {names}; {CHECK_INJECTOR}"
            return Result(self.planned, Outcome.LOST_SIDECAR, text, cause)
        differences = self.differences_of(new)
        if differences:
            self.note_names(new[0])
            differences = self.differences_of(new)
        if not differences:
            return None
        texts = "; ".join(map(difference_text, differences))
        message = f"the new Pods have another sidecar than in the plan: {texts}"
        cause = self.cause_of_change(differences)
        return Result(self.planned, Outcome.STILL_DRIFTED, message, cause)

    def note_names(self, pod: Json) -> None:
        """Note what differs in new Pods although the injector gives the plan's answer.

        It may copy the name or hash of their ReplicaSet, another one since the restart: two
        questions, with a Pod of the plan as the example and with a new one, tell. An autoscaler
        may give them other resources by now. ApiError if there is no answer.
        """
        planned = self.planned.found
        first = ask_as_planned(self.cluster, self.options, self.planned, planned)
        new = replace(planned, sample=packed({"metadata": pod["metadata"]}))
        second = ask_today(self.cluster, self.options, new, or_forbidden=False)
        error = first.error or second.error
        if error:
            raise error
        if changes_since(self.planned, first):
            return
        named, doubtful = ignored_paths(unpacked(first.view), unpacked(second.view))
        if doubtful:
            return
        moved = set()
        for row in find_differences(unpacked(self.expected.view), unpacked(first.view)):
            if row.path[1:2] == ("resources",):
                moved.add(row.path)
        self.expected = replace(self.expected, ignored=self.expected.ignored | named | moved)

    def read_progress(self) -> Progress:
        """Read what has become of its Pods. EndedError if the workload no longer exists.

        Each Pod is in one of four groups: new (its UID was not there before the first write, or its
        images were changed since), old (still to be replaced), kept (a partition, --selector or the
        plan leaves it), or not created yet. As many are desired as its owners want, or as live, if
        one states no number. For DaemonSets, Pods on nodes that do not want them are not counted in
        `desired`, and hide missing ones, so they are added to what is uncreated.

        Wanted are the desired ones without the kept ones. While a rollout surges, old and new ones
        together are more than desired; then those that are new or not created yet count, or a
        rollout that is stuck with one new Pod beside two old ones would want three.
        """
        uid = nested(self.obj, "metadata.uid")
        everything: list[Json] = []
        desired = 0
        owners = [self.ref] if has_template(self.ref) else self.found.owners
        for owner in owners:
            obj, own = self.read_owner(owner)
            everything += own
            if owner == self.ref:
                self.found = replace(self.found, stored=packed_object(obj))
            desired += counts_of(owner, obj).desired
        if has_template(self.ref):
            self.require_exists(uid)
        pods = not_ending(everything)
        if not all(map(has_template, owners)):
            desired = len(pods)
        ending = ""
        for pod in everything:
            if is_ending(pod):
                ending = termination_text(pod)
                break
        uncreated = max(desired - len(pods) + misscheduled(self.obj), 0)
        new = self.new_ones(pods)
        old = [pod for pod in pods if uid_of(pod) in self.todo]
        if self.is_reverted():  # what was up to date may stay
            old = [pod for pod in old if name_of(pod) in self.decision.old_pods]
        kept = len(pods) - len(new) - len(old)
        updated = [pod for pod in new if not self.lost_in(pod)]
        lost = len(new) - len(updated)
        # During a rollout there may be more Pods than are desired: old ones that are replaced.
        wanted = max(desired - kept, len(new) + uncreated)
        ready = sum(map(is_ready, updated))
        counts = PodCounts(wanted, len(updated), ready, lost, uncreated)
        self.prove(updated)
        return Progress(pods, old, new, uncreated, ending, counts)

    def new_ones(self, pods: Iterable[Json]) -> list[Json]:
        """Return the Pods that came, or were changed, since the first write."""
        return [pod for pod in pods if uid_of(pod) not in self.known_uids]

    def verify(self) -> Result:
        """Return what the Pods say, and go on looking for --soak; a signal ends that.

        Two clocks run. What is not complete has ten seconds from the last time that it was:
        kubectl's success, status and Pods are written by different controllers, and each may be a
        moment behind. And the soak runs from the first success. A look during the soak finds one of
        1. a container that has restarted: a failure, also if its Pod is ready again by now;
        2. a Pod that was moved to another node: it is not created or not ready for a while, and
           that is none; as a node takes its time, it has until the end of the soak;
        3. Pods that could not be read: nothing is known, so they have that time, too;
        4. a Pod that does not become ready within ten seconds: incomplete.
        """
        found = self.decision.found
        enough = found.counts.desired or len(found.pods)
        settle = SETTLE + min(ready_seconds(self.obj), self.options.timeout)
        settled_by = time.monotonic() + settle
        soak = self.options.soak or 0.0
        ends_at = 0.0  # of the soak, once it has begun (monotonic)
        before: dict[str, Json] = {}  # new Pods, as they were seen first
        while True:
            result, progress = self.judge(enough)
            has_moved = not before.keys() >= set(map(uid_of, progress.new))
            deadline = settled_by
            if progress.uncreated or has_moved or not result.counts:
                deadline = max(settled_by, ends_at)
            if result.outcome is Outcome.INCOMPLETE and time.monotonic() <= deadline:
                self.tell(f"verifying: {result.message}")
                self.signals.wait(0.5)
                continue
            for pod in progress.new:
                restart = restart_of(before.setdefault(uid_of(pod), pod), pod)
                if restart:
                    text = f"failed during the soak: {restart}"
                    return replace(result, outcome=Outcome.FAILED, message=text)
            ends_at = ends_at or time.monotonic() + soak
            remaining = ends_at - time.monotonic()
            if result.outcome is not Outcome.SUCCEEDED or remaining <= 0:
                return result
            if self.signals.received:
                text = f"soaked {int(soak - remaining)}s of {human_duration(soak)}; not repeated"
                return replace(result, outcome=Outcome.INCOMPLETE, message=text)
            self.tell(f"soaking, {human_duration(remaining)} left")
            self.signals.wait(min(remaining, SOAK_EVERY), lambda: self.signals.received)
            settled_by = time.monotonic() + settle

    def judge(self, enough: int = 0) -> tuple[Result, Progress]:
        """Return what the Pods say now, and the Pods; see completeness."""
        try:
            progress = self.read_progress()
            result = self.fault_of(progress.new)
            result = result or Result(self.planned, *self.completeness(progress, enough))
        except ApiError as error:
            message = f"could not verify its Pods: {error}"
            result = Result(self.planned, Outcome.INCOMPLETE, message)
            return result, Progress([], [], [])
        code = "nothing_to_replace" if result.outcome is Outcome.SKIPPED else ""
        return replace(result, counts=progress.counts, code=code), progress

    def completeness(self, progress: Progress, enough: int) -> tuple[Outcome, str]:
        """Return whether a rollout is complete, by the Pods, with a message.

        As many as were wanted when it was decided (`enough`; 0: all) must be available, or fewer,
        if it was scaled down. Others need not be ready yet: an autoscaler may add some. None may be
        stuck. Scaled to 0, nothing was replaced.
        """
        pods = progress.pods
        wanted = len(pods) + progress.uncreated
        if not wanted:
            return Outcome.SKIPPED, "scaled to 0"
        needed = min(enough or wanted, wanted)
        total = count_of(wanted, "Pod")
        unready = [pod for pod in pods if not is_ready(pod)]
        unready.sort(key=lambda pod: not waiting_reason(pod))  # those that say most
        is_stuck = any(any(stuck_containers(pod)) for pod in unready)
        if is_stuck or (unready and len(pods) - len(unready) < needed):
            text = f"{len(unready)} of {total} not ready"
            problem = self.problem_of(unready[0]) or pod_and_node(unready[0])
            return Outcome.INCOMPLETE, f"{text}: {problem}"
        if len(pods) < needed:
            text = f"{progress.uncreated} of {total} not created"
            if progress.ending:
                text += f": waiting for {progress.ending}"
            return Outcome.INCOMPLETE, text
        if progress.old:
            text = f"{len(progress.old)} of {total} not updated"
            if self.is_reverted():
                text += f": {REVERTED}"
            return Outcome.INCOMPLETE, text
        seconds = ready_seconds(self.obj)
        if seconds and self.found.counts.available < needed:
            return Outcome.INCOMPLETE, f"{total} ready, but not yet for {seconds}s"
        if self.decision.kept_pods:
            return Outcome.SUCCEEDED, kept_by_partition(self.decision)
        return Outcome.SUCCEEDED, ""


class Restart(Work):
    """Patches the Pod template of a workload, and waits for its rollout."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.next_look = math.inf  # monotonic; while kubectl waits
        self.is_complete = False  # whether the last look said so
        self.waited: Waited | None = None  # what a look ended the waiting with

    def carry_out(self) -> Result:
        """Return kubectl's verdict on a rollout, and that of its Pods."""
        try:
            self.patch()
        except EndedError as ended:
            if ended.code == "restarted_meanwhile" and self.options.plan and self.is_applied():
                text = "another run has applied the plan"
                raise EndedError(Outcome.SKIPPED, text, code=UP_TO_DATE) from None
            raise
        self.is_begun = True
        waited, text = self.wait()
        if waited is Waited.COMPLETE:
            return self.verify()
        return self.unfinished_result(waited, text)

    def is_applied(self) -> bool:
        """Wait for a rollout of another run, and return whether its Pods are right."""
        self.stamp = ""
        self.note_pods(self.planned.found)  # it may have had new Pods when they were read again
        return self.wait()[0] is Waited.COMPLETE and self.verify().outcome is Outcome.SUCCEEDED

    def decide_now(self, obj: Json, has_conflict: bool = False) -> Json:
        """Decide again, by what is in the cluster now, and return the workload.

        It is read again after a question that took long, or a conflict: the write has its resource
        version, and its status may change all the time. If its spec changed meanwhile, it is asked
        about again. EndedError if nothing else may be begun, or it changes without end.
        """
        generation = None
        for _ in range(CONFLICTS):
            generation = nested(obj, "metadata.generation")
            self.note_object(obj)
            early = decide_early(self.found, self.options, Known.OBJECT, self.planned)
            self.require_possible(early)
            began = time.monotonic()
            self.ask(self.found)
            if has_conflict or time.monotonic() - began > READ_AGAIN_AFTER:
                obj = self.cluster.workload(self.ref)
            if generation == nested(obj, "metadata.generation"):
                break
            self.require_running()
        else:
            text = f"not patched: its spec changed {CONFLICTS} times while it was checked"
            raise EndedError(Outcome.FAILED, text)
        self.found = replace(self.found, stored=packed_object(obj))
        own = not_ending(self.cluster.pods_of(self.ref, obj))
        decision = self.decide_again(self.selected(own))
        found = replace(decision.found, pods=self.live_pods(own))  # a rollout replaces all of them
        self.decision = replace(decision, found=found)
        self.note_pods(found)
        return obj

    def patch(self) -> None:
        """Check the workload again and patch it, as it is now. EndedError if that is not needed.

        The patch includes the resourceVersion that was checked, so concurrent runs do not restart
        a workload twice, and a patch whose response was lost is recognized by its timestamp.
        """
        ref = self.ref
        self.stamp = self.cluster.now().isoformat(timespec="microseconds")  # unique among runs
        problem: ApiError | None = None  # of the last try
        conflicts = 0
        deadline = math.inf  # monotonic, from the first problem on
        for pause in growing(0.05):
            if not problem:
                self.wait_for_gate()  # it may take long, and then all else is old
            obj = self.cluster.workload(ref)
            if self.stamp in template_annotations(obj).values():  # the last try has arrived
                return
            if problem and obj:
                self.require_repeatable(problem, conflicts, deadline)
            obj = self.decide_now(obj, conflicts > 0)
            while self.wait_for_gate():  # it was closed: all else is old by now
                obj = self.decide_now(self.cluster.workload(ref))
                deadline = math.inf
            version = obj["metadata"].get("resourceVersion", "")
            try:
                self.write(self.cluster.patch_template, ref, self.annotations(), version)
                return
            except ApiError as error:
                problem = error
                conflicts += error.reply is Reply.CONFLICT
                deadline = min(deadline, time.monotonic() + PATIENCE)
                self.is_begun |= error.meaning is MAY_HAVE_ARRIVED
                log.debug("patch: retrying: %s", error, extra=about(ref))
            pause = max(min(pause, 1.0), min(problem.retry_after, 30.0))
            self.signals.wait(pause, self.why_stopped)

    def require_repeatable(self, problem: ApiError, conflicts: int, deadline: float) -> None:
        """Raise what ends a patch that has not arrived: it is refused, or was tried for long."""
        if conflicts >= CONFLICTS:
            text = f"not patched: gave up after {CONFLICTS} update conflicts"
            raise EndedError(Outcome.FAILED, text)
        if problem.meaning not in TRIED_AGAIN or time.monotonic() >= deadline:
            raise problem

    def wait_for_gate(self) -> bool:
        """Wait until the gate is open, and return whether it was closed.

        EndedError if nothing else may be begun.
        """
        gate = self.rollouts.gate
        was_closed = False
        while True:
            self.require_running()
            if gate.is_open():
                return was_closed
            was_closed = True
            self.tell(gate.why_closed)
            self.signals.wait(1.0, self.why_stopped)

    @property
    def waits_until(self) -> datetime:
        """Return until when this run waits, if the rollout begins now."""
        timeout = self.options.timeout
        return self.cluster.now() + timedelta(
            seconds=timeout + min(ready_seconds(self.obj), timeout)
        )

    def annotations(self) -> Labels:
        """Return the annotations that restart a workload.

        Operators remove annotations that they do not know, and prometheus-operator all but those
        of kubectl.kubernetes.io: that reverts the restart, or causes a second one.
        """
        if self.found.controller:
            return {RESTARTED_AT: self.stamp}
        values = {
            "timestamp": self.stamp,
            "reason": reason_for(self.decision, self.options),
            "revision": hash_of(self.today) if self.options.only_drifted else "",
            "by": self.cluster.connection.user,
            "template": f"{template_hash(self.obj)} until {format_time(self.waits_until)}",
        }
        prefix = f"{self.options.annotation_prefix}.rollout"
        annotations = {f"{prefix}.{name}": value for name, value in values.items() if value}
        # What rollouts of other sidecars noted stays; what they noted of these is said anew
        before = template_annotations(self.obj)
        noted = noted_texts(before)
        texts = self.decision.must | (noted - named_texts(noted, self.options.sidecars))
        for key in (f"{prefix}.sidecars", *before):
            if key.endswith(".rollout.sidecars"):
                annotations[key] = ", ".join(sorted(texts))
        return annotations

    def wait(self) -> tuple[Waited, str]:
        """Return how the waiting ended, and what kubectl said last.

        If kubectl ends without a result, for example because the API server is unavailable, it runs
        again until the rollout's timeout. EndedError if the workload was deleted.
        """
        timeout = self.options.timeout
        deadline = time.monotonic() + timeout + min(ready_seconds(self.obj), timeout)
        self.next_look = time.monotonic() + LOOK_AFTER
        self.is_complete, self.waited = False, None
        for pause in growing(0.5):
            remaining = max(deadline - time.monotonic(), 1.0)
            code, text = self.rollout_status(self.ref, remaining, self.is_over)
            self.signals.wait(0)  # EndedError after the second signal
            if self.waited:
                return self.waited, self.waited.value
            waited = kubectl_result(code, text)
            if waited is not Waited.NO_RESULT or code is None or remaining <= 1:
                break
            log.debug("kubectl ended without a result: %s", text, extra=about(self.ref))
            self.glance()  # it may have been deleted
            self.signals.wait(pause)
        return waited, text or f"kubectl exited with {code}"

    def rollout_status(
        self, ref: ObjectRef, seconds: float, stop: Callable[[str], bool]
    ) -> tuple[int | None, str]:
        """Run `kubectl rollout status`; see run_until."""
        words = [*KINDS[ref.kind].wait, ref.argument, "--namespace", ref.namespace]
        command = [*self.rollouts.kubectl, *words, "--timeout", f"{seconds:.3f}s"]
        command += self.cluster.connection.server_flags
        log.debug("running kubectl rollout status", extra=about(ref))
        return run_until(command, seconds + KUBECTL_GRACE, stop, self.signals.children)

    def is_over(self, last_line: str) -> bool:
        """Return whether to wait no longer, and note why, also by kubectl's last line.

        If it is time, look. A look never calls a rollout a success, but some versions of kubectl
        say that it is complete, and exit minutes later (kubectl issue 1163).
        """
        if self.signals.is_second():
            return True
        if time.monotonic() < self.next_look:
            return False
        was_complete = self.is_complete
        self.waited = self.look()
        self.next_look = time.monotonic() + LOOK_EVERY
        if was_complete and self.is_complete and COMPLETE.search(last_line):
            self.waited = Waited.COMPLETE
        return self.waited is not None

    def look(self) -> Waited | None:
        """Return why to wait no longer, and tell what is not complete."""
        result, progress = self.glance()
        self.tell(result.message)
        self.is_complete = result.outcome is Outcome.SUCCEEDED
        if is_paused(self.obj):
            return Waited.PAUSED
        for pod in progress.new:
            if self.note_stuck(pod):
                return Waited.DID_NOT_START
        return None

    def unfinished_result(self, waited: Waited, text: str) -> Result:
        """Return the result of a rollout that failed or timed out, with the reason in the cluster.

        EndedError if the workload was deleted.
        """
        result, progress = self.judge()
        if result.outcome is Outcome.LOST_SIDECAR:
            return replace(result, message=f"{result.message}; {text}")
        if is_paused(self.obj) or waited is Waited.PAUSED:
            message = Waited.PAUSED.value
            stamp = "" if is_paused(self.obj) else self.stamp
            return replace(result, outcome=Outcome.INCOMPLETE, message=message, stamp=stamp)
        outcome = Outcome.TIMED_OUT
        if waited in (Waited.DEADLINE, Waited.DID_NOT_START):
            outcome = Outcome.FAILED
        if waited is Waited.TIMED_OUT and result.message:
            text = ""  # the outcome says that it is late
        reason = self.why_missing(self.obj, progress.uncreated)
        hint = repair_hint(self.obj, progress)
        is_stuck = any(map(waiting_reason, progress.new))
        is_slow = any(map(is_ready, progress.new)) and not is_stuck
        return replace(
            result,
            outcome=outcome,
            message=join_texts("; ", text, result.message, hint, reason),
            cause=self.why_not_proven(progress.new, reason),
            stamp=self.stamp,
            is_slow=is_slow and outcome is Outcome.TIMED_OUT,
        )


def repair_hint(obj: Json, progress: Progress) -> str:
    """Return what to do about a stuck Pod that its controller waits for, whatever its template.

    With the policy Parallel, Kubernetes 1.35.0 to 1.35.3 wait for old ones (kubernetes#137409).
    """
    policy = nested(obj, "spec.podManagementPolicy")
    if not policy or (policy == "Parallel" and not all(map(is_ready, progress.new))):
        return ""
    for pod in (*progress.new, *progress.old):
        if any(stuck_containers(pod)):
            return f"delete Pod {name_of(pod)} once the cause is fixed"
    return ""


def reason_for(decision: Replacement, options: Options) -> str:
    """Return the reason of a rollout for people: of a person, or what changes, without values."""
    if options.rollout_reason != DEFAULT_REASON:
        return options.rollout_reason
    images = {}  # in their order
    others = 0
    for path, current, expected in decision.differences:
        if path[1:] != ("image",) or not (current and expected):
            others += 1
            continue
        old, new = image_version(current), image_version(expected)
        if old == new:  # another registry or digest
            old, new = current, expected
        images[f"image {old} -> {new}"] = True
    parts = list(images)
    if others:
        parts.append(count_of(others, "other difference" if images else "difference"))
    text = f"{DEFAULT_REASON} {join_words(options.sidecars)}"
    return join_texts(": ", text, ", ".join(parts))


NOUNS = {  # of each method, for the log
    Method.RESTART: "rollout",
    Method.EVICT: "eviction",
    Method.IN_PLACE: "image change",
}
LISTED_BY_REASON = (Outcome.NOT_STARTED, Outcome.SKIPPED)


def described(result: Result) -> str:
    """Return `rollout succeeded in 3.2s`."""
    text = f"{NOUNS[result.planned.method]} {result.outcome.value}"
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
    counts, now = restart_counts(before), restart_counts(pod)
    for status in container_statuses(pod):
        name = status["name"]
        if now[name] > counts.get(name, 0):
            reason = exit_text(nested(status, "lastState.terminated"))
            return f"{name_of(pod)}: container {name} restarted: {reason}"
    return ""


def failure_of(planned: Replacement, error: Exception, is_begun: bool, cluster: Cluster) -> Result:
    """Return a failed result, or one not started if the API server is unavailable.

    An error of one request may come from a webhook of that namespace, or from an overload: the API
    server itself says whether it is ready.
    """
    message = str(error) or repr(error)
    cause = NO_STOP
    if isinstance(error, ApiError) and error.is_unavailable:
        has_moved = error.reply is Reply.ANOTHER_CLUSTER
        is_ready = not has_moved and cluster.is_ready()
        cause = Stop(message, "api_error" if is_ready else "stopped")
    if isinstance(error, ApiError) and is_begun:
        text = f"it may have been restarted: {message}"
        return Result(planned, Outcome.FAILED, text, cause)
    if cause.code == "stopped":
        return Result(planned, Outcome.NOT_STARTED, message, cause, cause.code)
    return Result(planned, Outcome.FAILED, message, cause)


REVERTED = (
    "the rollout annotation was removed, for example by `kubectl rollout undo` or a GitOps tool; "
    "configure such a tool to ignore annotations of the Pod template"
)


# 14. A few Pods at a time -------------------------------------------------------------------------


class PodByPod(Work):
    """Replaces or changes the Pods of one workload, a few at a time.

    Prepare; take the next Pods (read everything again, see what is in the way, act); wait for them.
    A Pod that is ready is taken only while fewer than `limit` Pods of its owner are unavailable.
    Eviction and ImageChange have the differences.
    """

    verb = "replaced"

    # What differs
    ask_owner: ClassVar[Callable[..., None]]  # asks what new Pods of the owner would be like
    act: ClassVar[Callable[..., str]]  # replaces or changes a Pod; returns what is in the way
    # Returns what the batch still waits for; empty: nothing
    why_to_wait: ClassVar[Callable[..., str]]
    # Raises EndedError because the batch took too long, or returns, to wait on
    give_up_batch: ClassVar[Callable[..., None]]

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.done = 0  # how many Pods were replaced or changed
        self.asked = ObjectRef("", "", "")  # the owner that was asked about while it prepared
        self.batch: dict[str, Json] = {}  # those that were taken, and are waited for, by UID
        # Before any of them was taken: UIDs of the owner's Pods, and how many were not available
        self.present: set[str] = set()
        # A Pod that was never available (a node is down) may stay so. If the batch waited until all
        # are available, a workload that is short of one before would never get a second Pod.
        self.away_before = 0
        self.deferred: Exception | None = None  # why no others are taken, once these are waited for
        self.prefix = ""  # of messages: the Pods in progress
        self.retry_after = 0.0  # seconds that the API server asked to wait at least
        # The owner of the next Pod, it, and all its Pods, as they were read last
        self.owner = ObjectRef("", "", "")
        self.owner_obj: Json = {}
        self.pods: Sequence[Json] = ()
        self.templates: dict[ObjectRef, Json] = {}  # of the owners, before their Pods are evicted

    @property
    def owners(self) -> Sequence[ObjectRef]:
        """Return the owners whose Pods are taken, one after the other."""
        return self.planned.found.owners

    def carry_out(self) -> Result:
        """Return the result. EndedError if there is nothing to do."""
        self.prepare()
        try:
            for owner in self.owners:
                if owner != self.owner:  # the last one was read while it prepared
                    self.owner = owner
                    self.read()
                self.take_all()
            result = self.verify()
            if result.outcome is not Outcome.SUCCEEDED or not result.counts:
                return result
            if not self.done and not result.counts.wanted:
                text = f"no Pod is left to be {self.verb}"
                raise EndedError(Outcome.SKIPPED, text, code="nothing_to_replace")
            unwanted = self.done - result.counts.wanted  # scaled down, or on nodes with a taint
            if unwanted > 0:
                text = f"no longer desired: {unwanted} of {count_of(self.done, 'Pod')}"
                result = replace(result, message=join_texts("; ", text, result.message))
            return result
        except EndedError as ended:
            result = ended.result(self.planned)
            if ended.outcome is Outcome.SKIPPED:
                if not self.done or ended.code in ("gone", "being_deleted", "another_object"):
                    raise
                result = replace(result, outcome=Outcome.INCOMPLETE, code="")
            if ended.outcome is Outcome.NOT_STARTED:
                if not self.is_begun:
                    raise
                text = f"the others were not {self.verb}"
                result = Result(self.planned, Outcome.INTERRUPTED, text)
        except ApiError as error:
            if not self.is_begun:
                raise
            message = f"{self.prefix}{error} ({self.done_text})"
            failure = failure_of(self.planned, error, self.is_begun, self.cluster)
            return replace(failure, message=message)
        return self.unsuccessful(result)

    @property
    def done_text(self) -> str:
        return f"{self.done} of {count_of(self.done + len(self.todo), 'Pod')} {self.verb}"

    def unsuccessful(self, result: Result) -> Result:
        """Return a result with what was done so far."""
        message = f"{self.prefix}{result.message} ({self.done_text})"
        result = replace(result, message=message)
        if self.is_begun and result.outcome is not Outcome.INTERRUPTED:
            with suppress(ApiError, EndedError):
                return replace(result, counts=self.read_progress().counts)
        return result

    def note_taken(self, pod: Json, text: str) -> None:
        """Note that a Pod may have been evicted or changed; the text follows its name."""
        self.is_begun = True
        self.batch[uid_of(pod)] = pod
        self.prefix = f"Pod {join_words(list(map(name_of, self.batch.values())))} {text}"

    def note_not_taken(self, pod: Json) -> None:
        """Note that a Pod was neither evicted nor changed after all."""
        self.batch.pop(uid_of(pod), None)
        self.prefix = ""

    def is_possible(self, pod: Json) -> bool:
        """Return whether to replace or change a Pod would have an effect."""
        return True

    def is_done(self, pod: Json) -> bool:
        """Return whether a Pod is like a new one by now."""
        return self.options.only_drifted and not self.differences_of([pod])

    def prepare(self) -> None:
        """Find the Pods to take. EndedError if there are none."""
        own: list[Json] = []  # those that match --selector
        everything: list[Json] = []
        for owner in self.owners:
            self.owner = owner
            self.read()
            pods = not_ending(self.pods)
            self.known_uids.update(map(uid_of, pods))
            everything += pods
            selected = self.selected(pods)
            if self.old_among(selected):
                self.ask_owner()
                self.asked = owner
                self.decide_again()  # EndedError if the answer is another one by now
            own += selected
        if self.planned.method is Method.EVICT and len(own) < len(everything):
            self.decide_again(pods=everything)  # see pending_template
        decision = self.decide_again(pods=own)
        self.todo = {uid_of(pod) for pod in own if name_of(pod) in decision.old_pods}

    def old_among(self, pods: Sequence[Json]) -> list[Json]:
        """Read the workload, decide again, and return which Pods are to be replaced or changed.

        EndedError, for example if the owner is gone; so also with no Pods.
        """
        obj = self.owner_obj
        if has_template(self.ref) and self.ref != self.owner:  # a paused Deployment
            obj = self.cluster.workload(self.ref)
        self.note_object(obj)
        self.found = replace(self.found, pods=self.live_pods(pods))
        comparison = compare(self.found, self.today, self.options)
        decision = decide(self.found, comparison, self.options, self.planned, before_each_pod=True)
        self.require_possible(decision)
        return [pod for pod in pods if name_of(pod) in decision.old_pods]

    def read(self) -> None:
        """Read the owner and its Pods."""
        self.owner_obj, self.pods = self.read_owner(self.owner)

    def require_same_template(self) -> None:
        """Raise EndedError if what was asked about is another template by now."""

    def take_all(self) -> None:
        """Take the Pods of the owner, a few at a time, and wait for each batch.

        EndedError at the timeout. Each turn is in one of four situations:
        1. A batch waits for something: look again, until its deadline.
        2. It waits for nothing: its Pods are done, or an error that came while others were taken
           is raised now, as what was taken is waited for whatever happens.
        3. There is no batch, and something is in the way of the next Pod, such as a budget: try
           again, until a deadline of its own. While the gate is closed, no clock runs.
        4. There is no batch, and no Pod is left.
        """
        pauses, deadline = growing(1.0), self.new_deadline()
        while self.is_waiting or self.todo:
            self.retry_after = 0.0
            if self.is_waiting:
                problem = self.why_to_wait()
                if not problem:
                    self.note_done()
                    pauses, deadline = growing(1.0), self.new_deadline()
                    continue
            else:
                problem = self.take_some()
                if self.is_waiting:
                    pauses, deadline = self.pauses(), self.new_deadline()
                elif not problem:
                    return
                else:
                    self.require_started()
                    if self.rollouts.gate.why_closed:
                        deadline = self.new_deadline()
            self.tell(join_texts("; ", self.done_text, problem))
            if time.monotonic() >= deadline:
                self.give_up(problem)
            if self.is_waiting:  # also after a signal
                self.signals.wait(next(pauses))
            else:
                pause = min(max(next(pauses), self.retry_after), deadline - time.monotonic())
                self.signals.wait(pause, self.why_stopped)
                self.read()  # a Pod that is gone by now is not asked about

    @property
    def is_waiting(self) -> bool:
        """Return whether a batch is waited for, also if none of it was taken after all."""
        return bool(self.batch or self.deferred)

    def new_deadline(self) -> float:
        """Return until when a batch, or the next Pod, may be waited for from now on (monotonic)."""
        return time.monotonic() + self.options.timeout + self.min_ready

    def note_done(self) -> None:
        """Note that the Pods that were taken are replaced, or run with their new images."""
        self.todo -= self.batch.keys()
        self.known_uids -= self.batch.keys()  # one that was changed is a new Pod from now on
        self.done += len(self.batch)
        self.batch = {}
        self.prefix = ""
        if self.deferred:
            raise self.deferred
        self.tell(self.done_text)

    def take_some(self) -> str:
        """Take Pods, and return what is in the way of the next one; empty if none is left to take.

        Everything is read and decided again right before each: an eviction with a wrong UID would
        count against the PodDisruptionBudget for two minutes. What was taken is waited for,
        whatever happens.
        """
        while True:
            try:
                self.rollouts.gate.is_open()  # asked before the rest, which it would make old
                if self.asked != self.owner:
                    self.ask_owner()
                self.asked = ObjectRef("", "", "")
                self.read()  # nothing may stand between this and the write
                self.require_same_template()
                if not self.batch:
                    self.present = set(map(uid_of, self.pods))
                    self.away_before = self.away()
                pod = self.next_pod()
                if not pod:
                    return ""
                self.require_running()  # also before what is only waited for
                self.rollouts.gate.is_open()  # asked again if the rest took long
                obstacle = self.rollouts.gate.why_closed or self.obstacle(pod)
                if not obstacle:
                    obstacle = self.act(pod)
            except (EndedError, ApiError) as error:
                if not self.batch:
                    raise
                self.deferred = error
                return str(error)
            if obstacle:
                return obstacle
            if is_ready(pod) and len(self.batch) >= self.limit:
                return ""

    def next_pod(self) -> Json | None:
        """Return the Pod to take next, as it is now; None if there is none.

        EndedError if it is not to be taken anymore, for example because a partition keeps it.
        """
        todo = self.todo - self.batch.keys()
        pods = [pod for pod in not_ending(self.pods) if uid_of(pod) in todo]
        if not pods:
            self.old_among([])  # EndedError if its owner is gone
        for pod in sorted(pods, key=self.order):
            if not self.is_possible(pod):
                continue
            if self.old_among([pod]):
                return pod
            if not self.is_done(pod):
                text = f"Pod {name_of(pod)} is not to be {self.verb} anymore; rerun this command"
                raise EndedError(Outcome.SKIPPED, text)
            self.todo.discard(uid_of(pod))
        return None

    def require_started(self) -> None:
        """Raise EndedError if a named sidecar of a new Pod does not start."""
        for pod in self.new_ones(not_ending(self.pods)):
            if self.note_stuck(pod):
                text = f"{Waited.DID_NOT_START.value}: {self.problem_of(pod)}"
                raise EndedError(Outcome.FAILED, text, self.why_not_proven([pod]))

    def order(self, pod: Json) -> tuple[bool, int, str]:
        """Return a key to sort Pods: unready ones first, then by ordinal, the highest first.

        Of unready ones of an OrderedReady StatefulSet, the lowest.
        """
        number, ready = ordinal_of(pod), is_ready(pod)
        is_upwards = not ready and self.is_ordered
        return ready, number if is_upwards else -number, name_of(pod)

    def obstacle(self, pod: Json) -> str:
        """Return what a Pod waits for; nothing if it may be taken now."""
        if not is_observed(self.owner_obj):
            return "waiting for its spec update to be observed"
        may_be_taken = True
        if is_ready(pod):
            self.note_replicas()
            is_held = self.found.short_replica and is_careful(self.decision)
            if is_held and name_of(pod) not in self.decision.lost:
                return f"waiting for a replica: {self.found.short_replica}"
            may_be_taken = self.away() < self.limit
        elif self.is_ordered:
            lowest = nested(self.owner_obj, "spec.ordinals.start") or 0
            ready = [other for other in not_ending(self.pods) if is_ready(other)]
            lower = set(map(ordinal_of, ready))
            may_be_taken = lower.issuperset(range(lowest, ordinal_of(pod)))
        if may_be_taken:
            return ""
        return f"waiting for {self.awaited(pod)}"

    def away(self) -> int:
        """Return how many of the wanted Pods are not available."""
        unwanted = misscheduled(self.owner_obj)  # some of those that are available
        return max(self.wanted + unwanted - sum(map(self.is_available, self.pods)), 0)

    @property
    def not_replaced(self) -> int:
        """Return how many Pods of the batch no new one was seen available for."""
        came = [pod for pod in self.pods if uid_of(pod) not in self.present]
        return max(len(self.batch) - sum(map(self.is_available, came)), 0)

    @property
    def min_ready(self) -> int:
        """Return for how many seconds a Pod must be ready to be available.

        At most --timeout, as the rule says: a tenant may raise it since.
        """
        return min(ready_seconds(self.owner_obj), int(self.options.timeout) + 1)

    def is_available(self, pod: Json) -> bool:
        """Return whether a Pod was not taken, is ready, and has been for minReadySeconds."""
        if is_ending(pod) or uid_of(pod) in self.batch:
            return False
        ready = conditions_of(pod).get(("Ready", "True"))
        if not ready:
            return False
        since = ready.get("lastTransitionTime")
        if not since or not self.min_ready:
            return True
        return self.cluster.now() >= parse_time(since) + timedelta(seconds=self.min_ready)

    def awaited(self, next_pod: Json | None = None) -> str:
        """Return what to wait for: the first Pod that is not available, other than the next one."""
        ending = ""
        for pod in self.pods:
            if pod is next_pod:
                continue
            if is_ending(pod):
                ending = ending or termination_text(pod)
            elif not self.is_available(pod):
                text = "a Pod to be ready"
                if is_ready(pod) and self.min_ready:
                    text += f" for {self.min_ready}s"
                return f"{text}: {self.problem_of(pod) or pod_and_node(pod)}"
        if ending:
            return ending
        return f"{count_of(self.to_create or 1, 'Pod')} to be created"

    @property
    def wanted(self) -> int:
        """Return how many Pods the owner wants.

        If it states no number, those that are there now, as what terminates may come back, and
        those of the batch that are not replaced yet.
        """
        if has_template(self.owner):
            return counts_of(self.owner, self.owner_obj).desired
        others = [pod for pod in self.pods if uid_of(pod) not in self.batch]
        return len(others) + self.not_replaced

    @property
    def to_create(self) -> int:
        """Return how many Pods are to be created, by what the owner says of its Pods."""
        return max(self.wanted + misscheduled(self.owner_obj) - len(self.pods), 0)

    @property
    def limit(self) -> int:
        """Return how many Pods of the owner may be unavailable."""
        if self.is_ordered:
            return 1
        return evicted_at_once(self.planned.method, self.wanted, self.options)

    @property
    def is_ordered(self) -> bool:
        """Return whether no Pod is created while one with a lower ordinal is not ready."""
        return is_ordered_ready(self.owner_obj)

    def pauses(self) -> Iterator[float]:
        """Yield the seconds between looks at the Pods that are waited for."""
        return itertools.repeat(1.0)

    def give_up(self, problem: str) -> None:
        """Raise EndedError because it took too long, or return, to wait on."""
        if not self.is_waiting:
            raise EndedError(Outcome.TIMED_OUT, problem)
        self.give_up_batch(problem)


class Eviction(PodByPod):
    """Replaces Pods by eviction."""

    def require_same_template(self) -> None:
        template = nested(self.owner_obj, "spec.template")
        if self.templates.setdefault(self.owner, template) != template:
            text = "its Pod template was changed; rerun this command"
            raise EndedError(Outcome.SKIPPED, text)

    def ask_owner(self) -> None:
        """Ask what would replace Pods, by what was read last.

        A replacement that is rejected leaves no trace in the status of StatefulSets, DaemonSets.
        The template of a custom resource that owns its Pods is not known.
        """
        self.require_same_template()
        if "spec" in nested(self.owner_obj, "spec.template") and self.pods:
            sample = packed({"metadata": without_keys(self.pods[0]["metadata"], "managedFields")})
            stored = packed_object(self.owner_obj)
            found = replace(self.found, ref=self.owner, owners=(self.owner,), stored=stored)
            self.ask(replace(found, sample=sample))

    def act(self, pod: Json) -> str:
        """Evict a Pod; return why it may not be evicted now (empty: it may).

        A Pod that is gone (404), or another one by now (409), was replaced by somebody else. A 429
        without the cause DisruptionBudget comes from an overloaded API server. What a webhook
        denies, an operator may do by itself: some drain their Pods when somebody tries. And an API
        server that has just started forbids what is allowed.
        """
        try:
            self.write(self.cluster.evict, pod)
        except ApiError as error:
            if error.reply is Reply.UNAUTHORIZED:
                raise
            if error.meaning is REFUSED and error.reply is not Reply.DENIED:
                text = f"cannot evict Pod {name_of(pod)}: {error}"
                raise EndedError(Outcome.FAILED, text) from None
            self.is_begun |= error.meaning is MAY_HAVE_ARRIVED
            is_refused = error.reply in (Reply.BUDGET, Reply.OVERLOADED)
            if is_refused or self.is_still_there(pod):  # else it was evicted all the same
                self.retry_after = error.retry_after
                return error.causes.get("DisruptionBudget", str(error))
        self.note_taken(pod, "was evicted; ")
        return ""

    def is_still_there(self, pod: Json) -> bool:
        """Return whether a Pod was not evicted. ApiError if that is not known."""
        try:
            return bool(self.cluster.pod_again(pod))
        except ApiError:
            self.note_taken(pod, "may have been evicted; ")
            raise

    def why_to_wait(self) -> str:
        """Return what the batch waits for; nothing if its Pods are gone and new ones are ready.

        EndedError if the owner no longer exists, or new Pods lost the sidecar or still differ. A
        batch is done if
        1. none of its Pods is listed anymore (a Pod that was evicted stays until its grace period
           ends, and may be ready until then), and
        2. no more Pods are away than before it was taken, besides those of the batch that were away
           already: what was broken before may stay so; and
        3. for each Pod of it one new Pod was seen available, as long as any is away. (Counts alone
           do not tell: another Pod that becomes ready would stand for the one that was taken.)
           Not so if none is away: then the owner was scaled down.
        """
        self.read()
        if not self.owner_obj:
            raise EndedError(Outcome.SKIPPED, "no longer exists", code="gone")
        # New ones first: they say most
        self.pods = sorted(self.pods, key=lambda pod: uid_of(pod) in self.known_uids)
        wrong = self.fault_of(self.new_ones(not_ending(self.pods)))
        if wrong:
            raise EndedError(wrong.outcome, wrong.message, wrong.cause)
        if self.deferred:  # an eviction without an answer may not have taken place
            for pod in not_ending(self.pods):
                if uid_of(pod) in self.batch:
                    self.note_not_taken(pod)
        is_there = any(uid_of(pod) in self.batch for pod in self.pods)
        unready = sum(not is_ready(pod) for pod in self.batch.values())
        others_away = max(self.away_before - unready, 0)  # before the batch; they may stay so
        away = self.away()
        if is_there or away > others_away or (away and self.not_replaced):
            self.require_started()
            return f"waiting for {self.awaited()}"
        self.prove(self.new_ones(not_ending(self.pods)))
        return ""

    def give_up_batch(self, problem: str) -> NoReturn:
        reason = self.why_missing(self.owner_obj, self.to_create)
        text = join_texts(": ", f"still {problem}", reason)
        cause = self.why_not_proven(self.new_ones(not_ending(self.pods)), reason)
        raise EndedError(Outcome.TIMED_OUT, text, cause)


class ImageChange(PodByPod):
    """Changes images in running Pods: the kubelet restarts only these containers.

    It kills a container before it pulls the new image, and nothing else reacts: neither the owner
    of the Pod nor a PodDisruptionBudget.
    """

    verb = "changed"

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        # The IDs of its new containers while all of them are ready, and since when (monotonic)
        self.ready_ids: dict[str, str] = {}
        self.ready_since = 0.0
        self.changed_at = 0.0  # when its images were changed (monotonic)

    @property
    def owners(self) -> Sequence[ObjectRef]:
        """Return the owners whose Pods are taken, one after the other."""
        if has_template(self.ref):
            return [self.ref]
        return self.planned.found.owners

    def pauses(self) -> Iterator[float]:
        """Yield short ones at first: an image may be on the node already."""
        return growing(0.2)

    def is_possible(self, pod: Json) -> bool:
        return bool(nested(pod, "status.phase") == "Running")

    def ask_owner(self) -> None:
        """Ask what a Pod would be like today."""
        self.ask(self.found)

    def images_to_change(self, pod: Json) -> dict[str, str]:
        """Return the images that a Pod would get today, by container; empty if none differs."""
        differences = self.differences_of([pod])
        return {difference.path[0]: difference.expected for difference in differences}

    def obstacle(self, pod: Json) -> str:
        """Return what a Pod waits for: any other one that was changed, whoever did it.

        After --timeout, a restart that is not seen is due to the clock of its node.
        """
        if self.batch:
            return "waiting for the Pod before"
        since = self.cluster.now() - timedelta(seconds=self.options.timeout)
        for other in self.pods:
            changed = image_changed_at(other) if is_ready(other) else ""
            if uid_of(other) in self.known_uids and changed and parse_time(changed) > since:
                return f"waiting for Pod {name_of(other)}, whose image was changed"
        return super().obstacle(pod)

    def act(self, pod: Json) -> str:
        """Change the images of a Pod. EndedError if that is refused."""
        images = self.images_to_change(pod)
        self.changed_at = time.monotonic()
        self.note_taken(pod, "may have the new image; ")
        try:
            status = self.write(self.cluster.change_images, pod, images)["status"]
            self.batch[uid_of(pod)] = {**pod, "status": status}  # as it was then
        except ApiError as error:
            if error.reply is Reply.UNAUTHORIZED:
                raise
            now = self.cluster.pod_again(pod)
            if not now or images.items() <= images_of(now).items():  # replaced, or stored
                return ""
            self.note_not_taken(pod)
            if error.meaning in TRIED_AGAIN:
                self.retry_after = error.retry_after
                return str(error)
            text = f"cannot change Pod {name_of(pod)}: {first_line(error)}"
            raise EndedError(Outcome.FAILED, text) from None
        return ""

    def why_to_wait(self) -> str:
        """Return what the Pod still waits for; nothing if its containers run with the new images.

        Nothing either if somebody replaced it. EndedError if one does not start.
        """
        (pod,) = self.batch.values()
        images = self.images_to_change(pod)
        now = self.cluster.pod_again(pod)
        if not now:
            return ""
        if self.is_up(pod, now, images):
            self.prove([now])
            return ""
        if self.deferred and not images.items() <= images_of(now).items():
            self.note_not_taken(pod)  # a change without an answer may not have been stored
            return ""
        awaited, yet = "to be restarted and ready", "is not restarted and ready"
        if self.ready_ids:
            awaited, yet = "to stay ready", "has not stayed ready"
        problem = self.problem_of(now)
        self.prefix = f"Pod {problem or name_of(now)}: has the new image, but {yet} yet; "
        stuck = why_not_started(pod, now, images)
        if stuck:
            self.fail(str(stuck))
        return f"waiting for Pod {problem or f'{name_of(now)} {awaited}'}"

    def is_up(self, before: Json, pod: Json, names: Collection[str]) -> bool:
        """Return whether a Pod has been ready with the same new containers for long enough.

        The kubelet first shows a new container with what the probes of the old one said.
        """
        ids = {}
        if is_restarted(before, pod, names):
            ids = with_keys(container_ids(pod), names)
        if ids != self.ready_ids:
            self.ready_ids, self.ready_since = ids, time.monotonic()
        ready_for = time.monotonic() - self.ready_since
        return bool(ids) and ready_for >= max(READY_FOR, self.min_ready)

    def give_up_batch(self, problem: str) -> None:
        """Fail, unless the Pod is ready by now, and only has to stay so; at most as long again."""
        has_time = time.monotonic() < self.changed_at + 2 * self.options.timeout + READY_FOR
        if not (self.ready_ids and has_time):
            self.fail(f"still {problem} after {self.options.timeout + self.min_ready:g}s")

    def fail(self, problem: str) -> NoReturn:
        """Raise EndedError for the Pod that was changed, with what to do.

        The next change of its image helps, too, but the kubelet ignores the image of a native
        sidecar whose startup probe has not passed: then only a new Pod does.
        """
        (pod,) = self.batch.values()
        cause = NO_STOP
        if not self.rollouts.proven.is_set():
            cause = self.cause_of(f"the new image does not start in {self.ref}", "not_ready")
        ref = ObjectRef("Pod", self.ref.namespace, name_of(pod))
        command = shlex.join(self.cluster.connection.kubectl_command(ref, "delete"))
        self.prefix = ""
        hint = f"repair the injector and run this command again, or run `{command}`"
        message = f"Pod {name_of(pod)}: {problem}; {hint}"
        raise EndedError(Outcome.FAILED, message, cause)


def first_line(error: ApiError) -> str:
    """Return what a policy says of a change; further lines are a diff with secrets in it.

    In an ApiError, line breaks are escaped.
    """
    return str(error).partition(r"\n")[0]


def is_restarted(before: Json, pod: Json, names: Collection[str]) -> bool:
    """Return whether containers of a Pod were restarted, and are ready, and so is the Pod.

    Only another containerID tells: two tags may share an imageID, observedGeneration rises before
    the restart, and the Pod is ready before it, too. A Pod that was not ready before may stay so.
    """
    if is_ready(before) and not is_ready(pod):
        return False
    old = container_ids(before)
    restarted = set()
    for status in container_statuses(pod):
        is_up = status.get("ready") and status.get("started") is not False
        if not is_up or "running" not in nested(status, "state"):
            continue
        if status.get("containerID") != old.get(status["name"]):
            restarted.add(status["name"])
    return restarted.issuperset(names)


def why_not_started(before: Json, pod: Json, names: Collection[str]) -> Stuck | None:
    """Return why a container does not start with its new image; None if it may still start.

    One that was stuck before shows the old reason until it is restarted. A crash of the new image
    comes after a restart: see restartCount.
    """
    counts, now = restart_counts(before), restart_counts(pod)
    stuck_before = {stuck.name for stuck in stuck_containers(before)}
    for stuck in stuck_containers(pod):
        if stuck.name not in names:
            continue
        if now[stuck.name] > counts.get(stuck.name, 0):
            return stuck
        if stuck.reason != CRASH_LOOP and stuck.name not in stuck_before:
            return stuck
    return None


# 15. Scheduler: the whole plan, by the main thread ------------------------------------------------


METHODS: Mapping[Method, type[Work]] = {
    Method.RESTART: Restart,
    Method.EVICT: Eviction,
    Method.IN_PLACE: ImageChange,
}


@dataclass(frozen=True)
class Rollouts:
    """Rolls out workloads, one for each call of result_of. All workers share it."""

    cluster: Cluster
    kubectl: Sequence[str]  # the command, with how to reach the cluster
    signals: Signals
    gate: Gate
    options: Options
    is_stated: bool = False  # whether each Pod template of the plan states the sidecar itself
    # Whether a new Pod was seen ready with the sidecar; until then, one workload is in progress
    proven: threading.Event = field(default_factory=threading.Event)
    hung: Counter[str] = field(default_factory=Counter)  # dry runs, by namespace

    def note_hanging(self, namespace: str) -> None:
        """Begin nothing else in a namespace whose webhooks let a few dry runs hang."""
        self.hung[namespace] += 1
        if self.hung[namespace] >= FEW:
            text = f"dry runs in namespace {namespace} hang"
            self.signals.stop(Stop(text, "namespace_stopped"), namespace)

    def result_of(self, planned: Replacement, tell: Tell, earlier: Result | None = None) -> Result:
        """Return the result, whatever happens. `earlier` is one that timed out, to check again."""
        started = time.monotonic() - (earlier.seconds if earlier else 0)
        work = METHODS[planned.method](self, planned, tell, earlier)
        try:
            result = work.recheck(earlier) if earlier else work.carry_out()
        except EndedError as ended:
            result = ended.result(planned)
            if earlier and ended.outcome is Outcome.INTERRUPTED:
                result = earlier
        except Exception as error:
            log.debug("rollout failed", exc_info=True, extra=about(planned.ref))
            result = earlier or failure_of(planned, error, work.is_begun, self.cluster)
        if result.outcome in FAILURES and not earlier and planned.problem:
            before = f"(unhealthy before the rollout: {planned.problem})"
            result = replace(result, message=f"{result.message} {before}")
        seconds = seconds_since(started)
        is_released = template_hash(planned.found.obj) != template_hash(work.obj)
        today = work.expected
        if is_released or not today.view:  # or the plan did not compare
            today = work.today
        comparison = replace(work.decision.comparison, today=today)
        latest = replace(work.decision, comparison=comparison)
        return replace(result, seconds=seconds, latest=latest, is_begun=work.is_begun)


@dataclass(eq=False)
class Task:
    """What a worker carries out: a rollout, or a last check of one that was not complete."""

    planned: Replacement
    result: Result | None = None  # the latest; one that may still complete is checked again
    started: float = 0.0  # monotonic
    held: Result | None = None  # because a replica lacked Pods when its turn came
    line: str = ""  # the latest that its worker told
    is_rechecked: bool = False

    def tell(self, line: str) -> None:
        """Note a line of progress. Called by its worker."""
        self.line = line
        log.debug("%s", line, extra=about(self.planned.ref))


class Scheduler:
    """Starts rollouts and handles what workers report. The main thread owns all state."""

    GRACE = 2.0  # seconds after the second signal in which workers may still report
    TOO_MANY_IN_A_ROW = 5  # failures that stop a run without --max-failures

    def __init__(
        self, rollouts: Rollouts, report: Report, workers: int, max_failures: int = 0
    ) -> None:
        self.rollouts = rollouts
        self.max_failures = max_failures  # 0: a few in a row
        self.signals = rollouts.signals
        self.report = report
        self.workers = workers
        self.namespaces: set[str] = set()  # of the plan
        # Why others may fail, too: reasons by the code of a cause and the namespace that named it
        self.named: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self.in_progress: dict[ObjectRef, Task] = {}
        self.planned: deque[Task] = deque()  # those that have not begun
        self.waiting: deque[Task] = deque()  # the same, or late ones to check again; see drain
        self.begun: list[Task] = []  # in this order
        self.rechecks: deque[Task] = deque()
        self.held: deque[Task] = deque()  # that wait until a replica has all its Pods
        self.has_ended = False  # whether one did that was not held, so that these may go on
        self.announced = ""  # why nothing else starts
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        # No SimpleQueue: its get() may wait forever if a signal comes just before the timeout.
        self.ended: queue.Queue[tuple[Task, Result]] = queue.Queue()
        for _ in range(workers):
            threading.Thread(target=self.run_tasks, daemon=True).start()

    def run_tasks(self) -> None:
        """Carry out tasks, one after the other. Runs in a worker, which shares queues and tasks."""
        for task in iter(self.tasks.get, None):
            try:
                result = self.rollouts.result_of(task.planned, task.tell, task.result)
            except Exception as error:  # else the main thread would wait for it forever
                log.debug("worker failed", exc_info=True, extra=about(task.planned.ref))
                result = failure_of(task.planned, error, True, self.rollouts.cluster)
                result = replace(result, is_begun=True)
            self.ended.put((task, result))

    def run(self, plan: Iterable[Replacement]) -> None:
        """Roll out the plan; report a result for each workload.

        What timed out is rechecked at the end. What waits behind the Service of a late one starts
        once that was rechecked.
        """
        self.planned = deque(map(Task, plan))
        self.namespaces = {task.planned.ref.namespace for task in self.planned}
        is_over = False
        while not is_over:
            self.drain(self.planned)
            late, self.rechecks = self.rechecks, deque()
            self.drain(late)
            self.rechecks += late  # left after the second signal
            self.release_held()
            self.waiting = self.planned
            is_over = not self.has_next()
        why_closed = self.rollouts.gate.why_closed
        for task in self.planned:
            reason, code = self.why_held(task)
            message = join_texts("; ", reason, why_closed)
            if why_closed and code == "max_duration":  # it was closed until then
                code = "gate"
            self.report.finish(Result(task.planned, Outcome.NOT_STARTED, message, code=code))
        for task in self.rechecks:
            self.report.finish(self.last_result(task))
        for _ in range(self.workers):
            self.tasks.put(None)

    def release_held(self) -> None:
        """Plan again what waited for a replica, or if nothing has changed, report that it did."""
        held, self.held = self.held, deque()
        if self.has_ended:
            self.planned += held
        else:
            for task in held:
                self.report.finish(task.held or self.last_result(task))
        self.has_ended = False

    def drain(self, tasks: deque[Task]) -> None:
        """Carry out tasks until none is left, or none may start and none is in progress."""
        self.waiting = tasks
        while not self.signals.is_second():
            self.fill_slots()
            if not self.in_progress and not self.has_next():
                return
            self.handle_result(POLL)
            self.announce_stop()
            held = self.signals.why_stopped().reason or self.rollouts.gate.why_closed
            self.report.show_progress(self.in_progress.values(), held)
        self.stop_waiting()

    def stop_waiting(self) -> None:
        """After the second signal, end what workers run, and report what they last said."""
        for pid in list(self.signals.children):  # a worker may hang in a look
            end_group(pid)
        deadline = time.monotonic() + self.GRACE
        while self.in_progress and time.monotonic() < deadline:
            self.handle_result(0.1)
        for task in self.in_progress.values():
            self.report.finish(self.last_result(task))
        self.in_progress.clear()

    def last_result(self, task: Task) -> Result:
        """Return the result of a task that is no longer waited for, or still late."""
        if task.result:
            return task.result
        seconds = seconds_since(task.started) if task.started else 0.0
        message = join_texts("; ", task.line, STOPPED)
        return Result(task.planned, Outcome.INTERRUPTED, message, seconds=seconds)

    def has_next(self) -> bool:
        """Return whether a task may start, now or later. To check something again always may."""
        task = self.next_task()
        return bool(task and (task.result or not self.signals.why_stopped()))

    def next_task(self) -> Task | None:
        """Return the first task that is behind no Service of one in progress, or only checks.

        One that was late is in progress until it was rechecked.
        """
        late = [task for task in self.rechecks if not task.is_rechecked]
        busy: set[tuple[str, str]] = set()
        for task in (*self.in_progress.values(), *late):  # these go on in the cluster
            busy.update(services_of(task.planned))
        going = {*self.in_progress, *(task.planned.ref for task in late)}
        for task in self.waiting:
            shared_by = task.planned.found.replicas if is_careful(task.planned) else ()
            if not task.result and any(map(going.intersection, shared_by)):
                continue
            is_free = busy.isdisjoint(services_of(task.planned)) and not self.why_held(task)
            if task.result or is_free:
                return task
        return None

    def why_held(self, task: Task) -> Stop:
        """Return why a task may not start.

        While one namespace has named a cause, and no sidecar was seen ready, nothing with downtime
        is the second one to be tried.
        """
        stop = self.signals.why_stopped(task.planned.ref.namespace)
        if not stop and task.planned.downtime and not self.rollouts.proven.is_set():
            reasons = [reason for named in self.named.values() for reason in named.values()]
            stop = Stop("; ".join(reasons), "stopped")
        return stop

    def note_cause(self, cause: Stop, namespace: str) -> None:
        """Begin nothing else in a namespace that named a cause.

        In none, if a second one names the same, if no other one has anything left, or if the API
        server itself says so. A proof elsewhere opens no namespace again.
        """
        named = self.named[cause.code]
        if namespace in named:
            return
        named[namespace] = cause.reason
        tasks = (*self.planned, *self.held, *self.in_progress.values())
        has_others = any(task.planned.ref.namespace != namespace for task in tasks)
        if cause.code == "stopped" or len(named) > 1 or not has_others:
            self.signals.stop(Stop("; ".join(named.values()), "stopped"))
        else:
            self.signals.stop(Stop(cause.reason, "namespace_stopped"), namespace)

    def fill_slots(self) -> None:
        """Start tasks; until one has succeeded, a rollout runs alone: it may fail everywhere."""
        while True:
            task = self.next_task()
            if not task:
                return
            is_alone = not (task.result or self.rollouts.proven.is_set())
            if len(self.in_progress) >= (1 if is_alone else self.workers):
                return
            if not (task.result or self.prepare_start()):
                return
            self.waiting.remove(task)
            if not task.result:
                self.begun.append(task)
            task.started = time.monotonic()
            self.in_progress[task.planned.ref] = task
            self.tasks.put(task)

    def prepare_start(self) -> bool:
        """Return whether a rollout may start now. That may take a while."""
        if self.signals.why_stopped():
            return False
        is_open = self.rollouts.gate.is_open()
        while not self.ended.empty():  # meanwhile
            self.handle_result(POLL)
        return is_open and not self.signals.why_stopped()

    def announce_stop(self) -> None:
        """Log why no other rollout will start, once for each reason."""
        reason = self.signals.why_stopped().reason
        if reason == self.announced:
            return
        self.announced = reason
        more = f"; waiting for {len(self.in_progress)} in progress" if self.in_progress else ""
        if self.in_progress and self.signals.received:
            more += " (interrupt again to stop waiting)"
        log.warning("%s: no new rollouts will start%s", reason, more)

    def handle_result(self, seconds: float) -> None:
        """Wait for the result of a task, and record it."""
        try:
            task, result = self.ended.get(timeout=seconds)
        except queue.Empty:
            return
        ref = task.planned.ref
        del self.in_progress[ref]
        if result.code == "replica_not_ready":
            task.held = result
            self.held.append(task)
            self.begun.remove(task)
            return
        task.is_rechecked = bool(task.result)
        self.has_ended |= not (task.is_rechecked and result.may_complete)
        task.result = result
        if result.cause:
            self.note_cause(result.cause, ref.namespace)
        self.note_limits()
        if not result.may_complete:
            self.report.finish(result)
            return
        self.rechecks.append(task)
        if not task.is_rechecked:
            is_later = self.in_progress or self.has_next()
            text = "rollout not complete: %s; will recheck " + ("at the end" if is_later else "now")
            level = logging.INFO if is_later else logging.DEBUG
            log.log(level, text, result.message, extra=about(ref))

    def note_limits(self) -> None:
        """Begin nothing else where a limit is reached: --max-failures, or a few in a row.

        Failures count in the order in which the rollouts began. One of several namespaces has at
        most half of a limit, rounded up: what fails there beyond that counts neither for it nor for
        the run. What is slow counts once it was rechecked; what was skipped does not.
        """
        limit = self.max_failures or self.TOO_MANY_IN_A_ROW
        most = (limit + 1) // 2 if len(self.namespaces) > 1 else limit
        failed: Counter[str] = Counter()  # by namespace, and under an empty name all that count
        for task in self.begun:
            result, namespace = task.result, task.planned.ref.namespace
            if not result or (result.is_slow and not task.is_rechecked):
                continue
            if result.outcome in FAILURES and failed[namespace] < most:
                failed[namespace] += 1
                failed[""] += 1
            elif result.outcome in SUCCESSES and not self.max_failures:
                failed[namespace] = failed[""] = 0
        text = f"{limit} rollouts failed in a row"
        if self.max_failures:
            text = f"--max-failures={limit} reached"
        if failed[""] >= limit:
            self.signals.stop(Stop(text, "max_failures"))
        for namespace, count in failed.items():
            if namespace and count == most:
                text = f"{count_of(count, 'rollout')} failed in namespace {namespace}"
                self.signals.stop(Stop(text, "max_failures"), namespace)


# 16. Report: it displays and counts, and decides nothing ------------------------------------------

COLORED = re.compile(  # no name that has such a word
    r"(?<![-\w/.])(unhealthy|downtime|lost\s+sidecar|rejected|cannot\s+be\s+created|Pods?\s+lost)"
    r"(?![-\w/])"
)
MIN_NOTES = 16  # columns of a terminal
NOTES_INDENT = 6  # of notes for which a row has no room
MIN_WIDTH = 40
WIDE = 100  # where the plan has room for all its columns


def format_table(rows: Sequence[Sequence[str]], width: int = 0) -> list[str]:
    """Return the lines of a table; no name is ever cut, and the last column wraps.

    Columns are as wide as their longest cell. If a terminal of this width needs more lines then,
    the longest cells of a column do not count: they move what follows to the right, or into a line
    of its own, in their row alone. Of several ways, the straightest is taken that needs a line for
    each row, or nearly; one more is no matter.
    """
    whole = [list(map(printable, row)) for row in rows]
    layouts = []
    for share in (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5) if width else (1.0,):
        starts = [0]
        for column in list(zip(*whole, strict=True))[:-1]:
            lengths = sorted(map(len, column))
            widest = max(lengths[int(share * (len(lengths) - 1))], len(column[0]))
            starts.append(starts[-1] + min(widest, 80) + 2)
        layouts.append([line for row in whole for line in row_lines(row, starts, width)])
    fewest = min(map(len, layouts))
    enough = fewest if fewest == len(rows) else max(fewest, 1.1 * len(rows))
    return next(lines for lines in layouts if len(lines) <= enough + 1)


def row_lines(row: Sequence[str], starts: Sequence[int], width: int) -> list[str]:
    """Return the lines of a row whose cells begin where their columns do, or after the last one."""
    *cells, note = row
    lines, line = [], ""
    for start, cell in zip(starts, cells, strict=False):
        place = max(start, len(line) + 2 if line else 0)
        if width and line and place + len(cell) > width:
            lines.append(line)
            line, place = "", min(start, max(width - len(cell), 0))
        line = line.ljust(place) + cell
    after = len(line) + 2
    place = max(starts[-1], after)
    if width and place + len(note) > width >= after + len(note):
        place = width - len(note)
    parts = [note] if note else []
    if width and place + len(note) > width:
        room = width - place
        is_below = room < MIN_NOTES
        parts = textwrap.wrap(note, width - NOTES_INDENT if is_below else room)
        if is_below:
            lines.append(line)
            line, place = "", NOTES_INDENT
    for part in parts:
        lines.append(line.ljust(place) + part)
        line = ""
    return [found.rstrip() for found in (*lines, line) if found.strip()]


def difference_lines(decision: Replacement) -> list[str]:
    """Return what differs: images, containers added or removed, where they stand, and the rest."""
    ranks = {("image",): 0, (): 1, ("position",): 2}
    differences = sorted(decision.differences, key=lambda row: ranks.get(row.path[1:], 3))
    return [difference_text(difference) for difference in differences]


def letter_names() -> Iterator[str]:
    """Yield a, b, ..., z, aa, ab, ..."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=length))


LEVELS = {  # of the log, for results; of others, a warning
    Outcome.SUCCEEDED: logging.INFO,
    Outcome.COMPLETED_LATE: logging.INFO,
    Outcome.LOST_SIDECAR: logging.ERROR,
    Outcome.FAILED: logging.ERROR,
    Outcome.NOT_STARTED: logging.DEBUG,  # there may be thousands
}


LIMITS = ("max_rollouts", "max_duration", "gate", "interrupted")  # of a person, as codes


def counts_as_applied(result: Result) -> bool:
    """Return whether a row of --plan was rolled out, needs nothing, or was left by a person, by an
    option or a limit. What failed counts as that."""
    if result.outcome is Outcome.NOT_STARTED:
        return result.code in LIMITS
    if result.outcome is Outcome.SKIPPED:
        return code_counts_as_applied(result.code)
    return result.outcome is not Outcome.INTERRUPTED


class Totals:
    """What was counted, for the text and the JSON record of a summary alike."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.plan = Plan()
        self.results: list[Result] = []
        self.pod_states: list[PodState] = []
        self.failed: Counter[str] = Counter()  # what else makes the exit code 1; see failures
        self.is_listed = True  # whether pod_states are of the last list of Pods
        self.unmatched: Names = ()  # texts about names and patterns that match nothing

    def of(self, *outcomes: Outcome) -> list[Result]:
        """Return the results that have one of the outcomes."""
        return [result for result in self.results if result.outcome in outcomes]

    @property
    def changed_namespaces(self) -> set[str]:
        """Return where the run itself has seen that the injector changed since the plan."""
        changed = [result for result in self.results if result.cause.code == "injector_changed"]
        return {result.planned.ref.namespace for result in changed}

    @property
    def outcomes(self) -> Counter[Outcome]:
        return Counter(result.outcome for result in self.results)

    @property
    def pods(self) -> Counter[str]:
        """Return the sums of PodCounts, and how many Pods are not verified."""
        pods: Counter[str] = Counter()
        for result in self.results:
            if result.counts:
                pods.update(result.counts._asdict())
            elif result.is_begun and result.outcome is not Outcome.SKIPPED:  # no longer exists
                wanted = result.planned.pods_replaced
                pods.update(wanted=wanted, not_verified=wanted)
        return pods

    @property
    def census(self) -> dict[tuple[str, str], Counter[str]]:
        """Return the Pods by code, by the name and image of a sidecar."""
        census: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for row in self.pod_states:
            if row.is_counted:
                census[row.shown][row.code] += 1
        return census

    @property
    def leftovers(self) -> list[PodState]:
        """Return the Pods that are not up to date, and listed."""
        options = self.options
        lists_all = bool(options.plan) or options.is_question
        listed = []
        for row in self.pod_states:
            if not (options.only_drifted or row.code == LOST):
                continue
            if row.code and (counts_in_audit(row.code) or (lists_all and row.pod.sidecars)):
                listed.append(row)
        return listed

    @property
    def never_completed(self) -> list[ObjectRef]:
        """Return whose rollouts of earlier runs never were complete, and were not begun again."""
        begun = {result.planned.ref for result in self.results if result.is_begun}
        return sorted(set(self.plan.never_completed) - begun)

    @property
    def lost(self) -> list[ObjectRef]:
        """Return the workloads with Pods that lost a sidecar, by the last list, or a result."""
        lost = {result.planned.ref for result in self.of(Outcome.LOST_SIDECAR)}
        for row in self.pod_states:
            if row.code == LOST and not row.is_given_up:
                lost.add(row.workload)
        return sorted(lost)

    @property
    def checked(self) -> int:
        """Return how many Pods an audit or a question is about."""
        is_question = self.options.is_question
        counted = [row for row in self.pod_states if row.is_counted]
        return sum(is_question or counts_in_audit(row.code) for row in counted)

    def skips(self, code: str) -> int:
        """Return how many skips of the plan have a code."""
        return sum(skip.code == code for skip in self.plan.skips)

    def not_up_to_date(self) -> Counter[str]:
        """Return what --fail-on-drift counts: Pods by the code of why they are left, and workloads
        without any."""
        counts: Counter[str] = Counter()
        for pod in self.leftovers:
            if self.plan.is_injector_down and pod.code == "losing_sidecar":
                continue  # its dry run says nothing
            if counts_in_audit(pod.code):
                counts[DRIFTED if pod.code == IN_THE_PLAN else pod.code] += 1
        counts["without_pods"] += self.skips("without_pods")
        return +counts

    @property
    def silent(self) -> list[Decision]:
        """Return the workloads that gave no answer, but not those that were deleted meanwhile."""
        silent, present = [], {row.owner for row in self.pod_states}
        for row in self.plan.decisions:
            error = row.comparison.today.error
            is_deleted = row.code == "gone" or (error and error.reply is Reply.NOT_FOUND)
            if answer_of(row) == "no_answer" and not (is_deleted and row.ref not in present):
                silent.append(row)
        return silent

    @property
    def not_asked(self) -> Counter[str]:
        """Return what new Pods were not asked about, by noun; see noun_of."""
        plan, silent = self.plan, {row.ref for row in self.silent}
        asked = {row.ref for row in plan.decisions}
        counts = Counter(noun for ref, noun in plan.scan.nouns.items() if ref not in asked)
        for row in plan.decisions:
            counted, answer = row.found.counts, answer_of(row)
            if answer == "no_answer" and row.ref not in silent:  # deleted
                counts[WITHOUT_PODS] += 1
            elif answer == "not_asked":
                counts[noun_of(row.ref)] += len(row.found.pods) if row.ref.kind == "Node" else 1
            elif row.ref.kind == "Deployment" and counted.updated < counted.current:
                # Of its two templates, one was checked
                paused = is_paused(row.found.obj)
                counts["paused Deployment" if paused else "unfinished rollout"] += 1
            elif not has_template(row.ref):  # the same
                counts[CUSTOM] += 1
            counts[BELOW] += sum(is_below_partition(row.found.obj, p.name) for p in row.found.pods)
        came = {row.owner for row in self.pod_states if row.pod.sidecars}  # while it asked
        counts.update(noun_of(ref) for ref in came - asked if not has_template(ref))
        return +counts

    @property
    def not_injected(self) -> list[ObjectRef]:
        """Return the workloads without the sidecar whose new Pods would not get it."""
        compared = self.plan.compared
        return [row.ref for row in compared if row.comparison.verdict is Verdict.NOT_INJECTED]

    @property
    def expected(self) -> Json:
        """Return the answer to --expect-image and --expect-annotation, as JSON has it."""
        options = self.options
        by_answer = group_by(self.plan.decisions, answer_of)
        differing = by_answer["would_differ"]
        silent = self.silent
        created = {pod.workload for pod in self.leftovers if pod.code == "unknown"}  # since
        pods = [pod for pod in self.leftovers if pod.code != "unknown"]
        no_answer = len(silent) + len(created)
        reasons = list(self.unmatched)
        if not (reasons or self.checked):
            reasons.append(f"no Pod has a container named {join_words(options.sidecars, 'or')}")
        given = {"image": options.expect_image, "annotation": options.expect_annotation}
        another = f"another {join_words([thing for thing in given if given[thing]], 'or')}"
        if pods:
            text = f"{count_of(len(pods), 'Pod')} {has_or_have(len(pods))} {another}"
            details = reason_counts(Counter(map(short_found, pods)))
            states = Counter(words_of(pod.code) for pod in pods if is_passing(pod))
            passing = f", including {reason_counts(states)}" if states else ""
            reasons.append(f"{text} ({details}){passing}")
            another = "another one"
        found_in_new = [row.comparison.today.unexpected for row in differing]  # empty: none
        if not all(found_in_new):
            another = f"{another} or none" if any(found_in_new) else "none"
        if differing:
            count = count_of(len(differing), "workload")
            reasons.append(f"new Pods of {count} would get {another}")
        for image in sorted([*found_in_new, *(pod.found for pod in pods)]):
            name, at, _ = image.partition("@")
            if at and "=" not in name and is_expected(name, options.expect_image):
                reasons[-1] += (
                    f"; an image with a digest needs a pattern with its digest, such as {image}"
                )
                break
        if no_answer:
            text = f"{count_of(no_answer, 'workload')} gave no answer"
            why = {row.reason.removeprefix("not compared: ").partition("; ")[0] for row in silent}
            if len(why) == 1 and not created:
                text += f": {why.pop()}"
            reasons.append(text)
        return {
            "patterns": options.expect_image + ["=".join(row) for row in options.expect_annotation],
            "yes": not reasons,
            "pods": self.checked,
            "others": Counter(pod.found for pod in pods),
            "terminating": sum(pod.code == "terminating" for pod in pods),
            "asked": len(by_answer[""]) + len(differing),
            "would_differ": len(differing),
            "no_answer": no_answer,
            "not_asked": {snake_case(noun): count for noun, count in self.not_asked.items()},
            "reasons": reasons,
        }

    @property
    def failures(self) -> Counter[str]:
        """Return what makes the exit code 1 by code, and how often; empty: it is 0."""
        failures = self.failed.copy()
        for result in self.results:
            if result.outcome in FAILURES or (result.cause and result.code == "stopped"):
                failures[result.outcome.code] += 1
            if self.options.plan is not None and not counts_as_applied(result):
                failures["not_applied"] += 1
        not_started = Outcome.NOT_STARTED
        has_changed = any(result.cause for result in self.of(Outcome.SKIPPED))  # the injector
        if has_changed and any(result.code == "stopped" for result in self.of(not_started)):
            failures[not_started.code] += 1
        if failures[not_started.code]:  # the first says why, and all the others are meant
            failures[not_started.code] = self.outcomes[not_started] - self.plan.left_count
        if self.options.confirm:
            failures[LOST] = len(self.lost)  # whatever ended the rollouts
            if self.options.plan is not None and not self.options.plan:
                failures["not_applied"] += 1
            failures["not_injected"] = self.skips("not_injected")
            failures["of_an_earlier_run"] += len(self.never_completed)
            rows = set(self.options.plan or ()).difference(self.never_completed)
            for skip in self.plan.skips:
                is_over = code_counts_as_applied(skip.code) or skip.code in ("not_selected", LOST)
                if skip.subject in rows and not is_over:
                    failures["not_applied"] += 1
        if self.options.fail_on_drift:
            failures["not_up_to_date"] += self.not_up_to_date().total()
            failures["injector_down"] = int(self.plan.is_injector_down)
            if not failures.total():
                failures["nothing_checked"] = int(not self.checked or bool(self.unmatched))
        if self.options.is_question:
            failures["not_as_expected"] = len(self.expected["reasons"])
        return +failures

    @property
    def exit_code(self) -> int:
        return int(bool(self.failures))


def lost_title(refs: Sequence[ObjectRef]) -> str:
    """Return what stands before the command that repairs workloads."""
    names = join_words(list(map(str, refs)))
    return f"New Pods of {names} have no sidecar. Repair the injector, and run:"


def is_passing(pod: PodState) -> bool:
    """Return whether a Pod that is not as expected goes by itself."""
    return pod.code in ("terminating", "running_to_completion")


def short_found(pod: PodState) -> str:
    """Return what a Pod has that is not as expected, or its code, if that says more."""
    if pod.code != "unexpected" and not is_passing(pod):
        return words_of(pod.code)
    return pod.found if "=" in pod.found else pod.found.rpartition("/")[2]


def noun_of(owner: ObjectRef) -> str:
    """Return what owns Pods, if it was not asked what new ones would be like."""
    nouns = {"": "bare Pod", "Node": "static Pod", "Job": "Job"}
    return nouns.get(owner.kind, "deleted workload" if has_template(owner) else CUSTOM)


class Line(NamedTuple):
    """A line of which the beginning is bold on a terminal."""

    bold: str
    rest: str = ""


class Report:
    """Writes text or JSON records to standard output."""

    MAX_NAMES = 5  # of a group; with --log-level=debug all
    MAX_REASONS = 20  # the same

    def __init__(
        self,
        connection: Connection,
        options: Options,
        progress: ProgressLine,
        gate: Gate,
        argv: Sequence[str] = (),
    ) -> None:
        self.connection = connection
        self.gate = gate
        self.argv = argv  # for the command that is printed
        self.options = options
        self.progress = progress
        self.as_json = options.log_format == "json"
        names = options.sidecars
        self.with_names = len(names) > 1 or is_pattern(names[0])
        self.began = self.last_progress = time.monotonic()
        self.plan = Plan()
        self.totals = Totals(options)
        self.letters: dict[ObjectRef, str] = {}  # of what differs, see print_differences
        # What is known of all owners of Pods by now; the code says why their Pods are left
        self.decided: dict[ObjectRef, Decision] = {}
        # Why Pods are left: in the plan, by an outcome; else by the code of the decision's rule
        self.why_left: dict[ObjectRef, str] = {}
        self.read_again: dict[ObjectRef, bytes] = {}  # workloads, packed; see list_again
        self.at_once = 1  # how many rollouts were in progress at most
        self.hint = " (use --log-level=debug to list all)"  # shown once
        # What the printed command needs to repair what lost its sidecar
        self.needs_evict = False
        # What lost a sidecar that no annotation remembers: of evictions, and for operators
        self.not_noted: set[ObjectRef] = set()
        self.lost_names: set[str] = set()  # that the command line does not name

    def record(self, record: str, ref: ObjectRef | None = None, **fields: Any) -> None:
        if not self.as_json:
            return
        whole: Json = {"record": record}
        if ref:
            whole |= ref._asdict()
        if ref and self.options.label_columns:
            whole["labels"] = self.labels_of(ref)
        self.write(json.dumps(whole | fields))

    def labels_of(self, ref: ObjectRef) -> Labels:
        """Return the labels of --label-columns that a workload has, or else its namespace."""
        if ref not in self.decided:
            return {}
        found = self.decided[ref].found
        labels = nested(found.namespace, "metadata.labels") | nested(found.obj, "metadata.labels")
        return with_keys(labels, self.options.label_columns)

    @property
    def width(self) -> int:
        """Return how many columns a terminal has, or is taken to have; 0: it is none."""
        if not sys.stdout.isatty():
            return 0
        return max(shutil.get_terminal_size().columns, MIN_WIDTH)

    def print(self, *lines: str | Line) -> None:
        if self.as_json:
            return
        is_colored = self.width and not os.environ.get("NO_COLOR")
        whole = []
        for line in lines:
            bold, rest = line if isinstance(line, Line) else ("", line)
            parts = [printable(bold + rest)]
            if self.width:
                parts = wrapped(parts[0], self.width)
            for part in parts:  # a line that is bold as a whole may be broken
                end = len(printable(bold)) if rest or not bold else len(part)
                first, last = part[:end], part[end:]
                if is_colored:
                    first, last = (
                        COLORED.sub("\033[31m\\1\033[0m", text) for text in (first, last)
                    )
                if is_colored and first:
                    first = "\033[1m" + first.replace("\033[0m", "\033[0;1m") + "\033[0m"
                whole.append(first + last)
        self.write("\n".join(whole))

    def print_command(self, words: Sequence[str]) -> None:
        """Print a command in one line, to be copied."""
        if not self.as_json:
            self.write(f"  {printable(shlex.join(words))}")

    def write(self, text: str) -> None:
        self.progress.erase()
        try:
            print(text, flush=True)
        except OSError as error:  # the rollouts matter more than the text
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):  # that is `| head`, which has read enough
                self.totals.failed["output_not_written"] = 1
                log.error("cannot write to standard output: %s", error.strerror)
        self.progress.draw()

    def print_groups(self, title: str, skips: Iterable[Skip]) -> None:
        """Print, if there are any, the objects that have a reason, by reason."""
        lines: list[str | Line] = [Line(f"{title}:")]

        def order(skip: Skip) -> tuple[bool, int, bool, Skip]:
            is_first = skip.subject in self.plan.never_completed
            return not is_first, place_of(skip.code), skip.subject not in self.letters, skip

        in_order = sorted(skips, key=order)
        by_reason = group_by(in_order, lambda skip: skip.reason)
        limit = len(by_reason) if self.options.log_level == "debug" else self.MAX_REASONS
        for reason, group in itertools.islice(by_reason.items(), limit):
            names = self.names_of([skip.subject for skip in group])
            if not reason:
                lines.append(f"  {names}")
            elif len(printable(f"  {reason}: {names}")) <= self.width:
                lines.append(Line(f"  {reason}:", f" {names}"))
            else:
                lines += [Line(f"  {reason}:"), f"    {names}"]
        others: Counter[str] = Counter()
        for group in itertools.islice(by_reason.values(), limit, None):
            others.update(skip.subject.namespace for skip in group)
        if others:
            counts = ", ".join(f"{name} ({count})" for name, count in sorted(others.items()))
            lines += ["  for other reasons, by namespace:", f"    {shorten(counts, 1000)}"]
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
        names = ", ".join(texts)
        if len(refs) > limit:
            names += f" and {len(refs) - limit} more{self.hint}"
            self.hint = ""
        return names

    # The plan

    def record_plan(self, plan: Plan) -> None:
        """Write the records of the plan."""
        for workload in plan.compared:
            self.record(
                "drift",
                workload.ref,
                verdict=workload.comparison.verdict.code,
                differences=[row._asdict() for row in workload.differences],
                ignored=sorted(set(map(shown_path, workload.comparison.today.ignored))),
                message=workload.comparison.message,
            )
        for position, workload in enumerate(plan.workloads, 1):
            digest = ""
            if self.options.only_drifted:  # else nobody approves of what a few dry runs returned
                digest = hash_of(workload.comparison.today)
            self.record(
                "plan",
                workload.ref,
                position=position,
                selected=position <= plan.selected_count,
                uid=nested(workload.found.obj, "metadata.uid") or "",
                started_before=format_cutoff(self.options.cutoff_of(workload.ref)),
                sidecar_hash=digest,
                template_hash=template_hash(workload.found.obj),
                pods={
                    "total": workload.total_pods,
                    "replaced": workload.pods_replaced,
                    "old": len(workload.old_pods),
                },
                sidecars=[sidecar._asdict() for sidecar in sorted(workload.found.sidecars)],
                oldest_pod=format_time(min(pod.created for pod in workload.found.pods)),
                method=workload.method.code,
                state=workload.state.code,
                unhealthy_reason=workload.problem,
                downtime=workload.downtime,
                services=workload.found.services,
                controlled_by=str(workload.found.controller or ""),
                differences=[row._asdict() for row in workload.differences],
            )
        for subject, reason, code in plan.skips:
            is_red = subject in plan.never_completed
            self.record("skip", subject, code=code, message=reason, of_an_earlier_run=is_red)

    def show_plan(self, plan: Plan, list_again: Callable[[], tuple[list[Found], Scan]]) -> None:
        """Show the drift, the plan, what is skipped, and the totals.

        If the audit would fail, list the Pods once more: some may have been deleted meanwhile.
        """
        self.print("")
        self.plan = self.totals.plan = plan
        self.needs_evict = plan.needs_evict
        self.decided = {decision.ref: decision for decision in plan.decisions}
        for position, workload in enumerate(plan.workloads, 1):
            is_selected = position <= plan.selected_count
            self.why_left[workload.ref] = IN_THE_PLAN if is_selected else "max_rollouts"
        self.record_plan(plan)
        self.print_differences()
        self.take_census([decision.found for decision in plan.decisions], plan.scan.odd_pods)
        if self.options.fail_on_drift and self.totals.not_up_to_date():
            try:
                owners, scan = list_again()
                self.take_census(owners, scan.odd_pods)
            except ApiError as error:
                log.warning("cannot list Pods again; what was seen first counts: %s", error)
        if plan.selected_count:
            lines = self.table(plan.selected)
            if plan.left_count:
                lines.append(f"and {plan.left_count} more, left by --max-rollouts")
            self.print(*lines, "")
        self.print_groups("Not rolled out", self.listed_skips)
        if self.options.fail_on_drift:
            self.print_without_sidecar()
        self.print_census()
        if plan.injector:
            self.print(f"Warning: {plan.injector}")
        self.print_totals()

    def show_answer(self, plan: Plan, owners: Sequence[Found], scan: Scan) -> None:
        """Show the Pods by sidecar, and by namespace what is not as expected."""
        self.plan = self.totals.plan = plan
        self.decided = {decision.ref: decision for decision in plan.decisions}
        self.take_census(owners, scan.odd_pods)
        self.print("")
        self.print_census()
        skips = set()
        for pod in self.totals.leftovers:
            reason = f"Pods with {pod.found}"
            if pod.code != "unexpected":
                reason = join_texts(": ", words_of(pod.code), pod.found)
            skips.add(Skip(pod.workload, reason, pod.code))
        for row in plan.decisions:
            if answer_of(row) in ("no_answer", "would_differ"):
                skips.add(Skip(row.ref, row.reason, row.code))
                self.record(
                    "skip", row.ref, code=row.code, message=row.reason, of_an_earlier_run=False
                )
        for namespace, group in sorted(group_by(skips, lambda row: row.subject.namespace).items()):
            self.print_groups(namespace, group)
        self.print_without_sidecar()

    def answer(self) -> str:
        """Return the sentence that answers --expect-image and --expect-annotation."""
        options, said = self.options, self.totals.expected
        if not said["yes"]:
            return f"No: {'; '.join(said['reasons'])}."
        pods, asked = said["pods"], said["asked"]
        subject = "the only Pod" if pods == 1 else f"all {pods:,} Pods"
        subject += f" with {join_words(options.sidecars, 'or')}"
        if options.include_namespace:
            subject += f" in namespace {join_words(options.include_namespace, 'or')}"
        texts = [f"{count_of(asked, 'workload')} checked", self.without_sidecar_text()]
        others = []
        for noun, count in self.totals.not_asked.items():
            is_noun = noun not in (WITHOUT_PODS, BELOW)
            others.append(count_of(count, noun) if is_noun else f"{count} {noun}")
        if others:
            texts.append(f"not checked: {', '.join(others)}")
        new = "; new ones would, too" if asked else ""
        wanted = [options.expect_image] if options.expect_image else []
        by_key = group_by(options.expect_annotation, lambda row: row[0])
        wanted += [list(map("=".join, rows)) for rows in by_key.values()]
        what = join_words([join_words(patterns, "or") for patterns in wanted])
        return f"Yes: {subject} {has_or_have(pods)} {what}{new} ({join_texts('; ', *texts)})."

    def without_sidecar_text(self) -> str:
        """Return how many workloads have no sidecar and would get none; empty: none is known."""
        workloads = self.totals.not_injected
        if not workloads:
            return ""
        return f"{count_of(len(workloads), 'workload')} without the sidecar would not get it"

    def print_without_sidecar(self) -> None:
        """Print what has no sidecar and would not get it, or was not asked, by namespace."""
        custom = [ref for ref, noun in self.plan.scan.nouns.items() if noun == CUSTOM]
        text = f"{count_of(len(custom), CUSTOM)} without the sidecar, not checked"
        for title, refs in (
            (self.without_sidecar_text(), self.totals.not_injected),
            (text, custom),
        ):
            self.print_groups(title, (Skip(ref, ref.namespace, "") for ref in refs))

    def print_differences(self) -> None:
        """Print once what differs in the same way, with the letter that stands for it."""
        everyone = dict.fromkeys([*self.plan.workloads, *self.plan.compared])
        different = [workload for workload in everyone if workload.differences]
        groups = group_by(different, lambda workload: str(difference_lines(workload)))
        texts = []
        for letter, group in zip(letter_names(), groups.values(), strict=False):
            lines = difference_lines(group[0])
            limit = len(lines) if self.options.log_level == "debug" else self.MAX_NAMES
            shown = lines[:limit]
            if len(lines) > limit:
                shown.append(f"and {len(lines) - limit} more")
            texts.append(f"  {letter:<2} {count_of(len(group), 'workload')}:")
            for line in shown:
                texts.append(f"     {line}")
            for workload in group:
                for ref in (workload.ref, *workload.found.subjects):
                    self.letters[ref] = letter
        ignored: set[Path] = set()
        for row in self.plan.compared:
            ignored.update(map(shown_path, row.comparison.today.ignored))
        names = [f"{name} {section_text(section)}" for name, *section in sorted(ignored)]
        if texts:
            heading = "Differences between running Pods and new ones:"
            self.print(Line(heading), *texts, "")
        if names:
            self.print(f"Ignored, because it is different in each new Pod: {join_words(names)}", "")

    def table(self, workloads: Sequence[Replacement]) -> list[str]:
        """Return the plan in the order given, a line for each workload."""
        refs = [workload.ref for workload in workloads]
        sidecars = ["VERSION"]
        for workload in workloads:
            text = sidecar_text(sorted(workload.found.sidecars), self.with_names)
            sidecars.append(text or "<none>")
        columns = [
            ["#", *map(str, range(1, len(refs) + 1))],
            ["NAMESPACE", *(ref.namespace for ref in refs)],
            ["WORKLOAD", *(f"{self.kind_of(ref)}/{ref.name}" for ref in refs)],
            ["PODS", *(str(workload.pods_replaced) for workload in workloads)],
        ]
        if self.options.only_drifted:
            columns.append(["OLD", *(str(len(workload.old_pods)) for workload in workloads)])
        if not (self.letters and 0 < self.width < WIDE):  # DIFF tells it
            columns.append(sidecars)
        if self.letters:
            columns.append(["DIFF", *(self.letters.get(ref, "") for ref in refs)])
        for key in self.options.label_columns:
            labels = [self.labels_of(ref).get(key, "<none>") for ref in refs]
            columns.append([key.rpartition("/")[2].upper(), *labels])
        columns.append(["NOTES", *map(self.notes, workloads)])
        return format_table(list(zip(*columns, strict=True)), self.width)

    def kind_of(self, ref: ObjectRef) -> str:
        """Return a kind in lower case; on a terminal kubectl's short name, if it has one."""
        kind = ref.kind.lower()
        if not self.width:
            return kind
        for short, long in SHORT_NAMES.items():
            if long == kind:
                return short
        return kind

    def notes(self, workload: Replacement) -> str:
        """Return what is special about a workload of the plan."""
        notes = []
        if workload.state is State.NO_SERVICE:
            notes.append(State.NO_SERVICE.value)
        if workload.problem:
            notes.append(f"unhealthy: {workload.problem}")
        if workload.method is not Method.RESTART:
            notes.append(workload.method.value)
        elif self.options.in_place:
            notes.append("restart: more than images differ")
        if workload.kept_pods:
            notes.append(f"{count_of(len(workload.kept_pods), 'Pod')} below the partition")
        if workload.downtime:
            notes.append("downtime")
        if workload.min_ready:
            notes.append(f"minReadySeconds {workload.min_ready}")
        return "; ".join(notes)

    def print_totals(self) -> None:
        plan = self.plan
        selected = plan.selected
        count = count_of(len(plan.workloads), "workload")
        if plan.left_count:
            count = f"{plan.selected_count} of {count} (--max-rollouts)"
        pods = count_of(sum(workload.pods_replaced for workload in selected), "Pod")
        texts = [f"To roll out: {count} with {pods}."]
        if self.options.only_drifted:
            old = sum(len(workload.old_pods) for workload in selected)
            texts = [f"To roll out: {count} with {pods}, {old} of them old."]
        if not plan.workloads:
            texts = [f"Nothing to roll out; scanned {count_of(plan.scan.pods, 'Pod')}."]
        elif not self.options.only_drifted:
            texts.append(
                "Every workload with the sidecar is in the plan, as nothing was compared; use "
                "--only-drifted to compare first."
            )
        if len(selected) > 1 and not self.options.confirm:
            seconds = 60 * len(selected) / workers_for(plan, self.options)
            texts.append(f"This takes about {human_duration(seconds)} if each takes 1 minute.")
        texts += self.skipped_text()
        if self.gate.text is not None:
            texts.append(f"Gate {self.gate.text}.")
        self.print(*texts)

    @property
    def listed_skips(self) -> list[Skip]:
        """Return the skips that are listed for people; of Pods of Jobs the table tells."""
        return [skip for skip in self.plan.skips if skip.code != "running_to_completion"]

    def skipped_text(self) -> list[str]:
        """Return a sentence about how many workloads, and Pods without one, are not rolled out."""
        subjects = {skip.subject for skip in self.listed_skips}
        if not subjects:
            return []
        pods = sum(ref.kind == "Pod" for ref in subjects)
        texts = []
        if pods < len(subjects):
            texts.append(count_of(len(subjects) - pods, "workload"))
        if pods:
            texts.append(count_of(pods, "Pod"))
        return [f"Not rolled out: {join_words(texts)}."]

    # The rollouts

    def show_progress(self, in_progress: Collection[Task], held: str) -> None:
        """Update the progress line; elsewhere than on a terminal log it once a minute."""
        finished, failed = len(self.totals.results), len(self.totals.of(*FAILURES))
        ended = [result for result in self.totals.results if result.outcome not in LISTED_BY_REASON]
        text = f"{finished}/{self.plan.selected_count} finished, "
        if failed:
            text += f"{failed} failed, "
        text += f"{human_duration(seconds_since(self.began))}, "
        waiting = self.plan.selected_count - finished
        self.at_once = max(self.at_once, len(in_progress))
        if len(ended) >= 3 and waiting > len(in_progress) and not held:
            seconds = statistics.median(result.seconds for result in ended) * waiting / self.at_once
            text += f"about {human_duration(seconds)} left, "
        text += f"{len(in_progress)} in progress"
        if in_progress:
            longest = min(in_progress, key=lambda task: task.started)
            ref = longest.planned.ref
            text += f": {ref.namespace}/{ref.name} {longest.line}"
        if held:
            text = f"{text.rstrip()}; {held}"
        self.progress.show(text)
        if not self.progress.on_terminal and seconds_since(self.last_progress) >= 60:
            self.last_progress = time.monotonic()
            log.info("%s", text)

    def finish(self, result: Result) -> None:
        """Count, record and log a workload's result."""
        planned, outcome = result.planned, result.outcome
        today = (result.latest or planned).comparison.today
        # Why those of its Pods are left that are not up to date
        code = outcome.code
        if outcome in SUCCESSES:
            code = DRIFTED
        elif outcome is Outcome.SKIPPED or result.code == "max_rollouts":
            code = result.code or code
        comparison = replace(planned.comparison, today=today)
        self.decided[planned.ref] = replace(planned, comparison=comparison)
        self.why_left[planned.ref] = code
        self.totals.results.append(replace(result, latest=None))  # it keeps Pods
        if outcome is Outcome.LOST_SIDECAR and is_ordered_ready(planned.found.obj):
            self.needs_evict = True
        self.record(
            "result",
            planned.ref,
            outcome=outcome.code,
            code=result.code,
            method=planned.method.code,
            time=format_time(datetime.now(timezone.utc)),
            seconds=result.seconds,
            message=result.message,
            command=self.command_after(result),
            pods=result.counts._asdict() if result.counts else None,
            unhealthy_before=planned.problem,
            sidecar_hash=hash_of(planned.comparison.today) if outcome in SUCCESSES else "",
        )
        text = join_texts(": ", described(result), result.message)
        if self.progress.on_terminal:  # the whole message stands in the summary
            text = shorten(text, max(120, shutil.get_terminal_size().columns - 30))
        level = LEVELS.get(outcome, logging.WARNING)
        if outcome is Outcome.SKIPPED and code_counts_as_applied(result.code):
            level = logging.INFO
        log.log(level, "%s", text, extra=about(planned.ref))

    # The census

    def take_census(self, workloads: Iterable[Found], odd_pods: Iterable[PodState] = ()) -> None:
        """Note each Pod with why it is not up to date."""
        decisions = {}
        for decision in self.decided.values():
            for ref in (decision.ref, *decision.found.owners):
                decisions[ref] = decision
        changed = self.totals.changed_namespaces
        self.totals.pod_states = []
        for state in odd_pods:
            decided = decisions.get(state.owner)
            self.totals.pod_states.append(self.held(state, decided) if decided else state)
        self.not_noted, self.lost_names = set(), set()
        for found in workloads:
            # After a run, Pods were read again, by their owners; the plan has workloads.
            decided = decisions.get(found.owners[0]) or decisions.get(found.ref)
            if self.options.is_question:
                self.totals.pod_states += self.answered(found, decided)
            elif decided:
                has_changed = decided.ref.namespace in changed
                self.totals.pod_states += self.left(found.pods, decided, has_changed)
            else:
                self.totals.pod_states += self.unknown(found)

    def answered(self, found: Found, decision: Decision | None) -> Iterator[PodState]:
        """Yield the Pods of an owner, with what is not as expected, or not known."""
        owner = decision.ref if decision else found.ref
        is_known = decision or not has_template(found.ref)  # of others, nobody asks about new Pods
        for pod in found.pods:
            code, part = pod.unexpected
            if not part:
                # A Pod created since then shows what is injected today
                is_old = pod.sidecars and pod.created < self.plan.scan.began
                code = "unknown" if is_old and code != "terminating" and not is_known else ""
            differing = [sidecar.name for sidecar in pod.sidecars if sidecar.image == part]
            yield PodState(pod, owner, differing, code=code)

    def left(
        self, pods: Sequence[LivePod], decision: Decision, has_changed: bool
    ) -> Iterator[PodState]:
        """Yield the Pods of a workload, compared by what is known of it.

        `has_changed`: the injector has changed in its namespace since the plan.
        """
        found = replace(decision.found, pods=pods)
        code = self.why_left.get(decision.ref, decision.code)
        today = decision.comparison.today
        is_compared = self.options.only_drifted and today.view
        if is_compared and pods is not decision.found.pods:  # it was read again
            again = compare(found, today, self.options)
            decision = replace(decision, comparison=again)
            if again.verdict is Verdict.UNKNOWN:
                code = "unknown"
        if decision.ref in self.read_again:
            found = replace(found, stored=self.read_again[decision.ref])
        lost = lost_pods(found, today, self.options, decision)
        is_off = bool(lost) and self.is_turned_off(decision, found, set().union(*lost.values()))
        for state in states_of(found, decision.comparison, lost, self.options):
            left = why_left(state, decision, code, self.options)
            if not left and has_changed:
                left = "another_sidecar"
            if left == LOST and not is_off:
                self.note_repair(state)
            yield state._replace(code=left, is_given_up=is_off)

    def note_repair(self, state: PodState) -> None:
        """Note what the printed command must name, so that it repairs a Pod."""
        lost = set(state.lost)
        others = lost - named_texts(lost, self.options.sidecars)
        if others or not lost <= plain_names(state.pod.noted):
            self.not_noted.add(state.workload)
        self.lost_names |= others

    def is_turned_off(self, decision: Decision, found: Found, lost: set[str]) -> bool:
        """Return whether the team of a workload has turned its sidecars off: by another Pod
        template than this command restarted, while the injector works for its namespace.

        `found` is the workload as it was read last: only an answer about its Pod template tells.
        """
        noted = restarted_template(found.obj, self.options.annotation_prefix)[0]
        if not noted or noted == template_hash(found.obj):
            return False
        today = decision.comparison.today
        is_known = bool(today.view) and is_same_template(decision.found, found)
        if not is_known or lost & plain_names(today.containers):
            return False
        for other in self.decided.values():
            gets = plain_names(other.comparison.today.containers)
            if other.ref.namespace == found.ref.namespace and gets.issuperset(lost):
                return True
        return False

    def held(self, state: PodState, decision: Decision) -> PodState:
        """Return a Pod that still terminates: it counts unless it is as new ones would be, or a
        person left out its workload."""
        (compared,) = self.left([state.pod], decision, has_changed=False)
        is_counted = compared.code and counts_in_audit(compared.code)
        return compared._replace(code=state.code if is_counted else compared.code)

    def unknown(self, found: Found) -> Iterator[PodState]:
        """Yield the Pods of an owner that came since, or whose owner is gone."""
        lost = {}
        if is_named(found.ref, self.options):
            lost = lost_pods(found, NOT_ASKED, self.options)
        left = decide_early(found, self.options, Known.OWNER).code or "unknown"
        for pod in found.pods:
            gone = lost.get(pod.name, frozenset())
            is_new = pod.created >= self.plan.scan.began
            if is_new and self.options.fail_on_drift and not gone:
                continue  # it came during an audit, and is for the next one
            is_left = pod.sidecars and (self.options.only_drifted or not is_new)
            code = LOST if gone else left if is_left else ""
            yield PodState(pod, found.ref, lost=gone, code=code)

    def print_census(self) -> None:
        """Print how many Pods are up to date, to be replaced, and left, and why, by sidecar."""
        rows = [["SIDECAR", "VERSION", "PODS", "UP TO DATE", "OLD", "LEFT"]]
        for row in sorted(self.sidecar_records(), key=lambda row: (row["name"], not row["image"])):
            left = {words_of(code): count for code, count in row["left"].items()}
            version = image_version(row["image"]) if row["image"] else "<none>"
            cells = [
                row["name"],
                version,
                str(row["pods"]),
                str(row["up_to_date"]),
                str(row["old"]),
            ]
            reasons = f" ({reason_counts(left)})" if left else ""
            rows.append([*cells, f"{sum(left.values())}{reasons}"])
        if not self.options.only_drifted or self.options.is_question:
            rows = [row[:3] for row in rows]  # nothing is up to date or old
        if len(rows) > 1:
            self.print(*format_table(rows, self.width), "")

    def sidecar_records(self) -> list[Json]:
        """Return the census for the summary's JSON record: one item per container and image."""
        records = []
        for (name, image), codes in sorted(self.totals.census.items()):
            record = {
                "name": name,
                "image": image,
                "pods": codes.total(),
                "up_to_date": codes[""],
                "old": codes[IN_THE_PLAN],
                "left": without_keys(dict(sorted(codes.items())), "", IN_THE_PLAN),
            }
            records.append(record)
        return records

    def leftover_records(self) -> list[Json]:
        """Return the Pods that are not up to date, without those that the plan replaces."""
        records = []
        for pod in sorted(self.totals.leftovers, key=lambda row: row.subject):
            if pod.code == IN_THE_PLAN:
                continue
            sidecars = [{"name": s.name, "image": s.image} for s in sorted(pod.pod.sidecars)]
            record = {
                "namespace": pod.subject.namespace,
                "name": pod.subject.name,
                "workload": pod.workload._asdict(),
                "code": pod.code,
                "message": words_of(pod.code),
                "sidecars": sidecars,
                "found": pod.found,
            }
            if self.options.label_columns:
                record["labels"] = self.labels_of(pod.workload)
            records.append(record)
        return records

    # The summary

    def show_summary(self, exit_code: int) -> None:
        self.progress.show("")
        options, plan = self.options, self.plan
        seconds = seconds_since(self.began)
        if options.confirm and plan.workloads:  # else the plan has said it all
            self.print("")
            self.print_census()
            self.print_unsuccessful()
            self.print_counts(seconds)
        elif not (options.confirm or options.is_question):
            self.print("", "This was a dry run; nothing was changed.")
        commands = list(self.commands())
        for title, words in commands:
            self.print(title)
            self.print_command(words)
        if options.is_question:
            self.print(self.answer())
        elif exit_code == 1:
            self.print(f"Failed: {', '.join(self.failure_texts())}.")
        elif options.fail_on_drift and not exit_code:
            texts = count_of(self.totals.checked, "Pod"), self.without_sidecar_text()
            self.print(f"Passed: all checked Pods are up to date ({join_texts('; ', *texts)}).")
        self.record(
            "summary",
            version=VERSION,
            context=self.connection.context,
            user=self.connection.user,
            server=self.connection.server,
            dry_run=not options.confirm,
            started_before=format_cutoff(options.cutoff),
            outcomes={outcome.code: count for outcome, count in self.totals.outcomes.items()},
            verdicts=Counter(row.comparison.verdict.code for row in plan.compared),
            pods={n: self.totals.pods[n] for n in PodCounts._fields if options.confirm},
            sidecars=self.sidecar_records() if self.totals.is_listed else None,
            leftovers=self.leftover_records() if self.totals.is_listed else None,
            planned=len(plan.workloads),
            not_injected=len(self.totals.not_injected),
            not_up_to_date=self.totals.not_up_to_date() if options.only_drifted else {},
            seconds=seconds,
            command=commands[0][1] if commands else [],
            commands=[words for _, words in commands],
            gate=self.gate.text,
            namespaces=options.include_namespace or None,
            injector=plan.injector,
            expected=self.totals.expected if options.is_question else None,
            exit_code=exit_code,
            failed=self.totals.failures,
        )

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the commands to run next, each with a text before it.

        An annotation remembers what most workloads lost. For others, Pods without the sidecar are
        repaired by name, in a namespace at a time: no label of theirs selects them anymore.
        """
        options, plan, context = self.options, self.plan, self.connection.context
        lost = self.totals.lost if options.confirm else []
        lost = [ref for ref in lost if ref.kind != "Pod"]  # nothing replaces a Pod of its own
        more = []
        if self.needs_evict and not options.evict:
            more.append("--evict")
        verb = ""
        if self.totals.outcomes.keys() & {Outcome.NOT_STARTED, Outcome.INTERRUPTED}:
            verb = "resume"
        if not (options.confirm or options.is_question or options.fail_on_drift):
            verb = "apply" if plan.workloads or self.needs_evict else ""
        noted = [ref for ref in lost if ref not in self.not_noted]
        if verb or noted:
            title = f"To {verb}, run:"
            if noted:
                title = lost_title(noted)
            yield title, next_command(self.argv, options, context, *more)
        not_noted = group_by(self.not_noted.intersection(lost), lambda ref: ref.namespace)
        more += [f"--sidecar-container-name={name}" for name in sorted(self.lost_names)]
        if not options.only_drifted:
            more.append("--only-drifted")
        for namespace, refs in sorted(not_noted.items()):
            names = sorted(typed_names(ref)[0] for ref in refs)
            words = [f"--include-namespace={namespace}", "--include-missing", *more]
            if not (options.evict or all(map(has_rollout, refs))):
                words.append("--evict")
            command = next_command(self.argv, options, context, *words, names=names)
            yield lost_title(sorted(refs)), command

    def failure_texts(self) -> Iterator[str]:
        """Yield what makes the exit code 1: `5 failed (shop/a, shop/b, shop/c, ...)`."""
        names = defaultdict(list)
        for result in self.totals.of(*FAILURES):
            ref = result.planned.ref
            names[result.outcome.code].append(f"{ref.namespace}/{ref.name}")
        for code, refs in (
            ("of_an_earlier_run", self.totals.never_completed),
            (LOST, self.totals.lost),
        ):
            names[code] = [f"{ref.namespace}/{ref.name}" for ref in refs]
        for code, count in self.totals.failures.items():
            text, details = f"{count} {words_of(code)}", ", ".join(names[code][:3])
            if len(names[code]) > 3:
                details += ", ..."
            if code == "not_up_to_date":
                counts = self.totals.not_up_to_date()
                details = reason_counts({words_of(left): counts[left] for left in counts})
            if code == "pods_not_listed":
                text = "1 list of Pods was not read"
            if code == "nothing_checked":
                text, details = "no Pod was checked", "; ".join(self.totals.unmatched)
            if code == "injector_down":
                is_silent = self.plan.injector.endswith(SILENT)
                text = "the injector is down" if is_silent else "no dry run had an answer"
            yield f"{text} ({details})" if details else text

    def command_after(self, result: Result) -> list[str]:
        """Return the words of the command that says more of a result; none, if it is no failure."""
        if result.outcome not in (*FAILURES, Outcome.INTERRUPTED):
            return []
        return self.connection.kubectl_command(result.planned.ref, "describe")

    def print_unsuccessful(self) -> None:
        """Print what did not succeed, by outcome, the worst last, with the command to run next."""
        for outcome in reversed([found for found in Outcome if found not in SUCCESSES]):
            skips = []
            for result in self.totals.of(outcome):
                ref = result.planned.ref
                if outcome in LISTED_BY_REASON:
                    if result.code != "max_rollouts":
                        skips.append(Skip(ref, result.message, outcome.value))
                    continue
                self.print(f"{outcome.value}: {ref}:", f"  {result.message}")
                command = self.command_after(result)
                if command:
                    self.print_command(command)
                    self.print("")
            self.print_groups(outcome.value, skips)

    def print_counts(self, seconds: float) -> None:
        counts = {outcome.value: self.totals.outcomes[outcome] for outcome in Outcome}
        more = self.plan.left_count
        counts[Outcome.NOT_STARTED.value] -= more
        total = count_of(sum(counts.values()), "workload")
        text = f"{total} in {human_duration(seconds)}: {count_words(counts) or '0 succeeded'}"
        if more:
            text += f"; {more} left by --max-rollouts"
        self.print(f"{text}.")
        for line in self.skipped_text():
            self.print(line)
        pods = self.totals.pods
        wanted, ready, not_verified = pods["wanted"], pods["ready"], pods["not_verified"]
        absent = pods["lost"] + pods["not_created"]
        others = {
            "not updated": wanted - pods["updated"] - absent - not_verified,
            "lost": pods["lost"],
            "not created": pods["not_created"],
            "not ready": pods["updated"] - ready,
            "not verified": not_verified,
        }
        text = f"Pods: {ready} of {wanted} updated and ready"
        if wanted > ready:
            text += f" ({count_words(others)})"
        if wanted > not_verified:
            self.print(f"{text}.")


# 17. Main: the steps in their order ---------------------------------------------------------------


def find_cutoff(options: Options, now: datetime) -> datetime:
    """Return the time before which Pods count: as an option, or now; with --only-drifted, all do.

    It is rounded up to a whole second, like the creation time of Pods, so that the command that is
    printed selects the same Pods.
    """
    cutoff = options.cutoff
    if cutoff > now and cutoff < NO_CUTOFF:
        log.warning("--only-started-before is in the future: each run restarts everything again")
    if cutoff == NO_CUTOFF:
        if options.only_drifted:
            return NO_CUTOFF
        cutoff = now + timedelta(microseconds=1)  # a Pod of this very second counts
    return cutoff + timedelta(microseconds=-cutoff.microsecond % 10**6)


def roll_out(plan: Plan, rollouts: Rollouts, report: Report) -> None:
    """Roll out what is selected of the plan; report a result for each workload in it."""
    options = report.options
    rollouts.signals.may_interrupt = False
    rollouts.signals.ends_at = report.began + (options.max_duration or math.inf)
    workers = workers_for(plan, options)
    limit = options.max_failures
    if options.cutoff < NO_CUTOFF:  # it was rounded up: no Pod that this run creates may be older
        rollouts.cluster.wait_until(options.cutoff)
    rollouts.cluster.open_connections(2 * workers)  # with looks
    max_failures = max(int(limit.of(len(plan.workloads))), 1) if limit else 0
    if options.soak:
        log.info("each rollout is watched for %s (--soak)", human_duration(options.soak))
    Scheduler(rollouts, report, workers, max_failures).run(plan.selected)
    for workload in plan.workloads[plan.selected_count :]:
        message = "not selected by --max-rollouts"
        report.finish(Result(workload, Outcome.NOT_STARTED, message, code="max_rollouts"))


def list_again(cluster: Cluster, report: Report) -> None:
    """List the Pods once more, and read the workloads whose Pods lost sidecars: only the Pod
    template tells whether their teams have changed it."""
    owners, scan = read_all_pods(cluster, report.options)
    report.take_census(owners, scan.odd_pods)
    lost = {row.owner for row in report.totals.pod_states if row.code == LOST}
    again = [decision.found for ref, decision in report.decided.items() if ref in lost]
    for found, stored in in_parallel(again, partial(read_object, cluster, {})):
        if stored:
            report.read_again[found.ref] = stored
    report.take_census(owners, scan.odd_pods)


def count_again(cluster: Cluster, report: Report, signals: Signals) -> None:
    """Take the census again, until a second signal comes: the API server may be away."""
    totals = report.totals
    totals.is_listed = False
    with ThreadPool(1) as pool:
        reading = pool.apply_async(list_again, [cluster, report])
        while not (reading.ready() or signals.is_second()):
            reading.wait(POLL)
        try:
            reading.get(0)
            totals.is_listed = True
        except ApiError as error:
            log.warning("cannot list Pods again, to count their sidecars: %s", error)
            totals.failed["pods_not_listed"] = 1
        except TimeoutError:  # the second signal
            pass
    if not totals.is_listed:
        report.take_census(())  # what it says of the time before is not true any more


def print_error(form: str, *values: object) -> None:
    """Print an error as kubectl does; once the plan is shown, errors are in the log."""
    for handler in logging.root.handlers:
        if isinstance(handler, ProgressLine):
            handler.show("")
            if not isinstance(handler.formatter, TextFormatter):  # it is JSON
                log.error(form, *values)
                return
    with suppress(OSError):  # standard error was closed
        print(f"error: {printable(form % values)}", file=sys.stderr, flush=True)


def report_error(error: BaseException, signals: Signals, has_begun: bool, as_json: bool) -> int:
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
        text, *output = [str(error)] if as_json else error.args
        print_error("%s (nothing was changed)", text)
        with suppress(OSError):
            sys.stderr.writelines(f"{line}\n" for line in output if line)
        return 3
    tell = log.critical if has_begun else print_error
    tell("unexpected error: %r; rerun with --log-level=debug and report the log", error)
    return 1 if has_begun else 3


def main(argv: Sequence[str]) -> int:
    """Run the steps in their order; return the exit code."""
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
        cluster.check_connection()
        connection.user = cluster.user()
        check_permissions(cluster, options)
        check_namespaces(cluster, options)
        options = replace(options, cutoff=find_cutoff(options, cluster.now()))
        if options.confirm:
            check_kubectl(kubectl, connection.kubectl_flags)

        gate = Gate(options.gate, signals)
        report = Report(connection, options, progress, gate, argv)
        report.print(str(connection))
        plan = make_plan(cluster, options, progress)
        report.totals.unmatched = check_names(options, plan)
        if options.is_question:
            owners, scan = read_all_pods(cluster, options)  # the dry runs may have taken long
            report.show_answer(plan, owners, scan)
        else:
            if not options.confirm:
                gate.is_open()  # to show whether it is
            report.show_plan(plan, partial(read_all_pods, cluster, options))
        if options.confirm and plan.is_injector_down:
            raise StartError(plan.injector)
        if options.confirm:
            command = [kubectl, *connection.kubectl_flags]
            is_stated = all(states_sidecar(row, options) for row in plan.selected)
            rollouts = Rollouts(cluster, command, signals, gate, options, is_stated)
            has_begun = True
            roll_out(plan, rollouts, report)
        if options.confirm and plan.workloads:
            count_again(cluster, report, signals)
        exit_code = signals.exit_code or report.totals.exit_code
        report.show_summary(exit_code)
        return exit_code or report.totals.exit_code  # 1 if the summary could not be written
    except (Exception, Interrupted) as error:
        exit_code = report_error(error, signals, has_begun, as_json)
        if as_json and not has_begun:
            text = str(error) or "interrupted"
            fields = {"version": VERSION, "exit_code": exit_code, "error": text}
            with suppress(OSError):
                print(json.dumps({"record": "summary", **fields}), flush=True)
        return exit_code
    finally:
        signals.may_interrupt = False  # a late signal must not change the exit code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
