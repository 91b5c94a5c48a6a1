"""The job machine, one behaviour each: with simulated agents where they matter, else alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.core import job
from rallypoint.core.events import NodeJoined, NodeLeft, NodeSucceeded, Timer, TimerEnded, TimerKind
from rallypoint.core.job_events import (
    Assign,
    EnrolmentFailed,
    FailuresDetailed,
    GiveVerdict,
    HostLeaving,
    JobCancelled,
    JobEffect,
    JobEvent,
    NodeDrains,
    NodeEnrolled,
    NodeFailed,
    Record,
    SessionLost,
    StartWorkers,
    StopWorkers,
)
from rallypoint.core.model import (
    Candidate,
    EndKind,
    NodeRef,
    Outcome,
    SharedSettings,
    Verdict,
    WorkerFailure,
)
from rallypoint.core.round_state import Phase

A, B, C = (NodeRef(name, f"life-{name}") for name in "abc")
RULES = SharedSettings("job", 2, 2, max_restarts=3)
CANDIDATE = Candidate(2, "default", "10.0.0.1", 29500)


class Host:
    """Keeps the time and what was asked for."""

    def __init__(self, settings: SharedSettings = RULES) -> None:
        self.job = job.new_job(settings)
        self.at = 0.0
        self.seqs: dict[NodeRef, int] = {}
        self.records: list[Record] = []

    def step(self, event: JobEvent, at: float | None = None) -> list[JobEffect]:
        self.at = self.at if at is None else at
        effects = job.step(self.job, event, self.at)
        self.records += [effect for effect in effects if isinstance(effect, Record)]
        return [effect for effect in effects if not isinstance(effect, Record)]

    def join(self, *refs: NodeRef) -> list[JobEffect]:
        effects: list[JobEffect] = []
        for ref in refs:
            self.seqs[ref] = self.seqs.get(ref, 0) + 1
            effects += self.step(
                NodeJoined(ref, self.seqs[ref], CANDIDATE, self.job.round.settings)
            )
        return effects

    def lose(self, ref: NodeRef, *, heard_at: float) -> list[JobEffect]:
        return self.step(SessionLost(ref, "its connection broke", heard_at))

    def fail(self, ref: NodeRef, failure: WorkerFailure, at: float) -> list[JobEffect]:
        round_ = self.job.round.round
        return self.step(NodeFailed(ref, round_, (failure,)), at)

    @property
    def verdict(self) -> Verdict:
        assert self.job.verdict is not None
        return self.job.verdict

    @property
    def blamed(self) -> str:
        """Who the last restart or verdict was for."""
        cause = self.job.verdict.cause if self.job.verdict else None
        if cause is not None:
            return cause.node_id
        return next(r.node_id for r in reversed(self.records) if r.name == "restart")


def failed(age_s: float = 0.0, code: int = 1, local_rank: int = 0) -> WorkerFailure:
    return WorkerFailure(local_rank, local_rank, "default", 9, code, None, age_s, 0.0)


def running(settings: SharedSettings = RULES, *refs: NodeRef) -> Host:
    """A job whose first round runs on `refs`."""
    host = Host(settings)
    refs = refs or (A, B)
    host.join(*refs)
    for ref in refs:
        host.step(NodeEnrolled(ref, 0))
    assert host.job.started
    return host


def verdicts(effects: list[JobEffect]) -> list[NodeRef]:
    return [effect.ref for effect in effects if isinstance(effect, GiveVerdict)]


def test_A3_nobody_is_blamed_before_every_participant_has_stopped() -> None:
    host = running(replace(RULES, max_restarts=0))
    effects = host.fail(A, failed(), at=10.0)
    assert [e.ref for e in effects if isinstance(e, StopWorkers)] == [A, B], "stopped at once"
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
    host.at = 12.0
    assert verdicts(host.lose(B, heard_at=11.0)) == [A]
    assert host.blamed == "a", "the failure was received while b was still heard"


def test_A3_a_lost_node_is_the_cause_of_what_its_peers_tell() -> None:
    host = running(replace(RULES, min_nodes=1, max_restarts=0))
    host.fail(A, failed(), at=10.1)
    host.join(A)
    host.at = 11.0
    host.lose(B, heard_at=10.0)
    assert host.job.verdict is None
    assert host.job.ledger.total == 0, "losses cost nothing"
    assert host.job.round.phase is Phase.ACTIVE


def test_A3_a_failure_that_is_detailed_late_keeps_when_it_was_received() -> None:
    host = running(replace(RULES, max_restarts=0))
    host.fail(A, failed(age_s=0.1), at=10.0)
    host.step(FailuresDetailed(A, 0, (replace(failed(age_s=5.0), message="boom"),)), at=15.0)
    host.join(A)
    host.lose(B, heard_at=12.0)
    assert host.blamed == "a"
    cause = host.verdict.cause
    assert cause is not None
    assert cause.failure is not None
    assert cause.failure.message == "boom"


def test_A3_a_report_that_comes_while_others_stop_may_be_the_first_cause() -> None:
    host = running(replace(RULES, max_restarts=0))
    host.fail(A, failed(), at=10.0)
    host.step(NodeFailed(B, 0, (failed(age_s=1.0, code=7),)), at=10.2)
    host.step(NodeFailed(B, 0, (failed(age_s=1.0, code=7),)), at=10.3)
    host.join(A, B)
    assert host.blamed == "b"
    assert host.verdict.cause is not None
    assert host.verdict.cause.collateral == 1, "a report told twice counts once"


@pytest.mark.parametrize("how", ["drain", "growth"])
def test_A3_what_fails_because_others_were_stopped_costs_nothing(how: str) -> None:
    rules = replace(RULES, min_nodes=1, max_nodes=3, max_restarts=0, min_growth_interval_s=0.0)
    host = Host(rules)
    host.join(A, B)
    host.step(TimerEnded(Timer(TimerKind.LAST_CALL, 0)))
    for ref in (A, B):
        host.step(NodeEnrolled(ref, 0))
    host.at = 10.0
    if how == "drain":
        host.step(NodeDrains(A, "it got SIGTERM", 15))
    else:
        host.join(C)
    assert host.job.end_reason is not None
    assert host.job.end_reason.kind is (EndKind.DRAIN if how == "drain" else EndKind.GROWTH)
    host.step(NodeFailed(B, 0, (failed(),)), at=10.1)
    host.join(B)
    if how == "growth":
        host.join(A)
    assert host.job.verdict is None
    assert host.job.round.phase is Phase.ACTIVE


def test_A3_what_failed_before_others_were_stopped_counts() -> None:
    host = running(replace(RULES, min_nodes=1, max_restarts=0))
    host.step(NodeDrains(A, "it got SIGTERM", 15), at=10.0)
    host.step(NodeFailed(B, 0, (failed(age_s=2.0),)), at=10.1)
    host.join(B)
    assert host.verdict.outcome is Outcome.FAILED


def test_the_verdict_is_given_once() -> None:
    host = running()
    assert verdicts(host.step(JobCancelled(A, "got SIGINT", 2))) == [A, B]
    verdict = host.verdict
    assert verdict.outcome is Outcome.CANCELLED
    assert verdict.signal == 2
    for event in (
        JobCancelled(B, "got SIGINT", 2),
        HostLeaving(A, "it got SIGTERM", 15),
        NodeFailed(A, 0, (failed(),)),
        SessionLost(A, "gone", 0.0),
        NodeLeft(B),
    ):
        assert host.step(event) == []
    assert host.verdict is verdict
    assert job.timers_wanted(host.job) == {}


def test_R5_who_joins_after_the_verdict_is_told_it() -> None:
    host = running()
    host.step(JobCancelled(A, "got SIGINT", 2))
    assert host.join(C) == [GiveVerdict(C, host.verdict)]
    assert job.truth(host.job, C) == [GiveVerdict(C, host.verdict)]


def test_A5_drains_of_all_nodes_within_3_s_are_one_stop_of_the_job() -> None:
    host = running()
    assert verdicts(host.step(NodeDrains(A, "it got SIGTERM", 15), at=10.0)) == []
    effects = host.step(NodeDrains(B, "it got SIGTERM", 15), at=13.0)
    assert verdicts(effects) == [A, B]
    assert host.verdict.outcome is Outcome.PREEMPTED
    assert host.verdict.signal == 15


def test_A5_drains_further_apart_are_departures() -> None:
    host = running()
    host.step(NodeDrains(A, "it got SIGTERM", 15), at=10.0)
    host.step(NodeDrains(B, "it got SIGTERM", 15), at=13.1)
    assert host.job.verdict is None


def test_A5_a_node_that_stands_by_keeps_the_job_alive() -> None:
    host = running(replace(RULES, min_nodes=1, max_nodes=1), A)
    host.join(B)
    effects = host.step(NodeDrains(A, "it got SIGTERM", 15), at=10.0)
    assert [e.ref for e in effects if isinstance(e, Assign)] == [B]
    assert host.job.verdict is None


def test_A5_a_draining_node_is_told_nothing_more_of_the_round() -> None:
    host = running(replace(RULES, min_nodes=1))
    effects = host.step(NodeDrains(A, "it got SIGTERM", 15), at=10.0)
    assert [e.ref for e in effects if isinstance(e, StopWorkers)] == [B]
    assert host.step(NodeDrains(A, "it got SIGTERM", 15)) == []
    effects = host.join(B)
    assert [e.ref for e in effects if isinstance(e, Assign)] == [B]
    assert host.job.ledger.total == 0


def test_A5_the_host_leaves_and_the_job_is_preempted() -> None:
    host = running()
    assert verdicts(host.step(HostLeaving(A, "it got SIGTERM", 15))) == [A, B]
    assert host.verdict.outcome is Outcome.PREEMPTED
    assert "rallypoint serve" in host.verdict.text
    alone = running(replace(RULES, min_nodes=1, max_nodes=1), A)
    alone.step(HostLeaving(A, "it got SIGTERM", 15))
    assert alone.verdict.text == "it got SIGTERM"


def test_F9_workers_start_only_after_every_node_has_enrolled() -> None:
    host = Host()
    effects = host.join(A, B)
    assert [e.assignment.enrol for e in effects if isinstance(e, Assign)] == [True, True]
    assert host.step(NodeEnrolled(A, 0)) == []
    assert host.step(NodeEnrolled(A, 0)) == []
    assert host.step(NodeEnrolled(C, 0)) == [], "a stranger"
    assert host.step(NodeEnrolled(replace(B, incarnation="older"), 0)) == []
    assert host.step(NodeEnrolled(B, 7)) == [], "another round"
    assert host.step(NodeEnrolled(B, 0)) == [StartWorkers(A, 0), StartWorkers(B, 0)]


def test_F9_one_node_needs_no_enrolment() -> None:
    host = Host(replace(RULES, min_nodes=1, max_nodes=1))
    [effect] = host.join(A)
    assert isinstance(effect, Assign)
    assert not effect.assignment.enrol


def test_F9_a_node_that_can_not_enrol_ends_the_job() -> None:
    host = Host()
    host.join(A, B)
    assert host.step(EnrolmentFailed(B, 3, "no route")) == [], "another round"
    assert verdicts(host.step(EnrolmentFailed(B, 0, "no route to 10.0.0.1:29500"))) == [A, B]
    assert host.verdict.outcome is Outcome.INFRASTRUCTURE
    assert host.verdict.text == "node b: no route to 10.0.0.1:29500"


def test_A4_all_succeed_and_the_job_is_over() -> None:
    host = running()
    assert host.step(NodeSucceeded(A, 0)) == []
    assert host.step(NodeSucceeded(A, 0)) == []
    assert verdicts(host.step(NodeSucceeded(B, 0))) == [A, B]
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_A4_a_node_lost_after_its_success_counts_as_succeeded() -> None:
    host = running()
    host.step(NodeSucceeded(A, 0))
    assert host.lose(A, heard_at=5.0) == []
    assert verdicts(host.step(NodeSucceeded(B, 0))) == [B]
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_A4_a_failure_elsewhere_runs_an_early_finisher_again() -> None:
    host = running()
    host.step(NodeSucceeded(A, 0))
    host.fail(B, failed(), at=1.0)
    effects = host.join(A, B)
    assert {e.ref for e in effects if isinstance(e, Assign)} == {A, B}
    assert host.step(NodeSucceeded(A, 0)) == [], "of the round before"
    assert host.job.verdict is None


def test_F1_reports_of_other_rounds_and_lives_are_dropped() -> None:
    host = running()
    before = job.status(host.job)
    older = replace(A, incarnation="older")
    for event in (
        NodeFailed(A, 1, (failed(),)),
        NodeFailed(older, 0, (failed(),)),
        NodeFailed(C, 0, (failed(),)),
        NodeFailed(A, 0, ()),
        NodeSucceeded(A, 1),
        NodeSucceeded(older, 0),
        SessionLost(older, "gone", 0.0),
        NodeDrains(older, "it got SIGTERM", 15),
        NodeLeft(older),
        EnrolmentFailed(A, 4, "no route"),
    ):
        assert host.step(event) == []
    assert job.status(host.job) == before
    assert host.job.reports == []


def test_A2_the_pause_before_a_restart_holds_the_round() -> None:
    host = running(replace(RULES, restart_backoff_s=5.0))
    host.fail(A, failed(), at=1.0)
    assert host.join(A, B) == []
    timer = Timer(TimerKind.BACKOFF, 1)
    assert job.timers_wanted(host.job)[timer] == 5.0
    effects = host.step(TimerEnded(timer))
    assert len([e for e in effects if isinstance(e, Assign)]) == 2
    assert host.step(TimerEnded(timer)) == []
    assert host.job.ledger.total == 1


def test_A2_restarts_are_counted_for_the_job_and_told_to_workers() -> None:
    host = running()
    for count in (1, 2, 3):
        host.fail(A if count % 2 else B, failed(), at=float(count))
        effects = host.join(A, B)
        assert {e.assignment.restart_count for e in effects if isinstance(e, Assign)} == {count}
        for ref in (A, B):
            host.step(NodeEnrolled(ref, host.job.round.round))
    host.fail(A, failed(), at=4.0)
    host.join(A, B)
    assert host.verdict.outcome is Outcome.FAILED
    assert host.verdict.restarts_used == 3


def test_R3_too_many_losses_end_the_job() -> None:
    host = running(replace(RULES, min_nodes=1, max_node_losses_per_hour=0))
    host.lose(B, heard_at=1.0)
    assert host.verdict.outcome is Outcome.INFRASTRUCTURE
    assert "--max-node-losses 0" in host.verdict.text
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
    assert job.truth(host.job, A) == []
    host.join(A)
    assert job.truth(host.job, A) == []
    host.join(B)
    [assign] = job.truth(host.job, A)
    assert isinstance(assign, Assign)
    for ref in (A, B):
        host.step(NodeEnrolled(ref, 0))
    assert job.truth(host.job, A) == [assign, StartWorkers(A, 0)]
    assert job.truth(host.job, replace(A, incarnation="older")) == []
    host.fail(B, failed(), at=1.0)
    [stop] = job.truth(host.job, A)
    assert isinstance(stop, StopWorkers)
    assert stop.round == 0
    host.join(A)
    assert job.truth(host.job, A) == []


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
