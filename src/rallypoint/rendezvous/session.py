"""An agent's session with the coordinator: it outlives connections, and knows when it may not.

* Reports are numbered, kept until acknowledged and sent again on a new connection.
* A heartbeat that was acknowledged extends the lease, from when it was *sent*.
* While there is no connection the agent is *suspended*: its workers run on, nothing new starts.
  When the lease is over they must die (`lease_ended`), because their place may be given away.
* What belongs to another life of the job is dropped (behaviour F1).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from rallypoint.core import limits, reconnect
from rallypoint.core import messages as m
from rallypoint.core.model import SharedSettings, Stamp
from rallypoint.core.reconnect import Answer, Search
from rallypoint.errors import (
    AccessError,
    InfrastructureError,
    ProtocolError,
    RallypointError,
    RendezvousRefusedError,
    UsageError,
)
from rallypoint.rendezvous.connection import ClientConnection, Dial
from rallypoint.rendezvous.fence import boot_time
from rallypoint.wire.codec import fitting

FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0
DEAF_SHARE = 0.5
"""Of the lease: a connection on which a heartbeat has waited so long for its answer is given up
(a router forgot it, a cable was pulled), while there is time for another."""

Pushed = m.Order | m.HeartbeatAck
_REFUSALS = (RendezvousRefusedError, AccessError, ProtocolError)


class SessionHandler(Protocol):
    """Who a session reports to. All calls are synchronous and short."""

    def claim(self) -> m.Claim:
        """What this node does now, for a coordinator that it attaches to."""

    def session_opened(self, resumed: bool, replaced: bool) -> None:
        """`replaced`: by another coordinator than the last time."""

    def session_suspended(self, why: str) -> None: ...

    def session_given_up(self, why: str) -> None: ...

    def reconnect_refused(self) -> None: ...

    def session_refused(self, error: RallypointError) -> None: ...

    def lease_ended(self, waits_for: str) -> None: ...

    def pushed(self, message: Pushed) -> None: ...

    def acknowledged(self, report: m.Report) -> None: ...


class AgentSession(Protocol):
    """What an agent takes part in a job by. `report` neither blocks nor answers at once."""

    @property
    def node_id(self) -> str: ...

    def report(self, report: m.Report) -> None: ...

    async def close(self, timeout_s: float) -> None: ...


class Identity(Struct, frozen=True):
    """Who this agent is."""

    node_id: str
    """Empty: the coordinator makes one from the host name."""
    host_name: str
    incarnation: str

    @classmethod
    def fresh(cls, node_id: str) -> Identity:
        """Of an agent that begins now, on this machine."""
        return cls(node_id, host_name_of(socket.gethostname()), os.urandom(8).hex())


def host_name_of(name: str) -> str:
    """What this machine is called, as nodes tell it: any bytes may be set as a name."""
    short = name.partition(".")[0]
    return "".join(letter if letter.isprintable() else "?" for letter in short) or "node"


class CoordinatorSession:
    """For the thread of the loop. `open` with the first connection, `close` at the end."""

    def __init__(
        self,
        identity: Identity,
        settings: SharedSettings,
        reconnect_timeout_s: float | None,
        dial: Dial,
        handler: SessionHandler,
        clock: Callable[[], float] = boot_time,
        former: m.Attached | None = None,
    ) -> None:
        """`reconnect_timeout_s`: how long to look for a lost coordinator, at least the lease;
        None: as `core.reconnect` says. `clock`: seconds that also count while this machine or
        process is suspended. `former`: how an earlier session of the same node in this job was
        attached."""
        self._loop = asyncio.get_running_loop()
        self._identity, self._settings = identity, settings
        self._reconnect_timeout_s = reconnect_timeout_s
        self._dial, self._handler, self._clock = dial, handler, clock
        self._connection: ClientConnection | None = None
        self._attached = former
        self._is_attached = False
        """The newest connection has been attached: reports may be sent, in their order."""
        self._generation = self._opened = 0
        self._numbers = 0
        self._unacknowledged: deque[m.Numbered] = deque()
        self._beats = 0
        self._beats_sent: dict[int, float] = {}
        self._attach_sent_at = 0.0
        self._held_until: float | None = None
        self.on_held: Callable[[float], None] = _nothing
        """Told at each renewal until when the lease goes, on `clock`."""
        self.on_attach: Callable[[ClientConnection, int], bytes] = lambda *_: b""
        """Called before each attaching, with the connection and its generation; returns what the
        agent commits itself to (`wire/death_notice.py`)."""
        self.has_fence = True
        """False: nobody can be given this node's place, so that its lease never ends."""
        self._fenced = False
        self._search: Search | None = None
        """Since the connection broke, until this node is attached again."""
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._all_heard: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def node_id(self) -> str:
        """This node's id, once the session has been opened."""
        return self._attached.node_id if self._attached else self._identity.node_id

    @property
    def attached(self) -> m.Attached | None:
        """As what the coordinator has attached this node last."""
        return self._attached

    @property
    def run_id(self) -> str:
        """The job's."""
        return self._settings.run_id

    @property
    def incarnation(self) -> str:
        """This agent's own."""
        return self._identity.incarnation

    def stamp(self, round_: int) -> Stamp:
        """This round of the coordinator that we are attached to."""
        assert self._attached is not None
        return Stamp(self._attached.incarnation, round_)

    def open(self, connection: ClientConnection) -> None:
        """Attach, and keep attached from now on."""
        self._attach(connection)
        self._keeper = self._loop.create_task(self._keep(connection))
        self._keeper.add_done_callback(raise_in_loop)
        self._beat()

    def report(self, report: m.Report) -> None:
        """Say it until it is acknowledged."""
        self._numbers += 1
        numbered = m.Numbered(self._numbers, fitting(report))
        self._unacknowledged.append(numbered)
        if self._connection is not None and self._is_attached:
            self._connection.send(numbered)

    async def close(self, timeout_s: float) -> None:
        """Wait until every report is acknowledged, at most so long, and hang up, also when this is
        cancelled."""
        try:
            if self._unacknowledged and self._connection is not None:
                self._all_heard = self._loop.create_future()
                ends: list[asyncio.Future[Any]] = [self._all_heard, self._connection.lost]
                await asyncio.wait(ends, timeout=timeout_s)
        finally:
            self.abort()

    def abort(self) -> None:
        """Hang up. Safe to call twice."""
        self._closed = True
        for cancellable in (self._timer, self._keeper):
            if cancellable is not None:
                cancellable.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def check_fence(self) -> None:
        """To be called after every wake-up, before anything that arrived is looked at."""
        if self._held_until is None or self._fenced or not self.has_fence:
            return
        if self._clock() <= self._held_until:
            return
        self._fenced = True
        if not self._closed:
            now = self._clock()
            self._drop_connection(now - self._held_until + self._settings.lease_s)
            self._handler.lease_ended(reconnect.waiting_text(self._search or self._begun(now), now))

    def _drop_connection(self, silent_s: float) -> None:
        """Nothing comes back on it. A new one may get through, or tell that nobody is there."""
        if self._connection is not None:
            self._connection.abort(f"no word from the coordinator for {silent_s:.1f} s")

    def _attach(self, connection: ClientConnection) -> None:
        self._generation += 1
        self._connection, self._is_attached = connection, False
        self._attach_sent_at = self._clock()
        identity, former = self._identity, self._attached
        connection.send(
            m.Attach(
                identity.node_id,
                identity.host_name,
                identity.incarnation,
                self._generation,
                self._settings,
                self._opened,
                former.node_id if former else "",
                former.incarnation if former else 0,
                former.epoch if former else 0,
                self.on_attach(connection, self._generation),
                limits.fit(self._handler.claim()),
            )
        )
        connection.listen(self._received)

    async def _keep(self, connection: ClientConnection) -> None:
        while True:
            why = await asyncio.shield(connection.lost)
            if self._closed:
                return
            self._connection = None
            self._beats_sent.clear()
            self._handler.session_suspended(why)
            if self._search is None:
                self._search = self._begun(self._clock())
            else:
                reconnect.attempted(self._search, self._clock(), Answer.SILENCE, why)
            found = await self._redial(self._search)
            if found is None:
                return
            connection = found
            self._attach(connection)

    def _begun(self, now: float) -> Search:
        lease_s = self._settings.lease_s
        lease_end = self._held_until if self._held_until is not None else now + lease_s
        return Search(now, lease_end, lease_s, self._reconnect_timeout_s)

    async def _redial(self, search: Search) -> ClientConnection | None:
        from rallypoint.store.backoff import uniform

        pause_s = FIRST_RETRY_S
        while not self._closed:
            now = self._clock()
            if search.last_error and now > reconnect.ends_at(search):
                self._handler.session_given_up(reconnect.given_up_text(search, now))
                return None
            try:
                return await self._dial()
            except RallypointError as error:
                answer = Answer.REFUSED if isinstance(error, _REFUSALS) else Answer.SILENCE
                reconnect.attempted(search, self._clock(), answer, str(error))
                if answer is Answer.REFUSED:
                    self._handler.reconnect_refused()
            # Thousands of agents that lost one coordinator must not come back in step.
            await asyncio.sleep(pause_s * uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, LONGEST_RETRY_S)
        return None

    def _received(self, message: m.ToAgent) -> None:
        if self._closed:
            return
        match message:
            case m.Attached():
                if self._is_attached:  # the job has got another number before its first round
                    self._attached = message
                else:
                    self._was_attached(message)
            case m.Refused(text, is_fault):
                self.abort()
                error = InfrastructureError(text) if is_fault else UsageError(text)
                self._handler.session_refused(error)
            case m.Ack(number):
                while self._unacknowledged and self._unacknowledged[0].number <= number:
                    self._handler.acknowledged(self._unacknowledged.popleft().report)
                self._all_said()
            case m.HeartbeatAck(number, stamp):
                if self._is_current(stamp):
                    self._renewed(self._beats_sent.pop(number, None))
                    self._handler.pushed(message)
            case m.DrainAnswer():
                pass  # for who asked instead of taking part
            case _:
                if self._is_current(message.stamp):
                    self._handler.pushed(message)

    def _all_said(self) -> None:
        if self._all_heard is not None and not self._unacknowledged:
            self._all_heard.cancel()

    def _was_attached(self, message: m.Attached) -> None:
        former = self._attached
        replaced = former is not None and former.epoch != message.epoch
        self._attached, self._is_attached, self._search = message, True, None
        self._renewed(self._attach_sent_at)
        assert self._connection is not None
        if not message.resumed:
            self._opened = self._generation
            # A coordinator that knows nothing of us can't use what we said to another.
            self._unacknowledged.clear()
            self._all_said()
        for numbered in self._unacknowledged:
            self._connection.send(numbered)
        self._handler.session_opened(message.resumed, replaced)

    def _renewed(self, sent_at: float | None) -> None:
        if sent_at is not None:
            # If this process was stopped since it woke up, the guard may have kept the fence.
            self.check_fence()
            self._held_until = max(self._held_until or 0.0, sent_at + self._settings.lease_s)
            self._fenced = self._fenced and self._clock() > self._held_until
            self.on_held(self._held_until)

    def _beat(self) -> None:
        """Send a heartbeat, or, without a connection, look at the lease."""
        delay_s = self._settings.heartbeat_s
        if self._connection is not None:
            oldest = next(iter(self._beats_sent.values()), None)
            deaf_s = 0.0 if oldest is None else self._clock() - oldest
            if deaf_s > self._settings.lease_s * DEAF_SHARE:
                self._drop_connection(deaf_s)
            self._beats += 1
            self._beats_sent[self._beats] = self._clock()
            self._connection.send(m.Heartbeat(self._beats))
            if len(self._beats_sent) > 2 * self._settings.lease_s / delay_s:
                del self._beats_sent[next(iter(self._beats_sent))]
        if self._held_until is not None and not self._fenced and self.has_fence:
            # Wake up just after the fence, should nothing renew the lease until then.
            delay_s = min(delay_s, max(0.0, self._held_until - self._clock()) + 0.001)
        self._timer = self._loop.call_later(delay_s, self._beat)

    def _is_current(self, stamp: Stamp) -> bool:
        attached = self._attached
        return attached is not None and stamp.incarnation == attached.incarnation


def raise_in_loop(task: asyncio.Task[None]) -> None:
    """For `add_done_callback`: what a task raises must not pass in silence, while somebody waits
    for ever for what it was to do. The loop's exception handler gets it."""
    if not task.cancelled():
        task.result()


def _nothing(_until: float) -> None:
    """Until somebody wants to know."""
