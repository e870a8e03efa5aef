#!/usr/bin/env python3
"""Restart the workloads whose Pods carry a named sidecar, so that they get the sidecar that is injected today.

A sidecar injector adds a container to a Pod when it is created and never looks again. After its template has changed,
this command shows the Deployments, StatefulSets and DaemonSets whose running Pods still have the old one and, with
--confirm, patches an annotation of each Pod template and waits for `kubectl rollout status`.

    arguments -> Pods -> candidates -> plan -> queue -> results -> report

Examples:
  sidecar-rollout.py --sidecar-container-name=istio-proxy
      show what would be rolled out; nothing is changed
  sidecar-rollout.py --sidecar-container-name=istio-proxy --confirm=true --parallel-rollouts=10
      roll it out, ten workloads at a time
  sidecar-rollout.py --sidecar-container-name='linkerd-*' --include-statefulset --include-namespace='team-*'
      wildcards, and StatefulSets too
  sidecar-rollout.py --sidecar-container-name=istio-proxy --only-started-before='2026-05-01 13:00' --confirm=true
      only Pods from before that moment; run it again to go on where it was interrupted

Exit codes:
  0         done, or nothing to do
  1         at least one workload failed or timed out
  2         bad usage
  3         could not start: no cluster, no permission, no kubectl; nothing was changed
  130, 143  interrupted by SIGINT, SIGTERM; what was in flight is listed
"""

from __future__ import annotations

import argparse
import enum
import fnmatch
import json
import logging
import os
import queue
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any, NamedTuple, NoReturn

VERSION = "0.1.0"
PROGRAM = "sidecar-rollout"

log = logging.getLogger(PROGRAM)

# Types


class Workload(NamedTuple):
    """What a rollout restarts; in a Skip it may be a Pod."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


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
    kinds: frozenset[str] = frozenset({"Deployment"})


@dataclass
class Candidate:
    """The concerned Pods of one owner."""

    oldest: datetime
    labels: dict[str, str]  # of one of them; what a selector matches is the same in all
    pods: list[str] = field(default_factory=list)
    sidecars: set[Sidecar] = field(default_factory=set)
    trouble: str = ""  # why one of the Pods does not run, e.g. CrashLoopBackOff

    def add(self, other: Candidate) -> None:
        self.oldest = min(self.oldest, other.oldest)
        self.pods += other.pods
        self.sidecars |= other.sidecars
        self.trouble = self.trouble or other.trouble


@dataclass
class Census:
    """What was seen while reading Pods, for hints and totals."""

    pods: int = 0
    newer: int = 0
    namespaces: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Skip:
    subject: Workload
    reason: str


@dataclass(frozen=True)
class Planned:
    workload: Workload
    pods_concerned: int
    pods: int
    sidecars: tuple[Sidecar, ...]
    oldest_pod: datetime
    trouble: str  # why it is unhealthy already; empty: it is not


class Outcome(enum.Enum):
    SUCCEEDED = "succeeded"
    COMPLETED_LATE = "completed late"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"  # it was patched, or was about to be, and nobody waited for the end
    NOT_STARTED = "not started"

    @property
    def snake_case(self) -> str:
        return self.value.replace(" ", "_")


GOOD = (Outcome.SUCCEEDED, Outcome.COMPLETED_LATE)
BAD = (Outcome.FAILED, Outcome.TIMED_OUT)


@dataclass(frozen=True)
class Result:
    planned: Planned
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""


class Event(NamedTuple):
    """What a worker tells the main thread about a workload; the first one only says that it has begun."""

    planned: Planned
    line: str = ""  # printed by kubectl
    child: Any = None  # kubectl's Popen, as soon as it runs
    result: Result | None = None


class CannotStart(Exception):
    """Why nothing was done; a line for a person."""


class ApiError(Exception):
    """An answer of the API server other than success, or none; status 0 is none."""

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


# Command line


class ArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line and exit code 2; the usage is for --help."""
        self.exit(2, f"{PROGRAM}: {printable(message)}; see --help\n")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, converted to what the rest of the program works with. Exits with 2 where one is wrong."""
    summary, _, epilog = __doc__.partition("Examples:")
    parser = ArgumentParser(
        prog=PROGRAM,
        description=summary,
        epilog="Examples:" + epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    switch = {"type": boolean, "nargs": "?", "const": True, "default": False, "metavar": "true|false"}
    names = {"type": name_pattern, "action": "append", "default": [], "metavar": "NAME"}

    add = parser.add_argument_group("which workloads (those marked * may be repeated and take wildcards)").add_argument
    add("--sidecar-container-name", required=True, help="* a container or native sidecar of this name", **names)
    add("--include-namespace", help="* only in these namespaces", **names)
    add("--exclude-namespace", help="* not in these, which wins", **names)
    add("--selector", "-l", type=filled, help="label selector on Pods, as kubectl takes it")
    before = "only Pods created before this; without a zone it is UTC (default: now)"
    add("--only-started-before", type=moment, metavar="TIME", help=before)
    add("--exclude-deployment", "--exclude-deployments", help="no Deployments", **switch)
    add("--include-statefulset", "--include-statefulsets", help="StatefulSets too", **switch)
    add("--include-daemonset", "--include-daemonsets", help="DaemonSets too", **switch)

    add = parser.add_argument_group("how").add_argument
    add("--confirm", help="do it; without it nothing is changed", **switch)
    add("--parallel-rollouts", type=positive, default=1, metavar="N", help="workloads at a time (default: 1)")
    limit = "a rollout's time, like 90s or 1h30m (default: 300s)"
    add("--timeout", type=duration, default="300s", metavar="DURATION", help=limit)
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
    if not options.kinds:
        parser.error("--exclude-deployment leaves nothing: add --include-statefulset or --include-daemonset")
    if options.include_namespace and set(options.include_namespace) <= set(options.exclude_namespace):
        parser.error("each --include-namespace is also an --exclude-namespace, which wins: nothing is left")
    options.rollout_reason = options.rollout_reason or f"Update sidecars {listed(options.sidecar_container_name)}"
    return options


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


def is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def moment(text: str) -> datetime:
    """A point in time with a zone. dateutil fills in what is missing, from today: so ask it twice, from two days."""
    import warnings

    from dateutil import parser

    wanted = "a time with year, month and day like '2026-05-01 13:00'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an unknown zone such as 'CEST' would silently be read as none
            one, other = (parser.parse(text, default=datetime(*day)) for day in ((2001, 2, 3), (2002, 3, 4)))
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


# Logging


def printable(text: str) -> str:
    """One line without control characters: what a cluster says must not steer the terminal that shows it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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
            try:
                columns = os.get_terminal_size(self.stream.fileno()).columns
            except OSError:
                columns = 80
            self.write("\r\033[K" + self.text[: columns - 1])

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
        handler.setFormatter(json_formatter("%(asctime)s %(levelname)s %(message)s"))
    else:
        handler.setFormatter(TextFormatter(colored=handler.on_terminal and not os.environ.get("NO_COLOR")))
    logging.raiseExceptions = False  # a closed standard error is no reason to stop
    logging.captureWarnings(True)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    log.setLevel(level.upper())
    return handler


def json_formatter(fields: str) -> logging.Formatter:
    from pythonjsonlogger.json import JsonFormatter

    return JsonFormatter(
        fields,
        rename_fields={"asctime": "time", "levelname": "level"},
        datefmt="%Y-%m-%dT%H:%M:%S%z",
        json_default=str,
        json_ensure_ascii=True,
    )


# Threads


class Abandoned(BaseException):
    """Raised in a worker when nobody waits for it any more: whatever it is about to do, it must not."""


def drain(items: Iterable, work: Callable[[Any, Callable], None], threads: int, stopping: Sequence = ()) -> Iterator:
    """Works on items in daemon threads, in their order, and yields what `work(item, tell)` tells, as it comes.

    Yields None about twice a second when nothing was told. Nothing new starts once `stopping` is not empty. What
    `work` raises is raised here. Once the iteration is left early, `tell` raises Abandoned in the threads.
    """
    items = list(items)
    todo: queue.SimpleQueue = queue.SimpleQueue()
    told: queue.SimpleQueue = queue.SimpleQueue()
    closed: list[bool] = []
    for item in items:
        todo.put(item)

    def tell(news: Any) -> None:
        if closed:
            raise Abandoned
        told.put(news)

    def worker() -> None:
        try:
            while not (stopping or closed):
                work(todo.get_nowait(), tell)
        except (queue.Empty, Abandoned):
            pass
        except BaseException as error:
            told.put(error)
        told.put(worker)  # this one is done

    running = min(threads, len(items))
    for _ in range(running):
        threading.Thread(target=worker, daemon=True).start()
    try:
        while running:
            try:
                news = told.get(timeout=0.5)
            except queue.Empty:
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
ATTEMPTS = 5
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

    def __init__(self, configuration: Any, context: str | None) -> None:
        from kubernetes.client import ApiClient

        self.configuration = configuration
        self.context = context  # by its name, as the current one may change while this runs; None: in-cluster
        self.pool = ApiClient(configuration).rest_client.pool_manager
        self.answered = False  # a server that has not answered yet is not there, rather than in trouble

    def get(self, path: str, query: dict | None = None, accept: str = JSON) -> dict:
        return decoded(self.request("GET", path, query=query, accept=accept))

    def request(self, method: str, path: str, **parts: Any) -> bytes:
        """The body of a successful answer. ApiError for any other, after retries: all that is sent may be repeated."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self.send(method, path, **parts)
            except ApiError as error:
                if attempt == ATTEMPTS or error.status not in RETRIED or not self.answered:
                    raise
                seconds = error.retry_after or random.uniform(0.5, 1.0) * 2 ** (attempt - 1) / 2
                log.debug("trying again", extra={"request": f"{method} {path}", "reason": str(error), "in": seconds})
                time.sleep(min(seconds, 30))
        raise AssertionError("unreachable")

    def send(
        self, method: str, path: str, query: dict | None = None, body: dict | None = None, accept: str = JSON
    ) -> bytes:
        """One request. ApiError says in one line what went wrong."""
        from urllib.parse import urlencode

        import urllib3

        url = self.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": accept, "User-Agent": f"{PROGRAM}/{VERSION}"}
        if body is not None:
            headers["Content-Type"] = STRATEGIC_MERGE if method == "PATCH" else JSON
        authorization = self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if authorization:
            headers["Authorization"] = authorization
        try:
            response = self.pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=urllib3.Timeout(connect=10, read=60 if self.answered else 10),
                retries=False,
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"no answer from {self.configuration.host}: {cause_of(error)}") from error
        self.answered = True
        if 200 <= response.status < 300:
            return response.data
        retry_after = response.headers.get("Retry-After", "")
        raise ApiError(
            response.status, status_message(response), float(retry_after) if retry_after.isdecimal() else 0.0
        )

    def pods(self, namespaces: Sequence[str], selector: str | None) -> Iterator[dict]:
        """Every Pod of the namespaces (of all where none is named), read in pages; each is dropped once yielded."""
        for path in [f"/api/v1/namespaces/{name}/pods" for name in namespaces] or ["/api/v1/pods"]:
            query = {"limit": PAGE, **({"labelSelector": selector} if selector else {})}
            while True:
                page = yield from items_of(self.request("GET", path, query=query).decode("utf-8", "replace"))
                token = page.get("continue")
                if not token:
                    break
                query["continue"] = token

    def controller_of_replica_set(self, owner: Owner) -> Owner | None:
        """A ReplicaSet's controller; None where it has none or is gone. Metadata only: the rest may be large."""
        try:
            path = f"/apis/apps/v1/namespaces/{owner.namespace}/replicasets/{owner.name}"
            metadata = self.get(path, accept=METADATA_ONLY)["metadata"]
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return controller_of(metadata)

    def workload(self, workload: Workload) -> dict | None:
        """The workload as it is now; None where there is none."""
        try:
            return self.get(path_of(workload))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def patch_template(self, workload: Workload, annotations: dict[str, str]) -> None:
        """Changes the Pod template's annotations, which makes the controller replace the Pods."""
        body = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
        self.request("PATCH", path_of(workload), query={"fieldManager": PROGRAM}, body=body)

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


def path_of(workload: Workload) -> str:
    return f"/apis/apps/v1/namespaces/{workload.namespace}/{KINDS[workload.kind].plural}/{workload.name}"


def decoded(body: bytes | str) -> dict:
    """A JSON object. ApiError for anything else."""
    try:
        value = json.loads(body)
    except ValueError:
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
    except (ValueError, IndexError):
        raise ApiError(200, f"expected a list in JSON, got one that breaks off after {position} characters") from None
    envelope = decoded(text[:start] + text[position:] if start >= len('"items":[') else text)
    if not isinstance(envelope.get("items"), list) or not isinstance(envelope.get("metadata"), dict):
        raise ApiError(200, f"expected a list of Pods, got {text[:80]!r}")
    yield from envelope["items"]  # empty, unless the list was written in another way than API servers do
    return envelope["metadata"]


def status_message(response: Any) -> str:
    """What an answer other than success says: the API server's own words where it has some."""
    try:
        message = decoded(response.data).get("message")
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
    path = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [os.path.expanduser(part) for part in path.split(os.pathsep) if part]
    if kubeconfig or context or any(map(os.path.exists, files)):
        return Cluster(configuration, load_kubeconfig(configuration, files, context))
    try:
        load_incluster_config(configuration)
    except ConfigException:
        raise CannotStart(f"no cluster: {path} does not exist; name a kubeconfig with --kubeconfig") from None
    return Cluster(configuration, None)


def load_kubeconfig(configuration: Any, files: list[str], context: str | None) -> str:
    """Fills in the configuration and returns the context's name. CannotStart where that cannot be done."""
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import KubeConfigLoader
    from kubernetes.config.kube_config import KubeConfigMerger

    named = os.pathsep.join(files)
    try:
        for path in filter(os.path.exists, files) if len(files) > 1 else files:
            open(path).close()
        merger = KubeConfigMerger(named)
        if merger.config is None:
            raise CannotStart(f"no cluster: {named} does not exist; name a kubeconfig with --kubeconfig")
        known = [entry["name"] for entry in merger.config.value.get("contexts") or ()]
        name = context or merger.config.value.get("current-context")
        if name not in known:
            which = f"context {name!r} is not in {named}" if name else f"{named} has no current context"
            raise CannotStart(f"{which}; --context may be {listed(known, 'or') or 'nothing: there is none'}")
        loader = KubeConfigLoader(merger.config, name, config_base_path=None, config_persister=merger.save_changes)
        loader.load_and_set(configuration)
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
    return name


# Before anything is changed


def check_rights(cluster: Cluster, kinds: Iterable[str], namespaces: Sequence[str], confirm: bool) -> None:
    """CannotStart, naming what is missing, where the user may not do what is about to be done."""
    rights = []
    for namespace in namespaces or [""]:
        rights.append(Right("list", "", "pods", namespace))
        if "Deployment" in kinds:
            rights.append(Right("get", "apps", "replicasets", namespace))
        for kind in sorted(kinds):
            verbs = ("get", "patch", "watch") if confirm else ("get",)  # kubectl rollout status watches
            rights += [Right(verb, "apps", KINDS[kind].plural, namespace) for verb in verbs]
    missing = [str(right) for right, allowed in each(rights, cluster.may).items() if not allowed]
    if missing:
        hint = "" if namespaces else "; or name your namespaces with --include-namespace"
        raise CannotStart(f"missing rights: {', '.join(sorted(missing))}; ask for them (the README lists them){hint}")


def find_kubectl(path: str) -> str:
    """The path of a kubectl that runs. CannotStart where there is none."""
    import subprocess

    found = shutil.which(path)
    hint = "install it (https://kubernetes.io/docs/tasks/tools/) or name it with --kubectl"
    if not found:
        raise CannotStart(f"no kubectl: {path!r} is not found or cannot be executed; {hint}")
    try:
        version = subprocess.run(
            [found, "version", "--client"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStart(f"{found} does not run: {cause_of(error)}; {hint}") from None
    if version.returncode:
        raise CannotStart(f"{found} does not run: {last_line(version.stderr) or version.returncode}; {hint}")
    return found


# Selecting: pure functions; a "no" is a Skip, which the report prints


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


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
    census = Census()
    for pod in pods:
        census.pods += 1
        try:
            owner, candidate = concerned(pod, filters, census)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ApiError(200, f"expected a Pod, got {json.dumps(pod)[:80]}: {error!r}") from None
        if candidate is None:
            continue
        if owner in candidates:
            candidates[owner].add(candidate)
        else:
            candidates[owner] = candidate
    return candidates, census


def concerned(pod: dict, filters: Filters, census: Census) -> tuple[Owner, Candidate] | tuple[None, None]:
    """A Pod with its owner if it is one to restart, else twice None."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    census.namespaces.add(metadata["namespace"])
    containers = sidecars_of(spec)
    census.containers.update(container.name for container in containers)
    sidecars = {container for container in containers if matches(container.name, filters.sidecars)}
    if not sidecars or not is_chosen(metadata["namespace"], filters):
        return None, None
    if metadata.get("deletionTimestamp") or status.get("phase") in ("Succeeded", "Failed"):
        return None, None
    started = min(map(parse_time, filter(None, (metadata["creationTimestamp"], status.get("startTime")))))
    if started >= filters.started_before:
        census.newer += 1
        return None, None
    owner = controller_of(metadata) or Owner("", "", metadata["namespace"], metadata["name"])
    candidate = Candidate(started, metadata.get("labels") or {}, [metadata["name"]], sidecars, trouble_of(status))
    return owner, candidate


def sidecars_of(spec: dict) -> list[Sidecar]:
    """The containers that run beside each other: ordinary ones, and init containers that are native sidecars."""
    natives = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    return [
        Sidecar(container["name"], container.get("image", ""), native)
        for native, found in ((False, spec["containers"]), (True, natives))
        for container in found
    ]


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def controller_of(metadata: dict) -> Owner | None:
    """The owner that is marked as controller, which need not be the first."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            group = reference["apiVersion"].rpartition("/")[0]
            return Owner(group, reference["kind"], metadata["namespace"], reference["name"])
    return None


STUCK = ("CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError")


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


def reason_to_skip(obj: dict | None) -> str | None:
    """Why a patch would not restart this workload, with the next step; None: it would."""
    if obj is None:
        return "is gone"
    if obj["metadata"].get("deletionTimestamp"):
        return "is being deleted"
    if obj["spec"].get("paused"):
        return "is paused; resume it first (kubectl rollout resume)"
    if (obj["spec"].get("updateStrategy") or {}).get("type") == "OnDelete":
        return "its updateStrategy is OnDelete; delete its Pods by hand, one after the other"
    return None


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
    candidates: dict[Owner, Candidate], kinds: Iterable[str], cluster: Cluster
) -> tuple[dict[Workload, Candidate], list[Skip]]:
    """The candidates by the workload that is to be restarted for them, and those that none is."""
    found: dict[Workload, Candidate] = {}
    skips: list[Skip] = []
    replica_sets = [owner for owner in candidates if owner.kind == "ReplicaSet" and owner.group in APPS]
    controllers = each(replica_sets, cluster.controller_of_replica_set)
    for owner, candidate in candidates.items():
        owner = controllers.get(owner) or owner
        workload = Workload(owner.kind, owner.namespace, owner.name)
        reason = reason_to_skip_owner(owner, kinds)
        if reason is None and workload in found:
            found[workload].add(candidate)
        elif reason is None:
            found[workload] = candidate
        elif owner.kind in KINDS and owner.group in APPS:
            skips.append(Skip(workload, reason))
        else:
            skips += [Skip(Workload("Pod", owner.namespace, name), reason) for name in candidate.pods]
    return found, list(dict.fromkeys(skips))


def make_plan(
    found: dict[Workload, Candidate], objects: dict[Workload, dict | None]
) -> tuple[list[Planned], list[Skip]]:
    """What is to be rolled out, by namespace, kind and name, and the workloads that a patch would not restart."""
    plan, skips = [], []
    for workload, candidate in sorted(found.items(), key=lambda pair: (pair[0].namespace, pair[0].kind, pair[0].name)):
        obj = objects[workload]
        reason = reason_to_skip(obj)
        if reason is None and not selects(obj["spec"]["selector"], candidate.labels):
            reason = "its selector does not match its Pods; look at both"
        if reason:
            skips.append(Skip(workload, reason))
        else:
            plan.append(planned(workload, candidate, obj))
    return plan, skips


def planned(workload: Workload, candidate: Candidate, obj: dict) -> Planned:
    kind, concerned_pods = KINDS[workload.kind], len(candidate.pods)
    count = partial(counted, obj)
    wanted, available = count(kind.wanted), count(kind.available)
    trouble = f"{available} of {wanted} available" if available < wanted else ""
    return Planned(
        workload,
        concerned_pods,
        max(count(kind.existing), concerned_pods),
        tuple(sorted(candidate.sidecars)),
        candidate.oldest,
        candidate.trouble or trouble,
    )


def counted(obj: dict, path: str) -> int:
    """A count in an object; the API server leaves out those that are 0."""
    part, name = path.split(".")
    return (obj.get(part) or {}).get(name) or 0


# Rolling out


KUBECTL_GRACE = 60.0  # seconds beyond its timeout: a network that swallows packets can hold it up


class Kubectl:
    """kubectl, for its judgement whether a rollout succeeded."""

    def __init__(self, path: str, kubeconfig: str | None, context: str | None) -> None:
        self.command = [path]
        self.command += ["--kubeconfig", kubeconfig] if kubeconfig else []
        self.command += ["--context", context] if context else []

    def rollout_status(self, planned: Planned, seconds: float, tell: Callable[[Event], None]) -> tuple[int, str]:
        """Waits for a rollout; kubectl's exit code and the last line of its standard error.

        Its lines are told as they come. One that outlives its own timeout is killed.
        """
        import subprocess

        workload, errors = planned.workload, []
        child = subprocess.Popen(
            [*self.command, "rollout", "status", f"{KINDS[workload.kind].plural}/{workload.name}"]
            + ["--namespace", workload.namespace, "--timeout", f"{seconds:.3f}s"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for this program, which decides what becomes of its children
        )
        try:
            tell(Event(planned, child=child))
        except Abandoned:
            child.kill()
            raise

        def read(stream: Any, keep: list[str]) -> None:
            with stream:
                for line in filter(str.strip, stream):
                    keep[:] = [line.strip()]
                    tell(Event(planned, line=line.strip()))

        readers = [
            threading.Thread(target=read, args=(stream, keep), daemon=True)
            for stream, keep in ((child.stdout, []), (child.stderr, errors))
        ]
        for reader in readers:
            reader.start()
        deadline = time.monotonic() + seconds + KUBECTL_GRACE
        for reader in readers:
            reader.join(max(deadline - time.monotonic(), 0))
        try:
            return child.wait(max(deadline - time.monotonic(), 0.1)), "".join(errors)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return 1, "kubectl did not come back after its timeout"


@dataclass(frozen=True)
class Rollout:
    """How each workload is rolled out; called by a worker with one of the plan."""

    cluster: Cluster
    kubectl: Kubectl
    timeout: float
    annotation_prefix: str
    reason: str

    def __call__(self, planned: Planned, tell: Callable[[Event], None]) -> None:
        tell(Event(planned))
        began = time.monotonic()
        try:
            outcome, message = self.roll_out(planned, tell)
        except Exception as error:
            log.debug("rollout broke off", exc_info=True, extra={"workload": str(planned.workload)})
            outcome, message = Outcome.FAILED, str(error) or repr(error)
        if outcome in BAD and planned.trouble:
            message += f" (was failing before: {planned.trouble})"
        tell(Event(planned, result=Result(planned, outcome, round(time.monotonic() - began, 1), message)))

    def roll_out(self, planned: Planned, tell: Callable[[Event], None]) -> tuple[Outcome, str]:
        reason = reason_to_skip(self.cluster.workload(planned.workload))
        if reason:
            return Outcome.SKIPPED, reason
        stamp = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        prefix = f"{self.annotation_prefix}.rollout."
        tell(Event(planned))  # raises where nobody waits any more
        self.cluster.patch_template(planned.workload, {f"{prefix}timestamp": stamp, f"{prefix}reason": self.reason})
        code, error = self.kubectl.rollout_status(planned, self.timeout, tell)
        if code == 0:
            return Outcome.SUCCEEDED, ""
        message = "; ".join(filter(None, (error or f"kubectl exited with {code}", self.told_by_kubernetes(planned))))
        return Outcome.TIMED_OUT if "timed out waiting for the condition" in error else Outcome.FAILED, message

    def told_by_kubernetes(self, planned: Planned) -> str:
        """Why a rollout does not get on, as the workload's own conditions have it; empty where they say nothing."""
        try:
            obj = self.cluster.workload(planned.workload)
        except ApiError:
            return ""  # what kubectl said is told anyway
        conditions = {c["type"]: c for c in (obj or {}).get("status", {}).get("conditions") or ()}
        for kind, status in (("ReplicaFailure", "True"), ("Progressing", "False")):
            condition = conditions.get(kind, {})
            if condition.get("status") == status:
                return condition.get("message", "")
        return ""

    def look_again(self, result: Result, tell: Callable[[Result], None]) -> None:
        """One more look at a rollout that timed out: has it succeeded meanwhile?"""
        try:
            code, _ = self.kubectl.rollout_status(result.planned, 1.0, lambda event: None)
        except OSError:
            code = 1  # kubectl cannot be run any more: nothing new is known
        late = Result(result.planned, Outcome.COMPLETED_LATE, result.seconds, f"took longer than {self.timeout:g}s")
        tell(late if code == 0 else result)


class Interrupted(Exception):
    """A signal came before anything was changed."""


class Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP: the first stops new rollouts, the second stops waiting."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.rolling_out = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup, or a shell's background job, wants it
                signal.signal(number, self.receive)

    def receive(self, number: int, frame: object) -> None:
        self.received.append(number)
        if not self.rolling_out:
            raise Interrupted

    @property
    def exit_code(self) -> int:
        return 128 + self.received[0] if self.received else 0

    @property
    def stop_waiting(self) -> bool:
        return len(self.received) > 1


def roll_out_all(plan: list[Planned], rollout: Rollout, threads: int, interrupts: Interrupts, report: Report) -> None:
    """Rolls out the plan, some workloads at a time, and reports each result; every one of the plan gets one."""
    interrupts.rolling_out = True
    not_started = {planned.workload: planned for planned in plan}
    in_flight: dict[Workload, Event] = {}  # the last event that has kubectl's process, or none
    timed_out: list[Result] = []
    told_to_stop = False
    for event in drain(plan, rollout, threads, interrupts.received):
        if event is not None:
            not_started.pop(event.planned.workload, None)
            take(event, in_flight, timed_out, report)
        if interrupts.received and not told_to_stop:
            told_to_stop = True
            log.warning("interrupted: nothing new starts; again to stop waiting", extra={"in_flight": len(in_flight)})
        if interrupts.stop_waiting:
            break
        report.show_progress(list(in_flight))
    for event in in_flight.values():
        if event.child:
            event.child.kill()
        report.finish(Result(event.planned, Outcome.INTERRUPTED, message=how_to_look(event.planned.workload)))
    look_again_at(timed_out, rollout, threads, interrupts, report)
    for planned in not_started.values():
        report.finish(Result(planned, Outcome.NOT_STARTED, message="interrupted"))


def take(event: Event, in_flight: dict[Workload, Event], timed_out: list[Result], report: Report) -> None:
    """Books what a worker told."""
    workload, result = event.planned.workload, event.result
    if result is None:
        if event.child or workload not in in_flight:
            in_flight[workload] = event
        if event.line:
            log.info("kubectl", extra={"workload": str(workload), "line": event.line})
        return
    del in_flight[workload]
    if result.outcome is Outcome.TIMED_OUT:
        log.warning("rollout timed out, it may still succeed", extra=facts(result))
        timed_out.append(result)
    else:
        report.finish(result)


def look_again_at(
    timed_out: list[Result], rollout: Rollout, threads: int, interrupts: Interrupts, report: Report
) -> None:
    """After the last rollout: those that timed out may have succeeded meanwhile."""
    pending = {result.planned.workload: result for result in timed_out}
    if not interrupts.stop_waiting:
        for result in filter(None, drain(timed_out, rollout.look_again, threads)):
            report.finish(result)
            del pending[result.planned.workload]
            if interrupts.stop_waiting:
                break
    for result in pending.values():
        report.finish(result)


def how_to_look(workload: Workload) -> str:
    target = f"{workload.kind.lower()}/{workload.name}"
    return f"not waited for; look with: kubectl rollout status {target} --namespace {workload.namespace}"


# Reporting


def listed(names: Sequence[str], word: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


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


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need, two spaces apart."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


class Report:
    """Counts, prints to standard output as text or JSON lines, and computes the exit code."""

    def __init__(self, as_json: bool, progress: ProgressLine) -> None:
        self.as_json, self.progress = as_json, progress
        self.began = time.monotonic()
        self.planned: list[Planned] = []
        self.skips: list[Skip] = []
        self.outcomes: Counter[Outcome] = Counter()
        self.unsuccessful: list[Result] = []
        self.json_log = logging.getLogger(f"{PROGRAM}.result")
        if as_json:
            sys.stdout.reconfigure(errors="backslashreplace")
            handler = logging.StreamHandler(sys.stdout)
            handler.setFormatter(json_formatter("%(record)s"))
            self.json_log.handlers, self.json_log.propagate = [handler], False
            self.json_log.setLevel(logging.INFO)

    def record(self, record: str, **fields: Any) -> None:
        if self.as_json:
            self.progress.clear()
            self.json_log.info({"record": record, **fields})
            self.progress.draw()

    def print(self, text: str = "") -> None:
        if not self.as_json:
            try:
                print(text, flush=True)
            except OSError:  # nobody reads any more (| head): the rollouts matter, not the text
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def show_plan(self, plan: list[Planned], skips: list[Skip], census: Census) -> None:
        """The plan as a table, or as JSON; below it the skipped by reason and the totals."""
        self.planned, self.skips = plan, skips
        for skip in skips:
            level = logging.INFO if skip.reason == BARE else logging.DEBUG
            log.log(level, "left out", extra={"workload": str(skip.subject), "reason": skip.reason})
        now = datetime.now(timezone.utc)
        rows = [["KIND", "NAMESPACE", "NAME", "PODS", "SIDECAR", "OLDEST", "STATE"]]
        for one in plan:
            self.record(
                "plan",
                **one.workload._asdict(),
                pods_concerned=one.pods_concerned,
                pods=one.pods,
                sidecars=[sidecar._asdict() for sidecar in one.sidecars],
                oldest_pod=one.oldest_pod.isoformat(),
                unhealthy=one.trouble,
            )
            state = f"unhealthy: {one.trouble}" if one.trouble else ""
            counts = f"{one.pods_concerned}/{one.pods}"
            age = human_duration((now - one.oldest_pod).total_seconds())
            rows.append([*one.workload, counts, sidecar_text(one.sidecars), age, state])
        if plan:
            self.print(table([row if any(r[-1] for r in rows[1:]) else row[:-1] for row in rows]))
        self.show_skips()
        newer = f", {census.newer} newer than the cut-off" if census.newer else ""
        pods = sum(one.pods_concerned for one in plan)
        what = f"{plural(len(plan), 'workload')} with {plural(pods, 'Pod')}" if plan else "Nothing"
        self.print(f"{what} to roll out; {plural(census.pods, 'Pod')} read{newer}.")

    def show_skips(self) -> None:
        for skip in self.skips:
            self.record("skip", **skip.subject._asdict(), reason=skip.reason)
        if self.skips:
            reasons = Counter((skip.subject.kind, skip.reason) for skip in self.skips)
            self.print("\nSkipped:")
            for (kind, reason), count in sorted(reasons.items()):
                self.print(f"  {plural(count, kind)}: {printable(reason)}")
        if self.skips or self.planned:
            self.print()

    def finish(self, result: Result) -> None:
        """Takes a workload's result."""
        self.outcomes[result.outcome] += 1
        if result.outcome not in GOOD:
            self.unsuccessful.append(result)
        self.record(
            "result",
            **result.planned.workload._asdict(),
            outcome=result.outcome.snake_case,
            seconds=result.seconds,
            message=result.message,
        )
        expected = result.outcome is Outcome.FAILED and not result.planned.trouble
        level = logging.INFO if result.outcome in GOOD else logging.ERROR if expected else logging.WARNING
        log.log(level, f"rollout {result.outcome.value}", extra=facts(result))

    def show_progress(self, running: Sequence[Workload]) -> None:
        failed = sum(self.outcomes[outcome] for outcome in BAD)
        names = ", ".join(f"{workload.namespace}/{workload.name}" for workload in running)
        elapsed = human_duration(time.monotonic() - self.began)
        failures = f"{failed} failed, " if failed else ""
        self.progress.show(f"{self.outcomes.total()}/{len(self.planned)} done, {failures}{elapsed}; running: {names}")

    def show_summary(self, exit_code: int, dry_run: bool = False) -> None:
        """A line for each workload that did not succeed, then counts and time."""
        self.progress.show("")
        seconds = round(time.monotonic() - self.began, 1)
        order = list(Outcome)
        for result in sorted(self.unsuccessful, key=lambda result: order.index(result.outcome)):
            self.print(f"{result.outcome.value}: {result.planned.workload}: {printable(result.message)}")
        counts = {outcome: self.outcomes[outcome] for outcome in order if self.outcomes[outcome]}
        if dry_run:
            self.print("Dry run: nothing was changed." + (" To do it, add --confirm=true." if self.planned else ""))
        elif counts:
            ended = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
            self.print(f"{plural(len(self.planned), 'workload')} in {human_duration(seconds)}: {ended}.")
        self.record(
            "summary",
            outcomes={outcome.snake_case: count for outcome, count in counts.items()},
            planned=len(self.planned),
            skipped=len(self.skips),
            seconds=seconds,
            exit_code=exit_code,
        )

    @property
    def exit_code(self) -> int:
        return 1 if any(self.outcomes[outcome] for outcome in BAD) else 0


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def last_line(text: str) -> str:
    return printable((text.strip().splitlines() or [""])[-1])


def warn_about_names(filters: Filters, census: Census) -> None:
    """Warns about names given by option that nothing in the cluster has: most often a typo."""
    import difflib

    for pattern in filters.sidecars:
        if not any(matches(name, [pattern]) for name in census.containers):
            close = difflib.get_close_matches(pattern, sorted(census.containers), cutoff=0.3)
            hint = f"did you mean {listed(close, 'or')}?" if close else f"{plural(census.pods, 'Pod')} read"
            log.warning(f"no Pod has a container named {pattern}; {hint}")
    literal = namespaces_to_list(filters)
    seen = [name for name in census.namespaces if not literal or name in literal]
    for pattern in filters.include_namespaces + (() if literal else filters.exclude_namespaces):
        if not any(matches(name, [pattern]) for name in seen):
            what = "no Pod that the selector matches" if filters.selector else "no Pod"
            log.warning(f"namespace {pattern} holds {what}; is the name right?")


# The table of contents


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(argv)
    progress = set_up_logging(options.log_level, options.log_format == "json")
    interrupts = Interrupts()
    try:
        return run(options, progress, interrupts)
    except (CannotStart, ApiError) as error:
        log.debug("could not start", exc_info=True)
        log.error(f"could not start, nothing was changed: {error}")
        return 3
    except Interrupted:
        log.warning("interrupted; nothing was changed")
        return interrupts.exit_code
    except Exception as error:
        log.debug("unexpected error", exc_info=True)
        log.critical(f"unexpected error, please report it with the log of --log-level=debug: {error!r}")
        return 1 if interrupts.rolling_out else 3


def run(options: argparse.Namespace, progress: ProgressLine, interrupts: Interrupts) -> int:
    filters = Filters(
        sidecars=tuple(options.sidecar_container_name),
        started_before=options.only_started_before or datetime.now(timezone.utc),
        include_namespaces=tuple(options.include_namespace),
        exclude_namespaces=tuple(options.exclude_namespace),
        selector=options.selector,
        kinds=options.kinds,
    )
    log.info("looking for Pods", extra={"started_before": filters.started_before.isoformat(timespec="seconds")})
    kubectl_path = find_kubectl(options.kubectl)
    cluster = connect(options.kubeconfig, options.context, connections=max(options.parallel_rollouts, 8))
    namespaces = namespaces_to_list(filters)
    check_rights(cluster, filters.kinds, namespaces, options.confirm)

    candidates, census = read_candidates(cluster.pods(namespaces, filters.selector), filters)
    warn_about_names(filters, census)
    found, skipped_pods = find_workloads(candidates, filters.kinds, cluster)
    plan, skipped_workloads = make_plan(found, each(found, cluster.workload))
    report = Report(options.log_format == "json", progress)
    report.show_plan(plan, skipped_pods + skipped_workloads, census)

    if not options.confirm:
        report.show_summary(0, dry_run=True)
        return 0
    kubectl = Kubectl(kubectl_path, options.kubeconfig, cluster.context)
    rollout = Rollout(cluster, kubectl, options.timeout, options.annotation_prefix, options.rollout_reason)
    roll_out_all(plan, rollout, options.parallel_rollouts, interrupts, report)
    exit_code = interrupts.exit_code or report.exit_code
    report.show_summary(exit_code)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
