"""What a node does when its workers can't be started: decided without starting any."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.harness.narrowed import of_kind
from tests.harness.node_machine import RULES, TERM, Node, exited, stamp

from rallypoint.core.messages import Failed, LeaveNow
from rallypoint.core.node import events as e
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


def failed(error: RallypointError, round_: int = 0) -> e.SpawnFailed:
    return e.SpawnFailed(stamp(round_), error)


def without_waits(effects: Sequence[e.NodeEffect]) -> list[e.NodeEffect]:
    return [effect for effect in effects if not isinstance(effect, e.NodeTimer)]


@pytest.mark.parametrize(
    ("rules", "fault"),
    [(RULES, COMMAND), (RULES, NODE), (RULES, PLUG_IN), (ALONE, COMMAND)],
)
def test_workers_that_cant_be_started_are_a_failure_of_the_round(
    rules: NodeSettings, fault: RallypointError
) -> None:
    node = Node(NodePhase.RUNNING, rules)
    report, signal = without_waits(node.step(failed(fault)))
    assert isinstance(report, e.ReportNow)
    [failure] = of_kind(Failed, report.message).failures
    assert (failure.local_rank, failure.code) == (0, 127), "as a shell would say it"
    assert failure.message == "there is no such program"
    assert signal == e.SignalWorkers(TERM)
    assert node.said[-1] == "spawn_failed"
    assert node.step(e.WorkersGone(stamp())) == [e.JoinRound()], "the job may try again"
    assert node.ended[0] == (0, "FAILED")


@pytest.mark.parametrize("error", [NODE, PLUG_IN])
def test_a_job_of_one_node_that_lacks_something_ends_by_that_error(error: RallypointError) -> None:
    node = Node(NodePhase.RUNNING, ALONE)
    assert node.step(failed(error)) == [e.GiveUpNode(error)]
    assert node.state.phase is NodePhase.DONE
    assert node.said == [], "the error itself is what a person reads"
    assert without_waits(node.step(e.SignalCaught(TERM))) == [e.SkipWaits()]


@pytest.mark.parametrize("phase", [phase for phase in NodePhase if phase is not NodePhase.RUNNING])
def test_a_failed_spawn_counts_only_while_workers_are_to_run(phase: NodePhase) -> None:
    node = Node(phase, ALONE)
    assert node.step(failed(NODE)) == []
    assert node.state.phase is phase


def test_A5_a_leaving_node_whose_workers_cant_be_started_blames_nobody_and_leaves() -> None:
    node = Node(NodePhase.RUNNING)
    node.step(e.LeaveWanted("maintenance"))
    assert without_waits(node.step(failed(COMMAND))) == [e.SignalWorkers(TERM)]
    assert node.step(e.WorkersGone(stamp())) == [], "the job has not heard of it yet"
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
    assert node.step(e.SourceFailed(NODE)) == [e.GiveUpNode(NODE)]
    assert node.state.phase is NodePhase.DONE
    assert node.said == said, "the error itself is what a person reads"
    assert node.step(e.SourceFailed(COMMAND)) == [], "it ends once"
    assert without_waits(node.step(e.SignalCaught(TERM))) == [e.SkipWaits()]
