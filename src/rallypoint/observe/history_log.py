"""The files of `--history`: a job's history as lines of JSON (`core/watch/history_file.py`).

A thread writes them, behind a bounded queue, so that a slow disk delays nothing. Each line is
appended by one write to a file that is opened for it. So another leader of the job may go on with
the file, and a person may move it away at any time. A file is for its user alone (0600). In a
directory Rallypoint chooses the name: there no link is followed, and no file of another user is
written to.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from rallypoint.core.event_kinds import HISTORY_NOT_WRITTEN, Record
from rallypoint.core.text import named, shown
from rallypoint.core.watch.history_file import Begin, HistoryLine, LinesLost
from rallypoint.errors import UsageError
from rallypoint.files import open_named, safe_open
from rallypoint.observe.kept_jobs import append_lines
from rallypoint.observe.queue import BoundedQueue

_NAME_MAX = 200


class HistoryLogs:
    """The writer of the history file of one job, or of those of many jobs in a directory.

    `write` is for the thread of the loop, and never blocks.
    """

    is_light = False
    """Whether the files lack details; False, because a user asked for them."""

    def __init__(self, path: str) -> None:
        """Check that the history can be written to `path`. Raises UsageError if it can't.

        `path` is a file, or with a slash at its end a directory, which is made if it is missing.
        """
        self.path, self._absolute = path, os.path.abspath(path)
        self._queue: BoundedQueue[tuple[str, HistoryLine]] = BoundedQueue(self._receive)
        self._on_fault: Callable[[str, str], None] = lambda run_id, why: None
        self._begins: dict[str, Begin] = {}
        """The newest header of each job's history, by run id. Only for the queue's thread, as are
        the two fields below."""
        self._told = 0
        """The number of lost lines that the files have reported."""
        self._is_broken = False
        _check(path)

    def tell_faults(
        self, call_soon: Callable[..., object], on_record: Callable[[str, Record], None]
    ) -> None:
        """Have `on_record` called, through `call_soon`, when a job's file can't be written.

        After one such fault the next ones are not told, of any job, until a line was written.
        """

        def tell(run_id: str, why: str) -> None:
            record = HISTORY_NOT_WRITTEN(path=shown(self.path), why=why)
            with suppress(RuntimeError):  # The loop has ended: `close` tells it.
                call_soon(on_record, run_id, record)

        self._on_fault = tell

    @property
    def lost(self) -> int:
        """The number of lines so far that could not be written, or did not fit into the queue."""
        return self._queue.lost

    def write(self, run_id: str, line: HistoryLine) -> None:
        """Append the line to this job's file soon, without blocking. It is lost if many wait."""
        self._queue.put((run_id, line))

    def close(self, timeout_s: float) -> str:
        """Write the waiting lines within the time, and return a message about lost lines. Blocks.

        The message is empty if none is lost.
        """
        lost = self._queue.close(timeout_s)
        return f"{named.history} {self.path}: {lost}" if lost else ""

    def file_of(self, run_id: str) -> str:
        """Return the absolute path of the file of this job's history."""
        if not self.path.endswith("/"):
            return self._absolute
        return os.path.join(self._absolute, f"{_file_name(run_id)}.jsonl")

    def _receive(self, item: tuple[str, HistoryLine]) -> None:
        run_id, line = item
        if isinstance(line, Begin):
            self._begins[run_id] = line
        try:
            self._append(run_id, line)
        except OSError as error:
            if not self._is_broken:
                self._is_broken = True
                self._on_fault(run_id, error.strerror or str(error))
            raise
        self._is_broken = False

    def _append(self, run_id: str, line: HistoryLine) -> None:
        fd = self._open(self.file_of(run_id))
        try:
            size, lost = os.fstat(fd).st_size, self._queue.lost
            lines: list[HistoryLine] = [line]
            if lost > self._told:
                lines.insert(0, LinesLost(lost - self._told))
            if not size and not isinstance(line, Begin) and run_id in self._begins:
                lines.insert(0, self._begins[run_id])
            append_lines(fd, lines)
            self._told = lost
        finally:
            os.close(fd)

    def _open(self, path: str) -> int:
        """Open the file. Raises OSError, whose text is for a person."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        if not self.path.endswith("/"):
            return open_named(path, flags, 0o600)
        try:
            return safe_open(path, flags)
        except OSError as error:
            raise OSError(error.errno, _why_not_opened(path) or error.strerror) from error


def _why_not_opened(path: str) -> str:
    """Return what is wrong with a file of a name that Rallypoint chose, and the fix.

    Empty: nothing.
    """
    name = shown(os.path.basename(path))
    try:
        status = os.lstat(path)
    except OSError:
        return ""
    if stat.S_ISLNK(status.st_mode):
        return f"{name} is a symbolic link there, which is not followed: remove it"
    if not stat.S_ISREG(status.st_mode):
        return f"{name} is not a regular file there: remove it"
    if status.st_uid != os.geteuid():
        whose = f"user {status.st_uid}, not to you (user {os.geteuid()})"
        return f"{name} belongs there to {whose}: name a directory of your own"
    return ""


def _check(path: str) -> None:
    """Check that a history can be written to `path`, and make a missing directory that it names.

    Raises UsageError.
    """
    why = ""
    try:
        if path.endswith("/"):
            os.makedirs(path, exist_ok=True)
        folder = os.path.dirname(os.path.abspath(path)) if path[-1:] != "/" else path
        if os.path.lexists(path) and not path.endswith("/"):
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode):
                raise UsageError(
                    f"{named.history} {path}: is a directory: for a file of the job in it, give "
                    f"{path}/"
                )
            if not stat.S_ISREG(mode):
                raise UsageError(f"{named.history} {path}: exists and is not a regular file")
            os.close(open_named(path, os.O_RDWR | os.O_APPEND))
        elif not os.path.isdir(folder):
            why = "No such file or directory"
        elif not os.access(folder, os.W_OK | os.X_OK):
            why = "Permission denied"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise UsageError(f"{named.history} {path}: can't be written: {why}")


def _file_name(run_id: str) -> str:
    """Return a file name for each job, without its ending and without a slash."""
    from urllib.parse import quote

    from rallypoint.hashes import sha256

    name = quote(run_id, safe=" ")
    if len(name) <= _NAME_MAX:
        return name
    return f"{name[:_NAME_MAX]}-{sha256(run_id.encode()).hex()[:16]}"
