"""What is seen while kubectl waits: trouble ends the waiting, and the progress line counts Pods."""

from __future__ import annotations

import itertools
import signal
import threading
import time

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, workload
from hypothesis import given
from hypothesis import strategies as st
from support import (
    BOTH,
    CONFIRM,
    KUBECTL,
    Terminal,
    a_restart,
    a_rollout,
    is_running,
    messages,
)
from texts import INTERRUPT_AGAIN, RECHECKED, RECREATED, SIDECAR_NOT_READY, SIDECAR_NOT_STARTED

BROKEN = "docker.io/istio/proxyv2:broken"


@pytest.fixture
def looking(tool, monkeypatch):
    """Looks that begin at once and come often."""
    monkeypatch.setattr(tool, "LOOK_AFTER", 0.2)
    monkeypatch.setattr(tool, "LOOK_EVERY", 0.2)
    monkeypatch.setattr(tool, "STUCK_FOR", 1.5)


@pytest.fixture
def web(cluster):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    return cluster


LINGERS = """#!/bin/sh
[ "$3 $4" = "rollout status" ] || exec {kubectl} "$@"
{status}
exec sleep 600
"""


def a_lingering_kubectl(folder, status: str) -> str:
    path = folder / "kubectl"
    path.write_text(LINGERS.format(kubectl=KUBECTL, status=status))
    path.chmod(0o755)
    return f"--kubectl={path}"


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_a_kubectl_that_lingers_after_its_last_line_is_not_waited_for(
    cluster, run, looking, tmp_path, kind
):
    cluster.create("shop", workload(kind, "main"))
    cluster.settle()
    lingering = a_lingering_kubectl(tmp_path, f'{KUBECTL} "$@"')
    ended = run(cluster, CONFIRM, lingering, *BOTH)
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (0, "succeeded")
    assert result["seconds"] < 60


def test_one_that_says_so_too_early_is_waited_for(web, run, looking, tool, tmp_path, monkeypatch):
    """The Pods have to agree."""
    monkeypatch.setattr(tool, "KUBECTL_GRACE", 0.0)
    web.kubelet.ready_after = 600
    status = "echo 'deployment \"web\" successfully rolled out'"
    ended = run(web, CONFIRM, a_lingering_kubectl(tmp_path, status), "--timeout=2s")
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "timed_out")
    assert result["seconds"] >= 2


def test_pods_that_are_ready_before_kubectl_says_so_are_no_success(
    web, run, looking, tool, tmp_path, monkeypatch
):
    monkeypatch.setattr(tool, "KUBECTL_GRACE", 0.0)
    status = "echo 'Waiting for deployment \"web\" rollout to finish: 1 old replicas are pending termination...'"
    ended = run(web, CONFIRM, a_lingering_kubectl(tmp_path, status), "--timeout=2s")
    (result,) = ended.of("result")
    assert result["seconds"] >= 2
    assert result["outcome"] in ("timed_out", "completed_late")  # the Pods are rechecked at the end


@pytest.mark.both
def test_a_sidecar_that_cannot_be_pulled_fails_the_rollout_long_before_the_timeout(
    web, run, looking
):
    web.injector.container["image"] = BROKEN
    ended = run(web, CONFIRM, "--timeout=10m")
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "failed")
    assert result["message"].startswith(f"{SIDECAR_NOT_STARTED}1 of 3 Pods not ready: web-")
    assert ": container istio-proxy: " in result["message"]
    assert result["seconds"] < 60
    assert (
        len([p for p in web.pods("shop", "web") if p["spec"]["containers"][-1]["image"] != BROKEN])
        == 2
    )


def test_a_sidecar_that_starts_after_all_has_completed_late(web, run, looking, tool, monkeypatch):
    """It is rechecked at the end, like a timeout: it may have waited for its server."""
    image = web.injector.container["image"]
    web.injector.container["image"] = "docker.io/istio/proxyv2:crashing"
    recheck = tool.Restart.recheck

    def repaired(rollout, earlier):
        for found in web.pods("shop", "web"):
            web.kubelet.store.change(
                "pods",
                found,
                spec={
                    **found["spec"],
                    "containers": [
                        {**c, "image": image if c["name"] == "istio-proxy" else c["image"]}
                        for c in found["spec"]["containers"]
                    ],
                },
            )
            web.kubelet.start("shop", found["metadata"]["name"])
        web.injector.container["image"] = image
        web.wait_for(lambda: web.get("Deployment", "shop", "web")["status"].get("updatedReplicas"))
        web.settle()
        return recheck(rollout, earlier)

    monkeypatch.setattr(tool.Restart, "recheck", repaired)
    ended = run(web, CONFIRM, "--timeout=10m")
    assert ended.outcomes == {"shop/web": "completed_late"}
    text = f"{RECHECKED}{SIDECAR_NOT_STARTED}"
    assert messages(ended)["web"].startswith(text)


@pytest.mark.both
def test_an_application_of_its_own_ends_nothing(cluster, run, looking):
    cluster.create("shop", workload("Deployment", "web", pod_spec(container("app", "broken:1"))))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--timeout=6s")
    assert ended.outcomes == {"shop/web": "timed_out"}


@pytest.mark.both
def test_a_rollout_that_is_paused_is_incomplete_at_once(web, start):
    web.kubelet.ready_after = 600
    running = start(web, CONFIRM, "--timeout=10m", "--log-level=debug")
    running.wait_for_log("running kubectl")
    web.change("Deployment", "shop", "web", {"spec": {"paused": True}})
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "incomplete"}
    assert messages(ended)["web"] == "paused during its rollout; run `kubectl rollout resume`"


@pytest.mark.both
def test_a_workload_that_is_recreated_is_skipped_at_once(web, start):
    web.kubelet.ready_after = 600
    running = start(web, CONFIRM, "--timeout=10m", "--log-level=debug")
    running.wait_for_log("running kubectl")
    read = web.fault(
        path="deployments/web$", user_agent="sidecar-rollout", release=threading.Event()
    )
    web.delete("Deployment", "shop", "web")
    web.wait_for(lambda: not web.get("Deployment", "shop", "web"))
    web.create("shop", workload("Deployment", "web", replicas=2))
    read.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    assert messages(ended)["web"] == RECREATED


def test_a_workload_that_is_deleted_is_skipped_at_once(web, start):
    web.kubelet.ready_after = 600
    running = start(web, CONFIRM, "--timeout=10m", "--log-level=debug")
    running.wait_for_log("running kubectl")
    web.delete("Deployment", "shop", "web")
    assert running.finish().outcomes == {"shop/web": "skipped"}


def test_the_second_signal_ends_it_while_a_look_hangs(web, start):
    web.kubelet.ready_after = 600
    running = start(web, CONFIRM, "--log-level=debug")
    running.wait_for_log("running kubectl rollout status")
    by_us = {"path": "labelSelector", "user_agent": "sidecar-rollout"}
    hangs = web.fault(**by_us, release=threading.Event(), times=9)
    assert hangs.reached.wait(20)
    running.signal(signal.SIGINT)
    running.wait_for_log(INTERRUPT_AGAIN)
    (kubectl,) = running.wait_for_kubectls(1)
    running.signal(signal.SIGINT)
    ended = running.finish(timeout=5)
    assert (ended.code, ended.outcomes) == (130, {"shop/web": "interrupted"})
    assert not is_running(kubectl)  # its worker could not end it
    hangs.release.set()


@pytest.fixture
def looks(tool, monkeypatch) -> list[float]:
    """When Pods were looked at while kubectl waits."""
    look = tool.Restart.look
    moments: list[float] = []

    def note(found) -> str:
        moments.append(time.monotonic())
        return look(found)

    monkeypatch.setattr(tool.Restart, "look", note)
    return moments


def test_a_short_rollout_is_not_looked_at(web, run, looks):
    run(web, CONFIRM)
    assert looks == []


def test_looks_come_every_five_seconds(web, run, tool, monkeypatch, looks):
    """Here, five times as often."""
    monkeypatch.setattr(tool, "LOOK_AFTER", 0.6)
    monkeypatch.setattr(tool, "LOOK_EVERY", 1.0)
    web.kubelet.ready_after = 2
    assert run(web, CONFIRM).outcomes == {"shop/web": "succeeded"}
    assert 2 <= len(looks) <= 5  # 4 seconds: two Pods, one after the other
    assert min(b - a for a, b in itertools.pairwise(looks)) >= 1.0


@pytest.mark.parametrize("columns", [80, 200])
def test_the_progress_line_counts_pods_and_says_what_is_wrong(web, columns):
    web.injector.container["image"] = BROKEN
    seen = Terminal(web, CONFIRM, "--timeout=6s", columns=columns)
    (line,) = {
        part
        for part in seen.progress
        if "not ready" in part and "in progress" in part and ", 4s, " in part
    } or {""}
    assert "1 in progress: shop/web 1 of 3 Pods not ready: web-" in line
    assert len(line) < columns
    assert ("container istio-proxy: " in line) == (columns == 200)


REASONS = st.sampled_from(
    [
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "ErrImagePull",
        "ImagePullBackOff",
        "CrashLoopBackOff",
        "RunContainerError",
        "ContainerCreating",
        "",
    ]
)


@given(st.lists(st.tuples(st.integers(1, 30), REASONS, st.booleans(), st.booleans()), max_size=9))
def test_a_pod_is_stuck_after_it_was_not_ready_for_long_enough(tool, looks):
    """For any sequence of what looks see: seconds since the one before, a reason, of the sidecar?, ready?"""
    with pytest.MonkeyPatch.context() as patch:
        now = [1000.0]
        patch.setattr(time, "monotonic", lambda: now[0])
        rollout = a_rollout(tool, None, sidecars=["istio-proxy"])
        work = a_restart(tool, rollout)
        since = last = -1e9  # when the sidecar was first and last seen stuck in a row
        for seconds, reason, is_sidecar, is_ready in looks:
            now[0] += seconds
            name = "istio-proxy" if is_sidecar else "app"
            seen = pod("web-1", pod_spec(container("app"), container("istio-proxy")))
            seen["metadata"]["uid"] = "1"
            state = {"waiting": {"reason": reason}} if reason else {"running": {}}
            seen["status"] = {
                "containerStatuses": [{"name": name, "state": state}],
                "conditions": [{"type": "Ready", "status": str(is_ready)}],
            }
            is_stuck = is_sidecar and reason not in ("ContainerCreating", "")
            if is_stuck:  # two looks a minute apart are not a minute
                since, last = (now[0] if now[0] - last > 12.5 else since), now[0]
            expected = not is_ready and is_stuck and now[0] - since >= 60
            assert work.note_stuck(seen) == expected


# The first one runs alone


def test_what_fails_everywhere_is_found_on_one(cluster, run, looking):
    for number in range(6):
        cluster.create("shop", workload("Deployment", f"web-{number}"))
    cluster.settle()
    cluster.injector.container["image"] = BROKEN
    ended = run(cluster, CONFIRM, "--parallel-rollouts=5", "--timeout=10m")
    assert ended.code == 1
    assert ended.summary["outcomes"] == {"failed": 1, "not_started": 5}
    reason = f"{SIDECAR_NOT_READY}Deployment shop/web-0"
    assert set(messages(ended).values()) - {messages(ended)["web-0"]} == {reason}
    touched = {
        p["metadata"]["labels"]["app"]
        for p in cluster.pods("shop")
        if p["spec"]["containers"][-1]["image"] == BROKEN
    }
    assert touched == {"web-0"}


def test_a_later_one_that_does_not_start_stops_no_others(cluster, run, looking):
    """By then, others have shown that the sidecar starts."""
    for name in ("a", "b", "c"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    real = cluster.injector.inject or (lambda pod: None)

    def inject(found: dict) -> None:
        image = BROKEN if found["metadata"].get("labels", {}).get("app") == "b" else "istio:2"
        sidecar = container("istio-proxy", image)
        if "istio-proxy" not in {c["name"] for c in found["spec"]["containers"]}:
            found["spec"]["containers"] = [*found["spec"]["containers"], sidecar]

    cluster.injector.inject = inject
    ended = run(cluster, CONFIRM, "--timeout=10m")
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "failed", "shop/c": "succeeded"}
    assert real


def test_max_failures_as_a_percentage_of_the_plan(cluster, run):
    for number in range(8):
        cluster.create("shop", workload("Deployment", f"web-{number}"))
    cluster.settle()
    cluster.fault(method="PATCH", status=422, body={"message": "no"}, times=99)
    ended = run(cluster, CONFIRM, "--max-failures=25%")
    assert ended.summary["outcomes"] == {"failed": 2, "not_started": 6}
    assert messages(ended)["web-7"] == "--max-failures=2 reached"
    one = run(cluster, CONFIRM, "--max-failures=1%")  # at least one
    assert one.summary["outcomes"] == {"failed": 1, "not_started": 7}
