"""The metrics of a job, in the vocabulary of torch's `elastic.metrics`."""

from __future__ import annotations

from rallypoint.observe.metrics import (
    ConsoleMetricHandler as ConsoleMetricHandler,
)
from rallypoint.observe.metrics import (
    MetricData as MetricData,
)
from rallypoint.observe.metrics import (
    MetricHandler as MetricHandler,
)
from rallypoint.observe.metrics import (
    MetricsConfig as MetricsConfig,
)
from rallypoint.observe.metrics import (
    MetricStream as MetricStream,
)
from rallypoint.observe.metrics import (
    NullMetricHandler as NullMetricHandler,
)
from rallypoint.observe.metrics import (
    configure as configure,
)
from rallypoint.observe.metrics import (
    get_elapsed_time_ms as get_elapsed_time_ms,
)
from rallypoint.observe.metrics import (
    get_stream as get_stream,
)
from rallypoint.observe.metrics import (
    getStream as getStream,
)
from rallypoint.observe.metrics import (
    initialize_metrics as initialize_metrics,
)
from rallypoint.observe.metrics import (
    prof as prof,
)
from rallypoint.observe.metrics import (
    profile as profile,
)
from rallypoint.observe.metrics import (
    publish_metric as publish_metric,
)
from rallypoint.observe.metrics import (
    put_metric as put_metric,
)

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "get_stream",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]
