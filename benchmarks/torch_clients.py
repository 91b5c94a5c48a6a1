"""How long many torch clients take to connect to our store, and to torch's own: a process each.

benchmarks/torch_clients.py [--clients COUNT] [--quick]

Prints Markdown. All begin at once, and it ends when each has added to a counter. Torch's client
asks the resolver for the name of the server's address: see docs/stores.md, and compare with
RES_OPTIONS=attempts:0, which keeps it from asking. A process takes about 10 MB.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from datetime import timedelta

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # Each client warns of its look-up.
import torch.distributed as dist  # It reads the variable.

from rallypoint.elastic.stores import TCPStore

LIMIT = timedelta(seconds=600)
QUICK = 20


def main() -> int:
    """Measure and print one table."""
    parser = ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    count = QUICK if given.quick else given.clients
    host = "127.0.0.1" if given.quick else own_address()
    print("| server | clients | seconds |\n| --- | --- | --- |")
    for name, kind in (("ours", TCPStore), ("torch's", dist.TCPStore)):
        print(f"| {name} | {count} | {seconds(kind, host, count):.2f} |", flush=True)
    return 0


def own_address() -> str:
    """The address by which other machines reach this one; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def seconds(kind: Callable[..., object], host: str, count: int) -> float:
    """From the moment at which all may begin until all have written."""
    told, tell = os.pipe()

    def serve() -> None:
        store = kind(host, 0, None, True, LIMIT, wait_for_workers=False)
        os.write(tell, str(store.port).encode())  # type: ignore[attr-defined]
        signal.pause()

    server = forked(serve)
    port = int(os.read(told, 10))
    begin, held = os.pipe()

    def connect() -> None:
        os.close(held)
        os.read(begin, 1)
        dist.TCPStore(host, port, None, False, LIMIT, wait_for_workers=False).add("n", 1)
        os.write(tell, b"x")
        signal.pause()

    pids = [server]
    try:
        pids += [forked(connect) for _ in range(count)]
        began = time.monotonic()
        os.close(held)
        written = 0
        while written < count:
            if not select.select([told], [], [], LIMIT.total_seconds())[0]:
                raise TimeoutError(f"{written} of {count} clients have written")
            written += len(os.read(told, 4096))
        return time.monotonic() - began
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for fd in (told, tell, begin):
            os.close(fd)


def forked(work: Callable[[], None]) -> int:
    """A process that does this until it is killed."""
    pid = os.fork()
    if not pid:
        signal.alarm(2 * int(LIMIT.total_seconds()))  # Nothing remains if the parent is killed.
        try:
            work()
        finally:
            os._exit(1)
    return pid


if __name__ == "__main__":
    sys.exit(main())
