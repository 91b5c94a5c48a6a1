"""`TCPStore` for asyncio: the same vocabulary, as coroutines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Self

from rallypoint.errors import StoreQueueEmptyError
from rallypoint.store.async_tcp_client import AsyncTCPClient
from rallypoint.store.store import DEFAULT_TIMEOUT, Timeout, Value, to_bytes, to_port, to_seconds
from rallypoint.wire import c10d_client as wire
from rallypoint.wire import c10d_operations as operations


class AsyncTCPStore:
    """A store whose server is elsewhere; made by `connect`. The methods are those of `Store`.

    One object serves all tasks of a loop: a task that waits does not hold up the others. Any call
    may be cancelled, and the store can be used further; whether what was cancelled has been carried
    out is not known then. Lost connections are replaced as those of `TCPStore` are.
    """

    def __init__(self, client: AsyncTCPClient, host: str, port: int, timeout_s: float) -> None:
        self._client, self._host, self._port = client, host, port
        self._timeout_s = timeout_s

    @classmethod
    async def connect(cls, host: str, port: int, timeout: Timeout = DEFAULT_TIMEOUT) -> Self:
        """The store at `host` and `port`.

        Tries again while there is no server; raises StoreConnectionError after the timeout.
        """
        timeout_s, port = to_seconds(timeout), to_port(port)
        return cls(await AsyncTCPClient.connect(host, port, timeout_s), host, port, timeout_s)

    @property
    def host(self) -> str:
        """The host as it was given."""
        return self._host

    @property
    def port(self) -> int:
        """The port of the server."""
        return self._port

    @property
    def timeout(self) -> timedelta:
        """How long `get`, `multi_get`, `wait`, `queue_pop` and `barrier` wait if not told."""
        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: Timeout) -> None:
        """Changes `timeout` for this object, not for clones that exist already."""
        self._timeout_s = to_seconds(timeout)
        self._client.set_timeout(self._timeout_s)

    async def clone(self) -> Self:
        """Another object for the same store, with the same timeout; a connection of its own."""
        return await self.connect(self._host, self._port, self.timeout)

    async def close(self) -> None:
        """Ends every call that is under way, with StoreConnectionError. Safe to call again."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def has_extended_api(self) -> bool:
        """Whether `append`, `multi_get` and `multi_set` are one operation each."""
        return True

    # Values

    async def set(self, key: str, value: Value) -> None:
        request = wire.set_value(wire.wired_key(key), to_bytes(value))
        await self._client.tell("set", (key,), request, again=True)

    async def get(self, key: str) -> bytes:
        operation = operations.get(wire.wired_key(key))
        return await self._client.run("get", (key,), operation, self._timeout_s)

    async def add(self, key: str, amount: int) -> int:
        request = wire.add(wire.wired_key(key), amount)
        return await self._client.ask("add", (key,), request, wire.read_i64, again=False)

    async def compare_set(self, key: str, expected_value: Value, desired_value: Value) -> bytes:
        values = to_bytes(expected_value), to_bytes(desired_value)
        request = wire.compare_set(wire.wired_key(key), *values)
        return await self._client.ask("compare_set", (key,), request, wire.read_string, again=False)

    async def check(self, keys: Sequence[str]) -> bool:
        operation = operations.check(wire.wired_keys(keys))
        return await self._client.run("check", keys, operation, self._timeout_s)

    async def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        operation = operations.wait(wire.wired_keys(keys))
        await self._client.run("wait", keys, operation, self._wait_s(timeout))

    async def delete_key(self, key: str) -> bool:
        request = wire.delete_key(wire.wired_key(key))
        return await self._client.ask("delete_key", (key,), request, wire.read_i64, again=False) > 0

    async def num_keys(self) -> int:
        return await self._client.ask("num_keys", (), wire.COUNT_KEYS, wire.read_i64, again=True)

    async def list_keys(self) -> list[str]:
        request = wire.LIST_KEYS
        listed = await self._client.ask("list_keys", (), request, wire.read_listed, again=True)
        return [wire.key_shown(key) for key in listed if key[:1] == b"/"]

    async def append(self, key: str, value: Value) -> None:
        request = wire.append(wire.wired_key(key), to_bytes(value))
        await self._client.tell("append", (key,), request, again=False)

    async def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        operation = operations.multi_get(wire.wired_keys(keys))
        return await self._client.run("multi_get", keys, operation, self._timeout_s)

    async def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Stores all values at once. Raises ValueError as that of `TCPStore` does."""
        if len(keys) != len(values):
            raise ValueError(f"multi_set was given {len(keys)} keys and {len(values)} values")
        request = wire.multi_set(wire.wired_keys(keys), list(map(to_bytes, values)))
        await self._client.tell("multi_set", keys, request, again=True)

    # Queues, and waiting for each other

    async def queue_push(self, key: str, value: Value) -> None:
        request = wire.queue_push(wire.wired_key(key), to_bytes(value))
        await self._client.tell("queue_push", (key,), request, again=False)

    async def queue_pop(self, key: str, block: bool = True) -> bytes:
        operation = operations.queue_pop(wire.wired_key(key), block)
        item = await self._client.run("queue_pop", (key,), operation, self._timeout_s)
        if item is None:
            raise StoreQueueEmptyError(key)
        return item

    async def queue_len(self, key: str) -> int:
        request = wire.queue_length(wire.wired_key(key))
        return await self._client.ask("queue_len", (key,), request, wire.read_i64, again=True)

    async def barrier(self, key: str, world_size: int, timeout: Timeout | None = None) -> None:
        operation = operations.barrier(wire.wired_key(key), world_size)
        await self._client.run("barrier", (key,), operation, self._wait_s(timeout))

    def _wait_s(self, timeout: Timeout | None) -> float:
        return self._timeout_s if timeout is None else to_seconds(timeout)
