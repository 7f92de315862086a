"""The pages for developers: files that they name exist, links lead somewhere, decisions have one format."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *DOCS.glob("*.md"),
        *DOCS.glob("decisions/*.md"),
    ]
)
DECISIONS = sorted(DOCS.glob("decisions/*.md"))
ROOTS = (ROOT, ROOT / "src" / "ottla")
FILE = re.compile(r"`((?:[a-z0-9_]+/)+[a-z0-9_]*(?:\.py)?)`")
"""A path with a folder: `storage/log.py` or `tests/contract/`."""
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
NAMES_FILES = [DOCS / "glossary.md", *DOCS.glob("walk-of-*.md"), ROOT / "CONTRIBUTING.md"]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", NAMES_FILES, ids=_name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(FILE.findall(page.read_text()))
    assert named, "no file is named: does the pattern still fit?"
    assert [path for path in sorted(named) if not any((root / path).exists() for root in ROOTS)] == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_between_pages_lead_to_files(page: Path) -> None:
    links = LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", DECISIONS, ids=_name)
def test_decisions_have_number_date_status_context_choice_and_consequences(page: Path) -> None:
    number = page.name[:3]
    lines = page.read_text().splitlines()
    assert re.fullmatch(rf"# {number}\. \S.*", lines[0]), lines[0]
    assert re.fullmatch(r"- Date: 20\d\d-\d\d-\d\d", lines[2]), lines[2]
    assert re.fullmatch(r"- Status: (proposed|accepted|superseded by \d{3})", lines[3]), lines[3]
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == ["## Context", "## Choice", "## Consequences"]
    for heading in headings:
        assert lines[lines.index(heading) + 2].strip(), f"{heading} is empty"


def test_decisions_are_numbered_without_gaps() -> None:
    assert [page.name[:3] for page in DECISIONS] == [f"{n:03d}" for n in range(1, len(DECISIONS) + 1)]
