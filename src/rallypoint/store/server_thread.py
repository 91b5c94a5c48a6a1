"""A store's server in a program that has no loop for it: on a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import threading

from rallypoint.errors import StoreConnectionError
from rallypoint.store.access import AccessGate
from rallypoint.store.keyvalue import KeyValueMachine
from rallypoint.store.server import Say, StoreServer

_KEY_BYTES = 32


class ServerThread:
    """A server that listens from construction to `close`; the thread ends with the process.

    `listener` is bound, and taken over. Everybody whom `gate` admits may use the store; enrolling
    needs a key that nobody is told. Joining is adding to `counter_key`: `wait_joined` counts it.
    """

    def __init__(
        self, listener: socket.socket, gate: AccessGate, say: Say, counter_key: bytes
    ) -> None:
        self._pid = os.getpid()
        listener.setblocking(False)
        # Inherited by what it accepts; replies are small, and must not wait for each other.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop = asyncio.new_event_loop()
        self._joined = _Joined(counter_key)
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(listener, gate, say), name="rally-store", daemon=True
        )
        self._thread.start()
        self._started.wait()

    def wait_joined(self, count: int, timeout_s: float) -> int:
        """Waits until so many have joined, and returns how many have."""
        with self._joined.changed:
            self._joined.changed.wait_for(lambda: self._joined.count >= count, timeout_s)
            return self._joined.count

    def close(self) -> None:
        """Drops every client; neither thread nor socket remains. Safe to call again.

        Does nothing in a forked child, which has no such thread.
        """
        if os.getpid() != self._pid or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, listener: socket.socket, gate: AccessGate, say: Say) -> None:
        server: StoreServer | None = None
        try:
            server = self._loop.run_until_complete(self._listen(listener, gate, say))
            self._started.set()
            self._loop.run_forever()
        finally:
            if server is not None:
                server.close()
            # One more turn lets the transports close their sockets.
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            self._started.set()

    async def _listen(self, listener: socket.socket, gate: AccessGate, say: Say) -> StoreServer:
        machine = _CountingMachine(self._joined)
        server = StoreServer(gate, os.urandom(_KEY_BYTES), say, machine=machine)
        await server.listen(listener)
        return server


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to this address and no other; port 0 picks one.

    Raises StoreConnectionError if the port is taken, or the address is not of this machine.
    """
    peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreConnectionError(peer, "listening", reason) from error


class _Joined:
    """How many have joined: told by the loop's thread, waited for by others."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.count = 0
        self.changed = threading.Condition()


class _CountingMachine(KeyValueMachine):
    def __init__(self, joined: _Joined) -> None:
        super().__init__()
        self._joined = joined

    def add(self, key: bytes, delta: int) -> int:
        number = super().add(key, delta)
        if key == self._joined.key:
            with self._joined.changed:
                self._joined.count += delta
                self._joined.changed.notify_all()
        return number
