"""The agent that runs its workers as processes of this machine, as `rallypoint run` does."""

from __future__ import annotations

import tempfile
from typing import Any

from msgspec.structs import replace

from rallypoint.agent.elastic_agent import SpecAgent
from rallypoint.agent.embedded_run import run_processes
from rallypoint.agent.embedding import Embedding
from rallypoint.agent.entrypoint import worker_config
from rallypoint.agent.job_end import JobEnd
from rallypoint.agent.job_log import JobLog
from rallypoint.agent.seated_workers import SeatedWorkers
from rallypoint.agent.worker_group import WorkerSpec
from rallypoint.config import AgentConfig, OutputConfig, OutputMode


class LocalElasticAgent(SpecAgent):
    """Workers are processes, guarded: nothing of them outlives this program.

    `logs_specs` decides on their files; None: their output is inherited. `start_method` is for a
    function; None: forkserver. `health_check_server` and `uninterruptible_state_timeout` are
    accepted: the agent never blocks, and a worker that will not die is reported.

    Raises ParameterError and UsageError.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: Any = None,
        start_method: str | None = None,
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = 30,
        health_check_server: Any = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        rdzv_handler: Any = None,
    ) -> None:
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout, rdzv_handler=rdzv_handler)
        self._workers = worker_config(
            spec.entrypoint,
            spec.args,
            count=spec.local_world_size,
            role=spec.role,
            start_method=start_method,
            virtual_local_rank=spec.virtual_local_rank,
            numa_options=spec.numa_options,
        )
        self._output = OutputConfig(
            mode=OutputMode.INHERIT,
            prefix_template=log_line_prefix_template,
            temp_dir=tempfile.gettempdir(),
            duplicate_stdout_filters=tuple(spec.duplicate_stdout_filters or ()),
            duplicate_stderr_filters=tuple(spec.duplicate_stderr_filters or ()),
            logs_specs="default" if logs_specs is None else logs_specs,
        )

    def _run_job(self, config: AgentConfig, embedding: Embedding, log: JobLog) -> JobEnd:
        def seated(*given: Any) -> SeatedWorkers:
            workers, handler = SeatedWorkers(*given), embedding.handler
            workers.group = self._worker_group
            workers.group.store = handler.store if handler is not None else None
            return workers

        embedding.round_workers = seated
        config = replace(config, workers=self._workers, output=self._output)
        return run_processes(config, log, embedding)
