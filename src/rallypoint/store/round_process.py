"""What runs in the process of one round's store.

Forked from a running agent: everything of the agent's is still in memory, but its descriptors are
closed, and their numbers will be used again. So none of its objects may be finalised here.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import socket

from rallypoint.store.access import AccessGate
from rallypoint.store.server import Say, StoreServer


def serve_round(
    listener: socket.socket | None,
    channel: socket.socket,
    key: bytes,
    *,
    open_access: bool,
    say: Say,
) -> None:
    """Serves until killed, or until the agent's end of `channel` is closed.

    Connections come from `listener`, which this process shares with the agent, or over `channel`.
    """
    gc.freeze()
    _raise_descriptor_limit()
    loop = asyncio.new_event_loop()
    listening = loop.create_task(_listen(loop, listener, channel, key, open_access, say))
    loop.run_forever()
    del listening


async def _listen(
    loop: asyncio.AbstractEventLoop,
    listener: socket.socket | None,
    channel: socket.socket,
    key: bytes,
    open_access: bool,
    say: Say,
) -> None:
    server = StoreServer(AccessGate(open_access=open_access), key, say)

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


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass
