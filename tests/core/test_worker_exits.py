"""The record of how workers have ended: each exit counts once, and is reported once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.core.worker_exits import WorkerExit, WorkerExits

WELL, BADLY = WorkerExit(0, None), WorkerExit(3, None)
KILLED, TERMINATED = WorkerExit(None, 9), WorkerExit(None, 15)


def noted(*exits: tuple[int, WorkerExit]) -> WorkerExits:
    record = WorkerExits()
    for at, (local_rank, exit_) in enumerate(exits):
        record.note(replace(exit_, local_rank=local_rank, wall_time=1000.0 + at), at=float(at))
    return record


def test_the_first_note_of_a_worker_counts() -> None:
    record = noted((1, BADLY), (1, KILLED))
    assert len(record) == 1
    assert (record[1].code, record.noted_at(1), record[1].wall_time) == (3, 0.0, 1000.0)
    assert 1 in record
    assert 0 not in record


def test_exits_are_reported_together_in_their_order_and_once() -> None:
    record = noted((1, WELL), (0, KILLED))
    assert record.report() == (
        WorkerExit(0, None, local_rank=1, wall_time=1000.0),
        WorkerExit(None, 9, wall_time=1001.0),
    )
    assert record.report() == ()
    record.note(WorkerExit(3, None, local_rank=2), at=5.0)
    assert record.report() == (WorkerExit(3, None, local_rank=2),)


def test_A3_a_failure_is_a_reason_to_look_at_the_others_until_it_is_reported() -> None:
    record = noted((0, WELL))
    assert not record.has_unreported_failure()
    record.note(replace(BADLY, local_rank=1), at=1.0)
    assert record.has_unreported_failure()
    record.report()
    assert not record.has_unreported_failure()


def test_A5_a_sigkill_in_place_of_a_sigterm_counts_as_that() -> None:
    record = WorkerExits()
    record.killed_for_sigterm(0)
    record.killed_for_sigterm(1)
    for local_rank, exit_ in enumerate((KILLED, BADLY, KILLED)):
        record.note(replace(exit_, local_rank=local_rank), at=0.0)
    exits = [replace(record[rank], local_rank=0) for rank in record]
    assert exits == [TERMINATED, BADLY, KILLED]


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
