"""The coordinator: the single writer of who takes part, on sockets that are bound already.

Embedded in an agent it serves that agent's job only; alone (`rallypoint serve`) it serves every
job that comes, each in its own name space.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from socket import socket

from msgspec.structs import replace

from rallypoint.coordinator.acceptor import Acceptor, Kind, Refusals
from rallypoint.coordinator.clocks import wall_ms
from rallypoint.coordinator.connection import Connection
from rallypoint.coordinator.ended_jobs import EndedJobs
from rallypoint.coordinator.hosted_job import HostedJob, refuse
from rallypoint.coordinator.listen import OWN_FILES, connection_room
from rallypoint.core import claims
from rallypoint.core import event_kinds as kinds
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.admission import Admission
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_lives import (
    AHEAD_MAX_MS,
    Attachment,
    BeginLife,
    Decision,
    HearVerdict,
    JobLives,
    TakePart,
)
from rallypoint.core.model import UNNAMED_RUN_ID, SharedSettings, Verdict
from rallypoint.core.sessions import Machine
from rallypoint.core.text import quoted_job
from rallypoint.errors import MessageError
from rallypoint.observe.faults import Faults, describe_fault
from rallypoint.wire.handshake import NONCE_BYTES, SERVER_ID_BYTES, Established, ServerHandshake

HANDSHAKE_TIME_S = 10.0
"""A connection that has not attached by then is closed."""
JOBS_MAX = 4096
"""So many jobs a stand-alone coordinator holds. Those that everybody has left make room."""
SPARE_SESSIONS = 1000
"""So many more than twice its nodes a job may have: who stands by, and who has not been found lost.
"""
VERDICT_RETENTION_S = 600.0
"""How long a stand-alone coordinator remembers how a job ended, or one that everybody left."""

OnRecord = Callable[[str, Record], None]
"""Called with the run id and what happened."""
LookupToken = Callable[[str], bytes | None]


class Coordinator:
    """For the thread of the loop. `start` before use, `close` at the end."""

    def __init__(
        self,
        listeners: Sequence[socket],
        *,
        lookup_token: LookupToken,
        insecure: bool,
        only: SharedSettings | None,
        on_record: OnRecord,
        adopt: Callable[[socket], None] | None = None,
        handshake_time_s: float = HANDSHAKE_TIME_S,
        reserved_files: int = OWN_FILES,
        verdict_retention_s: float = VERDICT_RETENTION_S,
        machine: Machine = jobs.step,
    ) -> None:
        """`only`: the settings of the one job to serve; None: any job. `adopt` gets connections
        for the round store, where that shares the port. `reserved_files`: descriptors that no
        connection may use. `machine` decides for every job."""
        self._loop = asyncio.get_running_loop()
        self._listeners = list(listeners)
        self._lookup_token, self._insecure = lookup_token, insecure
        self._only = only
        self._on_record, self._machine = on_record, machine
        self._faults = Faults(lambda text: on_record("", kinds.FAULT(text)))
        self._adopt = adopt
        self._handshake_time_s, self._verdict_retention_s = handshake_time_s, verdict_retention_s
        self._reserved_files = reserved_files
        self._acceptor: Acceptor | None = None
        self._refusals = Refusals(self._say)
        self._making: set[asyncio.Task[None]] = set()
        self._epoch = int.from_bytes(os.urandom(6), "big")
        self._jobs: dict[str, HostedJob] = {}
        self._ended = EndedJobs()
        self._lives = JobLives(self._epoch)
        self._forgetting: dict[str, asyncio.TimerHandle] = {}
        """The jobs that everybody has left, by run id, the longest ago first."""
        self._empty: asyncio.Future[None] | None = None
        self.server_id = os.urandom(SERVER_ID_BYTES)
        """Tells this coordinator from every other; whoever meets it has dialled this one."""
        if only is not None:
            self._begin(only, self._lives.first(wall_ms()))

    async def start(self) -> None:
        """Accept connections."""
        self._acceptor = Acceptor(
            self._listeners,
            Admission(connection_room(self._reserved_files), self._handshake_time_s),
            self._refusals,
            self._take,
            self._adopt,
            lambda line: self._on_record("", kinds.OPEN_FILES(line)),
            self._faults,
        )

    def _take(self, accepted: socket, number: int, peer: str) -> None:
        assert self._acceptor is not None
        connection = Connection(self, number, peer)
        self._acceptor.may_drop(number, connection.abort)
        task = self._loop.create_task(self._make(accepted, connection))
        self._making.add(task)
        task.add_done_callback(self._making.discard)

    async def _make(self, accepted: socket, connection: Connection) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError:  # gone already
            accepted.close()
            self.closed(connection)

    @property
    def nodes(self) -> list[str]:
        """The ids of the others that have neither said farewell nor are lost."""
        hosted = (*self._jobs.values(), *self._ended)
        refs = [(job, session.ref) for job in hosted for session in job.sessions]
        return [ref.node_id for job, ref in refs if ref.incarnation != job.own_agent]

    def lives_in(self, incarnation: str) -> None:
        """Of which agent this process is: it alone takes the coordinator with it when it leaves."""
        for job in self._jobs.values():
            job.lives_in(incarnation)

    async def wait_empty(self) -> None:
        """Until every other agent has said farewell or is lost."""
        if self.nodes:
            self._empty = self._loop.create_future()
            await self._empty

    def close(self) -> None:
        """Stop listening and drop everything. Safe to call twice."""
        if self._acceptor is not None:
            self._acceptor.close()
        for listener in self._listeners:
            listener.close()
        for job in self._jobs.values():
            job.close()
        self._ended.close()
        for run_id in list(self._forgetting):
            self._keep(run_id)
        self._jobs.clear()
        self._refusals.tell_more()
        self._faults.tell_counts()

    def new_handshake(self) -> ServerHandshake:
        nonce = os.urandom(NONCE_BYTES)
        return ServerHandshake(self.server_id, self._lookup_token, nonce, self._insecure)

    def established(self, connection: Connection, established: Established) -> None:
        connection.owner = established.run_id

    def received(self, connection: Connection, message: m.ToCoordinator) -> None:
        owner = connection.owner
        match message:
            case m.Attach():
                if isinstance(owner, str):
                    self._attach(connection, owner, message)
            case m.DrainNode(node_id, why):
                if isinstance(owner, str):
                    self._drain(connection, owner, node_id, why)
            case m.AgentDied():
                if isinstance(owner, str):
                    self._agent_died(connection, owner, message)
            case m.Numbered() | m.Heartbeat():
                if isinstance(owner, HostedJob):
                    owner.received(connection, message)

    def closed(self, connection: Connection) -> None:
        if self._acceptor is not None:
            self._acceptor.gone(connection.number)
        if isinstance(connection.owner, HostedJob):
            connection.owner.connection_closed(connection)

    def failed(self, connection: Connection, error: Exception) -> None:
        if (job := _job_on(connection)) is not None:
            job.failed(connection, error)
            return
        self._faults.note(f"{connection.peer} said what can't be handled", error)
        # A node that came back at once would say the same again.
        text = f"what this node said can't be handled: {describe_fault(error)}"
        connection.send(m.Refused(text, is_fault=True))

    def misspoken(self, connection: Connection, error: MessageError) -> None:
        text = f"a message of this node is not valid: {error}"
        if (job := _job_on(connection)) is not None:
            job.turn_away(connection, text)
        else:
            self.refused(connection, text)
            connection.send(m.Refused(text))

    def refused(self, connection: Connection, why: str) -> None:
        if _job_on(connection) is not None:
            self._say(f"closed the connection from {connection.peer}: {why}")
        else:
            self._refusals.note(connection.peer, Kind.UNPROVEN, why)

    def _say(self, line: str) -> None:
        self._on_record("", kinds.CONNECTION_CLOSED(line))

    def _proved(self, connection: Connection) -> None:
        connection.admit()
        if self._acceptor is not None:
            self._acceptor.proved(connection.number)

    def _attach(self, connection: Connection, run_id: str, hello: m.Attach) -> None:
        self._proved(connection)
        if hello.settings.run_id != run_id:
            raise MessageError(f"a node of job {run_id!r} attached to {hello.settings.run_id!r}")
        text = (
            self._refusal(run_id) or claims.settings_refused(hello.settings) or self._no_room(hello)
        )
        if text is None:
            job = self._job_of(hello)
            text = _crowd(job, hello.incarnation)
            if text is None:
                connection.owner = job
                job.attach(connection, hello)
                return
        refuse(connection, text, lambda record: self._on_record(run_id, record))

    def _drain(self, connection: Connection, run_id: str, node_id: str, why: str) -> None:
        self._proved(connection)
        if (job := self._jobs.get(run_id)) is not None:
            connection.owner = job
            job.drain(connection, node_id, why)
            return
        text = f"this coordinator does not host {quoted_job(run_id)}: check --rdzv-id"
        if self._only is not None:
            other = self._only.run_id
            text = f"this coordinator hosts {quoted_job(other)}: {_give_id(other)}"
        connection.send(m.DrainAnswer(text, done=True, found=False))
        connection.close()

    def _agent_died(self, connection: Connection, run_id: str, notice: m.AgentDied) -> None:
        self._proved(connection)
        for job in (*self._ended, *self._jobs.values()):
            if job.settings.run_id == run_id and job.knows(notice.incarnation):
                job.agent_died(connection, notice)
        connection.close()

    def _refusal(self, run_id: str) -> str | None:
        """Why a job of this name can't meet here."""
        if self._only is not None:
            other = self._only.run_id
            if run_id == other:
                return None
            return (
                f"this port is used by {quoted_job(other)}, not {quoted_job(run_id)}: "
                f"{_give_id(other)} to take part in it, or choose another port"
            )
        if run_id != UNNAMED_RUN_ID:
            return None
        return (
            "this coordinator (rallypoint serve) serves many jobs, which it tells apart by their "
            "run ids: give every node of this job the same --rdzv-id, like --rdzv-id my-job-1"
        )

    def _no_room(self, hello: m.Attach) -> str | None:
        """Why no other life of a job can be hosted, should this agent need one."""
        run_id = hello.settings.run_id
        job = self._jobs.get(run_id)
        if job is not None and (job.verdict is None or job.knows(hello.incarnation)):
            return None
        if len(self._jobs) + len(self._ended) < JOBS_MAX:
            return None
        deserted = (one for one in self._forgetting if not self._jobs[one].sessions)
        if (oldest := next(deserted, None)) is not None:
            self._forget(oldest)
            return None
        return f"this coordinator hosts {JOBS_MAX} jobs already: start another one for {run_id!r}"

    def _job_of(self, hello: m.Attach) -> HostedJob:
        """Where this agent belongs, as `core.job_lives` says."""
        run_id, job = hello.settings.run_id, self._jobs.get(hello.settings.run_id)
        if job is not None and job.knows(hello.incarnation):
            return job
        if (ended := self._ended.of_agent(run_id, hello.incarnation)) is not None:
            return ended
        known = None
        if hello.last_incarnation or hello.last_epoch:
            told = min(hello.last_incarnation, wall_ms() + AHEAD_MAX_MS)
            known = Attachment(told, hello.last_epoch)
        now, life = self._loop.time(), job.life if job is not None else None
        if job is not None and not job.sessions and job.verdict is None:
            differ = bool(job.settings.differences(hello.settings))
            life = replace(job.life, is_abandoned=differ)
        if self._only is not None and life is not None:
            place: Decision = self._lives.renumber(run_id, known, life, now)
        else:
            place = self._lives.place(run_id, known, life, now, wall_ms())
        match place:
            case TakePart(incarnation):
                assert job is not None
                job.renumber(incarnation)
                return job
            case BeginLife(incarnation):
                if job is not None:
                    self._end(job)
                return self._begin(hello.settings, incarnation)
            case HearVerdict(incarnation, verdict):
                return self._tell_end(hello.settings, incarnation, verdict)

    def _begin(self, settings: SharedSettings, incarnation: int) -> HostedJob:
        job = self._jobs[settings.run_id] = self._new_job(settings, incarnation, None)
        return job

    def _tell_end(self, settings: SharedSettings, incarnation: int, verdict: Verdict) -> HostedJob:
        job = self._ended.find(settings, incarnation)
        if job is None:
            job = self._new_job(settings, incarnation, verdict)
            self._ended.hold(job)
        return job

    def _new_job(
        self, settings: SharedSettings, incarnation: int, verdict: Verdict | None
    ) -> HostedJob:
        run_id = settings.run_id

        def on_record(record: Record) -> None:
            self._on_record(run_id, record)

        def on_empty() -> None:
            self._emptied(job)

        epoch, machine = self._epoch, self._machine
        job = HostedJob(settings, incarnation, epoch, on_record, on_empty, verdict, machine)
        return job

    def _end(self, job: HostedJob) -> None:
        """It is no longer the one that fresh agents meet."""
        self._lives.over(job.settings.run_id, job.life, self._loop.time())
        self._keep(job.settings.run_id)
        del self._jobs[job.settings.run_id]
        if job.sessions:
            self._ended.hold(job)
        else:
            job.close()

    def _emptied(self, job: HostedJob) -> None:
        """The last session of a job is gone: tell who waits for it, and forget the job later."""
        if job.sessions:
            return
        if self._empty is not None and not self._empty.done():
            self._empty.set_result(None)
        run_id = job.settings.run_id
        if not self._ended.empty(job) and self._only is None and self._jobs.get(run_id) is job:
            self._keep(run_id)
            timer = self._loop.call_later(self._verdict_retention_s, self._forget, run_id)
            self._forgetting[run_id] = timer

    def _forget(self, run_id: str) -> None:
        if not self._jobs[run_id].sessions:
            self._end(self._jobs[run_id])

    def _keep(self, run_id: str) -> None:
        """It is not about to be forgotten."""
        if (timer := self._forgetting.pop(run_id, None)) is not None:
            timer.cancel()


def _give_id(run_id: str) -> str:
    return "leave --rdzv-id out" if run_id == UNNAMED_RUN_ID else f"give --rdzv-id {run_id}"


def _job_on(connection: Connection) -> HostedJob | None:
    """The job of which a session uses this connection."""
    job = connection.owner
    return job if isinstance(job, HostedJob) and job.carries(connection) else None


def _crowd(job: HostedJob, incarnation: str) -> str | None:
    """Why a job takes no further agent."""
    nodes = job.settings.max_nodes
    if len(job.sessions) < 2 * nodes + SPARE_SESSIONS or job.knows(incarnation):
        return None
    return (
        f"{quoted_job(job.settings.run_id)} has {len(job.sessions)} agents already, of which "
        f"at most {nodes} can take part (--nnodes): look for what starts agents again and again"
    )
