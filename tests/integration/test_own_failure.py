"""An agent in which something of its own has failed ends with a line, and so do its workers."""

from __future__ import annotations

from pathlib import Path

from tests.integration.own_program import program

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
    with program(tmp_path, PROGRAM) as run:
        (told,) = run.wait_told("ended")
        assert run.wait() == 0, run.err
    assert told.startswith("the agent has a bug (unexpected KeyError ('unforeseen') at job.py:")
    assert told.endswith("please report it")
