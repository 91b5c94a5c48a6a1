"""The hold of a leader whose register is away, by the promises of its heirs."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace
from tests.harness.heirs import (
    CLAIMED_AT,
    EPOCH,
    LEASE_S,
    ROUND,
    SETTINGS,
    Beats,
    job_of,
    record_of,
)

from rallypoint.core import messages as m
from rallypoint.core import session as s
from rallypoint.core.model import (
    Assignment,
    Candidate,
    JobStatus,
    Outcome,
    Promise,
    Stamp,
    Verdict,
)
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.clock_rates import own_lease_s, with_margin
from rallypoint.core.takeover.consent import Promises, Speaker, promised_s
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leading import Lead, Watch
from rallypoint.core.takeover.record import JobRecord

PROMISED_S = promised_s(LEASE_S)
HEIR = Speaker(5, (ROUND, 1, 0))
STATUS = JobStatus("active", 0, 0, 0, 0, 0, 0, 0, 0)


def led(job: JobRecord | None, *, has_workers: bool = True) -> Lead:
    return Lead(record_of(job, has_workers=has_workers), CLAIMED_AT)


def known_at(lead: Lead) -> float:
    """Since when the leader's own workers may run for its own lease."""
    return lead.vouched_at + LEASE_S - own_lease_s(LEASE_S)


def test_L2_a_leader_whose_register_is_away_acts_while_its_heirs_promise() -> None:
    lead = led(job_of(2))
    heir = Beats(lead, 1)
    for second in range(100, 121):
        assert lead.is_sure(second)
        heir.at(second)
    assert known_at(lead) == pytest.approx(119)
    assert lead.is_sure(119 + PROMISED_S - 0.1)
    assert not lead.is_sure(119 + PROMISED_S)


def test_L2_a_promise_counts_from_the_acknowledgement_that_it_names() -> None:
    """However much later it comes."""
    lead = led(job_of(2))
    for number, named, now in ((1, 0, 105.0), (2, 0, 108.0), (3, 1, 109.0)):
        lead.heard(m.Heartbeat(number, Promise(named, ROUND, 1)), now, HEIR)
    assert lead.is_sure(105 + PROMISED_S - 0.1)
    assert not lead.is_sure(105 + PROMISED_S)
    lead.heard(m.Heartbeat(4, Promise(2, ROUND, 1)), 110.0, HEIR)
    assert lead.is_sure(108 + PROMISED_S - 0.1)
    assert not lead.is_sure(108 + PROMISED_S)
    lead.heard(m.Heartbeat(5, Promise(1, ROUND, 1)), 111.0, HEIR)
    assert lead.is_sure(108 + PROMISED_S - 0.1)


def test_L2_the_promises_of_all_heirs_are_needed_and_of_nobody_else() -> None:
    lead = led(job_of(8))
    beats = [Beats(lead, rank) for rank in range(1, 4)]
    for second in (105, 106):
        for each in beats[:2]:
            each.at(second)
    assert not lead.is_sure(100 + HOLD_S)
    beats[2].at(107, 108)
    assert lead.is_sure(100 + HOLD_S)
    assert not lead.is_sure(105 + PROMISED_S)
    assert known_at(lead) == pytest.approx(105)


@pytest.mark.parametrize(
    ("rank", "stamp"), [(0, ROUND), (2, ROUND), (1, Stamp(1, 2)), (1, Stamp(2, 3))]
)
def test_L2_a_promise_is_of_one_heir_of_one_round(rank: int, stamp: Stamp) -> None:
    lead = led(job_of(2))
    heir = Beats(lead, rank, stamp)
    heir.at(108, 109)
    assert not lead.is_sure(100 + HOLD_S)


@pytest.mark.parametrize(
    "job",
    [
        None,
        job_of(2, is_active=False),
        job_of(1),
        replace(job_of(2), verdict=Verdict(Outcome.SUCCEEDED, "well", 0)),
    ],
)
def test_L2_promises_are_worth_nothing_where_anybody_may_claim(job: JobRecord | None) -> None:
    lead = led(job)
    heir = Beats(lead, 1)
    heir.at(108, 109)
    assert not lead.is_sure(100 + HOLD_S)


def test_L2_a_coordinator_of_its_own_knows_no_promises() -> None:
    """Another one may claim, which has made none."""
    lead = led(job_of(2), has_workers=False)
    heir = Beats(lead, 1)
    heir.at(108, 109)
    assert not lead.is_sure(100 + HOLD_S)


def test_L2_promises_last_for_three_leases_beyond_the_hold() -> None:
    lead = led(job_of(2))
    heir = Beats(lead, 1)
    end = 100 + HOLD_S + 3 * LEASE_S
    for second in range(100, int(end) + 9):
        heir.at(second)
    assert lead.is_sure(end - 0.1)
    assert not lead.is_sure(end)
    assert lead.vouched_at + LEASE_S <= end


def test_L2_a_leader_that_acts_by_promises_is_unsure_before_anybody_else_may_claim() -> None:
    """Also where its clock runs 8 % slower than that of the watcher."""
    lead, watch, now = led(job_of(2)), Watch(), 0.0
    while watch.claims_in_s(lead.record, now, is_gone=False, claimant=Claimant()) > 0:
        now += 0.1
    assert now / 1.08 > HOLD_S + 3 * LEASE_S
    watch, now = Watch(), 0.0
    while watch.claims_in_s(lead.record, now, is_gone=False) > 0:
        now += 0.1
    assert now / 1.08 > HOLD_S + 3 * LEASE_S


def test_L2_a_swap_of_unknown_outcome_may_have_let_others_claim() -> None:
    lead = led(job_of(2))
    heir = Beats(lead, 1)
    heir.at(105, 106)
    lead.next(job_of(2))
    assert lead.is_sure(100 + HOLD_S)
    over = lead.next(job_of(2, is_active=False))
    assert not lead.is_sure(100 + HOLD_S)
    lead.confirmed(over, 111.0)
    assert lead.is_sure(110 + HOLD_S)
    assert not lead.is_sure(111 + HOLD_S)
    lead.confirmed(lead.next(job_of(2)), 112.0)
    assert not lead.is_sure(112 + HOLD_S)
    heir.at(120, 121)
    assert lead.is_sure(112 + HOLD_S)


def test_L2_of_an_heir_that_hears_nothing_only_the_last_heartbeats_are_remembered() -> None:
    lead = led(job_of(2))
    for number in range(1, 2000):
        lead.heard(m.Heartbeat(number, Promise(0, ROUND, 1)), 100 + number / 1000, HEIR)
    lead.heard(m.Heartbeat(2000, Promise(1, ROUND, 1)), 102.0, HEIR)
    assert known_at(lead) == pytest.approx(100.0)
    lead.heard(m.Heartbeat(2001, Promise(1999, ROUND, 1)), 102.0, HEIR)
    assert known_at(lead) == pytest.approx(101.999)


def test_L2_the_heirs_of_a_new_round_promise_anew() -> None:
    lead = led(job_of(2))
    lead.confirmed(lead.next(replace(job_of(2), round=4)), 104.0)
    heir = Beats(lead, 1, Stamp(1, 4))
    heir.at(110, 111)
    assert lead.is_sure(104 + HOLD_S)
    assert known_at(lead) == pytest.approx(110)


def test_L2_a_leader_that_has_said_that_it_goes_leads_no_more() -> None:
    lead = led(job_of(2))
    heir = Beats(lead, 1)
    heir.at(105, 106)
    lead.next(job_of(2), is_vacant=True)
    assert not lead.is_sure(100.0)


# The heir


def assigned(rank: int) -> m.Assigned:
    place = Assignment(3, rank, 8, rank, 8, rank, 8, "host", 1, 0, "", True)
    return m.Assigned(ROUND, place)


class Heir:
    """One agent's session, attached at 100."""

    def __init__(self, rank: int | None = 1, *, is_replaceable: bool = True) -> None:
        self.promises = Promises(LEASE_S)
        rules = s.SessionRules(promises=self.promises)
        self._end = s.AgentEnd(s.Identity("a", "a", "x"), SETTINGS, rules)
        self._end.connected(100.0, m.Claim())
        self._end.report(m.Join(1, Candidate(1, "default", "a", 1)), 100.0)
        self.attach(100.0, is_replaceable=is_replaceable)
        if rank is not None:
            self._end.received(100.0, assigned(rank))

    def attach(self, now: float, *, is_replaceable: bool = True) -> None:
        attached = m.Attached("a", 1, EPOCH, True, is_replaceable)
        self._end.received(now, attached)

    def reconnect(self, now: float) -> None:
        self._end.disconnected(now, "it broke")
        self._end.connected(now, m.Claim())

    def beat(self, now: float) -> m.Heartbeat:
        [effect] = self._end.beat(now)
        assert isinstance(effect, s.Send)
        assert isinstance(effect.message, m.Heartbeat)
        return effect.message

    def answer(self, number: int, now: float) -> None:
        self._end.received(now, m.HeartbeatAck(number, ROUND, STATUS))


def test_L2_an_heir_promises_half_a_lease_from_the_acknowledgement_that_it_names() -> None:
    heir = Heir()
    first = heir.beat(101.0)
    assert first.promise == Promise(0, ROUND, 1)
    heir.answer(first.number, 101.5)
    assert heir.promises.until == -inf
    assert heir.beat(102.0).promise == Promise(first.number, ROUND, 1)
    assert heir.promises.until == 101.5 + with_margin(PROMISED_S)
    heir.beat(103.0)
    assert heir.promises.until == 101.5 + with_margin(PROMISED_S)


@pytest.mark.parametrize("heir", [Heir(4), Heir(None), Heir(is_replaceable=False)])
def test_L2_nobody_else_promises(heir: Heir) -> None:
    heir.answer(heir.beat(101.0).number, 101.5)
    assert heir.beat(102.0).promise is None
    assert heir.promises.until == -inf


def test_L2_an_heir_that_is_not_attached_or_claims_promises_nothing() -> None:
    heir = Heir()
    heir.answer(heir.beat(101.0).number, 101.5)
    found = led(job_of(2)).record
    heir.promises.claiming(found)
    heir.promises.saw(found)
    assert heir.beat(102.0).promise is None
    heir.promises.saw(None)
    assert heir.beat(102.0).promise is None
    heir.promises.saw(replace(found, beat=1))
    heir.reconnect(103.0)
    assert heir.beat(103.0).promise is None
    assert heir.promises.until == -inf
    heir.attach(104.0)
    assert heir.beat(105.0).promise is not None


def test_L2_an_agent_that_never_leads_promises_nothing() -> None:
    end = s.AgentEnd(s.Identity("a", "a", "x"), SETTINGS)
    end.connected(100.0, m.Claim())
    end.received(100.0, m.Attached("a", 1, 1, True, True))
    end.received(100.0, assigned(1))
    assert end.beat(101.0) == [s.Send(m.Heartbeat(1))]


def test_L5_an_heir_may_claim_from_a_silent_leader_before_its_own_workers_are_fenced() -> None:
    """A leader that only stands by costs no worker anything, whatever becomes of it."""
    heir = Promises(LEASE_S)
    heir.assigned(ROUND, 1)
    heir.answered(1, 100.0)
    heir.next(0.0, EPOCH)
    assert heir.until < 100.0 + LEASE_S - 5
