"""One node's agent, as a library with torch's vocabulary.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.lazy import exports

if TYPE_CHECKING:
    from rallypoint.agent.embedded.elastic_agent import (
        ElasticAgent,
        LocalElasticAgent,
        SimpleElasticAgent,
    )
    from rallypoint.agent.embedded.worker_spec import (
        RunResult,
        Worker,
        WorkerGroup,
        WorkerSpec,
        WorkerState,
    )
    from rallypoint.agent.environ import (
        DEFAULT_ROLE,
        TORCHELASTIC_ENABLE_FILE_TIMER,
        TORCHELASTIC_HEALTH_CHECK_PORT,
        TORCHELASTIC_TIMER_FILE,
        TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT,
        macros,
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
    "macros",
    "DEFAULT_ROLE",
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
]

__getattr__, __dir__ = exports(
    globals(),
    {
        ".environ": (
            "DEFAULT_ROLE",
            "TORCHELASTIC_ENABLE_FILE_TIMER",
            "TORCHELASTIC_HEALTH_CHECK_PORT",
            "TORCHELASTIC_TIMER_FILE",
            "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
            "macros",
        ),
        ".embedded.elastic_agent": ("ElasticAgent", "SimpleElasticAgent", "LocalElasticAgent"),
        ".embedded.worker_spec": (
            "RunResult",
            "Worker",
            "WorkerGroup",
            "WorkerSpec",
            "WorkerState",
        ),
    },
)
