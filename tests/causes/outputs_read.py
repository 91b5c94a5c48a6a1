"""The outputs of the cases, as a relay remembers them."""

from __future__ import annotations

from typing import NamedTuple

from tests.causes.make_outputs import OUTPUTS, STDERR, STDOUT

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.relay.kept import KEPT_BYTES, KeptOutput
from rallypoint.process.relay.remembered import LastWords, Remembered, StreamPiece, last_pieces


class Ended(NamedTuple):
    """How a program ended, and what it wrote."""

    exit: WorkerExit
    stderr: bytes
    stdout: bytes


def ended(name: str) -> Ended:
    """What is kept of that case."""
    text = (OUTPUTS / f"{name}.txt").read_bytes()
    how, _, rest = text.partition(f"\n{STDERR}\n".encode())
    stderr, _, stdout = rest.partition(f"\n{STDOUT}\n".encode())
    kind, _, number = how.decode().rpartition(" ")
    is_code = kind == "exit code"
    made = WorkerExit(int(number) if is_code else None, None if is_code else int(number))
    return Ended(made, stderr, stdout)


def remembered(data: bytes, part: int = 1000) -> tuple[StreamPiece, ...]:
    """What a relay knows at the end of a stream that comes in pieces of so many bytes."""
    memory, kept = Remembered(), KeptOutput()
    for at in range(0, len(data), part):
        memory.feed(data[at : at + part])
        kept.feed(data[at : at + part], 0.0)
    return last_pieces(memory.pieces(), kept.end_of(KEPT_BYTES))


def words(stderr: bytes, stdout: bytes = b"", part: int = 1000) -> LastWords:
    """The same of both streams."""
    return LastWords(remembered(stderr, part), remembered(stdout, part))
