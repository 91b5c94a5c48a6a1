"""The memory that the agent and the workers of one node share in a round. Pure.

One small file that all of them map. Every field is one aligned word of 8 bytes in the byte order of
the machine, which its processors read and write whole: so there are no locks and no torn values.
Each word has one writer: the header's is the agent, a slot's is the worker of its local rank, and
of some of its words the relay. That worker runs a user's code, so whatever stands in a slot is
possible, and none of it an error.

    header   magic, version, workers, current, request, deadline, held until, agent
    slot     owner, listens, step, progress at, answered, checkpoint step, stacks, holds,
             total, loss, tokens, phase at, phase; per worker
             of the relay: step, changed at, total, loss, tokens, changes

A request is one word, its number above its kind, so that both are read as they belong together.

Lines come through the wake-up pipe beside it, which several workers write to.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from rallypoint.wire import shm_words as at

_HEADER = struct.Struct(f"={at.HEADER_WORDS}q")
_SLOT = struct.Struct(f"={at.SLOT_WORDS}q")
_WORD = struct.Struct("=q")
_DOUBLE = struct.Struct("=d")
_PHASE = struct.Struct(f"{at.PHASE_BYTES}s")


class ShmRequest(IntEnum):
    """The reasons for which an agent asks its workers for a checkpoint; NONE: it asks for none."""

    NONE = at.NONE
    DRAIN = at.DRAIN
    """A node, this one or another, is about to leave the job, or the job's time is over."""
    GROWTH = at.GROWTH
    """More nodes wait to take part, in a new round."""
    SAVE = at.SAVE
    """A person wants a checkpoint. The round continues."""


class WorkerSlot(NamedTuple):
    """The values in one worker's slot of the shared memory.

    The worker's code may have written anything there.
    """

    owner: int
    listens: bool
    answered: int
    checkpoint: int
    stacks: int
    holds: bool
    reported: Reported
    """The progress that the worker itself has reported."""
    printed: Reported
    """The progress that the relay has read in the worker's output."""
    takes_wishes: bool = False
    """Whether the worker has ever looked for a person's request for a checkpoint."""
    phase: str = ""
    """The name of the worker's phase, such as `evaluation`; empty: it is in none."""
    phase_at_ns: int = 0
    """When one of the worker's phases last began or ended, in nanoseconds on CLOCK_MONOTONIC; below
    1: none has."""


class Reported(NamedTuple):
    """The progress of one worker from one source, as numbers.

    None as total, loss or tokens: the source did not report this number.
    """

    step: int
    at_ns: int
    """When the step was last reported, or in the output last changed, in nanoseconds on
    CLOCK_MONOTONIC; below 1: there is no progress."""
    total: int | None
    loss: float | None
    tokens: int | None
    changes: int
    """The number of times that the step in the output changed, the first one read included, as the
    relay counts; 0 for a worker's own reports."""


NOTHING_REPORTED = Reported(0, 0, None, None, None, 0)
EMPTY_SLOT = WorkerSlot(0, False, 0, 0, 0, False, NOTHING_REPORTED, NOTHING_REPORTED)


def fresh_shm(workers: int, agent_pid: int = 0) -> bytes:
    """Return the first content of a round's shared memory: no request, no reports of workers."""
    header = _HEADER.pack(at.MAGIC, at.VERSION, workers, 1, 0, 0, 0, agent_pid)
    return header + bytes(at.shm_bytes(workers) - len(header))


def pack_word(value: int) -> bytes:
    """Return the bytes of one word of shared memory.

    Raises struct.error if the value does not fit.
    """
    return _WORD.pack(value)


def pack_request(number: int, kind: ShmRequest) -> int:
    """Return a request for a checkpoint as one word.

    Numbers count from 1. A withdrawn request keeps its number, with the kind NONE.
    """
    return number << at.KIND_BITS | kind


def parse_slots(shm: bytes, workers: int) -> Sequence[WorkerSlot]:
    """Return the slot of each worker, by local rank; empty slots where the file was cut off."""
    whole = shm.ljust(at.shm_bytes(workers), b"\0")
    return [_slot(whole, local_rank) for local_rank in range(workers)]


def _slot(shm: bytes, local_rank: int) -> WorkerSlot:
    words = _SLOT.unpack_from(shm, at.WORD_BYTES * at.first_word(local_rank))
    owner, listens, step, at_ns, answered, checkpoint, stacks, holds = words[: at.TOTAL]
    return WorkerSlot(
        owner,
        bool(listens),
        answered,
        checkpoint,
        stacks,
        holds == 1,
        _reported((step, at_ns, *words[at.TOTAL : at.TOKENS + 1], 0)),
        _reported(words[at.OUTPUT_STEP : at.OUTPUT_CHANGES + 1]),
        listens == at.TAKES_WISHES,
        _phase(shm, at.first_word(local_rank)),
        words[at.PHASE_AT],
    )


def _phase(shm: bytes, first_word: int) -> str:
    name, _, _ = _PHASE.unpack_from(shm, at.WORD_BYTES * (first_word + at.PHASE))[0].partition(
        b"\0"
    )
    text: str = name.decode(errors="replace")
    return text if text.isprintable() else ascii(text)


def _reported(words: Sequence[int]) -> Reported:
    step, at_ns, total, loss, tokens, changes = words
    told = _DOUBLE.unpack(_WORD.pack(loss))[0] if loss else None
    return Reported(step, at_ns, total or None, told, tokens or None, changes)


def pack_printed(reported: Reported) -> bytes:
    """Return the bytes of the words that the relay writes, from `OUTPUT_STEP` on.

    Step, total and tokens are limited to what fits into a word.
    """
    loss = _DOUBLE.pack(-0.0 if reported.loss == 0 else reported.loss or 0.0)
    return b"".join(
        (
            pack_word(limited(reported.step)),
            pack_word(reported.at_ns),
            pack_word(limited(reported.total or 0)),
            loss,
            pack_word(limited(reported.tokens or 0)),
            pack_word(reported.changes),
        )
    )


def limited(number: int) -> int:
    """Return the number, limited to what fits into a word of shared memory."""
    return max(min(number, at.MAX_WORD), -at.MAX_WORD)


MAX_LINE_BYTES = 4096
"""The most bytes of a line that a writer may write to the pipe at once (PIPE_BUF): a longer one
might be torn apart by another writer's line."""


class LineSplitter:
    """The parser of lines from the bytes of a pipe with several writers.

    It keeps at most 4096 bytes of an unfinished line. Of a longer one only the end may be returned.
    Lines after it are not lost.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes from the pipe; return the lines that are complete now, without their ends."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= MAX_LINE_BYTES else b""
        return lines
