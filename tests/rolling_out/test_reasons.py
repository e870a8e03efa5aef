"""Why a rollout failed or timed out: by its Pods, its conditions and its events."""

from __future__ import annotations

import re

import pytest
from clusters.embedded.kubelet import READY_AFTER
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, unchecked, within
from texts import RECHECK, RECHECKED

pytestmark = pytest.mark.both

ALL = ("--include-statefulset", "--include-daemonset")
BROKEN = "docker.io/istio/proxyv2:broken"
CAUSE = f"failed to pull and unpack image '{BROKEN}': not found"
# What the cluster says is one quoted text
PULL = f"""ImagePullBackOff: "Back-off pulling image '{BROKEN}': ErrImagePull: {CAUSE}\""""
UNREADY = "1 of 2 Pods not ready: "


def message(ended) -> str:
    (result,) = ended.of("result")
    assert ended.code == 1
    return result["message"]


@pytest.mark.parametrize("native", [True, False])
def test_a_stateful_set_whose_new_sidecar_cannot_be_pulled(cluster, run, native):
    cluster.create("shop", workload("StatefulSet", "db", replicas=2))
    cluster.settle()
    cluster.injector.container["image"] = BROKEN
    cluster.kubelet.back_off = 60
    cluster.injector.native = native
    ended = run(cluster, CONFIRM, *ALL, within(cluster, 2))
    assert message(ended) == (
        f"1 of 2 Pods not ready: db-1: container istio-proxy: {PULL}; "
        "delete Pod db-1 once the cause is fixed"
    )


def test_no_pod_is_to_be_deleted_where_they_are_managed_in_parallel(cluster, run):
    parallel = {"podManagementPolicy": "Parallel", "replicas": 2}
    cluster.create("shop", workload("StatefulSet", "db", **parallel))
    cluster.settle()
    cluster.injector.container["image"] = BROKEN
    cluster.kubelet.back_off = 60
    ended = run(cluster, CONFIRM, *ALL, within(cluster, 2))
    assert message(ended) == f"{UNREADY}db-1: container istio-proxy: {PULL}"


def test_a_daemon_set_whose_new_sidecar_cannot_be_pulled(cluster, run):
    cluster.create("shop", workload("DaemonSet", "agent"))
    cluster.settle()
    cluster.injector.container["image"] = BROKEN
    cluster.kubelet.back_off = 60
    ended = run(cluster, CONFIRM, *ALL, within(cluster, 2))
    start, _, end = message(ended).partition("1 of 3 Pods not ready: agent-")
    assert start == ""
    assert end.endswith(f": container istio-proxy: {PULL}")


@pytest.mark.embedded("a real scheduler says more")
def test_a_pod_that_is_not_scheduled(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    real = cluster.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        pod["spec"]["nodeSelector"] = {"disk": "ssd"}

    cluster.injector.inject = inject
    ended = run(cluster, CONFIRM, within(cluster, 2))
    assert message(ended).endswith(
        ": \"0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.\""
    )


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (
            "StatefulSet",  # before 1.35, the event begins with a small letter
            "reate Pod web-0 in StatefulSet web failed error: pods 'web-0' is",
        ),
        ("DaemonSet", "\"Error creating: pods 'web-"),
    ],
)
def test_where_no_pod_exists_an_event_says_why(cluster, run, kind, cause):
    cluster.create("shop", {"kind": "ServiceAccount", "metadata": {"name": "web"}})
    spec = pod_spec(container("app"), serviceAccountName="web")
    cluster.create("shop", workload(kind, "web", spec))
    cluster.settle()
    cluster.delete("ServiceAccount", "shop", "web")
    ended = run(unchecked(cluster), CONFIRM, *ALL, within(cluster, 2))
    told = message(ended).partition(" not created; ")[2]
    assert cause in told
    assert message(ended).endswith("serviceaccount 'web' not found\"")


def test_without_the_permission_to_list_events_that_is_said(cluster, run):
    cluster.create("shop", {"kind": "ServiceAccount", "metadata": {"name": "web"}})
    spec = pod_spec(container("app"), serviceAccountName="web")
    cluster.create("shop", workload("StatefulSet", "web", spec))
    cluster.settle()
    cluster.delete("ServiceAccount", "shop", "web")
    rules = [
        {
            "verbs": ["get", "list", "watch", "patch"],
            "apiGroups": ["*"],
            "resources": ["pods", "replicasets", "deployments", "statefulsets", "daemonsets"],
        }
    ]
    ended = run(cluster.kubeconfig_of("other", rules), CONFIRM, *ALL, within(cluster, 2))
    assert message(ended).startswith(
        "1 of 1 Pod not created; cannot read its events: 403 events is forbidden"
    )


def test_no_pod_is_to_be_deleted_that_is_only_slow(cluster, run):
    cluster.create("shop", workload("StatefulSet", "db"))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    ended = run(cluster, CONFIRM, *ALL, within(cluster, 2))
    assert "delete Pod" not in message(ended)


def status(**fields) -> dict:
    return {"metadata": {"name": "web-1"}, "status": fields}


def waiting(reason: str, text: str | None = None, name: str = "app") -> dict:
    inner = {"reason": reason} | ({"message": text} if text else {})
    return {"name": name, "state": {"waiting": inner}}


NOT_READY = {"type": "Ready", "status": "False", "message": "containers with unready status: [app]"}
PENDING = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
READY = {"type": "Ready", "status": "True"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"conditions": [READY], "containerStatuses": [waiting("CrashLoopBackOff", "x")]}, ""),
        ({"conditions": [NOT_READY]}, 'web-1: "containers with unready status: [app]"'),
        ({"conditions": [NOT_READY, PENDING]}, 'web-1: "0/3 nodes are available"'),
        (
            {"containerStatuses": [waiting("CrashLoopBackOff", "back-off 5m0s")]},
            'web-1: container app: CrashLoopBackOff: "back-off 5m0s"',
        ),
        (
            {"containerStatuses": [waiting("ErrImagePull")], "conditions": [NOT_READY]},
            "web-1: container app: ErrImagePull",
        ),
        (
            {
                "initContainerStatuses": [waiting("ImagePullBackOff", "no", "mesh")],
                "containerStatuses": [waiting("PodInitializing")],
            },
            'web-1: container mesh: ImagePullBackOff: "no"',
        ),
        ({"containerStatuses": [waiting("ContainerCreating")]}, ""),
        ({}, ""),
        (
            {"containerStatuses": [waiting("ErrImagePull", "https://me:hunter22@reg/x")]},
            'web-1: container app: ErrImagePull: "https://me:<redacted>@reg/x"',
        ),
    ],
)
def test_why_a_pod_is_not_ready(tool, fields, said):
    assert tool.pod_problem(status(**fields)) == said


def test_a_rollout_past_its_progress_deadline_is_rechecked(cluster, run):
    def ready_after(seconds: float) -> dict:
        return {READY_AFTER: str(seconds)}

    cluster.create("shop", workload("Deployment", "late", progressDeadlineSeconds=1))
    cluster.create("shop", workload("Deployment", "slow"))
    cluster.settle()
    for name, seconds in (("late", 2), ("slow", 4)):
        metadata = {"annotations": ready_after(seconds)}
        cluster.store.change(
            "deployments",
            found := cluster.get("Deployment", "shop", name),
            spec={
                **found["spec"],
                "template": {
                    **found["spec"]["template"],
                    "metadata": {**found["spec"]["template"]["metadata"], **metadata},
                },
                "paused": True,
            },
        )
        cluster.change("Deployment", "shop", name, {"spec": {"paused": False}})
    cluster.settle()
    ended = run(cluster, CONFIRM, "--parallel-rollouts=2", "--log-format=text")
    assert ended.code == 0
    (told,) = re.findall(f"rollout not complete: (.*); {RECHECK}", ended.stderr)
    assert told.startswith('error: deployment "late" exceeded its progress deadline')
    assert "rollout completed late in " in ended.stderr
    assert f"{RECHECKED}error: deployment" in ended.stderr


def test_a_pod_that_does_not_end(cluster, run):
    """For example on a node that is lost: a StatefulSet waits for it."""
    cluster.create("shop", workload("StatefulSet", "db", replicas=2))
    cluster.settle()
    cluster.kubelet.gone_after = 60
    ended = run(cluster, CONFIRM, *ALL, within(cluster, 2))
    assert re.fullmatch(
        r"1 of 2 Pods not created: waiting for Pod db-1 on node \S+ to terminate",
        message(ended),
    )


def a_pod(name: str, kind: str, ended: dict, restarts: int, **fields) -> dict:
    """A Pod of which one container has ended."""
    state = {"state": {"terminated": ended}, "restartCount": restarts, "ready": False}
    made = {"name": name, **({"restartPolicy": "Always"} if kind == "native" else {}), **fields}
    key, statuses = "containers", "containerStatuses"
    if kind != "regular":
        key, statuses = "initContainers", "initContainerStatuses"
    spec = {"containers": [], "restartPolicy": "Always", key: [made]}
    return {
        "metadata": {"name": "web-1"},
        "spec": spec,
        "status": {statuses: [{"name": name, **state}]},
    }


FAILED = {"exitCode": 1, "reason": "Error", "message": "no\nconfiguration"}
DONE = {"exitCode": 0, "reason": "Completed"}
TOKEN = {**FAILED, "message": "401 for bearer hunter22hunter22"}
KILLED = {"exitCode": 137, "reason": "OOMKilled"}


@pytest.mark.parametrize(
    ("kind", "ended", "restarts", "fields", "said"),
    [
        ("regular", FAILED, 1, {}, 'Error (exit code 1): "no configuration"'),
        ("regular", KILLED, 3, {}, "OOMKilled"),
        ("native", DONE, 1, {}, "Completed (exit code 0)"),
        ("native", TOKEN, 1, {}, 'Error (exit code 1): "401 for bearer <redacted>"'),
        ("init", FAILED, 1, {}, 'Error (exit code 1): "no configuration"'),
        ("init", DONE, 1, {}, ""),  # it failed once, and is done
        ("regular", FAILED, 0, {}, ""),  # for the first time: it is restarted at once
        ("regular", FAILED, 1, {"restartPolicy": "Never"}, ""),  # of its own, Kubernetes 1.34
    ],
)
def test_what_ends_again_and_again_is_in_a_crash_loop(tool, kind, ended, restarts, fields, said):
    """For most of its back-off, a container is `terminated`."""
    found = tool.pod_problem(a_pod("app", kind, ended, restarts, **fields))
    assert found == (f"web-1: container app: CrashLoopBackOff: {said}" if said else "")


def test_a_pod_whose_node_may_be_down(tool):
    """The node lifecycle controller says nothing but that it is not ready; its containers were."""
    condition = {"type": "Ready", "status": "False"}
    statuses = [{"name": name, "ready": True, "state": {"running": {}}} for name in ("app", "mesh")]
    found = status(conditions=[condition], containerStatuses=statuses)
    found["spec"] = {"nodeName": "node-7"}
    assert tool.pod_problem(found) == "web-1: its node node-7 may be down"
    found["status"]["conditions"] = [{**condition, "message": "a readiness gate is missing"}]
    assert tool.pod_problem(found) == 'web-1: "a readiness gate is missing"'
    statuses[0]["ready"] = False
    found["status"]["conditions"] = [condition]
    assert tool.pod_problem(found) == ""
