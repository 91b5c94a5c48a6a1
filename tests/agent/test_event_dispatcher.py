"""What listeners are told of workers' ends: each once, and in whose words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.harness.node_machine import TERM, Node, assigned, exited, stamp, verdict

from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.core import messages as m
from rallypoint.core.model import EndKind, EndReason, Outcome
from rallypoint.core.node import machine
from rallypoint.core.node.events import (
    Announced,
    EnrolmentDone,
    NodeEvent,
    SignalCaught,
    WorkersGone,
)
from rallypoint.core.node.machine import NodePhase
from rallypoint.core.node.timeline import RoundLife
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.observe.records import Observer

REASON = EndReason(EndKind.FAILURE, "rank 1 exited with code 3", "a", 0.0)


class Kept(Observer):
    def __init__(self) -> None:
        self.ends: list[tuple[int, str, int | None]] = []
        self.words: list[str] = []
        self.started: list[Sequence[int]] = []
        self.failed = 0

    def workers_started(self, life: RoundLife, pids: Sequence[int]) -> None:
        self.started.append(pids)

    def worker_ended(self, life: RoundLife, state: str, exit_: WorkerExit) -> None:
        self.ends.append((exit_.local_rank, state, exit_.returncode))
        if state == "FAILED":
            self.words.append(exit_.message)

    def workers_failed(self, life: RoundLife) -> None:
        self.failed += 1


class Told:
    """A dispatcher beside a node's machine whose two workers run."""

    def __init__(self) -> None:
        self.state = Node(NodePhase.IDLE).state
        self.dispatcher, self.kept = EventDispatcher(), Kept()
        self.dispatcher.subscribe(self.kept)
        self.step(assigned(), EnrolmentDone(stamp()), m.StartNow(stamp()))
        self.dispatcher.spawned((70, 71), 0.1)

    def step(self, *events: NodeEvent) -> None:
        for event in events:
            self.dispatcher.stepped(event, machine.step(self.state, event))


@pytest.fixture
def told() -> Told:
    return Told()


def test_workers_that_end_well_are_told_at_once(told: Told) -> None:
    assert told.kept.started == [(70, 71)]
    told.step(exited(None, 0))
    assert told.kept.ends == [(1, "SUCCEEDED", 0)]
    told.step(exited(0, 0), verdict(Outcome.SUCCEEDED), WorkersGone(stamp()))
    assert told.kept.ends == [(1, "SUCCEEDED", 0), (0, "SUCCEEDED", 0)]
    assert told.kept.failed == 0


def test_a_failure_is_told_when_its_words_are_known_and_who_was_told_to_end_did_not_fail(
    told: Told,
) -> None:
    told.step(exited(None, 3))
    assert told.kept.failed == 1
    assert told.kept.ends == []
    # One that catches SIGTERM and exits with 0 has not done its work.
    told.step(m.StopNow(stamp(), REASON), exited(0, 3))
    assert told.kept.ends == []
    told.dispatcher.failed(
        0, [WorkerExit(3, None, local_rank=1, rank=1, role="r", pid=71, message="ValueError: bad")]
    )
    told.step(WorkersGone(stamp()))
    assert told.kept.ends == [(0, "TERMINATED", 0), (1, "FAILED", 3)]
    assert told.kept.words == ["ValueError: bad"]


def test_a_signal_is_a_negative_code_and_one_that_the_agent_got_too_is_no_failure(
    told: Told,
) -> None:
    told.step(exited(-TERM), SignalCaught(TERM), Announced(), exited(None, -TERM))
    told.step(WorkersGone(stamp()))
    assert told.kept.ends == [(0, "TERMINATED", -TERM), (1, "TERMINATED", -TERM)]
    assert told.kept.failed == 0


def test_a_worker_of_which_nothing_is_known_is_told_to_have_ended(told: Told) -> None:
    told.step(m.StopNow(stamp(), REASON), WorkersGone(stamp()))
    assert told.kept.ends == [(0, "TERMINATED", None), (1, "TERMINATED", None)]


def test_a_verdict_is_kept_from_the_first_time(told: Told) -> None:
    told.step(verdict(Outcome.FAILED), verdict(Outcome.SUCCEEDED))
    assert told.dispatcher.timeline.verdict is not None
    assert told.dispatcher.timeline.verdict.outcome is Outcome.FAILED
