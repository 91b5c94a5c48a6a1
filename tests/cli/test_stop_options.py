"""`--stop-at` and `--stop-before`: when a node leaves by itself."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.harness.command_line import MACHINE, parse, refusal

from rallypoint.cli.verdict import of_finish
from rallypoint.core.model import Outcome, Verdict
from rallypoint.core.node.events import Finish, FinishKind

NOW = MACHINE.now()


@pytest.mark.parametrize(
    ("end", "before", "leaves_in_s"),
    [
        (str(int(NOW) + 3600), "600", 3000.0),
        (datetime.fromtimestamp(NOW + 3600, UTC).isoformat(), "600", 3000.0),
        (str(int(NOW) + 60), "600", 0.0),
        (str(int(NOW) + 60), "0", 60.0),
    ],
)
def test_A5_a_node_leaves_before_its_time_is_over(
    end: str, before: str, leaves_in_s: float
) -> None:
    config = parse(f"--stop-at {end} --stop-before {before} train.py")
    assert config.stop.leave_in_s == leaves_in_s
    (notice,) = config.notices
    assert notice.endswith(f": --stop-at {end}, --stop-before {before}")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "--stop-before 60",
            "--stop-before 60 has no effect without an end time: give --stop-at T",
        ),
        ("--stop-at NONE --stop-before 60", "--stop-at NONE: there is no end, so --stop-before 60"),
        ("--stop-at 1700000000 --stop-before 60", "--stop-at 1700000000: it is over, or more than"),
        ("--stop-at 2700000000 --stop-before 60", "--stop-at 2700000000: it is over, or more than"),
    ],
)
def test_an_end_that_can_not_be_is_told_and_ignored(line: str, says: str) -> None:
    config = parse(f"{line} train.py")
    assert config.stop.leave_in_s is None
    (notice,) = config.notices
    assert notice.startswith(says)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--stop-at soon", "--stop-at soon: needs a time, like 2030-12-31T18:30:00, or seconds"),
        ("--stop-at 1800003600 --stop-before x", "--stop-before x: needs a number of seconds"),
    ],
)
def test_what_is_no_time_is_refused_in_one_line(line: str, says: str) -> None:
    assert refusal(f"{line} train.py").startswith(says)


@pytest.mark.parametrize(
    ("signal", "elapsed_s", "code"),
    [(15, 3000.0, 75), (15, 2995.0, 75), (15, 100.0, 143), (2, 3000.0, 130)],
    ids=["its time is over", "that of another node, by its clock", "before", "Ctrl-C"],
)
def test_A7_a_planned_end_has_the_exit_code_by_which_a_job_is_started_again(
    signal: int, elapsed_s: float, code: int
) -> None:
    config = parse(f"--stop-at {int(NOW) + 3600} --stop-before 600 train.py")
    finish = Finish(FinishKind.SIGNAL, signal=signal)
    assert of_finish(config.stop, finish, elapsed_s) == code
    assert of_finish(parse("train.py").stop, finish, elapsed_s) == 128 + signal


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("", 1),
        ("--exit-code failed=5", 5),
        ("--exit-code no-progress=6", 6),
        ("--exit-code no-progress=6 --exit-code failed=5", 6),
    ],
)
def test_A7_a_job_that_restarting_does_not_help_may_have_its_own_exit_code(
    options: str, code: int
) -> None:
    config = parse(f"{options} --max-restarts 9 --max-no-progress 3 train.py")
    verdict = Verdict(Outcome.FAILED, "a text", 2, no_progress="the same failure 3 times")
    assert of_finish(config.stop, Finish(FinishKind.VERDICT, verdict), 9.0) == code
    other = Verdict(Outcome.FAILED, "a text", 2)
    assert of_finish(config.stop, Finish(FinishKind.VERDICT, other), 9.0) in (1, 5)
