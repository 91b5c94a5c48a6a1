"""A job machine whose history is kept, as its host keeps it."""

from __future__ import annotations

from msgspec.structs import replace
from tests.harness.job_machine import RULES, Host

from rallypoint.core import job
from rallypoint.core import messages as m
from rallypoint.core.job_state import JobEffect, JobEvent
from rallypoint.core.messages import FromNode
from rallypoint.core.model import NodeRef, SharedSettings, Stamp
from rallypoint.core.round_state import RoundPhase
from rallypoint.core.watch import goodput
from rallypoint.core.watch.goodput import Spending
from rallypoint.core.watch.history import JobHistory
from rallypoint.core.watch.node_progress import NodeProgress


class WatchedJob(Host):
    """`at` is the time of whatever is said without one."""

    def __init__(self, settings: SharedSettings = RULES) -> None:
        super().__init__(settings)
        self.history = JobHistory(0.0, lambda at: at)
        self._spawned_at: dict[str, float] = {}

    def step(self, event: JobEvent, at: float | None = None) -> list[JobEffect]:
        effects = super().step(event, at)
        self.history.noted(self.job, self.at)
        return effects

    @property
    def stamp(self) -> Stamp:
        """Of the newest round."""
        active = self.job.round.phase is RoundPhase.ACTIVE
        return job.stamp(self.job, None if active else max(self.job.round.round - 1, 0))

    def start(self, *refs: NodeRef, at: float | None = None) -> None:
        """These reach the store of rank 0."""
        for ref in refs:
            self.step(FromNode(ref, m.Enrolled(self.stamp)), at)

    def spawn(self, *refs: NodeRef, at: float, told_at: float | None = None) -> None:
        """The workers of these nodes run since `at`."""
        self.at = at if told_at is None else told_at
        for ref in refs:
            self._spawned_at[ref.node_id] = at
            self.told(ref)

    def told(
        self,
        ref: NodeRef,
        step: int = -1,
        *,
        first_s: float | None = None,
        quiet_s: float | None = None,
        at: float | None = None,
    ) -> None:
        """A heartbeat of this node has come. `first_s`: when its first step was done."""
        self.at = self.at if at is None else at
        spawned_at = self._spawned_at.get(ref.node_id)
        progress = NodeProgress(self.stamp)
        if spawned_at is not None:
            progress = replace(progress, running_s=self.at - spawned_at)
        if step >= 0:
            first = None if first_s is None or spawned_at is None else first_s - spawned_at
            progress = replace(
                progress, first_progress_s=first, furthest=step, step=step, quiet_s=quiet_s or 0.0
            )
        self.history.progressed(self.job, ref.node_id, progress, self.at)

    def stop(self, *refs: NodeRef, at: float) -> None:
        """Their workers have ended, and they join again."""
        self.at = at
        for ref in refs:
            self._spawned_at.pop(ref.node_id, None)
        self.join(*refs)

    def spent(self, at: float | None = None) -> dict[tuple[Spending, str], float]:
        """Up to now, in whole milliseconds."""
        sums = goodput.spent(self.history.account, self.at if at is None else at)
        return {key: round(seconds, 3) for key, seconds in sums.items() if round(seconds, 3)}
