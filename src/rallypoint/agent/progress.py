"""The progress of a node's workers, by their own reports or by their output. Pure.

`WorkerShm.progress` returns it for each worker, during and after the round.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from rallypoint.wire.shm import Reported, WorkerSlot
from rallypoint.wire.shm_words import NS_PER_S


class Progress(Struct, frozen=True):
    """The last step of a worker, and the seconds since it was reported, or changed in its output.

    `total` is the number of steps that the worker is to make. `total`, `loss` and `tokens` are None
    if they were not reported.
    """

    step: int
    age_s: float
    total: int | None = None
    loss: float | None = None
    tokens: int | None = None
    is_timed: bool = True
    """Whether the worker's silence may be a hang. If steps are read from its output, the duration
    of one is known after the second line only."""


class Phase(Struct, frozen=True):
    """The present phase of a worker: one that it has named, or the time between two."""

    name: str
    """The name of the phase; empty: the worker is in none."""
    since_ns: int
    """When the phase began, or, between two phases, when the last one ended: on CLOCK_MONOTONIC in
    nanoseconds."""
    age_s: float
    """The seconds since the phase began, or, between two phases, since the last one ended."""


NO_PHASE = Phase("", 0, float("inf"))
"""The phase of a worker that has named none."""


def phase_of(slot: WorkerSlot, now_ns: int) -> Phase:
    """Return the phase of one worker, as its slot in the shared memory has it."""
    if slot.phase_at_ns < 1:
        return NO_PHASE
    return Phase(slot.phase, slot.phase_at_ns, max(now_ns - slot.phase_at_ns, 0) / NS_PER_S)


def progress_of(slot: WorkerSlot, now_ns: int) -> Progress | None:
    """Return the progress of one worker by its slot in the shared memory; None: none yet.

    Reports take precedence over output.
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
