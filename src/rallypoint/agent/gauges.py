"""What an agent shows to Prometheus: how its job stands, and what has happened to it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from rallypoint import __version__
from rallypoint.agent.chronicle import Chronicle, Listener, WorkerEnd
from rallypoint.config import AgentConfig
from rallypoint.core import event_kinds as kinds
from rallypoint.core.model import EndKind
from rallypoint.core.timeline import Phase, RoundLife, kind_between
from rallypoint.observe.exposition import Family, Histogram, Kind, Labels, Sample, exposition
from rallypoint.observe.records import AgentEvent

PHASE_BOUNDS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)


class Gauges(Listener):
    """For the loop's thread. `loop_lag_s` and `events_lost` are asked at every look."""

    def __init__(
        self,
        config: AgentConfig,
        chronicle: Chronicle,
        loop_lag_s: Callable[[], float],
        events_lost: Callable[[], int],
    ) -> None:
        self._config, self._chronicle = config, chronicle
        self._loop_lag_s, self._events_lost = loop_lag_s, events_lost
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

    def phase_ended(self, life: RoundLife, phase: Phase) -> None:
        self._phases.setdefault(phase.name, Histogram(PHASE_BOUNDS_S)).observe(phase.took_s)

    def workers_started(self, life: RoundLife, pids: Sequence[int]) -> None:
        self._running = set(range(len(pids)))

    def worker_exited(self, life: RoundLife, local_rank: int) -> None:
        self._running.discard(local_rank)

    def worker_ended(self, life: RoundLife, end: WorkerEnd) -> None:
        self._running.discard(end.local_rank)
        self._failures += end.state == "FAILED"

    def said(self, event: AgentEvent) -> None:
        # One that ended no round, or another one than the first; only the host hears of it.
        self._losses += event.kind is kinds.OTHER_NODE_LOST

    def heartbeat_acknowledged(self) -> None:
        self._heartbeat_at = time.monotonic()

    def text(self) -> str:
        """All of it as it stands now, in Prometheus' text format."""
        return exposition((*self._job(), *self._agent(), *self._workers()))

    def _job(self) -> Iterator[Family]:
        life = self._chronicle.timeline.newest
        lives = life is not None and life.ended_at is None
        place = life.assignment if life is not None else None
        yield _gauge(
            "info",
            "Who tells: always 1",
            1,
            run_id=self._config.rendezvous.run_id,
            node=self._chronicle.node,
            version=__version__,
        )
        yield _gauge(
            "round",
            "The newest round that this node took part in",
            None if life is None else life.number,
        )
        nodes, workers = (place.group_world_size, place.world_size) if place else (0, 0)
        yield _gauge("nodes", "Nodes of the round that runs", nodes if lives else 0)
        yield _gauge("workers", "Workers of the round that runs", workers if lives else 0)
        yield _family(
            "restarts_total",
            "counter",
            "Times that workers were started again, by why",
            (Sample(n, (("reason", kind),)) for kind, n in sorted(self._restarts.items())),
        )
        left = self._config.restart.max_restarts - (place.restart_count if place else 0)
        yield _gauge("restarts_remaining", "Worker failures that may still be healed", max(left, 0))
        yield _counter("node_losses_total", "Nodes that were lost", self._losses)
        yield _family(
            "phase_seconds",
            "histogram",
            "How long the phases of rounds took",
            (
                sample
                for name, histogram in sorted(self._phases.items())
                for sample in histogram.samples((("phase", name),))
            ),
        )

    def _agent(self) -> Iterator[Family]:
        now, beat_at = time.monotonic(), self._heartbeat_at
        yield _gauge("uptime_seconds", "Since this agent started", now - self._chronicle.began_at)
        age_s = None if beat_at is None else now - beat_at
        yield _gauge("heartbeat_age_seconds", "Since the coordinator last answered", age_s)
        yield _gauge(
            "loop_lag_seconds", "The most that this agent was late in 15 s", self._loop_lag_s()
        )
        yield _counter("events_dropped_total", "Events that did not arrive", self._events_lost())

    def _workers(self) -> Iterator[Family]:
        yield _gauge("local_workers", "Workers that run on this node", len(self._running))
        failures = "Workers of this node that have failed"
        yield _counter("worker_failures_total", failures, self._failures)
        shm = self._chronicle.shm
        told = [
            ((("local_rank", str(rank)),), progress)
            for rank, progress in enumerate(shm.progress() if shm is not None else ())
            if progress is not None and rank in self._running
        ]
        steps = [Sample(progress.step, labels) for labels, progress in told]
        ages = [Sample(progress.age_s, labels) for labels, progress in told]
        yield _family("worker_step", "gauge", "The last step that a worker told of", steps)
        about = "Since a worker last told of progress"
        yield _family("worker_progress_age_seconds", "gauge", about, ages)


def _gauge(name: str, about: str, value: float | None, **labels: str) -> Family:
    shown: Labels = tuple(labels.items())
    return _family(name, "gauge", about, () if value is None else (Sample(value, shown),))


def _counter(name: str, about: str, value: int) -> Family:
    return _family(name, "counter", about, (Sample(value),))


def _family(name: str, kind: Kind, about: str, samples: Iterable[Sample]) -> Family:
    return Family(f"rallypoint_{name}", kind, about, tuple(samples))
