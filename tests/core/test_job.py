"""The job machine, one behaviour each: with simulated agents where they matter, else alone."""

from __future__ import annotations

from msgspec.structs import replace
from tests.harness.job_machine import (
    CANDIDATE,
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
from rallypoint.core.job_state import SessionLost
from rallypoint.core.messages import FromNode, ToNode
from rallypoint.core.model import Outcome


def test_the_verdict_is_given_once() -> None:
    host = running()
    assert verdicts(host.step(FromNode(A, m.Cancel("got SIGINT", 2)))) == [A, B]
    verdict = host.verdict
    assert verdict.outcome is Outcome.CANCELLED
    assert verdict.signal == 2
    for event in (
        FromNode(B, m.Cancel("got SIGINT", 2)),
        FromNode(A, m.Drain("it got SIGTERM", 15, hosts=True)),
        FromNode(A, m.Failed(stamp(), (failed(),))),
        SessionLost(A, "gone", 0.0),
        FromNode(B, m.Leave()),
    ):
        assert host.step(event) == []
    assert host.verdict is verdict
    assert job.timers_wanted(host.job) == {}


def test_R5_who_joins_after_the_verdict_is_told_it() -> None:
    host = running()
    host.step(FromNode(A, m.Cancel("got SIGINT", 2)))
    assert host.join(C) == [job.verdict_to(host.job, C)]
    assert job.resync(host.job, C, host.at) == [job.verdict_to(host.job, C)]


def test_A5_drains_of_all_nodes_within_3_s_are_one_stop_of_the_job() -> None:
    host = running()
    assert verdicts(host.step(FromNode(A, m.Drain("it got SIGTERM", 15)), at=10.0)) == []
    effects = host.step(FromNode(B, m.Drain("it got SIGTERM", 15)), at=13.0)
    assert verdicts(effects) == [A, B]
    assert host.verdict.outcome is Outcome.PREEMPTED
    assert host.verdict.signal == 15


def test_A5_drains_further_apart_are_departures() -> None:
    host = running()
    host.step(FromNode(A, m.Drain("it got SIGTERM", 15)), at=10.0)
    host.step(FromNode(B, m.Drain("it got SIGTERM", 15)), at=13.1)
    assert host.job.verdict is None


def test_A5_a_node_that_stands_by_keeps_the_job_alive() -> None:
    host = running(replace(RULES, min_nodes=1, max_nodes=1), A)
    host.join(B)
    effects = host.step(FromNode(A, m.Drain("it got SIGTERM", 15)), at=10.0)
    assert told(effects, m.Assigned) == [B]
    assert host.job.verdict is None


def test_A5_a_draining_node_is_told_nothing_more_of_the_round() -> None:
    host = running(replace(RULES, min_nodes=1))
    effects = host.step(FromNode(A, m.Drain("it got SIGTERM", 15)), at=10.0)
    assert told(effects, m.StopNow) == [B]
    assert host.step(FromNode(A, m.Drain("it got SIGTERM", 15))) == []
    effects = host.join(B)
    assert told(effects, m.Assigned) == [B]
    assert host.job.ledger.total == 0


def test_A5_the_host_leaves_and_the_job_is_preempted() -> None:
    host = running()
    assert verdicts(host.step(FromNode(A, m.Drain("it got SIGTERM", 15, hosts=True)))) == [A, B]
    assert host.verdict.outcome is Outcome.PREEMPTED
    assert host.verdict.text == "node a, which hosts the coordinator, is leaving: it got SIGTERM"
    alone = running(replace(RULES, min_nodes=1, max_nodes=1), A)
    alone.step(FromNode(A, m.Drain("it got SIGTERM", 15, hosts=True)))
    assert alone.verdict.text == "it got SIGTERM"


def test_A5_when_all_leave_the_text_is_not_about_the_host() -> None:
    """As at the end of an allocation: nobody would be left whom another coordinator could help."""
    host = running()
    host.step(FromNode(B, m.Drain("its time is over", 15)), at=10.0)
    effects = host.step(FromNode(A, m.Drain("its time is over", 15, hosts=True)), at=10.1)
    assert verdicts(effects) == [A, B]
    assert host.verdict.text == "every node is leaving: its time is over"


def test_F9_workers_start_only_after_every_node_has_enrolled() -> None:
    host = Host()
    effects = host.join(A, B)
    assert [e.assignment.enrol for e in orders(effects, m.Assigned)] == [True, True]
    assert host.step(FromNode(A, m.Enrolled(stamp()))) == []
    assert host.step(FromNode(A, m.Enrolled(stamp()))) == []
    assert host.step(FromNode(C, m.Enrolled(stamp()))) == [], "a stranger"
    assert host.step(FromNode(replace(B, incarnation="older"), m.Enrolled(stamp()))) == []
    assert host.step(FromNode(B, m.Enrolled(stamp(7)))) == [], "another round"
    assert host.step(FromNode(B, m.Enrolled(stamp()))) == [
        ToNode(A, m.StartNow(stamp())),
        ToNode(B, m.StartNow(stamp())),
    ]


def test_F9_one_node_needs_no_enrolment() -> None:
    host = Host(replace(RULES, min_nodes=1, max_nodes=1))
    [assigned] = orders(host.join(A), m.Assigned)
    assert not assigned.assignment.enrol


def test_F1_reports_of_other_rounds_and_lives_are_dropped() -> None:
    host = running()
    before = job.status(host.job)
    older = replace(A, incarnation="older")
    for event in (
        FromNode(A, m.Failed(stamp(1), (failed(),))),
        FromNode(older, m.Failed(stamp(), (failed(),))),
        FromNode(C, m.Failed(stamp(), (failed(),))),
        FromNode(A, m.Failed(stamp(), ())),
        FromNode(A, m.Succeeded(stamp(1))),
        FromNode(older, m.Succeeded(stamp())),
        SessionLost(older, "gone", 0.0),
        FromNode(older, m.Drain("it got SIGTERM", 15)),
        FromNode(older, m.Leave()),
        FromNode(A, m.NotEnrolled(stamp(4), "no route")),
    ):
        assert host.step(event) == []
    assert job.status(host.job) == before
    assert host.job.reports == []


def test_R3_too_many_losses_end_the_job() -> None:
    host = running(replace(RULES, min_nodes=1, max_node_losses_per_hour=0))
    host.lose(B, heard_at=1.0)
    assert host.verdict.outcome is Outcome.INFRASTRUCTURE
    assert "1 round ended within an hour by the loss of nodes" in host.verdict.text
    assert "(--max-node-losses 0)" in host.verdict.text
    assert host.blamed == "b"


def test_R3_a_timeout_names_who_was_missing() -> None:
    host = running()
    host.lose(B, heard_at=1.0)
    host.join(A)
    host.step(TimerEnded(Timer(TimerKind.JOIN, 1)))
    assert host.verdict.outcome is Outcome.TIMED_OUT
    assert host.verdict.text == ("waited 600 s for 2 nodes, only 1 joined: a; missing: b")


def test_a_member_that_comes_back_is_told_the_truth() -> None:
    host = Host()
    assert job.resync(host.job, A, host.at) == []
    host.join(A)
    assert job.resync(host.job, A, host.at) == []
    host.join(B)
    [assign] = job.resync(host.job, A, host.at)
    assert told([assign], m.Assigned) == [A]
    host.enrol(A, B)
    assert job.resync(host.job, A, host.at) == [assign, ToNode(A, m.StartNow(stamp()))]
    assert job.resync(host.job, replace(A, incarnation="older"), host.at) == []
    host.fail(B, failed(), at=1.0)
    [stop] = orders(job.resync(host.job, A, host.at), m.StopNow)
    assert stop.stamp == stamp()
    host.join(A)
    assert job.resync(host.job, A, host.at) == []


def test_status_says_where_the_job_is() -> None:
    host = Host()
    host.join(A)
    status = job.status(host.job)
    assert (status.phase, status.joined, status.world_nodes) == ("forming", 1, 0)
    host.join(B, C)
    status = job.status(host.job)
    assert (status.phase, status.standby) == ("active", 1)
    assert (status.world_nodes, status.world_workers) == (2, 4)
    host.fail(A, failed(), at=1.0)
    status = job.status(host.job)
    assert (status.round, status.stopping, status.world_workers) == (1, 2, 0)


def test_a_node_tells_of_no_more_failures_than_it_has_workers() -> None:
    host = running()
    made_up = [failed(local_rank=rank) for rank in (0, 0, -1, CANDIDATE.workers, 2**40, 1)]
    host.step(FromNode(A, m.Failed(stamp(), tuple(made_up))))
    host.step(FromNode(A, m.Failed(stamp(), tuple(made_up))))
    assert [report.failure.local_rank for report in host.job.reports] == [0, 1]


def test_who_takes_no_part_has_no_success_to_be_remembered() -> None:
    host = running()
    host.step(FromNode(C, m.Succeeded(stamp())))
    assert not host.job.succeeded_at


def test_L5_an_agent_may_only_resume_what_the_job_knows_of() -> None:
    host = running()
    active = m.Doing.RUNNING, m.Doing.ENROLLING, m.Doing.SUCCEEDED_WHEN_ASKED
    for doing in active:
        assert job.agrees(host.job, A, m.Claim(doing, stamp()))
        assert not job.agrees(host.job, A, m.Claim(doing, stamp(1))), "never formed"
        assert not job.agrees(host.job, A, m.Claim(doing, replace(stamp(), incarnation=2)))
        assert not job.agrees(host.job, A, m.Claim(doing)), "in no round"
        assert not job.agrees(host.job, C, m.Claim(doing, stamp())), "no member"
    for doing in (m.Doing.IDLE, m.Doing.JOINED, m.Doing.STOPPING, m.Doing.DRAINING):
        assert job.agrees(host.job, A, m.Claim(doing, stamp(9)))
    host.step(FromNode(A, m.Cancel("got SIGINT", 2)))
    assert job.agrees(host.job, C, m.Claim(m.Doing.RUNNING, stamp(9))), "it hears the verdict"


def test_F1_a_report_about_another_life_of_the_job_is_answered_with_what_holds() -> None:
    host = running()
    report = m.Succeeded(replace(stamp(), incarnation=2))
    effects = host.step(FromNode(A, report))
    assert told(effects, m.Assigned) == told(effects, m.StartNow) == [A]
    assert host.step(FromNode(A, m.Succeeded(stamp()))) == []
    assert verdicts(host.step(FromNode(B, m.Succeeded(stamp())))) == [A, B]
