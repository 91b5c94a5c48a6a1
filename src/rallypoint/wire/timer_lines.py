"""Requests of timers as they come through a named pipe: one JSON object per line, as torch's. Pure.

`{"version": 1, "pid": 7, "scope_id": "step", "expiration_time": 1700000000.0, "signal": 9}`; a
negative time releases. Whoever can write to the pipe writes what he likes: what is no request is
none, and no error.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

VERSION = 1
RELEASE = -1


class TimerLine(NamedTuple):
    """One request. `expires_at` is in seconds since the epoch; negative: released."""

    pid: int
    scope: str
    expires_at: float
    signal: int


def format_timer_line(pid: int, scope: str, expires_at: float, signal: int) -> str:
    """The request as JSON, without the end of the line."""
    fields = {"pid": pid, "scope_id": scope, "expiration_time": expires_at, "signal": signal}
    return json.dumps({"version": VERSION} | fields)


def parse_timer_line(line: bytes) -> TimerLine | None:
    """The request, or None for anything else."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.get("version") != VERSION:
        return None
    pid, scope, signal = said.get("pid"), said.get("scope_id"), said.get("signal", 0)
    expires_at = said.get("expiration_time")
    if type(pid) is not int or type(signal) is not int or not isinstance(scope, str):
        return None
    if isinstance(expires_at, bool) or not isinstance(expires_at, int | float):
        return None
    try:
        seconds = float(expires_at)
    except OverflowError:
        return None
    return TimerLine(pid, scope, seconds, signal) if math.isfinite(seconds) else None
