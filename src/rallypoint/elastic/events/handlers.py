"""The handlers of events, by name."""

from __future__ import annotations

import logging

from rallypoint.observe.event import Event
from rallypoint.observe.event_handlers import LoggingEvents, make_event_handler


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return a handler of `logging` for events: the message of a record is `event.serialize()`.

    It passes the events on to `destination`, a handler's name as `events.record` takes it. Raises
    ParameterError as `make_event_handler` does.
    """
    if destination == "console":
        return logging.StreamHandler()
    made = make_event_handler(destination)
    if made is None:
        return logging.NullHandler()
    if isinstance(made, LoggingEvents):
        return made.handler
    handler = made

    class Recording(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                handler.handle(Event.deserialize(record.getMessage()))
            except Exception:
                self.handleError(record)

        def close(self) -> None:
            handler.close()
            super().close()

    return Recording()
