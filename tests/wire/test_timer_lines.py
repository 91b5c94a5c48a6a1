"""Requests of timers, line by line: what is one, and what is none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.wire.shm import MAX_LINE_BYTES, LineSplitter
from rallypoint.wire.timer_lines import TimerLine, format_timer_line, parse_timer_line
from rallypoint.worker.timers import MAX_PER_PROCESS, Countdown, PendingTimers

PIDS = st.integers(1, 2**22)
TIMES = st.floats(allow_nan=False, allow_infinity=False)


@given(PIDS, st.text(), TIMES, st.integers(-1, 64))
def test_what_is_written_is_read(pid: int, scope: str, at: float, signal: int) -> None:
    line = format_timer_line(pid, scope, at, signal)
    assert "\n" not in line
    assert parse_timer_line(line.encode()) == TimerLine(pid, scope, at, signal)


@given(st.binary(max_size=300))
def test_any_line_can_be_read(line: bytes) -> None:
    parse_timer_line(line)


GOOD = {"version": 1, "pid": 7, "scope_id": "s", "expiration_time": 1.5, "signal": 9}


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"pid": "7"},
        {"pid": True},
        {"pid": None},
        {"scope_id": 3},
        {"expiration_time": "soon"},
        {"expiration_time": True},
        {"expiration_time": float("nan")},
        {"expiration_time": float("inf")},
        {"expiration_time": 10**400},
        {"signal": "KILL"},
        {"signal": 9.0},
    ],
    ids=str,
)
def test_what_is_no_request_is_none(wrong: dict[str, object]) -> None:
    assert parse_timer_line(json.dumps(GOOD).encode()) is not None
    assert parse_timer_line(json.dumps(GOOD | wrong).encode()) is None


@pytest.mark.parametrize("line", [b"[" * 4000, b'{"a":' * 700, b"7", b"null", b"[]", b"\xff"])
def test_what_is_no_object_is_none(line: bytes) -> None:
    assert parse_timer_line(line) is None


@given(st.lists(st.binary(max_size=50).filter(lambda line: b"\n" not in line)), st.data())
def test_lines_come_out_whole_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter, found = LineSplitter(), list[bytes]()
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:cut])
        stream = stream[cut:]
    assert found == lines


def test_what_is_too_long_for_a_line_is_not_kept() -> None:
    splitter = LineSplitter()
    for _ in range(100):
        assert splitter.feed(b"x" * (MAX_LINE_BYTES + 1)) == []
    assert splitter.feed(b"next\nhalf") == [b"next"]
    assert splitter.feed(b" line\n") == [b"half line"]


def timer(pid: int, scope: str, ends_at: float) -> Countdown:
    return Countdown(pid, scope, ends_at, 1.0, 9)


def test_a_timer_ends_unless_it_is_released() -> None:
    pending = PendingTimers()
    pending.acquire(timer(1, "a", 5.0))
    pending.acquire(timer(1, "b", 4.0))
    pending.acquire(timer(2, "a", 6.0))
    assert pending.next_end() == 4.0
    assert pending.expired(3.9) == []
    pending.release(1, "b")
    pending.release(1, "b")
    pending.release(9, "unknown")
    assert pending.next_end() == 5.0
    assert [(t.pid, t.scope) for t in pending.expired(6.0)] == [(1, "a"), (2, "a")]
    pending.forget(1)
    assert pending.next_end() == 6.0
    pending.release(2, "a")
    assert pending.next_end() is None


def test_a_scope_that_is_set_again_begins_anew() -> None:
    pending = PendingTimers()
    pending.acquire(timer(1, "a", 5.0))
    pending.acquire(timer(1, "a", 9.0))
    assert pending.expired(8.0) == []
    assert len(pending.expired(9.0)) == 1


def test_a_process_that_releases_nothing_costs_no_more_than_so_much() -> None:
    pending = PendingTimers()
    for number in range(MAX_PER_PROCESS + 10):
        pending.acquire(timer(1, str(number), 1000.0 - number))
    assert pending.next_end() == 1000.0 - (MAX_PER_PROCESS - 1)
    pending.acquire(timer(2, "a", -5000.0))
    assert pending.next_end() == -5000.0


def test_all_that_has_ended_is_known_by_process_the_first_one_first() -> None:
    pending = PendingTimers(most=None)
    for number in range(MAX_PER_PROCESS + 1):
        pending.acquire(timer(1, str(number), 1000.0 - number))
    pending.acquire(timer(2, "a", 5000.0))
    assert [t.scope for t in pending.expired(1000.0)] == [str(MAX_PER_PROCESS)]
    ended = pending.all_expired(1000.0)
    assert list(ended) == [1]
    assert [t.ends_at for t in ended[1]] == sorted(t.ends_at for t in ended[1])
    assert len(ended[1]) == MAX_PER_PROCESS + 1, "without a bound all are kept"
    pending.forget(1, 2, 3)
    assert pending.next_end() is None
