"""A job in memory whose leader lives in one of its nodes, and is succeeded by others.

    cluster = LedCluster(SharedSettings("job", min_nodes=2, max_nodes=2))
    a, b = cluster.start("a"), cluster.start("b")
    cluster.lead_from(a)
    cluster.settle()
    cluster.die(a)                          # with its workers; its guard has marked the record
    cluster.claim(b, is_dead=True)
    cluster.reconnect()

Nodes have leases here: an agent that the leader has not answered for so long ends its workers, and
so does the leader's own when no record was stored for so long. Nobody else is given up: a node that
is cut off is lost when its lease is over.
"""

from __future__ import annotations

from msgspec.structs import replace
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core.liveness import DIED
from rallypoint.core.model import SharedSettings, Stamp
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.clock_rates import own_lease_s, with_margin
from rallypoint.core.takeover.handover import UNKNOWN, Predecessor
from rallypoint.core.worker_exits import WorkerExit

STEP_S = 0.5
"""Between heartbeats, and between records."""


class LedCluster(Cluster):
    """Agents, one of which leads, or none."""

    def __init__(self, settings: SharedSettings) -> None:
        super().__init__(settings, has_register=True)
        self.leader: SimulatedAgent | None = None
        """The agent that the coordinator lives in; None: it lives in none."""
        self.is_led = True
        self.stores = True
        """The register stores what the leader writes."""
        self.stored_at = 0.0
        """When it has stored something last."""
        self._held_until: dict[SimulatedAgent, float] = {}
        """Until when the workers of each agent may run."""
        self._apart: set[SimulatedAgent] = set()
        """Those that reach nobody."""
        self._exited: dict[tuple[SimulatedAgent, Stamp], set[int]] = {}
        """The local ranks of the workers of a round that have ended by themselves."""

    def start(self, node_id: str, workers: int = 1) -> SimulatedAgent:
        """A fresh agent; its life is a new incarnation of that node."""
        agent = super().start(node_id, workers)
        self._held_until[agent] = self.timers.now_s + self.settings.lease_s
        return agent

    def connect(self, agent: SimulatedAgent) -> None:
        """As in a cluster, if the leader can be reached."""
        if self.is_led and agent not in self._apart:
            super().connect(agent)

    def reconnect(self) -> None:
        """All that can."""
        for agent in self.agents:
            if agent.link is None and not agent.is_done:
                self.connect(agent)

    def lead_from(self, agent: SimulatedAgent) -> None:
        """The coordinator lives in this one."""
        self.leader, self.job.own_agent = agent, agent.ref.incarnation

    def write_record(self) -> None:
        """As in a cluster, if there is a leader and the register stores anything."""
        if self.is_led and self.stores:
            super().write_record()
            self.stored_at = self.timers.now_s

    def runs(self, agent: SimulatedAgent) -> Stamp | None:
        """The round of which some worker lives there."""
        if agent.running is None:
            return None
        exited = self._exited.get((agent, agent.running), ())
        return agent.running if len(exited) < agent.candidate.workers else None

    def die(self, agent: SimulatedAgent) -> None:
        """With its workers. The guard tells the leader so, if that was another one."""
        agent.running = None
        self.agents.remove(agent)
        if agent is self.leader:
            self.lose_leader()
        elif self.is_led:
            self.cut(agent)
            now = self.timers.now_s
            self._run(self.sessions.lose(agent.ref.incarnation, DIED, now, now))

    def isolate(self, agent: SimulatedAgent) -> None:
        """It reaches nobody, and its workers run on."""
        self._apart.add(agent)
        if agent is self.leader:
            self.lose_leader()
        elif self.is_led:
            self.cut(agent)

    def rejoin(self, agent: SimulatedAgent) -> None:
        """It reaches the others again."""
        self._apart.discard(agent)
        if agent.link is None:
            self.connect(agent)

    def lose_leader(self) -> None:
        """Nobody leads."""
        self.is_led = False
        self.timers.keep({})
        for agent in self.agents:
            self.cut(agent)

    def claim(self, agent: SimulatedAgent | None, *, is_dead: bool, seen_s: float = 0.0) -> None:
        """This one leads now. `is_dead`: the record said that no worker of the leader's node lives.
        `seen_s`: so much later than the last record was stored this one has seen it."""
        now, predecessor = self.timers.now_s, UNKNOWN
        if (record := self.record) is not None:
            ends_at = self.stored_at + seen_s + with_margin(own_lease_s(self.settings.lease_s))
            rank = record.leader_rank
            predecessor = Predecessor(rank, is_dead=is_dead, fenced_in_s=max(0.0, ends_at - now))
            self.record = replace(record, leader_rank=self._rank_of(agent))
        self.take_over(predecessor)
        self.is_led = self.stores = True
        self.leader, self.stored_at = agent, now
        self.job.own_agent = "" if agent is None else agent.ref.incarnation

    @property
    def claims_at(self) -> float:
        """When another one may claim, if the leader does not say that it goes, and is not dead."""
        return self.stored_at + with_margin(HOLD_S)

    def pass_time(self, seconds: float) -> None:
        """Waits and leases run out, and the leader's hold; what follows is left to be delivered."""
        end_s = self.timers.now_s + seconds
        while self.timers.now_s < end_s:
            self.write_record()
            super().pass_time(min(STEP_S, end_s - self.timers.now_s))
            self._renew()
            for agent in self.agents:
                if self.runs(agent) is not None and self.timers.now_s >= self._held_until[agent]:
                    self._fence(agent)
            if self.is_led and self.timers.now_s >= self.stored_at + HOLD_S:
                self.lose_leader()

    def _exit(self, agent: SimulatedAgent, exit_: WorkerExit) -> None:
        if agent.running is not None:
            self._exited.setdefault((agent, agent.running), set()).add(exit_.local_rank)
        super()._exit(agent, exit_)

    def _rank_of(self, agent: SimulatedAgent | None) -> int:
        """In the newest world."""
        record = self.record
        if agent is None or agent.end.place is None or record is None:
            return -1
        named = Stamp(
            record.incarnation, -1 if record.newest_round is None else record.newest_round
        )
        return agent.end.place.assignment.group_rank if agent.state.stamp == named else -1

    def _renew(self) -> None:
        """Who is attached has sent a heartbeat, and has got the answer."""
        for agent in self.agents:
            is_answered = agent.link is not None and self.sessions.on(agent.link.number) is not None
            if self.is_led and is_answered:
                at = self.stored_at if agent is self.leader else self.timers.now_s
                held_until = at + self.settings.lease_s
                self._held_until[agent] = max(self._held_until[agent], held_until)
            elif self.is_led and agent in self._apart and self.runs(agent) is None:
                self.give_up(agent)

    def _fence(self, agent: SimulatedAgent) -> None:
        """Its guard does so where the agent does not run."""
        self.fence(agent)
        while agent.local:
            agent.local_event()
