"""The session of one agent, as its coordinator keeps it (`sessions.py`). Pure."""

from __future__ import annotations

from msgspec import Struct, field

from rallypoint.core import messages as m
from rallypoint.core.model import NodeRef


class Inbox(Struct, eq=False):
    """Reports of one agent, by their numbers."""

    received: int = 0
    """The last one that came. Before it is known what runs, none is applied."""
    applied: int = 0
    acknowledged: int = 0
    """The last one that the agent was told of."""
    unsettled: list[m.Numbered] = field(default_factory=list)
    """Applied reports that another coordinator would need."""


class Session(Struct, eq=False):
    """One incarnation of an agent, as its coordinator knows it."""

    ref: NodeRef
    generation: int
    connection: int | None
    opened: int
    """The generation at which it was opened. An agent that names another does not know of it."""
    came_late: bool
    """The agent's first session, as far as it knows, and opened after the job's end."""
    inbox: Inbox = field(default_factory=Inbox)
    peer: str = ""
    """The address and port from which it was dialled, for people."""
    death_commitment: bytes = b""
    """A hash. A process that shows its preimage may report once that the agent died."""
    false_notices: int = 0
    """How many notices of its death had no proof."""
    told_of: int = 0
    """The number of nodes for which the agent knows its pace."""
    drain_why: str | None = None
    """The reason why a person wants this node to leave; None: nobody does."""

    @property
    def host(self) -> str:
        """The address without the port."""
        return self.peer.rpartition(":")[0] or self.peer
