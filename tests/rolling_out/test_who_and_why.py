"""What a team finds on its workload: who restarted it, why, and Events for `kubectl describe`."""

from __future__ import annotations

import subprocess

import pytest
from clusters.embedded.manifests import replicated, workload
from support import CONFIRM, DRIFTED, KUBECTL, upgrade

PREFIX = "sidecarRollout.rollout."
EVENTS = "--record-events"


def notes(cluster, name: str = "web") -> dict[str, str]:
    """The annotations of a rollout, without the prefix."""
    template = cluster.get("Deployment", "shop", name)["spec"]["template"]["metadata"]
    found = template.get("annotations", {}).items()
    return {key.removeprefix(PREFIX): value for key, value in found if key.startswith(PREFIX)}


def events(cluster, name: str = "web") -> list[tuple[str, str, str]]:
    return [
        (event["type"], event["reason"], event["message"])
        for event in cluster.store.list("events", "shop")
        if event["involvedObject"]["name"] == name
        and event.get("source", {}).get("component") == "sidecar-rollout"
    ]


@pytest.fixture
def web(cluster):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    return cluster


@pytest.mark.both
def test_the_user_and_what_changes_are_in_the_annotations(web, run):
    upgrade(web)
    web.injector.container["env"] = [
        {"name": "PASSWORD", "value": "hunter2"},
        {"name": "X", "value": "y"},
    ]
    ended = run(web, DRIFTED, CONFIRM)
    assert ended.outcomes == {"shop/web": "succeeded"}
    found = notes(web)
    assert found["by"] == ended.summary["user"] != ""
    assert found["reason"] == (
        "Update sidecars istio-proxy: image 1.26.2 -> 1.27.0, 2 other differences"
    )
    assert found.keys() == {"timestamp", "reason", "revision", "by", "sidecars"}


def test_images_with_the_same_tag_are_told_by_what_differs(web, run):
    web.injector.container["image"] = "registry.example/istio/proxyv2:1.26.2"
    run(web, DRIFTED, CONFIRM)
    images = "docker.io/istio/proxyv2:1.26.2 -> registry.example/istio/proxyv2:1.26.2"
    assert notes(web)["reason"] == f"Update sidecars istio-proxy: image {images}"


def test_a_change_without_another_image_is_counted(web, run):
    web.injector.container["env"] = [{"name": "X", "value": "y"}]
    run(web, DRIFTED, CONFIRM)
    assert notes(web)["reason"] == "Update sidecars istio-proxy: 1 difference"


def test_without_a_comparison_the_reason_names_the_sidecars(web, run):
    run(web, CONFIRM)
    assert notes(web)["reason"] == "Update sidecars istio-proxy"


def test_a_reason_of_a_person_stands_as_it_is(web, run):
    upgrade(web)
    run(web, DRIFTED, CONFIRM, "--rollout-reason=CVE-2026-1")
    assert notes(web)["reason"] == "CVE-2026-1"


def test_no_user_is_written_if_the_api_server_does_not_tell(web, run):
    """Before Kubernetes 1.28, there is no SelfSubjectReview."""
    web.fault(method="POST", path="selfsubjectreviews", status=404, body={"message": "no"})
    ended = run(web, CONFIRM)
    assert (ended.outcomes, ended.summary["user"]) == ({"shop/web": "succeeded"}, "")
    assert notes(web).keys() == {"timestamp", "reason", "sidecars"}


@pytest.mark.both
def test_an_event_tells_those_who_do_not_read_the_log(web, run):
    upgrade(web)
    ended = run(web, DRIFTED, CONFIRM, EVENTS)
    (result,) = ended.of("result")
    assert events(web) == [
        (
            "Normal",
            "SidecarRollout",
            f"rollout succeeded in {result['seconds']}s; "
            "Update sidecars istio-proxy: image 1.26.2 -> 1.27.0",
        )
    ]
    words = [KUBECTL, "--kubeconfig", web.kubeconfig, "describe", "deployment/web", "-n"]
    real = web.get("Deployment", "shop", "web")["metadata"]["namespace"]
    shown = subprocess.run([*words, real], capture_output=True, text=True, check=True).stdout
    assert "SidecarRollout" in shown.partition("Events:")[2]


def test_a_failure_is_a_warning(web, run):
    web.injector.container["image"] = "docker.io/istio/proxyv2:nope"
    web.kubelet.bad_images = {"docker.io/istio/proxyv2:nope"}
    web.kubelet.ready_after = 60
    run(web, CONFIRM, EVENTS, "--timeout=1s")
    ((kind, reason, message),) = events(web)
    assert (kind, reason) == ("Warning", "SidecarRolloutFailed")
    assert message.startswith("rollout timed out in ")


def test_evictions_are_recorded_too_and_what_is_skipped_is_not(web, run):
    web.create("shop", replicated("ReplicaSet", "lone"))
    web.create("shop", workload("Deployment", "paused", paused=True))
    web.settle()
    web.delete("Deployment", "shop", "web")
    web.settle()
    run(web, CONFIRM, EVENTS, "--evict", "rs/lone")
    assert [event[:2] for event in events(web, "lone")] == [("Normal", "SidecarRollout")]
    assert events(web, "lone")[0][2].startswith("eviction succeeded in ")
    assert events(web, "paused") == []


def test_without_the_option_there_are_none(web, run):
    run(web, CONFIRM)
    assert events(web) == []


def test_a_failure_to_write_one_changes_nothing(web, run):
    web.fault(
        method="POST", path="namespaces/shop/events", status=500, body={"message": "no"}, times=99
    )
    ended = run(web, CONFIRM, EVENTS, "--log-level=debug")
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert "cannot record an Event: 500 no" in ended.stderr


def test_without_the_permission_none_are_recorded(web, run):
    verbs = ["get", "list", "watch", "patch"]
    rules = [
        {"verbs": verbs, "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["create"], "apiGroups": [""], "resources": ["pods"]},
    ]
    ended = run(web.kubeconfig_of("operator", rules), CONFIRM, EVENTS)
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert events(web) == []


def test_what_was_not_begun_has_no_event(web, run):
    web.injector.state = "denies"
    ended = run(web, CONFIRM, EVENTS)
    assert ended.outcomes == {"shop/web": "failed"}
    assert ended.of("result")[0]["message"].startswith("not begun: ")
    assert events(web) == []
