"""Rules of how a job takes in nodes that come late (behaviours R2, R3).

* No round ends for newcomers before it has its minimum age.
* Where a place is free and nobody else is on the way to it, a node that may take part gets the
  place within the time that growth may take; it does not stand by for ever.
* A node that did not reach rank 0 takes part in no round for as long as it was said, twice as long
  each time, while that rank 0 is here and enough nodes are without it.
* The counts that the machine of the job keeps of its members are those of its members.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct
from msgspec.structs import replace
from tests.simulator.facts import Violation
from tests.simulator.invariants import Invariants
from tests.simulator.rules.rule import FASTEST, SLOWEST, Rule

from rallypoint.core import messages as m
from rallypoint.core.fitness import is_trusted
from rallypoint.core.job_state import JobEffect, JobEvent, JobState
from rallypoint.core.messages import StopNow, ToNode
from rallypoint.core.model import EndKind, SharedSettings, Stamp
from rallypoint.core.round_state import MemberState, RoundMember, RoundPhase, RoundState
from rallypoint.core.settings import OnJoin

SLACK_S = 1.0
HELD_BACK = "held back for"
FIRST_LEASES, HELD_BACK_MAX_S = 8, 3600.0
"""A node is held back for so many leases at first, and for so many seconds at most."""


class CutOff(Struct, eq=False):
    """A node that did not reach the store of rank 0."""

    host: str
    """The life of the agent that was rank 0."""
    since_s: float
    times: int
    """In a row."""


class Growth(Rule):
    """Follows who waits for a place."""

    def __init__(self, facts: Invariants, settings: SharedSettings) -> None:
        super().__init__(facts, settings)
        self._formed_at: dict[Stamp, float] = {}
        """When each round was formed, or when another coordinator began to lead it."""
        self._vacant_since: tuple[Stamp, float] | None = None
        """Since when a place of this round has been free while a node could take it."""
        self._job: JobState | None = None
        self._leader = 0
        """The coordinator of `_job`: another one that leads may not have taken the job over yet."""
        self._cut_off: dict[str, CutOff] = {}
        """Nodes that did not reach rank 0, by their ids."""

    def leads(self, state: JobState, coordinator: int) -> None:
        self._vacant_since = None

    def stepped(self, state: JobState, event: JobEvent, effects: list[JobEffect]) -> None:
        named = Stamp(state.incarnation, state.round.round)
        for effect in effects:
            match effect:
                case ToNode(_, StopNow() as stop):
                    self._check_age(stop)
                case ToNode(ref, m.Expelled(stamp, why, False)) if HELD_BACK in why:
                    self._note_cut_off(ref.node_id, stamp)
                case ToNode(ref, m.StartNow()):
                    self._cut_off.pop(ref.node_id, None)
                case ToNode(ref, m.Assigned(stamp, assignment)):
                    self._check_may_come(state.round, ref.node_id, assignment.group_world_size)
        self._job = None if state.verdict is not None else state
        self._leader = self.facts.leader
        if state.verdict is not None:
            return
        if state.round.phase is RoundPhase.ACTIVE:
            self._formed_at.setdefault(named, self.facts.now_s)
        self._check_counts(state.round)
        self._check_places(state.round, named)

    def read(self, incarnation: str, coordinator: int, message: m.ToCoordinator) -> None:
        if self._job is not None and coordinator == self.facts.leader == self._leader:
            named = Stamp(self._job.incarnation, self._job.round.round)
            self._check_places(self._job.round, named)

    def _note_cut_off(self, node_id: str, stamp: Stamp) -> None:
        world = self.facts.worlds.get(replace(stamp, round=stamp.round - 1))
        if world is None:
            return
        host = next((life for life, place in world.places.items() if not place.group_rank), "")
        before = self._cut_off.get(node_id)
        times = 1 if before is None else before.times + 1
        self._cut_off[node_id] = CutOff(host, self.facts.now_s, times)

    def _check_may_come(self, state: RoundState, node_id: str, nodes: int) -> None:
        """The node has a place in a round of so many nodes."""
        cut_off = self._cut_off.get(node_id)
        if cut_off is None or nodes <= self.settings.min_nodes:
            return
        host = self.facts.lives[cut_off.host].ref
        member = state.members.get(host.node_id)
        is_here = member is not None and member.ref == host
        length_s = self.settings.lease_s * FIRST_LEASES * 2.0 ** (cut_off.times - 1)
        passed_s = self.facts.now_s - cut_off.since_s
        if is_here and passed_s * FASTEST < min(length_s, HELD_BACK_MAX_S):
            text = f"{node_id} did not reach {host}, and is back after {passed_s:.1f} s"
            raise Violation("held back", text)

    def _check_age(self, stop: StopNow) -> None:
        if stop.reason.kind is not EndKind.GROWTH or stop.stamp not in self._formed_at:
            return
        age_s = self.facts.now_s - self._formed_at[stop.stamp]
        least_s = self.settings.min_growth_interval_s
        if age_s * FASTEST + 0.01 < least_s:
            text = f"{stop.stamp} ends for newcomers after {age_s:.1f} of {least_s:g} s"
            raise Violation("growth", text)

    @staticmethod
    def _check_counts(state: RoundState) -> None:
        members = state.members.values()
        counts = Counter(member.state for member in members)
        if any(state.counts[each] != counts[each] for each in MemberState):
            raise Violation("counts", f"{state.counts} are not the members: {counts}")
        roster = sum(member.in_roster for member in members)
        if state.phase is not RoundPhase.ACTIVE and state.roster_size != roster:
            raise Violation("counts", f"the roster has {roster} nodes, not {state.roster_size}")

    def _check_places(self, state: RoundState, named: Stamp) -> None:
        """Some node could take a free place of this round: how long has that been so?"""
        if not self._has_vacancy(state):
            self._vacant_since = None
            return
        if self._vacant_since is None or self._vacant_since[0] != named:
            self._vacant_since = named, self.facts.now_s
        waited_s = min(self.facts.now_s - self._vacant_since[1], self.undisturbed_s)
        settings = self.settings
        most_s = settings.min_growth_interval_s + settings.join_settle_max_s + SLACK_S
        if waited_s * SLOWEST > most_s:
            raise Violation("growth", f"a place of {named} has been free for {waited_s:.1f} s")

    def _has_vacancy(self, state: RoundState) -> bool:
        settings = self.settings
        is_open = state.phase is RoundPhase.ACTIVE and not state.finishing
        if not is_open or settings.on_join is not OnJoin.RESTART or settings.world_multiple_of > 1:
            return False
        if len(state.world) >= settings.max_nodes:
            return False
        return any(self._may_come(state, member) for member in state.members.values())

    @staticmethod
    def _may_come(state: RoundState, member: RoundMember) -> bool:
        is_late = member.state in (MemberState.WAITING, MemberState.STANDBY)
        return is_late and is_trusted(state, member)
