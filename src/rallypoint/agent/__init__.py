"""One node's agent, as a library with torch's vocabulary.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.lazy import exports

if TYPE_CHECKING:
    from rallypoint.agent.elastic_agent import ElasticAgent, SimpleElasticAgent
    from rallypoint.agent.local_agent import LocalElasticAgent
    from rallypoint.agent.worker_group import (
        RunResult,
        Worker,
        WorkerGroup,
        WorkerSpec,
        WorkerState,
    )

__all__ = [
    "ElasticAgent",
    "SimpleElasticAgent",
    "LocalElasticAgent",
    "RunResult",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]

__getattr__, __dir__ = exports(
    globals(),
    {
        ".elastic_agent": ("ElasticAgent", "SimpleElasticAgent"),
        ".local_agent": ("LocalElasticAgent",),
        ".worker_group": ("RunResult", "Worker", "WorkerGroup", "WorkerSpec", "WorkerState"),
    },
)
