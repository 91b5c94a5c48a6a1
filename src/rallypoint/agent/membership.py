"""The membership of a node in a job: from finding or hosting the coordinator to leaving the job."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from rallypoint.agent.agent import Agent
from rallypoint.agent.embedding import Embedding
from rallypoint.agent.helper_processes import HelperProcesses, NodeLease, wait_unless
from rallypoint.agent.notices import Notices
from rallypoint.agent.progress_report import PhaseTeller, ProgressReport
from rallypoint.agent.round_store import StoreAccess, listen_for_peers
from rallypoint.agent.telemetry.telemetry import Telemetry
from rallypoint.clocks import WakeSelector
from rallypoint.config import AccessConfig, AgentConfig, RegisterConfig, RendezvousConfig
from rallypoint.coordinator.client.discovery import Connected, HostCoordinator, discover
from rallypoint.coordinator.client.session import (
    AgentSession,
    CoordinatorSession,
    Hooks,
    fresh_identity,
)
from rallypoint.coordinator.connection import ClientConnection
from rallypoint.coordinator.hosting import Hosting
from rallypoint.coordinator.listen import OWN_FILES, connection_room, raise_open_files_limit
from rallypoint.coordinator.server import HANDSHAKE_TIME_S, Coordinator, LookupToken
from rallypoint.core import event_kinds as kinds
from rallypoint.core import messages as m
from rallypoint.core.admission import AdmissionLimits
from rallypoint.core.event_kinds import Record, ReportedBy
from rallypoint.core.model import Candidate, DeadPlace
from rallypoint.core.ranks import id_of_rank
from rallypoint.core.session import AgentEnd, SessionRules
from rallypoint.core.settings import FOR_DIRECTORIES, UNNAMED_RUN_ID
from rallypoint.core.text import names, part_of, shown
from rallypoint.core.watch.goodput_view import GoodputView
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.machine_name import machine_name
from rallypoint.observe.faults import Faults
from rallypoint.process.forks import fork_process
from rallypoint.process.limits import MemoryWatch, descriptors_for, usable_memory
from rallypoint.store.round_store import RoundStore

if TYPE_CHECKING:  # Most jobs have no register, and nobody asks for their workers.
    from rallypoint.agent.answering import NodeAnswers
    from rallypoint.coordinator.leading.leader_search import LeaderSearch, OwnLeadership
    from rallypoint.elastic.rendezvous.plug_in.session import HandlerSession
    from rallypoint.process.logs.worker_output import WorkerOutputs

    Host = Connected | LeaderSearch | HandlerSession

LAST_REPORTS_S = 2.0
"""How long the coordinator may take to acknowledge this node's last reports, in seconds."""
LAST_WORDS_S = 1.0
"""How long this node stays at most for people who follow its workers' output, in seconds."""
NOTICES_S = 0.5
"""How long the notices on options wait, in seconds, for the line with the command to look at the
job."""
UNNAMED_WAIT_S = 2.0
"""The length of a wait for other nodes to leave, in seconds, after which a host names them."""


class AgentSetup(NamedTuple):
    """The configuration and the parts with which an agent is made."""

    config: AgentConfig
    signals: tuple[int, ...]
    """The signals that the agent handles: each ends this node's part in the job."""
    telemetry: Telemetry
    selector: WakeSelector
    helpers: HelperProcesses | None = None
    """The helper processes; None: this agent has none."""
    embedding: Embedding | None = None
    """The program around the agent; None: this process is the agent's own."""
    scratch: str = ""
    """The path of the agent's own temporary directory; empty: there is none."""
    outputs: WorkerOutputs | None = None
    """The outputs of the workers; None: the workers are no processes of this agent."""
    dead: tuple[DeadPlace, ...] = ()
    """The places of the job's former agents on this machine that are dead with their workers."""


class Joined(NamedTuple):
    """How this node takes part in the job that it has found.

    `_by_endpoint`, `_by_register` and `_by_handler` yield one, and leave the job when their context
    ends. Each closes what it has opened, also when it fails half-way.
    """

    session: AgentSession
    candidate: Candidate
    open: Callable[[], None]
    """Opens the session, once the agent has it."""
    hosts: bool = False
    """Whether this agent hosts a coordinator that no other node can take over: the job ends with
    it."""


class Membership:
    """The part of an agent that finds the coordinator or hosts it, and leaves the job at the end.

    For the thread of the loop.

    Call `open` once, and `close` at the end.
    """

    def __init__(
        self, setup: AgentSetup, agent: Agent, store_access: StoreAccess, lease: NodeLease
    ) -> None:
        self._setup, self._config = setup, setup.config
        self._settings = setup.config.rendezvous.shared()
        self._agent, self._store_access, self._lease = agent, store_access, lease
        self._store: RoundStore | None = None
        self._joined: Joined | None = None
        self._beginning = AsyncExitStack()
        self._hurried = asyncio.Event()
        """The event that ends every wait of `close` when it is set."""
        self._others_stop_s = setup.config.stop.shutdown_grace_s
        self._progress: ProgressReport | None = None
        """The progress reports of the agent, for each of its coordinators in turn."""
        self._answers: NodeAnswers | None = None
        self._status = ""
        self._notices = setup.config.notices
        """The notices of the configuration that were not shown yet."""
        rendezvous, access = setup.config.rendezvous, setup.config.access
        tell_guard = None if setup.helpers is None else setup.helpers.leave_notice
        self._notes = Notices(rendezvous, access, tell_guard, setup.scratch)

    def _say_notices(self) -> None:
        """Show the notices of the configuration, once."""
        notices, self._notices = self._notices, ()
        for notice in notices:
            self._agent.say(kinds.NOTICE(notice))

    @property
    def error(self) -> Exception | None:
        """The exception of a rendezvous handler that ended this node's part; None: none did."""
        return None if self._joined is None else self._joined.session.error

    def owns(self, pid: int) -> bool:
        """Return whether only the round store may reap this process."""
        return self._store is not None and self._store.owns(pid)

    async def open(self, hurried: asyncio.Event) -> None:
        """Find the coordinator, or host it, and have the agent join.

        `hurried` ends the waits of `close`, and of closing after a failure. Raises RallypointError
        when this node can't take part.
        """
        rendezvous, begin = self._config.rendezvous, _by_endpoint
        if rendezvous.handler is not None:
            begin = _by_handler
        elif rendezvous.register is not None:
            begin = _by_register
        if rendezvous.handler is not None or rendezvous.max_nodes == 1:
            self._say_notices()
        self._hurried = hurried
        # The first line of a job says how to look at it: the node that hosts it knows that soon.
        notices = asyncio.get_running_loop().call_later(NOTICES_S, self._say_notices)
        try:
            joined = self._joined = await self._beginning.enter_async_context(begin(self))
        finally:
            notices.cancel()
            self._say_notices()
        self._agent.join(joined.session, joined.candidate, hosts=joined.hosts)
        joined.open()

    async def _join(
        self, found: Connected, end: AgentEnd, search: LeaderSearch | None = None
    ) -> Joined:
        """Make the session on this connection to a coordinator; it is not opened yet.

        `search` is given where any node may lead.
        """
        rendezvous = self._config.rendezvous
        self._say_notices()
        try:
            candidate = await self._candidate(found)
        except BaseException:
            found.connection.abort()
            raise
        await self._answer_health_checks(rendezvous.local_addr or found.connection.local_host)
        hooks = self._hooks(found, end, search)
        session = CoordinatorSession(end, found.dial, self._agent, hooks=hooks)
        self._follow(session, search or found)
        start = partial(session.open, found.connection)
        return Joined(session, candidate, start, hosts=found.coordinator is not None)

    def _follow(self, session: CoordinatorSession, host: Host) -> None:
        """Connect this session with the clock, the observers and the kept files of the agent.

        The lease is checked at each wake-up of the loop. The account of the job's time is shown if
        the coordinator lives here.
        """
        telemetry = self._setup.telemetry
        self._setup.selector.watch(session.check_fence)
        telemetry.dispatcher.subscribe(PhaseTeller(session.tell_progress))
        telemetry.show_goodput(partial(_goodput, host))
        if (keeping := telemetry.keeping) is not None:
            keeping.joins(partial(self._life, session), self._not_kept)

    def _life(self, session: CoordinatorSession) -> int:
        """Return the incarnation of the job, also before its first round; 0: not attached."""
        if (stamp := self._agent.stamp) is not None:
            return stamp.incarnation
        return 0 if session.attached is None else session.attached.incarnation

    def _not_kept(self, path: str, why: str) -> None:
        self._agent.say(kinds.NOT_KEPT(path=shown(path), why=why))

    def _reconnect(self, why: str) -> None:
        if self._joined is not None and isinstance(self._joined.session, CoordinatorSession):
            self._joined.session.reconnect(why)

    async def _answer_health_checks(self, host: str) -> None:
        if told := await self._setup.telemetry.open_health(host):
            self._agent.say(kinds.NOTICE(told))

    def last_words(self) -> Coroutine[None, None, None] | None:
        """Return a coroutine that sends the workers' last output to people who follow it.

        None: nobody does. It takes `LAST_WORDS_S` at most.
        """
        if self._answers is None or not self._answers.is_followed:
            return None
        return self._wait(self._answers.finish(), LAST_WORDS_S)

    async def close(self, others_stop_s: float) -> None:
        """Leave the job.

        A host waits for the other nodes, which may take `others_stop_s` to stop their workers,
        unless another node may lead the job to its end.
        """
        self._others_stop_s = others_stop_s
        await self._beginning.aclose()
        self._notes.over()
        if self._store is not None:
            self._store.shutdown()

    async def _leave(self) -> None:
        if self._answers is not None:
            self._answers.close()
        if self._joined is not None:
            await self._wait(self._joined.session.close(LAST_REPORTS_S), LAST_REPORTS_S)
        self._notes.over()

    async def _wait(self, waiting: Coroutine[None, None, None], limit_s: float) -> None:
        await wait_unless(self._hurried, waiting, limit_s)

    async def _wait_for_others(self, coordinator: Coordinator) -> None:
        # Each may take its grace, and one whose connection is broken comes back within its lease,
        # or is lost.
        limit_s = self._settings.lease_s + self._others_stop_s + LAST_REPORTS_S
        unnamed_s = min(UNNAMED_WAIT_S, limit_s)
        await self._wait(coordinator.jobs.wait_empty(), unnamed_s)
        if (nodes := coordinator.jobs.nodes) and not self._hurried.is_set():
            left_s = limit_s - unnamed_s
            self._agent.say(kinds.OTHERS_LEAVING(nodes=names(tuple(nodes)), left_s=left_s))
            await self._wait(coordinator.jobs.wait_empty(), left_s)

    def _round_store(self, listener: socket.socket | None) -> RoundStore:
        part_of = part_of_job(self._config.rendezvous)
        memory = usable_memory()
        return RoundStore(
            listener,
            fork=fork_process,
            part_of=part_of,
            max_bytes=None if memory is None else memory // 2,
        )

    def _hosting(self, own_agent: str = "", led: OwnLeadership | None = None) -> Hosting:
        record, settings, telemetry = self._record, self._settings, self._setup.telemetry
        history = telemetry.history or telemetry.keeping
        return Hosting(record, settings, led=led, own_agent=own_agent, history=history)

    def _host_by(self, hosting: Hosting) -> HostCoordinator:
        def host(listeners: Sequence[socket.socket], token: LookupToken | None) -> Coordinator:
            raise_open_files_limit()
            reserved = OWN_FILES + descriptors_for(self._config.workers.count)
            shared = self._store if self._config.rendezvous.static else None
            adopt = shared.adopt if shared is not None else None
            admission = AdmissionLimits(connection_room(reserved), HANDSHAKE_TIME_S)
            return Coordinator(listeners, hosting, token, adopt, admission)

        return host

    async def _candidate(self, found: Connected) -> Candidate:
        """Return what this node brings to a round; first make its round store, if it has none yet.

        With fixed ranks (static) none is made: the store of rank 0 uses the coordinator's port.
        """
        rendezvous, endpoint = self._config.rendezvous, None
        if rendezvous.static:
            endpoint = rendezvous.endpoint
            address, port = endpoint.host, endpoint.port
        else:
            session_host = found.connection.local_host
            given = rendezvous.store.host or rendezvous.local_addr
            if self._store is None:
                listener = await listen_for_peers(given or "", session_host, rendezvous.store.port)
                self._store = self._round_store(listener)
            address = given or session_host
            port = self._store.port
        self._store_access.use(found.token, self._store, endpoint)
        return Candidate(
            workers=self._config.workers.count,
            role=self._config.workers.role,
            address=address,
            store_port=port,
            topology=rendezvous.topology,
            node_rank=-1 if rendezvous.node_rank is None else rendezvous.node_rank,
            stop_grace_s=self._config.stop.restart_grace_s,
            machine=machine_name(rendezvous.machine_id, address),
            # What does not start processes can't try to.
            proves=self._setup.helpers is not None,
        )

    def _hooks(self, found: Connected, end: AgentEnd, search: LeaderSearch | None = None) -> Hooks:
        on_held = self._lease.renewed if end.rules.has_fence else _ignore
        told = self._setup.telemetry.dispatcher
        report = self._progress = self._progress or ProgressReport(self._config, told)
        host = search or found

        def progress(generation: int) -> NodeProgress | None:
            return report.news(self._agent.stamp, generation)

        def connected(connection: ClientConnection, generation: int) -> bytes:
            if self._answers is not None:
                self._answers.close()  # What was asked on the last connection is asked again.
            self._notes.connected(found.token, connection.peer)
            if (keeping := self._setup.telemetry.keeping) is not None:
                keeping.attached(str(connection.peer), is_host=host.coordinator is not None)
            return b""

        def attaching(connection: ClientConnection, generation: int) -> bytes:
            connected(connection, generation)
            led = None if search is None else search.epoch
            return self._notes.attaching(found.token, end, led, connection.peer, generation)

        hooks = Hooks(
            on_held, connected, progress=progress, rounds=report.rounds, collect=self._collect
        )
        if found.coordinator is not None:
            return hooks  # No coordinator outlives this agent to get a death notice.
        placed, is_short = partial(self._notes.placed, end), MemoryWatch().is_short
        return replace(hooks, on_attach=attaching, on_place=placed, is_short_of_memory=is_short)

    def _collect(self, message: m.Collecting) -> None:
        if self._answers is None:
            from rallypoint.agent.answering import NodeAnswers

            session = self._joined.session if self._joined is not None else None
            assert isinstance(session, CoordinatorSession)
            agent, send = self._agent, session.send_collected
            faults = Faults(lambda text: agent.say(kinds.FAULT(text)))
            self._answers = NodeAnswers(agent.workers, self._setup.outputs, send, faults)
        self._answers.asked(message)

    def _record(self, run_id: str, record: Record) -> None:
        alone = self._config.rendezvous.max_nodes == 1
        if alone and record.kind is kinds.NODE_JOINED:
            return
        match record.kind.reported_by:
            case ReportedBy.HOST:
                self._agent.say(record)
            case ReportedBy.HOST_TO_HANDLERS:
                self._setup.telemetry.dispatcher.hosted(record)

    def _say_status(self, text: str) -> None:
        """Report the reason of this node's wait, unless it was the last one reported."""
        if text != self._status:
            self._status = text
            self._agent.say(kinds.MEETING(text))


@asynccontextmanager
async def _by_endpoint(part: Membership) -> AsyncIterator[Joined]:
    """Reach the coordinator at the endpoint, or host it there."""
    config, settings, rendezvous = part._config, part._settings, part._config.rendezvous
    if rendezvous.static and rendezvous.node_rank == 0:
        part._store = part._round_store(None)
    identity = fresh_identity(_given_id(rendezvous))
    host = part._host_by(part._hosting(identity.incarnation))
    found = await discover(rendezvous, config.access, host, part._say_status)
    coordinator = found.coordinator
    try:
        if coordinator is not None and rendezvous.max_nodes > 1:
            part._agent.say(kinds.LOOK(command=look_command(rendezvous, config.access)))
            part._say_notices()
            part._agent.say(kinds.HOSTS(endpoint=rendezvous.endpoint))
        # Nobody can take the place of a node that hosts a job of one node.
        has_fence = settings.max_nodes > 1 or coordinator is None
        timeout_s, dead = rendezvous.reconnect_timeout_s, part._setup.dead
        rules = SessionRules(timeout_s, has_fence=has_fence, dead=dead)
        yield await part._join(found, AgentEnd(identity, settings, rules))
    finally:
        await part._leave()
        if coordinator is not None:
            await part._wait_for_others(coordinator)
            coordinator.close()


@asynccontextmanager
async def _by_register(part: Membership) -> AsyncIterator[Joined]:
    """Reach the leader that the register names, or become it."""
    from rallypoint.agent import leading
    from rallypoint.coordinator.leading.leader_process import local_leader
    from rallypoint.coordinator.leading.leader_search import LeaderSearch, OwnLeadership

    access, rendezvous, agent = part._config.access, part._config.rendezvous, part._agent
    assert rendezvous.register is not None
    secret = leading.secret_of(rendezvous.run_id, access)
    register = await leading.register_of(rendezvous, secret, agent.say, part._say_status)
    identity, own = fresh_identity(_given_id(rendezvous)), OwnLeadership(rendezvous.lease_s)
    rules = SessionRules(
        rendezvous.reconnect_timeout_s,
        vouched_at=own.vouched_at,
        promises=own.promises,
        dead=part._setup.dead,
    )
    end = AgentEnd(identity, part._settings, rules)
    hosts = leading.Hosts(part._host_by(part._hosting(identity.incarnation, own)), part._reconnect)
    local = local_leader(rendezvous.register.hold_s, secret_of=lambda run_id: secret)
    look = look_command(rendezvous, access)
    node = leading.LeadingNode(agent, end, rendezvous, secret, hosts, look)
    search = LeaderSearch(register, local, own, node, rendezvous.run_id)
    try:
        await asyncio.sleep(node.first_claim_delay_s)
        connection = await search.connect(rendezvous.join_timeout_s, part._say_status)
        yield await part._join(Connected(connection, search.dial, secret, None), end, search)
    finally:
        search.stop()
        await part._leave()
        is_heard = False
        if (led := search.coordinator) is not None and led.jobs.is_over:
            await part._wait_for_others(led)
            is_heard = not led.jobs.nodes
        elif led is not None:
            agent.say(kinds.DEPOSED(why="this node leaves, and another one may lead"))
        await part._wait(search.close(is_heard=is_heard), LAST_REPORTS_S)


@asynccontextmanager
async def _by_handler(part: Membership) -> AsyncIterator[Joined]:
    """Take part through the rendezvous handler of another package.

    The node of rank 0 in each of the handler's rounds hosts the coordinator for that round.
    """
    from rallypoint.elastic.rendezvous.plug_in.client import HandlerClient
    from rallypoint.elastic.rendezvous.plug_in.session import HandlerSession, OwnNode

    config, embedding = part._config, part._setup.embedding
    given = embedding.handler if embedding is not None else None
    await part._answer_health_checks(config.rendezvous.local_addr or "localhost")
    client = given or await HandlerClient.make(config.rendezvous)
    hosting, access = part._hosting(), part._store_access
    node = OwnNode(hosting, part._host_by, part._hooks, part._candidate, access)
    session = HandlerSession(client, config, node, part._agent)
    part._follow(session, session)
    try:
        yield Joined(session, session.candidate, session.begin)
    finally:
        await part._leave()
        if (coordinator := session.coordinator) is not None:
            await part._wait_for_others(coordinator)
            coordinator.close()
        await part._wait(session.let_handler_go(), LAST_REPORTS_S)


def _goodput(host: Host) -> GoodputView | None:
    coordinator = host.coordinator
    hosted = [] if coordinator is None else coordinator.jobs.all
    return hosted[-1].watch.goodput if hosted else None


def part_of_job(rendezvous: RendezvousConfig) -> str:
    """Return the end of the titles of this agent's helpers, such as ` of job digits (node n1)`."""
    return part_of(rendezvous.run_id, _given_id(rendezvous))


def _given_id(rendezvous: RendezvousConfig) -> str:
    """Return the node id that was given, or that follows from a fixed rank.

    Empty: the coordinator chooses it.
    """
    if rendezvous.node_id or not rendezvous.static:
        return rendezvous.node_id or ""
    return id_of_rank(rendezvous.node_rank or 0)


def _ignore(_until: float) -> None:
    """Ignore the end of the lease, which does not exist here."""


def look_command(rendezvous: RendezvousConfig, access: AccessConfig) -> str:
    """Return the command with which a user looks at this job from any machine.

    For example `rallypoint status n1:29400 --job digits`.
    """
    from shlex import quote  # Needed on one node of a job.

    register = rendezvous.register
    words = [str(rendezvous.endpoint)] if register is None else _where_records_are(register)
    if rendezvous.run_id != UNNAMED_RUN_ID:
        words += ["--job", rendezvous.run_id]
    if access.insecure:
        words.append("--insecure")
    elif access.token_file:
        words += ["--token-file", access.token_file]
    return " ".join(["rallypoint status", *map(quote, words)])


def _where_records_are(register: RegisterConfig) -> list[str]:
    from rallypoint.register.engines import PASSWORD

    if register.engine == FOR_DIRECTORIES:
        return [register.where]
    words = ["--rdzv-backend", register.engine]
    words += ["--rdzv-endpoint", register.where] if register.where else []
    conf = ",".join(f"{key}={text}" for key, text in register.settings if key != PASSWORD)
    return [*words, "--rdzv-conf", conf] if conf else words
