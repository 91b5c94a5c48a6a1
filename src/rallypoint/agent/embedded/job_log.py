"""Events of an agent inside a program, as records of the logger `rallypoint`.

A program that has not set up logging sees warnings only, on stderr, as Python does with every
logger. Logging handlers may block, and heartbeats must not: they run in another thread.
"""

from __future__ import annotations

import logging

from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import ReportedBy
from rallypoint.observe.printing import visible
from rallypoint.observe.queue import BoundedQueue
from rallypoint.observe.records import AgentEvent, Observer, StatusView

LAST_LINES_S = 2.0
"""How long the last lines may take."""
WAIT_LOGGED_S = 5.0
"""A node without a round logs what it waits for after this."""

_log = logging.getLogger("rallypoint")


class JobLog(Observer):
    """Writes events to the logger `rallypoint`. `close` when the agent has ended."""

    def __init__(self) -> None:
        self._lines: BoundedQueue[tuple[int, str]] = BoundedQueue(lambda line: _log.log(*line))
        self._reported_wait = ""

    def event(self, event: AgentEvent) -> None:
        if event.kind.reported_by is not ReportedBy.HOST_TO_HANDLERS:
            who = f"rallypoint {event.node}" if event.node else "rallypoint"
            self._log(event.kind.level, f"{who}: {event.message}")

    def status(self, view: StatusView) -> None:
        """Events tell most of it; but the first wait may be for nodes that nobody has started."""
        if (
            view.nodes
            or view.for_s < WAIT_LOGGED_S
            or view.waiting_for in ("", self._reported_wait)
        ):
            return
        self._reported_wait = view.waiting_for
        wait = kinds.WAIT(what=view.waiting_for)
        self._log(wait.kind.level, f"rallypoint: {wait.text}")

    def warn(self, text: str) -> None:
        """Log what no event says."""
        self._log(logging.WARNING, f"rallypoint: {text}")

    def close(self) -> None:
        """Wait for the last lines, but not for ever."""
        self._lines.close(LAST_LINES_S)

    def _log(self, level: int, line: str) -> None:
        if _log.isEnabledFor(level):
            self._lines.put((level, visible(line)))
