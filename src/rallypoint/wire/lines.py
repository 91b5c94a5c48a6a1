"""Lines that come through a named pipe that several processes write to. Pure."""

from __future__ import annotations

MAX_LINE_BYTES = 4096
"""PIPE_BUF: a longer line might be torn by another writer's."""


class LineSplitter:
    """Cuts what comes through a pipe into lines. Of what is too long for a line only the end may
    come out: whoever writes such a thing costs the writers after him nothing."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= MAX_LINE_BYTES else b""
        return lines
