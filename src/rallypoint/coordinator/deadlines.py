"""Many waits, one timer of the loop.

The pure machines say what they wait for; this keeps when each wait began, and calls back when one
has run out. A wait that is wanted no more is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rallypoint.core.events import Timer


class Deadlines:
    """The waits of one job. For the thread of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[Timer], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self._ends: dict[Timer, float] = {}
        self._handle: asyncio.TimerHandle | None = None

    def want(self, wanted: Mapping[Timer, float]) -> None:
        """Keep exactly these waits, in seconds; those that run already run on."""
        now = self._loop.time()
        ends = self._ends
        if ends.keys() == wanted.keys():
            return
        self._ends = {t: ends.get(t, now + length_s) for t, length_s in wanted.items()}
        self._arm()

    def cancel(self) -> None:
        """No wait is left."""
        self.want({})

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._ends:
            self._handle = self._loop.call_at(min(self._ends.values()), self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = self._loop.time()
        due = sorted((end, index) for index, end in enumerate(self._ends.values()) if end <= now)
        timers = list(self._ends)
        for _, index in due:
            # Dropped first: the callback calls `want`, which starts it anew if it is wanted again.
            if self._ends.pop(timers[index], None) is not None:
                self._on_end(timers[index])
        if self._handle is None:
            self._arm()
