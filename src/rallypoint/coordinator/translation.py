"""What agents say as events of the job machine, and its effects as what agents are told."""

from __future__ import annotations

from collections.abc import Callable

from rallypoint.core.events import NodeSucceeded, WorkersFinishing
from rallypoint.core.job_events import (
    Assign,
    CheckpointAnswered,
    CollectStacks,
    DropCheckpoint,
    EnrolmentFailed,
    FailuresDetailed,
    HangSuspected,
    HelperDied,
    JobEvent,
    LeaveNow,
    NodeEnrolled,
    NodeFailed,
    StacksCollected,
    StartWorkers,
    StopWorkers,
    WantCheckpoint,
)
from rallypoint.core.model import NodeRef, Stamp
from rallypoint.wire import messages as m

OfRound = (
    m.Failed
    | m.Detailed
    | m.Finishing
    | m.Succeeded
    | m.Enrolled
    | m.NotEnrolled
    | m.CheckpointAnswered
    | m.HangSuspected
    | m.StacksCollected
    | m.HelperDied
)
"""Reports about a round: void when it is another coordinator's."""
Told = (
    Assign | StartWorkers | StopWorkers | WantCheckpoint | DropCheckpoint | LeaveNow | CollectStacks
)
"""Effects that are one message to one agent."""


def event_of(ref: NodeRef, report: OfRound) -> JobEvent:
    """What the report says has happened."""
    round_ = report.stamp.round
    match report:
        case m.Failed(_, failures):
            return NodeFailed(ref, round_, failures)
        case m.Detailed(_, failures):
            return FailuresDetailed(ref, round_, failures)
        case m.Finishing():
            return WorkersFinishing(round_, ref)
        case m.Succeeded():
            return NodeSucceeded(ref, round_)
        case m.Enrolled():
            return NodeEnrolled(ref, round_)
        case m.NotEnrolled(_, text):
            return EnrolmentFailed(ref, round_, text)
        case m.CheckpointAnswered(_, number, listens, failed):
            return CheckpointAnswered(ref, round_, number, listens, failed)
        case m.HangSuspected():
            return HangSuspected(ref, round_)
        case m.StacksCollected(_, number, behind, furthest):
            return StacksCollected(ref, number, behind, furthest)
        case m.HelperDied(_, text):
            return HelperDied(ref, round_, text)


def message_of(effect: Told, stamp: Callable[[int | None], Stamp]) -> m.ToAgent:
    """What its agent is told; `stamp` makes a round's stamp, None being the present one."""
    match effect:
        case Assign(_, assignment):
            return m.Assigned(stamp(assignment.round), assignment)
        case StartWorkers(_, round_):
            return m.StartNow(stamp(round_))
        case StopWorkers(_, round_, reason):
            return m.StopNow(stamp(round_), reason)
        case WantCheckpoint(_, round_, number, kind, reason, left_s):
            return m.CheckpointWanted(stamp(round_), number, kind, reason, left_s)
        case DropCheckpoint(_, round_, number):
            return m.CheckpointNotWanted(stamp(round_), number)
        case CollectStacks(_, round_, number):
            return m.CollectStacks(stamp(round_), number)
        case LeaveNow():
            return m.LeaveNow(stamp(None))
