"""docs/README.md names every page, and no other."""

from __future__ import annotations

import re

from tests.docs.page import DOCS


def test_every_page_is_in_the_index() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "README.md").read_text("utf-8")))
    assert named == {path.name for path in DOCS.glob("*.md")} - {"README.md"}
