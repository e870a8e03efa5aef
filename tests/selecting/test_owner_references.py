"""The API server checks only that the name in an owner reference is not empty: it leads to no other object."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, workload
from support import CONFIRM, DRIFTED, a_ref, counts, patched, upgrade

pytestmark = pytest.mark.both

PROXY = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2")
SPEC = pod_spec(container("app"), PROXY)
UP = "../../../namespaces/prod"


@pytest.fixture
def prod(cluster):
    cluster.namespace("prod", inject=True)
    cluster.create("prod", workload("Deployment", "victim"))
    cluster.create("prod", workload("StatefulSet", "victim"))
    cluster.settle()
    return cluster


@pytest.mark.parametrize("options", [(), (DRIFTED,)], ids=["all", "drifted"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Deployment", f"{UP}/deployments/victim"),
        ("Deployment", f"{UP.replace('/', '%2F')}%2Fdeployments%2Fvictim"),
        ("StatefulSet", f"{UP}/statefulsets/victim"),
        ("ReplicaSet", f"{UP}/deployments/victim"),
        ("Deployment", "web/status"),
        ("Deployment", ".."),
        ("Deployment", "."),
    ],
)
@pytest.mark.embedded("its garbage collector removes a Pod without its owner")
def test_a_name_that_is_no_segment_of_a_path_is_of_no_object(prod, run, kind, name, options):
    prod.create("shop", workload("Deployment", "web"))
    prod.create("shop", pod("evil", SPEC, ("apps/v1", kind, name)))
    prod.settle()
    upgrade(prod)
    ended = run(prod, "-n=shop", "--include-statefulset", CONFIRM, *options)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert patched(prod) == ["web"]
    (code,) = {r["code"] for r in ended.of("skip") if r["name"] != "web"}
    assert code == "unknown"
    asked = [r.path for r in prod.server.requests if "/prod/" in r.path or ".." in r.path]
    assert asked == []


@pytest.mark.parametrize("mode", [(), (DRIFTED,)], ids=["all", "drifted"])
@pytest.mark.parametrize(("kind", "owned"), [("Deployment", "ReplicaSet"), ("DaemonSet", "Pod")])
@pytest.mark.embedded("its garbage collector finds no such owner")
def test_a_reference_of_an_old_api_version_names_the_same_controller(
    cluster, run, kind, owned, mode
):
    """Of objects that were created before Kubernetes 1.9."""
    cluster.create("shop", workload(kind, "web"))
    cluster.settle()
    for found in cluster.store.list(f"{owned.lower()}s", "shop"):
        (owner,) = found["metadata"]["ownerReferences"]
        old = {"ownerReferences": [{**owner, "apiVersion": "extensions/v1beta1"}]}
        cluster.change(owned, "shop", found["metadata"]["name"], {"metadata": old})
    count = len(cluster.pods("shop"))
    upgrade(cluster)
    ended = run(cluster, CONFIRM, "--include-daemonset", *mode)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert ended.summary["pods"] == counts(count, count, count)


ODD = (
    ("apps/v1", "Deployment", "web?fieldManager=x#y z"),
    ("apps/v1", "Deployment", "w" * 350_000),
    ("0.0.1:8443/v1", "X", "web"),
    ("x/v1", "--server=https://127", "web"),
)


@pytest.mark.parametrize("owner", ODD, ids=["query", "long", "group", "option"])
@pytest.mark.embedded("its garbage collector removes a Pod without its owner")
def test_what_no_object_can_be_is_not_asked_for(cluster, run, owner):
    """Nor does it stand in a request or in a command; the Pod is named, and all others go on."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.create("shop", pod("odd", SPEC, owner))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--evict")
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert ended.skipped == {"Pod shop/odd": "unknown"}
    assert owner[2][:300] not in ended.stdout.replace('"web"', "")
    assert not [r for r in cluster.server.requests if "Manager%3Dx" in r.path or "www" in r.path]


def test_a_config_map_of_such_a_name_does_not_exist(tool):
    ref = a_ref(tool, "ConfigMap", "shop", "../../prod/configmaps/x")
    cluster = tool.Cluster.__new__(tool.Cluster)
    found = cluster.config_change(ref)
    assert isinstance(found, tool.ApiError)
    assert found.meaning.name == "ABSENT"
