"""--fail-on-drift: an audit that changes nothing."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import workload
from support import patched

pytestmark = pytest.mark.both


@pytest.mark.parametrize(
    ("state", "code"),
    [("works", 0), ("drifted", 1), ("denies", 1), ("fails", 1), ("ignored", 1), ("no-dry-run", 1)],
)
def test_fail_on_drift_is_a_gate(cluster, run, state, code):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    if state == "drifted":
        cluster.injector.container["image"] = "istio/proxyv2:2"
    else:
        cluster.injector.state = state
    ended = run(cluster, "--only-drifted", "--fail-on-drift")
    assert ended.code == ended.summary["exit_code"] == code
    assert patched(cluster) == []


def test_an_audit_prints_no_command(cluster, run):
    """It changes nothing, and nobody waits to apply it."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.container["image"] = "istio/proxyv2:2"
    audit = ("--only-drifted", "--fail-on-drift")
    assert run(cluster, *audit).summary["command"] == []
    text = run(cluster, *audit, "--log-format=text").stdout
    assert "nothing was changed.\nFailed: 1 not up to date (1 drifted).\n" in text


@pytest.mark.embedded("a deletion cannot be kept from ending")
def test_pods_of_what_is_being_deleted_count(cluster, run):
    """A finalizer may hold it for weeks, and its Pods run on."""
    cluster.create("shop", workload("Deployment", "leaving"))
    cluster.settle()
    cluster.injector.container["image"] = "istio/proxyv2:2"
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    audit = "--only-drifted", "--fail-on-drift"
    assert run(cluster, *audit).code == 1
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}
    cluster.change("Deployment", "shop", "leaving", {"metadata": leaving})
    ended = run(cluster, *audit)
    assert (ended.code, ended.summary["not_up_to_date"]) == (1, {"being_deleted": 1})
