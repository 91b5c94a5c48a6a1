"""Streams of bytes cut into whole lines, in bounded memory.

Pure: bytes and times in, bytes out.

A line ends with a line feed; of one that was redrawn, as progress bars are, the last state is the
line (`drawing.py`). A line longer than the limit is split into several lines, never inside a UTF-8
character.
"""

from __future__ import annotations

import re
from math import inf

from rallypoint.process.relay.drawing import (
    Drawing,
    cut,
    draws,
    unfinished_escape,
    without_empty_end,
)

LINE_LIMIT = 64 * 1024
QUIET_S = 0.2
"""The time in seconds without new data after which a terminal shows an unfinished line."""
TAIL_LINES = 20
TAIL_BYTES = 8 * 1024
_DUMP = re.compile(rb"Fatal Python error: |Current thread 0x")
_PROMPT = re.compile(rb"[>:?)\]] ?\Z")
_DEBUGGER = re.compile(rb"(db\)+|db>|>>>|In \[[0-9]+\]:) \Z")


class LineAssembler:
    """The lines of one stream, put together from its data, each with a prefix.

    Holds at most one unfinished line, or the stream's drawing. Times are seconds of any monotonic
    clock.
    """

    __slots__ = ("_drawing", "_fed_s", "_held", "_limit", "_prefix")

    def __init__(self, prefix: bytes, limit: int = LINE_LIMIT) -> None:
        if limit < 4:
            raise ValueError("a UTF-8 character needs up to 4 bytes")
        self._prefix, self._limit, self._held = prefix, limit, b""
        self._drawing: Drawing | None = None
        self._fed_s = 0.0

    @property
    def begin(self) -> int:
        """The length of the prefix in bytes, after which a line begins."""
        return len(self._prefix)

    def feed(self, data: bytes, now: float) -> bytes:
        """Return the lines that `data` completes, each with its prefix and a line feed."""
        self._fed_s = now
        out = b""
        if self._drawing is not None:
            row, end, data = data.partition(b"\n")
            out = self._draw(row + end, now)
        if self._drawing is None:
            data = self._held + data
            if b"\r" in data:
                data = data.replace(b"\r\n", b"\n")
            if draws(data):
                self._held = b""
            else:
                plain = without_empty_end(data)
                out += self._plain(plain)
                data = data[len(plain) :]
        return out + self._draw(data, now) if data else out

    @property
    def is_drawn(self) -> bool:
        """Whether the stream is drawing, so that `settle` may have something to do."""
        return self._drawing is not None

    def due_at(self) -> float:
        """Return when `settle` or `shown` will have another result without new data; or inf."""
        if self._drawing is not None:
            return self._drawing.settles_at()
        return self._fed_s + QUIET_S if self._held else inf

    def settle(self, now: float) -> bytes:
        """Return the lines that are complete because their rows were not redrawn for a while."""
        if self._drawing is None:
            return b""
        lines = self._drawing.settle(now)
        self._stop_drawing()
        return self._lines(lines)

    def shown(self, now: float) -> list[bytes]:
        """Return the parts of the stream that a terminal shows besides its lines, with the prefix.

        They are the rows of a drawing, or an unfinished line after QUIET_S without data.
        """
        if self._drawing is not None:
            rows = self._drawing.rows
        elif self._fed_s + QUIET_S <= now:
            # A terminal would take what comes behind the beginning of an escape sequence for it.
            row = self._held[: len(self._held) - unfinished_escape(self._held)]
            rows = [row] if row else []
        else:
            rows = []
        return [self._prefix + row for row in rows]

    @property
    def is_prompt(self) -> bool:
        """Whether the unfinished line looks like a question to the user at the terminal."""
        return self._drawing is None and _PROMPT.search(self._held[-2:]) is not None

    def take_prompt(self) -> bytes:
        """Return the unfinished line with its prefix, for a terminal.

        A debugger's prompt is not returned again; any other may be the beginning of a line.
        """
        prompt = self._prefix + self._held
        if _DEBUGGER.search(self._held[-40:]):
            self._held = b""
        return prompt

    def finish(self) -> bytes:
        """Return what is unfinished as lines, with the prefix and a line feed.

        Nothing is held after.
        """
        if self._drawing is not None:
            rest = self._drawing.finish()
        else:
            rest = self._pieces(self._held) if self._held else []
        self._drawing, self._held = None, b""
        return self._lines(rest)

    def matching(self, lines: bytes, texts: tuple[bytes, ...]) -> bytes:
        """Return the lines that contain one of `texts` after the prefix."""
        if not lines or not any(text in lines for text in texts):
            return b""
        begin = len(self._prefix)
        return b"".join(
            line + b"\n"
            for line in lines[:-1].split(b"\n")
            if any(line.find(text, begin) >= 0 for text in texts)
        )

    def _draw(self, data: bytes, now: float) -> bytes:
        if self._drawing is None:
            self._drawing = Drawing(self._limit)
        lines = self._drawing.feed(data, now)
        self._stop_drawing()
        return self._lines(lines)

    def _stop_drawing(self) -> None:
        """Treat the stream as plain lines again, if nothing that was drawn is left."""
        if self._drawing is not None and self._drawing.is_plain:
            self._held, self._drawing = self._drawing.rest, None

    def _plain(self, text: bytes) -> bytes:
        """Return the whole lines of a text without drawing; the rest is held back."""
        if self._has_long_line(text):
            return self._lines(self._cut_up(text))
        # One replacement is several times as fast as work on each line.
        lines, end, self._held = text.rpartition(b"\n")
        return self._prefix + lines.replace(b"\n", b"\n" + self._prefix) + b"\n" if end else b""

    def _has_long_line(self, text: bytes) -> bool:
        """Return whether a line may be over the limit.

        In a text of up to two limits only one can be: that which has the byte at the limit.
        """
        limit = self._limit
        if len(text) <= limit:
            return False
        begin, end = text.rfind(b"\n", 0, limit) + 1, text.find(b"\n", limit)
        return len(text) > 2 * limit or (end if end >= 0 else len(text)) - begin > limit

    def _cut_up(self, text: bytes) -> list[bytes]:
        *lines, rest = text.split(b"\n")
        out: list[bytes] = []
        for line in lines:
            out.extend(self._pieces(line))
        while len(rest) > self._limit and len(rest) - unfinished_escape(rest) > self._limit:
            piece, rest = cut(rest, self._limit)
            out.append(piece)
        self._held = rest
        return out

    def _pieces(self, line: bytes) -> list[bytes]:
        pieces = []
        while len(line) > self._limit:
            piece, line = cut(line, self._limit)
            pieces.append(piece)
        pieces.append(line)
        return pieces

    def _lines(self, lines: list[bytes]) -> bytes:
        return b"".join([self._prefix + line + b"\n" for line in lines])


def last_lines(data: bytes) -> bytes:
    """Return the last lines of `data`: 20 at most, and 8 KiB.

    A line that the bound cuts loses its beginning, and what a carriage return let be overwritten is
    left out.

    A dump of Python's at a fatal signal is kept from ten lines before its beginning on, however
    many lines that are within the 8 KiB: the frame that matters comes first.
    """
    end = data[-TAIL_BYTES:]
    # A cut may have hit the middle of a character.
    while len(data) > len(end) and end and end[0] & 0xC0 == 0x80:
        end = end[1:]
    rows = end.splitlines(keepends=True)
    lines = [row for row in rows[:-1] if not row.endswith(b"\r")] + rows[-1:]
    start = max(0, len(lines) - TAIL_LINES)
    dump = next((n for n, line in enumerate(lines) if _DUMP.match(line)), len(lines))
    return b"".join(lines[min(start, max(0, dump - TAIL_LINES // 2)) :])
