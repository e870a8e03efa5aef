"""--max-duration: a maintenance window."""

from __future__ import annotations

import threading
import time

import pytest
from clusters.embedded.manifests import replicated, workload
from support import CONFIRM, evictions, let_ready, options_of, patched, printed_command
from texts import NO_NEW_ROLLOUTS

pytestmark = pytest.mark.both

WINDOW = ("--max-duration=1h", "--timeout=2h")


class Clock:
    """The module time, with a monotonic clock that a test can put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def __getattr__(self, name: str):
        return getattr(time, name)


@pytest.fixture
def clock(tool, monkeypatch):
    found = Clock()
    monkeypatch.setattr(tool, "time", found)
    return found


@pytest.fixture
def slow(cluster):
    """Three Deployments whose new Pods wait for the test."""
    for name in ("a", "b", "c"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    cluster.kubelet.ready_after = 600
    return cluster


@pytest.fixture
def end_of_window(clock, tool, monkeypatch):
    """Have the window end, and once that is announced perhaps the Pods be ready, when something has happened."""
    threads = []
    announced = threading.Event()
    announce_stop = tool.Scheduler.announce_stop

    def announce(scheduler) -> None:
        announce_stop(scheduler)
        if scheduler.announced:
            announced.set()

    monkeypatch.setattr(tool.Scheduler, "announce_stop", announce)

    def arrange(cluster, is_time, then=let_ready) -> None:
        def wait() -> None:
            cluster.wait_for(is_time)
            clock.ahead += 3600
            announced.wait(20)
            then(cluster)

        threads.append(threading.Thread(target=wait))
        threads[0].start()

    yield arrange
    threads[0].join()


def test_what_is_in_progress_is_completed_and_nothing_new_starts(slow, run, end_of_window):
    end_of_window(slow, lambda: patched(slow))
    ended = run(slow, CONFIRM, *WINDOW)
    assert ended.outcomes == {
        "shop/a": "succeeded",
        "shop/b": "not_started",
        "shop/c": "not_started",
    }
    assert ended.code == 0  # it was asked for
    assert {r["message"] for r in ended.of("result")[1:]} == {"--max-duration reached"}
    text = f"--max-duration reached: {NO_NEW_ROLLOUTS}; waiting for 1 in progress"
    assert text in ended.stderr


def test_the_summary_tells_how_to_resume(slow, run, end_of_window):
    end_of_window(slow, lambda: patched(slow))
    ended = run(slow, CONFIRM, *WINDOW, "--log-format=text")
    *_, header, command = ended.stdout.splitlines()
    assert header == "To resume, run:"
    words = [word for word in printed_command(command)[2:] if word != "--log-format=text"]
    assert run(slow, *words).outcomes == {"shop/b": "succeeded", "shop/c": "succeeded"}


def test_a_failure_is_one_also_at_the_end_of_the_window(slow, run, end_of_window):
    end_of_window(slow, lambda: patched(slow), then=bool)
    slow.change("Deployment", "shop", "a", {"spec": {"progressDeadlineSeconds": 1}})
    ended = run(slow, CONFIRM, *WINDOW)
    assert (ended.code, ended.outcomes["shop/a"]) == (1, "failed")


def test_evictions_stop_between_two_pods(cluster, run, end_of_window):
    cluster.create("shop", replicated("ReplicaSet", "x", replicas=3))
    cluster.settle()
    cluster.kubelet.ready_after = 600
    end_of_window(cluster, lambda: evictions(cluster))
    ended = run(cluster, CONFIRM, "--evict", *WINDOW)
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"]) == (
        "interrupted",
        "the others were not replaced (1 of 3 Pods replaced)",
    )


def test_a_window_that_is_long_enough_changes_nothing(cluster, run):
    cluster.create("shop", workload("Deployment", "a"))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--max-duration=1h")
    assert (ended.code, ended.outcomes) == (0, {"shop/a": "succeeded"})


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1h30m", 5400), ("250ms", 0.25)])
def test_it_is_a_duration(tool, text, seconds):
    assert options_of(tool, f"--max-duration={text}").max_duration == seconds
    assert options_of(tool).max_duration is None
