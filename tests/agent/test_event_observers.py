"""What becomes of each kind of event on the console, in the log and at an event handler."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.agent.telemetry.events import OWN, EventEmitter
from rallypoint.cli.console import Printer
from rallypoint.config import (
    AccessConfig,
    AgentConfig,
    HandlerConfig,
    OutputConfig,
    RegisterConfig,
    RendezvousConfig,
    WorkerConfig,
)
from rallypoint.core.event_kinds import KINDS, Detail, EventKind, Level, ReportedBy
from rallypoint.core.settings import ENGINE_NAMES
from rallypoint.elastic.agent.embedded.run import JobLog
from rallypoint.observe.event import Event
from rallypoint.observe.records import AgentEvent, Observer
from rallypoint.process.relay.client import Relay

ON_A_NODE = [kind for kind in KINDS if kind.reported_by is not ReportedBy.COMMAND]
FOR_PEOPLE = [kind for kind in ON_A_NODE if kind.reported_by is not ReportedBy.HOST_TO_HANDLERS]


class Lines:
    """A relay that keeps what it is to print."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, *lines: str) -> None:
        self.said += lines


def reported(observer: Observer) -> None:
    """One event of every kind, whose message is the number of its row."""
    for number, kind in enumerate(KINDS):
        if kind in ON_A_NODE:
            observer.event(AgentEvent(kind, f"row {number}", 0.0, "a", 0))


def shown(lines: list[str]) -> list[EventKind]:
    return [KINDS[int(line.rpartition("row ")[2])] for line in lines]


def config_of(output: OutputConfig | None = None, **meeting: Any) -> AgentConfig:
    return AgentConfig(
        rendezvous=RendezvousConfig(run_id="job", **meeting),
        access=AccessConfig(insecure=True),
        workers=WorkerConfig(argv=("x",)),
        output=output or OutputConfig(),
    )


def printed(nodes: int, **output: object) -> list[EventKind]:
    lines = Lines()
    settings = OutputConfig(**output)  # type: ignore[arg-type]
    reported(Printer(config_of(settings, max_nodes=nodes), cast(Relay, lines)))
    return shown(lines.said)


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_console_follows_the_table(nodes: int) -> None:
    by_default = printed(nodes)
    hidden = {Detail.ALWAYS} | ({Detail.ALONE} if nodes == 1 else set())
    assert by_default == [
        kind for kind in FOR_PEOPLE if kind.level >= Level.INFO and kind.detail not in hidden
    ]
    assert printed(nodes, log_level="DEBUG") == FOR_PEOPLE
    assert printed(nodes, log_level="WARNING") == [
        kind for kind in by_default if kind.level >= Level.WARNING
    ]
    assert printed(nodes, log_level="ERROR") == []
    assert printed(nodes, quiet=True) == [kind for kind in by_default if kind.quiet]


def test_the_log_has_the_levels_of_the_table(caplog: pytest.LogCaptureFixture) -> None:
    log = JobLog()
    with caplog.at_level(logging.DEBUG, logger="rallypoint"):
        reported(log)
        log.close()
    kinds = shown([record.getMessage() for record in caplog.records])
    assert kinds == FOR_PEOPLE
    assert [record.levelno for record in caplog.records] == [kind.level for kind in kinds]


def test_an_event_handler_gets_all_but_what_only_a_console_shows() -> None:
    got: list[Event] = []
    reported(EventEmitter(config_of(), EventDispatcher(), got.append))
    assert [event.name for event in got] == [
        OWN + kind.name for kind in ON_A_NODE if kind.reported_by is not ReportedBy.CONSOLE
    ]


@pytest.mark.parametrize(
    ("meeting", "name"),
    [
        ({}, "tcp"),
        ({"static": True}, "static"),
        ({"handler": HandlerConfig("theirs")}, "theirs"),
        *(({"register": RegisterConfig(name)}, name) for name in (*ENGINE_NAMES, "a_package's")),
    ],
)
def test_events_name_what_keeps_the_record_of_the_job(meeting: dict[str, Any], name: str) -> None:
    got: list[Event] = []
    EventEmitter(config_of(**meeting), EventDispatcher(), got.append).finished(True, "", None)
    assert [event.metadata["rdzv_backend"] for event in got] == [name]
