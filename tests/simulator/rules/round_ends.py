"""Rules of how rounds end, and how often, for the jobs of one simulation.

* The job gives a node up for not stopping only when the stop grace of that node is over.
* A round ends for newcomers only where a place is free: a spare stays a spare.
* Each coordinator announces the drain of an agent once, and the drain of an agent ends one round.
* A job ends for too many losses if, and only if, more rounds have lost nodes than it allows.
* A node whose connection was reset has the reset grace, one whose connection was closed has the
  reconnect grace, unless its lease is over before.

What follows from an end is remembered for a while, whoever leads. So in the record of a job:

* A pause before a restart lasts as long as it was decided, though another coordinator takes over.
* A loss of a node counts for ten minutes, and a round that has lost nodes for an hour.
* A node that did not reach the store of rank 0, and a rank 0 that others did not reach, are known
  until a round has started.
"""

from __future__ import annotations

from math import inf

from msgspec import Struct, field
from tests.simulator.facts import Life, Violation

from rallypoint.core import event_kinds as kinds
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.fitness import minimum_remains
from rallypoint.core.fitness_state import HOUR_S, RECENT_LOSS_S
from rallypoint.core.job_fitness import name_of
from rallypoint.core.job_state import JobEffect, JobEvent, JobState, SessionLost
from rallypoint.core.messages import FromNode, ToNode
from rallypoint.core.model import EndKind, EndReason, SharedSettings, Stamp
from rallypoint.core.round_state import STOP_SLACK_S, RoundPhase, RoundState
from rallypoint.core.takeover.record import JobRecord
from rallypoint.core.watch.turns import RoundEnded

EARLY_SHARE = 0.9
"""The share of a wait that has passed at least, on the fastest clock."""


class Ends(Struct, eq=False):
    """The ends of rounds under one coordinator."""

    seen: int
    """The newest round that has ended."""
    ended_at: float
    """When the newest of them ended; -inf: before this coordinator was given an event."""
    lossy: set[int]
    """Rounds that have surely lost a node."""
    doubtful: set[int]
    """The same with rounds in which the job may have counted a loss for another reason."""
    is_over: bool
    """The job had a verdict before this coordinator knew of it."""
    announced: set[str] = field(default_factory=set)
    """The lives of the agents that leave."""


class RoundRules:
    """Follows each step of every job. Raises Violation."""

    def __init__(self, settings: SharedSettings, lives: dict[str, Life]) -> None:
        self._settings, self._lives = settings, lives
        self._ends: dict[int, Ends] = {}
        self._drained: dict[str, Stamp] = {}
        """The round that the drain of each life has ended."""
        self._leavers: dict[str, str] = {}
        """The life of each node that has said that it leaves."""

    def begin(self, state: JobState, newest: int) -> None:
        """A coordinator is about to give the job its first event; `newest`: its last round."""
        lossy = set(state.round.lossy_rounds)
        seen = newest if state.end_reason is not None else newest - 1
        self._ends[id(state)] = Ends(seen, -inf, lossy, set(lossy), state.verdict is not None)

    def stepped(
        self,
        state: JobState,
        event: JobEvent,
        effects: list[JobEffect],
        newest: int,
        now_s: float,
    ) -> None:
        """The job was given this event when `newest` was its last round."""
        ends = self._ends[id(state)]
        if isinstance(event, FromNode) and isinstance(event.message, m.Drain):
            self._announced(ends, event, effects)
        for turn in state.turns:
            if isinstance(turn, RoundEnded) and turn.round > ends.seen:
                ends.seen, ends.ended_at = turn.round, now_s
                self._ended(state, ends, turn)
        if isinstance(event, SessionLost):
            ends.doubtful.add(newest)
        elif isinstance(event, FromNode) and isinstance(event.message, m.HelperDied):
            ends.doubtful.add(event.message.stamp.round)
        for effect in effects:
            if isinstance(effect, ToNode) and isinstance(effect.message, m.Expelled):
                ends.doubtful.add(newest)
                self._check_grace(ends, effect, effect.message, now_s)
        if now_s < EARLY_SHARE * HOUR_S and not ends.is_over:
            self._check_losses(state, ends)

    def lost(self, event: SessionLost, coordinator: int, now_s: float) -> None:
        """A node is lost. Its grace counts from the end of its newest connection."""
        life, settings = self._lives[event.ref.incarnation], self._settings
        closed = life.closed.get(coordinator)
        if closed is None or not event.why.startswith("its connection broke"):
            return
        if life.was_refused:
            return  # Its newest connection carried no session.
        at, is_reset = closed
        silent_s = now_s - life.heard_by.get(coordinator, 0.0)
        grace_s = settings.reset_grace_s if is_reset else settings.reconnect_grace_s
        if max((now_s - at) / grace_s, silent_s / settings.lease_s) < EARLY_SHARE:
            how = "reset" if is_reset else "closed"
            text = f"{event.ref} was lost {now_s - at:.2f} s after its connection was {how}"
            raise Violation("grace", f"{text}, and has {grace_s:g} s")

    def _announced(self, ends: Ends, event: FromNode, effects: list[JobEffect]) -> None:
        life = event.ref.incarnation
        self._leavers[event.ref.node_id] = life
        said = [e for e in effects if isinstance(e, Record) and e.kind is kinds.NODE_DRAINING]
        if said and life in ends.announced:
            raise Violation("drain", f"the drain of {event.ref} was announced twice")
        if said:
            ends.announced.add(life)

    def _ended(self, state: JobState, ends: Ends, turn: RoundEnded) -> None:
        reason, stamp = turn.reason, Stamp(state.incarnation, turn.round)
        if reason.kind is EndKind.INFRASTRUCTURE:
            ends.doubtful.add(turn.round)
        if _has_lost(reason):
            if not _was_counted(state.round, turn):
                ends.lossy.add(turn.round)
            ends.doubtful.add(turn.round)
        if reason.kind is EndKind.GROWTH and state.round.phase is not RoundPhase.ACTIVE:
            size = len(state.round.world)
            if size >= state.round.settings.max_nodes:
                raise Violation("spare", f"a round of {size} nodes ended: {reason.text}")
        life = self._leavers.get(reason.node_id, "") if reason.kind is EndKind.DRAIN else ""
        if life and self._drained.setdefault(life, stamp) != stamp:
            raise Violation("drain", f"that of {life} ended {self._drained[life]} and {stamp}")

    def _check_grace(self, ends: Ends, order: ToNode, expelled: m.Expelled, now_s: float) -> None:
        if not expelled.why.startswith("would not stop"):
            return
        own_s = self._lives[order.ref.incarnation].stop_grace_s + STOP_SLACK_S
        if now_s - ends.ended_at < EARLY_SHARE * own_s:
            waited_s = now_s - ends.ended_at
            raise Violation("stop", f"{order.ref} has {own_s:g} s to stop, and had {waited_s:.2f}")

    def _check_losses(self, state: JobState, ends: Ends) -> None:
        most, verdict = state.round.settings.max_node_losses_per_hour, state.verdict
        if verdict is None and len(ends.lossy) > most:
            raise Violation("losses", f"{len(ends.lossy)} rounds lost nodes, and {most} may")
        is_burning = verdict is not None and "--max-node-losses" in verdict.text
        if is_burning and len(ends.doubtful) <= most:
            raise Violation("losses", f"{len(ends.doubtful)} rounds lost nodes, and {most} may")


def _was_counted(state: RoundState, turn: RoundEnded) -> bool:
    """A loss of this machine counts for another round of this hour, and the minimum remains."""
    machine = name_of(state, turn.reason.node_id)
    others = state.fitness.lossy_machines.items()
    known = any(name == machine and number != turn.round for number, name in others)
    return known and minimum_remains(state, machine)


def _has_lost(reason: EndReason) -> bool:
    """The round ended because a node was lost that did not come back at once."""
    is_loss = "was lost:" in reason.text or "did not come" in reason.text
    return reason.kind is EndKind.LOSS and is_loss and "came back" not in reason.text


class RecordRules:
    """Compares each record of a job with the one before. Raises Violation."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int, int], float] = {}
        """When each thing was in a record first: its kind, the life of the job, its number."""

    def check(self, old: JobRecord, new: JobRecord, now_s: float, *, runs: bool) -> None:
        """Both are of one life of the job, which has no verdict yet. `runs`: a node knows that the
        round runs which the older one is to form."""
        life = new.incarnation
        losses = {loss.id for loss in old.recent_losses} - {loss.id for loss in new.recent_losses}
        self._check_wait("losses", "loss", life, losses, RECENT_LOSS_S, now_s)
        rounds = set(old.lossy_rounds) - set(new.lossy_rounds)
        self._check_wait("losses", "round", life, rounds, HOUR_S, now_s)
        if old.backoff_s and not runs and not (new.backoff_s and new.round == old.round):
            self._check_wait("pause", "pause", life, {old.round}, old.backoff_s, now_s)
        before = old.newest_round, old.is_started
        has_started = new.is_started and (new.newest_round, new.is_started) != before
        forgotten = {*old.bad_routes, *old.passed_over} - {*new.bad_routes, *new.passed_over}
        if forgotten and not has_started:
            raise Violation("held back", f"{sorted(forgotten)} are forgotten, and nothing started")

    def note(self, new: JobRecord, now_s: float) -> None:
        """Note that this record is stored now."""
        known = [("loss", loss.id) for loss in new.recent_losses]
        known += [("round", number) for number in new.lossy_rounds]
        known += [("pause", new.round)] if new.backoff_s else []
        for kind, number in known:
            self._since.setdefault((kind, new.incarnation, number), now_s)

    def _check_wait(
        self, rule: str, kind: str, life: int, gone: set[int], length_s: float, now_s: float
    ) -> None:
        for number in gone:
            passed_s = now_s - self._since.get((kind, life, number), now_s - length_s)
            if passed_s < EARLY_SHARE * length_s:
                text = f"{kind} {number} is forgotten after {passed_s:.1f} of {length_s:g} s"
                raise Violation(rule, text)
