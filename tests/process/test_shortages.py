"""Which errors say that this machine lacks what workers need, and which blame an option."""

from __future__ import annotations

import errno
import os

import pytest

from rallypoint.errors import ExitClass, LogStorageError, RallypointError, Shortage, UsageError
from rallypoint.process.limits import cant_start_process, cant_start_workers
from rallypoint.process.logs.log_dir import storage_error
from rallypoint.process.spawn import Stage, WorkerCommand, WorkerForkError, WorkerStartError

TRAIN = WorkerCommand(("train",), {})


def failed(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOMEM]
)
def test_A10_a_log_directory_that_takes_nothing_is_the_machine_s_fault(number: int) -> None:
    error = storage_error("/logs", failed(number))
    assert isinstance(error, LogStorageError)
    assert error.shortage == Shortage("write logs", number)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTDIR, errno.ENOENT, errno.ENAMETOOLONG])
def test_A10_a_log_directory_that_can_t_be_one_is_an_option_s_fault(number: int) -> None:
    error = storage_error("/logs", failed(number))
    assert isinstance(error, UsageError)
    assert error.shortage is None
    assert error.exit_class is ExitClass.USAGE


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_A10_files_that_run_out_are_no_mistake_in_the_log_directory(number: int) -> None:
    error = storage_error("/logs", failed(number))
    assert error.exit_class is ExitClass.INFRASTRUCTURE
    assert "--log-dir" not in str(error)
    assert "too many open files" in str(error)
    assert error.shortage == Shortage("open files", number)


@pytest.mark.parametrize(
    ("error", "stage", "fix"),
    [
        (WorkerForkError(1, failed(errno.EAGAIN)), "fork", "ulimit -u"),
        (WorkerForkError(1, failed(errno.EMFILE)), "fork", "ulimit -n"),
        (WorkerStartError(TRAIN, Stage.EXEC, errno.ENOMEM), "exec a worker", "free memory"),
        (WorkerStartError(TRAIN, Stage.EXEC, errno.EIO), "exec a worker", "dmesg"),
        (
            WorkerStartError(TRAIN, Stage.STREAMS, errno.EMFILE),
            "set up the streams of a worker",
            "ulimit -n",
        ),
        (cant_start_process(failed(errno.EAGAIN)), "fork", "ulimit -u"),
        (cant_start_workers(failed(errno.ENOSPC)), "prepare workers", "free space"),
    ],
)
def test_A10_a_worker_that_the_system_refuses_is_the_machine_s_fault(
    error: RallypointError, stage: str, fix: str
) -> None:
    assert error.shortage is not None
    assert error.shortage.stage == stage
    assert error.exit_class is ExitClass.INFRASTRUCTURE
    assert fix in str(error)


def test_A10_advice_fits_the_error_of_a_process_that_can_t_be_started() -> None:
    missing = OSError(errno.ENOENT, "No such file or directory", "/opt/python")
    assert str(cant_start_process(missing)) == (
        "can't start a process: No such file or directory ('/opt/python')"
    )
    assert "dmesg" in str(cant_start_process(failed(errno.EIO)))
    assert "ulimit" not in str(cant_start_process(failed(errno.EPERM)))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.E2BIG])
def test_A10_a_program_that_can_t_be_executed_is_the_job_s_fault(number: int) -> None:
    error = WorkerStartError(TRAIN, Stage.EXEC, number)
    assert error.shortage is None
    assert error.exit_class is ExitClass.USAGE


def test_A10_what_is_no_shortage_stays_the_error_that_it_is() -> None:
    assert cant_start_workers(failed(errno.EPERM)) is None
