"""Rules of what a failure costs, and who is blamed for it (behaviours A2, A3, A5).

* A job ends for want of restarts only when as many count as it may use: with a window only those
  in it. With a window it uses no more of them in it.
* How often the same has failed counts each equal failure that got no further than any before it,
  and none that did, nor one that is its machine's fault. The pause that follows from it is kept.
* Workers that only tell of a lost peer are not blamed for a round whose peer has died before; where
  nodes have heard that it has ended by a loss, no worker is that fails after the loss.
* What fails after a round was ended for another reason is charged to nobody.
* What a node's agent was told to go for two seconds before, and the coordinator knows, is charged
  to nobody.
* What is told of a failure is of that worker, and of no other one.
"""

from __future__ import annotations

from msgspec import Struct
from tests.simulator.facts import Violation
from tests.simulator.invariants import Invariants
from tests.simulator.rules.rule import FASTEST, SLOWEST, Rule
from tests.simulator.workers import Worker, message_of

from rallypoint.core import messages as m
from rallypoint.core.cause import COLLATERAL_S
from rallypoint.core.job_state import JobEffect, JobEvent, JobState
from rallypoint.core.model import Cause, EndKind, Outcome, SharedSettings, Stamp
from rallypoint.core.node.events import SPAWN_FAILED
from rallypoint.core.restarts import PAUSE_MAX_S, PAUSE_S, CrashLoop, ending_of, is_same
from rallypoint.core.round_state import RoundPhase

SLACK_S = 0.5
DELAY_S = 0.3
"""A drain that comes so much later than its age says has an age that is right."""


class Followed(Struct, eq=False):
    """The job of one coordinator, as it was last."""

    loop: CrashLoop
    judged: int
    charges: int
    judged_at: float = 0.0


class Charges(Rule):
    """Follows the end of each round."""

    def __init__(self, facts: Invariants, settings: SharedSettings) -> None:
        super().__init__(facts, settings)
        self._followed: dict[int, Followed] = {}
        self._charged: dict[int, dict[int, tuple[int, list[float]]]] = {}
        """The coordinator that charged a restart, and when, by the life of the job and the round
        that was judged."""
        self._led_since = 0.0
        self._drains: dict[str, float] = {}
        """When each agent was told to go, of those whose coordinator knows since when."""
        self._told_at: dict[str, float] = {}
        self._ended_at: dict[Stamp, float] = {}
        """When an agent first heard that this round had ended, but not by a failure."""
        self._lost: set[Stamp] = set()
        """Rounds of which agents have heard that a loss had ended them."""

    def leads(self, state: JobState, coordinator: int) -> None:
        self._followed[id(state)] = Followed(
            state.crash_loop, state.judged_round, state.ledger.total
        )
        self._led_since = self.facts.now_s

    def told_to_go(self, incarnation: str) -> None:
        self._told_at.setdefault(incarnation, self.facts.now_s)

    def read(self, incarnation: str, coordinator: int, message: m.ToCoordinator) -> None:
        if not isinstance(message, m.Numbered) or not isinstance(message.report, m.Drain):
            return
        told_at, age_s = self._told_at.get(incarnation), message.report.age_s
        if told_at is not None:
            late_s = self.facts.now_s - told_at - age_s
            if abs(late_s) < DELAY_S + age_s * (FASTEST - 1):
                self._drains[incarnation] = told_at

    def told(self, incarnation: str, message: m.ToAgent) -> None:
        if isinstance(message, m.StopNow) and message.reason.kind is not EndKind.FAILURE:
            self._ended_at.setdefault(message.stamp, self.facts.now_s)
            if message.reason.kind is EndKind.LOSS:
                self._lost.add(message.stamp)

    def stepped(self, state: JobState, event: JobEvent, effects: list[JobEffect]) -> None:
        seen = self._followed[id(state)]
        if state.ledger.total > seen.charges:
            self._note_charge(state)
            self._check_used(state)
        seen.charges = state.ledger.total
        self._check_details(state)
        if state.judged_round != seen.judged:
            self._judged(state, seen)
            seen.judged, seen.judged_at = state.judged_round, self.facts.now_s
            seen.loop = state.crash_loop
        elif state.crash_loop != seen.loop:
            raise Violation("crash loop", f"{seen.loop} became {state.crash_loop} in a round")
        self._check_pause(state, seen)

    def _judged(self, state: JobState, seen: Followed) -> None:
        cause = state.last_cause
        expected = self._loop_after(state, seen.loop)
        if expected is not None and state.crash_loop.count != expected:
            text = f"{state.crash_loop} after {seen.loop}, which is {expected} equal failures"
            raise Violation("crash loop", text)
        if cause is None or cause.failure is None:
            return
        if state.verdict is not None and state.verdict.outcome is Outcome.FAILED:
            self._check_verdict(state)
        worker = self._blamed(Stamp(state.incarnation, state.judged_round - 1), cause)
        if worker is not None:
            self._check_order(worker)
            self._check_consequence(worker)
            self._check_drains(worker)

    def _loop_after(self, state: JobState, before: CrashLoop) -> int | None:
        """How many equal failures there were in a row, with this one; None: that depends on how
        long workers lived."""
        reach, ended_by = state.furthest_step, state.end_reason or state.last_end
        if reach < 0 or ended_by is None:
            return None
        is_further, cause = reach > before.step, state.last_cause
        if cause is None or cause.failure is None:
            return before.count if ended_by.kind.is_planned and not is_further else 0
        if state.verdict is None and _is_spared(state):
            return before.count
        repeats = before.ending is not None and is_same(before.ending, ending_of(cause.failure))
        return before.count + 1 if repeats and not is_further else 1

    def _check_pause(self, state: JobState, seen: Followed) -> None:
        """Once the next round is formed."""
        if state.round.phase is not RoundPhase.ACTIVE or not seen.judged_at or seen.loop.count < 2:
            return
        pause_s = min(PAUSE_S * 2.0 ** (seen.loop.count - 2), PAUSE_MAX_S)
        waited_s, seen.judged_at = self.facts.now_s - seen.judged_at, 0.0
        failed = state.last_cause is not None and state.last_cause.failure is not None
        is_charged = failed and not _is_spared(state)
        if is_charged and waited_s * FASTEST + 0.01 < pause_s:
            text = f"{seen.loop.count} equal failures, and a pause of {waited_s:.2f} s"
            raise Violation("crash loop", text)

    def _note_charge(self, state: JobState) -> None:
        charges = self._charged.setdefault(state.incarnation, {})
        by, times = charges.get(state.judged_round, (0, []))
        # A charge that was not recorded is made again by the next coordinator.
        earlier = times if by == id(state) else []
        charges[state.judged_round] = id(state), [*earlier, self.facts.now_s]

    def _charges(self, incarnation: int) -> list[float]:
        """The times of all charges of this life."""
        return [at for _, times in self._charged.get(incarnation, {}).values() for at in times]

    def _check_used(self, state: JobState) -> None:
        window_s = self.settings.restart_window_s
        charged = self._charges(state.incarnation)
        used = sum(self.facts.now_s - at < window_s / FASTEST - SLACK_S for at in charged)
        if window_s and used > self.settings.max_restarts:
            raise Violation("budget", f"{used} restarts within {window_s:g} s")

    def _check_verdict(self, state: JobState) -> None:
        window_s = self.settings.restart_window_s
        if not window_s or state.no_progress or self.undisturbed_s < SLACK_S:
            return
        # What was charged is carried to another number of the job.
        charged = [at for number in state.numbers for at in self._charges(number)]
        counted = [max(at, self._led_since) for at in charged]
        count = sum(self.facts.now_s - at < window_s / SLOWEST + SLACK_S for at in counted)
        if count < self.settings.max_restarts:
            most = self.settings.max_restarts
            text = f"{count} of {most} restarts were used within {window_s:g} s: {state.verdict}"
            raise Violation("budget", text)

    def _blamed(self, stamp: Stamp, cause: Cause) -> Worker | None:
        world = self.facts.worlds.get(stamp)
        if world is None or cause.failure is None:
            return None
        return world.workers.get(cause.failure.rank)

    def _check_order(self, worker: Worker) -> None:
        over_at = self._ended_at.get(worker.owner.stamp)
        if over_at is not None and worker.ended is not None and worker.ended.at_s > over_at:
            late_s = worker.ended.at_s - over_at
            text = f"rank {worker.rank} failed {late_s:.2f} s after its round had ended otherwise"
            raise Violation("blame", f"{text}, and is blamed")

    def _check_consequence(self, worker: Worker) -> None:
        is_lost = worker.owner.stamp in self._lost
        if not (worker.tells_of_lost_peer or is_lost) or worker.ended is None:
            return
        for life in self.facts.worlds[worker.owner.stamp].lives:
            died_at = self.facts.lives[life].died_at
            ends = self._ends_of(worker.owner.stamp, life)
            if died_at is not None and died_at <= worker.ended.at_s and min(ends) >= died_at:
                what = "failed" if is_lost else "tells of a lost peer"
                text = f"rank {worker.rank} {what}, and is blamed: {life} had died"
                raise Violation("blame", text)

    def _ends_of(self, stamp: Stamp, life: str) -> list[float]:
        """When the workers of this agent have ended, in this round."""
        workers = self.facts.worlds[stamp].workers.values()
        own = [each.ended for each in workers if each.owner.place.life == life]
        return [end.at_s for end in own if end is not None] or [float("-inf")]

    def _check_drains(self, worker: Worker) -> None:
        ended = worker.ended
        if ended is None:
            return
        for life in self.facts.worlds[worker.owner.stamp].lives:
            began_at = self._drains.get(life)
            if began_at is None:
                continue
            after_s = ended.at_s - began_at
            slack_s = DELAY_S + (self.facts.now_s - began_at) * (FASTEST - 1)
            if slack_s < after_s < COLLATERAL_S - slack_s:
                text = f"rank {worker.rank} is blamed: {life} was told to go {after_s:.2f} s before"
                raise Violation("drain", text)

    def _check_details(self, state: JobState) -> None:
        for report in state.reports:
            failure = report.failure
            if not failure.message or failure.code == SPAWN_FAILED:
                continue
            own = {
                message_of(failure.rank, life.ref.incarnation)
                for life in self.facts.lives.values()
                if life.ref.node_id == report.node_id
            }
            if failure.message not in own:
                text = f"rank {failure.rank} of node {report.node_id} is said to have said"
                raise Violation("details", f"{text} {failure.message!r}")


def _is_spared(state: JobState) -> bool:
    """The newest failure was not charged, since its machine was held back for it."""
    failures = state.round.fitness.failures
    return bool(failures) and not failures[-1].is_charged
