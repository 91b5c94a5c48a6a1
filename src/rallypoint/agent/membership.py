"""This node's membership in a job: from finding or hosting the coordinator to leaving the job."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rallypoint.agent.agent import Agent
from rallypoint.agent.embedding import Embedding
from rallypoint.agent.helper_processes import HelperProcesses, NodeLease, wait_unless
from rallypoint.agent.notices import Notices
from rallypoint.agent.progress_report import PhaseTeller, ProgressReport
from rallypoint.agent.round_store import StoreAccess, listen_for_peers, listen_on
from rallypoint.agent.telemetry.telemetry import Telemetry
from rallypoint.clocks import WakeSelector
from rallypoint.config import AccessConfig, AgentConfig, RegisterConfig, RendezvousConfig
from rallypoint.coordinator.client.discovery import Connected, discover
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
from rallypoint.wire.address import Address

if TYPE_CHECKING:  # Most jobs have no register, and nobody asks for their workers.
    from rallypoint.agent.answering import NodeAnswers
    from rallypoint.coordinator.leading.leader_search import LeaderSearch, OwnLeadership
    from rallypoint.process.logs.worker_output import WorkerOutputs

LAST_REPORTS_S = 2.0
"""How long the last reports may take to be acknowledged."""
LAST_WORDS_S = 1.0
"""How long this node stays for who follows its workers' output."""
NOTICES_S = 0.5
"""How long the notices on options wait for the line that says how to look at the job."""
UNNAMED_WAIT_S = 2.0
"""A host that waits for the other nodes for longer names them."""


class AgentSetup(NamedTuple):
    """What an agent runs with."""

    config: AgentConfig
    signals: tuple[int, ...]
    """Those that end it."""
    telemetry: Telemetry
    selector: WakeSelector
    helpers: HelperProcesses | None = None
    """None: this agent starts no processes."""
    embedding: Embedding | None = None
    """None: this process is the agent's own."""
    scratch: str = ""
    """The directory of this agent alone; empty: there is none."""
    outputs: WorkerOutputs | None = None
    """Of the workers, if they are processes of this agent."""
    dead: tuple[DeadPlace, ...] = ()
    """Places of former agents on this machine of which nothing runs any more."""


class Membership:
    """For the thread of the loop. `open` once; `close` at the end."""

    def __init__(
        self, setup: AgentSetup, agent: Agent, store_access: StoreAccess, lease: NodeLease
    ) -> None:
        self._setup, self._config = setup, setup.config
        self._settings = setup.config.rendezvous.shared()
        self._agent, self._store_access, self._lease = agent, store_access, lease
        self._store: RoundStore | None = None
        self._coordinator: Coordinator | None = None
        self._search: LeaderSearch | None = None
        """Where any node may lead the job."""
        self._session: AgentSession | None = None
        self._answers: NodeAnswers | None = None
        self._status = ""
        self._notices = setup.config.notices
        """The notices that were not said yet."""
        rendezvous, access = setup.config.rendezvous, setup.config.access
        tell_guard = None if setup.helpers is None else setup.helpers.leave_notice
        self._notes = Notices(rendezvous, access, tell_guard, setup.scratch)

    def _say_notices(self) -> None:
        """Once."""
        notices, self._notices = self._notices, ()
        for notice in notices:
            self._agent.say(kinds.NOTICE(notice))

    @property
    def error(self) -> Exception | None:
        """What a rendezvous handler raised, if that ended this node's part."""
        return None if self._session is None else self._session.error

    def owns(self, pid: int) -> bool:
        """Whether only the round store may reap this process."""
        return self._store is not None and self._store.owns(pid)

    async def open(self) -> None:
        """Find the coordinator, or host it, and have the agent join.

        Raises RallypointError when this node can't take part.
        """
        rendezvous = self._config.rendezvous
        if rendezvous.handler is not None or rendezvous.max_nodes == 1:
            self._say_notices()
        if rendezvous.handler is not None:
            await self._open_by_handler()
            return
        if rendezvous.static and rendezvous.node_rank == 0:
            self._store = self._round_store(None)
        # The first line of a job says how to look at it: the node that hosts it knows that soon.
        notices = asyncio.get_running_loop().call_later(NOTICES_S, self._say_notices)
        try:
            found, end = await self._find()
            self._coordinator = found.coordinator
            is_host = found.coordinator is not None and rendezvous.max_nodes > 1
            if is_host and rendezvous.register is None:
                command = look_command(rendezvous, self._config.access)
                self._agent.say(kinds.LOOK(command=command))
        finally:
            notices.cancel()
            self._say_notices()
        if is_host:
            self._agent.say(kinds.HOSTS(endpoint=rendezvous.endpoint))
        try:
            candidate = await self._candidate(found)
        except BaseException:
            found.connection.abort()
            raise
        await self._answer_health_checks(rendezvous.local_addr or found.connection.local_host)
        self._store_access.use(
            found.token, self._store, rendezvous.endpoint if rendezvous.static else None
        )
        session = self._session = self._make_session(found, end)
        self._setup.selector.watch(session.check_fence)
        self._setup.telemetry.dispatcher.subscribe(PhaseTeller(session.tell_progress))
        self._setup.telemetry.show_goodput(self._goodput)
        if (keeping := self._setup.telemetry.keeping) is not None:
            keeping.joins(partial(self._life, session), self._not_kept)
        self._agent.join(session, candidate, hosts=found.coordinator is not None)
        session.open(found.connection)

    def _life(self, session: CoordinatorSession) -> int:
        """The incarnation of the job, also before its first round; 0: this node is not attached."""
        if (stamp := self._agent.stamp) is not None:
            return stamp.incarnation
        return 0 if session.attached is None else session.attached.incarnation

    def _not_kept(self, path: str, why: str) -> None:
        self._agent.say(kinds.NOT_KEPT(path=shown(path), why=why))

    def _goodput(self) -> GoodputView | None:
        led = None if self._search is None else self._search.coordinator
        coordinator = self._coordinator or led
        hosted = [] if coordinator is None else coordinator.jobs.all
        return hosted[-1].watch.goodput if hosted else None

    async def _find(self) -> tuple[Connected, AgentEnd]:
        rendezvous = self._config.rendezvous
        if rendezvous.register is not None:
            return await self._find_by_register()
        host = partial(self._coordinator_of, self._hosting())
        found = await discover(rendezvous, self._config.access, host, self._say_status)
        # Nobody can take the place of a node that hosts a job of one node.
        has_fence = self._settings.max_nodes > 1 or found.coordinator is None
        timeout_s, dead = rendezvous.reconnect_timeout_s, self._setup.dead
        rules = SessionRules(timeout_s, has_fence=has_fence, dead=dead)
        return found, AgentEnd(fresh_identity(_given_id(rendezvous)), self._settings, rules)

    async def _find_by_register(self) -> tuple[Connected, AgentEnd]:
        from rallypoint.agent import leading
        from rallypoint.coordinator.leading.leader_process import local_leader
        from rallypoint.coordinator.leading.leader_search import LeaderSearch, OwnLeadership

        rendezvous = self._config.rendezvous
        assert rendezvous.register is not None
        secret = leading.secret_of(rendezvous.run_id, self._config.access)
        say, on_wait = self._agent.say, self._say_status
        register = await leading.register_of(rendezvous, secret, say, on_wait)
        identity, own = fresh_identity(_given_id(rendezvous)), OwnLeadership(rendezvous.lease_s)
        rules = SessionRules(
            rendezvous.reconnect_timeout_s,
            vouched_at=own.vouched_at,
            promises=own.promises,
            dead=self._setup.dead,
        )
        end = AgentEnd(identity, self._settings, rules)
        hosting = self._hosting(own, identity.incarnation)
        hosts = leading.Hosts(partial(self._coordinator_of, hosting), self._reconnect)
        local = local_leader(rendezvous.register.hold_s, secret_of=lambda run_id: secret)
        look = look_command(rendezvous, self._config.access)
        node = leading.LeadingNode(self._agent, end, rendezvous, secret, hosts, look)
        succession = self._search = LeaderSearch(register, local, own, node, rendezvous.run_id)
        await asyncio.sleep(node.first_claim_delay_s)
        connection = await succession.connect(rendezvous.join_timeout_s, self._say_status)
        return Connected(connection, succession.dial, secret, None), end

    def _reconnect(self, why: str) -> None:
        if isinstance(self._session, CoordinatorSession):
            self._session.reconnect(why)

    async def _open_by_handler(self) -> None:
        from rallypoint.elastic.rendezvous.plug_in.client import HandlerClient, HandlerRendezvous
        from rallypoint.elastic.rendezvous.plug_in.session import HandlerSession

        config, embedding = self._config, self._setup.embedding
        given = embedding.handler if embedding is not None else None
        await self._answer_health_checks(config.rendezvous.local_addr or "localhost")
        client = given or await HandlerClient.make(config.rendezvous)
        rendezvous = HandlerRendezvous(client, config.rendezvous, self._own_store)
        session = self._session = HandlerSession(
            rendezvous, config, self._settings, self._agent, self._store_access
        )
        self._agent.join(session, session.candidate, hosts=False)
        session.open()

    async def _answer_health_checks(self, host: str) -> None:
        if told := await self._setup.telemetry.open_health(host):
            self._agent.say(kinds.NOTICE(told))

    def last_words(self, hurried: asyncio.Event) -> Coroutine[None, None, None] | None:
        """The last that workers wrote, for who follows it; None: nobody does."""
        if self._answers is None or not self._answers.is_followed:
            return None
        return wait_unless(hurried, self._answers.finish(), LAST_WORDS_S)

    async def close(self, hurried: asyncio.Event, others_stop_s: float) -> None:
        """Leave the job. A host waits for the other nodes, which may take `others_stop_s` to stop
        their workers, unless another node may lead the job to its end. `hurried` ends every
        wait."""
        if self._search is not None:
            self._search.stop()
        if self._answers is not None:
            self._answers.close()
        if self._session is not None:
            await wait_unless(hurried, self._session.close(LAST_REPORTS_S), LAST_REPORTS_S)
        self._notes.over()
        coordinator = self._coordinator
        if self._search is not None:
            led = self._search.coordinator
            coordinator = led if led is not None and led.jobs.is_over else None
            if led is not None and coordinator is None:
                self._agent.say(kinds.DEPOSED(why="this node leaves, and another one may lead"))
        if coordinator is not None:
            # Each may take its grace, and one whose connection is broken comes back within its
            # lease, or is lost.
            limit_s = self._settings.lease_s + others_stop_s + LAST_REPORTS_S
            await self._wait_for_others(coordinator, hurried, limit_s)
        if self._search is not None:
            is_heard = coordinator is not None and not coordinator.jobs.nodes
            await wait_unless(hurried, self._search.close(is_heard=is_heard), LAST_REPORTS_S)
        elif coordinator is not None:
            coordinator.close()
        if self._store is not None:
            self._store.shutdown()

    async def _wait_for_others(
        self, coordinator: Coordinator, hurried: asyncio.Event, limit_s: float
    ) -> None:
        unnamed_s = min(UNNAMED_WAIT_S, limit_s)
        await wait_unless(hurried, coordinator.jobs.wait_empty(), unnamed_s)
        if (nodes := coordinator.jobs.nodes) and not hurried.is_set():
            left_s = limit_s - unnamed_s
            self._agent.say(kinds.OTHERS_LEAVING(nodes=names(tuple(nodes)), left_s=left_s))
            await wait_unless(hurried, coordinator.jobs.wait_empty(), left_s)

    def _own_store(self, host: str) -> RoundStore:
        listener = listen_on((Address(host, 0),), self._config.rendezvous.store.port)
        self._store = self._round_store(listener)
        return self._store

    def _round_store(self, listener: socket.socket | None) -> RoundStore:
        part_of = part_of_job(self._config.rendezvous)
        memory = usable_memory()
        return RoundStore(
            listener,
            fork=fork_process,
            part_of=part_of,
            max_bytes=None if memory is None else memory // 2,
        )

    def _hosting(self, led: OwnLeadership | None = None, own_agent: str = "") -> Hosting:
        telemetry = self._setup.telemetry
        history = telemetry.history or telemetry.keeping
        return Hosting(self._record, self._settings, led=led, own_agent=own_agent, history=history)

    def _coordinator_of(
        self,
        hosting: Hosting,
        listeners: Sequence[socket.socket],
        lookup_token: LookupToken | None,
    ) -> Coordinator:
        raise_open_files_limit()
        reserved = OWN_FILES + descriptors_for(self._config.workers.count)
        adopt = self._store.adopt if self._store is not None else None
        admission = AdmissionLimits(connection_room(reserved), HANDSHAKE_TIME_S)
        return Coordinator(listeners, hosting, lookup_token, adopt, admission)

    async def _candidate(self, found: Connected) -> Candidate:
        """What this node brings, and the listening socket of its round store."""
        rendezvous = self._config.rendezvous
        if rendezvous.static:
            address, port = rendezvous.endpoint.host, rendezvous.endpoint.port
        else:
            session_host = found.connection.local_host
            listener = await listen_for_peers(
                rendezvous.local_addr or "", session_host, rendezvous.store.port
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
            machine=machine_name(rendezvous.machine_id, address),
            # What does not start processes can't try to.
            proves=self._setup.helpers is not None,
        )

    def _make_session(self, found: Connected, end: AgentEnd) -> CoordinatorSession:
        incarnation = end.identity.incarnation
        on_held = self._lease.renewed if end.rules.has_fence else _ignore
        report = ProgressReport(self._config, self._setup.telemetry.dispatcher)

        def progress(generation: int) -> NodeProgress | None:
            return report.news(self._agent.stamp, generation)

        if found.coordinator is not None:
            found.coordinator.jobs.lives_in(incarnation)
            # No coordinator outlives this agent to get a death notice.
            on_attach = partial(self._hosted, found.token)
            hooks = Hooks(on_held, on_attach, progress=progress, collect=self._collect)
        else:
            on_attach = partial(self._attaching, found.token, end)
            hooks = Hooks(
                on_held,
                on_attach,
                partial(self._notes.placed, end),
                MemoryWatch().is_short,
                progress,
                report.rounds,
                self._collect,
            )
        return CoordinatorSession(end, found.dial, self._agent, hooks=hooks)

    def _collect(self, message: m.Collecting) -> None:
        if self._answers is None:
            from rallypoint.agent.answering import NodeAnswers

            assert isinstance(self._session, CoordinatorSession)
            agent, send = self._agent, self._session.send_collected
            faults = Faults(lambda text: agent.say(kinds.FAULT(text)))
            self._answers = NodeAnswers(agent.workers, self._setup.outputs, send, faults)
        self._answers.asked(message)

    def _hosted(self, token: bytes | None, connection: ClientConnection, generation: int) -> bytes:
        if self._answers is not None:
            self._answers.close()  # What was asked on the last connection is asked again.
        self._notes.connected(token, connection.peer)
        if (keeping := self._setup.telemetry.keeping) is not None:
            led = None if self._search is None else self._search.coordinator
            is_host = self._coordinator is not None or led is not None
            keeping.attached(str(connection.peer), is_host=is_host)
        return b""

    def _attaching(
        self, token: bytes | None, end: AgentEnd, connection: ClientConnection, generation: int
    ) -> bytes:
        self._hosted(token, connection, generation)
        led = None if self._search is None else self._search.epoch
        return self._notes.attaching(token, end, led, connection.peer, generation)

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
        """Report what this node waits for, once for as long as that is the same."""
        if text != self._status:
            self._status = text
            self._agent.say(kinds.MEETING(text))


def part_of_job(rendezvous: RendezvousConfig) -> str:
    """How the titles of this agent's helpers end; see `core.text`."""
    return part_of(rendezvous.run_id, _given_id(rendezvous))


def _given_id(rendezvous: RendezvousConfig) -> str:
    """Empty: the coordinator chooses it."""
    if rendezvous.node_id or not rendezvous.static:
        return rendezvous.node_id or ""
    return id_of_rank(rendezvous.node_rank or 0)


def _ignore(_until: float) -> None:
    """No lease ends here."""


def look_command(rendezvous: RendezvousConfig, access: AccessConfig) -> str:
    """Return the command that a person types on any machine to look at this job:
    `rallypoint status n1:29400 --job digits`."""
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
