"""A register holds an older record of a job than one that was there before, or none: what a process
knows of that, and what it goes on with. Pure."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.newest_record import JOB, NEWEST, NODE, OLDER, SETTINGS, TOKEN, told
from tests.harness.takeovers import running

from rallypoint.core import messages as m
from rallypoint.core.model import (
    EndKind,
    EndReason,
    Epoch,
    JobStatus,
    Outcome,
    Stamp,
    Verdict,
)
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.handover import Handover
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leading import Watch, after_put_back_s
from rallypoint.core.takeover.memory import Memory, is_overtaken, order_of, told_of
from rallypoint.core.takeover.record import JobRecord, LeadRecord, MachinesRecord
from rallypoint.core.takeover.told import Seal

STATUS = JobStatus("active", 0, 0, 0, 0, 0, 0, 0, 0)


# What a node is told


def test_L9_a_position_shows_that_a_leader_of_the_job_has_made_it() -> None:
    position = told()
    assert Seal("job", TOKEN).is_genuine(position)
    assert not Seal("job", b"another token").is_genuine(position)
    assert not Seal("another job", TOKEN).is_genuine(position)
    assert not Seal("job", TOKEN).is_genuine(replace(position, digest=b""))


@pytest.mark.parametrize(
    "part",
    ["epoch", "beat", "told_life", "last_round", "nodes", "judged_round", "restarts", "counted"],
)
def test_L9_no_part_of_a_position_can_be_changed(part: str) -> None:
    position = told()
    changed = replace(position, **{part: getattr(position, part) + 1})
    assert not Seal("job", TOKEN).is_genuine(changed)


def test_L9_a_job_without_a_token_has_positions_too() -> None:
    seal = Seal("job")
    assert seal.is_genuine(seal.sealed(told_of(NEWEST)))


# What a process knows


def job_after(memory: Memory, record: LeadRecord | None) -> JobRecord:
    """What a process goes on with that has found this record."""
    restored = memory.restored(record)
    assert restored is not None
    assert restored.job is not None
    return restored.job


@pytest.mark.parametrize(
    "record",
    [
        OLDER,
        None,
        replace(NEWEST, beat=39),
        replace(NEWEST, epoch=Epoch(2, 9), beat=99),
        replace(NEWEST, job=None),
    ],
)
def test_L9_an_older_record_is_known_whatever_the_register_counts(
    record: LeadRecord | None,
) -> None:
    by_reading, by_hearing = Memory(), Memory()
    by_reading.saw(NEWEST)
    by_hearing.was_told(told())
    assert by_reading.is_behind(record)
    assert by_hearing.is_behind(record)


def test_L9_a_later_record_is_believed() -> None:
    memory = Memory()
    memory.saw(NEWEST)
    memory.was_told(told())
    for record in (NEWEST, replace(NEWEST, beat=41), replace(OLDER, epoch=Epoch(4, 1))):
        assert not memory.is_behind(record)
        memory.saw(record)


def test_L9_who_has_read_the_newest_record_goes_on_with_it_above_all_epochs() -> None:
    memory = Memory()
    memory.saw(NEWEST)
    assert memory.restored(OLDER) == NEWEST
    assert memory.restored(None) == NEWEST
    assert memory.next_number(OLDER) == 4


def test_L9_who_was_told_goes_on_with_the_round_and_the_budget_that_it_was_told() -> None:
    memory = Memory()
    memory.was_told(told(), SETTINGS)
    job = job_after(memory, OLDER)
    assert (job.incarnation, job.newest_round, job.nodes) == (100, 5, 3)
    assert (job.is_active, job.is_started) == (True, True)
    assert (job.restarts, job.restarts_counted, job.judged_round) == (2, (1, 2), 5)
    assert memory.next_number(OLDER) == 4


def test_L9_how_an_older_round_ended_is_not_told_of_the_one_before_the_newest() -> None:
    ended = EndReason(EndKind.FAILURE, "rank 3 exited with code 1")
    older = replace(OLDER, job=replace(OLDER.job or JOB, last_end=ended))
    memory = Memory()
    memory.was_told(told(), SETTINGS)
    found = job_after(memory, older)
    assert found.last_end is None
    same = Memory()
    same.was_told(told(), SETTINGS)
    known = job_after(
        same, replace(NEWEST, beat=39, job=replace(NEWEST.job or JOB, last_end=ended))
    )
    assert known.last_end == ended


def test_L9_a_verdict_that_is_older_than_what_runs_does_not_end_the_job() -> None:
    memory = Memory()
    memory.was_told(told(), SETTINGS)
    ended = replace(
        OLDER.job or JOB, verdict=Verdict(Outcome.FAILED, "it failed", 1), is_heard=True
    )
    found = job_after(memory, replace(OLDER, job=ended))
    assert (found.verdict, found.is_heard) == (None, False)


def test_L9_a_life_that_was_begun_without_knowing_of_the_job_gives_way_to_it() -> None:
    memory = Memory()
    begun = LeadRecord(1, Epoch(1, 9), NODE, 3, JobRecord(SETTINGS, 200))
    memory.saw(begun, is_own=True)
    memory.gives_up(begun.epoch, told(), SETTINGS, keeps_round=False)
    assert memory.is_behind(begun)
    assert memory.may_claim_at_once(begun)
    found = job_after(memory, begun)
    assert (found.incarnation, found.newest_round, found.restarts) == (100, 5, 2)
    assert memory.next_number(begun) == 4


def test_L9_of_two_leaders_of_one_life_what_both_have_recorded_goes_on() -> None:
    memory = Memory()
    own = replace(NEWEST, epoch=Epoch(3, 8), beat=5, job=replace(JOB, round=6, restarts=1))
    memory.saw(own, is_own=True)
    memory.gives_up(own.epoch, told(), SETTINGS, keeps_round=True)
    found = job_after(memory, own)
    assert (found.newest_round, found.restarts, found.judged_round) == (6, 2, 5)


def test_L9_workers_of_a_round_that_was_not_started_in_an_older_record_may_run() -> None:
    memory = Memory()
    own = replace(NEWEST, epoch=Epoch(4, 8), beat=5, job=replace(JOB, is_started=False))
    memory.saw(own, is_own=True)
    memory.gives_up(own.epoch, told(), SETTINGS, keeps_round=False)
    found = job_after(memory, own)
    assert found.is_started


def test_L9_a_world_that_was_formed_meanwhile_and_knows_as_much_is_not_disturbed() -> None:
    formed = replace(JOB, round=6)
    assert is_overtaken(told(), formed, newest_claimed=4)
    assert not is_overtaken(told(), formed, newest_claimed=6), "none was formed since"
    assert not is_overtaken(told(), replace(formed, restarts=1), newest_claimed=4)
    assert not is_overtaken(told(), replace(formed, round=5), newest_claimed=4)
    assert is_overtaken(told(), replace(formed, incarnation=200), newest_claimed=4)
    assert not is_overtaken(told(), JobRecord(SETTINGS, 200), newest_claimed=-1)
    assert not is_overtaken(told(), None, newest_claimed=-1)


def test_L9_a_later_life_with_a_world_goes_on_above_the_epoch_of_the_one_before() -> None:
    memory = Memory()
    begun = LeadRecord(1, Epoch(1, 9), NODE, 3, JobRecord(SETTINGS, 200, 0, True, True, 1))
    memory.saw(begun, is_own=True)
    memory.goes_on(begun.epoch, told())
    assert memory.is_behind(begun)
    assert memory.may_claim_at_once(begun)
    assert memory.restored(begun) == begun
    assert memory.next_number(begun) == 4


def test_L9_who_has_led_last_need_not_wait_unless_somebody_else_may_have_claimed() -> None:
    memory = Memory()
    memory.saw(OLDER)
    memory.saw(NEWEST, is_own=True)
    assert memory.may_claim_at_once(OLDER)
    assert memory.may_claim_at_once(None)
    assert not memory.may_claim_at_once(replace(OLDER, epoch=Epoch(2, 2)))
    memory.was_told(replace(told(), epoch=Epoch(9, 9).as_int()))
    assert not memory.may_claim_at_once(OLDER)


def test_L9_a_register_that_others_remove_says_nothing_of_what_was_only_read() -> None:
    read, wrote, heard = Memory(), Memory(), Memory()
    read.saw(NEWEST)
    wrote.saw(NEWEST, is_own=True)
    heard.was_told(told())
    for memory in (read, wrote, heard):
        memory.saw_none()
    assert not read.is_behind(None)
    assert wrote.is_behind(None)
    assert heard.is_behind(None)
    assert read.known < order_of(NEWEST), "a node that was told of it is believed"


# How long is waited


def test_L9_an_heir_claims_when_an_older_record_stands_still_though_that_says_it_is_free() -> None:
    watch, vacant = Watch(), replace(OLDER, is_vacant=True)
    heir, other = Claimant(Stamp(100, 5), 0), Claimant()
    first_s = watch.claims_behind_in_s(vacant, NEWEST, 100.0, heir)
    assert first_s == pytest.approx(with_margin(HOLD_S))
    assert watch.claims_behind_in_s(vacant, NEWEST, 100.0, other) > HOLD_S + 4 * SETTINGS.lease_s
    assert watch.claims_behind_in_s(None, None, 100.0, None) == 0.0


def test_L9_nodes_are_awaited_for_as_long_as_the_leader_before_may_act() -> None:
    """By its hold and by promises; and for a lease more, since workers may run."""
    longer_s = after_put_back_s(HOLD_S, SETTINGS.lease_s)
    assert longer_s >= HOLD_S + 3 * SETTINGS.lease_s
    for is_started in (True, False):
        record = replace(JOB, is_started=is_started)
        recovery = Handover(record, put_back_s=longer_s).recovery
        assert recovery is not None
        assert recovery.lasts_s == longer_s + with_margin(SETTINGS.lease_s)
        assert recovery.awaits == (
            "group rank 0, 1, 2 of round 5, since an older record of the job was put back into its "
            f"register, {recovery.lasts_s:.0f} s at most"
        )


# The number of a life


def test_L9_rounds_have_another_number_when_no_node_of_the_recorded_world_is_there() -> None:
    """Later rounds of the recorded life may have run. What was charged is carried."""
    cluster, agents = running(2)
    cluster.end_badly(agents[0])
    assert agents[0].running == Stamp(1, 1)
    for agent in agents:
        cluster.agents.remove(agent)
    cluster.take_over()
    fresh = [cluster.start(name) for name in "ab"]
    cluster.later(2 * cluster.settings.lease_s)
    assert [agent.running for agent in fresh] == [Stamp(2, 2)] * 2
    assert cluster.job.ledger.total == 1
    assert cluster.record.earlier == (1,)


def test_L9_rounds_have_another_number_when_no_node_that_is_there_runs_its_workers() -> None:
    """Later rounds may have run without it, and those who knew them may be dead."""
    cluster, (a, b, c) = running(3, restart_backoff_s=30.0)
    cluster.end_badly(b)
    for agent in (b, c):
        cluster.agents.remove(agent)
    cluster.take_over()
    cluster.connect(a)
    fresh = cluster.add(*"bc")
    cluster.later(2 * cluster.settings.lease_s)
    cluster.later(30.0)
    assert [agent.running for agent in (a, *fresh)] == [Stamp(2, 1)] * 3
    assert cluster.job.ledger.total == 1
    assert cluster.record.earlier == (1,)


def test_L9_a_node_that_runs_its_workers_vouches_for_the_number_of_the_life() -> None:
    """Without it no later round can have begun within its lease."""
    cluster, (a, b) = running(2)
    cluster.agents.remove(b)
    cluster.take_over()
    cluster.bring(a)
    cluster.later(with_margin(cluster.settings.lease_s))
    cluster.add("b")
    assert a.running == Stamp(1, 1)


def test_L9_a_node_that_has_succeeded_begins_anew_under_another_number() -> None:
    """What it says of the round has the old number, and would end nothing."""
    cluster, (a, b) = running(2)
    cluster.end_well(a)
    cluster.agents.remove(b)
    cluster.take_over()
    cluster.bring(a)
    cluster.later(2 * cluster.settings.lease_s)
    cluster.connect(a)
    (fresh,) = cluster.add("b")
    assert a.running == fresh.running == Stamp(2, 1)


def test_L9_a_life_that_goes_on_keeps_its_number() -> None:
    cluster, agents = running(2)
    cluster.take_over()
    cluster.bring(*agents)
    assert [agent.running for agent in agents] == [Stamp(1, 0)] * 2
    assert cluster.record.earlier == ()


def test_L9_an_agent_tells_each_leader_the_newest_position_that_it_was_told() -> None:
    cluster, (agent, _) = running(2)
    newer, older = told(), told(OLDER)
    for position in (older, newer, older):
        agent.hear(m.HeartbeatAck(0, Stamp(1, 0), STATUS, position))
    agent.disconnect()
    cluster.connect(agent)
    assert agent.link is not None
    (hello,) = (each for each in agent.link.up if isinstance(each, m.Attach))
    assert hello.told == newer


def test_L9_what_two_numbers_of_one_life_have_charged_is_known_to_be_of_one_life() -> None:
    """An older record was put back, and a job went on from it under number 300, while the job that
    a node knows had gone on under number 200."""
    known = told(replace(NEWEST, job=replace(JOB, incarnation=200, earlier=(100,), origin=100)))
    fork = replace(JOB, incarnation=300, earlier=(100,), origin=100, round=9, restarts=0)
    assert not is_overtaken(known, fork, newest_claimed=-1), "it has charged more restarts"
    assert is_overtaken(known, replace(fork, restarts=known.restarts), newest_claimed=-1)
    other_life = replace(fork, earlier=(), origin=0)
    assert is_overtaken(known, other_life, newest_claimed=-1)


def test_L9_what_is_known_of_machines_survives_a_put_back_across_a_change_of_the_number() -> None:
    machines = MachinesRecord(failure_count=3, holds=2)
    job = replace(JOB, machines=machines, lossy_rounds=(1, 2), furthest_step=70)
    renumbered = replace(job, incarnation=200, earlier=(100,), origin=100)
    memory = Memory()
    memory.was_told(told(replace(NEWEST, beat=41, job=renumbered)), SETTINGS)
    found = job_after(memory, replace(NEWEST, beat=39, job=job))
    assert (found.incarnation, found.earlier, found.first_number) == (200, (100,), 100)
    assert (found.restarts, found.machines) == (JOB.restarts, machines)
    assert (found.lossy_rounds, found.furthest_step) == ((1, 2), 70)
