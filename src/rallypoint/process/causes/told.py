"""What a report of a failed worker says of the exception that ended it. Pure."""

from __future__ import annotations

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.causes.evidence import evidence_in
from rallypoint.process.causes.tracebacks import read_tracebacks


def traceback_of(exit_: WorkerExit) -> str:
    """The traceback, in what is known of a failed worker, of the exception that ended it; "" where
    there is none, or a fatal signal ended it."""
    if exit_.code is not None and exit_.message.startswith(f"exit code {exit_.code}"):
        return ""  # Whatever its last lines have was handled.
    detail = exit_.detail.strip("\n")
    found = evidence_in(detail.splitlines(), exit_, lambda _: None).traceback
    # All of it is, where it was read before.
    return detail if found and detail.startswith(found.partition("\n")[0]) else found


def detail_is_traceback(exit_: WorkerExit) -> bool:
    """Whether `detail` begins with it."""
    if not traceback_of(exit_):
        return False
    found = read_tracebacks(exit_.detail.strip("\n").splitlines())
    return found[0].begin == 0


def error_record(exit_: WorkerExit) -> dict[str, object]:
    """The message as torch's error files have it."""
    callstack = traceback_of(exit_) or exit_.detail
    extra = {"py_callstack": callstack, "timestamp": str(int(exit_.wall_time))}
    return {"message": exit_.message, "extraInfo": extra}
