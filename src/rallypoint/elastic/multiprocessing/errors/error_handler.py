"""What `record` does about failures."""

from __future__ import annotations

from rallypoint.worker.error_file import ErrorHandler as ErrorHandler
