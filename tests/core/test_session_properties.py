"""F1, F2: both ends of the session protocol under hammer, on networks that do what networks do.

Connections keep their order, each for itself; what is on its way when a connection breaks may still
arrive, or not. Agents and the coordinator are paused past the lease, and restarted.
"""

from __future__ import annotations

from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec import Struct, field
from tests.harness.narrowed import known
from tests.harness.properties import explore

from rallypoint.core import host_effects
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core import session as s
from rallypoint.core import sessions as c
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import JobEffect, JobEvent, SessionLost, new_job
from rallypoint.core.model import SharedSettings
from rallypoint.core.node.events import LeaseEnded, SessionGivenUp, SessionOpened

LEASE_S = 15.0
RULES = SharedSettings("job", 1, 4, lease_s=LEASE_S, reconnect_grace_s=1.0, reset_grace_s=5.0)
NODES = ("a", "b")


class Wire(Struct, eq=False):
    """One connection: what is on its way, and which ends still use it."""

    number: int
    generation: int = 0
    up: deque[m.ToCoordinator] = field(default_factory=deque)
    down: deque[m.ToAgent] = field(default_factory=deque)
    is_up_ended: bool = False
    """The agent sends nothing more: the coordinator sees the end after what is on its way."""
    is_down_ended: bool = False
    is_reset: bool = False
    has_attached: bool = False


class Agent:
    """One agent's end, and what is true of it."""

    def __init__(self, node_id: str, life: str, now: float) -> None:
        self.life = life
        self.end = s.AgentEnd(s.Identity(node_id, "host", life), RULES)
        self.wire: Wire | None = None
        self.reports: list[str] = []
        self.cut = 0
        """So many reports were made before a coordinator that knew nothing of this agent."""
        self.acknowledged = self.generation = 0
        self.sent: dict[float, float] = {}
        self.held_until: float | None = None
        self.is_fenced = False
        self.beat_at = now
        self.is_given_up = False


class Protocol(RuleBasedStateMachine):
    """Two agents and one coordinator."""

    @initialize()
    def begin(self) -> None:
        self.now = 100.0
        self.wires: list[Wire] = []
        self.lives = self.epoch = self.connections = 0
        self.owner: dict[int, str] = {}
        """By the number of a connection: the incarnation of its agent."""
        self.applied: dict[str, list[int]] = {}
        """By the incarnation of the agent: the reports that this coordinator has applied."""
        self.ever_applied: set[str] = set()
        self.heard_from: set[tuple[str, float]] = set()
        """Agents, and when they sent what a coordinator has received."""
        self.agents: dict[str, Agent] = {}
        self.of_life: dict[str, Agent] = {}
        """Also those that have ended."""
        self.vanished_at: dict[str, float] = {}
        self.patient_until = 0.0
        self.begin_coordinator()
        for node_id in NODES:
            self.begin_agent(node_id)
        self.deliver_all()

    def begin_coordinator(self) -> None:
        self.epoch += 1
        self.applied = {}
        self.sessions = c.Sessions(new_job(RULES, self.epoch), self.epoch, machine=self.machine)
        for wire in self.wires:
            wire.up.clear()
            wire.is_up_ended = wire.is_down_ended = True
        self.wires = [wire for wire in self.wires if wire.down or wire.is_down_ended]
        self.newest: dict[str, int] = {}

    def begin_agent(self, node_id: str) -> None:
        self.lives += 1
        agent = self.agents[node_id] = Agent(node_id, f"life{self.lives}", self.now)
        self.of_life[agent.life] = agent
        self.connect(node_id)

    def machine(self, job: jobs.JobState, event: JobEvent, at: float) -> list[JobEffect]:
        """The job's machine: here it keeps what it gets."""
        match event:
            case m.FromNode(ref, m.Cancel(why)):
                number = int(why.partition("-")[2])
                applied = self.applied.setdefault(ref.incarnation, [])
                last = applied[-1] if applied else 0
                agent = self.of_life[ref.incarnation]
                expected = max(last, agent.cut) + 1
                assert number == expected, f"{why} was applied in place of {expected}"
                applied.append(number)
                self.ever_applied.add(why)
            case SessionLost(ref, why):
                self.applied.pop(ref.incarnation, None)
                if "silent" in why:
                    held_until = self.of_life[ref.incarnation].held_until
                    assert held_until is None or held_until < self.now, "lost within its lease"
        return []

    # The network

    @rule(node_id=st.sampled_from(NODES))
    def connect(self, node_id: str) -> None:
        agent = self.agents[node_id]
        if agent.wire is not None or agent.is_given_up or agent.end.is_closed:
            return
        self.connections += 1
        wire = Wire(self.connections)
        self.wires.append(wire)
        self.wake(agent)
        agent.wire = wire
        self.run_agent(agent, agent.end.connected(self.now, m.Claim()))
        wire.generation = agent.end.generation

    @rule(node_id=st.sampled_from(NODES), is_reset=st.booleans(), loses=st.booleans())
    def break_connection(self, node_id: str, is_reset: bool, loses: bool) -> None:
        """The agent sees it first. What it has sent may still arrive."""
        agent = self.agents[node_id]
        if (wire := agent.wire) is None:
            return
        if loses:
            wire.up.clear()
        wire.is_up_ended = wire.is_down_ended = True
        wire.is_reset = is_reset
        self.lose_wire(agent)

    def lose_wire(self, agent: Agent) -> None:
        agent.wire = None
        self.wake(agent)
        self.run_agent(agent, agent.end.disconnected(self.now, "it broke"))

    @rule(pick=st.integers(0, 7), count=st.integers(1, 6))
    def deliver_up(self, pick: int, count: int) -> None:
        """On any connection, also on one that was replaced."""
        for _ in range(count):
            busy = [wire for wire in self.wires if wire.up or wire.is_up_ended]
            if busy:
                self.up(busy[pick % len(busy)])

    def up(self, wire: Wire) -> None:
        if not wire.up:
            self.wires.remove(wire)
            if (session := self.sessions.on(wire.number)) is not None:
                self.vanished_at[session.ref.incarnation] = self.now
            self.sessions.connection_closed(wire.number, self.now, reset=wire.is_reset)
            for agent in self.agents.values():
                if agent.wire is wire:
                    self.lose_wire(agent)
            return
        message = wire.up.popleft()
        match message:
            case m.Attach(incarnation=life, generation=generation):
                before = self.sessions.of_agent(life)
                is_old = before is not None and generation <= before.generation
                effects = self.sessions.attach(wire.number, "host", message, self.now)
                assert not is_old or effects == [host_effects.HangUp(wire.number)]
                session = known(self.sessions.of_agent(life))
                if session.connection == wire.number:  # the session may have been lost meanwhile
                    self.newest[life] = generation
                    wire.has_attached = True
                else:
                    assert generation <= self.newest[life]
            case m.Numbered() | m.Heartbeat():
                effects = self.sessions.received(wire.number, message, self.now)
                life = self.owner.get(wire.number, "")
                is_current = wire.has_attached and self.newest.get(life) == wire.generation
                if not is_current:
                    assert effects == [], "a frame of an older generation had an effect"
                elif effects and isinstance(message, m.Heartbeat):
                    self.heard_from.add((life, self.of_life[life].sent[message.number]))
            case _:
                raise AssertionError(message)
        self.run_coordinator(effects)

    @rule(node_id=st.sampled_from(NODES), count=st.integers(1, 6), was_stopped=st.booleans())
    def deliver_down(self, node_id: str, count: int, was_stopped: bool) -> None:
        agent = self.agents[node_id]
        for _ in range(count):
            if agent.wire is not None:
                self.down(agent, agent.wire, was_stopped=was_stopped)

    def down(self, agent: Agent, wire: Wire, *, was_stopped: bool = False) -> None:
        """`was_stopped`: between the wake-up and the reading, where the guard keeps the fence."""
        if not was_stopped:
            self.wake(agent)
        if agent.wire is not wire:  # it was dropped at the end of the lease
            return
        if wire.down:
            self.run_agent(agent, agent.end.received(self.now, wire.down.popleft()))
        elif wire.is_down_ended:
            wire.is_up_ended = True
            self.lose_wire(agent)

    @rule()
    def deliver_all(self) -> None:
        """Both ways, until nothing is on its way."""
        for _ in range(400):
            for wire in [wire for wire in self.wires if wire.up or wire.is_up_ended]:
                self.up(wire)
            for agent in self.agents.values():
                if agent.wire is not None and (agent.wire.down or agent.wire.is_down_ended):
                    self.down(agent, agent.wire)
            if not any(w.up or w.down or w.is_up_ended or w.is_down_ended for w in self.wires):
                return

    # The agents

    @rule(node_id=st.sampled_from(NODES), count=st.integers(1, 3))
    def report(self, node_id: str, count: int) -> None:
        agent = self.agents[node_id]
        for _ in range(count):
            agent.reports.append(f"{agent.life}-{len(agent.reports) + 1}")
            self.run_agent(agent, agent.end.report(m.Cancel(agent.reports[-1], 0), self.now))

    @rule(node_id=st.sampled_from(NODES), count=st.integers(1, 3), is_reset=st.booleans())
    def report_without_a_connection(self, node_id: str, count: int, is_reset: bool) -> None:
        self.break_connection(node_id, is_reset, loses=False)
        self.report(node_id, count)
        self.connect(node_id)

    @rule(node_id=st.sampled_from(NODES))
    def attach_twice_in_the_wrong_order(self, node_id: str) -> None:
        """The older connection is the slower one."""
        agent = self.agents[node_id]
        for _ in range(2):
            self.break_connection(node_id, is_reset=True, loses=False)
            self.connect(node_id)
        for wire in reversed([w for w in self.wires if self.owner.get(w.number) == agent.life]):
            while wire in self.wires and wire.up:
                self.up(wire)

    @rule(node_id=st.sampled_from(NODES))
    def report_one_by_one(self, node_id: str) -> None:
        """Several are on their way, and the first of them is answered."""
        agent = self.agents[node_id]
        self.report(node_id, 3)
        if agent.wire is not None and agent.wire.up:
            self.up(agent.wire)
        if agent.wire is not None:
            self.down(agent, agent.wire)

    @rule(node_id=st.sampled_from(NODES))
    def wake_up_with_a_full_inbox(self, node_id: str) -> None:
        """An answer is there in time, and is read after the lease."""
        agent = self.agents[node_id]
        self.deliver_all()
        self.pass_time(1.0, "")
        for wire in list(self.wires):
            while wire is agent.wire and wire.up:
                self.up(wire)
        self.pause_past_the_lease(node_id)
        self.deliver_down(node_id, 2, was_stopped=True)

    @rule(node_id=st.sampled_from(NODES))
    def restart_agent(self, node_id: str) -> None:
        """The kernel ends its connection."""
        if self.lives < 8:
            wire = self.agents[node_id].wire
            if wire is not None:
                wire.is_up_ended = True
            self.begin_agent(node_id)

    @rule()
    def restart_coordinator(self) -> None:
        if self.epoch < 4:
            self.begin_coordinator()

    # Time

    @rule(seconds=st.sampled_from([0.3, 1.0, 6.0]), paused=st.sampled_from(["", "a", "b", "c"]))
    def pass_time(self, seconds: float, paused: str) -> None:
        """Some seconds, in which somebody may not run (c: the coordinator)."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            for node_id, agent in self.agents.items():
                if node_id != paused:
                    self.wake(agent)
                    if self.now >= agent.beat_at:
                        self.run_agent(agent, agent.end.beat(self.now))
                        agent.beat_at = self.now + agent.end.next_wake_s(self.now)
            if paused == "c":
                self.patient_until = max(self.patient_until, self.now)
            else:
                self.look()

    @rule(paused=st.sampled_from(["a", "b", "c"]))
    def pause_past_the_lease(self, paused: str) -> None:
        self.pass_time(LEASE_S + 1.0, paused)
        if paused == "c":
            self.patient_until = self.now + LEASE_S
            self.run_coordinator(self.sessions.check(self.now, LEASE_S + 1.0))

    def look(self) -> None:
        due_s = self.sessions.liveness.next_check(self.now)
        if due_s is not None and due_s <= 0:
            self.run_coordinator(self.sessions.check(self.now))
        for session in self.sessions.all:
            if session.connection is None:
                since = max(self.vanished_at[session.ref.incarnation], self.patient_until)
                assert self.now - since < RULES.reset_grace_s + 1.0, "its grace never ends"

    def wake(self, agent: Agent) -> None:
        self.run_agent(agent, agent.end.woke_up(self.now))
        if agent.held_until is not None and self.now > agent.held_until:
            assert agent.is_fenced or agent.end.is_closed, "it acts after its lease"

    # What the ends ask for

    def run_agent(self, agent: Agent, effects: list[s.AgentEffect]) -> None:
        for effect in effects:
            match effect:
                case s.Send(message):
                    wire = agent.wire
                    if wire is None or wire.is_up_ended:
                        continue
                    self.owner[wire.number] = agent.life
                    if isinstance(message, m.Heartbeat):
                        agent.sent[message.number] = self.now
                    elif isinstance(message, m.Attach):
                        assert message.generation > agent.generation, "not a new generation"
                        agent.generation = message.generation
                        self.heard_from.add((agent.life, self.now))
                    wire.up.append(message)
                case s.Drop():
                    if agent.wire is not None:
                        agent.wire.is_up_ended = agent.wire.is_down_ended = True
                        agent.wire.is_reset = True
                        wire, agent.wire = agent.wire, None
                        self.run_agent(agent, agent.end.disconnected(self.now, "dropped"))
                case SessionOpened(resumed):
                    if not resumed:
                        agent.cut = len(agent.reports)
                        agent.acknowledged = agent.cut
                case s.Acknowledged(m.Cancel(why)):
                    assert why in self.ever_applied, "acknowledged, and not applied"
                    number = int(why.partition("-")[2])
                    assert number == agent.acknowledged + 1, "acknowledged out of order"
                    agent.acknowledged = number
                case s.Held(until):
                    times = {at for life, at in self.heard_from if life == agent.life}
                    assert any(abs(until - LEASE_S - at) < 1e-6 for at in times), "never received"
                    if agent.held_until is not None and self.now > agent.held_until:
                        assert agent.is_fenced, "revived without having been fenced"
                    agent.held_until = until
                    agent.is_fenced = agent.is_fenced and self.now > until
                case LeaseEnded():
                    assert not agent.is_fenced, "fenced twice"
                    assert self.now > known(agent.held_until), "fenced too early"
                    agent.is_fenced = True
                case s.Rejected(error):
                    raise AssertionError(str(error))
                case SessionGivenUp():
                    agent.is_given_up = True

    def run_coordinator(self, effects: list[host_effects.HostEffect]) -> None:
        for effect in effects:
            match effect:
                case host_effects.SendTo(number, message):
                    for wire in self.wires:
                        if wire.number == number and not wire.is_down_ended:
                            wire.down.append(message)
                case host_effects.HangUp(number):
                    for wire in self.wires:
                        if wire.number == number:
                            wire.is_down_ended = True
                case host_effects.Faulted(_, error):
                    raise error
                case host_effects.Refuse(_, text):
                    raise AssertionError(text)
                case Record(name="patience"):
                    self.patient_until = self.now + LEASE_S
                case host_effects.Empty() | Record():
                    pass

    def teardown(self) -> None:
        """Peace: everybody is attached, nothing waits, and both ends agree."""
        if not hasattr(self, "agents"):
            return
        for _ in range(60):
            for node_id in NODES:
                self.connect(node_id)
            self.deliver_all()
            if all(map(self.agrees, self.agents.values())):
                return
            self.pass_time(0.5, "")
        raise AssertionError("the two ends do not come to an agreement")

    def agrees(self, agent: Agent) -> bool:
        session = self.sessions.of_agent(agent.life)
        if session is None or agent.wire is None or session.connection != agent.wire.number:
            return False
        made = len(agent.reports)
        applied = self.applied.get(agent.life, [])
        if not agent.end.is_all_acknowledged or (made > agent.cut and made not in applied):
            return False
        wanted = range(agent.cut + 1, made + 1)
        assert set(wanted) <= set(applied), "a report was lost"
        return agent.end._opened == session.opened


def test_F1_F2_both_ends_of_a_session_hold_whatever_the_network_does() -> None:
    explore(Protocol, 80, steps=30)
