"""The agent's side of the memory that it shares with its workers (`wire/shm.py`).

The shared memory is one file of a round, in a directory beside its wake-up pipe and the files of
the stacks, on storage of this node. The agent reads the file rather than maps it: a worker that
truncates it must not end the agent by a SIGBUS. Where no directory can be made, requests reach no
worker and nothing is read: that is no reason not to run.

The wake-up pipe is a named pipe of lines. Workers write what they like: a line is at most PIPE_BUF
bytes, so that it arrives whole, and what is longer is no line. A worker that floods the pipe gets
a bounded share of each turn of the loop, so that it delays no heartbeat.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

from rallypoint.agent.progress import Phase, Progress, phase_of, progress_of
from rallypoint.files import remove_tree, safe_open
from rallypoint.observe.faults import Faults
from rallypoint.process.line_pipe import LinePipe
from rallypoint.process.logs.log_dir import path_text
from rallypoint.wire import shm as layout
from rallypoint.wire import shm_words as at
from rallypoint.wire.shm import ShmRequest, WorkerSlot

SHM_NAME, WAKE_UP_NAME = "shm", "wake-up"


def stacks_name(local_rank: int) -> str:
    """Return the name of the file beside the shared memory for this worker's stacks."""
    return f"stacks_{local_rank}"


class WorkerShm:
    """The shared memory of one round: made by `open`, ended by `close`.

    For the loop's thread.

    `faults` gets unexpected errors about the workers' data.
    """

    def __init__(self, folder: str, fd: int, workers: int, faults: Faults | None = None) -> None:
        self._folder, self._fd, self._workers = folder, fd, workers
        self._wake_up_pipe: WatchedPipe | None = None
        self._number, self._kind = 0, ShmRequest.NONE
        self.pids: Sequence[int] = ()
        """The pids of the workers, by local rank; empty until they run."""
        self.faults = faults or Faults(_ignore)
        self._last: Sequence[WorkerSlot] | None = None
        """The workers' last values, read when the shared memory was closed; None: it is open, or
        was never there."""
        self._watchers: list[Callable[[], None]] = []
        self._timer_watchers: list[Callable[[bytes], None]] = []

    @classmethod
    def open(
        cls,
        scratch: str,
        round_number: int,
        workers: int,
        faults: Faults | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> WorkerShm:
        """Make the shared memory of a round in this agent's directory `scratch`.

        Without a `scratch`, or where it can't be written, the result is that of `silent`. In the
        second case `tell` gets a line for the user.
        """
        if not scratch:
            return cls.silent(workers, faults)
        folder = os.path.join(scratch, f"round_{round_number}")
        shm = cls(folder, -1, workers, faults)
        try:
            os.mkdir(folder, 0o700)
            shm._make()
        except OSError as error:
            shm.close()
            tell(_cant_share(scratch, error))
            return cls.silent(workers, faults)
        return shm

    @classmethod
    def silent(cls, workers: int, faults: Faults | None = None) -> WorkerShm:
        """Return an object without memory, to which no worker writes."""
        return cls("", -1, workers, faults)

    @property
    def path(self) -> str:
        """The path for RALLYPOINT_SHM; empty without shared memory."""
        return os.path.join(self._folder, SHM_NAME) if self._folder else ""

    @property
    def wake_up_path(self) -> str:
        """The path of the pipe by which workers wake the agent; empty without shared memory."""
        return os.path.join(self._folder, WAKE_UP_NAME) if self._folder else ""

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` when a worker begins to listen, reports or saves a checkpoint.

        A report is a worker's first progress or its first phase. Spurious calls are possible.
        """
        self._watchers.append(changed)

    def watch_timers(self, requested: Callable[[bytes], None]) -> None:
        """Call `requested` with each line that is a timer's request."""
        self._timer_watchers.append(requested)

    def request(self, kind: ShmRequest, deadline_s: float) -> None:
        """Ask all local workers for a checkpoint within so many seconds.

        A second request of the same kind only moves the deadline, and earlier answers count. But a
        repeated request of a person asks for another checkpoint.
        """
        if kind is not self._kind or kind is ShmRequest.SAVE:
            self._number += 1
            self._kind = kind
        self._write(at.DEADLINE, time.monotonic_ns() + _ns(deadline_s))
        self._write(at.REQUEST, layout.pack_request(self._number, kind))

    def withdraw(self) -> None:
        """Withdraw the request for a checkpoint."""
        self._kind = ShmRequest.NONE
        self._write(at.REQUEST, layout.pack_request(self._number, ShmRequest.NONE))
        self._write(at.DEADLINE, 0)

    def hold(self, until_s: float) -> None:
        """Set the end of the node's lease, in seconds on CLOCK_BOOTTIME.

        Workers can see when it is over, even while this agent can't tell them.
        """
        self._write(at.HELD_UNTIL, _ns(until_s))

    def retire(self) -> None:
        """Mark the round as ended for these workers.

        `rallypoint.worker.is_current` is false from now on.
        """
        self._write(at.CURRENT, 0)

    def listeners(self) -> frozenset[int]:
        """Return the local ranks of workers that have ever looked for requests for a checkpoint."""
        return self._ranks(lambda slot: slot.listens)

    def wish_takers(self) -> frozenset[int]:
        """Return the local ranks that have ever looked for a person's request of a checkpoint."""
        return self._ranks(lambda slot: slot.takes_wishes)

    def answered(self) -> frozenset[int]:
        """Return the local ranks that have saved a checkpoint since the present request."""
        if self._kind is ShmRequest.NONE:
            return frozenset()
        return self._ranks(lambda slot: slot.answered == self._number)

    def holders(self) -> dict[int, int]:
        """Return, by local rank, the pids of processes of workers that hold SIGTERM back."""
        return {rank: slot.owner for rank, slot in enumerate(self._slots()) if slot.holds}

    def progress(self) -> tuple[Progress | None, ...]:
        """Return the progress by local rank, also after `close`; None: nothing is known yet."""
        return tuple(progress for progress, _ in self.progress_and_phases())

    def progress_and_phases(self) -> tuple[tuple[Progress | None, Phase], ...]:
        """Return progress and phase by local rank, from one read, also after `close`."""
        now_ns = time.monotonic_ns()
        slots = self._slots() if self._last is None else self._last
        return tuple((progress_of(slot, now_ns), phase_of(slot, now_ns)) for slot in slots)

    def checkpoints(self) -> tuple[int | None, ...]:
        """Return the step of the last reported checkpoint by local rank; None: not reported."""
        return tuple(slot.checkpoint - 1 if slot.checkpoint > 0 else None for slot in self._slots())

    async def dump_stacks(
        self, timeout_s: float = 2.0, local_ranks: Sequence[int] | None = None
    ) -> dict[int, str]:
        """Return the present activity of each worker (or each of `local_ranks`), by local rank.

        The stacks of all its threads where it can write them, else the kernel's information.
        Returns within the time.
        """
        # Needed only when something hangs.
        from rallypoint.process.stacks import dump

        ranks = range(self._workers) if local_ranks is None else local_ranks
        slots = self._slots()
        jobs = [self._subject(rank, slots[rank]) for rank in ranks if rank < len(self.pids)]
        texts = await asyncio.gather(*(partial(dump, timeout_s=timeout_s)(*job) for job in jobs))
        return dict(zip(ranks, texts, strict=False))

    def close(self) -> None:
        """Remove the shared memory and its files, and keep the workers' last values.

        May be called again.
        """
        if self._wake_up_pipe is not None:
            self._wake_up_pipe.close()
        if self._fd >= 0:
            self._last = self._slots()
            os.close(self._fd)
            self._fd = -1
        if self._folder:
            remove_tree(self._folder)

    def _make(self) -> None:
        path = self.path
        self._fd = safe_open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        fresh = layout.fresh_shm(self._workers, os.getpid())
        if os.write(self._fd, fresh) != len(fresh):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._wake_up_pipe = WatchedPipe(self.wake_up_path, self._woken)

    def _woken(self, lines: list[bytes]) -> None:
        for line in lines:
            if line.startswith(b"{"):
                for requested in self._timer_watchers:
                    requested(line)
        if not all(line.startswith(b"{") for line in lines):
            for changed in self._watchers:
                try:
                    changed()
                except Exception as error:
                    self.faults.note("the shared memory of a worker can't be read", error)

    def _subject(self, local_rank: int, slot: WorkerSlot) -> tuple[int, int, int, str]:
        path = os.path.join(self._folder, stacks_name(local_rank)) if self._folder else ""
        return self.pids[local_rank], slot.owner, slot.stacks, path

    def _ranks(self, said: Callable[[WorkerSlot], bool]) -> frozenset[int]:
        return frozenset(rank for rank, slot in enumerate(self._slots()) if said(slot))

    def _slots(self) -> Sequence[WorkerSlot]:
        data = b""
        if self._fd >= 0:
            data = os.pread(self._fd, at.shm_bytes(self._workers), 0)
        return layout.parse_slots(data, self._workers)

    def _write(self, word: int, value: int) -> None:
        if self._fd >= 0:
            os.pwrite(self._fd, layout.pack_word(value), at.WORD_BYTES * word)


def _ns(time_s: float) -> int:
    """Return nanoseconds, limited to half of what a word holds, so that sums fit."""
    return int(min(time_s, at.MAX_WORD / 2 / at.NS_PER_S) * at.NS_PER_S)


def _cant_share(scratch: str, error: OSError) -> str:
    """Return the message about a round whose workers can't be observed."""
    why = error.strerror or str(error)
    fix = "progress and checkpoint requests do not work: free space there, or set TMPDIR"
    return f"can't share memory with the workers under {path_text(scratch)}: {why}: {fix}"


def _ignore(_line: object) -> None:
    """Ignore a report, where no receiver of faults was given."""


class WatchedPipe:
    """A named pipe of lines, read in the agent's loop: `on_lines` gets each batch of whole lines.

    Raises OSError when it can't be made.
    """

    def __init__(self, path: str, on_lines: Callable[[list[bytes]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe, self._on_lines = LinePipe(path), on_lines
        self._loop.add_reader(self._pipe, self._read)

    def close(self) -> None:
        """Remove the pipe. May be called again."""
        if self._pipe.fileno() >= 0:
            self._loop.remove_reader(self._pipe)
            self._pipe.close()

    def _read(self) -> None:
        if lines := self._pipe.read_lines():
            self._on_lines(lines)
