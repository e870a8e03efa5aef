"""How differences are shown: grouped, shortened to the terminal, and complete in JSON."""

from __future__ import annotations

import re

import pytest
from clusters.embedded.manifests import workload
from support import BOTH, DRIFTED, TEXT

pytestmark = pytest.mark.both


def test_workloads_that_differ_in_the_same_way_have_the_same_letter(every_kind, run):
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    every_kind.create("shop", workload("Deployment", "newer"))
    every_kind.settle()
    every_kind.injector.container |= {
        "image": "docker.io/istio/proxyv2:1.28.0",
        "args": ["proxy", "--log=info"],
    }
    shown = run(every_kind, DRIFTED, *BOTH, TEXT).stdout
    assert shown.partition("Differences between running Pods and new ones:\n")[2].startswith(
        "  a  1 workload:\n"
        "     istio-proxy  image  docker.io/istio/proxyv2:1.27.0 -> 1.28.0\n"
        "     istio-proxy  args changed\n"
        "  b  4 workloads:\n"
        "     istio-proxy  image  docker.io/istio/proxyv2:1.26.2 -> 1.28.0\n"
        "     istio-proxy  args changed\n"
        "\n#  NAMESPACE "
    )
    rows = [line.split() for line in shown.splitlines() if re.match(r"\d  shop", line)]
    names = "newer", "native", "db", "agent", "web"
    assert [row[0] for row in rows] == list("12345")
    assert [row[2].partition("/")[2] for row in rows] == list(names)
    assert [row[6] for row in rows] == list("abbbb")


def test_no_more_than_five_differences_are_shown_without_debug(every_kind, run):
    every_kind.injector.container["env"] = [{"name": f"X{n}", "value": "1"} for n in range(7)]
    shown = run(every_kind, DRIFTED, TEXT).stdout
    assert "env X1 added\n     and 5 more\n" in shown
    assert "env X6 added\n" in run(every_kind, DRIFTED, TEXT, "--log-level=debug").stdout


def test_values_are_shown_whole_on_request(every_kind, run):
    every_kind.injector.container["env"] = [{"name": "LONG", "value": "x" * 500}]
    shown = run(every_kind, DRIFTED, TEXT, "--show-values").stdout
    assert f"\n     istio-proxy  env LONG  <none> -> {'x' * 500}\n" in shown
    whole = run(every_kind, DRIFTED, "--show-values").of("drift")[0]["differences"]
    assert {"path": ["istio-proxy", "env", "LONG"], "current": None, "expected": "x" * 500} in whole


def test_json_says_all_of_a_verdict(every_kind, run):
    every_kind.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    ended = run(every_kind, DRIFTED, "--exclude-deployment", "--include-daemonset")
    (found,) = [r for r in ended.of("drift") if r["kind"] == "DaemonSet"]
    assert found == {
        "record": "drift",
        "kind": "DaemonSet",
        "namespace": "shop",
        "name": "agent",
        "group": "apps",
        "verdict": "drifted",
        "differences": [
            {
                "path": ["istio-proxy", "image"],
                "current": "docker.io/istio/proxyv2:1.26.2",
                "expected": "docker.io/istio/proxyv2:1.27.0",
            }
        ],
        "ignored": [],
        "message": "",
    }
    others = len(ended.of("drift")) - 1  # which are not selected
    assert ended.summary["verdicts"] == {"drifted": 1 + others}
    assert len([r for r in ended.of("skip") if r["code"] == "kind_not_selected"]) == others > 0
