"""What a leader does from its claim until it no longer leads."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
from msgspec.structs import replace
from tests.harness.heirs import LEASE_S, ROUND, job_of, record_of

from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.host_effects import HangUp
from rallypoint.core.job_lives import Life
from rallypoint.core.job_state import new_job
from rallypoint.core.model import (
    Candidate,
    Epoch,
    NodeRef,
    Outcome,
    Promise,
    SharedSettings,
    Verdict,
)
from rallypoint.core.round_state import MemberState, RoundMember, add
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover import candidacy as c
from rallypoint.core.takeover import duties as d
from rallypoint.core.takeover.consent import Speaker
from rallypoint.core.takeover.durable import Durable
from rallypoint.core.takeover.handover import Handover
from rallypoint.core.takeover.leading import BEAT_SHARE, LONELY_S, LONELY_SHARE
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import FormerLife, LeadRecord
from rallypoint.core.takeover.stepping_down import CHECK_S, Deference
from rallypoint.core.takeover.told import NEVER, Position, Seal

CANDIDATE = Candidate(1, "default", "host", 1)
DONE = HangUp(1)
"""What the job has decided."""


class Leader:
    """It has claimed a job at 100, of which one life is hosted."""

    def __init__(self, record: LeadRecord | None = None) -> None:
        record = record or record_of(job_of(2))
        claim = c.Claim(record, NEVER, False, None, 100.0, -inf)
        self.now, self.memory = 100.0, Memory()
        self.memory.saw(record, is_own=True)
        self.duties = d.Duties(c.Lead(claim, 100.0, 100.0), self.memory, Deference(), Seal())
        self.job = new_job(SharedSettings("job", 1, 8), 5)
        self.life = Durable(self.job, Handover(), is_recorded=True)
        self.done: list[object] = []
        self.ends: list[str] = []
        self.said: list[str] = []
        self.written: list[LeadRecord] = []
        self.under_way: LeadRecord | None = None
        self.is_silent = False
        self.feed(self.duties.opened(self.life))
        self.feed(self.duties.keeps(self.now))

    def feed(self, effects: Sequence[d.Effect]) -> None:
        """This follows from what happens."""
        for effect in effects:
            match effect:
                case d.Write(record, _):
                    assert self.under_way is None, "one record at a time"
                    self.under_way = record
                case d.Release(_, done):
                    self.done += done
                case d.Depose(why) | d.StepDown(why):
                    self.ends.append(why)
                case Record(kind):
                    self.said.append(kind.name)

    def decide(self) -> None:
        """The job decides something, which is to be recorded first."""
        self.job.round.round += 1
        assert self.life.after([DONE]) == []
        self.feed(self.duties.changed())

    def later(self, seconds: float = 0.0) -> LeadRecord | None:
        """So much time passes; the record that is under way then."""
        self.now += seconds
        self.feed(self.duties.passed(self.now, lambda life, seconds: self.is_silent))
        return self.under_way

    def stored(self, seconds: float = 0.0) -> None:
        """The register has taken the record, after so long."""
        record, self.under_way = self.under_way, None
        assert record is not None
        self.now += seconds
        self.written.append(record)
        self.feed(self.duties.written(self.now, record))

    def lost(self) -> None:
        """It is not known whether the register has."""
        self.under_way = None
        self.feed(self.duties.unwritten(self.now, "no answer"))


@pytest.fixture
def leader() -> Leader:
    made = Leader()
    made.later()
    made.stored()
    return made


def test_L3_what_is_decided_is_done_when_the_record_has_it(leader: Leader) -> None:
    leader.decide()
    assert leader.later() is not None
    assert leader.done == []
    leader.stored()
    assert leader.done == [DONE]


def test_L3_what_changes_while_a_record_is_written_is_in_the_next_one(leader: Leader) -> None:
    leader.decide()
    leader.later()
    leader.decide()
    leader.later()
    leader.stored()
    assert leader.done == [DONE]
    leader.later()
    leader.stored()
    assert leader.done == [DONE, DONE]


def test_L2_the_hold_is_renewed_before_it_ends(leader: Leader) -> None:
    assert leader.duties.wakes_at <= leader.now + CHECK_S
    shortest_s = min(HOLD_S, LEASE_S) * BEAT_SHARE
    assert leader.later(shortest_s - 0.1) is None
    assert leader.later(0.1) is not None


def test_L2_a_record_of_unknown_outcome_is_written_again_soon_and_not_at_once(
    leader: Leader,
) -> None:
    leader.decide()
    leader.later()
    leader.lost()
    assert leader.later() is None
    again = leader.later(d.RETRY_S)
    assert again is not None
    assert leader.done == []
    leader.stored()
    assert leader.done == [DONE]


def test_L2_what_is_confirmed_after_the_hold_lets_nothing_be_done_until_another_swap(
    leader: Leader,
) -> None:
    leader.decide()
    leader.later()
    leader.stored(HOLD_S + 0.1)
    assert leader.done == []
    leader.later()
    leader.stored()
    assert leader.done == [DONE]


def test_L3_an_answer_to_another_record_than_the_last_one_lets_nothing_be_done(
    leader: Leader,
) -> None:
    """A leader that goes writes its last record while another one is under way."""
    leader.decide()
    earlier = leader.later()
    assert earlier is not None
    leader.under_way = None
    leader.decide()
    leader.feed(leader.duties.leaves())
    leader.feed(leader.duties.written(leader.now, earlier))
    assert leader.done == []
    leader.stored()
    assert leader.done == [DONE, DONE]


def test_L8_a_register_that_is_away_is_told_of_once_and_that_it_is_back(leader: Leader) -> None:
    leader.later(2.0)
    for _ in range(30):
        leader.later(d.RETRY_S)
        if leader.under_way is not None:
            leader.lost()
    assert leader.said == ["not_recorded"]
    leader.later(d.RETRY_S)
    leader.stored()
    assert leader.said == ["not_recorded", "recorded_again"]


def test_L8_a_process_that_was_stopped_does_not_blame_the_register(leader: Leader) -> None:
    leader.later(HOLD_S * d.STALL_SHARE + d.STOPPED_S + 1.0)
    assert leader.said == []


@pytest.mark.parametrize(
    ("epoch", "why"),
    [(9, "another coordinator has taken over"), (0, "an older record of the job")],
)
def test_L1_a_leader_that_finds_another_record_leads_no_more(
    epoch: int, why: str, leader: Leader
) -> None:
    found = replace(record_of(job_of(2)), epoch=Epoch(epoch or 1, 5))
    leader.feed(leader.duties.overtaken(found))
    assert why in leader.ends[0]
    assert leader.duties.wakes_at == inf
    assert not leader.duties.is_sure(leader.now)
    leader.feed(leader.duties.leaves())
    assert leader.under_way is None, "the record is another one's"


def test_L2_a_leader_that_alone_has_lost_its_register_hands_over(leader: Leader) -> None:
    speaker = Speaker(2, (ROUND, 1, 0))
    since = leader.now
    while leader.now < since + HOLD_S * LONELY_SHARE + LONELY_S + CHECK_S and not leader.ends:
        promise = Promise(0, ROUND, 1, offers=("next:1",))
        leader.duties.lead.heard(m.Heartbeat(1, promise), leader.now, speaker)
        leader.later(CHECK_S)
    assert leader.ends == ["it can't write its record, and another node can"]
    assert leader.duties.lead.successor == ("next:1",)


def test_L2_a_leader_without_its_register_steps_down_and_its_record_counts_that(
    leader: Leader,
) -> None:
    leader.later(2.0)
    leader.later(HOLD_S)
    while not leader.ends and leader.now < 200:
        leader.later(CHECK_S)
    assert leader.ends == [f"its register did not answer for {LEASE_S:g} s"]
    leader.under_way = None
    leader.feed(leader.duties.leaves(steps_down=True))
    record = leader.under_way
    assert record is not None
    assert record.is_vacant
    assert record.job is not None
    assert record.job.stepped_down == 1
    leader.under_way = None
    leader.feed(leader.duties.leaves())
    assert leader.under_way is None, "it has said so already"


@pytest.mark.parametrize("before", [None, Life(5, None)])
def test_L7_an_end_is_still_known_when_a_life_begins_after_one_that_nobody_has_ended(
    before: Life | None,
) -> None:
    known = FormerLife(4, Verdict(Outcome.FAILED, "rank 0 has failed", 3))
    leader = Leader(record_of(replace(job_of(2), former=known)))
    begun = leader.duties.begin(new_job(SharedSettings("job", 1, 8), 6), before)
    assert begun.begin().former == known


@pytest.mark.parametrize("is_silent", [False, True])
def test_L3_a_cancel_that_can_not_be_recorded_is_told_where_all_nodes_are_heard(
    is_silent: bool, leader: Leader
) -> None:
    member = RoundMember(NodeRef("a", "life"), 1, CANDIDATE, MemberState.RUNNING)
    add(leader.job.round, member)
    leader.job.verdict = Verdict(Outcome.CANCELLED, "a person has said so", 3)
    leader.life.after([DONE])
    leader.feed(leader.duties.changed())
    leader.is_silent = is_silent
    leader.later(2.0)
    leader.later(HOLD_S)
    while not leader.ends and leader.now < 200:
        leader.later(CHECK_S)
    assert leader.done == ([] if is_silent else [DONE])
    assert ("is not recorded" in leader.ends[0]) is not is_silent


def test_L9_a_leader_that_learns_of_a_newer_record_leads_no_more_and_says_so_once(
    leader: Leader,
) -> None:
    newer = Position(Epoch(9, 1).as_int(), 3, 5, 4, 2, 2, is_active=True)
    assert leader.duties.is_behind(newer)
    for _ in range(2):
        leader.feed(leader.duties.learned(newer, SharedSettings("job", 1, 8)))
    assert leader.ends == [d.BEHIND]
    assert leader.memory.next_number(None) > 9


def test_L2_a_leader_that_fails_by_a_fault_of_its_own_may_still_say_that_it_goes(
    leader: Leader,
) -> None:
    leader.feed(leader.duties.failed("a fault", is_deposed=False))
    assert (leader.ends, leader.duties.wakes_at) == (["a fault"], inf)
    leader.feed(leader.duties.leaves())
    assert leader.under_way is not None
