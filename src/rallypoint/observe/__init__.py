"""What a job tells: events and metrics with torch's vocabulary, and records of how it went.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.observe.event import (
        Event,
        EventMetadataValue,
        EventSource,
        NodeState,
        RdzvEvent,
    )
    from rallypoint.observe.event_handlers import (
        EventHandler,
        known_event_handlers,
        make_event_handler,
    )
    from rallypoint.observe.metrics import (
        ConsoleMetricHandler,
        MetricData,
        MetricHandler,
        MetricsConfig,
        MetricStream,
        NullMetricHandler,
        configure,
        get_stream,
        getStream,
        initialize_metrics,
        prof,
        profile,
        publish_metric,
        put_metric,
    )
    from rallypoint.observe.recording import (
        construct_and_record_rdzv_event,
        flush_events,
        record,
        record_rdzv_event,
    )

__all__ = [
    "Event",
    "EventMetadataValue",
    "EventSource",
    "NodeState",
    "RdzvEvent",
    "EventHandler",
    "known_event_handlers",
    "make_event_handler",
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricsConfig",
    "MetricStream",
    "NullMetricHandler",
    "configure",
    "get_stream",
    "getStream",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
    "construct_and_record_rdzv_event",
    "flush_events",
    "record",
    "record_rdzv_event",
]

_EVENT = ("Event", "EventMetadataValue", "EventSource", "NodeState", "RdzvEvent")
_HANDLERS = ("EventHandler", "known_event_handlers", "make_event_handler")
_RECORDING = ("construct_and_record_rdzv_event", "flush_events", "record", "record_rdzv_event")
_MODULES = {
    **dict.fromkeys(_EVENT, "event"),
    **dict.fromkeys(_HANDLERS, "event_handlers"),
    **dict.fromkeys(_RECORDING, "recording"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"rallypoint.observe.{_MODULES.get(name, 'metrics')}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
