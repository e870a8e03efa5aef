"""A mistyped protection protects nothing: with --confirm, that is an error before anything is changed."""

from __future__ import annotations

import pytest
from cluster.manifests import workload
from hypothesis import given
from hypothesis import strategies as st
from support import CONFIRM, DRIFTED, TEXT, patched


@pytest.fixture
def mesh_and_shop(cluster):
    cluster.namespace("istio-system", inject=True)
    cluster.create("istio-system", workload("Deployment", "gateway"))
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    return cluster


@pytest.mark.parametrize(
    "name", ["istio-sytem", "istio-systemm", "istio-systen", "istio-ssystem", "istio-sysetm"]
)
def test_a_typo_in_an_excluded_namespace_is_an_error(mesh_and_shop, run, name):
    ended = run(mesh_and_shop, f"--exclude-namespace={name}", CONFIRM, TEXT)
    assert (ended.code, patched(mesh_and_shop)) == (3, [])
    text = f"namespace {name} of --exclude-namespace does not exist; did you mean istio-system?"
    assert ended.stderr.splitlines()[-1].endswith(f"error: {text} (nothing was changed)")
    shown = run(mesh_and_shop, f"--exclude-namespace={name}", TEXT)
    assert (shown.code, shown.stderr.count("WARNING")) == (0, 1)


@pytest.mark.parametrize(
    "options",
    [
        ["--exclude-namespace=istio-stm"],  # two letters: one command serves several clusters
        ["--exclude-namespace=kube-sytem"],  # no Pods in it
        ["--exclude-namespace=istio-sytem*"],
        ["--exclude-namespace=istio-sytem", "--exclude-namespace=istio-system"],
        ["--exclude-namespace=istio-syste?x"],
        ["--exclude-namespace=istio-systemm", "-n=istio-system", "-n=sho*"],
    ],
)
def test_everything_else_is_a_warning(mesh_and_shop, run, options):
    ended = run(mesh_and_shop, *options, CONFIRM, TEXT)
    assert ended.code == 0
    assert "web" in patched(mesh_and_shop)
    assert "WARNING no Pods in namespace" in ended.stderr


def test_a_namespace_that_exists_is_no_typo(mesh_and_shop, run):
    mesh_and_shop.namespace("istio-sytem")
    ended = run(mesh_and_shop, "--exclude-namespace=istio-sytem", CONFIRM)
    assert (ended.code, sorted(patched(mesh_and_shop))) == (0, ["gateway", "web"])


@given(st.text("abc-", min_size=1, max_size=8), st.text("abc-", max_size=8))
def test_what_counts_as_a_typo(tool, right, other):
    """One letter is missing, added or wrong, or two neighbors are swapped."""
    letters = "abc-"
    near = {right[:i] + right[i + 1 :] for i in range(len(right))}
    near |= {right[:i] + c + right[i:] for i in range(len(right) + 1) for c in letters}
    near |= {right[:i] + c + right[i + 1 :] for i in range(len(right)) for c in letters}
    near |= {right[:i] + right[i + 1] + right[i] + right[i + 2 :] for i in range(len(right) - 1)}
    for name in {*near, other}:
        assert tool.is_typo_of(name, right) == (name in near and name != right)


def test_an_exclude_annotation_that_matches_nothing_is_a_warning(cluster, run):
    note = {"metadata": {"annotations": {"team/restart": "never"}}}
    cluster.create("shop", workload("Deployment", "web"))
    cluster.create("shop", workload("Deployment", "api", annotations={"team/keep": "yes"}))
    cluster.change("Deployment", "shop", "web", note)
    cluster.change("Namespace", "", "shop", {"metadata": {"annotations": {"team/here": "1"}}})
    cluster.settle()
    for found in ("team/restart=never", "team/keep", "team/here=1"):
        assert "WARNING" not in run(cluster, TEXT, f"--exclude-annotation={found}").stderr
    for absent in ("team/restrat", "team/restart=often"):
        text = "no workload with the sidecar, and none of their namespaces, matches "
        text += f"--exclude-annotation={absent}"
        ended = run(cluster, TEXT, f"--exclude-annotation={absent}")
        assert f"WARNING {text}; check it" in ended.stderr
        assert ended.code == 0


@pytest.mark.both
@pytest.mark.parametrize("options", [[CONFIRM], [DRIFTED, "--fail-on-drift"]])
def test_a_workload_that_does_not_exist_in_any_namespace_is_an_error(cluster, run, options):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    ended = run(cluster, "deployment/webb", *options, TEXT)
    assert ended.code == 1
    assert 'error: deployments.apps "webb" not found in ' in ended.stderr
    assert patched(cluster) == []


@pytest.mark.both
def test_no_pods_for_a_selector_is_a_warning(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    ended = run(cluster, "-n=shop", "--selector=app=wbe", TEXT, CONFIRM)
    assert ended.code == 0
    assert "WARNING no Pods match the selector app=wbe; check it" in ended.stderr
