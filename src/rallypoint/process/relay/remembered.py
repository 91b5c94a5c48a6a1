"""The memory of a worker's tracebacks apart from the end of its stderr. Pure.

So no later output displaces them. Bytes in, pieces of the stream out, in bounded memory.

The relay keeps parts of the newest three tracebacks: the beginning, the frames next to the
exception, and the exception's first words. Python, loguru, rich and IPython use the same words in
the first line of a traceback. Other forms are found only in the end of the stream, and so is the
message of a C++ exception. Data without these words costs no more than one search.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

CONTEXT_BYTES = 256
"""The most bytes before a traceback's header that are remembered; they show whether Python ignored
the exception."""
CHAIN_BYTES, HEAD_BYTES, ROLL_BYTES, TEXT_BYTES = 2 * 1024, 6 * 1024, 2 * 1024, 3 * 1024
"""The limits in bytes for one traceback: its earlier chain, the part from its header on, the frames
before the exception, and the part from the exception on."""
WHAT_BYTES = 2 * 1024
RECENT_BYTES = 12 * 1024
"""The most bytes of the end of a stream in a worker's last words."""
_SEEK_BYTES = 2 * 1024 * 1024
"""The most bytes between a header and its exception."""
_LINE_BYTES = 1024
_PREFIX_BYTES = 256
"""The most bytes before a header in its line that count as the prefix of all lines."""
_BLOCKS, _HEADERS = 3, 12
"""How many tracebacks are remembered, and how many headers are looked for in one piece of data:
the newest. One is not enough: Python may have ignored its exception, or it is of a chain."""
HEADER = b"(most recent call last)"
_NAME = b"raceback"
"""The word that a traceback's header has before the mark `HEADER`, perhaps with colours between."""
_WHAT = b"what():"
_COLOURS = rb"(?:\x1b\[[\d;]*m)*"
_IGNORED = re.compile(rb"Exception ignored (in|on|while|from)\b|--- Logging error ---|in atexit\.")
_CHAINED = re.compile(rb"(another exception occurred|of the following exception):\s*\Z")


class StreamPiece(Struct, frozen=True, array_like=True):
    """A part of a stream; `at` is the number of bytes before it."""

    at: int
    data: bytes


class LastWords(Struct, frozen=True):
    """The parts of a worker's output that may show why it failed."""

    stderr: tuple[StreamPiece, ...] = ()
    """The pieces of stderr: tracebacks, a C++ message, and as the last one the stream's end. They
    may overlap."""
    stdout: tuple[StreamPiece, ...] = ()
    """The pieces of stdout, for programs that write their errors there."""


def what_in(end: StreamPiece) -> tuple[StreamPiece, ...]:
    """Return the piece with the last message of a C++ exception in this end of a stream.

    Empty: there is none.
    """
    at = end.data.rfind(_WHAT)
    if at < 0:
        return ()
    begin = max(0, end.data.rfind(b"\n", 0, at))
    return (StreamPiece(end.at + begin, end.data[begin : begin + WHAT_BYTES]),)


def last_pieces(remembered: Sequence[StreamPiece], end: StreamPiece) -> tuple[StreamPiece, ...]:
    """Return a worker's last words on stderr: tracebacks, the last C++ message, the end.

    `end` is the end of the stream, as much as is kept.
    """
    recent = StreamPiece(end.at + max(0, len(end.data) - RECENT_BYTES), end.data[-RECENT_BYTES:])
    return (*remembered, *what_in(end), recent)


class Remembered:
    """The remembered tracebacks of one stream."""

    __slots__ = ("_before", "_blocks", "_end")

    def __init__(self, begin: int = 0) -> None:
        """Begin to remember tracebacks at this position of the stream."""
        self._end, self._before = begin, b""
        self._blocks: list[_Block] = []

    @property
    def first_at(self) -> int | None:
        """The position of the oldest remembered traceback; None: there is none."""
        return min((block.begin for block in self._blocks), default=None)

    def feed(self, data: bytes) -> None:
        """Look for tracebacks in the next bytes of the stream, and remember them."""
        for block in self._blocks:
            if not block.is_done:
                block.feed(data, self._end)
        self._look_for_headers(data)
        self._end += len(data)
        self._before = data[-_LINE_BYTES:] if len(data) >= _LINE_BYTES else self._joined(data)

    def pieces(self) -> tuple[StreamPiece, ...]:
        """Return the remembered pieces in the order of their place."""
        found = [piece for block in self._blocks for piece in block.pieces()]
        return tuple(sorted(found, key=lambda piece: piece.at))

    def _joined(self, data: bytes) -> bytes:
        return (self._before + data)[-_LINE_BYTES:]

    def _look_for_headers(self, data: bytes) -> None:
        """Begin to remember a traceback at each of the newest 12 headers that end within `data`."""
        shift = len(self._before)
        seam = self._before[1 - len(HEADER) :] + data[: len(HEADER) - 1]
        is_cut = HEADER in seam
        if HEADER not in data and not is_cut:
            return
        at = data.rfind(HEADER)
        text, places = self._before + data, list[int]()
        # Earlier ones in so much data are displaced by these.
        while at >= 0 and len(places) < _HEADERS:
            places.append(at + shift)
            at = data.rfind(HEADER, 0, at)
        if is_cut and len(places) < _HEADERS:
            places.append(text.find(HEADER, max(0, shift - len(HEADER))))
        for place in reversed(places):
            self._found(text, place, shift)

    def _found(self, text: bytes, at: int, shift: int) -> None:
        """Remember a traceback in `text` from the header at `at` on.

        `shift` is the number of bytes before the new ones. Nothing is remembered if it is no
        traceback, or if Python ignored its exception.
        """
        line = max(text.rfind(b"\n", 0, at), text.rfind(b"\r", 0, at), at - _PREFIX_BYTES) + 1
        name = text.rfind(_NAME, line, at)
        if name < 0:
            return  # Native frames, or a stack that is only shown.
        context = text[max(0, line - CONTEXT_BYTES) : line]
        if _IGNORED.search(context[context.rfind(b"\n", 0, -1) + 1 :]):
            return
        begin = self._end - shift + line - len(context)
        last = self._blocks[-1] if self._blocks else None
        chain = last.as_chain(begin) if last is not None and _CHAINED.search(context) else ()
        older = self._blocks[:-1] if chain else self._blocks
        block = _Block(begin, chain, text[line : name - 1])
        block.feed(text[line - len(context) :], begin)
        self._blocks = [*older[1 - _BLOCKS :], block]


class _Growing:
    """A piece of a stream that grows up to a limit."""

    __slots__ = ("at", "data", "limit")

    def __init__(self, at: int, limit: int) -> None:
        self.at, self.limit, self.data = at, limit, bytearray()

    def feed(self, data: bytes, position: int) -> None:
        room = self.limit - len(self.data)
        if room > 0:
            start = max(0, self.at - position)
            self.data += data[start : start + room]

    def piece(self) -> StreamPiece:
        return StreamPiece(self.at, bytes(self.data))


class _Block:
    """One traceback while it arrives."""

    __slots__ = ("_chain", "_exception", "_head", "_roll", "_seen", "_text", "begin", "is_done")

    def __init__(self, begin: int, chain: Sequence[StreamPiece], prefix: bytes) -> None:
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
        """Add the next bytes of the stream, which begin at this position."""
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

    def as_chain(self, until: int) -> tuple[StreamPiece, ...]:
        """Return the first CHAIN_BYTES of this traceback and those before it in its chain.

        They are for the next traceback of the chain, which begins at `until`.
        """
        pieces = (*self._chain, *self._own())
        kept: list[StreamPiece] = []
        room = CHAIN_BYTES
        for piece in pieces:
            data = piece.data[: max(0, min(until - piece.at, room))]
            room -= len(data)
            if data:
                kept.append(StreamPiece(piece.at, data))
        return tuple(kept)

    def pieces(self) -> list[StreamPiece]:
        return [*self._chain, *self._own()]

    def _own(self) -> list[StreamPiece]:
        found = [self._head.piece()]
        if self._roll and self._text is not None:
            found.append(StreamPiece(self._text.at - len(self._roll), self._roll))
        if self._text is not None:
            found.append(self._text.piece())
        return found

    def _seek(self, data: bytes, end: int) -> None:
        """Look for the exception's line in the new bytes."""
        text = self._roll + data
        first = end - len(text)
        # The exception comes after the header.
        header = text.find(HEADER) if first <= self.begin + CONTEXT_BYTES + _LINE_BYTES else 0
        start = max(0, header, len(self._roll) - _LINE_BYTES)
        found = self._exception.search(text, start)
        if found is None:
            self._roll = text[-ROLL_BYTES:]
            return
        self._text = _Growing(first + found.start(), TEXT_BYTES)
        self._text.feed(text[found.start() :], first + found.start())
        self._roll = text[max(0, found.start() - ROLL_BYTES) : found.start()]
