"""A register holds an older record of a job than one that was there before, or none: what the
processes do that lead by it, on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace
from tests.coordinator.test_led_jobs import Host, fresh
from tests.coordinator.test_led_jobs import run as run_host
from tests.harness.limits import patience

from rallypoint.coordinator.leader_process import Runtime
from rallypoint.coordinator.leadership import Leadership
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import new_job
from rallypoint.core.model import Candidate, Epoch, SharedSettings
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import Leader, LeadRecord, Process
from rallypoint.core.takeover.told import Seal, Told
from rallypoint.errors import UnfitRecordError
from rallypoint.register.contract import MemoryRendezvousBackend, Token
from rallypoint.register.record import decode, encode
from rallypoint.register.release import mark_dead
from rallypoint.threads import CallThread

LEADER = Leader(("host:1",), Process("boot", 1, 1))
JOB = SharedSettings("job", 1, 1)


class Open(MemoryRendezvousBackend):
    """Anybody may write to it. To be made in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop, self.is_changed = asyncio.get_running_loop(), asyncio.Event()

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        found = super().set_state(state, token)
        self._loop.call_soon_threadsafe(self.is_changed.set)
        return found

    def put(self, state: bytes) -> None:
        """Without a token of the job."""
        found = self.get_state()
        self.set_state(state, None if found is None else found[1])

    def remove_value(self) -> None:
        self._state = None

    @property
    def record(self) -> LeadRecord:
        found = self.get_state()
        assert found is not None
        return decode(found[0])


class Leading:
    """One process that has claimed the job."""

    def __init__(self, register: Open, thread: CallThread) -> None:
        self.memory, self.thread = Memory(), thread
        self.lead = Leadership(register, LEADER, thread, memory=self.memory)
        self.ends: list[str] = []
        self.has_ended = asyncio.Event()

    async def begin(self) -> None:
        await self.lead.claim(lambda text: None)
        self.lead.begin(new_job(JOB, 7), None).open_gate(lambda effects: None, lambda *_: False)
        self.lead.keep(self._end, _no_record)

    def _end(self, why: str) -> None:
        self.ends.append(why)
        self.has_ended.set()


def _no_record(record: Record) -> None:
    raise AssertionError(record.text)


def run(test: Callable[[Open, Leading], Awaitable[None]]) -> None:
    async def whole() -> None:
        register = Open()
        with closing(CallThread("register")) as thread:
            async with asyncio.timeout(patience(60)):
                await test(register, Leading(register, thread))

    asyncio.run(whole())


async def next_record(register: Open, leading: Leading) -> bytes:
    """The one that the register holds, when another one has followed it."""
    found = register.get_state()
    assert found is not None
    leading.lead.changed()
    while register.record == decode(found[0]):
        register.is_changed.clear()
        await register.is_changed.wait()
    return found[0]


async def check_claimed_anew(register: Open, leading: Leading, newest: LeadRecord) -> None:
    """The process that had led claims the job again, above its newest record, and goes on with
    it."""
    with closing(CallThread("next")) as thread:
        again = Leadership(register, LEADER, thread, memory=leading.memory)
        await again.claim(lambda text: pytest.fail(text))
    assert register.record.epoch.number == newest.epoch.number + 1
    assert newest.job is not None
    assert register.record.job == replace(newest.job, leader_rank=-1, leader_node="")


def test_L9_a_leader_whose_record_was_put_back_leads_no_more_and_says_why() -> None:
    async def test(register: Open, leading: Leading) -> None:
        await leading.begin()
        older = await next_record(register, leading)
        await next_record(register, leading)
        register.put(older)
        leading.lead.changed()
        await leading.has_ended.wait()
        assert leading.ends == [
            "its register holds an older record of the job, which somebody has put back"
        ]
        assert not leading.lead.is_sure

    run(test)


def test_L9_a_leader_whose_record_was_removed_leads_no_more_and_says_why() -> None:
    async def test(register: Open, leading: Leading) -> None:
        await leading.begin()
        await next_record(register, leading)
        register.remove_value()
        leading.lead.changed()
        await leading.has_ended.wait()
        assert leading.ends == ["its record is gone from the register"]

    run(test)


def test_L9_a_leader_whose_record_was_only_touched_leads_on() -> None:
    """Kubernetes counts another version when somebody has set a label."""

    async def test(register: Open, leading: Leading) -> None:
        await leading.begin()
        await next_record(register, leading)
        found = register.get_state()
        assert found is not None
        register.put(found[0])
        await next_record(register, leading)
        assert leading.ends == []
        await leading.lead.vacate(1.0)

    run(test)


def test_L9_the_process_that_has_led_claims_at_once_above_all_epochs() -> None:
    async def test(register: Open, leading: Leading) -> None:
        await leading.begin()
        older = await next_record(register, leading)
        await next_record(register, leading)
        newest = register.record
        register.put(older)
        leading.lead.changed()
        await leading.has_ended.wait()
        await check_claimed_anew(register, leading, newest)

    run(test)


# Agents that were told of another record


def knowing(incarnation: str, told: Told, node_id: str = "b") -> m.Attach:
    """An agent that has taken part in the job, under a leader that is gone."""
    return replace(fresh(incarnation), node_id=node_id, told=told)


NEWER = Told(Epoch(5, 1).as_int(), 3, 1, 4, 2, 4, is_active=True, is_started=True, restarts=1)


def test_L9_an_agent_without_a_digest_is_refused_and_nobody_else_notices() -> None:
    async def test(host: Host) -> None:
        first = host.attach(fresh("x"))
        await first.told(m.Attached)
        for number, digest in enumerate((b"", bytes(16))):
            liar = host.attach(knowing(f"liar {number}", replace(NEWER, digest=digest)))
            refused = await liar.told(m.Refused)
            assert "can't show that a leader of the job has told it so" in refused.text
        assert not first.is_closed
        assert host.led.of("job") is not None
        host.say(first, 1, m.Join(1, Candidate(1, "default", "a", 29500)))
        await first.told(m.Ack)

    run_host(MemoryRendezvousBackend(), test)


def test_L9_a_leader_gives_way_to_what_an_agent_was_told_and_claims_above_it() -> None:
    register = MemoryRendezvousBackend()

    async def test(host: Host) -> None:
        first = host.attach(fresh("x"))
        begun = await first.told(m.Attached)
        hello = knowing("old", Seal("job").sealed(NEWER))
        assert host.attach(hello).is_closed, "it finds the next leader"
        await asyncio.sleep(0)
        assert host.led.of("job") is None
        assert "leads no more: a node knows a newer record" in "".join(host.records)
        attached = await host.attach(hello).told(m.Attached)
        assert attached.incarnation == 1 != begun.incarnation
        found = register.get_state()
        assert found is not None
        record = decode(found[0])
        assert record.epoch.number == 6
        job = record.job
        assert job is not None
        assert (job.newest_round, job.nodes, job.restarts, job.is_started) == (4, 2, 1, True)
        assert attached.told is not None
        assert attached.told.order > NEWER.order

    run_host(register, test)


# A record that no leader writes


def mad(record: LeadRecord, **fields: Any) -> bytes:
    """This record with such values, as somebody with the token puts it there."""
    assert record.job is not None
    return encode(replace(record, job=replace(record.job, **fields)))


MAD: dict[str, dict[str, Any]] = {
    "nodes that no job has": {"nodes": 2**40, "is_active": True, "is_started": True},
    "a life without a next one": {"incarnation": 2**62},
    "a round that is too far from the last one": {"round": 2**21},
    "a time that is none": {"backoff_s": float("nan")},
}


@pytest.mark.parametrize("what", MAD)
def test_L9_a_leader_writes_its_own_record_over_one_that_no_leader_writes(what: str) -> None:
    async def test(register: Open, leading: Leading) -> None:
        await leading.begin()
        await next_record(register, leading)
        newest = register.record
        register.put(mad(replace(newest, epoch=Epoch(2, 99)), **MAD[what]))
        leading.lead.changed()
        await leading.has_ended.wait()
        (why,) = leading.ends
        assert why.startswith("its register holds a record that no leader writes: record.job.")
        assert not leading.lead.is_sure
        await check_claimed_anew(register, leading, newest)

    run(test)


@pytest.mark.parametrize("what", [what for what in MAD if "too far" not in what])
def test_L9_a_process_that_knows_nothing_is_refused_and_leads_when_the_record_is_removed(
    what: str,
) -> None:
    async def test(register: Open, leading: Leading) -> None:
        await leading.begin()
        await next_record(register, leading)
        await leading.lead.vacate(1.0)
        record = mad(register.record, **MAD[what])
        register.put(record)
        with closing(CallThread("fresh")) as thread:
            fresh_one = Leadership(register, LEADER, thread)
            with pytest.raises(UnfitRecordError, match="was not written by a leader"):
                await fresh_one.claim(lambda text: pytest.fail(text))
            left = register.get_state()
            assert left is not None
            assert left[0] == record, "it stays as it is"
            register.remove_value()
            await fresh_one.claim(lambda text: pytest.fail(text))
            assert register.record.epoch.number == 1

    run(test)


def test_L9_a_node_that_knows_the_job_claims_when_nobody_replaces_such_a_record() -> None:
    async def test(register: Open, leading: Leading) -> None:
        await leading.begin()
        await next_record(register, leading)
        now, memory, waits = 100.0, Memory(), list[float]()
        runtime = Runtime(lambda: now, lambda process, own: False)
        heir = Leadership(register, LEADER, leading.thread, runtime, memory=memory)
        await heir.look(Claimant())
        await leading.lead.vacate(1.0)
        newest = register.record
        for beat in (1, 2):  # Each of them is a change: its writer may live.
            register.put(mad(replace(newest, beat=beat), nodes=2**40))
            look = await heir.look(Claimant())
            assert (look.record, look.is_behind) == (None, True)
            assert "record.job.nodes = 1099511627776" in look.unfit
            waits.append(look.claims_in_s)
            now += 1.0
            assert 0 < (await heir.look(Claimant())).claims_in_s < look.claims_in_s
        assert waits[0] == waits[1] > LEADER.hold_s
        while (look := await heir.look(Claimant())).claims_in_s:
            now += 0.5
        assert await heir.take(look.record, (), Claimant())
        assert register.record.epoch.number == newest.epoch.number + 1

    run(test)


def test_L9_an_agent_that_was_told_of_numbers_that_no_leader_has_is_refused() -> None:
    """Though the digest is right: a leader would have no number left to claim above it."""
    register = MemoryRendezvousBackend()

    async def test(host: Host) -> None:
        first = host.attach(fresh("x"))
        await first.told(m.Attached)
        far = Told(Epoch(2**21, 1).as_int(), 3, 1, 4, 2, 4)
        liar = host.attach(knowing("liar", Seal("job").sealed(far)))
        assert "can't show that a leader" in (await liar.told(m.Refused)).text
        assert not first.is_closed

    run_host(register, test)


def test_L6_a_guard_leaves_a_record_that_no_leader_writes_as_it_is() -> None:
    async def test(register: Open, leading: Leading) -> None:
        await leading.begin()
        await next_record(register, leading)
        newest = register.record
        await leading.lead.vacate(1.0)
        record = mad(newest, nodes=2**40)
        register.put(record)
        assert not mark_dead(register, newest.epoch)
        left = register.get_state()
        assert left is not None
        assert left[0] == record

    run(test)
