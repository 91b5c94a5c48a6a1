"""Slurm's lists of nodes. Pure.

    n[1-3,7]            n1 n2 n3 n7
    n[08-10],login      n08 n09 n10 login
    r[1-2]n[1-2]        r1n1 r1n2 r2n1 r2n2

They are read here since a container has none of Slurm's commands. As by `scontrol show hostnames`,
each pair of brackets stands for numbers and ranges of them, a number has the leading zeros that its
range begins with, and the last brackets of a name count fastest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod

from rallypoint.core.settings import MAX_NODES
from rallypoint.core.text import shown

_PART = re.compile(r"([^\[\],]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_LENGTH_MAX = 1024
"""The longest name in characters, with the user and the slots that a hostfile adds."""
_SHOWN = 60

_Numbers = list[tuple[range, int]]
"""Ranges of numbers, and the minimum number of digits of each range."""
_Name = list[str | _Numbers]
"""The parts of one entry of a list of nodes: texts, and numbers in brackets."""


def node_names(text: str) -> tuple[str, ...]:
    """Return the names in the order of the list.

    Raises ValueError with the fault in the text, also for more names than a job can have nodes:
    those are not built.
    """
    entries = _entries(text)
    if _size(entries) > MAX_NODES:
        raise ValueError(f"more than {MAX_NODES} nodes")
    return tuple("".join(name) for entry in entries for name in product(*map(_texts, entry)))


def node_count(text: str) -> int:
    """Return how many names a list of nodes has, counted without building them.

    Raises ValueError with the fault in the text, but not for too many names.
    """
    return _size(_entries(text))


def _entries(text: str) -> list[_Name]:
    entries: list[_Name] = []
    position = 0
    while position < len(text):
        entry: _Name = []
        start, length = position, 0
        while position < len(text) and text[position] != ",":
            found = _PART.match(text, position)
            if found is None or found.end() == position:
                raise ValueError(f"{_brief(text[position:])} is no part of a list of nodes")
            position = found.end()
            entry.append(found[1])
            length += len(found[1])
            if found[2] is not None:
                numbers = _numbers(found[2])
                length += max(max(digits, len(str(each[-1]))) for each, digits in numbers)
                entry.append(numbers)
        if start == position:
            raise ValueError("a name is missing")
        if length > _LENGTH_MAX:
            raise ValueError(f"{_brief(text[start:])} has more than {_LENGTH_MAX} characters")
        position += 1
        entries.append(entry)
    if not entries:
        raise ValueError("it is empty")
    return entries


def _size(entries: Sequence[_Name]) -> int:
    return sum(
        prod(sum(len(each) for each, _ in part) for part in entry if not isinstance(part, str))
        for entry in entries
    )


def _texts(part: str | _Numbers) -> Sequence[str]:
    if isinstance(part, str):
        return (part,)
    return [str(number).zfill(digits) for numbers, digits in part for number in numbers]


def _numbers(text: str) -> _Numbers:
    ranges: _Numbers = []
    for each in text.split(","):
        found = _RANGE.fullmatch(each)
        if found is None:
            raise ValueError(f"{_brief(each)} is no number and no range of numbers")
        first, last = found[1], found[2] or found[1]
        if not 0 <= int(last) - int(first) < MAX_NODES:
            raise ValueError(f"{each!r} is no range of at most {MAX_NODES} numbers")
        ranges.append((range(int(first), int(last) + 1), len(first)))
    return ranges


def _brief(text: str) -> str:
    """Return the text in quotes, cut if it is long, for an error."""
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"'{text}'" if text.isprintable() else shown(text)
