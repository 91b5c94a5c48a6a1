"""What a job is told by nobody: that a wait has ended, or that a node was lost.

When the job machine raises on what a node says, that node's session ends. Here there is nobody
whose session could end, and what was not applied may be what the job waits for: so it is tried
again, and a job that can't take it is ended, with the reason, rather than left to hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rallypoint.core.job_events import JobEvent
from rallypoint.observe.faults import Faults, describe_fault

TRIES = 3
RETRY_S = 1.0


class OwnEvents:
    """Those of one job. For the thread of the loop. `apply` may raise, `give_up` may not."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        apply: Callable[[JobEvent, float], None],
        faults: Faults,
        give_up: Callable[[str], None],
    ) -> None:
        self._loop, self._apply, self._faults, self._give_up = loop, apply, faults, give_up
        self._closed = False

    def apply(self, event: JobEvent, at: float, tries: int = TRIES) -> None:
        """Tell the job, at once, and later again if need be. `at` is on the clock of the loop."""
        if self._closed:
            return
        try:
            self._apply(event, at)
        except Exception as error:
            self._faults.note(f"{type(event).__name__} could not be applied", error)
            if tries > 1:
                self._loop.call_later(RETRY_S, self.apply, event, at + RETRY_S, tries - 1)
            else:
                self._give_up(describe_fault(error))

    def close(self) -> None:
        """Nothing is tried again."""
        self._closed = True
