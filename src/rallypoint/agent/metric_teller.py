"""What an agent measures, under torch's names, for a handler that a program has configured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rallypoint.agent.chronicle import Listener, WorkerEnd
from rallypoint.core.model import Verdict
from rallypoint.core.timeline import Phase, RoundLife
from rallypoint.observe.metrics import GROUP, MetricData

METHODS = {
    "rendezvous": "SimpleElasticAgent._rendezvous",
    "spawn": "LocalElasticAgent._start_workers",
    "stop": "LocalElasticAgent._stop_workers",
}
"""What does in torch's agent what happens in a phase. `_assign_worker_ranks` is none here,
since ranks come with the rendezvous, and `_monitor_workers` is not called: nothing polls."""


class MetricTeller(Listener):
    """A state is told when it changes, not at every look. `put` may not block."""

    def __init__(
        self, role: str, workers: int, max_restarts: int, put: Callable[[MetricData], None]
    ) -> None:
        self._role, self._max_restarts, self._put = role, max_restarts, put
        self._count, self._succeeded = workers, 0
        self._remaining = max_restarts
        self._began_at = time.monotonic()
        self._stop_s: float | None = None
        """What it took to stop the round before."""

    def round_began(self, life: RoundLife, before: RoundLife | None, joined_s: float) -> None:
        self._remaining = max(self._max_restarts - life.assignment.restart_count, 0)
        self._succeeded = 0
        self._worker_metric("remaining_restarts", self._remaining)

    def phase_ended(self, life: RoundLife, phase: Phase) -> None:
        self._tell(f"phase.{phase.name}.duration.ms", int(phase.took_s * 1000))
        if phase.name in METHODS:
            self._method(METHODS[phase.name], phase.took_s)
        if phase.name == "spawn":
            self._workers_are_up(life)
        if phase.name == "stop":
            self._stop_s = phase.took_s
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
        self._method("SimpleElasticAgent.run", time.monotonic() - self._began_at)

    def _workers_are_up(self, life: RoundLife) -> None:
        """What torch calls to initialize the workers, or to restart them, is several phases."""
        took_s = life.phases.get("rendezvous", 0.0) + life.phases["spawn"]
        self._method("SimpleElasticAgent._initialize_workers", took_s)
        if self._stop_s is not None:
            self._method("SimpleElasticAgent._restart_workers", self._stop_s + took_s)

    def _method(self, name: str, took_s: float) -> None:
        self._tell(f"{name}.success", 1)
        self._tell(f"{name}.duration.ms", int(took_s * 1000))

    def _worker_metric(self, name: str, value: int) -> None:
        self._tell(f"workers.{self._role}.{name}", value)

    def _tell(self, name: str, value: int) -> None:
        self._put(MetricData(time.time(), GROUP, name, value))
