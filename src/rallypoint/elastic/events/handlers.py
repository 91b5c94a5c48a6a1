"""Where events go, by name."""

from __future__ import annotations

from rallypoint.observe.event_handlers import get_logging_handler as get_logging_handler
