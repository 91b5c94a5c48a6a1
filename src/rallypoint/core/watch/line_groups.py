"""Lines of many workers in few: an equal line of several ranks is one. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

from rallypoint.core.watch.names import brief_ranks

SAME_S = 5.0
"""The time in seconds within which equal lines of two ranks are folded into one."""
_ESCAPES = re.compile(r"\x1b(\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_])")


class WorkerLine(Struct, frozen=True):
    """A line that one worker wrote."""

    at: float
    """The arrival time, by any clock."""
    rank: int
    text: str


class LineGroup(Struct, eq=False):
    """A line, and the ranks that wrote it."""

    at: float
    """The time of the first of these lines."""
    text: str
    ranks: set[int] = field(default_factory=set)


def fold_lines(lines: Iterable[WorkerLine]) -> list[LineGroup]:
    """Fold equal lines of several ranks, if they arrived within `SAME_S`; keep the order.

    The order is that of arrival. A line that one rank writes twice stays twice.
    """
    found: list[LineGroup] = []
    by_text: dict[str, deque[LineGroup]] = {}
    for line in sorted(lines, key=lambda line: line.at):  # Those of one time keep their order.
        same = by_text.setdefault(line.text, deque())
        while same and same[0].at < line.at - SAME_S:
            same.popleft()
        group = next((one for one in same if line.rank not in one.ranks), None)
        if group is None:
            group = LineGroup(line.at, line.text)
            same.append(group)
            found.append(group)
        group.ranks.add(line.rank)
    return found


def lines_of(text: str) -> list[str]:
    """Return the lines of a worker's output, without colours and empty lines.

    A line that was redrawn is there in its last state.
    """
    found = []
    for line in _ESCAPES.sub("", text).split("\n"):
        states = [state for state in line.split("\r") if state.strip()]
        if states:
            found.append(states[-1].rstrip())
    return found


def log_lines(groups: Iterable[LineGroup]) -> list[str]:
    """Return each line after the ranks that wrote it: `[0-63] epoch 3 done`."""
    return [f"[{brief_ranks(group.ranks)}] {group.text}" for group in groups]
