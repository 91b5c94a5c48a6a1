"""An agent's metrics: for Prometheus, and under torch's names for a handler of the program."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from rallypoint import __version__
from rallypoint.agent.progress import Progress
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.config import AgentConfig
from rallypoint.core import event_kinds as kinds
from rallypoint.core.model import EndKind, Verdict
from rallypoint.core.node.events import EndState
from rallypoint.core.node.timeline import Milestone, RoundLife, kind_between
from rallypoint.core.watch.goodput_view import GoodputView
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.observe.goodput_metrics import goodput_families
from rallypoint.observe.metrics import GROUP, MetricData, metric_now
from rallypoint.observe.prometheus import Family, Histogram, Kind, Labels, Sample, prometheus_text
from rallypoint.observe.records import AgentEvent, Observer

PHASE_BOUNDS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)


class PrometheusMetrics(Observer):
    """The metrics of an agent for Prometheus.

    For the loop's thread. `events_lost` returns the number of lost events, at every scrape.
    """

    def __init__(
        self,
        config: AgentConfig,
        dispatcher: EventDispatcher,
        events_lost: Callable[[], int],
        goodput: Callable[[], GoodputView | None] = lambda: None,
    ) -> None:
        """Make the metrics.

        `goodput` returns the account of the job's time; None: no job is hosted here, so far.
        """
        self._config, self._dispatcher = config, dispatcher
        self._events_lost, self._goodput = events_lost, goodput
        # A series that is there from the start makes its first increase visible.
        self._restarts: Counter[str] = Counter({kind.value: 0 for kind in EndKind})
        self._losses = self._failures = 0
        self._running: set[int] = set()
        self._phases: dict[str, Histogram] = {}
        self._heartbeat_at: float | None = None

    def round_began(self, life: RoundLife, before: RoundLife | None, joined_s: float) -> None:
        if before is not None:
            kind = kind_between(before, life)
            self._restarts[kind] += 1
            self._losses += kind == "loss"
        self._running.clear()

    def phase_ended(self, life: RoundLife, phase: Milestone) -> None:
        self._phases.setdefault(phase.name, Histogram(PHASE_BOUNDS_S)).observe(phase.took_s)

    def workers_started(self, life: RoundLife, pids: Sequence[int]) -> None:
        self._running = set(range(len(pids)))

    def worker_exited(self, life: RoundLife, local_rank: int) -> None:
        self._running.discard(local_rank)

    def worker_ended(self, life: RoundLife, state: EndState, exit_: WorkerExit) -> None:
        self._running.discard(exit_.local_rank)
        self._failures += state is EndState.FAILED

    def event(self, event: AgentEvent) -> None:
        # A loss that ended no round: only the node that hosts the coordinator gets this event.
        self._losses += event.kind is kinds.OTHER_NODE_LOST

    def heartbeat_acknowledged(self) -> None:
        self._heartbeat_at = time.monotonic()

    def text(self, loop_lag_s: float) -> str:
        """Return all present metrics in Prometheus' text format."""
        return prometheus_text((*self._job(), *self._agent(loop_lag_s), *self._workers()))

    def _job(self) -> Iterator[Family]:
        life = self._dispatcher.timeline.newest
        lives = life is not None and life.ended_at is None
        place = life.assignment if life is not None else None
        yield _gauge(
            "info",
            "The agent that reports, as labels; always 1",
            1,
            run_id=self._config.rendezvous.run_id,
            node=self._dispatcher.node,
            version=__version__,
        )
        yield _gauge(
            "round",
            "The newest round that this node took part in",
            None if life is None else life.number,
        )
        nodes, workers = (place.group_world_size, place.world_size) if place else (0, 0)
        yield _gauge("nodes", "Nodes in the current round", nodes if lives else 0)
        yield _gauge("workers", "Workers in the current round", workers if lives else 0)
        yield _family(
            "restarts_total",
            "counter",
            "Restarts of the workers, by reason",
            (Sample(n, (("reason", kind),)) for kind, n in sorted(self._restarts.items())),
        )
        left = self._config.rendezvous.max_restarts - (place.restart_count if place else 0)
        yield _gauge("restarts_remaining", "Restarts left in the budget", max(left, 0))
        yield _counter("node_losses_total", "Nodes that were lost", self._losses)
        yield _family(
            "phase_seconds",
            "histogram",
            "Durations of the phases of rounds",
            (
                sample
                for name, histogram in sorted(self._phases.items())
                for sample in histogram.samples((("phase", name),))
            ),
        )
        if (goodput := self._goodput()) is not None:
            yield from goodput_families("rallypoint_", [((), goodput)])

    def _agent(self, loop_lag_s: float) -> Iterator[Family]:
        now, beat_at = time.monotonic(), self._heartbeat_at
        yield _gauge(
            "uptime_seconds", "Seconds since this agent started", now - self._dispatcher.began_at
        )
        age_s = None if beat_at is None else now - beat_at
        yield _gauge("heartbeat_age_seconds", "Seconds since the coordinator last answered", age_s)
        yield _gauge(
            "loop_lag_seconds",
            "The longest delay of this agent's event loop in the last 15 s",
            loop_lag_s,
        )
        yield _counter(
            "events_dropped_total", "Events that were not delivered", self._events_lost()
        )

    def _workers(self) -> Iterator[Family]:
        yield _gauge("local_workers", "Workers that run on this node", len(self._running))
        failures = "Workers of this node that have failed"
        yield _counter("worker_failures_total", failures, self._failures)
        shm = self._dispatcher.shm
        reported = [
            ((("local_rank", str(rank)),), progress)
            for rank, progress in enumerate(shm.progress() if shm is not None else ())
            if progress is not None and rank in self._running
        ]
        for name, about, value_of in _PROGRESS:
            told = [(labels, value_of(progress)) for labels, progress in reported]
            samples = [Sample(value, labels) for labels, value in told if value is not None]
            yield _family(f"worker_{name}", "gauge", about, samples)


_PROGRESS: tuple[tuple[str, str, Callable[[Progress], float | None]], ...] = (
    ("step", "The last step that a worker reported", lambda told: told.step),
    (
        "progress_age_seconds",
        "Seconds since a worker last reported progress",
        lambda told: told.age_s,
    ),
    ("steps_wanted", "Number of steps that a worker is to make", lambda told: told.total),
    ("loss", "The last loss that a worker reported", lambda told: told.loss),
    ("tokens", "Tokens that a worker has processed", lambda told: told.tokens),
)


def _gauge(name: str, about: str, value: float | None, **labels: str) -> Family:
    shown: Labels = tuple(labels.items())
    return _family(name, "gauge", about, () if value is None else (Sample(value, shown),))


def _counter(name: str, about: str, value: int) -> Family:
    return _family(name, "counter", about, (Sample(value),))


def _family(name: str, kind: Kind, about: str, samples: Iterable[Sample]) -> Family:
    return Family(f"rallypoint_{name}", kind, about, tuple(samples))


METHODS = {
    "rendezvous": "SimpleElasticAgent._rendezvous",
    "spawn": "LocalElasticAgent._start_workers",
    "stop": "LocalElasticAgent._stop_workers",
}
"""The method of torch's agent whose metrics are emitted at the end of a phase, by phase.
`_assign_worker_ranks` is missing since ranks come with the rendezvous, `_monitor_workers` since
nothing polls."""


class MetricEmitter(Observer):
    """The maker of an agent's metrics: those of torch's agent, and the duration of each phase.

    They are made when a state changes. `put` gets each, and must not block.
    """

    def __init__(
        self, role: str, workers: int, max_restarts: int, put: Callable[[MetricData], None]
    ) -> None:
        self._role, self._max_restarts, self._put = role, max_restarts, put
        self._count, self._succeeded = workers, 0
        self._remaining = max_restarts
        self._began_at = time.monotonic()
        self._stop_s: float | None = None
        """The seconds that it took to stop the previous round's workers; None: there was no
        stop."""

    def round_began(self, life: RoundLife, before: RoundLife | None, joined_s: float) -> None:
        self._remaining = max(self._max_restarts - life.assignment.restart_count, 0)
        self._succeeded = 0
        self._worker_metric("remaining_restarts", self._remaining)

    def phase_ended(self, life: RoundLife, phase: Milestone) -> None:
        self._emit(f"phase.{phase.name}.duration.ms", int(phase.took_s * 1000))
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

    def worker_ended(self, life: RoundLife, state: EndState, exit_: WorkerExit) -> None:
        if state is EndState.SUCCEEDED:
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
        """Emit torch's metric of initializing the workers; after a stop also that of restarting.

        Each is the sum of several phases here.
        """
        took_s = life.phases.get("rendezvous", 0.0) + life.phases["spawn"]
        self._method("SimpleElasticAgent._initialize_workers", took_s)
        if self._stop_s is not None:
            self._method("SimpleElasticAgent._restart_workers", self._stop_s + took_s)

    def _method(self, name: str, took_s: float) -> None:
        self._emit(f"{name}.success", 1)
        self._emit(f"{name}.duration.ms", int(took_s * 1000))

    def _worker_metric(self, name: str, value: int) -> None:
        self._emit(f"workers.{self._role}.{name}", value)

    def _emit(self, name: str, value: int) -> None:
        self._put(metric_now(GROUP, name, value))
