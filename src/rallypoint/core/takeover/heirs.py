"""Who may lead a job next (section L1 of the design). Pure.

The heirs are the nodes with the first group ranks of the newest world, without the leader's own:
every node knows its rank, so that leader and heirs agree on who they are without a message.
"""

from __future__ import annotations

from rallypoint.core.takeover.record import JobRecord

RANKS = 4
"""Nodes with lower group ranks than this are heirs."""


def heirs(nodes: int, leader_rank: int) -> list[int]:
    """The group ranks of the heirs of a world of so many nodes. `leader_rank`: as in the record."""
    return [rank for rank in range(min(nodes, RANKS)) if rank != leader_rank]


def heirs_of(record: JobRecord | None) -> list[int]:
    """Of the world that runs; empty: none does, or the leader's node is alone in it. Then any node
    may lead next."""
    if record is None or not record.is_active or record.verdict is not None:
        return []
    return heirs(record.nodes, record.leader_rank)
