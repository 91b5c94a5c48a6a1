"""Limits of the system that an agent runs into: open files, and processes."""

from __future__ import annotations

import errno
import os
import resource

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
