"""A job's events as a person reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from rallypoint.cli.render import clock_text, moment_text
from rallypoint.core.text import count
from rallypoint.core.watch.event_groups import fold_entries
from rallypoint.core.watch.history import HistoryEntry
from rallypoint.observe.printing import Painted, Tint

LINES_MAX = 24
NEAR_S = 5.0
"""The largest gap, in seconds, between two events that share a line."""
SPAN_S = 2.0
"""Events in one line that span at least so many seconds show the time of the last one, too."""
MOMENTS = "an age like 90s, 10m, 12h or 2d, or a time like 22:30 or 2030-12-31T18:30:00"
"""What `since` reads."""
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|m|min|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


def event_lines(
    entries: Sequence[HistoryEntry], now: float, zone: tzinfo | None = None
) -> list[str]:
    """Lines for events in their order. Events of several nodes share one only if each follows the
    one before it within `NEAR_S`: a late node keeps its own time."""
    lines: list[str] = []
    start = 0
    for end in range(1, len(entries) + 1):
        if end == len(entries) or entries[end].time - entries[end - 1].time > NEAR_S:
            lines += _near_lines(entries[start:end], now, zone)
            start = end
    return lines


def _near_lines(entries: Sequence[HistoryEntry], now: float, zone: tzinfo | None) -> list[str]:
    folded = fold_entries(entries)
    # Each is of one or more events that follow each other, and has the number of the first.
    rest = enumerate((entry.number, entry.time) for entry in entries)
    firsts = [
        next(place for place, known in rest if known == (one.number, one.time)) for one in folded
    ]
    lasts = [*(entries[place - 1].time for place in firsts[1:]), entries[-1].time]
    return [event_line(one, now, zone, last) for one, last in zip(folded, lasts, strict=True)]


def event_line(
    entry: HistoryEntry, now: float, zone: tzinfo | None = None, last: float = 0.0
) -> str:
    """`12:04:05 ! node b was lost: ...`, with the date unless that is today's. `zone`: None is the
    local one. `last`: the time of the last of several events in this line."""
    mark = "!" if entry.is_wrong else " "
    name = re.escape(entry.node)
    is_named = re.search(rf"(node|drain|exclude|allow) {name}(?![\w.-])", entry.text)
    node = f" (node {entry.node})" if entry.node and not is_named else ""
    told = f"{mark} {entry.text}{node}"
    tint = Tint.BAD if entry.is_wrong else None
    when = moment_text(entry.time, now, zone)
    if last - entry.time >= SPAN_S:
        when += f"-{clock_text(last, zone)}"
    return Painted((f"{when} ", None), (told, tint))


def newest_of(lines: list[str], most: int | None, *, tell: bool) -> list[str]:
    """The last lines, at most so many (None: all). `tell`: the first of these says how many there
    are before them."""
    if most is None or len(lines) <= most:
        return lines
    if not tell or most < 2:
        return lines[-most:]
    shown = lines[1 - most :]
    left_out = count(len(lines) - len(shown), "earlier event")
    return [f"... {left_out}: --all, or --last N", *shown]


def since(text: str, now: float, zone: tzinfo | None = None) -> float:
    """The moment, in Unix seconds, that an age or a time means: a time without a date is the last
    one. Raises ValueError."""
    text = text.strip()
    if (found := _AGE.fullmatch(text)) is not None:
        return now - float(found[1]) * _SECONDS[found[2]]
    local = datetime.fromtimestamp(now, UTC).astimezone(zone)
    if _CLOCK.fullmatch(text):
        hour, minute, *rest = map(int, text.split(":"))
        second = rest[0] if rest else 0
        moment = local.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return (moment if moment <= local else moment - timedelta(days=1)).timestamp()
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone) if zone else moment.astimezone()
    return moment.timestamp()
