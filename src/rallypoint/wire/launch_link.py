"""The messages between `rallypoint launch` and a host that it has reached. Pure.

They go by the pipes of an ssh client.

Each message is a frame: its length in four bytes, and msgpack. A login shell may write something
of its own first, so what a host says begins behind a mark. Both sides are the same version of
Rallypoint, which the host's first message tells. A host is told where an agent is to run, says
that it can, and is told to start one when it is known how many can.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

MARK = b"\n\x00rallypoint launch\x00\n"
MAX_FRAME_BYTES = 16 * 1024 * 1024
NOISE_BYTES = 64 * 1024
"""The most that a login shell may write before the mark."""
_LENGTH = 4


class Look(Struct, frozen=True, tag=True):
    """The first message: where an agent is to run, and the script, which is looked for.

    Empty: it is no file.
    """

    directory: str
    script: str


class Here(Struct, frozen=True, tag=True):
    """Comes first from the host: which version of Rallypoint it has."""

    version: str


class Hello(Struct, frozen=True, tag=True):
    """The host has what it was asked for.

    `address` is its own, by which ssh has reached it, empty if that is not known; on `port` nothing
    listens there.
    """

    address: str
    port: int


class AgentRefused(Struct, frozen=True, tag="Refused"):
    """An agent can't run there: why."""

    why: str


class Started(Struct, frozen=True, tag=True):
    """The agent runs. With a `log` it writes there, and the host says no more."""

    pid: int
    log: str = ""


class AgentOutput(Struct, frozen=True, tag="Output"):
    """A piece that the agent and its workers have written to stdout (1) or stderr (2)."""

    stream: int
    data: bytes


class AgentEnded(Struct, frozen=True, tag="Ended"):
    """The agent's exit code (minus the number of a signal), and its summary.

    The summary is empty if it has written none.
    """

    code: int
    summary: bytes


class Start(Struct, frozen=True, tag=True):
    """The command to run. `argv` are the words behind `rallypoint run`."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    token: str
    """The job's; empty: there is none."""
    node: str
    summary: str
    """Where the person wants it; empty: nowhere."""
    detached_as: str
    """The run id, if the agent runs on without this link; else empty."""
    silence_s: float
    """The link is broken after this time without a message."""

    def __repr__(self) -> str:
        """Never shows the token, nor the environment."""
        return f"Start({self.argv!r})"


class Deliver(Struct, frozen=True, tag=True):
    """Send the agent this signal."""

    signal: int


class Beat(Struct, frozen=True, tag=True):
    """A message that only shows that this side is there."""


FromHost = Here | Hello | AgentRefused | Started | AgentOutput | AgentEnded
ToHost = Look | Start | Deliver | Beat
_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M")


def frame(message: FromHost | ToHost) -> bytes:
    """Return the bytes of one message."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(_LENGTH, "big") + payload


class LinkReader(Generic[M]):
    """Puts messages together from bytes as they come."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M], mark: bytes) -> None:
        """With a `mark`, all before it is `noise`."""
        self._decoder, self._mark, self._held = decoder, mark, b""
        self.noise = b""

    def feed(self, data: bytes) -> list[M]:
        """Return the messages that `data` completes. Raises ValueError for what is none."""
        self._held += data
        if self._mark:
            before, mark, behind = self._held.partition(self._mark)
            if not mark:
                if len(self._held) > NOISE_BYTES:
                    raise ValueError("the login shell writes too much")
                return []
            self.noise, self._held, self._mark = before, behind, b""
        found = []
        while len(self._held) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._held[:_LENGTH], "big")
            if end > MAX_FRAME_BYTES:
                raise ValueError("a message is too long")
            if len(self._held) < end:
                break
            try:
                found.append(self._decoder.decode(self._held[_LENGTH:end]))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ValueError(f"a message does not parse: {error}") from None
            self._held = self._held[end:]
        return found

    @property
    def rest(self) -> bytes:
        """Return the bytes that have come and are no message.

        Of a program that is none of Rallypoint's.
        """
        return self._held if self._mark else b""


def reader_of_host() -> LinkReader[FromHost]:
    """For what a host says."""
    return LinkReader(msgspec.msgpack.Decoder(FromHost), MARK)


def reader_of_launcher() -> LinkReader[ToHost]:
    """For what a host is told."""
    return LinkReader(msgspec.msgpack.Decoder(ToHost), b"")
