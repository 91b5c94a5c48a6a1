"""The usual level of the loggers of `elastic.utils.logging`."""

from __future__ import annotations


def get_log_level() -> str:
    """Return WARNING, the level of loggers if the variable LOGLEVEL is not set."""
    return "WARNING"
