"""One connection from an agent to the coordinator: dial, handshake, frames, messages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence

from rallypoint.core.messages import Refused, ToAgent, ToCoordinator
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
from rallypoint.wire.codec import MAX_MESSAGE_BYTES, decode_to_agent, encode
from rallypoint.wire.frames import FrameDecoder, FrameEncoder
from rallypoint.wire.handshake import NONCE_BYTES, ClientHandshake

DIAL_TIMEOUT_S = 5.0
"""For each address."""


class ClientConnection(asyncio.Protocol):
    """Use `dial`. Messages that arrive before `on_message` is set are kept for it."""

    def __init__(self, run_id: str, token: bytes | None, *, knocks: bool = False) -> None:
        self._handshake: ClientHandshake | None = ClientHandshake(
            run_id, token, os.urandom(NONCE_BYTES)
        )
        self._knocks = knocks
        self._transport: asyncio.Transport | None = None
        self._encoder: FrameEncoder | None = None
        self._decoder: FrameDecoder | None = None
        self._early: list[ToAgent] = []
        self._on_message: Callable[[ToAgent], None] | None = None
        loop = asyncio.get_running_loop()
        self.established: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        """Set when the connection has ended, with the reason."""
        self.server_id = b""
        self.local_host = ""
        self.peer = Address("", 0)
        """What was reached, in digits."""

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

    def data_received(self, data: bytes) -> None:
        try:
            if self._handshake is not None:
                data = self._shake_hands(self._handshake, data)
            if self._decoder is not None and data:
                for payload in self._decoder.feed(data):
                    self._deliver(decode_to_agent(payload))
        except MessageError as error:
            # On a new connection the coordinator would say the same again.
            text = f"the coordinator sent an invalid message: {error}"
            self._deliver(Refused(text, is_fault=True))
            self._end(text)
        except (AccessError, ProtocolError) as error:
            if not self.established.done():
                self.established.set_exception(error)
            self._end(str(error))

    def _shake_hands(self, handshake: ClientHandshake, data: bytes) -> bytes:
        assert self._transport is not None
        answer = handshake.feed(data)
        if self._knocks and answer:
            self.established.set_result(None)
            self.abort()
            return b""
        self._transport.write(answer)
        result = handshake.result
        if result is None:
            return b""
        keys = result.keys
        self._handshake = None
        self._encoder = FrameEncoder(keys.client_to_server if keys else None)
        self._decoder = FrameDecoder(keys.server_to_client if keys else None, MAX_MESSAGE_BYTES)
        self.server_id = result.server_id
        if not self.established.done():
            self.established.set_result(None)
        return result.leftover

    def _deliver(self, message: ToAgent) -> None:
        if self._on_message is None:
            self._early.append(message)
        else:
            self._on_message(message)

    def listen(self, on_message: Callable[[ToAgent], None]) -> None:
        """From now on messages go there, first those that have arrived already."""
        self._on_message = on_message
        early, self._early = self._early, []
        for message in early:
            on_message(message)

    def send(self, message: ToCoordinator) -> None:
        """Queue one message. Never blocks; nothing after the connection has ended."""
        if self._transport is not None and self._encoder is not None:
            self._transport.write(self._encoder.encode(encode(message)))

    def close(self) -> None:
        """Send what is queued, then close. Safe to call twice."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str = "this node closed the connection") -> None:
        """Close now, for this reason. Safe to call twice."""
        self._end(why)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.established.done():
            assert self._handshake is not None
            self.established.set_exception(self._handshake.unfinished())
        reason = _reason(exc) if isinstance(exc, OSError) else str(exc)
        self._end(reason if exc else "the coordinator closed the connection")
        self._transport = None

    def _end(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)
        if self._transport is not None:
            self._transport.abort()


Dial = Callable[[], Awaitable[ClientConnection]]
"""One attempt to reach a coordinator. Raises as `dial` does."""


async def dial(
    addresses: Sequence[Address],
    run_id: str,
    token: bytes | None,
    timeout_s: float = DIAL_TIMEOUT_S,
    *,
    knocks: bool = False,
) -> ClientConnection:
    """Reach the coordinator at the first of `addresses` where one answers, and shake hands.

    Safe to retry. Raises RendezvousConnectionError when nothing answers (RendezvousRefusedError
    when a host does, but nothing listens there; SilentPeerError when something listens),
    AccessError or ProtocolError when what answers refuses this node.
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
    """Find out without a token whether a coordinator listens there: returns when it asks for one,
    and sends none. Raises as `dial` does, AccessError when the coordinator runs with --insecure.
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
