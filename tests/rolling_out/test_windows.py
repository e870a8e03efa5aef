"""--max-duration: a maintenance window."""

from __future__ import annotations

import pytest
from cluster.manifests import replicated, workload
from support import CONFIRM, let_ready, options_of, printed_command


@pytest.fixture
def slow(cluster):
    """Three Deployments whose new Pods wait for the test."""
    for name in ("a", "b", "c"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    return cluster


def test_what_is_in_progress_is_completed_and_nothing_new_starts(slow, start):
    running = start(slow, CONFIRM, "--max-duration=8s")
    running.wait_for_log(
        "--max-duration is over: no new rollouts will start; waiting for 1 in progress"
    )
    let_ready(slow)
    ended = running.finish()
    assert ended.outcomes == {
        "shop/a": "succeeded",
        "shop/b": "not_started",
        "shop/c": "not_started",
    }
    assert ended.code == 0  # it was asked for
    assert {r["message"] for r in ended.of("result")[1:]} == {"--max-duration is over"}


def test_the_summary_tells_how_to_resume(slow, start, run):
    running = start(slow, CONFIRM, "--max-duration=8s", "--log-format=text")
    running.wait_for_log("--max-duration is over")
    let_ready(slow)
    *_, header, command = running.finish().stdout.splitlines()
    assert header == "To resume, run:"
    words = [word for word in printed_command(command)[2:] if word != "--log-format=text"]
    assert run(slow, *words).outcomes == {"shop/b": "succeeded", "shop/c": "succeeded"}


def test_a_failure_is_one_also_at_the_end_of_the_window(slow, start):
    running = start(slow, CONFIRM, "--max-duration=8s", "--timeout=10s")
    ended = running.finish()
    assert (ended.code, ended.outcomes["shop/a"]) == (1, "timed_out")


def test_evictions_stop_between_two_pods(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", replicas=3))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, "--evict", "--max-duration=8s")
    running.wait_for_log("--max-duration is over")
    let_ready(cluster)
    ended = running.finish()
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"]) == (
        "interrupted",
        "1 of 3 Pods replaced; the others were not replaced",
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
