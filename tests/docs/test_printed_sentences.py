"""A sentence that Rallypoint prints has at most 25 words: a tired person reads it once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.page import DOCS

SOURCE = DOCS.parent / "src" / "rallypoint"
WORDS = 25
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")


def text_of(node: ast.AST) -> str | None:
    """The text of a literal, also of one in several pieces; a placeholder is one word."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(text_of(value) or "{}" for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [text_of(left), text_of(right)]
            return None if parts == [None, None] else "".join(part or "{}" for part in parts)
    return None


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The texts of a module with their lines; docstrings are none of them."""
    seen: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            seen.add(node.value)
        elif isinstance(node, ast.expr) and node not in seen and (text := text_of(node)):
            seen.update(ast.walk(node))
            yield node.lineno, text


def long_sentences(source: str) -> list[str]:
    """The sentences of more words than one may have, each behind the number of its line."""
    return [
        f"{line}: {sentence}"
        for line, text in texts(source)
        for sentence in SENTENCE_END.split(text)
        if len(sentence.split()) > WORDS
    ]


@pytest.mark.parametrize("folder", sorted(p for p in SOURCE.iterdir()), ids=lambda p: p.name)
def test_no_printed_sentence_is_too_long(folder: Path) -> None:
    paths = [folder] if folder.suffix == ".py" else sorted(folder.rglob("*.py"))
    found = {path.name: long_sentences(path.read_text("utf-8")) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_sentence_of_26_words_is_long_and_two_of_25_are_not() -> None:
    words = "word " * 24
    assert long_sentences(f'"""{words * 3}"""\nsay(f"{words}{{a.b}}. {words}end")') == []
    assert len(long_sentences(f'raise Error("{words}" "and " f"{{more}}")')) == 1
