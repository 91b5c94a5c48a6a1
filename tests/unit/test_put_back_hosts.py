"""A register holds an older record of a job than one that was there before, or none: what the
processes do that lead by it, on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest
from msgspec.structs import replace
from tests.limits import patience
from tests.unit.test_led_jobs import Host, fresh
from tests.unit.test_led_jobs import run as run_host

from rallypoint.coordinator.leadership import Leadership
from rallypoint.coordinator.register_record import decode
from rallypoint.coordinator.threads import CallThread
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import new_job
from rallypoint.core.model import Candidate, Epoch, SharedSettings
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import Leader, LeadRecord, Process
from rallypoint.core.takeover.told import Seal, Told
from rallypoint.rendezvous.backend import MemoryRendezvousBackend, Token

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
        self.memory = Memory()
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
        with closing(CallThread("next")) as thread:
            again = Leadership(register, LEADER, thread, memory=leading.memory)
            await again.claim(lambda text: pytest.fail(text))
            assert register.record.epoch.number == newest.epoch.number + 1
            assert newest.job is not None
            assert register.record.job == replace(newest.job, leader_rank=-1, leader_node="")

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
