"""What an agent inside a program tells: lines of the logger `rallypoint`.

Quiet unless something went wrong: then a program that has not set up logging sees it on stderr, as
Python does with every warning. A logger's handlers may block, which a heartbeat must not: they run
in a thread of their own.
"""

from __future__ import annotations

import logging
import queue
import threading

from rallypoint.observe.observer import StatusView
from rallypoint.observe.records import AgentEvent

LAST_LINES_S = 2.0
"""How long the last lines may take."""
ROUTINE = frozenset(
    {
        "meeting",
        "node_joined",
        "wait",
        "waiting",
        "round_joined",
        "session_resumed",
        "workers_started",
        "workers_stopped",
        "succeeded",
    }
)

_log = logging.getLogger("rallypoint")


class JobLog:
    """An observer. `close` when the agent has ended."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None

    def event(self, event: AgentEvent) -> None:
        level = logging.INFO if event.name in ROUTINE else logging.WARNING
        if not _log.isEnabledFor(level):
            return
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="rallypoint-log", daemon=True)
            self._writer.start()
        who = f"rallypoint {event.node}" if event.node else "rallypoint"
        self._lines.put((level, f"{who}: {event.message}"))

    def status(self, view: StatusView) -> None:
        """Events tell the same."""

    def close(self) -> None:
        """Wait for the last lines, but not for ever."""
        if self._writer is not None:
            self._lines.put(None)
            self._writer.join(LAST_LINES_S)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            _log.log(*line)
