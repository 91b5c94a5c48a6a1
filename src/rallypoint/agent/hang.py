"""`--hang-timeout` on this node: finds workers without progress, and reports their stacks.

`core/hang.py` defines a hang, and decides which worker is to blame. All stacks of this node go to
one file; the coordinator gets those of the one worker that is furthest behind.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping

from rallypoint.agent.node_workers import AgentActions, RunningRound
from rallypoint.agent.progress import Phase, Progress
from rallypoint.config import AgentConfig
from rallypoint.coordinator.client.session import raise_in_loop
from rallypoint.core import event_kinds as kinds
from rallypoint.core import hang
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.hang import Behind, WorkerProgress
from rallypoint.core.model import Assignment
from rallypoint.core.text import STACKS, named
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.files import safe_open
from rallypoint.process.logs.log_dir import is_null_device, make_stacks_dir, path_text

DUMP_S = 2.0
"""How long workers may take to write their stacks, in seconds."""
DETAIL_CHARACTERS = 16 * 1024
"""The longest part of a worker's stacks that is sent to the coordinator: the end, with the main
thread."""


class HangWatch:
    """The watch of `--hang-timeout` over one round's workers; `close` it when they have gone."""

    def __init__(
        self, config: AgentConfig, actions: AgentActions, round_: RunningRound, files: StacksFiles
    ) -> None:
        self._rules, self._role = config.rendezvous, config.workers.role
        self._timeout_s = self._rules.hang_timeout_s
        self._began_at = time.monotonic()
        self._actions, self._round, self._files = actions, round_, files
        self._timer: asyncio.TimerHandle | None = None
        self._collecting: asyncio.Task[None] | None = None
        self._unseen: asyncio.TimerHandle | None = None
        if self._timeout_s:
            round_.workers.shm.watch(self._changed)
            if self._rules.hang_phases:
                self._arm()
            is_silent = hang.own_limit_s(self._rules, hang.START) is None  # Else that is a hang.
            if is_silent and not config.output.progress_pattern:
                loop = asyncio.get_running_loop()
                self._unseen = loop.call_later(self._timeout_s, self._say_if_unseen)

    def close(self) -> None:
        """Stop watching. May be called again."""
        for cancellable in (self._timer, self._collecting, self._unseen):
            if cancellable is not None:
                cancellable.cancel()

    def collect(self, message: m.CollectStacks) -> None:
        """Have the workers' stacks and progress collected, and reported to the coordinator.

        Returns at once. The stacks are written to a file of this node; the coordinator gets those
        of the silent worker that is furthest behind, and none if no worker is silent. Does nothing
        while an earlier collection runs.
        """
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.get_running_loop().create_task(self._collect(message))
            self._collecting.add_done_callback(raise_in_loop)

    def _all_progress(self) -> list[WorkerProgress]:
        """Return the progress of the running workers that are watched for a hang.

        Empty if it can't be read.
        """
        shm = self._round.workers.shm
        try:
            reported = shm.progress_and_phases()
        except Exception as error:
            shm.faults.note("the workers' progress can't be read", error)
            return []
        in_start = all(progress is None for progress, _ in reported)
        found = (
            hang.watched(self._told(rank, progress, phase), self._rules, in_start=in_start)
            for rank, (progress, phase) in enumerate(reported)
            if rank not in self._round.exits
        )
        return [one for one in found if one is not None]

    def _told(self, rank: int, progress: Progress | None, phase: Phase) -> hang.Told:
        how = (phase.name, phase.age_s)
        if progress is None:
            return hang.Told(rank, None, time.monotonic() - self._began_at, True, *how)
        return hang.Told(rank, progress.step, progress.age_s, progress.is_timed, *how)

    def _changed(self) -> None:
        """Begin to look for hangs at intervals, as a worker may have made its first progress."""
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        delay_s = hang.next_look_s(self._all_progress(), self._rules)
        loop = asyncio.get_running_loop()
        self._timer = None if delay_s is None else loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._arm()
        if found := hang.suspects(self._all_progress()):
            in_start = all(worker.phase == hang.START for worker in found)
            self._actions.report(m.HangSuspected(self._round.stamp, in_start))

    def _say_if_unseen(self) -> None:
        """Tell the user, on rank 0's node, if no hang can be seen as its workers report no steps.

        Other nodes do not tell it, because in many jobs only rank 0 reports steps.
        """
        place, exits = self._round.assignment, self._round.exits
        told = any(worker.has_step for worker in self._all_progress())
        if not place.group_rank and not exits and not told:
            self._files.say_unseen(self._timeout_s, place.group_world_size)

    async def _collect(self, message: m.CollectStacks) -> None:
        shm = self._round.workers.shm
        behind: Behind | None = None
        workers = self._all_progress()
        if self._round.stamp == message.stamp:
            try:
                stacks = await shm.dump_stacks(DUMP_S)
            except Exception as error:
                shm.faults.note("the workers' stacks can't be taken", error)
                stacks = {}
            path = self._files.keep(self._round.assignment, stacks, workers)
            worst = hang.most_behind(workers)
            if worst is not None:
                failure = self._failure(worst, stacks, path)
                behind = Behind(failure, worst.step, worst.silent_s, worst.phase)
        furthest = max((worker.step for worker in workers), default=-1)
        known = sum(worker.has_step for worker in workers)
        waited_for = hang.is_waited_for(workers, self._rules)
        how = (behind, furthest, known, waited_for)
        told = m.StacksCollected(message.stamp, message.number, *how)
        self._actions.report(told)

    def _failure(self, worker: WorkerProgress, stacks: Mapping[int, str], path: str) -> WorkerExit:
        rank = worker.local_rank
        return WorkerExit(
            local_rank=rank,
            rank=self._round.assignment.base_rank + rank,
            role=self._role,
            pid=self._round.workers.shm.pids[rank],
            code=None,
            signal=None,
            wall_time=time.time(),
            detail=f"{STACKS}\n{stacks.get(rank, '')[-DETAIL_CHARACTERS:]}",
            log_file=path,
        )


class StacksFiles:
    """The files of an agent for the stacks of its workers: one for each round."""

    def __init__(self, config: AgentConfig, say: Callable[[Record], None]) -> None:
        self._output, self._run_id = config.output, config.rendezvous.run_id
        self._say = say
        self._folder = ""
        self._has_said_unseen = False

    def say_unseen(self, timeout_s: float, nodes: int) -> None:
        """Tell the user once that no hang can be seen yet, as no worker has reported a step."""
        if not self._has_said_unseen:
            who = f"no worker{' of this node' if nodes > 1 else ''} has reported a step"
            can = f"call rallypoint.worker.progress(step), or give {named.progress_pattern}"
            self._say(
                kinds.NOTICE(
                    f"{named.hang_timeout} {timeout_s:g} can't see a hang yet: {who}; {can}"
                )
            )
        self._has_said_unseen = True

    def keep(
        self, assignment: Assignment, stacks: Mapping[int, str], workers: list[WorkerProgress]
    ) -> str:
        """Write the workers' stacks to the file of their round, tell the user, and return its path.

        Empty if there are to be no files, or the file can't be written, which is not an error.
        """
        output = self._output
        if output.log_dir is not None and is_null_device(output.log_dir):
            return ""
        known = {worker.local_rank: worker for worker in workers}
        first = assignment.base_rank
        ranks = f"ranks{first}-{first + max(stacks)}" if len(stacks) > 1 else f"rank{first}"
        name = f"round{assignment.round}_{ranks}.txt"
        try:
            if not self._folder:
                self._folder = make_stacks_dir(output.log_dir, self._run_id, output.temp_dir)
            path = os.path.join(self._folder, name)
            fd = safe_open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                for rank, text in stacks.items():
                    file.write(f"{_heading(assignment.base_rank + rank, known.get(rank))}\n")
                    file.write(f"{text.rstrip()}\n\n")
        except OSError as error:
            place = path_text(self._folder or output.log_dir or output.temp_dir)
            self._say(kinds.STACKS(f"the stacks can't be written to {place}: {error.strerror}"))
            return ""
        path = path_text(path)
        self._say(kinds.STACKS(f"the stacks of the workers of this node are in {path}"))
        return path


def _heading(rank: int, worker: WorkerProgress | None) -> str:
    if worker is None:
        return f"rank {rank}, which has reported no progress or has exited:"
    where = f"at step {worker.step}" if worker.has_step else "before its first step"
    where += f" in its phase {worker.phase}" if worker.phase not in ("", hang.START) else ""
    return f"rank {rank}, {where}, silent for {worker.silent_s:.1f} s:"
