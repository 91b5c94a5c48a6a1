"""What streams draw, as the programs that draw write it: which rows there are, and which lines."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from rallypoint.process.relay.drawing import MAX_ROWS, SETTLED_S
from rallypoint.process.relay.lines import LINE_LIMIT, QUIET_S, LineAssembler

TOKENS = [
    *(b"a", b"bb", b" ", b"\r", b"\n", b"\r\n", b"\n\n", b"\b", "é".encode(), b"\x1b"),
    *(b"\x1b[A", b"\x1b[2A", b"\x1b[B", b"\x1b[K", b"\x1b[2K", b"\x1b[J", b"\x1b[2J", b"\x1b[H"),
    *(b"\x1b[31m", b"\x1b[?25l", b"\x1b[1G", b"\x1b[2D", b"\x1b[F", b"\x1b[E"),
]


class Stream:
    """One stream, with a clock that stands until it is moved."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._lines = LineAssembler(b">", limit)
        self.now = 100.0
        self.out: list[str] = []

    def write(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._take(self._lines.feed(piece, self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._take(self._lines.settle(self.now))

    def end(self) -> list[str]:
        self._take(self._lines.finish())
        return self.out

    @property
    def shown(self) -> list[str]:
        return [row.decode().removeprefix(">") for row in self._lines.shown(self.now)]

    @property
    def due_in(self) -> float:
        return self._lines.due_at() - self.now

    @property
    def is_prompt(self) -> bool:
        return self._lines.is_prompt

    def _take(self, lines: bytes) -> None:
        self.out += [line.removeprefix(">") for line in lines.decode().splitlines()]


@given(st.lists(st.sampled_from(TOKENS), max_size=30), st.sampled_from([4, 16, LINE_LIMIT]))
def test_how_the_bytes_of_a_drawing_arrive_makes_no_difference(
    tokens: list[bytes], limit: int
) -> None:
    whole = b"".join(tokens)
    results = []
    for pieces in (tokens, [whole], [bytes([b]) for b in whole]):
        lines = LineAssembler(b">", limit)
        out = b"".join([lines.feed(piece, 1.0) for piece in pieces])
        shown = lines.shown(1.0 + QUIET_S)
        results.append((shown, out + lines.finish()))
    assert results[0] == results[1] == results[2]


def test_the_beginning_of_an_escape_sequence_is_not_shown_before_its_end() -> None:
    for pieces in ([b"\n", b"a\x1b["], [b"\na\x1b["]):
        stream = Stream()
        stream.write(*pieces)
        stream.wait(QUIET_S)
        assert stream.shown == ["a"]
        assert stream.end() == ["", "a\x1b["]


def test_a_bar_is_one_row_until_it_is_a_line() -> None:
    bar = Stream()
    for n in range(100):
        bar.write(b"\rtrain:%3d%%" % n)
        assert bar.shown == [f"train:{n:3}%"]
    assert bar.out == []
    bar.write(b"\rtrain:100%", b"\n")
    bar.wait(SETTLED_S)
    assert bar.out == ["train:100%"]
    assert (bar.shown, bar.due_in) == ([], inf)


def test_a_return_at_the_end_is_drawn_too_and_the_next_text_replaces_the_row() -> None:
    bar = Stream()
    bar.write(b"loading 10/10\r")
    assert bar.shown == ["loading 10/10"]
    bar.write(b"done", b" 1\r")
    assert bar.shown == ["done 1"]
    assert bar.end() == ["done 1"]


def test_a_line_that_ends_as_on_windows_is_a_line_at_once() -> None:
    stream = Stream()
    stream.write(b"one\r\ntwo\r", b"\nthree\r\r\n")
    assert stream.out == ["one", "two", "three"]
    assert stream.shown == []


def test_a_bar_that_removes_itself_leaves_nothing() -> None:
    bar = Stream()
    bar.write(b"\rbatch 1/2", b"\rbatch 2/2", b"\r         \r")
    assert bar.shown == []
    assert bar.end() == []


def test_a_bar_that_grows_between_backspaces() -> None:
    bar = Stream()
    bar.write(b"[   ]" + b"\b" * 4)
    bar.write(b"-", b"-")
    assert bar.shown == ["[--"]
    bar.write(b" |", b"\b/", b"\b-")
    assert bar.shown == ["[-- -"]


def nested(stream: Stream, *, leave: bool) -> None:
    """Two loops, as tqdm draws them: it parks its cursor in the outer bar's row."""
    stream.write(b"\router 0/2")
    for n in (1, 2):
        for k in (0, 1, 2):
            stream.write(b"\n", b"\rinner %d/2" % k, b"\x1b[A")
            assert stream.shown[-2:] == [f"outer {n - 1}/2", f"inner {k}/2"]
            stream.wait(1.0)
        if leave:
            stream.write(b"\rinner 2/2", b"\n")
        else:
            stream.write(b"\n", b"\r         ", b"\x1b[A")
        stream.write(b"\router %d/2" % n)
    stream.write(b"\router 2/2", b"\n")
    stream.wait(1.0)


def test_nested_bars_that_go_leave_one_line() -> None:
    stream = Stream()
    nested(stream, leave=False)
    assert stream.out == ["outer 2/2"]
    assert stream.end() == ["outer 2/2"]


def test_nested_bars_that_stay_leave_a_line_each() -> None:
    stream = Stream()
    nested(stream, leave=True)
    assert stream.end() == ["inner 2/2", "inner 2/2", "outer 2/2"]


def test_a_bar_at_a_position_of_its_own_takes_one_row_and_leaves_one_line() -> None:
    """`tqdm(position=rank)` keeps the rows above for others, who draw elsewhere here."""
    bar = Stream()
    for n in range(3):
        bar.write(b"\n\n\n", b"\rr3 %d/2" % n, b"\x1b[A\x1b[A\x1b[A")
        assert bar.shown == [f"r3 {n}/2"]
        bar.wait(1.0)
        assert bar.out == []
    bar.write(b"\rr3 2/2", b"\n")
    bar.wait(1.0)
    assert bar.end() == ["r3 2/2"]


def test_a_message_above_a_bar_is_a_line_at_once() -> None:
    stream = Stream()
    stream.write(b"\rbar 1", b"\r     \r", b"message\n", b"\rbar 1", b"\rbar 2")
    assert stream.out == ["message"]
    assert stream.shown == ["bar 2"]


def test_a_display_of_several_rows_stays_while_it_is_refreshed() -> None:
    """As rich draws, where it is told that it has a terminal."""
    stream = Stream()
    stream.write(b"\x1b[?25l\r\x1b[2Kone 0%\n\x1b[2Ktwo 0%")
    for n in range(1, 100):
        stream.wait(0.1)
        stream.write(b"\r\x1b[2K\x1b[1A\x1b[2Kone %d%%\n\x1b[2Ktwo %d%%" % (n, n))
        assert stream.shown == [f"one {n}%", f"two {n}%"]
    assert stream.out == []
    stream.write(b"\n\x1b[?25h")
    stream.wait(1.0)
    assert stream.out == ["one 99%", "two 99%"]


def test_a_worker_that_dies_within_its_bars_leaves_their_last_states() -> None:
    stream = Stream()
    stream.write(b"\router 1/2", b"\n", b"\r\x1b[32minner 1/2", b"\x1b[A")
    assert stream.end() == ["outer 1/2", "\x1b[32minner 1/2\x1b[0m"]


def test_after_a_bar_plain_lines_are_as_fast_as_ever() -> None:
    stream = Stream()
    stream.write(b"\rbar 100%", b"\n", b"epoch 1\n")
    assert stream.out == ["bar 100%", "epoch 1"]
    assert stream._lines._drawing is None


def test_empty_lines_are_kept() -> None:
    stream = Stream()
    stream.write(b"\n", b"\n", b"one\n", b"\n\n", b"two\n\n")
    stream.wait(SETTLED_S)
    assert stream.out == ["", "", "one", "", "", "two", ""]


def test_a_prompt_below_an_empty_line_is_one() -> None:
    stream = Stream()
    stream.write(b"\n", b"(Pdb) ")
    stream.wait(SETTLED_S)
    assert stream.is_prompt
    assert stream.shown == ["(Pdb) "]


def test_a_coloured_line_that_clears_to_its_end_is_a_line_at_once() -> None:
    stream = Stream()
    stream.write(b"\x1b[31merror\x1b[m\x1b[K: no\n")
    assert stream.out == ["\x1b[31merror\x1b[m: no"]


def test_a_drawing_without_end_takes_bounded_memory() -> None:
    stream = Stream()
    for n in range(4 * MAX_ROWS):
        stream.write(b"\rrow %d" % n, b"\n")
    assert len(stream.shown) < MAX_ROWS
    assert len(stream.out) > 3 * MAX_ROWS
    for _ in range(4 * MAX_ROWS):
        stream.write(b"\x1b[999999A\x1b[999999B")
    assert len(stream.shown) < MAX_ROWS
    assert stream.end()[:3] == ["row 0", "row 1", "row 2"]


def test_an_unfinished_line_shows_when_nothing_more_comes() -> None:
    stream = Stream()
    stream.write(b"loading ", b"model ...")
    assert stream.shown == []
    assert 0 < stream.due_in < 2 * QUIET_S
    stream.wait(QUIET_S)
    assert stream.shown == ["loading model ..."]
    assert not stream.is_prompt
    stream.write(b" done\n")
    assert stream.out == ["loading model ... done"]
    assert stream.shown == []


def test_what_waits_for_an_answer_is_a_prompt() -> None:
    for text in (b"(Pdb) ", b">>> ", b"ipdb> ", b"Continue? [y/N] ", b"Password: ", b"Sure?"):
        stream = Stream()
        stream.write(b"-> x = 1\n", text)
        stream.wait(QUIET_S)
        assert stream.is_prompt, text
