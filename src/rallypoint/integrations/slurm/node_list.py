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
from collections.abc import Iterator
from itertools import product

from rallypoint.core.settings import MAX_NODES

_PART = re.compile(r"([^\[\],]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


def node_names(text: str) -> tuple[str, ...]:
    """The names, in the order of the list, which has at most as many as a job can have nodes.

    Raises ValueError with what is wrong with the text.
    """
    names: list[str] = []
    position = 0
    while position < len(text):
        parts: list[list[str]] = []
        start = position
        while position < len(text) and text[position] != ",":
            found = _PART.match(text, position)
            if found is None or found.end() == position:
                raise ValueError(f"{text[position:]!r} is no part of a list of nodes")
            position = found.end()
            parts.append([found[1]])
            if found[2] is not None:
                parts.append(list(_numbers(found[2])))
        if start == position:
            raise ValueError("a name is missing")
        position += 1
        names += map("".join, product(*parts))
        if len(names) > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} nodes")
    if not names:
        raise ValueError("it is empty")
    return tuple(names)


def _numbers(ranges: str) -> Iterator[str]:
    for each in ranges.split(","):
        found = _RANGE.fullmatch(each)
        if found is None:
            raise ValueError(f"{each!r} is no number and no range of numbers")
        first, last = found[1], found[2] or found[1]
        if not 0 <= int(last) - int(first) < MAX_NODES:
            raise ValueError(f"{each!r} is no range of at most {MAX_NODES} numbers")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
