"""What a relay remembers of a worker's stderr, and what is read from its log file instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.causes.outputs_read import remembered

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.failures import describe_failure
from rallypoint.process.logs.log_dir import read_remembered
from rallypoint.process.relay.messages import MAX_PACKET, TailIs, encode
from rallypoint.process.relay.remembered import RECENT_BYTES, LastWords, Remembered, StreamPiece

FRAMES = b'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'
RAISED = FRAMES + b"ValueError: bad loss\n"
STEPS = b"step 17 of 9000, loss 0.5\n" * 40_000
BYTES_MAX = 14 * 1024
"""Of one traceback."""


def error_in(pieces: tuple[StreamPiece, ...]) -> str:
    return describe_failure(WorkerExit(1, None), words=LastWords(pieces)).message


@pytest.mark.parametrize(
    "data",
    [
        RAISED,
        STEPS + RAISED,
        RAISED + STEPS,
        RAISED + RAISED.replace(b"bad loss", b"another")[:-1] + b" " + b"x" * 3_000_000,
        STEPS
        + RAISED
        + b"Exception ignored in: <function f>\n"
        + FRAMES
        + b"OSError: late\n" * 900,
        b"\x1b[31m" + RAISED.replace(b"\n", b"\x1b[0m\n\x1b[31m"),
        b"".join(b"[rank3]: " + line + b"\n" for line in RAISED.splitlines()) + STEPS,
        RAISED.replace(b"\n", b"\r\n") + STEPS,
    ],
)
def test_A7_an_exception_is_remembered_whatever_comes_before_and_after(
    data: bytes, tmp_path: Path
) -> None:
    log = tmp_path / "stderr.log"
    log.write_bytes(data)
    expected = "ValueError: another" if b"another" in data else "ValueError: bad loss"
    found = {error_in(remembered(data, part))[: len(expected)] for part in (50, 4096, 1 << 16)}
    assert found == {expected}
    assert error_in(read_remembered(str(log)))[: len(expected)] == expected


@given(st.lists(st.integers(1, 400), max_size=30))
def test_A7_it_is_remembered_in_whatever_pieces_it_comes(sizes: list[int]) -> None:
    data, at, memory = b"a\nb" + RAISED + b"c\n" * 9000, 0, Remembered()
    for size in sizes:
        memory.feed(data[at : at + size])
        at += size
    memory.feed(data[at:])
    end = StreamPiece(len(data) - RECENT_BYTES, data[-RECENT_BYTES:])
    assert error_in((*memory.pieces(), end)) == "ValueError: bad loss"


@given(st.lists(st.sampled_from([RAISED, FRAMES, b"\n", b"x" * 9000, STEPS[:9000]]), max_size=60))
def test_what_is_remembered_is_bounded_and_was_written(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    pieces = remembered(whole, 7000)
    for piece in pieces:
        assert whole[piece.at : piece.at + len(piece.data)] == piece.data
    assert sum(len(piece.data) for piece in pieces) <= 3 * BYTES_MAX + RECENT_BYTES
    words = LastWords(pieces, (StreamPiece(0, b"\xff" * (RECENT_BYTES // 2)),))
    assert len(encode(TailIs(1, words))) < MAX_PACKET


@pytest.mark.parametrize("part", [1000, 1 << 16, 1 << 20])
def test_A7_of_many_tracebacks_in_one_piece_the_last_is_remembered(part: int) -> None:
    ignored = b"Exception ignored in: <function f>\n" + FRAMES + b"OSError: late\n"
    data = RAISED * 2000 + RAISED.replace(b"bad loss", b"the last") + ignored * 6 + STEPS
    assert error_in(remembered(data, part)) == "ValueError: the last"


def test_A7_what_a_native_program_threw_is_remembered_above_all_stacks() -> None:
    thrown = b"terminate called after throwing an instance of 'E'\n  what():  no route\n"
    dump = b"Fatal Python error: Aborted\n\n" + b'  File "a.py", line 3 in f\n' * 800
    told = describe_failure(
        WorkerExit(None, 6), words=LastWords(remembered(RAISED + STEPS + thrown + dump))
    )
    assert told.message == "killed by SIGABRT: no route"


def test_a_log_file_that_is_none_tells_nothing(tmp_path: Path) -> None:
    assert read_remembered(str(tmp_path / "absent")) == ()
    assert read_remembered(str(tmp_path)) == ()
    (tmp_path / "empty").write_bytes(b"")
    assert error_in(read_remembered(str(tmp_path / "empty"))) == "exit code 1"
