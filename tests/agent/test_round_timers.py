"""The timers that the workers of one round set, as their agent keeps them."""

from __future__ import annotations

import asyncio
import time

from tests.harness.virtual_time import in_virtual_time

from rallypoint.agent.timers import Expiry, WorkerTimers
from rallypoint.wire.timer_lines import RELEASE, format_timer_line

WORKER, OTHER = 101, 102


def begins(scope: str, length_s: float, pid: int = WORKER) -> bytes:
    return format_timer_line(pid, scope, time.time() + length_s, 9, length_s).encode()


def is_over(scope: str, pid: int = WORKER) -> bytes:
    return format_timer_line(pid, scope, RELEASE, 0).encode()


def test_W6_a_worker_that_hangs_is_ended_though_an_earlier_block_of_it_was_over_in_time() -> None:
    ended: list[Expiry] = []

    async def body() -> None:
        timers = WorkerTimers((WORKER,), ended.append)
        timers.line(begins("load data", 1000.0))
        await asyncio.sleep(500.0)
        timers.line(is_over("load data"))
        timers.line(begins("all reduce", 1000.0))
        await asyncio.sleep(900.0)
        assert ended == [], "its time is not over"
        await asyncio.sleep(200.0)

    in_virtual_time(body)
    assert ended == [Expiry(0, "timer 'all reduce' expired after 1000 s", 9)]


def test_W6_each_worker_that_hangs_is_ended_at_its_own_time() -> None:
    ended: list[int] = []

    async def body() -> None:
        timers = WorkerTimers((WORKER, OTHER), lambda expiry: ended.append(expiry.local_rank))
        timers.line(begins("step", 2000.0))
        timers.line(begins("step", 1000.0, OTHER))
        await asyncio.sleep(1500.0)
        assert ended == [1]
        await asyncio.sleep(1000.0)

    in_virtual_time(body)
    assert ended == [1, 0]
