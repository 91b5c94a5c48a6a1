"""A server of the store's benchmark, which prints its port: store_server.py torch|asyncio|uvloop"""

from __future__ import annotations

import asyncio
import socket
import sys

from rallypoint.store.access import EVERYBODY, AccessGate
from rallypoint.store.server import StoreServer
from rallypoint.store.server_process import new_event_loop, raise_descriptor_limit


async def serve() -> None:
    """Ours."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
    listener.setblocking(False)
    server = StoreServer(AccessGate(EVERYBODY), print)
    await server.listen(listener)
    print(listener.getsockname()[1], flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    await ended.wait()


def main() -> None:
    """Until stdin ends, as it does with the benchmark however that ends."""
    raise_descriptor_limit()
    if sys.argv[1] == "torch":
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        print(store.port, flush=True)
        sys.stdin.read()
        return
    with asyncio.Runner(loop_factory=lambda: new_event_loop(fast=sys.argv[1] == "uvloop")) as own:
        own.run(serve())


if __name__ == "__main__":
    main()
