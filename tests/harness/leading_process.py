"""Processes that lead one job by a register, each in its own thread of calls, and what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rallypoint.coordinator.hosted_job import Gate
from rallypoint.coordinator.leader_process import REAL_RUNTIME, Runtime
from rallypoint.coordinator.leadership import Leadership
from rallypoint.coordinator.led_job import RecordedLife
from rallypoint.core.event_kinds import Record
from rallypoint.core.host_effects import HostEffect
from rallypoint.core.job_state import new_job
from rallypoint.core.model import SharedSettings
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import Leader, Process
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.register.record import Register
from rallypoint.threads import CallThread


def no_wait(text: str) -> None:
    """For a claim that succeeds at once."""
    raise AssertionError(f"waits: {text}")


def no_record(record: Record) -> None:
    """For a leader that has nothing to say."""
    raise AssertionError(record.text)


class LeadingProcess:
    """One of them. Made in a loop."""

    def __init__(
        self,
        register: Register,
        number: int,
        runtime: Runtime = REAL_RUNTIME,
        *,
        has_workers: bool = False,
        deference: Deference | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.thread, self.memory = CallThread(f"register {number}"), memory or Memory()
        process = Process(f"boot{number}", 1, 1)
        leader = Leader((f"host{number}:1",), process, has_workers=has_workers)
        self.leadership = Leadership(register, leader, self.thread, runtime, deference, self.memory)
        self.job = new_job(SharedSettings("job", 1, 1), 5)
        self.silent: set[str] = set()
        """The agents that are."""
        self.performed: list[HostEffect] = []
        self._has_performed, self._ends = asyncio.Event(), asyncio.Queue[str]()

    async def claim(self) -> None:
        """Nobody leads the job."""
        await self.leadership.claim(no_wait)

    def begin(self) -> Gate:
        """The job begins."""
        return self.open_gate(self.leadership.begin(self.job, None))

    def open_gate(self, led: RecordedLife) -> Gate:
        """What waits for the register is done when that is recorded."""
        return led.open_gate(self._perform, lambda life, seconds: life in self.silent)

    def _perform(self, effects: list[HostEffect]) -> None:
        self.performed += effects
        self._has_performed.set()

    async def wait_performed(self, wanted: list[HostEffect]) -> None:
        """Until just this was done."""
        while self.performed != wanted:
            await self._has_performed.wait()
            self._has_performed.clear()

    def keep(self, on_record: Callable[[Record], None] = no_record) -> None:
        """Renew its record, until it leads no more."""
        self.leadership.keep(self._ends.put_nowait, on_record)

    async def ended(self) -> str:
        """Why it leads no more, when that is so."""
        return await self._ends.get()

    def close(self) -> None:
        """At the very end. Raises AssertionError if it leads no more and nobody has waited for
        that."""
        self.thread.close()
        assert self._ends.empty(), self._ends


class Processes:
    """Makes them."""

    def __init__(self) -> None:
        self.all: list[LeadingProcess] = []

    def new(self, register: Register, memory: Memory | None = None) -> LeadingProcess:
        """One that doesn't lead yet."""
        self.all.append(LeadingProcess(register, len(self.all) + 1, memory=memory))
        return self.all[-1]

    async def leading(self, register: Register) -> LeadingProcess:
        """One that has claimed the job, at once."""
        process = self.new(register)
        await process.claim()
        return process


@contextmanager
def leading_processes() -> Iterator[Processes]:
    processes = Processes()
    try:
        yield processes
    finally:
        for process in processes.all:
            process.thread.close()
    for process in processes.all:
        process.close()
