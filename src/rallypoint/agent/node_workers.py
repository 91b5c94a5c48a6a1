"""The interface of one round's workers for the rest of an agent."""

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
    """The functions of an agent that its parts call."""

    step: Callable[[NodeEvent], None]
    report: Callable[[Report], None]
    """Sends a report to the coordinator."""
    say: Callable[..., None]
    """Reports an event of this node: called with a record, and further fields."""


class WorkerRound(Struct, frozen=True):
    """A round whose workers are to run, and the callbacks about them."""

    stamp: Stamp
    assignment: Assignment
    on_started: Callable[[], None]
    on_not_started: Callable[[RallypointError], None]
    """Called if workers could not be started after `start` had returned; then none runs, and no
    other callback follows."""
    on_exits: Callable[[tuple[WorkerExit, ...]], None]
    on_gone: Callable[[tuple[int, ...], tuple[WorkerExit, ...]], None]
    """Called at the end of the round, with the pids of processes that did not die, and the failures
    with all their details."""
    on_details: Callable[[tuple[WorkerExit, ...]], None] | None = None
    """Called with the details of failures while other workers still run; None: they are not
    wanted."""


class NodeWorkers(Protocol):
    """The workers of one round on a node.

    For the thread of the loop.

    Call `start` once, then `signal` or `kill`; then `on_gone` is called once, and once more for
    each further `kill` while it names processes that did not die. Only `start` blocks, for
    milliseconds, and `results`.
    """

    @property
    def shm(self) -> WorkerShm:
        """The memory that the workers and this agent share; `WorkerShm.silent` where there is none.

        It is closed when `on_gone` is called.
        """

    def start(self, context: Callable[[int, str], WorkerContext]) -> None:
        """Start all workers of the round.

        `context(local_rank, error_file)` returns the place and the settings that a worker gets.
        They may be started later, and not at all if they are ended before.

        Raises UsageError or InfrastructureError; then none runs.
        """

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of the workers, by local rank, once they run; 0: not known."""

    def notify(self, number: int) -> None:
        """Send a signal to each live worker, but not to processes that it has started."""

    def owns(self, pid: int) -> bool:
        """Return whether only this object may reap the process."""

    def use_guard(self, guard: Guard) -> None:
        """Use this guard, which replaces a killed one, to kill workers if the agent dies."""

    def notice(self) -> None:
        """Call `on_exits` now for unreported exits, if they can be known.

        After the next signal it is unknown whether a worker failed by itself.
        """

    def signal(self, number: int, received: Received = Received.NOBODY) -> None:
        """Signal the workers, so that they end; `on_gone` is called when no process is left.

        `received` says which processes the signal has reached already: these do not get it again.
        """

    def kill(self) -> None:
        """Kill the workers and what they started; `on_gone` is called then, or after a limit."""

    async def abandon(self) -> None:
        """Kill the workers as an agent's last act; no callback follows. May raise OSError."""

    def failures(self, failed: tuple[WorkerExit, ...]) -> tuple[WorkerExit, ...]:
        """Return these exits of failed workers, with the details that are known at once.

        The rest comes with `on_gone`.
        """

    def results(self) -> dict[int, object]:
        """Return the results of the workers, by local rank, once all have succeeded.

        Call it once at most, when the agent has left the job: it blocks while it unpickles them.
        """


MakeWorkers = Callable[[WorkerRound], NodeWorkers]


class RunningRound(NamedTuple):
    """A round whose workers were started on this node."""

    stamp: Stamp
    assignment: Assignment
    workers: NodeWorkers
    exits: Mapping[int, WorkerExit]
    """The exits of workers that have ended, by local rank; the mapping changes."""
