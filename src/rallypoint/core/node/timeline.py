"""The rounds of a job on one node: how each ended, and how long each phase of it took.

Fed with what a node's machine is told and does, and with when; the times are seconds on any one
clock of this node. A round comes up and goes down in these phases:

    rendezvous      from asking for a round to the order to start its workers
    spawn           until the processes of all workers were started
    first_output    from then until the first byte that one of them wrote
    first_progress  from then until one of them told of progress
    detect          from the end of a worker, or the last word of a lost node, to knowing of it
    stop            from the order to stop the workers until none of their processes was left

What can't be known is absent, not zero: output that does not pass the agent, a program that tells
of no progress, a round that ended without a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core.messages import Assigned
from rallypoint.core.model import Assignment, EndKind, EndReason, Stamp, Verdict
from rallypoint.core.node.events import (
    EnrolWithStore,
    JoinRound,
    KillWorkers,
    NodeEffect,
    NodeEvent,
    RoundEnding,
    SignalWorkers,
    SpawnWorkers,
    WorkersGone,
)
from rallypoint.core.round_record import (
    ROUNDS_REPORTED,
    ReportedRound,
    ended_the_round,
    phase_lengths,
)
from rallypoint.core.worker_exits import WorkerExit

UNKNOWN = "unknown"
"""The kind of a round's end whose reason this node was not told."""


class Milestone(Struct, frozen=True):
    """A phase of a round on this node that has just ended, and how many seconds it took."""

    round: int
    name: str
    took_s: float


class RoundLife(Struct):
    """One round on this node. `began_at` is when its workers' places were known."""

    assignment: Assignment
    began_at: float
    spawned_at: float | None = None
    stopping_at: float | None = None
    ended_at: float | None = None
    end: EndReason | None = None
    phases: dict[str, float] = field(default_factory=dict)
    incarnation: int = 0
    """The number of the job's life."""
    failure: WorkerExit | None = None
    """The first failure on this node, while the round is one of the newest."""

    @property
    def number(self) -> int:
        """The number of the round."""
        return self.assignment.round


class RestartedRound(Struct, frozen=True):
    """A round after another one. `counted`: the restart was charged to the budget."""

    round: int
    kind: str
    reason: str
    counted: bool


class Timeline(Struct):
    """All rounds of one node, in order, as the functions of this module note them."""

    rounds: list[RoundLife] = field(default_factory=list)
    joining_since: float | None = None
    verdict: Verdict | None = None

    @property
    def newest(self) -> RoundLife | None:
        """The last round that this node had a place in; None: it had none yet."""
        return self.rounds[-1] if self.rounds else None


def step(
    timeline: Timeline, event: NodeEvent, effects: list[NodeEffect], at: float
) -> list[Milestone]:
    """Note the event and the effects of the node's machine; return the phases that have ended."""
    ended: list[Milestone] = []
    match event:
        case Assigned(stamp, assignment) if any(map(_takes_place, effects)):
            timeline.rounds.append(RoundLife(assignment, at, incarnation=stamp.incarnation))
            for older in timeline.rounds[-ROUNDS_REPORTED - 1 : -ROUNDS_REPORTED]:
                older.failure = None
        case WorkersGone(stamp) if (life := _life(timeline, stamp.round)) is not None:
            life.ended_at = at
            if life.stopping_at is not None:
                ended += _end(life, "stop", at - life.stopping_at)
    for effect in effects:
        match effect:
            case RoundEnding(stamp, reason):
                ended += _ordered_to_stop(timeline, stamp.round, reason)
            case JoinRound() if timeline.joining_since is None:
                timeline.joining_since = at
            case SpawnWorkers() if timeline.newest and timeline.joining_since is not None:
                ended += _end(timeline.newest, "rendezvous", at - timeline.joining_since)
                timeline.joining_since = None
            case SignalWorkers() | KillWorkers() if timeline.newest is not None:
                if timeline.newest.stopping_at is None:
                    timeline.newest.stopping_at = at
    return ended


def spawned(timeline: Timeline, took_s: float, at: float) -> list[Milestone]:
    """Note that the newest round's processes have been started, which took `took_s` seconds."""
    life = timeline.newest
    if life is None:
        return []
    life.spawned_at = at
    return _end(life, "spawn", took_s)


def first_seen(timeline: Timeline, round_: int, name: str, at: float) -> list[Milestone]:
    """Note the first output or the first progress of this round's workers.

    `name` is that of the phase which ends by it. Ignored are later ones, and all while the workers
    are not started yet or are being stopped.
    """
    life = _life(timeline, round_)
    if life is None or life.spawned_at is None or life.stopping_at is not None:
        return []
    return _end(life, name, at - life.spawned_at)


def failed_here(timeline: Timeline, round_: int, failures: Sequence[WorkerExit]) -> list[Milestone]:
    """Note the first of these failures of this node's workers in this round.

    They may be known already, and have more details now.
    """
    life, first = _life(timeline, round_), max(failures, key=lambda one: one.age_s, default=None)
    if life is None or first is None:
        return []
    life.failure = first
    return _end(life, "detect", first.age_s)


def ended_by(
    life: RoundLife, following: RoundLife | None, verdict: Verdict | None
) -> tuple[str, str] | None:
    """Return why the round ended, as a kind and in words, the same on all nodes.

    `following` is the next round on this node, `verdict` that of the job. None: this node was not
    told of an end, and has no place in the round after this one. The kind is `UNKNOWN` if it has
    one, but nothing tells it the reason.
    """
    if following is not None and following.number == life.number + 1:
        return kind_between(life, following), following.assignment.why
    if life.end is None:
        return None
    judged = life.end.kind is EndKind.FAILURE and following is None and verdict is not None
    return life.end.kind.value, verdict.text if verdict and judged else life.end.text


def told(timeline: Timeline, node_id: str, at: float) -> tuple[ReportedRound, ...]:
    """Return the newest rounds for a report of this node.

    Leaves out a round of which this node does not know why the next one followed; other nodes
    report it.
    """
    lives = timeline.rounds[-ROUNDS_REPORTED:]
    found = []
    for life, following in zip_longest(lives, lives[1:]):
        by = ended_by(life, following, timeline.verdict)
        if by is None:
            found.append(_told(life, None, node_id, at))
        elif by[0] != UNKNOWN:
            kind, text = EndKind(by[0]), by[1]
            end = EndReason(kind, text)
            if life.end is not None:
                end = replace(life.end, kind=kind, text=text)
            found.append(_told(life, end, node_id, at))
    return tuple(found)


def _told(life: RoundLife, end: EndReason | None, node_id: str, at: float) -> ReportedRound:
    ended_at = life.ended_at if life.stopping_at is None else life.stopping_at
    return ReportedRound(
        Stamp(life.incarnation, life.number),
        life.assignment.group_world_size,
        life.assignment.world_size,
        life.assignment.why,
        at - life.began_at,
        None if end is None or ended_at is None else at - ended_at,
        end,
        phase_lengths(life.phases),
        life.failure if ended_the_round(node_id, life.failure, end) else None,
    )


def restarts(timeline: Timeline) -> list[RestartedRound]:
    """Return each restart of this node's workers."""
    return [
        RestartedRound(
            following.number,
            kind_between(life, following),
            following.assignment.why,
            _is_counted(life, following),
        )
        for life, following in zip(timeline.rounds, timeline.rounds[1:], strict=False)
    ]


def kind_between(life: RoundLife, following: RoundLife) -> str:
    """Return the kind of the reason, as judged, why there is another round after this one.

    An older coordinator, or a handler, does not send the reason. Then the restart count shows it: a
    failure that turned out to be a node's loss is not charged.
    """
    if following.assignment.after is not None:
        return str(following.assignment.after.value)
    if _is_counted(life, following):
        return EndKind.FAILURE.value
    if life.end is None:
        return UNKNOWN
    kind = EndKind.LOSS if life.end.kind is EndKind.FAILURE else life.end.kind
    return str(kind.value)


def _is_counted(life: RoundLife, following: RoundLife) -> bool:
    return following.assignment.restart_count > life.assignment.restart_count


def _ordered_to_stop(timeline: Timeline, round_: int, reason: EndReason) -> list[Milestone]:
    life = _life(timeline, round_)
    if life is None or life.end is not None:
        return []
    life.end = reason
    return [] if reason.age_s is None else _end(life, "detect", reason.age_s)


def _takes_place(effect: NodeEffect) -> bool:
    return isinstance(effect, EnrolWithStore | SpawnWorkers)


def _life(timeline: Timeline, round_: int) -> RoundLife | None:
    """Return the newest round with this number; each life of the job counts from zero."""
    return next((life for life in reversed(timeline.rounds) if life.number == round_), None)


def _end(life: RoundLife, name: str, took_s: float) -> list[Milestone]:
    if name in life.phases:
        return []
    life.phases[name] = max(took_s, 0.0)
    return [Milestone(life.number, name, life.phases[name])]
