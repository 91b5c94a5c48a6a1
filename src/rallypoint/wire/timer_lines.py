"""Timers' requests in a named pipe: one JSON object per line, in torch's format. Pure.

`{"version": 1, "pid": 7, "scope_id": "step", "expiration_time": 1700000000.0, "signal": 9}`; a
negative time releases. Rallypoint's may add `after_s`, the length of the timer. A line that is not
a request is ignored: every process that can write to the pipe may write anything.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from rallypoint.core.json_reader import UnreadableJsonError, read_object

VERSION = 1
RELEASE = -1


class TimerLine(NamedTuple):
    """One request of a worker's process to set or to release a timer.

    `expires_at` is in seconds since the epoch; negative: the timer is released.
    """

    pid: int
    scope: str
    expires_at: float
    signal: int
    length_s: float | None = None
    """The length of the timer in seconds, if the client reports it, for display."""


def format_timer_line(
    pid: int, scope: str, expires_at: float, signal: int, length_s: float | None = None
) -> str:
    """Return the request for a timer as JSON, without the end of the line."""
    fields = {"pid": pid, "scope_id": scope, "expiration_time": expires_at, "signal": signal}
    told = {} if length_s is None else {"after_s": length_s}
    return json.dumps({"version": VERSION} | fields | told)


def parse_timer_line(line: bytes) -> TimerLine | None:
    """Return the request for a timer in this line, or None for anything else."""
    try:
        said = read_object(line)
    except UnreadableJsonError:
        return None
    if said.get("version") != VERSION:
        return None
    pid, scope, signal = said.get("pid"), said.get("scope_id"), said.get("signal", 0)
    if type(pid) is not int or type(signal) is not int or not isinstance(scope, str):
        return None
    seconds = _number(said.get("expiration_time"))
    if seconds is None:
        return None
    return TimerLine(pid, scope, seconds, signal, _number(said.get("after_s")))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
