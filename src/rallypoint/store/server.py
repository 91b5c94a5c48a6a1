"""The round store's server: asyncio around the pure machines.

One process, one loop, no task and no timer per connection: every handler runs to its end at once.
A client that does not read its replies is not read from either, so what it can make the server
hold is bounded. No name is looked up for anybody who connects.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable

from msgspec import Struct

from rallypoint.errors import ProtocolError
from rallypoint.store.accept_loop import AcceptLoop
from rallypoint.store.access import AccessGate, Admission, Peer, Refusal
from rallypoint.store.fast_path import FastPath
from rallypoint.store.keyvalue import KeyValueMachine, Replies
from rallypoint.store.peer_owner import SocketName, identify_peer
from rallypoint.store.refusal_log import WINDOW_S, RefusalLog
from rallypoint.store.server_connection import BufferedConnection, ServerConnection
from rallypoint.wire import c10d_server as c10d
from rallypoint.wire.enrolment import NONCE_BYTES, PREAMBLE_MAX_BYTES, StoreEnrolment

_READ_BYTES = 1 << 18
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 600, 60, 5  # as patient as TCP is about data
_BACKLOG = 65_535  # the kernel takes net.core.somaxconn where that is less

Say = Callable[[str], None]
Identify = Callable[[SocketName, SocketName, int], Peer]


HANDSHAKE_S = 10.0


class StoreLimits(Struct, frozen=True, kw_only=True):
    """What the clients of a store may make it hold, and how long they may leave it waiting.

    A limit of None is none. A client that breaks one is closed, with a line that names it.
    """

    max_connections: int | None = None
    more_connections_by: str = "give a higher --max-connections"
    """How a person raises a limit of connections that is too low."""
    max_bytes: int | None = None
    """Of keys, values and queued items (`KeyValueMachine`)."""
    handshake_s: float = HANDSHAKE_S
    """From connecting to a complete VALIDATE, and between two pieces of one request. A client that
    waits for a key, or sends nothing between two requests, may do so for ever."""


class IdleTimeouts:
    """Clients that must send more before long. Pure: the time is an argument.

    All deadlines are equally far away when they are set, so a dict keeps them in order.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadlines: dict[int, float] = {}

    def expect(self, id_: int, now_s: float) -> None:
        """This one must send more until `timeout_s` from now; each call sets the deadline anew."""
        self._deadlines.pop(id_, None)
        self._deadlines[id_] = now_s + self._timeout_s

    def forget(self, id_: int) -> None:
        """It has sent all, or is gone."""
        self._deadlines.pop(id_, None)

    def expire(self, now_s: float) -> list[int]:
        """Those whose time is over; they are forgotten."""
        expired = []
        for id_, deadline_s in self._deadlines.items():
            if deadline_s > now_s:
                break
            expired.append(id_)
        for id_ in expired:
            del self._deadlines[id_]
        return expired

    def next_deadline_s(self) -> float | None:
        """When to call `expire`; None while nothing is expected from anybody."""
        return next(iter(self._deadlines.values()), None)


class StoreStats(Struct, frozen=True):
    """What a store holds at this moment, and what it has served since it began."""

    connections: int
    keys: int
    bytes: int
    waiting: int
    operations: int


class StoreServer:
    """One store and its clients. Everything runs on the loop that was running when it was made.

    `key` is the round's enrolment key; `say` is given one line for each peer that is turned away.
    `machine` may be one that has values already, or that is watched.
    """

    def __init__(
        self,
        gate: AccessGate,
        key: bytes,
        say: Say,
        identify: Identify = identify_peer,
        *,
        limits: StoreLimits | None = None,
        machine: KeyValueMachine | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._gate, self._key, self._identify = gate, key, identify
        self._limits = limits = limits or StoreLimits()
        self._machine = machine or KeyValueMachine(limits.max_bytes)
        self.serve_fast = FastPath(self._machine).serve
        """Serves a client what is common, if nothing of it is being served otherwise."""
        self._idle = IdleTimeouts(limits.handshake_s)
        self._connections: dict[int, ServerConnection] = {}
        self._next_id = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._idle_end: asyncio.TimerHandle | None = None
        self._adopting: set[asyncio.Task[object]] = set()
        self._listening: list[asyncio.Server | AcceptLoop] = []
        self._listeners: list[socket.socket] = []
        self._say, self._refusals = say, RefusalLog()
        self._untold: asyncio.TimerHandle | None = None
        self._own_uid = os.geteuid()
        # asyncio makes a new buffer of 256 KiB for each read, unless it is given one.
        is_buffered = isinstance(self._loop, asyncio.SelectorEventLoop)
        self._is_selector_loop = is_buffered
        self._connection_type = BufferedConnection if is_buffered else ServerConnection
        self.read_buffer = memoryview(bytearray(_READ_BYTES if is_buffered else 0))
        """All connections read into it, one after the other."""
        self.stranger_buffer = memoryview(bytearray(PREAMBLE_MAX_BYTES))
        """The same for those that have not been admitted."""

    @property
    def stats(self) -> StoreStats:
        """The numbers of this moment."""
        machine = self._machine
        return StoreStats(
            connections=len(self._connections),
            keys=machine.keys,
            bytes=machine.stored_bytes,
            waiting=machine.waiting,
            operations=machine.operations,
        )

    async def listen(self, listener: socket.socket) -> None:
        """Accepts from a bound, non-blocking socket; it may be listening already."""
        _set_options(listener)  # inherited by what it accepts
        if self._is_selector_loop:
            listener.setblocking(False)
            listener.listen(_BACKLOG)
            self._listeners.append(listener)
            accepting = AcceptLoop(
                self._loop, listener, self._accepted, on_shortage=self._tell_shortage
            )
            self._listening.append(accepting)
            return
        self._listening.append(
            await self._loop.create_server(self._new_connection, sock=listener, backlog=_BACKLOG)
        )

    def adopt(self, connection: socket.socket) -> None:
        """Serves a connection that was accepted elsewhere. Takes the socket over."""
        connection.setblocking(False)
        try:
            _set_options(connection)
        except OSError:
            pass  # gone already, as will be noticed
        self._accepted(connection, ("", 0))

    def close(self) -> None:
        """Drops every client and stops listening."""
        for listening in (*self._listening, *self._listeners):
            listening.close()
        for timer in (self._expiry, self._idle_end):
            if timer is not None:
                timer.cancel()
        self._tell_left_out()
        for connection in tuple(self._connections.values()):
            connection.abort()

    def _accepted(self, connection: socket.socket, _: tuple[str, int]) -> None:
        task: asyncio.Task[object] = self._loop.create_task(self._make(connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _make(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._new_connection, connection)
        except OSError:
            connection.close()  # gone already

    def _tell_shortage(self, error: OSError) -> None:
        if self._refusals.is_told(("", str(error.errno)), self._loop.time()):
            self._say(f"can't accept connections: {error.strerror}: they wait")

    def _new_connection(self) -> ServerConnection:
        self._next_id += 1
        return self._connection_type(self, self._next_id)

    # What connections tell

    def arrived(
        self, connection: ServerConnection, peer_name: SocketName, own_name: SocketName
    ) -> Peer:
        peer = self._identify(peer_name, own_name, self._own_uid)
        most = self._limits.max_connections
        if most is not None and len(self._connections) >= most:
            connection.abort()
            self._complain(
                Refusal(
                    peer,
                    f"{most} connections are open, as many as are allowed: "
                    f"{self._limits.more_connections_by}",
                )
            )
            return peer
        self._connections[connection.id] = connection
        admission, refusal = self._gate.arrive(connection.id, peer, self._loop.time())
        match admission:
            case Admission.ALLOWED:
                connection.admit()
            case Admission.HELD:
                self._watch_held()
            case Admission.REFUSED:
                connection.abort()
        if refusal is not None:
            self._complain(refusal)
        return peer

    def left(self, client: int) -> None:
        if self._connections.pop(client, None) is not None:
            self._gate.leave(client)
            self._idle.forget(client)
            self.send(self._machine.drop(client))

    @property
    def apply(self) -> Callable[[int, c10d.Request], Replies]:
        """Serves a request of a client. Raises ProtocolError when that one must be closed."""
        return self._machine.apply

    def send(self, replies: Replies) -> None:
        """Tells clients what they have waited for."""
        for client, reply in replies:
            self._connections[client].send(reply)

    def expect(self, client: int) -> None:
        """More must come from this one before long."""
        self._idle.expect(client, self._loop.time())
        self._watch_idle()

    def unexpect(self, client: int) -> None:
        """It has said all that it began to say."""
        self._idle.forget(client)

    def broke_protocol(self, peer: Peer, error: ProtocolError) -> None:
        self._complain(Refusal(peer, str(error)))

    def begin_enrolment(self, peer: Peer) -> StoreEnrolment:
        return StoreEnrolment(self._key, os.urandom(NONCE_BYTES), peer.address)

    def enrolled(self, peer: Peer) -> None:
        for admitted in self._gate.enrol(peer.address):
            self._connections[admitted].admit()

    # Within

    def _watch_held(self) -> None:
        deadline_s = self._gate.next_deadline_s()
        if self._expiry is None and deadline_s is not None:
            self._expiry = self._loop.call_at(deadline_s, self._drop_held)

    def _drop_held(self) -> None:
        self._expiry = None
        for client, refusal in self._gate.expire(self._loop.time()):
            self._complain(refusal)
            self._connections[client].abort()
        self._watch_held()

    def _watch_idle(self) -> None:
        deadline_s = self._idle.next_deadline_s()
        if self._idle_end is None and deadline_s is not None:
            self._idle_end = self._loop.call_at(deadline_s, self._drop_idle)

    def _drop_idle(self) -> None:
        self._idle_end = None
        for client in self._idle.expire(self._loop.time()):
            self._connections[client].drop_silent(self._limits.handshake_s)
        self._watch_idle()

    def _complain(self, refusal: Refusal) -> None:
        if self._refusals.is_told((refusal.peer.address, refusal.reason), self._loop.time()):
            self._say(str(refusal))
        due_s = self._refusals.due_s
        if self._untold is None and due_s is not None:
            self._untold = self._loop.call_at(due_s, self._tell_left_out)

    def _tell_left_out(self) -> None:
        if self._untold is not None:
            self._untold.cancel()
            self._untold = None
        if left_out := self._refusals.left_out():
            self._say(f"turned away {left_out} more within {WINDOW_S:g} s")


def _set_options(tcp: socket.socket) -> None:
    # No reply may wait until an earlier one is acknowledged.
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Who waits for ever, or says nothing, is asked whether its machine is still there.
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform.startswith("linux"):
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
