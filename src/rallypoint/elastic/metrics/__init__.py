"""The metrics of a job, in the vocabulary of torch's `elastic.metrics`."""

from __future__ import annotations

from rallypoint.elastic.metrics.api import (
    ConsoleMetricHandler as ConsoleMetricHandler,
    MetricData as MetricData,
    MetricHandler as MetricHandler,
    MetricsConfig as MetricsConfig,
    MetricStream as MetricStream,
    NullMetricHandler as NullMetricHandler,
    configure as configure,
    get_elapsed_time_ms as get_elapsed_time_ms,
    get_stream as get_stream,
    getStream as getStream,
    prof as prof,
    profile as profile,
    publish_metric as publish_metric,
    put_metric as put_metric,
)


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Do nothing, as in torch: `configure` sets the handlers."""
