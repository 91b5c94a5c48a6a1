"""Notices for a guard, which it carries out when its agent has died and no worker lives any more.

It reports the death to the coordinator (behaviour F2), or, if the agent led the job itself,
releases the job's register (behaviour L6). If that coordinator may have died with the agent, the
guard tells the next one (behaviour L4). Pure.

An end of file does not distinguish a dead agent from a broken connection. The guard can, and is the
last process of the node: when it reports, the workers are dead. It reports on a new connection and
shows a secret of the agent's newest connection, to which the agent has committed itself when it
attached. So no other process can report it, even with the job's token, and it counts once.

A coordinator that takes over has no such commitment: the record has none, since it does not grow
with the job. It believes who has the job's token, and for its own wait alone: that nothing runs in
one place of the newest world. Who has the token could say as much by attaching with that place and
with a lease that is over. What is told stays true: no other agent ever has that place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rallypoint.config import RegisterConfig
from rallypoint.core.model import DeadPlace, Epoch
from rallypoint.hashes import compare_digest, sha256

SECRET_BYTES = 32
LONGEST = 4080
"""The most bytes of an encoded notice: a memory page of 4096 bytes without the two words before the
notice."""

_LABEL = b"rallypoint agent died\0"


class RegisterAt(Struct, frozen=True, array_like=True):
    """The place of a job's register, the store that says who leads the job, as a part of a notice.

    It is the engine, the endpoint, and settings. The endpoint and the values of settings are bytes,
    since a path may hold any. Paths are absolute, as a guard's working directory is another one.
    """

    engine: str
    where: bytes
    settings: tuple[tuple[str, bytes], ...] = ()

    def __repr__(self) -> str:
        """Return a text without the values of settings, which may be passwords."""
        return f"RegisterAt({self.engine!r}, {self.where!r})"

    @classmethod
    def of(cls, register: RegisterConfig) -> Self:
        """Return the place of the register that has this configuration."""
        settings = tuple((key, _bytes(text)) for key, text in register.settings)
        return cls(register.engine, _bytes(register.where), settings)

    def config(self) -> RegisterConfig:
        """Return the configuration of the register, with the texts decoded."""
        settings = tuple((key, _text(data)) for key, data in self.settings)
        return RegisterConfig(self.engine, _text(self.where), settings)


class DeathNotice(Struct, frozen=True, array_like=True, tag=0):
    """The facts with which a guard reports its agent's death to the coordinator.

    It has the token, which `repr` leaves out.
    """

    host: str
    """The numeric address of the coordinator, to which the agent is connected."""
    port: int
    run_id: str
    token: bytes | None
    incarnation: str
    generation: int
    secret: bytes
    place: DeadPlace | None = None
    """The agent's place, its round and group rank, in the newest round that it knows; None: it has
    none."""
    may_follow: bool = False
    """Whether another coordinator may take over the job, found by the register, or at the same
    address."""
    register: RegisterAt | None = None
    """The register of the job; None: there is none, or its place is too long for a notice."""

    def __repr__(self) -> str:
        """Return a text without the token and the secret."""
        return f"DeathNotice({self.incarnation!r}, generation={self.generation})"


class ReleaseNotice(Struct, frozen=True, array_like=True, tag=1):
    """The facts with which a guard marks the record of a job whose leader, the guard's agent, died.

    It has the token, which `repr` leaves out.
    """

    register: RegisterAt
    run_id: str
    token: bytes | None
    epoch: Epoch
    """The number of the agent's leadership: the record is left alone if another leader has written
    it."""
    incarnation: str = ""
    place: DeadPlace | None = None
    """The agent's place, as in `DeathNotice`. The guard reports it to the next leader. None: no
    report."""

    def __repr__(self) -> str:
        """Return a text without the token and passwords."""
        return f"ReleaseNotice({self.register!r}, {self.run_id!r}, epoch={self.epoch})"


Notice = DeathNotice | ReleaseNotice


class ByRegister(NamedTuple):
    """The functions with which a guard uses a job's register, the store of who leads the job.

    Each is run in a process of its own that may be killed, since a register may hang.
    """

    release: Callable[[ReleaseNotice, float], None]
    """The function that marks the job's record as that of a dead leader. It tries again for this
    many seconds while the register can't be reached."""
    who_hears: Callable[[Notice, float], Callable[[], tuple[str, ...] | None]]
    """The function that opens the register of a notice, and returns another function. That one
    reads the record and returns the addresses of the leader to notify of the death. Empty: no
    leader is known now; None: nobody needs to hear of it. The number is half the time limit of a
    call of the register, in seconds."""


_decoder: msgspec.msgpack.Decoder[Notice] = msgspec.msgpack.Decoder(Notice)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def commitment(secret: bytes) -> bytes:
    """Return the hash of an agent's secret; the agent sends the hash when it attaches.

    The hash does not reveal the secret.
    """
    return sha256(_LABEL + secret)


def is_proven(secret: bytes, committed: bytes) -> bool:
    """Return whether `committed` is the hash of this secret.

    False for b"", from an agent without a secret.
    """
    return compare_digest(commitment(secret), committed)


def encode(notice: Notice) -> bytes:
    """Encode the notice for the memory that the agent and its guard share.

    Its length is not limited here.
    """
    return msgspec.msgpack.encode(notice)


def with_register(notice: DeathNotice, register: RegisterConfig | None) -> DeathNotice:
    """Return the notice with the register by which agents find the leader of their job.

    If that is too long for the shared memory, or there is no register, return the notice as it is.
    The guard then does not find a next leader elsewhere.
    """
    if register is None:
        return notice
    longer = replace(notice, register=RegisterAt.of(register))
    return longer if len(encode(longer)) <= LONGEST else notice


def encode_release(
    register: RegisterConfig,
    run_id: str,
    token: bytes | None,
    epoch: Epoch,
    incarnation: str = "",
    place: DeadPlace | None = None,
) -> bytes:
    """Encode the notice of an agent that leads a job by this register.

    One longer than `LONGEST` does not reach the guard: then other nodes wait until the leader's
    time has run out.
    """
    there = RegisterAt.of(register)
    return encode(ReleaseNotice(there, run_id, token, epoch, incarnation, place))


def decode(data: bytes) -> Notice:
    """Decode a notice. Raises msgspec.DecodeError."""
    return _decoder.decode(data)
