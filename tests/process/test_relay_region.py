"""The rows at the bottom of a terminal: how many, how often, and never in the way of a line."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.terminal import Terminal

from rallypoint.process.relay.drawing import REDRAW_S, Key, Region


class Screen:
    """A region on a terminal, as a console uses it."""

    def __init__(self, columns: int = 40, height: int = 24) -> None:
        self.terminal, self.region = Terminal(columns, height), Region()
        self.now = 100.0
        self.painted = 0

    def line(self, text: str) -> None:
        self.terminal.feed(self.region.erase(self.terminal.columns))
        self.terminal.feed(f"{text}\n".encode())

    def paint(self) -> None:
        """If it is due."""
        if self.region.due_at() <= self.now:
            out = self.region.paint(self.terminal.columns, self.terminal.height, self.now)
            self.terminal.feed(out)
            self.painted += bool(out)

    def draw(self, *ranks: int, text: str = "bar") -> None:
        for rank in ranks:
            self.region.show(key(rank), [f"[{rank}] {text}".encode()])


def key(rank: int) -> Key:
    return (0, rank), 2


def test_bars_stand_in_the_order_of_ranks_above_the_status_line() -> None:
    screen = Screen()
    screen.region.show_status(b"round 0")
    screen.draw(2, 10, 1)
    screen.paint()
    screen.line("one")
    screen.now += REDRAW_S
    screen.paint()
    assert screen.terminal.rows == ["one", "[1] bar", "[2] bar", "[10] bar", "round 0"]


def test_a_third_of_the_rows_is_taken_and_the_rest_counted() -> None:
    screen = Screen(height=24)
    screen.region.show_status(b"round 0")
    screen.draw(*range(64))
    screen.paint()
    bars = [f"[{rank}] bar" for rank in range(6)]
    assert screen.terminal.rows == [*bars, "… and 58 more ranks", "round 0"]
    screen.now += REDRAW_S
    for rank in range(1, 64):
        screen.region.show(key(rank), [])
    screen.region.show(key(0), [b"outer", b"inner"])
    screen.paint()
    assert screen.terminal.rows == ["outer", "inner", "round 0"]


def test_a_terminal_of_few_rows_shows_a_bar_a_count_and_the_status() -> None:
    screen = Screen(height=5)
    screen.region.show_status(b"round 0")
    screen.draw(0, 1, 2)
    screen.paint()
    assert screen.terminal.rows == ["[0] bar", "… and 2 more ranks", "round 0"]


def test_of_many_ranks_with_several_bars_each_shows_its_first() -> None:
    screen = Screen(height=24)
    for rank in range(7):
        screen.region.show(key(rank), [f"outer {rank}".encode(), f"inner {rank}".encode()])
    screen.paint()
    assert screen.terminal.rows == [f"outer {rank}" for rank in range(7)]


def test_bars_are_redrawn_ten_times_a_second_however_often_they_change() -> None:
    screen = Screen()
    for n in range(1000):
        screen.draw(n % 8, text=f"step {n}")
        screen.paint()
        screen.now += 0.001
    assert screen.painted <= 11
    screen.now += REDRAW_S
    screen.paint()
    assert "[7] step 999" in screen.terminal.rows
    assert screen.region.due_at() == inf


def test_a_status_line_alone_waits_for_nothing() -> None:
    screen = Screen()
    for n in range(3):
        screen.region.show_status(b"round %d" % n)
        assert screen.region.due_at() <= screen.now
        assert screen.region.lines_due_at() <= screen.now
        screen.paint()
    assert screen.terminal.rows == ["round 2"]


def test_lines_wait_for_the_next_painting_where_bars_are() -> None:
    screen = Screen()
    screen.draw(0)
    assert screen.region.lines_due_at() <= screen.now
    screen.paint()
    assert screen.region.lines_due_at() == screen.now + REDRAW_S


def test_a_wide_row_is_cut_and_its_colour_ends_with_it() -> None:
    screen = Screen(columns=10)
    screen.region.show(key(0), [b"\x1b[32m" + b"x" * 5000])
    screen.region.show_status(b"s")
    out = screen.region.paint(10, 24, screen.now)
    screen.terminal.feed(out)
    assert screen.terminal.rows == ["x" * 10, "s"]
    assert b"\x1b[0m\r\ns" in out


def test_a_terminal_that_became_narrower_keeps_no_old_rows() -> None:
    """As most terminals do, this one wraps anew what has become too wide."""
    screen = Screen(columns=40)
    screen.region.show(key(0), [b"x" * 35])
    screen.region.show(key(1), ["é".encode() * 30])
    screen.region.show_status(b"status")
    screen.line("kept")
    screen.paint()
    narrow = Terminal(20)
    narrow.feed(b"kept\n" + b"x" * 35 + b"\n" + "é".encode() * 30 + b"\nstatus")
    screen.terminal = narrow
    screen.now += REDRAW_S
    screen.draw(0)
    screen.paint()
    assert narrow.rows == ["kept", "[0] bar", "é" * 20, "status"]


def test_what_another_program_wrote_meanwhile_is_not_erased() -> None:
    screen = Screen()
    screen.draw(0, 1)
    screen.paint()
    screen.region.forget()
    screen.terminal.feed(b"\n[1]+  Stopped\n$ fg\n")
    screen.now += REDRAW_S
    screen.paint()
    rows = ["[0] bar", "[1] bar"]
    assert screen.terminal.rows == [*rows, "[1]+  Stopped", "$ fg", *rows]


OPERATIONS = st.one_of(
    st.tuples(st.just("line"), st.integers(0, 9)),
    st.tuples(st.just("status"), st.integers(0, 2)),
    st.tuples(st.integers(0, 5), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.just(0)),
)


@given(st.lists(OPERATIONS, max_size=60), st.sampled_from([6, 9, 24]))
def test_A9_whatever_happens_lines_stay_and_rows_are_below_them(
    operations: list[tuple[str | int, int]], height: int
) -> None:
    screen = Screen(height=height)
    lines: list[str] = []
    for what, n in operations:
        match what:
            case "line":
                lines.append(f"line {n}")
                screen.line(f"line {n}")
            case "status":
                screen.region.show_status(b"status " * n)
            case "wait":
                screen.now += REDRAW_S
            case int(rank):
                screen.region.show(key(rank), [b"[%d] row %d" % (rank, k) for k in range(n)])
        screen.paint()
        assert screen.terminal.rows[: len(lines)] == lines
        assert len(screen.terminal.rows) - len(lines) <= max(3, height // 3)
    screen.now += REDRAW_S
    screen.paint()
    wanted = [row.decode().rstrip() for row in screen.region._wanted(max(3, height // 3))]
    assert screen.terminal.rows == lines + wanted
    screen.terminal.feed(screen.region.erase(screen.terminal.columns))
    assert screen.terminal.rows == lines
    assert screen.terminal.is_at_line_start
