"""F2: when a guard ends workers whose agent does not. Times in nanoseconds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rallypoint.core.liveness import AGENT_FIRST_NS, next_look_ns, overdue

SECOND = 1_000_000_000
HELD = 15 * SECOND
FENCE = HELD + AGENT_FIRST_NS
times = st.integers(0, 2**62)


def test_F2_workers_end_a_moment_after_the_lease_so_that_an_agent_that_runs_does_it() -> None:
    assert overdue(HELD, FENCE - 1, {7, 8}, set()) == set()
    assert overdue(HELD, FENCE, {7, 8}, set()) == {7, 8}


def test_F2_whoever_was_killed_is_killed_once_and_whoever_comes_late_too() -> None:
    assert overdue(HELD, FENCE, {7}, {7}) == set()
    assert overdue(HELD, FENCE, {7, 9}, {7}) == {9}


def test_F2_without_a_fence_nobody_is_looked_at() -> None:
    assert overdue(0, FENCE, {7}, set()) == set()
    assert next_look_ns(0, FENCE, {7}, set()) is None


def test_F2_a_guard_of_nobody_sleeps() -> None:
    assert next_look_ns(HELD, 0, set(), set()) is None
    assert next_look_ns(HELD, FENCE, {7}, {7}) is None


def test_F2_a_guard_looks_once_in_a_lease_however_often_that_is_renewed() -> None:
    now, looks = 0, 0
    while now < 60 * SECOND:
        held = now // SECOND * SECOND + HELD  # renewed every second
        assert overdue(held, now, {7}, set()) == set()
        wait = next_look_ns(held, now, {7}, set())
        assert wait is not None
        now, looks = now + wait, looks + 1
    assert looks <= 5


@given(times, times, st.sets(st.integers(1, 9)), st.sets(st.just(1)))
def test_F2_at_the_time_of_the_look_somebody_is_overdue(
    held: int, now: int, workers: set[int], killed: set[int]
) -> None:
    wait = next_look_ns(held, now, workers, killed)
    if wait is None:
        assert overdue(held, 2**63, workers, killed) == set()
    else:
        assert overdue(held, now + wait, workers, killed)
        assert wait == 0 or not overdue(held, now + wait - 1, workers, killed)
