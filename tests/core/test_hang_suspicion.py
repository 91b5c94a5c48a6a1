"""Who is suspected to hang, and who is blamed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.job_machine import RULES, A, B, failed, running, stamp, told

from rallypoint.core import hang, job
from rallypoint.core import messages as m
from rallypoint.core.events import TimerEnded, TimerKind
from rallypoint.core.hang import Behind, StepsFound, WorkerProgress
from rallypoint.core.messages import FromNode, ToNode


def behind(step: int, silent_s: float, rank: int = 0) -> Behind:
    return Behind(failed(code=1, local_rank=rank), step, silent_s)


def test_looks_come_when_a_worker_may_have_been_silent_for_too_long() -> None:
    assert hang.next_look_s([], 300.0) is None, "nobody has ever told of progress"
    assert (
        hang.next_look_s([WorkerProgress(0, 1, 10.0), WorkerProgress(1, 1, 100.0)], 300.0) == 200.0
    )
    assert hang.next_look_s([WorkerProgress(0, 1, 400.0)], 300.0) == 75.0, (
        "it was told, and is told again"
    )
    assert not hang.is_suspect([WorkerProgress(0, 1, 299.0)], 300.0)
    assert hang.is_suspect([WorkerProgress(0, 1, 1.0), WorkerProgress(1, 9, 300.0)], 300.0)


def test_one_that_has_told_a_first_step_only_is_no_suspect_but_may_be_behind() -> None:
    first = WorkerProgress(1, 0, 500.0, is_timed=False)
    assert hang.next_look_s([first], 300.0) is None
    assert not hang.is_suspect([first], 300.0)
    others = [WorkerProgress(0, 5, 300.0), first]
    assert hang.next_look_s([WorkerProgress(0, 5, 100.0), first], 300.0) == 200.0
    assert hang.is_suspect(others, 300.0)
    assert hang.most_behind(others, 300.0) == first


def test_the_smallest_step_of_the_silent_is_behind_then_the_longest_silent() -> None:
    slow_but_alive = WorkerProgress(0, 3, 10.0)
    waiting = WorkerProgress(1, 42, 300.0)
    assert hang.most_behind([slow_but_alive, waiting], 300.0) == waiting
    assert hang.most_behind([waiting, WorkerProgress(2, 17, 299.0)], 300.0) == WorkerProgress(
        2, 17, 299.0
    )
    assert hang.most_behind([waiting, WorkerProgress(2, 42, 301.0)], 300.0) == WorkerProgress(
        2, 42, 301.0
    )
    assert hang.most_behind([slow_but_alive], 300.0) is None


def test_blame_over_all_nodes() -> None:
    found = [StepsFound("a", behind(42, 301.0), 42), StepsFound("b", behind(17, 299.0), 40)]
    node_id, failure = hang.blamed(found) or ("", None)
    assert node_id == "b"
    assert failure is not None
    assert failure.message == "no progress for 299 s: at step 17 while others are at 42"
    assert hang.blamed([StepsFound("a", None, 42)]) is None
    alone = hang.blamed([StepsFound("a", behind(5, 300.0), 5)])
    assert alone is not None
    assert alone[1].message == "no progress for 300 s: at step 5"


def test_A7_where_one_rank_alone_tells_its_steps_its_hang_may_be_of_another() -> None:
    found = [StepsFound("a", behind(29, 300.0), 29, known=1), StepsFound("b", None, -1)]
    _, failure = hang.blamed(found, workers=4) or ("", None)
    assert failure is not None
    assert failure.message == (
        "no progress for 300 s: at step 29, but no other rank tells its steps: another one may "
        "hang, see all stacks"
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
