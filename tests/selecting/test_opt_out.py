"""--include-annotation and --exclude-annotation: how teams opt in and out."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, patched

pytestmark = pytest.mark.both


@pytest.fixture
def annotated(cluster):
    """own: the workload has restart=never; template: its template has; other: restart=daily; none."""
    for name, value in (("own", "never"), ("other", "daily"), ("none", None)):
        template = workload("Deployment", name)
        if value:
            template["metadata"]["annotations"] = {"example.com/restart": value}
        cluster.create("shop", template)
    cluster.create(
        "shop", workload("Deployment", "template", annotations={"example.com/restart": "never"})
    )
    cluster.namespace("team", inject=True)
    cluster.create("team", workload("Deployment", "web"))
    cluster.settle()
    found = cluster.store.get("namespaces", "", "team")
    metadata = {**found["metadata"], "annotations": {"example.com/restart": "never"}}
    cluster.store.change("namespaces", found, metadata=metadata)
    return cluster


KEY = "annotation=example.com/restart"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ["none", "web", "other", "own", "template"]),
        ([f"--exclude-{KEY}=never"], ["none", "other"]),
        ([f"--exclude-{KEY}=n*"], ["none", "other"]),
        ([f"--exclude-{KEY}"], ["none"]),
        ([f"--include-{KEY}"], ["other", "own", "template"]),
        ([f"--include-{KEY}=d*", f"--include-{KEY}=never"], ["other", "own", "template"]),
        ([f"--include-{KEY}=never"], ["own", "template"]),
        ([f"--include-{KEY}", f"--exclude-{KEY}=never"], ["other"]),
        ([f"--exclude-{KEY}="], ["none", "web", "other", "own", "template"]),
    ],
)
def test_opt_in_and_opt_out(annotated, run, options, names):
    assert sorted(r["name"] for r in run(annotated, *options).of("plan")) == sorted(names)


def test_who_opted_out_is_told(annotated, run):
    ended = run(annotated, f"--exclude-{KEY}=never")
    assert ended.skipped == {
        "Deployment shop/own": "excluded",
        "Deployment shop/template": "excluded",
        "Deployment team/web": "excluded",
    }
    assert "namespace" in ended.reasons["Deployment team/web"]
    assert run(annotated, f"--include-{KEY}").skipped["Deployment shop/none"] == "not_included"


@pytest.mark.embedded("the test's own options name namespaces, and other requests are expected")
def test_namespaces_are_read_only_when_an_exclusion_asks_for_it(annotated, run):
    run(annotated)
    run(annotated, f"--include-{KEY}")
    assert [
        r.path for r in annotated.server.requests if r.path.startswith("/api/v1/namespaces/team")
    ] == []
    run(annotated, f"--exclude-{KEY}")
    assert "/api/v1/namespaces/team" in [r.path for r in annotated.server.requests]


def test_who_opts_out_after_the_plan_was_made_is_skipped(deployments_a_to_f, start):
    held = deployments_a_to_f.fault(method="PATCH", path="deployments/a", release=threading.Event())
    running = start(deployments_a_to_f, CONFIRM, f"--exclude-{KEY}=never", "--max-rollouts=2")
    assert held.reached.wait(20)
    deployments_a_to_f.change(
        "Deployment", "shop", "b", {"metadata": {"annotations": {"example.com/restart": "never"}}}
    )
    held.release.set()
    ended = running.finish()
    assert ended.outcomes["shop/b"] == "skipped"
    assert patched(deployments_a_to_f) == ["a"]


@pytest.mark.embedded("namespaces of tests are not changed there")
def test_a_namespace_that_opts_out_after_the_plan_was_made_is_skipped(cluster, start):
    cluster.namespace("legacy", inject=True)
    for namespace in ("legacy", "shop"):
        cluster.create(namespace, workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(method="PATCH", path="/legacy/deployments/web", release=threading.Event())
    running = start(cluster, CONFIRM, f"--exclude-{KEY}=never")
    assert held.reached.wait(20)
    with cluster.store.lock:
        found = cluster.store.get("namespaces", "", "shop")
        metadata = {**found["metadata"], "annotations": {"example.com/restart": "never"}}
        cluster.store.change("namespaces", found, metadata=metadata)
    held.release.set()
    assert running.finish().outcomes == {"legacy/web": "succeeded", "shop/web": "skipped"}


def test_a_namespace_that_is_gone_by_then_has_not_opted_out(cluster, start):
    cluster.namespace("preview", inject=True)
    for namespace in ("shop", "preview"):
        cluster.create(namespace, workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(
        path="/api/v1/namespaces/preview$", user_agent="sidecar-rollout", release=threading.Event()
    )
    running = start(cluster, "--exclude-annotation=example.com/restart=never")
    assert held.reached.wait(20)
    cluster.store.delete("namespaces", "", "preview")
    held.release.set()
    ended = running.finish()
    assert ended.code == 0
    assert ended.planned == ["preview/web", "shop/web"]
