"""A register holds an older record of a job than one that was there before, or none: what the
processes do that lead by it, on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.faulty_register import FaultyRegister
from tests.harness.leading_process import LeadingProcess, Stepwise, no_wait
from tests.harness.led_jobs import CANDIDATE, fresh, host_of
from tests.harness.narrowed import known

from rallypoint.coordinator.leading.candidacy import JobRegister
from rallypoint.coordinator.leading.leader_process import LocalLeader, Runtime
from rallypoint.core import messages as m
from rallypoint.core.model import Epoch
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import LeadRecord
from rallypoint.core.takeover.told import Position, Seal
from rallypoint.errors import UnfitRecordError
from rallypoint.register.record import encode
from rallypoint.register.release import mark_dead


class Leading(LeadingProcess):
    """It leads the job, and has stored a second record. Anybody may write to its register."""

    def __init__(self) -> None:
        self.register = FaultyRegister()
        super().__init__(self.register, 1)

    async def lead(self) -> None:
        await self.claim()
        self.begin()
        self.keep()
        self.older = await self.next_record()
        """The first record."""

    async def next_record(self) -> bytes:
        """The one that the register holds, when another one has followed it."""
        found, loop, is_changed = self.register.data, asyncio.get_running_loop(), asyncio.Event()
        self.register.on_stored = lambda: loop.call_soon_threadsafe(is_changed.set)
        self.leadership.changed()
        while self.register.data == found:
            await is_changed.wait()
            is_changed.clear()
        return found

    async def check_claims_anew(self, newest: LeadRecord) -> None:
        """Once it no longer leads it claims the job again, above its newest record, and continues
        it."""
        with closing(LeadingProcess(self.register, 1, memory=self.memory)) as again:
            await again.claim()
        assert self.register.record.epoch.number == newest.epoch.number + 1
        assert self.register.job == replace(known(newest.job), leader_rank=-1, leader_node="")


@asynccontextmanager
async def leading_process() -> AsyncIterator[Leading]:
    with closing(Leading()) as made:
        await made.lead()
        yield made


@pytest.fixture
def leading() -> AbstractAsyncContextManager[Leading]:
    return leading_process()


async def test_L9_a_leader_whose_record_was_put_back_leads_no_more_and_claims_above_all_epochs(
    leading: Leading,
) -> None:
    await leading.next_record()
    newest = leading.register.record
    leading.register.put(leading.older)
    leading.leadership.changed()
    assert await leading.ended() == (
        "its register holds an older record of the job, which somebody has put back"
    )
    assert not leading.leadership.is_sure
    await leading.check_claims_anew(newest)


async def test_L9_a_leader_whose_record_was_removed_leads_no_more_and_says_why(
    leading: Leading,
) -> None:
    leading.register.remove_value()
    leading.leadership.changed()
    assert await leading.ended() == "its record is gone from the register"


async def test_L9_a_leader_whose_record_was_only_touched_leads_on(leading: Leading) -> None:
    """Kubernetes counts another version when somebody has set a label."""
    leading.register.put(leading.register.data)
    await leading.next_record()
    await leading.leadership.vacate(1.0)


# Agents that were told of another record


def knowing(incarnation: str, told: Position, node_id: str = "b") -> m.Attach:
    """An agent that has taken part in the job, under a leader that is gone."""
    return replace(fresh(incarnation), node_id=node_id, told=told)


NEWER = Position(Epoch(5, 1).as_int(), 3, 1, 4, 2, 4, is_active=True, is_started=True, restarts=1)


async def test_L9_an_agent_without_a_digest_is_refused_and_nobody_else_notices() -> None:
    async with host_of(FaultyRegister()) as host:
        first = host.attach(fresh("x"))
        await first.told(m.Attached)
        for number, digest in enumerate((b"", bytes(16))):
            liar = host.attach(knowing(f"liar {number}", replace(NEWER, digest=digest)))
            refused = await liar.told(m.Refused)
            assert "can't prove that a leader sent it" in refused.text
        assert not first.is_closed
        assert host.led.of("job") is not None
        host.say(first, 1, m.Join(1, CANDIDATE))
        await first.told(m.Ack)


async def test_L9_a_leader_gives_way_to_what_an_agent_was_told_and_claims_above_it() -> None:
    register = FaultyRegister()
    async with host_of(register) as host:
        first = host.attach(fresh("x"))
        begun = await first.told(m.Attached)
        hello = knowing("old", Seal("job").sealed(NEWER))
        assert host.attach(hello).is_closed, "it finds the next leader"
        await asyncio.sleep(0)
        assert host.led.of("job") is None
        assert "no longer leads: a node knows a newer record" in "".join(host.records)
        attached = await host.attach(hello).told(m.Attached)
        assert attached.incarnation == 1 != begun.incarnation
        assert register.record.epoch.number == 6
        job = register.job
        assert (job.newest_round, job.nodes, job.restarts, job.is_started) == (4, 2, 1, True)
        assert known(attached.told).order > NEWER.order


# A record that no leader writes


def mad(record: LeadRecord, **fields: Any) -> bytes:
    """This record with such values, as somebody with the token puts it there."""
    return encode(replace(record, job=replace(known(record.job), **fields)))


MAD: dict[str, dict[str, Any]] = {
    "nodes that no job has": {"nodes": 2**40, "is_active": True, "is_started": True},
    "a life without a next one": {"incarnation": 2**62},
    "a round that is too far from the last one": {"round": 2**21},
    "a time that is none": {"backoff_s": float("nan")},
}


@pytest.mark.parametrize("what", MAD)
async def test_L9_a_leader_writes_its_own_record_over_one_that_no_leader_writes(
    what: str, leading: Leading
) -> None:
    register = leading.register
    newest = register.record
    register.put(mad(replace(newest, epoch=Epoch(2, 99)), **MAD[what]))
    leading.leadership.changed()
    why = await leading.ended()
    assert why.startswith(
        "its register holds a record that was not written by a leader: record.job."
    )
    assert not leading.leadership.is_sure
    await leading.check_claims_anew(newest)


@pytest.mark.parametrize("what", [what for what in MAD if "too far" not in what])
async def test_L9_a_process_that_knows_nothing_is_refused_and_leads_when_the_record_is_removed(
    what: str, leading: Leading
) -> None:
    register = leading.register
    await leading.leadership.vacate(1.0)
    record = mad(register.record, **MAD[what])
    register.put(record)
    with closing(LeadingProcess(register, 2)) as fresh_one:
        with pytest.raises(UnfitRecordError, match="was not written by a leader"):
            await fresh_one.claim()
        assert register.data == record, "it stays as it is"
        register.remove_value()
        await fresh_one.claim()
        assert register.record.epoch.number == 1


async def test_L9_a_node_that_knows_the_job_claims_when_nobody_replaces_such_a_record(
    leading: Leading,
) -> None:
    register = leading.register
    now, waits, leader = 100.0, list[float](), register.record.leader
    runtime = Runtime(lambda: now, lambda process, own: False)
    local = LocalLeader(leader.process, leading.thread, runtime)
    job = JobRegister(register, local, leader, Memory(), Seal())
    heir = Stepwise(job, no_wait)
    await heir.look(Claimant())
    await leading.leadership.vacate(1.0)
    newest = register.record
    for beat in (1, 2):  # Each of them is a change: its writer may live.
        register.put(mad(replace(newest, beat=beat), nodes=2**40))
        look = await heir.look(Claimant())
        assert (look.record, look.is_behind) == (None, True)
        assert "record.job.nodes = 1099511627776" in look.unfit
        waits.append(look.claims_in_s)
        now += 1.0
        assert 0 < (await heir.look(Claimant())).claims_in_s < look.claims_in_s
    assert waits[0] == waits[1] > leader.hold_s
    while (look := await heir.look(Claimant())).claims_in_s:
        now += 0.5
    assert await heir.take()
    assert register.record.epoch.number == newest.epoch.number + 1


async def test_L9_an_agent_that_was_told_of_numbers_that_no_leader_has_is_refused() -> None:
    """Though the digest is right: a leader would have no number left to claim above it."""
    async with host_of(FaultyRegister()) as host:
        first = host.attach(fresh("x"))
        await first.told(m.Attached)
        far = Position(Epoch(2**21, 1).as_int(), 3, 1, 4, 2, 4)
        liar = host.attach(knowing("liar", Seal("job").sealed(far)))
        assert "can't prove that a leader" in (await liar.told(m.Refused)).text
        assert not first.is_closed


async def test_L6_a_guard_leaves_a_record_that_no_leader_writes_as_it_is(leading: Leading) -> None:
    register = leading.register
    newest = register.record
    await leading.leadership.vacate(1.0)
    record = mad(newest, nodes=2**40)
    register.put(record)
    assert not mark_dead(register, newest.epoch)
    assert register.data == record
