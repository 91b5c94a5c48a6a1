"""What happens to an agent whose nodes meet by a handler, and what must be done about it.

`handler_job.py` has the machine; what the agent reports and is ordered is in `messages.py`.
"""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.handler_round import NodeInfo
from rallypoint.core.model import EndReason, Stamp, Verdict


class Change(Enum):
    """What a handler says of the round."""

    NONE = auto()
    OVER = auto()
    CLOSED = auto()


class NodesMet(Struct, frozen=True):
    """The handler has formed a round, whose nodes have exchanged their infos (in rank order)."""

    rank: int
    nodes: tuple[NodeInfo, ...]
    why: str
    """Why the last round ended, as far as the handler knows."""


class NoMeeting(Enum):
    """Why this node is in no round."""

    NOT_NEEDED = auto()
    CLOSED = auto()
    TIMED_OUT = auto()
    FAILED = auto()
    """The handler, or the store of its round."""


class MeetingFailed(Struct, frozen=True):
    """The rendezvous ended without a round."""

    kind: NoMeeting
    text: str
    verdict: Verdict | None = None
    """Which another node has published."""


class RoundWatched(Struct, frozen=True):
    """The handler was asked, and if anything has changed also the round's store."""

    stamp: Stamp
    change: Change
    all_succeeded: bool = False
    verdict: Verdict | None = None
    """Which another node has published."""
    reason: EndReason | None = None
    """Why the round is over."""


class WatchFailed(Struct, frozen=True):
    """The handler could not be asked."""

    stamp: Stamp
    text: str


class AllSucceeded(Struct, frozen=True):
    """Every node has reported that its workers succeeded."""

    stamp: Stamp


class VerdictPublished(Struct, frozen=True):
    """The job is closed, and `verdict` the first that any node has published."""

    verdict: Verdict
    report: m.Cancel | None
    error: str = ""
    """Why the job could not be closed."""


class StopIsSlow(Struct, frozen=True):
    """Some time has passed since a worker failed."""

    stamp: Stamp


class PublishIsSlow(Struct, frozen=True):
    """Some time has passed since this node's workers stopped."""


class ChargeExpired(Struct, frozen=True):
    """A restart counts no more."""

    entry: str


class SessionEnds(Struct, frozen=True):
    """The agent needs the handler no more."""


HandlerEvent = (
    m.Report
    | NodesMet
    | MeetingFailed
    | RoundWatched
    | WatchFailed
    | AllSucceeded
    | VerdictPublished
    | StopIsSlow
    | PublishIsSlow
    | ChargeExpired
    | SessionEnds
)


class OrderAgent(Struct, frozen=True):
    """Give the agent this message, after the step that it is in."""

    message: m.Order | m.HeartbeatAck


class Acknowledge(Struct, frozen=True):
    """Tell the agent that this report of its was heard, after the step that it is in."""

    report: m.Report


class Meet(Struct, frozen=True):
    """Tell the other nodes of the last round `reason`, if there is one; wait; then meet. Answer
    with `NodesMet` or `MeetingFailed`."""

    info: NodeInfo
    reason: EndReason | None = None
    after_s: float = 0.0


class WatchRound(Struct, frozen=True):
    """After a pause, ask the handler of the round, and answer with `RoundWatched` or
    `WatchFailed`."""

    stamp: Stamp
    after_s: float = 0.0


class AwaitSuccess(Struct, frozen=True):
    """Tell the other nodes that this one has succeeded. When all have, answer `AllSucceeded`."""

    stamp: Stamp


class DropCalls(Struct, frozen=True):
    """Nothing waits for `Meet`, `WatchRound` and `AwaitSuccess` any more: they have no answer."""


class PublishVerdict(Struct, frozen=True):
    """Tell the other nodes the verdict, close the job, and answer with `VerdictPublished`."""

    verdict: Verdict
    report: m.Cancel | None = None


class Wait(Struct, frozen=True):
    """Answer with `event` after so long."""

    length_s: float
    event: StopIsSlow | PublishIsSlow | ChargeExpired


class GiveUp(Struct, frozen=True):
    """Tell the agent that the handler is lost."""

    text: str


class LeaveJob(Struct, frozen=True):
    """Let the handler go; the job goes on."""


class CloseJob(Struct, frozen=True):
    """Let the handler go; the job has ended.

    `let_others_read`: before, wait until the others need the store of rank 0 no more.
    """

    let_others_read: bool


HandlerEffect = (
    OrderAgent
    | Acknowledge
    | Record
    | Meet
    | WatchRound
    | AwaitSuccess
    | DropCalls
    | PublishVerdict
    | Wait
    | GiveUp
    | LeaveJob
    | CloseJob
)
"""What must be done; a `Record` is shown to people."""
