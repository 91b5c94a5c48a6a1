"""Start the processes of one node, wait for them and end them, with torch's signatures.

The program's threads block, and an event loop in a thread of its own looks after the processes:
nothing is polled. That thread has forked them, so they are killed when the program dies.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.config import FunctionCall, NumaOptions, OutputMode
from rallypoint.core.text import count, signal_name
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import ParameterError, SignalException
from rallypoint.process import signals
from rallypoint.process.failures import describe_failure
from rallypoint.process.limits import OomWatch
from rallypoint.process.logs.plan import LinePrefix
from rallypoint.process.logs.specs import LogsDest, Reifies
from rallypoint.process.logs.worker_output import OutputSettings, WorkerOutput, WorkerOutputs
from rallypoint.process.prepared.calls import (
    PickledCall,
    ResultFiles,
    bootstrap_argv,
    pickle_calls,
)
from rallypoint.process.process_failure import ProcessFailure, process_failure
from rallypoint.process.relay.client import Relay
from rallypoint.process.spawn import Command, WorkerStartError
from rallypoint.process.syscalls import open_fds
from rallypoint.process.workers import WorkerSet
from rallypoint.worker.error_file import ERROR_FILE_VARIABLE

log = logging.getLogger(__name__)

_START_METHODS = ("spawn", "forkserver", "fork")
_CONSOLE_TIMEOUT_S = 5.0
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def start_processes(
    name: str,
    entrypoint: Callable[..., object] | str,
    args: Mapping[int, Sequence[object]],
    envs: Mapping[int, Mapping[str, str]],
    logs_specs: Reifies,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: NumaOptions | None = None,
    duplicate_stdout_filters: Sequence[str] | None = None,
    duplicate_stderr_filters: Sequence[str] | None = None,
    *,
    grace_s: float = 30.0,
) -> PContext:
    """Start one process per local rank, and return at once; `wait` for it, and `close` it.

    `entrypoint` is a program, whose arguments are made texts, or a function (see
    `rallypoint.config.FunctionCall`), which with the start method `fork` runs in forks of this
    process, else in interpreters of their own. `args` and `envs` have the keys 0 to n-1; an
    environment is added to our own, as are TORCHELASTIC_ERROR_FILE and, unless set,
    PYTHONFAULTHANDLER.

    Lines of teed streams have `log_line_prefixes`, else `[<name><local rank>]:`. `grace_s` is how
    long the others have to end when one has failed. `numa_options` binds the processes as
    `--numa-binding` does; a remark on it is a warning.

    Raises ParameterError or UsageError for arguments that can't be used, OSError where the program
    can't be run (FileNotFoundError ..), InfrastructureError where the system can't start a process.
    """
    _check(args, envs, start_method)
    dest = logs_specs.reify(envs)
    base = {"PYTHONFAULTHANDLER": "1", **os.environ}
    environs = [
        base | {**envs[rank], ERROR_FILE_VARIABLE: dest.error_files.get(rank, "")}
        for rank in range(len(envs))
    ]
    words = tuple(tuple(args[rank]) for rank in range(len(args)))
    results, calls, commands = ResultFiles(), list[PickledCall](), list[Command]()
    if not callable(entrypoint):
        commands = list(map(Command, [[entrypoint, *map(str, each)] for each in words], environs))
    elif start_method == "fork":
        commands = _forks(FunctionCall(entrypoint, words), environs, results)
    else:
        calls = pickle_calls(FunctionCall(entrypoint, words))
        for rank, environ in enumerate(environs):
            argv, fds = bootstrap_argv(calls[rank], results.open(rank), f"{name}{rank}")
            commands.append(Command(argv, environ, pass_fds=fds))
    if numa_options is not None:
        commands = _bound(commands, numa_options, base.get("CUDA_VISIBLE_DEVICES"))
    outputs = OutputSettings(
        OutputMode.INHERIT,
        LinePrefix(name, given=log_line_prefixes or {}),
        stderr_is_terminal=True,  # So a stream without a file is inherited.
        stdout_filters=tuple(duplicate_stdout_filters or ()),
        stderr_filters=tuple(duplicate_stderr_filters or ()),
    )
    plan = ProcessPlan(name, commands, calls, results, logs_specs, dest, outputs, grace_s)
    context = PContext(plan)
    context.start()
    return context


def _forks(
    call: FunctionCall, environs: Sequence[Mapping[str, str]], results: ResultFiles
) -> list[Command]:
    """The function in forks of this process, which have its descriptors, too."""
    from rallypoint.process.prepared.bootstrap import run_call

    commands, fds = [], open_fds()
    for rank, environ in enumerate(environs):
        result_fd = results.open(rank)
        body = partial(run_call, call.function, call.args[rank], result_fd, environ)
        commands.append(Command([call.name], environ, pass_fds=(result_fd, *fds), body=body))
    return commands


def _bound(commands: list[Command], numa: NumaOptions, visible: str | None) -> list[Command]:
    from rallypoint.process.affinity import worker_cpus

    cpus, notice = worker_cpus(len(commands), numa, visible)
    if notice:
        warnings.warn(notice, stacklevel=3)
    unbound_if_refused = numa.should_fall_back_if_binding_fails
    return [
        replace(command, cpus=bound, unbound_if_refused=unbound_if_refused)
        for command, bound in zip(commands, cpus or [frozenset()] * len(commands), strict=True)
    ]


def _check(
    args: Mapping[int, object], envs: Mapping[int, Mapping[str, str]], start_method: str
) -> None:
    for what, given in (("args", args), ("envs", envs)):
        if not given:
            raise ParameterError(f"{what} is empty: needs an entry for each local rank, from 0")
        if set(given) != set(range(len(given))):
            keys = ", ".join(map(repr, given))
            raise ParameterError(
                f"{what} has the local ranks {keys}: needs 0 to {len(given) - 1}, each once"
            )
    if len(args) != len(envs):
        raise ParameterError(
            f"args are for {count(len(args), 'local rank')}, envs for {len(envs)}: "
            "give both for every local rank"
        )
    for local_rank, name, value in ((n, *item) for n, env in envs.items() for item in env.items()):
        if not name or "=" in name or "\0" in f"{name}{value}" or not isinstance(value, str):
            raise ParameterError(
                f"envs has for local rank {local_rank} {name!r}: {value!r}: needs a name without "
                "= and a text"
            )
    if start_method not in _START_METHODS:
        raise ParameterError(f"start_method {start_method!r}: use one of {_START_METHODS}")


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


class ProcessPlan(Struct, frozen=True):
    """What to start, by local rank, and how."""

    name: str
    commands: Sequence[Command]
    """But for their streams."""
    calls: Sequence[PickledCall]
    results: ResultFiles
    specs: Reifies
    dest: LogsDest
    """What `specs` has said."""
    outputs: OutputSettings
    grace_s: float
    """How long the others may take to end when one has failed."""


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
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        """Of the thread, once all run."""
        self._ended: Future[RunProcsResult] = Future()
        self._handlers: dict[signal.Signals, Any] = {}

    def start(self) -> None:
        """Start all, or none and raise; see `start_processes`.

        In the main thread, usual signals that nobody else handles raise SignalException there from
        now on, until `close`.
        """
        self._handle_signals()
        self._thread.start()
        try:
            self._loop.result()
        except BaseException:
            self.close(timeout=0)
            raise

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Block until all have succeeded, or one has failed and the rest was ended; None when that
        takes longer than `timeout` seconds (negative: no limit). `period` is ignored. May be called
        again, from any thread. Raises UsageError for a returned value that can't be loaded.
        """
        is_over = wait([self._ended], None if timeout < 0 else timeout).done
        return self._ended.result() if is_over else None

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
        if self._loop.exception() is None:
            stop = partial(self._supervision.stop, number, timeout)
            with suppress(RuntimeError):  # The loop has ended: so have the processes.
                self._loop.result().call_soon_threadsafe(stop)
        self._thread.join()
        self._restore_handlers()

    def _run(self) -> None:
        try:
            result = asyncio.run(self._supervision.run(self._loop.set_result))
        except BaseException as error:
            raised = error
            if isinstance(error, WorkerStartError):
                raised = OSError(error.errno, str(error))
                raised.__cause__ = error
            if not self._loop.done():
                self._loop.set_exception(raised)
            self._ended.set_exception(raised)
        else:
            self._ended.set_result(result)

    def _handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        signals.keep_exit_statuses()
        for number in _HANDLED:
            before = signal.getsignal(number)
            if before in (signal.SIG_DFL, signal.default_int_handler):
                self._handlers[number] = before
                signal.signal(number, _raise_signal)

    def _restore_handlers(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        while self._handlers:
            number, before = self._handlers.popitem()
            if signal.getsignal(number) is _raise_signal:
                signal.signal(number, before)


def _raise_signal(number: int, _frame: FrameType | None) -> None:
    text = f"process {os.getpid()} got {signal_name(number)}"
    raise SignalException(text, signal.Signals(number))


class _Supervision:
    """One life of the processes, in the loop of their thread."""

    def __init__(self, plan: ProcessPlan) -> None:
        self._plan = plan
        self.pids: tuple[int, ...] = ()
        self._stopping = False
        self._wish: tuple[int, float] | None = None
        self._oom = OomWatch()

    def stop(self, number: int, timeout_s: float) -> None:
        """End all, from now on with this signal and this grace."""
        self._wish = (number, timeout_s)
        if self._stopping:
            self._workers.signal_all(number)
            asyncio.get_running_loop().call_later(timeout_s, self._hurry.set)
        self._turned.set()

    async def run(self, started: Callable[[asyncio.AbstractEventLoop], None]) -> RunProcsResult:
        """From start to end. Calls `started` once all run; raises when they can't be started."""
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
                n: self._failure(n, await outputs.tail(0, n), opened[n].log_file)
                for n in sorted(by_themselves & set(self._workers.exits.failed()))
            }
            succeeded = not failures and len(by_themselves) == len(ranks)
            return RunProcsResult(
                dict.fromkeys(ranks) | self._plan.results.load() if succeeded else {},
                failures,
                stdouts={n: dest.stdouts.get(n, "") for n in ranks},
                stderrs={n: dest.stderrs.get(n, "") for n in ranks},
            )
        finally:
            self._plan.results.close()
            if relay is not None:
                await relay.stop(_CONSOLE_TIMEOUT_S)

    def _start(self, outputs: WorkerOutputs) -> list[WorkerOutput]:
        commands = self._plan.commands
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
            for call in self._plan.calls:
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

    def _failure(self, local_rank: int, tail: Sequence[str], log_file: str) -> ProcessFailure:
        lacked_memory = self._oom.rose()
        known = describe_failure(
            self._workers.exits[local_rank],
            stderr_tail=os.fsencode("\n".join(tail)),
            out_of_memory=lacked_memory,
        )
        message = known.message if tail or lacked_memory else ""
        known = replace(known, message=message, log_file=log_file)
        return process_failure(known, self._plan.dest.error_files.get(local_rank, ""))
