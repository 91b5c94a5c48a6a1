"""What an agent measures, under torch's names, for a handler that a program has configured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rallypoint.agent.chronicle import Listener, WorkerEnd
from rallypoint.core.model import Verdict
from rallypoint.core.timeline import Phase, RoundLife
from rallypoint.observe.metrics import GROUP, MetricData


class MetricTeller(Listener):
    """A state is told when it changes, not at every look. `put` may not block."""

    def __init__(
        self, role: str, workers: int, max_restarts: int, put: Callable[[MetricData], None]
    ) -> None:
        self._role, self._max_restarts, self._put = role, max_restarts, put
        self._count, self._succeeded = workers, 0
        self._remaining = max_restarts

    def round_began(self, life: RoundLife, before: RoundLife | None, joined_s: float) -> None:
        self._remaining = max(self._max_restarts - life.assignment.restart_count, 0)
        self._succeeded = 0
        self._worker_metric("remaining_restarts", self._remaining)

    def phase_ended(self, life: RoundLife, phase: Phase) -> None:
        self._tell(f"phase.{phase.name}.duration.ms", int(phase.took_s * 1000))
        if phase.name == "stop":
            self._worker_metric("stopped", 1)

    def workers_started(self, life: RoundLife, pids: Sequence[int]) -> None:
        self._worker_metric("healthy", 1)

    def workers_failed(self, life: RoundLife) -> None:
        self._worker_metric("failed", 1)

    def worker_ended(self, life: RoundLife, end: WorkerEnd) -> None:
        if end.state == "SUCCEEDED":
            self._succeeded += 1
            if self._succeeded == self._count:
                self._worker_metric("succeeded", 1)

    def finished(self, succeeded: bool, reason: str, verdict: Verdict | None) -> None:
        used = self._max_restarts - self._remaining
        if verdict is not None:
            used = verdict.restarts_used
        left = max(self._max_restarts - used, 0)
        flakiness = 100 - 100 * (left + 1) // (self._max_restarts + 1) if succeeded else 100
        self._worker_metric("flakiness", flakiness)
        self._worker_metric("run_total", 1)
        for how, was in (("success", succeeded), ("failed", not succeeded)):
            self._worker_metric(f"run_{how}_with_retries", int(was and used > 0))
            self._worker_metric(f"run_{how}_no_retries", int(was and used == 0))

    def _worker_metric(self, name: str, value: int) -> None:
        self._tell(f"workers.{self._role}.{name}", value)

    def _tell(self, name: str, value: int) -> None:
        self._put(MetricData(time.time(), GROUP, name, value))
