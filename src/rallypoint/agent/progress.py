"""What a waiting agent says that it waits for. Pure."""

from __future__ import annotations

from rallypoint.core.group import Phase
from rallypoint.core.model import JobStatus
from rallypoint.core.wording import count


def waiting_for(phase: Phase, status: JobStatus | None, min_nodes: int) -> str:
    """What this agent waits for, in a few words; empty while its workers run."""
    match phase:
        case Phase.RUNNING | Phase.DONE:
            return ""
        case Phase.STOPPING:
            return "the workers to stop"
        case Phase.ENROLLING:
            return "the round store"
        case Phase.READY:
            return "every node to reach the round store"
        case Phase.FINISHED:
            return "the workers of the other nodes to finish"
        case Phase.IDLE:
            return _idle(status, min_nodes)


def _idle(status: JobStatus | None, min_nodes: int) -> str:
    if status is None:
        return "the coordinator"
    match status.phase:
        case "active":
            return "the next round" if status.waiting else "a place (standing by)"
        case "last call":
            return f"more nodes (last call; {status.joined} joined)"
        case _ if status.stopping:
            return f"{count(status.stopping, 'node')} to stop ({status.joined} joined)"
        case _:
            missing = max(min_nodes - status.joined, 0)
            if not missing:
                return "the next round"
            return f"{count(missing, 'more node')} ({status.joined} of {min_nodes} joined)"
