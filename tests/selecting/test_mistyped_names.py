"""A mistyped protection protects nothing: what matches nothing is told."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, TEXT


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
def test_no_pods_for_a_selector_is_a_warning(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    ended = run(cluster, "-n=shop", "--selector=app=wbe", TEXT, CONFIRM)
    assert ended.code == 0
    assert "WARNING no Pods match the selector app=wbe; check it" in ended.stderr
