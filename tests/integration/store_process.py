"""A stand-alone store of its own process, on loopback, for tests that need nothing of an agent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

SERVE = """
import asyncio, socket
from rallypoint.store.access import AccessGate
from rallypoint.store.server import StoreServer

async def main():
    listener = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
    listener.setblocking(False)
    server = StoreServer(AccessGate(open_access=True), b"", lambda line: None)
    await server.listen(listener)
    print(listener.getsockname()[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
LIMIT_S = 60.0


class RunningStore(NamedTuple):
    """Where it listens, and which process it is."""

    port: int
    process: subprocess.Popen[str]


@contextmanager
def store_process() -> Iterator[RunningStore]:
    """Up when this returns; ended on leaving, and it must have lived until then."""
    process = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield RunningStore(int(process.stdout.readline()), process)
        assert process.poll() is None, f"the store ended with {process.returncode}"
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
