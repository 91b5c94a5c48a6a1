"""Rules of how agents and coordinators hear each other (behaviours F2, F3, F4, L2).

* Where nothing goes wrong an agent keeps its connection. (Not when the job begins another life, and
  not just after a takeover: the coordinator may answer an agent when its lease is nearly over.)
* No node is given up for its silence while something that it has said lies unread.
* An agent that has taken part in one life of a job, and comes to another that has formed no round
  yet, is given a higher number than the one that it knows.
* A node that has promised not to claim the job does not claim it in that time, unless its leader
  has gone; nor does it promise that while a claim may succeed that it has sent before. (Unless it
  was made to lie.)
"""

from __future__ import annotations

from tests.simulator.facts import Violation
from tests.simulator.invariants import Invariants
from tests.simulator.rules.rule import FASTEST, SLOWEST, Rule

from rallypoint.core import messages as m
from rallypoint.core.job_state import JobEffect, JobEvent, JobState, SessionLost
from rallypoint.core.model import SharedSettings
from rallypoint.core.takeover.consent import promised_s
from rallypoint.core.takeover.record import LeadRecord

SETTLES_S = 5.0
"""Besides two leases: so long after the last disturbance every agent has its connection."""


class Links(Rule):
    """Follows connections and heartbeats."""

    def __init__(self, facts: Invariants, settings: SharedSettings) -> None:
        super().__init__(facts, settings)
        self._attached_to: dict[str, int] = {}
        """The coordinator that has attached each agent, on the newest connection of that agent."""
        self._asked: dict[str, int] = {}
        """The coordinator that each agent has come to last."""
        self._known: dict[str, int] = {}
        """The number of the life that each agent knew when it came last."""
        self._beats: dict[tuple[str, int, int], float] = {}
        """When the heartbeat of this agent, to this coordinator, with this number was handled."""
        self._promised: dict[str, tuple[int, float]] = {}
        """The epoch to whose leader each agent has promised last, and the end of that promise."""
        self._newest: LeadRecord | None = None
        self._led_since = 0.0
        """When a coordinator last began to lead the job."""

    def leads(self, state: JobState, coordinator: int) -> None:
        self._led_since = self.facts.now_s

    def read(self, incarnation: str, coordinator: int, message: m.ToCoordinator) -> None:
        match message:
            case m.Attach():
                jobs = [j.state for j in self.facts.jobs.values() if j.coordinator == coordinator]
                # Else the job has begun another life.
                if jobs and message.last_incarnation == jobs[-1].incarnation:
                    self._check_is_due(incarnation, coordinator)
                self._attached_to.pop(incarnation, None)
                self._asked[incarnation] = coordinator
                self._known[incarnation] = message.last_incarnation
            case m.Heartbeat(number, promise):
                self._beats[incarnation, coordinator, number] = self.facts.now_s
                if promise is not None and coordinator == self.facts.leader:
                    self._promises(incarnation, coordinator, promise.answered)

    def _check_is_due(self, incarnation: str, coordinator: int) -> None:
        """An agent attaches: why, if it was attached to this coordinator before?"""
        before = self._attached_to.get(incarnation)
        settled_s = 2 * self.settings.lease_s / SLOWEST + SETTLES_S
        quiet_s = min(self.undisturbed_s, self.facts.now_s - self._led_since)
        if before == coordinator and quiet_s > settled_s:
            text = f"{incarnation} connects again {self.undisturbed_s:.1f} s after the last fault"
            raise Violation("connection", text)

    def told(self, incarnation: str, message: m.ToAgent) -> None:
        if isinstance(message, m.HandsOver):
            self._promised.pop(incarnation, None)
        if isinstance(message, m.Expelled):
            self._attached_to.pop(incarnation, None)  # The coordinator hangs up.
        if not isinstance(message, m.Attached):
            return
        if incarnation in self._asked:
            self._attached_to[incarnation] = self._asked[incarnation]
        number, known = message.incarnation, self._known.get(incarnation, 0)
        states = [job.state for job in self.facts.jobs.values()]
        formed = {state.incarnation for state in states if state.round.round or state.round.world}
        formed |= {stamp.incarnation for stamp in self.facts.worlds} | set(self.facts.verdicts)
        if number < known and number not in formed:
            text = f"{incarnation} was in life {known} of the job, and is told of life {number}"
            raise Violation("life", text)

    def stepped(self, state: JobState, event: JobEvent, effects: list[JobEffect]) -> None:
        if isinstance(event, SessionLost) and event.why.startswith("it sent no heartbeat"):
            unread = self.facts.unread.get(event.ref.incarnation, 0)
            if unread:
                text = f"{event.ref} was given up, and {unread} messages of it were not read"
                raise Violation("silence", text)

    # Promises

    def promised(self, incarnation: str, *, may_claim: bool) -> None:
        if may_claim:
            raise Violation("promise", f"{incarnation} promises, and a claim of it may succeed")

    def _promises(self, incarnation: str, coordinator: int, answered: int) -> None:
        since = self._beats.get((incarnation, coordinator, answered))
        if since is not None:
            until = since + promised_s(self.settings.lease_s) / FASTEST
            self._promised[incarnation] = coordinator, until

    def stored(self, record: LeadRecord) -> None:
        before, self._newest = self._newest, record
        if before is None or before.is_vacant or before.epoch == record.epoch:
            return
        claims = self.facts.leading_life
        epoch, until = self._promised.get(claims, (0, 0.0))
        if claims in self.facts.lied_at:
            return
        if epoch == before.epoch.as_int() and self.facts.now_s < until:
            left_s = until - self.facts.now_s
            raise Violation("promise", f"{claims} leads, and had promised not to, {left_s:.2f} s")
