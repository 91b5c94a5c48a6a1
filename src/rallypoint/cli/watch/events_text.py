"""A job's events as a person reads them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from rallypoint.core.text import count
from rallypoint.core.watch.history import HistoryEntry
from rallypoint.observe.printing import Painted, Tint

LINES_MAX = 24
MOMENTS = "an age like 90s, 10m, 12h or 2d, or a time like 22:30 or 2030-12-31T18:30:00"
"""What `since` reads."""
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|m|min|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


def event_line(entry: HistoryEntry, now: float, zone: tzinfo | None = None) -> str:
    """`12:04:05 ! node b was lost: ...`, with the date unless that is today's. `zone`: None is the
    local one."""
    mark = "!" if entry.is_wrong else " "
    name = re.escape(entry.node)
    is_named = re.search(rf"(node|drain|exclude|allow) {name}(?![\w.-])", entry.text)
    node = f" (node {entry.node})" if entry.node and not is_named else ""
    told = f"{mark} {entry.text}{node}"
    tint = Tint.BAD if entry.is_wrong else None
    return Painted((f"{moment_text(entry.time, now, zone)} ", None), (told, tint))


def moment_text(at: float, now: float, zone: tzinfo | None = None) -> str:
    """`12:04:05`, or `2026-11-24 12:04:05` if that is not today."""
    moment, today = (datetime.fromtimestamp(each, UTC).astimezone(zone) for each in (at, now))
    return moment.strftime("%H:%M:%S" if moment.date() == today.date() else "%Y-%m-%d %H:%M:%S")


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
