"""The round store's server: asyncio around the pure machines.

One process, one loop, no task and no timer per connection: every handler runs to its end at once.
A client that does not read its replies is not read from either, so what it can make the server
hold is bounded. No name is looked up for anybody who connects.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import cast

from msgspec import Struct

from rallypoint.errors import ProtocolError
from rallypoint.store.access import AccessGate, Admission, Peer, Refusal
from rallypoint.store.keyvalue import KeyValueMachine, Replies
from rallypoint.store.limits import StoreLimits
from rallypoint.store.peer_owner import SocketName, identify_peer
from rallypoint.store.silence import SilenceWatch
from rallypoint.wire import c10d
from rallypoint.wire.enrolment import (
    MAGIC,
    NONCE_BYTES,
    EnrolmentRefusedError,
    StoreEnrolment,
)

MAX_UNREAD_BYTES = 1 << 20
"""A client with more unread replies than this is not served until it has read half of them."""
_MAX_LINES = 64
_READ_BYTES = 1 << 18
_FLUSH_BYTES = 1 << 16
_BACKLOG = 65_535  # the kernel takes net.core.somaxconn where that is less

Say = Callable[[str], None]
Identify = Callable[[SocketName, SocketName, int], Peer]


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
        self._silence = SilenceWatch(limits.handshake_s)
        self._connections: dict[int, _Connection] = {}
        self._next_id = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._silence_end: asyncio.TimerHandle | None = None
        self._adopting: set[asyncio.Task[object]] = set()
        self._listening: list[asyncio.Server] = []
        self._say, self._said = say, set[tuple[str, str]]()
        self._own_uid = os.geteuid()
        # asyncio makes a new buffer of 256 KiB for each read, unless it is given one.
        is_buffered = isinstance(self._loop, asyncio.SelectorEventLoop)
        self._connection_type = _BufferedConnection if is_buffered else _Connection
        self.read_buffer = memoryview(bytearray(_READ_BYTES if is_buffered else 0))
        """All connections read into it, one after the other."""

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
        # Inherited by what it accepts; no reply may wait until an earlier one is acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listening.append(
            await self._loop.create_server(self._new_connection, sock=listener, backlog=_BACKLOG)
        )

    def adopt(self, connection: socket.socket) -> None:
        """Serves a connection that was accepted elsewhere. Takes the socket over."""
        connection.setblocking(False)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            pass  # gone already, as will be noticed
        connecting = self._loop.connect_accepted_socket(self._new_connection, connection)
        task: asyncio.Task[object] = self._loop.create_task(connecting)
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def close(self) -> None:
        """Drops every client and stops listening."""
        for listening in self._listening:
            listening.close()
        for timer in (self._expiry, self._silence_end):
            if timer is not None:
                timer.cancel()
        for connection in tuple(self._connections.values()):
            connection.abort()

    def _new_connection(self) -> _Connection:
        self._next_id += 1
        return self._connection_type(self, self._next_id)

    # What connections tell

    def arrived(self, connection: _Connection, peer_name: SocketName, own_name: SocketName) -> Peer:
        peer = self._identify(peer_name, own_name, self._own_uid)
        most = self._limits.max_connections
        if most is not None and len(self._connections) >= most:
            connection.abort()
            self._complain(
                Refusal(peer, f"{most} connections are open, the limit (--max-connections)")
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
            self._silence.forget(client)
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
        self._silence.expect(client, self._loop.time())
        self._watch_silent()

    def unexpect(self, client: int) -> None:
        """It has said all that it began to say."""
        self._silence.forget(client)

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

    def _watch_silent(self) -> None:
        deadline_s = self._silence.next_deadline_s()
        if self._silence_end is None and deadline_s is not None:
            self._silence_end = self._loop.call_at(deadline_s, self._drop_silent)

    def _drop_silent(self) -> None:
        self._silence_end = None
        for client in self._silence.expire(self._loop.time()):
            self._connections[client].drop_silent(self._limits.handshake_s)
        self._watch_silent()

    def _complain(self, refusal: Refusal) -> None:
        # Once per address and reason: a stranger who tries for ever must not fill the log.
        subject = (refusal.peer.address, refusal.reason)
        if subject not in self._said and len(self._said) < _MAX_LINES:
            self._said.add(subject)
            self._say(str(refusal))


class _Connection(asyncio.Protocol):
    """One client. Its first byte tells whether it is a c10d client or an agent that enrols."""

    __slots__ = (
        "_early",
        "_is_admitted",
        "_is_expected",
        "_is_reading",
        "_is_writable",
        "_peer",
        "_server",
        "_session",
        "_transport",
        "id",
    )
    _transport: asyncio.Transport
    _peer: Peer

    def __init__(self, server: StoreServer, id_: int) -> None:
        self.id = id_
        self._server = server
        self._is_admitted = False
        self._is_writable = self._is_reading = True
        self._is_expected = False  # whether more must come before long
        self._early = b""  # came before the connection was admitted
        self._session: c10d.ServerSession | StoreEnrolment | None = None

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES, low=MAX_UNREAD_BYTES // 2)
        peer_name = transport.get_extra_info("peername")
        own_name = transport.get_extra_info("sockname")
        if not peer_name or not own_name:  # gone already
            self._transport.abort()
            return
        self._peer = self._server.arrived(self, peer_name, own_name)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.left(self.id)

    def data_received(self, data: bytes) -> None:
        if type(self._session) is c10d.ServerSession:
            self._session.receive(data)
            self._serve(self._session)
        elif not self._transport.is_closing():
            self._receive_early(data)

    def pause_writing(self) -> None:
        self._is_writable = False
        self._read(False)

    def resume_writing(self) -> None:
        self._is_writable = True
        if isinstance(self._session, c10d.ServerSession) and not self._transport.is_closing():
            self._serve(self._session)

    # The server calls these

    def admit(self) -> None:
        self._is_admitted = self._is_expected = True
        self._server.expect(self.id)
        if self._early and self._session is None:
            self._read(True)
            self._receive_early(b"")

    def send(self, reply: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(reply)

    def abort(self) -> None:
        self._transport.abort()

    def drop_silent(self, after_s: float) -> None:
        if isinstance(self._session, c10d.ServerSession) and self._session.is_validated:
            said = "the rest of a request did not come"
        else:
            said = "no c10d client and no node has said hello"
        self._server.broke_protocol(self._peer, ProtocolError(f"{said} within {after_s:g} s"))
        self._transport.abort()

    # Within

    def _read(self, is_reading: bool) -> None:
        if is_reading is not self._is_reading:
            self._is_reading = is_reading
            if is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _receive_early(self, data: bytes) -> None:
        if isinstance(self._session, StoreEnrolment):
            self._enrol(self._session, data)
            return
        self._early += data
        if self._early[:1] == MAGIC[:1]:
            self._session = session = self._server.begin_enrolment(self._peer)
            self._enrol(session, self._early)
        elif self._is_admitted:
            self._session = c10d.ServerSession()
            self.data_received(self._early)
        else:  # nothing is parsed for a stranger
            self._read(False)
            return
        self._early = b""

    def _serve(self, session: c10d.ServerSession) -> None:
        apply, next_request, own = self._server.apply, session.next_request, self.id
        answers: list[bytes] = []
        size = 0
        try:
            while self._is_writable:
                request = next_request()
                if request is None:
                    self._note_partial(session)
                    break
                for client, reply in apply(own, request):
                    if client == own:
                        answers.append(reply)
                        size += len(reply)
                    else:
                        self._server.send([(client, reply)])
                if size > _FLUSH_BYTES:
                    self._transport.write(b"".join(answers))
                    answers, size = [], 0
        except ProtocolError as error:
            self._transport.write(b"".join(answers))
            self._server.broke_protocol(self._peer, error)
            self._transport.close()
            return
        if answers:
            self._transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
        if not self._is_writable and self._is_expected:
            # It is us who do not go on: not its silence.
            self._is_expected = False
            self._server.unexpect(own)

    def _note_partial(self, session: c10d.ServerSession) -> None:
        if not self._is_reading:
            self._read(True)
        if session.is_partial:
            if session.is_validated:  # saying hello has one deadline, however slowly it comes
                self._is_expected = True
                self._server.expect(self.id)
        elif self._is_expected:
            self._is_expected = False
            self._server.unexpect(self.id)

    def _enrol(self, session: StoreEnrolment, data: bytes) -> None:
        try:
            self.send(session.receive(data))
        except ProtocolError as error:
            if isinstance(error, EnrolmentRefusedError):
                self.send(session.refusal)
            self._server.broke_protocol(self._peer, error)
            self._transport.close()
            return
        if session.result is not None:
            self._server.enrolled(self._peer)
            self._transport.close()


class _BufferedConnection(_Connection, asyncio.BufferedProtocol):
    """The same, for a loop that would make a large buffer for every read."""

    __slots__ = ()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._server.read_buffer[:nbytes]))
