"""The bugs that the tests of this repository have to find, also after files were moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.planted_before_moves import BUGS_BEFORE_MOVES, LEAST_FOUND
from tools.planted_in_tests import PACKAGE, ROOT, place_of, suite_options


def test_the_text_of_every_bug_that_tests_find_is_in_the_package_once() -> None:
    texts = [path.read_text() for path in (ROOT / PACKAGE).rglob("*.py")]
    occurs = {bug.name: sum(text.count(bug.old) for text in texts) for bug in BUGS_BEFORE_MOVES}
    assert occurs == {bug.name: 1 for bug in BUGS_BEFORE_MOVES}


def test_the_number_of_bugs_that_must_be_found_is_that_of_those_that_were() -> None:
    assert len({bug.name for bug in BUGS_BEFORE_MOVES}) == len(BUGS_BEFORE_MOVES) == 30
    assert sum(bool(bug.found_by) for bug in BUGS_BEFORE_MOVES) == LEAST_FOUND


def test_the_place_of_a_bug_is_found_where_its_text_was_moved(tmp_path: Path) -> None:
    bug = BUGS_BEFORE_MOVES[0]
    moved = tmp_path / PACKAGE / "another" / "place.py"
    moved.parent.mkdir(parents=True)
    moved.write_text(f"# before\n{bug.old}# after\n")
    assert place_of(bug, tmp_path) == moved
    moved.with_name("copy.py").write_text(bug.old)
    with pytest.raises(ValueError, match="has to occur once, and is in"):
        place_of(bug, tmp_path)


def test_bugs_are_looked_for_with_the_selection_of_make_test() -> None:
    options = suite_options((ROOT / "Makefile").read_text())
    assert options[options.index("-m") + 1].startswith("not (fault or ")
