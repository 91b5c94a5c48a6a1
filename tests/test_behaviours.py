"""Every behaviour of docs/behaviours.md has a test that is named after it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "behaviours.md"
PROMISED = re.findall(r"^\| ([RFA]\d) \|", PAGE.read_text(), re.MULTILINE)
SHOWN = {
    found
    for path in TESTS.rglob("test_*.py")
    for found in re.findall(r"def test_([RFA]\d)_", path.read_text())
}


def test_the_page_lists_behaviours() -> None:
    assert len(PROMISED) == len(set(PROMISED)) == 22


@pytest.mark.parametrize("behaviour", PROMISED)
def test_each_behaviour_has_a_test(behaviour: str) -> None:
    assert behaviour in SHOWN


def test_no_test_shows_what_is_not_promised() -> None:
    assert set(PROMISED) >= SHOWN
