"""Where the workers of this node come from: what is started for each, and by which process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rallypoint.agent.environ import worker_argv
from rallypoint.config import WorkerConfig
from rallypoint.process.guard import Guard
from rallypoint.process.result_files import ResultFiles
from rallypoint.process.spawn import Command, WorkerProcess, spawn_workers
from rallypoint.process.worker_output import WorkerOutput

if TYPE_CHECKING:
    from rallypoint.process.calls import PickledCall


class WorkerOrigin:
    """For the life of an agent: it serves every round. Close it last.

    `cpus`: by local rank, the CPUs that each worker may use; empty: where the agent may run.

    Raises UsageError when the function or its arguments can't be pickled.
    """

    def __init__(self, config: WorkerConfig, cpus: Sequence[frozenset[int]] = ()) -> None:
        self._config, self._cpus = config, cpus
        self._calls: list[PickledCall] = []
        if config.function is not None:
            # Needed for functions only: pickling takes time to import.
            from rallypoint.process.calls import pickle_calls

            self._calls = pickle_calls(config.function)

    def command(
        self,
        local_rank: int,
        environ: Mapping[str, str],
        output: WorkerOutput,
        results: ResultFiles,
    ) -> Command:
        """What to start for a worker."""
        argv: Sequence[str] = worker_argv(self._config.argv, local_rank)
        pass_fds: Sequence[int] = ()
        if self._calls:
            from rallypoint.process.calls import bootstrap_argv

            argv, pass_fds = bootstrap_argv(self._calls[local_rank], results.open(local_rank))
        numa = self._config.numa
        return Command(
            argv,
            environ,
            output.stdout_fd,
            output.stderr_fd,
            pass_fds=pass_fds,
            cpus=self._cpus[local_rank] if self._cpus else frozenset(),
            unbound_if_refused=numa is not None and numa.should_fall_back_if_binding_fails,
        )

    def spawn(self, commands: Sequence[Command], guard: Guard | None) -> list[WorkerProcess]:
        """Start all or none: see `spawn_workers`."""
        return spawn_workers(commands, guard)

    def close(self) -> None:
        """Nothing can be started any more. Safe to repeat."""
        while self._calls:
            self._calls.pop().close()
