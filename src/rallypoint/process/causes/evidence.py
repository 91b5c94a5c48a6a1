"""Choose the evidence in a worker's output for why it failed, by its place in time. Pure.

A program continues after an exception that it handles, so a traceback is the cause only if nothing
but known tails follows it. It is also the cause if the source shows no handler around the outermost
frame. Then nothing can have caught the exception, whatever exit hooks have written. The same holds
if the source shows a handler that exits with the worker's code. Without the source, exit code 1
stands for an uncaught exception, as Python has it. For SIGABRT the cause is a C++ exception, a
failed assertion or a fatal message of native code. Without evidence a report has the exit code and
the last lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.causes.handlers import exits_after, is_handled, is_within_with, parsed
from rallypoint.process.causes.known_tails import is_known_tail, is_rule, only_known_tails
from rallypoint.process.causes.program import Program, SourceOf, may_have_told
from rallypoint.process.causes.rows import is_gap, shown_rows
from rallypoint.process.causes.tracebacks import ChainLink, Traceback, is_exception, read_tracebacks
from rallypoint.process.plain_text import clip_end

_SIGABRT = 6
_UNCAUGHT_CODE = 1
_FRAMES_BYTES, _TEXT_BYTES, _CHAIN_BYTES, _ROW_BYTES = 2816, 1024, 2048, 1000
_TEXT_ROWS = 40
_ABORTS = (
    r"\bwhat\(\):\s+(?P<text>.*)$",
    r"(?P<text>[\w.+/-]+: [\w.+/-]+:\d+: .*: Assertion `.*' failed\.)$",
    # glog, absl and torch at the level FATAL: the date, the thread, the place.
    r"\[?F\d{4,8} [\d:.]+ .*?\] (?P<text>.+)$",
    # The allocator and the stack protector of glibc; without a line end behind a bar.
    r"(?P<text>(free|malloc|realloc|munmap_chunk|malloc_consolidate)\(\): \w.*)$",
    r"(?P<text>double free or corruption.*|corrupted (size|double-linked|unsorted).*)$",
    r"(?P<text>\*\*\* (stack smashing|buffer overflow) detected \*\*\*.*)$",
    r"(?P<text>LLVM ERROR: .+|pure virtual method called)$",
)
"""The patterns of the last words of native code that calls abort(3)."""


class Evidence(Struct, frozen=True):
    """The cause of a failure according to the worker's output."""

    error: str = ""
    """The exception with the rows of its text, or the message of native code that aborted; empty:
    there is no evidence."""
    traceback: str = ""
    """The traceback; empty: there is none. Left-out parts are marked."""


def evidence_in(rows: Sequence[str], exit_: WorkerExit, program: Program) -> Evidence:
    """Return the evidence for the cause of this exit in `rows`, the end of one output stream.

    The evidence is empty if there is none.
    """
    if exit_.signal == _SIGABRT and (what := _abort_text(rows)):
        return Evidence(what)
    if not may_have_told(exit_):
        return Evidence()
    found = read_tracebacks(rows)
    proved, possible = _uncaught(found, program) if exit_.code else (None, None)
    traceback = (
        proved
        or _left_by_handler(found, exit_.code, program.source_of)
        or _by_place(rows, found)
        or (possible if exit_.code == _UNCAUGHT_CODE else None)
    )
    if traceback is not None:
        text = _text_rows(rows, traceback.last, found)
        return Evidence(_error(traceback.last, text), _whole(rows, traceback, text))
    return Evidence(_bare_exception(rows, found))


def _bare_exception(rows: Sequence[str], found: Sequence[Traceback]) -> str:
    """Return the last row if it is an exception without a traceback; else "".

    Rows that may follow a program's end (known tails, such as progress bars) do not count.
    """
    known = {link.error_at for each in found for link in each.links}
    last = next((n for n in range(len(rows) - 1, -1, -1) if not is_known_tail(rows[n])), -1)
    if last < 0 or last in known or not is_exception(rows[last]):
        return ""
    return rows[last] if only_known_tails(rows, last, found) else ""


def _abort_text(rows: Sequence[str]) -> str:
    """Return the text of the last C++ exception, failed assertion or fatal message.

    Empty: there is none.
    """
    for row in reversed(rows):
        for pattern in _ABORTS:
            if (found := re.search(pattern, row)) is not None:
                return found["text"]
    return ""


def _by_place(rows: Sequence[str], found: Sequence[Traceback]) -> Traceback | None:
    """Return the last traceback if nothing but known tails follows it; else None.

    Known tails are rows that may follow a program's end, such as progress bars. Exceptions that
    Python ignored do not count.
    """
    fatal = [each for each in found if not each.is_ignored]
    if not fatal:
        return None
    ignored = [each for each in found if each.is_ignored]
    last = fatal[-1]
    return last if only_known_tails(rows, last.last.error_at, ignored) else None


def _uncaught(
    found: Sequence[Traceback], program: Program
) -> tuple[Traceback | None, Traceback | None]:
    """Return the last traceback that was certainly uncaught, and the last that is undecided.

    The program's source decides. Where it shows a handler that may have caught the exception, the
    traceback is neither. Either is None if there is none; the second one is also None if it comes
    before the first in the output.
    """
    possible = None
    for each in reversed(found):
        if not each.is_ignored:
            ways = [_reached_the_top(link, program) for link in each.links]
            if any(ways):
                return each, possible
            if possible is None and False in ways:
                possible = each
    return None, possible


def _reached_the_top(link: ChainLink, program: Program) -> bool | None:
    """Return whether the source proves that nothing caught the exception.

    False: it can't prove it, for example because the source can't be read. None: a handler did or
    may have caught it, or the outermost frame is not of this program's main module.
    """
    frames = [frame for frame in link.frames if not frame.file.startswith("<frozen ")]
    if [frame.name for frame in frames[:2]] == ["<module>"] * 2 and frames[0].file == "<string>":
        del frames[0]  # It runs the program by its path.
    if link.catcher is not None or not frames or frames[0].name != "<module>":
        return None
    top = frames[0]
    if program.files and top.file.rpartition("/")[2] not in program.files:
        return None
    source = program.source_of(top.file) if top.file and not top.file.startswith("<") else None
    if source is None:
        return False
    tree = parsed(source)
    if is_handled(tree, top.line, _class_of(link)):
        return None
    return bool(program.files) and not is_within_with(tree, top.line)


def _left_by_handler(
    found: Sequence[Traceback], code: int | None, source_of: SourceOf
) -> Traceback | None:
    """Return the last traceback whose exception may have met a handler that exits with `code`.

    The source shows the handler. None: there is no such traceback.
    """
    for each in reversed(found):
        link = each.last
        catcher = link.catcher or (link.frames[0] if link.frames else None)
        if each.is_ignored or catcher is None or not code or catcher.file[:1] in ("", "<"):
            continue
        source = source_of(catcher.file)
        if source is None:
            continue
        if exits_after(parsed(source), catcher.line, _class_of(link), code):
            return each
    return None


def _class_of(link: ChainLink) -> str:
    return link.error.partition(":")[0].rpartition(".")[2].strip()


def _text_rows(rows: Sequence[str], link: ChainLink, found: Sequence[Traceback]) -> list[str]:
    """Return the rows of the exception's text below its first row, some 80 at most.

    They end before a known tail (output that may follow a program's end), a row with another
    prefix, or another traceback, or with the first gap. They include later output that can't be
    distinguished from the text.
    """
    begins = {each.begin for each in found}
    kept: list[str] = []
    for index in range(link.error_at + 1, min(len(rows), link.error_at + 2 * _TEXT_ROWS)):
        if is_gap(rows[index]):
            kept.append(rows[index])
            break
        row = link.strip(rows[index])
        if index in begins or row is None:
            break
        if row.strip() and is_known_tail(row) and not is_rule(row):
            break
        kept.append(row)
    while kept and (not kept[-1].strip() or is_rule(kept[-1])):
        kept.pop()
    return kept


def _error(link: ChainLink, text: Sequence[str]) -> str:
    """Return the exception and its text.

    If the exception's first row has only the name, the next row of the text is joined to it.
    """
    said = shown_rows(text)
    words = [n for n, row in enumerate(said) if row.strip() and not is_rule(row)]
    if re.fullmatch(r"[\w.]+:", link.error.rstrip()) and words:
        first = words[0]
        return "\n".join([f"{link.error.rstrip()} {said[first].strip()}", *said[first + 1 :]])
    return "\n".join([link.error, *said])


def _whole(rows: Sequence[str], traceback: Traceback, text: Sequence[str]) -> str:
    """Return the traceback for a report, with the earlier tracebacks of its chain that have room.

    Each part is bounded; the innermost frames and the first words of the exception stay.
    """
    shown = _link_rows(traceback.last, _FRAMES_BYTES) + _within(shown_rows(text), _TEXT_BYTES)
    room = _CHAIN_BYTES
    for link, earlier in zip(traceback.links[:0:-1], traceback.links[-2::-1], strict=True):
        between = [link.strip(row) for row in rows[earlier.error_at + 1 : link.begin]]
        said = _within(shown_rows([row or "" for row in between]), _CHAIN_BYTES // 4)
        part = _link_rows(earlier, _CHAIN_BYTES // 2) + said
        room -= sum(map(_size, part))
        if room < 0:
            break
        shown = part + shown
    return "\n".join(shown)


def _link_rows(link: ChainLink, limit: int) -> list[str]:
    """Return the rows of one traceback, without those in the middle that have no room.

    The first and the exception stay. `limit` is the most bytes of the others, of which the last
    ones stay; a mark stands for the rest.
    """
    first, *rest = shown_rows(link.rows)
    kept: list[str] = []
    for row in reversed(rest):
        limit -= min(_size(row), _ROW_BYTES)
        if limit < 0:
            kept.append("  [...]")
            break
        kept.append(clip_end(row, _ROW_BYTES))
    own = [] if link.is_whole else [clip_end(link.error, _TEXT_BYTES)]
    return [clip_end(first, _ROW_BYTES), *reversed(kept), *own]


def _within(rows: Sequence[str], limit: int) -> list[str]:
    """Return the first rows, at most `limit` bytes and 40 rows; a mark stands for the rest."""
    kept: list[str] = []
    for count, row in enumerate(rows):
        limit -= _size(row)
        if limit < 0 or count == _TEXT_ROWS:
            return [*kept, "[...]"]
        kept.append(row)
    return kept


def _size(row: str) -> int:
    return len(row.encode("utf-8", "replace")) + 1
