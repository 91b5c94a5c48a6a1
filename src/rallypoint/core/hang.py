"""Workers that make no progress: who is suspected, and who is to blame (`--hang-timeout`). Pure.

One rank that hangs stops all that wait for it, so missing progress alone names nobody. When a
worker has reported none for too long every node is asked how far its workers are and what they do;
then the rank that is behind is blamed: the one of the smallest step, of those the one that has
reported none for longest. Ranks that reported lately are none of those; one that never reports
never hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core.text import brief_seconds
from rallypoint.core.worker_exits import WorkerExit

COLLECT_S = 5.0
"""How long the nodes may take to report what their workers do."""
SILENT_SHARE = 0.5
"""A share of the hang time: a worker that reported more lately did not hang with the others."""
LOOK_AGAIN_SHARE = 0.25


class WorkerProgress(Struct, frozen=True):
    """How far a worker is by its own report, and for how long it has made none. Seconds."""

    local_rank: int
    step: int
    silent_s: float
    is_timed: bool = True
    """Whether this silence may be a hang; else how long a step takes is not known yet."""


class Behind(Struct, frozen=True, array_like=True):
    """The one worker of a node that is behind its others, as its agent sees it."""

    failure: WorkerExit
    """The worker; its `detail` says what it does, and not yet why."""
    step: int
    silent_s: float


class StepsFound(Struct, frozen=True):
    """The steps that one node has answered with."""

    node_id: str
    behind: Behind | None
    furthest: int
    """The largest step of its workers; -1: none."""
    known: int = 0
    """The number of its workers whose steps are known."""


class Inquiry(Struct):
    """Every node of a round is asked what its workers do."""

    number: int
    round: int
    awaited: set[str]
    found: list[StepsFound] = field(default_factory=list)


def is_suspect(workers: Iterable[WorkerProgress], timeout_s: float) -> bool:
    """One of these workers has reported no progress for too long."""
    return any(worker.is_timed and worker.silent_s >= timeout_s for worker in workers)


def next_look_s(workers: Sequence[WorkerProgress], timeout_s: float) -> float | None:
    """After how long a worker may have become a suspect; None: not before one reports progress."""
    longest_s = max((worker.silent_s for worker in workers if worker.is_timed), default=None)
    if longest_s is None:
        return None
    return max(timeout_s - longest_s, LOOK_AGAIN_SHARE * timeout_s if longest_s >= timeout_s else 0)


def most_behind(workers: Iterable[WorkerProgress], timeout_s: float) -> WorkerProgress | None:
    """The one to report: the smallest step of those that reported nothing lately."""
    silent = [worker for worker in workers if worker.silent_s >= SILENT_SHARE * timeout_s]
    return min(silent, key=lambda worker: (worker.step, -worker.silent_s), default=None)


def blamed(found: Sequence[StepsFound], workers: int = 1) -> tuple[str, WorkerExit] | None:
    """The node and the worker of `workers` that hang; None when all have made progress since."""
    silent = [(one.node_id, one.behind) for one in found if one.behind is not None]
    if not silent:
        return None
    node_id, behind = min(silent, key=lambda one: (one[1].step, -one[1].silent_s))
    furthest = max(one.furthest for one in found)
    where = f"at step {behind.step}"
    if furthest > behind.step:
        where += f" while others are at {furthest}"
    if workers > 1 and sum(one.known for one in found) == 1:
        where += ", but no other rank tells its steps: another one may hang, see all stacks"
    text = f"no progress for {brief_seconds(behind.silent_s)} s: {where}"
    return node_id, replace(behind.failure, message=text, reason=text)
