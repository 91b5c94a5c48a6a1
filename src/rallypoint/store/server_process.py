"""A process that only serves a store: its event loop, its limits, and one round's store.

The loop is uvloop's where it is installed, else asyncio's own.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import socket

from rallypoint.observe.faults import Faults
from rallypoint.store.access import AccessGate, AccessPolicy
from rallypoint.store.server import Say, StoreLimits, StoreServer

OWN_DESCRIPTORS = 64
"""The most descriptors of a store's process besides its connections."""
_DESCRIPTORS_CAP = 1 << 20
_KEPT_BYTES = 4 << 20


def new_event_loop(*, fast: bool = True) -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if it is installed and `fast`, else asyncio's own.

    The extra `rallypoint[fast]` installs it. Only for processes that do nothing but serve:
    importing uvloop takes 35 ms, and up to 8 MiB of freed memory are kept from then on.
    """
    _keep_freed_memory()
    if fast:
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def _keep_freed_memory() -> None:
    """Have glibc's malloc keep freed memory, because values of 64 KiB come and go.

    A page fault for every 4 KiB costs more than serving them. glibc gives freed memory back when it
    is twice as large as the largest block that was ever freed and had its own mapping (mallopt(3),
    M_MMAP_THRESHOLD): so such a block is freed here. It is never written to, so it takes no memory;
    another malloc does nothing of that kind.
    """
    bytearray(_KEPT_BYTES)


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open descriptors as far as allowed, and return the new limit.

    That is the hard limit, at most about a million; a higher limit or a refused change stays.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS_CAP if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_CAP)
    if soft == resource.RLIM_INFINITY:
        return _DESCRIPTORS_CAP
    if soft >= most:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        return soft
    return most


def of_open_files(*, whose: str) -> str:
    """Return the hint to raise the hard limit of open files; `whose` says where."""
    return f"raise the hard limit of open files (ulimit -Hn) {whose}"


def connections_within(descriptors: int) -> int:
    """Return how many connections a process with that many descriptors can hold, at least 1."""
    return max(1, descriptors - OWN_DESCRIPTORS)


def serve_round(
    listener: socket.socket | None,
    channel: socket.socket,
    policy: AccessPolicy,
    say: Say,
    max_bytes: int | None = None,
) -> None:
    """Serve the store of one round until killed, or until the agent's end of `channel` is closed.

    `max_bytes` limits the keys and values of the workers; None: there is no limit.

    Connections come from `listener`, which this process shares with the agent, or over `channel`.
    It is forked from a running agent: everything of the agent's is still in memory, but its
    descriptors are closed, and their numbers will be used again. So none of its objects may be
    finalised here.
    """
    gc.freeze()
    limits = StoreLimits(
        max_connections=connections_within(raise_descriptor_limit()),
        more_connections_by=of_open_files(whose="where this node's agent is started"),
        max_bytes=max_bytes,
        max_bytes_from="half of this node's memory",
    )
    loop = new_event_loop()
    loop.set_exception_handler(Faults(say).of_loop)
    listening = loop.create_task(_serve(listener, channel, policy, say, limits))
    loop.run_forever()
    del listening


async def _serve(
    listener: socket.socket | None,
    channel: socket.socket,
    policy: AccessPolicy,
    say: Say,
    limits: StoreLimits,
) -> None:
    loop = asyncio.get_running_loop()
    server = StoreServer(AccessGate(policy), say, limits=limits)

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
