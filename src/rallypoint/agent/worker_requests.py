"""What the job asks of the workers of this node: checkpoints, and the stacks of those that hang."""

from __future__ import annotations

from collections.abc import Callable

from rallypoint.agent.checkpoint import Checkpoints
from rallypoint.agent.hang import HangWatch
from rallypoint.agent.node_workers import NodeWorkers
from rallypoint.config import AgentConfig
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.group_events import Exit
from rallypoint.core.model import Assignment, Stamp


class WorkerRequests:
    """One agent's. `begin` with each round's workers, `end` when they have gone."""

    def __init__(
        self,
        config: AgentConfig,
        report: Callable[[m.Report], None],
        say: Callable[[Record], None],
    ) -> None:
        self._checkpoints = Checkpoints(config, report, say)
        self._hangs = HangWatch(config, report, say)

    def begin(
        self, stamp: Stamp | None, assignment: Assignment | None, workers: NodeWorkers
    ) -> None:
        """Workers of a round run."""
        assert stamp is not None
        assert assignment is not None
        self._checkpoints.begin(stamp, workers.shm, workers.notify)
        self._hangs.begin(stamp, assignment, workers.shm)

    def end(self) -> None:
        """They have gone."""
        self._checkpoints.end()
        self._hangs.end()

    def exited(self, stamp: Stamp, exits: tuple[Exit, ...]) -> None:
        """These workers say nothing more."""
        self._checkpoints.exited(stamp, exits)
        self._hangs.exited(stamp, exits)

    def pushed(self, message: m.CheckpointWanted | m.CheckpointNotWanted | m.CollectStacks) -> None:
        """The coordinator wants something of the workers."""
        match message:
            case m.CheckpointWanted():
                self._checkpoints.wanted(message)
            case m.CheckpointNotWanted():
                self._checkpoints.withdrawn(message)
            case m.CollectStacks():
                self._hangs.collect(message)
