"""Events in torch's form, with a precise time and an id.

Torch's own `Event` reads the serialised form, and the reverse. Fields that torch lacks (an id, the
round, the reason) are in the metadata.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import msgspec

from rallypoint.errors import ParameterError
from rallypoint.observe.printing import JsonLine, json_line, json_text

EventMetadataValue: TypeAlias = str | int | float | bool | None
_T = TypeVar("_T")
_SHOWN = 80


class EventSource(str, Enum):  # noqa: UP042  # A text is `EventSource.AGENT`, as with torch.
    """The source of an event."""

    AGENT = "AGENT"
    WORKER = "WORKER"


class NodeState(str, Enum):  # noqa: UP042  # The same.
    """The progress of a node in a rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


def milliseconds_now() -> int:
    """Return the milliseconds since the epoch; to be shown, never compared."""
    return time.time_ns() // 1_000_000


@dataclass
class Event:
    """One event.

    `timestamp` is milliseconds since the epoch, by default the present time.

    A new event gets `id` in its metadata, 16 hexadecimal digits, unless it has one. A deserialised
    event is unchanged.
    """

    name: str
    source: EventSource
    timestamp: int = field(default_factory=milliseconds_now)
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metadata = {"id": os.urandom(8).hex(), **self.metadata}

    def __str__(self) -> str:
        return self.serialize()

    @property
    def id(self) -> str:
        """The id of the event; empty for a deserialised event that has none."""
        return str(self.metadata.get("id", ""))

    @property
    def round(self) -> int | None:
        """The round of the job; None: the event belongs to none."""
        found = self.metadata.get("round")
        return found if isinstance(found, int) else None

    @property
    def reason(self) -> str:
        """The reason of the event, or what happened, in words; may be empty."""
        return str(self.metadata.get("reason", ""))

    def serialize(self) -> str:
        """Return the event as one JSON object on one line."""
        return json_text(asdict(self))

    def line(self) -> JsonLine:
        """Return the event as a JSON line for printing."""
        return json_line(asdict(self))

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        """Return the event that was serialised. Raises ParameterError for anything else."""
        if isinstance(data, Event):
            return data
        read = _read(data, _SerialisedEvent, "event")
        event = Event(read.name, read.source, int(read.timestamp))
        event.metadata = dict(read.metadata)
        return event


@dataclass
class RdzvEvent:
    """One step of a rendezvous.

    `serialize` gives torch's fields, which have no time; `as_event`, which has the time, is
    recorded.
    """

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    def __str__(self) -> str:
        return self.serialize()

    def as_event(self) -> Event:
        """Return an `Event` with the present time, and this step's fields as its metadata."""
        fields = asdict(self)
        name, state = fields.pop("name"), fields.pop("node_state")
        metadata = {**fields, "node_state": str(state.value), "reason": self.message}
        return Event(name, EventSource.AGENT, metadata=metadata)

    def serialize(self) -> str:
        """Return the event as one JSON object on one line."""
        return json_text(asdict(self))

    @staticmethod
    def deserialize(data: str | RdzvEvent) -> RdzvEvent:
        """Return the event that was serialised. Raises ParameterError for anything else."""
        return data if isinstance(data, RdzvEvent) else _read(data, RdzvEvent, "rendezvous event")


class _SerialisedEvent(msgspec.Struct):
    name: str
    source: EventSource
    timestamp: float = 0
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    """The metadata. Torch's agents write lists among the values of other programs' events; they are
    kept."""


def _read(data: str, kind: type[_T], what: str) -> _T:
    try:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            import json  # It reads halves of surrogate pairs, which stand for bytes not in UTF-8.

            return msgspec.convert(json.loads(data), type=kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        shown = data if len(data) <= _SHOWN else data[:_SHOWN] + "..."
        raise ParameterError(f"{shown!r} is not a serialised {what}: {error}") from None
