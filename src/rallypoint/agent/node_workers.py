"""What runs the workers of one round on this node, as the driver sees it.

`RoundWorkers` starts processes. Whoever has another way to run workers gives the driver another
maker; see `hook_workers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rallypoint.agent.environ import WorkerContext
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.core.group_events import Exit
from rallypoint.core.model import Assignment, Stamp, WorkerFailure
from rallypoint.process.guard import Guard

OnExits = Callable[[Stamp, tuple[Exit, ...]], None]
OnGone = Callable[[Stamp, tuple[int, ...], tuple[WorkerFailure, ...]], None]
"""Called with the pids that would not die and the failures, now with all that is known of them."""


class NodeWorkers(Protocol):
    """A life: `start` once, then `signal` or `kill`; then `on_gone` is called, once; and once more
    for each further `kill` while it names processes that would not die.

    For the thread of the loop. Nothing blocks but `start`, and that for milliseconds.
    """

    @property
    def shm(self) -> WorkerShm:
        """What the workers and this agent tell each other; `WorkerShm.silent` where they don't.
        Closed by then when `on_gone` is called."""

    def start(
        self,
        context: Callable[[int, str], WorkerContext],
        on_started: Callable[[], None],
    ) -> None:
        """Start all; `context(local_rank, error_file)` says what each is told. `on_started` is
        called when they run, which may be later, and not at all if they are ended before.

        Raises UsageError or InfrastructureError; then none runs.
        """

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the workers, by local rank, once they run; 0: not known."""

    def notify(self, number: int) -> None:
        """Send a signal to each worker that lives, and to nothing that it has started."""

    def owns(self, pid: int) -> bool:
        """Nobody else may reap this process."""

    def use_guard(self, guard: Guard) -> None:
        """The guard was replaced."""

    def notice(self) -> None:
        """Call `on_exits` now for what has ended and was not told, if that can be known: after
        the next signal nobody can tell whether a worker failed by itself."""

    def signal(self, number: int) -> None:
        """Ask all to end; then wait until nothing is left."""

    def kill(self) -> None:
        """End all; then wait until nothing is left, but not for ever."""

    def abandon(self) -> None:
        """End all, as the last act of an agent: `on_gone` is not called. May raise OSError."""

    def failures(self, failed: tuple[Exit, ...]) -> tuple[WorkerFailure, ...]:
        """What is known at once of these exits; the rest comes with `on_gone`."""

    def results(self) -> dict[int, object]:
        """What the workers returned, by local rank, once all have succeeded. At most once, when
        the agent has left the job: large results take their time."""


MakeWorkers = Callable[[Stamp, Assignment, OnExits, OnGone], NodeWorkers]
