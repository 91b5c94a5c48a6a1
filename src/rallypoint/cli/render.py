"""Events and states as text: pure functions from records to lines.

An event is one plain line, `rallypoint 12:04:05: <message>`, in local time; with several nodes
the node's name stands before the colon, because their outputs are often merged. `grep ^rallypoint`
finds the agent's lines among the workers'. As JSON it is one object per line.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from rallypoint.core.text import count
from rallypoint.observe.printing import JsonLine, json_line, visible
from rallypoint.observe.records import AgentEvent, FieldValue, StatusView

PROGRAM = "rallypoint"


def clock_text(at: float, zone: tzinfo | None = None, *, precise: bool = False) -> str:
    """Return a time (seconds since 1970) as `12:04:05`, with milliseconds if `precise`.

    In local time if `zone` is None.
    """
    moment = datetime.fromtimestamp(at, UTC).astimezone(zone)
    return moment.strftime("%H:%M:%S") + (f".{moment.microsecond // 1000:03}" if precise else "")


def moment_text(at: float, now: float, zone: tzinfo | None = None) -> str:
    """Return a time as `12:04:05`, or `2026-11-24 12:04:05` if it is not on the day of `now`.

    Both are seconds since 1970. In local time if `zone` is None.
    """
    moment, today = (datetime.fromtimestamp(each, UTC).astimezone(zone) for each in (at, now))
    return moment.strftime("%H:%M:%S" if moment.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def iso_text(at: float) -> str:
    """Return a time as ISO 8601 in UTC with milliseconds: `2026-03-01T12:04:05.123Z`."""
    moment = datetime.fromtimestamp(at, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + f".{moment.microsecond // 1000:03}Z"


def render_event(event: AgentEvent, *, show_node: bool = False, zone: tzinfo | None = None) -> str:
    """Return an event as one line for printing, in local time if `zone` is None."""
    node = f" {event.node}" if show_node and event.node else ""
    return f"{PROGRAM} {clock_text(event.at, zone)}{node}: {event.message}"


def render_event_json(event: AgentEvent) -> JsonLine:
    """Return an event as one JSON object: time, event, message, node, round, and its own fields.

    A field with one of these five names is left out.
    """
    record: dict[str, FieldValue | None] = {
        "time": iso_text(event.at),
        "event": event.name,
        "message": event.message,
        "node": event.node,
        "round": event.round,
    }
    for name, value in event.fields:
        record.setdefault(name, value)
    return json_line(record)


def render_status(view: StatusView, width: int) -> str:
    """Return the status line of an agent's console, cut to `width` characters."""
    parts = [f"round {view.round}"]
    restarts = f"restarts {view.restarts}/{view.max_restarts}"
    if view.waiting_for:
        parts += [f"waiting for {view.waiting_for}", duration_text(view.for_s)]
        if view.restarts:
            parts.append(restarts)
    else:
        if view.max_nodes > 1:
            parts.append(f"{view.nodes}/{view.max_nodes} nodes")
        parts.append(count(view.workers, "worker"))
        if view.max_restarts:
            parts.append(restarts)
        parts.append(f"running {elapsed_text(view.for_s)}")
    line = visible(" · ".join(parts))
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"[: max(0, width)]


def duration_text(seconds: float) -> str:
    """Return a duration as `12 s`, `3 min 5 s` or `2 h 3 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def elapsed_text(seconds: float) -> str:
    """Return a duration as `00:42` or `1:02:03`."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    clock = f"{minutes:02}:{whole % 60:02}"
    return f"{hours}:{clock}" if hours else clock
