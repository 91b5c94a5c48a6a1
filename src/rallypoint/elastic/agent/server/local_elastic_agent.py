"""The agent whose workers are processes, with torch's name.

A subclass that overrides no hook runs the same agent as `rallypoint run`. A subclass that overrides
a hook has all four hooks called. There `super()` does the same as in torch: the workers are
processes of `multiprocessing.start_processes`, held in `_pcontext`.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from string import Template
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
from rallypoint.elastic.agent.embedded.refused_hooks import CALLED_HOOKS, overrides
from rallypoint.elastic.agent.embedded.run import JobLog, run_processes
from rallypoint.elastic.agent.embedded.worker_spec import (
    RunResult,
    ToldEnd,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from rallypoint.elastic.agent.server.api import SimpleElasticAgent
from rallypoint.elastic.agent.server.health_check_server import HealthCheckServer
from rallypoint.elastic.utils.api import macros
from rallypoint.core.text import naming_parameters
from rallypoint.elastic.agent.embedded.parameters import OF_A_SPEC

TORCHELASTIC_TIMER_FILE = TIMER_FILE_VARIABLE
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"


class LocalElasticAgent(SimpleElasticAgent):
    """An agent whose workers are processes; a guard kills them if this program dies.

    `logs_specs` decides on the workers' log files; None: they have none. `start_method` is for an
    entrypoint that is a function; None: forkserver. `health_check_server` is stopped in the end.
    `uninterruptible_state_timeout` has no effect: a worker that will not die is reported anyway.
    Where a subclass overrides a hook, the default `start_method` is spawn, as in torch, and there
    is neither a guard nor a timer.

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
        self._start_method, self._logs_specs = start_method, logs_specs
        self._log_line_prefix_template = log_line_prefix_template
        self._pcontext: Any = None
        self._workers = worker_config(spec.entrypoint, spec.args, workers, start_method)
        self._output = OutputConfig(
            mode=OutputMode.INHERIT,
            prefix_template=log_line_prefix_template,
            temp_dir=tempfile.gettempdir(),
            duplicate_stdout_filters=tuple(spec.duplicate_stdout_filters or ()),
            duplicate_stderr_filters=tuple(spec.duplicate_stderr_filters or ()),
            logs_specs="default" if logs_specs is None else logs_specs,
        )

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the worker processes of a round, and return their pids by local rank."""
        from rallypoint.elastic.multiprocessing.api import DefaultLogsSpecs, start_processes

        spec = worker_group.spec
        envs = {n: self.worker_environ(worker) for n, worker in enumerate(worker_group.workers)}
        specs = self._logs_specs
        self._pcontext = start_processes(
            spec.role,
            *self._started_with(spec),
            envs,
            DefaultLogsSpecs(os.devnull) if specs is None else specs,
            self._line_prefixes(worker_group),
            self._start_method or "spawn",
            numa_options(spec.numa_options),
            spec.duplicate_stdout_filters,
            spec.duplicate_stderr_filters,
            grace_s=self._shutdown_timeout,
        )
        pids: dict[int, Any] = self._pcontext.pids()
        return pids

    def _started_with(self, spec: WorkerSpec) -> tuple[Any, dict[int, tuple[Any, ...]]]:
        """Return the function or program, and each worker's arguments by local rank.

        In arguments that are texts, `${local_rank}` is replaced by the worker's local rank.
        """
        entrypoint: Any = spec.entrypoint
        first: tuple[Any, ...] = ()
        if isinstance(entrypoint, tuple):
            entrypoint, first = entrypoint[0], entrypoint[1:]

        def of_worker(given: Any, local_rank: int) -> Any:
            is_text = isinstance(given, str)
            return macros.substitute([given], str(local_rank))[0] if is_text else given

        args, ranks = (*first, *spec.args), range(spec.local_world_size)
        return entrypoint, {n: tuple(of_worker(each, n) for each in args) for n in ranks}

    def _line_prefixes(self, group: WorkerGroup) -> dict[int, str] | None:
        if (template := self._log_line_prefix_template) is None:
            return None
        return {
            worker.local_rank: Template(template).safe_substitute(
                role_name=group.spec.role,
                rank=worker.global_rank,
                local_rank=worker.local_rank,
                hostname=socket.gethostname().partition(".")[0],
            )
            for worker in group.workers
        }

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """End the processes of a round by `_shutdown`, and return when none is left."""
        self._shutdown(timeout=int(self._shutdown_timeout))

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Return the state of the processes, with their results or failures. Does not wait."""
        told = self._pcontext.wait(0)
        if told is None:
            return RunResult(WorkerState.HEALTHY)
        rank_of = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        if told.is_failed():
            failures = {rank_of[n]: failure for n, failure in told.failures.items()}
            return RunResult(WorkerState.FAILED, failures=failures)
        values = {rank_of[n]: value for n, value in told.return_values.items()}
        return RunResult(WorkerState.SUCCEEDED, values)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """End the running processes: send this signal, and SIGKILL after `timeout` seconds."""
        if self._pcontext is not None:
            self._pcontext.close(death_sig, timeout)

    def _run_job(self, config: AgentConfig, embedding: Embedding, log: JobLog) -> ToldEnd:
        try:
            if overrides(type(self), LocalElasticAgent, CALLED_HOOKS):
                virtual = self._worker_group.spec.virtual_local_rank
                workers = replace(config.workers, virtual_local_rank=virtual)
                return super()._run_job(replace(config, workers=workers), embedding, log)
            return self._run_guarded(config, embedding, log)
        finally:
            if self._health_check_server is not None:
                self._health_check_server.stop()

    def _run_guarded(self, config: AgentConfig, embedding: Embedding, log: JobLog) -> ToldEnd:
        def of_group(setup: WorkerSetup, round_: WorkerRound) -> GroupWorkers:
            group, handler = self._worker_group, embedding.handler
            group.store = handler.store if handler is not None else None
            return GroupWorkers(group, setup, round_)

        embedding.round_workers = of_group
        config = replace(config, workers=self._workers, output=self._output)
        return run_processes(config, log, embedding)
