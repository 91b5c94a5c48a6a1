"""Reap adopted orphans: the agent may be PID 1 of a container.

wait(-1) would take the exit status of our own children away from those who wait for them. So the
list of children is read, and only those that are not ours are reaped.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection

from rallypoint.process import signals, syscalls


class Reaper:
    """Reaps, after each SIGCHLD, every exited child for which `is_ours(pid)` is false."""

    def __init__(self, is_ours: Callable[[int], bool], unsubscribe: Callable[[], None]) -> None:
        self._is_ours = is_ours
        self._unsubscribe = unsubscribe

    @classmethod
    def install(cls, loop: asyncio.AbstractEventLoop, is_ours: Callable[[int], bool]) -> Reaper:
        """Start. The loop must run in the main thread. `is_ours` must be true for each child that
        this process started and has not reaped; it is asked within the loop."""
        reaper = cls(is_ours, lambda: None)
        reaper._unsubscribe = signals.subscribe(loop, reaper.reap)
        loop.call_soon(reaper.reap)
        return reaper

    def reap(self) -> None:
        """Reap now. Does not block."""
        for pid in _children():
            if not self._is_ours(pid):
                syscalls.reap_if_exited(pid)

    def close(self) -> None:
        """Stop. Safe to repeat."""
        self._unsubscribe()


def needed() -> bool:
    """Whether orphans come to this process by nature: it is PID 1 of a container."""
    return os.getpid() == 1


def reap_orphans_of(sids: Collection[int], is_ours: Callable[[int], bool]) -> None:
    """Reap what has come from these sessions and exited. For a process that has other children of
    its own, whose exit statuses somebody waits for."""
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
    """For kernels built without the `children` files: every process whose parent we are."""
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
