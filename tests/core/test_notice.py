"""The last call for a checkpoint, where a transcript in scenarios/ does not show it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.job_machine import (
    RULES,
    A,
    B,
    C,
    Host,
    failed,
    orders,
    running,
    stamp,
    told,
    verdicts,
)

from rallypoint.core import job
from rallypoint.core import messages as m
from rallypoint.core.events import Timer, TimerEnded, TimerKind
from rallypoint.core.job_state import JobEvent, PersonWants, SessionLost
from rallypoint.core.messages import FromNode, ToNode
from rallypoint.core.model import EndKind, Outcome
from rallypoint.core.settings import OnJoin
from rallypoint.core.watch.questions import Subject

ELASTIC = replace(RULES, min_nodes=1, max_nodes=3)
DRAIN_B = FromNode(B, m.Drain("it got SIGTERM", 15, notice_s=20.0))


def test_F1_answers_to_other_questions_are_void() -> None:
    host = running(RULES)
    asked = host.step(DRAIN_B, at=10.0)
    assert told(asked, m.CheckpointWanted) == [A, B]
    assert host.step(DRAIN_B, at=11.0) == [], "said twice"
    for void in (
        FromNode(A, m.CheckpointAnswered(stamp(1), 1, listens=True)),
        FromNode(A, m.CheckpointAnswered(stamp(), 2, listens=True)),
        FromNode(replace(A, incarnation="older"), m.CheckpointAnswered(stamp(), 1, listens=True)),
        FromNode(C, m.CheckpointAnswered(stamp(), 1, listens=True)),
    ):
        assert host.step(void) == []
    answer = FromNode(A, m.CheckpointAnswered(stamp(), 1, listens=True))
    assert host.step(answer) == host.step(answer) == []
    assert ToNode(B, m.LeaveNow(stamp(1))) in host.step(
        FromNode(B, m.CheckpointAnswered(stamp(), 1, listens=False))
    )
    assert host.step(answer) == []


def test_F1_a_drain_that_is_said_again_when_its_node_was_told_to_go_has_no_effect() -> None:
    host = running(RULES)
    host.step(DRAIN_B, at=10.0)
    for ref in (A, B):
        host.step(FromNode(ref, m.CheckpointAnswered(stamp(), 1, listens=True)), at=11.0)
    announced = [record for record in host.records if record.name == "node_draining"]
    assert host.step(DRAIN_B, at=12.0) == []
    assert [record for record in host.records if record.name == "node_draining"] == announced
    assert len(announced) == 1


def test_who_comes_back_is_asked_again_with_what_is_left() -> None:
    host = running(RULES)
    host.step(DRAIN_B, at=10.0)
    assign, start, want = job.resync(host.job, A, 15.0)
    assert told([assign, start], m.Assigned) == told([assign, start], m.StartNow) == [A]
    assert want == ToNode(
        A,
        m.CheckpointWanted(
            stamp(), 1, EndKind.DRAIN, "node b is leaving: it got SIGTERM", left_s=15.0
        ),
    )
    host.step(FromNode(A, m.CheckpointAnswered(stamp(), 1, listens=True)))
    assert len(job.resync(host.job, A, 15.0)) == 2, "it has answered"
    host.step(FromNode(B, m.CheckpointAnswered(stamp(), 1, listens=True)))
    assert job.resync(host.job, B, 15.0) == [ToNode(B, m.LeaveNow(stamp(1)))]


def test_A5_each_leaver_has_its_own_time() -> None:
    host = running(ELASTIC, A, B, C)
    host.step(DRAIN_B, at=10.0)
    host.step(FromNode(C, m.Drain("it got SIGTERM", 15, notice_s=5.0)), at=12.0)
    waits = {t.id: s for t, s in job.timers_wanted(host.job).items() if t.kind is TimerKind.NOTICE}
    assert waits == {"b": 20.0, "c": 5.0}
    [timer] = [t for t in job.timers_wanted(host.job) if t.id == "c"]
    effects = host.step(TimerEnded(timer), at=17.0)
    assert told(effects, m.LeaveNow) == [B, C]
    assert told(effects, m.StopNow) == [A]


def test_a_time_that_is_over_is_told_briefly() -> None:
    host = running(RULES)
    host.step(FromNode(B, m.Drain("it got SIGTERM", 15, notice_s=5.62749)), at=10.0)
    host.step(TimerEnded(Timer(TimerKind.NOTICE, 0, B.node_id)), at=15.7)
    said = [record.text for record in host.records if record.name == "checkpoint"]
    assert said == ["2 nodes reported no checkpoint within 5.63 s (a, b): continuing without it"]


def test_A5_nothing_is_asked_where_no_worker_runs() -> None:
    host = running(ELASTIC, A, B, C)
    host.fail(A, failed(), at=1.0)
    effects = host.step(DRAIN_B, at=2.0)
    assert effects == [ToNode(B, m.LeaveNow(stamp(1)))]


def test_A5_what_fails_after_the_word_is_no_failure_of_the_job() -> None:
    """Not even what is told when the round has ended, if it happened before that."""
    host = running(replace(RULES, min_nodes=1), A, B)
    host.step(DRAIN_B, at=10.0)
    host.step(FromNode(A, m.CheckpointAnswered(stamp(), 1, listens=True)), at=13.0)
    host.step(FromNode(B, m.CheckpointAnswered(stamp(), 1, listens=True)), at=14.0)
    host.step(FromNode(A, m.Failed(stamp(), (failed(age_s=2.0),))), at=15.0)
    host.join(A)
    assert host.job.ledger.total == 0
    assert host.job.verdict is None


def test_A4_a_success_long_before_a_node_leaves_counts() -> None:
    host = running(ELASTIC, A, B, C)
    host.step(FromNode(B, m.Succeeded(stamp())), at=10.0)
    assert not told(host.step(DRAIN_B, at=13.0), m.StopNow)
    host.step(FromNode(A, m.Succeeded(stamp())), at=14.0)
    effects = host.step(FromNode(C, m.Succeeded(stamp())), at=15.0)
    assert verdicts(effects) == [A, B, C]
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_A4_a_success_just_before_it_leaves_does_not() -> None:
    host = running(ELASTIC, A, B, C)
    host.step(FromNode(B, m.Succeeded(stamp())), at=10.0)
    effects = host.step(DRAIN_B, at=11.0)
    assert told(effects, m.StopNow) == [A, C]
    assert host.job.verdict is None


def test_A5_all_leave_within_one_notice_and_the_job_is_preempted() -> None:
    host = running(RULES)
    host.step(DRAIN_B, at=10.0)
    host.step(FromNode(A, m.Drain("it got SIGTERM", 15, notice_s=20.0)), at=20.0)
    assert host.job.verdict is None, "their workers save a checkpoint"
    host.step(FromNode(A, m.CheckpointAnswered(stamp(), 1, listens=True)), at=21.0)
    host.step(FromNode(B, m.CheckpointAnswered(stamp(), 1, listens=True)), at=21.0)
    assert host.verdict.outcome is Outcome.PREEMPTED
    assert host.verdict.signal == 15


def test_R2_nobody_is_interrupted_for_a_growth_who_saves_no_checkpoint() -> None:
    growing = replace(RULES, min_nodes=1, max_nodes=2, on_join=OnJoin.AT_CHECKPOINT)
    host = running(replace(growing, max_nodes=1, min_growth_interval_s=0.0), A)
    host.job.round.settings = replace(growing, min_growth_interval_s=0.0)
    [want] = orders(host.join(B), m.CheckpointWanted)
    assert (want.kind, want.left_s) == (EndKind.GROWTH, None)
    assert host.step(FromNode(A, m.CheckpointAnswered(stamp(), 1, listens=False))) == []
    effects = host.step(FromNode(A, m.CheckpointAnswered(stamp(), 1, listens=True)))
    assert told(effects, m.StopNow) == [A]


GROWING = replace(
    ELASTIC,
    min_nodes=2,
    max_nodes=3,
    on_join=OnJoin.AT_CHECKPOINT,
    min_growth_interval_s=0.0,
    join_settle_s=0.0,
)


def asked_to_grow() -> Host:
    """A and b run, and are asked for a checkpoint because c waits."""
    host = Host(GROWING)
    host.join(A, B)
    host.step(TimerEnded(Timer(TimerKind.LAST_CALL, 0)))
    for ref in (A, B):
        host.step(FromNode(ref, m.Enrolled(stamp())))
    host.at = 5.0
    assert told(host.join(C), m.CheckpointWanted) == [A, B]
    return host


@pytest.mark.parametrize("how", ["left", "lost", "drains"])
def test_A4_a_success_counts_when_who_waited_for_a_checkpoint_has_gone(how: str) -> None:
    host = asked_to_grow()
    host.step(FromNode(A, m.Succeeded(stamp())), at=10.0)
    gone: dict[str, JobEvent] = {
        "left": FromNode(C, m.Leave()),
        "lost": SessionLost(C, "it broke", 10.5),
        "drains": FromNode(C, m.Drain("it got SIGTERM", 15, notice_s=20.0)),
    }
    assert ToNode(B, m.CheckpointNotWanted(stamp(), 1)) in host.step(gone[how], at=11.0)
    host.step(FromNode(B, m.Succeeded(stamp())), at=20.0)
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_R2_a_job_that_is_finishing_is_not_grown_when_another_comes() -> None:
    host = asked_to_grow()
    host.step(FromNode(A, m.Finishing(stamp())), at=6.0)
    host.step(FromNode(C, m.Leave()), at=7.0)
    assert host.job.round.finishing
    again = replace(C, incarnation="again")
    assert host.join(again) == []


def test_A4_a_node_lost_after_a_success_that_was_held_back_has_succeeded() -> None:
    host = asked_to_grow()
    host.step(FromNode(A, m.Succeeded(stamp())), at=10.0)
    effects = host.lose(A, heard_at=20.0)
    assert not told(effects, m.StopNow)
    host.step(FromNode(B, m.Succeeded(stamp())), at=30.0)
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_A4_a_success_long_before_its_node_leaves_counts_though_others_waited_to_come() -> None:
    host = asked_to_grow()
    host.step(FromNode(A, m.Succeeded(stamp())), at=10.0)
    effects = host.step(FromNode(A, m.Drain("it got SIGTERM", 15, notice_s=20.0)), at=13.0)
    assert not told(effects, m.StopNow)
    host.step(FromNode(B, m.Succeeded(stamp())), at=14.0)
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_A4_a_success_just_before_its_node_leaves_does_not_though_others_waited_to_come() -> None:
    host = asked_to_grow()
    host.step(FromNode(A, m.Succeeded(stamp())), at=10.0)
    effects = host.step(FromNode(A, m.Drain("it got SIGTERM", 15, notice_s=20.0)), at=11.0)
    assert told(effects, m.StopNow) == [B]


def test_A4_who_saved_for_a_node_that_has_gone_since_and_ended_has_not_succeeded() -> None:
    host = asked_to_grow()
    host.step(FromNode(A, m.CheckpointAnswered(stamp(), 1, listens=True)), at=6.0)
    host.step(FromNode(A, m.Succeeded(stamp())), at=6.1)
    assert host.step(FromNode(C, m.Leave()), at=6.2) == [], "b may have saved too"
    effects = host.step(FromNode(B, m.CheckpointAnswered(stamp(), 1, listens=True)), at=6.3)
    assert told(effects, m.StopNow) == [A, B]
    assert host.job.verdict is None


def test_A4_who_saved_before_it_learned_that_nobody_waits_any_more_has_not_succeeded() -> None:
    host = asked_to_grow()
    host.step(FromNode(C, m.Leave()), at=6.0)
    effects = host.step(FromNode(A, m.CheckpointAnswered(stamp(), 1, listens=True)), at=6.1)
    assert told(effects, m.StopNow) == [A, B]
    assert host.step(FromNode(B, m.CheckpointAnswered(stamp(), 1, listens=True)), at=6.1) == []
    assert host.step(FromNode(A, m.Succeeded(stamp())), at=6.2) == []
    host.join(A, B)
    assert host.job.verdict is None
    assert host.job.ledger.total == 0


def test_V4_a_late_answer_to_a_person_ends_no_round_though_a_growth_was_called_off_since() -> None:
    host = asked_to_grow()
    host.step(FromNode(C, m.Leave()), at=6.0)
    answer = m.CheckpointAnswered(stamp(), 1, listens=True, goes_on=True)
    assert host.step(FromNode(A, answer), at=6.1) == []


def test_A5_the_answer_to_a_person_does_not_count_for_a_drain() -> None:
    host = running(RULES)
    host.step(PersonWants(Subject.CHECKPOINT), at=9.0)
    asked = host.step(DRAIN_B, at=10.0)
    assert [order.number for order in orders(asked, m.CheckpointWanted)] == [2, 2]
    for ref in (A, B):
        answer = m.CheckpointAnswered(stamp(), 1, listens=True, goes_on=True)
        assert host.step(FromNode(ref, answer), at=10.1) == [], "to what was asked before"
    host.step(FromNode(A, m.CheckpointAnswered(stamp(), 2, listens=True, drains=True)), at=11.0)
    ready = FromNode(B, m.CheckpointAnswered(stamp(), 2, listens=True, drains=True))
    assert ToNode(B, m.LeaveNow(stamp(1))) in host.step(ready, at=12.0)


def test_A4_nor_if_another_has_come_since() -> None:
    host = asked_to_grow()
    host.step(FromNode(C, m.Leave()), at=6.0)
    host.join(replace(C, incarnation="again"))
    host.step(FromNode(A, m.CheckpointAnswered(stamp(), 1, listens=True)), at=6.1)
    host.step(FromNode(A, m.Succeeded(stamp())), at=6.2)
    effects = host.step(FromNode(B, m.Succeeded(stamp())), at=6.3)
    assert told(effects, m.StopNow) == [A, B]
