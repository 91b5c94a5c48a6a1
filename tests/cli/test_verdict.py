"""The last lines of a job (A7), as a person reads them."""

from __future__ import annotations

import json
from datetime import UTC

import pytest
from msgspec.structs import replace

from rallypoint.agent.run import JobEnd
from rallypoint.cli.verdict import VerdictView, verdict_lines, verdict_view
from rallypoint.cli.verdict_json import verdict_json
from rallypoint.config import StopConfig
from rallypoint.core.model import Assignment, Cause, Outcome, Verdict
from rallypoint.core.node.events import Finish, FinishKind
from rallypoint.core.text import STACKS
from rallypoint.core.watch.goodput_view import GoodputView, TimePart
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.observe.printing import printed

KILLED = WorkerExit(
    code=None,
    signal=9,
    rank=3,
    local_rank=1,
    role="default",
    pid=4711,
    wall_time=1772366645.1239,
    detail="step 118 loss 0.31\n\tstep 119 loss 0.30\x1b[0m",
    log_file="/logs/train-7_1f2e3d4c/attempt_2/1/stderr.log",
)
FAILED = VerdictView(
    outcome=Outcome.FAILED,
    run_id="train-7",
    round=2,
    elapsed_s=754.2,
    restarts=3,
    max_restarts=3,
    cause=Cause("gpu4", 2, KILLED, collateral=2),
)
RAISED = replace(
    KILLED,
    signal=None,
    code=1,
    role="trainer",
    message="ValueError: loss is nan",
    detail=(
        "Traceback (most recent call last):\n"
        '  File "train.py", line 7, in <module>\n'
        "ValueError: loss is nan"
    ),
    log_file="",
)


def failed(failure: WorkerExit, collateral: int = 2) -> VerdictView:
    """`FAILED` by this worker."""
    return replace(FAILED, cause=Cause("gpu4", 2, failure, collateral=collateral))


def spent(wall_s: float, useful_s: float | None, **more: float) -> GoodputView:
    """With so much of the losses; the rest is spent on work."""
    losses = {"detecting": 0.0, "stopping": 0.0} | more
    faults, again = int(losses.pop("faults", 0)), int(losses.pop("again", 0))
    work = "useful steps" if useful_s is not None else "running, no steps known"
    done_s = useful_s if useful_s is not None else wall_s
    parts = [TimePart(work, "work", done_s), *(TimePart(n, "loss", s) for n, s in losses.items())]
    return GoodputView(wall_s, useful_s, tuple(parts), 99, again, faults, None, 0.0)


def lines(view: VerdictView, *, quiet: bool = False) -> list[str]:
    return printed(*verdict_lines(view, quiet=quiet, zone=UTC)).splitlines()


def test_R5_who_comes_after_the_end_says_first_that_nothing_was_started() -> None:
    late = replace(FAILED, ended_s_ago=75.0)
    said = "rallypoint: nothing was started: job train-7 {} 1 min 15 s ago on this coordinator"
    assert lines(late) == [said.format("ended"), *lines(FAILED)]
    done = replace(late, outcome=Outcome.SUCCEEDED, cause=None)
    assert lines(done) == lines(done, quiet=True)
    assert lines(done)[0] == said.format("succeeded")


def test_A7_last_lines_name_the_first_cause_of_a_killed_worker() -> None:
    assert lines(FAILED) == [
        (
            "rallypoint: job train-7 failed: rank 3 (node gpu4, local rank 1, pid 4711) "
            "was killed by SIGKILL at 12:04:05.123 in round 2"
        ),
        "    its last lines on stderr:",
        "      | step 118 loss 0.31",
        "      |     step 119 loss 0.30\\x1b[0m",
        "    log: /logs/train-7_1f2e3d4c/attempt_2/1/stderr.log (on gpu4)",
        "    2 other workers failed because of it",
        "    restarts: 3 of 3 used",
        (
            "    what to do: something outside the job killed it; most often it ran out of memory: "
            "look for its pid in the kernel log of gpu4 (dmesg -T)"
        ),
    ]


def test_A7_last_lines_show_the_traceback() -> None:
    view = replace(failed(RAISED, collateral=0), restarts=0, max_restarts=0)
    assert lines(view) == [
        (
            "rallypoint: job train-7 failed: rank 3 (role trainer, node gpu4, local rank 1, "
            "pid 4711) exited with code 1 at 12:04:05.123 in round 2"
        ),
        "    error: ValueError: loss is nan",
        "    its traceback:",
        "      | Traceback (most recent call last):",
        '      |   File "train.py", line 7, in <module>',
        "      | ValueError: loss is nan",
    ]


def test_A7_without_any_trace_the_advice_is_to_keep_one() -> None:
    silent = replace(RAISED, message="", detail="")
    assert lines(failed(silent, collateral=1))[1:] == [
        "    1 other worker failed because of it",
        "    restarts: 3 of 3 used",
        "    what to do: run again with --log-dir DIR --tee 3 to keep what each worker writes",
    ]
    crashed = replace(KILLED, signal=11)
    assert "native code crashed" in lines(failed(crashed))[-1]
    told = replace(crashed, detail="Current thread 0x1 (most recent call first):")
    assert "what to do" not in lines(failed(told))[-1]


def test_a_report_of_one_line_names_the_log_file() -> None:
    (line,) = verdict_lines(FAILED, whole=False, zone=UTC)
    assert line == f"{lines(FAILED)[0]}; log: {KILLED.log_file} (on gpu4)"
    unlogged = failed(replace(KILLED, log_file=""))
    assert verdict_lines(unlogged, whole=False, zone=UTC) == (lines(FAILED)[0],)


def test_A7_only_a_program_that_was_not_found_is_looked_for() -> None:
    absent = replace(RAISED, code=127, message="exit code 127", detail="")
    assert "check that the program exists" in lines(failed(absent))[-1]
    full = replace(absent, message="can't write logs under /logs/0: No space left on device")
    assert "what to do" not in lines(failed(full))[-1]


def test_A7_a_kill_for_memory_is_told_as_such() -> None:
    message = "killed by SIGKILL: out of memory (the kernel has just killed for memory here)"
    told = lines(failed(replace(KILLED, message=message)))
    assert told[1] == "    error: out of memory (the kernel has just killed for memory here)"
    assert told[-1].startswith("    what to do: have the workers use less memory")


def test_A7_after_a_bus_error_the_shared_memory_is_looked_at() -> None:
    use = "/dev/shm: 63 of 64 MiB in use"
    dump = "Current thread 0x1 (most recent call first):"
    died = replace(KILLED, signal=7, message=f"killed by SIGBUS: {use}", detail=dump)
    told = lines(failed(died))
    assert told[1] == f"    error: {use}", "the first line has the signal"
    assert told[-1].startswith("    what to do: most often /dev/shm is full")


@pytest.mark.parametrize(
    ("run_id", "name"),
    [("train-7", "job train-7"), ("none", "the job"), ("job-7k2m9x4a", "job-7k2m9x4a")],
)
def test_a_job_that_nobody_named_is_the_job(run_id: str, name: str) -> None:
    ended = replace(FAILED, cause=None, run_id=run_id, outcome=Outcome.SUCCEEDED)
    assert lines(ended)[0].startswith(f"rallypoint: {name} succeeded in 12 min")
    left = replace(ended, outcome=Outcome.INFRASTRUCTURE, reason="this node left the job: why")
    assert lines(left) == [f"rallypoint: this node left {name} in round 2: why"]


def test_A7_an_end_that_no_worker_caused_is_one_line() -> None:
    view = replace(
        FAILED,
        outcome=Outcome.INFRASTRUCTURE,
        cause=None,
        reason="1 of 2 nodes did not join in 600 s:\ngpu4 is missing",
    )
    assert lines(view) == [
        (
            "rallypoint: job train-7 could not continue in round 2: 1 of 2 nodes did not join in "
            "600 s: | gpu4 is missing"
        )
    ]
    assert lines(replace(view, outcome=Outcome.PREEMPTED, reason="SIGTERM to gpu1")) == [
        "rallypoint: job train-7 was preempted in round 2: SIGTERM to gpu1"
    ]
    left = "this node left the job: it got SIGTERM"
    assert lines(replace(view, outcome=Outcome.PREEMPTED, reason=left)) == [
        "rallypoint: this node left job train-7 in round 2: it got SIGTERM"
    ]


def test_A2_a_hang_is_told_with_what_the_worker_was_doing() -> None:
    text = "no progress for 300 s: at step 17 while others are at 42"
    detail = f'{STACKS}\n  File "train.py", line 9 in evaluate'
    hung = failed(replace(KILLED, signal=None, message=text, detail=detail, log_file="/s/r0.txt"))
    told = lines(hung)
    assert " hung at " in told[0]
    assert told[1:5] == [
        f"    error: {text}",
        f"    {STACKS}",
        '      |   File "train.py", line 9 in evaluate',
        "    stacks: /s/r0.txt (on gpu4)",
    ]
    assert verdict_lines(hung, whole=False)[0].endswith("; stacks: /s/r0.txt (on gpu4)")


def test_an_end_that_a_person_asked_for_is_not_told_twice() -> None:
    view = replace(
        FAILED, outcome=Outcome.CANCELLED, cause=None, reason="cancelled on gpu1: SIGINT"
    )
    assert lines(view) == ["rallypoint: job train-7 was cancelled on gpu1: SIGINT"]


def test_A7_a_message_that_says_no_more_than_the_rest_is_left_out() -> None:
    for failure in (
        replace(KILLED, message="killed by SIGKILL"),
        replace(RAISED, message="exit code 1; last line: ValueError: loss is nan"),
    ):
        assert not [x for x in lines(failed(failure)) if "error:" in x.lower()[:12]]
    told = replace(KILLED, message="killed by SIGKILL (out of memory?)")
    assert "    error: killed by SIGKILL (out of memory?)" in lines(failed(told))


def test_success_is_one_line_unless_quiet() -> None:
    view = replace(FAILED, outcome=Outcome.SUCCEEDED, cause=None, restarts=1)
    assert lines(view) == ["rallypoint: job train-7 succeeded in 12 min 34 s after 1 restart"]
    assert lines(replace(view, elapsed_s=0.44, restarts=0)) == [
        "rallypoint: job train-7 succeeded in 0.4 s"
    ]
    assert lines(view, quiet=True) == []
    assert lines(FAILED, quiet=True) == lines(FAILED)


def test_a_node_that_leaves_without_a_verdict_knows_the_budget_of_the_job() -> None:
    place = Assignment(0, 1, 2, 2, 4, 2, 4, "a", 1, 2, "why", True)
    finish = Finish(FinishKind.SIGNAL, signal=15, text="it got SIGTERM")
    view = verdict_view(JobEnd(finish, "job", 3, 9.0, place=place), max_restarts=5)
    record = json.loads(verdict_json(view))
    assert (record["outcome"], record["restarts"], record["max_restarts"]) == ("preempted", 2, 5)


def test_verdict_as_json() -> None:
    record = json.loads(verdict_json(FAILED))
    assert record["event"] == "verdict"
    assert (record["outcome"], record["collateral"], record["elapsed_s"]) == ("failed", 2, 754.2)
    assert record["cause"]["time"] == "2026-03-01T12:04:05.123Z"
    assert (record["cause"]["signal"], record["cause"]["exit_code"]) == ("SIGKILL", None)
    assert record["cause"]["detail"] == KILLED.detail.splitlines()
    done = replace(FAILED, outcome=Outcome.SUCCEEDED, cause=None)
    assert json.loads(verdict_json(done))["cause"] is None


def test_A7_no_pid_is_told_of_a_worker_that_could_not_be_started() -> None:
    view = failed(replace(KILLED, signal=None, code=127, pid=0))
    assert lines(view)[0].startswith(
        "rallypoint: job train-7 failed: rank 3 (node gpu4, local rank 1) exited with code 127 at"
    )
    assert json.loads(verdict_json(view))["cause"]["pid"] is None


@pytest.mark.parametrize("whole", [True, False])
def test_A7_that_restarting_does_not_help_is_in_the_first_line(whole: bool) -> None:
    said = "the same failure 3 times at step 120"
    view = replace(FAILED, no_progress=said)
    first = verdict_lines(view, whole=whole)[0]
    assert f"; {said}, restarting does not help" in first
    ended = f"rank 3 was killed; {said}, restarting does not help (--max-no-progress 3)"
    named = verdict_lines(replace(view, reason=ended), whole=whole)[0]
    assert f"; {said}, restarting does not help (--max-no-progress 3)" in named
    assert json.loads(verdict_json(view))["no_progress"] is True
    assert json.loads(verdict_json(FAILED))["no_progress"] is False


def goodput_line(view: GoodputView | None) -> list[str]:
    """What a success says besides that it is one."""
    job = replace(FAILED, outcome=Outcome.SUCCEEDED, cause=None, restarts=0, goodput=view)
    assert lines(job, quiet=True) == []
    return lines(job)[1:]


def test_the_end_of_a_job_tells_which_share_of_its_time_was_useful() -> None:
    view = spent(7500.0, 6525.0, detecting=450.0, stopping=375.0, faults=12, again=318)
    (line,) = goodput_line(view)
    useful, faults, lost = line.split("; ")
    assert useful == "    goodput: 87.0 % of 2 h 5 min went into useful steps"
    assert faults == "12 faults, 318 steps done again"
    assert lost == "lost to detecting 6.0 %, stopping 5.0 %"
    assert goodput_line(spent(7500.0, 7450.0, stopping=50.0)) == [
        "    goodput: 99.3 % of 2 h 5 min went into useful steps"
    ]


def test_a_short_job_without_a_fault_is_quiet() -> None:
    assert goodput_line(spent(59.0, 30.0)) == []
    assert goodput_line(None) == []
    assert goodput_line(spent(12.0, 6.0, stopping=6.0, faults=1)) == [
        "    goodput: 50.0 % of 12 s went into useful steps; 1 fault; lost to stopping 50.0 %"
    ]


def test_only_a_long_job_is_told_how_its_steps_can_be_known() -> None:
    assert goodput_line(spent(599.0, None, faults=1)) == []
    assert goodput_line(spent(600.0, None)) == [
        "    goodput: no steps were reported in these 10 min 0 s (--progress-pattern reads them)"
    ]


def test_a_failure_tells_its_goodput_where_it_tells_all() -> None:
    view = replace(FAILED, goodput=spent(100.0, 80.0, detecting=20.0, faults=4))
    (line,) = goodput_line(view.goodput)
    assert line.startswith("    goodput: 80.0 % of 1 min 40 s went into useful steps; 4 faults")
    assert line in lines(view)
    assert line not in printed(*verdict_lines(view, whole=False)).splitlines()
    left = replace(view, cause=None, outcome=Outcome.TIMED_OUT, reason="waited 600 s")
    assert lines(left) == ["rallypoint: job train-7 timed out in round 2: waited 600 s", line]
    told = json.loads(printed(verdict_json(view)))["goodput"]
    assert (told["useful_share"], told["faults"], told["wall_s"]) == (0.8, 4, 100.0)


SHARED = "--rdzv-backend file --rdzv-endpoint DIR, a directory that all nodes share, lets the other"


@pytest.mark.parametrize(
    ("stop", "advice"),
    [
        (
            StopConfig(),
            f"{SHARED} nodes continue when one leaves; so does a coordinator on another",
        ),
        (StopConfig(is_slurms=True), f"{SHARED} nodes continue when one leaves"),
        (
            StopConfig(is_slurms=True, limit_in_s=3600.0),
            "the time limit is over: with --stop-before 120 workers save a checkpoint before it",
        ),
        (StopConfig(is_slurms=True, limit_in_s=3600.0, leave_in_s=3480.0), ""),
        (StopConfig(is_slurms=True, limit_in_s=7200.0), SHARED),
    ],
)
def test_what_is_advised_when_the_host_leaves_fits_its_scheduler(
    stop: StopConfig, advice: str
) -> None:
    why = "node n1, which hosts the coordinator, is leaving: it got SIGTERM"
    verdict = Verdict(Outcome.PREEMPTED, why, 0, signal=15)
    end = JobEnd(Finish(FinishKind.VERDICT, verdict=verdict), "digits", 0, 3590.0)
    first, *rest = verdict_lines(verdict_view(end, stop=stop))
    assert first == f"rallypoint: job digits was preempted in round 0: {why}"
    if not advice:
        assert rest == []
        return
    (told,) = rest
    assert told.startswith(f"    what to do: {advice}")
    assert ("rallypoint serve" in told) is not stop.is_slurms
