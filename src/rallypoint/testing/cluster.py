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

from collections import deque
from typing import assert_never

from msgspec import Struct, field

from rallypoint.core import group, job
from rallypoint.core import group_events as g
from rallypoint.core import job_events as j
from rallypoint.core.events import (
    ExpelNode,
    NodeJoined,
    NodeLeft,
    NodeSucceeded,
    RefuseNode,
    TimerEnded,
    WorkersFinishing,
)
from rallypoint.core.model import Candidate, NodeRef, SharedSettings, Stamp, WorkerFailure
from rallypoint.testing.virtual_time import VirtualTimers

INCARNATION, EPOCH = 1, 7


class Hello(Struct, frozen=True):
    """The coordinator's first word on a connection."""

    resumed: bool


class Ack(Struct, frozen=True):
    """All reports up to this number have been applied."""

    number: int


class Asked(Struct, frozen=True):
    """The workers are to save a checkpoint, which takes them a while."""

    wanted: j.WantCheckpoint


Pushed = Hello | Ack | Asked | g.GroupEvent


class Numbered(Struct, frozen=True):
    """A report on its way."""

    number: int
    event: j.JobEvent


class Link(Struct):
    """One connection: what is on its way."""

    up: deque[Numbered] = field(default_factory=deque)
    down: deque[Pushed] = field(default_factory=deque)
    hung_up: bool = False
    """The coordinator has closed it: it ends when the agent has read what was sent."""


class SimulatedAgent:
    """One agent: the group machine, processes that obey, and its end of a session."""

    def __init__(self, ref: NodeRef, settings: SharedSettings, workers: int) -> None:
        self.ref, self._settings = ref, settings
        self.candidate = Candidate(workers, "default", ref.node_id, 29500)
        signals = (1, 2, 3, 15)
        self.state = group.GroupState(group.GroupSettings(workers, 25.0, 5.0, signals))
        self.running: Stamp | None = None
        """The round whose workers live here."""
        self.finish: g.Finish | None = None
        self.finishes = 0
        self.link: Link | None = None
        self.local: deque[g.GroupEvent | Asked] = deque()
        """What processes and the round store will tell this agent."""
        self.waits: dict[g.WaitEnded, float] = {}
        self.now_s = 0.0
        self.generation = self.opened = 0
        self._attached = False
        self._unacknowledged: deque[Numbered] = deque()
        self._numbers = self._joins = 0

    @property
    def is_done(self) -> bool:
        """Its process has said how it ended."""
        return self.finish is not None

    def connect(self) -> None:
        """A new connection, on which nothing has been said yet."""
        self.link, self._attached = Link(), False
        self.generation += 1

    def hear(self, message: Pushed) -> None:
        """One message of the coordinator."""
        match message:
            case Hello(resumed):
                self._attached = True
                if not resumed:
                    self.opened = self.generation
                    self._unacknowledged.clear()
                assert self.link is not None
                self.link.up.extend(self._unacknowledged)
                self.step(g.SessionOpened(resumed))
            case Ack(number):
                while self._unacknowledged and self._unacknowledged[0].number <= number:
                    event = self._unacknowledged.popleft().event
                    if isinstance(event, j.NodeDrains | j.JobCancelled):
                        self.step(g.Announced())
            case Asked():
                self.local.append(message)
            case _:
                self.step(message)

    def step(self, event: g.GroupEvent) -> None:
        """Apply one event and do what the machine says."""
        for effect in group.step(self.state, event):
            self._perform(effect)

    def _perform(self, effect: g.GroupEffect) -> None:
        match effect:
            case g.JoinRound():
                assert self.running is None, "joined with workers alive"
                self._joins += 1
                joined = NodeJoined(self.ref, self._joins, self.candidate, self._settings)
                self._report(joined)
            case g.EnrolWithStore(stamp):
                self.local.append(g.EnrolmentDone(stamp))
            case g.SpawnWorkers(stamp):
                assert self.running is None, "two rounds on one node"
                self.running = stamp
            case g.AbandonRound():
                pass
            case g.SignalWorkers() | g.KillWorkers():
                if self.running is not None:
                    self.local.append(g.WorkersGone(self.running))
            case g.Wait(kind, number, length_s):
                self.waits[g.WaitEnded(kind, number)] = self.now_s + length_s
            case g.ReportFailures(stamp, exits):
                failures = tuple(self._failure(exit_) for exit_ in exits)
                self._report(j.NodeFailed(self.ref, stamp.round, failures))
            case g.ReportFinishing(stamp):
                self._report(WorkersFinishing(stamp.round))
            case g.ReportSuccess(stamp):
                self._report(NodeSucceeded(self.ref, stamp.round))
            case g.ReportEnrolment(stamp):
                self._report(j.NodeEnrolled(self.ref, stamp.round))
            case g.AnnounceDrain(number, why, notice_s):
                self._report(j.NodeDrains(self.ref, why, number, notice_s))
            case g.AnnounceCancel(number):
                self._report(j.JobCancelled(self.ref, "interrupted", number))
            case g.Finish():
                assert self.running is None, "ended with workers alive"
                self.finish, self.finishes = effect, self.finishes + 1
                self._report(NodeLeft(self.ref))
            case g.Say():
                pass
            case _:
                assert_never(effect)

    def local_event(self) -> None:
        """The next word of a process or of the round store."""
        event = self.local.popleft()
        if isinstance(event, Asked):
            wanted = event.wanted
            saved = j.CheckpointAnswered(self.ref, wanted.round, wanted.number, listens=True)
            self._report(saved)
            return
        if isinstance(event, g.WorkersGone):
            self.running = None
        self.step(event)

    def _report(self, event: j.JobEvent) -> None:
        self._numbers += 1
        numbered = Numbered(self._numbers, event)
        self._unacknowledged.append(numbered)
        if self.link is not None and self._attached:
            self.link.up.append(numbered)

    def _failure(self, exit_: g.Exit) -> WorkerFailure:
        rank = exit_.local_rank
        return WorkerFailure(rank, rank, "default", 1, exit_.code, exit_.signal, 0.0, 0.0)


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
        self.records: list[j.Record] = []
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
        seen.link.down += [Hello(resumed), Ack(seen.applied)]
        for effect in job.truth(self.job, agent.ref, self.timers.now_s):
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

    def _hear(self, link: Link, report: Numbered) -> None:
        seen = next((s for s in self._sessions.values() if s.link is link), None)
        if seen is None:
            return
        if report.number > seen.applied:
            seen.applied = report.number
            self._step(report.event)
            if isinstance(report.event, NodeLeft):
                self._sessions.pop(seen.agent.ref.incarnation, None)
                return
        if seen.link is link:
            link.down.append(Ack(seen.applied))

    def _step(self, event: j.JobEvent) -> None:
        for effect in job.step(self.job, event, self.timers.now_s):
            self._perform(effect)
        self.timers.keep(job.timers_wanted(self.job))

    def _perform(self, effect: j.JobEffect) -> None:
        match effect:
            case j.Assign(ref, assignment):
                self._send(ref, g.WorldAssigned(_stamp(assignment.round), assignment))
            case j.StartWorkers(ref, round_):
                self._send(ref, g.StartOrdered(_stamp(round_)))
            case j.StopWorkers(ref, round_, reason):
                self._send(ref, g.StopOrdered(_stamp(round_), reason))
            case j.WantCheckpoint(ref):
                self._send(ref, Asked(effect))
            case j.DropCheckpoint() | j.CollectStacks():
                pass
            case j.LeaveNow(ref):
                self._send(ref, g.LeaveOrdered())
            case j.GiveVerdict(ref, verdict):
                self._send(ref, g.VerdictGiven(verdict))
            case ExpelNode(ref, why, final):
                self._send(ref, g.NodeExpelled(why, final))
                seen = self._sessions.pop(ref.incarnation, None)
                if seen is not None and seen.link is not None:
                    seen.link.hung_up = True
            case j.Record():
                self.records.append(effect)
            case RefuseNode():
                raise AssertionError("all agents have the same settings")
            case _:
                assert_never(effect)

    def _send(self, ref: NodeRef, message: Pushed) -> None:
        seen = self._sessions.get(ref.incarnation)
        if seen is not None and seen.link is not None:
            seen.link.down.append(message)


def _stamp(round_: int) -> Stamp:
    return Stamp(INCARNATION, EPOCH, round_)
