"""The table of event kinds is the one place that knows events: what reports them, docs and tests
name its rows only, and every row is reported somewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from string import Formatter

import pytest
from tools.event_kinds_page import PAGE, written

from rallypoint.core import event_kinds
from rallypoint.core.event_kinds import KINDS, EventKind

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "rallypoint"
TABLE = "rallypoint.core.event_kinds"
ROWS = {name: row for name, row in vars(event_kinds).items() if isinstance(row, EventKind)}


@cache
def trees(folder: Path, words: tuple[str, ...]) -> dict[str, ast.Module]:
    """The files below the folder that contain one of the words, by path."""
    texts = {file: file.read_text() for file in folder.rglob("*.py")}
    return {
        str(file.relative_to(ROOT)): ast.parse(text)
        for file, text in texts.items()
        if any(word in text for word in words) and file != SOURCES / "core" / "event_kinds.py"
    }


def last_name(called: ast.expr) -> str:
    """`c` of `c` and of `a.b.c`; empty for what has no name."""
    match called:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def reporters() -> Iterable[tuple[str, ast.Module]]:
    """The modules that may report an event."""
    return trees(SOURCES, ("kinds", "Record")).items()


def rows_named(tree: ast.Module) -> list[str]:
    """By `kinds.ROW`, or imported from the table."""
    named = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "kinds"
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == TABLE:
            named += [alias.name for alias in node.names if alias.name.isupper()]
    return named


def fields_of(words: str) -> set[str]:
    """The fields that who reports it gives; names of settings are filled in by themselves."""
    names = {name for _, name, _, _ in Formatter().parse(words) if name is not None}
    return {name for name in names if not name.startswith("named.")}


def faulty_calls(tree: ast.Module) -> list[str]:
    """Calls of a row that give other fields than its words have."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            row = ROWS.get(node.func.attr)
            if row is not None and ast.unparse(node.func.value) == "kinds":
                given = {word.arg or "**" for word in node.keywords} - {"node_id"}
                given |= {""} if node.args else set()
                if given != fields_of(row.words):
                    found.append(ast.unparse(node))
    return found


def test_every_row_is_reported_and_nothing_else_is() -> None:
    reported: set[str] = set()
    for path, tree in reporters():
        names = rows_named(tree)
        assert set(names) <= vars(event_kinds).keys(), path
        reported.update(names)
        made = [
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and last_name(node.func) == "Record"
        ]
        assert not made, f"{path} makes a record without a row: {made}"
    assert ROWS.keys() - reported == set()


def test_whoever_reports_an_event_gives_the_fields_of_its_words() -> None:
    for path, tree in reporters():
        assert not faulty_calls(tree), path


@pytest.mark.parametrize(
    "call",
    [
        "kinds.NODE_LOST(node=1)",
        "kinds.HOSTS('x')",
        "kinds.METRICS(url=1, more=2)",
        "kinds.STUCK()",
    ],
)
def test_a_call_with_other_fields_is_found(call: str) -> None:
    assert faulty_calls(ast.parse(call)) == [call]


def test_tests_and_examples_wait_for_events_that_there_are() -> None:
    names = {kind.name for kind in KINDS} | {"verdict"}
    found = [trees(ROOT / folder, ("wait_event",)) for folder in ("tests", "examples")]
    for path, tree in (pair for each in found for pair in each.items()):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                first = node.args[0] if node.args else None
                if node.func.attr == "wait_event" and isinstance(first, ast.Constant):
                    assert first.value in names, f"{path}: {ast.unparse(node)}"


def test_the_page_of_events_is_the_table() -> None:
    page = PAGE.read_text()
    assert page == written(page), "run: python tools/event_kinds_page.py"
