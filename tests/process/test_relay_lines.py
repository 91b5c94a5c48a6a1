"""The line assembler and the tail: nothing lost, nothing torn, however the bytes arrive."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rallypoint.process.relay.kept import KeptOutput
from rallypoint.process.relay.lines import TAIL_BYTES, TAIL_LINES, LineAssembler, last_lines
from rallypoint.process.relay.remembered import RECENT_BYTES

LIMIT = 16
PIECES = st.lists(st.binary(max_size=12), max_size=30)
TEXTS = st.text(alphabet="aé漢🙂\n", max_size=200)


def assemble(pieces: list[bytes], limit: int = LIMIT) -> bytes:
    lines = LineAssembler(b">", limit)
    return b"".join([lines.feed(piece, 0.0) for piece in pieces]) + lines.finish()


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({c % (len(data) + 1) for c in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(PIECES)
def test_how_bytes_arrive_makes_no_difference(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert assemble(pieces) == assemble([whole])
    assert assemble(pieces) == assemble([bytes([b]) for b in whole])


@given(TEXTS, st.lists(st.integers(0, 1000), max_size=20))
def test_short_lines_are_whole_and_long_ones_keep_their_characters(
    text: str, cuts: list[int]
) -> None:
    data = text.encode()
    got = assemble(cut(data, cuts))
    lines = got.split(b"\n")
    assert lines.pop() == b""
    assert all(line.startswith(b">") and len(line) <= LIMIT + 1 for line in lines)
    for line in lines:
        line.decode()  # no character is torn
    assert b"".join(line[1:] for line in lines) == data.replace(b"\n", b"")
    if all(len(line.encode()) <= LIMIT for line in text.split("\n")):
        expected = text.removesuffix("\n").split("\n") if text else []
        assert [line[1:].decode() for line in lines] == expected


def test_of_a_progress_bar_the_last_step_is_the_line() -> None:
    assert assemble([b"\r 10%\r 20%", b"\r", b" 30%\n", b"done\r\n\r\n"]) == (b"> 30%\n>done\n>\n")


def test_a_line_without_end_takes_bounded_memory() -> None:
    lines = LineAssembler(b"> ")
    given_out = sum(len(lines.feed(b"x" * 50_000, 0.0)) for _ in range(100))
    assert given_out > 100 * 50_000 - 64 * 1024
    assert len(lines.finish()) <= 64 * 1024 + 3


@given(st.lists(st.binary(max_size=3000), max_size=40))
def test_the_tail_is_the_end_whatever_came_before(pieces: list[bytes]) -> None:
    kept = KeptOutput()
    whole = b""
    for piece in pieces:
        plain = piece.replace(b"\r", b"")
        kept.feed(plain, 0.0)
        whole += plain
    tail = last_lines(kept.end_of(RECENT_BYTES).data)
    assert whole.endswith(tail)
    assert len(tail) <= TAIL_BYTES
    assert len(tail.splitlines()) <= TAIL_LINES
    if len(whole) <= TAIL_BYTES and len(whole.splitlines()) <= TAIL_LINES:
        assert tail == whole


def test_of_a_progress_bar_the_tail_keeps_the_last_step() -> None:
    bar = b"".join(b"\rstep %d" % n for n in range(100))
    data = b"warning\n" + bar + b"\r\nTraceback\r\nValueError: 7\n"
    assert last_lines(data) == b"warning\nstep 99\r\nTraceback\r\nValueError: 7\n"
    assert last_lines(b"\rstep 1\rstep 2") == b"step 2"
    assert last_lines(b"step 1\rstep 2\r") == b"step 2\r"


def test_the_tail_keeps_the_last_lines_and_no_half_character() -> None:
    tail = b"".join(f"line {n}\n".encode() for n in range(1000))
    kept = last_lines(tail).decode().splitlines()
    assert kept == [f"line {n}" for n in range(980, 1000)]
    assert last_lines("é".encode() * TAIL_BYTES + b"x").decode().startswith("é")
