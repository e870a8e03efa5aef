"""The names that scripts may rely on stay until 2.0: docs/reference.md, "Stability"."""

from __future__ import annotations

import json
from collections.abc import Iterator

from interface import interface, values
from support import TOP

LISTED = TOP / "tests" / "output" / "interface.json"
WRITE = "PYTHONPATH=tests .venv/bin/python tests/output/interface.py >tests/output/interface.json"


def names_of(value: object, path: str = "") -> Iterator[str]:
    """Each name with what it is of."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from names_of(inner, f"{path} {key}".strip())
    elif isinstance(value, list):
        yield from (f"{path} {one}" for one in value)
    else:
        yield f"{path} {value}".strip()


def test_each_name_stays_and_new_ones_are_listed():
    listed, found = (set(names_of(one)) for one in (json.loads(LISTED.read_text()), interface()))
    gone, new = "\n".join(sorted(listed - found)), "\n".join(sorted(found - listed))
    assert gone == "", f"scripts rely on these names until 2.0:\n{gone}"
    assert new == "", f"to promise these names, run {WRITE}:\n{new}"


def test_values_are_those_of_the_script(tool):
    """A run prints few of them; codes of rules are compared with the page in test_layout.py."""
    found = values()
    for field, kind in (("outcome", tool.Outcome), ("method", tool.Method), ("state", tool.State)):
        assert found[field] == sorted(value.code for value in kind)
