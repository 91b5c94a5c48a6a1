"""The events of a round, the effects that the round machine asks for, and its timers.

Events are past facts, effects are imperatives. Every event is safe to apply twice: it carries
what it was about (an incarnation, a round, a sequence number) and does nothing when that has
passed.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.core.model import Candidate, EndReason, NodeRef, SharedSettings
from rallypoint.core.ranks import Participant


class NodeJoined(Struct, frozen=True):
    """The event that a node is ready for a round; no process of an earlier round lives on it.

    `seq` counts the joins of this agent, from 1: a join that is not newer than the last one is
    ignored.
    """

    ref: NodeRef
    seq: int
    candidate: Candidate
    settings: SharedSettings


class NodeLost(Struct, frozen=True):
    """The event that a node's session has ended although the node had not left."""

    ref: NodeRef
    why: str


class NodeLeft(Struct, frozen=True):
    """The event that a node has left: no process of the job runs there.

    Only a newer join of its agent takes it in again.
    """

    ref: NodeRef


class NodeDraining(Struct, frozen=True):
    """The event that a node is leaving: it stops its workers, and is in no further round."""

    ref: NodeRef
    why: str
    success_is_void: bool = False
    """Whether a success of its workers does not count: they exited with code 0 so shortly before
    this event that the drain may be why."""


class RoundFailed(Struct, frozen=True):
    """The event that a worker of this node has failed in this round."""

    round: int
    text: str
    node_id: str


class RoundBroken(Struct, frozen=True):
    """The event that a helper process of Rallypoint, which this node's workers need, has died."""

    round: int
    text: str
    node_id: str


class RoundOver(Struct, frozen=True):
    """The event that a round has ended, or can't continue, for a reason that is given.

    A coordinator finds that when it takes over a job, the job's rendezvous handler says so, or a
    person asks for a restart.
    """

    round: int
    reason: EndReason


class RoundReleased(Struct, frozen=True):
    """The event that nothing keeps this round from forming any more.

    The end of the round before has been judged, the job goes on, and a backoff is over. Or no
    worker of a former life of the job is left.
    """

    round: int


class GrowthReady(Struct, frozen=True):
    """The event that workers of this round have saved a checkpoint, for which late nodes wait.

    Workers may have ended because of the request. So the round ends, even if the late nodes have
    gone since.
    """

    round: int


class RoundStarted(Struct, frozen=True):
    """The event that the workers of this round start now.

    Every node has reached the store of rank 0, or no node had to, as in a round of one node.
    """

    round: int


class RoundNotStarted(Struct, frozen=True):
    """The event that some nodes of a round did not reach the store of rank 0.

    No worker was started.
    """

    round: int
    text: str
    expelled: tuple[tuple[NodeRef, str], ...]
    """The agents at fault, which are removed from the job, each with the reason."""
    passed_over: str = ""
    """The id of the node of rank 0, if another node is to be rank 0 in the next round; else
    empty."""


class WorkersFinishing(Struct, frozen=True):
    """The event that a worker of this round has ended well: new nodes no longer end the round."""

    round: int
    ref: NodeRef | None = None
    """The node of that worker; None: not known."""


class NodeSucceeded(Struct, frozen=True):
    """The event that all workers of this node have ended well."""

    ref: NodeRef
    round: int


class NodeProven(Struct, frozen=True):
    """The event that a late node has shown that its machine can start workers.

    `unreached` is why it did not reach the store of this round; empty: it did.
    """

    ref: NodeRef
    round: int
    unreached: str = ""


class StandingChanged(Struct, frozen=True):
    """The event that the nodes of this machine may take part in rounds now, or no longer may."""

    machine: str


class JobClosed(Struct, frozen=True):
    """The event that the job has got its verdict: no further round is formed."""


class TimerKind(Enum):
    """The purpose of a timer; see `round_state.timers_wanted` for most lengths."""

    LAST_CALL = "last call"
    JOIN = "join"
    STOP = "stop"
    GROWTH_INTERVAL = "growth interval"
    SETTLE = "settle"
    SETTLE_MAX = "settle max"
    QUARANTINE = "quarantine"
    LOSS_RECENT = "loss recent"
    LOSS_HOUR = "loss hour"
    BACKOFF = "backoff"
    CHARGE = "charge"
    NOTICE = "notice"
    RUNTIME = "runtime"
    READY = "ready"
    ENROLMENT = "enrolment"
    STACKS = "stacks"
    HEALTHY_HOUR = "healthy hour"
    FAILURE_HOUR = "failure hour"
    PROBATION = "probation"
    NEEDED = "needed"
    RECOVERY = "recovery"
    FENCE = "fence"


class Timer(Struct, frozen=True):
    """The identity of a timer that a state machine wants.

    The coordinator starts it when it is first wanted, and drops it when it no longer is.
    """

    kind: TimerKind
    round: int = 0
    id: str = ""


class TimerEnded(Struct, frozen=True):
    """The event that a timer ran out. It is ignored if the timer is not wanted any more."""

    timer: Timer


RoundEvent = (
    NodeJoined
    | NodeLost
    | NodeLeft
    | NodeDraining
    | RoundFailed
    | RoundBroken
    | RoundOver
    | RoundReleased
    | GrowthReady
    | RoundStarted
    | RoundNotStarted
    | WorkersFinishing
    | NodeSucceeded
    | NodeProven
    | StandingChanged
    | JobClosed
    | TimerEnded
)


class StopRound(Struct, frozen=True):
    """The effect to tell every node of `round` to stop its workers and join again."""

    round: int
    reason: EndReason


class StopDelayed(Struct, frozen=True):
    """The effect that many nodes at once have not stopped their workers yet.

    They are waited for longer.
    """

    late: tuple[str, ...]
    """The ids of the nodes that have not stopped their workers."""
    nodes: int
    """The number of nodes in the ended round."""
    after_s: float


class FormWorld(Struct, frozen=True):
    """The effect that a round is complete: these nodes take part, in rank order."""

    round: int
    world: tuple[Participant, ...]


class RoundSettled(Struct, frozen=True):
    """The effect that all nodes of the ended round have stopped or are lost.

    The end of the round is to be judged now: who is to blame, and whether the job goes on.
    """

    round: int
    """The number of the next round, which forms only after `RoundReleased`."""


class WorldSucceeded(Struct, frozen=True):
    """The effect that all workers of the round have ended well."""

    round: int


class ExpelNode(Struct, frozen=True):
    """The effect to tell an agent that it was removed from the job. `final`: it must not return."""

    ref: NodeRef
    why: str
    final: bool


class RefuseNode(Struct, frozen=True):
    """The effect to refuse a node whose settings differ from the job's."""

    ref: NodeRef
    differences: tuple[tuple[str, object, object], ...]
    """The name of each setting that differs, the job's value, and the node's value."""


class ProveNode(Struct, frozen=True):
    """The effect to ask a late node to prove that it can start workers and reach the round's store.

    No round ends for a node that has not proven it. The answer is `NodeProven`.
    """

    ref: NodeRef


class JoinTimedOut(Struct, frozen=True):
    """The effect that too few nodes have joined for too long, so that the job has to end."""

    round: int
    joined: tuple[str, ...]
    missing: tuple[str, ...]
    """The nodes of the last world that have neither joined nor are held back; empty for a first
    round."""
    held_back: tuple[str, ...] = ()
    """The nodes that are kept out of the round because they did not reach the round store."""


class TooManyLosses(Struct, frozen=True):
    """The effect that more rounds have lost nodes within an hour than the job allows.

    `count` is the number of these rounds.
    """

    count: int


Effect = (
    StopRound
    | StopDelayed
    | FormWorld
    | RoundSettled
    | WorldSucceeded
    | ExpelNode
    | RefuseNode
    | ProveNode
    | JoinTimedOut
    | TooManyLosses
)
