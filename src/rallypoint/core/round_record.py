"""The record of one round of a job: its size, its reason, its end, and the use of its time. Pure.

A leader has one record of each of its rounds, and fills it as facts become known. People are shown
the newest records; the file of `--history` has all.

Two short forms of a record travel:

* `CarriedRound`: a leader hands on the newest round, in the record of the job.
* `ReportedRound`: each node reports its last rounds to a leader that has taken over, once on each
  connection.

The first report of a round is believed, until a node of the next round reports: that node knows
the reason as it was judged. Other nodes add the lengths of their phases. The node of the worker
that failed first adds the message of that worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field

from rallypoint.core.cause import describe_failure
from rallypoint.core.model import Cause, EndReason, Stamp
from rallypoint.core.text import signal_name
from rallypoint.core.worker_exits import WorkerExit

ROUNDS_SHOWN = 3
"""The most ended rounds that people are shown of a job: each may have a long traceback."""
ROUNDS_REPORTED = 3
"""The most rounds in a node's report to a coordinator that has taken over: the newest ones."""
PHASES = ("rendezvous", "spawn", "first_output", "first_progress", "stop")
"""The phases that a node measures itself, in the order of `ReportedRound.phases`. See
`core/node/timeline.py`."""


class FirstCause(Struct, frozen=True, omit_defaults=True):
    """The `Cause` of a round's end for display: a worker, or the loss of a node."""

    node: str
    text: str
    """The end of the worker, or the reason of the node's loss, in words."""
    rank: int | None = None
    """The rank of the worker; None: it was a node."""
    local_rank: int = 0
    exit_code: int | None = None
    signal: str = ""
    message: str = ""
    detail: str = ""
    """The traceback of the worker, the last lines of its stderr, or its stacks if it hung."""
    log_file: str = ""
    time: float = 0.0
    """The time of the worker's end by its node's clock, in Unix seconds; 0: it is not a worker, or
    not known."""
    collateral: int = 0
    """The number of other failures and lost nodes of the round, which count as consequences."""


def first_cause(cause: Cause | None) -> FirstCause | None:
    """Return this cause in the form for display; None if there is none."""
    if cause is None:
        return None
    failure = cause.failure
    if failure is None:
        why = "" if cause.loss is None else cause.loss.reason
        return FirstCause(cause.node_id, why, collateral=cause.collateral)
    return FirstCause(
        cause.node_id,
        failure.clause(),
        failure.rank,
        failure.local_rank,
        failure.code,
        "" if failure.signal is None else signal_name(failure.signal),
        failure.message,
        failure.detail,
        failure.log_file,
        failure.wall_time,
        cause.collateral,
    )


class Slowest(Struct, frozen=True):
    """The node that took longest for a phase of a round, and the seconds that it took."""

    node: str
    seconds: float


class RoundRecord(Struct):
    """The record of a round, from its forming on. Its field names are the keys in JSON output."""

    round: int
    nodes: int = 0
    workers: int = 0
    why: str = ""
    """The reason why the round was formed; empty: not known yet."""
    formed: float = 0.0
    """The time of forming in Unix seconds, the unit of `ended`, too."""
    ended: float | None = None
    end: str = ""
    """The kind of its end: `failure`, `loss`, `drain`, `growth`, `infrastructure`, `request`, or
    the job's outcome."""
    end_text: str = ""
    cause: FirstCause | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """The seconds for each use of the job's time, in the round and on the way to it."""
    first_step: int = -1
    last_step: int = -1
    slowest: dict[str, Slowest] = field(default_factory=dict)
    """The node that took longest for each phase, with the seconds. `rendezvous`, `spawn`,
    `first_output` and `first_progress`: as the nodes have measured them. `detect`: from the fault
    that ended the round to its end, on the node at fault. `stop`: from that end until the node said
    that its workers run no more."""

    def took(self, node_id: str, phases: Iterable[tuple[str, float | None]]) -> None:
        """Note the lengths of phases on this node that are the longest so far; None: not known."""
        for phase, seconds in phases:
            if seconds is None:
                continue
            if phase not in self.slowest or seconds > self.slowest[phase].seconds:
                self.slowest[phase] = Slowest(node_id, seconds)

    def ends(self, reason: EndReason) -> None:
        """Note the kind and the text of the reason why the round ended."""
        self.end, self.end_text = str(reason.kind.value), reason.text


class CarriedRound(Struct, frozen=True, array_like=True):
    """The newest round, as the job's record hands it on to the next leader."""

    number: int
    nodes: int
    workers: int
    formed: float
    """The time of forming in Unix seconds."""
    furthest_before: int = -1
    """The largest step of earlier rounds; -1: not known."""
    resumed: int = -1
    """The first step that a node reported in this round; -1: none has."""
    step: int = -1
    """The largest step of this round; -1: none was reported."""


class ReportedRound(Struct, frozen=True, array_like=True):
    """One round in a report of a node. Times are ages at the time of sending."""

    stamp: Stamp
    nodes: int
    workers: int
    why: str
    """The reason why the round was formed."""
    began_s: float
    """The seconds since the node was assigned to the round."""
    ended_s: float | None = None
    """The seconds since the node began to stop its workers, or they had all ended; None: it is not
    so far, or not known."""
    end: EndReason | None = None
    """The reason of its end; None: it is active, the job's end ended it, or this node was not told
    why."""
    phases: tuple[float | None, ...] = ()
    """The seconds of each of `PHASES` on this node; None: not known."""
    failure: WorkerExit | None = None
    """The failure of this node's worker that ended the round, if one did."""


def phase_lengths(phases: Mapping[str, float]) -> tuple[float | None, ...]:
    """Return the lengths in the order of `PHASES`, from those by phase; None: not known."""
    return tuple(map(phases.get, PHASES))


def ended_the_round(node_id: str, failure: WorkerExit | None, end: EndReason | None) -> bool:
    """Return whether the reason why the round ended names this failure of a worker of this node."""
    named = "" if failure is None else describe_failure(node_id, failure)
    return end is not None and end.text == named


def add(
    rounds: deque[RoundRecord],
    node_id: str,
    reported: Sequence[ReportedRound],
    wall_ago: Callable[[float], float],
) -> None:
    """Add a node's reports to a history's newest rounds, also ended ones that the history lacks.

    `wall_ago` converts an age in seconds to Unix seconds.
    """
    numbers = {one.stamp.round for one in reported}
    for one in reported:
        past = next((each for each in rounds if each.round == one.stamp.round), None)
        if past is None:
            if one.end is None:
                continue
            past = RoundRecord(one.stamp.round, formed=wall_ago(0.0), ended=wall_ago(0.0))
            past.ends(one.end)
            kept = sorted((*rounds, past), key=lambda each: each.round)
            rounds.clear()
            rounds.extend(kept)
        elif one.end is not None and one.stamp.round + 1 in numbers:
            # This node was told why the next round was formed: the reason as it was judged.
            past.ends(one.end)
        _complete(past, node_id, one, wall_ago)


def _complete(
    past: RoundRecord, node_id: str, one: ReportedRound, wall_ago: Callable[[float], float]
) -> None:
    if not past.why:
        past.nodes, past.workers, past.why = one.nodes, one.workers, one.why
        past.formed = min(past.formed, wall_ago(one.began_s))
        if past.ended is not None and one.ended_s is not None:
            past.ended = wall_ago(min(one.ended_s, one.began_s))
    past.took(node_id, zip(PHASES, one.phases, strict=False))
    if one.end is None or one.end.text != past.end_text:
        return
    if one.end.node_id:
        past.took(one.end.node_id, (("detect", one.end.age_s),))
    if past.cause is None and ended_the_round(node_id, one.failure, one.end):
        past.cause = first_cause(Cause(node_id, past.round, failure=one.failure))
