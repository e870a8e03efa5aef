"""--allow-removal: sidecars that a restart would remove."""

from __future__ import annotations

from support import CONFIRM, DRIFTED, TEXT, patched, verdicts


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
    assert "  a  would be removed: istio-proxy 1.26.2\n" in text
    assert (
        "  drifted, but would lose the sidecar; not restarted without --allow-removal; "
        "check what injects it:\n"
        "    Deployment shop/native (a), shop/web (a)\n"
    ) in text
    assert "\nNot rolled out: 4 workloads.\n" in text
    left = run(every_kind, DRIFTED, CONFIRM)
    assert left.code == 0
    assert patched(every_kind) == []
    done = run(every_kind, DRIFTED, CONFIRM, "--allow-removal")
    assert (done.code, set(done.outcomes.values())) == (0, {"succeeded"})
    assert [len(p["spec"]["containers"]) for p in every_kind.pods("shop", "web")] == [1, 1, 1]
