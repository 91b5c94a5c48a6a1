"""What a worker writes, and nobody expected, ends neither its agent nor what others have said."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from tests.harness.limits import until

from rallypoint.agent.watchdog import Watchdog
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.observe.faults import Faults


def fail(*_: object) -> None:
    raise OverflowError("too large")


class Uncountable(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise OverflowError("too large")


async def test_what_a_worker_writes_to_its_wake_up_pipe_is_told_once_and_others_are_heard(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    unhandled: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    shm = WorkerShm.open(str(tmp_path), 0, 2, Faults(told.append))
    heard: list[None] = []
    shm.watch(fail)
    shm.watch(lambda: heard.append(None))
    fd = os.open(shm.wake_up_path, os.O_WRONLY | os.O_NONBLOCK)
    for count in (1, 2):
        os.write(fd, b"ring\n")
        await until(lambda count=count: len(heard) == count)  # type: ignore[misc]
    os.close(fd)
    shm.close()
    (line,) = told
    assert line.startswith("the shared memory of a worker can't be read: unexpected Over")
    assert shm.faults.total == 2
    assert unhandled == []


async def test_a_request_of_a_timer_that_raises_is_told_once_and_others_are_heard(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    shm = WorkerShm.open(str(tmp_path), 0, 1, Faults(told.append))
    shm.pids = Uncountable()
    watchdog = Watchdog(shm, 0, lambda rank, number: False, told.append)
    fd = os.open(shm.wake_up_path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, b"{1}\n{2}\n")
    await until(lambda: shm.faults.total == 2)
    os.close(fd)
    watchdog.close()
    shm.close()
    assert len(told) == 1
    assert told[0].startswith("a worker's timer request can't be handled: unexpected Over")
