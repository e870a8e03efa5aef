"""The script is read from top to bottom: what a section uses stands in it or above it."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter

from support import SCRIPT, TOP, a_result, a_workload

TEXT = SCRIPT.read_text()
TREE = ast.parse(TEXT)
REFERENCE = TOP / "docs" / "reference.md"
SECTIONS = [n for n, line in enumerate(TEXT.splitlines(), 1) if re.match(r"# \d+\. \w", line)]


def section_of(line: int) -> int:
    return sum(begin <= line for begin in SECTIONS)


def without_annotations(node: ast.AST) -> ast.AST:
    for found in ast.walk(node):
        if isinstance(found, ast.FunctionDef):
            found.returns = None
        elif isinstance(found, ast.arg):
            found.annotation = None
        elif isinstance(found, ast.AnnAssign):
            found.annotation = ast.Constant(0)
    return node


def names_of(node: ast.AST, kind: type) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, kind)}


def used_below() -> list[str]:
    defined = {}
    for node in TREE.body:
        own = [node.name] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            own = names_of(node, ast.Store)
        defined |= dict.fromkeys(own, section_of(node.lineno))
    found = []
    for node in map(without_annotations, TREE.body):
        local = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            local |= names_of(node, ast.Store)
        mine = section_of(node.lineno)
        for name in names_of(node, ast.Load) - local:
            if defined.get(name, 0) > mine:
                found.append(f"{getattr(node, 'name', 'a constant')} ({mine}) uses {name}")
    return found


def test_nothing_uses_what_stands_below_its_section():
    assert len(SECTIONS) > 10
    assert used_below() == []


def test_the_contents_are_those_of_the_file():
    listed = re.findall(r"^ +(\d+)\. \w", ast.get_docstring(TREE), re.MULTILINE)
    numbers = [re.match(r"# (\d+)", TEXT.splitlines()[n - 1])[1] for n in SECTIONS]
    assert listed == numbers


def test_what_stages_return_is_never_set(tool):
    decision = a_workload(tool)
    comparison = decision.comparison
    stages = (decision.found, comparison.today, comparison, decision)
    for kind in map(type, (*stages, a_result(tool, decision, "SUCCEEDED"))):
        assert kind.__dataclass_params__.frozen, kind
        assert not any(isinstance(f.default, (list, dict)) for f in dataclasses.fields(kind))
    assert "object.__setattr__" not in TEXT


def test_only_decide_asks_rules(tool):
    """A rule that is asked elsewhere, too, is what the dry run promises and a worker refuses."""
    asked = []
    for node in TREE.body:
        if getattr(node, "name", "") not in tool.RULES:
            local = names_of(node, ast.Store) | {
                n.arg for n in ast.walk(node) if isinstance(n, ast.arg)
            }
            asked += sorted((names_of(node, ast.Load) - local) & tool.RULES.keys())
    assert asked == []
    users = [n.name for n in TREE.body if "RULES" in names_of(n, ast.Load) and hasattr(n, "name")]
    codes = ["counts_in_audit", "place_of", "code_counts_as_applied"]
    assert users == ["rule", *codes, "first_reason", "is_red", "answer_of"]


def test_the_table_of_codes_is_that_of_the_rules(tool):
    rows = re.findall(
        r"^  \| `(\w+)` \| (yes|no) \| ([a-z ]*)\| (.*) \|$", REFERENCE.read_text(), re.MULTILINE
    )
    words = {"not_asked": "not checked ", "no_answer": "a no ", "would_differ": "a no ", "": ""}
    assert rows == [
        (code, "yes" if row.counts_in_audit else "no", words[row.answer], row.applies.__doc__)
        for code, row in tool.RULES.items()
    ]


def test_tests_know_few_names_of_the_script():
    """Each is one more that cannot be renamed alone: what the command line shows is tested there."""
    uses = Counter()
    for path in (TOP / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                of = node.value
                uses[node.attr] += "tool" in (getattr(of, "id", ""), getattr(of, "attr", ""))
    uses = +uses
    assert len(uses) <= 60, sorted(uses)
    assert uses.total() <= 200
