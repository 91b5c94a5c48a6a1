"""A client of the round store that can send what torch's would not, and a store on loopback."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from rallypoint.store.access import Peer, PeerReach
from rallypoint.store.peer_owner import SocketName
from rallypoint.wire.c10d_fields import VALIDATE_MAGIC

KEY = b"r" * 32
LIMIT_S = 60.0
VALIDATE = b"\x00" + struct.pack("<I", VALIDATE_MAGIC)
PING = b"\x0d\x01\x02\x03\x04"


def make_listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
    listener.setblocking(False)
    return listener


async def in_thread(function: Callable[[], object]) -> None:
    """Blocking clients run beside the loop, as workers do."""
    await asyncio.wait_for(asyncio.to_thread(function), LIMIT_S)


class RawClient:
    """A c10d client of a few lines, to send what torch's would not."""

    def __init__(self, port: int, *, timeout_s: float = LIMIT_S, own: str = "") -> None:
        """`own`: the address of this machine from which it connects."""
        source = (own, 0) if own else None
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s, source)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, request: bytes, size: int) -> bytes:
        self.socket.sendall(request)
        return self.read(size)

    def read(self, size: int) -> bytes:
        reply = b""
        while len(reply) < size:
            data = self.socket.recv(min(size - len(reply), 1 << 20))
            if not data:
                raise ConnectionResetError(f"closed after {len(reply)} of {size} bytes")
            reply += data
        return reply

    def is_closed(self) -> bool:
        """Waits for the end of the connection; False if there comes something else."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def i64(number: int) -> bytes:
    return struct.pack("<q", number)


def text(value: bytes) -> bytes:
    return u64(len(value)) + value


def set_key(key: bytes, value: bytes) -> bytes:
    return b"\x01" + text(key) + text(value)


def get_key(key: bytes) -> bytes:
    return b"\x03" + text(key)


def as_remote(peer_name: SocketName, own_name: SocketName, own_uid: int) -> Peer:
    """Looks at loopback addresses as if each were another machine's."""
    return Peer(peer_name[0], peer_name[1], PeerReach.REMOTE)


def connect_from(address: str, port: int) -> RawClient:
    """A client with an address of its own."""
    return RawClient(port, own=address)
