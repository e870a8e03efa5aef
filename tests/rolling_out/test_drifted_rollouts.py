"""--only-drifted with --confirm: verdicts come first, and the new Pods are compared again."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, counts, images, make_old, patched

pytestmark = pytest.mark.both


def test_the_revision_is_written_and_tells_what_a_pod_got(every_kind, run, tool):
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    run(every_kind, DRIFTED, CONFIRM, "--annotation-prefix=myCompany")

    def revision(name: str) -> str:
        found = every_kind.get("Deployment", "shop", name)["spec"]["template"]["metadata"][
            "annotations"
        ]
        return found["myCompany.rollout.revision"]

    assert len(revision("web")) == 12
    assert int(revision("web"), 16)
    assert revision("web") != revision("native")
    first = revision("web")
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"
    run(every_kind, DRIFTED, CONFIRM, "--annotation-prefix=myCompany")
    assert revision("web") != first
    assert all(
        p["metadata"]["annotations"]["myCompany.rollout.revision"] == revision("web")
        for p in every_kind.pods("shop", "web")
    )


@pytest.fixture
def dying_injector(every_kind, monkeypatch):
    """One that answers dry runs, and that is gone when Pods are created, with failurePolicy Ignore."""
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    inject = type(every_kind.injector).__call__

    def only_in_dry_runs(injector, pod, namespace, dry_run):
        if dry_run:
            inject(injector, pod, namespace, dry_run)

    monkeypatch.setattr(type(every_kind.injector), "__call__", only_in_dry_runs)
    return every_kind


def test_pods_that_come_without_the_sidecar_have_lost_it(dying_injector, run):
    ended = run(dying_injector, DRIFTED, CONFIRM)
    assert ended.code == 1
    assert ended.outcomes == {"shop/web": "not_started", "shop/native": "lost_sidecar"}
    messages = {r["name"]: r["message"] for r in ended.of("result")}
    assert messages["native"] == "2 of 2 new Pods without sidecar istio-proxy; check the injector"


def test_pods_that_come_without_the_sidecar_have_lost_it_where_nothing_is_compared(
    dying_injector, run
):
    ended = run(dying_injector, CONFIRM, "--parallel-rollouts=2")
    assert ended.code == 1
    assert ended.outcomes == {"shop/web": "not_started", "shop/native": "lost_sidecar"}
    messages = {r["name"]: r["message"] for r in ended.of("result")}
    assert messages["native"] == "2 of 2 new Pods without sidecar istio-proxy; check the injector"
    assert ended.summary["pods"] == counts(0, 0, 0, lost=2)


def test_an_injector_that_never_converges_is_still_drifted_and_not_tried_again(every_kind, run):
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    real = every_kind.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        if "sidecarRollout.rollout.timestamp" in pod["metadata"].get("annotations", {}):
            pod["spec"]["containers"][-1]["image"] = "docker.io/istio/proxyv2:1.26.9"

    every_kind.injector.inject = inject
    ended = run(every_kind, DRIFTED, CONFIRM)
    assert ended.code == 1
    assert ended.outcomes["shop/web"] == "still_drifted"
    (result,) = [r for r in ended.of("result") if r["name"] == "web"]
    assert result["message"] == (
        "the new Pods have another sidecar than in the plan: istio-proxy  image  "
        "docker.io/istio/proxyv2:1.26.9 -> 1.27.0"
    )
    assert '"level": "WARNING", "message": "rollout still drifted in ' in ended.stderr
    assert patched(every_kind).count("web") == 1


def test_verdicts_come_before_the_first_patch_and_live_state_is_read_again(every_kind, start):
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    held = every_kind.fault(method="PATCH", path="deployments/native", release=threading.Event())
    running = start(every_kind, DRIFTED, CONFIRM)
    assert held.reached.wait(20)
    for found in every_kind.pods("shop", "web"):  # somebody else restarts them meanwhile
        every_kind.delete("Pod", "shop", found["metadata"]["name"])
    every_kind.settle()
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/native": "succeeded", "shop/web": "skipped"}
    (message,) = [r["message"] for r in ended.of("result") if r["name"] == "web"]
    # Within the same second the cut-off cannot tell the new Pods from the old; the comparison can.
    assert message in ("already up to date", "all its Pods were created after the cutoff")
    asked = [
        r.method
        for r in every_kind.server.requests
        if r.query.get("dryRun") == "All" or r.method == "PATCH"
    ]
    assert asked == [
        *["POST"] * 8,  # each that differs is asked twice
        "POST",
        "PATCH",
        "POST",
    ]  # and again right before each patch


@pytest.mark.embedded("the injector changes at a moment of the rollout")
def test_new_pods_of_two_versions_are_no_success(cluster, start):
    """The injector is upgraded again before the last Pod; the others were looked at by then."""
    new, newest = "docker.io/istio/proxyv2:1.27.0", "docker.io/istio/proxyv2:1.28.0"
    cluster.create("shop", workload("StatefulSet", "db", replicas=4))
    make_old(cluster)
    cluster.injector.container["image"] = new
    cluster.kubelet.ready_after = 3.0  # kubectl waits for longer than until the first look
    running = start(cluster, CONFIRM, DRIFTED, "--include-statefulset")
    cluster.wait_for(lambda: images(cluster, "istio-proxy").count(new) == 3)
    cluster.injector.container["image"] = newest
    ended = running.finish()
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "still_drifted")
    assert f"{newest} -> 1.27.0" in result["message"]
