"""How differences are shown: grouped, shortened to the terminal, and complete in JSON."""

from __future__ import annotations

import pytest
from cluster.manifests import workload
from support import BOTH, DRIFTED, TEXT

pytestmark = pytest.mark.both


def test_workloads_are_grouped_by_what_differs_the_largest_group_first(mesh, run):
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    mesh.create("shop", workload("Deployment", "newer"))
    mesh.settle()
    mesh.injector.container |= {
        "image": "docker.io/istio/proxyv2:1.28.0",
        "args": ["proxy", "--log=info"],
    }
    shown = run(mesh, DRIFTED, *BOTH, TEXT).stdout
    groups = shown.split("with these differences:\n")
    assert groups[0].endswith("\n4 workloads ")
    assert groups[1].endswith("1 workload ")
    assert groups[1].startswith(
        "  istio-proxy  args  sidecar -> <none>\n"
        "  istio-proxy  args  <none> -> --log=info\n"
        "  istio-proxy  image  docker.io/istio/proxyv2:1.26.2 -> 1.28.0\n"
        "\n  #  NAMESPACE "
    )
    assert "istio-proxy  image  docker.io/istio/proxyv2:1.27.0 -> 1.28.0\n" in groups[2]
    rows = [line.split()[:3] for line in groups[1].splitlines()[5:9]]
    names = ["deployment/native", "statefulset/db", "daemonset/agent", "deployment/web"]
    assert rows == [
        [number, "shop", name] for number, name in zip("2345", names, strict=True)
    ]  # 1 is newer


def test_long_values_are_shortened_in_text_alone(mesh, run):
    mesh.injector.container["env"] = [{"name": "LONG", "value": "x" * 500}]
    shown = run(mesh, DRIFTED, TEXT).stdout
    assert f"  istio-proxy  env LONG  <none> -> {'x' * 57}...\n" in shown
    whole = run(mesh, DRIFTED).of("drift")[0]["differences"]
    assert {"path": ["istio-proxy", "env", "LONG"], "current": None, "expected": "x" * 500} in whole


def test_json_says_all_of_a_verdict(mesh, run):
    mesh.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    ended = run(mesh, DRIFTED, "--exclude-deployment", "--include-daemonset")
    assert ended.of("drift") == [
        {
            "record": "drift",
            "kind": "DaemonSet",
            "namespace": "shop",
            "name": "agent",
            "verdict": "drifted",
            "differences": [
                {
                    "path": ["istio-proxy", "image"],
                    "current": "docker.io/istio/proxyv2:1.26.2",
                    "expected": "docker.io/istio/proxyv2:1.27.0",
                }
            ],
            "ignored": [],
            "other_changes": [],
            "message": "",
        }
    ]
    assert ended.summary["verdicts"] == {"drifted": 1}
