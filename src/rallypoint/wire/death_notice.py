"""The report of an agent's death by its guard to the coordinator (behaviour F2). Pure.

An end of file does not distinguish a dead agent from a broken connection. The guard can, and is the
last process of the node: when it reports, the workers are dead. It reports on a new connection and
shows a secret of the agent's newest connection, to which the agent has committed itself when it
attached. So no other process can report it, even with the job's token, and it counts once.
"""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest

import msgspec
from msgspec import Struct

SECRET_BYTES = 32

_LABEL = b"rallypoint agent died\0"


class DeathNotice(Struct, frozen=True, array_like=True):
    """All that a guard needs to report to the coordinator. Never printed: it has the token."""

    host: str
    """The address that the agent is connected to, as digits."""
    port: int
    run_id: str
    token: bytes | None
    incarnation: str
    generation: int
    secret: bytes

    def __repr__(self) -> str:
        """Never shows the token, nor the secret."""
        return f"DeathNotice({self.incarnation!r}, generation={self.generation})"


_decoder = msgspec.msgpack.Decoder(DeathNotice)


def commitment(secret: bytes) -> bytes:
    """A hash that the agent sends when it attaches; it gives nothing away."""
    return sha256(_LABEL + secret).digest()


def is_proven(secret: bytes, committed: bytes) -> bool:
    """Whether this is the secret that was committed to; none is to b""."""
    return compare_digest(commitment(secret), committed)


def encode(notice: DeathNotice) -> bytes:
    """For memory that the agent and its guard share."""
    return msgspec.msgpack.encode(notice)


def decode(data: bytes) -> DeathNotice:
    """Raises msgspec.DecodeError."""
    return _decoder.decode(data)
