"""OpenKruise's SidecarSet: the sidecar is a custom resource, and Pods are selected by labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from clusters.control_plane.api import ApiError
from clusters.control_plane.remote import Shared
from clusters.embedded.manifests import workload
from clusters.injectors import OpenKruise, apply
from support import BOTH, CONFIRM, DRIFTED, lines, verdicts
from workloads_of_every_kind import stay_up_to_date

pytestmark = pytest.mark.injectors
OLD, NEW = "registry.example/proxy:1", "registry.example/proxy:2"
OPTIONS = (DRIFTED, *BOTH, "--sidecar-container-name=proxy")


def proxy(image: str, level: str = "info") -> dict:
    """A SidecarSet's container, with what people set in it."""
    return {
        "name": "proxy",
        "image": image,
        "env": [{"name": "LEVEL", "value": level}],
        "resources": {"requests": {"cpu": "10m"}},
        "volumeMounts": [],
        "podInjectPolicy": "AfterAppContainer",
        "shareVolumePolicy": {"type": "disabled"},
    }


@pytest.fixture(scope="module")
def kruise(shared: Shared, programs: dict) -> Iterator[OpenKruise]:
    found = OpenKruise(
        shared.api, programs["kruise"], str(shared.folder / "kubeconfig"), shared.webhook.label
    )
    found.install()
    yield found
    found.close()


@pytest.fixture
def inject(kruise: OpenKruise, real_cluster) -> Callable[[dict], None]:
    """inject(container): let a SidecarSet inject it, once the manager answers."""

    def create(found: dict) -> None:
        def is_created() -> bool:
            try:
                kruise.inject(found)
            except ApiError:
                return False
            return True

        real_cluster.wait_for(is_created, 20)

    return create


def has(image: str):
    def is_injected(pod: dict) -> bool:
        return [c["image"] for c in pod["spec"]["containers"] if c["name"] == "proxy"] == [image]

    return is_injected


def test_nothing_drifts_until_an_upgrade_which_is_found_exactly(
    kruise, inject, real_cluster, until, run
):
    kruise.start()
    inject(proxy(OLD))
    company = stay_up_to_date(kruise, real_cluster, until, run, has(OLD), *OPTIONS)

    inject(proxy(NEW, "debug"))
    until(has(NEW))
    ended = run(real_cluster, *OPTIONS, "--show-values")
    for name in (reference.partition("/")[2] for reference in company):
        assert lines(ended, name) == [
            "proxy.env.LEVEL: info -> debug",
            f"proxy.image: {OLD} -> {NEW}",
        ]
    confirmed = run(real_cluster, *OPTIONS, CONFIRM, "--parallel-rollouts=5")
    assert confirmed.outcomes == dict.fromkeys(company, "succeeded")
    assert verdicts(run(real_cluster, *OPTIONS)) == company
    assert all(map(has(NEW), real_cluster.pods("shop") + real_cluster.pods("bank")))


def test_a_container_of_a_sidecar_set_is_not_changed_in_place(
    kruise, inject, real_cluster, until, run
):
    """The manager does that itself, and lists it in an annotation of the Pod."""
    kruise.start()
    inject(proxy(OLD))
    real_cluster.namespace("shop")
    until(has(OLD))
    real_cluster.create("shop", workload("Deployment", "web", replicas=2))
    real_cluster.settle()
    inject(proxy(NEW))
    until(has(NEW))
    ended = run(real_cluster, *OPTIONS, "--in-place", CONFIRM)
    assert ended.skipped == {"Deployment shop/web": "changed_in_place"}
    restarted = run(real_cluster, *OPTIONS, CONFIRM)
    assert restarted.outcomes == {"shop/web": "succeeded"}
    assert all(map(has(NEW), real_cluster.pods("shop")))


def test_a_clone_set_that_is_scaled_to_0_is_named_by_a_question(
    kruise, inject, real_cluster, until, run
):
    """No Pod leads to it, but it keeps its revisions as those of a StatefulSet are kept."""
    kruise.start()
    inject(proxy(NEW))
    real_cluster.namespace("shop")
    until(has(NEW))
    real_cluster.create("shop", workload("Deployment", "web", replicas=2))
    real_cluster.settle()
    question = (f"--expect-image={NEW}", "--sidecar-container-name=proxy")
    said = run(real_cluster, *question).summary["expected"]
    assert (said["yes"], said["asked"], said["not_asked"]) == (True, 1, {})
    spec = workload("Deployment", "idle", replicas=0)["spec"]
    found = {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet"}
    namespace = real_cluster.names.real("shop")
    found["metadata"] = {"name": "idle", "namespace": namespace}
    spec = {name: spec[name] for name in ("replicas", "selector", "template")}
    apply(kruise.api, {**found, "spec": spec})
    path = f"/apis/apps/v1/namespaces/{namespace}/controllerrevisions"
    real_cluster.wait_for(lambda: kruise.api.ask("GET", path)["items"], 20)
    said = run(real_cluster, *question).summary["expected"]
    assert (said["yes"], said["asked"], said["not_asked"]) == (True, 1, {"without_pods": 1})
