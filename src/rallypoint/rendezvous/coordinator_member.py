"""One node's part in a job, as a library sees it: it joins, is in a round, and the round is over.

The agent has `core.group` for this, because it runs workers. Here the caller runs them, at its own
pace: a round that is over is merely told (`on_change`), and joining again says that nothing of it
runs any more.

    IDLE      nothing was asked for
    JOINING   a `Join` is with the coordinator, or will be as soon as there is a session
    ENROLLING assigned; this node reaches the store of rank 0
    READY     enrolled; waiting until every node has
    RUNNING   in a round
    OVER      that round has ended, and the caller has yet to ask for the next one

What the coordinator says of an older round than the newest known is dropped, and a stop of a newer
one means that it took our last `Join` with it (behaviour F1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import assert_never

from rallypoint.core import messages as m
from rallypoint.core.model import Assignment, Candidate, Outcome, Stamp, Verdict
from rallypoint.errors import (
    RallypointError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from rallypoint.observe.faults import describe_fault
from rallypoint.rendezvous.round_listener import reach_round_store
from rallypoint.rendezvous.session import CoordinatorSession, Pushed

FAREWELL_S = 2.0
"""How long the last reports may take to be acknowledged."""
FENCE_CHECK_S = 0.25

Serve = Callable[[], None]
"""Starts the round's store: this node is rank 0."""


class Phase(IntEnum):
    """See the module's essay."""

    IDLE = 0
    JOINING = 1
    ENROLLING = 2
    READY = 3
    RUNNING = 4
    OVER = 5


_DOING = {
    Phase.IDLE: m.Doing.IDLE,
    Phase.JOINING: m.Doing.JOINED,
    Phase.ENROLLING: m.Doing.ENROLLING,
    Phase.READY: m.Doing.ENROLLED,
    Phase.RUNNING: m.Doing.RUNNING,
    Phase.OVER: m.Doing.IDLE,
}


class CoordinatorMember:
    """What a session reports to. For the thread of the loop."""

    def __init__(self, on_change: Callable[[], None], enrol_timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_change, self._enrol_timeout_s = on_change, enrol_timeout_s
        self._session: CoordinatorSession | None = None
        self._phase = Phase.IDLE
        self._candidate: Candidate | None = None
        self._serve: Serve | None = None
        self._joins = 0
        self._stamp: Stamp | None = None
        self._assignment: Assignment | None = None
        self._enrolling: asyncio.Task[None] | None = None
        self._was_needed = False
        self._attached = False
        """The coordinator has known of us once: what is reported from then on is kept for it."""
        self._cancels = ""
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._farewell: asyncio.Task[None] | None = None
        self.verdict: Verdict | None = None
        """How the job ended, once it has."""
        self.trouble: RallypointError | None = None
        """Why this member can take no further part, though the job may go on."""
        self.why_over = ""
        """Why the last round ended, one sentence."""

    @property
    def is_closed(self) -> bool:
        """The job is over."""
        return self.verdict is not None

    @property
    def is_attached(self) -> bool:
        """The coordinator has known of this node; a session outlives its connections."""
        return self._attached

    @property
    def is_over(self) -> bool:
        """This node's round has ended, and the job goes on, or may."""
        if self._session is not None:
            self._session.check_fence()
        return self._phase is Phase.OVER and self.verdict is None

    def use(self, session: CoordinatorSession) -> None:
        """The session that is about to be opened."""
        self._session = session
        self._watch_fence()

    async def join(self, candidate: Candidate, serve: Serve) -> Assignment:
        """Be in the next round; nothing of an earlier one runs here any more.

        However long it takes: the coordinator counts the time. Raises RendezvousClosedError,
        RendezvousGracefulExitError, RendezvousTimeoutError, RendezvousConnectionError (the
        coordinator was lost) and UsageError.
        """
        if self.verdict is not None:
            raise self._ended(self.verdict)
        self._candidate, self._serve = candidate, serve
        self._phase = Phase.JOINING
        if self._attached:
            self._send_join()
        while self._phase is not Phase.RUNNING:
            if self.verdict is not None:
                raise self._ended(self.verdict)
            if self.trouble is not None:
                raise self.trouble
            await self.wait_change()
        assert self._assignment is not None
        self._was_needed = True
        return self._assignment

    async def wait_attached(self) -> None:
        """Until the coordinator knows of us. Raises RendezvousConnectionError and UsageError."""
        while not self._attached:
            if self.trouble is not None:
                raise self.trouble
            await self.wait_change()

    async def wait_change(self) -> None:
        """Until anything has happened."""
        await asyncio.shield(self._changed)

    async def cancel(self, why: str) -> None:
        """End the job for everybody, and know that the coordinator has heard it."""
        await self.wait_attached()
        assert self._session is not None
        self._cancels = why
        if self.verdict is None:
            self._session.report(m.Cancel(why, 0))
        while self.verdict is None:
            if self.trouble is not None:
                raise self.trouble
            await self.wait_change()

    def succeed(self) -> bool:
        """This node's workers have succeeded; False if the round is not theirs any more."""
        if self._phase is not Phase.RUNNING or self.verdict is not None or not self._attached:
            return False
        assert self._stamp is not None
        assert self._session is not None
        self._session.report(m.Succeeded(self._stamp))
        return True

    async def leave(self) -> None:
        """Say farewell and hang up; the job goes on."""
        self._stop_enrolling()
        if self.verdict is None and self.trouble is None:
            self.trouble = RendezvousClosedError("this node has left the job")
            self._tell()
        if self._farewell is None and self._session is not None:
            if self._attached:
                self._session.report(m.Leave())
            self._farewell = self._loop.create_task(self._session.close(FAREWELL_S))
        if self._farewell is not None:
            await asyncio.wait((self._farewell,))

    # What the session says

    def claim(self) -> m.Claim:
        return m.Claim(_DOING[self._phase], self._stamp)

    def session_opened(self, resumed: bool, replaced: bool) -> None:
        self._attached = True
        if replaced and not resumed:
            self._stamp = None  # Another coordinator's rounds can't be compared with these.
        if not resumed:
            # A coordinator that knows nothing of us: what runs here belongs to no world.
            self._stop_enrolling()
            if self._cancels:
                assert self._session is not None
                self._session.report(m.Cancel(self._cancels, 0))
            elif self._phase in (Phase.JOINING, Phase.ENROLLING, Phase.READY):
                self._send_join()
            else:
                self._round_over("the coordinator knows nothing of this node any more")
        self._tell()

    def session_suspended(self, why: str) -> None:
        """What is reported meanwhile is kept, and the lease runs."""

    def reconnect_refused(self) -> None:
        """It is tried until the lease ends."""

    def session_given_up(self, why: str) -> None:
        self._fail(RendezvousConnectionError(why))

    def session_refused(self, error: RallypointError) -> None:
        self._fail(error)

    def lease_ended(self, waits_for: str) -> None:
        self._round_over("the lease ended without a word from the coordinator")

    def pushed(self, message: Pushed) -> None:
        match message:
            case m.HeartbeatAck():
                pass
            case m.Assigned(stamp, assignment):
                self._assigned(stamp, assignment)
            case m.StartNow(stamp):
                if self._phase is Phase.READY and stamp == self._stamp:
                    self._run()
            case m.StopNow(stamp, reason):
                self._stop_ordered(stamp, reason.text)
            case m.Ended(_, verdict):
                self._end(verdict)
            case m.Expelled(_, why, final):
                if final:
                    self._fail(RendezvousGracefulExitError(why))
                elif self._phase is Phase.RUNNING:
                    self._round_over(f"this node was expelled from the job: {why}")
            case m.CheckpointWanted(stamp, number):
                # Whose work this is only its program knows, which is not asked: nobody waits.
                if self._session is not None:
                    self._session.report(m.CheckpointAnswered(stamp, number, listens=False))
            case m.CollectStacks(stamp, number):
                if self._session is not None:
                    self._session.report(m.StacksCollected(stamp, number, None, -1))
            case m.CheckpointNotWanted() | m.LeaveNow() | m.DrainWanted():
                pass
            case _:
                assert_never(message)

    def acknowledged(self, report: m.Report) -> None:
        """A job that had nobody in it has nobody to tell how it ended: who ended it knows."""
        if isinstance(report, m.Cancel) and self.verdict is None:
            self._end(Verdict(Outcome.CANCELLED, report.why, 0))

    # Within

    def _watch_fence(self) -> None:
        """Also when nobody asks: a node that is cut off must learn that its round is over."""
        assert self._session is not None
        self._session.check_fence()
        if self.trouble is None and self._farewell is None:
            self._loop.call_later(FENCE_CHECK_S, self._watch_fence)

    def _send_join(self) -> None:
        assert self._session is not None
        assert self._candidate is not None
        self._phase = Phase.JOINING
        self._joins += 1
        self._session.report(m.Join(self._joins, self._candidate))

    def _assigned(self, stamp: Stamp, assignment: Assignment) -> None:
        if self._phase is not Phase.JOINING or not self._is_newer(stamp):
            return
        self._stamp, self._assignment = stamp, assignment
        if assignment.group_rank == 0 and self._serve is not None:
            try:
                self._serve()
            except (RallypointError, OSError) as error:
                self._fail(RendezvousConnectionError(f"the round's store did not start: {error}"))
                return
        if not assignment.enrol:
            self._run()
            return
        self._phase = Phase.ENROLLING
        if assignment.group_rank == 0:
            self._enrolled(stamp, "")
        else:
            self._enrolling = self._loop.create_task(self._enrol(stamp, assignment))

    async def _enrol(self, stamp: Stamp, assignment: Assignment) -> None:
        try:
            await reach_round_store(assignment, self._enrol_timeout_s)
        except RallypointError as error:
            self._enrolled(stamp, str(error))
        except Exception as error:  # the coordinator waits for a word
            self._enrolled(stamp, describe_fault(error))
        else:
            self._enrolled(stamp, "")

    def _enrolled(self, stamp: Stamp, error: str) -> None:
        if self._phase is not Phase.ENROLLING or stamp != self._stamp:
            return
        assert self._session is not None
        self._phase = Phase.READY
        self._session.report(m.NotEnrolled(stamp, error) if error else m.Enrolled(stamp))

    def _run(self) -> None:
        self._phase = Phase.RUNNING
        self._tell()

    def _stop_ordered(self, stamp: Stamp, why: str) -> None:
        if self._phase is Phase.JOINING and self._is_newer(stamp):
            # It ended before we heard of it, and took our last join with it.
            self._stamp = stamp
            self._send_join()
        elif stamp == self._stamp and self._phase in (Phase.ENROLLING, Phase.READY):
            self._stop_enrolling()
            self._send_join()
        elif stamp == self._stamp:
            self._round_over(why)

    def _round_over(self, why: str) -> None:
        if self._phase is Phase.RUNNING:
            self._phase, self.why_over = Phase.OVER, why
            self._tell()

    def _end(self, verdict: Verdict) -> None:
        """The job is over: know it, and let whoever hosts it go."""
        if self.verdict is None:
            self.verdict = verdict
            self._tell()
        self._stop_enrolling()
        if self._farewell is None and self._session is not None:
            self._session.report(m.Leave())
            self._farewell = self._loop.create_task(self._session.close(FAREWELL_S))

    def _fail(self, error: RallypointError) -> None:
        self.trouble = error
        self._stop_enrolling()
        if self._session is not None:
            self._session.abort()
        self._round_over(str(error))
        self._tell()

    def _stop_enrolling(self) -> None:
        if self._enrolling is not None:
            self._enrolling.cancel()
            self._enrolling = None

    def _tell(self) -> None:
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)
        self._on_change()

    def _ended(self, verdict: Verdict) -> RendezvousError:
        if verdict.outcome is Outcome.TIMED_OUT:
            return RendezvousTimeoutError(verdict.text)
        text = f"the job has ended: {verdict.outcome.value}: {verdict.text}"
        ended_well = verdict.outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED)
        stood_by = not self._was_needed and verdict.ended_s_ago is None
        if ended_well and stood_by:
            return RendezvousGracefulExitError(f"this node was not needed: {text}")
        return RendezvousClosedError(text)

    def _is_newer(self, stamp: Stamp) -> bool:
        """Rounds of another life of the job can't be compared: the session has accepted them."""
        mine = self._stamp
        if mine is None or mine.incarnation != stamp.incarnation:
            return True
        return stamp.round > mine.round
