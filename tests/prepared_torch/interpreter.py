"""Interpreters that have torch already: `import torch` costs more than most tests that need it.

A program that is started with one runs in a fork of a process that imported torch once per test
process. It is what the program would be otherwise, but for this: the pid that its parent sees is
that of a client, which passes signals on and ends as the program does.
"""

from __future__ import annotations

import os
import shutil
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
MODULES = (
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


class PreparedInterpreter:
    """`path` can be started as `python` can; its programs find `modules` imported."""

    def __init__(self, folder: Path, modules: Sequence[str]) -> None:
        self._folder = folder
        self.path = self.also()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "socket"))
            listener.listen(128)
            self._server = subprocess.Popen(
                [sys.executable, str(SERVER), str(listener.fileno()), ",".join(modules)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env={**os.environ, **ONE_THREAD, "TMPDIR": str(folder)},
                start_new_session=True,
            )
        self._server.wait(LIMIT_S)  # It has forked the one that stays.

    def also(self, *modules: str) -> str:
        """The path of one whose programs find these modules imported too."""
        path = self._folder / "-".join(["python", *modules])
        where = str(self._folder / "socket")
        text = CLIENT.read_text().replace('SOCKET = ""', f"SOCKET = {where!r}")
        text = text.replace("MODULES: list[str] = []", f"MODULES = {list(modules)!r}")
        path.write_text(f"#!{sys.executable} -IS\n{text}")
        path.chmod(0o700)
        return str(path)

    def close(self) -> None:
        """Ends all that was started."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.read()
        self._server.stdout.close()


@contextmanager
def prepared_interpreter(modules: Sequence[str] = MODULES) -> Iterator[PreparedInterpreter]:
    folder = Path(tempfile.mkdtemp(prefix="torch-", dir="/tmp"))
    try:
        interpreter = PreparedInterpreter(folder, modules)
        try:
            yield interpreter
        finally:
            interpreter.close()
    finally:
        shutil.rmtree(folder)
