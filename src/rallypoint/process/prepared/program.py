"""The prepared process: has imported what takes long, and forks workers on demand.

Exec'd by its path with the workers' interpreter, where it needs the standard library only.

It must not be the workers' parent, for the agent waits for them and is the one with whom they die.
So a short-lived child forks them and exits: the agent, a subreaper, gets them. A worker registers
with the guard as soon as it leads its session, and runs nothing of the user's before the agent has
said so, which it does once it knows the worker's number. So whoever is killed meanwhile, agent,
prepared process or child, no worker is left that nobody knows.

On the control socket the agent sends records: 4 bytes of length, a JSON object, descriptors with
the first byte. Answers are lines of JSON.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import importlib.util
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

FOLDER = os.path.dirname(os.path.abspath(__file__))


def _sibling(name: str, folder: str = ".") -> Any:
    """Import a module of the package by its path: this interpreter may not have the package.

    `folder` is relative to this file's. The names shadow no other module.
    """
    spec = importlib.util.spec_from_file_location(
        f"_rallypoint_{name}", os.path.join(FOLDER, folder, f"{name}.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from rallypoint.process import signals, titles
    from rallypoint.process.prepared import bootstrap, command_line, native_threads
else:
    bootstrap = _sibling("bootstrap")
    command_line = _sibling("command_line")
    signals = _sibling("signals", "..")
    native_threads = _sibling("native_threads")
    titles = _sibling("titles", "..")

_LENGTH, _RECORD = struct.Struct("=I"), struct.Struct("=i")
_MAX_FDS = 253
_OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The limit of descriptors for workers; this process needs more for a large batch."""
_PR_SET_PDEATHSIG = 1


class WorkerToFork(NamedTuple):
    """A worker to fork: its command (empty: the call in `fds`), environment and descriptors."""

    argv: list[str]
    env: dict[str, str]
    stdout: int | None
    stderr: int | None
    fds: list[int]
    cpus: list[int]
    unbound_if_refused: bool


class StartGate(NamedTuple):
    """The agent's pid, and the descriptors that a new worker needs from the agent.

    By `go` it waits for the start signal, by `guard` it registers with the guard.
    """

    agent_pid: int
    go: int
    guard: int | None


class Broken(Exception):
    """The process can't be forked from, or a module can't be imported; the text is one line."""


def main() -> None:
    """Run `program.py CONTROL_FD TITLE ...`: import the modules, then fork workers.

    Returns in a worker only, when that has ended. It is started with `SENT_TO_EVERYBODY` ignored,
    for it ends with its agent. The words after the title make room for the titles of workers.
    """
    usual_name = titles.name()
    titles.set_name("rallypoint-pre")
    titles.overwrite(sys.argv[2:3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES[1], _OPEN_FILES[1]))
    bootstrap.forget_own_folder()
    agent = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(agent.fileno(), False)
    if not hasattr(socket, "recv_fds"):
        version = ".".join(map(str, sys.version_info[:2]))
        _answer(agent, error=f"--preload: {sys.executable} is Python {version}: needs 3.9 or later")
        os._exit(2)
    order, fds = _receive(agent)
    try:
        warnings = prepare(order["preload"], order["argv"], fds)
    except Broken as broken:
        _answer(agent, error=str(broken))
        os._exit(2)
    _answer(agent, ready=True, warnings=warnings)
    worker = serve(agent, ctypes.CDLL(None).prctl)
    titles.set_name(usual_name)
    become(worker)


def prepare(modules: list[str], argv: list[str], fds: list[int]) -> list[str]:
    """Import the modules, and return warnings about native threads that they have started.

    `argv` is a worker's command, or `fds` has its call. Raises Broken if a module can't be
    imported, or has started a Python thread or CUDA.
    """
    if argv:
        line = command_line.parse(argv)
        assert line is not None
        command_line.add_first_path(line)
    main_module = bootstrap.prepare_from(fds[0]) if fds else {}
    pid, directory = os.getpid(), os.open(".", os.O_PATH)
    warnings: list[str] = []
    for name in modules:
        before = len(native_threads.native_threads())
        try:
            _import(name, main_module)
        except BaseException as error:
            raise Broken(_why_not_imported(name, error)) from error
        if os.getpid() != pid:
            os._exit(0)  # The module has forked, and its child has come back from the import.
        if python := native_threads.python_threads():
            raise Broken(
                f"--preload {name}: it has started a Python thread ({python[0]}), and a process "
                "with threads must not be forked: import it in the workers"
            )
        if native_threads.cuda_is_initialised():
            raise Broken(
                f"--preload {name}: it has initialised CUDA, which can't be used after a fork: "
                "import it in the workers"
            )
        native = native_threads.native_threads()
        if len(native) > before:
            warnings.append(
                f"--preload {name}: it has started {len(native) - before} native threads "
                f"({', '.join(sorted(set(native)))}), which the workers will not have"
            )
    os.fchdir(directory)  # Where the workers start, whatever a module has done.
    os.close(directory)
    gc.collect()
    gc.freeze()  # Whoever looks for garbage writes to every page, and would copy it.
    return warnings


def serve(agent: socket.socket, prctl: Any) -> WorkerToFork:
    """Fork workers as the agent asks, and exit when the agent is gone.

    Returns in each worker, with what the worker is to run.
    """
    while True:
        batch: list[WorkerToFork] = []
        while "fork" not in (received := _receive(agent))[0]:
            batch.append(_worker(*received))
        order, fds = received
        gate = StartGate(order["fork"], fds[0], fds[1] if len(fds) > 1 else None)
        try:
            read, write = os.pipe()
            child = _fork_or_close(read, write)
        except OSError as error:
            _answer(agent, pid=-(error.errno or errno.EAGAIN))
            _answer(agent, pid=0)
            _close_all(fds, batch)
            continue
        if child == 0:
            worker = _fork_all(batch, write, gate)
            agent.close()
            os.close(read)
            os.close(write)
            _begin(worker, batch, gate, prctl)
            return worker
        os.close(write)
        while told := os.read(read, _RECORD.size):
            _answer(agent, pid=_RECORD.unpack(told)[0])
        _wait_for(child)  # From here on its children are the agent's.
        _answer(agent, pid=0)
        os.close(read)
        _close_all(fds, batch)


def _fork_or_close(read: int, write: int) -> int:
    """Fork as os.fork does; close the pipe if the fork fails. Raises OSError."""
    try:
        return os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise


def _close_all(fds: list[int], batch: list[WorkerToFork]) -> None:
    for fd in fds:
        os.close(fd)
    for worker in batch:
        _close(worker)


def _wait_for(child: int) -> None:
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass  # A module has SIGCHLD ignored, or handled by reaping everybody: it is gone.


def become(worker: WorkerToFork) -> None:
    """Become the worker in a fork: run its program, with no other frames in its traceback."""
    bootstrap.set_environ(worker.env)
    titles.overwrite(worker.argv or [titles.of_worker(worker.env)])
    native_threads.give_openblas_its_threads(worker.env)
    native_threads.reseed()
    if not worker.argv:
        call_fd, result_fd, *inherited = worker.fds
        bootstrap.run_pickled_call(call_fd, result_fd, inherited)
        return
    line = command_line.parse(worker.argv)
    assert line is not None
    bootstrap.show_users_frames()
    command_line.run(line, worker.argv)


def _fork_all(batch: list[WorkerToFork], report: int, gate: StartGate) -> WorkerToFork:
    """Fork each worker in the short-lived child, and exit.

    Writes each pid to `report`, or minus the number of an error, after which none is forked.
    Returns in each worker.
    """
    try:
        for worker in batch:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                _tell_guard(gate, os.getpid())
                return worker
            os.write(report, _RECORD.pack(pid))
    except OSError as error:
        os.write(report, _RECORD.pack(-(error.errno or 1)))
    os._exit(0)


def _tell_guard(gate: StartGate, record: int) -> None:
    if gate.guard is not None:
        try:
            os.write(gate.guard, _RECORD.pack(record))
        except OSError:
            pass  # A dead guard is no reason not to start: the agent learns of it.


def _begin(worker: WorkerToFork, batch: list[WorkerToFork], gate: StartGate, prctl: Any) -> None:
    """Set signals, streams, limits and CPUs in a worker, and wait for the agent's start signal.

    The worker exits if the agent is gone or has given up, or if it can't be set up.
    """
    try:
        for number in signals.SENT_TO_EVERYBODY:
            if signal.getsignal(number) == signal.SIG_IGN:
                usual = signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler
                signal.signal(number, usual)
        for fd, place in ((worker.stdout, 1), (worker.stderr, 2)):
            if fd is not None:
                os.dup2(fd, place)
        for other in batch:
            _close(other, keep=worker.fds)
        resource.setrlimit(resource.RLIMIT_NOFILE, _OPEN_FILES)
        _bind(worker)
        told = os.read(gate.go, 1)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if not told or os.getppid() != gate.agent_pid:
            # The agent is gone, or has given up and may not know the number: nobody else will have
            # it forgotten.
            _tell_guard(gate, -os.getpid())
            os._exit(1)
        for gate_fd in (gate.go, gate.guard):
            if gate_fd is not None:
                os.close(gate_fd)
    except OSError as error:
        os.write(2, f"a worker can't be set up: {error}\n".encode())
        os._exit(127)


def _bind(worker: WorkerToFork) -> None:
    if worker.cpus:
        try:
            os.sched_setaffinity(0, worker.cpus)
        except OSError:
            if not worker.unbound_if_refused:
                raise


def _worker(order: dict[str, Any], fds: list[int]) -> WorkerToFork:
    streams = [fds.pop(0) if given else None for given in order["streams"]]
    cpus, unbound = order["cpus"], order["unbound_if_refused"]
    return WorkerToFork(order["argv"], order["env"], streams[0], streams[1], fds, cpus, unbound)


def _close(worker: WorkerToFork, keep: list[int] | None = None) -> None:
    for fd in (worker.stdout, worker.stderr, *worker.fds):
        if fd is not None and fd not in (keep or ()):
            os.close(fd)


def _import(name: str, main_module: dict[str, object]) -> None:
    if name == "__main__":
        bootstrap.import_main(main_module)
    else:
        importlib.import_module(name)


def _why_not_imported(name: str, error: BaseException) -> str:
    lines = str(error).splitlines()
    what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
    fix = f"install it for {sys.executable}, or check its name" if missing else "leave it out"
    return f"--preload {name}: can't be imported ({what}): {fix}"


def _receive(agent: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one record and its descriptors. Exits when the agent is gone."""
    head, fds, _, _ = socket.recv_fds(agent, _LENGTH.size, _MAX_FDS)
    head += _exactly(agent, _LENGTH.size - len(head)) if head else _gone()
    return json.loads(_exactly(agent, _LENGTH.unpack(head)[0])), list(fds)


def _exactly(agent: socket.socket, count: int) -> bytes:
    chunks = []
    while count:
        chunks.append(agent.recv(min(count, 1 << 20)) or _gone())
        count -= len(chunks[-1])
    return b"".join(chunks)


def _gone() -> NoReturn:
    os._exit(0)


def _answer(agent: socket.socket, **fields: Any) -> None:
    try:
        agent.sendall(json.dumps(fields).encode() + b"\n")
    except OSError:
        _gone()


if __name__ == "__main__":
    main()
