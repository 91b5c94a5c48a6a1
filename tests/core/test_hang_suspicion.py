"""Who is suspected to hang, and who is blamed."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace
from tests.harness.job_machine import RULES, A, B, failed, running, stamp, told
from tests.harness.narrowed import known

from rallypoint.core import hang, job
from rallypoint.core import messages as m
from rallypoint.core.events import TimerEnded, TimerKind
from rallypoint.core.hang import Behind, StepsFound, Told, WorkerProgress
from rallypoint.core.messages import FromNode, ToNode
from rallypoint.core.watch.node_progress import NodeProgress

RULES_S = replace(RULES, hang_timeout_s=300.0)
NOW = 200.0
IN_EVALUATION = NodeProgress(stamp(), furthest=9, in_phase="evaluation", phase_left_s=50.0)


def behind(step: int, silent_s: float, rank: int = 0, phase: str = "") -> Behind:
    return Behind(failed(code=1, local_rank=rank), step, silent_s, phase)


def silent(rank: int, step: int, silent_s: float, *, is_timed: bool = True) -> WorkerProgress:
    """A worker under the usual limit."""
    return WorkerProgress(rank, step, silent_s, RULES_S.hang_timeout_s, is_timed)


def test_looks_come_when_a_worker_may_have_been_silent_for_too_long() -> None:
    assert hang.next_look_s([], RULES_S) is None, "nobody has ever told of progress"
    assert hang.next_look_s([silent(0, 1, 10.0), silent(1, 1, 100.0)], RULES_S) == 200.0
    assert hang.next_look_s([silent(0, 1, 400.0)], RULES_S) == 75.0, "told, and is told again"
    assert not hang.suspects([silent(0, 1, 299.0)])
    assert hang.suspects([silent(0, 1, 1.0), silent(1, 9, 300.0)])


def test_one_that_has_told_a_first_step_only_is_no_suspect_but_may_be_behind() -> None:
    first = silent(1, 0, 500.0, is_timed=False)
    assert hang.next_look_s([first], RULES_S) is None
    assert not hang.suspects([first])
    others = [silent(0, 5, 300.0), first]
    assert hang.next_look_s([silent(0, 5, 100.0), first], RULES_S) == 200.0
    assert hang.suspects(others)
    assert hang.most_behind(others) == first


def test_the_smallest_step_of_the_silent_is_behind_then_the_longest_silent() -> None:
    slow_but_alive, waiting = silent(0, 3, 10.0), silent(1, 42, 300.0)
    assert hang.most_behind([slow_but_alive, waiting]) == waiting
    assert hang.most_behind([waiting, silent(2, 17, 299.0)]) == silent(2, 17, 299.0)
    assert hang.most_behind([waiting, silent(2, 42, 301.0)]) == silent(2, 42, 301.0)
    assert hang.most_behind([slow_but_alive]) is None


def test_A15_a_phase_has_its_own_limit_and_no_look_comes_too_late_for_the_shortest() -> None:
    evaluating = replace(silent(0, 5, 500.0), limit_s=900.0, phase="evaluation")
    assert not hang.suspects([evaluating])
    assert hang.suspects([replace(evaluating, silent_s=900.0)])
    assert hang.next_look_s([evaluating], RULES_S) == 400.0
    assert hang.most_behind([evaluating, silent(1, 9, 300.0)]) == evaluating, "past its half"
    phases = replace(RULES_S, hang_phases=(("checkpoint", 60.0), ("evaluation", 900.0)))
    assert hang.next_look_s([evaluating], phases) == 60.0, "a checkpoint may begin meanwhile"
    assert hang.next_look_s([], phases) == 60.0
    assert hang.own_limit_s(phases, "checkpoint") == 60.0
    assert hang.own_limit_s(phases, "") is None


def test_blame_over_all_nodes() -> None:
    found = [StepsFound("a", behind(42, 301.0), 42), StepsFound("b", behind(17, 299.0), 40)]
    node_id, failure = hang.blamed(found) or ("", None)
    assert node_id == "b"
    assert failure is not None
    assert failure.message == "no progress for 299 s: at step 17 while others are at 42"
    assert hang.blamed([StepsFound("a", None, 42)]) is None
    alone = known(hang.blamed([StepsFound("a", behind(5, 300.0), 5)]))
    assert alone[1].message == "no progress for 300 s: at step 5"


def test_A7_where_one_rank_alone_tells_its_steps_its_hang_may_be_of_another() -> None:
    found = [StepsFound("a", behind(29, 300.0), 29, known=1), StepsFound("b", None, -1)]
    _, failure = hang.blamed(found, workers=4) or ("", None)
    assert failure is not None
    assert failure.message == (
        "no progress for 300 s: at step 29, but no other rank reports its steps: another rank "
        "may hang, see all stacks"
    )
    _, failure = hang.blamed([StepsFound("a", behind(29, 300.0), 29, known=1)], workers=1) or (
        "",
        None,
    )
    assert failure is not None
    assert failure.message == "no progress for 300 s: at step 29"


@pytest.mark.parametrize(
    ("silent_s", "shown"), [(3.0212, "3.02"), (99.97, "100"), (1800.4, "1800"), (86400.0, "86400")]
)
def test_a_long_silence_is_told_in_seconds_without_an_exponent(silent_s: float, shown: str) -> None:
    _, failure = hang.blamed([StepsFound("a", behind(5, silent_s), 5)]) or ("", None)
    assert failure is not None
    assert failure.message == f"no progress for {shown} s: at step 5"


def test_every_node_is_asked_once_and_may_take_five_seconds() -> None:
    host = running(replace(RULES, hang_timeout_s=300.0))
    assert host.step(FromNode(A, m.HangSuspected(stamp(7)))) == [], "another round"
    assert host.step(FromNode(A, m.HangSuspected(stamp()))) == [
        ToNode(A, m.CollectStacks(stamp(), 1)),
        ToNode(B, m.CollectStacks(stamp(), 1)),
    ]
    assert host.step(FromNode(B, m.HangSuspected(stamp()))) == [], "under way"
    [timer] = [t for t in job.timers_wanted(host.job) if t.kind is TimerKind.STACKS]
    assert job.timers_wanted(host.job)[timer] == 5.0
    assert host.step(FromNode(B, m.StacksCollected(stamp(), 9, behind(1, 300.0), 1))) == [], (
        "another inquiry"
    )
    assert host.step(FromNode(B, m.StacksCollected(stamp(), 1, behind(1, 300.0), 1))) == []
    stops = host.step(TimerEnded(timer))
    assert told(stops, m.StopNow) == [A, B]
    assert host.step(TimerEnded(timer)) == []
    host.join(A, B)
    assert host.blamed == "b"
    assert host.job.ledger.total == 1


def test_a_node_that_has_succeeded_and_gone_since_it_told_is_not_blamed_for_a_hang() -> None:
    host = running(replace(RULES, hang_timeout_s=300.0))
    host.step(FromNode(B, m.HangSuspected(stamp())))
    host.step(FromNode(A, m.StacksCollected(stamp(), 1, behind(7, 200.0), 7)))
    host.step(FromNode(A, m.Succeeded(stamp())))
    host.lose(A, heard_at=102.0)
    assert host.step(FromNode(B, m.StacksCollected(stamp(), 1, behind(9, 160.0), 9))) == [], (
        "it may have waited for a"
    )
    assert "node a" in host.records[-1].text
    host.step(FromNode(B, m.HangSuspected(stamp())))
    host.step(FromNode(B, m.StacksCollected(stamp(), 2, behind(9, 300.0), 9)))
    assert host.job.reports[-1].node_id == "b", "it still hangs"


def test_A5_no_hang_is_looked_into_while_a_node_leaves() -> None:
    host = running(replace(RULES, hang_timeout_s=300.0))
    host.step(FromNode(A, m.Drain("it got SIGTERM", 15, notice_s=20.0)))
    assert host.step(FromNode(B, m.HangSuspected(stamp()))) == []


def test_A15_a_start_that_takes_too_long_blames_a_rank_unless_others_have_made_steps() -> None:
    stuck = StepsFound("b", behind(-1, 1800.0, phase="start"), -1)
    _, failure = known(hang.blamed([StepsFound("a", None, -1), stuck], workers=4))
    assert failure.message == (
        "no progress for 1800 s: no step since its start; which rank hangs is unknown: see all "
        "stacks"
    )
    assert hang.blamed([StepsFound("a", None, 500, known=1), stuck], workers=4) is None
    node_id, failure = known(
        hang.blamed([StepsFound("a", behind(17, 900.0, phase="evaluation"), 17, known=1), stuck])
    )
    assert node_id == "a"
    assert failure.message == "no progress for 900 s: in its phase evaluation, at step 17"


@pytest.mark.parametrize(
    ("told", "in_start", "silent_s", "limit_s", "phase"),
    [
        (Told(0, 5, 70.0, True, "", inf), False, 70.0, 300.0, ""),
        (Told(0, 5, 70.0, True, "", 20.0), False, 20.0, 300.0, ""),
        (Told(0, 5, 70.0, True, "evaluation", 20.0), False, 20.0, 900.0, "evaluation"),
        (Told(0, 5, 10.0, True, "evaluation", 20.0), False, 10.0, 900.0, "evaluation"),
        (Told(0, 5, 70.0, True, "other", 20.0), False, 20.0, 300.0, "other"),
        (Told(0, None, 70.0, True, "", inf), True, 70.0, 1800.0, "start"),
        (Told(0, None, 70.0, True, "", 20.0), True, 20.0, 1800.0, "start"),
        (Told(0, None, 70.0, True, "evaluation", 20.0), False, 20.0, 900.0, "evaluation"),
    ],
)
def test_A15_the_time_of_a_worker_begins_anew_with_a_step_and_at_both_ends_of_a_phase(
    told: Told, in_start: bool, silent_s: float, limit_s: float, phase: str
) -> None:
    rules = replace(RULES_S, hang_phases=(("evaluation", 900.0), ("start", 1800.0)))
    found = known(hang.watched(told, rules, in_start=in_start))
    assert (found.silent_s, found.limit_s, found.phase) == (silent_s, limit_s, phase)
    assert found.is_timed


def test_A15_a_worker_that_tells_no_step_is_watched_in_a_start_that_has_a_limit_alone() -> None:
    silent_one = Told(0, None, 9000.0, True, "other", 9000.0)
    rules = replace(RULES_S, hang_phases=(("start", 1800.0),))
    assert hang.watched(silent_one, rules, in_start=False) is None
    assert hang.watched(silent_one, RULES_S, in_start=True) is None
    assert known(hang.watched(silent_one, rules, in_start=True)).phase == "start"


def test_A15_a_phase_that_began_while_the_nodes_are_asked_keeps_others_from_blame() -> None:
    """What the nodes answer is newer than what their heartbeats have told."""
    waiting = StepsFound("a", behind(42, 300.0), 42, known=1)
    assert hang.blamed([waiting, StepsFound("b", None, 17, 1, is_waited_for=True)]) is None
    phases = replace(RULES_S, hang_phases=(("evaluation", 900.0),))
    evaluating = replace(silent(0, 5, 500.0), limit_s=900.0, phase="evaluation")
    assert hang.is_waited_for([silent(1, 5, 1.0), evaluating], phases)
    assert not hang.is_waited_for([replace(evaluating, silent_s=900.0)], phases)
    assert not hang.is_waited_for([replace(silent(0, 5, 1.0), phase="other")], phases)


def test_A15_a_start_is_no_hang_once_any_node_has_told_a_step_of_the_round() -> None:
    host = running(RULES_S)
    job.heard(host.job, "b", NodeProgress(stamp(), furthest=0), 100.0)
    assert host.step(FromNode(A, m.HangSuspected(stamp(), in_start=True))) == []
    assert told(host.step(FromNode(A, m.HangSuspected(stamp()))), m.CollectStacks) == [A, B]


def test_A15_nobody_is_asked_while_a_worker_may_be_in_its_phase_and_others_wait_for_it() -> None:
    host = running(RULES_S)
    suspected = FromNode(A, m.HangSuspected(stamp()))
    job.heard(host.job, "b", IN_EVALUATION, NOW)
    assert host.step(suspected, NOW + 49) == []
    assert told(host.step(suspected, NOW + 50), m.CollectStacks) == [A, B], "it hangs itself"


@pytest.mark.parametrize("end", [NodeProgress(stamp(), furthest=9), None])
def test_A15_others_are_asked_as_soon_as_the_phase_has_ended(end: NodeProgress | None) -> None:
    """It has told so, or its round is over."""
    host = running(RULES_S)
    named = stamp() if end else stamp(7)
    job.heard(host.job, "b", replace(IN_EVALUATION, stamp=named), NOW)
    if end:
        job.heard(host.job, "b", end, NOW + 1)
    suspected = FromNode(A, m.HangSuspected(stamp()))
    assert told(host.step(suspected, NOW + 2), m.CollectStacks) == [A, B]
