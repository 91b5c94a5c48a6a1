"""Supervision of one node's processes for a program, in the event loop of a thread."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.failures import describe_failure, program_of
from rallypoint.process.limits import OomWatch, shared_memory_use
from rallypoint.process.logs.specs import DefaultLogsSpecs, LogsDest, Reifies
from rallypoint.process.logs.worker_output import OutputSettings, WorkerOutput, WorkerOutputs
from rallypoint.process.prepared.calls import PickledCall, ResultFiles
from rallypoint.process.relay.client import Relay
from rallypoint.process.relay.remembered import LastWords
from rallypoint.process.spawn import WorkerCommand
from rallypoint.process.workers import WorkerSet

if TYPE_CHECKING:
    from rallypoint.elastic.multiprocessing.errors import ProcessFailure

log = logging.getLogger(__name__)

_CONSOLE_TIMEOUT_S = 5.0


@dataclass
class RunProcsResult:
    """How processes have ended, by local rank.

    `return_values` are those of functions, and None for each command; empty unless all succeeded.
    `failures` are those that came before anything was told to stop. `stdouts` and `stderrs` are
    the files of the streams; empty where a stream has none.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether a process has failed."""
        return len(self.failures) > 0


class Programs(Struct, frozen=True):
    """The programs to execute, by local rank."""

    commands: Sequence[WorkerCommand]
    """The commands, whose stdout and stderr are not set yet."""
    calls: Sequence[PickledCall]
    results: ResultFiles


class ProcessPlan(Struct, frozen=True):
    """The settings with which a node's processes are run."""

    specs: Reifies
    dest: LogsDest
    """The log and error files that `specs` chose for the processes."""
    outputs: OutputSettings
    grace_s: float
    """How long the other processes may take to end when one has failed, in seconds."""


class Supervision:
    """The supervision of the processes from their start to their end, in the loop of a thread."""

    def __init__(self, plan: ProcessPlan) -> None:
        self._plan = plan
        self.programs = Programs((), (), ResultFiles())
        """The programs; to be set before `run`."""
        self.pids: tuple[int, ...] = ()
        self._stopping = False
        self._wish: tuple[int, float] | None = None
        self._oom = OomWatch()

    def stop(self, number: int, timeout_s: float) -> None:
        """Have `run` end all processes: by signal `number`, and by SIGKILL `timeout_s` later.

        Does not block. To be called in the loop, while `run` runs.
        """
        self._wish = (number, timeout_s)
        if self._stopping:
            self._workers.signal_all(number)
            asyncio.get_running_loop().call_later(timeout_s, self._hurry.set)
        self._turned.set()

    async def run(self, started: Callable[[asyncio.AbstractEventLoop], None]) -> RunProcsResult:
        """Run the processes until all have succeeded, one has failed, or `stop` is called.

        Then whatever still runs is ended, and the result is returned. Calls `started` once all
        run. Raises if they can't be started, and UsageError if a returned value can't be loaded.
        """
        self._turned, self._hurry = asyncio.Event(), asyncio.Event()
        self._workers = WorkerSet(None)
        dest = self._plan.dest
        relay = Relay.start() if dest.tee_stdouts or dest.tee_stderrs else None
        outputs = WorkerOutputs(self._plan.outputs, self._plan.specs, relay)
        try:
            opened = self._start(outputs)
            started(asyncio.get_running_loop())
            await self._turned.wait()
            self._workers.look()
            by_themselves = set(self._workers.exits)
            await self._stop()
            ranks = range(len(self.pids))
            failures = {
                n: self._failure(n, await outputs.last_words(0, n), opened[n].written_log())
                for n in sorted(by_themselves & set(self._workers.exits.failed()))
            }
            succeeded = not failures and len(by_themselves) == len(ranks)
            return RunProcsResult(
                dict.fromkeys(ranks) | self.programs.results.load() if succeeded else {},
                failures,
                stdouts={n: dest.stdouts.get(n, "") for n in ranks},
                stderrs={n: dest.stderrs.get(n, "") for n in ranks},
            )
        finally:
            self.programs.results.close()
            if relay is not None:
                await relay.stop(_CONSOLE_TIMEOUT_S)
            if isinstance(self._plan.specs, DefaultLogsSpecs):
                self._plan.specs.remove_empty(dest)

    def _start(self, outputs: WorkerOutputs) -> list[WorkerOutput]:
        commands = self.programs.commands
        opened: list[WorkerOutput] = []
        try:
            ranks = dict.fromkeys(range(len(commands)), -1)  # Global ones are not known here.
            opened = outputs.open_files(self._plan.dest, 0, ranks)
            with_streams = [
                replace(command, stdout_fd=output.stdout_fd, stderr_fd=output.stderr_fd)
                for command, output in zip(commands, opened, strict=True)
            ]
            self._workers.start(with_streams, self._exited)
        finally:
            for output in opened:
                output.close()
            for call in self.programs.calls:
                call.close()
        self.pids = self._workers.pids
        return opened

    def _exited(self, _exit: WorkerExit) -> None:
        exits = self._workers.exits
        if exits.failed() or len(exits) == len(self.pids):
            self._turned.set()

    async def _stop(self) -> None:
        self._stopping = True
        if self._workers.remaining():
            number, grace_s = self._wish or (signal.SIGTERM, self._plan.grace_s)
            self._workers.signal_all(number)
            asyncio.get_running_loop().call_later(grace_s, self._hurry.set)
        if stuck := await self._workers.end(self._hurry):
            pids = ", ".join(map(str, stuck))
            log.error("these processes survived SIGKILL: %s", pids)

    def _failure(self, local_rank: int, words: LastWords, log_file: str) -> ProcessFailure:
        lacked_memory = self._oom.rose()
        is_bus_error = self._workers.exits[local_rank].signal == signal.SIGBUS
        known = describe_failure(
            self._workers.exits[local_rank],
            words=words,
            program=program_of(self.programs.commands[local_rank].argv),
            out_of_memory=lacked_memory,
            shared_memory=shared_memory_use() if is_bus_error else "",
        )
        message = known.message if known.detail or lacked_memory or is_bus_error else ""
        known = replace(known, message=message, log_file=log_file)
        # Its package imports this module.
        from rallypoint.elastic.multiprocessing.errors import process_failure

        return process_failure(known, self._plan.dest.error_files.get(local_rank, ""))
