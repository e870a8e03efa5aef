"""Pods that could stop or stall a run, and differences that are easily missed."""

from __future__ import annotations

import json
import threading
import time

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, DRIFTED, NEW, verdicts, view_of

pytestmark = pytest.mark.both

MESH = ["istio-proxy"]
IMAGE = "docker.io/istio/proxyv2:1.26.2"


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("depth", [20, 480, 600, 700, 900, 5000])
def test_deeply_nested_json_is_compared_as_text(cluster, run, depth):
    variable = {"name": "DEEP", "value": nested(depth)}
    cluster.injector.container = container("istio-proxy", IMAGE, env=[variable])
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    assert verdicts(run(cluster, DRIFTED)) == {"shop/a": "up_to_date", "shop/b": "up_to_date"}
    variable["value"] = nested(depth + 1)
    cluster.injector.container["env"] = [variable]
    ended = run(cluster, DRIFTED)
    assert verdicts(ended) == {"shop/a": "drifted", "shop/b": "drifted"}


def test_whatever_goes_wrong_for_one_workload_is_unknown(cluster, run, tool, monkeypatch):
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name))
        cluster.settle()
        cluster.injector.container["image"] = NEW

    found = tool.sidecar_differences

    def odd(live, fresh, *parts):
        if live != fresh:
            raise RecursionError("too deep")
        return found(live, fresh, *parts)

    monkeypatch.setattr(tool, "sidecar_differences", odd)
    ended = run(cluster, DRIFTED)
    assert verdicts(ended) == {"shop/a": "unknown", "shop/b": "up_to_date"}
    assert ended.of("drift")[0]["message"].startswith("unexpected error: RecursionError")


def took(call) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def test_long_texts_and_lists_take_no_quadratic_time(tool):
    assert took(lambda: tool.redact_text("ey-" * 11_000)) < 1  # 6 s before
    words = [f"--flag-{number}" for number in range(5000)]
    other = [f"--other-{number}" for number in range(5000)]
    assert took(lambda: list(tool.find_differences(words, other, path=("x", "args")))) < 1


def view(tool, *containers: dict, **spec) -> dict:
    """The sidecar of a Pod in normal form."""
    return tool.unpacked(view_of(tool, {"spec": pod_spec(*containers, **spec)}, MESH))


def found(tool, before: dict, after: dict) -> list[str]:
    return [".".join(d.path) for d in tool.find_differences(before, after)]


def test_a_container_that_is_gone_is_its_name_and_image(tool):
    secret = container("istio-proxy", IMAGE, env=[{"name": "A", "value": "x" * 100}])
    (removed,) = tool.find_differences(view(tool, secret), {})
    assert removed.current == {"image": IMAGE, "position": "regular"}
    assert tool.difference_text(removed) == "would be removed: istio-proxy 1.26.2"


def test_images_that_look_like_the_volume_of_a_token_differ(tool):
    one = container("istio-proxy", "registry.example/kube-api-access-proxy:1")
    other = container("istio-proxy", "registry.example/kube-api-access-agent:1")
    assert found(tool, view(tool, one), view(tool, other)) == ["istio-proxy.image"]


def test_the_restart_policy_of_a_regular_container_counts(tool):
    one, other = (container("istio-proxy", IMAGE, restartPolicy=p) for p in ("Never", "Always"))
    assert found(tool, view(tool, one), view(tool, other)) == ["istio-proxy.restartPolicy"]


def test_volumes_behind_devices_count(tool):
    device = {"volumeDevices": [{"name": "disk", "devicePath": "/dev/x"}]}
    sidecar = container("istio-proxy", IMAGE, **device)
    volumes = [[{"name": "disk", "persistentVolumeClaim": {"claimName": name}}] for name in "ab"]
    one, other = (view(tool, sidecar, volumes=each) for each in volumes)
    assert found(tool, one, other) == ["istio-proxy.volumes./dev/x.persistentVolumeClaim.claimName"]


@pytest.mark.parametrize(
    ("one", "other"), [(True, 1), ([True], [1]), ({"a": [{"b": 0}]}, {"a": [{"b": False}]})]
)
def test_true_is_not_1(tool, one, other):
    one, other = (
        view(tool, container("istio-proxy", IMAGE, env=[{"name": "X", "value": json.dumps([v])}]))
        for v in (one, other)
    )
    assert found(tool, one, other)


def variables(*pairs: str) -> dict:
    env = [dict(zip(("name", "value"), pair.split("=", 1), strict=True)) for pair in pairs]
    return container("istio-proxy", IMAGE, env=env)


def test_the_order_of_variables_counts_where_one_expands_to_another(tool):
    one, other = variables("A=1", "B=2"), variables("B=2", "A=1")
    assert found(tool, view(tool, one), view(tool, other)) == []
    one, other = variables("A=1", "B=$(A)"), variables("B=$(A)", "A=1")
    assert found(tool, view(tool, one), view(tool, other)) == ["istio-proxy.env.B"]


def test_a_selector_of_expressions_alone_reads_no_pods_of_others(cluster, run):
    given = workload("Deployment", "web", replicas=2)
    given["spec"]["selector"] = {
        "matchExpressions": [
            {"key": "app", "operator": "In", "values": ["web"]},
            {"key": "app", "operator": "NotIn", "values": ["other-0"]},
            {"key": "app", "operator": "Exists"},
            {"key": "none", "operator": "DoesNotExist"},
        ]
    }
    cluster.create("shop", given)
    for number in range(5):
        cluster.create("shop", workload("Deployment", f"other-{number}"))
    cluster.settle()
    cluster.injector.container["image"] = NEW
    ended = run(cluster, CONFIRM, DRIFTED, "deploy/web")
    assert ended.outcomes == {"shop/web": "succeeded"}
    asked = [r.path for r in cluster.server.requests if "/replicasets/other" in r.path]
    assert len(asked) <= 5  # by the plan alone


def test_an_opted_out_namespace_is_read_again_before_each_patch(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(path="deployments/web$", release=threading.Event())
    running = start(cluster, CONFIRM, "--exclude-annotation=team/restart=never")
    assert held.reached.wait(20)
    metadata = {"annotations": {"team/restart": "never"}}
    cluster.change("Namespace", "", "shop", {"metadata": metadata})
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    assert ended.of("result")[0]["message"] == "its namespace matches --exclude-annotation"


def test_the_claim_of_a_stateful_sets_pod_has_its_name(tool):
    """Each Pod has a claim of its own, from the same template."""
    sidecar = container("istio-proxy", IMAGE, volumeMounts=[{"name": "disk", "mountPath": "/d"}])
    names = ("disk-db-0", "disk-db-107")
    volumes = [[{"name": "disk", "persistentVolumeClaim": {"claimName": name}}] for name in names]
    one, other = (view(tool, sidecar, volumes=each) for each in volumes)
    assert found(tool, one, other) == []
