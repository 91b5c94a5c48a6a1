"""A whole job in memory: the machines of the coordinator and of the agents, and nothing else.

    cluster = Cluster(SharedSettings("job", min_nodes=2, max_nodes=2))
    a, b = cluster.start("a"), cluster.start("b")
    cluster.settle()                        # every message is delivered, every process obeys
    cluster.succeed(a)
    cluster.succeed(b)
    cluster.settle()
    assert a.finish.verdict.outcome is Outcome.SUCCEEDED

Nothing here sleeps, blocks or reads a clock. Messages of one link arrive in their order, but a
caller chooses which link is next (`deliver`), may break it (`cut`), and may have the coordinator
give a node up (`give_up`), so that every interleaving of several agents can be made.
"""

from __future__ import annotations

from typing import assert_never

from rallypoint.core import group_events as g
from rallypoint.core import job
from rallypoint.core import messages as m
from rallypoint.core import sessions as c
from rallypoint.core.event_kinds import Record
from rallypoint.core.events import TimerEnded
from rallypoint.core.model import NodeRef, SharedSettings
from rallypoint.testing.clock import VirtualTimers
from rallypoint.testing.simulated_agent import Link, SimulatedAgent

INCARNATION, EPOCH = 1, 7


class Cluster:
    """The coordinator and its agents, in virtual time."""

    def __init__(self, settings: SharedSettings) -> None:
        self.settings = settings
        self.sessions = c.Sessions(settings, INCARNATION, EPOCH)
        self.timers = VirtualTimers()
        self.agents: list[SimulatedAgent] = []
        self.records: list[Record] = []
        self._links: dict[int, Link] = {}
        self._connections = 0
        self._lives: list[str] = []

    @property
    def job(self) -> job.JobState:
        """What the coordinator knows of it."""
        return self.sessions.job

    def start(self, node_id: str, workers: int = 1) -> SimulatedAgent:
        """A fresh agent, connected; its life is a new incarnation of that node."""
        life = f"life{len(self._lives) + 1}"
        self._lives.append(life)
        agent = SimulatedAgent(NodeRef(node_id, life), self.settings, workers)
        agent.now_s = self.timers.now_s
        self.agents.append(agent)
        self.connect(agent)
        return agent

    def holds(self, agent: SimulatedAgent) -> bool:
        """The coordinator counts this agent as a member that takes part."""
        member = self.job.round.members.get(agent.ref.node_id)
        return member is not None and member.ref == agent.ref

    def connect(self, agent: SimulatedAgent) -> None:
        """A new connection, on which the agent attaches."""
        self._connections += 1
        agent.connect(self._connections)
        assert agent.link is not None
        self._links[self._connections] = agent.link

    def cut(self, agent: SimulatedAgent) -> None:
        """The connection breaks, with everything that is on its way."""
        link = agent.link
        agent.disconnect()
        if link is not None:
            self._links.pop(link.number, None)
            self.sessions.connection_closed(link.number, self.timers.now_s, reset=True)

    def give_up(self, agent: SimulatedAgent) -> None:
        """The coordinator declares it lost; it may still live, and learns of it later."""
        if self.sessions.of_agent(agent.ref.incarnation) is not None:
            self.cut(agent)
            now = self.timers.now_s
            self._run(self.sessions.lose(agent.ref.incarnation, "it was silent", now, now))

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
                agent.disconnect()
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
            self._run(self.sessions.apply(TimerEnded(timer), self.timers.now_s))
        for number in self._links:  # their heartbeats
            self.sessions.received(number, m.Heartbeat(0), end_s)
        for agent in self.agents:
            agent.now_s = end_s
            for ended in [wait for wait, at in agent.waits.items() if at <= end_s]:
                del agent.waits[ended]
                agent.step(ended)

    def _hear(self, link: Link, message: m.ToCoordinator) -> None:
        now = self.timers.now_s
        match message:
            case m.Attach():
                self._run(self.sessions.attach(link.number, "", message, now))
            case m.Numbered() | m.Heartbeat():
                self._run(self.sessions.received(link.number, message, now))
            case m.DrainNode() | m.AgentDied():
                raise AssertionError("no agent says so")
            case _:
                assert_never(message)

    def _run(self, effects: list[c.HostEffect]) -> None:
        for effect in effects:
            match effect:
                case c.SendTo(number, message):
                    if number in self._links:
                        self._links[number].down.append(message)
                case c.HangUp(number):
                    if (link := self._links.pop(number, None)) is not None:
                        link.hung_up = True
                case Record():
                    self.records.append(effect)
                case c.Refuse(_, text):
                    raise AssertionError(text)
                case c.Faulted(_, error):
                    raise error
                case c.Gone() | c.Empty():
                    pass
                case _:
                    assert_never(effect)
        self.timers.keep(self.sessions.timers_wanted())
