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
from rallypoint.core.model import EndKind, EndReason, JobStatus, Outcome, Stamp, Verdict
from rallypoint.core.node.events import (
    CoordinatorRefuses,
    LeaseEnded,
    SessionGivenUp,
    SessionOpened,
)
from rallypoint.core.outcomes import Afterwards
from rallypoint.core.session import Acknowledged, OrderPushed, SessionNews, Suspended
from rallypoint.core.text import NOT_NEEDED, named

LOOK_S = 1.0
"""The pause before a handler is asked again that has failed, or whose round is over."""
HOST_S = 3.0
"""The time that the coordinator may take to end a round that is over for the handler, or to give a
verdict when another node has closed the job."""
NOWHERE = Stamp(0, -1)


class HandlerState(Enum):
    """The state of a handler's round, as that says."""

    GOES_ON = auto()
    OVER = auto()
    CLOSED = auto()
    FAILED = auto()
    """The handler could not be asked."""


class HandlerSaid(Struct, frozen=True):
    """The handler was asked about its round."""

    state: HandlerState
    reason: EndReason
    """Why that is not so any more."""


class Met(Struct, frozen=True):
    """The handler has formed a round, and its coordinator was reached."""

    host: str
    """The node that it lives in."""
    is_host: bool
    """Whether the coordinator lives here."""


class NotMet(Struct, frozen=True):
    """The end of the search for another round: this node is not needed (SUCCEEDED), another one has
    closed the job (CANCELLED), or it failed.
    """

    outcome: Outcome
    text: str


class Meet(Struct, frozen=True):
    """Let the coordinator go, and ask the handler for the next round.

    Answer with `Met` or `NotMet`.
    """


class WatchHandler(Struct, frozen=True):
    """After a pause, ask the handler, and answer with `HandlerSaid`."""

    after_s: float = 0.0


class EndRound(Struct, frozen=True):
    """Have the coordinator, which lives here, end its round."""

    reason: EndReason


PartEvent = m.Report | SessionNews | HandlerSaid | Met | NotMet
PartEffect = m.Report | SessionNews | Meet | WatchHandler | EndRound
"""The work of the host: a report is for the coordinator; news are for the agent, after the step."""


class Part(Struct):
    """All that the machine knows. Only `step` changes it."""

    handler: str
    """The name of the handler."""
    lease_s: float
    max_restarts: int
    met: Met | None = None
    """The handler's round that this node is in; None: it waits for one."""
    is_idle: bool = True
    """Whether nothing runs here and the agent wants a place."""
    is_over: bool = True
    """Whether this node meets the others anew when nothing runs here."""
    stamp: Stamp = NOWHERE
    """The newest round that the agent had a place in."""
    restarts: int = 0
    ended: EndReason | None = None
    """Why that round has ended, as far as this node knows."""
    leaving: bool = False
    silent_since: float | None = None
    """Since then the handler does not say that its round goes on."""
    verdict: Verdict | None = None
    is_closed: bool = False
    """Another node has closed the job, without a verdict."""


def step(part: Part, event: PartEvent, at: float) -> list[PartEffect]:
    """Apply one event and return what must be done, in order."""
    match event:
        case m.Join():
            part.is_idle = True
            if part.met is None:
                return []  # It joins again when there is a coordinator.
            return meet(part) if part.is_over else [event]
        case m.Drain() | m.Cancel():
            part.leaving = True
            if not part.is_over:
                return [event]
            if isinstance(event, m.Cancel):
                part.verdict = _judge(part, Outcome.CANCELLED, event.why)
            return [event, Acknowledged(event)]  # Perhaps nobody else does.
        case Met():
            part.met, part.is_over, part.silent_since = event, False, None
            return [WatchHandler()]
        case NotMet(outcome, text):
            return _not_met(part, outcome, text)
        case HandlerSaid():
            return _handler_said(part, event, at)
        case OrderPushed(message):
            return _ordered(part, message)
        case LeaseEnded():
            # Where it is told to end its workers, the agent joins when they are gone.
            part.is_over = True
            return [LeaseEnded(""), *(meet(part) if part.is_idle else [])]
        case CoordinatorRefuses():
            return _lost(part, "no process listens at its agent's address")
        case SessionGivenUp(text):
            return _lost(part, text)
        case SessionOpened(resumed):
            return [SessionOpened(resumed)]
        case Suspended() if part.is_over or part.verdict is not None:
            return []
        case _:
            return [event]


def meet(part: Part) -> list[PartEffect]:
    """Take part from now on, or anew."""
    if part.leaving or part.verdict is not None:
        return []
    part.met, part.is_over = None, True
    round_ = max(part.stamp.round, 0)
    waits = JobStatus("active", round_, 0, 0, 1, 0, 0, 0, part.restarts)
    return [OrderPushed(m.HeartbeatAck(0, part.stamp, waits)), Meet()]


def closes(part: Part) -> bool:
    """Return whether the job is over for all that this node knows, and nodes that come late are to
    know that. Else it goes on without this one.
    """
    if part.verdict is None or part.stamp == NOWHERE:
        return False
    return part.verdict.outcome.row.then not in (Afterwards.AGAIN, Afterwards.AT_NO_COST)


def closed_why(part: Part) -> str:
    """Return the reason if another node has closed the job without a verdict; empty: none has."""
    return part.verdict.text if part.is_closed and part.verdict is not None else ""


def _ordered(part: Part, message: m.Order | m.HeartbeatAck) -> list[PartEffect]:
    match message:
        case m.Assigned(stamp, assignment):
            part.is_idle, part.stamp, part.ended = False, stamp, None
            part.restarts = assignment.restart_count
        case m.StopNow(_, reason):
            part.ended = reason
        case m.LeaveNow() if not part.leaving:
            part.is_over = True
            return meet(part) if part.is_idle else []
        case m.Ended(_, verdict):
            part.verdict = verdict
    return [OrderPushed(message)]


def _lost(part: Part, why: str) -> list[PartEffect]:
    """Note that the coordinator is."""
    if part.is_over or part.verdict is not None or part.met is None:
        return []
    if part.leaving:
        return [CoordinatorRefuses()]
    host = part.met.host
    text = f"node {host} was lost: it hosted the round, and {why}"
    return _over(part, EndReason(EndKind.LOSS, text, host))


def _over(part: Part, reason: EndReason) -> list[PartEffect]:
    """End the round, since this node can't wait for the coordinator to say so."""
    part.is_over, part.ended = True, part.ended or reason
    return meet(part) if part.is_idle else [OrderPushed(m.StopNow(part.stamp, part.ended))]


def _handler_said(part: Part, event: HandlerSaid, at: float) -> list[PartEffect]:
    if part.met is None or part.is_over or part.verdict is not None:
        return []
    if event.state is HandlerState.GOES_ON:
        part.silent_since = None
        return [WatchHandler()]
    part.silent_since = at if part.silent_since is None else part.silent_since
    silent_s, again = at - part.silent_since, WatchHandler(LOOK_S)
    match event.state:
        case HandlerState.FAILED if silent_s > part.lease_s:
            text = f"the rendezvous handler {part.handler!r} failed: {event.reason.text}"
            return [SessionGivenUp(text)]
        case HandlerState.CLOSED if silent_s > HOST_S:
            return _closed(part, "the job was closed by another node")
        case HandlerState.OVER if part.met.is_host:
            return [EndRound(event.reason), again]
        case HandlerState.OVER if silent_s > HOST_S and part.ended is None:
            return _over(part, event.reason)
    return [again]


def _not_met(part: Part, outcome: Outcome, text: str) -> list[PartEffect]:
    is_new = part.stamp == NOWHERE
    if outcome is Outcome.CANCELLED:
        hint = f"; give another {named.rdzv_id} to run it again" if is_new else ""
        return _closed(part, text + hint)
    if outcome is Outcome.SUCCEEDED:
        part.stamp = NOWHERE  # What the others do goes on without this node.
        text = f"{NOT_NEEDED}: {text}"
    return _end(part, outcome, text)


def _closed(part: Part, text: str) -> list[PartEffect]:
    part.is_closed = True
    return _end(part, Outcome.INFRASTRUCTURE, text)


def _end(part: Part, outcome: Outcome, text: str) -> list[PartEffect]:
    if part.leaving:
        return []
    part.verdict = _judge(part, outcome, text)
    return [OrderPushed(m.Ended(part.stamp, part.verdict))]


def _judge(part: Part, outcome: Outcome, text: str) -> Verdict:
    return Verdict(outcome, text, max(part.stamp.round, 0), part.restarts, part.max_restarts)
