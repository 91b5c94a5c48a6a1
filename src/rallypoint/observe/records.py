"""What the agent tells the outside: past facts, once each, with their reason."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from rallypoint.core.event_kinds import EventKind

FieldValue: TypeAlias = str | int | float


class AgentEvent(Struct, frozen=True):
    """One thing that happened to this node's part of the job.

    `message` is for a person and says why. `at` is seconds since the epoch and only ever shown,
    never compared (behaviour R6).
    """

    kind: EventKind
    message: str
    at: float
    node: str
    round: int | None = None
    fields: tuple[tuple[str, FieldValue], ...] = ()

    @property
    def name(self) -> str:
        """For programs, such as `node_lost`."""
        return self.kind.name
