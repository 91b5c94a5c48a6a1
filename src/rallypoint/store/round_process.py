"""What runs in the process of one round's store.

Forked from a running agent: everything of the agent's is still in memory, but its descriptors are
closed, and their numbers will be used again. So none of its objects may be finalised here.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable

from rallypoint.observe.faults import Faults
from rallypoint.store.access import AccessGate, AccessPolicy
from rallypoint.store.event_loop import new_event_loop
from rallypoint.store.limits import (
    StoreLimits,
    connections_within,
    of_open_files,
    raise_descriptor_limit,
)
from rallypoint.store.server import Say, StoreServer


def serve_round(
    listener: socket.socket | None,
    channel: socket.socket,
    key: bytes,
    *,
    policy: AccessPolicy,
    say: Say,
    fast: bool = True,
) -> None:
    """Serves until killed, or until the agent's end of `channel` is closed.

    Connections come from `listener`, which this process shares with the agent, or over `channel`.
    """
    gc.freeze()
    limits = StoreLimits(
        max_connections=connections_within(raise_descriptor_limit()),
        more_connections_by=of_open_files(whose="where this node's agent is started"),
    )
    loop = new_event_loop(fast=fast)
    loop.set_exception_handler(Faults(say).of_loop)

    def make_server() -> StoreServer:
        return StoreServer(AccessGate(policy), key, say, limits=limits)

    listening = loop.create_task(_listen(loop, listener, channel, make_server))
    loop.run_forever()
    del listening


async def _listen(
    loop: asyncio.AbstractEventLoop,
    listener: socket.socket | None,
    channel: socket.socket,
    make_server: Callable[[], StoreServer],
) -> None:
    server = make_server()

    def receive_connection() -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        except BlockingIOError:
            return
        if not data:
            loop.stop()
        for descriptor in descriptors:
            server.adopt(socket.socket(fileno=descriptor))

    channel.setblocking(False)
    loop.add_reader(channel, receive_connection)
    if listener is not None:
        await server.listen(listener)
