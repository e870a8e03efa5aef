"""--only-drifted for real: the injector is asked, nothing but drift is restarted, and what is left is told."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter

import pytest
from cluster.manifests import container, pod, pod_spec, workload
from conftest import counts

CONFIRM = "--confirm=true"
TEXT = "--log-format=text"
DRIFTED = "--only-drifted"
BOTH = ("--include-statefulset", "--include-daemonset")
PROXY = {
    "name": "istio-proxy",
    "image": "docker.io/istio/proxyv2:1.26.2",
    "args": ["proxy", "sidecar"],
    "env": [
        {"name": "PROXY_CONFIG", "value": '{"concurrency": 2, "tracing": {"zipkin": {}}}'},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LEVEL", "value": "warn"},
    ],
    "ports": [{"containerPort": 15090, "name": "http-envoy-prom"}],
    "resources": {"requests": {"cpu": "1000m"}, "limits": {"memory": "1Gi"}},
    "readinessProbe": {"httpGet": {"path": "/ready", "port": 15021}},
    "volumeMounts": [{"name": "proxy-config", "mountPath": "/etc/proxy"}],
}
VOLUME = {"name": "proxy-config", "configMap": {"name": "proxy-config"}}


def patch_names(cluster) -> list[str]:
    return [r.path.rpartition("/")[2] for r in cluster.server.requests if r.method == "PATCH"]


def config(name: str = "proxy-config", kind: str = "ConfigMap") -> dict:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name},
        "data": {"k": "c2VjcmV0LWNvbnRlbnQ="},
    }


@pytest.fixture
def mesh(cluster):
    """Four workloads of all kinds, one with a native sidecar, one with claims, and defaults from a LimitRange."""
    cluster.injector.container = dict(PROXY)
    cluster.injector.also = {"volumes": [VOLUME]}
    cluster.create("shop", config())
    limits = {
        "limits": [
            {"type": "Container", "defaultRequest": {"memory": "64Mi"}, "default": {"cpu": "2"}}
        ]
    }
    cluster.create("shop", {"kind": "LimitRange", "metadata": {"name": "defaults"}, "spec": limits})
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    natively = {"sidecar.istio.io/nativeSidecar": "true"}
    cluster.create("shop", workload("Deployment", "native", annotations=natively, replicas=2))
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    claims = [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]
    database = pod_spec(container("app", **mount))
    cluster.create(
        "shop", workload("StatefulSet", "db", database, replicas=2, volumeClaimTemplates=claims)
    )
    cluster.create("shop", workload("DaemonSet", "agent"))
    cluster.settle()
    return cluster


ALL = ["shop/agent", "shop/native", "shop/web", "shop/db"]


def verdicts(ended) -> dict[str, str]:
    return {f"{r['namespace']}/{r['name']}": r["verdict"] for r in ended.of("drift")}


def lines(ended, name: str) -> list[str]:
    """The differences of a workload, as path: current -> expected."""
    (record,) = [r for r in ended.of("drift") if r["name"] == name]
    return [
        f"{'.'.join(d['path'])}: {d['current']} -> {d['expected']}" for d in record["differences"]
    ]


def test_right_after_a_rollout_nothing_has_drifted(mesh, run):
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    assert run(mesh, CONFIRM, *BOTH, "--parallel-rollouts=4").code == 0
    ended = run(mesh, DRIFTED, *BOTH)
    assert ended.code == 0
    assert ended.planned == []
    assert verdicts(ended) == dict.fromkeys(ALL, "up_to_date")
    text = run(mesh, DRIFTED, TEXT, *BOTH)
    assert "\nNothing to roll out.\n4 up to date.\nScanned " in text.stdout


CHANGES = [
    (
        {"image": "docker.io/istio/proxyv2:1.27.0"},
        ["image: docker.io/istio/proxyv2:1.26.2 -> docker.io/istio/proxyv2:1.27.0"],
    ),
    ({"args": ["proxy", "sidecar", "--new"]}, ["args: None -> --new"]),
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
def test_each_change_of_the_injector_is_found_and_named(mesh, run, change, found):
    mesh.injector.container |= change
    ended = run(mesh, DRIFTED, *BOTH)
    assert verdicts(ended) == dict.fromkeys(ALL, "drifted")
    for name in ("web", "native", "db", "agent"):
        if found:
            assert lines(ended, name) == [f"istio-proxy.{line}" for line in found]
        assert all(
            line.startswith(f"istio-proxy.{next(iter(change))}") for line in lines(ended, name)
        )
    assert sorted(ended.planned) == sorted(ALL)


def test_a_sidecar_that_becomes_native(mesh, run):
    mesh.injector.native = True
    ended = run(mesh, DRIFTED, *BOTH)
    assert verdicts(ended) == dict.fromkeys(ALL, "drifted") | {"shop/native": "up_to_date"}
    assert lines(ended, "web") == ["istio-proxy.position: containers -> initContainers"]


def test_only_what_drifted_is_restarted(mesh, run):
    mesh.namespace("other", inject=True)
    mesh.create("other", config())
    before = {p["metadata"]["uid"] for p in mesh.pods("shop")}
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    mesh.create("other", workload("Deployment", "newer"))
    mesh.settle()
    ended = run(mesh, DRIFTED, CONFIRM, *BOTH, "--parallel-rollouts=4")
    assert ended.code == 0, ended.stderr
    assert verdicts(ended) == dict.fromkeys(ALL, "drifted") | {"other/newer": "up_to_date"}
    assert ended.outcomes == dict.fromkeys(ALL, "succeeded")
    assert sorted(patch_names(mesh)) == ["agent", "db", "native", "web"]
    assert not before & {p["metadata"]["uid"] for p in mesh.pods("shop")}
    assert run(mesh, DRIFTED, CONFIRM, *BOTH).planned == []


def test_a_change_of_the_workloads_own_template_is_none_of_the_injectors(mesh, run):
    mesh.change("Deployment", "shop", "native", {"spec": {"paused": True}})
    extra = {"spec": {"volumes": [{"name": "own", "emptyDir": {}}]}, "metadata": {}}
    extra["metadata"] = {"annotations": {"own/annotation": "2"}}
    mesh.controllers.ready_after = 60
    mesh.change("Deployment", "shop", "web", {"spec": {"template": extra}})
    text = run(mesh, DRIFTED, TEXT).stdout
    assert "1 up to date" in text
    assert "new Pods would differ" not in text


def test_pods_of_one_workload_may_differ_from_each_other(mesh, run):
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    mesh.delete("Pod", "shop", mesh.pods("shop", "web")[0]["metadata"]["name"])
    mesh.settle()
    ended = run(mesh, DRIFTED)
    (plan,) = [r for r in ended.of("plan") if r["name"] == "web"]
    assert (plan["pods_to_replace"], plan["pods"]) == (2, 3)


def test_what_else_changes_is_told_and_is_no_drift_by_itself(mesh, run):
    mesh.injector.also = {
        "volumes": [VOLUME, {"name": "crl", "emptyDir": {}}],
        "initContainers": [container("init", "i:1")],
    }
    assert verdicts(run(mesh, DRIFTED)) == {"shop/web": "up_to_date", "shop/native": "up_to_date"}
    line = "2 workloads with an up-to-date sidecar: new Pods would differ in"
    text = run(mesh, DRIFTED, TEXT).stdout
    assert f"\n{line} init container init and volume crl.\n" in text
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    ended = run(mesh, DRIFTED)
    assert ended.of("drift")[0]["other_changes"] == ["init container init", "volume crl"]
    assert (
        "  Other changes to the Pod: init container init, volume crl\n"
        in run(mesh, DRIFTED, TEXT).stdout
    )


def test_a_changed_volume_that_the_sidecar_mounts_is_drift(mesh, run):
    mesh.injector.also = {
        "volumes": [{"name": "proxy-config", "configMap": {"name": "proxy-config-2"}}]
    }
    mesh.create("shop", config("proxy-config-2"))
    ended = run(mesh, DRIFTED)
    assert (
        "istio-proxy.volumes.proxy-config.configMap.name: proxy-config -> proxy-config-2"
        in lines(ended, "web")
    )


def test_the_volume_of_a_claim_is_no_difference_between_pods(mesh, run):
    mesh.injector.container["volumeMounts"] = [
        *PROXY["volumeMounts"],
        {"name": "data", "mountPath": "/data"},
    ]
    template = workload("StatefulSet", "queue", pod_spec(container("app")), replicas=2)
    template["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": {}}]
    mesh.create("shop", template)
    mesh.settle()
    assert verdicts(run(mesh, DRIFTED, *BOTH))["shop/queue"] == "up_to_date"


# Configuration


def test_configuration_that_changed_after_the_pods_were_created(mesh, run):
    for found in mesh.pods("shop"):
        mesh.backdate(found, 3 * 86400 + 60)
    assert set(verdicts(run(mesh, DRIFTED, *BOTH)).values()) == {"drifted"}
    mesh.server.requests.clear()
    ended = run(mesh, DRIFTED, *BOTH, TEXT)
    assert (
        "  ConfigMap shop/proxy-config changed 3d after the oldest Pod was created\n"
        in ended.stdout
    )
    asked = [r for r in mesh.server.requests if "/configmaps" in r.path or "/secrets" in r.path]
    assert [r.path for r in asked] == ["/api/v1/namespaces/shop/configmaps/proxy-config"]
    assert "as=PartialObjectMetadata;" in asked[0].headers["accept"]
    assert "kube-root-ca.crt" not in json.dumps([r.path for r in mesh.server.requests])


def test_configuration_that_the_sidecar_reloads_by_itself_is_left_out(mesh, run):
    for found in mesh.pods("shop"):
        mesh.backdate(found, 3 * 86400 + 60)
    ended = run(mesh, DRIFTED, *BOTH, "--ignore-config=istio-*", "--ignore-config=proxy-*")
    assert set(verdicts(ended).values()) == {"up_to_date"}


def test_after_a_rollout_for_its_configuration_a_workload_is_up_to_date(mesh, run):
    for found in mesh.pods("shop", "web"):
        mesh.backdate(found, 3 * 86400 + 60)
    ended = run(mesh, DRIFTED, CONFIRM)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert run(mesh, DRIFTED, CONFIRM).planned == []


def test_configuration_that_is_missing_is_rejected(mesh, run):
    mesh.delete("ConfigMap", "shop", "proxy-config")
    ended = run(mesh, DRIFTED, CONFIRM, *BOTH)
    assert ended.code == 1
    assert ended.planned == []
    assert patch_names(mesh) == []
    assert set(verdicts(ended).values()) == {"rejected"}
    assert ended.of("drift")[0]["message"] == (
        "would not start: ConfigMap shop/proxy-config does not exist"
    )


def test_no_content_of_a_secret_is_ever_read(mesh, run):
    mesh.injector.also = {"volumes": [{"name": "proxy-config", "secret": {"secretName": "certs"}}]}
    mesh.create("shop", config("certs", "Secret"))
    ended = run(mesh, DRIFTED, "--log-level=debug")
    asked = [r for r in mesh.server.requests if "/secrets/certs" in r.path]
    assert asked
    assert all("as=PartialObjectMetadata;" in r.headers["accept"] for r in asked)
    assert "c2VjcmV0" not in ended.stdout + ended.stderr


# Verdicts other than drifted


def label(cluster, namespace: str, **labels: str) -> None:
    found = cluster.store.get("namespaces", "", namespace)
    metadata = {**found["metadata"], "labels": {**found["metadata"]["labels"], **labels}}
    cluster.store.change("namespaces", found, metadata=metadata)


def test_pods_that_would_not_be_admitted_are_rejected_and_never_restarted(mesh, run):
    mesh.namespace("strict", inject=True)
    mesh.create("strict", config())
    mesh.create("strict", workload("Deployment", "bomb"))
    mesh.settle()
    label(mesh, "strict", **{"pod-security.kubernetes.io/enforce": "restricted"})
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    dry = run(mesh, DRIFTED)
    assert dry.code == 0
    assert verdicts(dry)["strict/bomb"] == "rejected"
    assert sorted(dry.planned) == ["shop/native", "shop/web"]
    (record,) = [r for r in dry.of("drift") if r["name"] == "bomb"]
    assert 'is forbidden: violates PodSecurity "restricted:latest"' in record["message"]
    done = run(mesh, DRIFTED, CONFIRM, TEXT)
    assert done.code == 1
    assert "bomb" not in patch_names(mesh)
    assert sorted(patch_names(mesh)) == ["native", "web"]
    meaning = "cannot be recreated (running Pods are not affected until they are replaced)"
    assert f'1 workload {meaning}:\n  violates PodSecurity "restricted:latest": ' in done.stdout
    assert ":\n    Deployment strict/bomb\n" in done.stdout
    assert re.search(r"^3 workloads in \d+s: 2 succeeded, 1 rejected\.$", done.stdout, re.MULTILINE)
    assert "\nNothing to roll out.\n2 up to date, 1 rejected.\n" in run(mesh, DRIFTED, TEXT).stdout


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"serviceAccountName": "gone"},
            'error looking up service account shop/gone: serviceaccount "gone" not found',
        ),
        ({"priorityClassName": "gone"}, "no PriorityClass with name gone was found"),
    ],
)
def test_a_missing_service_account_or_priority_class_is_rejected(cluster, run, spec, message):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    cluster.change("Deployment", "shop", "web", {"spec": {"template": {"spec": spec}}})
    cluster.store.change(
        "deployments",
        (found := cluster.get("Deployment", "shop", "web")),
        spec={k: v for k, v in found["spec"].items() if k != "paused"},
    )
    ended = run(cluster, DRIFTED, CONFIRM)
    assert (ended.code, verdicts(ended)) == (1, {"shop/web": "rejected"})
    assert message in ended.of("drift")[0]["message"]


@pytest.mark.parametrize(
    ("state", "verdict", "message"),
    [
        (
            "denies",
            "rejected",
            'admission webhook "inject.sidecar.example" denied the request: injector says no',
        ),
        ("fails", "unknown", 'failed calling webhook "inject.sidecar.example"'),
        ("hangs", "unknown", "context deadline exceeded"),
        ("no-dry-run", "unknown", "does not support dry run"),
    ],
)
def test_an_injector_in_trouble(mesh, run, state, verdict, message):
    mesh.injector.hangs_for = 0.2
    mesh.injector.state = state
    dry, done = run(mesh, DRIFTED), run(mesh, DRIFTED, CONFIRM)
    assert verdicts(dry) == verdicts(done) == {"shop/native": verdict, "shop/web": verdict}
    assert message in dry.of("drift")[0]["message"]
    assert (dry.code, done.code) == (0, 1)
    assert patch_names(mesh) == []
    assert done.planned == []
    assert len(mesh.injector.seen) == 4  # a webhook in trouble is not asked again


def test_if_the_first_dry_runs_all_time_out_the_others_are_not_tried(cluster, run, tool):
    """A webhook that hangs would cost its timeout for each of them."""
    count = 3 * tool.REQUESTS_AT_A_TIME
    for number in range(count):
        cluster.create("shop", workload("Deployment", f"web-{number}"))
    cluster.settle()
    cluster.injector.hangs_for = 0.2
    cluster.injector.state = "hangs"
    ended = run(cluster, DRIFTED)
    assert Counter(verdicts(ended).values()) == {"unknown": count}
    assert all("deadline exceeded" in record["message"] for record in ended.of("drift"))
    assert (
        "the first 16 dry runs timed out; the remaining workloads are not compared" in ended.stderr
    )
    assert len(cluster.injector.seen) <= count - tool.REQUESTS_AT_A_TIME
    text = run(cluster, DRIFTED, TEXT).stdout
    assert f"\n{count} workloads cannot be compared:\n" in text
    assert text.count("deadline exceeded") == 1  # grouped by reason


def test_a_page_of_html_in_a_reason_is_cut(tool):
    page = 'failed calling webhook "x": <!DOCTYPE html><html><body>sorry</body></html>'
    assert tool.short_reason(f"500 {page}") == '500 failed calling webhook "x":'
    assert tool.short_reason('403 pods "web-7d-" is forbidden: no') == "no"


def test_a_namespace_that_is_being_deleted_is_left_out(mesh, run):
    """Its Pods would not be admitted today either, but they are not to come back."""
    mesh.namespace("leaving", inject=True)
    mesh.create("leaving", workload("Deployment", "web"))
    mesh.settle()
    namespace = mesh.store.get("namespaces", "", "leaving")
    ending = {**namespace["metadata"], "deletionTimestamp": "2026-11-01T00:00:00Z"}
    mesh.store.change("namespaces", namespace, metadata=ending)
    ended = run(mesh, DRIFTED, CONFIRM)
    assert ended.code == 0
    assert set(verdicts(ended)) == {"shop/web", "shop/native"}
    assert ended.skipped["Deployment leaving/web"] == "its namespace is terminating"


def test_resources_of_another_container_changed_in_place_excuse_nothing(mesh, run):
    (found, *_) = mesh.pods("shop", "web")
    resized = {"f:spec": {"f:containers": {'k:{"name":"app"}': {"f:resources": {}}}}}
    entry = {"manager": "vpa", "operation": "Update", "subresource": "resize", "fieldsV1": resized}
    managers = [*found["metadata"].get("managedFields", []), entry]
    mesh.store.change("pods", found, metadata={**found["metadata"], "managedFields": managers})
    mesh.injector.container["resources"] = {"requests": {"cpu": "4"}, "limits": {"memory": "1Gi"}}
    ended = run(mesh, DRIFTED)
    (plan,) = [record for record in ended.of("plan") if record["name"] == "web"]
    assert plan["pods_to_replace"] == 3
    assert lines(ended, "web") == ["istio-proxy.resources.requests.cpu: 1 -> 4"]


def test_a_templates_own_name_and_namespace_are_not_its_pods(mesh, run):
    named = workload("Deployment", "named")
    named["spec"]["template"]["metadata"] |= {"name": "taken", "namespace": "elsewhere"}
    mesh.create("shop", named)
    mesh.create("shop", pod("taken", pod_spec(container("app"))))
    mesh.settle()
    assert verdicts(run(mesh, DRIFTED))["shop/named"] == "up_to_date"


def test_an_exceeded_quota_is_a_warning_and_unknown(mesh, run):
    mesh.create(
        "shop",
        {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}},
    )
    ended = run(mesh, DRIFTED)
    assert (ended.code, set(verdicts(ended).values())) == (0, {"unknown"})
    assert "exceeded quota: q, requested: pods=1" in ended.of("drift")[0]["message"]


VIEW = [
    {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
    {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps", "secrets"]},
    {"verbs": ["get", "list", "watch", "patch"], "apiGroups": ["apps"], "resources": ["*"]},
]


def test_the_permission_to_create_pods_missing_altogether_stops_the_run(mesh, run):
    viewer = mesh.kubeconfig_of("viewer", VIEW)
    for options in ((), (CONFIRM,)):
        ended = run(viewer, DRIFTED, TEXT, *options)
        assert ended.code == 3
        assert ended.stdout.count("\n") == 1
        assert patch_names(mesh) == []
        assert (
            "missing permission: create pods, for dry runs: 403 pods is forbidden" in ended.stderr
        )


def test_the_permission_to_create_pods_missing_in_a_namespace_is_unknown_there(mesh, run):
    mesh.namespace("closed", inject=True)
    mesh.create("closed", config())
    mesh.create("closed", workload("Deployment", "web"))
    mesh.settle()
    creates = {"verbs": ["create"], "apiGroups": [""], "resources": ["pods"], "namespace": "shop"}
    ended = run(mesh.kubeconfig_of("team", [*VIEW, creates]), DRIFTED)
    assert verdicts(ended) == {
        "closed/web": "unknown",
        "shop/native": "up_to_date",
        "shop/web": "up_to_date",
    }


def test_configuration_that_may_not_be_read_is_unknown(mesh, run):
    rules = [VIEW[0], VIEW[2], {"verbs": ["create"], "apiGroups": [""], "resources": ["pods"]}]
    ended = run(mesh.kubeconfig_of("blind", rules), DRIFTED)
    assert set(verdicts(ended).values()) == {"unknown"}
    assert ended.of("drift")[0]["message"].startswith(
        "cannot read ConfigMap shop/proxy-config: 403 configmaps"
    )


# Removal


def test_a_sidecar_that_would_be_removed_is_only_rolled_out_when_that_is_wanted(mesh, run):
    mesh.injector.state = (
        "ignored"  # failurePolicy: Ignore and a dead webhook look the same as an opt-out
    )
    dry = run(mesh, DRIFTED)
    assert dry.code == 0
    assert verdicts(dry) == {"shop/native": "drifted", "shop/web": "drifted"}
    assert dry.planned == []
    assert dry.of("drift")[0]["differences"][0]["path"] == ["istio-proxy"]
    assert dry.of("drift")[0]["differences"][0]["expected"] is None
    text = run(mesh, DRIFTED, TEXT).stdout
    meaning = "would lose the sidecar (not restarted without --allow-removal; check that the injector is healthy)"
    assert f"2 workloads {meaning}:\n  would be removed: istio-proxy 1.26.2\n" in text
    assert "\n2 would lose the sidecar.\n" in text
    left = run(mesh, DRIFTED, CONFIRM)
    assert left.code == 1
    assert patch_names(mesh) == []
    done = run(mesh, DRIFTED, CONFIRM, "--allow-removal")
    assert (done.code, set(done.outcomes.values())) == (0, {"succeeded"})
    assert [len(p["spec"]["containers"]) for p in mesh.pods("shop", "web")] == [1, 1, 1]


# Rolling out


def test_the_revision_is_written_and_tells_what_a_pod_got(mesh, run, tool):
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    run(mesh, DRIFTED, CONFIRM, "--annotation-prefix=myCompany")

    def revision(name: str) -> str:
        found = mesh.get("Deployment", "shop", name)["spec"]["template"]["metadata"]["annotations"]
        return found["myCompany.rollout.revision"]

    assert len(revision("web")) == 12
    assert int(revision("web"), 16)
    assert revision("web") != revision("native")
    first = revision("web")
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"
    run(mesh, DRIFTED, CONFIRM, "--annotation-prefix=myCompany")
    assert revision("web") != first
    assert all(
        p["metadata"]["annotations"]["myCompany.rollout.revision"] == revision("web")
        for p in mesh.pods("shop", "web")
    )


@pytest.fixture
def dying_injector(mesh, monkeypatch):
    """One that answers dry runs, and that is gone when Pods are created, with failurePolicy Ignore."""
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    inject = type(mesh.injector).__call__

    def only_in_dry_runs(injector, pod, namespace, dry_run):
        if dry_run:
            inject(injector, pod, namespace, dry_run)

    monkeypatch.setattr(type(mesh.injector), "__call__", only_in_dry_runs)
    return mesh


def test_pods_that_come_without_the_sidecar_are_still_drifted(dying_injector, run):
    ended = run(dying_injector, DRIFTED, CONFIRM)
    assert ended.code == 1
    assert ended.outcomes == {"shop/web": "not_started", "shop/native": "still_drifted"}
    messages = {r["name"]: r["message"] for r in ended.of("result")}
    assert (
        messages["native"] == "2 of 2 new Pods have no sidecar; check that the injector is healthy"
    )


def test_pods_that_come_without_the_sidecar_are_incomplete_where_nothing_is_compared(
    dying_injector, run
):
    ended = run(dying_injector, CONFIRM, "--parallel-rollouts=2")
    assert ended.code == 1
    assert ended.outcomes == {"shop/web": "incomplete", "shop/native": "incomplete"}
    messages = {r["name"]: r["message"] for r in ended.of("result")}
    assert messages["web"] == "3 of 3 new Pods have no sidecar; check that the injector is healthy"
    assert ended.summary["pods"] == counts(0, 0, 0, 0, lost=5)


def test_an_injector_that_never_converges_is_still_drifted_and_not_tried_again(mesh, run):
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    real = mesh.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        if mesh.injector.seen[-1:] != [] and pod["metadata"].get("annotations"):
            pod["spec"]["containers"][-1]["image"] = "docker.io/istio/proxyv2:1.26.9"

    mesh.injector.inject = inject
    ended = run(mesh, DRIFTED, CONFIRM)
    assert ended.code == 1
    assert ended.outcomes["shop/web"] == "still_drifted"
    (result,) = [r for r in ended.of("result") if r["name"] == "web"]
    assert result["message"] == (
        "the new Pods still differ: istio-proxy  image  docker.io/istio/proxyv2:1.26.9 -> 1.27.0"
    )
    assert '"level": "WARNING", "message": "rollout still drifted"' in ended.stderr
    assert patch_names(mesh).count("web") == 1


def test_verdicts_come_before_the_first_patch_and_live_state_is_read_again(mesh, start):
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    held = mesh.fault(method="PATCH", path="deployments/native", release=threading.Event())
    running = start(mesh, DRIFTED, CONFIRM)
    assert held.reached.wait(20)
    for found in mesh.pods("shop", "web"):  # somebody else restarts them meanwhile
        mesh.delete("Pod", "shop", found["metadata"]["name"])
    mesh.settle()
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/native": "succeeded", "shop/web": "skipped"}
    (message,) = [r["message"] for r in ended.of("result") if r["name"] == "web"]
    # Within the same second the cut-off cannot tell the new Pods from the old; the comparison can.
    assert message in ("already up to date", "all its Pods were created after the cutoff")
    asked = [
        r.method
        for r in mesh.server.requests
        if r.query.get("dryRun") == "All" or r.method == "PATCH"
    ]
    assert asked == ["POST", "POST", "POST", "PATCH", "POST"]  # and again right before each patch


def test_one_dry_run_a_workload_and_one_look_at_each_configuration(cluster, run):
    cluster.injector.container = dict(PROXY)
    cluster.injector.also = {"volumes": [VOLUME]}
    cluster.create("shop", config())
    for number in range(40):
        cluster.create("shop", workload("Deployment", f"web-{number}", replicas=2))
    cluster.settle()
    ended = run(cluster, DRIFTED)
    assert Counter(verdicts(ended).values()) == {"up_to_date": 40}
    counts = Counter((r.method, r.path) for r in cluster.server.requests)
    assert counts["POST", "/api/v1/namespaces/shop/pods"] == 40
    assert counts["GET", "/api/v1/namespaces/shop/configmaps/proxy-config"] == 1


def test_what_the_injector_is_shown(mesh, run):
    run(mesh, DRIFTED)
    (seen,) = [p for p in mesh.injector.seen if p["metadata"]["labels"]["app"] == "web"]
    live = mesh.pods("shop", "web")[0]["metadata"]
    assert seen["metadata"]["generateName"] == live["generateName"]
    assert seen["metadata"]["labels"] == live["labels"]
    (reference,) = seen["metadata"]["ownerReferences"]
    assert reference["name"] == live["ownerReferences"][0]["name"]
    assert "blockOwnerDeletion" not in reference
    assert "nodeName" not in seen["spec"]
    assert [c["name"] for c in seen["spec"]["containers"]] == ["app"]


# Showing


def test_workloads_are_grouped_by_what_differs_the_largest_group_first(mesh, run):
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    mesh.create("shop", workload("Deployment", "newer"))
    mesh.settle()
    mesh.injector.container |= {
        "image": "docker.io/istio/proxyv2:1.28.0",
        "args": ["proxy", "--log=info"],
    }
    shown = run(mesh, DRIFTED, *BOTH, TEXT).stdout
    groups = shown.split("with these differences:\n")
    assert groups[0].endswith("\n4 workloads ")
    assert groups[1].endswith("1 workload ")
    assert groups[1].startswith(
        "  istio-proxy  args  sidecar -> <none>\n"
        "  istio-proxy  args  <none> -> --log=info\n"
        "  istio-proxy  image  docker.io/istio/proxyv2:1.26.2 -> 1.28.0\n"
        "\n  #  NAMESPACE "
    )
    assert "istio-proxy  image  docker.io/istio/proxyv2:1.27.0 -> 1.28.0\n" in groups[2]
    rows = [line.split()[:3] for line in groups[1].splitlines()[5:9]]
    names = ["deployment/native", "statefulset/db", "daemonset/agent", "deployment/web"]
    assert rows == [
        [number, "shop", name] for number, name in zip("2345", names, strict=True)
    ]  # 1 is newer


@pytest.mark.parametrize("columns", [80, 200])
def test_differences_fit_the_terminal(mesh, run, columns):
    mesh.injector.container["env"] = [{"name": "LONG", "value": "x" * 500}]
    mesh.injector.container["lifecycle"] = {"preStop": {"exec": {"command": ["y" * 300]}}}
    shown = run(mesh, DRIFTED, TEXT, COLUMNS=str(columns)).stdout
    assert (
        max(len(line) for line in shown.splitlines() if line.startswith("  istio-proxy")) <= columns
    )
    whole = run(mesh, DRIFTED).of("drift")[0]["differences"]
    assert {"path": ["istio-proxy", "env", "LONG"], "current": None, "expected": "x" * 500} in whole


def test_json_says_all_of_a_verdict(mesh, run):
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    ended = run(mesh, DRIFTED, "--exclude-deployment", "--include-daemonset")
    assert ended.of("drift") == [
        {
            "record": "drift",
            "kind": "DaemonSet",
            "namespace": "shop",
            "name": "agent",
            "verdict": "drifted",
            "differences": [
                {
                    "path": ["istio-proxy", "image"],
                    "current": "docker.io/istio/proxyv2:1.26.2",
                    "expected": "docker.io/istio/proxyv2:1.27.0",
                }
            ],
            "other_changes": [],
            "message": "",
        }
    ]
    assert ended.summary["verdicts"] == {"drifted": 1}
