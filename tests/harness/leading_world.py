"""Processes that lead one job or would lead it, in virtual time: the machines of `core/takeover/`
over a register that does what the test wants.

After each event it is checked that a process has one thing at a time to wait for, with an end; that
no node claims before the end of what it has promised; and that no two processes may act as leaders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf

from msgspec.structs import replace
from tests.harness.heirs import ROUND, job_of

from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Epoch
from rallypoint.core.takeover import candidacy as c
from rallypoint.core.takeover import duties as d
from rallypoint.core.takeover import leader_search
from rallypoint.core.takeover.consent import NO_ROUND, Promises, Speaker
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import Leader, LeadRecord, Process
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.takeover.told import Seal
from rallypoint.errors import RallypointError, RendezvousConnectionError

Fate = Callable[[str], str]
"""What becomes of a message: "ok", "slow", "lost", or "unknown": it arrives, and its answer is
lost."""
CALL_S, SLOW_S = 0.01, 3.0
"""A call of the register takes so long, if its fate is "slow" or else."""
HURT = "the register is away"


def all_well(message: str) -> str:
    return "ok"


class World:
    """One job of so many nodes, whose round 3 runs and whose leader has left."""

    def __init__(self, nodes: int = 3, fate: Fate = all_well) -> None:
        self.now, self.fate, self.trace = 1000.0, fate, list[str]()
        job = replace(job_of(nodes), leader_rank=-1)
        leader = Leader(("gone:1",), Process("boot", 1, 9), has_workers=True)
        self.record: LeadRecord | None = LeadRecord(1, Epoch(1, 9), leader, 0, job, is_vacant=True)
        self.version = 1
        self.processes: dict[str, Claiming] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def start(self, process: Claiming) -> Claiming:
        """From now on it looks at the register."""
        self.processes[process.name] = process
        process.begin()
        return process

    def node(self, rank: int, **more: bool) -> Claiming:
        """Start the node of this rank."""
        return self.start(Node(self, rank, **more))

    def candidate(self, name: str) -> Claiming:
        """Start a process that stands ready to lead."""
        return self.start(Candidate(self, name))

    @property
    def leader(self) -> Claiming | None:
        """The process that leads by the newest epoch, as it knows itself."""
        leading = [each for each in self.processes.values() if each.duties is not None]
        return max(leading, key=lambda each: each.epoch.number, default=None)

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Do this then."""
        heappush(self._due, (time, next(self._numbers), call))

    def tick(self, seconds: float) -> None:
        """So many seconds pass."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, call = heappop(self._due)
            call()
            self.check()
        self.now = end

    def check(self) -> None:
        """No two processes may act as leaders now."""
        sure = [each.name for each in self.processes.values() if each.is_sure]
        assert len(sure) < 2, sure

    def say(self, name: str, text: str) -> None:
        """It happens to this process."""
        self.trace.append(f"@{self.now - 1000:.1f} {name} {text}")


class Claiming:
    """One process, and what it is about."""

    def __init__(self, world: World, name: str, machine: c.Candidacy, promises: Promises) -> None:
        self.world, self.name, self.machine, self.promises = world, name, machine, promises
        self.duties: d.Duties | None = None
        self.is_gone = self.is_away = self.has_ended = False
        self.deference = Deference()
        self.claims = list[LeadRecord]()
        self._token = 0
        self._pending = 0
        self._beats = count(1)
        self._wakes = inf
        self._nonces = count(100)

    @property
    def speaker(self) -> Speaker:
        """As the leader knows it."""
        raise NotImplementedError

    @property
    def present(self) -> c.Present:
        """What it is in the job."""
        return c.Present(is_awaited=False)

    @property
    def epoch(self) -> Epoch:
        """By which it leads."""
        assert self.duties is not None
        return self.duties.lead.epoch

    @property
    def is_sure(self) -> bool:
        """It may act as the leader."""
        led = self.duties
        return led is not None and not self.is_gone and led.is_sure(self.world.now)

    @property
    def is_attached(self) -> bool:
        """It has a leader that lives."""
        leader = self.world.leader
        return leader is not None and leader is not self and not leader.is_gone

    def begin(self) -> None:
        """It looks from now on."""
        self._later(0.0, self._looks)
        self.world.at(self.world.now, self._beat)

    def vanish(self) -> None:
        """Its machine is gone."""
        self.is_gone, self.duties = True, None

    def _looks(self) -> list[c.Effect]:
        return self.machine.looks(self.present)

    def _later(self, seconds: float, happens: Callable[[], list[c.Effect]]) -> None:
        self._pending += 1

        def come() -> None:
            self._pending -= 1
            if not self.is_gone:
                self.feed(happens)

        self.world.at(self.world.now + seconds, come)

    def feed(self, happens: Callable[[], list[c.Effect]]) -> None:
        """This happens to it."""
        try:
            effects = happens()
        except RallypointError as error:
            self.has_ended = True
            self.world.say(self.name, f"ends: {error}")
            return
        for effect in effects:
            self._do(effect)
        assert self._pending == (not self.has_ended), f"{self.name} waits for {self._pending}"

    def _do(self, effect: c.Effect) -> None:
        now = self.world.now
        match effect:
            case c.Look():
                self._later(self._call_s(), self._read)
            case c.Swap(claim):
                self._check_promise(claim)
                self.claims.append(claim.record)
                self.world.say(self.name, f"claims epoch {claim.record.epoch.number}")
                self._later(self._call_s(), lambda: self._swap(claim.record, now))
            case c.Wait(seconds):
                assert 0 <= seconds < inf
                self._later(max(seconds, CALL_S), self._looks)
            case c.Say(text):
                self.world.say(self.name, f"says: {text}")
            case c.Lead():
                self.world.say(self.name, "leads")
                self.duties = d.Duties(effect, self.machine.memory, self.deference, Seal())
                self.has_ended |= not isinstance(self.machine, leader_search.Search)
                self._oblige(self.duties.keeps(now))
            case c.GiveUp():
                self.has_ended = True
                self.world.say(self.name, "gives up")
            case c.Listen():
                self.world.say(self.name, "listens")
                self._later(0.0, lambda: self._search.listened(self.world.now, (f"{self.name}:1",)))
            case c.Close():
                self.world.say(self.name, "listens no more")
            case c.TryWriting():
                self._later(
                    CALL_S, lambda: self._search.tried(self.world.now, is_writable=not self.is_away)
                )
            case c.Dial(addresses):
                self.world.say(self.name, f"attaches to {addresses[0]}")

    def _check_promise(self, claim: c.Claim) -> None:
        """A claim before the end of a promise is allowed if the leader has said that it goes."""
        found = claim.found
        if found is not None and not found.is_vacant:
            freed = self.promises.freed_epoch == found.epoch.as_int()
            assert freed or self.world.now >= self.promises.until, f"{self.name} breaks its promise"

    def _call_s(self) -> float:
        return SLOW_S if self.world.fate(f"{self.name} calls") == "slow" else CALL_S

    def _fate(self, message: str) -> str:
        return "lost" if self.is_away else self.world.fate(f"{self.name} {message}")

    @property
    def _search(self) -> leader_search.Search:
        assert isinstance(self.machine, leader_search.Search)
        return self.machine

    def _read(self) -> list[c.Effect]:
        world = self.world
        if self._fate("reads") in ("lost", "unknown"):
            return self.machine.unread(world.now, RendezvousConnectionError(HURT))
        self._token = world.version
        found = c.Found(world.now, world.record, self.present, token=world.version)
        return self.machine.found(found)

    def _store(self, record: LeadRecord) -> bool | None:
        """None: it is not known whether it was stored."""
        world, fate = self.world, self._fate("writes")
        if fate == "lost":
            return None
        found = world.record
        mine = found is not None and found.epoch == record.epoch
        is_ours = self._token == world.version or mine
        if is_ours:
            world.version += 1
            world.record, self._token = record, world.version
        return is_ours if fate != "unknown" else None

    def _swap(self, record: LeadRecord, sent_at: float) -> list[c.Effect]:
        world, is_ours = self.world, self._store(record)
        if is_ours is None:
            return self.machine.unread(world.now, RendezvousConnectionError(HURT))
        nonce = next(self._nonces)
        return self.machine.swapped(world.now, is_ours=is_ours, sent_at=sent_at, nonce=nonce)

    def leave(self) -> None:
        """It says that it goes."""
        assert self.duties is not None
        self._oblige(self.duties.leaves())
        self.duties = None

    def _oblige(self, effects: Sequence[d.Effect]) -> None:
        """This follows for a leader."""
        duties = self.duties
        if duties is None or self.is_gone:
            return
        for effect in effects:
            match effect:
                case d.Write(record, _):
                    if record.is_vacant:
                        self.world.say(self.name, "no longer leads: it goes")
                        self._store(record)
                    else:
                        then = self.world.now + self._call_s()
                        self.world.at(then, lambda r=record: self._written(duties, r))  # type: ignore[misc]
                case Record():
                    self.world.say(self.name, f"says: {effect.text}")
                case d.Depose(why):
                    self.world.say(self.name, f"no longer leads: {why}")
                    self.duties = None
        self._wake_at(duties)

    def _wake_at(self, duties: d.Duties) -> None:
        at = max(duties.wakes_at, self.world.now)
        if at < inf and at != self._wakes:
            self._wakes = at

            def wake() -> None:
                if self.duties is duties:
                    self._wakes = inf
                    self._oblige(duties.passed(self.world.now, lambda life, seconds: False))

            self.world.at(at, wake)

    def _written(self, duties: d.Duties, record: LeadRecord) -> None:
        if self.duties is not duties or self.is_gone:
            return
        match self._store(record):
            case None:
                self._oblige(duties.unwritten(self.world.now, HURT))
            case True:
                self._oblige(duties.written(self.world.now, record))
            case False:
                self._oblige(duties.overtaken(self.world.record))

    def _beat(self) -> None:
        """Its heartbeat to the leader, and the answer."""
        leader, now = self.world.leader, self.world.now
        if self.is_gone:
            return
        self.world.at(now + 2.0, self._beat)
        if leader is None or leader is self or leader.is_gone or self.duties is not None:
            return
        promise = self.promises.next(now, leader.epoch.as_int())
        number, fate = next(self._beats), self.world.fate(f"{self.name} beats")
        if fate == "lost":
            return
        assert leader.duties is not None
        leader.duties.lead.heard(m.Heartbeat(number, promise), now, self.speaker)
        if fate != "unknown" and leader.is_sure:
            self.promises.answered(number, now)
        if (successor := leader.duties.lead.successor) and fate != "unknown":
            self.promises.handed_over(leader.epoch.as_int(), successor)


class Node(Claiming):
    """One of the job's nodes."""

    def __init__(self, world: World, rank: int, *, is_fresh: bool = False) -> None:
        promises, memory, deference = Promises(15.0), Memory(), Deference()
        promises.assigned(ROUND, rank)
        leader = Leader((), Process("boot", rank, 1), has_workers=True, versions=(2, 4))
        self.search = leader_search.Search(leader, 10 + rank, memory, promises, deference)
        super().__init__(world, f"node{rank}", self.search, promises)
        self.rank, self.is_fresh, self.deference = rank, is_fresh, deference

    @property
    def speaker(self) -> Speaker:
        return Speaker(1 + self.rank, (ROUND, self.rank, 0))

    @property
    def present(self) -> c.Present:
        node = Claimant(ROUND, self.rank, is_fresh=self.is_fresh)
        return c.Present(node, self.is_attached, self.duties is not None)


class Candidate(Claiming):
    """A process that is none of the job's nodes."""

    NUMBER = 71

    def __init__(self, world: World, name: str) -> None:
        leader, deference = Leader((f"{name}:1",), Process(name, 1, 1)), Deference()
        self.standby = c.Standby(leader, 50, Memory(), deference, self.NUMBER)
        super().__init__(world, name, self.standby, self.standby.promises)
        self.deference = deference

    @property
    def speaker(self) -> Speaker:
        return Speaker(90, (NO_ROUND, 0, self.NUMBER))
