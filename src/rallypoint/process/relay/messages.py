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
"""The most bytes of lines in one answer to `AskOutput`."""


class AddStream(msgspec.Struct, frozen=True, tag="add"):
    """The agent's request to read a worker's stream from the pipe that comes with it.

    `fd` is the console (1 or 2), or 0 for none; `lines` says that the console gets whole lines
    behind `prefix` instead of raw bytes. An empty `path` is no file, and `max_bytes` 0 no limit of
    its size. `keep_tail`: tracebacks in the stream are remembered. Lines for the console in which
    one of `copy_if` is found also go to the file `copy_to`, which streams share. `draws` lets a
    terminal redraw what the stream does not finish. Lines that are `teed` go to the program's
    object in place of the console, if there is one.
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
    """The stream of the worker: 1 (stdout) or 2 (stderr)."""


class ShowStatus(msgspec.Struct, frozen=True, tag="status"):
    """The agent's request to replace the status line of a terminal; an empty text removes it."""

    text: bytes


class WriteLines(msgspec.Struct, frozen=True, tag="say"):
    """The agent's request to write whole lines of its own to stderr, not within a worker's line.

    A long line comes in several such requests.
    """

    lines: bytes


class FoldInterrupts(msgspec.Struct, frozen=True, tag="fold"):
    """The agent's request to fold tracebacks of workers about to get SIGINT: see `interrupts`."""


class ReadProgress(msgspec.Struct, frozen=True, tag="progress"):
    """The agent's request to match the output of this round's workers with the pattern.

    Their streams come next. The progress is to be written to the shared memory at the path `shm`.
    """

    round_number: int
    shm: bytes
    pattern: bytes


class AskTail(msgspec.Struct, frozen=True, tag="tail?"):
    """The agent's request for a worker's last words: remembered tracebacks, its output's end.

    They include everything written until now.
    """

    ask: int
    round_number: int
    local_rank: int


class AskDrain(msgspec.Struct, frozen=True, tag="drain?"):
    """The agent's request to answer with `Drained` when the consoles have got all output so far."""

    ask: int


class AskProgress(msgspec.Struct, frozen=True, tag="progress?"):
    """The agent's request for `Drained` when all output so far was searched for progress."""

    ask: int


class AskOutput(msgspec.Struct, frozen=True, tag="output?"):
    """The agent's request for the kept output of these streams of a round.

    Each of `places` is a local rank, 1 (stdout) or 2 (stderr), and a position in bytes; -1: the
    newest lines, as many as `newest` says.
    """

    ask: int
    round_number: int
    places: tuple[tuple[int, int, int], ...]
    newest: int
    unfinished: bool
    """Whether unfinished lines are wanted, too."""


class TailIs(msgspec.Struct, frozen=True, tag="tail"):
    """The relay's answer to `AskTail`: the last words of one worker."""

    ask: int
    words: LastWords


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """The relay's answer to `AskDrain` (output was written) and `AskProgress` (it was searched)."""

    ask: int


class StreamOutput(msgspec.Struct, frozen=True):
    """The kept lines of one stream, each part with its age in seconds.

    `next` is the position after them, `left_out` the number of bytes before them that are not kept
    any more.
    """

    local_rank: int
    stream: int
    lines: tuple[tuple[float, bytes], ...]
    next: int
    left_out: int
    has_more: bool


class OutputIs(msgspec.Struct, frozen=True, tag="output"):
    """The relay's answer to `AskOutput`, without streams that have no kept output."""

    ask: int
    streams: tuple[StreamOutput, ...]


class WriteFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The relay's report that it can't open or write a file or console. Sent once for each.

    `path` is `stdout` or `stderr` for a console.
    """

    path: bytes
    errno: int


class FirstOutput(msgspec.Struct, frozen=True, tag="first"):
    """The relay's report that a first worker of this round has written. Once for each round."""

    round_number: int


class SharedInput(msgspec.Struct, frozen=True, tag="input"):
    """The relay's report that several workers ask for input at this terminal. Sent once."""


class PatternOff(msgspec.Struct, frozen=True, tag="pattern off"):
    """The relay's report that a match took too long (or failed), so that matching has ended.

    It was at this line or one before it. Sent once.
    """

    line: str


class NothingMatched(msgspec.Struct, frozen=True, tag="unmatched"):
    """The relay's report that workers have run for long, and no line has matched the pattern.

    `line`: the newest line, if there is one. Sent once.
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
    """Decode a report of the relay. Raises ValueError."""
    report: RelayReport = msgspec.msgpack.decode(packet, type=RelayReport)
    return report
