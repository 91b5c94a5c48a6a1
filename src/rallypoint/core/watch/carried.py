"""The part of a job's history that outlives its coordinator: sums that a takeover must not reset.

Pure data, of bounded size, a part of the job's record (`takeover/record.py`).

It is the only thing in a record that is dated by the wall clock: nothing is decided by it, it is
only shown. What happened before the takeover itself, event by event, is not in it.
"""

from __future__ import annotations

from msgspec import Struct

from rallypoint.core.round_record import CarriedRound

PARTS_MAX = 32
"""The most kinds of spent time; of more the smallest ones are left out."""


class Carried(Struct, frozen=True, array_like=True):
    """The sums of a job's history at one moment."""

    at: float
    """Unix seconds, by the clock of the coordinator then."""
    age_s: float
    """The age of the job."""
    now: str
    """The kind of time that the job spent at that moment."""
    cause: str
    """Why what was lost since the last step was lost: the kind of end of the round before."""
    parts: tuple[tuple[str, str, float], ...] = ()
    """Seconds by kind and cause; they add up to the age."""
    furthest: int = -1
    redone: int = 0
    faults: int = 0
    spare_node_s: float = 0.0
    rounds: int = 0
    """The number of rounds that were formed."""
    newest: CarriedRound | None = None
    has_told_unmatched: bool = False
    """Whether it was told that `--progress-pattern` has matched nothing."""
    counts_anew: bool = False
    """The workers count their steps anew in each epoch."""
