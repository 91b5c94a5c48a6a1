"""A whole job in memory: the job machine, and agents that are the real group machine.

    cluster = Cluster(SharedSettings("job", min_nodes=2, max_nodes=2))
    a, b = cluster.start("a"), cluster.start("b")
    cluster.settle()                        # every message is delivered, every process obeys
    cluster.succeed(a)
    cluster.succeed(b)
    cluster.settle()
    assert a.finish.verdict.outcome is Outcome.SUCCEEDED

Nothing here sleeps, blocks or reads a clock. Messages of one link arrive in their order, but a
caller chooses which link is next (`deliver`), may break it (`cut`), and may have the coordinator
give a node up (`give_up`), so that every interleaving of several agents can be made. Sessions
follow the rules of `rendezvous.session`: reports are numbered, kept until acknowledged and applied
once; on a new connection an agent is told the truth as it is.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import Struct

from rallypoint.core import group_events as g
from rallypoint.core import job
from rallypoint.core import job_events as j
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.events import RefuseNode, TimerEnded
from rallypoint.core.model import NodeRef, SharedSettings
from rallypoint.testing.clock import VirtualTimers
from rallypoint.testing.simulated_agent import (
    Hello,
    Link,
    Pushed,
    SimulatedAgent,
)


class Seen(Struct):
    """The coordinator's end of a session."""

    agent: SimulatedAgent
    link: Link | None
    opened: int
    applied: int = 0


class Cluster:
    """The coordinator and its agents, in virtual time."""

    def __init__(self, settings: SharedSettings) -> None:
        self.settings = settings
        self.job = job.new_job(settings)
        self.timers = VirtualTimers()
        self.agents: list[SimulatedAgent] = []
        self.records: list[Record] = []
        self._sessions: dict[str, Seen] = {}
        self._started = 0

    def start(self, node_id: str, workers: int = 1) -> SimulatedAgent:
        """A fresh agent, connected; its life is a new incarnation of that node."""
        self._started += 1
        agent = SimulatedAgent(NodeRef(node_id, f"life{self._started}"), self.settings, workers)
        agent.now_s = self.timers.now_s
        self.agents.append(agent)
        self.connect(agent)
        return agent

    def holds(self, agent: SimulatedAgent) -> bool:
        """The coordinator counts this agent as a member that takes part."""
        member = self.job.round.members.get(agent.ref.node_id)
        return member is not None and member.ref == agent.ref

    def connect(self, agent: SimulatedAgent) -> None:
        """A new connection: the session is resumed, or opened."""
        agent.connect()
        assert agent.link is not None
        seen = self._sessions.get(agent.ref.incarnation)
        resumed = seen is not None and seen.opened == agent.opened
        if seen is None:
            seen = self._sessions[agent.ref.incarnation] = Seen(agent, None, 0)
        if not resumed:
            seen.opened = agent.generation
        seen.link = agent.link
        seen.link.down += [Hello(resumed), m.Ack(seen.applied)]
        for effect in job.resync(self.job, agent.ref, self.timers.now_s):
            self._perform(effect)

    def cut(self, agent: SimulatedAgent) -> None:
        """The connection breaks, with everything that is on its way."""
        agent.link = None
        seen = self._sessions.get(agent.ref.incarnation)
        if seen is not None:
            seen.link = None

    def give_up(self, agent: SimulatedAgent) -> None:
        """The coordinator declares it lost; it may still live, and learns of it later."""
        if self._sessions.pop(agent.ref.incarnation, None) is not None:
            agent.link = None
            now = self.timers.now_s
            self._step(j.SessionLost(agent.ref, "it was silent", now, 0.0))

    def fence(self, agent: SimulatedAgent) -> None:
        """The agent's lease runs out."""
        agent.step(g.LeaseEnded())

    def fail(self, agent: SimulatedAgent, local_rank: int = 0, signal: int | None = None) -> None:
        """One of its workers ends badly."""
        self._exit(agent, g.Exit(local_rank, None if signal else 1, signal))

    def succeed(self, agent: SimulatedAgent) -> None:
        """All of its workers end well."""
        for rank in range(agent.candidate.workers):
            self._exit(agent, g.Exit(rank, 0, None))

    def succeed_one(self, agent: SimulatedAgent) -> None:
        """The first of its workers ends well."""
        self._exit(agent, g.Exit(0, 0, None))

    def _exit(self, agent: SimulatedAgent, exit_: g.Exit) -> None:
        if agent.running is not None:
            agent.local.append(g.WorkersExited(agent.running, (exit_,)))

    def signal(self, agent: SimulatedAgent, number: int) -> None:
        """Somebody tells this agent to go."""
        agent.step(g.SignalCaught(number))

    def notice(self, agent: SimulatedAgent) -> None:
        """Somebody says that this node is about to go."""
        agent.step(g.LeaveWanted("it is about to go"))

    def moves(self) -> list[tuple[str, SimulatedAgent]]:
        """Everything that could happen next without time passing."""
        found: list[tuple[str, SimulatedAgent]] = []
        for agent in self.agents:
            if agent.local:
                found.append(("local", agent))
            if agent.link is not None and agent.link.up:
                found.append(("up", agent))
            if agent.link is not None and agent.link.down:
                found.append(("down", agent))
        return found

    def deliver(self, move: tuple[str, SimulatedAgent]) -> None:
        """One message arrives."""
        kind, agent = move
        if kind == "local":
            agent.local_event()
            return
        assert agent.link is not None
        if kind == "down":
            link = agent.link
            agent.hear(link.down.popleft())
            if link.hung_up and not link.down:
                agent.link = None
        else:
            self._hear(agent.link, agent.link.up.popleft())

    def settle(self) -> None:
        """Deliver everything, in a fair order."""
        for _ in range(10_000):
            moves = self.moves()
            if not moves:
                return
            for move in moves:
                if move in self.moves():
                    self.deliver(move)
        raise AssertionError("the messages never end")

    def pass_time(self, seconds: float) -> None:
        """Waits run out, the job's and the agents'; what follows is left to be delivered."""
        end_s = self.timers.now_s + seconds
        while (timer := self.timers.next_until(end_s)) is not None:
            self._step(TimerEnded(timer))
        for agent in self.agents:
            agent.now_s = end_s
            for ended in [wait for wait, at in agent.waits.items() if at <= end_s]:
                del agent.waits[ended]
                agent.step(ended)

    def _hear(self, link: Link, report: m.Numbered) -> None:
        seen = next((s for s in self._sessions.values() if s.link is link), None)
        if seen is None:
            return
        if report.number > seen.applied:
            seen.applied = report.number
            self._step(m.FromNode(seen.agent.ref, report.report))
            if isinstance(report.report, m.Leave):
                self._sessions.pop(seen.agent.ref.incarnation, None)
                return
        if seen.link is link:
            link.down.append(m.Ack(seen.applied))

    def _step(self, event: j.JobEvent) -> None:
        for effect in job.step(self.job, event, self.timers.now_s):
            self._perform(effect)
        self.timers.keep(job.timers_wanted(self.job))

    def _perform(self, effect: j.JobEffect) -> None:
        match effect:
            case m.ToNode(ref, message):
                self._send(ref, message)
                if isinstance(message, m.Expelled):
                    seen = self._sessions.pop(ref.incarnation, None)
                    if seen is not None and seen.link is not None:
                        seen.link.hung_up = True
            case Record():
                self.records.append(effect)
            case RefuseNode():
                raise AssertionError("all agents have the same settings")
            case _:
                assert_never(effect)

    def _send(self, ref: NodeRef, message: Pushed) -> None:
        seen = self._sessions.get(ref.incarnation)
        if seen is not None and seen.link is not None:
            seen.link.down.append(message)
