"""The codes of `skip` records: scripts compare them, so they are kept."""

from __future__ import annotations

import re

from support import SCRIPT
from texts import REASONS

OF_PLAN_FILES = {
    "not_found",
    "no_sidecar",  # as a rule's
    "not_selected",
    "up_to_date",  # the same
}  # rows that are not rolled out


def test_each_rule_has_its_code_and_its_text(tool):
    """A new rule gets a row in `REASONS`; no code is renamed or removed."""
    found = {*tool.RULES, *OF_PLAN_FILES}
    assert found == REASONS.keys(), "each code has its text in REASONS of tests/texts.py"


def test_no_other_codes_are_used():
    assert set(re.findall(r'\bSkip\(.*, "([a-z_]+)"\)', SCRIPT.read_text())) == OF_PLAN_FILES
