"""A client process of the store's benchmark: jobs come as lines of JSON, and answers go back so.

After "ready" it waits for a line more, so that all processes begin together. Moments are
`time.monotonic()`.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any

from rallypoint.elastic.stores.tcp_store import TCPStore
from rallypoint.wire.c10d_fields import VALIDATE_MAGIC, encode_string

LIMIT_S = 120.0
HELLO = b"\x00" + struct.pack("<I", VALIDATE_MAGIC)
PING = b"\x0d\x01\x01\x01\x01"
WOKEN = b"\x00"
WAIT_FOR_ONE = b"\x06" + struct.pack("<Q", 1)


@lru_cache
def client(whose: str, port: int) -> Any:
    """One connection for each server, kept."""
    if whose == "ours":
        return TCPStore("127.0.0.1", port, timeout=LIMIT_S)
    from torch.distributed import TCPStore as TorchStore

    return TorchStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=LIMIT_S))


def connect(port: int, first: bytes = b"") -> socket.socket:
    """A bare connection that has said hello."""
    connection = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    connection.sendall(HELLO + first)
    return connection


def many(store: Any, name: str, size: int, count: int, own: str) -> Callable[[], object]:
    """So many operations, one after the other, on a key of this process."""
    value, key = b"v" * size, f"{name}/{own}"
    arguments: dict[str, tuple[Any, ...]] = {
        "set": (key, value),
        "get": (key,),
        "add": (f"{key}/number", 1),
        "compare_set": (key, value, value),
    }
    store.set(key, value)
    operation, given = getattr(store, name), arguments[name]

    def run() -> None:
        for _ in range(count):
            operation(*given)
        store.num_keys()  # a set has no answer of its own

    return run


def at_once(store: Any, name: str, size: int, count: int) -> Callable[[], object]:
    """One request with so many keys."""
    keys, values = [f"many/{i}" for i in range(count)], [b"v" * size] * count
    if name == "multi_get":
        store.multi_set(keys, values)
        store.num_keys()
        return lambda: store.multi_get(keys)
    return lambda: (store.multi_set(keys, values), store.num_keys())


@lru_cache
def holders(port: int, count: int) -> list[socket.socket]:
    """So many connections, kept: torch's server may take 100 ms for each that is new."""
    opened = [connect(port, PING) for _ in range(count)]
    for connection in opened:
        connection.recv(4, socket.MSG_WAITALL)
    return opened


def waiters(port: int, key: str, count: int) -> Callable[[], object]:
    """So many who wait for a key, until the last is woken."""
    request = PING + WAIT_FOR_ONE + encode_string(f"/{key}".encode())
    selector = selectors.DefaultSelector()
    for connection in holders(port, count):
        connection.sendall(request)
        connection.recv(4, socket.MSG_WAITALL)
        selector.register(connection, selectors.EVENT_READ, connection)
    client("ours", port).num_keys()

    def run() -> None:
        give_up_at = time.monotonic() + LIMIT_S
        while selector.get_map() and time.monotonic() < give_up_at:
            for found, _ in selector.select(1.0):
                selector.unregister(found.data)
                assert found.data.recv(1) == WOKEN
        assert not selector.get_map(), "somebody was not woken"
        selector.close()

    return run


def prepared(job: dict[str, Any]) -> Callable[[], object]:
    """What is to be timed."""
    port, name, count = job["port"], job["name"], job["count"]
    if name == "wake":
        return waiters(port, job["key"], count)
    store = client(job["client"], port)
    if name.startswith("multi"):
        return at_once(store, name, job["size"], count)
    return many(store, name, job["size"], count, job["own"])


def main() -> None:
    """Until stdin ends."""
    for line in sys.stdin:
        run = prepared(json.loads(line))
        print("ready", flush=True)
        sys.stdin.readline()
        began_at = time.monotonic()
        run()
        print(json.dumps([began_at, time.monotonic()]), flush=True)


if __name__ == "__main__":
    main()
