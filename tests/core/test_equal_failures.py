"""A2: equal failures without progress are paused, counted, and end the job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.harness.job_machine import RULES, A, B, Host, failed, orders, stamp

from rallypoint.core import messages as m
from rallypoint.core import restarts
from rallypoint.core.event_kinds import RESTART
from rallypoint.core.events import Timer, TimerEnded, TimerKind
from rallypoint.core.job import timers_wanted
from rallypoint.core.messages import FromNode
from rallypoint.core.model import Outcome
from rallypoint.core.restarts import (
    NO_LOOP,
    PAUSE_MAX_S,
    CrashLoop,
    StepReach,
    after_another_end,
    after_failure,
    describe_loop,
    ending_of,
    is_same,
    normalised,
    pause_s,
)
from rallypoint.core.worker_exits import WorkerExit

EARLY = StepReach(-1, 2.0)


def same_cause(first: WorkerExit, second: WorkerExit) -> bool:
    """Whether two failures are equal, as far as can be told."""
    return is_same(ending_of(first), ending_of(second))


def said(line: str, code: int | None = 1, signal: int | None = None) -> WorkerExit:
    return WorkerExit(code, signal, message=line)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ValueError: bad batch 17", "ValueError: bad batch 18"),
        ("loss is -1.5e-07 at 12:04:05.123", "loss is 2.25 at 13:44:00.001"),
        ("<Tensor object at 0x7f00ab12>", "<Tensor object at 0x7fffcc98>"),
        ("worker 4711 (pid 4711) died", "worker 12 (pid 12) died"),
        ("[rank3]: no such file: /logs/rank3/a.txt", "[rank0]: no such file: /logs/rank0/a.txt"),
        (
            "can't write /logs/job_1f2e3d4c/attempt_0/1",
            "can't write /logs/job_aacc3d4c/attempt_2/0",
        ),
        ("can't read /tmp/tmpab_c1zxq/x.pt", "can't read /tmp/tmpzzzzaaaa/x.pt"),
        (
            "no run 123e4567-e89b-12d3-a456-426614174000",
            "no run 99999999-e89b-12d3-a456-4266141740aa",
        ),
        ("no commit 8ed21009aa", "no commit 7ad00c2bb1"),
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 1.06 GiB free",
            "CUDA out of memory. Tried to allocate 1.20 GiB. GPU 3 has 22.19 MiB free",
        ),
        ("at 2026-11-24T10:00:00Z", "at 2027-01-01T23:59:59Z"),
        ("exit code 1; last line: step 5", "exit code 1; last line: step 6"),
        ("ValueError: one\nmore: 5", "ValueError: one\nelse"),
    ],
)
def test_A2_two_failures_are_equal_but_for_what_differs_between_two_runs(
    first: str, second: str
) -> None:
    assert same_cause(said(first), said(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (said("ValueError: bad batch"), said("KeyError: bad batch")),
        (said("ValueError: bad batch"), said("ValueError: bad batch", code=2)),
        (said("", None, 9), said("", None, 11)),
        (said("", None, 9), said("", 9)),
        (said("no such file: /data/train.bin"), said("no such file: /data/test.bin")),
        (said("no such file: /tmp/1/a.bin"), said("no such file: /tmp/1/b.bin")),
        (said("no layer defaced"), said("no layer decades")),
        (WorkerExit(None, None, reason="no progress for 9 s"), said("no progress for 9 s")),
    ],
)
def test_A2_failures_that_differ_are_not_taken_for_equal(
    first: WorkerExit, second: WorkerExit
) -> None:
    assert not same_cause(first, second)


def test_A2_hangs_are_equal_whatever_the_others_did_meanwhile() -> None:
    alone = WorkerExit(None, None, message="m", reason="no progress for 9 s: at step 17")
    behind = replace(alone, reason="no progress for 9 s: at step 17 while others are at 18")
    assert same_cause(alone, behind)


def test_A2_a_hang_that_repeats_tells_how_far_the_job_was_not_the_rank_that_hung() -> None:
    hang = WorkerExit(None, None, message="m", reason="no progress for 9 s: at step 8")
    loop = NO_LOOP
    for _ in range(2):
        loop = after_failure(loop, hang, StepReach(24, 60.0))
    assert describe_loop(loop) == "the same failure 2 times, the job being at step 24"


def test_A2_without_a_message_the_last_line_is_compared() -> None:
    assert same_cause(WorkerExit(1, None, detail="a\nb 5"), WorkerExit(1, None, detail="c\nb 6"))
    assert not same_cause(WorkerExit(1, None, detail="b\na"), WorkerExit(1, None, detail="b\nc"))


@given(st.text(alphabet="ab cdef/.-:019xGBi", max_size=60))
def test_A2_a_line_is_equal_to_itself_whatever_its_numbers(line: str) -> None:
    assert normalised(normalised(line)) == normalised(line)
    assert not any(letter.isdigit() for letter in normalised(line))


@given(st.text(max_size=600))
def test_A2_any_line_can_be_compared(line: str) -> None:
    assert same_cause(said(line), said(line))


def test_A2_the_first_failure_is_followed_at_once_and_equal_ones_ever_later() -> None:
    loop, pauses = NO_LOOP, []
    for _ in range(9):
        loop = after_failure(loop, said("x"), EARLY)
        pauses.append(pause_s(loop))
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert pause_s(CrashLoop(10**6)) == PAUSE_MAX_S


def test_A2_a_failure_of_another_kind_is_a_first_one() -> None:
    loop = after_failure(after_failure(NO_LOOP, said("x"), EARLY), said("x"), EARLY)
    assert (loop.count, describe_loop(loop)) == (
        2,
        "the same failure 2 times, each within a minute of the start",
    )
    assert after_failure(loop, said("y"), EARLY).count == 1
    assert describe_loop(after_failure(loop, said("y"), EARLY)) == ""


@pytest.mark.parametrize(
    ("reach", "count"),
    [
        (StepReach(121, 1.0), 1),
        (StepReach(120, 9000.0), 3),
        (StepReach(119, 1.0), 3),
    ],
)
def test_A2_where_steps_are_known_only_a_larger_one_is_progress(
    reach: StepReach, count: int
) -> None:
    loop = CrashLoop(2, 120, restarts.ending_of(said("x")))
    loop = after_failure(loop, said("x"), reach)
    assert loop.count == count
    assert loop.step == max(120, reach.step)


@pytest.mark.parametrize(("lived_s", "count"), [(59.0, 3), (60.0, 1), (float("inf"), 1)])
def test_A2_where_no_steps_are_known_a_minute_is_progress(lived_s: float, count: int) -> None:
    loop = CrashLoop(2, -1, restarts.ending_of(said("x")))
    assert after_failure(loop, said("x"), StepReach(-1, lived_s)).count == count


def test_A2_a_planned_end_between_two_failures_does_not_tell_them_apart() -> None:
    loop = after_failure(NO_LOOP, said("x"), StepReach(7, 1.0))
    assert after_another_end(loop, StepReach(7, 1.0), is_planned=True) == loop
    assert after_another_end(loop, StepReach(8, 1.0), is_planned=True) == CrashLoop(step=8)
    assert after_another_end(loop, StepReach(7, 1.0), is_planned=False) == CrashLoop(step=7)


ROUNDS = st.lists(
    st.tuples(st.sampled_from("xy"), st.integers(-1, 6), st.sampled_from((1.0, 90.0))), max_size=12
)


@given(ROUNDS)
def test_A2_what_is_counted_is_equal_failures_without_progress(
    rounds: list[tuple[str, int, float]],
) -> None:
    loop, furthest = NO_LOOP, -1
    for number, (line, step, lived_s) in enumerate(rounds):
        before, furthest = loop, max(furthest, step)
        loop = after_failure(loop, said(line), StepReach(furthest, lived_s))
        assert loop.count in (1, before.count + 1)
        assert loop.step == furthest
        last = rounds[: number + 1][-loop.count :]
        assert len({each[0] for each in last}) == 1, "they are equal"
        if furthest >= 0:
            assert max(step for _, step, _ in last) <= furthest
            assert loop.count == 1 or before.step == furthest
        else:
            assert all(lived < 60.0 for _, _, lived in last[1:])


def test_A2_equal_failures_hold_the_next_round_and_say_so_once() -> None:
    host = _running(0)
    _fail(host, 120)
    assert timers(host) == {}
    _start(host)
    _fail(host, 120)
    assert timers(host) == {Timer(TimerKind.BACKOFF, 2): 1.0}
    _end_pause(host)
    _fail(host, 121)
    assert timers(host) == {}
    told = [record.text for record in host.records if record.kind is RESTART]
    repeated = "restart 2 of 9 in 1 s: the same failure 2 times at step 120"
    assert told == ["restart 1 of 9", repeated, "restart 3 of 9"]


@pytest.mark.parametrize(
    ("backoff_s", "pauses"), [(0.75, (0.75, 1.5, 3.0, 6.0)), (0.25, (0.25, 1.0, 2.0, 4.0))]
)
def test_A2_the_longer_of_two_pauses_counts(backoff_s: float, pauses: tuple[float, ...]) -> None:
    host = _running(0, backoff_s=backoff_s)
    for pause in pauses:
        _fail(host, 120)
        assert list(timers(host).values()) == [pause]
        _end_pause(host)


def test_A2_the_job_ends_when_restarting_does_not_help() -> None:
    host = _running(3)
    for step in (120, 110, 120):
        _fail(host, step)
        if host.job.verdict is None:
            _end_pause(host)
    assert host.verdict.outcome is Outcome.FAILED
    assert host.verdict.no_progress == "the same failure 3 times at step 120"
    why = "the same failure 3 times at step 120, restarting does not help (--max-no-progress 3)"
    assert host.verdict.text.endswith(f"exited with code 1; {why}")
    assert host.verdict.restarts_used == 2


def test_A2_one_failure_may_be_enough() -> None:
    host = _running(1)
    _fail(host, 120)
    assert host.verdict.no_progress == "it has failed once"
    why = "it has failed once, restarting does not help (--max-no-progress 1)"
    assert host.verdict.text.endswith(f"exited with code 1; {why}")


def test_A2_a_job_that_only_used_up_its_budget_is_of_the_other_class() -> None:
    host = _running(3, budget=1)
    _fail(host, 5)
    _start(host)
    _fail(host, 5)
    assert (host.verdict.outcome, host.verdict.no_progress) == (Outcome.FAILED, "")


def test_A2_a_lost_node_is_another_cause_between_two_equal_failures() -> None:
    host = _running(0)
    _fail(host, 5)
    _start(host)
    host.lose(B, heard_at=host.at)
    host.join(A, B)
    _start(host)
    assert host.job.crash_loop.count == 0
    _fail(host, 5)
    assert timers(host) == {}


def test_A2_the_steps_of_an_inquiry_count_too() -> None:
    host = _running(0, hang_s=9.0)
    host.step(FromNode(A, m.HangSuspected(stamp())))
    for ref, furthest in ((A, 40), (B, 41)):
        number = host.job.inquiries
        host.step(FromNode(ref, m.StacksCollected(stamp(), number, None, furthest)))
    assert host.job.furthest_step == 41


def test_A2_what_workers_of_another_round_have_reached_is_not_counted() -> None:
    host = _running(0)
    late = m.Failed(stamp(7), (failed(),), 99)
    host.step(FromNode(A, late))
    assert host.job.furthest_step == -1


def _running(most: int, budget: int = 9, backoff_s: float = 0.0, hang_s: float = 0.0) -> Host:
    host = Host(
        replace(
            RULES,
            max_restarts=budget,
            max_no_progress=most,
            restart_backoff_s=backoff_s,
            hang_timeout_s=hang_s,
        )
    )
    host.join(A, B)
    _start(host)
    return host


def _start(host: Host) -> None:
    assert orders(host.enrol(A, B), m.StartNow)


def _end_pause(host: Host) -> None:
    """The workers of the next round start."""
    host.step(TimerEnded(Timer(TimerKind.BACKOFF, host.job.round.round)))
    _start(host)


def _fail(host: Host, step: int) -> None:
    """Rank 0 fails at this step, and both nodes come back."""
    round_ = host.job.round.round
    host.step(FromNode(A, m.Failed(stamp(round_), (failed(),), step)), host.at + 1.0)
    host.join(A, B)


def timers(host: Host) -> dict[Timer, float]:
    wanted = timers_wanted(host.job)
    return {
        timer: length_s for timer, length_s in wanted.items() if timer.kind is TimerKind.BACKOFF
    }
