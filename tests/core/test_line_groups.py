"""Lines of many workers in few."""

from __future__ import annotations

from rallypoint.cli.watch.logs import unread_lines
from rallypoint.core.watch.line_groups import WorkerLine, fold_lines, lines_of, log_lines
from rallypoint.core.watch.names import brief_ranks


def folded(*lines: tuple[float, int, str]) -> list[str]:
    return log_lines(fold_lines(WorkerLine(*line) for line in lines))


def test_an_equal_line_of_many_ranks_is_one_with_the_ranks_named() -> None:
    lines = [(rank / 100, rank, "epoch 3 done") for rank in range(64) if rank != 17]
    assert folded(*lines, (0.3, 17, "nan")) == ["[0-16,18-63] epoch 3 done", "[17] nan"]


def test_lines_are_in_the_order_in_which_they_came() -> None:
    assert folded((2.0, 0, "c"), (1.0, 1, "a"), (1.0, 1, "b"), (1.5, 0, "a")) == [
        "[0-1] a",
        "[1] b",
        "[0] c",
    ]


def test_a_line_that_a_rank_writes_twice_is_there_twice() -> None:
    waits = [(float(at), rank, "waiting") for at in range(3) for rank in (0, 1)]
    assert folded(*waits) == ["[0-1] waiting"] * 3
    assert folded((0.0, 0, "x"), (0.0, 0, "x"), (0.1, 1, "x")) == ["[0-1] x", "[0] x"]


def test_equal_lines_of_different_times_are_two() -> None:
    assert folded((0.0, 0, "saved"), (60.0, 1, "saved")) == ["[0] saved", "[1] saved"]


def test_lines_are_shown_as_a_terminal_would() -> None:
    text = "\x1b[31mred\x1b[0m\r\n\n  \n 10%|#  |\r 50%|## |\r\x1b]0;title\x07done\nlast\n"
    assert lines_of(text) == ["red", "done", "last"]
    assert lines_of("") == []


def test_ranks_that_are_no_row_are_counted() -> None:
    assert brief_ranks(range(512)) == "0-511"
    assert brief_ranks([1, 2, 3, 9]) == "1-3,9"
    many = brief_ranks(range(0, 512, 2))
    assert many == "0,2,4,6,8,10,12,14,16,18,20,… 256 ranks"


def test_what_is_not_kept_is_said_with_the_option_that_keeps_it() -> None:
    straight = "is not kept, as it goes straight to the terminal of the agent: start the job with"
    assert unread_lines({(0, 1), (1, 1), (1, 2)}) == [
        f"stdout of ranks 0-1 {straight} --tee 1, or --output prefix",
        f"stderr of rank 1 {straight} --tee 2, or --output prefix",
    ]
    assert unread_lines(()) == []
