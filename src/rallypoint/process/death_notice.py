"""How a guard tells the coordinator that its agent died: one blocking connection, briefly."""

from __future__ import annotations

import os
import socket
import time

from rallypoint.core import messages as m
from rallypoint.errors import AccessError, ProtocolError
from rallypoint.wire import death_notice
from rallypoint.wire.codec import encode
from rallypoint.wire.frames import FrameEncoder
from rallypoint.wire.handshake import NONCE_BYTES, ClientHandshake, Established

TIME_LIMIT_S = 3.0
"""In all: without this word the coordinator waits for the connection's grace, no longer."""
_RECEIVE_BYTES = 4096


def tell(data: bytes, limit_s: float = TIME_LIMIT_S) -> bool:
    """Say what stands in this notice; whether that got through. Raises nothing that a coordinator,
    or none, is the reason of."""
    notice = death_notice.decode(data)
    ends_at = time.monotonic() + limit_s
    try:
        with socket.create_connection((notice.host, notice.port), limit_s) as peer:
            established = _shake_hands(peer, notice, ends_at)
            keys = established.keys
            frames = FrameEncoder(keys.client_to_server if keys else None)
            word = m.AgentDied(notice.incarnation, notice.generation, notice.secret)
            peer.sendall(frames.encode(encode(word)))
            peer.shutdown(socket.SHUT_WR)
            while _receive(peer, ends_at):
                pass  # The end of the connection says that the word was read.
    except (OSError, AccessError, ProtocolError):
        return False
    return True


def _shake_hands(
    peer: socket.socket, notice: death_notice.DeathNotice, ends_at: float
) -> Established:
    handshake = ClientHandshake(notice.run_id, notice.token, os.urandom(NONCE_BYTES))
    peer.sendall(handshake.hello())
    while handshake.result is None:
        data = _receive(peer, ends_at)
        if not data:
            raise handshake.unfinished()
        peer.sendall(handshake.feed(data))
    return handshake.result


def _receive(peer: socket.socket, ends_at: float) -> bytes:
    peer.settimeout(max(ends_at - time.monotonic(), 0.001))
    return peer.recv(_RECEIVE_BYTES)
