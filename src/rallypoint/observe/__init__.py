"""What a job reports: events and metrics with torch's vocabulary, and a summary.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.lazy import exports

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
        construct_and_record_rdzv_event,
        flush_events,
        get_logging_handler,
        known_event_handlers,
        make_event_handler,
        record,
        record_rdzv_event,
    )
    from rallypoint.observe.metrics import (
        ConsoleMetricHandler,
        MetricData,
        MetricHandler,
        MetricsConfig,
        MetricStream,
        NullMetricHandler,
        configure,
        get_elapsed_time_ms,
        get_stream,
        getStream,
        initialize_metrics,
        prof,
        profile,
        publish_metric,
        put_metric,
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
    "get_elapsed_time_ms",
    "get_stream",
    "getStream",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
    "construct_and_record_rdzv_event",
    "flush_events",
    "get_logging_handler",
    "record",
    "record_rdzv_event",
]

__getattr__, __dir__ = exports(
    globals(),
    {
        ".event": ("Event", "EventMetadataValue", "EventSource", "NodeState", "RdzvEvent"),
        ".event_handlers": (
            "EventHandler",
            "construct_and_record_rdzv_event",
            "flush_events",
            "get_logging_handler",
            "known_event_handlers",
            "make_event_handler",
            "record",
            "record_rdzv_event",
        ),
        ".metrics": (
            "ConsoleMetricHandler",
            "MetricData",
            "MetricHandler",
            "MetricsConfig",
            "MetricStream",
            "NullMetricHandler",
            "configure",
            "get_elapsed_time_ms",
            "get_stream",
            "getStream",
            "initialize_metrics",
            "prof",
            "profile",
            "publish_metric",
            "put_metric",
        ),
    },
)
