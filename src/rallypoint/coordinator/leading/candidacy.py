"""The reads and claims of a job's register by a process that would lead it, on asyncio.

`core/takeover/candidacy.py` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from rallypoint.coordinator.leading.leader_process import LocalLeader
from rallypoint.coordinator.leading.leadership import Leadership
from rallypoint.core.takeover import candidacy as c
from rallypoint.core.takeover.duties import Duties
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import Leader
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.takeover.told import Seal
from rallypoint.errors import RallypointError, UnfitRecordError
from rallypoint.register.record import Register, RegisterRecord


class JobRegister(Struct, frozen=True):
    """One job's register, with this process's identity there and its memory, and the job's key."""

    register: Register
    local: LocalLeader
    leader: Leader
    """The process as the leader in the record of a job."""
    memory: Memory
    """The knowledge of this process about the record."""
    seal: Seal
    deference: Deference | None = None
    """The time for which others may lead first after this process has stepped down; None: it never
    steps down."""

    def record(self) -> RegisterRecord:
        """Return a new reader and writer of the job's record, which has read nothing yet."""
        is_kept, run_id = self.deference is not None, self.seal.run_id
        return RegisterRecord(self.register, self.local.calls, is_kept=is_kept, run_id=run_id)


class RegisterCandidacy:
    """An attempt of this process to lead a job through its register.

    It executes the effects of a candidacy's state machine. For the thread of the loop.
    """

    def __init__(
        self,
        machine: c.Candidacy,
        job: JobRegister,
        say: Callable[[str], None],
    ) -> None:
        """Make the candidacy; `say` is called with lines for the user."""
        self._machine, self._job, self._say = machine, job, say
        self._record = job.record()
        self._leadership: Leadership | None = None

    async def run(self) -> Leadership | None:
        """Read, wait and claim until this process leads the job; None: it gives that up.

        Raises RallypointError.
        """
        effects = self._machine.looks(self.present)
        while effects:
            now_due, effects = effects, []
            for effect in now_due:
                effects = await self.execute(effect)
        return self._leadership

    @property
    def now(self) -> float:
        """The time in seconds by the clock of the hold."""
        return self._job.local.runtime.clock()

    @property
    def present(self) -> c.Present:
        """The present part of this process in the job; here none, since it is not a node."""
        return c.Present()

    async def pause(self, wait: c.Wait) -> None:
        """Wait for the time of the effect."""
        await asyncio.sleep(wait.seconds)

    async def execute(self, effect: c.Effect) -> list[c.Effect]:
        """Execute an effect, and return the effects that follow."""
        match effect:
            case c.Look():
                return await self._look()
            case c.Swap(claim):
                return await self._swap(claim)
            case c.Wait():
                await self.pause(effect)
                return self._machine.looks(self.present)
            case c.Say(text):
                self._say(text)
            case c.Lead():
                job, record = self._job, self._record
                duties = Duties(effect, job.memory, job.deference, job.seal)
                self._record = job.record()
                is_one_of_many = job.deference is not None
                runtime = job.local.runtime
                self._leadership = Leadership(
                    record, duties, runtime, is_one_of_many=is_one_of_many
                )
        return []

    async def _look(self) -> list[c.Effect]:
        try:
            found = await self.read()
        except RallypointError as error:
            return self._machine.unread(self.now, error)
        return self._machine.found(found)

    async def read(self) -> c.Found:
        """Read the register, and look whether its leader's process has ended.

        An UnfitRecordError is part of the result. Raises any other RallypointError.
        """
        record, unfit, runtime = None, None, self._job.local.runtime
        try:
            record = await self._record.read()
        except UnfitRecordError as error:
            unfit = error
        own = self._job.leader.process
        is_gone = record is not None and runtime.is_gone(record.leader.process, own)
        return c.Found(self.now, record, self.present, is_gone, unfit, self._record.token)

    async def _swap(self, claim: c.Claim) -> list[c.Effect]:
        sent_at = self.now
        try:
            is_ours = await self._record.swap(claim.record)
        except UnfitRecordError:
            is_ours = False  # It was put there since, and the next look finds it.
        except RallypointError as error:
            return self._machine.unread(self.now, error)
        nonce = self._job.local.runtime.nonce()
        return self._machine.swapped(self.now, is_ours=is_ours, sent_at=sent_at, nonce=nonce)
