"""Leading a job by a register, on asyncio."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness.faulty_register import FaultyRegister
from tests.harness.leading_process import (
    LeadingProcess,
    Processes,
    leading_processes,
    no_wait,
)
from tests.harness.limits import patience
from tests.harness.narrowed import known

from rallypoint.coordinator.leading.leader_process import Runtime, is_gone, this_process
from rallypoint.core.host_effects import HangUp
from rallypoint.core.model import WorldEntry
from rallypoint.core.round_state import RoundPhase
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.record import Process
from rallypoint.errors import RendezvousStateError
from rallypoint.register.directory.backend import DirectoryBackend


@pytest.fixture
def processes() -> Iterator[Processes]:
    with leading_processes() as made:
        yield made


@pytest.mark.parametrize("kind", ["fails_before", "fails_after"])
async def test_L2_a_swap_of_unknown_outcome_deposes_nobody(kind: str, processes: Processes) -> None:
    lead, register = await processes.leading_anew()
    gate = lead.begin()
    setattr(register, kind, 2)
    assert gate.after([HangUp(1)]) == []
    lead.keep()
    await lead.wait_performed([HangUp(1)])
    lead.job.round.round = 1
    setattr(register, kind, 1)
    assert gate.after([HangUp(2)]) == []
    await lead.wait_performed([HangUp(1), HangUp(2)])
    await lead.leadership.vacate(1.0)


async def test_L3_a_swap_of_unknown_outcome_does_not_vouch_for_what_changed_since(
    processes: Processes,
) -> None:
    lead, register = await processes.leading_anew()
    gate = lead.begin()
    register.fails_after = 1
    gate.after([HangUp(1)])
    lead.keep()
    await asyncio.to_thread(register.has_failed.wait)
    lead.job.round.round = 7
    assert gate.after([HangUp(2)]) == []
    await lead.wait_performed([HangUp(1), HangUp(2)])
    assert register.job.round == 7
    await lead.leadership.vacate(1.0)


async def test_L2_a_swap_that_is_confirmed_after_its_hold_lets_nothing_be_done() -> None:
    now, register = 0.0, FaultyRegister()
    with closing(LeadingProcess(register, 1, Runtime(clock=lambda: now))) as lead:
        await lead.claim()
        gate = lead.begin()
        stored_at: list[float] = []

        def answer_late() -> None:
            nonlocal now
            stored_at.append(now)
            now += 0.0 if len(stored_at) > 2 else HOLD_S

        register.on_stored = answer_late
        await lead.keeps_and_performs(gate)
        assert stored_at == [0.0, HOLD_S, 2 * HOLD_S]
        await lead.leadership.vacate(1.0)


async def test_L6_a_leader_that_goes_while_it_writes_says_that_it_goes(
    processes: Processes,
) -> None:
    lead, register = await processes.leading_anew()
    register.may_write.clear()
    lead.leadership.changed()
    lead.keep()
    await asyncio.to_thread(register.is_waiting.wait)
    leaving = asyncio.create_task(lead.leadership.vacate(60.0))
    await asyncio.sleep(0)
    register.may_write.set()
    await leaving
    await processes.leading(register)


async def test_L6_a_leader_that_goes_writes_what_it_has_not_written_yet(
    processes: Processes,
) -> None:
    lead, register = await processes.leading_anew()
    gate = lead.begin()
    lead.job.round.round = 7
    assert gate.after([HangUp(1)]) == []
    await lead.leadership.vacate(1.0)
    assert lead.performed == [HangUp(1)], "and does what has waited for that"
    assert register.job.round == 7
    await processes.leading(register)


async def test_L2_it_is_recorded_how_many_leaders_have_stepped_down_before_one_knows_what_runs(
    processes: Processes,
) -> None:
    lead, register = await processes.leading_anew()
    state = lead.job.round
    state.phase, state.world = RoundPhase.ACTIVE, [WorldEntry("a", "life", 1, "default")]
    lead.begin()
    for before in range(2):
        await lead.leadership.vacate(60.0, steps_down=True)
        assert register.job.stepped_down == before + 1
        lead = await processes.leading(register)
        found = known(lead.leadership.take_over())
        lead.open_gate(found.led)
    await lead.leadership.vacate(60.0)


async def test_L1_a_claim_of_unknown_outcome_ends_as_one_leader(processes: Processes) -> None:
    register = FaultyRegister()
    register.fails_after = 1
    said: list[str] = []
    lead = processes.new(register)
    await lead.claim(said.append)
    assert said == ["no answer"]
    await lead.leadership.vacate(1.0)


async def test_L1_a_vacant_job_is_led_at_once_and_the_former_leader_is_deposed(
    processes: Processes,
) -> None:
    old, register = await processes.leading_anew()
    gate = old.begin()
    await old.keeps_and_performs(gate)
    await old.leadership.vacate(1.0)
    new = (await processes.leading(register)).leadership
    found = known(new.take_over())
    assert found.state.incarnation == 5
    assert new.lead.epoch.number == old.leadership.lead.epoch.number + 1
    old.job.round.round = 1
    assert gate.after([HangUp(2)]) == []
    old.keep()
    assert await old.ended() == "another coordinator has taken over this job"
    assert old.performed == [HangUp(1)]
    await new.vacate(1.0)


@pytest.mark.parametrize("stored", [b"", b"no record"], ids=["led by another", "corrupt"])
async def test_L1_a_deposed_leader_changes_nothing_when_it_goes(
    stored: bytes, processes: Processes
) -> None:
    old, register = await processes.leading_anew()
    await old.leadership.vacate(1.0)
    await processes.leading(register)
    if stored:
        register.put(stored)
    found = register.get_state()
    old.leadership.changed()
    old.keep()
    await old.ended()
    assert not old.leadership.is_sure
    await old.leadership.vacate(1.0)
    assert register.get_state() == found


async def test_a_register_is_removed_by_its_leader_only(
    tmp_path: Path, processes: Processes
) -> None:
    old = await processes.leading(DirectoryBackend(str(tmp_path), "job"))
    await old.leadership.vacate(1.0)
    new = await processes.leading(DirectoryBackend(str(tmp_path), "job"))
    await old.leadership.remove(patience(60))
    [kept] = tmp_path.iterdir()
    assert kept.name.startswith("rallypoint-job-")
    new.keep()
    await new.leadership.remove(patience(60))
    assert list(tmp_path.iterdir()) == []


async def test_L1_a_leader_that_lives_is_waited_for(processes: Processes) -> None:
    register, said = FaultyRegister(), asyncio.Event()
    old = await processes.leading(register)

    def on_wait(text: str) -> None:
        assert "another coordinator (host1:1) leads this job" in text
        said.set()

    claim = asyncio.create_task(processes.new(register).claim(on_wait))
    await said.wait()
    assert not claim.done()
    claim.cancel()
    await old.leadership.vacate(1.0)


async def test_L2_a_job_that_is_hosted_no_more_stays_in_its_register(processes: Processes) -> None:
    register, stored, loop = FaultyRegister(), asyncio.Event(), asyncio.get_running_loop()
    lead = await processes.leading(register)
    gate = lead.begin()
    await lead.keeps_and_performs(gate)
    register.on_stored = lambda: loop.call_soon_threadsafe(stored.set)
    gate.close()
    lead.leadership.changed()
    await stored.wait()
    assert register.job.incarnation == 5
    await lead.leadership.vacate(1.0)


async def test_L2_a_leader_that_fails_by_a_fault_of_its_own_says_that_it_leads_no_more(
    processes: Processes,
) -> None:
    lead, register = await processes.leading_anew()

    def fail() -> None:
        raise ValueError("of its own")

    register.on_stored = fail
    lead.keep()
    lead.leadership.changed()
    assert "unexpected ValueError (of its own)" in await lead.ended()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"no record", "does not parse"),
        (b"\x92\x02\xc0", "has version 2, and this version of rallypoint reads up to 1"),
    ],
)
async def test_L1_what_is_no_record_is_refused_and_left_as_it_is(
    data: bytes, text: str, processes: Processes
) -> None:
    register = FaultyRegister()
    register.put(data)
    with pytest.raises(RendezvousStateError, match=text):
        await processes.new(register).claim(no_wait)
    assert register.data == data


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
