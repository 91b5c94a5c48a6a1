"""The timers that run: who set them, and when they end. Pure; on any clock."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PER_PROCESS = 1024
"""A process that sets more timers than it releases must not grow its watcher without bound."""


@dataclass(frozen=True, slots=True)
class Timer:
    """One countdown of one process: what it guards, when it ends, and how long it was then."""

    pid: int
    scope: str
    ends_at: float
    length_s: float
    signal: int


class PendingTimers:
    """Timers by process and scope. A scope that is set again begins anew."""

    def __init__(self) -> None:
        self._timers: dict[int, dict[str, Timer]] = {}

    def acquire(self, timer: Timer) -> None:
        """Start this one."""
        scopes = self._timers.setdefault(timer.pid, {})
        if timer.scope in scopes or len(scopes) < MAX_PER_PROCESS:
            scopes[timer.scope] = timer

    def release(self, pid: int, scope: str) -> None:
        """The guarded block is over. Nothing happens when there is no such timer."""
        scopes = self._timers.get(pid)
        if scopes is not None:
            scopes.pop(scope, None)
            if not scopes:
                del self._timers[pid]

    def forget(self, pid: int) -> None:
        """This process has ended, or was told to."""
        self._timers.pop(pid, None)

    def next_end(self) -> float | None:
        """When the next one ends."""
        ends = (timer.ends_at for scopes in self._timers.values() for timer in scopes.values())
        return min(ends, default=None)

    def expired(self, now: float) -> list[Timer]:
        """Of each process the one that ended first, if any has. They stay until `forget`."""
        found = []
        for scopes in self._timers.values():
            first = min(scopes.values(), key=lambda timer: timer.ends_at)
            if first.ends_at <= now:
                found.append(first)
        return found
