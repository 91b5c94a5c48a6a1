"""Numbers about a run, by group and name, for the handlers that a program configured.

By default they are dropped. A handler is called in the thread that puts the number.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import NamedTuple

GROUP = "torchelastic"
"""The group of what an agent measures."""


class MetricData(NamedTuple):
    """One number; `timestamp` is seconds since the epoch."""

    timestamp: float
    group_name: str
    name: str
    value: int | float


class MetricHandler(ABC):
    """Gets every number of the groups that it was configured for."""

    @abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """May be called from any thread; the caller of `put_metric` waits for it."""


class NullMetricHandler(MetricHandler):
    """Takes nothing."""

    def emit(self, metric_data: MetricData) -> None:
        pass


_handlers: dict[str, MetricHandler] = {}
_default: MetricHandler = NullMetricHandler()


def metric_now(group: str, name: str, value: int | float) -> MetricData:
    """Return the value of this metric, dated now."""
    return MetricData(time.time(), group, name, value)


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Use a handler for one group, or for all groups that have none."""
    global _default
    if group is None:
        _default = handler
    else:
        _handlers[group] = handler


def handler_of(group: str) -> MetricHandler:
    """Return the handler of this group."""
    return _handlers.get(group, _default)
