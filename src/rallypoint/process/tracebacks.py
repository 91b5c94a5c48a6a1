"""The traceback of the exception that ended a Python program, found in what it wrote to stderr.

An agent imports it late: the patterns take time to compile, and serve failures only.
"""

from __future__ import annotations

import re

from rallypoint.core.worker_exits import WorkerExit

_SIGINT, _SIGABRT = 2, 6
_HEADER = re.compile(
    r"^(?P<prefix>.*?)(?P<plus>  \+ )?(Exception Group )?(?P<inner>Original )?"
    r"Traceback \(most recent call last\):"
)
_FRAME = re.compile(r'^(?P<prefix>.*?)  File "[^"]*", line \d+(, in .*)?$')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |(Error|Exception|Exit|Interrupt|Group)$)")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_IGNORED = re.compile(
    r"Exception ignored (in|on|while|from)\b|Error in atexit\._run_exitfuncs:|--- Logging error ---"
)
"""What comes before the traceback of an exception that ended nothing."""
_FRAME_LINES = 3
"""So many lines belong to a frame; of one that was cut off fewer are left."""


def traceback_of(exit_: WorkerExit) -> str:
    """The traceback, in what is known of a failed worker, of the exception that ended it; "" where
    there is none, or a fatal signal ended it."""
    by_exception = exit_.signal in (None, _SIGINT, _SIGABRT)
    return traceback_in(exit_.detail) if by_exception else ""


def detail_is_traceback(exit_: WorkerExit) -> bool:
    """Whether there is nothing else in `detail`."""
    found = traceback_of(exit_).splitlines()
    return bool(found) and len(found) == len(exit_.detail.strip().splitlines())


def error_record(exit_: WorkerExit) -> dict[str, object]:
    """The message as torch's error files have it."""
    callstack = traceback_of(exit_) or exit_.detail
    extra = {"py_callstack": callstack, "timestamp": str(int(exit_.wall_time))}
    return {"message": exit_.message, "extraInfo": extra}


def traceback_in(text: str) -> str:
    """The last traceback, with those that it is chained to; "" where there is none.

    Exceptions that Python ignored count only where there is no other. Each line may have a prefix
    (`[rank0]: `), which is left out. The header may have been cut off. What follows is part of it,
    as the end of an exception's message can't be told.
    """
    lines = text.splitlines()
    start, prefix = _begin(lines)
    if start is None:
        return ""
    kept = []
    for line in lines[start:]:
        if _IGNORED.search(line) or not line.startswith(prefix.rstrip()):
            break
        kept.append(line[len(prefix) :])
    return "\n".join(kept)


def last_exception(traceback: str) -> str:
    """The last exception of a traceback and what it goes on to say, in at most 20 lines; of a group
    it is that of its last part."""
    lines, width = traceback.splitlines(), 0
    for index in range(len(lines) - 1, -1, -1):
        header = _HEADER.match(lines[index])
        if header is not None:
            width = header.end("plus") if header["plus"] else header.end("prefix")
            lines = lines[index + 1 :]
            break
    body = [line[width:] for line in lines]
    start = next((n for n, line in enumerate(body) if line[:1].strip()), len(body))
    return "\n".join(body[start : start + 20])


def _begin(lines: list[str]) -> tuple[int | None, str]:
    """The line that the traceback begins with, and the prefix of all."""
    headers = {n: header for n, line in enumerate(lines) if (header := _HEADER.match(line))}
    first = [n for n, header in headers.items() if not _belongs(lines, n, header)]
    fatal = [n for n in first if n == 0 or not _IGNORED.search(lines[n - 1])]
    if first:
        start = (fatal or first)[-1]
        return start, headers[start]["prefix"]
    for n, line in enumerate(lines[:_FRAME_LINES]):
        frame = _FRAME.match(line)
        if frame is not None and _is_rest(lines[n:], frame["prefix"]):
            return n, frame["prefix"]
    return None, ""


def _belongs(lines: list[str], index: int, header: re.Match[str]) -> bool:
    """Whether the traceback that begins here continues an earlier one, or is within that."""
    within = header["inner"] or header["prefix"].rstrip().endswith("|")
    return bool(within) or (index > 1 and lines[index - 2].rstrip().endswith(_CHAINED))


def _is_rest(lines: list[str], prefix: str) -> bool:
    """Whether these lines are the end of a traceback: frames, and then an exception."""
    after = (line[len(prefix) :] for line in lines)
    return bool(_EXCEPTION.match(next((line for line in after if line[:1].strip()), "")))
