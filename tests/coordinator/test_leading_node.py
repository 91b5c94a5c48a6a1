"""A node that leads its job by a register, on asyncio: consent, and stepping down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing

import pytest
from msgspec.structs import replace
from tests.harness.faulty_register import FaultyRegister
from tests.harness.leading_process import LeadingProcess

from rallypoint.coordinator.hosted_job import Gate
from rallypoint.coordinator.leader_process import Runtime
from rallypoint.coordinator.led_job import TakenOver
from rallypoint.core import messages as m
from rallypoint.core.events import Timer, TimerKind
from rallypoint.core.host_effects import HangUp, HostEffect, SendTo
from rallypoint.core.job_lives import Life
from rallypoint.core.job_state import new_job
from rallypoint.core.model import (
    Assignment,
    Candidate,
    Epoch,
    JobStatus,
    NodeRef,
    Outcome,
    Promise,
    SharedSettings,
    Stamp,
    Verdict,
)
from rallypoint.core.round_state import MemberState, RoundMember, add
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.clock_rates import MARGIN_S, with_margin
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.record import FormerLife, JobRecord, Leader, LeadRecord, Process
from rallypoint.core.takeover.recovery import Returned
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.register.record import encode

SETTINGS = SharedSettings("job", 1, 3)
LEASE_S = SETTINGS.lease_s
ROUND = Stamp(1, 3)
CANDIDATE = Candidate(1, "default", "host", 1)
HEIR = NodeRef("heir", "life-of-the-heir")
"""The node with rank 1, which has come to the new leader."""
STATUS = JobStatus("active", 0, 0, 0, 0, 0, 0, 0, 0)
BEFORE = Leader(("host0:1",), Process("boot0", 1, 1), has_workers=True)
RUNNING = JobRecord(SETTINGS, 1, 3, True, True, 2, leader_rank=1)
LEFT = LeadRecord(1, Epoch(1, 1), BEFORE, 0, RUNNING, is_vacant=True)
"""The leader of a job that runs has left."""
VERDICT = Verdict(Outcome.SUCCEEDED, "well", 0)
ENDED = replace(LEFT, job=replace(RUNNING, verdict=VERDICT), is_dead=True)
"""The job has succeeded, and its leader was killed before all nodes had heard of it."""


class Node(LeadingProcess):
    """The one with rank 0 of two. Its clock stands still, or runs."""

    def __init__(self, record: LeadRecord) -> None:
        """`record`: what its register holds."""
        self.register, self.deference = FaultyRegister(), Deference()
        self.register.put(encode(record))
        self.now, self.rate = 100.0, 0.0
        runtime = Runtime(self._clock, lambda process, own: False)
        super().__init__(self.register, 1, runtime, has_workers=True, deference=self.deference)

    def _clock(self) -> float:
        return self.now + self.rate * asyncio.get_running_loop().time()

    async def take_over(self, found: LeadRecord | None, claimant: Claimant) -> TakenOver:
        """The job that this record tells of."""
        assert await self.leadership.take(found, claimant=claimant)
        taken_over = self.leadership.take_over()
        assert taken_over is not None
        return taken_over

    async def lead(self) -> Gate:
        """Take over the job that its last leader has left."""
        found = (await self.leadership.look()).record
        taken_over = await self.take_over(found, Claimant(ROUND, 0))
        self.job, self._recovery = taken_over.state, taken_over.led.handover.recovery
        gate = self.open_gate(taken_over.led)
        self.keep(lambda record: None)
        return gate

    def heir_comes(self) -> None:
        """The node with rank 1 attaches to this leader."""
        assert self._recovery is not None
        assignment = Assignment(3, 1, 2, 1, 2, 1, 2, "host", 1, 0, "", True)
        place = m.Place(m.Join(1, CANDIDATE), assignment)
        self._recovery.returned[1] = Returned(HEIR, place, lease_ended=False, doing=m.Doing.RUNNING)


@asynccontextmanager
async def node_with(record: LeadRecord) -> AsyncIterator[Node]:
    with closing(Node(record)) as made:
        yield made


@pytest.fixture
def node() -> AbstractAsyncContextManager[Node]:
    return node_with(LEFT)


@pytest.fixture
def ended() -> AbstractAsyncContextManager[Node]:
    return node_with(ENDED)


def answered(gate: Gate, number: int, promise: Promise | None) -> bool:
    ack: HostEffect = SendTo(1, m.HeartbeatAck(number, ROUND, STATUS))
    return bool(gate.answer(m.Heartbeat(number, promise), [ack], 1, HEIR.incarnation))


async def test_L2_heartbeats_have_answers_while_the_heirs_promise_though_the_register_is_away(
    node: Node,
) -> None:
    gate = await node.lead()
    node.heir_comes()
    node.register.is_away = True
    for number in range(1, 40):
        node.now += 1
        assert answered(gate, number, Promise(number - 1, ROUND, 1))
        assert answered(gate, number, None)
    node.now += LEASE_S
    assert not answered(gate, 40, Promise(10, ROUND, 1))


async def test_L2_no_heartbeat_has_an_answer_after_the_hold_without_promises(node: Node) -> None:
    gate = await node.lead()
    node.register.is_away = True
    node.now += HOLD_S - 0.1
    assert answered(gate, 1, None)
    node.now += 1
    assert not answered(gate, 2, None)


@pytest.mark.parametrize("is_silent", [True, False])
async def test_L3_a_cancel_that_can_not_be_recorded_is_told_if_all_nodes_are_here(
    is_silent: bool, node: Node
) -> None:
    """When the leader steps down for want of its register."""
    node.silent |= {"life"} if is_silent else set()
    gate = await node.lead()
    node.register.is_away = True
    told = HangUp(1)
    node.job.verdict = Verdict(Outcome.CANCELLED, "a person has said so", 3)
    add(node.job.round, RoundMember(NodeRef("a", "life"), 1, CANDIDATE, MemberState.RUNNING))
    assert gate.after([told]) == []
    node.now += HOLD_S + LEASE_S
    why = await node.ended()
    assert node.performed == ([] if is_silent else [told])
    assert ("is not recorded" in why) is not is_silent


async def test_L2_a_leader_that_most_nodes_do_not_reach_says_that_it_goes() -> None:
    """None of them has come to it. Its clock runs three times as fast as others."""
    settings = replace(SETTINGS, lease_s=1.0, heartbeat_s=1.0 / 15)
    async with node_with(replace(LEFT, job=replace(RUNNING, settings=settings))) as node:
        node.rate = 3.0
        gate = await node.lead()
        assert await node.ended() == "it does not hear 2 of 2 nodes, and another may"
        assert not answered(gate, 1, None)
        assert node.register.record.is_vacant
        assert node.deference.until > 0


async def test_L4_the_workers_of_a_leader_that_acted_by_promises_may_run_until_they_end(
    node: Node,
) -> None:
    """The process of that leader is known to be gone: then nobody waits to claim."""
    found = (await node.leadership.look()).record
    node.now += 12
    claimant = Claimant(ROUND, 0, promised_until=node.now + 4)
    recovery = (await node.take_over(found, claimant)).led.handover.recovery
    assert recovery is not None
    waits_s = 4 + LEASE_S + MARGIN_S - with_margin(LEASE_S / 2)
    assert recovery.timers_wanted()[Timer(TimerKind.FENCE)] == pytest.approx(waits_s)


async def test_L2_a_leader_without_its_register_for_a_lease_leads_no_more(node: Node) -> None:
    gate = await node.lead()
    node.register.is_away = True
    node.now += HOLD_S + LEASE_S
    assert await node.ended() == "its register did not answer for 15 s"
    assert not answered(gate, 1, None)


async def test_L7_who_begins_a_job_anew_waits_for_nodes_that_have_yet_to_hear_how_it_ended(
    ended: Node,
) -> None:
    """And does not take that for its own end, however long ago it was."""
    leadership, fresh = ended.leadership, Claimant(is_fresh=True)
    assert (await leadership.look(Claimant())).claims_in_s == 0
    first = await leadership.look(fresh)
    assert first.claims_in_s == pytest.approx(with_margin(LEASE_S))
    ended.now += first.claims_in_s + 0.01
    found = await leadership.look(fresh)
    assert found.claims_in_s == 0
    assert await leadership.take(found.record, claimant=fresh)
    assert leadership.over is not None
    assert leadership.take_over() is None


async def test_L7_a_node_that_took_part_hears_how_the_job_has_ended(ended: Node) -> None:
    found = await ended.leadership.look(Claimant())
    taken_over = await ended.take_over(found.record, Claimant())
    assert taken_over.state.verdict is not None


async def test_L7_how_a_job_has_ended_is_known_also_after_a_life_that_nobody_took_part_in(
    ended: Node,
) -> None:
    """A node that came back after the end has begun that life, to hear how its own has ended."""
    former = FormerLife(4, VERDICT)
    await ended.leadership.look()
    empty = JobRecord(SETTINGS, 5, former=former)
    ended.register.put(encode(replace(LEFT, epoch=Epoch(2, 1), job=empty)))
    found = await ended.leadership.look(Claimant())
    assert await ended.leadership.take(found.record, claimant=Claimant())
    ended.open_gate(ended.leadership.begin(new_job(SETTINGS, 6), Life(5, None)))
    (job,) = ended.leadership.jobs
    assert job.durable.begin().former == former
