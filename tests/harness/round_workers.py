"""Commands to run as workers, and how to wait for their ends."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from tests.harness.descriptors import open_descriptors, own_children
from tests.harness.prepared import processes
from tests.harness.proc import processes_with

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process import syscalls
from rallypoint.process.guard import Guard
from rallypoint.process.spawn import WorkerCommand, WorkerProcess, spawn_workers
from rallypoint.process.workers import WorkerSet

LIMIT_S = 30.0
ENVIRONMENT = dict(os.environ)


def no_pidfds(_pid: int) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


either_way = pytest.mark.parametrize("pidfd_open", [syscalls.pidfd_open, no_pidfds])


def spawn_worker(
    argv: Sequence[str],
    environ: Mapping[str, str],
    guard: Guard | None = None,
    stdout_fd: int | None = None,
    stderr_fd: int | None = None,
) -> WorkerProcess:
    """Start one worker."""
    return spawn_workers([WorkerCommand(argv, environ, stdout_fd, stderr_fd)], guard)[0]


def python(code: str) -> WorkerCommand:
    return WorkerCommand([sys.executable, "-S", "-E", "-c", code], ENVIRONMENT)


def sleeping(seconds: str) -> list[int]:
    """Processes `sleep <seconds>`."""
    wanted = f"sleep\0{seconds}\0".encode()
    return processes_with("cmdline", lambda command: command == wanted)


@contextmanager
def nothing_left() -> Iterator[None]:
    """Assert that no child and no descriptor is left. What forks programs for tests is started
    before: it stays for later tests."""
    processes.prepare()
    before, children = open_descriptors(), own_children()
    yield
    assert open_descriptors() - before == set()
    assert own_children() - children == set()


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """For each test of a file that imports it."""
    with nothing_left():
        yield


class Outcomes(dict[int, WorkerExit]):
    """Collects exits by local rank; each may come once."""

    def note(self, exit_: WorkerExit) -> None:
        assert exit_.local_rank not in self
        self[exit_.local_rank] = WorkerExit(exit_.code, exit_.signal, exit_.core_dumped)


def started(
    *commands: Sequence[str],
    guard: Guard | None = None,
    pidfd_open: syscalls.PidfdOpen = syscalls.pidfd_open,
) -> tuple[WorkerSet, Outcomes]:
    """Workers of these commands, one for each local rank, and what will be told of their ends."""
    workers, outcomes = WorkerSet(guard, pidfd_open=pidfd_open), Outcomes()
    workers.start([WorkerCommand(argv, ENVIRONMENT) for argv in commands], outcomes.note)
    return workers, outcomes
