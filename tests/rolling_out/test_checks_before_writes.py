"""Right before each write it is asked once more whether it may be sent."""

from __future__ import annotations

import signal
import subprocess
import threading

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, TEXT, command, patched
from texts import NO_NEW_ROLLOUTS

pytestmark = pytest.mark.both


@pytest.fixture
def held_dry_run(cluster):
    """Deployment web, and a fault that holds the dry run right before its patch."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    return cluster.fault(method="POST", path=r"/pods\?", release=threading.Event())


def test_no_patch_is_sent_after_the_first_signal(cluster, held_dry_run, start):
    running = start(cluster, CONFIRM)
    assert held_dry_run.reached.wait(20)
    running.signal(signal.SIGTERM)
    running.wait_for_log(f"interrupted: {NO_NEW_ROLLOUTS}")
    held_dry_run.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes, patched(cluster)) == (143, {"shop/web": "not_started"}, [])


def test_no_patch_is_sent_after_max_duration(cluster, held_dry_run, start):
    running = start(cluster, CONFIRM, "--max-duration=2s")
    assert held_dry_run.reached.wait(20)
    running.wait_for_log(f"--max-duration reached: {NO_NEW_ROLLOUTS}")
    held_dry_run.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes, patched(cluster)) == (0, {"shop/web": "not_started"}, [])
    assert ended.of("result")[0]["message"] == "--max-duration reached"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_with_closed_streams_the_rollouts_go_on(cluster, closed):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    words, environment = command(cluster.kubeconfig, CONFIRM, TEXT)
    shell = ["bash", "-c", f'exec "$@" {closed}', "bash", *words]
    ended = subprocess.run(shell, env=environment, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 0, ended.stderr
    assert patched(cluster) == ["web"]
