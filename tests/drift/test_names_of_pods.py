"""Injectors that make values from the name of a Pod, which only Pods of StatefulSets have at that time."""

from __future__ import annotations

import hashlib

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, DRIFTED, NEW, verdicts

pytestmark = pytest.mark.both
ALL = ("--include-statefulset", "--include-daemonset")
OLD = "docker.io/istio/proxyv2:1.26.2"


@pytest.fixture
def hashing(cluster):
    """One workload of each kind; the injector hashes the name that it sees into volumes, paths and variables.

    As Azure's workload identity does: in all containers.
    """

    def inject(pod: dict) -> None:
        real(pod)
        metadata = pod["metadata"]
        name = metadata.get("name") or f"{metadata['generateName']}?"
        word = hashlib.sha256(name.encode()).hexdigest()[:20]
        volume = f"token-{word}"
        pod["spec"].setdefault("volumes", []).append({"name": volume, "emptyDir": {}})
        for found in pod["spec"]["containers"]:
            found["env"] = [{"name": f"TOKEN_{word}", "value": f"/tokens/{word}/token"}]
            mount = {"name": volume, "mountPath": f"/tokens/{word}"}
            found["volumeMounts"] = [*found.get("volumeMounts", []), mount]

    real = cluster.injector.inject
    cluster.injector.inject = inject
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.create("shop", workload("StatefulSet", "db", replicas=2))
    cluster.create("shop", workload("DaemonSet", "log"))
    cluster.settle()
    return cluster


def test_what_is_made_from_the_name_of_a_pod_is_no_drift(hashing, run):
    ended = run(hashing, DRIFTED, *ALL)
    assert verdicts(ended) == dict.fromkeys(("shop/db", "shop/log", "shop/web"), "up_to_date")
    ignored = {record["name"]: record["ignored"] for record in ended.of("drift")}
    assert ignored["db"] == [
        ["istio-proxy", "env", "*"],
        ["istio-proxy", "volumeMounts", "*"],
        ["istio-proxy", "volumes", "*"],
    ]


def test_an_upgrade_is_rolled_out_and_its_pods_are_right(hashing, run):
    """The Pods of a Deployment get other values than the dry run: their ReplicaSet has another name."""
    hashing.injector.container["image"] = NEW
    ended = run(hashing, DRIFTED, CONFIRM, *ALL)
    paths = {r["name"]: [d["path"] for d in r["differences"]] for r in ended.of("plan")}
    assert paths == dict.fromkeys(("db", "log", "web"), [["istio-proxy", "image"]])
    assert (ended.code, set(ended.outcomes.values())) == (0, {"succeeded"})
    assert ended.summary["leftovers"] == []
    again = run(hashing, DRIFTED, *ALL)
    assert set(verdicts(again).values()) == {"up_to_date"}


def test_an_injector_that_dry_runs_do_not_describe_is_still_drifted(hashing, run, monkeypatch):
    hashing.injector.container["image"] = NEW
    call = type(hashing.injector).__call__

    def old_for_real(injector, pod, namespace, dry_run) -> None:
        injector.container["image"] = NEW if dry_run else OLD
        call(injector, pod, namespace, dry_run)

    monkeypatch.setattr(type(hashing.injector), "__call__", old_for_real)
    ended = run(hashing, DRIFTED, CONFIRM, "deployment/web")
    assert (ended.code, ended.outcomes) == (1, {"shop/web": "still_drifted"})


@pytest.mark.embedded("its webhook is another process")
def test_a_webhook_that_fails_for_a_moment_does_not_make_it_drifted(hashing, run, monkeypatch):
    """The question with a new Pod as the example is asked again."""
    hashing.injector.container["image"] = NEW
    call = type(hashing.injector).__call__
    old = {pod["metadata"]["uid"] for pod in hashing.pods("shop")}
    failed = []

    def fails_once(injector, pod, namespace, dry_run) -> None:
        new = [p for p in hashing.pods("shop", "web") if p["metadata"]["uid"] not in old]
        injector.state = "works"
        if dry_run and len(new) == 2 and not failed:
            failed.append(pod)
            injector.state = "fails"
        call(injector, pod, namespace, dry_run)

    monkeypatch.setattr(type(hashing.injector), "__call__", fails_once)
    ended = run(hashing, DRIFTED, CONFIRM, "deployment/web")
    assert len(failed) == 1
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})


@pytest.mark.embedded("nobody binds the claims")
def test_dry_runs_of_a_stateful_set_are_about_pods_that_do_not_exist(cluster, run):
    """An existing name is refused. Hostname, claims and labels are those of the same ordinal."""
    claims = [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    database = workload(
        "StatefulSet", "db", pod_spec(container("app", **mount)), replicas=2, ordinals={"start": 5}
    )
    database["spec"]["volumeClaimTemplates"] = claims
    cluster.create("shop", database)
    cluster.settle()
    cluster.injector.container["image"] = NEW
    done = run(cluster, DRIFTED, CONFIRM, *ALL)
    assert done.outcomes == {"shop/db": "succeeded"}
    seen = cluster.injector.seen
    names = [pod["metadata"]["name"] for pod in seen]
    assert names[:2] == ["db-107", "db-108"]
    for pod, name in zip(seen, names, strict=True):
        labels = pod["metadata"]["labels"]
        assert labels["statefulset.kubernetes.io/pod-name"] == pod["spec"]["hostname"] == name
        assert labels["apps.kubernetes.io/pod-index"] == name.removeprefix("db-")
        (claim,) = [v for v in pod["spec"]["volumes"] if v["name"] == "data"]
        assert claim["persistentVolumeClaim"] == {"claimName": f"data-{name}"}


def test_an_injector_sees_no_name_of_a_deployments_pod(cluster, run):
    """The API server makes it after mutating admission."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    run(cluster, DRIFTED)
    (seen,) = cluster.injector.seen
    assert "name" not in seen["metadata"]
    (pod,) = cluster.pods("shop")
    assert pod["metadata"]["name"].startswith(seen["metadata"]["generateName"])
