"""Rollouts with a real kubectl: what is patched, how each ends, and what is said about it."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from datetime import datetime, timezone

import pytest
from clusters.embedded.kubelet import READY_AFTER
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, KUBECTL, began_after, cutoff, let_ready, unchecked
from texts import NO_NEW_ROLLOUTS, NO_RESULT, RECHECK, RECHECKED, REJECTED_CREDENTIALS

pytestmark = pytest.mark.both


def broken() -> dict:
    return pod_spec(container("app", "registry.example/broken:1"))


def patches(cluster) -> list:
    return [r for r in cluster.server.requests if r.method == "PATCH"]


def uids(cluster, app: str) -> set[str]:
    return {p["metadata"]["uid"] for p in cluster.pods("shop", app)}


def test_a_dry_run_changes_nothing(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    ended = run(cluster)
    assert ended.code == 0
    assert ended.planned == ["shop/web"]
    assert ended.outcomes == {}
    assert ended.summary == {
        **ended.summary,
        "dry_run": True,
        "outcomes": {},
        "planned": 1,
        "exit_code": 0,
        "failed": {},
    }
    assert {r.method for r in cluster.server.requests if not r.path.endswith("reviews")} == {"GET"}


def test_every_kind_is_restarted_and_all_its_pods_are_new(cluster, run):
    kinds = {"web": "Deployment", "again": "Deployment", "db": "StatefulSet", "agent": "DaemonSet"}
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    cluster.create(
        "shop", workload("Deployment", "again", replicas=2, strategy={"type": "Recreate"})
    )
    cluster.create("shop", workload("StatefulSet", "db", replicas=3))
    cluster.create("shop", workload("DaemonSet", "agent"))
    cluster.settle()
    before = {name: uids(cluster, name) for name in kinds}
    ended = run(
        cluster, CONFIRM, "--include-statefulset", "--include-daemonset", "--parallel-rollouts=4"
    )
    assert ended.code == 0
    assert ended.outcomes == {f"shop/{name}": "succeeded" for name in kinds}
    assert ended.summary["outcomes"] == {"succeeded": 4}
    for name, old in before.items():
        assert len(uids(cluster, name)) == len(old)
        assert not uids(cluster, name) & old
    assert sorted(r.path.rpartition("/")[2] for r in patches(cluster)) == sorted(kinds)


@pytest.mark.embedded("the audit log has no bodies of requests")
def test_what_is_written_into_the_template(cluster, run):
    cluster.create("shop", workload("Deployment", "web", annotations={"team": "a"}))
    cluster.settle()
    began = datetime.now(timezone.utc).replace(microsecond=0)
    run(cluster, CONFIRM, "--annotation-prefix=myCompany", "--rollout-reason=CVE-2026-1 in Envoy")
    found = cluster.get("Deployment", "shop", "web")
    annotations = found["spec"]["template"]["metadata"]["annotations"]
    stamp = datetime.fromisoformat(annotations.pop("myCompany.rollout.timestamp"))
    assert began <= stamp <= datetime.now(timezone.utc)
    assert stamp.tzinfo
    assert re.fullmatch(r"[0-9a-f]{12} until \S+Z", annotations.pop("myCompany.rollout.template"))
    assert annotations == {
        "team": "a",
        "myCompany.rollout.reason": "CVE-2026-1 in Envoy",
        "myCompany.rollout.by": "admin",
        "myCompany.rollout.sidecars": "istio-proxy",
    }
    assert "sidecar-rollout" in [entry["manager"] for entry in found["metadata"]["managedFields"]]
    (patch,) = patches(cluster)
    assert patch.headers["content-type"] == "application/strategic-merge-patch+json"
    assert patch.query == {"fieldManager": "sidecar-rollout"}


def test_the_default_annotations(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    run(cluster, CONFIRM)
    annotations = cluster.get("Deployment", "shop", "web")["spec"]["template"]["metadata"][
        "annotations"
    ]
    assert annotations.keys() == {
        "sidecarRollout.rollout.timestamp",
        "sidecarRollout.rollout.reason",
        "sidecarRollout.rollout.by",
        "sidecarRollout.rollout.sidecars",
        "sidecarRollout.rollout.template",
    }
    assert annotations["sidecarRollout.rollout.reason"] == "Update sidecars istio-proxy"


def test_a_second_run_with_the_same_cutoff_finds_nothing_left(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    cut_off = cutoff()
    assert run(cluster, CONFIRM, cut_off).outcomes == {"shop/web": "succeeded"}
    again = run(cluster, CONFIRM, cut_off)
    assert again.code == 0
    assert again.planned == []
    assert len(patches(cluster)) == 1
    assert again.summary["planned"] == 0


def slow(name: str, seconds: float) -> dict:
    """A Deployment whose Pods take that long to be ready."""
    return workload("Deployment", name, annotations={READY_AFTER: str(seconds)})


def test_a_rollout_that_times_out_may_still_succeed_and_is_rechecked(cluster, run):
    cluster.create("shop", slow("late", 2.5))  # rechecked 4 s after its restart
    cluster.create("shop", slow("stuck", 60))
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 2)
    let_ready(cluster)
    cluster.settle()
    ended = run(cluster, CONFIRM, "--timeout=2s")
    assert ended.outcomes == {"shop/late": "completed_late", "shop/stuck": "timed_out"}
    assert ended.code == 1
    assert ended.summary["outcomes"] == {"completed_late": 1, "timed_out": 1}
    assert ended.stderr.count(RECHECK) == 1  # the last one is rechecked at once
    messages = {r["name"]: r["message"] for r in ended.of("result")}
    assert messages["stuck"].startswith("1 of 2 Pods not ready")
    text = RECHECKED
    assert messages["late"].startswith(text)


def test_completed_late_alone_is_a_success(cluster, run):
    cluster.create("shop", slow("late", 4.5))
    cluster.create("shop", slow("next", 2.5))  # in the meantime
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 2)
    let_ready(cluster)
    cluster.settle()
    ended = run(cluster, CONFIRM, "--timeout=4s")
    assert (ended.code, ended.outcomes["shop/late"]) == (0, "completed_late")
    assert "rollout not complete: " in ended.stderr
    assert f"; {RECHECK}" in ended.stderr


def test_a_new_sidecar_that_does_not_start_fails_the_rollout(cluster, run):
    # A second is too short: the new Pod counts as progress again, and the condition is gone.
    cluster.create("shop", workload("Deployment", "web", progressDeadlineSeconds=4))
    cluster.settle()
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:broken"
    ended = run(cluster, CONFIRM, "--timeout=20s")
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "failed")
    assert result["message"].startswith(
        'error: deployment "web" exceeded its progress deadline; 1 of 2 Pods not ready: web-'
    )
    assert re.search(
        ": container istio-proxy: (ErrImagePull|ImagePullBackOff): ", result["message"]
    )
    assert result["message"].endswith("' has timed out progressing.\"")


def test_kubernetes_own_reason_is_in_the_message(cluster, run):
    cluster.create("shop", workload("Deployment", "web", progressDeadlineSeconds=1))
    cluster.settle()
    enforce = {"pod-security.kubernetes.io/enforce": "restricted", "sidecar-injection": "enabled"}
    namespace = cluster.store.get("namespaces", "", "shop")
    cluster.store.change(
        "namespaces", namespace, metadata={**namespace["metadata"], "labels": enforce}
    )
    ended = run(unchecked(cluster), CONFIRM)
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "failed")
    assert 'error: deployment "web" exceeded its progress deadline; ' in result["message"]
    assert "; \"pods 'web-" in result["message"]
    assert "is forbidden: violates PodSecurity 'restricted:latest'" in result["message"]
    assert '"level": "ERROR", "message": "rollout failed in' in ended.stderr


def test_a_workload_that_was_failing_before_is_marked_and_fails(cluster, run):
    cluster.kubelet.back_off = (
        60  # it does not try to pull again, which is ErrImagePull for a moment
    )
    cluster.create("shop", workload("Deployment", "web", broken(), progressDeadlineSeconds=1))
    cluster.settle()
    planned = run(cluster)
    assert planned.of("plan")[0]["unhealthy_reason"] == "ImagePullBackOff"
    table = run(cluster, "--log-format=text").stdout.splitlines()
    assert table[3].endswith("  unhealthy: ImagePullBackOff")
    ended = run(cluster, CONFIRM)
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "failed")
    assert result["message"].count("(unhealthy before the rollout: ImagePullBackOff)") == 1
    assert '"level": "ERROR", "message": "rollout failed in' in ended.stderr


def scaled_to_zero(cluster):
    cluster.change("Deployment", "shop", "web", {"spec": {"replicas": 0}})
    cluster.wait_for(lambda: cluster.pods("shop", "web") == [])


@pytest.mark.parametrize(
    ("meanwhile", "reason"),
    [
        (
            lambda c: c.delete("Deployment", "shop", "web"),
            "no longer exists, or there is no permission to read it",
        ),
        (
            lambda c: c.change("Deployment", "shop", "web", {"spec": {"paused": True}}),
            "paused; run `kubectl rollout resume` first, or use --evict",
        ),
        (
            lambda c: c.change(
                "Deployment",
                "shop",
                "web",
                {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
            ),
            "being deleted",
        ),
        (scaled_to_zero, "it has no Pods now"),
    ],
)
def test_a_workload_that_changed_since_the_plan_is_skipped(cluster, start, meanwhile, reason):
    cluster.create("shop", workload("Deployment", "api"))
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(method="PATCH", path="deployments/api", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    meanwhile(cluster)
    held.release.set()
    ended = running.finish()
    assert ended.code == 0
    assert ended.outcomes == {"shop/api": "succeeded", "shop/web": "skipped"}
    assert [r["message"] for r in ended.of("result")] == ["", reason]
    assert [r.path.rpartition("/")[2] for r in patches(cluster)] == ["api"]


def test_a_workload_that_is_deleted_just_before_its_patch_is_skipped(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    held = cluster.fault(method="PATCH", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    cluster.delete("Deployment", "shop", "web")
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "skipped"})
    assert ended.of("result")[0]["message"].startswith("no longer exists")


def test_a_patch_that_is_refused_with_404_is_a_failure_where_the_workload_is_there(cluster, run):
    """A webhook may deny with any status."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    body = {"kind": "Status", "message": 'admission webhook "x" denied the request: no'}
    refused = cluster.fault(method="PATCH", times=99, status=404, body=body)
    ended = run(cluster, CONFIRM)
    assert (ended.code, ended.outcomes, refused.times) == (1, {"shop/web": "failed"}, 98)
    assert ended.of("result")[0]["message"] == '404 admission webhook "x" denied the request: no'


@pytest.fixture
def start_and_lose(cluster, start):
    """start_and_lose(*options): a run whose API server vanishes between its patch and kubectl's first look."""

    def start_it(*options: str, **environment: str):
        cluster.create("shop", workload("Deployment", "web"))
        cluster.settle()
        held = cluster.fault(user_agent="kubectl", path="deployments", release=threading.Event())
        running = start(cluster, CONFIRM, "--log-level=debug", *options, **environment)
        assert held.reached.wait(20)
        cluster.vanish()
        held.release.set()
        return running

    return start_it


def test_an_api_server_that_is_away_is_waited_for_as_long_as_a_rollout(cluster, start_and_lose):
    """Whether the rollout succeeded nobody can say until it is back."""
    running = start_and_lose("--timeout=60s")
    running.wait_for_log(NO_RESULT, times=5, timeout=40)
    cluster.reappear()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})


def test_an_api_server_that_stays_away_makes_no_failure_of_a_rollout(cluster, start_and_lose):
    cluster.create(
        "shop", workload("Deployment", "web-2", replicas=2)
    )  # has its turn, so the last look comes after it
    running = start_and_lose("--timeout=2s", RETRIES="4")
    running.wait_for_log(RECHECK, timeout=100)
    cluster.reappear()
    assert running.finish().outcomes == {"shop/web": "completed_late", "shop/web-2": "succeeded"}


def test_a_write_is_retried(cluster, run):
    """How often, see test_retries_honour_retry_after_and_are_bounded."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    busy = cluster.fault(method="PATCH", times=3, status=503, headers={"Retry-After": "1"})
    assert run(cluster, CONFIRM).outcomes == {"shop/web": "succeeded"}
    assert busy.times == 0


def test_once_the_credentials_are_gone_nothing_more_is_tried(cluster, start):
    """All the rest could not be patched either."""
    for name in ("a", "b", "c", "d"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    held = cluster.fault(method="PATCH", path="deployments/b", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    cluster.server.tokens.clear()
    held.release.set()
    ended = running.finish()
    assert ended.code == 1
    assert [ended.outcomes[f"shop/{name}"] for name in "abcd"] == [
        "succeeded",
        "not_started",  # it was not patched
        "not_started",
        "not_started",
    ]
    reason = f"401 Unauthorized: {REJECTED_CREDENTIALS}"
    assert {r["name"]: r["message"] for r in ended.of("result")}["d"] == reason
    assert f"{reason}: {NO_NEW_ROLLOUTS}" in ended.stderr
    counted = ended.summary["outcomes"]["not_started"], ended.summary["failed"]["not_started"]
    assert counted == (3, 3)  # it is one number


def test_a_workload_that_is_deleted_while_it_is_waited_for_is_skipped(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.kubelet.ready_after = 30
    running = start(cluster, CONFIRM, "--log-level=debug")
    running.wait_for_log("running kubectl")
    cluster.delete("Deployment", "shop", "web")
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "skipped"}
    assert ended.code == 0
    assert ended.of("result")[0]["message"].startswith("no longer exists")


def test_one_that_cannot_be_patched_fails_and_the_others_go_on(cluster, run):
    for name in ("a", "b", "c"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    text = "admission webhook denied the request: no"
    denied = {"kind": "Status", "message": text, "code": 403}
    cluster.fault(method="PATCH", path="deployments/b", status=403, body=denied)
    ended = run(cluster, CONFIRM)
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "failed", "shop/c": "succeeded"}
    assert [r["message"] for r in ended.of("result")][1] == f"403 {text}"


def test_never_more_than_n_at_a_time_and_n_at_a_time(cluster, start):
    for number in range(5):
        cluster.create("shop", workload("Deployment", f"web-{number}"))
    cluster.settle()
    gate = threading.Event()
    first = threading.Event()
    held = [  # the first one runs alone
        cluster.fault(method="PATCH", path=f"web-{number}", release=first if number == 1 else gate)
        for number in range(1, 5)
    ]
    running = start(cluster, CONFIRM, "--parallel-rollouts=3")
    assert all(fault.reached.wait(20) for fault in held[:3])
    first.set()
    assert held[3].reached.wait(60)
    gate.set()
    assert running.finish().summary["outcomes"] == {"succeeded": 5}
    assert began_after(cluster, "web-4", "web-1")


def test_kubectls_last_line_is_in_the_debug_log(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.fault(user_agent="kubectl", path="deployments", status=503, body=b"busy", times=20)
    running = start(cluster, CONFIRM, "--log-format=text", "--log-level=debug")
    running.wait_for_log(f"Deployment shop/web: {NO_RESULT}: ")
    running.signal(signal.SIGKILL)


@pytest.mark.embedded("it writes a kubeconfig of its own, and finds the Pods of other tests")
def test_kubectl_gets_the_same_kubeconfig_and_context(cluster, run, tmp_path):
    """The current context may change while a long run goes on: kubectl must stay with the one that was read."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    seen = tmp_path / "seen"
    kubectl = a_kubectl(tmp_path, f'echo "$@" >> {seen}\nexec {KUBECTL} "$@"')
    path = cluster.write_kubeconfig("other")
    ended = run(None, CONFIRM, f"--kubeconfig={path}", f"--kubectl={kubectl}", "--timeout=90")
    assert ended.outcomes == {"shop/web": "succeeded"}
    flags = f"--kubeconfig {path} --context embedded"
    assert seen.read_text().splitlines() == [
        f"config view --minify --kubeconfig {path} --flatten --raw --output=json",
        f"{flags} version --output=json",
        f"{flags} rollout status deployment/web --namespace shop --timeout 90.000s "
        f"--server {cluster.url}",
    ]


def a_kubectl(folder, text: str) -> str:
    path = folder / "kubectl"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def rollout_status(tool, tmp_path):
    """rollout_status(script, seconds, stop): what a kubectl of our own ends with."""

    def wait(text: str, seconds: float = 60.0, stop=lambda _: ""):
        children: set[int] = set()
        found = tool.run_until([a_kubectl(tmp_path, text)], seconds, stop, children)
        assert children == set()
        return found

    return wait


@pytest.mark.parametrize("agent", ["silent", "chatty"])
def test_what_a_kubectl_leaves_behind_is_not_waited_for(rollout_status, agent):
    """A credential plugin may start an agent, which keeps kubectl's streams open."""
    agent = {
        "silent": "sleep 20",
        "chatty": "sh -c 'for i in $(seq 100); do echo; sleep 0.2; done'",
    }[agent]
    began = time.monotonic()
    text = f"setsid {agent} &\necho Warning: slow >&2\nprintf 'all \\377 well'\nexit 1"
    assert rollout_status(text, 600.0) == (1, "all \ufffd well")
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("echo waiting; echo error: timed out >&2; exit 1", 1, "error: timed out"),
        ("echo waiting; kill -9 $$", -9, "waiting"),
        ("printf 'no end of line'; exit 1", 1, "no end of line"),
        ("printf 'a\\377b\\n'; exit 1", 1, "a\ufffdb"),
        ("exit 7", 7, ""),
        ("echo done; exit 0", 0, "done"),
    ],
)
def test_kubectls_last_line_says_why(rollout_status, script, code, said):
    assert rollout_status(script) == (code, said)


def test_a_kubectl_that_hangs_is_ended(rollout_status, tmp_path):
    text = f"echo $$ > {tmp_path}/pid\nexec sleep 600"
    assert rollout_status(text, 0.5) == (None, "timed out after 0.5s")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_kubectl_is_ended_when_nobody_waits_any_more(rollout_status, tmp_path):
    def stop(last_line: str) -> bool:
        return last_line == "waiting" and (tmp_path / "pid").exists()

    text = (
        f"echo waiting\necho $$ > {tmp_path}/new\nmv {tmp_path}/new {tmp_path}/pid\nexec sleep 600"
    )
    assert rollout_status(text, 60.0, stop) == (None, "waiting")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    "text",
    [
        "printf 'error: timed out wait'; sleep 1; echo ing for the condition; exit 1",
        "head -c 300000 /dev/zero | tr '\\0' x; echo; echo error: timed out waiting for the condition; exit 1",
    ],
)
def test_no_line_is_cut(rollout_status, text):
    """One that comes in two parts, and one after much else."""
    assert rollout_status(text) == (1, "error: timed out waiting for the condition")


def test_a_rollout_may_take_min_ready_seconds_longer_than_the_timeout(cluster, run):
    """Nothing can end it sooner: that is no failure of the rollout."""
    manifest = workload("Deployment", "slow", minReadySeconds=4)
    cluster.create("shop", manifest)
    cluster.settle()
    ended = run(cluster, CONFIRM, "--timeout=4s")
    assert (ended.code, ended.outcomes) == (0, {"shop/slow": "succeeded"})
    assert not re.search(RECHECK, ended.stderr)


def test_pods_of_a_stateful_set_count_once_they_are_available(cluster, run):
    """kubectl does not wait for the last of them; its status does."""
    cluster.create("shop", workload("StatefulSet", "db", replicas=1, minReadySeconds=4))
    cluster.wait_for(lambda: available_of(cluster) == 1, 15)
    ended = run(cluster, CONFIRM, "--include-statefulset", "--log-level=debug", "--timeout=20s")
    assert ended.outcomes == {"shop/db": "succeeded"}
    assert available_of(cluster) == 1
    assert "1 Pod ready, but not yet for 4s" in ended.stderr


def available_of(cluster) -> int:
    return cluster.get("StatefulSet", "shop", "db")["status"].get("availableReplicas", 0)
