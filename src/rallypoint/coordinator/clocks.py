"""The clocks, and looking at them before looking at the sockets (behaviour F2).

An agent that was stopped for a while (SIGSTOP, a suspended machine, a long page fault) must notice
that its lease is over before it acts on anything that arrived meanwhile. asyncio runs what became
readable before what became due, so the check sits where every wake-up passes: in the selector.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable


def boot_time() -> float:
    """Seconds that also count while the machine is suspended; compared only on this machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_ms() -> int:
    """Milliseconds since 1970. Decides one thing only, how the lives of a job are numbered: a
    coordinator that was started anew shares nothing else with those before it
    (`core/job_lives.py`; the exception to behaviour R6)."""
    return time.time_ns() // 1_000_000


def wall_time(ago_s: float) -> float:
    """Seconds since 1970, so long ago: to date what happened, for people."""
    return time.time() - ago_s


class WakeSelector(selectors.DefaultSelector):
    """A selector that calls its watcher after every wait, before any event is looked at."""

    _on_wake: Callable[[], None] | None = None

    def watch(self, on_wake: Callable[[], None] | None) -> None:
        """Call this from now on; None: nothing."""
        self._on_wake = on_wake

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        if self._on_wake is not None:
            self._on_wake()
        return events


def new_loop() -> tuple[asyncio.SelectorEventLoop, WakeSelector]:
    """An event loop for one agent, and its selector, to be watched."""
    selector = WakeSelector()
    return asyncio.SelectorEventLoop(selector), selector
