"""The metrics of a stand-alone coordinator (`rallypoint serve`), for Prometheus."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rallypoint import __version__
from rallypoint.coordinator.server import Coordinator
from rallypoint.core.event_kinds import Record
from rallypoint.core.round_state import RoundPhase, RoundState
from rallypoint.observe.goodput_metrics import goodput_families
from rallypoint.observe.prometheus import Family, Histogram, Kind, Sample, prometheus_text
from rallypoint.register.record import Caller
from rallypoint.wire.versions import SPOKEN

if TYPE_CHECKING:  # Jobs need not be kept.
    from rallypoint.coordinator.leading.leaderships import ManyLeaderships

T = TypeVar("T")

LAG = "The longest delay of the event loop in the last 15 s"
CALL_BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class CoordinatorMetrics:
    """The metrics of a coordinator.

    For the thread of the loop.

    `record` gets every event; `text` returns the metrics.
    """

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._events = Counter[str]()
        self._took: dict[str, Histogram] = {}
        self._failures = Counter[str]()

    def record(self, record: Record) -> None:
        """Count an event by its name."""
        self._events[record.name] += 1

    def measured(self, calls: Caller) -> Caller:
        """Return a `Caller` that measures the durations and failures of calls to registers.

        It passes them to `calls`. A call is measured from the request to its answer, including the
        wait for earlier calls.
        """
        return _Measured(calls, self._asked)

    def _asked(self, name: str, future: asyncio.Future[Any]) -> None:
        began_at, took = time.monotonic(), self._took.setdefault(name, Histogram(CALL_BOUNDS_S))
        self._failures[name] += 0

        def ended(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                took.observe(time.monotonic() - began_at)
                self._failures[name] += future.exception() is not None

        future.add_done_callback(ended)

    def text(self, coordinator: Coordinator, led: ManyLeaderships | None, loop_lag_s: float) -> str:
        """Return all present metrics in the text format that Prometheus reads.

        `led` is None if jobs have no registers. `loop_lag_s`: the event loop's longest delay in the
        last 15 s, in seconds.
        """
        families = (
            *self._hosted(coordinator),
            *([] if led is None else self._led(led)),
            *_connections(coordinator),
            _gauge("loop_lag_seconds", LAG, loop_lag_s),
            *_process(),
        )
        return prometheus_text(families)

    def _hosted(self, coordinator: Coordinator) -> Iterator[Family]:
        labels = (("version", __version__), ("protocol", f"{SPOKEN.oldest}-{SPOKEN.newest}"))
        yield _family("info", "gauge", "This coordinator, as labels; always 1", [Sample(1, labels)])
        age_s = time.monotonic() - self._began_at
        yield _gauge("uptime_seconds", "Seconds since this coordinator started", age_s)
        jobs = coordinator.jobs.all
        lives = [job for job in jobs if job.verdict is None]
        states = (("running", len(lives)), ("ended", len(jobs) - len(lives)))
        yield _family(
            "jobs", "gauge", "Jobs that it hosts", [Sample(n, (("state", s),)) for s, n in states]
        )
        yield _gauge("sessions", "Sessions of agents", sum(len(job.sessions) for job in jobs))
        yield _family(
            "job_nodes",
            "gauge",
            "Nodes in the active round of a job; 0 between rounds",
            [Sample(_nodes(job.round), (("job", job.settings.run_id),)) for job in lives],
        )
        yield _family(
            "job_round",
            "gauge",
            "The active round of a job, or the one that is to be formed",
            [Sample(job.round.round, (("job", job.settings.run_id),)) for job in lives],
        )
        views = [((("job", job.settings.run_id),), job.watch.goodput) for job in lives]
        yield from goodput_families("rallypoint_coordinator_", views)
        yield _family(
            "events_total",
            "counter",
            "Events of jobs and connections, each of which is a line of the log",
            [Sample(n, (("event", name),)) for name, n in sorted(self._events.items())],
        )

    def _led(self, led: ManyLeaderships) -> Iterator[Family]:
        yield _gauge("leads", "Jobs that it leads by their records", led.count)
        yield _gauge("candidacies", "Jobs that it stands ready to lead", led.candidacies)
        yield _counter("claims_total", "Jobs of which it has claimed the lead", led.claims)
        took = sorted(self._took.items())
        yield _family(
            "register_seconds",
            "histogram",
            "Durations of register calls, with the wait for earlier calls",
            [sample for name, each in took for sample in each.samples((("call", name),))],
        )
        yield _family(
            "register_failures_total",
            "counter",
            "Calls of registers that have failed",
            [Sample(n, (("call", name),)) for name, n in sorted(self._failures.items())],
        )


class _Measured:
    """A `Caller` that measures the calls to registers that it passes to another `Caller`."""

    def __init__(self, calls: Caller, on_call: Callable[[str, asyncio.Future[Any]], None]) -> None:
        self._calls, self._on_call = calls, on_call

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Submit a call to the underlying caller, and measure it."""
        future = self._calls.submit(call)
        method = call.func if isinstance(call, partial) else call
        name = getattr(method, "__name__", "other")
        self._on_call({"set_state": "write", "get_state": "read"}.get(name, name), future)
        return future

    def close(self) -> None:
        """Close the underlying caller."""
        self._calls.close()


def _connections(coordinator: Coordinator) -> Iterator[Family]:
    traffic = coordinator.traffic
    yield _gauge("connections", "Open connections", traffic.open)
    yield _counter("connections_total", "Connections that were accepted", traffic.accepted)
    volume = coordinator.volume
    yield _counter("received_bytes_total", "Bytes that came on connections", volume.received)
    yield _counter("sent_bytes_total", "Bytes that were sent on connections", volume.sent)
    yield _family(
        "connections_refused_total",
        "counter",
        "Connections that were closed because of what came on them",
        [Sample(n, (("why", why),)) for why, n in sorted(traffic.refused.items())],
    )


def _nodes(state: RoundState) -> int:
    return len(state.world) if state.phase is RoundPhase.ACTIVE else 0


def _process() -> Iterator[Family]:
    """Yield the metrics of this process, named as Prometheus' client libraries name theirs."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    name = "process_cpu_seconds_total"
    yield Family(name, "counter", "CPU time of this process", (Sample(cpu_s),))
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    name = "process_resident_memory_bytes"
    yield Family(name, "gauge", "Resident memory of this process", (Sample(resident),))
    files = len(os.listdir("/proc/self/fd")) - 1
    yield Family("process_open_fds", "gauge", "Open files of this process", (Sample(files),))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield Family("process_max_fds", "gauge", "The limit of open files", (Sample(most),))


def _gauge(name: str, about: str, value: float) -> Family:
    return _family(name, "gauge", about, [Sample(value)])


def _counter(name: str, about: str, value: int) -> Family:
    return _family(name, "counter", about, [Sample(value)])


def _family(name: str, kind: Kind, about: str, samples: Iterable[Sample]) -> Family:
    return Family(f"rallypoint_coordinator_{name}", kind, about, tuple(samples))
