"""--evict: replacing a Pod must not roll out, or roll back, the application."""

from __future__ import annotations

import pytest
from cluster import is_ready
from cluster.manifests import container, pod_spec, workload
from support import (
    APP,
    CONFIRM,
    EVICT,
    NEW,
    OWNERS,
    edit,
    evictions,
    images,
    partition,
    paused,
    ref_of,
    uids,
    upgrade,
)

PENDING = "replacing its Pods would also roll out a change of container app (image)"


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
    if options:  # a dry run without the comparison does not know
        assert run(cluster, *options, *EVICT).skipped == {owner: f"drifted, but {PENDING}"}
    ended = run(cluster, CONFIRM, *options, *EVICT)
    told = {
        ref_of(r): r.get("reason") or r["message"] for r in ended.of("skip") + ended.of("result")
    }
    assert told == {owner: f"drifted, but {PENDING}" if options else PENDING}
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
    ended = run(cluster, CONFIRM, *EVICT)
    kept = "3 of 3 Pods are below partition 5 and keep the old sidecar; lower the partition"
    assert (ended.skipped, evictions(cluster)) == ({"StatefulSet shop/x": kept}, [])


def test_a_restart_that_was_asked_for_is_no_change_of_the_application(cluster, run):
    OWNERS["StatefulSet shop/x"](cluster)
    cluster.settle()
    at = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-01-01"}}}
    cluster.change("StatefulSet", "shop", "x", {"spec": {"template": at}})
    cluster.settle()
    ended = run(cluster, CONFIRM, *EVICT)
    assert (ended.code, ended.outcomes) == (0, {"shop/x": "succeeded"})
    assert len(evictions(cluster)) == 3


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
    cluster.kubelet.ready_after = 1.0
    running = start(cluster, CONFIRM, *EVICT)
    cluster.wait_for(lambda: evictions(cluster))
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "app", "image": "app:2"}]}}}}
    cluster.wait_for(lambda: len(cluster.store.list("pods", "shop")) >= len(cluster.pods("shop")))
    cluster.wait_for(lambda: any(not is_ready(p) for p in cluster.pods("shop")))
    cluster.change(kind, "shop", "x", patch)
    ended = running.finish()
    total = {"StatefulSet": 3, "DaemonSet": 3}.get(kind, 2)
    (message,) = [r["message"] for r in ended.of("result")]
    text = "its Pod template was changed; rerun this command"
    assert message == f"1 of {total} Pods replaced; {text}"
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


CHANGED = {
    "image": "container app (image)",
    "env": "container app (env MODE)",
    "env removed": "container app (env MODE)",
    "container added": "container helper",
    "host network": "hostNetwork",
    "toleration": "toleration gpu",
    "label": "label app",
}


@pytest.mark.parametrize("change", TEMPLATES)
@pytest.mark.parametrize("registry", ["", "mirror.example/"], ids=["", "mirror"])
def test_what_of_a_template_is_compared(tool, change, registry):
    """Webhooks change the Pods of an unchanged template, too."""
    template = TEMPLATES[change]
    live = injected(a_template(), "proxy:1", registry)
    today = injected(template, "proxy:2", registry)
    expected = f"a change of {CHANGED[change]}" if change in CHANGED else ""
    assert tool.template_change(live, today, template, ["istio-proxy"]) == expected


def test_mounts_and_volumes_of_a_template_are_compared(tool):
    def with_volume(path: str, claim: str) -> dict:
        mounts = [{"name": "data", "mountPath": path}]
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
        return a_template(container("app", "app:1", volumeMounts=mounts), volumes=volumes)

    def change(*template) -> str:
        live, today = with_volume("/data", "a"), with_volume(*template)
        return tool.template_change(live, today, today, ["istio-proxy"])

    assert change("/data", "a") == ""
    assert change("/data", "b") == "a change of volume data (persistentVolumeClaim.claimName)"
    assert change("/mnt", "a") == "a change of container app (mount /data)"


def test_a_container_that_was_removed_from_a_template_is_noticed(tool):
    old = a_template(*a_template()["spec"]["containers"], container("helper"))
    live, today = injected(old, "proxy:1"), injected(a_template(), "proxy:2")
    found = tool.template_change(live, today, a_template(), ["istio-proxy"])
    hint = "if it is injected, specify it with --sidecar-container-name, too"
    assert found == f"the removal of container helper; {hint}"


def test_a_resized_native_sidecar_is_no_change(tool):
    helper = container(
        "helper", "x:1", restartPolicy="Always", resources={"requests": {"cpu": "1m"}}
    )
    live, today = (a_template(init=(dict(helper),)) for _ in "12")
    live["spec"]["initContainers"][0]["resources"] = {"requests": {"cpu": "9m"}}
    entry = {"subresource": "resize", "fieldsV1": {'k:{"name":"helper"}': {}}}
    live["metadata"]["managedFields"] = [entry]
    assert tool.template_change(live, today, today, ["istio-proxy"]) == ""
    live["metadata"]["managedFields"] = []
    assert tool.template_change(live, today, today, ["istio-proxy"])


def test_a_template_may_have_owner_references(tool):
    """The API server accepts them; they mean nothing."""
    reference = {"apiVersion": "v1", "kind": "Foo", "name": "x", "uid": "u", "controller": True}
    template = a_template()
    template["metadata"]["ownerReferences"] = [reference]
    assert tool.template_change(a_template(), a_template(), template, ["istio-proxy"]) == ""


def test_a_host_name_of_a_template_counts_unless_a_stateful_set_sets_it(tool):
    changed = a_template(hostname="x", subdomain="y")
    found = tool.template_change(a_template(), changed, changed, ["istio-proxy"])
    assert found == "a change of hostname"
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x", "controller": True}
    live, today = a_template(hostname="x-1", subdomain="z"), a_template(hostname="x-0")
    for pod in (live, today):
        pod["metadata"] |= {"ownerReferences": [reference], "namespace": "shop"}
    assert tool.template_change(live, today, a_template(), ["istio-proxy"]) == ""


def test_the_order_of_init_containers_counts(tool):
    """Those that webhooks add do not."""
    first, second = container("first"), container("second")
    live, changed = a_template(init=(first, second)), a_template(init=(second, first))
    found = tool.template_change(live, changed, changed, ["istio-proxy"])
    assert found == "a change of the order of init containers"
    today = a_template(init=(container("added"), first, second))
    assert tool.template_change(live, today, live, ["istio-proxy"]) == ""
