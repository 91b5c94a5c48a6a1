"""The base of rules that follow a whole simulation: `Transcript` tells each of them what happens,
after the rules of `invariants.py`. `cluster.py` names them."""

from __future__ import annotations

from tests.simulator.invariants import Invariants

from rallypoint.core import messages as m
from rallypoint.core.job_state import JobEffect, JobEvent, JobState
from rallypoint.core.model import SharedSettings
from rallypoint.core.takeover.record import LeadRecord

SLOWEST, FASTEST = 0.92, 1.08
"""The slowest and the fastest clock count so many seconds while one of true time passes."""


class Rule:
    """Follows one simulation. Each method may raise Violation."""

    def __init__(self, facts: Invariants, settings: SharedSettings) -> None:
        """`facts`: what is true of the simulation, kept up to date."""
        self.facts, self.settings = facts, settings

    def leads(self, state: JobState, coordinator: int) -> None:
        """The machine of the job is about to be given its first event by this coordinator."""

    def stepped(self, state: JobState, event: JobEvent, effects: list[JobEffect]) -> None:
        """The machine of the job, of the coordinator that leads, was given an event."""

    def read(self, incarnation: str, coordinator: int, message: m.ToCoordinator) -> None:
        """A coordinator is about to handle a message of this agent."""

    def told(self, incarnation: str, message: m.ToAgent) -> None:
        """An agent is told this."""

    def promised(self, incarnation: str, *, may_claim: bool) -> None:
        """An agent promises not to claim the job. `may_claim`: a claim of it may still succeed."""

    def stored(self, record: LeadRecord) -> None:
        """The register has this record now."""

    def told_to_go(self, incarnation: str) -> None:
        """The agent has got a signal, or a notice that its machine is about to go."""

    @property
    def undisturbed_s(self) -> float:
        """For so long nothing was made to fail."""
        return self.facts.now_s - self.facts.disturbed_at
