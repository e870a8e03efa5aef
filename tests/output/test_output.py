"""What a person and a program see: tables, JSON lines, the progress line, colors, streams."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime, timezone

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, workload
from support import (
    CONFIRM,
    NO_CUTOFF,
    SCRIPT,
    TEXT,
    Terminal,
    command,
    counts,
    options_of,
    printed_command,
    unchecked,
)
from texts import DRY_RUN, UPDATED_AND_READY


def test_the_plan_is_a_table_with_the_skipped_and_the_totals_below(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=3))
    cluster.create("shop", workload("Deployment", "api", strategy={"type": "Recreate"}))
    cluster.create("shop", workload("Deployment", "paused"))
    cluster.create("shop", workload("StatefulSet", "db"))
    cluster.create("shop", pod("shell"))
    cluster.create("shop", pod("shell-2"))
    cluster.settle()
    cluster.change("Deployment", "shop", "paused", {"spec": {"paused": True}})
    ended = run(cluster, TEXT)
    lines = ended.stdout.splitlines()
    assert lines[:-1] == [
        f"Context embedded ({cluster.url}) as admin",
        "",
        "#  NAMESPACE  WORKLOAD        PODS  VERSION  NOTES",
        "1  shop       deployment/web  3     1.26.2   no Service",
        "2  shop       deployment/api  1     1.26.2   no Service; downtime",
        "",
        "Not rolled out:",
        "  not selected; add --include-statefulset:",
        "    StatefulSet shop/db",
        "  paused; run `kubectl rollout resume` first, or use --evict:",
        "    Deployment shop/paused",
        "  not managed by a controller; delete and recreate it manually:",
        "    Pod shop/shell, shop/shell-2",
        "",
        "SIDECAR      VERSION  PODS",
        "istio-proxy  1.26.2   8",
        "",
        "To roll out: 2 workloads with 4 Pods.",
        "Every workload with the sidecar is in the plan, as nothing was compared; use "
        "--only-drifted to compare first.",
        "This takes about 2m if each takes 1 minute.",
        "Not rolled out: 2 workloads and 2 Pods.",
        "",
        DRY_RUN,
        "To apply, run:",
    ]
    assert max(map(len, lines[:18])) <= 80


def test_what_somebody_must_do_comes_first_in_the_list(cluster, run):
    on_delete = {"updateStrategy": {"type": "OnDelete"}}
    cluster.create("shop", workload("StatefulSet", "db", **on_delete))
    cluster.create("shop", workload("DaemonSet", "agent"))
    cluster.create("shop", pod("shell"))
    cluster.settle()
    ended = run(cluster, TEXT, "--include-statefulset")
    listed = re.findall("^    (\\w+) shop/", ended.stdout, re.MULTILINE)
    assert listed == ["DaemonSet", "StatefulSet", "Pod"]


def test_the_dry_run_ends_with_the_whole_command_to_copy(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    ended = run(cluster, TEXT, "--rollout-reason=CVE 1", "--confirm=false")
    *_, hint, copied = ended.stdout.splitlines()
    assert hint == "To apply, run:"
    words = printed_command(copied)
    script, *options = words[1:]
    assert script == str(SCRIPT)
    assert "--rollout-reason=CVE 1" in options
    assert options.index("--confirm=false") < options.index("--confirm=true")  # the last counts
    assert re.fullmatch(r"--only-started-before=20\d\d-\S+Z", options[-2])
    assert options[-1] == "--context=embedded"
    environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig}
    applied = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert applied.returncode == 0
    totals = rf"1 workload in \d+s: 1 succeeded\.\nPods: 1 of 1{UPDATED_AND_READY}\.\n"
    assert re.search(totals, applied.stdout)


@pytest.mark.parametrize(
    ("given_options", "applied"),
    [
        ("", "--confirm=true"),
        ("--confirm=no --only-drifted", "--confirm=no --only-drifted --confirm=true"),
        ("--confirm=true --max-rollouts=2", "--confirm=true --max-rollouts=2"),
        ("-- deployment/web", "deployment/web --confirm=true"),
    ],
)
def test_the_command_to_apply(tool, monkeypatch, given_options, applied):
    moment = datetime(2026, 5, 1, 13, tzinfo=timezone.utc)
    words = given_options.split()
    monkeypatch.setattr(sys, "orig_argv", ["python3", "x.py", *words])
    cutoff = "--only-started-before=2026-05-01T13:00:00Z"
    confirm = given_options.startswith("--confirm=true")
    options = options_of(tool, cutoff=moment, confirm=confirm)
    found = tool.next_command(words, options, "test")
    assert " ".join(found) == f"python3 x.py {applied} {cutoff} --context=test"
    fixed = [*words, "--only-started-before", "2026-01-01", "--context", "x"]
    found = tool.next_command(fixed, options, "test")
    assert cutoff not in found
    assert "--context=test" not in found
    in_cluster = tool.next_command(words, options, "")
    assert "--context" not in in_cluster
    options = options_of(tool, cutoff=NO_CUTOFF, confirm=confirm)  # with --only-drifted
    assert cutoff not in tool.next_command(words, options, "")


def test_the_summary_has_each_that_did_not_succeed_with_the_next_command_then_counts(cluster, run):
    for name in ("a", "b", "c"):
        cluster.create("shop", workload("Deployment", name))
    cluster.create("shop", {"kind": "ServiceAccount", "metadata": {"name": "d"}})
    spec = pod_spec(container("app"), serviceAccountName="d")
    cluster.create("shop", workload("Deployment", "d", spec, progressDeadlineSeconds=1))
    cluster.settle()
    cluster.delete("ServiceAccount", "shop", "d")
    cluster.fault(method="PATCH", path="deployments/b", status=422, body={"message": "no"})
    ended = run(unchecked(cluster), TEXT, CONFIRM)
    _, _, summary = ended.stdout.partition("compare first.\n\n")
    flags = "--namespace shop --context embedded"
    header, census, empty, *failures, counts, pods, last = summary.splitlines()
    assert last == "Failed: 2 failed (shop/b, shop/d)."
    assert (header, census, empty) == ("SIDECAR      VERSION  PODS", "istio-proxy  1.26.2   4", "")
    assert failures[:5] == [
        "failed: Deployment shop/b:",
        "  422 no",
        f"  kubectl describe deployment/b {flags}",
        "",
        "failed: Deployment shop/d:",
    ]
    assert failures[5].startswith('  error: deployment "d" exceeded its progress deadline; ')
    assert failures[-2:] == [f"  kubectl describe deployment/d {flags}", ""]
    assert re.fullmatch(r"4 workloads in \d+s: 2 succeeded, 2 failed\.", counts)
    assert pods == f"Pods: 2 of 3{UPDATED_AND_READY} (1 not updated)."


def test_json_is_one_object_a_line_on_both_streams(cluster, run, version):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.create("shop", pod("shell"))
    cluster.settle()
    ended = run(cluster, CONFIRM)
    assert [r["record"] for r in ended.records] == ["plan", "skip", "result", "summary"]
    plan, skip, result, summary = ended.records
    assert plan == {
        "record": "plan",
        "position": 1,
        "selected": True,
        "kind": "Deployment",
        "namespace": "shop",
        "name": "web",
        "group": "apps",
        "uid": cluster.get("Deployment", "shop", "web")["metadata"]["uid"],
        "started_before": summary["started_before"],
        "sidecar_hash": "",
        "template_hash": plan["template_hash"],
        "pods": {"total": 1, "replaced": 1, "old": 1},
        "differences": [],
        "sidecars": [
            {
                "name": "istio-proxy",
                "image": "docker.io/istio/proxyv2:1.26.2",
                "native": False,
                "init": False,
            }
        ],
        "oldest_pod": plan["oldest_pod"],
        "state": "no_service",
        "unhealthy_reason": "",
        "downtime": False,
        "services": [],
        "method": "restart",
        "controlled_by": "",
    }
    assert skip == {
        "record": "skip",
        "kind": "Pod",
        "namespace": "shop",
        "name": "shell",
        "group": "",
        "code": "without_controller",
        "message": "not managed by a controller; delete and recreate it manually",
        "of_an_earlier_run": False,
    }
    assert result == {
        "record": "result",
        "kind": "Deployment",
        "namespace": "shop",
        "name": "web",
        "group": "apps",
        "outcome": "succeeded",
        "code": "",
        "method": "restart",
        "time": result["time"],
        "seconds": result["seconds"],
        "message": "",
        "command": [],
        "pods": counts(1, 1, 1),
        "unhealthy_before": "",
        "sidecar_hash": result["sidecar_hash"],
    }
    assert result["sidecar_hash"] == ""  # nothing was compared
    assert summary == {
        "record": "summary",
        "version": version,
        "context": "embedded",
        "user": "admin",
        "server": cluster.url,
        "dry_run": False,
        "started_before": summary["started_before"],
        "outcomes": {"succeeded": 1},
        "verdicts": {},
        "pods": counts(1, 1, 1),
        "sidecars": [
            {
                "name": "istio-proxy",
                "image": "docker.io/istio/proxyv2:1.26.2",
                "pods": 2,
                "up_to_date": 1,
                "old": 0,
                "left": {"without_controller": 1},
            }
        ],
        "leftovers": [],
        "planned": 1,
        "not_injected": 0,
        "not_up_to_date": {},
        "seconds": summary["seconds"],
        "command": [],
        "commands": [],
        "gate": None,
        "namespaces": None,
        "injector": "",
        "expected": None,
        "exit_code": 0,
        "failed": {},
    }
    assert all(
        re.fullmatch(r"[\d-]+T[\d:]+Z", text)
        for text in (plan["oldest_pod"], result["time"], summary["started_before"])
    )
    for line in map(json.loads, ended.stderr.splitlines()):
        assert {"time", "level", "message"} <= line.keys()
        age = datetime.now(timezone.utc) - datetime.strptime(line["time"], "%Y-%m-%dT%H:%M:%S%z")
        assert line["time"].endswith("Z")
        assert abs(age.total_seconds()) < 60


def test_the_log_at_info_has_a_line_for_each_rollout_and_none_of_kubectls(cluster, run):
    for number in range(8):
        cluster.create("shop", workload("Deployment", f"web-{number}"))
    cluster.settle()
    ended = run(cluster, TEXT, CONFIRM, "--parallel-rollouts=4")
    scanning, *results = ended.stderr.splitlines()
    assert "scanning for Pods" in scanning
    assert len(results) == 8
    assert all("rollout succeeded" in line for line in results)
    assert all(re.match(r"\d\d:\d\d:\d\dZ INFO    Deployment shop/web-", line) for line in results)


def test_the_summary_is_not_on_standard_error(web_and_api):
    seen = Terminal(web_and_api, CONFIRM)
    assert "2 succeeded" in seen.stdout
    assert "2 succeeded" not in seen.text


def test_colors_on_a_terminal_unless_no_color_is_set(web_and_api):
    web_and_api.fault(
        method="PATCH", times=9, path="deployments/", status=422, body={"message": "no"}
    )
    assert "\x1b[31mERROR\x1b[0m  " in Terminal(web_and_api, CONFIRM).text
    assert "\x1b[3" not in Terminal(web_and_api, CONFIRM, NO_COLOR="1").text


def test_a_reader_that_goes_away_does_not_stop_the_rollouts(web_and_api, tmp_path):
    words, environment = command(web_and_api.kubeconfig, TEXT, CONFIRM)
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        words, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr
    assert ended.stderr.count("rollout succeeded") == 2


def test_what_the_cluster_says_cannot_steer_the_terminal(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    evil = "no\x1b[2J\nrollout succeeded\x07"
    cluster.fault(method="PATCH", times=2, status=422, body={"message": evil})
    for ended in (run(cluster, TEXT, CONFIRM), run(cluster, TEXT, CONFIRM)):
        assert "\x1b" not in ended.stdout + ended.stderr
        assert "\x07" not in ended.stdout + ended.stderr
        assert r"no\x1b[2J\nrollout succeeded\x07" in ended.stdout


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("docker.io/istio/proxyv2:1.26.2", "1.26.2"),
        ("localhost:5000/proxy", "latest"),
        ("localhost:5000/proxy:2", "2"),
        ("proxy@sha256:0123456789abcdef0123", "sha256:0123456789ab"),
        ("proxy:1@sha256:0123456789abcdef", "1"),
    ],
)
def test_image_tags(cluster, run, image, tag):
    cluster.create("default", pod("x", pod_spec(container("app"), container("istio-proxy", image))))
    cluster.settle()
    (header, row, *_) = run(cluster, TEXT).stdout.partition("SIDECAR ")[2].splitlines()
    assert row.split()[:2] == ["istio-proxy", tag]


def test_containers_are_named_only_if_several_were_requested(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.settle()
    plan = run(cluster, TEXT).stdout.partition("\n\nSIDECAR ")[0]
    assert "deployment/web" in plan and "istio-proxy" not in plan
    for options in (
        ["--sidecar-container-name=istio-*"],
        ["--sidecar-container-name=istio-proxy", "--sidecar-container-name=x*"],
    ):
        assert "istio-proxy 1.26.2" in run(cluster, TEXT, *options).stdout


def test_a_wide_table_at_two_widths(cluster, run):
    """Names are never cut: they are there to be copied."""
    cluster.create("shop", workload("Deployment", "a" * 60, pod_spec(container("app"))))
    cluster.settle()
    for columns in ("80", "200"):
        assert "a" * 60 in run(cluster, TEXT, COLUMNS=columns).stdout


def test_ages_count_from_the_oldest_pod(cluster, run):
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    cluster.backdate(cluster.pods("shop", "web")[1], 7200)
    oldest = datetime.strptime(run(cluster).of("plan")[0]["oldest_pod"], "%Y-%m-%dT%H:%M:%S%z")
    assert 7190 < (datetime.now(timezone.utc) - oldest).total_seconds() < 7300
