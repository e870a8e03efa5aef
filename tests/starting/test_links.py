"""Links between the pages of the project lead to a file, and to a heading in it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support import TOP

LISTED = subprocess.run(["git", "ls-files", "*.md"], cwd=TOP, capture_output=True, text=True)
HERE = [TOP, *(TOP / name for name in (".github", "deploy", "docs"))]  # without Git
PAGES = LISTED.stdout.split() or [
    str(page.relative_to(TOP)) for folder in HERE for page in folder.glob("*.md")
]
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(re.sub(r"(?s)```.*?```", "", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def test_there_are_pages():
    assert {"README.md", "docs/reference.md", ".github/CONTRIBUTING.md"} <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    page = TOP / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match("https?://|mailto:", target):
            continue
        path, _, fragment = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if fragment:
            assert fragment in anchors_of(found), target
