"""The changes of a job's rounds, one after the other: formed, ended, judged.

Pure data.

One message may end a round, form the next and end that, too: a node that comes back as another
agent, or reports that waited for a takeover. The job's state shows only the last of these, so the
job notes each one here, and the history of the job (`history.py`) takes them from here.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from rallypoint.core.model import Cause, EndReason

TURNS_MAX = 64
"""The most changes that a job keeps until its history takes them; of more, the oldest are
dropped."""


class RoundFormed(Struct, frozen=True):
    """The job has chosen the nodes of this round."""

    round: int
    nodes: frozenset[str]
    workers: int
    why: str


class RoundEnded(Struct, frozen=True):
    """The job has ordered the nodes of this round to stop their workers."""

    round: int
    reason: EndReason
    is_hang: bool
    """Whether it ended because a worker made no progress."""


class RoundJudged(Struct, frozen=True):
    """The job now knows the final reason for the end of this round."""

    round: int
    reason: EndReason
    text: str
    """The reason in words; of a round that ended the job, those of the verdict."""
    cause: Cause | None


RoundTurn: TypeAlias = RoundFormed | RoundEnded | RoundJudged
