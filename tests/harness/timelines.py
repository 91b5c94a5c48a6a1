"""A node's timeline, as its workers' machine makes it."""

from __future__ import annotations

from tests.harness.node_machine import Node, stamp

from rallypoint.core import messages as m
from rallypoint.core.model import Assignment
from rallypoint.core.node import machine, timeline
from rallypoint.core.node.events import EnrolmentDone, NodeEvent
from rallypoint.core.node.timeline import RestartedRound, Timeline


class Told:
    """A node's real machine, whose steps a timeline is told with their times."""

    def __init__(self) -> None:
        self.state = Node().state
        self.line = Timeline()

    def step(self, at: float, *events: NodeEvent) -> None:
        for event in events:
            effects = machine.step(self.state, event)
            self.ended = timeline.step(self.line, event, effects, at)

    def run(self, round_: int, at: float, count: int = 0, why: str = "w") -> None:
        """A round whose places are known at `at`, and whose workers run 3 s later."""
        place = Assignment(round_, 0, 2, 0, 4, 0, 4, "a", 1, count, why, True)
        self.step(at, m.Assigned(stamp(round_), place))
        self.step(at + 1, EnrolmentDone(stamp(round_)))
        self.step(at + 2, m.StartNow(stamp(round_)))
        timeline.spawned(self.line, 0.5, at + 3)

    @property
    def phases(self) -> list[dict[str, float]]:
        return [life.phases for life in self.line.rounds]

    @property
    def restarts(self) -> list[RestartedRound]:
        return timeline.restarts(self.line)
