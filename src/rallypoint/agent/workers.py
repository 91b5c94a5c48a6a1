"""The workers of one round on this node, from spawn to the last of their processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.environ import WorkerContext, worker_environ
from rallypoint.agent.former_agents import note_sessions
from rallypoint.agent.node_workers import WorkerRound
from rallypoint.agent.watchdog import Blame, Watchdog
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.agent.worker_source import SourceLostError, WorkerSource
from rallypoint.config import WorkerConfig
from rallypoint.coordinator.client.session import raise_in_loop
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.core.worker_signals import Received
from rallypoint.errors import RallypointError
from rallypoint.observe.faults import Faults
from rallypoint.process.guard import Guard
from rallypoint.process.limits import OomWatch, cant_start_workers, shared_memory_use
from rallypoint.process.logs.log_dir import full_place, path_text
from rallypoint.process.logs.worker_output import WorkerOutput, WorkerOutputs
from rallypoint.process.prepared.calls import ResultFiles
from rallypoint.process.spawn import WorkerCommand
from rallypoint.process.workers import KILL_TIMEOUT_S, WorkerSet

DETAILS_S = 0.5
"""The delay in seconds after a failure until its traceback is reported, if other workers of this
node continue."""


class WorkerSetup(Struct, frozen=True):
    """The settings with which an agent makes the workers of every round."""

    config: WorkerConfig
    source: WorkerSource
    outputs: WorkerOutputs
    guard: Guard | None
    scratch: str
    """The path of the agent's own temporary directory; empty: there is none."""
    notice: Callable[[str], None]
    """Gets a line for a person when a timer of a worker has ended."""
    faults: Faults
    no_space: Callable[[str], None] = lambda text: None
    """Called with a line for the user when the log or error file of a failed worker lies on a full
    disk, or there is no place for shared memory."""
    leaders_first: bool = False
    """Whether `--signal-scope worker` was given."""


class RoundWorkers:
    """The processes of one round's workers on this node, as `NodeWorkers`."""

    def __init__(self, setup: WorkerSetup, round_: WorkerRound) -> None:
        self._setup, self._round = setup, round_
        self._results = ResultFiles()
        self._workers = WorkerSet(setup.guard, leaders_first=setup.leaders_first)
        self._opened: list[WorkerOutput] = []
        self._commands: list[WorkerCommand] = []
        self._report_is_due = False
        self._killed = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._clearing: asyncio.Task[object] | None = None
        self._telling: asyncio.Task[None] | None = None
        number, count = round_.assignment.round, setup.config.count
        self.shm = WorkerShm.open(setup.scratch, number, count, setup.faults, setup.no_space)
        base_rank = round_.assignment.base_rank
        self._watchdog = Watchdog(self.shm, base_rank, self._end_one, setup.notice)
        self._failures = WorkerFailures(
            setup, round_, self._workers, self._opened, self._commands, self._watchdog.blames
        )

    def start(self, context: Callable[[int, str], WorkerContext]) -> None:
        """Spawn all workers; later if what they are forked from is not ready, or was just lost."""
        with self._closing_unless_started():
            commands = self._open(context)
            if not self._setup.source.is_ready or not self._try_to_start(commands):
                self._starting = asyncio.create_task(self._start_later(commands))
                self._starting.add_done_callback(raise_in_loop)
                return
        self._round.on_started()

    async def _start_later(self, commands: Sequence[WorkerCommand]) -> None:
        try:
            with self._closing_unless_started():
                await self._setup.source.wait_ready()
                while not self._try_to_start(commands):
                    await self._setup.source.wait_ready()
        except RallypointError as error:
            self._round.on_not_started(error)
        else:
            self._round.on_started()

    def _open(self, context: Callable[[int, str], WorkerContext]) -> list[WorkerCommand]:
        setup = self._setup
        unopened = {rank: worker_environ(context(rank, "")) for rank in range(setup.config.count)}
        setup.outputs.read_progress(self._round.assignment.round, self.shm.path)
        self._opened += setup.outputs.open_round(self._round.assignment.round, unopened)
        shm, timer_file = self.shm.path, self._watchdog.open()
        for local_rank, output in enumerate(self._opened):
            place = context(local_rank, output.error_file)
            environ = worker_environ(replace(place, shm=shm, timer_file=timer_file))
            self._commands.append(setup.source.command(local_rank, environ, output, self._results))
        return self._commands

    def _try_to_start(self, commands: Sequence[WorkerCommand]) -> bool:
        """Start the workers; return False if their source was lost, which gets ready again."""
        note_sessions(self._setup.scratch, None)
        try:
            self._workers.start(commands, self._exited, self._setup.source.spawn)
        except SourceLostError:
            return False
        note_sessions(self._setup.scratch, self._workers.pids)
        self.shm.pids = self._workers.pids
        return True

    @contextmanager
    def _closing_unless_started(self) -> Iterator[None]:
        """Close, at the end of the context, files opened for workers, unless these start later.

        Started workers have their own copies. If none was started because of an error, the round is
        closed too. An OSError for a resource that this machine lacks becomes an
        InfrastructureError.
        """
        waits = False
        try:
            yield
            waits = not self._workers.pids
        except OSError as error:
            if (short := cant_start_workers(error)) is None:
                raise
            raise short from error
        finally:
            if not waits:
                for output in self._opened:
                    output.close()
                if not self._workers.pids:
                    self._close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of the workers, by local rank; empty until they run."""
        return self._workers.pids

    def owns(self, pid: int) -> bool:
        """Return whether only this object may reap the process."""
        return self._workers.owns(pid)

    def use_guard(self, guard: Guard) -> None:
        """Use this guard, which replaces a killed one, to kill workers if the agent dies."""
        self._workers.use_guard(guard)

    def signal(self, number: int, received: Received = Received.NOBODY) -> None:
        """Signal the workers' processes, and have `on_gone` called when nothing is left.

        See `NodeWorkers`, and `StopConfig.signal_scope` for the processes that are signalled first.
        """
        self._retire()
        self._workers.signal_all(number, received)
        if number == signal.SIGTERM:
            self._kill_holders()
        self.clear()

    def notify(self, number: int) -> None:
        """Signal the workers only; processes that they have started may not know this signal."""
        for local_rank in range(len(self._workers.pids)):
            self._workers.signal_one(local_rank, number)

    def kill(self) -> None:
        """Kill all in the workers' sessions; have `on_gone` called when none is left or can die."""
        self._retire()
        self._workers.kill_all()
        self._killed.set()
        self.clear()

    async def abandon(self) -> None:
        """Kill and reap all processes, because the program around this agent may continue.

        `on_exits` and `on_gone` are not called any more. Raises OSError when no descriptor is left
        to find processes.
        """
        self._cancel_start()
        self._round = replace(self._round, on_exits=lambda _: None, on_gone=lambda *_: None)
        outlived_kill = self._killed.is_set() and self._clearing is None
        if self._clearing is not None:
            self._clearing.cancel()
        reaping = self._workers.reap(0.0 if outlived_kill else KILL_TIMEOUT_S)
        self._clearing = asyncio.create_task(reaping)  # So that `clear` starts nothing.
        try:
            await self._clearing
        finally:
            self._close()

    def clear(self) -> None:
        """Have `on_gone` called when nothing is left; a start that still waits is cancelled.

        May be called again.
        """
        self._cancel_start()
        if self._clearing is None:
            clearing = self._clearing = asyncio.create_task(self._clear())
            clearing.add_done_callback(raise_in_loop)

    def _kill_holders(self) -> None:
        """Kill the processes of workers that hold SIGTERM back because of `rallypoint.worker`.

        They have no handler of their own: see `worker/checkpoint.py`.
        """
        for local_rank, pid in self.shm.holders().items():
            if self._workers.kill_holder(local_rank, pid):
                self._workers.exits.killed_for_sigterm(local_rank)

    def _end_one(self, local_rank: int, number: int) -> bool:
        held_back = number == signal.SIGTERM and local_rank in self.shm.holders()
        return self._workers.signal_one(local_rank, signal.SIGKILL if held_back else number)

    def _cancel_start(self) -> None:
        if self._starting is not None:
            self._starting.cancel()

    def failures(self, failed: tuple[WorkerExit, ...]) -> tuple[WorkerExit, ...]:
        """Return these exits of failed workers, with the details that are known at once.

        The rest comes with `on_details`, if that is wanted, and with `on_gone`.
        """
        if self._telling is None and self._round.on_details is not None:
            self._telling = asyncio.create_task(self._tell_details(self._round.on_details))
            self._telling.add_done_callback(raise_in_loop)
        return self._failures.note(failed)

    async def _tell_details(self, tell: Callable[[tuple[WorkerExit, ...]], None]) -> None:
        """Report the failures with their details after `DETAILS_S`, if workers still run.

        Until the last one has ended the whole `--restart-grace` may pass, and people ask meanwhile.
        """
        await asyncio.sleep(DETAILS_S)
        tell(await self._failures.details())

    def results(self) -> dict[int, object]:
        """Return the function's results, by local rank; for a command each is None.

        Once all workers have succeeded; may be called once. Blocks for as long as unpickling takes.

        Raises UsageError for a result that can't be unpickled in this process.
        """
        return dict.fromkeys(range(self._setup.config.count)) | self._results.load()

    def _retire(self) -> None:
        self.shm.retire()
        self._watchdog.close()

    def _close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        if not self._workers.exits.all_succeeded(self._setup.config.count):
            self._results.close()
        self._watchdog.close()
        self.shm.close()

    def _exited(self, _exit: WorkerExit) -> None:
        if not self._report_is_due:
            self._report_is_due = True
            asyncio.get_running_loop().call_soon(self._report)

    def notice(self) -> None:
        """Report now, by `on_exits`, every worker that has ended and was not reported yet."""
        self._workers.look()
        self._report()

    def _report(self) -> None:
        """Report together, by `on_exits`, all exits that were not reported yet.

        If one is a failure, workers that are dead by now are included, even if their exit was not
        noticed.
        """
        self._report_is_due = False
        exits = self._workers.exits
        if exits.has_unreported_failure():
            self._workers.look()
        if fresh := exits.report():
            self._round.on_exits(fresh)

    async def _clear(self) -> None:
        stuck = await self._workers.end(self._killed)
        if self._telling is not None:
            self._telling.cancel()
        failures = await self._failures.detailed()
        await self._setup.outputs.progress_read()
        self._close()
        if stuck:
            self._clearing = None  # `kill` tries again
        self._round.on_gone(tuple(stuck), failures)


class WorkerFailures:
    """The failed workers of a round."""

    def __init__(
        self,
        setup: WorkerSetup,
        round_: WorkerRound,
        workers: WorkerSet,
        outputs: Sequence[WorkerOutput],
        commands: Sequence[WorkerCommand],
        blames: Mapping[int, Blame],
    ) -> None:
        """Take charge of the workers of a round.

        `outputs` and `commands` are those of the workers, by local rank, once these were started.
        `blames` has the workers that the agent has ended, and why.
        """
        self._setup, self._round, self._workers = setup, round_, workers
        self._outputs, self._commands, self._blames = outputs, commands, blames
        self._noted: tuple[WorkerExit, ...] = ()
        self._oom = OomWatch()

    def note(self, failed: tuple[WorkerExit, ...]) -> tuple[WorkerExit, ...]:
        """Note failures, and return them with the details that are known at once."""
        self._noted += failed
        return tuple(self._failure(exit_) for exit_ in failed)

    async def detailed(self) -> tuple[WorkerExit, ...]:
        """Return the noted failures with all details, and forget them: each is returned once."""
        noted, self._noted = self._noted, ()
        return tuple(await asyncio.gather(*map(self._detailed, noted)))

    async def details(self) -> tuple[WorkerExit, ...]:
        """Return the noted failures with their present details; `detailed` returns them again."""
        return tuple(await asyncio.gather(*map(self._detailed, self._noted)))

    def _failure(self, exit_: WorkerExit) -> WorkerExit:
        noted_at = self._workers.exits.noted_at(exit_.local_rank)
        blame = self._blames.get(exit_.local_rank)
        return replace(
            exit_,
            rank=self._round.assignment.base_rank + exit_.local_rank,
            role=self._setup.config.role,
            age_s=asyncio.get_running_loop().time() - noted_at,
            log_file=path_text(self._outputs[exit_.local_rank].log_file),
            reason=blame.reason if blame else "",
        )

    async def _detailed(self, exit_: WorkerExit) -> WorkerExit:
        """Return the exit with its details.

        Errors in files that a worker left, which may hold anything, are ignored.
        """
        try:
            return await self._described(exit_)
        except Exception as error:
            self._setup.faults.note("the error file or log of a failed worker can't be read", error)
            return self._failure(exit_)

    async def _described(self, exit_: WorkerExit) -> WorkerExit:
        # Needed only when something fails: patterns take time to compile.
        from rallypoint.process.failures import (
            bounded,
            describe_failure,
            program_of,
            read_error_file,
        )

        number = self._round.assignment.round
        words = await self._setup.outputs.last_words(number, exit_.local_rank)
        known = describe_failure(
            self._failure(exit_),
            error_file=read_error_file(self._outputs[exit_.local_rank].error_file),
            words=words,
            program=program_of(self._commands[exit_.local_rank].argv),
            out_of_memory=self._oom.rose(),
            shared_memory=shared_memory_use() if exit_.signal == signal.SIGBUS else "",
        )
        if (blame := self._blames.get(exit_.local_rank)) is not None:
            return replace(known, message=blame.reason, detail=blame.detail)
        output = self._outputs[exit_.local_rank]
        known = replace(known, log_file=path_text(output.written_log()))
        if full := full_place((output.log_file, output.error_file)):
            self._setup.no_space(full)
            if not known.detail:  # Its own words would say more.
                return bounded(replace(known, message=f"{full}; {known.message}"))
        return known
