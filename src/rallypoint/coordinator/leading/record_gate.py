"""One life of a job led by a register: its permitted effects, and the job that a leader finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.coordinator.hosted_job import OpenGate
from rallypoint.core import messages as m
from rallypoint.core.host_effects import HostEffect, SendTo
from rallypoint.core.job_state import JobState
from rallypoint.core.takeover import speakers
from rallypoint.core.takeover.durable import Durable
from rallypoint.core.takeover.handover import Handover
from rallypoint.core.takeover.stepping_down import IsSilent

if TYPE_CHECKING:
    from rallypoint.coordinator.leading.leadership import Leadership


class RecordedLife(Struct, frozen=True):
    """The parts of one life of a led job that its host needs."""

    handover: Handover
    open_gate: OpenGate


class TakenOver(Struct, frozen=True):
    """The job that a new leader found in the register, as it continues it."""

    state: JobState
    led: RecordedLife

    @property
    def text(self) -> str:
        """The sentence about the takeover for a person; empty: it follows later.

        It does when the nodes of the newest round have come, or are no longer waited for.
        """
        if self.led.handover.recovery is not None:
            return ""
        verdict = self.state.verdict
        if verdict is None:
            return "took over before its first round"
        return f"took over a job that has ended: {verdict.text}"


class RecordGate:
    """The queue of one life of a job: effects wait there until the register has their decision.

    It is the gate of `hosted_job.py` for a coordinator that leads by a register.
    """

    def __init__(
        self,
        leadership: Leadership,
        durable: Durable,
        perform: Callable[[list[HostEffect]], None],
        is_silent: IsSilent,
    ) -> None:
        """Make the gate, and have the leader record this life as the newest one.

        `perform` executes effects that have waited for a record.
        """
        self._leadership = leadership
        self.durable, self._perform = durable, perform
        self.is_silent = is_silent
        leadership.opened(self)

    def after(self, effects: list[HostEffect]) -> list[HostEffect]:
        """Queue the effects of a decision, and return those that may be carried out now.

        If it changed what has to be recorded, asks the leader for a record.
        """
        passing = self.durable.after(effects, is_sure=self._leadership.is_sure)
        if not self.durable.is_recorded:
            self._leadership.changed()
        return self._with_position(passing)

    def perform(self, effects: list[HostEffect]) -> None:
        """Execute these effects, which have waited for a record."""
        self._perform(self._with_position(effects))

    def _with_position(self, effects: list[HostEffect]) -> list[HostEffect]:
        """Add the position of the job's record to messages that agents get anyway."""
        return [self._positioned(effect) for effect in effects]

    def _positioned(self, effect: HostEffect) -> HostEffect:
        match effect:
            case SendTo(connection, message) if isinstance(message, m.Positioned):
                return SendTo(connection, replace(message, told=self._leadership.duties.told))
        return effect

    def answer(
        self, heartbeat: m.Heartbeat, effects: list[HostEffect], connection: int, incarnation: str
    ) -> list[HostEffect]:
        """Note the promise in a heartbeat that has just come; return what may be carried out now.

        `effects` are those of the heartbeat. `incarnation` is that of the agent whose session uses
        the connection; empty: none does any more.
        """
        speaker = None
        if heartbeat.promise is not None and incarnation:
            durable = self.durable
            recovery = durable.handover.recovery
            speaker = speakers.agent(durable.job, recovery, connection, incarnation)
        self._leadership.lead.heard(heartbeat, self._leadership.now, speaker)
        return self.after(effects)

    @property
    def is_open(self) -> bool:
        """Whether no decision of the job waits for a record."""
        return self.durable.is_recorded

    def close(self) -> None:
        """Note that this life of the job is no longer hosted."""
        self._leadership.closed(self)
