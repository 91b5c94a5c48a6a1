"""The lines of a command that serves until it is told to end: events, for people or as JSON."""

from __future__ import annotations

import queue
import threading
import time

from msgspec import structs

from rallypoint.cli.render import render_event, render_event_json
from rallypoint.core.event_kinds import Record
from rallypoint.core.wording import job_name
from rallypoint.observe.printing import say
from rallypoint.observe.records import AgentEvent, FieldValue

_UNWRITTEN_MAX = 10_000
_LAST_LINES_S = 2.0


class EventLines:
    """Writes lines to stderr from a thread: a terminal that was paused must not stop the jobs."""

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self._json, self._quiet = json, quiet
        self._unwritten: queue.Queue[str | None] = queue.Queue(_UNWRITTEN_MAX)
        self._dropped = 0
        self._writer = threading.Thread(target=self._write, name="rallypoint-lines", daemon=True)
        self._writer.start()

    def record(self, run_id: str, record: Record) -> None:
        """Something happened to a job, or (without a run id) to a stranger's connection."""
        text = f"{job_name(run_id)}: {record.text}" if run_id else record.text
        self.say(structs.replace(record, text=text), run_id)

    def say(self, record: Record, run_id: str = "") -> None:
        """Never blocks; a line that finds no room is counted, and the next one tells."""
        if self._quiet:
            return
        fields: tuple[tuple[str, FieldValue], ...] = (("job", run_id),) if run_id else ()
        if self._dropped:
            fields += (("dropped_lines", self._dropped),)
        event = AgentEvent(record.kind, record.text, time.time(), record.node_id, fields=fields)
        line = render_event_json(event) if self._json else render_event(event)
        try:
            self._unwritten.put_nowait(line)
            self._dropped = 0
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Wait a little for what is unwritten."""
        try:
            self._unwritten.put(None, timeout=_LAST_LINES_S)
        except queue.Full:
            return
        self._writer.join(_LAST_LINES_S)

    def _write(self) -> None:
        while (line := self._unwritten.get()) is not None:
            say(line)  # or not, when nobody reads any more: the jobs go on
