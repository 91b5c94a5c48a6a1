"""One life of a job that is led by a register: what it may do, and what a leader finds of it."""

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
    """The parts that a host needs for one life of a job that is led."""

    handover: Handover
    open_gate: OpenGate


class TakenOver(Struct, frozen=True):
    """A job of another coordinator, as its register holds it."""

    state: JobState
    led: RecordedLife

    @property
    def text(self) -> str:
        """The sentence for a person. Empty: that waits for the nodes of its newest round."""
        if self.led.handover.recovery is not None:
            return ""
        verdict = self.state.verdict
        if verdict is None:
            return "took over before its first round"
        return f"took over a job that has ended: {verdict.text}"


class RecordGate:
    """One life of a job, of a coordinator that leads by a register: a gate of its host."""

    def __init__(
        self,
        leadership: Leadership,
        durable: Durable,
        perform: Callable[[list[HostEffect]], None],
        is_silent: IsSilent,
    ) -> None:
        """`perform` does what has waited for a record."""
        self._leadership = leadership
        self.durable, self._perform = durable, perform
        self.is_silent = is_silent
        leadership.opened(self)

    def after(self, effects: list[HostEffect]) -> list[HostEffect]:
        """Note that the job has decided this: returns what may be done now."""
        passing = self.durable.after(effects, is_sure=self._leadership.is_sure)
        if not self.durable.is_recorded:
            self._leadership.changed()
        return self._with_position(passing)

    def perform(self, effects: list[HostEffect]) -> None:
        """Do what has waited for a record."""
        self._perform(self._with_position(effects))

    def _with_position(self, effects: list[HostEffect]) -> list[HostEffect]:
        """Tell agents the position of the job's record with what they are told anyway."""
        return [self._positioned(effect) for effect in effects]

    def _positioned(self, effect: HostEffect) -> HostEffect:
        match effect:
            case SendTo(connection, message) if isinstance(message, m.Positioned):
                return SendTo(connection, replace(message, told=self._leadership.duties.told))
        return effect

    def answer(
        self, heartbeat: m.Heartbeat, effects: list[HostEffect], connection: int, incarnation: str
    ) -> list[HostEffect]:
        """Return the effects of a heartbeat that has just come. The rest as of `Gate`."""
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
        """Close the gate of a life that is hosted no more."""
        self._leadership.closed(self)
