"""tests/tools/lacks.py: what a new rule, option or field lacks, in one go."""

from __future__ import annotations

import importlib.util
import json
from types import SimpleNamespace

import pytest
from support import TOP


@pytest.fixture(scope="module")
def lacks():
    spec = importlib.util.spec_from_file_location("lacks", TOP / "tests" / "tools" / "lacks.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


LISTED = json.loads((TOP / "tests" / "output" / "interface.json").read_text())


def test_a_rule_lacks_a_row_a_text_and_two_lists(lacks):
    rule = SimpleNamespace(
        counts_in_audit=False, answer="", applies=test_a_rule_lacks_a_row_a_text_and_two_lists
    )
    made = SimpleNamespace(RULES={"single_pod": rule})
    reference = (TOP / "docs" / "reference.md").read_text()
    found = [line.partition(": ")[2] for line in lacks.of_rules(made, reference, LISTED)]
    assert found == [
        "this row of docs/reference.md, at its place: | `single_pod` | no | | None |",
        "its text in REASONS of tests/texts.py",
        "tests/output/interface.json",
        "NOT_AUDITED of tests/histories/oracle.py",
    ]


def test_an_option_and_a_field_lack_their_lists(lacks):
    made = SimpleNamespace(ALL_OPTIONS=[SimpleNamespace(usage="--skip-single")])
    found = {"options": {}, "fields": {"plan": ["is_single", "uid"]}}
    assert [*lacks.of_options(made, found, LISTED)] == [
        "option --skip-single: tests/output/interface.json"
    ]
    assert [*lacks.of_fields(found, LISTED)] == [
        "field plan.is_single: RECORDS of tests/output/records.py, which prints its row",
        "field plan.is_single: tests/output/interface.json",
    ]
