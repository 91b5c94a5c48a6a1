"""One node of a job, for a handler of the library.

Its session with the coordinator, and the coordinator itself if it lives here.

What the node does is decided in `elastic/rendezvous/led/member.py`. A coordinator that is hosted
here outlives the session of the handler that could bind the endpoint: it stays until every node has
gone, or until that handler is shut down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import assert_never

from msgspec.structs import replace

from rallypoint.coordinator.client.discovery import discover, embed
from rallypoint.coordinator.client.session import (
    CoordinatorSession,
    SessionHandler,
    fresh_identity,
)
from rallypoint.coordinator.server import Coordinator
from rallypoint.core import messages as m
from rallypoint.core.model import Assignment, Candidate, Outcome
from rallypoint.core.node.events import CoordinatorRefuses, EnrolmentDone, SessionGivenUp
from rallypoint.core.session import (
    AgentEnd,
    OrderPushed,
    Rejected,
    SessionNews,
    SessionRules,
    Suspended,
)
from rallypoint.elastic.rendezvous.led import member as core
from rallypoint.elastic.rendezvous.led.member import MemberPhase
from rallypoint.elastic.rendezvous.led.parameters import CoordinatorSettings
from rallypoint.elastic.rendezvous.led.round_listener import reach_round_store
from rallypoint.errors import RallypointError, RendezvousClosedError, RendezvousConnectionError
from rallypoint.observe.faults import describe_fault

CLOSE_S = 2.0
"""How long the last reports may take to be acknowledged, in seconds."""
FENCE_CHECK_S = 0.25


class TcpMember:
    """A node's part in one job, by a session with the coordinator. For the thread of the loop."""

    def __init__(
        self,
        make_session: Callable[[SessionHandler], CoordinatorSession],
        on_change: Callable[[], None],
        enrol_timeout_s: float,
    ) -> None:
        """Make a member; `make_session` returns a session for it, which the caller then opens.

        `on_change` is called at each change, and `enrol_timeout_s` is the time limit, in seconds,
        for an answer of a round's store.
        """
        self._loop = asyncio.get_running_loop()
        self._on_change, self._enrol_timeout_s = on_change, enrol_timeout_s
        self._state = core.HandlerMember()
        self._serve: Callable[[], None] | None = None
        self._reaching: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self.session = make_session(self)
        self._watch_fence()

    @property
    def state(self) -> core.HandlerMember:
        """The present state of this node's part in the job; for reading."""
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether this node's round has ended while the job continues, or may continue."""
        self.session.check_fence()
        return self._state.phase is MemberPhase.OVER and self._state.verdict is None

    async def join(self, candidate: Candidate, serve: Callable[[], None]) -> Assignment:
        """Ask for a place in the next round, wait for it, and return this node's assignment.

        No process of an earlier round may run here any more. `serve` starts the round's store,
        should this node be rank 0. There is no time limit here: the coordinator has one. Raises
        RendezvousClosedError,
        RendezvousGracefulExitError, RendezvousTimeoutError, RendezvousConnectionError (the
        coordinator was lost) and UsageError.
        """
        self._serve = serve
        self._step(core.JoinWanted(candidate))
        # A round that is over by now was missed by the program, which learns that next.
        while self._state.phase not in (MemberPhase.RUNNING, MemberPhase.OVER):
            await self._wait_change_or_error()
        assert self._state.assignment is not None
        return self._state.assignment

    async def cancel(self, why: str) -> None:
        """End the job for all nodes as cancelled; return when the coordinator has acknowledged it.

        Raises RendezvousConnectionError if the coordinator is lost, and other errors of `join`.
        """
        self._step(core.CancelWanted(why))
        while self._state.verdict is None:
            await self._wait_change_or_error()

    def succeed(self) -> bool:
        """Report to the coordinator that this node's workers have succeeded.

        Returns False, and reports nothing, if their round or the job is over.
        """
        return self._step(core.WorkersSucceeded())

    async def leave(self) -> None:
        """Leave the job, which continues, and wait until the session is closed."""
        self._step(core.LeaveWanted())
        if self._closing is not None:
            await asyncio.wait((self._closing,))

    async def wait_change(self) -> None:
        """Wait for the next change that the program is to be told of."""
        await asyncio.shield(self._changed)

    async def _wait_change_or_error(self) -> None:
        error = core.join_error(self._state)
        if error is not None:
            raise error
        await self.wait_change()

    # What the session reports

    def claim(self) -> m.Claim:
        return core.claim(self._state)

    def told(self, news: SessionNews) -> None:
        match news:
            case Suspended() | CoordinatorRefuses():
                pass  # What is reported is kept, and the lease runs; it is tried until that ends.
            case OrderPushed(order):
                if not isinstance(order, m.HeartbeatAck):
                    self._step(order)
            case SessionGivenUp(why):
                self._step(core.SessionFailed(RendezvousConnectionError(why)))
            case Rejected(error):
                self._step(core.SessionFailed(error))
            case _:
                self._step(news)

    # Within

    def _step(self, event: core.MemberEvent) -> bool:
        """Apply an event, carry out its effects, and return whether there were any."""
        effects = core.step(self._state, event)
        for effect in effects:
            self._perform(effect)
        return bool(effects)

    def _perform(self, effect: core.MemberEffect) -> None:
        match effect:
            case core.SendReport(report):
                self.session.report(report)
            case core.ServeStore(stamp):
                self._step(EnrolmentDone(stamp, self._serve_store()))
            case core.ReachStore():
                self._reaching = self._loop.create_task(self._reach(effect))
            case core.StopReaching():
                if self._reaching is not None:
                    self._reaching.cancel()
            case core.ShowChange():
                changed, self._changed = self._changed, self._loop.create_future()
                changed.set_result(None)
                self._on_change()
            case core.CloseSession():
                self._closing = self._loop.create_task(self.session.close(CLOSE_S))
            case core.AbortSession():
                self.session.abort()
            case _:
                assert_never(effect)

    def _serve_store(self) -> str:
        """Serve the round's store, and return the error; empty if it was started."""
        assert self._serve is not None
        try:
            self._serve()
        except (RallypointError, OSError) as error:
            return str(error)
        return ""

    async def _reach(self, effect: core.ReachStore) -> None:
        error = ""
        try:
            await reach_round_store(effect.assignment, self._enrol_timeout_s)
        except RallypointError as raised:
            error = str(raised)
        except Exception as raised:  # the coordinator waits for an answer
            error = describe_fault(raised)
        self._step(EnrolmentDone(effect.stamp, error))

    def _watch_fence(self) -> None:
        """Check every 0.25 s whether this node's lease has ended, so that its round is over.

        A node that is cut off must learn this even if the program does not call.
        """
        self.session.check_fence()
        if self._state.trouble is None and self._closing is None:
            self._loop.call_later(FENCE_CHECK_S, self._watch_fence)


class HandlerMembership:
    """A handler's membership in its job: finds or hosts the coordinator, and connects to it.

    For the thread of the loop on which it is made.
    """

    def __init__(self, settings: CoordinatorSettings, on_change: Callable[[], None]) -> None:
        self._settings, self._on_change = settings, on_change
        self._connecting = asyncio.Lock()
        self._hosted: Coordinator | None = None
        """The coordinator, if it lives in this process and is not closed; else None."""
        self._lingering: asyncio.Task[None] | None = None
        self.member: TcpMember | None = None
        """The member that takes part in the job; None before the first call and after leaving."""
        self._session: CoordinatorSession | None = None
        """The last member's session, even if it was closed.

        None before the first `connect`, and after leaving a job that has timed out."""
        self.local_host = ""
        """The local address of the connection to the coordinator; empty before there is one."""
        self.closed = ""
        """The reason why there is no job to join any more; empty: none is known."""

    async def connect(self) -> TcpMember:
        """Return this node's member of the job, after finding or hosting the coordinator if needed.

        Raises RendezvousClosedError and what `discover` raises.
        """
        async with self._connecting:
            if self.closed:
                raise RendezvousClosedError(self.closed)
            if self.member is not None:
                if not isinstance(self.member.state.trouble, RendezvousConnectionError):
                    return self.member
                await self.leave()
            return await self._connect()

    async def _connect(self) -> TcpMember:
        config, access, shared = self._settings.config, self._settings.access, self._settings.shared
        if self._hosted is not None:
            config = replace(config, is_host=False)
        found = await discover(config, access, embed(shared), lambda text: None)
        self._hosted = found.coordinator or self._hosted
        self.local_host = found.connection.local_host
        identity = fresh_identity(config.node_id or "")
        former = self._session.attached if self._session is not None else None

        def session(member: SessionHandler) -> CoordinatorSession:
            end = AgentEnd(identity, shared, SessionRules(config.lease_s), former)
            return CoordinatorSession(end, found.dial, member)

        self.member = TcpMember(session, self._on_change, config.enrol_timeout_s)
        self._session = self.member.session
        self._session.open(found.connection)
        return self.member

    async def leave(self) -> None:
        """Leave the job, and close the session with the coordinator.

        If the job has ended, its end is kept in `closed`, so that no further `connect` succeeds;
        not so if the job has timed out.
        """
        member, self.member = self.member, None
        timed_out = False
        if member is not None:
            verdict = member.state.verdict
            if verdict is not None:
                timed_out = verdict.outcome is Outcome.TIMED_OUT
                self.closed = "" if timed_out else verdict.text
            await member.leave()
        if self._hosted is not None and self._lingering is None:
            self._lingering = asyncio.get_running_loop().create_task(self._linger())
        if timed_out:
            self._session = None
            # That job is over, but not the next one of the same name.
            await self.end_hosting(CLOSE_S)

    async def end_hosting(self, limit_s: float | None) -> None:
        """Wait until every node has gone, or `limit_s` is over, and close the hosted coordinator.

        `limit_s` is in seconds; None: no limit. To be called after `leave`.
        """
        if self._lingering is not None:
            await asyncio.wait((self._lingering,), timeout=limit_s)
        if self._lingering is not None:
            self._lingering.cancel()
            await asyncio.wait((self._lingering,))

    async def _linger(self) -> None:
        assert self._hosted is not None
        try:
            await self._hosted.jobs.wait_empty()
        finally:
            self._hosted.close()
            self._hosted = self._lingering = None
