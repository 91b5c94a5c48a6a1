"""The agent's end of a session with the coordinator, on asyncio.

`core/session.py` decides; this dials, sends, waits and calls the handler.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from rallypoint.clocks import boot_time
from rallypoint.coordinator.connection import ClientConnection, Dial
from rallypoint.core import messages as m
from rallypoint.core import session as core
from rallypoint.core.model import Stamp
from rallypoint.core.node.events import SessionOpened
from rallypoint.core.round_record import ReportedRound
from rallypoint.core.search import DialOutcome
from rallypoint.core.session import AgentEffect, AgentEnd, Identity
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.errors import (
    AccessError,
    ProtocolError,
    RallypointError,
    RendezvousRefusedError,
)
from rallypoint.wire.codec import fitting

FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0

FromCoordinator = m.Order | m.HeartbeatAck
_REFUSALS = (RendezvousRefusedError, AccessError, ProtocolError)


class SessionHandler(Protocol):
    """The agent's part that owns a session and is called by it.

    All calls are synchronous and short.
    """

    def claim(self) -> m.Claim:
        """Return this node's present state, to be sent to a coordinator that it attaches to."""

    def told(self, news: core.SessionNews) -> None: ...


class AgentSession(Protocol):
    """An agent's interface to its session with the coordinator.

    `report` returns at once, and returns no answer of the coordinator.
    """

    @property
    def node_id(self) -> str: ...

    @property
    def is_replaceable(self) -> bool:
        """Whether another coordinator can take over from the present one, as in `Attached`."""

    @property
    def error(self) -> Exception | None:
        """The exception that ended this node's part in the job.

        None: a verdict ended it, or nothing has yet.
        """

    def report(self, report: m.Report) -> None: ...

    def tell_progress(self) -> None:
        """Report the progress of the workers to the coordinator now, in an extra heartbeat."""

    async def close(self, timeout_s: float) -> None: ...


def fresh_identity(node_id: str) -> Identity:
    """Return the identity of a new agent on this machine, with a random incarnation.

    `node_id` may be empty: the coordinator makes one.
    """
    return Identity(node_id, host_name_of(socket.gethostname()), os.urandom(8).hex())


def host_name_of(name: str) -> str:
    """Return a host name up to its first dot, with `?` for each unprintable character.

    An empty name becomes `node`.
    """
    short = name.partition(".")[0]
    return "".join(letter if letter.isprintable() else "?" for letter in short) or "node"


class Hooks(Struct, frozen=True):
    """The callbacks of a session besides its handler."""

    on_held: Callable[[float], None] = lambda until: None
    """Called each time the lease of this node is renewed, with its new end in seconds on the
    session's clock."""
    on_attach: Callable[[ClientConnection, int], bytes] = lambda connection, generation: b""
    """Called before each attach with the connection and its number in the session. Returns the
    agent's commitment, by which its guard may report its death later (`wire/death_notice.py`)."""
    on_place: Callable[[], None] = lambda: None
    """Called each time this node was attached or got a place in a world, before the handler is
    told."""
    is_short_of_memory: Callable[[], bool] = lambda: False
    """Called before each heartbeat; returns whether this node is short of memory, which the
    heartbeat then says."""
    progress: Callable[[int], NodeProgress | None] = lambda generation: None
    """Called before each heartbeat of an attached node, with the number of the connection in the
    session. Returns the workers' progress, or None if nothing is new on this connection."""
    rounds: Callable[[int, int], tuple[ReportedRound, ...]] = lambda generation, epoch: ()
    """Called when `progress` is, also with the epoch of the coordinator; returns the reports on
    past rounds to send."""
    collect: Callable[[m.Collecting], None] = lambda message: None
    """Called with a question about this node's workers, or the order to send more of the answer, or
    no more."""
    uniform: Callable[[float, float], float] | None = None
    """The function that draws pauses between attempts to connect, in seconds between two limits;
    None: `store.backoff.uniform`."""


class CoordinatorSession:
    """An agent's session with its coordinator, over one connection after another.

    For the thread of the loop. Call `open` with the first connection, and `close` at the end.
    """

    error: Exception | None = None
    """Always None: a coordinator ends no node's part with an exception."""

    def __init__(
        self,
        end: AgentEnd,
        dial: Dial,
        handler: SessionHandler,
        clock: Callable[[], float] = boot_time,
        hooks: Hooks | None = None,
    ) -> None:
        """Make a session, not open yet; `end` decides, `dial` makes further connections.

        `handler` is told what happens. `clock` returns seconds that also count while this machine
        or process is suspended.
        """
        self._loop = asyncio.get_running_loop()
        self._end, self._dial, self._handler, self._clock = end, dial, handler, clock
        self._hooks = hooks or Hooks()
        self._connection: ClientConnection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._all_acknowledged: asyncio.Future[None] | None = None

    @property
    def node_id(self) -> str:
        """The id of this node; empty until the coordinator has made one, if none was given."""
        attached = self._end.attached
        return attached.node_id if attached else self._end.identity.node_id

    @property
    def is_replaceable(self) -> bool:
        """Whether another coordinator can take over from the one that attached this node last."""
        return self._end.attached is not None and self._end.attached.is_replaceable

    @property
    def attached(self) -> m.Attached | None:
        """The last `Attached` message of the coordinator to this node; None: there was none."""
        return self._end.attached

    def stamp(self, round_: int) -> Stamp:
        """Return the number of a round, `round_`, with that of the job's present life.

        The coordinator's last `Attached` has told the latter. Only once this node was attached.
        """
        assert self._end.attached is not None
        return Stamp(self._end.attached.incarnation, round_)

    def change(self, end: AgentEnd, dial: Dial, hooks: Hooks) -> None:
        """Prepare the session for another coordinator: after `abort`, before `open`.

        The state for the former one, how to dial it, and the hooks are replaced. The handler stays.
        """
        self._end, self._dial, self._hooks = end, dial, hooks

    def open(self, connection: ClientConnection) -> None:
        """Ask the coordinator on this connection to attach this node, and begin heartbeats.

        When the connection breaks, another one is dialled, and the agent attaches again.
        """
        self._attach(connection)
        self._keeper = self._loop.create_task(self._keep(connection))
        self._keeper.add_done_callback(raise_in_loop)
        self._beat()

    def report(self, report: m.Report) -> None:
        """Send the report, again on each new connection until it is acknowledged.

        Returns at once.
        """
        self._run(self._end.report(fitting(report), self._clock()))

    async def close(self, timeout_s: float) -> None:
        """Disconnect once every report is acknowledged, or after `timeout_s` seconds.

        Without a connection it does not wait; if cancelled, it disconnects at once.
        """
        try:
            if not self._end.is_all_acknowledged and self._connection is not None:
                self._all_acknowledged = self._loop.create_future()
                await asyncio.wait([self._all_acknowledged], timeout=timeout_s)
        finally:
            self.abort()

    def reconnect(self, why: str) -> None:
        """Drop the present connection, if there is one, so that another one is dialled."""
        if self._connection is not None:
            self._connection.abort(why)

    def abort(self) -> None:
        """Disconnect at once, and send no heartbeat and dial no more. May be called twice."""
        self._end.is_closed = True
        for cancellable in (self._timer, self._keeper):
            if cancellable is not None:
                cancellable.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def check_fence(self) -> None:
        """Tell the handler if this node's lease has ended: then its workers must die.

        To be called after every wake-up, before anything that arrived is processed.
        """
        self._run(self._end.woke_up(self._clock()))

    def _attach(self, connection: ClientConnection) -> None:
        self._connection = connection
        commitment = self._hooks.on_attach(connection, self._end.generation + 1)
        self._run(self._end.connected(self._clock(), self._handler.claim(), commitment))
        connection.listen(self._received)

    def _received(self, message: m.ToAgent) -> None:
        self._run(self._end.received(self._clock(), message))

    async def _keep(self, connection: ClientConnection) -> None:
        while True:
            why = await asyncio.shield(connection.lost)
            if self._end.is_closed:
                return
            self._connection = None
            self._run(self._end.disconnected(self._clock(), why))
            found = await self._redial(self._end.spread_s if connection.was_cut else 0.0)
            if found is None:
                return
            connection = found
            self._attach(connection)

    async def _redial(self, spread_s: float) -> ClientConnection | None:
        if (uniform := self._hooks.uniform) is None:
            from rallypoint.store import backoff

            uniform = backoff.uniform

        # Thousands of agents that lost one coordinator must not come back at once, nor in step; nor
        # may their attempts keep one busy that is slower than they are.
        if spread_s:
            await asyncio.sleep(uniform(0.0, spread_s))
        pause_s, longest_s = FIRST_RETRY_S, max(LONGEST_RETRY_S, self._end.spread_s)
        while not self._end.is_closed:
            if given_up := self._end.before_attempt(self._clock()):
                self._run(given_up)
                return None
            try:
                return await self._dial()
            except RallypointError as error:
                answer = DialOutcome.REFUSED if isinstance(error, _REFUSALS) else DialOutcome.NONE
                self._run(self._end.attempt_failed(self._clock(), answer, str(error)))
            await asyncio.sleep(pause_s * uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, longest_s)
        return None

    def tell_progress(self) -> None:
        """Send a heartbeat with the progress of the workers now, if this node is attached."""
        if self._end.is_attached and not self._end.is_closed:
            self._send_beat(self._clock())

    def send_collected(self, piece: m.Collected) -> None:
        """Send a piece of an answer about workers; it is lost if this node is not attached.

        The coordinator then tells the person who has asked that this node's part is missing, or,
        where the person follows the output, asks this node again when it is back.
        """
        if self._connection is not None and self._end.is_attached:
            self._connection.send(piece)

    def _send_beat(self, now: float) -> None:
        hooks, end = self._hooks, self._end
        progress: NodeProgress | None = None
        rounds: tuple[ReportedRound, ...] = ()
        if end.is_attached and end.attached is not None:
            progress = hooks.progress(end.generation)
            rounds = hooks.rounds(end.generation, end.attached.epoch)
        short = hooks.is_short_of_memory()
        self._run(end.beat(now, is_short_of_memory=short, progress=progress, rounds=rounds))

    def _beat(self) -> None:
        now = self._clock()
        self._send_beat(now)
        self._timer = self._loop.call_later(self._end.next_wake_s(now), self._beat)

    def _run(self, effects: list[AgentEffect]) -> None:
        for effect in effects:
            self._perform(effect)
        if self._all_acknowledged is not None and self._end.is_all_acknowledged:
            self._all_acknowledged.cancel()

    def _perform(self, effect: AgentEffect) -> None:
        match effect:
            case core.Send(message):
                if self._connection is not None:
                    self._connection.send(message)
            case core.Drop(why):
                if self._connection is not None:
                    self._connection.abort(why)
            case core.CollectionAsked(wanted):
                self._hooks.collect(wanted)
            case core.Held(until):
                self._hooks.on_held(until)
            case SessionOpened() | core.OrderPushed(m.Assigned()):
                self._hooks.on_place()
                self._handler.told(effect)
            case core.Rejected():
                self.abort()
                self._handler.told(effect)
            case _:
                self._handler.told(effect)


def raise_in_loop(task: asyncio.Task[Any]) -> None:
    """Give the exception of a finished task to the loop's handler: for `add_done_callback`.

    Nothing else would end the wait for what the task was to do.
    """
    if not task.cancelled():
        task.result()
