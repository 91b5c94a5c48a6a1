"""The sums of a job's history that outlive its coordinator.

Pure data.

It is of bounded size, a part of the job's record (`takeover/record.py`). It is the only part of a
record with wall-clock times: it is only shown, and decides nothing. Single events from before the
takeover are not in it.
"""

from __future__ import annotations

from msgspec import Struct

from rallypoint.core.round_record import CarriedRound

PARTS_MAX = 32
"""The most pairs of a kind and a cause of spent time; of more the smallest ones are left out."""


class Carried(Struct, frozen=True, array_like=True):
    """The sums of a job's history at one moment, for the next coordinator."""

    at: float
    """The moment in Unix seconds, by the clock of the coordinator that made the sums."""
    age_s: float
    """The age of the job in seconds."""
    now: str
    """The kind of time that the job was spending; empty: the job had ended."""
    cause: str
    """The cause for which time is counted as lost now: `start` before any round has ended, else
    the kind of end of the last one, or `hang`."""
    parts: tuple[tuple[str, str, float], ...] = ()
    """Seconds by kind and cause, the largest first; they add up to the age unless some were left
    out."""
    furthest: int = -1
    redone: int = 0
    faults: int = 0
    spare_node_s: float = 0.0
    rounds: int = 0
    """The number of rounds that were formed."""
    newest: CarriedRound | None = None
    has_told_unmatched: bool = False
    """Whether it was reported that `--progress-pattern` has matched nothing."""
    counts_anew: bool = False
    """Whether the workers have been seen to count their steps anew, for example in each epoch."""
