"""Waiting for what nobody reports: looking again and again, seldom after a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import TypeVar

from rallypoint.errors import StoreTimeoutError

LEAST_LOCK_WAIT_S = 1.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.001, 0.05

T = TypeVar("T")


def growing_pauses(first_s: float, last_s: float) -> Iterator[float]:
    """How long to pause between two looks, the first time, the second, and so on for ever."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(1.5 * pause_s, last_s)


def poll(look: Callable[[float], T | None], wait_s: float) -> T | None:
    """What `look` returns within `wait_s` that is not None; it is asked once at least. Blocks.

    `look` is told how many seconds it may wait for a lock, and raises StoreTimeoutError if it did
    not get it, which is passed on if that was so from the first.
    """
    pauses = growing_pauses(_FIRST_PAUSE_S, _LAST_PAUSE_S)
    deadline = monotonic() + wait_s
    found = look(wait_s if wait_s > 0 else LEAST_LOCK_WAIT_S)
    while found is None and (left_s := deadline - monotonic()) > 0:
        sleep(min(next(pauses), left_s))
        try:
            found = look(max(0.0, deadline - monotonic()))
        except StoreTimeoutError:
            return None
    return found
