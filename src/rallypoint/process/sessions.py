"""The processes that are still alive in the sessions that workers lead.

A worker leads its own session, so the session is the worker and all it started, except what called
setsid(2) itself. A process *group* would miss the children of `timeout` and of shells with job
control. And a zombie leader, which keeps the numbers of the session and of the group reserved,
makes killpg(pgid, 0) succeed for ever; so the process table is read.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from rallypoint.process import syscalls

_MAX_PID = 2**31 - 1
_KILL_PAUSE_S = 0.01


class SessionProcess(NamedTuple):
    """A live process of a session."""

    pid: int
    pgid: int
    sid: int


def live_members(sids: Collection[int]) -> list[SessionProcess]:
    """Return the processes of these sessions that are not zombies, by a pass over /proc.

    Takes some 15 microseconds per process of the machine. A process that is forked during the pass
    may be missed: callers repeat the pass after a kill until it is empty. Raises OSError when /proc
    can't be read, as without a free descriptor: then it is not known which processes live.
    """
    if not sids:
        return []
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            member = read_member(int(name))
            if member is not None and member.sid in sids:
                found.append(member)
    return found


def session_of(pid: int) -> int | None:
    """Return the session of a live process; None when there is no such process. Raises OSError."""
    found = read_member(pid)
    return found.sid if found is not None else None


def kill_member(
    member: SessionProcess, *, pidfd_open: syscalls.PidfdOpen = syscalls.pidfd_open
) -> None:
    """Kill one process by SIGKILL, if it still is that member of its session."""
    signal_member(member, signal.SIGKILL, pidfd_open=pidfd_open)


def kill_sessions(sids: Collection[int], limit_s: float) -> bool:
    """Kill all processes of these sessions; return whether none is alive any more.

    Blocks until then, or until `limit_s` seconds are over and two passes over /proc in a row have
    found no new process. So a machine that is too busy for one pass in `limit_s` spares none, and
    processes that can't die are not waited for.
    """
    ends_at = time.monotonic() + limit_s
    for sid in sids:
        syscalls.signal_group(sid, signal.SIGKILL)
    # Members of other groups in the same sessions; again, because a fork may escape one pass.
    killed: set[SessionProcess] = set()
    passes_without_news = 0
    while (members := _members_if_known(sids)) is None or members:
        is_news = not killed.issuperset(members or ())
        passes_without_news = 0 if is_news else passes_without_news + 1
        if passes_without_news > 1 and time.monotonic() >= ends_at:
            return False
        for found in members or ():
            kill_member(found)
            killed.add(found)
        select.select([], [], [], _KILL_PAUSE_S)
    return True


def _members_if_known(sids: Collection[int]) -> list[SessionProcess] | None:
    """Return the live processes of these sessions; None: they can't be read just now."""
    try:
        return live_members(sids)
    except OSError:
        return None


def signal_member(
    member: SessionProcess, signum: int, *, pidfd_open: syscalls.PidfdOpen = syscalls.pidfd_open
) -> None:
    """Signal one process, which need not be a child, if it still is that member of its session.

    The pidfd pins the process while its session is checked again, so that a stranger with the same
    pid is never hit. Without pidfds a window of microseconds remains. A process that can't be
    examined is not signalled.
    """
    try:
        fd = pidfd_open(member.pid)
    except ProcessLookupError:
        return
    except OSError:
        with suppress(OSError):
            if read_member(member.pid) == member:
                syscalls.signal_process(member.pid, signum)
        return
    try:
        if read_member(member.pid) == member:
            signal.pidfd_send_signal(fd, signum)
    except OSError:
        pass  # It has exited, or belongs to another user, or can't be looked at.
    finally:
        os.close(fd)


def is_stopped(pid: int) -> bool:
    """Return whether a signal, such as that of Ctrl-Z, has stopped this process.

    False if the process can't be examined.
    """
    try:
        stat = _read_stat(pid)
    except OSError:
        return False
    return stat is not None and stat[0] == b"T"


def read_member(pid: int) -> SessionProcess | None:
    """Return the process if it is alive, else None; `pid` may be any number. Raises OSError."""
    stat = _read_stat(pid)
    if stat is None:
        return None
    state, _ppid, pgid, sid, *rest = stat
    threads = int(rest[13])
    if state in (b"Z", b"X", b"x") and threads <= 1:
        return None  # With more threads, only the first has exited: the process lives.
    return SessionProcess(pid, int(pgid), int(sid))


def _read_stat(pid: int) -> list[bytes] | None:
    """Return the fields of proc_pid_stat(5) from the state on; None: this user has no such process.

    Raises OSError when that is not known, as without a free descriptor.
    """
    if not 0 < pid <= _MAX_PID:
        return None
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.read(fd, 1024)
        finally:
            os.close(fd)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        return None  # /proc shows processes to their owners alone (hidepid), and this is not ours.
    # The command name may hold spaces and parentheses; what follows the last one does not.
    return stat[stat.rfind(b")") + 2 :].split(b" ", 18)
