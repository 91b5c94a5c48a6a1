"""The handler of failures, which a program may override."""

from __future__ import annotations

from rallypoint.worker.error_file import ErrorHandler as ErrorHandler
