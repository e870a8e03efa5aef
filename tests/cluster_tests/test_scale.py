"""A long run: memory, file descriptors and threads stay flat, and the benchmark works.

In full, 48 minutes on 2 cores (the embedded cluster takes most of them): pytest tests/cluster_tests/test_scale.py --workloads 5000
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from clusters.embedded.manifests import workload
from support import TOP

BENCHMARK = TOP / "tests" / "tools" / "benchmark.py"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("starting", 1),
        ("rollouts", 2),
    ],  # CI runs the others each night
)
def test_the_benchmark_works_at_a_small_size(name, rows):
    """Whether its targets are met is not a test's to say: at this size they mean nothing."""
    words = [sys.executable, str(BENCHMARK), "--json", "--pods=100", "--workloads=5", "--rounds=1"]
    ended = subprocess.run([*words, f"--only={name}"], capture_output=True, text=True, timeout=600)
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == (0 if all(row["met"] for row in found) else 1), ended.stderr
    assert [row["name"] for row in found] == [name] * rows
    assert all(row["figure"] > 0 and row["baseline"] > 0 for row in found)


class Sample:
    def __init__(self, pid: int) -> None:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        self.memory = int(status["VmRSS"].split()[0]) / 1024
        self.threads = int(status["Threads"])
        self.files = len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads /proc, which only Linux has"
)
@pytest.mark.timeout(3600)
def test_a_long_run_stays_flat(cluster, start, request):
    count = request.config.getoption("--workloads")
    workers = min(50, count // 5)
    cluster.kubelet.ready_after = cluster.kubelet.gone_after = 0.0
    for number in range(count):
        cluster.create(
            "shop", workload("Deployment", f"web-{number}", replicas=10 if count > 1000 else 2)
        )
    cluster.settle(1200)
    cluster.kubelet.ready_after = cluster.kubelet.gone_after = 0.05
    running = start(
        cluster, "--confirm=true", f"--parallel-rollouts={workers}", "--log-level=warning"
    )

    def begun() -> int:
        return sum(request.method == "PATCH" for request in cluster.server.requests)

    # In between, there are no threads of the plan, which are joined, nor of what is read in the end
    cluster.wait_for(lambda: begun() >= count // 10, 300)
    samples: list[Sample] = []

    def sampled() -> bool:
        sample = Sample(running.process.pid)
        if begun() < count:
            samples.append(sample)
        return begun() >= count

    cluster.wait_for(sampled, timeout=3000)
    cluster.wait_for(lambda: running.process.poll() is not None, timeout=300)
    ended = running.finish()
    assert (ended.code, ended.summary["outcomes"]) == (0, {"succeeded": count})
    assert {sample.threads for sample in samples} == {workers + 1}  # and the main thread
    middle = len(samples) // 2
    for measure, slack in (("memory", 1.15), ("files", 1.25)):
        early, late = (
            statistics.fmean(getattr(s, measure) for s in part)
            for part in (samples[:middle], samples[middle:])
        )
        assert late <= early * slack, f"{measure}: {early:.0f}, then {late:.0f}"
    print(
        f"{count} workloads: {max(s.memory for s in samples):.0f} MB, {max(s.threads for s in samples)} threads"
    )
