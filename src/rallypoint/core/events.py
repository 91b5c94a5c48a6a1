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
    """A node is ready for a round; no process of an earlier round lives on it.

    `seq` counts the joins of this incarnation, from 1: an older join is void.
    """

    ref: NodeRef
    seq: int
    candidate: Candidate
    settings: SharedSettings


class NodeLost(Struct, frozen=True):
    """A node's session ended although the node had not left."""

    ref: NodeRef
    why: str


class NodeLeft(Struct, frozen=True):
    """A node reported that it leaves: no process of the job runs there, and it will not return."""

    ref: NodeRef


class NodeDraining(Struct, frozen=True):
    """A node will leave: it is stopping its workers and takes no part in further rounds."""

    ref: NodeRef
    why: str
    success_is_void: bool = False
    """Whether the node's workers exited with code 0 only because it is leaving."""


class RoundFailed(Struct, frozen=True):
    """Workers of this round failed."""

    round: int
    text: str
    node_id: str


class RoundBroken(Struct, frozen=True):
    """A process of Rallypoint that the round's workers need has died on this node."""

    round: int
    text: str
    node_id: str


class RoundOver(Struct, frozen=True):
    """A coordinator that took the job over finds that a round has ended, or can't continue."""

    round: int
    reason: EndReason


class RoundReleased(Struct, frozen=True):
    """The end of the previous round has been judged, so this round may form."""

    round: int


class GrowthReady(Struct, frozen=True):
    """The workers of this round have saved a checkpoint for late nodes.

    They may have ended for it, so the round ends, even if the late nodes have gone since.
    """

    round: int


class RoundStarted(Struct, frozen=True):
    """Every node of this round has reached the store of rank 0, so the workers start."""

    round: int


class RoundNotStarted(Struct, frozen=True):
    """Some nodes of a round have not reached the store of rank 0; no worker was started."""

    round: int
    text: str
    expelled: tuple[tuple[NodeRef, str], ...]
    """The nodes at fault, each with the reason."""
    passed_over: str = ""
    """The node id of rank 0, if another node is to become rank 0."""


class WorkersFinishing(Struct, frozen=True):
    """The first worker of this round ended well: new nodes no longer end the round."""

    round: int
    ref: NodeRef | None = None
    """The node of that worker; None: the job itself reports it."""


class NodeSucceeded(Struct, frozen=True):
    """All workers of this node ended well."""

    ref: NodeRef
    round: int


class NodeProven(Struct, frozen=True):
    """A late node has shown that its machine can start workers.

    `unreached` is why it did not reach the store of this round; empty: it did.
    """

    ref: NodeRef
    round: int
    unreached: str = ""


class StandingChanged(Struct, frozen=True):
    """The standing of this machine changed: whether its nodes may take part."""

    machine: str


class JobClosed(Struct, frozen=True):
    """The verdict was given."""


class TimerKind(Enum):
    """The purpose of a wait; see `round.timers_wanted` for its length."""

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
    """The identity of a wait. A host starts it when it first appears and drops it when gone."""

    kind: TimerKind
    round: int = 0
    id: str = ""


class TimerEnded(Struct, frozen=True):
    """A wanted timer ran out. Void when it is not wanted any more."""

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
    """Every participant of `round` must stop its workers and join again."""

    round: int
    reason: EndReason


class StopDelayed(Struct, frozen=True):
    """Many participants at once have not stopped: they are waited for longer."""

    late: tuple[str, ...]
    """The names of their nodes."""
    nodes: int
    """The number of participants of the ended round."""
    after_s: float


class FormWorld(Struct, frozen=True):
    """A round is complete: these nodes, in rank order."""

    round: int
    world: tuple[Participant, ...]


class RoundSettled(Struct, frozen=True):
    """Every participant of the ended round has stopped or is lost: judge it, then release."""

    round: int
    """The forming round, which waits for `RoundReleased`."""


class WorldSucceeded(Struct, frozen=True):
    """All workers of the round ended well."""

    round: int


class ExpelNode(Struct, frozen=True):
    """Tell an incarnation that it was removed from the job. `final`: it must not return."""

    ref: NodeRef
    why: str
    final: bool


class RefuseNode(Struct, frozen=True):
    """Refuse a node whose settings differ from the job's."""

    ref: NodeRef
    differences: tuple[tuple[str, object, object], ...]
    """The name of each such setting, the job's value, and the node's value."""


class ProveNode(Struct, frozen=True):
    """Ask a node to prove that it can start workers and reach the store of the active round.

    A round ends for a node only after that. The answer is `NodeProven`.
    """

    ref: NodeRef


class JoinTimedOut(Struct, frozen=True):
    """Too few nodes have joined for too long."""

    round: int
    joined: tuple[str, ...]
    missing: tuple[str, ...]
    """The node ids of the last world that did not return; empty for a first round."""
    held_back: tuple[str, ...] = ()
    """The nodes that joined, but may not take part because they did not reach the round store."""


class TooManyLosses(Struct, frozen=True):
    """More rounds lost nodes within an hour than the job allows."""

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
