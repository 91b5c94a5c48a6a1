"""The progress of one node's workers, as its heartbeats report it.

Pure data.

It has constant size, so that the coordinator knows the progress of the whole job.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.model import Stamp
from rallypoint.core.round_record import PHASES


class NodeProgress(Struct, frozen=True, array_like=True):
    """The progress of one node's workers in its newest round, at the time of sending.

    Times are seconds; None: not yet, or not known.
    """

    stamp: Stamp
    running_s: float | None = None
    """Since the processes of all workers were started."""
    rendezvous_s: float | None = None
    """The time from asking for the round to the order to start its workers."""
    spawn_s: float | None = None
    first_output_s: float | None = None
    """The time after the workers' start, as `first_progress_s`."""
    first_progress_s: float | None = None
    furthest: int = -1
    """The largest step that a worker of this node has reported; -1: none."""
    quiet_s: float | None = None
    """The time since the newest report of any of them."""
    step: int = -1
    """The step of the worker that is furthest behind; then its global rank, and the time since its
    last report."""
    rank: int = 0
    silent_s: float | None = None
    total: int = -1
    """The last step of the job, if workers tell it."""
    loss: float | None = None
    tokens: int = -1
    saved: int = -1
    """The step of the newest checkpoint that workers have reported."""
    unmatched: str = ""
    """The message of a node whose output `--progress-pattern` should match, if no line has ever
    matched: the pattern, the time, and a sample of the output."""
    cant_log: str = ""
    """Why a log file of a worker of this round can't be written; empty: all can."""

    in_phase: str = ""
    """The phase of one of its workers, by the script's name; empty: none is in one."""
    phase_left_s: float | None = None
    """The seconds that the phase may still last by `--hang-timeout`, in which others may wait for
    it."""

    def later(self, seconds: float) -> NodeProgress:
        """Return the progress as it is `seconds` after the report."""
        return replace(
            self,
            running_s=_plus(self.running_s, seconds),
            quiet_s=_plus(self.quiet_s, seconds),
            silent_s=_plus(self.silent_s, seconds),
        )

    @property
    def phases(self) -> tuple[tuple[str, float | None], ...]:
        """The lengths of the phases of the round, by their names in `core/node/timeline.py`."""
        lengths = self.rendezvous_s, self.spawn_s, self.first_output_s, self.first_progress_s
        return tuple(zip(PHASES, lengths, strict=False))

    @property
    def news(self) -> tuple[object, ...]:
        """The values that differ between two reports when there is news."""
        ages = self.running_s is None, self.first_output_s, self.first_progress_s
        steps = self.furthest, self.step, self.rank, self.loss, self.saved
        return self.stamp, ages, steps, self.unmatched, self.cant_log, self.in_phase


def _plus(age_s: float | None, seconds: float) -> float | None:
    return None if age_s is None else age_s + seconds
