"""The one reading of the wall clock that decides something: how the lives of a job are numbered.

A coordinator that was started anew shares nothing else with those before it (`core/job_lives.py`;
the exception to behaviour R6). A clock that is wrong makes the number wrong, and nothing else.
"""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
