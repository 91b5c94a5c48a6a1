"""Event handlers by name, built in or of another package.

* `null` drops events; `console` writes a JSON line to stderr; `jsonl:FILE` appends one to a file.
* A package offers more as entry points of the group `rallypoint.event_handlers`: the name is what
  stands before the colon, and what it loads is called with the text after it, and returns an
  `EventHandler` or a `logging.Handler`.

What is recorded goes through a `BoundedQueue`, one per handler and process: recording never waits.
What a handler lost, by an error or because it was too slow, is printed to stderr at the end.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rallypoint.errors import ParameterError, UnknownEventHandlerError
from rallypoint.files import open_named
from rallypoint.observe.event import Event
from rallypoint.observe.printing import say
from rallypoint.observe.queue import BoundedQueue

if TYPE_CHECKING:
    import logging
    from importlib.metadata import EntryPoint

GROUP = "rallypoint.event_handlers"
RENDEZVOUS = "dynamic_rendezvous"
"""The name of the handler of rendezvous events: it drops them, unless a package offers one of this
name."""


class EventHandler(Protocol):
    """A receiver of events, one at a time from one thread: it may block, and it may raise."""

    def handle(self, event: Event) -> None: ...

    def close(self) -> None: ...


class ConsoleEvents:
    """A handler that prints each event as a line of JSON to stderr."""

    def handle(self, event: Event) -> None:
        say(event.line())

    def close(self) -> None:
        """Do nothing, because no event is buffered."""


class JsonLinesFile:
    """A handler that appends each event to a file as a line of JSON, before `handle` returns.

    Several agents may share a file: each line is one write. If the disk took only a part of a line,
    the next event begins on a new line.
    """

    def __init__(self, path: str) -> None:
        """Open the file. Raises ParameterError when it can't be appended to."""
        try:
            # Writing to a named pipe blocks this thread until its reader has read.
            self._fd = open_named(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise ParameterError(
                f"event log handler jsonl:{path}: can't be written: {why}"
            ) from error
        self._is_cut = False

    def handle(self, event: Event) -> None:
        """Append the event as one line. Blocks. Raises OSError if it could not be written whole."""
        line = b"\n" * self._is_cut + event.serialize().encode() + b"\n"
        while line:
            written = os.write(self._fd, line)
            line = line[written:]
            self._is_cut = bool(line)

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LoggingEvents:
    """A handler that passes each event to a handler of `logging`, as a record with its JSON."""

    def __init__(self, handler: logging.Handler) -> None:
        self.handler = handler

    def handle(self, event: Event) -> None:
        import logging

        made = {"msg": event.serialize(), "levelno": logging.INFO, "levelname": "INFO"}
        self.handler.handle(logging.makeLogRecord({"name": "rallypoint.events", **made}))

    def close(self) -> None:
        self.handler.close()


def known_event_handlers() -> list[str]:
    """Return the names of built-in handlers and of those that installed packages offer, sorted."""
    from importlib.metadata import entry_points

    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def make_event_handler(spec: str) -> EventHandler | None:
    """Return the handler of `NAME` or `NAME:ARGUMENT`, opened; None for one that drops all events.

    Raises UnknownEventHandlerError with the known names, ParameterError for an argument that it
    can't use or a package's handler that can't be made.
    """
    name, colon, argument = spec.partition(":")
    if name in _BUILT_IN:
        if colon and name != "jsonl":
            raise ParameterError(f"event log handler {spec}: {name} takes no argument")
        return _BUILT_IN[name](argument)
    offered = _offered(name)
    if offered is not None:
        return _made_by(offered, argument)
    if name == RENDEZVOUS:
        return None
    known = ", ".join(shown_name(name) for name in known_event_handlers())
    raise UnknownEventHandlerError(
        f"event log handler {spec!r}: there is no such handler; there are: {known}"
    )


def shown_name(name: str) -> str:
    """Return a handler's name as on the command line: `jsonl:FILE` for `jsonl`, else itself."""
    return "jsonl:FILE" if name == "jsonl" else name


def _offered(name: str) -> EntryPoint | None:
    from importlib.metadata import entry_points

    return next((entry for entry in entry_points(group=GROUP) if entry.name == name), None)


def _made_by(entry: EntryPoint, argument: str) -> EventHandler:
    try:
        return _adapted(entry.load()(argument))
    except (Exception, SystemExit) as error:
        from rallypoint.core.text import shown

        package = entry.dist.name if entry.dist else "?"
        raise ParameterError(
            f"event log handler {entry.name}: that of the package {package} could not be created: "
            f"{type(error).__name__}: {shown(str(error))}"
        ) from error


def _adapted(made: object) -> EventHandler:
    """Return the object as an event handler, that of `logging` wrapped. Raises TypeError."""
    logging_ = sys.modules.get("logging")
    if logging_ is not None and isinstance(made, logging_.Handler):
        return LoggingEvents(made)
    if not callable(getattr(made, "handle", None)) or not callable(getattr(made, "close", None)):
        raise TypeError(f"{made!r} has no handle(event) and close()")
    handler: EventHandler = made  # type: ignore[assignment]
    return handler


def _jsonl(path: str) -> EventHandler:
    if not path:
        raise ParameterError("event log handler jsonl: needs a file: jsonl:FILE")
    handler = JsonLinesFile(path)
    if stat.S_ISDIR(os.stat(path).st_mode):
        raise ParameterError(f"event log handler jsonl:{path}: is a directory; name a file in it")
    return handler


_BUILT_IN: dict[str, Callable[[str], EventHandler | None]] = {
    "console": lambda _: ConsoleEvents(),
    "jsonl": _jsonl,
    "null": lambda _: None,
}


def open_queue(destination: str) -> BoundedQueue[Event] | None:
    """Return a new queue to the handler that `make_event_handler` returns; None if that is None.

    Raises what `make_event_handler` raises.
    """
    handler: EventHandler | None = make_event_handler(destination)
    return None if handler is None else BoundedQueue(handler.handle, handler.close)
