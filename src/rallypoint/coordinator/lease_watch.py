"""When each agent of a job was last heard, and one timer that finds who is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rallypoint.core.liveness import Liveness, Lost, Patience

LATE_S = 0.5
"""A timer of our own that fires so late says that this process did not run."""


class LeaseWatch:
    """For the thread of the loop. `on_lost` is called once per agent, `on_patience` when all of
    them get more time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        liveness: Liveness,
        on_lost: Callable[[Lost, float], None],
        on_patience: Callable[[Patience], None],
    ) -> None:
        self._loop, self._liveness = loop, liveness
        self._on_lost, self._on_patience = on_lost, on_patience
        self._check: asyncio.TimerHandle | None = None

    def heard(self, member: str, now: float) -> None:
        """It lives."""
        self._liveness.heard(member, now)
        if self._check is None:
            self._arm()

    def vanished(self, member: str, now: float, *, reset: bool) -> None:
        """Its connection has ended, by a reset or not."""
        self._liveness.vanished(member, now, reset=reset)
        self._arm()

    def died(self, member: str, now: float) -> None:
        """Its guard has said so."""
        self._liveness.died(member, now)
        self._arm()

    def is_here(self, member: str, now: float) -> bool:
        """It has a connection, and was heard on it of late."""
        return self._liveness.is_here(member, now)

    def last_heard_at(self, member: str, now: float) -> float:
        """By which its loss is dated."""
        return self._liveness.last_heard_at(member, now)

    def job_ended(self) -> None:
        """Who has no connection now has until its lease ends."""
        self._liveness.job_ended()
        self._arm()

    def forget(self, member: str) -> None:
        """It has left."""
        self._liveness.forget(member)

    def close(self) -> None:
        """Nobody is lost any more."""
        if self._check is not None:
            self._check.cancel()
            self._check = None

    def _arm(self) -> None:
        self.close()
        now = self._loop.time()
        delay_s = self._liveness.next_check(now)
        if delay_s is not None:
            due_at = now + delay_s
            self._check = self._loop.call_at(due_at, self._look, due_at)

    def _look(self, due_at: float) -> None:
        self._check = None
        now = self._loop.time()
        late_s = now - due_at
        patience = self._liveness.lagged(now, late_s) if late_s > LATE_S else None
        if patience is not None:
            self._on_patience(patience)
        lost, patience = self._liveness.check(now)
        if patience is not None:
            self._on_patience(patience)
        for item in lost:
            self._on_lost(item, now)
        self._arm()
