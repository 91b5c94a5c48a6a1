"""Every behaviour and defect of docs/design/behaviours.md has a test that is named after it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "design" / "behaviours.md"
PROMISED = re.findall(r"^\| ([RFALV]\d\d?) \|", PAGE.read_text(), re.MULTILINE)
NAMES = {
    found
    for path in TESTS.rglob("test_*.py")
    for found in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}
SHOWN = {found[1] for name in NAMES if (found := re.match(r"test_([RFALV]\d\d?)_", name))}
DEFECTS = re.findall(r"^\| ([^|]+) \| [^|]+ \| (`test_[^|]+) \|$", PAGE.read_text(), re.MULTILINE)
DEFECT_ID = re.compile(r"[WD]\d+[ab]?")


def test_the_page_lists_behaviours() -> None:
    assert len(PROMISED) == len(set(PROMISED)) == 50


@pytest.mark.parametrize("behaviour", PROMISED)
def test_each_behaviour_has_a_test(behaviour: str) -> None:
    assert behaviour in SHOWN


def test_no_test_shows_what_is_not_promised() -> None:
    assert set(PROMISED) >= SHOWN


@pytest.mark.parametrize(("defect", "tests"), DEFECTS, ids=[defect for defect, _ in DEFECTS])
def test_each_defect_of_torchrun_has_the_tests_that_the_page_names(defect: str, tests: str) -> None:
    named = re.findall(r"`(\w+)`", tests)
    assert set(named) <= NAMES
    for one in DEFECT_ID.findall(defect):
        assert any(f"_{one}_" in name for name in named)


def test_no_test_is_named_after_a_defect_that_the_page_does_not_list() -> None:
    listed = {one for defect, _ in DEFECTS for one in DEFECT_ID.findall(defect)}
    in_names = {part for name in NAMES for part in name.split("_") if DEFECT_ID.fullmatch(part)}
    assert len(DEFECTS) >= 10
    assert in_names == listed
