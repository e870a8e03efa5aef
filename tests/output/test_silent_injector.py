"""An injector that is down is one headline, and nothing starts."""

from __future__ import annotations

import json
import threading

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


TROUBLE = {
    "ignored": SAID,
    "fails": (
        'no dry run returned istio-proxy (0 of 3): 500 Internal error occurred: failed calling webhook "'
        'inject.sidecar.example": failed to call webhook: an error on the server ("sick") has prevented '
        "the request from succeeding"
    ),
    "denies": (
        'no dry run returned istio-proxy (0 of 3): 403 admission webhook "inject.sidecar.example" denied '
        "the request: injector says no"
    ),
}


@pytest.mark.parametrize("state", TROUBLE)
def test_nothing_starts(three, run, state):
    """Whatever the dry runs return in place of the sidecar; failurePolicy Fail is what people have."""
    said = TROUBLE[state]
    three.injector.state = state
    ended = run(three, DRIFTED, CONFIRM)
    assert ended.code == 3
    assert ended.records[-1]["error"] == said
    assert json.loads(ended.stderr.splitlines()[-1])["message"] == f"{said} (nothing was changed)"
    text = run(three, DRIFTED, CONFIRM, TEXT)
    assert text.stderr.splitlines()[-1] == f"error: {said} (nothing was changed)"
    assert patched(three) == []
    audit = run(three, *AUDIT)
    assert (audit.code, audit.summary["failed"]["injector_down"]) == (1, 1)
    assert audit.summary["injector"] == said


def answers_by_name(cluster, states: dict[str, str]) -> None:
    """The injector is in another state for some Deployments."""
    call = type(cluster.injector).__call__
    one_at_a_time = threading.Lock()

    class ByName(type(cluster.injector)):
        def __call__(self, pod, namespace, dry_run) -> None:
            name = pod["metadata"].get("generateName", "").partition("-")[0]
            with one_at_a_time:
                self.state = states.get(name, "works")
                call(self, pod, namespace, dry_run)

    cluster.injector.__class__ = ByName


def test_what_most_dry_runs_returned_is_said(three, run):
    states = {"a": "ignored", "b": "denies", "c": "denies"}
    answers_by_name(three, states)
    assert run(three, DRIFTED).summary["injector"] == TROUBLE["denies"]
    states["c"] = "ignored"
    assert run(three, DRIFTED).summary["injector"] == SAID


@pytest.mark.parametrize(
    ("states", "is_down"),
    [
        ({"a": "fails", "b": "fails"}, True),
        ({"a": "fails", "b": "denies"}, False),  # a rejection is an answer
        ({"a": "fails", "b": "ignored"}, False),
        ({"a": "denies", "b": "denies"}, False),
    ],
)
def test_of_two_workloads_it_is_down_if_neither_had_an_answer(three, run, states, is_down):
    three.delete("Deployment", "shop", "c")
    three.wait_for(lambda: not three.pods("shop", "c"))
    answers_by_name(three, states)
    ended = run(three, DRIFTED, CONFIRM)
    assert ended.code == (3 if is_down else 0)
    assert bool(run(three, DRIFTED).summary["injector"]) is is_down


def test_one_of_several_that_is_missing_is_a_warning(three, run):
    """The workloads that have it are left alone, and the others go on."""
    three.injector.state = "works"
    three.injector.also = {"containers": [container("vault-agent", "vault:1")]}
    for name in "def":
        three.create("shop", workload("Deployment", name))
    three.settle()
    three.injector.also = {}
    three.injector.container["image"] = "istio/proxyv2:2"
    names = [f"--sidecar-container-name={name}" for name in ("istio-proxy", "vault-agent")]
    said = "no dry run returned vault-agent (0 of 3): the injector is down or not selected"
    ended = run(three, DRIFTED, CONFIRM, *names)
    assert (ended.code, ended.summary["injector"]) == (0, said)
    assert ended.outcomes == dict.fromkeys(("shop/a", "shop/b", "shop/c"), "succeeded")
    left = dict.fromkeys((f"Deployment shop/{name}" for name in "def"), "losing_sidecar")
    assert ended.skipped == left
    assert f"\nWarning: {said}\n" in run(three, DRIFTED, TEXT, *names).stdout
    audit = run(three, *AUDIT, *names)
    assert audit.summary["failed"] == {"not_up_to_date": 3}


def test_gateways_that_are_filled_in_show_that_it_is_there(cluster, run):
    """They state the sidecar, with the image that the injector replaces."""
    cluster.namespace("apps", inject=True)
    inject = cluster.injector.inject

    def fill_in(found: dict) -> None:
        for row in found["spec"]["containers"]:
            if row["image"] == "auto":
                row["image"] = cluster.injector.container["image"]
                return
        inject(found)

    cluster.injector.inject = fill_in
    gateway = pod_spec(container("app"), container("istio-proxy", "auto"))
    cluster.create("shop", workload("Deployment", "gateway", gateway))
    for name in "abc":
        cluster.create("apps", workload("Deployment", name))
    cluster.settle()
    cluster.injector.container["image"] = "istio/proxyv2:2"
    labels = {"metadata": {"labels": {"sidecar-injection": "no"}}}
    cluster.change("Namespace", "", "apps", labels)
    ended = run(cluster, DRIFTED, CONFIRM)
    assert (ended.code, ended.outcomes) == (0, {"shop/gateway": "succeeded"})
    assert set(ended.skipped.values()) == {"losing_sidecar"}


def test_it_is_no_drift_and_no_success(three, run):
    ended = run(three, *AUDIT)
    assert (ended.code, ended.summary["failed"]) == (1, {"injector_down": 1})
    assert ended.summary["not_up_to_date"] == {}
    assert run(three, *AUDIT, TEXT).stdout.endswith("\nFailed: the injector is down.\n")


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


@pytest.mark.parametrize("state", ["ignored", "fails", "denies"])
def test_a_container_that_templates_state_is_no_sign_of_an_injector(cluster, run, state):
    """A wildcard matches both."""
    for name in "abc":
        spec = pod_spec(container("app"), container("sql-proxy", "sql:1"))
        cluster.create("shop", workload("Deployment", name, spec))
    cluster.settle()
    cluster.injector.state = state
    ended = run(cluster, DRIFTED, CONFIRM, "--sidecar-container-name=*-proxy")
    assert ended.code == 3
    assert "no dry run returned *-proxy (0 of 3)" in ended.summary["error"]
