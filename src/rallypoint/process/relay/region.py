"""The rows at the bottom of a terminal that are redrawn in place: what workers draw, one row for
each, above the status line.

Pure: sizes and times in, bytes out. Lines scroll above these rows: whoever writes some erases the
rows first, and paints them again behind. A row that is too wide is cut by the terminal, which is
told not to wrap.
"""

from __future__ import annotations

import re
from math import inf
from typing import TypeAlias

REDRAW_S = 0.1
"""The rows that workers draw are redrawn at most so often."""
LEAST_ROWS = 3
"""These may be used in a terminal of any height; else a third of its rows."""
_ROW_BYTES = 4096
# Without automatic margins a text that is too wide is cut by the terminal, not wrapped.
_WRAP_OFF, _WRAP_ON = b"\x1b[?7l", b"\x1b[?7h"
_ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|[\x80-\xbf]")
_WIDE = re.compile(rb"[\xe3-\xed\xf0-\xf4]")

Worker: TypeAlias = tuple[int, int]
"""Round and local rank."""
Key: TypeAlias = tuple[Worker, int]
"""A worker's stdout (1) or stderr (2)."""


class Region:
    """What should be there, and what is. `columns` and `lines` are the terminal's size."""

    __slots__ = ("_columns", "_drawn", "_is_stale", "_painted", "_painted_s", "_status")

    def __init__(self) -> None:
        self._status = b""
        self._drawn: dict[Key, list[bytes]] = {}
        self._painted: list[bytes] = []
        self._columns = 0  # the width of the terminal when that was painted
        self._painted_s = -inf
        self._is_stale = False

    @property
    def is_painted(self) -> bool:
        return bool(self._painted)

    def show_status(self, text: bytes) -> None:
        """Replace the status line; empty takes it away."""
        self._is_stale |= text != self._status
        self._status = text

    def show(self, key: Key, rows: list[bytes]) -> bool:
        """Replace what this stream shows; no rows take it away. Whether that changes anything."""
        if self._drawn.get(key, []) == rows:
            return False
        if rows:
            self._drawn[key] = rows
        else:
            del self._drawn[key]
        self._is_stale = True
        return True

    def due_at(self) -> float:
        """When to paint next: -inf: at once, inf: there is nothing new."""
        if not self._is_stale:
            return inf
        return self._painted_s + REDRAW_S if self._drawn else -inf

    def lines_due_at(self) -> float:
        """Until when lines may wait, so that these rows are not redrawn for every line."""
        return self._painted_s + REDRAW_S if self._painted and self._drawn else -inf

    def forget(self) -> None:
        """The terminal was another's meanwhile: what was painted is not to be erased."""
        self._is_stale |= self.is_painted
        self._painted = []

    def erase(self, columns: int) -> bytes:
        """Take the rows away; the cursor is then where a line starts."""
        if not self._painted:
            return b""
        rows = self._height(columns)
        self._painted, self._is_stale = [], True
        return b"\r\x1b[2K" if rows == 1 else b"\r\x1b[%dA\x1b[J" % (rows - 1)

    def paint(self, columns: int, lines: int, now: float) -> bytes:
        """Bring the terminal up to date; the cursor is then behind the last row."""
        wanted = [_clipped(row) for row in self._wanted(max(LEAST_ROWS, lines // 3))]
        if wanted == self._painted and columns == self._columns:
            out = b""
        elif not wanted:
            out = self.erase(columns)
        elif not self._painted:
            out = _WRAP_OFF + b"\r\n".join(wanted) + _WRAP_ON
        else:
            rows = self._height(columns)
            up = b"\x1b[%dA" % (rows - 1) if rows > 1 else b""
            anew = b"\r\n".join([b"\x1b[2K" + row for row in wanted])
            below = b"\x1b[J" if rows > len(wanted) else b""
            out = b"\r" + up + _WRAP_OFF + anew + below + _WRAP_ON
        self._painted, self._is_stale = wanted, False
        self._columns, self._painted_s = columns, now
        return out

    def _wanted(self, room: int) -> list[bytes]:
        status = [self._status] if self._status else []
        room -= len(status)
        keys = sorted(self._drawn)
        rows = [row for key in keys for row in self._drawn[key]]
        if len(rows) > room:
            rows = [self._drawn[key][0] for key in keys]
        if len(rows) > room:
            shown = {worker for worker, _ in keys[: room - 1]}
            more = len({worker for worker, _ in keys} - shown)
            rest = f"… and {more} more rank{'s' * (more > 1)}" if more else "…"
            rows = [*rows[: room - 1], rest.encode()]
        return rows + status

    def _height(self, columns: int) -> int:
        """How many rows the terminal has made of what was painted; many wrap anew what has become
        too wide for them."""
        if columns >= self._columns or columns <= 0:
            return len(self._painted)
        return sum(-(-_width(row, self._columns) // columns) or 1 for row in self._painted)


def _clipped(row: bytes) -> bytes:
    """A row that a terminal can take ten times a second, with its colours ended."""
    return row[:_ROW_BYTES] + b"\x1b[0m" if b"\x1b" in row else row[:_ROW_BYTES]


def _width(row: bytes, most: int) -> int:
    """How many columns it takes, about."""
    text = _ESCAPES.sub(b"", row)
    return min(len(text) + len(_WIDE.findall(text)), most)
