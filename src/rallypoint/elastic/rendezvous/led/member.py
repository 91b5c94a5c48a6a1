"""One node's part in a job, for a program that joins by a rendezvous handler of the library. Pure.

    step(member, event) -> effects

The agent has `core.node` for this, because it runs workers. Here the program runs them: that a
round is over is merely shown to it, and joining again says that nothing of it runs any more.

    IDLE       the program has asked for nothing
    JOINING    a `Join` is with the coordinator, or will be once there is a session
    ENROLLING  assigned; this node serves the round's store (rank 0), or reaches it
    READY      enrolled; waiting until every node has
    RUNNING    in a round
    OVER       that round has ended, and the program has yet to ask for the next one

An order about an older round than the newest known is dropped, and a stop of a newer one means that
it took this node's last `Join` with it (behaviour F1).
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from rallypoint.core import messages as m
from rallypoint.core.liveness import LEASE_OVER
from rallypoint.core.model import Assignment, Candidate, Outcome, Stamp, Verdict
from rallypoint.core.node.events import EnrolmentDone, LeaseEnded, SessionOpened
from rallypoint.core.session import Acknowledged
from rallypoint.errors import (
    RallypointError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)


class MemberPhase(IntEnum):
    """The phase of a node: without a wish (IDLE), on the way into a round, in one, or after it.

    The module's docstring describes each phase.
    """

    IDLE = 0
    JOINING = 1
    ENROLLING = 2
    READY = 3
    RUNNING = 4
    OVER = 5


class JoinWanted(Struct, frozen=True):
    """The program wants to be in the next round; nothing of an earlier one runs here any more."""

    candidate: Candidate


class CancelWanted(Struct, frozen=True):
    """The program ends the job for all nodes."""

    why: str


class WorkersSucceeded(Struct, frozen=True):
    """The program's workers have succeeded."""


class LeaveWanted(Struct, frozen=True):
    """The program wants this node to leave; the job continues."""


class SessionFailed(Struct, frozen=True):
    """The session with the coordinator has ended for good."""

    error: RallypointError


MemberEvent = (
    m.Order
    | JoinWanted
    | CancelWanted
    | WorkersSucceeded
    | LeaveWanted
    | SessionOpened
    | SessionFailed
    | LeaseEnded
    | Acknowledged
    | EnrolmentDone
)


class SendReport(Struct, frozen=True):
    """The effect to send a report to the coordinator; it is kept while there is no connection."""

    report: m.Report


class ServeStore(Struct, frozen=True):
    """The effect to serve the round's store on this node, which is rank 0.

    Answered with `EnrolmentDone`.
    """

    stamp: Stamp


class ReachStore(Struct, frozen=True):
    """The effect to test whether the round's store on rank 0 answers.

    Answered with `EnrolmentDone`.
    """

    stamp: Stamp
    assignment: Assignment


class StopReaching(Struct, frozen=True):
    """The effect to stop the test of the round's store: `ReachStore` no longer needs an answer."""


class ShowChange(Struct, frozen=True):
    """The effect to tell the program that something has changed."""


class CloseSession(Struct, frozen=True):
    """The effect to close the session with the coordinator once it has acknowledged all reports."""


class AbortSession(Struct, frozen=True):
    """The effect to close the session with the coordinator at once."""


MemberEffect = (
    SendReport | ServeStore | ReachStore | StopReaching | ShowChange | CloseSession | AbortSession
)


class HandlerMember(Struct):
    """The state of one node's part in a job. Only `step` changes it."""

    phase: MemberPhase = MemberPhase.IDLE
    candidate: Candidate | None = None
    joins: int = 0
    stamp: Stamp | None = None
    assignment: Assignment | None = None
    was_needed: bool = False
    """Whether the node has been in a round."""
    is_attached: bool = False
    """Whether a session with the coordinator has ever opened; no report is sent before."""
    cancel_why: str = ""
    is_closing: bool = False
    """Whether the session is closed in the usual way, or is about to be."""
    verdict: Verdict | None = None
    """How the job ended, once it has."""
    trouble: RallypointError | None = None
    """The error that ended this member's part, though the job may continue. After a
    RendezvousConnectionError the node may join anew, as another member."""
    why_over: str = ""
    """The reason why this node's last round ended, one sentence; empty if none has."""


def step(member: HandlerMember, event: MemberEvent) -> list[MemberEffect]:
    """Apply one event to the member's state, and return what the caller must do, in order."""
    match event:
        case JoinWanted(candidate):
            member.candidate, member.phase = candidate, MemberPhase.JOINING
            sends = member.is_attached and member.verdict is None
            return _send_join(member) if sends else []
        case CancelWanted(why):
            member.cancel_why = why
            wanted = member.is_attached and member.verdict is None
            return [SendReport(m.Cancel(why, 0))] if wanted else []
        case WorkersSucceeded():
            return _workers_succeeded(member)
        case LeaveWanted():
            return _leave(member)
        case SessionOpened():
            return _opened(member, event)
        case SessionFailed(error):
            return _fail(member, error)
        case LeaseEnded():
            return _round_over(member, LEASE_OVER)
        case Acknowledged(report):
            # A job that no node is in has no node to give a verdict to.
            if isinstance(report, m.Cancel) and member.verdict is None:
                return _end(member, Verdict(Outcome.CANCELLED, report.why, 0))
            return []
        case EnrolmentDone():
            return _enrolled(member, event)
        case _:
            return _ordered(member, event)


def join_error(member: HandlerMember) -> RallypointError | None:
    """Return the error for a program that waits for a round which this node won't be in any more.

    None if it may still be in one.
    """
    verdict = member.verdict
    if verdict is None:
        return member.trouble
    if verdict.outcome is Outcome.TIMED_OUT:
        return RendezvousTimeoutError(verdict.text)
    text = f"the job has ended: {verdict.outcome.value}: {verdict.text}"
    ended_well = verdict.outcome.row.planned
    stood_by = not member.was_needed and verdict.ended_s_ago is None
    if ended_well and stood_by:
        return RendezvousGracefulExitError(f"this node was not needed: {text}")
    return RendezvousClosedError(text)


_DOING = {
    MemberPhase.IDLE: m.Doing.IDLE,
    MemberPhase.JOINING: m.Doing.JOINED,
    MemberPhase.ENROLLING: m.Doing.ENROLLING,
    MemberPhase.READY: m.Doing.ENROLLED,
    MemberPhase.RUNNING: m.Doing.RUNNING,
    MemberPhase.OVER: m.Doing.IDLE,
}


def claim(member: HandlerMember) -> m.Claim:
    """Return the present state of this node, for a coordinator that it attaches to."""
    return m.Claim(_DOING[member.phase], member.stamp)


def _ordered(member: HandlerMember, order: m.Order) -> list[MemberEffect]:
    match order:
        case m.Assigned(stamp, assignment):
            return _assigned(member, stamp, assignment)
        case m.StartNow(stamp):
            ready = member.phase is MemberPhase.READY and stamp == member.stamp
            return _run(member) if ready else []
        case m.StopNow(stamp, reason):
            return _stop(member, stamp, reason.text)
        case m.Ended(_, verdict):
            return _end(member, verdict)
        case m.Expelled(_, why, final):
            if final:
                return _fail(member, RendezvousGracefulExitError(why))
            return _round_over(member, f"this node was expelled from the job: {why}")
        case m.CheckpointWanted(stamp, number):
            # Whose work this is only the program knows, which is not asked: none is waited for.
            return [SendReport(m.CheckpointAnswered(stamp, number, listens=False))]
        case m.CollectStacks(stamp, number):
            return [SendReport(m.StacksCollected(stamp, number, None, -1))]
        case _:
            return []


def _opened(member: HandlerMember, event: SessionOpened) -> list[MemberEffect]:
    member.is_attached = True
    if event.resumed:
        return [ShowChange()]
    if event.replaced:
        member.stamp = None  # Another coordinator's rounds can't be compared with these.
    # A coordinator that knows nothing of this node: what runs here belongs to no world.
    effects: list[MemberEffect] = [StopReaching()]
    if member.cancel_why:
        effects.append(SendReport(m.Cancel(member.cancel_why, 0)))
    elif member.phase in (MemberPhase.JOINING, MemberPhase.ENROLLING, MemberPhase.READY):
        effects += _send_join(member)
    else:
        effects += _round_over(member, "the coordinator does not know this node any more")
    return [*effects, ShowChange()]


def _send_join(member: HandlerMember) -> list[MemberEffect]:
    assert member.candidate is not None
    member.phase = MemberPhase.JOINING
    member.joins += 1
    return [SendReport(m.Join(member.joins, member.candidate))]


def _assigned(member: HandlerMember, stamp: Stamp, assignment: Assignment) -> list[MemberEffect]:
    if member.phase is not MemberPhase.JOINING or not _is_newer(member, stamp):
        return []
    member.stamp, member.assignment = stamp, assignment
    member.phase = MemberPhase.ENROLLING
    if assignment.group_rank == 0:
        return [ServeStore(stamp)]
    return [ReachStore(stamp, assignment)] if assignment.enrol else _run(member)


def _enrolled(member: HandlerMember, event: EnrolmentDone) -> list[MemberEffect]:
    stamp, error = event.stamp, event.error
    if member.phase is not MemberPhase.ENROLLING or stamp != member.stamp:
        return []
    assert member.assignment is not None
    if error and member.assignment.group_rank == 0:
        text = f"the round's store did not start: {error}"
        return _fail(member, RendezvousConnectionError(text))
    if not member.assignment.enrol:
        return _run(member)
    member.phase = MemberPhase.READY
    return [SendReport(m.NotEnrolled(stamp, error) if error else m.Enrolled(stamp))]


def _run(member: HandlerMember) -> list[MemberEffect]:
    member.phase, member.was_needed = MemberPhase.RUNNING, True
    return [ShowChange()]


def _stop(member: HandlerMember, stamp: Stamp, why: str) -> list[MemberEffect]:
    if member.phase is MemberPhase.JOINING and _is_newer(member, stamp):
        # It ended before this node heard of it, and took its last join with it.
        member.stamp = stamp
        return _send_join(member)
    if stamp != member.stamp:
        return []
    if member.phase in (MemberPhase.ENROLLING, MemberPhase.READY):
        return [StopReaching(), *_send_join(member)]
    return _round_over(member, why)


def _round_over(member: HandlerMember, why: str) -> list[MemberEffect]:
    if member.phase is not MemberPhase.RUNNING:
        return []
    member.phase, member.why_over = MemberPhase.OVER, why
    return [ShowChange()]


def _workers_succeeded(member: HandlerMember) -> list[MemberEffect]:
    """Report the success to the coordinator, unless this node's round or the job is over."""
    runs = member.phase is MemberPhase.RUNNING and member.verdict is None and member.is_attached
    if not runs:
        return []
    assert member.stamp is not None
    return [SendReport(m.Succeeded(member.stamp))]


def _end(member: HandlerMember, verdict: Verdict) -> list[MemberEffect]:
    """Note the verdict, and close the session with the coordinator."""
    effects: list[MemberEffect] = [StopReaching()]
    if member.verdict is None:
        member.verdict = verdict
        effects.append(ShowChange())
    return [*effects, *_close(member)]


def _leave(member: HandlerMember) -> list[MemberEffect]:
    effects: list[MemberEffect] = [StopReaching()]
    if member.verdict is None and member.trouble is None:
        member.trouble = RendezvousClosedError("this node has left the job")
        effects.append(ShowChange())
    return [*effects, *_close(member)]


def _close(member: HandlerMember) -> list[MemberEffect]:
    if member.is_closing:
        return []
    member.is_closing = True
    leave = [SendReport(m.Leave())] if member.is_attached else []
    return [*leave, CloseSession()]


def _fail(member: HandlerMember, error: RallypointError) -> list[MemberEffect]:
    member.trouble = error
    over = _round_over(member, str(error))
    return [StopReaching(), AbortSession(), *(over or [ShowChange()])]


def _is_newer(member: HandlerMember, stamp: Stamp) -> bool:
    """Return whether the stamp is of a newer round than this node's; True if this node has none.

    A round of another life of the job counts as newer: the session has accepted its stamp.
    """
    mine = member.stamp
    if mine is None or mine.incarnation != stamp.incarnation:
        return True
    return stamp.round > mine.round
