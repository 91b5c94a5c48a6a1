"""Who is told what an agent does: a person's console, or a program."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from rallypoint.observe.records import AgentEvent


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
