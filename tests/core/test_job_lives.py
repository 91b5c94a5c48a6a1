"""R5, R6, F4: which life of a job an agent belongs to, and how lives are numbered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.core.job_lives import (
    FORGOTTEN,
    REMEMBERED_MAX,
    REMEMBERED_S,
    Attachment,
    BeginLife,
    HearVerdict,
    JobLives,
    Life,
    TakePart,
)
from rallypoint.core.model import Outcome, Verdict

EPOCH, OTHER = 7, 8
WALL_MS = 1_700_000_000_000
FAILED = Verdict(Outcome.FAILED, "rank 0 exited with code 3", 1)
CANCELLED = Verdict(Outcome.CANCELLED, "cancelled on node a: got SIGINT", 1)
SUCCEEDED = Verdict(Outcome.SUCCEEDED, "all workers exited with code 0", 1)


def here(incarnation: int) -> Attachment:
    return Attachment(incarnation, EPOCH)


def test_R5_a_node_that_was_lost_comes_back_to_a_job_that_runs() -> None:
    lives = JobLives(EPOCH)
    runs = Life(5, None)
    assert lives.place("job", here(5), runs, 0.0, WALL_MS) == TakePart(5)


@pytest.mark.parametrize("verdict", [FAILED, CANCELLED, SUCCEEDED])
def test_R5_a_node_that_was_lost_gets_the_verdict_while_the_job_is_hosted(verdict: Verdict) -> None:
    lives = JobLives(EPOCH)
    assert lives.place("job", here(5), Life(5, verdict), 0.0, WALL_MS) == TakePart(5)


@pytest.mark.parametrize("verdict", [FAILED, CANCELLED, SUCCEEDED])
def test_R5_a_node_that_was_lost_gets_the_verdict_when_the_job_is_hosted_no_more(
    verdict: Verdict,
) -> None:
    lives = JobLives(EPOCH)
    lives.over("job", Life(5, verdict), 0.0)
    assert lives.place("job", here(5), None, 3600.0, WALL_MS) == HearVerdict(5, verdict)


@pytest.mark.parametrize("next_life", [None, FAILED, SUCCEEDED])
def test_R5_a_node_that_was_lost_gets_its_own_verdict_while_the_next_job_is_hosted(
    next_life: Verdict | None,
) -> None:
    lives = JobLives(EPOCH)
    lives.over("job", Life(5, CANCELLED), 0.0)
    hosted = Life(6, next_life)
    assert lives.place("job", here(5), hosted, 1.0, WALL_MS) == HearVerdict(5, CANCELLED)


def test_R5_a_node_hears_the_verdict_of_a_life_that_another_coordinator_has_led() -> None:
    """Nobody runs again what has succeeded."""
    lives = JobLives(EPOCH)
    lives.over("job", Life(1000, SUCCEEDED), 0.0)
    known, new = Attachment(1000, EPOCH + 1), Life(2000, None, has_formed=False)
    assert lives.place("job", known, new, 1.0, 3000) == HearVerdict(1000, SUCCEEDED)


def test_R5_a_fresh_agent_begins_a_job_anew_that_failed_and_not_one_that_succeeded() -> None:
    lives = JobLives(EPOCH)
    began = lives.place("job", None, Life(5, FAILED), 0.0, WALL_MS)
    assert began == BeginLife(WALL_MS)
    assert lives.place("job", None, Life(5, SUCCEEDED), 0.0, WALL_MS) == TakePart(5)
    assert lives.place("job", None, Life(5, None), 0.0, WALL_MS) == TakePart(5)


def test_R5_R7_a_job_that_nobody_takes_part_in_begins_anew_for_other_settings() -> None:
    lives = JobLives(EPOCH)
    abandoned = Life(WALL_MS + 5, None, is_abandoned=True)
    began = lives.place("job", None, abandoned, 0.0, WALL_MS)
    assert began == BeginLife(WALL_MS + 6)
    lives.over("job", abandoned, 0.0)
    runs = Life(WALL_MS + 6, None)
    assert lives.place("job", here(WALL_MS + 5), runs, 1.0, WALL_MS) == TakePart(WALL_MS + 6)


def test_R5_a_job_that_everybody_left_goes_on_when_somebody_comes_back() -> None:
    lives = JobLives(EPOCH)
    lives.over("job", Life(5, None), 0.0)
    assert lives.place("job", here(5), None, 700.0, WALL_MS) == BeginLife(WALL_MS)
    assert lives.place("job", here(5), Life(WALL_MS, None), 700.0, WALL_MS) == TakePart(WALL_MS)


def test_R5_who_comes_back_when_nobody_remembers_the_end_is_told_that_it_was_one() -> None:
    lives = JobLives(EPOCH)
    lives.over("job", Life(5, SUCCEEDED), 0.0)
    late = REMEMBERED_S + 1
    assert lives.place("job", here(5), None, late, WALL_MS) == HearVerdict(5, FORGOTTEN)
    assert FORGOTTEN.outcome is Outcome.INFRASTRUCTURE, "exit code 75: worth another try"


def test_R5_what_is_remembered_of_jobs_that_are_over_is_bounded() -> None:
    lives = JobLives(EPOCH)
    for number in range(REMEMBERED_MAX + 10):
        lives.over(f"job{number}", Life(1, FAILED), float(number))
    assert len(lives) == REMEMBERED_MAX
    assert lives.place("job9", here(1), None, 2000.0, WALL_MS) == HearVerdict(1, FORGOTTEN)
    assert lives.place("job10", here(1), None, 2000.0, WALL_MS) == HearVerdict(1, FAILED)


def test_R5_agents_that_outlive_their_coordinator_begin_anew_and_once() -> None:
    """The next coordinator knows nothing of the job; but what ended there has ended for all."""
    lives = JobLives(OTHER)
    assert lives.place("job", here(5), None, 0.0, WALL_MS) == BeginLife(WALL_MS)
    assert lives.place("job", here(5), Life(6, None), 0.0, WALL_MS) == TakePart(6)
    assert lives.place("job", here(5), Life(6, FAILED), 0.0, WALL_MS) == TakePart(6)
    lives.over("job", Life(6, FAILED), 1.0)
    assert lives.place("job", here(5), None, 2.0, WALL_MS) == HearVerdict(6, FAILED)


def test_F4_the_incarnation_is_above_all_that_anybody_knows_of() -> None:
    behind = JobLives(OTHER)
    assert behind.place("job", here(WALL_MS + 9), None, 0.0, WALL_MS) == BeginLife(WALL_MS + 10)
    behind.over("job", Life(WALL_MS + 10, FAILED), 0.0)
    assert behind.place("job", None, None, 0.0, WALL_MS) == BeginLife(WALL_MS + 11)
    hosted = Life(WALL_MS + 20, FAILED)
    assert behind.place("job", None, hosted, 0.0, WALL_MS) == BeginLife(WALL_MS + 21)


def test_F4_an_agent_that_knows_a_higher_incarnation_raises_it_before_the_first_round() -> None:
    lives, known = JobLives(EPOCH), Attachment(9, OTHER)
    waits = Life(5, None, has_formed=False)
    assert lives.place("job", known, waits, 0.0, WALL_MS) == TakePart(10)
    assert lives.place("job", here(5), Life(10, None), 1.0, WALL_MS) == TakePart(10)
    assert lives.renumber("job", known, Life(5, None, has_formed=True), 0.0) == TakePart(5)
    assert lives.renumber("job", None, waits, 0.0) == TakePart(5)


clock = st.integers(0, 10)
wanted = st.lists(st.tuples(st.integers(0, 2), clock, st.booleans()), max_size=30)


@given(st.lists(wanted, max_size=4))
def test_F4_incarnations_of_a_job_never_fall_whatever_the_clock_says(
    coordinators: list[list[tuple[int, int, bool]]],
) -> None:
    """As long as whoever begins a life knows of the one before, or the coordinator does."""
    newest: dict[str, Attachment] = {}
    for epoch, begun in enumerate(coordinators):
        lives = JobLives(epoch)
        for job, wall_ms, is_hosted in begun:
            known = newest.get(run_id := f"job{job}")
            hosted = None
            if known is not None and known.epoch == epoch:
                hosted, known = Life(known.incarnation, FAILED), None
                if not is_hosted:
                    lives.over(run_id, hosted, 0.0)
                    hosted = None
            place = lives.place(run_id, known, hosted, 0.0, wall_ms)
            assert isinstance(place, BeginLife)
            before = newest.get(run_id)
            assert before is None or place.incarnation > before.incarnation
            newest[run_id] = Attachment(place.incarnation, epoch)
