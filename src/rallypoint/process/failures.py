"""The cause of a worker's failure, as one line and a traceback.

The sources are its error file, its last output, and how the kernel saw it end (or killed it for
memory).

The error file is torch's (a worker under torch's `record` decorator writes it to
TORCHELASTIC_ERROR_FILE): `{"message": {"message": ..., "extraInfo": {"py_callstack": ...,
"timestamp": ...}}}` or `{"message": text, "timestamp": ...}`. A worker may write anything there, so
nothing in it is trusted: a malformed file is ignored.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from msgspec.structs import replace

from rallypoint.core.json_reader import UnreadableJsonError, read_object
from rallypoint.core.text import signal_name
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.causes.program import Program, may_have_told
from rallypoint.process.plain_text import clip_end, clip_start, plain_text
from rallypoint.process.prepared.command_line import parse
from rallypoint.process.relay.lines import last_lines
from rallypoint.process.relay.remembered import LastWords

MESSAGE_LIMIT_BYTES = 2048
TRACEBACK_LIMIT_BYTES = 8192
_ERROR_FILE_LIMIT_BYTES = 1 << 20
_SIGABRT, _SIGBUS, _SIGKILL = 6, 7, 9
_YEAR_9999_S = 253_370_764_800
NO_WORDS = LastWords()
"""The last words of a worker that wrote nothing, or whose output is not read."""


UNKNOWN_PROGRAM = Program()
JsonDict = dict[str, Any]


class ErrorFile(NamedTuple):
    """The content of an error file in either of torch's forms.

    `data` is the whole content, `raised_at` Unix seconds by the worker's clock; None where it has
    no time.
    """

    data: JsonDict
    message: str
    traceback: str
    raised_at: float | None


def read_error_file(path: str) -> bytes | None:
    """Return the content of an error file.

    None when there is none, it can't be read, it is not a regular file, or longer than 1 MiB.

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


def program_of(argv: Sequence[str]) -> Program:
    """Return the program of a worker with this command line.

    Its `source_of` reads files of this node of up to 1 MiB, and never blocks on a pipe.
    """
    line = parse(argv)
    if line is None:
        return Program(_read_source)
    name = f"{line.name.rpartition('.')[2]}.py" if line.kind == "module" else line.name
    # A directory or a package has its program in __main__.py.
    names = {name.rstrip("/").rpartition("/")[2], "__main__.py", "__init__.py"}
    return Program(_read_source, frozenset(names))


def _read_source(path: str) -> str | None:
    data = read_error_file(os.path.expanduser(path))
    return None if data is None else data.decode("utf-8", "replace")


def describe_failure(
    exit_: WorkerExit,
    *,
    error_file: bytes | None = None,
    words: LastWords = NO_WORDS,
    program: Program = UNKNOWN_PROGRAM,
    out_of_memory: bool = False,
    shared_memory: str = "",
) -> WorkerExit:
    """Return the exit with a message, the detail behind it, and whether it is a consequence.

    The texts are bounded and free of control characters. A consequence: the worker died because
    another one or its network was gone, so that it is hardly the first cause (A3). Pure, except
    that the program's `source_of` may read files that the tracebacks name.

    A fatal signal is the message, whatever the worker wrote before. After SIGABRT the text of the
    error is added, because C++ programs end by it after they have printed an exception.
    `out_of_memory`: the kernel has killed for memory in this container (`limits.OomWatch`).
    `shared_memory`: the use of the node's shared memory as a text, which is added for SIGBUS.
    """
    tail = _last_lines(words)
    written = parse_error_file(error_file)
    if written is not None:
        error, traceback = plain_text(written.message), plain_text(written.traceback)
    else:
        error, traceback = _evidence(exit_, words, program)
    said = error.partition("\n")[0].strip()
    match exit_.signal:
        case None if said:
            message = said
        case None:
            last = _last_line(tail)
            message = f"{exit_.describe()}; last line: {last}" if last else exit_.describe()
        case signum:
            message = _describe_signal(signum, exit_.core_dumped, out_of_memory)
            if signum == _SIGBUS and shared_memory:
                message = f"{message}: {shared_memory}"
            if signum == _SIGABRT and said:
                message = f"{message}: {said}"
    fatal = exit_.signal not in (None, _SIGABRT)
    crash = _crash_stack(tail) if exit_.signal is not None else ""
    lost_peer = not fatal and tells_of_lost_peer(error)
    detail = crash or traceback or tail
    return bounded(replace(exit_, message=message, detail=detail, tells_of_lost_peer=lost_peer))


def _evidence(exit_: WorkerExit, words: LastWords, program: Program) -> tuple[str, str]:
    """Return an error and its traceback from stderr, or else from stdout; empty: none was found.

    stdout is used if stderr has only rows that may follow a program's end, such as progress bars:
    notebooks and test runners write their errors to stdout. A worker that wrote nothing, or that a
    signal killed at once, left no evidence.
    """
    if not may_have_told(exit_) or not (words.stderr or words.stdout):
        return "", ""
    # Imported when there is something to read: a worker that was killed is replaced sooner.
    from rallypoint.process.causes.evidence import evidence_in
    from rallypoint.process.causes.known_tails import are_known_tails
    from rallypoint.process.causes.rows import rows_of

    rows = rows_of(words.stderr)
    found = evidence_in(rows, exit_, program)
    if not found.error and words.stdout and are_known_tails(rows):
        found = evidence_in(rows_of(words.stdout), exit_, program)
    return found.error, found.traceback


def _last_lines(words: LastWords) -> str:
    data = last_lines(words.stderr[-1].data) if words.stderr else b""
    return plain_text(_decode_tail(data)).rstrip("\n")


def bounded(exit_: WorkerExit) -> WorkerExit:
    """Return the exit with its texts cut to the length that may be sent and shown.

    The beginning of the message and the end of the detail stay; control characters are removed.
    """
    return replace(
        exit_,
        message=clip_end(plain_text(exit_.message), MESSAGE_LIMIT_BYTES),
        detail=clip_start(plain_text(exit_.detail), TRACEBACK_LIMIT_BYTES),
    )


# What gloo, NCCL, UCC, sockets and torch's store say when the other side has gone. Both patterns
# are compiled at their first use: most restarts need none, and each waits for this import.
_LOST_PEER = r"""
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
    """
# The same exceptions when the fault is this worker's own.
_OWN_FAULT = r"""
      invalid \s (usage|argument) | ncclInvalid | ncclInternalError | unhandled \s cuda \s error
    | duplicate \s gpu | out \s of \s memory | illegal \s memory \s access | address \s already
    """
_FREE_FORM = re.IGNORECASE | re.VERBOSE


def tells_of_lost_peer(text: str) -> bool:
    """Return whether an error looks like the consequence of another process's end."""
    if not text or not re.search(_LOST_PEER, text, _FREE_FORM):
        return False
    return not re.search(_OWN_FAULT, text, _FREE_FORM)


def _describe_signal(signum: int, core_dumped: bool, out_of_memory: bool) -> str:
    text = f"killed by {signal_name(signum)}"
    if core_dumped:
        text += " (core dumped)"
    if signum == _SIGKILL and out_of_memory:
        text += ": out of memory (the kernel has just killed for memory here)"
    return text


def parse_error_file(content: bytes | None) -> ErrorFile | None:
    """Parse an error file; return None if there is none or it has neither of torch's forms."""
    try:
        data: Any = None if content is None else read_object(content)
    except UnreadableJsonError:
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
    """Return the Unix seconds of an error file; None if they are not a time."""
    try:
        seconds = float(stamp) if isinstance(stamp, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < _YEAR_9999_S else None


_CRASH_FRAMES, _BEFORE_CRASH = 14, 5


def _crash_stack(tail: str) -> str:
    """Return the lines just before a fatal signal, and the stack of the thread that got it.

    They are from the dump of Python's faulthandler; empty if there is none. The innermost frames
    come first; other threads, and frames beyond 14, are left out.
    """
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


def _decode_tail(tail: bytes) -> str:
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1  # The rest of a character that was cut off.
    return tail[start:].decode("utf-8", "replace")
