"""A run applies what its plan showed: what is another one by its turn is not begun, and says so."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, DRIFTED, EVICT, KUBECTL, patched, raises_api_error, upgrade

NEWEST = "docker.io/istio/proxyv2:1.28.0"


def fill(cluster, *namespaces: str, count: int = 2) -> None:
    for name in namespaces:
        if name != "shop":
            cluster.namespace(name, inject=True)
        for n in range(count):
            cluster.create(name, workload("Deployment", f"web-{n}"))
    cluster.settle()


def changing(cluster, monkeypatch, change) -> None:
    """Let the injector do something else to a Pod, after its own work."""
    real = cluster.injector.inject

    def inject(pod: dict) -> None:
        real(pod)
        change(pod, pod["spec"]["containers"][-1])

    monkeypatch.setattr(cluster.injector, "inject", inject)


def codes(ended) -> dict[str, str]:
    rows = ended.of("result")
    return {f"{r['namespace']}/{r['name']}": r["code"] or r["outcome"] for r in rows}


def test_an_autoscaler_that_moves_requests_stops_nothing(cluster, run, monkeypatch):
    """It sets them for each new Pod, and has another recommendation each time."""
    fill(cluster, "shop", "store")
    upgrade(cluster)
    numbers = itertools.count(100)

    def recommend(pod: dict, sidecar: dict) -> None:
        steps = next(numbers) // 8
        sidecar["resources"] = {"requests": {"cpu": f"{steps}m"}}

    changing(cluster, monkeypatch, recommend)
    ended = run(cluster, DRIFTED, CONFIRM)
    assert (ended.code, set(ended.outcomes.values())) == (0, {"succeeded"})


def test_a_value_that_is_random_in_each_answer_stops_nothing(cluster, run, monkeypatch):
    fill(cluster, "shop", "store")
    upgrade(cluster)
    numbers = itertools.count()

    def draw(pod: dict, sidecar: dict) -> None:
        sidecar.setdefault("env", []).append({"name": "ID", "value": f"id-{next(numbers)}"})

    changing(cluster, monkeypatch, draw)
    ended = run(cluster, DRIFTED, CONFIRM)
    assert (ended.code, set(ended.outcomes.values())) == (0, {"succeeded"})


def test_an_injector_that_copies_the_hash_of_the_template_is_right(cluster, run, monkeypatch):
    """Each restart makes another ReplicaSet."""
    fill(cluster, "shop")
    upgrade(cluster)

    def copy_hash(pod: dict, sidecar: dict) -> None:
        value = pod["metadata"].get("labels", {}).get("pod-template-hash", "")
        sidecar.setdefault("env", []).append({"name": "HASH", "value": value})

    changing(cluster, monkeypatch, copy_hash)
    ended = run(cluster, DRIFTED, CONFIRM)
    assert (ended.code, set(ended.outcomes.values())) == (0, {"succeeded"})
    assert ended.summary["leftovers"] == []


def held_at_the_first_patch(cluster, start, *options: str):
    held = cluster.fault(method="PATCH", path="/deployments/", release=threading.Event())
    running = start(cluster, DRIFTED, CONFIRM, *options)
    assert held.reached.wait(20)
    return running, held


def test_only_the_namespace_that_gets_another_revision_is_left(cluster, start, monkeypatch):
    fill(cluster, "aaa", "pay", "shop", "zoo")
    upgrade(cluster)
    revision = {}

    def choose(pod: dict, sidecar: dict) -> None:
        if pod["metadata"]["namespace"] in revision:
            sidecar["image"] = revision[pod["metadata"]["namespace"]]

    changing(cluster, monkeypatch, choose)
    running, held = held_at_the_first_patch(cluster, start)
    revision["pay"] = NEWEST
    held.release.set()
    ended = running.finish()
    found = codes(ended)
    assert {code for name, code in found.items() if not name.startswith("pay/")} == {"succeeded"}
    assert {code for name, code in found.items() if name.startswith("pay/")} == {
        "another_sidecar",
        "namespace_stopped",
    }


def test_teams_that_release_meanwhile_stop_nothing(cluster, start, monkeypatch):
    """The injector writes the ports of the application into a variable of its sidecar."""
    fill(cluster, "shop", "store", count=3)
    upgrade(cluster)

    def ports(pod: dict, sidecar: dict) -> None:
        app = pod["spec"]["containers"][0]
        text = ",".join(str(p["containerPort"]) for p in app.get("ports", ()))
        sidecar.setdefault("env", []).append({"name": "PORTS", "value": text})

    changing(cluster, monkeypatch, ports)
    running, held = held_at_the_first_patch(cluster, start)
    port = {"spec": {"containers": [{"name": "app", "ports": [{"containerPort": 8080}]}]}}
    for name in ("shop", "store"):
        cluster.change("Deployment", name, "web-2", {"spec": {"template": port}})
    cluster.settle()
    held.release.set()
    ended = running.finish()
    assert ended.code == 0
    assert set(ended.outcomes.values()) <= {"succeeded", "skipped"}
    for name in ("shop", "store"):
        assert codes(ended)[f"{name}/web-2"] == "nothing_to_replace"  # it is right by its answer


def test_a_release_while_the_injector_is_rolled_back_is_not_taken_for_done(cluster, start):
    """Its Pods are what the injector gives now, which is not what the plan showed."""
    fill(cluster, "shop", "zoo", count=1)
    upgrade(cluster)
    running, held = held_at_the_first_patch(cluster, start)
    cluster.injector.container["image"] = "docker.io/istio/proxyv2:1.26.2"
    release = {"metadata": {"annotations": {"release": "2"}}}
    cluster.change("Deployment", "zoo", "web-0", {"spec": {"template": release}})
    cluster.settle()
    held.release.set()
    assert codes(running.finish())["zoo/web-0"] == "another_sidecar"


def test_a_variable_alone_skips_and_names_no_cause(cluster, start, monkeypatch):
    fill(cluster, "shop", "store")
    upgrade(cluster)
    hour = {"value": "1"}

    def tell(pod: dict, sidecar: dict) -> None:
        sidecar.setdefault("env", []).append({"name": "HOUR", **hour})

    changing(cluster, monkeypatch, tell)
    running, held = held_at_the_first_patch(cluster, start)
    hour["value"] = "2"
    held.release.set()
    ended = running.finish()
    assert "stopped" not in codes(ended).values()
    assert list(codes(ended).values()).count("another_sidecar") == 3


def test_the_injector_is_put_back_after_the_patch(cluster, start):
    fill(cluster, "shop", count=1)
    upgrade(cluster)
    running, held = held_at_the_first_patch(cluster, start)
    cluster.injector.container |= {"image": "docker.io/istio/proxyv2:1.26.2"}
    held.release.set()
    ended = running.finish()
    assert (ended.code, ended.outcomes) == (1, {"shop/web-0": "still_drifted"})
    (row,) = ended.summary["sidecars"]
    assert (row["up_to_date"], row["left"]) == (0, {"still_drifted": 1})


@pytest.mark.embedded("the injector changes at a request of the tool")
def test_the_image_is_bad_and_the_injector_is_put_back_after_the_first_pod(cluster, run):
    """The other Pods keep their image."""
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    cluster.settle()
    upgrade(cluster)
    changed: list[str] = []

    def after(request, code, content) -> None:
        if request.method == "PATCH" and "/pods/" in request.path:
            changed.append(request.path)
            cluster.injector.container |= {"image": "docker.io/istio/proxyv2:1.26.2"}

    cluster.server.after = after
    ended = run(cluster, DRIFTED, CONFIRM, "--in-place")
    assert ended.code == 1
    assert len(changed) == 1


def test_scaled_to_nothing_is_no_success(cluster, start):
    fill(cluster, "shop", count=1)
    upgrade(cluster)
    running, held = held_at_the_first_patch(cluster, start)
    cluster.change("Deployment", "shop", "web-0", {"spec": {"replicas": 0}})
    cluster.settle()
    held.release.set()
    ended = running.finish()
    (result,) = ended.of("result")
    assert (result["outcome"], result["code"]) == ("skipped", "nothing_to_replace")
    assert result["message"] in ("scaled to 0", "it has no Pods now")


def test_an_eviction_goes_by_an_answer_from_right_before(cluster, run):
    """One dry run for each Pod, the first of which was asked for while it prepared."""
    on_delete = {"updateStrategy": {"type": "OnDelete"}}
    cluster.create("shop", workload("StatefulSet", "db", replicas=3, **on_delete))
    cluster.settle()
    upgrade(cluster)
    ended = run(cluster, DRIFTED, CONFIRM, *EVICT)
    assert ended.outcomes == {"shop/db": "succeeded"}
    requests = [r for r in cluster.server.requests if r.method == "POST" and "/pods" in r.path]
    ours = [("evict" if r.path.endswith("/eviction") else "ask") for r in requests]
    first = ours.index("evict")
    assert ours[first - 1 : first + 5] == ["ask", "evict", "ask", "evict", "ask", "evict"]


def test_a_context_that_means_another_cluster_by_now_ends_everything(tool, cluster, tmp_path):
    config = json.loads(Path(cluster.kubeconfig).read_text())
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    connection = tool.connect(KUBECTL, str(path), None)
    host = connection.configuration.host
    config["clusters"][0]["cluster"]["server"] = "https://production.example"
    path.write_text(json.dumps(config))
    connection.token = "rejected"
    for _ in range(2):  # nor is anything asked afterwards
        text = "now means https://production.example; nothing else is written"
        with raises_api_error(tool, match=text) as told:
            connection.authorization("rejected")
        assert told.value.reply.name == "ANOTHER_CLUSTER"
    assert connection.configuration.host == host
    assert connection.server_flags == ["--server", host]
    assert patched(cluster) == []
