"""The agent: does what the pure machine of its node says, and reports to it what happened.

Single-threaded, on one selector loop. Nothing here decides anything: `core.node` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, NamedTuple, assert_never

from msgspec.structs import replace

from rallypoint.agent.node_workers import AgentActions, MakeWorkers
from rallypoint.agent.round_store import StoreAccess
from rallypoint.agent.status import StatusReporter, anew_text, place_text
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.agent.worker_rounds import WorkerRounds
from rallypoint.config import AgentConfig
from rallypoint.coordinator.client.session import AgentSession, FromCoordinator, raise_in_loop
from rallypoint.core import event_kinds as kinds
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Assignment, Candidate, Stamp
from rallypoint.core.node import events as e
from rallypoint.core.node import machine
from rallypoint.core.session import Acknowledged, OrderPushed, Rejected, SessionNews, Suspended
from rallypoint.errors import RallypointError
from rallypoint.observe.faults import describe_fault
from rallypoint.observe.records import FieldValue, event_now

if TYPE_CHECKING:
    from rallypoint.agent.ports import ReservedPorts


class AgentLinks(NamedTuple):
    """The dispatcher, the round store and the callbacks by which an agent acts on its node."""

    dispatcher: EventDispatcher
    store: StoreAccess
    hurry: Callable[[], None]
    """Called on a second signal, or on one after the end: every wait of this agent has to end."""
    fence: Callable[[bool], None]
    """Called at each step with whether this node's workers must be killed when its lease ends."""
    wait_ready: Callable[[], Awaitable[None]] | None
    """Waits until this node can start workers: a prepared process has imported their modules. Only
    then it enrols with rank 0's round store, so that no node starts workers before all can. None:
    this node always can."""
    try_to_start: Callable[[m.Prove, str], Awaitable[e.Tried]] | None = None
    """Tries whether this node can start workers; gets the coordinator's order and this node's id,
    and never raises. None: the coordinator never asks this agent to."""
    last_words: Callable[[], Coroutine[None, None, None] | None] = lambda: None
    """Returns a coroutine to await before this node leaves: it sends the workers' last output to
    people who follow it. None: nobody does."""
    look_at_witness: Callable[[], object] | None = None
    """Calls `witness_signalled` for each signal that has reached the witness, which is the guard
    process. None: there is no witness."""


class Agent:
    """The part of one node in a job: carries out what the node's state machine wants.

    `finished` gets the node's end as its result, or the error that ended the node's part.
    """

    def __init__(
        self,
        config: AgentConfig,
        make_workers: MakeWorkers,
        signals: tuple[int, ...],
        links: AgentLinks,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config, self._links, rendezvous = config, links, config.rendezvous
        self._state = machine.WorkersState(
            machine.NodeSettings(
                workers=config.workers.count,
                shutdown_grace_s=config.stop.shutdown_grace_s,
                restart_grace_s=config.stop.restart_grace_s,
                signals=signals,
                drain_deadline_s=config.stop.drain_deadline,
                stop_patience_s=rendezvous.stop_patience_s,
                is_alone=rendezvous.max_nodes == 1,
                has_witness=links.look_at_witness is not None,
            )
        )
        actions = AgentActions(self._step, self._report, self.say)
        self.workers = WorkerRounds(config, self._state, make_workers, links.dispatcher, actions)
        self._membership: _Membership | None = None
        self._ports: ReservedPorts | None = None
        if rendezvous.env_styles:
            from rallypoint.agent.ports import ReservedPorts, ports_wanted

            self._ports = ReservedPorts(ports_wanted(rendezvous.env_styles, config.workers.count))
        self._joins = 0
        self._leaving_since = 0.0
        self._enrolling: asyncio.Task[None] | None = None
        self._trying: asyncio.Task[None] | None = None
        self._status = StatusReporter(config, links.dispatcher, self._loop.time)
        self._refusal: RallypointError | None = None
        self._is_replaceable = False
        """Whether another coordinator could take over from one to which this agent was attached."""
        self.finished: asyncio.Future[e.Finish] = self._loop.create_future()

    def join(self, session: AgentSession, candidate: Candidate, *, hosts: bool) -> None:
        """Set the session and the candidate by which this node takes part from now on.

        The caller opens the session next. `candidate` is what the node brings to a round. `hosts`:
        the job ends with this node, as its coordinator lives in this agent and can't be taken over.
        """
        self._membership = _Membership(session, candidate, hosts)

    @property
    def round(self) -> int:
        """The number of the last round that this node took part in; 0 also if there was none."""
        return self._state.stamp.round if self._state.stamp else 0

    @property
    def stamp(self) -> Stamp | None:
        """The stamp of the last round of this node; None: it took part in none.

        It has the incarnation of the job and the number of the round.
        """
        return self._state.stamp

    @property
    def is_leaving(self) -> bool:
        """Whether this node leaves the job: after a signal, or a call of `leave`."""
        return self._state.leaving

    def helper_died(self, round_number: int, why: str, *, others_need_it: bool) -> None:
        """Handle the death of a helper process that the workers of this round need.

        The coordinator is told, and running workers are stopped, unless this node leaves anyway.
        Does nothing if the round is over, or not this node's last one. `others_need_it`: workers of
        other nodes need the process too, so that its death counts even when the workers here have
        finished.
        """
        if (stamp := self._state.stamp) is not None and stamp.round == round_number:
            self._step(m.HelperDied(stamp, f"{why} on node {self._node_id()}", others_need_it))

    def caught(self, number: int) -> None:
        """Handle a signal that this agent got.

        SIGINT cancels the job, any other has this node leave. A second signal ends all waits and
        kills the workers. An equal one within a second is the same.
        """
        self._step(e.SignalCaught(number))

    def witness_signalled(self, number: int) -> None:
        """Handle a signal to the guard process: it means that all processes here got it.

        A scheduler sends its signals so.
        """
        self._step(e.WitnessSignalled(number))

    def leave(self, why: str) -> None:
        """Have this node leave the job, as a person wants or because its machine is about to end.

        May be called again.
        """
        self._step(e.LeaveWanted(why))

    def say(self, record: Record, fields: tuple[tuple[str, FieldValue], ...] = ()) -> None:
        """Report an event of this node to the observers, with its round; show the status anew."""
        stamp = self._state.stamp
        round_ = stamp.round if stamp else None
        self._links.dispatcher.event(event_now(record, self._node_id(), round_, fields))
        self._show_status()

    def _show_status(self) -> None:
        self._status.show(self._state, self._node_id(), imports=self.workers.is_importing)

    # What the session says.

    def claim(self) -> m.Claim:
        return machine.claim(self._state, self._loop.time() - self._leaving_since)

    def told(self, news: SessionNews) -> None:
        match news:
            case OrderPushed(message):
                self._pushed(message)
            case e.SessionOpened():
                self._say_opened(news)
                self._step(news)
            case Suspended(why):
                self._status.job = None
                if not self.finished.done():
                    runs = self._state.phase is machine.NodePhase.RUNNING
                    meanwhile = ": the workers keep running" if runs else ""
                    self.say(kinds.SESSION_SUSPENDED(why=why, meanwhile=meanwhile))
            case Rejected(error):
                self._refusal = error
                self._step(e.SessionGivenUp(str(error)))
            case Acknowledged(report):
                if isinstance(report, m.Drain | m.Cancel):
                    self._step(e.Announced())
            case _:
                self._step(news)

    def _say_opened(self, opened: e.SessionOpened) -> None:
        self._links.dispatcher.node = self._node_id()
        runs = self._state.phase in (machine.NodePhase.RUNNING, machine.NodePhase.FINISHED)
        if self._membership is not None:
            # Who only tells how the job has ended is not.
            self._is_replaceable |= self._membership.session.is_replaceable
        replaced = opened.replaced
        if opened.resumed:
            how = ": it was started again, or another one has taken over" if replaced else ""
            self.say(kinds.SESSION_RESUMED(how=how))
        elif runs or (replaced and not self.finished.done()):
            text = anew_text(
                self._config, replaced=replaced, runs=runs, is_replaceable=self._is_replaceable
            )
            self.say(kinds.SESSION_ANEW(text))

    def _pushed(self, message: FromCoordinator) -> None:
        match message:
            case m.HeartbeatAck(number, _, status):
                self._status.job = status
                if number:  # 0: news of a handler, which nobody sends heartbeats for
                    self._links.dispatcher.heartbeat_acknowledged()
                self._show_status()
            case _:
                self.workers.look()  # What has ended by itself did not end by this order.
                self._step(message)
                if isinstance(message, m.WorkerRequest):
                    self.workers.pushed(message)

    # What the machine wants.

    def _step(self, event: e.NodeEvent) -> None:
        if isinstance(event, e.WorkersGone):
            self._links.store.close()
        if self._links.look_at_witness is not None and not isinstance(event, e.WitnessSignalled):
            self._links.look_at_witness()  # What came before this event counts before it.
        was_leaving = self._state.leaving
        effects = machine.step(self._state, event)
        if self._state.leaving and not was_leaving:
            self._leaving_since = self._loop.time()
        self._links.fence(machine.is_fenced(self._state))
        self._links.dispatcher.stepped(event, effects)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: e.NodeEffect) -> None:
        match effect:
            case e.JoinRound():
                self._join()
            case e.EnrolWithStore(stamp, assignment):
                self._say_assigned(assignment)
                self._enrolling = self._loop.create_task(self._enrol(stamp, assignment))
                self._enrolling.add_done_callback(raise_in_loop)
            case e.SpawnWorkers(stamp, assignment):
                if not assignment.enrol:
                    self._say_assigned(assignment)
                    self._links.store.open(stamp)
                self.workers.spawn(stamp, assignment, self._node_id())
            case e.TryToStart(order):
                self._stop_trying()
                self._trying = self._loop.create_task(self._try_to_start(order))
                self._trying.add_done_callback(raise_in_loop)
            case e.AbandonRound():
                if self._enrolling is not None:
                    self._enrolling.cancel()
                self._links.store.close()
            case e.RoundEnding(stamp, reason):
                self._tell_progress()
                kind = kinds.ROUND_CHANGED if reason.kind.is_planned else kinds.ROUND_ENDED
                self.say(kind(round=stamp.round, why=reason.text))
            case e.SignalWorkers() | e.KillWorkers():
                self._stop_workers(effect)
            case e.NotifyWorkers(number):
                if self.workers.current is not None:
                    self.workers.current.notify(number)
            case e.NodeTimer(kind, number, length_s):
                self._loop.call_later(length_s, self._step, e.WaitEnded(kind, number))
            case e.ReportNow(m.Failed() as failed):
                self._tell_progress()
                self.workers.report_failures(failed)
            case e.ReportNow(m.Succeeded() as succeeded):
                self._tell_progress()
                self.workers.report_success(succeeded)
            case e.ReportNow(m.Drain() as drain):
                hosts = self._membership is not None and self._membership.hosts
                self._report(replace(drain, hosts=hosts))
            case e.ReportNow(report):
                self._report(report)
            case e.GiveUpNode(error):
                self._links.store.close()
                if not self.finished.done():
                    self.finished.set_exception(error)
            case e.SkipWaits():
                self._links.hurry()
            case e.Finish():
                self._finish(effect)
            case e.WorkerEnded():
                pass  # The dispatcher reports it.
            case Record():
                self.say(effect)
            case _:
                assert_never(effect)

    def _join(self) -> None:
        assert self._membership is not None
        candidate = self._membership.candidate
        if self._ports is not None:
            try:
                candidate = replace(candidate, ports=self._ports.renew())
            except RallypointError as error:
                self._loop.call_soon(self._step, e.SourceFailed(error))
                return
        self._joins += 1
        self._report(m.Join(self._joins, candidate))
        self._show_status()

    def _report(self, report: m.Report) -> None:
        if self._membership is not None:
            self._membership.session.report(report)

    def _tell_progress(self) -> None:
        """Report the workers' last progress to the coordinator, before their memory is closed."""
        if self._membership is not None:
            self._membership.session.tell_progress()

    async def _enrol(self, stamp: Stamp, assignment: Assignment) -> None:
        if assignment.group_rank == 0:
            self._links.store.open(stamp)
        if self._links.wait_ready is not None:
            await self._links.wait_ready()
        try:
            await self._links.store.enrol(stamp, assignment, self._node_id())
        except RallypointError as error:
            self._step(e.EnrolmentDone(stamp, str(error)))
        except Exception as error:  # of what the node of rank 0 has answered
            self._step(e.EnrolmentDone(stamp, describe_fault(error)))
        else:
            self._step(e.EnrolmentDone(stamp))

    async def _try_to_start(self, order: m.Prove) -> None:
        assert self._links.try_to_start is not None, "its candidate does not prove"
        self._step(await self._links.try_to_start(order, self._node_id()))

    def _stop_trying(self) -> None:
        if self._trying is not None:
            self._trying.cancel()

    async def close(self) -> None:
        """End a test of whether workers can start, kill the workers, and free reserved ports.

        Call after `finished`.
        """
        self._stop_trying()
        if self._trying is not None:
            await asyncio.wait((self._trying,))
        await self.workers.abandon()
        if self._ports is not None:
            self._ports.close()

    def _stop_workers(self, effect: e.SignalWorkers | e.KillWorkers) -> None:
        workers = self.workers.current
        if workers is None:
            assert self._state.stamp is not None
            self._loop.call_soon(self._step, e.WorkersGone(self._state.stamp))
        elif isinstance(effect, e.SignalWorkers):
            workers.signal(effect.signal, effect.received)
        else:
            workers.kill()

    def source_failed(self, error: RallypointError) -> None:
        """End this node's part with this error: it has no process to fork workers from."""
        self._step(e.SourceFailed(error))

    def _finish(self, finish: e.Finish) -> None:
        if (last_words := self._links.last_words()) is None:
            self._leave(finish)
        else:
            leaving = self._loop.create_task(self._leave_after(last_words, finish))
            leaving.add_done_callback(raise_in_loop)

    async def _leave_after(self, last_words: Coroutine[None, None, None], finish: e.Finish) -> None:
        await last_words
        self._leave(finish)

    def _leave(self, finish: e.Finish) -> None:
        self._report(m.Leave())
        self._links.store.close()
        if self.finished.done():
            return
        if self._refusal is not None:
            self.finished.set_exception(self._refusal)
        else:
            self.finished.set_result(finish)

    def _say_assigned(self, assignment: Assignment) -> None:
        self.say(kinds.ROUND_JOINED(place_text(assignment, self._config.workers.count)))

    def _node_id(self) -> str:
        return self._membership.session.node_id if self._membership else ""


class _Membership(NamedTuple):
    """The session by which the agent takes part, and what its node brings to a round."""

    session: AgentSession
    candidate: Candidate
    hosts: bool
    """Whether the coordinator lives in this agent and can't be taken over: the job ends with this
    node."""
