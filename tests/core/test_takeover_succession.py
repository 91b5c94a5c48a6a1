"""Leaders that live in nodes succeed one another, whatever becomes of them and of their nodes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.harness.led_cluster import LedCluster
from tests.harness.properties import explore
from tests.harness.whole_job import SimulatedAgent

from rallypoint.core.model import Outcome, SharedSettings, Stamp

NODES = ["a", "b", "c", "d", "e", "f"]


def running(nodes: int) -> tuple[LedCluster, list[SimulatedAgent]]:
    """All workers run, and the first agent leads."""
    cluster = LedCluster(SharedSettings("job", nodes, nodes))
    agents = [cluster.start(name) for name in NODES[:nodes]]
    cluster.lead_from(agents[0])
    cluster.settle()
    cluster.pass_time(1.0)
    assert all(agent.running == Stamp(1, 0) for agent in agents)
    return cluster, agents


def go_on(cluster: LedCluster, seconds: float = 0.0) -> None:
    cluster.reconnect()
    cluster.settle()
    cluster.pass_time(seconds)
    cluster.settle()


def wait_and_claim(cluster: LedCluster, agent: SimulatedAgent) -> None:
    """When the record has stood still for long enough."""
    cluster.pass_time(cluster.claims_at - cluster.timers.now_s)
    cluster.claim(agent, is_dead=False)


def test_L4_a_leader_whose_guard_has_marked_its_death_costs_no_wait() -> None:
    cluster, (a, b, c) = running(3)
    cluster.die(a)
    cluster.claim(b, is_dead=True)
    cluster.start("d")
    go_on(cluster)
    assert b.running == c.running == Stamp(1, 1)


def test_L4_a_leader_that_is_cut_off_ends_its_workers_before_the_next_round_begins() -> None:
    cluster, (a, b, c) = running(3)
    cluster.isolate(a)
    d = cluster.start("d")
    wait_and_claim(cluster, b)
    cluster.reconnect()
    while a.running is not None:
        assert d.running is None
        cluster.settle()
        cluster.pass_time(0.5)
    go_on(cluster, 3.0)
    assert b.running == c.running == d.running == Stamp(1, 1)
    cluster.rejoin(a)
    cluster.settle()
    assert a.running is None
    assert b.running == Stamp(1, 1)


def test_L4_a_leader_that_was_deposed_and_comes_back_in_time_stops_no_worker() -> None:
    cluster, agents = running(3)
    a, b, _ = agents
    cluster.isolate(a)
    wait_and_claim(cluster, b)
    cluster.reconnect()
    cluster.settle()
    cluster.rejoin(a)
    go_on(cluster, 30.0)
    assert all(agent.running == Stamp(1, 0) for agent in agents)


def test_L4_leaders_that_die_one_after_the_other_leave_each_round_number_used_once() -> None:
    cluster, agents = running(3)
    rounds = [agents[0].running]
    for name in "defg":
        leader = cluster.leader
        assert leader is not None
        cluster.die(leader)
        heir = next(agent for agent in cluster.agents if agent.running is not None)
        cluster.claim(heir, is_dead=True)
        cluster.start(name)
        go_on(cluster, 1.0)
        rounds.append(heir.running)
    assert rounds == [Stamp(1, number) for number in range(5)]
    assert cluster.job.ledger.total == 0


class Leaders(RuleBasedStateMachine):
    """Nodes that come and go, one of which leads; and workers that fail, or have nothing left to
    do."""

    @initialize(
        sizes=st.sampled_from([(1, 2), (2, 2), (2, 3), (3, 3), (3, 4)]),
        budget=st.integers(0, 3),
        backoff_s=st.sampled_from([0.0, 5.0]),
        first=st.integers(1, 4),
        has_begun=st.sampled_from([True, True, True, False]),
    )
    def begin(
        self, sizes: tuple[int, int], budget: int, backoff_s: float, first: int, has_begun: bool
    ) -> None:
        settings = SharedSettings(
            "job",
            sizes[0],
            sizes[1],
            max_restarts=budget,
            restart_backoff_s=backoff_s,
            min_growth_interval_s=0.0,
            join_settle_s=0.0,
            max_node_losses_per_hour=1000,
            last_call_s=1.0,
        )
        self.cluster = LedCluster(settings)
        self.is_dead = self.may_claim = False
        self.done: set[object] = set()
        """Rounds in which some worker had nothing left to do."""
        self.failed: set[int] = set()
        """Rounds in which some worker failed."""
        self.given: dict[tuple[int, int], str] = {}
        self.charged: dict[int, int] = {}
        """How many restarts were counted when each round was formed."""
        self.succeeded: dict[int, int] = {}
        """The successes of each round that a record has had."""
        self.verdicts: set[Outcome] = set()
        for node_id in NODES[:first]:
            self.cluster.start(node_id)
        self.cluster.lead_from(self.cluster.agents[0])
        if has_begun:
            self.deliver_all()
            self.pass_time(settings.last_call_s)
            self.deliver_all()

    @property
    def live(self) -> list[SimulatedAgent]:
        return [agent for agent in self.cluster.agents if not agent.is_done]

    def pick(self, data: st.DataObject) -> SimulatedAgent | None:
        return data.draw(st.sampled_from(self.live)) if self.live else None

    @rule(steps=st.lists(st.integers(0, 30), min_size=1, max_size=20))
    def deliver_some(self, steps: list[int]) -> None:
        for step in steps:
            if moves := self.cluster.moves():
                self.cluster.deliver(moves[step % len(moves)])
                self.hold()

    @rule()
    def deliver_all(self) -> None:
        for _ in range(1000):
            if not self.cluster.is_recorded:
                self.cluster.write_record()
            if not (moves := self.cluster.moves()):
                return
            self.cluster.deliver(moves[0])
            self.hold()
        raise AssertionError("the messages never end")

    @rule()
    def write(self) -> None:
        self.cluster.write_record()

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0, 12.0, 31.0]))
    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds * 2)):
            self.cluster.pass_time(0.5)
            self.hold()

    @rule()
    def start(self) -> None:
        """Nobody takes the place of an agent that lives."""
        taken = {agent.ref.node_id for agent in self.live}
        if free := [name for name in NODES if name not in taken]:
            self.cluster.start(free[0])

    @rule(data=st.data(), is_heard=st.booleans())
    def fail(self, data: st.DataObject, is_heard: bool) -> None:
        if at_work := [agent for agent in self.live if agent.running is not None]:
            agent = data.draw(st.sampled_from(at_work))
            assert agent.running is not None
            self.failed.add(agent.running.round)
            self.cluster.fail(agent)
            if is_heard:
                self.deliver_all()

    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        if agent := self.pick(data):
            self.done.add(agent.running)
            self.cluster.succeed(agent)

    @rule(data=st.data())
    def isolate(self, data: st.DataObject) -> None:
        if agent := self.pick(data):
            self.cluster.isolate(agent)

    @rule()
    def rejoin(self) -> None:
        for agent in self.live:
            self.cluster.rejoin(agent)

    @rule(data=st.data())
    def rejoin_one(self, data: st.DataObject) -> None:
        if agent := self.pick(data):
            self.cluster.rejoin(agent)

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        if (agent := self.pick(data)) and agent is not self.cluster.leader:
            self.cluster.die(agent)

    @precondition(lambda self: self.cluster.is_led)
    @rule(is_marked=st.booleans())
    def the_leader_dies(self, is_marked: bool) -> None:
        if (leader := self.cluster.leader) is None or leader not in self.cluster.agents:
            self.cluster.lose_leader()
        else:
            self.cluster.die(leader)
            self.is_dead = is_marked
        self.may_claim = is_marked

    @precondition(lambda self: self.cluster.is_led and self.cluster.stores)
    @rule()
    def the_leader_vacates(self) -> None:
        self.cluster.write_record()
        self.cluster.lose_leader()
        self.may_claim = True

    @precondition(lambda self: self.cluster.is_led)
    @rule()
    def the_leader_is_cut_off(self) -> None:
        if (leader := self.cluster.leader) is not None and leader in self.cluster.agents:
            self.cluster.isolate(leader)
        else:
            self.cluster.lose_leader()

    @rule()
    def the_register_stores_nothing(self) -> None:
        self.cluster.stores = False

    @rule()
    def the_register_stores_again(self) -> None:
        self.cluster.stores = True

    @precondition(lambda self: not self.cluster.is_led)
    @rule(data=st.data(), seen_s=st.sampled_from([0.0, 0.5, 1.0]), from_node=st.booleans())
    def claim(self, data: st.DataObject, seen_s: float, from_node: bool) -> None:
        agent = self.pick(data) if from_node else None
        if agent is not None:
            self.cluster.rejoin(agent)
        self.claim_from(agent, seen_s)

    @precondition(lambda self: self.cluster.is_led)
    @rule(
        data=st.data(),
        how=st.sampled_from(["marked", "dead", "cut off", "vacates", "unsure"]),
        seen_s=st.sampled_from([0.0, 0.5, 1.0]),
        waits_s=st.sampled_from([0, 1, 14, 22]),
        comes=st.booleans(),
    )
    def another_one_leads(
        self, data: st.DataObject, how: str, seen_s: float, waits_s: int, comes: bool
    ) -> None:
        """And most nodes come to it; `comes`: also that of the leader before, if it lives."""
        before = self.cluster.leader
        match how:
            case "cut off":
                self.the_leader_is_cut_off()
            case "unsure":
                self.cluster.stores = False
            case "vacates" if self.cluster.stores:
                self.the_leader_vacates()
            case _:
                self.the_leader_dies(how == "marked")
        while self.cluster.is_led:  # until its hold has ended
            self.pass_time(0.5)
        self.claim(data, seen_s, data.draw(st.booleans()))
        for agent in self.live:
            if comes if agent is before else data.draw(st.sampled_from([True, True, True, False])):
                self.cluster.connect(agent)
        self.deliver_all()
        for _ in range(waits_s):
            self.pass_time(1.0)
            self.deliver_all()

    def claim_from(self, agent: SimulatedAgent | None, seen_s: float) -> None:
        while not self.may_claim and self.cluster.timers.now_s < self.cluster.claims_at + seen_s:
            self.cluster.pass_time(0.5)
            self.hold()
        self.cluster.claim(agent, is_dead=self.is_dead, seen_s=seen_s)
        self.is_dead = self.may_claim = False

    @rule()
    def reconnect(self) -> None:
        self.cluster.reconnect()

    @rule(data=st.data())
    def reconnect_one(self, data: st.DataObject) -> None:
        if (agent := self.pick(data)) and agent.link is None:
            self.cluster.connect(agent)

    @invariant()
    def hold(self) -> None:
        if not hasattr(self, "verdicts"):
            return
        job, state = self.cluster.job, self.cluster.job.round
        assert sum(state.counts.values()) == len(state.members)
        if job.verdict is not None and job.verdict.outcome is Outcome.SUCCEEDED:
            assert Stamp(job.incarnation, job.verdict.round) in self.done
        self.hold_record()
        at_work = {stamp for agent in self.cluster.agents if (stamp := self.cluster.runs(agent))}
        assert len(at_work) <= 1, "two rounds run"
        for agent in self.cluster.agents:
            self.hold_agent(agent)
        before = sorted(self.charged.items())
        for (earlier, had), (_, has) in pairwise(before):
            assert had <= has <= had + 1
            assert has == had or earlier in self.failed

    def hold_record(self) -> None:
        record = self.cluster.record
        if record is not None and record.is_active and record.verdict is None:
            bits = int.from_bytes(record.succeeded, "little")
            before = self.succeeded.get(record.round, 0)
            assert before & bits == before, "a success was lost"
            self.succeeded[record.round] = bits

    def hold_agent(self, agent: SimulatedAgent) -> None:
        assert agent.finishes <= 1
        verdicts = [agent.finish.verdict if agent.finish else None, agent.state.verdict]
        self.verdicts.update(found.outcome for found in verdicts if found is not None)
        assert len(self.verdicts) <= 1
        if (mine := agent.state.assignment) is not None:
            key = (mine.round, mine.group_rank)
            assert self.given.setdefault(key, agent.ref.incarnation) == agent.ref.incarnation
            assert self.charged.setdefault(mine.round, mine.restart_count) == mine.restart_count

    def teardown(self) -> None:
        """Nothing goes wrong any more, and all workers come to their end: the job ends."""
        if not hasattr(self, "verdicts"):
            return
        self.cluster.stores = True
        ended: set[object] = set()
        for number in range(80):
            if not self.cluster.is_led:
                self.claim_from(next(iter(self.live), None), 0.0)
            self.rejoin()
            self.cluster.reconnect()
            self.deliver_all()
            if self.cluster.job.verdict is not None and not self.live:
                return
            if len(self.live) < self.cluster.settings.min_nodes:
                self.cluster.start(f"r{number}")
                continue
            for agent in self.live:
                if agent.running is not None and (agent.ref, agent.running) not in ended:
                    ended.add((agent.ref, agent.running))
                    self.done.add(agent.running)
                    self.cluster.succeed(agent)
            if not self.cluster.moves():
                self.pass_time(20.0)
        states = [(a.ref.node_id, a.state.phase.name, a.running) for a in self.live]
        raise AssertionError(f"no end: {self.cluster.job.round.phase}, {states}")


def test_L1_L5_a_job_ends_the_same_for_everybody_whatever_becomes_of_its_leaders() -> None:
    explore(Leaders, 200, steps=40)
