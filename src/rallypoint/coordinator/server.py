"""The coordinator: the single writer of which nodes take part, on sockets that are bound already.

It accepts connections, has their peers prove that they know the job's token, and gives their
messages to the job that they belong to.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from socket import socket
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.coordinator.acceptor import Acceptor, CloseReason, ConnectionLog, Traffic
from rallypoint.coordinator.connection import ServerConnection
from rallypoint.coordinator.hosted_job import HostedJob
from rallypoint.coordinator.hosting import Hosting
from rallypoint.coordinator.jobs import HostedJobs
from rallypoint.coordinator.listen import OWN_FILES, connection_room
from rallypoint.core import messages as m
from rallypoint.core.admission import AdmissionLimits
from rallypoint.errors import MessageError
from rallypoint.observe.faults import describe_fault
from rallypoint.store.accept_loop import Connector
from rallypoint.wire.handshake import NONCE_BYTES, SERVER_ID_BYTES, Established, ServerHandshake

if TYPE_CHECKING:  # Most coordinators have no registers.
    from rallypoint.coordinator.leading.leadership import Leadership

HANDSHAKE_TIME_S = 10.0
"""The time in seconds after which a connection is closed if its peer has not proved that it belongs
to a job."""

LookupToken = Callable[[str], bytes | None]


class _AttachedCandidate:
    """The connection of a candidate (`rallypoint serve --candidate`) for a job that is led here."""

    def __init__(self, connection: ServerConnection, leadership: Leadership, number: int) -> None:
        """Keep the connection of a candidate.

        `number`: the candidate's number in its first heartbeat on this connection. Heartbeats with
        another number close the connection.
        """
        # Most coordinators have no candidates.
        from rallypoint.core.takeover.speakers import candidate

        self._connection, self._leadership = connection, leadership
        self._speaker = candidate(connection.number, number)

    def heard(self, heartbeat: m.Heartbeat) -> None:
        """Handle a heartbeat of the candidate, which promises not to claim the job for a time.

        Acknowledge it if this process is sure that it leads, and others may lead the job as well.
        Close the connection if the heartbeat has no promise, or that of another candidate.
        """
        promise = heartbeat.promise
        if promise is None or not self._speaker.promises(promise):
            self._connection.close()
        elif self._leadership.candidate_heard(heartbeat, self._speaker):
            self._connection.send(m.Ack(heartbeat.number))


class Volume(Struct):
    """The numbers of bytes received and sent up to now on the coordinator's connections.

    Connections given to the round store do not count.
    """

    received: int = 0
    sent: int = 0


class _Counted(ServerConnection):
    """A connection that adds its bytes to the `Volume` of its coordinator."""

    def __init__(self, coordinator: Coordinator, number: int, peer: str) -> None:
        super().__init__(coordinator, number, peer)
        self._volume = coordinator.volume

    def data_received(self, data: bytes) -> None:
        self._volume.received += len(data)
        super().data_received(data)

    def _write(self, data: bytes) -> None:
        self._volume.sent += len(data)
        super()._write(data)


class Coordinator:
    """The coordinator of one or many jobs, which accepts connections from construction to `close`.

    For the thread of the loop.
    """

    def __init__(
        self,
        listeners: Sequence[socket],
        hosting: Hosting,
        lookup_token: LookupToken | None,
        adopt: Callable[[socket], None] | None = None,
        admission: AdmissionLimits | None = None,
    ) -> None:
        """`lookup_token` returns the token of a run id, or None if it has none.

        Without it (`--insecure`) no peer proves anything. `adopt` gets connections for the round
        store, where that shares the port. `admission` limits the connections; None: as many as
        the limit of open files leaves room for.
        """
        self._listeners = list(listeners)
        self._lookup_token = lookup_token
        self._connector = Connector(asyncio.get_running_loop())
        self.server_id = os.urandom(SERVER_ID_BYTES)
        """The unique id of this coordinator: a node that receives it has reached this one."""
        self.volume = Volume()
        self.jobs, self._led = HostedJobs(hosting), hosting.led
        self._log = ConnectionLog(partial(hosting.on_record, ""))
        admission = admission or AdmissionLimits(connection_room(OWN_FILES), HANDSHAKE_TIME_S)
        self._acceptor = Acceptor(self._listeners, admission, self._take, adopt, self._log)

    def close(self) -> None:
        """Stop listening, and close all jobs and connections. Safe to call twice."""
        self._acceptor.close()
        for listener in self._listeners:
            listener.close()
        self.jobs.close()
        self._log.close()

    @property
    def traffic(self) -> Traffic:
        """The numbers of its connections: accepted and refused up to now, and open now."""
        return self._acceptor.traffic

    async def vacate(self) -> None:
        """Give up the jobs that it leads by registers, before `close`.

        So another coordinator may take over at once. Without registers it does nothing.
        """
        if self._led is not None:
            await self._led.vacate()

    def _take(self, accepted: socket, number: int, peer: str) -> None:
        connection = _Counted(self, number, peer)
        self._acceptor.may_drop(number, connection.abort)
        gone = partial(self.closed, connection)
        self._connector.connect(accepted, lambda: connection, gone)

    # What a connection reports

    def new_handshake(self) -> ServerHandshake:
        lookup_token = self._lookup_token
        nonce, insecure = os.urandom(NONCE_BYTES), lookup_token is None
        return ServerHandshake(self.server_id, lookup_token or _no_token, nonce, insecure)

    def established(self, connection: ServerConnection, established: Established) -> None:
        connection.owner = established.run_id

    def received(self, connection: ServerConnection, message: m.ToCoordinator) -> None:
        owner = connection.owner
        if isinstance(message, m.Numbered | m.Heartbeat):
            if isinstance(owner, HostedJob):
                owner.received(connection, message)
            elif isinstance(message, m.Heartbeat):
                self._heartbeat(connection, message)
        elif isinstance(owner, str):
            connection.admit()
            self._acceptor.proved(connection.number)
            match message:
                case m.Attach():
                    self.jobs.attach(connection, owner, message)
                case m.DrainNode():
                    connection.reads_drain_answers = True
                    self.jobs.asked(connection, owner, message.question)
                case m.Ask():
                    self.jobs.asked(connection, owner, message)
                case m.AgentDied():
                    self.jobs.agent_died(connection, owner, message)
        elif isinstance(owner, HostedJob) and isinstance(message, m.Ask):
            owner.asked(connection, message)
        elif isinstance(owner, HostedJob) and isinstance(message, m.Collected):
            owner.collected(connection, message)

    def _heartbeat(self, connection: ServerConnection, heartbeat: m.Heartbeat) -> None:
        """Handle a heartbeat of a candidate, or of an agent that has not attached."""
        owner, promise = connection.owner, heartbeat.promise
        if isinstance(owner, str) and promise is not None and promise.candidate:
            self._acceptor.proved(connection.number)
            if self._led is None or (leadership := self._led.of(owner)) is None:
                connection.close()  # It looks for the leader in the directory again.
                return
            owner = _AttachedCandidate(connection, leadership, promise.candidate)
            connection.owner = owner
        if isinstance(owner, _AttachedCandidate):
            owner.heard(heartbeat)
        else:
            self.jobs.heartbeat(connection, heartbeat)

    def closed(self, connection: ServerConnection) -> None:
        self._acceptor.gone(connection.number)
        if isinstance(connection.owner, HostedJob):
            connection.owner.connection_closed(connection)

    def failed(self, connection: ServerConnection, error: Exception) -> None:
        if (job := _job_on(connection)) is not None:
            job.failed(connection, error)
            return
        self._log.faults.note(f"a message of {connection.peer} can't be handled", error)
        # A node that came back at once would say the same again.
        text = f"a message of this node can't be handled: {describe_fault(error)}"
        connection.send(m.Refused(text, is_fault=True))

    def misspoken(self, connection: ServerConnection, error: MessageError) -> None:
        text = f"a message of this node is not valid: {error}"
        if (job := _job_on(connection)) is not None:
            job.turn_away(connection, text)
        else:
            self.refused(connection, text)
            connection.send(m.Refused(text))

    def refused(self, connection: ServerConnection, why: str) -> None:
        if _job_on(connection) is not None:
            self._log.broken(connection.peer, why)
        else:
            self._log.refused(connection.peer, CloseReason.UNPROVEN, why)


def _no_token(run_id: str) -> bytes | None:
    return None


def _job_on(connection: ServerConnection) -> HostedJob | None:
    """Return the job whose session uses this connection; None: there is none."""
    job = connection.owner
    return job if isinstance(job, HostedJob) and job.carries(connection) else None
