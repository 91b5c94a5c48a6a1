"""Who calls is told from the first bytes, however they come; a store's are left where they are."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from tests.harness.limits import patience, until

from rallypoint.coordinator.acceptor import Acceptor, ConnectionLog
from rallypoint.core.admission import AdmissionLimits
from rallypoint.core.event_kinds import Record
from rallypoint.wire.handshake import ClientHandshake
from rallypoint.wire.preamble import STORE_MAGIC

HELLO = ClientHandshake("job", None, bytes(32)).hello()
LIMIT_S = patience(30.0)


class CountingSelector(selectors.DefaultSelector):
    """Counts the turns of its loop."""

    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        return super().select(timeout)


def go(body: Coroutine[object, object, None], selector: CountingSelector | None = None) -> None:
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(asyncio.wait_for(body, LIMIT_S))


class Place:
    """An acceptor on loopback, and what it has handed on."""

    def __init__(self, listener: socket.socket, admission: AdmissionLimits) -> None:
        self.address = listener.getsockname()
        self.lines: list[str] = []
        self.shortages: list[str] = []
        self.sessions: dict[int, socket.socket] = {}
        self.stores: list[socket.socket] = []
        self.acceptor = Acceptor(
            [listener],
            admission,
            self._take,
            self.stores.append,
            ConnectionLog(self._note),
        )

    def _note(self, record: Record) -> None:
        (self.shortages if record.name == "open_files" else self.lines).append(record.text)

    def _take(self, connection: socket.socket, number: int, _: str) -> None:
        self.sessions[number] = connection
        self.acceptor.may_drop(number, connection.close)

    def dial(self, said: bytes) -> socket.socket:
        client = socket.create_connection(self.address)
        client.sendall(said)
        client.setblocking(False)
        return client


@asynccontextmanager
async def place(room: int = 100) -> AsyncIterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        here = Place(listener, AdmissionLimits(room, LIMIT_S))
        yield here
        here.acceptor.close()
        for connection in (*here.sessions.values(), *here.stores):
            connection.close()


def test_a_caller_who_says_half_a_word_is_waited_for_and_keeps_nobody_busy() -> None:
    selector = CountingSelector()

    async def body() -> None:
        async with place() as here:
            with here.dial(HELLO[:2]) as session, here.dial(STORE_MAGIC[:1]) as store:
                before = selector.turns
                await asyncio.sleep(0.3)
                assert selector.turns - before < 20
                session.sendall(HELLO[2:])
                store.sendall(STORE_MAGIC[1:])
                await until(lambda: bool(here.sessions) and bool(here.stores))
                # Whoever gets the connection reads it from its beginning.
                (taken,) = here.sessions.values()
                assert taken.recv(1000) == HELLO
                assert here.stores[0].recv(1000) == STORE_MAGIC
        assert here.lines == []

    go(body(), selector)


async def test_a_caller_who_hangs_up_in_the_middle_of_a_word_is_closed_at_once() -> None:
    async with place() as here:
        with here.dial(HELLO[:2]) as caller:
            caller.shutdown(socket.SHUT_WR)
            await until(lambda: bool(here.lines))
            assert caller.recv(1) == b""
    assert "it does not use Rallypoint's protocol (it began with b'RL')" in here.lines[0]


async def test_who_only_looks_whether_somebody_listens_is_no_news() -> None:
    async with place(1) as here:
        for _ in range(3):
            here.dial(b"").close()
        with here.dial(HELLO):
            await until(lambda: bool(here.sessions))
    assert here.lines == []


async def test_when_all_descriptors_are_used_by_nodes_the_next_one_waits_until_one_goes() -> None:
    async with place(2) as here:
        clients = [here.dial(HELLO) for _ in range(3)]
        await until(lambda: len(here.sessions) == 2)
        first, second = here.sessions
        here.acceptor.proved(first)
        here.acceptor.proved(second)
        await until(lambda: bool(here.shortages))
        assert len(here.sessions) == 2
        assert "raise ulimit -n" in here.shortages[0]
        here.acceptor.gone(first)
        await until(lambda: len(here.sessions) == 3)
        for client in clients:
            client.close()
