"""What makes a rollout one that one dares to start: order, canary, failure budget, questions, pause, opt-out, proof."""

from __future__ import annotations

import fcntl
import os
import pty
import shlex
import signal
import struct
import subprocess
import termios
import threading
from collections import Counter
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from cluster.manifests import container, pod, pod_spec, service, workload
from conftest import KUBECTL, a_planned, command, counts, options_of, unchecked
from hypothesis import given, settings
from hypothesis import strategies as st

CONFIRM = "--confirm=true"
TEXT = "--log-format=text"
DEBUG = "--log-level=debug"


def patched(cluster) -> list[str]:
    return [r.path.rpartition("/")[2] for r in cluster.server.requests if r.method == "PATCH"]


@pytest.fixture
def letters(cluster):
    """Deployments a to f, one Pod each."""
    for name in "abcdef":
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    return cluster


# Order


@pytest.fixture
def planned(tool):
    def make(state: str, pods: int, namespace: str, name: str):
        ref = tool.ObjectRef("Deployment", namespace, name, "apps")
        return a_planned(tool, ref=ref, pods=pods, state=tool.State(state))

    return make


def test_the_order_is_least_risky_first(tool, planned):
    wanted = [
        planned("unhealthy", 9, "z", "z"),
        planned("not serving", 1, "b", "x"),
        planned("not serving", 3, "a", "x"),
        planned("serving", 1, "a", "m"),
        planned("serving", 1, "b", "a"),  # the namespaces take turns ...
        planned("serving", 1, "a", "n"),
        planned("serving", 1, "b", "b"),
        planned("serving", 1, "a", "o"),  # ... as long as they have any
        planned("serving", 1, "a", "p"),
        planned("serving", 2, "a", "a"),
    ]
    assert tool.in_rollout_order(wanted[::-1]) == wanted


WORDS = st.text("ab", min_size=1, max_size=2)
STATES = st.sampled_from(["unhealthy", "not serving", "serving"])


@given(
    st.lists(st.tuples(STATES, st.integers(1, 3), WORDS, WORDS), unique_by=lambda row: row[2:]),
    st.randoms(),
)
def test_the_order_is_the_same_for_the_same_cluster(tool, rows, chance):
    def make(row):
        ref = tool.ObjectRef("Deployment", *row[2:])
        return a_planned(
            tool, ref=ref, pods=row[1], state=tool.State(row[0]), oldest_pod=datetime.min
        )

    plan = [make(row) for row in rows]
    mixed = list(plan)
    chance.shuffle(mixed)
    ordered = tool.in_rollout_order(plan)
    assert ordered == tool.in_rollout_order(mixed)
    assert sorted(map(id, ordered)) == sorted(map(id, plan))
    ranks = [(list(tool.State).index(one.state), one.pods) for one in ordered]
    assert ranks == sorted(ranks)
    for rank in set(ranks):
        names = [one.ref.namespace for one, its in zip(ordered, ranks, strict=True) if its == rank]
        for index in range(1, len(names)):
            if names[index] == names[index - 1]:  # only where no other namespace has one left
                assert set(names[index:]) == {names[index]}


def test_an_inactive_half_goes_before_its_active_one(cluster, run):
    """Blue/green: the same app twice, and a Service that selects one of them."""
    for name in ("blue", "green"):
        template = workload("Deployment", name, replicas=2)
        template["spec"]["template"]["metadata"]["labels"] = {"app": name, "half": name}
        cluster.create("shop", template)
    cluster.create("shop", service("web", half="blue"))
    cluster.create(
        "shop",
        workload("Deployment", "z-broken", pod_spec(container("app", "broken:1")), replicas=4),
    )
    cluster.settle()
    cluster.wait_for(
        lambda: len(cluster.get("EndpointSlice", "shop", "web-slice")["endpoints"]) == 2
    )
    ended = run(cluster)
    assert [(r["name"], r["state"]) for r in ended.of("plan")] == [
        ("z-broken", "unhealthy"),
        ("green", "not_serving"),
        ("blue", "serving"),
    ]
    table = run(cluster, TEXT).stdout.splitlines()
    assert [row.split("  ")[-1].strip() for row in table[1:6]] == [
        "STATE",
        "unhealthy",
        "ImagePullBackOff",
        "not serving",
        "serving",
    ]


def test_without_the_permission_to_endpoint_slices_all_count_as_serving(letters, run):
    rules = [
        {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["get"], "apiGroups": ["apps"], "resources": ["*"]},
    ]
    ended = run(letters.kubeconfig_of("viewer", rules))
    assert {r["state"] for r in ended.of("plan")} == {"serving"}
    assert (
        ended.stderr.count("cannot list EndpointSlices: every healthy workload counts as serving")
        == 1
    )


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ({"ready": True}, "serving"),
        ({"ready": False, "serving": True, "terminating": True}, "serving"),
        ({}, "serving"),
        ({"ready": False}, "not_serving"),
        ({"ready": False, "serving": False}, "not_serving"),
    ],
)
def test_a_ready_or_serving_endpoint_makes_it_serving(letters, run, conditions, state):
    (found,) = letters.pods("shop", "a")
    target = {"kind": "Pod", "name": found["metadata"]["name"], "namespace": "shop"}
    endpoint = {"addresses": ["10.0.0.1"], "conditions": conditions, "targetRef": target}
    letters.create(
        "shop", {"kind": "EndpointSlice", "metadata": {"name": "a-x"}, "endpoints": [endpoint]}
    )
    states = {r["name"]: r["state"] for r in run(letters).of("plan")}
    assert states == dict.fromkeys("abcdef", "not_serving") | {"a": state}


# How far


@pytest.mark.parametrize(
    ("limit", "count"), [("2", 2), ("99", 6), ("1%", 1), ("50%", 3), ("51%", 4), ("100%", 6)]
)
def test_a_canary_is_the_first_of_the_plan(letters, run, limit, count):
    ended = run(letters, CONFIRM, f"--max-rollouts={limit}", "--parallel-rollouts=6")
    assert ended.code == 0
    assert [name for name, outcome in ended.outcomes.items() if outcome == "succeeded"]
    assert len(ended.outcomes) == 6
    assert sorted(patched(letters)) == list("abcdef")[:count]
    beyond = {r["name"]: r["message"] for r in ended.of("result") if r["outcome"] == "not_started"}
    assert beyond == dict.fromkeys("abcdef"[count:], "not selected by --max-rollouts")


def test_a_dry_run_tells_how_far_a_canary_goes(letters, run):
    text = run(letters, TEXT, "--max-rollouts=25%").stdout
    assert (
        "\nTo roll out: 6 workloads (6 Pods).\n--max-rollouts selects the first 2.\nScanned 6 Pods.\n"
        in text
    )
    rows = [line.split()[1] for line in text.splitlines()[2:9]]
    mark = "not"
    assert rows == [
        "deployment/a",
        "deployment/b",
        mark,
        *(f"deployment/{name}" for name in "cdef"),
    ]
    assert "--- not selected by --max-rollouts: ---" in text
    assert "max-rollouts" not in run(letters, TEXT, "--max-rollouts=6").stdout.split("To apply")[0]
    records = run(letters, "--max-rollouts=25%").of("plan")
    assert [(r["position"], r["selected"]) for r in records] == [(n, n <= 2) for n in range(1, 7)]


def test_the_command_to_resume_is_the_last_line_where_something_was_left_out(letters, run):
    for found in letters.pods("shop"):
        letters.backdate(found, 3600)
    canary = run(letters, TEXT, CONFIRM, "--max-rollouts=1")
    *_, hint, command = canary.stdout.splitlines()
    assert hint == "To resume, run:"
    options = [word for word in shlex.split(command)[2:] if not word.startswith("--max-rollouts")]
    rest = run(letters, *options).stdout
    assert "5 succeeded." in rest
    assert "To resume" not in rest
    assert "To resume" not in run(letters, *options).stdout


def test_many_that_were_not_started_share_a_line(cluster, run):
    for number in range(13):
        cluster.create("shop", workload("Deployment", f"web-{number:02}"))
    cluster.settle()
    ended = run(cluster, TEXT, CONFIRM, "--max-rollouts=1")
    first, reason = ended.stdout.partition("\nnot started:\n")[2].splitlines()[:2]
    names = ", ".join(f"Deployment shop/web-{number:02}" for number in range(1, 6))
    assert first == "  not selected by --max-rollouts:"
    assert reason == f"    {names} and 7 more (use --log-level=debug to list all)"
    assert "not started" not in ended.stderr
    all_of_them = run(cluster, TEXT, CONFIRM, "--max-rollouts=1", "--log-level=debug")
    assert all_of_them.stderr.count("rollout not started") == 12
    assert "more (use" not in all_of_them.stdout


def test_after_the_canary_the_same_command_resumes_where_it_ended(letters, run):
    for found in letters.pods("shop"):
        letters.backdate(found, 3600)
    cut_off = f"--only-started-before={datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    run(letters, CONFIRM, cut_off, "--max-rollouts=2")
    rest = run(letters, CONFIRM, cut_off)
    assert rest.planned == [f"shop/{name}" for name in "cdef"]
    assert patched(letters) == list("abcdef")


@pytest.mark.parametrize(("amount", "workers"), [("50%", 3), ("40%", 2), ("1%", 1), ("100%", 6)])
def test_parallel_rollouts_as_a_percentage_of_the_plan(letters, start, amount, workers):
    gate = threading.Event()
    held = [
        letters.fault(method="PATCH", path=f"deployments/{name}", release=gate) for name in "abcdef"
    ]
    running = start(letters, CONFIRM, f"--parallel-rollouts={amount}")
    assert all(fault.reached.wait(20) for fault in held[:workers])
    if workers < 6:
        assert not held[workers].reached.wait(
            1
        )  # one worker more would be there within milliseconds
    gate.set()
    assert running.finish().summary["outcomes"] == {"succeeded": 6}


def refuse(cluster, *names: str) -> None:
    for name in names:
        cluster.fault(
            method="PATCH", path=f"deployments/{name}", status=403, body={"message": "no"}
        )


def test_after_n_failures_nothing_new_starts(letters, run):
    refuse(letters, "b", "c")
    ended = run(letters, CONFIRM, "--max-failures=2")
    assert ended.code == 1
    assert [r["outcome"] for r in sorted(ended.of("result"), key=lambda r: r["name"])] == [
        "succeeded",
        "failed",
        "failed",
        *["not_started"] * 3,
    ]
    assert {r["message"] for r in ended.of("result") if r["outcome"] == "not_started"} == {
        "--max-failures=2 reached"
    }
    assert "--max-failures=2 reached: no new rollouts will start" in ended.stderr


def test_what_is_in_progress_is_waited_for_after_the_last_failure(letters, start):
    refuse(letters, "b")
    held = letters.fault(method="PATCH", path="deployments/a", release=threading.Event())
    running = start(letters, CONFIRM, "--max-failures=1", "--parallel-rollouts=2")
    assert held.reached.wait(20)
    running.wait_for_log(
        "--max-failures=1 reached: no new rollouts will start; waiting for 1 in progress"
    )
    held.release.set()
    ended = running.finish()
    assert ended.code == 1
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "failed"} | {
        f"shop/{name}": "not_started" for name in "cdef"
    }


def test_workloads_that_were_failing_before_do_not_count(cluster, run):
    for name in ("x", "y"):
        cluster.create("shop", workload("Deployment", name, pod_spec(container("app", "broken:1"))))
    cluster.create("shop", workload("Deployment", "well"))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--max-failures=1", "--timeout=1s")
    assert ended.outcomes == {
        "shop/x": "timed_out",
        "shop/y": "timed_out",
        "shop/well": "succeeded",
    }
    assert ended.code == 1


class FakeCluster:
    """As much of the tool's Cluster as a rollout asks for, and what it saw."""

    def __init__(self) -> None:
        self.patched: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.connection = SimpleNamespace(kubectl_command=lambda *words: "kubectl")

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def failed_create(self, ref, obj) -> str:
        return ""

    def workload(self, ref, quick=False) -> dict:
        return {
            "metadata": {"resourceVersion": "2"},
            "spec": {"template": {"spec": {"containers": []}}},
        }

    def pod_today(self, planned, obj) -> dict:
        return obj["spec"]["template"]

    def patch_template(self, ref, annotations, version) -> dict:
        with self.lock:
            self.patched[ref.name] += 1
        return self.workload(ref)

    def pods_of(self, ref, obj) -> list:
        metadata = (
            {"creationTimestamp": "2026-01-01T00:00:00Z"}
            if not self.patched[ref.name]
            else {"deletionTimestamp": "x"}
        )
        owner = {"apiVersion": "apps/v1", "kind": ref.kind, "name": ref.name, "controller": True}
        metadata |= {
            "name": f"{ref.name}-0",
            "namespace": ref.namespace,
            "ownerReferences": [owner],
        }
        return [{"metadata": metadata, "spec": {"containers": [{"name": "x"}]}}]


class FakeKubectl:
    """Holds each rollout open until one more than allowed is in progress, or for 5 ms, in which it would be."""

    def __init__(self, outcomes: dict[str, str], allowed: int) -> None:
        self.outcomes, self.allowed = outcomes, allowed
        self.in_progress = self.most = 0
        self.changed = threading.Condition()
        self.stop = threading.Event()

    def rollout_status(self, ref, seconds, tell, look) -> tuple[int, str]:
        tell("Waiting")
        with self.changed:
            self.in_progress += 1
            self.most = max(self.most, self.in_progress)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.in_progress > self.allowed, timeout=0.005)
            self.in_progress -= 1
        errors = {"failed": "error: no", "timed_out": "error: timed out waiting for the condition"}
        outcome = self.outcomes[ref.name]
        return (1, errors[outcome]) if outcome in errors else (0, "")


class Silent:
    """A report that only books."""

    def __init__(self) -> None:
        self.results: list = []
        self.most_in_progress = 0

    def finish(self, result) -> None:
        self.results.append(result)

    def show_progress(self, in_progress, hold) -> None:
        self.most_in_progress = max(self.most_in_progress, len(in_progress))


class NoInterrupts:
    def __init__(self) -> None:
        self.received: list[int] = []
        self.is_paused = False
        self.stop_starting = threading.Event()
        self.stop_waiting = threading.Event()


def run_all(tool, cluster, kubectl, plan, workers: int, *options: str) -> list:
    """The results of a plan."""
    now = datetime.now(timezone.utc)
    settings = options_of(tool, "--timeout=1s", *options)
    rollout = tool.Rollout(cluster, kubectl, NoInterrupts(), settings, began=now)
    report = Silent()
    tool.Scheduler(rollout, report, workers).run(plan)
    assert report.most_in_progress <= workers
    return report.results


OUTCOMES = st.sampled_from(["succeeded", "succeeded", "failed", "timed_out"])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(OUTCOMES, st.booleans()), max_size=25),
    st.integers(1, 6),
    st.none() | st.integers(1, 4),
)
def test_any_plan_keeps_its_limits(tool, workloads, workers, max_failures):
    outcomes = {f"w{number}": outcome for number, (outcome, _) in enumerate(workloads)}
    plan = [
        a_planned(tool, f"w{number}", unhealthy_reason="0 of 1 available" if was_unhealthy else "")
        for number, (_, was_unhealthy) in enumerate(workloads)
    ]
    cluster, kubectl = FakeCluster(), FakeKubectl(outcomes, workers)
    limit = [f"--max-failures={max_failures}"] if max_failures else []
    results = run_all(tool, cluster, kubectl, plan, workers, *limit)

    assert kubectl.most <= workers  # never more than N in progress
    assert set(cluster.patched.values()) <= {1}  # each patched at most once
    assert sorted(r.planned.ref.name for r in results) == sorted(outcomes)  # each in one outcome
    ended = {r.planned.ref.name: r.outcome.snake_case for r in results}
    started = [name for name, outcome in ended.items() if outcome != "not_started"]
    assert sorted(started) == sorted(cluster.patched)
    assert all(ended[name] == outcomes[name] for name in started)
    counting = [
        one.ref.name
        for one in plan
        if not one.unhealthy_reason and ended[one.ref.name] in ("failed", "timed_out")
    ]
    if max_failures is None:
        assert len(started) == len(plan) or len(counting) >= 5
    elif len(started) < len(plan):
        assert (
            max_failures <= len(counting) <= max_failures + workers - 1
        )  # what is in progress may fail, too
    else:
        assert len(counting) <= max_failures + workers - 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [([], "5 rollouts failed in a row"), (["--max-failures=5"], "--max-failures=5 reached")],
)
def test_what_is_left_when_a_run_stops_is_no_success(tool, options, reason):
    """Also if those that failed are complete when they are rechecked."""
    plan = [a_planned(tool, f"w{number}") for number in range(7)]
    kubectl = FakeKubectl({f"w{number}": "failed" for number in range(7)}, 1)
    results = run_all(tool, FakeCluster(), kubectl, plan, 1, *options)
    left = [result for result in results if result.outcome is tool.Outcome.NOT_STARTED]
    assert [result.stop_reason for result in left] == [reason] * 2


@pytest.mark.parametrize("status", [0, 401, 403, 500])
def test_once_the_api_server_is_lost_nothing_more_is_started(tool, status):
    """What is about one workload alone stops nothing."""

    class Lost(FakeCluster):
        def patch_template(self, ref, annotations, version) -> dict:
            if ref.name == "w1":
                raise tool.ApiError(status, "no use")
            return super().patch_template(ref, annotations, version)

    plan = [a_planned(tool, f"w{number}") for number in range(4)]
    kubectl = FakeKubectl(dict.fromkeys(["w0", "w2", "w3"], "succeeded"), 1)
    results = run_all(tool, Lost(), kubectl, plan, 1)
    ended = {r.planned.ref.name: (r.outcome.snake_case, r.message) for r in results}
    rest = ("not_started", "no use") if status in (0, 401) else ("succeeded", "")
    # Without a response, it may have been patched.
    outcome = "not_started" if status == 401 else "failed"
    assert ended == {"w0": ("succeeded", ""), "w1": (outcome, "no use"), "w2": rest, "w3": rest}


def test_a_run_that_is_resumed_at_any_moment_goes_on(tool):
    """The pause may end between two looks at it."""

    class Resumed(NoInterrupts):
        looks = 0

        @property
        def is_paused(self) -> bool:
            self.looks += 1
            return self.looks in (2, 3)  # while the second workload waits for its turn

        @is_paused.setter
        def is_paused(self, value: bool) -> None:
            pass

    plan = [a_planned(tool, name) for name in ("a", "b", "c")]
    kubectl = FakeKubectl(dict.fromkeys("abc", "succeeded"), 1)
    for looks in range(8):
        Resumed.looks = looks - 4
        rollout = tool.Rollout(
            cluster=FakeCluster(),
            kubectl=kubectl,
            interrupts=Resumed(),
            options=options_of(tool),
            began=datetime.now(timezone.utc),
        )
        report = Silent()
        tool.Scheduler(rollout, report, 1).run(plan)
        assert [r.outcome.snake_case for r in report.results] == ["succeeded"] * 3


# Questions


class Typed:
    """The tool on a pseudo-terminal, with somebody who answers its questions."""

    def __init__(self, cluster, *options: str) -> None:
        words, environment = command(cluster.kubeconfig, TEXT, "--confirm-each", *options)
        self.own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.process = subprocess.Popen(
            words,
            env={**environment, "TERM": "xterm"},
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def expect(self, text: str, times: int = 1) -> None:
        while self.text.count(text) < times:
            self.text += os.read(self.own, 65536).decode("utf-8", "replace")

    def answer(self, text: str | bytes) -> None:
        os.write(self.own, text if isinstance(text, bytes) else text.encode())

    def end(self) -> tuple[int, str]:
        while True:
            try:
                self.text += os.read(self.own, 65536).decode("utf-8", "replace")
            except OSError:
                break
        os.close(self.own)
        with self.process.stdout as stream:
            shown = stream.read()
        return self.process.wait(30), shown


QUESTION = "? [y]es/[n]o/[a]ll/[q]uit: "


def test_each_is_asked_about_one_at_a_time(letters):
    typed = Typed(letters, "--parallel-rollouts=3")
    for number, (name, answer) in enumerate(
        (("a", "y\n"), ("b", "N\n"), ("c", "yes\n"), ("d", "a\n")), 1
    ):
        typed.expect(QUESTION, number)
        assert typed.text.count(QUESTION) == number
        assert typed.text.endswith(f"Roll out Deployment shop/{name}{QUESTION}")
        typed.answer(answer)
    code, shown = typed.end()
    assert code == 0
    assert typed.text.count("shop       deployment/") == 4  # its plan line, once a workload
    assert "5 succeeded, 1 declined." in shown
    assert sorted(patched(letters)) == list("acdef")


def test_an_invalid_key_is_answered_with_the_valid_ones(letters):
    typed = Typed(letters)
    typed.expect(QUESTION)
    typed.answer("what\n")
    typed.expect("Answer y, n, a or q: ")
    typed.answer("\n")
    typed.expect("Answer y, n, a or q: ", 2)
    typed.answer("q\n")
    assert typed.end()[0] == 0
    assert patched(letters) == []


def test_what_is_no_text_is_no_answer(letters, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")
    typed = Typed(letters)
    typed.expect(QUESTION)
    typed.answer(b"y\xff\n")
    typed.expect("Answer y, n, a or q: ")
    typed.answer("q\n")
    code, shown = typed.end()
    assert code == 0
    assert patched(letters) == []
    assert "6 not started." in shown


def test_quit_starts_nothing_more(letters):
    typed = Typed(letters)
    typed.expect(QUESTION)
    typed.answer("y\n")
    typed.expect(QUESTION, 2)
    typed.answer("q\n")
    code, shown = typed.end()
    assert code == 0
    assert patched(letters) == ["a"]
    assert "1 succeeded, 5 not started." in shown
    assert "not started:\n  quit:\n    Deployment shop/b, " in shown


def test_the_end_of_input_is_quit(letters):
    typed = Typed(letters)
    typed.expect(QUESTION)
    typed.answer("\x04")
    code, shown = typed.end()
    assert code == 0
    assert patched(letters) == []
    assert "6 not started." in shown


def test_ctrl_c_at_the_question_ends_it(letters):
    typed = Typed(letters)
    typed.expect(QUESTION)
    typed.process.send_signal(signal.SIGINT)
    code, shown = typed.end()
    assert code == 130
    assert patched(letters) == []
    assert "6 not started." in shown
    assert not any("[q]uit" in line and "interrupted" in line for line in typed.text.splitlines())


def test_a_signal_just_before_the_wait_for_an_answer_is_noticed(tool, monkeypatch):
    """The handler has run, and no system call of this thread is interrupted."""
    own, theirs = pty.openpty()
    with open(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        interrupts = SimpleNamespace(received=[])
        scheduler = SimpleNamespace(interrupts=interrupts)
        threading.Timer(0.1, interrupts.received.append, [signal.SIGINT]).start()
        assert tool.Scheduler.read_line(scheduler) == ""
    os.close(own)


def test_the_differences_stand_above_the_question(letters):
    letters.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    typed = Typed(letters, "--only-drifted")
    typed.expect(QUESTION)
    assert "  istio-proxy  image  docker.io/istio/proxyv2:1.26.2 -> 1.27.0" in typed.text
    typed.answer("q\n")
    assert typed.end()[0] == 0


# Pause


def test_sigusr1_pauses_and_sigusr2_goes_on(letters, start):
    held = letters.fault(method="PATCH", path="deployments/a", release=threading.Event())
    after = letters.fault(path=r"deployments/b\?", method="PATCH", release=threading.Event())
    running = start(letters, CONFIRM, TEXT)
    assert held.reached.wait(20)
    running.signal(signal.SIGUSR1)
    running.wait_for_log("paused: no new rollouts will start")
    assert any(f"kill -USR2 {running.process.pid}" in line for line in running.lines)
    held.release.set()
    running.wait_for_log("Deployment shop/a: rollout succeeded")  # what was in flight has gone on
    assert not after.reached.wait(1)
    running.signal(signal.SIGUSR2)
    running.wait_for_log("resumed")
    assert after.reached.wait(20)
    after.release.set()
    assert running.finish().code == 0


def test_an_interrupt_ends_a_pause(letters, start):
    held = letters.fault(method="PATCH", path="deployments/a", release=threading.Event())
    running = start(letters, CONFIRM)
    assert held.reached.wait(20)
    running.signal(signal.SIGUSR1)
    running.wait_for_log("paused")
    running.signal(signal.SIGTERM)
    held.release.set()
    ended = running.finish(timeout=20)
    assert ended.code == 143
    assert ended.summary["outcomes"] == {"succeeded": 1, "not_started": 5}


# Opt-out and opt-in


@pytest.fixture
def annotated(cluster):
    """own: the workload has restart=never; template: its template has; other: restart=daily; none."""
    for name, value in (("own", "never"), ("other", "daily"), ("none", None)):
        template = workload("Deployment", name)
        if value:
            template["metadata"]["annotations"] = {"example.com/restart": value}
        cluster.create("shop", template)
    cluster.create(
        "shop", workload("Deployment", "template", annotations={"example.com/restart": "never"})
    )
    cluster.namespace("team", inject=True)
    cluster.create("team", workload("Deployment", "web"))
    cluster.settle()
    found = cluster.store.get("namespaces", "", "team")
    metadata = {**found["metadata"], "annotations": {"example.com/restart": "never"}}
    cluster.store.change("namespaces", found, metadata=metadata)
    return cluster


KEY = "annotation=example.com/restart"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ["none", "web", "other", "own", "template"]),
        ([f"--exclude-{KEY}=never"], ["none", "other"]),
        ([f"--exclude-{KEY}=n*"], ["none", "other"]),
        ([f"--exclude-{KEY}"], ["none"]),
        ([f"--include-{KEY}"], ["other", "own", "template"]),
        ([f"--include-{KEY}=d*", f"--include-{KEY}=never"], ["other", "own", "template"]),
        ([f"--include-{KEY}=never"], ["own", "template"]),
        ([f"--include-{KEY}", f"--exclude-{KEY}=never"], ["other"]),
        ([f"--exclude-{KEY}="], ["none", "web", "other", "own", "template"]),
    ],
)
def test_opt_in_and_opt_out(annotated, run, options, names):
    assert sorted(r["name"] for r in run(annotated, *options).of("plan")) == sorted(names)


def test_who_opted_out_is_told(annotated, run):
    ended = run(annotated, f"--exclude-{KEY}=never")
    assert ended.skipped == {
        "Deployment shop/own": "matches --exclude-annotation",
        "Deployment shop/template": "matches --exclude-annotation",
        "Deployment team/web": "its namespace matches --exclude-annotation",
    }
    assert (
        run(annotated, f"--include-{KEY}").skipped["Deployment shop/none"]
        == "does not match --include-annotation"
    )


def test_namespaces_are_read_only_when_an_exclusion_asks_for_it(annotated, run):
    run(annotated)
    run(annotated, f"--include-{KEY}")
    assert [
        r.path for r in annotated.server.requests if r.path.startswith("/api/v1/namespaces/team")
    ] == []
    run(annotated, f"--exclude-{KEY}")
    assert "/api/v1/namespaces/team" in [r.path for r in annotated.server.requests]


def test_who_opts_out_after_the_plan_was_made_is_skipped(letters, start):
    held = letters.fault(method="PATCH", path="deployments/a", release=threading.Event())
    running = start(letters, CONFIRM, f"--exclude-{KEY}=never", "--max-rollouts=2")
    assert held.reached.wait(20)
    letters.change(
        "Deployment", "shop", "b", {"metadata": {"annotations": {"example.com/restart": "never"}}}
    )
    held.release.set()
    ended = running.finish()
    assert ended.outcomes["shop/b"] == "skipped"
    assert patched(letters) == ["a"]


def test_a_namespace_that_is_gone_by_then_has_not_opted_out(cluster, start):
    cluster.namespace("preview", inject=True)
    for namespace in ("shop", "preview"):
        cluster.create(namespace, workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(
        path="/api/v1/namespaces/preview$", user_agent="sidecar-rollout", release=threading.Event()
    )
    running = start(cluster, "--exclude-annotation=example.com/restart=never")
    assert held.reached.wait(20)
    cluster.store.delete("namespaces", "", "preview")
    held.release.set()
    ended = running.finish()
    assert ended.code == 0
    assert ended.planned == ["preview/web", "shop/web"]


# Proof


def test_a_partition_leaves_old_pods_and_is_incomplete(cluster, run):
    partition = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    cluster.create("shop", workload("StatefulSet", "db", replicas=3, updateStrategy=partition))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--include-statefulset")
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "incomplete")
    assert result["message"] == "2 of 3 Pods not updated: StatefulSet partition is 2"
    assert ended.summary["pods"] == counts(1, 1, 1, 1)


def take_away(cluster, name: str, manager: str) -> None:
    """Somebody who owns the template writes it back as it was."""
    found = cluster.get("Deployment", "shop", name)
    template = {**found["spec"]["template"], "metadata": {"labels": {"app": name}}}
    metadata = dict(found["metadata"], generation=found["metadata"]["generation"] + 1)
    stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry = {
        "manager": manager,
        "operation": "Apply",
        "time": stamp,
        "fieldsV1": {"f:spec": {"f:template": {}}},
    }
    metadata["managedFields"] = [*found["metadata"]["managedFields"], entry]
    cluster.store.change(
        "deployments", found, metadata=metadata, spec={**found["spec"], "template": template}
    )


def test_an_annotation_that_is_taken_away_is_told_with_who_did_it(cluster, start):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    cluster.controllers.ready_after = 1.0
    running = start(cluster, CONFIRM, DEBUG)
    running.wait_for_log("Waiting for deployment")
    take_away(cluster, "web", "argocd-controller")
    ended = running.finish()
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "incomplete")
    assert (
        result["message"]
        == "2 of 2 Pods not updated: the rollout annotation was removed by field manager argocd-controller"
    )


EARLIER, PATCH, LATER = (f"2026-11-21T10:00:{second}Z" for second in ("00", "10", "11"))
OURS = {"manager": "sidecar-rollout", "time": PATCH}


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ([OURS], "the rollout annotation was removed"),
        (
            [OURS, {"manager": "argocd", "time": LATER}],
            "the rollout annotation was removed by field manager argocd",
        ),
        (
            [OURS, {"manager": "argocd", "time": PATCH}],
            "the rollout annotation was removed by field manager argocd",
        ),
        (
            [OURS, {"manager": "status", "time": LATER, "subresource": "status"}],
            "the rollout annotation was removed",
        ),
        ([{"manager": "old", "time": EARLIER}, OURS], "the rollout annotation was removed"),
    ],
)
def test_who_removed_the_annotation(tool, edits, told):
    def workload_with(edits: list, **annotations: str) -> dict:
        template = {"metadata": {"annotations": annotations}}
        return {"metadata": {"managedFields": edits}, "spec": {"template": template}}

    before = [edit for edit in edits if edit["time"] == EARLIER]
    patched = tool.patched_at(workload_with([*before, OURS], stamp=PATCH), PATCH)
    assert patched.time == tool.parse_time(PATCH)
    assert tool.removed_by(workload_with(edits, stamp=PATCH), patched) == ""
    assert tool.removed_by(workload_with(edits), patched) == told


def test_a_restart_by_somebody_else_in_between_is_no_failure(cluster, start):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    cluster.controllers.ready_after = 0.7
    running = start(cluster, CONFIRM, DEBUG)
    running.wait_for_log("Waiting for deployment")
    environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig}
    words = [KUBECTL, "rollout", "restart", "deployment/web", "-n", "shop"]
    subprocess.run(words, env=environment, check=True, capture_output=True)
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})


def test_success_of_a_kubectl_that_the_pods_contradict_is_not_believed(letters, run, tmp_path):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\n[ "$3 $4" != "rollout status" ] && exec {KUBECTL} "$@"\nexit 0\n'
    )
    kubectl.chmod(0o755)
    letters.controllers.ready_after = 30
    ended = run(letters, CONFIRM, f"--kubectl={kubectl}", "--max-rollouts=1")
    (result,) = [r for r in ended.of("result") if r["name"] == "a"]
    assert (ended.code, result["outcome"]) == (1, "incomplete")
    # This kubectl answers at once, so the new Pod may not exist yet.
    assert result["message"] in ("1 of 1 Pod not updated", "1 of 2 Pods not updated")


@pytest.mark.parametrize("owner", [("batch/v1", "Job", "nightly"), None])
def test_pods_of_others_with_the_same_labels_are_no_contradiction(cluster, run, owner):
    cluster.create("shop", workload("Deployment", "web"))
    foreign = pod("nightly-x", pod_spec(container("app"), container("istio-proxy")), owner)
    foreign["metadata"]["labels"] = {"app": "web"}
    cluster.create("shop", foreign)
    cluster.settle()
    ended = run(cluster, CONFIRM)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert ended.summary["pods"]["matched"] == 1


def test_completed_late_is_verified_as_well(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.controllers.ready_after = 30
    running = start(cluster, CONFIRM, "--timeout=1s", DEBUG)
    running.wait_for_log("Waiting for deployment")
    take_away(cluster, "web", "flux")
    ended = running.finish()
    assert ended.of("result")[0]["outcome"] == "incomplete"
    assert ended.of("result")[0]["message"].endswith(
        "the rollout annotation was removed by field manager flux"
    )


def test_the_numbers_count_all_of_the_plan(letters, run):
    refuse(letters, "b")
    ended = run(letters, CONFIRM, "--max-rollouts=3")
    assert ended.summary["pods"] == counts(6, 2, 6, 2)
    text = run(letters, CONFIRM, TEXT).stdout
    assert "\nPods: 6 of 6 updated and ready.\n" in text


def test_the_numbers_are_those_after_a_failure(cluster, run):
    """With the strategy Recreate, what fails to come up leaves nothing behind."""
    cluster.create(
        "shop", {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "web"}}
    )
    spec = pod_spec(container("app"), serviceAccountName="web")
    recreate = {"strategy": {"type": "Recreate"}, "progressDeadlineSeconds": 1}
    cluster.create("shop", workload("Deployment", "web", spec, replicas=2, **recreate))
    cluster.settle()
    cluster.delete("ServiceAccount", "shop", "web")
    ended = run(unchecked(cluster), CONFIRM)
    assert (ended.code, ended.outcomes) == (1, {"shop/web": "failed"})
    assert ended.summary["pods"] == counts(0, 0, 0, 0, lost=2)


def test_a_rollout_costs_four_requests_besides_kubectls(letters, run):
    run(letters, CONFIRM, "--max-rollouts=1")
    ours = [
        r for r in letters.server.requests if r.headers["user-agent"].startswith("sidecar-rollout/")
    ]
    first = next(index for index, request in enumerate(ours) if request.method == "PATCH")
    assert [(r.method, r.path.rpartition("/")[2]) for r in ours[first - 2 :]] == [
        ("GET", "a"),
        ("POST", "pods"),
        ("PATCH", "a"),
        ("GET", "pods"),
    ]
