"""The session of one agent, as its coordinator keeps it (`sessions.py`). Pure."""

from __future__ import annotations

from msgspec import Struct, field

from rallypoint.core import messages as m
from rallypoint.core.model import NodeRef


class Inbox(Struct, eq=False):
    """How far one agent's numbered reports have been received, applied and acknowledged."""

    received: int = 0
    """The number of the last received report. During a takeover no report is applied at once."""
    applied: int = 0
    acknowledged: int = 0
    """The number of the last acknowledged report."""
    unsettled: list[m.Numbered] = field(default_factory=list)
    """The applied reports from the first one on that another coordinator would still need if it
    took over now."""


class Session(Struct, eq=False):
    """The session of one agent, as its coordinator keeps it."""

    ref: NodeRef
    generation: int
    connection: int | None
    opened: int
    """The generation of the connection that opened the session. An agent that names another one in
    its `Attach` does not know of it."""
    came_late: bool
    """Whether it is the agent's first session, as far as the agent knows, and began after the job's
    end."""
    inbox: Inbox = field(default_factory=Inbox)
    peer: str = ""
    """The remote address and port, for display."""
    death_commitment: bytes = b""
    """A hash. A process that shows its preimage may report, once, that the agent has died."""
    false_notices: int = 0
    """The number of notices of the agent's death that had no valid proof."""
    told_of: int = 0
    """The number of the job's nodes for which the agent was last told its pace of heartbeats."""
    drain_why: str | None = None
    """The reason why a person wants this node to leave; None: no person does."""

    @property
    def host(self) -> str:
        """The remote address without the port."""
        return self.peer.rpartition(":")[0] or self.peer
