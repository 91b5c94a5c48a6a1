"""Bytes of a stream cut into whole lines, in bounded memory, and the last few of them.

Pure: bytes in, bytes out. A line ends with a line feed, or with a carriage return that stands
alone, so that a progress bar is seen as it moves instead of once at the end. A line longer than
the limit is given out in pieces, each a line of its own, never cut inside a UTF-8 character.
"""

from __future__ import annotations

import re

LINE_LIMIT = 64 * 1024
TAIL_LINES = 20
TAIL_BYTES = 8 * 1024
_DUMP = re.compile(rb"Fatal Python error: |Current thread 0x")

_RETURNS_OF_EMPTY_LINE = re.compile(rb"(?m)^\r+(?![\r\n])")
_RETURNS = re.compile(rb"\r+\n?")


class LineAssembler:
    """Puts a prefix before each whole line of one stream; holds at most one unfinished line."""

    __slots__ = ("_held", "_limit", "_prefix")

    def __init__(self, prefix: bytes, limit: int = LINE_LIMIT) -> None:
        if limit < 4:
            raise ValueError("a UTF-8 character needs up to 4 bytes")
        self._prefix, self._limit, self._held = prefix, limit, b""

    def feed(self, data: bytes) -> bytes:
        """The lines that `data` completes, each with its prefix and a line feed."""
        text = self._held + data
        # A final carriage return is undecided: the line feed may be in the next piece.
        undecided = text.endswith(b"\r")
        if b"\r" in text:
            text = _break_at_carriage_returns(text.rstrip(b"\r"))
        *lines, rest = text.split(b"\n")
        out: list[bytes] = []
        for line in lines:
            out.extend(self._pieces(line))
        while len(rest) > self._limit:
            piece, rest = _cut(rest, self._limit)
            out.append(piece)
        self._held = rest + b"\r" if undecided else rest
        return self._lines(out)

    def finish(self) -> bytes:
        """The unfinished last line, if any, with a line feed of ours; nothing is held after."""
        rest, self._held = self._held.removesuffix(b"\r"), b""
        return self._lines(self._pieces(rest)) if rest else b""

    def matching(self, lines: bytes, texts: tuple[bytes, ...]) -> bytes:
        """Those of `lines`, which came from here, with one of `texts` behind the prefix."""
        if not lines or not any(text in lines for text in texts):
            return b""
        begin = len(self._prefix)
        return b"".join(
            line + b"\n"
            for line in lines[:-1].split(b"\n")
            if any(line.find(text, begin) >= 0 for text in texts)
        )

    def _pieces(self, line: bytes) -> list[bytes]:
        pieces = []
        while len(line) > self._limit:
            piece, line = _cut(line, self._limit)
            pieces.append(piece)
        pieces.append(line)
        return pieces

    def _lines(self, lines: list[bytes]) -> bytes:
        return b"".join([self._prefix + line + b"\n" for line in lines])


def _break_at_carriage_returns(text: bytes) -> bytes:
    """Line feeds instead of carriage returns; those that would end an empty line vanish.

    `text` starts where a line starts and does not end with a carriage return.
    """
    return _RETURNS.sub(b"\n", _RETURNS_OF_EMPTY_LINE.sub(b"", text))


def _cut(line: bytes, limit: int) -> tuple[bytes, bytes]:
    """`line` at the last start of a UTF-8 character that is not beyond `limit`."""
    at = limit
    while at > limit - 4 and line[at] & 0xC0 == 0x80:
        at -= 1
    # Four continuation bytes in a row are no UTF-8: cut anywhere.
    at = at if line[at] & 0xC0 != 0x80 else limit
    return line[:at], line[at:]


class Tail:
    """The last lines of a stream: at most TAIL_LINES of them and TAIL_BYTES in all."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        self._held += data[-TAIL_BYTES:]
        if len(self._held) > 4 * TAIL_BYTES:
            del self._held[:-TAIL_BYTES]

    def last(self) -> bytes:
        return last_lines(bytes(self._held))


def last_lines(data: bytes) -> bytes:
    """The end of `data` within a tail's bounds; a line that the bound cuts loses its beginning.

    What Python dumps at a fatal signal is kept from its header on, or from the thread that crashed,
    however many lines that are: the frame that matters comes first.
    """
    end = data[-TAIL_BYTES:]
    # A cut may have hit the middle of a character.
    while len(data) > len(end) and end and end[0] & 0xC0 == 0x80:
        end = end[1:]
    lines = end.splitlines(keepends=True)
    start = max(0, len(lines) - TAIL_LINES)
    dump = next((n for n, line in enumerate(lines) if _DUMP.match(line)), len(lines))
    return b"".join(lines[min(start, max(0, dump - TAIL_LINES // 2)) :])
