"""A job's record in its register, for one process.

The register's calls block, so they run in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from rallypoint.core.takeover import record_limits
from rallypoint.core.takeover.candidacy import gone
from rallypoint.core.takeover.record import SCHEMA, LeadRecord
from rallypoint.errors import (
    RallypointError,
    RecordError,
    UnfitRecordError,
)
from rallypoint.register.version_file import (
    UnreadableVersionError,
    UnsealedFormat,
    readable_run_id,
    register_name,
)
from rallypoint.threads import CallThread

T = TypeVar("T")

LEAST_WAIT_S = 0.05
"""The least time in seconds between two looks at a record, however often its register signals a
change; less only if the caller asks for less."""
WATCH_S = 60.0
"""The longest time in seconds of one call of `wait_for_change`; the next wait begins another."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LeadRecord)
_head = msgspec.msgpack.Decoder(list[msgspec.Raw])
_number = msgspec.msgpack.Decoder(int)


class Register(Protocol):
    """The place of one job's record: one value with compare-and-swap. Its methods block.

    `RendezvousBackend` has the contract.
    """

    def get_state(self) -> tuple[bytes, Any] | None: ...

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None: ...


@runtime_checkable
class RemovableRegister(Protocol):
    """A register that can be removed from its store."""

    def remove(self, token: Any) -> bool:
        """Remove the register, unless the store has a version after that of the token.

        Returns whether it was removed.
        """


@runtime_checkable
class TriableRegister(Protocol):
    """A register that can check whether a swap would be possible."""

    def try_writing(self) -> None:
        """Check that a swap would be possible now, without storing a version.

        Raises as `set_state`.
        """


@runtime_checkable
class WakingRegister(Protocol):
    """A register whose change one thread can wait for, while another calls its other methods."""

    def wait_for_change(self, token: Any, timeout: float) -> bool:
        """Wait until the register's token may differ from `token`, as `WakingBackend` describes."""

    def stop_waiting(self) -> None:
        """End a wait of another thread early."""


@runtime_checkable
class SureRegister(Protocol):
    """A register whose empty answer proves that the job has no record.

    A register in a directory is not one: an unmounted directory looks empty.
    """

    is_sure_of_absence: bool


class Caller(Protocol):
    """The thread, or the like, that runs a register's calls one by one.

    `threads.CallThread` is one.
    """

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]: ...

    def close(self) -> None: ...


class RegisterRecord:
    """A job's record in its register; the version that was last read or written is remembered.

    Its methods are called in the thread of the asyncio loop.
    """

    def __init__(
        self, register: Register, thread: Caller, *, is_kept: bool = False, run_id: str = ""
    ) -> None:
        """`is_kept`: nobody removes the record while a node of its job lives.

        `rallypoint serve` may remove a job's record when all nodes have left. `thread`: runs the
        register's calls. `run_id`: the job's; empty: the record may be of any job.
        """
        self._register, self._thread, self.is_kept = register, thread, is_kept
        self._run_id = run_id
        self.token: Any = None
        """The token of the version that this process saw last; None: it has seen none, or there was
        none."""
        self.found: LeadRecord | None = None
        """The record that the last failed swap found; None: it found none, or no swap has
        failed."""
        self._confirmed: LeadRecord | None = None
        """The last record that this process is known to have stored; None: there is none."""

    async def read(self) -> LeadRecord | None:
        """Return the record; None: there is none.

        Raises RecordError for anything but a record, UnfitRecordError for one that no leader
        writes, and what the register raises. Raises RendezvousConnectionError if `is_kept` and a
        record that was seen has disappeared, except from a `SureRegister`.
        """
        data = await self._get()
        return None if data is None else decode(data, self._run_id)

    async def swap(self, record: LeadRecord, is_held: Callable[[], bool] = lambda: False) -> bool:
        """Store the record in place of the version seen last.

        Return whether the register holds it now. If not, `found` is what the register has instead.

        If an earlier swap of the same epoch had an unknown outcome, its version is replaced too.
        `is_held` returns whether no other process can have claimed the job. Raises as `read`.
        """
        data = encode(record)
        while True:
            token = self.token
            after = await self._thread.submit(partial(self._register.set_state, data, token))
            if after is not None and after[2]:
                self.token, self._confirmed = after[1], record
                return True
            there = await self._get()
            if there == data:
                self._confirmed = record
                return True
            self.found = None if there is None else decode(there, self._run_id)
            if self.found is None or self.token == token:
                return False
            if not self._is_own_attempt(self.found, record, is_held()):
                return False

    def _is_own_attempt(self, found: LeadRecord, record: LeadRecord, is_held: bool) -> bool:
        """Return whether the record that was found counts as an earlier attempt to store `record`.

        It needs the same epoch. If this process has stored one of that epoch, it also needs a later
        beat than that one. The same beat is enough if `is_held`, as no process can have claimed the
        job; else another process may have restored or touched the record.
        """
        if found.epoch != record.epoch:
            return False
        confirmed = self._confirmed
        if confirmed is None or confirmed.epoch != found.epoch:
            return True
        return found.beat > confirmed.beat or (found.beat == confirmed.beat and is_held)

    async def could_be_written(self) -> bool:
        """Return whether the register would take a swap now; False if it can't be checked."""
        if not isinstance(self._register, TriableRegister):
            return False
        try:
            await self._thread.submit(self._register.try_writing)
        except RallypointError:
            return False
        return True

    @property
    def is_removable(self) -> bool:
        """Whether this kind of register can be removed."""
        return isinstance(self._register, RemovableRegister)

    async def remove(self) -> bool:
        """Remove the register, unless it has a later version than this process saw.

        Only for a register of which `is_removable` holds. Return whether it was removed.
        """
        assert isinstance(self._register, RemovableRegister)
        return await self._thread.submit(partial(self._register.remove, self.token))

    async def _get(self) -> bytes | None:
        found = await self._thread.submit(self._register.get_state)
        if found is None:
            is_sure = isinstance(self._register, SureRegister)
            if self.token is not None and self.is_kept and not is_sure:
                raise gone()
            self.token = None
            return None
        self.token = found[1]
        return found[0]


class RegisterWatch:
    """A wait between two reads of a register, which ends early if the register signals a change.

    Only the wait is here; the caller reads the value. Used in the thread of the asyncio loop.
    """

    def __init__(self, register: Register) -> None:
        """Start no thread yet: the first longer wait does, if the register signals changes."""
        self.register = register
        self._waking = register if isinstance(register, WakingRegister) else None
        self._thread: CallThread | None = None
        self._waiting: asyncio.Future[bool] | None = None

    async def wait(self, token: object, seconds: float) -> None:
        """Wait until there may be another version than that of `token`, for at most `seconds`.

        If the register can't signal changes, all of these seconds pass; else `LEAST_WAIT_S` of them
        at least.
        """
        if self._waking is None or seconds <= LEAST_WAIT_S:
            await asyncio.sleep(seconds)
            return
        if self._thread is None:
            self._thread = CallThread("rallypoint-register-wait")
        await asyncio.sleep(LEAST_WAIT_S)
        if self._waiting is None or self._waiting.done():
            # It outlasts this call: the next one goes on with it.
            wait = partial(self._waking.wait_for_change, token, WATCH_S)
            self._waiting = self._thread.submit(wait)
            self._waiting.add_done_callback(_retrieve)
        await asyncio.wait((self._waiting,), timeout=seconds - LEAST_WAIT_S)

    def close(self) -> None:
        """End the wait for a change that is under way in the thread, and the thread."""
        if self._waking is not None and self._thread is not None:
            self._thread.close()
            self._waking.stop_waiting()


def _retrieve(waiting: asyncio.Future[bool]) -> None:
    """Retrieve the exception of a wait that failed, so that asyncio does not report it.

    A register that can't be reached ends the wait, too.
    """
    if not waiting.cancelled():
        waiting.exception()


def encode(record: LeadRecord) -> bytes:
    """Encode the record for a register."""
    return _encoder.encode(record)


def decode(data: bytes, run_id: str = "") -> LeadRecord:
    """Decode a record. `run_id`: the job's; empty: any.

    Raises RecordError for what is no record, or one of a newer version, and UnfitRecordError for
    one that no leader of this job writes.
    """
    try:
        schema = _number.decode(_head.decode(data)[0])
        if schema > SCHEMA:
            raise RecordError(
                f"the job's record has version {schema}, and this version of rallypoint reads up "
                f"to {SCHEMA}: use the version that wrote it, or another run id"
            )
        record = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError, RecursionError) as error:
        raise RecordError(
            f"the job's record does not parse ({error}): it is left as it is; use another run id"
        ) from error
    if fault := record_limits.fault_in(record):
        raise UnfitRecordError(fault)
    job = record.job
    if run_id and job is not None and job.settings.run_id != run_id:
        fault = f"record.job.settings.run_id = {job.settings.run_id!a} (needs {run_id!a})"
        raise UnfitRecordError(fault)
    return record


def recorded_run_id(
    content: bytes, name: str, name_of: Callable[[str], str] = register_name
) -> str:
    """Return the run id in an encoded record, which is not authenticated.

    Empty if `name_of` does not map that run id to the register's `name`. Also empty for the record
    of a job that has just begun, and for anything but a record.
    """
    with suppress(RallypointError):
        job = decode(content).job
        run_id = "" if job is None else job.settings.run_id
        return run_id if name_of(run_id) == name else ""
    return ""


def run_id_of(
    name: str, read: Callable[[], bytes], name_of: Callable[[str], str] = register_name
) -> str:
    """Return the run id of the job whose register has this name, from the name or the content.

    `read` returns the register's encoded version. Empty if the run id is not known. `name_of` maps
    run ids to names of registers. Raises what `read` raises, except RallypointErrors.
    """
    if name_of is register_name and (run_id := readable_run_id(name)):
        return run_id
    with suppress(RallypointError, UnreadableVersionError):
        return recorded_run_id(UnsealedFormat().decode("", read()).content, name, name_of)
    return ""


class ChangedRecords:
    """The search for records that have changed since all of them were looked at last."""

    def __init__(self, run_id_of: Callable[[str], str]) -> None:
        """Remember no record yet.

        `run_id_of` returns the run id of the register with a name; empty if it is unknown, as for a
        job that has just begun.
        """
        self._run_id_of = run_id_of
        self._known: dict[str, tuple[object, str]] = {}
        """The version and the run id, by the name of the register, as of the last look."""

    def look(self, versions: Iterable[tuple[str, object]]) -> list[str]:
        """Return the run ids of the jobs whose registers have changed since the last look.

        The first look returns all. `versions` has pairs of the register's name and its version.
        Registers of unknown run ids are left out. Raises what the iterable or `run_id_of` raises;
        the next look then returns the same changes.
        """
        seen: dict[str, tuple[object, str]] = {}
        found = []
        for name, version in versions:
            before, run_id = self._known.get(name, (None, ""))
            if not (run_id := run_id or self._run_id_of(name)):
                continue
            if before != version:
                found.append(run_id)
            seen[name] = version, run_id
        self._known = seen
        return found
