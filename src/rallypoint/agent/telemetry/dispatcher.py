"""The events of this node's part of a job: kept for the summary, and passed to observers.

The driver reports the events and effects of its node's machine. Nothing here can fail or block, and
nothing of the job depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.agent.progress import Progress, furthest
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.core.event_kinds import Record
from rallypoint.core.messages import Ended, Failed
from rallypoint.core.node import timeline
from rallypoint.core.node.events import (
    EndState,
    NodeEffect,
    NodeEvent,
    ReportNow,
    WorkerEnded,
    WorkersExited,
)
from rallypoint.core.node.timeline import Milestone, RoundLife, Timeline
from rallypoint.core.watch.goodput_view import GoodputView
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.observe.records import AgentEvent, Observer, StatusView, event_now


class _Workers(Struct):
    """The workers of the newest round: their pids, and their failures by local rank."""

    pids: tuple[int, ...] = ()
    failures: dict[int, WorkerExit] = field(default_factory=dict)
    any_failed: bool = False


class EventDispatcher:
    """The place where an agent reports its events, and which passes them to observers.

    For the loop's thread. It also keeps what observers ask for, such as the timeline of the rounds.

    `node` is this node's name, once it has one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Make the dispatcher; `clock` is in seconds, of this node."""
        self.clock = clock
        self.timeline = Timeline()
        self.began_at = clock()
        self.began_wall = time.time()
        self.node = ""
        self.goodput: GoodputView | None = None
        """The account of the whole job's time, once the job has ended and its coordinator has sent
        it."""
        self.shm: WorkerShm | None = None
        """The shared memory of the newest round: its workers report progress there."""
        self.unmatched: str | None = None
        """The newest line of the workers, once none has matched `--progress-pattern` for long;
        None: that is not so."""
        self.cant_log = ""
        """Why a log file of the newest round can't be written; empty: no such fault is known."""
        self._reached: dict[int, Progress] = {}
        """The last progress of this node's furthest worker in each ended round, by round."""
        self._workers = _Workers()
        self._observers: list[Observer] = []

    def subscribe(self, observer: Observer) -> None:
        """Report everything to this observer too, from now on."""
        self._observers.append(observer)

    def stepped(self, event: NodeEvent, effects: list[NodeEffect]) -> None:
        """Note an event of the node's state machine and its effects, and report what they mean."""
        at, line = self.clock(), self.timeline
        newest, since = line.newest, line.joining_since
        phases = timeline.step(line, event, effects, at)
        if line.newest is not None and line.newest is not newest:
            self._workers, self.cant_log = _Workers(), ""
            self._keep_reached(newest)
            for observer in self._observers:
                observer.round_began(line.newest, newest, 0.0 if since is None else at - since)
        match event:
            case WorkersExited(stamp, exits) if newest and stamp.round == newest.number:
                for exit_ in exits:
                    for observer in self._observers:
                        observer.worker_exited(newest, exit_.local_rank)
            case Ended(_, verdict, goodput) if line.verdict is None:
                line.verdict, self.goodput = verdict, goodput
        for effect in effects:
            match effect:
                case WorkerEnded() if newest:
                    self._worker_ended(newest, effect)
                case ReportNow(Failed()) if newest and not self._workers.any_failed:
                    self._workers.any_failed = True
                    for observer in self._observers:
                        observer.workers_failed(newest)
        self._report_phases(phases)

    def spawned(self, pids: Sequence[int], took_s: float, shm: WorkerShm | None = None) -> None:
        """Note that the newest round's workers run; they report progress in its shared memory."""
        phases = timeline.spawned(self.timeline, took_s, self.clock())
        self._workers.pids = tuple(pids)
        self.shm = shm
        if (life := self.timeline.newest) is not None:
            if shm is not None:
                shm.watch(partial(self._look_for_progress, life.number, shm))
            for observer in self._observers:
                observer.workers_started(life, pids)
        self._report_phases(phases)

    def failed(self, round_: int, failures: Sequence[WorkerExit]) -> None:
        """Note failures of this node's workers: in part at first, complete when the round ends."""
        self._workers.failures |= {failure.local_rank: failure for failure in failures}
        self._report_phases(timeline.failed_here(self.timeline, round_, failures))

    def first_output(self, round_: int) -> None:
        """Note that the first byte of output of a round's workers arrived."""
        at = self.clock()
        self._report_phases(timeline.first_seen(self.timeline, round_, "first_output", at))

    def reached(self, round_: int) -> Progress | None:
        """Return the progress of this node's furthest worker in a round; None: not known."""
        newest = self.timeline.newest
        if newest is not None and newest.number == round_ and self.shm is not None:
            return furthest(self.shm.progress())
        return self._reached.get(round_)

    def event(self, event: AgentEvent) -> None:
        """Report an event on this node to all observers."""
        for observer in self._observers:
            observer.event(event)

    def hosted(self, record: Record) -> None:
        """Report an event that the coordinator in this agent has recorded, about a node or none."""
        life = self.timeline.newest
        fields = (("about", record.node_id),) if record.node_id else ()
        self.event(event_now(record, self.node, life.number if life is not None else None, fields))

    def status(self, view: StatusView) -> None:
        """Report the state of the job to all observers."""
        for observer in self._observers:
            observer.status(view)

    def heartbeat_acknowledged(self) -> None:
        """Report to all observers that the coordinator has answered a heartbeat."""
        for observer in self._observers:
            observer.heartbeat_acknowledged()

    def finished(self, succeeded: bool, reason: str) -> None:
        """Report the end of the agent to all observers; call it last."""
        for observer in self._observers:
            observer.finished(succeeded, reason, self.timeline.verdict)

    def _keep_reached(self, before: RoundLife | None) -> None:
        if before is not None and self.shm is not None:
            if (progress := furthest(self.shm.progress())) is not None:
                self._reached[before.number] = progress
            self.shm = None

    def _look_for_progress(self, round_: int, shm: WorkerShm) -> None:
        if any(progress is not None for progress in shm.progress()):
            at = self.clock()
            self._report_phases(timeline.first_seen(self.timeline, round_, "first_progress", at))

    def _worker_ended(self, life: RoundLife, ended: WorkerEnded) -> None:
        workers, local_rank = self._workers, ended.exit.local_rank
        has_started = local_rank < len(workers.pids)
        if not has_started and ended.state is EndState.TERMINATED:
            return
        exit_ = workers.failures.get(local_rank, ended.exit)
        pid = workers.pids[local_rank] if has_started else 0
        exit_ = replace(exit_, pid=pid, wall_time=exit_.wall_time or time.time())
        for observer in self._observers:
            observer.worker_ended(life, ended.state, exit_)

    def _report_phases(self, phases: list[Milestone]) -> None:
        for phase in phases:
            life = next(x for x in reversed(self.timeline.rounds) if x.number == phase.round)
            for observer in self._observers:
                observer.phase_ended(life, phase)
