"""The agent: does what the pure worker group says, and tells it what happened.

Single-threaded, on one selector loop. Nothing here decides anything: `core.group` does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, assert_never

from msgspec.structs import replace

from rallypoint.agent.environ import context_maker
from rallypoint.agent.round_store import StoreAccess
from rallypoint.agent.status import StatusReporter, anew_text, place_text, unstarted
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.agent.worker_requests import WorkerRequests
from rallypoint.agent.workers import MakeWorkers, NodeWorkers
from rallypoint.config import AgentConfig
from rallypoint.coordinator.client import AgentSession, Pushed, raise_in_loop
from rallypoint.core import event_kinds as kinds
from rallypoint.core import group
from rallypoint.core import group_events as g
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Assignment, Candidate, JobStatus, Stamp, WorkerFailure
from rallypoint.core.text import count
from rallypoint.errors import RallypointError
from rallypoint.observe.faults import describe_fault
from rallypoint.observe.records import FieldValue, event_now
from rallypoint.process.guard import Guard


class AgentLinks(NamedTuple):
    """What an agent is connected to on its node."""

    dispatcher: EventDispatcher
    store: StoreAccess
    hurry: Callable[[], None]
    """Called when nobody is to be waited for any more, also after the end."""
    fence: Callable[[bool], None]
    """Called at each step: whether what runs here must end with the lease."""
    wait_ready: Callable[[], Awaitable[None]] | None
    """Until workers could be started: no node starts any before all of them can."""


class Agent:
    """One node's part of a job. `finished` is set when it has ended."""

    def __init__(
        self,
        config: AgentConfig,
        make_workers: MakeWorkers,
        signals: tuple[int, ...],
        links: AgentLinks,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config, self._make_workers = config, make_workers
        rendezvous = config.rendezvous
        self._links, self.dispatcher, self._store = links, links.dispatcher, links.store
        self._state = group.GroupState(
            group.GroupSettings(
                workers=config.workers.count,
                shutdown_grace_s=config.stop.shutdown_grace_s,
                restart_grace_s=config.stop.restart_grace_s,
                signals=signals,
                drain_deadline_s=config.stop.drain_deadline,
                # Only a coordinator tells a node that it is waited for no longer.
                stop_patience_s=0.0 if rendezvous.handler else rendezvous.stop_patience_s,
                is_alone=rendezvous.max_nodes == 1,
                by_handler=bool(rendezvous.handler),
            )
        )
        self._requests = WorkerRequests(config, self._report, self.say)
        self._session: AgentSession | None = None
        self._candidate: Candidate | None = None
        self._hosts, self._joins = False, 0
        self._leaving_since = 0.0
        self._workers: NodeWorkers | None = None
        self._succeeded_workers: NodeWorkers | None = None
        self.failures: dict[int, WorkerFailure] = {}
        """By global rank: the newest round's on this node."""
        self._enrolling: asyncio.Task[None] | None = None
        self._status: JobStatus | None = None
        self._status_reporter = StatusReporter(config, links.dispatcher, self._loop.time)
        self._refusal: RallypointError | None = None
        self.finished: asyncio.Future[g.Finish] = self._loop.create_future()

    def join(self, session: AgentSession, candidate: Candidate, *, hosts: bool) -> None:
        """Take part, from now on, by a session that is about to be opened."""
        self._session, self._candidate, self._hosts = session, candidate, hosts

    @property
    def round(self) -> int:
        """The last round that this node took part in, or 0."""
        return self._state.stamp.round if self._state.stamp else 0

    def owns(self, pid: int) -> bool:
        """Whether this child is a worker, or was not reaped yet."""
        return self._workers is not None and self._workers.owns(pid)

    def use_guard(self, guard: Guard) -> None:
        """The guard was killed and replaced."""
        if self._workers is not None:
            self._workers.use_guard(guard)

    def helper_died(self, round_number: int, why: str, *, others_need_it: bool) -> None:
        """Something of this agent's that the workers of that round need."""
        if (stamp := self._state.stamp) is not None and stamp.round == round_number:
            self._step(m.HelperDied(stamp, f"{why} on node {self._node_id()}", others_need_it))

    def abandon_workers(self) -> None:
        """End what runs, if anything still does: only after an error of the agent itself."""
        if self._workers is not None:
            with suppress(OSError):  # The guard does it, as soon as this agent has gone.
                self._workers.abandon()

    def return_values(self) -> dict[int, object]:
        """By global rank, if the workers of this node have succeeded. To be called once."""
        workers, assignment = self._succeeded_workers, self._state.assignment
        if workers is None or assignment is None:
            return {}
        return {assignment.base_rank + rank: value for rank, value in workers.results().items()}

    def caught(self, number: int) -> None:
        """A signal arrived for this agent."""
        self._step(g.SignalCaught(number))

    def leave(self, why: str) -> None:
        """A person, or a notice of this node's end, wants it to go. May be said again."""
        self._step(g.LeaveWanted(why))

    def say(self, record: Record, fields: tuple[tuple[str, FieldValue], ...] = ()) -> None:
        """Report what happened."""
        stamp = self._state.stamp
        node = self._session.node_id if self._session else ""
        round_ = stamp.round if stamp else None
        self.dispatcher.event(event_now(record, node, round_, fields))
        self.show_status()

    def show_status(self) -> None:
        """Report where the job is."""
        imports = bool(self._config.workers.preload and self._workers and not self._workers.pids)
        self._status_reporter.show(self._state, self._status, self._node_id(), imports=imports)

    # What the session says.

    def claim(self) -> m.Claim:
        return group.claim(self._state, self._loop.time() - self._leaving_since)

    def session_opened(self, resumed: bool, replaced: bool) -> None:
        self.dispatcher.node = self._node_id()
        runs = self._state.phase in (group.Phase.RUNNING, group.Phase.FINISHED)
        if resumed:
            self.say(kinds.SESSION_RESUMED())
        elif runs or (replaced and not self.finished.done()):
            text = anew_text(self._config, replaced=replaced, runs=runs)
            self.say(kinds.SESSION_ANEW(text))
        self._step(g.SessionOpened(resumed, replaced))

    def session_suspended(self, why: str) -> None:
        self._status = None
        if not self.finished.done():
            runs = self._state.phase is group.Phase.RUNNING
            meanwhile = ": the workers keep running" if runs else ""
            self.say(kinds.SESSION_SUSPENDED(why=why, meanwhile=meanwhile))

    def reconnect_refused(self) -> None:
        self._step(g.CoordinatorRefuses())

    def session_given_up(self, why: str) -> None:
        self._step(g.SessionGivenUp(why))

    def session_refused(self, error: RallypointError) -> None:
        self._refusal = error
        self._step(g.SessionGivenUp(str(error)))

    def lease_ended(self, waits_for: str) -> None:
        self._step(g.LeaseEnded(waits_for))

    def pushed(self, message: Pushed) -> None:
        match message:
            case m.HeartbeatAck(number, _, status):
                self._status = status
                if number:  # 0: news of a handler, which nobody sends heartbeats for
                    self.dispatcher.heartbeat_acknowledged()
                self.show_status()
            case m.StopNow(stamp, reason):
                if stamp == self._state.stamp:
                    if self._workers is not None:
                        self._workers.notice()
                    planned = reason.kind.is_planned
                    kind = kinds.ROUND_CHANGED if planned else kinds.ROUND_ENDED
                    self.say(kind(round=stamp.round, why=reason.text))
                self._step(message)
            case m.CheckpointWanted() | m.CheckpointNotWanted() | m.CollectStacks():
                self._step(message)
                self._requests.pushed(message)
            case _:
                self._step(message)

    def acknowledged(self, report: m.Report) -> None:
        if isinstance(report, m.Drain | m.Cancel):
            self._step(g.Announced())

    # What the group wants.

    def _step(self, event: g.GroupEvent) -> None:
        was_leaving = self._state.leaving
        effects = group.step(self._state, event)
        if self._state.leaving and not was_leaving:
            self._leaving_since = self._loop.time()
        self._links.fence(group.is_fenced(self._state))
        self.dispatcher.stepped(event, effects)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: g.GroupEffect) -> None:
        match effect:
            case g.JoinRound():
                self._join()
            case g.EnrolWithStore(stamp, assignment):
                self._say_assigned(assignment)
                self._enrolling = self._loop.create_task(self._enrol(stamp, assignment))
                self._enrolling.add_done_callback(raise_in_loop)
            case g.SpawnWorkers(stamp, assignment):
                self._spawn(stamp, assignment)
            case g.AbandonRound():
                if self._enrolling is not None:
                    self._enrolling.cancel()
                self._store.close()
            case g.SignalWorkers() | g.KillWorkers() if self._workers is None:
                assert self._state.stamp is not None
                self._loop.call_soon(self._step, g.WorkersGone(self._state.stamp))
            case g.SignalWorkers(number):
                assert self._workers is not None
                self._workers.signal(number)
            case g.KillWorkers():
                assert self._workers is not None
                self._workers.kill()
            case g.Wait(kind, number, length_s):
                self._loop.call_later(length_s, self._step, g.WaitEnded(kind, number))
            case g.ReportNow(m.Failed() as failed):
                self._report_failures(failed)
            case g.ReportNow(m.Succeeded() as succeeded):
                self._succeeded(succeeded)
            case g.ReportNow(m.Drain() as drain):
                self._report(replace(drain, hosts=self._hosts))
            case g.ReportNow(report):
                self._report(report)
            case g.GiveUp(error):
                self._store.close()
                if not self.finished.done():
                    self.finished.set_exception(error)
            case g.SkipWaits():
                self._links.hurry()
            case g.Finish():
                self._finish(effect)
            case g.WorkerEnded():
                pass  # The dispatcher reports it.
            case Record():
                self.say(effect)
            case _:
                assert_never(effect)

    def _join(self) -> None:
        assert self._candidate is not None
        self._joins += 1
        self._report(m.Join(self._joins, self._candidate))
        self.show_status()

    def _report(self, report: m.Report) -> None:
        if self._session is not None:
            self._session.report(report)

    async def _enrol(self, stamp: Stamp, assignment: Assignment) -> None:
        if assignment.group_rank == 0:
            self._store.open(stamp)
        if self._links.wait_ready is not None:
            await self._links.wait_ready()
        try:
            await self._store.enrol(stamp, assignment, self._node_id())
        except RallypointError as error:
            self._step(g.EnrolmentDone(stamp, str(error)))
        except Exception as error:  # of what the node of rank 0 has answered
            self._step(g.EnrolmentDone(stamp, describe_fault(error)))
        else:
            self._step(g.EnrolmentDone(stamp))

    def _spawn(self, stamp: Stamp, assignment: Assignment) -> None:
        if not assignment.enrol:
            self._say_assigned(assignment)
            self._store.open(stamp)
        self._succeeded_workers, self.failures = None, {}
        self._workers = self._make_workers(stamp, assignment, self._exited, self._gone)
        context = context_maker(assignment, stamp, self._config, self._node_id())
        try:
            self._workers.start(
                context,
                partial(self._started, self._loop.time()),
                partial(self._not_started, stamp),
            )
        except RallypointError as error:
            self._not_started(stamp, error)

    def _started(self, began_at: float) -> None:
        workers = count(self._config.workers.count, "worker")
        took_s = round(self._loop.time() - began_at, 6)
        self.say(kinds.WORKERS_STARTED(workers=workers), (("took_s", took_s),))
        assert self._workers is not None
        self.dispatcher.spawned(self._workers.pids, took_s, self._workers.shm)
        self._requests.begin(self._state, self._workers)

    def _not_started(self, stamp: Stamp, error: RallypointError) -> None:
        self._workers = None
        self._step(g.SpawnFailed(stamp, error))

    def source_failed(self, error: RallypointError) -> None:
        """What workers are forked from can't be had."""
        self._step(g.SourceFailed(error))

    def _exited(self, stamp: Stamp, exits: tuple[g.Exit, ...]) -> None:
        self._step(g.WorkersExited(stamp, exits))
        if self._state.phase is not group.Phase.STOPPING:
            self._requests.exited()

    def _succeeded(self, report: m.Succeeded) -> None:
        self._succeeded_workers = self._workers
        self.say(kinds.SUCCEEDED())
        self._report(report)

    def _report_failures(self, report: m.Failed) -> None:
        stamp = report.stamp
        if self._workers is None:
            failures = tuple(map(self._unstarted, report.failures))
        else:
            failed = (g.Exit(x.local_rank, x.exit_code, x.signal) for x in report.failures)
            failures = self._workers.failures(tuple(failed))
        self.failures |= {failure.rank: failure for failure in failures}
        self.dispatcher.failed(stamp.round, failures)
        self._report(m.Failed(stamp, failures))

    def _unstarted(self, failure: WorkerFailure) -> WorkerFailure:
        assert self._state.assignment is not None
        return unstarted(failure, self._state.assignment, self._config.workers.role, time.time())

    def _gone(
        self, stamp: Stamp, stuck: tuple[int, ...], failures: tuple[WorkerFailure, ...]
    ) -> None:
        self._store.close()
        if not stuck:
            self._workers = None
        self._requests.end()
        if self._state.desired is group.Desired.JOIN and not stuck:
            self.say(kinds.WORKERS_STOPPED(round=stamp.round))
        if failures:
            self.failures |= {failure.rank: failure for failure in failures}
            self.dispatcher.failed(stamp.round, failures)
            self._report(m.Detailed(stamp, failures))
        self._step(g.WorkersGone(stamp, stuck))

    def _finish(self, finish: g.Finish) -> None:
        self._report(m.Leave())
        self._store.close()
        if self.finished.done():
            return
        if self._refusal is not None:
            self.finished.set_exception(self._refusal)
        else:
            self.finished.set_result(finish)

    def _say_assigned(self, assignment: Assignment) -> None:
        self.say(kinds.ROUND_JOINED(place_text(assignment, self._config.workers.count)))

    def _node_id(self) -> str:
        return self._session.node_id if self._session else ""
