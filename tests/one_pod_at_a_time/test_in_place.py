"""--in-place: a new image for a sidecar, without a restart of the Pod."""

from __future__ import annotations

import copy
import re
import signal
import threading
import time

import pytest
from clusters.embedded import admission, is_ready, server
from clusters.embedded.manifests import container, pod_spec, replicated, workload
from support import BOTH, CONFIRM, TEXT, cutoff, verdicts, within
from texts import (
    IN_SOAK,
    MISSING_PERMISSIONS,
    REPAIR_IMAGE,
    TO_BE_READY,
    WAITS_FOR_READY,
)

pytestmark = pytest.mark.both

IN_PLACE = ("--only-drifted", "--in-place")
OLD, NEW = "docker.io/istio/proxyv2:1.26.2", "docker.io/istio/proxyv2:1.26.3"


def images(cluster, app: str | None = None, key: str = "containers") -> list[str]:
    """The images of the sidecars of an app's Pods."""
    return [
        found["image"]
        for p in cluster.pods("shop", app)
        for found in p["spec"].get(key, [])
        if found["name"] == "istio-proxy"
    ]


def uids(cluster) -> set[str]:
    return {p["metadata"]["uid"] for p in cluster.pods("shop")}


def upgrade(cluster, image: str = NEW) -> None:
    cluster.injector.container["image"] = image


@pytest.fixture
def shop(cluster):
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    cluster.create("shop", workload("StatefulSet", "db", replicas=2))
    cluster.create("shop", workload("DaemonSet", "agent"))
    cluster.settle()
    upgrade(cluster)
    return cluster


def message_of(ended, name: str) -> str:
    (message,) = [r["message"] for r in ended.of("result") if r["name"] == name]
    return message


def test_images_are_changed_and_no_pod_is_replaced(shop, run):
    before = uids(shop)
    ended = run(shop, *IN_PLACE, *BOTH, CONFIRM)
    assert ended.outcomes == dict.fromkeys(["shop/web", "shop/db", "shop/agent"], "succeeded")
    assert ended.code == 0
    assert uids(shop) == before
    assert set(images(shop)) == {NEW}
    statuses = [s for p in shop.pods("shop") for s in p["status"]["containerStatuses"]]
    assert {(s["name"], s["restartCount"]) for s in statuses} == {("app", 0), ("istio-proxy", 1)}
    assert ended.summary["pods"]["ready"] == 8
    again = run(shop, *IN_PLACE, *BOTH)
    assert set(verdicts(again).values()) == {"up_to_date"}


def test_the_plan_shows_which_is_which(shop, run):
    shop.injector.container["args"] = ["old"]
    shop.create("shop", workload("Deployment", "late"))
    shop.settle()
    del shop.injector.container["args"]
    dry = run(shop, *IN_PLACE)
    assert {r["name"]: r["method"] for r in dry.of("plan")} == {
        "web": "in_place",
        "late": "restart",
    }
    text = run(shop, *IN_PLACE, TEXT).stdout
    assert text.count("; in place") == 1
    assert "\nTo roll out: 2 workloads with 4 Pods, 4 of them old.\n" in text
    before = {p["metadata"]["uid"] for p in shop.pods("shop", "web")}
    ended = run(shop, *IN_PLACE, CONFIRM)
    assert ended.outcomes == {"shop/web": "succeeded", "shop/late": "succeeded"}
    assert {p["metadata"]["uid"] for p in shop.pods("shop", "web")} == before


def test_without_it_they_are_restarted(shop, run):
    before = uids(shop)
    ended = run(shop, "--only-drifted", CONFIRM)
    assert ended.of("plan")[0]["method"] == "restart"
    assert len(before & uids(shop)) == len(before) - 3


def test_other_changes_wait_for_the_next_restart(shop, run):
    shop.injector.also = {"initContainers": [container("setup", "x:1")]}
    text = run(shop, *IN_PLACE, TEXT).stdout
    assert re.search(r"; in place\n", text)
    run(shop, *IN_PLACE, CONFIRM)
    assert set(images(shop, "web")) == {NEW}
    assert not any(p["spec"].get("initContainers") for p in shop.pods("shop"))


def test_an_init_container_means_a_restart(cluster, run):
    cluster.injector.also = {"initContainers": [container("istio-init", OLD)]}
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.injector.also = {"initContainers": [container("istio-init", NEW)]}
    upgrade(cluster)
    both = run(cluster, *IN_PLACE, "--sidecar-container-name=istio-*")
    assert [r["method"] for r in both.of("plan")] == ["restart"]
    assert [r["method"] for r in run(cluster, *IN_PLACE).of("plan")] == ["in_place"]


def test_changed_configuration_means_a_restart(cluster, run):
    mount = {"name": "settings", "mountPath": "/etc/proxy"}
    cluster.injector.container["volumeMounts"] = [mount]
    cluster.injector.also = {"volumes": [{"name": "settings", "configMap": {"name": "settings"}}]}
    cluster.create("shop", {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {}})
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    upgrade(cluster)
    assert [r["method"] for r in run(cluster, *IN_PLACE).of("plan")] == ["in_place"]
    ended = run(cluster, *IN_PLACE, "--include-config")
    assert [r["method"] for r in ended.of("plan")] == ["restart"]


def natively(cluster, node: str) -> None:
    annotated = {"sidecar.istio.io/nativeSidecar": "true"}
    spec = pod_spec(nodeName=node)
    cluster.create("shop", workload("Deployment", "native", spec, annotations=annotated))
    cluster.settle()
    upgrade(cluster)


def test_native_sidecars(cluster, run):
    natively(cluster, "node-1")
    before = uids(cluster)
    ended = run(cluster, *IN_PLACE, CONFIRM)
    assert ended.outcomes == {"shop/native": "succeeded"}
    assert (uids(cluster), images(cluster, key="initContainers")) == (before, [NEW])


def test_a_kubelet_that_does_nothing(cluster, run):
    natively(cluster, "node-3")
    ended = run(cluster, *IN_PLACE, CONFIRM, "--timeout=2s")
    assert ended.outcomes == {"shop/native": "failed"}
    name = cluster.pods("shop")[0]["metadata"]["name"]
    message = message_of(ended, "native")
    waiting = f"still waiting for Pod {name}{TO_BE_READY}2s"
    assert message.startswith(f"Pod {name}: {waiting}")
    assert REPAIR_IMAGE in message
    assert message.endswith(" (0 of 1 Pod changed)")
    assert images(cluster, key="initContainers") == [NEW]  # nothing is put back


def test_a_native_sidecar_that_ended_well_and_does_not_come_back(cluster, run):
    """Only an event would say why: it fails at the timeout. The same command repairs it."""
    natively(cluster, "node-1")
    upgrade(cluster, "docker.io/istio/broken:1")
    ended = run(cluster, *IN_PLACE, CONFIRM, "--timeout=2s")
    assert ended.outcomes == {"shop/native": "failed"}
    assert REPAIR_IMAGE in message_of(ended, "native")
    upgrade(cluster)
    assert run(cluster, *IN_PLACE, CONFIRM).outcomes == {"shop/native": "succeeded"}
    assert images(cluster, key="initContainers") == [NEW]


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("docker.io/istio/broken:1", "ErrImagePull"),
        ("docker.io/istio/crashing:1", "istio-proxy: CrashLoopBackOff: Error (exit code 1)"),
        (
            "docker.io/istio/neverready:1",
            '"containers with unready status: [istio-proxy]" after {seconds}s',
        ),
    ],
)
def test_an_image_that_does_not_start_fails_and_the_same_command_repairs_it(
    shop, run, image, reason
):
    upgrade(shop, image)
    limit = within(shop, 3)
    ended = run(shop, *IN_PLACE, CONFIRM, limit)
    assert (ended.code, ended.outcomes) == (1, {"shop/web": "failed"})
    message = message_of(ended, "web")
    assert message.startswith("Pod web-")
    assert reason.replace("{seconds}s", limit.partition("=")[2]) in message
    assert REPAIR_IMAGE in message
    assert message.endswith(" (0 of 3 Pods changed)")
    assert sorted(images(shop, "web")) == sorted([image, OLD, OLD])  # no other Pod
    upgrade(shop)
    ended = run(shop, *IN_PLACE, CONFIRM)
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})
    assert set(images(shop, "web")) == {NEW}
    assert all(is_ready(p) for p in shop.pods("shop", "web"))


def test_an_image_of_the_application_that_cannot_be_pulled_is_no_reason_to_skip_others(tool):
    """The sidecar's own image started; the Pod is only not ready because of the other container."""
    names = {"istio-proxy": NEW}
    stuck = {"name": "app", "state": {"waiting": {"reason": "ErrImagePull"}}, "containerID": ""}
    found = {"metadata": {"name": "web-0"}, "status": {"containerStatuses": [stuck]}}
    assert tool.why_not_started(found, found, names) is None


def test_nothing_else_starts_if_the_first_image_does_not(shop, run):
    upgrade(shop, "docker.io/istio/broken:1")
    ended = run(shop, *IN_PLACE, *BOTH, CONFIRM, "--parallel-rollouts=3")
    assert sorted(ended.outcomes.values()) == ["failed", "not_started", "not_started"]
    (reason,) = {r["message"] for r in ended.of("result") if r["outcome"] == "not_started"}
    assert reason.startswith("the new image does not start in ")
    assert images(shop).count(OLD) == len(images(shop)) - 1


def test_the_next_workload_with_the_same_bad_image_fails_by_itself(shop, run, tool, monkeypatch):
    upgrade(shop, "docker.io/istio/broken:1")
    begin = tool.Scheduler.drain

    def after_another(scheduler, waiting) -> None:
        scheduler.rollouts.proven.set()
        begin(scheduler, waiting)

    monkeypatch.setattr(tool.Scheduler, "drain", after_another)
    ended = run(shop, *IN_PLACE, *BOTH, CONFIRM)
    assert list(ended.outcomes.values()) == ["failed", "failed", "failed"]
    assert all(REPAIR_IMAGE in result["message"] for result in ended.of("result"))
    assert images(shop).count(OLD) == len(images(shop)) - 3


@pytest.mark.embedded("the policy is a function of its API server")
@pytest.mark.parametrize("status", [403, 422])
def test_a_policy_that_refuses_leaves_everything_as_it_is(shop, run, status):
    def deny(pod: dict) -> None:
        raise admission.Refused(
            status, "Forbidden", "policy x denied request: no\n- VALUE=secret\n"
        )

    shop.server.image_policy = deny
    ended = run(shop, *IN_PLACE, CONFIRM)
    assert ended.outcomes == {"shop/web": "failed"}
    message = message_of(ended, "web")
    assert message.startswith("cannot change Pod web-")
    assert message.endswith(f": {status} policy x denied request: no (0 of 3 Pods changed)")
    assert len([r for r in shop.server.requests if r.method == "PATCH"]) == 1
    assert set(images(shop)) == {OLD}


def test_pod_security_that_was_raised_later(shop, run):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    shop.change("Namespace", "", "shop", {"metadata": {"labels": labels}})
    verdict = verdicts(run(shop, *IN_PLACE, "deploy/web"))
    assert verdict == {"shop/web": "rejected"}  # a Pod could not be created, either


def test_interrupted_once_the_pod_in_progress_is_finished(shop, start):
    held = shop.fault(method="PATCH", path="/pods/web-", release=threading.Event())
    running = start(shop, *IN_PLACE, CONFIRM)
    assert held.reached.wait(20)
    running.signal(signal.SIGINT)
    running.wait_for_log("interrupted: ")
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (130, {"shop/web": "interrupted"})
    assert message_of(ended, "web") == "the others were not changed (1 of 3 Pods changed)"
    assert sorted(images(shop, "web")) == [OLD, OLD, NEW]
    assert all(is_ready(p) for p in shop.pods("shop", "web"))


def test_interrupted_twice_the_summary_names_the_pod_and_its_state(shop, start):
    shop.kubelet.step = 60
    running = start(shop, *IN_PLACE, CONFIRM, "--log-level=debug")
    running.wait_for_log("waiting for Pod web-")
    running.signal(signal.SIGINT)
    running.wait_for_log("interrupted: ")
    running.signal(signal.SIGINT)
    ended = running.finish(timeout=10)
    message = message_of(ended, "web")
    (changed,) = [p["metadata"]["name"] for p in shop.pods("shop", "web") if NEW in str(p["spec"])]
    assert message.startswith(
        f"Pod {changed}: has the new image, but is not restarted and ready yet; stopped waiting; "
    )


def test_unready_pods_first(shop, run):
    names = sorted(p["metadata"]["name"] for p in shop.pods("shop", "web"))
    shop.kubelet.set_ready("shop", names[1], False)
    ended = run(shop, *IN_PLACE, "deploy/web", CONFIRM, within(shop, 3))
    assert ended.outcomes == {"shop/web": "timed_out"}  # its application is not ready yet
    first = next(r.path for r in shop.server.requests if r.method == "PATCH")
    assert first.endswith(names[1])


def test_a_statefulset_with_an_unready_pod_is_left_as_it_is(shop, run):
    """Another of its Pods may be all that is left of a quorum."""
    change = {"spec": {"containers": [{"name": "istio-proxy", "image": NEW}]}}
    shop.change("Pod", "shop", "db-1", change)
    shop.wait_for(lambda: NEW in images(shop, "db"))
    shop.settle()
    shop.kubelet.set_ready("shop", "db-1", False)
    ended = run(shop, *IN_PLACE, "sts/db", CONFIRM, "--timeout=2s")
    assert ended.outcomes == {"shop/db": "timed_out"}
    problem = f'{WAITS_FOR_READY}db-1: "containers with unready status: [app]"'
    before = "(unhealthy before the rollout: 1 of 2 available)"
    assert message_of(ended, "db") == f"{problem} (0 of 1 Pod changed) {before}"


def test_the_only_ready_pod_is_left(shop, run):
    """The application of the others is broken; their sidecar is ready again."""
    for found in shop.pods("shop", "web"):
        shop.backdate(found, 3600)
    for found in shop.pods("shop", "web")[:2]:
        shop.kubelet.set_ready("shop", found["metadata"]["name"], False)
    ended = run(shop, *IN_PLACE, "deploy/web", CONFIRM, within(shop, 5))
    assert ended.outcomes == {"shop/web": "timed_out"}
    assert message_of(ended, "web").startswith(f"{WAITS_FOR_READY}web-")
    assert {is_ready(p): NEW in str(p["spec"]) for p in shop.pods("shop", "web")} == {
        False: True,
        True: False,
    }


def test_a_pod_that_is_replaced_meanwhile_is_no_failure(shop, start):
    shop.kubelet.step = 60
    running = start(shop, *IN_PLACE, CONFIRM, "--log-level=debug")
    running.wait_for_log("waiting for Pod web-")
    (changed,) = [p["metadata"]["name"] for p in shop.pods("shop", "web") if NEW in str(p["spec"])]
    shop.kubelet.step = 0.02
    shop.delete("Pod", "shop", changed)
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert set(images(shop, "web")) == {NEW}


def test_a_pod_that_is_not_running_is_left_alone(shop, run):
    (one, *_) = shop.pods("shop", "web")
    shop.store.change("pods", one, status={**one["status"], "phase": "Pending"})
    ended = run(shop, *IN_PLACE, CONFIRM)
    assert ended.outcomes == {"shop/web": "incomplete"}
    assert message_of(ended, "web") == "1 of 3 Pods not updated"
    assert sorted(images(shop, "web")) == [OLD, NEW, NEW]


@pytest.mark.parametrize(
    "spec", [{"paused": True}, {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}]
)
def test_workloads_that_a_restart_does_not_replace(shop, run, spec):
    kind, name = ("Deployment", "web") if "paused" in spec else ("StatefulSet", "db")
    shop.change(kind, "shop", name, {"spec": spec})
    ended = run(shop, *IN_PLACE, f"{kind}/{name}", CONFIRM)
    assert ended.outcomes == {f"shop/{name}": "succeeded"}
    assert set(images(shop, name)) == {NEW}


def test_they_are_skipped_as_before_if_more_than_images_differ(shop, run):
    shop.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    shop.injector.container["args"] = ["new"]
    ended = run(shop, *IN_PLACE)
    assert ended.skipped["Deployment shop/web"] == "wrong_method"
    assert ended.planned == []


def test_pods_below_a_partition(shop, run):
    partition = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    shop.change("StatefulSet", "shop", "db", {"spec": {"updateStrategy": partition}})
    ended = run(shop, *IN_PLACE, "sts/db", CONFIRM)
    assert (ended.of("plan")[0]["pods"]["old"], ended.outcomes) == (1, {"shop/db": "succeeded"})
    assert message_of(ended, "db") == "partition 1 keeps 1 old Pod"
    assert sorted(images(shop, "db")) == [OLD, NEW]


def test_owners_without_a_rollout_with_evict(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "lone", replicas=2))
    cluster.settle()
    upgrade(cluster)
    before = uids(cluster)
    ended = run(cluster, *IN_PLACE, "--evict", CONFIRM)
    assert ended.of("plan")[0]["method"] == "in_place"
    assert ended.outcomes == {"shop/lone": "succeeded"}
    assert (uids(cluster), set(images(cluster))) == (before, {NEW})


def test_two_sidecars_in_another_order_than_the_names(cluster, run):
    spec = pod_spec(container("b-agent", "agent:1"), container("app"))
    cluster.create("shop", workload("Deployment", "web", spec))
    cluster.settle()
    upgrade(cluster)
    names = ["--sidecar-container-name=istio-proxy", "--sidecar-container-name=b-agent"]
    template = {"spec": {"containers": [{"name": "b-agent", "image": "agent:2"}]}}
    cluster.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    cluster.change("Deployment", "shop", "web", {"spec": {"template": template}})
    cluster.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    dry = run(cluster, *IN_PLACE, *names)
    assert [r["method"] for r in dry.of("plan")] == ["in_place"]
    ended = run(cluster, *IN_PLACE, *names, CONFIRM)
    assert ended.outcomes == {"shop/web": "succeeded"}


def test_selector_and_cutoff_limit_it(shop, run):
    (one, two, _) = shop.pods("shop", "web")
    labels = {"metadata": {"labels": {"canary": "yes"}}}
    shop.change("Pod", "shop", one["metadata"]["name"], labels)
    ended = run(shop, *IN_PLACE, "--selector=canary=yes", CONFIRM)
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert sorted(images(shop, "web")) == [OLD, OLD, NEW]
    shop.backdate(two, 3600)
    ended = run(shop, *IN_PLACE, cutoff(hours=0.5), CONFIRM)
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert sorted(images(shop, "web")) == [OLD, NEW, NEW]


def start_and_hold(shop, start):
    """A run that is about to read its workload again, and what releases it."""
    held = shop.fault(
        method="GET",
        path="shop/deployments/web",
        user_agent="sidecar-rollout",
        release=threading.Event(),
    )
    running = start(shop, *IN_PLACE, CONFIRM)
    assert held.reached.wait(20)
    return running, held


def test_it_is_asked_again_what_would_be_injected(shop, start):
    running, held = start_and_hold(shop, start)
    shop.injector.container["args"] = ["new"]
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    assert message_of(ended, "web").startswith(
        "the injector changed since the plan: istio-proxy  args"
    )
    assert set(images(shop)) == {OLD}


def test_failures_count(shop, run):
    upgrade(shop, "docker.io/istio/broken:1")
    ended = run(shop, *IN_PLACE, *BOTH, CONFIRM, "--max-failures=1")
    assert sorted(ended.outcomes.values()) == ["failed", "not_started", "not_started"]


def test_a_crash_during_the_soak(shop, start):
    running = start(shop, *IN_PLACE, CONFIRM, "--soak=8s", "--log-level=debug")
    running.wait_for_log("soaking")
    name = shop.pods("shop", "web")[0]["metadata"]["name"]
    shop.kubelet.crash("shop", name, "istio-proxy")
    ended = running.finish()
    crash = f"{IN_SOAK}{name}: container istio-proxy restarted: OOMKilled"
    assert message_of(ended, "web") == crash


def test_the_permission_is_checked_before_the_start(shop, run):
    verbs = ["get", "list", "watch", "create"]
    rules = [
        {"verbs": verbs, "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["patch"], "apiGroups": ["apps"], "resources": ["*"]},
    ]
    ended = run(shop.kubeconfig_of("operator", rules), *IN_PLACE, CONFIRM)
    assert ended.code == 3
    assert f"{MISSING_PERMISSIONS}patch pods in " in ended.stderr
    assert run(shop.kubeconfig_of("operator", rules), *IN_PLACE).code == 0


def test_it_needs_only_drifted(run):
    ended = run(None, TEXT, "--in-place")
    assert ended.code == 2
    assert ended.stderr.startswith("error: --in-place requires --only-drifted\n")


def test_a_pod_that_another_run_changes_is_left_to_it(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    upgrade(cluster)
    cluster.fault(method="GET", path="deployments/web$")  # the first one: before the Pods are read
    held = cluster.fault(method="GET", path="deployments/web$", release=threading.Event())
    running = start(cluster, *IN_PLACE, CONFIRM)
    assert held.reached.wait(20)
    (pod,) = cluster.pods("shop")
    name = pod["metadata"]["name"]
    patch = {"spec": {"containers": [{"name": "istio-proxy", "image": NEW}]}}
    cluster.change("Pod", "shop", name, patch)
    cluster.kubelet.set_ready("shop", name, False)
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "incomplete"}
    assert message_of(ended, "web").startswith("1 of 1 Pod not ready: web-")
    assert [r for r in cluster.server.requests if r.method == "PATCH"] == []


@pytest.mark.embedded("a kubelet that does nothing for a while")
def test_a_pod_that_another_run_has_just_changed_is_waited_for(cluster, start):
    """It is ready until the kubelet restarts its container, and its spec has the new image."""
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    upgrade(cluster)
    nodes = {found["spec"]["nodeName"] for found in cluster.pods("shop")}
    cluster.kubelet.down |= nodes
    arguments = (*IN_PLACE, CONFIRM, "--log-level=debug")
    first = start(cluster, *arguments)
    first.wait_for_log("waiting for Pod web-")
    second = start(cluster, *arguments)
    second.wait_for_log("whose image was changed")
    assert sorted(images(cluster)) == [OLD, OLD, NEW]
    for node in nodes:
        cluster.kubelet.start_on(node)
    assert first.finish().outcomes == {"shop/web": "succeeded"}
    ended = second.finish()
    (result,) = ended.of("result")
    patches = [r for r in cluster.server.requests if r.method == "PATCH"]
    is_left = ("skipped", "nothing_to_replace")  # if the first was faster with the other two
    assert (result["outcome"], result["code"]) in (("succeeded", ""), is_left)
    assert (ended.code, len(patches)) == (0, 3)
    assert images(cluster) == [NEW] * 3


def test_pods_below_a_partition_with_another_template_are_left_alone(cluster, run):
    """They come back from the current revision, not from the template that is asked about."""
    agent = container("agent", "agent:1")
    partition = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    spec = pod_spec(container("app"), agent)
    cluster.create(
        "shop", workload("StatefulSet", "db", spec, replicas=2, updateStrategy=partition)
    )
    cluster.settle()
    canary = {"spec": {"containers": [{"name": "agent", "image": "agent:2-canary"}]}}
    cluster.change("StatefulSet", "shop", "db", {"spec": {"template": canary}})
    cluster.settle()
    name = "--sidecar-container-name=agent"
    ended = run(cluster, *IN_PLACE, name, "--include-statefulset", CONFIRM)
    assert ended.skipped["StatefulSet shop/db"] == "below_partition"
    found = {
        p["metadata"]["name"]: p["spec"]["containers"][1]["image"] for p in cluster.pods("shop")
    }
    assert found == {"db-0": "agent:1", "db-1": "agent:2-canary"}


@pytest.mark.embedded("whose answers can be replaced")
@pytest.mark.parametrize("stored", [True, False])
def test_an_answer_of_504_says_nothing_about_what_was_stored(shop, run, stored):
    status = 504
    seen = []

    def chaos(method: str, target: str, agent: str):
        if method == "PATCH" and "dryRun" not in target and not seen:
            seen.append(target)
            name = target.partition("?")[0].rpartition("/")[2]
            if stored:
                change = {"spec": {"containers": [{"name": "istio-proxy", "image": NEW}]}}
                shop.change("Pod", "shop", name, change)
            return server.Fault(status=status, body={"kind": "Status", "message": "Timeout"})
        return None

    shop.server.chaos = chaos
    ended = run(shop, *IN_PLACE, CONFIRM)
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert sorted(images(shop, "web")) == [NEW, NEW, NEW]
    changes = [r for r in shop.server.requests if r.method == "PATCH" and "dryRun" not in r.query]
    assert len(changes) == (3 if stored else 4)  # what was not stored is sent again


def test_a_pod_without_the_sidecar_must_be_replaced(shop, run):
    shop.injector.state = "ignored"
    shop.delete("Pod", "shop", shop.pods("shop", "web")[0]["metadata"]["name"])
    shop.wait_for(lambda: len(shop.pods("shop", "web")) == 3 and len(images(shop, "web")) == 2)
    shop.settle()
    shop.injector.state = "works"
    ended = run(shop, *IN_PLACE, CONFIRM)
    assert [r["method"] for r in ended.of("plan")] == ["restart"]
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert sorted(images(shop, "web")) == [NEW, NEW, NEW]


def test_a_second_signal_before_the_first_change_changes_nothing(shop, start):
    held = shop.fault(path=r"pods\?.*labelSelector=app%3Dweb", release=threading.Event())
    running = start(shop, *IN_PLACE, CONFIRM)
    assert held.reached.wait(20)
    running.signal(signal.SIGINT)
    running.wait_for_log("interrupted: ")
    running.signal(signal.SIGINT)
    time.sleep(0.5)
    held.release.set()
    running.finish()
    assert [r.path for r in shop.server.requests if r.method == "PATCH"] == []


def test_the_summary_names_the_pod_also_if_a_request_hangs(shop, start):
    shop.kubelet.step = 60
    running = start(shop, *IN_PLACE, CONFIRM, "--log-level=debug")
    running.wait_for_log("waiting for Pod web-")
    held = shop.fault(method="GET", path="fieldSelector", times=99, release=threading.Event())
    assert held.reached.wait(20)
    running.signal(signal.SIGINT)
    running.wait_for_log("interrupted: ")
    running.signal(signal.SIGINT)
    ended = running.finish(timeout=20)
    held.release.set()
    assert re.match(
        r"0 of 3 Pods changed; waiting for Pod web-.*; stopped", message_of(ended, "web")
    )


def test_nothing_to_change_by_now(shop, start):
    running, held = start_and_hold(shop, start)
    upgrade(shop, OLD)  # the injector was rolled back
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    assert message_of(ended, "web").startswith(
        "the injector changed since the plan: istio-proxy  image"
    )
    assert set(images(shop)) == {OLD}


def test_a_pod_that_crashes_after_its_change_ends_it(shop, start):
    """Without a readiness probe it was ready for a moment: it crashes while the next one is changed."""
    shop.fault(method="PATCH", path="/pods/web-")
    held = shop.fault(method="PATCH", path="/pods/web-", release=threading.Event())
    running = start(shop, *IN_PLACE, CONFIRM, "--timeout=4s")
    assert held.reached.wait(20)
    (name,) = [
        p["metadata"]["name"]
        for p in shop.pods("shop", "web")
        for s in p["status"]["containerStatuses"]
        if s["image"] == NEW and s["ready"]
    ]
    shop.kubelet.set_ready("shop", name, False)
    with shop.store.lock:
        found = shop.get("Pod", "shop", name)
        status = copy.deepcopy(found["status"])
        waiting = {"reason": "CrashLoopBackOff", "message": "back-off"}
        status["containerStatuses"][1]["state"] = {"waiting": waiting}
        shop.store.change("pods", found, status=status)
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "timed_out"}
    assert message_of(ended, "web").startswith(
        f"{WAITS_FOR_READY}{name}: container istio-proxy: CrashLoopBackOff"
    )
    assert sorted(images(shop, "web")) == [OLD, NEW, NEW]


def test_a_pod_that_a_selector_leaves_out_does_not_matter(shop, run):
    one, two, _ = (found["metadata"]["name"] for found in shop.pods("shop", "web"))
    shop.change("Pod", "shop", one, {"metadata": {"labels": {"canary": "yes"}}})
    managed = {"kruise.io/sidecarset-hash": "{}"}
    shop.change("Pod", "shop", two, {"metadata": {"annotations": managed}})
    ended = run(shop, *IN_PLACE, "--selector=canary=yes", CONFIRM)
    assert ended.outcomes == {"shop/web": "succeeded"}
