"""A pipeline can decide by JSON and exit codes alone, tests/output/pipeline.py, and is not wrong that all is new."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, workload
from support import command, upgrade
from test_expected import SPEC, WAYS

PIPELINE = Path(__file__).with_name("pipeline.py")
NAMES = ("api", "shop", "web")
IMAGE = "*:1.27.*"
REMOVE, KEEP = "remove the old control plane", "keep the old control plane"
REPAIR, UNKNOWN = "repair, then repeat it", "could not check"
ANOTHER = "another image"


@pytest.fixture
def fleet(cluster):
    """Three Deployments; the injector has a newer sidecar."""
    for name in NAMES:
        cluster.create("shop", workload("Deployment", name, replicas=2))
    cluster.settle()
    upgrade(cluster)
    return cluster


@pytest.fixture
def pipeline(tmp_path):
    """pipeline(kubeconfig): run it to its end; its exit code and its line."""

    def begin(kubeconfig: str, *options: str, image: str = IMAGE) -> subprocess.Popen:
        words, environment = command(kubeconfig, "--timeout=3s", *options)
        words = [word for word in words if not word.startswith("--log-format")]
        line = [sys.executable, str(PIPELINE), image, str(tmp_path / "plan.jsonl"), *words]
        return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)

    def run(kubeconfig: str, *options: str, image: str = IMAGE) -> tuple:
        return ended(begin(kubeconfig, *options, image=image))

    run.begin = begin
    return run


def ended(process: subprocess.Popen) -> tuple[int, str, list[str], list[str]]:
    found = json.loads(process.communicate(timeout=120)[0])
    return process.returncode, found["decision"], found["reasons"], found["left"]


def test_all_is_well(fleet, pipeline):
    assert pipeline(fleet.kubeconfig) == (0, REMOVE, [], [])


def test_there_is_nothing_to_do(fleet, pipeline):
    assert pipeline(fleet.kubeconfig)[0] == 0
    generations = [fleet.get("Deployment", "shop", n)["metadata"]["generation"] for n in NAMES]
    assert pipeline(fleet.kubeconfig) == (0, REMOVE, [], [])
    after = [fleet.get("Deployment", "shop", n)["metadata"]["generation"] for n in NAMES]
    assert after == generations


def test_the_injector_denies(fleet, pipeline):
    fleet.injector.state = "denies"
    reasons = ["3 workloads gave no answer", f"6 Pods run {ANOTHER} (6 proxyv2:1.26.2)"]
    left = ["shop/api", "shop/shop", "shop/web"]
    assert pipeline(fleet.kubeconfig) == (1, KEEP, reasons, left)


def test_the_injector_fails(fleet, pipeline):
    fleet.injector.state = "fails"
    reasons = ["3 workloads gave no answer", f"6 Pods run {ANOTHER} (6 proxyv2:1.26.2)"]
    assert pipeline(fleet.kubeconfig)[:3] == (1, KEEP, reasons)


def test_the_injector_becomes_silent_in_the_middle(fleet, pipeline):
    fleet.injector.breaks_after = 1
    code, decision, reasons, left = pipeline(fleet.kubeconfig)
    assert (code, decision, reasons) == (1, REPAIR, ["lost_sidecar"])
    assert "shop/api" in left


def test_one_is_rejected(fleet, pipeline):
    fleet.create("shop", {"kind": "ServiceAccount", "metadata": {"name": "gone"}})
    fleet.create("shop", workload("Deployment", "old", pod_spec(serviceAccountName="gone")))
    fleet.settle()
    fleet.delete("ServiceAccount", "shop", "gone")
    fleet.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"
    answer = pipeline(fleet.kubeconfig, image="*:1.28.*")
    reasons = [f"1 Pod runs {ANOTHER} (1 proxyv2:1.27.0)", "1 workload gave no answer"]
    assert answer == (1, KEEP, reasons, ["shop/old"])
    assert all(sidecar_images(fleet.pods("shop", name)) == {"1.28.0"} for name in NAMES)


LEFT = ("gateway", "Job", "static Pod", "debug Pod", "virtual machine")


@pytest.mark.parametrize("way", LEFT)
def test_nothing_that_has_the_old_version_is_overlooked(fleet, pipeline, way):
    create, codes, text = WAYS[way]
    create(fleet)
    fleet.settle()
    code, decision, reasons, left = pipeline(fleet.kubeconfig)
    assert (code, decision, reasons, len(left)) == (1, KEEP, sorted(text.split("; ")), 1)
    assert all(sidecar_images(fleet.pods("shop", name)) == {"1.27.0"} for name in NAMES)


def test_a_pod_that_appears_during_the_waves_is_seen(fleet, pipeline):
    held = fleet.fault(method="PATCH", path="/deployments/", release=threading.Event())
    process = pipeline.begin(fleet.kubeconfig)
    assert held.reached.wait(60)
    fleet.create("shop", pod("late", SPEC))
    held.release.set()
    reasons = [f"1 Pod runs {ANOTHER} (1 proxyv2:1.26.2)"]
    assert ended(process) == (1, KEEP, reasons, ["shop/late"])


def test_of_namespaces_that_may_be_read_it_is_not_known(fleet, pipeline):
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespace": "shop"}
    kubeconfig = fleet.kubeconfig_of("team", [everything])
    code, decision, reasons, _ = pipeline(kubeconfig)
    assert (code, decision) == (1, UNKNOWN)
    assert "missing permissions: " in reasons[0]
    code, decision, reasons, _ = pipeline(kubeconfig, "--include-namespace=shop")
    assert (code, decision, reasons) == (1, UNKNOWN, ["not all namespaces were read"])


def sidecar_images(pods: list[dict]) -> set[str]:
    return {c["image"].partition(":")[2] for p in pods for c in p["spec"]["containers"][1:]}


def test_one_was_unhealthy_before(fleet, pipeline):
    spec = pod_spec(container("app", "app:crashing"))
    fleet.create("shop", workload("Deployment", "sick", spec))
    fleet.wait_for(lambda: fleet.pods("shop", "sick"))
    fleet.injector.container["image"] = "docker.io/istio/proxyv2:1.28.0"
    code, decision, reasons, left = pipeline(fleet.kubeconfig)
    assert (code, decision, reasons) == (1, REPAIR, ["timed_out"])


def test_it_is_interrupted(fleet, pipeline):
    held = fleet.fault(method="PATCH", path="/deployments/", release=threading.Event())
    process = pipeline.begin(fleet.kubeconfig)
    assert held.reached.wait(60)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (tool,) = map(int, children)
    os.kill(tool, signal.SIGTERM)
    held.release.set()
    code, decision, reasons, left = ended(process)
    assert (code, decision, reasons) == (1, "interrupted: repeat it", [])
    assert len(left) == 2
    assert pipeline(fleet.kubeconfig) == (0, REMOVE, [], [])


def test_the_api_server_is_away(fleet, pipeline):
    config = Path(fleet.kubeconfig).read_text().replace(f":{fleet.port}", ":1")
    path = Path(fleet.kubeconfig).with_name("away")
    path.write_text(config)
    code, decision, reasons, left = pipeline(str(path))
    assert (code, decision, left) == (1, UNKNOWN, [])
    assert len(reasons) == 1


def test_it_is_at_most_60_lines():
    assert len(PIPELINE.read_text().splitlines()) <= 60, "an example is read at a glance"
