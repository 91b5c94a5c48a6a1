"""Leading a job by a register, on asyncio."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.limits import patience

from rallypoint.coordinator.leader_process import Runtime, is_gone, this_process
from rallypoint.coordinator.leadership import Leadership
from rallypoint.core.event_kinds import Record
from rallypoint.core.host_effects import HangUp, HostEffect
from rallypoint.core.job_state import new_job
from rallypoint.core.model import SharedSettings, WorldEntry
from rallypoint.core.round_state import Phase
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.register.contract import MemoryRendezvousBackend, Token
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.threads import CallThread


class Unreliable(MemoryRendezvousBackend):
    """Fails as it is told to, before or after it has stored something."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_before = self.fails_after = 0
        self.has_failed = threading.Event()
        self.on_stored: Callable[[], object] = int

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        if self.fails_before:
            self.fails_before -= 1
            raise RendezvousConnectionError("away")
        after = super().set_state(state, token)
        self.on_stored()
        if self.fails_after:
            self.fails_after -= 1
            self.has_failed.set()
            raise RendezvousConnectionError("no answer")
        return after


class Slow(MemoryRendezvousBackend):
    """Stores something when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.is_writing, self.may_write = threading.Event(), threading.Event()

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        if self.is_slow:
            self.is_writing.set()
            assert self.may_write.wait(patience(60))
        return super().set_state(state, token)


@contextmanager
def threads() -> Iterator[Callable[[Any], Leadership]]:
    """Makes leaderships of one register, each of its own process."""
    made: list[CallThread] = []

    def leadership(register: Any) -> Leadership:
        made.append(CallThread(f"register {len(made)}"))
        leader = Leader((f"host{len(made)}:1",), Process(f"boot{len(made)}", 1, 1))
        return Leadership(register, leader, made[-1])

    try:
        yield leadership
    finally:
        for thread in made:
            thread.close()


def run(test: Callable[[Callable[[Any], Leadership]], Awaitable[None]]) -> None:
    async def whole() -> None:
        with threads() as leadership:
            async with asyncio.timeout(patience(60)):
                await test(leadership)

    asyncio.run(whole())


def job_in(register: MemoryRendezvousBackend) -> JobRecord:
    """What a coordinator that takes over would find."""
    found = register.get_state()
    assert found is not None
    job = msgspec.msgpack.decode(found[0], type=LeadRecord).job
    assert job is not None
    return job


def no_wait(text: str) -> None:
    raise AssertionError(f"waits: {text}")


def no_record(record: Record) -> None:
    raise AssertionError(record.text)


def never(why: str) -> None:
    raise AssertionError(why)


def nobody_is_silent(incarnation: str, seconds: float) -> bool:
    return False


class Host:
    """What was done."""

    def __init__(self) -> None:
        self.done: list[HostEffect] = []
        self.is_changed = asyncio.Event()

    def perform(self, effects: list[HostEffect]) -> None:
        self.done += effects
        self.is_changed.set()

    async def wait_done(self, wanted: list[HostEffect]) -> None:
        while self.done != wanted:
            await self.is_changed.wait()
            self.is_changed.clear()


async def recorded_round(register: Any, leadership: Callable[[Any], Leadership]) -> int:
    """What another leader would go on with."""
    watching = leadership(register)
    found = (await watching.look()).record
    assert found is not None
    assert found.job is not None
    return found.job.round


@pytest.mark.parametrize("kind", ["fails_before", "fails_after"])
def test_L2_a_swap_of_unknown_outcome_deposes_nobody(kind: str) -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register, host = Unreliable(), Host()
        lead = leadership(register)
        await lead.claim(no_wait)
        job = new_job(SharedSettings("job", 1, 1))
        gate = lead.begin(job, None).open_gate(host.perform, nobody_is_silent)
        setattr(register, kind, 2)
        assert gate.after([HangUp(1)]) == []
        lead.keep(never, no_record)
        await host.wait_done([HangUp(1)])
        job.round.round = 1
        setattr(register, kind, 1)
        assert gate.after([HangUp(2)]) == []
        await host.wait_done([HangUp(1), HangUp(2)])
        await lead.vacate(1.0)

    run(test)


def test_L3_a_swap_of_unknown_outcome_does_not_vouch_for_what_changed_since() -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register, host = Unreliable(), Host()
        lead = leadership(register)
        await lead.claim(no_wait)
        job = new_job(SharedSettings("job", 1, 1))
        gate = lead.begin(job, None).open_gate(host.perform, nobody_is_silent)
        register.fails_after = 1
        gate.after([HangUp(1)])
        lead.keep(never, no_record)
        await asyncio.to_thread(register.has_failed.wait)
        job.round.round = 7
        assert gate.after([HangUp(2)]) == []
        await host.wait_done([HangUp(1), HangUp(2)])
        assert await recorded_round(register, leadership) == 7
        await lead.vacate(1.0)

    run(test)


def test_L2_a_swap_that_is_confirmed_after_its_hold_lets_nothing_be_done() -> None:
    async def test(_: Callable[[Any], Leadership]) -> None:
        now, register, host = 0.0, Unreliable(), Host()
        with closing(CallThread("register")) as thread:
            leader = Leader(("host:1",), Process("boot", 1, 1))
            runtime = Runtime(clock=lambda: now)
            lead, job = (
                Leadership(register, leader, thread, runtime),
                new_job(SharedSettings("job", 1, 1)),
            )
            await lead.claim(no_wait)
            gate = lead.begin(job, None).open_gate(host.perform, nobody_is_silent)
            stored_at: list[float] = []

            def answer_late() -> None:
                nonlocal now
                stored_at.append(now)
                now += 0.0 if len(stored_at) > 2 else HOLD_S

            register.on_stored = answer_late
            gate.after([HangUp(1)])
            lead.keep(never, no_record)
            await host.wait_done([HangUp(1)])
            assert stored_at == [0.0, HOLD_S, 2 * HOLD_S]
            await lead.vacate(1.0)

    run(test)


def test_L6_a_leader_that_goes_while_it_writes_says_that_it_goes() -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register = Slow()
        lead = leadership(register)
        await lead.claim(no_wait)
        register.is_slow = True
        lead.changed()
        lead.keep(never, no_record)
        await asyncio.to_thread(register.is_writing.wait)
        leaving = asyncio.create_task(lead.vacate(60.0))
        await asyncio.sleep(0)
        register.may_write.set()
        await leaving
        await leadership(register).claim(no_wait)

    run(test)


def test_L6_a_leader_that_goes_writes_what_it_has_not_written_yet() -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register = MemoryRendezvousBackend()
        lead = leadership(register)
        await lead.claim(no_wait)
        state = new_job(SharedSettings("job", 1, 1))
        told: list[HostEffect] = []
        gate = lead.begin(state, None).open_gate(told.extend, nobody_is_silent)
        state.round.round = 7
        assert gate.after([HangUp(1)]) == []
        await lead.vacate(1.0)
        assert told == [HangUp(1)], "and does what has waited for that"
        assert await recorded_round(register, leadership) == 7
        await leadership(register).claim(no_wait)

    run(test)


def test_L2_it_is_recorded_how_many_leaders_have_stepped_down_before_one_knows_what_runs() -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register, host = MemoryRendezvousBackend(), Host()
        lead = leadership(register)
        await lead.claim(no_wait)
        job = new_job(SharedSettings("job", 1, 1))
        job.round.phase, job.round.world = Phase.ACTIVE, [WorldEntry("a", "life", 1, "default")]
        lead.begin(job, None).open_gate(host.perform, nobody_is_silent)
        for before in range(2):
            await lead.vacate(60.0, steps_down=True)
            assert job_in(register).stepped_down == before + 1
            lead = leadership(register)
            await lead.claim(no_wait)
            found = lead.take_over()
            assert found is not None
            found.led.open_gate(host.perform, nobody_is_silent)
        await lead.vacate(60.0)

    run(test)


def test_L1_a_claim_of_unknown_outcome_ends_as_one_leader() -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register = Unreliable()
        register.fails_after = 1
        said: list[str] = []
        lead = leadership(register)
        await lead.claim(said.append)
        assert said == ["no answer"]
        await lead.vacate(1.0)

    run(test)


def test_L1_a_vacant_job_is_led_at_once_and_the_former_leader_is_deposed() -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register, host = MemoryRendezvousBackend(), Host()
        old, new = leadership(register), leadership(register)
        await old.claim(no_wait)
        job = new_job(SharedSettings("job", 1, 1), 5)
        gate = old.begin(job, None).open_gate(host.perform, nobody_is_silent)
        gate.after([HangUp(1)])
        deposed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        old.keep(deposed.set_result, no_record)
        await host.wait_done([HangUp(1)])
        before = register.get_state()
        await old.vacate(1.0)
        await new.claim(no_wait)
        found = new.take_over()
        assert found is not None
        assert found.state.incarnation == 5
        assert new.lead.epoch.number == old.lead.epoch.number + 1
        job.round.round = 1
        assert gate.after([HangUp(2)]) == []
        old.keep(deposed.set_result, no_record)
        assert await deposed == "another coordinator has taken over this job"
        assert host.done == [HangUp(1)]
        assert before is not None
        await new.vacate(1.0)

    run(test)


@pytest.mark.parametrize("stored", [b"", b"no record"], ids=["led by another", "corrupt"])
def test_L1_a_deposed_leader_changes_nothing_when_it_goes(stored: bytes) -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register = MemoryRendezvousBackend()
        old, new = leadership(register), leadership(register)
        await old.claim(no_wait)
        await old.vacate(1.0)
        await new.claim(no_wait)
        found = register.get_state()
        assert found is not None
        if stored:
            register.set_state(stored, found[1])
            found = register.get_state()
            assert found is not None
        deposed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        old.changed()
        old.keep(deposed.set_result, no_record)
        await deposed
        assert not old.is_sure
        await old.vacate(1.0)
        assert register.get_state() == found

    run(test)


def test_a_register_is_removed_by_its_leader_only(tmp_path: Path) -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        old, new = (leadership(DirectoryBackend(str(tmp_path), "job")) for _ in range(2))
        await old.claim(no_wait)
        await old.vacate(1.0)
        await new.claim(no_wait)
        await old.remove(patience(60))
        [kept] = tmp_path.iterdir()
        assert kept.name.startswith("rallypoint-job-")
        new.keep(never, no_record)
        await new.remove(patience(60))
        assert list(tmp_path.iterdir()) == []

    run(test)


def test_L1_a_leader_that_lives_is_waited_for() -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register, said = MemoryRendezvousBackend(), asyncio.Event()
        old, new = leadership(register), leadership(register)
        await old.claim(no_wait)

        def on_wait(text: str) -> None:
            assert "another coordinator (host1:1) leads this job" in text
            said.set()

        claim = asyncio.create_task(new.claim(on_wait))
        await said.wait()
        assert not claim.done()
        claim.cancel()
        await old.vacate(1.0)

    run(test)


def test_L2_a_job_that_is_hosted_no_more_stays_in_its_register() -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register, host, stored = Unreliable(), Host(), asyncio.Event()
        lead, loop = leadership(register), asyncio.get_running_loop()
        await lead.claim(no_wait)
        gate = lead.begin(new_job(SharedSettings("job", 1, 1), 5), None).open_gate(
            host.perform, nobody_is_silent
        )
        gate.after([HangUp(1)])
        lead.keep(never, no_record)
        await host.wait_done([HangUp(1)])
        register.on_stored = lambda: loop.call_soon_threadsafe(stored.set)
        gate.close()
        lead.changed()
        await stored.wait()
        assert job_in(register).incarnation == 5
        await lead.vacate(1.0)

    run(test)


def test_L2_a_leader_that_fails_by_a_fault_of_its_own_says_that_it_leads_no_more() -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register = Unreliable()
        lead = leadership(register)
        await lead.claim(no_wait)

        def fail() -> None:
            raise ValueError("of its own")

        register.on_stored = fail
        deposed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        lead.keep(deposed.set_result, no_record)
        lead.changed()
        assert "unexpected ValueError (of its own)" in await deposed

    run(test)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"no record", "does not parse"),
        (b"\x92\x02\xc0", "has version 2, and this version of rallypoint reads up to 1"),
    ],
)
def test_L1_what_is_no_record_is_refused_and_left_as_it_is(data: bytes, text: str) -> None:
    async def test(leadership: Callable[[Any], Leadership]) -> None:
        register = MemoryRendezvousBackend()
        register.set_state(data)
        with pytest.raises(RendezvousStateError, match=text):
            await leadership(register).claim(no_wait)
        found = register.get_state()
        assert found is not None
        assert found[0] == data

    run(test)


def test_L1_a_process_of_this_boot_that_has_ended_is_known_to_be_gone() -> None:
    own = this_process()
    assert is_gone(own, own)
    assert not is_gone(Process(own.where, 1, _started_at_of_init()), own)
    assert is_gone(Process(own.where, 1, _started_at_of_init() + 1), own)
    assert is_gone(Process(own.where, 2**22, 1), own)
    assert not is_gone(Process("another boot", own.pid, own.started_at), own)


def test_L1_of_a_process_in_another_container_nothing_is_known() -> None:
    """It shares the boot with this one, and its pid is none here."""
    own = this_process()
    namespace = os.readlink("/proc/self/ns/pid")
    assert namespace in own.where
    where = own.where.replace(namespace, "pid:[1]")
    assert not is_gone(Process(where, 2**22, 1), own)


def test_L1_a_process_that_can_not_be_looked_at_is_not_known_to_be_gone() -> None:
    own = this_process()
    init = Process(own.where, 1, _started_at_of_init())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not is_gone(init, own)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _started_at_of_init() -> int:
    with open("/proc/1/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])
