"""The function that returns the error handler of `record`."""

from __future__ import annotations

from rallypoint.worker.error_file import get_error_handler as get_error_handler
