"""Rollouts with a real kubectl: what is patched, how each ends, and what is said about it."""

from __future__ import annotations

import signal
import threading
import time
from datetime import datetime
from datetime import timezone

import pytest
from cluster.controllers import READY_AFTER
from cluster.manifests import container
from cluster.manifests import pod_spec
from cluster.manifests import workload
from conftest import a_planned

CONFIRM = "--confirm=true"


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
    assert ended.code == 0 and ended.planned == ["shop/web"] and ended.outcomes == {}
    assert ended.summary == {**ended.summary, "outcomes": {}, "planned": 1, "skipped": 0, "exit_code": 0}
    assert {r.method for r in cluster.server.requests if "selfsubjectaccessreviews" not in r.path} == {"GET"}


def test_every_kind_is_restarted_and_all_its_pods_are_new(cluster, run):
    kinds = {"web": "Deployment", "again": "Deployment", "db": "StatefulSet", "agent": "DaemonSet"}
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    cluster.create("shop", workload("Deployment", "again", replicas=2, strategy={"type": "Recreate"}))
    cluster.create("shop", workload("StatefulSet", "db", replicas=3))
    cluster.create("shop", workload("DaemonSet", "agent"))
    cluster.settle()
    before = {name: uids(cluster, name) for name in kinds}
    ended = run(cluster, CONFIRM, "--include-statefulset", "--include-daemonset", "--parallel-rollouts=4")
    assert ended.code == 0
    assert ended.outcomes == {f"shop/{name}": "succeeded" for name in kinds}
    assert ended.summary["outcomes"] == {"succeeded": 4}
    for name, old in before.items():
        assert len(uids(cluster, name)) == len(old) and not uids(cluster, name) & old
    assert sorted(r.path.rpartition("/")[2] for r in patches(cluster)) == sorted(kinds)


def test_what_is_written_into_the_template(cluster, run):
    cluster.create("shop", workload("Deployment", "web", annotations={"team": "a"}))
    cluster.settle()
    began = datetime.now(timezone.utc).replace(microsecond=0)
    run(cluster, CONFIRM, "--annotation-prefix=myCompany", "--rollout-reason=CVE-2026-1 in Envoy")
    found = cluster.get("Deployment", "shop", "web")
    annotations = found["spec"]["template"]["metadata"]["annotations"]
    stamp = datetime.fromisoformat(annotations.pop("myCompany.rollout.timestamp"))
    assert began <= stamp <= datetime.now(timezone.utc) and stamp.tzinfo
    assert annotations == {"team": "a", "myCompany.rollout.reason": "CVE-2026-1 in Envoy"}
    assert "sidecar-rollout" in [entry["manager"] for entry in found["metadata"]["managedFields"]]
    (patch,) = patches(cluster)
    assert patch.headers["content-type"] == "application/strategic-merge-patch+json"
    assert patch.query == {"fieldManager": "sidecar-rollout"}


def test_the_default_annotations(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    run(cluster, CONFIRM)
    annotations = cluster.get("Deployment", "shop", "web")["spec"]["template"]["metadata"]["annotations"]
    assert annotations.keys() == {"sidecarRollout.rollout.timestamp", "sidecarRollout.rollout.reason"}
    assert annotations["sidecarRollout.rollout.reason"] == "Update sidecars istio-proxy"


def test_a_second_run_with_the_same_cut_off_finds_nothing_left(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    cut_off = f"--only-started-before={datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    assert run(cluster, CONFIRM, cut_off).outcomes == {"shop/web": "succeeded"}
    again = run(cluster, CONFIRM, cut_off)
    assert again.code == 0 and again.planned == [] and len(patches(cluster)) == 1
    assert again.summary["planned"] == 0


def ready_after(seconds: float) -> dict:
    """A change of a template after which its Pods take that long."""
    return {"spec": {"template": {"metadata": {"annotations": {READY_AFTER: str(seconds)}}}}}


def test_a_rollout_that_times_out_may_still_succeed_and_is_looked_at_once_more(cluster, run):
    cluster.create("shop", workload("Deployment", "late"))
    cluster.create("shop", workload("Deployment", "stuck"))
    cluster.settle()
    cluster.change("Deployment", "shop", "late", ready_after(1.5))
    cluster.change("Deployment", "shop", "stuck", ready_after(60))
    ended = run(cluster, CONFIRM, "--timeout=1s")
    assert ended.outcomes == {"shop/late": "completed_late", "shop/stuck": "timed_out"}
    assert ended.code == 1
    assert ended.summary["outcomes"] == {"completed_late": 1, "timed_out": 1}
    messages = {r["name"]: r["message"] for r in ended.of("result")}
    assert messages["stuck"].startswith("error: timed out waiting for the condition")
    assert messages["late"] == "took longer than 1s"


def test_completed_late_alone_is_a_success(cluster, run):
    cluster.create("shop", workload("Deployment", "late"))
    cluster.settle()
    cluster.change("Deployment", "shop", "late", ready_after(1.5))
    ended = run(cluster, CONFIRM, "--timeout=1s")
    assert (ended.code, ended.outcomes) == (0, {"shop/late": "completed_late"})
    assert "rollout timed out, it may still succeed" in ended.stderr


def test_a_new_sidecar_that_does_not_start_fails_the_rollout(cluster, run):
    cluster.create("shop", workload("Deployment", "web", progressDeadlineSeconds=1))
    cluster.settle()
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:broken"
    ended = run(cluster, CONFIRM, "--timeout=20s")
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "failed")
    assert result["message"].startswith('error: deployment "web" exceeded its progress deadline; ReplicaSet "web-')
    assert result["message"].endswith('" has timed out progressing.')


def test_kubernetes_own_reason_is_in_the_message(cluster, run):
    cluster.create("shop", workload("Deployment", "web", progressDeadlineSeconds=1))
    cluster.settle()
    enforce = {"pod-security.kubernetes.io/enforce": "restricted", "sidecar-injection": "enabled"}
    namespace = cluster.store.get("namespaces", "", "shop")
    cluster.store.change("namespaces", namespace, metadata={**namespace["metadata"], "labels": enforce})
    ended = run(cluster, CONFIRM)
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "failed")
    assert 'error: deployment "web" exceeded its progress deadline; pods "web-' in result["message"]
    assert 'is forbidden: violates PodSecurity "restricted:latest"' in result["message"]
    assert '"level": "ERROR", "message": "rollout failed"' in ended.stderr


def test_a_workload_that_was_failing_before_is_marked_and_its_failure_is_a_warning(cluster, run):
    cluster.create("shop", workload("Deployment", "web", broken(), progressDeadlineSeconds=1))
    cluster.settle()
    planned = run(cluster)
    assert planned.of("plan")[0]["unhealthy"] == "ImagePullBackOff"
    table = run(cluster, "--log-format=text").stdout.splitlines()
    assert table[0].split()[-1] == "STATE" and table[1].endswith("unhealthy: ImagePullBackOff")
    ended = run(cluster, CONFIRM)
    (result,) = ended.of("result")
    assert (ended.code, result["outcome"]) == (1, "failed")
    assert "(was failing before: ImagePullBackOff)" in result["message"]
    assert '"level": "WARNING", "message": "rollout failed"' in ended.stderr and '"ERROR"' not in ended.stderr


def scaled_to_zero(cluster):
    cluster.change("Deployment", "shop", "web", {"spec": {"replicas": 0}})
    cluster.wait_for(lambda: cluster.pods("shop", "web") == [])


@pytest.mark.parametrize(
    ("meanwhile", "reason"),
    [
        (lambda c: c.delete("Deployment", "shop", "web"), "is gone"),
        (
            lambda c: c.change("Deployment", "shop", "web", {"spec": {"paused": True}}),
            "is paused; resume it first (kubectl rollout resume)",
        ),
        (
            lambda c: c.change(
                "Deployment", "shop", "web", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
            ),
            "is being deleted",
        ),
        (scaled_to_zero, "none of its Pods has the sidecar any more"),
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
    assert ended.of("result")[0]["message"] == "is gone"


def test_a_patch_that_is_refused_with_404_is_a_failure_where_the_workload_is_there(cluster, run):
    """A webhook may deny with any status."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    body = {"kind": "Status", "message": 'admission webhook "x" denied the request: no'}
    refused = cluster.fault(method="PATCH", times=99, status=404, body=body)
    ended = run(cluster, CONFIRM)
    assert (ended.code, ended.outcomes, refused.times) == (1, {"shop/web": "failed"}, 98)
    assert ended.of("result")[0]["message"] == '404 admission webhook "x" denied the request: no'


@pytest.mark.parametrize(
    ("line", "passes"),
    [
        ("The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?", True),
        ("Unable to connect to the server: dial tcp: lookup api.example on 10.0.0.1:53: no such host", True),
        ("Unable to connect to the server: net/http: TLS handshake timeout", True),
        ("Unable to connect to the server: EOF", True),
        ("Error from server (ServiceUnavailable): the server is currently unable to handle the request", True),
        ("Error from server (TooManyRequests): the server has received too many requests", True),
        ("Error from server (Timeout): the server was unable to return a response, request timed out", True),
        ("error: timed out waiting for the condition", False),
        ('error: deployment "node-unreachable" exceeded its progress deadline', False),
        ('Error from server (NotFound): deployments.apps "refused" not found', False),
        ("error: You must be logged in to the server (Unauthorized)", False),
        ("kubectl was ended by signal 9", False),
        ("", False),
    ],
)
def test_what_kubectl_says_of_an_api_server_that_is_away(tool, line, passes):
    assert tool.is_outage(line) is passes


@pytest.fixture
def start_and_lose(cluster, start):
    """start_and_lose(*options): a run whose API server vanishes between its patch and kubectl's first look."""

    def start_it(*options: str):
        cluster.create("shop", workload("Deployment", "web"))
        cluster.settle()
        held = cluster.fault(user_agent="kubectl", path="deployments", release=threading.Event())
        running = start(cluster, CONFIRM, "--log-level=debug", *options)
        assert held.reached.wait(20)
        cluster.vanish()
        held.release.set()
        return running

    return start_it


def test_an_api_server_that_is_away_is_waited_for_as_long_as_a_rollout(cluster, start_and_lose):
    """Whether the rollout succeeded nobody can say until it is back."""
    running = start_and_lose("--timeout=60s")
    running.wait_for_log("kubectl ended without a judgement", times=5, timeout=40)
    cluster.reappear()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (0, {"shop/web": "succeeded"})


def test_an_api_server_that_stays_away_makes_no_failure_of_a_rollout(cluster, start_and_lose):
    cluster.create("shop", workload("Deployment", "web-2", replicas=2))  # has its turn, so the last look comes after it
    running = start_and_lose("--timeout=2s")
    running.wait_for_log("rollout timed out, it may still succeed")
    cluster.reappear()
    assert running.finish().outcomes == {"shop/web": "completed_late", "shop/web-2": "succeeded"}


def test_between_rollouts_an_api_server_gets_more_time_than_at_the_start(cluster, run):
    """Where the start gives up after five attempts, see test_retries_honour_retry_after_and_are_bounded."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    busy = cluster.fault(method="PATCH", times=6, status=503, headers={"Retry-After": "1"})
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
    assert [ended.outcomes[f"shop/{name}"] for name in "abcd"] == ["succeeded", "failed", "not_started", "not_started"]
    reason = "401 Unauthorized: the credentials were not accepted, or have expired; log in again"
    assert {r["name"]: r["message"] for r in ended.of("result")}["d"] == reason
    assert f"{reason}: nothing new starts" in ended.stderr


def test_a_workload_that_is_deleted_while_it_is_waited_for_fails(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.controllers.ready_after = 30
    running = start(cluster, CONFIRM)
    running.wait_for_log("Waiting for deployment")
    cluster.delete("Deployment", "shop", "web")
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "failed"} and ended.code == 1
    assert ended.of("result")[0]["message"] == "error: object has been deleted"


def test_one_that_cannot_be_patched_fails_and_the_others_go_on(cluster, run):
    for name in ("a", "b", "c"):
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    denied = {"kind": "Status", "message": "admission webhook says no", "code": 403}
    cluster.fault(method="PATCH", path="deployments/b", status=403, body=denied)
    ended = run(cluster, CONFIRM)
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "failed", "shop/c": "succeeded"}
    assert [r["message"] for r in ended.of("result")][1] == "403 admission webhook says no"


def test_never_more_than_n_at_a_time_and_n_at_a_time(cluster, start):
    for number in range(5):
        cluster.create("shop", workload("Deployment", f"web-{number}"))
    cluster.settle()
    gate = threading.Event()
    held = [cluster.fault(method="PATCH", path=f"web-{number}", release=gate) for number in range(5)]
    running = start(cluster, CONFIRM, "--parallel-rollouts=3")
    assert all(fault.reached.wait(20) for fault in held[:3])
    assert not held[3].reached.wait(1)  # a fourth worker would be there within milliseconds
    gate.set()
    assert running.finish().summary["outcomes"] == {"succeeded": 5}


def test_kubectls_lines_are_logged_live_under_the_workloads_name(cluster, start):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    cluster.controllers.ready_after = 30
    running = start(cluster, CONFIRM, "--log-format=text")
    running.wait_for_log('Deployment shop/web: Waiting for deployment "web" rollout to finish')
    running.signal(signal.SIGKILL)


def test_kubectl_gets_the_same_kubeconfig_and_context(cluster, run, tmp_path):
    """The current context may change while a long run goes on: kubectl must stay with the one that was read."""
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    seen = tmp_path / "seen"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$@" >> {seen}\n')
    kubectl.chmod(0o755)
    path = cluster.write_kubeconfig("other")
    ended = run(None, CONFIRM, f"--kubeconfig={path}", f"--kubectl={kubectl}", "--timeout=90")
    assert ended.outcomes.keys() == {"shop/web"}  # how it ends depends on when its Pods are looked at
    assert seen.read_text().splitlines() == [
        "version --client",
        f"--kubeconfig {path} --context embedded version",
        f"--kubeconfig {path} --context embedded rollout status deployments/web --namespace shop --timeout 90.000s",
    ]


@pytest.mark.parametrize("agent", ["silent", "chatty"])
def test_what_a_kubectl_leaves_behind_is_not_waited_for(tool, tmp_path, agent):
    """A credential plugin may start an agent, which keeps kubectl's streams open."""
    kubectl = tmp_path / "kubectl"
    agent = {"silent": "sleep 20", "chatty": "sh -c 'for i in $(seq 100); do echo; sleep 0.2; done'"}[agent]
    kubectl.write_text(f"#!/bin/sh\nsetsid {agent} &\necho Warning: slow >&2\nprintf 'all \\377 well'\nexit 1\n")
    kubectl.chmod(0o755)
    began, told = time.monotonic(), []
    ended = tool.Kubectl(str(kubectl)).rollout_status(a_planned(tool), 600.0, told.append)
    assert ended == (1, "all \ufffd well") and time.monotonic() - began < 15
    assert [event.line for event in told if event.line] == ["Warning: slow", "all \ufffd well"]


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("echo waiting; echo error: timed out >&2; exit 1", 1, "error: timed out"),
        ("echo waiting; kill -9 $$", -9, "kubectl was ended by signal 9"),
        ("printf 'no end of line'; exit 1", 1, "no end of line"),
        ("printf 'a\\377b\\n'; exit 1", 1, "a\ufffdb"),
        ("exit 7", 7, ""),
    ],
)
def test_kubectls_last_line_says_why(tool, tmp_path, script, code, said):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\n{script}\n")
    kubectl.chmod(0o755)
    ended = tool.Kubectl(str(kubectl)).rollout_status(a_planned(tool), 60.0, lambda event: None)
    assert ended == (code, said)


def test_a_kubectl_that_hangs_is_ended(cluster, tool, tmp_path, monkeypatch):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\nexec sleep 600\n")
    kubectl.chmod(0o755)
    monkeypatch.setattr(tool, "KUBECTL_GRACE", 0.1)
    planned = a_planned(tool)
    children = []
    code, error = tool.Kubectl(str(kubectl)).rollout_status(planned, 0.1, lambda event: children.append(event.child))
    assert (code, error) == (1, "kubectl did not come back after its timeout")
    assert children[0].poll() == -signal.SIGKILL
