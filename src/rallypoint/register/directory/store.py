"""The engine of directories: all records in one, which is made if there is none. By a lock there
another process that is no node of any job (`rallypoint serve`) sees whether this one lives."""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress

from rallypoint.core.takeover.record import LifeLock
from rallypoint.errors import RallypointError, RendezvousConnectionError, UsageError
from rallypoint.file_systems import (
    FileSystem,
    Reach,
    file_system_at,
    lies_here,
    lies_on,
    local_file_system,
    why_not_there,
)
from rallypoint.files import safe_open
from rallypoint.register.directory import upkeep
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.directory.chain import VersionChain
from rallypoint.register.directory.files import LocalFiles
from rallypoint.register.engines import Use, Wording
from rallypoint.register.record import ChangedRecords, recorded_run_id
from rallypoint.register.version_file import UnsealedFormat, is_register, readable_run_id

LOCKS = "processes.lock"
_PLACE_BITS = 62
_FLOCK = struct.Struct("@hhqqi4x")
"""`struct flock`: type, whence, start, length, pid."""


class DirectoryEngine:
    """See `Engine`."""

    name = "file"

    def __init__(self, where: str, settings: Mapping[str, str], use: Use) -> None:
        self._path, self._use, self._files = where, use, LocalFiles()
        self._changed = ChangedRecords(self._run_id_of)

    @property
    def where(self) -> str:
        return f"the directory {self._path}"

    def prepare(self) -> list[str]:
        """See `Engine`. What `serve` uses is not said to be missing: it is told of one machine."""
        if not self._use.run_id:
            return upkeep.prepare(self._path, self._files, "")
        path, (least, most) = self._path, self._use.nodes
        is_shared = most > 1
        if is_shared and (why := why_not_there(path, may_part=least < most)):
            raise RendezvousConnectionError(why)
        if os.path.isfile(path):
            raise UsageError(
                f"{path}: it is a file, as earlier versions used for --rdzv-backend file: "
                "name a directory that all nodes share (a file between peers is for a program's "
                "DynamicRendezvousHandler)"
            )
        missing = _missing(path)
        remarks = upkeep.prepare(path, self._files, "")
        if is_shared and (local := local_file_system(path)):
            remarks.append(lies_here(path, local))
        if missing:
            made = f"{path}, which was missing"
            if len(missing) > 1:
                made = f"{path}, and {missing[-1]} above it, which were missing"
            shared = ": all nodes must see this directory" if is_shared else ""
            remarks.append(f"made {made}{shared}")
        return remarks

    def open(self, run_id: str, token: bytes | None) -> DirectoryBackend:
        return DirectoryBackend(self._path, run_id, token)

    def sweep(self) -> None:
        upkeep.sweep(self._files, self._path)

    def wording(self) -> Wording:
        check = "see that its file server is up, or name another directory"
        return Wording(check, self._same, self._apart, has_fixes=True)

    def _same(self) -> str:
        return f"{self._path}{lies_on(self._path)} is the same directory on all of them"

    def _apart(self) -> str:
        if not (local := local_file_system(self._path)):
            return ""
        fix = "if other nodes run on other machines, name a directory that all of them share"
        return f"{fix}: {lies_here(self._path, local)}"

    def life_locks(self) -> DirectoryLocks:
        """See `LockingEngine`."""
        return DirectoryLocks(self._path)

    def changed(self) -> list[str]:
        return self._changed.look(self._registers())

    def _registers(self) -> Iterator[tuple[str, float]]:
        names: list[str] = []
        with suppress(OSError):
            names = sorted(filter(is_register, self._files.names(self._path)))
        for name in names:
            with suppress(OSError):
                # Every version is written in it first, under a name that is removed again.
                yield name, self._files.changed_at(os.path.join(self._path, name))

    def _run_id_of(self, name: str) -> str:
        if run_id := readable_run_id(name):
            return run_id
        with suppress(OSError, RallypointError):
            path = os.path.join(self._path, name)
            self._files.check_own(path)
            tip = VersionChain(self._files, path, UnsealedFormat()).tip()
            return "" if tip is None else recorded_run_id(tip.content, name)
        return ""


class DirectoryLocks:
    """A lock in a directory tells other processes of this machine whether its holder lives, also
    those of other containers, which see no process of each other.

    Each process locks one byte of one file, at a place that it draws. The kernel frees the lock
    when the process has ended, and never before: a process that is stopped keeps it. A record names
    the file by its device and its inode. While a process has that file open, no other file has its
    inode.

    A lock is held and believed only on a file system that one kernel alone serves: a file server
    may free the lock of a process that lives, after a partition for example. The constructor
    blocks.
    """

    def __init__(self, directory: str) -> None:
        """Hold a lock there until this process ends, if locks there can be believed."""
        self._fd = -1
        self.own: LifeLock | None = None
        """The lock of this process; None: it holds none there."""
        with suppress(OSError):
            self.own = self._lock(directory)

    def _lock(self, directory: str) -> LifeLock | None:
        found = file_system_at(directory)
        if found is None or not are_locks_trusted(found):
            return None
        self._fd = safe_open(os.path.join(directory, LOCKS), os.O_RDWR | os.O_CREAT)
        file, place = os.fstat(self._fd), secrets.randbits(_PLACE_BITS)
        if file.st_dev != os.stat(directory).st_dev:
            return None  # Two overlays may show this file, and each has its own locks then.
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, place))
        return LifeLock(file.st_dev, file.st_ino, place)

    def is_free(self, lock: LifeLock) -> bool:
        """Whether this lock is known to be held by no process: its holder has ended then. Asks the
        kernel, and not the disk."""
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
    """Whether one kernel alone serves what lies there, and so its locks. Pure."""
    return there.reach is Reach.LOCAL and not there.type.startswith("fuse")


def _flock(kind: int, place: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0)


def _missing(path: str) -> list[str]:
    """Return the absolute path and the directories above it that do not exist, the highest last."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing
