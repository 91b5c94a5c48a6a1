"""The error handler, which a program may subclass."""

from __future__ import annotations

from rallypoint.worker.error_file import ErrorHandler as ErrorHandler
