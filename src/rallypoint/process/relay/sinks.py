"""Where the relay writes: consoles and log files.

A console gets ordered bytes, whole lines kept whole, and the rows below them that a terminal shows
(`drawing.py`). Writing never waits for a reader: a terminal or a pipe is opened a second time,
non-blocking, since the descriptor that was inherited is shared with programs that expect it to
block. Where that is refused, pieces are so small that a pipe which `poll` calls writable takes one
at once.

A log file grows, or it is rotated when it reaches its limit: `stdout.log` becomes `stdout.log.1`,
replacing an older one, and a new one is begun: the two together hold about twice the limit. A file
ends where a line ends, as long as that takes no more than OVERHANG_BYTES beyond the limit; else it
ends within the line, but in no UTF-8 character.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable
from math import inf

from rallypoint.files import open_named, write_all
from rallypoint.process.relay.drawing import Key, Region, WorkerKey

# A writer whose console is this far behind is not read from: its pipe fills, and it waits.
BACKLOG_LIMIT = 256 * 1024

_PIECE = 4096  # PIPE_BUF: written whole, or poll would not have said writable
_FILE_PIECE = 64 * 1024
_AT_ONCE = 64 * 1024  # what one call may write, so that whoever else is ready has a turn
_GONE = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET})
_LINES_WAIT = 64 * 1024  # of more lines none waits for the next painting


class _Backlog:
    """The unwritten bytes for one descriptor, in order.

    One call writes only a part of many bytes, so that other descriptors have a turn.
    """

    __slots__ = ("_control", "_head", "_piece", "_pieces", "_queue", "accepted", "fd", "size")

    def __init__(self, fd: int) -> None:
        self.fd = _reopen(fd)
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        self._piece = _FILE_PIECE if is_file else _PIECE
        # Only the first piece is sure not to wait where the description is shared.
        self._pieces = _AT_ONCE // self._piece if is_file or self.fd != fd else 1
        self._queue: deque[bytes] = deque()
        self._head = 0  # how much of the queue's first entry is written
        self._control = b""
        self.size = 0
        self.accepted = 0  # bytes ever taken; with the size it tells what is through

    @property
    def has_control(self) -> bool:
        """Whether a part of the data of `write_control` is not written yet."""
        return bool(self._control)

    def append(self, data: bytes) -> None:
        """Append data after everything else."""
        self._queue.append(data)
        self.size += len(data)
        self.accepted += len(data)

    def write_control(self, data: bytes = b"") -> None:
        """Write bytes that erase or paint rows, before everything else; raises OSError.

        A BlockingIOError if not all is written: the rest stays until a later call.
        """
        self._control += data
        while self._control:
            self._control = self._control[os.write(self.fd, self._control) :]

    def write_some(self) -> None:
        """Write a few pieces, or all there is; raises OSError."""
        for _ in range(self._pieces):
            if not self._queue:
                return
            self._write_piece()

    def discard(self) -> None:
        """Drop unwritten data."""
        self._queue.clear()
        self._control = b""
        self._head = self.size = 0

    def _write_piece(self) -> None:
        first = self._queue[0]
        piece = first[self._head : self._head + self._piece]
        # Others write to the same terminal: leave off where a line ends.
        end = piece.rfind(b"\n") + 1
        if end and self._head + len(piece) < len(first):
            piece = piece[:end]
        written = os.write(self.fd, piece)
        self._head += written
        self.size -= written
        if self._head >= len(first):
            self._queue.popleft()
            self._head = 0


class ConsoleSink:
    """The sink of one descriptor: unwritten output, and the rows that a terminal shows below it.

    `failure` holds the errno of a first failed write until taken.

    A reader that went away (`| head`) loses the rest: its bytes are discarded and the workers
    continue. After any other failure, for example a full disk, unwritten data is discarded and
    later bytes are tried again.
    """

    __slots__ = (
        "_asking",
        "_at_line_start",
        "_backlog",
        "_erases",
        "_gone",
        "_paused",
        "_region",
        "_reported",
        "failure",
        "is_terminal",
        "name",
    )

    def __init__(self, fd: int, name: str) -> None:
        self.name = name
        self.is_terminal = os.isatty(fd)
        self._backlog = _Backlog(fd)
        self._at_line_start = True
        self._asking: WorkerKey | None = None
        self._erases = False
        self._region, self._paused = Region(), False
        self._gone = self._reported = False
        self.failure: int | None = None

    @property
    def fd(self) -> int:
        """The descriptor to poll."""
        return self._backlog.fd

    @property
    def is_full(self) -> bool:
        return self._backlog.size >= BACKLOG_LIMIT

    @property
    def accepted(self) -> int:
        """The number of bytes that were ever accepted for writing."""
        return self._backlog.accepted

    @property
    def written(self) -> int:
        """The number of accepted bytes that were written, or discarded after a failure."""
        return self._backlog.accepted - self._backlog.size

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to show below the lines."""
        return self._region.is_painted or self._region.due_at() < inf

    def pause(self, paused: bool) -> None:
        """Stop painting and erasing while `paused`, because another program has the terminal."""
        if paused:
            self._region.forget()
        self._paused = paused

    def writes_at(self) -> float:
        """Return from when on there is something to write; -inf: now, inf: nothing."""
        waiting = self._backlog.size
        if self._backlog.has_control or (waiting and not self.is_terminal):
            return -inf
        if waiting:
            return self._region.lines_due_at() if waiting < _LINES_WAIT else -inf
        if self._paused or not self._at_line_start:
            return inf
        return self._region.due_at()

    def write_raw(self, data: bytes) -> None:
        """Append bytes as they are; they are dropped if the reader has gone."""
        if data and not self._gone:
            self._backlog.append(data)
            self._at_line_start = data.endswith(b"\n")

    def write_lines(self, lines: bytes) -> None:
        """Append whole lines; if anything left a line open, it is closed first."""
        if lines:
            self._close_line()
            self.write_raw(lines)

    def ask(self, worker: WorkerKey, prompt: bytes, *, is_kept: bool) -> None:
        """Append the prompt of a worker that waits for the user's answer.

        The line stays open, and nothing is shown below it, until other output comes. `is_kept`: the
        prompt will come again, as a row or a whole line, and is erased before.
        """
        self.resume(worker)
        self._close_line()
        self.write_raw(prompt)
        self._asking, self._erases = worker, is_kept

    def resume(self, worker: WorkerKey) -> None:
        """Note that a worker writes again; the answer to its prompt, if any, has ended the line."""
        if self._asking == worker:
            if self._erases:
                self._close_line()
            self._at_line_start, self._asking = True, None

    def _close_line(self) -> None:
        if not self._at_line_start:
            # Where the prompt was answered this erases a row that is empty.
            self.write_raw(b"\r\x1b[2K" if self._asking and self._erases else b"\n")
            self._at_line_start = True
        self._asking = None

    def show_status(self, text: bytes) -> None:
        """Replace the status line; only a terminal has one."""
        if self.is_terminal and not self._gone:
            self._region.show_status(text)

    def show(self, key: Key, rows: list[bytes]) -> None:
        """Replace the rows of a stream that a terminal shows below the lines."""
        if self.is_terminal and not self._gone and self._region.show(key, rows):
            self._close_line()

    def write_some(self, now: float) -> None:
        """Write a few pieces, and the rows below the lines when they are due.

        Call when the descriptor is writable; never raises OSError.
        """
        backlog = self._backlog
        try:
            if backlog.size and self._region.is_painted:
                backlog.write_control(self._region.erase(self._size()[0]))
            backlog.write_control()
            backlog.write_some()
            if not backlog.size and self.writes_at() <= now:
                backlog.write_control(self._region.paint(*self._size(), now))
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error.errno or errno.EIO)

    def _size(self) -> tuple[int, int]:
        """Return the terminal's columns and rows; 80 and 24 where they are not known."""
        try:
            columns, rows = os.get_terminal_size(self.fd)
        except OSError:
            return 80, 24
        return columns or 80, rows or 24

    def _fail(self, number: int) -> None:
        self._backlog.discard()
        self._region = Region()
        self._gone = number in _GONE
        if not self._reported:
            self.failure, self._reported = number, True


def _reopen(fd: int) -> int:
    """Return a non-blocking descriptor for the same terminal or pipe, which is not shared.

    `fd` itself for other files, and where that is refused.
    """
    if not (os.isatty(fd) or stat.S_ISFIFO(os.fstat(fd).st_mode)):
        return fd
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # another user's terminal, a reader that is gone, or no /proc
        return fd


def open_consoles() -> dict[int, ConsoleSink]:
    """Return the consoles of descriptors 1 and 2: one object when both are the same file.

    A closed descriptor is opened on the null device before.
    """
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
    console = ConsoleSink(2, "stderr")
    return {1: console if same else ConsoleSink(1, "stdout"), 2: console}


OVERHANG_BYTES = 64 * 1024


class LogFile:
    """An open log file, rotated at `max_bytes`; 0: never. Used by the relay alone: writing blocks.

    The constructor and `write` raise OSError. What a failed `write` has not written is lost; the
    next one writes its own data.
    """

    __slots__ = ("_fd", "_limit", "_size", "_whole", "path", "users")

    def __init__(self, path: bytes, max_bytes: int) -> None:
        self.path = path
        self.users = 1
        """The number of streams that write here; the last one closes the file."""
        self._fd = _open(path)
        status = os.fstat(self._fd)
        # A device or a pipe, which a plug-in may have named, can't be rotated.
        self._limit = max_bytes if stat.S_ISREG(status.st_mode) else 0
        self._size = status.st_size
        self._whole = True  # what is in it ends where a line ends

    def write(self, data: bytes) -> None:
        """Append the data, and rotate as often as needed. Raises OSError."""
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
        """Close the file. Call exactly once."""
        os.close(self._fd)

    def _fitting(self, data: bytes) -> int:
        """Return how many bytes of `data` go into this file before it is rotated."""
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
        write_all(self._fd, data)

    def _rotate(self) -> None:
        try:
            os.rename(self.path, self.path + b".1")
        except FileNotFoundError:
            pass  # somebody took it away
        fresh = _open(self.path)
        os.close(self._fd)
        self._fd, self._size, self._whole = fresh, 0, True


class LogFiles:
    """The files of one relay. `on_failure` is called with the path and the errno of a failure."""

    def __init__(self, on_failure: Callable[[bytes, int | None], None]) -> None:
        self._on_failure = on_failure
        self._shared: dict[bytes, LogFile] = {}

    def open(self, path: bytes, max_bytes: int) -> LogFile | None:
        """Open a file; None without a path, and if it can't be opened.

        A failure is told to `on_failure`.
        """
        try:
            return LogFile(path, max_bytes) if path else None
        except OSError as error:
            self._on_failure(path, error.errno)
            return None

    def open_shared(self, path: bytes, max_bytes: int) -> LogFile | None:
        """Open a file that several streams share, so that it is rotated once.

        None as with `open`.
        """
        shared = self._shared.get(path)
        if shared is not None:
            shared.users += 1
            return shared
        opened = self.open(path, max_bytes)
        if opened is not None:
            self._shared[path] = opened
        return opened

    def write(self, file: LogFile, data: bytes) -> None:
        """Append data to a file; a failure is told to `on_failure`, not raised."""
        try:
            file.write(data)
        except OSError as error:
            self._on_failure(file.path, error.errno)

    def close(self, file: LogFile) -> None:
        """Close a file; call once for each `open` and `open_shared` that returned it."""
        file.users -= 1
        if file.users == 0:
            self._shared.pop(file.path, None)
            file.close()


def _open(path: bytes) -> int:
    return open_named(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
