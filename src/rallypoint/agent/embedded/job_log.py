"""What an agent inside a program tells: lines of the logger `rallypoint`.

Quiet unless something went wrong: then a program that has not set up logging sees it on stderr, as
Python does with every warning. A logger's handlers may block, which a heartbeat must not: they run
in a thread of their own.
"""

from __future__ import annotations

import logging
import queue
import threading

from rallypoint.core import event_kinds as kinds
from rallypoint.observe.printing import visible
from rallypoint.observe.records import AgentEvent, StatusView

LAST_LINES_S = 2.0
"""How long the last lines may take."""
WAIT_TOLD_S = 5.0
"""A node that has met nobody for so long says what it waits for."""

_log = logging.getLogger("rallypoint")


class JobLog:
    """An observer. `close` when the agent has ended."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._told_wait = ""

    def event(self, event: AgentEvent) -> None:
        who = f"rallypoint {event.node}" if event.node else "rallypoint"
        self._tell(event.kind.level, f"{who}: {event.message}")

    def status(self, view: StatusView) -> None:
        """Events tell most of it; but the first wait may be for nodes that nobody has started."""
        if view.nodes or view.for_s < WAIT_TOLD_S or view.waiting_for in ("", self._told_wait):
            return
        self._told_wait = view.waiting_for
        self._tell(kinds.WAIT.level, f"rallypoint: {kinds.WAIT(what=view.waiting_for).text}")

    def warn(self, text: str) -> None:
        """What no event tells."""
        self._tell(logging.WARNING, f"rallypoint: {text}")

    def _tell(self, level: int, line: str) -> None:
        if not _log.isEnabledFor(level):
            return
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="rallypoint-log", daemon=True)
            self._writer.start()
        self._lines.put((level, visible(line)))

    def close(self) -> None:
        """Wait for the last lines, but not for ever."""
        if self._writer is not None:
            self._lines.put(None)
            self._writer.join(LAST_LINES_S)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            _log.log(*line)
