"""The last call for a checkpoint, where a transcript in scenarios/ does not show it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.jobs import RULES, A, B, C, Host, failed, running, verdicts

from rallypoint.core import job
from rallypoint.core.events import (
    NodeLeft,
    NodeSucceeded,
    Timer,
    TimerEnded,
    TimerKind,
    WorkersFinishing,
)
from rallypoint.core.job_events import (
    Assign,
    CheckpointAnswered,
    DropCheckpoint,
    JobEvent,
    LeaveNow,
    NodeDrains,
    NodeEnrolled,
    NodeFailed,
    SessionLost,
    StartWorkers,
    StopWorkers,
    WantCheckpoint,
)
from rallypoint.core.model import EndKind, Outcome

ELASTIC = replace(RULES, min_nodes=1, max_nodes=3)
DRAIN_B = NodeDrains(B, "it got SIGTERM", 15, notice_s=20.0)


def test_F1_answers_to_other_questions_are_void() -> None:
    host = running(RULES)
    asked = host.step(DRAIN_B, at=10.0)
    assert [effect.ref for effect in asked if isinstance(effect, WantCheckpoint)] == [A, B]
    assert host.step(DRAIN_B, at=11.0) == [], "said twice"
    for void in (
        CheckpointAnswered(A, 1, 1, listens=True),
        CheckpointAnswered(A, 0, 2, listens=True),
        CheckpointAnswered(replace(A, incarnation="older"), 0, 1, listens=True),
        CheckpointAnswered(C, 0, 1, listens=True),
    ):
        assert host.step(void) == []
    answer = CheckpointAnswered(A, 0, 1, listens=True)
    assert host.step(answer) == host.step(answer) == []
    assert LeaveNow(B) in host.step(CheckpointAnswered(B, 0, 1, listens=False))
    assert host.step(answer) == []


def test_who_comes_back_is_asked_again_with_what_is_left() -> None:
    host = running(RULES)
    host.step(DRAIN_B, at=10.0)
    assign, start, want = job.truth(host.job, A, 15.0)
    assert isinstance(assign, Assign)
    assert isinstance(start, StartWorkers)
    assert want == WantCheckpoint(
        A, 0, 1, EndKind.DRAIN, "node b is leaving: it got SIGTERM", left_s=15.0
    )
    host.step(CheckpointAnswered(A, 0, 1, listens=True))
    assert len(job.truth(host.job, A, 15.0)) == 2, "it has answered"
    host.step(CheckpointAnswered(B, 0, 1, listens=True))
    assert job.truth(host.job, B, 15.0) == [LeaveNow(B)]


def test_A5_each_leaver_has_its_own_time() -> None:
    host = running(ELASTIC, A, B, C)
    host.step(DRAIN_B, at=10.0)
    host.step(NodeDrains(C, "it got SIGTERM", 15, notice_s=5.0), at=12.0)
    waits = {t.id: s for t, s in job.timers_wanted(host.job).items() if t.kind is TimerKind.NOTICE}
    assert waits == {"b": 20.0, "c": 5.0}
    [timer] = [t for t in job.timers_wanted(host.job) if t.id == "c"]
    effects = host.step(TimerEnded(timer), at=17.0)
    assert [e.ref for e in effects if isinstance(e, LeaveNow)] == [B, C]
    assert [e.ref for e in effects if isinstance(e, StopWorkers)] == [A]


def test_a_time_that_is_over_is_told_briefly() -> None:
    host = running(RULES)
    host.step(replace(DRAIN_B, notice_s=5.62749), at=10.0)
    host.step(TimerEnded(Timer(TimerKind.NOTICE, 0, B.node_id)), at=15.7)
    said = [record.text for record in host.records if record.name == "checkpoint"]
    assert said == ["2 nodes told of no checkpoint within 5.63 s (a, b): going on without"]


def test_A5_nothing_is_asked_where_no_worker_runs() -> None:
    host = running(ELASTIC, A, B, C)
    host.fail(A, failed(), at=1.0)
    effects = host.step(DRAIN_B, at=2.0)
    assert effects == [LeaveNow(B)]


def test_A5_what_fails_after_the_word_is_no_failure_of_the_job() -> None:
    """Not even what is told when the round has ended, if it happened before that."""
    host = running(replace(RULES, min_nodes=1), A, B)
    host.step(DRAIN_B, at=10.0)
    host.step(CheckpointAnswered(A, 0, 1, listens=True), at=13.0)
    host.step(CheckpointAnswered(B, 0, 1, listens=True), at=14.0)
    host.step(NodeFailed(A, 0, (failed(age_s=2.0),)), at=15.0)
    host.join(A)
    assert host.job.ledger.total == 0
    assert host.job.verdict is None


def test_A4_a_success_long_before_a_node_leaves_counts() -> None:
    host = running(ELASTIC, A, B, C)
    host.step(NodeSucceeded(B, 0), at=10.0)
    assert not [e for e in host.step(DRAIN_B, at=13.0) if isinstance(e, StopWorkers)]
    host.step(NodeSucceeded(A, 0), at=14.0)
    effects = host.step(NodeSucceeded(C, 0), at=15.0)
    assert verdicts(effects) == [A, B, C]
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_A4_a_success_just_before_it_leaves_does_not() -> None:
    host = running(ELASTIC, A, B, C)
    host.step(NodeSucceeded(B, 0), at=10.0)
    effects = host.step(DRAIN_B, at=11.0)
    assert [e.ref for e in effects if isinstance(e, StopWorkers)] == [A, C]
    assert host.job.verdict is None


def test_A5_all_leave_within_one_notice_and_the_job_is_preempted() -> None:
    host = running(RULES)
    host.step(DRAIN_B, at=10.0)
    host.step(NodeDrains(A, "it got SIGTERM", 15, notice_s=20.0), at=20.0)
    assert host.job.verdict is None, "their workers save a checkpoint"
    host.step(CheckpointAnswered(A, 0, 1, listens=True), at=21.0)
    host.step(CheckpointAnswered(B, 0, 1, listens=True), at=21.0)
    assert host.verdict.outcome is Outcome.PREEMPTED
    assert host.verdict.signal == 15


def test_R2_nobody_is_interrupted_for_a_growth_who_saves_no_checkpoint() -> None:
    growing = replace(RULES, min_nodes=1, max_nodes=2, at_checkpoint=True)
    host = running(replace(growing, max_nodes=1, min_growth_interval_s=0.0), A)
    host.job.round.settings = replace(growing, min_growth_interval_s=0.0)
    [want] = host.join(B)
    assert isinstance(want, WantCheckpoint)
    assert (want.kind, want.left_s) == (EndKind.GROWTH, None)
    assert host.step(CheckpointAnswered(A, 0, 1, listens=False)) == []
    effects = host.step(CheckpointAnswered(A, 0, 1, listens=True))
    assert [e.ref for e in effects if isinstance(e, StopWorkers)] == [A]


GROWING = replace(
    ELASTIC,
    min_nodes=2,
    max_nodes=3,
    at_checkpoint=True,
    min_growth_interval_s=0.0,
    join_settle_s=0.0,
)


def asked_to_grow() -> Host:
    """A and b run, and are asked for a checkpoint because c waits."""
    host = Host(GROWING)
    host.join(A, B)
    host.step(TimerEnded(Timer(TimerKind.LAST_CALL, 0)))
    for ref in (A, B):
        host.step(NodeEnrolled(ref, 0))
    host.at = 5.0
    assert [e.ref for e in host.join(C) if isinstance(e, WantCheckpoint)] == [A, B]
    return host


@pytest.mark.parametrize("how", ["left", "lost", "drains"])
def test_A4_a_success_counts_when_who_waited_for_a_checkpoint_has_gone(how: str) -> None:
    host = asked_to_grow()
    host.step(NodeSucceeded(A, 0), at=10.0)
    gone: dict[str, JobEvent] = {
        "left": NodeLeft(C),
        "lost": SessionLost(C, "it broke", 10.5),
        "drains": NodeDrains(C, "it got SIGTERM", 15, notice_s=20.0),
    }
    assert DropCheckpoint(B, 0, 1) in host.step(gone[how], at=11.0)
    host.step(NodeSucceeded(B, 0), at=20.0)
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_R2_a_job_that_is_finishing_is_not_grown_when_another_comes() -> None:
    host = asked_to_grow()
    host.step(WorkersFinishing(0), at=6.0)
    host.step(NodeLeft(C), at=7.0)
    assert host.job.round.finishing
    again = replace(C, incarnation="again")
    assert host.join(again) == []


def test_A4_a_node_lost_after_a_success_that_was_held_back_has_succeeded() -> None:
    host = asked_to_grow()
    host.step(NodeSucceeded(A, 0), at=10.0)
    effects = host.lose(A, heard_at=20.0)
    assert not [e for e in effects if isinstance(e, StopWorkers)]
    host.step(NodeSucceeded(B, 0), at=30.0)
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_A4_a_success_long_before_its_node_leaves_counts_though_others_waited_to_come() -> None:
    host = asked_to_grow()
    host.step(NodeSucceeded(A, 0), at=10.0)
    effects = host.step(NodeDrains(A, "it got SIGTERM", 15, notice_s=20.0), at=13.0)
    assert not [e for e in effects if isinstance(e, StopWorkers)]
    host.step(NodeSucceeded(B, 0), at=14.0)
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_A4_a_success_just_before_its_node_leaves_does_not_though_others_waited_to_come() -> None:
    host = asked_to_grow()
    host.step(NodeSucceeded(A, 0), at=10.0)
    effects = host.step(NodeDrains(A, "it got SIGTERM", 15, notice_s=20.0), at=11.0)
    assert [e.ref for e in effects if isinstance(e, StopWorkers)] == [B]


def test_A4_who_saved_for_a_node_that_has_gone_since_and_ended_has_not_succeeded() -> None:
    host = asked_to_grow()
    host.step(CheckpointAnswered(A, 0, 1, listens=True), at=6.0)
    host.step(NodeSucceeded(A, 0), at=6.1)
    assert host.step(NodeLeft(C), at=6.2) == [], "b may have saved too"
    effects = host.step(CheckpointAnswered(B, 0, 1, listens=True), at=6.3)
    assert [e.ref for e in effects if isinstance(e, StopWorkers)] == [A, B]
    assert host.job.verdict is None


def test_A4_who_saved_before_it_learned_that_nobody_waits_any_more_has_not_succeeded() -> None:
    host = asked_to_grow()
    host.step(NodeLeft(C), at=6.0)
    effects = host.step(CheckpointAnswered(A, 0, 1, listens=True), at=6.1)
    assert [e.ref for e in effects if isinstance(e, StopWorkers)] == [A, B]
    assert host.step(CheckpointAnswered(B, 0, 1, listens=True), at=6.1) == []
    assert host.step(NodeSucceeded(A, 0), at=6.2) == []
    host.join(A, B)
    assert host.job.verdict is None
    assert host.job.ledger.total == 0


def test_A4_nor_if_another_has_come_since() -> None:
    host = asked_to_grow()
    host.step(NodeLeft(C), at=6.0)
    host.join(replace(C, incarnation="again"))
    host.step(CheckpointAnswered(A, 0, 1, listens=True), at=6.1)
    host.step(NodeSucceeded(A, 0), at=6.2)
    effects = host.step(NodeSucceeded(B, 0), at=6.3)
    assert [e.ref for e in effects if isinstance(e, StopWorkers)] == [A, B]
