"""What one namespace says is about that namespace; for all, two agree, or the API server says it."""

from __future__ import annotations

import threading
import time

import pytest
from clusters.embedded.admission import Refused
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, DRIFTED, upgrade, within

EVIL = "docker.io/istio/proxyv2:broken"


def fill(cluster, **numbers: int) -> None:
    """Namespaces with so many Deployments of two Pods."""
    for name, number in numbers.items():
        a_namespace(cluster, name)
        for n in range(number):
            cluster.create(name, workload("Deployment", f"{name}-{n}", replicas=2))
    cluster.settle()


def a_namespace(cluster, name: str) -> None:
    if name != "shop":  # which is there
        cluster.namespace(name, inject=True)


def injecting(cluster, monkeypatch, *namespaces: str, **change) -> None:
    """Let the injector add another container in some namespaces, or for real none."""
    real = cluster.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        metadata = pod["metadata"]
        is_real = any(key.endswith(".timestamp") for key in metadata.get("annotations", {}))
        if metadata["namespace"] in namespaces and change:
            pod["spec"]["containers"][-1].update(change)
        elif metadata["namespace"] in namespaces and is_real:
            del pod["spec"]["containers"][-1]

    monkeypatch.setattr(cluster.injector, "inject", inject)


def by_namespace(ended) -> dict[str, set[str]]:
    """The outcomes in each namespace, with the codes of what was not started."""
    found: dict[str, set[str]] = {}
    for row in ended.of("result"):
        text = row["outcome"] if row["outcome"] != "not_started" else row["code"]
        found.setdefault(row["namespace"], set()).add(text)
    return found


@pytest.mark.parametrize("change", [{}, {"image": EVIL}], ids=["lost", "not ready"])
def test_a_namespace_that_named_a_cause_is_closed_and_the_others_go_on(
    cluster, run, monkeypatch, change
):
    """It has most of the workloads: one of them is harmed."""
    fill(cluster, aaa=4, shop=2, zoo=1)
    upgrade(cluster)
    injecting(cluster, monkeypatch, "aaa", **change)
    ended = run(cluster, DRIFTED, CONFIRM, "--parallel-rollouts=1", within(cluster, 3))
    failed = "timed_out" if change else "lost_sidecar"
    assert by_namespace(ended) == {
        "aaa": {failed, "namespace_stopped"},
        "shop": {"succeeded"},
        "zoo": {"succeeded"},
    }
    assert "no new rollouts will start in namespace aaa" in ended.stderr
    assert (ended.code, ended.summary["failed"]) == (1, {failed: 1})


def test_two_namespaces_that_name_the_same_cause_stop_the_run(cluster, run, monkeypatch):
    fill(cluster, aaa=2, shop=2, zoo=2)
    upgrade(cluster)
    injecting(cluster, monkeypatch, "aaa", "shop", "zoo")
    ended = run(cluster, DRIFTED, CONFIRM)
    outcomes = [row["outcome"] for row in ended.of("result")]
    assert outcomes.count("lost_sidecar") == 2
    assert {row["code"] for row in ended.of("result") if row["outcome"] == "not_started"} == {
        "stopped"
    }


def test_if_no_other_namespace_has_anything_left_the_run_stops(cluster, run, monkeypatch):
    fill(cluster, aaa=3)
    upgrade(cluster)
    injecting(cluster, monkeypatch, "aaa")
    assert by_namespace(run(cluster, DRIFTED, CONFIRM)) == {"aaa": {"lost_sidecar", "stopped"}}


def test_nothing_with_downtime_is_the_second_one_to_be_tried(cluster, run, monkeypatch):
    fill(cluster, aaa=2)
    recreate = workload("Deployment", "once", replicas=2, strategy={"type": "Recreate"})
    cluster.create("shop", recreate)
    cluster.settle()
    upgrade(cluster)
    injecting(cluster, monkeypatch, "aaa", "shop", image=EVIL)
    ended = run(cluster, DRIFTED, CONFIRM, within(cluster, 3))
    assert by_namespace(ended)["shop"] == {"stopped"}


def test_workloads_whose_pods_fit_on_no_node_are_no_reason_to_try_five(cluster, run, monkeypatch):
    """Recreate: each one that is tried has no Pod anymore."""
    for name in ("aaa", "shop", "zoo"):
        a_namespace(cluster, name)
        for n in range(2):
            strategy = {"type": "Recreate"}
            cluster.create(name, workload("Deployment", f"d{n}", strategy=strategy))
    cluster.settle()
    upgrade(cluster)
    real = cluster.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        pod["spec"]["nodeSelector"] = {"disk": "none"}

    monkeypatch.setattr(cluster.injector, "inject", inject)
    ended = run(cluster, DRIFTED, CONFIRM, within(cluster, 2))
    begun = [row for row in ended.of("result") if row["outcome"] != "not_started"]
    assert [row["outcome"] for row in begun] == ["timed_out"]


def test_what_a_template_states_proves_nothing(cluster, run, monkeypatch):
    """His own container of that name is ready: the sidecar that others get need not be."""
    cluster.namespace("aaa")
    own = pod_spec(container("app"), container("istio-proxy", "docker.io/istio/proxyv2:1.26.2"))
    cluster.create("aaa", workload("Deployment", "own", own))
    fill(cluster, shop=3, zoo=3)
    upgrade(cluster)
    injecting(cluster, monkeypatch, "shop", "zoo", image=EVIL)
    ended = run(cluster, CONFIRM, "--parallel-rollouts=6", within(cluster, 3))
    outcomes = [row["outcome"] for row in ended.of("result")]
    assert outcomes.count("succeeded") == 1
    assert outcomes.count("timed_out") == 2


def test_if_each_template_states_it_any_new_pod_proves_it(cluster, run):
    """The tool is used without an injector: the rollouts need not be one at a time to the end."""
    own = pod_spec(container("app"), container("istio-proxy", "docker.io/istio/proxyv2:1.26.2"))
    cluster.namespace("plain")
    for n in range(4):
        cluster.create("plain", workload("Deployment", f"own-{n}", own))
    cluster.settle()
    ended = run(cluster, CONFIRM, "--parallel-rollouts=4", "-n=plain")
    assert set(ended.outcomes.values()) == {"succeeded"}


def fail_in(cluster, namespace: str, status: int, message: str, times: int = 99) -> None:
    body = {"kind": "Status", "message": message, "code": status}
    path = f"/namespaces/{namespace}/deployments/"
    cluster.fault(method="PATCH", path=path, status=status, body=body, times=times)


@pytest.mark.parametrize("status", [401, 429, 502, 503, 504])
def test_an_error_stops_the_run_only_if_the_api_server_is_not_ready(
    cluster, run, tool, monkeypatch, status
):
    monkeypatch.setattr(tool, "PATIENCE", 1.0)
    fill(cluster, aaa=2, shop=2)
    upgrade(cluster)
    fail_in(cluster, "aaa", status, "no")
    ended = run(cluster, DRIFTED, CONFIRM)
    assert by_namespace(ended) == {"aaa": {"failed", "namespace_stopped"}, "shop": {"succeeded"}}
    cluster.injector.container |= {"image": "docker.io/istio/proxyv2:1.28.0"}
    cluster.fault(path="/readyz", status=500, body={"message": "etcd failed"}, times=99)
    ended = run(cluster, DRIFTED, CONFIRM)
    assert by_namespace(ended)["shop"] == {"stopped"}


@pytest.mark.parametrize("status", [401, 429, 503])
def test_what_a_webhook_denies_is_about_that_workload(cluster, run, status):
    fill(cluster, aaa=1, shop=2)
    upgrade(cluster)
    fail_in(cluster, "aaa", status, 'admission webhook "x" denied the request: not today')
    ended = run(cluster, DRIFTED, CONFIRM)
    assert by_namespace(ended) == {"aaa": {"failed"}, "shop": {"succeeded"}}
    (message,) = [row["message"] for row in ended.of("result") if row["namespace"] == "aaa"]
    assert "not today" in message


def refuse_all(cluster, namespace: str) -> None:
    fail_in(cluster, namespace, 403, 'admission webhook "x" denied the request: no')


@pytest.mark.parametrize(
    ("limit", "failures"), [([], 3), (["--max-failures=3"], 2), (["--max-failures=1"], 1)]
)
def test_one_of_several_namespaces_has_half_of_a_limit(cluster, run, limit, failures):
    fill(cluster, aaa=6, shop=4)
    upgrade(cluster)
    refuse_all(cluster, "aaa")
    ended = run(cluster, DRIFTED, CONFIRM, *limit)
    outcomes = [row["outcome"] for row in ended.of("result") if row["namespace"] == "aaa"]
    assert outcomes.count("failed") == failures
    if limit != ["--max-failures=1"]:
        assert by_namespace(ended) == {"aaa": {"failed", "max_failures"}, "shop": {"succeeded"}}


def test_a_plan_of_one_namespace_has_the_whole_limit(cluster, run):
    fill(cluster, aaa=6)
    upgrade(cluster)
    refuse_all(cluster, "aaa")
    ended = run(cluster, DRIFTED, CONFIRM, "--max-failures=4")
    assert list(ended.outcomes.values()).count("failed") == 4


def test_a_teams_own_release_is_no_cause(cluster, start, monkeypatch):
    """It turns injection off in its template, between the plan and its turn."""
    fill(cluster, aaa=3, shop=1)
    upgrade(cluster)
    real = cluster.injector.inject

    def inject(pod: dict) -> None:
        if "off" not in pod["metadata"].get("labels", {}):
            real(pod)

    monkeypatch.setattr(cluster.injector, "inject", inject)
    release = threading.Event()
    held = cluster.fault(method="PATCH", path="/deployments/aaa-0", release=release)
    running = start(cluster, DRIFTED, CONFIRM)
    assert held.reached.wait(20)
    off = {"spec": {"template": {"metadata": {"labels": {"off": "true"}}}}}
    cluster.change("Deployment", "aaa", "aaa-1", off)
    cluster.settle()
    release.set()
    ended = running.finish()
    assert ended.outcomes.pop("aaa/aaa-1") != "succeeded"
    others = {name: o for name, o in ended.outcomes.items() if name != "aaa/aaa-1"}
    assert set(others.values()) == {"succeeded"}, ended.outcomes


def test_minutes_of_readiness_hold_no_worker(cluster, run):
    """A tenant may write any number; a run would wait for 63 years."""
    cluster.namespace("evil", inject=True)
    slow = {"minReadySeconds": 2_000_000_000, "progressDeadlineSeconds": 2_147_483_647}
    cluster.create("evil", workload("Deployment", "slow", **slow))
    fill(cluster, shop=1)
    upgrade(cluster)
    ended = run(cluster, DRIFTED, CONFIRM)
    assert ended.outcomes == {"shop/shop-0": "succeeded"}
    assert ended.skipped["Deployment evil/slow"] == "min_ready_seconds"


@pytest.mark.parametrize("state", ["hangs", "slow"])
def test_a_namespace_whose_dry_runs_hang_is_unknown_alone(cluster, run, tool, monkeypatch, state):
    monkeypatch.setattr(tool, "TOO_SLOW", 0.2)
    fill(cluster, evil=20, shop=3)
    upgrade(cluster)
    seen: list[str] = []
    call = type(cluster.injector).__call__

    def answer(injector, pod: dict, namespace: dict, dry_run: bool) -> None:
        name = namespace["metadata"]["name"]
        seen.append(name)
        if name == "evil":
            time.sleep(0.3)
        if name != "evil" or state == "slow":
            call(injector, pod, namespace, dry_run)
            return
        text = 'Internal error occurred: failed calling webhook "x": context deadline exceeded'
        raise Refused(500, "InternalError", text)

    monkeypatch.setattr(type(cluster.injector), "__call__", answer)
    ended = run(cluster, DRIFTED)
    found: dict[str, set[str]] = {}
    for row in ended.of("drift"):
        found.setdefault(row["namespace"], set()).add(row["verdict"])
    assert found["shop"] == {"drifted"}
    assert "unknown" in found["evil"]
    assert seen.count("evil") < 20
