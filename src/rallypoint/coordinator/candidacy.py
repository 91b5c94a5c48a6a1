"""Reads a job's register for a process that would lead the job, and claims it, on asyncio:
`core/takeover/candidacy.py` decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from rallypoint.coordinator.leader_process import LocalLeader
from rallypoint.coordinator.leadership import Leadership
from rallypoint.core.takeover import candidacy as c
from rallypoint.core.takeover.duties import Duties
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import Leader
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.takeover.told import Seal
from rallypoint.errors import RallypointError, UnfitRecordError
from rallypoint.register.record import Register, RegisterRecord


class JobRegister(Struct, frozen=True):
    """The register of one job, and how this process uses it."""

    register: Register
    local: LocalLeader
    leader: Leader
    """This process, as in its record."""
    memory: Memory
    """What this process knows of the record."""
    seal: Seal
    deference: Deference | None = None
    """Of a process that steps down so that others may lead; None: it never does."""

    def record(self) -> RegisterRecord:
        """The record of which this process has seen nothing yet."""
        is_kept, run_id = self.deference is not None, self.seal.run_id
        return RegisterRecord(self.register, self.local.calls, is_kept=is_kept, run_id=run_id)


class RegisterCandidacy:
    """For the thread of the loop."""

    def __init__(
        self,
        step: Callable[[c.Event], list[c.Effect]],
        job: JobRegister,
        say: Callable[[str], None],
    ) -> None:
        """`step`: what follows from an event. `say` is called with what a person reads."""
        self._step, self._job, self._say = step, job, say
        self._record = job.record()
        self._leadership: Leadership | None = None

    async def run(self) -> Leadership | None:
        """Return when this process leads the job, or gives that up. Raises RallypointError."""
        event: c.Event | None = c.Looks(self.now, self.present)
        while event is not None:
            effects, event = self._step(event), None
            for effect in effects:
                event = await self.execute(effect)
        return self._leadership

    @property
    def now(self) -> float:
        """By the clock of the hold."""
        return self._job.local.runtime.clock()

    @property
    def present(self) -> c.Present:
        """What this process is in the job."""
        return c.Present()

    async def pause(self, wait: c.Wait) -> None:
        """Wait so long."""
        await asyncio.sleep(wait.seconds)

    async def execute(self, effect: c.Effect) -> c.Event | None:
        """Returns what has come of it, where something follows from that."""
        match effect:
            case c.Look():
                return await self._look()
            case c.Swap(claim):
                return await self._swap(claim)
            case c.Wait():
                await self.pause(effect)
                return c.Looks(self.now, self.present)
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
        return None

    async def _look(self) -> c.Event:
        record, unfit, runtime = None, None, self._job.local.runtime
        try:
            record = await self._record.read()
        except UnfitRecordError as error:
            unfit = error
        except RallypointError as error:
            return c.Unread(self.now, error)
        own = self._job.leader.process
        is_gone = record is not None and runtime.is_gone(record.leader.process, own)
        token = self._record.token
        return c.Found(self.now, record, self.present, is_gone, unfit, token)

    async def _swap(self, claim: c.Claim) -> c.Event:
        sent_at = self.now
        try:
            is_ours = await self._record.swap(claim.record)
        except UnfitRecordError:
            is_ours = False  # It was put there since, and the next look finds it.
        except RallypointError as error:
            return c.Unread(self.now, error)
        return c.Swapped(self.now, is_ours, sent_at, self._job.local.runtime.nonce())
