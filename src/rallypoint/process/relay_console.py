"""One console of the relay: ordered bytes out, whole lines kept whole, a status line at the end.

Writing never waits for a reader: a terminal or a pipe is opened a second time, non-blocking,
since the descriptor that was inherited is shared with programs that expect it to block. Where that
is refused, pieces are so small that a pipe which `poll` calls writable takes one at once.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque

# A writer whose console is this far behind is not read from: its pipe fills, and it waits.
BACKLOG_LIMIT = 256 * 1024

_PIECE = 4096  # PIPE_BUF: written whole, or poll would not have said writable
_FILE_PIECE = 64 * 1024
_AT_ONCE = 64 * 1024  # what one call may write, so that whoever else is ready has a turn
_GONE = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET})
_CLEAR = b"\r\x1b[2K"
# Without automatic margins a text that is too wide is cut by the terminal, not wrapped.
_STATUS = b"\x1b[?7l%s\x1b[?7h"


class Console:
    """Bytes for one descriptor. `failure` holds the errno of a first failed write until taken.

    A reader that went away (`| head`) loses the rest: its bytes are discarded and the workers run
    on. After any other failure, a full disk say, what could not be written is discarded and later
    bytes are tried again.
    """

    __slots__ = (
        "_at_line_start",
        "_control",
        "_gone",
        "_head",
        "_piece",
        "_pieces",
        "_queue",
        "_reported",
        "_status",
        "_status_shown",
        "accepted",
        "backlog",
        "failure",
        "fd",
        "is_terminal",
        "name",
    )

    def __init__(self, fd: int) -> None:
        self.name = "stdout" if fd == 1 else "stderr"
        self.fd = _reopen(fd)
        self.is_terminal = os.isatty(fd)
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        self._piece = _FILE_PIECE if is_file else _PIECE
        # Only the first piece is sure not to wait where the description is shared.
        self._pieces = _AT_ONCE // self._piece if is_file or self.fd != fd else 1
        self._queue: deque[bytes] = deque()
        self._head = 0  # how much of the queue's first entry is written
        self.backlog = 0
        self.accepted = 0  # bytes ever taken; with the backlog it tells what is through
        self._at_line_start = True
        self._control = b""
        self._status = self._status_shown = b""
        self._gone = self._reported = False
        self.failure: int | None = None

    @property
    def is_full(self) -> bool:
        return self.backlog >= BACKLOG_LIMIT

    @property
    def written(self) -> int:
        return self.accepted - self.backlog

    @property
    def wants_write(self) -> bool:
        if self._queue or self._control:
            return True
        drawable = self._at_line_start or self._status_shown
        return bool(drawable) and self._status != self._status_shown

    def write_raw(self, data: bytes) -> None:
        """Append bytes as they are."""
        if data and not self._gone:
            self._queue.append(data)
            self.backlog += len(data)
            self.accepted += len(data)
            self._at_line_start = data.endswith(b"\n")

    def write_lines(self, lines: bytes) -> None:
        """Append whole lines; if raw bytes left a line open, it is closed first."""
        if lines and not self._at_line_start:
            self.write_raw(b"\n")
        self.write_raw(lines)

    def show_status(self, text: bytes) -> None:
        """Replace the status line; only a terminal has one."""
        if self.is_terminal and not self._gone:
            self._status = text

    def write_some(self) -> None:
        """Write a few pieces. Call when the descriptor is writable; never raises OSError."""
        try:
            if self._status_shown and (self._queue or self._status != self._status_shown):
                self._control += _CLEAR
                self._status_shown = b""
            self._write_control()
            for _ in range(self._pieces):
                if not self._queue:
                    break
                self._write_piece()
            if not self._queue and self._at_line_start and self._status != self._status_shown:
                self._control += _STATUS % self._status
                self._status_shown = self._status
            self._write_control()
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error.errno or errno.EIO)

    def _write_control(self) -> None:
        """Write what erases or draws the status line; BlockingIOError if not all goes through."""
        while self._control:
            self._control = self._control[os.write(self.fd, self._control) :]

    def _write_piece(self) -> None:
        first = self._queue[0]
        piece = first[self._head : self._head + self._piece]
        # Others write to the same terminal: leave off where a line ends.
        end = piece.rfind(b"\n") + 1
        if end and self._head + len(piece) < len(first):
            piece = piece[:end]
        written = os.write(self.fd, piece)
        self._head += written
        self.backlog -= written
        if self._head >= len(first):
            self._queue.popleft()
            self._head = 0

    def _fail(self, number: int) -> None:
        self._queue.clear()
        self._control = b""
        self._head = self.backlog = 0
        self._status = self._status_shown = b""
        self._gone = number in _GONE
        if not self._reported:
            self.failure, self._reported = number, True


def _reopen(fd: int) -> int:
    """Our own, non-blocking description of a terminal or pipe; else `fd` itself."""
    if not (os.isatty(fd) or stat.S_ISFIFO(os.fstat(fd).st_mode)):
        return fd
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # another user's terminal, a reader that is gone, or no /proc
        return fd


def open_consoles() -> dict[int, Console]:
    """The consoles of descriptors 1 and 2: one object when both are the same file."""
    for fd in (1, 2):
        try:
            os.fstat(fd)
        except OSError:  # started with it closed
            null = os.open("/dev/null", os.O_WRONLY)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
    out, err = os.fstat(1), os.fstat(2)
    same = (out.st_dev, out.st_ino, out.st_rdev) == (err.st_dev, err.st_ino, err.st_rdev)
    console = Console(2)
    return {1: console if same else Console(1), 2: console}
