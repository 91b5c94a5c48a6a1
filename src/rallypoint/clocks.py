"""Clocks that are checked before the sockets (behaviour F2) without delaying them.

An agent that was stopped for a while (SIGSTOP, a suspended machine, a long page fault) must notice
that its lease is over before it acts on anything that arrived meanwhile. asyncio runs what became
readable before what became due, so the check is in the selector, which every wake-up passes.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

CALLS_IN_A_TURN = 256
W = TypeVar("W", bound=Hashable)
"""The type of the keys by which `Timers` tells its waits apart."""


def boot_time() -> float:
    """Return the seconds since this machine booted, with the time for which it was suspended.

    Comparable within this machine only.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_ms() -> int:
    """Return the milliseconds since 1970.

    Used for one decision only, the incarnation number of a job's life: a coordinator that was
    started anew has nothing else in common with those before it (`core/job_lives.py`; the exception
    to behaviour R6).
    """
    return time.time_ns() // 1_000_000


def wall_time(ago_s: float) -> float:
    """Return the time `ago_s` seconds ago, in seconds since 1970: the date of an event."""
    return time.time() - ago_s


class WakeSelector(selectors.DefaultSelector):
    """A selector that calls its watcher after every wait, before any event is processed."""

    _on_wake: Callable[[], None] | None = None

    def watch(self, on_wake: Callable[[], None] | None) -> None:
        """Set the watcher; None: no watcher."""
        self._on_wake = on_wake

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        if self._on_wake is not None:
            self._on_wake()
        return events


def new_loop() -> tuple[asyncio.SelectorEventLoop, WakeSelector]:
    """Return a new event loop for one agent, and its selector, on which a watcher can be set."""
    selector = WakeSelector()
    return asyncio.SelectorEventLoop(selector), selector


class Turns:
    """Queued calls that are made in order, with a limited number in each turn of the event loop.

    Only for the thread of the loop. Messages to ten thousand nodes must not delay their heartbeats.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: deque[Callable[[], None]] = deque()
        self._is_under_way = False

    def add(self, calls: Iterable[Callable[[], None]]) -> None:
        """Append calls to the queue; the next `go`, or a run that is under way, makes them."""
        self._due.extend(calls)

    def go(self) -> None:
        """Make the first `CALLS_IN_A_TURN` calls now, and the rest in later turns of the loop.

        Does nothing if a run is under way. Raises what one of the first calls raises; the calls
        after it are made in later turns.
        """
        if not self._is_under_way:
            self._turn()

    def finish(self) -> None:
        """Make all remaining calls now, whatever their number. Raises what a call raises."""
        while self._due:
            self._due.popleft()()

    def _turn(self) -> None:
        self._is_under_way = True
        try:
            for _ in range(CALLS_IN_A_TURN):
                if not self._due:  # A call may add others.
                    break
                self._due.popleft()()
        finally:
            self._is_under_way = bool(self._due)
            if self._due:
                self._loop.call_soon(self._turn)


class Alarm:
    """One timer of the loop, at the earliest of the times that were set.

    It calls `ring` once; then it can be set again. Only for the thread of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], object]) -> None:
        self._loop, self._ring = loop, ring
        self._handle: asyncio.TimerHandle | None = None
        self.at = 0.0
        """The time of the loop's clock, in seconds, to which the timer was set last."""

    def set(self, at: float) -> None:
        """Set the timer to this time of the loop's clock, unless it is set to an earlier one."""
        if self._handle is None or at < self.at:
            self.cancel()
            self._handle, self.at = self._loop.call_at(at, self._due), at

    def cancel(self) -> bool:
        """Cancel the timer, and return whether it was set."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.cancel()
        return handle is not None

    def _due(self) -> None:
        self._handle = None
        self._ring()


class Timers(Generic[W]):
    """The waits that a pure state machine wants, by key, with one timer of the loop for all.

    `on_end` gets the key of each wait that is over; that wait begins again if it is still wanted at
    the next `want`. Only for the thread of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[W], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self._ends: dict[W, float] = {}
        self._alarm = Alarm(loop, self._ring)

    def want(self, wanted: Mapping[W, float], *, may_begin: bool = True) -> None:
        """Have exactly these waits run; `wanted` has their lengths in seconds, by key.

        A wait that runs already keeps its end, whatever length is given now. A wait that is no
        longer wanted is dropped. Without `may_begin` no further wait begins.
        """
        now = self._loop.time()
        ends = self._ends
        if not may_begin:
            wanted = {timer: length_s for timer, length_s in wanted.items() if timer in ends}
        if ends.keys() == wanted.keys():
            return
        self._ends = {t: ends.get(t, now + length_s) for t, length_s in wanted.items()}
        self._arm()

    def _arm(self) -> None:
        self._alarm.cancel()
        if self._ends:
            self._alarm.set(min(self._ends.values()))

    def _ring(self) -> None:
        now = self._loop.time()
        due = sorted((end, index) for index, end in enumerate(self._ends.values()) if end <= now)
        timers = list(self._ends)
        for _, index in due:
            # Dropped first: the callback calls `want`, which starts it anew if it is wanted again.
            if self._ends.pop(timers[index], None) is not None:
                self._on_end(timers[index])
        self._arm()
