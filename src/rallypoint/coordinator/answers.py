"""An answer to a person: a value in pieces, or a refusal."""

from __future__ import annotations

from msgspec import json

from rallypoint.coordinator.connection import ServerConnection
from rallypoint.core import messages as m
from rallypoint.core.watch.questions import PIECE_BYTES


def answer(connection: ServerConnection, value: object, *, is_last: bool) -> None:
    """Send this value as JSON, in pieces that fit into frames."""
    data = json.encode(value)
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        is_whole = start + PIECE_BYTES >= len(data)
        connection.send(m.Answer(piece, is_whole, is_whole and is_last))


def refuse_answer(connection: ServerConnection, text: str) -> None:
    """Say in one sentence why there is no answer, and hang up."""
    connection.send(m.Answer(b"", True, True, text))
    connection.close()
