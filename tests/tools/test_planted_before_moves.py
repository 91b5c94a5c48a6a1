"""The bugs that the tests of this repository have to find, also after files were moved."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tools.planted_before_moves import BUGS_BEFORE_MOVES
from tools.planted_in_machines import BUGS_IN_MACHINES
from tools.planted_in_tests import PACKAGE, ROOT, place_of, suite_options

BUGS = (*BUGS_BEFORE_MOVES, *BUGS_IN_MACHINES)


def test_the_text_of_every_bug_that_tests_find_is_in_the_package_once() -> None:
    texts = [path.read_text() for path in (ROOT / PACKAGE).rglob("*.py")]
    occurs = {bug.name: sum(text.count(bug.old) for text in texts) for bug in BUGS}
    assert occurs == dict.fromkeys((bug.name for bug in BUGS), 1)


def test_every_bug_has_a_name_of_its_own_and_a_test_that_has_found_it() -> None:
    assert (len({bug.name for bug in BUGS}), len(BUGS_BEFORE_MOVES)) == (len(BUGS), 30)
    files = (ROOT / "tests").rglob("test_*.py")
    tests = {name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text())}
    assert [bug.name for bug in BUGS if bug.found_by not in tests] == []


def test_there_are_at_least_three_bugs_of_each_machine_and_one_of_each_host() -> None:
    numbers = Counter(bug.module for bug in BUGS_IN_MACHINES)
    assert numbers.pop("core/session.py") == 1, "the one that seeds found once"
    machines = [each for each in numbers if "core/" in each or each.endswith("machine.py")]
    assert all(n >= 3 if module in machines else n == 1 for module, n in numbers.items())
    assert (len(machines), len(numbers)) == (7, 14)


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
