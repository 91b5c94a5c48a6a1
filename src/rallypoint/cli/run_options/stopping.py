"""The options on how and when workers are stopped. Pure.

Above all when the time of this node is over: `--stop-at` and `--stop-before`.

A scheduler ends an allocation at a known time. With `--stop-before 120` the node leaves its job
120 s before that by its own clock, as after `--preempt-notice`, and no signal has to be set up.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from rallypoint.agent.environ import SHUTDOWN_TIMEOUT_VARIABLE
from rallypoint.cli import values
from rallypoint.cli.parser import Scanned
from rallypoint.cli.run_options.rendezvous import Reading
from rallypoint.cli.values import Given
from rallypoint.config import StopConfig
from rallypoint.core.settings import FLAGS
from rallypoint.core.text import shown

_NO_END = frozenset({"", "n/a", "none", "null", "unknown", "unlimited", "invalid", "0"})
"""The values by which schedulers say that a job has no end, or that they do not know it."""
_YEAR_S = 366 * 86_400


def read_stop(
    reading: Reading, environ: Mapping[str, str], now: float, notices: list[str]
) -> StopConfig:
    """Return the settings of how and when workers are stopped.

    `now`: the time, in seconds since 1970. Remarks are added to `notices`. Raises UsageError.
    """
    scanned, usual = reading.scanned, {}
    if text := environ.get(SHUTDOWN_TIMEOUT_VARIABLE):
        given = Given(text, f"{SHUTDOWN_TIMEOUT_VARIABLE}={shown(text)}")
        usual["shutdown_grace_s"] = values.read(FLAGS["--shutdown-timeout"], given)
    end = scanned.get("--stop-at")
    end_at = None if end is None else _end(end)
    return StopConfig(
        **usual | reading.fields["stop"],
        leave_in_s=_leave_in_s(scanned, end_at, now, notices),
        limit_in_s=None if end_at is None else end_at - now,
        is_slurms=bool(environ.get("SLURM_JOB_ID")),
    )


def _leave_in_s(
    scanned: Scanned, end_at: float | None, now: float, notices: list[str]
) -> float | None:
    before, end = scanned.get("--stop-before"), scanned.get("--stop-at")
    if before is None:
        return None
    before_s = values.seconds(before)
    if end is None:
        notices.append(f"{before.origin} has no effect without an end time: give --stop-at TIME")
        return None
    if end_at is None or not 0 < end_at - now < _YEAR_S:
        why = "there is no end" if end_at is None else "it is over, or more than a year away"
        notices.append(f"{end.origin}: {why}, so {before.origin} has no effect")
        return None
    leave_in_s = max(end_at - now - before_s, 0.0)
    when = datetime.fromtimestamp(now + leave_in_s, UTC).astimezone().isoformat(" ", "seconds")
    notices.append(f"this node leaves its job at {when}: {end.origin}, {before.origin}")
    return leave_in_s


def _end(given: Given) -> float | None:
    """Return the end in seconds since 1970; None: there is none. Raises UsageError."""
    text = given.text.strip()
    if text.lower() in _NO_END:
        return None
    try:
        return float(text) if text.isdecimal() else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise given.wrong("needs a time, like 2030-12-31T18:30:00, or seconds since 1970") from None
