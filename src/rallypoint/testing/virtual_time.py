"""Timers of a pure machine on a clock that moves only when a test says so: nothing here sleeps."""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.core.events import Timer


class VirtualTimers:
    """The timers that a machine wants, on a clock that stands still by itself."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: dict[Timer, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def keep(self, wanted: Mapping[Timer, float]) -> None:
        """Start the timers that are new, drop those that are gone; call after every step."""
        self._due = {
            timer: self._due.get(timer, self.now_s + length_s) for timer, length_s in wanted.items()
        }

    def next_until(self, end_s: float) -> Timer | None:
        """Move the clock to the next timer that is due by `end_s` and take it, or to `end_s`.

        Timers that are due at the same time come in the order in which they were wanted.
        """
        timer = min(self._due, key=lambda timer: self._due[timer], default=None)
        if timer is None or self._due[timer] > end_s:
            self.now_s = max(self.now_s, end_s)
            return None
        self.now_s = max(self.now_s, self._due.pop(timer))
        return timer
