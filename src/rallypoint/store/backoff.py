"""Pauses between attempts: random parts, so that clients do not move in step, and growing ones.

Not from the sequence of `random`, which belongs to the program: a training run that has seeded it
must draw the same numbers with this library and without, and forked processes must differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator


def uniform(low: float, high: float) -> float:
    """Return a random number from `low` to `high`, from the system instead of `random`."""
    # `random` would take a millisecond of an agent's start.
    return low + (high - low) * int.from_bytes(os.urandom(7)) / (1 << 56)


def growing_pauses(first_s: float, last_s: float, growth: float = 1.5) -> Iterator[float]:
    """Yield the pauses in seconds after the first attempt, the second, and so on, without end.

    Each is `growth` times as long as the one before, at most `last_s`.
    """
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(growth * pause_s, last_s)
