"""The events about a register that can't be written."""

from __future__ import annotations

import asyncio

from tests.harness.faulty_register import AtOnce, FaultyRegister
from tests.harness.leading_process import Stepwise, no_wait
from tests.harness.narrowed import known
from tests.harness.virtual_time import in_virtual_time

from rallypoint.coordinator.leading.candidacy import JobRegister
from rallypoint.coordinator.leading.leader_process import LocalLeader, Runtime
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import Leader, Process
from rallypoint.core.takeover.told import Seal


def test_L8_that_nothing_can_be_recorded_is_told_while_it_is_so_and_not_else() -> None:
    told: list[str] = []

    async def body() -> None:
        register = FaultyRegister()
        leader = Leader(("host:1",), Process("boot", 1, 1))
        clock = asyncio.get_running_loop().time
        local = LocalLeader(leader.process, AtOnce(), Runtime(clock=clock))
        candidacy = Stepwise(JobRegister(register, local, leader, Memory(), Seal()), no_wait)
        leadership = known(await candidacy.run())
        leadership.keep(told.append, lambda record: told.append(record.name))
        await asyncio.sleep(10 * HOLD_S)
        assert told == [], "all is well"
        register.fails_before = 1_000_000
        await asyncio.sleep(0.7 * HOLD_S)
        assert told == ["not_recorded"]
        register.fails_before = 0
        await asyncio.sleep(10 * HOLD_S)
        assert told == ["not_recorded", "recorded_again"]
        await leadership.vacate(1.0)

    in_virtual_time(body)
