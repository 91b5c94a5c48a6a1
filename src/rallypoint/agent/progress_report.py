"""The progress of this node's workers and the records of its last rounds, for heartbeats.

`core/watch/node_progress.py` and `core/round_record.py` define them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite

from msgspec.structs import replace

from rallypoint.agent.output_files import unmatched
from rallypoint.agent.progress import Phase, Progress, furthest
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.config import AgentConfig
from rallypoint.core import hang
from rallypoint.core.model import Stamp
from rallypoint.core.node import timeline
from rallypoint.core.node.timeline import Milestone, RoundLife
from rallypoint.core.round_record import ReportedRound
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.observe.records import Observer

FEW = 256
"""The most nodes that may report the same event at the same time: the start of workers, or the last
rounds."""


class PhaseTeller(Observer):
    """The reporter of the start of workers, and of a round's first step, to the coordinator.

    It does not wait for a heartbeat.

    With the next heartbeat it could be too late: the coordinator would not see how far behind the
    last round's steps the new round begins. The start is reported only in a job of few nodes.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def phase_ended(self, life: RoundLife, phase: Milestone) -> None:
        are_few = life.assignment.group_world_size <= FEW
        if phase.name == "first_progress" or (phase.name == "spawn" and are_few):
            self._tell()


class ProgressReport:
    """The progress and the records of rounds that this node's heartbeats carry.

    Nothing is sent twice on one connection while it is unchanged. For the loop's thread.
    """

    def __init__(self, config: AgentConfig, dispatcher: EventDispatcher) -> None:
        self._config, self.dispatcher = config, dispatcher
        self._told: tuple[int, tuple[object, ...]] | None = None
        """The number of the connection on which progress was last reported, and that report."""
        self._first_epoch = 0
        """The epoch of the coordinator that this agent had first; 0: it had none yet."""
        self._rounds_told = 0
        """The number of the last connection on which the last rounds were reported."""
        self._phase_since_ns = 0

    def news(self, stamp: Stamp | None, generation: int) -> NodeProgress | None:
        """Return the progress of the round's workers, if it has changed since it was last reported.

        Else None. `generation` is the number of the connection: on a new one everything is new.
        """
        progress = None if stamp is None else self._now(stamp)
        if progress is None:
            return None
        # A phase that has ended and begun again is another one.
        told = generation, (*progress.news, self._phase_since_ns)
        if told == self._told:
            return None
        self._told = told
        return progress

    def rounds(self, generation: int, epoch: int) -> tuple[ReportedRound, ...]:
        """Return what to report of the last rounds, if it was not reported on this connection yet.

        Nothing to the coordinator that this agent had first. A node whose group rank is `FEW` or
        more reports only rounds of which it knows a failure.
        """
        self._first_epoch = self._first_epoch or epoch
        if epoch == self._first_epoch or generation == self._rounds_told:
            return ()
        self._rounds_told = generation
        dispatcher = self.dispatcher
        told = timeline.told(dispatcher.timeline, dispatcher.node, dispatcher.clock())
        life = dispatcher.timeline.newest
        if life is None or life.assignment.group_rank < FEW:
            return told
        return tuple(one for one in told if one.failure is not None)

    def _now(self, stamp: Stamp) -> NodeProgress | None:
        life, shm = self.dispatcher.timeline.newest, self.dispatcher.shm
        if life is None or life.number != stamp.round or life.ended_at is not None:
            return None
        phases = life.phases
        running_s = None if life.spawned_at is None else self.dispatcher.clock() - life.spawned_at
        progress = NodeProgress(
            stamp,
            running_s,
            phases.get("rendezvous"),
            phases.get("spawn"),
            phases.get("first_output"),
            phases.get("first_progress"),
            unmatched=unmatched(self._config, self.dispatcher.unmatched, life.assignment),
            cant_log=self.dispatcher.cant_log,
        )
        if shm is None or running_s is None:
            return progress
        workers = shm.progress_and_phases()
        progress = self._with_phase(progress, (phase for _, phase in workers))
        steps = [step for step, _ in workers]
        return _with_steps(progress, steps, shm, life.assignment.base_rank)

    def _with_phase(self, progress: NodeProgress, phases: Iterable[Phase]) -> NodeProgress:
        """Return `progress` with that of the workers' phases that may last longest yet."""
        rules = self._config.rendezvous
        named = [phase for phase in phases if phase.name]
        if not named:
            self._phase_since_ns = 0
            return progress
        left_s, since_ns, name = max(
            ((hang.own_limit_s(rules, one.name) or 0.0) - one.age_s, one.since_ns, one.name)
            for one in named
        )
        self._phase_since_ns = since_ns
        left = left_s if left_s > 0 else None
        return replace(progress, in_phase=name, phase_left_s=left)


def _with_steps(
    progress: NodeProgress, workers: Sequence[Progress | None], shm: WorkerShm, base_rank: int
) -> NodeProgress:
    first = furthest(workers)
    if first is None:
        return progress
    told = [(rank, one) for rank, one in enumerate(workers) if one is not None]
    rank, behind = min(told, key=_behind)
    saved = [step for step in shm.checkpoints() if step is not None]
    return replace(
        progress,
        furthest=first.step,
        quiet_s=min(one.age_s for _, one in told),
        step=behind.step,
        rank=base_rank + rank,
        silent_s=behind.age_s,
        total=-1 if first.total is None else first.total,
        loss=first.loss if first.loss is not None and isfinite(first.loss) else None,
        tokens=-1 if first.tokens is None else first.tokens,
        saved=max(saved, default=-1),
    )


def _behind(told: tuple[int, Progress]) -> tuple[int, float]:
    return told[1].step, -told[1].age_s
