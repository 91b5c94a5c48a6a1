"""A coordinator dies, and another one takes over its job from the record and from the agents."""

from __future__ import annotations

from random import Random

import pytest
from tests.harness.takeovers import cluster_of, running, said, take_over
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core import event_kinds as kinds
from rallypoint.core.job_state import note_step
from rallypoint.core.model import EndKind, Outcome, SharedSettings, Stamp
from rallypoint.core.round_state import MemberState, RoundPhase
from rallypoint.core.takeover.handover import Predecessor


def test_L5_a_round_goes_on_with_its_number_and_no_worker_notices() -> None:
    cluster, agents = running(3)
    stamps = [agent.running for agent in agents]
    take_over(cluster)
    take_over(cluster)
    assert [agent.running for agent in agents] == stamps
    assert cluster.job.round.phase is RoundPhase.ACTIVE
    cluster.end_well(*agents)
    assert cluster.outcome is Outcome.SUCCEEDED
    assert all(agent.state.verdict == cluster.job.verdict for agent in agents)


def test_L5_a_beat_forgets_nothing_before_it_is_known_what_runs() -> None:
    cluster, _ = running(2)
    cluster.take_over()
    cluster.write_record()
    take_over(cluster)
    assert cluster.job.round.phase is RoundPhase.ACTIVE
    formed = [record for record in cluster.records if record.kind is kinds.ROUND_FORMED]
    assert len(formed) == 1


def test_L5_nothing_is_decided_before_all_have_come_or_a_lease_has_passed() -> None:
    cluster, (a, b) = running(2)
    cluster.take_over()
    cluster.bring(a)
    (c,) = cluster.add("c")
    cluster.later(cluster.settings.lease_s)
    assert a.running is not None
    assert c.running is None
    b.running = None  # its own lease has ended
    cluster.later(4.0)
    assert a.running == c.running == Stamp(1, 1)


def test_L5_a_failure_that_happened_meanwhile_is_the_first_cause_and_costs_one_restart() -> None:
    cluster, (a, b) = running(2)
    cluster.take_over()
    cluster.end_badly(b)
    cluster.bring(a, b)
    assert cluster.job.ledger.total == 1
    assert a.running == b.running == Stamp(1, 1)
    assert "rank 1 (node b" in cluster.job.assigned["a"].why


def test_L3_a_failure_that_was_heard_and_not_judged_is_judged_by_the_next() -> None:
    cluster, (_a, b) = running(2, max_restarts=0)
    cluster.fail(b)
    while move := next((m for m in cluster.moves() if m[1] is b and m[0] != "down"), None):
        cluster.deliver(move)
        cluster.write_record()
    assert cluster.job.verdict is None
    take_over(cluster)
    assert cluster.outcome is Outcome.FAILED
    cause = cluster.verdict.cause
    assert cause is not None
    assert cause.node_id == "b"


def test_L3_a_failure_that_was_judged_is_not_charged_again() -> None:
    cluster, (a, b) = running(2, restart_backoff_s=30.0)
    cluster.end_badly(b)
    assert cluster.job.ledger.total == 1
    take_over(cluster)
    assert a.running is None
    cluster.later(31.0)
    assert cluster.job.ledger.total == 1
    assert a.running == b.running == Stamp(1, 1)


@pytest.mark.parametrize("when", ["during a pause", "before the failure is judged"])
def test_L3_how_often_the_same_has_failed_is_not_forgotten(when: str) -> None:
    cluster, (a, b) = running(2)
    note_step(cluster.job, 120)
    cluster.end_badly(b)
    assert a.running is not None, "the first one is followed at once"
    cluster.fail(b)
    if when == "during a pause":
        cluster.settle()
    else:
        while move := next((m for m in cluster.moves() if m[1] is b and m[0] != "down"), None):
            cluster.deliver(move)
            cluster.write_record()
        assert cluster.job.crash_loop.count == 1
    take_over(cluster)
    assert (cluster.job.crash_loop.count, cluster.job.furthest_step) == (2, 120)
    assert a.running is None
    cluster.later(1.0)
    assert a.running is not None
    cluster.end_badly(b)
    assert cluster.job.crash_loop.count == 3


def test_L3_workers_that_ran_before_another_leads_may_have_run_for_long() -> None:
    """Of which no steps are known: the clock of the dead leader is not that of this one."""
    cluster, (_, b) = running(2)
    cluster.end_badly(b)
    take_over(cluster)
    cluster.end_badly(b)
    assert cluster.job.crash_loop.count == 1


def test_L5_what_a_coordinator_has_not_applied_yet_it_does_not_acknowledge() -> None:
    """A node that has failed and has come back waits for the end of a back-off meanwhile."""
    cluster, (a, b) = running(2, restart_backoff_s=30.0)
    cluster.fail(b)
    while not cluster.job.ledger.total:
        cluster.deliver(cluster.moves()[0])
        cluster.write_record()
    cluster.take_over()
    for agent in (b, a):
        cluster.bring(agent)
    take_over(cluster)
    cluster.later(31.0)
    assert a.running == b.running == Stamp(1, 1)


def test_L3_nobody_hears_of_a_world_before_it_is_recorded() -> None:
    cluster = cluster_of(2)
    a, b = cluster.start("a"), cluster.start("b")
    cluster.write_record()
    while moves := cluster.moves():
        cluster.deliver(moves[0])
    assert cluster.job.round.phase is RoundPhase.ACTIVE
    assert a.state.stamp is None
    take_over(cluster)
    assert a.running == b.running == Stamp(1, 0)


def test_L3_a_verdict_is_recorded_before_anybody_hears_it_and_heard_from_the_next() -> None:
    cluster, agents = running(2)
    for agent in agents:
        cluster.succeed(agent)
    while moves := cluster.moves():
        cluster.deliver(moves[0])
    assert cluster.outcome is Outcome.SUCCEEDED
    assert [agent.finish for agent in agents] == [None, None]
    cluster.write_record()
    take_over(cluster)
    assert all(agent.finish is not None for agent in agents)
    assert cluster.outcome is Outcome.SUCCEEDED


def test_L3_a_success_that_was_acknowledged_counts_though_its_node_is_lost() -> None:
    cluster, (a, b) = running(2)
    cluster.end_well(a)
    a.running = None
    take_over(cluster, a)
    cluster.end_well(b)
    assert cluster.outcome is Outcome.SUCCEEDED


def test_L3_a_success_is_recorded_until_its_round_ends() -> None:
    """Also that of a node that is lost, or did not come to the coordinator before."""
    cluster, (a, b, c) = running(3)
    cluster.end_well(a)
    take_over(cluster, a)
    cluster.end_well(b)
    cluster.cut(b)
    cluster.give_up(b)
    cluster.settle()
    round_ = c.running
    take_over(cluster, a, b)
    assert c.running == round_
    cluster.end_well(c)
    assert cluster.outcome is Outcome.SUCCEEDED


def test_L5_a_node_that_has_succeeded_may_come_when_all_others_go_on() -> None:
    cluster, (a, b) = running(2)
    cluster.end_well(a)
    take_over(cluster, a)
    cluster.bring(a)
    assert a.end.attached is not None
    assert a.end.attached.resumed
    assert [entry.node_id for entry in cluster.job.round.world] == ["a", "b"]
    take_over(cluster, b)
    cluster.connect(b)
    cluster.end_well(b)
    assert cluster.outcome is Outcome.SUCCEEDED
    assert all(agent.state.verdict == cluster.job.verdict for agent in (a, b))


def test_L5_a_success_counts_though_its_node_was_lost_and_is_back_for_the_next_round() -> None:
    cluster, (a, b) = running(2)
    cluster.end_well(a)
    cluster.give_up(a)
    cluster.bring(a)
    assert cluster.job.round.members["a"].state is not MemberState.RUNNING
    cluster.write_record()
    take_over(cluster, a)
    cluster.end_well(b)
    assert cluster.outcome is Outcome.SUCCEEDED


def test_L5_a_node_without_a_place_that_attaches_twice_while_all_are_awaited_joins_once() -> None:
    cluster, (a,) = running(1)
    (spare,) = cluster.add("b")
    cluster.take_over()
    cluster.agents.remove(a)
    for _ in range(2):
        cluster.bring(spare)
        cluster.cut(spare)
    cluster.connect(spare)
    cluster.later(2 * cluster.settings.lease_s)
    assert spare.running == Stamp(2, 1), "nobody knows whether other rounds of life 1 have run"
    assert cluster.job.round.phase is RoundPhase.ACTIVE
    cluster.end_well(spare)
    assert cluster.outcome is Outcome.SUCCEEDED


def test_L5_a_round_that_nobody_has_started_waits_a_moment_for_its_nodes_not_a_lease() -> None:
    cluster = cluster_of(2)
    a, b = cluster.start("a"), cluster.start("b")
    while not cluster.job.round.world:
        cluster.deliver(cluster.moves()[0])
        cluster.write_record()
    cluster.deliver(next(m for m in cluster.moves() if m[0] == "down" and m[1] is a))
    take_over(cluster, b)
    assert cluster.job.round.round == 0
    cluster.later(3.0)
    assert cluster.job.round.round == 1
    cluster.bring(b)
    assert a.running == b.running == Stamp(1, 1)


def test_L5_a_node_that_was_told_to_go_tells_the_next_coordinator() -> None:
    cluster, (a, b) = running(2)
    a.listens = b.listens = True
    cluster.notice(b)
    while moves := [m for m in cluster.moves() if m[0] != "local"]:
        cluster.deliver(moves[0])
        cluster.write_record()
    take_over(cluster)
    assert b.is_done
    assert cluster.end.kind is EndKind.DRAIN
    assert cluster.job.round.fitness.loss_count == 0


def test_L5_an_agent_drops_a_coordinator_that_leads_no_more() -> None:
    cluster, (a, _) = running(2)
    old = cluster.sessions
    take_over(cluster)
    assert a.end.attached is not None
    epoch = a.end.attached.epoch
    cluster.cut(a)
    cluster.sessions = old
    cluster.bring(a)
    assert a.end.attached.epoch == epoch
    assert a.running is not None


@pytest.mark.parametrize("seed", range(40))
def test_L5_the_loss_of_coordinators_alone_stops_no_worker(seed: int) -> None:
    """At any moment of a job's life, one after the other."""
    random = Random(seed)
    nodes = random.randint(1, 4)
    cluster = cluster_of(nodes)
    agents = [cluster.start(name) for name in "abcd"[:nodes]]
    began: dict[str, object] = {}
    for _ in range(400):
        if random.random() < 0.03:
            cluster.take_over()
            for agent in agents:
                cluster.connect(agent)
        elif not cluster.is_recorded and random.random() < 0.5:
            cluster.write_record()
        elif moves := cluster.moves():
            cluster.deliver(random.choice(moves))
        elif cluster.is_recorded and random.random() < 0.3:
            cluster.pass_time(1.0)
        for agent in agents:
            if agent.running is not None:
                assert began.setdefault(agent.ref.node_id, agent.running) == agent.running
            else:
                assert agent.ref.node_id not in began
    cluster.settle()
    cluster.later(4.0)
    assert len(began) == nodes or all(agent.running is not None for agent in agents)
    cluster.end_well(*agents)
    assert cluster.outcome is Outcome.SUCCEEDED


def test_L5_a_person_reads_what_was_taken_over_and_who_did_not_come() -> None:
    cluster, (_a, _b, c) = running(3)
    take_over(cluster)
    assert said(cluster) == ["took over round 0 with 3 of 3 nodes"]
    take_over(cluster, c)
    cluster.later(2 * cluster.settings.lease_s)
    assert said(cluster)[1:] == [
        "took over round 0 with 2 of 3 nodes: 1 node did not come back (c)"
    ]


def formed_and_not_told(cluster: Cluster, leader: SimulatedAgent) -> None:
    """A round has ended; the next one is formed and recorded, and its leader is gone."""
    cluster.fail(leader)
    for _ in range(1000):
        if cluster.job.round.round == 1 and cluster.job.round.phase is RoundPhase.ACTIVE:
            break
        if moves := cluster.moves():
            cluster.deliver(moves[0])
        else:
            cluster.write_record()
    cluster.begin_record()
    assert cluster.record.is_active
    assert cluster.record.newest_round == 1


@pytest.mark.parametrize("is_dead", [True, False])
def test_R1_nodes_that_were_not_told_of_their_round_wait_for_no_last_call(is_dead: bool) -> None:
    settings = SharedSettings("job", 2, 8, last_call_s=60.0, max_restarts=3)
    cluster = Cluster(settings, has_register=True)
    by_rank = cluster.add(*"bc")
    cluster.later(60.0)
    by_rank.append(cluster.start("a"))
    cluster.settle()
    formed_and_not_told(cluster, by_rank[0])
    if is_dead:
        cluster.agents.remove(by_rank.pop(0))
    take_over(cluster, predecessor=Predecessor(0, is_dead=is_dead))
    assert [agent.running for agent in by_rank] == [Stamp(2, 2)] * len(by_rank)
    assert cluster.job.ledger.total == 1
    ranks = [cluster.job.assigned[agent.ref.node_id].group_rank for agent in by_rank]
    assert ranks == list(range(len(by_rank)))
    assert len(cluster.job.round.lossy_rounds) == is_dead


def test_R1_a_node_that_does_not_come_is_called_for_once_more() -> None:
    settings = SharedSettings("job", 2, 8, last_call_s=60.0, max_restarts=3)
    cluster = Cluster(settings, has_register=True)
    a, b, c = cluster.add(*"abc")
    cluster.later(60.0)
    formed_and_not_told(cluster, a)
    cluster.agents.remove(c)
    take_over(cluster)
    cluster.later(3.0)
    assert a.running is None
    assert cluster.end.text.startswith("1 of 3 nodes did not come to the coordinator")
    cluster.later(60.0)
    assert a.running == b.running == Stamp(2, 2)
