"""The rounds before a takeover, as nodes tell the new coordinator about them, and how they become a
part of the history. Pure.

The record of a job has its sums (`carried.py`); how each of the last rounds went, the nodes know as
well as the coordinator that is gone: they were told. Each tells its newest rounds once on each of
its connections. The first that tells of a round is believed, until a node tells of it that took
part in the next one: that node knows the reason as it was judged. The others add how long its
phases took on them, and the node whose worker failed first adds what that said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from rallypoint.core.cause import describe_failure
from rallypoint.core.model import Cause, EndReason, Stamp
from rallypoint.core.watch.past_round import PastRound, first_cause
from rallypoint.core.worker_exits import WorkerExit

ROUNDS_TOLD = 3
"""So many of the newest rounds a node tells of."""


class PhaseLengths(Struct, frozen=True, array_like=True):
    """Seconds on one node; None: not known. See `core/node/timeline.py`."""

    rendezvous_s: float | None = None
    spawn_s: float | None = None
    first_output_s: float | None = None
    first_progress_s: float | None = None
    stop_s: float | None = None

    @property
    def named(self) -> tuple[tuple[str, float | None], ...]:
        """By the names of the phases."""
        return tuple((name.removesuffix("_s"), getattr(self, name)) for name in self._names())

    @classmethod
    def of(cls, phases: dict[str, float]) -> PhaseLengths:
        """From lengths by the names of the phases."""
        return cls(*(phases.get(name.removesuffix("_s")) for name in cls._names()))

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return cls.__struct_fields__


class ToldRound(Struct, frozen=True, array_like=True):
    """One round, as a node knows it, at the time of sending."""

    stamp: Stamp
    nodes: int
    workers: int
    why: str
    """Why it was formed."""
    began_s: float
    """How long ago the node was assigned to it, in seconds."""
    ended_s: float | None = None
    """How long ago it was ended; None: it was not."""
    end: EndReason | None = None
    """None: it runs."""
    phases: PhaseLengths = PhaseLengths()
    failure: WorkerExit | None = None
    """Of a worker of this node, if that ended the round."""


def ended_the_round(node_id: str, failure: WorkerExit | None, end: EndReason | None) -> bool:
    """The end of the round names this failure."""
    named = "" if failure is None else describe_failure(node_id, failure)
    return end is not None and end.text == named


def add(
    rounds: deque[PastRound],
    node_id: str,
    told: Sequence[ToldRound],
    wall_ago: Callable[[float], float],
) -> None:
    """Have the newest rounds of a history know what this node has told of them. `wall_ago`: so many
    seconds ago, in Unix seconds."""
    numbers = {one.stamp.round for one in told}
    for one in told:
        past = next((each for each in rounds if each.round == one.stamp.round), None)
        if past is None:
            if one.end is None:
                continue
            past = _past(one, one.end, wall_ago)
            kept = sorted((*rounds, past), key=lambda each: each.round)
            rounds.clear()
            rounds.extend(kept)
        elif one.end is not None and one.stamp.round + 1 in numbers:
            # This node was told why the next round was formed: the reason as it was judged.
            past.end, past.end_text = str(one.end.kind.value), one.end.text
        _complete(past, node_id, one, wall_ago)


def _past(one: ToldRound, end: EndReason, wall_ago: Callable[[float], float]) -> PastRound:
    formed, ended = wall_ago(one.began_s), wall_ago(min(one.ended_s or 0.0, one.began_s))
    kind = str(end.kind.value)
    return PastRound(
        one.stamp.round, one.nodes, one.workers, one.why, formed, ended, kind, end.text
    )


def _complete(
    past: PastRound, node_id: str, one: ToldRound, wall_ago: Callable[[float], float]
) -> None:
    if not past.why:
        past.nodes, past.workers, past.why = one.nodes, one.workers, one.why
        past.formed = min(past.formed, wall_ago(one.began_s))
        if past.ended is not None and one.ended_s is not None:
            past.ended = wall_ago(min(one.ended_s, one.began_s))
    past.took(node_id, one.phases.named)
    if one.end is None or one.end.text != past.end_text:
        return
    if one.end.node_id:
        past.took(one.end.node_id, (("detect", one.end.age_s),))
    if past.cause is None and ended_the_round(node_id, one.failure, one.end):
        past.cause = first_cause(Cause(node_id, past.round, failure=one.failure))
