"""The running timers: their owners and their ends. Pure; on any clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_PER_PROCESS = 1024
"""The most timers of one process, so that a process that never releases any can't fill memory."""


@dataclass(frozen=True, slots=True)
class Countdown:
    """One countdown of one process: its scope, its end, and its length.

    A process is named by its pid; torch's clients may use another name for a worker.
    """

    pid: Any
    scope: str
    ends_at: float
    length_s: float = 0.0
    signal: int = 0


class PendingTimers:
    """The running timers by process and scope.

    A scope that is set again begins anew. `most` limits the timers of one process; None: no limit.
    """

    def __init__(self, most: int | None = MAX_PER_PROCESS) -> None:
        self._most = most
        self._timers: dict[Any, dict[str, Countdown]] = {}

    def acquire(self, timer: Countdown) -> None:
        """Start a timer, or start it anew; a new one beyond the limit of its process is ignored."""
        scopes = self._timers.setdefault(timer.pid, {})
        if self._most is None or timer.scope in scopes or len(scopes) < self._most:
            scopes[timer.scope] = timer

    def release(self, worker: Any, scope: str) -> None:
        """Remove the timer of this process for a scope whose block has ended, if there is one."""
        scopes = self._timers.get(worker)
        if scopes is not None:
            scopes.pop(scope, None)
            if not scopes:
                del self._timers[worker]

    def forget(self, *workers: Any) -> None:
        """Forget all timers of these processes."""
        for worker in workers:
            self._timers.pop(worker, None)

    def next_end(self) -> float | None:
        """Return the earliest end of a timer, which may be past; None if there is no timer."""
        ends = (timer.ends_at for scopes in self._timers.values() for timer in scopes.values())
        return min(ends, default=None)

    def expired(self, now: float) -> list[Countdown]:
        """Return the first expired timer of each process, and keep them."""
        return [timers[0] for timers in self.all_expired(now).values()]

    def all_expired(self, now: float) -> dict[Any, list[Countdown]]:
        """Return all expired timers by process, the earliest first, and keep them."""
        found = {}
        for worker, scopes in self._timers.items():
            ended = [timer for timer in scopes.values() if timer.ends_at <= now]
            if ended:
                found[worker] = sorted(ended, key=lambda timer: timer.ends_at)
        return found
