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
    """The time since the processes of all workers were started."""
    rendezvous_s: float | None = None
    """The time from asking for the round to the order to start its workers."""
    spawn_s: float | None = None
    first_output_s: float | None = None
    """The time from the workers' start until the first output of any of them; `first_progress_s`:
    until the first progress."""
    first_progress_s: float | None = None
    furthest: int = -1
    """The largest step that a worker of this node has reported; -1: none."""
    quiet_s: float | None = None
    """The time since the newest report of a step by any worker of this node."""
    step: int = -1
    """The step of the worker that is furthest behind; -1: none is known. `rank` is that worker's
    global rank, and `silent_s` the time since its last report."""
    rank: int = 0
    silent_s: float | None = None
    total: int = -1
    """The last step of the job, if workers report it; -1: they don't."""
    loss: float | None = None
    tokens: int = -1
    saved: int = -1
    """The step of the newest checkpoint that workers have reported; -1: none was."""
    unmatched: str = ""
    """A message if no line of the node's output has ever matched `--progress-pattern`, though one
    should: the pattern, the time, and a sample of the output."""
    cant_log: str = ""
    """Why a log file of a worker of this round can't be written; empty: all can."""

    in_phase: str = ""
    """The script's name for a long phase, such as an evaluation, that one of its workers is in;
    empty: none."""
    phase_left_s: float | None = None
    """The seconds that the phase `in_phase` may still last before it counts as a hang; None: none
    are left, or no worker is in a phase. Other workers may wait for it that long."""

    def later(self, seconds: float) -> NodeProgress:
        """Return the progress with its ages as they are `seconds` after the report."""
        return replace(
            self,
            running_s=_plus(self.running_s, seconds),
            quiet_s=_plus(self.quiet_s, seconds),
            silent_s=_plus(self.silent_s, seconds),
        )

    @property
    def phases(self) -> tuple[tuple[str, float | None], ...]:
        """The seconds of the phases of the round, by name; None: not yet, or not known.

        The names are explained in `core/node/timeline.py`.
        """
        lengths = self.rendezvous_s, self.spawn_s, self.first_output_s, self.first_progress_s
        return tuple(zip(PHASES, lengths, strict=False))

    @property
    def news(self) -> tuple[object, ...]:
        """The values of a report that show whether it has news.

        A report that is equal in these to the last one on the connection is sent only if a worker's
        phase has begun anew.
        """
        ages = self.running_s is None, self.first_output_s, self.first_progress_s
        steps = self.furthest, self.step, self.rank, self.loss, self.saved
        return self.stamp, ages, steps, self.unmatched, self.cant_log, self.in_phase


def _plus(age_s: float | None, seconds: float) -> float | None:
    return None if age_s is None else age_s + seconds
