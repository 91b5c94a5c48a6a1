"""One agent in memory: the real machines of its workers and of its session, and processes that
obey."""

from __future__ import annotations

from collections import deque
from typing import assert_never

from msgspec import Struct, field

from rallypoint.core import group
from rallypoint.core import group_events as g
from rallypoint.core import messages as m
from rallypoint.core import session as s
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Candidate, NodeRef, SharedSettings, Stamp


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
        self.end = s.AgentEnd(identity, settings, has_fence=False)
        self.candidate = Candidate(workers, "default", ref.node_id, 29500)
        signals = (1, 2, 3, 15)
        self.listens = True
        """Its workers save the checkpoints that they are asked for."""
        self.ends_when_asked = False
        """And then exit with 0, though they have more to do."""
        self.state = group.GroupState(group.GroupSettings(workers, 25.0, 5.0, signals))
        self.running: Stamp | None = None
        """The round whose workers live here."""
        self.finish: g.Finish | None = None
        self.finishes = 0
        self.link: Link | None = None
        self.unreachable: set[str] = set()
        """Ids of the nodes whose round store this one can't reach."""
        self.local: deque[g.GroupEvent] = deque()
        """What processes and the round store will tell this agent."""
        self.waits: dict[g.WaitEnded, float] = {}
        self.now_s = 0.0
        self._joins = 0

    @property
    def is_done(self) -> bool:
        """Its process has said how it ended."""
        return self.finish is not None

    def connect(self, number: int) -> None:
        """A new connection, on which the agent attaches."""
        self.link = Link(number)
        self._run(self.end.connected(self.now_s, group.claim(self.state)))

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
                case s.Opened(resumed, replaced):
                    self.step(g.SessionOpened(resumed, replaced))
                case s.Acknowledged(m.Drain() | m.Cancel()):
                    self.step(g.Announced())
                case s.Pushed(pushed) if not isinstance(pushed, m.HeartbeatAck):
                    self._ordered(pushed)
                case s.Rejected(text):
                    raise AssertionError(text)

    def _ordered(self, order: m.Order) -> None:
        self.step(order)
        match order:
            case m.CheckpointWanted():
                self.local.append(order)  # which takes the workers a while
            case m.CheckpointNotWanted(_, number):
                for wait in list(self.local):
                    if isinstance(wait, m.CheckpointWanted) and wait.number == number:
                        self.local.remove(wait)

    def step(self, event: g.GroupEvent) -> None:
        """Apply one event and do what the machine says."""
        for effect in group.step(self.state, event):
            self._perform(effect)

    def _perform(self, effect: g.GroupEffect) -> None:
        match effect:
            case g.JoinRound():
                assert self.running is None, "joined with workers alive"
                self._joins += 1
                self._report(m.Join(self._joins, self.candidate))
            case g.EnrolWithStore(stamp, assignment):
                error = "no answer" if assignment.master_addr in self.unreachable else ""
                self.local.append(g.EnrolmentDone(stamp, error))
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
            case g.ReportNow(report):
                self._report(report)
            case g.GiveUp():
                self._report(m.Leave())
            case g.SkipWaits():
                pass  # nobody waits after the end here
            case g.Finish():
                assert self.running is None, "ended with workers alive"
                self.finish, self.finishes = effect, self.finishes + 1
                self._report(m.Leave())
            case Record():
                pass
            case _:
                assert_never(effect)

    def local_event(self) -> None:
        """The next word of a process or of the round store."""
        event = self.local.popleft()
        if isinstance(event, m.CheckpointWanted):
            self._report(m.CheckpointAnswered(event.stamp, event.number, self.listens))
            if self.listens and self.ends_when_asked and self.running is not None:
                exits = [g.Exit(rank, 0, None) for rank in range(self.candidate.workers)]
                self.local += [g.WorkersExited(self.running, (exit_,)) for exit_ in exits]
            return
        if isinstance(event, g.WorkersGone):
            self.running = None
        self.step(event)

    def _report(self, report: m.Report) -> None:
        self._run(self.end.report(report))
