"""What a node that leads its job by a register knows of the job's end, on asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing

import pytest
from msgspec.structs import replace
from tests.harness.faulty_register import FaultyRegister
from tests.harness.leading_process import LeadingProcess
from tests.harness.narrowed import known

from rallypoint.coordinator.hosted_job import Gate
from rallypoint.coordinator.leading.leader_process import Runtime
from rallypoint.coordinator.leading.record_gate import RecordGate
from rallypoint.core.host_effects import HangUp
from rallypoint.core.job_lives import Life
from rallypoint.core.job_state import new_job
from rallypoint.core.model import (
    Candidate,
    Epoch,
    NodeRef,
    Outcome,
    SharedSettings,
    Stamp,
    Verdict,
)
from rallypoint.core.round_state import MemberState, RoundMember, add
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.record import FormerLife, JobRecord, Leader, LeadRecord, Process
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.register.record import encode

SETTINGS = SharedSettings("job", 1, 3)
LEASE_S = SETTINGS.lease_s
ROUND = Stamp(1, 3)
CANDIDATE = Candidate(1, "default", "host", 1)
BEFORE = Leader(("host0:1",), Process("boot0", 1, 1), has_workers=True)
RUNNING = JobRecord(SETTINGS, 1, 3, True, True, 2, leader_rank=1)
LEFT = LeadRecord(1, Epoch(1, 1), BEFORE, 0, RUNNING, is_vacant=True)
"""The leader of a job that runs has left."""
VERDICT = Verdict(Outcome.SUCCEEDED, "well", 0)
ENDED = replace(LEFT, job=replace(RUNNING, verdict=VERDICT), is_dead=True)
"""The job has succeeded, and its leader was killed before all nodes had heard of it."""


class Node(LeadingProcess):
    """The one with rank 0 of two. Its clock stands still."""

    def __init__(self, record: LeadRecord) -> None:
        """`record`: what its register holds."""
        self.register, self.deference = FaultyRegister(), Deference()
        self.register.put(encode(record))
        self.now = 100.0
        runtime = Runtime(lambda: self.now, lambda process, own: False)
        super().__init__(self.register, 1, runtime, has_workers=True, deference=self.deference)

    async def lead(self) -> Gate:
        """Take over the job that its last leader has left."""
        await self.candidacy.look(Claimant(ROUND, 0))
        assert await self.candidacy.take()
        taken_over = known(self.leadership.take_over())
        self.job = taken_over.state
        gate = self.open_gate(taken_over.led)
        self.keep(lambda record: None)
        return gate


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


async def test_L7_who_begins_a_job_anew_waits_for_nodes_that_have_yet_to_hear_how_it_ended(
    ended: Node,
) -> None:
    """And does not take that for its own end, however long ago it was."""
    candidacy, fresh = ended.candidacy, Claimant(is_fresh=True)
    assert (await candidacy.look(Claimant())).claims_in_s == 0
    first = await candidacy.look(fresh)
    assert first.claims_in_s == pytest.approx(with_margin(LEASE_S))
    ended.now += first.claims_in_s + 0.01
    assert (await candidacy.look(fresh)).claims_in_s == 0
    assert await candidacy.take()
    assert ended.leadership.duties.over is not None
    assert ended.leadership.take_over() is None


async def test_L7_how_a_job_has_ended_is_known_also_after_a_life_that_nobody_took_part_in(
    ended: Node,
) -> None:
    """A node that came back after the end has begun that life, to hear how its own has ended."""
    former = FormerLife(4, VERDICT)
    await ended.candidacy.look()
    empty = JobRecord(SETTINGS, 5, former=former)
    ended.register.put(encode(replace(LEFT, epoch=Epoch(2, 1), job=empty)))
    await ended.candidacy.look(Claimant())
    assert await ended.candidacy.take()
    gate = ended.open_gate(ended.leadership.begin(new_job(SETTINGS, 6), Life(5, None)))
    assert isinstance(gate, RecordGate)
    assert gate.durable.begin().former == former
