"""Metric values of a run, by group and name, for the handlers that a program configured.

Without a handler they are dropped. A handler is called in the thread that reports the value.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import NamedTuple

GROUP = "torchelastic"
"""The group of an agent's own metrics."""


class MetricData(NamedTuple):
    """One metric value; `timestamp` is seconds since the epoch."""

    timestamp: float
    group_name: str
    name: str
    value: int | float


class MetricHandler(ABC):
    """The base of handlers, which get every value of the groups that they were configured for."""

    @abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Take one value. Called from any thread; the caller of `put_metric` waits for it."""


class NullMetricHandler(MetricHandler):
    """A handler that drops all values."""

    def emit(self, metric_data: MetricData) -> None:
        pass


_handlers: dict[str, MetricHandler] = {}
_default: MetricHandler = NullMetricHandler()


def metric_now(group: str, name: str, value: int | float) -> MetricData:
    """Return a metric value with the present time."""
    return MetricData(time.time(), group, name, value)


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Use a handler for one group or, without a group, for all groups that have none."""
    global _default
    if group is None:
        _default = handler
    else:
        _handlers[group] = handler


def handler_of(group: str) -> MetricHandler:
    """Return the handler of this group, which may be that of all groups without one."""
    return _handlers.get(group, _default)
