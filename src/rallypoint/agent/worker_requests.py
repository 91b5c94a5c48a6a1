"""What the job asks of the workers of this node: checkpoints, and the stacks of those that hang."""

from __future__ import annotations

from collections.abc import Callable

from rallypoint.agent.checkpoint import Checkpoints
from rallypoint.agent.hang import HangWatch
from rallypoint.agent.workers import NodeWorkers
from rallypoint.config import AgentConfig
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.group_state import GroupState


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

    def begin(self, state: GroupState, workers: NodeWorkers) -> None:
        """Workers of a round run."""
        stamp, assignment, exits = state.stamp, state.assignment, state.exits
        assert stamp is not None
        assert assignment is not None
        self._checkpoints.begin(stamp, workers.shm, exits, workers.notify)
        self._hangs.begin(stamp, assignment, workers.shm, exits)

    def end(self) -> None:
        """They have gone."""
        self._checkpoints.end()
        self._hangs.end()

    def exited(self) -> None:
        """Workers have ended, which may be what an answer waited for."""
        self._checkpoints.changed()

    def pushed(self, message: m.CheckpointWanted | m.CheckpointNotWanted | m.CollectStacks) -> None:
        """The coordinator wants something of the workers."""
        match message:
            case m.CheckpointWanted():
                self._checkpoints.wanted(message)
            case m.CheckpointNotWanted():
                self._checkpoints.withdrawn(message)
            case m.CollectStacks():
                self._hangs.collect(message)
