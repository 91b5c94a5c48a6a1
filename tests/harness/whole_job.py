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
give a node up (`give_up`), so that every interleaving of several agents can be made. With a
register the coordinator may die, and another one takes over (`take_over`).
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from msgspec import Struct, field

from rallypoint.core import host_effects, job
from rallypoint.core import messages as m
from rallypoint.core import session as s
from rallypoint.core import sessions as c
from rallypoint.core.event_kinds import Record
from rallypoint.core.events import TimerEnded
from rallypoint.core.job_state import PlacesDead
from rallypoint.core.model import (
    Candidate,
    DeadPlace,
    EndKind,
    EndReason,
    Epoch,
    NodeRef,
    Outcome,
    SharedSettings,
    Stamp,
    Verdict,
)
from rallypoint.core.node import events as e
from rallypoint.core.node import machine
from rallypoint.core.takeover.durable import Durable
from rallypoint.core.takeover.handover import UNKNOWN, Handover, Predecessor
from rallypoint.core.takeover.record import JobRecord, job_of
from rallypoint.core.takeover.told import Position
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.testing.clock import VirtualTimers

INCARNATION, NONCE = 1, 7


class Link(Struct):
    """One connection: what is on its way."""

    number: int
    up: deque[m.ToCoordinator] = field(default_factory=deque)
    down: deque[m.ToAgent] = field(default_factory=deque)
    hung_up: bool = False
    """The coordinator has closed it: it ends when the agent has read what was sent."""


class SimulatedAgent:
    """One agent, on virtual time."""

    def __init__(self, ref: NodeRef, settings: SharedSettings, workers: int) -> None:
        self.ref = ref
        # Nothing sends heartbeats here: when a lease ends is for the caller to say.
        identity = s.Identity(ref.node_id, ref.node_id, ref.incarnation)
        self.end = s.AgentEnd(identity, settings, s.SessionRules(has_fence=False))
        self.candidate = Candidate(workers, "default", ref.node_id, 29500)
        signals = (1, 2, 3, 15)
        self.listens = True
        """Its workers save the checkpoints that they are asked for."""
        self.ends_when_asked = False
        """And then exit with 0, though they have more to do."""
        self.state = machine.WorkersState(machine.NodeSettings(workers, 25.0, 5.0, signals))
        self.running: Stamp | None = None
        """The round whose workers live here."""
        self.finish: e.Finish | None = None
        self.finishes = 0
        self.refused = ""
        """Why the coordinator won't have it: another agent has its id or its rank."""
        self.link: Link | None = None
        self.unreachable: set[str] = set()
        """Ids of the nodes whose round store this one can't reach."""
        self.local: deque[e.NodeEvent] = deque()
        """What processes and the round store will tell this agent."""
        self.waits: dict[e.WaitEnded, float] = {}
        self.now_s = 0.0
        self._joins = 0

    @property
    def is_done(self) -> bool:
        """Its process has said how it ended."""
        return self.finish is not None

    def connect(self, number: int) -> None:
        """A new connection, on which the agent attaches."""
        self.link = Link(number)
        self._run(self.end.connected(self.now_s, machine.claim(self.state)))

    def disconnect(self) -> None:
        """The connection breaks, with everything that is on its way."""
        if self.link is not None:
            self.link = None
            self._run(self.end.disconnected(self.now_s, "it broke"))

    def hear(self, message: m.ToAgent) -> None:
        """One message of the coordinator."""
        self._run(self.end.received(self.now_s, message))

    def _run(self, effects: list[s.AgentEffect]) -> None:
        for effect in effects:
            match effect:
                case s.Send(message):
                    if self.link is not None:
                        self.link.up.append(message)
                case e.SessionOpened():
                    self.step(effect)
                case s.Acknowledged(m.Drain() | m.Cancel()):
                    self.step(e.Announced())
                case s.OrderPushed(pushed) if not isinstance(pushed, m.HeartbeatAck):
                    self._ordered(pushed)
                case s.Rejected(error):
                    text = str(error)
                    assert "is used by another running agent" in text, text
                    self.refused = text
                    self.step(e.SessionGivenUp(text))

    def _ordered(self, order: m.Order) -> None:
        self.step(order)
        match order:
            case m.CheckpointWanted():
                self.local.append(order)  # which takes the workers a while
            case m.CheckpointNotWanted(_, number):
                for wait in list(self.local):
                    if isinstance(wait, m.CheckpointWanted) and wait.number == number:
                        self.local.remove(wait)

    def step(self, event: e.NodeEvent) -> None:
        """Apply one event and do what the machine says."""
        for effect in machine.step(self.state, event):
            self._perform(effect)

    def _perform(self, effect: e.NodeEffect) -> None:
        match effect:
            case e.JoinRound():
                assert self.running is None, "joined with workers alive"
                self._joins += 1
                self._report(m.Join(self._joins, self.candidate))
            case e.EnrolWithStore(stamp, assignment):
                error = "no answer" if assignment.master_addr in self.unreachable else ""
                self.local.append(e.EnrolmentDone(stamp, error))
            case e.TryToStart(order):
                error = "no answer" if order.master_addr in self.unreachable else ""
                self.local.append(e.Tried(order.stamp, order.number, unreached=error))
            case e.SpawnWorkers(stamp):
                assert self.running is None, "two rounds on one node"
                self.running = stamp
            case e.SignalWorkers() | e.KillWorkers():
                if self.running is not None:
                    self.local.append(e.WorkersGone(self.running))
            case e.NodeTimer(kind, number, length_s):
                self.waits[e.WaitEnded(kind, number)] = self.now_s + length_s
            case e.ReportNow(report):
                self._report(report)
            case e.GiveUpNode():
                self._report(m.Leave())
            case e.SkipWaits() | e.NotifyWorkers():
                pass  # nobody waits after the end here, and no worker has a handler
            case e.Finish():
                assert self.running is None, "ended with workers alive"
                self.finish, self.finishes = effect, self.finishes + 1
                self._report(m.Leave())
            case e.AbandonRound() | e.RoundEnding() | e.WorkerEnded() | Record():
                pass
            case _:
                assert_never(effect)

    def local_event(self) -> None:
        """The next word of a process or of the round store."""
        event = self.local.popleft()
        if isinstance(event, m.CheckpointWanted):
            answer = m.CheckpointAnswered(
                event.stamp,
                event.number,
                self.listens,
                drains=event.kind is EndKind.DRAIN,
                goes_on=event.kind is EndKind.REQUEST,
            )
            self._report(answer)
            if self.listens and self.ends_when_asked and self.running is not None:
                ranks = range(self.candidate.workers)
                exits = [WorkerExit(0, None, local_rank=rank) for rank in ranks]
                self.local += [e.WorkersExited(self.running, (exit_,)) for exit_ in exits]
            return
        if isinstance(event, e.WorkersGone):
            self.running = None
        self.step(event)

    def _report(self, report: m.Report) -> None:
        self._run(self.end.report(report, self.now_s))


class Cluster:
    """The coordinator and its agents, in virtual time."""

    def __init__(self, settings: SharedSettings, *, has_register: bool = False) -> None:
        """`has_register`: what the coordinator decides is kept until `write_record`."""
        self.settings = settings
        self.epoch = Epoch(1 if has_register else 0, NONCE)
        state, handover = job.new_job(settings, INCARNATION), Handover()
        self.sessions = c.Sessions(
            state, self.epoch.as_int(), handover=handover if has_register else None
        )
        self._stored: JobRecord | None = None
        self._durable: Durable | None = None
        if has_register:
            self._durable = Durable(state, handover, is_recorded=False)
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

    def give_up(self, agent: SimulatedAgent, why: str = "it was silent") -> None:
        """The coordinator declares it lost; it may still live, and learns of it later."""
        if self.sessions.of_agent(agent.ref.incarnation) is not None:
            self.cut(agent)
            now = self.timers.now_s
            self._run(self.sessions.lose(agent.ref.incarnation, why, now, now))

    def tell_dead(self, stamp: Stamp, group_rank: int, node_id: str = "") -> None:
        """The guard of an agent that has died tells the coordinator, which may not know it."""
        event = PlacesDead((DeadPlace(stamp, group_rank, node_id),))
        self._run(self.sessions.apply(event, self.timers.now_s))

    def fence(self, agent: SimulatedAgent) -> None:
        """The agent's lease runs out."""
        agent.step(e.LeaseEnded())

    def fail(self, agent: SimulatedAgent, local_rank: int = 0, signal: int | None = None) -> None:
        """One of its workers ends badly."""
        self._exit(agent, WorkerExit(None if signal else 1, signal, local_rank=local_rank))

    def fail_unheard(self, agent: SimulatedAgent) -> None:
        """A worker fails, which its agent knows and has told nobody yet."""
        self.fail(agent)
        agent.local_event()

    def fail_heard(self, agent: SimulatedAgent) -> None:
        """A worker fails, of which the coordinator has heard; it has answered nothing yet."""
        self.fail_unheard(agent)
        self.deliver(("up", agent))

    def lose_peer(self, agent: SimulatedAgent) -> None:
        """One of its workers ends since a worker of another node went away."""
        self._exit(agent, WorkerExit(1, None, tells_of_lost_peer=True))

    def succeed(self, agent: SimulatedAgent) -> None:
        """All of its workers end well."""
        for rank in range(agent.candidate.workers):
            self._exit(agent, WorkerExit(0, None, local_rank=rank))

    def succeed_one(self, agent: SimulatedAgent) -> None:
        """The first of its workers ends well."""
        self._exit(agent, WorkerExit(0, None))

    def _exit(self, agent: SimulatedAgent, exit_: WorkerExit) -> None:
        if agent.running is not None:
            agent.local.append(e.WorkersExited(agent.running, (exit_,)))

    def signal(self, agent: SimulatedAgent, number: int) -> None:
        """Somebody tells this agent to go."""
        agent.step(e.SignalCaught(number))

    def notice(self, agent: SimulatedAgent) -> None:
        """Somebody says that this node is about to go."""
        agent.step(e.LeaveWanted("it is about to go"))

    @property
    def is_recorded(self) -> bool:
        """Nothing waits for the register."""
        return self._durable is None or self._durable.is_recorded

    def begin_record(self) -> None:
        """The register holds what the coordinator knows now, and the coordinator does not know."""
        assert self._durable is not None
        self._stored = self._durable.begin()

    def write_record(self) -> None:
        """The register holds what the coordinator knows now, and what waited for that is done."""
        assert self._durable is not None
        self.begin_record()
        self._perform(self._durable.written())

    def take_over(self, predecessor: Predecessor = UNKNOWN) -> None:
        """The coordinator dies; another one begins with the last record, and with what is known of
        the node that it lived in. Every connection breaks, and the caller connects the agents
        again."""
        for agent in self.agents:
            agent.disconnect()
            if self._stored is not None and agent.end.attached is not None:
                agent.end.told = Position(self.epoch.as_int(), 0, self._stored.incarnation)
        self._links.clear()
        self.timers = VirtualTimers(self.timers.now_s)
        self.epoch = Epoch(self.epoch.number + 1, NONCE)
        record = self._stored
        state = (
            job.new_job(self.settings, INCARNATION)
            if record is None
            else job_of(record, self.epoch)
        )
        handover = Handover(record, predecessor)
        self.sessions = c.Sessions(state, self.epoch.as_int(), handover=handover)
        self._durable = Durable(state, handover, is_recorded=record is not None)
        self.timers.keep(self.sessions.timers_wanted())

    def moves(self) -> list[tuple[str, SimulatedAgent]]:
        """Everything that could happen next without time passing."""
        found: list[tuple[str, SimulatedAgent]] = []
        for agent in self.agents:
            if agent.local:
                found.append(("local", agent))
            if agent.link is not None and agent.link.up:
                found.append(("up", agent))
            if agent.link is not None and (agent.link.down or agent.link.hung_up):
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
            if link.down:
                agent.hear(link.down.popleft())
            if link.hung_up and not link.down:
                agent.disconnect()
        else:
            self._hear(agent.link, agent.link.up.popleft())

    def deliver_all(self) -> None:
        """Deliver everything, with a register that stores nothing meanwhile."""
        while moves := self.moves():
            self.deliver(moves[0])

    def settle(self) -> None:
        """Deliver everything, in a fair order."""
        for _ in range(10_000):
            if not self.is_recorded:
                self.write_record()
            moves = self.moves()
            if not moves:
                return
            for move in moves:
                if move in self.moves():
                    self.deliver(move)
        raise AssertionError("the messages never end")

    def later(self, seconds: float) -> None:
        """So much later, when all that follows from it is done."""
        self.pass_time(seconds)
        self.settle()

    def bring(self, *agents: SimulatedAgent) -> None:
        """These connect and attach, and all that follows from it is done."""
        for agent in agents:
            self.connect(agent)
        self.settle()

    def add(self, *node_ids: str) -> list[SimulatedAgent]:
        """Fresh agents begin, and all that follows from it is done."""
        added = [self.start(node_id) for node_id in node_ids]
        self.settle()
        return added

    def end_well(self, *agents: SimulatedAgent) -> None:
        """The workers of these do, and all that follows from it is done."""
        for agent in agents:
            self.succeed(agent)
        self.settle()

    def end_badly(self, agent: SimulatedAgent) -> None:
        """A worker there does, and all that follows from it is done."""
        self.fail(agent)
        self.settle()

    @property
    def record(self) -> JobRecord:
        """What the register holds."""
        assert self._stored is not None
        return self._stored

    @property
    def verdict(self) -> Verdict:
        """How the job has ended."""
        assert self.job.verdict is not None
        return self.job.verdict

    @property
    def outcome(self) -> Outcome:
        """The kind of its end."""
        return self.verdict.outcome

    @property
    def end(self) -> EndReason:
        """Why the last round has ended."""
        assert self.job.end_reason is not None
        return self.job.end_reason

    def pass_time(self, seconds: float) -> None:
        """Waits run out, the job's and the agents'; what follows is left to be delivered."""
        end_s = self.timers.now_s + seconds
        while (timer := self.timers.next_until(end_s)) is not None:
            self._run(self.sessions.apply(TimerEnded(timer), self.timers.now_s))
        for number in list(self._links):  # their heartbeats, whose answers change nothing here
            said = self.sessions.received(number, m.Heartbeat(0), end_s)
            self._run([effect for effect in said if not isinstance(effect, host_effects.SendTo)])
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
            case m.DrainNode() | m.AgentDied() | m.Ask() | m.Collected():
                raise AssertionError("no agent says so")
            case _:
                assert_never(message)

    def do(self, effects: list[host_effects.HostEffect]) -> None:
        """Carry out the effects of a wish."""
        self._run(effects)

    def _run(self, effects: list[host_effects.HostEffect]) -> None:
        self._perform(effects if self._durable is None else self._durable.after(effects))
        self.timers.keep(self.sessions.timers_wanted())

    def _perform(self, effects: list[host_effects.HostEffect]) -> None:
        for effect in effects:
            match effect:
                case host_effects.SendTo(number, message):
                    if number in self._links:
                        self._links[number].down.append(message)
                case host_effects.HangUp(number):
                    if (link := self._links.pop(number, None)) is not None:
                        link.hung_up = True
                case Record():
                    self.records.append(effect)
                case host_effects.Refuse(number, text):
                    if (link := self._links.pop(number, None)) is not None:
                        link.down.append(m.Refused(text))
                        link.hung_up = True
                case host_effects.Faulted(_, error):
                    raise error
                case host_effects.Empty():
                    pass
                case _:
                    assert_never(effect)
