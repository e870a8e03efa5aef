"""Bad days: an API server, a kubectl or a disk in trouble, and interruptions at any moment.

More seeds: pytest tests/rolling_out/test_faults.py --seeds 200 --kills 50
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest
from clusters.embedded import EmbeddedCluster
from clusters.embedded.manifests import workload
from clusters.embedded.server import Fault
from support import CONFIRM, TEXT, command, cutoff, let_ready

ALL = ("--include-statefulset", "--include-daemonset")


EXPIRED = {
    "kind": "Status",
    "status": "Failure",
    "reason": "Expired",
    "message": "too old",
    "code": 410,
}


UNAUTHORIZED = {
    "kind": "Status",
    "status": "Failure",
    "reason": "Unauthorized",
    "message": "Unauthorized",
    "code": 401,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name in ("seed", "kill"):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, range(metafunc.config.getoption(f"--{name}s")))


class Chaos:
    """A seeded plan of what goes wrong, for one request in so many; from the first patch on, so that all get a plan."""

    def __init__(self, seed: int, share: float = 0.03) -> None:
        self.chance = random.Random(seed)
        self.lock = threading.Lock()
        self.share = share
        self.unauthorized = self.has_begun = False

    def __call__(self, method: str, target: str, agent: str) -> Fault | None:
        with self.lock:
            self.has_begun |= method == "PATCH"
            if not self.has_begun or self.chance.random() > self.share:
                return None
            kind = self.chance.randrange(9)
            if kind == 7 and (self.unauthorized or "kubectl" in agent):
                kind = 1
            self.unauthorized |= kind == 7
        if kind == 8:
            return Fault(status=410, body=EXPIRED) if "continue=" in target else Fault(status=503)
        faults = (
            {"status": 429, "headers": {"Retry-After": "1"}, "body": {"message": "slow down"}},
            {"status": 500, "body": {"message": "sick"}},
            {"status": 503},
            {"drop": "before"},
            {"drop": "after"},
            {"delay": 0.5},
            {"truncate": True},
            {"status": 401, "body": UNAUTHORIZED},
        )
        return Fault(**faults[kind])


KINDS = ("Deployment", "Deployment", "Deployment", "StatefulSet", "DaemonSet")


def fill(cluster: EmbeddedCluster, count: int) -> None:
    cluster.kubelet.ready_after = cluster.kubelet.gone_after = 0.02
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        fields = {} if kind == "DaemonSet" else {"replicas": 1 + number % 3}
        cluster.create("shop", workload(kind, f"w-{number}", **fields))
    cluster.settle(60)
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)


def pods_by_workload(cluster: EmbeddedCluster) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for pod in cluster.pods("shop"):
        found.setdefault(pod["metadata"]["labels"]["app"], set()).add(pod["metadata"]["uid"])
    return found


def generations(cluster: EmbeddedCluster) -> dict[str, int]:
    plurals = ("deployments", "statefulsets", "daemonsets")
    return {
        w["metadata"]["name"]: w["metadata"]["generation"]
        for p in plurals
        for w in cluster.store.list(p, "shop")
    }


def kill_kubectls(running, chance: random.Random, stop: threading.Event) -> None:
    while not stop.wait(chance.uniform(0.5, 2)):
        for pid in running.kubectls()[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(300)
def test_nothing_is_lost_under_faults(cluster, start, seed):
    """Every second seed has a workload whose patch is refused, so that both exit codes come up."""
    chance = random.Random(seed)
    fill(cluster, 60)
    before = pods_by_workload(cluster)
    if seed % 2:
        cluster.fault(
            method="PATCH", path="deployments/w-5[?]", times=99, status=422, body={"message": "no"}
        )
    cluster.server.chaos = Chaos(seed)
    running = start(
        cluster, CONFIRM, *ALL, "--parallel-rollouts=8", "--timeout=30s", "--log-level=debug"
    )
    stop = threading.Event()
    killer = threading.Thread(target=kill_kubectls, args=(running, chance, stop))
    running.wait_for_log("running kubectl")
    killer.start()
    if chance.random() < 0.5:
        cluster.vanish()
        time.sleep(2)  # as long as the API server is away
        cluster.reappear()
    ended = running.finish(240)
    stop.set()
    killer.join()
    cluster.server.chaos = lambda *_: None

    assert "Traceback" not in ended.stderr or '"message": "rollout failed"' in ended.stderr
    assert '"message": "unexpected error: ' not in ended.stderr
    assert sorted(ended.planned) == sorted(f"shop/{name}" for name in before)
    outcomes = {r["name"]: r["outcome"] for r in ended.of("result")}
    assert len(ended.of("result")) == len(outcomes) and outcomes.keys() == before.keys(), (
        "each in exactly one outcome"
    )
    assert max(generations(cluster).values()) <= 2, "each patched at most once"
    after = pods_by_workload(cluster)
    for name, outcome in outcomes.items():
        if outcome in ("succeeded", "completed_late"):
            assert not after[name] & before[name], name
    bad = {"failed", "timed_out", "incomplete"} & ended.summary["outcomes"].keys()
    assert ended.code == (1 if bad else 0) == ended.summary["exit_code"]
    if seed % 2:
        assert (ended.code, outcomes["w-5"]) == (1, "failed")
        assert generations(cluster)["w-5"] == 1


@pytest.mark.timeout(300)
def test_killed_and_run_again_until_nothing_is_left(cluster, start, run, kill):
    """Signals at random moments, then the same command again: at most one restart more than there were SIGKILLs."""
    chance = random.Random(kill)
    fill(cluster, 12)
    before = pods_by_workload(cluster)
    words = (
        CONFIRM,
        *ALL,
        "--parallel-rollouts=4",
        cutoff(),
    )
    kills = 0
    for _ in range(3):
        number = chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
        running = start(cluster, *words)
        running.wait_for_log(
            "scanning for Pods"
        )  # until then it is Python that starts: see test_interrupting.py
        try:
            running.process.wait(chance.uniform(0, 2.4))
        except subprocess.TimeoutExpired:
            running.signal(number)
            kills += number == signal.SIGKILL
        ended = running.finish()
        assert "Traceback" not in ended.stderr
        cluster.settle()
    last = run(cluster, *words)
    assert last.code == 0
    assert run(cluster, *words).planned == []
    after = pods_by_workload(cluster)
    assert not any(after[name] & before[name] for name in before)
    assert max(generations(cluster).values()) <= 2 + kills


@pytest.mark.parametrize("brings_a_token", [True, False])
def test_a_list_that_expires_is_read_to_its_end(cluster, run, tool, monkeypatch, brings_a_token):
    """By the token that the answer brings, or once more from the beginning: no Pod counts twice."""
    monkeypatch.setattr(tool, "PAGE", 4)
    cluster.create("shop", workload("Deployment", "web", replicas=10))
    cluster.settle()
    if brings_a_token:
        keep = cluster.store.keep_page
        kept = []

        def keep_none(*parts) -> str:
            kept.append(keep(*parts))
            cluster.store.expire_pages()
            return kept[-1]

        monkeypatch.setattr(cluster.store, "keep_page", keep_none)
    else:
        path = r"/api/v1/pods\?.*continue="
        expired = cluster.fault(path=path, status=410, body=EXPIRED)
    ended = run(cluster)
    assert kept if brings_a_token else expired.reached.is_set()
    assert ended.of("plan")[0]["pods"]["old"] == 10
    assert ended.summary["sidecars"][0]["pods"] == 10


def test_a_list_that_expires_again_and_again_ends_the_plan_with_what_to_do(cluster, run, tool):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.fault(path=r"/api/v1/pods\?", status=410, body=EXPIRED, times=9)
    ended = run(cluster, "--log-format=text")
    assert ended.code == 3
    assert (
        "410 the list expired while it was being read; rerun this command (nothing" in ended.stderr
    )


def test_long_lists_are_requested_compressed(cluster, run):
    """Over a slow link nothing counts more; the API server decides by the answer's length."""
    cluster.create("shop", workload("Deployment", "web", replicas=200))
    cluster.settle(60)
    sent = cluster.server.compressed
    assert run(cluster).of("plan")[0]["pods"]["old"] == 200
    assert sent == ["/api/v1/pods"]


def test_a_kubectl_that_is_killed_is_run_again(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, "--log-level=debug")
    (kubectl,) = running.wait_for_kubectls(1)
    os.kill(kubectl, signal.SIGKILL)
    running.wait_for_log("running kubectl", times=2)
    let_ready(cluster)
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})


def test_retries_honour_retry_after_and_are_bounded(cluster, run, tool, monkeypatch):
    pauses: list[float] = []
    clock = SimpleNamespace(**{**vars(time), "sleep": pauses.append})
    monkeypatch.setattr(tool, "time", clock)
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    busy = {"status": 429, "headers": {"Retry-After": "7"}, "body": {"message": "slow down"}}
    cluster.fault(path="/api/v1/pods", times=1, **busy)
    assert run(cluster).planned == ["shop/web"]
    assert pauses == [7.0]
    pauses.clear()
    always = cluster.fault(path="/api/v1/pods", times=99, **{**busy, "headers": {}})
    ended = run(cluster, TEXT)
    assert (ended.code, 99 - always.times) == (3, 8)
    assert "429 slow down (nothing was changed)" in ended.stderr
    least = [0.5, 1, 2, 4, 8, 8, 8]
    assert all(low <= pause <= 1.5 * low for low, pause in zip(least, pauses, strict=True))


@pytest.mark.parametrize("layout", ["text", "json"])
def test_standard_output_that_is_full(cluster, layout):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    words, environment = command(cluster.kubeconfig, f"--log-format={layout}", CONFIRM)
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            words, env=environment, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert "rollout succeeded" in ended.stderr
    assert "cannot write to standard output: No space left on device" in ended.stderr


def test_a_moment_of_forbidden_reads_during_a_run_is_no_failure(cluster, start):
    """An API server that has just started forbids what is allowed, until it has read its rules."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(method="PATCH", path="deployments/web", release=threading.Event())
    running = start(cluster, CONFIRM, "--timeout=30s")
    assert held.reached.wait(20)
    body = {"kind": "Status", "message": 'pods is forbidden: User "x" cannot list', "code": 403}
    agent = {"user_agent": "sidecar-rollout"}
    moment = cluster.fault(method="GET", path="/pods", status=403, times=2, body=body, **agent)
    held.release.set()
    ended = running.finish()
    assert (ended.outcomes, moment.times) == ({"shop/web": "succeeded"}, 0)
