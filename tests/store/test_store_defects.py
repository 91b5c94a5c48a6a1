"""Nine defects of torch's own store server that this one does not have.

Where it is cheap the stock server of torch 2.13 runs the same test, and is expected to fail it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.harness.limits import patience
from tests.harness.store_client import PING, VALIDATE, RawClient, get_key, set_key, text
from torch.distributed import DistStoreError, TCPStore

LIMIT_S = patience(60.0)
STOCK = """
import os, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, os.getpid(), flush=True)
time.sleep(1000)
"""
LOOKUPS = (
    "socket.getnameinfo",
    "socket.gethostbyaddr",
    "socket.gethostbyname",
    "socket.getaddrinfo",
)
OURS = """
import asyncio, os, socket, sys
from rallypoint.store.access import AccessGate, AccessPolicy
from rallypoint.store.server_process import new_event_loop
from rallypoint.store.server import StoreServer

async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = StoreServer(AccessGate(AccessPolicy()), lambda line: None)
    await server.listen(listener)
    sys.addaudithook(lambda event, _: os._exit(9) if event in LOOKUPS else None)
    print(listener.getsockname()[1], os.getpid(), flush=True)
    await asyncio.Event().wait()

with asyncio.Runner(loop_factory=new_event_loop) as runner:
    runner.run(main())
""".replace("LOOKUPS", repr(LOOKUPS))


class Server:
    """A server in its own process."""

    def __init__(self, python: str, program: str) -> None:
        self.process = subprocess.Popen([python, "-c", program], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port, self._pid = map(int, self.process.stdout.readline().split())

    def torch(self, timeout_s: float = LIMIT_S) -> TCPStore:
        return TCPStore(
            "127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=timeout_s)
        )

    def raw(self, greeting: bytes = VALIDATE) -> RawClient:
        client = RawClient(self.port)
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if greeting:
            assert client.ask(greeting + PING, 4) == PING[1:]
        return client

    def memory(self) -> int:
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def server(python: str, program: str) -> Iterator[Server]:
    running = Server(python, program)
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.fixture(scope="module")
def ours() -> Iterator[Server]:
    yield from server(sys.executable, OURS)


@pytest.fixture(scope="module")
def stock(torch_python: str) -> Iterator[Server]:
    yield from server(torch_python, STOCK)


def wait_for(*keys: bytes) -> bytes:
    return b"\x06" + len(keys).to_bytes(8, "little") + b"".join(map(text, keys))


def push(key: bytes, value: bytes) -> bytes:
    return b"\x0e" + text(key) + text(value)


def pop(key: bytes) -> bytes:
    return b"\x0f" + text(key)


def is_answered(client: RawClient, within_s: float = 0.5) -> bool:
    """Whether anything comes: for what must not come, a pause that it would have come in."""
    client.socket.settimeout(within_s)
    try:
        return client.socket.recv(1) != b""
    except TimeoutError:
        return False
    finally:
        client.socket.settimeout(LIMIT_S)


def holds(check: Callable[[Server], bool], ours: Server, stock: Server) -> None:
    assert check(ours)
    assert not check(stock), "torch's server does this right now: the page on defects is outdated"


def test_stock_defect_1_who_was_woken_by_a_push_is_not_woken_by_the_next(
    ours: Server, stock: Server
) -> None:
    def check(server: Server) -> bool:
        with server.raw() as consumer, server.raw() as producer:
            consumer.socket.sendall(wait_for(b"q1"))
            assert producer.ask(PING, 4) == PING[1:]
            assert not is_answered(consumer, 0.2)
            producer.socket.sendall(push(b"q1", b"1"))
            assert consumer.read(1) == b"\0"
            assert consumer.ask(pop(b"q1"), 17) == b"\1" + bytes(7) + text(b"1")
            consumer.socket.sendall(wait_for(b"never-1"))
            assert not is_answered(consumer, 0.2)
            producer.socket.sendall(push(b"q1", b"2"))
            return not is_answered(consumer)

    holds(check, ours, stock)


def test_stock_defect_2_a_wait_for_a_filled_queue_and_a_key_ends_with_the_key(
    ours: Server, stock: Server
) -> None:
    def check(server: Server) -> bool:
        with server.raw() as client, server.raw() as other:
            assert other.ask(push(b"q2", b"1") + PING, 4) == PING[1:]
            client.socket.sendall(wait_for(b"q2", b"key-2"))
            assert not is_answered(client, 0.2)
            other.socket.sendall(set_key(b"key-2", b"v"))
            return is_answered(client)

    holds(check, ours, stock)


def test_stock_defect_3_validate_is_enforced(ours: Server, stock: Server) -> None:
    def check(server: Server) -> bool:
        with server.raw(b"") as client:
            client.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            client.socket.settimeout(0.5)
            try:
                return client.is_closed()
            except TimeoutError:
                return False

    holds(check, ours, stock)


def test_stock_defect_4_validate_may_come_in_two_pieces(ours: Server, stock: Server) -> None:
    def check(server: Server) -> bool:
        with server.raw(b"") as client:
            client.socket.sendall(VALIDATE[:2])
            time.sleep(0.2)  # so that the pieces are two on the wire: nothing tells of the first
            try:
                return client.ask(VALIDATE[2:] + PING, 4) == PING[1:]
            except ConnectionError:
                return False

    holds(check, ours, stock)


def test_stock_defect_5_a_multi_set_is_atomic_and_linear(ours: Server, stock: Server) -> None:
    def check(server: Server) -> bool:
        with server.raw() as writer, server.raw() as reader:
            whole = b"\x0b" + (2).to_bytes(8, "little")
            whole += text(b"a5") + text(b"1") + text(b"b5") + text(b"2")
            writer.socket.sendall(whole[:-1])
            time.sleep(0.2)
            early = reader.ask(b"\x03" + text(b"a5"), 8)
            return early == bytes(8)

    holds(check, ours, stock)
    store, count = ours.torch(), 120_000
    keys = [f"multi-{i}" for i in range(count)]
    store.multi_set(keys, ["x"] * count)
    assert store.num_keys() >= count
    assert store.multi_get([keys[0], keys[-1]]) == [b"x", b"x"]


def test_stock_defect_6_no_name_is_looked_up_for_who_connects(ours: Server) -> None:
    """The server of these tests ends at the first look-up: see `LOOKUPS`."""
    for _ in range(3):
        ours.torch().set("k6", "v")
    assert ours.process.poll() is None


def test_stock_defect_7_who_does_not_read_makes_the_server_hold_little(
    ours: Server, stock: Server
) -> None:
    size = 8 << 20

    def check(server: Server) -> bool:
        store = server.torch()
        store.set("big", "x" * size)
        assert store.num_keys() > 0  # it has been stored
        with server.raw() as client, server.raw() as other:
            before = server.memory()
            assert client.ask(get_key(b"/big") * 40, 8) == size.to_bytes(8, "little")
            end = time.monotonic() + 3  # what must not come is given some time to come
            while server.memory() - before < 8 * size:
                if time.monotonic() > end:
                    return True
                assert other.ask(PING, 4) == PING[1:]
                assert not is_answered(other, 0.05)  # The processor is the server's meanwhile.
            return False

    holds(check, ours, stock)


def test_stock_defect_8_a_compare_set_that_fails_wakes_nobody(ours: Server, stock: Server) -> None:
    def check(server: Server) -> bool:
        with server.raw() as waiter:
            waiter.socket.sendall(wait_for(b"/missing-8"))
            assert not is_answered(waiter, 0.2)
            assert server.torch().compare_set("missing-8", "x", "y") == b"x"
            return not is_answered(waiter)

    holds(check, ours, stock)
    store = ours.torch(0.2)
    with pytest.raises(DistStoreError, match="wait timeout"):
        store.get("missing-8")


def test_stock_defect_9_what_a_blocking_pop_was_woken_for_is_kept_for_it(
    ours: Server, stock: Server
) -> None:
    def check(server: Server) -> bool:
        with server.raw() as consumer, server.raw() as thief:
            consumer.socket.sendall(wait_for(b"/q9"))
            assert not is_answered(consumer, 0.2)
            server.torch().queue_push("q9", "1")
            assert consumer.read(1) == b"\0"
            taken = thief.ask(pop(b"/q9"), 8)
            return taken == bytes(8) and consumer.ask(pop(b"/q9"), 17)[-1:] == b"1"

    holds(check, ours, stock)
