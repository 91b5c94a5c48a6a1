"""What strangers make a round store and a coordinator hold, however much they send."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.harness.limits import patience, until
from tests.harness.sessions import rally
from tests.harness.store_client import (
    KEY,
    PING,
    VALIDATE,
    as_remote,
    connect_from,
    in_thread,
    make_listener,
    set_key,
)

from rallypoint.core.model import SharedSettings
from rallypoint.store.access import AccessGate, round_policy
from rallypoint.store.server import StoreServer
from rallypoint.store.server_process import new_event_loop
from rallypoint.wire.handshake import ClientHandshake

pytestmark = pytest.mark.executed

STRANGERS = 400
SENT = set_key(b"k", bytes(256 << 10))
EACH_MAX_BYTES = 8 << 10
"""Most of it are the objects of a connection on which nothing comes."""
LIMIT_S = patience(60.0)


@contextmanager
def strangers(port: int, said: bytes) -> Iterator[None]:
    """So many connections that have sent all of `said` that the kernel takes."""
    opened: list[socket.socket] = []
    try:
        for _ in range(STRANGERS):
            stranger = socket.create_connection(("127.0.0.1", port), LIMIT_S)
            opened.append(stranger)
            stranger.setblocking(False)
            stranger.send(said)
        yield
    finally:
        for stranger in opened:
            stranger.close()


@contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("fast", [True, False], ids=["uvloop", "asyncio"])
def test_F9_what_strangers_send_takes_no_memory_of_a_round_store(fast: bool) -> None:
    async def main() -> None:
        listener = make_listener()
        gate = AccessGate(round_policy(KEY, everybody=False), hold_s=LIMIT_S)
        gate.enrol("127.0.0.2")
        server = StoreServer(gate, lambda line: None, as_remote)
        port = listener.getsockname()[1]
        with strangers(port, VALIDATE + SENT), connect_from("127.0.0.2", port) as friend, traced():
            await server.listen(listener)
            await until(lambda: server.stats.connections == STRANGERS + 1)
            for _ in range(2):  # by then all that came has been read
                await in_thread(lambda: friend.ask(VALIDATE + PING, 4))
            held, _ = tracemalloc.get_traced_memory()
            server.close()
        print(f"{held / STRANGERS:.0f} bytes for each stranger")
        assert held < STRANGERS * EACH_MAX_BYTES

    with asyncio.Runner(loop_factory=lambda: new_event_loop(fast=fast)) as runner:
        runner.run(main())


async def test_F8_what_strangers_send_takes_no_memory_of_a_coordinator() -> None:
    half_a_hello = ClientHandshake("j" * 255, None, bytes(32)).hello()[:-1]
    rules = SharedSettings("job", 1, 1)

    async with rally() as place:
        friend = await place.attached(rules, "life")
        with traced(), strangers(place.port, half_a_hello):
            admission = place.coordinator._acceptor._admission
            await until(lambda: len(admission._unproven) == STRANGERS)
            for _ in range(2):
                await friend.round_trip()
            held, _ = tracemalloc.get_traced_memory()
    print(f"{held / STRANGERS:.0f} bytes for each stranger")
    assert held < STRANGERS * EACH_MAX_BYTES
