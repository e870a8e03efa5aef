"""--evict: any change of a template that is not rolled out yet is a reason to skip, with its field."""

from __future__ import annotations

import pytest
from cluster.manifests import container, pod_spec, replicated, workload
from support import CONFIRM, DRIFTED, EVICT, ON_DELETE, evictions, ref_of, uids, upgrade

pytestmark = pytest.mark.both


def app(**fields) -> dict:
    return {"spec": {"containers": [{"name": "app", **fields}]}}


PROBE = {"httpGet": {"path": "/healthz", "port": 8080}}
CLASS = "system-cluster-critical"
CHANGES = {  # of the template, and what the reason names
    "image": (app(image="app:2"), "container app (image)"),
    "env": (app(env=[{"name": "MODE", "value": "new"}]), "container app (env MODE)"),
    "env-from": (
        app(envFrom=[{"configMapRef": {"name": "x", "optional": True}}]),
        "container app (envFrom)",
    ),
    "resources": (
        app(resources={"requests": {"cpu": "2m"}}),
        "container app (resources.requests.cpu)",
    ),
    "ports": (app(ports=[{"containerPort": 81}]), "container app (port 81/TCP.containerPort)"),
    "probe": (app(livenessProbe=PROBE), "container app (livenessProbe.failureThreshold)"),
    "mount": (
        {
            "spec": {
                "containers": [
                    {"name": "app", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}
                ],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            }
        },
        "container app (mount /tmp.mountPath)",
    ),
    "volume": (
        {"spec": {"volumes": [{"name": "data", "configMap": {"name": "y", "optional": True}}]}},
        "volume data (configMap.name)",
    ),
    "node-selector": ({"spec": {"nodeSelector": {"disk": "ssd"}}}, "nodeSelector"),
    "toleration": (
        {"spec": {"tolerations": [{"key": "db", "effect": "NoSchedule"}, {"key": "gpu"}]}},
        "toleration gpu",
    ),
    "security": ({"spec": {"securityContext": {"runAsUser": 7}}}, "securityContext"),
    "account": ({"spec": {"serviceAccountName": "other"}}, "serviceAccountName"),
    "account-removed": (
        {"spec": {"serviceAccountName": None, "serviceAccount": None}},
        "serviceAccountName",
    ),
    "grace-period": (
        {"spec": {"terminationGracePeriodSeconds": 7}},
        "terminationGracePeriodSeconds",
    ),
    "priority": ({"spec": {"priorityClassName": CLASS}}, "priorityClassName"),
    "host-network": ({"spec": {"hostNetwork": True}}, "hostNetwork"),
    "label": ({"metadata": {"labels": {"team": "b"}}}, "label team"),
    "label-removed": ({"metadata": {"labels": {"team": None}}}, "label team"),
    "annotation": ({"metadata": {"annotations": {"team/config": "2"}}}, "annotation team/config"),
    "container": ({"spec": {"containers": [container("helper")]}}, "container helper"),
    "tolerations-removed": ({"spec": {"tolerations": None}}, "toleration db NoSchedule"),
    "aliases-removed": ({"spec": {"hostAliases": None}}, "hostAliases"),
}
KINDS = ["StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController"]


def manifest(kind: str, name: str) -> dict:
    spec = pod_spec(
        container("app", "app:1", env=[{"name": "MODE", "value": "old"}]),
        volumes=[{"name": "data", "configMap": {"name": "x", "optional": True}}],
        securityContext={"fsGroup": 5},
        serviceAccountName="own",
        tolerations=[{"key": "db", "effect": "NoSchedule"}],
        hostAliases=[{"ip": "10.0.0.1", "hostnames": ["x"]}],
        init=(container("first"), container("second")),
    )
    notes = {"team/config": "1"}
    if kind in ("ReplicaSet", "ReplicationController"):
        found = replicated(kind, name, spec, annotations=notes, replicas=1)
    else:
        found = workload(kind, name, spec, annotations=notes, **ON_DELETE)
    found["spec"]["template"]["metadata"]["labels"] = {"app": name, "team": "a"}
    return found


@pytest.fixture
def filled(cluster):
    """filled(kind): one workload per change, and one without any, all with an older sidecar."""

    def fill(kind: str):
        for account in ("own", "other"):
            cluster.create("shop", {"kind": "ServiceAccount", "metadata": {"name": account}})
        for name in ("same", *CHANGES):
            cluster.create("shop", manifest(kind, name))
        cluster.settle()
        upgrade(cluster)
        return cluster

    return fill


@pytest.mark.parametrize("kind", KINDS)
def test_a_pending_change_is_a_reason_to_skip(filled, run, kind):
    cluster = filled(kind)
    changes = dict(CHANGES)
    if kind == "DaemonSet":  # its controller deletes Pods from nodes that are not selected anymore
        del changes["node-selector"]
        cluster.delete(kind, "shop", "node-selector")
        cluster.wait_for(lambda: not cluster.pods("shop", "node-selector"))
    for name, (patch, _) in changes.items():
        cluster.change(kind, "shop", name, {"spec": {"template": patch}})
    before = uids(cluster)
    text = "replacing its Pods would also roll out a change of"
    expected = {f"{kind} shop/{name}": f"{text} {what}" for name, (_, what) in changes.items()}
    for name in CHANGES:
        if name in ("label-removed", "aliases-removed", "tolerations-removed"):
            subject = f"{kind} shop/{name}"
            expected[subject] = expected[subject].replace("a change of", "the removal of")
    planned = run(cluster, DRIFTED, *EVICT)
    assert planned.planned == ["shop/same"]
    told = {
        subject: reason.removeprefix("drifted, but ") for subject, reason in planned.skipped.items()
    }
    assert {subject: reason.split(" (")[0] for subject, reason in told.items()} == {
        subject: reason.split(" (")[0] for subject, reason in expected.items()
    }
    ended = run(cluster, *EVICT, CONFIRM)  # a worker finds it out by itself
    messages = {ref_of(r): r["message"] for r in ended.of("result")}
    assert messages.pop(f"{kind} shop/same") == ""
    assert messages == told
    kept = [uid for uid in uids(cluster) if uid in before]
    one = 3 if kind == "DaemonSet" else 1
    assert (ended.code, len(kept), len(set(evictions(cluster)))) == (0, len(before) - one, one)


NOT_PENDING = {
    "restarted-at": {
        "metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-01-01"}}
    },
    "our-own": {
        "metadata": {
            "annotations": {"sidecarRollout.rollout.reason": "x", "a.rollout.timestamp": "y"}
        }
    },
    "changed-back": app(image="app:2"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_pending_change(cluster, run, kind):
    cluster.create("shop", {"kind": "ServiceAccount", "metadata": {"name": "own"}})
    for name in NOT_PENDING:
        cluster.create("shop", manifest(kind, name))
    cluster.settle()
    for name, patch in NOT_PENDING.items():
        cluster.change(kind, "shop", name, {"spec": {"template": patch}})
    back = {"spec": {"template": app(image="app:1")}}
    cluster.change(kind, "shop", "changed-back", back)
    live = next(iter(cluster.pods("shop", "our-own")))["metadata"]["name"]
    note = {"metadata": {"annotations": {"added/later": "1"}}}
    cluster.change("Pod", "shop", live, note)
    upgrade(cluster)
    cluster.settle()
    ended = run(cluster, DRIFTED, *EVICT, CONFIRM)
    assert ended.skipped == {}
    assert ended.outcomes == dict.fromkeys([f"shop/{name}" for name in NOT_PENDING], "succeeded")
