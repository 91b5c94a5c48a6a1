"""What the rules of the simulator expect of a coordinator that leads a job again, after another one
has led it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.simulator import Simulation, read_plan
from tests.simulator.facts import Life, Violation, World
from tests.simulator.led_invariants import LedInvariants

from rallypoint.core.events import Timer, TimerEnded, TimerKind
from rallypoint.core.job import new_job
from rallypoint.core.messages import Attached
from rallypoint.core.model import Epoch, NodeRef, SharedSettings, Stamp
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.register.record import encode

PLAN = "a-coordinator-leads-again-and-makes-a-charge-again-that-was-not-recorded.txt"
SETTINGS = SharedSettings("job", 2, 2)
FIRST, SECOND = (Leader((), Process("boot", number, 0)) for number in (1, 2))
RECORD = LeadRecord(1, Epoch(1, 5), FIRST, 0, JobRecord(SETTINGS, 1, 1, True, True, 2, b"", 1, 1))
AGAIN = replace(RECORD, epoch=Epoch(3, 7))
NODE = NodeRef("n1", "n1-1")


class LeadsAgain(LedInvariants):
    """The first coordinator has led, the second one then, and the first one leads again."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, is_gentle=False)
        self.lives[NODE.incarnation] = Life(NODE, 1.0, True)
        self.stored(encode(RECORD))
        self.lose_node()
        self.stored(encode(replace(RECORD, epoch=Epoch(2, 6), leader=SECOND)))
        self.stored(encode(AGAIN))

    def lose_node(self) -> None:
        """Note that whoever leads now gives the node up."""
        life = self.lives[NODE.incarnation]
        life.lost_at, life.lost_by = self.now_s, self.leadership

    def attach_node(self) -> None:
        """The node comes back to whoever leads now, with the session that it had."""
        epoch = AGAIN.epoch.as_int()
        self.told(NODE.incarnation, Attached("n1", 1, epoch, resumed=True))


def test_L3_a_coordinator_that_leads_again_charges_once_in_all_what_it_had_not_recorded() -> None:
    outline = Simulation(read_plan(Path(__file__).parent.parent / "simulated" / PLAN)).run()
    assert outline.failure is None
    said = [line.split("  ")[-1] for line in outline.transcript]
    assert sum("restart 1 of 2" in line for line in said) == 1
    assert outline.verdicts == ("succeeded",)


def test_L3_a_leader_charges_a_round_once() -> None:
    rules, state = LeadsAgain(), new_job(SETTINGS, 1)
    rules.worlds[Stamp(1, 0)] = World(1, 0.0, (), 2, charged_by=[state])
    rules.steps(state, FIRST.process.pid)
    state.judged_round, state.ledger.total = 1, 1
    with pytest.raises(Violation, match="round 0 was charged 1 times"):
        rules.stepped(state, TimerEnded(Timer(TimerKind.BACKOFF, 1)), [])


def test_L3_a_charge_that_the_record_has_is_made_again_by_nobody() -> None:
    job = AGAIN.job
    assert job is not None
    again = replace(AGAIN, beat=1, job=replace(job, restarts=job.restarts + 1))
    with pytest.raises(Violation, match="charged more than once between rounds 1 and 1"):
        LeadsAgain().stored(encode(again))


def test_L5_a_node_that_was_lost_may_come_back_to_a_coordinator_that_leads_again() -> None:
    rules = LeadsAgain()
    rules.attach_node()
    assert rules.lives[NODE.incarnation].lost_at is None


def test_L5_a_node_comes_back_to_no_leader_that_has_lost_it() -> None:
    rules = LeadsAgain()
    rules.lose_node()
    rules.attach_node()
    assert rules.lives[NODE.incarnation].lost_at is not None
