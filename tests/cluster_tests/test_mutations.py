"""tests/tools/mutations.py: each mutation fits the script and changes it into another program that can be compiled."""

from __future__ import annotations

import pytest
from support import SCRIPT, TOP
from tools import mutations


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_script(mutation):
    text = SCRIPT.read_text()
    assert mutations.mutated(text, mutation) != text
    for name in mutation.tests.split():
        assert list(TOP.glob(f"tests/*/test_{name}.py")), name


def test_mutated_scripts_can_be_compiled():
    """Several at a time, as far as they do not change the same text: compiling takes long."""
    left = list(mutations.MUTATIONS)
    while left:
        text, others = SCRIPT.read_text(), []
        for mutation in left:
            try:
                text = mutations.mutated(text, mutation)
            except ValueError:
                others.append(mutation)
        assert len(others) < len(left)
        compile(text, str(SCRIPT), "exec")
        left = others


def test_a_mutation_that_does_not_fit_is_named():
    gone = mutations.Mutation("limits: gone", "scheduler", "no such text", "")
    with pytest.raises(ValueError, match="limits: gone: its text occurs 0 times"):
        mutations.mutated(SCRIPT.read_text(), gone)
