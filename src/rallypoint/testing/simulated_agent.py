"""One agent in memory: the real group machine, processes that obey, and its end of a session."""

from __future__ import annotations

from collections import deque
from typing import assert_never

from msgspec import Struct, field

from rallypoint.core import group
from rallypoint.core import group_events as g
from rallypoint.core import job_events as j
from rallypoint.core.events import NodeJoined, NodeLeft, NodeSucceeded, WorkersFinishing
from rallypoint.core.model import Candidate, NodeRef, SharedSettings, Stamp, WorkerFailure


class Hello(Struct, frozen=True):
    """The coordinator's first word on a connection."""

    resumed: bool


class Ack(Struct, frozen=True):
    """All reports up to this number have been applied."""

    number: int


class Asked(Struct, frozen=True):
    """The workers are to save a checkpoint, which takes them a while."""

    wanted: j.WantCheckpoint


class NotAsked(Struct, frozen=True):
    """Nobody waits for that checkpoint any more."""

    number: int


Pushed = Hello | Ack | Asked | NotAsked | g.GroupEvent


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
            case NotAsked(number):
                for wait in list(self.local):
                    if isinstance(wait, Asked) and wait.wanted.number == number:
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
                joined = NodeJoined(self.ref, self._joins, self.candidate, self._settings)
                self._report(joined)
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
            case g.ReportFailures(stamp, exits):
                failures = tuple(self._failure(exit_) for exit_ in exits)
                self._report(j.NodeFailed(self.ref, stamp.round, failures))
            case g.ReportHelperDied(stamp, text):
                self._report(j.HelperDied(self.ref, stamp.round, text))
            case g.ReportFinishing(stamp):
                self._report(WorkersFinishing(stamp.round, self.ref))
            case g.ReportSuccess(stamp):
                self._report(NodeSucceeded(self.ref, stamp.round))
            case g.ReportEnrolment(stamp, error) if error:
                self._report(j.EnrolmentFailed(self.ref, stamp.round, error))
            case g.ReportEnrolment(stamp):
                self._report(j.NodeEnrolled(self.ref, stamp.round))
            case g.AnnounceDrain(number, why, notice_s):
                self._report(j.NodeDrains(self.ref, why, number, notice_s))
            case g.SkipWaits():
                pass  # nobody waits after the end here
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
            saved = j.CheckpointAnswered(self.ref, wanted.round, wanted.number, self.listens)
            self._report(saved)
            if self.listens and self.ends_when_asked and self.running is not None:
                exits = [g.Exit(rank, 0, None) for rank in range(self.candidate.workers)]
                self.local += [g.WorkersExited(self.running, (exit_,)) for exit_ in exits]
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
