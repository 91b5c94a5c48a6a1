"""What a worker writes, and nobody expected, ends neither its agent nor what others have said."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from tests.integration.round_workers import until

from rallypoint.agent.board import WorkerBoard
from rallypoint.agent.watchdog import Watchdog
from rallypoint.observe.faults import Faults


def fail(*_: object) -> None:
    raise OverflowError("too large")


class Uncountable(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise OverflowError("too large")


def test_what_a_worker_writes_on_its_bell_is_told_once_and_others_are_heard(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        told: list[str] = []
        unhandled: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        board = WorkerBoard.open(str(tmp_path), 0, 2)
        board.faults = Faults(told.append)
        heard: list[None] = []
        board.watch(fail)
        board.watch(lambda: heard.append(None))
        fd = os.open(board.bell_path, os.O_WRONLY | os.O_NONBLOCK)
        for count in (1, 2):
            os.write(fd, b"ring\n")
            await until(lambda count=count: len(heard) == count)  # type: ignore[misc]
        os.close(fd)
        board.close()
        (line,) = told
        assert line.startswith("what a worker wrote on its board can't be handled: unexpected Over")
        assert board.faults.total == 2
        assert unhandled == []

    asyncio.run(body())


def test_a_request_of_a_timer_that_raises_is_told_once_and_others_are_heard(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        told: list[str] = []
        board = WorkerBoard.open(str(tmp_path), 0, 1)
        board.faults = Faults(told.append)
        board.pids = Uncountable()
        watchdog = Watchdog(board, 0, lambda rank, number: False)
        fd = os.open(board.bell_path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"{1}\n{2}\n")
        await until(lambda: board.faults.total == 2)
        os.close(fd)
        watchdog.close()
        board.close()
        assert len(told) == 1
        assert told[0].startswith("a worker's request of a timer can't be handled: unexpected Over")

    asyncio.run(body())
