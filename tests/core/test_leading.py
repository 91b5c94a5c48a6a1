"""Who leads a job: claims, the hold, and what is kept until it is recorded."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.heirs import waits_s

from rallypoint.core import messages as m
from rallypoint.core.host_effects import HangUp, SendTo
from rallypoint.core.job_state import new_job
from rallypoint.core.model import (
    DeadPlace,
    Epoch,
    JobStatus,
    SharedSettings,
    Stamp,
    Verdict,
    epoch_number,
)
from rallypoint.core.model import Outcome as OutcomeOfJob
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.durable import Durable
from rallypoint.core.takeover.handover import Handover
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leading import (
    RELEASE_S,
    Lead,
    VersionRefusals,
    Watch,
    claimed,
    released,
    who_hears,
)
from rallypoint.core.takeover.record import (
    JobRecord,
    Leader,
    LeadRecord,
    Process,
    job_of,
    record_of,
)
from rallypoint.register.record import decode, encode

SELF = Leader(("10.0.0.1:29400",), Process("boot", 1, 10))
OTHER = Leader(("10.0.0.2:29400",), Process("boot2", 1, 10))
JUST_BEFORE = with_margin(HOLD_S) - 0.1
"""The hold and its margin, less a tenth of a second."""


def led_by(leader: Leader, beat: int = 0) -> LeadRecord:
    return LeadRecord(1, Epoch(3, 7), leader, beat, None)


def look(watch: Watch, record: LeadRecord, begin: float, end: float) -> float:
    """Look twice a second; returns what the last look said."""
    found = 1.0
    for half in range(int(begin * 2), int(end * 2) + 1):
        found = watch.claims_in_s(record, half / 2, is_gone=False)
    return found


def test_L1_a_record_that_stands_still_for_the_hold_has_no_leader() -> None:
    watch = Watch()
    assert look(watch, led_by(OTHER), 100.0, 111.0) > 0
    assert look(watch, led_by(OTHER), 111.5, 112.5) == 0


def test_L1_a_beat_begins_the_wait_anew() -> None:
    watch = Watch()
    look(watch, led_by(OTHER), 100.0, 111.0)
    assert look(watch, led_by(OTHER, beat=1), 111.5, 122.5) > 0
    assert look(watch, led_by(OTHER, beat=1), 123.0, 124.0) == 0


def test_L1_who_did_not_look_for_a_while_has_seen_nothing_stand_still() -> None:
    watch = Watch()
    look(watch, led_by(OTHER), 100.0, 105.0)
    assert watch.claims_in_s(led_by(OTHER), 200.0, is_gone=False) > HOLD_S


@pytest.mark.parametrize("is_vacant", [True, False])
def test_L1_nobody_waits_for_a_leader_that_has_gone(is_vacant: bool) -> None:
    record = led_by(OTHER)
    if is_vacant:
        record = Lead(record, 0.0).next(None, is_vacant=True)
    assert Watch().claims_in_s(record, 100.0, is_gone=not is_vacant) == 0


def running(nodes: int, leader_rank: int, *, is_vacant: bool = False) -> LeadRecord:
    """Round 3 of life 1 runs."""
    settings = SharedSettings("job", 1, nodes)
    job = JobRecord(settings, 1, 3, True, True, nodes, leader_rank=leader_rank)
    return LeadRecord(1, Epoch(3, 7), OTHER, 9, job, is_vacant)


def at(rank: int, round_: int = 3) -> Claimant:
    return Claimant(Stamp(1, round_), rank)


@pytest.mark.parametrize("is_vacant", [True, False])
def test_L1_heirs_claim_in_the_order_of_ranks_and_others_after_them(is_vacant: bool) -> None:
    record = running(8, leader_rank=1, is_vacant=is_vacant)
    heirs = [at(0), at(2), at(3)]
    waits = [waits_s(record, claimant) for claimant in heirs]
    assert waits == sorted(waits)
    assert len(set(waits)) == 3
    assert waits[0] == 0 if is_vacant else waits[0] > HOLD_S
    leaving = waits_s(record, Claimant(Stamp(1, 3), 0, is_leaving=True))
    others = [at(4), at(1), Claimant(), at(0, round_=2)]
    assert all(waits_s(record, other) > max(waits) for other in others)
    assert leaving > max(waits)


def test_L1_while_a_world_runs_others_than_heirs_wait_for_all_promises() -> None:
    lease_s = SharedSettings("job", 1, 2).lease_s
    assert waits_s(running(2, leader_rank=0), Claimant()) >= HOLD_S + 4 * lease_s
    assert waits_s(running(2, leader_rank=0), at(1)) < HOLD_S + lease_s


def knowing_dead(*ranks: int, round_: int = 3) -> Claimant:
    return Claimant(dead=tuple(DeadPlace(Stamp(1, round_), rank) for rank in ranks))


def test_L1_where_an_heir_is_known_to_be_dead_nobody_waits_for_promises_of_the_others() -> None:
    """A leader needs the promises of all heirs to act beyond its hold."""
    for lease_s in (15.0, 60.0):
        settings = SharedSettings("job", 1, 8, lease_s=lease_s)
        record = running(8, leader_rank=0)
        assert record.job is not None
        record = replace(record, job=replace(record.job, settings=settings))
        waits = waits_s(record, knowing_dead(2))
        assert with_margin(max(HOLD_S, lease_s / 2)) < waits < HOLD_S + lease_s
        for no_heir in (knowing_dead(0), knowing_dead(4), knowing_dead(2, round_=2)):
            assert waits_s(record, no_heir) >= HOLD_S + 4 * lease_s


def test_L4_whom_the_guard_of_a_dead_agent_tells() -> None:
    record = running(3, leader_rank=0)
    assert record.job is not None
    place = DeadPlace(Stamp(1, 3), 1, "b")
    assert who_hears(record, place) == OTHER.addresses
    assert who_hears(replace(record, is_vacant=True), place) == ()
    older = replace(record, job=replace(record.job, round=2))
    assert who_hears(older, place) == OTHER.addresses, "what is read may be old"


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 4},
        {"incarnation": 2, "round": 0},
        {"stopped": b"\x02"},
        {"succeeded": b"\x02"},
        {"verdict": Verdict(OutcomeOfJob.FAILED, "it failed", 3, 0, 0, None, 0)},
    ],
    ids=["a later round", "a later life", "it is recorded", "it has succeeded", "it has ended"],
)
def test_L4_a_death_that_no_leader_need_know_is_told_nobody(changes: dict[str, object]) -> None:
    record = running(3, leader_rank=0)
    assert record.job is not None
    changed = replace(record, job=replace(record.job, **changes))
    assert who_hears(changed, DeadPlace(Stamp(1, 3), 1, "b")) is None


def test_L4_the_record_that_is_marked_tells_of_the_leaders_own_node_alone() -> None:
    marked = released(running(3, leader_rank=0), Epoch(3, 7))
    assert marked is not None
    assert who_hears(marked, DeadPlace(Stamp(1, 3), 0, "a")) is None
    assert who_hears(marked, DeadPlace(Stamp(1, 3), 1, "b")) == ()


def test_L1_a_world_of_the_leaders_node_alone_has_no_heir_to_wait_for() -> None:
    assert waits_s(running(1, leader_rank=0), Claimant()) <= with_margin(HOLD_S)
    assert waits_s(led_by(OTHER), Claimant()) <= with_margin(HOLD_S)


def test_L2_an_heir_keeps_its_promise_unless_the_leader_says_that_it_goes() -> None:
    promised = Claimant(Stamp(1, 3), 1, promised_until=200.0)
    assert waits_s(running(2, leader_rank=0), promised) == 100.0
    assert waits_s(running(2, leader_rank=0, is_vacant=True), promised) == 0


def test_L6_a_leader_with_workers_that_is_gone_is_waited_for_while_its_guard_is_at_work() -> None:
    agent = Leader(OTHER.addresses, OTHER.process, has_workers=True)
    watch = Watch()
    look(watch, led_by(agent), 100.0, 104.5)
    assert watch.claims_in_s(led_by(agent), 105.0, is_gone=True) == RELEASE_S
    assert watch.claims_in_s(led_by(agent), 107.0, is_gone=True) == RELEASE_S - 2.0
    marked = released(led_by(agent), led_by(agent).epoch)
    assert marked is not None
    assert Watch().claims_in_s(marked, 107.0, is_gone=True) == 0
    assert watch.claims_in_s(led_by(agent), 105.0 + RELEASE_S, is_gone=True) == 0


def test_L6_who_did_not_look_gives_the_guard_its_time_again() -> None:
    """The machine may have been suspended, and the guard with it."""
    agent = Leader(OTHER.addresses, OTHER.process, has_workers=True)
    watch = Watch()
    watch.claims_in_s(led_by(agent), 100.0, is_gone=True)
    assert watch.claims_in_s(led_by(agent), 200.0, is_gone=True) == RELEASE_S


def test_L1_a_claim_keeps_the_job_and_has_the_next_number() -> None:
    job = record_of(new_job(SharedSettings("job", 1, 1), 5))
    first = claimed(None, SELF, nonce=1)
    assert (first.epoch, first.job) == (Epoch(1, 1), None)
    held = Lead(first, 0.0).next(job)
    after = claimed(held, OTHER, nonce=2)
    assert (after.epoch, after.leader, after.job) == (Epoch(2, 2), OTHER, job)
    assert after.epoch.as_int() > held.epoch.as_int()
    assert epoch_number(after.epoch.as_int()) == 2


def test_L2_everybody_waits_for_the_hold_that_the_leader_has() -> None:
    """Whatever the nodes were given: the record tells. So no two act at once."""
    for hold_s in (2.0, 60.0):
        led = led_by(Leader(("host:1",), Process("boot2", 1, 10), hold_s=hold_s))
        led = decode(encode(led))
        lead, watch, now = Lead(led, 100.0), Watch(), 100.0
        assert lead.is_sure(100.0 + hold_s - 0.1)
        assert not lead.is_sure(100.0 + hold_s)
        while wait_s := watch.claims_in_s(led, now, is_gone=False):
            now += min(wait_s, watch.look_s)
        assert now == pytest.approx(100.0 + with_margin(hold_s))


def test_L2_who_takes_over_has_its_own_hold() -> None:
    mine = Leader(("host:2",), Process("boot", 1, 10), hold_s=30.0)
    lead = Lead(claimed(led_by(OTHER), mine, nonce=2), 100.0)
    assert lead.next(None).leader.hold_s == 30.0
    assert lead.is_sure(129.9)


def test_L2_a_leader_may_act_for_the_hold_since_its_last_swap_was_sent() -> None:
    lead = Lead(claimed(None, SELF, nonce=1), 100.0)
    assert lead.is_sure(100.0 + HOLD_S - 0.1)
    assert not lead.is_sure(100.0 + HOLD_S)
    record = lead.next(None)
    assert not lead.is_sure(100.0 + HOLD_S)
    lead.confirmed(record, 104.0)
    assert lead.is_sure(104.0 + HOLD_S - 0.1)
    assert lead.next(None).beat == 2


def test_L2_a_leader_is_unsure_before_anybody_may_claim() -> None:
    """Also where its clock runs 8 % slower, and the watcher's 8 % faster."""
    lead, watch = Lead(claimed(None, SELF, nonce=1), 0.0), Watch()
    seen_at = 0.0
    while watch.claims_in_s(lead.record, seen_at, is_gone=False) > 0:
        seen_at += 0.1
    true_s = seen_at / 1.08
    assert not lead.is_sure(true_s * 0.92)


def ack() -> SendTo:
    status = JobStatus("forming", 0, 0, 0, 0, 0, 0, 0, 0)
    return SendTo(1, m.HeartbeatAck(1, Stamp(1, 0), status))


def test_L3_what_a_job_decides_waits_for_its_record_and_keeps_its_order() -> None:
    job = new_job(SharedSettings("job", 1, 1))
    durable = Durable(job, Handover(), is_recorded=True)
    assert durable.after([HangUp(1), ack()]) == [HangUp(1), ack()]
    job.round.round = 1
    assert durable.after([HangUp(2), ack()]) == [ack()]
    assert durable.after([HangUp(3)]) == []
    assert durable.begin().round == 1
    job.round.round = 2
    assert durable.after([HangUp(4)]) == []
    assert durable.written() == [HangUp(2), HangUp(3)]
    assert not durable.is_recorded
    assert durable.begin().round == 2
    assert durable.written() == [HangUp(4)]
    assert durable.after([HangUp(5)]) == [HangUp(5)]


def test_L3_no_heartbeat_is_answered_before_its_agent_is_told_that_it_is_attached() -> None:
    job = new_job(SharedSettings("job", 1, 1))
    durable = Durable(job, Handover(), is_recorded=False)
    attached, answer = SendTo(7, m.Attached("a", 1, 1, False, True)), ack()
    assert isinstance(answer, SendTo)
    early = SendTo(7, answer.message)
    assert durable.after([attached]) == []
    assert durable.after([early, answer]) == [answer]
    durable.begin()
    assert durable.written() == [attached, early]
    assert durable.after([early]) == [early]


def test_L2_a_leader_that_is_unsure_acknowledges_nothing_and_forgets_nothing() -> None:
    durable = Durable(new_job(SharedSettings("job", 1, 1)), Handover(), is_recorded=True)
    assert durable.after([HangUp(1), ack()], is_sure=False) == []
    assert durable.after([HangUp(2), ack()]) == [ack()]
    durable.begin()
    assert durable.written() == [HangUp(1), HangUp(2)]


def test_L2_a_swap_that_was_sent_again_is_no_renewal_by_the_first() -> None:
    lead = Lead(claimed(None, SELF, 1), 0.0)
    first = lead.next(None)
    second = lead.next(None)
    assert second.beat == first.beat + 1


def test_L3_a_job_that_has_ended_stays_so() -> None:
    job = new_job(SharedSettings("job", 1, 1))
    job.verdict = Verdict(OutcomeOfJob.SUCCEEDED, "well", 0)
    assert job_of(record_of(job), Epoch(2, 1)).verdict == job.verdict


MINE = (4, 5)


def test_R7_a_leader_that_lives_and_speaks_no_version_of_this_node_refuses_it_for_good() -> None:
    """It renews its record after it has refused this node: so it is not about to be replaced."""
    leader, refusals = replace(OTHER, versions=(2, 3)), VersionRefusals(MINE)
    assert not refusals.is_final(led_by(leader))
    assert not refusals.is_final(led_by(leader))
    assert refusals.is_final(led_by(leader, beat=1))


def test_R7_a_leader_that_goes_or_is_replaced_has_refused_nobody_for_good() -> None:
    leader, refusals = replace(OTHER, versions=(2, 3)), VersionRefusals(MINE)
    refusals.is_final(led_by(leader))
    assert not refusals.is_final(replace(led_by(leader, beat=1), is_vacant=True))
    next_one = replace(led_by(leader, beat=2), epoch=Epoch(4, 8))
    assert not refusals.is_final(next_one)
    assert refusals.is_final(replace(next_one, beat=3))


@pytest.mark.parametrize(("versions", "is_final"), [((3, 4), False), ((5, 9), False), (None, True)])
def test_R7_another_program_at_the_address_of_a_leader_that_speaks_with_this_node_refuses_nobody(
    versions: tuple[int, int] | None, is_final: bool
) -> None:
    """Earlier versions do not record what they speak."""
    leader, refusals = replace(OTHER, versions=versions), VersionRefusals(MINE)
    refusals.is_final(led_by(leader))
    assert refusals.is_final(led_by(leader, beat=1)) is is_final
