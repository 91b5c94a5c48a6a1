"""A store's file, shared by processes: locked, read as far as it grew, appended to.

Every operation opens the file, locks it as torch does (flock, exclusive to write, shared to read),
applies what others have appended, and closes it. No descriptor outlives an operation, so that a
fork shares none, and the file may be deleted or replaced between any two of them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import TypeVar
from weakref import WeakSet

from rallypoint.elastic.stores.file_records import CLEANUP, REFCOUNT, Replay, Tail, encode
from rallypoint.errors import AccessError, StoreConnectionError, StoreError, StoreTimeoutError
from rallypoint.files import open_named, why_not_private
from rallypoint.store.backoff import growing_pauses

LEAST_LOCK_WAIT_S = 1.0
_LAST_LOCK_WAIT_S = 5.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.001, 0.05
_MODE, _PRIVATE_MODE = 0o644, 0o600
_NOT_OURS = (errno.ELOOP, errno.EACCES, errno.EPERM)
"""The error numbers for a link or another user's file; our own message then explains more."""
_CHUNK_BYTES = 1 << 24
_FIXES = {
    errno.ENOENT: "its folder does not exist: create it, where all processes see it",
    errno.EISDIR: "it is a directory: name a file in it",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
    errno.ENOLCK: "its file system can't lock files: use another one",
    errno.EOPNOTSUPP: "its file system can't lock files: use another one",
}

FileId = tuple[int, int]
T = TypeVar("T")


class FileLog:
    """One store object's view of the file of a `FileStore`, which is locked for each use.

    Serves one thread at a time; others wait for their turn.

    Besides what its methods name, each raises StoreCorruptError, StoreConnectionError if the file
    can't be opened or locked at all, StoreTimeoutError if others keep it locked, and AccessError if
    it is to be private and is not.
    """

    def __init__(self, path: str, world_size: int, *, private: bool = False) -> None:
        """Make a view that has not opened the file yet.

        With `private` the file is made for its user alone, and refused if it is not.
        """
        self.path = path
        self._world_size, self._private = world_size, private
        self._closed = False
        self._reset()
        _LOGS.add(self)

    def _reset(self) -> None:
        self._turn = threading.Lock()
        self._fd = -1
        self._replay = Replay(self.path)
        self._file_id: FileId | None = None  # of the file that was read
        self._enrolled = False  # counted in its `refcount/`

    def begin_in_child(self) -> None:
        """Start anew after a fork: nothing of the parent's is used, least of all a locked file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._reset()

    @contextmanager
    def shared(self, doing: str, lock_wait_s: float) -> Iterator[Replay]:
        """Yield the replayed content of the file, which is not changed; a missing file is empty."""
        with self._locked(doing, fcntl.LOCK_SH, lock_wait_s) as fd:
            if fd >= 0:
                self._refresh(fd)
            else:
                self._forget()
            yield self._replay

    @contextmanager
    def exclusive(self, doing: str, lock_wait_s: float) -> Iterator[Appending]:
        """Yield the file, locked for reading and writing; create it if it is missing.

        What a killed writer left is repaired first, and this object is counted in the file at its
        first use. Raises StoreError if there is no space.
        """
        with self._locked(doing, fcntl.LOCK_EX, lock_wait_s) as fd:
            appending = Appending(self.path, fd, doing, self._replay)
            appending.repair(self._refresh(fd))
            if not self._enrolled:
                appending.append(encode(REFCOUNT, b"%d" % (self._replay.refcount + 1)))
                self._enrolled = True
            yield appending

    def retire(self) -> None:
        """Count this object as closed in the file.

        The file is removed if no other object has it open and at least `world_size` of them were
        closed; never with a negative `world_size`. Nothing is written by an object that has not
        been counted as open, as in a forked child that has not used it, or if the file is gone.
        """
        if self._closed:
            return
        self._closed = True
        if not self._enrolled:
            return
        with self._locked("close", fcntl.LOCK_EX, _LAST_LOCK_WAIT_S, create=False) as fd:
            tail = self._refresh(fd) if fd >= 0 else Tail()
            if fd < 0 or not self._enrolled:
                return
            self._enrolled = False
            refcount, cleanups = self._replay.refcount - 1, self._replay.cleanups + 1
            if refcount == 0 and 0 <= self._world_size <= cleanups:
                os.unlink(self.path)
                return
            appending = Appending(self.path, fd, "close", self._replay)
            appending.repair(tail)
            records = encode(CLEANUP, b"%d" % cleanups) + encode(REFCOUNT, b"%d" % refcount)
            appending.append(records)

    def retire_quietly(self) -> None:
        """Do the same as `retire`, and ignore errors: for the end of the store object's life."""
        try:
            self.retire()
        except (StoreError, OSError):
            pass

    def unwatch(self, keys: set[bytes]) -> None:
        """End the watch of `keys`, a set from which each key is removed when it is written."""
        self._replay.watchers.pop(id(keys), None)

    def check_open(self) -> None:
        """Check that the store is open. Raises StoreError after `retire`."""
        if self._closed:
            raise StoreError(f"the store at {self.path} was closed: make another one")

    @contextmanager
    def _locked(
        self, doing: str, how: int, lock_wait_s: float, create: bool | None = None
    ) -> Iterator[int]:
        """Yield the descriptor of the file, open and locked, and unlock and close it at the end.

        It is -1 if the file does not exist and is not to be created.
        """
        started = monotonic()
        if not self._turn.acquire(timeout=min(max(lock_wait_s, 0.0), threading.TIMEOUT_MAX)):
            raise self._locked_out(doing, started)
        try:
            flags = os.O_RDONLY if how == fcntl.LOCK_SH else os.O_RDWR
            if create is not False and how == fcntl.LOCK_EX:
                flags |= os.O_CREAT
            self._fd = self._open_locked(doing, flags, how, started, lock_wait_s)
            try:
                yield self._fd
            finally:
                self._release()
        finally:
            self._turn.release()

    def _open_locked(
        self, doing: str, flags: int, how: int, started: float, lock_wait_s: float
    ) -> int:
        pauses = growing_pauses(0.0002, 0.005)
        while True:
            fd = self._open(doing, flags)
            if fd < 0:
                return fd
            try:
                while not self._try_lock(doing, fd, how):
                    left_s = lock_wait_s - (monotonic() - started)
                    if left_s <= 0:
                        raise self._locked_out(doing, started)
                    sleep(min(next(pauses), left_s))
                if self._is_current(fd):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _open(self, doing: str, flags: int) -> int:
        mode = _PRIVATE_MODE if self._private else _MODE
        if self._private:
            flags |= os.O_NOFOLLOW
        try:
            # Without O_NONBLOCK, a pipe of that name would wait for its other end.
            fd = open_named(self.path, flags | os.O_NONBLOCK, mode)
        except OSError as error:
            if error.errno == errno.ENOENT and not flags & os.O_CREAT:
                return -1
            if self._private and error.errno in _NOT_OURS:
                with suppress(OSError):
                    self._check_private(os.lstat(self.path))
            raise self._unusable(doing, error) from error
        try:
            status = os.fstat(fd)
            if self._private:
                self._check_private(status)
            if not stat.S_ISREG(status.st_mode):
                reason = "it is not a regular file: name another one"
                raise StoreConnectionError(self.path, doing, reason)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_private(self, status: os.stat_result) -> None:
        fix = "name another one"
        flaw = why_not_private(status, "store's file", self.path, not_a_file=fix, not_yours=fix)
        if flaw:
            raise AccessError(flaw)

    def _try_lock(self, doing: str, fd: int, how: int) -> bool:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unusable(doing, error) from error
        return True

    def _is_current(self, fd: int) -> bool:
        """Return whether the path still names this file after the wait for the lock."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(fd))
        except OSError:
            return False

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # A child forked meanwhile may have the descriptor too: closing would not unlock.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _refresh(self, fd: int) -> Tail:
        """Apply the records that were appended to the file; return what follows the last whole one.

        If the file has been replaced, its content is read anew.
        """
        status = os.fstat(fd)
        file_id = (status.st_dev, status.st_ino)
        replay = self._replay
        if file_id != self._file_id or status.st_size < replay.offset:
            self._forget()
        trail_bytes = len(replay.trail)
        data = _read(fd, replay.offset - trail_bytes, status.st_size)
        if data[:trail_bytes] != replay.trail:
            # A new file can have the number of a deleted one, and more bytes.
            self._forget()
            data, trail_bytes = _read(fd, 0, status.st_size), 0
        self._file_id = file_id
        try:
            return replay.read(data[trail_bytes:])
        except BaseException:
            # An interrupt may have come between two records.
            replay.restart()
            raise

    def _forget(self) -> None:
        self._replay.restart()
        self._file_id, self._enrolled = None, False

    def _locked_out(self, doing: str, started: float) -> StoreTimeoutError:
        return StoreTimeoutError(
            f"{doing}: others lock the file", [self.path], monotonic() - started
        )

    def _unusable(self, doing: str, error: OSError) -> StoreConnectionError:
        reason = _FIXES.get(error.errno or 0, error.strerror or str(error))
        return StoreConnectionError(self.path, doing, reason)


class Appending:
    """The file of a store while it is locked for writing."""

    def __init__(self, path: str, fd: int, doing: str, replay: Replay) -> None:
        self._path, self._fd, self._doing = path, fd, doing
        self.replay = replay

    def append(self, records: bytes) -> None:
        """Append records to the file, and apply them to `replay`.

        Raises StoreError if the file can't be written; then none of them is in it.
        """
        self._write(records, self.replay.offset)
        self.replay.read(records)

    def repair(self, tail: Tail) -> None:
        """Repair the end that a killed writer left: cut off a record, or finish a batch."""
        if tail.torn_bytes:
            os.ftruncate(self._fd, self.replay.offset)
        elif tail.owed:
            size = os.fstat(self._fd).st_size
            self._write(tail.owed, size)
            self.replay.read(_read(self._fd, self.replay.offset, size + len(tail.owed)))

    def _write(self, data: bytes, offset: int) -> None:
        left = memoryview(data)
        try:
            while left:
                written = os.pwrite(self._fd, left, offset + len(data) - len(left))
                left = left[written:]
        except BaseException as error:
            os.ftruncate(self._fd, offset)
            if isinstance(error, OSError):
                raise StoreError(
                    f"{self._doing} on the store at {self._path}: {error.strerror}: "
                    "nothing was written; make room and try again"
                ) from error
            raise


def _read(fd: int, start: int, end: int) -> bytes:
    parts = []
    while start < end:
        part = os.pread(fd, min(end - start, _CHUNK_BYTES), start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)


_LOGS: WeakSet[FileLog] = WeakSet()


def _begin_in_child() -> None:
    for log in tuple(_LOGS):
        log.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


def poll(look: Callable[[float], T | None], wait_s: float) -> T | None:
    """Call `look` until it returns something, and return that; None after `wait_s` seconds. Blocks.

    `look` is called at least once. It gets the seconds that it may wait for a lock, and raises
    StoreTimeoutError if it does not get the lock. If the first call raises that, it is passed on;
    later it ends the wait with None.
    """
    pauses = growing_pauses(_FIRST_PAUSE_S, _LAST_PAUSE_S)
    deadline = monotonic() + wait_s
    found = look(wait_s if wait_s > 0 else LEAST_LOCK_WAIT_S)
    while found is None and (left_s := deadline - monotonic()) > 0:
        sleep(min(next(pauses), left_s))
        try:
            found = look(max(0.0, deadline - monotonic()))
        except StoreTimeoutError:
            return None
    return found
