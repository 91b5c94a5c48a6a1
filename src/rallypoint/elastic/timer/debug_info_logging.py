"""A line about timers that have expired."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


def log_debug_info_for_expired_timers(run_id: str, expired_timers: dict[int, list[str]]) -> None:
    """Log which timers of which processes have expired, by pid, with level INFO; nothing for none.

    Torch's does so where its logger shows it.
    """
    for pid, scopes in expired_timers.items():
        names = ", ".join(map(repr, scopes))
        _log.info("timers of process %s of job %r have expired: %s", pid, run_id, names)
