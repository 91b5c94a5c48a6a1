"""A process that has imported torch, and forks one that runs a program for each request.

    server.py LISTENER MODULES        (LISTENER is a descriptor, MODULES are separated by commas)

It is started by `interpreter.py` and asked by `client.py`. It is no child of the test process:
tests look for children that are left. It ends, and with it all that it has forked, when its stdin
does: the pipe of the test process, however that ended; that process sees its end on its stdout.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import marshal
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from types import ModuleType
from typing import Any, NamedTuple

PR_SET_PDEATHSIG = 1
STDIO = (0, 1, 2)
SIZE_BYTES = 8


class Request(NamedTuple):
    """A command line of Python, and where it runs."""

    words: list[str]
    folder: str
    environment: dict[bytes, bytes]
    modules: list[str]
    """What else is to be imported, unless it is: later requests find it there."""


class Forked(NamedTuple):
    """A process that runs a request."""

    pid: int
    pidfd: int
    client: socket.socket


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
    running: dict[int, Forked] = {}
    while True:
        for key, _ in watched.select():
            if key.fd == 0:
                os._exit(0)
            elif key.fd == listener.fileno():
                client, _ = listener.accept()
                asked = received(client)
                if asked is None:
                    client.close()
                    continue
                for module in asked[0].modules:
                    importlib.import_module(module)
                pid = os.fork()
                if pid == 0:
                    watched.close()
                    enter(asked, [*running, client.fileno(), listener.fileno()])
                    return asked[0]
                for fd in asked[1]:
                    os.close(fd)
                forked = Forked(pid, os.pidfd_open(pid), client)
                for fd in (forked.pidfd, client.fileno()):
                    running[fd] = forked
                    watched.register(fd, selectors.EVENT_READ, forked)
            elif key.fd in running and running[key.fd] is key.data:
                attend(running[key.fd], key.fd, running, watched)
            # Else it has ended, earlier in this loop.


def attend(
    forked: Forked, fd: int, running: dict[int, Forked], watched: selectors.BaseSelector
) -> None:
    """The process has ended, or its client has got a signal or has ended."""
    if fd != forked.pidfd:
        if not forward(forked):
            watched.unregister(fd)
            del running[fd]
        return
    for one in (forked.pidfd, forked.client.fileno()):
        if running.pop(one, None) is not None:
            watched.unregister(one)
    finish(forked)


def enter(asked: tuple[Request, list[int]], others: list[int]) -> None:
    """Become the process that the client would be, with none of the server's descriptors."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    request, fds = asked
    for fd, own in zip(fds, STDIO, strict=True):
        os.dup2(fd, own)
    for fd in {*fds, *others}:
        os.close(fd)
    os.chdir(request.folder)
    os.environb.clear()
    os.environb.update(request.environment)
    for place in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if place and place not in sys.path:
            sys.path.insert(1, place)


def forward(forked: Forked) -> bool:
    """Signals that the client got go to the process; a client that was killed takes it along."""
    numbers = forked.client.recv(64)
    try:
        for number in numbers:
            os.kill(forked.pid, number)
        if not numbers:
            os.kill(forked.pid, signal.SIGKILL)
            os.killpg(forked.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return bool(numbers)


def finish(forked: Forked) -> None:
    """The client ends as the process did."""
    _, status = os.waitpid(forked.pid, 0)
    try:
        forked.client.sendall(os.waitstatus_to_exitcode(status).to_bytes(2, "little", signed=True))
    except OSError:
        pass  # It was killed.
    os.close(forked.pidfd)
    forked.client.close()


def run(request: Request) -> None:
    """What `python *words` does."""
    words = list(request.words)
    while words[0] in ("-u", "-P"):
        del words[0]
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    space: dict[str, Any] = main.__dict__
    space["__builtins__"] = __builtins__
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], request.folder
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), space)
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.abspath(words[0]))
        space["__file__"] = words[0]
        with open(words[0], "rb") as file:
            text = file.read()
        exec(compile(text, words[0], "exec"), space)


def prepare() -> Request:
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


def end(code: int) -> None:
    """The end of an interpreter but for taking all modules apart: that copies every page too."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    os._exit(code)


def main() -> None:
    if os.fork():
        os._exit(0)
    request = prepare()
    try:
        run(request)
    except SystemExit as leaving:
        end(code_of(leaving))
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        end(1)
    end(0)


if __name__ == "__main__":
    main()
