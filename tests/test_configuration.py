"""What the metadata of a ConfigMap or Secret tells of its changes, and what it does not tell."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cluster.manifests import workload
from conftest import KUBECTL

RECORDED = json.loads(
    Path(__file__).with_name("recorded").joinpath("config-changes.json").read_text()
)
DRIFTED = "--only-drifted"


def clock(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-21T{text}+00:00")


@pytest.mark.parametrize(
    ("number", "certain", "possible"),
    [
        (1, "16:35:48", "16:35:48"),  # created
        (3, "16:35:49", "16:35:49"),  # data, by the same manager
        (5, "16:35:50", "16:35:50"),  # data, by another one
        (7, "16:35:50", "16:35:50"),  # only a label, by a third one
        (9, "16:35:49", "16:35:52"),  # a label, by one that owns data: it may have been either
        (15, "16:35:49", "16:35:52"),  # a key was removed, which nothing tells
        (23, "16:35:59", "16:35:59"),  # kubectl replace, then annotate
        (28, "16:36:08", "16:36:08"),  # kubectl apply, which owns its own annotation
        (39, "16:36:13", "16:36:13"),  # an entry without a time
        (56, "16:36:23", "16:36:23"),  # binaryData
        (64, "16:36:28", "16:36:28"),  # a Secret: data and type
        (72, "16:36:32", "16:36:32"),  # a Secret: stringData, applied by the server
        (90, "16:37:48", "16:37:50"),  # a label, by kubectl apply
        (93, "16:37:51", "16:37:52"),  # a label, by server-side apply
    ],
)
def test_when_recorded_configuration_changed(tool, number, certain, possible):
    change = tool.change_of(RECORDED[number]["response"]["body"])
    assert change == (clock(certain), clock(possible), True)


def test_recorded_configuration_without_managed_fields(tool):
    assert tool.change_of(RECORDED[46]["response"]["body"]) == (
        clock("16:36:10"),
        clock("16:36:10"),
        False,
    )


def difference(tool, certain: int, possible: int, *pods: int) -> str:
    """What is said of Pods created at these seconds."""

    def at(second: int) -> datetime:
        return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=second)

    config = tool.ObjectRef("ConfigMap", "shop", "x")
    change = tool.ConfigChange(at(certain), at(possible), True)
    live = [tool.LivePod(f"p{second}", at(second), b"", ()) for second in pods]
    drifted, found = (
        tool.compare_pods(live, tool.packed({}), {config: change}) if pods else ((), [])
    )
    assert len(drifted) == sum(second < possible for second in pods)
    return "; ".join(tool.difference_text(one) for one in found if one.path[0].startswith("Conf"))


@pytest.mark.parametrize(
    ("certain", "possible", "pods", "said"),
    [
        (10, 10, (3, 12), "ConfigMap shop/x changed 7s after the oldest Pod was created"),
        (10, 20, (3, 12), "ConfigMap shop/x changed 7s after the oldest Pod was created"),
        (10, 20, (12, 25), "ConfigMap shop/x may have changed 8s after the oldest Pod was created"),
        (10, 20, (20, 25), ""),
    ],
)
def test_what_is_not_certain_is_said_to_be_possible(
    tool, monkeypatch, certain, possible, pods, said
):
    monkeypatch.setattr(tool, "sidecar_differences", lambda *_: ())
    assert difference(tool, certain, possible, *pods) == said


@pytest.fixture
def mesh(cluster):
    """Deployment web, a day old, as is the ConfigMap of its sidecar."""
    settings = {"name": "settings", "configMap": {"name": "settings"}}
    cluster.injector.also = {"volumes": [settings]}
    cluster.injector.container["volumeMounts"] = [{"name": "settings", "mountPath": "/etc/x"}]
    labels = {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"k": "1", "l": "1"}}
    cluster.create("shop", labels)
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    for plural in ("pods", "configmaps"):
        for found in cluster.store.list(plural, "shop"):
            cluster.backdate(found, 86400, plural)
    return cluster


def kubectl(cluster, *words: str) -> None:
    environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig}
    subprocess.run(
        [KUBECTL, *words, "-n", "shop"], env=environment, check=True, capture_output=True
    )


def drift(ended) -> str:
    (record,) = ended.of("drift")
    return "; ".join(found["expected"] for found in record["differences"])


@pytest.mark.parametrize("verb", ["annotate", "label"])
def test_an_annotation_or_a_label_is_no_change(mesh, run, verb):
    kubectl(mesh, verb, "configmap", "settings", "x=1")
    assert drift(run(mesh, DRIFTED)) == ""


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"data": {"k": "2"}}, "changed 1d after the oldest Pod was created"),
        (
            {"data": {"k": "2"}, "metadata": {"labels": {"v": "2"}}},
            "may have changed 1d after the oldest Pod was created",
        ),
        ({"data": {"l": None}}, ""),  # nothing tells that a key was removed
    ],
)
def test_what_is_said_of_a_change(mesh, run, patch, said):
    kubectl(mesh, "patch", "configmap", "settings", "--type=merge", "-p", json.dumps(patch))
    assert drift(run(mesh, DRIFTED)) == said


def test_configuration_whose_changes_are_not_recorded_is_warned_about_once(mesh, run):
    found = mesh.get("ConfigMap", "shop", "settings")
    metadata = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    mesh.store.change("configmaps", found, metadata=metadata)
    ended = run(mesh, DRIFTED, "--log-format=text")
    line = "WARNING changes to ConfigMap shop/settings cannot be detected: no managedFields"
    assert ended.stderr.count(line) == 1
    assert "1 up to date" in ended.stdout
