"""Events and the status line as text."""

from __future__ import annotations

import json
from datetime import UTC, timedelta, timezone

from rallypoint.cli.render import (
    duration_text,
    elapsed_text,
    render_event,
    render_event_json,
    render_status,
)
from rallypoint.core.event_kinds import NODE_LOST
from rallypoint.observe.records import AgentEvent, StatusView

AT = 1772366645.1239
EVENT = AgentEvent(
    kind=NODE_LOST,
    message="gpu4 is lost (nothing heard for 15 s): workers are stopped, round 3 is called",
    at=AT,
    node="gpu1",
    round=2,
    fields=(("lost", "gpu4"), ("silent_s", 15.0), ("time", "not yours")),
)


def test_an_event_is_one_plain_line() -> None:
    message = "gpu4 is lost (nothing heard for 15 s): workers are stopped, round 3 is called"
    assert render_event(EVENT, zone=UTC) == f"rallypoint 12:04:05: {message}"
    assert render_event(EVENT, show_node=True, zone=UTC) == f"rallypoint 12:04:05 gpu1: {message}"
    east = timezone(timedelta(hours=2))
    assert render_event(EVENT, zone=east).startswith("rallypoint 14:04:05: ")


def test_an_event_as_json_is_flat_and_keeps_its_own_names() -> None:
    line = render_event_json(EVENT)
    assert "\n" not in line
    assert list(json.loads(line).items()) == [
        ("time", "2026-03-01T12:04:05.123Z"),
        ("event", "node_lost"),
        ("message", EVENT.message),
        ("node", "gpu1"),
        ("round", 2),
        ("lost", "gpu4"),
        ("silent_s", 15.0),
    ]


def test_status_line() -> None:
    running = StatusView(
        round=2, nodes=2, max_nodes=2, workers=4, restarts=1, max_restarts=3, for_s=42.9
    )
    text = "round 2 · 2/2 nodes · 4 workers · restarts 1/3 · running 00:42"
    assert render_status(running, 80) == text
    assert render_status(running, len(text)) == text
    assert render_status(running, 20) == "round 2 · 2/2 nodes…"
    assert render_status(running, 1) == "…"
    assert render_status(running, 0) == ""
    alone = StatusView(
        round=0, nodes=1, max_nodes=1, workers=4, restarts=0, max_restarts=0, for_s=3
    )
    assert render_status(alone, 80) == "round 0 · 4 workers · running 00:03"
    waiting = StatusView(
        round=3,
        nodes=1,
        max_nodes=2,
        workers=0,
        restarts=0,
        max_restarts=3,
        waiting_for="1 more node (1 of 2 joined)",
        for_s=12,
    )
    text = "round 3 · waiting for 1 more node (1 of 2 joined) · 12 s"
    assert render_status(waiting, 80) == text


def test_durations() -> None:
    assert [duration_text(s) for s in (0, 59.9, 60, 3599, 7380)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "59 min 59 s",
        "2 h 3 min",
    ]
    assert [elapsed_text(s) for s in (0, 61, 3723)] == ["00:00", "01:01", "1:02:03"]
