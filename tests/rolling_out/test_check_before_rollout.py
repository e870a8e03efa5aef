"""The dry run right before each patch: workloads whose new Pods would be rejected are not restarted."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, DRIFTED, NEW, make_old, messages, patched, unchecked, upgrade
from texts import IN_A_ROW, NO_NEW_ROLLOUTS, NOT_CREATED, WITHOUT_SIDECAR

pytestmark = pytest.mark.both

MISSING = "new Pods would not have the sidecar istio-proxy; check the injector"


@pytest.mark.parametrize("options", [[], [DRIFTED]])
def test_right_before_each_patch_the_injector_is_asked_again(drifted_fleet, start, options):
    held = drifted_fleet.fault(path="deployments/a$", release=threading.Event())
    running = start(drifted_fleet, CONFIRM, *options)
    assert held.reached.wait(20)
    drifted_fleet.injector.state = "ignored"
    held.release.set()
    ended = running.finish()
    assert patched(drifted_fleet) == []
    assert ended.code == 1
    failed = 1 if options else 5  # what the plan has promised has changed for all
    assert [ended.outcomes[f"shop/{name}"] for name in "abcdefg"] == [
        *["failed"] * failed,
        *["not_started"] * (7 - failed),
    ]
    assert messages(ended)["a"] == MISSING
    reason = "new Pods of Deployment shop/a would not have the sidecar"
    reason = reason if options else f"5 {IN_A_ROW}"
    assert messages(ended)["g"] == reason
    assert f"{reason}: {NO_NEW_ROLLOUTS}" in ended.stderr


def test_without_an_answer_nothing_is_begun(drifted_fleet, run):
    """Unknown excuses nothing, before a write either: a quota, or a webhook that was not reached."""
    drifted_fleet.injector.state = "fails"
    ended = run(drifted_fleet, CONFIRM)
    assert patched(drifted_fleet) == []
    assert set(ended.outcomes.values()) == {"skipped"}
    assert {row["code"] for row in ended.of("result")} == {"unknown"}
    assert messages(ended)["a"].startswith("not compared: 500 Internal error occurred: failed")


@pytest.mark.parametrize("options", [(), (DRIFTED,)])
def test_a_quota_that_is_exhausted_leaves_workloads_alone(cluster, start, options):
    """They would be stuck: 25 percent of 2 Pods is 0."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    make_old(cluster)
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    held = cluster.fault(method="GET", path="/deployments/web$", release=threading.Event())
    running = start(cluster, CONFIRM, *options)
    assert held.reached.wait(20)
    quota = {
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "2"}},
    }
    cluster.create("shop", quota)
    held.release.set()
    ended = running.finish()
    (result,) = ended.of("result")
    assert (result["outcome"], result["code"]) == ("skipped", "unknown")
    assert result["message"].startswith(
        "not compared: the quota small of the namespace is exhausted"
    )
    assert patched(cluster) == []


def test_what_the_api_server_would_reject_is_not_patched(drifted_fleet, run):
    drifted_fleet.injector.state = "denies"
    ended = run(drifted_fleet, CONFIRM, "--max-failures=1")
    assert patched(drifted_fleet) == []
    assert ended.outcomes["shop/a"] == "failed"
    assert messages(ended)["a"].startswith(NOT_CREATED)
    assert messages(ended)["b"] == "--max-failures=1 reached"


def test_what_a_webhook_denies_in_the_words_of_a_quota_is_denied(cluster, run):
    """A quota of the namespace itself says nothing: a Recreate makes room first."""
    cluster.create("shop", workload("Deployment", "web", strategy={"type": "Recreate"}))
    cluster.settle()
    denied = {"message": 'admission webhook "x" denied the request: team exceeded quota'}
    cluster.fault(method="POST", path="namespaces/shop/pods", status=403, body=denied, times=9)
    ended = run(cluster, CONFIRM)
    assert (ended.code, ended.outcomes) == (1, {"shop/web": "failed"})
    assert messages(ended)["web"].startswith(NOT_CREATED)
    assert patched(cluster) == []


@pytest.mark.embedded("a real one registers no such webhook")
def test_a_webhook_that_knows_no_dry_run_keeps_nothing_from_being_patched(drifted_fleet, run):
    drifted_fleet.injector.state = "no-dry-run"
    assert set(run(drifted_fleet, CONFIRM).outcomes.values()) == {"succeeded"}


@pytest.mark.embedded("a real one registers no such webhook")
def test_without_an_answer_a_stuck_sidecar_excuses_no_restart(cluster, run):
    """Nobody knows whether another one would be injected: a team's rollout is left alone."""
    cluster.create("shop", workload("Deployment", "web"))
    make_old(cluster)
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:broken-1"
    spec = pod_spec(container("app", env=[{"name": "RELEASE", "value": "2"}]))
    cluster.change("Deployment", "shop", "web", {"spec": {"template": {"spec": spec}}})
    cluster.wait_for(lambda: "ErrImagePull" in str(cluster.pods("shop")))
    cluster.injector.container["image"] = NEW
    cluster.injector.state = "no-dry-run"
    ended = run(cluster, CONFIRM, "--timeout=3s")
    assert (ended.outcomes, patched(cluster)) == ({"shop/web": "skipped"}, [])
    cluster.injector.state = "works"
    assert run(cluster, CONFIRM).outcomes == {"shop/web": "succeeded"}


def test_a_deployment_that_would_lose_all_its_pods_keeps_them(cluster, run):
    cluster.create("shop", {"kind": "ServiceAccount", "metadata": {"name": "web"}})
    spec = pod_spec(container("app"), serviceAccountName="web")
    cluster.create("shop", workload("Deployment", "web", spec, strategy={"type": "Recreate"}))
    cluster.settle()
    cluster.delete("ServiceAccount", "shop", "web")
    ended = run(cluster, CONFIRM)
    assert (ended.code, ended.outcomes) == (1, {"shop/web": "failed"})
    assert 'serviceaccount "web" not found' in messages(ended)["web"]
    assert patched(cluster) == []
    assert len(cluster.pods("shop")) == 1


def test_without_the_permission_to_create_pods_they_are_patched_all_the_same(drifted_fleet, run):
    ended = run(unchecked(drifted_fleet), CONFIRM)
    assert set(ended.outcomes.values()) == {"succeeded"}


def test_what_the_plan_did_not_show_is_not_begun(drifted_fleet, start):
    """The injector changes between the plan and the first turn."""
    held = drifted_fleet.fault(path="deployments/a$", release=threading.Event())
    running = start(drifted_fleet, CONFIRM, DRIFTED)
    assert held.reached.wait(20)
    drifted_fleet.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"
    held.release.set()
    ended = running.finish()
    assert patched(drifted_fleet) == []
    assert ended.code == 1
    first = next(row for row in ended.of("result") if row["name"] == "a")
    assert (first["outcome"], first["code"]) == ("skipped", "another_sidecar")
    change = "istio-proxy  image  docker.io/istio/proxyv2:1.27.0 -> 1.28.0"
    text = f"the injector changed since the plan: {change}; run this command again"
    assert first["message"] == text
    others = {row["code"] for row in ended.of("result") if row["name"] != "a"}
    assert others == {"stopped"}


def test_pods_that_have_lost_their_sidecar_since_the_plan_do_not_hide_a_broken_injector(
    cluster, start
):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    upgrade(cluster)
    held = cluster.fault(method="GET", path="/deployments/web$", release=threading.Event())
    running = start(cluster, CONFIRM, "--only-drifted")
    assert held.reached.wait(20)
    cluster.injector.state = "ignored"
    release = {"spec": {"template": {"metadata": {"labels": {"release": "2"}}}}}
    cluster.change("Deployment", "shop", "web", release)
    cluster.settle()
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "failed"}
    (result,) = ended.of("result")
    assert result["message"].startswith(WITHOUT_SIDECAR)
