"""Processes that are no nodes of a job and stand ready to lead it: who may claim when, and what
the leader needs of them to act without its register."""

from __future__ import annotations

from math import inf

import pytest
from tests.harness.heirs import (
    CLAIMED_AT,
    EPOCH,
    LEASE_S,
    PROCESS,
    ROUND,
    Beats,
    job_of,
    record_of,
    waits_s,
)

from rallypoint.core import messages as m
from rallypoint.core.model import Promise
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.consent import NO_ROUND, Promises, promised_s
from rallypoint.core.takeover.heirs import CANDIDATES_MAX, Claimant
from rallypoint.core.takeover.leading import Lead, Watch, claimed, released
from rallypoint.core.takeover.record import Leader, LeadRecord
from rallypoint.core.takeover.speakers import candidate

FIRST, SECOND = 71, 72


def running(
    nodes: int = 3, *candidates: int, has_workers: bool = True, is_vacant: bool = False
) -> LeadRecord:
    """A node that leads has rank 0."""
    job = job_of(nodes, leader_rank=0 if has_workers else -1)
    return record_of(job, has_workers=has_workers, is_vacant=is_vacant, candidates=candidates)


def heirs() -> list[Claimant]:
    return [Claimant(ROUND, rank) for rank in (1, 2)]


def with_heirs(record: LeadRecord) -> tuple[Lead, list[Beats]]:
    """A leader whose claim was sent at 100, and its heirs."""
    lead = Lead(record, CLAIMED_AT)
    return lead, [Beats(lead, rank) for rank in (1, 2)]


@pytest.mark.parametrize("is_vacant", [True, False])
def test_L1_candidates_that_are_listed_claim_in_their_order_and_before_all_nodes(
    is_vacant: bool,
) -> None:
    record = running(3, FIRST, SECOND, is_vacant=is_vacant)
    first, second = (waits_s(record, Claimant(candidate=each)) for each in (FIRST, SECOND))
    nodes = [waits_s(record, node) for node in [*heirs(), Claimant()]]
    assert first == 0 if is_vacant else first == pytest.approx(with_margin(HOLD_S))
    assert first < second < min(nodes)
    # Two processes look a second apart at most, so one may see the last record so much earlier.
    assert min(nodes) >= first + Watch().look_s


def test_L1_nobody_waits_for_candidates_where_none_is_listed() -> None:
    assert waits_s(running(3, is_vacant=True), Claimant(ROUND, 1)) == 0


def test_L1_a_candidate_that_is_not_listed_waits_until_no_promise_can_be_in_force() -> None:
    for record in (running(), running(3, SECOND)):
        assert waits_s(record, Claimant(candidate=FIRST)) >= HOLD_S + 4 * LEASE_S
    vacant = running(3, is_vacant=True)
    assert waits_s(vacant, Claimant(candidate=FIRST)) > max(waits_s(vacant, h) for h in heirs())


def test_L1_a_candidate_need_not_wait_for_promises_that_nobody_uses() -> None:
    led = running(3, has_workers=False)
    assert waits_s(led, Claimant(candidate=FIRST)) < HOLD_S + LEASE_S
    alone = running(1)
    assert waits_s(alone, Claimant(candidate=FIRST)) < HOLD_S + LEASE_S


def test_L2_a_candidate_keeps_its_promise_unless_the_leader_says_that_it_goes() -> None:
    promised = Claimant(candidate=FIRST, promised_until=200.0)
    assert waits_s(running(3, FIRST), promised) == 100.0
    assert waits_s(running(3, FIRST, is_vacant=True), promised) == 0


def test_L2_a_candidate_promises_from_when_it_attaches() -> None:
    promises = Promises(LEASE_S, FIRST)
    assert promises.next(0.0, EPOCH) == Promise(0, NO_ROUND, 0, FIRST)
    assert promises.until == -inf
    promises.answered(1, 100.0)
    assert promises.next(0.0, EPOCH) == Promise(1, NO_ROUND, 0, FIRST)
    assert promises.until > 100 + promised_s(LEASE_S)
    promises.claiming(running())
    assert promises.next(0.0, EPOCH) is None


def test_L1_a_leader_lists_the_candidates_that_it_hears() -> None:
    lead, nodes = with_heirs(running())
    candidates = [Beats(lead, candidate=number) for number in range(1, CANDIDATES_MAX + 2)]
    for each in candidates:
        each.at(101)
    listed = lead.next(lead.record.job)
    assert listed.candidates == tuple(range(1, CANDIDATES_MAX + 1))
    for each in candidates[1:]:
        each.at(101 + LEASE_S)
    nodes[0].at(102 + LEASE_S)
    assert lead.next(lead.record.job).candidates == tuple(range(2, CANDIDATES_MAX + 1))
    candidates[-1].at(103 + LEASE_S)
    assert lead.next(lead.record.job).candidates == tuple(range(2, CANDIDATES_MAX + 2))


def test_L1_a_claim_lists_nobody_and_a_leader_that_goes_still_lists_its_candidates() -> None:
    assert claimed(running(3, FIRST), Leader((), PROCESS), nonce=8).candidates == ()
    lead, _ = with_heirs(running())
    Beats(lead, candidate=FIRST).at(101)
    assert lead.next(lead.record.job, is_vacant=True).candidates == (FIRST,)
    found = running(3, FIRST)
    marked = released(found, found.epoch)
    assert marked is not None
    assert marked.candidates == (FIRST,)


def test_L2_a_leader_needs_the_promises_of_the_candidates_that_are_listed() -> None:
    lead, nodes = with_heirs(running(3, FIRST))
    for each in nodes:
        each.at(108, 109)
    assert not lead.is_sure(100 + HOLD_S)
    Beats(lead, candidate=SECOND).at(108, 109)
    assert not lead.is_sure(100 + HOLD_S)
    Beats(lead, candidate=FIRST).at(108, 109)
    assert lead.is_sure(100 + HOLD_S)


def test_L2_a_leader_that_lists_none_needs_no_promise_of_a_candidate() -> None:
    lead, nodes = with_heirs(running())
    for each in nodes:
        each.at(108, 109)
    assert lead.is_sure(100 + HOLD_S)


def test_L2_a_candidate_may_claim_by_a_record_of_which_it_is_not_known_whether_it_is_stored() -> (
    None
):
    """Whether that puts it on the list, or takes it off."""
    lead, nodes = with_heirs(running())
    first = Beats(lead, candidate=FIRST)
    first.at(101)
    listing = lead.next(lead.record.job)
    for each in nodes:
        each.at(108, 109)
    assert not lead.is_sure(100 + HOLD_S)
    first.at(108, 109)
    assert lead.is_sure(100 + HOLD_S)
    lead.confirmed(listing, 109.0)
    for now in range(110, int(111 + LEASE_S)):
        for each in nodes:
            each.at(float(now))
    gone = 112 + LEASE_S
    for each in nodes:
        each.at(gone)
    assert lead.candidates == ()
    delisting = lead.next(lead.record.job)
    assert not lead.is_sure(gone)
    lead.confirmed(delisting, 109.0)
    assert lead.is_sure(gone)


@pytest.mark.parametrize("numbers", [(FIRST,), (SECOND,), ()])
def test_L2_a_leader_is_unsure_before_any_candidate_may_claim(numbers: tuple[int, ...]) -> None:
    """The candidate hears its last answer as late as can be; its clock is right."""
    record = running(3, *numbers)
    lead, nodes = with_heirs(record)
    promises = Promises(LEASE_S, FIRST)
    watch, number, now = Watch(), 0, 100.0
    answers: list[int] = []
    while True:
        if now < 140:
            for each in nodes:
                each.at(now)
            if (promise := promises.next(0.0, EPOCH)) is not None:
                number += 1
                lead.heard(m.Heartbeat(number, promise), now, candidate(9, FIRST))
                answers.append(number)
            promises.answered(answers[-1], now)
        claimant = Claimant(promised_until=promises.until, candidate=FIRST)
        if not watch.claims_in_s(record, now, is_gone=False, claimant=claimant):
            break
        now += 1.0
    assert not lead.is_sure(now)
    if numbers == (FIRST,):
        assert lead.sure_until > 100 + HOLD_S + LEASE_S
