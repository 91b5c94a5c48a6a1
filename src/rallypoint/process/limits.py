"""The system's limits for an agent and its workers: open files, processes, memory."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Sequence
from typing import NamedTuple

from rallypoint.errors import MACHINE_ERRNOS, InfrastructureError, during

_MORE_PROCESSES = "raise ulimit -u (or pids.max of the container), or free memory"
SHORT_SHARE = 0.9
"""The share of a container's memory limit from which on memory is short."""
_NO_LIMIT = 1 << 60
"""The number of bytes from which on a limit counts as none, as in cgroup v1."""
_FOR_THE_AGENT = 24
"""The number of descriptors of an agent besides those for workers: streams, pipes to its helpers,
loop, listeners, connections."""
_PER_WORKER = 5
"""The number of descriptors for each worker. In the agent, while it starts: two pipes, both ends,
later a pidfd, and the pipe that all share. In the relay, which has the agent's limit: two pipes and
two files."""


def cant_start_process(error: OSError) -> InfrastructureError:
    """Return the error, one line, for a fork or its pipes that failed.

    It has advice only for the errors of `MACHINE_ERRNOS`: a lack of a resource, or a broken part.
    """
    if (short := out_of_files(error)) is not None:
        return short
    text = f"can't start a process: {error.strerror}"
    if error.filename is not None:
        text += f" ({error.filename!a})"
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        text += f": {_MORE_PROCESSES}"
    elif error.errno in MACHINE_ERRNOS:
        text += f": {fix_of(error.errno)}"
    return during("fork", error.errno, InfrastructureError(text))


def cant_start_workers(error: OSError) -> InfrastructureError | None:
    """Return the error, one line, for workers that can't be started because of this machine.

    None for system errors that are not in `MACHINE_ERRNOS`.
    """
    if error.errno not in MACHINE_ERRNOS:
        return None
    if (short := out_of_files(error)) is not None:
        return short
    where = "" if error.filename is None else f" ({error.filename!a})"
    text = f"can't start workers: {error.strerror}{where}: {fix_of(error.errno)}"
    return during("prepare workers", error.errno, InfrastructureError(text))


def out_of_files(error: BaseException | None) -> InfrastructureError | None:
    """Return the error, one line, for a lack of descriptors; None for any other error."""
    match error:
        case OSError(errno=errno.EMFILE):
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            text = f"too many open files: raise ulimit -n (now {soft})"
        case OSError(errno=errno.ENFILE):
            text = "too many open files on this machine: raise fs.file-max (sysctl)"
        case _:
            return None
    return during("open files", error.errno, InfrastructureError(text))


def fix_of(number: int | None) -> str:
    """Return the advice to a person for an error number, such as those of `MACHINE_ERRNOS`."""
    match number:
        case errno.EMFILE:
            return "raise ulimit -n"
        case errno.ENFILE:
            return "raise fs.file-max (sysctl)"
        case errno.EAGAIN:
            return _MORE_PROCESSES
        case errno.ENOMEM:
            return "free memory, or give the container more"
        case errno.ENOSPC | errno.EDQUOT:
            return "free space there"
        case _:
            return "look at the file system and its disk (dmesg -T)"


def descriptors_for(workers: int) -> int:
    """Return how many descriptors an agent needs for so many workers, besides its own."""
    return _PER_WORKER * workers


def have_descriptors_for(workers: int) -> None:
    """Raise the soft limit of descriptors as far as an agent of so many workers needs.

    To be called before anything is started, because later there is no good moment to fail. Children
    inherit the limit: the code that spawns workers restores theirs. Raises InfrastructureError when
    the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _open_count() + _FOR_THE_AGENT + descriptors_for(workers)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        raise InfrastructureError(
            f"too many open files: raise ulimit -n (now {hard}) to {wanted} or more"
        ) from None


def try_descriptors(workers: int) -> None:
    """Open as many descriptors as starting so many workers takes, and close them.

    Raises OSError (EMFILE, ENFILE).
    """
    opened: list[int] = []
    try:
        while len(opened) < descriptors_for(workers):
            opened += os.pipe()
    finally:
        for fd in opened:
            os.close(fd)


def _open_count() -> int:
    """Return the number of open descriptors, including inherited ones; 3 if it is not known."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 3


def shared_memory_use(place: str = "/dev/shm") -> str:
    """Return the use of this node's shared memory; empty if there is none.

    For example `/dev/shm: 63 of 64 MiB in use`.
    """
    try:
        found = os.statvfs(place)
    except OSError:
        return ""
    size, free = found.f_blocks * found.f_frsize, found.f_bfree * found.f_frsize
    return f"{place}: {(size - free) >> 20} of {size >> 20} MiB in use"


class OomWatch:
    """The count of out-of-memory kills in this cgroup and those below it.

    It begins when the object is made, and again with `rearm`. It covers the whole container, so it
    is a hint about a worker that died of SIGKILL, not a proof. Without a readable counter it stays
    0.
    """

    def __init__(self, files: Sequence[str] | None = None) -> None:
        """`files`: paths of counters; None: the cgroup's. The first that is readable counts."""
        self._files = tuple(files) if files is not None else _counter_files()
        self._before = self._count()

    def rose(self) -> bool:
        """Return whether the kernel has killed for memory since the object was made.

        After a `rearm`: since the last one.
        """
        return self._count() > self._before

    def rearm(self) -> None:
        """Count the out-of-memory kills from now on, as at the start of a round."""
        self._before = self._count()

    def _count(self) -> int:
        for path in self._files:
            count = _read_count(path)
            if count is not None:
                return count
        return 0


class MemoryWatch:
    """The check of how much of the container's memory limit is in use, as the kernel counts it.

    Memory that could be freed at once, inactive pages of files, does not count. It is checked
    before each heartbeat, so that peers know why this node may be gone in a moment: by cgroup v2
    the kernel kills all processes of a container together, and none can report it.
    """

    def __init__(self, folders: Sequence[str] | None = None) -> None:
        """Read the limit. `folders`: those of the memory cgroup, None: this process's.

        The first folder that has a limit counts.
        """
        self._found: tuple[str, _Memory, int] | None = None
        for folder in folders if folders is not None else _memory_folders():
            for names in (_V2, _V1):
                limit = _number_in(os.path.join(folder, names.limit))
                if self._found is None and limit is not None and 0 < limit < _NO_LIMIT:
                    self._found = folder, names, limit

    @property
    def limit(self) -> int | None:
        """The container's memory limit in bytes; None: there is none, or none can be read."""
        return None if self._found is None else self._found[2]

    def is_short(self) -> bool:
        """Return whether at least the share SHORT_SHARE of the container's limit is in use.

        Reads one small file, and another one where memory may be short. Without a limit, or where
        none can be read, the answer is no.
        """
        if self._found is None:
            return False
        folder, names, limit = self._found
        enough = limit * SHORT_SHARE
        used = _number_in(os.path.join(folder, names.used)) or 0
        if used < enough:
            return False
        spare = _field(os.path.join(folder, "memory.stat"), names.spare) or 0
        return used - spare >= enough


def usable_memory(watch: MemoryWatch | None = None) -> int | None:
    """Return the smaller of this machine's memory and the container's limit, in bytes.

    None: neither is known.
    """
    limit = (watch or MemoryWatch()).limit
    try:
        of_machine: int | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        of_machine = None
    return min((each for each in (limit, of_machine) if each), default=None)


class _Memory(NamedTuple):
    """The names of a cgroup's limit and use files, and of memory.stat's line of inactive files."""

    limit: str
    used: str
    spare: str


_V2 = _Memory("memory.max", "memory.current", "inactive_file")
_V1 = _Memory("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _counter_files() -> tuple[str, ...]:
    """Return the paths of the counters of kills, those of this process's cgroup before the root's.

    They are `memory.events` of cgroup v2 and `memory.oom_control` of v1; not all exist.
    """
    names = ("memory.events", "memory.oom_control")
    return tuple(os.path.join(folder, name) for folder in _memory_folders() for name in names)


def _memory_folders() -> tuple[str, ...]:
    """Return the possible folders of the memory cgroup, this process's before the root's.

    They are those of cgroup v2 and v1, and may not exist. Empty if this process's cgroup can't be
    read.
    """
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    folders = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root = "/sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            root = "/sys/fs/cgroup/memory"
        else:
            continue
        # Within a container the path may be the host's; then only the root is to be seen.
        folders += [root + path, root]
    return tuple(folders)


def _read_count(path: str) -> int | None:
    return _field(path, "oom_kill")


def _field(path: str, name: str) -> int | None:
    """Return the number after this name in a file of names and numbers; None if there is none."""
    try:
        with open(path) as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == name:
                    return int(value)
    except (OSError, ValueError):
        return None
    return None


def _number_in(path: str) -> int | None:
    """Return the number in a file; None if it can't be read, or has no number, as with `max`."""
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
