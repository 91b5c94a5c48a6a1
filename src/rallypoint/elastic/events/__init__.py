"""The events of a job, in the vocabulary of torch's `elastic.events`."""

from __future__ import annotations

from rallypoint.elastic.events.api import (
    Event as Event,
    EventMetadataValue as EventMetadataValue,
    EventSource as EventSource,
    NodeState as NodeState,
    RdzvEvent as RdzvEvent,
)
from rallypoint.elastic.events.handlers import get_logging_handler as get_logging_handler
from rallypoint.observe.event_handlers import (
    EventHandler as EventHandler,
    construct_and_record_rdzv_event as construct_and_record_rdzv_event,
    flush_events as flush_events,
    known_event_handlers as known_event_handlers,
    make_event_handler as make_event_handler,
    record as record,
    record_rdzv_event as record_rdzv_event,
)
