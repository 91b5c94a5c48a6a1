"""What a process does that would lead a job, until it leads: reads, waits, claims, gives up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.heirs import job_of, record_of

from rallypoint.core.model import Outcome, Verdict
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover import candidacy as c
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.leading import RELEASE_S
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import Leader, LeadRecord, Process
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.errors import RecordError, RendezvousConnectionError

NUMBER = 71
AWAY = RendezvousConnectionError("the register is away")
LED = record_of(job_of(3))
LISTED = replace(LED, candidates=(NUMBER,))
VACANT = replace(LED, is_vacant=True)
FREE = record_of(job_of(3), has_workers=False, is_vacant=True)
"""Of a leader that was no node."""
OWN = Leader(("own:1",), Process("other boot", 1, 1))


class Case:
    """A coordinator of its own, or a candidate if that is asked for."""

    def __init__(self, *, is_candidate: bool = False) -> None:
        self.now, self.standby = 100.0, c.Standby(OWN, 1, Memory(), Deference(), NUMBER)
        self.machine = self.standby if is_candidate else c.Candidacy(OWN, 1, Memory())

    def looks(self, record: LeadRecord | None, *, is_awaited: bool = False) -> list[c.Effect]:
        """It looks, and finds this."""
        at = c.Present(is_awaited=is_awaited)
        assert self.machine.looks(at) == [c.Look()]
        return self.machine.found(c.Found(self.now, record, at))

    def is_claimed_soon(self, record: LeadRecord) -> bool:
        """Whether it claims the job within some seconds in which the register holds this."""
        effects = list[c.Effect]()
        for _ in range(6):
            self.now += 1.0
            effects += self.looks(record)
        return any(isinstance(each, c.Swap) for each in effects)

    def texts(self, effects: list[c.Effect]) -> list[str]:
        return [each.text for each in effects if isinstance(each, c.Say)]


@pytest.fixture
def serve() -> Case:
    return Case()


@pytest.fixture
def candidate() -> Case:
    return Case(is_candidate=True)


def test_L1_a_coordinator_claims_a_job_that_nobody_leads_at_once(serve: Case) -> None:
    for record in (None, FREE):
        [swap] = serve.looks(record)
        assert isinstance(swap, c.Swap)
        assert swap.claim.record.leader == OWN


def test_L1_a_coordinator_waits_for_the_leader_and_says_whom_it_waits_for(serve: Case) -> None:
    said, wait = serve.looks(LED)
    assert isinstance(said, c.Say)
    assert said.text.startswith("another coordinator (10.0.0.1:29400) leads this job")
    assert wait == c.Wait(serve.machine.watch.look_s)


def test_L1_a_coordinator_that_has_lost_the_race_for_a_claim_looks_again_at_once(
    serve: Case,
) -> None:
    [first] = serve.looks(None)
    assert serve.machine.swapped(serve.now, is_ours=False) == [c.Wait(0.0)]
    [second] = serve.looks(None)
    assert isinstance(first, c.Swap)
    assert isinstance(second, c.Swap)
    assert first.claim.record.beat != second.claim.record.beat, "each attempt is another one"


def test_L1_a_coordinator_leads_by_the_claim_that_the_register_holds(serve: Case) -> None:
    [swap] = serve.looks(FREE)
    [lead] = serve.machine.swapped(102.0, is_ours=True, sent_at=101.0, nonce=2)
    assert isinstance(swap, c.Swap)
    assert lead == c.Lead(swap.claim, 101.0, 102.0)
    assert serve.machine.memory.order[0] == swap.claim.record.epoch.number


def test_L1_a_register_that_is_away_is_looked_at_again_and_one_that_is_none_ends_it(
    serve: Case,
) -> None:
    said, wait = serve.machine.unread(serve.now, AWAY)
    assert (said, type(wait)) == (c.Say(str(AWAY)), c.Wait)
    with pytest.raises(RecordError):
        serve.machine.unread(serve.now, RecordError("rubbish"))


# A candidate


def test_L1_a_candidate_attaches_to_the_leader_and_says_once_that_it_is_listed(
    candidate: Case,
) -> None:
    dial, wait = candidate.looks(LED)
    assert isinstance(dial, c.Dial)
    assert dial.addresses == LED.leader.addresses
    assert isinstance(wait, c.Wait)
    assert candidate.texts(candidate.looks(LISTED)) == ["ready to take over from 10.0.0.1:29400"]
    assert candidate.texts(candidate.looks(replace(LISTED, beat=1))) == []


def test_L1_a_candidate_dials_again_when_its_connection_is_lost_but_not_at_once(
    candidate: Case,
) -> None:
    candidate.looks(LED)
    candidate.standby.dialled(candidate.now, was_connected=False)
    assert not any(isinstance(each, c.Dial) for each in candidate.looks(LED))
    candidate.now += c.REDIAL_S + 0.1
    assert any(isinstance(each, c.Dial) for each in candidate.looks(LED))
    candidate.now += c.REDIAL_S + 0.1
    assert not any(isinstance(each, c.Dial) for each in candidate.looks(LED)), "it is attached"


def test_L1_a_candidate_hurries_while_its_leader_may_have_died_just_now(candidate: Case) -> None:
    candidate.looks(LISTED)
    candidate.standby.dialled(candidate.now, was_connected=True)
    assert candidate.looks(LISTED)[-1] == c.Wait(c.HURRY_S)
    candidate.now += RELEASE_S + 0.1
    assert candidate.looks(LISTED)[-1] == c.Wait(candidate.machine.watch.look_s)


def test_L1_a_candidate_claims_no_job_that_it_has_not_seen_alive(candidate: Case) -> None:
    served = Case(is_candidate=True)
    for record in (FREE, replace(FREE, beat=1)):
        assert not served.is_claimed_soon(record), "its nodes know one address"
    assert not candidate.is_claimed_soon(VACANT)
    assert candidate.is_claimed_soon(replace(VACANT, beat=1))


def test_L2_a_candidate_that_promises_while_it_reads_does_not_claim(candidate: Case) -> None:
    other = Case(is_candidate=True)
    for case in (candidate, other):
        while case.now < 100.0 + with_margin(HOLD_S):
            assert isinstance(case.looks(LISTED)[-1], c.Wait)
            case.now += 1.0
    assert isinstance(other.looks(LISTED)[-1], c.Swap)
    assert other.standby.promises.next(other.now, LED.epoch.as_int()) is None, "it claims"
    candidate.machine.looks(c.Present())
    promises = candidate.standby.promises
    promises.answered(1, candidate.now)
    assert promises.next(candidate.now, LED.epoch.as_int()) is not None
    found = candidate.machine.found(c.Found(candidate.now, LISTED))
    assert isinstance(found[-1], c.Wait)


def test_L1_a_candidate_gives_up_what_nobody_needs(candidate: Case) -> None:
    verdict = Verdict(Outcome.SUCCEEDED, "well", 0)
    ended = replace(VACANT, job=replace(job_of(3), verdict=verdict))
    assert Case(is_candidate=True).looks(ended) == [c.GiveUp()]
    assert Case(is_candidate=True).looks(None) == [c.GiveUp()]
    served = replace(LED, leader=replace(LED.leader, has_workers=False))
    assert isinstance(candidate.looks(served)[-1], c.Wait)
    candidate.now += c.UNUSED_S + 1.0
    assert candidate.looks(served)[-1] == c.GiveUp(), "nobody has led it for so long"


def test_L1_a_candidate_makes_way_for_an_agent_that_waits_at_its_address(candidate: Case) -> None:
    served = replace(LED, leader=replace(LED.leader, has_workers=False))
    assert candidate.looks(served, is_awaited=True) == [c.GiveUp()]
    assert isinstance(Case(is_candidate=True).looks(LED, is_awaited=True)[-1], c.Wait)


def test_L1_a_candidate_ends_with_a_line_where_the_register_can_not_be_read(
    candidate: Case,
) -> None:
    assert isinstance(candidate.machine.unread(candidate.now, AWAY)[-1], c.Wait)
    said, end = candidate.machine.unread(candidate.now, RecordError("rubbish"))
    assert said == c.Say("this coordinator can't stand ready to lead the job: rubbish")
    assert end == c.GiveUp()
