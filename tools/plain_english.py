"""Docstrings that a reader has to decode, and sentences for people that are too long.

    python tools/plain_english.py [PATH ...]    default: src; each with its place, and their number

A docstring is a riddle when it begins with a relative clause or a bare preposition instead of
naming the thing: "Of the agent." for "The part of the agent.", "That no other coordinator has." for
"A random epoch, so that no other coordinator has the same." So it begins with a verb in the
imperative (a function's), or with a noun.

A sentence is too long with more than 25 words, in any text of the source that is no docstring:
error lines, log lines, help. A value that is filled in counts as one word. A text that begins with
a line break is a table or a pattern.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":  # It is run by its path, too.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.code_lines import docstring_of, statements

RIDDLE = re.compile(
    r"(As|Also|By|From which|In which|Its?|Neither|Nobody|Not|Nothing|Of|So|That|Their|There|These"
    r"|They|This|Those|What|Whatever|Which|Who|Whoever|Whom|Whose)\b"
)
"""The one list of words that no docstring begins with."""
WORDS_MAX = 25
SENTENCE_END = re.compile(r"[.!?]\s+|\n\s*\n|\n(?= )")
"""A full stop, an empty line, or an indented line, as of a list or an example."""


def is_riddle(docstring: str) -> bool:
    """Return whether the docstring begins with a word of the list."""
    return RIDDLE.match(docstring.strip()) is not None


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, those of attributes included."""
    for node in statements(tree):
        if text := docstring_of(node):
            yield node.lineno, text


def riddles(tree: ast.Module) -> list[tuple[int, str]]:
    """Return line and text of the docstrings that are riddles."""
    return sorted((line, text.strip()) for line, text in docstrings(tree) if is_riddle(text))


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each literal that is no docstring, with an X for each value in it."""
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr | ast.JoinedStr)
        for part in ast.iter_child_nodes(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            values = (each.value if isinstance(each, ast.Constant) else "X" for each in node.values)
            yield node.lineno, "".join(map(str, values))
        elif isinstance(node, ast.Constant) and id(node) not in inner and type(node.value) is str:
            yield node.lineno, node.value


def long_sentences(tree: ast.Module) -> list[tuple[int, str]]:
    """Return line and text of the sentences with more than `WORDS_MAX` words."""
    return [
        (line, sentence)
        for line, text in texts(tree)
        if not text.startswith("\n")
        for sentence in SENTENCE_END.split(text)
        if sum(any(map(str.isalnum, word)) for word in sentence.split()) > WORDS_MAX
    ]


def main() -> int:
    """Return the command. Returns 1 if there is a riddle."""
    paths = [Path(path) for path in sys.argv[1:] or ("src",)]
    files = [
        f for path in paths for f in ([path] if path.is_file() else sorted(path.rglob("*.py")))
    ]
    number = number_long = 0
    for file in files:
        tree = ast.parse(file.read_text("utf-8"))
        for line, text in riddles(tree):
            print(f"{file}:{line}: {text.splitlines()[0]}")
            number += 1
        for line, text in long_sentences(tree):
            print(f"{file}:{line}: {' '.join(text.split())}")
            number_long += 1
    print(f"{number:,} docstrings begin with a word that names nothing")
    print(f"{number_long:,} sentences have more than {WORDS_MAX} words")
    return 1 if number + number_long else 0


if __name__ == "__main__":
    sys.exit(main())
