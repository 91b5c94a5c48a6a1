"""Both ends of one connection between an agent and the coordinator.

Dialling, handshake, frames and messages; the meaning of messages is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from msgspec import json

from rallypoint.core.messages import Answer, DrainAnswer, Refused, ToAgent, ToCoordinator
from rallypoint.core.watch.questions import PIECE_BYTES
from rallypoint.errors import (
    AccessError,
    ForeignPeerError,
    MessageError,
    PeerHungUpError,
    ProtocolError,
    RendezvousConnectionError,
    RendezvousRefusedError,
    SilentPeerError,
)
from rallypoint.wire.address import Address
from rallypoint.wire.codec import MAX_MESSAGE_BYTES, decode_to_agent, decode_to_coordinator, encode
from rallypoint.wire.frames import FrameDecoder, FrameEncoder
from rallypoint.wire.handshake import NONCE_BYTES, ClientHandshake, Established, ServerHandshake

DIAL_TIMEOUT_S = 5.0
"""The default time limit of `dial` for each address, in seconds."""
FIRST_MESSAGE_MAX_BYTES = 16 * 1024
"""The longest message in bytes that a coordinator takes from a peer, until
`ServerConnection.admit`."""
BUFFER_BYTES = 8 * 1024
"""The most bytes that are received at once."""
UNSENT_MAX_BYTES = 1024 * 1024
"""The most unsent bytes of a coordinator's connection. A peer that reads more slowly is
disconnected, and gets the current state when it connects again."""


class FramedConnection(asyncio.BufferedProtocol):
    """The common part of both ends: messages in frames, after the handshake.

    A small message costs little besides its system calls. So all answers to received bytes are sent
    together; and bytes are received into a small buffer: without one asyncio allocates 256 KiB each
    time, which costs more than all the rest.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._encoder: FrameEncoder | None = None
        self._decoder: FrameDecoder | None = None
        self._held: list[bytes] | None = None
        """The answers to the bytes that are being processed; None: none are."""

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(BUFFER_BYTES)  # None is kept between messages.
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data, self._buffer = bytes(self._buffer[:nbytes]), bytearray()
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and send the answers."""
        self._held = []
        try:
            self._handle(data)
        finally:
            self._flush()

    def _handle(self, data: bytes) -> None:
        raise NotImplementedError

    def _flush(self) -> None:
        held, self._held = self._held, None
        if held and self._transport is not None:
            self._transport.write(b"".join(held))

    def _write(self, data: bytes) -> None:
        if self._held is not None:
            self._held.append(data)
        elif self._transport is not None:
            self._transport.write(data)

    def _payloads(self, data: bytes) -> list[bytes]:
        return [] if self._decoder is None or not data else self._decoder.feed(data)

    def send(self, message: ToAgent | ToCoordinator) -> None:
        """Send one message, without waiting for it to leave.

        Does nothing before the handshake is done, or after `close`.
        """
        if self._transport is not None and self._encoder is not None:
            self._write(self._encoder.encode(encode(message)))

    def close(self) -> None:
        """Send what is queued, then close the connection. May be called twice."""
        self._encoder = None
        self._flush()
        if self._transport is not None:
            self._transport.close()


class ConnectionObserver(Protocol):
    """The object to which a coordinator's connections report.

    All calls are synchronous and short.
    """

    def new_handshake(self) -> ServerHandshake: ...

    def established(self, connection: ServerConnection, established: Established) -> None: ...

    def received(self, connection: ServerConnection, message: ToCoordinator) -> None: ...

    def closed(self, connection: ServerConnection) -> None: ...

    def failed(self, connection: ServerConnection, error: Exception) -> None:
        """Handle an unexpected exception over the connection's data or its end. Must not raise."""

    def misspoken(self, connection: ServerConnection, error: MessageError) -> None:
        """Handle a message that is not valid or not permitted.

        The connection is closed after it.
        """

    def refused(self, connection: ServerConnection, why: str) -> None:
        """Handle a peer that broke the protocol, failed the handshake or does not read.

        The connection is closed after it.
        """


class ServerConnection(FramedConnection):
    """The coordinator's end of a connection, with synchronous handlers, no task and no timer."""

    def __init__(self, observer: ConnectionObserver, number: int, peer: str) -> None:
        super().__init__()
        self._observer = observer
        self.number, self.peer = number, peer
        self._is_aborted = False
        self._handshake: ServerHandshake | None = observer.new_handshake()
        self.version = 0  # of the protocol that both sides use
        self.reads_drain_answers = False
        """Whether the peer is a person's command that has sent `DrainNode`, and so reads
        `DrainAnswer` instead of `Answer`."""
        self.ended_by_peer = False
        """Whether the peer has closed its sending side, as the kernel does when a process ends. An
        agent's session then lasts `reconnect_grace_s`, and after a broken connection longer."""
        self.owner: object | None = None
        """The owner of this connection's messages. After the handshake it is the peer's run id,
        after the first message usually the job or another handler; None before the handshake."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_MAX_BYTES)
        if self._is_aborted:
            transport.abort()

    def _handle(self, data: bytes) -> None:
        try:
            if self._handshake is not None:
                data = self._shake_hands(self._handshake, data)
            for payload in self._payloads(data):
                self._observer.received(self, decode_to_coordinator(payload))
        except MessageError as error:
            self._observer.misspoken(self, error)
            self.close()
        except (AccessError, ProtocolError) as error:
            self._observer.refused(self, str(error))
            self.close()
        except Exception as error:
            self._observer.failed(self, error)
            self.close()

    def _shake_hands(self, handshake: ServerHandshake, data: bytes) -> bytes:
        """Advance the handshake, and return the bytes that follow it; none while it is not done."""
        try:
            self._write(handshake.feed(data))
        except (AccessError, ProtocolError):
            self._write(handshake.last_words)
            raise
        if (established := handshake.result) is None:
            return b""
        keys, self.version = established.keys, established.version
        self._handshake = None
        self._encoder = FrameEncoder(keys.server_to_client if keys else None)
        key = keys.client_to_server if keys else None
        self._decoder = FrameDecoder(key, FIRST_MESSAGE_MAX_BYTES)
        self._observer.established(self, established)
        return established.leftover

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed or closing, so that data sent on it would be lost.

        Also true before it is connected.
        """
        return self._transport is None or self._transport.is_closing()

    def admit(self) -> None:
        """Allow the peer messages of full length, since its first message has come."""
        if self._decoder is not None:
            self._decoder.max_frame_bytes = MAX_MESSAGE_BYTES

    def eof_received(self) -> None:
        self.ended_by_peer = True

    def pause_writing(self) -> None:
        self._observer.refused(self, "it does not read")
        self.abort()

    def abort(self) -> None:
        """Close at once, without sending what is queued.

        Safe to call twice, and before it is connected.
        """
        self._encoder, self._is_aborted = None, True
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        try:
            self._observer.closed(self)
        except Exception as error:
            self._observer.failed(self, error)


class ClientConnection(FramedConnection):
    """The end of a connection at an agent, or at a person's command; made by `dial`.

    Messages that arrive before `listen` is called are kept for it.
    """

    def __init__(self, run_id: str, token: bytes | None, *, knocks: bool = False) -> None:
        super().__init__()
        self._handshake: ClientHandshake | None = ClientHandshake(
            run_id, token, os.urandom(NONCE_BYTES)
        )
        self._knocks = knocks
        self._early: list[ToAgent] = []
        self._on_message: Callable[[ToAgent], None] | None = None
        loop = asyncio.get_running_loop()
        self.established: asyncio.Future[Established | None] = loop.create_future()
        """Done when the handshake has ended, with an exception if it failed. The result is None
        with `knocks`, for which it is enough that the coordinator answers."""
        self.lost: asyncio.Future[str] = loop.create_future()
        """Done when the connection has ended, with the reason as its result."""
        self.was_cut = False
        """Whether the coordinator or the network has ended the connection, not this node."""
        self.local_host = ""
        self.peer = Address("", 0)
        """The numeric address that was reached; empty before."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        assert self._handshake is not None
        self._transport = transport
        if (peer := transport.get_extra_info("peername")) is None:
            return  # It was reset already, which is reported next.
        self.local_host = str(transport.get_extra_info("sockname")[0])
        host, port, *_ = peer
        self.peer = Address(str(host), port)
        transport.write(self._handshake.hello())

    def _handle(self, data: bytes) -> None:
        try:
            if self._handshake is not None:
                data = self._shake_hands(self._handshake, data)
            for payload in self._payloads(data):
                self._deliver(decode_to_agent(payload))
        except MessageError as error:
            # On a new connection the coordinator would say the same again.
            text = f"the coordinator sent an invalid message: {error}"
            self._deliver(Refused(text, is_fault=True))
            self._end(text)
        except (AccessError, ProtocolError) as error:
            self._fail(error)
            self._end(str(error))
        except OSError as error:
            # Raised again, it would pass for the end of the connection, after which an agent
            # reconnects, gets the same message, and so on without end.
            why = "a message could not be processed"
            told = {"message": why, "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)
            self._end(why)

    def _shake_hands(self, handshake: ClientHandshake, data: bytes) -> bytes:
        answer = handshake.feed(data)
        if self._knocks and answer:
            self.established.set_result(None)
            self.abort()
            return b""
        self._write(answer)
        result = handshake.result
        if result is None:
            return b""
        keys = result.keys
        self._handshake = None
        self._encoder = FrameEncoder(keys.client_to_server if keys else None)
        self._decoder = FrameDecoder(keys.server_to_client if keys else None, MAX_MESSAGE_BYTES)
        if not self.established.done():
            self.established.set_result(result)
        return result.leftover

    @property
    def server_id(self) -> bytes:
        """The unique id of the coordinator, once the connection is established.

        Empty after a knock.
        """
        return found.server_id if (found := self.established.result()) else b""

    @property
    def version(self) -> int:
        """The protocol version that both sides use, once the connection is established.

        0 after a knock.
        """
        return found.version if (found := self.established.result()) else 0

    def _deliver(self, message: ToAgent) -> None:
        if self._on_message is None:
            self._early.append(message)
        else:
            self._on_message(message)

    def listen(self, on_message: Callable[[ToAgent], None]) -> None:
        """Pass messages to `on_message` from now on, and first those that have arrived already."""
        self._on_message = on_message
        early, self._early = self._early, []
        for message in early:
            on_message(message)

    def abort(self, why: str = "this node closed the connection") -> None:
        """Close the connection at once, for this reason. May be called twice."""
        self._end(why)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.established.done():
            assert self._handshake is not None
            self._fail(self._handshake.unfinished())
        self.was_cut = not self.lost.done()
        reason = _reason(exc) if isinstance(exc, OSError) else str(exc)
        self._end(reason if exc else "the coordinator closed the connection")
        self._transport = None

    def _fail(self, error: AccessError | ProtocolError) -> None:
        if not self.established.done():
            self.established.set_exception(error)
            self.established.exception()  # Who dials may have run out of time just before.

    def _end(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)
        if self._transport is not None:
            self._transport.abort()


Dial = Callable[[], Awaitable[ClientConnection]]
"""Makes one attempt to reach a coordinator, and returns the connection. Raises as `dial` does."""


async def dial(
    addresses: Sequence[Address],
    run_id: str,
    token: bytes | None,
    timeout_s: float = DIAL_TIMEOUT_S,
    *,
    knocks: bool = False,
) -> ClientConnection:
    """Connect to the first of `addresses` with which the handshake succeeds. Safe to retry.

    `timeout_s` is for each address. With `knocks` the connection ends when the coordinator has
    asked for the token, before anything is proven.

    Raises AccessError when an address refuses this node, ProtocolError when it is another program
    or another version, and SilentPeerError when it accepts connections and sends nothing. The first
    of these errors is raised. If there is none, RendezvousRefusedError means that a host answers
    and no program listens there, and RendezvousConnectionError that no address can be reached.
    """
    failure: OSError | None = None
    refusal: AccessError | ProtocolError | SilentPeerError | None = None
    for address in addresses:
        try:
            return await _dial_one(address, run_id, token, timeout_s, knocks)
        except OSError as error:  # TimeoutError is one
            failure = failure if isinstance(failure, ConnectionRefusedError) else error
        except ForeignPeerError as error:
            refusal = refusal or type(error)(f"{address}: {error}")
        except (AccessError, ProtocolError, SilentPeerError) as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    what = "it did not answer in time" if isinstance(failure, TimeoutError) else _reason(failure)
    where = ", ".join(map(str, addresses))
    is_refused = isinstance(failure, ConnectionRefusedError)
    kind = RendezvousRefusedError if is_refused else RendezvousConnectionError
    raise kind(f"can't reach the coordinator at {where}: {what}") from failure


async def knock(addresses: Sequence[Address], run_id: str) -> None:
    """Find out without a token whether a coordinator listens at one of these addresses.

    Returns when it asks for a token; none is sent. Raises as `dial` does, and AccessError when the
    coordinator runs with --insecure.
    """
    await dial(addresses, run_id, os.urandom(NONCE_BYTES), knocks=True)


async def _dial_one(
    address: Address, run_id: str, token: bytes | None, timeout_s: float, knocks: bool
) -> ClientConnection:
    loop = asyncio.get_running_loop()
    connection: ClientConnection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: ClientConnection(run_id, token, knocks=knocks), address.host, address.port
            )
            await connection.established
            return connection
    except ConnectionResetError as error:
        raise PeerHungUpError from error
    except BaseException as error:
        if connection is not None:
            connection.established.cancel()
            connection.abort()
            if isinstance(error, TimeoutError):
                text = f"{address}: it accepts the connection and sends nothing"
                raise SilentPeerError(text) from error
        raise


def _reason(error: OSError | None) -> str:
    return os.strerror(error.errno).lower() if error is not None and error.errno else str(error)


def answer(connection: ServerConnection, value: object, *, is_last: bool) -> None:
    """Answer a person's command with this value as JSON, in pieces that fit into frames.

    `is_last`: no other value follows for the same question.
    """
    answer_all([connection], value, is_last=is_last)


def answer_all(connections: Iterable[ServerConnection], value: object, *, is_last: bool) -> None:
    """Send the value as `answer` does to several persons' commands; it is encoded only once."""
    data = json.encode(value)
    pieces = []
    for start in range(0, len(data), PIECE_BYTES):
        is_whole = start + PIECE_BYTES >= len(data)
        piece = data[start : start + PIECE_BYTES]
        pieces.append(Answer(piece, is_whole, is_whole and is_last))
    for connection in connections:
        for each in pieces:
            connection.send(each)


def tell_of_drain(connection: ServerConnection, said: DrainAnswer) -> None:
    """Send a person's command the state of the drain that it asked for.

    A command that sent `DrainNode` gets the message `said`, others get the same as JSON.
    """
    if connection.reads_drain_answers:
        connection.send(said)
    else:
        answer(connection, said, is_last=said.done)


def refuse_answer(
    connection: ServerConnection, text: str, *, is_final: bool = True, recovers: bool = False
) -> None:
    """Answer a person's command with a refusal in one sentence, and disconnect.

    `is_final` and `recovers` as in `Answer`.
    """
    connection.send(Answer(b"", True, True, text, is_final, recovers))
    connection.close()
