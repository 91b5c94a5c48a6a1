"""Put the remembered pieces of a stream together as rows of plain text; a mark stands for each gap.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rallypoint.process.plain_text import plain_text
from rallypoint.process.relay.remembered import HEADER, StreamPiece

GAP = "\0"
"""The first character of a row that stands for a gap: bytes of the stream that were not remembered.
No other row has this character."""


def rows_of(pieces: Iterable[StreamPiece]) -> list[str]:
    """Return the rows of these pieces of one stream, each once; pieces may overlap.

    A row of its own stands for each gap between pieces. A row whose beginning is lost is left out,
    unless a traceback begins in it.
    """
    rows: list[str] = []
    text, end = b"", 0
    for piece in sorted(pieces, key=lambda one: one.at):
        new = piece.data[max(0, end - piece.at) :]
        if not new:
            continue
        if piece.at > end:
            rows += _plain(text)
            if text or end:
                rows.append(f"{GAP}{piece.at - end}")
            text = _from_a_whole_row(new)
        else:
            text += new
        end = piece.at + len(piece.data)
    return rows + _plain(text)


def is_gap(row: str) -> bool:
    """Return whether the row stands for a gap: bytes of the stream that were not remembered."""
    return row.startswith(GAP)


def shown_rows(rows: Sequence[str]) -> list[str]:
    """Return the rows for a person: a gap is shown as `[... 120 bytes ...]`."""
    return [f"[... {row[1:]} bytes ...]" if is_gap(row) else row for row in rows]


def _from_a_whole_row(data: bytes) -> bytes:
    """Return `data` without its first row, the beginning of which is lost.

    The row is kept if a traceback begins in it. Without a line end all is left out.
    """
    ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
    if ends and HEADER in data[: min(ends)]:
        return data
    return data[min(ends) + 1 :] if ends else b""


def _plain(data: bytes) -> list[str]:
    return plain_text(data.decode("utf-8", "replace")).splitlines()
