"""Limits of the system that an agent and its workers reach: open files, processes, memory."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Sequence

from rallypoint.errors import InfrastructureError

_FOR_THE_AGENT = 24
"""Descriptors of an agent: streams, pipes to its helpers, loop, listeners, connections."""
_PER_WORKER = 5
"""In the agent, while it starts: two pipes, both ends, later a pidfd, and the pipe that all share.
In the relay, which has the agent's limit: two pipes and two files."""


def cant_start_process(error: OSError) -> InfrastructureError:
    """One line for a person about a fork that failed (EAGAIN, ENOMEM), or its pipes (EMFILE)."""
    return out_of_files(error) or InfrastructureError(
        f"can't start a process: {error.strerror}: "
        "raise ulimit -u (or pids.max of the container), or free memory"
    )


def out_of_files(error: BaseException | None) -> InfrastructureError | None:
    """One line for a person when descriptors have run out; None for any other error."""
    match error:
        case OSError(errno=errno.EMFILE):
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return InfrastructureError(f"too many open files: raise ulimit -n (now {soft})")
        case OSError(errno=errno.ENFILE):
            return InfrastructureError(
                "too many open files on this machine: raise fs.file-max (sysctl)"
            )
        case _:
            return None


def descriptors_for(workers: int) -> int:
    """How many so many workers cost their agent."""
    return _PER_WORKER * workers


def have_descriptors_for(workers: int) -> None:
    """See to it that an agent of so many workers does not run out of descriptors: raise the soft
    limit of this process as far as needed.

    To be called before anything is started: later there is no good moment to find out. Children
    inherit the limit: whoever spawns workers restores theirs. Raises InfrastructureError when the
    hard limit is in the way.
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


def _open_count() -> int:
    """What our parent has left open counts too."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 3


class OomWatch:
    """Counts out-of-memory kills in our cgroup, its children included, since this was made.

    The count covers the whole container, so it is a hint about a worker that died of SIGKILL, not a
    proof. Where no counter can be read, the answer is no.
    """

    def __init__(self, files: Sequence[str] | None = None) -> None:
        """`files`: counters to read instead of the cgroup's; the first that is readable counts."""
        self._files = tuple(files) if files is not None else _counter_files()
        self._before = self._count()

    def rose(self) -> bool:
        """Whether there was a kill since this was made, or since the last `rearm`."""
        return self._count() > self._before

    def rearm(self) -> None:
        """Start counting from now, as at the start of a round."""
        self._before = self._count()

    def _count(self) -> int:
        for path in self._files:
            count = _read_count(path)
            if count is not None:
                return count
        return 0


def _counter_files() -> tuple[str, ...]:
    """`memory.events` of cgroup v2 and `memory.oom_control` of v1, ours before the root's."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    files = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root, name = "/sys/fs/cgroup", "memory.events"
        elif "memory" in controllers.split(","):
            root, name = "/sys/fs/cgroup/memory", "memory.oom_control"
        else:
            continue
        # Within a container the path may be the host's; then only the root is to be seen.
        files += [os.path.join(root + path, name), os.path.join(root, name)]
    return tuple(files)


def _read_count(path: str) -> int | None:
    try:
        with open(path) as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        return None
    return None
