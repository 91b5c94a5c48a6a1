"""A node's part in a job whose rounds a handler forms. Pure.

    step(part, event, at) -> effects

The handler says which nodes take part, and in which order; one of them hosts a coordinator for that
round. What the agent reports goes to that coordinator, and what it says goes to the agent, as in
any other job. The node *meets* the others anew, by the handler's next round, when nothing runs here
and

    the coordinator has told it to go (`one_round.py`)
    the coordinator is lost, or the lease here is over
    the handler says that its round is over, and the coordinator does not answer for that

Until the agent knows why its round has ended, its wish to join goes to the coordinator: a worker
that failed here is restarted without the handler.

`at` is in seconds on one monotonic clock.
"""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from rallypoint.core import messages as m
from rallypoint.core.model import (
    EndKind,
    EndReason,
    JobStatus,
    Outcome,
    SharedSettings,
    Stamp,
    Verdict,
)
from rallypoint.core.node.events import (
    CoordinatorRefuses,
    LeaseEnded,
    SessionGivenUp,
    SessionOpened,
)
from rallypoint.core.session import Acknowledged, OrderPushed, SessionNews, Suspended
from rallypoint.core.takeover.record import JobRecord
from rallypoint.core.text import NOT_NEEDED, named
from rallypoint.elastic.rendezvous.plug_in.exchange import known_to_a_node

RETRY_S = 1.0
"""The pause before a handler that failed is asked again."""
HOST_S = 3.0
"""So long the coordinator may take to end a round that is over for the handler."""
VERDICT_S = 2.0
"""So long the coordinator may take to give a verdict, when another node has closed the job."""
_CLOSING = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED, Outcome.OUT_OF_TIME)
"""A job that has ended so is closed for nodes that come late; else it goes on without this one."""


class HandlerChange(Enum):
    """What a handler says of its round."""

    NONE = auto()
    OVER = auto()
    CLOSED = auto()


class NoRound(Enum):
    """Why this node is in no round."""

    NOT_NEEDED = auto()
    CLOSED = auto()
    TIMED_OUT = auto()
    FAILED = auto()
    """The handler, the store of its round, or the way to its coordinator."""


class Met(Struct, frozen=True):
    """The handler has formed a round, and its coordinator was reached."""

    host: str
    """The node that it lives in."""
    is_host: bool = False


class NotMet(Struct, frozen=True):
    """The rendezvous ended without a round."""

    kind: NoRound
    text: str


class HandlerSaid(Struct, frozen=True):
    """The handler was asked about its round."""

    change: HandlerChange
    reason: EndReason
    """Why it is over, if it is."""


class HandlerFailed(Struct, frozen=True):
    """It could not be asked."""

    text: str


class WaitOver(Struct, frozen=True):
    """`Wait` has ended."""

    meeting: int
    said: HandlerSaid


class Parting(Struct, frozen=True):
    """The agent needs the handler no more."""


PartEvent = m.Report | SessionNews | Met | NotMet | HandlerSaid | HandlerFailed | WaitOver | Parting


class Forward(Struct, frozen=True):
    """Report this to the coordinator, if there is one."""

    report: m.Report


class TellAgent(Struct, frozen=True):
    """After the step that it is in."""

    news: SessionNews


class Meet(Struct, frozen=True):
    """Let the coordinator go, and ask the handler for the next round. Answer with `Met` or
    `NotMet`."""

    number: int
    """Of the round, for the record of the job."""


class WatchHandler(Struct, frozen=True):
    """After a pause, ask the handler, and answer with `HandlerSaid` or `HandlerFailed`."""

    after_s: float = 0.0


class EndRound(Struct, frozen=True):
    """Have the coordinator, which lives here, end its round."""

    reason: EndReason


class Wait(Struct, frozen=True):
    """Answer with this after so long."""

    length_s: float
    event: WaitOver


class LetGo(Struct, frozen=True):
    """Let the handler go. `closes`: the job has ended."""

    closes: bool


PartEffect = Forward | TellAgent | Meet | WatchHandler | EndRound | Wait | LetGo


class Part(Struct):
    """All that the machine knows. Only `step` changes it."""

    handler: str
    """Its name."""
    settings: SharedSettings
    meeting: int = 0
    """The number of handler's rounds that this node has asked for."""
    met: Met | None = None
    """The handler's round that this node is in; None: it waits for one."""
    is_idle: bool = True
    """Nothing runs here, and the agent wants a place."""
    stamp: Stamp | None = None
    """The newest round that the agent had a place in."""
    restarts: int = 0
    ended: EndReason | None = None
    """Why that round has ended, as far as this node knows."""
    is_over: bool = False
    """This node meets the others anew when nothing runs here."""
    leaving: bool = False
    watched_at: float = 0.0
    """When the handler has answered last."""
    verdict: Verdict | None = None
    closed_why: str = ""
    """Why there is no other round, if another node has closed the job without a verdict."""


def step(part: Part, event: PartEvent, at: float) -> list[PartEffect]:
    """Apply one event and return what must be done, in order."""
    match event:
        case m.Join():
            part.is_idle = True
            if part.met is None:
                return []  # It joins again when there is a coordinator.
            return _meet(part) if part.is_over else [Forward(event)]
        case m.Drain() | m.Cancel():
            return _leaves(part, event)
        case Parting():
            verdict, was_in = part.verdict, part.stamp is not None
            return [LetGo(was_in and verdict is not None and verdict.outcome in _CLOSING)]
        case Met():
            part.met, part.is_over, part.watched_at = event, False, at
            return [WatchHandler()]
        case NotMet():
            return _not_met(part, event)
        case HandlerSaid():
            return _handler_said(part, event, at)
        case HandlerFailed(text):
            if at - part.watched_at <= part.settings.lease_s:
                return [WatchHandler(RETRY_S)]
            lost = f"the rendezvous handler {part.handler!r} failed: {text}"
            return [TellAgent(SessionGivenUp(lost))]
        case WaitOver():
            return _waited(part, event)
        case OrderPushed(message):
            return _ordered(part, message)
        case LeaseEnded():
            # Where it is told to end its workers, the agent joins when they are gone.
            part.is_over = True
            return [TellAgent(LeaseEnded("")), *(_meet(part) if part.is_idle else [])]
        case CoordinatorRefuses():
            return _lost(part, "nothing listens where its agent did")
        case SessionGivenUp(text):
            return _lost(part, text)
        case SessionOpened(resumed):
            return [TellAgent(SessionOpened(resumed))]
        case Suspended() if part.is_over or part.verdict is not None:
            return []
        case Suspended() | Acknowledged():
            return [TellAgent(event)]
        case _ if isinstance(event, m.Report):
            return [Forward(event)]
        case _:
            return [TellAgent(event)]


def record(part: Part) -> JobRecord | None:
    """What this node knows of the job; None: it had no place in it."""
    if part.stamp is None:
        return None
    next_round = Stamp(part.stamp.incarnation, part.stamp.round + 1)
    return known_to_a_node(part.settings, next_round, part.restarts, part.ended)


def waiting(part: Part) -> TellAgent:
    """What a person is shown while this node waits for the handler."""
    named = part.stamp or Stamp(0, 0)
    status = JobStatus("active", named.round, 0, 0, 1, 0, 0, 0, part.restarts)
    return TellAgent(OrderPushed(m.HeartbeatAck(0, named, status)))


def _meet(part: Part) -> list[PartEffect]:
    if part.leaving or part.verdict is not None:
        return []
    part.met, part.is_over = None, True
    part.meeting += 1
    return [waiting(part), Meet(0 if part.stamp is None else part.stamp.round + 1)]


begin = _meet
"""Take part from now on."""


def _leaves(part: Part, report: m.Drain | m.Cancel) -> list[PartEffect]:
    part.leaving = True
    if isinstance(report, m.Cancel) and part.is_over:
        part.verdict = _judge(part, Outcome.CANCELLED, report.why)
    # Without a coordinator nobody else acknowledges it.
    alone: list[PartEffect] = [TellAgent(Acknowledged(report))] if part.is_over else []
    return [Forward(report), *alone]


def _ordered(part: Part, message: m.Order | m.HeartbeatAck) -> list[PartEffect]:
    match message:
        case m.Assigned(stamp, assignment):
            part.is_idle, part.stamp, part.ended = False, stamp, None
            part.restarts = assignment.restart_count
        case m.StopNow(_, reason):
            part.ended = reason
        case m.LeaveNow() if not part.leaving:
            part.is_over = True
            return _meet(part) if part.is_idle else []
        case m.Ended(_, verdict):
            part.verdict = verdict
    return [TellAgent(OrderPushed(message))]


def _lost(part: Part, why: str) -> list[PartEffect]:
    """The coordinator is."""
    if part.is_over or part.verdict is not None:
        return []
    if part.leaving or part.met is None:
        return [TellAgent(CoordinatorRefuses())]
    host = part.met.host
    reason = EndReason(EndKind.LOSS, f"node {host} was lost: it hosted the round, and {why}", host)
    return _over(part, reason)


def _over(part: Part, reason: EndReason) -> list[PartEffect]:
    """This node can't wait for the coordinator to say so."""
    part.is_over = True
    part.ended = part.ended or reason
    if part.is_idle:
        return _meet(part)
    assert part.stamp is not None
    return [TellAgent(OrderPushed(m.StopNow(part.stamp, part.ended)))]


def _handler_said(part: Part, event: HandlerSaid, at: float) -> list[PartEffect]:
    part.watched_at = at
    if part.met is None:
        return []
    match event.change:
        case HandlerChange.NONE:
            return [WatchHandler()]
        case HandlerChange.CLOSED:
            return [Wait(VERDICT_S, WaitOver(part.meeting, event))]
        case HandlerChange.OVER:
            wait = Wait(HOST_S, WaitOver(part.meeting, event))
            return [EndRound(event.reason), wait] if part.met.is_host else [wait]


def _waited(part: Part, event: WaitOver) -> list[PartEffect]:
    if event.meeting != part.meeting or part.verdict is not None or part.leaving:
        return []
    if event.said.change is HandlerChange.CLOSED:
        return _closed_by_another(part, "the job was closed by another node")
    if part.is_over or part.met is None or part.met.is_host:
        return []
    return [] if part.ended is not None else _over(part, event.said.reason)


def _not_met(part: Part, event: NotMet) -> list[PartEffect]:
    match event.kind:
        case NoRound.NOT_NEEDED:
            part.stamp = None  # What the others do goes on without this node.
            return _end(part, Outcome.SUCCEEDED, f"{NOT_NEEDED}: {event.text}")
        case NoRound.CLOSED:
            hint = f"; give another {named.rdzv_id} to run it again" if part.stamp is None else ""
            return _closed_by_another(part, event.text + hint)
        case NoRound.TIMED_OUT:
            return _end(part, Outcome.TIMED_OUT, event.text)
        case NoRound.FAILED:
            return _end(part, Outcome.INFRASTRUCTURE, event.text)


def _closed_by_another(part: Part, text: str) -> list[PartEffect]:
    part.closed_why = text
    return _end(part, Outcome.INFRASTRUCTURE, text)


def _end(part: Part, outcome: Outcome, text: str) -> list[PartEffect]:
    if part.verdict is not None or part.leaving:
        return []
    part.verdict = _judge(part, outcome, text)
    return [TellAgent(OrderPushed(m.Ended(part.stamp or Stamp(0, 0), part.verdict)))]


def _judge(part: Part, outcome: Outcome, text: str) -> Verdict:
    round_ = 0 if part.stamp is None else part.stamp.round
    return Verdict(outcome, text, round_, part.restarts, part.settings.max_restarts)
