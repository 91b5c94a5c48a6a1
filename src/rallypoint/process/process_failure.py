"""One failed process, in torch's vocabulary: what is known of its end, and what it wrote itself."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from rallypoint.core.text import signal_name
from rallypoint.process.failures import plain_text, read_error_file, stamp_seconds

NOT_AVAILABLE = "<N/A>"
JsonDict = dict[str, Any]


@dataclass
class ProcessFailure:
    """How a process failed. Made when that is noticed; reads the error file then, once.

    `exitcode` is negative for a signal. `error_file` becomes `<N/A>` when there is none that can be
    read; what a worker wrote is not trusted, and a malformed file is as good as none.

    `message` is the file's `message`: an object (`{"message": ..., "extraInfo": ...}`) as `record`
    writes it, or a text. Without a file it is `said`, else one line on the signal or exit code.

    `timestamp` is unix seconds: when the process told its failure, else `seen_at`, else now. A file
    has whole seconds; where its own date agrees with them, that gives the milliseconds.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: JsonDict = field(init=False)
    message: str | JsonDict = field(init=False)
    timestamp: float = field(init=False)
    _: KW_ONLY
    node: str = field(default_factory=socket.gethostname)
    """Where it ran."""
    log_file: str = ""
    """Where its output is; may be empty."""
    detail: str = ""
    """The traceback or the last lines on stderr, for the banner, where no file has more."""
    said: InitVar[str] = ""
    seen_at: InitVar[float | None] = None

    def __post_init__(self, said: str, seen_at: float | None) -> None:
        now = time.time() if seen_at is None else seen_at
        found = _read(self.error_file)
        if found is None:
            self.error_file = NOT_AVAILABLE
            self.error_file_data = {"message": "<NONE>"}
            if not said and self.exitcode >= 0:
                self.error_file_data["errorTraits"] = {
                    "category": "system_terminated_error",
                    "retryability": "False",
                }
            self.message, self.timestamp = said or self._how_it_ended(), now
        else:
            self.error_file_data, told_at = found
            self.message = self.error_file_data["message"]
            self.timestamp = now if told_at is None else told_at

    def signal_name(self) -> str:
        """`SIGSEGV`; `<N/A>` when no signal ended it."""
        return signal_name(-self.exitcode) if self.exitcode < 0 else NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Local time to the millisecond: `2026-03-01_12:04:05.123`."""
        moment = datetime.fromtimestamp(self.timestamp, UTC).astimezone().replace(tzinfo=None)
        return moment.isoformat(sep="_", timespec="milliseconds")

    def section(self, index: int, rank: int) -> str:
        """Its part of `ChildFailedError.format_msg`; harmless to a terminal."""
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
        traceback = plain_text(self._traceback()).rstrip().replace("\n", "\n  ")
        return "\n".join([*lines, f"  traceback : {traceback}"])

    def _traceback(self) -> str:
        if isinstance(self.message, str):
            # A traceback ends with the message.
            return self.detail or self.message
        extra = self.message.get("extraInfo")
        callstack = extra.get("py_callstack") if isinstance(extra, dict) else None
        return callstack if isinstance(callstack, str) else str(self.message["message"])

    def _how_it_ended(self) -> str:
        if self.exitcode < 0:
            return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        return (
            f"exit code {self.exitcode}; for its traceback here, decorate the main function with "
            "rallypoint.worker.record"
        )


def _read(path: str) -> tuple[JsonDict, float | None] | None:
    """An error file of either form, and when it says that the failure was."""
    content = read_error_file(path) if path else None
    if content is None:
        return None
    try:
        data = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    match data.get("message"):
        case str():
            stamp = data.get("timestamp")
        case {"message": str(), **rest}:
            extra = rest.get("extraInfo")
            stamp = extra.get("timestamp") if isinstance(extra, dict) else None
        case _:
            return None
    told_at = stamp_seconds(stamp) if isinstance(stamp, str | int | float) else None
    return data, _to_the_millisecond(path, told_at)


def _to_the_millisecond(path: str, told_at: float | None) -> float | None:
    if told_at is None or not told_at.is_integer():
        return told_at
    try:
        written_at = os.stat(path).st_mtime
    except OSError:
        return told_at
    return written_at if 0 <= written_at - told_at < 1 else told_at
