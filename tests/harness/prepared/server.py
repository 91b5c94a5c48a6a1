"""A process that has imported modules, and forks one that runs a program for each request.

    server.py LISTENER MODULES        (LISTENER is a descriptor, MODULES are separated by commas)

It is started by `interpreter.py`; `client.py` and `processes.py` ask it. It is no child of the test
process: tests look for children that are left. It ends, and removes the folder of its socket, when
its stdin ends: the pipe of the test process, however that ended, which sees its end on its stdout.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import importlib
import marshal
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import sys
import threading
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_MM, PR_SET_MM_MAP = 35, 14
MM_MAP = struct.Struct("=11QQIi")
"""The kernel's `struct prctl_mm_map`."""
SENT_TO_EVERYBODY = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""What a terminal or a scheduler sends: the test process says when this one ends."""
STDIO = (0, 1, 2)
SIZE_BYTES = 8
PID_BYTES = 4
CODE_BYTES = 2

libc = ctypes.CDLL(None)
libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_ssize_t], ctypes.c_void_p
kept: list[object] = []
"""What a forked process has no use for, and must not close: the descriptors are others by then."""


class Request(NamedTuple):
    """A command line of Python, and how it runs."""

    words: list[str]
    """The interpreter is the first."""
    folder: str
    environment: dict[bytes, bytes]
    modules: list[str]
    """What else is to be imported, unless it is: later requests find it there."""
    umask: int
    mask: list[int]
    """The signals that are blocked."""
    has_client: bool
    """Whether a client process stands for it, whose end is its own, and that passes signals on."""
    new_session: bool


class Forked:
    """A process that runs a request; a zombie until whoever asked knows how it ended."""

    def __init__(self, pid: int, client: socket.socket, has_client: bool) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.client = client
        self.has_client = has_client
        self.has_ended = self.is_forgotten = False

    def report(self) -> None:
        """It has ended: say how."""
        self.has_ended = True
        ended = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        try:
            self.client.sendall(code.to_bytes(CODE_BYTES, "little", signed=True))
        except OSError:
            pass  # Nobody waits for it any more.

    def attend(self) -> None:
        """The client has got signals or has ended, or nobody waits for the process any more."""
        try:
            numbers = self.client.recv(64)
        except ConnectionResetError:
            numbers = b""
        self.is_forgotten = not numbers
        if self.has_ended or not self.has_client:
            return
        try:
            for number in numbers:
                os.kill(self.pid, number)
            if self.is_forgotten:
                os.kill(self.pid, signal.SIGKILL)
                os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def reap(self) -> None:
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self.client.close()


def received(client: socket.socket) -> tuple[Request, list[int]] | None:
    """A request and the three descriptors that come with it; None: the client has gone."""
    begin, fds, _, _ = socket.recv_fds(client, SIZE_BYTES, len(STDIO))
    if len(begin) < SIZE_BYTES:
        for fd in fds:
            os.close(fd)
        return None
    missing, parts = int.from_bytes(begin, "little"), []
    while missing:
        part = client.recv(missing)
        parts.append(part)
        missing -= len(part)
    return Request(*marshal.loads(b"".join(parts))), list(fds)


def serve(listener: socket.socket) -> Request:
    """Fork a process for each request. Returns in the forked processes only."""
    watched = selectors.DefaultSelector()
    watched.register(0, selectors.EVENT_READ)
    watched.register(listener, selectors.EVENT_READ)
    kept.extend((watched, listener))
    while True:
        for key, _ in watched.select():
            if key.fd == 0:
                shutil.rmtree(os.path.dirname(listener.getsockname()), ignore_errors=True)
                os._exit(0)
            if key.data is None:
                client, _ = listener.accept()
                asked = received(client)
                if asked is None:
                    client.close()
                    continue
                for module in asked[0].modules:
                    importlib.import_module(module)
                pid = os.fork()
                if pid == 0:
                    kept.extend(key.data for key in watched.get_map().values())
                    become(*asked, client)
                    return asked[0]
                for fd in asked[1]:
                    os.close(fd)
                forked = Forked(pid, client, asked[0].has_client)
                watched.register(forked.pidfd, selectors.EVENT_READ, forked)
                watched.register(client, selectors.EVENT_READ, forked)
                continue
            forked = key.data
            watched.unregister(key.fileobj)
            if key.fd == forked.pidfd:
                forked.report()
            else:
                forked.attend()
                if not forked.is_forgotten:
                    watched.register(key.fileobj, selectors.EVENT_READ, forked)
            if forked.has_ended and forked.is_forgotten:
                forked.reap()


def become(request: Request, fds: list[int], client: socket.socket) -> None:
    """Be what an exec would have made of this process, and say that it is there."""
    if request.has_client or request.new_session:
        os.setsid()
    if request.has_client:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in SENT_TO_EVERYBODY:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.mask)
    for fd, own in zip(fds, STDIO, strict=True):
        os.dup2(fd, own)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.umask(request.umask)
    os.chdir(request.folder)
    block = have_environment(request.environment)
    if not request.has_client:
        show(request.words, block)
    client.sendall(os.getpid().to_bytes(PID_BYTES, "little"))
    kept.append(client)
    os.closerange(len(STDIO), max(map(int, os.listdir("/proc/self/fd"))) + 1)


def have_environment(environment: dict[bytes, bytes]) -> ctypes.Array[ctypes.c_char]:
    """One string after the other, as after an exec; returns these."""
    lines = [name + b"=" + value for name, value in environment.items()]
    block = ctypes.create_string_buffer(b"\0".join([*lines, b""]))
    array = (ctypes.c_void_p * (len(lines) + 1))()
    at = ctypes.addressof(block)
    for index, line in enumerate(lines):
        array[index] = at
        at += len(line) + 1
    kept.append(array)
    ctypes.c_void_p.in_dll(libc, "environ").value = ctypes.addressof(array)
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    data.clear()
    data.update(environment)
    if named := os.environ.get("PYTHONPATH"):
        places = map(os.path.abspath, named.split(os.pathsep))
        sys.path[1:] = dict.fromkeys([*places, *sys.path[1:]])
    return block


def show(words: list[str], block: ctypes.Array[ctypes.c_char]) -> None:
    """Have /proc show this command line and environment; see proc(5) for the numbers of fields."""
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    line = ctypes.create_string_buffer(text, len(text))
    kept.extend((line, block))
    with open("/proc/self/stat", "rb") as file:
        fields = list(map(int, file.read().rpartition(b") ")[2].split()[1:]))
    code_start, code_end, stack_start = fields[22:25]
    data_start, data_end, heap_start = fields[41:44]
    line_at, block_at = ctypes.addressof(line), ctypes.addressof(block)
    record = MM_MAP.pack(
        *(code_start, code_end, data_start, data_end, heap_start, libc.sbrk(0), stack_start),
        *(line_at, line_at + len(text), block_at, block_at + len(block) - 1),
        *(0, 0, -1),
    )
    told = ctypes.create_string_buffer(record, len(record))
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.addressof(told), len(record), 0):
        sys.exit("the kernel does not show a command line that was set (PR_SET_MM_MAP)")


def run(request: Request) -> None:
    """What Python does with a command line."""
    sys.orig_argv = list(request.words)
    words = request.words[1:]
    while words[0] in ("-u", "-P"):
        del words[0]
    main = sys.modules["__main__"] = ModuleType("__main__")
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = main  # As an import of multiprocessing has it.
    space: dict[str, Any] = main.__dict__
    space.update(__builtins__=builtins, __annotations__={})
    if words[0] == "-m":
        sys.argv, sys.path[0] = ["-m", *words[2:]], request.folder
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), space)
    else:
        path = os.path.join(request.folder, words[0])
        loader = SourceFileLoader("__main__", path)
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.realpath(path))
        space.update(__file__=path, __loader__=loader, __cached__=None)
        exec(compile(loader.get_data(path), path, "exec", dont_inherit=True), space)


def prepare() -> Request:
    for number in SENT_TO_EVERYBODY:
        signal.signal(number, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2].split(","):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # Else the collector writes to every page, and each is copied for each process.
    return serve(listener)


def code_of(leaving: SystemExit) -> int:
    """As the interpreter has it."""
    if leaving.code is None or isinstance(leaving.code, int):
        return (leaving.code or 0) & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def print_error(error: BaseException) -> None:
    """Without the frames of this file."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def finish(code: int) -> int:
    """The end of an interpreter but for taking all modules apart: that copies every page too."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            code = code or 120
            if stream is sys.stdout:
                where = (
                    "on flushing sys.stdout:" if sys.version_info >= (3, 13) else f"in: {stream!r}"
                )
                print(f"Exception ignored {where}", file=sys.stderr)
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return code


def main() -> None:
    if os.fork():
        os._exit(0)
    request = prepare()
    code = 0
    try:
        run(request)
    except SystemExit as leaving:
        code = code_of(leaving)
    except KeyboardInterrupt as error:
        print_error(error)
        finish(0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        print_error(error)
        code = 1
    os._exit(finish(code))


if __name__ == "__main__":
    main()
