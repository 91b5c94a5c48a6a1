"""A coordinator and bare clients in one loop: handshake, frames and messages, no agent behind."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import TypeVar

from msgspec.structs import replace
from tests.harness.limits import patience

from rallypoint.coordinator.connection import ClientConnection
from rallypoint.coordinator.hosting import Hosting
from rallypoint.coordinator.listen import OWN_FILES, connection_room
from rallypoint.coordinator.server import Coordinator
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.admission import AdmissionLimits
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Candidate, SharedSettings
from rallypoint.core.sessions import JobStep

TOKEN = bytes(range(32))
LIMIT_S = 60.0
CANDIDATE = Candidate(1, "default", "127.0.0.1", 29500)

_M = TypeVar("_M", bound=m.ToAgent)


class Wire(ClientConnection):
    """Counts what it receives."""

    received_bytes = 0

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        super().data_received(data)


class Client:
    """One connection of one agent; `heard` has everything that the coordinator said on it."""

    def __init__(self, wire: Wire, incarnation: str, settings: SharedSettings) -> None:
        self.wire, self.incarnation, self.settings = wire, incarnation, settings
        self.heard: list[m.ToAgent] = []
        self._news = asyncio.Event()
        wire.listen(self._hear)

    def _hear(self, message: m.ToAgent) -> None:
        self.heard.append(message)
        self._news.set()

    def attach(
        self,
        *,
        node_id: str = "",
        generation: int = 1,
        opened: int = 0,
        former_id: str = "",
        settings: SharedSettings | None = None,
        last: m.Attached | None = None,
        death_commitment: bytes = b"",
    ) -> None:
        rules = settings or self.settings
        hello = m.Attach(node_id, "host", self.incarnation, generation, rules, opened, former_id)
        if last is not None:
            hello = replace(hello, last_incarnation=last.incarnation, last_epoch=last.epoch)
        self.wire.send(replace(hello, death_commitment=death_commitment))

    def report(self, number: int, report: m.Report) -> None:
        self.wire.send(m.Numbered(number, report))

    def join(self, number: int = 1, seq: int = 1) -> None:
        self.report(number, m.Join(seq, CANDIDATE))

    def all(self, kind: type[_M]) -> list[_M]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def wait(self, kind: type[_M], count: int = 1) -> _M:
        """The newest message of this kind, once there are so many."""
        async with asyncio.timeout(patience(LIMIT_S)):
            while len(found := self.all(kind)) < count:
                self._news.clear()
                await self._news.wait()
        return found[-1]

    async def wait_closed(self) -> None:
        async with asyncio.timeout(patience(LIMIT_S)):
            await asyncio.shield(self.wire.lost)

    async def round_trip(self) -> None:
        """Everything that was sent before has been handled."""
        count = len(self.all(m.HeartbeatAck)) + 1
        self.wire.send(m.Heartbeat(count))
        await self.wait(m.HeartbeatAck, count)


class Rally:
    """A coordinator on loopback, and those who dial it."""

    def __init__(self, coordinator: Coordinator, port: int, records: list[tuple[str, Record]]):
        self.coordinator, self.port, self.records = coordinator, port, records
        self.clients: list[Client] = []

    async def dial(self, settings: SharedSettings, incarnation: str) -> Client:
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(
            lambda: Wire(settings.run_id, TOKEN), "127.0.0.1", self.port
        )
        await wire.established
        client = Client(wire, incarnation, settings)
        self.clients.append(client)
        return client

    async def attached(
        self,
        settings: SharedSettings,
        incarnation: str,
        *,
        node_id: str = "",
        generation: int = 1,
        opened: int = 0,
        former_id: str = "",
        last: m.Attached | None = None,
    ) -> Client:
        client = await self.dial(settings, incarnation)
        client.attach(
            node_id=node_id,
            generation=generation,
            opened=opened,
            former_id=former_id,
            last=last,
        )
        await client.wait(m.Attached)
        return client

    async def wait_record(self, text: str) -> Record:
        async with asyncio.timeout(patience(LIMIT_S)):
            while True:
                for _, record in self.records:
                    if text in record.text:
                        return record
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def rally(
    only: SharedSettings | None = None,
    *,
    handshake_time_s: float = 60.0,
    send_buffer: int = 0,
    machine: JobStep = jobs.step,
) -> AsyncIterator[Rally]:
    """Everything is closed at the end, and nothing may be left in the loop."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    records: list[tuple[str, Record]] = []
    hosting = Hosting(lambda run_id, record: records.append((run_id, record)), only, machine)
    admission = AdmissionLimits(connection_room(OWN_FILES), handshake_time_s)
    coordinator = Coordinator([listener], hosting, lambda run_id: TOKEN, admission=admission)
    place = Rally(coordinator, listener.getsockname()[1], records)
    try:
        yield place
    finally:
        coordinator.close()
        for client in place.clients:
            client.wire.abort()
        for client in place.clients:
            await client.wait_closed()
        await asyncio.sleep(0.01)
