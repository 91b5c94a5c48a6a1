"""What a register holds of a job, and when what a job decides has to be written there."""

from __future__ import annotations

from functools import reduce

import pytest
from msgspec import msgpack
from msgspec.structs import fields
from tests.harness.takeovers import cluster_of, running, take_over, with_register

from rallypoint.core import messages as m
from rallypoint.core.fitness_state import BadMachine, BadRoute, Failure, Hold, Loss, Why
from rallypoint.core.host_effects import SendTo
from rallypoint.core.job_state import JobState, close, new_job, status
from rallypoint.core.model import (
    Candidate,
    EndKind,
    EndReason,
    Epoch,
    NodeRef,
    Outcome,
    SharedSettings,
    Stamp,
    Verdict,
    WorldEntry,
)
from rallypoint.core.restarts import ComparedExit, CrashLoop, Ledger
from rallypoint.core.round_state import MemberState, RoundMember, RoundPhase, add
from rallypoint.core.takeover.durable import Durable
from rallypoint.core.takeover.handover import Handover
from rallypoint.core.takeover.record import (
    NAMED_MAX,
    NAMES_CHARS,
    FormerLife,
    JobRecord,
    WorldNames,
    is_settled,
    job_of,
    record_of,
)
from rallypoint.core.watch.carried import Carried
from rallypoint.core.worker_exits import WorkerExit

SETTINGS = SharedSettings("job", 2, 3)
REF = NodeRef("a", "life")
ROUND_3 = Stamp(5, 3)


def eventful_job() -> JobState:
    """A job to which everything has happened that is remembered."""
    job = new_job(SETTINGS, 5)
    job.earlier_numbers, job.origin, job.ran_s = (3, 4), 2, 12.5
    state = job.round
    state.round, state.phase, state.held = 4, RoundPhase.FORMING, True
    state.world = [WorldEntry("a", "life", 1, "default"), WorldEntry("b", "other", 1, "default")]
    state.fitness.loss_count, state.largest_world = 7, 3
    state.fitness.recent_losses, state.lossy_rounds = [Loss(6, "c"), Loss(7, "c")], [1, 3]
    state.bad_routes = {"b": BadRoute(REF, 2, Hold(2, -5.0, 235.0))}
    state.passed_over = ["a"]
    bad = BadMachine("c", Why.LOSSES, "it was lost 3 times", 2, 3, 1, Hold(1, -10.0, 110.0))
    state.fitness.machines, state.fitness.holds = {"c": bad}, 2
    state.fitness.failures = [Failure(4, "d", 3, 1, "digest", is_charged=True, holds=True)]
    state.fitness.failure_count, state.fitness.passed_round = 4, 2
    state.fitness.reports_steps, state.fitness.trial = True, {"d"}
    state.fitness.lossy_machines = {1: "c"}
    job.ledger, job.judged_round, job.backoff_s = Ledger(9, [8, 9]), 4, 30.0
    job.crash_loop, job.furthest_step = (
        CrashLoop(2, 120, ComparedExit("exit code 3", "no data")),
        121,
    )
    job.carried = Carried(1000.0, 60.0, "stopping", "failure", (("stopping", "failure", 60.0),))
    job.end_reason, job.started = EndReason(EndKind.FAILURE, "rank 1 exited with code 1"), True
    job.last_end = EndReason(EndKind.LOSS, "node c was lost", "c")
    return job


def test_L3_what_one_coordinator_remembers_of_a_job_the_next_one_remembers_too() -> None:
    record = record_of(eventful_job())
    fresh = record_of(new_job(SharedSettings("other", 1, 1), 1))
    of_the_world = {"is_active", "is_started", "nodes", "succeeded", "stopped"}
    of_the_world |= {"leader_rank", "leader_node", "leader_machine", "stepped_down", "blamed"}
    of_the_world |= {"names", "left"}
    of_its_end = {"verdict", "former", "is_heard"}
    kept = [
        field.name for field in fields(JobRecord) if field.name not in of_the_world | of_its_end
    ]
    for name in kept:
        assert getattr(record, name) != getattr(fresh, name), name
    again = record_of(job_of(record, Epoch(2, 1)))
    for name in kept:
        assert getattr(again, name) == getattr(record, name), name


def test_L7_how_a_job_ended_before_it_was_begun_anew_is_in_its_record() -> None:
    former = FormerLife(4, Verdict(Outcome.FAILED, "a text", 0, 0, 0, None, 0))
    durable = Durable(eventful_job(), Handover(), is_recorded=False, former=former)
    assert durable.begin().former == former


def test_L4_the_record_names_the_rank_of_the_node_that_leads() -> None:
    cluster, (a, b) = running(2)
    standby = "the agent of a node that stands by"
    for leader, rank in ((b.ref.incarnation, 1), (a.ref.incarnation, 0), (standby, -1)):
        cluster.job.own_agent = leader
        cluster.write_record()
        assert cluster.record.leader_rank == rank
        assert cluster.record.leader_node == ("" if rank < 0 else "ab"[rank])


def test_L3_nobody_hears_that_too_few_nodes_came_before_it_is_recorded() -> None:
    cluster = cluster_of(2)
    (a,) = cluster.add("a")
    cluster.pass_time(cluster.settings.join_timeout_s)
    cluster.deliver_all()
    assert cluster.outcome is Outcome.TIMED_OUT
    assert a.state.verdict is None
    cluster.write_record()
    cluster.deliver_all()
    assert a.state.verdict == cluster.job.verdict


def test_L3_that_a_back_off_has_ended_is_recorded() -> None:
    """The next coordinator does not begin it anew."""
    cluster, (a, b) = running(2, restart_backoff_s=30.0)
    cluster.end_badly(b)
    cluster.give_up(b)
    cluster.agents.remove(b)
    cluster.settle()
    cluster.later(31.0)
    take_over(cluster)
    cluster.pass_time(18.5)  # Until then b may still run.
    (c,) = cluster.add("c")
    assert a.running == c.running == Stamp(2, 1)


def test_R3_that_a_node_is_lost_is_recorded_also_when_its_round_is_over() -> None:
    cluster, (a, b, c) = running(3)
    for agent in (b, c):  # a has not stopped its workers yet
        cluster.give_up(agent)
        assert not cluster.is_recorded
        cluster.write_record()
    assert a.running is not None
    assert [loss.machine for loss in cluster.record.recent_losses] == ["b", "c"]


def test_R3_that_a_helper_died_too_in_a_round_that_has_failed_is_recorded() -> None:
    cluster, (a, b) = running(2)
    cluster.fail_heard(a)
    cluster.write_record()
    assert not cluster.record.lossy_rounds
    b.local.append(m.HelperDied(Stamp(1, 0), "the round store was killed"))
    b.local_event()
    cluster.deliver(("up", b))
    assert not cluster.is_recorded
    cluster.write_record()
    assert cluster.record.lossy_rounds == (0,)


def test_L5_a_person_reads_how_many_workers_run_also_after_a_takeover() -> None:
    cluster = cluster_of(2)
    for name, workers in (("a", 3), ("b", 2)):
        cluster.start(name, workers)
    cluster.settle()
    take_over(cluster)
    assert status(cluster.job).world_workers == 5


def test_L5_a_round_that_has_begun_need_not_begin_again() -> None:
    """Nor is a node expelled that has succeeded, and did not come to tell that it is ready."""
    cluster, (a, b) = running(2)
    cluster.end_well(a)
    take_over(cluster, a)
    cluster.later(cluster.settings.join_timeout_s + 1.0)
    assert b.running == Stamp(1, 0)
    assert cluster.job.verdict is None


def test_L5_a_job_of_which_some_nodes_have_succeeded_does_not_grow_after_a_takeover() -> None:
    cluster = with_register(2, 3, min_growth_interval_s=0.0, join_settle_s=0.0)
    a, b = cluster.add("a", "b")
    cluster.later(cluster.settings.last_call_s)
    cluster.end_well(a)
    take_over(cluster, a)
    cluster.add("c")
    cluster.later(cluster.settings.join_settle_max_s + 1.0)
    assert b.running == Stamp(1, 0)
    cluster.end_well(b)
    assert cluster.outcome is Outcome.SUCCEEDED


def test_L5_a_failure_that_the_last_coordinator_heard_is_judged_before_the_next_round() -> None:
    """And the back-off is waited for."""
    cluster, (a, b) = running(2, restart_backoff_s=30.0)
    cluster.fail_heard(b)
    cluster.write_record()
    assert cluster.job.judged_round == 0
    take_over(cluster)
    assert cluster.job.ledger.total == 1
    assert a.running is b.running is None
    cluster.later(31.0)
    assert a.running == b.running == Stamp(1, 1)


# What is kept until it is recorded


def durable_job(*, is_recorded: bool = True) -> tuple[JobState, Durable]:
    job = new_job(SETTINGS)
    return job, Durable(job, Handover(), is_recorded=is_recorded)


def told(number: int) -> SendTo:
    return SendTo(1, m.Ack(number))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("incarnation", 2),
        ("round.phase", RoundPhase.ACTIVE),
        ("round.round", 1),
        ("started", True),
        ("judged_round", 1),
        ("ledger.total", 1),
        ("backoff_s", 5.0),
        ("round.succeeded", 1),
        ("round.fitness.loss_count", 1),
        ("round.lossy_rounds", [1]),
        ("stopped", {"an incarnation"}),
        ("verdict", Verdict(Outcome.FAILED, "a text", 0, 0, 0, None, 0)),
    ],
)
def test_L3_what_must_not_be_forgotten_is_recorded_before_anything_is_said(
    path: str, value: object
) -> None:
    job, durable = durable_job()
    assert durable.after([told(1)]) == [told(1)]
    *way, name = path.split(".")
    setattr(reduce(getattr, way, job), name, value)
    assert durable.after([told(2)]) == []


def test_L3_what_is_decided_while_a_record_is_written_waits_for_the_next_one() -> None:
    job, durable = durable_job()
    job.round.round = 1
    assert durable.after([told(1)]) == []
    durable.begin()
    job.round.round = 2
    assert durable.after([told(2)]) == []
    assert durable.written() == [told(1)]
    assert not durable.is_recorded
    durable.begin()
    assert durable.written() == [told(2)]
    assert durable.is_recorded


def test_L3_what_is_said_stays_in_order_though_nothing_more_has_to_be_recorded() -> None:
    _, durable = durable_job()
    assert durable.after([told(1)], is_sure=False) == []
    assert durable.after([told(2)]) == []
    durable.begin()
    assert durable.written() == [told(1), told(2)]
    assert durable.after([told(3)]) == [told(3)]


def test_L2_a_heartbeat_is_answered_while_a_record_is_written_but_not_by_who_is_unsure() -> None:
    job, durable = durable_job(is_recorded=False)
    beat = SendTo(1, m.HeartbeatAck(1, Stamp(1, 0), status(job)))
    assert durable.after([beat]) == [beat]
    assert durable.after([beat], is_sure=False) == []


def test_L3_an_agent_hears_nothing_before_it_is_told_that_it_is_attached() -> None:
    job, durable = durable_job(is_recorded=False)
    attached = SendTo(1, m.Attached("a", 1, 1, False))
    beat = SendTo(1, m.HeartbeatAck(1, Stamp(1, 0), status(job)))
    assert durable.after([attached]) == []
    assert durable.after([beat]) == []
    durable.begin()
    assert durable.written() == [attached, beat]
    job.round.round = 1
    assert durable.after([beat]) == [beat]


# What another coordinator would need


def job_in_round(*, active: bool = True, started: bool = True, judged: int = 3) -> JobState:
    """Round 3 of incarnation 5, or the wait for round 4."""
    job = new_job(SETTINGS, 5)
    job.round.round = 3 if active else 4
    job.round.phase = RoundPhase.ACTIVE if active else RoundPhase.FORMING
    job.started, job.judged_round = started, judged
    return job


def failed(incarnation: int = 5, round_: int = 3) -> m.Report:
    return m.Failed(Stamp(incarnation, round_), (WorkerExit(1, None),))


def not_enrolled(incarnation: int = 5, round_: int = 3) -> m.Report:
    return m.NotEnrolled(Stamp(incarnation, round_), "no answer")


@pytest.mark.parametrize(
    ("job", "report", "settled"),
    [
        (job_in_round(), failed(), False),
        (job_in_round(active=False), failed(), False),
        (job_in_round(active=False, judged=4), failed(), True),
        (job_in_round(), failed(round_=4), True),
        (job_in_round(), failed(incarnation=4), True),
        (job_in_round(started=False), not_enrolled(), False),
        (job_in_round(started=True), not_enrolled(), True),
        (job_in_round(started=False), not_enrolled(round_=2), True),
        (job_in_round(started=False), not_enrolled(incarnation=4), True),
        (job_in_round(), m.Succeeded(ROUND_3), True),
    ],
)
def test_L5_a_report_is_acknowledged_when_no_other_coordinator_would_need_it(
    job: JobState, report: m.Report, settled: bool
) -> None:
    assert is_settled(job, "a", report) is settled
    close(job, Outcome.CANCELLED, "a person has cancelled it")
    assert is_settled(job, "a", report)


@pytest.mark.parametrize(
    ("state", "settled"),
    [(MemberState.JOINED, False), (MemberState.RUNNING, True), (None, True)],
)
def test_L5_a_join_is_acknowledged_when_its_node_has_a_place_or_is_gone(
    state: MemberState | None, settled: bool
) -> None:
    job, candidate = job_in_round(), Candidate(1, "default", "a", 29500)
    if state is not None:
        add(job.round, RoundMember(REF, 1, candidate, state))
    assert is_settled(job, "a", m.Join(1, candidate)) is settled


def test_L5_the_record_names_the_nodes_of_a_small_world_and_of_no_large_one() -> None:
    """So a node that does not come to who takes over has a name, and the record stays small."""
    small = [f"gpu-{number:02}" for number in range(NAMED_MAX)]
    assert WorldNames.of(small).all == small
    assert len(msgpack.encode(WorldNames.of(small))) < 4 * NAMED_MAX
    assert WorldNames.of([*small, "one-more"]).all == []
    assert WorldNames.of(["x" * NAMES_CHARS, "y"]).all == []
    assert WorldNames.of(["a"]).all == ["a"]
    assert WorldNames.of([]).all == []
    assert WorldNames().all == []
