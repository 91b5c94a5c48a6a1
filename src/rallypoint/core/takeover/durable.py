"""The queue of a job's effects that wait for a record (section L3 of the design). Pure.

No effect of a decision is carried out before the decision is recorded: it is kept until the
register holds a record that includes the decision; then it is carried out, in its order. One record
is written at a time, and all changes meanwhile are in the next one, so that a slow register makes
records rarer but the queue no longer. Only effects without news pass at once: answers to
heartbeats.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from rallypoint.core import messages as m
from rallypoint.core.host_effects import Faulted, HostEffect, SendTo
from rallypoint.core.job_state import JobState
from rallypoint.core.takeover.handover import Handover
from rallypoint.core.takeover.record import FormerLife, JobRecord, mark_of, record_of


class Durable:
    """The queue of a job's effects that wait until the register holds their decision."""

    def __init__(
        self,
        job: JobState,
        handover: Handover,
        *,
        is_recorded: bool,
        former: FormerLife | None = None,
    ) -> None:
        """`is_recorded`: the register holds this job as it is.

        `former`: the life of the job before this one; None: there was none, or it is not known.
        """
        self.job, self.handover, self._former = job, handover, former
        self._mark = self._now
        self._changed = 0 if is_recorded else 1
        """The number of changes so far that had to be recorded."""
        self._recorded = self._writing = 0
        self._kept: deque[tuple[int, HostEffect]] = deque()
        """The waiting effects, each with the value that `_changed` had; the register must hold that
        change first."""
        self._attaching: set[int] = set()
        """The connections whose agents have not been told yet that they are attached."""

    @property
    def _now(self) -> tuple[object, ...]:
        """A value that is equal while nothing has changed that must be recorded."""
        return mark_of(self.job), self.handover.left

    @property
    def is_recorded(self) -> bool:
        """Whether the register holds all that had to be recorded."""
        return self._recorded == self._changed

    def after(self, effects: list[HostEffect], *, is_sure: bool = True) -> list[HostEffect]:
        """Queue the effects of a decision, and return those that may be carried out at once.

        `is_sure`: no other process can lead this job now. Otherwise heartbeats get no answer, and
        the rest waits for the next record.
        """
        if (mark := self._now) != self._mark:
            self._mark = mark
            self._changed += 1
        if self.is_recorded and is_sure and not self._kept:
            return effects
        passing = [effect for effect in effects if self._passes(effect, is_sure)]
        for effect in effects:
            if isinstance(effect, SendTo) and isinstance(effect.message, m.Attached):
                self._attaching.add(effect.connection)
            if not _says_nothing_new(effect) or self._is_early(effect):
                self._kept.append((self._changed, effect))
        return passing

    def begin(self) -> JobRecord:
        """Return the record to write next; call `written` when the register holds it.

        If it was not stored, call `begin` again. While a takeover waits for nodes, it is the record
        that was taken over, except for nodes that are known to have left or died since.
        """
        self._writing = self._changed
        if (recovery := self.handover.recovery) is not None:
            record = recovery.record  # Until it is known what runs, nothing else is true.
        else:
            record = record_of(self.job, self._former, self.job.own_agent)
        return replace(record, left=self.handover.left)

    def written(self) -> list[HostEffect]:
        """Note that the register holds the last result of `begin`.

        Return, in their order, the queued effects that waited for it.
        """
        self._recorded = self._writing
        found: list[HostEffect] = []
        while self._kept and self._kept[0][0] <= self._recorded:
            found.append(self._kept.popleft()[1])
        kept = (effect for _, effect in self._kept if isinstance(effect, SendTo))
        self._attaching = {
            effect.connection for effect in kept if isinstance(effect.message, m.Attached)
        }
        return found

    def unrecorded(self) -> list[HostEffect]:
        """Return all queued effects, and empty the queue.

        For a leader that steps down, and tells its nodes of a cancel that it can't record.
        """
        found = [effect for _, effect in self._kept]
        self._kept.clear()
        return found

    def _passes(self, effect: HostEffect, is_sure: bool) -> bool:
        if isinstance(effect, Faulted):
            return True
        return is_sure and _says_nothing_new(effect) and not self._is_early(effect)

    def _is_early(self, effect: HostEffect) -> bool:
        """Return whether the effect is for an agent whose `Attached` message still waits."""
        return isinstance(effect, SendTo) and effect.connection in self._attaching


def _says_nothing_new(effect: HostEffect) -> bool:
    match effect:
        case SendTo(_, m.HeartbeatAck()) | Faulted():
            return True
    return False
