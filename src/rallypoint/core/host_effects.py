"""Effects that a coordinator's sessions ask of their host (`sessions.py`). Pure."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import JobEvent


class SendTo(Struct, frozen=True):
    """The effect to send a message on a connection."""

    connection: int
    message: m.ToAgent


class HangUp(Struct, frozen=True):
    """The effect to close a connection, after the messages that were sent on it before."""

    connection: int


class Refuse(Struct, frozen=True):
    """The effect to tell an agent why it can't take part, and to close its connection then.

    The coordinator logs the refusal, too.
    """

    connection: int
    text: str


class Faulted(Struct, frozen=True):
    """The effect that the job's state machine raised an exception on this event.

    The event has to be applied again later.
    """

    event: JobEvent
    error: Exception


class Empty(Struct, frozen=True):
    """The effect that the last session of the job has ended."""


HostEffect = SendTo | HangUp | Refuse | Faulted | Empty | Record
