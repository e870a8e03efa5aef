"""Tests that need nothing of the embedded cluster: with --kubeconfig they run against any real one.

Each works in a namespace of its own, which it removes again; the sidecars are part of the templates.
"""

from __future__ import annotations

import time

from clusters.embedded.manifests import container, native, pod, pod_spec, workload
from support import BOTH, CONFIRM, cutoff

SIDECAR = "--sidecar-container-name=test-sidecar"


def with_sidecar() -> dict:
    return pod_spec(container("app"), container("test-sidecar"))


def options(anywhere) -> tuple[str, ...]:
    return (SIDECAR, f"--include-namespace={anywhere.namespace}", f"--timeout={anywhere.timeout}")


def names(ended, anywhere) -> list[str]:
    return [name.removeprefix(f"{anywhere.namespace}/") for name in ended.planned]


def test_all_kinds_are_rolled_out(anywhere, run):
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        anywhere.create(workload(kind, kind.lower(), with_sidecar()))
        anywhere.wait_for_rollout(f"{kind.lower()}/{kind.lower()}")
    before = {p["metadata"]["uid"] for p in anywhere.get("pods")["items"]}
    planned = names(run(anywhere.kubeconfig, *options(anywhere), *BOTH), anywhere)
    assert sorted(planned) == ["daemonset", "deployment", "statefulset"]
    ended = run(anywhere.kubeconfig, *options(anywhere), *BOTH, CONFIRM, "--parallel-rollouts=3")
    assert (ended.code, ended.summary["outcomes"]) == (0, {"succeeded": 3})
    left = [p for p in anywhere.get("pods")["items"] if p["metadata"]["uid"] in before]
    assert all("deletionTimestamp" in p["metadata"] for p in left)


def test_native_sidecars_and_init_containers_count_as_well(anywhere, run):
    anywhere.create(workload("Deployment", "natively", pod_spec(init=(native("test-sidecar"),))))
    anywhere.create(
        workload(
            "Deployment", "ending", pod_spec(init=(container("test-sidecar", command=["/none"]),))
        )
    )
    anywhere.create(
        workload("Deployment", "neither", pod_spec(init=(container("other", command=["/none"]),)))
    )
    anywhere.wait_for_rollout("deployment/natively")
    ended = run(anywhere.kubeconfig, *options(anywhere))
    found = {r["name"]: r["sidecars"][0] for r in ended.of("plan")}
    kinds = {name: (sidecar["native"], sidecar["init"]) for name, sidecar in found.items()}
    assert kinds == {"natively": (True, False), "ending": (False, True)}


def test_awkward_workloads_are_skipped(anywhere, run):
    on_delete = {"updateStrategy": {"type": "OnDelete"}}
    anywhere.create(workload("Deployment", "paused", with_sidecar()))
    anywhere.create(workload("StatefulSet", "by-hand", with_sidecar(), **on_delete))
    anywhere.create(pod("bare", with_sidecar()))
    anywhere.wait_for_rollout("deployment/paused")
    anywhere.kubectl("rollout", "pause", "deployment/paused", "--namespace", anywhere.namespace)
    anywhere.kubectl(
        "wait", "pod/by-hand-0", "pod/bare", "--for=condition=Ready", "-n", anywhere.namespace
    )
    ended = run(anywhere.kubeconfig, *options(anywhere), *BOTH, CONFIRM)
    assert ended.code == 0
    assert ended.planned == []
    assert sorted(ended.skipped) == [
        f"Deployment {anywhere.namespace}/paused",
        f"Pod {anywhere.namespace}/bare",
        f"StatefulSet {anywhere.namespace}/by-hand",
    ]


def test_a_second_run_with_the_same_cutoff_finds_nothing(anywhere, run):
    anywhere.create(workload("Deployment", "web", with_sidecar()))
    anywhere.wait_for_rollout("deployment/web")
    time.sleep(1.1)  # the API server's times are whole seconds: nothing else can be waited for
    cut_off = cutoff()
    assert run(anywhere.kubeconfig, *options(anywhere), CONFIRM, cut_off).summary["outcomes"] == {
        "succeeded": 1
    }
    assert run(anywhere.kubeconfig, *options(anywhere), CONFIRM, cut_off).planned == []


def test_a_rollout_that_never_gets_ready_times_out(anywhere, run):
    unready = {
        "readinessProbe": {"exec": {"command": ["/none"]}},
        "image": "registry.invalid/broken:1",
    }
    sidecar = pod_spec(container("app"), {**container("test-sidecar"), **unready})
    anywhere.create(workload("Deployment", "web", sidecar))
    updated = "--for=jsonpath={.status.updatedReplicas}=1"
    anywhere.kubectl("wait", "deployment/web", "-n", anywhere.namespace, updated)
    ended = run(anywhere.kubeconfig, *options(anywhere), CONFIRM, "--timeout=2s")
    assert ended.code == 1
    assert ended.summary["outcomes"] == {"timed_out": 1}
    assert "Pods not ready" in ended.of("result")[0]["message"]
