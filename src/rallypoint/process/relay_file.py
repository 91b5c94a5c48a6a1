"""A log file that the relay writes: it grows, or it is rotated when it reaches its limit.

Rotated, `stdout.log` becomes `stdout.log.1`, replacing an older one, and a new one is begun: the
two together hold about twice the limit. A file ends where a line ends, as long as that takes no
more than OVERHANG_BYTES beyond the limit; else it ends within the line, but in no UTF-8 character.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from rallypoint.files import open_named

OVERHANG_BYTES = 64 * 1024


class LogFile:
    """An open file; `max_bytes` 0: it is never rotated. Used by the relay alone: writing blocks.

    The constructor and `write` raise OSError; what was not written by then is lost, and the next
    `write` tries again.
    """

    __slots__ = ("_fd", "_limit", "_size", "_whole", "path", "users")

    def __init__(self, path: bytes, max_bytes: int) -> None:
        self.path = path
        self.users = 1
        """How many streams write here; the last one closes it."""
        self._fd = _open(path)
        status = os.fstat(self._fd)
        # A device or a pipe, which a plug-in may have named, can't be rotated.
        self._limit = max_bytes if stat.S_ISREG(status.st_mode) else 0
        self._size = status.st_size
        self._whole = True  # what is in it ends where a line ends

    def write(self, data: bytes) -> None:
        """Append; rotate as often as needed."""
        if self._limit:
            while self._size + len(data) > self._limit:
                fits = self._fitting(data)
                if fits == len(data):
                    break
                self._append(data[:fits])
                data = data[fits:]
                try:
                    self._rotate()
                except OSError:
                    self._limit = 0  # Better one file that grows than lines that are lost.
                    self._append(data)
                    raise
        self._append(data)

    def close(self) -> None:
        """Call exactly once."""
        os.close(self._fd)

    def _fitting(self, data: bytes) -> int:
        """How much of `data` still belongs to this file, which it would fill."""
        room = max(self._limit - self._size, 0)
        end = data.rfind(b"\n", 0, room) + 1
        if end or (self._whole and self._size):
            return end
        # This file holds the beginning of a line, or would hold nothing else.
        last = max(min(self._limit, OVERHANG_BYTES) + self._limit - self._size, 0)
        end = data.find(b"\n", room, last) + 1
        if end:
            return end
        at = min(last, len(data))
        while at < min(last + 3, len(data)) and data[at] & 0xC0 == 0x80:
            at += 1
        return at

    def _append(self, data: bytes) -> None:
        if not data:
            return
        self._size += len(data)
        self._whole = data[-1:] == b"\n"
        while data:
            data = data[os.write(self._fd, data) :]

    def _rotate(self) -> None:
        try:
            os.rename(self.path, self.path + b".1")
        except FileNotFoundError:
            pass  # somebody took it away
        fresh = _open(self.path)
        os.close(self._fd)
        self._fd, self._size, self._whole = fresh, 0, True


class LogFiles:
    """The files of one relay. What fails is told to `on_failure`, with the path and the errno."""

    def __init__(self, on_failure: Callable[[bytes, int | None], None]) -> None:
        self._on_failure = on_failure
        self._shared: dict[bytes, LogFile] = {}

    def open(self, path: bytes, max_bytes: int) -> LogFile | None:
        """None without a path, and where it can't be opened."""
        try:
            return LogFile(path, max_bytes) if path else None
        except OSError as error:
            self._on_failure(path, error.errno)
            return None

    def open_shared(self, path: bytes, max_bytes: int) -> LogFile | None:
        """One file for all that write there, so that rotating it is one's own business."""
        shared = self._shared.get(path)
        if shared is not None:
            shared.users += 1
            return shared
        opened = self.open(path, max_bytes)
        if opened is not None:
            self._shared[path] = opened
        return opened

    def write(self, file: LogFile, data: bytes) -> None:
        """Append."""
        try:
            file.write(data)
        except OSError as error:
            self._on_failure(file.path, error.errno)

    def close(self, file: LogFile) -> None:
        """Once for each `open` and `open_shared` that gave it."""
        file.users -= 1
        if file.users == 0:
            self._shared.pop(file.path, None)
            file.close()


def _open(path: bytes) -> int:
    return open_named(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
