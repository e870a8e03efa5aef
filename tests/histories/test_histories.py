"""Random histories: nothing that the tool says is untrue, and nothing that it writes is wrong.

More of them: pytest tests/histories --histories=2000, or python -m histories, which shows what they covered.
"""

from __future__ import annotations

from collections import Counter

import pytest

from histories import a_history, play, served, shorten
from histories.broken import SEEN

DEFAULT = (
    20  # none on a real control plane, where each takes half a minute; CI plays more each night
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        count = metafunc.config.getoption("--histories")
        default = 0 if metafunc.config.getoption("--control-plane") else DEFAULT
        metafunc.parametrize("seed", range(default if count is None else count))


@pytest.mark.both
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_a_history(tool, shared, seed):
    """A violation is repeated before the history is made shorter; the requests are printed in their order."""
    history = served(a_history(seed)) if shared else a_history(seed)
    played = play(history, tool, shared)
    if not played.violations:
        return
    violation = played.violations[0]
    again = [play(history, tool, shared).violations for _ in range(5)]
    count = sum(any(v.point == violation.point for v in found) for found in again)
    short = shorten(history, tool, violation.point, shared=shared) if count else history
    pytest.fail(
        "\n".join(
            [
                *map(str, played.violations),
                f"{count} of 5 more times",
                *history.lines,
                "shorter:",
                *short.lines,
                "requests:",
                *played.requests,
            ]
        )
    )


def test_each_point_has_mutations():
    points = Counter(seen.point for seen in SEEN)
    assert points.keys() == set(range(1, 8)) and min(points.values()) >= 2
