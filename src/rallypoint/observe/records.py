"""What the agent tells the outside: past facts, once each, with their reason."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

FieldValue: TypeAlias = str | int | float


class AgentEvent(Struct, frozen=True):
    """One thing that happened to this node's part of the job.

    `name` is for programs (`node_lost`), `message` for a person and says why. `at` is seconds
    since the epoch and only ever shown, never compared (behaviour R6).
    """

    name: str
    message: str
    at: float
    node: str
    round: int | None = None
    fields: tuple[tuple[str, FieldValue], ...] = ()
