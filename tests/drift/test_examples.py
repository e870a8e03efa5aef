"""The examples in docstrings of the script are run."""

from __future__ import annotations

import doctest

import pytest

RULES = (
    "normal_variables",
    "parsed_json",
    "normal_container",
    "ignored_paths",
    "image_version",
    "human_duration",
    "lost_of",
    "is_deeper",
    "is_held",
    "is_expected",
    "is_another_tag",
)


@pytest.mark.parametrize("name", RULES)
def test_each_rule_of_comparison_has_three_examples(tool, name):
    (found,) = doctest.DocTestFinder().find(getattr(tool, name), name, globs=vars(tool))
    assert sum(bool(example.want) for example in found.examples) >= 3
    runner = doctest.DocTestRunner(verbose=False)
    said: list[str] = []
    runner.run(found, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def test_no_example_is_left_out(tool):
    tests = doctest.DocTestFinder().find(tool, "tool")
    named = {test.name.removeprefix("tool.") for test in tests if test.examples}
    assert named == set(RULES)
