"""What of a worker's last words tells why it failed, chosen by its place in time. Pure.

A program goes on after an exception that it handles, so a traceback is the cause only if it is the
end: nothing but known tails follows it. Or the program left with exit code 1, as Python does, and
the outermost frame is of a module whose source has no handler there: nothing can have caught it,
whatever was written at exit. A C++ exception is the cause of SIGABRT. Otherwise there are only the
exit code and the last lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.causes.handlers import is_handled
from rallypoint.process.causes.known_tails import is_known_tail, only_known_tails
from rallypoint.process.causes.rows import is_gap, shown_rows
from rallypoint.process.causes.tracebacks import (
    Link,
    Traceback,
    is_exception,
    read_tracebacks,
)
from rallypoint.process.plain_text import clip_end

_SIGINT, _SIGABRT = 2, 6
_UNCAUGHT_CODE = 1
_FRAMES_BYTES, _TEXT_BYTES, _CHAIN_BYTES, _ROW_BYTES = 2816, 1024, 2048, 1000
_TEXT_ROWS = 40
_WHAT = re.compile(r"\bwhat\(\):\s+(?P<what>.*)$")
_ASSERTION = re.compile(r"[\w.+/-]+: [\w.+/-]+:\d+: .*: Assertion `.*' failed\.$")

SourceOf: TypeAlias = Callable[[str], str | None]
"""The source at a path; None: there is none that can be read."""


class Evidence(NamedTuple):
    """Why a worker failed, as far as its words tell."""

    error: str = ""
    """The exception and what it goes on to say; empty: nothing tells."""
    traceback: str = ""
    """Empty where there is none; else whole, or with signs where something was left out."""


def evidence_in(rows: Sequence[str], exit_: WorkerExit, source_of: SourceOf) -> Evidence:
    """What these rows, the end of a stream, tell of that exit."""
    if exit_.signal == _SIGABRT and (what := _abort_text(rows)):
        return Evidence(what)
    if exit_.signal not in (None, _SIGINT, _SIGABRT):
        return Evidence()
    found = read_tracebacks(rows)
    tops = _uncaught(found, source_of) if exit_.code == _UNCAUGHT_CODE else []
    sure = next((each for each, is_sure in tops if is_sure), None)
    unsure = tops[0][0] if tops else None
    traceback = sure or _by_place(rows, found) or unsure
    if traceback is not None:
        text = _text_rows(rows, traceback.last, found)
        return Evidence(_error(traceback.last, text), _whole(rows, traceback, text))
    last = next((row for row in reversed(rows) if not is_known_tail(row)), "")
    return Evidence(last if is_exception(last) else "")


def _abort_text(rows: Sequence[str]) -> str:
    """What a C++ exception, or an assertion, said last."""
    for row in reversed(rows):
        what = _WHAT.search(row)
        if what is not None:
            return what["what"]
        assertion = _ASSERTION.search(row)
        if assertion is not None:
            return assertion[0]
    return ""


def _by_place(rows: Sequence[str], found: Sequence[Traceback]) -> Traceback | None:
    """The last one, if it is the end of all that was said."""
    fatal = [each for each in found if not each.is_ignored]
    if not fatal:
        return None
    ignored = [each for each in found if each.is_ignored]
    last = fatal[-1]
    return last if only_known_tails(rows, last.last.error_at, ignored) else None


def _uncaught(found: Sequence[Traceback], source_of: SourceOf) -> list[tuple[Traceback, bool]]:
    """Those that no handler can have caught, the last one first, and whether that is sure: the
    source is there to show it."""
    tops: list[tuple[Traceback, bool]] = []
    for each in reversed(found):
        if not each.is_ignored:
            ways = [_reached_the_top(link, source_of) for link in each.links]
            if any(way is not None for way in ways):
                tops.append((each, any(ways)))
    return tops


def _reached_the_top(link: Link, source_of: SourceOf) -> bool | None:
    """None: it did not; else whether that is sure."""
    frames = [frame for frame in link.frames if not frame.file.startswith("<frozen ")]
    if link.is_logged or not frames or frames[0].name != "<module>":
        return None
    top = frames[0]
    source = source_of(top.file) if top.file and not top.file.startswith("<") else None
    if source is None:
        return False
    kind = link.error.partition(":")[0].rpartition(".")[2].strip()
    return None if is_handled(source, top.line, kind) else True


def _text_rows(rows: Sequence[str], link: Link, found: Sequence[Traceback]) -> list[str]:
    """What the exception goes on to say, without known tails. Where a text ends can't be told from
    what was written after it."""
    begins = {each.begin for each in found}
    kept: list[str] = []
    for index in range(link.error_at + 1, len(rows)):
        if is_gap(rows[index]):
            kept.append(rows[index])
            break
        row = link.strip(rows[index])
        if index in begins or row is None or (row.strip() and is_known_tail(row)):
            break
        kept.append(row)
    while kept and not kept[-1].strip():
        kept.pop()
    return kept


def _error(link: Link, text: Sequence[str]) -> str:
    """The exception's own words; those of its first row come from below where it has none."""
    said = shown_rows(text)
    if link.error.rstrip().endswith(":") and any(row.strip() for row in said):
        first = next(n for n, row in enumerate(said) if row.strip())
        return "\n".join([f"{link.error.rstrip()} {said[first].strip()}", *said[first + 1 :]])
    return "\n".join([link.error, *said])


def _whole(rows: Sequence[str], traceback: Traceback, text: Sequence[str]) -> str:
    """The traceback as it is shown: each part within its bound, the innermost frames and the first
    words of the exception before all."""
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


def _link_rows(link: Link, limit: int) -> list[str]:
    """One traceback: its first row, of the others the last ones, and its exception."""
    first, *rest = shown_rows(link.rows)
    kept: list[str] = []
    for row in reversed(rest):
        limit -= min(_size(row), _ROW_BYTES)
        if limit < 0:
            kept.append("  [...]")
            break
        kept.append(clip_end(row, _ROW_BYTES))
    own = [] if any(link.error in row for row in link.rows) else [clip_end(link.error, _TEXT_BYTES)]
    return [clip_end(first, _ROW_BYTES), *reversed(kept), *own]


def _within(rows: Sequence[str], limit: int) -> list[str]:
    """The first rows, so many bytes at most."""
    kept: list[str] = []
    for count, row in enumerate(rows):
        limit -= _size(row)
        if limit < 0 or count == _TEXT_ROWS:
            return [*kept, "[...]"]
        kept.append(row)
    return kept


def _size(row: str) -> int:
    return len(row.encode("utf-8", "replace")) + 1
