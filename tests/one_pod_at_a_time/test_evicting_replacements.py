"""--evict: replacements that are not as they should be."""

from __future__ import annotations

import re
import threading

import pytest
from clusters.embedded.manifests import replicated, workload
from support import APP, CONFIRM, EVICT, ON_DELETE, OWNERS, evictions, images, upgrade, within
from texts import NOT_CREATED, SIDECAR_NOT_READY

pytestmark = pytest.mark.both


@pytest.mark.parametrize("owner", [o for o in OWNERS if not o.startswith("CloneSet")])
def test_a_replacement_that_would_be_rejected_is_not_risked(cluster, run, owner):
    OWNERS[owner](cluster)
    cluster.settle()
    cluster.injector.state = "denies"
    ended = run(cluster, CONFIRM, *EVICT)
    (result,) = ended.of("result")
    assert (result["outcome"], evictions(cluster)) == ("failed", [])
    assert result["message"].startswith(NOT_CREATED)


@pytest.mark.embedded("patches the time for which a sidecar may not start")
def test_a_replacement_whose_sidecar_does_not_start_is_not_waited_for(
    cluster, run, tool, monkeypatch
):
    """Its image cannot be pulled; a Pod that is only slow is waited for until --timeout."""
    monkeypatch.setattr(tool, "STUCK_FOR", 1.5)
    for name in ("a", "b"):
        cluster.create("shop", replicated("ReplicaSet", name, APP, replicas=2))
    cluster.settle()
    upgrade(cluster)
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:broken"
    ended = run(cluster, CONFIRM, *EVICT, "--timeout=10m")
    first, second = ended.of("result")
    assert (first["outcome"], second["outcome"]) == ("failed", "not_started")
    assert re.search("a sidecar did not start: a-\\w+: container istio-proxy: ", first["message"])
    assert second["message"] == f"{SIDECAR_NOT_READY}ReplicaSet shop/a"
    assert len(evictions(cluster)) == 1


@pytest.mark.embedded("an image that cannot be pulled")
def test_an_eviction_that_nothing_replaced_proves_nothing(cluster, start):
    """The first one is scaled to 0 meanwhile: no new Pod has been seen ready so far."""
    for name in ("a", "b", "c"):
        cluster.create("shop", replicated("ReplicaSet", name, APP, replicas=1))
    cluster.settle()
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:broken"
    held = cluster.fault(method="POST", path="/a-.*/eviction$", release=threading.Event())
    running = start(cluster, CONFIRM, *EVICT, "--parallel-rollouts=5", "--timeout=4s")
    assert held.reached.wait(20)
    cluster.change("ReplicaSet", "shop", "a", {"spec": {"replicas": 0}})
    held.release.set()
    ended = running.finish()
    outcomes = {"shop/a": "skipped", "shop/b": "timed_out", "shop/c": "not_started"}
    assert ended.outcomes == outcomes


def test_a_replacement_without_the_sidecar_stops_the_run(cluster, run):
    for name in ("a", "b"):
        cluster.create("shop", replicated("ReplicaSet", name, APP, replicas=3))
    cluster.settle()
    cluster.injector.breaks_after = 1
    ended = run(cluster, CONFIRM, *EVICT)
    first, second = ended.of("result")
    assert (first["outcome"], second["outcome"]) == ("lost_sidecar", "not_started")
    assert re.sub(r"a-\w+", "X", first["message"]) == (
        "Pod X was evicted; 1 of 2 new Pods without sidecar istio-proxy; check the injector "
        "(1 of 3 Pods replaced)"
    )
    assert len(evictions(cluster)) == 2
    assert ended.summary["pods"] == {
        "wanted": 3,
        "updated": 1,
        "ready": 1,
        "lost": 1,
        "not_created": 0,
    }


def test_replacements_that_still_differ_end_it(cluster, run, monkeypatch):
    """Pods that are created get another image than those of dry runs."""
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    call = type(cluster.injector).__call__

    def other_for_real(injector, pod: dict, namespace: dict, dry_run: bool) -> None:
        injector.container["image"] = f"docker.io/istio/proxyv2:1.2{'7' if dry_run else '8'}.0"
        call(injector, pod, namespace, dry_run)

    monkeypatch.setattr(type(cluster.injector), "__call__", other_for_real)
    (result,) = run(cluster, CONFIRM, "--only-drifted", *EVICT).of("result")
    assert result["outcome"] == "still_drifted"
    assert "1.28.0" in result["message"]
    assert len(evictions(cluster)) == 1


def test_replacements_that_are_not_what_was_planned_end_it(cluster, start):
    """The injector is upgraded between the last dry run and the eviction."""
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    upgrade(cluster)
    reached = cluster.fault(method="POST", path="/eviction", release=threading.Event())
    running = start(cluster, CONFIRM, "--only-drifted", *EVICT)
    assert reached.reached.wait(20)
    cluster.injector.container |= {"image": "docker.io/istio/proxyv2:1.28.0"}
    reached.release.set()
    ended = running.finish()
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "still_drifted")
    assert images(cluster, "istio-proxy").count("docker.io/istio/proxyv2:1.28.0") == 1


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet", "ReplicaSet", "CloneSet"])
def test_a_timeout_tells_why_no_pod_is_created(cluster, start, kind):
    """By an event, as the status of a StatefulSet or DaemonSet does not say so."""
    OWNERS[f"{kind} shop/x"](cluster)
    cluster.settle()
    held = cluster.fault(method="POST", path="/eviction", release=threading.Event())
    running = start(cluster, CONFIRM, *EVICT, "--timeout=2s")
    assert held.reached.wait(20)  # the dry run has succeeded
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.change("Namespace", "", "shop", {"metadata": {"labels": restricted}})
    held.release.set()
    (result,) = running.finish().of("result")
    assert result["outcome"] == "timed_out"
    assert "violates PodSecurity 'restricted:latest'" in result["message"]


def test_a_timeout_tells_what_is_wrong_with_the_new_pod(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.injector.container |= {"image": "broken:1"}
    cluster.kubelet.back_off = 60  # it and ErrImagePull take turns
    ended = run(cluster, CONFIRM, *EVICT, within(cluster, 1))
    (result,) = ended.of("result")
    assert result["outcome"] == "timed_out"
    assert "container istio-proxy: ImagePullBackOff" in result["message"]
    assert len(evictions(cluster)) == 1


def test_a_timeout_tells_that_the_old_pod_is_still_there(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, **ON_DELETE))
    cluster.settle()
    cluster.kubelet.gone_after = 60
    node = cluster.get("Pod", "shop", "x-0")["spec"]["nodeName"]
    ended = run(cluster, CONFIRM, *EVICT, within(cluster, 1))
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"]) == (
        "timed_out",
        f"Pod x-0 was evicted; still waiting for Pod x-0 on node {node} to terminate "
        "(0 of 1 Pod replaced)",
    )
