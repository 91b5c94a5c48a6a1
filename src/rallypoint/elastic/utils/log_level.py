"""The usual level of the loggers of `elastic.utils.logging`."""

from __future__ import annotations


def get_log_level() -> str:
    """Return the level where LOGLEVEL gives none: WARNING."""
    return "WARNING"
