"""--evict: owners that have no rollout, one Pod at a time."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from datetime import datetime, timezone

import pytest
from cluster import is_ready
from cluster.manifests import budget, container, pod, pod_spec, replicated, workload
from conftest import let_ready

CONFIRM = "--confirm=true"
EVICT = ("--evict", "--include-statefulset", "--include-daemonset")
ON_DELETE = {"updateStrategy": {"type": "OnDelete"}}
NEW = "docker.io/istio/proxyv2:1.27.0"
PENDING = "has a pending template change, which replacing its Pods would roll out"
APP = pod_spec(container("app", "app:1"))


def partition(number: int) -> dict:
    return {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": number}}}


def owned(manifest: dict, api_version: str, kind: str, name: str) -> dict:
    reference = {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-of-{name}"}
    manifest["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
    return manifest


def argo(name: str, spec: dict = APP, **fields) -> dict:
    """The ReplicaSet of an Argo Rollout."""
    return owned(
        replicated("ReplicaSet", f"{name}-5d8f7c6b9d", spec, **fields),
        "argoproj.io/v1alpha1",
        "Rollout",
        name,
    )


def paused(cluster, name: str = "x", **fields) -> None:
    cluster.create("shop", workload("Deployment", name, APP, **fields))
    cluster.settle()
    cluster.change("Deployment", "shop", name, {"spec": {"paused": True}})


def a_deployment_config(cluster) -> None:
    """A ReplicationController that a custom resource owns, as on OpenShift."""
    manifest = replicated("ReplicationController", "x-1", APP, replicas=2)
    owned(manifest, "apps.openshift.io/v1", "DeploymentConfig", "x")
    cluster.create("shop", manifest)


OWNERS = {
    "StatefulSet shop/x": lambda c: c.create(
        "shop", workload("StatefulSet", "x", APP, replicas=3, **ON_DELETE)
    ),
    "DaemonSet shop/x": lambda c: c.create("shop", workload("DaemonSet", "x", APP, **ON_DELETE)),
    "Deployment shop/x": lambda c: paused(c, replicas=2),
    "ReplicaSet shop/x": lambda c: c.create("shop", replicated("ReplicaSet", "x", APP, replicas=2)),
    "ReplicationController shop/x": lambda c: c.create(
        "shop", replicated("ReplicationController", "x", APP, replicas=2)
    ),
    "Rollout shop/x": lambda c: c.create("shop", argo("x", replicas=2)),
    "DeploymentConfig shop/x": a_deployment_config,
    "CloneSet shop/x": lambda c: c.create("shop", replicated("CloneSet", "x", APP, replicas=2)),
}


def upgrade(cluster) -> None:
    cluster.injector.container |= {"image": NEW}


def uids(cluster) -> list[str]:
    return sorted(p["metadata"]["uid"] for p in cluster.pods("shop"))


def images(cluster, name: str = "app") -> list[str]:
    return [
        found["image"]
        for p in cluster.pods("shop")
        for found in p["spec"]["containers"]
        if found["name"] == name
    ]


def evictions(cluster) -> list[str]:
    """The Pods that the tool asked to evict, in order, also in vain."""
    return [r.path.split("/")[-2] for r in cluster.server.requests if r.path.endswith("/eviction")]


def ref_of(record: dict) -> str:
    return f"{record['kind']} {record['namespace']}/{record['name']}"


class Watch:
    """How many Pods of a namespace were missing or not ready at the same time, at most."""

    def __init__(self, cluster) -> None:
        self.most = 0
        self.total = len(cluster.pods("shop"))
        inner = cluster.store.on_change

        def on_change(resource: str, obj: dict) -> None:
            inner(resource, obj)
            if resource == "pods":
                ready = sum(map(is_ready, cluster.store.list("pods", "shop")))
                self.most = max(self.most, self.total - ready)

        cluster.store.on_change = on_change


@pytest.mark.parametrize("options", [(), ("--only-drifted",)], ids=["all", "drifted"])
@pytest.mark.parametrize("owner", OWNERS)
def test_each_owner(cluster, run, owner, options):
    OWNERS[owner](cluster)
    cluster.settle()
    upgrade(cluster)
    cluster.controllers.ready_after = 0.3  # longer than the old Pods take to end
    before, watch = uids(cluster), Watch(cluster)
    without = run(cluster, CONFIRM, *options, *EVICT[1:])
    assert without.planned == []
    assert all("--evict" in reason for reason in without.skipped.values())
    assert len(without.skipped) in (1, len(before))
    ended = run(cluster, CONFIRM, *options, *EVICT)
    if owner.startswith("CloneSet") and options:
        (drift,) = ended.of("drift")
        message = "the Pod template of a CloneSet (apps.kruise.io) cannot be read"
        assert (drift["verdict"], drift["message"]) == ("unknown", message)
        assert (ended.code, evictions(cluster)) == (1, [])
        return
    assert ended.code == 0, ended.stderr
    (plan,) = ended.of("plan")
    assert (ref_of(plan), plan["method"]) == (owner, "evict")
    assert plan["pods_to_replace"] == plan["pods"] == len(before)
    assert ended.outcomes == {"shop/x": "succeeded"}
    assert ended.summary["pods"]["updated_and_ready"] == len(before)
    assert set(uids(cluster)).isdisjoint(before)
    assert images(cluster, "istio-proxy") == [NEW] * len(before)
    assert watch.most == 1
    assert len(evictions(cluster)) == len(before)
    again = run(cluster, CONFIRM, *options, *EVICT, f"--only-started-before={cutoff_of(ended)}")
    assert (again.code, again.planned) == (0, [])


def cutoff_of(ended) -> str:
    return ended.summary["started_before"]


@pytest.mark.parametrize("options", [(), ("--only-drifted",)], ids=["all", "drifted"])
def test_a_partitioned_stateful_set_is_restarted_then_evicted_below(cluster, run, options):
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **partition(2)))
    cluster.settle()
    upgrade(cluster)
    before, watch = uids(cluster), Watch(cluster)
    ended = run(cluster, CONFIRM, *options, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    (plan,) = ended.of("plan")
    assert (plan["method"], plan["pods_to_replace"]) == ("restart", 3)
    assert evictions(cluster) == ["x-1", "x-0"]
    assert set(uids(cluster)).isdisjoint(before)
    assert ended.summary["pods"]["updated_and_ready"] == 3
    assert watch.most == 1


def test_what_a_first_run_left_below_the_partition_is_evicted(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **partition(2)))
    cluster.settle()
    upgrade(cluster)
    first = run(cluster, CONFIRM, *EVICT[1:])
    assert first.outcomes == {"shop/x": "incomplete"}
    ended = run(cluster, CONFIRM, *EVICT, "--only-drifted")
    assert [(r["method"], r["pods_to_replace"]) for r in ended.of("plan")] == [("evict", 2)]
    assert (ended.code, evictions(cluster)) == (0, ["x-1", "x-0"])
    assert images(cluster, "istio-proxy") == [NEW] * 3


def test_workloads_with_a_rollout_are_restarted_all_the_same(cluster, run):
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        cluster.create("shop", workload(kind, kind.lower(), APP))
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT)
    assert {r["method"] for r in ended.of("plan")} == {"restart"}
    assert (ended.code, evictions(cluster)) == (0, [])


def test_pods_that_nobody_would_replace_are_never_evicted(cluster, run):
    proxy = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2")
    once = pod_spec(container("app"), proxy, restartPolicy="Never")
    cluster.create("shop", pod("bare", pod_spec(container("app"), proxy)))
    cluster.create("shop", pod("static", once, ("v1", "Node", "node-1")))
    cluster.create("shop", pod("job", once, ("batch/v1", "Job", "job")))
    cluster.create("shop", pod("step", once, ("argoproj.io/v1alpha1", "Workflow", "w")))
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT)
    assert ended.skipped == {
        "Pod shop/bare": "not managed by a controller; delete and recreate it manually",
        "Pod shop/static": "static Pod, managed by the kubelet of its node",
        "Pod shop/job": "managed by a Job; runs to completion",
        "Pod shop/step": "managed by a Workflow; runs to completion",
    }
    assert (ended.planned, evictions(cluster)) == ([], [])


def test_the_text_shows_what_is_evicted(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "orphan", APP))
    cluster.settle()
    text = run(cluster, *EVICT, "--log-format=text").stdout
    assert "To roll out: 1 workload (1 Pod).\n" in text
    cluster.create("shop", workload("Deployment", "web", APP))
    cluster.create("shop", workload("StatefulSet", "db", APP, replicas=3, **partition(2)))
    cluster.settle()
    lines = run(cluster, *EVICT, "--log-format=text").stdout.splitlines()
    rows = {line.split()[1]: number for number, line in enumerate(lines) if line.startswith("shop")}
    assert lines[rows["replicaset/orphan"] + 1] == "    will be evicted, one Pod at a time"
    assert lines[rows["statefulset/db"] + 1] == "    2 Pods below the partition will be evicted"
    assert sum("evicted" in line for line in lines) == 2
    assert "To roll out: 3 workloads (5 Pods), 2 to restart and 1 to evict." in lines


# The trap: replacing a Pod can roll out, or roll back, the application


def edit(cluster, kind: str, name: str = "x", image: str = "app:2") -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "app", "image": image}]}}}}
    cluster.change(kind, "shop", name, patch)
    cluster.settle()


@pytest.mark.parametrize("options", [(), ("--only-drifted",)], ids=["all", "drifted"])
@pytest.mark.parametrize(
    "owner",
    [
        "StatefulSet shop/x",
        "DaemonSet shop/x",
        "ReplicaSet shop/x",
        "ReplicationController shop/x",
        "Rollout shop/x",
    ],
)
def test_a_pending_template_is_not_rolled_out(cluster, run, owner, options):
    OWNERS[owner](cluster)
    cluster.settle()
    kind, name = owner.split()[0], "x"
    if kind == "Rollout":
        kind, name = "ReplicaSet", "x-5d8f7c6b9d"
    edit(cluster, kind, name)
    upgrade(cluster)
    before = uids(cluster)
    if kind in ("StatefulSet", "DaemonSet"):  # the status of the others does not tell
        assert run(cluster, *options, *EVICT).skipped == {owner: PENDING}
    ended = run(cluster, CONFIRM, *options, *EVICT)
    told = {
        ref_of(r): r.get("reason") or r["message"] for r in ended.of("skip") + ended.of("result")
    }
    assert told == {owner: PENDING}
    assert (ended.code, uids(cluster), evictions(cluster)) == (0, before, [])


def test_a_pending_change_of_a_paused_deployment_stays_pending(cluster, run):
    paused(cluster, replicas=2)
    edit(cluster, "Deployment")
    upgrade(cluster)
    ended = run(cluster, CONFIRM, *EVICT, "--only-drifted")
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert images(cluster) == ["app:1", "app:1"]
    assert images(cluster, "istio-proxy") == [NEW, NEW]


def test_a_pod_above_its_current_revision_is_not_rolled_back(cluster, run):
    """It is below a partition that was raised after it was updated."""
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **partition(2)))
    cluster.settle()
    edit(cluster, "StatefulSet")
    cluster.wait_for(lambda: images(cluster) == ["app:1", "app:1", "app:2"])
    cluster.settle()
    raised = {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 5}}}}
    cluster.change("StatefulSet", "shop", "x", raised)
    cluster.settle()
    current = cluster.get("StatefulSet", "shop", "x")["status"]["currentRevision"]
    ended = run(cluster, CONFIRM, *EVICT)
    (message,) = [r["message"] for r in ended.of("result")]
    assert message == f"Pod x-2 is below the partition; evicting it would roll it back to {current}"
    assert (ended.outcomes, evictions(cluster)) == ({"shop/x": "skipped"}, [])


def test_pods_below_a_partition_stay_in_the_current_revision(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **partition(2)))
    cluster.settle()
    edit(cluster, "StatefulSet")
    cluster.wait_for(lambda: images(cluster) == ["app:1", "app:1", "app:2"])
    cluster.settle()
    upgrade(cluster)
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert images(cluster) == ["app:1", "app:1", "app:2"]
    assert images(cluster, "istio-proxy") == [NEW] * 3


def test_no_pod_is_evicted_if_only_some_would_come_back_the_same(cluster, run):
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    edit(cluster, "StatefulSet")
    replace_pod(cluster, "x-2")
    ended = run(cluster, CONFIRM, *EVICT)
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"], evictions(cluster)) == ("skipped", PENDING, [])


def replace_pod(cluster, name: str) -> None:
    """Delete a Pod and wait for its replacement, as a person would."""
    old = cluster.get("Pod", "shop", name)["metadata"]["uid"]
    cluster.delete("Pod", "shop", name)

    def is_back() -> bool:
        found = cluster.get("Pod", "shop", name)
        return bool(found) and found["metadata"]["uid"] != old and is_ready(found)

    cluster.wait_for(is_back)
    cluster.settle()


def test_equal_revisions_in_the_status_are_no_test(cluster, run):
    """With OnDelete, the current one stays behind when all Pods have the new one."""
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    edit(cluster, "StatefulSet")
    for number in range(3):
        replace_pod(cluster, f"x-{number}")
    status = cluster.get("StatefulSet", "shop", "x")["status"]
    assert status["currentRevision"] != status["updateRevision"]
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert images(cluster) == ["app:2"] * 3


def test_a_template_that_came_back_is_the_newest_revision(cluster, run):
    """Its ControllerRevision is older and has the same name as before."""
    OWNERS["DaemonSet shop/x"](cluster)
    cluster.settle()
    (first,) = cluster.store.list("controllerrevisions", "shop")
    cluster.backdate(first, 600, "controllerrevisions")
    edit(cluster, "DaemonSet", image="app:2")
    edit(cluster, "DaemonSet", image="app:1")
    cluster.wait_for(
        lambda: cluster.get("DaemonSet", "shop", "x")["status"].get("updatedNumberScheduled") == 3
    )
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert images(cluster) == ["app:1"] * 3


@pytest.mark.parametrize(
    "kind", ["StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController"]
)
def test_a_template_that_changes_between_two_pods_ends_it(cluster, start, kind):
    """Right before each eviction it is found out again."""
    OWNERS[f"{kind} shop/x"](cluster)
    cluster.settle()
    cluster.controllers.ready_after = 1.0
    running = start(cluster, CONFIRM, *EVICT)
    cluster.wait_for(lambda: evictions(cluster))
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "app", "image": "app:2"}]}}}}
    cluster.wait_for(lambda: len(cluster.store.list("pods", "shop")) >= len(cluster.pods("shop")))
    cluster.wait_for(lambda: any(not is_ready(p) for p in cluster.pods("shop")))
    cluster.change(kind, "shop", "x", patch)
    ended = running.finish()
    total = {"StatefulSet": 3, "DaemonSet": 3}.get(kind, 2)
    (message,) = [r["message"] for r in ended.of("result")]
    assert message == f"1 of {total} Pods replaced; {PENDING}"
    assert ended.outcomes == {"shop/x": "incomplete"}
    assert ended.summary["pods"]["updated"] == 1
    assert len(evictions(cluster)) == 1
    assert images(cluster) == ["app:1"] * total


def injected(found: dict, image: str, registry: str = "") -> dict:
    """What an injector makes of a template: it changes the containers of the application, too."""
    mounts = [{"name": "kube-api-access-x7k2p", "mountPath": "/var/run/secrets"}]
    changed = []
    for inner in found["spec"]["containers"]:
        probe = {"httpGet": {"path": f"/app-health/{image}", "port": 15020}}
        env = [*inner.get("env", ()), {"name": "INJECTED", "value": image}]
        more = {"env": env, "volumeMounts": mounts, "readinessProbe": probe}
        changed.append({**inner, **more, "image": registry + inner["image"]})
    labels = {**found["metadata"]["labels"], "mesh": image}
    spec = {**found["spec"], "containers": [*changed, container("istio-proxy", image)]}
    tolerations = [*found["spec"].get("tolerations", ()), {"key": "default"}]
    more = {"tolerations": tolerations, "nodeName": "node-1"}
    return {"metadata": {"labels": labels}, "spec": {**spec, **more}}


def a_template(*containers: dict, label: str = "x", **fields) -> dict:
    old = container("app", "app:1", env=[{"name": "MODE", "value": "old"}])
    return {
        "metadata": {"labels": {"app": label}},
        "spec": pod_spec(*containers or (old,), **fields),
    }


TEMPLATES = {
    "image": a_template(container("app", "app:2", env=[{"name": "MODE", "value": "old"}])),
    "env": a_template(container("app", "app:1", env=[{"name": "MODE", "value": "new"}])),
    "env removed": a_template(container("app", "app:1")),
    "container added": a_template(*a_template()["spec"]["containers"], container("helper")),
    "host network": a_template(hostNetwork=True),
    "toleration": a_template(tolerations=[{"key": "gpu"}]),
    "label": a_template(label="y"),
    "nothing": a_template(),
}
ONLY_BY_DRY_RUN = ("env removed", "host network", "toleration")


@pytest.mark.parametrize("change", TEMPLATES)
@pytest.mark.parametrize("registry", ["", "mirror.example/"], ids=["", "mirror"])
def test_what_of_a_template_is_compared(tool, change, registry):
    """Webhooks change the Pods of an unchanged template, too."""
    template = TEMPLATES[change]
    live = injected(a_template(), "proxy:1", registry)
    expected = injected(template, "proxy:2", registry)
    source = tool.Source(template, expected, None, [], {})
    assert tool.template_changes(live, source, ["istio-proxy"]) is (change != "nothing")
    if not registry:
        untried = source._replace(expected=None)
        is_known = change not in (*ONLY_BY_DRY_RUN, "nothing")
        assert tool.template_changes(live, untried, ["istio-proxy"]) is is_known


def test_a_container_that_was_removed_from_a_template_is_noticed(tool):
    old = a_template(*a_template()["spec"]["containers"], container("helper"))
    live, expected = injected(old, "proxy:1"), injected(a_template(), "proxy:2")
    source = tool.Source(a_template(), expected, None, [], {})
    assert tool.template_changes(live, source, ["istio-proxy"])


def test_what_was_added_to_a_pod_later_is_no_change_of_its_template(tool):
    live = injected(a_template(), "proxy:1")
    live["metadata"] = {
        "labels": {**live["metadata"]["labels"], "by": "hand"},
        "annotations": {"x": "y"},
    }
    source = tool.Source(a_template(), injected(a_template(), "proxy:2"), None, [], {})
    assert not tool.template_changes(live, source, ["istio-proxy"])


# One Pod at a time


def test_stateful_sets_go_from_the_highest_ordinal(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=11, **ON_DELETE))
    cluster.settle()
    run(cluster, CONFIRM, *EVICT)
    assert evictions(cluster) == [f"x-{number}" for number in reversed(range(11))]


def set_ready(cluster, name: str, ready: bool) -> None:
    with cluster.store.lock:
        found = cluster.get("Pod", "shop", name)
        conditions = [
            {**c, "status": str(ready), **({} if ready else {"message": "probe failed"})}
            if c["type"] == "Ready"
            else c
            for c in found["status"]["conditions"]
        ]
        cluster.store.change("pods", found, status={**found["status"], "conditions": conditions})


def test_unready_pods_go_first(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    sick = cluster.pods("shop")[-1]["metadata"]["name"]
    set_ready(cluster, sick, False)
    run(cluster, CONFIRM, *EVICT)
    assert evictions(cluster)[0] == sick
    assert len(evictions(cluster)) == 3


def test_the_replacement_of_an_unready_pod_is_waited_for(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    set_ready(cluster, cluster.pods("shop")[-1]["metadata"]["name"], False)
    cluster.controllers.ready_after = 60
    ended = run(cluster, CONFIRM, *EVICT, "--timeout=1s")
    assert (ended.outcomes, len(evictions(cluster))) == ({"shop/x": "timed_out"}, 1)


def test_as_many_pods_must_be_ready_as_before(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    cluster.controllers.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT, "--timeout=3s")
    (first,) = cluster.wait_for(lambda: evictions(cluster))
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 3)
    other = next(p["metadata"]["name"] for p in cluster.pods("shop") if is_ready(p))
    set_ready(cluster, other, False)
    for found in cluster.pods("shop"):
        if "startTime" not in found["status"]:
            cluster.controllers._start("shop", found["metadata"]["name"])
    ended = running.finish()
    assert (ended.outcomes, evictions(cluster)) == ({"shop/x": "timed_out"}, [first])
    (result,) = ended.of("result")
    assert result["message"].endswith(f"was evicted: {other}: probe failed")


def test_the_last_pod_is_gone_at_the_end(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.controllers.gone_after = 1.0  # its replacement is ready long before
    before = uids(cluster)
    ended = run(cluster, CONFIRM, *EVICT)
    assert ended.outcomes == {"shop/x": "succeeded"}
    assert {p["metadata"]["uid"] for p in cluster.store.list("pods")}.isdisjoint(before)


def test_an_ordered_stateful_set_waits_for_its_other_pods(cluster, start):
    """Else its controller would not create the evicted Pod."""
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **ON_DELETE))
    cluster.settle()
    for name in ("x-0", "x-1"):
        set_ready(cluster, name, False)
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("waiting for a Pod to be ready: x-0: probe failed")
    assert evictions(cluster) == []
    set_ready(cluster, "x-0", True)
    ended = running.finish()
    assert ended.outcomes == {"shop/x": "succeeded"}
    assert evictions(cluster) == ["x-1", "x-2", "x-0"]  # x-1 first, as only it is not ready


def test_an_ordered_stateful_set_that_stays_unready_times_out(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **ON_DELETE))
    cluster.settle()
    for name in ("x-0", "x-1"):
        set_ready(cluster, name, False)
    ended = run(cluster, CONFIRM, *EVICT, "--timeout=1s")
    (result,) = ended.of("result")
    assert (result["outcome"], evictions(cluster)) == ("timed_out", [])
    assert result["message"].startswith(
        "0 of 3 Pods replaced; waiting for a Pod to be ready: x-0: probe failed"
    )


def test_a_parallel_stateful_set_does_not_wait(cluster, run):
    fields = {"podManagementPolicy": "Parallel", **ON_DELETE}
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **fields))
    cluster.settle()
    for name in ("x-0", "x-1"):
        set_ready(cluster, name, False)
    ended = run(cluster, CONFIRM, *EVICT)
    assert ended.outcomes == {"shop/x": "succeeded"}


def test_each_pod_is_read_right_before_and_evicted_by_its_uid(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    before = uids(cluster)
    run(cluster, CONFIRM, *EVICT)
    own = [r for r in cluster.server.requests if "sidecar-rollout" in r.headers["user-agent"]]
    sent = []
    for previous, request in itertools.pairwise(own):
        if request.path.endswith("/eviction"):
            sent.append(json.loads(request.body)["deleteOptions"]["preconditions"]["uid"])
            assert (previous.method, previous.path) == ("GET", "/api/v1/namespaces/shop/pods")
    assert sorted(sent) == before


def test_a_pod_that_others_replace_is_not_evicted(cluster, start):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.controllers.ready_after = 1.0
    running = start(cluster, CONFIRM, *EVICT)
    (first,) = cluster.wait_for(lambda: evictions(cluster))
    (other,) = [p for p in cluster.pods("shop") if p["metadata"]["name"] != first and is_ready(p)]
    cluster.delete("Pod", "shop", other["metadata"]["name"])
    ended = running.finish()
    assert ended.outcomes == {"shop/x": "succeeded"}
    assert evictions(cluster) == [first]


def test_one_that_is_scaled_down_meanwhile_is_done_with_fewer(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    cluster.controllers.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT, "--timeout=20s")
    cluster.wait_for(lambda: any(not is_ready(p) for p in cluster.pods("shop")))
    cluster.controllers.ready_after = 0.05
    cluster.change("ReplicaSet", "shop", "x", {"spec": {"replicas": 2}})
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert len(cluster.pods("shop")) == 2


def test_only_outdated_pods_are_evicted(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    upgrade(cluster)
    first, *kept = (p["metadata"]["name"] for p in cluster.pods("shop"))
    for name in kept:
        cluster.delete("Pod", "shop", name)
    cluster.settle()
    ended = run(cluster, CONFIRM, "--only-drifted", *EVICT)
    (plan,) = ended.of("plan")
    assert (plan["pods_to_replace"], plan["pods"], evictions(cluster)) == (1, 3, [first])


# What the eviction API answers


def test_a_budget_that_allows_nothing_times_out(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.create("shop", budget("x", minAvailable=2))
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT, "--timeout=2s")
    (result,) = ended.of("result")
    assert (result["outcome"], ended.code) == ("timed_out", 1)
    assert result["message"] == (
        "0 of 2 Pods replaced; PodDisruptionBudget shop/x allows no disruption: it needs 2 healthy "
        "pods and has 2 currently"
    )
    assert 2 <= len(evictions(cluster)) <= 4  # with growing pauses


def test_a_budget_that_opens_is_waited_for(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.create("shop", budget("x", minAvailable=2))
    cluster.settle()
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("PodDisruptionBudget shop/x allows no disruption")
    cluster.change("PodDisruptionBudget", "shop", "x", {"spec": {"minAvailable": 1}})
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert len(set(evictions(cluster))) == 2


def too_many(cause: str | None, **headers: str) -> dict:
    """A 429, as a PodDisruptionBudget or as API priority and fairness gives it."""
    details = {"causes": [{"reason": "DisruptionBudget", "message": cause}]} if cause else {}
    body = {"kind": "Status", "message": "Too many requests", "details": details, "code": 429}
    return {"method": "POST", "path": "/eviction", "status": 429, "headers": headers, "body": body}


@pytest.mark.parametrize(
    "cause", ["The disruption budget x is still being processed by the server.", None]
)
def test_retry_after_is_honored(cluster, start, cause):
    """Of a budget whose controller is behind, and of an overloaded API server."""
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.fault(**too_many(cause, **{"Retry-After": "3"}))
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    budget_text = "PodDisruptionBudget shop/x allows no disruption: it is still being processed"
    running.wait_for_log(budget_text if cause else "429 Too many requests")
    began = datetime.now(timezone.utc)
    cluster.wait_for(lambda: len(evictions(cluster)) > 1)
    assert (datetime.now(timezone.utc) - began).total_seconds() > 2
    assert running.finish().outcomes == {"shop/x": "succeeded"}


def test_two_budgets_are_final(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    for name in ("one", "other"):
        cluster.create("shop", budget(name, "x", minAvailable=0))
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT)
    (result,) = ended.of("result")
    assert result["outcome"] == "failed"
    assert "This pod has more than one PodDisruptionBudget" in result["message"]
    assert len(evictions(cluster)) == 1


@pytest.mark.parametrize("status", [404, 409])
def test_a_pod_that_is_gone_or_another_one_was_replaced_by_others(cluster, run, status):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    first = min(cluster.pods("shop"), key=lambda p: p["metadata"]["name"])["metadata"]["name"]
    inner, done = cluster.server.chaos, threading.Event()

    def chaos(method: str, target: str, agent: str):
        if method == "POST" and "/eviction" in target and not done.is_set():
            done.set()
            cluster.delete("Pod", "shop", first)
            from cluster.server import Fault

            return Fault(status=status, body={"kind": "Status", "message": "gone", "code": status})
        return inner(method, target, agent)

    cluster.server.chaos = chaos
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert evictions(cluster)[0] == first
    assert len(evictions(cluster)) == 2


def test_a_lost_answer_is_asked_for_again(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.fault(method="POST", path="/eviction", drop="after")
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_an_error_is_final(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    body = {
        "kind": "Status",
        "message": 'admission webhook "x" denied the request: no',
        "code": 403,
    }
    cluster.fault(method="POST", path="/eviction", status=403, body=body)
    ended = run(cluster, CONFIRM, *EVICT)
    (result,) = ended.of("result")
    assert result["outcome"] == "failed"
    assert 'admission webhook "x" denied the request: no' in result["message"]


# Replacements that are not as they should be


@pytest.mark.parametrize("owner", [o for o in OWNERS if not o.startswith("CloneSet")])
def test_a_replacement_that_would_be_rejected_is_not_risked(cluster, run, owner):
    OWNERS[owner](cluster)
    cluster.settle()
    cluster.injector.state = "denies"
    ended = run(cluster, CONFIRM, *EVICT)
    (result,) = ended.of("result")
    assert (result["outcome"], evictions(cluster)) == ("failed", [])
    assert result["message"].startswith("not evicted: cannot create its Pods: ")


def test_without_permission_to_create_pods_it_is_not_tried(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    upgrade(cluster)
    ended = run(evictor(cluster), CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def evictor(cluster, *without: str) -> str:
    """A kubeconfig of a user who may evict, but not create Pods."""
    everything = {
        "pods": ["list"],
        "replicasets": ["get"],
        "replicationcontrollers": ["get"],
        "controllerrevisions": ["list"],
        "endpointslices": ["list"],
        "events": ["list"],
        "namespaces": ["get"],
        "pods/eviction": ["create"],
        **dict.fromkeys(
            ("deployments", "statefulsets", "daemonsets"), ["get", "list", "patch", "watch"]
        ),
    }
    rules = [
        {"verbs": verbs, "apiGroups": ["*"], "resources": [resource]}
        for resource, verbs in everything.items()
        if resource not in without
    ]
    return cluster.kubeconfig_of("evictor", rules)


@pytest.mark.parametrize(
    ("owner", "resource", "text"),
    [
        ("ReplicaSet shop/x", "pods/eviction", "create pods/eviction in namespace shop"),
        (
            "DaemonSet shop/x",
            "controllerrevisions",
            "list controllerrevisions.apps in namespace shop",
        ),
        ("ReplicationController shop/x", "replicationcontrollers", "replicationcontrollers"),
    ],
)
def test_missing_permissions_are_found_before_anything_is_changed(
    cluster, run, owner, resource, text
):
    OWNERS[owner](cluster)
    cluster.settle()
    ended = run(evictor(cluster, resource), CONFIRM, *EVICT)
    assert (ended.code, evictions(cluster)) == (3, [])
    assert text in ended.stderr
    assert "(nothing was changed)" in ended.stderr
    if "Controller " not in owner:  # not needed for a dry run
        assert run(evictor(cluster, resource), *EVICT).code == 0


def test_permissions_that_are_not_needed_are_not_asked_for(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, **ON_DELETE))
    cluster.settle()
    user = evictor(cluster, "replicationcontrollers", "controllerrevisions")
    assert run(user, CONFIRM, *EVICT).outcomes == {"shop/x": "succeeded"}


def test_a_replacement_without_the_sidecar_stops_the_run(cluster, run):
    for name in ("a", "b"):
        cluster.create("shop", replicated("ReplicaSet", name, APP, replicas=3))
    cluster.settle()
    cluster.injector.breaks_after = 1
    ended = run(cluster, CONFIRM, *EVICT)
    first, second = ended.of("result")
    assert (first["outcome"], second["outcome"]) == ("incomplete", "not_started")
    (lost,) = [p for p in cluster.pods("shop") if len(p["spec"]["containers"]) == 1]
    assert first["message"] == (
        "1 of 3 Pods replaced; 1 of 1 new Pod has no sidecar; check that the injector is healthy; "
        f"delete Pod {lost['metadata']['name']} once the cause is fixed"
    )
    assert len(evictions(cluster)) == 2
    assert ended.summary["pods"] == {
        "matched": 5,
        "updated": 1,
        "ready": 5,
        "updated_and_ready": 1,
        "lost": 1,
    }


def test_replacements_that_still_differ_end_it(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=3))
    cluster.settle()
    upgrade(cluster)
    reached = cluster.fault(method="POST", path="/eviction", release=threading.Event())
    running = start(cluster, CONFIRM, "--only-drifted", *EVICT)
    assert reached.reached.wait(20)
    cluster.injector.container |= {"image": "docker.io/istio/proxyv2:1.28.0"}
    reached.release.set()
    ended = running.finish()
    (result,) = ended.of("result")
    assert result["outcome"] == "still_drifted"
    assert "1.28.0" in result["message"]
    assert len(evictions(cluster)) == 1


@pytest.mark.parametrize(
    ("kind", "is_named"), [("StatefulSet", True), ("DaemonSet", True), ("ReplicaSet", True)]
)
def test_a_timeout_tells_why_no_pod_is_created(cluster, run, kind, is_named):
    """By an event, as the status of a StatefulSet or DaemonSet does not say so."""
    OWNERS[f"{kind} shop/x"](cluster)
    cluster.settle()
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    user = evictor(cluster)  # who cannot try it beforehand
    cluster.change("Namespace", "", "shop", {"metadata": {"labels": restricted}})
    ended = run(user, CONFIRM, *EVICT, "--timeout=2s")
    (result,) = ended.of("result")
    assert result["outcome"] == "timed_out"
    assert 'violates PodSecurity "restricted:latest"' in result["message"]


def test_a_timeout_tells_what_is_wrong_with_the_new_pod(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.injector.container |= {"image": "broken:1"}
    ended = run(cluster, CONFIRM, *EVICT, "--timeout=1s")
    (result,) = ended.of("result")
    assert result["outcome"] == "timed_out"
    assert "container istio-proxy: ImagePullBackOff" in result["message"]
    assert len(evictions(cluster)) == 1


def test_a_timeout_tells_that_the_old_pod_is_still_there(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, **ON_DELETE))
    cluster.settle()
    cluster.controllers.gone_after = 60
    ended = run(cluster, CONFIRM, *EVICT, "--timeout=1s")
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"]) == (
        "timed_out",
        "0 of 1 Pod replaced; Pod x-0 is still terminating",
    )


# Stopping between two Pods


@pytest.fixture
def slow(cluster):
    """Two ReplicaSets whose replacements wait for the test."""
    for name in ("a", "b"):
        cluster.create("shop", replicated("ReplicaSet", name, APP, replicas=3))
    cluster.settle()
    cluster.controllers.ready_after = 60
    return cluster


def test_the_first_signal_stops_between_two_pods(slow, start):
    running = start(slow, CONFIRM, *EVICT)
    slow.wait_for(lambda: len([p for p in slow.pods("shop", "a") if not is_ready(p)]) == 1)
    running.signal(signal.SIGINT)
    running.wait_for_log("interrupted: no new rollouts will start; waiting for 1 in progress")
    let_ready(slow)
    ended = running.finish()
    first, second = ended.of("result")
    assert ended.code == 130
    assert (first["outcome"], first["message"]) == (
        "interrupted",
        "1 of 3 Pods replaced; the others were not replaced",
    )
    assert second["outcome"] == "not_started"
    assert len(evictions(slow)) == 1


def test_the_second_signal_stops_waiting(slow, start):
    running = start(slow, CONFIRM, *EVICT, "--log-format=text")
    slow.wait_for(lambda: len([p for p in slow.pods("shop", "a") if not is_ready(p)]) == 1)
    running.signal(signal.SIGINT)
    running.wait_for_log("interrupted: no new rollouts will start")
    running.signal(signal.SIGINT)
    ended = running.finish()
    assert ended.code == 130
    assert (
        "interrupted: ReplicaSet shop/a: 0 of 3 Pods replaced; stopped waiting; check with: kubectl "
        "describe replicaset/a --namespace shop"
    ) in ended.stdout
    assert "To resume, run:" in ended.stdout


def test_a_signal_ends_the_wait_for_a_budget_at_once(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.create("shop", budget("x", minAvailable=2))
    cluster.settle()
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("allows no disruption")
    running.signal(signal.SIGTERM)
    ended = running.finish(timeout=5)
    assert (ended.code, ended.outcomes) == (143, {"shop/x": "interrupted"})


def test_a_failure_elsewhere_stops_between_two_pods(slow, start):
    let_ready(slow)
    slow.create("shop", workload("Deployment", "sick", APP))
    slow.settle()
    slow.controllers.ready_after = 60
    body = {"kind": "Status", "message": "no", "code": 422}
    patch = slow.fault(
        method="PATCH", path="deployments/sick", status=422, body=body, release=threading.Event()
    )
    running = start(slow, CONFIRM, *EVICT, "--parallel-rollouts=2", "--max-failures=1")
    slow.wait_for(lambda: len([p for p in slow.pods("shop") if not is_ready(p)]) == 1)
    patch.release.set()
    running.wait_for_log("--max-failures=1 reached")
    let_ready(slow)
    ended = running.finish()
    assert ended.code == 1
    outcomes = sorted(ended.outcomes.values())
    assert outcomes == ["failed", "interrupted", "not_started"]
    assert len(evictions(slow)) == 1


def test_a_pause_holds_between_two_pods(slow, start):
    running = start(slow, CONFIRM, *EVICT)
    slow.wait_for(lambda: len([p for p in slow.pods("shop", "a") if not is_ready(p)]) == 1)
    running.signal(signal.SIGUSR1)
    running.wait_for_log("paused: no new rollouts will start")
    let_ready(slow)
    listed = len(slow.server.requests)
    slow.wait_for(lambda: all(map(is_ready, slow.pods("shop"))))
    slow.wait_for(lambda: len(slow.server.requests) > listed)
    assert len(evictions(slow)) == 1
    running.signal(signal.SIGUSR2)
    ended = running.finish()
    assert (ended.code, len(evictions(slow))) == (0, 6)


# What the plan says


def test_a_rollout_with_two_replica_sets_is_not_compared_but_evicted(cluster, run):
    cluster.create("shop", argo("x", replicas=2))
    second = argo("x", pod_spec(container("app", "app:2")), replicas=1)
    second["metadata"]["name"] = "x-77cb8cb798"
    second["spec"]["selector"]["matchLabels"] = {"app": "x2"}
    second["spec"]["template"]["metadata"]["labels"] = {"app": "x2"}
    cluster.create("shop", second)
    cluster.settle()
    upgrade(cluster)
    ended = run(cluster, CONFIRM, "--only-drifted", *EVICT)
    (drift,) = ended.of("drift")
    assert drift["verdict"] == "unknown"
    assert drift["message"].startswith("its Pods belong to 2 ReplicaSets")
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert sorted(images(cluster)) == ["app:1", "app:1", "app:2"]
    assert images(cluster, "istio-proxy") == [NEW] * 3


def test_an_opt_out_holds_for_every_owner(cluster, run):
    spec = {**APP}
    for kind in ("ReplicaSet", "ReplicationController", "CloneSet"):
        manifest = replicated(kind, kind.lower(), spec)
        manifest["spec"]["template"]["metadata"]["annotations"] = {"team/restart": "never"}
        cluster.create("shop", manifest)
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT, "--exclude-annotation=team/restart=never")
    assert set(ended.skipped.values()) == {"matches --exclude-annotation"}
    assert len(ended.skipped) == 3
    assert evictions(cluster) == []


def test_a_replica_set_that_is_gone_is_skipped(cluster, run):
    proxy = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2")
    cluster.create(
        "shop", pod("left", pod_spec(container("app"), proxy), ("apps/v1", "ReplicaSet", "gone"))
    )
    cluster.settle()
    assert run(cluster, *EVICT).skipped == {"ReplicaSet shop/gone": "no longer exists"}


def test_deployments_that_are_not_selected_are_not_evicted_either(cluster, run):
    cluster.create("shop", workload("Deployment", "web", APP))
    cluster.create("shop", argo("x"))
    cluster.settle()
    ended = run(cluster, *EVICT, "--exclude-deployment")
    assert ended.skipped == {"Deployment shop/web": "not selected; remove --exclude-deployment"}
    assert ended.planned == ["shop/x"]


@pytest.mark.parametrize("options", [(), ("--only-drifted",)], ids=["all", "drifted"])
def test_only_selected_pods_are_evicted(cluster, run, options):
    """A label can select a single Pod; a rollout would replace the others as well."""
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    upgrade(cluster)
    selector = "--selector=statefulset.kubernetes.io/pod-name=x-1"
    ended = run(cluster, CONFIRM, *options, *EVICT, selector)
    (plan,) = ended.of("plan")
    assert (plan["pods_to_replace"], ended.code) == (1, 0)
    assert evictions(cluster) == ["x-1"]


# What others do meanwhile


def of_nobody(cluster, count: int, api_version: str = "example.com/v1", kind: str = "Foo") -> None:
    """Pods of a custom resource whose operator is down."""
    proxy = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2")
    for number in range(count):
        spec = pod_spec(container("app"), proxy)
        cluster.create("shop", pod(f"x-{number}", spec, (api_version, kind, "x")))
    cluster.settle()


def test_without_a_replacement_no_other_pod_is_evicted(cluster, run):
    of_nobody(cluster, 3)
    ended = run(cluster, CONFIRM, *EVICT, "--timeout=1s")
    assert (ended.outcomes, len(evictions(cluster))) == ({"shop/x": "timed_out"}, 1)
    (result,) = ended.of("result")
    assert result["message"] == (
        "0 of 3 Pods replaced; not as many Pods are ready as before Pod x-0 was evicted"
    )


def test_kruises_daemon_set_needs_no_permission_for_revisions(cluster, run):
    of_nobody(cluster, 1, "apps.kruise.io/v1alpha1", "DaemonSet")
    ended = run(evictor(cluster, "controllerrevisions"), CONFIRM, *EVICT, "--timeout=1s")
    assert ended.outcomes == {"shop/x": "timed_out"}


def test_an_owner_is_left_alone_if_one_of_its_pods_runs_to_completion(cluster, run):
    proxy = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2")
    for name, policy in (("a", "Always"), ("b", "Never")):
        spec = pod_spec(container("app"), proxy, restartPolicy=policy)
        cluster.create("shop", pod(name, spec, ("kubeflow.org/v1", "TFJob", "train")))
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT)
    assert set(ended.skipped.values()) == {"managed by a TFJob; runs to completion"}
    assert evictions(cluster) == []


def test_a_deployment_that_is_resumed_is_no_longer_evicted(cluster, start):
    paused(cluster, replicas=3)
    cluster.controllers.ready_after = 1.0
    running = start(cluster, CONFIRM, *EVICT)
    cluster.wait_for(lambda: evictions(cluster))
    cluster.change("Deployment", "shop", "x", {"spec": {"paused": False}})
    ended = running.finish()
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"]) == (
        "incomplete",
        "1 of 3 Pods replaced; no longer paused; rerun this command to restart it",
    )
    assert len(evictions(cluster)) == 1


def test_a_daemon_sets_pod_is_replaced_on_its_node(cluster, start):
    OWNERS["DaemonSet shop/x"](cluster)
    cluster.settle()
    slow = {"metadata": {"name": "node-9"}, "spec": {}, "status": {}}
    cluster.controllers.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT, "--timeout=3s")
    cluster.wait_for(lambda: len([p for p in cluster.pods("shop") if not is_ready(p)]) == 1)
    cluster.controllers.ready_after = 0.05
    cluster.store.create("nodes", slow)  # its Pod is ready at once
    cluster.wait_for(lambda: len([p for p in cluster.pods("shop") if is_ready(p)]) == 3)
    ended = running.finish()
    assert (ended.outcomes, len(evictions(cluster))) == ({"shop/x": "timed_out"}, 1)


def test_a_stateful_sets_pod_is_replaced_under_its_name(cluster, start):
    fields = {"podManagementPolicy": "Parallel", **ON_DELETE}
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **fields))
    cluster.settle()
    cluster.controllers.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT, "--timeout=3s")
    cluster.wait_for(lambda: len([p for p in cluster.pods("shop") if not is_ready(p)]) == 1)
    cluster.controllers.ready_after = 0.05
    cluster.change("StatefulSet", "shop", "x", {"spec": {"replicas": 4}})
    cluster.wait_for(lambda: len([p for p in cluster.pods("shop") if is_ready(p)]) == 3)
    ended = running.finish()
    assert (ended.outcomes, evictions(cluster)) == ({"shop/x": "timed_out"}, ["x-2"])


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet"])
def test_two_runs_do_not_evict_two_pods_of_one_owner(cluster, start, kind):
    OWNERS[f"{kind} shop/x"](cluster)
    cluster.settle()
    upgrade(cluster)
    cluster.controllers.ready_after = 60
    watch = Watch(cluster)
    first = start(cluster, CONFIRM, "--only-drifted", *EVICT)
    cluster.wait_for(lambda: any(not is_ready(p) for p in cluster.pods("shop")))
    second = start(cluster, CONFIRM, "--only-drifted", *EVICT, "--log-level=debug")
    second.wait_for_log("waiting for a Pod to be ready: x-")
    let_ready(cluster)
    codes = [first.finish().code, second.finish().code]
    assert (codes, watch.most) == ([0, 0], 1)


def test_one_that_others_delete_is_no_success(cluster, start):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.controllers.ready_after = 60
    running = start(cluster, CONFIRM, *EVICT)
    cluster.wait_for(lambda: len([p for p in cluster.pods("shop") if not is_ready(p)]) == 1)
    cluster.delete("ReplicaSet", "shop", "x")
    ended = running.finish()
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"]) == ("skipped", "no longer exists")


def test_a_change_that_is_not_observed_yet_is_waited_for(cluster, start):
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    with cluster.store.lock:
        found = cluster.get("StatefulSet", "shop", "x")
        status = {**found["status"], "observedGeneration": 0}
        cluster.controllers._steps["statefulsets"] = lambda obj: None  # its controller is behind
        cluster.store.change("statefulsets", found, status=status)
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("waiting for its spec update to be observed")
    with cluster.store.lock:
        cluster.controllers._steps["statefulsets"] = cluster.controllers._step_stateful_set
        cluster.store.change("statefulsets", found, status={**status, "observedGeneration": 1})
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_a_pod_that_is_terminating_is_no_pending_change(cluster, start):
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    cluster.controllers.gone_after = 5
    cluster.delete("Pod", "shop", "x-1")
    ended = start(cluster, CONFIRM, *EVICT).finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert evictions(cluster) == ["x-2", "x-0"]


@pytest.mark.parametrize("kind", ["DaemonSet", "ReplicaSet"])
def test_no_pod_is_evicted_while_another_one_terminates(cluster, run, kind):
    OWNERS[f"{kind} shop/x"](cluster)
    cluster.settle()
    cluster.controllers.gone_after = 2
    watch = Watch(cluster)
    cluster.delete("Pod", "shop", cluster.pods("shop")[-1]["metadata"]["name"])
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.outcomes, watch.most) == ({"shop/x": "succeeded"}, 1)


def test_an_ordered_stateful_set_waits_for_a_pod_that_cannot_be_created(cluster, start):
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    step = cluster.controllers._steps["statefulsets"]
    cluster.controllers._steps["statefulsets"] = lambda obj: None
    cluster.delete("Pod", "shop", "x-1")
    cluster.wait_for(lambda: len(cluster.store.list("pods", "shop")) == 2)
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("waiting for 1 Pod to be created")
    assert evictions(cluster) == []
    cluster.controllers._steps["statefulsets"] = step
    cluster.change("StatefulSet", "shop", "x", {"metadata": {"labels": {"a": "b"}}})
    assert running.finish().outcomes == {"shop/x": "succeeded"}


def test_annotations_of_a_paused_deployment_count(cluster, run):
    paused(cluster)
    change = {"metadata": {"annotations": {"team/evict": "yes"}}}
    cluster.change("Deployment", "shop", "x", change)
    ended = run(cluster, CONFIRM, *EVICT, "--include-annotation=team/evict")
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_skip_unhealthy_is_looked_at_again(cluster, start):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    fault = cluster.fault(path="endpointslices", release=threading.Event())
    running = start(cluster, CONFIRM, *EVICT, "--skip-unhealthy")
    assert fault.reached.wait(20)
    set_ready(cluster, cluster.pods("shop")[0]["metadata"]["name"], False)
    cluster.wait_for(
        lambda: cluster.get("ReplicaSet", "shop", "x")["status"].get("readyReplicas") == 1
    )
    fault.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/x": "skipped"}
    assert evictions(cluster) == []


def test_a_server_error_is_no_answer_for_good(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    body = {"kind": "Status", "message": "etcdserver: request timed out", "code": 500}
    cluster.fault(method="POST", path="/eviction", status=500, body=body)
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_an_eviction_without_an_answer_may_have_taken_place(cluster, run):
    OWNERS["ReplicaSet shop/x"](cluster)
    cluster.settle()
    cluster.fault(method="POST", path="/eviction", status=502, body=b"bad gateway")
    ended = run(cluster, CONFIRM, *EVICT)
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "failed")
    assert result["message"].startswith("0 of 2 Pods replaced; 502")


def test_nothing_outdated_is_no_success(cluster, start):
    """All Pods of a Rollout with two ReplicaSets were replaced after the plan."""
    cluster.create("shop", argo("x", replicas=1))
    second = argo("x", replicas=1)
    second["metadata"]["name"] = "x-77cb8cb798"
    second["spec"]["selector"]["matchLabels"] = {"app": "x2"}
    second["spec"]["template"] = {
        **second["spec"]["template"],
        "metadata": {"labels": {"app": "x2"}},
    }
    cluster.create("shop", second)
    cluster.settle()
    fault = cluster.fault(path="endpointslices", release=threading.Event())
    running = start(cluster, CONFIRM, *EVICT, "--only-started-before=2030-01-01T00:00:00Z")
    assert fault.reached.wait(20)
    cluster.injector.state = "ignored"
    for found in cluster.pods("shop"):
        cluster.delete("Pod", "shop", found["metadata"]["name"])
    cluster.settle()
    fault.release.set()
    ended = running.finish()
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"]) == (
        "skipped",
        "its Pods no longer have the sidecar",
    )


def test_a_budget_that_holds_up_the_pods_below_a_partition(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **partition(2)))
    cluster.create("shop", budget("x", minAvailable=3))
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT, "--timeout=2s")
    (result,) = ended.of("result")
    assert result["outcome"] == "timed_out"
    assert result["message"].startswith(
        "0 of 2 Pods replaced; PodDisruptionBudget shop/x allows no disruption: it needs 3 healthy"
    )
    counts = ended.summary["pods"]
    assert (counts["matched"], counts["updated"], counts["updated_and_ready"]) == (3, 1, 1)


def test_a_rollout_whose_pods_below_the_partition_are_skipped_is_incomplete(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **partition(1)))
    cluster.settle()
    edit(cluster, "StatefulSet")
    cluster.wait_for(lambda: images(cluster) == ["app:1", "app:2", "app:2"])
    cluster.settle()
    raised = {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 2}}}}
    cluster.change("StatefulSet", "shop", "x", raised)
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT)
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "incomplete")
    assert "evicting it would roll it back" in result["message"]
    assert ended.summary["pods"]["updated"] == 1
    assert images(cluster) == ["app:1", "app:2", "app:2"]


def test_a_pause_holds_while_a_budget_is_waited_for(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.create("shop", budget("x", minAvailable=2))
    cluster.settle()
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug")
    running.wait_for_log("allows no disruption")
    running.signal(signal.SIGUSR1)
    running.wait_for_log("paused: no new rollouts will start")
    asked = len(evictions(cluster))
    cluster.change("PodDisruptionBudget", "shop", "x", {"spec": {"minAvailable": 1}})
    began = time.monotonic()
    cluster.wait_for(lambda: time.monotonic() - began > 3)  # longer than the next pause
    assert len(evictions(cluster)) <= asked + 1  # one may have been on its way
    running.signal(signal.SIGUSR2)
    assert running.finish().outcomes == {"shop/x": "succeeded"}


def test_a_signal_takes_no_lock_that_the_main_thread_may_hold(tool, monkeypatch):
    """A handler that runs while the main thread sets the same event would wait for itself."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    interrupts = tool.Interrupts()
    interrupts.raises = False
    with interrupts.stop_starting._cond:
        interrupts.receive(signal.SIGINT, None)
    assert (interrupts.received, interrupts.stop_starting.is_set()) == ([signal.SIGINT], False)


def test_only_custom_resources_can_be_selected(cluster, run):
    cluster.create("shop", workload("Deployment", "web", APP))
    cluster.create("shop", argo("x"))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--evict", "--exclude-deployment")
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})


def test_the_question_and_the_log_speak_of_evictions(tool, cluster, run):
    cluster.create("shop", argo("x"))
    cluster.settle()
    assert (
        "Rollout shop/x: eviction succeeded"
        in run(cluster, CONFIRM, "--evict", "--log-format=text").stderr
    )


def test_an_orphan_is_evicted_also_if_deployments_are_not_selected(cluster, run):
    cluster.create("shop", workload("Deployment", "x", APP))
    cluster.settle()
    cluster.delete("Deployment", "shop", "x", orphan=True)
    ended = run(cluster, CONFIRM, "--evict", "--exclude-deployment")
    assert (ended.code, [*ended.outcomes.values()]) == (0, ["succeeded"])


def test_the_annotations_of_its_own_restart_do_not_exclude_the_pods_below(cluster, run):
    cluster.create("shop", workload("StatefulSet", "x", APP, replicas=3, **partition(2)))
    cluster.settle()
    option = "--exclude-annotation=sidecarRollout.rollout.timestamp"
    ended = run(cluster, CONFIRM, *EVICT, option)
    assert (ended.outcomes, evictions(cluster)) == ({"shop/x": "succeeded"}, ["x-1", "x-0"])


def test_the_wait_for_a_budget_leaves_time_for_the_replacement(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "x", APP, replicas=2))
    cluster.create("shop", budget("x", minAvailable=2))
    cluster.settle()
    cluster.controllers.ready_after = 2.5
    running = start(cluster, CONFIRM, *EVICT, "--log-level=debug", "--timeout=4s")
    running.wait_for_log("allows no disruption", times=2)
    cluster.change("PodDisruptionBudget", "shop", "x", {"spec": {"minAvailable": 1}})
    assert running.finish().outcomes == {"shop/x": "succeeded"}


def test_the_eviction_of_a_paused_deployment_is_no_downtime(cluster, run):
    """It has the strategy Recreate, but its Pods go one at a time."""
    paused(cluster, replicas=2, strategy={"type": "Recreate"})
    (plan,) = run(cluster, *EVICT).of("plan")
    assert (plan["method"], plan["downtime"]) == ("evict", False)
