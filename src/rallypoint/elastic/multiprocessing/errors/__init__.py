"""The report on a process that failed: torch's `ProcessFailure`.

Apart from `failures.py`, which an agent imports when a worker has failed and the job waits: a
dataclass takes milliseconds to make.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, datetime

from rallypoint.core.text import signal_name
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.elastic.multiprocessing.errors.error_handler import ErrorHandler as ErrorHandler
from rallypoint.elastic.multiprocessing.errors.handlers import (
    get_error_handler as get_error_handler,
)
from rallypoint.errors import ChildFailedError as ChildFailedError
from rallypoint.process.causes.told import error_record, traceback_of
from rallypoint.process.failures import JsonDict, parse_error_file, read_error_file
from rallypoint.process.plain_text import plain_text
from rallypoint.worker.error_file import record as record

NOT_AVAILABLE = "<N/A>"
JSON = JsonDict
GlobalRank = int


@dataclass
class ProcessFailure:
    """How a process failed; the error file is read once, when this object is made.

    `exitcode` is negative for a signal. `error_file` becomes `<N/A>` if the file can't be read or
    is malformed.

    `message` is the file's `message`: an object (`{"message": ..., "extraInfo": ...}`) as `record`
    writes it, or a text. Without a file it is `said`, else one line on the signal or exit code.

    `timestamp` is whole Unix seconds: the time in the error file, else `seen_at`, else now.
    `moment` is the same with milliseconds; a file's date provides them if the file gives whole
    seconds.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: JsonDict = field(init=False)
    message: str | JsonDict = field(init=False)
    timestamp: int = field(init=False)
    _: KW_ONLY
    node: str = field(default_factory=socket.gethostname)
    """The host that the process ran on; by default this one."""
    log_file: str = ""
    """The log file of the process's output; may be empty."""
    detail: str = ""
    """The traceback or the last lines on stderr; shown if the error file has no traceback."""
    said: InitVar[str] = ""
    seen_at: InitVar[float | None] = None

    def __post_init__(self, said: str, seen_at: float | None) -> None:
        now = time.time() if seen_at is None else seen_at
        written = parse_error_file(read_error_file(self.error_file))
        if written is None:
            self.error_file = NOT_AVAILABLE
            self.error_file_data = {"message": "<NONE>"}
            if not said and self.exitcode >= 0:
                self.error_file_data["errorTraits"] = {
                    "category": "system_terminated_error",
                    "retryability": "False",
                }
            text, traceback, raised_at = said or self._how_it_ended(), "", None
            self.message = text
        else:
            self.error_file_data, text, traceback, raised_at = written
            self.message = self.error_file_data["message"]
            raised_at = _to_the_millisecond(self.error_file, raised_at)
        self.moment = now if raised_at is None else raised_at
        self.timestamp = int(self.moment)
        self._traceback = traceback or self.detail or text

    def forget_lost_file(self) -> None:
        """Set `error_file` to `<N/A>` if the file no longer exists; its content is kept."""
        if not os.path.isfile(self.error_file):
            self.error_file = NOT_AVAILABLE

    def signal_name(self) -> str:
        """Return the name of the signal, such as `SIGSEGV`.

        `<N/A>` if no signal ended the process.
        """
        return signal_name(-self.exitcode) if self.exitcode < 0 else NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Return the time in local time, to the millisecond: `2026-03-01_12:04:05.123`."""
        moment = datetime.fromtimestamp(self.moment, UTC).astimezone().replace(tzinfo=None)
        return moment.isoformat(sep="_", timespec="milliseconds")

    def section(self, index: int, rank: int) -> str:
        """Return the lines on this failure in the text of `ChildFailedError.format_msg`.

        They have no characters that control a terminal.
        """
        how = f"{self.exitcode} (pid: {self.pid})"
        if self.exitcode < 0:
            how += f" ({self.signal_name()})"
        lines = [
            f"[{index}]:",
            f"  time      : {self.timestamp_isoformat()}",
            f"  host      : {plain_text(self.node)}",
            f"  rank      : {rank} (local_rank: {self.local_rank})",
            f"  exitcode  : {how}",
            f"  error_file: {plain_text(self.error_file)}",
        ]
        if self.log_file:
            lines.append(f"  log_file  : {plain_text(self.log_file)}")
        traceback = plain_text(self._traceback).rstrip().replace("\n", "\n  ")
        return "\n".join([*lines, f"  traceback : {traceback}"])

    def _how_it_ended(self) -> str:
        if self.exitcode < 0:
            return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        return (
            f"exit code {self.exitcode}; for its traceback here, decorate the main function with "
            "rallypoint.worker.record"
        )


def process_failure(exit_: WorkerExit, error_file: str) -> ProcessFailure:
    """Return the failure of a process that this program started.

    `error_file` is the path at which the process may have left one; empty: there is no such path.
    """
    return ProcessFailure(
        exit_.local_rank,
        exit_.pid,
        255 if exit_.returncode is None else exit_.returncode,
        error_file,
        said=exit_.message,
        detail=exit_.detail,
        seen_at=exit_.wall_time,
        log_file=exit_.log_file,
    )


def reported_failure(exit_: WorkerExit, node: str = "", error_file: str = "") -> ProcessFailure:
    """Return the failure of a worker of the node that `node` names; empty: of this node.

    Without an error file on this node, the traceback that the worker reported is put into
    `message` and `error_file_data`, in the form of an error file.
    """
    message, detail = exit_.message, exit_.detail
    made = ProcessFailure(
        exit_.local_rank,
        exit_.pid,
        1 if exit_.returncode is None else exit_.returncode,
        error_file,
        log_file=exit_.log_file,
        said=message if message.endswith(detail) else f"{message}\n{detail}".lstrip("\n"),
        seen_at=exit_.wall_time,
    )
    if node:
        made.node = node
    if made.error_file == NOT_AVAILABLE and traceback_of(exit_):
        made.message = error_record(exit_)
        made.error_file_data = {"message": error_record(exit_)}
    return made


def _to_the_millisecond(path: str, raised_at: float | None) -> float | None:
    if raised_at is None or not raised_at.is_integer():
        return raised_at
    try:
        written_at = os.stat(path).st_mtime
    except OSError:
        return raised_at
    return written_at if 0 <= written_at - raised_at < 1 else raised_at
