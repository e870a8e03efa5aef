"""--soak: a rollout that kubectl calls successful can crash a minute later."""

from __future__ import annotations

import re
import signal

import pytest
from cluster.manifests import pod, pod_spec, replicated, workload
from support import CONFIRM, TEXT, a_rollout, a_workload, let_ready


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
    crash = f"failed during the soak: {name}: container istio-proxy restarted: OOMKilled"
    assert message_of(ended, "a") == crash
    assert message_of(ended, "b") == "--max-failures=1 reached"
    assert ended.code == 1


def test_the_summary_has_the_command_to_look_at_it(shop, start):
    running = soaking(shop, start, "--max-failures=1", TEXT)
    shop.kubelet.crash("shop", a_pod(shop, "a"), "app", reason="Error", code=3)
    ended = running.finish()
    head, _, rest = ended.stdout.partition("failed: Deployment shop/a:\n  failed during the soak: ")
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
    assert "lost sidecar: Deployment shop/a:\n  1 of 2 new Pods has no sidecar" in ended.stdout
    assert "Pods: 1 of 4 updated and ready (2 not updated, 1 lost)." in ended.stdout
    assert ended.code == 1


def test_a_pod_that_stays_unready_is_a_failure(shop, start):
    running = soaking(shop, start, "deploy/a", "--soak=20s")
    name = a_pod(shop, "a")
    shop.kubelet.set_ready("shop", name, False)
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "failed"}
    unready = "containers with unready status: [app] (not ready)"
    failed = f"failed during the soak: {name}: {unready}"
    assert message_of(ended, "a") == (
        f"1 of 2 Pods not ready: {name}: containers with unready status: [app]; {failed}"
    )


@pytest.mark.parametrize("signals", [1, 2])
def test_an_interruption_ends_the_soak(shop, start, signals):
    running = soaking(shop, start, "--soak=10m")
    for _ in range(signals):
        running.signal(signal.SIGINT)
    ended = running.finish(timeout=10)
    assert ended.code == 130
    assert ended.outcomes == {"shop/a": "incomplete", "shop/b": "not_started"}
    text = r"soaked \d+\.\ds of 10m; not repeated on resume"
    assert re.fullmatch(text, message_of(ended, "a"))


def test_evicted_pods_are_watched_as_well(cluster, start):
    cluster.create("shop", replicated("ReplicaSet", "lone", replicas=2))
    cluster.settle()
    running = soaking(cluster, start, "--evict", TEXT)
    name = a_pod(cluster, "lone")
    cluster.kubelet.crash("shop", name, "app")
    ended = running.finish()
    text = (
        "failed: ReplicaSet shop/lone:\n"
        f"  failed during the soak: {name}: container app restarted: OOMKilled\n"
    )
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
    running.wait_for_log('soaking, 3s left", "workload": "Deployment shop/a"')
    cluster.kubelet.crash("shop", a_pod(cluster, "a"), "app")
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "failed", "shop/b": "succeeded"}
    assert message_of(ended, "a").startswith("failed during the soak: a-")


# Without a cluster: what is a failure, and how often is it looked for


class FakeCluster:
    """A cluster whose Pods a test sets; `looks` are the times when they were listed."""

    def __init__(self, *pods: dict) -> None:
        self.pods = list(pods)
        self.looks: list[float] = []
        self.clock = [1000.0]
        self.then: dict[int, list[dict]] = {}  # after so many looks, other Pods
        self.fails: dict[int, Exception] = {}

    def pods_of(self, owner, obj):
        self.looks.append(self.clock[0])
        self.pods = self.then.get(len(self.looks), self.pods)
        if len(self.looks) in self.fails:
            raise self.fails[len(self.looks)]
        return self.pods


def ready_pod(restarts: int = 0, ready: bool = True, name: str = "web-0", **status) -> dict:
    found = pod(name, pod_spec(), ("apps/v1", "StatefulSet", "web"))
    found["metadata"] |= {"namespace": "shop", "uid": name}
    condition = {"type": "Ready", "status": str(ready)}
    statuses = [{"name": "app", "restartCount": restarts, **status}]
    found["status"] = {"conditions": [condition], "containerStatuses": statuses}
    return found


def watch(tool, cluster, *options: str, stop_reason: str = "") -> str:
    """Which Pod fails during a soak whose waits take no time."""
    ref = tool.ObjectRef("StatefulSet", "shop", "web", "apps")
    rollout = a_rollout(tool, cluster, *options)
    rollout.signals.stop_reason = stop_reason
    attempt = tool.Attempt(lambda pod: False, lambda pod: True)

    def wait(seconds: float, until) -> None:
        assert not until()
        cluster.clock[0] += seconds

    rollout.signals.wait = wait
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool.time, "monotonic", lambda: cluster.clock[0])
        return rollout.soak(a_workload(tool, ref=ref), attempt, cluster.pods, lambda line: None)


def test_that_no_other_rollout_may_start_does_not_hurry_it(tool):
    cluster = FakeCluster(ready_pod())
    assert watch(tool, cluster, "--soak=12s", stop_reason="--max-failures=1 reached") == ""
    assert len(cluster.looks) == 3


@pytest.mark.parametrize(
    ("soak", "pause", "looks"),
    [("2s", 2, 1), ("2m", 5, 24), ("12s", 5, 3)],
)
def test_pods_are_listed_every_5_seconds_and_at_the_end(tool, soak, pause, looks):
    cluster = FakeCluster(ready_pod())
    assert watch(tool, cluster, f"--soak={soak}") == ""
    assert len(cluster.looks) == looks
    assert cluster.looks[0] == 1000 + pause
    assert cluster.looks[-1] == 1000 + tool.duration(soak)


def test_without_it_nothing_is_listed(tool):
    cluster = FakeCluster(ready_pod())
    assert watch(tool, cluster) == ""
    assert cluster.looks == []


ENDED = {"terminated": {"reason": "Error", "exitCode": 2}}
UNREADY = [ready_pod(ready=False)]
STUCK = ready_pod(name="web-1", ready=False, state={"waiting": {"reason": "ImagePullBackOff"}})
TERMINATING = ready_pod(ready=False)
TERMINATING["metadata"]["deletionTimestamp"] = "x"
NATIVE = ready_pod()
NATIVE["status"]["initContainerStatuses"] = [{"name": "istio-proxy", "restartCount": 1}]


@pytest.mark.parametrize(
    ("then", "failure"),
    [
        ({3: [ready_pod(1, lastState={"terminated": {"reason": "OOMKilled"}})]}, "OOMKilled"),
        ({2: [ready_pod(1, lastState=ENDED)]}, "Error (exit code 2)"),
        ({1: [ready_pod(1)]}, "web-0: container app restarted: unknown"),
        ({2: [NATIVE]}, "web-0: container istio-proxy restarted: unknown"),
        ({2: UNREADY}, "web-0 (not ready)"),
        ({8: UNREADY}, "web-0 (not ready)"),  # at the end: another look tells
        ({2: UNREADY, 3: [ready_pod()]}, ""),
        ({2: UNREADY, 3: [ready_pod()], 4: UNREADY, 5: [ready_pod()]}, ""),
        ({2: []}, ""),
        ({2: [TERMINATING]}, ""),
        ({2: [ready_pod(), ready_pod(name="web-1", ready=False)]}, ""),  # it is still starting
        ({2: [ready_pod(), ready_pod(1, name="web-1")]}, "web-1: container app restarted: unknown"),
        ({2: [ready_pod(), STUCK]}, "web-1: container app: ImagePullBackOff (not ready)"),
        (
            {
                2: [ready_pod(name="web-1")],
                3: [ready_pod(name="web-1", ready=False)],
            },
            "web-1 (not ready)",
        ),
    ],
)
def test_what_is_a_failure(tool, then, failure):
    cluster = FakeCluster(ready_pod())
    cluster.then = then
    found = watch(tool, cluster, "--soak=40s")
    assert found.endswith(failure) and bool(found) is bool(failure)


def test_a_restart_from_before_does_not_count(tool):
    cluster = FakeCluster(ready_pod(4))
    assert watch(tool, cluster, "--soak=10s") == ""
    cluster.then = {2: [ready_pod(5)]}
    cluster.looks.clear()
    assert "container app restarted" in watch(tool, cluster, "--soak=10s")


def test_a_look_that_fails_is_made_up_for_by_the_next(tool):
    cluster = FakeCluster(ready_pod())
    cluster.fails[2] = tool.ApiError(0, "cannot connect to the API server")
    assert watch(tool, cluster, "--soak=12s") == ""
    assert len(cluster.looks) == 3
    cluster.then = {6: [ready_pod(1)]}
    cluster.fails[5] = cluster.fails[2]
    assert "container app restarted" in watch(tool, cluster, "--soak=20s")


def test_an_api_server_that_stays_away_does_not_prolong_it(tool):
    """Also if a Pod was not ready at the last look: it cannot be looked at again."""
    cluster = FakeCluster(ready_pod())
    cluster.then = {2: UNREADY}
    cluster.fails = dict.fromkeys(range(3, 99), tool.ApiError(0, "cannot connect"))
    assert watch(tool, cluster, "--soak=20s") == ""
    assert cluster.clock[0] == 1020


def test_it_is_no_failure_of_the_run_if_the_workload_was_unhealthy_before(tool):
    """As for any other failure."""
    failed = tool.Result(a_workload(tool, unhealthy_reason="0 of 1 available"), tool.Outcome.FAILED)
    assert not failed.is_failure


def test_workers_soak_at_the_same_time(shop, run):
    ended = run(shop, CONFIRM, "--soak=3s", "--parallel-rollouts=2")
    assert set(ended.outcomes.values()) == {"succeeded"}
    assert ended.summary["seconds"] < 6


def test_without_it_all_is_read_once_after_the_last_eviction(cluster, run):
    cluster.create("shop", replicated("ReplicaSet", "lone"))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--evict")
    *_, verified, owner, census = [r.path for r in cluster.server.requests]
    assert ended.code == 0
    assert verified == "/api/v1/namespaces/shop/pods"
    assert owner == "/apis/apps/v1/namespaces/shop/replicasets/lone"
    assert census == "/api/v1/pods"


def test_pods_that_become_unready_in_turn_do_not_prolong_it(tool):
    """After the time, it looks once more, and stops."""
    pods = [ready_pod(name=name) for name in ("web-0", "web-1")]
    cluster = FakeCluster(*pods)
    for look in range(1, 100):
        odd = look % 2
        cluster.then[look] = [
            ready_pod(name="web-0", ready=not odd),
            ready_pod(name="web-1", ready=bool(odd)),
        ]
    assert watch(tool, cluster, "--soak=12s") == ""
    assert cluster.looks == [1005, 1010, 1012, 1017]


def test_a_soak_that_fails_does_not_hide_a_lost_sidecar(cluster, start):
    cluster.create("shop", workload("Deployment", "a", replicas=2))
    cluster.create("shop", workload("Deployment", "b", replicas=3))
    cluster.settle()
    running = soaking(cluster, start)
    first, second = (p["metadata"]["name"] for p in cluster.pods("shop", "a"))
    cluster.injector.state = "ignored"
    cluster.delete("Pod", "shop", first)
    cluster.wait_for(
        lambda: first not in [p["metadata"]["name"] for p in cluster.pods("shop", "a")]
    )
    cluster.kubelet.crash("shop", second, "istio-proxy")
    ended = running.finish()
    assert ended.outcomes == {"shop/a": "lost_sidecar", "shop/b": "not_started"}
    crash = f"failed during the soak: {second}: container istio-proxy restarted: OOMKilled"
    text = f"1 of 2 new Pods has no sidecar; check what injects it; {crash}"
    assert message_of(ended, "a") == text
