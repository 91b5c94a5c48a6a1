"""What the coordinator knows of one agent.

A session belongs to one incarnation of an agent, and outlives its connections.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.coordinator.connection import Connection
from rallypoint.core import messages as m
from rallypoint.core.model import NodeRef

if TYPE_CHECKING:
    from rallypoint.coordinator.hosted_job import HostedJob


class Session(Struct, eq=False):
    """What is known of one incarnation of an agent."""

    job: HostedJob
    ref: NodeRef
    generation: int
    connection: Connection | None
    opened: int
    """The generation at which it was opened. An agent that names another does not know of it."""
    applied: int = 0
    """The last report that was applied."""
    is_first: bool = True
    """The agent's first session, as far as it knows: it has never been told of a round."""
    came_late: bool = False
    """The agent's first session, opened after the job's end."""
    host: str = ""
    """Where it was dialled from, for people."""
    node_rank: int = -1
    """The fixed rank that it has joined with; -1: none."""
    death_commitment: bytes = b""
    """Who knows its secret may tell that the agent died, once."""
    false_notices: int = 0
    """How often somebody said so who did not."""

    def is_proof(self, notice: m.AgentDied) -> bool:
        """Whether its guard says so, as nobody else can: once for each of its connections."""
        from rallypoint.wire.death_notice import is_proven  # Most jobs end without one.

        is_newest = notice.generation == self.generation
        proven = is_newest and is_proven(notice.secret, self.death_commitment)
        if proven:
            self.death_commitment = b""
        return proven

    def disbelieve(self, peer: str) -> str:
        """What to tell of a notice that proves nothing; empty: that was told."""
        self.false_notices += 1
        if self.false_notices > 1:
            return ""
        return f"ignored {peer}: it says that the agent of node {self.ref} died, without a proof"


def node_id_of(hello: m.Attach, taken: Container[str]) -> str:
    """The given id, or the former one, or the host name with the smallest free ordinal."""
    if hello.node_id:
        return hello.node_id
    if hello.former_id and hello.former_id not in taken:
        return hello.former_id
    ordinal = 0
    while f"{hello.host_name}-{ordinal}" in taken:
        ordinal += 1
    return f"{hello.host_name}-{ordinal}"
