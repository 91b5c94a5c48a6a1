"""Effects that a coordinator's sessions ask of their host (`sessions.py`). Pure."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import JobEvent


class SendTo(Struct, frozen=True):
    """Send a message on a connection."""

    connection: int
    message: m.ToAgent


class HangUp(Struct, frozen=True):
    """Close a connection after the messages that were sent on it."""

    connection: int


class Refuse(Struct, frozen=True):
    """Tell the agent on this connection, and the user, why it can't take part; then close it."""

    connection: int
    text: str


class Faulted(Struct, frozen=True):
    """The job's machine has raised on this event; apply the event again later."""

    event: JobEvent
    error: Exception


class Empty(Struct, frozen=True):
    """No session is left."""


HostEffect = SendTo | HangUp | Refuse | Faulted | Empty | Record
