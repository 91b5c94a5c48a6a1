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

from rallypoint.errors import ProtocolError
from rallypoint.store.access import AccessGate, Admission, Peer, Refusal
from rallypoint.store.keyvalue import KeyValueMachine
from rallypoint.store.peer_owner import SocketName, identify_peer
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

Say = Callable[[str], None]
Identify = Callable[[SocketName, SocketName, int], Peer]


class StoreServer:
    """One store and its clients. Everything runs on the loop that was running when it was made.

    `key` is the round's enrolment key; `say` is given one line for each peer that is turned away.
    """

    def __init__(
        self, gate: AccessGate, key: bytes, say: Say, identify: Identify = identify_peer
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._gate, self._key, self._identify = gate, key, identify
        self._machine = KeyValueMachine()
        self._connections: dict[int, _Connection] = {}
        self._next_id = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._adopting: set[asyncio.Task[object]] = set()
        self._listening: asyncio.Server | None = None
        self._say, self._said = say, set[tuple[str, str]]()
        self._own_uid = os.geteuid()

    async def listen(self, listener: socket.socket) -> None:
        """Accepts from a bound, non-blocking socket; it may be listening already."""
        self._listening = await self._loop.create_server(
            self._new_connection, sock=listener, backlog=socket.SOMAXCONN
        )

    def adopt(self, connection: socket.socket) -> None:
        """Serves a connection that was accepted elsewhere. Takes the socket over."""
        connection.setblocking(False)
        connecting = self._loop.connect_accepted_socket(self._new_connection, connection)
        task: asyncio.Task[object] = self._loop.create_task(connecting)
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def close(self) -> None:
        """Drops every client and stops listening."""
        if self._listening is not None:
            self._listening.close()
        if self._expiry is not None:
            self._expiry.cancel()
        for connection in tuple(self._connections.values()):
            connection.abort()

    def _new_connection(self) -> _Connection:
        self._next_id += 1
        return _Connection(self, self._next_id)

    # What connections tell

    def arrived(self, connection: _Connection, peer_name: SocketName, own_name: SocketName) -> Peer:
        peer = self._identify(peer_name, own_name, self._own_uid)
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
            self._send(self._machine.drop(client))

    def apply(self, client: int, request: c10d.Request) -> None:
        """Raises ProtocolError when the client must be closed."""
        self._send(self._machine.apply(client, request))

    def broke_protocol(self, peer: Peer, error: ProtocolError) -> None:
        self._complain(Refusal(peer, str(error)))

    def begin_enrolment(self, peer: Peer) -> StoreEnrolment:
        return StoreEnrolment(self._key, os.urandom(NONCE_BYTES), peer.address)

    def enrolled(self, peer: Peer) -> None:
        for admitted in self._gate.enrol(peer.address):
            self._connections[admitted].admit()

    # Within

    def _send(self, replies: list[tuple[int, bytes]]) -> None:
        for client, reply in replies:
            self._connections[client].send(reply)

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

    def _complain(self, refusal: Refusal) -> None:
        # Once per address and reason: a stranger who tries for ever must not fill the log.
        subject = (refusal.peer.address, refusal.reason)
        if subject not in self._said and len(self._said) < _MAX_LINES:
            self._said.add(subject)
            self._say(str(refusal))


class _Connection(asyncio.Protocol):
    """One client. Its first byte tells whether it is a c10d client or an agent that enrols."""

    def __init__(self, server: StoreServer, id_: int) -> None:
        self.id = id_
        self._server = server
        self._is_admitted = False
        self._is_writable = True
        self._early = bytearray()  # came before the connection was admitted
        self._session: c10d.ServerSession | StoreEnrolment | None = None
        self._transport: asyncio.Transport
        self._peer: Peer

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
        if self._transport.is_closing():
            return
        if self._session is None:
            self._early += data
            self._begin()
        else:
            self._feed(data)

    def pause_writing(self) -> None:
        self._is_writable = False
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_writable = True
        self._serve()

    # The server calls these

    def admit(self) -> None:
        self._is_admitted = True
        if self._early and self._session is None:
            self._begin()

    def send(self, reply: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(reply)

    def abort(self) -> None:
        self._transport.abort()

    # Within

    def _begin(self) -> None:
        if self._early[:1] == MAGIC[:1]:
            self._session = self._server.begin_enrolment(self._peer)
        elif self._is_admitted:
            self._session = c10d.ServerSession()
        else:  # nothing is parsed for a stranger
            self._transport.pause_reading()
            return
        early = bytes(self._early)
        self._early.clear()
        self._feed(early)

    def _feed(self, data: bytes) -> None:
        if isinstance(self._session, StoreEnrolment):
            self._enrol(self._session, data)
        elif self._session is not None:
            self._session.receive(data)
            self._serve()

    def _serve(self) -> None:
        session = self._session
        assert isinstance(session, c10d.ServerSession)
        try:
            while self._is_writable and not self._transport.is_closing():
                request = session.next_request()
                if request is None:
                    self._transport.resume_reading()
                    return
                self._server.apply(self.id, request)
        except ProtocolError as error:
            self._server.broke_protocol(self._peer, error)
            self._transport.close()

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
