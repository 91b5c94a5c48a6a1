"""Docstrings that a reader has to decode.

    python tools/plain_english.py [PATH ...]    default: src; each with its place, and their number

A docstring is a riddle when it begins with a relative clause or a bare preposition instead of
naming the thing: "Of the agent." for "The part of the agent.", "That no other coordinator has." for
"A random epoch, so that no other coordinator has the same." So it begins with a verb in the
imperative (a function's), or with a noun.
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


def main() -> int:
    """Return the command. Returns 1 if there is a riddle."""
    paths = [Path(path) for path in sys.argv[1:] or ("src",)]
    files = [
        f for path in paths for f in ([path] if path.is_file() else sorted(path.rglob("*.py")))
    ]
    number = 0
    for file in files:
        for line, text in riddles(ast.parse(file.read_text("utf-8"))):
            print(f"{file}:{line}: {text.splitlines()[0]}")
            number += 1
    print(f"{number:,} docstrings begin with a word that names nothing")
    return 1 if number else 0


if __name__ == "__main__":
    sys.exit(main())
