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
"""The key of a wait of a machine."""


def boot_time() -> float:
    """Return seconds that also count while the machine is suspended; for this machine alone."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_ms() -> int:
    """Return milliseconds since 1970.

    Used for one decision only, the number of a job's life: a coordinator that was started anew has
    nothing else in common with those before it (`core/job_lives.py`; the exception to behaviour
    R6).
    """
    return time.time_ns() // 1_000_000


def wall_time(ago_s: float) -> float:
    """Return the seconds since 1970, `ago_s` seconds ago: the date of an event, for people."""
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
    """Return an event loop for one agent, and its selector, which takes a watcher."""
    selector = WakeSelector()
    return asyncio.SelectorEventLoop(selector), selector


class Turns:
    """Calls one after another, with a limited number in each turn of the loop.

    For the thread of the loop. Messages to ten thousand nodes must not delay their heartbeats.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: deque[Callable[[], None]] = deque()
        self._is_under_way = False

    def add(self, calls: Iterable[Callable[[], None]]) -> None:
        """Append calls, which the next `go` starts."""
        self._due.extend(calls)

    def go(self) -> None:
        """Start the calls, unless they are running.

        Raises what a call raises; the others follow.
        """
        if not self._is_under_way:
            self._turn()

    def finish(self) -> None:
        """Make all remaining calls at once."""
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

    It fires once.

    For the thread of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], object]) -> None:
        self._loop, self._ring = loop, ring
        self._handle: asyncio.TimerHandle | None = None
        self.at = 0.0
        """The time at which it fires, or last did."""

    def set(self, at: float) -> None:
        """Fire at this time of the loop, if not earlier."""
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
    """The waits of a pure machine, with one timer of the loop.

    A wait that is no longer wanted is dropped. For the thread of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[W], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self._ends: dict[W, float] = {}
        self._alarm = Alarm(loop, self._ring)

    def want(self, wanted: Mapping[W, float], *, may_begin: bool = True) -> None:
        """Set the waits to exactly these, in seconds.

        Waits that run already continue; if not `may_begin`, only these do, and no other one begins.
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
