"""The timeline: from what a node's machine is told, with times, to how long each phase took."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.node_machine import exited, stamp, verdict
from tests.harness.timelines import Told

from rallypoint.core import messages as m
from rallypoint.core.model import Assignment, EndKind, EndReason, Outcome, Verdict
from rallypoint.core.node import timeline
from rallypoint.core.node.events import SessionOpened, WorkersGone
from rallypoint.core.node.timeline import RestartedRound
from rallypoint.core.worker_exits import WorkerExit


def lost(age_s: float | None = 4.0) -> EndReason:
    return EndReason(EndKind.LOSS, "node b was lost", "b", age_s)


@pytest.fixture
def told() -> Told:
    told = Told()
    told.line.joining_since = 10.0
    told.run(0, at=15.0)
    return told


def test_a_round_comes_up_in_its_phases(told: Told) -> None:
    assert told.phases == [{"rendezvous": 7.0, "spawn": 0.5}]
    timeline.first_seen(told.line, 0, "first_output", 20.0)
    timeline.first_seen(told.line, 0, "first_progress", 21.0)
    timeline.first_seen(told.line, 0, "first_progress", 99.0)
    assert told.phases == [
        {"rendezvous": 7.0, "spawn": 0.5, "first_output": 2.0, "first_progress": 3.0}
    ]


def test_a_round_that_a_loss_ends_goes_down_and_the_next_one_is_waited_for(told: Told) -> None:
    told.step(30.0, m.StopNow(stamp(0), lost()))
    told.step(32.0, WorkersGone(stamp(0)))
    told.run(1, at=40.0, why="node b was lost")
    assert told.phases == [
        {"rendezvous": 7.0, "spawn": 0.5, "detect": 4.0, "stop": 2.0},
        {"rendezvous": 10.0, "spawn": 0.5},
    ]
    assert told.restarts == [RestartedRound(1, "loss", "node b was lost", counted=False)]


def test_the_first_to_know_of_a_failure_is_who_tells_how_long_it_took(told: Told) -> None:
    told.step(30.0, exited(3))
    timeline.failed_here(told.line, 0, [WorkerExit(3, None, age_s=0.25)])
    reason = EndReason(EndKind.FAILURE, "rank 0 exited with code 3", "a", 9.0)
    told.step(30.5, m.StopNow(stamp(0), reason))
    told.step(31.0, WorkersGone(stamp(0)))
    assert told.phases[0]["detect"] == 0.25
    assert told.phases[0]["stop"] == 1.0


def test_a_round_that_ends_without_a_fault_has_no_detection(told: Told) -> None:
    told.step(30.0, m.StopNow(stamp(0), EndReason(EndKind.GROWTH, "1 node joins")))
    told.step(31.0, WorkersGone(stamp(0)))
    told.run(1, at=32.0, why="1 node joins")
    assert "detect" not in told.phases[0]
    assert told.restarts == [RestartedRound(1, "growth", "1 node joins", counted=False)]


def test_what_comes_when_the_round_is_over_is_not_its_first(told: Told) -> None:
    told.step(30.0, m.StopNow(stamp(0), lost()))
    assert timeline.first_seen(told.line, 0, "first_output", 30.5) == []
    assert timeline.first_seen(told.line, 5, "first_output", 30.5) == []
    assert "first_output" not in told.phases[0]


def test_a_round_without_processes_has_neither_spawn_nor_output() -> None:
    told = Told()
    told.step(0.0, SessionOpened(resumed=False))
    told.step(3.0, m.Assigned(stamp(0), Assignment(0, 0, 2, 0, 4, 0, 4, "a", 1, 0, "w", True)))
    told.step(4.0, m.StopNow(stamp(0), lost(None)))
    assert timeline.first_seen(told.line, 0, "first_output", 5.0) == []
    assert told.phases == [{}]
    told.run(1, at=9.0)
    assert told.phases[1] == {"rendezvous": 11.0, "spawn": 0.5}


@pytest.mark.parametrize(
    ("said", "count", "kind"),
    [
        (EndKind.FAILURE, 1, "failure"),
        (EndKind.LOSS, 1, "failure"),
        (EndKind.FAILURE, 0, "loss"),
        (EndKind.DRAIN, 0, "drain"),
        (None, 0, "unknown"),
        (None, 1, "failure"),
    ],
)
def test_why_there_is_another_round_is_told_by_what_was_charged(
    told: Told, said: EndKind | None, count: int, kind: str
) -> None:
    if said is not None:
        told.step(30.0, m.StopNow(stamp(0), EndReason(said, "first words")))
    told.line.rounds.append(
        timeline.RoundLife(
            replace(told.line.rounds[0].assignment, round=1, why="judged", restart_count=count),
            40.0,
        )
    )
    assert told.restarts == [RestartedRound(1, kind, "judged", counted=bool(count))]
    assert timeline.ended_by(told.line.rounds[0], told.line.rounds[1], None) == (kind, "judged")


def test_the_last_round_ends_as_the_verdict_says_if_a_failure_ended_it(told: Told) -> None:
    (life,) = told.line.rounds
    end = Verdict(Outcome.FAILED, "rank 0 exited with code 3; no restarts", 0)
    assert timeline.ended_by(life, None, end) is None
    told.step(30.0, m.StopNow(stamp(0), EndReason(EndKind.FAILURE, "rank 1 failed")))
    assert timeline.ended_by(life, None, end) == ("failure", end.text)
    assert timeline.ended_by(life, None, None) == ("failure", "rank 1 failed")
    life.end = lost()
    assert timeline.ended_by(life, None, end) == ("loss", "node b was lost")


def test_the_jobs_success_is_a_stop_too(told: Told) -> None:
    told.step(30.0, exited(0, 0), verdict(Outcome.SUCCEEDED))
    told.step(31.5, WorkersGone(stamp(0)))
    assert told.phases[0]["stop"] == 1.5
    assert told.line.rounds[0].ended_at == 31.5
