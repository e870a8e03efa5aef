"""What the metadata of a ConfigMap or Secret tells of its changes, and what it does not tell."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import datetime, timedelta, timezone

import pytest
from clusters.embedded.manifests import workload
from support import (
    BOTH,
    CONFIRM,
    DRIFTED,
    KUBECTL,
    MESH,
    SIDECAR,
    TEXT,
    a_workload,
    config,
    numbered,
    options_of,
    partition,
    patched,
    pod_of,
    verdicts,
)
from texts import CHANGED_LATER

RECORDED = numbered("config-changes")


CONFIG = (DRIFTED, "--include-config")


def clock(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-21T{text}+00:00")


@pytest.mark.parametrize(
    ("number", "changed"),
    [
        (1, "16:35:48"),  # created
        (3, "16:35:49"),  # data, by the same manager
        (5, "16:35:50"),  # data, by another one
        (7, "16:35:50"),  # only a label, by a third one
        (9, "16:35:52"),  # a label, by one that owns data: the same time for both
        (15, "16:35:52"),  # a key was removed, which nothing tells
        (23, "16:35:59"),  # kubectl replace, then annotate
        (28, "16:36:08"),  # kubectl apply, which owns its own annotation
        (39, "16:36:13"),  # an entry without a time
        (46, "16:36:10"),  # without managedFields: created
        (56, "16:36:23"),  # binaryData
        (64, "16:36:28"),  # a Secret: data and type
        (72, "16:36:32"),  # a Secret: stringData, applied by the server
        (90, "16:37:50"),  # a label, by kubectl apply
        (93, "16:37:52"),  # a label, by server-side apply
    ],
)
def test_when_recorded_configuration_changed(tool, number, changed):
    assert tool.changed_at(RECORDED[number]["response"]["body"]) == clock(changed)


def create_shop(cluster, web: dict) -> None:
    """Create a workload, a day old, and the ConfigMap of its sidecar, which is older."""
    settings = {"name": "settings", "configMap": {"name": "settings"}}
    cluster.injector.also = {"volumes": [settings]}
    cluster.injector.container["volumeMounts"] = [{"name": "settings", "mountPath": "/etc/x"}]
    labels = {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"k": "1", "l": "1"}}
    cluster.create("shop", labels)
    cluster.create("shop", web)
    cluster.settle()
    for plural, days in (("pods", 1), ("configmaps", 2)):
        for found in cluster.store.list(plural, "shop"):
            cluster.backdate(found, days * 86400, plural)


@pytest.fixture
def shop(cluster):
    create_shop(cluster, workload("Deployment", "web"))
    return cluster


def test_pods_that_a_rollout_left_are_older_than_their_configuration(cluster, run):
    create_shop(cluster, workload("StatefulSet", "web", replicas=3, **partition(1)))
    cluster.change("ConfigMap", "shop", "settings", {"data": {"k": "2"}})
    ended = run(cluster, *CONFIG, CONFIRM, "--include-statefulset")
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    (summary,) = ended.of("summary")
    assert [found["name"] for found in summary["leftovers"]] == ["web-0"]


def kubectl(cluster, *words: str) -> None:
    environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig}
    subprocess.run(
        [KUBECTL, *words, "-n", "shop"], env=environment, check=True, capture_output=True
    )


def drift(ended) -> str:
    (record,) = ended.of("drift")
    return "; ".join(found["expected"] for found in record["differences"])


@pytest.mark.parametrize("verb", ["annotate", "label"])
def test_an_annotation_or_a_label_is_no_change(shop, run, verb):
    kubectl(shop, verb, "configmap", "settings", "x=1")
    assert drift(run(shop, *CONFIG)) == ""


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"data": {"k": "2"}}, CHANGED_LATER),
        (
            {"data": {"k": "2"}, "metadata": {"labels": {"v": "2"}}},
            CHANGED_LATER,
        ),
        ({"data": {"l": None}}, ""),  # nothing tells that a key was removed
    ],
)
def test_what_is_said_of_a_change(shop, run, patch, said):
    kubectl(shop, "patch", "configmap", "settings", "--type=merge", "-p", json.dumps(patch))
    assert drift(run(shop, *CONFIG)) == said


def test_configuration_counts_only_on_request(every_kind, run):
    for found in every_kind.pods("shop"):
        every_kind.backdate(found, 3 * 86400 + 60)
    every_kind.delete("ConfigMap", "shop", "proxy-config")
    every_kind.server.requests.clear()
    assert set(verdicts(run(every_kind, DRIFTED, *BOTH)).values()) == {"up_to_date"}
    asked = [r.path for r in every_kind.server.requests]
    assert [path for path in asked if "/configmaps" in path or "/secrets" in path] == []


def test_configuration_that_changed_after_the_pods_were_created(every_kind, run):
    for found in every_kind.pods("shop"):
        every_kind.backdate(found, 3 * 86400 + 60)
    assert set(verdicts(run(every_kind, *CONFIG, *BOTH)).values()) == {"drifted"}
    every_kind.server.requests.clear()
    ended = run(every_kind, *CONFIG, *BOTH, TEXT)
    assert f"  ConfigMap shop/proxy-config {CHANGED_LATER}\n" in ended.stdout
    asked = [
        r for r in every_kind.server.requests if "/configmaps" in r.path or "/secrets" in r.path
    ]
    assert [r.path for r in asked] == ["/api/v1/namespaces/shop/configmaps/proxy-config"]
    assert "as=PartialObjectMetadata;" in asked[0].headers["accept"]
    assert "kube-root-ca.crt" not in json.dumps([r.path for r in every_kind.server.requests])


def test_configuration_that_the_sidecar_reloads_by_itself_is_left_out(every_kind, run):
    for found in every_kind.pods("shop"):
        every_kind.backdate(found, 3 * 86400 + 60)
    ended = run(every_kind, *CONFIG, *BOTH, "--ignore-config=istio-*", "--ignore-config=proxy-*")
    assert set(verdicts(ended).values()) == {"up_to_date"}


def test_after_a_rollout_for_its_configuration_a_workload_is_up_to_date(every_kind, run):
    for found in every_kind.pods("shop", "web"):
        every_kind.backdate(found, 3 * 86400 + 60)
    ended = run(every_kind, *CONFIG, CONFIRM)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert run(every_kind, *CONFIG, CONFIRM).planned == []


def test_configuration_that_is_missing_is_rejected(every_kind, run):
    every_kind.delete("ConfigMap", "shop", "proxy-config")
    ended = run(every_kind, *CONFIG, CONFIRM, *BOTH)
    assert ended.code == 0
    assert ended.planned == []
    assert patched(every_kind) == []
    assert set(verdicts(ended).values()) == {"rejected"}
    assert ended.of("drift")[0]["message"] == (
        "would not start: ConfigMap shop/proxy-config does not exist"
    )


def test_no_content_of_a_secret_is_ever_read(every_kind, run):
    every_kind.injector.also = {
        "volumes": [{"name": "proxy-config", "secret": {"secretName": "certs"}}]
    }
    every_kind.create("shop", config("certs", "Secret"))
    ended = run(every_kind, *CONFIG, "--log-level=debug")
    asked = [r for r in every_kind.server.requests if "/secrets/certs" in r.path]
    assert asked
    assert all("as=PartialObjectMetadata;" in r.headers["accept"] for r in asked)
    assert "c2VjcmV0" not in ended.stdout + ended.stderr


NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def using_configs() -> dict:
    sidecar = {
        "name": "mesh-proxy",
        "image": "x:1",
        "env": [
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "env-map", "key": "k"}}},
            {
                "name": "B",
                "valueFrom": {"secretKeyRef": {"name": "env-secret", "key": "k", "optional": True}},
            },
        ],
        "envFrom": [{"configMapRef": {"name": "from-map"}}, {"secretRef": {"name": "from-secret"}}],
        "volumeMounts": [
            {"name": n, "mountPath": f"/{n}"} for n in ("m", "s", "p", "kube-api-access-abcde")
        ],
    }
    volumes = [
        {"name": "m", "configMap": {"name": "mounted-map", "optional": True}},
        {"name": "s", "secret": {"secretName": "mounted-secret"}},
        {
            "name": "p",
            "projected": {
                "sources": [
                    {"configMap": {"name": "env-map", "optional": True}},
                    {"secret": {"name": "p"}},
                ]
            },
        },
        {"name": "unused", "configMap": {"name": "not-mounted"}},
        {
            "name": "kube-api-access-abcde",
            "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]},
        },
    ]
    app = {"name": "app", "image": "a:1", "envFrom": [{"configMapRef": {"name": "of-the-app"}}]}
    return {"metadata": {}, "spec": {"containers": [app, sidecar], "volumes": volumes}}


def test_the_configuration_that_a_sidecar_uses(tool):
    found = {
        (c.kind, c.name): required
        for c, required in tool.configs_of(
            using_configs(), "shop", options_of(tool, sidecars=MESH)
        ).items()
    }
    assert found == {
        ("ConfigMap", "env-map"): True,  # required in one place is required
        ("Secret", "env-secret"): False,
        ("ConfigMap", "from-map"): True,
        ("Secret", "from-secret"): True,
        ("ConfigMap", "mounted-map"): False,
        ("Secret", "mounted-secret"): True,
        ("Secret", "p"): True,
    }


def compared(tool, changed: object, required: bool = True):
    config = tool.ObjectRef("ConfigMap", "shop", "proxy-config")
    view = tool.view_of(pod_of(SIDECAR), MESH)
    sidecars = frozenset([tool.Sidecar("mesh-proxy", "x:1", native=False)])
    days = {"a": timedelta(days=3), "b": timedelta(0)}
    pods = [tool.LivePod(name, NOW - age, True, sidecars, view=view) for name, age in days.items()]
    configs = {config: required}
    made = a_workload(tool, view=view, pods=pods, sidecars=sidecars, configs=configs)
    today = tool.with_changes(made.comparison.today, {config: changed})
    return tool.compare(made.found, today, options_of(tool, "--only-drifted"))


def test_configuration_changed_after_the_pod_was_created_is_drift(tool):
    drift = compared(tool, NOW)
    assert (drift.verdict, drift.drifted) == (
        tool.Verdict.DRIFTED,
        {"a": {"mesh-proxy"}},
    )
    (difference,) = drift.differences
    assert tool.difference_text(difference) == f"ConfigMap shop/proxy-config {CHANGED_LATER}"
    assert compared(tool, NOW - timedelta(days=4)).verdict is tool.Verdict.UP_TO_DATE


def test_configuration_that_does_not_exist(tool):
    gone = tool.ApiError(404, "404 not found")
    assert compared(tool, gone).verdict is tool.Verdict.REJECTED
    assert compared(tool, gone).message == (
        "would not start: ConfigMap shop/proxy-config does not exist"
    )
    assert compared(tool, gone, required=False).verdict is tool.Verdict.UP_TO_DATE
    assert compared(tool, tool.ApiError(403, "403 no")).verdict is tool.Verdict.UNKNOWN
