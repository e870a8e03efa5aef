"""Restarts and evictions, as a kubelet and containerd carry them out; also with the stand-in for the kubelet."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from clusters.embedded import is_ready
from situations import create, images, inject, ready_probe, sidecar_of, startup_probe
from support import CONFIRM, DRIFTED
from texts import SIDECAR_NOT_READY, SIDECAR_NOT_STARTED

pytestmark = [pytest.mark.both, pytest.mark.node, pytest.mark.timeout(400)]


@pytest.fixture
def on_node(request) -> bool:
    return request.config.getoption("--node")


@pytest.fixture
def three(cluster):
    inject(cluster, "1.26.2", **ready_probe())
    create(cluster, "a", "b", "c", replicas=1)
    return cluster


@pytest.fixture
def looking(tool, monkeypatch, on_node):
    """The stand-in backs off for 2 seconds, a kubelet for 10, 20, 40."""
    if not on_node:
        monkeypatch.setattr(tool, "LOOK_AFTER", 0.2)
        monkeypatch.setattr(tool, "LOOK_EVERY", 1.0)
        monkeypatch.setattr(tool, "STUCK_FOR", 3.0)


def messages_of(ended) -> dict[str, str]:
    return {result["name"]: result["message"] for result in ended.of("result")}


def test_a_sidecar_that_ends_after_some_seconds_stops_the_run(three, run, looking):
    """During its back-off it is `terminated`; `waiting` shows for a moment."""
    inject(three, "1.27.0-exits1-neverready", **ready_probe())
    ended = run(three, DRIFTED, CONFIRM, "--timeout=150s")
    assert sorted(ended.outcomes.values()) == ["failed", "not_started", "not_started"]
    told = messages_of(ended)["a"]
    assert SIDECAR_NOT_STARTED in told
    assert 'container istio-proxy: CrashLoopBackOff: Error (exit code 1): "out of luck"' in told
    assert messages_of(ended)["b"] == f"{SIDECAR_NOT_READY}Deployment shop/a"
    assert images(three) == ["1.26.2"] * 3 + ["1.27.0-exits1-neverready"]


def test_a_first_workload_whose_sidecar_is_never_ready_stops_the_run(three, run):
    inject(three, "1.27.0-neverready", **ready_probe())
    ended = run(three, DRIFTED, CONFIRM, "--timeout=8s")
    assert sorted(ended.outcomes.values()) == ["not_started", "not_started", "timed_out"]
    assert messages_of(ended)["b"] == f"{SIDECAR_NOT_READY}Deployment shop/a"
    assert images(three) == ["1.26.2"] * 3 + ["1.27.0-neverready"]


def test_evictions_wait_for_min_ready_seconds(cluster, run, on_node):
    """Both Pods are never unavailable at a time, by the StatefulSet's own count."""
    seconds = 10 if on_node else 3
    inject(cluster, "1.26.2", **ready_probe())
    on_delete = {"updateStrategy": {"type": "OnDelete"}, "podManagementPolicy": "Parallel"}
    create(cluster, "db", kind="StatefulSet", minReadySeconds=seconds, **on_delete)

    def available() -> int:
        return cluster.get("StatefulSet", "shop", "db")["status"].get("availableReplicas", 0)

    cluster.wait_for(lambda: available() == 2, 60)
    inject(cluster, "1.27.0", **ready_probe())
    evict = ("--evict", "--include-statefulset", "--timeout=60s")
    ended = run(cluster, DRIFTED, CONFIRM, *evict)
    assert ended.outcomes == {"shop/db": "succeeded"}
    first, second = sorted(map(ready_since, cluster.pods("shop")))
    assert (second - first).total_seconds() >= seconds


def ready_since(pod: dict) -> datetime:
    (stamp,) = [
        c["lastTransitionTime"] for c in pod["status"]["conditions"] if c["type"] == "Ready"
    ]
    return datetime.fromisoformat(stamp.replace("Z", "+00:00"))


def test_why_containers_are_not_created_is_told_from_events(cluster, run):
    inject(cluster, "1.26.2")
    create(cluster, "web")
    volume = {"name": "certificates", "secret": {"secretName": "missing"}}
    cluster.injector.also = {"volumes": [volume]}
    mount = {
        "name": "certificates",
        "mountPath": "/etc/certs",
    }  # one that is not mounted is ignored
    inject(cluster, "1.27.0", volumeMounts=[mount])
    ended = run(cluster, DRIFTED, CONFIRM, "--timeout=8s")
    (told,) = messages_of(ended).values()
    text = r"web-\S+: \"MountVolume.SetUp failed for volume 'certificates' : secret 'missing' not found"
    assert re.search(text, told), told


def test_a_crash_is_told_with_its_exit_code_and_message(cluster, run, looking):
    inject(cluster, "1.26.2", native=True, **startup_probe())
    create(cluster, "web")
    inject(cluster, "1.27.0-crashing", native=True, **startup_probe())
    ended = run(cluster, DRIFTED, CONFIRM, "--timeout=25s")
    (told,) = messages_of(ended).values()
    assert ': container istio-proxy: CrashLoopBackOff: Error (exit code 1): "out of luck"' in told
    assert "back-off" not in told


def test_the_application_waits_for_its_native_sidecar(cluster, run):
    """A Pod whose native sidecar does not start is Pending, and its application is not what is wrong."""
    inject(cluster, "1.26.2", native=True)
    create(cluster, "web")
    inject(cluster, "1.27.0-broken", native=True)
    ended = run(cluster, DRIFTED, CONFIRM, "--timeout=8s")
    (told,) = messages_of(ended).values()
    assert re.search(r"container istio-proxy: (ErrImagePull|ImagePullBackOff): ", told), told
    (new,) = [pod for pod in cluster.pods("shop") if not is_ready(pod)]
    assert new["status"]["phase"] == "Pending"
    assert new["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"
    assert not sidecar_of(new).get("containerID")
