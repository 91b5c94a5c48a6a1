"""A named pipe of lines that workers write to, read in the agent's loop.

Workers write what they like: a line is at most PIPE_BUF bytes, so that it arrives whole, and
whatever is longer is no line. A worker that floods the pipe gets a bounded share of each turn of
the loop, so that it delays no heartbeat.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from rallypoint.files import make_pipe
from rallypoint.wire.lines import LineSplitter

READ_BYTES = 65536


class LinePipe:
    """Made at `path` with mode 0600; `on_lines` gets each batch of whole lines, from the loop.

    Raises OSError when it can't be made.
    """

    def __init__(self, path: str, on_lines: Callable[[list[bytes]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._path, self._on_lines = path, on_lines
        self._splitter = LineSplitter()
        self._fd = make_pipe(path)
        self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Remove the pipe. Safe to call again."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        try:
            os.unlink(self._path)
        except OSError:
            pass  # A worker was faster.

    def _read(self) -> None:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        if lines := self._splitter.feed(data):
            self._on_lines(lines)
