"""What a team finds on its workload: who restarted it, and why."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, upgrade

PREFIX = "sidecarRollout.rollout."


def notes(cluster, name: str = "web") -> dict[str, str]:
    """The annotations of a rollout, without the prefix."""
    template = cluster.get("Deployment", "shop", name)["spec"]["template"]["metadata"]
    found = template.get("annotations", {}).items()
    return {key.removeprefix(PREFIX): value for key, value in found if key.startswith(PREFIX)}


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
    assert found.keys() == {"timestamp", "reason", "revision", "by", "sidecars", "template"}


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
    assert notes(web).keys() == {"timestamp", "reason", "sidecars", "template"}
