"""A coordinator dies, and another one takes over its job from the record and from the agents."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from tests.core.test_cluster_properties import Hammer
from tests.harness.properties import explore
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core import event_kinds as kinds
from rallypoint.core.job_state import note_step
from rallypoint.core.model import EndKind, Outcome, SharedSettings, Stamp
from rallypoint.core.round_state import MemberState, Phase
from rallypoint.core.settings import OnJoin
from rallypoint.core.takeover.handover import UNKNOWN, Predecessor


def cluster_of(nodes: int, max_restarts: int = 3, restart_backoff_s: float = 0.0) -> Cluster:
    """With a register; nobody has begun."""
    settings = SharedSettings(
        "job", nodes, nodes, max_restarts=max_restarts, restart_backoff_s=restart_backoff_s
    )
    return Cluster(settings, has_register=True)


def running(
    nodes: int, max_restarts: int = 3, restart_backoff_s: float = 0.0
) -> tuple[Cluster, list[SimulatedAgent]]:
    """All workers run."""
    cluster = cluster_of(nodes, max_restarts, restart_backoff_s)
    agents = [cluster.start(name) for name in "abcdefgh"[:nodes]]
    cluster.settle()
    assert all(agent.running is not None for agent in agents)
    return cluster, agents


def take_over(
    cluster: Cluster, *without: SimulatedAgent, predecessor: Predecessor = UNKNOWN
) -> None:
    """All agents but those find the new coordinator."""
    cluster.take_over(predecessor)
    for agent in cluster.agents:
        if agent not in without and not agent.is_done:
            cluster.connect(agent)
    cluster.settle()


def outcome(cluster: Cluster) -> Outcome:
    assert cluster.job.verdict is not None
    return cluster.job.verdict.outcome


def test_L5_a_round_goes_on_with_its_number_and_no_worker_notices() -> None:
    cluster, agents = running(3)
    stamps = [agent.running for agent in agents]
    take_over(cluster)
    take_over(cluster)
    assert [agent.running for agent in agents] == stamps
    assert cluster.job.round.phase is Phase.ACTIVE
    for agent in agents:
        cluster.succeed(agent)
    cluster.settle()
    assert outcome(cluster) is Outcome.SUCCEEDED
    assert all(agent.state.verdict == cluster.job.verdict for agent in agents)


def test_L5_a_beat_forgets_nothing_before_it_is_known_what_runs() -> None:
    cluster, _ = running(2)
    cluster.take_over()
    cluster.write_record()
    take_over(cluster)
    assert cluster.job.round.phase is Phase.ACTIVE
    formed = [record for record in cluster.records if record.kind is kinds.ROUND_FORMED]
    assert len(formed) == 1


def test_L5_nothing_is_decided_before_all_have_come_or_a_lease_has_passed() -> None:
    cluster, (a, b) = running(2)
    cluster.take_over()
    cluster.connect(a)
    cluster.settle()
    c = cluster.start("c")
    cluster.settle()
    cluster.pass_time(cluster.settings.lease_s)
    cluster.settle()
    assert a.running is not None
    assert c.running is None
    b.running = None  # its own lease has ended
    cluster.pass_time(4.0)
    cluster.settle()
    assert a.running == c.running
    assert a.running is not None
    assert a.running.round == 1


def test_L5_a_failure_that_happened_meanwhile_is_the_first_cause_and_costs_one_restart() -> None:
    cluster, (a, b) = running(2)
    cluster.take_over()
    cluster.fail(b)
    cluster.settle()
    for agent in (a, b):
        cluster.connect(agent)
    cluster.settle()
    assert cluster.job.ledger.total == 1
    assert a.running == b.running
    assert a.running is not None
    assert a.running.round == 1
    assert "rank 1 (node b" in cluster.job.assigned["a"].why


def test_L3_a_failure_that_was_heard_and_not_judged_is_judged_by_the_next() -> None:
    cluster, (_a, b) = running(2, max_restarts=0)
    cluster.fail(b)
    while move := next((m for m in cluster.moves() if m[1] is b and m[0] != "down"), None):
        cluster.deliver(move)
        cluster.write_record()
    assert cluster.job.verdict is None
    take_over(cluster)
    assert outcome(cluster) is Outcome.FAILED
    cause = cluster.job.verdict.cause if cluster.job.verdict else None
    assert cause is not None
    assert cause.node_id == "b"


def test_L3_a_failure_that_was_judged_is_not_charged_again() -> None:
    cluster, (a, b) = running(2, restart_backoff_s=30.0)
    cluster.fail(b)
    cluster.settle()
    assert cluster.job.ledger.total == 1
    take_over(cluster)
    assert a.running is None
    cluster.pass_time(31.0)
    cluster.settle()
    assert cluster.job.ledger.total == 1
    assert a.running == b.running
    assert a.running is not None
    assert a.running.round == 1


@pytest.mark.parametrize("when", ["during a pause", "before the failure is judged"])
def test_L3_how_often_the_same_has_failed_is_not_forgotten(when: str) -> None:
    cluster, (a, b) = running(2)
    note_step(cluster.job, 120)
    cluster.fail(b)
    cluster.settle()
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
    cluster.pass_time(1.0)
    cluster.settle()
    assert a.running is not None
    cluster.fail(b)
    cluster.settle()
    assert cluster.job.crash_loop.count == 3


def test_L3_workers_that_ran_before_another_leads_may_have_run_for_long() -> None:
    """Of which no steps are known: the clock of the dead leader is not that of this one."""
    cluster, (_, b) = running(2)
    cluster.fail(b)
    cluster.settle()
    take_over(cluster)
    cluster.fail(b)
    cluster.settle()
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
        cluster.connect(agent)
        cluster.settle()
    take_over(cluster)
    cluster.pass_time(31.0)
    cluster.settle()
    assert a.running == b.running
    assert a.running is not None
    assert a.running.round == 1


def test_L3_nobody_hears_of_a_world_before_it_is_recorded() -> None:
    cluster = cluster_of(2)
    a, b = cluster.start("a"), cluster.start("b")
    cluster.write_record()
    while moves := cluster.moves():
        cluster.deliver(moves[0])
    assert cluster.job.round.phase is Phase.ACTIVE
    assert a.state.stamp is None
    take_over(cluster)
    assert a.running == b.running
    assert a.running is not None
    assert a.running.round == 0


def test_L3_a_verdict_is_recorded_before_anybody_hears_it_and_heard_from_the_next() -> None:
    cluster, agents = running(2)
    for agent in agents:
        cluster.succeed(agent)
    while moves := cluster.moves():
        cluster.deliver(moves[0])
    assert outcome(cluster) is Outcome.SUCCEEDED
    assert [agent.finish for agent in agents] == [None, None]
    cluster.write_record()
    take_over(cluster)
    assert all(agent.finish is not None for agent in agents)
    assert outcome(cluster) is Outcome.SUCCEEDED


def test_L3_a_success_that_was_acknowledged_counts_though_its_node_is_lost() -> None:
    cluster, (a, b) = running(2)
    cluster.succeed(a)
    cluster.settle()
    a.running = None
    take_over(cluster, a)
    cluster.succeed(b)
    cluster.settle()
    assert outcome(cluster) is Outcome.SUCCEEDED


def test_L3_a_success_is_recorded_until_its_round_ends() -> None:
    """Also that of a node that is lost, or did not come to the coordinator before."""
    cluster, (a, b, c) = running(3)
    cluster.succeed(a)
    cluster.settle()
    take_over(cluster, a)
    cluster.succeed(b)
    cluster.settle()
    cluster.cut(b)
    cluster.give_up(b)
    cluster.settle()
    round_ = c.running
    take_over(cluster, a, b)
    assert c.running == round_
    cluster.succeed(c)
    cluster.settle()
    assert outcome(cluster) is Outcome.SUCCEEDED


def test_L5_a_node_that_has_succeeded_may_come_when_all_others_go_on() -> None:
    cluster, (a, b) = running(2)
    cluster.succeed(a)
    cluster.settle()
    take_over(cluster, a)
    cluster.connect(a)
    cluster.settle()
    assert a.end.attached is not None
    assert a.end.attached.resumed
    assert [entry.node_id for entry in cluster.job.round.world] == ["a", "b"]
    take_over(cluster, b)
    cluster.connect(b)
    cluster.succeed(b)
    cluster.settle()
    assert outcome(cluster) is Outcome.SUCCEEDED
    assert all(agent.state.verdict == cluster.job.verdict for agent in (a, b))


def test_L5_a_success_counts_though_its_node_was_lost_and_is_back_for_the_next_round() -> None:
    cluster, (a, b) = running(2)
    cluster.succeed(a)
    cluster.settle()
    cluster.give_up(a)
    cluster.connect(a)
    cluster.settle()
    assert cluster.job.round.members["a"].state is not MemberState.RUNNING
    cluster.write_record()
    take_over(cluster, a)
    cluster.succeed(b)
    cluster.settle()
    assert outcome(cluster) is Outcome.SUCCEEDED


def test_L5_a_node_without_a_place_that_attaches_twice_while_all_are_awaited_joins_once() -> None:
    cluster, (a,) = running(1)
    spare = cluster.start("b")
    cluster.settle()
    cluster.take_over()
    cluster.agents.remove(a)
    for _ in range(2):
        cluster.connect(spare)
        cluster.settle()
        cluster.cut(spare)
    cluster.connect(spare)
    cluster.pass_time(2 * cluster.settings.lease_s)
    cluster.settle()
    assert spare.running == Stamp(2, 1), "nobody knows whether other rounds of life 1 have run"
    assert cluster.job.round.phase is Phase.ACTIVE
    cluster.succeed(spare)
    cluster.settle()
    assert outcome(cluster) is Outcome.SUCCEEDED


def test_L5_a_round_that_nobody_has_started_waits_a_moment_for_its_nodes_not_a_lease() -> None:
    cluster = cluster_of(2)
    a, b = cluster.start("a"), cluster.start("b")
    while not cluster.job.round.world:
        cluster.deliver(cluster.moves()[0])
        cluster.write_record()
    cluster.deliver(next(m for m in cluster.moves() if m[0] == "down" and m[1] is a))
    take_over(cluster, b)
    assert cluster.job.round.round == 0
    cluster.pass_time(3.0)
    cluster.settle()
    assert cluster.job.round.round == 1
    cluster.connect(b)
    cluster.settle()
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
    assert cluster.job.end_reason is not None
    assert cluster.job.end_reason.kind is EndKind.DRAIN
    assert cluster.job.round.fitness.loss_count == 0


def test_L5_an_agent_drops_a_coordinator_that_leads_no_more() -> None:
    cluster, (a, _) = running(2)
    old = cluster.sessions
    take_over(cluster)
    assert a.end.attached is not None
    epoch = a.end.attached.epoch
    cluster.cut(a)
    cluster.sessions = old
    cluster.connect(a)
    cluster.settle()
    assert a.end.attached.epoch == epoch
    assert a.running is not None


class Successors(Hammer):
    """The hammer, and coordinators that die at any moment, with what was not recorded."""

    @initialize(
        sizes=st.sampled_from([(1, 1), (1, 3), (2, 2), (2, 3), (3, 3)]),
        budget=st.integers(0, 3),
        backoff_s=st.sampled_from([0.0, 5.0]),
        first=st.integers(1, 4),
        listens=st.booleans(),
        ends_when_asked=st.booleans(),
        on_join=st.sampled_from([OnJoin.RESTART, OnJoin.AT_CHECKPOINT]),
    )
    def begin(
        self,
        sizes: tuple[int, int],
        budget: int,
        backoff_s: float,
        first: int,
        listens: bool,
        ends_when_asked: bool,
        on_join: OnJoin,
    ) -> None:
        self.listens, self.ends_when_asked = listens, ends_when_asked
        self.done: set[object] = set()
        """Rounds in which some worker had nothing left to do."""
        settings = SharedSettings(
            "job",
            sizes[0],
            sizes[1],
            max_restarts=budget,
            restart_backoff_s=backoff_s,
            on_join=on_join,
            min_growth_interval_s=0.0,
            join_settle_s=0.0,
        )
        self.cluster = Cluster(settings, has_register=True)
        self.dead: set[str] = set()
        self.verdicts: set[object] = set()
        self.formed: dict[int, tuple[str, ...]] = {}
        self.given: dict[tuple[int, int], str] = {}
        self.is_slow = False
        for node_id in ("a", "b", "c", "d")[:first]:
            self.begin_agent(node_id, workers=1 + len(self.cluster.agents) % 2)

    def begin_agent(self, node_id: str, workers: int = 1) -> None:
        super().begin_agent(node_id, workers)
        self.cluster.agents[-1].ends_when_asked = self.ends_when_asked

    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        if agent := self.pick(data):
            self.done.add(agent.running)
            self.cluster.succeed(agent)

    def moves(self) -> list[tuple[str, SimulatedAgent]]:
        if not self.is_slow and not self.cluster.is_recorded:
            self.cluster.write_record()
        return super().moves()

    @rule(is_slow=st.booleans())
    def the_register_is_slow(self, is_slow: bool) -> None:
        self.is_slow = is_slow

    @rule()
    def write(self) -> None:
        """Also where nothing has changed, as a beat does."""
        self.cluster.write_record()

    @rule(at_once=st.booleans())
    def take_over(self, at_once: bool) -> None:
        self.cluster.take_over()
        if at_once:
            self.reconnect()

    @invariant()
    def hold(self) -> None:
        if not hasattr(self, "given"):
            return
        job = self.cluster.job
        state = job.round
        assert sum(state.counts.values()) == len(state.members)
        if job.verdict is not None and job.verdict.outcome is Outcome.SUCCEEDED:
            assert Stamp(job.incarnation, job.verdict.round) in self.done
        for agent in self.cluster.agents:
            self.hold_agent(agent)
            if (mine := agent.state.assignment) is not None:
                key = (mine.round, mine.group_rank)
                assert self.given.setdefault(key, agent.ref.incarnation) == agent.ref.incarnation

    def hold_agent(self, agent: SimulatedAgent) -> None:
        assert agent.finishes <= 1
        verdicts = [agent.finish.verdict if agent.finish else None, agent.state.verdict]
        self.verdicts.update(found.outcome for found in verdicts if found is not None)
        assert len(self.verdicts) <= 1

    def teardown(self) -> None:
        if hasattr(self, "done"):
            self.done |= {Stamp(1, number) for number in range(1000)}
        self.is_slow = False
        super().teardown()


def test_L3_L5_a_job_ends_the_same_for_everybody_whichever_coordinators_die() -> None:
    explore(Successors, 200, steps=40)


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
    cluster.pass_time(4.0)
    cluster.settle()
    assert len(began) == nodes or all(agent.running is not None for agent in agents)
    for agent in agents:
        cluster.succeed(agent)
    cluster.settle()
    assert outcome(cluster) is Outcome.SUCCEEDED


def test_L5_a_person_reads_what_was_taken_over_and_who_did_not_come() -> None:
    cluster, (_a, _b, c) = running(3)
    take_over(cluster)
    assert [record.text for record in cluster.records if record.kind is kinds.TAKEN_OVER] == [
        "took over round 0 with 3 of 3 nodes"
    ]
    take_over(cluster, c)
    cluster.pass_time(2 * cluster.settings.lease_s)
    cluster.settle()
    said = [record.text for record in cluster.records if record.kind is kinds.TAKEN_OVER]
    assert said[1:] == ["took over round 0 with 2 of 3 nodes: 1 node did not come back (c)"]


def formed_and_not_told(cluster: Cluster, leader: SimulatedAgent) -> None:
    """A round has ended; the next one is formed and recorded, and its leader is gone."""
    cluster.fail(leader)
    for _ in range(1000):
        if cluster.job.round.round == 1 and cluster.job.round.phase is Phase.ACTIVE:
            break
        if moves := cluster.moves():
            cluster.deliver(moves[0])
        else:
            cluster.write_record()
    assert cluster._durable is not None
    cluster.record = cluster._durable.begin()
    assert cluster.record.is_active
    assert cluster.record.newest_round == 1


@pytest.mark.parametrize("is_dead", [True, False])
def test_R1_nodes_that_were_not_told_of_their_round_wait_for_no_last_call(is_dead: bool) -> None:
    settings = SharedSettings("job", 2, 8, last_call_s=60.0, max_restarts=3)
    cluster = Cluster(settings, has_register=True)
    by_rank = [cluster.start(name) for name in "bc"]
    cluster.settle()
    cluster.pass_time(60.0)
    cluster.settle()
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
    a, b, c = (cluster.start(name) for name in "abc")
    cluster.settle()
    cluster.pass_time(60.0)
    cluster.settle()
    formed_and_not_told(cluster, a)
    cluster.agents.remove(c)
    take_over(cluster)
    cluster.pass_time(3.0)
    cluster.settle()
    assert a.running is None
    assert cluster.job.end_reason is not None
    assert cluster.job.end_reason.text.startswith("1 of 3 nodes did not come to the coordinator")
    cluster.pass_time(60.0)
    cluster.settle()
    assert a.running == b.running == Stamp(2, 2)
