"""One node's agent, as a library with torch's vocabulary."""

from __future__ import annotations

from rallypoint.agent.environ import (
    DEFAULT_ROLE as DEFAULT_ROLE,
)
from rallypoint.agent.environ import (
    TORCHELASTIC_ENABLE_FILE_TIMER as TORCHELASTIC_ENABLE_FILE_TIMER,
)
from rallypoint.agent.environ import (
    TORCHELASTIC_HEALTH_CHECK_PORT as TORCHELASTIC_HEALTH_CHECK_PORT,
)
from rallypoint.agent.environ import (
    TORCHELASTIC_TIMER_FILE as TORCHELASTIC_TIMER_FILE,
)
from rallypoint.agent.environ import (
    TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT as TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT,
)
from rallypoint.agent.environ import (
    macros as macros,
)
from rallypoint.elastic.agent.server.elastic_agent import (
    ElasticAgent as ElasticAgent,
)
from rallypoint.elastic.agent.server.elastic_agent import (
    LocalElasticAgent as LocalElasticAgent,
)
from rallypoint.elastic.agent.server.elastic_agent import (
    SimpleElasticAgent as SimpleElasticAgent,
)
from rallypoint.elastic.agent.server.worker_spec import (
    RunResult as RunResult,
)
from rallypoint.elastic.agent.server.worker_spec import (
    Worker as Worker,
)
from rallypoint.elastic.agent.server.worker_spec import (
    WorkerGroup as WorkerGroup,
)
from rallypoint.elastic.agent.server.worker_spec import (
    WorkerSpec as WorkerSpec,
)
from rallypoint.elastic.agent.server.worker_spec import (
    WorkerState as WorkerState,
)

__all__ = [
    "DEFAULT_ROLE",
    "ElasticAgent",
    "LocalElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
    "macros",
]
