"""Accepting in bounded batches, and where descriptors have run out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.descriptors import no_descriptor_left
from tests.harness.limits import until

from rallypoint.store.accept_loop import BATCH, AcceptLoop
from rallypoint.store.access import EVERYBODY, AccessGate
from rallypoint.store.server import StoreServer


@contextmanager
def queued(count: int) -> Iterator[tuple[socket.socket, list[socket.socket]]]:
    """A listening socket, and connections that nobody has accepted yet."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=count)
    listener.setblocking(False)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(count)]
    try:
        yield listener, clients
    finally:
        for opened in (*clients, listener):
            opened.close()


async def test_everybody_else_has_a_turn_after_each_batch() -> None:
    count = 3 * BATCH
    with queued(count) as (listener, _):
        accepted: list[socket.socket] = []
        batches: list[int] = []
        loop = asyncio.get_running_loop()
        accepting = AcceptLoop(loop, listener, lambda new, _: accepted.append(new))
        while len(accepted) < count:
            before = len(accepted)
            await asyncio.sleep(0)
            batches.append(len(accepted) - before)
        accepting.close()
        assert max(batches) == BATCH
        for connection in accepted:
            connection.close()


async def test_descriptors_that_have_run_out_are_told_and_who_came_is_accepted_later() -> None:
    unhandled: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    with queued(2) as (listener, _):
        accepted: list[socket.socket] = []
        short: list[OSError] = []
        with no_descriptor_left():
            accepting = AcceptLoop(
                loop, listener, lambda new, _: accepted.append(new), on_shortage=short.append
            )
            await until(lambda: bool(short))
            # It pauses: a socket that stays readable does not keep the loop busy.
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(short) == 1
        await until(lambda: len(accepted) == 2)
        accepting.close()
        for connection in accepted:
            connection.close()
    assert unhandled == []


async def test_a_store_without_descriptors_says_so_in_a_line_and_serves_later() -> None:
    unhandled: list[object] = []
    said: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    with queued(1) as (listener, _):
        server = StoreServer(AccessGate(EVERYBODY), said.append)
        with no_descriptor_left():
            await server.listen(listener)
            await until(lambda: bool(said))
        await until(lambda: server.stats.connections == 1)
        server.close()
    assert said == ["can't accept connections: Too many open files: they wait"]
    assert unhandled == []


async def test_nobody_is_accepted_during_a_pause_or_after_the_end() -> None:
    with queued(2) as (listener, _):
        accepted: list[socket.socket] = []

        def take(new: socket.socket, _: tuple[str, int]) -> None:
            accepted.append(new)
            accepting.pause()

        accepting = AcceptLoop(
            asyncio.get_running_loop(), listener, take, lambda: len(accepted) < 1
        )
        await until(lambda: len(accepted) == 1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(accepted) == 1
        accepting.close()
        accepting.resume()
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(accepted) == 1
        accepted[0].close()
