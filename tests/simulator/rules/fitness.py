"""The rules about bad machines (`core/fitness.py`), checked against the true state of each machine:

* No round ends in order to admit a node whose machine can't start workers.
* A machine that is held back takes part in no world before its time, also at the next coordinator,
  unless the program is at fault, or the minimum is not met without it.
* A machine that ends round after round is held back: after its third loss within ten minutes, or
  its second failure, it ends the next round 8 leases later at the earliest, while the minimum
  remains without it.
* Where one machine alone is bad, and the minimum remains without it, the job succeeds, and is
  charged once at most.
* A program that fails everywhere ends the job within its budget and one try more.
"""

from __future__ import annotations

from msgspec import Struct, field
from tests.simulator.facts import Violation
from tests.simulator.plan import Plan
from tests.simulator.workers import Badness

from rallypoint.core import messages as m
from rallypoint.core.fitness import FLAPPING, PROBATION_S, length_s, machine_of, minimum_remains
from rallypoint.core.fitness_state import RECENT_LOSS_S
from rallypoint.core.job_fitness import name_of
from rallypoint.core.job_state import JobEffect, JobEvent, JobState
from rallypoint.core.model import Cause, EndKind, NodeRef, Outcome, Verdict
from rallypoint.core.round_state import MemberState, RoundPhase, RoundState
from rallypoint.core.takeover.record import JobRecord

CLOCKS = 0.9
"""A clock that is 8 % fast ends a wait so much earlier, and so does a rounded record."""
SLACK_S = 1.0


class _Machine(Struct):
    """The effects of one machine on a life of the job."""

    held_until_s: float = 0.0
    """In true time, at least."""
    unrecorded: dict[int, float] = field(default_factory=dict)
    """The same, by the state of the job that has decided it, until that is recorded."""
    ended: list[tuple[float, EndKind]] = field(default_factory=list)
    """When it has ended a round that went on well without it, and how."""

    def until_s(self, job: int) -> float:
        """The end of its quarantine, as far as the job with this state has to know it."""
        return max(self.held_until_s, self.unrecorded.get(job, 0.0))


class FitnessRules:
    """Told of what jobs do; raises Violation."""

    def __init__(self, bad: dict[str, Badness]) -> None:
        """`bad`: what is wrong with each machine, by its name."""
        self._bad = bad
        self._machines: dict[tuple[int, str], _Machine] = {}
        self._worlds: dict[tuple[int, int], dict[str, str]] = {}
        """The machine of each node of a round, by the life of the job and the round."""
        self._formed_by: dict[tuple[int, int], int] = {}
        """The job's state that has formed a round, by the same."""
        self._holds: set[tuple[int, int, int]] = set()
        """The quarantines that are known: of which job's state, machine and number."""
        self._seen_since: dict[NodeRef, float] = {}
        """When each agent joined first."""
        self._active_since: float | None = None
        """When the newest world was formed; None: its round has ended."""
        self.has_passed = False
        """A round has run for the time of a probation, on each clock."""
        self.charges = self.tries = self.held_at_try = 0
        """The restarts that were charged, the rounds that workers have ended by a failure, and the
        last of these after which a machine was held back in place of a charge."""

    def begun_anew(self) -> FitnessRules:
        """Return the rules for a job whose machines are not known any more."""
        return FitnessRules(self._bad)

    def stepped(
        self, job: JobState, event: JobEvent, effects: list[JobEffect], now_s: float
    ) -> None:
        """The job's machine was given an event."""
        if isinstance(event, m.FromNode) and isinstance(event.message, m.Join):
            self._seen_since.setdefault(event.ref, now_s)
        self.charges = max(self.charges, job.ledger.total)
        if self._active_since is not None and job.round.phase is not RoundPhase.ACTIVE:
            lasted_s = now_s - self._active_since
            self._active_since = None
            self.has_passed |= lasted_s * CLOCKS > PROBATION_S
        orders = (effect.message for effect in effects if isinstance(effect, m.ToNode))
        if any(isinstance(x, m.StopNow) and x.reason.kind is EndKind.GROWTH for x in orders):
            self._check_growth(job.round)
        self._note_holds(job, now_s)

    def full(self, machines: list[str]) -> list[str]:
        """Return those of these machines that can't start workers."""
        bad = [name for name in machines if name in self._bad]
        return [name for name in bad if self._bad[name].full_since is not None]

    def is_charged_for_a_start(self, job: JobState, full: list[str]) -> bool:
        """Whether workers that were not started may be charged. `full`: the machines that could not
        start them."""
        remains = all(minimum_remains(job.round, machine) for machine in full)
        return bool(full) and (len(full) > 1 or not remains)

    def _check_growth(self, state: RoundState) -> None:
        """Nodes that waited have joined the next round; all others stop their workers."""
        for member in state.members.values():
            bad = self._bad.get(machine_of(member))
            if member.state is not MemberState.JOINED or bad is None or bad.full_since is None:
                continue
            if bad.full_since <= self._seen_since.get(member.ref, -1.0):
                text = f"a round has ended for node {member.ref}, which can't start workers"
                raise Violation("fitness", text)

    def _note_holds(self, job: JobState, now_s: float) -> None:
        known = job.round.fitness
        for name, machine in known.machines.items():
            hold = machine.hold
            if hold is None or (id(job), hash(name), hold.number) in self._holds:
                continue
            self._holds.add((id(job), hash(name), hold.number))
            left_s = (hold.until - known.now) * CLOCKS - SLACK_S
            of_it = self._machines.setdefault((job.incarnation, name), _Machine())
            before_s = of_it.unrecorded.get(id(job), 0.0)
            of_it.unrecorded[id(job)] = max(before_s, now_s + left_s)
        for failure in known.failures:
            if failure.is_programs and (job.incarnation, failure.machine) in self._machines:
                released = self._machines[job.incarnation, failure.machine]
                released.held_until_s = 0.0
                released.unrecorded.clear()

    def recorded(self, job: JobRecord) -> None:
        """The register holds this record: the next coordinator knows the quarantines in it."""
        machines = {} if job.machines is None else job.machines.machines
        for name, machine in machines.items():
            of_it = self._machines.get((job.incarnation, name))
            if machine.hold is not None and of_it is not None:
                of_it.held_until_s = max(of_it.held_until_s, *of_it.unrecorded.values(), 0.0)
                of_it.unrecorded.clear()

    def formed(self, job: JobState, now_s: float) -> None:
        """A world was formed."""
        state, self._active_since = job.round, now_s
        machines = {entry.node_id: entry.machine or entry.node_id for entry in state.world}
        self._worlds[job.incarnation, state.round] = machines
        self._formed_by[job.incarnation, state.round] = id(job)
        held = []
        for entry in state.world:
            of_it = self._machines.get((job.incarnation, machines[entry.node_id]))
            if of_it is not None and now_s < of_it.until_s(id(job)):
                held.append(entry.node_id)
        others = len(state.world) - len(held)
        if held and others >= state.settings.min_nodes and state.settings.world_multiple_of == 1:
            raise Violation("fitness", f"node {held[0]} is held back, and is in the world")

    def judged(self, job: JobState, cause: Cause, now_s: float, *, is_broken: bool = False) -> None:
        """A round was ended by a failure of a node's worker, or by the loss of a node. `is_broken`:
        the program fails everywhere."""
        state = job.round
        kind = EndKind.LOSS if cause.failure is None else EndKind.FAILURE
        # The node may have gone, and another one may have its id in the next round already.
        machines = self._worlds.get((job.incarnation, cause.round), {})
        machine = machines.get(cause.node_id) or name_of(state, cause.node_id)
        is_former = self._formed_by.get((job.incarnation, cause.round)) != id(job)
        self.tries += kind is EndKind.FAILURE
        if state.fitness.failures and state.fitness.failures[-1].holds:
            self.held_at_try = self.tries
        if (
            is_broken
            or not minimum_remains(state, machine)
            or len(job.round.fitness.failures) > FLAPPING
        ):
            return
        if kind is EndKind.LOSS and is_former and not _counts(state, machine):
            return  # The record that was taken over names the machine of its leader alone.
        of_it = self._machines.setdefault((job.incarnation, machine), _Machine())
        recent = [each for each in of_it.ended if each[0] > now_s - RECENT_LOSS_S * CLOCKS]
        failures = [at for at, how in recent if how is EndKind.FAILURE]
        losses = [at for at, how in recent if how is not EndKind.FAILURE]
        enough = [losses] if len(losses) >= FLAPPING else []
        enough += [failures] if len(failures) >= state.settings.hold_back_after > 0 else []
        held_since = max((at[-1] for at in enough), default=float("-inf"))
        if now_s < held_since + length_s(state, 1) * CLOCKS - SLACK_S:
            text = f"{machine} has ended {len(recent)} rounds, and ends another one"
            raise Violation("fitness", text)
        of_it.ended = [*recent, (now_s, kind)]


def _counts(state: RoundState, machine: str) -> bool:
    """Whether the job knows of a recent loss of this machine."""
    return any(loss.machine == machine for loss in state.fitness.recent_losses)


def check_end(plan: Plan, rules: FitnessRules, verdicts: list[Verdict]) -> None:
    """Check the end of the job, where its plan determines it."""
    if not verdicts:
        return
    outcome = verdicts[0].outcome  # The bad machine may begin a life of its own after it.
    budget = plan.settings["max_restarts"]
    if plan.one_is_bad:
        # Until a round has passed its probation, a newcomer's first failure is the program's.
        is_early = plan.is_of_lame_newcomer and not rules.has_passed
        allowed = max(plan.charges_at_most, int(is_early))
        if outcome is not Outcome.SUCCEEDED and budget >= allowed:
            raise Violation("fitness", f"one bad machine has ended the job: {verdicts[0].text}")
        if rules.charges > allowed:
            raise Violation("fitness", f"one bad machine has cost {rules.charges} restarts")
    is_broken = plan.program.broken_s and not plan.faults
    # The last try may have held its machine back in place of a charge, as if only that were bad.
    most = budget + 1 + (rules.held_at_try == budget + 1)
    if is_broken and (outcome is not Outcome.FAILED or rules.tries > most):
        tries = f"{outcome.value} after {rules.tries} tries, with a budget of {budget}"
        raise Violation("fitness", f"a program that fails everywhere has {tries}")
