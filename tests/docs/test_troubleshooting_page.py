"""docs/troubleshooting.md: its commands run, and each message is one that the source has."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.page import DOCS, blocks, commands
from tests.harness.alone import ALONE, can_be_alone
from tests.harness.programs import run_program

SOURCE = DOCS.parent / "src" / "rallypoint"
FIELD = re.compile(r"\{[^{}]*\}")
"""Of a text that is filled in by `str.format`."""
JOINT = re.compile(r"[:,;] ")
"""Where a sentence is put together from two texts."""
LEAST = 12
"""A message with fewer characters that are always the same would be found anywhere."""


def rows() -> list[list[str]]:
    """The cells of each row of the table."""
    lines = (DOCS / "troubleshooting.md").read_text("utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table[1:]]


def pieces(message: str) -> list[str]:
    """What is always the same in a message."""
    return [piece.strip(" ,:;") for piece in message.strip("`").split("...") if piece.strip(" ,:;")]


def is_in(piece: str, source: str) -> bool:
    return piece in source or all(part in source for part in JOINT.split(piece))


def part_of(node: ast.expr) -> str:
    """A part of a text that is put together: as it is, the flag that is `named`, or filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    named = re.fullmatch(r"named\.(\w+)", ast.unparse(node).strip("'f{}\""))
    return f"--{named[1].replace('_', '-')}" if named else "\0"


def literals(tree: ast.AST) -> Iterator[str]:
    """The texts of a module that are no docstrings, without what is filled in."""
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(map(part_of, node.values))
        elif isinstance(node, ast.Constant) and id(node) not in documents:
            yield FIELD.sub("\0", str(node.value))


@pytest.fixture(scope="module")
def source() -> str:
    """All that it can print."""
    trees = (ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py"))
    return "\n".join(text for tree in trees for text in literals(tree))


def test_there_are_forty_and_each_has_a_cause_and_a_fix() -> None:
    assert len(rows()) >= 40
    assert [row for row in rows() if len(row) != 3 or not all(row)] == []


def test_they_are_in_alphabetical_order() -> None:
    order = [re.sub(r"^[^a-z]+", "", row[0].lower().strip("`")) for row in rows()]
    assert order == sorted(order)


@pytest.mark.parametrize("message", [row[0] for row in rows()])
def test_each_message_is_in_the_source(message: str, source: str) -> None:
    found = pieces(message)
    assert sum(map(len, found)) >= LEAST
    assert [piece for piece in found if not is_in(piece, source)] == []


def test_the_lines_to_copy_run(tmp_path: Path) -> None:
    """In their order: the last one reads what the one before it has left. A command without a job
    is about all jobs of this user that run here, so it must not see those of other tests."""
    prefix = ALONE if can_be_alone() else ()
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['RANK'])")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(tmp_path)}
    said = []
    for line in commands(blocks("troubleshooting.md")[0]):
        done = run_program([*prefix, "/bin/sh", "-c", line], cwd=tmp_path, env=env)
        assert done.returncode == 0, (line, done.stderr)
        said.append(done.stdout + done.stderr)
    explained, ran, status, events, wrote, verdict = said
    assert explained.startswith("rallypoint run would start: ")
    assert "rank 0" in ran
    logs = [log.read_text() for log in (tmp_path / "logs").rglob("stdout.log")]
    assert sorted(logs) == ["rank 0\n", "rank 1\n"]
    assert ": succeeded " in status
    assert "job succeeded: " in events
    assert "rank 1" in wrote
    assert verdict.startswith("the job succeeded")
