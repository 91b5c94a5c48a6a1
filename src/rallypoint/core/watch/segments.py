"""Segments of a job's time, each of one kind. Pure."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from msgspec import Struct


class Spending(Enum):
    """The kinds of time that a job spends."""

    WAITING = "waiting for nodes"
    RENDEZVOUS = "rendezvous"
    SPAWN = "spawn"
    STARTUP = "start-up"
    STEPS = "useful steps"
    REDONE = "steps done twice"
    CHECKPOINT = "checkpoint"
    DETECT = "detecting"
    STOP = "stopping"
    HANG = "hang"
    PAUSED = "standing still"
    UNKNOWN = "running, no steps known"


Sums = dict[tuple[Spending, str], float]
"""The seconds of a job's time, by kind and cause."""


class Segment(Struct):
    """A stretch of a job's time, in seconds on the host's clock."""

    spending: Spending
    cause: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """The length of the segment in seconds."""
        return self.end - self.begin


def relabelled(
    segments: list[Segment], known: Segment, only: Collection[Spending]
) -> list[Segment]:
    """Return the segments with the kind and cause of `known` in the time of `known`.

    Only segments whose kind is one of `only` are changed; those that reach beyond `known` are cut.
    """
    cut: list[Segment] = []
    for segment in segments:
        first, last = max(segment.begin, known.begin), min(segment.end, known.end)
        if first >= last or segment.spending not in only:
            cut.append(segment)
            continue
        if segment.begin < first:
            cut.append(Segment(segment.spending, segment.cause, segment.begin, first))
        cut.append(Segment(known.spending, known.cause, first, last))
        if last < segment.end:
            cut.append(Segment(segment.spending, segment.cause, last, segment.end))
    return cut


def add(sums: Sums, segment: Segment) -> None:
    """Add the segment to the sums."""
    key = (segment.spending, segment.cause)
    sums[key] = sums.get(key, 0.0) + segment.seconds
