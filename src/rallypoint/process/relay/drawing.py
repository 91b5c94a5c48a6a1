"""What one stream draws: a few rows of text, and a cursor that may move back into them.

Pure: bytes and times in, finished lines out. Enough of a terminal for progress bars: a carriage
return, a backspace, and the escape sequences that move the cursor up and down or erase. Text that
is written after the cursor moved back replaces the rest of its row.

A plain row is a line as soon as it ends. A row that was drawn becomes one SETTLED_S after the
cursor was last in it or above it, because a program that draws several bars moves up again.
"""

from __future__ import annotations

import re
from math import inf

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
    """Whether `text` moves the cursor of a terminal other than by its line feeds."""
    if b"\r" in text or b"\b" in text:
        return True
    return b"\x1b" in text and _MOVES.search(text) is not None


def without_empty_end(text: bytes) -> bytes:
    """`text` without empty lines at its end, which may be room for a bar below: the cursor will
    move up again."""
    if text.endswith(b"\n\n"):
        text = text.rstrip(b"\n") + b"\n"
    return b"" if text == b"\n" else text


def unfinished_escape(text: bytes) -> int:
    """The length of an escape sequence at the end of `text` that needs more bytes; 0: none."""
    end = text[-40:]
    found = _UNFINISHED.search(end) if b"\x1b" in end else None
    return len(found[0]) if found else 0


def cut(line: bytes, limit: int) -> tuple[bytes, bytes]:
    """`line` at the last start of a UTF-8 character that is not beyond `limit`."""
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
        """The text as a line; colours of a drawn one end with it."""
        if not self.drawn:
            return self.text
        text = self.text.rstrip(b" ")
        return text + _RESET if b"\x1b[" in text and not text.endswith(_RESET) else text


class Drawing:
    """The rows of one stream that are no lines yet: at most MAX_ROWS of `limit` bytes each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows = [_Row()]
        self._cursor = 0
        self._at: int | None = None  # where in its row the cursor is; None: at the end
        self._came_by_line_feed = False
        self._undecided = b""

    @property
    def is_plain(self) -> bool:
        """Whether all that is left is the beginning of a line, which is `rest`."""
        return len(self._rows) == 1 and not self._rows[0].drawn and self._at is None

    @property
    def rest(self) -> bytes:
        return self._rows[0].text + self._undecided

    @property
    def rows(self) -> list[bytes]:
        """What there is to see, from top to bottom."""
        return [text for row in self._rows if (text := row.shown())]

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """The lines that `data` finishes."""
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
        """When `settle` has something to do, if nothing is fed before; or inf."""
        is_over = self._cursor > 0 or (self._came_by_line_feed and len(self._rows) > 1)
        return self._rows[0].touched_s + SETTLED_S if is_over else inf

    def settle(self, now: float) -> list[bytes]:
        """The rows above the cursor to which it has not returned for SETTLED_S."""
        lines: list[bytes] = []
        while self._cursor > 0 and self._rows[0].touched_s + SETTLED_S <= now:
            self._drop_top(lines)
        if self._came_by_line_feed and self._rows[0].touched_s + SETTLED_S <= now:
            del self._rows[self._cursor + 1 :]
        return lines

    def finish(self) -> list[bytes]:
        """All rows as lines; what a finished bar left below the cursor is none."""
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
        """The uppermost row as a line; one that a program has blanked is none."""
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
