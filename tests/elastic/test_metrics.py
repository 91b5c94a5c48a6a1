"""Metrics as a library; tests/compat/test_observe.py has what they share with torch's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rallypoint.elastic.metrics import (
    MetricData,
    MetricHandler,
    MetricStream,
    NullMetricHandler,
    configure,
    get_stream,
    getStream,
    profile,
    publish_metric,
    put_metric,
)
from rallypoint.observe import metrics


class Kept(MetricHandler):
    def __init__(self) -> None:
        self.got: list[MetricData] = []

    def emit(self, metric_data: MetricData) -> None:
        self.got.append(metric_data)

    @property
    def named(self) -> list[tuple[str, str, float]]:
        return [(data.group_name, data.name, data.value) for data in self.got]


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    configure(handler)
    yield handler
    configure(NullMetricHandler())
    metrics._handlers.clear()


def test_a_stream_may_have_a_handler_of_its_own(kept: Kept) -> None:
    own = Kept()
    stream = MetricStream("mine", own)
    stream.add_value("n", 3)
    assert own.named == [("mine", "n", 3)]
    assert stream.handler is own
    assert kept.got == []


def test_a_number_reaches_the_default_handler_with_the_time(kept: Kept) -> None:
    before = time.time()
    put_metric("n", 3)
    (data,) = kept.got
    assert data == MetricData(data.timestamp, "torchelastic", "n", 3)
    assert before <= data.timestamp <= time.time()


def test_a_group_may_have_a_handler_of_its_own_also_for_streams_that_were_got_before(
    kept: Kept,
) -> None:
    stream, own = get_stream("g"), Kept()
    stream.add_value("early", 1)
    configure(own, "g")
    stream.add_value("late", 2)
    getStream("h").add_value("other", 3)
    assert kept.named == [("g", "early", 1), ("h", "other", 3)]
    assert own.named == [("g", "late", 2)]


def test_the_deprecated_names_say_so_and_work(kept: Kept) -> None:
    with pytest.warns(FutureWarning, match="prof"):
        decorated = profile("g")(abs)
    assert decorated(-1) == 1
    with pytest.warns(FutureWarning, match="put_metric"):
        publish_metric("g", "n", 5)
    assert kept.named[0] == ("g", "abs.success", 1)
    assert kept.named[-1] == ("g", "n", 5)
