"""The record of how workers have ended: each exit counts once, and is reported once."""

from __future__ import annotations

import pytest

from rallypoint.core.group_events import Exit
from rallypoint.core.worker_exits import WorkerExit, WorkerExits

WELL, BADLY = WorkerExit(0, None), WorkerExit(3, None)
KILLED, TERMINATED = WorkerExit(None, 9), WorkerExit(None, 15)


def noted(*exits: tuple[int, WorkerExit]) -> WorkerExits:
    record = WorkerExits()
    for at, (local_rank, exit_) in enumerate(exits):
        record.note(local_rank, exit_, at=float(at), wall_time=1000.0 + at)
    return record


def test_the_first_note_of_a_worker_counts() -> None:
    record = noted((1, BADLY), (1, KILLED))
    assert len(record) == 1
    assert (record[1].exit, record[1].at, record[1].wall_time) == (BADLY, 0.0, 1000.0)
    assert 1 in record
    assert 0 not in record


def test_exits_are_reported_together_in_their_order_and_once() -> None:
    record = noted((1, WELL), (0, KILLED))
    assert record.report() == (Exit(1, 0, None), Exit(0, None, 9))
    assert record.report() == ()
    record.note(2, BADLY, at=5.0, wall_time=5.0)
    assert record.report() == (Exit(2, 3, None),)


def test_A3_a_failure_is_a_reason_to_look_at_the_others_until_it_is_reported() -> None:
    record = noted((0, WELL))
    assert not record.has_unreported_failure()
    record.note(1, BADLY, at=1.0, wall_time=1.0)
    assert record.has_unreported_failure()
    record.report()
    assert not record.has_unreported_failure()


def test_A5_a_sigkill_in_place_of_a_sigterm_counts_as_that() -> None:
    record = WorkerExits()
    record.killed_for_sigterm(0)
    record.killed_for_sigterm(1)
    record.note(0, KILLED, at=0.0, wall_time=0.0)
    record.note(1, BADLY, at=0.0, wall_time=0.0)
    record.note(2, KILLED, at=0.0, wall_time=0.0)
    assert [record[rank].exit for rank in record] == [TERMINATED, BADLY, KILLED]


@pytest.mark.parametrize(
    ("exits", "failed", "all_well"),
    [
        ([], [], False),
        ([(0, WELL)], [], False),
        ([(0, WELL), (1, WELL)], [], True),
        ([(1, BADLY), (0, WELL)], [1], False),
        ([(1, KILLED), (0, WorkerExit(None, None))], [1, 0], False),
    ],
)
def test_who_failed_and_whether_all_ended_well(
    exits: list[tuple[int, WorkerExit]], failed: list[int], all_well: bool
) -> None:
    record = noted(*exits)
    assert record.failed() == failed
    assert record.all_succeeded(2) is all_well
