"""The job machine and real group machines under hammer: whatever order, whatever is lost."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from rallypoint.core.model import SharedSettings
from rallypoint.core.round_state import Phase, Standing
from rallypoint.testing.cluster import Cluster, SimulatedAgent

NODES = ["a", "b", "c", "d"]
QUIET = (Standing.JOINED, Standing.WAITING, Standing.STANDBY)
"""Standings of a node on which no process of the job lives."""


class Hammer(RuleBasedStateMachine):
    """A cluster to which anything happens, and that must still come to an end."""

    @initialize(
        sizes=st.sampled_from([(1, 1), (1, 3), (2, 2), (2, 3), (3, 3)]),
        budget=st.integers(0, 3),
        backoff_s=st.sampled_from([0.0, 5.0]),
        first=st.integers(1, 4),
        at_checkpoint=st.booleans(),
    )
    def begin(
        self,
        sizes: tuple[int, int],
        budget: int,
        backoff_s: float,
        first: int,
        at_checkpoint: bool,
    ) -> None:
        self.cluster = Cluster(
            SharedSettings(
                "job",
                min_nodes=sizes[0],
                max_nodes=sizes[1],
                max_restarts=budget,
                restart_backoff_s=backoff_s,
                at_checkpoint=at_checkpoint,
            )
        )
        self.dead: set[str] = set()
        self.verdicts: set[object] = set()
        self.formed: dict[int, tuple[str, ...]] = {}
        for node_id in NODES[:first]:
            self.cluster.start(node_id, workers=1 + len(self.cluster.agents) % 2)

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
            self.cluster.start(node_id)

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
        if state.phase is Phase.ACTIVE:
            world = tuple(place.incarnation for place in state.places)
            assert self.formed.setdefault(state.round, world) == world
        for agent in self.cluster.agents:
            self.hold_agent(agent)

    def hold_agent(self, agent: SimulatedAgent) -> None:
        assert agent.finishes <= 1
        if agent.finish is not None and agent.finish.verdict is not None:
            self.verdicts.add(agent.finish.verdict)
        if agent.state.verdict is not None:
            self.verdicts.add(agent.state.verdict)
        assert len(self.verdicts) <= 1
        if not self.cluster.holds(agent) or agent.running is None:
            return
        state = self.cluster.job.round
        standing = state.members[agent.ref.node_id].standing
        assert standing not in QUIET, f"{agent.ref} runs workers and is {standing}"
        if state.phase is Phase.ACTIVE and standing is Standing.RUNNING:
            assert agent.running.round == state.round

    def teardown(self) -> None:
        """Peace: everybody is reached, the dead are missed, and the job must end."""
        if not hasattr(self, "cluster"):
            return
        ended_well: set[tuple[str, int]] = set()
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
                self.cluster.start(f"r{len(self.cluster.agents)}")
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
    run_state_machine_as_test(
        Hammer,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
