"""An agent's session over a rendezvous handler: it speaks to the agent as that with a coordinator.

All is decided in `elastic/rendezvous/plug_in/job.py`; this calls the handler and the round's
store, and keeps the agent's loop free meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol, assert_never

from rallypoint.agent.round_store import StoreAccess
from rallypoint.clocks import wall_ms
from rallypoint.config import AgentConfig
from rallypoint.coordinator.client.session import FromCoordinator, SessionHandler, raise_in_loop
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Candidate, SharedSettings
from rallypoint.core.node.events import SessionGivenUp, SessionOpened
from rallypoint.core.session import Acknowledged, OrderPushed, Rejected
from rallypoint.elastic.rendezvous.plug_in import job as handler_job
from rallypoint.elastic.rendezvous.plug_in import round as e
from rallypoint.elastic.rendezvous.plug_in.client import AgreedRound, HandlerRendezvous, own_name
from rallypoint.elastic.rendezvous.plug_in.job import HandlerJob
from rallypoint.elastic.rendezvous.plug_in.round import NodeInfo
from rallypoint.errors import InfrastructureError, RendezvousClosedError, UsageError


class SessionUser(SessionHandler, Protocol):
    """The agent."""

    def say(self, record: Record) -> None: ...


class HandlerSession:
    """For the thread of the loop. `open` when the agent has it, `close` at the end."""

    is_replaceable = False
    """No coordinator has attached this node."""

    def __init__(
        self,
        rendezvous: HandlerRendezvous,
        config: AgentConfig,
        settings: SharedSettings,
        agent: SessionUser,
        access: StoreAccess,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._rendezvous, self._agent, self._access = rendezvous, agent, access
        workers, client = config.workers, rendezvous.client
        self.node_id = client.node_id or config.rendezvous.node_id or own_name()
        self.candidate = Candidate(workers.count, workers.role, "", 0)
        """What this node brings; `JoinNextRound` says where its store is, when it is of rank 0."""
        node = NodeInfo(self.node_id, workers.count, workers.role, wall_ms(), -1, 0)
        self._job = HandlerJob(client.name, node, settings)
        self._round: AgreedRound | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._parting: asyncio.Task[None] | None = None
        self._is_closed = False
        self._error: Exception | None = None

    @property
    def error(self) -> Exception | None:
        """What ended this node's part, if it was no verdict of the job."""
        closed_why = self._job.closed_why
        return self._error or (RendezvousClosedError(closed_why) if closed_why else None)

    def open(self) -> None:
        """Take part from now on."""
        self._agent.told(OrderPushed(handler_job.waiting(self._job)))
        self._agent.told(SessionOpened(resumed=False))

    def report(self, report: m.Report) -> None:
        """What the agent has to say."""
        self._step(report)

    def tell_progress(self) -> None:
        """No coordinator asks for it."""

    async def close(self, timeout_s: float) -> None:
        """Let the handler go, within this time, also when this is cancelled."""
        self._step(e.SessionEnds())
        self._is_closed = True
        assert self._parting is not None
        parting = self._parting
        try:
            await asyncio.wait((parting,), timeout=timeout_s)
        finally:
            parting.cancel()
            await asyncio.gather(parting, return_exceptions=True)

    def _step(self, event: e.HandlerEvent) -> None:
        for effect in handler_job.step(self._job, event, self._loop.time()):
            self._perform(effect)

    def _perform(self, effect: e.HandlerEffect) -> None:
        match effect:
            case e.OrderAgent(message):
                self._loop.call_soon(self._push, message)
            case e.Acknowledge(report):
                self._loop.call_soon(self._agent.told, Acknowledged(report))
            case Record():
                self._agent.say(effect)
            case e.JoinNextRound():
                self._start(self._join_next_round(effect))
            case e.WatchRound():
                self._start(self._watch(effect))
            case e.AwaitSuccess(stamp):
                self._start(self._await_success(e.AllSucceeded(stamp)))
            case e.DropCalls():
                for task in self._calls:
                    task.cancel()
            case e.PublishVerdict():
                self._part(self._publish(effect))
            case e.RoundTimer(length_s, event):
                self._loop.call_later(length_s, self._step, event)
            case e.GiveUpHandler(text):
                self._agent.told(SessionGivenUp(text))
            case e.LeaveJob():
                self._part(self._rendezvous.client.leave())
            case e.CloseJob(let_others_read):
                self._part(self._close_job(let_others_read))
            case _:
                assert_never(effect)

    def _push(self, message: FromCoordinator) -> None:
        if not self._is_closed:
            self._agent.told(OrderPushed(message))

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(raise_in_loop)

    def _part(self, call: Coroutine[Any, Any, None]) -> None:
        """After what is under way. Errors of a handler at the end are ignored."""

        async def say(before: asyncio.Task[None] | None) -> None:
            if before is not None:
                await before
            with suppress(Exception):
                await call

        self._parting = self._loop.create_task(say(self._parting))

    async def _join_next_round(self, effect: e.JoinNextRound) -> None:
        if effect.reason is not None and self._round is not None:
            await self._round.put_reason(effect.reason)
        await asyncio.sleep(effect.after_s)
        try:
            round_, nodes = await self._rendezvous.next_round(effect.info)
        except UsageError as error:
            self._agent.told(Rejected(error))
        except Exception as error:
            self._step(await self._why_no_round(error))
        else:
            self._round, secret = round_, nodes[0].secret or None
            is_first = secret is not None and round_.rank == 0
            self._access.use(secret, self._rendezvous.store if is_first else None)
            self._step(
                e.HandlerRoundFormed(
                    round_.rank, tuple(nodes), self._rendezvous.client.end_reason.text
                )
            )

    async def _why_no_round(self, error: Exception) -> e.NextRoundFailed:
        """Errors of torch's handlers are known by their names."""
        names = {cls.__name__ for cls in type(error).__mro__}
        text = str(error) or type(error).__name__
        if "RendezvousGracefulExitError" in names:
            return e.NextRoundFailed(e.NoRound.NOT_NEEDED, text)
        if "RendezvousClosedError" in names:
            verdict = await self._round.verdict() if self._round is not None else None
            return e.NextRoundFailed(e.NoRound.CLOSED, text, verdict)
        if "RendezvousTimeoutError" in names:
            return e.NextRoundFailed(e.NoRound.TIMED_OUT, text)
        self._error = error
        if not isinstance(error, InfrastructureError):
            what = f"{type(error).__name__}: {error}"
            text = f"the rendezvous handler {self._rendezvous.client.name!r} failed: {what}"
        return e.NextRoundFailed(e.NoRound.FAILED, text)

    async def _watch(self, effect: e.WatchRound) -> None:
        await asyncio.sleep(effect.after_s)
        stamp, round_ = effect.stamp, self._round
        assert round_ is not None
        try:
            change = await self._rendezvous.client.wait_change()
        except Exception as error:
            self._step(e.WatchFailed(stamp, str(error) or type(error).__name__))
            return
        if change is e.HandlerChange.NONE:
            event = e.RoundWatched(stamp, change)
        elif await round_.have_all_succeeded():
            event = e.RoundWatched(stamp, change, all_succeeded=True)
        elif change is e.HandlerChange.CLOSED:
            event = e.RoundWatched(stamp, change, verdict=await round_.verdict())
        else:
            reason = await round_.reason() or self._rendezvous.client.end_reason
            event = e.RoundWatched(stamp, change, reason=reason)
        self._step(event)

    async def _await_success(self, event: e.AllSucceeded) -> None:
        assert self._round is not None
        await self._round.wait_all_succeeded()
        self._step(event)

    async def _publish(self, effect: e.PublishVerdict) -> None:
        verdict, error = effect.verdict, ""
        if self._round is not None:
            verdict = await self._round.publish(verdict)
        try:
            await self._rendezvous.client.set_closed()
        except Exception as raised:
            error = str(raised)
        self._step(e.VerdictPublished(verdict, effect.report, error))

    async def _close_job(self, let_others_read: bool) -> None:
        if let_others_read and self._round is not None:
            await self._round.let_others_read()
        await self._rendezvous.client.shutdown()
