"""Tasks that somebody started, and may end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from rallypoint.rendezvous.session import raise_in_loop


class OwnTasks:
    """For the thread of a loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spend(self, work: Coroutine[Any, Any, None]) -> None:
        """Start one. What it raises must not pass in silence: the loop's exception handler gets
        it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self, keep: asyncio.Task[Any] | None = None) -> None:
        """Cancel all but `keep`. Does not wait."""
        for task in self._tasks - {keep}:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        raise_in_loop(task)
