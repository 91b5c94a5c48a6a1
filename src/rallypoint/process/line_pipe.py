"""A named pipe of lines that several processes write to.

They write what they like: a line is at most PIPE_BUF bytes, so that it arrives whole, and what is
longer is no line.
"""

from __future__ import annotations

import os

from rallypoint.files import make_pipe
from rallypoint.wire.shm import LineSplitter

_READ_BYTES = 65536


class LinePipe:
    """Made at `path` with mode 0600, to be read when it is readable. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._path, self._splitter = path, LineSplitter()
        self._fd = make_pipe(path)

    def fileno(self) -> int:
        """Readable when there are lines; -1 once it is closed."""
        return self._fd

    def read_lines(self) -> list[bytes]:
        """Return the whole lines of what is there now, a bounded share of it. Does not block."""
        try:
            return self._splitter.feed(os.read(self._fd, _READ_BYTES))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Remove the pipe. Safe to call again."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        try:
            os.unlink(self._path)
        except OSError:
            pass  # A writer was faster.
