"""--soak: a rollout that kubectl calls successful can crash a minute later."""

from __future__ import annotations

import signal
from datetime import datetime, timezone

import pytest
from cluster.manifests import pod, pod_spec, replicated, workload
from support import CONFIRM, TEXT, NoInterrupts, a_planned, let_ready, options_of


@pytest.fixture
def shop(cluster):
    """Deployments a and b with two Pods each."""
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.settle()
    return cluster


def soaking(cluster, start, *options: str, log: str = "soaking"):
    """The tool while it watches the first workload."""
    running = start(cluster, CONFIRM, "--soak=8s", "--log-level=debug", *options)
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
    crash = f"crashed during the soak: {name}: container istio-proxy restarted: OOMKilled"
    assert message_of(ended, "a") == crash
    assert message_of(ended, "b") == "--max-failures=1 reached"
    assert ended.code == 1


def test_the_summary_has_the_command_to_undo_it(shop, start):
    running = soaking(shop, start, "--max-failures=1", TEXT)
    shop.kubelet.crash("shop", a_pod(shop, "a"), "app", reason="Error", code=3)
    ended = running.finish()
    head, _, rest = ended.stdout.partition("failed: Deployment shop/a: crashed during the soak: ")
    assert ": container app restarted: Error (exit code 3)\n" in rest
    assert "kubectl rollout undo deployment/a --namespace shop" in rest


def test_a_pod_that_is_replaced_is_a_failure(shop, start):
    running = soaking(shop, start, "deploy/a")
    name = a_pod(shop, "a")
    shop.delete("Pod", "shop", name)
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "failed"}
    assert message_of(ended, "a") == f"crashed during the soak: {name}: replaced"


def test_why_a_pod_was_evicted_is_shown(shop, start):
    running = soaking(shop, start, "deploy/a")
    name = a_pod(shop, "a")
    with shop.store.lock:
        found = shop.store.get("pods", "shop", name)
        shop.store.change(
            "pods", found, status={**found["status"], "phase": "Failed", "reason": "Evicted"}
        )
    ended = running.finish()
    assert message_of(ended, "a") == f"crashed during the soak: {name}: replaced: Evicted"


def test_a_pod_that_stays_unready_is_a_failure(shop, start):
    running = soaking(shop, start, "deploy/a", "--soak=20s")
    name = a_pod(shop, "a")
    shop.kubelet.set_ready("shop", name, False)
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "failed"}
    unready = "containers with unready status: [app] (not ready for more than 10s)"
    assert message_of(ended, "a") == f"crashed during the soak: {name}: {unready}"


def test_scaling_down_is_no_failure(shop, start):
    running = soaking(shop, start, "deploy/a")
    shop.change("Deployment", "shop", "a", {"spec": {"replicas": 1}})
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "succeeded"}
    assert message_of(ended, "a") == ""


def test_another_rollout_ends_the_soak(shop, start):
    running = soaking(shop, start, "deploy/a")
    annotations = {"metadata": {"annotations": {"example.com/version": "2"}}}
    shop.change("Deployment", "shop", "a", {"spec": {"template": annotations}})
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "succeeded"}
    assert message_of(ended, "a") == "the soak was cut short: its Pod template was changed"


def test_deletion_ends_the_soak(shop, start):
    running = soaking(shop, start, "deploy/a")
    shop.delete("Deployment", "shop", "a")
    ended = running.finish()
    assert message_of(ended, "a") == "the soak was cut short: the workload no longer exists"


@pytest.mark.parametrize("signals", [1, 2])
def test_an_interruption_ends_the_soak(shop, start, signals):
    running = soaking(shop, start, "--soak=10m")
    for _ in range(signals):
        running.signal(signal.SIGINT)
    ended = running.finish(timeout=10)
    assert ended.code == 130
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "not_started"}
    assert message_of(ended, "a") == "the soak was cut short: interrupted"


def test_an_api_server_that_is_away_ends_the_soak(tool):
    class Cluster(FakeCluster):
        def pods_of(self, owner, obj):
            raise tool.ApiError(0, "cannot connect to the API server")

    result = watch(tool, Cluster(tool), "--soak=1m")
    assert result.outcome is tool.Outcome.SUCCEEDED
    assert result.message == "the soak was cut short: cannot connect to the API server"


def test_evicted_pods_are_watched_as_well(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "lone", replicas=2))
    cluster.settle()
    running = soaking(cluster, start, "--evict", TEXT)
    name = a_pod(cluster, "lone")
    cluster.kubelet.crash("shop", name, "app")
    ended = running.finish()
    text = f"failed: ReplicaSet shop/lone: crashed during the soak: {name}: container app restarted: OOMKilled"
    assert text in ended.stdout


def name_of(found: dict) -> str:
    return found["metadata"]["name"]


def test_a_restart_before_the_soak_does_not_count(cluster, start):
    """A container that waits for another one often restarts once while it starts."""
    cluster.create("shop", workload("Deployment", "slow"))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, "--soak=3s")
    (old,) = cluster.pods("shop")
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 2)
    (new,) = [p for p in cluster.pods("shop") if name_of(p) != name_of(old)]
    cluster.kubelet.start("shop", name_of(new))
    for _ in range(3):
        cluster.kubelet.crash("shop", name_of(new), "app")
    assert running.finish().outcomes == {"shop/slow": "succeeded"}


def test_a_workload_that_was_late_is_watched_as_well(cluster, start):
    for name in ("a", "b"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    cluster.kubelet.ready_after = 60
    running = start(cluster, CONFIRM, "--timeout=3s", "--soak=4s", "--log-level=debug")
    running.wait_for_log("will recheck at the end")
    let_ready(cluster)  # and b is rolled out before a is rechecked
    running.wait_for_log("rollout succeeded")
    running.wait_for_log("soaking", times=2)
    cluster.kubelet.crash("shop", a_pod(cluster, "a"), "app")
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "failed", "shop/b": "succeeded"}
    late, _, crash = message_of(ended, "a").partition("; ")
    assert late == "completed after the 3s timeout"
    assert crash.startswith("crashed during the soak: a-")


# Without a cluster: what is a crash, and how often is it looked for


class FakeCluster:
    """A cluster whose Pods a test sets; `looks` are the times when they were listed."""

    def __init__(self, tool, *pods: dict) -> None:
        self.tool, self.pods = tool, list(pods)
        self.looks: list[float] = []
        self.clock = [1000.0]
        self.then: dict[int, list[dict]] = {}  # after so many looks, other Pods
        self.owners: dict[int, dict] = {}  # after so many looks, another owner

    def pods_of(self, owner, obj):
        self.looks.append(self.clock[0])
        self.pods = self.then.get(len(self.looks), self.pods)
        return self.pods

    def owner(self, ref, pod):
        return self.owners.get(len(self.looks), OWNER)

    def now(self):
        return datetime.now(timezone.utc)


OWNER = {"metadata": {}, "spec": {"replicas": 1, "template": {}}, "status": {}}


def ready_pod(restarts: int = 0, ready: bool = True, since: str = "T1", **status) -> dict:
    found = pod("web-0", pod_spec(), ("apps/v1", "StatefulSet", "web"))
    found["metadata"] |= {"namespace": "shop", "uid": "1"}
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": since}
    statuses = [{"name": "app", "restartCount": restarts, **status}]
    found["status"] = {"conditions": [condition], "containerStatuses": statuses}
    return found


def watch(tool, cluster, *options: str, result=None):
    """The result of a soak whose waits take no time."""
    ref = tool.ObjectRef("StatefulSet", "shop", "web", "apps")
    rollout = tool.Rollout(cluster, None, NoInterrupts(), options_of(tool, *options), began=None)
    soak = tool.Soak(rollout, a_planned(tool), [ref], lambda pod: True)

    def wait(seconds: float) -> None:
        cluster.clock[0] += seconds

    soak.wait = wait
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool.time, "monotonic", lambda: cluster.clock[0])
        result = result or tool.Result(a_planned(tool), tool.Outcome.SUCCEEDED)
        return soak.watch(result, lambda line: None)


@pytest.mark.parametrize(
    ("soak", "pause", "looks"),
    [("2s", 2, 1), ("2m", 5, 24), ("10m", 6, 100), ("1h", 30, 120), ("12s", 5, 3)],
)
def test_pods_are_listed_every_5_seconds_or_less_often(tool, soak, pause, looks):
    cluster = FakeCluster(tool, ready_pod())
    assert watch(tool, cluster, f"--soak={soak}").outcome is tool.Outcome.SUCCEEDED
    assert len(cluster.looks) == 1 + looks
    assert cluster.looks[1] - cluster.looks[0] == pause
    assert cluster.looks[-1] - 1000 == tool.duration(soak)


def test_without_it_or_after_a_failure_nothing_is_listed(tool):
    cluster = FakeCluster(tool, ready_pod())
    watch(tool, cluster)
    failed = tool.Result(a_planned(tool), tool.Outcome.INCOMPLETE, "x")
    rollout = tool.Rollout(cluster, None, NoInterrupts(), options_of(tool, "--soak=1m"), began=None)
    assert tool.Soak(rollout, a_planned(tool), [], bool).watch(failed, print) is failed
    assert cluster.looks == []


@pytest.mark.parametrize(
    ("after", "pods", "crash"),
    [
        (
            3,
            [ready_pod(1, lastState={"terminated": {"reason": "OOMKilled"}})],
            "container app restarted: OOMKilled",
        ),
        (
            2,
            [ready_pod(1, lastState={"terminated": {"reason": "Error", "exitCode": 2}})],
            "container app restarted: Error (exit code 2)",
        ),
        (2, [ready_pod(1)], "container app restarted: unknown"),
        (9, [], "replaced"),
        (8, [], "replaced"),
        (10, [], None),  # the soak is over by then
        (2, [ready_pod(ready=False)], "web-0 (not ready for more than 10s)"),
    ],
)
def test_what_is_a_crash(tool, after, pods, crash):
    cluster = FakeCluster(tool, ready_pod())
    cluster.then[after] = pods
    result = watch(tool, cluster, "--soak=40s")
    if crash is None:
        assert result.message == ""
        return
    assert result.outcome is tool.Outcome.FAILED
    assert result.message.removeprefix("crashed during the soak: ").removeprefix("web-0: ") == crash


def test_short_unreadiness_is_no_crash(tool):
    """Seen at each look, but another one each time; and gone ten seconds later."""
    cluster = FakeCluster(tool, ready_pod())
    for look in range(2, 9):
        cluster.then[look] = [ready_pod(ready=False, since=f"T{look}")]
    assert watch(tool, cluster, "--soak=35s").message == ""
    cluster = FakeCluster(tool, ready_pod())
    cluster.then = {2: [ready_pod(ready=False, since="T2")], 3: [ready_pod(since="T3")]}
    assert watch(tool, cluster, "--soak=35s").message == ""


def test_a_pod_that_is_still_starting_is_no_crash(tool):
    """An autoscaler may have created it right after kubectl reported success."""
    cluster = FakeCluster(tool, ready_pod(ready=False))
    assert watch(tool, cluster, "--soak=35s").message == ""
    cluster = FakeCluster(tool, ready_pod(ready=False))
    cluster.then = {3: [ready_pod(since="T2")], 5: [ready_pod(ready=False, since="T3")]}
    assert "not ready for more than 10s" in watch(tool, cluster, "--soak=35s").message


@pytest.mark.parametrize(("soak", "since"), [("10s", 2), ("12s", 4), ("1h", 50), ("1h", 121)])
def test_unreadiness_is_seen_in_short_and_long_soaks_and_at_their_end(tool, soak, since):
    """Another look, ten seconds later, tells whether a Pod is still unready."""
    cluster = FakeCluster(tool, ready_pod())
    cluster.then[since] = [ready_pod(ready=False, since="T2")]
    cluster.then[since + 2] = [ready_pod(since="T3")]
    assert "not ready for more than 10s" in watch(tool, cluster, f"--soak={soak}").message
    assert len(cluster.looks) == since + 1


def owner(replicas: int) -> dict:
    return {**OWNER, "spec": {"replicas": replicas, "template": {}}}


def pods(*numbers: int) -> list[dict]:
    found = [ready_pod() for _ in numbers]
    for each, number in zip(found, numbers, strict=True):
        each["metadata"] |= {"name": f"web-{number}", "uid": str(number)}
    return found


def test_an_autoscaler_that_scales_up_and_then_down_is_no_crash(tool):
    cluster = FakeCluster(tool, *pods(0, 1))
    cluster.then = {2: pods(0, 1, 2, 3, 4, 5), 4: pods(0, 1, 2, 3, 4), 5: pods(0, 1, 2)}
    cluster.owners = {n: owner(3) for n in range(4, 12)}
    cluster.owners |= {0: owner(2), 1: owner(2), 2: owner(6), 3: owner(6)}
    assert watch(tool, cluster, "--soak=40s").message == ""


def test_scaling_down_excuses_only_as_many_pods(tool):
    cluster = FakeCluster(tool, *pods(0, 1, 2))
    cluster.then = {2: pods(0, 1), 4: pods(0)}
    cluster.owners = {n: owner(2) for n in range(1, 9)} | {0: owner(3), 1: owner(3)}
    assert watch(tool, cluster, "--soak=40s").message == "crashed during the soak: web-1: replaced"


def test_pods_that_appear_during_the_soak_are_watched_as_well(tool):
    crashed = pods(0, 1)
    crashed[1]["status"]["containerStatuses"][0]["restartCount"] = 1
    cluster = FakeCluster(tool, *pods(0))
    cluster.then = {2: pods(0, 1), 4: crashed}
    message = watch(tool, cluster, "--soak=40s").message
    assert message == "crashed during the soak: web-1: container app restarted: unknown"


def test_a_partition_is_a_canary_that_a_soak_is_for(tool):
    cluster = FakeCluster(tool, ready_pod())
    cluster.then[3] = [ready_pod(1)]
    kept = tool.Result(a_planned(tool), tool.Outcome.INCOMPLETE, "1 of 2", is_partitioned=True)
    result = watch(tool, cluster, "--soak=40s", result=kept)
    assert (result.outcome, result.is_failure) == (tool.Outcome.FAILED, True)
    assert result.message.startswith("1 of 2; crashed during the soak: ")


def test_restarts_from_before_and_native_sidecars(tool):
    def statuses(restarts: int) -> dict:
        found = ready_pod(4)
        found["status"]["initContainerStatuses"] = [
            {"name": "istio-proxy", "restartCount": restarts}
        ]
        return found

    cluster = FakeCluster(tool, statuses(7))
    assert watch(tool, cluster, "--soak=10s").message == ""
    cluster = FakeCluster(tool, statuses(7))
    cluster.then[3] = [statuses(8)]
    message = watch(tool, cluster, "--soak=10s").message
    assert message == "crashed during the soak: web-0: container istio-proxy restarted: unknown"


def test_it_is_no_failure_of_the_run_if_the_workload_was_unhealthy_before(tool):
    """As for any other failure."""
    failed = tool.Result(a_planned(tool, unhealthy_reason="0 of 1 available"), tool.Outcome.FAILED)
    assert not failed.is_failure


def test_workers_soak_at_the_same_time(shop, run):
    ended = run(shop, CONFIRM, "--soak=3s", "--parallel-rollouts=2")
    assert set(ended.outcomes.values()) == {"succeeded"}
    assert ended.summary["seconds"] < 6


def test_without_it_nothing_is_read_after_the_last_eviction(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "lone"))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--evict")
    last = cluster.server.requests[-1]
    assert (ended.code, last.path) == (0, "/api/v1/namespaces/shop/pods")


def test_scaling_of_pods_that_are_not_watched_is_noticed_as_well(tool):
    """After a change in place, only the changed Pods are watched."""
    cluster = FakeCluster(tool, *pods(0, 1))
    cluster.then = {4: pods(0)}
    cluster.owners = {n: owner(2) for n in range(12)} | {2: owner(3)}
    assert watch(tool, cluster, "--soak=40s").message == ""
