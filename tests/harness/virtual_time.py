"""One process in virtual time: its timers and its waits take no time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.simulator.loop import Dialler, MachineClock, ProcessLoop, Schedule, new_loop

from rallypoint.coordinator.connection import FramedConnection


class NoNetwork:
    """Reaches nobody."""

    async def dial(
        self, loop: ProcessLoop, make: Callable[[], FramedConnection], host: str, port: int
    ) -> asyncio.Transport:
        raise OSError("there is no network")


def in_virtual_time(body: Callable[[], Awaitable[None]], network: Dialler | None = None) -> None:
    """Run this to its end, with `asyncio.sleep` to let time pass. Raises what it or a callback of
    its loop raises, and AssertionError if it would wait for ever."""
    schedule = Schedule()
    crashes: list[BaseException] = []
    loop = new_loop(
        schedule,
        MachineClock(schedule, rate=1.0, offset_s=0.0),
        network or NoNetwork(),
        "host",
        lambda _, error: crashes.append(error),
    )

    async def whole() -> None:
        await body()

    task = loop.run(lambda: loop.create_task(whole()))
    while not task.done() and not crashes and schedule.step():
        pass
    try:
        if crashes:
            raise crashes[0]
        assert task.done(), "it waits for ever"
        task.result()
    finally:
        loop.discard()
