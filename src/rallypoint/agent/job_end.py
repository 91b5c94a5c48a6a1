"""How one node's part of a job ended, for whoever shows it or returns it."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.core.group_events import Finish
from rallypoint.core.model import Assignment, WorkerFailure


class JobEnd(Struct, frozen=True):
    """How this agent ended, and how long it took in seconds."""

    finish: Finish
    run_id: str
    round: int
    elapsed_s: float
    return_values: dict[int, object] = {}
    """What the workers of this node returned, by global rank, if all have succeeded. Filled in
    last, after the farewell: `on_end` does not see it."""
    failures: dict[int, WorkerFailure] = {}
    """The failures of this node's workers in the last round, by global rank."""
    caught: int = 0
    """The first signal that this agent got, if any."""
    error: Exception | None = None
    """What a handler raised, if that was the end."""
    node: str = ""
    place: Assignment | None = None
    """This node's in the newest round, if it ever had one."""
