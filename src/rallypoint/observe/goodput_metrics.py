"""The use of jobs' time as metrics for Prometheus: of a coordinator, or of a hosting node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rallypoint.core.watch.goodput_view import GoodputView
from rallypoint.observe.prometheus import Family, Kind, Labels, Sample


def goodput_families(prefix: str, views: Sequence[tuple[Labels, GoodputView]]) -> Iterator[Family]:
    """Yield the metrics about the use of these jobs' time. Their names begin with `prefix`."""
    yield Family(
        f"{prefix}job_seconds",
        # No counter: a node that was silent takes the time back from what it seemed to do.
        "gauge",
        "Seconds of the job, by what they were spent on and by the cause",
        tuple(
            Sample(part.seconds, (*labels, ("spent", part.spent), ("cause", part.cause)))
            for labels, view in views
            for part in view.parts
        ),
    )
    for name, kind, about, value_of in _NUMBERS:
        told = [(labels, value_of(view)) for labels, view in views]
        samples = tuple(Sample(value, labels) for labels, value in told if value is not None)
        yield Family(f"{prefix}job_{name}", kind, about, samples)


_NUMBERS: tuple[tuple[str, Kind, str, Callable[[GoodputView], float | None]], ...] = (
    (
        "furthest_step",
        "gauge",
        "The largest step that the job has done",
        lambda view: view.furthest_step if view.furthest_step >= 0 else None,
    ),
    (
        "lost_steps",
        "gauge",
        "Steps that were done again, or have to be",
        lambda view: view.lost_steps,
    ),
    ("faults_total", "counter", "Rounds that a fault has ended", lambda view: view.faults),
    (
        "spare_node_seconds_total",
        "counter",
        "Seconds that nodes stood by, of all of them together",
        lambda view: view.spare_node_s,
    ),
)
