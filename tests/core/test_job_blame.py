"""Who is blamed, what it costs, and when the job is over (A2, A3, A4)."""

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
from tests.harness.narrowed import known

from rallypoint.core import job
from rallypoint.core import messages as m
from rallypoint.core.events import Timer, TimerEnded, TimerKind
from rallypoint.core.messages import FromNode
from rallypoint.core.model import EndKind, Outcome
from rallypoint.core.round_state import RoundPhase


def test_A3_nobody_is_blamed_before_every_participant_has_stopped() -> None:
    host = running(replace(RULES, max_restarts=0))
    effects = host.fail(A, failed(), at=10.0)
    assert told(effects, m.StopNow) == [A, B], "stopped at once"
    assert host.join(A) == []
    assert host.job.verdict is None
    assert verdicts(host.join(B)) == [A, B]
    assert host.verdict.outcome is Outcome.FAILED
    assert host.blamed == "a"
    assert "rank 0 (node a, local rank 0) exited with code 1" in host.verdict.text
    assert "--max-restarts 0" in host.verdict.text


def test_A3_a_participant_that_is_lost_is_not_waited_for() -> None:
    host = running(replace(RULES, max_restarts=0))
    host.fail(A, failed(), at=10.0)
    host.join(A)
    assert verdicts(host.lose(B, heard_at=11.0, at=12.0)) == [A]
    assert host.blamed == "a", "the failure was received while b was still heard"


def test_A3_a_lost_node_is_the_cause_of_what_its_peers_tell() -> None:
    host = running(replace(RULES, min_nodes=1, max_restarts=0))
    host.fail(A, failed(), at=10.1)
    host.join(A)
    host.lose(B, heard_at=10.0, at=11.0)
    assert host.job.verdict is None
    assert host.job.ledger.total == 0, "losses cost nothing"
    assert host.job.round.phase is RoundPhase.ACTIVE


@pytest.mark.parametrize("tells_of_lost_peer", [True, False])
def test_A3_what_tells_of_a_lost_peer_costs_nothing_where_a_node_does_not_stop(
    tells_of_lost_peer: bool,
) -> None:
    """As when a machine loses its power: it is given up before its lease is over."""
    host = running(replace(RULES, min_nodes=1))
    host.fail(A, replace(failed(), tells_of_lost_peer=tells_of_lost_peer), at=10.0)
    host.join(A)
    host.step(TimerEnded(Timer(TimerKind.STOP, 1)), at=20.0)
    assert host.job.round.phase is RoundPhase.ACTIVE
    assert host.job.ledger.total == (0 if tells_of_lost_peer else 1)
    kind = EndKind.LOSS if tells_of_lost_peer else EndKind.FAILURE
    assert known(host.job.last_end).kind is kind


@pytest.mark.parametrize("gap_s", [0.0, 1e-6])
def test_A3_a_failure_whose_node_dies_with_it_is_charged_whatever_the_clock(gap_s: float) -> None:
    host = running(replace(RULES, min_nodes=1))
    host.fail(A, failed(), at=10.0 + gap_s)
    host.lose(A, heard_at=10.0, at=11.0)
    host.join(B)
    assert host.blamed == "a"
    assert host.job.ledger.total == 1


def test_A3_a_failure_that_is_detailed_late_keeps_when_it_was_received() -> None:
    host = running(replace(RULES, max_restarts=0))
    host.fail(A, failed(age_s=0.1), at=10.0)
    host.step(
        FromNode(A, m.Detailed(stamp(), (replace(failed(age_s=5.0), message="boom"),))), at=15.0
    )
    host.join(A)
    host.lose(B, heard_at=12.0)
    assert host.blamed == "a"
    cause = known(host.verdict.cause)
    assert known(cause.failure).message == "boom"


def test_A3_a_report_that_comes_while_others_stop_may_be_the_first_cause() -> None:
    host = running(replace(RULES, max_restarts=0))
    host.fail(A, failed(), at=10.0)
    host.step(FromNode(B, m.Failed(stamp(), (failed(age_s=1.0, code=7),))), at=10.2)
    host.step(FromNode(B, m.Failed(stamp(), (failed(age_s=1.0, code=7),))), at=10.3)
    host.join(A, B)
    assert host.blamed == "b"
    assert known(host.verdict.cause).collateral == 1, "a report told twice counts once"


@pytest.mark.parametrize("how", ["drain", "growth"])
def test_A3_what_fails_because_others_were_stopped_costs_nothing(how: str) -> None:
    rules = replace(RULES, min_nodes=1, max_nodes=3, max_restarts=0, min_growth_interval_s=0.0)
    host = Host(rules)
    host.join(A, B)
    host.step(TimerEnded(Timer(TimerKind.LAST_CALL, 0)))
    host.enrol(A, B)
    host.at = 10.0
    if how == "drain":
        host.step(FromNode(A, m.Drain("it got SIGTERM", 15)))
    else:
        host.join(C)
    assert known(host.job.end_reason).kind is (EndKind.DRAIN if how == "drain" else EndKind.GROWTH)
    host.step(FromNode(B, m.Failed(stamp(), (failed(),))), at=10.1)
    host.join(B)
    if how == "growth":
        host.join(A)
    assert host.job.verdict is None
    assert host.job.round.phase is RoundPhase.ACTIVE


DRAIN_A = FromNode(A, m.Drain("it got SIGTERM", 15))


@pytest.mark.parametrize("tells_of_lost_peer", [True, False])
@pytest.mark.parametrize("when", ["it is back without workers", "it leaves", "news of its drain"])
def test_A3_what_tells_of_the_workers_of_a_node_that_goes_or_came_back_costs_nothing(
    when: str, tells_of_lost_peer: bool
) -> None:
    """Its drain is read a moment before that failure, or after it, which ends the round then."""
    host = running(replace(RULES, min_nodes=1))
    ages_s = {"it is back without workers": 1.0, "it leaves": 0.5, "news of its drain": 0.0}
    failure = replace(failed(age_s=ages_s[when]), tells_of_lost_peer=tells_of_lost_peer)
    if when == "it is back without workers":
        host.join(A, at=10.0)
    elif when == "it leaves":
        host.step(DRAIN_A, at=10.0)
    host.step(FromNode(B, m.Failed(stamp(), (failure,))), at=10.1)
    if when == "news of its drain":
        host.step(DRAIN_A, at=10.9)
    host.join(B)
    assert host.job.ledger.total == (0 if tells_of_lost_peer else 1)


def test_A3_a_failure_that_is_read_after_the_news_of_a_drain_costs_nothing() -> None:
    """Another failure had ended the round before."""
    host = running(replace(RULES, min_nodes=1, max_nodes=3), A, B, C)
    lost_peer = replace(failed(), tells_of_lost_peer=True)
    host.step(FromNode(B, m.Failed(stamp(), (lost_peer,))), at=10.0)
    host.step(FromNode(A, m.Drain("it got SIGTERM", 15)), at=10.8)
    host.step(FromNode(C, m.Failed(stamp(), (failed(),))), at=10.9)
    host.join(B)
    host.join(C)
    assert host.job.ledger.total == 0


def test_A3_what_tells_of_a_lost_peer_long_before_a_drain_is_charged() -> None:
    host = running(replace(RULES, min_nodes=1))
    lost_peer = replace(failed(), tells_of_lost_peer=True)
    host.step(FromNode(B, m.Failed(stamp(), (lost_peer,))), at=10.0)
    host.step(FromNode(A, m.Drain("it got SIGTERM", 15)), at=13.0)
    host.join(B)
    assert host.job.ledger.total == 1


def test_A3_what_failed_before_others_were_stopped_counts() -> None:
    host = running(replace(RULES, min_nodes=1, max_restarts=0))
    host.step(FromNode(A, m.Drain("it got SIGTERM", 15)), at=10.0)
    host.step(FromNode(B, m.Failed(stamp(), (failed(age_s=2.0),))), at=10.1)
    host.join(B)
    assert host.verdict.outcome is Outcome.FAILED


def test_A4_all_succeed_and_the_job_is_over() -> None:
    host = running()
    assert host.step(FromNode(A, m.Succeeded(stamp()))) == []
    assert host.step(FromNode(A, m.Succeeded(stamp()))) == []
    assert verdicts(host.step(FromNode(B, m.Succeeded(stamp())))) == [A, B]
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_A4_a_node_lost_after_its_success_counts_as_succeeded() -> None:
    host = running()
    host.step(FromNode(A, m.Succeeded(stamp())))
    assert host.lose(A, heard_at=5.0) == []
    assert host.job.round.fitness.recent_losses == []
    assert verdicts(host.step(FromNode(B, m.Succeeded(stamp())))) == [B]
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_A4_a_failure_elsewhere_runs_an_early_finisher_again() -> None:
    host = running()
    host.step(FromNode(A, m.Succeeded(stamp())))
    host.fail(B, failed(), at=1.0)
    effects = host.join(A, B)
    assert set(told(effects, m.Assigned)) == {A, B}
    assert host.step(FromNode(A, m.Succeeded(stamp()))) == [], "of the round before"
    assert host.step(FromNode(B, m.Succeeded(stamp(1)))) == []
    assert host.job.verdict is None
    assert verdicts(host.step(FromNode(A, m.Succeeded(stamp(1))))) == [A, B]


def test_A2_the_pause_before_a_restart_holds_the_round() -> None:
    host = running(replace(RULES, restart_backoff_s=5.0))
    host.fail(A, failed(), at=1.0)
    assert host.join(A, B) == []
    timer = Timer(TimerKind.BACKOFF, 1)
    assert job.timers_wanted(host.job)[timer] == 5.0
    effects = host.step(TimerEnded(timer))
    assert len(told(effects, m.Assigned)) == 2
    assert host.step(TimerEnded(timer)) == []
    assert host.job.ledger.total == 1


def test_A2_restarts_are_counted_for_the_job_and_told_to_workers() -> None:
    host = running()
    for count in (1, 2, 3):
        host.fail(A if count % 2 else B, failed(code=count), at=float(count))
        effects = host.join(A, B)
        assert {e.assignment.restart_count for e in orders(effects, m.Assigned)} == {count}
        host.enrol(A, B)
    host.fail(A, failed(), at=4.0)
    host.join(A, B)
    assert host.verdict.outcome is Outcome.FAILED
    assert host.verdict.restarts_used == 3
