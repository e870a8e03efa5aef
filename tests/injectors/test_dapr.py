"""Dapr's sidecar injector: Pods ask for it by annotations, and it knows whose Pods it takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clusters.control_plane.remote import Shared
from clusters.embedded.manifests import workload
from clusters.injectors import Dapr
from support import BOTH, CONFIRM, DRIFTED, lines, verdicts
from workloads_of_every_kind import stay_up_to_date

pytestmark = pytest.mark.injectors
WANTED = {"dapr.io/enabled": "true", "dapr.io/app-id": "app", "dapr.io/app-port": "8080"}
OLD, NEW = "ghcr.io/dapr/daprd:1.15.0", "ghcr.io/dapr/daprd:1.16.0"
DAPRD = "--sidecar-container-name=daprd"
OPTIONS = (DRIFTED, *BOTH, DAPRD)


@pytest.fixture(scope="module")
def dapr(shared: Shared, programs: dict) -> Iterator[Dapr]:
    found = Dapr(
        shared.api, programs["dapr"], str(shared.folder / "kubeconfig"), shared.webhook.label
    )
    found.install()
    yield found
    found.close()


def has(image: str):
    def is_injected(pod: dict) -> bool:
        return [c["image"] for c in pod["spec"]["containers"] if c["name"] == "daprd"] == [image]

    return is_injected


def test_nothing_drifts_until_an_upgrade_which_is_found_exactly(dapr, real_cluster, until, run):
    dapr.image = OLD
    company = stay_up_to_date(dapr, real_cluster, until, run, has(OLD), *OPTIONS, **WANTED)

    dapr.image = NEW
    dapr.start()
    until(has(NEW), **WANTED)
    ended = run(real_cluster, *OPTIONS)
    for name in (reference.partition("/")[2] for reference in company):
        assert lines(ended, name) == [f"daprd.image: {OLD} -> {NEW}"]
    confirmed = run(real_cluster, *OPTIONS, CONFIRM, "--parallel-rollouts=5")
    assert confirmed.outcomes == dict.fromkeys(company, "succeeded")
    assert verdicts(run(real_cluster, *OPTIONS)) == company
    assert all(map(has(NEW), real_cluster.pods("shop") + real_cluster.pods("bank")))


def test_who_may_not_create_pods_with_the_sidecar_changes_nothing(dapr, real_cluster, until, run):
    """Dapr ignores the Pods of users it does not know: their dry runs have no sidecar."""
    dapr.image = OLD
    dapr.start()
    real_cluster.namespace("shop")
    until(has(OLD), **WANTED)
    real_cluster.create("shop", workload("Deployment", "web", replicas=2, annotations=WANTED))
    real_cluster.settle()
    everything = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    kubeconfig = real_cluster.kubeconfig_of("operator", everything)
    ended = run(kubeconfig, DRIFTED, DAPRD, CONFIRM)
    assert (ended.code, ended.planned, ended.of("result")) == (0, [], [])
    (path,) = [d["path"] for r in ended.of("drift") for d in r["differences"]]
    assert path == ["daprd"]
    assert verdicts(run(real_cluster, DRIFTED, DAPRD)) == {"shop/web": "up_to_date"}
