"""Read the tracebacks in the output of a program: one reader with a table of shapes. Pure.

Each shape knows its first row, which rows belong to it, and where its exception is. A traceback may
begin in the middle of a row. Each row may have a prefix, such as a rank or the head of a log line;
it counts as a prefix only if the second row has it too. Rows of other programs may stand between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.process.causes.rows import is_gap


class TraceFrame(Struct, frozen=True):
    """A frame of a traceback: its file, line and function; `line` 0: not known."""

    file: str
    line: int
    name: str


class ChainLink(Struct, frozen=True):
    """One traceback of a chain of exceptions. Rows of the output are numbered from 0."""

    begin: int
    error_at: int
    """The number of the row with the exception; if `is_whole`, that of the last row."""
    error: str
    """The first row of the exception's text; for a group that of its last part."""
    frames: tuple[TraceFrame, ...]
    """The frames, the outermost first."""
    rows: tuple[str, ...]
    """The traceback's rows before the exception, without their prefix; if `is_whole`, also the
    exception."""
    strip: Callable[[str], str | None]
    """The function that removes the prefix, such as a rank, from a row; it returns None if the row
    has another one."""
    is_whole: bool = False
    """Whether `rows` include the exception."""
    catcher: TraceFrame | None = None
    """The frame that caught the exception, which is marked with `>` (loguru); None: none is."""


class Traceback(Struct, frozen=True):
    """A chain of tracebacks, as of chained exceptions; the last one is of the last exception."""

    begin: int
    links: tuple[ChainLink, ...]
    is_ignored: bool
    """Whether Python printed and ignored the exception."""

    @property
    def last(self) -> ChainLink:
        return self.links[-1]


# The patterns are compiled at their first use: a restart waits for this module, and most failures
# need few of them.
_TITLE = "Traceback (most recent call last)"
_WORDS = r"Traceback \(most recent call last\)"
_MAY_BEGIN = r'Traceback|File "|^-{20}|^=+ (FAILURES|ERRORS) =|"exc_type"'
"""The pattern of first rows of all shapes of tracebacks; most rows of output do not match."""
_HEADER = rf"(?P<group>  \+ Exception Group )?{_WORDS}:"
_BOX = rf"[╭┌+][─-]+ {_WORDS} [─-]+[╮┐+]"
_IPYTHON = rf"(?P<name>[A-Za-z_]\w*) +{_WORDS}$"
_FIELDS = r'"exc_type": "(?P<type>\w+)", "exc_value": "(?P<value>(?:[^"\\]|\\.)*)"'
_ESCAPED = rf"{_WORDS}:\\n(?:[^\"\\]|\\.)*"
_FRAME = r'\s*(?:> )?File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<name>.*))?$'
_BOX_FRAME = r"[│|] (?P<file>\S.*?):(?P<line>\d+) in (?P<name>\S+)"
_CELL_FRAME = (
    r"(?:File (?P<file>\S+?):(?P<line>\d+)|(?:Cell |Input )?In ?\[\d+\](?:, line \d+)?)"
    r"(?:, in (?P<name><?\w+>?).*)?$"
)
_EXCEPTION = r"(?P<name>[A-Za-z_]\w*(?:\.(?:\w+|<locals>))*(?:\(\w+\))?)(?::(?: .*)?|)\s*$"
STRONG_NAME = r"(Error|Exception|Exit|Interrupt|Group|Warning|Failure|Timeout)(\(\w+\))?$"
_NO_NAMES = {"Error", "Exception", "Warning", "Failure", "Timeout"}
"""The names of exceptions that also begin ordinary lines, and so prove nothing."""
_CHAINED = r"(another exception occurred|of the following exception):$"
_INNER = r'(Original $|"""$|-- Process \d+ terminated with the following error)'
_IGNORED = (
    r"Exception ignored (in|on|while|from)\b|(future|task): <Task |"
    r"Error in atexit\._run_exitfuncs:|--- Logging error ---"
)
"""The patterns of rows before the traceback of an exception that Python ignored."""
_FOREIGN_ROWS = 12
"""The most rows of other programs within one traceback."""
_OTHER_ROWS = 400
"""The most rows with another prefix within one traceback, when several programs write at once."""
_SCANNED_ROWS = 1000
"""The most rows that are searched from the first row of a traceback to its exception."""
_FRAMES_MAX = 400
_TEXT_ROWS = 60
"""The most rows between an exception that ends with a colon and a traceback in its text."""


def read_tracebacks(rows: Sequence[str]) -> list[Traceback]:
    """Return all tracebacks in these rows of output, in their order; chained ones as one."""
    links = list(_links(rows))
    found: list[Traceback] = []
    for link in links:
        before = _row_before(rows, link)
        if found and _follows(rows, found[-1].last, link, before):
            last = found[-1]
            found[-1] = replace(last, links=(*last.links, link))
        else:
            ignored = before is not None and re.search(_IGNORED, before) is not None
            found.append(Traceback(link.begin, (link,), ignored))
    return found


def is_exception(row: str) -> bool:
    """Return whether a row alone shows an exception, judged by the name (`...Error: ...`)."""
    found = re.match(_EXCEPTION, row)
    return (
        found is not None
        and found["name"] not in _NO_NAMES
        and re.search(STRONG_NAME, found["name"]) is not None
    )


def last_of_group(link: ChainLink) -> str:
    """Return the exception of a group's last part; empty: this is no group."""
    parts = [m[1] for row in link.rows if (m := re.match(_GROUP_PART, row)) and is_exception(m[1])]
    return parts[-1] if parts else ""


_PART = r"[╭┌+].* Sub-exception #\d+ "
_BOX_PART = r"(?:[│|] )+(\S.*?)(?: *[│|])+$"
_GROUP_PART = r"\s+\| (\S.*)$"


def _row_before(rows: Sequence[str], link: ChainLink) -> str | None:
    """Return the nearest of the four rows before the traceback that is not blank.

    It is "Original " if the traceback's first row has that word; None: all four are blank.
    """
    own = rows[link.begin]
    if f"Original {_TITLE}" in own:
        return "Original "
    for at in range(link.begin - 1, max(-1, link.begin - 5), -1):
        row = link.strip(rows[at])
        row = rows[at] if row is None else row
        if row.strip():
            return row.rstrip()
    return None


def _follows(rows: Sequence[str], earlier: ChainLink, link: ChainLink, before: str | None) -> bool:
    """Return whether `link` is chained to `earlier`, or is part of its exception's text."""
    if before is None:
        return False
    if re.search(_CHAINED, before):
        return link.begin - earlier.error_at < 80 or not any(map(is_gap, rows))
    rows_between = link.begin - earlier.error_at
    is_text = earlier.error.rstrip().endswith(":") and rows_between <= _TEXT_ROWS
    return is_text or (rows_between <= 6 and re.search(_INNER, before) is not None)


def _links(rows: Sequence[str]) -> Iterator[ChainLink]:
    at = 0
    while at < len(rows):
        link = None
        if re.search(_MAY_BEGIN, rows[at]) is not None:
            link = next((found for read in _SHAPES if (found := read(rows, at))), None)
        if link is None:
            at += 1
        else:
            yield link
            at = max(link.error_at, at) + 1


def _stripper(rows: Sequence[str], at: int, prefix: str) -> Callable[[str], str | None]:
    """Return a function that removes the prefix of a traceback from each row.

    The prefix is the text before the traceback in its first row, if the next row has it too;
    numbers in it may differ. For a row with another prefix the function returns None.
    """
    following = next((row for row in rows[at + 1 : at + 4] if row.strip() and not is_gap(row)), "")
    if not prefix:
        return _as_it_is
    bare = prefix.rstrip()
    if not bare:
        width = len(prefix)
        is_deep = following.startswith(prefix + " ") or following[width:][:1] in tuple("│|")
        return (lambda row: _outdented(row, width)) if is_deep else _as_it_is
    same = re.compile(re.escape(bare))
    if not any(
        same.match(row) and re.match(_FRAME, row[len(bare) :]) for row in rows[at + 1 : at + 9]
    ):
        # A clock may differ from row to row.
        same = re.compile(re.sub(r"\d+", r"\\d+", re.escape(bare)))
        if not same.match(following):
            return _as_it_is
    blanks = len(prefix) - len(bare)

    def strip(row: str) -> str | None:
        found = same.match(row)
        if found is None:
            return None
        rest = row[found.end() :]
        if bare.endswith('"'):  # Each line is an object of JSON.
            rest = _unescaped(re.sub(r'(\\n)?"[,}].*$', "", rest))
        return rest[blanks:] if not rest[:blanks].strip() else rest

    return strip


def _as_it_is(row: str) -> str | None:
    return row


def _outdented(row: str, width: int) -> str | None:
    return row[width:] if not row[:width].strip() else None


def _frame(found: re.Match[str] | None) -> TraceFrame | None:
    if found is None:
        return None
    return TraceFrame(found["file"] or "", int(found["line"] or 0), found["name"] or "<module>")


def _plain(rows: Sequence[str], at: int) -> ChainLink | None:
    """Read Python's own form, also that of a group, of loguru, or behind a log line's head."""
    header = re.search(_HEADER, rows[at])
    if header is None or _is_ipython(rows[at]):
        return None
    prefix = rows[at][: header.start()].removesuffix("Original ")
    strip = _stripper(rows, at, prefix)
    return _body(rows, at, strip, rows[at][len(prefix) :])


def _cut_off(rows: Sequence[str], at: int) -> ChainLink | None:
    """Read a traceback whose header is lost; it begins in one of the first three rows."""
    if at > 2:
        return None
    frame = re.match(r'(?P<prefix>.*?)  File "[^"]*", line \d+(, in .*)?$', rows[at])
    if frame is None:
        return None
    strip = _stripper(rows, at, frame["prefix"])
    link = _body(rows, at, strip, rows[at][frame.end("prefix") :])
    return link if link is not None and (len(link.frames) or is_exception(link.error)) else None


def _syntax(rows: Sequence[str], at: int) -> ChainLink | None:
    """Read the error of a program that Python can't parse; it has no header."""
    if not rows[at].startswith('  File "'):
        return None
    if re.match(r'  File ".*", line \d+$', rows[at]) is None:
        return None
    link = _body(rows[: at + 6], at, _as_it_is, rows[at])
    is_it = link is not None and re.match(r"\w*(Syntax|Indentation|Tab)Error: ", link.error)
    return link if is_it else None


def _body(
    rows: Sequence[str], at: int, strip: Callable[[str], str | None], first: str
) -> ChainLink | None:
    """Read indented rows and the exception below them; None: no exception was found.

    For a group of exceptions the error is that of its last part.
    """
    kept, foreign, others = [first], 0, 0
    catcher: TraceFrame | None = None
    frame = _frame(re.match(_FRAME, first))
    frames = [] if frame is None else [frame]
    has_body = frame is not None
    for index in range(at + 1, min(len(rows), at + _SCANNED_ROWS)):
        row = rows[index] if is_gap(rows[index]) else strip(rows[index])
        if row is not None and (not row.strip() or row[0].isspace() or row.startswith("> File ")):
            frame = _frame(re.match(_FRAME, row))
            if frame is not None and len(frames) < _FRAMES_MAX:
                frames.append(frame)
            catcher = frame if row.startswith("> ") else catcher
            has_body = has_body or bool(row.strip())
            kept.append(row)
        elif row is not None and is_gap(row):
            kept.append(row)
        elif (
            row is not None
            and _ends_here(rows, index, row, strip)
            and (has_body or is_exception(row))
        ):
            return ChainLink(
                at, index, row.rstrip(), tuple(frames), tuple(kept), strip, catcher=catcher
            )
        elif row is None:
            if (others := others + 1) > _OTHER_ROWS:
                break
        elif re.search(_HEADER, row) or (foreign := foreign + 1) > _FOREIGN_ROWS:
            break
    last = min(len(rows), at + len(kept)) - 1
    group = ChainLink(at, last, "", tuple(frames), tuple(kept), strip, is_whole=True)
    error = last_of_group(group)
    return replace(group, error=error) if error else None


def _ends_here(
    rows: Sequence[str], index: int, row: str, strip: Callable[[str], str | None]
) -> bool:
    """Return whether the row is the exception, not a row of another program between frames."""
    if re.match(_EXCEPTION, row) is None:
        return False
    for each in (strip(following) or "" for following in rows[index + 1 : index + 3]):
        if re.search(_HEADER, each):
            return True
        if re.match(_FRAME, each) and each[:1].isspace():
            return False
    return True


def _box(rows: Sequence[str], at: int) -> ChainLink | None:
    """Read rich's form: frames in a box, and the exception below it."""
    if f" {_TITLE} " not in rows[at]:
        return None
    header = re.search(_BOX, rows[at])
    if header is None:
        return None
    strip = _stripper(rows, at, rows[at][: header.start()])
    kept, frames, end = [rows[at][header.start() :]], list[TraceFrame](), -1
    for index in range(at + 1, min(len(rows), at + _SCANNED_ROWS)):
        row = rows[index] if is_gap(rows[index]) else strip(rows[index])
        if row is None:
            continue
        frame = _frame(re.match(_BOX_FRAME, row))
        if frame is not None:
            frames.append(frame)
        if end < 0:
            end = index if re.match(r"[╰└+][─-]+[╯┘+]", row) else end
        elif row.strip() and row[:1] not in tuple("│|╭┌+╰└"):
            if index - end > 8:
                return None
            error = row.strip().rstrip("│|").rstrip()
            link = ChainLink(at, index, error, tuple(frames), tuple(kept), strip)
            return _with_parts(rows, link)
        kept.append(row)
    return None


def _with_parts(rows: Sequence[str], link: ChainLink) -> ChainLink:
    """Return the traceback with the parts of a group in rich's form, the boxes of which follow.

    The last part becomes the error. Without parts the traceback is returned as it is.
    """
    parts: list[str] = []
    end = error_at = link.error_at
    error = ""
    for index in range(link.error_at + 1, len(rows)):
        row = link.strip(rows[index]) or ""
        is_box = row[:1] in tuple("│|╭┌+╰└")
        if row.strip() and not (is_box if parts else re.match(_PART, row)):
            break
        if row.strip():
            end = index
            parts.append(row)
        told = re.match(_BOX_PART, row)
        if told is not None and is_exception(told[1].rstrip()):
            error, error_at = told[1].rstrip(), index
    if not error:
        return link
    kept = (*link.rows, link.error, *parts)
    return replace(link, error=error, error_at=max(end, error_at), rows=kept, is_whole=True)


def _ipython(rows: Sequence[str], at: int) -> ChainLink | None:
    """Read IPython's form: the first row has the exception's name, and so has the last."""
    header = re.match(_IPYTHON, rows[at]) if _is_ipython(rows[at]) else None
    if header is None:
        return None
    name, kept, frames = header["name"], [rows[at]], list[TraceFrame]()
    for index in range(at + 1, min(len(rows), at + _SCANNED_ROWS)):
        row = rows[index]
        if row.rstrip() == name or re.match(rf"(\w+\.)*{name}:", row):
            return ChainLink(at, index, row.rstrip(), tuple(frames), tuple(kept), _as_it_is)
        frame = _frame(re.match(_CELL_FRAME, row))
        if frame is not None:
            frames.append(frame)
        kept.append(row)
    return None


def _is_ipython(row: str) -> bool:
    return row.endswith(f" {_TITLE}") and re.match(_IPYTHON, row) is not None


def _stackprinter(rows: Sequence[str], at: int) -> ChainLink | None:
    """Read stackprinter's form: frames begin at the left margin, and there is no header."""
    first = re.match(_FRAME, rows[at]) if rows[at].startswith("File ") else None
    if first is None:
        return None
    kept, frames = [rows[at]], [TraceFrame(first["file"], int(first["line"]), first["name"] or "")]
    for index in range(at + 1, min(len(rows), at + _SCANNED_ROWS)):
        row = rows[index]
        frame = _frame(re.match(_FRAME, row))
        if frame is not None and row.startswith("File "):
            frames.append(frame)
        elif row.strip() and not row[0].isspace() and not row.startswith("-->") and not is_gap(row):
            if re.match(_EXCEPTION, row) is None:
                return None
            return ChainLink(at, index, row.rstrip(), tuple(frames), tuple(kept), _as_it_is)
        kept.append(row)
    return None


def _pretty_errors(rows: Sequence[str], at: int) -> ChainLink | None:
    """Read pretty_errors' form: a rule, then frames of one row each, then the exception.

    The exception's text may be on the row below its name.
    """
    if not rows[at].startswith("-----") or re.match(r"-{20,}$", rows[at]) is None:
        return None
    kept, frames = [rows[at]], list[TraceFrame]()
    for index in range(at + 1, min(len(rows), at + 400)):
        row = rows[index]
        frame = _frame(re.match(r"(?P<file>\S+) (?P<line>\d+) (?P<name><?\w+>?)$", row))
        if frame is not None:
            frames.append(frame)
        elif index == at + 1:
            return None
        if ":" in row and is_exception(row):
            below = rows[index + 1].strip() if index + 1 < len(rows) and row.endswith(":") else ""
            end = min(index + 1, len(rows) - 1) if below else index
            error = f"{row} {below}".rstrip()
            return ChainLink(at, end, error, tuple(frames), tuple(kept), _as_it_is)
        kept.append(row)
    return None


def _pytest(rows: Sequence[str], at: int) -> ChainLink | None:
    """Read pytest's report; the error is that of the last test that failed."""
    if rows[at][:1] != "=" or re.match(r"=+ (FAILURES|ERRORS) =+$", rows[at]) is None:
        return None
    error, end = "", at
    for index in range(at + 1, min(len(rows), at + _SCANNED_ROWS)):
        row = rows[index]
        end = index
        if row.startswith("E  "):
            if not rows[index - 1].startswith("E ") and row[1:].strip():
                error = row[1:].strip()
        elif error and (kind := re.match(r"\S+:\d+: (\w+)$", row)):
            error = error if re.match(_EXCEPTION, error) else f"{kind[1]}: {error}"
        elif row.startswith(("FAILED ", "ERROR ")) and not error:
            error = row.partition(" - ")[2]
        elif " in " in row and re.match(r"(=+ )?\d+ (failed|error|passed).* in [\d.:]+", row):
            break
    kept = tuple(rows[at:end])
    return ChainLink(at, end, error, (), kept, _as_it_is, is_whole=True) if error else None


def _escaped(rows: Sequence[str], at: int) -> ChainLink | None:
    """Read a traceback, or the fields of an exception, quoted on one row, as in JSON."""
    fields = re.search(_FIELDS, rows[at]) if '"exc_type"' in rows[at] else None
    if fields is not None:
        error = f"{fields['type']}: {_unescaped(fields['value'])}".partition("\n")[0]
        return ChainLink(at, at, error, (), (rows[at],), _as_it_is)
    found = re.search(_ESCAPED, rows[at]) if "\\n" in rows[at] else None
    if found is None:
        return None
    text = _unescaped(found[0])
    inner = read_tracebacks(text.splitlines())
    if not inner:
        return None
    link = inner[-1].last
    lines = tuple(text.splitlines()[: link.error_at])
    return ChainLink(at, at, link.error, link.frames, lines, _as_it_is, catcher=link.catcher)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), text)


_SHAPES: tuple[Callable[[Sequence[str], int], ChainLink | None], ...] = (
    _escaped,
    _box,
    _ipython,
    _plain,
    _cut_off,
    _syntax,
    _stackprinter,
    _pretty_errors,
    _pytest,
)
"""The readers of the forms of tracebacks, in the order in which they are tried."""
