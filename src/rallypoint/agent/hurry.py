"""Waiting that a second signal ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

MOMENT_S = 0.2
"""What goes as it should is done by then, although nobody waits any more."""


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
