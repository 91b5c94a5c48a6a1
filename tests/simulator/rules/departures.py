"""Rules of the checkpoints that a job asks for, and of nodes that are told to go (behaviours A4,
A5, V4).

* A job says that workers have saved a checkpoint only when all have that listen and still run: each
  since it was asked for that one.
* A growth for which a checkpoint was saved is not called off.
* Each question to the workers of a round has a number of its own, which is higher than all before,
  whoever leads.
* A node that a person wants to leave hears it, also when it comes back later.
"""

from __future__ import annotations

from msgspec import Struct
from tests.simulator.facts import Violation
from tests.simulator.invariants import Invariants
from tests.simulator.rules.rule import SLOWEST, Rule

from rallypoint.core import event_kinds as kinds
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import JobEffect, JobEvent, JobState, SessionLost
from rallypoint.core.messages import FromNode, ToNode
from rallypoint.core.model import SharedSettings, Stamp
from rallypoint.core.round_state import MemberState

ALL_SAVED = "the workers that were asked have saved a checkpoint"
HEARS_S = 3.0
"""Within this time a node that is connected hears what is wanted of it."""


class Wish(Struct, eq=False):
    """A person wants this agent to leave, and this coordinator knows."""

    coordinator: int
    at_s: float


class Departures(Rule):
    """Follows questions, answers, and who is told to go."""

    def __init__(self, facts: Invariants, settings: SharedSettings) -> None:
        super().__init__(facts, settings)
        self._asked: dict[tuple[int, Stamp, int], float] = {}
        """When a coordinator has asked this of a round: the number of the coordinator, the round,
        the number of the question."""
        self._notice = 0
        self._awaited: dict[str, int] = {}
        self._saved: set[tuple[str, Stamp, int]] = set()
        """Agents that have told of a checkpoint that was saved for a growth."""
        self._newest: dict[tuple[str, Stamp], tuple[int, int]] = {}
        """The epoch and the number of the last question that each agent was told, in each round."""
        self._epochs: dict[str, int] = {}
        self._wishes: dict[str, Wish] = {}

    def stepped(self, state: JobState, event: JobEvent, effects: list[JobEffect]) -> None:
        notice, now_s = self._notice, self.facts.now_s
        if isinstance(event, SessionLost):
            self._wishes.pop(event.ref.incarnation, None)
        for effect in effects:
            match effect:
                case ToNode(_, m.CheckpointWanted(named, number)):
                    self._asked.setdefault((id(state), named, number), now_s)
                case ToNode(_, m.CheckpointNotWanted(named, number)):
                    self._check_called_off(state, named, number)
                case Record(kind, text) if kind is kinds.CHECKPOINT and text == ALL_SAVED:
                    self._check_saved(state, notice)
        if isinstance(event, FromNode) and isinstance(event.message, m.CheckpointAnswered):
            self._check_answer(state, event.ref.node_id, event.message)
        self._awaited = self._who_is_awaited(state)
        if state.notice is not None:
            self._notice = state.notice.number

    @staticmethod
    def _who_is_awaited(state: JobState) -> dict[str, int]:
        """The newest question that each node has to answer."""
        asked = state.save, state.notice
        return {node: each.number for each in asked if each is not None for node in each.awaited}

    def _check_answer(self, state: JobState, node_id: str, answer: m.CheckpointAnswered) -> None:
        """Workers of a node whose answer counts have saved a checkpoint since the question."""
        number = self._awaited.get(node_id, 0)
        is_counted = number != self._who_is_awaited(state).get(node_id, 0)
        if is_counted and answer.listens and not answer.failed:
            self._check_saved(state, number, node_id)

    def _check_called_off(self, state: JobState, stamp: Stamp, number: int) -> None:
        for life, named, told in self._saved:
            node_id = self.facts.lives[life].ref.node_id
            member = state.round.members.get(node_id)
            runs = member is not None and member.ref.incarnation == life
            runs = runs and member is not None and member.state is MemberState.RUNNING
            if (named, told) == (stamp, number) and runs:
                text = f"{life} has saved a checkpoint for question {number}, which is called off"
                raise Violation("checkpoint", text)

    def _check_saved(self, state: JobState, number: int, node_id: str = "") -> None:
        """Just now it was said that all have, or those of this node."""
        key = id(state), number
        asked = [(each[1], at) for each, at in self._asked.items() if (each[0], each[2]) == key]
        for stamp, at_s in asked[-1:]:
            for worker in self.facts.worlds[stamp].running.values():
                life = self.facts.lives[worker.owner.place.life]
                is_here = life.lost_at is None and not life.died
                is_here = is_here and node_id in ("", life.ref.node_id)
                if worker.listens and worker.saved_at < at_s and is_here:
                    text = f"rank {worker.rank} has saved none for question {number}"
                    raise Violation("checkpoint", f"{text}, and is said to have")

    def read(self, incarnation: str, coordinator: int, message: m.ToCoordinator) -> None:
        match message:
            case m.Numbered(_, m.CheckpointAnswered(stamp, number, listens, drains=drains)):
                if listens and not drains and coordinator == self.facts.leader:
                    self._saved.add((incarnation, stamp, number))
            case m.Heartbeat():
                self._check_wish(incarnation, coordinator)

    def told(self, incarnation: str, message: m.ToAgent) -> None:
        match message:
            case m.Attached(epoch=epoch):
                self._epochs[incarnation] = epoch
            case m.CheckpointWanted(stamp, number):
                epoch = self._epochs.get(incarnation, 0)
                key = incarnation, stamp
                before = self._newest.setdefault(key, (epoch, number))
                if before[0] != epoch and number <= before[1]:
                    text = f"question {number} follows {before[1]} of another coordinator"
                    raise Violation("checkpoint", f"{incarnation} in {stamp}: {text}")
                self._newest[key] = epoch, max(number, before[1])
            case m.DrainWanted():
                self._wishes.pop(incarnation, None)

    def told_to_go(self, incarnation: str) -> None:
        self._wishes.pop(incarnation, None)

    def wanted_to_go(self, incarnation: str, coordinator: int) -> None:
        """A person was told that this agent will be."""
        self._wishes[incarnation] = Wish(coordinator, self.facts.now_s)

    def _check_wish(self, incarnation: str, coordinator: int) -> None:
        wish = self._wishes.get(incarnation)
        if wish is None or wish.coordinator != coordinator:
            return
        passed_s = min(self.facts.now_s - wish.at_s, self.undisturbed_s)
        if passed_s > HEARS_S + self.settings.lease_s / SLOWEST:
            raise Violation("drain", f"{incarnation} has not heard that a person wants it to leave")
