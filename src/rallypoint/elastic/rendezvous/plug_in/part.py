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
"""The pause, in seconds, before the handler is asked again, unless it has just answered that its
round goes on."""
HOST_S = 3.0
"""The time, in seconds, that the coordinator may take to end a round that is over for the handler,
or to give a verdict when another node has closed the job."""
NOWHERE = Stamp(0, -1)


class HandlerState(Enum):
    """The answers to the question whether a handler's round, once it is formed, goes on."""

    GOES_ON = auto()
    OVER = auto()
    CLOSED = auto()
    FAILED = auto()
    """The handler raised an error when it was asked."""


class HandlerSaid(Struct, frozen=True):
    """The handler's answer to a question about its round."""

    state: HandlerState
    reason: EndReason
    """The reason why the round is over, if it is, or why the handler could not answer."""


class Met(Struct, frozen=True):
    """The handler has formed a round, and this node has reached the round's coordinator."""

    host: str
    """The node that hosts the coordinator."""
    is_host: bool
    """Whether this node hosts the coordinator."""


class NotMet(Struct, frozen=True):
    """The search for another round ended without one.

    The outcome is SUCCEEDED if this node is not needed, CANCELLED if another node has closed the
    job, or the failure of the search.
    """

    outcome: Outcome
    text: str


class Meet(Struct, frozen=True):
    """The effect to leave the present coordinator, and ask the handler for the next round.

    Answer with `Met` or `NotMet`.
    """


class WatchHandler(Struct, frozen=True):
    """The effect to ask the handler about its round after a pause; answered with `HandlerSaid`."""

    after_s: float = 0.0


class EndRound(Struct, frozen=True):
    """The effect to end the round at the coordinator, which this node hosts."""

    reason: EndReason


PartEvent = m.Report | SessionNews | HandlerSaid | Met | NotMet
PartEffect = m.Report | SessionNews | Meet | WatchHandler | EndRound
"""The work that `step` returns for its caller.

A report is to be sent to the coordinator; news are to be passed to the agent, after the step."""


class Part(Struct):
    """The state of one node's part in a job whose rounds a handler forms.

    Only `step` and `meet` change it.
    """

    handler: str
    """The name of the handler, for messages."""
    lease_s: float
    max_restarts: int
    met: Met | None = None
    """The handler's round that this node is in; None: this node waits for a round."""
    is_idle: bool = True
    """Whether no workers run here and the agent wants a place."""
    is_over: bool = True
    """Whether this node asks for the handler's next round once no workers run here."""
    stamp: Stamp = NOWHERE
    """The newest round that the agent had a place in."""
    restarts: int = 0
    ended: EndReason | None = None
    """The reason why the round of `stamp` ended; None as long as this node knows none."""
    leaving: bool = False
    silent_since: float | None = None
    """The time since which the handler has not confirmed that its round goes on.

    None: its last answer has confirmed it, or it has not answered in this round yet."""
    verdict: Verdict | None = None
    is_closed: bool = False
    """Whether another node has closed the job without a verdict."""


def step(part: Part, event: PartEvent, at: float) -> list[PartEffect]:
    """Apply one event to the state of this node's part in the job; return what to do, in order."""
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
    """Return the effects that have the handler asked for its first or next round.

    An empty list if this node is leaving or the job has ended.
    """
    if part.leaving or part.verdict is not None:
        return []
    part.met, part.is_over = None, True
    round_ = max(part.stamp.round, 0)
    waits = JobStatus("active", round_, 0, 0, 1, 0, 0, 0, part.restarts)
    return [OrderPushed(m.HeartbeatAck(0, part.stamp, waits)), Meet()]


def closes(part: Part) -> bool:
    """Return whether the job is over, and late nodes have to be told so.

    False if the job continues without this node, if it is worth starting it again, and if this
    node had no place in it.
    """
    if part.verdict is None or part.stamp == NOWHERE:
        return False
    return part.verdict.outcome.row.then not in (Afterwards.AGAIN, Afterwards.AT_NO_COST)


def closed_why(part: Part) -> str:
    """Return why the job is over, if another node closed it without a verdict; else empty."""
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
    """Return the effects of the loss of the coordinator: the round ends with the loss of its host.

    A node that is leaving learns only that it can't reach the coordinator.
    """
    if part.is_over or part.verdict is not None or part.met is None:
        return []
    if part.leaving:
        return [CoordinatorRefuses()]
    host = part.met.host
    text = f"node {host} was lost: it hosted the round, and {why}"
    return _over(part, EndReason(EndKind.LOSS, text, host))


def _over(part: Part, reason: EndReason) -> list[PartEffect]:
    """End the round on this node, because the coordinator can't; the handler is asked next.

    Running workers are told to stop before.
    """
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
