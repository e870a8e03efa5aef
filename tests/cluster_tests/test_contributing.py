"""CONTRIBUTING names what exists."""

from __future__ import annotations

import re

import pytest
from support import SCRIPT, TOP

TEXT = (TOP / ".github" / "CONTRIBUTING.md").read_text()
TABLE = TEXT.partition("## Where things go")[2].partition("##")[0]
NAMES = sorted(set(re.findall(r"`([A-Za-z_.]+)`", TABLE)))
SOURCES = [SCRIPT, *(TOP / "tests" / "histories").glob("*.py")]


@pytest.mark.parametrize("name", NAMES)
def test_each_name_in_the_table_exists(name):
    if "/" in name or name.endswith((".yaml", ".py")):
        assert [*TOP.glob(f"**/{name}")]
    elif name != "apps":  # an API group
        part = name.rpartition(".")[2]
        pattern = rf"\b(class|def) {part}\b|^ *{part}\b.*=|^ +{part}: "
        found = [path for path in SOURCES if re.search(pattern, path.read_text(), re.MULTILINE)]
        assert found, name
