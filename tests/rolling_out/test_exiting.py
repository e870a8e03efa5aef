"""How the process ends: Python exits without a traceback, whatever its daemon threads still do."""

from __future__ import annotations

import subprocess

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, SCRIPT, command

pytestmark = pytest.mark.both

LAST_WORKER = f"""
import gc, importlib.util, sys, threading, weakref

spec = importlib.util.spec_from_file_location("sidecar_rollout", {str(SCRIPT)!r})
tool = sys.modules["sidecar_rollout"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

class Cluster(tool.Cluster):
    def open_connections(self, count):
        super().open_connections(count)
        pools.append(weakref.ref(self.pool))

class Scheduler(tool.Scheduler):
    def work(self):
        super().work()
        assert exits.wait(60)

pools, exits = [], threading.Event()
tool.Cluster, tool.Scheduler = Cluster, Scheduler
assert tool.main(sys.argv[1:]) == 0
exits.set()
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
gc.collect()
assert pools[-1]() is not None
"""


def test_the_last_worker_does_not_free_the_connections(cluster):
    """urllib3 has an exit function for them, which fails if they are freed while it runs."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    (python, _, *options), environment = command(cluster.kubeconfig, CONFIRM)
    words = [python, "-c", LAST_WORKER, *options]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr
    assert '"outcome": "succeeded"' in ended.stdout
