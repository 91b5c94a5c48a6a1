"""The agent that runs its workers as processes of this machine, as `rallypoint run` does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from rallypoint.agent.embedded.elastic_agent import SpecAgent
from rallypoint.agent.embedded.embedding import Embedding
from rallypoint.agent.embedded.entrypoint import worker_config
from rallypoint.agent.embedded.hook_workers import assign_ranks
from rallypoint.agent.embedded.run import JobLog, run_processes
from rallypoint.agent.embedded.worker_spec import WorkerGroup, WorkerSpec, WorkerState
from rallypoint.agent.environ import WorkerContext
from rallypoint.agent.run import JobEnd
from rallypoint.agent.workers import RoundWorkers, WorkerRound, WorkerSetup
from rallypoint.config import AgentConfig, OutputConfig, OutputMode
from rallypoint.core.worker_exits import WorkerExit


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
        def of_group(setup: WorkerSetup, round_: WorkerRound) -> GroupWorkers:
            group, handler = self._worker_group, embedding.handler
            group.store = handler.store if handler is not None else None
            return GroupWorkers(group, setup, round_)

        embedding.round_workers = of_group
        config = replace(config, workers=self._workers, output=self._output)
        return run_processes(config, log, embedding)


class GroupWorkers(RoundWorkers):
    """`RoundWorkers` of a `WorkerGroup`. A worker's id is its pid."""

    def __init__(self, group: WorkerGroup, setup: WorkerSetup, round_: WorkerRound) -> None:
        def started() -> None:
            for worker, pid in zip(group.workers, self.pids, strict=True):
                worker.id = pid
            group.state = WorkerState.HEALTHY
            round_.on_started()

        super().__init__(setup, replace(round_, on_started=started))
        self.group = group

    def start(self, context: Callable[[int, str], WorkerContext]) -> None:
        assign_ranks(self.group, context)
        super().start(context)

    def clear(self) -> None:
        if WorkerState.is_running(self.group.state):
            self.group.state = WorkerState.STOPPED
        super().clear()

    def _exited(self, local_rank: int, exit_: WorkerExit) -> None:
        super()._exited(local_rank, exit_)
        if self.group.state is WorkerState.HEALTHY:
            if not exit_.succeeded:
                self.group.state = WorkerState.FAILED
            elif self._workers.exits.all_succeeded(len(self.pids)):
                self.group.state = WorkerState.SUCCEEDED
