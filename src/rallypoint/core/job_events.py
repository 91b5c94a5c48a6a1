"""What a job machine is told beyond the round's events, and what it asks its host to do."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.core.events import Event, ExpelNode, RefuseNode
from rallypoint.core.hang import Behind
from rallypoint.core.model import Assignment, EndKind, EndReason, NodeRef, Verdict, WorkerFailure


class SessionLost(Struct, frozen=True):
    """A node went away without a farewell; it was last heard at `last_heard_at`."""

    ref: NodeRef
    why: str
    last_heard_at: float
    wall_time: float = 0.0


class NodeFailed(Struct, frozen=True):
    """Workers of this node ended badly, the first of them first."""

    ref: NodeRef
    round: int
    failures: tuple[WorkerFailure, ...]


class HelperDied(Struct, frozen=True):
    """A process of Rallypoint that the round's workers need has died on this node: the round store,
    or what passes on their output. What workers fail of from then on is a consequence."""

    ref: NodeRef
    round: int
    text: str


class FailuresDetailed(Struct, frozen=True):
    """The same failures, now with their messages and last lines."""

    ref: NodeRef
    round: int
    failures: tuple[WorkerFailure, ...]


class NodeEnrolled(Struct, frozen=True):
    """This node has reached the round store (behaviour F9)."""

    ref: NodeRef
    round: int


class EnrolmentFailed(Struct, frozen=True):
    """This node can't reach the round store."""

    ref: NodeRef
    round: int
    text: str


class NodeDrains(Struct, frozen=True):
    """A node has been told to go. Its workers run on for a checkpoint, for `notice_s` at most."""

    ref: NodeRef
    why: str
    signal: int
    notice_s: float = 0.0
    hosts: bool = False
    """The coordinator lives there, and goes with it."""


class CheckpointAnswered(Struct, frozen=True):
    """A node's workers have saved a checkpoint as they were asked to, or have none to save."""

    ref: NodeRef
    round: int
    number: int
    listens: bool
    """Some of them knew of the question."""
    failed: bool = False
    """One of them has failed: no other answer will come."""


class JobCancelled(Struct, frozen=True):
    """A person interrupted the job."""

    ref: NodeRef
    why: str
    signal: int


class HangSuspected(Struct, frozen=True):
    """A worker of this node has told of no progress for too long."""

    ref: NodeRef
    round: int


class StacksCollected(Struct, frozen=True):
    """What the workers of one node do; see `hang.Found`."""

    ref: NodeRef
    number: int
    behind: Behind | None
    furthest: int


JobEvent = (
    Event
    | SessionLost
    | NodeFailed
    | HelperDied
    | FailuresDetailed
    | NodeEnrolled
    | EnrolmentFailed
    | NodeDrains
    | CheckpointAnswered
    | HangSuspected
    | StacksCollected
    | JobCancelled
)


class Assign(Struct, frozen=True):
    """Tell a node its part of the new world."""

    ref: NodeRef
    assignment: Assignment


class StartWorkers(Struct, frozen=True):
    """Every node of the round has enrolled: this one may start its workers."""

    ref: NodeRef
    round: int


class StopWorkers(Struct, frozen=True):
    """Tell a node to stop its workers of `round` and to join again."""

    ref: NodeRef
    round: int
    reason: EndReason


class WantCheckpoint(Struct, frozen=True):
    """Ask a node's workers for a checkpoint before the round ends; answer `CheckpointAnswered`."""

    ref: NodeRef
    round: int
    number: int
    kind: EndKind
    reason: str
    left_s: float | None
    """None: there is no hurry."""


class DropCheckpoint(Struct, frozen=True):
    """Nobody waits for the checkpoint any more."""

    ref: NodeRef
    round: int
    number: int


class LeaveNow(Struct, frozen=True):
    """Tell a node that drains to stop its workers."""

    ref: NodeRef


class CollectStacks(Struct, frozen=True):
    """Ask a node what its workers do; answer `StacksCollected`."""

    ref: NodeRef
    round: int
    number: int


class GiveVerdict(Struct, frozen=True):
    """Tell a node how the job ended."""

    ref: NodeRef
    verdict: Verdict


class Record(Struct, frozen=True):
    """Something that a person should see, once."""

    name: str
    text: str
    node_id: str = ""


JobEffect = (
    Assign
    | StartWorkers
    | StopWorkers
    | WantCheckpoint
    | DropCheckpoint
    | LeaveNow
    | CollectStacks
    | GiveVerdict
    | ExpelNode
    | RefuseNode
    | Record
)
