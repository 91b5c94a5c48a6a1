"""A whole job in memory (`tests.harness.whole_job`) whose history is kept, as its coordinator
does, in virtual time."""

from __future__ import annotations

from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.cli.watch.status_text import status_lines
from rallypoint.core import host_effects
from rallypoint.core.event_kinds import Record
from rallypoint.core.messages import CheckpointWanted, Detailed
from rallypoint.core.model import SharedSettings
from rallypoint.core.node.events import EnrolmentDone, WorkersGone
from rallypoint.core.watch.history import JobHistory
from rallypoint.core.watch.job_view import Heard, JobView, view_of
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.core.worker_exits import WorkerExit

NOON = 1_800_000_000.0
"""The wall time at which the job begins."""


class WatchedCluster(Cluster):
    """The coordinator and its agents. `status` is what a person sees."""

    def __init__(self, settings: SharedSettings) -> None:
        super().__init__(settings)
        self.history = JobHistory(0.0, lambda at: NOON + at)
        self._silent: set[str] = set()
        self._behind_since: dict[str, float] = {}
        self.never_saves: set[str] = set()
        """Nodes whose workers save no checkpoint, however long they are waited for."""
        self.never_stops: set[str] = set()
        """Nodes whose workers do not stop when they are told to."""
        self.never_enrols: set[str] = set()
        """Nodes that find out neither that they reach rank 0 nor that they do not."""
        self._heard_at: dict[str, float] = {}
        self._started_at = 0.0

    def nodes(self, number: int, workers: int = 8, without: tuple[int, ...] = ()) -> None:
        """So many agents join, as node-0, node-1, ..."""
        for index in range(number):
            if index not in without:
                self.start(f"node-{index}", workers)
        self.settle()

    def agent(self, node_id: str) -> SimulatedAgent:
        """The newest agent of this node."""
        return next(one for one in reversed(self.agents) if one.ref.node_id == node_id)

    def run_workers(self) -> None:
        """The workers of all nodes of the round have just been started."""
        self._started_at = self.timers.now_s
        for agent in self.agents:
            self._tell(agent, -1, -1)

    def step(self, step: int, seconds: float, *, behind: tuple[str, int] | None = None) -> None:
        """Time passes, and then all workers are at this step; but for one node, of which a worker
        stays at a smaller one. A node that is silent tells nothing."""
        self.wait(seconds)
        for agent in self.agents:
            own = step
            if behind is not None and agent.ref.node_id == behind[0]:
                own = behind[1]
            self._tell(agent, step, own)

    def wait(self, seconds: float) -> None:
        """Time passes. Nodes that are not silent are heard; what follows is delivered."""
        for _ in range(int(seconds)):
            self.pass_time(1.0)
            now = self.timers.now_s
            for agent in self.agents:
                if agent.ref.incarnation not in self._silent:
                    self._heard_at[agent.ref.incarnation] = now
            self.settle()

    def fall_silent(self, node_id: str) -> None:
        """Nothing is heard of it from now on."""
        self._silent.add(self.agent(node_id).ref.incarnation)

    def lose(self, node_id: str, why: str) -> None:
        """The coordinator gives this node up; the others hear of it."""
        agent = self.agent(node_id)
        self.cut(agent)
        now = self.timers.now_s
        self._run(self.sessions.lose(agent.ref.incarnation, why, now - 2.0, now))
        self.settle()

    def fail_with(self, node_id: str, failure: WorkerExit) -> None:
        """A worker of this node ends so."""
        agent = self.agent(node_id)
        self._exit(agent, failure)
        assert agent.running is not None
        stamp = agent.running
        self.settle_reports(agent, Detailed(stamp, (failure,)))

    def settle_reports(self, agent: SimulatedAgent, detailed: Detailed) -> None:
        """Its agent reports the failure, and then what the worker has said."""
        while agent.local:
            agent.local_event()
        agent._report(detailed)
        self.settle()

    @property
    def view(self) -> JobView:
        """What a program reads."""
        return view_of(self.job, self.history, self._heard, self.timers.now_s)

    def status(self, width: int = 100) -> list[str]:
        """What a person sees."""
        return status_lines(self.view, width, where="node-0:29400 --job train-7")

    def moves(self) -> list[tuple[str, SimulatedAgent]]:
        """As of a cluster, but for the checkpoints that are never saved, the workers that do not
        stop, and the nodes that do not enrol."""

        def is_held(agent: SimulatedAgent) -> bool:
            node_id, first = agent.ref.node_id, agent.local[0]
            if isinstance(first, WorkersGone):
                return node_id in self.never_stops
            if isinstance(first, EnrolmentDone):
                return node_id in self.never_enrols
            return isinstance(first, CheckpointWanted) and node_id in self.never_saves

        moves = super().moves()
        return [(kind, agent) for kind, agent in moves if kind != "local" or not is_held(agent)]

    def _heard(self, incarnation: str) -> Heard:
        session = self.sessions.of_agent(incarnation)
        if session is None:
            return Heard(is_connected=False)
        at = self._heard_at.get(incarnation, self.timers.now_s)
        return Heard("10.0.0.1", self.timers.now_s - at, session.connection is not None)

    def _tell(self, agent: SimulatedAgent, furthest: int, step: int) -> None:
        if agent.running is None or agent.ref.incarnation in self._silent:
            return
        now, node_id = self.timers.now_s, agent.ref.node_id
        running_s = now - self._started_at
        progress = NodeProgress(agent.running, running_s, 0.1, 0.2)
        if furthest >= 0:
            place = self.job.assigned[node_id]
            is_behind = step < furthest
            if not is_behind:
                self._behind_since[node_id] = now
            since = now - self._behind_since.get(node_id, now)
            progress = NodeProgress(
                agent.running,
                running_s,
                0.1,
                0.2,
                1.0,
                min(2.0, running_s),
                furthest=furthest,
                quiet_s=0.0,
                step=step,
                rank=place.base_rank + 1,
                silent_s=since if is_behind else 0.0,
                total=10_000,
                loss=2.5,
            )
        self.history.progressed(self.job, node_id, progress, now)

    def _run(self, effects: list[host_effects.HostEffect]) -> None:
        super()._run(effects)
        self.history.noted(self.job, self.timers.now_s)

    def _perform(self, effects: list[host_effects.HostEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Record):
                self.history.record(effect, self.job.round.round, self.timers.now_s)
        super()._perform(effects)
