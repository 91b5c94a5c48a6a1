"""Events and metrics beside torch's own: the same shapes, names and lines."""

from __future__ import annotations

import json
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from tests.compat.recordings import Recordings

import rallypoint.elastic.events as ours
import rallypoint.elastic.metrics as our_metrics

EVENTS = "torch.distributed.elastic.events"
METRICS = "torch.distributed.elastic.metrics"
METADATA = {"id": "1", "run_id": "r", "global_rank": None, "n": 1, "f": 0.5, "b": True, "t": "é\n"}
RDZV_EVENT = ours.RdzvEvent("n", "r", "m", "h", 1, ours.NodeState.RUNNING, "e:1", 2, 3, "trace")


def the_event() -> ours.Event:
    return ours.Event("a.b", ours.EventSource.WORKER, timestamp=7, metadata=dict(METADATA))


def read_by_torch(texts: dict[str, str]) -> dict[str, object]:
    """What torch finds in our events, and the texts that it makes of them and of its own."""
    api: Any = import_module(f"{EVENTS}.api")
    event = api.Event.deserialize(texts["event"])
    rdzv_event = api.RdzvEvent.deserialize(texts["rdzv event"])
    assert event.source is api.EventSource.WORKER
    assert rdzv_event.node_state is api.NodeState.RUNNING
    return {
        "fields": [event.name, event.timestamp, event.metadata],
        "event": event.serialize(),
        "rdzv event": rdzv_event.serialize(),
        "own": api.Event("x", api.EventSource.AGENT, metadata={"a": 1}).serialize(),
    }


@pytest.fixture
def torchs(torch_said: Recordings) -> dict[str, Any]:
    """The question has our texts in it: another text is another question."""
    texts = {"event": the_event().serialize(), "rdzv event": RDZV_EVENT.serialize()}
    found: dict[str, Any] = torch_said("events", json.dumps(texts), lambda: read_by_torch(texts))
    return found


def test_torch_reads_our_events_and_we_read_torchs(torchs: dict[str, Any]) -> None:
    event = the_event()
    assert torchs["fields"] == [event.name, event.timestamp, METADATA]
    assert ours.Event.deserialize(torchs["event"]) == event
    assert json.loads(torchs["event"]) == json.loads(event.serialize())
    assert ours.Event.deserialize(torchs["own"]).metadata == {"a": 1}


def test_torch_reads_our_rendezvous_events_and_we_read_torchs(torchs: dict[str, Any]) -> None:
    assert ours.RdzvEvent.deserialize(torchs["rdzv event"]) == RDZV_EVENT


def test_the_same_calls_put_the_same_metrics(
    capsys: pytest.CaptureFixture[str], torch_said: Recordings
) -> None:
    def told(package: Any) -> dict[str, object]:
        put = told_by(package)
        package.ConsoleMetricHandler().emit(package.MetricData(1, "g", "n", 2))
        return {"metrics": put, "line": capsys.readouterr().out}

    theirs = torch_said("metrics", "calls", lambda: told(import_module(METRICS)))
    assert told(our_metrics) == theirs


def told_by(package: ModuleType) -> list[list[object]]:
    """What a package's decorators and functions hand over, but for how long it took."""
    told: list[list[object]] = []

    class Kept(package.MetricHandler):  # type: ignore[name-defined, misc]
        def emit(self, metric_data: Any) -> None:
            assert type(metric_data.value) is int
            value = -1 if metric_data.name.endswith(".ms") else metric_data.value
            told.append([metric_data.group_name, metric_data.name, value])

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
