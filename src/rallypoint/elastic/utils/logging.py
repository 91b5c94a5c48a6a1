"""Loggers with the level of the variable LOGLEVEL."""

from __future__ import annotations

import logging
import os
import sys

from rallypoint.elastic.utils.log_level import get_log_level


def get_logger(name: str | None = None) -> logging.Logger:
    """Return the logger of this name, or of the calling module.

    Its level is that of the variable LOGLEVEL (a name, as DEBUG), else WARNING. Raises ValueError
    for an invalid level.
    """
    logger = logging.getLogger(name or str(sys._getframe(1).f_globals["__name__"]))
    logger.setLevel(os.environ.get("LOGLEVEL", get_log_level()))
    return logger
