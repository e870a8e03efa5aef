"""New Pods without the sidecar: the run stops, and says what to do."""

from __future__ import annotations

import itertools
import shlex
import threading

import pytest
from cluster.manifests import container, pod_spec, replicated, workload
from support import (
    CONFIRM,
    DRIFTED,
    NEW,
    TEXT,
    a_workload,
    counts,
    messages,
    options_of,
    patched,
    printed_command,
)

pytestmark = pytest.mark.both


@pytest.mark.parametrize("options", [[], [DRIFTED], ["--max-failures=7"]])
def test_a_new_pod_without_the_sidecar_stops_the_run(drifted_fleet, run, options):
    drifted_fleet.injector.breaks_after = 3
    ended = run(drifted_fleet, CONFIRM, *options)
    later = dict.fromkeys([f"shop/{name}" for name in "cdefg"], "not_started")
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "lost_sidecar"} | later
    assert patched(drifted_fleet) == ["a", "b"]
    assert ended.code == 1
    healthy = "check what injects it"
    assert messages(ended)["b"] == f"1 of 2 new Pods has no sidecar; {healthy}"
    reason = "new Pods of Deployment shop/b have no sidecar"
    assert {messages(ended)[name] for name in "cdefg"} == {reason}
    assert f"{reason}: no new rollouts will start" in ended.stderr
    assert ended.summary["pods"] == counts(13, 3, 13, 3, lost=1)


def test_the_summary_names_the_cause_and_how_to_resume(drifted_fleet, run):
    drifted_fleet.injector.breaks_after = 3
    shown = run(drifted_fleet, TEXT, CONFIRM).stdout
    reason = "new Pods of Deployment shop/b have no sidecar"
    assert f"\nnot started:\n  {reason}:\n    Deployment shop/c, " in shown
    assert "\nPods: 3 of 14 updated and ready (10 not updated, 1 lost).\n" in shown
    *_, lost, repair, replace, first, resume, second, failed = shown.splitlines()
    assert failed == "Failed: 1 lost sidecar, 5 not started."
    assert lost == "New Pods of Deployment shop/b have no sidecar."
    assert (repair, replace, resume) == (
        "  1. Repair the injector.",
        "  2. Replace these Pods:",
        "  3. Resume:",
    )
    drifted_fleet.injector.breaks_after, drifted_fleet.injector.state = None, "works"
    for found in drifted_fleet.pods("shop", "b"):
        drifted_fleet.backdate(found, -10)  # the cutoff of this run does not exclude it
    done = run(drifted_fleet, *printed_command(first)[2:], "--log-format=json")
    assert done.outcomes == {"shop/b": "succeeded"}, done.skipped
    assert run(drifted_fleet, *printed_command(second)[2:], "--log-format=json").outcomes == {
        f"shop/{name}": "succeeded" for name in "cdefg"
    }


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_an_application_that_needs_its_sidecar_is_repaired(cluster, run, kind):
    """Its rollout is not complete, and cannot be without the sidecar."""
    spec = pod_spec(container("app", "needs-proxy:1"))
    parallel = {"podManagementPolicy": "Parallel"} if kind == "StatefulSet" else {}
    cluster.create("shop", workload(kind, "web", spec, replicas=3, **parallel))
    cluster.settle()
    for found in cluster.pods("shop"):
        cluster.backdate(found, 3600)
    cluster.injector.breaks_after = 0
    options = ["--include-statefulset", "--evict", DRIFTED]
    cluster.injector.container["image"] = NEW
    lost = run(cluster, TEXT, CONFIRM, *options, "--timeout=3s").stdout
    assert "1 lost sidecar" in lost
    again = run(cluster, CONFIRM, *options, "--timeout=3s")  # nothing would be better
    assert [r["outcome"] for r in again.of("result")] in ([], ["failed"], ["lost_sidecar"])
    cluster.injector.breaks_after, cluster.injector.state = None, "works"
    (command,) = [line for line in lost.splitlines() if "sidecar-rollout.py" in line][:1]
    done = run(cluster, *printed_command(command)[2:], "--log-format=json")
    assert done.outcomes == {"shop/web": "succeeded"}, done.skipped
    assert run(cluster, *options).planned == []


def test_a_bad_release_is_not_repaired(cluster, run):
    """Its new Pods are not ready for another reason than their sidecar."""
    cluster.create("shop", workload("Deployment", "web", replicas=2))
    cluster.settle()
    change = {"containers": [{"name": "app", "image": "neverready:1"}]}
    cluster.kubelet.ready_after = 600
    cluster.change("Deployment", "shop", "web", {"spec": {"template": {"spec": change}}})
    cluster.wait_for(lambda: len(cluster.pods("shop")) > 2)
    ended = run(cluster, CONFIRM)
    assert ended.outcomes == {}
    assert "its rollout is not complete" in ended.skipped["Deployment shop/web"]


def replacing_commands(tool, monkeypatch, lost: list[str], *words: str) -> list[list[str]]:
    """The commands that replace the Pods of workloads that have lost their sidecar."""
    monkeypatch.setattr(tool.sys, "argv", ["x.py", *words])
    monkeypatch.setattr(tool.sys, "orig_argv", ["python3", "x.py", *words])
    found = {}
    for text in lost:
        namespace, _, argument = text.partition("/")
        kind, _, name = argument.partition("/")
        ref = tool.ObjectRef(kind, namespace, name, "apps")
        found.setdefault(namespace, []).append(ref)
    options = tool.parse_args(words)
    return [
        shlex.split(tool.printed_command(words, options, "prod", refs)) for refs in found.values()
    ]


def test_the_command_that_replaces_pods_has_the_options_that_were_given(tool, monkeypatch):
    words = [
        *("--sidecar-container-name", "istio-*", "--exclude-annotation=team/restart=never"),
        *("-l", "tier in (a,b)", "--gate=sh -c true", "--annotation-prefix", "x", "--soak=1m"),
        *(
            "--timeout=9s",
            "--parallel-rollouts",
            "3",
            "--kubectl=/bin/kubectl",
            "--log-level=debug",
        ),
    ]
    gone = [
        *("-n", "shop", "-nbank", "--include-namespace=x", "--namespace", "y", "-A", "true"),
        *(
            "--max-rollouts",
            "2",
            "--only-started-before=2026-01-01",
            "--in-place",
            "deployment/web",
        ),
        *("--confirm", "true", "--only-drifted", "--skip-unhealthy", "sts/db"),
        *("--include-missing", "false", "--", "ds/agent"),
    ]
    lost = ["bank/StatefulSet/db", "shop/Deployment/web", "shop/Deployment/api"]
    bank, shop = replacing_commands(tool, monkeypatch, lost, *words, *gone)
    common = ["python3", "x.py", *words, "--confirm=true", "--only-drifted", "--include-missing"]
    assert bank == [
        *(*common, "statefulset/db", "--evict", "--include-namespace=bank", "--context=prod")
    ]
    assert shop == [
        *(*common, "deployment/web", "deployment/api"),
        *("--include-namespace=shop", "--context=prod"),
    ]
    for found in (bank, shop):  # it can be run
        assert tool.parse_args(found[2:]).confirm


def test_workloads_that_opted_out_are_not_replaced(drifted_fleet, run):
    """One command for each namespace, with all that was asked for."""
    drifted_fleet.namespace("bank", inject=True)
    drifted_fleet.create("bank", workload("Deployment", "a"))
    drifted_fleet.create("bank", workload("Deployment", "b"))
    note = {"metadata": {"annotations": {"team/restart": "never"}}}
    drifted_fleet.change("Deployment", "bank", "b", note)
    drifted_fleet.settle()
    drifted_fleet.injector.breaks_after = 0
    opt_out = "--exclude-annotation=team/restart=never"
    options = (opt_out, "--parallel-rollouts=2", "--annotation-prefix=team")
    shown = run(drifted_fleet, TEXT, CONFIRM, *options, "deployment/a", "deployment/b").stdout
    lines = shown.splitlines()
    following = lines[lines.index("  2. Replace these Pods:") + 1 :]
    commands = list(itertools.takewhile(lambda line: line.startswith("     "), following))
    drifted_fleet.injector.breaks_after, drifted_fleet.injector.state = None, "works"
    replaced = {}
    for command in commands:
        words = printed_command(command)[2:]
        assert {opt_out, "--annotation-prefix=team"} <= set(words)
        replaced |= run(drifted_fleet, *words, "--log-format=json").outcomes
    lost = {line.split()[-1][:-1] for line in lines if line.startswith("lost sidecar: ")}
    assert replaced == dict.fromkeys(lost, "succeeded")
    assert "bank/b" not in lost


def test_a_failed_rollout_whose_pods_have_no_sidecar_stops_the_run(drifted_fleet, run):
    drifted_fleet.injector.breaks_after = 0
    drifted_fleet.kubelet.ready_after = 60
    ended = run(drifted_fleet, CONFIRM, "--timeout=1s", "--max-failures=7")
    assert ended.outcomes["shop/a"] == "lost_sidecar"
    assert patched(drifted_fleet) == ["a"]
    assert "new Pods of Deployment shop/a have no sidecar" in messages(ended)["b"]


def test_with_allow_removal_it_goes_on(drifted_fleet, run):
    drifted_fleet.injector.state = "ignored"
    ended = run(drifted_fleet, CONFIRM, DRIFTED, "--allow-removal")
    assert (ended.code, set(ended.outcomes.values())) == (0, {"succeeded"})
    assert ended.summary["pods"]["lost"] == 0


def sidecars_of(tool, *names: str) -> tuple:
    return tuple(tool.Sidecar(name, "x:1", False) for name in names)


@pytest.mark.parametrize(
    ("given", "before", "after", "missing"),
    [
        (["x"], ["x"], ["x", "app"], []),
        (["x"], ["x"], ["app"], ["x"]),
        (["x", "y"], ["x", "y"], ["x"], ["y"]),
        (["x", "y"], ["x"], ["x"], []),  # it never had the other one
        (["x*"], ["x-old"], ["x-new"], ["x-old"]),  # another one is no replacement
        (["*-agent"], ["vault-agent", "otel-agent"], ["vault-agent"], ["otel-agent"]),
    ],
)
def test_which_sidecars_a_new_pod_lacks(tool, given, before, after, missing):
    planned = a_workload(tool, sidecars=sidecars_of(tool, *before))
    options = options_of(tool, sidecars=given)
    assert tool.missing_sidecars(planned, after, options) == missing
    planned.differences = tuple(tool.Difference((name,), {"name": name}, None) for name in before)
    allowed = options_of(tool, sidecars=given, allow_removal=True)
    assert tool.missing_sidecars(planned, after, allowed) == []
    planned.differences = ()  # the plan did not say so
    assert tool.missing_sidecars(planned, after, allowed) == missing


def test_pods_that_were_scaled_down_are_not_lost(cluster, start):
    cluster.create("shop", workload("Deployment", "web", replicas=4))
    cluster.settle()
    held = cluster.fault(path=r"pods\?.*labelSelector=app%3Dweb", release=threading.Event())
    running = start(cluster, CONFIRM)
    assert held.reached.wait(20)
    cluster.change("Deployment", "shop", "web", {"spec": {"replicas": 1}})
    cluster.wait_for(lambda: len(cluster.pods("shop")) == 1)
    held.release.set()
    ended = running.finish()
    assert ended.outcomes == {"shop/web": "succeeded"}
    assert ended.summary["pods"]["lost"] == 0


@pytest.mark.embedded("a custom resource that owns Pods")
def test_no_command_is_printed_that_cannot_replace_the_pods(cluster, run):
    """The Pod template of a custom resource cannot be read, so that nothing tells what is lost."""
    cluster.create("shop", replicated("CloneSet", "clones", replicas=2))
    cluster.settle()
    cluster.injector.breaks_after = 0
    shown = run(cluster, TEXT, CONFIRM, "--evict").stdout
    text = "  2. Replace these Pods:\n     delete new Pods of CloneSet shop/clones manually, one at a time\n"
    assert text in shown
    assert "--include-missing" not in shown
