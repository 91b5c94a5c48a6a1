"""Simulated workers: processes of a machine that work, end, fail, and obey signals or not.

They run on the machine, not in its agent: one whose agent is stopped works on.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from errno import ENOSPC
from functools import partial
from random import Random
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace
from tests.simulator.loop import MachineClock, ProcessLoop, Schedule
from tests.simulator.training import Training

from rallypoint.agent.environ import WorkerContext
from rallypoint.agent.node_workers import WorkerRound
from rallypoint.agent.progress import NO_PHASE, Phase, Progress
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.core.model import Assignment, Stamp
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.core.worker_signals import Received
from rallypoint.errors import LogStorageError, during
from rallypoint.process.guard import Guard
from rallypoint.wire.shm import ShmRequest

KILL_S = 0.02
"""A process is gone so long after SIGKILL."""
NOTICE_S = 0.001
"""And its agent learns of an end after that."""


class Program(Struct, frozen=True):
    """What the workers of a job do."""

    work_s: float
    """So long each works in a round, then it exits with 0."""
    deaf: float = 0.1
    """How many of them do not end when they are asked to."""
    brittle: float = 0.5
    """How many of them fail when a worker of another node is lost; the others wait for ever."""
    listens: bool = False
    """They save the checkpoints that they are asked for."""
    save_s: float = 1.0
    """Saving a checkpoint takes so many seconds at most."""
    ends_when_asked: bool = False
    """And then exit with 0, though they have more to do, unless it was a person who asked."""
    step_s: float = 0.0
    """They tell of a step so often; 0: of none."""
    only_first_tells: bool = False
    """Rank 0 alone does."""
    broken_s: float = 0.0
    """Each fails so long after it was started; 0: none does."""


class Badness(Struct, eq=False):
    """The defects of a machine."""

    fails_after_s: float | None = None
    """A worker fails so long after it was started; None: it does not."""
    every: int = 1
    """The failure comes in each round of this number."""
    starts: int = 0
    full_since: float | None = None
    """No worker can be started since then; None: they can."""

    def mend(self) -> None:
        """Remove all defects."""
        self.fails_after_s = self.full_since = None


class Ended(Struct, frozen=True):
    """How a worker has ended, in truth."""

    at_s: float
    code: int | None
    signal: int | None
    was_asked: bool
    """It was signalled before, or ended with the checkpoint that it was asked for."""


class Worker:
    """One process."""

    def __init__(self, owner: SimulatedWorkers, local_rank: int) -> None:
        self.owner, self.local_rank = owner, local_rank
        self.pid = owner.place.next_pid()
        self.ended: Ended | None = None
        self.noticed_at = 0.0
        self.was_asked = False
        self.is_told = False
        """Its agent knows of the end."""
        self.tells_of_lost_peer = False
        self.saved_at = float("-inf")
        """When it has saved the last checkpoint that it was asked for."""
        stamp = owner.round.stamp
        self.run = owner.place.training.begin(stamp, owner.place.schedule.now_s)
        self.rng = Random(f"{owner.place.seed} {owner.place.name} {stamp} {local_rank}")

    @property
    def rank(self) -> int:
        """In the world."""
        return self.owner.round.assignment.base_rank + self.local_rank

    @property
    def runs(self) -> bool:
        return self.ended is None

    @property
    def listens(self) -> bool:
        """The worker saves the checkpoints that it is asked for."""
        return self.owner.place.program.listens

    @property
    def progress(self) -> Progress | None:
        """What it has told of its steps."""
        place = self.owner.place
        if place.program.only_first_tells and self.rank:
            return None
        if (done := self.run.at(place.schedule.now_s)) is None:
            return None
        return Progress(done[0], (place.schedule.now_s - done[1]) * place.clock.rate)

    def end_after(self, delay_s: float, code: int | None, number: int | None = None) -> None:
        """It ends so much later, unless it has by then."""
        self.owner.place.schedule.after(delay_s, partial(self.end, code, number))

    def end(self, code: int | None, number: int | None = None) -> None:
        """It ends now."""
        if self.ended is None:
            now_s = self.owner.place.schedule.now_s
            self.ended = Ended(now_s, code, number, self.was_asked)
            self.owner.place.training.end(self.run, now_s)
            self.owner.ended(self)

    def signal(self, number: int) -> None:
        """It gets this signal."""
        if self.ended is not None:
            return
        self.was_asked = True
        if number == signal.SIGKILL:
            self.end_after(KILL_S, None, signal.SIGKILL)
        elif self.rng.random() >= self.owner.place.program.deaf:
            self.end_after(0.01 + 0.3 * self.rng.random(), None, number)

    def peer_is_lost(self) -> None:
        """A worker of the same world has ended badly."""
        if self.rng.random() < self.owner.place.program.brittle:
            self.tells_of_lost_peer = True
            self.end_after(0.0005 + self.rng.choice((0.002, 0.1, 1.0)) * self.rng.random(), 1)


def message_of(rank: int, life: str) -> str:
    """The last line of a worker of this rank that has failed, on the node of this agent."""
    return f"RuntimeError: rank {rank} of {life}"


class Witness(Protocol):
    """What follows the workers of all machines."""

    def worker_started(self, worker: Worker) -> None: ...

    def worker_ended(self, worker: Worker) -> None: ...


def _nobody() -> None:
    """Nothing follows the workers of this machine yet."""


class Place(Struct, eq=False):
    """The machine, as its workers need it."""

    name: str
    life: str
    """The incarnation of the agent that has started them."""
    seed: int
    schedule: Schedule
    clock: MachineClock
    program: Program
    training: Training
    witness: Witness
    bad: Badness
    workers: dict[int, Worker] = field(default_factory=dict)
    """All that run on the machine, by pid."""
    pids: int = 0
    on_worker: Callable[[], None] = _nobody

    def follow(self, on_worker: Callable[[], None]) -> None:
        """Call this when another worker runs."""
        self.on_worker = on_worker

    def next_pid(self) -> int:
        self.pids += 1
        return self.pids

    def kill(self, pids: set[int]) -> None:
        """SIGKILL."""
        for pid in sorted(pids):
            if (worker := self.workers.get(pid)) is not None:
                worker.signal(signal.SIGKILL)

    def lose_all(self) -> None:
        """The machine is gone, and all that ran on it."""
        for worker in list(self.workers.values()):
            worker.was_asked = True
            worker.end(None, signal.SIGKILL)


class SimulatedShm(WorkerShm):
    """Shared memory that the simulated workers of a round see."""

    def __init__(self, owner: SimulatedWorkers) -> None:
        super().__init__("", -1, owner.count)
        self._owner = owner
        self._saved: set[int] = set()
        self._asked = 0
        self._ends = False
        """Workers exit when they have saved this one."""
        self._changed: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        self._changed.append(changed)

    def request(self, kind: ShmRequest, deadline_s: float) -> None:
        self._asked += 1
        self._ends = self._owner.place.program.ends_when_asked and kind is not ShmRequest.SAVE
        self._saved.clear()
        if self._owner.place.program.listens:
            for worker in self._owner.all:
                save = partial(self._save, worker, self._asked)
                delay_s = 0.05 + worker.rng.random() * self._owner.place.program.save_s
                self._owner.place.schedule.after(delay_s, save)

    def withdraw(self) -> None:
        self._asked += 1

    def listeners(self) -> frozenset[int]:
        listens = self._owner.place.program.listens
        return frozenset(range(self._owner.count) if listens else ())

    def wish_takers(self) -> frozenset[int]:
        return self.listeners()

    def answered(self) -> frozenset[int]:
        return frozenset(self._saved)

    def holders(self) -> dict[int, int]:
        return {}

    def progress_and_phases(self) -> tuple[tuple[Progress | None, Phase], ...]:
        return tuple((worker.progress, NO_PHASE) for worker in self._owner.all)

    def first_step(self, worker: Worker) -> None:
        """It tells of one now, unless it has ended."""
        if worker.runs and worker.progress is not None:
            self._wake()

    def _save(self, worker: Worker, number: int) -> None:
        if number != self._asked or not worker.runs:
            return
        self._saved.add(worker.local_rank)
        worker.saved_at = self._owner.place.schedule.now_s
        self._wake()
        if self._ends:
            worker.was_asked = True
            worker.end(0)

    def _wake(self) -> None:
        for changed in self._changed:
            self._owner.loop.call_soon(changed)


class SimulatedWorkers:
    """The workers of one round on one machine (`agent.workers.NodeWorkers`)."""

    def __init__(self, place: Place, loop: ProcessLoop, count: int, round_: WorkerRound) -> None:
        self.place, self.loop, self.count, self.round = place, loop, count, round_
        self.all: list[Worker] = []
        self.shm = SimulatedShm(self)
        self._is_ending = self._is_gone = False
        self._failed: list[WorkerExit] = []

    @property
    def stamp(self) -> Stamp:
        """Of their round."""
        return self.round.stamp

    @property
    def assignment(self) -> Assignment:
        """Of this node, in their round."""
        return self.round.assignment

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(worker.pid for worker in self.all)

    def start(self, context: Callable[[int, str], WorkerContext]) -> None:
        bad, program = self.place.bad, self.place.program
        if bad.full_since is not None:
            raise during(
                "write logs", ENOSPC, LogStorageError("can't write logs: its disk is full")
            )
        bad.starts += 1
        for local_rank in range(self.count):
            worker = Worker(self, local_rank)
            self.all.append(worker)
            self.place.workers[worker.pid] = worker
            self.place.witness.worker_started(worker)
            self.place.on_worker()
            work_s = self.place.program.work_s * worker.rng.uniform(0.95, 1.05)
            worker.end_after(work_s, 0)
            if self.place.training.step_s:
                startup_s = worker.run.steps.startup_s
                self.place.schedule.after(startup_s, partial(self.shm.first_step, worker))
            if program.broken_s:
                worker.end_after(program.broken_s, 1)
        if bad.fails_after_s is not None and bad.starts % bad.every == 0:
            self.all[0].end_after(bad.fails_after_s, 1)
        self.round.on_started()

    def notify(self, number: int) -> None:
        """No simulated program has a handler."""

    def owns(self, pid: int) -> bool:
        return pid in self.pids

    def use_guard(self, guard: Guard) -> None:
        """Its guard never dies alone."""

    def notice(self) -> None:
        self._report()

    def signal(self, number: int, received: Received = Received.NOBODY) -> None:
        self._is_ending = True
        for worker in self.all:
            worker.signal(number)
        self.loop.call_soon(self._look)

    def signal_from_outside(self, number: int) -> None:
        """A scheduler signals every process."""
        for worker in self.all:
            worker.signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    async def abandon(self) -> None:
        self.kill()

    def failures(self, failed: tuple[WorkerExit, ...]) -> tuple[WorkerExit, ...]:
        found = []
        for exit_ in failed:
            worker = self.all[exit_.local_rank]
            age_s = self.loop.time() - worker.noticed_at
            tells = worker.tells_of_lost_peer
            found.append(
                WorkerExit(
                    exit_.code,
                    exit_.signal,
                    local_rank=exit_.local_rank,
                    rank=worker.rank,
                    role="default",
                    pid=worker.pid,
                    age_s=age_s,
                    tells_of_lost_peer=tells,
                )
            )
        self._failed += found
        return tuple(found)

    def results(self) -> dict[int, object]:
        return {}

    def ended(self, worker: Worker) -> None:
        """One has ended: the agent learns of it, when it runs."""
        self.place.workers.pop(worker.pid, None)
        self.place.witness.worker_ended(worker)
        self.place.schedule.after(NOTICE_S, partial(self._noticed, worker))

    def _noticed(self, worker: Worker) -> None:
        worker.noticed_at = self.place.clock.now()
        self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._report()
        if self._is_ending and not self._is_gone and not any(w.runs for w in self.all):
            self._is_gone = True
            failed, self._failed = self._failed, []
            self.round.on_gone((), tuple(self._in_detail(each) for each in failed))

    def _in_detail(self, failure: WorkerExit) -> WorkerExit:
        return replace(failure, message=message_of(failure.rank, self.place.life))

    def _report(self) -> None:
        fresh = [w for w in self.all if not w.runs and not w.is_told]
        exits = []
        for worker in fresh:
            assert worker.ended is not None
            worker.is_told = True
            worker.noticed_at = worker.noticed_at or self.loop.time()
            code, number = worker.ended.code, worker.ended.signal
            exits.append(WorkerExit(code, number, local_rank=worker.local_rank, pid=worker.pid))
        if exits:
            self.round.on_exits(tuple(exits))
