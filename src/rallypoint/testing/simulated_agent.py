"""One agent in memory: the real group machine, processes that obey, and its end of a session."""

from __future__ import annotations

from collections import deque
from typing import assert_never

from msgspec import Struct, field

from rallypoint.core import group
from rallypoint.core import group_events as g
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Candidate, NodeRef, SharedSettings, Stamp


class Hello(Struct, frozen=True):
    """The coordinator's first word on a connection."""

    resumed: bool


Pushed = Hello | m.Ack | m.Order


class Link(Struct):
    """One connection: what is on its way."""

    up: deque[m.Numbered] = field(default_factory=deque)
    down: deque[Pushed] = field(default_factory=deque)
    hung_up: bool = False
    """The coordinator has closed it: it ends when the agent has read what was sent."""


class SimulatedAgent:
    """One agent: the group machine, processes that obey, and its end of a session."""

    def __init__(self, ref: NodeRef, settings: SharedSettings, workers: int) -> None:
        self.ref, self._settings = ref, settings
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
        self.generation = self.opened = 0
        self._attached = False
        self._unacknowledged: deque[m.Numbered] = deque()
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
            case m.Ack(number):
                while self._unacknowledged and self._unacknowledged[0].number <= number:
                    report = self._unacknowledged.popleft().report
                    if isinstance(report, m.Drain | m.Cancel):
                        self.step(g.Announced())
            case m.CheckpointWanted():
                self.step(message)
                self.local.append(message)  # which takes the workers a while
            case m.CheckpointNotWanted(_, number):
                self.step(message)
                for wait in list(self.local):
                    if isinstance(wait, m.CheckpointWanted) and wait.number == number:
                        self.local.remove(wait)
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
        self._numbers += 1
        numbered = m.Numbered(self._numbers, report)
        self._unacknowledged.append(numbered)
        if self.link is not None and self._attached:
            self.link.up.append(numbered)
