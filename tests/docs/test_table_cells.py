"""A cell of a table has at most 25 words; longer text stands in sentences or lists beneath."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.page import DOCS

WORDS = 25


def long_cells(text: str) -> list[str]:
    """Return the cells of more words than a cell may have. A link counts as its text."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    shown = [re.sub(r"\]\([^)]*\)", "]", cell) for cell in cells]
    return [cell for cell in shown if len(cell.split()) > WORDS]


@pytest.mark.parametrize(
    "page", [*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md"], ids=lambda page: page.name
)
def test_a_page_has_no_long_cells(page: Path) -> None:
    assert long_cells(page.read_text("utf-8")) == []


def test_a_cell_of_26_words_is_long_and_one_of_25_is_not() -> None:
    row = "| a | {} |"
    assert long_cells(row.format("word " * 25)) == []
    assert len(long_cells(row.format("word " * 26))) == 1
    assert long_cells(row.format("word " * 24 + "[to](a.md#very-long)")) == []
