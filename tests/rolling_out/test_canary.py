"""--max-rollouts and --parallel-rollouts: how much of the plan is rolled out, and how to resume."""

from __future__ import annotations

import threading

import pytest
from clusters.embedded.manifests import workload
from support import CONFIRM, TEXT, began_after, cutoff, patched, printed_command

pytestmark = pytest.mark.both


@pytest.mark.parametrize(
    ("limit", "count"), [("2", 2), ("99", 6), ("1%", 1), ("50%", 3), ("51%", 4), ("100%", 6)]
)
def test_a_canary_is_the_first_of_the_plan(deployments_a_to_f, run, limit, count):
    ended = run(deployments_a_to_f, CONFIRM, f"--max-rollouts={limit}", "--parallel-rollouts=6")
    assert ended.code == 0
    assert [name for name, outcome in ended.outcomes.items() if outcome == "succeeded"]
    assert len(ended.outcomes) == 6
    assert sorted(patched(deployments_a_to_f)) == list("abcdef")[:count]
    beyond = {r["name"]: r["message"] for r in ended.of("result") if r["outcome"] == "not_started"}
    assert beyond == dict.fromkeys("abcdef"[count:], "not selected by --max-rollouts")


def test_a_dry_run_tells_how_far_a_canary_goes(deployments_a_to_f, run):
    text = run(deployments_a_to_f, TEXT, "--max-rollouts=25%").stdout
    total = "To roll out: 2 of 6 workloads (--max-rollouts) with 2 Pods."
    assert f"\n{total}\nEvery workload with the sidecar is in the plan, as" in text
    rows = [line.split()[2] for line in text.splitlines()[3:5]]
    assert rows == ["deployment/a", "deployment/b"]
    assert "\nand 4 more, left by --max-rollouts\n" in text
    deployments_a_to_f.injector.container["image"] = "docker.io/istio/proxyv2:1.27.0"
    drifted = run(deployments_a_to_f, TEXT, "--max-rollouts=25%", "--only-drifted").stdout
    rows = [line.split() for line in drifted.splitlines() if " deployment/" in line]
    assert [row[0] for row in rows] == ["1", "2"]
    assert (
        "max-rollouts"
        not in run(deployments_a_to_f, TEXT, "--max-rollouts=6").stdout.split("To apply")[0]
    )
    records = run(deployments_a_to_f, "--max-rollouts=25%").of("plan")
    assert [(r["position"], r["selected"]) for r in records] == [(n, n <= 2) for n in range(1, 7)]


def test_the_command_to_resume_is_the_last_line_where_something_was_left_out(
    deployments_a_to_f, run
):
    for found in deployments_a_to_f.pods("shop"):
        deployments_a_to_f.backdate(found, 3600)
    canary = run(deployments_a_to_f, TEXT, CONFIRM, "--max-rollouts=1")
    *_, hint, command = canary.stdout.splitlines()
    assert hint == "To resume, run:"
    options = [
        word for word in printed_command(command)[2:] if not word.startswith("--max-rollouts")
    ]
    rest = run(deployments_a_to_f, *options).stdout
    assert "5 succeeded." in rest
    assert "To resume" not in rest
    assert "To resume" not in run(deployments_a_to_f, *options).stdout


def test_what_max_rollouts_leaves_is_a_number(cluster, run):
    for number in range(13):
        cluster.create("shop", workload("Deployment", f"web-{number:02}"))
    cluster.settle()
    ended = run(cluster, TEXT, CONFIRM, "--max-rollouts=1")
    assert "1 succeeded; 12 left by --max-rollouts.\n" in ended.stdout
    assert "not started" not in ended.stdout + ended.stderr
    all_of_them = run(cluster, TEXT, CONFIRM, "--max-rollouts=1", "--log-level=debug")
    assert all_of_them.stderr.count("rollout not started") == 12
    assert "more (use" not in all_of_them.stdout


def test_after_the_canary_the_same_command_resumes_where_it_ended(deployments_a_to_f, run):
    for found in deployments_a_to_f.pods("shop"):
        deployments_a_to_f.backdate(found, 3600)
    cut_off = cutoff()
    run(deployments_a_to_f, CONFIRM, cut_off, "--max-rollouts=2")
    rest = run(deployments_a_to_f, CONFIRM, cut_off)
    assert rest.planned == [f"shop/{name}" for name in "cdef"]
    assert patched(deployments_a_to_f) == list("abcdef")


@pytest.mark.parametrize(("amount", "workers"), [("50%", 3), ("40%", 2), ("1%", 1), ("100%", 5)])
def test_parallel_rollouts_as_a_percentage_of_the_plan(deployments_a_to_f, start, amount, workers):
    gate = threading.Event()
    first = threading.Event()
    held = [  # the first one runs alone
        deployments_a_to_f.fault(
            method="PATCH", path=f"deployments/{name}", release=first if name == "b" else gate
        )
        for name in "bcdef"
    ]
    running = start(deployments_a_to_f, CONFIRM, f"--parallel-rollouts={amount}")
    assert all(fault.reached.wait(20) for fault in held[:workers])
    first.set()
    assert all(fault.reached.wait(60) for fault in held[: workers + 1])
    gate.set()
    assert running.finish().summary["outcomes"] == {"succeeded": 6}
    if workers < 5:
        assert began_after(deployments_a_to_f, "bcdef"[workers], "b")
