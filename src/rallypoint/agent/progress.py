"""The progress of the workers of a node, by their own report, or by their output. Pure.

`WorkerShm.progress` has it of each worker, now and after the round.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from rallypoint.wire.shm import Reported, WorkerSlot
from rallypoint.wire.shm_words import NS_PER_S


class Progress(Struct, frozen=True):
    """The last step of a worker, and how many seconds ago it was reported, or was seen to change.

    None: that was not told.
    """

    step: int
    age_s: float
    total: int | None = None
    loss: float | None = None
    tokens: int | None = None
    is_timed: bool = True
    """Whether its silence may be a hang. A first line of output does not say yet how long a step
    takes: the second one does."""


class Phase(Struct, frozen=True):
    """The phase that a worker has told, with a name or between two."""

    name: str
    """Empty: it is in none."""
    since_ns: int
    """When it began, or the one before ended, on CLOCK_MONOTONIC."""
    age_s: float
    """How long ago that was."""


NO_PHASE = Phase("", 0, float("inf"))
"""The phase of a worker that has named none."""


def phase_of(slot: WorkerSlot, now_ns: int) -> Phase:
    """Return the phase of one worker."""
    if slot.phase_at_ns < 1:
        return NO_PHASE
    return Phase(slot.phase, slot.phase_at_ns, max(now_ns - slot.phase_at_ns, 0) / NS_PER_S)


def progress_of(slot: WorkerSlot, now_ns: int) -> Progress | None:
    """Return the progress of one worker; None: none yet.

    One that reports is believed more than its output.
    """
    if slot.reported.at_ns > 0:
        return _progress(slot.reported, now_ns, is_timed=True)
    if slot.printed.at_ns > 0:
        return _progress(slot.printed, now_ns, is_timed=slot.printed.changes > 1)
    return None


def furthest(workers: Iterable[Progress | None]) -> Progress | None:
    """Return the progress with the largest step; None: no worker has told any."""
    told = (progress for progress in workers if progress is not None)
    return max(told, key=lambda progress: progress.step, default=None)


def _progress(reported: Reported, now_ns: int, *, is_timed: bool) -> Progress:
    age_s = max(now_ns - reported.at_ns, 0) / NS_PER_S
    return Progress(reported.step, age_s, reported.total, reported.loss, reported.tokens, is_timed)
