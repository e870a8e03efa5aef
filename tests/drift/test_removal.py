"""--allow-removal: sidecars that a restart would remove."""

from __future__ import annotations

import pytest
from clusters.embedded.manifests import container, workload
from support import CONFIRM, DRIFTED, TEXT, patched, verdicts

pytestmark = pytest.mark.both


@pytest.fixture
def two(cluster, run):
    """two(before, after): what the plan says of a workload with these sidecars, besides mesh-proxy."""

    def plan(before: str, after: str) -> dict:
        real = cluster.injector.inject

        def inject(pod: dict) -> None:
            real(pod)
            names = filter(None, ["mesh-proxy", cluster.also])
            pod["spec"]["containers"] += [container(name, f"{name}:1") for name in names]

        cluster.injector.inject, cluster.also = inject, before
        cluster.create("shop", workload("Deployment", "web"))
        cluster.settle()
        cluster.also = after
        (skip,) = run(cluster, DRIFTED, "--sidecar-container-name=mesh-*").of("skip")
        return skip

    return plan


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("mesh-debug", "", "would lose the sidecar mesh-debug; check the injector"),
        (
            "mesh-old",
            "mesh-new",
            "would lose the sidecar mesh-old and get mesh-new; check the injector",
        ),
    ],
)
def test_it_is_said_which_of_several_sidecars_would_go(two, before, after, what):
    skip = two(before, after)
    assert skip["code"] == "losing_sidecar"
    assert what in skip["message"]


def test_a_sidecar_that_would_be_removed_is_only_rolled_out_when_that_is_wanted(every_kind, run):
    every_kind.injector.state = (
        "ignored"  # failurePolicy: Ignore and a dead webhook look the same as an opt-out
    )
    dry = run(every_kind, DRIFTED)
    assert dry.code == 0
    assert verdicts(dry) == dict.fromkeys(
        ("shop/agent", "shop/db", "shop/native", "shop/web"), "drifted"
    )
    assert dry.planned == []
    assert dry.of("drift")[0]["differences"][0]["path"] == ["istio-proxy"]
    assert dry.of("drift")[0]["differences"][0]["expected"] is None
    text = run(every_kind, DRIFTED, TEXT).stdout
    assert "  a  4 workloads:\n     would be removed: istio-proxy 1.26.2\n" in text
    assert (
        "  drifted, but would lose the sidecar istio-proxy; check the injector:\n"
        "    Deployment shop/native (a), shop/web (a)\n"
    ) in text
    assert "\nNot rolled out: 4 workloads.\n" in text
    assert text.endswith("\nThis was a dry run; nothing was changed.\n")
    left = run(every_kind, DRIFTED, CONFIRM)
    assert left.code == 3
    assert patched(every_kind) == []
    done = run(every_kind, DRIFTED, CONFIRM, "--allow-removal")
    assert (done.code, set(done.outcomes.values())) == (0, {"succeeded"})
    assert [len(p["spec"]["containers"]) for p in every_kind.pods("shop", "web")] == [1, 1, 1]
