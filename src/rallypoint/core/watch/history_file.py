"""The lines of a file of `--history`. Pure.

What is written of a job while it runs, and what is read of that later.

Each line is one object of JSON, with its `kind`:

    begin    a coordinator began to write, or went on where another one had led: the header
    event    something happened (`HistoryEntry`)
    round    a round has ended (`RoundRecord`)
    status   what the job did then (`JobView`): as things changed, and once a minute
    lost     so many lines could not be written

Within a `schema` number fields and kinds may be added. A reader passes over kinds that it does not
know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from rallypoint.core.json_reader import UnreadableJsonError, read_object
from rallypoint.core.round_record import RoundRecord
from rallypoint.core.text import shown
from rallypoint.core.watch.history import SCHEMA, HistoryEntry, UnixTime
from rallypoint.core.watch.job_view import JobView, conspicuous

NODES_WRITTEN = 16
"""The most nodes in a status of a history file; the rest is only counted."""


class Begin(Struct, frozen=True):
    """The header of the lines that one coordinator writes."""

    job: str
    incarnation: int
    time: UnixTime
    """The time in Unix seconds, as everywhere in the file."""
    took_over: bool = False
    """Whether another coordinator had led the job before."""
    schema: int = SCHEMA


class StatusLine(Struct, frozen=True):
    """The status of the job at one time, as a line of the file."""

    time: UnixTime
    view: JobView


class LinesLost(Struct, frozen=True):
    """A gap in the file: so many lines are missing here."""

    number: Annotated[int, Meta(ge=0)]


HistoryLine = Begin | HistoryEntry | RoundRecord | StatusLine | LinesLost
_KINDS: dict[type, str] = {
    Begin: "begin",
    HistoryEntry: "event",
    RoundRecord: "round",
    StatusLine: "status",
    LinesLost: "lost",
}


def as_object(line: HistoryLine) -> dict[str, Any]:
    """Return the line of a history file as a JSON object, with its kind."""
    return {"kind": _KINDS[type(line)], **msgspec.to_builtins(line)}


def compact(view: JobView, at: float) -> StatusLine:
    """Return the status to write, without ended rounds, and with at most `NODES_WRITTEN` nodes.

    Of more nodes, the most conspicuous are in it. Ended rounds have lines of their own; only one
    whose workers still stop is in it.
    """
    left_out = view.nodes_left_out + max(len(view.nodes) - NODES_WRITTEN, 0)
    nodes = conspicuous(view.nodes, NODES_WRITTEN)
    ending = view.past[-1:] if view.state == "stopping" else ()
    return StatusLine(at, replace(view, nodes=nodes, nodes_left_out=left_out, past=ending))


class Recorded(Struct):
    """The content of a `--history` file."""

    begins: list[Begin] = field(default_factory=list)
    entries: list[HistoryEntry] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)
    """The ended rounds of the newest life of the job."""
    status: StatusLine | None = None
    """The newest status of the newest life of the job; None: there is none."""
    lost: int = 0
    """The number of lines that could not be written."""


class NoHistoryError(ValueError):
    """The error of a file that is no history, or is damaged, or of an unknown schema.

    Its text continues a sentence that begins with the file's name.
    """


def read(lines: Sequence[bytes]) -> Recorded:
    """Parse the lines of a file, each without its line feed. Raises NoHistoryError.

    The last line may be cut, as may the last line of a coordinator before another one continued.
    """
    found, cut, why = Recorded(), 0, ""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = read_object(line)
        except UnreadableJsonError as error:
            if not cut:
                cut, why = number, str(error)
            continue
        kind = record.get("kind")
        if cut and kind not in ("begin", "lost"):
            raise _no_line(cut, shown(why))
        cut = 0
        if not found.begins and kind != "begin":
            raise NoHistoryError("is not a file that --history has written: it has no header")
        _take(found, number, kind, record)
    if not found.begins:
        raise NoHistoryError("is not a file that --history has written: it has no header")
    return found


def _take(found: Recorded, number: int, kind: object, record: dict[str, Any]) -> None:
    match kind:
        case "begin":
            _begin(found, _as(record, Begin, number))
        case "event":
            found.entries.append(_as(record, HistoryEntry, number))
        case "round":
            _add(found.rounds, _as(record, RoundRecord, number))
        case "status":
            found.status = _as(record, StatusLine, number)
        case "lost":
            found.lost += _as(record, LinesLost, number).number


def _add(rounds: list[RoundRecord], past: RoundRecord) -> None:
    """Add a round, unless the last one of the list is the same.

    A round that had just ended at a takeover may be written by both coordinators; the first one has
    observed it.
    """
    if not rounds or rounds[-1].round != past.round:
        rounds.append(past)


def _begin(found: Recorded, begin: Begin) -> None:
    if not 1 <= begin.schema <= SCHEMA:
        raise NoHistoryError(
            f"has schema {begin.schema}, and this version of Rallypoint reads 1 to {SCHEMA}: read "
            "it with the version that wrote it"
        )
    if not begin.took_over or (found.begins and found.begins[-1].job != begin.job):
        found.rounds, found.status = [], None
    found.begins.append(begin)


_T = TypeVar("_T")


def _as(record: dict[str, Any], kind: type[_T], number: int) -> _T:
    try:
        return msgspec.convert(record, kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _no_line(number, f"is not what --history writes ({shown(str(error))})") from error


def _no_line(number: int, what: str) -> NoHistoryError:
    return NoHistoryError(f"is damaged: line {number} {what}")
