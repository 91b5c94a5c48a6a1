"""The only interface to the kernel for processes: parent death, pidfds, waiting, groups.

Every function here is one system call and the meaning of its errors. Where a kernel lacks one, the
docstring says what happens instead.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from functools import cache

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

Prctl = Callable[[int, int], int]
PidfdOpen = Callable[[int], int]


@cache
def load_prctl() -> Prctl:
    """Return the function prctl(2), of an option and a value.

    Call this before a fork: a child must not import nor look up symbols. Where there is no prctl
    (macOS) the result does nothing: workers then outlive an agent that is killed until the guard
    ends them.
    """
    import ctypes

    try:
        function = ctypes.CDLL(None).prctl
    except AttributeError:
        return lambda _option, _value: 0
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

    def prctl(option: int, value: int) -> int:
        return int(function(option, value, 0, 0, 0))

    return prctl


def die_with_parent(prctl: Prctl, parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this forked child when its parent dies; exit if it has died already.

    The kernel ties the signal to the *thread* that forked, so that thread must live as long as the
    process. An exec keeps the setting, unless the program is set-user-id.
    """
    prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans(adopt: bool) -> bool:
    """Make orphaned descendants children of this process from now on, or stop that.

    Returns False where the system lacks this.
    """
    return os.path.isdir("/proc/self") and load_prctl()(_PR_SET_CHILD_SUBREAPER, int(adopt)) == 0


def pidfd_open(pid: int) -> int:
    """Return a descriptor (close-on-exec) that becomes readable when the process has exited.

    Raises OSError: for example ENOSYS or EPERM where pidfds are missing (`lacks_pidfd` recognizes
    it), ESRCH when the process does not exist. The caller closes the descriptor.
    """
    if not hasattr(os, "pidfd_open"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.pidfd_open(pid)


def try_pidfd_open(pid: int) -> int | None:
    """Return a pidfd of the process, or None where there can be none."""
    try:
        return pidfd_open(pid)
    except OSError:
        return None


def lacks_pidfd(error: OSError) -> bool:
    """Return whether an error of `pidfd_open` shows that pidfds are missing here.

    The kernel may be old, or a sandbox may forbid the call.
    """
    return error.errno in (errno.ENOSYS, errno.EPERM)


def peek_exit(pid: int) -> os.waitid_result | None:
    """Return the exit of a child that has exited, else None.

    The zombie stays.

    It keeps its pid reserved. Raises ChildProcessError when it is not a child of this process or
    was reaped already.
    """
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)


def reap_if_exited(pid: int) -> bool:
    """Reap a child if it has exited; return whether it is gone.

    True also when there is no such child (any more).
    """
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def signal_group(pgid: int, signum: int) -> bool:
    """Signal a process group; False when it is gone or belongs to another user.

    The caller guarantees that the number can't have been reused: its leader is not reaped yet.
    Raises ValueError for a number that is no worker's, such as 0 or 1.
    """
    if pgid <= 1:
        raise ValueError(f"{pgid} is not a process group of a worker")
    try:
        os.killpg(pgid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_process(pid: int, signum: int) -> bool:
    """Signal an unreaped child; False when it is gone or may not be signalled."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def inheritable_fds() -> list[int]:
    """Return the open descriptors above 2 that an exec would leak: they are not close-on-exec."""
    leaking = []
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        fd = int(name)
        try:
            if fd > 2 and os.get_inheritable(fd):
                leaking.append(fd)
        except OSError:
            continue
    return leaking


def open_fds() -> frozenset[int]:
    """Return the open descriptors above 2 of this process."""
    listed = os.listdir("/proc/self/fd" if os.path.isdir("/proc/self") else "/dev/fd")
    return frozenset(fd for fd in map(int, listed) if fd > 2 and _is_open(fd))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def close_fds_except(keep: frozenset[int]) -> None:
    """Close every descriptor above 2 that is not in `keep`. For a forked child."""
    try:
        top = max(int(name) for name in os.listdir("/proc/self/fd"))
    except OSError:
        top = os.sysconf("SC_OPEN_MAX")
    start = 3
    for fd in sorted(fd for fd in keep if fd > 2):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, top + 1)


def open_standard_fds() -> None:
    """Open each closed descriptor of 0, 1 and 2 on the null device.

    Otherwise the next pipe or socket would get that number and be used as the console.
    """
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)


def pipe_above_standard_fds() -> tuple[int, int]:
    """Return a close-on-exec pipe (read end, write end) whose numbers are never 0, 1 or 2."""
    import fcntl

    ends = os.pipe()
    raised = []
    for fd in ends:
        if fd > 2:
            raised.append(fd)
        else:
            raised.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
            os.close(fd)
    return raised[0], raised[1]


_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4
_was_dumpable = False
"""Whether this process could be inspected before `hide_process`."""


def hide_process() -> None:
    """Hide this process from all but root: no tracing, no memory, no environment in /proc.

    Its descriptors are hidden, too, and it leaves no core dump. Forks inherit that; an exec ends
    it.
    """
    global _was_dumpable
    prctl = load_prctl()
    _was_dumpable = prctl(_PR_GET_DUMPABLE, 0) == 1
    prctl(_PR_SET_DUMPABLE, 0)


def show_process_again() -> None:
    """Make this worker, a fork of a hidden process, visible for its user's debugger again.

    Only if the process could be inspected before `hide_process`.
    """
    if _was_dumpable:
        load_prctl()(_PR_SET_DUMPABLE, 1)


def erase_variable(name: str) -> None:
    """Overwrite an environment variable where /proc/PID/environ shows it.

    It is in the memory that this process was started with, which stays when a variable is deleted.
    Call it before that.
    """
    import ctypes

    libc, variable = ctypes.CDLL(None), os.fsencode(name)
    libc.getenv.restype = ctypes.c_void_p
    libc.getenv.argtypes = [ctypes.c_char_p]
    while value_at := libc.getenv(variable):  # It may be there twice.
        start = value_at - len(variable) - 1
        ctypes.memset(start, 0, len(variable) + 1 + len(ctypes.string_at(value_at)))
