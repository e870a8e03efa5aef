"""--only-drifted: the verdicts up to date and drifted, for each kind of change."""

from __future__ import annotations

from collections import Counter

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, workload
from support import BOTH, CONFIRM, DRIFTED, PROXY, VOLUME, config, lines, patched, verdicts

pytestmark = pytest.mark.both

ALL = ["shop/agent", "shop/native", "shop/web", "shop/db"]


def test_right_after_a_rollout_nothing_has_drifted(every_kind, run):
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    assert run(every_kind, CONFIRM, *BOTH, "--parallel-rollouts=4").code == 0
    ended = run(every_kind, DRIFTED, *BOTH)
    assert ended.code == 0
    assert ended.planned == []
    assert verdicts(ended) == dict.fromkeys(ALL, "up_to_date")


CHANGES = [
    (
        {"image": "docker.io/istio/proxyv2:1.27.0"},
        ["image: docker.io/istio/proxyv2:1.26.2 -> docker.io/istio/proxyv2:1.27.0"],
    ),
    (
        {"args": ["proxy", "sidecar", "--new"]},
        ["args: ['proxy', 'sidecar'] -> ['proxy', 'sidecar', '--new']"],
    ),
    ({"command": ["/start"]}, ["command: None -> ['/start']"]),
    (
        {"env": [{"name": "LEVEL", "value": "info"}, *PROXY["env"][:2]]},
        ["env.LEVEL: warn -> info"],
    ),
    (
        {
            "env": [
                {"name": "PROXY_CONFIG", "value": '{"tracing": {"zipkin": {}}, "concurrency": 4}'},
                *PROXY["env"][1:],
            ]
        },
        ["env.PROXY_CONFIG.concurrency: 2 -> 4"],
    ),
    (
        {"resources": {"requests": {"cpu": "2"}, "limits": {"memory": "1024Mi"}}},
        ["resources.requests.cpu: 1 -> 2"],
    ),
    ({"ports": [{"containerPort": 15091, "name": "http-envoy-prom"}]}, None),
    (
        {"readinessProbe": {"httpGet": {"path": "/ready", "port": 15022}}},
        ["readinessProbe.httpGet.port: 15021 -> 15022"],
    ),
    ({"securityContext": {"runAsUser": 1337}}, ["securityContext: None -> {'runAsUser': 1337}"]),
    ({"lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}, None),
    ({"envFrom": [{"configMapRef": {"name": "proxy-config"}}]}, None),
]


@pytest.mark.parametrize(
    ("change", "found"),
    CHANGES,
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_each_change_of_the_injector_is_found_and_named(every_kind, run, change, found):
    every_kind.injector.container |= change
    ended = run(every_kind, DRIFTED, "--show-values", *BOTH)
    assert verdicts(ended) == dict.fromkeys(ALL, "drifted")
    for name in ("web", "native", "db", "agent"):
        if found:
            assert lines(ended, name) == [f"istio-proxy.{line}" for line in found]
        assert all(
            line.startswith(f"istio-proxy.{next(iter(change))}") for line in lines(ended, name)
        )
    assert sorted(ended.planned) == sorted(ALL)


def test_a_sidecar_that_becomes_native(every_kind, run):
    every_kind.injector.native = True
    ended = run(every_kind, DRIFTED, *BOTH)
    assert verdicts(ended) == dict.fromkeys(ALL, "drifted") | {"shop/native": "up_to_date"}
    assert lines(ended, "web") == ["istio-proxy.position: regular -> native"]


def test_only_what_drifted_is_restarted(every_kind, run):
    every_kind.namespace("other", inject=True)
    every_kind.create("other", config())
    before = {p["metadata"]["uid"] for p in every_kind.pods("shop")}
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    every_kind.create("other", workload("Deployment", "newer"))
    every_kind.settle()
    ended = run(every_kind, DRIFTED, CONFIRM, *BOTH, "--parallel-rollouts=4")
    assert ended.code == 0, ended.stderr
    assert verdicts(ended) == dict.fromkeys(ALL, "drifted") | {"other/newer": "up_to_date"}
    assert ended.outcomes == dict.fromkeys(ALL, "succeeded")
    assert sorted(patched(every_kind)) == ["agent", "db", "native", "web"]
    assert not before & {p["metadata"]["uid"] for p in every_kind.pods("shop")}
    assert run(every_kind, DRIFTED, CONFIRM, *BOTH).planned == []


def test_a_change_of_the_workloads_own_template_is_none_of_the_injectors(every_kind, run):
    every_kind.change("Deployment", "shop", "native", {"spec": {"paused": True}})
    extra = {"spec": {"volumes": [{"name": "own", "emptyDir": {}}]}, "metadata": {}}
    extra["metadata"] = {"annotations": {"own/annotation": "2"}}
    every_kind.kubelet.ready_after = 60
    every_kind.change("Deployment", "shop", "web", {"spec": {"template": extra}})
    assert set(verdicts(run(every_kind, DRIFTED)).values()) == {"up_to_date"}


def test_pods_of_one_workload_may_differ_from_each_other(every_kind, run):
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    every_kind.delete("Pod", "shop", every_kind.pods("shop", "web")[0]["metadata"]["name"])
    every_kind.settle()
    ended = run(every_kind, DRIFTED)
    (plan,) = [r for r in ended.of("plan") if r["name"] == "web"]
    assert (plan["pods"]["old"], plan["pods"]["total"]) == (2, 3)


def test_what_else_changes_is_no_drift(every_kind, run):
    every_kind.injector.also = {
        "volumes": [VOLUME, {"name": "crl", "emptyDir": {}}],
        "initContainers": [container("init", "i:1")],
    }
    assert set(verdicts(run(every_kind, DRIFTED)).values()) == {"up_to_date"}
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    ended = run(every_kind, DRIFTED)
    paths = {tuple(d["path"]) for row in ended.of("drift") for d in row["differences"]}
    assert paths == {("istio-proxy", "image")}


def test_a_changed_volume_that_the_sidecar_mounts_is_drift(every_kind, run):
    every_kind.injector.also = {
        "volumes": [{"name": "proxy-config", "configMap": {"name": "proxy-config-2"}}]
    }
    every_kind.create("shop", config("proxy-config-2"))
    ended = run(every_kind, DRIFTED, "--show-values")
    assert "istio-proxy.volumes./etc/proxy.configMap.name: proxy-config -> proxy-config-2" in lines(
        ended, "web"
    )


@pytest.mark.embedded("nobody binds a claim that a Pod names by itself")
def test_the_volume_of_a_claim_is_no_difference_between_pods(every_kind, run):
    every_kind.injector.container["volumeMounts"] = [
        *PROXY["volumeMounts"],
        {"name": "data", "mountPath": "/data"},
    ]
    template = workload("StatefulSet", "queue", pod_spec(container("app")), replicas=2)
    template["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": {}}]
    every_kind.create("shop", template)
    every_kind.settle()
    assert verdicts(run(every_kind, DRIFTED, *BOTH))["shop/queue"] == "up_to_date"


@pytest.mark.embedded("managedFields cannot be written by hand")
def test_resources_of_another_container_changed_in_place_excuse_nothing(every_kind, run):
    (found, *_) = every_kind.pods("shop", "web")
    resized = {
        "f:spec": {
            "f:containers": {'k:{"name":"app"}': {"f:resources": {"f:requests": {"f:cpu": {}}}}}
        }
    }
    entry = {"manager": "vpa", "operation": "Update", "subresource": "resize", "fieldsV1": resized}
    managers = [*found["metadata"].get("managedFields", []), entry]
    every_kind.store.change(
        "pods", found, metadata={**found["metadata"], "managedFields": managers}
    )
    every_kind.injector.container["resources"] = {
        "requests": {"cpu": "4"},
        "limits": {"memory": "1Gi"},
    }
    ended = run(every_kind, DRIFTED)
    (plan,) = [record for record in ended.of("plan") if record["name"] == "web"]
    assert plan["pods"]["old"] == 3
    assert lines(ended, "web") == ["istio-proxy.resources.requests.cpu: 1 -> 4"]


def test_a_templates_own_name_and_namespace_are_not_its_pods(every_kind, run):
    named = workload("Deployment", "named")
    named["spec"]["template"]["metadata"] |= {"name": "taken", "namespace": "elsewhere"}
    every_kind.create("shop", named)
    every_kind.create("shop", pod("taken", pod_spec(container("app"))))
    every_kind.settle()
    assert verdicts(run(every_kind, DRIFTED))["shop/named"] == "up_to_date"


def test_one_dry_run_a_workload_and_one_look_at_each_configuration(cluster, run):
    cluster.injector.container = dict(PROXY)
    cluster.injector.also = {"volumes": [VOLUME]}
    cluster.create("shop", config())
    for number in range(40):
        cluster.create("shop", workload("Deployment", f"web-{number}", replicas=2))
    cluster.settle()
    ended = run(cluster, DRIFTED, "--include-config")
    assert Counter(verdicts(ended).values()) == {"up_to_date": 40}
    counts = Counter((r.method, r.path) for r in cluster.server.requests)
    assert counts["POST", "/api/v1/namespaces/shop/pods"] == 40
    assert counts["GET", "/api/v1/namespaces/shop/configmaps/proxy-config"] == 1


def test_what_the_injector_is_shown(every_kind, run):
    run(every_kind, DRIFTED)
    (seen,) = [p for p in every_kind.injector.seen if p["metadata"]["labels"]["app"] == "web"]
    live = every_kind.pods("shop", "web")[0]["metadata"]
    assert seen["metadata"]["generateName"] == live["generateName"]
    assert seen["metadata"]["labels"] == live["labels"]
    (reference,) = seen["metadata"]["ownerReferences"]
    assert reference["name"] == live["ownerReferences"][0]["name"]
    assert "blockOwnerDeletion" not in reference
    assert "nodeName" not in seen["spec"]
    assert [c["name"] for c in seen["spec"]["containers"]] == ["app"]
