"""Remember the tracebacks of a worker apart from the end of its stderr, so that no later output
displaces them. Pure: bytes in, pieces of the stream out, in bounded memory.

The relay keeps parts of the newest two tracebacks: the beginning, the frames next to the exception,
and the exception's first words. It also keeps the message of C++'s `terminate`. Python, loguru,
rich and IPython use the same words in the first line of a traceback. Other forms are found only in
the end of the stream. Data without these words costs no more than two searches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

CONTEXT_BYTES = 256
"""Length of the text before the header, which shows whether Python ignored the exception."""
CHAIN_BYTES, HEAD_BYTES, ROLL_BYTES, TEXT_BYTES = 3 * 1024, 8 * 1024, 3 * 1024, 4 * 1024
"""Limits for one traceback: its earlier chain, the part from its header on, the frames before the
exception, and the part from the exception on."""
WHAT_BYTES = 2 * 1024
RECENT_BYTES = 12 * 1024
"""Length of the end of a stream in a worker's last words."""
_SEEK_BYTES = 2 * 1024 * 1024
"""Longest distance between a header and its exception."""
_LINE_BYTES = 1024
_HEADER, _WHAT = b"(most recent call last)", b"terminate called after"
_NAME = b"raceback"
"""Before the mark of a header, perhaps with colours between."""
_COLOURS = rb"(?:\x1b\[[\d;]*m)*"
_IGNORED = re.compile(rb"Exception ignored (in|on|while|from)\b|--- Logging error ---|in atexit\.")
_CHAINED = re.compile(rb"(another exception occurred|of the following exception):\s*\Z")


class Piece(Struct, frozen=True, array_like=True):
    """A part of a stream; `at` is the number of bytes before it."""

    at: int
    data: bytes


class LastWords(Struct, frozen=True):
    """The parts of a worker's output that may show why it failed."""

    stderr: tuple[Piece, ...] = ()
    """Pieces in the order of their place; they may overlap. The last one is the stream's end."""
    stdout: tuple[Piece, ...] = ()
    """Pieces of stdout, for programs that write their errors there."""


class Remembered:
    """The memory of one stream."""

    __slots__ = ("_before", "_blocks", "_end", "_what")

    def __init__(self, begin: int = 0) -> None:
        """Begin at this position of the stream."""
        self._end, self._before = begin, b""
        self._blocks: list[_Block] = []
        self._what: _Growing | None = None

    @property
    def first_at(self) -> int | None:
        """Position of the oldest traceback that is remembered; None: there is none."""
        return min((block.begin for block in self._blocks), default=None)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        for block in self._blocks:
            if not block.is_done:
                block.feed(data, self._end)
        if self._what is not None:
            self._what.feed(data, self._end)
        self._look_for(_HEADER, data)
        self._look_for(_WHAT, data)
        self._end += len(data)
        self._before = data[-_LINE_BYTES:] if len(data) >= _LINE_BYTES else self._joined(data)

    def pieces(self) -> tuple[Piece, ...]:
        """Return the remembered pieces in the order of their place."""
        found = [piece for block in self._blocks for piece in block.pieces()]
        if self._what is not None:
            found.append(self._what.piece())
        return tuple(sorted(found, key=lambda piece: piece.at))

    def _joined(self, data: bytes) -> bytes:
        return (self._before + data)[-_LINE_BYTES:]

    def _look_for(self, mark: bytes, data: bytes) -> None:
        """Begin to remember at each mark that ends within `data`."""
        seam = self._before[1 - len(mark) :]
        if (seam + data[: len(mark) - 1]).find(mark) >= 0:
            self._found(mark, data, (seam + data).find(mark) - len(seam))
        at = data.find(mark)
        while at >= 0:
            self._found(mark, data, at)
            at = data.find(mark, at + len(mark))

    def _found(self, mark: bytes, data: bytes, at: int) -> None:
        """Remember from this mark on. `at`: its place in `data`; negative if it began earlier."""
        shift = len(self._before)
        text, at = self._before + data, at + shift
        line = text.rfind(b"\n", 0, at) + 1
        if mark is _WHAT:
            self._what = _Growing(self._end - shift + line, WHAT_BYTES)
            self._what.feed(text[line:], self._end - shift + line)
            return
        name = text.rfind(_NAME, line, at)
        if name < 0:
            return  # Native frames, or a stack that is only shown.
        context = text[max(0, line - CONTEXT_BYTES) : line]
        if _IGNORED.search(context[context.rfind(b"\n", 0, -1) + 1 :]):
            return
        begin, end = self._end - shift + line - len(context), self._end + len(data)
        last = self._blocks[-1] if self._blocks else None
        chain = last.as_chain(begin) if last is not None and _CHAINED.search(context) else ()
        older = [] if last is None else [last]
        if chain:
            older = self._blocks[:-1]
        block = _Block(begin, chain, text[line : name - 1])
        block.feed(text[len(text) - (end - begin) :], begin)
        self._blocks = [*older[-1:], block]


class _Growing:
    """A piece that grows up to a limit."""

    __slots__ = ("at", "data", "limit")

    def __init__(self, at: int, limit: int) -> None:
        self.at, self.limit, self.data = at, limit, bytearray()

    def feed(self, data: bytes, position: int) -> None:
        room = self.limit - len(self.data)
        if room > 0:
            start = max(0, self.at - position)
            self.data += data[start : start + room]

    def piece(self) -> Piece:
        return Piece(self.at, bytes(self.data))


class _Block:
    """One traceback while it comes."""

    __slots__ = ("_chain", "_exception", "_head", "_roll", "_seen", "_text", "begin", "is_done")

    def __init__(self, begin: int, chain: Sequence[Piece], prefix: bytes) -> None:
        self.begin, self._chain, self.is_done = begin, tuple(chain), False
        self._head = _Growing(begin, HEAD_BYTES)
        self._roll = b""
        self._text: _Growing | None = None
        self._seen = begin
        # A prefix may be on each line; numbers in it, as of a clock, may differ.
        same = re.sub(rb"\d+", rb"\\d+", re.escape(prefix))
        self._exception = re.compile(
            rb"\n" + _COLOURS + rb"(?:" + same + rb")?" + _COLOURS + rb"[A-Za-z_][\w.<>]*"
            rb"(?::[ \r\n\x1b]|\x1b|\r?\n)"
        )

    def feed(self, data: bytes, position: int) -> None:
        """Take the next bytes of the stream, which begin at this position."""
        self._head.feed(data, position)
        end = position + len(data)
        if self._text is None:
            self._seek(data, end)
        else:
            self._text.feed(data, position)
        if self._text is not None and len(self._text.data) >= TEXT_BYTES:
            self.is_done = True
        if self._text is None and end - self.begin > _SEEK_BYTES:
            self.is_done = True
        self._seen = end

    def as_chain(self, until: int) -> tuple[Piece, ...]:
        """Return a shorter form of this traceback, for the next one in its chain, which begins at
        `until`."""
        pieces = (*self._chain, *self._own())
        kept: list[Piece] = []
        room = CHAIN_BYTES
        for piece in pieces:
            data = piece.data[: max(0, min(until - piece.at, room))]
            room -= len(data)
            if data:
                kept.append(Piece(piece.at, data))
        return tuple(kept)

    def pieces(self) -> list[Piece]:
        return [*self._chain, *self._own()]

    def _own(self) -> list[Piece]:
        found = [self._head.piece()]
        if self._roll and self._text is not None:
            found.append(Piece(self._text.at - len(self._roll), self._roll))
        if self._text is not None:
            found.append(self._text.piece())
        return found

    def _seek(self, data: bytes, end: int) -> None:
        """Look for the exception's line in the new bytes."""
        text = self._roll + data
        first = end - len(text)
        # The exception comes after the header.
        header = text.find(_HEADER) if first <= self.begin + CONTEXT_BYTES + _LINE_BYTES else 0
        start = max(0, header, len(self._roll) - _LINE_BYTES)
        found = self._exception.search(text, start)
        if found is None:
            self._roll = text[-ROLL_BYTES:]
            return
        self._text = _Growing(first + found.start(), TEXT_BYTES)
        self._text.feed(text[found.start() :], first + found.start())
        self._roll = text[max(0, found.start() - ROLL_BYTES) : found.start()]
