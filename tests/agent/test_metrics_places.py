"""The places of the server of metrics and health: strangers that keep connections open keep nobody
out."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

from rallypoint.agent.telemetry.metrics_server import (
    CONNECTIONS,
    HEALTH,
    HEALTH_PATH,
    PATH,
    MetricsServer,
    Page,
)

LARGE = "# a line\n" * 2_000_000
"""More than the kernel keeps for a peer that does not read."""


async def served(stack: ExitStack) -> int:
    """The port of a server."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    pages = {PATH: Page(lambda _: LARGE), HEALTH_PATH: HEALTH}
    server = MetricsServer(listener, "127.0.0.1", pages)
    await server.open()
    stack.callback(server.close)
    port: int = listener.getsockname()[1]
    return port


async def connected(stack: ExitStack, port: int, source: str, said: bytes = b"") -> socket.socket:
    """A connection from this address of loopback, which has said this and reads nothing."""
    loop = asyncio.get_running_loop()
    opened = stack.enter_context(socket.socket())
    opened.setblocking(False)
    opened.bind((source, 0))
    await loop.sock_connect(opened, ("127.0.0.1", port))
    await loop.sock_sendall(opened, said)
    return opened


async def received(client: socket.socket) -> bytes:
    """What the server sends until it closes; empty: it has cut the client off."""
    data = b""
    try:
        while piece := await asyncio.get_running_loop().sock_recv(client, 65536):
            data += piece
    except ConnectionResetError:
        return b""
    return data


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


async def test_F8_the_address_with_most_connections_loses_its_oldest() -> None:
    """A client of another address keeps its place, though it came first."""
    with ExitStack() as opened:
        port = await served(opened)
        slow = await connected(opened, port, "127.0.0.2", b"GET /health HTTP/1.1\r\n")
        idle = [await connected(opened, port, "127.0.0.3") for _ in range(2 * CONNECTIONS)]
        assert await received(idle[0]) == b""
        await asyncio.get_running_loop().sock_sendall(slow, b"\r\n")
        assert (await received(slow)).startswith(b"HTTP/1.1 200 OK")


async def test_F8_readers_of_metrics_that_stall_keep_no_health_check_out() -> None:
    with ExitStack() as opened:
        port = await served(opened)
        for _ in range(CONNECTIONS):
            await connected(opened, port, "127.0.0.3", request(PATH))
        probe = await connected(opened, port, "127.0.0.3", request(HEALTH_PATH))
        assert (await received(probe)).endswith(b"alive\n")
        reader = await connected(opened, port, "127.0.0.2", request(PATH))
        assert (await received(reader)).endswith(LARGE[-100:].encode())
