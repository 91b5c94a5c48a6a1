"""Runs one plan: builds the machines, breaks them, mends them, and waits for the end."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

from msgspec import Struct
from msgspec.structs import replace
from tests.simulator.cluster import SimulatedCluster
from tests.simulator.facts import Violation, check_rounds
from tests.simulator.faults import Faults
from tests.simulator.plan import PUT_BACK, Fault, Plan
from tests.simulator.rules.fitness import check_end

from rallypoint.core.restarts import PAUSE_MAX_S
from rallypoint.core.search import NO_ANSWER_S
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.leading import HEIRS_ONLY_LEASES, after_put_back_s
from rallypoint.core.takeover.stepping_down import IN_A_ROW_MAX
from rallypoint.errors import InvariantError

ANSWERS_S = 60.0
"""A person has an answer so long after the last agent has ended, at the latest."""
KEEP_S = 2.0
"""So often the peace is kept: nodes are added where too few are left."""


class Failure(Struct, frozen=True):
    """A rule that did not hold."""

    rule: str
    text: str
    at_s: float


class Outline(Struct, frozen=True):
    """How a simulation went."""

    failure: Failure | None
    transcript: tuple[str, ...]
    verdicts: tuple[str, ...]
    seconds: float
    """Of virtual time."""
    moments: tuple[tuple[Fault, str], ...] = ()
    """What went wrong, and in which state of the job."""


class Simulation:
    """One run of a plan. `run` once."""

    def __init__(self, plan: Plan) -> None:
        self._cluster = SimulatedCluster(plan)
        self._faults = Faults(self._cluster)

    def run(self) -> Outline:
        """To its end, or until a rule does not hold."""
        cluster, failure = self._cluster, None
        try:
            self._run()
        except Violation as violation:
            failure = Failure(violation.rule, str(violation), cluster.schedule.now_s)
        except InvariantError as error:
            failure = Failure("crash", str(error), cluster.schedule.now_s)
        cluster.discard()
        verdicts = tuple(v.outcome.value for v in cluster.rules.verdicts.values())
        lines, moments = tuple(cluster.transcript.lines), tuple(self._faults.moments)
        return Outline(failure, lines, verdicts, cluster.schedule.now_s, moments)

    def _run(self) -> None:
        cluster, plan = self._cluster, self._cluster.plan
        rng = Random(f"{plan.seed} starts")
        for name in plan.names:
            delay_s = 0.0 if name == plan.coordinator_host else rng.random()
            cluster.schedule.after(delay_s, partial(cluster.start, name))
        cluster.schedule.at(plan.peace_s, self._begin_peace)
        settle_s = self._lead_s if plan.any_leads else self._settle_s
        world_by_s, end_by_s = plan.peace_s + settle_s, plan.peace_s + self._end_s
        was_quiet, was_deserted = True, False
        while cluster.step():
            now_s = cluster.schedule.now_s
            if cluster.transcript.problem is not None:
                raise cluster.transcript.problem
            if now_s > plan.peace_s and not cluster.live:
                break
            if was_quiet and now_s > world_by_s:
                if plan.any_leads and cluster.is_deserted and not was_deserted:
                    was_deserted = True
                    world_by_s += self._desertion_s
                    continue
                was_quiet = False
                self._check_world()
            if now_s > end_by_s:
                raise Violation("liveness", f"no end: {self._whose_end()}")
        self._check_rest()

    @property
    def _lead_s(self) -> float:
        """The same where any agent may lead: a leader is lost and another one begins, twice at the
        worst, some step down, the nodes that are missing are fenced (later where an older record
        was put back), the others stop, wait out a pause, and join."""
        rendezvous = self._cluster.shared.config.rendezvous
        lease_s, stop = rendezvous.lease_s, self._cluster.shared.config.stop
        taken_s = 2 * with_margin(HOLD_S) + (1 + IN_A_ROW_MAX) * with_margin(lease_s)
        if any(fault.kind in PUT_BACK for fault in self._cluster.plan.faults):
            longer_s = after_put_back_s(HOLD_S, lease_s) + with_margin(lease_s)
            taken_s = max(taken_s, 2 * with_margin(HOLD_S) + longer_s)
        stops_s = (
            stop.shutdown_grace_s
            + self._cluster.plan.longest_grace_s
            + rendezvous.stop_patience_s
            + 4.0
        )
        return 1.1 * (taken_s + stops_s + self._pause_s)

    @property
    def _pause_s(self) -> float:
        """Before a restart, and after it until more nodes have had the time to come."""
        rendezvous = self._cluster.shared.config.rendezvous
        most = PAUSE_MAX_S if rendezvous.restart_window_s else 2.0**rendezvous.max_restarts
        return max(8 * rendezvous.restart_backoff_s, most) + rendezvous.last_call_s

    @property
    def _desertion_s(self) -> float:
        """So much longer where no node is left of the newest world: that must be certain first."""
        return 1.1 * HEIRS_ONLY_LEASES * self._cluster.shared.settings.lease_s

    @property
    def _settle_s(self) -> float:
        """So long after the peace there is a world, or a verdict: the silent are lost (a lease
        more when they are many), the others stop, wait out a pause, and join."""
        rendezvous, stop = self._cluster.shared.config.rendezvous, self._cluster.shared.config.stop
        lost_s = 2 * rendezvous.lease_s + 2.0
        stops_s = (
            stop.shutdown_grace_s
            + self._cluster.plan.longest_grace_s
            + rendezvous.stop_patience_s
            + 4.0
        )
        taken_s = 2 * with_margin(HOLD_S) if self._cluster.plan.any_leads else 0.0
        joins_s = rendezvous.join_timeout_s + NO_ANSWER_S / 2
        return 1.1 * (taken_s + lost_s + stops_s + self._pause_s + joins_s)

    @property
    def _end_s(self) -> float:
        """So long after it everybody has ended: some rounds more, of which newcomers end some."""
        rendezvous = self._cluster.shared.config.rendezvous
        grow_s = rendezvous.min_growth_interval_s + rendezvous.join_settle_max_s
        return 3 * (self._settle_s + grow_s + 1.1 * self._cluster.plan.program.work_s) + NO_ANSWER_S

    def _begin_peace(self) -> None:
        self._cluster.transcript.say("", "-- nothing goes wrong any more")
        self._faults.end()
        self._keep()

    def _keep(self) -> None:
        """Too few nodes for a job that waits for some: add what it needs."""
        cluster = self._cluster
        has_coordinator = cluster.plan.any_leads or bool(cluster.serves.running)
        has_coordinator |= cluster.of(cluster.plan.coordinator_host) is not None
        if not cluster.live or not has_coordinator:
            return
        for _ in range(cluster.plan.fewest_nodes - len(cluster.live)):
            cluster.start(f"y{len(cluster.machines) + 1}")
        cluster.schedule.after(KEEP_S, self._keep)

    def _check_world(self) -> None:
        cluster, rules = self._cluster, self._cluster.rules
        peace_s, worlds = cluster.plan.peace_s, rules.worlds.values()
        has_begun = any(world.formed_at > peace_s for world in worlds)
        # A round may have been formed just before, and be about to succeed.
        ends = (worker.ended for world in worlds for worker in world.workers.values())
        has_begun |= any(end and end.code == 0 and end.at_s > peace_s for end in ends)
        if not rules.any_runs and not rules.verdicts and not has_begun:
            raise Violation("liveness", f"no world and no verdict: {self._whose_end()}")

    def _whose_end(self) -> str:
        return ", ".join(f"{x.ref.incarnation} is {x.doing}" for x in self._cluster.live)

    def _check_rest(self) -> None:
        """Nothing is left, and all tell the same."""
        cluster = self._cluster
        for machine in cluster.machines:
            check_rounds(machine.process.dispatcher.timeline, cluster.transcript.rounds)
        if cluster.live:
            raise Violation("liveness", f"nothing will ever happen: {self._whose_end()}")
        while any(machine.place.workers for machine in cluster.machines) and cluster.step():
            cluster.rules.check_fences()
        if any(machine.place.workers for machine in cluster.machines):
            raise Violation("leftover", "workers run, and no agent lives")
        answer_by_s = cluster.schedule.now_s + ANSWERS_S
        while cluster.waiting_people and cluster.schedule.now_s < answer_by_s and cluster.step():
            pass
        if waiting := cluster.waiting_people:
            raise Violation("liveness", f"people wait for an answer for ever: {waiting}")
        if cluster.transcript.problem is not None:
            raise cluster.transcript.problem
        verdicts = list(cluster.rules.verdicts.values())
        check_end(cluster.plan, cluster.rules.fitness, verdicts)


def shrunk(plan: Plan, rule: str, runs: int = 200) -> Plan:
    """The smallest plan found in so many runs at most. `rule`: the one that `plan` breaks."""
    left = runs
    was_smaller = True
    while was_smaller:
        was_smaller = False
        for candidate in _smaller(plan):
            if left <= 0:
                return plan
            left -= 1
            if _breaks(candidate, rule):
                plan, was_smaller = candidate, True
                break
    return plan


def _breaks(plan: Plan, rule: str) -> bool:
    failure = Simulation(plan).run().failure
    return failure is not None and failure.rule == rule


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Half of the faults, then without one of them, then without a node, then on equal clocks."""
    faults = plan.faults
    half = len(faults) // 2
    if half > 1:
        yield replace(plan, faults=faults[:half])
        yield replace(plan, faults=faults[half:])
    for number in reversed(range(len(faults))):
        yield replace(plan, faults=faults[:number] + faults[number + 1 :])
    minimum = plan.settings.get("min_nodes", 1)
    if plan.nodes > minimum:
        yield replace(plan, nodes=plan.nodes - 1)
    elif plan.nodes > 1:
        settings = {**plan.settings, "min_nodes": minimum - 1}
        yield replace(plan, nodes=plan.nodes - 1, settings=settings)
    if plan.workers > 1:
        yield replace(plan, workers=1)
    if plan.rates:
        yield replace(plan, rates={})
    if plan.graces:
        yield replace(plan, graces={})
