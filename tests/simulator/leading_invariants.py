"""Rules that hold besides where any agent may lead by a register.

* A record says that its leader is dead only if that process is, and no worker of its node runs.
* What an agent has said when another one led already is never answered: neither its heartbeat nor
  that it attaches. (By what a leader knows that may look right: here the register itself is asked.)
  But for this: who claims by a record that was put back is not known to the leader before until
  its register answers. And a leader that lost the job to an heir which lied may answer for half a
  lease after the last promise of that one, and workers of nodes that it has answered run for a
  lease more.
* The workers of the node that led are fenced before another world runs without it, as those of any
  node that nobody has declared lost.
* A leader that was answered with an older record, another's or none answers nobody any more.
* A verdict that is in no record is that a person has cancelled the job, and is told only after the
  register was away for a hold and a lease.
* In a *gentle* plan no worker is signalled: the register is away for no longer than a leader may
  act by promises, or the leader is stopped or cut off for a moment.
* Once nothing goes wrong any more, it takes two holds and a lease at most until there is a world or
  a verdict (`Simulation._settle_s`).
"""

from __future__ import annotations

from collections import deque
from math import inf

from msgspec import Struct
from msgspec.structs import replace
from tests.simulator.facts import Life, Violation, parsed
from tests.simulator.led_invariants import LedInvariants
from tests.simulator.workers import KILL_S

from rallypoint.core import messages as m
from rallypoint.core.model import Outcome, SharedSettings, Verdict
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.consent import promised_s
from rallypoint.core.takeover.record import LeadRecord

SLOWEST = 0.9
"""So many seconds may pass while a clock counts one."""


def plain(verdict: Verdict) -> Verdict:
    """As it was given, without when it was told."""
    return replace(verdict, ended_s_ago=None)


class _Lost(Struct, frozen=True):
    """The end of a leader's time."""

    by: str
    """The incarnation of its agent."""
    to: str
    """The incarnation of the agent that leads next."""
    at_s: float


class LeadingInvariants(LedInvariants):
    """Of one simulation."""

    def __init__(
        self, settings: SharedSettings, *, is_gentle: bool, slow_way_s: float = 0.0
    ) -> None:
        """`slow_way_s`: what is sent to the register, and each answer, may take so long."""
        super().__init__(settings, is_gentle=is_gentle)
        self._slow_way_s = slow_way_s
        self._led_by: dict[int, str] = {}
        """The incarnation of each agent, by its number."""
        self._stored_at: deque[float] = deque([0.0], maxlen=100)
        """The times at which the newest records were stored."""
        self.former_life = self._leading_life = ""
        """The incarnation of the agent that led before the one that does, or did last."""
        self._asked_late: set[tuple[str, int]] = set()
        """Agents whose newest attaching to that leader came when another one led."""
        self._led = 0
        self._contradicted: dict[int, float] = {}
        """The epochs of leaders to whom the register has answered with another record, and when. A
        process that goes on reads all that has arrived meanwhile at one time, in any order."""
        self._unaware: set[int] = set()
        """The epochs of leaders that another one has followed by a record that was put back: each
        acts until its register answers."""
        self._deposed: dict[int, _Lost] = {}
        """The ends of former leaders, by their epochs."""

    @property
    def _any_leads(self) -> bool:
        return True

    @property
    def leader(self) -> int:
        return self._records[-1].epoch.as_int() if self._records else 0

    @property
    def leading_life(self) -> str:
        """The incarnation of the agent that leads, or did last; empty: none has yet."""
        return self._led_by[self._records[-1].leader.process.pid] if self._records else ""

    def leads_as(self, process: int, incarnation: str) -> None:
        """The agent has this number, should it lead."""
        self._led_by[process] = incarnation

    def told_of(self, record: bytes) -> str:
        """What a person reads of this record, which is about to be stored, if it says who leads."""
        new, old = parsed(record), self._records[-1] if self._records else None
        is_new = old is None or (new.epoch, new.is_vacant) != (old.epoch, old.is_vacant)
        if not is_new:
            return ""
        who = self._led_by[new.leader.process.pid]
        how = "is dead" if new.is_dead else "no longer leads" if new.is_vacant else "leads"
        return f"{who} {how} (epoch {new.epoch.number})"

    def unstored(self) -> None:
        super().unstored()
        self._asked_late.clear()

    def _acts_by_lies(self, coordinator: int) -> bool:
        """Whether it has lost the job to an heir that went on promising, and can't know it yet."""
        lost = self._deposed.get(coordinator)
        return lost is not None and self.now_s <= self._lies_until(lost)

    def _lies_until(self, lost: _Lost) -> float:
        """A leader may act so long by the promises of an heir that lied."""
        lied_at = self.lied_at.get(lost.to, float("-inf"))
        return lied_at + promised_s(self._lease_s) / SLOWEST

    def _is_led_astray(self, life: Life) -> bool:
        """Whether the agent was a leader that could not know of its end, or has followed one: its
        workers run for a lease more."""
        who = life.ref.incarnation
        for epoch, lost in self._deposed.items():
            followed = life.heard_by.get(epoch, float("-inf")) >= lost.at_s
            until = self._lies_until(lost) + self._lease_s / SLOWEST + KILL_S
            if (followed or who == lost.by) and self.now_s <= until:
                return True
        return False

    def contradicted(self, coordinator: int) -> None:
        self._contradicted.setdefault(coordinator, self.now_s)

    def held(self, coordinator: int) -> None:
        """That it leads now does not say that nobody else did meanwhile."""

    def read(
        self, incarnation: str, coordinator: int, message: m.ToCoordinator, *, is_late: bool
    ) -> None:
        is_deposed = coordinator != self.leader and not self._acts_by_lies(coordinator)
        is_deposed &= coordinator not in self._unaware
        is_deposed |= self.now_s > self._contradicted.get(coordinator, inf)
        super().read(incarnation, coordinator, message, is_late=is_deposed)
        if isinstance(message, m.Attach):
            self._asked_late.discard((incarnation, coordinator))
            if is_deposed:
                self._asked_late.add((incarnation, coordinator))

    def told(self, incarnation: str, message: m.ToAgent) -> None:
        if isinstance(message, m.Attached) and (incarnation, message.epoch) in self._asked_late:
            raise Violation("hold", f"{incarnation} was attached to a leader that led no more")
        if isinstance(message, m.Ended) and self._is_unrecorded(message):
            self.verdicts[-message.stamp.incarnation] = plain(message.verdict)
            return
        super().told(incarnation, message)

    def _is_unrecorded(self, ended: m.Ended) -> bool:
        """It was given by a leader whose register has been away for its hold and a lease: it may be
        told, and whoever leads later may know nothing of it."""
        number, verdict = ended.stamp.incarnation, plain(ended.verdict)
        if verdict.outcome is not Outcome.CANCELLED:
            return False
        # The answer to the newest records may be on its way. A hold counts from when one was sent.
        slow_s = self._slow_way_s
        answered = max((at for at in self._stored_at if at <= self.now_s - slow_s), default=0.0)
        if self.now_s - (answered - slow_s) < SLOWEST * (HOLD_S + self._lease_s):
            return False
        return number not in self.verdicts and (number, verdict) in [g[:2] for g in self._given]

    def _follows_record(self, new: LeadRecord) -> None:
        self._stored_at.append(self.now_s)
        super()._follows_record(new)
        if self.leader != self._led:
            if self._was_put_back:
                self._unaware.add(self._led)
            self._deposed[self._led] = _Lost(self._leading_life, self.leading_life, self.now_s)
            self._led = self.leader
        if self.leading_life != self._leading_life:
            self.former_life, self._leading_life = self._leading_life, self.leading_life
        life = self.lives[self.leading_life]
        if new.is_dead and not life.died:
            raise Violation("release", f"{life.ref} is called dead in the record, and is not")
        if new.is_dead and life.runs:
            raise Violation("release", f"{life.ref} is called dead, and its workers run")
