"""Workers that make no progress: who is suspected, and who is to blame (`--hang-timeout`). Pure.

One rank that hangs stops all that wait for it, so missing progress alone names nobody. When a
worker has reported none for too long every node is asked how far its workers are and what they do;
then the rank that is behind is blamed: the one of the smallest step, of those the one that has
reported none for longest. Ranks that reported lately are none of those; one that never reports
never hangs.

A phase may have a limit of its own (`--hang-timeout 300,start=1800,evaluation=900`): `START` lasts
from the start of the workers until one of their node tells a step, all others a script names. While
a worker is within its own limit nobody is suspected, since all may wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core.model import Stamp
from rallypoint.core.settings import SharedSettings
from rallypoint.core.text import brief_seconds
from rallypoint.core.worker_exits import WorkerExit

COLLECT_S = 5.0
"""How long the nodes may take to report what their workers do, after a hang is suspected, in
seconds."""
SILENT_SHARE = 0.5
"""The share of its limit for which a worker must have been silent to be the one that hangs."""
LOOK_AGAIN_SHARE = 0.25
START = "start"
"""The name of the phase of workers of a node of which none has reported a step yet."""


class WorkerProgress(Struct, frozen=True):
    """The last step of a worker that is watched for a hang, and for how long it has been silent.

    The silence counts from the last progress, or the last change of its phase.
    """

    local_rank: int
    step: int
    silent_s: float
    limit_s: float
    """The silence in seconds from which on the worker is suspected."""
    is_timed: bool = True
    """Whether this silence may be a hang; False if the duration of a step is not known yet."""
    phase: str = ""
    has_step: bool = True
    """Whether the worker has reported a step; if not, `step` is -1."""


class Told(Struct, frozen=True):
    """The progress that a worker has reported so far, as its agent sees it.

    Times are in seconds.
    """

    local_rank: int
    step: int | None
    """The last reported step; None: it has reported none."""
    age_s: float
    """The seconds since the last progress, or since the workers were started."""
    is_timed: bool
    """Whether the duration of a step is known: not while only one step has been read in the output.
    """
    phase: str
    """The phase that the script has named; empty: it is in none."""
    phase_age_s: float
    """The seconds since one of its phases last began or ended; infinite: there was none."""


class WorkerPhase(Struct, frozen=True):
    """The named phase, with a limit of its own, that workers of one node are in at present."""

    stamp: Stamp
    until: float
    """The end of the phase's limit, on the coordinator's clock."""


class Behind(Struct, frozen=True, array_like=True):
    """The silent worker of one node that is furthest behind, as its agent found when asked."""

    failure: WorkerExit
    """The worker as a failure to report: its `detail` says what it does now. Its message is still
    empty."""
    step: int
    silent_s: float
    in_phase: str = ""


class StepsFound(Struct, frozen=True):
    """One node's answer to the question what its workers do: their steps."""

    node_id: str
    behind: Behind | None
    furthest: int
    """The largest step that a running worker of the node has reported; -1: none has."""
    known: int = 0
    """The number of the node's running workers that have reported a step."""
    is_waited_for: bool = False
    """Whether a worker of the node is within the limit of a phase, so that others may wait for
    it."""


class Inquiry(Struct):
    """The coordinator's question to nodes with running workers what these do, and the answers."""

    number: int
    round: int
    awaited: set[str]
    found: list[StepsFound] = field(default_factory=list)


def own_limit_s(settings: SharedSettings, phase: str) -> float | None:
    """Return the limit of this phase in seconds; None: the phase has no limit of its own."""
    return dict(settings.hang_phases).get(phase)


def watched(told: Told, settings: SharedSettings, *, in_start: bool) -> WorkerProgress | None:
    """Return how long a worker has been silent, and its limit. None: it is not watched.

    A worker without a step is watched only in a phase with its own limit, as it may never report
    any. `in_start`: no worker of its node has reported a step.
    """
    own_s, phase = own_limit_s(settings, told.phase), told.phase
    silent_s = min(told.age_s, told.phase_age_s)
    if told.step is not None:
        limit_s = settings.hang_timeout_s if own_s is None else own_s
        is_timed = told.is_timed or own_s is not None
        return WorkerProgress(told.local_rank, told.step, silent_s, limit_s, is_timed, phase)
    if own_s is None and in_start:
        own_s, phase = own_limit_s(settings, START), START
    if own_s is None:
        return None
    return WorkerProgress(told.local_rank, -1, silent_s, own_s, phase=phase, has_step=False)


def is_waited_for(workers: Iterable[WorkerProgress], settings: SharedSettings) -> bool:
    """Return whether one of the workers is within its phase's own limit: others may wait for it.

    The start of the workers does not count as a phase here, nor does one without an own limit.
    """
    return any(
        worker.silent_s < worker.limit_s and own_limit_s(settings, worker.phase) is not None
        for worker in workers
        if worker.phase != START
    )


def suspects(workers: Iterable[WorkerProgress]) -> list[WorkerProgress]:
    """Return the workers that have been silent for at least their limit, if that may be a hang.

    It may not while the duration of a step is not known.
    """
    return [worker for worker in workers if worker.is_timed and worker.silent_s >= worker.limit_s]


def next_look_s(workers: Sequence[WorkerProgress], settings: SharedSettings) -> float | None:
    """Return the seconds until the next look for suspects; None: not before a worker's next report.

    While there are suspects it is a quarter of the shortest of their limits. Else, with limits of
    phases, it is at most the shortest limit. The beginning of a phase is not reported, and a look
    this often finds it before its time is over.
    """
    if found := suspects(workers):
        return LOOK_AGAIN_SHARE * min(worker.limit_s for worker in found)
    waits_s = [worker.limit_s - worker.silent_s for worker in workers if worker.is_timed]
    if settings.hang_phases:
        waits_s += [settings.hang_timeout_s, *(limit_s for _, limit_s in settings.hang_phases)]
    return min(waits_s, default=None)


def most_behind(workers: Iterable[WorkerProgress]) -> WorkerProgress | None:
    """Return the worker to report: of the silent ones the one with the smallest step.

    A worker is silent if it was for `SILENT_SHARE` of its limit. Of several with the smallest step
    it is the one that has been silent for longest. None: no worker is silent.
    """
    silent = [worker for worker in workers if worker.silent_s >= SILENT_SHARE * worker.limit_s]
    return min(silent, key=lambda worker: (worker.step, -worker.silent_s), default=None)


def blamed(found: Sequence[StepsFound], workers: int = 1) -> tuple[str, WorkerExit] | None:
    """Return the node of the worker to blame for a hang, and the worker as a failure.

    `found` has the nodes' answers, `workers` is the number of workers in the round. None: nobody is
    to blame, for example because all workers have made progress since.
    """
    silent = [(one.node_id, one.behind) for one in found if one.behind is not None]
    if any(one.known for one in found):
        # Ranks that tell no steps don't hang in their start where others have made some.
        silent = [one for one in silent if one[1].in_phase != START]
    if not silent or any(one.is_waited_for for one in found):
        return None
    node_id, behind = min(silent, key=lambda one: (one[1].step, -one[1].silent_s))
    furthest = max(one.furthest for one in found)
    where = f"at step {behind.step}"
    if behind.in_phase:
        where = f"in its phase {behind.in_phase}, {where}"
    if behind.in_phase == START:
        where = "no step since its start; which rank hangs is unknown: see all stacks"
    elif furthest > behind.step:
        where += f" while others are at {furthest}"
    if workers > 1 and sum(one.known for one in found) == 1:
        where += ", but no other rank reports its steps: another rank may hang, see all stacks"
    text = f"no progress for {brief_seconds(behind.silent_s)} s: {where}"
    return node_id, replace(behind.failure, message=text, reason=text)
