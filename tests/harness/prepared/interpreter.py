"""Interpreters that have imported already what their programs need.

A program that is started with one runs in a fork of a process that has imported it once per test
process. `processes.py` gives such programs to tests. Programs that others start need a path to
start: there is one for torch, whose import costs more than most tests that need it. They are what
they would be otherwise, but for this: the pid that their parent sees is that of a client, which
passes signals on and ends as the program does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SERVER = Path(__file__).with_name("server.py")
CLIENT = Path(__file__).with_name("client.py")
LIMIT_S = 60.0
OF_TORCH = (
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.events",
    "torch.distributed.elastic.timer",
    "torch.distributed.elastic.utils.logging",
    "torch.distributed.launcher.api",
    "torch.nn.parallel",
)
"""`torch._dynamo` for DistributedDataParallel, which imports it when it is first used.

Not `torch.distributed.run`: `python -m` warns of a module that is imported already.
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Threads don't survive a fork."""


class Server:
    """A process that has imported `modules`, and forks one for each who asks at `address`."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="prepared-", dir="/tmp"))
        self.address = str(self.folder / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(128)
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(listener.fileno()), ",".join(modules)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env={**os.environ, **ONE_THREAD, "TMPDIR": str(self.folder)},
            )
        self._process.wait(LIMIT_S)  # It has forked the one that stays.

    def close(self) -> None:
        """Ends it, and all programs that have a client."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.read()
        self._process.stdout.close()

    def let_go(self) -> None:
        """As `close`, but waits for nothing: a program that a test has left may hold a pipe."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class PreparedInterpreter:
    """`path` can be started as `python` can; its programs find the server's modules imported."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.path = self.also()

    def also(self, *modules: str) -> str:
        """The path of one whose programs find these modules imported too."""
        path = self._server.folder / "-".join(["python", *modules])
        text = CLIENT.read_text().replace('SOCKET = ""', f"SOCKET = {self._server.address!r}")
        text = text.replace("MODULES: list[str] = []", f"MODULES = {list(modules)!r}")
        path.write_text(f"#!{sys.executable} -IS\n{text}")
        path.chmod(0o700)
        return str(path)


@contextmanager
def prepared_interpreter(modules: Sequence[str] = OF_TORCH) -> Iterator[PreparedInterpreter]:
    server = Server(modules)
    try:
        yield PreparedInterpreter(server)
    finally:
        server.close()
