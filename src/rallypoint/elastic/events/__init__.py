"""The events of a job, in the vocabulary of torch's `elastic.events`."""

from __future__ import annotations

from rallypoint.observe.event import (
    Event as Event,
)
from rallypoint.observe.event import (
    EventMetadataValue as EventMetadataValue,
)
from rallypoint.observe.event import (
    EventSource as EventSource,
)
from rallypoint.observe.event import (
    NodeState as NodeState,
)
from rallypoint.observe.event import (
    RdzvEvent as RdzvEvent,
)
from rallypoint.observe.event_handlers import (
    EventHandler as EventHandler,
)
from rallypoint.observe.event_handlers import (
    construct_and_record_rdzv_event as construct_and_record_rdzv_event,
)
from rallypoint.observe.event_handlers import (
    flush_events as flush_events,
)
from rallypoint.observe.event_handlers import (
    get_logging_handler as get_logging_handler,
)
from rallypoint.observe.event_handlers import (
    known_event_handlers as known_event_handlers,
)
from rallypoint.observe.event_handlers import (
    make_event_handler as make_event_handler,
)
from rallypoint.observe.event_handlers import (
    record as record,
)
from rallypoint.observe.event_handlers import (
    record_rdzv_event as record_rdzv_event,
)

__all__ = [
    "Event",
    "EventHandler",
    "EventMetadataValue",
    "EventSource",
    "NodeState",
    "RdzvEvent",
    "construct_and_record_rdzv_event",
    "flush_events",
    "get_logging_handler",
    "known_event_handlers",
    "make_event_handler",
    "record",
    "record_rdzv_event",
]
