"""Read a report of a failed worker: the traceback in it, if an exception ended the worker. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.core.text import signal_name
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.causes.evidence import evidence_in
from rallypoint.process.causes.program import Program, may_have_told
from rallypoint.process.causes.tracebacks import read_tracebacks

_SIGABRT = 6
_WORDS = 200
"""The number of the first characters of an exception that the message of its exit must begin
with."""


def traceback_of(exit_: WorkerExit) -> str:
    """Return the traceback of the exception that ended the worker, from the `detail` of its exit.

    What follows the traceback in `detail` may be included. Empty if there is no traceback, if the
    message begins with the exit code, or if a signal other than SIGINT and SIGABRT ended the
    worker.
    """
    if exit_.code is not None and exit_.message.startswith(f"exit code {exit_.code}"):
        return ""  # The program handled the exceptions in its last lines.
    detail = exit_.detail.strip("\n")
    rows = detail.splitlines()
    if exit_.message and may_have_told(exit_) and _begins_with(rows, exit_):
        return detail
    found = evidence_in(rows, exit_, Program()).traceback
    return detail if found and detail.startswith(found.partition("\n")[0]) else found


def detail_is_traceback(exit_: WorkerExit) -> bool:
    """Return whether the `detail` of an exit begins with a traceback of its exception."""
    found = traceback_of(exit_)
    rows = exit_.detail.strip("\n").splitlines()
    return bool(found) and read_tracebacks(rows)[0].begin == 0


def _begins_with(rows: Sequence[str], exit_: WorkerExit) -> bool:
    """Return whether the rows begin with the traceback of the exception in the message."""
    found = read_tracebacks(rows)
    said = exit_.message.rpartition(f"{signal_name(_SIGABRT)}: ")[2]
    return bool(found) and found[0].begin == 0 and said.startswith(found[0].last.error[:_WORDS])


def error_record(exit_: WorkerExit) -> dict[str, object]:
    """Return the message of an exit in the form of torch's error files.

    The record also has the traceback, or without one the `detail`, and the time in Unix seconds.
    """
    callstack = traceback_of(exit_) or exit_.detail
    extra = {"py_callstack": callstack, "timestamp": str(int(exit_.wall_time))}
    return {"message": exit_.message, "extraInfo": extra}
