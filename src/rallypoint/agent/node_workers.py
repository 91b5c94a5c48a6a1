"""The workers of one round as the rest of an agent sees them, whatever runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from msgspec import Struct

from rallypoint.agent.environ import WorkerContext
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.core.messages import Report
from rallypoint.core.model import Assignment, Stamp
from rallypoint.core.node.events import NodeEvent
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.core.worker_signals import Received
from rallypoint.errors import RallypointError
from rallypoint.process.guard import Guard


class AgentActions(NamedTuple):
    """The actions that the parts of an agent have it do."""

    step: Callable[[NodeEvent], None]
    report: Callable[[Report], None]
    """To the coordinator."""
    say: Callable[..., None]
    """Gets a record, and fields."""


class WorkerRound(Struct, frozen=True):
    """A round whose workers are to run, and what is called when something happens to them."""

    stamp: Stamp
    assignment: Assignment
    on_started: Callable[[], None]
    on_not_started: Callable[[RallypointError], None]
    """A callback for workers that could not be started later: then none runs, and no other callback
    follows."""
    on_exits: Callable[[tuple[WorkerExit, ...]], None]
    on_gone: Callable[[tuple[int, ...], tuple[WorkerExit, ...]], None]
    """Gets the pids that did not die, and the failures with all that is known of them by now."""
    on_details: Callable[[tuple[WorkerExit, ...]], None] | None = None
    """Gets what is known of the failures while other workers still run, if somebody wants it."""


class NodeWorkers(Protocol):
    """The workers of a node, whatever runs them.

    `start` once, then `signal` or `kill`; then `on_gone` is called, once, and once more for each
    further `kill` while it names processes that did not die.

    For the thread of the loop. Nothing blocks but `start`, and that for milliseconds.
    """

    @property
    def shm(self) -> WorkerShm:
        """The memory that the workers and this agent share; `WorkerShm.silent` where there is none.

        Closed by then when `on_gone` is called.
        """

    def start(self, context: Callable[[int, str], WorkerContext]) -> None:
        """Start all; `context(local_rank, error_file)` says what each gets.

        They may be started later, and not at all if they are ended before.

        Raises UsageError or InfrastructureError; then none runs.
        """

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of the workers, by local rank, once they run; 0: not known."""

    def notify(self, number: int) -> None:
        """Send a signal to each worker that lives, and to nothing that it has started."""

    def owns(self, pid: int) -> bool:
        """Return whether only this object may reap the process."""

    def use_guard(self, guard: Guard) -> None:
        """Use the guard that replaces the former one."""

    def notice(self) -> None:
        """Call `on_exits` now for what has ended and was not reported, if that can be known.

        After the next signal it is unknown whether a worker failed by itself.
        """

    def signal(self, number: int, received: Received = Received.NOBODY) -> None:
        """Ask all to end; then wait until nothing is left.

        `received`: the signal has reached these processes already, so they do not get it again.
        """

    def kill(self) -> None:
        """End all; then wait until nothing is left, but not for ever."""

    async def abandon(self) -> None:
        """End all, as the last act of an agent: nothing is called for it. May raise OSError."""

    def failures(self, failed: tuple[WorkerExit, ...]) -> tuple[WorkerExit, ...]:
        """Return the part of these exits that is known at once; the rest comes with `on_gone`."""

    def results(self) -> dict[int, object]:
        """Return the results of the workers, by local rank, once all have succeeded.

        At most once, when the agent has left the job: large results take their time.
        """


MakeWorkers = Callable[[WorkerRound], NodeWorkers]


class RunningRound(NamedTuple):
    """The workers of a round that run."""

    stamp: Stamp
    assignment: Assignment
    workers: NodeWorkers
    exits: Mapping[int, WorkerExit]
    """The exits of workers that have ended, by local rank; changes meanwhile."""
