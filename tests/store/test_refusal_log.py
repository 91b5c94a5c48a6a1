"""What a store's log tells of those it turned away."""

from __future__ import annotations

from rallypoint.store.refusal_log import LINES_MAX, REMEMBERED, WINDOW_S, RefusalLog


def strangers(log: RefusalLog, first: int, number: int, now_s: float) -> list[int]:
    """So many refusals, each of another address: those that are told."""
    everybody = range(first, first + number)
    return [n for n in everybody if log.is_logged((f"10.0.0.{n}", "unknown"), now_s)]


def test_a_stranger_who_tries_for_ever_is_told_once() -> None:
    log = RefusalLog()
    told = [log.is_logged(("10.0.0.1", "unknown"), second) for second in range(100_000)]
    assert told.count(True) == 1
    assert log.due_s is None
    assert log.is_logged(("10.0.0.1", "another reason"), 100_000)


def test_a_flood_is_cut_short_and_counted_and_the_next_minute_is_told_again() -> None:
    log = RefusalLog()
    assert strangers(log, 0, 1000, 5.0) == list(range(LINES_MAX))
    assert strangers(log, 1000, 10, 5.0 + WINDOW_S - 1) == []
    assert log.due_s == 5.0 + WINDOW_S
    assert log.left_out() == 1000 - LINES_MAX + 10
    assert log.due_s is None
    assert strangers(log, 2000, 3, 5.0 + WINDOW_S) == [2000, 2001, 2002]
    assert log.left_out() == 0


def test_no_refusal_is_hidden_by_those_of_other_minutes() -> None:
    log = RefusalLog()
    for minute in range(100):
        assert len(strangers(log, minute * 60, 60, minute * WINDOW_S)) == 60
    assert log.due_s is None


def test_who_was_left_out_is_told_when_he_comes_again() -> None:
    log = RefusalLog()
    strangers(log, 0, LINES_MAX + 1, 0.0)
    log.left_out()
    assert strangers(log, LINES_MAX, 1, WINDOW_S) == [LINES_MAX]


def test_what_is_remembered_is_bounded() -> None:
    log = RefusalLog()
    for n in range(10 * REMEMBERED):
        log.is_logged((str(n), "unknown"), n * WINDOW_S)
    assert log.is_logged(("0", "unknown"), 1e9)
    assert not log.is_logged((str(10 * REMEMBERED - 1), "unknown"), 1e9)
