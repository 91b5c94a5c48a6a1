"""An agent's session over a rendezvous handler: with the coordinator of each of its rounds in turn.

All is decided in `part.py`; this calls the handler, hosts the coordinator on the node of rank 0,
and keeps the agent's loop free meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

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
from rallypoint.coordinator.own_addresses import listen_as_leader
from rallypoint.coordinator.server import Coordinator
from rallypoint.core import messages as m
from rallypoint.core.model import Candidate, EndKind, EndReason, Outcome, SharedSettings
from rallypoint.core.session import AgentEnd, Rejected, SessionNews, SessionRules
from rallypoint.core.text import named
from rallypoint.elastic.rendezvous.plug_in import exchange
from rallypoint.elastic.rendezvous.plug_in import part as machine
from rallypoint.elastic.rendezvous.plug_in.client import (
    LONGEST_POLL_S,
    AgreedRound,
    HandlerClient,
    RoundOver,
    own_name,
)
from rallypoint.elastic.rendezvous.plug_in.exchange import NodeInfo
from rallypoint.elastic.rendezvous.plug_in.one_round import OneRound
from rallypoint.elastic.rendezvous.plug_in.part import HandlerSaid, HandlerState, NotMet, Part
from rallypoint.errors import (
    ForeignPeerError,
    InfrastructureError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousRefusedError,
    UsageError,
)
from rallypoint.wire.address import Address, told_addresses

SECRET_BYTES = 32
REFUSED_MAX = 5
"""The largest number of coordinators in a row that may be gone when this node connects to them."""
_OUTCOMES = {
    "RendezvousGracefulExitError": Outcome.SUCCEEDED,
    "RendezvousClosedError": Outcome.CANCELLED,
    "RendezvousTimeoutError": Outcome.TIMED_OUT,
}
"""The outcome of a search for a round that fails, by the name of the error that the handler raised.

Names of its base classes count, too; other errors are INFRASTRUCTURE. The name is used because
torch's handlers have error classes of their own."""


class OwnNode(NamedTuple):
    """The functions and settings by which a node hosts, or joins, the coordinator of a round."""

    hosting: Hosting
    """The settings for hosting a coordinator here, except those that the round determines."""
    host: Callable[[Hosting], HostCoordinator]
    hooks: Callable[[Connected, AgentEnd], Hooks]
    candidate: Callable[[Connected], Awaitable[Candidate]]
    access: StoreAccess


class HandlerSession(CoordinatorSession):
    """The session of an agent with the coordinators of rounds that a rendezvous handler forms.

    Each round has a coordinator of its own. For the thread of the loop. Call `begin` when the agent
    has this object; at the end `close`, and then `let_handler_go`.
    """

    def __init__(
        self, client: HandlerClient, config: AgentConfig, node: OwnNode, agent: SessionHandler
    ) -> None:
        rendezvous, workers = config.rendezvous, config.workers
        identity = fresh_identity(client.node_id or rendezvous.node_id or own_name())
        end = AgentEnd(identity, rendezvous.shared(), SessionRules())
        super().__init__(end, _no_coordinator, self)
        self._client, self._config, self._node, self._agent = client, rendezvous, node, agent
        self._part = Part(client.name, rendezvous.lease_s, rendezvous.max_restarts)
        self.candidate = Candidate(workers.count, workers.role, "", 0)
        """The values with which this node joins the present round: workers, address, rank."""
        self.coordinator: Coordinator | None = None
        """The coordinator of the present round, if it lives here."""
        self._calls: set[asyncio.Task[None]] = set()
        self._raised: Exception | None = None
        self._refused = 0
        """The number of attempts in a row in which no coordinator answered where one was published.

        Nothing listened there, or another program."""

    @property
    def error(self) -> Exception | None:  # type: ignore[override]
        """The exception that ended this node's part.

        None: the job's verdict ended it, or nothing has yet.
        """
        why = machine.closed_why(self._part)
        return RendezvousClosedError(why) if why else self._raised

    def begin(self) -> None:
        """Begin to take part in the job: ask the handler for its first round. Does not block."""
        self._apply(machine.meet(self._part))

    def report(self, report: m.Report) -> None:
        """Pass a report of the agent on to the coordinator.

        A `Join` is dropped while this node is in no round, and if the last round is over it has the
        handler asked for the next one instead.
        """
        self._step(report)

    def claim(self) -> m.Claim:
        """Return the present state of the agent's workers, for the coordinator."""
        return self._agent.claim()

    def told(self, news: SessionNews) -> None:
        """Pass news of the coordinator on to the agent, or ask the handler for another round.

        That depends on the news: an order, the loss of the coordinator, the end of the lease.
        """
        self._step(news)

    async def close(self, timeout_s: float) -> None:
        """Close the session; the coordinator, if it lives in this process, goes on."""
        self._drop_calls()
        await super().close(timeout_s)

    async def let_handler_go(self) -> None:
        """Shut the handler down if the job is over for all nodes, else have it leave the job.

        Waits until the handler returns, and ignores its errors.
        """
        client = self._client
        with suppress(Exception):
            await (client.shutdown() if machine.closes(self._part) else client.leave())

    def _step(self, event: machine.PartEvent) -> None:
        self._apply(machine.step(self._part, event, self._loop.time()))

    def _apply(self, effects: list[machine.PartEffect]) -> None:
        for effect in effects:
            match effect:
                case m.Join():
                    candidate = replace(self.candidate, ports=effect.candidate.ports)
                    super().report(replace(effect, candidate=candidate))
                case machine.Meet():
                    self._drop_calls()
                    self._start(self._meet(self._let_coordinator_go()))
                case machine.WatchHandler(after_s):
                    self._start(self._watch(after_s))
                case machine.EndRound(reason):
                    assert self.coordinator is not None
                    self.coordinator.jobs.all[-1].end_round(reason)
                case _ if isinstance(effect, m.Report):
                    super().report(effect)
                case _:
                    self._loop.call_soon(self._agent.told, effect)

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(raise_in_loop)

    def _drop_calls(self) -> None:
        for task in self._calls:
            if task is not asyncio.current_task():
                task.cancel()

    def _let_coordinator_go(self) -> NodeInfo:
        """Leave the coordinator of the present round, and close it if it lives here.

        Returns this node's info for the next round, with its record of the job.
        """
        coordinator, self.coordinator = self.coordinator, None
        known = None if coordinator is None else coordinator.jobs.all[-1].known()
        super().report(m.Leave())
        self.abort()
        if coordinator is not None:
            coordinator.close()
        return NodeInfo(self.node_id, exchange.record(self._part, self._config.shared(), known))

    async def _meet(self, info: NodeInfo) -> None:
        try:
            while not await self._join_next(info):
                pass
        except UsageError as error:
            self.told(Rejected(error))
        except Exception as error:
            self._step(self._why_not(error))

    async def _join_next(self, info: NodeInfo) -> bool:
        """Join the handler's next round, host its coordinator on rank 0, and connect to that.

        Returns False if the round is over before it has begun, or its coordinator is gone.
        """
        config, client = self._config, self._client
        agreed, listeners = await client.next_round(), list[socket.socket]()
        try:
            if not agreed.rank:
                listeners = listen_as_leader(config.local_addr, is_alone=config.max_nodes == 1)
                info = self._first(agreed, info, listeners)
            infos = await agreed.exchange(info, config.join_timeout_s, client.check_round)
            first = infos[0]
            settings = exchange.for_nodes(config.shared(), agreed.size)
            if listeners:
                hosting = replace(
                    self._node.hosting,
                    only=settings,
                    machine=OneRound(has_store=first.has_store).step,
                    former=exchange.newest(infos, settings),
                )
                token = {config.run_id: first.secret}.get
                self.coordinator = self._node.host(hosting)(listeners, token)
            found = await self._reach(first)
        except BaseException as error:
            for listener in listeners:
                listener.close()
            if isinstance(error, RoundOver):
                return False
            raise
        if found is not None:
            await self._open(agreed, first, found, settings)
        return found is not None

    def _first(
        self, agreed: AgreedRound, info: NodeInfo, listeners: list[socket.socket]
    ) -> NodeInfo:
        """Return the info of this node, which has rank 0, with its coordinator's addresses.

        A new token is in it too. The coordinator is to listen on `listeners`.
        """
        own, places = self._config.store, (each.getsockname()[:2] for each in listeners)
        has_store = agreed.bootstrap is not None and not (own.host or own.port)
        addresses = tuple(str(Address(*place)) for place in places)
        secret = os.urandom(SECRET_BYTES)
        return replace(info, addresses=addresses, secret=secret, has_store=has_store)

    async def _reach(self, first: NodeInfo) -> Connected | None:
        """Connect to the round's coordinator, which the node of `first` hosts.

        Returns None if that node is gone. Raises RendezvousConnectionError if it is not reached in
        time, or several in a row were gone.
        """
        addresses, run_id = told_addresses(first.addresses), self._config.run_id
        deadline = self._loop.time() + self._config.enrol_timeout_s
        while True:
            try:
                found = await dial(addresses, run_id, first.secret)
            except (RendezvousConnectionError, ForeignPeerError) as error:
                is_refused = isinstance(error, RendezvousRefusedError | ForeignPeerError)
                self._refused += is_refused
                if self._refused > REFUSED_MAX or self._loop.time() > deadline:
                    raise RendezvousConnectionError(
                        f"{error}: node {first.node_id} hosts the coordinator of this round: open "
                        "that port there, or give that node an address that the others reach with "
                        f"{named.local_addr}"
                    ) from error
                if is_refused:
                    return None
            else:
                self._refused = 0
                # Its other addresses may be this machine's own, where nothing listens.
                again = partial(dial, [found.peer], run_id, first.secret)
                return Connected(found, again, first.secret, self.coordinator)
            await asyncio.sleep(LONGEST_POLL_S)

    async def _open(
        self, agreed: AgreedRound, first: NodeInfo, found: Connected, settings: SharedSettings
    ) -> None:
        rules = SessionRules(has_fence=self._config.max_nodes > 1)
        end = AgentEnd(self._end.identity, settings, rules)
        end.generation = self._end.generation  # What is told once on each connection goes by this.
        try:
            candidate = await self._node.candidate(found)
        except BaseException:
            found.connection.abort()
            raise
        if first.has_store and agreed.bootstrap is not None:
            self._node.access.use(found.token, None)
            address, port = agreed.bootstrap
            candidate = replace(candidate, address=address, store_port=port, enrols=False)
        self.candidate = replace(candidate, node_rank=agreed.rank)
        self.change(end, found.dial, self._node.hooks(found, end))
        self.open(found.connection)
        self._step(machine.Met(first.node_id, self.coordinator is not None))

    def _why_not(self, error: Exception) -> NotMet:
        text = str(error) or type(error).__name__
        for cls in type(error).__mro__:
            if (outcome := _OUTCOMES.get(cls.__name__)) is not None:
                return NotMet(outcome, text)
        self._raised = error
        if not isinstance(error, InfrastructureError):
            what = f"{type(error).__name__}: {error}"
            text = f"the rendezvous handler {self._client.name!r} failed: {what}"
        return NotMet(Outcome.INFRASTRUCTURE, text)

    async def _watch(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            said = HandlerSaid(await self._client.wait_change(), self._client.end_reason)
        except Exception as error:
            why = str(error) or type(error).__name__
            said = HandlerSaid(HandlerState.FAILED, EndReason(EndKind.INFRASTRUCTURE, why))
        self._step(said)


async def _no_coordinator() -> ClientConnection:
    raise RendezvousConnectionError("this node is in no round")
