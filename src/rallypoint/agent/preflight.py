"""The trial whether this machine can start workers now (behaviour A10).

It comes before a round that runs ends for this node.

    in the agent     as many descriptors as its workers take are opened for a moment
    in a process     a block is written to each directory that its workers use; then as many
    of its own       processes as this node has workers are forked, exec'd and ended

A file system may hang for ever, and a process that waits for one can't be ended. So nothing of it
is done in the agent, and a missing answer counts as a refusal after 30 s. Each file is unlinked
before it is written, so that no file is left when the process is killed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Struct

from rallypoint.core.model import Lacking
from rallypoint.core.text import count, named, signal_name
from rallypoint.errors import MACHINE_ERRNOS, RallypointError
from rallypoint.files import prove_writable
from rallypoint.process.exits import wait_until_gone
from rallypoint.process.forks import ForkedProcess, fork_process
from rallypoint.process.limits import descriptors_for, fix_of, try_descriptors
from rallypoint.process.logs.log_dir import TEMPORARY_PLACES, path_text
from rallypoint.process.logs.specs import DefaultLogsSpecs, Reifies
from rallypoint.process.spawn import WorkerCommand, abandon, spawn_workers

LIMIT_S = 30.0
"""The time limit of a whole trial in seconds: what it waits for by then counts as hanging."""
BLOCK_BYTES = 64 * 1024
MOST_PROCESSES = 256
"""The most processes that are forked for a test; each costs a millisecond."""
_REAP_S = 1.0
_WRITE = "write to "


class Directories(Struct, frozen=True):
    """Alternative directories: workers use the first writable one.

    `is_given`: programs look elsewhere by themselves where none can be used, as for TMPDIR. Then
    only errors of the machine count (`MACHINE_ERRNOS`).
    """

    paths: tuple[str, ...]
    is_given: bool = False


class Unfit(Struct, frozen=True):
    """The reason why no worker can be started here, with the fix."""

    text: str
    """The reason, one sentence."""
    lacking: Lacking | None
    """The lacking resource of the machine; None: an option of this node is to blame."""
    fix: str


class _Told(Struct, frozen=True):
    """A line that the trial's process writes: the step that begins, or that has failed."""

    stage: str
    errno: int = 0
    """The error number of the step that has failed; 0: the step begins."""


def places(specs: Reifies, scratch: str, temp_dir: str) -> list[Directories]:
    """Return the directories that the workers of this agent use. Accesses no file system."""
    found = [Directories((temp_dir,), is_given=True)]
    if scratch:
        found.append(Directories((scratch,)))
    if isinstance(specs, DefaultLogsSpecs):
        made = specs.directory
        if made is None:
            found.append(Directories((temp_dir, *TEMPORARY_PLACES)))
        elif made:
            found.append(Directories((made,)))
    else:
        with suppress(Exception):  # What a package's property does is not known.
            if root := getattr(specs, "root_log_dir", None):
                found.append(Directories((str(root),), is_given=True))
    return list(dict.fromkeys(found))


class Preflight:
    """One trial of whether this machine can start workers.

    For the thread of the loop: `run` once, which may be cancelled.
    """

    def __init__(
        self,
        where: Sequence[Directories],
        workers: int,
        part_of: str = "",
        *,
        limit_s: float = LIMIT_S,
        write: Callable[[str], None] | None = None,
    ) -> None:
        """Make the trial; `where` has the directories, `workers` is the number of workers.

        `part_of` ends the title of the trial's process. `write` proves that a directory can be
        written, or raises OSError.
        """
        self._where, self._workers, self._part_of = where, workers, part_of
        self._limit_s, self._write = limit_s, write or _write_a_block
        self._process: ForkedProcess | None = None
        self._stage = ""
        self._unread = b""

    def owns(self, pid: int) -> bool:
        """Return whether this trial has forked the process, so that no other code may reap it."""
        return self._process is not None and self._process.pid == pid

    @property
    def is_left(self) -> bool:
        """Whether a hanging process has outlived the trial."""
        return self._process is not None

    async def run(self) -> Unfit | None:
        """Run the trial, and return why no worker can be started; None: no reason was found.

        Takes `limit_s` at most, and a moment.
        """
        stage = f"open {count(descriptors_for(self._workers), 'file')}"
        try:
            try_descriptors(self._workers)
            stage = "fork"
            read, write = os.pipe()
        except OSError as error:
            return unfit(stage, error.errno)
        try:
            return await self._ask(read, write)
        finally:
            os.close(read)
            await self._end()

    async def _ask(self, read: int, write: int) -> Unfit | None:
        body = partial(_try, write, self._where, self._workers, self._write)
        title = f"rallypoint: tries to start workers{self._part_of}"
        try:
            self._process = fork_process(body, name="rallypoint-try", title=title, keep_fds=[write])
        except OSError as error:
            return unfit("fork", error.errno)
        finally:
            os.close(write)
        try:
            async with asyncio.timeout(self._limit_s):
                if (failed := await self._told(read)) is not None:
                    return unfit(failed.stage, failed.errno)
        except TimeoutError:
            return unfit(self._stage, errno.ETIMEDOUT, f"no answer within {self._limit_s:g} s")
        return await self._how_it_ended(self._process)

    async def _told(self, read: int) -> _Told | None:
        """Wait for the step that failed, and return it; None: the process reports no failure."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        os.set_blocking(read, False)
        loop.add_reader(read, readable.set)
        try:
            while True:
                await readable.wait()
                readable.clear()
                while (said := _read(read)) is not None:
                    if not said:
                        return None
                    if (failed := self._take(said)) is not None:
                        return failed
        finally:
            loop.remove_reader(read)

    def _take(self, said: bytes) -> _Told | None:
        *lines, self._unread = (self._unread + said).split(b"\n")
        for told in (msgspec.json.decode(line, type=_Told) for line in lines):
            if told.errno:
                return told
            self._stage = told.stage
        return None

    async def _how_it_ended(self, process: ForkedProcess) -> Unfit | None:
        """Wait for the trial's process; if it was killed, return why no worker can start.

        Else None. A process that was killed has tried nothing more; one that has failed has a bug,
        and no machine is held back for that.
        """
        await _wait_gone(process)
        code = 0 if process.alive() else process.wait()
        if code >= 0 or not self._stage:
            return None
        how = f"the process of this test was killed by {signal_name(-code)}"
        return unfit(self._stage, errno.EAGAIN, how)

    async def _end(self) -> None:
        """End the process, if it does not hang; a hanging one ends when its file system answers."""
        if (process := self._process) is not None:
            process.kill()
            await _wait_gone(process)
            if not process.alive():
                process.wait()
                self._process = None


def unfit(stage: str, number: int | None, reason: str = "") -> Unfit:
    """Return the reason and the fix for a step that failed with this error number.

    `reason` replaces the text of the number.
    """
    number = number or errno.EIO
    lacking = Lacking(stage, number) if number in MACHINE_ERRNOS else None
    fix = _fix_of_place(number) if stage.startswith(_WRITE) else fix_of(number)
    return Unfit(f"can't {stage}: {reason or os.strerror(number)}", lacking, fix)


def _fix_of_place(number: int) -> str:
    elsewhere = f"set TMPDIR or {named.log_dir} to another directory"
    match number:
        case errno.ENOSPC | errno.EDQUOT:
            return f"free space there, or set TMPDIR or {named.log_dir}"
        case errno.EACCES | errno.EPERM:
            return f"give this user write access, or {elsewhere}"
        case errno.EMFILE | errno.ENFILE | errno.EAGAIN | errno.ENOMEM:
            return fix_of(number)
        case _:
            return elsewhere


async def _wait_gone(process: ForkedProcess) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_REAP_S):
            while process.alive():
                await wait_until_gone(process.pid)


def _read(fd: int) -> bytes | None:
    """Return the bytes that can be read now; None: none yet; empty: the end."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None


# In the process


def _try(
    told: int, where: Sequence[Directories], workers: int, write: Callable[[str], None]
) -> None:
    def tell(stage: str, number: int = 0) -> None:
        os.write(told, msgspec.json.encode(_Told(stage, number)) + b"\n")

    for place in where:
        if (failed := _try_place(place, write, tell)) is not None:
            tell(*failed)
            return
    processes = min(workers, MOST_PROCESSES)
    stage = f"start {count(processes, 'worker')}"
    tell(stage)
    number = _try_processes(processes)
    if number in MACHINE_ERRNOS:  # What else there may be is the job's own program's to show.
        assert number is not None
        tell(stage, number)


def _try_place(
    place: Directories, write: Callable[[str], None], tell: Callable[[str], None]
) -> tuple[str, int] | None:
    """Return the step and the error number of the first failure in these directories.

    None: one of them can be written, or the failures do not count (see `Directories.is_given`).
    """
    failed: tuple[str, int] | None = None
    for path in place.paths:
        stage = f"{_WRITE}{path_text(path)}"
        tell(stage)
        try:
            write(path)
        except OSError as error:
            number = error.errno or errno.EIO
            if not (place.is_given and number not in MACHINE_ERRNOS):
                failed = failed or (stage, number)
            continue
        return None
    return failed


def _write_a_block(directory: str) -> None:
    prove_writable(directory, os.urandom(BLOCK_BYTES))  # No file system can make less of it.


def _try_processes(processes: int) -> int | None:
    """Fork and exec this number of processes, so that all exist at the same time.

    Returns the error number of a failure; None: there was none, or it has no number.
    """
    program = sys.executable or "/proc/self/exe"
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        nothing = WorkerCommand((program, "-V"), {}, nowhere, nowhere)
        started = spawn_workers([nothing] * processes, None)
    except OSError as error:
        return error.errno
    except RallypointError as error:
        return None if error.shortage is None else error.shortage.errno
    finally:
        os.close(nowhere)
    abandon([process.pid for process in started], None)
    return None
