"""A plugin of pytest that leaves out tests by their whole names.

`--deselect` takes the beginning of a name, which other tests share. `LEFT_OUT` names a file with
one name a line.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "LEFT_OUT"
ABOUT_LISTS = (
    "test_the_text_of_every_bug_that_tests_find_is_in_the_package_once",
    "test_the_place_of_every_bug_that_can_be_planted_is_in_the_source",
)
"""Tests that look for the places of bugs: they would find each bug that is planted."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that are not left out."""
    names = set(Path(os.environ[VARIABLE]).read_text().split("\n"))
    items[:] = [item for item in items if item.nodeid not in names and item.name not in ABOUT_LISTS]
