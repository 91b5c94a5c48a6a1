"""Rounds that are formed and end before anybody looks at the job (`core/watch/turns.py`)."""

from __future__ import annotations

from tests.harness.job_machine import A, B, C, Host, failed
from tests.harness.watched import WatchedJob

from rallypoint.core.model import NodeRef, SharedSettings
from rallypoint.core.watch.turns import TURNS_MAX

THREE = SharedSettings(
    "job", 2, 3, max_restarts=3, min_growth_interval_s=0.0, join_settle_s=0.0, stop_patience_s=0.0
)
C_AGAIN = NodeRef("c", "life-c2")


def test_V2_a_round_that_ends_as_soon_as_it_is_formed_is_told_with_its_own_end() -> None:
    """Node c is lost while it stops, so round 1 begins, and its new agent joins in that moment."""
    job = WatchedJob(THREE)
    job.join(A, B, C)
    job.start(A, B, C)
    job.fail(A, failed(), 10.0)
    job.stop(A, B, at=11.0)
    unseen = Host(THREE)
    unseen.job, unseen.at = job.job, 12.0
    unseen.lose(C, heard_at=11.5)
    unseen.join(C_AGAIN)
    job.stop(A, at=12.0)
    job.stop(B, at=12.0)
    first, second, third = job.history.rounds
    blame = "rank 0 (node a, local rank 0) exited with code 1"
    assert (first.round, first.end, first.end_text, first.nodes) == (0, "failure", blame, 3)
    assert (second.round, second.end, second.end_text) == (1, "growth", "1 more node joined")
    assert (second.why, second.nodes) == (blame, 2)
    assert (third.round, third.end, third.why) == (2, "", "1 more node joined")
    assert job.history.rounds_formed == 3
    assert job.history.account.faults == 1


def test_a_job_whose_history_nobody_keeps_stays_small() -> None:
    job = Host(SharedSettings("job", 2, 2, max_restarts=1000))
    job.join(A, B)
    for _ in range(TURNS_MAX):
        job.fail(A, failed(), job.at + 100.0)
        job.join(A, B)
    assert len(job.job.turns) == TURNS_MAX
