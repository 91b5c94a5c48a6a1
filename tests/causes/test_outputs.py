"""What is said of programs that failed, with the real libraries' outputs (A7)."""

from __future__ import annotations

import pytest
from tests.causes.cases import CASES, Case
from tests.causes.outputs_read import Ended, ended, words

from rallypoint.core.text import signal_name
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.causes.program import Program
from rallypoint.process.causes.told import detail_is_traceback, error_record
from rallypoint.process.failures import describe_failure

WITH_AN_ERROR = sorted(name for name, case in CASES.items() if case.error)
ON_STDERR = [name for name in WITH_AN_ERROR if not ended(name).stdout]
PARTS = (1 << 20, 4096, 137)


def said_of(case: Case, of: Ended, part: int = 4096) -> WorkerExit:
    """The report of that worker."""
    source = case.program or None
    return describe_failure(
        of.exit,
        words=words(of.stderr, of.stdout, part),
        program=Program(
            lambda path: source if path == "/srv/user/train.py" else None,
            frozenset(["train.py", "train"] if source else []),
        ),
    )


def is_said(case: Case, message: str) -> bool:
    """Whether this is the case's error."""
    first, more, _ = case.error.partition("...")
    return message.startswith(first) if more else message == case.error


@pytest.mark.parametrize("name", sorted(CASES))
def test_A7_the_error_of_a_real_output_is_named(name: str) -> None:
    case, of = CASES[name], ended(name)
    for part in PARTS:
        message = said_of(case, of, part).message.removeprefix("killed by SIGABRT: ")
        if case.error:
            assert is_said(case, message)
        elif of.exit.signal is not None:
            assert message == f"killed by {signal_name(of.exit.signal)}"
        else:
            assert message.startswith(f"exit code {of.exit.code}; last line: {case.last}")


@pytest.mark.parametrize("name", ON_STDERR)
def test_A7_the_error_is_the_same_behind_a_bar_and_with_much_before_it(name: str) -> None:
    case, of = CASES[name], ended(name)
    before = b"".join(b"step %d of 9000, loss 0.5\n" % n for n in range(9000))
    late = of._replace(stderr=before + b"\r 50%|#####     | 5/10 [00:02<00:02]" + of.stderr)
    assert case.error.partition("...")[0] in said_of(case, late).message


@pytest.mark.parametrize("name", WITH_AN_ERROR)
def test_A7_a_report_of_an_error_is_bounded_and_says_what_it_is(name: str) -> None:
    told = said_of(CASES[name], ended(name))
    assert len(told.detail.encode()) <= 8192
    if told.signal is None and "no_frames" not in name:
        assert detail_is_traceback(told)
        extra = error_record(told)["extraInfo"]
        assert isinstance(extra, dict)
        assert extra["py_callstack"] == told.detail


@pytest.mark.parametrize("name", WITH_AN_ERROR)
def test_A7_a_traceback_that_the_program_survived_is_not_the_cause(name: str) -> None:
    """Whatever its form: the program went on, and ended by a code of its own."""
    case, of = CASES[name], ended(name)
    if of.exit.signal is not None:
        return
    later = b"".join(b"\nepoch %d is done" % n for n in range(30))
    went_on = Ended(WorkerExit(5, None), of.stderr + later, of.stdout + later)
    told = said_of(case._replace(program=""), went_on)
    assert told.message == "exit code 5; last line: epoch 29 is done"
    assert not detail_is_traceback(told)
