"""The source of this node's workers: the command of each, and the process that starts it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rallypoint.agent.environ import worker_argv
from rallypoint.config import StartMethod, WorkerConfig
from rallypoint.core.event_kinds import Record
from rallypoint.errors import InfrastructureError, RallypointError, UsageError
from rallypoint.process import titles
from rallypoint.process.guard import Guard
from rallypoint.process.logs.worker_output import WorkerOutput
from rallypoint.process.prepared import command_line
from rallypoint.process.prepared.calls import ResultFiles
from rallypoint.process.spawn import WorkerCommand, WorkerProcess, spawn_workers
from rallypoint.process.syscalls import open_fds

if TYPE_CHECKING:
    from rallypoint.process.prepared.calls import PickledCall

FLUSH_S = 0.2
"""How long it may take to flush the calling program's stdout and stderr, in seconds."""


class SourceLostError(InfrastructureError):
    """The process that starts workers has just died; no worker of the batch is left.

    It is being replaced: wait until it is ready, then try again.
    """


class WorkerSource:
    """The starter of this node's workers, in every round of an agent; this class execs each worker.

    Call `start` before the loop runs, `watch` in it, then `unwatch`, and `close` at the end.
    `cpus`: by local rank, the CPUs that each worker may use; empty: where the agent may run.
    """

    adopts_orphans = False
    """Whether orphans of workers become children of this process, which must reap them."""

    def __init__(self, config: WorkerConfig, cpus: Sequence[frozenset[int]] = ()) -> None:
        """Pickle the function to run and its arguments, if there is one.

        Not if workers are forks of this process. Raises UsageError if they can't be pickled.
        """
        self._config, self._cpus = config, cpus
        self._calls: list[PickledCall] = []
        self._on_error: Callable[[RallypointError], None] | None = None
        if config.function is not None and config.method is not StartMethod.FORK:
            # Needed for functions only: pickling takes time to import.
            from rallypoint.process.prepared.calls import pickle_calls

            self._calls = pickle_calls(config.function)

    def start(self, guard: Guard, part_of: str) -> None:
        """Start the process that starts workers, if there is one; `part_of` ends its title.

        Raises UsageError or InfrastructureError.
        """

    def watch(
        self, on_error: Callable[[RallypointError], None], on_notice: Callable[[Record], None]
    ) -> None:
        """Keep the source ready, in the loop; `on_notice` gets remarks for the user.

        `on_error` is called if it turns out that no worker can ever be started.
        """
        self._on_error = on_error

    def unwatch(self) -> None:
        """Stop watching, since the loop is about to end. Safe without a watch."""
        self._on_error = None

    @property
    def is_ready(self) -> bool:
        """Whether `spawn` may be called."""
        return True

    async def wait_ready(self) -> None:
        """Wait until it `is_ready`; never returns after `on_error`. Safe to cancel."""

    def owns(self, pid: int) -> bool:
        """Return whether only this object may reap the child."""
        return False

    def use_guard(self, guard: Guard) -> None:
        """Use this guard process, which replaces a killed one, for what starts workers."""

    def command(
        self,
        local_rank: int,
        environ: Mapping[str, str],
        output: WorkerOutput,
        results: ResultFiles,
    ) -> WorkerCommand:
        """Return the command that starts a worker; its file for a function's result is opened."""
        argv: Sequence[str] = worker_argv(self._config.argv, local_rank)
        pass_fds: Sequence[int] = ()
        if self._calls:
            from rallypoint.process.prepared.calls import bootstrap_argv

            call, result_fd = self._calls[local_rank], results.open(local_rank)
            argv, pass_fds = bootstrap_argv(call, result_fd, titles.of_worker(environ))
        numa = self._config.numa
        return WorkerCommand(
            argv,
            environ,
            output.stdout_fd,
            output.stderr_fd,
            pass_fds=pass_fds,
            cpus=self._cpus[local_rank] if self._cpus else frozenset(),
            unbound_if_refused=numa is not None and numa.should_fall_back_if_binding_fails,
        )

    def spawn(self, commands: Sequence[WorkerCommand], guard: Guard | None) -> list[WorkerProcess]:
        """Start all these workers or none: see `spawn_workers`. Raises SourceLostError besides."""
        return spawn_workers(commands, guard)

    def close(self) -> None:
        """Close the source: nothing can be started any more, and no process of it is left.

        Safe to repeat.
        """
        while self._calls:
            self._calls.pop().close()


class ForkingSource(WorkerSource):
    """The source that forks the calling program, in which the agent runs, for each worker.

    What that program has imported and made is the workers' as well; so are, for a function, the
    descriptors that were open before the agent. The risks are the caller's: a lock that another
    thread holds at that moment stays locked in the worker, and CUDA can't be used in it once the
    caller has.
    """

    def __init__(self, config: WorkerConfig, cpus: Sequence[frozenset[int]] = ()) -> None:
        super().__init__(config, cpus)
        self._callers_fds = open_fds()
        if config.function is None and not _runs_here(config):
            raise UsageError(
                f"start method fork: {' '.join(config.argv[:2])} is not a script or module for "
                f"{sys.executable}"
            )

    def command(
        self,
        local_rank: int,
        environ: Mapping[str, str],
        output: WorkerOutput,
        results: ResultFiles,
    ) -> WorkerCommand:
        from rallypoint.process.prepared import bootstrap

        call = self._config.function
        command = super().command(local_rank, environ, output, results)
        if call is None:
            return replace(command, body=partial(bootstrap.run_command, command.argv, environ))
        args, result_fd = call.args[local_rank], results.open(local_rank)
        return replace(
            command,
            pass_fds=(result_fd, *self._callers_fds),
            body=partial(bootstrap.run_call, call.function, args, result_fd, environ),
        )

    def spawn(self, commands: Sequence[WorkerCommand], guard: Guard | None) -> list[WorkerProcess]:
        flushing = threading.Thread(target=_flush, daemon=True)
        with suppress(RuntimeError):  # The system has no thread left.
            flushing.start()
            flushing.join(FLUSH_S)
        return super().spawn(commands, guard)


def _flush() -> None:
    """Flush the stdout and stderr of this program, before it is forked.

    A text that is not written yet would be written by every worker, too.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue  # None, closed, or broken: there is nothing to write twice


def _runs_here(config: WorkerConfig) -> bool:
    line = command_line.parse(config.argv)
    return line is not None and os.path.realpath(line.python) == os.path.realpath(sys.executable)
