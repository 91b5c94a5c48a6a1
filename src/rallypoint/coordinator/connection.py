"""One accepted connection: handshake, frames, messages. What they mean is the coordinator's."""

from __future__ import annotations

import asyncio
from typing import Protocol

from rallypoint.core.messages import ToAgent, ToCoordinator
from rallypoint.errors import AccessError, MessageError, ProtocolError
from rallypoint.wire.codec import MAX_MESSAGE_BYTES, decode_to_coordinator, encode
from rallypoint.wire.frames import FrameDecoder, FrameEncoder
from rallypoint.wire.handshake import Established, ServerHandshake

FIRST_MESSAGE_MAX_BYTES = 16 * 1024
"""Until a peer has attached its messages are short."""
UNSENT_MAX_BYTES = 1024 * 1024
"""A peer that reads so slowly is cut off; it connects again and gets the current state."""


class ConnectionObserver(Protocol):
    """What a connection reports to. All calls are synchronous and short."""

    def new_handshake(self) -> ServerHandshake: ...

    def established(self, connection: Connection, established: Established) -> None: ...

    def received(self, connection: Connection, message: ToCoordinator) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def failed(self, connection: Connection, error: Exception) -> None:
        """Handling what came on it has raised an unexpected exception. Must not raise."""

    def misspoken(self, connection: Connection, error: MessageError) -> None:
        """A message does not decode, or has a value out of its limits."""

    def refused(self, connection: Connection, why: str) -> None:
        """The connection is closed for what came on it, or did not."""


class Connection(asyncio.Protocol):
    """No task and no timer of its own: every handler is synchronous."""

    def __init__(self, observer: ConnectionObserver, number: int, peer: str) -> None:
        self._observer = observer
        self.number, self.peer = number, peer
        self._is_aborted = False
        self._handshake: ServerHandshake | None = observer.new_handshake()
        self._transport: asyncio.Transport | None = None
        self._encoder: FrameEncoder | None = None
        self._decoder: FrameDecoder | None = None
        self.ended_by_peer = False
        """The peer said that it sends nothing more, as the kernel does for a process that ended."""
        self.owner: object | None = None
        """What handles the messages of this connection; set by the observer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_MAX_BYTES)
        if self._is_aborted:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            if self._handshake is not None:
                data = self._shake_hands(self._handshake, data)
            if self._decoder is not None and data:
                for payload in self._decoder.feed(data):
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
        """Returns what followed the handshake."""
        assert self._transport is not None
        try:
            self._transport.write(handshake.feed(data))
        except (AccessError, ProtocolError):
            self._transport.write(handshake.last_words)
            raise
        established = handshake.result
        if established is None:
            return b""
        keys = established.keys
        self._handshake = None
        self._encoder = FrameEncoder(keys.server_to_client if keys else None)
        key = keys.client_to_server if keys else None
        self._decoder = FrameDecoder(key, FIRST_MESSAGE_MAX_BYTES)
        self._observer.established(self, established)
        return established.leftover

    @property
    def is_closed(self) -> bool:
        """Nothing that is sent would arrive."""
        return self._transport is None or self._transport.is_closing()

    def admit(self) -> None:
        """The peer has attached: from now on its messages may have their full length."""
        if self._decoder is not None:
            self._decoder.max_frame_bytes = MAX_MESSAGE_BYTES

    def send(self, message: ToAgent) -> None:
        """Queue one message. Never blocks; nothing after `close`."""
        if self._transport is not None and self._encoder is not None:
            self._transport.write(self._encoder.encode(encode(message)))

    def eof_received(self) -> None:
        self.ended_by_peer = True

    def pause_writing(self) -> None:
        self._observer.refused(self, "it does not read")
        self.abort()

    def close(self) -> None:
        """Send what is queued, then close. Safe to call twice."""
        self._encoder = None
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once. Safe to call twice, and before the connection is made."""
        self._encoder, self._is_aborted = None, True
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        try:
            self._observer.closed(self)
        except Exception as error:
            self._observer.failed(self, error)
