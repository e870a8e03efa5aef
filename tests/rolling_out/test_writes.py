"""Leave to write is asked in one place, right before each try, and the transport repeats no write."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from clusters.embedded.manifests import replicated, workload
from support import (
    CONFIRM,
    DRIFTED,
    a_restart,
    a_rollout,
    api_error,
    evictions,
    make_old,
    messages,
    patched,
    raises_api_error,
    upgrade,
)

REFUSED = {"status": 503, "headers": {"Retry-After": "1"}, "body": {"message": "try later"}}


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("what", ["patch", "eviction"])
def test_a_write_that_was_refused_is_not_repeated_after_a_signal(cluster, start, what, signals):
    if what == "patch":
        cluster.create("shop", workload("Deployment", "x", replicas=2))
    else:
        cluster.create("shop", replicated("ReplicaSet", "x", replicas=2))
    make_old(cluster)
    held = threading.Event()
    method, path = ("PATCH", "deployments/x") if what == "patch" else ("POST", "/eviction")
    fault = cluster.fault(method=method, path=path, release=held, **REFUSED)
    running = start(cluster, CONFIRM, *([] if what == "patch" else ["--evict"]))
    assert fault.reached.wait(20)
    for _ in range(signals):
        running.signal(signal.SIGINT)
        running.wait_for_log("interrupted: ")
    held.set()
    ended = running.finish()
    assert ended.code == 130
    assert (len(patched(cluster)), len(evictions(cluster))) == (what == "patch", what != "patch")
    assert len(cluster.pods("shop")) == 2
    if what == "patch":
        assert cluster.get("Deployment", "shop", "x")["metadata"]["generation"] == 1


@pytest.mark.parametrize("signals", [0, 1, 2])
def test_after_a_signal_nothing_is_written(tool, signals):
    rollout = a_rollout(tool, None)
    rollout.signals.received += [signal.SIGINT] * signals
    sent: list[str] = []
    with suppress(tool.EndedError):
        a_restart(tool, rollout).write(sent.append, "x")
    assert sent == ["x"] * (signals == 0)


@pytest.mark.parametrize("status", [403, 429, 503])
def test_a_patch_that_is_refused_for_a_moment_is_tried_again(cluster, run, status):
    cluster.create("shop", workload("Deployment", "x"))
    make_old(cluster)
    body = {"message": 'deployments.apps "x" is forbidden: User "admin" cannot patch resource'}
    cluster.fault(method="PATCH", path="deployments/x", status=status, body=body)
    assert run(cluster, CONFIRM).outcomes == {"shop/x": "succeeded"}
    assert patched(cluster) == ["x", "x"]


def test_who_asks_for_an_hour_is_asked_again_after_half_a_minute(tool, monkeypatch):
    answers = [api_error(tool, 429, "busy", retry_after=3600), api_error(tool, 422, "invalid")]

    class Cluster:
        connection = SimpleNamespace(user="")

        def now(self):
            return datetime.now(timezone.utc)

        def workload(self, ref):
            return {"metadata": {"generation": 1}}

        def patch_template(self, *parts):
            raise answers.pop(0)

    rollout = a_rollout(tool, None)
    object.__setattr__(rollout, "cluster", Cluster())
    pauses: list[float] = []
    monkeypatch.setattr(rollout.signals, "wait", lambda seconds, *parts: pauses.append(seconds))
    monkeypatch.setattr(tool.Restart, "decide_now", lambda work, obj, *_: obj)
    with raises_api_error(tool, match="invalid"):
        a_restart(tool, rollout).patch()
    assert pauses[0] == 30


def test_what_a_webhook_denies_is_not_tried_again(cluster, run):
    cluster.create("shop", workload("Deployment", "x"))
    make_old(cluster)
    denied = {"message": 'admission webhook "x" denied the request: no'}
    cluster.fault(method="PATCH", path="deployments/x", status=403, body=denied, times=9)
    ended = run(cluster, CONFIRM)
    assert (ended.outcomes, patched(cluster)) == ({"shop/x": "failed"}, ["x"])


def test_an_eviction_that_a_webhook_denies_waits_for_who_drains_the_pod_itself(cluster, start):
    """Operators of databases replace a Pod once somebody tries to evict it."""
    cluster.create("shop", replicated("ReplicaSet", "x", replicas=2))
    make_old(cluster)
    denied = {"message": 'admission webhook "drain-cleaner" denied the request: I do it'}
    cluster.fault(method="POST", path="/eviction", status=403, body=denied, times=99)
    running = start(cluster, CONFIRM, "--evict", "--timeout=30s", "--log-level=debug")
    before = {pod["metadata"]["uid"] for pod in cluster.pods("shop")}
    for number in (1, 2):
        running.wait_for_log("drain-cleaner", number)
        asked = evictions(cluster)[-1]
        cluster.delete("Pod", "shop", asked)
        cluster.wait_for(
            lambda asked=asked: asked not in [p["metadata"]["name"] for p in cluster.pods("shop")]
        )
    ended = running.finish()
    assert ended.outcomes == {"shop/x": "succeeded"}
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in cluster.pods("shop"))


def test_what_was_begun_is_never_taken_back(cluster, run, tool, monkeypatch):
    """The answer to the patch is lost, a second try gets 409, and nobody answers the read that follows."""
    cluster.create("shop", workload("Deployment", "x", replicas=2))
    make_old(cluster)
    upgrade(cluster)
    cluster.fault(method="PATCH", path="deployments/x", drop="after")
    patches: list[int] = []

    def after(request, code, content) -> None:
        if request.method == "PATCH":
            patches.append(code)
            away = {"status": 503, "times": 99, "body": {"message": "etcd leader changed"}}
            cluster.fault(path="deployments/x$", user_agent="sidecar-rollout", **away)

    cluster.server.after = after
    monkeypatch.setattr(tool, "RETRIES", 1)
    ended = run(cluster, CONFIRM, DRIFTED)
    assert ended.outcomes == {"shop/x": "failed"}
    assert messages(ended)["x"].startswith("it may have been restarted: ")
    assert ended.summary["pods"]["wanted"] == 2  # none of them was verified
    assert len(patches) == 1


def test_a_worker_that_cannot_go_on_delivers_a_result(cluster, run, tool, monkeypatch):
    """For example where no thread can be started anymore."""
    cluster.create("shop", workload("Deployment", "a"))
    cluster.create("shop", workload("Deployment", "b"))
    make_old(cluster)

    def fail(*parts) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(tool.Rollouts, "result_of", fail)
    ended = run(cluster, CONFIRM)
    assert ended.outcomes == {"shop/a": "failed", "shop/b": "failed"}
    assert messages(ended)["a"] == "can't start new thread"


FAILED_CALL = 'Internal error occurred: failed calling webhook "policy.example": no endpoints'


@pytest.mark.parametrize("times", [1, 6])
def test_a_patch_waits_for_a_webhook_that_is_not_reached(cluster, run, times):
    """It has said nothing: five workloads in a row would fail within a second."""
    cluster.create("shop", workload("Deployment", "x"))
    make_old(cluster)
    body = {"message": FAILED_CALL}
    cluster.fault(method="PATCH", path="deployments/x", status=500, body=body, times=times)
    assert run(cluster, CONFIRM).outcomes == {"shop/x": "succeeded"}
    assert patched(cluster) == ["x"] * (times + 1)


def test_a_patch_is_given_up_in_the_end(cluster, run, tool, monkeypatch):
    monkeypatch.setattr(tool, "PATIENCE", 1.0)
    cluster.create("shop", workload("Deployment", "x"))
    make_old(cluster)
    body = {"message": FAILED_CALL}
    cluster.fault(method="PATCH", path="deployments/x", status=500, body=body, times=99)
    ended = run(cluster, CONFIRM)
    (result,) = ended.of("result")
    assert (result["outcome"], result["message"]) == ("failed", f"500 {FAILED_CALL}")


def test_a_dry_run_that_a_load_balancer_drops_is_asked_again(cluster, run):
    """One answer 502 is no reason to start nothing else."""
    for name in ("x", "y"):
        cluster.create("shop", workload("Deployment", name))
    make_old(cluster)
    placed = cluster.fault(method="POST", path=r"/pods\?.*dryRun", status=502)
    assert run(cluster, CONFIRM).outcomes == {"shop/x": "succeeded", "shop/y": "succeeded"}
    assert placed.reached.is_set()


@pytest.mark.parametrize(
    ("status", "message", "reply"),
    [
        (403, 'pods "x" is forbidden: exceeded quota: q, requested: pods=1', "QUOTA"),
        (403, 'pods "x" is forbidden: violates PodSecurity: exceeded quota: q', "POLICY"),
        (403, 'pods "x" is forbidden: User "me" cannot create resource "pods"', "FORBIDDEN"),
        (403, 'pods is forbidden: User "me" cannot list resource "pods"', "FORBIDDEN"),
        (403, 'pods "x" is forbidden: violates PodSecurity: is forbidden: User "me"', "POLICY"),
        (401, "Unauthorized", "UNAUTHORIZED"),
        (401, 'admission webhook "x" denied the request: log in', "DENIED"),
        (503, 'admission webhook "x" denied the request: exceeded quota: q', "DENIED"),
        (400, 'admission webhook "x" does not support dry run', "NO_DRY_RUN"),
        (403, 'admission webhook "x" denied the request: does not support dry run', "DENIED"),
        (500, 'Internal error occurred: failed calling webhook "x": refused', "WEBHOOK_FAILED"),
        (
            500,
            'Internal error occurred: failed calling webhook "x": context deadline exceeded',
            "WEBHOOK_TIMEOUT",
        ),
        (403, 'pods "x" is forbidden: violates: context deadline exceeded', "POLICY"),
        (
            422,
            "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied",
            "DENIED",
        ),
        (500, "This pod has more than one PodDisruptionBudget", "INVALID"),
        (418, "no", "INVALID"),
        (520, "no", "ERROR"),
    ],
)
def test_only_the_first_words_of_a_message_count(tool, status, message, reply):
    """What follows may be anybody's: PodSecurity quotes values of the Pod, a webhook says what it likes."""
    assert tool.reply_of(status, message).name == reply
