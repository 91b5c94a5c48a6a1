"""The lines of a command that serves until it is told to end: events, for people or as JSON."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.cli.render import render_event, render_event_json
from rallypoint.core.event_kinds import Record
from rallypoint.core.text import job_name
from rallypoint.observe.printing import say
from rallypoint.observe.queue import BoundedQueue
from rallypoint.observe.records import FieldValue, event_now

_LAST_LINES_S = 2.0


class EventLines:
    """Writes lines to stderr from a thread: a terminal that was paused must not stop the jobs."""

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self._json, self._quiet = json, quiet
        self._lines: BoundedQueue[str] = BoundedQueue(say)
        self._reported_lost = 0

    def record(self, run_id: str, record: Record) -> None:
        """Something happened to a job, or (without a run id) to a stranger's connection."""
        text = f"{job_name(run_id)}: {record.text}" if run_id else record.text
        self.say(replace(record, text=text), run_id)

    def say(self, record: Record, run_id: str = "") -> None:
        """Never blocks; a line that finds no room is counted, and the next one says so."""
        if self._quiet:
            return
        fields: tuple[tuple[str, FieldValue], ...] = (("job", run_id),) if run_id else ()
        lost = self._lines.lost
        if lost > self._reported_lost:
            fields += (("dropped_lines", lost - self._reported_lost),)
        event = event_now(record, record.node_id, fields=fields)
        self._lines.put(render_event_json(event) if self._json else render_event(event))
        if self._lines.lost == lost:
            self._reported_lost = lost

    def close(self) -> None:
        """Wait a little for what is unwritten."""
        self._lines.close(_LAST_LINES_S)
