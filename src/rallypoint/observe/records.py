"""What an agent reports: events, once each and with their reason, and the state of its job."""

from __future__ import annotations

from typing import Protocol, TypeAlias

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


class StatusView(Struct, frozen=True):
    """What one line can say of a job at rest. Empty `waiting_for` means that the workers run.

    `for_s` is how long the state that is shown has lasted; `nodes` counts those in the round.
    """

    round: int
    nodes: int
    max_nodes: int
    workers: int
    restarts: int
    max_restarts: int
    waiting_for: str = ""
    for_s: float = 0.0


class Observer(Protocol):
    """Called from the agent's loop: neither call may block."""

    def event(self, event: AgentEvent) -> None:
        """Something happened, once."""

    def status(self, view: StatusView) -> None:
        """Where the job is; about once a second, and after every event."""
