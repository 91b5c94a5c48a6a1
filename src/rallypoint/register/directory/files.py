"""The file system that the register in a directory needs: operations, a clock and random bytes.

`LocalFiles` is the file system that is mounted here; `rallypoint.testing` has one in memory with
the faults of real ones. Everything is private to this user: directories have mode 0700, files 0600.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rallypoint.clocks import boot_time
from rallypoint.errors import AccessError
from rallypoint.files import safe_open, write_all

_CHUNK_BYTES = 1 << 20
FIXES = {
    errno.ENOSPC: "its file system is full: free some space",
    errno.EDQUOT: "your quota on its file system is used up: free some space",
    errno.EROFS: "its file system is read-only: mount it writable, or name another directory",
    errno.EACCES: "make it writable for you, or name another directory",
    errno.EOPNOTSUPP: "its file system has no hard links: name another directory",
}
"""The fix for each error number that the directory of registers may give, as part of a sentence for
the user."""


def why_not_own(status: os.stat_result, what: str, or_else: str) -> str:
    """Return why a path is not a directory that only this user may write to, and the fix.

    Empty: it is one. A user who can write there can replace registers. Some file systems show one
    mode for everything, so a directory that others can read is accepted: files in it are created
    with private modes.
    """
    if not stat.S_ISDIR(status.st_mode):
        return f"{what}: it is not a directory: move it away, or {or_else}"
    if status.st_uid != os.geteuid():
        mine = f"user {status.st_uid}, not to you (user {os.geteuid()})"
        return f"{what}: it belongs to {mine}: {or_else}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        return (
            f"{what}: other users may write to it (mode {mode:04o}): run `chmod go-w` on it, or "
            f"{or_else}"
        )
    return ""


class Files(Protocol):
    """Operations on paths. Those on the file system raise OSError.

    After such an error the operation may have happened, or happen later.
    """

    def make_directory(self, path: str) -> None:
        """Make a new directory of mode 0700. Raises FileExistsError if the path exists."""

    def check_own(self, path: str) -> None:
        """Raise AccessError unless this is a directory of this user, where no other may write."""

    def write(self, path: str, data: bytes) -> float:
        """Write a new file, whose content survives a loss of power; its name need not.

        Returns the time of writing on the file system's clock.
        """

    def read(self, path: str) -> bytes:
        """Return the content of a file."""

    def link(self, source: str, target: str) -> None:
        """Make `target` a second name of a file. Raises FileExistsError if that name is taken."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file, and replace an existing target."""

    def remove(self, path: str) -> None:
        """Remove the name of a file."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in no particular order."""

    def sync(self, path: str) -> None:
        """Make the names in a directory durable."""

    def changed_at(self, path: str) -> float:
        """Return the time at which a file, or the names in a directory, last changed.

        In seconds on the file system's clock.
        """

    def file_system(self, path: str) -> int:
        """Return the id of the file system that holds the path."""

    def now(self) -> float:
        """Return seconds on a clock of this machine that does not stop while it is suspended."""

    def random_bytes(self, count: int) -> bytes:
        """Return `count` random bytes, which no other process has."""


class LocalFiles:
    """The operations of `Files` on what is mounted on this machine, be it local or a network's."""

    def make_directory(self, path: str) -> None:
        """Make a directory, as `Files.make_directory` describes."""
        os.mkdir(path, 0o700)

    def check_own(self, path: str) -> None:
        """Check the directory, as `Files.check_own` describes; a symbolic link is refused."""
        if why := why_not_own(os.lstat(path), path, "use another run id"):
            raise AccessError(why)

    def write(self, path: str, data: bytes) -> float:
        with _closing(safe_open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)) as fd:
            write_all(fd, data)
            os.fsync(fd)
            return os.fstat(fd).st_mtime

    def read(self, path: str) -> bytes:
        with _closing(safe_open(path, os.O_RDONLY)) as fd:
            chunks = []
            while chunk := os.read(fd, _CHUNK_BYTES):
                chunks.append(chunk)
            return b"".join(chunks)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def names(self, path: str) -> list[str]:
        return os.listdir(path)

    def sync(self, path: str) -> None:
        with _closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
            os.fsync(fd)

    def changed_at(self, path: str) -> float:
        return os.lstat(path).st_mtime

    def file_system(self, path: str) -> int:
        return os.lstat(path).st_dev

    def now(self) -> float:
        return boot_time()

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    """Close the descriptor at the end of the block; closing it raises late errors of writing."""
    try:
        yield fd
    finally:
        os.close(fd)
