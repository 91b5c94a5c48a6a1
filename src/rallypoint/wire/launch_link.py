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
"""The most bytes that a login shell may write before the mark that begins a host's messages."""
_LENGTH = 4


class Look(Struct, frozen=True, tag=True):
    """The first message of `rallypoint launch` to a host.

    It has the directory in which an agent is to run, and the script, which the host looks for.
    `script` is empty if the command is no file, such as a module.
    """

    directory: str
    script: str


class Here(Struct, frozen=True, tag=True):
    """A host's first message to `rallypoint launch`: which version of Rallypoint it has."""

    version: str


class Hello(Struct, frozen=True, tag=True):
    """A host's answer to `rallypoint launch` that an agent can run there.

    `address` is the host's own address, by which ssh has reached it; empty if that is not known.
    `port` is for the job's endpoint, if that will be on this host. No process listened on it when
    it was chosen.
    """

    address: str
    port: int


class AgentRefused(Struct, frozen=True, tag="Refused"):
    """A host's answer to `rallypoint launch` that no agent can run there, for this reason.

    It is also sent if the agent could not be started.
    """

    why: str


class Started(Struct, frozen=True, tag=True):
    """A host's message to `rallypoint launch` that the agent has started.

    A detached agent writes to the file `log`, and the host sends nothing more. Else `log` is empty.
    """

    pid: int
    log: str = ""


class AgentOutput(Struct, frozen=True, tag="Output"):
    """A host's message to `rallypoint launch` with output of the agent or its workers.

    The stream is stdout (1) or stderr (2).
    """

    stream: int
    data: bytes


class AgentEnded(Struct, frozen=True, tag="Ended"):
    """A host's last message to `rallypoint launch`: the agent's exit code, and its summary.

    If a signal has killed the agent, the code is minus the signal's number. The summary is the
    content of the agent's summary file; empty if it wrote none, or was killed.
    """

    code: int
    summary: bytes


class Start(Struct, frozen=True, tag=True):
    """The order of `rallypoint launch` to a host to start the agent.

    `argv` are the words behind `rallypoint run`.
    """

    argv: tuple[str, ...]
    environ: dict[str, str]
    token: str
    """The token of the job; empty: there is none."""
    node: str
    summary: str
    """The path of the summary file that the user wants, or with a slash at its end of the directory
    for it; empty: the user wants none."""
    detached_as: str
    """The run id, if the agent is to continue without this link (`--detach`); else empty."""
    silence_s: float
    """The time in seconds without a message of `rallypoint launch` after which the host takes the
    link for broken."""

    def __repr__(self) -> str:
        """Return a text without the token and the environment."""
        return f"Start({self.argv!r})"


class Deliver(Struct, frozen=True, tag=True):
    """The order of `rallypoint launch` to a host to send the agent this signal."""

    signal: int


class Beat(Struct, frozen=True, tag=True):
    """The message without content by which `rallypoint launch` shows a host that it is there."""


FromHost = Here | Hello | AgentRefused | Started | AgentOutput | AgentEnded
ToHost = Look | Start | Deliver | Beat
_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M")


def frame(message: FromHost | ToHost) -> bytes:
    """Encode one message between `rallypoint launch` and a host as a frame."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(_LENGTH, "big") + payload


class LinkReader(Generic[M]):
    """The parser of the messages between `rallypoint launch` and a host, for one direction."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M], mark: bytes) -> None:
        """Make a parser.

        With a `mark`, messages begin after it, and everything before it becomes `noise`.
        """
        self._decoder, self._mark, self._held = decoder, mark, b""
        self.noise = b""

    def feed(self, data: bytes) -> list[M]:
        """Return the messages that `data` completes.

        Raises ValueError for invalid data, or too much before the mark.
        """
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
        """The received bytes while the mark has not come, perhaps another program's; else empty."""
        return self._held if self._mark else b""


def reader_of_host() -> LinkReader[FromHost]:
    """Return the parser that `rallypoint launch` uses for the messages of a host."""
    return LinkReader(msgspec.msgpack.Decoder(FromHost), MARK)


def reader_of_launcher() -> LinkReader[ToHost]:
    """Return the parser that a host uses for the messages of `rallypoint launch`."""
    return LinkReader(msgspec.msgpack.Decoder(ToHost), b"")
