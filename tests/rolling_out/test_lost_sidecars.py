"""New Pods without the sidecar: the run stops, and says what to do."""

from __future__ import annotations

import threading

import pytest
from cluster.manifests import container, pod_spec, workload
from support import (
    CONFIRM,
    DRIFTED,
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
def test_a_new_pod_without_the_sidecar_stops_the_run(outdated, run, options):
    outdated.injector.breaks_after = 3
    ended = run(outdated, CONFIRM, *options)
    later = dict.fromkeys([f"shop/{name}" for name in "cdefg"], "not_started")
    assert ended.outcomes == {"shop/a": "succeeded", "shop/b": "lost_sidecar"} | later
    assert patched(outdated) == ["a", "b"]
    assert ended.code == 1
    healthy = "check that the injector is healthy"
    assert messages(ended)["b"] == f"1 of 2 new Pods has no sidecar; {healthy}"
    reason = "new Pods of Deployment shop/b have no sidecar"
    assert {messages(ended)[name] for name in "cdefg"} == {reason}
    assert f"{reason}: no new rollouts will start" in ended.stderr
    assert ended.summary["pods"] == counts(13, 3, 13, 3, lost=1)


def test_the_summary_names_the_cause_and_how_to_resume(outdated, run):
    outdated.injector.breaks_after = 3
    shown = run(outdated, TEXT, CONFIRM).stdout
    reason = "new Pods of Deployment shop/b have no sidecar"
    assert f"\nnot started:\n  {reason}:\n    Deployment shop/c, " in shown
    assert "\nPods: 3 of 14 updated and ready (10 not updated, 1 lost).\n" in shown
    *_, lost, repair, replace, first, resume, second = shown.splitlines()
    assert lost == "New Pods of Deployment shop/b have no sidecar."
    assert (repair, replace, resume) == (
        "  1. Repair the injector.",
        "  2. Replace these Pods:",
        "  3. Resume:",
    )
    outdated.injector.breaks_after, outdated.injector.state = None, "works"
    for found in outdated.pods("shop", "b"):
        outdated.backdate(found, -10)  # the cutoff of this run does not exclude it
    done = run(outdated, *printed_command(first)[2:])
    assert done.outcomes == {"shop/b": "succeeded"}, done.skipped
    assert run(outdated, *printed_command(second)[2:], "--log-format=json").outcomes == {
        f"shop/{name}": "succeeded" for name in "cdefg"
    }


def test_a_failed_rollout_whose_pods_have_no_sidecar_stops_the_run(outdated, run):
    outdated.injector.breaks_after = 0
    outdated.kubelet.ready_after = 60
    ended = run(outdated, CONFIRM, "--timeout=1s", "--max-failures=7")
    assert ended.outcomes["shop/a"] == "lost_sidecar"
    assert patched(outdated) == ["a"]
    assert "new Pods of Deployment shop/a have no sidecar" in messages(ended)["b"]


def test_with_allow_removal_it_goes_on(outdated, run):
    outdated.injector.state = "ignored"
    ended = run(outdated, CONFIRM, DRIFTED, "--allow-removal")
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
        (["x*"], ["x-old"], ["x-new"], []),  # renamed
    ],
)
def test_which_sidecars_a_new_pod_lacks(tool, given, before, after, missing):
    planned = a_workload(tool, sidecars=sidecars_of(tool, *before))
    pod = {"spec": pod_spec(*map(container, after))}
    options = options_of(tool, sidecars=given)
    assert tool.missing_sidecars(planned, pod, options) == missing
    planned.differences = tuple(tool.Difference((name,), {"name": name}, None) for name in before)
    allowed = options_of(tool, sidecars=given, allow_removal=True)
    assert tool.missing_sidecars(planned, pod, allowed) == []
    planned.differences = ()  # the plan did not say so
    assert tool.missing_sidecars(planned, pod, allowed) == missing


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
