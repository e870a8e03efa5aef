"""SIGUSR1 pauses a run, SIGUSR2 resumes it."""

from __future__ import annotations

import signal
import threading

from support import CONFIRM, TEXT


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
