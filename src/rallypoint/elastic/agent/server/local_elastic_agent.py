"""The agent whose workers are processes, with torch's name."""

from __future__ import annotations

import tempfile
from typing import Any

from msgspec.structs import replace

from rallypoint.agent.embedding import (
    Embedding,
)
from rallypoint.agent.environ import (
    TIMER_FILE_VARIABLE,
    TORCHELASTIC_ENABLE_FILE_TIMER as TORCHELASTIC_ENABLE_FILE_TIMER,
    TORCHELASTIC_HEALTH_CHECK_PORT as TORCHELASTIC_HEALTH_CHECK_PORT,
)
from rallypoint.agent.node_workers import WorkerRound
from rallypoint.agent.workers import WorkerSetup
from rallypoint.config import (
    AgentConfig,
    OutputConfig,
    OutputMode,
    WorkerConfig,
)
from rallypoint.elastic.agent.embedded.entrypoint import numa_options, worker_config
from rallypoint.elastic.agent.embedded.group_workers import GroupWorkers
from rallypoint.elastic.agent.embedded.run import JobLog, run_processes
from rallypoint.elastic.agent.embedded.worker_spec import (
    ToldEnd,
    WorkerSpec,
)
from rallypoint.elastic.agent.server.api import SpecAgent
from rallypoint.elastic.agent.server.health_check_server import HealthCheckServer
from rallypoint.core.text import naming_parameters
from rallypoint.elastic.agent.embedded.parameters import OF_A_SPEC

TORCHELASTIC_TIMER_FILE = TIMER_FILE_VARIABLE
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"


class LocalElasticAgent(SpecAgent):
    """Workers are processes, guarded: nothing of them outlives this program.

    `logs_specs` decides on their files; None: they have none. `start_method` is for a function;
    None: forkserver. `health_check_server` is stopped in the end; `uninterruptible_state_timeout`
    is accepted: a worker that will not die is reported.

    Raises ParameterError and UsageError.
    """

    @naming_parameters(OF_A_SPEC)
    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: Any = None,
        start_method: str | None = None,
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = 30,
        health_check_server: HealthCheckServer | None = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        rdzv_handler: Any = None,
    ) -> None:
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout, rdzv_handler=rdzv_handler)
        self._health_check_server = health_check_server
        workers = WorkerConfig(
            count=spec.local_world_size,
            role=spec.role,
            virtual_local_rank=spec.virtual_local_rank,
            numa=numa_options(spec.numa_options),
        )
        self._workers = worker_config(spec.entrypoint, spec.args, workers, start_method)
        self._output = OutputConfig(
            mode=OutputMode.INHERIT,
            prefix_template=log_line_prefix_template,
            temp_dir=tempfile.gettempdir(),
            duplicate_stdout_filters=tuple(spec.duplicate_stdout_filters or ()),
            duplicate_stderr_filters=tuple(spec.duplicate_stderr_filters or ()),
            logs_specs="default" if logs_specs is None else logs_specs,
        )

    def _run_job(self, config: AgentConfig, embedding: Embedding, log: JobLog) -> ToldEnd:
        def of_group(setup: WorkerSetup, round_: WorkerRound) -> GroupWorkers:
            group, handler = self._worker_group, embedding.handler
            group.store = handler.store if handler is not None else None
            return GroupWorkers(group, setup, round_)

        embedding.round_workers = of_group
        config = replace(config, workers=self._workers, output=self._output)
        try:
            return run_processes(config, log, embedding)
        finally:
            if self._health_check_server is not None:
                self._health_check_server.stop()
