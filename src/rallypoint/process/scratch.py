"""A directory of this agent alone on storage of this node, for what its workers and it share.

Its name is chosen before the guard is forked, which is told it, and it is made after that: so
whenever the agent is killed, the guard removes it. Where all of a container is killed, the guard
with it, the next agent of that user does (see `is_ours`, `sweep`). An agent keeps its directory
locked while it lives, and the name tells under which kernel that was: another machine that shares
the directory for temporary files sees no lock. The end of `rallypoint launch` on a host has such a
directory as well, which the next agent removes if that process was killed.

A program that has launched a job which failed is told of its workers' error files, and may look for
what lies beside them: these stay until that program ends.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import stat
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import filterfalse, islice

from msgspec import Struct

from rallypoint.files import remove_tree, safe_open
from rallypoint.machine_name import kernel_id
from rallypoint.process.logs.log_dir import full_place, safe_name

PREFIX = "rallypoint-agent-"
HOST_PREFIX = "rallypoint-host-"
"""The prefix of the names of the directories of `rallypoint launch` on its hosts."""
PLACES = ("/tmp", "/var/tmp", "/dev/shm")
JOB_NOTE = "job"
"""The name of the file with the agent's job, for commands on this node."""
KEPT_NOTE = "kept"
"""The name of the file that marks a directory that stays when the agent has ended."""
_MOST_ENTRIES, _MOST_LOOKED_AT = 20_000, 1000
_NOTE_MAX = 4096


class LocalJob(Struct, frozen=True):
    """The note in an agent's directory about its job."""

    run_id: str
    address: str
    """The address of the coordinator that the agent last attached to, `HOST:PORT` in digits."""
    insecure: bool = False
    pid: int = 0
    """The pid of the agent."""
    secret: bytes = b""
    """The job's own token, if it has one that the user did not give; else empty."""


class Scratch:
    """A directory of this agent alone, for files that it shares with its workers.

    Made by `make`, removed by `remove`. `paths` are its possible paths, one for each place.
    """

    def __init__(self, temp_dir: str, run_id: str, prefix: str = PREFIX) -> None:
        name = f"{prefix}{safe_name(run_id)}_{kernel_id()}_{os.urandom(8).hex()}"
        places = dict.fromkeys((os.path.abspath(temp_dir), *PLACES))
        self.paths = tuple(os.path.join(place, name) for place in places)
        self.path = ""
        """The absolute path; empty before `make`, when that has found no place, after `remove`, and
        after a `keep` that has kept something."""
        self._lock = -1

    def make(self) -> None:
        """Make the directory with mode 0700, in the first writable place with free space.

        If none has free space, then in the first writable one. `path` stays empty if there is none.
        Never raises.
        """
        for path in (*filterfalse(_is_full, self.paths), *filter(_is_full, self.paths)):
            try:
                os.mkdir(path, 0o700)
            except OSError:
                continue
            try:
                self._lock = lock_dir(path, fcntl.LOCK_SH)
            except OSError:
                remove_tree(path)  # A sweep has it, or it can't be locked there.
                continue
            self.path = path
            return

    def keep(self, folder: str) -> None:
        """Keep `folder`, which is in this directory, until the process ends, and remove the rest.

        After that `remove` does nothing. The lock is not kept: a program may launch many jobs that
        fail. Nothing is done if `folder` is not directly in it, or the directory can't be marked.
        Never raises.
        """
        if not self.path or os.path.dirname(folder) != self.path:
            return
        if not leave_note(self.path, f"{os.getpid()} {_namespace()}".encode(), KEPT_NOTE):
            return
        try:
            others = [entry for entry in os.scandir(self.path) if entry.path != folder]
        except OSError:
            others = []
        for entry in others:
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            elif entry.name != KEPT_NOTE:
                with suppress(OSError):
                    os.unlink(entry.path)
        remove_at_exit(self.path)
        os.close(self._lock)
        self.path = ""

    def remove(self) -> None:
        """Remove the directory with its content. Never raises; may be called again."""
        if self.path:
            remove_tree(self.path)
            os.close(self._lock)
            self.path = ""


def _is_full(path: str) -> bool:
    return bool(full_place((path,)))


def is_kept(path: str) -> bool:
    """Return whether this directory is marked to stay after its agent's end.

    It stays until the agent's program ends.
    """
    return os.path.exists(os.path.join(path, KEPT_NOTE))


def _namespace() -> int:
    """Return the number of this process's pid namespace; 0: not known."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _may_be_needed(path: str) -> bool:
    """Return whether a program that may live, also in another container, keeps the directory."""
    try:
        with open(os.path.join(path, KEPT_NOTE), "rb") as note:
            pid, namespace = map(int, note.read(_NOTE_MAX).split())
    except (OSError, ValueError):
        return False
    return namespace != _namespace() or lives(pid)


def remove_at_exit(path: str) -> None:
    """Have a directory removed when this process exits by itself; not when a fork of it does."""
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner and os.path.isdir(path):
            remove_tree(path)

    atexit.register(remove)
    # A child of multiprocessing ends without the functions that are registered for an exit.
    if util := sys.modules.get("multiprocessing.util"):
        util.Finalize(None, remove, exitpriority=0)


def leave_note(scratch: str, text: bytes, name: str = JOB_NOTE) -> bool:
    """Write a note into this directory: by default the agent's job.

    Never raises.

    Returns whether it was written.
    """
    path = os.path.join(scratch, name)
    try:
        fd = safe_open(f"{path}.new", os.O_WRONLY | os.O_CREAT)
        try:
            os.truncate(fd, 0)
            if os.write(fd, text) < len(text):
                return False
        finally:
            os.close(fd)
        os.replace(f"{path}.new", path)
    except OSError:
        return False
    return True


def notes(places: Iterable[str]) -> list[bytes]:
    """Return the notes about their jobs that this user's agents have left on this machine.

    `places` are the parents of the agents' directories. Agents that were killed a moment ago are
    included. Blocks on the file system; never raises OSError.
    """
    found = []
    for path in ours(places):
        try:
            with open(os.path.join(path, JOB_NOTE), "rb") as note:
                found.append(note.read(_NOTE_MAX))
        except OSError:
            continue
    return found


def lives(pid: int) -> bool:
    """Return whether a process with this number exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return pid > 0


def is_ours(
    name: str, mode: int, owner: int, *, user: int, kernel: str, prefix: str = PREFIX
) -> bool:
    """Return whether this user made a directory of this name, mode and owner under this kernel.

    Its lock shows whether the process that made it lives. `prefix` is that of agents' directories,
    or `HOST_PREFIX`.
    """
    head, _, tail = name.rpartition("_")
    made_here = bool(kernel) and head.startswith(prefix) and head.endswith(f"_{kernel}")
    is_private = stat.S_ISDIR(mode) and not mode & 0o077
    return made_here and len(tail) == 16 and is_private and owner == user


def sweep(places: Collection[str]) -> None:
    """Remove the remains of this user's killed agents from these directories.

    They are those of agents that were killed together with their guards, and of killed ends of
    `rallypoint launch`. What a program that may live has kept stays. Blocks on the file system;
    never raises OSError.
    """
    for path in (*ours(places), *ours(places, HOST_PREFIX)):
        if _may_be_needed(path):
            continue
        try:
            lock = lock_dir(path, fcntl.LOCK_EX)
            remove_tree(path)
            os.close(lock)
        except OSError:
            continue  # Its agent lives, or it is gone.


def ours(places: Iterable[str], prefix: str = PREFIX) -> Iterator[str]:
    """Yield the directories in `places`, with this prefix, that this user has made on this kernel.

    The default is the prefix of agents' directories.
    """
    user, kernel = os.geteuid(), kernel_id()
    for place in dict.fromkeys(places):
        try:
            with os.scandir(place) as entries:
                looked_at = islice(entries, _MOST_ENTRIES)
                names = [entry.name for entry in looked_at if entry.name.startswith(prefix)]
        except OSError:
            continue
        for name in names[:_MOST_LOOKED_AT]:
            path = os.path.join(place, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue
            mode, owner = status.st_mode, status.st_uid
            if is_ours(name, mode, owner, user=user, kernel=kernel, prefix=prefix):
                yield path


def lock_dir(path: str, how: int) -> int:
    """Lock the directory as `how` says (LOCK_SH or LOCK_EX); return the descriptor with the lock.

    Does not wait: raises OSError when another process holds a lock that excludes this one, or
    `path` names another directory by now.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), os.lstat(path)):
            raise FileNotFoundError
    except BaseException:
        os.close(fd)
        raise
    return fd
