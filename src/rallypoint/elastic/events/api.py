"""The classes of events."""

from __future__ import annotations

from rallypoint.observe.event import (
    Event as Event,
    EventMetadataValue as EventMetadataValue,
    EventSource as EventSource,
    NodeState as NodeState,
    RdzvEvent as RdzvEvent,
)
