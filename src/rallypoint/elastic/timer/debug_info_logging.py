"""The log line about expired timers."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


def log_debug_info_for_expired_timers(run_id: str, expired_timers: dict[int, list[str]]) -> None:
    """Log the scopes of expired timers, a line for each pid with level INFO.

    Torch's function of this name uses a logger of torch's own.
    """
    for pid, scopes in expired_timers.items():
        names = ", ".join(map(repr, scopes))
        _log.info("timers of process %s of job %r have expired: %s", pid, run_id, names)
