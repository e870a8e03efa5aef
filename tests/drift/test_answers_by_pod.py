"""Injectors whose answer depends on the Pod, or has a random value: neither hides real drift, nor is drift itself."""

from __future__ import annotations

import itertools

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, NEW, lines, verdicts

pytestmark = pytest.mark.both


@pytest.fixture
def by_pod(cluster):
    """An injector that writes a label of the Pod into its sidecar, and a StatefulSet of three Pods."""

    def inject(pod: dict) -> None:
        real(pod)
        labels = pod["metadata"].get("labels", {})
        name = labels.get("statefulset.kubernetes.io/pod-name", "none")
        pod["spec"]["containers"][-1]["env"] = [{"name": "POD", "value": name}]

    real = cluster.injector.inject
    cluster.injector.inject = inject
    cluster.create("shop", workload("StatefulSet", "db", replicas=3))
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    return cluster


def test_what_belongs_to_the_pod_is_no_drift(by_pod, run):
    ended = run(by_pod, DRIFTED, "--include-statefulset")
    assert verdicts(ended) == {"shop/db": "up_to_date", "shop/web": "up_to_date"}
    ignored = {r["name"]: r["ignored"] for r in ended.of("drift")}
    assert ignored == {"db": [["istio-proxy", "env", "POD"]], "web": []}


def test_what_else_drifted_is_rolled_out_once(by_pod, run):
    by_pod.injector.container["image"] = "istio/proxyv2:2"
    ended = run(by_pod, DRIFTED, "--include-statefulset", CONFIRM)
    assert lines(ended, "db") == [
        "istio-proxy.image: docker.io/istio/proxyv2:1.26.2 -> istio/proxyv2:2"
    ]
    assert set(ended.outcomes.values()) == {"succeeded"}
    again = run(by_pod, DRIFTED, "--include-statefulset", CONFIRM)
    assert (again.code, again.planned) == (0, [])


@pytest.fixture
def some_stamped(cluster):
    """Deployments a to d; a variable of the sidecar is random for a, and drifted for d."""
    counter = itertools.count()
    real = cluster.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        app = pod["metadata"]["labels"]["app"]
        value = str(next(counter)) if app in cluster.stamped else cluster.value
        pod["spec"]["containers"][-1]["env"] = [{"name": "X", "value": value}]

    cluster.injector.inject, cluster.value, cluster.stamped = inject, "old", "a"
    for name in "abcd":
        cluster.create("shop", workload("Deployment", name, replicas=3 if name == "a" else 1))
    cluster.settle()
    cluster.value = "new"
    return cluster


def test_a_random_value_of_one_workload_excuses_no_other(some_stamped, run):
    ended = run(some_stamped, DRIFTED, "--fail-on-drift")
    drifted = dict.fromkeys(["shop/b", "shop/c", "shop/d"], "drifted")
    assert verdicts(ended) == {"shop/a": "up_to_date", **drifted}
    assert ended.code == 1


def test_each_that_differs_is_asked_again(some_stamped, run):
    some_stamped.stamped = ""
    some_stamped.delete("Deployment", "shop", "a")
    some_stamped.wait_for(lambda: len(some_stamped.store.list("pods", "shop")) == 3)
    before = len(some_stamped.injector.seen)
    run(some_stamped, DRIFTED)
    assert len(some_stamped.injector.seen) - before == 6


def test_a_random_argument_is_no_drift_and_what_else_differs_is(cluster, run):
    counter = itertools.count()
    real = cluster.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        pod["spec"]["containers"][-1]["args"] = ["--seed", str(next(counter))]

    cluster.injector.inject = inject
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    (drift,) = run(cluster, DRIFTED).of("drift")
    assert (drift["verdict"], drift["ignored"]) == ("up_to_date", [["istio-proxy", "args", "1"]])
    cluster.injector.container["image"] = NEW
    (drift,) = run(cluster, DRIFTED).of("drift")
    assert [d["path"] for d in drift["differences"]] == [["istio-proxy", "image"]]


def test_an_error_in_the_second_dry_run_leaves_it_unknown(cluster, run, monkeypatch):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.container["image"] = "istio/proxyv2:2"
    call = type(cluster.injector).__call__

    def second_fails(injector, pod, namespace, dry_run) -> None:
        if dry_run and injector.seen:
            injector.state = "fails"
        call(injector, pod, namespace, dry_run)

    monkeypatch.setattr(type(cluster.injector), "__call__", second_fails)
    (drift,) = run(cluster, DRIFTED).of("drift")
    assert (drift["verdict"], drift["differences"]) == ("unknown", [])
    assert "failed calling webhook" in drift["message"]
