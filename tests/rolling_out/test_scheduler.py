"""The scheduler without a cluster: limits and reasons to stop, for any plan."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Collection
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import a_restart, a_result, a_rollout, a_task, a_workload, api_error
from texts import IN_A_ROW

LATE = "late"
SLOW = "slow"  # late, with a new Pod that is ready


class FakeCluster:
    """As much of the tool's Cluster as a rollout asks for, and what it saw."""

    def __init__(self, stuck: Collection[str] = ()) -> None:
        self.stuck = stuck  # workloads that keep their old Pods
        self.patched: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.connection = SimpleNamespace(kubectl_command=lambda *words: ["kubectl"], user="admin")

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def at_a_glance(self) -> FakeCluster:
        return self

    def latest_event(self, obj, reason) -> str:
        return ""

    def workload(self, ref, **parts) -> dict:
        return {
            "metadata": {"resourceVersion": "2"},
            "spec": {"template": {"spec": {"containers": []}}},
        }

    def owner_object(self, owner, pod) -> dict:
        return self.workload(owner)

    def pod_today(self, workload, obj, sample, number=0) -> dict:
        return obj["spec"]["template"]

    def patch_template(self, ref, annotations, version) -> dict:
        with self.lock:
            self.patched[ref.name] += 1
        return self.workload(ref)

    def pods_of(self, ref, obj) -> list:
        is_there = not self.patched[ref.name] or ref.name in self.stuck
        metadata = {"creationTimestamp": "2026-01-01T00:00:00Z"}
        if not is_there:
            metadata = {"deletionTimestamp": "x"}
        owner = {"apiVersion": "apps/v1", "kind": ref.kind, "name": ref.name, "controller": True}
        metadata |= {
            "name": f"{ref.name}-0",
            "uid": f"{ref.name}-0",
            "namespace": ref.namespace,
            "ownerReferences": [owner],
        }
        old = {"metadata": metadata, "spec": {"containers": [{"name": "x"}]}}
        if is_there:
            return [old]
        own = {key: metadata[key] for key in ("namespace", "ownerReferences")}
        own |= {"name": f"{ref.name}-1", "uid": f"{ref.name}-1"}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        return [old, {**old, "metadata": own, "status": status}]


class FakeKubectl:
    """Holds each rollout open until one more than allowed is in progress, or for 5 ms, in which it would be."""

    def __init__(self, outcomes: dict[str, str], allowed: int) -> None:
        self.outcomes, self.allowed = outcomes, allowed
        self.in_progress = self.most = 0
        self.services: dict[str, Collection[str]] = {}  # of each workload, if it has any
        self.busy: Counter[str] = Counter()  # how many rollouts behind a Service are in progress
        self.most_of_a_service = 0
        self.changed = threading.Condition()
        self.stop = threading.Event()

    def rollout_status(self, ref, seconds, stop) -> tuple[int, str]:
        with self.changed:
            self.in_progress += 1
            self.most = max(self.most, self.in_progress)
            services = self.services.get(ref.name, ())
            self.busy.update(services)
            self.most_of_a_service = max(self.most_of_a_service, *self.busy.values(), 0)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.in_progress > self.allowed, timeout=0.005)
            self.in_progress -= 1
            self.busy.subtract(services)
        errors = {
            "failed": "error: it exceeded its progress deadline",
            "timed_out": "error: timed out waiting for the condition",
        }
        outcome = self.outcomes[ref.name]
        return (1, errors[outcome]) if outcome in errors else (0, "")


class Silent:
    """A report that only books."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.results: list = []
        self.most_in_progress = 0

    def finish(self, result) -> None:
        self.results.append(result)

    def show_progress(self, in_progress, status) -> None:
        self.most_in_progress = max(self.most_in_progress, len(in_progress))


def run_all(
    tool, cluster, kubectl, plan, workers: int, *options: str, proven: bool = False
) -> list:
    """The results of a plan; `proven`: a new Pod was seen ready before."""
    rollout = a_rollout(tool, cluster, "--timeout=1s", *options)
    if proven:
        rollout.proven.set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool, "SETTLE", 0.1)  # else each that is rechecked takes ten seconds
        patch.setattr(
            tool.Restart, "rollout_status", lambda _, *parts: kubectl.rollout_status(*parts)
        )
        report = Silent()
        limit = rollout.options.max_failures
        scheduler = tool.Scheduler(rollout, report, workers, limit.number if limit else 0)
        scheduler.run(plan)
        assert report.most_in_progress <= workers
    return report.results


OUTCOMES = st.sampled_from(["succeeded", "succeeded", "failed", "timed_out"])
SERVICES = st.sampled_from([None, [], ["x"], ["y"], ["x", "y"]])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(OUTCOMES, st.booleans(), SERVICES), max_size=25),
    st.integers(1, 6),
    st.none() | st.integers(1, 4),
    st.booleans(),
)
def test_any_plan_keeps_its_limits(tool, workloads, workers, max_failures, are_only_late):
    """What is only slow (new Pods are ready) does not count; what kubectl calls failed does."""
    outcomes = {f"w{number}": outcome for number, (outcome, *_) in enumerate(workloads)}
    plan = []
    for number, (_, was_unhealthy, services) in enumerate(workloads):
        problem = "0 of 1 available" if was_unhealthy else ""
        plan.append(a_workload(tool, f"w{number}", problem=problem, services=services))
    late = ("timed_out", "failed")
    stuck = [] if are_only_late else [name for name in outcomes if outcomes[name] in late]
    cluster, kubectl = FakeCluster(stuck), FakeKubectl(outcomes, workers)
    kubectl.services = {workload.ref.name: workload.found.services or () for workload in plan}
    limit = [f"--max-failures={max_failures}"] if max_failures else []
    results = run_all(tool, cluster, kubectl, plan, workers, *limit)

    assert kubectl.most <= workers  # never more than N in progress
    assert kubectl.most_of_a_service <= 1
    assert set(cluster.patched.values()) <= {1}  # each patched at most once
    assert sorted(r.planned.ref.name for r in results) == sorted(outcomes)  # each in one outcome
    ended = {r.planned.ref.name: r.outcome.code for r in results}
    started = [name for name, outcome in ended.items() if outcome != "not_started"]
    assert sorted(started) == sorted(cluster.patched)
    for name in started:
        is_late = outcomes[name] in late and name not in stuck
        assert ended[name] == ("completed_late" if is_late else outcomes[name])
    counting = [name for name in started if name in stuck or outcomes[name] == "failed"]
    if len(started) < len(plan):
        assert len(counting) >= (max_failures or 5)
    # What completes late behind a Service is rechecked before the next one behind it starts
    certain = [name for name in counting if name in stuck or not kubectl.services[name]]
    if max_failures:
        assert len(certain) <= max_failures + workers - 1  # what is in progress may fail, too


@pytest.mark.parametrize(
    ("options", "reason"),
    [([], f"5 {IN_A_ROW}"), (["--max-failures=5"], "--max-failures=5 reached")],
)
def test_what_is_left_when_a_run_stops_is_no_success(tool, options, reason):
    plan = [a_workload(tool, f"w{number}") for number in range(7)]
    outcomes = {f"w{number}": "failed" for number in range(7)}
    results = run_all(tool, FakeCluster(outcomes), FakeKubectl(outcomes, 1), plan, 1, *options)
    left = [result for result in results if result.outcome.name == "NOT_STARTED"]
    assert [result.message for result in left] == [reason] * 2


def test_what_becomes_unhealthy_after_the_plan_counts_as_a_failure(tool):
    """A bad sidecar in one workload may be why the next one is short of Pods."""

    class Short(FakeCluster):
        def workload(self, ref, **parts) -> dict:
            found = super().workload(ref)
            found["spec"]["replicas"] = 2  # none is available
            return found

    plan = [a_workload(tool, f"w{number}") for number in range(7)]
    kubectl = FakeKubectl({f"w{number}": "failed" for number in range(7)}, 1)
    results = run_all(tool, Short(), kubectl, plan, 1)
    left = [result for result in results if result.outcome.name == "NOT_STARTED"]
    assert [result.message for result in left] == [f"5 {IN_A_ROW}"] * 2


@pytest.mark.parametrize("status", [0, 401, 403, 500])
def test_once_the_api_server_is_lost_nothing_more_is_started(tool, status, monkeypatch):
    """What is about one workload alone stops nothing."""
    monkeypatch.setattr(tool, "PATIENCE", 1.0)

    class Lost(FakeCluster):
        is_ready = staticmethod(lambda: False)

        def patch_template(self, ref, annotations, version) -> dict:
            if ref.name == "w1":
                raise api_error(tool, status, "no use", "WRITE")
            return super().patch_template(ref, annotations, version)

    plan = [a_workload(tool, f"w{number}") for number in range(4)]
    kubectl = FakeKubectl(dict.fromkeys(["w0", "w2", "w3"], "succeeded"), 1)
    results = run_all(tool, Lost(), kubectl, plan, 1)
    ended = {r.planned.ref.name: (r.outcome.code, r.message) for r in results}
    rest = ("not_started", "no use") if status in (0, 401) else ("succeeded", "")
    # Without a response, it may yet be patched.
    outcome = "not_started" if status == 401 else "failed"
    told = "no use" if status in (401, 403) else "it may have been restarted: no use"
    assert ended == {"w0": ("succeeded", ""), "w1": (outcome, told), "w2": rest, "w3": rest}


class Results:
    """A Report that keeps what is finished."""

    def __init__(self) -> None:
        self.results = []
        self.finish = self.results.append


@pytest.fixture
def idle(tool):
    """idle(*options): a Scheduler without workers, whose slots and events a test fills."""

    def make(*options: str):
        rollout = a_rollout(tool, FakeCluster(), *options)
        limit = rollout.options.max_failures
        found = tool.Scheduler(rollout, Results(), 0, limit.number if limit else 0)
        found.workers = 2
        rollout.proven.set()
        return found

    return make


def test_a_recheck_that_is_abandoned_keeps_its_result(tool, idle):
    earlier = a_result(tool, a_workload(tool), "TIMED_OUT", "late")
    scheduler = idle()
    assert scheduler.last_result(a_task(tool, earlier.planned, earlier)) is earlier
    begun = scheduler.last_result(a_task(tool, earlier.planned))
    assert begun.outcome.name == "INTERRUPTED"


def begin(tool, scheduler, name: str):
    """A rollout that has begun."""
    task = a_task(tool, a_workload(tool, name))
    scheduler.begun.append(task)
    scheduler.in_progress[task.planned.ref] = task
    return task


def end(tool, scheduler, task, outcome, message: str = "") -> str:
    """A rollout ends: why nothing else starts."""
    scheduler.in_progress[task.planned.ref] = task
    stamp = "2026" if message in (LATE, SLOW) else ""  # it may still complete
    result = a_result(tool, task.planned, outcome, message, stamp=stamp, is_slow=message == SLOW)
    scheduler.ended.put((task, result))
    scheduler.handle_result(1)
    return scheduler.signals.why_stopped().reason


def test_a_success_after_the_stop_does_not_start_anything_again(tool, idle):
    scheduler, names = idle(), iter("abcdefghijklmn")

    def ended(outcome) -> str:
        return end(tool, scheduler, begin(tool, scheduler, next(names)), outcome, "no")

    for _ in range(4):
        assert ended("FAILED") == ""
    assert ended("SUCCEEDED") == ""  # the row begins anew
    for outcome in ("LOST_SIDECAR", "INCOMPLETE", "STILL_DRIFTED"):
        assert ended(outcome) == ""
    assert ended("FAILED") == ""
    assert ended("SKIPPED") == ""
    assert ended("FAILED") == f"5 {IN_A_ROW}"
    assert ended("SUCCEEDED") == f"5 {IN_A_ROW}"


def test_a_row_is_that_in_which_the_rollouts_began(tool, idle):
    """One that succeeds and began in the middle parts them, whenever it ends."""
    scheduler = idle()
    *others, last = [begin(tool, scheduler, name) for name in "abcdefgh"]
    assert end(tool, scheduler, others[2], "SUCCEEDED") == ""
    for task in (*others[:2], *others[3:]):
        assert end(tool, scheduler, task, "FAILED", "no") == ""
    assert end(tool, scheduler, last, "FAILED", "no") == f"5 {IN_A_ROW}"


def test_late_ones_together_reach_a_limit_for_good(tool, idle):
    scheduler = idle("--max-failures=2")
    tasks = [begin(tool, scheduler, name) for name in "abcd"]
    for task, said in zip(tasks, ["", *["--max-failures=2 reached"] * 3], strict=True):
        assert end(tool, scheduler, task, "TIMED_OUT", LATE) == said
    for task in tasks:
        assert end(tool, scheduler, task, "COMPLETED_LATE") == "--max-failures=2 reached"


def test_what_is_slow_counts_once_it_was_rechecked(tool, idle):
    scheduler = idle("--max-failures=2")
    tasks = [begin(tool, scheduler, name) for name in "abc"]
    for task in tasks:
        assert end(tool, scheduler, task, "TIMED_OUT", SLOW) == ""
    for task, outcome in zip(tasks, ("TIMED_OUT", "COMPLETED_LATE", "TIMED_OUT"), strict=True):
        assert scheduler.signals.why_stopped().reason == ""
        said = end(tool, scheduler, task, outcome, "" if outcome == "COMPLETED_LATE" else SLOW)
    assert said == "--max-failures=2 reached"


def test_what_ends_while_the_gate_is_asked_may_stop_the_run(tool, idle, monkeypatch):
    """It is open, but the failure limit was reached meanwhile."""
    scheduler = idle("--max-failures=1")
    running = begin(tool, scheduler, "a")

    def is_open(gate) -> bool:
        scheduler.ended.put((running, a_result(tool, running.planned, "FAILED", "no")))
        return True

    monkeypatch.setattr(tool.Gate, "is_open", is_open)
    waiting = deque([a_task(tool, a_workload(tool, "b"))])
    scheduler.waiting = waiting
    scheduler.fill_slots()
    assert (len(waiting), scheduler.in_progress) == (1, {})
    assert scheduler.signals.why_stopped().reason == "--max-failures=1 reached"


def test_a_failed_recheck_is_no_second_failure(tool, idle):
    scheduler = idle("--max-failures=2")
    task = begin(tool, scheduler, "a")
    for _ in range(2):
        assert end(tool, scheduler, task, "TIMED_OUT", LATE) == ""
        scheduler.waiting = deque([task])
        scheduler.fill_slots()
    assert end(tool, scheduler, begin(tool, scheduler, "b"), "FAILED") == "--max-failures=2 reached"
    assert list(scheduler.rechecks) == [task] * 2


def test_a_kubectl_that_keeps_failing_is_given_up_at_the_timeout(tool, monkeypatch):
    """Although the API server answers."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rollout = a_rollout(tool, FakeCluster(), "--timeout=10m")

    def wait(seconds, until=bool) -> None:
        now[0] += seconds

    rollout.signals.wait = wait
    calls = []

    def fail(work, ref, seconds, stop) -> tuple[int, str]:
        calls.append(seconds)
        now[0] += 1
        return 1, "error: flag provided but not defined"

    monkeypatch.setattr(tool.Restart, "rollout_status", fail)
    ended = a_restart(tool, rollout, bool).wait()
    assert (ended[0].name, ended[1]) == ("NO_RESULT", "error: flag provided but not defined")
    assert calls[0] == 600 and calls[-1] == 1
    assert len(calls) < 150
    assert 1600 <= now[0] < 1660
