"""tests/mutations.py: each mutation fits the script and changes it into another program that can be compiled."""

from __future__ import annotations

import mutations
import pytest
from support import SCRIPT, TOP


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_script(mutation):
    text = SCRIPT.read_text()
    changed = mutations.mutated(text, mutation)
    assert changed != text
    compile(changed, str(SCRIPT), "exec")
    for name in mutation.tests.split():
        assert list(TOP.glob(f"tests/*/test_{name}.py")), name


def test_a_mutation_that_does_not_fit_is_named():
    gone = mutations.Mutation("limits: gone", "scheduler", "no such text", "")
    with pytest.raises(ValueError, match="limits: gone: its text occurs 0 times"):
        mutations.mutated(SCRIPT.read_text(), gone)
