"""How a job's events read, and which moments `--since` means."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from rallypoint.cli.watch.events import event_line, event_lines, newest_of, since
from rallypoint.core import event_kinds as kinds
from rallypoint.core.watch.history import HistoryEntry

NOON = datetime(2026, 11, 24, 12, 0, 0, tzinfo=UTC).timestamp()


def entry(at: float, text: str, node: str = "", *, is_wrong: bool = False) -> HistoryEntry:
    return HistoryEntry(1, at, "restart", "WARNING", 0, text, node, is_wrong)


def test_a_line_has_the_time_a_mark_for_what_went_wrong_and_the_node() -> None:
    ok = entry(NOON + 5, "node a joined", "a")
    assert event_line(ok, NOON + 60, UTC) == "12:00:05   node a joined"
    bad = entry(NOON + 5, "restart 1 of 2", "b", is_wrong=True)
    assert event_line(bad, NOON + 60, UTC) == "12:00:05 ! restart 1 of 2 (node b)"
    tomorrow = NOON + 86_400
    assert event_line(bad, tomorrow, UTC) == "2026-11-24 12:00:05 ! restart 1 of 2 (node b)"


@pytest.mark.parametrize(
    ("text", "seconds_before"),
    [
        ("90s", 90),
        ("10m", 600),
        ("10 min", 600),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("11:00", 3600),
        ("11:59:30", 30),
        ("12:00", 0),
        ("22:00", 14 * 3600),
        ("2026-11-24T11:00:00", 3600),
        ("2026-11-24", 12 * 3600),
        ("2026-11-24T12:00:00+01:00", 3600),
    ],
)
def test_since_means_an_age_or_a_time(text: str, seconds_before: float) -> None:
    assert since(text, NOON, UTC) == pytest.approx(NOON - seconds_before)


@pytest.mark.parametrize("text", ["", "1", "yesterday", "25:00", "-5m", "1h30", "10:61", "9" * 30])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        since(text, NOON, UTC)


def test_what_a_person_or_a_plan_wanted_did_not_go_wrong() -> None:
    wrong = {kind for kind in kinds.KINDS if kind.is_wrong}
    assert {kinds.ROUND_ENDED, kinds.NODE_LOST, kinds.RESTART, kinds.JOB_FAILED} <= wrong
    assert {kinds.CHECKPOINT_MISSED, kinds.HANG_SUSPECTED, kinds.NODE_REFUSED} <= wrong
    fine = {kinds.ROUND_CHANGED, kinds.ROUND_FORMED, kinds.VERDICT, kinds.NODE_DRAINING}
    assert not wrong & (fine | {kinds.CHECKPOINT, kinds.NODE_JOINED})


def test_of_many_lines_the_newest_are_shown() -> None:
    lines = ["a", "b", "c"]
    assert newest_of(lines, None, tell=True) == newest_of(lines, 3, tell=True) == lines
    assert newest_of(lines, 2, tell=True) == ["... 2 earlier events: --all, or --last N", "c"]
    assert newest_of(lines, 2, tell=False) == ["b", "c"]
    assert newest_of(lines, 1, tell=True) == ["c"]


def test_a_node_that_a_command_names_is_not_named_again() -> None:
    asked = "somebody at 10.0.0.7 used rallypoint nodes exclude b (version 0.1.0)"
    assert event_line(entry(NOON, asked, "b"), NOON, UTC) == f"12:00:00   {asked}"


def joins(*at_s: float) -> list[HistoryEntry]:
    return [
        replace(entry(NOON + at, f"node n{number} joined", f"n{number}"), number=number)
        for number, at in enumerate(at_s)
    ]


@pytest.mark.parametrize(
    ("at_s", "lines"),
    [
        ((20, 72), ["12:00:20   node n0 joined", "12:01:12   node n1 joined"]),
        ((20, 20.5), ["12:00:20   2 nodes joined: n[0-1]"]),
        ((20, 24, 28, 40), ["12:00:20-12:00:28   3 nodes joined: n[0-2]", "12:00:40   node n3 j"]),
    ],
)
def test_a_node_that_joined_late_has_its_own_time(
    at_s: tuple[float, ...], lines: list[str]
) -> None:
    told = event_lines(joins(*at_s), NOON, UTC)
    assert len(told) == len(lines)
    assert all(map(str.startswith, told, lines))


def test_events_between_nodes_that_join_keep_their_times() -> None:
    refused = replace(entry(NOON + 23, "node x was refused", is_wrong=True), number=9)
    first, *others = joins(20, 25, 26)
    told = event_lines([first, refused, *others], NOON, UTC)
    assert [line[:8] for line in told] == ["12:00:20", "12:00:23", "12:00:25"]
    assert event_lines([], NOON, UTC) == []
