"""Processes that use the shared memory of an agent as its workers do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rallypoint.agent.worker_shm import WorkerShm

SERVE = """
import os, sys
from rallypoint import worker
for line in sys.stdin:
    print(eval(line), flush=True)
"""


class Worker:
    """A process that evaluates what it is told, in a session of its own as a worker has."""

    def __init__(
        self,
        shm: WorkerShm,
        local_rank: int,
        program: str = SERVE,
        environ: Mapping[str, str] = {},
    ) -> None:
        own = {"RALLYPOINT_SHM": shm.path, "LOCAL_RANK": str(local_rank)}
        env = {**os.environ, **own, **environ}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ask(self, expression: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return self.line()

    def line(self) -> str:
        """What it prints next."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@contextmanager
def workers(
    shm: WorkerShm, count: int, program: str = SERVE, environ: Mapping[str, str] = {}
) -> Iterator[list[Worker]]:
    started = [Worker(shm, rank, program, environ) for rank in range(count)]
    shm.pids = [worker.process.pid for worker in started]
    try:
        yield started
    finally:
        for worker in started:
            worker.end()


@contextmanager
def a_shm(folder: Path, count: int) -> Iterator[WorkerShm]:
    """What an agent and so many workers share. Nothing of it may remain."""
    folder.mkdir(exist_ok=True)
    shm = WorkerShm.open(str(folder), 3, count)
    try:
        yield shm
    finally:
        shm.close()
        shm.close()
    assert os.listdir(folder) == []


@contextmanager
def working(
    folder: Path, count: int, program: str = SERVE
) -> Iterator[tuple[WorkerShm, list[Worker]]]:
    """So many workers, and what they share with their agent."""
    with a_shm(folder, count) as shm, workers(shm, count, program) as started:
        yield shm, started
