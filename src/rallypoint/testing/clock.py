"""A monotonic clock that a test advances, related clocks, and timers.

clock = FakeClock()
late = clock.beside(offset_s=-20.0, rate=0.999)  # another machine's
clock.advance(10.0)
assert late.now() == -20.0 + 9.99
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rallypoint.core.events import Timer


class Clock(Protocol):
    """A monotonic clock, as an interface."""

    def now(self) -> float:
        """Return the seconds since an arbitrary moment."""


class FakeClock:
    """A monotonic clock that moves only when a test advances it."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now(self) -> float:
        """Return the seconds of this clock."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError for less than 0 seconds: the clock never goes back."""
        if not seconds >= 0:
            raise ValueError(f"a monotonic clock can't advance by {seconds!r} s")
        self._now_s += seconds

    def beside(self, offset_s: float = 0.0, rate: float = 1.0) -> Clock:
        """Return a clock that runs `rate` times as fast as this one, with an offset in seconds.

        Its time is `offset_s + rate * now()`.
        """
        return _Beside(self, offset_s, rate)


class _Beside:
    def __init__(self, clock: Clock, offset_s: float, rate: float) -> None:
        self._clock, self._offset_s, self._rate = clock, offset_s, rate

    def now(self) -> float:
        return self._offset_s + self._rate * self._clock.now()


class VirtualTimers:
    """The timers that a state machine wants, on a clock that a test advances."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._due: dict[Timer, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def keep(self, wanted: Mapping[Timer, float]) -> None:
        """Start new timers and drop those that are not in `wanted`; call after every step.

        `wanted` has their lengths in seconds. A timer that runs already keeps its end.
        """
        self._due = {
            timer: self._due.get(timer, self.now_s + length_s) for timer, length_s in wanted.items()
        }

    def next_until(self, end_s: float) -> Timer | None:
        """Advance the clock to the next timer that is due by `end_s`, remove and return it.

        Without one, advance to `end_s` and return None. Timers that are due at the same time come
        in the order in which they were wanted.
        """
        timer = min(self._due, key=lambda timer: self._due[timer], default=None)
        if timer is None or self._due[timer] > end_s:
            self.now_s = max(self.now_s, end_s)
            return None
        self.now_s = max(self.now_s, self._due.pop(timer))
        return timer
