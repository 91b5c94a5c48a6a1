"""How far a worker is, by its own report or by its output."""

from __future__ import annotations

from tests.harness.narrowed import known

from rallypoint.agent.progress import Progress, furthest, progress_of
from rallypoint.wire.shm import EMPTY_SLOT, Reported

S = 1_000_000_000
REPORTED = Reported(7, 10 * S, 100, 0.5, None, 0)
PRINTED = Reported(30, 12 * S, None, None, 900, 2)


def test_a_report_is_believed_more_than_the_output() -> None:
    assert progress_of(EMPTY_SLOT, 20 * S) is None
    printed = EMPTY_SLOT._replace(printed=PRINTED)
    assert progress_of(printed, 20 * S) == Progress(30, 8.0, tokens=900)
    both = printed._replace(reported=REPORTED)
    assert progress_of(both, 20 * S) == Progress(7, 10.0, 100, 0.5)


def test_a_first_line_of_output_does_not_begin_the_time_of_a_hang() -> None:
    first = EMPTY_SLOT._replace(printed=PRINTED._replace(changes=1))
    told = known(progress_of(first, 20 * S))
    assert not told.is_timed
    assert known(progress_of(EMPTY_SLOT._replace(printed=PRINTED), 20 * S)).is_timed


def test_the_furthest_worker_is_that_of_the_largest_step() -> None:
    assert furthest([]) is None
    assert furthest([None, None]) is None
    assert furthest([Progress(3, 0.0), None, Progress(5, 9.0)]) == Progress(5, 9.0)
