"""Keeps a program's `WorkerGroup` up to date: its ranks, and the state of its processes."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from rallypoint.agent.environ import WorkerContext
from rallypoint.agent.node_workers import WorkerRound
from rallypoint.agent.workers import RoundWorkers, WorkerSetup
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.elastic.agent.embedded.worker_spec import WorkerGroup, WorkerState


class GroupWorkers(RoundWorkers):
    """The worker processes of one round; a `WorkerGroup` is told their pids and their state."""

    def __init__(self, group: WorkerGroup, setup: WorkerSetup, round_: WorkerRound) -> None:
        def started() -> None:
            for worker, pid in zip(group.workers, self.pids, strict=True):
                worker.id = pid
            group.state = WorkerState.HEALTHY
            round_.on_started()

        super().__init__(setup, replace(round_, on_started=started))
        self.group = group

    def start(self, context: Callable[[int, str], WorkerContext]) -> None:
        assign_ranks(self.group, context)
        super().start(context)

    def clear(self) -> None:
        if WorkerState.is_running(self.group.state):
            self.group.state = WorkerState.STOPPED
        super().clear()

    def _exited(self, exit_: WorkerExit) -> None:
        super()._exited(exit_)
        if self.group.state is WorkerState.HEALTHY:
            if not exit_.succeeded:
                self.group.state = WorkerState.FAILED
            elif self._workers.exits.all_succeeded(len(self.pids)):
                self.group.state = WorkerState.SUCCEEDED


def assign_ranks(group: WorkerGroup, context: Callable[[int, str], WorkerContext]) -> None:
    """Write the ranks and the store's address of a round into the group, before its workers start.

    The workers' ids are cleared, and the group's state becomes INIT.
    """
    for worker in group.workers:
        place = group.contexts[worker.local_rank] = context(worker.local_rank, "")
        world = place.assignment
        worker.id = None
        worker.global_rank, worker.role_rank = place.rank, place.role_rank
        worker.world_size, worker.role_world_size = world.world_size, world.role_world_size
    group.group_rank, group.group_world_size = world.group_rank, world.group_world_size
    group.master_addr, group.master_port = world.master_addr, world.master_port
    group.state = WorkerState.INIT
