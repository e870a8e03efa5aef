"""A pipeline can decide by JSON and exit codes alone, tests/output/pipeline.py, and is not wrong that all is new."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pipeline as example
import pytest
from clusters.embedded import is_terminating
from clusters.embedded.manifests import container, pod, pod_spec, workload
from support import command, run_here, upgrade
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


def line_of(kubeconfig: str, folder: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    """The words of the pipeline but for the image, and their environment."""
    words, environment = command(kubeconfig, "--timeout=3s", *options)
    words = [word for word in words if not word.startswith("--log-format")]
    return [str(folder / "plan.jsonl"), *words], environment


@pytest.fixture
def begin(tmp_path):
    """begin(kubeconfig): the pipeline as a process."""

    def begin_process(kubeconfig: str) -> subprocess.Popen:
        words, environment = line_of(kubeconfig, tmp_path)
        line = [sys.executable, str(PIPELINE), IMAGE, *words]
        return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)

    return begin_process


@pytest.fixture
def pipeline(tool, fleet, tmp_path, monkeypatch, capsys):
    """pipeline(kubeconfig): run it to its end in this process; its exit code and its line."""

    def run(kubeconfig: str, *options: str, image: str = IMAGE) -> tuple:
        words, environment = line_of(kubeconfig, tmp_path, *options)

        def run_here_instead(line: list[str], *more: str) -> tuple[int, list[str], dict]:
            fleet.wait_for(lambda: not any(map(is_terminating, fleet.store.list("pods", "shop"))))
            found = run_here(tool, [*line, *more], environment)
            return found.code, found.stdout.splitlines(), found.records[-1]

        monkeypatch.setattr(example, "run", run_here_instead)
        code = example.main(image, *words)
        return code, *said(capsys.readouterr().out)

    return run


def said(line: str) -> tuple[str, list[str], list[str]]:
    found = json.loads(line)
    return found["decision"], found["reasons"], found["left"]


def ended(process: subprocess.Popen) -> tuple[int, str, list[str], list[str]]:
    line = process.communicate(timeout=120)[0]
    return process.returncode, *said(line)


def test_all_is_well(fleet, begin):
    assert ended(begin(fleet.kubeconfig)) == (0, REMOVE, [], [])


def test_there_is_nothing_to_do(fleet, pipeline):
    assert pipeline(fleet.kubeconfig)[0] == 0
    generations = [fleet.get("Deployment", "shop", n)["metadata"]["generation"] for n in NAMES]
    assert pipeline(fleet.kubeconfig) == (0, REMOVE, [], [])
    after = [fleet.get("Deployment", "shop", n)["metadata"]["generation"] for n in NAMES]
    assert after == generations


def test_the_injector_denies(fleet, pipeline):
    fleet.injector.state = "denies"
    why = 'new Pods cannot be created: 403 admission webhook "inject.sidecar.example" denied the request: injector says no'
    reasons = [f"3 workloads gave no answer: {why}", f"6 Pods have {ANOTHER} (6 proxyv2:1.26.2)"]
    left = ["shop/api", "shop/shop", "shop/web"]
    assert pipeline(fleet.kubeconfig) == (1, KEEP, reasons, left)


def test_the_injector_fails(fleet, pipeline):
    fleet.injector.state = "fails"
    code, decision, (silent, others), _ = pipeline(fleet.kubeconfig)
    assert (code, decision) == (1, KEEP)
    assert silent.startswith(
        "3 workloads gave no answer: 500 Internal error occurred: failed calling"
    )
    assert others == f"6 Pods have {ANOTHER} (6 proxyv2:1.26.2)"


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
    code, decision, (other, silent), left = answer
    assert (code, decision, left) == (1, KEEP, ["shop/old"])
    assert other == f"1 Pod has {ANOTHER} (1 proxyv2:1.27.0)"
    assert silent.startswith("1 workload gave no answer: new Pods cannot be created: error looking")
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


def test_a_pod_that_appears_during_the_waves_is_seen(fleet, begin):
    held = fleet.fault(method="PATCH", path="/deployments/", release=threading.Event())
    process = begin(fleet.kubeconfig)
    assert held.reached.wait(60)
    fleet.create("shop", pod("late", SPEC))
    held.release.set()
    reasons = [f"1 Pod has {ANOTHER} (1 proxyv2:1.26.2)"]
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


def test_it_is_interrupted(fleet, begin, pipeline):
    held = fleet.fault(method="PATCH", path="/deployments/", release=threading.Event())
    process = begin(fleet.kubeconfig)
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
