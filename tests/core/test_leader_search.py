"""How a node without a leader looks for one, and leads itself when it is its turn."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.heirs import LEASE_S, ROUND, job_of, record_of

from rallypoint.core.model import Epoch
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover import candidacy as c
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.consent import Promises
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leader_search import (
    AFTER_CLAIM_S,
    FRESH_S,
    FirstWait,
    Search,
)
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import Leader, LeadRecord, Process
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.takeover.told import Position
from rallypoint.errors import (
    RecordError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
    VersionMismatchError,
)

LED = record_of(job_of(3))
VACANT = replace(LED, is_vacant=True)
OWN = Leader((), Process("other boot", 1, 1), has_workers=True, versions=(2, 4))
AWAY = RendezvousConnectionError("the register is away")
HERE = ("own:1",)


class Case:
    """The node with rank 1, which is the first heir."""

    def __init__(self) -> None:
        self.now, self.promises, deference = 100.0, Promises(LEASE_S), Deference()
        self.promises.assigned(ROUND, 1)
        self.search = Search(OWN, 1, Memory(), self.promises, deference)
        self.present = c.Present(Claimant(ROUND, 1))

    def looks(self, record: LeadRecord | None, **present: Any) -> list[c.Effect]:
        """It looks, and finds this."""
        self.present = replace(self.present, **present)
        assert self.search.looks(self.present) == [c.Look()]
        return self.search.found(c.Found(self.now, record, self.present))

    def listens(self, why: str = "") -> list[c.Effect]:
        """It listens, or can't."""
        return self.search.listened(self.now, () if why else HERE, why)

    def claims(self) -> c.Swap:
        """It is its turn."""
        assert self.looks(VACANT)[-1] == c.Listen()
        [swap] = self.listens()
        assert isinstance(swap, c.Swap)
        return swap

    def probed(self) -> None:
        """It is attached, and has tried to listen."""
        assert self.looks(LED, is_attached=True)[-1] == c.Listen()
        closed, wait = self.listens()
        assert closed == c.Close()
        assert isinstance(wait, c.Wait)

    def stands_still(self) -> None:
        """The record does, for so long that the leader may be unable to write it."""
        end = self.now + self.search.watch.late_s
        while self.now <= end:
            self.now += 1.0
            self.promises.answered(1, self.now)
            last = self.looks(LED)[-1]
        assert last == c.TryWriting()


@pytest.fixture
def case() -> Case:
    return Case()


def test_L1_a_node_listens_and_then_claims_with_its_address(case: Case) -> None:
    assert case.claims().claim.record.leader.addresses == HERE
    effects = case.search.swapped(case.now, is_ours=True)
    assert [type(each) for each in effects] == [c.Lead, c.LeaderChanged, c.Wait]
    assert case.promises.next(case.now, LED.epoch.as_int()) is None, "it promises nothing now"


def test_L1_a_node_that_leads_or_is_no_heir_and_has_a_leader_reads_no_register(case: Case) -> None:
    no_heir = c.Present(Claimant(ROUND, 7), is_attached=True)
    for present in (replace(case.present, leads=True), no_heir):
        [wait] = case.search.looks(present)
        assert wait == c.Wait(case.search.watch.look_s)


def test_L1_a_node_whose_claim_has_failed_listens_no_more_and_looks_again(case: Case) -> None:
    case.claims()
    effects = case.search.swapped(case.now, is_ours=False)
    assert effects == [c.Close(), c.Wait(0.0)]
    other = replace(LED, epoch=replace(LED.epoch, number=9))
    assert isinstance(case.looks(other)[-1], c.Wait)
    assert case.promises.next(case.now, LED.epoch.as_int()) is None, "it has another leader"
    assert case.promises.next(case.now, other.epoch.as_int()) is not None


def test_L1_a_claim_of_unknown_outcome_is_no_leadership_and_binds_until_the_record_is_seen(
    case: Case,
) -> None:
    case.claims()
    effects = case.search.unread(case.now, AWAY)
    assert effects == [c.Close(), c.Wait(case.search.watch.look_s, for_change=True)]
    assert case.promises.next(case.now, LED.epoch.as_int()) is None, "it may be stored yet"
    assert case.search.stops() == [c.Interrupt()], "and none is under way"


@pytest.mark.parametrize("what", ["nothing", "it promises", "it hears another leader"])
def test_L2_a_node_claims_unless_something_binds_it_while_it_reads(what: str, case: Case) -> None:
    while case.now < 100.0 + with_margin(HOLD_S):
        assert isinstance(case.looks(LED)[-1], c.Wait)
        case.now += 1.0
    case.search.looks(case.present)
    if what == "it promises":
        case.promises.answered(1, case.now)
        assert case.promises.next(case.now, LED.epoch.as_int()) is not None
    elif what == "it hears another leader":
        told = Position(Epoch(9, 1).as_int(), 0, 1)
        case.present = replace(case.present, node=Claimant(ROUND, 1, told=told))
    effects = case.search.found(c.Found(case.now, LED, case.present))
    assert (effects[-1] == c.Listen()) is (what == "nothing")


def test_L1_an_heir_that_can_not_listen_says_so_once_before_it_has_to_lead(case: Case) -> None:
    assert case.looks(LED, is_attached=True)[-1] == c.Listen()
    said, _ = case.listens("no port is free")
    assert isinstance(said, c.Say)
    assert said.text.startswith("this node can't lead the job: no port is free; it is one of the")
    assert not any(isinstance(each, c.Listen) for each in case.looks(LED))


def test_L2_an_heir_offers_to_lead_while_the_record_is_late_and_it_could_write_it(
    case: Case,
) -> None:
    case.probed()
    case.stands_still()
    assert case.search.tried(case.now, is_writable=True) == [c.Listen()]
    case.listens()
    promise = case.promises.next(case.now, LED.epoch.as_int())
    assert promise is not None
    assert promise.offers == HERE
    effects = case.looks(replace(LED, beat=1))
    assert effects[0] == c.Close(), "its leader has written"
    again = case.promises.next(case.now, LED.epoch.as_int())
    assert again is not None
    assert again.offers == ()


def test_L2_an_heir_to_which_the_job_was_handed_over_claims_where_it_listens(case: Case) -> None:
    case.probed()
    case.stands_still()
    case.search.tried(case.now, is_writable=True)
    case.listens()
    case.promises.handed_over(LED.epoch.as_int(), HERE)
    swap = case.looks(LED)[-1]
    assert isinstance(swap, c.Swap)
    assert swap.claim.record.leader.addresses == HERE


def test_L1_a_node_that_stops_claims_no_more_but_carries_a_claim_through(case: Case) -> None:
    assert case.search.looks(case.present) == [c.Look()]
    assert case.search.stops() == [c.Interrupt()]
    found = c.Found(case.now, VACANT, case.present)
    assert case.search.found(found) == [c.LeaderChanged()], "it was read when that was said"
    assert case.search.looks(case.present) == []
    other = Case()
    other.claims()
    assert other.search.stops() == []
    effects = other.search.swapped(other.now, is_ours=True)
    assert [type(each) for each in effects] == [c.Lead, c.LeaderChanged]


def test_F2_what_was_read_just_now_is_not_read_again_for_another_attempt(case: Case) -> None:
    assert case.search.wanted(case.now) == [c.LookNow()]
    case.looks(LED)
    assert case.search.wanted(case.now) == []
    assert case.search.wanted(case.now + FRESH_S + 0.1) == [c.LookNow()]


def test_F2_a_node_dials_the_leader_that_is_named_or_the_one_that_it_was_handed_over_to(
    case: Case,
) -> None:
    with pytest.raises(RendezvousConnectionError, match="no node leads the job yet"):
        case.search.whom()
    case.looks(LED)
    assert case.search.whom() == LED.leader.addresses
    case.search.unread(case.now, AWAY)
    assert case.search.whom() == LED.leader.addresses, "it may lead by promises"
    case.promises.handed_over(LED.epoch.as_int(), ("next:1",))
    assert case.search.whom() == ("next:1",)
    case.search.unread(case.now, RecordError("rubbish"))
    with pytest.raises(RecordError):
        case.search.whom()


# The wait of a node that starts

REFUSED = RendezvousConnectionError("nobody answers")


def test_F2_each_reason_to_wait_is_said_once_and_when_it_is_the_nodes_own_turn(case: Case) -> None:
    case.looks(LED)
    first = FirstWait(case.search, case.now, 60.0)
    said, wait = first.unreached(REFUSED, case.now)
    assert isinstance(said, c.Say)
    assert said.text.startswith("waiting for a node that leads the job (nobody answers): if no")
    assert first.unreached(REFUSED, case.now) == [wait]


def test_F2_a_node_waits_longer_than_it_was_told_to_once_if_it_is_its_turn_then(case: Case) -> None:
    case.looks(LED)
    turn = case.search.claims_at
    assert case.now + HOLD_S < turn < inf
    first = FirstWait(case.search, case.now, 1.0)
    first.unreached(REFUSED, turn)
    with pytest.raises(RendezvousTimeoutError, match=r"within 1 s \(nobody answers\)"):
        first.unreached(REFUSED, turn + AFTER_CLAIM_S + 0.1)


def test_F2_a_node_whose_turn_is_put_off_meanwhile_does_not_wait_for_it_once_more(
    case: Case,
) -> None:
    case.looks(LED)
    first, turn = FirstWait(case.search, case.now, 1.0), case.search.claims_at
    first.unreached(REFUSED, turn)
    case.now = turn
    case.looks(replace(LED, beat=1))
    assert case.search.claims_at > turn
    with pytest.raises(RendezvousTimeoutError, match="no node led the job within 1 s"):
        first.unreached(REFUSED, turn + AFTER_CLAIM_S + 0.1)


def test_F2_a_node_that_could_not_listen_when_it_was_its_turn_ends_with_that(case: Case) -> None:
    case.looks(VACANT)
    case.listens("no port is free")
    first = FirstWait(case.search, case.now, 1.0)
    first.unreached(REFUSED, case.now + 1.1)
    with pytest.raises(RendezvousTimeoutError, match="can't lead the job: no port is free"):
        first.unreached(REFUSED, case.now + 2 + AFTER_CLAIM_S)


def test_R7_a_leader_of_other_versions_is_final_once_it_has_renewed_its_record(case: Case) -> None:
    refused = RendezvousConnectionError("no common version")
    refused.__cause__ = VersionMismatchError("version 4", "version 9")
    leader = replace(LED.leader, versions=(8, 9))
    case.looks(replace(LED, leader=leader))
    first = FirstWait(case.search, case.now, 60.0)
    assert [type(each) for each in first.unreached(refused, case.now)] == [c.Wait]
    case.looks(replace(LED, leader=leader, beat=1))
    with pytest.raises(VersionMismatchError, match="versions 8 to 9"):
        first.unreached(refused, case.now)
