"""One node's taking part in a job, from the first dial to the farewell."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from rallypoint.agent.driver import Agent, AgentLinks
from rallypoint.agent.embedded.embedding import Embedding
from rallypoint.agent.helper_processes import HelperEvents, HelperProcesses, NodeLease
from rallypoint.agent.job_end import JobEnd
from rallypoint.agent.round_store import StoreAccess, listen_for_peers, listen_on
from rallypoint.agent.shutdown import wait_for_others, wait_unless
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.agent.workers import MakeWorkers
from rallypoint.config import AgentConfig, RendezvousConfig
from rallypoint.coordinator.client import (
    AgentSession,
    CoordinatorSession,
    Hooks,
    fresh_identity,
)
from rallypoint.coordinator.clocks import WakeSelector
from rallypoint.coordinator.discovery import Met, meet
from rallypoint.coordinator.listen import OWN_FILES, raise_open_files_limit
from rallypoint.coordinator.server import Coordinator
from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Record, ReportedBy
from rallypoint.core.model import Candidate, SharedSettings
from rallypoint.core.ranks import id_of_rank
from rallypoint.core.session import AgentEnd
from rallypoint.core.text import part_of
from rallypoint.errors import InfrastructureError, InvariantError
from rallypoint.observe.faults import Faults, describe_fault
from rallypoint.observe.printing import say_traceback
from rallypoint.process.forks import fork_process
from rallypoint.process.guard import Guard
from rallypoint.process.limits import descriptors_for, out_of_files
from rallypoint.process.reaper import Reaper, needed
from rallypoint.process.signals import release_signals
from rallypoint.store.round_store import RoundStore
from rallypoint.wire.address import Address

if TYPE_CHECKING:
    from rallypoint.agent.preempt_notice import PreemptNotice

FAREWELL_S = 2.0
"""How long the last reports may take to be acknowledged."""


class Participation:
    """One agent's life, inside the loop: `main`, once."""

    def __init__(
        self,
        config: AgentConfig,
        settings: SharedSettings,
        signals: Sequence[int],
        dispatcher: EventDispatcher,
        make_workers: MakeWorkers,
        helpers: HelperProcesses | None,
        selector: WakeSelector,
        embedding: Embedding | None = None,
    ) -> None:
        """Without `embedding` this process is the agent's own."""
        self._config, self._settings, self._signals = config, settings, tuple(signals)
        self._helpers, self._selector, self._embedding = helpers, selector, embedding
        self._store_access = StoreAccess(
            config, lambda round_, why: self.agent.helper_died(round_, why, others_need_it=True)
        )
        self._store: RoundStore | None = None
        self._coordinator: Coordinator | None = None
        self._session: AgentSession | None = None
        self._reaper: Reaper | None = None
        self.lease = NodeLease(self._hold)
        """Until when this node has it."""
        self._caught = 0
        self._status = ""
        self._notice: PreemptNotice | None = None
        self._hurried = asyncio.Event()
        """A second signal has come, or one after the end: nobody is waited for any more."""
        self._others_stop_s = config.stop.shutdown_grace_s
        """How long other nodes may take to stop their workers when the job ends."""
        links = AgentLinks(
            dispatcher,
            self._store_access,
            self._hurry,
            self.lease.fence,
            helpers.source.wait_ready if helpers is not None else None,
        )
        self.agent = Agent(config, make_workers, self._signals, links)
        self.faults = Faults(lambda text: self.agent.say(kinds.FAULT(text)))
        """What nobody expected, and can't be the end of this agent (see ARCHITECTURE.md)."""

    async def main(self, on_end: Callable[[JobEnd], None]) -> JobEnd:
        """Take part to the end. `on_end` is called before the farewell, which may take a while
        on the node that hosts the coordinator.

        Raises RallypointError when this node could not take part.
        """
        began_at = time.monotonic()
        agent = self.agent
        self._install()
        for notice in self._config.notices:
            agent.say(kinds.NOTICE(notice))
        meeting = asyncio.get_running_loop().create_task(self._take_part())
        try:
            await asyncio.wait((meeting, agent.finished), return_when=asyncio.FIRST_COMPLETED)
            if meeting.done():
                meeting.result()
            finish = await agent.finished
            if finish.verdict is not None and not finish.verdict.signal:
                self._others_stop_s = self._config.stop.restart_grace_s
            run_id = self._config.rendezvous.run_id
            elapsed_s = time.monotonic() - began_at
            newest = agent.dispatcher.timeline.newest
            end = JobEnd(
                finish,
                run_id,
                agent.round,
                elapsed_s,
                failures=agent.failures,
                caught=self._caught,
                error=getattr(self._session, "error", None),
                node=agent.dispatcher.node,
                place=newest.assignment if newest is not None else None,
            )
            on_end(end)
        finally:
            meeting.cancel()
            await asyncio.gather(meeting, return_exceptions=True)
            if self._notice is not None:
                await wait_unless(self._hurried, self._notice.close(), FAREWELL_S)
            await self._leave()
            self._uninstall()
        # Last, for large ones take their time: by now nobody waits for this node.
        return replace(end, return_values=agent.return_values())

    def _hold(self, until: float) -> None:
        """A job that can have one node only is left alone: Ctrl-Z, a laptop that sleeps. Where
        `serve` may give its place away all the same, the agent ends its workers when it runs again.
        """
        if self._helpers is not None and self._settings.max_nodes > 1:
            self._helpers.hold(until)

    def _install(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._crashed)
        for number in self._signals:
            loop.add_signal_handler(number, self._signalled, number)
        if self._helpers is not None:
            self._helpers.watch(
                HelperEvents(
                    self._guard_replaced,
                    self._relay_replaced,
                    lambda text: self.agent.say(kinds.LOG_STORAGE(text)),
                    self.agent.dispatcher.first_output,
                    partial(self.agent.say, kinds.STDIN()),
                )
            )
            self._helpers.source.watch(self.agent.give_up, self.agent.say)
        if self._embedding is not None:
            self._embedding.attach(loop, self._signalled)
        else:
            self._own_process(loop)
        self._watch_notice()

    def _watch_notice(self) -> None:
        if spec := self._config.stop.preempt_notice:
            # Imported by who asks for it: others start without.
            from rallypoint.agent.preempt_notice import PreemptNotice

            guard = self._helpers.guard if self._helpers is not None else None
            self._notice = PreemptNotice(
                spec,
                guard,
                self.agent.leave,
                lambda text: self.agent.say(kinds.PREEMPT_NOTICE(text)),
            )
            self._notice.start()

    def _signalled(self, number: int) -> None:
        self._caught = self._caught or number
        is_text = self._config.output.log_format == "text"
        if number == signal.SIGINT and is_text and self._helpers is not None:
            self._helpers.relay.fold_interrupts()
        self.agent.caught(number)

    def _hurry(self) -> None:
        self._hurried.set()
        if self._helpers is not None:
            self._helpers.hurry()

    def _own_process(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            if number not in self._signals:
                signal.signal(number, signal.SIG_IGN)
        release_signals()
        if needed() or (self._helpers is not None and self._helpers.source.adopts_orphans):
            self._reaper = Reaper.install(loop, self._is_ours)

    def _uninstall(self) -> None:
        if self._embedding is not None:
            self._embedding.detach()
        if self._helpers is not None:
            self._helpers.unwatch()
            self._helpers.source.unwatch()
        if self._reaper is not None:
            self._reaper.close()

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """An agent that limps on is worse than one that ends, and says why: what the system has
        refused, or else a bug of ours."""
        cause = cast(BaseException | None, context.get("exception"))
        refused = cause if isinstance(cause, InfrastructureError) else out_of_files(cause)
        error: Exception = refused or InvariantError(
            f"the agent has a bug ({_told(context, cause)}): please report it"
        )
        if refused is None and cause is not None:
            say_traceback(cause)
        if not self.agent.finished.done():
            error.__cause__ = cause
            self.agent.finished.set_exception(error)

    async def _take_part(self) -> None:
        rendezvous = self._config.rendezvous
        if rendezvous.handler:
            await self._take_part_by_handler()
            return
        if rendezvous.static and rendezvous.node_rank == 0:
            self._store = self._round_store(None, shared=True)
        met = await meet(rendezvous, self._config.access, self._host, self._say_status)
        self._coordinator = met.coordinator
        if met.coordinator is not None and rendezvous.max_nodes > 1:
            self.agent.say(kinds.HOSTS(endpoint=rendezvous.endpoint))
        try:
            candidate = await self._candidate(met)
        except BaseException:
            met.connection.abort()
            raise
        self._store_access.use(
            met.token, self._store, rendezvous.endpoint if rendezvous.static else None
        )
        session = self._session = self._make_session(met)
        self._selector.watch(session.check_fence)
        self.agent.join(session, candidate, hosts=met.coordinator is not None)
        session.open(met.connection)

    async def _take_part_by_handler(self) -> None:
        from rallypoint.agent.handler.client import HandlerClient, HandlerRendezvous
        from rallypoint.agent.handler.session import HandlerSession

        rendezvous = self._config.rendezvous
        given = self._embedding.handler if self._embedding is not None else None
        client = given or await HandlerClient.make(rendezvous)
        meets = HandlerRendezvous(client, rendezvous, self._own_store)
        session = self._session = HandlerSession(
            meets, self._config, self._settings, self.agent, self._store_access
        )
        self.agent.join(session, session.candidate, hosts=False)
        session.open()

    def _own_store(self, host: str) -> RoundStore:
        listener = listen_on((Address(host, 0),), self._config.rendezvous.store_port)
        self._store = self._round_store(listener)
        return self._store

    def _round_store(self, listener: socket.socket | None, *, shared: bool = False) -> RoundStore:
        part_of = part_of_job(self._config.rendezvous)
        return RoundStore(listener, fork=fork_process, shared=shared, part_of=part_of)

    def _host(
        self, listeners: Sequence[socket.socket], lookup_token: Callable[[str], bytes | None]
    ) -> Coordinator:
        raise_open_files_limit()
        reserved = OWN_FILES + descriptors_for(self._config.workers.count)
        return Coordinator(
            listeners,
            lookup_token=lookup_token,
            insecure=self._config.access.insecure,
            only=self._settings,
            on_record=self._record,
            adopt=self._store.adopt if self._store is not None else None,
            reserved_files=reserved,
        )

    async def _candidate(self, met: Met) -> Candidate:
        """What this node brings, and the listening socket of its round store."""
        rendezvous = self._config.rendezvous
        if rendezvous.static:
            address, port = rendezvous.endpoint.host, rendezvous.endpoint.port
        else:
            session_host = met.connection.local_host
            listener = await listen_for_peers(
                rendezvous.local_addr or "", session_host, rendezvous.store_port
            )
            self._store = self._round_store(listener)
            address = rendezvous.local_addr or session_host
            port = self._store.port
        return Candidate(
            workers=self._config.workers.count,
            role=self._config.workers.role,
            address=address,
            store_port=port,
            topology=rendezvous.topology,
            node_rank=-1 if rendezvous.node_rank is None else rendezvous.node_rank,
            stop_grace_s=self._config.stop.restart_grace_s,
        )

    def _make_session(self, met: Met) -> CoordinatorSession:
        rendezvous = self._config.rendezvous
        identity = fresh_identity(_given_id(rendezvous))
        # Nobody can take the place of a node that hosts a job of one node.
        has_fence = self._settings.max_nodes > 1 or met.coordinator is None
        hooks = Hooks(on_held=self.lease.renewed) if has_fence else Hooks()
        if met.coordinator is not None:
            met.coordinator.lives_in(identity.incarnation)
        elif self._helpers is not None:
            from rallypoint.agent.helper_processes import DeathNotices  # A host has no use for it.

            notices = DeathNotices(
                rendezvous.run_id, identity.incarnation, met, self._helpers.leave_notice
            )
            hooks = replace(hooks, on_attach=notices.attaching)
        end = AgentEnd(
            identity, self._settings, rendezvous.reconnect_timeout_s, has_fence=has_fence
        )
        return CoordinatorSession(end, met.dial, self.agent, hooks=hooks)

    async def _leave(self) -> None:
        """Say farewell, let every node have the verdict, and leave nothing behind."""
        self.agent.abandon_workers()
        if self._session is not None:
            await wait_unless(self._hurried, self._session.close(FAREWELL_S), FAREWELL_S)
        if self._helpers is not None:
            self._helpers.leave_notice(b"")
        if self._coordinator is not None:
            limit_s = self._settings.lease_s + self._others_stop_s + FAREWELL_S
            await wait_for_others(self._hurried, self._coordinator, limit_s, self.agent.say)
            self._coordinator.close()
        if self._store is not None:
            self._store.shutdown()
        self.faults.tell_counts()

    def _record(self, run_id: str, record: Record) -> None:
        alone = self._config.rendezvous.max_nodes == 1
        if alone and record.kind is kinds.NODE_JOINED:
            return
        match record.kind.reported_by:
            case ReportedBy.HOST:
                self.agent.say(record)
            case ReportedBy.HOST_TO_HANDLERS:
                self.agent.dispatcher.hosted(record)

    def _say_status(self, text: str) -> None:
        """Once what it waits for, for as long as that is the same."""
        if text != self._status:
            self._status = text
            self.agent.say(kinds.MEETING(text))

    def _guard_replaced(self, guard: Guard) -> None:
        self.agent.use_guard(guard)
        self.agent.say(kinds.GUARD_REPLACED())

    def _relay_replaced(self, round_: int, *, by_another: bool) -> None:
        killed = "the relay of the workers' output was killed"
        then = "started another" if by_another else "output goes where the agent's own goes"
        self.agent.say(kinds.RELAY_REPLACED(then=then))
        self.agent.helper_died(round_, killed, others_need_it=False)

    def _is_ours(self, pid: int) -> bool:
        owners = (self._store, self.agent, self._helpers, self._notice)
        return any(owner is not None and owner.owns(pid) for owner in owners)


def part_of_job(rendezvous: RendezvousConfig) -> str:
    """How the titles of this agent's helpers end; see `core.text`."""
    return part_of(rendezvous.run_id, _given_id(rendezvous))


def _given_id(rendezvous: RendezvousConfig) -> str:
    """Empty: the coordinator chooses it."""
    if rendezvous.node_id or not rendezvous.static:
        return rendezvous.node_id or ""
    return id_of_rank(rendezvous.node_rank or 0)


def _told(context: dict[str, object], cause: BaseException | None) -> str:
    return str(context["message"]) if cause is None else describe_fault(cause)
