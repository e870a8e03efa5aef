"""What was not started has a code that says why, other than what --max-rollouts leaves."""

from __future__ import annotations

import signal
import threading

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, upgrade


@pytest.fixture
def fleet(cluster):
    for name in "abc":
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    upgrade(cluster)
    return cluster


def codes(ended) -> set[str]:
    return {r["code"] for r in ended.of("result") if r["outcome"] == "not_started"}


def test_of_max_rollouts(fleet, run):
    ended = run(fleet, DRIFTED, CONFIRM, "--max-rollouts=1")
    assert codes(ended) == {"max_rollouts"}
    left = [row["left"] for row in ended.summary["sidecars"] if row["left"]]
    assert left == [{"max_rollouts": 2}]


def test_of_max_failures(fleet, run):
    fleet.fault(method="PATCH", path="/deployments/", status=422, times=9, body={"message": "no"})
    ended = run(fleet, DRIFTED, CONFIRM, "--max-failures=1")
    assert codes(ended) == {"max_failures"}
    (failed,) = [r for r in ended.of("result") if r["outcome"] == "failed"]
    target = [f"deployment/{failed['name']}", "--namespace", failed["namespace"]]
    assert failed["command"][:5] == ["kubectl", "describe", *target]
    assert [r["command"] for r in ended.of("result") if r["outcome"] != "failed"] == [[]] * 2
    left = [row["left"] for row in ended.summary["sidecars"] if row["left"]]
    assert left == [{"failed": 1, "not_started": 2}]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--max-duration=1ms"], "max_duration"),
        (["--gate=false", "--max-duration=1s"], "gate"),
    ],
)
def test_of_a_time_and_of_a_gate(fleet, run, options, code):
    ended = run(fleet, DRIFTED, CONFIRM, *options)
    assert (ended.code, codes(ended)) == (0, {code})


def test_of_a_signal(fleet, start):
    held = fleet.fault(method="PATCH", path="/deployments/", release=threading.Event())
    running = start(fleet, DRIFTED, CONFIRM)
    assert held.reached.wait(30)
    running.process.send_signal(signal.SIGINT)
    held.release.set()
    assert codes(running.finish()) == {"interrupted"}


def test_of_an_injector_that_is_broken(fleet, run):
    fleet.injector.breaks_after = 0
    ended = run(fleet, DRIFTED, CONFIRM)
    assert sorted(ended.outcomes.values()) == ["lost_sidecar", "not_started", "not_started"]
    assert codes(ended) == {"stopped"}
