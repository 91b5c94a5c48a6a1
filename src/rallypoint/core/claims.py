"""What an agent may not claim of itself or of its job, though every value alone is in its limits.

Pure; for the coordinator, when an agent attaches or joins. Empty: nothing is wrong with it; else
one sentence, which that node is told. An honest node's command line has refused the same.
"""

from __future__ import annotations

from rallypoint.core.model import Candidate, SharedSettings


def settings_refused(settings: SharedSettings) -> str:
    """For the first agent of a job, whose settings become the job's."""
    least, most = settings.min_nodes, settings.max_nodes
    if least > most:
        return f"min_nodes={least} is more than max_nodes={most}"
    if settings.static and least != most:
        return f"fixed ranks need a fixed number of nodes, not {least} to {most}"
    return ""


def join_refused(settings: SharedSettings, candidate: Candidate) -> str:
    """For every join."""
    rank, most = candidate.node_rank, settings.max_nodes
    if not candidate.address:
        return "it has no address by which the others reach it"
    return f"its node_rank={rank} is not below max_nodes={most}" if rank >= most else ""
