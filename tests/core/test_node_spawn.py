"""What a node does when its workers can't be started: decided without starting any."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.harness.node_machine import RULES, TERM, Node, exited, stamp

from rallypoint.core.messages import Failed, LeaveNow
from rallypoint.core.node.events import (
    GiveUpNode,
    JoinRound,
    LeaveWanted,
    NodeEffect,
    NodeTimer,
    ReportNow,
    SignalCaught,
    SignalWorkers,
    SkipWaits,
    SourceFailed,
    SpawnFailed,
    WorkersGone,
)
from rallypoint.core.node.machine import NodePhase, NodeSettings
from rallypoint.errors import InfrastructureError, LogsSpecsError, RallypointError, UsageError

ALONE = replace(RULES, is_alone=True)


WORDS = "there is no such program"
COMMAND = UsageError(WORDS)
"""The program, or its arguments."""
NODE = InfrastructureError(WORDS)
"""This node has run out of something."""
PLUG_IN = LogsSpecsError(WORDS)
"""What places the output on this node."""


def failed(error: RallypointError, round_: int = 0) -> SpawnFailed:
    return SpawnFailed(stamp(round_), error)


def without_waits(effects: Sequence[NodeEffect]) -> list[NodeEffect]:
    return [effect for effect in effects if not isinstance(effect, NodeTimer)]


@pytest.mark.parametrize(
    ("rules", "fault"),
    [(RULES, COMMAND), (RULES, NODE), (RULES, PLUG_IN), (ALONE, COMMAND)],
)
def test_workers_that_cant_be_started_are_a_failure_of_the_round(
    rules: NodeSettings, fault: RallypointError
) -> None:
    node = Node(NodePhase.RUNNING, rules)
    report, signal = without_waits(node.step(failed(fault)))
    assert isinstance(report, ReportNow)
    assert isinstance(report.message, Failed)
    [failure] = report.message.failures
    assert (failure.local_rank, failure.code) == (0, 127), "as a shell would say it"
    assert failure.message == "there is no such program"
    assert signal == SignalWorkers(TERM)
    assert node.said[-1] == "spawn_failed"
    assert node.step(WorkersGone(stamp())) == [JoinRound()], "the job may try again"
    assert node.ended[0] == (0, "FAILED")


@pytest.mark.parametrize("error", [NODE, PLUG_IN])
def test_a_job_of_one_node_that_lacks_something_ends_by_that_error(error: RallypointError) -> None:
    node = Node(NodePhase.RUNNING, ALONE)
    assert node.step(failed(error)) == [GiveUpNode(error)]
    assert node.state.phase is NodePhase.DONE
    assert node.said == [], "the error itself is what a person reads"
    assert without_waits(node.step(SignalCaught(TERM))) == [SkipWaits()]


@pytest.mark.parametrize("phase", [phase for phase in NodePhase if phase is not NodePhase.RUNNING])
def test_a_failed_spawn_counts_only_while_workers_are_to_run(phase: NodePhase) -> None:
    node = Node(phase, ALONE)
    assert node.step(failed(NODE)) == []
    assert node.state.phase is phase


def test_F1_a_failed_spawn_of_another_round_changes_nothing() -> None:
    node = Node(NodePhase.RUNNING)
    assert node.step(failed(COMMAND, round_=1)) == []
    assert node.state.phase is NodePhase.RUNNING


def test_A5_a_leaving_node_whose_workers_cant_be_started_blames_nobody_and_leaves() -> None:
    node = Node(NodePhase.RUNNING)
    node.step(LeaveWanted("maintenance"))
    assert without_waits(node.step(failed(COMMAND))) == [SignalWorkers(TERM)]
    assert node.step(WorkersGone(stamp())) == [], "the job has not heard of it yet"
    node.step(LeaveNow(stamp()))
    assert node.state.phase is NodePhase.DONE


def test_what_was_started_after_all_is_not_forgotten_by_a_second_word() -> None:
    """Told twice, a failed spawn is reported once."""
    node = Node(NodePhase.RUNNING)
    node.step(failed(COMMAND))
    assert node.step(failed(COMMAND)) == []
    assert node.step(exited(1, None)) == []


@pytest.mark.parametrize("phase", [phase for phase in NodePhase if phase is not NodePhase.DONE])
@pytest.mark.parametrize("rules", [RULES, ALONE])
def test_a_node_whose_workers_come_from_nothing_ends_by_that_error_in_any_phase(
    rules: NodeSettings, phase: NodePhase
) -> None:
    """The next round could not start any either."""
    node = Node(phase, rules)
    said = list(node.said)
    assert node.step(SourceFailed(NODE)) == [GiveUpNode(NODE)]
    assert node.state.phase is NodePhase.DONE
    assert node.said == said, "the error itself is what a person reads"
    assert node.step(SourceFailed(COMMAND)) == [], "it ends once"
    assert without_waits(node.step(SignalCaught(TERM))) == [SkipWaits()]
