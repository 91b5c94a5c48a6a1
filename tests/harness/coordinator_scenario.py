"""Transcripts of what a coordinator decides before the job's machine does: which agent gets which
node id and which fixed rank, and what becomes of a request that a node leaves.

They are written as those of `scenario.py`. The first command is `coordinator`; after it a name is
that of an agent, not of a node, since the coordinator decides which node an agent is:

    coordinator nodes=MIN[:MAX] [SETTING=VALUE ...]   the job's settings (`SharedSettings`)
    attach AGENT [host=H] [id=ID] [former=ID] [rank=K]  an agent connects, and joins if it may;
                                                its id: given by a person, or had before
    attach AGENT                                a known agent connects again
    cut AGENT                                   its connection is reset
    kill AGENT                                  it dies, which its guard reports
    stop AGENT | continue AGENT                 it says nothing any more (SIGSTOP); or does again
    leave AGENT                                 it leaves by itself
    drain PERSON ID                             a person asks that this node leaves, and waits
    asks PERSON SUBJECT [ID]                    a person wants this of the job, and waits
    saves AGENT                                 its workers have saved the checkpoint
    hang-up PERSON                              and does not wait any more
    tick S                                      so many seconds pass; connected agents are heard

An agent obeys at once: it enrols, and it leaves when it is asked to. What else an agent waits for
is told when that changes.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from msgspec import Struct
from tests.harness.scenario import Options, assignment_text, options_and_names, settings_from

from rallypoint.core import host_effects
from rallypoint.core import job_requests as requests
from rallypoint.core import messages as m
from rallypoint.core import sessions as c
from rallypoint.core.event_kinds import Record
from rallypoint.core.events import TimerEnded
from rallypoint.core.job_requests import DrainRequest
from rallypoint.core.job_state import PersonWants, new_job, stamp
from rallypoint.core.model import Candidate, SharedSettings
from rallypoint.core.watch.questions import Ask, Subject
from rallypoint.testing.clock import VirtualTimers


class _Agent(Struct):
    name: str
    host: str
    id: str
    former: str
    candidate: Candidate
    connection: int = 0
    """0: none."""
    generation: int = 0
    opened: int = 0
    reports: int = 0
    joins: int = 0
    is_stopped: bool = False
    waits_for: str = ""


class CoordinatorScenario:
    """One hosted job, its agents, and persons. `run` executes one command; returns its trace."""

    def __init__(self) -> None:
        self._settings = SharedSettings("job", 1, 1)
        self._sessions = c.Sessions(new_job(self._settings), 1)
        self._requests = requests.Requests()
        self._timers = VirtualTimers()
        self._agents: dict[str, _Agent] = {}
        self._names: dict[int, str] = {}
        """Who is at the other end, by the number of the connection."""
        self._connections = 0
        self._answers: deque[tuple[_Agent, m.Report]] = deque()
        self._trace: list[str] = []

    def run(self, command: str) -> list[str]:
        """Raises ValueError for a command that is unknown or malformed."""
        name, *words = command.split()
        options, names = options_and_names(words)
        self._trace = []
        match name, names:
            case "coordinator", []:
                self._settings = settings_from(options)
                self._sessions = c.Sessions(new_job(self._settings), 1)
            case "attach", [agent]:
                self._attach(agent, options)
            case "cut", [agent]:
                found = self._agent(agent)
                self._closed(found.connection)
                found.connection = 0
            case "kill", [agent]:
                self._kill(self._agent(agent))
            case "stop", [agent]:
                self._agent(agent).is_stopped = True
            case "continue", [agent]:
                self._agent(agent).is_stopped = False
            case "leave", [agent]:
                self._answers.append((self._agent(agent), m.Leave()))
            case "drain", [person, node_id]:
                connection = self._connect(person)
                self._perform(
                    self._sessions.drain(DrainRequest(connection, node_id, "maintenance"))
                )
            case "asks", [person, subject, *nodes]:
                ask = Ask(Subject(subject), nodes=tuple(nodes))
                self._request(requests.Requested(self._connect(person), ask, "nodes", False, ""))
            case "saves", [agent]:
                save = self._sessions.job.save
                number = 0 if save is None else save.number
                answer = m.CheckpointAnswered(stamp(self._sessions.job), number, listens=True)
                self._answers.append((self._agent(agent), answer))
            case "hang-up", [person]:
                self._closed(next(n for n, whose in self._names.items() if whose == person))
            case "tick", [seconds]:
                self._tick(float(seconds))
            case _:
                raise ValueError(f"not a command: {command!r}")
        while self._answers:
            self._report(*self._answers.popleft())
        self._request(requests.AllRecorded())
        return self._trace

    def _request(self, event: requests.RequestEvent) -> None:
        for effect in requests.step(self._requests, event, self._sessions.job):
            match effect:
                case PersonWants():
                    self._perform(self._sessions.apply_own(effect, self._timers.now_s))
                case requests.Decline(connection, text):
                    self._trace.append(f"{self._names.pop(connection)} <- can't be done: {text}")
                case requests.Tell(connection, said):
                    how = "done" if said.is_done else "not done"
                    self._trace.append(f"{self._names.pop(connection)} <- {how}: {said.text}")

    def _agent(self, name: str) -> _Agent:
        if name not in self._agents:
            raise ValueError(f"agent {name!r} has never attached")
        return self._agents[name]

    def _connect(self, name: str) -> int:
        self._connections += 1
        self._names[self._connections] = name
        return self._connections

    def _closed(self, connection: int) -> None:
        self._names.pop(connection, None)
        self._request(requests.HungUp(connection))
        self._sessions.connection_closed(connection, self._timers.now_s, reset=True)

    def _kill(self, agent: _Agent) -> None:
        notice = m.AgentDied(agent.name, agent.generation, b"")
        now = self._timers.now_s
        self._perform(self._sessions.agent_died("", notice, lambda *proof: True, now))
        connection, agent.connection = agent.connection, 0
        self._closed(connection)
        self._perform(self._sessions.check(now))

    def _attach(self, name: str, options: Options) -> None:
        if name not in self._agents:
            rank = int(options.get("rank", "-1"))
            host = options.get("host", name)
            candidate = Candidate(1, "worker", host, 29500, node_rank=rank, stop_grace_s=5.0)
            id_, former = options.get("id", ""), options.get("former", "")
            self._agents[name] = _Agent(name, host, id_, former, candidate)
        agent = self._agents[name]
        agent.generation += 1
        agent.connection = self._connect(name)
        hello = m.Attach(
            node_id=agent.id,
            host_name=agent.host,
            incarnation=name,
            generation=agent.generation,
            settings=self._settings,
            opened=agent.opened,
            former_id=agent.former,
        )
        now = self._timers.now_s
        self._perform(self._sessions.attach(agent.connection, agent.host, hello, now))

    def _join(self, agent: _Agent) -> None:
        agent.joins += 1
        self._answers.append((agent, m.Join(agent.joins, agent.candidate)))

    def _report(self, agent: _Agent, report: m.Report) -> None:
        if not agent.connection:
            return
        agent.reports += 1
        numbered = m.Numbered(agent.reports, report)
        now = self._timers.now_s
        self._perform(self._sessions.received(agent.connection, numbered, now))

    def _tick(self, seconds: float) -> None:
        end_s = self._timers.now_s + seconds
        while self._timers.now_s < end_s:
            now = min(self._timers.now_s + 1.0, end_s)
            while (timer := self._timers.next_until(now)) is not None:
                self._perform(self._sessions.apply(TimerEnded(timer), self._timers.now_s))
            for agent in self._agents.values():
                if agent.connection and not agent.is_stopped:
                    beat = m.Heartbeat(1)
                    self._perform(self._sessions.received(agent.connection, beat, now))
            self._perform(self._sessions.check(now))
            while self._answers:
                self._report(*self._answers.popleft())

    def _perform(self, effects: list[host_effects.HostEffect]) -> None:
        for effect in effects:
            match effect:
                case Record(_, text):
                    self._trace.append(f"* {text}")
                case host_effects.SendTo(connection, message):
                    self._sent(connection, message)
                case host_effects.HangUp(connection):
                    self._hung_up(connection)
                case host_effects.Refuse(connection, text):
                    self._trace.append(f"{self._names[connection]} <- refused: {text}")
                    self._hung_up(connection)
                case host_effects.Faulted(_, error):
                    raise error
                case host_effects.Empty():
                    self._trace.append("the coordinator has no session left")
                case _:
                    assert_never(effect)
        self._timers.keep(self._sessions.timers_wanted())

    def _hung_up(self, connection: int) -> None:
        name = self._names.pop(connection, "")
        if name in self._agents and self._agents[name].connection == connection:
            self._agents[name].connection = 0
        elif name:
            self._trace.append(f"{name} <- hung up")

    def _sent(self, connection: int, message: m.ToAgent) -> None:
        if (name := self._names.get(connection)) is None:
            return
        if isinstance(message, m.DrainAnswer):
            self._trace.append(f"{name} <- {message.text}")
            return
        agent = self._agents[name]
        match message:
            case m.Attached(node_id, _, _, resumed):
                agent.opened = agent.opened if resumed else agent.generation
                agent.former = node_id
                how = "resumed" if resumed else "attached"
                self._trace.append(f"{name} <- {how} as node {node_id}")
                if not resumed:
                    self._join(agent)
            case m.Assigned(stamp, assignment):
                self._trace.append(f"{name} <- {assignment_text(assignment, 1)}")
                self._answers.append((agent, m.Enrolled(stamp)))
            case m.StopNow(_, reason):
                self._trace.append(f"{name} <- stop: {reason.text}")
                self._join(agent)
            case m.DrainWanted(_, why):
                self._trace.append(f"{name} <- drain: {why}")
                self._answers.append((agent, m.Drain(why, 0)))
            case m.CheckpointWanted(_, _, _, why, _):
                self._trace.append(f"{name} <- save a checkpoint: {why}")
            case m.LeaveNow():
                self._trace.append(f"{name} <- leave")
                self._answers.append((agent, m.Leave()))
            case m.Expelled(_, why, final):
                self._trace.append(f"{name} <- expelled{' for good' if final else ''}: {why}")
            case m.HeartbeatAck(_, _, status) if status.waits_for != agent.waits_for:
                agent.waits_for = status.waits_for
                if status.waits_for:
                    self._trace.append(f"{name} <- waiting for {status.waits_for}")
            case m.Ended(_, verdict):
                self._trace.append(f"{name} <- the job {verdict.outcome.value}: {verdict.text}")
            case _:
                pass
