"""--soak: a rollout that kubectl calls successful can crash a minute later."""

from __future__ import annotations

import re
import signal
import time
from datetime import datetime, timezone

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, replicated, workload
from support import (
    CONFIRM,
    TEXT,
    a_ref,
    a_restart,
    a_rollout,
    api_error,
    counts,
    let_ready,
    within,
)
from texts import IN_SOAK, NOT_VERIFIED, UPDATED_AND_READY

pytestmark = pytest.mark.both


@pytest.fixture
def shop(cluster):
    """Deployments a and b with two Pods each."""
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.settle()
    return cluster


def soaking(cluster, start, *options: str, log: str = "soaking", **environment: str):
    """The tool while it watches the first workload."""
    running = start(cluster, CONFIRM, "--soak=8s", "--log-level=debug", *options, **environment)
    running.wait_for_log(log)
    return running


def a_pod(cluster, app: str) -> str:
    return sorted(p["metadata"]["name"] for p in cluster.pods("shop", app))[0]


def message_of(ended, name: str) -> str:
    (message,) = [r["message"] for r in ended.of("result") if r["name"] == name]
    return message


def test_nothing_happens_and_the_slot_stays_occupied(shop, run):
    ended = run(shop, CONFIRM, "--soak=2s")
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "succeeded"}
    assert {r["message"] for r in ended.of("result")} == {""}
    assert all(r["seconds"] >= 2 for r in ended.of("result"))
    assert ended.summary["seconds"] >= 4
    assert ended.code == 0


def test_a_container_that_restarts_is_a_failure(shop, start):
    running = soaking(shop, start, "--max-failures=1")
    name = a_pod(shop, "a")
    shop.kubelet.crash("shop", name, "istio-proxy")
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "failed", "shop/b": "not_started"}
    crash = f"{IN_SOAK}{name}: container istio-proxy restarted: OOMKilled"
    assert message_of(ended, "a") == crash
    assert message_of(ended, "b") == "--max-failures=1 reached"
    assert ended.code == 1


def test_a_termination_message_is_shown_without_its_password(shop, start):
    running = soaking(shop, start, "--max-failures=1")
    name = a_pod(shop, "a")
    shop.kubelet.crash("shop", name, "app", message="cannot reach postgres://app:hunter22@db/app")
    said = message_of(running.finish(), "a")
    assert 'app restarted: OOMKilled: "cannot reach postgres://app:<redacted>@db/app"' in said


def test_the_summary_has_the_command_to_look_at_it(shop, start):
    running = soaking(shop, start, "--max-failures=1", TEXT)
    shop.kubelet.crash("shop", a_pod(shop, "a"), "app", reason="Error", code=3)
    ended = running.finish()
    head, _, rest = ended.stdout.partition(f"failed: Deployment shop/a:\n  {IN_SOAK}")
    assert ": container app restarted: Error (exit code 3)\n" in rest
    assert "kubectl describe deployment/a --namespace shop" in rest


def test_pods_that_are_replaced_or_deleted_are_no_failure(shop, start):
    running = soaking(shop, start, "deploy/a")
    shop.delete("Pod", "shop", a_pod(shop, "a"))
    shop.change("Deployment", "shop", "a", {"spec": {"replicas": 1}})
    ended = running.finish()
    assert (ended.outcomes, message_of(ended, "a")) == ({"shop/a": "succeeded"}, "")


def test_a_pod_that_comes_back_without_the_sidecar_is_a_failure(shop, start):
    running = soaking(shop, start, TEXT)
    name = a_pod(shop, "a")
    shop.injector.state = "ignored"
    shop.delete("Pod", "shop", name)
    shop.wait_for(lambda: name not in map(name_of, shop.pods("shop", "a")))
    ended = running.finish()
    assert "lost sidecar: Deployment shop/a:\n  1 of 2 new Pods without sidecar" in ended.stdout
    assert f"Pods: 1 of 2{UPDATED_AND_READY} (1 lost)." in ended.stdout
    assert ended.code == 1


def test_a_pod_that_stays_unready_is_incomplete(shop, start):
    running = soaking(shop, start, "deploy/a", "--soak=20s", SETTLE="3")
    name = a_pod(shop, "a")
    shop.kubelet.set_ready("shop", name, False)
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "incomplete"}
    unready = f'1 of 2 Pods not ready: {name}: "containers with unready status: [app]"'
    assert message_of(ended, "a") == unready
    (result,) = ended.of("result")
    assert result["seconds"] < 15  # and does not take the soak to its end


@pytest.mark.parametrize("signals", [1, 2])
def test_an_interruption_ends_the_soak(shop, start, signals):
    running = soaking(shop, start, "--soak=10m")
    for _ in range(signals):
        running.signal(signal.SIGINT)
    ended = running.finish(timeout=10)
    assert ended.code == 130
    assert ended.outcomes == {"shop/a": "incomplete", "shop/b": "not_started"}
    text = r"soaked \d+s of 10m; not repeated"
    assert re.fullmatch(text, message_of(ended, "a"))


def test_evicted_pods_are_watched_as_well(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "lone", replicas=2))
    cluster.settle()
    running = soaking(cluster, start, "--evict", TEXT)
    name = a_pod(cluster, "lone")
    cluster.kubelet.crash("shop", name, "app")
    ended = running.finish()
    text = f"failed: ReplicaSet shop/lone:\n  {IN_SOAK}{name}: container app restarted: OOMKilled\n"
    assert text in ended.stdout


def test_a_custom_resource_that_is_scaled_down_lacks_nothing(cluster, start):
    """Such an owner states no number: it wants the Pods that live."""
    cluster.create("shop", replicated("CloneSet", "clones", replicas=2))
    cluster.settle()
    running = soaking(cluster, start, "--evict")
    cluster.controllers._steps["clonesets"] = lambda obj: None
    cluster.delete("Pod", "shop", a_pod(cluster, "clones"))
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/clones": "succeeded"})
    assert ended.of("result")[0]["pods"] == counts(1, 1, 1)


def name_of(found: dict) -> str:
    return found["metadata"]["name"]


def test_a_restart_before_the_soak_does_not_count(cluster, start):
    """A container that waits for another one often restarts once while it starts."""
    cluster.create("shop", workload("Deployment", "slow", replicas=2))
    cluster.settle()
    old = set(map(name_of, cluster.pods("shop")))
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, "--soak=3s")
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 3)
    (first,) = set(map(name_of, cluster.pods("shop"))) - old
    cluster.kubelet.start("shop", first)
    for _ in range(3):
        cluster.kubelet.crash("shop", first, "app")
    let_ready(cluster)  # the other one, without which the rollout is not complete
    assert running.finish().outcomes == {"shop/slow": "succeeded"}


def test_a_workload_that_was_late_is_watched_when_it_is_rechecked(cluster, start):
    cluster.create("shop", workload("Deployment", "a"))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, within(cluster, 3), "--soak=8s", "--log-level=debug")
    running.wait_for_log("will recheck now")
    let_ready(cluster)
    running.wait_for_log("soaking")
    name = a_pod(cluster, "a")
    cluster.kubelet.crash("shop", name, "app")
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "failed"}
    assert message_of(ended, "a").startswith(f"{IN_SOAK}{name}: container app restarted")


# Without a cluster: what is a failure, and how often is it looked for


class FakeCluster:
    """A cluster whose Pods a test sets; `looks` are the seconds when they were listed."""

    def __init__(self, *pods: dict) -> None:
        self.pods = list(pods)
        self.looks: list[float] = []
        self.clock = 0.0
        self.then: dict[int, list[dict] | Exception] = {}  # after so many seconds, other Pods

    def now(self) -> datetime:
        return datetime(2026, 6, 1, tzinfo=timezone.utc)

    def workload(self, ref) -> dict:
        return {"metadata": {}, "spec": {"replicas": 1, "template": {}}, "status": {}}

    def owner_object(self, owner, pod) -> dict:
        return self.workload(owner)

    def latest_event(self, obj, selector, since="") -> str:
        return ""

    def pods_of(self, owner, obj) -> list[dict]:
        self.looks.append(self.clock)
        found: list[dict] | Exception = self.pods
        for seconds, pods in self.then.items():
            found = pods if self.clock >= seconds else found
        if isinstance(found, Exception):
            raise found
        return found


def ready_pod(restarts: int = 0, ready: bool = True, name: str = "web-0", **status) -> dict:
    found = pod(name, pod_spec(container("istio-proxy")), ("apps/v1", "StatefulSet", "web"))
    created = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    found["metadata"] |= {"namespace": "shop", "uid": name, **created}
    condition = {"type": "Ready", "status": str(ready)}
    statuses = [{"name": "app", "restartCount": restarts, **status}]
    found["status"] = {"conditions": [condition], "containerStatuses": statuses}
    return found


def watch(tool, cluster, *options: str, stop_reason: str = "") -> tuple[str, str]:
    """The outcome and message of a verification with a soak whose waits take no time."""
    ref = a_ref(tool, "StatefulSet", "shop", "web", "apps")
    rollout = a_rollout(tool, cluster, *options)
    rollout.signals.stop(tool.Stop(stop_reason, "max_failures"))
    cluster.clock = 0.0
    cluster.looks.clear()

    def wait(seconds: float, until=bool) -> None:
        assert not until()
        cluster.clock += seconds

    rollout.signals.wait = wait
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: cluster.clock)
        work = a_restart(tool, rollout, ref=ref)
        result = work.verify()
    return result.outcome.code, result.message


def test_that_no_other_rollout_may_start_does_not_hurry_it(tool):
    cluster = FakeCluster(ready_pod())
    reason = "--max-failures=1 reached"
    assert watch(tool, cluster, "--soak=12s", stop_reason=reason) == ("succeeded", "")
    assert cluster.looks == [0, 5, 10, 12]


@pytest.mark.parametrize(
    ("soak", "last", "looks"),
    [("2s", 2, 2), ("2m", 120, 25), ("12s", 12, 4)],
)
def test_pods_are_listed_every_5_seconds_and_at_the_end(tool, soak, last, looks):
    cluster = FakeCluster(ready_pod())
    assert watch(tool, cluster, f"--soak={soak}") == ("succeeded", "")
    assert (len(cluster.looks), cluster.looks[-1]) == (looks, last)


def test_without_it_pods_are_listed_once(tool):
    cluster = FakeCluster(ready_pod())
    assert watch(tool, cluster) == ("succeeded", "")
    assert cluster.looks == [0]


ENDED = {"terminated": {"reason": "Error", "exitCode": 2}}
UNREADY = [ready_pod(ready=False)]
STUCK = ready_pod(name="web-1", ready=False, state={"waiting": {"reason": "ImagePullBackOff"}})
STARTING = ready_pod(name="web-1", ready=False)
for later in (STUCK, STARTING):  # than the rollout
    later["metadata"]["creationTimestamp"] = "2026-06-02T00:00:00Z"
TERMINATING = ready_pod(ready=False)
TERMINATING["metadata"]["deletionTimestamp"] = "x"
NATIVE = ready_pod()
NATIVE["status"]["initContainerStatuses"] = [{"name": "istio-proxy", "restartCount": 1}]
AWAY = RuntimeError("the API server is away")


@pytest.mark.parametrize(
    ("then", "outcome", "message"),
    [
        (
            {15: [ready_pod(1, lastState={"terminated": {"reason": "OOMKilled"}})]},
            "failed",
            "OOMKilled",
        ),
        ({5: [ready_pod(1, lastState=ENDED)]}, "failed", "Error (exit code 2)"),
        ({1: [ready_pod(1)]}, "failed", "web-0: container app restarted: unknown"),
        ({5: [NATIVE]}, "failed", "web-0: container istio-proxy restarted: unknown"),
        ({5: UNREADY}, "incomplete", "1 of 1 Pod not ready: web-0"),
        ({40: UNREADY}, "incomplete", "1 of 1 Pod not ready: web-0"),  # at the end
        ({5: UNREADY, 9: [ready_pod()]}, "succeeded", ""),
        ({5: UNREADY, 9: [ready_pod()], 20: UNREADY, 24: [ready_pod()]}, "succeeded", ""),
        ({5: [], 30: [ready_pod(name="web-1")]}, "succeeded", ""),  # moved to another node
        ({5: [TERMINATING]}, "incomplete", "not created: waiting for Pod web-0 to terminate"),
        ({5: [ready_pod(), STARTING]}, "succeeded", ""),  # of an autoscaler
        ({5: [ready_pod(), ready_pod(1, name="web-1")]}, "succeeded", ""),  # before it was seen
        ({5: [ready_pod(), STUCK]}, "incomplete", "web-1: container app: ImagePullBackOff"),
        ({5: AWAY, 30: [ready_pod()]}, "succeeded", ""),
        ({5: AWAY, 30: [ready_pod(1)]}, "failed", "web-0: container app restarted: unknown"),
        ({5: AWAY}, "incomplete", f"{NOT_VERIFIED}: cannot connect"),
    ],
)
def test_what_is_a_failure(tool, monkeypatch, then, outcome, message):
    monkeypatch.setattr(tool, "SETTLE", 10.0)
    cluster = FakeCluster(ready_pod())
    error = api_error(tool, 0, "cannot connect")
    cluster.then = {at: error if pods is AWAY else pods for at, pods in then.items()}
    found = watch(tool, cluster, "--soak=40s")
    assert found[0] == outcome
    assert found[1].endswith(message) and bool(found[1]) is bool(message)
    assert cluster.clock <= 40 + 10 + 1


def test_a_restart_from_before_does_not_count(tool):
    cluster = FakeCluster(ready_pod(4))
    assert watch(tool, cluster, "--soak=10s") == ("succeeded", "")
    cluster.then = {5: [ready_pod(5)]}
    assert "container app restarted" in watch(tool, cluster, "--soak=10s")[1]


def test_workers_soak_at_the_same_time(shop, run):
    ended = run(shop, CONFIRM, "--soak=3s", "--parallel-rollouts=2")
    assert set(ended.outcomes.values()) == {"succeeded"}
    assert ended.summary["seconds"] < 6


@pytest.mark.embedded("each run is limited to the namespaces of its test there")
def test_without_it_all_is_read_once_after_the_last_eviction(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "lone"))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--evict")
    *_, owner, verified, census = [r.path for r in cluster.server.requests]
    assert ended.code == 0
    assert verified == "/api/v1/namespaces/shop/pods"
    assert owner == "/apis/apps/v1/namespaces/shop/replicasets/lone"
    assert census == "/api/v1/pods"
