"""`--hang-timeout` on this node: notices workers that make no progress, and tells what they do.

What counts as a hang, and who is to blame for it, is decided in `core/hang.py`. All stacks of this
node go to one file, of which a person is told; the coordinator gets those of the one worker that is
behind.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping

from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.config import AgentConfig
from rallypoint.coordinator.client import raise_in_loop
from rallypoint.core import event_kinds as kinds
from rallypoint.core import hang
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.group_events import Exit
from rallypoint.core.hang import Behind, WorkerProgress
from rallypoint.core.model import Assignment, Stamp, WorkerFailure
from rallypoint.core.text import STACKS
from rallypoint.files import safe_open
from rallypoint.process.logs.log_dir import is_null_device, make_stacks_dir, path_text

DUMP_S = 2.0
DETAIL_CHARACTERS = 16 * 1024
"""So much of a worker's stacks goes to the coordinator: the end, where the main thread is."""


class HangWatch:
    """One agent's. `begin` with each round's workers, `end` when they have gone."""

    def __init__(
        self,
        config: AgentConfig,
        report: Callable[[m.Report], None],
        say: Callable[[Record], None],
    ) -> None:
        self._config, self._report, self._say = config, report, say
        self._loop = asyncio.get_running_loop()
        self._stamp: Stamp | None = None
        self._assignment: Assignment | None = None
        self._shm: WorkerShm | None = None
        self._exits: Mapping[int, Exit] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._collecting: asyncio.Task[None] | None = None
        self._folder = ""

    def begin(
        self, stamp: Stamp, assignment: Assignment, shm: WorkerShm, exits: Mapping[int, Exit]
    ) -> None:
        """Workers of a round run; who is in `exits` need make no progress any more."""
        self.end()
        self._stamp, self._assignment, self._shm, self._exits = stamp, assignment, shm, exits
        if self._timeout_s:
            shm.watch(self._changed)

    def end(self) -> None:
        """They are being stopped, or have gone."""
        self._stamp = self._assignment = self._shm = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._collecting is not None:
            self._collecting.cancel()
            self._collecting = None

    def collect(self, message: m.CollectStacks) -> None:
        """Tell what the workers do, within some seconds."""
        if self._collecting is None or self._collecting.done():
            self._collecting = self._loop.create_task(self._collect(message))
            self._collecting.add_done_callback(raise_in_loop)

    @property
    def _timeout_s(self) -> float:
        return self._config.rendezvous.hang_timeout_s

    def _all_progress(self) -> list[WorkerProgress]:
        try:
            told = enumerate(self._shm.progress() if self._shm is not None else ())
        except Exception as error:
            assert self._shm is not None
            self._shm.faults.note("the workers' progress can't be read", error)
            return []
        return [
            WorkerProgress(rank, progress.step, progress.age_s)
            for rank, progress in told
            if progress is not None and rank not in self._exits
        ]

    def _changed(self) -> None:
        """Only the first progress report wakes the agent; after that it looks at intervals."""
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        delay_s = hang.next_look_s(self._all_progress(), self._timeout_s)
        self._timer = None if delay_s is None else self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._arm()
        if self._stamp is not None and hang.is_suspect(self._all_progress(), self._timeout_s):
            self._report(m.HangSuspected(self._stamp))

    async def _collect(self, message: m.CollectStacks) -> None:
        stamp, shm, assignment = self._stamp, self._shm, self._assignment
        behind: Behind | None = None
        workers = self._all_progress()
        if shm is not None and assignment is not None and stamp == message.stamp:
            try:
                stacks = await shm.dump_stacks(DUMP_S)
            except Exception as error:
                shm.faults.note("the workers' stacks can't be taken", error)
                stacks = {}
            path = self._keep(assignment, stacks, workers)
            worst = hang.most_behind(workers, self._timeout_s)
            if worst is not None:
                failure = self._failure(assignment, shm, worst, stacks, path)
                behind = Behind(failure, worst.step, worst.silent_s)
        furthest = max((worker.step for worker in workers), default=-1)
        self._report(m.StacksCollected(message.stamp, message.number, behind, furthest))

    def _failure(
        self,
        assignment: Assignment,
        shm: WorkerShm,
        worker: WorkerProgress,
        stacks: Mapping[int, str],
        path: str,
    ) -> WorkerFailure:
        rank = worker.local_rank
        return WorkerFailure(
            local_rank=rank,
            rank=assignment.base_rank + rank,
            role=self._config.workers.role,
            pid=shm.pids[rank],
            exit_code=None,
            signal=None,
            age_s=0.0,
            wall_time=time.time(),
            detail=f"{STACKS}\n{stacks.get(rank, '')[-DETAIL_CHARACTERS:]}",
            log_file=path,
        )

    def _keep(
        self, assignment: Assignment, stacks: Mapping[int, str], workers: list[WorkerProgress]
    ) -> str:
        """The file that has it all; empty when there are to be no files, or it can't be written,
        which is no reason to fail."""
        output, run_id = self._config.output, self._config.rendezvous.run_id
        if output.log_dir is not None and is_null_device(output.log_dir):
            return ""
        known = {worker.local_rank: worker for worker in workers}
        name = f"round{assignment.round}_rank{assignment.base_rank}.txt"
        try:
            if not self._folder:
                self._folder = make_stacks_dir(output.log_dir, run_id, output.temp_dir)
            path = os.path.join(self._folder, name)
            fd = safe_open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                for rank, text in stacks.items():
                    file.write(f"{_heading(assignment.base_rank + rank, known.get(rank))}\n")
                    file.write(f"{text.rstrip()}\n\n")
        except OSError as error:
            place = path_text(self._folder or output.log_dir or output.temp_dir)
            self._say(kinds.STACKS(f"the stacks can't be kept in {place}: {error.strerror}"))
            return ""
        path = path_text(path)
        self._say(kinds.STACKS(f"the stacks of the workers of this node are in {path}"))
        return path


def _heading(rank: int, worker: WorkerProgress | None) -> str:
    if worker is None:
        return f"rank {rank}, which has reported no progress or has exited:"
    return f"rank {rank}, at step {worker.step}, silent for {worker.silent_s:.1f} s:"
