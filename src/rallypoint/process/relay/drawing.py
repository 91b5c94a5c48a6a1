"""Progress bars: what each stream draws, and the rows at the bottom of a terminal that show it.

Pure: bytes, sizes and times in; finished lines, or bytes for the terminal, out.

A `Drawing` is one stream: a few rows of text, and a cursor that may move back into them. Enough of
a terminal for progress bars: a carriage return, a backspace, and the escape sequences that move the
cursor up and down or erase. Text that is written after the cursor moved back replaces the rest of
its row. A plain row is a line as soon as it ends. A row that was drawn becomes one SETTLED_S after
the cursor was last in it or above it, because a program that draws several bars moves up again.

The `Region` is the rows that are redrawn in place: what workers draw, one row for each, above the
status line. Lines scroll above these rows: whoever writes some erases the rows first, and paints
them again behind. A row that is too wide is cut by the terminal, which is told not to wrap.
"""

from __future__ import annotations

import re
from math import inf
from typing import TypeAlias

from msgspec import Struct

SETTLED_S = 0.5
MAX_ROWS = 256

_CONTROL = rb"\x1b\[([0-?]{0,32})[ -/]{0,4}"
_TOKENS = re.compile(_CONTROL + rb"([@-~])|[\r\n\b]|[^\r\n\b\x1b]+|\x1b")
_MOVES = re.compile(_CONTROL + rb"[@-ln-~]")
_UNFINISHED = re.compile(rb"\x1b(\[[0-?]{0,32}[ -/]{0,4})?\Z")
_LAST_CHARACTER = re.compile(rb"([^\x80-\xbf][\x80-\xbf]*|[\x80-\xbf])(\x1b\[[0-9;]*m)*\Z")
_RESET = b"\x1b[0m"


def draws(text: bytes) -> bool:
    """Return whether `text` moves a terminal's cursor other than by line feeds."""
    if b"\r" in text or b"\b" in text:
        return True
    return b"\x1b" in text and _MOVES.search(text) is not None


def without_empty_end(text: bytes) -> bytes:
    """Return `text` without empty lines at its end.

    They may be space for a bar below: the cursor will move up again.
    """
    if text.endswith(b"\n\n"):
        text = text.rstrip(b"\n") + b"\n"
    return b"" if text == b"\n" else text


def unfinished_escape(text: bytes) -> int:
    """Return the length of an unfinished escape sequence at the end of `text`; 0: none.

    It needs more bytes.
    """
    end = text[-40:]
    found = _UNFINISHED.search(end) if b"\x1b" in end else None
    return len(found[0]) if found else 0


def cut(line: bytes, limit: int) -> tuple[bytes, bytes]:
    """Split `line` at the last start of a UTF-8 character up to `limit`."""
    at = limit
    while at > limit - 4 and line[at] & 0xC0 == 0x80:
        at -= 1
    # Four continuation bytes in a row are no UTF-8: cut anywhere.
    at = at if line[at] & 0xC0 != 0x80 else limit
    return line[:at], line[at:]


class _Row(Struct):
    text: bytes = b""
    drawn: bool = False
    touched_s: float = 0.0
    """When the cursor was last in this row or above it."""

    def shown(self) -> bytes:
        """Return the text as a line; a drawn one ends its colours and has no spaces at its end."""
        if not self.drawn:
            return self.text
        text = self.text.rstrip(b" ")
        return text + _RESET if b"\x1b[" in text and not text.endswith(_RESET) else text


class Drawing:
    """The unfinished rows of one stream, as a terminal would show them.

    There are at most MAX_ROWS, of `limit` bytes each.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows = [_Row()]
        self._cursor = 0
        self._at: int | None = None  # where in its row the cursor is; None: at the end
        self._came_by_line_feed = False
        self._undecided = b""

    @property
    def is_plain(self) -> bool:
        """Whether only the beginning of a plain line is left, which is `rest`."""
        return len(self._rows) == 1 and not self._rows[0].drawn and self._at is None

    @property
    def rest(self) -> bytes:
        return self._rows[0].text + self._undecided

    @property
    def rows(self) -> list[bytes]:
        """The rows that are not empty, from top to bottom."""
        return [text for row in self._rows if (text := row.shown())]

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Add data, and return the lines that it finishes."""
        data = self._undecided + data
        waits = unfinished_escape(data)
        data, self._undecided = data[: len(data) - waits], data[len(data) - waits :]
        lines: list[bytes] = []
        highest = self._cursor
        for token in _TOKENS.finditer(data):
            text = token[0]
            if text == b"\n":
                self._line_feed(lines)
            else:
                self._came_by_line_feed = False
                if text == b"\r":
                    self._at = 0
                elif text == b"\b":
                    self._back(1)
                elif token[2] and token[2] != b"m":
                    self._control(token[2], token[1])
                else:
                    self._write(text, lines)
            highest = min(highest, self._cursor)
        for row in self._rows[highest:]:
            row.touched_s = now
        return lines

    def settles_at(self) -> float:
        """Return when `settle` has something to do, if no data comes before; or inf."""
        is_over = self._cursor > 0 or (self._came_by_line_feed and len(self._rows) > 1)
        return self._rows[0].touched_s + SETTLED_S if is_over else inf

    def settle(self, now: float) -> list[bytes]:
        """Drop the rows above the cursor to which it has not returned for SETTLED_S.

        Returns them as lines, without blanked ones. What a finished bar left below the cursor is
        dropped, too.
        """
        lines: list[bytes] = []
        while self._cursor > 0 and self._rows[0].touched_s + SETTLED_S <= now:
            self._drop_top(lines)
        if self._came_by_line_feed and self._rows[0].touched_s + SETTLED_S <= now:
            del self._rows[self._cursor + 1 :]
        return lines

    def finish(self) -> list[bytes]:
        """Return all rows as lines.

        Rows that a finished bar left below the cursor are left out, and so are rows that a program
        has blanked.
        """
        if self._undecided:
            self._write(self._undecided, [])
        if self._came_by_line_feed:
            del self._rows[self._cursor + 1 :]
        lines: list[bytes] = []
        while len(self._rows) > 1:
            self._drop_top(lines)
        return lines + [text for text in [self._rows[0].shown()] if text]

    # --- what a terminal does

    def _line_feed(self, lines: list[bytes]) -> None:
        row, self._came_by_line_feed = self._rows[self._cursor], True
        if self._cursor + 1 < len(self._rows):
            self._cursor, self._at = self._cursor + 1, 0
            return
        self._rows.append(_Row())
        self._cursor, self._at = self._cursor + 1, None
        ends = bool(row.text) and not row.drawn
        while self._cursor > 0 and (ends or len(self._rows) > MAX_ROWS):
            self._drop_top(lines)

    def _drop_top(self, lines: list[bytes]) -> None:
        """Move the uppermost row to `lines`; one that a program has blanked is only dropped."""
        row = self._rows.pop(0)
        self._cursor = max(0, self._cursor - 1)
        if row.shown() or not row.drawn:
            lines.append(row.shown())

    def _write(self, text: bytes, lines: list[bytes]) -> None:
        row = self._rows[self._cursor]
        if self._at is not None:
            # A bar that was overwritten with spaces is gone: what follows is a plain row.
            row.drawn = not row.text or bool(row.text.strip(b" "))
            row.text, self._at = row.text[: self._at], None
        row.text += text
        while len(row.text) > self._limit:
            while self._cursor > 0:
                self._drop_top(lines)
            piece, row.text = cut(row.text, self._limit)
            lines.append(piece)

    def _back(self, columns: int) -> None:
        before = self._rows[self._cursor].text[: self._at]
        for _ in range(min(columns, len(before))):
            before = _LAST_CHARACTER.sub(b"", before)
        self._at = len(before)

    def _control(self, final: bytes, parameter: bytes) -> None:
        number = int(parameter) if parameter.isdigit() else 0
        match final:
            case b"A" | b"F":
                self._move(-max(1, number), to_start=final == b"F")
            case b"B" | b"E":
                self._move(max(1, number), to_start=final == b"E")
            case b"D":
                self._back(max(1, number))
            case b"G" if number <= 1:
                self._at = 0
            case b"H" | b"f":
                self._move(-self._cursor, to_start=True)
            case b"J":
                self._erase(whole_row=number > 0)
                del self._rows[self._cursor + 1 :]
                for row in self._rows[: self._cursor] if number > 1 else ():
                    row.text, row.drawn = b"", True
            case b"K" if number != 1:
                self._erase(whole_row=number == 2)
            case _:
                pass

    def _move(self, rows: int, *, to_start: bool) -> None:
        begin = self._cursor
        self._cursor += max(-MAX_ROWS, min(rows, MAX_ROWS))
        above = min(-self._cursor, MAX_ROWS - len(self._rows))
        if above > 0:
            self._rows[:0] = [_Row() for _ in range(above)]
            begin += above
        self._cursor = max(0, min(self._cursor, MAX_ROWS - 1))
        while len(self._rows) <= self._cursor:
            self._rows.append(_Row())
        for row in self._rows[min(begin, self._cursor) : max(begin, self._cursor) + 1]:
            row.drawn = True
        self._at = 0 if to_start or self._at == 0 else None

    def _erase(self, *, whole_row: bool) -> None:
        row, at = self._rows[self._cursor], 0 if whole_row else self._at
        if at is not None and row.text[at:]:
            row.text, row.drawn = row.text[:at], True


REDRAW_S = 0.1
"""The shortest interval in seconds of redrawing workers' rows."""
LEAST_ROWS = 3
"""The most rows that are used in a low terminal; in a higher one a third of its rows."""
_ROW_BYTES = 4096
# Without automatic margins a text that is too wide is cut by the terminal, not wrapped.
_WRAP_OFF, _WRAP_ON = b"\x1b[?7l", b"\x1b[?7h"
_ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|[\x80-\xbf]")
_WIDE = re.compile(rb"[\xe3-\xed\xf0-\xf4]")

WorkerKey: TypeAlias = tuple[int, int]
"""The key of a worker: its round and its local rank."""
Key: TypeAlias = tuple[WorkerKey, int]
"""The key of a worker's stream: the worker, and 1 for stdout or 2 for stderr."""


class Region:
    """The wanted and the present content of the terminal's lowest rows.

    `columns` and `lines` are the terminal's size.
    """

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
        """Set the status line that the next `paint` shows; empty: none."""
        self._is_stale |= text != self._status
        self._status = text

    def show(self, key: Key, rows: list[bytes]) -> bool:
        """Replace the rows of this stream; no rows remove them. Return whether anything changed."""
        if self._drawn.get(key, []) == rows:
            return False
        if rows:
            self._drawn[key] = rows
        else:
            del self._drawn[key]
        self._is_stale = True
        return True

    def due_at(self) -> float:
        """Return when to paint next: -inf: at once, inf: there is nothing new."""
        if not self._is_stale:
            return inf
        return self._painted_s + REDRAW_S if self._drawn else -inf

    def lines_due_at(self) -> float:
        """Return until when lines may wait, lest rows be redrawn for each; -inf: no longer."""
        return self._painted_s + REDRAW_S if self._painted and self._drawn else -inf

    def forget(self) -> None:
        """Forget what was painted, because another program used the terminal meanwhile."""
        self._is_stale |= self.is_painted
        self._painted = []

    def erase(self, columns: int) -> bytes:
        """Return the bytes that take the rows away.

        The cursor is then at the start of a line.
        """
        if not self._painted:
            return b""
        rows = self._height(columns)
        self._painted, self._is_stale = [], True
        return b"\r\x1b[2K" if rows == 1 else b"\r\x1b[%dA\x1b[J" % (rows - 1)

    def paint(self, columns: int, lines: int, now: float) -> bytes:
        """Return the bytes that bring the terminal up to date.

        The cursor is then behind the last row.
        """
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
        """Return how many rows the painted text takes in the terminal.

        Many terminals wrap rows anew that have become too wide for them.
        """
        if columns >= self._columns or columns <= 0:
            return len(self._painted)
        return sum(-(-_width(row, self._columns) // columns) or 1 for row in self._painted)


def _clipped(row: bytes) -> bytes:
    """Return a row cut to a length for frequent redrawing, with its colours ended."""
    return row[:_ROW_BYTES] + b"\x1b[0m" if b"\x1b" in row else row[:_ROW_BYTES]


def _width(row: bytes, most: int) -> int:
    """Return the approximate width of a row in columns."""
    text = _ESCAPES.sub(b"", row)
    return min(len(text) + len(_WIDE.findall(text)), most)
