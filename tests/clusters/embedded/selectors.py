"""Label and field selectors as the API server reads them."""

from __future__ import annotations

import re
from collections.abc import Callable

ALWAYS = ("metadata.name", "metadata.namespace")
FIELDS = {
    "pods": (*ALWAYS, "status.phase", "spec.nodeName"),
    "events": (
        *ALWAYS,
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "involvedObject.fieldPath",
        "reason",
        "type",
    ),
}

Requirement = Callable[[dict], bool]


class Selector:
    """Called with an entry or an event, tells whether its object is meant."""

    def __init__(self, labels: list[Requirement], fields: list[tuple[str, str, str]]) -> None:
        self.labels, self.fields = labels, fields
        self.name = next(
            (value for field, op, value in fields if field == "metadata.name" and op != "!="), None
        )

    def __call__(self, entry) -> bool:
        labels = entry.object["metadata"].get("labels", {})
        return all(wanted(labels) for wanted in self.labels) and all(
            (field_of(entry.object, field) == value) == (op != "!=")
            for field, op, value in self.fields
        )


def field_of(obj: dict, path: str) -> str:
    value: object = obj
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return str(value)


def parse(plural: str, labels: str | None, fields: str | None) -> Selector:
    """ValueError with the API server's words."""
    field_requirements = [field_requirement(plural, term) for term in split(fields)]
    return Selector([label_requirement(term) for term in split(labels)], field_requirements)


def split(text: str | None) -> list[str]:
    """Splits at commas outside of parentheses."""
    return [term.strip() for term in re.split(r",(?![^(]*\))", text or "") if term.strip()]


def field_requirement(plural: str, term: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"([^=!]+)(!=|==|=)(.*)", term)
    if not found:
        raise ValueError(f"invalid selector: '{term}'; can't understand '{term}'")
    if found[1] not in FIELDS.get(plural, ALWAYS):
        raise ValueError(f"field label not supported: {found[1]}")
    return found[1], found[2], found[3]


def label_requirement(term: str) -> Requirement:
    key = r"([A-Za-z0-9_./-]+)"
    if found := re.fullmatch(key + r"\s+(in|notin)\s+\(([^)]*)\)", term):
        name, values = found[1], [value.strip() for value in found[3].split(",")]
        if found[2] == "in":
            return lambda labels: labels.get(name) in values
        return lambda labels: labels.get(name) not in values
    if found := re.fullmatch(key + r"\s*(==|=|!=)\s*([A-Za-z0-9_.-]*)", term):
        name, value, equal = found[1], found[3], found[2] != "!="
        return lambda labels: (labels.get(name) == value) == equal
    if found := re.fullmatch(r"(!?)" + key, term):
        present, name = not found[1], found[2]
        return lambda labels: (name in labels) == present
    if found := re.match(key + r"\s+(\S+?)\W*$", term):
        raise ValueError(
            f"unable to parse requirement: found '{found[2]}', expected: in, notin, =, ==, !=, gt, lt"
        )
    raise ValueError(f"unable to parse requirement: {term}")
