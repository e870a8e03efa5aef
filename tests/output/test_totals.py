"""Each number of the text is that of the records, and of the cluster, before and after runs of the sample company."""

from __future__ import annotations

import json
from collections import Counter

import demo
import pytest
from clusters.embedded import EmbeddedCluster, is_counted
from support import BOTH, CONFIRM, DRIFTED, TEXT, command, run_here
from totals import of, wrong_numbers

pytestmark = pytest.mark.both

AUDIT = "--fail-on-drift"
ISTIO = "--sidecar-container-name=istio-*"
TEMPO = ("--parallel-rollouts=5", "--timeout=4s")


@pytest.fixture(scope="module")
def company():
    with EmbeddedCluster("demo") as cluster:
        demo.fill(cluster)
        yield cluster


def text_and_records(tool, monkeypatch, cluster, *options):
    """One run's text and its records, which are of the same moment."""
    records, texts = [], []

    class Both(tool.Report):
        def record(self, record, ref=None, **fields):
            found = {"record": record, **(ref._asdict() if ref else {}), **fields}
            records.append(json.loads(json.dumps(found)))

        def print(self, *lines):
            texts.extend(f"{line}\n" for line in lines)

    monkeypatch.setattr(tool, "Report", Both)
    words, environment = command(cluster.kubeconfig, TEXT, *options)
    return run_here(tool, words, environment), "".join(texts), records


def census(cluster, options: tuple[str, ...]) -> Counter[tuple[str, str]]:
    """How many of the selected Pods have each image of a sidecar; terminating ones do not count."""
    prefix = "istio-" if ISTIO in options else "istio-proxy"
    namespaces = [option.removeprefix("-n=") for option in options if option.startswith("-n=")]
    return Counter(
        (container["name"], container["image"])
        for pod in cluster.store.list("pods")
        if is_counted(pod) and (not namespaces or pod["metadata"]["namespace"] in namespaces)
        for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
        if container["name"].startswith(prefix)
    )


def check(tool, monkeypatch, cluster, *options):
    """Run the tool, and compare its numbers with each other and with the cluster; return the records."""
    before = census(cluster, options)
    ended, text, records = text_and_records(tool, monkeypatch, cluster, *options)
    assert list(wrong_numbers(text, records, DRIFTED in options)) == []
    (summary,) = of(records, "summary")
    counted = Counter()
    for row in summary["sidecars"]:
        if row["image"]:
            counted[row["name"], row["image"]] += row["pods"]
    assert counted == (census(cluster, options) if CONFIRM in options else before)
    if DRIFTED in options:
        # Old is what the plan replaces: Pods that have an outdated sidecar, or lack it.
        planned = sum(r["pods"]["old"] for r in of(records, "plan") if r["selected"])
        old = [row["old"] for row in summary["sidecars"]]
        assert CONFIRM in options or ISTIO in options or sum(old) == planned
    failed = dict(summary["failed"])
    left = failed.pop("not_up_to_date", 0)
    if AUDIT in options:
        old = 0 if CONFIRM in options else planned
        missing = sum(r["code"] == "without_pods" for r in of(records, "skip"))
        assert left == len(summary["leftovers"]) + old + missing
        assert left == sum(summary["not_up_to_date"].values())
    assert ended.code == summary["exit_code"] == bool(failed or left)
    return records


@pytest.mark.parametrize(
    "options",
    [
        (),
        (DRIFTED,),
        (DRIFTED, *BOTH),
        (DRIFTED, *BOTH, "--evict", "--max-rollouts=3"),
        (DRIFTED, "--include-missing", "--in-place", AUDIT),
        (DRIFTED, *BOTH, "--include-config", "--skip-unhealthy"),
        (DRIFTED, *BOTH, ISTIO),
        (DRIFTED, "-n=shop", "deployment/web"),
        (DRIFTED, "-n=nowher*", "--sidecar-container-name=istio-p*"),
    ],
    ids=" ".join,
)
def test_a_dry_run(company, tool, monkeypatch, options):
    check(tool, monkeypatch, company, *options)


@pytest.mark.parametrize(
    "options",
    [
        ("--expect-image=*:1.27.*",),
        ("--expect-image=*:1.26.*", ISTIO),
        ("--expect-image=*",),
        ("--expect-image=*", "-n=shop"),
        ("--expect-annotation=sidecar.istio.io/status=*",),
        ("--expect-annotation=team=payments", "-n=shop"),
    ],
    ids=" ".join,
)
def test_an_answer(company, tool, monkeypatch, options):
    _, text, records = text_and_records(tool, monkeypatch, company, *options)
    assert of(records, "summary")[0]["expected"]
    assert list(wrong_numbers(text, records, compares=False)) == []


def test_before_and_after_runs(tool, monkeypatch):
    with EmbeddedCluster("demo") as cluster:
        demo.fill(cluster)
        options = (DRIFTED, *BOTH, *TEMPO)
        first = check(tool, monkeypatch, cluster, *options, CONFIRM, "--max-rollouts=2")
        assert Counter(r["outcome"] for r in of(first, "result")) == {
            "succeeded": 2,
            "not_started": 6,
        }
        check(tool, monkeypatch, cluster, *options)
        rest = check(tool, monkeypatch, cluster, *options, CONFIRM, "--evict")
        assert Counter(r["outcome"] for r in of(rest, "result"))["succeeded"] > 5
        check(tool, monkeypatch, cluster, *options, AUDIT)
