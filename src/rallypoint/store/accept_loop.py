"""Accepts on a listening socket: a bounded number in each turn of the loop, with pauses.

asyncio's servers accept as many in one turn as the backlog is long, and when descriptors have run
out they call the loop's exception handler as often.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

BATCH = 16
"""The most connections that are accepted in one turn of the event loop, which takes some
milliseconds."""
SHORTAGE_PAUSE_S = 0.25
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_IPV6_NETWORK_BYTES = 8
"""The network part of an IPv6 address in bytes: one machine may have all addresses of a /64."""

OnConnection = Callable[[socket.socket, tuple[str, int]], None]


class AcceptLoop:
    """The acceptance of connections on a listening socket, until `close`. For the loop's thread.

    The listening socket, which must not block, stays the caller's.

    `on_connection` gets each connection, which does not block, and the peer's address. `may_accept`
    is called before each; False: it is not accepted in this turn of the loop, and `may_accept` may
    call `pause`. `on_shortage` gets the error when the system lacks descriptors or memory; then
    there is a pause.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        on_connection: OnConnection,
        may_accept: Callable[[], bool] = lambda: True,
        on_shortage: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        self._loop, self._listener = loop, listener
        self._on_connection, self._may_accept = on_connection, may_accept
        self._on_shortage = on_shortage
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False
        self.resume()

    def pause(self) -> None:
        """Stop accepting for now: new connections wait in the kernel's queue. Safe to repeat."""
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def resume(self) -> None:
        """Accept again after a pause; nothing happens after `close`. May be called again."""
        if not self._closed:
            self.pause()
            self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stop accepting for good; the listening socket stays open. May be called again."""
        if not self._closed:
            self._closed = True
            self.pause()

    def _accept(self) -> None:
        for _ in range(BATCH):
            if self._closed or not self._may_accept():
                return
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _SHORTAGES:
                    self.pause()
                    self._retry = self._loop.call_later(SHORTAGE_PAUSE_S, self.resume)
                    self._on_shortage(error)
                    return
                continue  # the client has gone already
            connection.setblocking(False)
            self._on_connection(connection, address[:2])


class Connector:
    """A helper that joins accepted sockets and asyncio protocols. For the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(
        self,
        accepted: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        """Give an accepted socket to a protocol that `make` returns. Takes it over, never blocks.

        `on_gone` is called instead if the peer has gone already.
        """

        async def connect() -> None:
            try:
                await self._loop.connect_accepted_socket(make, accepted)
            except OSError:
                accepted.close()
                on_gone()

        task = self._loop.create_task(connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def source_of(host: str) -> str:
    """Return the part of a peer's address that counts as one source: of IPv6 the /64, in hex.

    Raises OSError for an invalid IPv6 address.
    """
    if ":" not in host:
        return host
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:_IPV6_NETWORK_BYTES].hex()
