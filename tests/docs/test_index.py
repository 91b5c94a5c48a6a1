"""docs/README.md names every page, and no other."""

from __future__ import annotations

import re

from tests.docs.page import DOCS


def test_every_page_is_in_the_index() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "README.md").read_text("utf-8")))
    assert named == {path.name for path in DOCS.glob("*.md")} - {"README.md"}


def test_a_link_of_the_index_shows_a_title_and_no_file_name() -> None:
    shown = re.findall(r"\[([^\]]+)\]\([^)]+\)", (DOCS / "README.md").read_text("utf-8"))
    assert [text for text in shown if text.endswith(".md")] == []
