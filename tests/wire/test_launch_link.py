"""What a launch and a host say to each other, as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.wire.launch_link import (
    MARK,
    MAX_FRAME_BYTES,
    AgentEnded,
    AgentOutput,
    AgentRefused,
    Beat,
    Deliver,
    FromHost,
    Hello,
    Here,
    Look,
    Start,
    Started,
    ToHost,
    frame,
    reader_of_host,
    reader_of_launcher,
)

SAID: list[FromHost] = [
    Here("1.2"),
    Hello("10.0.0.1", 20001),
    AgentRefused("no"),
    Started(7, "/log"),
    AgentOutput(1, b"\xff\n"),
    AgentEnded(-9, b""),
]
START = Start(("train.py",), {"A": "b"}, "job-secret", "a", "", "", 60.0)


@given(st.lists(st.integers(1, 40), max_size=30), st.binary(max_size=50))
def test_messages_come_whole_however_they_are_cut(cuts: list[int], noise: bytes) -> None:
    data = noise + MARK + b"".join(map(frame, SAID))
    reader, found = reader_of_host(), list[FromHost]()
    for size in cuts:
        found += reader.feed(data[:size])
        data = data[size:]
    found += reader.feed(data)
    assert found == SAID
    assert reader.noise == noise
    assert reader.rest == b""


def test_a_host_is_told_the_same_way() -> None:
    told: list[ToHost] = [Look("/there", "train.py"), START, Beat(), Deliver(2)]
    assert reader_of_launcher().feed(b"".join(map(frame, told))) == told
    assert "secret" not in repr(START)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        b"\0\0\0\1\xc1",
        b"\0\0\0\1\xc0",
        frame(Beat()),
        b"\0\0\0\x04\x81\xa1\xff\xff",
    ],
)
def test_nonsense_is_an_error(data: bytes) -> None:
    reader = reader_of_host()
    with pytest.raises(ValueError, match="message"):
        reader.feed(MARK + data)


def test_a_login_shell_that_never_ends_is_an_error() -> None:
    reader = reader_of_host()
    assert reader.feed(b"hello\n") == []
    assert reader.rest == b"hello\n"
    with pytest.raises(ValueError, match="writes too much"):
        reader.feed(b"x" * 100_000)
