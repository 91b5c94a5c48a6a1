"""Start the processes of one node, wait for them and end them, with torch's signatures.

The calling threads block, and an event loop in another thread supervises the processes without
polling. That thread has forked them, so they are killed when the program dies.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from types import FrameType
from typing import Any

from msgspec.structs import replace

from rallypoint.config import FunctionCall, NumaOptions, OutputMode
from rallypoint.core.text import count, signal_name
from rallypoint.elastic.agent.embedded.supervision import (
    ProcessPlan,
    Programs,
    RunProcsResult as RunProcsResult,
    Supervision,
)
from rallypoint.elastic.multiprocessing.redirects import (
    IS_MACOS as IS_MACOS,
    IS_WINDOWS as IS_WINDOWS,
)
from rallypoint.errors import (
    ParameterError,
    RuntimeParameterError,
    SignalException as SignalException,
)
from rallypoint.core.text import naming_parameters
from rallypoint.process import signals
from rallypoint.process.logs.plan import LinePrefix, Std as Std, to_map as to_map
from rallypoint.process.logs.specs import (
    DefaultLogsSpecs as DefaultLogsSpecs,
    LogsDest as LogsDest,
    LogsSpecs as LogsSpecs,
    Reifies,
)
from rallypoint.process.logs.worker_output import OutputSettings
from rallypoint.process.prepared.calls import ResultFiles, bootstrap_argv, pickle_calls
from rallypoint.process.spawn import WorkerCommand, WorkerStartError
from rallypoint.process.syscalls import open_fds
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
    """Start one process per local rank, and return when all run; then `wait`, and `close`.

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
    _check_start_method(start_method)
    rest = (
        logs_specs,
        log_line_prefixes,
        numa_options,
        duplicate_stdout_filters,
        duplicate_stderr_filters,
    )
    context: PContext
    if callable(entrypoint):
        context = MultiprocessContext(
            name, entrypoint, args, envs, start_method, *rest, grace_s=grace_s
        )
    else:
        context = SubprocessContext(name, entrypoint, args, envs, *rest, grace_s=grace_s)
    context.start()
    return context


def get_std_cm(
    std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[None]]
) -> AbstractContextManager[None]:
    """Return `redirect_fn(std_rd)`; a context manager without effect if `std_rd` is empty."""
    return redirect_fn(std_rd) if std_rd else nullcontext()


class _Gate:
    """A one-shot gate: closed until a thread opens it.

    A signal handler may raise within `wait`. Within the wait of an event or a future that could
    leave the lock of its condition held, and `Thread.join` of Python 3.11 would then take the
    thread for ended.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Open the gate for all threads that wait. Call once."""
        self.is_open = True
        self._lock.release()

    def wait(self, timeout_s: float = -1.0) -> bool:
        """Block until the gate is open or `timeout_s` is over (negative: no limit).

        Return whether it is open.
        """
        ends_at = math.inf if timeout_s < 0 else time.monotonic() + timeout_s
        while not self.is_open and (left_s := ends_at - time.monotonic()) > 0:
            # If a signal raises between these two calls, others find the gate open a second later.
            if self._lock.acquire(timeout=min(left_s, 1.0)):
                self._lock.release()
        return self.is_open


class PContext(ABC):
    """The processes that `start_processes` has started; call `close` in the end.

    When one process fails, the others are ended, and `wait` returns. When all have succeeded, what
    they have started and left running is ended. `args` are the given arguments, and `envs` the
    given variables with TORCHELASTIC_ERROR_FILE, both by local rank.
    """

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., object] | str,
        args: Mapping[int, Sequence[object]],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: Reifies,
        log_line_prefixes: Mapping[int, str] | None = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        *,
        grace_s: float = 30.0,
    ) -> None:
        _check(args, envs)
        dest = logs_specs.reify(envs)
        self.name, self.entrypoint = name, entrypoint
        self.args = {rank: tuple(args[rank]) for rank in range(len(args))}
        self.envs = {
            rank: {**envs[rank], ERROR_FILE_VARIABLE: dest.error_files.get(rank, "")}
            for rank in range(len(envs))
        }
        outputs = OutputSettings(
            OutputMode.INHERIT,
            LinePrefix(name, given=log_line_prefixes or {}),
            inherits=Std.ALL,
            stdout_filters=tuple(duplicate_stdout_filters or ()),
            stderr_filters=tuple(duplicate_stderr_filters or ()),
        )
        self._dest = dest
        self._supervision = Supervision(ProcessPlan(logs_specs, dest, outputs, grace_s))
        self._thread = threading.Thread(target=self._run, name=f"processes-{name}", daemon=True)
        self._begun, self._ended = _Gate(), _Gate()
        """Gates: `_begun` opens when all run or can't be started, `_ended` when all are gone."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the thread; None until all processes run."""
        self._result: RunProcsResult | None = None
        self._error: BaseException | None = None
        """The exception that `wait` or `start` raises, because there is no result; else None."""
        self._handlers: dict[signal.Signals, Any] = {}

    @property
    def nprocs(self) -> int:
        """The number of processes."""
        return len(self.envs)

    @property
    def stdouts(self) -> dict[int, str]:
        """The file of each process's stdout, by local rank; empty if it goes to no file."""
        return {rank: self._dest.stdouts.get(rank, "") for rank in self.envs}

    @property
    def stderrs(self) -> dict[int, str]:
        """The file of each process's stderr, by local rank; empty if it goes to no file."""
        return {rank: self._dest.stderrs.get(rank, "") for rank in self.envs}

    @property
    def filtered_stdout(self) -> str:
        """The path for all processes' stdout lines that match `duplicate_stdout_filters`.

        Without such filters nothing is written there. Empty if `logs_specs` chose no path.
        """
        return self._dest.filtered_stdout

    @property
    def filtered_stderr(self) -> str:
        """The path for all processes' stderr lines that match `duplicate_stderr_filters`.

        Without such filters nothing is written there. Empty if `logs_specs` chose no path.
        """
        return self._dest.filtered_stderr

    @property
    def error_files(self) -> dict[int, str]:
        """The path of each process's error file, by local rank; empty if it has none."""
        return {rank: self._dest.error_files.get(rank, "") for rank in self.envs}

    @abstractmethod
    def _programs(self, environs: Sequence[Mapping[str, str]]) -> Programs:
        """Return the programs to execute, one for each of these environments."""

    @naming_parameters()
    def start(self) -> None:
        """Start all processes, and return when they run. Call once.

        If one can't be started, none is left, and this raises as `start_processes` does. If called
        in the main thread, SIGTERM, SIGINT, SIGHUP and SIGQUIT raise SignalException there until
        `close`, unless the program handles or ignores them.
        """
        if self._thread.ident is not None:
            raise ParameterError("start: was called before; make another context")
        base = {"PYTHONFAULTHANDLER": "1", **os.environ}
        self._supervision.programs = self._programs([base | env for env in self.envs.values()])
        self._handle_signals()
        try:
            with _signals_are_held():
                self._thread.start()
            self._begun.wait()
            if self._error is not None and self._loop is None:
                raise self._error
        except BaseException:
            self.close(timeout=0)
            raise

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Block until all have succeeded, or one has failed and the rest was ended.

        Returns how they ended; None if that takes longer than `timeout` seconds (negative: no
        limit). `period` is ignored. May be called again, from any thread. Raises ParameterError
        before `start`, and UsageError for a returned value that can't be loaded.
        """
        if self._thread.ident is None:
            raise ParameterError("wait: nothing was started; call start first")
        if not self._ended.wait(timeout):
            return None
        if self._error is not None:
            raise self._error
        return self._result

    def pids(self) -> dict[int, int]:
        """Return the pids by local rank, also of ended processes; empty before `start`."""
        return dict(enumerate(self._supervision.pids))

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """End all running processes, and return when none is left. Safe to repeat.

        Sends the signal (SIGTERM by default), gives all of them together `timeout` seconds, and
        then sends SIGKILL. Waits 5 s at most for processes to die of that, and some seconds more
        for teed output. A process that this ends counts neither as failed nor as succeeded.
        """
        number = signal.SIGTERM if death_sig is None else death_sig
        if self._thread.ident is None:
            return
        self._begun.wait()
        if self._loop is not None:
            stop = partial(self._supervision.stop, number, timeout)
            with suppress(RuntimeError):  # The loop has ended: so have the processes.
                self._loop.call_soon_threadsafe(stop)
        self._ended.wait()
        with _signals_are_held():
            self._thread.join()
        self._restore_handlers()

    @naming_parameters()
    def _run(self) -> None:
        try:
            self._result = asyncio.run(self._supervision.run(self._runs_in))
        except BaseException as error:
            self._error = error
            if isinstance(error, WorkerStartError):
                self._error = OSError(error.errno, str(error))
                self._error.__cause__ = error
        if not self._begun.is_open:
            self._begun.open()
        self._ended.open()

    def _runs_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._begun.open()

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


class MultiprocessContext(PContext):
    """The processes of a `start_processes` call whose entrypoint is a function."""

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., object],
        args: Mapping[int, Sequence[object]],
        envs: Mapping[int, Mapping[str, str]],
        start_method: str,
        logs_specs: Reifies,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: NumaOptions | None = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        *,
        grace_s: float = 30.0,
    ) -> None:
        _check_start_method(start_method)
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
            grace_s=grace_s,
        )
        self._function, self.start_method = entrypoint, start_method
        self._numa_options = numa_options

    def _programs(self, environs: Sequence[Mapping[str, str]]) -> Programs:
        results = ResultFiles()
        function = FunctionCall(self._function, tuple(self.args.values()))
        if self.start_method == "fork":
            commands = _forks(function, environs, results)
            return Programs(_bound(commands, self._numa_options), (), results)
        commands, calls = [], pickle_calls(function)
        for rank, environ in enumerate(environs):
            argv, fds = bootstrap_argv(calls[rank], results.open(rank), f"{self.name}{rank}")
            commands.append(WorkerCommand(argv, environ, pass_fds=fds))
        return Programs(_bound(commands, self._numa_options), calls, results)


class SubprocessContext(PContext):
    """The processes of a `start_processes` call whose entrypoint is a program."""

    def __init__(
        self,
        name: str,
        entrypoint: str,
        args: Mapping[int, Sequence[object]],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: Reifies,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: NumaOptions | None = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        *,
        grace_s: float = 30.0,
    ) -> None:
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
            grace_s=grace_s,
        )
        self._program, self._numa_options = entrypoint, numa_options

    def _programs(self, environs: Sequence[Mapping[str, str]]) -> Programs:
        argvs = [[self._program, *map(str, args)] for args in self.args.values()]
        commands = list(map(WorkerCommand, argvs, environs))
        return Programs(_bound(commands, self._numa_options), (), ResultFiles())


def _forks(
    call: FunctionCall, environs: Sequence[Mapping[str, str]], results: ResultFiles
) -> list[WorkerCommand]:
    """Return the commands that run the function in forks of this process.

    The forks inherit its descriptors.
    """
    from rallypoint.process.prepared.bootstrap import run_call

    commands, fds = [], open_fds()
    for rank, environ in enumerate(environs):
        result_fd = results.open(rank)
        body = partial(run_call, call.function, call.args[rank], result_fd, environ)
        commands.append(WorkerCommand([call.name], environ, pass_fds=(result_fd, *fds), body=body))
    return commands


def _bound(commands: list[WorkerCommand], numa: NumaOptions | None) -> list[WorkerCommand]:
    from rallypoint.process.affinity import worker_cpus

    if numa is None:
        return commands
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    cpus, notice = worker_cpus(len(commands), numa, visible)
    if notice:
        warnings.warn(notice, stacklevel=6)
    unbound_if_refused = numa.should_fall_back_if_binding_fails
    return [
        replace(command, cpus=bound, unbound_if_refused=unbound_if_refused)
        for command, bound in zip(commands, cpus or [frozenset()] * len(commands), strict=True)
    ]


def _check(args: Mapping[int, object], envs: Mapping[int, Mapping[str, str]]) -> None:
    for what, given in (("args", args), ("envs", envs)):
        if not given:
            raise RuntimeParameterError(
                f"{what} is empty: needs an entry for each local rank, from 0"
            )
        if set(given) != set(range(len(given))):
            keys = ", ".join(map(repr, given))
            raise RuntimeParameterError(
                f"{what} has the local ranks {keys}: needs 0 to {len(given) - 1}, each once"
            )
    if len(args) != len(envs):
        raise RuntimeParameterError(
            f"args are for {count(len(args), 'local rank')}, envs for {len(envs)}: "
            "give both for every local rank"
        )
    for local_rank, name, value in ((n, *item) for n, env in envs.items() for item in env.items()):
        if not name or "=" in name or "\0" in f"{name}{value}" or not isinstance(value, str):
            raise ParameterError(
                f"envs has for local rank {local_rank} {name!r}: {value!r}: needs a name without "
                "= and a text"
            )


def _check_start_method(start_method: str) -> None:
    if start_method not in _START_METHODS:
        raise ParameterError(f"start_method {start_method!r}: use one of {_START_METHODS}")


_held: list[int] | None = None
"""The signals that arrived in a block of `_signals_are_held`; None outside of such a block."""


@contextmanager
def _signals_are_held() -> Iterator[None]:
    """Delay the SignalException of the signals that a `PContext` handles to the end of the block.

    Only the first signal raises. Works in the main thread; in any other one it has no effect.
    """
    global _held
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _held = []
    try:
        yield
    finally:
        came, _held = _held, None
    if came:
        _raise_signal(came[0], None)


def _raise_signal(number: int, _frame: FrameType | None) -> None:
    if _held is not None:
        _held.append(number)
        return
    text = f"process {os.getpid()} got {signal_name(number)}"
    raise SignalException(text, signal.Signals(number))
