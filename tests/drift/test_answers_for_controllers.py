"""An answer must be the one that controllers get: other constraints for a person, and stubs that nobody fills in."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded.manifests import container, pod_spec, service, workload
from support import CONFIRM, DRIFTED, EVICT, NEW, make_old, messages, patched, upgrade, verdicts

SCC = "openshift.io/scc"
OLD = "docker.io/istio/proxyv2:1.26.2"
STUB = "auto-broken"  # which the stand-in for the kubelet cannot pull


def admit(cluster, theirs: str, own: str, annotated: bool = True) -> None:
    """Let dry runs be admitted by another constraint than the Pods of controllers."""
    call = type(cluster.injector).__call__

    class Constrained(type(cluster.injector)):
        def __call__(self, pod, namespace, dry_run) -> None:
            call(self, pod, namespace, dry_run)
            scc = own if dry_run else theirs
            if annotated:
                pod["metadata"].setdefault("annotations", {})[SCC] = scc
            for found in pod["spec"]["containers"]:
                found["securityContext"] = {"capabilities": {"drop": [scc.upper()]}}

    cluster.injector.__class__ = Constrained


def create(cluster, *names: str) -> None:
    for name in names:
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()


def test_who_is_admitted_by_another_constraint_than_controllers_knows_nothing(cluster, run):
    admit(cluster, "restricted-v2", "anyuid")
    create(cluster, "a", "b")
    ended = run(cluster, DRIFTED, CONFIRM)
    assert set(verdicts(ended).values()) == {"unknown"}
    assert patched(cluster) == []
    assert (
        "admitted by SCC anyuid for you, and restricted-v2 for its controller: run as a service "
        "account that may use no other"
    ) in ended.reasons["Deployment shop/a"]


def test_without_a_comparison_it_says_nothing_about_a_restart(cluster, run):
    admit(cluster, "restricted-v2", "anyuid")
    create(cluster, "a")
    assert run(cluster, CONFIRM).outcomes == {"shop/a": "succeeded"}


@pytest.mark.parametrize("annotated", [True, False])
def test_who_is_admitted_as_controllers_are_compares(cluster, run, annotated):
    admit(cluster, "restricted-v2", "restricted-v2", annotated)
    create(cluster, "a")
    assert verdicts(run(cluster, DRIFTED)) == {"shop/a": "up_to_date"}


def test_new_pods_that_differ_where_the_old_ones_did_stop_the_run(cluster, run):
    """No annotation says why."""
    admit(cluster, "restricted", "any", annotated=False)
    create(cluster, "a", "b", "c")
    upgrade(cluster)
    ended = run(cluster, DRIFTED, CONFIRM)
    assert ended.code == 1
    assert ended.outcomes == {
        "shop/a": "still_drifted",
        "shop/b": "not_started",
        "shop/c": "not_started",
    }
    assert messages(ended)["a"].startswith("the new Pods have another sidecar than in the plan: ")
    assert messages(ended)["b"] == "the injector changed since the plan"


# Stubs


@pytest.fixture
def stated(cluster):
    """Deployments whose templates state the sidecar with an image that the injector fills in."""
    cluster.image = OLD

    def inject(pod: dict) -> None:
        for found in pod["spec"]["containers"]:
            if found["name"] == "istio-proxy" and found["image"] == STUB:
                found["image"] = cluster.image

    cluster.injector.inject = inject
    for name in ("a", "b", "c"):
        spec = pod_spec(container("app"), container("istio-proxy", STUB))
        cluster.create("shop", workload("Deployment", name, spec, replicas=2))
        cluster.create("shop", service(name))
    cluster.settle()
    return cluster


def test_a_stub_that_is_filled_in_is_a_sidecar(stated, run):
    assert set(verdicts(run(stated, DRIFTED)).values()) == {"up_to_date"}
    stated.image = NEW
    ended = run(stated, DRIFTED, CONFIRM)
    assert set(ended.outcomes.values()) == {"succeeded"}
    assert {r["differences"][0]["expected"] for r in ended.of("plan")} == {NEW}


@pytest.mark.parametrize("options", [[DRIFTED], []], ids=["drifted", "all"])
def test_a_stub_that_nobody_fills_in_is_no_sidecar(stated, run, options):
    stated.injector.inject = lambda pod: None
    ended = run(stated, *options, CONFIRM)
    assert patched(stated) == []
    if options:
        assert set(ended.skipped.values()) == {"losing_sidecar"}
    else:
        assert "would not have the sidecar istio-proxy" in messages(ended)["a"]


def test_new_pods_with_a_stub_have_lost_their_sidecar(stated, run):
    """The injector breaks after the dry runs of the first workload."""
    stated.image = NEW
    stated.injector.breaks_after = 0
    ended = run(stated, DRIFTED, CONFIRM, "--timeout=3s")
    assert ended.outcomes == {
        "shop/a": "lost_sidecar",
        "shop/b": "not_started",
        "shop/c": "not_started",
    }
    assert patched(stated) == ["a"]


@pytest.mark.parametrize("options", [[DRIFTED], []], ids=["drifted", "all"])
def test_a_release_of_a_named_container_of_the_template_is_no_lost_sidecar(cluster, start, options):
    """As with OpenTelemetry: the application's container is named, too. A team deploys meanwhile."""
    for name in ("a", "b", "c"):
        cluster.create("shop", workload("Deployment", name))
    make_old(cluster)
    upgrade(cluster)
    held = cluster.fault(path="deployments/b$", release=threading.Event())
    names = [f"--sidecar-container-name={name}" for name in ("istio-proxy", "app")]
    running = start(cluster, CONFIRM, *options, *names)
    assert held.reached.wait(20)
    spec = pod_spec(container("app", "example.com/app:2"))
    cluster.change("Deployment", "shop", "b", {"spec": {"template": {"spec": spec}}})
    cluster.settle()
    held.release.set()
    ended = running.finish()
    expected = {"shop/a": "succeeded", "shop/b": "skipped", "shop/c": "succeeded"}
    assert (ended.code, ended.outcomes) == (0, expected)


def test_a_sidecar_of_the_template_itself_is_compared_as_it_is(cluster, run):
    """Nobody injects it: its image is that of the template, and of its Pods."""
    cluster.namespace("plain")
    spec = pod_spec(container("app"), container("istio-proxy", OLD))
    cluster.create("plain", workload("Deployment", "own", spec))
    cluster.settle()
    assert verdicts(run(cluster, DRIFTED)) == {"plain/own": "up_to_date"}


def test_an_image_that_the_template_states_may_be_injected_all_the_same(cluster, run):
    """Istio keeps it, and adds the arguments. An OnDelete workload waits for its Pods to go."""

    def inject(pod: dict) -> None:
        for found in pod["spec"]["containers"]:
            if found["name"] == "istio-proxy":
                found["args"] = ["proxy", "sidecar"]

    cluster.injector.inject = inject
    spec = pod_spec(container("app"), container("istio-proxy", OLD))
    on_delete = {"updateStrategy": {"type": "OnDelete"}}
    cluster.create("shop", workload("StatefulSet", "db", spec, **on_delete))
    cluster.settle()
    spec = pod_spec(container("app"), container("istio-proxy", NEW))
    cluster.change("StatefulSet", "shop", "db", {"spec": {"template": {"spec": spec}}})
    ended = run(cluster, DRIFTED, *EVICT, CONFIRM)
    assert ended.skipped == {"StatefulSet shop/db": "pending_template"}
