"""A node's timeline, as its workers' machine makes it."""

from __future__ import annotations

from tests.harness.groups import Node, stamp

from rallypoint.core import group, timeline
from rallypoint.core import messages as m
from rallypoint.core.group_events import EnrolmentDone, GroupEvent
from rallypoint.core.model import Assignment
from rallypoint.core.timeline import Restart, Timeline


class Told:
    """A real group of workers, whose steps a timeline is told with their times."""

    def __init__(self) -> None:
        self.state = Node().state
        self.line = Timeline()

    def step(self, at: float, *events: GroupEvent) -> None:
        for event in events:
            effects = group.step(self.state, event)
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
    def restarts(self) -> list[Restart]:
        return timeline.restarts(self.line)
