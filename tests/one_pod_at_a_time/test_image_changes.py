"""Changes in place against an imagined cluster: whatever fails or interrupts, no Pod has an image that nobody chose,
and never are two Pods of a workload unready because of the tool."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from clusters.embedded import is_ready
from clusters.embedded.manifests import container, native, pod, pod_spec
from hypothesis import given
from hypothesis import strategies as st
from support import (
    a_ref,
    a_rollout,
    a_workload,
    api_error,
    ended_error,
    no_signals,
    raises_ended,
    view_of,
)
from texts import MAY_HAVE_NEW, REPAIR_IMAGE, SIDECAR_NOT_READY, TO_BE_READY, WAITS_FOR_POD

pytestmark = pytest.mark.both

OLD, NEW = "agent:1", "agent:2"
SCHEDULE = st.lists(
    st.sampled_from(["ok", "ok", "ok", "denied", "away", "gone", "signal", "signals"]), max_size=40
)
FATES = ("starts", "pull", "crash", "never", "ignored", "slow")


def is_restarted(tool, before: dict, after: dict, names: list[str]) -> bool:
    return tool.is_restarted(before, after, names)


def why_not_started(tool, before: dict, after: dict, names: list[str]):
    return tool.why_not_started(before, after, names)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0


def signals_of(tool, clock: Clock):
    """The tool's Signals, whose waits take no time."""
    found = no_signals(tool)

    def wait(seconds: float, until=bool) -> None:
        if not until():
            clock.now += seconds
        if found.is_second():
            raise ended_error(tool, "INTERRUPTED", "")

    found.wait = wait
    return found


class Cluster:
    """A ReplicaSet's Pods and their kubelets; each request takes the next step of a schedule."""

    is_ready = staticmethod(lambda: False)

    def __init__(
        self,
        tool,
        clock,
        interrupts,
        fates: list[str],
        unready: set[int],
        schedule,
        missing: int = 0,
        missing_for: float = math.inf,
        missing_after: int = 0,
    ) -> None:
        self.tool, self.clock, self.interrupts = tool, clock, interrupts
        self.schedule = iter(schedule)
        self.fates = {f"web-{n}": fate for n, fate in enumerate(fates)}
        self.pods = {f"web-{n}": a_pod(n, n not in unready) for n in range(len(fates))}
        self.acted: dict[str, float] = {}  # by Pod: when its image was changed
        self.ids = 100
        self.was_ready = {name: is_ready(pod) for name, pod in self.pods.items()}
        self.missing, self.complete_at = missing, clock.now + missing_for
        self.missing_after = missing_after  # so many reads of the owner

    def step(self, name: str = "") -> None:
        self.kubelet()
        event = next(self.schedule, "ok")
        if event in ("signal", "signals"):
            self.interrupts.received += [2, 2] if event == "signals" else [2]
        if event == "denied" and name:
            raise api_error(self.tool, 403, "403 denied")
        if event == "away":
            raise api_error(self.tool, 0, "cannot connect")
        if event == "gone" and name:
            self.replace(name)

    def replace(self, name: str) -> None:
        """Somebody deletes a Pod; its replacement has today's image."""
        new = a_pod(self.ids, True)
        self.ids += 1
        new["metadata"]["name"] = f"{name}-b"
        new["spec"]["containers"][1]["image"] = NEW
        self.pods.pop(name, None)
        self.pods[new["metadata"]["name"]] = new
        self.fates[new["metadata"]["name"]] = "starts"
        self.was_ready[new["metadata"]["name"]] = True

    def kubelet(self) -> None:
        for name, since in list(self.acted.items()):
            pod = self.pods.get(name)
            if not pod:
                continue
            fate = "starts" if pod["spec"]["containers"][1]["image"] == OLD else self.fates[name]
            status = pod["status"]["containerStatuses"][1]
            if fate == "ignored" or self.clock.now - since < (30 if fate == "slow" else 0.5):
                continue
            del self.acted[name]
            self.ids += 1
            if fate != "pull":
                status["containerID"] = f"id-{self.ids}"
                status["restartCount"] += 1 + (fate == "crash")
            status["ready"] = fate in ("starts", "slow")
            status["state"] = {"running": {}}
            if fate == "pull":
                status["state"] = {"waiting": {"reason": "ErrImagePull"}}
            if fate == "crash":
                status["state"] = {"terminated": {"exitCode": 1, "reason": "Error"}}
            set_ready(pod)

    # What the tool uses

    def owner_object(self, ref, pod):
        return self.workload(ref)

    def workload(self, ref, retries=None):
        self.step()
        self.missing_after -= 1
        is_missing = self.missing_after < 0 and self.clock.now < self.complete_at
        missing = self.missing * is_missing
        return {
            "metadata": {"uid": "rs"},
            "spec": {
                "replicas": len(self.pods) + missing,
                "template": {"spec": {"containers": []}},
            },
            "status": {"availableReplicas": len(self.pods) + missing},
        }

    def pods_of(self, owner, obj):
        self.step()
        return copy.deepcopy(list(self.pods.values()))

    def pod_again(self, pod):
        self.step()
        found = self.pods.get(pod["metadata"]["name"])
        same = found and found["metadata"]["uid"] == pod["metadata"]["uid"]
        return copy.deepcopy(found) if same else {}

    def pod_today(self, workload, obj, sample, number=0):
        self.step()
        fresh = a_pod(999, True)
        fresh["spec"]["containers"][1]["image"] = NEW
        return fresh

    def change_images(self, pod, images):
        name = pod["metadata"]["name"]
        self.step(name)
        found = self.pods.get(name)
        if not found:
            raise api_error(self.tool, 404, "404 not found")
        assert images in ({"agent": NEW}, {"agent": OLD})
        if images == {"agent": NEW}:
            others = [n for n, p in self.pods.items() if n != name and not is_ready(p)]
            caused = [n for n in others if self.was_ready[n]]
            assert not caused, f"{caused} are not ready because of the tool, and {name} is next"
            if self.was_ready[name]:
                assert not others, f"{others} are not ready, and {name} is next"
        found["spec"]["containers"][1]["image"] = images["agent"]
        answer = copy.deepcopy(found)
        self.acted[name] = self.clock.now
        status = found["status"]["containerStatuses"][1]
        if self.fates[name] != "ignored":
            status |= {"ready": False, "state": {"terminated": {"exitCode": 0}}}
        set_ready(found)
        return answer

    def latest_event(self, obj, selector):
        return ""

    def now(self):
        return datetime.now(timezone.utc)

    connection = SimpleNamespace(kubectl_command=lambda ref, verb: ["kubectl", verb, ref.argument])


def set_ready(pod: dict) -> None:
    ready = all(status["ready"] for status in pod["status"]["containerStatuses"])
    pod["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]


def a_pod(number: int, ready: bool) -> dict:
    spec = pod_spec(container("app", "app:1"), container("agent", OLD))
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs"}
    metadata = {
        "name": f"web-{number}",
        "namespace": "shop",
        "uid": f"uid-{number}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{**reference, "controller": True}],
    }
    statuses = [
        {
            "name": name,
            "ready": ready or name == "agent",
            "state": {"running": {}},
            "containerID": f"{name}-{number}",
            "restartCount": 0,
        }
        for name in ("app", "agent")
    ]
    pod = {
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": "Running", "containerStatuses": statuses},
    }
    set_ready(pod)
    return pod


def change_all(tool, fates: list[str], unready: set[int] = frozenset(), schedule=(), **missing):
    """The result of a change in place, and the cluster after it."""
    clock = Clock()
    signals = signals_of(tool, clock)
    cluster = Cluster(tool, clock, signals, fates, unready, schedule, **missing)
    ref = a_ref(tool, "ReplicaSet", "shop", "web", "apps")
    fresh = a_pod(999, True)
    fresh["spec"]["containers"][1]["image"] = NEW
    planned = a_workload(
        tool,
        ref=ref,
        method=tool.Method.IN_PLACE,
        sidecars=frozenset([tool.Sidecar("agent", OLD, False)]),
        total_pods=len(fates),
        view=view_of(tool, fresh, ["agent"]),
    )
    options = ("--only-drifted", "--in-place", "--evict", "--timeout=60s")
    rollout = a_rollout(tool, cluster, *options, signals=signals, sidecars=["agent"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: clock.now)
        result = rollout.result_of(planned, lambda line: None)
    return result, cluster


def images(cluster: Cluster) -> dict[str, str]:
    return {name: pod["spec"]["containers"][1]["image"] for name, pod in cluster.pods.items()}


@given(
    st.lists(st.sampled_from(FATES), min_size=1, max_size=4),
    st.sets(st.integers(0, 3), max_size=2),
    SCHEDULE,
)
def test_no_pod_has_an_image_that_nobody_chose_and_one_at_a_time_is_unready(
    tool, fates, unready, schedule
):
    result, cluster = change_all(tool, fates, {n for n in unready if n < len(fates)}, schedule)
    found = images(cluster)
    assert set(found.values()) <= {OLD, NEW}
    text = result.message
    if REPAIR_IMAGE in text:
        failed = text.partition("Pod ")[2].partition(":")[0]
        assert found[failed] == NEW
        assert result.outcome.name == "FAILED"
    if result.outcome.name == "SUCCEEDED":
        assert set(found.values()) == {NEW}
        assert all(is_ready(p) for n, p in cluster.pods.items() if cluster.was_ready[n])
    if result.outcome.name == "SKIPPED":
        assert not any("-b" not in name and image == NEW for name, image in found.items())
    assert dataclasses.asdict(result)["message"] == "" or result.outcome.name != "SUCCEEDED"


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        ("pull", "container agent: ErrImagePull"),
        ("crash", "container agent: CrashLoopBackOff: Error (exit code 1)"),
        ("never", f"still waiting for Pod web-1{TO_BE_READY}60s"),
        ("ignored", f"still waiting for Pod web-1{TO_BE_READY}60s"),
    ],
)
def test_each_failure_is_named_with_what_to_do_and_the_rest_is_left_alone(tool, fate, reason):
    result, cluster = change_all(tool, ["starts", fate, "starts"])
    assert result.message == f"Pod web-1: {reason}{REPAIR_IMAGE}web-1` (1 of 3 Pods changed)"
    assert images(cluster) == {"web-0": NEW, "web-1": NEW, "web-2": OLD}


def test_an_api_server_that_is_away_is_named_with_the_pod(tool):
    """The Pod's image was sent; whether it was stored is not known."""
    for step in range(20):
        result, cluster = change_all(tool, ["starts"], schedule=["ok"] * step + ["away"] * 99)
        if result.outcome.name == "FAILED" and MAY_HAVE_NEW in result.message:
            break
    assert result.message == f"Pod web-0 {MAY_HAVE_NEW}; cannot connect (0 of 1 Pod changed)"
    assert result.cause.reason == "cannot connect"


def test_a_wait_for_other_pods_does_not_count_against_the_timeout(tool):
    """As for a PodDisruptionBudget: 45 s until the Pod may be changed, 30 s until it is ready."""
    result, cluster = change_all(tool, ["slow"], missing=1, missing_for=45, missing_after=1)
    assert result.outcome.name == "SUCCEEDED"
    assert cluster.clock.now > 1075


def test_slow_images_are_waited_for(tool):
    result, cluster = change_all(tool, ["slow", "slow"])
    assert result.outcome.name == "SUCCEEDED"
    assert set(images(cluster).values()) == {NEW}
    assert cluster.clock.now >= 1060


def test_a_container_that_was_stuck_before_shows_that_until_it_is_restarted(tool):
    """An image that mends it may take a while to be pulled."""
    before = a_pod(0, True)
    status = before["status"]["containerStatuses"][1]
    status["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "x"}}
    assert why_not_started(tool, before, copy.deepcopy(before), ["agent"]) is None
    after = copy.deepcopy(before)
    after["status"]["containerStatuses"][1]["restartCount"] = 1
    text = 'container agent: ImagePullBackOff: "x"'
    assert str(why_not_started(tool, before, after, ["agent"])) == text
    assert why_not_started(tool, before, after, ["app"]) is None
    assert str(why_not_started(tool, a_pod(0, True), before, ["agent"])) == text


def seen(
    state: str, reason: str = "", *, number: int = 1, restarts: int = 0, image: str = "1"
) -> dict:
    """A Pod whose native sidecar is in one of the states that clusters/recorded/node has."""
    is_ready = state == "ready"
    found = pod("web", pod_spec(container("app"), init=(native("agent", f"agent:{image}"),)))
    sidecar = {
        "name": "agent",
        "state": {"running" if state in ("ready", "unready") else state: {}},
        "ready": is_ready,
        "started": state in ("ready", "unready"),
        "restartCount": restarts,
        "image": f"agent:{image}",
        "imageID": f"id-of-{image}",
        "containerID": f"agent-{number}",
    }
    if reason:
        sidecar["state"][state]["reason"] = reason
    app = {"name": "app", "state": {"running": {}}, "ready": True, "started": True}
    app |= {"restartCount": 0, "image": "app:1", "imageID": "id", "containerID": "app-1"}
    ready = {"type": "Ready", "status": str(is_ready)}
    status = {"phase": "Running", "conditions": [ready], "containerStatuses": [app]}
    return {**found, "status": {**status, "initContainerStatuses": [sidecar]}}


def with_new_app(found: dict) -> dict:
    """The Pod after a restart of its application's container."""
    found["status"]["containerStatuses"][0] |= {"containerID": "app-2", "restartCount": 1}
    return found


BEFORE = seen("ready")  # also as long as the kubelet has only observed the change
NEW_IMAGE = {"number": 2, "restarts": 1, "image": "2"}


@pytest.mark.parametrize(
    ("after", "is_done"),
    [
        (BEFORE, False),
        (with_new_app(seen("ready")), False),
        (seen("terminated", "Completed"), False),
        (seen("unready", **NEW_IMAGE), False),
        (seen("ready", **NEW_IMAGE), True),
        (seen("ready", number=2, restarts=1), True),  # two tags of one image
    ],
)
def test_only_a_new_container_that_is_ready_ends_a_change(tool, after, is_done):
    assert is_restarted(tool, BEFORE, after, ["agent"]) is is_done
    assert not is_restarted(tool, after, after, ["agent"])


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (seen("waiting", "ErrImagePull"), "ErrImagePull"),
        (seen("waiting", "ImagePullBackOff"), "ImagePullBackOff"),
        (seen("waiting", "CrashLoopBackOff", **NEW_IMAGE), "CrashLoopBackOff"),
        (seen("unready", **NEW_IMAGE), ""),
        (seen("terminated", "Completed"), ""),  # a native sidecar whose image cannot be pulled
    ],
)
def test_a_change_that_failed_shows_its_reason_or_none(tool, after, reason):
    found = why_not_started(tool, BEFORE, after, ["agent"])
    assert (found.reason if found else "") == reason
    assert not is_restarted(tool, BEFORE, after, ["agent"])


@pytest.mark.parametrize("since", [0, 1])
def test_a_missing_pod_is_waited_for(tool, since):
    """It was deleted, and its replacement cannot be created; or it was missing before."""
    result, cluster = change_all(tool, ["starts"], missing=1, missing_after=since)
    assert result.outcome.name == "TIMED_OUT"
    assert result.message == f"{WAITS_FOR_POD} (0 of 1 Pod changed)"
    assert images(cluster) == {"web-0": OLD}
    result, cluster = change_all(tool, ["starts"], unready={0}, missing=1)
    assert images(cluster) == {"web-0": NEW}  # it was not ready anyway
    assert result.outcome.name == "INCOMPLETE"
    assert result.message == "1 of 2 Pods not ready: web-0"


def test_a_crash_loop_of_the_old_container_says_nothing_about_the_new_image(tool):
    """Between two back-offs, its status is terminated or running."""
    before = a_pod(0, True)
    status = before["status"]["containerStatuses"][1]
    status |= {"state": {"terminated": {"exitCode": 1}}, "restartCount": 5}
    after = copy.deepcopy(before)
    status = after["status"]["containerStatuses"][1]
    for state in ({"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": {"exitCode": 1}}):
        status |= {"state": state, "restartCount": 5}
        assert why_not_started(tool, before, after, ["agent"]) is None
        status["restartCount"] = 6
        assert why_not_started(tool, before, after, ["agent"]).reason == "CrashLoopBackOff"


def test_a_container_without_a_status_is_neither_restarted_nor_stuck(tool):
    """For example one that the kubelet has not seen yet."""
    before = a_pod(0, True)
    without = copy.deepcopy(before)
    without["status"]["containerStatuses"] = []
    assert not is_restarted(tool, before, without, ["agent"])
    waiting = {"waiting": {"reason": "ErrImagePull"}}
    stuck = copy.deepcopy(before)
    stuck["status"]["containerStatuses"] = [{"name": "agent", "state": waiting}]
    text = "container agent: ErrImagePull"
    assert str(why_not_started(tool, without, stuck, ["agent"])) == text


def test_the_pod_must_be_ready_as_well_as_its_container(tool):
    """Another container may have become unready by the restart."""
    before = a_pod(0, True)
    after = copy.deepcopy(before)
    status = {"name": "agent", "ready": True, "state": {"running": {}}, "containerID": "other"}
    after["status"]["containerStatuses"] = [status]
    assert is_restarted(tool, before, after, ["agent"])
    status["started"] = False  # its startup probe has not passed
    assert not is_restarted(tool, before, after, ["agent"])
    status["started"] = True
    after["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    assert not is_restarted(tool, before, after, ["agent"])
    assert is_restarted(tool, a_pod(0, False), after, ["agent"])


def test_a_pod_must_stay_ready_with_the_same_containers(tool, monkeypatch):
    """The kubelet calls a new container ready by the probe of the old one; a crash has another ID."""
    clock, before = Clock(), a_pod(0, True)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(tool, "READY_FOR", 10.0)
    rollout = a_rollout(tool, None, "--only-drifted", "--in-place", sidecars=["agent"])
    work = tool.ImageChange(rollout, a_workload(tool), lambda line: None)
    looks = [  # seconds, the container's ID, whether it is ready; and whether it is up
        (0, "new", True, False),
        (1, "new", False, False),
        (2, "new", True, False),
        (11, "new", True, False),
        (11.5, "again", True, False),
        (21, "again", True, False),
        (21.5, "again", True, True),
    ]
    for seconds, identity, ready, expected in looks:
        clock.now = 1000 + seconds
        after = a_pod(0, True)
        after["status"]["containerStatuses"][1] |= {"containerID": identity, "ready": ready}
        set_ready(after)
        assert work.is_up(before, after, ["agent"]) is expected, seconds
    work.owner_obj = {"spec": {"minReadySeconds": 30}}
    clock.now = 1000 + 41
    assert not work.is_up(before, after, ["agent"])
    clock.now = 1000 + 42
    assert work.is_up(before, after, ["agent"])


def test_a_pod_that_becomes_ready_at_the_timeout_is_not_put_back(tool, monkeypatch):
    """It only has to stay ready, which takes longer than the timeout."""
    monkeypatch.setattr(tool, "READY_FOR", 90.0)
    result, cluster = change_all(tool, ["starts"])
    assert result.outcome.name == "SUCCEEDED"
    assert images(cluster) == {"web-0": NEW}
    assert cluster.clock.now >= 1090


def test_an_old_pod_that_terminates_says_nothing_about_new_ones(tool, monkeypatch):
    """Its sidecar has ended, and it stays for its grace period or a finalizer."""
    rollout = a_rollout(tool, None, "--evict", sidecars=["agent"])
    work = tool.Eviction(rollout, a_workload(tool), lambda line: None)
    monkeypatch.setattr(tool.Eviction, "wanted", 1)
    old, new = a_pod(0, True), a_pod(1, True)
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for found in (old, new):
        found["status"]["containerStatuses"][1] |= {"ready": False}
    work.known = {"uid-0"}

    def stop_reason(*pods: dict) -> str:
        work.pods = pods
        with raises_ended(tool) as raised:
            work.give_up_batch("waiting")
        return raised.value.cause.reason

    assert stop_reason(old) == ""
    assert SIDECAR_NOT_READY in stop_reason(old, new)
