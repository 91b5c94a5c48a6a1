"""The workers of this node from round to round: starts them, and reports their events.

`core/node/machine.py` makes the decisions.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from rallypoint.agent.environ import WorkerContext
from rallypoint.agent.node_workers import (
    AgentActions,
    MakeWorkers,
    NodeWorkers,
    RunningRound,
    WorkerRound,
)
from rallypoint.agent.progress import furthest
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.agent.worker_requests import WorkerRequests
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.config import AgentConfig
from rallypoint.core import event_kinds as kinds
from rallypoint.core import messages as m
from rallypoint.core.model import Assignment, Stamp
from rallypoint.core.node import events as e
from rallypoint.core.node import machine
from rallypoint.core.text import count
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import RallypointError
from rallypoint.process.guard import Guard


class WorkerRounds:
    """The workers of one agent from round to round.

    For the thread of the loop.
    """

    def __init__(
        self,
        config: AgentConfig,
        state: machine.WorkersState,
        make_workers: MakeWorkers,
        dispatcher: EventDispatcher,
        actions: AgentActions,
    ) -> None:
        """Make the object; no workers run yet. `state` is the node's state, only read here."""
        self._config, self._state, self._make_workers = config, state, make_workers
        self._dispatcher, self._actions = dispatcher, actions
        self._requests = WorkerRequests(config, actions)
        self.current: NodeWorkers | None = None
        """The workers of the newest round, until the last of their processes has gone."""
        self.newest: RunningRound | None = None
        """The running workers, or those that ran last."""
        self._succeeded: NodeWorkers | None = None
        self.failures: dict[int, WorkerExit] = {}
        """The newest round's failures on this node, by global rank."""
        self.error_files: dict[int, str] = {}
        """The error files of all workers of the newest round on this node, by global rank."""

    def owns(self, pid: int) -> bool:
        """Return whether the process is a present worker's, so that no other code may reap it."""
        return self.current is not None and self.current.owns(pid)

    def use_guard(self, guard: Guard) -> None:
        """Use this guard, which replaces a killed one, to kill workers if the agent dies."""
        if self.current is not None:
            self.current.use_guard(guard)

    async def abandon(self) -> None:
        """Kill all workers that still run, at the end of the agent."""
        if self.current is not None:
            with suppress(OSError):  # The guard does it, as soon as this agent has gone.
                await self.current.abandon()

    def return_values(self) -> dict[int, object]:
        """Return the results by global rank, if the workers of this node have succeeded.

        Else the result is empty. To be called once.
        """
        workers, assignment = self._succeeded, self._state.assignment
        if workers is None or assignment is None:
            return {}
        return {assignment.base_rank + rank: value for rank, value in workers.results().items()}

    @property
    def is_importing(self) -> bool:
        """Whether workers wait for modules that are imported once for all of them."""
        return bool(self._config.workers.preload and self.current and not self.current.pids)

    def spawn(self, stamp: Stamp, assignment: Assignment, node_id: str) -> None:
        """Start the workers of this round; if that fails, the node's state machine is told."""
        self._succeeded, self.failures, self.error_files = None, {}, {}

        def context(local_rank: int, error_file: str) -> WorkerContext:
            self.error_files[assignment.base_rank + local_rank] = error_file
            return WorkerContext(local_rank, error_file, stamp, assignment, self._config, node_id)

        round_ = WorkerRound(
            stamp,
            assignment,
            partial(self._started, asyncio.get_running_loop().time()),
            partial(self._not_started, stamp),
            partial(self._exited, stamp),
            partial(self._gone, stamp),
            partial(self._told_more, stamp),
        )
        try:
            self.current = self._make_workers(round_)
            self.current.start(context)
        except RallypointError as error:
            self._not_started(stamp, error)

    def look(self) -> None:
        """Report each worker that has ended by now, to the node's state machine."""
        if self.current is not None:
            self.current.notice()

    def pushed(self, message: m.WorkerRequest) -> None:
        """Pass an order of the coordinator about the workers on to `WorkerRequests`."""
        self._requests.pushed(message)

    def report_success(self, report: m.Succeeded) -> None:
        """Report to the coordinator that all workers of this node have succeeded."""
        self._succeeded = self.current
        self._actions.say(kinds.SUCCEEDED())
        self._actions.report(report)

    def report_failures(self, report: m.Failed) -> None:
        """Report these failed workers to the coordinator, with the details known at once."""
        step = -1
        if self.current is None:
            failures = tuple(map(self._unstarted, report.failures))
        else:
            failures, step = self.current.failures(report.failures), _furthest(self.current.shm)
        self._note(report.stamp, failures)
        self._actions.report(replace(report, failures=failures, furthest=step))

    def _unstarted(self, failure: WorkerExit) -> WorkerExit:
        """Return the failure of an unstarted worker, completed by its rank, role and time."""
        assert self._state.assignment is not None
        rank = self._state.assignment.base_rank + failure.local_rank
        return replace(failure, rank=rank, role=self._config.workers.role, wall_time=time.time())

    def _note(self, stamp: Stamp, failures: tuple[WorkerExit, ...]) -> None:
        self.failures |= {failure.rank: failure for failure in failures}
        self._dispatcher.failed(stamp.round, failures)

    def _started(self, began_at: float) -> None:
        workers, state = self.current, self._state
        assert workers is not None
        assert state.stamp is not None
        assert state.assignment is not None
        # Before anything else: a signal that arrives from now on has reached these workers.
        self._actions.step(e.WorkersStarted(state.stamp))
        took_s = round(asyncio.get_running_loop().time() - began_at, 6)
        text = count(self._config.workers.count, "worker")
        self._actions.say(kinds.WORKERS_STARTED(workers=text), (("took_s", took_s),))
        self._dispatcher.spawned(workers.pids, took_s, workers.shm)
        self.newest = RunningRound(state.stamp, state.assignment, workers, state.exits)
        self._requests.begin(self.newest)

    def _not_started(self, stamp: Stamp, error: RallypointError) -> None:
        self.current = None
        self._actions.step(e.SpawnFailed(stamp, error))

    def _exited(self, stamp: Stamp, exits: tuple[WorkerExit, ...]) -> None:
        is_stopping = self._state.phase is machine.NodePhase.STOPPING
        if not is_stopping and all(exit_.code == 0 for exit_ in exits):
            # Before the job hears of a success: a worker that has saved a checkpoint because it
            # was asked to may have ended because of that.
            self._requests.exited(exits)
        self._actions.step(e.WorkersExited(stamp, exits))
        if self._state.phase is not machine.NodePhase.STOPPING:
            self._requests.exited(exits)

    def _told_more(self, stamp: Stamp, failures: tuple[WorkerExit, ...]) -> None:
        self._actions.report(m.Detailed(stamp, failures))

    def _gone(self, stamp: Stamp, stuck: tuple[int, ...], failures: tuple[WorkerExit, ...]) -> None:
        if not stuck:
            self.current = None
        self._requests.end()
        if self._state.desired is machine.Desired.JOIN and not stuck:
            self._actions.say(kinds.WORKERS_STOPPED(round=stamp.round))
        if failures:
            self._note(stamp, failures)
            self._actions.report(m.Detailed(stamp, failures))
        self._actions.step(e.WorkersGone(stamp, stuck))


def _furthest(shm: WorkerShm) -> int:
    """Return the largest step of these workers; -1: none is known."""
    try:
        found = furthest(shm.progress())
    except Exception as error:
        shm.faults.note("the workers' progress can't be read", error)
        found = None
    return -1 if found is None else found.step
