"""The pages by task begin with what to copy."""

from __future__ import annotations

import pytest
from tests.docs.page import DOCS

PAGES = (
    "slurm",
    "kubernetes",
    "ssh",
    "from-torchrun",
    "placement",
    "troubleshooting",
    "frameworks",
)


@pytest.mark.parametrize("page", PAGES)
def test_it_begins_with_what_to_copy(page: str) -> None:
    """At most a sentence stands before it."""
    text = (DOCS / f"{page}.md").read_text("utf-8")
    before, fence, _ = text.partition("\n```")
    assert fence
    assert len(before.splitlines()) <= 4
