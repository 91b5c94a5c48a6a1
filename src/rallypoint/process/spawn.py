"""Start workers: exactly the given argv and environment, no wrapper between.

fork(2) by hand instead of `subprocess`: a parent-death signal and the registration with the guard
must happen between fork and exec. The children of one batch prepare themselves while the next is
being forked, and share one pipe: each writes a record only if it fails, and the end of file says
that all have exec'd or exited. A worker may also be a fork of its agent that execs nothing
(`run_forked`).
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NoReturn, TextIO

from msgspec import Struct

from rallypoint.core.text import named
from rallypoint.errors import MACHINE_ERRNOS, InfrastructureError, UsageError, during
from rallypoint.process import signals, syscalls
from rallypoint.process.guard import Guard, register_self
from rallypoint.process.limits import fix_of

_REPORT = struct.Struct("=iii")
_ABANDON_TIMEOUT_S = 5.0
_OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft and the hard limit of descriptors with which this process was started. The node that
hosts the coordinator raises its own limit later; workers get the one that their user chose
(select(2) fails above 1024)."""


class Stage(IntEnum):
    """The step between fork and exec in which a worker failed."""

    SESSION = 1
    STREAMS = 2
    CPUS = 3
    EXEC = 4


class WorkerCommand(Struct, frozen=True):
    """One worker to start.

    Descriptors of None mean: inherit the agent's. stdin is inherited. `pass_fds`, above 2, keep
    their numbers in the worker.

    `cpus` are the CPUs that it may use; empty: the agent's. With `unbound_if_refused` it starts
    even if the kernel refuses them. `ignored_signals` are ignored in the executed program; all
    others get their defaults. With a `body` nothing is executed: the worker is a fork of this
    process that runs it, see `run_forked`; `argv` and `env` are not used.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    stdout_fd: int | None = None
    stderr_fd: int | None = None
    pass_fds: Sequence[int] = ()
    cpus: frozenset[int] = frozenset()
    unbound_if_refused: bool = False
    body: Callable[[], None] | None = None
    ignored_signals: frozenset[int] = frozenset()


class WorkerProcess(Struct, frozen=True):
    """A started worker; its pid is also its process group and its session.

    Whoever holds it must end all processes of the session, then reap it: see `workers.WorkerSet`.
    """

    pid: int


_STAGES = {
    Stage.SESSION: "set up a worker",
    Stage.STREAMS: "set up the streams of a worker",
    Stage.CPUS: "bind a worker to CPUs",
    Stage.EXEC: "exec a worker",
}


_BEYOND_THE_LIMIT = errno.EINVAL
"""The error of fcntl(2), F_DUPFD, for a descriptor beyond this process's limit."""


class WorkerStartError(UsageError):
    """A worker's program can't be run as given, or this machine lacks a resource for it.

    No worker of its batch is left.
    """

    def __init__(self, command: WorkerCommand, stage: Stage, number: int, index: int = 0) -> None:
        if stage is Stage.STREAMS and number == _BEYOND_THE_LIMIT:
            number = errno.EMFILE
        self.stage, self.errno, self.index = stage, number, index
        super().__init__(_explain(command, stage, number))
        during(_STAGES[stage], number, self)


class WorkerForkError(InfrastructureError):
    """The system has no process, memory or descriptor left for a worker.

    No worker of its batch is left.
    """

    def __init__(self, index: int, cause: OSError) -> None:
        self.index, self.errno = index, cause.errno
        is_of_files = cause.errno in (errno.EMFILE, errno.ENFILE)
        fix = fix_of(cause.errno if is_of_files else errno.EAGAIN)
        super().__init__(f"could not fork worker {index}: {cause.strerror}: {fix}")
        during("fork", cause.errno, self)


def spawn_workers(commands: Sequence[WorkerCommand], guard: Guard | None) -> list[WorkerProcess]:
    """Start all workers, and return when each has exec'd, or begins its `body`.

    On an error none is left. A worker leads a session of its own, dies with this thread (SIGKILL),
    and is known to the guard. Signals have their defaults, unless the command says otherwise, and
    none is blocked. It has no descriptor but 0, 1, 2 and those that it is to be passed. A name
    without a slash is looked up in the PATH of `env`. Blocks for some 1 ms per worker.

    Raises WorkerStartError (stage and errno of the first that failed), WorkerForkError, or OSError
    when there is no descriptor for a pipe.
    """
    for index, command in enumerate(commands):
        if command.body is None and (
            not command.argv or any("\0" in word for word in command.argv)
        ):
            raise WorkerStartError(command, Stage.EXEC, errno.EINVAL, index)
    signals.keep_exit_statuses()
    report_read, report_write = syscalls.pipe_above_standard_fds()
    pids: list[int] = []
    try:
        failed_fork: OSError | None = None
        try:
            child = _Child(guard.child_fd if guard is not None else None, report_write)
            with signals.blocked(signals.handled_signals()):
                for index, command in enumerate(commands):
                    pids.append(child.fork(index, command, _candidates(command)))
        except OSError as error:
            failed_fork = error
        finally:
            os.close(report_write)
        report = _read_to_end(report_read)
    except BaseException:
        abandon(pids, guard)
        raise
    finally:
        os.close(report_read)
    if failed_fork is None and not report:
        return [WorkerProcess(pid) for pid in pids]
    abandon(pids, guard)
    if failed_fork is not None:
        raise WorkerForkError(len(pids), failed_fork) from failed_fork
    index, stage, number = min(_REPORT.iter_unpack(report))
    raise WorkerStartError(commands[index], Stage(stage), number, index)


def abandon(pids: Sequence[int], guard: Guard | None) -> None:
    """Kill and reap workers that have just been started. Blocks for at most 5 s in all.

    One that does not die by then (its program is on a dead file server) stays with the guard.
    """
    for pid in pids:
        # Before its setsid a child has no group of its own yet, so both are signalled.
        syscalls.signal_process(pid, signal.SIGKILL)
        syscalls.signal_group(pid, signal.SIGKILL)
    deadline = time.monotonic() + _ABANDON_TIMEOUT_S
    for pid in pids:
        while not _has_exited(pid) and time.monotonic() < deadline:
            time.sleep(0.001)
        if _has_exited(pid):
            if guard is not None:
                guard.forget(pid)
            syscalls.reap_if_exited(pid)


class _Child:
    """The values that a child needs between fork and exec, computed before the fork."""

    def __init__(self, guard_fd: int | None, report_fd: int) -> None:
        self._guard_fd, self._report_fd = guard_fd, report_fd
        self._prctl = syscalls.load_prctl()
        self._parent_pid = os.getpid()
        self._changed_signals = signals.changed_signals()
        self._leaks = syscalls.inheritable_fds()

    def fork(self, index: int, command: WorkerCommand, programs: Sequence[str]) -> int:
        pid = os.fork()
        if pid == 0:
            self._become(index, command, programs)
        return pid

    def _become(self, index: int, command: WorkerCommand, programs: Sequence[str]) -> NoReturn:
        stage, number = Stage.SESSION, errno.EINVAL
        try:
            os.setsid()
            syscalls.die_with_parent(self._prctl, self._parent_pid)
            if self._guard_fd is not None:
                # Before SIGPIPE gets its default back: a dead guard must not kill workers.
                register_self(self._guard_fd)
                os.close(self._guard_fd)
            stage = Stage.STREAMS
            self._place_streams(command)
            # Not before: what we hold may be more than a low limit of the worker allows.
            resource.setrlimit(resource.RLIMIT_NOFILE, _OPEN_FILES)
            stage = Stage.CPUS
            _bind(command)
            stage = Stage.EXEC
            if command.body is not None:
                run_forked(command.body, self._changed_signals, frozenset(command.pass_fds))
            signals.reset_in_child(self._changed_signals, command.ignored_signals)
            _exec_first(programs, command)
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None) or errno.EINVAL
        finally:
            os.write(self._report_fd, _REPORT.pack(index, stage, number))
            os._exit(127)

    def _place_streams(self, command: WorkerCommand) -> None:
        # Duplicated first, for one may be the number of the other's place.
        given = [(command.stdout_fd, 1), (command.stderr_fd, 2)]
        sources = [(os.dup(fd), place) for fd, place in given if fd is not None]
        for source, place in sources:
            os.dup2(source, place)
        if command.body is not None:
            return  # Then all but `pass_fds` is closed.
        for fd in self._leaks:
            os.close(fd)
        for fd in command.pass_fds:
            os.set_inheritable(fd, True)


def _bind(command: WorkerCommand) -> None:
    if command.cpus:
        try:
            os.sched_setaffinity(0, command.cpus)
        except OSError:
            if not command.unbound_if_refused:
                raise


def _candidates(command: WorkerCommand) -> list[str]:
    if command.body is not None:
        return []
    program = command.argv[0]
    if os.path.dirname(program):
        return [program]
    return [os.path.join(directory, program) for directory in os.get_exec_path(command.env)]


def _exec_first(programs: Sequence[str], command: WorkerCommand) -> NoReturn:
    """Execute the first of these programs that can be run, as execvp(3) does.

    Raises OSError if none can: EACCES if one may not be executed, else ENOENT; any other error at
    once.
    """
    failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for program in programs:
        try:
            os.execve(program, list(command.argv), command.env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            failure = error
    raise failure


def _read_to_end(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 65536):
        chunks.append(chunk)
    return b"".join(chunks)


def _has_exited(pid: int) -> bool:
    try:
        return syscalls.peek_exit(pid) is not None
    except ChildProcessError:
        return True


def _explain(command: WorkerCommand, stage: Stage, number: int) -> str:
    program = command.argv[0] if command.argv else ""
    reason = os.strerror(number)
    if number in MACHINE_ERRNOS:
        return f"could not start {program!r} ({_STAGES[stage]}): {reason}: {fix_of(number)}"
    match stage:
        case Stage.CPUS:
            cpus = ",".join(map(str, sorted(command.cpus)))
            return (
                f"cannot bind a worker to the CPUs {cpus}: {reason}: leave out {named.numa_binding}"
            )
        case Stage.SESSION | Stage.STREAMS:
            return f"cannot set up a worker for {program!r} ({stage.name.lower()}): {reason}"
        case Stage.EXEC:
            return f"cannot run {program!r}: {reason}: {_exec_fix(program, number)}"


def _first_line_fix(program: str) -> str:
    """Return the fix for an existing program whose interpreter was not found."""
    try:
        with open(program, "rb", buffering=0) as file:
            line = file.read(256).partition(b"\n")[0]
    except OSError:
        line = b""
    if line.endswith(b"\r"):
        return "its lines end as on Windows (\\r\\n): run dos2unix on it"
    return "its first line (#!) names an interpreter that does not exist"


def _exec_fix(program: str, number: int) -> str:
    match number:
        case errno.ENOENT if not os.path.dirname(program):
            return "no such program in PATH; give its path"
        case errno.ENOENT if os.path.exists(program):
            return _first_line_fix(program)
        case errno.ENOENT:
            return "check the path"
        case errno.EACCES if os.path.isdir(program):
            return "it is a directory"
        case errno.EACCES:
            return "make it executable (chmod +x), or run it with an interpreter"
        case errno.ENOEXEC:
            return "start it with a #! line, or build it for this machine"
        case errno.E2BIG:
            return "its arguments and environment are too long"
        case errno.EINVAL:
            return "an empty command, or a NUL character in an argument or in the environment"
        case _:
            return "see the file and its file system"


def run_forked(
    body: Callable[[], None], changed: Iterable[int], keep_fds: frozenset[int]
) -> NoReturn:
    """Run `body` in a forked worker as Python's main program, and exit.

    No descriptor above 2 but `keep_fds` stays open. The caller's exit functions are not run; the
    worker's are, and what `multiprocessing` does at the end of a child (it flushes queues).
    """
    # Sockets of the agent that are garbage must not be finalized here; see `forks`.
    gc.freeze()
    syscalls.show_process_again()
    signals.reset_in_child(changed, signals.IGNORED_BY_PYTHON)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    syscalls.close_fds_except(keep_fds)
    # To be closed for a child of `multiprocessing`; a worker reads what any other would.
    stdin, sys.stdin = sys.stdin, None
    interrupts: list[BaseException] = []
    code = 1
    try:
        from multiprocessing import get_context

        child = get_context("fork").Process(target=_shown, args=(body, stdin, interrupts))
        code = child._bootstrap()  # type: ignore[attr-defined]
        if interrupts:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        os._exit(code)


def _shown(body: Callable[[], None], stdin: TextIO | None, interrupts: list[BaseException]) -> None:
    sys.stdin = stdin
    atexit._clear()
    try:
        body()
    except SystemExit:
        raise
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        if isinstance(error, KeyboardInterrupt):
            interrupts.append(error)
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()
