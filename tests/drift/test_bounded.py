"""What a tenant writes costs time and memory in proportion to its size, and is never shown if it is large."""

from __future__ import annotations

import contextlib
import json
import sys
import tracemalloc
from typing import NamedTuple

import pytest
from clusters.embedded.manifests import container, pod, pod_spec, workload
from support import DRIFTED, TEXT, a_ref, pod_of, verdicts, view_of

NAMES = ["istio-proxy"]


class Row(NamedTuple):
    """As a Skip of the script."""

    subject: tuple
    reason: str
    code: str


def with_env(value: str, count: int = 1) -> dict:
    variables = [{"name": f"V{n}", "value": value} for n in range(count)]
    return pod_of({"name": "istio-proxy", "image": "i:1", "env": variables, "volumeMounts": []})


def expansions(size: int) -> dict:
    return with_env("$(" * (size // 2))


def references(size: int) -> dict:
    """An annotation, and many that refer to it."""
    field = {"fieldRef": {"fieldPath": "metadata.annotations['big']"}}
    variables = [{"name": f"V{n}", "valueFrom": field} for n in range(size // 200)]
    found = with_env("")
    found["spec"]["containers"][-1]["env"] = variables
    found["metadata"]["annotations"] = {"big": "x" * (size // 2)}
    return found


def deep(size: int) -> dict:
    return with_env("[" * 9 + ",".join(["1"] * (size // 2)) + "]" * 9)


def arguments(size: int) -> dict:
    found = with_env("")
    found["spec"]["containers"][-1]["args"] = ["a"] * (size // 5)
    return found


def hidden(levels: int) -> dict:
    """JSON whose depth does not show by counting brackets: some are in a text."""
    return with_env('["' + "}" * levels + '",' + "[" * levels + "1" + "]" * levels + "]")


def large_ones(tool) -> list[dict]:
    """What is compared of two Pods that differ in a variable of 17 kB."""
    return [tool.unpacked(view_of(tool, with_env(letter * 17_000), NAMES)) for letter in "ab"]


def steps_of(tool, found: dict) -> int:
    """How many lines of Python and calls of C a comparison with nothing takes."""
    count = 0

    def step(*event) -> object:
        nonlocal count
        count += 1
        return step

    sys.setprofile(step)
    try:
        view = view_of(tool, found, NAMES)
        list(tool.find_differences(tool.unpacked(view), {}))
    except ValueError:  # too large
        pass
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("shape", [expansions, references, deep, arguments])
def test_comparing_takes_time_in_proportion(tool, shape):
    small, large = steps_of(tool, shape(20_000)), steps_of(tool, shape(80_000))
    assert large <= 5 * small + 1000


@pytest.mark.parametrize("shape", [expansions, references, deep, arguments])
def test_comparing_takes_memory_in_proportion(tool, shape):
    peaks = []
    for size in (100_000, 400_000):
        found = shape(size)
        tracemalloc.start()
        with contextlib.suppress(ValueError):
            view_of(tool, found, NAMES)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= 5 * peaks[0] + 1_000_000
    assert peaks[1] < 20 * 400_000


def env_of(tool, found: dict) -> object:
    """What is compared of the only variable of a sidecar."""
    return tool.unpacked(view_of(tool, found, NAMES))["istio-proxy"]["env"]["V0"]


def test_what_is_deep_stays_a_text(tool):
    for found in (hidden(11), hidden(990), with_env("[" * 7_000 + "]" * 7_000)):
        assert env_of(tool, found) == found["spec"]["containers"][-1]["env"][0]["value"]
    assert env_of(tool, with_env("[[1]]")) == [[1]]


def test_pods_behind_many_services_take_time_in_proportion(tool):
    class Cluster(tool.Cluster):
        def __init__(self, slices: int) -> None:
            self.slices = slices

        def items(self, *parts, **fields):
            for n in range(self.slices):
                metadata = {"namespace": "evil", "labels": {"kubernetes.io/service-name": f"s{n}"}}
                yield {"metadata": metadata, "endpoints": [{"targetRef": {"name": "web-0"}}]}

    peaks = []
    for count in (500, 2000):
        tracemalloc.start()
        found = Cluster(count).services_of_pods(())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(found["evil"]["web-0"]) == count
    assert peaks[1] <= 5 * peaks[0] + 100_000


def test_a_large_value_is_compared_by_its_hash_and_never_shown(tool):
    views = large_ones(tool)
    (difference,) = tool.find_differences(*views)
    assert difference.path == ("istio-proxy", "env", "V0")
    assert "aaa" not in tool.difference_text(difference)
    assert list(tool.find_differences(views[0], views[0])) == []


def test_two_answers_that_differ_in_a_large_value_are_two_answers(tool):
    assert tool.ignored_paths(*large_ones(tool))[1] == [("istio-proxy", "env", "V0")]


def test_a_pod_whose_sidecar_is_too_large_is_unknown_and_the_others_are_compared(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    large = container("istio-proxy", "docker.io/istio/proxyv2:1.26.2", args=["x" * 1_100_000])
    cluster.create("shop", pod("large", pod_spec(container("app"), large)))
    cluster.settle()
    ended = run(cluster, DRIFTED)
    assert verdicts(ended) == {"shop/web": "up_to_date"}
    assert ended.skipped == {"Pod shop/large": "unknown"}
    (left,) = ended.summary["leftovers"]
    assert (left["code"], left["name"]) == ("unknown", "large")
    audit = run(cluster, DRIFTED, "--fail-on-drift")
    assert (audit.code, audit.summary["not_up_to_date"]) == (1, {"unknown": 1})
    question = run(cluster, "--expect-image=*", TEXT)
    assert question.code == 1
    assert "cannot be read: its sidecars are too large to compare" in question.stdout


def test_an_odd_pod_without_the_sidecar_is_nobodys(cluster, run):
    cluster.create("shop", workload("Deployment", "web"))
    cluster.namespace("evil")
    odd = pod("odd")
    reference = {"apiVersion": "x/v1", "kind": "X", "name": "n" * 300, "uid": "{"}
    odd["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
    cluster.create("evil", odd)
    cluster.settle()
    audit = run(cluster, DRIFTED, "--fail-on-drift")
    assert (audit.code, audit.of("skip"), audit.summary["leftovers"]) == (0, [], [])


def test_pages_shrink_with_the_size_of_pods(cluster, run, tool, monkeypatch):
    monkeypatch.setattr(tool, "PAGE_SIZE", 20_000)
    for n in range(30):
        spec = pod_spec(container("app", env=[{"name": "X", "value": "x" * 3000}]))
        cluster.create("shop", workload("Deployment", f"web-{n}", spec))
    cluster.settle()
    ended = run(cluster)
    assert len(ended.planned) == 30
    limits = [r.query["limit"] for r in cluster.server.requests if r.path == "/api/v1/pods"]
    assert {int(limit) for limit in limits} > {500, 62}
    sizes = json.dumps(limits)
    assert '"7"' in sizes


def test_a_list_of_many_reasons_is_cut_by_namespace(a_report, tool, capsys):
    report = a_report(TEXT)
    skips = []
    for n in range(60):
        namespace = "evil" if n % 2 else "shop"
        skips.append(Row(a_ref(tool, "Pod", namespace, f"p{n}"), f"reason {n}", "unknown"))
    report.print_groups("Not rolled out", skips)
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 50
    assert "for other reasons, by namespace:\n    evil (" in text


def test_many_arguments_are_compared_by_their_hash(tool):
    one, same, other = (view_of(tool, arguments(size), NAMES) for size in (80_000, 80_000, 90_000))
    assert (one == same, one == other, len(one) < 1000) == (True, False, True)
