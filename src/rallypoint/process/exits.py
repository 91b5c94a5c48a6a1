"""Exits of children, noticed by the kernel's notification (behaviour A1); reaping adopted orphans.

A pidfd in the event loop becomes readable when its process exits. Where there are none (a kernel
before 5.3, a sandbox that forbids them, macOS), SIGCHLD is used instead: that needs a loop in the
main thread, and costs a look at every watched child per signal.

A child is only looked at, not reaped: the zombie keeps its pid, and so the number of its process
group and session, until what is left of them has been dealt with. A signal to the group can then
never reach a stranger (W15).

An agent that is PID 1 of a container, or a subreaper, adopts orphans. wait(-1) would take the exit
status of its own children away from those who wait for them: so the list of children is read, and
only the adopted ones are reaped.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process import signals, syscalls

_POLL_WITHOUT_PIDFD_S = 0.02


def peek(pid: int) -> WorkerExit | None:
    """Return how a child ended, or None while it runs. Does not reap.

    The exit has no code and no signal if there is no such child.
    """
    try:
        result = syscalls.peek_exit(pid)
    except ChildProcessError:
        return WorkerExit(None, None)
    if result is None:
        return None
    if result.si_code == os.CLD_EXITED:
        return WorkerExit(result.si_status, None)
    return WorkerExit(None, result.si_status, result.si_code == os.CLD_DUMPED)


def needs_main_thread(*, pidfd_open: syscalls.PidfdOpen = syscalls.pidfd_open) -> bool:
    """Return whether exits can be noticed by SIGCHLD only, which needs the main thread."""
    try:
        os.close(pidfd_open(os.getpid()))
    except OSError as error:
        return syscalls.lacks_pidfd(error)
    return False


class ExitWatch:
    """The watch over children: when one has exited, its callback is called once, from the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        pidfd_open: syscalls.PidfdOpen = syscalls.pidfd_open,
    ) -> None:
        self._loop = loop
        self._pidfd_open = pidfd_open
        self._pidfds: dict[int, int] = {}
        self._callbacks: dict[int, Callable[[WorkerExit], None]] = {}
        self._unsubscribe: Callable[[], None] | None = None

    def watch(self, pid: int, on_exit: Callable[[WorkerExit], None]) -> None:
        """Watch a child of this process that is not reaped yet; it may have exited already.

        `on_exit` is called once, in the loop. Raises OSError when no descriptor is left or no such
        process exists. Raises RuntimeError where pidfds are missing and the loop is not in the main
        thread, which SIGCHLD needs.
        """
        self._callbacks[pid] = on_exit
        try:
            fd = self._pidfd_open(pid)
        except OSError as error:
            if not syscalls.lacks_pidfd(error):
                del self._callbacks[pid]
                raise
            if self._unsubscribe is None:
                self._unsubscribe = signals.subscribe(self._loop, self._look_at_all)
            self._loop.call_soon(self._look, pid)
        else:
            self._pidfds[pid] = fd
            self._loop.add_reader(fd, self._look, pid)

    def unwatch(self, pid: int) -> None:
        """Forget a child; its callback will not be called. Safe to repeat."""
        self._callbacks.pop(pid, None)
        fd = self._pidfds.pop(pid, None)
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)

    def close(self) -> None:
        """Stop watching all children. May be repeated."""
        for pid in list(self._callbacks):
            self.unwatch(pid)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _look_at_all(self) -> None:
        for pid in list(self._callbacks):
            self._look(pid)

    def _look(self, pid: int) -> None:
        callback = self._callbacks.get(pid)
        if callback is None:
            return
        outcome = peek(pid)
        if outcome is not None:
            self.unwatch(pid)
            callback(outcome)


async def wait_until_gone(
    pid: int, *, pidfd_open: syscalls.PidfdOpen = syscalls.pidfd_open
) -> None:
    """Wait until the process, which need not be a child, has exited.

    Where no pidfd of it can be had, it returns after 20 ms, and the caller has to look again.
    """
    try:
        fd = pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        await asyncio.sleep(_POLL_WITHOUT_PIDFD_S)
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    try:
        loop.add_reader(fd, gone.set)
        await gone.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


class Reaper:
    """The reaper of adopted orphans: exited children for which `is_ours(pid)` is false."""

    def __init__(self, is_ours: Callable[[int], bool], unsubscribe: Callable[[], None]) -> None:
        self._is_ours = is_ours
        self._unsubscribe = unsubscribe

    @classmethod
    def install(cls, loop: asyncio.AbstractEventLoop, is_ours: Callable[[int], bool]) -> Reaper:
        """Return a reaper that has begun to reap.

        The loop must run in the main thread, else RuntimeError is raised. `is_ours` must be true
        for each child that this process started and has not reaped; it is asked within the loop.
        """
        reaper = cls(is_ours, lambda: None)
        reaper._unsubscribe = signals.subscribe(loop, reaper.reap)
        loop.call_soon(reaper.reap)
        return reaper

    def reap(self) -> None:
        """Reap every exited child for which `is_ours(pid)` is false. Does not block."""
        for pid in _children():
            if not self._is_ours(pid):
                syscalls.reap_if_exited(pid)

    def close(self) -> None:
        """Stop reaping. May be repeated."""
        self._unsubscribe()


def reap_orphans_of(sids: Collection[int], is_ours: Callable[[int], bool]) -> None:
    """Reap the exited children in these sessions for which `is_ours(pid)` is false.

    For a process with other children, whose exit statuses other code waits for.
    """
    for pid in _children():
        try:
            if os.getsid(pid) in sids and not is_ours(pid):
                syscalls.reap_if_exited(pid)
        except ProcessLookupError:
            continue


def _children() -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
    except OSError:
        return _children_by_parent()
    return found


def _children_by_parent() -> list[int]:
    """Return the pids of this process's children, for kernels without `children` files in /proc."""
    found = []
    parent = str(os.getpid()).encode()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    stat = file.read()
            except OSError:
                continue
            if stat[stat.rfind(b")") + 2 :].split(b" ", 2)[1] == parent:
                found.append(int(name))
    return found
