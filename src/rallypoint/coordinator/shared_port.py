"""One port for sessions and the round store, as a static command line wants it.

Who is calling is told from the first bytes, which are looked at without being consumed; then the
connection goes to the coordinator, or to the store's process as it is.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from socket import MSG_PEEK, socket

from rallypoint.wire.preamble import PREAMBLE_BYTES, Preamble, classify

UNDECIDED_MAX = 1024
"""Connections that have not said who they are; one more drops the oldest."""
UNDECIDED_S = 10.0
ACCEPT_BATCH = 256

Take = Callable[[socket], None]


class SharedPort:
    """Accepts on a listening socket, which stays the caller's. For the thread of the loop."""

    def __init__(self, listener: socket, to_coordinator: Take, to_store: Take) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._to_coordinator, self._to_store = to_coordinator, to_store
        self._undecided: OrderedDict[socket, float] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Stop accepting, and drop who has not said what it wants. Safe to call twice."""
        self._loop.remove_reader(self._listener)
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._undecided):
            self._drop(connection)

    def _accept(self) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # none left, it has gone again, or no descriptor is free
                return
            connection.setblocking(False)
            self._undecided[connection] = self._loop.time()
            self._loop.add_reader(connection, partial(self._peek, connection))
            if len(self._undecided) > UNDECIDED_MAX:
                self._drop(next(iter(self._undecided)))
            self._arm()

    def _peek(self, connection: socket) -> None:
        try:
            first = connection.recv(PREAMBLE_BYTES, MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        if not first:
            self._drop(connection)
            return
        match classify(first):
            case Preamble.UNDECIDED:
                return
            case Preamble.STORE:
                self._forget(connection)
                self._to_store(connection)
            case Preamble.SESSION | Preamble.FOREIGN:
                self._forget(connection)
                self._to_coordinator(connection)

    def _forget(self, connection: socket) -> None:
        self._undecided.pop(connection, None)
        self._loop.remove_reader(connection)

    def _drop(self, connection: socket) -> None:
        self._forget(connection)
        connection.close()

    def _arm(self) -> None:
        if self._sweep is None and self._undecided:
            oldest = next(iter(self._undecided.values()))
            self._sweep = self._loop.call_at(oldest + UNDECIDED_S, self._sweep_now)

    def _sweep_now(self) -> None:
        self._sweep = None
        limit = self._loop.time() - UNDECIDED_S
        for connection, since in list(self._undecided.items()):
            if since > limit:
                break
            self._drop(connection)
        self._arm()
