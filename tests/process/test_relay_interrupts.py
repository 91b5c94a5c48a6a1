"""Tracebacks of Ctrl-C become one line; nothing else is swallowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.process.relay.interrupts import HOLD_BYTES, HOLD_S, Interrupts

TRACE = b"Traceback (most recent call last):\n  File 'a', line 1, in <module>\n    wait()\n"
BY_INTERRUPT = TRACE + b"KeyboardInterrupt\n"
BY_ERROR = TRACE + b"ValueError: 7\n"
MEANWHILE = b"\nDuring handling of the above exception, another exception occurred:\n\n"
ONE = b"rallypoint: 1 worker was interrupted (KeyboardInterrupt)\n"


def shown(text: bytes, *, prefix: bytes = b"") -> tuple[bytes, bytes]:
    """What is shown of these lines of one stream, and the line at the end."""
    interrupts = Interrupts()
    interrupts.begin()
    lines = b"".join(prefix + line for line in text.splitlines(keepends=True))
    seen = interrupts.feed(3, lines, len(prefix), 0.0) + interrupts.take(3)
    return seen, interrupts.summary()


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (BY_INTERRUPT, b""),
        (b"a\n" + BY_INTERRUPT + b"saved\n", b"a\nsaved\n"),
        (BY_ERROR + MEANWHILE + BY_INTERRUPT, b""),
        (BY_INTERRUPT + BY_INTERRUPT, b""),
        (BY_INTERRUPT + BY_ERROR, BY_ERROR),
        (b"[rank0]: " + BY_INTERRUPT.replace(b"\n", b"\n[rank0]: ", 3), b""),
    ],
)
def test_a_traceback_of_an_interrupt_is_counted(text: bytes, seen: bytes) -> None:
    assert shown(text) == (seen, ONE)
    behind = b"".join(b"[r 0] " + line for line in seen.splitlines(keepends=True))
    assert shown(text, prefix=b"[r 0] ") == (behind, ONE)


@pytest.mark.parametrize(
    "text",
    [
        b"no traceback\n",
        BY_ERROR,
        TRACE,
        BY_INTERRUPT + MEANWHILE + BY_ERROR,
        BY_ERROR + b"\n" + BY_ERROR,
        b"KeyboardInterrupt\n",
        TRACE + b"KeyboardInterruptError: mine\n",
        TRACE + b"  x\n" * HOLD_BYTES + b"KeyboardInterrupt\n",
    ],
)
def test_any_other_traceback_is_shown_whole(text: bytes) -> None:
    assert shown(text) == (text, b"")


def test_before_ctrl_c_nothing_is_held_back() -> None:
    interrupts = Interrupts()
    assert interrupts.feed(3, BY_INTERRUPT, 0, 0.0) == BY_INTERRUPT
    assert interrupts.overdue(1e9) == []


def test_what_does_not_end_is_shown_after_a_while() -> None:
    interrupts = Interrupts()
    interrupts.begin()
    assert interrupts.feed(3, TRACE, 0, 5.0) == b""
    assert interrupts.due_at() == 5.0 + HOLD_S
    assert interrupts.overdue(5.0) == []
    assert interrupts.overdue(5.0 + HOLD_S) == [3]
    assert interrupts.take(3) == TRACE


def test_each_worker_counts_once() -> None:
    interrupts = Interrupts()
    interrupts.begin()
    for fd in (3, 4, 3):
        assert interrupts.feed(fd, BY_INTERRUPT, 0, 0.0) + interrupts.take(fd) == b""
    assert interrupts.summary() == b"rallypoint: 2 workers were interrupted (KeyboardInterrupt)\n"
    assert interrupts.summary() == b""


PIECES = st.sampled_from([b"a\n", b"\n", TRACE, BY_ERROR, MEANWHILE, b"  b\n", b"[rank1]: c\n"])


@given(st.lists(PIECES).map(b"".join), st.integers(1, 9))
def test_without_an_interrupt_every_line_is_shown_in_its_order(text: bytes, step: int) -> None:
    interrupts = Interrupts()
    interrupts.begin()
    lines = text.splitlines(keepends=True)
    seen = b"".join(
        interrupts.feed(3, b"".join(lines[at : at + step]), 0, 0.0)
        for at in range(0, len(lines), step)
    )
    assert seen + interrupts.take(3) == text
