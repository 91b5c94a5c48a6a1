"""One client of a store's server, whose requests are served in order and at once.

No client may delay others or use much memory: a client that does not read its replies is not read
from, and a client that stops in the middle of a request is closed after a while. From a client that
is not admitted the server reads no more than an enrolment takes.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, cast

from rallypoint.errors import ProtocolError
from rallypoint.store.access import Peer
from rallypoint.wire.c10d_server import ServerSession
from rallypoint.wire.enrolment import (
    MAGIC,
    PREAMBLE_MAX_BYTES,
    EnrolmentRefusedError,
    StoreEnrolment,
)

if TYPE_CHECKING:
    from rallypoint.store.server import StoreServer

MAX_UNREAD_BYTES = 1 << 20
"""The most bytes of replies that a client may leave unread. Beyond it the client is not served
until half of this limit is left."""
_FLUSH_BYTES = 1 << 16
_READ_BYTES = 1 << 18


class _Buffers(NamedTuple):
    """The buffers that all connections of a server use for reading, one after the other."""

    read: memoryview
    stranger: memoryview
    """The buffer for connections that have not been admitted."""


class StoreServerConnection(asyncio.Protocol):
    """One client. Its first byte shows whether it is a c10d client or an agent that enrols."""

    __slots__ = (
        "_buffers",
        "_early",
        "_is_admitted",
        "_is_between",
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

    def __init__(self, server: StoreServer, id_: int, buffers: _Buffers) -> None:
        self.id = id_
        self._server, self._buffers = server, buffers
        self._is_admitted = False
        self._is_writable = self._is_reading = True
        self._is_expected = False  # whether more must come before long
        self._is_between = False  # requests: all that came has been served
        self._early = b""  # came before the connection was admitted
        self._session: ServerSession | StoreEnrolment | None = None

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
        if not self._is_admitted:
            self._transport.set_protocol(_Stranger(self, self._buffers.stranger))

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.left(self.id)

    def data_received(self, data: bytes) -> None:
        if self._is_between:
            answer, data = self._server.serve_fast(self.id, data)
            if answer:
                self._transport.write(answer)
            if not data:
                return
            self._is_between = False
        if type(self._session) is ServerSession:
            self._session.receive(data)
            self._serve(self._session)
        elif not self._transport.is_closing():
            self._receive_early(data)

    def pause_writing(self) -> None:
        self._is_writable = self._is_between = False
        self._read(False)

    def resume_writing(self) -> None:
        self._is_writable = True
        if isinstance(self._session, ServerSession) and not self._transport.is_closing():
            self._serve(self._session)

    # The server calls these

    def admit(self) -> None:
        self._is_admitted = self._is_expected = True
        self._server.expect(self.id)
        if self._session is not None or self._transport.get_protocol() is self:
            return
        self._read(False)  # uvloop takes another protocol only while it does not read
        self._transport.set_protocol(self)
        self._read(True)
        if self._early:
            self._receive_early(b"")

    def send(self, reply: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(reply)

    def abort(self) -> None:
        self._transport.abort()

    def drop_silent(self, after_s: float) -> None:
        if isinstance(self._session, ServerSession) and self._session.is_validated:
            said = "the rest of a request did not come"
        else:
            said = "it sent neither a c10d request nor an enrolment"
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
            self._session = ServerSession()
            self.data_received(self._early)
        else:  # nothing is parsed for a stranger
            self._read(False)
            return
        self._early = b""

    def _serve(self, session: ServerSession) -> None:
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
            # This end has stopped reading, so the client can't be late.
            self._is_expected = False
            self._server.unexpect(own)

    def _note_partial(self, session: ServerSession) -> None:
        if not self._is_reading:
            self._read(True)
        if session.is_partial:
            if session.is_validated:  # saying hello has one deadline, however slowly it comes
                self._is_expected = True
                self._server.expect(self.id)
            return
        self._is_between = True
        if self._is_expected:
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


class _Stranger(asyncio.BufferedProtocol):
    """A connection that has not been admitted, which is read in small pieces.

    It uses the small `buffer` of all such connections, because a loop reads 256 KiB at once. Unread
    data stays in the kernel, which has its own limit.
    """

    def __init__(self, connection: StoreServerConnection, buffer: memoryview) -> None:
        self._connection, self._buffer = connection, buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.data_received(bytes(self._buffer[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)


class BufferedConnection(StoreServerConnection, asyncio.BufferedProtocol):
    """A client's connection that reads into a shared buffer, not into a new one for each read."""

    __slots__ = ()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffers.read

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffers.read[:nbytes]))


class ConnectionMaker:
    """A callable that makes the connections of one server, as asyncio's protocol factory."""

    def __init__(self, server: StoreServer, loop: asyncio.AbstractEventLoop) -> None:
        # asyncio makes a new buffer of 256 KiB for each read, unless it is given one.
        is_buffered = isinstance(loop, asyncio.SelectorEventLoop)
        self._type = BufferedConnection if is_buffered else StoreServerConnection
        self._server, self._ids = server, count(1)
        self._buffers = _Buffers(
            read=memoryview(bytearray(_READ_BYTES if is_buffered else 0)),
            stranger=memoryview(bytearray(PREAMBLE_MAX_BYTES)),
        )

    def __call__(self) -> StoreServerConnection:
        return self._type(self._server, next(self._ids), self._buffers)
