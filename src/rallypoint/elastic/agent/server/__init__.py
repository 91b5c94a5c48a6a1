"""One node's agent, as a library with torch's vocabulary."""

from __future__ import annotations

from rallypoint.elastic.agent.server.api import (
    ElasticAgent as ElasticAgent,
    RunResult as RunResult,
    SimpleElasticAgent as SimpleElasticAgent,
    Worker as Worker,
    WorkerGroup as WorkerGroup,
    WorkerSpec as WorkerSpec,
    WorkerState as WorkerState,
)
from rallypoint.elastic.agent.server.local_elastic_agent import (
    TORCHELASTIC_ENABLE_FILE_TIMER as TORCHELASTIC_ENABLE_FILE_TIMER,
    TORCHELASTIC_TIMER_FILE as TORCHELASTIC_TIMER_FILE,
    LocalElasticAgent as LocalElasticAgent,
)
