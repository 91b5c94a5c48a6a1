"""The messages between `rallypoint launch` and a host that it has reached. Pure.

They go by the pipes of an ssh client. Each message is a frame: its length in four bytes, and
msgpack. A login shell may write something of its own first, so a host's messages begin after a
mark. Both sides are the same version of Rallypoint, which the host's first message checks.

A host gets the request for an agent, answers that it can run one, and is told to start it when the
number of usable hosts is known.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

MARK = b"\n\x00rallypoint launch\x00\n"
MAX_FRAME_BYTES = 16 * 1024 * 1024
NOISE_BYTES = 64 * 1024
"""The most bytes that a login shell may write before the mark."""
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
    """The host has what the agent needs.

    `address` is its own, by which ssh has reached it, empty if that is not known; on `port` nothing
    listens there.
    """

    address: str
    port: int


class AgentRefused(Struct, frozen=True, tag="Refused"):
    """An agent can't run on the host, for this reason."""

    why: str


class Started(Struct, frozen=True, tag=True):
    """The agent runs. With a `log` it writes there, and the host says no more."""

    pid: int
    log: str = ""


class AgentOutput(Struct, frozen=True, tag="Output"):
    """A piece of the agent's and its workers' output on stdout (1) or stderr (2)."""

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
    """The token of the job; empty: there is none."""
    node: str
    summary: str
    """The path of the summary; empty: none is wanted."""
    detached_as: str
    """The run id, if the agent continues without this link; else empty."""
    silence_s: float
    """The time in seconds without a message after which the link is broken."""

    def __repr__(self) -> str:
        """Return a text without the token and the environment."""
        return f"Start({self.argv!r})"


class Deliver(Struct, frozen=True, tag=True):
    """Send the agent this signal."""

    signal: int


class Beat(Struct, frozen=True, tag=True):
    """A message without content, which shows that this side is connected."""


FromHost = Here | Hello | AgentRefused | Started | AgentOutput | AgentEnded
ToHost = Look | Start | Deliver | Beat
_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M")


def frame(message: FromHost | ToHost) -> bytes:
    """Encode one message."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(_LENGTH, "big") + payload


class LinkReader(Generic[M]):
    """The parser of messages from received bytes."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M], mark: bytes) -> None:
        """Make a parser; with a `mark`, everything before it is `noise`."""
        self._decoder, self._mark, self._held = decoder, mark, b""
        self.noise = b""

    def feed(self, data: bytes) -> list[M]:
        """Return the messages that `data` completes. Raises ValueError for invalid data."""
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
        """The received bytes that are not a message, perhaps from another program."""
        return self._held if self._mark else b""


def reader_of_host() -> LinkReader[FromHost]:
    """Return the parser of a host's messages."""
    return LinkReader(msgspec.msgpack.Decoder(FromHost), MARK)


def reader_of_launcher() -> LinkReader[ToHost]:
    """Return the parser of the launcher's messages."""
    return LinkReader(msgspec.msgpack.Decoder(ToHost), b"")
