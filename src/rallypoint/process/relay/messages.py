"""The messages between the agent and its relay process.

One message is one packet of a SOCK_SEQPACKET pair between a process and its own fork, so there is
neither a version nor a size prefix. The read end of a new stream's pipe travels with its AddStream.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from rallypoint.process.relay.drawing import WorkerKey
from rallypoint.process.relay.remembered import LastWords

# Well below the default send buffer of a Unix socket (208 KiB), above which a packet is refused.
MAX_PACKET = 64 * 1024
OUTPUT_BYTES = 20 * 1024
"""The most bytes of lines in one packet."""


class AddStream(msgspec.Struct, frozen=True, tag="add"):
    """Empty this pipe.

    `fd` is the console (1 or 2), or 0 for none; `lines` says that the console gets whole lines
    behind `prefix` instead of raw bytes; an empty `path` is no file, and `max_bytes` 0 no limit of
    one. Lines for the console in which one of `copy_if` is found also go to the file `copy_to`,
    which streams share. `draws` lets a terminal redraw what the stream does not finish. Lines that
    are `teed` go to the program's object in place of the console, if there is one.
    """

    worker: WorkerKey
    fd: int
    lines: bool
    prefix: bytes
    path: bytes
    keep_tail: bool
    max_bytes: int = 0
    draws: bool = True
    teed: bool = False
    copy_to: bytes = b""
    copy_if: tuple[bytes, ...] = ()
    stream: int = 0
    """The stream of the worker: 1 or 2."""


class ShowStatus(msgspec.Struct, frozen=True, tag="status"):
    """Replace the status line of a terminal; empty takes it away."""

    text: bytes


class WriteLines(msgspec.Struct, frozen=True, tag="say"):
    """Write whole lines of the agent to stderr, torn by no worker."""

    lines: bytes


class FoldInterrupts(msgspec.Struct, frozen=True, tag="fold"):
    """The workers are about to be interrupted: see `relay_interrupts`."""


class ReadProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Match the output of this round's workers, whose streams come next, with the pattern.

    Write the progress to the shared memory at the path `shm`.
    """

    round_number: int
    shm: bytes
    pattern: bytes


class AskTail(msgspec.Struct, frozen=True, tag="tail?"):
    """Ask for the end of one worker's output, including everything written until now."""

    ask: int
    round_number: int
    local_rank: int


class AskDrain(msgspec.Struct, frozen=True, tag="drain?"):
    """Answer when all output so far has reached its destination."""

    ask: int


class AskProgress(msgspec.Struct, frozen=True, tag="progress?"):
    """Answer with `Drained` when all output so far was matched."""

    ask: int


class AskOutput(msgspec.Struct, frozen=True, tag="output?"):
    """Ask for the kept output of these streams of a round.

    Each is a local rank, 1 or 2, and a position; -1: the `newest` lines.
    """

    ask: int
    round_number: int
    places: tuple[tuple[int, int, int], ...]
    newest: int
    unfinished: bool
    """Whether unfinished lines are wanted, too."""


class TailIs(msgspec.Struct, frozen=True, tag="tail"):
    """The answer to `AskTail`."""

    ask: int
    words: LastWords


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """The answer to `AskDrain` and `AskProgress`."""

    ask: int


class StreamOutput(msgspec.Struct, frozen=True):
    """The kept lines of one stream, with their age in seconds."""

    local_rank: int
    stream: int
    lines: tuple[tuple[float, bytes], ...]
    next: int
    left_out: int
    has_more: bool


class OutputIs(msgspec.Struct, frozen=True, tag="output"):
    """The answer to `AskOutput`, without streams that have no kept output."""

    ask: int
    streams: tuple[StreamOutput, ...]


class WriteFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A file or console took no more. Said once for each; `path` is `stdout` for a console."""

    path: bytes
    errno: int


class FirstOutput(msgspec.Struct, frozen=True, tag="first"):
    """The first output of any worker of this round has come through. Sent once for each round."""

    round_number: int


class SharedInput(msgspec.Struct, frozen=True, tag="input"):
    """Several workers ask for input at this terminal. Sent once."""


class PatternOff(msgspec.Struct, frozen=True, tag="pattern off"):
    """A match took too long, at this line or one before it, so that matching ended. Sent once."""

    line: str


class NothingMatched(msgspec.Struct, frozen=True, tag="unmatched"):
    """The workers have run for long, and no line has ever matched.

    `line`: the newest one. Said once.
    """

    line: str


PatternReport: TypeAlias = PatternOff | NothingMatched
RelayRequest: TypeAlias = (
    AddStream
    | ShowStatus
    | WriteLines
    | FoldInterrupts
    | ReadProgress
    | AskTail
    | AskProgress
    | AskDrain
    | AskOutput
)
RelayNews: TypeAlias = WriteFailed | FirstOutput | SharedInput | PatternReport
RelayReport: TypeAlias = TailIs | Drained | OutputIs | RelayNews


def encode(message: RelayRequest | RelayReport) -> bytes:
    """Encode a message as one packet."""
    return msgspec.msgpack.encode(message)


def decode_request(packet: bytes) -> RelayRequest:
    """Decode a request of the agent. Both ends are one program: a packet always parses."""
    request: RelayRequest = msgspec.msgpack.decode(packet, type=RelayRequest)
    return request


def decode_report(packet: bytes) -> RelayReport:
    """Decode a report of the relay."""
    report: RelayReport = msgspec.msgpack.decode(packet, type=RelayReport)
    return report
