"""Waiting at the end of an agent, which a second signal ends (A5)."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.agent.helper_processes import wait_unless


async def for_ever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("cancelled")


def test_A5_what_is_done_in_time_is_waited_for() -> None:
    asyncio.run(wait_unless(asyncio.Event(), asyncio.sleep(0.0), 600.0))


def test_A5_a_wait_ends_with_its_limit() -> None:
    ended: list[str] = []
    asyncio.run(wait_unless(asyncio.Event(), for_ever(ended), 0.0))
    assert ended in ([], ["cancelled"]), "it may not have begun"


@pytest.mark.parametrize("is_late", [False, True])
async def test_A5_a_second_signal_ends_a_wait_that_has_begun_or_not(is_late: bool) -> None:
    hurried, ended = asyncio.Event(), list[str]()
    if is_late:
        asyncio.get_running_loop().call_soon(hurried.set)
    else:
        hurried.set()
    await wait_unless(hurried, for_ever(ended), 600.0)
    assert ended == ["cancelled"]


async def test_A5_what_needs_no_waiting_is_done_all_the_same() -> None:
    hurried = asyncio.Event()
    hurried.set()
    done: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append("sent")

    await wait_unless(hurried, work(), 600.0)
    assert done == ["sent"]


def test_what_it_raises_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(wait_unless(asyncio.Event(), fail(), 600.0))
