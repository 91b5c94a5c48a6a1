"""The counterpart of `torch.distributed.TCPStore`: a client of one server, which it may host.

It uses the protocol of torch's store, so that either side may be torch's. Unlike with torch, no
call hangs: the limit of a plain answer is the timeout, or 5 s if that is longer, and the loss of a
server is an error that names the server. A server runs on a thread with its own event loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Self

from msgspec.structs import replace

from rallypoint.elastic.stores import c10d_client as wire
from rallypoint.elastic.stores import c10d_operations as operations
from rallypoint.elastic.stores.store import (
    DEFAULT_TIMEOUT,
    Store,
    StoreValue,
    Timeout,
    to_bytes,
    to_keys,
    to_pairs,
    to_port,
)
from rallypoint.elastic.stores.tcp_client import TCPClient
from rallypoint.errors import StoreConnectionError, StoreQueueEmptyError, StoreTimeoutError
from rallypoint.observe.printing import print_error
from rallypoint.store.access import (
    EVERYBODY,
    AccessGate,
    AccessPolicy,
    Who,
    parse_network,
    peer_name,
)
from rallypoint.store.keyvalue import KeyValueMachine
from rallypoint.store.server import Say, StoreServer


class TCPStore(Store):
    """A store at `host_name` and `port`; with `is_master` its server is here, on a thread.

    `port` 0 lets a master pick one; see `port`. `listen_socket`, or `master_listen_fd`, is a bound
    socket to use instead, and is taken over. With `world_size` and `wait_for_workers`, each client
    counts itself in, and the master waits until so many have come; otherwise nobody waits for
    anybody. With `multi_tenant` the masters of this process on one port have one server, until the
    last of them is closed. `use_libuv` has no effect: there is only one kind of server.

    A master binds the address of `host_name`, no other. On a loopback address only processes of
    this user are served; on another one every host that reaches it is. `allow` names the networks
    (CIDRs like "10.0.0.0/8") that are served besides this user's processes, and nobody else then.

    One object serves all threads of a process, not a forked child: there, use `clone`. Lost
    connections are replaced where nothing can have got lost or be done twice.

    Raises StoreConnectionError if there is no server for the whole timeout, or the port to host it
    at is taken, StoreTimeoutError if workers are missing, ValueError for what is no port and for a
    `world_size` of 0. Blocks.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
        *,
        listen_socket: socket.socket | None = None,
        allow: Sequence[str] | None = None,
    ) -> None:
        super().__init__(timeout)
        if not is_master and (listen_socket is not None or allow is not None):
            raise ValueError("listen_socket and allow are for the master, which hosts the server")
        if isinstance(allow, str):
            raise TypeError(f"allow must be a list of networks, not one str: [{allow!r}]?")
        if world_size == 0:
            raise ValueError("world_size=0: needs the number of workers, or None for any number")
        self._server: ServerThread | None = None
        deadline = time.monotonic() + self._timeout_s
        connect_to = host_name
        to_port(port)
        if not (port or is_master):
            reason = "no server has the port 0: needs that of the master's store"
            raise StoreConnectionError(peer_name(host_name, port), "connecting", reason)
        if is_master:
            networks = None if allow is None else tuple(map(parse_network, allow))

            def listen() -> ServerThread:
                listener = listen_socket or _listener(host_name, port, master_listen_fd)
                gate = AccessGate(_policy(listener, networks))
                return ServerThread(listener, gate, _say_on_stderr, wire.JOINED_KEY)

            self._server = _tenants.server(port, listen) if multi_tenant else listen()
            connect_to, port = self._server.address
        try:
            self._client = TCPClient(connect_to, port, self._timeout_s)
        except BaseException:
            _close(None, self._server)
            raise
        self._host, self._port, self._connect_to = host_name, port, connect_to
        self._uses_libuv = use_libuv
        self._close = weakref.finalize(self, _close, self._client, self._server)
        if world_size is not None and wait_for_workers:
            try:
                self._join(world_size, deadline)
            except BaseException:
                self.close()
                raise

    @property
    def host(self) -> str:
        """The host name that was given."""
        return self._host

    @property
    def port(self) -> int:
        """The port of the server; the one that was picked if 0 was given."""
        return self._port

    @property
    def is_host(self) -> bool:
        """Whether this object hosts the server."""
        return self._server is not None

    @property
    def libuvBackend(self) -> bool:  # noqa: N802  # Its name in torch.
        """The value that was given as `use_libuv`."""
        return self._uses_libuv

    def close(self) -> None:
        """End the connection, and the server if this object hosts it. May be called again.

        A server that several masters share ends with the last of them.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def clone(self) -> TCPStore:
        """Return another connection to the same server; only the first object hosts the server."""
        clone = TCPStore(self._connect_to, self._port, timeout=self.timeout)
        clone._host, clone._uses_libuv = self._host, self._uses_libuv
        return clone

    def set_timeout(self, timeout: Timeout) -> None:
        super().set_timeout(timeout)
        self._client.set_timeout(self._timeout_s)

    # Values

    def set(self, key: str, value: StoreValue) -> None:
        request = wire.set_value(wire.wired_key(key), to_bytes(value))
        self._client.tell("set", (key,), request, again=True)

    def get(self, key: str) -> bytes:
        wired = wire.wired_key(key)
        value = self._client.ask("get", (key,), wire.get(wired), wire.read_string, again=True)
        if value:
            return value
        return self._client.run("get", (key,), operations.get(wired), self._timeout_s)

    def add(self, key: str, amount: int) -> int:
        request = wire.add(wire.wired_key(key), amount)
        return self._client.ask("add", (key,), request, wire.read_i64, again=False)

    def compare_set(self, key: str, expected_value: StoreValue, desired_value: StoreValue) -> bytes:
        request = wire.compare_set(
            wire.wired_key(key), to_bytes(expected_value), to_bytes(desired_value)
        )
        return self._client.ask("compare_set", (key,), request, wire.read_string, again=False)

    def check(self, keys: Sequence[str]) -> bool:
        wired = to_keys(keys, wire.wired_key)
        if len(wired) == 1:
            return self._client.ask("check", keys, wire.check(wired), wire.read_check, again=True)
        operation = operations.check(wired)
        return self._client.run("check", keys, operation, self._timeout_s)

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        operation = operations.wait(to_keys(keys, wire.wired_key))
        self._client.run("wait", keys, operation, self._wait_s(timeout))

    def delete_key(self, key: str) -> bool:
        request = wire.delete_key(wire.wired_key(key))
        return self._client.ask("delete_key", (key,), request, wire.read_i64, again=False) > 0

    def num_keys(self) -> int:
        return self._client.ask("num_keys", (), wire.COUNT_KEYS, wire.read_i64, again=True)

    def list_keys(self) -> list[str]:
        listed = self._client.ask("list_keys", (), wire.LIST_KEYS, wire.read_listed, again=True)
        return [wire.key_shown(key) for key in listed if key[:1] == b"/"]

    def append(self, key: str, value: StoreValue) -> None:
        request = wire.append(wire.wired_key(key), to_bytes(value))
        self._client.tell("append", (key,), request, again=False)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        operation = operations.multi_get(to_keys(keys, wire.wired_key))
        return self._client.run("multi_get", keys, operation, self._timeout_s)

    def multi_set(self, keys: Sequence[str], values: Sequence[StoreValue]) -> None:
        """Store all values at once, by one request.

        Raises ValueError if the lengths differ, and for more than 131,072 keys or more bytes than
        fit into one request.
        """
        request = wire.multi_set(to_pairs(keys, values, wire.wired_key))
        self._client.tell("multi_set", keys, request, again=True)

    # Queues, and waiting for each other

    def queue_push(self, key: str, value: StoreValue) -> None:
        request = wire.queue_push(wire.wired_key(key), to_bytes(value))
        self._client.tell("queue_push", (key,), request, again=False)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        operation = operations.queue_pop(wire.wired_key(key), block)
        item = self._client.run("queue_pop", (key,), operation, self._timeout_s)
        if item is None:
            raise StoreQueueEmptyError(key)
        return item

    def queue_len(self, key: str) -> int:
        request = wire.queue_length(wire.wired_key(key))
        return self._client.ask("queue_len", (key,), request, wire.read_i64, again=True)

    def barrier(self, key: str, world_size: int, timeout: Timeout | None = None) -> None:
        operation = operations.barrier(wire.wired_key(key), world_size)
        self._client.run("barrier", (key,), operation, self._wait_s(timeout))

    # Within

    def _join(self, world_size: int, deadline: float) -> None:
        request = wire.add(wire.JOINED_KEY, 1)
        self._client.ask("joining", (), request, wire.read_i64, again=False)
        if self._server is not None:
            started = time.monotonic()
            joined = self._server.wait_joined(world_size, max(0.0, deadline - started))
            if joined < world_size:
                missing = [f"{world_size - joined} of {world_size} workers"]
                raise StoreTimeoutError("waiting for workers", missing, self._timeout_s)


def _reachable(listener: socket.socket) -> tuple[str, int]:
    """Return an address of this machine that reaches a listening socket."""
    address, port = listener.getsockname()[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address), port


def _policy(listener: socket.socket, networks: tuple[str, ...] | None) -> AccessPolicy:
    policy = AccessPolicy(remedy="allow", opener="allow=['0.0.0.0/0', '::/0']")
    if networks is not None:
        return replace(policy, who=Who.ALLOWED, networks=networks)
    address: str = listener.getsockname()[0]
    return policy if address.startswith("127.") or address == "::1" else EVERYBODY


def _say_on_stderr(line: str) -> None:
    print_error("rallypoint: store", line)


def _close(client: TCPClient | None, server: ServerThread | None) -> None:
    if client is not None:
        client.close()
    if server is not None and _tenants.leave(server):
        server.close()


def _listener(host: str, port: int, fd: int | None) -> socket.socket:
    """Return a bound socket: that of the descriptor, or a new one. Raises StoreConnectionError."""
    if fd is None:
        return bind(host, port)
    try:
        listener = socket.socket(fileno=fd)
    except (OSError, ValueError) as error:
        reason = f"master_listen_fd={fd}: needs the descriptor of a bound socket: {error}"
        raise StoreConnectionError(peer_name(host, port), "listening", reason) from error
    bound = int(listener.getsockname()[1])
    if port not in (0, bound):
        listener.detach()
        reason = f"master_listen_fd={fd}: is bound to the port {bound}, but the port is {port}"
        raise StoreConnectionError(peer_name(host, port), "listening", reason)
    return listener


class ServerThread:
    """A store's server in a thread of this process, from construction to `close`.

    `listener` is bound, and owned by this object from here on. Peers that `gate` admits may use the
    store. Clients join by adding to `counter_key`, which `wait_joined` counts.
    """

    def __init__(
        self, listener: socket.socket, gate: AccessGate, say: Say, counter_key: bytes
    ) -> None:
        self._pid = os.getpid()
        self.address = _reachable(listener)
        """The address at which this process reaches the server."""
        listener.setblocking(False)
        # Inherited by what it accepts; replies are small, and must not wait for each other.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop = asyncio.new_event_loop()
        self._machine = _CountingMachine(counter_key)
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(listener, gate, say), name="rally-store", daemon=True
        )
        self._thread.start()
        self._started.wait()

    def wait_joined(self, count: int, timeout_s: float) -> int:
        """Wait until `count` clients have joined, at most `timeout_s`; return how many have."""
        return self._machine.wait_counted(count, timeout_s)

    def close(self) -> None:
        """Drop every client; neither thread nor socket remains. Safe to call again.

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
        server = StoreServer(gate, say, machine=self._machine)
        await server.listen(listener)
        return server


class _Tenants:
    """The servers of this process that several masters share, by port."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[tuple[int, int], ServerThread] = {}
        self._users: dict[ServerThread, int] = {}

    def server(self, port: int, listen: Callable[[], ServerThread]) -> ServerThread:
        """Return the server of the port; `listen` makes one where there is none.

        In a forked child the parent's servers do not count, whose threads it does not have.
        """
        with self._lock:
            found = self._servers.get((os.getpid(), port)) or listen()
            self._servers[os.getpid(), found.address[1]] = found
            self._users[found] = self._users.get(found, 0) + 1
            return found

    def leave(self, server: ServerThread) -> bool:
        """Release a use of the server; return whether it was the last one."""
        with self._lock:
            left = self._users.pop(server, 1) - 1
            if left:
                self._users[server] = left
            elif self._servers.get((os.getpid(), server.address[1])) is server:
                del self._servers[os.getpid(), server.address[1]]
            return not left


_tenants = _Tenants()


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at exactly this address; port 0 picks one.

    Raises StoreConnectionError if the port is taken, or the address is not of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreConnectionError(peer_name(host, port), "listening", reason) from error


class _CountingMachine(KeyValueMachine):
    """The state of a server's store; another thread can wait until enough clients have joined.

    A client joins by adding 1 to the key `key`.
    """

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self._counted_key, self._counted = key, 0
        self._changed = threading.Condition()

    def add(self, key: bytes, delta: int) -> int:
        number = super().add(key, delta)
        if key == self._counted_key:
            with self._changed:
                self._counted += delta
                self._changed.notify_all()
        return number

    def wait_counted(self, count: int, timeout_s: float) -> int:
        """Wait until `count` clients have joined, at most `timeout_s`; return how many have."""
        with self._changed:
            self._changed.wait_for(lambda: self._counted >= count, timeout_s)
            return self._counted
