"""List what rules, options and fields of the script still lack elsewhere, in one go.

    PYTHONPATH=tests .venv/bin/python tests/tools/lacks.py

Each of these is also a test; this prints them together. Exit code 0: nothing is lacking, 1: something is.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

TOP = Path(__file__).parents[2]
sys.path[:0] = [str(TOP / "tests"), str(TOP / "tests" / "output")]

from histories import oracle  # noqa: E402
from interface import interface  # noqa: E402
from records import RECORDS  # noqa: E402
from texts import REASONS  # noqa: E402

ALWAYS = {"record", "kind", "namespace", "name", "group", "labels", "error"}
WORDS = {"not_asked": "not checked ", "no_answer": "a no ", "would_differ": "a no ", "": ""}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tool", TOP / "sidecar-rollout.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    sys.modules["tool"] = script
    spec.loader.exec_module(script)
    return script


def of_rules(script: ModuleType, reference: str, listed: dict) -> Iterator[str]:
    for code, rule in script.RULES.items():
        audit = "yes" if rule.counts_in_audit else "no"
        row = f"  | `{code}` | {audit} | {WORDS[rule.answer]}| {rule.applies.__doc__} |"
        if row not in reference.splitlines():
            yield f"rule {code}: this row of docs/reference.md, at its place: {row.strip()}"
        if code not in REASONS:
            yield f"rule {code}: its text in REASONS of tests/texts.py"
        if code not in listed["values"]["code"]:
            yield f"rule {code}: tests/output/interface.json"
        if rule.counts_in_audit != (code not in (*oracle.NOT_AUDITED, "up_to_date")):
            yield f"rule {code}: NOT_AUDITED of tests/histories/oracle.py"


def of_options(script: ModuleType, found: dict, listed: dict) -> Iterator[str]:
    for option in script.ALL_OPTIONS:
        name = option.usage.split()[0]
        if name == "workloads":
            name = "TYPE/NAME"
        if name not in listed["options"] or found["options"][name] != listed["options"][name]:
            yield f"option {name}: tests/output/interface.json"


def of_fields(found: dict, listed: dict) -> Iterator[str]:
    for record, fields in found["fields"].items():
        for field in fields:
            name = field.partition(".")[0].partition("[")[0]
            documented = {*", ".join(RECORDS.get(record, ())).split(", "), *ALWAYS}
            if record in RECORDS and name not in documented:
                yield f"field {record}.{name}: RECORDS of tests/output/records.py, which prints its row"
            if field not in listed["fields"].get(record, ()):
                yield f"field {record}.{field}: tests/output/interface.json"


def main() -> int:
    script, found = load(), interface()
    listed = json.loads((TOP / "tests" / "output" / "interface.json").read_text())
    reference = (TOP / "docs" / "reference.md").read_text()
    lacking = [
        *of_rules(script, reference, listed),
        *of_options(script, found, listed),
        *of_fields(found, listed),
    ]
    print("\n".join(dict.fromkeys(lacking)) or "nothing is lacking")
    return int(bool(lacking))


if __name__ == "__main__":
    raise SystemExit(main())
