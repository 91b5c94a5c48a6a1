"""Processes whose places and states are also written down in somebody's `WorkerGroup`."""

from __future__ import annotations

from collections.abc import Callable

from rallypoint.agent.environ import WorkerPlacement
from rallypoint.agent.hook_workers import seat
from rallypoint.agent.round_workers import RoundWorkers
from rallypoint.agent.worker_group import WorkerGroup, WorkerState
from rallypoint.process.exits import WorkerExit


class SeatedWorkers(RoundWorkers):
    """`RoundWorkers` of `group`, which is to be set before `start`. A worker's id is its pid."""

    group: WorkerGroup

    def start(
        self,
        placement: Callable[[int, str], WorkerPlacement],
        on_started: Callable[[], None],
    ) -> None:
        def note() -> None:
            for worker, pid in zip(self.group.workers, self.pids, strict=True):
                worker.id = pid
            self.group.state = WorkerState.HEALTHY
            on_started()

        seat(self.group, placement)
        super().start(placement, note)

    def clear(self) -> None:
        if WorkerState.is_running(self.group.state):
            self.group.state = WorkerState.STOPPED
        super().clear()

    def _exited(self, local_rank: int, outcome: WorkerExit) -> None:
        super()._exited(local_rank, outcome)
        if self.group.state is WorkerState.HEALTHY:
            if not outcome.succeeded:
                self.group.state = WorkerState.FAILED
            elif len(self._outcomes) == len(self.pids):
                self.group.state = WorkerState.SUCCEEDED
