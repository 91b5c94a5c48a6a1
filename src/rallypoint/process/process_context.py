"""Processes of one node that somebody's program starts, waits for and ends: `PContext`.

The program's threads block, and an event loop in a thread of its own looks after the processes:
nothing is polled. That thread has forked them, so they are killed when the program dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.text import signal_name
from rallypoint.core.worker_exits import NotedExit, WorkerExit
from rallypoint.errors import SignalException
from rallypoint.process import signals
from rallypoint.process.failures import ProcessFailure
from rallypoint.process.limits import OomWatch
from rallypoint.process.logs.log_dir import open_log, read_tail
from rallypoint.process.logs.plan import NULL_DEVICE, Console, Copies, Std, ToRelay
from rallypoint.process.logs.specs import LogsDest
from rallypoint.process.prepared.calls import ResultFiles
from rallypoint.process.relay.client import Relay
from rallypoint.process.spawn import Command, WorkerStartError
from rallypoint.process.workers import WorkerSet

if TYPE_CHECKING:
    from rallypoint.config import FunctionCall
    from rallypoint.process.prepared.calls import PickledCall

_CONSOLE_TIMEOUT_S = 5.0
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass
class RunProcsResult:
    """How processes have ended, by local rank.

    `return_values` are those of functions, and None for each command, once all have succeeded.
    `failures` are those that came before anything was told to stop. `stdouts` and `stderrs` are
    the files of the streams; empty where a stream has none.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether any has failed."""
        return len(self.failures) > 0


class Programs(Struct, frozen=True):
    """What runs, by local rank: commands, functions in interpreters of their own, or one function
    in `forks` of this process, which have its descriptors `fds`, too."""

    argvs: Sequence[Sequence[str]] = ()
    calls: Sequence[PickledCall] = ()
    forks: FunctionCall | None = None
    fds: Collection[int] = ()


class ProcessPlan(Struct, frozen=True):
    """What to start, and how."""

    name: str
    programs: Programs
    envs: Sequence[Mapping[str, str]]
    dest: LogsDest
    prefixes: Mapping[int, str]
    stdout_filters: tuple[str, ...]
    stderr_filters: tuple[str, ...]
    grace_s: float
    """How long the others may take to end when one has failed."""
    cpus: Sequence[frozenset[int]] = ()
    """By local rank; empty: none is bound."""
    unbound_if_refused: bool = False


class PContext:
    """Running processes. Made by `start_processes`; `close` it in the end.

    When one fails, or all have succeeded, whatever else they run is ended, and `wait` returns.
    """

    def __init__(self, plan: ProcessPlan) -> None:
        self.name = plan.name
        self._supervision = _Supervision(plan)
        self._thread = threading.Thread(
            target=self._run, name=f"processes-{plan.name}", daemon=True
        )
        self._ready, self._ended = threading.Event(), threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._handlers: dict[signal.Signals, Any] = {}

    def start(self) -> None:
        """Start all, or none and raise: OSError with the errno (FileNotFoundError ..) where the
        program can't be run, InfrastructureError where the system has no process left.

        In the main thread, usual signals that nobody else handles raise SignalException there from
        now on, until `close`.
        """
        self._handle_signals()
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:
            self.close(timeout=0)
            raise
        if self._error is not None:
            self._thread.join()
            self._put_handlers_back()
            raise self._error

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Block until all have succeeded, or one has failed and the rest was ended; None when that
        takes longer than `timeout` seconds (negative: however long; 0: just look).

        `period` is of no importance: nothing is polled. May be called again, from any thread.
        Raises UsageError for a returned value that can't be loaded.
        """
        if not self._ended.wait(None if timeout < 0 else timeout):
            return None
        if self._error is not None:
            raise self._error
        return self._supervision.result

    def pids(self) -> dict[int, int]:
        """By local rank; also after they are gone."""
        return dict(enumerate(self._supervision.pids))

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """End all that still runs: the signal (SIGTERM), `timeout` seconds for all together, then
        SIGKILL. Returns when nothing is left, at the latest 5 s after that. Safe to repeat.

        What ends by this is neither a failure nor a success.
        """
        number = signal.SIGTERM if death_sig is None else death_sig
        if self._thread.ident is None:
            return
        self._ready.wait()
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._supervision.stop, number, timeout)
            except RuntimeError:
                pass  # The loop has ended: so have the processes.
        self._thread.join()
        self._put_handlers_back()

    def _run(self) -> None:
        try:
            asyncio.run(self._supervise())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()
            self._ended.set()

    async def _supervise(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._supervision.run(self._ready.set)
        except WorkerStartError as error:
            raise OSError(error.errno, str(error)) from error

    def _handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        signals.keep_exit_statuses()
        for number in _HANDLED:
            before = signal.getsignal(number)
            if before in (signal.SIG_DFL, signal.default_int_handler):
                self._handlers[number] = before
                signal.signal(number, _raise_signal)

    def _put_handlers_back(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        while self._handlers:
            number, before = self._handlers.popitem()
            if signal.getsignal(number) is _raise_signal:
                signal.signal(number, before)


def _raise_signal(number: int, _frame: FrameType | None) -> None:
    raise SignalException(
        f"process {os.getpid()} got {signal_name(number)}", signal.Signals(number)
    )


class _Supervision:
    """One life of the processes, in the loop of their thread."""

    def __init__(self, plan: ProcessPlan) -> None:
        self._plan, dest = plan, plan.dest
        self.pids: tuple[int, ...] = ()
        self.result = RunProcsResult(
            stdouts={n: dest.stdouts.get(n, "") for n in range(len(plan.envs))},
            stderrs={n: dest.stderrs.get(n, "") for n in range(len(plan.envs))},
        )
        self._stopping = False
        self._by_themselves: list[int] = []
        """Local ranks that ended before anything was told to stop."""
        self._wish: tuple[int, float] | None = None
        self._results = ResultFiles()
        self._oom = OomWatch()

    def stop(self, number: int, timeout_s: float) -> None:
        """End all, from now on with this signal and this grace."""
        self._wish = (number, timeout_s)
        if self._stopping:
            self._workers.signal_all(number)
            self._give(timeout_s)
        self._turned.set()

    async def run(self, started: Callable[[], None]) -> None:
        """From start to end. Calls `started` once all run; raises when they can't be started."""
        self._turned, self._hurry = asyncio.Event(), asyncio.Event()
        self._workers = WorkerSet(None)
        dest = self._plan.dest
        relay = Relay.start() if dest.tee_stdouts or dest.tee_stderrs else None
        try:
            self._start(relay)
            started()
            await self._turned.wait()
            await self._stop()
            await self._collect(relay)
        finally:
            self._results.close()
            if relay is not None:
                await relay.stop(_CONSOLE_TIMEOUT_S)

    def _start(self, relay: Relay | None) -> None:
        opened: list[int] = []
        commands: list[Command] = []
        programs = self._plan.programs
        try:
            for local_rank, env in enumerate(self._plan.envs):
                stdout_fd = self._open(Std.OUT, local_rank, relay)
                opened += [stdout_fd] if stdout_fd is not None else []
                stderr_fd = self._open(Std.ERR, local_rank, relay)
                opened += [stderr_fd] if stderr_fd is not None else []
                command = Command(
                    programs.argvs[local_rank] if programs.argvs else (),
                    env,
                    stdout_fd,
                    stderr_fd,
                    cpus=self._plan.cpus[local_rank] if self._plan.cpus else frozenset(),
                    unbound_if_refused=self._plan.unbound_if_refused,
                )
                commands.append(self._for_function(local_rank, command))
            self._workers.start(commands, self._exited)
        finally:
            for fd in opened:
                os.close(fd)
            for call in self._plan.programs.calls:
                call.close()
        self.pids = self._workers.pids

    def _for_function(self, local_rank: int, command: Command) -> Command:
        """The same with what runs a function, if one is to be run."""
        if (call := self._plan.programs.forks) is not None:
            from rallypoint.process.prepared.bootstrap import run_call

            result_fd = self._results.open(local_rank)
            body = partial(run_call, call.function, call.args[local_rank], result_fd, command.env)
            argv = [call.name]
            return replace(
                command, argv=argv, pass_fds=(result_fd, *self._plan.programs.fds), body=body
            )
        if self._plan.programs.calls:
            from rallypoint.process.prepared.calls import bootstrap_argv

            result_fd = self._results.open(local_rank)
            title = f"{self._plan.name}{local_rank}"
            pickled = self._plan.programs.calls[local_rank]
            argv, pass_fds = bootstrap_argv(pickled, result_fd, title)
            return replace(command, argv=argv, pass_fds=pass_fds)
        return command

    def _open(self, stream: Std, local_rank: int, relay: Relay | None) -> int | None:
        """Where the stream goes; None: where ours goes."""
        plan, dest, is_out = self._plan, self._plan.dest, stream is Std.OUT
        path = (dest.stdouts if is_out else dest.stderrs).get(local_rank, "")
        tees = dest.tee_stdouts if is_out else dest.tee_stderrs
        if local_rank not in tees or relay is None:
            return open_log(path) if path else None
        path = tees[local_rank] or path
        copy_to = dest.filtered_stdout if is_out else dest.filtered_stderr
        texts = plan.stdout_filters if is_out else plan.stderr_filters
        copies = Copies(copy_to, texts) if copy_to and texts else None
        prefix = plan.prefixes.get(local_rank, f"[{plan.name}{local_rank}]:")
        file = "" if path == NULL_DEVICE else path
        return relay.add(
            round_number=0,
            local_rank=local_rank,
            stream=stream,
            route=ToRelay(Console.TEE, file, not is_out, copies=copies),
            prefix=prefix.encode(errors="backslashreplace"),
        )

    def _exited(self, _local_rank: int, _exit: WorkerExit) -> None:
        exits = self._workers.exits
        if exits.failed() or len(exits) == len(self.pids):
            self._turned.set()

    async def _stop(self) -> None:
        self._workers.look()
        self._by_themselves = list(self._workers.exits)
        self._stopping = True
        if self._workers.remaining():
            number, grace_s = self._wish or (signal.SIGTERM, self._plan.grace_s)
            self._workers.signal_all(number)
            self._give(grace_s)
        if stuck := await self._workers.end(self._hurry):
            import logging

            text = "these processes survived SIGKILL: %s"
            logging.getLogger(__name__).error(text, ", ".join(map(str, stuck)))

    def _give(self, grace_s: float) -> None:
        asyncio.get_running_loop().call_later(grace_s, self._hurry.set)

    async def _collect(self, relay: Relay | None) -> None:
        exits = self._workers.exits
        for local_rank in sorted(set(exits.failed()) & set(self._by_themselves)):
            failure = await self._failure(local_rank, exits[local_rank], relay)
            self.result.failures[local_rank] = failure
        if not self.result.failures and len(self._by_themselves) == len(self.pids):
            values = self._results.load()
            self.result.return_values = {n: values.get(n) for n in range(len(self.pids))}

    async def _failure(
        self, local_rank: int, noted: NotedExit, relay: Relay | None
    ) -> ProcessFailure:
        # Needed only when something fails: patterns take time to compile.
        from rallypoint.process.failures import describe_failure

        dest = self._plan.dest
        path = dest.stderrs.get(local_rank, "")
        if relay is not None and local_rank in dest.tee_stderrs:
            tail = await relay.tail(0, local_rank)
        else:
            tail = read_tail(path) if path else b""
        lacked_memory = self._oom.rose()
        known = describe_failure(noted.exit, stderr_tail=tail, out_of_memory=lacked_memory)
        return ProcessFailure(
            local_rank,
            self.pids[local_rank],
            noted.exit.returncode,
            dest.error_files.get(local_rank, ""),
            said=known.message if tail or lacked_memory else "",
            detail=known.traceback,
            seen_at=noted.wall_time,
            log_file=path or dest.stdouts.get(local_rank, ""),
        )
