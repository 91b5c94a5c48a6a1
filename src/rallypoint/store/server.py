"""The round store's server: asyncio around the pure machines.

One process, one loop, no task and no timer per connection: every handler runs to its end at once.
A client that does not read its replies is not read from either, so what it can make the server
hold is bounded. No name of a peer is looked up.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable

from msgspec import Struct

from rallypoint.clocks import Alarm
from rallypoint.errors import ProtocolError
from rallypoint.store.accept_loop import AcceptLoop, Connector
from rallypoint.store.access import AccessGate, Admission, Peer, Refusal
from rallypoint.store.fast_path import FastPath
from rallypoint.store.keyvalue import MAX_MEMORY, KeyValueMachine, Replies
from rallypoint.store.peer_owner import SocketName, identify_peer
from rallypoint.store.refusal_log import WINDOW_S, RefusalLog
from rallypoint.store.server_connection import ConnectionMaker, StoreServerConnection
from rallypoint.wire import c10d_server as c10d
from rallypoint.wire.enrolment import NONCE_BYTES, StoreEnrolment

_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 600, 60, 5  # as patient as TCP is about data
_BACKLOG = 65_535  # the kernel takes net.core.somaxconn where that is less

Say = Callable[[str], None]
Identify = Callable[[SocketName, SocketName, int], Peer]

HANDSHAKE_S = 10.0
_KEY_BYTES = 32


class StoreLimits(Struct, frozen=True, kw_only=True):
    """The limits of a store's clients; None: no limit.

    The connection of a client over a limit is closed, with a log line that names the limit.
    """

    max_connections: int | None = None
    more_connections_by: str = "give a higher --max-connections"
    """The hint for raising a limit of connections that is too low."""
    max_bytes: int | None = None
    """The most bytes of keys, values and queued items together (`KeyValueMachine`)."""
    max_bytes_from: str = MAX_MEMORY
    """The source of the limit `max_bytes`, for messages."""
    handshake_s: float = HANDSHAKE_S
    """The time limit in seconds from the admission to a complete VALIDATE, and between two pieces
    of one request. A client that waits for a key, or is idle between requests, has no limit."""


class IdleTimeouts:
    """The deadlines of clients that must send more.

    Pure: the time is an argument. All deadlines are equally far away when they are set, so a dict
    keeps them in order.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadlines: dict[int, float] = {}

    def expect(self, id_: int, now_s: float) -> None:
        """Set a client's deadline to `timeout_s` from now, in place of an earlier one."""
        self._deadlines.pop(id_, None)
        self._deadlines[id_] = now_s + self._timeout_s

    def forget(self, id_: int) -> None:
        """Forget a client that has sent a complete request, or has gone."""
        self._deadlines.pop(id_, None)

    def expire(self, now_s: float) -> list[int]:
        """Return the clients whose deadline has passed, and forget them."""
        expired = []
        for id_, deadline_s in self._deadlines.items():
            if deadline_s > now_s:
                break
            expired.append(id_)
        for id_ in expired:
            del self._deadlines[id_]
        return expired

    def next_deadline_s(self) -> float | None:
        """Return the earliest deadline, when to call `expire`; None: no client has one."""
        return next(iter(self._deadlines.values()), None)


class StoreStats(Struct, frozen=True):
    """The present content and clients of a store, and its number of requests so far."""

    connections: int
    keys: int
    bytes: int
    waiting: int
    operations: int


class StoreServer:
    """One store and its clients.

    Runs on the loop that was running when it was made.

    `say` gets lines about refused peers, as `RefusalLog` chooses. `machine` is the content to
    serve; None: a new, empty one.
    """

    def __init__(
        self,
        gate: AccessGate,
        say: Say,
        identify: Identify = identify_peer,
        *,
        limits: StoreLimits | None = None,
        machine: KeyValueMachine | None = None,
    ) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._gate, self._identify = gate, identify
        self._limits = limits = limits or StoreLimits()
        self._machine = machine or KeyValueMachine(limits.max_bytes, limits.max_bytes_from)
        self.serve_fast = FastPath(self._machine).serve
        """The function that serves common requests of a client that has none pending."""
        self._connections: dict[int, StoreServerConnection] = {}
        self._idle = IdleTimeouts(limits.handshake_s)
        self._idle_alarm, self._held_alarm = (
            Alarm(loop, self._drop_idle),
            Alarm(loop, self._drop_held),
        )
        self._refusals = _RefusalLines(loop, say)
        make_connection = ConnectionMaker(self, loop)
        self._listening = _Listening(loop, make_connection, self._refusals.tell_shortage)

    @property
    def stats(self) -> StoreStats:
        """The store's present content and clients, and its number of requests so far."""
        machine = self._machine
        return StoreStats(
            connections=len(self._connections),
            keys=len(machine.values),
            bytes=machine.stored_bytes,
            waiting=len(machine.waits),
            operations=machine.operations,
        )

    async def listen(self, listener: socket.socket) -> None:
        """Accept from a bound, non-blocking socket; it may be listening already."""
        await self._listening.listen(listener)

    def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere. Takes the socket over."""
        self._listening.adopt(connection)

    def close(self) -> None:
        """Drop every client and stop listening."""
        self._listening.close()
        self._held_alarm.cancel()
        self._idle_alarm.cancel()
        self._refusals.close()
        for connection in tuple(self._connections.values()):
            connection.abort()

    # Connections call these

    def arrived(
        self, connection: StoreServerConnection, peer_name: SocketName, own_name: SocketName
    ) -> Peer:
        peer = self._identify(peer_name, own_name, os.geteuid())
        most = self._limits.max_connections
        if most is not None and len(self._connections) >= most:
            connection.abort()
            more_by = self._limits.more_connections_by
            reason = f"{most} connections are open, as many as are allowed: {more_by}"
            self._refusals.tell(Refusal(peer, reason))
            return peer
        self._connections[connection.id] = connection
        admission, refusal = self._gate.arrive(connection.id, peer, self._loop.time())
        match admission:
            case Admission.ALLOWED:
                connection.admit()
            case Admission.HELD:
                self._await_held()
            case Admission.REFUSED:
                connection.abort()
        if refusal is not None:
            self._refusals.tell(refusal)
        return peer

    def left(self, client: int) -> None:
        if self._connections.pop(client, None) is not None:
            self._gate.leave(client)
            self._idle.forget(client)
            self.send(self._machine.drop(client))

    @property
    def apply(self) -> Callable[[int, c10d.StoreRequest], Replies]:
        """The function that serves a client's request.

        It raises ProtocolError when the client must be closed.
        """
        return self._machine.apply

    def send(self, replies: Replies) -> None:
        """Send each reply to the client that has waited for it."""
        for client, reply in replies:
            self._connections[client].send(reply)

    def expect(self, client: int) -> None:
        """Set the deadline of a client that must send more, in place of an earlier one."""
        self._idle.expect(client, self._loop.time())
        self._await_idle()

    def unexpect(self, client: int) -> None:
        """Stop the deadline of a client that has sent a complete request."""
        self._idle.forget(client)

    def broke_protocol(self, peer: Peer, error: ProtocolError) -> None:
        self._refusals.tell(Refusal(peer, str(error)))

    def begin_enrolment(self, peer: Peer) -> StoreEnrolment:
        # Nobody has the key that is made here, so where there is no key nobody can enrol.
        key = self._gate.enrolment_key or os.urandom(_KEY_BYTES)
        return StoreEnrolment(key, os.urandom(NONCE_BYTES), peer.address)

    def enrolled(self, peer: Peer) -> None:
        for admitted in self._gate.enrol(peer.address):
            self._connections[admitted].admit()

    # The timers call these

    def _drop_held(self) -> None:
        for client, refusal in self._gate.expire(self._loop.time()):
            self._refusals.tell(refusal)
            self._connections[client].abort()
        self._await_held()

    def _await_held(self) -> None:
        if (at := self._gate.next_deadline_s()) is not None:
            self._held_alarm.set(at)

    def _drop_idle(self) -> None:
        for client in self._idle.expire(self._loop.time()):
            self._connections[client].drop_silent(self._limits.handshake_s)
        self._await_idle()

    def _await_idle(self) -> None:
        if (at := self._idle.next_deadline_s()) is not None:
            self._idle_alarm.set(at)


class _Listening:
    """The acceptance of connections for a server, from any number of sockets, until it is closed.

    `on_shortage` is called with the error when the system lacks descriptors or memory; not with
    uvloop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make_connection: ConnectionMaker,
        on_shortage: Callable[[OSError], None],
    ) -> None:
        self._loop, self._make_connection = loop, make_connection
        self._on_shortage = on_shortage
        self._connector = Connector(loop)
        self._open: list[asyncio.Server | AcceptLoop | socket.socket] = []

    async def listen(self, listener: socket.socket) -> None:
        _set_options(listener)  # inherited by what it accepts
        if not isinstance(self._loop, asyncio.SelectorEventLoop):
            server = await self._loop.create_server(
                self._make_connection, sock=listener, backlog=_BACKLOG
            )
            self._open.append(server)
            return
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        accept_loop = AcceptLoop(
            self._loop, listener, self._accepted, on_shortage=self._on_shortage
        )
        self._open += (accept_loop, listener)

    def adopt(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            _set_options(connection)
        except OSError:
            pass  # gone already, as will be noticed
        self._accepted(connection, ("", 0))

    def close(self) -> None:
        for each in self._open:
            each.close()

    def _accepted(self, connection: socket.socket, _: tuple[str, int]) -> None:
        self._connector.connect(connection, self._make_connection)


class _RefusalLines:
    """The log of refusals: a line for each as long as `RefusalLog` admits it, then a count."""

    def __init__(self, loop: asyncio.AbstractEventLoop, say: Say) -> None:
        self._loop, self._say = loop, say
        self._log = RefusalLog()
        self._alarm = Alarm(loop, self._tell_left_out)

    def tell(self, refusal: Refusal) -> None:
        self._tell((refusal.peer.address, refusal.reason), str(refusal))

    def tell_shortage(self, error: OSError) -> None:
        self._tell(("", str(error.errno)), f"can't accept connections: {error.strerror}: they wait")

    def close(self) -> None:
        self._alarm.cancel()
        self._tell_left_out()

    def _tell(self, subject: tuple[str, str], line: str) -> None:
        if self._log.is_logged(subject, self._loop.time()):
            self._say(line)
        elif (at := self._log.due_s) is not None:
            self._alarm.set(at)

    def _tell_left_out(self) -> None:
        if left_out := self._log.left_out():
            self._say(f"refused {left_out} more within {WINDOW_S:g} s")


def _set_options(tcp: socket.socket) -> None:
    # No reply may wait until an earlier one is acknowledged.
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The kernel asks whether the machine of a client that sends nothing is still there.
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform.startswith("linux"):
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
