"""Workers that are forks of this very process: what it has imported and made is theirs as well.

The risks are the caller's: a lock that another thread holds at that moment stays locked in the
worker, and CUDA can't be used in it once the caller has.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from rallypoint.agent.worker_origin import WorkerOrigin
from rallypoint.config import WorkerConfig
from rallypoint.errors import UsageError
from rallypoint.process.logs.worker_output import WorkerOutput
from rallypoint.process.prepared import bootstrap, command_line
from rallypoint.process.prepared.result_files import ResultFiles
from rallypoint.process.spawn import Command
from rallypoint.process.syscalls import open_fds


class ForkingOrigin(WorkerOrigin):
    """Forks the caller. Descriptors that were open before the agent are the workers' too."""

    def __init__(self, config: WorkerConfig, cpus: Sequence[frozenset[int]] = ()) -> None:
        super().__init__(config, cpus)
        self._callers_fds = open_fds()
        if config.function is None and not _runs_here(config):
            raise UsageError(
                f"start method fork: {' '.join(config.argv[:2])} is no script or module for "
                f"{sys.executable}"
            )

    def command(
        self,
        local_rank: int,
        environ: Mapping[str, str],
        output: WorkerOutput,
        results: ResultFiles,
    ) -> Command:
        _flush()
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


def _flush() -> None:
    """What the caller has printed and not yet written would be written by every worker, too."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # None, closed, or broken: there is nothing to write twice


def _runs_here(config: WorkerConfig) -> bool:
    line = command_line.parse(config.argv)
    return line is not None and os.path.realpath(line.python) == os.path.realpath(sys.executable)
