"""Processes that lead one job by a register, each in its own thread of calls, and what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.harness.faulty_register import FaultyRegister
from tests.harness.narrowed import known

from rallypoint.coordinator.hosted_job import Gate
from rallypoint.coordinator.leading.candidacy import JobRegister, RegisterCandidacy
from rallypoint.coordinator.leading.leader_process import REAL_RUNTIME, LocalLeader, Runtime
from rallypoint.coordinator.leading.leadership import Leadership
from rallypoint.coordinator.leading.record_gate import RecordedLife
from rallypoint.core.event_kinds import Record
from rallypoint.core.host_effects import HangUp, HostEffect
from rallypoint.core.job_state import new_job
from rallypoint.core.model import SharedSettings
from rallypoint.core.takeover.candidacy import Candidacy, Judged, Present
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import Leader, Process
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.takeover.told import Seal
from rallypoint.register.record import Register
from rallypoint.threads import CallThread


def no_wait(text: str) -> None:
    """For a claim that succeeds at once."""
    raise AssertionError(f"waits: {text}")


def no_record(record: Record) -> None:
    """For a leader that has nothing to say."""
    raise AssertionError(record.text)


class Stepwise(RegisterCandidacy):
    """A process that would lead, and does so when it is told to."""

    def __init__(self, job: JobRegister, say: Callable[[str], None]) -> None:
        nonce, is_kept = job.local.runtime.nonce(), job.deference is not None
        self.candidacy = Candidacy(job.leader, nonce, job.memory, is_kept=is_kept)
        super().__init__(self.candidacy, job, say)

    async def look(self, claimant: Claimant | None = None) -> Judged:
        """Read the register, and return when it may claim. Raises as `RegisterRecord.read`."""
        self.candidacy.looks(Present(claimant))
        judged = self.candidacy.judge(await self.read())
        self.candidacy.record = judged.record
        return judged

    async def take(self) -> bool:
        """Claim the job over what was found; whether it leads now."""
        for effect in await self.execute(self.candidacy.swap()):
            await self.execute(effect)
        return self._leadership is not None

    @property
    def leadership(self) -> Leadership:
        """Once it leads."""
        return known(self._leadership)


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
        local = LocalLeader(process, self.thread, runtime)
        job = JobRegister(register, local, leader, self.memory, Seal(), deference)
        self._on_wait: Callable[[str], None] = no_wait
        self.candidacy = Stepwise(job, lambda text: self._on_wait(text))
        self.job = new_job(SharedSettings("job", 1, 1), 5)
        self.silent: set[str] = set()
        """The agents that are."""
        self.performed: list[HostEffect] = []
        self._has_performed, self._ends = asyncio.Event(), asyncio.Queue[str]()

    @property
    def leadership(self) -> Leadership:
        """Once it leads."""
        return self.candidacy.leadership

    async def claim(self, on_wait: Callable[[str], None] = no_wait) -> None:
        """Lead the job, when nobody else does."""
        self._on_wait = on_wait
        await self.candidacy.run()

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
        """Renew its record, until it no longer leads."""
        self.leadership.keep(self._ends.put_nowait, on_record)

    async def keeps_and_performs(self, gate: Gate) -> None:
        """From now on it renews its record, and has done what waited for that."""
        gate.after([HangUp(1)])
        self.keep()
        await self.wait_performed([HangUp(1)])

    async def ended(self) -> str:
        """Why it no longer leads, when that is so."""
        return await self._ends.get()

    def close(self) -> None:
        """At the very end. Raises AssertionError if it no longer leads and nobody has waited for
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

    async def leading_anew(self) -> tuple[LeadingProcess, FaultyRegister]:
        """One that has claimed a job at once, and the register of that job."""
        register = FaultyRegister()
        return await self.leading(register), register

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
