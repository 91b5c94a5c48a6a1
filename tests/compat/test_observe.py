"""Events and metrics beside torch's own: the same shapes, names and lines."""

from __future__ import annotations

import inspect
import json
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch.distributed.elastic.events as torch_events
import torch.distributed.elastic.events.api as torch_event_api
import torch.distributed.elastic.metrics as torch_metrics

import rallypoint.observe as ours


def test_torch_reads_our_events_and_we_read_torchs() -> None:
    metadata = {"run_id": "r", "global_rank": None, "n": 1, "f": 0.5, "b": True, "t": "é\n"}
    event = ours.Event("a.b", ours.EventSource.WORKER, metadata=metadata)
    theirs = torch_event_api.Event.deserialize(event.serialize())
    assert theirs.source is torch_event_api.EventSource.WORKER
    assert (theirs.name, theirs.timestamp) == (event.name, event.timestamp)
    assert theirs.metadata == event.metadata
    assert ours.Event.deserialize(theirs.serialize()) == event
    assert json.loads(theirs.serialize()) == json.loads(event.serialize())
    plain = torch_event_api.Event("x", torch_event_api.EventSource.AGENT, metadata={"a": 1})
    assert ours.Event.deserialize(plain.serialize()).metadata == {"a": 1}


def test_torch_reads_our_rendezvous_events_and_we_read_torchs() -> None:
    event = ours.RdzvEvent("n", "r", "m", "h", 1, ours.NodeState.RUNNING, "e:1", 2, 3, "trace")
    theirs = torch_event_api.RdzvEvent.deserialize(event.serialize())
    assert theirs.node_state is torch_event_api.NodeState.RUNNING
    assert ours.RdzvEvent.deserialize(theirs.serialize()) == event


@pytest.mark.parametrize(
    "name",
    ["record", "record_rdzv_event", "construct_and_record_rdzv_event"],
)
def test_functions_of_events_take_what_torchs_take(name: str) -> None:
    assert parameters(ours, name) == parameters(torch_events, name)


@pytest.mark.parametrize(
    "name",
    [
        "configure",
        "getStream",
        "put_metric",
        "prof",
        "publish_metric",
        "profile",
        "MetricsConfig",
        "initialize_metrics",
    ],
)
def test_functions_of_metrics_take_what_torchs_take(name: str) -> None:
    assert parameters(ours, name) == parameters(torch_metrics, name)


def test_the_same_calls_put_the_same_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    assert told_by(ours) == told_by(torch_metrics)
    for package in (ours, torch_metrics):
        data: Any = package.MetricData(1, "g", "n", 2)
        package.ConsoleMetricHandler().emit(data)
    mine, theirs = capsys.readouterr().out.splitlines()
    assert mine == theirs


def parameters(package: ModuleType, name: str) -> list[tuple[str, object]]:
    found = inspect.signature(getattr(package, name)).parameters.values()
    return [(one.name, one.default) for one in found]


def told_by(package: ModuleType) -> list[tuple[str, str, int]]:
    """What a package's decorators and functions hand over, but for how long it took."""
    told: list[tuple[str, str, int]] = []

    class Kept(package.MetricHandler):  # type: ignore[name-defined, misc]
        def emit(self, metric_data: Any) -> None:
            value = -1 if metric_data.name.endswith(".ms") else metric_data.value
            told.append((metric_data.group_name, metric_data.name, value))

    package.configure(Kept())
    try:
        call_all(package)
    finally:
        package.configure(package.NullMetricHandler())
    return told


def call_all(package: ModuleType) -> None:
    class Thing:
        @package.prof  # type: ignore[untyped-decorator]
        def good(self) -> None: ...

        @package.prof(group="own")  # type: ignore[untyped-decorator]
        def bad(self) -> None:
            raise KeyError

    Thing().good()
    with pytest.raises(KeyError):
        Thing().bad()
    package.prof(alone)()
    package.put_metric("n", 3)
    package.put_metric("n", 3, "g")
    package.getStream("s").add_value("v", 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package.publish_metric("g", "n", 5)
        package.profile("g")(alone)()


def alone() -> None: ...
