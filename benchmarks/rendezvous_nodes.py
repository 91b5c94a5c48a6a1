"""N nodes that meet, in processes of their own. Run by `rendezvous.py`; prints one JSON object.

rendezvous_nodes.py KIND N

The nodes are threads of as many processes as there are cores. With a network of its own (`unshare
--net`) the loopback's counters tell the bytes, headers and acknowledgements included. The server is
another process, whose CPU seconds are read from /proc.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

LIMIT_S = 60
RUN_ID = "bench"
TORCHS_SERVER = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""
Call = Callable[[], object]


class Counted:
    """A store whose operations are counted."""

    asked = 0

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if callable(found):
            Counted.asked += 1
        return found


def nodes_of(kind: str, count: int, own: int, port: int) -> list[Call]:
    """What each node calls, prepared as far as it is before it meets the others."""
    makers = {
        "floor": barrier,
        "torch": torchs_handler,
        "compare and swap": swapping_handler,
        "coordinator": coordinator_handler,
    }
    return [makers[kind](port, count) for _ in range(own)]


def torchs_client(port: int) -> Any:
    import torch.distributed as dist

    timeout = timedelta(seconds=LIMIT_S)
    return dist.TCPStore("127.0.0.1", port, timeout=timeout, wait_for_workers=False)


def barrier(port: int, count: int) -> Call:
    store = torchs_client(port)

    def meet() -> None:
        if store.add("came", 1) == count:
            store.set("all", "1")
        store.wait(["all"])

    return meet


def torchs_handler(port: int, count: int) -> Call:
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
        DynamicRendezvousHandler,
        RendezvousTimeout,
    )

    store = torchs_client(port)
    backend = C10dRendezvousBackend(Counted(store), RUN_ID)
    timeout = RendezvousTimeout(join=timedelta(seconds=LIMIT_S))
    handler = DynamicRendezvousHandler.from_backend(
        RUN_ID, store, backend, count, count, "127.0.0.1", timeout
    )
    return lambda: handler.next_rendezvous()


def swapping_handler(port: int, count: int) -> Call:
    from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from rallypoint.elastic.rendezvous.dynamic_rendezvous import (
        DynamicRendezvousHandler,
        RendezvousTimeout,
    )

    store = torchs_client(port)
    backend = C10dRendezvousBackend(Counted(store), RUN_ID)
    timeout = RendezvousTimeout(join=timedelta(seconds=LIMIT_S))
    return DynamicRendezvousHandler.from_backend(
        RUN_ID, store, backend, count, count, "127.0.0.1", timeout
    ).next_rendezvous


def library(module: str, before: str) -> Any:
    """A module of the library, which versions that `make versions` compares with have elsewhere."""
    try:
        return importlib.import_module(f"rallypoint.elastic.rendezvous.{module}")
    except ModuleNotFoundError:
        return importlib.import_module(f"rallypoint.rendezvous.{before}")


def coordinator_handler(port: int, count: int) -> Call:
    handler: Any = library("registry", "registry").get_rendezvous_handler(
        library("api", "parameters").RendezvousParameters(
            "tcp",
            f"127.0.0.1:{port}",
            RUN_ID,
            count,
            count,
            "127.0.0.1",
            is_host=False,
            token=os.environ["RALLYPOINT_TOKEN"],
            join_timeout=LIMIT_S,
        )
    )
    meet: Call = handler.next_rendezvous
    return meet


def count_messages_of_sessions() -> None:
    module = importlib.import_module("rallypoint.coordinator.connection")
    if not hasattr(module, "ClientConnection"):  # in versions that `make versions` compares with
        module = importlib.import_module("rallypoint.rendezvous.connection")

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            Counted.asked += 1
            return call(*args)

        return counted

    module.ClientConnection.send = counting(module.ClientConnection.send)


@contextmanager
def server_of(kind: str) -> Iterator[tuple[int, int]]:
    """Its port and its process id."""
    command = [sys.executable, "-c", TORCHS_SERVER]
    if kind == "coordinator":
        command = [sys.executable, "-m", "rallypoint", "serve", "--host", "127.0.0.1", "--port=0"]
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=both, text=True) as server:
        try:
            yield listening_port(server), server.pid
        finally:
            server.terminate()


def listening_port(server: subprocess.Popen[str]) -> int:
    assert server.stdout is not None
    for line in server.stdout:
        if line.strip().isdigit():
            return int(line)
        if "127.0.0.1:" in line:
            return int(line.partition("127.0.0.1:")[2].split()[0].strip(" ,;:"))
    raise SystemExit("the server did not start")


def cpu_s(pid: int) -> float:
    """What all threads of a process have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def loopback_bytes() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    [line] = [line for line in lines if line.strip().startswith("lo:")]
    return int(line.partition(":")[2].split()[8])


def bring_loopback_up() -> None:
    """In a network of our own it is down at first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14s", b"lo", 0, b"")
        flags = struct.unpack("16sh14s", fcntl.ioctl(probe, 0x8913, request))[1]
        if not flags & 1:
            fcntl.ioctl(probe, 0x8914, struct.pack("16sh14s", b"lo", flags | 1, b""))


@contextmanager
def shares_of(kind: str, count: int, port: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that hold the nodes between them, one for each core, ready to go."""
    number = min(count, os.cpu_count() or 1)
    pipe = subprocess.PIPE
    shares = []
    for share in range(number):
        own = len(range(share, count, number))
        command = [sys.executable, __file__, kind, str(count), str(own), str(port)]
        shares.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
    try:
        for process in shares:
            hear(process)
        yield shares
    finally:
        for process in shares:
            process.kill()
            process.wait()


def hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("the nodes did not meet")
    return json.loads(line)


def meet(kind: str, count: int, own: int, port: int) -> None:
    """Some of the nodes, in this process, when told."""
    if kind == "coordinator":
        count_messages_of_sessions()
    calls = nodes_of(kind, count, own, port)
    gate = threading.Barrier(own + 1)

    def node(call: Call) -> float:
        gate.wait()
        call()
        return time.monotonic()

    with ThreadPoolExecutor(own) as threads:
        waiting = [threads.submit(node, call) for call in calls]
        print(json.dumps("ready"), flush=True)
        sys.stdin.readline()
        Counted.asked = 0
        gate.wait()
        ended_at = max(future.result() for future in waiting)
        print(json.dumps([ended_at, Counted.asked]), flush=True)
        sys.stdin.read()


def measure(kind: str, count: int) -> None:
    bring_loopback_up()
    os.environ.setdefault("RALLYPOINT_TOKEN", secrets.token_hex(32))
    with server_of(kind) as (port, server), shares_of(kind, count, port) as shares:
        sent, used = loopback_bytes(), cpu_s(server)
        began_at = time.monotonic()
        for process in shares:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        ended = [hear(process) for process in shares]
        found = {
            "seconds": max(at for at, _ in ended) - began_at,
            "server_cpu_s": cpu_s(server) - used,
            "bytes_per_node": (loopback_bytes() - sent) / count,
            "messages_per_node": sum(asked for _, asked in ended) / count,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        meet(sys.argv[1], *map(int, sys.argv[2:]))
