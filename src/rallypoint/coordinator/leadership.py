"""Leads one job by a register, on asyncio: `core/takeover/` decides, and this reads, swaps and
waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.coordinator.leader_process import REAL_RUNTIME, Runtime
from rallypoint.coordinator.led_job import RecordedLife, RecordGate, TakenOver
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_lives import Life
from rallypoint.core.job_state import JobState
from rallypoint.core.model import SharedSettings, epoch_number
from rallypoint.core.takeover.consent import Speaker, fenced_at
from rallypoint.core.takeover.durable import Durable
from rallypoint.core.takeover.handover import UNKNOWN, Handover, Predecessor
from rallypoint.core.takeover.heirs import Claimant, rank_in
from rallypoint.core.takeover.leading import Lead, Watch, after_put_back_s, claimed, is_unheard
from rallypoint.core.takeover.memory import Memory, is_overtaken, order_of, told_of
from rallypoint.core.takeover.record import FormerLife, JobRecord, Leader, LeadRecord, job_of
from rallypoint.core.takeover.recovery import may_run
from rallypoint.core.takeover.stepping_down import CHECK_S, Deference, SteppingDown
from rallypoint.core.takeover.told import NEVER, Position, Seal
from rallypoint.errors import RallypointError, RendezvousConnectionError, UnfitRecordError
from rallypoint.observe.faults import describe_fault
from rallypoint.register.record import Caller, Register, RegisterRecord, Stall

VACATE_S = 1.0
"""So long a leader tries to say that it goes."""
RETRY_S = 0.5
"""A register that can't be reached is tried again after so long."""


class RegisterLook(Struct, frozen=True):
    """What the register held."""

    record: LeadRecord | None
    claims_in_s: float
    """How long to wait at least before a claim; 0: claim."""
    is_behind: bool = False
    """A newer record was there before, as this process knows."""
    unfit: str = ""
    """Why what the register holds is no record that a leader writes; `record` is None then."""


class Leadership:
    """For the thread of the loop. `claim` first, then `keep`."""

    def __init__(
        self,
        register: Register,
        leader: Leader,
        thread: Caller,
        runtime: Runtime = REAL_RUNTIME,
        deference: Deference | None = None,
        memory: Memory | None = None,
        seal: Seal | None = None,
    ) -> None:
        """`deference`: of a node that steps down so that others may lead; None: it never does.
        `memory`: what this process knows of the job's record. `seal`: gives a position its
        digest."""
        self._deference = deference
        self._memory, self._seal = memory or Memory(), seal or Seal()
        self._told: tuple[LeadRecord, Position] | None = None
        self._base = NEVER
        """The order of the record that this process has continued."""
        self._on_behind: Callable[[], None] | None = None
        self._newest_claimed = -1
        """The newest round of that record; -1: none was formed."""
        self._is_put_back = False
        """The record that this process has claimed was older than one that was known."""
        self._runtime, self._leader = runtime, leader
        self._record = RegisterRecord(
            register, thread, is_kept=deference is not None, run_id=self._seal.run_id
        )
        self._unfit = 0
        """Counts the versions that were found and that no leader writes."""
        self._unfit_token: object = None
        """The token of the last such version."""
        self._watch = Watch()
        self._lead: Lead | None = None
        self._predecessor = UNKNOWN
        self.jobs: list[RecordGate] = []
        """The lives of the job that are hosted; the last one is the present one."""
        self._nonce = runtime.nonce()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_deposed = False

    async def claim(self, on_wait: Callable[[str], None]) -> None:
        """Become the leader. Waits until no other process leads, however long.

        Raises RendezvousStateError or what else the register raises for what can't be a record.
        """
        while True:
            try:
                found = await self.look()
                if not found.claims_in_s:
                    if await self.take(found.record):
                        return
                    continue
                on_wait(_waits_for(found))
            except RendezvousConnectionError as error:
                on_wait(str(error))
            await asyncio.sleep(self._watch.look_s)

    @property
    def look_s(self) -> float:
        """How often who would lead looks."""
        return self._watch.look_s

    @property
    def seen(self) -> object:
        """The token of the version that was seen last."""
        return self._record.token

    @property
    def stands_still_s(self) -> float:
        """For how long the record has, as far as it was looked at."""
        return self._runtime.clock() - self._watch.since

    @property
    def late_s(self) -> float:
        """A record that stands still for longer is late."""
        return self._watch.late_s

    async def look(self, claimant: Claimant | None = None) -> RegisterLook:
        """Read the record. `claimant`: as for `Watch`. Raises as `claim`, and
        RendezvousConnectionError."""
        memory, record, unfit = self._memory, None, None
        try:
            record = await self._record.read()
        except UnfitRecordError as error:
            unfit = error
        now = self._runtime.clock()
        if claimant is not None and claimant.told is not None:
            memory.was_told(claimant.told, claimant.settings)
        if record is not None and (fault := memory.fault_in(record)):
            record, unfit = None, UnfitRecordError(fault)
        if unfit is not None:
            return self._without_record(unfit, claimant)
        if record is None and not self._record.is_kept:
            memory.saw_none()
        if memory.is_behind(record):
            return RegisterLook(record, self._behind_in_s(record, claimant), is_behind=True)
        if record is None:
            return RegisterLook(None, 0.0)
        memory.saw(record)
        gone = self._runtime.is_gone(record.leader.process, self._leader.process)
        wait_s = self._watch.claims_in_s(record, now, is_gone=gone, claimant=claimant)
        wait_s = max(wait_s, self._watch.begins_in_s(record, now, claimant))
        return RegisterLook(record, wait_s)

    def _without_record(self, unfit: UnfitRecordError, claimant: Claimant | None) -> RegisterLook:
        """Return the same as for a record that is gone, if this process knows one to go on with.
        Raises `unfit` if it knows none."""
        if self._memory.restored(None) is None:
            raise unfit
        if self._unfit_token != self._record.token:
            self._unfit, self._unfit_token = self._unfit + 1, self._record.token
        wait_s = self._behind_in_s(None, claimant)
        return RegisterLook(None, wait_s, is_behind=True, unfit=str(unfit))

    def _behind_in_s(self, record: LeadRecord | None, claimant: Claimant | None) -> float:
        """How long to wait before a claim over a record that is behind."""
        memory, now = self._memory, self._runtime.clock()
        if memory.may_claim_at_once(record):
            return 0.0
        restored = memory.restored(record)
        return self._watch.claims_behind_in_s(record, restored, now, claimant, self._unfit)

    async def could_be_written(self) -> bool:
        """Whether the register takes what this process writes, though its record stands still."""
        is_late = self.stands_still_s > self.late_s
        return is_late and await self._record.could_be_written()

    async def take(
        self,
        found: LeadRecord | None,
        addresses: tuple[str, ...] = (),
        claimant: Claimant | None = None,
    ) -> bool:
        """Claim the job, of which this was found; whether this process leads it now. `addresses`:
        where this process listens for it alone. `claimant`: as for `look`. Raises as `look`."""
        leader = replace(self._leader, addresses=addresses) if addresses else self._leader
        memory = self._memory
        number, is_behind = memory.next_number(found), memory.is_behind(found)
        known = max(memory.known, order_of(found))
        if is_behind:
            found = memory.restored(found)
        if found is not None and found.job is not None and is_unheard(found, claimant):
            found = replace(found, job=replace(found.job, is_heard=True))
        rank = -1 if found is None or claimant is None else rank_in(found, claimant)
        record = claimed(found, leader, self._nonce, rank, self._record.swaps, number)
        sent_at = self._runtime.clock()
        try:
            is_ours = await self._record.swap(record)
        except UnfitRecordError:
            return False  # It was put there since, and the next look finds it.
        if not is_ours:
            return False
        memory.saw(record, is_own=True)
        self._lead, self._is_put_back = Lead(record, sent_at), is_behind
        self._base = known
        self._newest_claimed = told_of(record).last_round
        if found is not None and found.job is not None and not is_behind:
            promised_until = -inf if claimant is None else claimant.promised_until
            self._predecessor = self._known_of(found, found.job, promised_until)
        return True

    def _known_of(self, found: LeadRecord, job: JobRecord, promised_until: float) -> Predecessor:
        """The leader of this record, at the time of this claim."""
        lease_s = job.settings.lease_s
        fenced_in_s = fenced_at(self._watch.since, promised_until, lease_s) - self._runtime.clock()
        return Predecessor(job.leader_rank, found.is_dead, fenced_in_s, job.leader_node)

    @property
    def lead(self) -> Lead:
        """Once it has claimed."""
        assert self._lead is not None
        return self._lead

    def begin(self, state: JobState, former: Life | None) -> RecordedLife:
        """A life of the job of which the register holds nothing yet. `former`: the one before."""
        job = self.lead.record.job
        # A life that nobody has brought to an end has one before it, whose nodes may still come.
        over = None if job is None else job.former
        if former is not None and former.verdict is not None:
            over = FormerLife(former.incarnation, former.verdict, former.earlier)
        handover = Handover()
        durable = Durable(state, handover, is_recorded=False, former=over)
        return RecordedLife(handover, partial(RecordGate, self, durable))

    @property
    def over(self) -> Life | None:
        """The job that the register held, if all its nodes have heard how it ended."""
        job = self.lead.record.job
        if job is None or not job.is_heard:
            return None
        return Life(job.incarnation, job.verdict, earlier=job.earlier)

    @property
    def unheard(self) -> int:
        """How many nodes of the job that the register held, if it has ended, may run workers until
        their leases are over: they may not have heard of its end."""
        job, led = self.lead.record.job, self._predecessor
        if job is None or job.verdict is None or job.is_heard or not job.is_started:
            return 0
        dead = led.rank if led.is_dead else -1
        return sum(may_run(job, rank) for rank in range(job.nodes) if rank != dead)

    @property
    def before(self) -> Life | None:
        """The life of the job before the one that the register held: who took part in it may come
        late."""
        job = self.lead.record.job
        former = None if job is None else job.former
        if former is None:
            return None
        return Life(former.incarnation, former.verdict, earlier=former.earlier)

    def take_over(self) -> TakenOver | None:
        """The job that the register holds. None: it holds none."""
        record = self.lead.record.job
        if record is None or self.over is not None:
            return None
        state, former = job_of(record, self.lead.epoch), record.former
        longer_s = 0.0
        if self._is_put_back:
            longer_s = after_put_back_s(self._leader.hold_s, record.settings.lease_s)
        handover = Handover(record, self._predecessor, longer_s, self.lead.epoch.as_int())
        durable = Durable(state, handover, is_recorded=True, former=former)
        led = RecordedLife(handover, partial(RecordGate, self, durable))
        return TakenOver(state, led)

    @property
    def now(self) -> float:
        """By the clock of the hold."""
        return self._runtime.clock()

    @property
    def told(self) -> Position:
        """The position of the newest record that is confirmed, with its digest."""
        record = self.lead.record
        if self._told is None or self._told[0] is not record:
            self._told = record, self._seal.sealed(told_of(record))
        return self._told[1]

    def is_behind(self, told: Position) -> bool:
        """A node was told a newer position than this leader knows: its record was put back."""
        if told.epoch == self.lead.epoch.as_int() or told.order <= self._base:
            return False
        # Who has followed a higher epoch follows this one only when that is claimed above.
        return not self._has_overtaken(told) or epoch_number(told.epoch) > self.lead.epoch.number

    def _has_overtaken(self, told: Position) -> bool:
        return is_overtaken(told, self.lead.record.job, self._newest_claimed)

    def is_genuine(self, told: Position) -> bool:
        """A leader of this job has made this position, as far as can be known."""
        return self._seal.is_genuine(told) and not self._memory.is_too_far(told)

    def learn(self, told: Position, settings: SharedSettings) -> None:
        """A leader has told this to a node: this process claims the job anew, above that."""
        if self._has_overtaken(told):
            self._memory.goes_on(self.lead.epoch, told)
        else:
            has_formed = told_of(self.lead.record).last_round > self._newest_claimed
            self._memory.gives_up(self.lead.epoch, told, settings, keeps_round=has_formed)
        if not self._is_deposed and self._on_behind is not None:
            self._is_deposed = True
            self._on_behind()

    @property
    def is_sure(self) -> bool:
        """Nobody else can lead this job now."""
        return not self._is_deposed and self.lead.is_sure(self._runtime.clock())

    def changed(self) -> None:
        """Something is to be recorded."""
        self._wake.set()

    def candidate_heard(self, heartbeat: m.Heartbeat, speaker: Speaker) -> bool:
        """Of a process that stands ready to lead. Returns whether to answer."""
        if not self.is_one_of_many:  # The nodes of this job know no other address.
            return False
        before = self.lead.candidates
        self.lead.heard(heartbeat, self.now, speaker)
        if self.lead.candidates != before:
            self.changed()
        return self.is_sure

    @property
    def is_one_of_many(self) -> bool:
        """Other processes may lead the job as well, the nodes find them, and this one lets them."""
        return self._deference is not None

    @property
    def is_kept(self) -> bool:
        """`keep` was called."""
        return bool(self._tasks)

    def keep(self, on_deposed: Callable[[str], None], on_record: Callable[[Record], None]) -> None:
        """Lead from now on. `on_deposed` is told, once, why this process leads no more; `on_record`
        that the register can't be written, and that it can be again."""
        loop = asyncio.get_running_loop()
        stall = Stall(on_record, self._leader.hold_s)
        why = "a node knows a newer record of the job than the register held"

        def on_behind() -> None:
            loop.call_soon(self._give_up, on_deposed, why)

        self._on_behind = on_behind
        self._tasks.append(loop.create_task(self._keep(on_deposed, stall)))
        if self._deference is not None:
            stepping_down = SteppingDown(self._deference)
            self._tasks.append(loop.create_task(self._step_down(stepping_down, on_deposed)))

    async def vacate(
        self, timeout_s: float, *, is_heard: bool = False, steps_down: bool = False
    ) -> None:
        """Lead no more, and tell who would lead that they need not wait. `is_heard`: as in the
        record of a job. `steps_down`: another node may lead with more success."""
        self._stop()
        if self._lead is None or self._is_deposed:
            return
        try:
            async with asyncio.timeout(timeout_s):
                job = self.jobs[-1].durable.begin() if self.jobs else self._lead.record.job
                if job is not None and is_heard:
                    job = replace(job, is_heard=True)
                if job is not None and steps_down:
                    job = replace(job, stepped_down=job.stepped_down + 1)
                is_stored = await self._record.swap(self._lead.next(job, is_vacant=True))
                if is_stored and self.jobs:
                    # It is recorded, and nodes that hear it need not be asked by who leads next.
                    self.jobs[-1].perform(self.jobs[-1].durable.written())
        except (RallypointError, TimeoutError):
            return  # They wait for the hold.

    async def remove(self, timeout_s: float) -> None:
        """Lead no more, and remove the register, unless another process has claimed it."""
        self._stop()
        try:
            async with asyncio.timeout(timeout_s):
                is_removed = not self._is_deposed and await self._removed()
        except (RallypointError, TimeoutError):
            is_removed = False  # What is left is removed when it is old.
        if not is_removed:
            await self.vacate(timeout_s)

    async def _removed(self) -> bool:
        if not self._record.is_removable:
            return False
        # Also learns the token of a swap that was under way.
        last, sent_at = self.lead.next(self.lead.record.job), self._runtime.clock()
        if not await self._record.swap(last):
            self._is_deposed = True
            return False
        self.lead.confirmed(last, sent_at)
        return await self._record.remove()

    def _stop(self) -> None:
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def _step_down(
        self, stepping_down: SteppingDown, on_deposed: Callable[[str], None]
    ) -> None:
        why = ""
        while not why and not self._is_deposed:
            await asyncio.sleep(CHECK_S)
            if self.jobs and self.lead.hand_over(self.now):
                self._is_deposed = True
                self._stop()
                on_deposed("it can't write its record, and another node can")
                return
            if self.jobs:
                why = stepping_down.why(self.lead, self.jobs[-1].silence, self.now)
        if why and not self.is_sure and self.jobs[-1].tell_cancel():
            why = f"{why}: that the job is cancelled was told to all nodes, and is not recorded"
        if why:
            await self.vacate(VACATE_S, steps_down=True)
            self._is_deposed = True
            on_deposed(why)

    def _give_up(self, on_deposed: Callable[[str], None], why: str) -> None:
        """Lead no more, without a word: this process claims the job anew."""
        self._stop()
        on_deposed(why)

    async def _keep(self, on_deposed: Callable[[str], None], stall: Stall) -> None:
        try:
            on_deposed(await self._kept(stall))
        finally:
            stall.close()

    async def _kept(self, stall: Stall) -> str:
        """Until this process leads no more; returns why."""
        while True:
            await self._wait()
            jobs = list(self.jobs)
            records = [job.durable.begin() for job in jobs]
            newest = records[-1] if records else self.lead.record.job
            record, sent_at = self.lead.next(newest), self._runtime.clock()
            try:
                is_ours = await self._record.swap(record, is_held=self._is_held)
            except RendezvousConnectionError as error:
                stall.why = str(error)
                await asyncio.sleep(RETRY_S)
                self._wake.set()
                continue
            except UnfitRecordError as error:
                self._is_deposed = True
                return _why_unfit(error.fault)
            except RallypointError as error:
                self._is_deposed = True
                return str(error)
            except Exception as error:
                return f"its record can't be written: {describe_fault(error)}"
            if not is_ours:
                self._is_deposed = True
                return self._why_not_ours()
            self.lead.confirmed(record, sent_at)
            self._memory.saw(record, is_own=True)
            stall.ended()
            if not self.is_sure:
                # Others may have claimed since it was sent. The next swap tells.
                self._wake.set()
                continue
            for job in jobs:
                job.perform(job.durable.written())

    def _is_held(self) -> bool:
        """Whether the last swap alone keeps everybody else from claiming the job."""
        return self._runtime.clock() < self.lead.held_until

    def _why_not_ours(self) -> str:
        """The reason why a swap has found another record, or none."""
        found = self._record.found
        if found is not None and (fault := self._memory.fault_in(found)):
            return _why_unfit(fault)
        if not self._memory.is_behind(found):
            return "another coordinator has taken over this job"
        if found is None:
            return "its record is gone from the register"
        return "its register holds an older record of the job, which somebody has put back"

    async def _wait(self) -> None:
        """Until something is to be written, or the hold is to be renewed."""
        try:
            async with asyncio.timeout(self.lead.beats_in_s(self._runtime.clock())):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()


def _waits_for(found: RegisterLook) -> str:
    """The reason why this process does not claim the job yet, for people."""
    if found.unfit:
        return found.unfit
    if found.record is None:
        return "the job's record is gone: waiting whether its leader writes it again"
    where = ", ".join(found.record.leader.addresses)
    return f"another coordinator ({where}) leads this job: waiting until it stops"


def _why_unfit(fault: str) -> str:
    """The reason why a leader leads no more that has found such a record."""
    return f"its register holds a record that no leader writes: {fault}"
