"""A lock in a directory that shows other processes whether this one lives.

For processes that are not nodes of a job (`rallypoint serve`).
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress

from rallypoint.core.takeover.record import LifeLock
from rallypoint.file_systems import FileSystem, FileSystemReach, file_system_at
from rallypoint.files import safe_open

LOCKS = "processes.lock"
_PLACE_BITS = 62
_PLACE_BYTES = 8
_FLOCK = struct.Struct("@hhqqi4x")
"""`struct flock`: type, whence, start, length, pid."""


def _draw_place() -> int:
    return int.from_bytes(os.urandom(_PLACE_BYTES)) >> (8 * _PLACE_BYTES - _PLACE_BITS)


class DirectoryLocks:
    """The locks in a directory that show other processes of this machine whether a holder lives.

    This works across containers, whose processes do not see each other. Each process locks one byte
    of one shared file, at a random position. The kernel frees the lock when the process has ended,
    and never before: a stopped process keeps its lock.

    A `LifeLock` in a job's record names the file by its device and its inode. While a process has
    that file open, no other file has its inode.

    A lock is held and trusted only on a local file system, not of FUSE, which a single kernel
    serves. A file server may free the lock of a live process, for example after a partition. The
    constructor blocks.
    """

    def __init__(self, directory: str) -> None:
        """Hold a lock there until this process ends, if locks there can be trusted and taken."""
        self._fd = -1
        self.own: LifeLock | None = None
        """The lock of this process; None: it holds no lock there."""
        with suppress(OSError):
            self.own = self._lock(directory)

    def _lock(self, directory: str) -> LifeLock | None:
        found = file_system_at(directory)
        if found is None or not are_locks_trusted(found):
            return None
        self._fd = safe_open(os.path.join(directory, LOCKS), os.O_RDWR | os.O_CREAT)
        file, place = os.fstat(self._fd), _draw_place()
        if file.st_dev != os.stat(directory).st_dev:
            return None  # Two overlays may show this file, and each has its own locks then.
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, place))
        return LifeLock(file.st_dev, file.st_ino, place)

    def is_free(self, lock: LifeLock) -> bool:
        """Return whether no process holds this lock, so that its holder has ended.

        Asks the kernel, not the disk. False for this process's own lock, for a lock in another
        file, if this process holds none, and if the kernel can't tell.
        """
        own = self.own
        if own is None or (lock.device, lock.inode) != (own.device, own.inode):
            return False
        try:
            answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, lock.place))
        except OSError:
            return False
        assert isinstance(answer, bytes)
        return lock != own and _FLOCK.unpack(answer)[0] == fcntl.F_UNLCK


def are_locks_trusted(there: FileSystem) -> bool:
    """Return whether the locks of a file system can be trusted: it is local, and not of FUSE.

    Then a single kernel serves it. Pure.
    """
    return there.reach is FileSystemReach.LOCAL and not there.type.startswith("fuse")


def _flock(kind: int, place: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0)
