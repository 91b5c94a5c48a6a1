"""A node whose workers are suspected to hang tells what they do, each time that it is asked."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import cast

from tests.harness.node_machine import assigned, stamp
from tests.harness.virtual_time import in_virtual_time

from rallypoint.agent.hang import HangWatch, StacksFiles
from rallypoint.agent.node_workers import AgentActions, NodeWorkers, RunningRound
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.config import AgentConfig, OutputConfig, RendezvousConfig, WorkerConfig
from rallypoint.core import messages as m
from rallypoint.core.node.events import NodeEvent

CONFIG = AgentConfig(
    rendezvous=RendezvousConfig(run_id="job"),
    workers=WorkerConfig(argv=("true",)),
    output=OutputConfig(log_dir=os.devnull),
)


def test_A7_stacks_are_told_again_when_the_job_hangs_again_in_the_same_round() -> None:
    """A coordinator that is not answered waits for this node for ever."""
    told: list[int] = []
    answered = asyncio.Event()

    def report(message: m.Report) -> None:
        assert isinstance(message, m.StacksCollected)
        told.append(message.number)
        answered.set()

    def step(event: NodeEvent) -> None:
        raise AssertionError(event)

    async def body() -> None:
        actions = AgentActions(step, report, lambda *said: None)
        workers = cast(NodeWorkers, SimpleNamespace(shm=WorkerShm.silent(2)))
        round_ = RunningRound(stamp(), assigned().assignment, workers, {})
        watch = HangWatch(CONFIG, actions, round_, StacksFiles(CONFIG, lambda record: None))
        for number in (1, 2):
            watch.collect(m.CollectStacks(stamp(), number))
            watch.collect(m.CollectStacks(stamp(), number))
            await answered.wait()
            answered.clear()
        watch.close()

    in_virtual_time(body)
    assert told == [1, 2]
