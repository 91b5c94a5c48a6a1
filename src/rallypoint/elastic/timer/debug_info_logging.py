"""The log line about expired timers."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


def log_debug_info_for_expired_timers(run_id: str, expired_timers: dict[int, list[str]]) -> None:
    """Log the expired timers by pid, with level INFO; nothing if there are none.

    Torch's function logs where its own logger is configured to.
    """
    for pid, scopes in expired_timers.items():
        names = ", ".join(map(repr, scopes))
        _log.info("timers of process %s of job %r have expired: %s", pid, run_id, names)
