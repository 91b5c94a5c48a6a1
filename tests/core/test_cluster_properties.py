"""The machines of the job and of its nodes under hammer: whatever order, whatever is lost."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from msgspec.structs import replace
from tests.harness.properties import explore
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core.messages import HelperDied
from rallypoint.core.model import Outcome, SharedSettings
from rallypoint.core.round_state import MemberState, RoundPhase
from rallypoint.core.settings import OnJoin

NODES = ["a", "b", "c", "d"]
QUIET = (MemberState.JOINED, MemberState.WAITING, MemberState.STANDBY)
"""Standings of a node on which no process of the job lives."""


class Hammer(RuleBasedStateMachine):
    """A cluster to which anything happens, and that must still come to an end."""

    @initialize(
        sizes=st.sampled_from([(1, 1), (1, 3), (2, 2), (2, 3), (3, 3)]),
        budget=st.integers(0, 3),
        backoff_s=st.sampled_from([0.0, 5.0]),
        first=st.integers(1, 4),
        on_join=st.sampled_from([OnJoin.RESTART, OnJoin.AT_CHECKPOINT]),
        listens=st.booleans(),
        growth_s=st.sampled_from([0.0, 60.0]),
    )
    def begin(
        self,
        sizes: tuple[int, int],
        budget: int,
        backoff_s: float,
        first: int,
        on_join: OnJoin,
        listens: bool,
        growth_s: float,
    ) -> None:
        self.listens = listens
        """Workers save the checkpoints that they are asked for."""
        self.cluster = Cluster(
            SharedSettings(
                "job",
                min_nodes=sizes[0],
                max_nodes=sizes[1],
                max_restarts=budget,
                restart_backoff_s=backoff_s,
                on_join=on_join,
                min_growth_interval_s=growth_s,
                join_settle_s=growth_s,
            )
        )
        self.dead: set[str] = set()
        self.verdicts: set[object] = set()
        self.formed: dict[int, tuple[str, ...]] = {}
        for node_id in NODES[:first]:
            self.begin_agent(node_id, workers=1 + len(self.cluster.agents) % 2)

    def begin_agent(self, node_id: str, workers: int = 1) -> None:
        self.cluster.start(node_id, workers).listens = self.listens

    def live(self) -> list[SimulatedAgent]:
        return [
            agent
            for agent in self.cluster.agents
            if not agent.is_done and agent.ref.incarnation not in self.dead
        ]

    def pick(self, data: st.DataObject) -> SimulatedAgent | None:
        live = self.live()
        return data.draw(st.sampled_from(live)) if live else None

    @rule(steps=st.lists(st.integers(0, 30), min_size=1, max_size=30))
    def deliver_some(self, steps: list[int]) -> None:
        for step in steps:
            moves = self.moves()
            if moves:
                self.cluster.deliver(moves[step % len(moves)])
                self.hold()

    @rule()
    def deliver_all(self) -> None:
        while moves := self.moves():
            self.cluster.deliver(moves[0])
            self.hold()

    def moves(self) -> list[tuple[str, SimulatedAgent]]:
        return [m for m in self.cluster.moves() if m[1].ref.incarnation not in self.dead]

    @rule(node_id=st.sampled_from(NODES))
    def start(self, node_id: str) -> None:
        if len(self.cluster.agents) < 12:
            self.begin_agent(node_id)

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        if agent := self.pick(data):
            self.cluster.cut(agent)

    @rule()
    def reconnect(self) -> None:
        for agent in self.live():
            if agent.link is None:
                self.cluster.connect(agent)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        if agent := self.pick(data):
            self.cluster.give_up(agent)

    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        if (agent := self.pick(data)) and agent.link is None:
            self.cluster.fence(agent)

    @rule(data=st.data())
    def kill_agent(self, data: st.DataObject) -> None:
        """SIGKILL: its workers end with it."""
        if agent := self.pick(data):
            self.dead.add(agent.ref.incarnation)
            agent.running = None
            self.cluster.cut(agent)

    @rule(data=st.data(), others_need_it=st.booleans())
    def kill_helper(self, data: st.DataObject, others_need_it: bool) -> None:
        agent = self.pick(data)
        if agent is not None and agent.state.stamp is not None:
            died = HelperDied(agent.state.stamp, "a helper was killed", others_need_it)
            agent.local.append(died)

    @rule(data=st.data(), rank=st.integers(0, 1), number=st.sampled_from([None, 9, 15]))
    def fail(self, data: st.DataObject, rank: int, number: int | None) -> None:
        if agent := self.pick(data):
            self.cluster.fail(agent, rank % agent.candidate.workers, number)

    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        if agent := self.pick(data):
            self.cluster.succeed(agent)

    @rule(data=st.data(), number=st.sampled_from([2, 15, 15, 15]))
    def signal(self, data: st.DataObject, number: int) -> None:
        if agent := self.pick(data):
            self.cluster.signal(agent, number)

    @rule(data=st.data(), node_id=st.sampled_from(NODES))
    def lose_route(self, data: st.DataObject, node_id: str) -> None:
        """From now on a node can't reach the round store of another, or its own."""
        if agent := self.pick(data):
            agent.unreachable.add(node_id)

    @rule(data=st.data())
    def mend_routes(self, data: st.DataObject) -> None:
        if agent := self.pick(data):
            agent.unreachable.clear()

    @rule(data=st.data())
    def notice(self, data: st.DataObject) -> None:
        """A node learns that it is about to go."""
        if agent := self.pick(data):
            self.cluster.notice(agent)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 8.0, 31.0, 90.0]))
    def pass_time(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)

    @invariant()
    def hold(self) -> None:
        if not hasattr(self, "cluster"):
            return
        state = self.cluster.job.round
        if state.phase is RoundPhase.ACTIVE:
            world = tuple(entry.incarnation for entry in state.world)
            assert self.formed.setdefault(state.round, world) == world
        for agent in self.cluster.agents:
            self.hold_agent(agent)

    def hold_agent(self, agent: SimulatedAgent) -> None:
        assert agent.finishes <= 1
        if agent.finish is not None and agent.finish.verdict is not None:
            self.verdicts.add(replace(agent.finish.verdict, ended_s_ago=None))
        if agent.state.verdict is not None:
            self.verdicts.add(replace(agent.state.verdict, ended_s_ago=None))
        assert len(self.verdicts) <= 1
        if not self.cluster.holds(agent) or agent.running is None:
            return
        state = self.cluster.job.round
        member_state = state.members[agent.ref.node_id].state
        assert member_state not in QUIET, f"{agent.ref} runs workers and is {member_state}"
        if state.phase is RoundPhase.ACTIVE and member_state is MemberState.RUNNING:
            assert agent.running.round == state.round

    def teardown(self) -> None:
        """Peace: everybody is reached, the dead are missed, and the job must end."""
        if not hasattr(self, "cluster"):
            return
        ended_well: set[tuple[str, int]] = set()
        for agent in self.cluster.agents:
            agent.unreachable.clear()
        for _ in range(80):
            self.reconnect()
            self.deliver_all()
            live = self.live()
            for agent in self.cluster.agents:
                if agent not in live:
                    self.cluster.give_up(agent)
            self.deliver_all()
            if not live:
                return
            if len(live) < self.cluster.settings.min_nodes and len(self.cluster.agents) < 40:
                self.begin_agent(f"r{len(self.cluster.agents)}")
                continue
            for agent in live:
                if agent.running is not None:
                    key = (agent.ref.incarnation, agent.running.round)
                    if key not in ended_well:
                        ended_well.add(key)
                        self.cluster.succeed(agent)
            if not self.moves():
                self.cluster.pass_time(20.0)
        states = [(a.ref.node_id, a.state.phase.name, a.running) for a in self.live()]
        raise AssertionError(f"no end: {self.cluster.job.round.phase}, {states}")


def test_a_job_ends_the_same_for_everybody_whatever_happens() -> None:
    explore(Hammer, 100, steps=40)


class Visitors(RuleBasedStateMachine):
    """Two nodes that work, and others that come and go before they are admitted at a checkpoint."""

    @initialize(
        listens=st.booleans(), ends_when_asked=st.booleans(), workers=st.sampled_from([1, 2])
    )
    def begin(self, listens: bool, ends_when_asked: bool, workers: int) -> None:
        settings_ = SharedSettings(
            "job", 2, 4, on_join=OnJoin.AT_CHECKPOINT, min_growth_interval_s=0.0, join_settle_s=0.0
        )
        self.cluster = Cluster(settings_)
        self.listens, self.ends_when_asked = listens, ends_when_asked
        self.are_done = False
        """Some worker has ended because it had nothing left to do."""
        for node_id in ("a", "b"):
            self.come(node_id, workers)
        self.cluster.settle()
        self.cluster.pass_time(settings_.last_call_s)
        self.cluster.settle()
        assert self.cluster.job.started

    def come(self, node_id: str, workers: int = 1) -> None:
        agent = self.cluster.start(node_id, workers)
        agent.listens, agent.ends_when_asked = self.listens, self.ends_when_asked

    def live(self) -> list[SimulatedAgent]:
        return [agent for agent in self.cluster.agents if not agent.is_done]

    def visitors(self) -> list[SimulatedAgent]:
        return [agent for agent in self.live() if agent.running is None and agent.link is not None]

    def deliver_all_of(self, agent: SimulatedAgent) -> None:
        while moves := [move for move in self.cluster.moves() if move[1] is agent]:
            self.cluster.deliver(moves[0])

    @rule(node_id=st.sampled_from(["c", "d"]))
    def a_visitor_comes(self, node_id: str) -> None:
        if len(self.cluster.agents) < 8:
            self.come(node_id)
            self.deliver_all_of(self.cluster.agents[-1])

    @rule()
    def the_workers_of_all_nodes_go_on(self) -> None:
        """And nothing that their agents say has arrived yet."""
        for kind in ("down", "local", "local", "local"):
            for move in self.cluster.moves():
                if move[0] == kind:
                    self.cluster.deliver(move)

    @rule(data=st.data(), is_lost=st.booleans())
    def one_goes(self, data: st.DataObject, is_lost: bool) -> None:
        """One without workers, because they have not begun or because they have ended."""
        if visitors := self.visitors():
            agent = data.draw(st.sampled_from(visitors))
            if is_lost:
                self.cluster.give_up(agent)
                self.cluster.agents.remove(agent)
            else:
                self.cluster.signal(agent, 15)
                self.deliver_all_of(agent)

    @rule(data=st.data(), whole=st.booleans())
    def workers_have_nothing_left_to_do(self, data: st.DataObject, whole: bool) -> None:
        if at_work := [agent for agent in self.live() if agent.running is not None]:
            agent = data.draw(st.sampled_from(at_work))
            self.are_done = True
            if whole:
                self.cluster.succeed(agent)
            else:
                self.cluster.succeed_one(agent)

    @rule(steps=st.lists(st.integers(0, 30), min_size=1, max_size=10))
    def deliver_some(self, steps: list[int]) -> None:
        for step in steps:
            if moves := self.cluster.moves():
                self.cluster.deliver(moves[step % len(moves)])

    @rule()
    def deliver_all(self) -> None:
        self.cluster.settle()

    @invariant()
    def who_ends_because_it_was_asked_to_has_not_succeeded(self) -> None:
        if hasattr(self, "cluster") and self.cluster.job.verdict and not self.are_done:
            assert self.cluster.verdict.outcome is not Outcome.SUCCEEDED

    def teardown(self) -> None:
        """All workers of the world have nothing left to do: the job must end."""
        if not hasattr(self, "cluster"):
            return
        for number in range(20):
            self.cluster.settle()
            if self.cluster.job.verdict is not None:
                return
            if len(self.live()) < 2:
                self.come(f"r{number}")
            at_work = [agent for agent in self.live() if agent.running is not None]
            for agent in at_work:
                self.cluster.succeed(agent)
            if not at_work:
                self.cluster.pass_time(31.0)
        raise AssertionError(f"no end: {self.cluster.job}")


def test_A4_all_workers_end_well_and_the_job_ends_whoever_comes_and_goes() -> None:
    explore(Visitors, 150, steps=15)
