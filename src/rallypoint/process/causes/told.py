"""Read a report of a failed worker: the traceback in it, if an exception ended the worker. Pure."""

from __future__ import annotations

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.causes.evidence import evidence_in
from rallypoint.process.causes.tracebacks import read_tracebacks


def traceback_of(exit_: WorkerExit) -> str:
    """Return the traceback, in the report's detail, of the exception that ended the worker; "" if
    there is none, or if a fatal signal ended it."""
    if exit_.code is not None and exit_.message.startswith(f"exit code {exit_.code}"):
        return ""  # Whatever its last lines have was handled.
    detail = exit_.detail.strip("\n")
    found = evidence_in(detail.splitlines(), exit_, lambda _: None).traceback
    # All of it is, where it was read before.
    return detail if found and detail.startswith(found.partition("\n")[0]) else found


def detail_is_traceback(exit_: WorkerExit) -> bool:
    """Return whether `detail` begins with that traceback."""
    if not traceback_of(exit_):
        return False
    found = read_tracebacks(exit_.detail.strip("\n").splitlines())
    return found[0].begin == 0


def error_record(exit_: WorkerExit) -> dict[str, object]:
    """Return the message in the form of torch's error files."""
    callstack = traceback_of(exit_) or exit_.detail
    extra = {"py_callstack": callstack, "timestamp": str(int(exit_.wall_time))}
    return {"message": exit_.message, "extraInfo": extra}
