"""The plan and a worker decide by the same function: without a disturbance, they decide alike."""

from __future__ import annotations

import dataclasses

import pytest

from histories import a_history, play

COUNT = 10
DETAILS = ("method", "kept_pods", "total_pods", "pods_replaced", "downtime", "code")


def details(decision) -> dict:
    comparison = decision.comparison
    return {
        **{name: getattr(decision, name) for name in DETAILS},
        "old_pods": sorted(decision.old_pods),
        "verdict": comparison.verdict,
        "differences": sorted(map(str, comparison.differences)),
    }


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(4000, 4000 + COUNT, 5))
def test_a_worker_decides_what_the_plan_has_decided(tool, monkeypatch, first):
    """Nor does it skip at once what the dry run has promised."""
    made = []
    decide = tool.decide

    def noted(found, comparison, options, *more, before_each_pod=False):
        if before_each_pod:
            return decide(found, comparison, options, *more, before_each_pod=True)
        decision = decide(found, comparison, options, *more)
        if more:
            made.append((more[0], decision))
        return decision

    monkeypatch.setattr(tool, "decide", noted)
    compared = 0
    for seed in range(first, first + 5):
        history = dataclasses.replace(a_history(seed), events=(), rerun="")
        made.clear()
        played = play(history, tool)
        assert played.violations == []
        seen = set()
        for planned, decision in made:
            if planned not in seen:  # the first one: what follows may have been replaced
                seen.add(planned)
                assert details(decision) == details(planned), (seed, planned.ref)
        compared += len(seen)
    assert compared
