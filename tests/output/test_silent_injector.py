"""An injector that is down is one headline, and nothing starts."""

from __future__ import annotations

import json

import pytest
from clusters.embedded.manifests import container, pod_spec, workload
from support import CONFIRM, DRIFTED, TEXT, patched

AUDIT = (DRIFTED, "--fail-on-drift")


@pytest.fixture
def three(cluster):
    for name in "abc":
        cluster.create("shop", workload("Deployment", name))
    cluster.settle()
    cluster.injector.state = "ignored"
    return cluster


def is_first(found: dict) -> bool:
    return found["metadata"].get("generateName", "").startswith("a-")


SAID = "no dry run returned istio-proxy (0 of 3): the injector is down or not selected"


def test_it_is_the_last_line_before_the_totals(three, run):
    ended = run(three, DRIFTED, TEXT)
    lines = ended.stdout.splitlines()
    totals = next(n for n, line in enumerate(lines) if line.startswith("Nothing to roll out"))
    assert lines[totals - 1] == f"Warning: {SAID}"
    assert "--allow-removal" not in ended.stdout
    assert run(three, DRIFTED).summary["injector"] == SAID


def test_nothing_starts(three, run):
    ended = run(three, DRIFTED, CONFIRM)
    assert ended.code == 3
    assert ended.records[-1]["error"] == SAID
    assert json.loads(ended.stderr.splitlines()[-1])["message"] == f"{SAID} (nothing was changed)"
    text = run(three, DRIFTED, CONFIRM, TEXT)
    assert text.stderr.splitlines()[-1] == f"error: {SAID} (nothing was changed)"
    assert patched(three) == []


def test_it_is_no_drift_and_no_success(three, run):
    ended = run(three, *AUDIT)
    assert (ended.code, ended.summary["failed"]) == (1, {"injector_down": 1})
    assert ended.summary["not_up_to_date"] == {}
    assert run(three, *AUDIT, TEXT).stdout.endswith("\nFailed: 1 injector down.\n")


def test_with_leave_to_remove_it_is_said_nowhere(three, run):
    ended = run(three, DRIFTED, CONFIRM, "--allow-removal")
    assert set(ended.outcomes.values()) == {"succeeded"}
    assert ended.summary["injector"] == ""


def test_one_that_answers_one_of_them_is_there(three, run):
    """One whose Pod template states the sidecar says nothing about the injector."""
    own = pod_spec(container("app"), container("istio-proxy", "istio/proxyv2:1"))
    three.create("shop", workload("Deployment", "own", own))
    three.settle()
    assert run(three, DRIFTED).summary["injector"] == SAID
    three.injector.state = "works"
    three.injector.inject, inject = lambda pod: is_first(pod) and inject(pod), three.injector.inject
    assert run(three, DRIFTED).summary["injector"] == ""


def test_two_workloads_may_have_turned_it_off(three, run):
    three.delete("Deployment", "shop", "c")
    three.wait_for(lambda: not three.pods("shop", "c"))
    ended = run(three, *AUDIT)
    assert ended.summary["injector"] == ""
    assert ended.summary["not_up_to_date"] == {"losing_sidecar": 2}
    assert run(three, DRIFTED, CONFIRM).code == 0
