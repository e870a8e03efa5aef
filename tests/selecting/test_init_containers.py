"""Init containers that an injector adds: matched by name, compared and verified like sidecars."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, DRIFTED, TEXT, lines, verdicts
from texts import WITHOUT_SIDECAR

pytestmark = pytest.mark.both

ISTIO = "--sidecar-container-name=istio-*"
AGENT = "--sidecar-container-name=opentelemetry-auto-instrumentation-*"
OLD, NEW = "docker.io/istio/proxyv2:1.26.2", "docker.io/istio/proxyv2:1.27.0"


@pytest.fixture
def with_init_containers(cluster):
    """Two Deployments whose Pods have the sidecar istio-proxy and the init container istio-init."""
    cluster.injector.also = {"initContainers": [container("istio-init", OLD)]}
    for name in ("cart", "web"):
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.settle()
    return cluster


@pytest.fixture
def instrumented(cluster):
    """A Deployment whose Pods have an injected init container, and no sidecar."""
    image = "registry.example/autoinstrumentation-java:1.32.0"
    cluster.injector.container = container("opentelemetry-auto-instrumentation-java", image)
    cluster.injector.init = True
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    return cluster


def upgrade_init(cluster) -> None:
    cluster.injector.also = {"initContainers": [container("istio-init", NEW)]}


def test_json_and_the_table_mark_them(with_init_containers, run):
    (plan, _) = run(with_init_containers, ISTIO).of("plan")
    assert plan["sidecars"] == [
        {"name": "istio-init", "image": OLD, "native": False, "init": True},
        {"name": "istio-proxy", "image": OLD, "native": False, "init": False},
    ]
    assert (
        "  istio-init 1.26.2 (init), istio-proxy 1.26.2  "
        in run(with_init_containers, ISTIO, TEXT).stdout
    )
    alone = run(with_init_containers, "--sidecar-container-name=istio-init", TEXT).stdout
    assert "  2     1.26.2 (init)  " in alone


def test_one_that_is_not_named_is_no_drift(with_init_containers, run):
    upgrade_init(with_init_containers)
    ended = run(with_init_containers, DRIFTED)
    assert verdicts(ended) == {"shop/cart": "up_to_date", "shop/web": "up_to_date"}


def test_a_new_image_is_drift_and_rolled_out_once(with_init_containers, run):
    upgrade_init(with_init_containers)
    ended = run(with_init_containers, ISTIO, DRIFTED, CONFIRM)
    assert lines(ended, "web") == [f"istio-init.image: {OLD} -> {NEW}"]
    assert ended.outcomes == {"shop/cart": "succeeded", "shop/web": "succeeded"}
    images = {p["spec"]["initContainers"][0]["image"] for p in with_init_containers.pods("shop")}
    assert images == {NEW}
    again = run(with_init_containers, ISTIO, DRIFTED)
    assert verdicts(again) == {"shop/cart": "up_to_date", "shop/web": "up_to_date"}


def test_auto_instrumentation_has_nothing_else(instrumented, run):
    instrumented.injector.container["image"] = "registry.example/autoinstrumentation-java:1.33.0"
    dry = run(instrumented, AGENT, DRIFTED, TEXT).stdout
    assert "opentelemetry-auto-instrumentation-java  image  " in dry
    assert "opentelemetry-auto-instrumentation-java 1.32.0 (init)" in dry
    ended = run(instrumented, AGENT, DRIFTED, CONFIRM)
    assert ended.outcomes == {"shop/web": "succeeded"}


def test_one_that_would_be_removed_is_restarted_only_if_that_is_allowed(with_init_containers, run):
    with_init_containers.injector.also = {}
    name = "--sidecar-container-name=istio-init"
    ended = run(with_init_containers, name, DRIFTED)
    assert verdicts(ended) == {"shop/cart": "drifted", "shop/web": "drifted"}
    assert ended.planned == []
    done = run(with_init_containers, name, DRIFTED, CONFIRM, "--allow-removal")
    assert done.outcomes == {"shop/cart": "succeeded", "shop/web": "succeeded"}
    assert not any(p["spec"].get("initContainers") for p in with_init_containers.pods("shop"))


def test_another_match_of_the_same_pattern_may_take_its_place(with_init_containers, run):
    """As with Istio CNI; a sidecar is protected all the same."""
    with_init_containers.injector.also = {"initContainers": [container("istio-validation", OLD)]}
    ended = run(with_init_containers, ISTIO, DRIFTED)
    assert ended.planned == ["shop/cart", "shop/web"]
    with_init_containers.injector.container["name"] = "istio-other"
    assert run(with_init_containers, ISTIO, DRIFTED).planned == []


def test_an_init_container_that_becomes_a_native_sidecar(with_init_containers, run):
    native = container("istio-init", OLD, restartPolicy="Always")
    with_init_containers.injector.also = {"initContainers": [native]}
    text = run(with_init_containers, ISTIO, DRIFTED, TEXT).stdout
    assert "istio-init  changes from an init container to a native sidecar" in text


def test_that_of_another_container_is_no_drift(with_init_containers, run):
    native = container("istio-init", OLD, restartPolicy="Always")
    with_init_containers.injector.also = {"initContainers": [native]}
    (record, _) = run(with_init_containers, DRIFTED).of("drift")
    assert record["verdict"] == "up_to_date"


def test_a_rollout_is_not_started_if_it_would_lose_one(with_init_containers, run):
    with_init_containers.injector.also = {}
    ended = run(with_init_containers, "--sidecar-container-name=istio-init", CONFIRM)
    assert ended.outcomes == {"shop/cart": "failed", "shop/web": "failed"}
    (message, _) = [r["message"] for r in ended.of("result")]
    assert message.startswith(f"{WITHOUT_SIDECAR} istio-init; ")


def test_a_rollout_that_lost_one_stops_the_run(instrumented, run):
    instrumented.create("shop", workload("Deployment", "zoo", replicas=3))
    instrumented.settle()
    instrumented.injector.breaks_after = 0
    ended = run(instrumented, AGENT, CONFIRM)
    assert ended.outcomes == {"shop/web": "lost_sidecar", "shop/zoo": "not_started"}


def test_an_init_container_in_the_template_counts_as_well(cluster, run):
    spec = pod_spec(init=(container("istio-init", OLD),))
    cluster.namespace("plain")
    cluster.create("plain", workload("Deployment", "own", spec))
    cluster.settle()
    ended = run(cluster, "--sidecar-container-name=istio-init", DRIFTED)
    assert verdicts(ended) == {"plain/own": "up_to_date"}
