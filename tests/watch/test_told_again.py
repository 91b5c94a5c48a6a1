"""A coordinator that has taken a job over is told by the nodes how the last rounds went."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from tests.harness.narrowed import only
from tests.harness.node_machine import stamp
from tests.harness.timelines import Told
from tests.harness.watched_cluster import NOON

from rallypoint.agent.progress_report import ProgressReport
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.cli.watch.status_text import status_lines
from rallypoint.config import AgentConfig, RendezvousConfig, WorkerConfig
from rallypoint.core import messages as m
from rallypoint.core.job_state import JobState, new_job
from rallypoint.core.model import EndKind, EndReason, SharedSettings, Stamp
from rallypoint.core.node import timeline
from rallypoint.core.node.events import WorkersGone
from rallypoint.core.round_record import (
    PHASES,
    ROUNDS_REPORTED,
    ReportedRound,
    RoundRecord,
    Slowest,
)
from rallypoint.core.watch.history import JobHistory
from rallypoint.core.watch.history_file import Begin, HistoryLine, as_object, read
from rallypoint.core.watch.job_view import Heard, view_of
from rallypoint.core.watch.turns import RoundFormed
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import MessageError
from rallypoint.wire import codec

BLAME = "rank 1 (node a, local rank 1) exited with code 1"
FAILED = WorkerExit(
    1, None, local_rank=1, rank=1, role="default", age_s=0.1, detail="Traceback\nValueError"
)


def node_of_three_rounds() -> Told:
    """Round 0 ended by a failure of this node `a`, round 1 by the loss of another; round 2 runs."""
    told = Told()
    told.line.joining_since = 10.0
    told.run(0, at=15.0, why="the first round")
    timeline.failed_here(told.line, 0, [FAILED])
    told.step(30.0, m.StopNow(stamp(0), EndReason(EndKind.FAILURE, BLAME, "a", 0.1)))
    told.step(32.0, WorkersGone(stamp(0)))
    told.run(1, at=33.0, count=1, why=BLAME)
    told.step(60.0, m.StopNow(stamp(1), EndReason(EndKind.LOSS, "node b was lost", "b", 4.0)))
    told.step(61.0, WorkersGone(stamp(1)))
    told.run(2, at=62.0, count=1, why="node b was lost: its connection was closed")
    return told


def taken_over(newest: int) -> tuple[JobHistory, JobState]:
    """At 100 s on the clock of the node; round `newest` may run."""
    history = JobHistory(100.0, lambda at: NOON + at)
    history.take_over(newest, 100.0, is_active=True)
    return history, new_job(SharedSettings("job", 2, 2), stamp(0).incarnation)


def test_V2_the_last_rounds_are_known_again_after_a_takeover() -> None:
    node = node_of_three_rounds()
    history, job = taken_over(2)
    history.told_again(job, "a", timeline.told(node.line, "a", 100.0), 100.0)
    first, second, runs = history.rounds
    assert (first.why, first.end, first.end_text) == ("the first round", "failure", BLAME)
    assert (first.formed, first.ended) == (NOON + 15.0, NOON + 30.0)
    assert (second.why, second.end) == (BLAME, "loss")
    assert second.end_text == "node b was lost: its connection was closed"
    assert (runs.nodes, runs.workers, runs.end) == (2, 4, "")
    assert runs.why == second.end_text
    # Phases, and what the worker said that failed first.
    assert first.slowest["stop"] == Slowest("a", 2.0)
    assert first.slowest["detect"] == Slowest("a", 0.1)
    assert second.slowest["detect"] == Slowest("b", 4.0)
    assert first.cause is not None
    assert (first.cause.node, first.cause.rank, first.cause.detail) == ("a", 1, FAILED.detail)
    assert second.cause is None


def test_what_a_worker_said_is_told_by_its_own_node_alone() -> None:
    """Of ten thousand nodes whose workers all fail of one, one tells of a traceback."""
    rounds = timeline.told(node_of_three_rounds().line, "a", 100.0)
    assert [one.failure for one in rounds] == [FAILED, None, None]
    elsewhere = timeline.told(node_of_three_rounds().line, "c", 100.0)
    assert [one.failure for one in elsewhere] == [None, None, None]


def test_the_others_add_how_long_it_took_there_and_change_nothing_else() -> None:
    history, job = taken_over(2)
    rounds = timeline.told(node_of_three_rounds().line, "a", 100.0)
    history.told_again(job, "a", rounds, 100.0)
    took = {"stop": 9.0, "spawn": 0.1}
    phases = tuple(map(took.get, PHASES, rounds[0].phases))
    differs = replace(rounds[0], why="another reason", phases=phases, nodes=7)
    history.told_again(job, "c", (differs,), 100.0)
    first = history.rounds[0]
    assert (first.why, first.nodes) == ("the first round", 2)
    assert first.slowest["stop"] == Slowest("c", 9.0)
    assert first.slowest["spawn"] == Slowest("a", 0.5)


def test_a_node_tells_nothing_of_this_coordinator_s_rounds_or_of_another_life() -> None:
    (told, *_) = timeline.told(node_of_three_rounds().line, "a", 100.0)
    history, job = taken_over(2)
    later = replace(told, stamp=Stamp(job.incarnation, 3))
    other = replace(told, stamp=Stamp(job.incarnation + 1, 1))
    history.told_again(job, "a", (later, other), 100.0)
    assert [one.round for one in history.rounds] == [2]
    began = JobHistory(100.0, lambda at: NOON + at)
    began.told_again(job, "a", (told,), 100.0)
    assert not began.rounds


def test_a_node_tells_of_rounds_under_an_earlier_number_of_the_job() -> None:
    (told, *_) = timeline.told(node_of_three_rounds().line, "a", 100.0)
    history, job = taken_over(2)
    job.earlier_numbers, job.incarnation = (job.incarnation,), job.incarnation + 7
    history.told_again(job, "a", (told,), 100.0)
    assert [one.round for one in history.rounds] == [0, 2]


def test_of_many_rounds_the_newest_are_kept() -> None:
    history, job = taken_over(40)
    (told, *_) = timeline.told(node_of_three_rounds().line, "a", 100.0)
    for number in range(40):
        one = replace(told, stamp=Stamp(job.incarnation, number))
        history.told_again(job, "a", (one,), 100.0)
    assert [one.round for one in history.rounds] == [37, 38, 39, 40]


def test_a_person_sees_the_round_that_ended_before_the_takeover() -> None:
    history, job = taken_over(1)
    rounds = timeline.told(node_of_three_rounds().line, "a", 100.0)[:1]
    history.told_again(job, "a", rounds, 100.0)
    view = view_of(job, history, lambda _: Heard(), 101.0)
    lines = [line.strip() for line in status_lines(view, 100)]
    assert f"round 0     ended by failure: {BLAME}" in lines
    assert "| ValueError" in lines


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"why": "line\nfeed"}, "why"),
        ({"nodes": -1}, "nodes"),
        ({"began_s": float("inf")}, "began_s"),
    ],
)
def test_what_can_t_be_is_refused(change: dict[str, object], said: str) -> None:
    (told, *_) = timeline.told(node_of_three_rounds().line, "a", 100.0)
    beat = m.Heartbeat(1, rounds=(replace(told, **change),))
    with pytest.raises(MessageError, match=said):
        codec.decode_to_coordinator(codec.encode(beat))


def test_a_report_has_the_form_that_older_coordinators_read() -> None:
    (told, *_) = timeline.told(node_of_three_rounds().line, "a", 100.0)
    form = msgspec.json.decode(msgspec.json.encode(told))
    assert form[:6] == [[1, 0], 2, 4, "the first round", 85.0, 70.0]
    assert form[7] == [7.0, 0.5, None, None, 2.0], "rendezvous, spawn, first output, progress, stop"
    assert len(form) == 9


def test_more_rounds_than_a_node_tells_are_refused() -> None:
    (told, *_) = timeline.told(node_of_three_rounds().line, "a", 100.0)
    rounds: tuple[ReportedRound, ...] = (told,) * ROUNDS_REPORTED
    assert codec.decode_to_coordinator(codec.encode(m.Heartbeat(1, rounds=rounds)))
    with pytest.raises(MessageError, match="at most 3 items"):
        codec.decode_to_coordinator(codec.encode(m.Heartbeat(1, rounds=(*rounds, told))))


def test_of_old_rounds_no_traceback_is_kept() -> None:
    told = Told()
    told.line.joining_since = 10.0
    for number in range(6):
        told.run(number, at=15.0 + 10 * number, why=BLAME)
        timeline.failed_here(told.line, number, [FAILED])
        told.step(20.0, m.StopNow(stamp(number), EndReason(EndKind.FAILURE, BLAME, "a", 0.1)))
        told.step(21.0, WorkersGone(stamp(number)))
    assert [life.failure is not None for life in told.line.rounds] == [False] * 3 + [True] * 3


class Reporting:
    """The heartbeats of the node of `node_of_three_rounds`, as this group rank."""

    def __init__(self, rank: int, node_id: str = "a") -> None:
        dispatcher = EventDispatcher(lambda: 100.0)
        dispatcher.node, dispatcher.timeline = node_id, node_of_three_rounds().line
        for life in dispatcher.timeline.rounds:
            life.assignment = replace(life.assignment, group_rank=rank)
        rendezvous, workers = RendezvousConfig("job", 1, 2), WorkerConfig(argv=("x",))
        config = AgentConfig(rendezvous=rendezvous, workers=workers)
        self._report = ProgressReport(config, dispatcher)

    def tells(self, generation: int, epoch: int) -> list[int]:
        return [one.stamp.round for one in self._report.rounds(generation, epoch)]


def test_the_rounds_are_told_once_on_each_connection_to_another_coordinator() -> None:
    node = Reporting(0)
    assert [node.tells(generation, 7) for generation in (1, 1, 2)] == [[], [], []]
    assert [node.tells(3, 8), node.tells(3, 8), node.tells(4, 8)] == [[0, 1, 2], [], [0, 1, 2]]


def test_of_ten_thousand_nodes_some_tell_and_the_one_whose_worker_failed() -> None:
    for rank, node_id, rounds in ((255, "c", [0, 1, 2]), (256, "c", []), (9999, "a", [0])):
        node = Reporting(rank, node_id)
        node.tells(1, 7)
        assert node.tells(2, 8) == rounds, rank


def test_a_round_that_had_ended_before_the_takeover_is_written_once_it_is_known() -> None:
    history = JobHistory(100.0, lambda at: NOON + at)
    history.take_over(1, 100.0, is_active=False)
    job = new_job(SharedSettings("job", 2, 2), stamp(0).incarnation)
    job.round.round = job.judged_round = 2
    job.end_reason = EndReason(EndKind.LOSS, "node b was lost", "b")
    history.noted(job, 100.0)
    assert not history.news, "nobody has told of the round yet"
    rounds = timeline.told(node_of_three_rounds().line, "a", 100.0)
    history.told_again(job, "a", rounds, 101.0)
    job.turns.append(RoundFormed(2, frozenset({"a"}), 2, "node b was lost"))
    history.noted(job, 102.0)
    told = only(RoundRecord, history.news)
    assert (told.round, told.nodes, told.workers, told.why) == (1, 2, 4, BLAME)
    assert (told.formed, told.ended) == (NOON + 34.0, NOON + 61.0)


def test_V2_a_round_has_the_end_that_was_judged_though_no_node_has_heard_of_the_next() -> None:
    """Its nodes know which failure was heard first; the record knows the failure that was first."""
    node, judged = node_of_three_rounds(), EndReason(EndKind.FAILURE, "rank 3 failed", "b")
    history, job = taken_over(3)
    job.last_end = judged
    node.step(90.0, m.StopNow(stamp(2), EndReason(EndKind.FAILURE, BLAME, "a", 0.1)))
    node.step(91.0, WorkersGone(stamp(2)))
    job.round.round = 4
    job.end_reason = EndReason(EndKind.LOSS, "nobody had heard of it")
    history.told_again(job, "a", timeline.told(node.line, "a", 100.0), 100.0)
    ends = [(past.round, past.end_text) for past in history.rounds]
    assert ends[-2:] == [(2, "rank 3 failed"), (3, "nobody had heard of it")]
    assert ends[0] == (0, BLAME)


def test_of_a_round_that_two_coordinators_tell_of_the_first_line_counts() -> None:
    begin = Begin("job", 1, 1.0)
    first = RoundRecord(1, 3, 24, BLAME, 1.0, 2.0, "failure", BLAME)
    second = RoundRecord(1, 3, 24, BLAME, 1.0, 3.0, "failure", BLAME)
    later = Begin("job", 1, 3.0, took_over=True)
    lines: list[HistoryLine] = [begin, first, later, second]
    found = read([msgspec.json.encode(as_object(line)) for line in lines])
    assert found.rounds == [first]
