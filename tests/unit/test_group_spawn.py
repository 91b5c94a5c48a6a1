"""What a node does when its workers can't be started: decided without starting any."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.unit.groups import RULES, TERM, Node, exited, stamp

from rallypoint.core.group import GroupSettings, Phase
from rallypoint.core.group_events import (
    GiveUp,
    GroupEffect,
    JoinRound,
    LeaveWanted,
    ReportNow,
    SignalCaught,
    SignalWorkers,
    SkipWaits,
    SpawnFailed,
    SpawnFault,
    Wait,
    WorkersGone,
)
from rallypoint.core.messages import Failed, LeaveNow

ALONE = replace(RULES, is_alone=True)


def failed(fault: SpawnFault, round_: int = 0) -> SpawnFailed:
    return SpawnFailed(stamp(round_), "there is no such program", fault)


def without_waits(effects: Sequence[GroupEffect]) -> list[GroupEffect]:
    return [effect for effect in effects if not isinstance(effect, Wait)]


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        (RULES, SpawnFault.COMMAND),
        (RULES, SpawnFault.NODE),
        (ALONE, SpawnFault.COMMAND),
    ],
)
def test_workers_that_cant_be_started_are_a_failure_of_the_round(
    rules: GroupSettings, fault: SpawnFault
) -> None:
    node = Node(Phase.RUNNING, rules)
    report, signal = without_waits(node.step(failed(fault)))
    assert isinstance(report, ReportNow)
    assert isinstance(report.message, Failed)
    [failure] = report.message.failures
    assert (failure.local_rank, failure.exit_code) == (0, 127), "as a shell would say it"
    assert failure.message == "there is no such program"
    assert signal == SignalWorkers(TERM)
    assert node.said[-1] == "spawn_failed"
    assert node.step(WorkersGone(stamp())) == [JoinRound()], "the job may try again"


def test_a_job_of_one_node_that_lacks_something_ends_by_that_error() -> None:
    node = Node(Phase.RUNNING, ALONE)
    assert node.step(failed(SpawnFault.NODE)) == [GiveUp()]
    assert node.state.phase is Phase.DONE
    assert node.said == [], "the error itself is what a person reads"
    assert without_waits(node.step(SignalCaught(TERM))) == [SkipWaits()]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING])
def test_a_failed_spawn_counts_only_while_workers_are_to_run(phase: Phase) -> None:
    node = Node(phase, ALONE)
    assert node.step(failed(SpawnFault.NODE)) == []
    assert node.state.phase is phase


def test_F1_a_failed_spawn_of_another_round_changes_nothing() -> None:
    node = Node(Phase.RUNNING)
    assert node.step(failed(SpawnFault.COMMAND, round_=1)) == []
    assert node.state.phase is Phase.RUNNING


def test_A5_a_leaving_node_whose_workers_cant_be_started_blames_nobody_and_leaves() -> None:
    node = Node(Phase.RUNNING)
    node.step(LeaveWanted("maintenance"))
    assert without_waits(node.step(failed(SpawnFault.COMMAND))) == [SignalWorkers(TERM)]
    assert node.step(WorkersGone(stamp())) == [], "the job has not heard of it yet"
    node.step(LeaveNow(stamp()))
    assert node.state.phase is Phase.DONE


def test_what_was_started_after_all_is_not_forgotten_by_a_second_word() -> None:
    """Told twice, a failed spawn is reported once."""
    node = Node(Phase.RUNNING)
    node.step(failed(SpawnFault.COMMAND))
    assert node.step(failed(SpawnFault.COMMAND)) == []
    assert node.step(exited(1, None)) == []
