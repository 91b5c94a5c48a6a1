"""The coordinator: the single writer of who takes part, on sockets that are bound already.

Embedded in an agent it serves that agent's job only; alone (`rallypoint serve`) it serves every
job that comes, each in its own name space.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from socket import socket

from rallypoint.coordinator.connection import Connection
from rallypoint.coordinator.drain_desk import no_job
from rallypoint.coordinator.hosted_job import HostedJob, Session
from rallypoint.coordinator.listen import listen_backlog
from rallypoint.coordinator.shared_port import SharedPort
from rallypoint.core.job_events import Record
from rallypoint.core.model import UNNAMED_RUN_ID, Outcome, SharedSettings
from rallypoint.errors import ProtocolError
from rallypoint.wire import messages as m
from rallypoint.wire.handshake import NONCE_BYTES, SERVER_ID_BYTES, Established, ServerHandshake

HANDSHAKE_TIME_S = 10.0
"""A connection that has not attached by then is closed."""
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
        verdict_retention_s: float = VERDICT_RETENTION_S,
    ) -> None:
        """`only`: the settings of the one job to serve; None: any job. `adopt` gets connections
        for the round store, where that shares the port."""
        self._loop = asyncio.get_running_loop()
        self._listeners = list(listeners)
        self._lookup_token, self._insecure = lookup_token, insecure
        self._only = only
        self._on_record = on_record
        self._adopt = adopt
        self._handshake_time_s, self._verdict_retention_s = handshake_time_s, verdict_retention_s
        self._shared: list[SharedPort] = []
        self._epoch = int.from_bytes(os.urandom(6), "big")
        self._jobs: dict[str, HostedJob] = {}
        self._ended: list[HostedJob] = []
        """Jobs that were started anew while somebody had yet to hear how they had ended."""
        self._incarnations: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []
        self._opening: OrderedDict[Connection, None] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None
        self.server_id = os.urandom(SERVER_ID_BYTES)
        """Tells this coordinator from every other; whoever meets it has dialled this one."""
        if only is not None:
            self._new_job(only)

    async def start(self) -> None:
        """Accept connections."""
        backlog = listen_backlog()
        if self._adopt is not None:
            self._shared = [SharedPort(x, self.accept, self._adopt) for x in self._listeners]
            return
        for listener in self._listeners:
            server = await self._loop.create_server(
                lambda: Connection(self), sock=listener, backlog=backlog
            )
            self._servers.append(server)

    def accept(self, connection: socket) -> None:
        """Take over a connection that somebody else accepted (a shared port)."""
        task = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: Connection(self), connection)
        )
        task.add_done_callback(lambda done: done.exception())

    async def wait_empty(self) -> None:
        """Until every session has said farewell or is lost."""
        if any(job.session_count for job in (*self._jobs.values(), *self._ended)):
            self._empty = self._loop.create_future()
            await self._empty

    def close(self) -> None:
        """Stop listening and drop everything. Safe to call twice."""
        for port in self._shared:
            port.close()
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            listener.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._opening):
            connection.close()
        for job in (*self._jobs.values(), *self._ended):
            job.close()
        self._jobs.clear()
        self._ended.clear()

    def new_handshake(self) -> ServerHandshake:
        nonce = os.urandom(NONCE_BYTES)
        return ServerHandshake(self.server_id, self._lookup_token, nonce, self._insecure)

    def opened(self, connection: Connection) -> None:
        connection.opened_at = self._loop.time()
        self._opening[connection] = None
        self._arm_sweep()

    def established(self, connection: Connection, established: Established) -> None:
        connection.session = established.run_id

    def received(self, connection: Connection, message: m.ToCoordinator) -> None:
        session = connection.session
        match message:
            case m.Attach():
                if isinstance(session, str):
                    self._attach(connection, session, message)
            case m.DrainNode(node_id, why):
                if isinstance(session, str):
                    self._drain(connection, session, node_id, why)
            case m.Numbered() | m.Heartbeat():
                # Frames of a connection that has been replaced belong to nobody.
                if isinstance(session, Session):
                    session.job.received(connection, session, message)

    def closed(self, connection: Connection) -> None:
        self._opening.pop(connection, None)
        session = connection.session
        if isinstance(session, Session):
            session.job.connection_closed(session, connection)

    def say(self, line: str) -> None:
        self._on_record("", Record("connection_closed", line))

    def _attach(self, connection: Connection, run_id: str, hello: m.Attach) -> None:
        self._opening.pop(connection, None)
        if hello.settings.run_id != run_id:
            raise ProtocolError(f"a node of job {run_id!r} attached to {hello.settings.run_id!r}")
        text = self._refusal(run_id)
        if text is not None:
            self._on_record(
                run_id, Record("node_refused", f"refused {connection.peer}, told it: {text}")
            )
            connection.send(m.Refused(text))
            connection.close()
            return
        self._job_of(hello).attach(connection, hello)

    def _drain(self, connection: Connection, run_id: str, node_id: str, why: str) -> None:
        self._opening.pop(connection, None)
        if (job := self._jobs.get(run_id)) is not None:
            job.drain(connection, node_id, why)
            return
        text = f"there is no job {run_id!r} at this coordinator: check --rdzv-id"
        if self._only is not None:
            text = f"the job here is {self._only.run_id!r}: give it as --rdzv-id"
        no_job(connection, text)

    def _refusal(self, run_id: str) -> str | None:
        """Why a job of this name can't meet here."""
        if self._only is not None:
            other = self._only.run_id
            if run_id == other:
                return None
            return (
                f"this port is used by job {other!r}, not {run_id!r}: "
                f"give --rdzv-id {other} to take part in it, or choose another port"
            )
        if run_id != UNNAMED_RUN_ID:
            return None
        return (
            "this coordinator (rallypoint serve) serves many jobs, which it tells apart by their "
            "run ids: give every node of this job the same --rdzv-id, like --rdzv-id my-job-1"
        )

    def _job_of(self, hello: m.Attach) -> HostedJob:
        """Who took part in a job gets its verdict; after a failure others begin it again."""
        run_id = hello.settings.run_id
        for ended in self._ended:
            if ended.settings.run_id == run_id and ended.knows(hello.incarnation):
                return ended
        job = self._jobs.get(run_id)
        if job is None:
            return self._new_job(hello.settings)
        failed = job.verdict is not None and job.verdict.outcome is not Outcome.SUCCEEDED
        if self._only is not None or not failed or job.knows(hello.incarnation):
            return job
        if job.session_count:
            self._ended.append(job)
        else:
            job.close()
        return self._new_job(hello.settings)

    def _new_job(self, settings: SharedSettings) -> HostedJob:
        run_id = settings.run_id
        incarnation = self._incarnations.get(run_id, 0) + 1
        self._incarnations[run_id] = incarnation

        def on_record(record: Record) -> None:
            self._on_record(run_id, record)

        job = HostedJob(settings, incarnation, self._epoch, on_record, lambda: self._emptied(job))
        self._jobs[run_id] = job
        return job

    def _emptied(self, job: HostedJob) -> None:
        """The last session of a job is gone: tell who waits for it, and forget the job later."""
        if job.session_count:
            return
        if self._empty is not None and not self._empty.done():
            self._empty.set_result(None)
        if job in self._ended:
            self._ended.remove(job)
            job.close()
        elif self._only is None:
            self._loop.call_later(self._verdict_retention_s, self._forget, job)

    def _forget(self, job: HostedJob) -> None:
        run_id = job.settings.run_id
        if not job.session_count and self._jobs.get(run_id) is job:
            job.close()
            del self._jobs[run_id]

    def _arm_sweep(self) -> None:
        if self._sweep is None and self._opening:
            oldest = next(iter(self._opening))
            due_at = oldest.opened_at + self._handshake_time_s
            self._sweep = self._loop.call_at(due_at, self._sweep_now)

    def _sweep_now(self) -> None:
        self._sweep = None
        limit = self._loop.time() - self._handshake_time_s
        for connection in list(self._opening):
            if connection.opened_at > limit:
                break
            self.say(f"closed the connection from {connection.peer}: it did not introduce itself")
            self._opening.pop(connection, None)
            connection.close()
        self._arm_sweep()
