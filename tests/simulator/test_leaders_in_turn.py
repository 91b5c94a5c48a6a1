"""Leaders that live in nodes succeed one another, whatever becomes of them and of their nodes."""

from __future__ import annotations

from itertools import islice

from tests.simulator import Fault, Plan, Simulation, draw
from tests.simulator.facts import World
from tests.simulator.plan import AGENTS, LEADER
from tests.simulator.workers import Program, Worker

from rallypoint.core.model import Stamp
from rallypoint.core.takeover.clock_rates import with_margin

LEASE_S = 15.0
AT_S = 20.0
"""All workers run by then."""


class Job:
    """Three nodes that lead by a register, to which this happens; and what became of them."""

    def __init__(self, *faults: Fault) -> None:
        settings = {"min_nodes": 3, "max_nodes": 3, "max_restarts": 3, "lease_s": LEASE_S}
        simulation = Simulation(
            Plan(
                seed=1,
                nodes=3,
                embedded=False,
                register=AGENTS,
                peace_s=90.0,
                settings=settings,
                program=Program(work_s=120.0, deaf=0.0, brittle=0.0),
                faults=faults,
            )
        )
        self.outline = simulation.run()
        assert self.outline.failure is None
        assert self.outline.verdicts == ("succeeded",)
        worlds = simulation._cluster.rules.worlds
        self.rounds, self.worlds = [*worlds], [*worlds.values()]

    def workers_of(self, number: int) -> list[Worker]:
        """In the order of their ranks."""
        return [worker for _, worker in sorted(self.worlds[number].workers.items())]

    def lost_from(self, world: World) -> Worker:
        """The worker of the node that led first, which is not in this world."""
        (lost,) = (
            worker
            for worker in self.workers_of(0)
            if worker.owner.place.name not in {life.split("-")[0] for life in world.lives}
        )
        return lost

    def said(self, text: str) -> int:
        """So often."""
        return sum(text in line for line in self.outline.transcript)

    @property
    def begins_to_lead(self) -> int:
        """How often a coordinator began to lead."""
        return self.said(" leads (epoch") - self.said("no longer leads (epoch")


def test_L4_a_leader_whose_guard_has_marked_its_death_costs_no_wait() -> None:
    job = Job(Fault(AT_S, "kill", LEADER), Fault(AT_S, "start", "x1"))
    assert job.rounds == [Stamp(job.rounds[0].incarnation, number) for number in range(2)]
    assert job.worlds[1].formed_at < AT_S + 2.0
    assert job.said("took over round 0 with 2 of 3 nodes: the leading node died") == 1


def test_L4_a_leader_that_is_cut_off_ends_its_workers_before_the_next_round_begins() -> None:
    job = Job(Fault(AT_S, "isolate", LEADER, 60.0), Fault(AT_S, "start", "x1"))
    before, after = job.worlds
    lost = job.lost_from(after)
    assert lost.ended is not None
    assert AT_S + LEASE_S < lost.ended.at_s < after.formed_at < AT_S + 2 * with_margin(LEASE_S)
    assert job.begins_to_lead == 2, "it comes back, and stops no worker"
    assert before.lives != after.lives


def test_L4_a_leader_that_was_deposed_and_comes_back_in_time_stops_no_worker() -> None:
    job = Job(Fault(AT_S, "isolate", LEADER, 0.8 * LEASE_S))
    assert len(job.worlds) == 1
    assert job.begins_to_lead == 2
    assert job.said("took over round 0 with 3 of 3 nodes") == 1


def test_L4_leaders_that_die_one_after_the_other_leave_each_round_number_used_once() -> None:
    times = [AT_S + 10.0 * number for number in range(4)]
    faults = [(Fault(at, "kill", LEADER), Fault(at, "start", f"x{at:g}")) for at in times]
    job = Job(*(fault for both in faults for fault in both))
    assert job.rounds == [Stamp(job.rounds[0].incarnation, number) for number in range(5)]
    places = [place for world in job.worlds for place in world.places.values()]
    assert {place.restart_count for place in places} == {0}


def test_L1_L5_a_job_ends_the_same_for_everybody_whatever_becomes_of_its_leaders() -> None:
    led = (plan for seed in range(301, 1000) if (plan := draw(seed)).any_leads)
    for plan in islice(led, 10):
        outline = Simulation(plan).run()
        assert outline.failure is None, plan
