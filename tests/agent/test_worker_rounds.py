"""What an agent's workers report becomes events of its group; without any process."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from tests.harness.node_machine import Node, assigned, stamp

from rallypoint.agent.node_workers import AgentActions, NodeWorkers, WorkerRound
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.agent.worker_rounds import WorkerRounds
from rallypoint.config import AgentConfig, RendezvousConfig, WorkerConfig
from rallypoint.core import messages as m
from rallypoint.core.node.events import NodeEvent, SpawnFailed, WorkersStarted
from rallypoint.core.node.machine import NodePhase
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import InfrastructureError

ERROR = InfrastructureError("no process left")


class NotReady:
    """Workers that wait for what they are forked from, or can't be started at all."""

    def __init__(self, round_: WorkerRound, error: InfrastructureError | None) -> None:
        self.round, self.error = round_, error
        self.pids, self.shm = (), SimpleNamespace(watch=lambda changed: None)

    def start(self, _context: object) -> None:
        if self.error is not None:
            raise self.error


Begun = tuple[WorkerRounds, list[NodeEvent], WorkerRound]


async def begun(error: InfrastructureError | None) -> Begun:
    """The first round of a node, what its group was told, and how its workers were to be made."""
    events: list[NodeEvent] = []
    made: list[WorkerRound] = []

    def make(round_: WorkerRound) -> NodeWorkers:
        made.append(round_)
        return cast(NodeWorkers, NotReady(round_, error))

    config = AgentConfig(
        rendezvous=RendezvousConfig(run_id="job"), workers=WorkerConfig(argv=("true",))
    )
    actions = AgentActions(events.append, lambda report: None, lambda *said: None)
    state = Node(NodePhase.RUNNING).state
    rounds = WorkerRounds(config, state, make, EventDispatcher(), actions)
    rounds.spawn(stamp(), assigned().assignment, "a")
    return rounds, events, made[0]


def test_a_start_that_fails_later_is_the_same_event_as_one_that_fails_at_once() -> None:
    _, at_once, _ = asyncio.run(begun(ERROR))
    rounds, later, round_ = asyncio.run(begun(None))
    assert rounds.current is not None
    assert later == []
    round_.on_not_started(ERROR)
    assert at_once == later == [SpawnFailed(stamp(), ERROR)]
    assert rounds.current is None, "nothing is left to be signalled"


async def test_A5_a_signal_that_arrives_while_the_start_is_told_has_reached_the_workers() -> None:
    """Signals before `WorkersStarted` have not."""
    rounds, events, round_ = await begun(None)
    told: list[list[NodeEvent]] = []
    rounds._actions = AgentActions(
        events.append, lambda report: None, lambda *said: told.append(events.copy())
    )
    round_.on_started()
    assert told == [[WorkersStarted(stamp())]]


async def test_A3_the_failures_of_a_round_are_not_told_as_those_of_the_next() -> None:
    """A program that has launched a job gets them with its end."""
    rounds, _, _ = await begun(ERROR)
    rounds.report_failures(m.Failed(stamp(), (WorkerExit(None, None, local_rank=1),)))
    assert list(rounds.failures) == [1]
    rounds.spawn(stamp(1), assigned(1).assignment, "a")
    assert rounds.failures == {}
