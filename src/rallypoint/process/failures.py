"""Why a worker failed, told in one line and a traceback: from its error file, its last words on
stderr, and how the kernel saw it end (or killed it for memory).

The error file is torch's (a worker under torch's `record` decorator writes it to
TORCHELASTIC_ERROR_FILE): `{"message": {"message": ..., "extraInfo": {"py_callstack": ...,
"timestamp": ...}}}` or `{"message": text, "timestamp": ...}`. A worker writes what it likes there,
so nothing in it is trusted: anything malformed is as good as none.
"""

from __future__ import annotations

import math
import os
import re
import socket
import stat
import time
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from rallypoint.core.text import signal_name
from rallypoint.core.worker_exits import WorkerExit

NOT_AVAILABLE = "<N/A>"
MESSAGE_LIMIT_BYTES = 2048
TRACEBACK_LIMIT_BYTES = 8192
_ERROR_FILE_LIMIT_BYTES = 1 << 20
_SIGABRT, _SIGKILL = 6, 9
_YEAR_9999_S = 253_370_764_800


JsonDict = dict[str, Any]


class ErrorFile(NamedTuple):
    """An error file of either form. `data` is its whole content, `raised_at` unix seconds by the
    worker's clock; None where it has no time."""

    data: JsonDict
    message: str
    traceback: str
    raised_at: float | None


def read_error_file(path: str) -> bytes | None:
    """The content, or None when there is none, it is not a regular file, or longer than 1 MiB.

    Never blocks on a pipe that a worker put there.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _ERROR_FILE_LIMIT_BYTES:
            return None
        return os.read(fd, _ERROR_FILE_LIMIT_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)


def describe_failure(
    exit_: WorkerExit,
    *,
    error_file: bytes | None = None,
    stderr_tail: bytes = b"",
    out_of_memory: bool = False,
) -> WorkerExit:
    """The exit with a message and the detail behind it, free of control characters and bounded, and
    whether the worker died because another one or its network was gone, so that it is hardly the
    first cause (A3). Pure.

    A fatal signal is the message, whatever the worker said before, except for SIGABRT, by which C++
    programs end on an exception that they have printed. `out_of_memory`: the kernel has killed for
    memory in this container (`oom.OomWatch`).
    """
    tail = plain_text(_decode_tail(stderr_tail))
    written = parse_error_file(error_file)
    if written is not None:
        error, traceback = plain_text(written.message), plain_text(written.traceback)
    else:
        error, traceback = _exception_block(tail), tail
    said = error.partition("\n")[0].strip()
    match exit_.signal:
        case None if said:
            message = said
        case None:
            last = _last_line(tail)
            message = f"{exit_.describe()}; last line: {last}" if last else exit_.describe()
        case signum:
            message = _describe_signal(signum, exit_.core_dumped, out_of_memory)
            if signum == _SIGABRT and said:
                message = f"{message}: {said}"
    fatal = exit_.signal not in (None, _SIGABRT)
    crash = _crash_stack(tail) if exit_.signal is not None else ""
    return replace(
        exit_,
        message=_clip_end(message, MESSAGE_LIMIT_BYTES),
        detail=_clip_start(crash or traceback or tail, TRACEBACK_LIMIT_BYTES),
        tells_of_lost_peer=not fatal and tells_of_lost_peer(error),
    )


# What gloo, NCCL, UCC, sockets and torch's store say when the other side has gone.
_LOST_PEER = re.compile(
    r"""
      connection \s (reset|closed|aborted|refused) | ConnectionResetError | ConnectionRefusedError
    | ConnectionAbortedError | BrokenPipeError | broken \s pipe | no \s route \s to \s host
    | network \s is \s unreachable | socket \s timeout | timed \s out \s waiting
    | wait \s timeout | client \s socket \s has \s timed \s out | timeout \s caused \s pair
    | remote \s process \s exited | ncclRemoteError | ncclSystemError
    | communicator \s was \s aborted | caught \s collective \s operation \s timeout
    | watchdog \s thread \s terminated | failed \s to \s recv | recvValue \s failed
    | sendBytes \s failed | recvBytes \s failed | DistNetworkError | DistBackendError
    | DistStoreError | Barrier \s timed \s out | heartbeat \s timeout | MPI_ERR_PROC_FAILED
    | peer \s (is \s)?(gone|lost|unreachable) | UCS_ERR_(ENDPOINT_TIMEOUT|CONNECTION_RESET)
    | ucc .{0,60} (connection|remote)
    """,
    re.IGNORECASE | re.VERBOSE,
)
# The same exceptions when the fault is this worker's own.
_OWN_FAULT = re.compile(
    r"""
      invalid \s (usage|argument) | ncclInvalid | ncclInternalError | unhandled \s cuda \s error
    | duplicate \s gpu | out \s of \s memory | illegal \s memory \s access | address \s already
    """,
    re.IGNORECASE | re.VERBOSE,
)


def tells_of_lost_peer(text: str) -> bool:
    """Whether an error reads like the consequence of another process's end."""
    return bool(_LOST_PEER.search(text)) and not _OWN_FAULT.search(text)


def _describe_signal(signum: int, core_dumped: bool, out_of_memory: bool) -> str:
    text = f"killed by {signal_name(signum)}"
    if core_dumped:
        text += " (core dumped)"
    if signum == _SIGKILL and out_of_memory:
        text += ": out of memory (the kernel has just killed for memory here)"
    return text


def parse_error_file(content: bytes | None) -> ErrorFile | None:
    """None for what is not in either form."""
    try:
        data: Any = msgspec.json.decode(content) if content is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    match data:
        case {"message": str(message)}:
            return ErrorFile(data, message, "", _seconds(data.get("timestamp")))
        case {"message": {"message": str(message), **rest}}:
            extra = rest.get("extraInfo")
            known: JsonDict = extra if isinstance(extra, dict) else {}
            callstack, stamp = known.get("py_callstack"), known.get("timestamp")
            traceback = callstack if isinstance(callstack, str) else ""
            return ErrorFile(data, message, traceback, _seconds(stamp))
        case _:
            return None


def _seconds(stamp: object) -> float | None:
    """Unix seconds as an error file has them; None for what is no time."""
    try:
        seconds = float(stamp) if isinstance(stamp, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < _YEAR_9999_S else None


_TRACEBACK = re.compile(r"^(?P<prefix>.*?)(Exception Group )?Traceback \(most recent call last\):")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Group)\b(:.*)?$")
_CPP_WHAT = re.compile(r"\bwhat\(\):\s+(?P<what>.*)$")


def _exception_block(tail: str) -> str:
    """The last exception and what it goes on to say; "" when the tail shows none.

    Each line of a traceback may have a prefix (`[rank0]: `, or `  | ` in a group): as many
    characters as stand before the header.
    """
    lines = tail.splitlines()
    for index in range(len(lines) - 1, -1, -1):
        header = _TRACEBACK.match(lines[index])
        if header is not None:
            width = len(header["prefix"])
            body = [line[width:] for line in lines[index + 1 :]]
            start = next((i for i, line in enumerate(body) if line[:1].strip()), len(body))
            return "\n".join(body[start : start + 20])
    for index in range(len(lines) - 1, -1, -1):
        what = _CPP_WHAT.search(lines[index])
        if what is not None:
            return what["what"]
        if _EXCEPTION.match(lines[index]):
            return lines[index]
    return ""


_CRASH_FRAMES, _BEFORE_CRASH = 14, 5


def _crash_stack(tail: str) -> str:
    """What was said just before a fatal signal, and the stack of the thread that got it; "" where
    Python dumped none. The innermost frames come first; other threads tell nothing of it."""
    lines = tail.splitlines()
    header = next((n for n, s in enumerate(lines) if s.startswith("Fatal Python error: ")), None)
    thread = next((n for n, s in enumerate(lines) if s.startswith("Current thread 0x")), None)
    if thread is None:
        return ""
    frames = list(takewhile(str.strip, lines[thread:]))
    if len(frames) > _CRASH_FRAMES + 1:
        more = len(frames) - _CRASH_FRAMES - 1
        frames[_CRASH_FRAMES + 1 :] = [f"  ... and {more} more"]
    before = lines[max(0, header - _BEFORE_CRASH) : header + 1] if header is not None else []
    return "\n".join(before + frames)


def _last_line(tail: str) -> str:
    return next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "")


_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain_text(text: str) -> str:
    """`text` without colours and control characters; a carriage return (of progress bars) ends a
    line."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("", text)


def _decode_tail(tail: bytes) -> str:
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1  # The rest of a character that was cut off.
    return tail[start:].decode("utf-8", "replace")


def _clip_end(text: str, limit: int) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode("utf-8")
    return encoded[: limit - 3].decode("utf-8", "ignore") + "..."


def _clip_start(text: str, limit: int) -> str:
    return text.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")


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
        self.timestamp = now if raised_at is None else raised_at
        self._traceback = traceback or self.detail or text

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
    """Of a process that this program has started; it may have left an error file."""
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


def reported_failure(exit_: WorkerExit, node: str = "") -> ProcessFailure:
    """Of a worker of any node of the job. Its error file may be gone by now: what it said is in the
    message."""
    message, detail = exit_.message, exit_.detail
    made = ProcessFailure(
        exit_.local_rank,
        exit_.pid,
        1 if exit_.returncode is None else exit_.returncode,
        "",
        log_file=exit_.log_file,
        said=message if message.endswith(detail) else f"{message}\n{detail}".lstrip("\n"),
        seen_at=exit_.wall_time,
    )
    if node:
        made.node = node
    if exit_.has_traceback:
        made.message = exit_.error_record()
    return made


def _to_the_millisecond(path: str, raised_at: float | None) -> float | None:
    if raised_at is None or not raised_at.is_integer():
        return raised_at
    try:
        written_at = os.stat(path).st_mtime
    except OSError:
        return raised_at
    return written_at if 0 <= written_at - raised_at < 1 else raised_at
