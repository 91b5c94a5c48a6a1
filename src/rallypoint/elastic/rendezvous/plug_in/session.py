"""An agent's session over a rendezvous handler: to the coordinator of each of its rounds in turn.

All is decided in `part.py`; this calls the handler, hosts the coordinator on the node of rank 0,
and keeps the agent's loop free meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, assert_never

from msgspec.structs import replace

from rallypoint.agent.round_store import StoreAccess
from rallypoint.config import AgentConfig
from rallypoint.coordinator.client.discovery import Connected, HostCoordinator
from rallypoint.coordinator.client.session import (
    CoordinatorSession,
    Hooks,
    SessionHandler,
    fresh_identity,
    raise_in_loop,
)
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.coordinator.hosting import Hosting
from rallypoint.coordinator.server import Coordinator
from rallypoint.core import messages as m
from rallypoint.core.model import Candidate, Epoch
from rallypoint.core.session import AgentEnd, Rejected, SessionNews, SessionRules
from rallypoint.core.takeover.record import job_of, record_of
from rallypoint.elastic.rendezvous.plug_in import exchange
from rallypoint.elastic.rendezvous.plug_in import part as machine
from rallypoint.elastic.rendezvous.plug_in.client import own_name
from rallypoint.elastic.rendezvous.plug_in.exchange import NodeInfo
from rallypoint.elastic.rendezvous.plug_in.meeting import HandlerRound, Meetings
from rallypoint.elastic.rendezvous.plug_in.one_round import OneRound
from rallypoint.elastic.rendezvous.plug_in.part import NoRound, NotMet, Part
from rallypoint.errors import InfrastructureError, RendezvousClosedError, UsageError

EPOCH = Epoch(0, 0)
"""Of a coordinator from which none takes over."""


class OwnNode(NamedTuple):
    """What this node brings to each round."""

    agent: SessionHandler
    hosting: Hosting
    """What a coordinator here hosts, but for the round's own."""
    host: Callable[[Hosting], HostCoordinator]
    hooks: Callable[[Connected, AgentEnd], Hooks]
    candidate: Callable[[Connected], Awaitable[Candidate]]


class HandlerSession:
    """For the thread of the loop. `open` when the agent has it, `close` at the end."""

    is_replaceable = False
    """No coordinator can be taken over from."""

    def __init__(
        self, meetings: Meetings, config: AgentConfig, node: OwnNode, access: StoreAccess
    ) -> None:
        self._loop, self._access = asyncio.get_running_loop(), access
        self._meetings, self._node, self._config = meetings, node, config.rendezvous
        client = meetings.client
        self._identity = fresh_identity(client.node_id or config.rendezvous.node_id or own_name())
        self.node_id = self._identity.node_id
        self._settings = config.rendezvous.shared()
        self._part = Part(client.name, self._settings)
        self.candidate = Candidate(config.workers.count, config.workers.role, "", 0)
        """What this node brings to the present round."""
        self.coordinator: Coordinator | None = None
        """That of the present round, if it lives here."""
        self._session: CoordinatorSession | None = None
        self._generation = 0
        """Of the newest connection to the coordinator before."""
        self._calls: set[asyncio.Task[None]] = set()
        self._parting: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    @property
    def error(self) -> Exception | None:
        """What ended this node's part, if it was no verdict of the job."""
        why = self._part.closed_why
        return self._error or (RendezvousClosedError(why) if why else None)

    @property
    def attached(self) -> m.Attached | None:
        """How the coordinator of the present round has attached this node."""
        return None if self._session is None else self._session.attached

    def open(self) -> None:
        """Take part from now on."""
        self._apply(machine.begin(self._part))

    def report(self, report: m.Report) -> None:
        """What the agent has to say."""
        self._step(report)

    def tell_progress(self) -> None:
        """How far the workers are, now and not with the next heartbeat."""
        if self._session is not None:
            self._session.tell_progress()

    def send_collected(self, piece: m.Collected) -> None:
        """If there is a connection."""
        if self._session is not None:
            self._session.send_collected(piece)

    def check_fence(self) -> None:
        """To be called after every wake-up."""
        if self._session is not None:
            self._session.check_fence()

    # What the session of the present round says

    def claim(self) -> m.Claim:
        """What this node does now."""
        return self._node.agent.claim()

    def told(self, news: SessionNews) -> None:
        """The coordinator of the present round says this, or is lost."""
        self._step(news)

    async def close(self, timeout_s: float) -> None:
        """Hang up. The coordinator of the present round, if it lives here, goes on."""
        self._drop_calls()
        if self._session is not None:
            await self._session.close(timeout_s)

    async def let_go(self) -> None:
        """Let the handler go; its errors are ignored. May block for as long as that likes."""
        self._step(machine.Parting())
        assert self._parting is not None
        try:
            await asyncio.wait((self._parting,))
        finally:
            self._parting.cancel()
            await asyncio.gather(self._parting, return_exceptions=True)

    def _step(self, event: machine.PartEvent) -> None:
        self._apply(machine.step(self._part, event, self._loop.time()))

    def _apply(self, effects: list[machine.PartEffect]) -> None:
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: machine.PartEffect) -> None:
        match effect:
            case machine.Forward(report):
                if isinstance(report, m.Join):
                    report = replace(report, candidate=self.candidate)
                if self._session is not None:
                    self._session.report(report)
            case machine.TellAgent(news):
                self._loop.call_soon(self._node.agent.told, news)
            case machine.Meet(number):
                self._drop_calls()
                self._start(self._meet(self._let_coordinator_go(number)))
            case machine.WatchHandler(after_s):
                self._start(self._watch(after_s))
            case machine.EndRound(reason):
                if self.coordinator is not None:
                    self.coordinator.jobs.end_round(reason)
            case machine.Wait(length_s, event):
                self._loop.call_later(length_s, self._step, event)
            case machine.LetGo(closes):
                client = self._meetings.client
                leave = client.shutdown() if closes else client.leave()
                self._parting = self._loop.create_task(_ignoring_errors(leave))
            case _:
                assert_never(effect)

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(raise_in_loop)

    def _drop_calls(self) -> None:
        for task in self._calls:
            if task is not asyncio.current_task():
                task.cancel()

    def _let_coordinator_go(self, next_round: int) -> NodeInfo:
        """Leave the coordinator of the present round; returns what this node knows of the job."""
        record = machine.record(self._part)
        coordinator, self.coordinator = self.coordinator, None
        session, self._session = self._session, None
        self._generation = 0 if session is None else session.generation
        if coordinator is not None:
            known = coordinator.jobs.known()
            if known is not None and record is not None:
                record = exchange.known_to_the_host(record_of(known), next_round)
        if session is not None:
            session.report(m.Leave())
            session.abort()
        if coordinator is not None:
            coordinator.close()
        return NodeInfo(self.node_id, record)

    async def _meet(self, info: NodeInfo) -> None:
        try:
            while (found := await self._find(info)) is None:
                pass
        except UsageError as error:
            self.told(Rejected(error))
        except Exception as error:
            self._step(self._why_no_round(error))
        else:
            round_, connected = found
            await self._join(round_, connected)

    async def _find(self, info: NodeInfo) -> tuple[HandlerRound, Connected] | None:
        """The next round of the handler, and the coordinator of that. None: there is none."""
        round_ = await self._meetings.next_round(info)
        if round_.listeners:
            self.coordinator = self._host(round_)
        try:
            connection = await self._meetings.reach(round_)
        except BaseException:
            if self.coordinator is not None:
                self.coordinator.close()
            raise
        if connection is None:
            return None
        again = partial(dial, round_.addresses, self._config.run_id, round_.first.secret)
        return round_, Connected(connection, again, round_.first.secret, self.coordinator)

    def _host(self, round_: HandlerRound) -> Coordinator:
        settings = exchange.for_nodes(self._settings, len(round_.infos))
        record = exchange.newest(round_.infos)
        hosting = replace(
            self._node.hosting,
            only=settings,
            machine=OneRound(has_store=round_.first.has_store).step,
            former=None if record is None else job_of(replace(record, settings=settings), EPOCH),
        )
        return self._node.host(hosting)(
            round_.listeners, {self._config.run_id: round_.first.secret}.get
        )

    async def _join(self, round_: HandlerRound, found: Connected) -> None:
        settings = exchange.for_nodes(self._settings, len(round_.infos))
        rules = SessionRules(has_fence=self._config.max_nodes > 1)
        end = AgentEnd(self._identity, settings, rules)
        end.generation = self._generation  # What is told once on each connection goes by this.
        candidate = await self._node.candidate(found)
        rank, bootstrap = round_.agreed.rank, round_.agreed.bootstrap
        if round_.first.has_store and bootstrap is not None:
            self._access.use(found.token, None)
            address, port = bootstrap
            candidate = replace(candidate, address=address, store_port=port, enrols=False)
        self.candidate = replace(candidate, node_rank=rank)
        hooks = self._node.hooks(found, end)
        self._session = CoordinatorSession(end, found.dial, self, hooks=hooks)
        self._session.open(found.connection)
        self._step(machine.Met(round_.first.node_id, is_host=self.coordinator is not None))

    def _why_no_round(self, error: Exception) -> NotMet:
        """Errors of torch's handlers are known by their names."""
        names = {cls.__name__ for cls in type(error).__mro__}
        text = str(error) or type(error).__name__
        if "RendezvousGracefulExitError" in names:
            return NotMet(NoRound.NOT_NEEDED, text)
        if "RendezvousClosedError" in names:
            return NotMet(NoRound.CLOSED, text)
        if "RendezvousTimeoutError" in names:
            return NotMet(NoRound.TIMED_OUT, text)
        self._error = error
        if not isinstance(error, InfrastructureError):
            what = f"{type(error).__name__}: {error}"
            text = f"the rendezvous handler {self._meetings.client.name!r} failed: {what}"
        return NotMet(NoRound.FAILED, text)

    async def _watch(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        client = self._meetings.client
        try:
            change = await client.wait_change()
        except Exception as error:
            self._step(machine.HandlerFailed(str(error) or type(error).__name__))
        else:
            self._step(machine.HandlerSaid(change, client.end_reason))


async def _ignoring_errors(call: Coroutine[Any, Any, None]) -> None:
    with suppress(Exception):
        await call
