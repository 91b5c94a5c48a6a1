"""From a world to what each of its nodes is told."""

from __future__ import annotations

from rallypoint.core.events import FormWorld
from rallypoint.core.model import Assignment
from rallypoint.core.ranks import worker_ranks


def assignments(formed: FormWorld, restart_count: int, why: str) -> dict[str, Assignment]:
    """One assignment per node id. O(N) together, O(1) each."""
    world = formed.world
    master = world[0].candidate
    world_size = sum(node.candidate.workers for node in world)
    return {
        node.ref.node_id: Assignment(
            round=formed.round,
            group_rank=group_rank,
            group_world_size=len(world),
            base_rank=ranks.base_rank,
            world_size=world_size,
            base_role_rank=ranks.base_role_rank,
            role_world_size=ranks.role_world_size,
            master_addr=master.address,
            master_port=master.store_port,
            restart_count=restart_count,
            why=why,
            enrol=len(world) > 1,
        )
        for group_rank, (node, ranks) in enumerate(zip(world, worker_ranks(world), strict=True))
    }
