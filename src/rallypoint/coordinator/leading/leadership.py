"""The leadership of one job by a register, on asyncio.

`core/takeover/duties.py` decides; this module reads, swaps and waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf

from rallypoint.coordinator.leading.leader_process import Runtime
from rallypoint.coordinator.leading.record_gate import RecordedLife, RecordGate, TakenOver
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_lives import Life
from rallypoint.core.job_state import JobState
from rallypoint.core.model import SharedSettings
from rallypoint.core.takeover import duties as machine
from rallypoint.core.takeover.consent import Speaker
from rallypoint.core.takeover.durable import Durable
from rallypoint.core.takeover.duties import Duties
from rallypoint.core.takeover.leading import Lead
from rallypoint.core.takeover.record import LeadRecord
from rallypoint.core.takeover.told import Position
from rallypoint.errors import RallypointError, RendezvousConnectionError, UnfitRecordError
from rallypoint.observe.faults import describe_fault
from rallypoint.register.record import RegisterRecord

VACATE_S = 1.0
"""The time limit in seconds for recording that the leader goes."""


class Leadership:
    """The leadership of one job, which this process has claimed: it writes the job's record.

    For the thread of the loop. It begins to write with `keep`.
    """

    def __init__(
        self,
        record: RegisterRecord,
        duties: Duties,
        runtime: Runtime,
        *,
        is_one_of_many: bool,
    ) -> None:
        """`record` reads and writes the job's register, which this process has claimed.

        `is_one_of_many`: other processes may lead the job as well, the nodes find them, and this
        one lets them.
        """
        self._record, self.duties, self._runtime = record, duties, runtime
        self.is_one_of_many = is_one_of_many
        self._gates: dict[Durable, RecordGate] = {}
        """The hosted lives of the job, and those of the record that is being written."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = inf
        self._ending: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self._on_deposed: Callable[[str], None] = _ignore
        self._on_record: Callable[[Record], None] = _ignore

    @property
    def lead(self) -> Lead:
        """The record of this process, and how long it may act."""
        return self.duties.lead

    def begin(self, state: JobState, former: Life | None) -> RecordedLife:
        """Return a new life of the job, which the register does not hold yet.

        `former`: the life before; None: there was none.
        """
        return self._recorded(self.duties.begin(state, former))

    def take_over(self) -> TakenOver | None:
        """Return the job in the register, to continue it.

        None: there is none, or all its nodes have heard its verdict.
        """
        durable = self.duties.take_over()
        return None if durable is None else TakenOver(durable.job, self._recorded(durable))

    def _recorded(self, life: Durable) -> RecordedLife:
        return RecordedLife(life.handover, partial(RecordGate, self, life))

    @property
    def now(self) -> float:
        """The time in seconds by the clock of the hold."""
        return self._runtime.clock()

    def learn(self, told: Position, settings: SharedSettings) -> None:
        """End this leadership, because a node has told of a later position than this leader knew.

        `settings` are the job's. The process then claims the job anew, above that position.
        """
        self._apply(self.duties.learned(told, settings))

    @property
    def is_sure(self) -> bool:
        """Whether no other process can lead this job now."""
        return self.duties.is_sure(self.now)

    def opened(self, gate: RecordGate) -> None:
        """Note that this life of the job is hosted, as the newest one, and record it."""
        self._gates[gate.durable] = gate
        self._apply(self.duties.opened(gate.durable))

    def closed(self, gate: RecordGate) -> None:
        """Note that this life of the job is no longer hosted."""
        self._apply(self.duties.closed(gate.durable))

    def changed(self) -> None:
        """Note that something has to be recorded, as soon as no other record is being written."""
        self._apply(self.duties.changed())

    def candidate_heard(self, heartbeat: m.Heartbeat, speaker: Speaker) -> bool:
        """Note the promise in a candidate's heartbeat; return whether to acknowledge it."""
        if not self.is_one_of_many:  # The nodes of this job know no other address.
            return False
        before = self.lead.candidates
        self.lead.heard(heartbeat, self.now, speaker)
        if self.lead.candidates != before:
            self.changed()
        return self.is_sure

    @property
    def is_kept(self) -> bool:
        """Whether `keep` was called."""
        return self.duties.is_kept

    def keep(self, on_deposed: Callable[[str], None], on_record: Callable[[Record], None]) -> None:
        """Begin to write the job's record again and again.

        `on_deposed` is told, once, why this process no longer leads. `on_record` is told that the
        register can't be written, and that it can be again.
        """
        self._on_deposed, self._on_record = on_deposed, on_record
        self._apply(self.duties.keeps(self.now))

    def _apply(self, effects: list[machine.Effect]) -> None:
        for effect in effects:
            self._execute(effect)
        self._wait_until(self.duties.wakes_at)

    def _wait_until(self, at: float) -> None:
        if at == self._wakes_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        wait_s, self._wakes_at = max(0.0, at - self.now), at
        self._timer = None if at == inf else self._loop.call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._wakes_at = inf
        self._apply(self.duties.passed(self.now, self._is_silent))

    def _is_silent(self, incarnation: str, seconds: float) -> bool:
        return self._gates[self.duties.lives[-1]].is_silent(incarnation, seconds)

    def _execute(self, effect: machine.Effect) -> None:
        match effect:
            case machine.Write(record, lives):
                self._gates = {life: gate for life, gate in self._gates.items() if life in lives}
                self._task = self._loop.create_task(self._write(record))
            case machine.Release(life, effects):
                self._gates[life].perform(effects)
            case machine.StepDown(why):
                self._stop()
                self._task = self._loop.create_task(self._step_down(why))
            case machine.Depose(why):
                self._stop()
                self._ending = self._loop.call_soon(self._on_deposed, why)
            case Record():
                self._on_record(effect)

    async def _write(self, record: LeadRecord) -> None:
        self._apply(await self._swap(record))

    async def _swap(self, record: LeadRecord) -> list[machine.Effect]:
        duties = self.duties
        try:
            is_ours = await self._record.swap(record, is_held=self._is_held)
        except RendezvousConnectionError as error:
            return duties.unwritten(self.now, str(error))
        except UnfitRecordError as error:
            return duties.failed(machine.why_unfit(error.fault))
        except RallypointError as error:
            return duties.failed(str(error))
        except Exception as error:
            why = f"its record can't be written: {describe_fault(error)}"
            return duties.failed(why, is_deposed=False)
        if is_ours:
            return duties.written(self.now, record)
        return duties.overtaken(self._record.found)

    def _is_held(self) -> bool:
        """Return whether the last swap alone keeps everybody else from claiming the job."""
        return self.now < self.lead.held_until

    async def _step_down(self, why: str) -> None:
        await self.vacate(VACATE_S, steps_down=True)
        self._on_deposed(why)

    async def vacate(
        self, timeout_s: float, *, is_heard: bool = False, steps_down: bool = False
    ) -> None:
        """Give up the leadership, and record that, so that others need not wait.

        Waits `timeout_s` seconds at most, and ignores errors of the register. `is_heard`: all live
        nodes have heard the verdict of the job. `steps_down`: another node may lead with more
        success.
        """
        self._stop()
        for last in self.duties.leaves(is_heard=is_heard, steps_down=steps_down):
            try:
                async with asyncio.timeout(timeout_s):
                    if await self._record.swap(last.record):
                        # Nodes that hear what is recorded need not be asked by who leads next.
                        self._apply(self.duties.written(self.now, last.record))
            except (RallypointError, TimeoutError):
                return  # They wait for the hold.

    async def remove(self, timeout_s: float) -> None:
        """Give up the leadership and remove the register, unless another process has claimed it.

        If it can't be removed within `timeout_s` seconds, records that the leader goes.
        """
        self._stop()
        self._on_deposed = _ignore
        try:
            async with asyncio.timeout(timeout_s):
                is_removed = await self._removed()
        except (RallypointError, TimeoutError):
            is_removed = False  # What is left is removed when it is old.
        if not is_removed:
            await self.vacate(timeout_s)

    async def _removed(self) -> bool:
        if not self._record.is_removable:
            return False
        for last in self.duties.removes(self.now):
            # Also learns the token of a swap that was under way.
            if await self._record.swap(last.record):
                self._apply(self.duties.written(self.now, last.record))
                return await self._record.remove()
            self._apply(self.duties.overtaken(self._record.found))
        return False

    def _stop(self) -> None:
        for handle in (self._timer, self._ending):
            if handle is not None:
                handle.cancel()
        self._wakes_at = inf
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


def _ignore(_: object) -> None:
    """Ignore what a leadership reports, before `keep` is called."""
