"""The job machine and real group machines: whatever order, whoever comes and goes."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from tests.harness.properties import explore
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core.model import Outcome, SharedSettings
from rallypoint.core.settings import OnJoin


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
