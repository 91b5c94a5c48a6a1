"""A named pipe of lines that several processes write to.

The content is not trusted. A line is at most PIPE_BUF bytes, so that it arrives whole; longer data
is not a line.
"""

from __future__ import annotations

import os

from rallypoint.files import make_pipe
from rallypoint.wire.shm import LineSplitter

_READ_BYTES = 65536


class LinePipe:
    """The reader of a named pipe, which is made at `path` with mode 0600. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._path, self._splitter = path, LineSplitter()
        self._fd = make_pipe(path)

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there are lines; -1 once it is closed."""
        return self._fd

    def read_lines(self) -> list[bytes]:
        """Return the whole lines that have arrived, a limited number of bytes. Does not block."""
        try:
            return self._splitter.feed(os.read(self._fd, _READ_BYTES))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Close the pipe, and remove its file. May be called again."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        try:
            os.unlink(self._path)
        except OSError:
            pass  # A writer was faster.
