"""Streams of metric values, and decorators that measure functions."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar, overload

from rallypoint.observe.metrics import (
    GROUP,
    MetricData as MetricData,
    MetricHandler as MetricHandler,
    NullMetricHandler as NullMetricHandler,
    configure as configure,
    handler_of,
    metric_now,
)
from rallypoint.observe.printing import answer

_P = ParamSpec("_P")
_R = TypeVar("_R")


class MetricsConfig:
    """Parameters by name, as `initialize_metrics` takes them (it ignores them)."""

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = {} if params is None else params


class ConsoleMetricHandler(MetricHandler):
    """A handler that prints a line on stdout for each value."""

    def emit(self, metric_data: MetricData) -> None:
        answer(
            f"[{metric_data.timestamp}][{metric_data.group_name}]: "
            f"{metric_data.name}={metric_data.value}"
        )


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Return the whole milliseconds since `start_time_in_seconds`, a result of `time.time()`."""
    return int((time.time() - start_time_in_seconds) * 1000)


class MetricStream:
    """The stream of one group's values.

    Values go to `handler`. If that is None they go to the handler that is configured for the group
    at that moment.
    """

    def __init__(self, group_name: str, handler: MetricHandler | None = None) -> None:
        self.group_name, self._handler = group_name, handler

    @property
    def handler(self) -> MetricHandler:
        """The handler that gets the values: the given one, else the group's present one."""
        return handler_of(self.group_name) if self._handler is None else self._handler

    def add_value(self, metric_name: str, metric_value: int | float) -> None:
        """Pass a value with the present time to the handler. Raises what the handler raises."""
        self.handler.emit(metric_now(self.group_name, metric_name, metric_value))


def get_stream(group: str) -> MetricStream:
    """Return a stream whose values go to the handler that is configured for this group."""
    return MetricStream(group)


getStream = get_stream  # noqa: N816
"""Torch's name of `get_stream`."""


def put_metric(metric_name: str, metric_value: int | float, metric_group: str = GROUP) -> None:
    """Pass one value to the group's handler. Raises what the handler raises."""
    get_stream(metric_group).add_value(metric_name, metric_value)


@overload
def prof(fn: Callable[_P, _R], group: str = GROUP) -> Callable[_P, _R]:
    """Measure the function, as the decorator `@prof`."""


@overload
def prof(fn: None = None, group: str = GROUP) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that measures a function for a group: `@prof(group=...)`."""


def prof(
    fn: Callable[_P, _R] | None = None, group: str = GROUP
) -> Callable[_P, _R] | Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function so that each call puts metrics of its outcome and duration.

    The outcome is the value 1 of `<name>.success`, or of `<name>.failure` if the call raised an
    Exception. The duration is `<name>.duration.ms`, in whole milliseconds. The name is
    `Class.method`, or `module.function`.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        name = _qualified_name(function)

        @functools.wraps(function)
        def measured(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            return _measure(name, group, lambda: function(*args, **kwargs))

        return measured

    return decorate if fn is None else decorate(fn)


def profile(group: str | None = None) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that puts the metrics of `prof`. Deprecated: use `prof(group=...)`.

    The metrics' `<name>` is the function's name without its class or module.
    """
    warnings.warn("use @prof(group=...) instead", FutureWarning, stacklevel=2)

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def measured(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            return _measure(function.__name__, group or "", lambda: function(*args, **kwargs))

        return measured

    return decorate


def publish_metric(metric_group: str, metric_name: str, metric_value: int | float) -> None:
    """Pass one value to the group's handler. Deprecated: use `put_metric`, with the group last."""
    warnings.warn("use put_metric(name, value, group) instead", FutureWarning, stacklevel=2)
    put_metric(metric_name, metric_value, metric_group)


def _measure(name: str, group: str, call: Callable[[], _R]) -> _R:
    began_at = time.perf_counter()
    try:
        result = call()
    except Exception:
        put_metric(f"{name}.failure", 1, group)
        raise
    else:
        put_metric(f"{name}.success", 1, group)
        return result
    finally:
        put_metric(f"{name}.duration.ms", int((time.perf_counter() - began_at) * 1000), group)


def _qualified_name(function: Callable[..., object]) -> str:
    qualified = getattr(function, "__qualname__", getattr(function, "__name__", repr(function)))
    if "." in qualified:
        return str(qualified)
    module = getattr(function, "__module__", "") or ""
    return f"{module.rpartition('.')[2]}.{qualified}" if module else str(qualified)
