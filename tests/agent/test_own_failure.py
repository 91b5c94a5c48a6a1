"""An agent in which something of its own has failed ends with a line, and so do its workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.own_program import program
from tests.harness.round_workers import leaves_nothing as leaves_nothing

from rallypoint.agent.environ import WorkerContext
from rallypoint.agent.node_workers import WorkerRound
from rallypoint.agent.worker_source import WorkerSource
from rallypoint.agent.workers import RoundWorkers, WorkerSetup
from rallypoint.config import AccessConfig, AgentConfig, OutputMode, RendezvousConfig, WorkerConfig
from rallypoint.core.model import Assignment, Stamp
from rallypoint.elastic.multiprocessing import DefaultLogsSpecs, Std
from rallypoint.observe.faults import Faults
from rallypoint.process.logs.plan import LinePrefix
from rallypoint.process.logs.worker_output import OutputSettings, WorkerOutputs

PROGRAM = """
from rallypoint.agent.run import run_agent
from rallypoint.agent.telemetry.telemetry import Telemetry
from rallypoint.config import AccessConfig, AgentConfig, RendezvousConfig, WorkerConfig
from rallypoint.errors import InvariantError
from rallypoint.observe.records import Observer

class Failing(Observer):
    def event(self, event):
        if event.name == "workers_started":
            raise KeyError("unforeseen")
---
config = AgentConfig(
    rendezvous=RendezvousConfig(run_id="job"),
    access=AccessConfig(insecure=True),
    workers=WorkerConfig(argv=("sleep", "1000"), count=2),
)
try:
    run_agent(config, Telemetry(config), lambda relay: Failing(), lambda end: None)
except InvariantError as error:
    tell("ended", error)
"""


def test_an_agent_whose_own_state_has_failed_ends_with_a_line_and_leaves_no_worker(
    tmp_path: Path,
) -> None:
    with program(tmp_path, PROGRAM) as running:
        (told,) = running.wait_told("ended")
        assert running.wait() == 0, running.err
    assert told.startswith("the agent has a bug (unexpected KeyError ('unforeseen') at job.py:")
    assert told.endswith("please report it")


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_A6_workers_that_an_agent_abandons_are_reaped_and_their_ends_are_not_reported(
    tmp_path: Path, is_stopping: bool
) -> None:
    config = AgentConfig(
        rendezvous=RendezvousConfig(run_id="job"),
        access=AccessConfig(insecure=True),
        workers=WorkerConfig(argv=("sleep", "1000"), count=2),
    )
    assignment = Assignment(0, 0, 1, 0, 2, 0, 2, "127.0.0.1", 1, 0, "the first round", False)
    settings = OutputSettings(OutputMode.INHERIT, LinePrefix("default"), Std.NONE)
    outputs = WorkerOutputs(settings, DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL), None)
    source, faults = WorkerSource(config.workers), Faults(print)
    setup = WorkerSetup(config.workers, source, outputs, None, str(tmp_path), print, faults)
    called: list[object] = []
    round_ = WorkerRound(
        Stamp(1, 0),
        assignment,
        lambda: None,
        called.append,
        called.append,
        lambda *gone: called.append(gone),
    )
    workers = RoundWorkers(setup, round_)
    workers.start(
        lambda rank, file: WorkerContext(rank, file, Stamp(1, 0), assignment, config, "a")
    )
    if is_stopping:
        workers.clear()
    assert len(workers.pids) == 2
    await workers.abandon()
    assert not any(map(workers.owns, workers.pids))
    workers.notice()
    workers.kill()
    assert called == []
