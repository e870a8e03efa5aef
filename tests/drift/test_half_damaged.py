"""Pods that lack the sidecar beside Pods that have it."""

from __future__ import annotations

import pytest
from cluster.manifests import container, workload
from support import (
    BOTH,
    CONFIRM,
    DRIFTED,
    TEXT,
    a_workload,
    lines,
    options_of,
    patched,
    unchecked,
    verdicts,
)

pytestmark = pytest.mark.both

IMAGE = "docker.io/istio/proxyv2:1.26.2"


def sidecars(cluster, name: str) -> list[int]:
    """How many containers each Pod has."""
    return sorted(len(p["spec"]["containers"]) for p in cluster.pods("shop", name))


def damage(cluster, name: str) -> None:
    """Replace a Pod of a workload while the injector is away."""
    cluster.injector.state = "ignored"
    cluster.delete("Pod", "shop", cluster.pods("shop", name)[0]["metadata"]["name"])
    cluster.wait_for(lambda: sidecars(cluster, name) == [1, 2])
    cluster.settle()
    cluster.injector.state = "works"


@pytest.fixture
def damaged(cluster):
    """Deployment web and StatefulSet db; one Pod of two of each has no sidecar."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.create("shop", workload("Deployment", "well", replicas=2))
    cluster.create("shop", workload("StatefulSet", "db", replicas=2))
    cluster.settle()
    for name in ("web", "db"):
        damage(cluster, name)
    return cluster


def test_they_are_drifted_without_any_option(damaged, run):
    ended = run(damaged, DRIFTED, *BOTH)
    assert verdicts(ended) == {
        "shop/db": "drifted",
        "shop/web": "drifted",
        "shop/well": "up_to_date",
    }
    assert lines(ended, "web")[0].startswith("istio-proxy: None -> {")
    assert {r["name"]: r["pods_to_replace"] for r in ended.of("plan")} == {"db": 1, "web": 1}
    assert "; 1 of 2 Pods has no sidecar\n" in run(damaged, DRIFTED, *BOTH, TEXT).stdout
    done = run(damaged, DRIFTED, *BOTH, CONFIRM)
    assert done.outcomes == {"shop/db": "succeeded", "shop/web": "succeeded"}
    assert sidecars(damaged, "web") == sidecars(damaged, "db") == [2, 2]


def test_they_are_replaced_whatever_their_age(damaged, run):
    """The cutoff of a printed command must not exclude them."""
    for found in damaged.pods("shop"):
        has_sidecar = len(found["spec"]["containers"]) == 2
        damaged.backdate(found, 3600 if has_sidecar else 0)
    an_hour_ago = (
        f"--only-started-before={damaged.pods('shop', 'well')[0]['metadata']['creationTimestamp']}"
    )
    for options in ([an_hour_ago], [an_hour_ago, DRIFTED]):
        ended = run(damaged, *options)
        (plan,) = ended.of("plan")
        assert (plan["name"], plan["pods_to_replace"], plan["pods"]) == ("web", 1, 2)
    assert "; 1 of 2 Pods has no sidecar\n" in run(damaged, an_hour_ago, TEXT).stdout
    assert run(damaged, an_hour_ago, CONFIRM).outcomes == {"shop/web": "succeeded"}
    assert sidecars(damaged, "web") == [2, 2]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("ignored", "a dry run does not return it"),
        (
            "denies",
            'admission webhook "inject.sidecar.example" denied the request: injector says no',
        ),
    ],
)
def test_a_restart_for_their_sake_needs_a_dry_run_that_returns_the_sidecar(
    damaged, run, state, said
):
    damaged.injector.state = state
    early = "--only-started-before=2020-01-01T00:00:00Z"
    ended = run(damaged, early, CONFIRM)
    assert (ended.code, ended.planned, patched(damaged)) == (0, [], [])
    assert ended.skipped == {
        "StatefulSet shop/db": "not selected; add --include-statefulset",
        "Deployment shop/web": ended.skipped["Deployment shop/web"],
    }
    reason = ended.skipped["Deployment shop/web"]
    assert reason.startswith("1 of 2 Pods has no sidecar: ") and reason.endswith(said)


def test_without_permission_for_the_dry_run_they_are_skipped(damaged, run):
    early = "--only-started-before=2020-01-01T00:00:00Z"
    ended = run(unchecked(damaged), early, CONFIRM)
    assert ended.planned == []
    reason = ended.skipped["Deployment shop/web"]
    assert reason.startswith("1 of 2 Pods has no sidecar: 403 pods is forbidden")


def test_the_pod_of_a_rollout_without_the_sidecar_is_repaired(cluster, run):
    """Of two ReplicaSets, the new one lacks it. Its Pods do not get ready, so it never completes."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    cluster.injector.state = "ignored"
    cluster.kubelet.ready_after = 60
    template = {"metadata": {"annotations": {"a": "b"}}}
    cluster.change("Deployment", "shop", "web", {"spec": {"template": template}})
    cluster.wait_for(lambda: 1 in sidecars(cluster, "web"))
    ended = run(cluster)  # as long as the injector is away, nothing would be repaired
    assert (ended.code, ended.planned) == (0, [])
    assert ended.skipped["Deployment shop/web"].startswith("its rollout is not complete: ")
    cluster.injector.state = "works"
    (row,) = run(cluster).of("plan")
    assert (row["name"], row["pods_to_replace"]) == ("web", 3)
    cluster.kubelet.ready_after = 0
    assert run(cluster, CONFIRM).outcomes == {"shop/web": "succeeded"}
    assert sidecars(cluster, "web") == [2, 2]


def test_names_with_wildcards_do_not_count(cluster, run):
    """With Istio CNI, istio-validation takes the place of istio-init."""
    cluster.injector.also = {"initContainers": [container("istio-init", IMAGE)]}
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    early = "--only-started-before=2020-01-01T00:00:00Z"
    cluster.injector.also = {"initContainers": [container("istio-validation", IMAGE)]}
    one = cluster.pods("shop")[0]["metadata"]["name"]
    cluster.delete("Pod", "shop", one)
    cluster.settle()
    cluster.wait_for(lambda: "istio-validation" in str(cluster.pods("shop")))
    assert run(cluster, early, "--sidecar-container-name=istio-*").planned == []
    cluster.injector.also = {"initContainers": [container("istio-init", IMAGE)]}
    named = run(cluster, early, "--sidecar-container-name=istio-init")
    assert named.planned == ["shop/web"]


def test_where_only_a_wildcard_names_it_the_reason_says_what_to_do(damaged, run):
    ended = run(damaged, DRIFTED, "--sidecar-container-name=istio-p*", "deploy/web")
    assert ended.skipped == {
        "Deployment shop/web": "drifted, but some Pods have no sidecar; name the container without wildcards, or "
        "use --include-missing"
    }


def test_a_workload_of_which_no_pod_has_it_is_left_alone(cluster, run):
    cluster.injector.state = "ignored"
    cluster.create("shop", workload("Deployment", "plain", replicas=2))
    cluster.settle()
    cluster.injector.state = "works"
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    assert run(cluster).planned == ["shop/web"]
    assert verdicts(run(cluster, DRIFTED)) == {"shop/web": "up_to_date"}


def test_pods_of_custom_resources_lack_nothing(tool):
    """Their controller may have several templates, such as a leader's."""
    sidecars = [tool.Sidecar(name, "x:1", False) for name in ("x", "y")]
    for kind, group, lacking in (("ReplicaSet", "apps", ("b",)), ("Foo", "example.com", ())):
        found = a_workload(tool, ref=tool.ObjectRef(kind, "shop", "web", group))
        created = found.pods[0].created
        found.pods = [
            tool.LivePod("a", created, True, frozenset(sidecars)),
            tool.LivePod("b", created, True, frozenset(sidecars[:1])),
        ]
        assert tool.pods_lacking(found, options_of(tool, sidecars=["x", "y"])) == lacking
