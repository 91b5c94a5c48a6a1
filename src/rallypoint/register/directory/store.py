"""The registers of all jobs in one directory, for a process that is no node of any
(`rallypoint serve`). By a lock there another such process sees whether this one lives."""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
from contextlib import suppress

from rallypoint.core.takeover.record import LifeLock
from rallypoint.errors import RallypointError
from rallypoint.files import safe_open
from rallypoint.register.directory import upkeep as data_directory
from rallypoint.register.directory.backend import DirectoryBackend, job_directory
from rallypoint.register.directory.chain import VersionChain
from rallypoint.register.directory.file_systems import FileSystem, FileSystemReach, file_system_at
from rallypoint.register.directory.files import LocalFiles
from rallypoint.register.record import decode
from rallypoint.register.version_file import UnsealedFormat

PREFIX = "rallypoint-"
_HASH = 33  # with the hyphen before it
LOCKS = "processes.lock"
_PLACE_BITS = 62
_FLOCK = struct.Struct("@hhqqi4x")
"""`struct flock`: type, whence, start, length, pid."""


class RegistersIn:
    """The registers in one directory: `places.Registers`."""

    def __init__(self, directory: str, flag: str) -> None:
        """`flag`: how a person gave the directory."""
        self._directory, self._files, self._flag = directory, LocalFiles(), flag
        self._changed_at: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The directory."""
        return self._directory

    def prepare(self) -> list[str]:
        """See `data_directory.prepare`."""
        return data_directory.prepare(self._directory, self._files, self._flag)

    def open(self, run_id: str, token: bytes | None) -> DirectoryBackend:
        """See `places.Registers`, also for the other methods."""
        return DirectoryBackend(self._directory, run_id, token)

    def sweep(self) -> None:
        data_directory.sweep(self._files, self._directory)

    def life_locks(self) -> DirectoryLocks:
        return DirectoryLocks(self._directory)

    def changed(self) -> list[str]:
        """The run ids of the jobs whose registers have changed since the last call. What can't be
        read is left out. Blocks."""
        before, self._changed_at = self._changed_at, {}
        found: list[str] = []
        with suppress(OSError):
            for name in sorted(self._files.names(self._directory)):
                if not is_register(name):
                    continue
                with suppress(OSError):
                    # Every version is written in it first, under a name that is removed again.
                    changed_at = self._files.changed_at(os.path.join(self._directory, name))
                    if before.get(name) != changed_at and (run_id := self._run_id(name)):
                        found.append(run_id)
                    elif before.get(name) != changed_at:
                        continue  # The record of a job that has just begun does not name it yet.
                    self._changed_at[name] = changed_at
        return found

    def _run_id(self, name: str) -> str:
        """Of the job with this directory; empty: it is not known."""
        if readable := readable_run_id(name):
            return readable
        with suppress(RallypointError):
            path = os.path.join(self._directory, name)
            self._files.check_own(path)
            tip = VersionChain(self._files, path, UnsealedFormat()).tip()
            run_id = "" if tip is None else recorded_run_id(tip.content)
            return run_id if job_directory(run_id) == name else ""
        return ""


def is_register(name: str) -> bool:
    """Whether a job's register may have this name."""
    return name.startswith(PREFIX) and len(name) > len(PREFIX) + _HASH


def readable_run_id(name: str) -> str:
    """Of the job whose register has this name; empty: the name does not tell."""
    readable = name[len(PREFIX) : -_HASH]
    return readable if job_directory(readable) == name else ""


def recorded_run_id(content: bytes) -> str:
    """Of the job with this record, which nobody has authenticated: the name of its register has to
    agree. Empty: of a job that has just begun. Raises RallypointError for what is no record."""
    job = decode(content).job
    return "" if job is None else job.settings.run_id


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
    return there.reach is FileSystemReach.LOCAL and not there.type.startswith("fuse")


def _flock(kind: int, place: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0)
