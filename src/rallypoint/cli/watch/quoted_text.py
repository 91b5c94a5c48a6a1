"""Lines of a worker's output, in a column of a terminal. Pure.

The number of a source line is never cut off.
"""

from __future__ import annotations

import re
from textwrap import wrap

PARTS_MAX = 4
"""The most lines of a terminal that one long line of a worker takes."""
_LEAST_PATH = 20
"""The length in characters to which a path is cut before the name of a function is cut."""
_FRAME = re.compile(r'(?P<head>.{0,40}?File ")(?P<path>.*)(?P<line>", line \d+)(?P<function>.*)')


def fitted(line: str, room: int) -> list[str]:
    """Return this line as lines of at most `room` columns.

    Of a stack frame the beginning of the path is left out, and if necessary the end of the
    function's name. What is still too long is wrapped, and cut after `PARTS_MAX` lines.
    """
    if len(line) <= room:
        return [line]
    if (frame := _FRAME.fullmatch(line)) is not None:
        return _wrapped(_short_frame(frame, room), room)
    return _wrapped(line, room)


def tail_of_path(path: str, room: int) -> str:
    """Return the end of a path, which is its informative part, in at most `room` columns."""
    return path if len(path) <= room else f"…{path[-max(room - 1, 1) :]}"


def _short_frame(frame: re.Match[str], room: int) -> str:
    head, path, line, function = frame["head"], frame["path"], frame["line"], frame["function"]
    for_both = room - len(head) - len(line)
    for_path = max(for_both - len(function), min(_LEAST_PATH, len(path)))
    short = tail_of_path(path, for_path)
    left = for_both - len(short)
    if len(function) > left:
        function = f"{function[: max(left - 1, 0)]}…"
    return f"{head}{short}{line}{function}"


def _wrapped(line: str, room: int) -> list[str]:
    """Wrap a text, and return its first lines, at most `PARTS_MAX` of them."""
    margin = " " * min(len(line) - len(line.lstrip()), room // 4)
    parts = wrap(
        line.strip(),
        room,
        initial_indent=margin,
        subsequent_indent=margin,
        break_on_hyphens=False,
    )
    if len(parts) <= PARTS_MAX:
        return parts
    return [*parts[: PARTS_MAX - 1], f"{parts[PARTS_MAX - 1][: room - 1]}…"]
