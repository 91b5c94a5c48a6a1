"""The end of a worker whose timer has ended: its stacks are read first, then it is killed.

The code of timers is imported when a worker sets the first one, or torch's variables ask for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.agent.environ import timer_file_asked_for
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.coordinator.client.session import raise_in_loop
from rallypoint.core.text import STACKS

if TYPE_CHECKING:
    from rallypoint.agent.timers import Expiry, TimerPipe, WorkerTimers


MAX_DETAIL_CHARACTERS = 6000


class Blame(Struct, frozen=True):
    """The reason why this agent has ended a worker, and the worker's stacks at the time."""

    reason: str
    stacks: str

    @property
    def detail(self) -> str:
        """The last part of the stacks, for the failure's report; the main thread's is there."""
        return "\n".join((STACKS, self.stacks[-MAX_DETAIL_CHARACTERS:]))


class Watchdog:
    """The watch that ends workers of one round whose timers have expired.

    `open` it before the workers start, `close` it when they stop. `end_one(local_rank, signal)`
    signals a worker, and returns False if that has exited; `notice` gets a line for the user.
    """

    def __init__(
        self,
        shm: WorkerShm,
        base_rank: int,
        end_one: Callable[[int, int], bool],
        notice: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._shm, self._base_rank, self._end_one, self._notice = shm, base_rank, end_one, notice
        self._timers: WorkerTimers | None = None
        self._pipe: TimerPipe | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = True
        self.blames: dict[int, Blame] = {}
        """The reason and the stacks of each worker that was ended, by local rank."""
        shm.watch_timers(self._line)

    def open(self) -> str:
        """Open the named pipe for torch's clients, and return its path; empty: none is asked for.

        Raises UsageError.
        """
        chosen = timer_file_asked_for()
        if chosen is None:
            return ""
        from rallypoint.agent.timers import TimerPipe

        self._pipe = TimerPipe(chosen, self._shm.wake_up_path, self._line)
        return self._pipe.path

    def close(self) -> None:
        """Stop ending workers, and remove the named pipe. May be called again."""
        self._open = False
        for task in self._tasks:
            task.cancel()
        if self._timers is not None:
            self._timers.close()
        if self._pipe is not None:
            self._pipe.close()

    def _line(self, data: bytes) -> None:
        if not self._open:
            return
        try:
            if self._timers is None:
                from rallypoint.agent.timers import WorkerTimers

                self._timers = WorkerTimers(self._shm.pids, self._expired)
            self._timers.line(data)
        except Exception as error:
            self._shm.faults.note("a worker's timer request can't be handled", error)

    def _expired(self, expiry: Expiry) -> None:
        task = self._loop.create_task(self._end(expiry))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(raise_in_loop)

    async def _end(self, expiry: Expiry) -> None:
        rank = self._base_rank + expiry.local_rank
        if not expiry.signal:
            text = f"rank {rank}: {expiry.reason}: not ended, as its request asks"
            self._notice(text)
            return
        texts: Mapping[int, str] = {}
        try:
            texts = await self._shm.dump_stacks(local_ranks=[expiry.local_rank])
        except Exception as error:
            self._shm.faults.note("a worker's stacks can't be taken", error)
        if expiry.local_rank in self.blames:
            return
        self.blames[expiry.local_rank] = Blame(expiry.reason, texts.get(expiry.local_rank, ""))
        if self._end_one(expiry.local_rank, expiry.signal):
            self._notice(f"rank {rank}: {expiry.reason}: ending it")
        else:
            del self.blames[expiry.local_rank]
