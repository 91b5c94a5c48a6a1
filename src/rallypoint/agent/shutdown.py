"""Waiting that a second signal ends, or the first one after the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rallypoint.coordinator.server import Coordinator
from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Record
from rallypoint.core.text import names

MOMENT_S = 0.2
"""What goes as it should is done by then, although nobody waits any more."""

UNTOLD_S = 2.0
"""A host that waits for longer says for whom."""


async def wait_unless(
    hurried: asyncio.Event, waiting: Coroutine[Any, Any, object], limit_s: float
) -> None:
    """Until it is done, at most so long, and only for a moment once `hurried` is set; then it is
    cancelled. Raises what it raises."""
    task = asyncio.ensure_future(waiting)
    hurry = asyncio.ensure_future(hurried.wait())
    try:
        ends: list[asyncio.Future[Any]] = [task, hurry]
        await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if hurry.done():
            await asyncio.wait((task,), timeout=min(limit_s, MOMENT_S))
    finally:
        hurry.cancel()
        task.cancel()
        await asyncio.wait((task, hurry))
    if not task.cancelled():
        task.result()


async def wait_for_others(
    hurried: asyncio.Event, coordinator: Coordinator, limit_s: float, say: Callable[[Record], None]
) -> None:
    """Until every other node has left the job that is hosted here. `limit_s`: each may take its
    grace to stop its workers, and one whose connection is broken comes back within its lease, or is
    lost; one that goes on for longer holds nobody up."""
    untold_s = min(UNTOLD_S, limit_s)
    await wait_unless(hurried, coordinator.wait_empty(), untold_s)
    if (nodes := coordinator.nodes) and not hurried.is_set():
        left_s = limit_s - untold_s
        say(kinds.OTHERS_LEAVING(nodes=names(tuple(nodes)), left_s=left_s))
        await wait_unless(hurried, coordinator.wait_empty(), left_s)
