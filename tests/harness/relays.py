"""A relay whose consoles are files or pipes, and workers that write to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from tests.harness.limits import patience, until

from rallypoint.process.logs.plan import ConsoleRoute, Std, ToRelay
from rallypoint.process.relay.client import Relay
from rallypoint.process.relay.lines import last_lines
from rallypoint.process.relay.messages import FirstOutput, RelayNews, WriteFailed

LIMIT_S = patience(30.0)
RAW = ToRelay(ConsoleRoute.RAW, "", keep_tail=True)


@contextlib.contextmanager
def consoles(out: int, err: int) -> Iterator[None]:
    """Let descriptors 1 and 2 be these while a relay is forked."""
    saved = os.dup(1), os.dup(2)
    os.dup2(out, 1)
    os.dup2(err, 2)
    try:
        with (
            contextlib.redirect_stdout(open(1, "w", closefd=False)),
            contextlib.redirect_stderr(open(2, "w", closefd=False)),
        ):
            yield
    finally:
        for fd, old in zip((1, 2), saved, strict=True):
            os.dup2(old, fd)
            os.close(old)


@contextlib.asynccontextmanager
async def running(
    out: int,
    err: int,
    on_storage_error: Callable[[str, int], None] | None = None,
    on_first_output: Callable[[int], None] | None = None,
) -> AsyncIterator[Relay]:
    """A relay that is stopped in the end; nothing of it may remain."""

    def told(news: RelayNews) -> None:
        match news:
            case WriteFailed(path, number) if on_storage_error is not None:
                on_storage_error(os.fsdecode(path), number)
            case FirstOutput(round_number) if on_first_output is not None:
                on_first_output(round_number)

    before = open_fds()
    with consoles(out, err):
        relay = Relay.start(told)
    try:
        yield relay
    finally:
        await relay.stop(LIMIT_S)
    assert not Path(f"/proc/{relay.process.pid}").exists()
    assert open_fds() - before == set()


async def tail_of(
    relay: Relay, round_number: int, local_rank: int, *, timeout_s: float = 2.0
) -> bytes:
    """The last lines of a worker's stderr."""
    words = await relay.last_words(round_number, local_rank, timeout_s=timeout_s)
    return last_lines(words.stderr[-1].data) if words.stderr else b""


def open_fds() -> set[str]:
    with os.scandir("/proc/self/fd") as entries:
        return {entry.name for entry in entries if os.path.exists(f"/proc/self/fd/{entry.name}")}


@contextlib.contextmanager
def file_console(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.asynccontextmanager
async def relay_to(path: Path, *told: Any, **named: Any) -> AsyncIterator[Relay]:
    """A relay whose consoles are a file; what else is given is as for `running`."""
    with file_console(path) as console:
        async with running(console, console, *told, **named) as relay:
            yield relay


def add(relay: Relay, stream: Std, route: ToRelay, *, rank: int = 0, prefix: bytes = b"") -> int:
    return relay.add((1, rank), stream, route, prefix)


def spawn(
    program: str, *args: str, stdout: int | None = None, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """A worker that gets these descriptors; ours are closed."""
    command = [sys.executable, "-S", "-c", program, *args]
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
    for fd in (stdout, stderr):
        if fd is not None:
            os.close(fd)
    return process


async def end_of(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        await until(lambda process=process: process.poll() is not None)  # type: ignore[misc]
        assert process.returncode == 0


async def receive(reader: int, received: bytearray, enough: Callable[[], bool]) -> None:
    """Read the console until there is enough."""
    deadline = time.monotonic() + LIMIT_S
    while not enough():
        assert time.monotonic() < deadline, f"only {len(received)} bytes came"
        try:
            received += os.read(reader, 1 << 16)
        except BlockingIOError:
            await asyncio.sleep(0.001)
