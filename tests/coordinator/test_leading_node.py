"""A node that leads its job by a register, on asyncio: consent, and stepping down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf

import pytest
from msgspec.structs import replace
from tests.harness.limits import patience

from rallypoint.coordinator.hosted_job import Gate
from rallypoint.coordinator.leader_process import Runtime
from rallypoint.coordinator.leadership import Leadership
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
from rallypoint.core.round_state import Member, MemberState, add
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.clock_rates import MARGIN_S, with_margin
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.record import FormerLife, JobRecord, Leader, LeadRecord, Process
from rallypoint.core.takeover.recovery import Returned
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.errors import RendezvousConnectionError
from rallypoint.register.contract import MemoryRendezvousBackend, Token
from rallypoint.register.record import Register, decode, encode
from rallypoint.threads import CallThread

SETTINGS = SharedSettings("job", 1, 3)
LEASE_S = SETTINGS.lease_s
ROUND = Stamp(1, 3)
CANDIDATE = Candidate(1, "default", "host", 1)
HEIR = NodeRef("heir", "life-of-the-heir")
"""The node with rank 1, which has come to the new leader."""
STATUS = JobStatus("active", 0, 0, 0, 0, 0, 0, 0, 0)


class Away(MemoryRendezvousBackend):
    """Stores nothing while it is away."""

    is_away = False

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        if self.is_away:
            raise RendezvousConnectionError("away")
        return super().set_state(state, token)


class Node:
    """The one with rank 0 of two. Its clock stands still, or runs."""

    def __init__(self, register: Register, thread: CallThread) -> None:
        self.now, self.rate = 100.0, 0.0
        self.deference = Deference()
        self.is_silent = False
        self.performed: list[HostEffect] = []
        self.ends: list[str] = []
        self.has_ended = asyncio.Event()
        leader = Leader(("host:1",), Process("boot", 1, 1), has_workers=True)
        runtime = Runtime(self._clock, lambda process, own: False)
        self._leadership = Leadership(register, leader, thread, runtime, self.deference)

    def _clock(self) -> float:
        return self.now + self.rate * asyncio.get_running_loop().time()

    async def look(self) -> LeadRecord | None:
        return (await self._leadership.look()).record

    async def take_over(self, found: LeadRecord | None, promised_until: float) -> TakenOver:
        claimant = Claimant(ROUND, 0, promised_until=promised_until)
        assert await self._leadership.take(found, claimant=claimant)
        taken_over = self._leadership.take_over()
        assert taken_over is not None
        return taken_over

    async def lead(self) -> Gate:
        """Take over the job that its last leader has left."""
        taken_over = await self.take_over(await self.look(), -inf)
        self.job = taken_over.state
        gate = taken_over.led.open_gate(self._perform, lambda life, seconds: self.is_silent)
        self._leadership.keep(self._end, lambda record: None)
        self._recovery = taken_over.led.handover.recovery
        return gate

    def heir_comes(self) -> None:
        """The node with rank 1 attaches to this leader."""
        assert self._recovery is not None
        assignment = Assignment(3, 1, 2, 1, 2, 1, 2, "host", 1, 0, "", True)
        place = m.Place(m.Join(1, CANDIDATE), assignment)
        self._recovery.returned[1] = Returned(HEIR, place, lease_ended=False, doing=m.Doing.RUNNING)

    def _perform(self, effects: list[HostEffect]) -> None:
        self.performed += effects

    def _end(self, why: str) -> None:
        self.ends.append(why)
        self.has_ended.set()


def run(test: Callable[[Away, Node], Awaitable[None]], lease_s: float = LEASE_S) -> None:
    settings = replace(SETTINGS, lease_s=lease_s, heartbeat_s=lease_s / 15)
    job = JobRecord(settings, 1, 3, True, True, 2, leader_rank=1)

    async def whole() -> None:
        register, thread = Away(), CallThread("register")
        before = Leader(("host0:1",), Process("boot0", 1, 1), has_workers=True)
        register.set_state(encode(LeadRecord(1, Epoch(1, 1), before, 0, job, is_vacant=True)))
        try:
            async with asyncio.timeout(patience(60)):
                await test(register, Node(register, thread))
        finally:
            thread.close()

    asyncio.run(whole())


def answered(gate: Gate, number: int, promise: Promise | None) -> bool:
    ack: HostEffect = SendTo(1, m.HeartbeatAck(number, ROUND, STATUS))
    return bool(gate.answer(m.Heartbeat(number, promise), [ack], 1, HEIR.incarnation))


def test_L2_heartbeats_have_answers_while_the_heirs_promise_though_the_register_is_away() -> None:
    async def test(register: Away, node: Node) -> None:
        gate = await node.lead()
        node.heir_comes()
        register.is_away = True
        for number in range(1, 40):
            node.now += 1
            assert answered(gate, number, Promise(number - 1, ROUND, 1))
            assert answered(gate, number, None)
        node.now += LEASE_S
        assert not answered(gate, 40, Promise(10, ROUND, 1))

    run(test)


def test_L2_no_heartbeat_has_an_answer_after_the_hold_without_promises() -> None:
    async def test(register: Away, node: Node) -> None:
        gate = await node.lead()
        register.is_away = True
        node.now += HOLD_S - 0.1
        assert answered(gate, 1, None)
        node.now += 1
        assert not answered(gate, 2, None)

    run(test)


@pytest.mark.parametrize("is_silent", [True, False])
def test_L3_a_cancel_that_can_not_be_recorded_is_told_if_all_nodes_are_here(
    is_silent: bool,
) -> None:
    """When the leader steps down for want of its register."""

    async def test(register: Away, node: Node) -> None:
        node.is_silent = is_silent
        gate = await node.lead()
        register.is_away = True
        told = HangUp(1)
        node.job.verdict = Verdict(Outcome.CANCELLED, "a person has said so", 3)
        add(node.job.round, Member(NodeRef("a", "life"), 1, CANDIDATE, MemberState.RUNNING))
        assert gate.after([told]) == []
        node.now += HOLD_S + LEASE_S
        await node.has_ended.wait()
        assert node.performed == ([] if is_silent else [told])
        assert ("is not recorded" in node.ends[0]) is not is_silent

    run(test)


def test_L2_a_leader_that_most_nodes_do_not_reach_says_that_it_goes() -> None:
    """None of them has come to it. Its clock runs three times as fast as others."""

    async def test(register: Away, node: Node) -> None:
        node.rate = 3.0
        gate = await node.lead()
        await node.has_ended.wait()
        assert node.ends == ["it does not hear 2 of 2 nodes, and another may"]
        assert not answered(gate, 1, None)
        found = register.get_state()
        assert found is not None
        assert decode(found[0]).is_vacant
        assert node.deference.until > 0

    run(test, lease_s=1.0)


def test_L4_the_workers_of_a_leader_that_acted_by_promises_may_run_until_they_end() -> None:
    """The process of that leader is known to be gone: then nobody waits to claim."""

    async def test(register: Away, node: Node) -> None:
        found = await node.look()
        node.now += 12
        recovery = (await node.take_over(found, node.now + 4)).led.handover.recovery
        assert recovery is not None
        waits_s = 4 + LEASE_S + MARGIN_S - with_margin(LEASE_S / 2)
        assert recovery.timers_wanted()[Timer(TimerKind.FENCE)] == pytest.approx(waits_s)

    run(test)


def test_L2_a_leader_without_its_register_for_a_lease_leads_no_more() -> None:
    async def test(register: Away, node: Node) -> None:
        gate = await node.lead()
        register.is_away = True
        node.now += HOLD_S + LEASE_S
        await node.has_ended.wait()
        assert node.ends == ["its register did not answer for 15 s"]
        assert not answered(gate, 1, None)

    run(test)


class Ended:
    """The job has succeeded, and its leader was killed before all nodes had heard of it."""

    def __init__(self) -> None:
        self.register, self.thread = Away(), CallThread("register")
        verdict = Verdict(Outcome.SUCCEEDED, "well", 0)
        job = JobRecord(SETTINGS, 1, 3, True, True, 2, leader_rank=1, verdict=verdict)
        before = Leader(("host0:1",), Process("boot0", 1, 1), has_workers=True)
        record = LeadRecord(1, Epoch(1, 1), before, 0, job, is_vacant=True, is_dead=True)
        self.register.set_state(encode(record))
        leader = Leader(("host:1",), Process("boot", 1, 1), has_workers=True)
        self.now = 100.0
        runtime = Runtime(lambda: self.now, lambda process, own: False)
        self.leadership = Leadership(self.register, leader, self.thread, runtime, Deference())


def test_L7_who_begins_a_job_anew_waits_for_nodes_that_have_yet_to_hear_how_it_ended() -> None:
    """And does not take that for its own end, however long ago it was."""

    async def test() -> None:
        ended = Ended()
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
        ended.thread.close()

    asyncio.run(test())


def test_L7_a_node_that_took_part_hears_how_the_job_has_ended() -> None:
    async def test() -> None:
        ended = Ended()
        found = await ended.leadership.look(Claimant())
        assert await ended.leadership.take(found.record, claimant=Claimant())
        taken_over = ended.leadership.take_over()
        assert taken_over is not None
        assert taken_over.state.verdict is not None
        ended.thread.close()

    asyncio.run(test())


def test_L7_how_a_job_has_ended_is_known_also_after_a_life_that_nobody_took_part_in() -> None:
    """A node that came back after the end has begun that life, to hear how its own has ended."""

    async def test() -> None:
        ended = Ended()
        former = FormerLife(4, Verdict(Outcome.SUCCEEDED, "well", 0))
        empty = JobRecord(SETTINGS, 5, former=former)
        before = Leader(("host0:1",), Process("boot0", 1, 1), has_workers=True)
        found = await ended.leadership.look()
        assert found.record is not None
        record = LeadRecord(1, Epoch(2, 1), before, 0, empty, is_vacant=True)
        token = ended.register.get_state()
        assert token is not None
        ended.register.set_state(encode(record), token[1])
        found = await ended.leadership.look(Claimant())
        assert await ended.leadership.take(found.record, claimant=Claimant())
        led = ended.leadership.begin(new_job(SETTINGS, 6), Life(5, None))
        led.open_gate(lambda effects: None, lambda life, seconds: False)
        (job,) = ended.leadership.jobs
        assert job.durable.begin().former == former
        ended.thread.close()

    asyncio.run(test())
