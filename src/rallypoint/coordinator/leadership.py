"""Leads one job by a register, on asyncio: `core/takeover/` decides, and this reads, swaps and
waits. The register's calls block, so they have a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec import Struct

from rallypoint.coordinator.clocks import boot_time
from rallypoint.coordinator.hosted_job import OpenGate
from rallypoint.core.job_lives import Life
from rallypoint.core.job_state import JobState
from rallypoint.core.model import NONCE_BITS
from rallypoint.core.sessions import HostEffect
from rallypoint.core.takeover.durable import Durable
from rallypoint.core.takeover.handover import Handover
from rallypoint.core.takeover.leading import Lead, Watch, claimed
from rallypoint.core.takeover.record import SCHEMA, FormerLife, Leader, LeadRecord, Process, job_of
from rallypoint.errors import (
    RallypointError,
    RendezvousConnectionError,
    RendezvousStateError,
)
from rallypoint.observe.faults import describe_fault

T = TypeVar("T")
RETRY_S = 0.5
"""A register that can't be reached is tried again after so long."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LeadRecord)
_head = msgspec.msgpack.Decoder(list[msgspec.Raw])
_number = msgspec.msgpack.Decoder(int)


class Register(Protocol):
    """One value with compare-and-swap; `RendezvousBackend` has the contract. Its methods block."""

    def get_state(self) -> tuple[bytes, Any] | None: ...

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None: ...


@runtime_checkable
class RemovableRegister(Protocol):
    """A register that need not stay for ever."""

    def remove(self, token: Any) -> bool:
        """Remove it, unless something follows the version of this token; returns whether it was
        removed."""


class Caller(Protocol):
    """Makes the calls of a register, one after the other, as `threads.CallThread` does."""

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]: ...

    def close(self) -> None: ...


def this_process() -> Process:
    """The process that calls this."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    paths = ("/proc/self/ns/pid", "/proc/self/ns/time")  # Linux 5.5 has no second one
    namespaces = " ".join(os.readlink(path) for path in paths if os.path.lexists(path))
    return Process(f"{boot_id} {namespaces}", os.getpid(), _started_at(os.getpid()))


def is_gone(process: Process, own: Process) -> bool:
    """Whether this process, of the same boot and namespaces as `own`, has ended. Of others nothing
    is known, nor of one that can't be looked at."""
    if process.where != own.where:
        return False
    try:
        return process == own or _started_at(process.pid) != process.started_at
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False


def _started_at(pid: int) -> int:
    """In clock ticks since the boot."""
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def random_nonce() -> int:
    """Of one attempt to lead."""
    return int.from_bytes(os.urandom(NONCE_BITS // 8), "big")


class Runtime(Struct, frozen=True):
    """What a leader knows of the machine that it runs on."""

    clock: Callable[[], float] = boot_time
    is_gone: Callable[[Process, Process], bool] = is_gone
    """As the function of this name."""
    nonce: Callable[[], int] = random_nonce


REAL_RUNTIME = Runtime()


class Led(Struct, frozen=True):
    """What a host needs for one life of a job that is led."""

    handover: Handover
    open_gate: OpenGate


class TakenOver(Struct, frozen=True):
    """A job of another coordinator, as its register holds it."""

    state: JobState
    led: Led
    former: Life | None
    """How its life before has ended."""

    @property
    def text(self) -> str:
        """What a person reads. Empty: that waits for the nodes of its newest round."""
        if self.led.handover.recovery is not None:
            return ""
        verdict = self.state.verdict
        if verdict is None:
            return "took over before its first round"
        return f"took over a job that has ended: {verdict.text}"


class LedJob:
    """One life of a job, of a coordinator that leads by a register: a gate of its host."""

    def __init__(
        self,
        leadership: Leadership,
        durable: Durable,
        perform: Callable[[list[HostEffect]], None],
    ) -> None:
        """`perform` does what has waited for a record."""
        self._leadership = leadership
        self.durable, self.perform = durable, perform
        leadership.jobs.append(self)
        leadership.changed()

    def after(self, effects: list[HostEffect]) -> list[HostEffect]:
        """The job has decided this: returns what may be done now."""
        passing = self.durable.after(effects, is_sure=self._leadership.is_sure)
        if not self.durable.is_recorded:
            self._leadership.changed()
        return passing

    def close(self) -> None:
        """It is hosted no more."""
        self._leadership.jobs.remove(self)


class Leadership:
    """For the thread of the loop. `claim` first, then `keep`."""

    def __init__(
        self, register: Register, leader: Leader, thread: Caller, runtime: Runtime = REAL_RUNTIME
    ) -> None:
        self._runtime = runtime
        self._register, self._leader, self._thread = register, leader, thread
        self._token: Any = None
        self._lead: Lead | None = None
        self.jobs: list[LedJob] = []
        """The lives of the job that are hosted; the last one is the present one."""
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._is_deposed = False

    async def claim(self, on_wait: Callable[[str], None]) -> None:
        """Become the leader. Waits until no other process leads, however long.

        Raises RendezvousStateError or what else the register raises for what can't be a record.
        """
        watch, nonce = Watch(), self._runtime.nonce()
        while True:
            try:
                found = await self._read()
                wait_s = self._claims_in_s(watch, found)
                if not wait_s:
                    record, sent_at = claimed(found, self._leader, nonce), self._runtime.clock()
                    if await self._swap(record):
                        self._lead = Lead(record, sent_at)
                        return
                    continue
                assert found is not None
                where = ", ".join(found.leader.addresses)
                on_wait(f"another coordinator ({where}) leads this job: waiting until it stops")
            except RendezvousConnectionError as error:
                on_wait(str(error))
            await asyncio.sleep(watch.look_s)

    @property
    def lead(self) -> Lead:
        """Once it has claimed."""
        assert self._lead is not None
        return self._lead

    def begin(self, state: JobState, former: Life | None) -> Led:
        """A life of the job of which the register holds nothing yet. `former`: the one before."""
        over = None
        if former is not None and former.verdict is not None:
            over = FormerLife(former.incarnation, former.verdict)
        handover = Handover()
        durable = Durable(state, handover, is_recorded=False, former=over)
        return Led(handover, partial(LedJob, self, durable))

    def take_over(self) -> TakenOver | None:
        """The job that the register holds. None: it holds none."""
        record = self.lead.record.job
        if record is None:
            return None
        state, former = job_of(record, self.lead.epoch), record.former
        handover = Handover(record)
        durable = Durable(state, handover, is_recorded=True, former=former)
        led = Led(handover, partial(LedJob, self, durable))
        life = None if former is None else Life(former.incarnation, former.verdict)
        return TakenOver(state, led, life)

    @property
    def is_sure(self) -> bool:
        """Nobody else can lead this job now."""
        return not self._is_deposed and self.lead.is_sure(self._runtime.clock())

    def changed(self) -> None:
        """Something is to be recorded."""
        self._wake.set()

    def keep(self, on_deposed: Callable[[str], None]) -> None:
        """Lead from now on. `on_deposed` is told, once, why this process leads no more."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep(on_deposed))

    async def vacate(self, timeout_s: float) -> None:
        """Lead no more, and tell who would lead that they need not wait."""
        if self._keeper is not None:
            self._keeper.cancel()
        if (
            self._lead is None
            or self._is_deposed
            or not all(job.durable.is_recorded for job in self.jobs)
        ):
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._swap(self._lead.next(self._lead.record.job, is_vacant=True))
        except (RallypointError, TimeoutError):
            return  # They wait for the hold.

    async def remove(self, timeout_s: float) -> None:
        """Lead no more, and remove the register, unless another process has claimed it."""
        if self._keeper is not None:
            self._keeper.cancel()
        try:
            async with asyncio.timeout(timeout_s):
                is_removed = not self._is_deposed and await self._removed()
        except (RallypointError, TimeoutError):
            is_removed = False  # What is left is removed when it is old.
        if not is_removed:
            await self.vacate(timeout_s)

    async def _removed(self) -> bool:
        if not isinstance(self._register, RemovableRegister):
            return False
        # Also learns the token of a swap that was under way.
        last, sent_at = self.lead.next(self.lead.record.job), self._runtime.clock()
        if not await self._swap(last):
            self._is_deposed = True
            return False
        self.lead.confirmed(last, sent_at)
        return await self._thread.submit(partial(self._register.remove, self._token))

    async def _keep(self, on_deposed: Callable[[str], None]) -> None:
        while True:
            await self._wait()
            jobs = list(self.jobs)
            records = [job.durable.begin() for job in jobs]
            newest = records[-1] if records else self.lead.record.job
            record, sent_at = self.lead.next(newest), self._runtime.clock()
            try:
                is_ours = await self._swap(record)
            except RendezvousConnectionError:
                await asyncio.sleep(RETRY_S)
                self._wake.set()
                continue
            except RallypointError as error:
                self._is_deposed = True
                return on_deposed(str(error))
            except Exception as error:
                return on_deposed(f"its record can't be written: {describe_fault(error)}")
            if not is_ours:
                self._is_deposed = True
                return on_deposed("another coordinator has taken over this job")
            self.lead.confirmed(record, sent_at)
            for job in jobs:
                job.perform(job.durable.written())

    async def _wait(self) -> None:
        """Until something is to be written, or the hold is to be renewed."""
        try:
            async with asyncio.timeout(self.lead.beats_in_s(self._runtime.clock())):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    def _claims_in_s(self, watch: Watch, found: LeadRecord | None) -> float:
        if found is None:
            return 0.0
        gone = self._runtime.is_gone(found.leader.process, self._leader.process)
        return watch.claims_in_s(found, self._runtime.clock(), is_gone=gone)

    async def _read(self) -> LeadRecord | None:
        data = await self._get()
        return None if data is None else _decoded(data)

    async def _get(self) -> bytes | None:
        found = await self._thread.submit(self._register.get_state)
        self._token = None if found is None else found[1]
        return None if found is None else found[0]

    async def _swap(self, record: LeadRecord) -> bool:
        """Whether the register holds it now. An earlier swap of the same epoch, of which it was not
        known whether it was stored, is followed by this one."""
        data = _encoder.encode(record)
        while True:
            token = self._token
            after = await self._thread.submit(partial(self._register.set_state, data, token))
            if after is not None and after[2]:
                self._token = after[1]
                return True
            there = await self._get()
            if there == data:
                return True
            if there is None or self._token == token or _decoded(there).epoch != record.epoch:
                return False


def _decoded(data: bytes) -> LeadRecord:
    """Raises RendezvousStateError for what is no record, or one of a newer version."""
    try:
        schema = _number.decode(_head.decode(data)[0])
        if schema > SCHEMA:
            raise RendezvousStateError(
                f"the job's record has version {schema}, and this version of rallypoint reads up "
                f"to {SCHEMA}: use the version that wrote it, or another directory"
            )
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError) as error:
        raise RendezvousStateError(
            f"the job's record does not parse ({error}): it is left as it is; use another directory"
        ) from error
