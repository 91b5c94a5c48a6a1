"""Lines that come through a named pipe that several processes write to. Pure."""

from __future__ import annotations

MAX_LINE_BYTES = 4096
"""PIPE_BUF: a longer line might be torn by another writer's."""


class LineSplitter:
    """Cuts what comes through a pipe into lines. What is too long for a line is dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *lines, rest = (self._rest + data).split(b"\n")
        if lines and self._dropping:
            del lines[0]
            self._dropping = False
        if len(rest) > MAX_LINE_BYTES:
            self._dropping, rest = True, b""
        self._rest = rest
        return lines
